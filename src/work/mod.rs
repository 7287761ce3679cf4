//! Work requests and work completions.
//!
//! The names are those of the verbs API. MRC carries only RDMA WRITE and RDMA WRITE with immediate (MRC paper,
//! section 2.1). The other operations are [extensions](crate::endpoint::Extensions) that both peers must have.
//!
//! A request has one local scatter/gather element ([`SendWr`], [`RecvWr`]) or several ([`GatherWr`], [`ScatterWr`]).

mod srq;

pub(crate) use srq::PostedRecv;
pub use srq::{SharedRecvQueue, SrqId};

use core::fmt;

use crate::wire::Qpn;

/// A local scatter/gather element: bytes of a registered memory region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sge {
    /// First byte, as an address inside the region's address range.
    pub addr: u64,
    /// Length in bytes.
    pub len: u32,
    /// Local key of the region.
    pub lkey: u32,
}

impl Sge {
    /// No bytes. Its key is not looked at.
    pub const EMPTY: Self = Self { addr: 0, len: 0, lkey: 0 };
}

/// The largest number of scatter/gather elements of a work request.
pub const MAX_SGE: u32 = 16;

/// A place in the peer's registered memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RemoteAddr {
    /// First byte, as an address inside the peer's region.
    pub addr: u64,
    /// Remote key of the peer's region.
    pub rkey: u32,
}

/// The operation of a send work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SendOp {
    /// RDMA WRITE.
    Write,
    /// RDMA WRITE with immediate: consumes a receive work request at the peer and delivers the
    /// value in its completion, in send order.
    WriteWithImm(u32),
    /// SEND: the bytes go into the buffer of the peer's oldest receive work request, which it consumes. The remote
    /// address is not used.
    Send,
    /// SEND with immediate: also delivers the value in the peer's completion.
    SendWithImm(u32),
    /// SEND with invalidate: also ends the peer's registration with this remote key, which must grant
    /// [`REMOTE_INVALIDATE`](crate::memory::Access::REMOTE_INVALIDATE).
    SendWithInvalidate(u32),
    /// RDMA READ: the peer's bytes are copied to the local elements, whose regions must be registered with
    /// [`LOCAL_WRITE`](crate::memory::Access::LOCAL_WRITE).
    Read,
    /// Compare-and-swap: if the 8 bytes at the remote address, a number in the peer's byte order, equal `compare`, they
    /// become `swap`. Their value before goes to the local element, 8 bytes in this side's byte order.
    CompareSwap {
        /// The value to compare with.
        compare: u64,
        /// The value to store.
        swap: u64,
    },
    /// Fetch-and-add: adds to the 8 bytes at the remote address, wrapping. Their value before goes to the local element.
    FetchAdd(u64),
}

impl SendOp {
    /// The opcode of its completion.
    pub const fn wc_opcode(self) -> WcOpcode {
        match self {
            Self::Write | Self::WriteWithImm(_) => WcOpcode::RdmaWrite,
            Self::Send | Self::SendWithImm(_) | Self::SendWithInvalidate(_) => WcOpcode::Send,
            Self::Read => WcOpcode::RdmaRead,
            Self::CompareSwap { .. } => WcOpcode::CompareSwap,
            Self::FetchAdd(_) => WcOpcode::FetchAdd,
        }
    }

    /// The immediate, if it carries one.
    #[inline]
    pub const fn imm(self) -> Option<u32> {
        match self {
            Self::WriteWithImm(imm) | Self::SendWithImm(imm) => Some(imm),
            _ => None,
        }
    }

    /// Whether it consumes a receive work request at the peer.
    #[inline]
    pub const fn takes_receive(self) -> bool {
        matches!(
            self,
            Self::WriteWithImm(_) | Self::Send | Self::SendWithImm(_) | Self::SendWithInvalidate(_)
        )
    }

    /// Whether the peer responds with bytes: a read or an atomic operation.
    #[inline]
    pub const fn is_fetch(self) -> bool {
        self.is_atomic() || matches!(self, Self::Read)
    }

    /// Whether it is an atomic operation.
    #[inline]
    pub const fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap { .. } | Self::FetchAdd(_))
    }
}

