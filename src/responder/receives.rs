//! Receive work requests: one for each write with immediate and each SEND, in the order of the messages.
//!
//! `METH.rqmsn` numbers the messages that take one. Message *n* takes the *n*-th request, so a packet of a SEND is
//! placed when it arrives, in any order.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::memory::{MemoryError, PayloadRef, RegionSlot, parts_of};
use crate::work::{PostedRecv, SharedRecvQueue, SrqId};

/// A receive work request whose buffer is pinned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Receive {
    pub(crate) wr_id: u64,
    pub(crate) buffer: Buffer,
}

/// Where the bytes of a message go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Buffer {
    /// One range; an empty one if there is no buffer.
    One(PayloadRef),
    /// Several ranges, filled in order.
    Several(Box<[PayloadRef]>),
    /// It cannot be used. A message that needs it ends the queue pair. Elsewhere, so that each receive takes less memory.
    Unusable(Box<MemoryError>),
}

impl Buffer {
    /// No buffer.
    pub(crate) const NONE: Self = Self::One(PayloadRef::EMPTY);

    /// Its ranges.
    pub(crate) fn ranges(&self) -> &[PayloadRef] {
        match self {
            Self::One(range) => core::slice::from_ref(range),
            Self::Several(ranges) => ranges,
            Self::Unusable(_) => &[],
        }
    }

    /// Bytes that it takes.
    #[inline]
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::One(range) => u64::from(range.len),
            Self::Several(_) | Self::Unusable(_) => {
                self.ranges().iter().map(|range| u64::from(range.len)).sum()
            }
        }
    }

    /// Calls `unpin` for each region pinned for it.
    #[inline]
    pub(crate) fn unpin(&self, mut unpin: impl FnMut(RegionSlot)) {
        match self {
            Self::One(range) if range.is_gathered() => {}
            Self::One(range) => unpin(range.slot),
            Self::Several(_) | Self::Unusable(_) => self.ranges().iter().for_each(|range| unpin(range.slot)),
        }
    }

    /// The ranges that the `len` bytes from `offset` of the message go to, in order.
    pub(crate) fn parts(&self, offset: u64, len: u32) -> impl Iterator<Item = PayloadRef> {
        parts_of(self.ranges().iter().copied(), offset, len)
    }
}

/// The source of receive work requests.
#[derive(Debug)]
pub(crate) struct Receives {
    /// Pinned requests, the next to be consumed first: those of the queue pair's own queue, or those taken from the
    /// shared one for messages that have begun to arrive.
    queue: VecDeque<Receive>,
    source: RecvSource,
}

#[derive(Debug)]
enum RecvSource {
    /// The queue pair's own receive queue, up to this many requests.
    Own { depth: usize },
    /// A shared receive queue.
    Shared(Arc<SharedRecvQueue>),
}

impl Receives {
    /// Creates a queue pair's own receive queue.
    pub(crate) const fn own(depth: usize) -> Self {
        Self { queue: VecDeque::new(), source: RecvSource::Own { depth } }
    }

    /// Takes requests from a shared receive queue.
    pub(crate) const fn shared(queue: Arc<SharedRecvQueue>) -> Self {
        Self { queue: VecDeque::new(), source: RecvSource::Shared(queue) }
    }

    /// The shared receive queue, if it is one.
    pub(crate) fn srq(&self) -> Option<SrqId> {
        match &self.source {
            RecvSource::Own { .. } => None,
            RecvSource::Shared(queue) => Some(queue.id()),
        }
    }

    /// Number of requests in the queue pair's own receive queue.
    pub(super) fn len(&self) -> usize {
        match self.source {
            RecvSource::Own { .. } => self.queue.len(),
            RecvSource::Shared(_) => 0,
        }
    }

    /// Whether the queue pair's own receive queue has no room.
    pub(super) fn is_full(&self) -> bool {
        match self.source {
            RecvSource::Own { depth } => self.queue.len() >= depth,
            RecvSource::Shared(_) => true,
        }
    }

    /// Adds a pinned request. The caller has checked that there is room, or has taken it from the shared queue.
    pub(super) fn push(&mut self, receive: Receive) {
        self.queue.push_back(receive);
    }

    /// The request that the message `ahead` of the next one takes, if there is one.
    #[inline]
    pub(super) fn get(&self, ahead: u16) -> Option<&Receive> {
        self.queue.get(usize::from(ahead))
    }

    /// Takes one more request from the shared receive queue, for a message that has begun to arrive. Its buffer is not
    /// pinned. Also returns the queue if it is now below its limit.
    #[cold]
    pub(super) fn take_shared(&self) -> Option<(PostedRecv, Option<SrqId>)> {
        match &self.source {
            RecvSource::Own { .. } => None,
            RecvSource::Shared(queue) => {
                let posted = queue.take()?;
                Some((posted, queue.reaches_limit().then(|| queue.id())))
            }
        }
    }

