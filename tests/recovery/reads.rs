//! READs recover as writes do: their bytes come as messages of the other side, which has the same timers and paths.
//!
//! Tests decision 40 of `docs/protocol.md`.

use spindrift::time::Time;
use spindrift::work::SendOp;

use crate::flow::Flow;
use crate::support::link::{Link, Outage};

const LEN: u32 = 64 * 1024;
const DEPTH: u64 = 8;
const COUNT: u64 = 300;
/// When the plane dies: in the midst of the stream.
const DEATH: u64 = 150_000;

/// How a stream of requests fares.
#[derive(Clone, Copy, Debug)]
struct Fared {
    took_ns: u64,
    /// Longest time without a completion.
    stall_ns: u64,
}

/// A stream over two planes, of which the second may die for ever, in both directions.
fn fares(op: SendOp, seed: u64, link: Link, dies: bool) -> Fared {
    let mut flow = Flow::new(seed, vec![link; 2], 32);
    flow.op = op;
    let death = Outage { from: Time(DEATH), to: Time::NEVER, plane: 1, sender: None, paths: 0 };
    flow.net.outages.extend(dies.then_some(death));
    let (start, mut last, mut stall_ns) = (flow.net.now, flow.net.now, 0);
    for number in 0..COUNT {
        flow.post(LEN);
        if number + 1 < DEPTH {
            continue;
        }
        flow.finish_all_but(DEPTH - 1);
        stall_ns = stall_ns.max(flow.net.now.since(last));
        last = flow.net.now;
    }
    flow.finish_all_but(0);
    Fared { took_ns: flow.net.now.since(start), stall_ns: stall_ns.max(flow.net.now.since(last)) }
}

/// Sums over some seeds.
fn all_fare(op: SendOp, link: Link, dies: bool) -> Fared {
    let all: Vec<_> = (0..10).map(|seed| fares(op, seed, link, dies)).collect();
    let sum = |of: fn(&Fared) -> u64| all.iter().map(of).sum();
    Fared { took_ns: sum(|fared| fared.took_ns), stall_ns: sum(|fared| fared.stall_ns) }
}

/// Requests are lost there, and responses too. Each side learns by losses of its own which paths are dead, one after the other: a
/// READ stalls for two tail losses where a write stalls for one.
#[test]
fn reads_over_a_dying_plane_stall_for_twice_as_long_as_writes_at_most() {
    let [healthy, write, read] = [(SendOp::Write, false), (SendOp::Write, true), (SendOp::Read, true)]
        .map(|(op, dies)| all_fare(op, Link::clean(5_000), dies));
    println!("healthy {healthy:?}, writes {write:?}, READs {read:?}");
    assert!(write.stall_ns > 5 * healthy.stall_ns, "the plane is gone");
    assert!(read.stall_ns <= 2 * write.stall_ns, "{read:?}, writes {write:?}");
    let lost = |fared: Fared| fared.took_ns - healthy.took_ns;
    assert!(lost(read) <= 5 * lost(write) / 2, "{read:?}, writes {write:?}");
}

#[test]
fn losses_cost_reads_hardly_more_than_writes() {
    // 1 % and 5 %.
    for loss in [100, 500] {
        let link = Link { loss, ..Link::clean(5_000) };
        let [write, read] = [SendOp::Write, SendOp::Read].map(|op| all_fare(op, link, false));
        println!("{loss} of 10,000 lost: writes {write:?}, READs {read:?}");
        assert!(read.took_ns <= 5 * write.took_ns / 4, "{read:?}, writes {write:?}");
        assert!(read.stall_ns <= 2 * write.stall_ns, "{read:?}, writes {write:?}");
    }
}
