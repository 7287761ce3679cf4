//! The opcodes (MRC 1.0 table 6-4, table 7-11): class bits 0b110 and the five bits of the reliable connection's
//! operations (IBTA volume 1, table 38).
//!
//! MRC has the writes and the control packets. The other data packets are an extension, which peers agree on when they
//! connect: `docs/protocol.md`, decision 37.

use super::{AtomicOperands, DecodeError, ImmDt};

/// The kind of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Opcode {
    /// First packet of a send of several packets.
    SendFirst = 0xC0,
    /// A packet in the middle of a send.
    SendMiddle = 0xC1,
    /// Last packet of a send.
    SendLast = 0xC2,
    /// Last packet of a send with immediate data.
    SendLastImm = 0xC3,
    /// The only packet of a send.
    SendOnly = 0xC4,
    /// The only packet of a send with immediate data.
    SendOnlyImm = 0xC5,
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
    /// Request to read the peer's memory.
    ReadRequest = 0xCC,
    /// First packet of the bytes read.
    ReadResponseFirst = 0xCD,
    /// A packet in the middle of the bytes read.
    ReadResponseMiddle = 0xCE,
    /// Last packet of the bytes read.
    ReadResponseLast = 0xCF,
    /// The only packet of the bytes read.
    ReadResponseOnly = 0xD0,
    /// Transport acknowledgement, positive or negative.
    Ack = 0xD1,
    /// The value that an atomic operation found.
    AtomicResponse = 0xD2,
    /// Request for a compare-and-swap.
    CompareSwap = 0xD3,
    /// Request for a fetch-and-add.
    FetchAdd = 0xD4,
    /// Last packet of a send that invalidates a key.
    SendLastInvalidate = 0xD6,
    /// The only packet of a send that invalidates a key.
    SendOnlyInvalidate = 0xD7,
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

/// What a data packet is part of. Data packets have a PSN of their own and are delivered once: requests, and the
/// responses that the peer's sending half carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// SEND: its bytes go into a receive buffer.
    Send,
    /// RDMA WRITE.
    Write,
    /// Request of an RDMA READ.
    ReadRequest,
    /// Response to an RDMA READ.
    ReadResponse,
    /// Request of an atomic operation.
    AtomicRequest,
    /// Response to an atomic operation.
    AtomicResponse,
}

/// A set of opcodes: one bit for each of the low five bits of the code.
struct Set(u32);

impl Set {
    const fn of(codes: &[Opcode]) -> Self {
        let (mut bits, mut at) = (0, 0);
        while at < codes.len() {
            bits |= 1 << (codes[at].code() & 0x1f);
            at += 1;
        }
        Self(bits)
    }

    #[inline]
    const fn has(&self, opcode: Opcode) -> bool {
        self.0 >> (opcode.code() & 0x1f) & 1 != 0
    }
}

const FIRST: Set = Set::of(&[
    Opcode::SendFirst,
    Opcode::SendOnly,
    Opcode::SendOnlyImm,
    Opcode::SendOnlyInvalidate,
    Opcode::WriteFirst,
    Opcode::WriteOnly,
    Opcode::WriteOnlyImm,
    Opcode::ReadRequest,
    Opcode::ReadResponseFirst,
    Opcode::ReadResponseOnly,
    Opcode::AtomicResponse,
    Opcode::CompareSwap,
    Opcode::FetchAdd,
]);

const LAST: Set = Set::of(&[
    Opcode::SendLast,
    Opcode::SendLastImm,
    Opcode::SendLastInvalidate,
    Opcode::SendOnly,
    Opcode::SendOnlyImm,
    Opcode::SendOnlyInvalidate,
    Opcode::WriteLast,
    Opcode::WriteLastImm,
    Opcode::WriteOnly,
    Opcode::WriteOnlyImm,
    Opcode::ReadRequest,
    Opcode::ReadResponseLast,
    Opcode::ReadResponseOnly,
    Opcode::AtomicResponse,
    Opcode::CompareSwap,
    Opcode::FetchAdd,
]);

