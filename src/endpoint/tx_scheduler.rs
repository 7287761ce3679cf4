//! Selects the queue pair that may send data next.
//!
//! Queue pairs with data take turns of a quantum of packets. Those with retransmissions are in a second list that is
//! served first: with many queue pairs a turn is rare, and a queue pair with a loss or a TLP has nothing else to wait
//! for. But a peer that requests everything again cannot stop the others from sending. Once retransmissions are a
//! quantum ahead, new data gets every second packet.

use std::collections::VecDeque;

use crate::qp::TxClass;

/// Slots of queue pairs that may send, in the order of their turns.
#[derive(Debug, Default)]
pub(super) struct TxScheduler {
    lists: [VecDeque<u32>; 2],
    /// Packets by which retransmissions are ahead of new data, while both are waiting.
    retransmit_ahead: u32,
}

impl TxScheduler {
    #[inline]
    pub(super) fn no_retransmissions(&self) -> bool {
        self.lists[TxClass::Retransmit as usize].is_empty()
    }

    #[inline]
    pub(super) fn front(&self, class: TxClass) -> Option<u32> {
        self.lists[class as usize].front().copied()
    }

    #[inline]
    pub(super) fn len(&self, class: TxClass) -> usize {
        self.lists[class as usize].len()
    }

    #[inline]
    pub(super) fn push(&mut self, class: TxClass, slot: u32) {
        self.lists[class as usize].push_back(slot);
    }

    #[inline]
    pub(super) fn pop(&mut self, class: TxClass) -> Option<u32> {
        self.lists[class as usize].pop_front()
    }

    /// The queue pair whose turn it is, and its successors.
    pub(super) fn in_turn(&self, class: TxClass) -> impl Iterator<Item = u32> {
        self.lists[class as usize].iter().copied()
    }

    /// Begins the turn of the next queue pair.
    #[inline]
    pub(super) fn rotate(&mut self, class: TxClass) {
        self.lists[class as usize].rotate_left(1);
    }

    /// The list that the next packet comes from. With many retransmissions, both lists in turn.
    pub(super) fn first(&mut self, quantum: u32) -> TxClass {
        if self.no_retransmissions() {
            self.retransmit_ahead = 0;
            return TxClass::New;
        }
        if self.retransmit_ahead < quantum {
            self.retransmit_ahead += 1;
            return TxClass::Retransmit;
        }
        self.retransmit_ahead -= 1;
        TxClass::New
    }

    /// The list to search after `tried` had no packet that could leave, if the search began at `first`.
    #[cold]
    pub(super) fn after(&mut self, first: TxClass, tried: TxClass) -> Option<TxClass> {
        match (first, tried) {
            (TxClass::Retransmit, TxClass::Retransmit) => {
                self.retransmit_ahead -= 1;
                Some(TxClass::New)
            }
            (TxClass::New, TxClass::New) if !self.no_retransmissions() => Some(TxClass::Retransmit),
            _ => None,
        }
    }

    /// Reserves room for this many queue pairs in each list.
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

    fn scheduler(new: &[u32], repairs: &[u32]) -> TxScheduler {
        let mut scheduler = TxScheduler::default();
        for (class, slots) in [(TxClass::New, new), (TxClass::Retransmit, repairs)] {
            for &slot in slots {
                scheduler.push(class, slot);
            }
        }
        scheduler
    }

    /// Retransmissions may be a quantum ahead; unused credit does not accumulate.
    #[test]
    fn repairs_go_first_by_a_quantum() {
        use TxClass::{New, Retransmit};
        let mut both = scheduler(&[1], &[2]);
        let order: Vec<_> = (0..8).map(|_| both.first(QUANTUM)).collect();
        assert_eq!(order, [Retransmit, Retransmit, Retransmit, New, Retransmit, New, Retransmit, New]);
        both.pop(Retransmit);
        assert_eq!(both.first(QUANTUM), New);
        both.push(Retransmit, 2);
        let order: Vec<_> = (0..4).map(|_| both.first(QUANTUM)).collect();
        assert_eq!(order, [Retransmit, Retransmit, Retransmit, New], "without repairs, it begins anew");
        let mut blocked = scheduler(&[1], &[2]);
        for _ in 0..9 {
            assert_eq!(blocked.first(QUANTUM), Retransmit, "those before could not leave");
            assert_eq!(blocked.after(Retransmit, Retransmit), Some(New));
            assert_eq!(blocked.after(Retransmit, New), None);
        }
    }

    #[test]
    fn where_new_data_cannot_leave_repairs_may() {
        let mut both = scheduler(&[1], &[2]);
        assert_eq!(both.after(TxClass::New, TxClass::New), Some(TxClass::Retransmit));
        assert_eq!(both.after(TxClass::New, TxClass::Retransmit), None);
        assert_eq!(scheduler(&[1], &[]).after(TxClass::New, TxClass::New), None);
    }

    #[test]
    fn who_goes_leaves_both_lists() {
        let mut both = scheduler(&[1, 2, 3], &[3, 2]);
        both.remove(2);
        assert_eq!(both.lists, [VecDeque::from([1, 3]), VecDeque::from([3])]);
        both.remove(3);
        assert_eq!(
            (both.len(TxClass::New), both.no_retransmissions(), both.front(TxClass::New)),
            (1, true, Some(1))
        );
    }
}
