//! Receive work requests, one for each immediate.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::work::{RecvWr, SharedRecvQueue, SrqId};

/// Where immediates find their receive work requests.
#[derive(Debug)]
pub(crate) enum Receives {
    /// In a queue of the queue pair's own.
    Own { queue: VecDeque<RecvWr>, depth: usize },
    /// In one that it shares with others.
    Shared(Arc<SharedRecvQueue>),
}

impl Receives {
    /// A queue of the queue pair's own.
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

    /// Requests in a queue of the queue pair's own.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Own { queue, .. } => queue.len(),
            Self::Shared(_) => 0,
        }
    }

    /// Adds a request to a queue of the queue pair's own; `false` when there is no room.
    pub(super) fn post(&mut self, wr: RecvWr) -> bool {
        match self {
            Self::Own { queue, depth } if queue.len() < *depth => {
                queue.push_back(wr);
                true
            }
            _ => false,
        }
    }

    /// Takes the oldest request for an immediate. The shared receive queue is named if it has fewer than its limit now.
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

    /// Takes the oldest request back, since the queue pair has failed. What others may use stays where it is.
    pub(super) fn take_back(&mut self) -> Option<RecvWr> {
        match self {
            Self::Own { queue, .. } => queue.pop_front(),
            Self::Shared(_) => None,
        }
    }
}
