//! Lanes with the same addresses: a packet may come in on any of them.

use spindrift::endpoint::QpnShare;
use spindrift::pmd::loopback::{self, LoopbackConfig};
use spindrift::pmd::udp::{SourcePorts, UdpConfig, UdpPort};
use spindrift::verbs::{Context, ContextConfig, LaneMode, VerbsError, WcStatus, nic, nic_of_queues};

use crate::connected_pair::{THREAD, faulty, until};
use crate::multi_lane::{Many, next, open, pair_at, ports, ports_of, post_rounds, write};

const LANES: usize = 3;

/// Queue pair `n` is on lane `n % 3` here and on the one after it there, so each packet comes in on the wrong one.
fn crossed(mode: LaneMode, qps: usize, config: LoopbackConfig) -> (Many, Many) {
    let (left, right) = ports_of(LANES, 2, config);
    pair_at([open(left, mode), open(right, mode)], qps, [|qp| qp % LANES, |qp| (qp + 1) % LANES])
}

/// Writes so many of all parts of the memory, one for each of eight queue pairs; all arrive.
fn write_rounds(left: &mut Many, right: &Many, rounds: u64) {
    let bytes = post_rounds(left, right, rounds);
    for _ in 0..rounds * left.qps.len() as u64 {
        assert_eq!(next(left, right).status, WcStatus::Success);
    }
    let mut arrived = vec![0; 1 << 16];
    right.mr.read_at(0, &mut arrived).unwrap();
    assert!(arrived == bytes);
}

#[test]
fn packets_that_come_in_on_the_wrong_lane_are_handed_over() {
    const QPS: usize = 8;
    for mode in [LaneMode::Inline, THREAD] {
        let (mut left, right) = crossed(mode, QPS, LoopbackConfig::default());
        write_rounds(&mut left, &right, 20);
        for (side, what) in [(&left, "left"), (&right, "right")] {
            // What the other side sent last may still be on its way.
            let transport = until("all packets on the wrong lane, each counted once, and taken over", || {
                left.context.poll();
                right.context.poll();
                let (transport, lanes) = (side.context.counters(), side.context.lane_counters());
                // Probes are answered where they come in.
                let asked = transport.rx_endpoint_requests + transport.rx_endpoint_responses;
                let counts =
                    [transport.rx_packets, transport.rx_other_lane + asked, lanes.taken_over + asked];
                (counts == [lanes.rx_frames; 3]).then_some(transport)
            });
            assert_eq!((transport.rx_unknown_qp, transport.rx_bad_icrc), (0, 0), "{what}");
        }
    }
}

/// Over the receive queues of kernel sockets each packet comes in on its lane, so nothing is handed over.
#[test]
fn kernel_sockets_steer_packets_to_their_lanes() {
    const QPS: usize = 8;
    for (mode, ips) in [(LaneMode::Inline, [1, 3]), (THREAD, [5, 7])] {
        let contexts = ips.map(|first: u8| {
            let planes = [first, first + 1].map(|last| {
                let local = [127, 83, 8, last].into();
                UdpPort::open_queues(&UdpConfig { local, ..UdpConfig::default() }, LANES, &QpnShare::STEERING)
            });
            open(nic_of_queues(planes.map(Result::unwrap).into()), mode)
        });
        let (mut left, right) = pair_at(contexts, QPS, [|qp| qp % LANES, |qp| (qp + 1) % LANES]);
        write_rounds(&mut left, &right, 40);
        for side in [&left, &right] {
            assert_eq!(side.context.counters().rx_other_lane, 0);
            for lane in 0..LANES {
                assert!(side.context.counters_of(lane).0.rx_packets > 0, "lane {lane}");
            }
        }
    }
}

/// One segmentation batch with packets for several lanes comes in on one of them.
#[test]
fn batches_for_several_lanes_are_taken_apart() {
    let planes = [11, 12].map(|last| {
        let local = [127, 83, 8, last].into();
        let config = UdpConfig { local, source_ports: SourcePorts::Count(1), ..UdpConfig::default() };
        UdpPort::open_queues(&config, LANES, &QpnShare::STEERING).unwrap()
    });
    let [left, right] = planes.map(|queues| open(nic_of_queues(vec![queues]), LaneMode::Inline));
    let (mut left, right) = pair_at([left, right], 8, [|_| 0, |qp| qp % LANES]);
    write_rounds(&mut left, &right, 40);
    let (transport, lanes) = (right.context.counters(), right.context.lane_counters());
    assert!(transport.rx_other_lane > 0 && lanes.taken_over == transport.rx_other_lane, "{transport:?}");
}

/// One that does not keep up loses packets, and nothing else.
#[test]
fn a_full_inbox_loses_packets_that_come_again() {
    let small = LoopbackConfig { frame_max: 512, ..LoopbackConfig::default() };
    let (mut left, right) = crossed(LaneMode::Inline, 8, small);
    for n in 0..100 * 8 {
        let wr = write(&left, &right, n % 8, n as u64);
        left.qps[n % 8].post_send(wr).unwrap();
    }
    until("a full inbox", || {
        left.context.poll();
        // Lane 2 takes nothing in.
        right.context.poll_lane(0);
        right.context.poll_lane(1);
        (right.context.counters_of(1).1.handover_lost > 0).then_some(())
    });
    for _ in 0..100 * 8 {
        assert_eq!(next(&mut left, &right).status, WcStatus::Success);
    }
    assert!(right.context.lane_counters().handover_lost < right.context.lane_counters().taken_over);
}

/// The news comes in on a lane that has no queue pair with that peer, and so does the answer.
#[test]
fn port_news_reach_the_lane_that_they_concern() {
    let (mut theirs, mut ours) = (Vec::new(), Vec::new());
    for lane in 0..2 {
        let (left, right) = loopback::pair(2, LoopbackConfig::default());
        ours.push(nic(left));
        let plan = if lane == 0 { "down,port=1,from=50ms" } else { "" };
        theirs.push(faulty(right, plan, 1));
    }
    let sides = [open(ours, THREAD), open(theirs, THREAD)];
    let (left, right) = pair_at(sides, 1, [|_| 1, |_| 0]);
    until("the news", || {
        let heard = left.context.counters_of(1).0.peer_port_changes > 0;
        (heard && right.context.counters_of(0).0.rx_endpoint_responses > 0).then_some(())
    });
    let (first, second) = (left.context.counters_of(0).0, left.context.counters_of(1).0);
    // A machine that pauses a lane for long may have the news told again; `adversary shares` counts in virtual time.
    let asked = right.context.counters_of(0).0;
    let told = 1..=asked.tx_endpoint_requests;
    assert!(told.contains(&first.rx_endpoint_requests), "{first:?}");
    assert!(told.contains(&second.tx_endpoint_responses), "{second:?}");
    assert_eq!((second.rx_endpoint_requests, first.tx_endpoint_responses), (0, 0), "where it came in");
    assert_eq!(first.rx_foreign_port_status, 0);
    assert!(asked.rx_unmatched_response < asked.tx_endpoint_requests, "{asked:?}");
}

#[test]
fn lanes_that_share_addresses_crosswise_are_refused() {
    let (mut lanes, _) = ports(2, 2);
    lanes[1].swap(0, 1);
    let settings = ContextConfig::new(&lanes[0]).lanes([LaneMode::Inline; 2]);
    let error = Context::open_lanes(lanes, settings).unwrap_err();
    let VerbsError::LaneAddresses { address, lane: 0, plane: 0, other: 1 } = error else { panic!("{error}") };
    let text = error.to_string();
    assert!(text.contains(&address.to_string()) && text.contains("in the same order"), "{text}");
}
