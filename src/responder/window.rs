//! The receive window: how far beyond the oldest missing packet the peer may send. It may change while connected
//! (`SETH.mpr`, MRC 1.0 table 7-14).
//!
//! A window costs the responder memory, in which it tracks packets that arrive out of order. The negotiated range is
//! the initial grant and the largest one. Each queue pair has a least range. Anything above it comes from a budget of
//! the endpoint, which the queue pairs that receive much share equally.
//!
//! A packet that was once allowed is accepted, whatever has been granted since. The *accepted* window stays open
//! until the peer can no longer use the older grant.

use super::Responder;

/// Number of PSNs in a unit of `SETH.mpr`.
const UNIT: u32 = 128;

/// The budget that the windows of all queue pairs of an endpoint share, in units.
#[derive(Debug)]
pub(crate) struct WindowBudget {
    total: u32,
    /// What takers accept above their least range. A queue pair that becomes a taker keeps its earlier grant, so the
    /// sum may exceed the total for a while.
    charged: u32,
    /// Number of queue pairs that receive at least their least range between two visits.
    takers: u32,
}

impl WindowBudget {
    pub(crate) const fn new(psns: u32) -> Self {
        Self { total: psns / UNIT, charged: 0, takers: 0 }
    }

    /// PSNs that are currently charged to the budget.
    pub(crate) const fn charged_psns(&self) -> u32 {
        self.charged * UNIT
    }

    const fn share(&self) -> u32 {
        self.total / if self.takers == 0 { 1 } else { self.takers }
    }
}

/// The window of one queue pair, in units.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    least: u8,
    most: u8,
    /// The grant that SACKs state.
    granted: u8,
    /// The accepted window, never less than `granted`.
    accepted: u8,
    /// Once this packet is expected, the granted window covers everything that was allowed before.
    falls_at: u64,
    /// Whether it has a share of the budget.
    takes: bool,
    /// The packet expected at the last visit.
    visited: u64,
}

impl Window {
    /// The least window that MRC 1.0 requires of a responder: 1024 PSNs.
    const LEAST: u8 = 8;

    pub(super) fn new(psns: u32, dynamic: bool) -> Self {
        let most = (psns / UNIT) as u8;
        let least = if dynamic { most.min(Self::LEAST) } else { most };
        Self { least, most, granted: most, accepted: most, falls_at: 0, takes: false, visited: 0 }
    }

    const fn charge(&self) -> u32 {
        if self.takes { (self.accepted - self.least) as u32 } else { 0 }
    }

    const fn received_much(&self, expected: u64) -> bool {
        expected - self.visited >= self.least as u64 * UNIT as u64
    }

    /// Lowers the grant. What was allowed until now ends at most `accepted` units after `expected`.
    fn lower(&mut self, to: u8, expected: u64) {
        if to < self.granted {
            self.granted = to;
            self.falls_at = expected + u64::from(self.accepted - to) * u64::from(UNIT);
        }
    }
}

impl Responder {
    /// PSNs that the next SACK grants.
    pub(crate) const fn granted_psns(&self) -> u32 {
        self.window.granted as u32 * UNIT
    }

    /// The largest grant, in units of 128 PSNs: the negotiated range.
    pub(crate) const fn most_units(&self) -> u8 {
        self.window.most
    }

    /// The grant for a SACK that is sent now, in units of 128 PSNs. It is at most the least range while the
    /// application is `behind` in taking events and completions.
    #[inline]
    pub(crate) fn grant(&mut self, budget: &mut WindowBudget, behind: impl FnOnce() -> bool) -> u8 {
        if self.window.least < self.window.most {
            self.adapt(budget, behind());
        }
        self.window.granted
    }

