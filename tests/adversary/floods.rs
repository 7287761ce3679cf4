//! Floods of what must be answered, and port news from those whom nobody asked.

use spindrift::endpoint::{EndpointConfig, QpModify};
use spindrift::wire::{Bth, ENDPOINT_QPN, EndpointOp, Erth, Opcode, Packet, Peth, Psn, Seth};

use crate::alloc::held_by_thread;
use crate::bench::{ATTACKER_QPN, Bench, VICTIM, attacker_ip, stranger_ip};
use crate::support::frame::Envelope;
use crate::support::net::{address, ports};
use crate::support::pair::Patience;

/// Answers a second in these tests; a hundredth of it may come at once.
const RATE: u32 = 10_000;

fn limited() -> Bench {
    Bench::with(|cfg: &mut EndpointConfig| cfg.limits.answers_per_second = RATE, Patience::default())
}

fn probe(bench: &Bench, id: u16) -> Packet<'static> {
    let peth = Peth {
        probe_id: id,
        spdcid: ATTACKER_QPN.get() as u16,
        dpdcid: bench.qp.qpn.get() as u16,
        ..Peth::default()
    };
    Packet::Probe { bth: Bth::new(Opcode::Probe, bench.qp.qpn, Psn::new(0)), peth }
}

fn request(op: EndpointOp, id: u32, mask: u32) -> Packet<'static> {
    let erth = Erth { op, port_status_mask: mask, ..Erth::default() };
    Packet::EndpointRequest { bth: Bth::new(Opcode::EndpointRequest, ENDPOINT_QPN, Psn::new(id)), erth }
}

#[test]
fn probes_are_answered_at_a_limited_rate() {
    let mut bench = limited();
    for id in 0..50_000_u32 {
        let packet = probe(&bench, id as u16);
        bench.give(&packet);
        bench.net.now = bench.net.now.after(1_000);
    }
    // 50 ms: a burst of 100, and then 10,000 a second.
    let answered = bench.count("tx_sacks");
    assert!((590..=610).contains(&answered), "{answered}");
    assert_eq!(bench.count("rx_rate_limited"), 50_000 - answered);
    assert_eq!(bench.count("rx_probes"), 50_000);
    bench.check_healthy("a flood of probes");
}

#[test]
fn probes_of_another_connection_are_not_answered() {
    let mut bench = limited();
    let Packet::Probe { bth, peth } = probe(&bench, 1) else { panic!() };
    for wrong in [Peth { spdcid: 1, ..peth }, Peth { dpdcid: 1, ..peth }] {
        bench.give(&Packet::Probe { bth, peth: wrong });
    }
    bench.expect_counts("ids", &[("rx_packets", 2), ("rx_probes", 2), ("rx_wrong_connection", 2)]);
    assert_eq!(bench.answers(), Vec::<String>::new());
    bench.give(&Packet::Probe { bth, peth });
    assert_eq!(bench.answers(), ["Sack answers probe 0001"]);
    bench.check_healthy("probes of another connection");
}

#[test]
fn requests_are_answered_at_a_limited_rate_and_cost_no_memory() {
    let mut bench = limited();
    let envelope = Envelope::new(stranger_ip(), address(true, VICTIM, 0));
    let flood = |bench: &mut Bench, count: u32| {
        for id in 0..count {
            bench.net.inject(VICTIM, 0, &envelope.seal(&request(EndpointOp::EvProbe, id, 0)));
            bench.net.now = bench.net.now.after(1_000);
            bench.net.astray.clear();
        }
    };
    flood(&mut bench, 20_000);
    let before = held_by_thread();
    flood(&mut bench, 100_000);
    let grown = held_by_thread() - before;
    // Less than a byte a request; the network of the test keeps its last packets.
    assert!(grown < 32 << 10, "{grown} bytes more");
    // 120 ms: a burst of 16, and then a sixteenth of what peers may have.
    let answered = bench.count("tx_endpoint_responses");
    assert!((85..=95).contains(&answered), "{answered}");
    assert_eq!(bench.count("rx_rate_limited"), 120_000 - answered);
    // A peer has its own allowance.
    bench.give(&request(EndpointOp::EvProbe, 77, 0));
    assert_eq!(bench.answers(), ["Response 004d"]);
    bench.check_healthy("a flood of requests");
}

