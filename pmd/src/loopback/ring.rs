//! The ring under the loopback port: fixed slots, one producer, one consumer. All `unsafe` of the
//! loopback port is here.
//!
//! `tail` counts frames published, `head` frames released; both only grow (and wrap). The producer
//! alone writes the slots `tail..head + slots`, the consumer alone reads `head..tail`. A slot is a [`SlotHead`],
//! then the frame, placed so that a payload in it starts on a cache line.
//!
//! Of a long payload that is part of a region, only the place is handed over: the slot names region and offset, and the
//! producer keeps the region alive until `head` has passed the slot. If it cannot wait for that, it copies the payload into
//! the slot after all ([`Producer::recall`]), under the lock that the consumer has while it looks at slots.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crossbeam_utils::CachePadded;

use super::BY_REFERENCE;
use crate::memory::{Payload, Region, crc32, prefetch_to_write};
use crate::{Tail, TxFrame};

const LINE: usize = 64;

/// How many slots ahead the producer asks for one.
const AHEAD: usize = 6;
/// Lines of a slot that it asks for: its head, a frame's headers and what follows a payload that is elsewhere.
const AHEAD_LINES: usize = 3;

/// What a slot starts with.
#[repr(C)]
#[derive(Clone, Copy)]
struct SlotHead {
    /// Where the frame starts in the slot, and the bytes of it that are there.
    offset: u32,
    len: u32,
    /// How many of these precede the payload, and the bytes of a payload that is elsewhere.
    split: u32,
    elsewhere: u32,
    /// Where that is. Points into an `Arc` of which the producer holds a share.
    region: *const Region,
    from: usize,
}

const SLOT_HEAD: usize = size_of::<SlotHead>();

struct Shared {
    bytes: NonNull<u8>,
    layout: Layout,
    slots: usize,
    stride: usize,
    frame_max: usize,
    head: CachePadded<AtomicUsize>,
    tail: CachePadded<AtomicUsize>,
    /// Taken by the consumer while it shows frames, by the producer while it changes published ones.
    lock: CachePadded<AtomicBool>,
}

// SAFETY: the slots behind `bytes` are shared only under the head/tail protocol of the module doc; all
// other fields are plain data or atomics.
unsafe impl Send for Shared {}
// SAFETY: as above; `Producer` and `Consumer` are the only users, neither can be cloned.
unsafe impl Sync for Shared {}

impl Shared {
    fn slot(&self, index: usize) -> NonNull<SlotHead> {
        let at = (index & (self.slots - 1)) * self.stride;
        // SAFETY: the masked index is below `slots`, so `at` lies inside the allocation.
        unsafe { self.bytes.add(at) }.cast()
    }

    /// Whether the lock was free; it is taken now.
    fn try_lock(&self) -> bool {
        // Acquire: what the other end did under the lock happened before.
        !self.lock.swap(true, Ordering::Acquire)
    }

    fn unlock(&self) {
        self.lock.store(false, Ordering::Release);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: `bytes` came from `alloc_zeroed(layout)` and nobody holds the ring any more.
        unsafe { dealloc(self.bytes.as_ptr(), self.layout) }
    }
}

/// The sending end.
pub(super) struct Producer {
    shared: Arc<Shared>,
    tail: usize,
    /// The consumer's `head` as last seen: looked up again only when the ring seems full.
    head_seen: usize,
    /// CRCs to be computed before the frames are published. Not at once, since the slots' memory comes from the
    /// consumer's cache: while it is on its way, the next payloads are copied.
    sums: Vec<Sum>,
    /// Regions whose payloads the slots refer to, oldest first.
    lent: VecDeque<Lent>,
    /// For each slot the smallest ticket of a frame there or later whose payload is elsewhere.
    tickets: Box<[u64]>,
    /// One past the largest ticket so far of such a frame.
    next_ticket: u64,
}

/// A region that successive frames refer to.
struct Lent {
    region: Arc<Region>,
    /// One past the last of these frames.
    end: usize,
}

