//! What the host's own queues refuse goes out again, and nobody is blamed: the network had no part in it.
//!
//! Tests decision 25 of `docs/protocol.md`.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use spindrift::congestion::CcConfig;
use spindrift::endpoint::QpInit;
use spindrift::time::Time;
use spindrift::wire::Packet;

use crate::flow::{Flow, TARGET, WRITER};
use crate::support::link::{Link, Outage};
use crate::support::net::Tap;

/// Half of what either host sends finds a queue full that is empty again 20 us later.
fn crowded(seed: u64, planes: usize, adjust: impl Fn(QpInit) -> QpInit) -> Flow {
    let mut flow = Flow::with(seed, vec![Link::clean(5_000); planes], 16, adjust);
    for node in [WRITER, TARGET] {
        flow.net.nodes[node].given_back = 5_000;
        flow.net.nodes[node].full_ns = 20_000;
    }
    flow
}

/// Nothing that happened speaks of a loss.
fn assert_nobody_blamed(flow: &mut Flow) {
    assert_eq!(flow.bad(), 0, "no path is assumed bad");
    assert!(flow.evs().iter().all(|ev| ev.drop_count == 0), "{:?}", flow.evs());
    let (writer, target) = (flow.counters(WRITER), flow.counters(TARGET));
    assert!(writer.tx_unsent > 100 && target.tx_unsent > 100, "{writer:?} {target:?}");
    assert_eq!(writer.tx_unsent + target.tx_unsent, flow.net.given_back, "each is counted");
    assert_eq!(writer.tx_unsent_dropped + target.tx_unsent_dropped, 0);
    assert_eq!(writer.loss_same_ev + writer.loss_overdue + writer.loss_nack, 0, "{writer:?}");
    // One SACK may answer a packet that waited and its tail probe, which makes the packet's path a suspect and no more.
    assert_eq!((writer.tx_retransmits, writer.timeouts), (0, 0), "{writer:?}");
}

#[test]
fn lone_writes_ride_out_full_queues() {
    let mut flow = crowded(1, 2, |init| init);
    let times: Vec<u64> = (0..1_000).map(|_| flow.write(64)).collect();
    assert_nobody_blamed(&mut flow);
    // Data and its answer each wait for one full queue after the other, never for a tail probe (100 us) alone.
    let mean = times.iter().sum::<u64>() / times.len() as u64;
    assert!(mean < 10_000 + 4 * 20_000, "{mean} ns for a write");
}

#[test]
fn a_stream_rides_out_full_queues() {
    let mut flow = crowded(2, 2, |init| init);
    flow.stream(300, 40_000, 4);
    assert_nobody_blamed(&mut flow);
    let (writer, target) = (flow.counters(WRITER), flow.counters(TARGET));
    // Only tail probes, which silence draws, arrive twice: a first transmission that had to wait is no repeat.
    assert!(target.rx_duplicates + target.rx_old <= writer.tx_tail_probes, "{target:?}");
}

/// The window is what is in flight; a packet given back is not.
#[test]
fn congestion_control_hears_nothing_of_full_queues() {
    let nscc = |init| QpInit { cc: CcConfig::new(100_000_000_000, 10_000, 4096), ..init };
    let window = |given_back: u32| {
        let mut flow = crowded(3, 1, nscc);
        for node in &mut flow.net.nodes {
            (node.given_back, node.full_ns) = (given_back, 1);
        }
        let status = |flow: &mut Flow| {
            let qpn = flow.ends[WRITER].qpn;
            flow.net.endpoint(WRITER).qp_status(qpn).unwrap()
        };
        let mut least = u64::MAX;
        for _ in 0..300 {
            flow.post(40_000);
            flow.finish_all_but(3);
            least = least.min(status(&mut flow).cwnd_bytes);
        }
        flow.finish_all_but(0);
        assert_eq!(status(&mut flow).inflight_bytes, 0, "all that was sent is accounted for");
        least
    };
    let (undisturbed, crowded) = (window(0), window(5_000));
    assert_eq!(undisturbed, crowded, "the smallest window");
}

/// A retransmission that is given back leaves everything as it was before it.
#[test]
fn repeats_that_did_not_leave_teach_nothing() {
    let (mut lost, mut needless, mut seen) = (0, 0, 0);
    for seed in 0..3 {
        let mut flow = crowded(seed, 1, |init| init);
        flow.net.links[0].loss = 300;
        for node in &mut flow.net.nodes {
            node.full_ns = 2_000;
        }
        flow.stream(400, 40_000, 4);
        let (writer, target) = (flow.counters(WRITER), flow.counters(TARGET));
        lost += writer.loss_same_ev + writer.loss_overdue;
        needless += writer.spurious_retransmits;
        seen += target.rx_duplicates + target.rx_old;
    }
    // What the target had seen before, and what the writer takes for needless, are the same packets, but for an answer
    // that waited at the target until a report that was made later had left.
    assert!(lost > 300 && needless.abs_diff(seen) * 20 <= lost, "{lost} {needless} {seen}");
}

