//! What an endpoint reports through [`tracing`]: changes of state, never a packet on its way.
//!
//! No report carries a time: the listener has a clock, the endpoint has none. Without a listener a report costs
//! one load. The targets and the names of the fields are listed in `docs/architecture.md`.

use core::fmt::Display;
use std::net::IpAddr;

use tracing::field::display;
use tracing::{debug, error, info, warn};

use crate::path::{EvEvent, EvState, PlaneSet};
use crate::wire::{Ev, Qpn};

use super::attr::CqId;
use super::event::FailReason;
use super::{Endpoint, QpFailure};

/// A queue pair, for the reader.
pub(super) struct Who {
    qpn: Qpn,
    peer: Option<IpAddr>,
    peer_qpn: Qpn,
}

/// A report about a queue pair: level, target, queue pair, more fields, text.
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

impl Endpoint {
    #[cold]
    fn who(&self, slot: u32) -> Option<Who> {
        let qp = self.qp(slot)?;
        let peer = self.peers.get(qp.peer as usize).and_then(Option::as_ref);
        let peer = peer.and_then(|peer| Some(peer.ports.first()?.ip));
        Some(Who { qpn: qp.qpn, peer, peer_qpn: qp.dest_qpn })
    }

    /// The queue pair is in another state than before, other than ERROR.
    #[cold]
    pub(super) fn log_state(&self, slot: u32) {
        let (Some(who), Some(qp)) = (self.who(slot), self.qp(slot)) else { return };
        of_qp!(info, "spindrift::qp", who, state = ?qp.state, path_mtu = qp.path_mtu, "queue pair changed its state");
    }

    /// The number is about to change; the next report has the new one.
    #[cold]
    pub(super) fn log_reset(&self, slot: u32) {
        let Some(who) = self.who(slot) else { return };
        of_qp!(info, "spindrift::qp", who, "queue pair reset");
    }

    #[cold]
    pub(super) fn log_destroyed(&self, slot: u32) {
        let Some(who) = self.who(slot) else { return };
        of_qp!(info, "spindrift::qp", who, "queue pair destroyed");
    }

    #[cold]
    pub(super) fn log_timeout(&self, slot: u32) {
        let (Some(who), Some(qp)) = (self.who(slot), self.qp(slot)) else { return };
        let (number, wait_ns) = qp.requester.retry();
        of_qp!(debug, "spindrift::qp", who, number, wait_ns, "retransmission timeout");
    }

    #[cold]
    pub(super) fn log_granted(&self, slot: u32, before: u32) {
        let (Some(who), Some(qp)) = (self.who(slot), self.qp(slot)) else { return };
        let granted_psns = qp.responder.granted_psns();
        of_qp!(debug, "spindrift::qp", who, before, granted_psns, "peer is granted another window");
    }

    /// `ev` of all planes, or all of a plane, was denied or allowed.
    #[cold]
    pub(super) fn log_denied(&self, qpn: Qpn, ev: Option<Ev>, plane: Option<u8>, denied: bool) {
        let Some(who) = self.slot_of(qpn).and_then(|slot| self.who(slot)) else { return };
        let ev = ev.map(display);
        if denied {
            of_qp!(info, "spindrift::path", who, ev, plane, "path denied");
        } else {
            of_qp!(info, "spindrift::path", who, ev, plane, "path allowed");
        }
    }

    #[cold]
    pub(super) fn log_path(&self, slot: u32, event: &EvEvent) {
        let Some(who) = self.who(slot) else { return };
        let EvEvent { ev, plane, drop_count, .. } = event;
        if event.state == EvState::AssumedBad {
            of_qp!(debug, "spindrift::path", who, %ev, plane, drop_count, "path is assumed bad");
        } else {
            of_qp!(debug, "spindrift::path", who, %ev, plane, drop_count, "path is good again");
        }
    }

    /// The planes to a peer that may be used are others than before.
    #[cold]
    pub(super) fn log_peer_planes(&self, index: u32, before: PlaneSet) {
        let Some(peer) = self.peers.get(index as usize).and_then(Option::as_ref) else { return };
        let open = peer.ports_seen.open();
        let ip = peer.ports.first().map(|port| display(port.ip));
        for plane in 0..self.cfg.ports.len() as u8 {
            let (was, is) = (before.contains(plane), open.contains(plane));
            if was && !is {
                warn!(target: "spindrift::plane", peer = ip, plane, "plane to a peer closed");
            } else if is && !was {
                info!(target: "spindrift::plane", peer = ip, plane, "plane to a peer opened");
            }
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
pub(super) fn port(plane: u8, up: bool) {
    if up {
        info!(target: "spindrift::plane", plane, "port is up");
    } else {
        warn!(target: "spindrift::plane", plane, "port is down");
    }
}

#[cold]
pub(super) fn peer_is_deaf(peer: Option<impl Display>) {
    let peer = peer.map(display);
    warn!(target: "spindrift::plane", peer, "peer never answered our port status update");
}

#[cold]
pub(super) fn crowded(cq: CqId, crowded: bool) {
    debug!(target: "spindrift::qp", cq = cq.0, crowded, "completion queue filling up");
}

/// A peer, or someone in its name, says which of its ports can be reached.
#[cold]
pub(super) fn peer_says(source: IpAddr, plane: u8, mask: u32) {
    debug!(target: "spindrift::plane", peer = %source, plane, mask, "port status update");
}
