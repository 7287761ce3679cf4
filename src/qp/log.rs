//! Reports of queue pairs through [`tracing`]: changes of state, never individual packets.
//!
//! No report carries a time: the subscriber has a clock, the endpoint has none. Without a subscriber a report costs
//! one load. `docs/architecture.md` lists the targets and the names of the fields.

use std::net::IpAddr;

use tracing::field::display;
use tracing::{debug, error, info};

use crate::path::{DenyListStatus, EvEvent, EvState, PlaneSet};
use crate::peer::Peers;
use crate::wire::{Ev, Qpn};

use super::{CqId, FailReason, Qp, QpFailure};

/// The identity of a queue pair in a report.
struct Who {
    qpn: Qpn,
    peer: Option<IpAddr>,
    peer_qpn: Qpn,
}

/// Reports about a queue pair: level, target, queue pair, more fields, text.
macro_rules! of_qp {
    ($level:ident, $target:literal, $who:expr, $($rest:tt)+) => {
        $level!(
            target: $target,
            qpn = %$who.qpn,
            peer = $who.peer.map(display),
            peer_qpn = %$who.peer_qpn,
            $($rest)+
        )
    };
}

impl Qp {
    #[cold]
    fn who(&self, peers: &Peers) -> Who {
        Who { qpn: self.qpn, peer: peers.first_ip(self.peer), peer_qpn: self.dest_qpn }
    }

    /// The queue pair has changed its state, to one other than ERROR.
    #[cold]
    pub(crate) fn log_state(&self, peers: &Peers) {
        let who = self.who(peers);
        of_qp!(info, "spindrift::qp", who, state = ?self.state, path_mtu = self.path_mtu, "queue pair changed its state");
    }

    /// The number is about to change; the next report has the new one.
    #[cold]
    pub(crate) fn log_reset(&self, peers: &Peers) {
        of_qp!(info, "spindrift::qp", self.who(peers), "queue pair reset");
    }

    #[cold]
    pub(crate) fn log_destroyed(&self, peers: &Peers) {
        of_qp!(info, "spindrift::qp", self.who(peers), "queue pair destroyed");
    }

    #[cold]
    pub(super) fn log_timeout(&self, peers: &Peers) {
        let (number, wait_ns) = self.requester.retry();
        of_qp!(debug, "spindrift::qp", self.who(peers), number, wait_ns, "retransmission timeout");
    }

    /// Packets take other planes, because a NIC failed or returned.
    #[cold]
    pub(crate) fn log_switch(&self, peers: &Peers, planes: PlaneSet) {
        let mask = planes.0;
        of_qp!(info, "spindrift::path", self.who(peers), mask, "packets take the planes of another role");
    }

    #[cold]
    pub(crate) fn log_granted(&self, peers: &Peers, before: u32) {
        let granted_psns = self.responder.granted_psns();
        of_qp!(
            debug,
            "spindrift::qp",
            self.who(peers),
            before,
            granted_psns,
            "peer is granted another window"
        );
    }

    /// `ev` of all planes, or all of a plane, was denied or allowed.
    #[cold]
    pub(crate) fn log_denied(&self, peers: &Peers, ev: Option<Ev>, plane: Option<u8>, denied: bool) {
        let (who, ev) = (self.who(peers), ev.map(display));
        if denied {
            of_qp!(info, "spindrift::path", who, ev, plane, "path denied");
        } else {
            of_qp!(info, "spindrift::path", who, ev, plane, "path allowed");
        }
    }

    #[cold]
    pub(crate) fn log_deny_list(&self, peers: &Peers, status: DenyListStatus) {
        let who = self.who(peers);
        let DenyListStatus { planes, avoided, evs, released, silent_failovers: _ } = status;
        of_qp!(info, "spindrift::path", who, %planes, %avoided, evs, released, "deny list followed");
    }

    #[cold]
    pub(crate) fn log_path(&self, peers: &Peers, event: &EvEvent) {
        let who = self.who(peers);
        let EvEvent { ev, plane, drop_count, .. } = event;
        if event.state == EvState::AssumedBad {
            of_qp!(debug, "spindrift::path", who, %ev, plane, drop_count, "path is assumed bad");
        } else {
            of_qp!(debug, "spindrift::path", who, %ev, plane, drop_count, "path is good again");
        }
    }
}

#[cold]
pub(super) fn failed(failure: &QpFailure) {
    let who = Who { qpn: failure.qpn, peer: failure.peer, peer_qpn: failure.peer_qpn };
    let (reason, plane) = (failure.reason, failure.plane);
    if reason == FailReason::Requested {
        of_qp!(info, "spindrift::qp", who, ?reason, "queue pair set to ERROR");
        return;
    }
    let (psn, ev, status) = (failure.psn.map(display), failure.ev.map(display), failure.status.map(display));
    let violation = failure.violation.map(display);
    of_qp!(error, "spindrift::qp", who, ?reason, psn, ev, plane, status, violation, "queue pair failed");
}

#[cold]
pub(crate) fn cq_nearly_full(cq: CqId, crowded: bool) {
    debug!(target: "spindrift::qp", cq = cq.0, crowded, "completion queue filling up");
}
