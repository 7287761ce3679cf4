//! Queues from an application's thread to a lane that grow as needed.
//!
//! A queue is a list of segments (short rings). It has one segment unless the application is ahead of the lane by more than that,
//! and used-up segments go to the lane's other queue pairs. A queue pair therefore needs no memory for all requests that
//! may be outstanding. One thread writes and one reads; neither waits for the other except at the link from a segment to
//! the next.

use core::sync::atomic::{AtomicU32, Ordering};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crossbeam_queue::ArrayQueue;
use rtrb::{Consumer, Producer, PushError, RingBuffer};

/// Both ends of an unused segment.
type Segment<T> = (Producer<T>, Consumer<T>);

/// Unused segments of a lane, for all its queue pairs.
#[derive(Debug)]
pub(super) struct SegmentPool<T> {
    segments: Arc<ArrayQueue<Segment<T>>>,
    /// Items of each.
    size: usize,
}

impl<T> Clone for SegmentPool<T> {
    fn clone(&self) -> Self {
        Self { segments: Arc::clone(&self.segments), size: self.size }
    }
}

impl<T> SegmentPool<T> {
    /// Up to `kept` unused segments of `size` items.
    pub(super) fn new(size: usize, kept: usize) -> Self {
        Self { segments: Arc::new(ArrayQueue::new(kept)), size }
    }

    /// Both ends of a queue of at most `most` items, and their shared links.
    pub(super) fn new_queue(
        &self,
        most: usize,
    ) -> (SegmentedProducer<T>, SegmentLinks<T>, SegmentedConsumer<T>) {
        let (last, first) = RingBuffer::new(self.size.min(most));
        let links = SegmentLinks { made: AtomicU32::new(0), pending: Mutex::default(), pool: self.clone() };
        (SegmentedProducer { last }, links, SegmentedConsumer { first, followed: 0 })
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.segments.len()
    }
}

/// The segment after a full one, and the application's end of the full one.
#[derive(Debug)]
struct NextSegment<T> {
    filled: Producer<T>,
    next: Consumer<T>,
}

/// The links of a queue. Both sides see them, so they are stored with the other shared state.
#[derive(Debug)]
pub(super) struct SegmentLinks<T> {
    /// Links made since the start (wrapping).
    made: AtomicU32,
    /// Those that the lane has not followed yet.
    pending: Mutex<VecDeque<NextSegment<T>>>,
    pool: SegmentPool<T>,
}

impl<T> SegmentLinks<T> {
    fn pending(&self) -> MutexGuard<'_, VecDeque<NextSegment<T>>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The application's end.
#[derive(Debug)]
pub(super) struct SegmentedProducer<T> {
    last: Producer<T>,
}

impl<T> SegmentedProducer<T> {
    /// Adds an item. The caller limits the number of items.
    #[inline]
    pub(super) fn push(&mut self, links: &SegmentLinks<T>, item: T) {
        if let Err(PushError::Full(item)) = self.last.push(item) {
            self.push_to_next_segment(links, item);
        }
    }

    /// The lane is a whole segment behind: continues in another one.
    #[cold]
    fn push_to_next_segment(&mut self, links: &SegmentLinks<T>, item: T) {
        let (mut last, next) = links.pool.segments.pop().unwrap_or_else(|| RingBuffer::new(links.pool.size));
        // It is empty.
        let _ = last.push(item);
        let filled = core::mem::replace(&mut self.last, last);
        links.pending().push_back(NextSegment { filled, next });
        // A thread that sees this sees everything in the ring before.
        links.made.store(links.made.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }
}

/// The lane's end.
#[derive(Debug)]
pub(super) struct SegmentedConsumer<T> {
    first: Consumer<T>,
    /// Links followed since the start (wrapping).
    followed: u32,
}

impl<T> SegmentedConsumer<T> {
    /// The oldest item.
    #[inline]
    pub(super) fn pop(&mut self, links: &SegmentLinks<T>) -> Option<T> {
        loop {
            if let Ok(item) = self.first.pop() {
                return Some(item);
            }
            if links.made.load(Ordering::Acquire) == self.followed {
                return None;
            }
            // Items pushed between the two lines above are still in this ring.
            if let Ok(item) = self.first.pop() {
                return Some(item);
            }
            self.follow_link(links);
        }
    }

    #[cold]
    fn follow_link(&mut self, links: &SegmentLinks<T>) {
        self.followed = self.followed.wrapping_add(1);
        let Some(NextSegment { filled, next }) = links.pending().pop_front() else { return };
        let drained = core::mem::replace(&mut self.first, next);
        // If there are enough spare rings, it is dropped.
        let _ = links.pool.segments.push((filled, drained));
    }
}
