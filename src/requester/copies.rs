//! Copies of responses whose last packet has left.
//!
//! The peer's READ is complete once all of its packets have arrived. That may be before this side has an acknowledgement
//! of them, and the application may then free, reuse or unmap the memory. Packets of the response may still be
//! retransmitted, from the copy. Before the last packet leaves, the READ cannot be complete, so nothing is copied: a copy
//! has no more bytes than were in flight.

use std::collections::VecDeque;

use crate::memory::{Payload, PayloadRef, RegionSlot};

use super::Requester;
use super::packet::{Copied, Source};
use super::queue::SendQueue;

/// The copies of a send queue, in the order of its responses.
#[derive(Debug, Default)]
pub(super) struct Copies {
    held: VecDeque<Copy>,
    /// Number of copies dropped so far (wrapping).
    past: u32,
    /// Storage to reuse. Its bytes are meaningless.
    spare: Vec<Box<[u8]>>,
}

#[derive(Debug)]
struct Copy {
    storage: Box<[u8]>,
    len: usize,
}

impl Copies {
    /// Most bytes of storage kept for later copies.
    const MAX_SPARE: usize = 1 << 22;

    /// Copies these bytes and returns the number of the copy.
    fn add(&mut self, bytes: &Payload<'_>) -> u32 {
        let len = bytes.len();
        let mut storage = match self.spare.pop() {
            Some(spare) if spare.len() >= len => spare,
            // Copies differ in size. So the next one is less likely to need larger storage.
            _ => vec![0; len.next_power_of_two()].into(),
        };
        bytes.read(&mut storage[..len]);
        self.held.push_back(Copy { storage, len });
        self.past.wrapping_add(self.held.len() as u32 - 1)
    }

    /// The bytes of the copy with this number.
    pub(super) fn get(&self, number: u32) -> Option<&[u8]> {
        let copy = self.held.get(number.wrapping_sub(self.past) as usize)?;
        copy.storage.get(..copy.len)
    }

    /// Drops the oldest copy: its response is complete.
    pub(super) fn drop_oldest(&mut self) {
        let Some(Copy { storage, .. }) = self.held.pop_front() else { return };
        self.past = self.past.wrapping_add(1);
        let kept: usize = self.spare.iter().map(|spare| spare.len()).sum();
        if kept + storage.len() <= Self::MAX_SPARE {
            self.spare.push(storage);
        }
    }

    /// Frees storage that no copy uses.
    pub(super) fn give_up_room(&mut self) {
        self.spare = Vec::new();
        self.held.shrink_to_fit();
    }
}

impl Requester {
    /// Copies what the peer may lack of the response whose last packet was sent last. From here on, it is sent from the
    /// copy. Returns the region that it was in, which the caller unpins as soon as no port can hold a packet sent so far.
    ///
    /// Nothing is copied if the response is in no memory of the application: it is empty, or its region is virtual.
    pub(crate) fn copy_response<'m>(
        &mut self,
        bytes_of: impl FnOnce(&PayloadRef) -> Payload<'m>,
    ) -> Option<RegionSlot> {
        self.queue.copy_response(self.una, self.setup.mtu, bytes_of)
    }
}

impl SendQueue {
    fn copy_response<'m>(
        &mut self,
        una: u64,
        mtu: u32,
        bytes_of: impl FnOnce(&PayloadRef) -> Payload<'m>,
    ) -> Option<RegionSlot> {
        let (entry, copies) = self.newest_sent()?;
        let Source::Region(whole) = entry.source else { return None };
        let from = una.saturating_sub(entry.first) * u64::from(mtu);
        let len = entry.len.checked_sub(u32::try_from(from).ok()?).filter(|&len| len > 0)?;
        let bytes = bytes_of(&whole.part(from, len));
        bytes.as_ptr()?;
        entry.source = Source::Copy(Copied { number: copies.add(&bytes), from });
        Some(whole.slot)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn add(copies: &mut Copies, byte: u8, len: usize) -> u32 {
        copies.add(&vec![byte; len][..].into())
    }

    /// Also if their numbers wrap, and in storage that held others before.
    #[test]
    fn a_number_finds_its_copy_until_that_is_dropped() {
        let mut copies = Copies { past: u32::MAX - 1, ..Copies::default() };
        let first: Vec<_> =
            [(1, 100), (2, 1), (3, 200)].map(|(byte, len)| add(&mut copies, byte, len)).into();
        assert_eq!(first, [u32::MAX - 1, u32::MAX, 0]);
        assert_eq!(copies.get(first[0]), Some(&[1; 100][..]));
        copies.drop_oldest();
        let next = add(&mut copies, 4, 60);
        assert_eq!(copies.held.back().unwrap().storage.len(), 128, "storage is used again");
        assert_eq!((copies.get(first[0]), copies.get(next + 1)), (None, None));
        assert_eq!(copies.get(first[1]), Some(&[2; 1][..]));
        assert_eq!(copies.get(first[2]), Some(&[3; 200][..]));
        assert_eq!(copies.get(next), Some(&[4; 60][..]));
        (0..5).for_each(|_| copies.drop_oldest());
        let last = add(&mut copies, 5, 300);
        assert_eq!(
            (last, copies.get(last)),
            (next + 1, Some(&[5; 300][..])),
            "too small storage is not used"
        );
    }

    #[test]
    fn not_all_storage_is_kept() {
        let mut copies = Copies::default();
        (0..20).for_each(|_| _ = add(&mut copies, 0, Copies::MAX_SPARE / 8));
        (0..20).for_each(|_| copies.drop_oldest());
        assert_eq!(copies.spare.len(), 8);
        copies.give_up_room();
        assert_eq!((copies.spare.capacity(), copies.held.capacity()), (0, 0));
    }
}