    #[inline(never)]
    fn adapt(&mut self, budget: &mut WindowBudget, behind: bool) {
        let expected = self.expected;
        if self.window.granted < self.window.accepted && expected >= self.window.falls_at {
            budget.charged -= self.window.charge();
            self.accept(self.window.granted);
            budget.charged += self.window.charge();
            self.fit_rings();
        }
        let window = &mut self.window;
        if !window.takes && window.received_much(expected) {
            window.takes = true;
            budget.takers += 1;
            budget.charged += window.charge();
        }
        let share = if window.takes { budget.share() } else { u32::from(window.granted - window.least) };
        let beyond = if behind { 0 } else { share.min(u32::from(window.most - window.least)) };
        let target = window.least + beyond as u8;
        if target <= window.granted {
            window.lower(target, expected);
            return;
        }
        let free = budget.total.saturating_sub(budget.charged);
        let more = u32::from(target.saturating_sub(window.accepted)).min(free);
        budget.charged += more;
        window.granted = target.min(window.accepted + more as u8);
        if more > 0 {
            self.accept(self.window.granted);
        }
    }

    fn accept(&mut self, units: u8) {
        self.window.accepted = units;
        self.setup.window = u32::from(units) * UNIT;
    }

    /// Runs once per round of visits. A queue pair that received little since the last call needs only the least
    /// window. One that neither received nor sent anything (`quiet`) needs no memory for packets out of order.
    pub(crate) fn visit(&mut self, budget: &mut WindowBudget, quiet: bool) {
        if !self.window.received_much(self.expected) {
            self.leave(budget);
            self.window.lower(self.window.least, self.expected);
        }
        self.window.visited = self.expected;
        if quiet && self.out_of_order == 0 {
            (self.received, self.stash) = Default::default();
            self.answers.reclaim();
            self.receives.reclaim();
        }
    }

    /// Returns its share to the budget.
    pub(crate) fn leave(&mut self, budget: &mut WindowBudget) {
        budget.charged -= self.window.charge();
        budget.takers -= u32::from(core::mem::take(&mut self.window.takes));
    }

