//! The thread that drives a lane, and the access of other threads to the lane.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use core::time::Duration;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError, Weak, mpsc};
use std::thread::{self, JoinHandle};

use core_affinity::CoreId;
use spindrift_pmd::Port;

use super::clock::{Clock, process_time};
use super::control_error::ControlError;
use super::control_lock::FairLock;
use super::deferral::Deferral;
use super::lane::{Lane, PollMode};
use super::lane_mode::{Idle, LaneMode, LaneStartError, ThreadMode};
use super::lanes_shared::{EndLane, LanesShared};
use super::rings::Doorbells;
use super::stats_snapshot::{Snapshot, SnapshotCell};
use super::tuning::{CONTROL_SLEEP_NS, IDLE_POLLS, POLLS_PER_LOCK, YIELDS_BEFORE_SLEEP};
use super::waker::Waker;
use super::yield_backoff::YieldBackoff;
use crate::time::Time;

/// A lane and the thread that drives it, if it has one.
pub(super) struct LaneHandle {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// The application drives the lane, too.
    is_hybrid: bool,
}

/// The shared part of a lane.
pub(super) struct Shared {
    lane: Mutex<Lane>,
    common: Arc<LanesShared>,
    /// The thread that holds the lane, see [`thread_token`]; 0 if none does.
    owner: AtomicUsize,
    control_lock: FairLock,
    snapshot: SnapshotCell,
    /// The next control call waits for the lane. The lane's thread locks it again at once after each poll, and a
    /// mutex is not fair, so it must test this first.
    control_waiting: AtomicBool,
    /// Number of polls, and its value when the last control call ended.
    poll_batches: AtomicU32,
    last_control: AtomicU32,
    /// Number of polls by the application of a lane that has a thread, too, and how many of them in a row were empty.
    /// Changed with the lane locked.
    polls_in_place: AtomicU32,
    empty_in_place: AtomicU32,
    yields: YieldBackoff,
    /// The lane is idle.
    idle: AtomicBool,
    stop: AtomicBool,
    /// The lane has been ended, after it or another failed. Changed with the lane locked.
    ended: AtomicBool,
    /// Of a lane whose thread can sleep.
    sleep: OnceLock<SleepState>,
}

/// Wakes a lane from its nap.
struct SleepState {
    waker: Arc<Waker>,
    doorbells: Doorbells,
    number: u32,
}

impl SleepState {
    /// The nap of this lane. Posts wake it.
    fn new(lane: &Lane) -> io::Result<Self> {
        let waker = Arc::new(Waker::new(lane.ports.iter().flat_map(Port::readable))?);
        Ok(Self { doorbells: lane.set_waker(&waker), waker, number: lane.number() })
    }
}

/// The lane, locked.
struct LockedLane<'a> {
    lane: MutexGuard<'a, Lane>,
    owner: &'a AtomicUsize,
}

impl Drop for LockedLane<'_> {
    fn drop(&mut self) {
        self.owner.store(0, Ordering::Relaxed);
    }
}

/// A number that no other live thread has, and never 0.
pub(super) fn thread_token() -> usize {
    thread_local! {
        static MARK: u8 = const { 0 };
    }
    MARK.with(|mark| core::ptr::from_ref(mark).addr())
}

impl LaneHandle {
    /// A lane without a driver yet: [`LaneHandle::run`] follows.
    pub(super) fn new(lane: Lane, mode: LaneMode) -> io::Result<Self> {
        let sleep = match mode.thread() {
            Some(ThreadMode { idle: Idle::Nap(_), .. }) => SleepState::new(&lane)?.into(),
            _ => OnceLock::new(),
        };
        let shared = Arc::new(Shared {
            common: Arc::clone(lane.common()),
            lane: Mutex::new(lane),
            owner: AtomicUsize::new(0),
            control_lock: FairLock::new(Clock::start()),
            snapshot: SnapshotCell::default(),
            control_waiting: AtomicBool::new(false),
            poll_batches: AtomicU32::new(1),
            last_control: AtomicU32::new(0),
            polls_in_place: AtomicU32::new(0),
            empty_in_place: AtomicU32::new(0),
            yields: YieldBackoff::default(),
            idle: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            sleep,
        });
        Ok(Self { shared, thread: None, is_hybrid: matches!(mode, LaneMode::Hybrid { .. }) })
    }

