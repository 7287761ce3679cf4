//! Snapshots of a lane's counters for readers on other threads. They neither wait for the lane's lock nor slow the
//! lane down.
//!
//! A reader requests a snapshot and sleeps. The lane sees the request between two polls, publishes a copy of its
//! counters and its ports' variable state, and wakes all readers at once. While it is busy it does so at most once in
//! [`SNAPSHOT_NS`], while it is idle at once. The cost is therefore bounded for any number of readers. Without
//! readers it is one relaxed load per poll.

use core::sync::atomic::{AtomicBool, Ordering};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};

use spindrift_pmd::{LinkState, PortCounters};

use super::counters::LaneCounters;
use super::tuning::SNAPSHOT_NS;
use crate::counters::Counters;
use crate::time::Time;

/// The variable state of a port.
#[derive(Clone, Debug)]
pub(crate) struct PortSnapshot {
    pub(crate) link: LinkState,
    pub(crate) counters: PortCounters,
    pub(crate) notes: Vec<String>,
    pub(crate) send_errors: Vec<String>,
}

impl Default for PortSnapshot {
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
    pub(crate) ports: Vec<PortSnapshot>,
}

/// What a snapshot is taken of: a lane.
pub(super) trait SnapshotSource {
    fn now(&self) -> Time;

    /// Copies all counters to `snapshot`, without allocating after the first time.
    fn write_snapshot(&self, snapshot: &mut Snapshot);
}

/// The latest snapshot of a lane's counters.
#[derive(Debug, Default)]
pub(super) struct SnapshotCell {
    requested: AtomicBool,
    latest: Mutex<Latest>,
    published: Condvar,
}

#[derive(Debug, Default)]
struct Latest {
    generation: u64,
    snapshot: Snapshot,
    /// There is no further generation: the lane has ended.
    is_final: bool,
}

impl SnapshotCell {
    /// Reads a snapshot that is taken after the start of this call. `wake` wakes a lane that sleeps.
    pub(super) fn read<R>(&self, wake: impl FnOnce(), pick: impl FnOnce(&Snapshot) -> R) -> R {
        let mut latest = self.latest();
        let enough = latest.generation + 1;
        // Set under the lock: the lane clears it under the lock too, so the next generation is newer than this.
        self.requested.store(true, Ordering::Release);
        wake();
        while latest.generation < enough && !latest.is_final {
            latest = self.published.wait(latest).unwrap_or_else(PoisonError::into_inner);
        }
        pick(&latest.snapshot)
    }

    /// Reads the latest snapshot.
    pub(super) fn read_cached<R>(&self, pick: impl FnOnce(&Snapshot) -> R) -> R {
        pick(&self.latest().snapshot)
    }

    /// Whether a reader waits.
    #[inline]
    pub(super) fn is_requested(&self) -> bool {
        self.requested.load(Ordering::Relaxed)
    }

    /// Takes a new snapshot for the waiting readers, unless the last one is too recent or a reader is just reading:
    /// then the next poll tries again. The lane never waits here.
    pub(super) fn publish_if_due(&self, lane: &impl SnapshotSource, idle: bool, last: &mut Time) {
        let now = lane.now();
        if !idle && now.since(*last) < SNAPSHOT_NS {
            return;
        }
        let mut latest = match self.latest.try_lock() {
            Ok(latest) => latest,
            Err(TryLockError::Poisoned(latest)) => latest.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        *last = now;
        self.requested.store(false, Ordering::Relaxed);
        lane.write_snapshot(&mut latest.snapshot);
        latest.generation += 1;
        drop(latest);
        self.published.notify_all();
    }

    /// Publishes the lane's counters, for a caller who holds the lane.
    pub(super) fn publish(&self, lane: &impl SnapshotSource) {
        lane.write_snapshot(&mut self.latest().snapshot);
    }

    /// Publishes the last counters of a failed lane, as far as its ports can still report them, for all later
    /// readers.
    pub(super) fn close(&self, lane: &impl SnapshotSource) {
        let mut latest = self.latest();
        let _ = catch_unwind(AssertUnwindSafe(|| lane.write_snapshot(&mut latest.snapshot)));
        latest.is_final = true;
        drop(latest);
        self.published.notify_all();
    }

    fn latest(&self) -> MutexGuard<'_, Latest> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
