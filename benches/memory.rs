//! What a connected, idle queue pair costs in memory: `cargo bench --bench memory`.
//!
//! A counting allocator sees every byte. Over the verbs API the goal is 8 KiB for each queue pair that is idle, after
//! connecting and again after a burst of small writes, and 16 KiB right after the burst.
#![allow(
    missing_docs,
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "benchmark"
)]

#[path = "common/mod.rs"]
mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use common::Side;
use spindrift::fallback::{self, FallbackConfig, MemoryStore, Nic};
use spindrift::path::{PathConfig, PlaneSet};
use spindrift::pmd::loopback::{self, LoopbackConfig, LoopbackPort};
use spindrift::time::Time;
use spindrift::verbs::{Access, Context, ContextConfig, Cq, Mr, Pd, Qp, QpConfig, RecvWr, Wc, nic};
use spindrift::work::{RemoteAddr, SendOp, SendWr, Sge};

struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system allocator unchanged; only a counter is kept beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's contract is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's contract is passed on.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const PAIRS: usize = 10_000;

fn main() {
    endpoint();
    let idle = verbs();
    armed(idle);
}

fn live() -> usize {
    LIVE.load(Ordering::Relaxed)
}

/// One side of the connections over the verbs API, and what it has allocated.
struct User {
    context: Context,
    pd: Pd,
    cq: Cq,
    mr: Mr,
    qps: Vec<Qp>,
    bytes: usize,
}

impl User {
    fn new(ports: Vec<LoopbackPort>) -> Self {
        let ports = nic(ports);
        let config = ContextConfig { seed: Some(1.into()), ..ContextConfig::new(&ports) };
        let context = Context::open(ports, config).unwrap();
        let pd = context.create_pd().unwrap();
        let cq = context.create_cq(4096).unwrap();
        let mr = pd.register(4096, Access::REMOTE_WRITE).unwrap();
        Self { context, pd, cq, mr, qps: Vec::with_capacity(4 * VERBS_PAIRS), bytes: 0 }
    }

    /// Runs `work` and adds what it allocated to this side's account.
    fn account<R>(&mut self, work: impl FnOnce(&mut Self) -> R) -> R {
        let before = live();
        let result = work(self);
        self.bytes = (self.bytes + live()).wrapping_sub(before);
        result
    }
}

/// Queue pairs of each side. All is measured with as many and with twice as many: the difference is what these cost,
/// without what a context costs by itself.
const VERBS_PAIRS: usize = 256;
const SMALL_WRITES: u64 = 100;

/// Bytes allocated by the sender and by the receiver.
type Cost = [usize; 2];

/// Bytes after connecting `pairs` queue pairs of each side, after a burst of small writes on each, and two seconds later.
fn verbs_cost(pairs: usize, config: &QpConfig) -> [Cost; 3] {
    let (left, right) = loopback::pair(4, LoopbackConfig::default());
    let (mut left, mut right) = (User::new(left), User::new(right));
    for _ in 0..pairs {
        for side in [&mut left, &mut right] {
            side.account(|side| {
                side.qps.push(Qp::create(&side.pd, &side.cq, &side.cq, config).unwrap());
            });
        }
        let infos = [&left, &right].map(|side| side.qps[side.qps.len() - 1].info().unwrap());
        left.account(|side| side.qps.last_mut().unwrap().connect(&infos[1]).unwrap());
        right.account(|side| side.qps.last_mut().unwrap().connect(&infos[0]).unwrap());
    }
    let connected = [left.bytes, right.bytes];
    (0..pairs).for_each(|at| burst(&mut left, &mut right, at));
    let written = [left.bytes, right.bytes];
    let start = std::time::Instant::now();
    while start.elapsed().as_secs() < 3 {
        left.account(|side| side.context.poll());
        right.account(|side| side.context.poll());
    }
    [connected, written, [left.bytes, right.bytes]]
}

/// Posts small writes with immediate, all at once, and waits until they are complete on both sides.
fn burst(left: &mut User, right: &mut User, at: usize) {
    right.account(|side| {
        (0..SMALL_WRITES).for_each(|wr_id| side.qps[at].post_recv(RecvWr::empty(wr_id)).unwrap());
    });
    let remote = right.mr.remote().at(0, 64).unwrap();
    left.account(|side| {
        let local = side.mr.sge(0, 64).unwrap();
        for wr_id in 0..SMALL_WRITES {
            let wr =
                SendWr { wr_id, op: SendOp::WriteWithImm(1), local, remote, signaled: true, fence: false };
            side.qps[at].post_send(wr).unwrap();
        }
    });
    let (mut sent, mut received) = (0, 0);
    while sent < SMALL_WRITES || received < SMALL_WRITES {
        for (side, done) in [(&mut *left, &mut sent), (&mut *right, &mut received)] {
            side.account(|side| {
                let mut seen = [Wc::default(); 64];
                side.context.poll();
                let polled = side.cq.poll(&mut seen).unwrap();
                assert!(seen[..polled].iter().all(|wc| wc.status.is_success()), "{seen:?}");
                *done += polled as u64;
            });
        }
    }
}

