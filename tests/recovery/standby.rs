//! A whole NIC dies, and the planes of another one take over: how soon, and that nothing is lost or sent in vain.
//!
//! Tests decision 44 of `docs/protocol.md`.

use spindrift::endpoint::{Event, QpInit};
use spindrift::path::{PlaneRole, PlaneSet, RoleStatus};
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
/// When the NIC dies: in the midst of the stream.
const DEATH: u64 = 300 * US;

const PRIMARY: PlaneSet = PlaneSet(0b0011);
const STANDBY: PlaneSet = PlaneSet(0b1100);

/// Two NICs of two planes each; the second one stands by.
fn two_nics(seed: u64, op: SendOp) -> Flow {
    let adjust = |mut init: QpInit| {
        init.path.standby = STANDBY;
        init
    };
    let mut flow = Flow::with(seed, vec![Link::clean(ONE_WAY); 4], 32, adjust);
    flow.op = op;
    flow
}

/// The planes lose what `sender` sends on them, or what both do, from then on.
fn dead(planes: PlaneSet, from: u64, to: Time, sender: Option<usize>) -> Vec<Outage> {
    let planes = (0..4).filter(|&plane| planes.contains(plane));
    planes.map(|plane| Outage { from: Time(from), to, plane, sender, paths: 0 }).collect()
}

/// Runs the stream until `until`; the longest time without a completion, ns.
fn stream(flow: &mut Flow, until: u64) -> u64 {
    flow.stream_until(LEN, DEPTH, Time(until))
}

fn roles(flow: &mut Flow, node: usize) -> RoleStatus {
    let qpn = flow.ends[node].qpn;
    flow.net.endpoint(node).role_status(qpn).unwrap()
}

/// Data packets per plane that a node has sent so far.
fn sent(flow: &Flow, node: usize) -> Vec<usize> {
    (0..4).map(|plane| flow.net.data_by_port.get(&(node, plane)).copied().unwrap_or(0)).collect()
}

/// The node whose packets carry the bytes.
fn sender_of(op: SendOp) -> usize {
    if op == SendOp::Read { TARGET } else { WRITER }
}

#[test]
fn without_a_failure_nothing_takes_the_standby_but_its_probes() {
    for op in [SendOp::Write, SendOp::Read] {
        let mut flow = two_nics(1, op);
        stream(&mut flow, 5 * MS);
        assert_eq!(sent(&flow, sender_of(op))[2..], [0, 0]);
        for node in [WRITER, TARGET] {
            assert_eq!(roles(&mut flow, node).failovers, 0);
            assert_eq!(flow.counters(node).tx_probes, 1, "at once, then once a second");
        }
    }
}

/// The driver reports that the ports of one side have no link.
#[test]
fn a_nic_without_a_link_costs_a_round_trip() {
    for (op, node) in [SendOp::Write, SendOp::Read].into_iter().flat_map(|op| [(op, WRITER), (op, TARGET)]) {
        let mut flow = two_nics(2, op);
        let healthy_ns = stream(&mut flow, DEATH);
        let died = flow.net.now.after(100 * US);
        for port in 0..2 {
            flow.net.schedule_link(died, node, port, false);
        }
        let stall_ns = stream(&mut flow, died.0 + MS);
        println!("{op:?}, NIC of {node}: healthy {healthy_ns} ns, stall {stall_ns} ns");
        let sender = sender_of(op);
        assert_eq!(roles(&mut flow, sender).serving, STANDBY);
        assert_eq!(roles(&mut flow, sender).silent_failovers, 0);
        // Packets in flight are sent again: a round trip, and one more for the peer's port status update. What is
        // detected is the event itself.
        assert!(stall_ns <= healthy_ns + 3 * ROUND_TRIP, "{op:?} {node}: {stall_ns} ns");
        let before = sent(&flow, sender);
        stream(&mut flow, died.0 + 2 * MS);
        assert_eq!(sent(&flow, sender)[..2], before[..2], "nothing more on the dead NIC");
        assert_eq!(flow.net.sent_on_down_port, 0);
        assert_eq!(flow.counters(WRITER).timeouts + flow.counters(TARGET).timeouts, 0);
    }
}

