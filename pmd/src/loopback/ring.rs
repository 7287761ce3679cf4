//! The ring under the loopback port: fixed slots, one producer, one consumer. All `unsafe` of the
//! loopback port is here.
//!
//! `tail` counts frames published, `head` frames released; both only grow (and wrap). The producer
//! alone writes the slots `tail..head + slots`, the consumer alone reads `head..tail`. A slot is
//! `offset: u32, len: u32`, then the frame, placed so that its payload starts on a cache line.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_utils::CachePadded;

use crate::{Tail, TxFrame, crc32};

const LINE: usize = 64;
/// `offset` and `len` at the start of a slot.
const SLOT_HEAD: usize = 8;

struct Shared {
    bytes: NonNull<u8>,
    layout: Layout,
    slots: usize,
    stride: usize,
    frame_max: usize,
    head: CachePadded<AtomicUsize>,
    tail: CachePadded<AtomicUsize>,
}

// SAFETY: the slots behind `bytes` are shared only under the head/tail protocol of the module doc; all
// other fields are plain data or atomics.
unsafe impl Send for Shared {}
// SAFETY: as above; `Producer` and `Consumer` are the only users, neither can be cloned.
unsafe impl Sync for Shared {}

impl Shared {
    fn slot(&self, index: usize) -> *mut u8 {
        let at = (index & (self.slots - 1)) * self.stride;
        // SAFETY: the masked index is below `slots`, so `at` lies inside the allocation.
        unsafe { self.bytes.as_ptr().add(at) }
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
    });
    (
        Producer { shared: Arc::clone(&shared), tail: 0, head_seen: 0, sums: Vec::with_capacity(slots) },
        Consumer { shared, head: 0 },
    )
}

impl Producer {
    /// Free slots, at least `want` where there are that many.
    pub(super) fn room(&mut self, want: usize) -> usize {
        let room = self.shared.slots - self.tail.wrapping_sub(self.head_seen);
        if room >= want {
            return room;
        }
        // Acquire: the consumer's reads of the slots it released happen before our writes.
        self.head_seen = self.shared.head.load(Ordering::Acquire);
        self.shared.slots - self.tail.wrapping_sub(self.head_seen)
    }

    /// Writes a frame into the next slot, unpublished. False, and nothing written, if it is too long or there is no room.
    #[expect(clippy::cast_ptr_alignment, reason = "slots are aligned to a cache line")]
    pub(super) fn push(&mut self, frame: &TxFrame<'_>) -> bool {
        let len = frame.len();
        if len > self.shared.frame_max || self.room(1) == 0 {
            return false;
        }
        let (head_len, payload_len) = (frame.head.len(), frame.payload.len());
        let offset = (SLOT_HEAD + head_len).next_multiple_of(LINE) - head_len;
        let slot = self.shared.slot(self.tail);
        // SAFETY: the slot is the producer's (`room` > 0, not yet published). `offset` is at most
        // SLOT_HEAD + LINE - 1 and `len` at most frame_max, so the pieces end inside the stride; slots
        // are 64-byte aligned, so the two words are aligned, and were zeroed when made. The sources are live slices and cannot
        // overlap the slot: nobody holds a reference into an unpublished slot.
        unsafe {
            slot.cast::<u32>().write(offset as u32);
            slot.cast::<u32>().add(1).write(len as u32);
            let mut at = slot.add(offset);
            at.copy_from_nonoverlapping(frame.head.as_ptr(), head_len);
            at = at.add(head_len);
            let rest = std::slice::from_raw_parts_mut(at, len - head_len);
            let (copy, tail) = rest.split_at_mut(payload_len);
            frame.payload.read(copy);
            match frame.tail {
                Tail::Bytes(bytes) => tail.copy_from_slice(bytes),
                Tail::Crc32(state) => {
                    self.sums.push(Sum { slot: self.tail, at: offset + head_len, len: payload_len, state });
                }
            }
        }
        self.tail = self.tail.wrapping_add(1);
        true
    }

    /// Makes all pushed frames visible to the consumer.
    pub(super) fn publish(&mut self) {
        for sum in self.sums.drain(..) {
            // SAFETY: the slot is the producer's still, and `push` wrote `len` bytes there and left room for the CRC.
            unsafe {
                let copy = self.shared.slot(sum.slot).add(sum.at);
                let crc = crc32(sum.state, std::slice::from_raw_parts(copy, sum.len)).to_le_bytes();
                copy.add(sum.len).copy_from_nonoverlapping(crc.as_ptr(), crc.len());
            }
        }
        // Release: the slots' bytes are written before the new tail is seen.
        self.shared.tail.store(self.tail, Ordering::Release);
    }
}

