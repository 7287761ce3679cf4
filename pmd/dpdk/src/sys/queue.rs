//! The queues of a device, and the buffers that frames are in.
//!
//! A buffer to send is in one place at a time: in `free`, in `staged`, or with the device until that gives it back to the pool. Only what
//! is in `free` is written. A buffer that was received is read while the sink runs, and then goes back to its pool.

use std::ptr::{self, NonNull};
use std::sync::Arc;

use dpdk_sys::{rte_mbuf, spindrift_view};
use spindrift_pmd::memory::Payload;
use spindrift_pmd::{RxFrame, RxOrigin};

use super::Device;

/// Most frames that one call of the driver brings.
pub(crate) const RX_BATCH: usize = 32;
/// Buffers that are taken from the pool at once.
const TAKE: usize = 32;
/// Most buffers of a received frame.
const MOST_PARTS: usize = 32;
/// Bytes of a frame that hold all headers that anybody reads.
const HEADERS: usize = 256;

/// What a call to send did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) calls: u64,
    /// Times that the device took less than it was given, in frames.
    pub(crate) refused: u64,
}

/// What was received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) frames: usize,
    /// Frames in too many buffers.
    pub(crate) dropped: u64,
}

/// A transmit queue.
pub(crate) struct TxQueue {
    queue: u16,
    /// Buffers, and where their bytes start.
    free: Vec<(NonNull<rte_mbuf>, NonNull<u8>)>,
    /// Frames that the device has had no room for, the oldest first.
    staged: Vec<*mut rte_mbuf>,
    most: usize,
    room: usize,
    pool: usize,
    device: Arc<Device>,
}

// SAFETY: the buffers are this queue's alone, and nothing of it is bound to a thread.
unsafe impl Send for TxQueue {}

impl TxQueue {
    /// The queue of this number, for which `pool` was given; `most` frames wait in it.
    pub(crate) fn new(device: &Arc<Device>, queue: u16, pool: usize, most: usize) -> Self {
        let room = device.pool(pool).map_or(0, super::Pool::room);
        Self {
            queue,
            free: Vec::with_capacity(most),
            staged: Vec::with_capacity(most),
            most,
            room,
            pool,
            device: Arc::clone(device),
        }
    }

    /// Frames that can be pushed now.
    #[inline]
    pub(crate) fn room(&mut self) -> usize {
        let want = self.most - self.staged.len();
        if self.free.len() < want {
            self.take(want);
        }
        self.free.len().min(want)
    }

    /// Takes buffers from the pool until there are `want`, as far as it has any.
    fn take(&mut self, want: usize) {
        let Some(pool) = self.device.pool(self.pool) else { return };
        let mut most = TAKE;
        while self.free.len() < want {
            let count = most.min(want - self.free.len());
            let (mut mbufs, mut data) = ([ptr::null_mut(); TAKE], [ptr::null_mut(); TAKE]);
            // SAFETY: both have room for `count` pointers.
            let result = unsafe {
                let (mbufs, data) = (mbufs.as_mut_ptr(), data.as_mut_ptr());
                dpdk_sys::spindrift_take(pool.as_ptr(), mbufs, data, count as u32)
            };
            if result != 0 {
                // It takes all or none, and may have less.
                most = count / 2;
                if most == 0 {
                    return;
                }
                continue;
            }
            for (mbuf, data) in mbufs.into_iter().zip(data).take(count) {
                if let (Some(mbuf), Some(data)) = (NonNull::new(mbuf), NonNull::new(data)) {
                    self.free.push((mbuf, data));
                }
            }
        }
    }

    /// Queues a frame of `len` bytes, which `write` fills in. `false`: there is no room, and nothing has happened.
    #[inline]
    pub(crate) fn push(&mut self, len: usize, write: impl FnOnce(&mut [u8])) -> bool {
        if len > self.room || (self.free.is_empty() && self.room() == 0) || self.staged.len() >= self.most {
            return false;
        }
        let Some((mbuf, data)) = self.free.pop() else { return false };
        // SAFETY: the buffer is this queue's alone and has `room` bytes, which are memory that the EAL has mapped.
        write(unsafe { std::slice::from_raw_parts_mut(data.as_ptr(), len) });
        // SAFETY: as above.
        unsafe { dpdk_sys::spindrift_set_len(mbuf.as_ptr(), len as u32) };
        self.staged.push(mbuf.as_ptr());
        true
    }

