//! The paths of answers, kept fresh by probes while no SACKs come: decision 30.

use std::collections::BTreeSet;

use spindrift::endpoint::QpInit;
use spindrift::path::{EvSource, PathConfig};
use spindrift::time::Time;
use spindrift::wire::{Bth, ENDPOINT_QPN, Eeth, EndpointOp, Ev, OpPosition, Opcode, Packet, Psn, Seth};
use spindrift::work::{RemoteAddr, SendOp, SendWr, Sge};

use crate::receiver::{NODE, PEER_QPN, Receiver, data};
use crate::support::frame::{self, Envelope};
use crate::support::net::address;

/// The usual time between two probes.
const REFRESH: u64 = 1_000_000;
const PEER: usize = 9;

/// What stands for a path on the wire: source port and flow label.
type Way = (u16, u32);

struct Probe {
    at: Time,
    id: Psn,
    way: Way,
}

fn receiver(values: u32) -> Receiver {
    let adjust = |init: &mut QpInit| {
        let evs: Vec<_> = (0..values).map(|n| Ev(0x1000_1000 + (n << 16) + n)).collect();
        init.path = PathConfig {
            active: values as u16,
            backup: 0,
            source: EvSource::Explicit(vec![evs].into()),
            ..PathConfig::new(1)
        };
        assert_eq!((init.path.reverse_refresh_ns, init.path.reverse_per_plane), (REFRESH, 1));
    };
    Receiver::of(|_| {}, adjust)
}