/// The CRC at the end of a frame that is not published yet.
struct Sum {
    slot: usize,
    /// Where the payload starts in the slot, and its length.
    at: usize,
    len: usize,
    state: u32,
}

/// The receiving end.
pub(super) struct Consumer {
    shared: Arc<Shared>,
    head: usize,
}

/// A ring of `slots` (a power of two) frames of at most `frame_max` bytes.
pub(super) fn ring(slots: usize, frame_max: usize) -> (Producer, Consumer) {
    assert!(slots.is_power_of_two(), "slots is a power of two");
    // One line for the alignment of the payload, and an odd number of lines so that successive slots
    // do not fall on the same cache sets.
    let lines = (SLOT_HEAD + frame_max).div_ceil(LINE) + 1;
    let stride = (lines | 1) * LINE;
    #[expect(clippy::expect_used, reason = "the caller bounds both factors; overflow is a caller's bug")]
    let layout = slots
        .checked_mul(stride)
        .and_then(|bytes| Layout::from_size_align(bytes, 4096).ok())
        .expect("the ring fits the address space");
    // SAFETY: the layout has a size above zero.
    let bytes = unsafe { alloc_zeroed(layout) };
    let Some(bytes) = NonNull::new(bytes) else { handle_alloc_error(layout) };
    let shared = Arc::new(Shared {
        bytes,
        layout,
        slots,
        stride,
        frame_max,
        head: CachePadded::new(AtomicUsize::new(0)),
        tail: CachePadded::new(AtomicUsize::new(0)),
        lock: CachePadded::new(AtomicBool::new(false)),
    });
    let producer = Producer {
        shared: Arc::clone(&shared),
        tail: 0,
        head_seen: 0,
        sums: Vec::with_capacity(slots),
        lent: VecDeque::new(),
        tickets: vec![0; slots].into_boxed_slice(),
        next_ticket: 0,
    };
    (producer, Consumer { shared, head: 0 })
}

impl Producer {
    /// Free slots, at least `want` where there are that many.
    pub(super) fn room(&mut self, want: usize) -> usize {
        let room = self.shared.slots - self.tail.wrapping_sub(self.head_seen);
        if room >= want {
            return room;
        }
        self.look_at_head();
        self.shared.slots - self.tail.wrapping_sub(self.head_seen)
    }

    fn look_at_head(&mut self) {
        // Acquire: the consumer's reads of the slots it released happen before our writes, and before we let go of a region.
        self.head_seen = self.shared.head.load(Ordering::Acquire);
    }

    /// Writes a frame into the next slot, unpublished. False, and nothing written, if it is too long or there is no room.
    pub(super) fn push(&mut self, frame: &TxFrame<'_>) -> bool {
        let len = frame.len();
        if len > self.shared.frame_max || self.room(1) == 0 {
            return false;
        }
        let (head_len, payload_len) = (frame.head.len(), frame.payload.len());
        let by_reference = frame.payload.region().filter(|_| payload_len >= BY_REFERENCE);
        // Alone, headers and tail are together and next to the slot's head, on as few lines as there can be: each
        // comes from the other core.
        let (offset, elsewhere) = match by_reference {
            Some(_) => (SLOT_HEAD, payload_len),
            None => ((SLOT_HEAD + head_len).next_multiple_of(LINE) - head_len, 0),
        };
        self.prefetch(self.tail.wrapping_add(AHEAD));
        let slot = self.shared.slot(self.tail);
        let slot_head = SlotHead {
            offset: offset as u32,
            len: (len - elsewhere) as u32,
            split: head_len as u32,
            elsewhere: elsewhere as u32,
            region: by_reference.map_or(std::ptr::null(), |(region, _)| Arc::as_ptr(region)),
            from: by_reference.map_or(0, |(_, from)| from),
        };
        // SAFETY: the slot is the producer's (`room` > 0, not yet published). `offset` is at most
        // SLOT_HEAD + LINE - 1 and `len` at most frame_max, so the pieces end inside the stride; slots
        // are 64-byte aligned, so the slot's head is aligned, and were zeroed when made. The sources are live slices and cannot
        // overlap the slot: nobody holds a reference into an unpublished slot.
        let rest = unsafe {
            slot.write(slot_head);
            let at = slot.cast::<u8>().add(offset).as_ptr();
            at.copy_from_nonoverlapping(frame.head.as_ptr(), head_len);
            std::slice::from_raw_parts_mut(at.add(head_len), len - elsewhere - head_len)
        };
        if let Some((region, _)) = by_reference {
            rest.copy_from_slice(frame.tail(&mut [0; Tail::CRC_LEN]));
            self.lend(region, frame.ticket);
        } else {
            let (copy, tail) = rest.split_at_mut(payload_len);
            frame.payload.read(copy);
            match frame.tail {
                Tail::Bytes(bytes) => tail.copy_from_slice(bytes),
                Tail::Crc32(state) => {
                    self.sums.push(Sum { slot: self.tail, at: offset + head_len, len: payload_len, state });
                }
            }
            self.note_ticket(self.next_ticket);
        }
        self.tail = self.tail.wrapping_add(1);
        true
    }

