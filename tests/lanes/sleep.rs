//! Lanes that sleep until there is something to do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use spindrift::endpoint::FailReason;
use spindrift::pmd::Port;
use spindrift::pmd::loopback::{self, LoopbackConfig};
use spindrift::pmd::udp::{UdpConfig, UdpPort};
use spindrift::verbs::{
    Context, ContextConfig, Idle, LaneMode, QpConfig, QpModify, RetryAttr, RtsAttr, WcStatus, nic,
};

use crate::connected_pair::{HYBRID, Side, THREAD, connect, returns, side, side_on, until, write};
use crate::multi_lane::{next, open, pair_at, ports, write as write_of_many};

const HOUR: Duration = Duration::from_hours(1);
const NAPPING: LaneMode = LaneMode::Thread { core: None, idle: Idle::Nap(HOUR) };

/// Long enough for a lane with nothing to do to fall asleep: nothing tells that it has.
const SETTLE: Duration = Duration::from_millis(5);

/// Without timers that would wake a lane in the time that a test takes.
fn patience() -> RtsAttr {
    RtsAttr { timeout: 24, exponential_retries: 25, ..RtsAttr::default() }
}

#[expect(clippy::disallowed_methods, reason = "nothing tells of a lane that sleeps")]
pub(crate) fn settle() {
    std::thread::sleep(SETTLE);
}

/// Drives a lane without a thread of its own as an application does that sleeps when there is nothing to do.
struct Sleeper {
    context: Context,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Sleeper {
    fn start(context: &Context, lane: usize) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (own, stopped) = (context.clone(), Arc::clone(&stop));
        #[expect(clippy::disallowed_methods, reason = "the lane of an application")]
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                if own.poll_lane(lane) == 0 {
                    own.wait_lane(lane, HOUR).unwrap();
                }
            }
        });
        Self { context: context.clone(), stop, thread: Some(thread) }
    }

    /// For lanes without threads of their own.
    fn of(context: &Context, lane: usize, mode: LaneMode) -> Option<Self> {
        (mode == LaneMode::Inline).then(|| Self::start(context, lane))
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // A control call wakes whoever sleeps.
        self.context.lane_counters();
        self.thread.take().unwrap().join().unwrap();
    }
}

/// A side over kernel sockets that no tail probe wakes.
fn over_sockets(last: u8, mode: LaneMode) -> Side {
    let planes = [last, last + 1].map(|last| -> Box<dyn Port> {
        let local = [127, 83, 10, last].into();
        Box::new(UdpPort::open(&UdpConfig { local, ..UdpConfig::default() }).unwrap())
    });
    patient(planes.into(), mode)
}

fn patient(ports: Vec<Box<dyn Port>>, mode: LaneMode) -> Side {
    let mut settings = ContextConfig { seed: Some(1.into()), ..ContextConfig::new(&ports).lane(mode) };
    settings.endpoint.tail_probe_floor_ns = 1 << 50;
    let config = QpConfig { retry: patience(), ..QpConfig::default() };
    side_on(Context::open(ports, settings).unwrap(), &config, 256)
}

/// Both sleep while nothing happens, and what is posted or arrives wakes them long before any timer.
#[test]
fn what_arrives_and_what_is_posted_ends_a_nap() {
    for (mode, at) in [(NAPPING, 1), (LaneMode::Inline, 5), (HYBRID, 19)] {
        let (mut left, mut right) = (over_sockets(at, mode), over_sockets(at + 2, mode));
        connect(&mut left, &mut right);
        let _sleepers = [&left, &right].map(|side| Sleeper::of(&side.context, 0, mode));
        for wr_id in 0..20 {
            settle();
            left.qp.post_send(write(&left, &right, wr_id, 64)).unwrap();
            let wc = until("a completion", || left.cq.poll_one().unwrap());
            assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::Success));
        }
        let counters = left.context.counters();
        assert_eq!(counters.tx_retransmits + counters.tx_tail_probes + counters.timeouts, 0, "{counters:?}");
    }
}

/// The thread that posts is the one that sleeps.
#[test]
fn an_application_may_sleep_between_messages() {
    let [mut left, mut right] = [9, 11].map(|at| over_sockets(at, LaneMode::Inline));
    connect(&mut left, &mut right);
    returns("a lane that is woken", move || {
        let _sleeper = Sleeper::start(&right.context, 0);
        for wr_id in 0..200 {
            left.qp.post_send(write(&left, &right, wr_id, 64)).unwrap();
            let wc = loop {
                if let Some(wc) = left.cq.poll_one().unwrap() {
                    break wc;
                }
                if left.context.poll_lane(0) == 0 {
                    left.context.wait_lane(0, HOUR).unwrap();
                }
            };
            assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::Success));
        }
    });
}

