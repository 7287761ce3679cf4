//! Detects that the planes that serve are silent although no port reports it: a NIC, or a switch above it, is dead.
//!
//! The second tail loss probe in a row takes a plane that [stands by](crate::path::PlaneRole). If the peer answers it,
//! either the planes that serve are dead, or the peer was paused and answered over another plane first. A second round
//! tells these apart. The missing packets leave again on the planes that serve, and the next tail loss probe takes a
//! plane that stands by at once. If only that is answered, the planes that serve have failed.

use crate::path::EvId;
use crate::time::Time;

use super::{Requester, SendContext};

/// The doubt about the planes that serve.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RoleDoubt {
    /// Position of the newest transmission when a plane that stands by answered first.
    since: Option<u64>,
    /// It answered again, and nothing sent since on the planes that serve was acknowledged.
    confirmed: bool,
}

impl RoleDoubt {
    #[inline]
    pub(super) const fn is_open(&self) -> bool {
        self.since.is_some()
    }
}

impl Requester {
    /// Whether the next tail loss probe takes a plane that stands by, if there is one.
    pub(super) const fn tries_idle_planes(&self) -> bool {
        let turn = if self.role_doubt.is_open() { 0 } else { 1 };
        self.tail_probes % 4 == turn
    }

    /// The transmission at position `order`, on path `ev`, was acknowledged; some planes stand by.
    #[cold]
    pub(super) fn weigh_roles(&mut self, now: Time, ev: EvId, order: u64, env: &SendContext<'_>) {
        let serves = env.paths.is_serving(ev);
        match self.role_doubt.since {
            Some(since) if order <= since => {}
            Some(_) if serves => self.role_doubt = RoleDoubt::default(),
            Some(_) => self.role_doubt.confirmed = true,
            None if !serves && self.tail_probes >= 2 => {
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