    /// Consumes the oldest request for a message that is complete. Also returns the shared receive queue if it is now
    /// below its limit.
    ///
    /// A peer without RNR NACKs sends only writes with immediate. Their request is taken from the shared queue here,
    /// and its buffer is not used.
    #[inline]
    pub(super) fn consume(&mut self) -> Option<(Receive, Option<SrqId>)> {
        if let Some(receive) = self.queue.pop_front() {
            return Some((receive, None));
        }
        let (posted, low) = self.take_shared()?;
        Some((Receive { wr_id: posted.wr.wr_id, buffer: Buffer::NONE }, low))
    }

    /// The room for requests without growing.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.queue.capacity()
    }

    /// Releases unused storage of the queue.
    pub(super) fn reclaim(&mut self) {
        self.queue.shrink_to_fit();
    }

    /// Takes the oldest pinned request back, because the queue pair has failed. Requests that are still in a shared
    /// receive queue stay there.
    pub(super) fn take_back(&mut self) -> Option<Receive> {
        self.queue.pop_front()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::work::RecvWr;

    fn receive(wr_id: u64) -> Receive {
        Receive { wr_id, buffer: Buffer::NONE }
    }

    #[test]
    fn a_queue_of_its_own_has_room_for_so_many() {
        let mut own = Receives::own(100);
        for wr_id in 0..100 {
            assert!(!own.is_full());
            own.push(receive(wr_id));
        }
        assert_eq!((own.is_full(), own.len(), own.srq()), (true, 100, None));
        assert_eq!(own.get(99).map(|receive| receive.wr_id), Some(99));
        assert_eq!(own.get(100), None);
        assert_eq!(own.consume(), Some((receive(0), None)));
        assert_eq!(own.take_back(), Some(receive(1)));
        assert_eq!(own.get(0).map(|receive| receive.wr_id), Some(2), "counted from the next one");
        (2..95).for_each(|wr_id| assert_eq!(own.consume(), Some((receive(wr_id), None))));
        assert!(own.capacity() >= 100);
        own.reclaim();
        assert!(own.capacity() < 16, "{own:?}");
        let left: Vec<_> = core::iter::from_fn(|| own.take_back()).map(|wr| wr.wr_id).collect();
        assert_eq!(left, [95, 96, 97, 98, 99]);
        assert_eq!((own.consume(), own.len(), own.take_shared()), (None, 0, None));
    }

    #[test]
    fn a_shared_queue_is_only_taken_from() {
        let queue = Arc::new(SharedRecvQueue::new(SrqId(7), 4));
        let mut shared = Receives::shared(Arc::clone(&queue));
        assert!(shared.is_full(), "for requests of the queue pair");
        assert!((1..5).all(|wr_id| queue.post(RecvWr::empty(wr_id))));
        queue.set_limit(2);
        shared.reclaim();
        assert_eq!((shared.take_back(), shared.len(), shared.srq()), (None, 0, Some(SrqId(7))));
        assert_eq!(shared.consume(), Some((receive(1), None)));
        assert_eq!(shared.take_shared(), Some((RecvWr::empty(2).into(), None)));
        shared.push(receive(2));
        assert_eq!(shared.take_shared(), Some((RecvWr::empty(3).into(), Some(SrqId(7)))));
        shared.push(receive(3));
        assert_eq!(shared.len(), 0, "none of them is the queue pair's own");
        assert_eq!(shared.consume(), Some((receive(2), None)), "what was taken first");
        assert_eq!(shared.take_back(), Some(receive(3)));
        assert_eq!(shared.consume(), Some((receive(4), None)));
        assert_eq!(shared.consume(), None);
    }

    /// Every range of a message goes to the places that a copy byte by byte would take.
    #[test]
    fn parts_of_a_message_follow_the_elements() {
        let range = |offset, len| PayloadRef { offset, len, ..PayloadRef::EMPTY };
        let buffer = Buffer::Several(Box::new([range(100, 3), range(0, 1), range(50, 5)]));
        let places: Vec<u64> = [100, 101, 102, 0, 50, 51, 52, 53, 54].to_vec();
        assert_eq!(buffer.len(), 9);
        for from in 0..9_usize {
            for to in from..=9 {
                let parts = buffer.parts(from as u64, (to - from) as u32);
                let got: Vec<u64> =
                    parts.flat_map(|part| part.offset..part.offset + u64::from(part.len)).collect();
                assert_eq!(got, places[from..to], "{from} {to}");
            }
        }
    }
}