    /// Starts the lane's own thread, if it is to have one.
    pub(super) fn run(&mut self, mode: LaneMode) -> Result<(), LaneStartError> {
        if let Some(mode) = mode.thread() {
            self.thread = Some(start_thread(&self.shared, mode)?);
        }
        Ok(())
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Polls the lane once. A lane with a thread of its own needs no call: then this only yields, so that a caller
    /// that waits in a loop does not starve the lane. Within a control call it does nothing.
    pub(super) fn poll(&self, mode: PollMode) -> usize {
        if self.is_hybrid {
            return self.poll_in_place(mode);
        }
        if self.thread.is_some() {
            thread::yield_now();
            return 0;
        }
        if self.shared.is_locked_by_this_thread() || self.shared.common.in_forked_child() {
            return 0;
        }
        let mut held = self.shared.lock();
        if self.shared.failed() {
            return 0;
        }
        self.shared.count_poll_batch();
        match self.shared.catch_panic(&mut held.lane, |lane| lane.poll_as(mode)) {
            Ok(work) => work,
            Err(panic) => {
                drop(held);
                self.shared.common.end_all();
                resume_unwind(panic)
            }
        }
    }

    /// Polls a lane that has a thread of its own, too, unless another thread holds it.
    fn poll_in_place(&self, mode: PollMode) -> usize {
        let shared = &*self.shared;
        if shared.common.in_forked_child() || shared.failed() {
            return 0;
        }
        let locked = if shared.is_control_waiting() { None } else { shared.try_lock() };
        let Some(mut held) = locked else {
            // Its holder may wait for this core.
            thread::yield_now();
            return 0;
        };
        // A panic was printed where it occurred, and has been reported. The lane's thread ends the other lanes.
        let work = shared.catch_panic(&mut held.lane, |lane| lane.poll_as(mode)).unwrap_or(0);
        let is_idle = shared.count_in_place(work);
        drop(held);
        if work > 0 || shared.failed() {
            // A thread that naps does not know of timers that were set here. Awake, it leaves the lane to the caller.
            shared.wake();
        } else if is_idle && shared.yields.may_yield() {
            let began = process_time();
            thread::yield_now();
            shared.yields.yielded(process_time().since(began));
        }
        work
    }

    /// Sleeps until a lane that runs inside the caller's thread has work, or for this long, if its last poll was
    /// idle. The first call only sets up the wake-up.
    pub(super) fn wait(&self, most: Duration) -> io::Result<()> {
        if self.shared.common.in_forked_child() {
            return Err(io::Error::other(ControlError::Forked));
        }
        if self.thread.is_some() {
            thread::yield_now();
            return Ok(());
        }
        if self.shared.is_locked_by_this_thread() {
            return Ok(());
        }
        let mut held = self.shared.lock();
        if self.shared.sleep.get().is_none() {
            let _ = self.shared.sleep.set(SleepState::new(&held.lane)?);
            // A thread that posts now does not know the waker yet, so one more poll comes first.
            return Ok(());
        }
        if self.shared.failed() || !held.lane.is_idle() {
            return Ok(());
        }
        let nap_ns = nap(&mut held.lane, most);
        drop(held);
        self.shared.sleep(nap_ns);
        Ok(())
    }

    /// Runs a control operation between two polls. It sees everything posted before, and everything that it completes
    /// is in the completion queues when it returns.
    ///
    /// Calls are served in order of arrival. A busy lane with a thread of its own gives them one part in
    /// [`CONTROL_SHARE`](super::tuning::CONTROL_SHARE) of its time; an idle one serves one call per poll.
    ///
    /// # Errors
    /// [`ControlError`], and the operation does not run.
    pub(super) fn control<R>(&self, operation: impl FnOnce(&mut Lane) -> R) -> Result<R, ControlError> {
        self.shared.common.check_not_forked()?;
        let mut guard = self.shared.control_lock.lock();
        if self.is_hybrid {
            // Its thread may leave polls to the application, which is here.
            self.poll_in_place(PollMode::MayPause);
        }
        if self.thread.is_some() {
            self.shared.wait_for_control_share(|| guard.remaining_wait_ns());
        }
        guard.start_charging();
        self.shared.control_waiting.store(true, Ordering::Release);
        let mut held = self.shared.lock();
        self.shared.control_waiting.store(false, Ordering::Release);
        self.shared.common.check_alive()?;
        let lane = &mut *held.lane;
        lane.drain();
        // For reads of counters within the operation.
        self.shared.snapshot.publish(lane);
        let result = operation(lane);
        lane.drain();
        self.shared.last_control.store(self.shared.poll_batches.load(Ordering::Relaxed), Ordering::Relaxed);
        drop(held);
        // The operation may have brought a timer forward.
        self.shared.wake();
        Ok(result)
    }

    /// Reads the lane's counters as of a time after the start of this call, including all work of the lane that the
    /// caller has seen. Any number of concurrent readers costs a lane with a thread of its own no more than one.
    pub(super) fn counters<R>(&self, pick: impl FnOnce(&Snapshot) -> R) -> R {
        if self.shared.common.in_forked_child() {
            return pick(&Snapshot::default());
        }
        if self.thread.is_some() {
            return self.shared.snapshot.read(|| self.shared.wake(), pick);
        }
        // A control call takes a snapshot itself, so there is no work left within one.
        let _ = self.control(|_| ());
        self.cached_counters(pick)
    }

    /// Reads the last snapshot of the counters.
    pub(super) fn cached_counters<R>(&self, pick: impl FnOnce(&Snapshot) -> R) -> R {
        self.shared.snapshot.read_cached(pick)
    }

    /// Whether the calling thread is in a control call of this lane.
    pub(super) fn is_locked_by_this_thread(&self) -> bool {
        self.shared.is_locked_by_this_thread()
    }

    /// Whether calls of [`LaneHandle::poll`] drive the lane.
    pub(super) fn is_polled(&self) -> bool {
        self.is_hybrid || self.is_inline()
    }

    /// Whether the lane runs inside the caller's thread only.
    pub(super) fn is_inline(&self) -> bool {
        self.thread.is_none()
    }
}

impl Drop for LaneHandle {
    fn drop(&mut self) {
        if self.shared.common.in_forked_child() {
            // The thread is the parent's. Ending the lane here would remove its ports' programs and rules.
            let _ = Box::leak(Box::new((Arc::clone(&self.shared), self.thread.take())));
            return;
        }
        self.shared.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            self.shared.wake();
            thread.thread().unpark();
            // The lane's thread has reported its panic; nothing else is to be done.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// An application's operation that panicked with the lane locked does not stop the lane.
    fn lock(&self) -> LockedLane<'_> {
        let lane = self.lane.lock().unwrap_or_else(PoisonError::into_inner);
        self.owner.store(thread_token(), Ordering::Relaxed);
        LockedLane { lane, owner: &self.owner }
    }

