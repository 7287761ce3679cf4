//! What is going to happen, in order of time.

use core::fmt;

/// Buckets: one for the time at hand, and one for each bit in which a later time can first differ from it.
const BUCKETS: usize = u64::BITS as usize + 1;

/// Events in order of time; those of one time in the order in which they were added.
///
/// A radix heap (Ahuja, Mehlhorn, Orlin and Tarjan, "Faster Algorithms for the Shortest Path Problem", 1990). It relies on
/// time never going back: an event is filed by the highest bit in which its time differs from the time at hand, and moves to a
/// lower bucket when time comes nearer, at most once for each bit and always along a list. A binary heap would jump through memory
/// for each event, and would need a number for each to keep the order of those of one time.
pub(crate) struct Calendar<E> {
    /// The time of the event taken last.
    now: u64,
    buckets: [Vec<(u64, E)>; BUCKETS],
    /// Events of the first bucket that have been taken.
    taken: usize,
    /// Bit n: bucket n + 1 has events.
    filled: u64,
    len: usize,
}

impl<E> fmt::Debug for Calendar<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Calendar").field("now", &self.now).field("len", &self.len).finish_non_exhaustive()
    }
}

impl<E: Copy> Calendar<E> {
    pub(crate) fn new() -> Self {
        Self { now: 0, buckets: [const { Vec::new() }; BUCKETS], taken: 0, filled: 0, len: 0 }
    }

    /// Adds an event. One that should have been before the last one taken is next.
    #[inline]
    pub(crate) fn add(&mut self, at: u64, event: E) {
        debug_assert!(at >= self.now, "{at} is before {}", self.now);
        self.len += 1;
        self.file(at.max(self.now), event);
    }

    #[inline]
    fn file(&mut self, at: u64, event: E) {
        let bucket = (u64::BITS - (at ^ self.now).leading_zeros()) as usize;
        if bucket > 0 {
            self.filled |= 1 << (bucket - 1);
        }
        if let Some(bucket) = self.buckets.get_mut(bucket) {
            bucket.push((at, event));
        }
    }

    /// Takes the next event, with its time, if that is not after `until`.
    #[inline]
    pub(crate) fn next(&mut self, until: u64) -> Option<(u64, E)> {
        if self.taken == self.buckets[0].len() {
            self.advance(until)?;
        } else if self.now > until {
            return None;
        }
        let next = self.buckets[0].get(self.taken).copied()?;
        self.taken += 1;
        self.len -= 1;
        Some(next)
    }

    /// Goes on to the next time that has events, if there is one up to `until`, and puts them into the first bucket.
    fn advance(&mut self, until: u64) -> Option<()> {
        self.buckets[0].clear();
        self.taken = 0;
        if self.filled == 0 {
            return None;
        }
        let first = self.filled.trailing_zeros() as usize + 1;
        let nearest = self.buckets.get_mut(first)?;
        let next = nearest.iter().map(|(at, _)| *at).min()?;
        if next > until {
            return None;
        }
        // All of them go into lower buckets, in the same order.
        let mut nearest = core::mem::take(nearest);
        self.filled &= self.filled - 1;
        self.now = next;
        for &(at, event) in &nearest {
            self.file(at, event);
        }
        nearest.clear();
        *self.buckets.get_mut(first)? = nearest;
        Some(())
    }

    /// Events that have not been taken.
    /// Whether no event is left.
    pub(crate) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[cfg(test)]
    const fn len(&self) -> usize {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Takes all, with what each adds.
    fn drain(calendar: &mut Calendar<u32>) -> Vec<(u64, u32)> {
        core::iter::from_fn(|| calendar.next(u64::MAX)).collect()
    }

    #[test]
    fn events_of_one_time_keep_their_order() {
        let mut calendar = Calendar::new();
        for (number, at) in (0..).zip([5, 3, 5, 3, 1 << 40, 5, 0, 1 << 40]) {
            calendar.add(at, number);
        }
        assert_eq!(calendar.len(), 8);
        assert_eq!(
            (calendar.next(0), calendar.next(2), calendar.next(3)),
            (Some((0, 6)), None, Some((3, 1)))
        );
        assert_eq!(calendar.next(2), None, "what is left for 3");
        // At the time at hand, behind what is there for it.
        calendar.add(3, 8);
        calendar.add(5, 9);
        let rest = [(3, 3), (3, 8), (5, 0), (5, 2), (5, 5), (5, 9), (1 << 40, 4), (1 << 40, 7)];
        assert_eq!(drain(&mut calendar), rest);
        assert_eq!((calendar.next(u64::MAX), calendar.len()), (None, 0));
        calendar.add(u64::MAX, 10);
        assert_eq!(drain(&mut calendar), [(u64::MAX, 10)]);
    }

    proptest! {
        /// As a list that is sorted, stably, whenever something is taken from it.
        #[test]
        fn takes_what_a_sorted_list_would(steps in prop::collection::vec((any::<bool>(), 0_u64..5_000), 0..400)) {
            let (mut calendar, mut list, mut now) = (Calendar::new(), Vec::<(u64, u32)>::new(), 0);
            for (number, (adds, later)) in (0..).zip(steps) {
                if adds {
                    // Some far away, many at one time.
                    let at = now + if later > 4_000 { later << 20 } else { later / 16 };
                    calendar.add(at, number);
                    list.push((at, number));
                    list.sort_by_key(|&(at, _)| at);
                } else {
                    let until = now + later;
                    let due = list.first().is_some_and(|&(at, _)| at <= until);
                    let want = due.then(|| list.remove(0));
                    now = want.map_or(now, |(at, _)| at);
                    prop_assert_eq!(calendar.next(until), want);
                }
                prop_assert_eq!(calendar.len(), list.len());
            }
            prop_assert_eq!(drain(&mut calendar), list);
        }
    }
}
