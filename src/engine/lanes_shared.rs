//! State that the lanes of a context share.

use core::sync::atomic::{AtomicBool, Ordering};
use std::io;
use std::sync::{Arc, OnceLock};

use spindrift_pmd::RxFrame;
use spindrift_pmd::fork::Home;

use super::async_events::{AsyncEvent, AsyncEvents};
use super::control_error::ControlError;
use super::cq::CqTable;
use super::forward_queue::ForwardQueue;
use crate::endpoint::Forward;

/// A lane that can be ended from another thread.
pub(super) trait EndLane: Send + Sync {
    /// Ends the lane, since it or another one has failed. Does nothing if the lane has been dropped.
    fn end_lane(&self);
}

/// Shared by the lanes of a context. A packet that arrives on its own lane needs none of it.
pub(crate) struct LanesShared {
    pub(crate) events: AsyncEvents,
    pub(crate) cqs: Arc<CqTable>,
    /// The process that the lanes work in.
    home: Home,
    /// The message of the first lane that panicked.
    failure: OnceLock<String>,
    /// The end of all lanes has been reported.
    failure_reported: AtomicBool,
    lanes: OnceLock<Box<[Box<dyn EndLane>]>>,
    /// One per lane, if there are several.
    pub(super) forward_queues: Box<[ForwardQueue]>,
}

impl LanesShared {
    /// Shared state for this number of lanes.
    pub(crate) fn new(lanes: usize) -> io::Result<Self> {
        let forward_queues = if lanes > 1 { lanes } else { 0 };
        Ok(Self {
            events: AsyncEvents::new()?,
            cqs: Arc::default(),
            home: Home::here(),
            failure: OnceLock::new(),
            failure_reported: AtomicBool::new(false),
            lanes: OnceLock::new(),
            forward_queues: (0..forward_queues).map(|_| ForwardQueue::new()).collect(),
        })
    }

    /// Whether this is a child of the process that the lanes work in. Locks may be held for ever there, and ports and
    /// descriptors belong to the parent too.
    #[inline]
    pub(crate) fn in_forked_child(&self) -> bool {
        self.home.is_elsewhere()
    }

    /// Sets the lanes that share this, before any of them runs.
    pub(super) fn set_lanes(&self, lanes: Box<[Box<dyn EndLane>]>) {
        let _ = self.lanes.set(lanes);
    }

    /// The forward queue of the lane with this number, if there are several lanes.
    pub(super) fn forward_queue(&self, lane: u32) -> Option<&ForwardQueue> {
        self.forward_queues.get(lane as usize)
    }

    /// Passes a frame to the lane that owns it; `false` if its forward queue is full.
    pub(super) fn forward_frame(&self, plane: u8, frame: &RxFrame<'_>, forward: Forward) -> bool {
        self.forward_queue(forward.to()).is_some_and(|queue| queue.push(plane, frame, forward))
    }

    /// A lane has panicked. The caller ends that lane and then, after releasing it, all others with
    /// [`LanesShared::end_all`].
    pub(super) fn fail(&self, message: String) {
        let _ = self.failure.set(message);
    }

    pub(super) fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    /// # Errors
    /// [`ControlError::Forked`].
    pub(super) fn check_not_forked(&self) -> Result<(), ControlError> {
        if self.in_forked_child() { Err(ControlError::Forked) } else { Ok(()) }
    }

    /// # Errors
    /// [`ControlError::Forked`], [`ControlError::LaneFailed`].
    pub(super) fn check_alive(&self) -> Result<(), ControlError> {
        self.check_not_forked()?;
        match self.failure() {
            Some(message) => Err(ControlError::LaneFailed(message.to_owned())),
            None => Ok(()),
        }
    }

    /// Ends all lanes after one has failed: posted requests are flushed everywhere before any completion queue ends.
    #[cold]
    pub(super) fn end_all(&self) {
        self.lanes.get().into_iter().flatten().for_each(|lane| lane.end_lane());
        self.cqs.fail();
        if !self.failure_reported.swap(true, Ordering::AcqRel) {
            self.events.push(AsyncEvent::LaneFailed);
        }
    }
}
