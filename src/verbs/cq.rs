//! Completion queues.

use std::sync::Arc;

use crate::endpoint::CqId;
use crate::engine::{CqCore, CqEnd, CqReader};
use crate::wire::Qpn;
use crate::work::{Wc, WcOpcode, WcStatus};

use super::comp_channel::CompChannel;
use super::context::Context;
use super::error::{CqError, VerbsError};

/// The largest depth of a completion queue.
pub const MAX_CQ_DEPTH: u32 = 1 << 22;

/// A completion queue, polled by its single owner.
///
/// Its size is fixed. A completion that finds no room is an error and is not lost silently. The completions before it
/// can still be polled. After that, [`Cq::poll`] always reports [`CqError`], and the queue pairs that report here are
/// in the error state. A queue never overruns if it is as deep as all send and receive queues that report to it
/// together, and if a completion is polled before another request takes the place of its request. A completed request
/// makes room in its queue at once, polled or not.
///
/// Queue pairs of several lanes of its context may report to one queue. Completions of one queue pair are in order.
/// Completions of queue pairs on different lanes are in no particular order. There is room for `depth` completions of
/// each lane.
///
/// Completions for a dropped queue are dropped too.
#[derive(Debug)]
pub struct Cq {
    context: Context,
    reader: CqReader,
    depth: u32,
}

impl Context {
    /// Makes a completion queue for up to `depth` completions that have not been polled.
    ///
    /// # Errors
    /// [`VerbsError::OutOfRange`].
    pub fn create_cq(&self, depth: u32) -> Result<Cq, VerbsError> {
        Cq::create(self, depth, None)
    }

    /// The same, with a channel on which the queue can report its completions.
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

    /// Why it has ended, if it has. Earlier completions may still be queued.
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

    /// Requests an event on the queue's channel for the next completion (`ibv_req_notify_cq`), or for the end of the
    /// queue. One call causes one event. Returns whether completions are already queued. Those may cause no event, so
    /// poll them before you wait. A completion that comes during the call may both be reported here and cause an
    /// event, so a queue may be empty after an event.
    ///
    /// MRC has no solicited events (that bit of its BTH is 0), so all completions count.
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

    /// Destroys the queue.
    ///
    /// # Errors
    /// [`VerbsError::CqInUse`] while queue pairs report here; the error returns the queue.
    pub fn destroy(self) -> Result<(), (Self, VerbsError)> {
        match self.context.cq_users(self.reader.core()) {
            Ok(0) => Ok(()),
            Ok(queue_pairs) => Err((self, VerbsError::CqInUse { queue_pairs })),
            Err(error) => Err((self, error)),
        }
    }

    /// The identifier of this queue in its context, as in [`AsyncEvent::CqError`](crate::verbs::AsyncEvent::CqError).
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
        // This is done first: it shows the lanes that the queue is no longer read.
        self.reader.abandon();
        self.context.drop_cq(self.reader.core());
    }
}

impl Default for Wc {
    /// A placeholder for [`Cq::poll`] to overwrite; it describes no work request.
    fn default() -> Self {
        Self {
            wr_id: 0,
            status: WcStatus::Success,
            opcode: WcOpcode::RdmaWrite,
            byte_len: 0,
            imm: None,
            qpn: Qpn::new(0),
            src_qpn: Qpn::new(0),
            invalidated: None,
        }
    }
}
