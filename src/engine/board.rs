//! Snapshots of a lane's counters for readers on other threads. They neither wait for the lane's lock nor slow the
//! lane down.
//!
//! A reader raises a flag and sleeps. The lane sees the flag between two polls, copies its counters and its ports'
//! variable state to the board and wakes all readers at once. While it is busy it does so at most once in
//! [`SNAPSHOT_NS`], while it is idle at once. The cost is therefore bounded for any number of readers. Without
//! readers it is one relaxed load per poll.

use core::sync::atomic::{AtomicBool, Ordering};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};

use spindrift_pmd::{LinkState, PortCounters};

use super::counters::LaneCounters;
use super::lane::Lane;
use super::tuning::SNAPSHOT_NS;
use crate::counters::Counters;
use crate::time::Time;

/// The variable state of a port.
#[derive(Clone, Debug)]
pub(crate) struct PortNews {
    pub(crate) link: LinkState,
    pub(crate) counters: PortCounters,
    pub(crate) notes: Vec<String>,
    pub(crate) send_errors: Vec<String>,
}

impl Default for PortNews {
    fn default() -> Self {
        Self {
            link: LinkState::Up,
            counters: PortCounters::default(),
            notes: Vec::new(),
            send_errors: Vec::new(),
        }
    }
}

/// All counters of a lane, taken between two polls.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    pub(crate) transport: Counters,
    pub(crate) lane: LaneCounters,
    pub(crate) ports: Vec<PortNews>,
}

impl Snapshot {
    /// Copies the counters, without allocating after the first time.
    pub(super) fn refresh(&mut self, lane: &Lane) {
        self.transport.clone_from(lane.endpoint().counters());
        self.lane = lane.counters();
        self.ports.resize_with(lane.ports.len(), PortNews::default);
        for (plane, (news, port)) in (0..).zip(self.ports.iter_mut().zip(&lane.ports)) {
            news.link = lane.link(plane);
            news.counters = port.counters();
            let notes = &port.caps().notes;
            if news.notes != *notes {
                news.notes.clone_from(notes);
            }
            // Errors are never removed, so equal lengths mean equal lists.
            let errors = &port.caps().send_errors;
            if news.send_errors.len() != errors.len() {
                news.send_errors.clone_from(errors);
            }
        }
    }
}

/// The latest snapshot of a lane's counters.
#[derive(Debug, Default)]
pub(super) struct Board {
    wanted: AtomicBool,
    page: Mutex<Page>,
    renewed: Condvar,
}

#[derive(Debug, Default)]
struct Page {
    edition: u64,
    snapshot: Snapshot,
    /// There is no further edition: the lane has ended.
    last: bool,
}

impl Board {
    /// Reads a snapshot that is taken after the start of this call. `wake` wakes a lane that sleeps.
    pub(super) fn read<R>(&self, wake: impl FnOnce(), pick: impl FnOnce(&Snapshot) -> R) -> R {
        let mut page = self.page();
        let enough = page.edition + 1;
        // Raised under the lock: the lane lowers it under the lock too, so the next edition is newer than this.
        self.wanted.store(true, Ordering::Release);
        wake();
        while page.edition < enough && !page.last {
            page = self.renewed.wait(page).unwrap_or_else(PoisonError::into_inner);
        }
        pick(&page.snapshot)
    }

    /// Reads the latest snapshot.
    pub(super) fn read_as_it_is<R>(&self, pick: impl FnOnce(&Snapshot) -> R) -> R {
        pick(&self.page().snapshot)
    }

    /// Whether a reader waits.
    #[inline]
    pub(super) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    /// Takes a new snapshot for the waiting readers, unless the last one is too recent or a reader is just reading:
    /// then the next poll tries again. The lane never waits here.
    pub(super) fn renew(&self, lane: &Lane, idle: bool, last: &mut Time) {
        let now = lane.now();
        if !idle && now.since(*last) < SNAPSHOT_NS {
            return;
        }
        let mut page = match self.page.try_lock() {
            Ok(page) => page,
            Err(TryLockError::Poisoned(page)) => page.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        *last = now;
        self.wanted.store(false, Ordering::Relaxed);
        page.snapshot.refresh(lane);
        page.edition += 1;
        drop(page);
        self.renewed.notify_all();
    }

    /// Publishes the lane's counters, for a caller who holds the lane.
    pub(super) fn post(&self, lane: &Lane) {
        self.page().snapshot.refresh(lane);
    }

    /// Publishes the last counters of a failed lane, as far as its ports can still report them, for all later
    /// readers.
    pub(super) fn close(&self, lane: &Lane) {
        let mut page = self.page();
        let _ = catch_unwind(AssertUnwindSafe(|| page.snapshot.refresh(lane)));
        page.last = true;
        drop(page);
        self.renewed.notify_all();
    }

    fn page(&self) -> MutexGuard<'_, Page> {
        self.page.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
