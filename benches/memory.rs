//! What a connected, idle queue pair costs in memory: `cargo bench --bench memory`.
//!
//! A counting allocator sees every byte that connecting 10,000 pairs takes at one endpoint; the
//! goal is 16 KiB each. Then every pair moves data once, and the cost is read again.
#![allow(missing_docs, clippy::print_stdout, reason = "benchmark")]

#[path = "common/mod.rs"]
mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use common::Side;
use spindrift::time::Time;
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
    let (mut a, mut b) = (Side::new(1, true, 1 << 20, 16_384), Side::new(2, true, 1 << 20, 16_384));
    let before = LIVE.load(Ordering::Relaxed);
    let ours: Vec<_> = (0..PAIRS).map(|_| a.create_qp(128)).collect();
    let at_a = LIVE.load(Ordering::Relaxed) - before;
    let theirs: Vec<_> = (0..PAIRS).map(|_| b.create_qp(128)).collect();
    let created = LIVE.load(Ordering::Relaxed) - before;
    for (&qa, &qb) in ours.iter().zip(&theirs) {
        a.connect(qa, &b, qb, 4096);
        b.connect(qb, &a, qa, 4096);
    }
    let connected = LIVE.load(Ordering::Relaxed) - before;
    let each = |bytes: usize| bytes / (2 * PAIRS);
    println!("{PAIRS} connections, 128 + 64 entropy values, queues of 128, per queue pair:");
    println!("  created             {:>6} bytes ({} at the first endpoint)", each(created), at_a / PAIRS);
    println!("  connected and idle  {:>6} bytes (goal: at most 16384)", each(connected));
    let mut now = Time(1_000_000);
    for &qa in &ours {
        let wr = SendWr {
            wr_id: 0,
            op: SendOp::Write,
            local: Sge { addr: a.region.iova(), len: 65_536, lkey: a.key },
            remote: RemoteAddr { addr: b.region.iova(), rkey: b.key },
            signaled: true,
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
    let used = LIVE.load(Ordering::Relaxed) - before;
    println!("  after a 64 KiB write {:>5} bytes", each(used));
}
