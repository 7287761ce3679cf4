//! Events that an endpoint reports to its driver.

use core::fmt;
use std::net::IpAddr;

use crate::path::PlaneSet;
use crate::responder::Violation;
use crate::wire::{Ev, Psn, Qpn};
use crate::work::{SrqId, Wc, WcStatus};

use super::attr::CqId;

/// Why a queue pair went to the error state.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq, Hash)]
pub enum FailReason {
    /// The application asked for it.
    #[error("set to ERROR")]
    Requested,
    /// All retransmission timeouts expired without progress.
    #[error("the peer was silent, after all retries")]
    RetryExceeded,
    /// The peer had no receive work request for a message, after all retries.
    #[error("the peer had no receive work request, after all RNR retries")]
    RnrRetryExceeded,
    /// The peer refused a packet (AETH NAK).
    #[error("the peer refused a packet")]
    PeerRefused,
    /// The peer reported an unexpected event (NACK `UNEXP_EVENT`).
    #[error("the peer reported an unexpected event")]
    PeerFatal,
    /// The peer violated the protocol or accessed memory without permission: [`QpFailure::violation`] names the rule.
    #[error("the peer broke a rule")]
    PeerViolation,
    /// A local work request was invalid.
    #[error("a work request cannot be carried out")]
    LocalWorkRequest,
    /// The lane that drives the endpoint has panicked. Set by the driver, never by an endpoint.
    #[error("the lane that drives it has failed")]
    LaneFailed,
}

/// Details of a queue pair's failure.
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
    /// The packet at fault: the peer's packet that broke a rule, the first packet of the request that the peer
    /// refused, or the oldest one in flight.
    pub psn: Option<Psn>,
    /// The path of this packet's last transmission, if this side sent it.
    pub ev: Option<Ev>,
    /// That path's plane.
    pub plane: Option<u8>,
    /// The status of the work request at fault.
    pub status: Option<WcStatus>,
    /// The rule that the peer broke.
    pub violation: Option<Violation>,
}

/// For display: the queue pair and why it failed, without the peer.
impl fmt::Display for QpFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "queue pair {}: {}", self.qpn, self.reason)?;
        self.violation.map_or(Ok(()), |violation| write!(f, ": {violation}"))?;
        self.psn.map_or(Ok(()), |psn| write!(f, " (PSN {psn})"))
    }
}

/// An event for the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A work completion for this completion queue.
    Completion {
        /// The queue.
        cq: CqId,
        /// The completion.
        wc: Wc,
    },
    /// This many send work requests, signalled or not, have left the queue since the last such event.
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
    /// Entropy values changed their state; [`poll_ev_event`](crate::endpoint::Endpoint::poll_ev_event) lists them. Not
    /// raised again until that has returned `None`.
    PathsChanged {
        /// The queue pair.
        qpn: Qpn,
    },
    /// Packets take the planes of another [role](crate::path::PlaneRole) from now on.
    PlanesSwitched {
        /// The queue pair.
        qpn: Qpn,
        /// The planes that serve.
        planes: PlaneSet,
    },
    /// The application denied an entropy value (`None`: all) on a plane (`None`: all).
    PathDenied {
        /// The queue pair.
        qpn: Qpn,
        /// The entropy value.
        ev: Option<Ev>,
        /// The plane.
        plane: Option<u8>,
    },
    /// The response to an EV probe that the application requested has arrived.
    EvProbeAnswered {
        /// The queue pair.
        qpn: Qpn,
        /// The id that [`send_ev_probe`](crate::endpoint::Endpoint::send_ev_probe) returned.
        request_id: u16,
        /// Round-trip time, ns.
        rtt_ns: u64,
    },
    /// A shared receive queue has fewer work requests than its limit, which is now cleared.
    SrqLimitReached {
        /// The queue.
        srq: SrqId,
    },
}