    /// Asks the processor for a slot that is known to be free. It comes from the consumer's cache, and stores
    /// to one that is not there yet hold up all that follow.
    #[inline]
    fn prefetch(&self, index: usize) {
        if index.wrapping_sub(self.head_seen) < self.shared.slots {
            let slot = self.shared.slot(index).cast::<u8>().as_ptr();
            (0..AHEAD_LINES).for_each(|line| prefetch_to_write(slot.wrapping_add(line * LINE)));
        }
    }

    /// The frame being written refers to `region`.
    fn lend(&mut self, region: &Arc<Region>, ticket: u64) {
        let end = self.tail.wrapping_add(1);
        match self.lent.back_mut().filter(|lent| Arc::ptr_eq(&lent.region, region)) {
            Some(lent) => lent.end = end,
            None => self.lent.push_back(Lent { region: Arc::clone(region), end }),
        }
        self.note_ticket(ticket);
        self.next_ticket = ticket.saturating_add(1);
    }

    fn note_ticket(&mut self, ticket: u64) {
        let mask = self.shared.slots - 1;
        if let Some(place) = self.tickets.get_mut(self.tail & mask) {
            *place = ticket;
        }
    }

    /// Makes all pushed frames visible to the consumer.
    pub(super) fn publish(&mut self) {
        for sum in self.sums.drain(..) {
            // SAFETY: the slot is the producer's still, and `push` wrote `len` bytes there and left room for the CRC.
            unsafe {
                let copy = self.shared.slot(sum.slot).cast::<u8>().add(sum.at);
                let crc = crc32(sum.state, std::slice::from_raw_parts(copy.as_ptr(), sum.len)).to_le_bytes();
                copy.add(sum.len).copy_from_nonoverlapping(NonNull::from(&crc).cast(), crc.len());
            }
        }
        // Release: the slots' bytes are written before the new tail is seen.
        self.shared.tail.store(self.tail, Ordering::Release);
    }

    /// Lets go of regions that no slot refers to any more. The smallest ticket of a frame whose payload is still
    /// elsewhere, or `u64::MAX`.
    pub(super) fn reap(&mut self) -> u64 {
        if self.lent.is_empty() {
            return u64::MAX;
        }
        self.look_at_head();
        let head = self.head_seen;
        while self.lent.front().is_some_and(|lent| head.wrapping_sub(lent.end) as isize >= 0) {
            self.lent.pop_front();
        }
        if self.lent.is_empty() {
            return u64::MAX;
        }
        self.tickets.get(head & (self.shared.slots - 1)).copied().unwrap_or(0)
    }

    /// Copies into the slots what they refer to elsewhere. Waits while the consumer shows frames.
    pub(super) fn recall(&mut self) {
        if self.lent.is_empty() {
            return;
        }
        if Arc::get_mut(&mut self.shared).is_none() {
            while !self.shared.try_lock() {
                std::thread::yield_now();
            }
            self.look_at_head();
            let mut at = self.head_seen;
            while at != self.tail {
                // SAFETY: the consumer, the only other one who touches slots from `head` on, waits for the lock.
                unsafe { self.fetch(at) };
                at = at.wrapping_add(1);
            }
            self.shared.unlock();
        }
        // Without a consumer nobody looks at the slots any more.
        self.lent.clear();
    }

