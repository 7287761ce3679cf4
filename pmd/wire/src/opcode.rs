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

/// What there is to know about an opcode, one bit each.
#[derive(Clone, Copy)]
struct Traits(u8);

impl Traits {
    const FIRST: u8 = 1;
    const LAST: u8 = 2;
    const IMM: u8 = 4;
    const INVALIDATE: u8 = 8;
    const OPERANDS: u8 = 16;
    const WRITE: u8 = 32;
    const SEND: u8 = 64;
    const CONTROL: u8 = 128;

    const ONLY: u8 = Self::FIRST | Self::LAST;

    const fn of(opcode: Opcode) -> Self {
        Self(match opcode {
            Opcode::SendFirst => Self::SEND | Self::FIRST,
            Opcode::SendMiddle => Self::SEND,
            Opcode::SendLast => Self::SEND | Self::LAST,
            Opcode::SendLastImm => Self::SEND | Self::LAST | Self::IMM,
            Opcode::SendOnly => Self::SEND | Self::ONLY,
            Opcode::SendOnlyImm => Self::SEND | Self::ONLY | Self::IMM,
            Opcode::SendLastInvalidate => Self::SEND | Self::LAST | Self::INVALIDATE,
            Opcode::SendOnlyInvalidate => Self::SEND | Self::ONLY | Self::INVALIDATE,
            Opcode::WriteFirst => Self::WRITE | Self::FIRST,
            Opcode::WriteMiddle => Self::WRITE,
            Opcode::WriteLast => Self::WRITE | Self::LAST,
            Opcode::WriteLastImm => Self::WRITE | Self::LAST | Self::IMM,
            Opcode::WriteOnly => Self::WRITE | Self::ONLY,
            Opcode::WriteOnlyImm => Self::WRITE | Self::ONLY | Self::IMM,
            Opcode::ReadResponseFirst => Self::FIRST,
            Opcode::ReadResponseMiddle => 0,
            Opcode::ReadResponseLast => Self::LAST,
            Opcode::ReadRequest | Opcode::ReadResponseOnly | Opcode::AtomicResponse => Self::ONLY,
            Opcode::CompareSwap | Opcode::FetchAdd => Self::ONLY | Self::OPERANDS,
            Opcode::Ack
            | Opcode::EndpointRequest
            | Opcode::EndpointResponse
            | Opcode::Sack
            | Opcode::Nack
            | Opcode::Probe => Self::CONTROL,
        })
    }
}

/// By the low five bits of the code: a look-up costs less than comparisons.
const TRAITS: [Traits; 32] = {
    let mut table = [Traits(Traits::CONTROL); 32];
    let mut at = 0;
    while at < Opcode::ALL.len() {
        let opcode = Opcode::ALL[at];
        table[(opcode.code() & 0x1f) as usize] = Traits::of(opcode);
        at += 1;
    }
    table
};

/// Bytes of the header after the RETH, in the same way.
const TAIL_LEN: [u8; 32] = {
    let mut table = [0; 32];
    let mut at = 0;
    while at < 32 {
        let traits = TRAITS[at].0;
        if traits & (Traits::IMM | Traits::INVALIDATE) != 0 {
            table[at] = ImmDt::LEN as u8;
        } else if traits & Traits::OPERANDS != 0 {
            table[at] = AtomicOperands::LEN as u8;
        }
        at += 1;
    }
    table
};

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

    #[inline]
    const fn traits(self) -> u8 {
        TRAITS[(self.code() & 0x1f) as usize].0
    }

    #[inline]
    const fn is(self, bits: u8) -> bool {
        self.traits() & bits == bits
    }

    #[inline]
    const fn is_any(self, bits: u8) -> bool {
        self.traits() & bits != 0
    }

    /// Whether it is a data packet, which carries METH and RETH.
    #[inline]
    pub const fn is_data(self) -> bool {
        !self.is(Traits::CONTROL)
    }

    /// Whether it is part of an RDMA WRITE.
    #[inline]
    pub const fn is_write(self) -> bool {
        self.is(Traits::WRITE)
    }

    /// Whether it is part of a SEND.
    #[inline]
    pub const fn is_send(self) -> bool {
        self.is(Traits::SEND)
    }

    /// Whether it is part of an RDMA WRITE and ends no message with immediate.
    #[inline]
    pub const fn is_plain_write(self) -> bool {
        self.traits() & (Traits::WRITE | Traits::IMM) == Traits::WRITE
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

    /// Whether the peer responds with bytes: the request of a READ or of an atomic operation.
    #[inline]
    pub const fn is_fetch_request(self) -> bool {
        matches!(self.operation(), Some(Operation::ReadRequest | Operation::AtomicRequest))
    }

    /// Whether it is part of the response to a READ or an atomic operation.
    #[inline]
    pub const fn is_fetch_response(self) -> bool {
        matches!(self.operation(), Some(Operation::ReadResponse | Operation::AtomicResponse))
    }

    /// Whether the packet starts a message.
    #[inline]
    pub const fn is_first(self) -> bool {
        self.is(Traits::FIRST)
    }

    /// Whether the packet ends a message.
    #[inline]
    pub const fn is_last(self) -> bool {
        self.is(Traits::LAST)
    }

    /// Whether it is a message of its own.
    #[inline]
    pub const fn is_only(self) -> bool {
        self.is(Traits::ONLY)
    }

    /// Whether immediate data follow the RETH.
    #[inline]
    pub const fn has_imm(self) -> bool {
        self.is(Traits::IMM)
    }

    /// Whether a key to invalidate follows the RETH.
    #[inline]
    pub const fn invalidates(self) -> bool {
        self.is(Traits::INVALIDATE)
    }

    /// Whether the operands of an atomic operation follow the RETH.
    #[inline]
    pub const fn has_operands(self) -> bool {
        self.is(Traits::OPERANDS)
    }

    /// Whether the packet is part of a message that takes a receive work request: a SEND, or a write that ends here
    /// with immediate data.
    #[inline]
    pub const fn takes_receive(self) -> bool {
        self.is_any(Traits::SEND | Traits::IMM)
    }

    /// Whether anything follows the RETH.
    #[inline]
    pub(super) const fn has_tail(self) -> bool {
        self.is_any(Traits::IMM | Traits::INVALIDATE | Traits::OPERANDS)
    }

    /// Bytes of the header after the RETH: immediate data, a key to invalidate, or operands.
    #[inline]
    pub(super) const fn tail_len(self) -> usize {
        TAIL_LEN[(self.code() & 0x1f) as usize] as usize
    }

    /// The name of that header.
    pub(super) const fn tail_name(self) -> &'static str {
        if self.invalidates() {
            return "IETH";
        }
        if self.has_operands() { "AtomicETH" } else { "ImmDt" }
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