/// A send work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendWr {
    /// The application's identifier of the request, returned in its completion.
    pub wr_id: u64,
    /// The operation.
    pub op: SendOp,
    /// The local bytes to send, or those to be filled by a read or an atomic operation: up to 2^32-1 bytes; 8 for an
    /// atomic operation. A write without bytes needs a peer with the extension
    /// [`EMPTY_MESSAGES`](crate::endpoint::Extensions::EMPTY_MESSAGES).
    pub local: Sge,
    /// The remote address to write to or to read from.
    pub remote: RemoteAddr,
    /// Whether success produces a completion. Failure always does.
    pub signaled: bool,
    /// Whether it waits until earlier reads and atomic operations are complete.
    pub fence: bool,
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
/// let wr = GatherWr { wr_id: 1, op: SendOp::Write, local, remote, signaled: true, fence: false };
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
    /// elements, up to 2^32-1 bytes in all. An element of length 0 has no bytes, and its key is ignored.
    pub local: &'a [Sge],
    /// The remote address to write to.
    pub remote: RemoteAddr,
    /// Whether success produces a completion. Failure always does.
    pub signaled: bool,
    /// Whether it waits until earlier reads and atomic operations are complete.
    pub fence: bool,
}

/// Bytes of all elements.
fn total(elements: &[Sge]) -> u64 {
    elements.iter().map(|sge| u64::from(sge.len)).sum()
}

/// The elements whose length is not 0.
fn filled(elements: &[Sge]) -> impl Iterator<Item = Sge> + Clone {
    elements.iter().copied().filter(|sge| sge.len > 0)
}

/// The element that has all bytes, if there is just one; an empty one if there are no bytes.
fn only(elements: &[Sge]) -> Option<Sge> {
    let mut filled = filled(elements);
    let first = filled.next();
    if filled.next().is_some() { None } else { Some(first.unwrap_or(Sge::EMPTY)) }
}

impl GatherWr<'_> {
    /// Bytes of the message.
    pub fn len(&self) -> u64 {
        total(self.local)
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements whose length is not 0.
    pub(crate) fn elements(&self) -> impl Iterator<Item = Sge> + Clone {
        filled(self.local)
    }

    /// The element that has all bytes, if there is just one; an empty one if there are no bytes.
    pub(crate) fn only_element(&self) -> Option<Sge> {
        only(self.local)
    }

    /// The same request with this element in place of its own.
    pub(crate) const fn with_one(&self, local: Sge) -> SendWr {
        let Self { wr_id, op, remote, signaled, fence, .. } = *self;
        SendWr { wr_id, op, local, remote, signaled, fence }
    }
}

/// A receive work request: one immediate or one SEND of the peer consumes it.
///
/// A SEND places its bytes in the buffer. A write with immediate does not use the buffer, because it has an address of
/// its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvWr {
    /// The application's identifier of the request.
    pub wr_id: u64,
    /// The buffer. Its region must be registered with
    /// [`LOCAL_WRITE`](crate::memory::Access::LOCAL_WRITE).
    pub local: Sge,
}

impl RecvWr {
    /// A request without a buffer: for an immediate, or a SEND without bytes.
    pub const fn empty(wr_id: u64) -> Self {
        Self { wr_id, local: Sge::EMPTY }
    }
}

/// A receive work request whose buffer has several elements. A SEND fills them in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScatterWr<'a> {
    /// The application's identifier of the request.
    pub wr_id: u64,
    /// The elements, up to [`QpCap::max_recv_sge`](crate::endpoint::QpCap::max_recv_sge). One of length 0 has no bytes,
    /// and its key is ignored.
    pub local: &'a [Sge],
}

impl ScatterWr<'_> {
    /// Bytes of the buffer.
    pub fn len(&self) -> u64 {
        total(self.local)
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements whose length is not 0.
    pub(crate) fn elements(&self) -> impl Iterator<Item = Sge> + Clone {
        filled(self.local)
    }

    /// The request with its only element, if it does not have several.
    pub(crate) fn with_one(&self) -> Option<RecvWr> {
        only(self.local).map(|local| RecvWr { wr_id: self.wr_id, local })
    }
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
    /// The peer had no receive work request, after all retries (`rnr_retry`).
    RnrRetryExceeded,
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
            Self::RnrRetryExceeded => "RNR retry counter exceeded",
            Self::FatalError => "fatal error reported by the peer",
        })
    }
}

/// The operation that a completion is for. Names follow `ibv_wc_opcode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WcOpcode {
    /// A write (with or without immediate).
    RdmaWrite,
    /// A SEND (with or without immediate).
    Send,
    /// A read.
    RdmaRead,
    /// A compare-and-swap.
    CompareSwap,
    /// A fetch-and-add.
    FetchAdd,
    /// A receive work request consumed by a write with immediate, or by none.
    RecvRdmaWithImm,
    /// A receive work request consumed by a SEND.
    Recv,
}

impl WcOpcode {
    /// Whether it is that of a receive work request.
    pub const fn is_receive(self) -> bool {
        matches!(self, Self::RecvRdmaWithImm | Self::Recv)
    }
}

/// A work completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
    /// For a receive completion, the peer's queue pair.
    pub src_qpn: Qpn,
    /// The remote key of this side that the peer's SEND invalidated.
    pub invalidated: Option<u32>,
}