    /// Releases memory that the window no longer needs.
    fn fit_rings(&mut self) {
        let (low, high, most) = (self.expected, self.highest, u64::from(self.setup.window));
        self.received.fit(low, high, most);
        self.stash.fit(low, high, most);
        self.answers.fit(low, high, most);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
    use super::super::{Arrived, Class, Receives, ResponderSetup};
    use super::*;
    use crate::wire::{Msn, Psn};

    fn responder(units: u8) -> Responder {
        let (initial_psn, initial_msn) = (Psn::new(0), Msn::new(0));
        let window = u32::from(units) * UNIT;
        let sack_threshold = u32::MAX;
        let setup = ResponderSetup {
            initial_psn,
            initial_msn,
            own_msn: initial_msn,
            window,
            dynamic: true,
            max_wimm: 0,
            sack_threshold,
        };
        Responder::new(Receives::own(0), setup)
    }

    /// Delivers packet `n`. Returns whether it was accepted.
    fn give(r: &mut Responder, n: u64) -> bool {
        let psn = Psn::new((n & 0xff_ffff) as u32);
        match r.classify(psn) {
            Class::New(seq) => {
                let packet = Arrived { dma_len: 8, len: 8, msn: Msn::new(n as u16), ..Arrived::default() };
                r.arrive::<false>(seq, || packet, &mut Vec::new()).unwrap();
                true
            }
            Class::Duplicate | Class::Old => true,
            Class::OutOfWindow => false,
        }
    }

    fn next(r: &Responder) -> u64 {
        r.expected
    }

    fn random(state: &mut u64, below: u64) -> u64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 33) % below
    }

    /// Queue pairs that are busy or idle, and in order or not, share a budget that is too small for them.
    #[test]
    fn whatever_was_granted_once_is_accepted_and_the_budget_is_what_is_charged() {
        let mut most_seen = [0; 5];
        for seed in 0..20 {
            let mut state = seed;
            let mut budget = WindowBudget::new(40 * UNIT);
            let mut all: Vec<_> = (0..5).map(|at| responder([9, 16, 40, 64, 255][at])).collect();
            // One past the last packet that each peer was ever allowed to send.
            let mut edges: Vec<_> = all.iter().map(|r| u64::from(r.setup.window) - 1).collect();
            let mut least_seen = [u8::MAX; 5];
            for turn in 0..3_000 {
                let at = random(&mut state, 5) as usize;
                let r = &mut all[at];
                match random(&mut state, 4) {
                    0 => {
                        let ahead = random(&mut state, edges[at] - next(r));
                        let n = next(r) + ahead;
                        assert!(give(r, n), "seed {seed} turn {turn}: {n} of {}", edges[at]);
                    }
                    1 => {
                        let last = edges[at] - 1;
                        assert!(give(r, last), "seed {seed} turn {turn}: the last packet allowed");
                    }
                    _ => {
                        for _ in 0..random(&mut state, 400) {
                            let n = next(r);
                            assert!(give(r, n));
                        }
                    }
                }
                let behind = random(&mut state, 50) == 0;
                let granted = r.grant(&mut budget, || behind);
                edges[at] = edges[at].max(next(r) + u64::from(granted) * u64::from(UNIT) - 1);
                least_seen[at] = least_seen[at].min(granted);
                most_seen[at] = most_seen[at].max(granted);
                if turn % 97 == 0 {
                    for r in &mut all {
                        r.visit(&mut budget, turn % 2 == 0);
                    }
                }
                assert_eq!(budget.charged, all.iter().map(|r| r.window.charge()).sum::<u32>());
                assert_eq!(budget.takers, all.iter().map(|r| u32::from(r.window.takes)).sum::<u32>());
            }
            assert_eq!(least_seen, [8; 5], "seed {seed}");
            for r in &mut all {
                r.leave(&mut budget);
            }
            assert_eq!((budget.charged, budget.takers), (0, 0));
        }
        assert_eq!(most_seen[..3], [9, 16, 40]);
    }

    /// After everything allowed before has arrived, the new window is exact to the packet, and the memory is
    /// released.
    #[test]
    fn a_window_that_fell_is_enforced_when_nothing_older_is_allowed() {
        let mut budget = WindowBudget::new(0);
        let mut r = responder(40);
        let units = |units: u64| units * u64::from(UNIT);
        (0..1023).for_each(|n| assert!(give(&mut r, n)));
        assert_eq!(r.grant(&mut budget, || false), 40, "nothing shows that it needs a share");
        assert!(give(&mut r, 1023));
        assert_eq!((r.grant(&mut budget, || false), r.granted_psns()), (8, 1024));
        assert_eq!(budget.charged_psns(), 32 * UNIT, "until what was allowed before has gone by");
        assert!(give(&mut r, 1024 + units(40) - 2));
        assert!(!give(&mut r, 1024 + units(40) - 1));
        assert!(r.stash.keeps(0, 4096), "memory for all of it");
        (1024..1024 + units(32) - 1).for_each(|n| assert!(give(&mut r, n)));
        assert_eq!((r.grant(&mut budget, || false), budget.charged_psns()), (8, 32 * UNIT));
        let last = next(&r);
        assert!(give(&mut r, last));
        assert_eq!((r.grant(&mut budget, || false), budget.charged_psns()), (8, 0));
        assert!(!r.stash.keeps(0, 1025), "memory for the window that there is");
        let end = next(&r) + units(8);
        assert!(give(&mut r, end - 2), "it is the packet that came early, and was not forgotten");
        assert_eq!(r.out_of_order, 1);
        assert!(!give(&mut r, end - 1));
    }

    #[test]
    fn an_idle_queue_pair_gives_its_memory_back_unless_packets_are_missing() {
        let mut budget = WindowBudget::new(1 << 16);
        let mut r = responder(16);
        assert!(give(&mut r, 100));
        r.visit(&mut budget, true);
        assert!(r.stash.keeps(0, 64) && r.received.test(100));
        (0..100).for_each(|n| assert!(give(&mut r, n)));
        r.visit(&mut budget, false);
        assert!(r.stash.keeps(0, 64), "it was busy");
        r.visit(&mut budget, true);
        assert!(!r.stash.keeps(0, 1));
    }
}