/// A tail probe that finds the queue full leaves as soon as there is room, not when the next one is due.
#[test]
fn a_tail_probe_given_back_is_sent_when_there_is_room() {
    let mut flow = Flow::new(7, vec![Link::clean(5_000)], 16);
    for _ in 0..100 {
        flow.write(64);
    }
    let start = flow.net.now;
    let lost = Outage { from: start, to: start.after(1_000), plane: 0, sender: Some(WRITER), paths: 0 };
    flow.net.outages.push(lost);
    flow.post(64);
    flow.net.run_for(50_000);
    (flow.net.nodes[WRITER].given_back, flow.net.nodes[WRITER].full_ns) = (10_000, 5_000);
    while flow.counters(WRITER).tx_unsent < 4 {
        assert!(flow.net.step());
    }
    flow.net.nodes[WRITER].given_back = 0;
    let room = flow.net.now;
    flow.finish_all_but(0);
    let waited = flow.net.now.since(room);
    assert!(waited <= 5_000 + 10_000 + 1_000, "{waited} ns after there was room again");
}

/// The copy that was lost on a dead path stays the one to blame when the tail probe after it does not leave at once.
#[test]
fn a_tail_probe_that_had_to_wait_still_proves_the_loss_before_it() {
    let mut flow = crowded(6, 1, |init| init);
    for node in &mut flow.net.nodes {
        node.full_ns = 2_000;
    }
    flow.net.outages.push(Outage {
        from: Time::ZERO,
        to: Time::NEVER,
        plane: 0,
        sender: Some(WRITER),
        paths: 4,
    });
    let slow = (0..3_000).filter(|_| flow.write(64) > 100_000).count();
    let (bad, counters) = (flow.bad(), flow.counters(WRITER));
    assert!(bad >= 2, "the dead paths are known");
    assert!(slow <= 3 * bad, "{slow} slow writes, {bad} paths bad: {counters:?}");
    assert!(counters.tail_suspects as usize <= 3 * bad, "{counters:?}");
}

/// What waits for a port whose link goes down is dropped, and what needs it is asked for again.
#[test]
fn answers_held_for_a_port_that_goes_down_are_dropped() {
    let mut flow = crowded(5, 2, |init| init);
    // Everything is given back, until the links change.
    (flow.net.nodes[TARGET].given_back, flow.net.nodes[TARGET].full_ns) = (10_000, 50_000_000);
    flow.post(4_000);
    flow.net.run_for(100_000);
    assert!(flow.counters(TARGET).tx_unsent > 0);
    flow.net.nodes[TARGET].given_back = 0;
    let now = flow.net.now;
    for port in 0..2 {
        flow.net.schedule_link(now.after(1_000), TARGET, port, false);
        flow.net.schedule_link(now.after(50_000), TARGET, port, true);
    }
    flow.net.run_for(10_000);
    assert!(flow.counters(TARGET).tx_unsent_dropped > 0);
    flow.finish_all_but(0);
}

/// Data packets that left a host, and those of them that had left before.
#[derive(Clone, Default)]
struct Left(Arc<Mutex<LeftCounts>>);

#[derive(Debug, Default)]
struct LeftCounts {
    packets: u64,
    bytes: u64,
    repeats: u64,
    psns: BTreeSet<u32>,
}

impl Tap for Left {
    fn sent(&mut self, _: Time, node: usize, packet: &Packet<'_>) {
        if let Packet::Data { head, payload, .. } = packet
            && node == WRITER
        {
            let counts = &mut *self.0.lock().unwrap();
            counts.packets += 1;
            counts.bytes += payload.len() as u64;
            counts.repeats += u64::from(!counts.psns.insert(head.bth.psn.get()));
        }
    }
    fn arrived(&mut self, _: Time, _: usize, _: &Packet<'_>) {}
}

/// Of all that finds queues full, only what leaves at last is counted as sent, and only what left before as repeated.
#[test]
fn what_is_counted_as_sent_has_left() {
    let lossy = Link { loss: 500, ..Link::clean(5_000) };
    let mut flow = Flow::with(7, vec![lossy; 2], 16, |init| init);
    flow.net.nodes[WRITER].given_back = 3_000;
    flow.net.nodes[WRITER].full_ns = 20_000;
    let left = Left::default();
    flow.net.tap = Some(Box::new(left.clone()));
    flow.stream(300, 40_000, 4);
    for _ in 0..300 {
        // Its loss is found out by tail probes alone.
        flow.write(64);
    }
    let (counters, pair) = (flow.counters(WRITER), flow.status(WRITER).counters);
    let left = left.0.lock().unwrap();
    println!("{} packets, {} repeats, {} given back", left.packets, left.repeats, counters.tx_unsent);
    assert!(counters.tx_unsent > 100 && counters.tx_retransmits > 10 && counters.tx_tail_probes > 10);
    assert_eq!((counters.tx_data, counters.tx_data_bytes), (left.packets, left.bytes));
    assert_eq!(counters.tx_retransmits + counters.tx_tail_probes, left.repeats);
    assert_eq!((pair.tx_packets, pair.tx_bytes, pair.tx_repeats), (left.packets, left.bytes, left.repeats));
}
