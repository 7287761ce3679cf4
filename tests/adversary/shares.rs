//! Endpoints that share addresses: what comes in on the wrong one goes to the right one, once.

use spindrift::endpoint::{Endpoint, EndpointConfig, Forward, QpnShare, Transmit};
use spindrift::path::PlaneSet;
use spindrift::pmd::{RxFrame, RxOrigin};
use spindrift::time::Time;
use spindrift::wire::{
    Bth, ENDPOINT_QPN, Eeth, EndpointOp, Erth, Ev, ICRC_LEN, OpPosition, Opcode, Packet, Psn, Qpn, stack,
};

use crate::bench::{Bench, VICTIM, config, envelope, stranger_ip};
use crate::support::frame::{self, Envelope};
use crate::support::net::address;
use crate::support::pair::Patience;

const OF: u32 = 3;
/// The victim's place among them.
const OWNER: u32 = 1;

/// The victim and two more endpoints with its addresses, which have no queue pairs.
struct Shared {
    bench: Bench,
    others: Vec<Endpoint>,
}

/// Where a frame went, and how it arrived at the last.
type Visited = Vec<u32>;

impl Shared {
    fn new() -> Self {
        Self::with(|_| ())
    }

    fn with(adjust: impl Fn(&mut EndpointConfig)) -> Self {
        let share = |cfg: &mut EndpointConfig, index| {
            cfg.qpns = QpnShare { index, of: OF };
            adjust(cfg);
        };
        let bench = Bench::with(|cfg| share(cfg, OWNER), Patience::default());
        let others = [0, 2].map(|index| {
            let mut cfg = config(VICTIM);
            share(&mut cfg, index);
            Endpoint::new(cfg).unwrap()
        });
        Self { bench, others: others.into() }
    }

    fn endpoint(&mut self, index: u32) -> &mut Endpoint {
        match index {
            OWNER => self.bench.net.endpoint(VICTIM),
            0 => &mut self.others[0],
            _ => &mut self.others[1],
        }
    }

    /// Gives a frame to one of them on plane 0, and on as they say.
    fn give(&mut self, first: u32, bytes: &[u8]) -> Visited {
        let now = self.bench.net.now;
        let frame = RxFrame::whole(RxOrigin::Ethernet, bytes);
        let mut visited = vec![first];
        self.endpoint(first).receive(now, 0, &frame);
        let mut next: Option<Forward> = self.endpoint(first).take_forward();
        while let Some(forward) = next {
            let to = forward.to();
            visited.push(to);
            assert!(visited.len() <= OF as usize, "round and round: {visited:?}");
            self.endpoint(to).receive_forwarded(now, 0, &frame, forward);
            next = self.endpoint(to).take_forward();
        }
        let mrc = stack::parse(bytes).unwrap().mrc;
        let steered = QpnShare::STEERING.queue(mrc, OF as usize) as u32;
        match Packet::decode(&mrc[..mrc.len() - ICRC_LEN]) {
            // Anybody answers it, or it goes round.
            Ok(Packet::EndpointRequest { bth, .. }) => {
                assert_eq!(steered, QpnShare::owner_of_request(bth.psn.get() as u16, OF));
            }
            _ => assert_eq!(visited.last(), Some(&steered), "{visited:?}"),
        }
        visited
    }

    /// Each endpoint's count under `name`.
    fn counts(&mut self, name: &str) -> [u64; OF as usize] {
        [0, 1, 2].map(|index| {
            let counters = self.endpoint(index).counters();
            counters.iter().find(|row| row.0 == name).unwrap().2
        })
    }
}

fn request(op: EndpointOp, mask: u32) -> Packet<'static> {
    let bth = Bth::new(Opcode::EndpointRequest, ENDPOINT_QPN, Psn::new(0x1234));
    Packet::EndpointRequest { bth, erth: Erth { op, port_status_mask: mask, ..Erth::default() } }
}