/// All planes of a NIC swallow everything, and nobody reports it: no port, no NACK.
#[test]
fn a_nic_that_dies_in_silence_is_found_by_tail_loss_probes() {
    for op in [SendOp::Write, SendOp::Read] {
        for (seed, who) in (0..6).zip([None, Some(WRITER), Some(TARGET)].into_iter().cycle()) {
            let mut flow = two_nics(seed, op);
            let healthy_ns = stream(&mut flow, DEATH);
            let from = flow.net.now.0 + 50 * US;
            flow.net.outages = dead(PRIMARY, from, Time::NEVER, who);
            let stall_ns = stream(&mut flow, from + 5 * MS);
            let sender = sender_of(op);
            let status = roles(&mut flow, sender);
            println!("{op:?}, {who:?} dead: healthy {healthy_ns} ns, stall {stall_ns} ns, {status:?}");
            assert_eq!((status.serving, status.silent_failovers), (STANDBY, 1), "{op:?} {who:?} {seed}");
            // Tail loss probes 100 us (the floor) after the last packet and 200 us later, and one more 100 us after the
            // response to the second.
            assert!(stall_ns <= 400 * US + 2 * ROUND_TRIP, "{op:?} {who:?} {seed}: {stall_ns} ns");
            assert_eq!(flow.counters(WRITER).timeouts + flow.counters(TARGET).timeouts, 0);
            // Also the side that only asks for the bytes, unless what it sends arrives.
            let all = [WRITER, sender];
            let nodes = if who == Some(TARGET) { &all[1..] } else { &all[..] };
            for &node in nodes {
                assert_eq!(roles(&mut flow, node).serving, STANDBY, "{op:?} {who:?} {seed}: node {node}");
            }
            let before = all.map(|node| sent(&flow, node));
            let until = flow.net.now.0 + MS;
            stream(&mut flow, until);
            for (node, before) in all.into_iter().zip(before).filter(|(node, _)| nodes.contains(node)) {
                assert_eq!(sent(&flow, node)[..2], before[..2], "nothing more on the dead NIC");
            }
        }
    }
}

/// The NIC works again after 20 ms. Probes find that out, and a second later its planes serve again.
#[test]
fn traffic_returns_without_a_stall() {
    let mut flow = two_nics(5, SendOp::Write);
    stream(&mut flow, DEATH);
    let from = flow.net.now.0 + 50 * US;
    flow.net.outages = dead(PRIMARY, from, Time(from + 20 * MS), None);
    stream(&mut flow, from + 5 * MS);
    assert_eq!(roles(&mut flow, WRITER).serving, STANDBY);
    flow.net.run_for(30 * MS);
    assert_eq!(roles(&mut flow, WRITER).serving, STANDBY, "on hold");
    let retransmits = flow.counters(WRITER).tx_retransmits;
    flow.net.run_for(980 * MS);
    let from = flow.net.now.0;
    let stall_ns = stream(&mut flow, from + 40 * MS);
    let status = roles(&mut flow, WRITER);
    assert_eq!((status.serving, status.failovers, status.failbacks), (PRIMARY, 1, 1));
    assert!(stall_ns <= 4 * ROUND_TRIP, "{stall_ns} ns");
    assert_eq!(flow.counters(WRITER).tx_retransmits, retransmits);
    assert_eq!(flow.bad(), 0);
}

/// The NIC returns, and is dead again when the hold time is over: a probe finds that out, not the stream.
#[test]
fn a_nic_that_died_while_it_carried_nothing_is_not_used_again() {
    for (op, who) in [(SendOp::Write, None), (SendOp::Write, Some(WRITER)), (SendOp::Read, None)] {
        let mut flow = two_nics(12, op);
        stream(&mut flow, DEATH);
        let from = flow.net.now.0 + 50 * US;
        flow.net.outages = dead(PRIMARY, from, Time(from + 20 * MS), None);
        flow.net.outages.extend(dead(PRIMARY, from + 500 * MS, Time::NEVER, who));
        stream(&mut flow, from + 5 * MS);
        let sender = sender_of(op);
        assert_eq!(roles(&mut flow, sender).serving, STANDBY);
        let before = sent(&flow, sender);
        flow.net.run_for(980 * MS);
        let until = flow.net.now.0 + 100 * MS;
        let stall_ns = stream(&mut flow, until);
        let status = roles(&mut flow, sender);
        assert_eq!((status.serving, status.failovers, status.failbacks), (STANDBY, 1, 0), "{op:?} {who:?}");
        assert_eq!(sent(&flow, sender)[..2], before[..2], "{op:?} {who:?}");
        assert!(stall_ns <= 4 * ROUND_TRIP, "{op:?} {who:?}: {stall_ns} ns");
    }
}