#[test]
fn answers_that_cannot_leave_are_bounded() {
    let adjust = |cfg: &mut EndpointConfig| cfg.limits.answers_per_second = 1_000_000_000;
    let mut bench = Bench::with(adjust, Patience::default());
    let envelope = Envelope::new(stranger_ip(), address(true, VICTIM, 0));
    for id in 0..10_000 {
        let frame = envelope.seal(&request(EndpointOp::EvProbe, id, 0));
        bench.give_silently(0, &frame);
        let frame = crate::bench::envelope().seal(&probe(&bench, id as u16));
        bench.give_silently(0, &frame);
    }
    bench.net.pump(VICTIM);
    let (responses, sacks) = (bench.count("tx_endpoint_responses"), bench.count("tx_sacks"));
    assert_eq!(responses, 256, "what fits in the queue");
    assert_eq!(sacks, 256, "what fits in the queue of the queue pair");
    assert_eq!(bench.count("tx_sacks_dropped"), 10_000 - 256, "the others are counted");
    bench.check_healthy("answers that cannot leave");
}

/// Nobody told us the Ethernet address of a stranger, so the answer goes to where the request came from.
#[test]
fn strangers_are_answered_where_they_are() {
    let mut bench = Bench::new();
    let mut frame =
        Envelope::new(stranger_ip(), address(true, VICTIM, 0)).seal(&request(EndpointOp::EvProbe, 5, 0));
    let mac = [0x0a, 1, 2, 3, 4, 5];
    frame[6..12].copy_from_slice(&mac);
    bench.net.inject(VICTIM, 0, &frame);
    let answers: Vec<_> = bench.net.astray.iter().map(|(_, bytes)| bytes[..6].to_vec()).collect();
    assert_eq!(answers, [mac]);
}

#[test]
fn strangers_have_no_say_about_ports() {
    let mut bench = Bench::new();
    let frame = Envelope::new(stranger_ip(), address(true, VICTIM, 0)).seal(&request(
        EndpointOp::PortStatusUpdate,
        1,
        0,
    ));
    bench.net.inject(VICTIM, 0, &frame);
    bench.expect_counts(
        "a stranger",
        &[("rx_packets", 1), ("rx_endpoint_requests", 1), ("rx_foreign_port_status", 1)],
    );
    assert_eq!(bench.answers(), Vec::<String>::new());
    bench.check_healthy("a stranger's port status");
    // Reserved operations, and requests to a queue pair.
    bench.mark();
    bench.give(&request(EndpointOp::Reserved2, 2, 0));
    let Packet::EndpointRequest { bth, erth } = request(EndpointOp::EvProbe, 3, 0) else { panic!() };
    let bth = Bth { dest_qpn: bench.qp.qpn, ..bth };
    bench.give(&Packet::EndpointRequest { bth, erth });
    bench.expect_counts(
        "misuse",
        &[("rx_packets", 2), ("rx_endpoint_requests", 2), ("rx_malformed", 1), ("rx_unknown_qp", 1)],
    );
    bench.check_healthy("misused requests");
}