    /// The lane, unless a thread has it locked, perhaps this one.
    fn try_lock(&self) -> Option<LockedLane<'_>> {
        let lane = match self.lane.try_lock() {
            Ok(lane) => lane,
            Err(TryLockError::Poisoned(lane)) => lane.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        self.owner.store(thread_token(), Ordering::Relaxed);
        Some(LockedLane { lane, owner: &self.owner })
    }

    fn failed(&self) -> bool {
        self.common.failure().is_some()
    }

    /// Runs the lane. If it panics, all its users are notified before another thread can lock it.
    fn catch_panic<R>(&self, lane: &mut Lane, work: impl FnOnce(&mut Lane) -> R) -> thread::Result<R> {
        // The state after a panic is not used again: the lane flushes what it can and stops.
        let result = catch_unwind(AssertUnwindSafe(|| work(lane)));
        if let Err(panic) = &result {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            let text = text.unwrap_or("without a message");
            tracing::error!(target: "spindrift::lane", message_of_panic = text, "lane panicked");
            self.common.fail(format!("it panicked: {text}"));
            self.end_locked(lane);
        }
        result
    }

    fn end_locked(&self, lane: &mut Lane) {
        if !self.ended.swap(true, Ordering::Relaxed) {
            lane.fail_all_qps();
            self.snapshot.close(lane);
        }
    }

