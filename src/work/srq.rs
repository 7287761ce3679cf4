//! Shared receive queues.

use core::sync::atomic::{AtomicU32, Ordering};

use crossbeam_queue::ArrayQueue;

use super::{RecvWr, ScatterWr, Sge};

/// Number of a shared receive queue. The creator of the queue assigns it; here it is only returned in events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SrqId(pub u32);

/// A receive work request in a queue: its only element, or several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PostedRecv {
    pub(crate) wr: RecvWr,
    /// If there are several, `wr` has none.
    pub(crate) elements: Option<Box<[Sge]>>,
}

impl From<RecvWr> for PostedRecv {
    #[inline]
    fn from(wr: RecvWr) -> Self {
        Self { wr, elements: None }
    }
}

impl From<&ScatterWr<'_>> for PostedRecv {
    fn from(wr: &ScatterWr<'_>) -> Self {
        match wr.with_one() {
            Some(one) => one.into(),
            None => Self { wr: RecvWr::empty(wr.wr_id), elements: Some(wr.elements().collect()) },
        }
    }
}

/// A shared receive queue (IBTA volume 1, section 10.2.9; `ibv_srq`): receive work requests for several queue pairs.
/// Each request is consumed by the queue pair that has the next immediate or SEND.
///
/// Any number of threads may post while any number of endpoints consume. It has no lock, and endpoints need no
/// notification of posts.
#[derive(Debug)]
pub struct SharedRecvQueue {
    id: SrqId,
    queue: ArrayQueue<PostedRecv>,
    /// 0: no event is requested.
    limit: AtomicU32,
}

impl SharedRecvQueue {
    /// A queue that holds up to `max_wr` requests, at least one.
    pub fn new(id: SrqId, max_wr: u32) -> Self {
        Self { id, queue: ArrayQueue::new(max_wr.max(1) as usize), limit: AtomicU32::new(0) }
    }

    /// Its number.
    pub const fn id(&self) -> SrqId {
        self.id
    }

    /// The largest number of requests that it holds.
    pub fn max_wr(&self) -> u32 {
        self.queue.capacity() as u32
    }

    /// The requests that have not been consumed. There may be fewer by the time this returns.
    pub fn outstanding(&self) -> u32 {
        self.queue.len() as u32
    }

    /// Adds a request; `false` if the queue is full.
    #[inline]
    pub fn post(&self, wr: RecvWr) -> bool {
        self.queue.push(wr.into()).is_ok()
    }

    /// Adds a request with several elements; `false` if the queue is full.
    pub fn post_scatter(&self, wr: &ScatterWr<'_>) -> bool {
        self.queue.push(wr.into()).is_ok()
    }

    /// Takes the oldest request.
    ///
    /// If another thread is in the middle of a post to an empty queue, this waits for it: for a few instructions, or
    /// until that thread is scheduled again. The alternative would be to fail a queue pair although its receive is
    /// almost posted.
    #[inline]
    pub(crate) fn take(&self) -> Option<PostedRecv> {
        self.queue.pop()
    }

    /// The limit in force; 0 if there is none.
    pub fn limit(&self) -> u32 {
        self.limit.load(Ordering::SeqCst)
    }

    /// Sets the limit below which [`SharedRecvQueue::reaches_limit`] returns `true`, once; 0 clears it.
    pub fn set_limit(&self, limit: u32) {
        self.limit.store(limit, Ordering::SeqCst);
    }

    /// Whether there are fewer requests than the limit. The limit is then cleared, so only one caller gets `true`.
    ///
    /// Call this after taking a request and after setting a limit. The queue and the limit are accessed in one order
    /// that all threads agree on, so that one of two threads sees the other's change.
    #[inline]
    pub fn reaches_limit(&self) -> bool {
        let limit = self.limit();
        // Exchanged, and not stored: a limit that was set again meanwhile is a different one.
        limit > 0
            && self.outstanding() < limit
            && self.limit.compare_exchange(limit, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(max_wr: u32, posted: u64) -> SharedRecvQueue {
        let queue = SharedRecvQueue::new(SrqId(3), max_wr);
        for wr_id in 0..posted {
            assert!(queue.post(RecvWr::empty(wr_id)));
        }
        queue
    }

    #[test]
    fn requests_come_back_in_order_and_no_more_than_there_is_room_for() {
        let queue = queue(3, 3);
        assert!(!queue.post(RecvWr::empty(3)));
        assert_eq!((queue.id(), queue.max_wr(), queue.outstanding()), (SrqId(3), 3, 3));
        assert_eq!(queue.take(), Some(RecvWr::empty(0).into()));
        assert!(queue.post(RecvWr::empty(4)));
        let rest: Vec<_> = core::iter::from_fn(|| queue.take()).map(|posted| posted.wr.wr_id).collect();
        assert_eq!((rest, queue.outstanding()), (vec![1, 2, 4], 0));
    }

    #[test]
    fn the_limit_is_reached_once_each_time_it_is_set() {
        let queue = queue(4, 4);
        assert!(!queue.reaches_limit(), "nobody wants to know");
        queue.set_limit(3);
        assert!(!queue.reaches_limit());
        queue.take();
        assert!(!queue.reaches_limit(), "as many as the limit");
        queue.take();
        assert_eq!((queue.limit(), queue.reaches_limit()), (3, true));
        assert_eq!((queue.limit(), queue.reaches_limit()), (0, false));
        queue.set_limit(3);
        assert!(queue.reaches_limit(), "there are fewer already");
        queue.set_limit(1);
        queue.take();
        assert!(!queue.reaches_limit());
        queue.take();
        queue.set_limit(0);
        assert!(!queue.reaches_limit());
    }
}
