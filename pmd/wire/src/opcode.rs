//! The opcodes (MRC 1.0 table 6-4, table 7-11): class bits 0b110 and the five bits of the reliable
//! connection's operations.

use super::DecodeError;

/// The kind of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Opcode {
    /// First packet of a write of several packets.
    WriteFirst = 0xC6,
    /// A packet in the middle of a write.
    WriteMiddle = 0xC7,
    /// Last packet of a write.
    WriteLast = 0xC8,
    /// Last packet of a write with immediate data.
    WriteLastImm = 0xC9,
    /// The only packet of a write.
    WriteOnly = 0xCA,
    /// The only packet of a write with immediate data.
    WriteOnlyImm = 0xCB,
    /// Transport acknowledgement, positive or negative.
    Ack = 0xD1,
    /// Endpoint request.
    EndpointRequest = 0xD8,
    /// Endpoint response.
    EndpointResponse = 0xD9,
    /// Selective acknowledgement.
    Sack = 0xDC,
    /// Negative acknowledgement of one packet.
    Nack = 0xDD,
    /// Reliability probe request.
    Probe = 0xDE,
}

impl Opcode {
    /// All of them, in the order of their codes.
    pub const ALL: [Self; 12] = [
        Self::WriteFirst,
        Self::WriteMiddle,
        Self::WriteLast,
        Self::WriteLastImm,
        Self::WriteOnly,
        Self::WriteOnlyImm,
        Self::Ack,
        Self::EndpointRequest,
        Self::EndpointResponse,
        Self::Sack,
        Self::Nack,
        Self::Probe,
    ];

    /// The code in the first byte of the BTH.
    #[inline]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The opcode of a part of a write with this code.
    #[inline]
    pub(super) const fn write(code: u8) -> Option<Self> {
        Some(match code {
            0xC6 => Self::WriteFirst,
            0xC7 => Self::WriteMiddle,
            0xC8 => Self::WriteLast,
            0xC9 => Self::WriteLastImm,
            0xCA => Self::WriteOnly,
            0xCB => Self::WriteOnlyImm,
            _ => return None,
        })
    }

    /// Whether the packet is part of an RDMA write and so carries METH and RETH.
    #[inline]
    pub const fn is_write(self) -> bool {
        self.code() <= Self::WriteOnlyImm.code()
    }

    /// Whether the packet starts a message.
    #[inline]
    pub const fn is_first(self) -> bool {
        matches!(self, Self::WriteFirst | Self::WriteOnly | Self::WriteOnlyImm)
    }

    /// Whether the packet ends a message.
    #[inline]
    pub const fn is_last(self) -> bool {
        matches!(self, Self::WriteLast | Self::WriteLastImm | Self::WriteOnly | Self::WriteOnlyImm)
    }

    /// Whether immediate data follow the RETH.
    #[inline]
    pub const fn has_imm(self) -> bool {
        matches!(self, Self::WriteLastImm | Self::WriteOnlyImm)
    }
}

impl TryFrom<u8> for Opcode {
    type Error = DecodeError;

    #[inline]
    fn try_from(code: u8) -> Result<Self, DecodeError> {
        if let Some(write) = Self::write(code) {
            return Ok(write);
        }
        Ok(match code {
            0xD1 => Self::Ack,
            0xD8 => Self::EndpointRequest,
            0xD9 => Self::EndpointResponse,
            0xDC => Self::Sack,
            0xDD => Self::Nack,
            0xDE => Self::Probe,
            _ => return Err(DecodeError::UnknownOpcode(code)),
        })
    }
}

/// Names of opcodes in rules and traces: first code, last code, name.
pub const OPCODE_NAMES: [(u8, u8, &str); 7] = [
    (Opcode::WriteFirst.code(), Opcode::WriteOnlyImm.code(), "write"),
    (Opcode::Ack.code(), Opcode::Ack.code(), "ack"),
    (Opcode::Sack.code(), Opcode::Sack.code(), "sack"),
    (Opcode::Nack.code(), Opcode::Nack.code(), "nack"),
    (Opcode::Probe.code(), Opcode::Probe.code(), "probe"),
    (Opcode::EndpointRequest.code(), Opcode::EndpointRequest.code(), "endpoint-request"),
    (Opcode::EndpointResponse.code(), Opcode::EndpointResponse.code(), "endpoint-response"),
];
