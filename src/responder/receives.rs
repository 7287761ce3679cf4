//! Receive work requests, one for each immediate.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::work::{RecvWr, SharedRecvQueue, SrqId};

/// The source of receive work requests for immediates.
#[derive(Debug)]
pub(crate) enum Receives {
    /// The queue pair's own receive queue.
    Own { queue: VecDeque<RecvWr>, depth: usize },
    /// A shared receive queue.
    Shared(Arc<SharedRecvQueue>),
}

impl Receives {
    /// Creates a queue pair's own receive queue.
    pub(crate) const fn own(depth: usize) -> Self {
        Self::Own { queue: VecDeque::new(), depth }
    }

    /// The shared receive queue, if it is one.
    pub(crate) fn srq(&self) -> Option<SrqId> {
        match self {
            Self::Own { .. } => None,
            Self::Shared(queue) => Some(queue.id()),
        }
    }

    /// Number of requests in the queue pair's own receive queue.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Own { queue, .. } => queue.len(),
            Self::Shared(_) => 0,
        }
    }

    /// Adds a request to the queue pair's own receive queue. Returns `false` if it is full.
    pub(super) fn post(&mut self, wr: RecvWr) -> bool {
        match self {
            Self::Own { queue, depth } if queue.len() < *depth => {
                queue.push_back(wr);
                true
            }
            _ => false,
        }
    }

    /// Takes the oldest request for an immediate. Also returns the shared receive queue if it is now below its limit.
    #[inline]
    pub(super) fn consume(&mut self) -> Option<(RecvWr, Option<SrqId>)> {
        match self {
            Self::Own { queue, .. } => Some((queue.pop_front()?, None)),
            Self::Shared(queue) => {
                let wr = queue.take()?;
                Some((wr, queue.reaches_limit().then(|| queue.id())))
            }
        }
    }

    /// Releases unused storage of the queue pair's own receive queue.
    pub(super) fn reclaim(&mut self) {
        if let Self::Own { queue, .. } = self {
            queue.shrink_to_fit();
        }
    }

    /// Takes the oldest request back, because the queue pair has failed. Requests of a shared receive queue stay
    /// there.
    pub(super) fn take_back(&mut self) -> Option<RecvWr> {
        match self {
            Self::Own { queue, .. } => queue.pop_front(),
            Self::Shared(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_of_its_own_has_room_for_so_many() {
        let mut own = Receives::own(100);
        let posted = (0..200).take_while(|&wr_id| own.post(RecvWr { wr_id })).count();
        assert_eq!((posted, own.len(), own.srq()), (100, 100, None));
        assert_eq!(own.consume(), Some((RecvWr { wr_id: 0 }, None)));
        assert_eq!(own.take_back(), Some(RecvWr { wr_id: 1 }));
        assert!((200..202).all(|wr_id| own.post(RecvWr { wr_id })) && !own.post(RecvWr { wr_id: 202 }));
        (2..95).for_each(|wr_id| assert_eq!(own.consume(), Some((RecvWr { wr_id }, None))));
        let capacity = |own: &Receives| match own {
            Receives::Own { queue, .. } => queue.capacity(),
            Receives::Shared(_) => 0,
        };
        assert!(capacity(&own) >= 100);
        own.reclaim();
        assert!(capacity(&own) < 16, "{own:?}");
        let left: Vec<_> = core::iter::from_fn(|| own.take_back()).map(|wr| wr.wr_id).collect();
        assert_eq!(left, [95, 96, 97, 98, 99, 200, 201]);
        assert_eq!((own.consume(), own.len()), (None, 0));
    }

    #[test]
    fn a_shared_queue_is_only_taken_from() {
        let queue = Arc::new(SharedRecvQueue::new(SrqId(7), 4));
        let mut shared = Receives::Shared(Arc::clone(&queue));
        assert!(!shared.post(RecvWr { wr_id: 0 }));
        assert!((1..4).all(|wr_id| queue.post(RecvWr { wr_id })));
        queue.set_limit(2);
        shared.reclaim();
        assert_eq!((shared.take_back(), shared.len(), shared.srq()), (None, 0, Some(SrqId(7))));
        assert_eq!(shared.consume(), Some((RecvWr { wr_id: 1 }, None)));
        assert_eq!(shared.consume(), Some((RecvWr { wr_id: 2 }, Some(SrqId(7)))));
        assert_eq!(shared.consume(), Some((RecvWr { wr_id: 3 }, None)));
        assert_eq!(shared.consume(), None);
    }
}