    /// Writes these bytes into all buffers that are here, so that [`push`](Self::push) finds them there.
    pub(crate) fn write_all(&mut self, bytes: &[u8]) {
        let bytes = &bytes[..bytes.len().min(self.room)];
        let most = self.most;
        // More than there are: taking ends with the last one.
        self.take(usize::MAX);
        for (_, data) in &self.free {
            // SAFETY: the buffer is this queue's alone and has `room` bytes.
            unsafe { std::slice::from_raw_parts_mut(data.as_ptr(), bytes.len()) }.copy_from_slice(bytes);
        }
        let mut back: Vec<*mut rte_mbuf> =
            self.free.drain(most.min(self.free.len())..).map(|(mbuf, _)| mbuf.as_ptr()).collect();
        // SAFETY: they are this queue's, each of them once, and no longer in `free`.
        unsafe { dpdk_sys::rte_pktmbuf_free_bulk(back.as_mut_ptr(), back.len() as u32) };
    }

    /// Frames that wait.
    #[inline]
    pub(crate) fn waiting(&self) -> usize {
        self.staged.len()
    }

    /// Gives the device as many as it takes.
    pub(crate) fn send(&mut self) -> Sent {
        let mut sent = Sent::default();
        let mut done = 0;
        while done < self.staged.len() {
            let rest = &mut self.staged[done..];
            let count = rest.len().min(usize::from(u16::MAX)) as u16;
            // SAFETY: as many frames as are said, of this queue; those that the device takes are no longer ours.
            let taken =
                unsafe { dpdk_sys::spindrift_send(self.device.port(), self.queue, rest.as_mut_ptr(), count) };
            sent.calls += 1;
            done += usize::from(taken.min(count));
            if taken == 0 {
                sent.refused += u64::from(count);
                break;
            }
            sent.refused += u64::from(count - taken.min(count));
        }
        self.staged.drain(..done);
        sent
    }
}

impl Drop for TxQueue {
    fn drop(&mut self) {
        if !self.device.is_home() {
            return;
        }
        let mut left: Vec<*mut rte_mbuf> = self.free.drain(..).map(|(mbuf, _)| mbuf.as_ptr()).collect();
        left.append(&mut self.staged);
        // SAFETY: they are this queue's, each of them once.
        unsafe { dpdk_sys::rte_pktmbuf_free_bulk(left.as_mut_ptr(), left.len() as u32) };
    }
}

/// A receive queue.
pub(crate) struct RxQueue {
    queue: u16,
    /// A copy of a frame whose first buffer does not hold its headers.
    whole: Vec<u8>,
    device: Arc<Device>,
}

/// Frames that were received, given back when dropped.
pub(super) struct Batch {
    mbufs: [*mut rte_mbuf; RX_BATCH],
    views: [spindrift_view; RX_BATCH],
    count: usize,
}

impl Default for Batch {
    fn default() -> Self {
        Self { mbufs: [ptr::null_mut(); RX_BATCH], views: [NO_VIEW; RX_BATCH], count: 0 }
    }
}

impl Batch {
    /// Gives back what it has, and takes what a queue brings at once.
    pub(super) fn receive(&mut self, port: u16, queue: u16) -> usize {
        self.receive_most(port, queue, RX_BATCH)
    }

    fn receive_most(&mut self, port: u16, queue: u16, most: usize) -> usize {
        self.give_back();
        let most = most.min(RX_BATCH) as u16;
        // SAFETY: both have room for `most`. What it brings is ours.
        let got = unsafe {
            let (mbufs, views) = (self.mbufs.as_mut_ptr(), self.views.as_mut_ptr());
            dpdk_sys::spindrift_receive(port, queue, mbufs, views, most)
        };
        self.count = usize::from(got.min(most));
        self.count
    }

