//! Protocol rules whose violation by the peer ends the queue pair.

use thiserror::Error;

use crate::memory::{Access, MemoryError};
use crate::wire::{Msn, NakCode, Opcode, Psn};

use super::message::{Arrived, Flaw};

/// A protocol rule that the peer broke, with the values from its packet.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum Violation {
    /// A peer must access only what its key permits (RETH: MRC 1.0 section 6.2).
    #[error("its access to {len} bytes at address {va:#x} with key {rkey:#010x} needs {needed:?}: {error}")]
    Access {
        /// The key of the packet.
        rkey: u32,
        /// Address of the packet's first byte.
        va: u64,
        /// Bytes of the packet's payload, or of the read.
        len: u32,
        /// The right that the access needs.
        needed: Access,
        /// Why it was refused.
        error: MemoryError,
    },
    /// All packets of a message but the last carry exactly the path MTU (MRC 1.0 section 6.2).
    #[error(
        "its packet {opcode:?} has {len} bytes of payload, which does not suit a message of {message_len} bytes at a path MTU of {path_mtu}"
    )]
    PayloadLength {
        /// Opcode of the packet.
        opcode: Opcode,
        /// Payload size in bytes.
        len: u32,
        /// Message size in bytes, as the packet states it.
        message_len: u32,
        /// The path MTU of the queue pair.
        path_mtu: u32,
    },
    /// Message numbers increase by one (METH: MRC 1.0 section 5.2).
    #[error("its packet has message number {msn}, and {expected} was next")]
    MessageNumber {
        /// Message number of the packet.
        msn: Msn,
        /// Number of the current message, or of the next one.
        expected: Msn,
    },
    /// A packet that does not begin a message continues the current one. Its address follows, key and length are the
    /// same, and it is the last one if and only if it carries the last byte. No other message begins before.
    #[error(
        "its packet {opcode:?} for address {va:#x} with key {rkey:#010x}, of a message of {message_len} bytes, does not follow the packet before it"
    )]
    Order {
        /// Opcode of the packet.
        opcode: Opcode,
        /// Key of the packet.
        rkey: u32,
        /// Address of the packet's first byte.
        va: u64,
        /// Message size in bytes, as the packet states it.
        message_len: u32,
    },
    /// Messages that take a receive work request are numbered separately, one by one (METH `rqmsn`).
    #[error("its message for a receive work request has number {rqmsn}, and {expected} was next")]
    ImmediateNumber {
        /// The packet's `rqmsn`.
        rqmsn: Msn,
        /// The expected `rqmsn`.
        expected: Msn,
    },
    /// Reads and atomic operations are numbered separately, one by one, and so are the responses (METH `rqmsn`).
    #[error(
        "its read or atomic operation, or its response to one, has number {rqmsn}, and {expected} was next"
    )]
    FetchNumber {
        /// The packet's `rqmsn`.
        rqmsn: Msn,
        /// The expected `rqmsn`.
        expected: Msn,
    },
    /// A response must be for a request that was sent, and have its kind and its length.
    #[error(
        "its response {opcode:?} of {message_len} bytes is for no read or atomic operation in flight (number {rqmsn})"
    )]
    NoSuchFetch {
        /// Opcode of the packet.
        opcode: Opcode,
        /// The packet's `rqmsn`.
        rqmsn: Msn,
        /// Message size in bytes, as the packet states it.
        message_len: u32,
    },
    /// A peer must not have more reads and atomic operations in flight than was agreed (`max_rd_atomic`).
    #[error(
        "it has more than {max} reads and atomic operations in flight, the max_rd_atomic that was agreed"
    )]
    TooManyFetches {
        /// The agreed limit.
        max: u8,
    },
    /// A key may be invalidated only by a peer that its registration permits to.
    #[error("its SEND invalidates key {rkey:#010x}: {error}")]
    Invalidation {
        /// The key of the packet.
        rkey: u32,
        /// Why it was refused.
        error: MemoryError,
    },
    /// A peer must not have more messages in flight that take a receive work request than was agreed (`max_wimm`).
    #[error(
        "it has more than {max_wimm} messages for receive work requests in flight, the max_wimm that was agreed"
    )]
    TooManyImmediates {
        /// The agreed limit.
        max_wimm: u32,
    },
    /// A SEND or an immediate needs a receive work request. The local application is responsible for this one.
    #[error("its message found no receive work request: post receives before the peer sends")]
    NoReceive,
    /// A SEND must fit the buffer of the receive work request that it takes.
    #[error("its SEND of {message_len} bytes is longer than the receive buffer of {buffer_len} bytes")]
    ReceiveTooShort {
        /// Message size in bytes.
        message_len: u32,
        /// Size of the buffer in bytes.
        buffer_len: u64,
    },
    /// The buffer of a receive work request from a shared receive queue cannot be used. The local application is
    /// responsible for this one.
    #[error("the receive work request for its message names a buffer that cannot be used: {error}")]
    ReceiveBuffer {
        /// Why it was refused.
        error: MemoryError,
    },
}

impl Violation {
    /// The code of the NAK that the peer gets.
    pub(crate) const fn code(&self) -> NakCode {
        match self {
            Self::Access { error: MemoryError::Misaligned { .. }, .. } => NakCode::InvalidRequest,
            Self::Access { .. } | Self::Invalidation { .. } => NakCode::RemoteAccess,
            Self::NoReceive | Self::ReceiveBuffer { .. } => NakCode::RemoteOperational,
            _ => NakCode::InvalidRequest,
        }
    }

    /// The violation by the next packet in order. For a refused packet it is not known here.
    pub(super) const fn of(flaw: Flaw, packet: &Arrived) -> Option<Self> {
        let Arrived { opcode, msn, rqmsn, rkey, va, dma_len: message_len, .. } = *packet;
        Some(match flaw {
            Flaw::Refused => return None,
            Flaw::MessageNumber { expected } => Self::MessageNumber { msn, expected },
            Flaw::Order => Self::Order { opcode, rkey, va, message_len },
            Flaw::ImmediateNumber { expected } => Self::ImmediateNumber { rqmsn, expected },
            Flaw::FetchNumber { expected } => Self::FetchNumber { rqmsn, expected },
        })
    }
}

/// The packet that broke a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Culprit {
    pub(crate) psn: Psn,
    /// Number of messages completed before it.
    pub(crate) before: u32,
    pub(crate) violation: Violation,
}
