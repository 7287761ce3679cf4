//! Completion channels: queues of completion events with a file descriptor to wait on.

use core::sync::atomic::{AtomicBool, Ordering};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use crossbeam_queue::SegQueue;

use super::clock::Deadline;
use super::event_fd::EventSemaphore;
use crate::endpoint::CqId;

/// The completion queues with an event, in the order of the events.
#[derive(Debug)]
pub(crate) struct EventChannel {
    /// Contains each queue at most once.
    queue: SegQueue<Arc<CqNotifier>>,
    /// One token for each of them, and one more when the lanes have failed.
    events: EventSemaphore,
    /// The context's lanes have failed: no further events follow.
    failed: AtomicBool,
}

/// One completion queue's part of its channel, shared by both halves of the queue.
///
/// The lane adds completions and then tests `armed`; the application sets `armed` and then polls for completions.
/// Both swap it, so no event is lost.
#[derive(Debug)]
pub(super) struct CqNotifier {
    cq: CqId,
    channel: Arc<EventChannel>,
    /// The next completion is an event.
    armed: AtomicBool,
    /// It is in the channel's queue.
    queued: AtomicBool,
    /// The application has dropped the completion queue.
    cq_dropped: AtomicBool,
}

impl EventChannel {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { queue: SegQueue::new(), events: EventSemaphore::new()?, failed: AtomicBool::new(false) })
    }

    /// The completion queue with the oldest event. The descriptor is readable after that only if there is another.
    pub(crate) fn pop(&self) -> Option<CqId> {
        while self.events.take() {
            let Some(notifier) = self.queue.pop() else {
                // The token of the failure, which stays.
                self.events.add();
                break;
            };
            // Lowered before the application polls the queue: a later completion is an event of its own.
            notifier.queued.swap(false, Ordering::AcqRel);
            if !notifier.cq_dropped.load(Ordering::Relaxed) {
                return Some(notifier.cq);
            }
        }
        None
    }

    /// Whether there is nothing to take, without a system call.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Waits until there is an event or the lane has failed; for ever without a deadline. Returns whether there may
    /// be an event.
    pub(crate) fn wait(&self, deadline: Option<&Deadline>) -> io::Result<bool> {
        self.events.wait(deadline)
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// No further events follow. The descriptor stays readable.
    pub(super) fn fail(&self) {
        if !self.failed.swap(true, Ordering::AcqRel) {
            self.events.add();
        }
    }
}

impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

impl CqNotifier {
    pub(super) fn new(cq: CqId, channel: &Arc<EventChannel>) -> Self {
        Self {
            cq,
            channel: Arc::clone(channel),
            armed: AtomicBool::new(false),
            queued: AtomicBool::new(false),
            cq_dropped: AtomicBool::new(false),
        }
    }

    /// Arms the channel: the next completion is an event. The caller then polls for earlier ones.
    pub(super) fn arm(&self) {
        self.armed.swap(true, Ordering::AcqRel);
    }

    /// A completion has been added, or the queue has ended.
    #[inline]
    pub(super) fn notify(self: &Arc<Self>) {
        if self.armed.swap(false, Ordering::AcqRel) {
            self.enqueue();
        }
    }

    #[cold]
    fn enqueue(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::AcqRel) {
            self.channel.queue.push(Arc::clone(self));
            self.channel.events.add();
        }
    }

    /// The application has dropped the queue.
    pub(super) fn detach(&self) {
        self.cq_dropped.store(true, Ordering::Relaxed);
    }
}
