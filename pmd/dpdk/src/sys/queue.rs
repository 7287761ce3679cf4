//! The queues of a device, and the buffers that frames are in.
//!
//! A buffer to send is in one place at a time: in `free`, in `staged`, or with the device until that gives it back to the pool. Only what
//! is in `free` is written. A buffer that was received is read while the sink runs, and then goes back to its pool.
//!
//! A *lent* frame has its payload elsewhere: a buffer of the chain refers to the caller's memory. It exists only within
//! [`TxQueue::send_frames`], which has the driver copy it, or copies it itself. So nothing refers to that memory later.

use std::ptr::{self, NonNull};
use std::sync::Arc;

use dpdk_sys::{rte_mbuf, rte_mbuf_ext_shared_info, spindrift_view};
use spindrift_pmd::memory::Payload;
use spindrift_pmd::{MacAddr, RxFrame, RxOrigin, Tail, TxFrame};

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
    /// Frames whose payload the driver read where it was, and those that had to be copied after all, as the device took no more.
    pub(crate) lent: u64,
    pub(crate) joined: u64,
    /// Frames that were lost, as there was no buffer to copy them to.
    pub(crate) dropped: u64,
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
    /// Shortest payload that is lent, and the count of frames that are.
    lend: Option<(usize, Lending)>,
    device: Arc<Device>,
}

/// The count of frames that refer to memory outside the pools.
struct Lending(NonNull<rte_mbuf_ext_shared_info>);

impl Lending {
    fn new() -> Option<Self> {
        // SAFETY: allocates.
        NonNull::new(unsafe { dpdk_sys::spindrift_lending() }).map(Self)
    }

    fn count(&self) -> u16 {
        // SAFETY: it lives as long as this.
        unsafe { dpdk_sys::spindrift_lent(self.0.as_ptr()) }
    }
}

impl Drop for Lending {
    fn drop(&mut self) {
        // SAFETY: no frame refers to it, as each call that makes some ends only then.
        unsafe { dpdk_sys::spindrift_lending_free(self.0.as_ptr()) };
    }
}

// SAFETY: the buffers are this queue's alone, and nothing of it is bound to a thread.
unsafe impl Send for TxQueue {}

