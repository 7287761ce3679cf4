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
pub(super) struct Gate {
    line: Mutex<Line>,
    clock: Clock,
}

#[derive(Debug)]
struct Line {
    taken: bool,
    waiting: VecDeque<Arc<Place>>,
    /// The lane is entitled to its own work until then; see [`CONTROL_SHARE`].
    not_before: Time,
}

/// The place of a sleeping caller.
#[derive(Debug)]
struct Place {
    thread: Thread,
    called: AtomicBool,
}

/// The right to lock the lane, released when dropped.
#[derive(Debug)]
pub(super) struct Pass<'a> {
    gate: &'a Gate,
    /// Time since which this call may have delayed the lane.
    asked: Option<Time>,
    not_before: Time,
}

impl Gate {
    pub(super) fn new(clock: Clock) -> Self {
        let line = Line { taken: false, waiting: VecDeque::new(), not_before: Time::ZERO };
        Self { line: Mutex::new(line), clock }
    }

    /// Waits until all earlier callers have left.
    pub(super) fn enter(&self) -> Pass<'_> {
        let mut line = self.line();
        if line.taken {
            let place = Arc::new(Place { thread: thread::current(), called: AtomicBool::new(false) });
            line.waiting.push_back(Arc::clone(&place));
            drop(line);
            while !place.called.load(Ordering::Acquire) {
                thread::park();
            }
            line = self.line();
        }
        line.taken = true;
        Pass { gate: self, asked: None, not_before: line.not_before }
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pass<'_> {
    /// Time for which the lane is still entitled to its own work, in nanoseconds.
    pub(super) fn wait_ns(&self) -> u64 {
        self.not_before.since(self.gate.clock.now())
    }

    /// From here on the call's time counts against the share of control calls.
    pub(super) fn ask(&mut self) {
        self.asked = Some(self.gate.clock.now());
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        let now = self.gate.clock.now();
        let mut line = self.gate.line();
        if let Some(asked) = self.asked {
            line.not_before = now.after(now.since(asked).saturating_mul(CONTROL_SHARE - 1));
        }
        // The gate stays taken during the transfer, so that no other caller gets in between.
        match line.waiting.pop_front() {
            Some(place) => {
                place.called.store(true, Ordering::Release);
                place.thread.unpark();
            }
            None => line.taken = false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lane_is_left_alone_for_as_long_as_its_share_says() {
        let gate = Gate::new(Clock::start());
        drop(gate.enter());
        assert_eq!(gate.enter().wait_ns(), 0, "who never asked for the lane cost it nothing");
        let mut pass = gate.enter();
        pass.asked = Some(Time(0));
        let before = gate.clock.now();
        drop(pass);
        let line = gate.line();
        assert!(line.not_before.0 >= before.0 * CONTROL_SHARE);
    }

    #[test]
    fn callers_pass_in_the_order_in_which_they_came() {
        let gate = Gate::new(Clock::start());
        let order = Mutex::new(Vec::new());
        let first = gate.enter();
        thread::scope(|scope| {
            for n in 0..5 {
                let (gate, order) = (&gate, &order);
                scope.spawn(move || {
                    let _pass = gate.enter();
                    order.lock().unwrap_or_else(PoisonError::into_inner).push(n);
                });
                while gate.line().waiting.len() <= n {
                    thread::yield_now();
                }
            }
            drop(first);
        });
        assert_eq!(order.into_inner().unwrap_or_default(), [0, 1, 2, 3, 4]);
        assert!(!gate.line().taken);
    }
}
