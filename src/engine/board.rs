//! Counters of a lane for readers on other threads, who neither wait for the lane's lock nor slow the lane down.
//!
//! A reader raises a flag and sleeps; the lane sees the flag between two polls, copies its counters and what changes about its ports to the board and
//! wakes all readers at once. It does so at most once in [`SNAPSHOT_NS`] while it is busy, and at once while it is idle, so that
//! what readers cost is bounded however many there are. A lane that nobody asks pays one relaxed load per poll.

use core::sync::atomic::{AtomicBool, Ordering};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};

use spindrift_pmd::{LinkState, PortCounters};

use super::counters::LaneCounters;
use super::lane::Lane;
use super::tuning::SNAPSHOT_NS;
use crate::counters::Counters;
use crate::time::Time;

/// What changes about a port.
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

/// All that a lane counts, taken between two polls.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    pub(crate) transport: Counters,
    pub(crate) lane: LaneCounters,
    pub(crate) ports: Vec<PortNews>,
}

impl Snapshot {
    /// Takes the counters over, without allocating once it has been done.
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
            // They are never taken back.
            let errors = &port.caps().send_errors;
            if news.send_errors.len() != errors.len() {
                news.send_errors.clone_from(errors);
            }
        }
    }
}

/// Where a lane shows its counters.
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
    /// No edition follows: the lane has ended.
    last: bool,
}

impl Board {
    /// Reads a snapshot that is taken after this call began. `wake` rouses a lane that sleeps.
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

    /// Reads what is on the board.
    pub(super) fn read_as_it_is<R>(&self, pick: impl FnOnce(&Snapshot) -> R) -> R {
        pick(&self.page().snapshot)
    }

    /// Whether a reader waits.
    #[inline]
    pub(super) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    /// Renews the board for the readers who wait, unless that was done a moment ago or a reader is just reading: then
    /// the next poll tries again. The lane never waits here.
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

    /// Puts the lane's counters on the board, for a caller who holds the lane.
    pub(super) fn post(&self, lane: &Lane) {
        self.page().snapshot.refresh(lane);
    }

    /// Shows the last counters of a lane that has failed, as far as its ports can still tell, to all readers for ever.
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