    fn give_back(&mut self) {
        if self.count > 0 {
            // SAFETY: so many frames are ours, and nobody looks at them any more.
            unsafe { dpdk_sys::rte_pktmbuf_free_bulk(self.mbufs.as_mut_ptr(), self.count as u32) };
            self.count = 0;
        }
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// The bytes of a part.
///
/// # Safety
/// The view is one of a part of a frame that is ours as long as `'a`.
unsafe fn bytes<'a>(view: &spindrift_view) -> &'a [u8] {
    // SAFETY: a part has as many bytes as it says, which nobody writes as long as it is ours.
    unsafe { std::slice::from_raw_parts(view.data, view.len as usize) }
}

const NO_VIEW: spindrift_view =
    spindrift_view { data: ptr::null(), len: 0, frame_len: 0, next: ptr::null_mut() };

impl RxQueue {
    /// The queue of this number.
    pub(crate) fn new(device: &Arc<Device>, queue: u16) -> Self {
        Self { queue, whole: Vec::new(), device: Arc::clone(device) }
    }

    /// Shows up to `most` frames to `sink`, no more than the driver brings at once.
    pub(crate) fn receive(&mut self, most: usize, sink: &mut dyn FnMut(&RxFrame<'_>)) -> Received {
        let mut batch = Batch::default();
        batch.receive_most(self.device.port(), self.queue, most);
        let mut received = Received { frames: batch.count, dropped: 0 };
        for view in &batch.views[..batch.count] {
            // SAFETY: the frames are ours until the batch is dropped.
            let first = unsafe { bytes(view) };
            if view.next.is_null() {
                sink(&RxFrame::whole(RxOrigin::Ethernet, first));
            } else if !show_parts(&mut self.whole, first, view.next, sink) {
                received.dropped += 1;
            }
        }
        received
    }
}

/// Shows a frame in several buffers; `whole` has room for a copy. `false`: there are too many.
#[cold]
fn show_parts(
    whole: &mut Vec<u8>,
    first: &[u8],
    mut next: *mut rte_mbuf,
    sink: &mut dyn FnMut(&RxFrame<'_>),
) -> bool {
    let mut parts = [Payload::EMPTY; MOST_PARTS];
    let mut count = 0;
    while !next.is_null() {
        let Some(part) = parts.get_mut(count) else { return false };
        let mut view = NO_VIEW;
        // SAFETY: a part of a frame that is ours, and so are its bytes.
        *part = unsafe {
            dpdk_sys::spindrift_part(next, &raw mut view);
            bytes(&view)
        }
        .into();
        count += 1;
        next = view.next;
    }
    let frame = RxFrame { origin: RxOrigin::Ethernet, data: first, rest: &parts[..count] };
    if first.len() >= HEADERS {
        sink(&frame);
        return true;
    }
    whole.clear();
    frame.append_to(whole);
    sink(&RxFrame::whole(RxOrigin::Ethernet, whole));
    true
}

#[cfg(test)]
mod tests {
    use super::super::Pool;
    use super::*;
    use crate::{Eal, EalConfig};

    /// Shows a frame whose parts have these lengths; returns whether it was shown, its bytes, and the length of its first part.
    fn shown(pool: &Pool, lengths: &[usize]) -> (bool, Vec<u8>, usize) {
        let (mut mbufs, mut data) = ([ptr::null_mut(); 64], [ptr::null_mut(); 64]);
        let mut at = 0;
        // SAFETY: as many buffers as there are parts, each longer than its part. They are this test's until they are freed.
        unsafe {
            let taken = dpdk_sys::spindrift_take(
                pool.as_ptr(),
                mbufs.as_mut_ptr(),
                data.as_mut_ptr(),
                lengths.len() as u32,
            );
            assert_eq!(taken, 0);
            for (n, &len) in lengths.iter().enumerate() {
                let part = std::slice::from_raw_parts_mut(data[n], len);
                part.iter_mut().zip(at..).for_each(|(byte, at)| *byte = at as u8);
                at += len;
                dpdk_sys::spindrift_set_len(mbufs[n], len as u32);
                assert!(n == 0 || dpdk_sys::spindrift_chain(mbufs[0], mbufs[n]) == 0);
            }
        }
        let (mut got, mut front) = (Vec::new(), 0);
        let mut view = NO_VIEW;
        // SAFETY: as above; the frame is freed when nobody looks at it any more.
        let was_shown = unsafe {
            dpdk_sys::spindrift_part(mbufs[0], &raw mut view);
            assert_eq!(view.frame_len as usize, lengths.iter().sum::<usize>());
            let was_shown = show_parts(&mut Vec::new(), bytes(&view), view.next, &mut |frame| {
                frame.append_to(&mut got);
                front = frame.data.len();
            });
            dpdk_sys::rte_pktmbuf_free_bulk(mbufs.as_mut_ptr(), 1);
            was_shown
        };
        (was_shown, got, front)
    }

    /// All headers lie in the first part that the sink sees, however the device cut the frame.
    #[test]
    fn frames_in_several_buffers_are_shown_whole() {
        let config = EalConfig { huge_pages: false, memory_mib: Some(64), ..EalConfig::default() };
        Eal::start(&config).unwrap();
        let pool = Pool::new(64, 2048, -1).unwrap();
        for (lengths, front) in [
            (&[2048, 2048, 100][..], 2048),
            (&[256, 1], 256),
            (&[255, 1000], 1255),
            (&[14, 40, 8, 1000], 1062),
            (&[1; 33], 33),
        ] {
            let (was_shown, got, first) = shown(&pool, lengths);
            assert!(was_shown && first == front, "{lengths:?} {first}");
            assert_eq!(got.len(), lengths.iter().sum::<usize>());
            assert!(got.iter().zip(0_usize..).all(|(&byte, at)| byte == at as u8));
        }
        assert!(!shown(&pool, &[1; 34]).0, "too many");
        // SAFETY: as in `drop`: all buffers are back.
        assert_eq!(unsafe { dpdk_sys::rte_mempool_avail_count(pool.as_ptr()) }, 64);
    }
}
