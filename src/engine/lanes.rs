//! The lanes of a context, as the verbs layer uses them.

use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use super::control_error::ControlError;
use super::cq::CqTable;
use super::lane::{Lane, PollMode};
use super::lane_handle::{LaneHandle, thread_token};
use super::lane_mode::{LaneMode, LaneStartError};
use super::lanes_shared::{EndLane, LanesShared};
use super::stats_snapshot::Snapshot;
use super::{AsyncEvents, LaneCounters};
use crate::counters::Counters;

/// All lanes of a context. When one panics, all end: posted requests are flushed, and new ones are refused.
pub(crate) struct Lanes {
    all: Box<[LaneHandle]>,
    common: Arc<LanesShared>,
    /// The lane that gets the next queue pair.
    next_lane: AtomicUsize,
    /// Operations that are not possible within a control call. Its thread runs them when the call is over.
    deferred: Mutex<Vec<Deferred>>,
}

struct Deferred {
    thread: usize,
    lane: usize,
    operation: Box<dyn FnOnce(&mut Lane) + Send>,
}

impl Lanes {
    /// Starts to drive lanes that were made for one context, in the order of their numbers.
    pub(crate) fn start(
        lanes: impl IntoIterator<Item = (Lane, LaneMode)>,
        common: Arc<LanesShared>,
    ) -> Result<Self, LaneStartError> {
        let (lanes, modes): (Vec<_>, Vec<_>) =
            lanes.into_iter().map(|(lane, mode)| (LaneHandle::new(lane, mode), mode)).unzip();
        let mut lanes = lanes.into_iter().collect::<Result<Vec<_>, _>>().map_err(LaneStartError::Sleep)?;
        common.set_lanes(
            lanes.iter().map(|lane| Box::new(Arc::downgrade(lane.shared())) as Box<dyn EndLane>).collect(),
        );
        for (lane, mode) in lanes.iter_mut().zip(modes) {
            lane.run(mode)?;
        }
        let (next_lane, deferred) = (AtomicUsize::new(0), Mutex::default());
        Ok(Self { all: lanes.into(), common, next_lane, deferred })
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Polls each lane that the application drives. If there is none, this only yields, so that a caller that waits in
    /// a loop does not starve them. Within a control call it does nothing.
    pub(crate) fn poll(&self, mode: PollMode) -> usize {
        if !self.all.iter().any(LaneHandle::is_polled) {
            thread::yield_now();
            return 0;
        }
        if self.is_locked_by_this_thread() {
            return 0;
        }
        self.all.iter().filter(|lane| lane.is_polled()).map(|lane| lane.poll(mode)).sum()
    }

    /// Polls one lane, in the same way.
    pub(crate) fn poll_lane(&self, lane: usize, mode: PollMode) -> usize {
        let lane = &self.all[lane];
        if !lane.is_polled() {
            thread::yield_now();
            return 0;
        }
        if self.is_locked_by_this_thread() { 0 } else { lane.poll(mode) }
    }

    /// Sleeps until a lane without a thread of its own has something to do, as [`LaneHandle::wait`].
    pub(crate) fn wait(&self, lane: usize, most: Duration) -> io::Result<()> {
        if self.is_locked_by_this_thread() { Ok(()) } else { self.all[lane].wait(most) }
    }

    /// Runs a control operation on one lane, as [`LaneHandle::control`].
    ///
    /// # Errors
    /// [`ControlError`], and the operation does not run.
    pub(crate) fn control<R>(
        &self,
        lane: usize,
        operation: impl FnOnce(&mut Lane) -> R,
    ) -> Result<R, ControlError> {
        self.common.check_not_forked()?;
        self.check_not_nested()?;
        let result = self.all[lane].control(operation);
        self.run_deferred();
        result
    }

    /// As [`Lanes::control`], for the end of an object; within a control call it runs when that one is over.
    pub(crate) fn control_deferred(&self, lane: usize, operation: impl FnOnce(&mut Lane) + Send + 'static) {
        if self.in_forked_child() {
            return;
        }
        if self.is_locked_by_this_thread() {
            let operation = Box::new(operation);
            self.deferred().push(Deferred { thread: thread_token(), lane, operation });
            return;
        }
        // Not nested: it runs, or the lane has failed together with all its objects.
        let _ = self.control(lane, operation);
    }

    fn run_deferred(&self) {
        loop {
            let mut deferred = self.deferred();
            let Some(next) = deferred.iter().position(|deferred| deferred.thread == thread_token()) else {
                return;
            };
            let Deferred { lane, operation, .. } = deferred.remove(next);
            drop(deferred);
            let _ = self.all[lane].control(operation);
        }
    }

    fn deferred(&self) -> MutexGuard<'_, Vec<Deferred>> {
        self.deferred.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the counters of a lane, as [`LaneHandle::counters`]. Within a control call, those of lanes without a
    /// thread of their own are from the last snapshot; for its own lane, from the start of the call.
    pub(crate) fn counters<R>(&self, lane: usize, pick: impl FnOnce(&Snapshot) -> R) -> R {
        let lane = &self.all[lane];
        if self.in_forked_child() {
            return lane.counters(pick);
        }
        if lane.is_locked_by_this_thread() || (lane.is_inline() && self.is_locked_by_this_thread()) {
            lane.cached_counters(pick)
        } else {
            lane.counters(pick)
        }
    }

    /// The sum of the transport's counters over all lanes.
    pub(crate) fn transport_counters(&self) -> Counters {
        let mut sum = Counters::default();
        (0..self.len()).for_each(|lane| self.counters(lane, |seen| sum.add(&seen.transport)));
        sum
    }

    /// The sum of the lanes' own counters.
    pub(crate) fn lane_counters(&self) -> LaneCounters {
        let mut sum = LaneCounters::default();
        (0..self.len()).for_each(|lane| self.counters(lane, |seen| sum.add(&seen.lane)));
        sum
    }

    /// # Errors
    /// [`ControlError::Forked`], [`ControlError::LaneFailed`].
    pub(crate) fn check_alive(&self) -> Result<(), ControlError> {
        self.common.check_alive()
    }

    /// As [`LanesShared::in_forked_child`].
    pub(crate) fn in_forked_child(&self) -> bool {
        self.common.in_forked_child()
    }

    /// The message of the first lane that panicked.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.common.failure()
    }

    pub(crate) fn async_events(&self) -> &AsyncEvents {
        &self.common.events
    }

    pub(crate) fn cqs(&self) -> &Arc<CqTable> {
        &self.common.cqs
    }

    /// Fails if the calling thread is in a control call, in which a wait for a lane might never end.
    ///
    /// # Errors
    /// [`ControlError::Nested`].
    pub(crate) fn check_not_nested(&self) -> Result<(), ControlError> {
        if self.is_locked_by_this_thread() { Err(ControlError::Nested) } else { Ok(()) }
    }

    /// For any lane: two threads that each hold one and wait for the other's would deadlock.
    fn is_locked_by_this_thread(&self) -> bool {
        self.all.iter().any(LaneHandle::is_locked_by_this_thread)
    }

    /// Whether a lane runs inside the caller's thread.
    pub(crate) fn is_inline(&self, lane: usize) -> bool {
        self.all[lane].is_inline()
    }

    /// Whether any lane does.
    pub(crate) fn any_inline(&self) -> bool {
        self.all.iter().any(LaneHandle::is_inline)
    }

    /// The lane of the next queue pair, in turn.
    pub(crate) fn next_lane(&self) -> usize {
        self.next_lane.fetch_add(1, Ordering::Relaxed) % self.len()
    }
}
