//! Whose turn it is on a lane that both the application and a thread drive.

use super::tuning::{DEFERRAL_MAX_NS, DEFERRAL_MIN_NS, DEFERRALS_SKIPPED_MAX};

/// Decides when the thread of a hybrid lane leaves the lane to the application, and for how long.
///
/// An application that polls in a loop needs no thread: the thread sleeps for longer and longer, and only looks whether
/// the loop goes on. One that polls now and then, and waits for memory to change in between, needs the thread at once:
/// work that was left during a sleep makes the thread ignore ever more such polls. This is what Linux does for sockets
/// that are busy-polled: `napi_defer_hard_irqs` and `gro_flush_timeout` leave a NIC's interrupts off while the
/// application polls it.
#[derive(Debug, Default)]
pub(super) struct Deferral {
    /// Number of the application's polls at the last look.
    seen: u32,
    sleep_ns: u64,
    /// Looks at which the application had polled, and which do not count.
    skip: u32,
    skipped: u32,
}

impl Deferral {
    /// How long the thread is to sleep before its next poll, in nanoseconds, where the application has polled this
    /// often in all. 0: it polls now.
    pub(super) fn next(&mut self, polls: u32) -> u64 {
        if core::mem::replace(&mut self.seen, polls) == polls {
            return 0;
        }
        if self.skipped < self.skip {
            self.skipped += 1;
            return 0;
        }
        self.skipped = 0;
        self.sleep_ns = self.sleep_ns.max(DEFERRAL_MIN_NS);
        self.sleep_ns
    }

    /// After such a sleep: whether the application has polled meanwhile. Then the lane needs no poll by the thread.
    pub(super) fn has_polled(&mut self, polls: u32) -> bool {
        let has = polls != self.seen;
        if has {
            self.sleep_ns = (2 * self.sleep_ns).min(DEFERRAL_MAX_NS);
            self.skip /= 2;
        }
        has
    }

    /// The application has not polled meanwhile, and the thread found work.
    pub(super) fn missed(&mut self) {
        self.sleep_ns = 0;
        self.skip = (2 * self.skip + 1).min(DEFERRALS_SKIPPED_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a thread does with an application that has polled since each look, and polls during each sleep or not.
    struct Bench {
        deferral: Deferral,
        polls: u32,
    }

    impl Bench {
        fn new() -> Self {
            Self { deferral: Deferral::default(), polls: 0 }
        }

        /// The sleep at the next look, before which the application polls.
        fn look(&mut self) -> u64 {
            self.polls = self.polls.wrapping_add(1);
            self.deferral.next(self.polls)
        }

        /// Looks up to the next sleep.
        fn looks_without_sleep(&mut self) -> u32 {
            (0..1000).find(|_| self.look() > 0).unwrap()
        }
    }

    #[test]
    fn a_lane_that_the_application_does_not_poll_is_the_threads() {
        let mut deferral = Deferral::default();
        assert_eq!([0, 0, 0].map(|polls| deferral.next(polls)), [0; 3]);
        // It has polled once, and no more.
        assert_eq!([1, 1, 1].map(|polls| deferral.next(polls)), [DEFERRAL_MIN_NS, 0, 0]);
    }

    #[test]
    fn the_thread_sleeps_longer_while_the_application_polls() {
        let mut bench = Bench::new();
        let mut last = 0;
        for _ in 0..20 {
            let sleep = bench.look();
            assert!(sleep >= last && (DEFERRAL_MIN_NS..=DEFERRAL_MAX_NS).contains(&sleep), "{sleep}");
            last = sleep;
            bench.polls += 1;
            assert!(bench.deferral.has_polled(bench.polls));
        }
        assert_eq!(last, DEFERRAL_MAX_NS);
        // A pause of the application's without work for the thread changes nothing.
        assert_eq!(bench.look(), DEFERRAL_MAX_NS);
        assert!(!bench.deferral.has_polled(bench.polls));
        assert_eq!(bench.look(), DEFERRAL_MAX_NS);
    }

    #[test]
    fn a_thread_that_was_missed_soon_ignores_most_polls() {
        let mut bench = Bench::new();
        let looks: Vec<_> = (0..8)
            .map(|_| {
                let looks = bench.looks_without_sleep();
                bench.deferral.missed();
                looks
            })
            .collect();
        assert_eq!(looks[..4], [0, 1, 3, 7]);
        assert_eq!(looks[7], DEFERRALS_SKIPPED_MAX);
        // Each sleep in which it is not missed restores half of the trust, and sleeps begin short again.
        let mut last = bench.looks_without_sleep();
        for turn in 0..8 {
            assert_eq!(bench.deferral.sleep_ns, (DEFERRAL_MIN_NS << turn).min(DEFERRAL_MAX_NS));
            bench.polls += 1;
            assert!(bench.deferral.has_polled(bench.polls));
            let looks = bench.looks_without_sleep();
            assert_eq!(looks, last / 2);
            last = looks;
        }
        assert_eq!(last, 0);
    }

    #[test]
    fn the_number_of_polls_wraps() {
        let mut deferral = Deferral::default();
        assert_eq!(deferral.next(u32::MAX), DEFERRAL_MIN_NS);
        assert!(deferral.has_polled(0));
        assert_eq!(deferral.next(1), 2 * DEFERRAL_MIN_NS);
    }
}
