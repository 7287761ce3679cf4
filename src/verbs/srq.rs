//! Shared receive queues.

use std::sync::Arc;

use crate::engine::AsyncEvent;
use crate::work::{RecvWr, SharedRecvQueue, SrqId};

use super::context::Context;
use super::error::{BadWr, PostError, VerbsError};
use super::post::post_each;

/// A shared receive queue: receive work requests for all queue pairs that were made with it
/// ([`QpConfig::srq`](super::QpConfig::srq)), each consumed by whichever has the next immediate. A server with many peers
/// posts for what it expects of all together, and not for the most that each may send.
///
/// The completion names the queue pair that consumed a request, and goes to that one's receive completion queue. What
/// the queue holds outlives the failure and the end of queue pairs: it is not flushed. An immediate that finds the
/// queue empty is an error for both sides, as with a queue of the queue pair's own; [`Srq::set_limit`] warns before.
///
/// Queue pairs of all lanes of its context may use it. Clones are handles to the same queue; any number of threads may
/// post through them, without a lock, and what is posted is there for immediates at once, in whatever state the queue pairs are.
///
/// In `libibverbs` a shared receive queue belongs to a protection domain, since its requests name memory. MRC's name none, so it
/// belongs to the context.
#[derive(Clone, Debug)]
pub struct Srq {
    context: Context,
    queue: Arc<SharedRecvQueue>,
}

/// What a shared receive queue is and holds (`ibv_query_srq`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqAttr {
    /// Receive work requests that it holds at most.
    pub max_wr: u32,
    /// The limit set by [`Srq::set_limit`]; 0 if none is, or it has been reached since.
    pub limit: u32,
    /// Receive work requests posted and not consumed.
    pub outstanding: u32,
}

impl Context {
    /// A shared receive queue for up to `max_wr` receive work requests that have not been consumed; at most
    /// [`Limits::max_srq_wr`](crate::endpoint::Limits::max_srq_wr). Each takes 16 bytes, posted or not.
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

    /// Posts a receive work request: room for one immediate (`ibv_post_srq_recv`).
    ///
    /// # Errors
    /// [`PostError::QueueFull`], [`PostError::LaneFailed`]; nothing has been posted then.
    #[inline]
    pub fn post_recv(&self, wr: RecvWr) -> Result<(), PostError> {
        if self.context.failure().is_some() {
            return Err(PostError::LaneFailed);
        }
        if self.queue.post(wr) { Ok(()) } else { Err(PostError::QueueFull { max: self.queue.max_wr() }) }
    }

    /// Posts a list of them, in order. What others post meanwhile may come in between.
    ///
    /// # Errors
    /// [`BadWr`] names the first that was not taken, and why. Those before it have been posted, none after it has.
    pub fn post_recvs(&self, wrs: &[RecvWr]) -> Result<(), BadWr> {
        post_each(wrs, |wr| self.post_recv(wr))
    }

    /// Asks for an event, [`AsyncEvent::SrqLimitReached`], once the queue holds fewer work requests than `limit`; at once if it
    /// does already (`ibv_modify_srq` with `IBV_SRQ_LIMIT`). One call, one event. 0 takes the wish back.
    ///
    /// # Errors
    /// [`VerbsError::OutOfRange`] when the queue never holds as many.
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

    /// What it is and holds. Asking costs the lanes nothing.
    pub fn query(&self) -> SrqAttr {
        let Self { queue, .. } = self;
        SrqAttr { max_wr: queue.max_wr(), limit: queue.limit(), outstanding: queue.outstanding() }
    }

    /// Which queue of its context this is, as [`AsyncEvent::SrqLimitReached`] and [`QpAttr::srq`](super::QpAttr::srq) name it.
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