#[test]
fn trimmed_packets_cost_at_most_a_nack() {
    let mut bench = Bench::new();
    let dscp = bench.net.endpoint(VICTIM).config().dscp;
    let mut head = bench.write();
    head.reth.rkey = 0xdead;
    let mut envelope = Envelope::new(attacker_ip(1), address(true, VICTIM, 1));
    envelope.traffic_class = dscp.trimmed << 2;
    let frame = envelope.seal(&Packet::Data { head, payload: &[1; 8], pad: &[] });
    bench.net.inject(VICTIM, 1, &frame);
    assert_eq!(bench.answers(), ["Nack 1 psn fffffe"]);
    envelope.traffic_class = dscp.trimmed_last_hop << 2;
    let frame = envelope.seal(&Packet::Data { head, payload: &[1; 8], pad: &[] });
    for _ in 0..1_000 {
        bench.give_silently(1, &frame);
    }
    bench.net.pump(VICTIM);
    assert_eq!(bench.count("rx_trimmed"), 1_001);
    assert_eq!((bench.count("tx_nacks"), bench.count("tx_nacks_dropped")), (257, 744));
    // Too short for its headers, and of packets that no switch trims.
    bench.mark();
    let Packet::Probe { bth, peth } = probe(&bench, 1) else { panic!() };
    let frame = envelope.seal(&Packet::Probe { bth, peth });
    bench.net.inject(VICTIM, 1, &frame);
    bench.net.inject(VICTIM, 1, &envelope.wrap(&[0xca, 0, 0xff, 0xff]));
    bench.expect_counts("useless", &[("rx_packets", 2), ("rx_trimmed", 2), ("rx_trimmed_useless", 2)]);
    bench.check_healthy("forged trims");
}

/// A write of the attacker's that the last switch trimmed.
fn trimmed(bench: &Bench) -> Vec<u8> {
    let mut envelope = Envelope::new(attacker_ip(0), address(true, VICTIM, 0));
    envelope.traffic_class = EndpointConfig::new(ports(true, VICTIM, 1, 4300)).dscp.trimmed_last_hop << 2;
    envelope.seal(&Packet::Data { head: bench.write(), payload: &[1; 8], pad: &[] })
}

/// What is trimmed and not wanted makes no NACK: by an endpoint without trimming, or a packet that has arrived.
#[test]
fn trimmed_packets_that_nobody_misses_are_dropped() {
    let useless = [("rx_packets", 1), ("rx_trimmed", 1), ("rx_trimmed_useless", 1)];
    let mut bench = Bench::with(|cfg| cfg.trimming = false, Patience::default());
    let frame = trimmed(&bench);
    bench.net.inject(VICTIM, 0, &frame);
    bench.expect_counts("no trimming", &useless);
    assert_eq!(bench.answers(), Vec::<String>::new());

    let mut bench = Bench::new();
    let head = bench.write();
    bench.give(&Packet::Data { head, payload: &[1; 8], pad: &[] });
    bench.answers();
    bench.mark();
    let frame = trimmed(&bench);
    bench.net.inject(VICTIM, 0, &frame);
    bench.expect_counts("a packet that has arrived", &useless);
    assert_eq!(bench.answers(), Vec::<String>::new());
}

/// Each kind of packet for a queue pair that has ended is dropped and counted once.
#[test]
fn a_queue_pair_in_error_answers_nothing() {
    let mut bench = Bench::new();
    let (now, qpn) = (bench.net.now, bench.qp.qpn);
    bench.net.endpoint(VICTIM).modify_qp(now, qpn, QpModify::Error).unwrap();
    bench.answers();
    let seth = Seth { spdcid: ATTACKER_QPN.get() as u16, dpdcid: qpn.get() as u16, ..Seth::default() };
    let sack = Packet::Sack { bth: Bth::new(Opcode::Sack, qpn, Psn::new(0)), seth };
    for (packet, kind) in [(probe(&bench, 1), "rx_probes"), (sack, "rx_sacks")] {
        bench.mark();
        bench.give(&packet);
        bench.expect_counts(kind, &[("rx_packets", 1), (kind, 1), ("rx_wrong_state", 1)]);
    }
    bench.mark();
    let frame = trimmed(&bench);
    bench.net.inject(VICTIM, 0, &frame);
    bench.expect_counts("trimmed", &[("rx_packets", 1), ("rx_trimmed", 1), ("rx_trimmed_useless", 1)]);
    assert_eq!(bench.answers(), Vec::<String>::new());
}
