//! Work requests and work completions.
//!
//! The names are those of the verbs API. MRC carries only RDMA WRITE and RDMA WRITE with immediate (MRC paper,
//! section 2.1). So a request has one remote address, and one local scatter/gather element ([`SendWr`]) or several
//! ([`GatherWr`]).

mod srq;

pub use srq::{SharedRecvQueue, SrqId};

use core::fmt;

use crate::wire::Qpn;

/// A local scatter/gather element: bytes of a registered memory region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sge {
    /// First byte, as an address inside the region's address range.
    pub addr: u64,
    /// Length in bytes.
    pub len: u32,
    /// Local key of the region.
    pub lkey: u32,
}

/// The largest number of scatter/gather elements of a send work request.
pub const MAX_SGE: u32 = 16;

/// A place in the peer's registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteAddr {
    /// First byte, as an address inside the peer's region.
    pub addr: u64,
    /// Remote key of the peer's region.
    pub rkey: u32,
}

/// The operation of a send work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// RDMA WRITE.
    Write,
    /// RDMA WRITE with immediate: consumes a receive work request at the peer and delivers the
    /// value in its completion, in send order.
    WriteWithImm(u32),
}

impl SendOp {
    /// The opcode of its completion.
    pub const fn wc_opcode(self) -> WcOpcode {
        match self {
            Self::Write | Self::WriteWithImm(_) => WcOpcode::RdmaWrite,
        }
    }
}

/// A send work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendWr {
    /// The application's identifier of the request, returned in its completion.
    pub wr_id: u64,
    /// The operation.
    pub op: SendOp,
    /// The local bytes to send. 1 to 2^32-1 bytes.
    pub local: Sge,
    /// The remote address to write to.
    pub remote: RemoteAddr,
    /// Whether success produces a completion. Failure always does.
    pub signaled: bool,
}

/// A send work request with several local elements: the peer gets their bytes in order, as one message.
///
/// A packet whose bytes are in one element is sent from there, as that of a [`SendWr`] is. If a packet has bytes of
/// several elements, the lane gathers them first.
///
/// ```
/// use spindrift::work::{GatherWr, RemoteAddr, SendOp, Sge};
///
/// let sge = |addr, len| Sge { addr, len, lkey: 7 };
/// let remote = RemoteAddr { addr: 0x9000, rkey: 9 };
/// let local = &[sge(0x1000, 64), sge(0x8000, 0), sge(0x4000, 4096)];
/// let wr = GatherWr { wr_id: 1, op: SendOp::Write, local, remote, signaled: true };
/// assert_eq!((wr.len(), wr.is_empty()), (4160, false));
/// assert!(GatherWr { local: &[sge(0, 0)], ..wr }.is_empty());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatherWr<'a> {
    /// The application's identifier of the request, returned in its completion.
    pub wr_id: u64,
    /// The operation.
    pub op: SendOp,
    /// The local bytes to send, in order: up to [`QpCap::max_send_sge`](crate::endpoint::QpCap::max_send_sge)
    /// elements, 1 to 2^32-1 bytes in all. An element of length 0 has no bytes, and its key is ignored.
    pub local: &'a [Sge],
    /// The remote address to write to.
    pub remote: RemoteAddr,
    /// Whether success produces a completion. Failure always does.
    pub signaled: bool,
}

impl GatherWr<'_> {
    /// Bytes of the message.
    pub fn len(&self) -> u64 {
        self.local.iter().map(|sge| u64::from(sge.len)).sum()
    }

    /// Whether there are no bytes; such a request is refused.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements whose length is not 0.
    pub(crate) fn elements(&self) -> impl Iterator<Item = Sge> + Clone {
        self.local.iter().copied().filter(|sge| sge.len > 0)
    }

    /// The element that has all bytes, if there is just one.
    pub(crate) fn only_element(&self) -> Option<Sge> {
        let mut elements = self.elements();
        elements.next().filter(|_| elements.next().is_none())
    }

    /// The same request with this element in place of its own.
    pub(crate) fn with_one(&self, local: Sge) -> SendWr {
        let Self { wr_id, op, remote, signaled, .. } = *self;
        SendWr { wr_id, op, local, remote, signaled }
    }
}

/// A receive work request. One immediate consumes it. It names no buffer, because the sender's RETH has the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvWr {
    /// The application's identifier of the request.
    pub wr_id: u64,
}

/// How a work request ended. Names follow `ibv_wc_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WcStatus {
    /// Done: the bytes are in the peer's memory.
    Success,
    /// The local segment's length does not fit the operation.
    LocalLengthError,
    /// The queue pair could not carry out the request.
    LocalQpOperationError,
    /// The local key is unknown, of another protection domain, or does not cover the segment.
    LocalProtectionError,
    /// The queue pair was in, or went to, the error state before this request was done.
    WrFlushError,
    /// The peer found the request malformed (AETH NAK, invalid request).
    RemoteInvalidRequest,
    /// The peer's memory region refused the access (AETH NAK, remote access error).
    RemoteAccessError,
    /// The peer could not complete the request, for example because it had no receive work request (AETH NAK, remote
    /// operational error).
    RemoteOperationError,
    /// All retransmission timeouts expired without progress.
    RetryExceeded,
    /// The peer reported an unexpected event (NACK `UNEXP_EVENT`) and cannot continue.
    FatalError,
}

impl WcStatus {
    /// Whether the work request succeeded.
    pub const fn is_success(self) -> bool {
        matches!(self, Self::Success)
    }
}

impl fmt::Display for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Success => "success",
            Self::LocalLengthError => "local length error",
            Self::LocalQpOperationError => "local QP operation error",
            Self::LocalProtectionError => "local protection error",
            Self::WrFlushError => "work request flushed",
            Self::RemoteInvalidRequest => "remote invalid request",
            Self::RemoteAccessError => "remote access error",
            Self::RemoteOperationError => "remote operation error",
            Self::RetryExceeded => "transport retry counter exceeded",
            Self::FatalError => "fatal error reported by the peer",
        })
    }
}

/// The operation that a completion is for. Names follow `ibv_wc_opcode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WcOpcode {
    /// A send work request (with or without immediate).
    RdmaWrite,
    /// A receive work request consumed by an immediate.
    RecvRdmaWithImm,
}

/// A work completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wc {
    /// The work request's `wr_id`.
    pub wr_id: u64,
    /// How it ended.
    pub status: WcStatus,
    /// The completed operation.
    pub opcode: WcOpcode,
    /// Bytes of the message; meaningful on success.
    pub byte_len: u32,
    /// The immediate, for a receive completion.
    pub imm: Option<u32>,
    /// The local queue pair.
    pub qpn: Qpn,
}
