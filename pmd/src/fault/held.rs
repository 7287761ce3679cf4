//! Frames held back until their time, in a bounded pool of reused buffers.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// A copy of a frame that waits.
pub(super) struct Held<S> {
    due_ns: u64,
    /// Frames due at one time leave in the order they came.
    serial: u64,
    pub(super) bytes: Vec<u8>,
    pub(super) shape: S,
}

impl<S> Held<S> {
    fn key(&self) -> (u64, u64) {
        (self.due_ns, self.serial)
    }
}

impl<S> PartialEq for Held<S> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<S> Eq for Held<S> {}

impl<S> PartialOrd for Held<S> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<S> Ord for Held<S> {
    /// The earliest is the greatest, as the heap shows the greatest first.
    fn cmp(&self, other: &Self) -> Ordering {
        other.key().cmp(&self.key())
    }
}

/// The frames held in one direction.
pub(super) struct HeldFrames<S> {
    heap: BinaryHeap<Held<S>>,
    spare: Vec<Vec<u8>>,
    serial: u64,
    most: usize,
}

impl<S> HeldFrames<S> {
    pub(super) fn new(most: usize) -> Self {
        Self { heap: BinaryHeap::new(), spare: Vec::new(), serial: 0, most }
    }

    /// Copies a frame in. False: too many are held.
    pub(super) fn push(&mut self, due_ns: u64, frame: &[u8], shape: S) -> bool {
        if self.heap.len() >= self.most {
            return false;
        }
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.clear();
        bytes.extend_from_slice(frame);
        self.serial += 1;
        self.heap.push(Held { due_ns, serial: self.serial, bytes, shape });
        true
    }

    pub(super) fn next_due_ns(&self) -> Option<u64> {
        self.heap.peek().map(|held| held.due_ns)
    }

    /// The earliest frame.
    pub(super) fn pop(&mut self) -> Option<Held<S>> {
        self.heap.pop()
    }

    /// Takes the buffer back.
    pub(super) fn recycle(&mut self, held: Held<S>) {
        self.spare.push(held.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earliest_first_ties_in_order_bounded_and_reused() {
        let mut held = HeldFrames::new(3);
        assert!(held.push(5, b"b", 1) && held.push(3, b"a", 2) && held.push(5, b"c", 3));
        assert!(!held.push(1, b"too many", 4));
        for (due, bytes, shape) in [(3, b"a", 2), (5, b"b", 1), (5, b"c", 3)] {
            assert_eq!(held.next_due_ns(), Some(due));
            let frame = held.pop().unwrap();
            assert_eq!((&frame.bytes[..], frame.shape), (&bytes[..], shape));
            held.recycle(frame);
        }
        assert_eq!(held.next_due_ns(), None);
        assert!(held.push(1, b"d", 0));
        assert_eq!(held.spare.len(), 2);
    }
}