const IMM: Set =
    Set::of(&[Opcode::SendLastImm, Opcode::SendOnlyImm, Opcode::WriteLastImm, Opcode::WriteOnlyImm]);

const INVALIDATE: Set = Set::of(&[Opcode::SendLastInvalidate, Opcode::SendOnlyInvalidate]);

const ATOMIC: Set = Set::of(&[Opcode::CompareSwap, Opcode::FetchAdd]);

const SEND: Set = Set::of(&[
    Opcode::SendFirst,
    Opcode::SendMiddle,
    Opcode::SendLast,
    Opcode::SendLastImm,
    Opcode::SendOnly,
    Opcode::SendOnlyImm,
    Opcode::SendLastInvalidate,
    Opcode::SendOnlyInvalidate,
]);

const CONTROL: Set = Set::of(&[
    Opcode::Ack,
    Opcode::EndpointRequest,
    Opcode::EndpointResponse,
    Opcode::Sack,
    Opcode::Nack,
    Opcode::Probe,
]);

impl Opcode {
    /// All of them, in the order of their codes.
    pub const ALL: [Self; 28] = [
        Self::SendFirst,
        Self::SendMiddle,
        Self::SendLast,
        Self::SendLastImm,
        Self::SendOnly,
        Self::SendOnlyImm,
        Self::WriteFirst,
        Self::WriteMiddle,
        Self::WriteLast,
        Self::WriteLastImm,
        Self::WriteOnly,
        Self::WriteOnlyImm,
        Self::ReadRequest,
        Self::ReadResponseFirst,
        Self::ReadResponseMiddle,
        Self::ReadResponseLast,
        Self::ReadResponseOnly,
        Self::Ack,
        Self::AtomicResponse,
        Self::CompareSwap,
        Self::FetchAdd,
        Self::SendLastInvalidate,
        Self::SendOnlyInvalidate,
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

    /// The opcode of a data packet with this code.
    #[inline]
    pub(super) const fn data(code: u8) -> Option<Self> {
        Some(match code {
            0xC0 => Self::SendFirst,
            0xC1 => Self::SendMiddle,
            0xC2 => Self::SendLast,
            0xC3 => Self::SendLastImm,
            0xC4 => Self::SendOnly,
            0xC5 => Self::SendOnlyImm,
            0xC6 => Self::WriteFirst,
            0xC7 => Self::WriteMiddle,
            0xC8 => Self::WriteLast,
            0xC9 => Self::WriteLastImm,
            0xCA => Self::WriteOnly,
            0xCB => Self::WriteOnlyImm,
            0xCC => Self::ReadRequest,
            0xCD => Self::ReadResponseFirst,
            0xCE => Self::ReadResponseMiddle,
            0xCF => Self::ReadResponseLast,
            0xD0 => Self::ReadResponseOnly,
            0xD2 => Self::AtomicResponse,
            0xD3 => Self::CompareSwap,
            0xD4 => Self::FetchAdd,
            0xD6 => Self::SendLastInvalidate,
            0xD7 => Self::SendOnlyInvalidate,
            _ => return None,
        })
    }

    /// Whether it is a data packet, which carries METH and RETH.
    #[inline]
    pub const fn is_data(self) -> bool {
        !CONTROL.has(self)
    }

    /// Whether it is part of an RDMA WRITE.
    #[inline]
    pub const fn is_write(self) -> bool {
        matches!(self.code(), 0xC6..=0xCB)
    }

    /// What a data packet is part of; nothing for a control packet.
    #[inline]
    pub const fn operation(self) -> Option<Operation> {
        Some(match self {
            Self::WriteFirst
            | Self::WriteMiddle
            | Self::WriteLast
            | Self::WriteLastImm
            | Self::WriteOnly
            | Self::WriteOnlyImm => Operation::Write,
            Self::SendFirst
            | Self::SendMiddle
            | Self::SendLast
            | Self::SendLastImm
            | Self::SendLastInvalidate
            | Self::SendOnly
            | Self::SendOnlyImm
            | Self::SendOnlyInvalidate => Operation::Send,
            Self::ReadRequest => Operation::ReadRequest,
            Self::ReadResponseFirst
            | Self::ReadResponseMiddle
            | Self::ReadResponseLast
            | Self::ReadResponseOnly => Operation::ReadResponse,
            Self::CompareSwap | Self::FetchAdd => Operation::AtomicRequest,
            Self::AtomicResponse => Operation::AtomicResponse,
            Self::Ack
            | Self::EndpointRequest
            | Self::EndpointResponse
            | Self::Sack
            | Self::Nack
            | Self::Probe => return None,
        })
    }

    /// Whether the packet starts a message.
    #[inline]
    pub const fn is_first(self) -> bool {
        FIRST.has(self)
    }

    /// Whether the packet ends a message.
    #[inline]
    pub const fn is_last(self) -> bool {
        LAST.has(self)
    }

    /// Whether it is a message of its own.
    #[inline]
    pub const fn is_only(self) -> bool {
        FIRST.has(self) && LAST.has(self)
    }

    /// Whether immediate data follow the RETH.
    #[inline]
    pub const fn has_imm(self) -> bool {
        IMM.has(self)
    }

    /// Whether a key to invalidate follows the RETH.
    #[inline]
    pub const fn invalidates(self) -> bool {
        INVALIDATE.has(self)
    }

    /// Whether the operands of an atomic operation follow the RETH.
    #[inline]
    pub const fn has_operands(self) -> bool {
        ATOMIC.has(self)
    }

    /// Bytes of the header after the RETH: immediate data, a key to invalidate, or operands.
    #[inline]
    pub(super) const fn tail_len(self) -> usize {
        const WORD: Set = Set(IMM.0 | INVALIDATE.0);
        if WORD.has(self) {
            return ImmDt::LEN;
        }
        if ATOMIC.has(self) { AtomicOperands::LEN } else { 0 }
    }

    /// The name of that header.
    pub(super) const fn tail_name(self) -> &'static str {
        if INVALIDATE.has(self) {
            return "IETH";
        }
        if ATOMIC.has(self) { "AtomicETH" } else { "ImmDt" }
    }