    /// Copies the payload that a slot refers to into it.
    ///
    /// # Safety
    /// The slot lies between `head` and `self.tail`, and nobody else uses it meanwhile.
    unsafe fn fetch(&self, index: usize) {
        let slot = self.shared.slot(index);
        // SAFETY: `push` wrote the slot's head; `region` is alive, because `lent` has a share of it. `push` saw to it that
        // the frame with its payload fits into the slot.
        unsafe {
            let slot_head = slot.read();
            let (split, elsewhere) = (slot_head.split as usize, slot_head.elsewhere as usize);
            if elsewhere == 0 {
                return;
            }
            let payload_at = slot.cast::<u8>().add(slot_head.offset as usize + split);
            payload_at.copy_to(payload_at.add(elsewhere), slot_head.len as usize - split);
            let room = std::slice::from_raw_parts_mut(payload_at.as_ptr(), elsewhere);
            lent(&slot_head, |payload| payload.read(room));
            let len = slot_head.len + slot_head.elsewhere;
            slot.write(SlotHead { len, elsewhere: 0, region: std::ptr::null(), ..slot_head });
        }
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        self.recall();
    }
}

/// The payload that a slot refers to.
///
/// # Safety
/// The slot refers to one, and the producer keeps its region alive meanwhile.
unsafe fn lent<T>(slot: &SlotHead, with: impl FnOnce(Payload<'_>) -> T) -> T {
    // SAFETY: `region` came from `Arc::as_ptr`, and the producer's share of it lives. This one is not given back, so
    // the count stays as it was.
    let region = ManuallyDrop::new(unsafe { Arc::from_raw(slot.region) });
    with(region.payload(slot.from, slot.elsewhere as usize).unwrap_or_default())
}

impl Consumer {
    /// Shows up to `max` frames to `sink`, in pieces, then releases their slots together. Returns how many.
    pub(super) fn drain(&mut self, max: usize, mut sink: impl FnMut(&[u8], &[Payload<'_>])) -> usize {
        // Acquire: pairs with `publish`.
        let tail = self.shared.tail.load(Ordering::Acquire);
        let count = tail.wrapping_sub(self.head).min(max);
        // The producer has the lock for a moment only, when it copies what it cannot lend any longer.
        if count == 0 || !self.shared.try_lock() {
            return 0;
        }
        let showing = Showing { consumer: self };
        for _ in 0..count {
            let consumer = &mut *showing.consumer;
            let slot = consumer.shared.slot(consumer.head);
            // Released whatever happens to it in `sink`.
            consumer.head = consumer.head.wrapping_add(1);
            // SAFETY: the slot is between head and tail, so the producer wrote it before publishing and does not touch it until
            // `head` passes or it has the lock; the slice ends before that. It keeps the region alive as long.
            unsafe {
                let slot_head = slot.read();
                let at = slot.cast::<u8>().add(slot_head.offset as usize).as_ptr();
                let frame = std::slice::from_raw_parts(at, slot_head.len as usize);
                if slot_head.elsewhere == 0 {
                    sink(frame, &[]);
                } else {
                    let (front, tail) = frame.split_at(slot_head.split as usize);
                    lent(&slot_head, |payload| sink(front, &[payload, tail.into()]));
                }
            }
        }
        drop(showing);
        count
    }
}

/// The consumer has the lock. Released, also by a panic of the one who is shown the frames, it gives back the slots
/// of those that were shown.
struct Showing<'a> {
    consumer: &'a mut Consumer,
}

impl Drop for Showing<'_> {
    fn drop(&mut self) {
        let Consumer { shared, head } = &*self.consumer;
        // Release: our reads are done before the producer sees the slots free.
        shared.head.store(*head, Ordering::Release);
        shared.unlock();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods, reason = "tests")]
    use super::*;
    use crate::memory::Pieces;
    use rand_xoshiro::Xoshiro256PlusPlus;
    use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};
    use std::panic::{AssertUnwindSafe, catch_unwind};

    fn bytes(frame: u64, len: usize) -> Vec<u8> {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(frame);
        let mut out = vec![0; len];
        rng.fill_bytes(&mut out);
        out
    }

    fn pick(rng: &mut Xoshiro256PlusPlus, max: usize) -> usize {
        (rng.next_u64() % max as u64) as usize
    }

    fn joined(data: &[u8], rest: &[Payload<'_>]) -> Vec<u8> {
        let mut all = Vec::new();
        Pieces::new(data, rest).iter().for_each(|piece| piece.append_to(&mut all, usize::MAX));
        all
    }

    /// Takes all frames that are there, joined.
    fn taken(rx: &mut Consumer) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        rx.drain(usize::MAX, |data, rest| frames.push(joined(data, rest)));
        frames
    }

    fn frame_of(all: &[u8], (head, payload): (usize, usize), ticket: u64) -> TxFrame<'_> {
        TxFrame {
            head: &all[..head],
            udp_payload_at: 0,
            payload: (&all[head..head + payload]).into(),
            tail: (&all[head + payload..]).into(),
            ticket,
        }
    }

    /// A frame of a head, a part of `region` and a tail.
    fn lent_frame(region: &Arc<Region>, at: usize, len: usize, ticket: u64) -> TxFrame<'_> {
        let payload = region.payload(at, len).unwrap();
        TxFrame { head: b"head", udp_payload_at: 0, payload, tail: b"tail".into(), ticket }
    }

    /// Every byte of every frame, over rings of every small size, both ends running freely, with payloads in the slots and
    /// elsewhere, some of them called back. A region is written again as soon as no slot refers to it.
    #[test]
    fn two_threads_see_the_same_bytes() {
        const FRAMES: u64 = 40_000;
        for slots in [1, 2, 4, 64] {
            let (mut tx, mut rx) = ring(slots, 1400);
            let sender = std::thread::spawn(move || {
                let mut rng = Xoshiro256PlusPlus::seed_from_u64(slots as u64);
                // Each with the ticket of the last frame that was sent from it.
                let mut regions: [_; 3] = std::array::from_fn(|_| (Region::alloc(1300).unwrap(), None));
                let mut recalls = 0;
                let mut n = 0;
                while n < FRAMES {
                    let burst = 1 + rng.next_u64() % 7;
                    for _ in 0..burst.min(FRAMES - n) {
                        let [head, short, tail] = [130, 300, 9].map(|max| pick(&mut rng, max));
                        let which = pick(&mut rng, 6);
                        let payload = if which < 3 { BY_REFERENCE - 20 + pick(&mut rng, 600) } else { short };
                        let all = bytes(n, head + payload + tail);
                        let mut frame = frame_of(&all, (head, payload), n);
                        if let Some((region, last)) = regions.get_mut(which) {
                            while last.is_some_and(|last| tx.reap() <= last) {
                                tx.publish();
                                if rng.next_u64() % 64 == 0 {
                                    tx.recall();
                                    recalls += 1;
                                }
                                std::thread::yield_now();
                            }
                            let at = pick(&mut rng, 1300 - payload);
                            region.write_at(at, &all[head..head + payload]).unwrap();
                            *last = Some(n);
                            frame.payload = region.payload(at, payload).unwrap();
                        }
                        while !tx.push(&frame) {
                            tx.publish();
                            std::thread::yield_now();
                        }
                        n += 1;
                    }
                    tx.publish();
                }
                assert!(recalls > 20, "{recalls}");
                drop(tx);
                // What is left in the ring is there still.
                for (region, _) in regions {
                    assert_eq!(Arc::strong_count(&region), 1);
                    region.fill(0, 1300, 0).unwrap();
                }
            });
            let mut rng = Xoshiro256PlusPlus::seed_from_u64(99);
            let (mut n, mut lent) = (0, 0);
            while n < FRAMES {
                let max = 1 + pick(&mut rng, 9);
                let got = rx.drain(max, |data, rest| {
                    let frame = joined(data, rest);
                    assert_eq!(frame, bytes(n, frame.len()), "frame {n} of {slots} slots");
                    lent += u64::from(!rest.is_empty());
                    n += 1;
                });
                if got == 0 {
                    std::thread::yield_now();
                }
            }
            sender.join().unwrap();
            assert_eq!(rx.drain(9, |_, _| ()), 0);
            assert!(lent > FRAMES / 20 && lent < FRAMES, "{lent} of {slots} slots");
        }
    }

    #[test]
    fn payload_starts_on_a_cache_line_and_the_longest_frame_fits() {
        for head in [0, 1, 31, 32, 33, 42, 56, 57, 62, 102, 128] {
            let (mut tx, mut rx) = ring(2, 700);
            let all = bytes(1, 700);
            let frame = frame_of(&all, (head, 690 - head), 0);
            for _ in 0..2 {
                assert!(tx.push(&frame));
            }
            assert!(!tx.push(&frame), "full");
            tx.publish();
            let n = rx.drain(5, |got, rest| {
                assert_eq!((got, rest.len()), (&all[..], 0));
                assert_eq!((got.as_ptr() as usize + head) % LINE, 0);
            });
            assert_eq!(n, 2);
        }
    }

    #[test]
    fn too_long_is_refused() {
        let (mut tx, _rx) = ring(2, 64);
        let long = [0; 65];
        assert!(!tx.push(&frame_of(&long, (65, 0), 0)));
        let region = Region::alloc(BY_REFERENCE).unwrap();
        assert!(
            !tx.push(&lent_frame(&region, 0, BY_REFERENCE, 0)),
            "it would not fit if it had to be copied"
        );
        assert_eq!((tx.room(9), Arc::strong_count(&region)), (2, 1));
    }

    /// The payload is read where it is, when it is shown, and only then it is let go of.
    #[test]
    fn a_long_payload_of_a_region_is_lent_until_it_was_shown() {
        let (mut tx, mut rx) = ring(4, 1000);
        let regions = [1, 2].map(|byte| Region::from_vec(vec![byte; 600]).unwrap());
        for (n, region) in [&regions[0], &regions[0], &regions[1]].into_iter().enumerate() {
            assert!(tx.push(&lent_frame(region, 50, BY_REFERENCE, 10 + n as u64)));
        }
        assert!(tx.push(&lent_frame(&regions[1], 50, BY_REFERENCE - 1, 13)), "copied");
        tx.publish();
        assert_eq!((tx.reap(), regions.each_ref().map(Arc::strong_count)), (10, [2, 2]));
        for region in &regions {
            region.fill(0, 600, 9).unwrap();
        }
        let whole = |byte, len| [&b"head"[..], &vec![byte; len], b"tail"].concat();
        let mut show =
            |max| rx.drain(max, |data, rest| assert_eq!(joined(data, rest), whole(9, BY_REFERENCE)));
        assert_eq!((show(1), tx.reap()), (1, 11));
        assert_eq!(regions.each_ref().map(Arc::strong_count), [2, 2]);
        assert_eq!((show(1), tx.reap()), (1, 12));
        assert_eq!(regions.each_ref().map(Arc::strong_count), [1, 2]);
        assert_eq!((show(1), tx.reap()), (1, u64::MAX));
        assert_eq!(regions.each_ref().map(Arc::strong_count), [1, 1]);
        assert_eq!(taken(&mut rx), [whole(2, BY_REFERENCE - 1)], "copied when it was sent");
    }

    /// A copied frame in front does not make an older ticket out of a newer one, nor the reverse.
    #[test]
    fn the_ticket_told_is_that_of_the_oldest_lent_frame() {
        let (mut tx, mut rx) = ring(8, 1000);
        let region = Region::alloc(600).unwrap();
        let copied = frame_of(b"abc", (1, 1), 0);
        let mut next = 100;
        for round in 0..20 {
            let mut lent = VecDeque::new();
            for slot in 0..8 {
                if (slot + round) % 3 == 0 {
                    assert!(tx.push(&lent_frame(&region, 0, 600, next)));
                    lent.push_back((slot, next));
                    next += 5;
                } else {
                    assert!(tx.push(&copied));
                }
            }
            tx.publish();
            for shown in 0..8 {
                let oldest = lent.front().map_or(u64::MAX, |&(_, ticket)| ticket);
                let newest_before = if oldest == u64::MAX { next - 5 } else { oldest - 5 };
                let told = tx.reap();
                assert!(told <= oldest && told > newest_before, "round {round}, {shown} shown: {told}");
                assert_eq!(rx.drain(1, |_, _| ()), 1);
                lent.pop_front_if(|&mut (slot, _)| slot == shown);
            }
            assert_eq!((tx.reap(), Arc::strong_count(&region)), (u64::MAX, 1));
        }
    }

    #[test]
    fn what_is_called_back_arrives_as_it_was() {
        for tail in [0, 4, 70] {
            let (mut tx, mut rx) = ring(4, 1000);
            let region = Region::from_vec(bytes(7, 700)).unwrap();
            let tail = bytes(8, tail);
            let frame = TxFrame { tail: (&tail[..]).into(), ..lent_frame(&region, 33, 600, 1) };
            for _ in 0..3 {
                assert!(tx.push(&frame));
            }
            tx.publish();
            assert_eq!(rx.drain(1, |_, _| ()), 1);
            tx.recall();
            assert_eq!((tx.reap(), Arc::strong_count(&region)), (u64::MAX, 1));
            region.fill(0, 700, 0).unwrap();
            let whole = [b"head", &bytes(7, 700)[33..633], &tail].concat();
            assert_eq!(taken(&mut rx), [whole.clone(), whole]);
            assert!(
                tx.push(&frame) && tx.push(&frame) && tx.push(&frame) && tx.push(&frame),
                "all slots are free"
            );
        }
    }

    #[test]
    fn an_end_that_is_dropped_keeps_no_region() {
        let region = Region::from_vec(vec![5; 600]).unwrap();
        let (mut tx, mut rx) = ring(4, 1000);
        assert!(tx.push(&lent_frame(&region, 0, 600, 1)));
        tx.publish();
        drop(tx);
        assert_eq!(Arc::strong_count(&region), 1);
        region.fill(0, 600, 6).unwrap();
        assert_eq!(taken(&mut rx), [[&b"head"[..], &[5; 600], b"tail"].concat()]);
        let (mut tx, rx) = ring(4, 1000);
        assert!(tx.push(&lent_frame(&region, 0, 600, 1)));
        tx.publish();
        drop(rx);
        tx.recall();
        assert_eq!(Arc::strong_count(&region), 1);
    }

    #[test]
    fn a_receiver_that_panics_leaves_a_ring_that_works() {
        let region = Region::alloc(600).unwrap();
        let (mut tx, mut rx) = ring(4, 1000);
        for ticket in 0..3 {
            assert!(tx.push(&lent_frame(&region, 0, 600, ticket)));
        }
        tx.publish();
        let mut shown = 0;
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            rx.drain(9, |_, _| {
                shown += 1;
                assert!(shown < 2, "the second is too much");
            })
        }));
        assert!(panicked.is_err());
        assert_eq!(tx.reap(), 2, "both that were shown are let go of");
        assert_eq!(taken(&mut rx).len(), 1);
    }

    #[test]
    fn the_lock_keeps_the_receiver_off() {
        let (mut tx, mut rx) = ring(4, 1000);
        assert!(tx.push(&frame_of(b"abc", (1, 1), 0)));
        tx.publish();
        assert!(tx.shared.try_lock());
        assert_eq!(taken(&mut rx).len(), 0);
        tx.shared.unlock();
        assert_eq!(taken(&mut rx).len(), 1);
        assert!(tx.shared.try_lock(), "and the receiver gives it back");
    }
}