/// Bytes of a connected, idle queue pair of the side that writes.
fn verbs() -> usize {
    let config = QpConfig::default();
    let (once, twice) = (verbs_cost(VERBS_PAIRS, &config), verbs_cost(2 * VERBS_PAIRS, &config));
    println!("over the verbs API, the same, per queue pair of the side that writes and of the other:");
    let whens = [("connected and idle", 8192), ("after 100 small writes", 16_384), ("and 3 s later", 8192)];
    for (((when, goal), once), twice) in whens.iter().zip(once).zip(twice) {
        let [sender, receiver] = [0, 1].map(|side| (twice[side] - once[side]) / VERBS_PAIRS);
        println!("  {when:<23} {sender:>6} and {receiver:>6} bytes (goal: at most {goal})");
    }
    (twice[0][0] - once[0][0]) / VERBS_PAIRS
}

/// Bytes of `pairs` queue pairs on each side of contexts with fallback, once all are armed, for both sides together.
fn armed_cost(pairs: usize) -> usize {
    let store = MemoryStore::default();
    let nics = [0, 1].map(|_| loopback::pair(4, LoopbackConfig::default()));
    let (here, there): (Vec<_>, Vec<_>) = nics.into_iter().unzip();
    let mut sides = [here, there].map(|nics| {
        let contexts: Vec<_> = nics
            .into_iter()
            .map(|ports| {
                let ports = nic(ports);
                let config = ContextConfig { seed: Some(1.into()), ..ContextConfig::new(&ports) };
                Context::open(ports, config).unwrap()
            })
            .collect();
        let store = Box::new(store.clone());
        fallback::Context::open(&contexts[0], &contexts[1], store, 1024, FallbackConfig::default()).unwrap()
    });
    let before = live();
    for _ in 0..pairs {
        let qps = [0, 1].map(|at: usize| sides[at].create_qp(&QpConfig::default()).unwrap());
        let infos = [0, 1].map(|at: usize| sides[at].info(qps[at]).unwrap());
        (0..2).for_each(|at| sides[at].connect(qps[at], &infos[1 - at]).unwrap());
        let armed = |side: &fallback::Context, qp| side.is_prepared(qp, Nic::Backup).unwrap();
        while !sides.iter().zip(qps).all(|(side, qp)| armed(side, qp)) {
            for side in &mut sides {
                side.poll(&mut [Wc::default(); 4]);
                while side.poll_event().is_some() {}
            }
        }
    }
    live() - before
}

/// What fallback adds to a queue pair that costs `idle` bytes without it.
fn armed(idle: usize) {
    let (once, twice) = (armed_cost(VERBS_PAIRS / 4), armed_cost(VERBS_PAIRS / 2));
    let each = (twice - once) / (VERBS_PAIRS / 4) / 2;
    let path = PathConfig { standby: PlaneSet(0b1100), ..PathConfig::new(4) };
    let config = QpConfig { path, ..QpConfig::default() };
    let (few, many) = (verbs_cost(VERBS_PAIRS, &config), verbs_cost(2 * VERBS_PAIRS, &config));
    let seamless = (many[0][0] - few[0][0]) / VERBS_PAIRS;
    println!("with planes of a second NIC that stand by:");
    println!("  more than without       {:>6} bytes (goal: at most 16384)", seamless - idle);
    println!("with fallback in shift mode, armed, the store's records included:");
    println!("  more than without       {:>6} bytes (goal: at most 16384)", each - idle);
}

fn endpoint() {
    let (mut a, mut b) = (Side::new(1, true, 1 << 20, 16_384), Side::new(2, true, 1 << 20, 16_384));
    let before = live();
    let ours: Vec<_> = (0..PAIRS).map(|_| a.create_qp(128)).collect();
    let at_a = live() - before;
    let theirs: Vec<_> = (0..PAIRS).map(|_| b.create_qp(128)).collect();
    let created = live() - before;
    for (&qa, &qb) in ours.iter().zip(&theirs) {
        a.connect(qa, &b, qb, 4096);
        b.connect(qb, &a, qa, 4096);
    }
    let connected = live() - before;
    let each = |bytes: usize| bytes / (2 * PAIRS);
    println!("{PAIRS} connections, 128 + 64 entropy values, queues of 128, per queue pair:");
    println!("  created             {:>6} bytes ({} at the first endpoint)", each(created), at_a / PAIRS);
    println!("  connected and idle  {:>6} bytes (goal: at most 8192)", each(connected));
    let mut now = Time(1_000_000);
    for &qa in &ours {
        let wr = SendWr {
            wr_id: 0,
            op: SendOp::Write,
            local: Sge { addr: a.region.iova(), len: 65_536, lkey: a.key.lkey },
            remote: RemoteAddr { addr: b.region.iova(), rkey: b.key.rkey },
            signaled: true,
            fence: false,
        };
        if let Err(error) = a.endpoint.post_send(now, qa, wr) {
            println!("post failed: {error}");
            return;
        }
        loop {
            let (mut data, mut answers) = (Vec::new(), Vec::new());
            a.transmit(now, 64, &mut data);
            b.receive(now, &data);
            b.transmit(now, 64, &mut answers);
            a.receive(now, &answers);
            now = now + 2_000;
            if data.is_empty() && answers.is_empty() {
                break;
            }
        }
        a.completions();
    }
    let used = live() - before;
    println!("  after a 64 KiB write {:>5} bytes", each(used));
}
