//! Which rule a peer broke: what ends a queue pair by the peer's fault.

use thiserror::Error;

use crate::memory::{Access, MemoryError};
use crate::wire::{Msn, NakCode, Opcode, Psn};

use super::message::{Arrived, Flaw};

/// A rule of the protocol that a peer broke, with what its packet had.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum Violation {
    /// A peer writes only where a key that it was given lets it (RETH: MRC 1.0 section 6.2).
    #[error("its write of {len} bytes to address {va:#x} with key {rkey:#010x} needs {needed:?}: {error}")]
    Access {
        /// The key of the packet.
        rkey: u32,
        /// Address of the packet's first byte.
        va: u64,
        /// Bytes of the packet.
        len: u32,
        /// The right that the access needs.
        needed: Access,
        /// Why it was refused.
        error: MemoryError,
    },
    /// All packets but a message's last carry exactly the path MTU (MRC 1.0 section 6.2).
    #[error(
        "its packet {opcode:?} has {len} bytes of payload, which does not suit a message of {message_len} bytes at a path MTU of {path_mtu}"
    )]
    PayloadLength {
        /// Opcode of the packet.
        opcode: Opcode,
        /// Bytes of the packet.
        len: u32,
        /// Bytes of the message, as the packet says.
        message_len: u32,
        /// The path MTU of the queue pair.
        path_mtu: u32,
    },
    /// Messages are numbered one by one (METH: MRC 1.0 section 5.2).
    #[error("its packet has message number {msn}, and {expected} was next")]
    MessageNumber {
        /// Number of the packet.
        msn: Msn,
        /// Number of the message under way, or the next one.
        expected: Msn,
    },
    /// A packet that does not begin a message is part of the one under way: its address follows, key and length are
    /// the same, and it is the last one if and only if it carries the last byte. No other message begins before.
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
        /// Bytes of the message, as the packet says.
        message_len: u32,
    },
    /// Writes with immediate have numbers of their own, one by one (METH `rqmsn`).
    #[error("its write with immediate has number {rqmsn}, and {expected} was next")]
    ImmediateNumber {
        /// Number of the packet.
        rqmsn: Msn,
        /// The number that was due.
        expected: Msn,
    },
    /// A peer has no more writes with immediate in flight than was agreed (`max_wimm`).
    #[error("it has more than {max_wimm} writes with immediate in flight, the max_wimm that was agreed")]
    TooManyImmediates {
        /// As many as were agreed.
        max_wimm: u32,
    },
    /// An immediate finds a receive work request (this one is the application's to keep, on this side).
    #[error("its write with immediate found no receive work request: post receives before the peer sends")]
    NoReceive,
}

impl Violation {
    /// What the peer is told.
    pub(crate) const fn code(&self) -> NakCode {
        match self {
            Self::Access { .. } => NakCode::RemoteAccess,
            Self::NoReceive => NakCode::RemoteOperational,
            _ => NakCode::InvalidRequest,
        }
    }

    /// Of a packet whose turn it was. What a refused packet has done is not known here.
    pub(super) const fn of(flaw: Flaw, packet: &Arrived) -> Option<Self> {
        let Arrived { opcode, msn, rqmsn, rkey, va, dma_len: message_len, .. } = *packet;
        Some(match flaw {
            Flaw::Refused => return None,
            Flaw::MessageNumber { expected } => Self::MessageNumber { msn, expected },
            Flaw::Order => Self::Order { opcode, rkey, va, message_len },
            Flaw::ImmediateNumber { expected } => Self::ImmediateNumber { rqmsn, expected },
        })
    }
}

/// The packet with which the peer broke a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Culprit {
    pub(crate) psn: Psn,
    pub(crate) violation: Violation,
}
