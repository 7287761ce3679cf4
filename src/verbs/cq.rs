//! Completion queues.

use std::sync::Arc;

use crate::endpoint::CqId;
use crate::engine::{CqCore, CqEnd, CqReader};
use crate::wire::Qpn;
use crate::work::{Wc, WcOpcode, WcStatus};

use super::comp_channel::CompChannel;
use super::context::Context;
use super::error::{CqError, VerbsError};

/// Most completions that a completion queue may hold.
pub const MAX_CQ_DEPTH: u32 = 1 << 22;

/// A completion queue, polled by its one owner.
///
/// It is bounded: when a completion finds no room, that is an error, not a loss. The completions before it can still be
/// polled; then [`Cq::poll`] reports [`CqError`] for ever, and the queue pairs that report here are in the error state.
/// A queue as deep as the send and receive queues that report to it together never overruns, if a completion is polled
/// before another request takes the place of the one it is for. A completed request makes room in its queue at once,
/// polled or not.
///
/// Queue pairs of several lanes of its context may report to one queue. Completions of one queue pair come in order; those of queue
/// pairs on different lanes come in any, and there is room for `depth` of each lane.
///
/// Completions for a dropped queue are dropped too.
#[derive(Debug)]
pub struct Cq {
    context: Context,
    reader: CqReader,
    depth: u32,
}

impl Context {
    /// A completion queue for up to `depth` completions that have not been polled.
    ///
    /// # Errors
    /// [`VerbsError::OutOfRange`].
    pub fn create_cq(&self, depth: u32) -> Result<Cq, VerbsError> {
        Cq::create(self, depth, None)
    }

    /// The same, of a queue that can tell of its completions on a channel.
    ///
    /// # Errors
    /// [`VerbsError::OutOfRange`], [`VerbsError::OtherContext`].
    pub fn create_cq_with_channel(&self, depth: u32, channel: &CompChannel) -> Result<Cq, VerbsError> {
        Cq::create(self, depth, Some(channel))
    }
}

impl Cq {
    pub(super) fn create(
        context: &Context,
        depth: u32,
        channel: Option<&CompChannel>,
    ) -> Result<Self, VerbsError> {
        if !(1..=MAX_CQ_DEPTH).contains(&depth) {
            let allowed = format!("1 to {MAX_CQ_DEPTH}");
            return Err(VerbsError::OutOfRange { name: "depth", value: u64::from(depth), allowed });
        }
        if channel.is_some_and(|channel| !channel.context().is_same(context)) {
            return Err(VerbsError::OtherContext("completion channel"));
        }
        let reader = context.create_cq_reader(depth, channel.map(CompChannel::events))?;
        Ok(Self { context: context.clone(), reader, depth })
    }

    /// Moves completions to `out`, oldest first, and returns how many there were (0 when none).
    ///
    /// # Errors
    /// [`CqError`], after all completions before it.
    #[inline]
    pub fn poll(&mut self, out: &mut [Wc]) -> Result<usize, CqError> {
        self.reader.poll(out).map_err(|end| self.error_of(end))
    }

    fn error_of(&self, end: CqEnd) -> CqError {
        match end {
            CqEnd::Overrun => CqError::Overrun { depth: self.depth },
            CqEnd::LaneFailed => CqError::LaneFailed,
        }
    }

    /// How it has ended, if it has; completions before that may still be there to be polled.
    pub(super) fn end(&self) -> Option<CqError> {
        self.reader.core().end_state().map(|end| self.error_of(end))
    }

    /// The oldest completion, if there is one.
    ///
    /// # Errors
    /// [`CqError`], after all completions before it.
    #[inline]
    pub fn poll_one(&mut self) -> Result<Option<Wc>, CqError> {
        let mut one = [Wc::default()];
        let count = self.poll(&mut one)?;
        let [wc] = one;
        Ok((count == 1).then_some(wc))
    }

    /// Makes the next completion an event on the queue's channel (`ibv_req_notify_cq`), as the end of the queue is too.
    /// One call, one event. Returns whether there are completions to poll already: those need not make an event, so poll
    /// them before you wait; and one that comes during the call may do both, so a queue may be empty after an event.
    ///
    /// MRC has no solicited events (its BTH says so with 0), so there is no choice of which completions count.
    ///
    /// # Errors
    /// [`VerbsError::NoChannel`].
    pub fn req_notify(&mut self) -> Result<bool, VerbsError> {
        self.reader.arm().ok_or(VerbsError::NoChannel)
    }

    /// The completions that it can hold from the queue pairs of each lane.
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// Ends the queue.
    ///
    /// # Errors
    /// [`VerbsError::CqInUse`] while queue pairs report here, with the queue itself.
    pub fn destroy(self) -> Result<(), (Self, VerbsError)> {
        match self.context.cq_users(self.reader.core()) {
            Ok(0) => Ok(()),
            Ok(queue_pairs) => Err((self, VerbsError::CqInUse { queue_pairs })),
            Err(error) => Err((self, error)),
        }
    }

    /// Which queue of its context this is, as [`AsyncEvent::CqError`](crate::verbs::AsyncEvent::CqError) names it.
    pub fn id(&self) -> CqId {
        self.reader.core().id()
    }

    pub(super) fn core(&self) -> &Arc<CqCore> {
        self.reader.core()
    }

    pub(super) fn context(&self) -> &Context {
        &self.context
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // First: the lanes see then that nobody reads.
        self.reader.abandon();
        self.context.drop_cq(self.reader.core());
    }
}

impl Default for Wc {
    /// A place for [`Cq::poll`] to write to; it says nothing about any work request.
    fn default() -> Self {
        Self {
            wr_id: 0,
            status: WcStatus::Success,
            opcode: WcOpcode::RdmaWrite,
            byte_len: 0,
            imm: None,
            qpn: Qpn::new(0),
        }
    }
}
