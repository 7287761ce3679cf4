//! Detects that the planes that serve are silent although no port reports it: a NIC, or a switch above it, is dead.
//!
//! The second tail loss probe in a row takes a plane that [stands by](crate::path::PlaneRole). If the peer answers it,
//! either the planes that serve are dead, or the peer was paused and answered over another plane first. A second round
//! tells these apart. The missing packets leave again on the planes that serve, and the next tail loss probe takes a
//! plane that stands by at once. If nothing is missing, as where only a response is late, one tail loss probe more takes
//! a plane that serves first. If only the other one is answered, the planes that serve have failed.

use crate::path::{EvId, Paths};
use crate::time::Time;

use super::{Requester, SendContext};

/// The doubt about the planes that serve.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RoleDoubt {
    /// Position of the latest tail loss probe over a plane that stands by; 0 if something sent on the planes that serve was
    /// acknowledged since.
    probe: u64,
    /// Position of the newest transmission when that probe was acknowledged. What leaves later on the planes that serve is
    /// evidence.
    since: Option<u64>,
    /// The first to leave later was a tail loss probe.
    only_probes: bool,
    /// A later one was acknowledged too, and nothing sent on the planes that serve.
    confirmed: bool,
}

impl RoleDoubt {
    #[inline]
    pub(super) const fn is_open(&self) -> bool {
        self.since.is_some()
    }

    /// Whether the transmission at position `order` is that tail loss probe.
    #[inline]
    pub(super) const fn probed_by(&self, order: u64) -> bool {
        self.probe == order
    }
}

impl Requester {
    /// Whether the next tail loss probe takes a plane that stands by, if there is one.
    pub(super) const fn tries_idle_planes(&self) -> bool {
        let doubt = &self.role_doubt;
        let at_once = match doubt.since {
            Some(since) => self.orders > since && !doubt.only_probes,
            None => false,
        };
        self.tail_probes % 4 == if at_once { 0 } else { 1 }
    }

    /// A tail loss probe left as the transmission at position `order`, on path `ev`.
    pub(super) fn note_role_probed(&mut self, ev: EvId, order: u64, paths: &Paths) {
        if !paths.has_idle_planes() {
            return;
        }
        let doubt = &mut self.role_doubt;
        let is_first = doubt.since == Some(order - 1);
        if paths.is_serving(ev) {
            doubt.only_probes |= is_first;
            return;
        }
        doubt.probe = order;
        if is_first {
            // The planes that serve have carried nothing meanwhile, so its acknowledgement would be no evidence.
            doubt.since = Some(order);
        }
    }

    /// The transmission at position `order`, on path `ev`, was acknowledged; some planes stand by.
    ///
    /// A transport ACK or a response may complete the probed message first. So what matters is which transmission the SACK
    /// is for, not whether the queue pair still waits.
    #[cold]
    pub(super) fn weigh_roles(&mut self, now: Time, ev: EvId, order: u64, env: &SendContext<'_>) {
        if env.paths.is_serving(ev) {
            self.role_doubt = RoleDoubt::default();
            return;
        }
        match self.role_doubt.since {
            Some(since) => self.role_doubt.confirmed |= order > since,
            None if self.role_doubt.probed_by(order) => {
                self.role_doubt.since = Some(self.orders);
                // That some packets have not arrived is no evidence about single paths.
                self.timed_out_at = now;
            }
            None => {}
        }
    }

    /// If the planes that serve have failed, those that stand by serve instead, and the packets in flight on the former
    /// leave again.
    #[inline]
    pub(super) fn fail_over_if_silent(&mut self, now: Time, env: &mut SendContext<'_>) {
        if self.role_doubt.confirmed {
            self.role_doubt = RoleDoubt::default();
            self.fail_over(now, env);
        }
    }

    #[cold]
    fn fail_over(&mut self, now: Time, env: &mut SendContext<'_>) {
        if let Some(planes) = env.paths.fail_serving(now) {
            self.planes_lost(now, planes, env);
        }
    }
}
