//! Shared receive queues.

use std::sync::Arc;

use crate::engine::AsyncEvent;
use crate::work::{MAX_SGE, RecvWr, ScatterWr, SharedRecvQueue, SrqId};

use super::context::Context;
use super::error::{BadWr, PostError, VerbsError};
use super::post::post_each;

/// A shared receive queue: receive work requests for all queue pairs that were made with it
/// ([`QpConfig::srq`](super::QpConfig::srq)). Each request is consumed by the queue pair that has the next immediate or
/// SEND.
/// A server with many peers posts for the expected sum, and not for the most that each peer may send.
///
/// The completion names the queue pair that consumed a request, and goes to that queue pair's receive completion
/// queue. Requests in the queue are not flushed when queue pairs fail or are destroyed. A message that finds the queue
/// empty is sent again later, or is an error for both sides if the peer does not have the extension
/// [`RNR`](crate::endpoint::Extensions::RNR). [`Srq::set_limit`] gives a warning before that.
///
/// A queue pair takes a request when the first packet of a message arrives; if that is of a later message, it takes one
/// for each message before it too. If the queue pair then fails, these requests are flushed.
///
/// Queue pairs of all lanes of its context may use it. Clones are handles to the same queue. Any number of threads may
/// post through them without a lock. A posted request is available to immediates at once, whatever the state of the
/// queue pairs.
///
/// In `libibverbs` a shared receive queue belongs to a protection domain. Here it belongs to the context. The buffer of
/// a request must be in the protection domain of the queue pair that takes it, which is checked at that moment.
#[derive(Clone, Debug)]
pub struct Srq {
    context: Context,
    queue: Arc<SharedRecvQueue>,
}

/// Attributes of a shared receive queue (`ibv_query_srq`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqAttr {
    /// The largest number of receive work requests that it holds.
    pub max_wr: u32,
    /// The limit set by [`Srq::set_limit`]; 0 if there is none, or if it has been reached since.
    pub limit: u32,
    /// Receive work requests posted and not consumed.
    pub outstanding: u32,
}

impl Context {
    /// Makes a shared receive queue for up to `max_wr` receive work requests that have not been consumed; at most
    /// [`Limits::max_srq_wr`](crate::endpoint::Limits::max_srq_wr). Each takes 48 bytes, posted or not.
    ///
    /// # Errors
    /// [`VerbsError::OutOfRange`], [`VerbsError::Control`] if the lane has failed.
    pub fn create_srq(&self, max_wr: u32) -> Result<Srq, VerbsError> {
        self.check_alive()?;
        Srq::create(self, self.next_srq_id(), max_wr)
    }
}

impl Srq {
    pub(super) fn create(context: &Context, id: SrqId, max_wr: u32) -> Result<Self, VerbsError> {
        let most = context.config().limits.max_srq_wr;
        if !(1..=most).contains(&max_wr) {
            let allowed = format!("1 to {most}, see `EndpointConfig::limits`");
            return Err(VerbsError::OutOfRange { name: "max_wr", value: u64::from(max_wr), allowed });
        }
        Ok(Self { context: context.clone(), queue: Arc::new(SharedRecvQueue::new(id, max_wr)) })
    }

    /// Posts a receive work request: for one immediate or one SEND (`ibv_post_srq_recv`).
    ///
    /// # Errors
    /// [`PostError::QueueFull`], [`PostError::LaneFailed`]; then nothing has been posted.
    #[inline]
    pub fn post_recv(&self, wr: RecvWr) -> Result<(), PostError> {
        if self.context.failure().is_some() {
            return Err(PostError::LaneFailed);
        }
        if self.queue.post(wr) { Ok(()) } else { Err(PostError::QueueFull { max: self.queue.max_wr() }) }
    }

    /// Posts a receive work request whose buffer has several elements, up to [`MAX_SGE`](super::MAX_SGE).
    ///
    /// # Errors
    /// [`PostError::TooManySges`], [`PostError::QueueFull`], [`PostError::LaneFailed`]; then nothing has been posted.
    pub fn post_scatter(&self, wr: ScatterWr<'_>) -> Result<(), PostError> {
        let count = wr.local.len();
        if count > MAX_SGE as usize {
            return Err(PostError::TooManySges { count, max: MAX_SGE });
        }
        if self.context.failure().is_some() {
            return Err(PostError::LaneFailed);
        }
        let max = self.queue.max_wr();
        if self.queue.post_scatter(&wr) { Ok(()) } else { Err(PostError::QueueFull { max }) }
    }

    /// Posts a list of receive work requests, in order. Requests of other threads may come in between.
    ///
    /// # Errors
    /// [`BadWr`] names the first request that was refused, and why. Those before it have been posted, none after it
    /// has.
    pub fn post_recvs(&self, wrs: &[RecvWr]) -> Result<(), BadWr> {
        post_each(wrs, |wr| self.post_recv(wr))
    }

    /// Requests the event [`AsyncEvent::SrqLimitReached`] once the queue holds fewer work requests than `limit`; at
    /// once if it already does (`ibv_modify_srq` with `IBV_SRQ_LIMIT`). One call causes one event. 0 cancels the
    /// request.
    ///
    /// # Errors
    /// [`VerbsError::OutOfRange`] if `limit` exceeds the size of the queue.
    pub fn set_limit(&self, limit: u32) -> Result<(), VerbsError> {
        let most = self.queue.max_wr();
        if limit > most {
            let allowed = format!("at most {most}, the queue's size");
            return Err(VerbsError::OutOfRange { name: "limit", value: u64::from(limit), allowed });
        }
        self.queue.set_limit(limit);
        if self.queue.reaches_limit() {
            self.context.report(AsyncEvent::SrqLimitReached { srq: self.id() });
        }
        Ok(())
    }

    /// Its attributes. The call costs the lanes nothing.
    pub fn query(&self) -> SrqAttr {
        let Self { queue, .. } = self;
        SrqAttr { max_wr: queue.max_wr(), limit: queue.limit(), outstanding: queue.outstanding() }
    }

    /// The identifier of this queue in its context, as in [`AsyncEvent::SrqLimitReached`] and
    /// [`QpAttr::srq`](super::QpAttr::srq).
    pub fn id(&self) -> SrqId {
        self.queue.id()
    }

    pub(super) const fn context(&self) -> &Context {
        &self.context
    }

    pub(super) const fn queue(&self) -> &Arc<SharedRecvQueue> {
        &self.queue
    }
}
