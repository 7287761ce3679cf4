//! When a caller that polls in a loop yields its core.
//!
//! The peer may need this core, so an idle poll yields. But a program may hold a lock of its own around its polls, and
//! another of its threads may spin on it: that thread then has the core for its whole time slice, in vain, and only while
//! it cannot get the lock. So a yield that took long and brought nothing is not repeated for a while.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// A yield that takes longer, in nanoseconds, has given the core to a thread that used it.
const LONG_YIELD_NS: u64 = 500_000;
/// Idle polls without a yield after the first one in vain (about a millisecond), and at most.
const FIRST_SKIP: u32 = 1 << 12;
const MOST_SKIP: u32 = 1 << 18;

/// See the [module documentation](self). If several threads poll one lane, a mistake only costs a yield.
#[derive(Debug, Default)]
pub(super) struct YieldBackoff {
    /// Idle polls that are still to be made without a yield.
    left: AtomicU32,
    /// As many of them as the last time.
    skip: AtomicU32,
    /// The last yield took long, and no poll has followed.
    gave: AtomicBool,
}

impl YieldBackoff {
    /// A poll was made, which found work or not.
    #[inline]
    pub(super) fn polled(&self, found: bool) {
        if !self.gave.load(Ordering::Relaxed) {
            return;
        }
        self.gave.store(false, Ordering::Relaxed);
        let skip = match self.skip.load(Ordering::Relaxed) {
            _ if found => 0,
            0 => FIRST_SKIP,
            before => (2 * before).min(MOST_SKIP),
        };
        self.skip.store(skip, Ordering::Relaxed);
        self.left.store(skip, Ordering::Relaxed);
    }

    /// Whether an idle poll should yield now.
    pub(super) fn may_yield(&self) -> bool {
        let left = self.left.load(Ordering::Relaxed);
        self.left.store(left.saturating_sub(1), Ordering::Relaxed);
        left == 0
    }

    /// A yield has taken this long.
    pub(super) fn yielded(&self, took_ns: u64) {
        self.gave.store(took_ns >= LONG_YIELD_NS, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Idle polls until the next yield.
    fn until_yield(backoff: &YieldBackoff) -> u32 {
        let mut polls = 0;
        while !backoff.may_yield() {
            backoff.polled(false);
            polls += 1;
        }
        polls
    }

    #[test]
    fn yields_in_vain_become_rare() {
        let backoff = YieldBackoff::default();
        let mut seen = Vec::new();
        for _ in 0..9 {
            seen.push(until_yield(&backoff));
            backoff.yielded(LONG_YIELD_NS);
            backoff.polled(false);
        }
        assert_eq!(seen, [0, 4096, 8192, 16_384, 32_768, 65_536, 131_072, 262_144, 262_144]);
        // The peer has used the core for what was waited for.
        assert_eq!(until_yield(&backoff), MOST_SKIP);
        backoff.yielded(LONG_YIELD_NS);
        backoff.polled(true);
        assert_eq!(until_yield(&backoff), 0);
    }

    /// Nobody else wanted the core.
    #[test]
    fn short_yields_go_on() {
        let backoff = YieldBackoff::default();
        for _ in 0..100 {
            assert!(backoff.may_yield());
            backoff.yielded(LONG_YIELD_NS - 1);
            backoff.polled(false);
        }
    }
}