impl Consumer {
    /// Shows up to `max` frames to `sink`, then releases their slots together. Returns how many.
    #[expect(clippy::cast_ptr_alignment, reason = "slots are aligned to a cache line")]
    pub(super) fn drain(&mut self, max: usize, mut sink: impl FnMut(&[u8])) -> usize {
        // Acquire: pairs with `publish`.
        let tail = self.shared.tail.load(Ordering::Acquire);
        let count = tail.wrapping_sub(self.head).min(max);
        for i in 0..count {
            let slot = self.shared.slot(self.head.wrapping_add(i));
            // SAFETY: the slot is between head and tail, so the producer wrote offset, length and bytes
            // before publishing and does not touch them until `head` passes; the slice ends before that.
            let frame = unsafe {
                let offset = slot.cast::<u32>().read() as usize;
                let len = slot.cast::<u32>().add(1).read() as usize;
                std::slice::from_raw_parts(slot.add(offset), len)
            };
            sink(frame);
        }
        if count > 0 {
            self.head = self.head.wrapping_add(count);
            // Release: our reads are done before the producer sees the slots free.
            self.shared.head.store(self.head, Ordering::Release);
        }
        count
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods, reason = "tests")]
    use super::*;
    use crate::memory::Payload;
    use rand_xoshiro::Xoshiro256PlusPlus;
    use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};

    fn bytes(frame: u64, len: usize) -> Vec<u8> {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(frame);
        let mut out = vec![0; len];
        rng.fill_bytes(&mut out);
        out
    }

    fn lengths(rng: &mut Xoshiro256PlusPlus) -> [usize; 3] {
        let pick = |rng: &mut Xoshiro256PlusPlus, max: u64| (rng.next_u64() % max) as usize;
        [pick(rng, 130), pick(rng, 300), pick(rng, 9)]
    }

    /// Every byte of every frame, over rings of every small size, both ends running freely.
    #[test]
    fn two_threads_see_the_same_bytes() {
        const FRAMES: u64 = 60_000;
        for slots in [1, 2, 4, 64] {
            let (mut tx, mut rx) = ring(slots, 512);
            let sender = std::thread::spawn(move || {
                let mut rng = Xoshiro256PlusPlus::seed_from_u64(slots as u64);
                let mut n = 0;
                while n < FRAMES {
                    let burst = 1 + rng.next_u64() % 7;
                    for _ in 0..burst.min(FRAMES - n) {
                        let [head, payload, tail] = lengths(&mut rng);
                        let all = bytes(n, head + payload + tail);
                        let frame = TxFrame {
                            head: &all[..head],
                            udp_payload_at: 0,
                            payload: (&all[head..head + payload]).into(),
                            tail: (&all[head + payload..]).into(),
                        };
                        while !tx.push(&frame) {
                            tx.publish();
                            std::thread::yield_now();
                        }
                        n += 1;
                    }
                    tx.publish();
                }
            });
            let mut rng = Xoshiro256PlusPlus::seed_from_u64(99);
            let mut n = 0;
            while n < FRAMES {
                let max = 1 + (rng.next_u64() % 9) as usize;
                let got = rx.drain(max, |frame| {
                    assert_eq!(frame, bytes(n, frame.len()), "frame {n} of {slots} slots");
                    n += 1;
                });
                if got == 0 {
                    std::thread::yield_now();
                }
            }
            sender.join().unwrap();
            assert_eq!(rx.drain(9, |_| ()), 0);
        }
    }

    #[test]
    fn payload_starts_on_a_cache_line_and_the_longest_frame_fits() {
        for head in [0, 1, 42, 56, 57, 62, 102, 128] {
            let (mut tx, mut rx) = ring(2, 700);
            let all = bytes(1, 700);
            let frame = TxFrame {
                head: &all[..head],
                udp_payload_at: 0,
                payload: (&all[head..690]).into(),
                tail: (&all[690..]).into(),
            };
            for _ in 0..2 {
                assert!(tx.push(&frame));
            }
            assert!(!tx.push(&frame), "full");
            tx.publish();
            let n = rx.drain(5, |got| {
                assert_eq!(got, all);
                assert_eq!((got.as_ptr() as usize + head) % LINE, 0);
            });
            assert_eq!(n, 2);
        }
    }

    #[test]
    fn too_long_is_refused() {
        let (mut tx, _rx) = ring(2, 64);
        let long = [0; 65];
        assert!(!tx.push(&TxFrame {
            head: &long,
            udp_payload_at: 0,
            payload: Payload::EMPTY,
            tail: (&[]).into()
        }));
        assert_eq!(tx.room(9), 2);
    }
}
