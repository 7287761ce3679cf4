//! What is going to happen, in order of time.

use core::fmt;

/// Bits of a digit of a time.
const DIGIT: u32 = 6;
/// Values of a digit.
const SLOTS: usize = 1 << DIGIT;
/// Digits of a time, the last one with the bits that are left.
const LEVELS: usize = u64::BITS.div_ceil(DIGIT) as usize;

/// Events of times that agree in all higher digits, by one digit of them.
struct Level<E> {
    slots: [Vec<(u64, E)>; SLOTS],
    /// Bit n: slot n has events.
    filled: u64,
}

/// Events in order of time; those of one time in the order in which they were added.
///
/// A radix heap (Ahuja, Mehlhorn, Orlin and Tarjan, "Faster Algorithms for the Shortest Path Problem", 1990) with digits of six bits,
/// which is also what hierarchical timing wheels are. It relies on time never going back: an event is filed by the highest digit in
/// which its time differs from the time at hand, and by its value of that digit. It moves to a lower level when time comes nearer,
/// at most once for each digit (once, for most events of a network: they are less than 4,096 ns away) and always along a list. A
/// binary heap would jump through memory for each event, and would need a number for each to keep the order of those of one time.
pub(crate) struct Calendar<E> {
    /// The time of the event taken last.
    now: u64,
    /// By digit, the lowest first. Events of the time at hand are in the lowest level, too.
    levels: Box<[Level<E>; LEVELS]>,
    /// Events of the time at hand that have been taken.
    taken: usize,
    /// Bit n: level n has events, or, for the lowest, may have.
    filled: u32,
    len: usize,
}

impl<E> fmt::Debug for Calendar<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Calendar").field("now", &self.now).field("len", &self.len).finish_non_exhaustive()
    }
}

/// A digit of a time.
const fn digit(at: u64, level: usize) -> usize {
    (at >> (level as u32 * DIGIT)) as usize % SLOTS
}

impl<E: Copy> Calendar<E> {
    pub(crate) fn new() -> Self {
        let level = || Level { slots: [const { Vec::new() }; SLOTS], filled: 0 };
        Self { now: 0, levels: Box::new(core::array::from_fn(|_| level())), taken: 0, filled: 0, len: 0 }
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
        let level = ((at ^ self.now) | 1).ilog2() / DIGIT;
        let slot = digit(at, level as usize);
        self.filled |= 1 << level;
        if let Some(level) = self.levels.get_mut(level as usize) {
            level.filled |= 1 << slot;
            level.slots[slot].push((at, event));
        }
    }

    /// Takes the next event, with its time, if that is not after `until`.
    #[inline]
    pub(crate) fn next(&mut self, until: u64) -> Option<(u64, E)> {
        if self.now > until {
            return None;
        }
        loop {
            let at_hand = &self.levels[0].slots[digit(self.now, 0)];
            if let Some(&next) = at_hand.get(self.taken) {
                self.taken += 1;
                self.len -= 1;
                return Some(next);
            }
            self.advance(until)?;
        }
    }

    /// Goes on to the next time that has events, if there is one up to `until`, and has its events in the lowest level.
    #[inline]
    fn advance(&mut self, until: u64) -> Option<()> {
        let lowest = &mut self.levels[0];
        let here = digit(self.now, 0);
        lowest.slots[here].clear();
        lowest.filled &= !(1 << here);
        self.taken = 0;
        if lowest.filled == 0 {
            self.filled &= !1;
            return self.descend(until);
        }
        // Times that are left at this level are later ones with the same higher digits.
        let next = self.now & !(SLOTS as u64 - 1) | u64::from(lowest.filled.trailing_zeros());
        if next > until {
            return None;
        }
        self.now = next;
        Some(())
    }

    /// The same when no event is left in the lowest level: those that are nearest move down.
    fn descend(&mut self, until: u64) -> Option<()> {
        if self.filled == 0 {
            return None;
        }
        let first = self.filled.trailing_zeros() as usize;
        let level = self.levels.get_mut(first)?;
        let slot = level.filled.trailing_zeros() as usize % SLOTS;
        let nearest = &mut level.slots[slot];
        let next = nearest.iter().map(|(at, _)| *at).min()?;
        if next > until {
            return None;
        }
        let mut nearest = core::mem::take(nearest);
        level.filled &= !(1 << slot);
        if level.filled == 0 {
            self.filled &= !(1 << first);
        }
        self.now = next;
        // All of them go into lower levels, in the same order.
        for &(at, event) in &nearest {
            self.file(at, event);
        }
        nearest.clear();
        self.levels.get_mut(first)?.slots[slot] = nearest;
        Some(())
    }

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
        fn takes_what_a_sorted_list_would(
            steps in prop::collection::vec((any::<bool>(), 0_u64..64, 0_u32..42), 0..400),
            near in 0_u32..42,
        ) {
            let (mut calendar, mut list, mut now) = (Calendar::new(), Vec::<(u64, u32)>::new(), 0);
            for (number, (adds, later, scale)) in (0..).zip(steps) {
                // At all distances, many of them alike, and most within some distance.
                let later = later << if scale % 8 == 0 { scale } else { scale.min(near) };
                if adds {
                    let at = now + later;
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
