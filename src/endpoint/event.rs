//! What an endpoint tells its driver.

use std::net::IpAddr;

use crate::wire::{Ev, Psn, Qpn};
use crate::work::{SrqId, Wc, WcStatus};

use super::attr::CqId;

/// Why a queue pair went to the error state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailReason {
    /// The application asked for it.
    Requested,
    /// Every retransmission timeout passed without progress.
    RetryExceeded,
    /// The peer refused a packet (AETH NAK).
    PeerRefused,
    /// The peer reported an unexpected event (NACK `UNEXP_EVENT`).
    PeerFatal,
    /// The peer broke the protocol or accessed memory it must not.
    PeerViolation,
    /// A local work request was invalid.
    LocalWorkRequest,
    /// The lane that drives the endpoint has panicked. Set by the driver, never by an endpoint.
    LaneFailed,
}

/// How a queue pair went to the error state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpFailure {
    /// The queue pair.
    pub qpn: Qpn,
    /// Why.
    pub reason: FailReason,
    /// The peer's first address, once connected.
    pub peer: Option<IpAddr>,
    /// The peer's queue pair; 0 before it is connected.
    pub peer_qpn: Qpn,
    /// The packet at fault: the first of the request that the peer refused, or the oldest one in flight.
    pub psn: Option<Psn>,
    /// The path that this packet took last.
    pub ev: Option<Ev>,
    /// That path's plane.
    pub plane: Option<u8>,
    /// The status of the work request at fault.
    pub status: Option<WcStatus>,
}

/// Something the driver should know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A work completion for this completion queue.
    Completion {
        /// The queue.
        cq: CqId,
        /// The completion.
        wc: Wc,
    },
    /// So many send work requests have left the queue since the last such event, signalled or not.
    SendRetired {
        /// The queue pair.
        qpn: Qpn,
        /// How many.
        count: u32,
    },
    /// The queue pair went to the error state.
    QpFailed {
        /// The queue pair.
        qpn: Qpn,
        /// Why.
        reason: FailReason,
    },
    /// Entropy values changed their state; [`poll_ev_event`](super::Endpoint::poll_ev_event) tells which. Not raised
    /// again before that has returned `None`.
    PathsChanged {
        /// The queue pair.
        qpn: Qpn,
    },
    /// The application denied an entropy value (or all when not given) on a plane (or all).
    PathDenied {
        /// The queue pair.
        qpn: Qpn,
        /// The entropy value.
        ev: Option<Ev>,
        /// The plane.
        plane: Option<u8>,
    },
    /// An EV probe asked for by the application was answered.
    EvProbeAnswered {
        /// The queue pair.
        qpn: Qpn,
        /// The id that [`send_ev_probe`](super::Endpoint::send_ev_probe) returned.
        request_id: u16,
        /// Round-trip time, ns.
        rtt_ns: u64,
    },
    /// A shared receive queue has fewer work requests than its limit, which is gone now.
    SrqLimitReached {
        /// The queue.
        srq: SrqId,
    },
}
