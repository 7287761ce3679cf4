//! Completion channels.

use core::time::Duration;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use crate::endpoint::CqId;
use crate::engine::{Deadline, EventChannel};

use super::context::Context;
use super::error::VerbsError;

/// A completion channel (`ibv_comp_channel`): completion queues report completions to it, so that an application can
/// sleep until one comes.
///
/// A queue made with [`Context::create_cq_with_channel`] reports its next completion after a call of
/// [`Cq::req_notify`](super::Cq::req_notify). To lose no wake-up, call that, poll until the queue is empty, then wait.
/// Wait with [`CompChannel::get_event`], or with `poll`, `epoll` or an event loop on the descriptor ([`AsFd`]), which
/// is readable while events are queued. Only `get_event` and [`CompChannel::try_event`] read from it. Any number of
/// queues of a context may share a channel, and any number of threads may wait on it. Each event wakes one of them.
///
/// Clones are handles to the same channel.
///
/// If the lane runs inside the caller's thread, `get_event` drives it while it waits. A caller that sleeps on the
/// descriptor itself does not drive it: give such a lane a thread of its own
/// ([`LaneMode::Thread`](super::LaneMode::Thread)).
#[derive(Clone, Debug)]
pub struct CompChannel {
    context: Context,
    events: Arc<EventChannel>,
}

impl Context {
    /// Makes a completion channel, to wait on for completions.
    ///
    /// # Errors
    /// [`VerbsError::Channel`] if the system has no file descriptor left, [`VerbsError::Control`] if the lane has
    /// failed.
    pub fn create_comp_channel(&self) -> Result<CompChannel, VerbsError> {
        self.check_alive()?;
        CompChannel::create(self)
    }
}

impl CompChannel {
    pub(super) fn create(context: &Context) -> Result<Self, VerbsError> {
        let events = EventChannel::new().map_err(VerbsError::Channel)?;
        let events = Arc::new(events);
        context.add_channel(&events);
        Ok(Self { context: context.clone(), events })
    }

    /// Waits for an event, without limit if there is no timeout, and returns the queue that has it
    /// (`ibv_get_cq_event`). Returns [`None`] after the timeout. Events need no acknowledgement. Events of dropped
    /// queues are dropped.
    ///
    /// # Errors
    /// [`VerbsError::Control`] if the lane has failed and no event will follow, in a child of the process that opened
    /// the context, or within [`Context::with_endpoint`]; [`VerbsError::Channel`].
    pub fn get_event(&self, timeout: Option<Duration>) -> Result<Option<CqId>, VerbsError> {
        self.context.check_not_forked()?;
        self.context.check_not_nested()?;
        let deadline = timeout.map(Deadline::after);
        loop {
            if !self.events.is_empty()
                && let Some(cq) = self.try_event()
            {
                return Ok(Some(cq));
            }
            if self.events.has_failed() {
                self.context.check_alive()?;
            }
            let is_over = if self.context.any_inline() {
                self.context.poll();
                deadline.is_some_and(|deadline| deadline.left().is_none())
            } else {
                !self.events.wait(deadline.as_ref()).map_err(VerbsError::Channel)?
            };
            if is_over {
                return Ok(self.try_event());
            }
        }
    }

    /// The oldest event, if there is one; see [`CompChannel::get_event`].
    pub fn try_event(&self) -> Option<CqId> {
        // In a forked child, this would remove the event from the parent's queue.
        if self.context.in_forked_child() { None } else { self.events.pop() }
    }

    pub(super) fn context(&self) -> &Context {
        &self.context
    }

    pub(super) fn events(&self) -> &Arc<EventChannel> {
        &self.events
    }
}

impl AsFd for CompChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}