#[test]
fn an_operator_moves_traffic_without_a_stall_or_a_retransmission() {
    for op in [SendOp::Write, SendOp::Read] {
        let mut flow = two_nics(6, op);
        let healthy_ns = stream(&mut flow, DEATH);
        let sender = sender_of(op);
        for (role, planes) in [(PlaneRole::Standby, STANDBY), (PlaneRole::Primary, PRIMARY)] {
            for _ in 0..DEPTH {
                flow.post(LEN);
            }
            let qpn = flow.ends[sender].qpn;
            assert!(flow.net.endpoint(sender).prefer_role(qpn, role));
            let before = sent(&flow, sender);
            let until = flow.net.now.0 + MS;
            let stall_ns = stream(&mut flow, until);
            assert_eq!(roles(&mut flow, sender).serving, planes);
            let gone = if planes == STANDBY { 0..2 } else { 2..4 };
            assert_eq!(sent(&flow, sender)[gone.clone()], before[gone]);
            assert!(stall_ns <= healthy_ns + ROUND_TRIP, "{op:?}: {stall_ns} ns, healthy {healthy_ns} ns");
            let switched = flow
                .net
                .take_events(sender)
                .iter()
                .any(|event| matches!(event, Event::PlanesSwitched { planes: to, .. } if *to == planes));
            assert!(switched || op == SendOp::Write, "the stream takes the writer's events");
        }
        assert_eq!(flow.counters(sender).tx_retransmits, 0);
        assert_eq!(roles(&mut flow, sender).failovers, 0);
    }
}

/// The peer stands still, or the whole network does: that is no failure of one NIC.
#[test]
fn silence_on_all_planes_moves_nothing() {
    for (ms, seed) in [1, 3, 10, 100, 1000].into_iter().zip(0..) {
        let mut flow = two_nics(seed, SendOp::Write);
        stream(&mut flow, DEATH);
        let from = flow.net.now.0 + 50 * US;
        flow.net.outages = dead(PlaneSet(0b1111), from, Time(from + ms * MS), None);
        stream(&mut flow, from + ms * MS + 5 * MS);
        let status = roles(&mut flow, WRITER);
        assert_eq!(
            (status.failovers, flow.counters(WRITER).retries_exhausted),
            (0, 0),
            "{ms} ms: {status:?}"
        );
    }
}

/// One plane of the primary NIC is left.
#[test]
fn half_a_nic_is_no_dead_nic() {
    let mut flow = two_nics(7, SendOp::Write);
    stream(&mut flow, DEATH);
    let from = flow.net.now.0 + 50 * US;
    flow.net.outages = dead(PlaneSet(0b0001), from, Time::NEVER, None);
    stream(&mut flow, from + 5 * MS);
    assert_eq!((roles(&mut flow, WRITER).failovers, sent(&flow, WRITER)[2..].iter().sum::<usize>()), (0, 0));
}

/// The NIC that took over dies too; the first one is back by then, or neither works for a while.
#[test]
fn a_standby_that_dies_is_no_end() {
    for (back_ms, seed) in [3, 40].into_iter().zip(8..) {
        let mut flow = two_nics(seed, SendOp::Write);
        stream(&mut flow, DEATH);
        let from = flow.net.now.0 + 50 * US;
        flow.net.outages = dead(PRIMARY, from, Time(from + back_ms * MS), None);
        flow.net.outages.extend(dead(STANDBY, from + 20 * MS, Time::NEVER, None));
        let stall_ns = stream(&mut flow, from + 80 * MS);
        let status = roles(&mut flow, WRITER);
        println!("back after {back_ms} ms: stall {stall_ns} ns, {status:?}");
        assert_eq!(status.serving, PRIMARY);
        // 20 ms without any path; it is found as soon as any silence (decision 26).
        let most_ns = if back_ms == 3 { MS } else { 20 * MS + 10 * MS };
        assert!(stall_ns <= most_ns, "{stall_ns} ns");
    }
}

/// The primary NIC dies and returns again and again: it serves for less and less of the time.
#[test]
fn a_flapping_nic_is_used_less_and_less() {
    let mut flow = two_nics(10, SendOp::Write);
    let mut holds = Vec::new();
    for _ in 0..5 {
        let from = flow.net.now.0 + 50 * US;
        flow.net.outages = dead(PRIMARY, from, Time(from + 5 * MS), None);
        stream(&mut flow, from + 4 * MS);
        let status = roles(&mut flow, WRITER);
        assert_eq!(status.serving, STANDBY);
        holds.push(status.hold_ns / (1_000 * MS));
        flow.net.run_for(status.hold_ns + 30 * MS);
        assert_eq!(roles(&mut flow, WRITER).serving, PRIMARY);
    }
    assert_eq!(holds, [1, 2, 4, 8, 16]);
}
