//! Who drives a lane, and how others reach it meanwhile.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use core::time::Duration;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, JoinHandle};

use core_affinity::CoreId;

use super::lane::Lane;
use super::tuning::{IDLE_POLLS, POLLS_PER_LOCK, YIELDS_BEFORE_NAP};

/// Who drives a lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LaneMode {
    /// The application, by calling `poll` often. The lowest latency, and nothing happens in between:
    /// no acknowledgement, no retransmission.
    #[default]
    Inline,
    /// A thread of the lane's own.
    Thread {
        /// The core to run on; anywhere when not given.
        core: Option<usize>,
        /// What to do when there is nothing to do.
        idle: Idle,
    },
}

/// What a lane's own thread does when there is nothing to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Idle {
    /// Polls on: for a core that the lane has to itself.
    Spin,
    /// Gives the core to whoever else wants it after some tens of microseconds, between polls: for shared cores.
    #[default]
    Yield,
    /// As [`Idle::Yield`], and after about a millisecond sleeps for this long (or to the next timer) between polls. What arrives meanwhile waits as long.
    Nap(Duration),
}

/// A lane could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaneStartError {
    /// The system gave no thread.
    #[error("the lane's thread could not be started: {0}")]
    Thread(#[from] io::Error),
    /// The thread could not be bound to the core.
    #[error("the lane's thread could not be bound to core {core}; choose one that this process may use")]
    Core {
        /// The core asked for.
        core: usize,
    },
}

/// A lane and the thread that drives it, if it has one.
pub(crate) struct LaneHandle {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    lane: Mutex<Lane>,
    /// Control calls that wait for the lane. The lane's thread locks it again at once after
    /// each turn, and a mutex is not fair, so it must look here first.
    control_waiting: AtomicU32,
    stop: AtomicBool,
}

impl LaneHandle {
    /// Starts to drive a lane.
    pub(crate) fn start(lane: Lane, mode: LaneMode) -> Result<Self, LaneStartError> {
        let shared = Arc::new(Shared {
            lane: Mutex::new(lane),
            control_waiting: AtomicU32::new(0),
            stop: AtomicBool::new(false),
        });
        let thread = match mode {
            LaneMode::Inline => None,
            LaneMode::Thread { core, idle } => Some(start_thread(&shared, core, idle)?),
        };
        Ok(Self { shared, thread })
    }

    /// One turn of the lane. A lane with a thread of its own needs none: then this gives the core away for a moment,
    /// so that a caller who waits in a loop does not starve the lane.
    pub(crate) fn poll(&self) -> usize {
        if self.thread.is_some() {
            thread::yield_now();
            return 0;
        }
        self.shared.lock().poll()
    }

    /// Runs a control operation between two polls. Everything posted before it is seen by it, and
    /// everything it completes is in the completion queues when it returns.
    pub(crate) fn control<R>(&self, operation: impl FnOnce(&mut Lane) -> R) -> R {
        self.shared.control_waiting.fetch_add(1, Ordering::AcqRel);
        let mut lane = self.shared.lock();
        self.shared.control_waiting.fetch_sub(1, Ordering::AcqRel);
        lane.settle();
        let result = operation(&mut lane);
        lane.settle();
        result
    }
}

impl Drop for LaneHandle {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic of the lane has been reported by its thread; there is nothing left to save.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// A lane whose thread panicked is still consistent enough to be asked and to be dropped.
    fn lock(&self) -> MutexGuard<'_, Lane> {
        self.lane.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn control_waits(&self) -> bool {
        self.control_waiting.load(Ordering::Acquire) != 0
    }

    /// The life of a lane's thread.
    fn run(&self, idle: Idle) {
        let mut idle_polls = 0;
        while !self.stopped() {
            while self.control_waits() && !self.stopped() {
                thread::yield_now();
            }
            let nap_ns = self.turn(&mut idle_polls, idle);
            if idle_polls >= IDLE_POLLS && idle != Idle::Spin {
                thread::yield_now();
            }
            if nap_ns > 0 && !self.stopped() {
                thread::park_timeout(Duration::from_nanos(nap_ns));
            }
        }
    }

    /// Some polls under one lock. Returns how long the thread may sleep now, in nanoseconds.
    fn turn(&self, idle_polls: &mut u32, idle: Idle) -> u64 {
        let mut lane = self.lock();
        for _ in 0..POLLS_PER_LOCK {
            *idle_polls = if lane.poll() == 0 { idle_polls.saturating_add(1) } else { 0 };
            let look_up = *idle_polls >= IDLE_POLLS || self.stopped();
            if look_up || self.control_waits() {
                break;
            }
        }
        match idle {
            Idle::Nap(nap) if *idle_polls >= IDLE_POLLS + YIELDS_BEFORE_NAP => {
                (nap.as_nanos() as u64).min(lane.next_timer().since(lane.now()))
            }
            _ => 0,
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "a lane's thread is the one kind of thread the transport has")]
fn start_thread(
    shared: &Arc<Shared>,
    core: Option<usize>,
    idle: Idle,
) -> Result<JoinHandle<()>, LaneStartError> {
    let (report, bound) = mpsc::sync_channel(1);
    let name = core.map_or_else(|| "spindrift-lane".to_owned(), |core| format!("spindrift-{core}"));
    let shared = Arc::clone(shared);
    let thread = thread::Builder::new().name(name).spawn(move || {
        let on_core = core.is_none_or(|id| core_affinity::set_for_current(CoreId { id }));
        // The receiver waits for exactly this message.
        let _ = report.send(on_core);
        if on_core {
            shared.run(idle);
        }
    })?;
    match (core, bound.recv()) {
        (Some(core), Ok(false)) => Err(LaneStartError::Core { core }),
        _ => Ok(thread),
    }
}
