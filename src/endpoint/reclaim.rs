//! Frees memory that queue pairs allocated while they were busy, once they are idle.

use crate::time::Time;

use crate::qp::{CqId, cq_nearly_full};

use super::Endpoint;

impl Endpoint {
    /// A queue pair is visited at most once in this time. If it moved no packet in between, it is idle.
    const VISIT_ROUND_NS: u64 = 1_000_000_000;
    /// Queue pairs visited in one call: a few tens of microseconds at most.
    const VISITED: usize = 256;

    /// Visits some queue pairs if it is time to, in turn, each at most once a second.
    ///
    /// Queue pairs that have moved no packet since the last visit free memory that only a busy one needs. Those that
    /// have received little return their share of [`Limits::window_budget_psns`](super::Limits::window_budget_psns).
    /// Both are allocated again when needed. Cheap to call; without it, nothing is ever freed.
    pub fn reclaim(&mut self, now: Time) {
        if now < self.visit_at {
            return;
        }
        let slots = self.qps.slots();
        let visits = slots.min(Self::VISITED);
        self.visit_at =
            now.after(Self::VISIT_ROUND_NS * Self::VISITED as u64 / slots.max(Self::VISITED) as u64);
        for _ in 0..visits {
            let slot = self.next_visit as usize % slots;
            self.next_visit = slot as u32 + 1;
            self.visit(slot);
        }
    }

    fn visit(&mut self, slot: usize) {
        let Some(qp) = self.qps.get_mut(slot as u32) else { return };
        let moved = qp.counters.tx_packets + qp.counters.rx_packets;
        let quiet = core::mem::replace(&mut qp.moved, moved) == moved;
        qp.responder.visit(&mut self.cx.windows, quiet);
        if quiet {
            qp.requester.reclaim();
        }
        // Packets change it too, without a report.
        let granted = qp.responder.granted_psns();
        let before = core::mem::replace(&mut qp.granted_psns, granted);
        if granted != before {
            qp.log_granted(&self.cx.peers, before);
        }
    }

    /// Reports whether a completion queue is filling up because its application is slow. Meanwhile, queue pairs that
    /// report receives there grant their peers no more than the least window, if it is dynamic.
    pub fn set_cq_nearly_full(&mut self, cq: CqId, crowded: bool) {
        let changed =
            if crowded { self.cx.cqs_nearly_full.insert(cq) } else { self.cx.cqs_nearly_full.remove(&cq) };
        if changed {
            cq_nearly_full(cq, crowded);
        }
    }

    /// PSNs granted now from [`Limits::window_budget_psns`](super::Limits::window_budget_psns).
    pub const fn window_psns_in_use(&self) -> u32 {
        self.cx.windows.charged_psns()
    }
}
