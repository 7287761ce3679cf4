//! A deny list beside faults: the planes that are left die, and those on the list carry the rest in time.
//!
//! Tests decision 45 of `docs/protocol.md`.

use std::sync::Arc;

use spindrift::endpoint::{DenyList, DenyRule};
use spindrift::path::{DenyListStatus, EvState, PlaneSet};
use spindrift::time::Time;
use spindrift::work::SendOp;

use crate::flow::{Flow, TARGET, WRITER};
use crate::support::link::{Link, Outage};

const US: u64 = 1_000;
const MS: u64 = 1_000 * US;
const ONE_WAY: u64 = 5 * US;
const ROUND_TRIP: u64 = 2 * ONE_WAY;
const LEN: u32 = 64 * 1024;
const DEPTH: u64 = 8;
const BEFORE: u64 = 300 * US;

fn flow(seed: u64, op: SendOp) -> Flow {
    let mut flow = Flow::with(seed, vec![Link::clean(ONE_WAY); 4], 32, |init| init);
    flow.op = op;
    flow
}

fn deny(flow: &mut Flow, rules: &[DenyRule]) {
    let list = Arc::new(DenyList::new(rules).unwrap());
    for node in [WRITER, TARGET] {
        let qpn = flow.ends[node].qpn;
        let endpoint = flow.net.endpoint(node);
        endpoint.set_deny_list(Arc::clone(&list));
        endpoint.follow_deny_list(qpn);
    }
}

fn deny_planes(flow: &mut Flow, planes: &[u8]) {
    let rules: Vec<_> = planes.iter().map(|&plane| DenyRule::Plane { plane }).collect();
    deny(flow, &rules);
}

fn status(flow: &mut Flow, node: usize) -> DenyListStatus {
    let qpn = flow.ends[node].qpn;
    flow.net.endpoint(node).deny_list_status(qpn).unwrap_or_default()
}

/// Runs the stream until `until`; the longest time without a completion, ns.
fn stream(flow: &mut Flow, until: u64) -> u64 {
    flow.stream_until(LEN, DEPTH, Time(until))
}

fn dies(flow: &mut Flow, planes: &[u8], (from, to): (u64, Time)) {
    let outage = |&plane| Outage { from: Time(from), to, plane, sender: None, paths: 0 };
    flow.net.outages.extend(planes.iter().map(outage));
}

/// Data packets per plane that a node has sent so far.
fn sent(flow: &Flow, node: usize) -> Vec<usize> {
    (0..4).map(|plane| flow.net.data_by_port.get(&(node, plane)).copied().unwrap_or(0)).collect()
}

fn sender_of(op: SendOp) -> usize {
    if op == SendOp::Read { TARGET } else { WRITER }
}

/// A plane that loses 2 % of its packets, as one with a gray cable at the host does: with it on the list no packet is lost.
#[test]
fn a_lossy_plane_on_the_list_costs_nothing() {
    for op in [SendOp::Write, SendOp::Read] {
        let mut links = vec![Link::clean(ONE_WAY); 4];
        links[1].loss = 200;
        let mut flow = Flow::with(1, links, 32, |init| init);
        flow.op = op;
        deny_planes(&mut flow, &[1]);
        stream(&mut flow, 5 * MS);
        let sender = sender_of(op);
        assert_eq!((sent(&flow, sender)[1], flow.counters(sender).tx_retransmits), (0, 0), "{op:?}");
        // Without the list it is used and loses.
        deny_planes(&mut flow, &[]);
        stream(&mut flow, 10 * MS);
        assert!(sent(&flow, sender)[1] > 0 && flow.counters(sender).tx_retransmits > 0, "{op:?}");
    }
}

/// The planes that are left die and nobody reports it: as soon as a NIC that stands by takes over.
#[test]
fn planes_that_die_in_silence_are_replaced_by_those_on_the_list() {
    for (op, seed) in [SendOp::Write, SendOp::Read].into_iter().flat_map(|op| [(op, 2), (op, 3), (op, 4)]) {
        let mut flow = flow(seed, op);
        deny_planes(&mut flow, &[2, 3]);
        let healthy_ns = stream(&mut flow, BEFORE);
        let sender = sender_of(op);
        assert_eq!(sent(&flow, sender)[2..], [0, 0]);
        let from = flow.net.now.0 + 50 * US;
        dies(&mut flow, &[0, 1], (from, Time(from + 20 * MS)));
        let stall_ns = stream(&mut flow, from + 5 * MS);
        println!("{op:?}: healthy {healthy_ns} ns, stall {stall_ns} ns");
        assert!(stall_ns <= 400 * US + 2 * ROUND_TRIP, "{op:?} {seed}: {stall_ns} ns");
        assert_eq!(flow.counters(WRITER).timeouts + flow.counters(TARGET).timeouts, 0);
        let denied = status(&mut flow, sender);
        assert_eq!((denied.avoided, denied.silent_failovers), (PlaneSet(0), 1));
        // They are back, and probes find out: the list counts again.
        flow.net.run_for(200 * MS);
        let until = flow.net.now.0 + MS;
        stream(&mut flow, until);
        assert_eq!(status(&mut flow, sender).avoided, PlaneSet(0b1100), "{op:?} {seed}");
        let before = sent(&flow, sender);
        let until = flow.net.now.0 + MS;
        stream(&mut flow, until);
        assert_eq!(sent(&flow, sender)[2..], before[2..], "{op:?} {seed}");
    }
}

/// Entropy values on the list: the others of the only plane die in silence.
#[test]
fn paths_that_die_in_silence_are_replaced_by_those_on_the_list() {
    for seed in 5..9 {
        let adjust = |mut init: spindrift::endpoint::QpInit| {
            (init.path.active, init.path.backup, init.path.min_active) = (8, 0, 1);
            init
        };
        let mut flow = Flow::with(seed, vec![Link::clean(ONE_WAY)], 32, adjust);
        let half = |from, to| Outage { from, to, plane: 0, sender: Some(WRITER), paths: 2 };
        // Which half dies is found out first.
        let ends = Time(20 * MS);
        flow.net.outages.push(half(Time(0), ends));
        stream(&mut flow, 10 * MS);
        let qpn = flow.ends[WRITER].qpn;
        let evs = flow.net.endpoint(WRITER).ev_states(qpn).unwrap();
        let alive = evs.filter(|ev| ev.state != EvState::AssumedBad).map(|ev| ev.ev.0);
        let rule = |value| DenyRule::Ev { value, mask: u32::MAX, plane: None };
        let rules: Vec<_> = alive.map(rule).collect();
        assert!((1..8).contains(&rules.len()));
        stream(&mut flow, 100 * MS);
        deny(&mut flow, &rules);
        assert_eq!(usize::from(status(&mut flow, WRITER).evs), rules.len());
        let until = flow.net.now.0 + MS;
        stream(&mut flow, until);
        assert!(!status(&mut flow, WRITER).released);
        let from = flow.net.now.0 + 50 * US;
        flow.net.outages.push(half(Time(from), Time::NEVER));
        let stall_ns = stream(&mut flow, from + 5 * MS);
        println!("{} of 8 on the list: stall {stall_ns} ns", rules.len());
        assert!(status(&mut flow, WRITER).released);
        assert_eq!(flow.counters(WRITER).retries_exhausted, 0);
        assert!(stall_ns <= 20 * MS, "{seed}: {stall_ns} ns");
    }
}