#[test]
fn a_packet_goes_to_the_endpoint_of_its_queue_pair() {
    for first in [0, 1, 2] {
        let mut shared = Shared::new();
        let (head, elsewhere) = (shared.bench.write(), u64::from(first != OWNER));
        let good = Packet::Data { head, payload: &[7; 8], pad: &[] };
        let path = if elsewhere == 1 { vec![first, OWNER] } else { vec![OWNER] };
        let expect = |shared: &mut Shared, what: &str, owner: &[(&'static str, u64)]| {
            let came = [("rx_packets", 1)];
            let came = if elsewhere == 0 { &came[..] } else { &[] };
            shared.bench.expect_counts(what, &[came, owner].concat());
            shared.bench.mark();
        };

        let mut bad = envelope().seal(&good);
        let last = bad.len() - 1;
        bad[last] ^= 1;
        assert_eq!(shared.give(first, &bad), path);
        expect(&mut shared, "corrupt", &[("rx_bad_icrc", 1)]);

        let mut trimmed = envelope();
        trimmed.traffic_class = config(VICTIM).dscp.trimmed << 2;
        assert_eq!(shared.give(first, &trimmed.seal(&good)), path);
        expect(&mut shared, "trimmed", &[("rx_trimmed", 1)]);

        assert_eq!(shared.give(first, &envelope().seal(&good)), path);
        let taken = [("rx_data", 1), ("rx_placed_bytes", 8)];
        expect(&mut shared, "written", &taken);
        shared.bench.target.expected[..8].fill(7);
        shared.bench.target.check("written");

        // None of the owner's queue pairs, and a number that no endpoint gives.
        for (unknown, owner) in [(head.bth.dest_qpn.get() ^ 0x8_0000, OWNER), (7, 0)] {
            let mut head = head;
            head.bth.dest_qpn = Qpn::new(unknown);
            let before = shared.counts("rx_unknown_qp")[owner as usize];
            let visited =
                shared.give(first, &envelope().seal(&Packet::Data { head, payload: &[7; 8], pad: &[] }));
            assert_eq!(visited.last(), Some(&owner));
            assert_eq!(visited.len(), 1 + usize::from(first != owner));
            assert_eq!(shared.counts("rx_unknown_qp")[owner as usize], before + 1);
        }

        let others = shared.counts("rx_other_lane");
        assert_eq!(others[first as usize], 4 * elsewhere + u64::from(first != 0));
        assert_eq!(others.iter().sum::<u64>(), others[first as usize]);
        let packets = shared.counts("rx_packets");
        assert_eq!((packets[first as usize], packets.iter().sum::<u64>()), (5, 5), "each once");
        shared.bench.check_healthy("shared addresses");
    }
}

/// An endpoint that has all numbers knows of no others.
#[test]
fn one_endpoint_passes_nothing_on() {
    let mut bench = Bench::new();
    let mut head = bench.write();
    head.bth.dest_qpn = Qpn::new(head.bth.dest_qpn.get() ^ 0xf0_0000);
    bench.give(&Packet::Data { head, payload: &[7; 8], pad: &[] });
    bench.give(&request(EndpointOp::PortStatusUpdate, 3));
    assert_eq!(bench.net.endpoint(VICTIM).take_forward(), None);
    assert_eq!(bench.count("rx_unknown_qp"), 1);
    assert_eq!(bench.count("tx_endpoint_responses"), 1);
}

/// Only an endpoint that is connected to whoever asks knows where the answer goes; a stranger is answered by the last.
#[test]
fn probes_are_answered_by_who_knows_the_sender_and_responses_go_to_whoever_asked() {
    let mut shared = Shared::new();
    for first in [0, 1, 2] {
        let path = [vec![0, 1], vec![1], vec![2, 0, 1]][first as usize].clone();
        assert_eq!(shared.give(first, &envelope().seal(&request(EndpointOp::EvProbe, 0))), path);
        let stranger = Envelope::new(stranger_ip(), address(true, VICTIM, 0));
        let round: Vec<u32> = (0..OF).map(|step| (first + step) % OF).collect();
        assert_eq!(shared.give(first, &stranger.seal(&request(EndpointOp::EvProbe, 0))), round);
        for owner in [0_u32, 1, 2] {
            for top in (0..16).filter(|top| top % OF == owner) {
                let bth = Bth::new(Opcode::EndpointResponse, ENDPOINT_QPN, Psn::new(top << 12 | 0x345));
                let eeth = Eeth::new(EndpointOp::EvProbe, OpPosition::default(), 0);
                let response = envelope().seal(&Packet::EndpointResponse { bth, eeth });
                let path = if first == owner { vec![owner] } else { vec![first, owner] };
                assert_eq!(shared.give(first, &response), path);
            }
        }
    }
    assert_eq!(shared.counts("tx_endpoint_responses"), [1, 1 + 3, 1]);
    assert_eq!(shared.counts("rx_endpoint_requests"), [2, 2, 2]);
    assert_eq!(shared.counts("rx_unmatched_response"), [18, 15, 15]);
}

/// Whoever answers a port status update at the end of its round does so where the peer listens, known to it or not.
#[test]
fn the_last_of_a_round_answers_where_the_first_of_them_knows() {
    for first in [0_u32, 1, 2] {
        let mut shared = Shared::new();
        let ip = crate::answer_ports::connect(&mut shared.bench, 30, 40_001);
        let frame =
            Envelope::new(ip, address(true, VICTIM, 0)).seal(&request(EndpointOp::PortStatusUpdate, 0b11));
        let last = *shared.give(first, &frame).last().unwrap();
        let mut out = Transmit::default();
        let now = shared.bench.net.now;
        let mut answered = Vec::new();
        while shared.endpoint(last).transmit(now, PlaneSet::ALL, &mut out) {
            let bytes = frame::join(shared.endpoint(last), &out);
            let (meta, packet) = frame::decode(&bytes).unwrap();
            if matches!(packet, Packet::EndpointResponse { .. }) {
                answered.push((meta.dst, meta.dst_port));
            }
        }
        assert_eq!(answered, [(ip, 40_001)], "first at {first}");
    }
}

/// All learn of it, and the last one answers if any of them believed it.
#[test]
fn a_port_status_update_goes_round() {
    for first in [0_u32, 1, 2] {
        let mut shared = Shared::new();
        let round: Vec<u32> = (0..OF).map(|step| (first + step) % OF).collect();
        let last = round[2] as usize;
        let only = |count: u64| {
            let mut counts = [0; 3];
            counts[last] = count;
            counts
        };
        let stranger = Envelope::new(stranger_ip(), address(true, VICTIM, 0));
        for (what, envelope, mask, counter) in [
            ("of a stranger", stranger, 1, "rx_foreign_port_status"),
            ("against itself", envelope(), 0b10, "rx_contradicting_port_status"),
            ("of the peer", envelope(), 0b01, "tx_endpoint_responses"),
        ] {
            let before = shared.counts(counter);
            assert_eq!(before, [0; 3], "{what}");
            let frame = envelope.seal(&request(EndpointOp::PortStatusUpdate, mask));
            assert_eq!(shared.give(first, &frame), round, "{what}");
            assert_eq!(shared.counts(counter), only(1), "{what}, first at {first}");
        }
        assert_eq!(shared.counts("tx_endpoint_responses"), only(1));
        assert_eq!(shared.counts("rx_endpoint_requests")[first as usize], 3);
        assert_eq!(shared.counts("rx_endpoint_requests").iter().sum::<u64>(), 3);
        let endpoint = shared.bench.net.endpoint(VICTIM);
        assert!(endpoint.next_timeout() <= Time(u64::MAX - 1), "a plane is in doubt");
        shared.bench.net.pump(VICTIM);
        let probes = shared.bench.net.astray.iter().filter(|(_, bytes)| {
            matches!(frame::decode(bytes).unwrap().1, Packet::EndpointRequest { erth, .. } if erth.op == EndpointOp::EvProbe)
        });
        assert!(probes.count() > 0, "the peer's endpoint took it in");
    }
}

#[test]
fn rounds_are_limited() {
    const PER_SECOND: u32 = 1_000;
    let mut shared = Shared::with(|cfg| cfg.limits.answers_per_second = PER_SECOND);
    let frame = envelope().seal(&request(EndpointOp::PortStatusUpdate, 0b01));
    let mut rounds = 0;
    for _ in 0..1_000 {
        shared.bench.net.now = shared.bench.net.now.after(100_000);
        for _ in 0..10 {
            rounds += u64::from(shared.give(0, &frame).len() > 1);
        }
    }
    assert!((100..=116).contains(&rounds), "{rounds} in 100 ms");
    assert_eq!(shared.counts("rx_rate_limited")[0], 10_000 - rounds);
}

/// The numbers and ids that an endpoint gives tell that they are its own.
#[test]
fn what_an_endpoint_asks_is_answered_to_it() {
    let mut shared = Shared::new();
    let (now, qpn) = (shared.bench.net.now, shared.bench.qp.qpn);
    assert_eq!(QpnShare::owner(qpn, OF), OWNER);
    let endpoint = shared.bench.net.endpoint(VICTIM);
    for _ in 0..300 {
        let id = endpoint.send_ev_probe(now, qpn, 0, Ev(5)).unwrap();
        assert_eq!(QpnShare::owner_of_request(id, OF), OWNER);
    }
    shared.bench.net.pump(VICTIM);
    // Updates and probes of planes, several times each.
    shared.bench.net.schedule_link(now.after(1), VICTIM, 1, false);
    let frame = envelope().seal(&request(EndpointOp::PortStatusUpdate, 0b01));
    shared.give(OWNER, &frame);
    shared.bench.net.run_for(30_000_000);
    let ids: Vec<(EndpointOp, u16)> = shared
        .bench
        .net
        .astray
        .iter()
        .filter_map(|(_, bytes)| match frame::decode(bytes)?.1 {
            Packet::EndpointRequest { bth, erth } => Some((erth.op, bth.psn.get() as u16)),
            _ => None,
        })
        .collect();
    for op in [EndpointOp::PortStatusUpdate, EndpointOp::EvProbe] {
        let of_op: Vec<u16> = ids.iter().filter(|id| id.0 == op).map(|id| id.1).collect();
        assert!(of_op.len() > 2, "{op:?}: {ids:?}");
        assert!(of_op.iter().all(|&id| QpnShare::owner_of_request(id, OF) == OWNER), "{op:?}: {of_op:x?}");
    }
}
