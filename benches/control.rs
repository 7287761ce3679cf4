//! What control costs a lane, in wall-clock time: `cargo bench --bench control`.
//!
//! First threads that make control calls without a pause beside a lane that carries a stream; then a change of a port,
//! the peer's and our own, with 10,000 queue pairs. Goals: eight callers cost at most a tenth of the goodput; a port
//! status update takes less than 50 µs of the lane's time.
#![allow(
    missing_docs,
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "benchmark"
)]

#[path = "common/mod.rs"]
mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{Frame, Side};
use spindrift::path::PlaneSet;
use spindrift::pmd::loopback::{self, LoopbackConfig, LoopbackPort};
use spindrift::time::Time;
use spindrift::verbs::{
    Access, Context, ContextConfig, Cq, Idle, LaneMode, Mr, Pd, Qp, QpConfig, SendOp, SendWr, Wc, nic,
};

const CALLERS: usize = 8;
const ROUNDS: usize = 15;
const INTERVAL: Duration = Duration::from_millis(300);

const MESSAGE: u32 = 64 << 10;
const DEPTH: u64 = 64;

const PAIRS: usize = 10_000;
const CHANGES: usize = 20;
const LAST_PLANE: u8 = 3;

fn main() {
    callers("reads of counters", |context| {
        context.lane_counters();
    });
    callers("control calls", |context| {
        context.with_endpoint(|endpoint| endpoint.qpns().count()).unwrap();
    });
    port_changes();
}

fn median(values: Vec<f64>) -> f64 {
    share(values, 0.5)
}

/// The value that this share of all values does not exceed.
fn share(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() as f64 * share) as usize).min(values.len() - 1)]
}

struct User {
    context: Context,
    _pd: Pd,
    cq: Cq,
    mr: Mr,
    qp: Qp,
}

impl User {
    fn new(ports: Vec<LoopbackPort>) -> Self {
        let ports = nic(ports);
        let lane = LaneMode::Thread { core: None, idle: Idle::Yield };
        let config = ContextConfig { seed: Some(1.into()), ..ContextConfig::new(&ports).lane(lane) };
        let context = Context::open(ports, config).unwrap();
        let pd = context.create_pd().unwrap();
        let cq = context.create_cq(256).unwrap();
        let mr = pd.register(MESSAGE as usize, Access::REMOTE_WRITE).unwrap();
        let qp = Qp::create(&pd, &cq, &cq, &QpConfig::default()).unwrap();
        Self { context, _pd: pd, cq, mr, qp }
    }
}

/// A stream of writes, `DEPTH` of them in flight.
struct Stream {
    left: User,
    right: User,
    in_flight: u64,
}

impl Stream {
    fn new() -> Self {
        let (left, right) = loopback::pair(4, LoopbackConfig::default());
        let (mut left, mut right) = (User::new(left), User::new(right));
        let infos = [&left, &right].map(|user| user.qp.info().unwrap());
        left.qp.connect(&infos[1]).unwrap();
        right.qp.connect(&infos[0]).unwrap();
        Self { left, right, in_flight: 0 }
    }

    /// Writes completed in a second, over one interval.
    fn rate(&mut self) -> f64 {
        let (start, mut done) = (Instant::now(), 0);
        while start.elapsed() < INTERVAL {
            while self.in_flight < DEPTH {
                let wr = SendWr {
                    wr_id: 0,
                    op: SendOp::Write,
                    local: self.left.mr.sge(0, MESSAGE).unwrap(),
                    remote: self.right.mr.remote().at(0, MESSAGE.into()).unwrap(),
                    signaled: true,
                    fence: false,
                };
                self.left.qp.post_send(wr).unwrap();
                self.in_flight += 1;
            }
            let mut seen = [Wc::default(); DEPTH as usize];
            let polled = self.left.cq.poll(&mut seen).unwrap();
            assert!(seen[..polled].iter().all(|wc| wc.status.is_success()));
            self.in_flight -= polled as u64;
            done += polled;
            // The cores belong to the two lanes; 64 writes take longer than this.
            std::thread::sleep(Duration::from_micros(50));
        }
        done as f64 / start.elapsed().as_secs_f64()
    }
}

