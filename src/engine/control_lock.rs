//! A fair lock for control calls, which limits their share of a lane's time.

use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread};

use super::clock::Clock;
use super::tuning::CONTROL_SHARE;
use crate::time::Time;

/// Admits one control call at a time, in order of arrival.
///
/// A mutex alone is not fair: a thread that releases it may take it again before a sleeping waiter has woken. So
/// callers queue up here and take the lane's mutex one by one.
#[derive(Debug)]
pub(super) struct FairLock {
    queue: Mutex<LockQueue>,
    clock: Clock,
}

#[derive(Debug)]
struct LockQueue {
    locked: bool,
    waiting: VecDeque<Arc<Waiter>>,
    /// The lane is entitled to its own work until then; see [`CONTROL_SHARE`].
    not_before: Time,
}

/// A sleeping caller.
#[derive(Debug)]
struct Waiter {
    thread: Thread,
    granted: AtomicBool,
}

/// The right to lock the lane, released when dropped.
#[derive(Debug)]
pub(super) struct FairLockGuard<'a> {
    lock: &'a FairLock,
    /// Time since which this call may have delayed the lane.
    charged_since: Option<Time>,
    not_before: Time,
}

impl FairLock {
    pub(super) fn new(clock: Clock) -> Self {
        let queue = LockQueue { locked: false, waiting: VecDeque::new(), not_before: Time::ZERO };
        Self { queue: Mutex::new(queue), clock }
    }

    /// Waits until all earlier callers have left.
    pub(super) fn lock(&self) -> FairLockGuard<'_> {
        let mut queue = self.queue();
        if queue.locked {
            let waiter = Arc::new(Waiter { thread: thread::current(), granted: AtomicBool::new(false) });
            queue.waiting.push_back(Arc::clone(&waiter));
            drop(queue);
            while !waiter.granted.load(Ordering::Acquire) {
                thread::park();
            }
            queue = self.queue();
        }
        queue.locked = true;
        FairLockGuard { lock: self, charged_since: None, not_before: queue.not_before }
    }

    fn queue(&self) -> MutexGuard<'_, LockQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FairLockGuard<'_> {
    /// Time for which the lane is still entitled to its own work, in nanoseconds.
    pub(super) fn remaining_wait_ns(&self) -> u64 {
        self.not_before.since(self.lock.clock.now())
    }

    /// From here on the call's time counts against the share of control calls.
    pub(super) fn start_charging(&mut self) {
        self.charged_since = Some(self.lock.clock.now());
    }
}

impl Drop for FairLockGuard<'_> {
    fn drop(&mut self) {
        let now = self.lock.clock.now();
        let mut queue = self.lock.queue();
        if let Some(charged_since) = self.charged_since {
            queue.not_before = now.after(now.since(charged_since).saturating_mul(CONTROL_SHARE - 1));
        }
        // The lock stays locked during the transfer, so that no other caller gets in between.
        match queue.waiting.pop_front() {
            Some(waiter) => {
                waiter.granted.store(true, Ordering::Release);
                waiter.thread.unpark();
            }
            None => queue.locked = false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lane_runs_alone_for_its_share_of_time() {
        let lock = FairLock::new(Clock::start());
        drop(lock.lock());
        assert_eq!(
            lock.lock().remaining_wait_ns(),
            0,
            "a caller that never started charging cost the lane nothing"
        );
        let mut guard = lock.lock();
        guard.charged_since = Some(Time(0));
        let before = lock.clock.now();
        drop(guard);
        let queue = lock.queue();
        assert!(queue.not_before.0 >= before.0 * CONTROL_SHARE);
    }

    #[test]
    fn callers_are_served_in_order_of_arrival() {
        let lock = FairLock::new(Clock::start());
        let order = Mutex::new(Vec::new());
        let first = lock.lock();
        thread::scope(|scope| {
            for n in 0..5 {
                let (lock, order) = (&lock, &order);
                scope.spawn(move || {
                    let _guard = lock.lock();
                    order.lock().unwrap_or_else(PoisonError::into_inner).push(n);
                });
                while lock.queue().waiting.len() <= n {
                    thread::yield_now();
                }
            }
            drop(first);
        });
        assert_eq!(order.into_inner().unwrap_or_default(), [0, 1, 2, 3, 4]);
        assert!(!lock.queue().locked);
    }
}