/// What left since the last look: probes, and the ways of answers.
fn left(receiver: &mut Receiver) -> (Vec<Probe>, Vec<Way>) {
    let (mut probes, mut answers) = (Vec::new(), Vec::new());
    for (at, bytes) in core::mem::take(&mut receiver.net.astray) {
        let (meta, packet) = frame::decode(&bytes).unwrap();
        let way = (meta.src_port, meta.flow_label);
        match packet {
            Packet::EndpointRequest { bth, erth } => {
                assert_eq!((erth.op, bth.dest_qpn), (EndpointOp::EvProbe, ENDPOINT_QPN));
                probes.push(Probe { at, id: bth.psn, way });
            }
            Packet::Sack { .. } => answers.push(way),
            Packet::Data { .. } | Packet::Ack { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    (probes, answers)
}

fn ways_of(probes: &[Probe]) -> BTreeSet<Way> {
    probes.iter().map(|probe| probe.way).collect()
}

/// When probes left since the last look.
fn probed(receiver: &mut Receiver) -> Vec<Time> {
    left(receiver).0.iter().map(|probe| probe.at).collect()
}

fn inject(receiver: &mut Receiver, from: usize, packet: &Packet<'_>) {
    let envelope = Envelope::new(address(true, from, 0), address(true, NODE, 0));
    receiver.net.inject(NODE, 0, &envelope.seal(packet));
}

fn answer(receiver: &mut Receiver, id: Psn, from: usize) {
    let bth = Bth::new(Opcode::EndpointResponse, ENDPOINT_QPN, id);
    let eeth = Eeth::new(EndpointOp::EvProbe, OpPosition::default(), 0);
    inject(receiver, from, &Packet::EndpointResponse { bth, eeth });
}

/// The way of the answer to one packet that asks.
fn way_of_sack(receiver: &mut Receiver, n: i32) -> Way {
    receiver.give(&[crate::receiver::Data { ack_req: true, ..data(n) }]);
    let (_, answers) = left(receiver);
    let [way] = answers[..] else { panic!("one SACK, not {answers:?}") };
    way
}

#[test]
fn data_in_and_none_out_is_followed_by_one_probe() {
    let mut receiver = receiver(4);
    receiver.net.run_for(REFRESH);
    assert_eq!(probed(&mut receiver), [], "nothing came in");
    let start = receiver.net.now;
    receiver.give(&[data(0)]);
    for n in 1..5 {
        receiver.net.run_for(REFRESH / 5);
        receiver.give(&[data(n)]);
    }
    receiver.net.run_for(REFRESH / 5 - 1);
    assert_eq!(probed(&mut receiver), []);
    receiver.net.run_for(1);
    assert_eq!(probed(&mut receiver), [start.after(REFRESH)]);
    receiver.net.run_for(1_000 * REFRESH);
    assert_eq!(probed(&mut receiver), [], "idle");
    assert!(
        receiver.net.next_at() > receiver.net.now.after(1_000 * REFRESH),
        "an idle queue pair runs no timer"
    );
    let again = receiver.net.now;
    receiver.give(&[data(5)]);
    receiver.net.run_for(1_000 * REFRESH);
    assert_eq!(probed(&mut receiver), [again.after(REFRESH)]);
    assert_eq!(receiver.counters().tx_endpoint_requests, 2);
}

#[test]
fn steady_data_is_probed_at_the_rate_that_was_set() {
    let mut receiver = receiver(4);
    let start = receiver.net.now;
    let mut sent = Vec::new();
    for n in 0..100 {
        receiver.give(&[data(n)]);
        receiver.net.run_for(REFRESH / 10);
        for Probe { at, id, .. } in left(&mut receiver).0 {
            answer(&mut receiver, id, PEER);
            sent.push(at);
        }
    }
    let due: Vec<_> = (1..=10).map(|n| start.after(n * REFRESH)).collect();
    assert_eq!(sent, due);
}

/// Packets that bring nothing new show as well that the peer waits for answers.
#[test]
fn old_and_repeated_packets_count_as_data() {
    let mut receiver = receiver(4);
    receiver.give(&[data(0), data(2)]);
    receiver.net.run_for(2 * REFRESH);
    for n in [0, 2] {
        assert_eq!(probed(&mut receiver).len(), 1, "before {n} came again");
        receiver.give(&[data(n)]);
        receiver.net.run_for(2 * REFRESH);
    }
    assert_eq!(probed(&mut receiver).len(), 1);
}

#[test]
fn the_way_that_was_answered_last_is_the_one_that_answers_take() {
    let mut receiver = receiver(4);
    let mut ways = Vec::new();
    let (mut n, mut heard, mut unheard) = (0, 0, 0);
    let mut way = way_of_sack(&mut receiver, 0);
    while heard < 16 || unheard < 8 {
        receiver.net.run_for(2 * REFRESH);
        let (probes, _) = left(&mut receiver);
        let [Probe { id, way: probed, .. }] = probes[..] else { panic!("{} probes", probes.len()) };
        n += 1;
        match n % 3 {
            0 => (),
            // Not from the peer.
            1 => answer(&mut receiver, id, PEER + 1),
            _ => answer(&mut receiver, id, PEER),
        }
        if n % 3 == 2 {
            heard += 1;
            way = probed;
            ways.push(way);
        } else {
            unheard += u32::from(probed != way);
        }
        assert_eq!(way_of_sack(&mut receiver, n), way, "probe {n}");
    }
    ways.sort_unstable();
    ways.dedup();
    assert_eq!(ways.len(), 4, "all are tried");
    let counters = receiver.counters();
    assert_eq!(counters.rx_endpoint_responses, n.cast_unsigned().div_ceil(3) as u64 + heard);
}

/// What the peer repeats though it had arrived was answered in vain: probes look for a way at once, and every other answer to it
/// goes elsewhere.
#[test]
fn the_answer_to_what_had_arrived_takes_another_way() {
    const PATIENCE: u64 = 100_000;
    // Below the cumulative acknowledgement, and above it.
    for n in [0, 2] {
        let mut receiver = receiver(16);
        let usual = way_of_sack(&mut receiver, n);
        let again = |receiver: &mut Receiver, rtx| {
            receiver.give(&[crate::receiver::Data { rtx, ..data(n) }]);
            let (probes, answers) = left(receiver);
            let [way] = answers[..] else { panic!("one SACK, not {answers:?}") };
            (probes, way == usual)
        };
        let (probes, same) = again(&mut receiver, false);
        assert_eq!((probes.len(), same), (0, true), "the network doubled it");
        for same in [false, true, false] {
            let (probes, way) = again(&mut receiver, true);
            assert_eq!((probes.len(), way), (4, same), "packet {n}");
            let (probes, _) = (again(&mut receiver, true), again(&mut receiver, true)).0;
            assert_eq!(probes.len(), 0, "they have had no time");
            receiver.net.run_for(PATIENCE);
        }
        let (probes, _) = again(&mut receiver, true);
        let [.., Probe { id, way, .. }] = probes[..] else { panic!("no probes") };
        assert_eq!(ways_of(&probes).len(), 4, "each tries another");
        answer(&mut receiver, id, PEER);
        assert_eq!(left(&mut receiver).1, [way], "the peer is told again, the way that was found");
        assert_eq!(way_of_sack(&mut receiver, n + 1), way);
        receiver.net.run_for(2 * REFRESH);
        way_of_sack(&mut receiver, n + 3);
        receiver.net.run_for(2 * REFRESH);
        let (probes, _) = left(&mut receiver);
        answer(&mut receiver, probes[0].id, PEER);
        assert_eq!(left(&mut receiver).1, [], "once");
    }
}

/// An answer counts once, and only while its probe is remembered.
#[test]
fn an_answer_is_taken_once() {
    let mut receiver = receiver(4);
    let first = way_of_sack(&mut receiver, 0);
    receiver.net.run_for(2 * REFRESH);
    let (probes, _) = left(&mut receiver);
    answer(&mut receiver, probes[0].id.add(1), PEER);
    assert_eq!((receiver.counters().rx_unmatched_response, way_of_sack(&mut receiver, 1)), (1, first));
    answer(&mut receiver, probes[0].id, PEER);
    answer(&mut receiver, probes[0].id, PEER);
    assert_eq!(receiver.counters().rx_unmatched_response, 2);
}

/// The SACKs for data that goes out tell which paths work. Where none comes, perhaps the peer hears none either: the
/// paths of answers may be dead both ways, and one of both has to look for another.
#[test]
fn sacks_make_probes_needless_and_data_out_alone_does_not() {
    for answered in [true, false] {
        let mut receiver = receiver(4);
        let (start, qpn) = (receiver.net.now, receiver.qp.qpn);
        let wr = SendWr {
            wr_id: 1,
            op: SendOp::Write,
            local: Sge { addr: 0, len: 8, lkey: receiver.key.lkey },
            remote: RemoteAddr { addr: 0, rkey: 1 },
            signaled: true,
            fence: false,
        };
        receiver.net.endpoint(NODE).post_send(start, qpn, wr).unwrap();
        receiver.give(&[data(0)]);
        let (_, sent) = core::mem::take(&mut receiver.net.astray).remove(0);
        let Some((_, Packet::Data { head, .. })) = frame::decode(&sent) else { panic!("{sent:02x?}") };
        let psn = head.bth.psn;
        if answered {
            let mut seth =
                Seth { spdcid: PEER_QPN.low16(), dpdcid: qpn.low16(), cack: psn, ..Seth::default() };
            seth.cc.tx_timestamp = head.tseth.unwrap().timestamp;
            inject(&mut receiver, PEER, &Packet::Sack { bth: Bth::new(Opcode::Sack, qpn, psn), seth });
        }
        receiver.net.run_for(2 * REFRESH);
        let first = if answered { vec![] } else { vec![start.after(REFRESH)] };
        assert_eq!(probed(&mut receiver), first);
        // No SACK has come since.
        receiver.give(&[data(1)]);
        receiver.net.run_for(2 * REFRESH);
        assert_eq!(probed(&mut receiver), [start.after(3 * REFRESH)]);
    }
}
