//! Which queue pair may send data next.
//!
//! Queue pairs with work take turns of a quantum of packets. Those with packets to send again are in a second list
//! that is served first: with many queue pairs a turn comes rarely, and a queue pair that has a loss to repair or a
//! tail probe to send has nothing else to wait for. But a peer that asks for everything again cannot keep others from
//! sending: once repairs are a quantum ahead, new data gets every second packet.

use std::collections::VecDeque;

/// The two lists. A queue pair may be in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum List {
    /// Queue pairs that may have anything to send.
    New,
    /// Those that may have something to send again.
    Repairs,
}

/// The place of a queue pair in a list.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Place {
    pub(super) listed: bool,
    /// Packets sent since its turn began.
    pub(super) turn: u32,
}

/// Slots of queue pairs that may send, in the order of their turns.
#[derive(Debug, Default)]
pub(super) struct Senders {
    lists: [VecDeque<u32>; 2],
    /// Packets by which repairs are ahead of new data, while both wait.
    repairs_ahead: u32,
}

impl Senders {
    #[inline]
    pub(super) fn no_repairs(&self) -> bool {
        self.lists[List::Repairs as usize].is_empty()
    }

    #[inline]
    pub(super) fn front(&self, list: List) -> Option<u32> {
        self.lists[list as usize].front().copied()
    }

    #[inline]
    pub(super) fn len(&self, list: List) -> usize {
        self.lists[list as usize].len()
    }

    #[inline]
    pub(super) fn push(&mut self, list: List, slot: u32) {
        self.lists[list as usize].push_back(slot);
    }

    #[inline]
    pub(super) fn pop(&mut self, list: List) -> Option<u32> {
        self.lists[list as usize].pop_front()
    }

    /// Whose turn it is, and who follows.
    pub(super) fn in_turn(&self, list: List) -> impl Iterator<Item = u32> {
        self.lists[list as usize].iter().copied()
    }

    /// The next one's turn begins.
    #[inline]
    pub(super) fn rotate(&mut self, list: List) {
        self.lists[list as usize].rotate_left(1);
    }

    /// Where the next packet comes from. With many repairs, both lists in turn.
    pub(super) fn first(&mut self, quantum: u32) -> List {
        if self.no_repairs() {
            self.repairs_ahead = 0;
            return List::New;
        }
        if self.repairs_ahead < quantum {
            self.repairs_ahead += 1;
            return List::Repairs;
        }
        self.repairs_ahead -= 1;
        List::New
    }

    /// Where to look after the list `tried` had nothing that could leave, if the search began at `first`.
    #[cold]
    pub(super) fn after(&mut self, first: List, tried: List) -> Option<List> {
        match (first, tried) {
            (List::Repairs, List::Repairs) => {
                self.repairs_ahead -= 1;
                Some(List::New)
            }
            (List::New, List::New) if !self.no_repairs() => Some(List::Repairs),
            _ => None,
        }
    }

    /// Makes room for so many queue pairs in each list.
    pub(super) fn make_room(&mut self, pairs: usize) {
        for list in &mut self.lists {
            list.reserve(pairs.saturating_sub(list.len()));
        }
    }

    pub(super) fn remove(&mut self, slot: u32) {
        for list in &mut self.lists {
            list.retain(|&listed| listed != slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUANTUM: u32 = 3;

    fn senders(new: &[u32], repairs: &[u32]) -> Senders {
        let mut senders = Senders::default();
        for (list, slots) in [(List::New, new), (List::Repairs, repairs)] {
            for &slot in slots {
                senders.push(list, slot);
            }
        }
        senders
    }

    /// Repairs may be a quantum ahead; what they do not use counts for nothing.
    #[test]
    fn repairs_go_first_by_a_quantum() {
        use List::{New, Repairs};
        let mut both = senders(&[1], &[2]);
        let order: Vec<_> = (0..8).map(|_| both.first(QUANTUM)).collect();
        assert_eq!(order, [Repairs, Repairs, Repairs, New, Repairs, New, Repairs, New]);
        both.pop(Repairs);
        assert_eq!(both.first(QUANTUM), New);
        both.push(Repairs, 2);
        let order: Vec<_> = (0..4).map(|_| both.first(QUANTUM)).collect();
        assert_eq!(order, [Repairs, Repairs, Repairs, New], "without repairs, it begins anew");
        let mut blocked = senders(&[1], &[2]);
        for _ in 0..9 {
            assert_eq!(blocked.first(QUANTUM), Repairs, "those before could not leave");
            assert_eq!(blocked.after(Repairs, Repairs), Some(New));
            assert_eq!(blocked.after(Repairs, New), None);
        }
    }

    #[test]
    fn where_new_data_cannot_leave_repairs_may() {
        let mut both = senders(&[1], &[2]);
        assert_eq!(both.after(List::New, List::New), Some(List::Repairs));
        assert_eq!(both.after(List::New, List::Repairs), None);
        assert_eq!(senders(&[1], &[]).after(List::New, List::New), None);
    }

    #[test]
    fn who_goes_leaves_both_lists() {
        let mut both = senders(&[1, 2, 3], &[3, 2]);
        both.remove(2);
        assert_eq!(both.lists, [VecDeque::from([1, 3]), VecDeque::from([3])]);
        both.remove(3);
        assert_eq!((both.len(List::New), both.no_repairs(), both.front(List::New)), (1, true, Some(1)));
    }
}