/// Goodput beside threads that make one call after the other, over that without them, in turns.
fn callers(name: &str, call: impl Fn(&Context) + Sync) {
    let mut stream = Stream::new();
    let calls = AtomicU64::new(0);
    stream.rate();
    let (mut alone, mut ratios, mut served) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let before = stream.rate();
        let stop = AtomicBool::new(false);
        let with = std::thread::scope(|scope| {
            for _ in 0..CALLERS {
                let (context, stop, calls, call) = (stream.left.context.clone(), &stop, &calls, &call);
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        call(&context);
                        calls.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            let counted = calls.load(Ordering::Relaxed);
            let rate = stream.rate();
            served.push((calls.load(Ordering::Relaxed) - counted) as f64 / INTERVAL.as_secs_f64());
            stop.store(true, Ordering::Relaxed);
            rate
        });
        let after = stream.rate();
        alone.push(f64::midpoint(before, after) * f64::from(MESSAGE) * 8.0 / 1e9);
        ratios.push(with / f64::midpoint(before, after));
    }
    println!(
        "{CALLERS} threads, {name}: {:.2} of the goodput without them ({:.1} Gb/s; goal: at least 0.90), {:.0} calls a second",
        median(ratios),
        median(alone),
        median(served)
    );
}

/// Time spent in each call of an endpoint that had something to do, us.
#[derive(Default)]
struct Spent(Vec<f64>);

impl Spent {
    fn call<R>(&mut self, call: impl FnOnce() -> R) -> R {
        let start = Instant::now();
        let result = call();
        self.0.push(start.elapsed().as_secs_f64() * 1e6);
        result
    }
}

/// Lets both sides work for 5 ms, with the last plane cut if it is not `up`; what the first one spends, transmission
/// excluded.
fn settle(spent: &mut Spent, now: &mut Time, sides: [&mut Side; 2], up: bool) {
    let [a, b] = sides;
    let end = now.after(5_000_000);
    while *now < end {
        let (mut ours, mut theirs): (Vec<Frame>, Vec<Frame>) = (Vec::new(), Vec::new());
        a.transmit(*now, 64, &mut ours);
        b.transmit(*now, 64, &mut theirs);
        for frames in [&mut ours, &mut theirs] {
            frames.retain(|frame| up || frame.port != LAST_PLANE);
        }
        *now = now.after(1_000);
        b.receive(*now, &ours);
        b.endpoint.on_timeout(*now);
        for frame in theirs {
            spent.call(|| a.receive(*now, &[frame]));
        }
        if a.endpoint.next_timeout() <= *now {
            spent.call(|| a.endpoint.on_timeout(*now));
        }
    }
}

fn port_changes() {
    let (mut a, mut b) = (Side::new(1, true, 1 << 20, 16_384), Side::new(2, true, 1 << 20, 16_384));
    for _ in 0..PAIRS {
        let (qa, qb) = (a.create_qp(16), b.create_qp(16));
        a.connect(qa, &b, qb, 4096);
        b.connect(qb, &a, qa, 4096);
    }
    let mut now = Time(1_000_000);
    settle(&mut Spent::default(), &mut now, [&mut a, &mut b], true);
    for (name, local) in [("the peer's", false), ("our own", true)] {
        let (mut sums, mut calls) = (Vec::new(), Vec::new());
        for change in 0..CHANGES {
            let up = change % 2 == 1;
            let mut spent = Spent::default();
            if local {
                spent.call(|| a.endpoint.port_link(now, LAST_PLANE, up));
            } else {
                b.endpoint.port_link(now, LAST_PLANE, up);
            }
            settle(&mut spent, &mut now, [&mut a, &mut b], up);
            sums.push(spent.0.iter().sum());
            calls.extend(spent.0.into_iter().filter(|&us| us > 1.0));
            let open = a.endpoint.peer_planes(a.endpoint.qpns().next().unwrap()).unwrap();
            assert!(local || open == PlaneSet(if up { 0b1111 } else { 0b0111 }), "{open:?} after {up}");
        }
        println!(
            "{PAIRS} queue pairs of one peer, {name} port changes: {:.0} us in all; a call of more than 1 us takes {:.0} us \
             (median), {:.0} us (99 %; goal: less than 50)",
            median(sums),
            share(calls.clone(), 0.5),
            share(calls, 0.99)
        );
    }
}