impl TxQueue {
    /// The queue of this number, for which `pool` was given; `most` frames wait in it.
    /// With `lend_from`, payloads of so many bytes or more are lent, by a device that was set up to gather.
    pub(crate) fn new(
        device: &Arc<Device>,
        queue: u16,
        pool: usize,
        most: usize,
        lend_from: Option<usize>,
    ) -> Self {
        let room = device.pool(pool).map_or(0, super::Pool::room);
        let lend = lend_from.and_then(|least| Some((least.max(1), Lending::new()?)));
        Self {
            lend,
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

    /// Frames that can be pushed without another look into the pool.
    #[inline]
    pub(crate) fn ready(&self) -> usize {
        self.free.len().min(self.most - self.staged.len())
    }

    /// Queues frames, no more than are [`ready`](Self::ready), each with its Ethernet addresses (to, from), and gives the device what
    /// waits.
    pub(crate) fn send_frames<'a, 'f: 'a>(
        &mut self,
        frames: impl Iterator<Item = (&'a TxFrame<'f>, [MacAddr; 2])>,
    ) -> Sent {
        let (mut lost, mut lent) = (0, 0_u64);
        for (frame, macs) in frames {
            let least = self.lend.as_ref().map_or(usize::MAX, |&(least, _)| least);
            if frame.payload.len() >= least && self.push_lent(frame, macs) {
                lent += 1;
            } else if !self.push(frame.len(), |out| write(frame, macs, out)) {
                // The pool has buffers for all that can be lent at once.
                lost += 1;
            }
        }
        let mut sent = self.send();
        sent.dropped = lost;
        if lent > 0 {
            self.join_staged(&mut sent);
            sent.lent = lent.saturating_sub(sent.joined + sent.dropped - lost);
        }
        sent
    }

    /// Queues a frame that refers to its payload. `false`: there are too few buffers, or the payload has no bytes. Ends with a call of
    /// `join_staged`, before the payload may end.
    #[inline]
    fn push_lent(&mut self, frame: &TxFrame<'_>, macs: [MacAddr; 2]) -> bool {
        let (Some((_, lending)), Some(bytes)) = (&self.lend, frame.payload.as_ptr()) else { return false };
        let lending = lending.0;
        let (head_len, tail_len) = (frame.head.len(), frame.tail.len());
        let Ok(len) = u16::try_from(frame.payload.len()) else { return false };
        if head_len.max(tail_len) > self.room || self.staged.len() >= self.most {
            return false;
        }
        if self.free.len() < 3 {
            self.take(self.most.min(TAKE));
        }
        let &[.., (tail, tail_data), (outside, _), (head, head_data)] = &self.free[..] else {
            return false;
        };
        let used = if tail_len > 0 { 3 } else { 2 };
        self.free.truncate(self.free.len() - used);
        // SAFETY: the buffers are this queue's alone and have `room` bytes each, which the EAL has mapped.
        let (head_bytes, tail_bytes) = unsafe {
            (
                std::slice::from_raw_parts_mut(head_data.as_ptr(), head_len),
                std::slice::from_raw_parts_mut(tail_data.as_ptr(), if used == 3 { tail_len } else { 0 }),
            )
        };
        head_bytes.copy_from_slice(frame.head);
        address(head_bytes, macs);
        match frame.tail {
            Tail::Bytes(bytes) => tail_bytes.copy_from_slice(bytes),
            Tail::Crc32(state) => tail_bytes.copy_from_slice(&frame.payload.crc32(state).to_le_bytes()),
        }
        // SAFETY: buffers of this queue, and `len` bytes that live until `join_staged` has been called; the driver reads them by copies
        // that may race with others.
        unsafe {
            dpdk_sys::spindrift_set_len(head.as_ptr(), head_len as u32);
            dpdk_sys::spindrift_set_len(tail.as_ptr(), tail_len as u32);
            let tail = if used == 3 { tail.as_ptr() } else { ptr::null_mut() };
            let bytes = bytes.cast_mut().cast();
            dpdk_sys::spindrift_lend(head.as_ptr(), outside.as_ptr(), tail, bytes, len, lending.as_ptr());
        }
        self.staged.push(head.as_ptr());
        true
    }

    /// Copies what is lent and waits: the caller's memory is lent for one call only.
    fn join_staged(&mut self, sent: &mut Sent) {
        let Some(((_, lending), pool)) = self.lend.as_ref().zip(self.device.pool(self.pool)) else { return };
        if lending.count() == 0 {
            return;
        }
        let before = self.staged.len();
        self.staged.retain_mut(|frame| {
            let lent = lending.count();
            // SAFETY: a frame of this queue. If there is no buffer for a copy, the frame is freed, and nobody has it any more.
            unsafe {
                let is_joined = dpdk_sys::spindrift_join(&raw mut *frame, pool.as_ptr()) == 0;
                if !is_joined {
                    dpdk_sys::rte_pktmbuf_free_bulk(&raw mut *frame, 1);
                } else if lending.count() < lent {
                    sent.joined += 1;
                }
                is_joined
            }
        });
        sent.dropped += (before - self.staged.len()) as u64;
        assert_eq!(lending.count(), 0, "the driver keeps what it was to copy");
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

/// Writes the bytes of a frame, and the CRC of the copy: a region may change while it is read.
pub(crate) fn copy(frame: &TxFrame<'_>, out: &mut [u8]) {
    let (head, rest) = out.split_at_mut(frame.head.len());
    head.copy_from_slice(frame.head);
    let (payload, tail) = rest.split_at_mut(frame.payload.len());
    frame.payload.read(payload);
    match frame.tail {
        Tail::Bytes(bytes) => tail.copy_from_slice(bytes),
        Tail::Crc32(state) => tail.copy_from_slice(&Payload::from(&*payload).crc32(state).to_le_bytes()),
    }
}

/// The same with these Ethernet addresses.
#[inline]
fn write(frame: &TxFrame<'_>, macs: [MacAddr; 2], out: &mut [u8]) {
    copy(frame, out);
    address(out, macs);
}

/// Writes Ethernet addresses: to and from.
#[inline]
fn address(frame: &mut [u8], [to, from]: [MacAddr; 2]) {
    if let Some((ethernet, _)) = frame.split_first_chunk_mut::<12>() {
        let (dst, src) = ethernet.split_at_mut(6);
        dst.copy_from_slice(&to.0);
        src.copy_from_slice(&from.0);
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