    /// Whether the packet is part of a message that takes a receive work request: a SEND, or a write that ends here
    /// with immediate data.
    #[inline]
    pub const fn takes_receive(self) -> bool {
        const TAKES: Set = Set(SEND.0 | IMM.0);
        TAKES.has(self)
    }
}

impl TryFrom<u8> for Opcode {
    type Error = DecodeError;

    #[inline]
    fn try_from(code: u8) -> Result<Self, DecodeError> {
        if let Some(data) = Self::data(code) {
            return Ok(data);
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

/// Names of opcodes in rules and traces: first code, last code, name. Those of a rule match one range each.
pub const OPCODE_NAMES: [(u8, u8, &str); 13] = [
    (Opcode::SendFirst.code(), Opcode::SendOnlyImm.code(), "send"),
    (Opcode::WriteFirst.code(), Opcode::WriteOnlyImm.code(), "write"),
    (Opcode::ReadRequest.code(), Opcode::ReadRequest.code(), "read-request"),
    (Opcode::ReadResponseFirst.code(), Opcode::ReadResponseOnly.code(), "read-response"),
    (Opcode::Ack.code(), Opcode::Ack.code(), "ack"),
    (Opcode::AtomicResponse.code(), Opcode::AtomicResponse.code(), "atomic-response"),
    (Opcode::CompareSwap.code(), Opcode::FetchAdd.code(), "atomic"),
    (Opcode::SendLastInvalidate.code(), Opcode::SendOnlyInvalidate.code(), "send-invalidate"),
    (Opcode::Sack.code(), Opcode::Sack.code(), "sack"),
    (Opcode::Nack.code(), Opcode::Nack.code(), "nack"),
    (Opcode::Probe.code(), Opcode::Probe.code(), "probe"),
    (Opcode::EndpointRequest.code(), Opcode::EndpointRequest.code(), "endpoint-request"),
    (Opcode::EndpointResponse.code(), Opcode::EndpointResponse.code(), "endpoint-response"),
];
