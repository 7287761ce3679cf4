//! State that the lanes of a context share.

use core::sync::atomic::{AtomicBool, Ordering};
use std::io;
use std::sync::{Arc, OnceLock, Weak};

use spindrift_pmd::RxFrame;
use spindrift_pmd::fork::Home;

use super::async_events::{AsyncEvent, AsyncEvents};
use super::cq::CqTable;
use super::handle::{ControlError, Shared};
use super::inbox::Inbox;
use crate::endpoint::Forward;

/// Shared by the lanes of a context. A packet that arrives on its own lane needs none of it.
#[derive(Debug)]
pub(crate) struct Common {
    pub(crate) events: AsyncEvents,
    pub(crate) cqs: Arc<CqTable>,
    /// The process that the lanes work in.
    home: Home,
    /// The message of the first lane that panicked.
    failure: OnceLock<String>,
    /// The end of all lanes has been reported.
    told: AtomicBool,
    lanes: OnceLock<Box<[Weak<Shared>]>>,
    /// One per lane, if there are several.
    pub(super) inboxes: Box<[Inbox]>,
}

impl Common {
    /// Shared state for this number of lanes.
    pub(crate) fn new(lanes: usize) -> io::Result<Self> {
        let inboxes = if lanes > 1 { lanes } else { 0 };
        Ok(Self {
            events: AsyncEvents::new()?,
            cqs: Arc::default(),
            home: Home::here(),
            failure: OnceLock::new(),
            told: AtomicBool::new(false),
            lanes: OnceLock::new(),
            inboxes: (0..inboxes).map(|_| Inbox::new()).collect(),
        })
    }

    /// Whether this is a child of the process that the lanes work in. Locks may be held for ever there, and ports and
    /// descriptors belong to the parent too.
    #[inline]
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.home.is_elsewhere()
    }

    /// Sets the lanes that share this, before any of them runs.
    pub(super) fn introduce(&self, lanes: Box<[Weak<Shared>]>) {
        let _ = self.lanes.set(lanes);
    }

    /// The inbox of the lane with this number, if there are several lanes.
    pub(super) fn inbox(&self, lane: u32) -> Option<&Inbox> {
        self.inboxes.get(lane as usize)
    }

    /// Passes a frame to the lane that owns it; `false` if its inbox is full.
    pub(super) fn hand_over(&self, plane: u8, frame: &RxFrame<'_>, forward: Forward) -> bool {
        self.inbox(forward.to()).is_some_and(|inbox| inbox.put(plane, frame, forward))
    }

    /// A lane has panicked. The caller ends that lane and then, after releasing it, all others with
    /// [`Common::end_all`].
    pub(super) fn fail(&self, message: String) {
        let _ = self.failure.set(message);
    }

    pub(super) fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    /// # Errors
    /// [`ControlError::Forked`].
    pub(super) fn check_home(&self) -> Result<(), ControlError> {
        if self.is_elsewhere() { Err(ControlError::Forked) } else { Ok(()) }
    }

    /// # Errors
    /// [`ControlError::Forked`], [`ControlError::LaneFailed`].
    pub(super) fn check_alive(&self) -> Result<(), ControlError> {
        self.check_home()?;
        match self.failure() {
            Some(message) => Err(ControlError::LaneFailed(message.to_owned())),
            None => Ok(()),
        }
    }

    /// Ends all lanes after one has failed: posted requests are flushed everywhere before any completion queue ends.
    #[cold]
    pub(super) fn end_all(&self) {
        let lanes = self.lanes.get().into_iter().flatten();
        lanes.filter_map(Weak::upgrade).for_each(|lane| lane.end());
        self.cqs.fail();
        if !self.told.swap(true, Ordering::AcqRel) {
            self.events.push(AsyncEvent::LaneFailed);
        }
    }
}
