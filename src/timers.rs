//! A heap of deadlines, each with the key of its owner, at most one live entry per owner.
//!
//! Deadlines mostly move later, with every acknowledgement. So an owner pushes an entry only when its deadline is
//! *earlier* than the one armed; an entry that fires too early is armed again. Acknowledgements thus never touch the
//! heap. An entry that is not its owner's armed deadline is dead: the owner ignores it.

use core::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::time::Time;

/// Deadlines and the keys of their owners, earliest first.
#[derive(Debug)]
pub(crate) struct TimerHeap {
    heap: BinaryHeap<Reverse<(Time, u32)>>,
}

impl Default for TimerHeap {
    fn default() -> Self {
        Self { heap: BinaryHeap::with_capacity(Self::ROOM) }
    }
}

impl TimerHeap {
    /// Entries that fit before the heap grows.
    const ROOM: usize = 64;
    /// Entries beyond two per owner at which dead ones are removed.
    pub(crate) const SPARE: usize = 64;

    /// The earliest entry, live or dead.
    #[inline]
    pub(crate) fn peek(&self) -> Option<(Time, u32)> {
        self.heap.peek().map(|&Reverse(entry)| entry)
    }

    /// The time of the earliest entry; never if there is none.
    #[inline]
    pub(crate) fn next(&self) -> Time {
        self.peek().map_or(Time::NEVER, |(at, _)| at)
    }

    /// Removes the earliest entry.
    pub(crate) fn pop(&mut self) {
        self.heap.pop();
    }

    /// Adds an entry. With many more than `owners`, those that are dead are removed: an owner that is busy while its
    /// deadline is far away makes entries faster than they expire.
    #[inline]
    pub(crate) fn push(&mut self, at: Time, key: u32, owners: usize, is_live: impl Fn(Time, u32) -> bool) {
        self.heap.push(Reverse((at, key)));
        if self.heap.len() > 2 * owners + Self::SPARE {
            self.remove_dead(is_live);
        }
    }

    #[cold]
    fn remove_dead(&mut self, is_live: impl Fn(Time, u32) -> bool) {
        let mut entries = core::mem::take(&mut self.heap).into_vec();
        entries.retain(|&Reverse((at, key))| is_live(at, key));
        entries.sort_unstable();
        entries.dedup();
        self.heap = entries.into();
    }

    /// The keys of all entries, in no order.
    pub(crate) fn keys(&self) -> impl Iterator<Item = u32> {
        self.heap.iter().map(|&Reverse((_, key))| key)
    }

    /// Reserves room for two entries of each owner and the spare ones, so that the heap does not grow later.
    pub(crate) fn reserve_for(&mut self, owners: usize) {
        let room = 2 * owners + Self::SPARE + 2;
        self.heap.reserve(room.saturating_sub(self.heap.len()));
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Near deadlines that come and go while a far one waits must not accumulate in the heap.
    #[test]
    fn dead_entries_are_removed() {
        let mut timers = TimerHeap::default();
        let far = Time(1_000_000_000);
        for near in 0..100_000 {
            timers.push(far, 0, 1, |at, _| at == far);
            timers.push(Time(near), 0, 1, |at, _| at == far);
            assert!(timers.len() <= TimerHeap::SPARE + 3);
        }
        assert_eq!(timers.keys().next(), Some(0));
    }
}