    /// Whether the calling thread holds the lane. Only the owner writes its own number, so no order is needed.
    fn is_locked_by_this_thread(&self) -> bool {
        self.owner.load(Ordering::Relaxed) == thread_token()
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn is_control_waiting(&self) -> bool {
        self.control_waiting.load(Ordering::Acquire)
    }

    /// Waits, as the next control call, until the lane must serve it: an idle lane after one poll since the last
    /// call, a busy one after its share of time.
    fn wait_for_control_share(&self, wait_ns: impl Fn() -> u64) {
        let mut tries = 0;
        while !self.stopped() && !self.failed() {
            let rest = if self.idle.load(Ordering::Relaxed) { 0 } else { wait_ns() };
            let polled = !self.control_since_last_poll();
            if rest == 0 && polled {
                return;
            }
            if !polled {
                self.wake();
            }
            tries += 1;
            if rest == 0 && tries < YIELDS_BEFORE_SLEEP {
                thread::yield_now();
            } else {
                thread::park_timeout(Duration::from_nanos(rest.clamp(1, CONTROL_SLEEP_NS)));
            }
        }
    }

    /// Only the thread that holds the lane counts polls.
    fn count_poll_batch(&self) {
        self.poll_batches.store(self.poll_batches.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Counts a poll by the application that found this much work, of a lane that has a thread, too. Returns whether
    /// the lane is idle. Only the thread that holds the lane calls this.
    fn count_in_place(&self, work: usize) -> bool {
        let polls = self.polls_in_place.load(Ordering::Relaxed);
        self.polls_in_place.store(polls.wrapping_add(1), Ordering::Relaxed);
        let empty = if work > 0 { 0 } else { self.empty_in_place.load(Ordering::Relaxed).saturating_add(1) };
        self.empty_in_place.store(empty, Ordering::Relaxed);
        let is_idle = empty >= IDLE_POLLS;
        self.idle.store(is_idle, Ordering::Relaxed);
        self.yields.polled(work > 0);
        self.count_poll_batch();
        is_idle
    }

    /// Whether a control call has run since the last poll.
    fn control_since_last_poll(&self) -> bool {
        self.poll_batches.load(Ordering::Relaxed) == self.last_control.load(Ordering::Relaxed)
    }

    /// The main loop of a lane's thread.
    fn run(&self, mode: ThreadMode) {
        let (mut idle_tracker, mut deferral) = (IdleTracker::new(mode.idle_after), Deferral::default());
        while !self.stopped() && !self.failed() {
            while self.is_control_waiting() && !self.stopped() {
                thread::yield_now();
            }
            let Ok(was_deferred) = self.defer(&mut deferral, thread::park_timeout) else { continue };
            let nap_ns = self.poll_batch(&mut idle_tracker, mode);
            if was_deferred && idle_tracker.found_work {
                deferral.missed();
            }
            if nap_ns == 0 && idle_tracker.is_idle() && mode.idle != Idle::Spin {
                thread::yield_now();
            }
            self.sleep(nap_ns);
        }
        if self.failed() {
            self.common.end_all();
        }
    }

    /// Leaves the lane to an application that polls it, too. Returns whether it was left for a while, in which nobody
    /// polled it.
    ///
    /// # Errors
    /// The application has polled it meanwhile: it needs no poll now.
    fn defer(&self, deferral: &mut Deferral, sleep: impl FnOnce(Duration)) -> Result<bool, PolledInPlace> {
        let sleep_ns = deferral.next(self.polls_in_place.load(Ordering::Relaxed));
        if sleep_ns == 0 || self.snapshot.is_requested() {
            return Ok(false);
        }
        sleep(Duration::from_nanos(sleep_ns));
        let has_polled = deferral.has_polled(self.polls_in_place.load(Ordering::Relaxed));
        // Only the thread takes snapshots.
        if has_polled && !self.snapshot.is_requested() { Err(PolledInPlace) } else { Ok(!has_polled) }
    }

    /// Sleeps for at most this long, in nanoseconds, unless there is work.
    fn sleep(&self, nap_ns: u64) {
        let Some(SleepState { waker, doorbells, number }) = self.sleep.get().filter(|_| nap_ns > 0) else {
            return;
        };
        let queue = self.common.forward_queue(*number);
        waker.nap(Duration::from_nanos(nap_ns), || {
            let is_posted = !doorbells.is_empty() || queue.is_some_and(|queue| !queue.is_empty());
            // A control call since the last poll may have brought a timer forward.
            is_posted
                || self.control_since_last_poll()
                || self.snapshot.is_requested()
                || self.stopped()
                || self.failed()
        });
    }

    /// Wakes the thread that sleeps for the lane.
    fn wake(&self) {
        if let Some(SleepState { waker, .. }) = self.sleep.get() {
            waker.wake();
        }
    }

    /// Some polls under one lock. Returns how long the thread may sleep now, in nanoseconds.
    fn poll_batch(&self, idle_tracker: &mut IdleTracker, mode: ThreadMode) -> u64 {
        let mut held = self.lock();
        // The panic was printed where it occurred, and has been reported.
        self.catch_panic(&mut held.lane, |lane| self.poll_locked(lane, idle_tracker, mode)).unwrap_or(0)
    }

    fn poll_locked(&self, lane: &mut Lane, idle_tracker: &mut IdleTracker, mode: ThreadMode) -> u64 {
        idle_tracker.found_work = false;
        for _ in 0..POLLS_PER_LOCK {
            idle_tracker.count(lane.poll());
            if self.snapshot.is_requested() {
                self.snapshot.publish_if_due(lane, idle_tracker.is_idle(), &mut idle_tracker.snapshot_at);
            }
            if idle_tracker.is_idle() || self.is_control_waiting() || self.stopped() {
                break;
            }
        }
        self.count_poll_batch();
        self.idle.store(idle_tracker.is_idle(), Ordering::Relaxed);
        match mode.idle {
            // A reader may have blocked the snapshot that it waits for.
            Idle::Nap(_) if self.snapshot.is_requested() => 0,
            Idle::Nap(most) if idle_tracker.idle_polls >= mode.nap_after => nap(lane, most),
            _ => 0,
        }
    }
}

impl EndLane for Weak<Shared> {
    fn end_lane(&self) {
        if let Some(lane) = self.upgrade() {
            lane.end_locked(&mut lane.lock().lane);
        }
    }
}

/// Time for which a lane may sleep now, in nanoseconds: at most this.
fn nap(lane: &mut Lane, most: Duration) -> u64 {
    lane.note_sleep();
    let most = u64::try_from(most.as_nanos()).unwrap_or(u64::MAX);
    most.min(lane.next_timer().since(lane.now()))
}

/// Another thread has polled the lane.
struct PolledInPlace;

/// Load of a lane, as its thread sees it.
#[derive(Debug)]
struct IdleTracker {
    idle_after: u32,
    /// Consecutive empty polls.
    idle_polls: u32,
    /// One of the last batch of polls was not empty.
    found_work: bool,
    snapshot_at: Time,
}

impl IdleTracker {
    const fn new(idle_after: u32) -> Self {
        Self { idle_after, idle_polls: 0, found_work: false, snapshot_at: Time(0) }
    }

    fn count(&mut self, work: usize) {
        self.found_work |= work > 0;
        self.idle_polls = if work == 0 { self.idle_polls.saturating_add(1) } else { 0 };
    }

    fn is_idle(&self) -> bool {
        self.idle_polls >= self.idle_after
    }
}

#[expect(clippy::disallowed_methods, reason = "a lane's thread is the one kind of thread the transport has")]
fn start_thread(shared: &Arc<Shared>, mode: ThreadMode) -> Result<JoinHandle<()>, LaneStartError> {
    let (report, bound) = mpsc::sync_channel(1);
    let ThreadMode { core, idle, .. } = mode;
    let name = core.map_or_else(|| "spindrift-lane".to_owned(), |core| format!("spindrift-{core}"));
    let shared = Arc::clone(shared);
    let thread = thread::Builder::new().name(name).spawn(move || {
        let on_core = core.is_none_or(|id| core_affinity::set_for_current(CoreId { id }));
        // The receiver waits for exactly this message.
        let _ = report.send(on_core);
        if on_core {
            tracing::info!(target: "spindrift::lane", core, ?idle, "lane started");
            shared.run(mode);
            tracing::info!(target: "spindrift::lane", core, "lane stopped");
        }
    })?;
    match (core, bound.recv()) {
        (Some(core), Ok(false)) => Err(LaneStartError::Core { core }),
        _ => Ok(thread),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tests::lane;

    /// A lane whose thread is this test.
    #[test]
    fn a_thread_leaves_its_lane_to_an_application_that_polls() {
        let handle = LaneHandle::new(lane(1), LaneMode::Hybrid { nap: Duration::ZERO }).unwrap();
        let (shared, mut deferral) = (handle.shared(), Deferral::default());
        let poll = || assert_eq!(handle.poll(PollMode::MayPause), 0);
        while handle.poll(PollMode::MayPause) > 0 {}
        shared.defer(&mut deferral, drop).ok().unwrap();
        let never = |_| panic!("nobody has polled");
        assert_eq!(shared.defer(&mut deferral, never).ok(), Some(false));
        for _ in 0..3 {
            poll();
            assert!(shared.defer(&mut deferral, |_| poll()).is_err(), "it needs no poll");
        }
        poll();
        assert_eq!(shared.defer(&mut deferral, drop).ok(), Some(true), "the application has stopped");
        // Calls of the application that find the lane locked are none of its polls.
        let held = shared.lock();
        std::thread::scope(|scope| scope.spawn(poll).join().unwrap());
        drop(held);
        assert_eq!(shared.defer(&mut deferral, never).ok(), Some(false));
        assert!(!shared.idle.load(Ordering::Relaxed));
        (0..IDLE_POLLS).for_each(|_| poll());
        assert!(shared.idle.load(Ordering::Relaxed));
    }

    /// Only the thread takes snapshots: whoever waits for one does not wait for the application.
    #[test]
    fn a_thread_whose_snapshot_is_wanted_polls() {
        let handle = LaneHandle::new(lane(1), LaneMode::Hybrid { nap: Duration::ZERO }).unwrap();
        let (shared, mut deferral) = (handle.shared(), Deferral::default());
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| shared.snapshot.read(|| (), |_| ()));
            while !shared.snapshot.is_requested() {
                thread::yield_now();
            }
            handle.poll(PollMode::MayPause);
            let never = |_| panic!("a reader waits");
            assert_eq!(shared.defer(&mut deferral, never).ok(), Some(false));
            shared.end_locked(&mut shared.lock().lane);
            reader.join().unwrap();
        });
    }
}
