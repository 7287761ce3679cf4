//! Completion channels: queues of completion events with a file descriptor to wait on.

use core::sync::atomic::{AtomicBool, Ordering};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use crossbeam_queue::SegQueue;

use super::clock::Deadline;
use super::signal::Tokens;
use crate::endpoint::CqId;

/// The completion queues with an event, in the order of the events.
#[derive(Debug)]
pub(crate) struct EventChannel {
    /// Contains each queue at most once.
    queue: SegQueue<Arc<CqBell>>,
    /// One token for each of them, and one more when the lanes have failed.
    tokens: Tokens,
    /// The context's lanes have failed: no further events follow.
    failed: AtomicBool,
}

/// One completion queue's part of its channel, shared by both halves of the queue.
///
/// The lane adds completions and then tests `armed`; the application sets `armed` and then polls for completions.
/// Both swap it, so no event is lost.
#[derive(Debug)]
pub(super) struct CqBell {
    cq: CqId,
    channel: Arc<EventChannel>,
    /// The next completion is an event.
    armed: AtomicBool,
    /// It is in the channel's queue.
    queued: AtomicBool,
    /// The application has dropped the completion queue.
    gone: AtomicBool,
}

impl EventChannel {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { queue: SegQueue::new(), tokens: Tokens::new()?, failed: AtomicBool::new(false) })
    }

    /// The completion queue with the oldest event. The descriptor is readable after that only if there is another.
    pub(crate) fn take(&self) -> Option<CqId> {
        while self.tokens.take() {
            let Some(bell) = self.queue.pop() else {
                // The token of the failure, which stays.
                self.tokens.add();
                break;
            };
            // Lowered before the application polls the queue: a later completion is an event of its own.
            bell.queued.swap(false, Ordering::AcqRel);
            if !bell.gone.load(Ordering::Relaxed) {
                return Some(bell.cq);
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
        self.tokens.wait(deadline)
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// No further events follow. The descriptor stays readable.
    pub(super) fn fail(&self) {
        if !self.failed.swap(true, Ordering::AcqRel) {
            self.tokens.add();
        }
    }
}

impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tokens.as_fd()
    }
}

impl CqBell {
    pub(super) fn new(cq: CqId, channel: &Arc<EventChannel>) -> Self {
        Self {
            cq,
            channel: Arc::clone(channel),
            armed: AtomicBool::new(false),
            queued: AtomicBool::new(false),
            gone: AtomicBool::new(false),
        }
    }

    /// Arms the channel: the next completion is an event. The caller then polls for earlier ones.
    pub(super) fn arm(&self) {
        self.armed.swap(true, Ordering::AcqRel);
    }

    /// A completion has been added, or the queue has ended.
    #[inline]
    pub(super) fn ring(self: &Arc<Self>) {
        if self.armed.swap(false, Ordering::AcqRel) {
            self.tell();
        }
    }

    #[cold]
    fn tell(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::AcqRel) {
            self.channel.queue.push(Arc::clone(self));
            self.channel.tokens.add();
        }
    }

    /// The application has dropped the queue.
    pub(super) fn silence(&self) {
        self.gone.store(true, Ordering::Relaxed);
    }
}