/// Frames for a lane that would nap for an hour wake it.
#[test]
fn what_another_lane_hands_over_ends_a_nap() {
    for mode in [NAPPING, LaneMode::Inline] {
        let (left, right) = ports(2, 1);
        let settings = ContextConfig::new(&right[0]).lanes([THREAD, mode]);
        let right = Context::open_lanes(right, settings).unwrap();
        let (mut left, right) = pair_at([open(left, THREAD), right], 1, [|_| 0, |_| 1]);
        let _sleeper = Sleeper::of(&right.context, 1, mode);
        for wr_id in 0..20 {
            settle();
            let wr = write_of_many(&left, &right, 0, wr_id);
            left.qps[0].post_send(wr).unwrap();
            assert_eq!(next(&mut left, &right).wr_id, wr_id);
        }
        assert!(right.context.counters_of(1).1.taken_over > 0);
    }
}

/// A peer that is silent, and a lane that sleeps until the timer: a shorter timeout wakes it, and then it is the timer
/// that does.
#[test]
fn a_shorter_timeout_ends_a_nap_that_has_begun() {
    for mode in [NAPPING, LaneMode::Inline, HYBRID] {
        let (left, right) = loopback::pair(1, LoopbackConfig::default());
        let mut left = patient(nic(left), mode);
        let right = side(nic(right), LaneMode::Inline, &QpConfig::default());
        left.qp.connect(&right.qp.info().unwrap()).unwrap();
        let _sleeper = Sleeper::of(&left.context, 0, mode);
        left.qp.post_send(write(&left, &right, 1, 100)).unwrap();
        for _ in 0..20 {
            settle();
        }
        #[expect(clippy::disallowed_methods, reason = "the old deadline is a matter of seconds")]
        let start = Instant::now();
        let hurry = RetryAttr { timeout: 1, linear_retries: 0, exponential_retries: 2 };
        left.qp.modify(QpModify::Retry(hurry)).unwrap();
        let wc = until("the end", || left.cq.poll_one().unwrap());
        assert!(start.elapsed() < Duration::from_nanos(patience().timeout_ns()) / 2);
        assert!(!wc.status.is_success());
        assert_eq!(left.qp.query().unwrap().failure.unwrap().reason, FailReason::RetryExceeded);
    }
}

/// How long a wait takes, and what was polled before it.
fn wait(context: &Context, most: Duration) -> Duration {
    #[expect(clippy::disallowed_methods, reason = "about sleep, which takes time")]
    let start = Instant::now();
    context.wait_lane(0, most).unwrap();
    start.elapsed()
}

/// A lane that is driven on must not be slept on: something may be under way in it.
#[test]
fn a_lane_with_something_to_do_is_not_slept_on() {
    let [mut left, mut right] = [13, 15].map(|at| over_sockets(at, LaneMode::Inline));
    connect(&mut left, &mut right);
    returns("a lane with something to do", move || {
        let rest = || while left.context.poll_lane(0) > 0 {};
        // The first call gets ready, and this lane has not been polled yet.
        right.context.wait_lane(0, HOUR).unwrap();
        right.context.wait_lane(0, HOUR).unwrap();
        rest();
        left.context.wait_lane(0, HOUR).unwrap();
        let brief = Duration::from_millis(20);
        assert!(wait(&left.context, brief) >= brief);
        // A control call has changed it.
        left.context.with_endpoint(|_| left.context.wait_lane(0, HOUR)).unwrap().unwrap();
        left.context.wait_lane(0, HOUR).unwrap();
        rest();
        let wr = write(&left, &right, 1, 64);
        let mut qp = left.qp;
        qp.post_send(wr).unwrap();
        left.context.wait_lane(0, HOUR).unwrap();
        assert!(left.context.poll_lane(0) > 0);
        left.context.wait_lane(0, HOUR).unwrap();
        drop(qp);
    });
    // A lane with a thread of its own cares for itself.
    over_sockets(17, THREAD).context.wait_lane(0, HOUR).unwrap();
}

/// Only what has descriptors can wake a lane; who waits for it says how long at most.
#[test]
fn a_port_without_descriptors_wakes_nobody() {
    let (left, right) = loopback::pair(1, LoopbackConfig::default());
    let [mut left, mut right] = [left, right].map(|ports| patient(nic(ports), LaneMode::Inline));
    connect(&mut left, &mut right);
    left.qp.post_send(write(&left, &right, 1, 64)).unwrap();
    while right.context.poll_lane(0) > 0 {}
    while left.context.poll_lane(0) > 0 {}
    let brief = Duration::from_millis(20);
    right.context.wait_lane(0, HOUR).unwrap();
    assert!(wait(&right.context, brief) >= brief);
    assert!(right.context.poll_lane(0) > 0, "what has come meanwhile");
}
