//! What each kind of packet must match before it changes anything: a test for each cell of the table in decision 33 of
//! `docs/protocol.md`. Keys, ranges and lengths of writes are in `access.rs` and `messages.rs`, rate limits in `floods.rs`.

use spindrift::congestion::CcConfig;
use spindrift::endpoint::QpModify;
use spindrift::path::PathCounters;
use spindrift::wire::{
    Aeth, Bth, DataHead, ENDPOINT_QPN, Eeth, EndpointOp, Erth, Ev, Mark, Msn, NackReason, NakCode, Neth,
    OpPosition, Opcode, Packet, Peth, Psn, Seth,
};

use crate::bench::{ATTACKER_QPN, Bench, FIRST_PSN, MTU, VICTIM, attacker_ip, stranger_ip};
use crate::support::frame::{self, Envelope, fix_icrc, set_traffic_class};
use crate::support::net::address;

const ETHERNET: usize = 14;
const IP_DST: usize = ETHERNET + 24;
const UDP_DST: usize = ETHERNET + 40 + 2;
const BTH: usize = ETHERNET + 40 + 8;
/// The DSCP of packets that a switch trimmed, as a traffic class.
const TRIMMED: u8 = 12 << 2;
const MS: u64 = 1_000_000;
const PAYLOAD: [u8; 8] = [0xa5; 8];

/// A kind of packet, and how the rest of a test tells that one was taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Write,
    Trimmed,
    Sack,
    Ack,
    Nak,
    Nack,
    FatalNack,
    Probe,
    ProbeAnswer,
    Update,
    EvProbe,
    PlaneAnswer,
    ApplicationAnswer,
}

use Kind as K;

const KINDS: [Kind; 13] = [
    K::Write,
    K::Trimmed,
    K::Sack,
    K::Ack,
    K::Nak,
    K::Nack,
    K::FatalNack,
    K::Probe,
    K::ProbeAnswer,
    K::Update,
    K::EvProbe,
    K::PlaneAnswer,
    K::ApplicationAnswer,
];

impl Kind {
    /// What counts packets of the kind.
    const fn counter(self) -> &'static str {
        match self {
            K::Write => "rx_data",
            K::Trimmed => "rx_trimmed",
            K::Sack | K::ProbeAnswer => "rx_sacks",
            K::Ack => "rx_acks",
            K::Nak => "rx_naks",
            K::Nack | K::FatalNack => "rx_nacks",
            K::Probe => "rx_probes",
            K::Update | K::EvProbe => "rx_endpoint_requests",
            K::PlaneAnswer | K::ApplicationAnswer => "rx_endpoint_responses",
        }
    }

    /// Of a queue pair, and not of the endpoint.
    const fn is_of_a_pair(self) -> bool {
        !matches!(self, K::Update | K::EvProbe | K::PlaneAnswer | K::ApplicationAnswer)
    }
}

/// A packet as the peer could send it.
#[derive(Clone, Debug)]
struct Forged {
    packet: Packet<'static>,
    /// The victim's port where it comes in, and the peer's port that it left.
    port: u8,
    from: u8,
    class: u8,
}

/// A victim for which a packet of a kind changes something, and that packet. Ten packets of the victim's are in flight, each with the
/// timestamp and the entropy value that is told.
struct Case {
    bench: Bench,
    forged: Forged,
    /// PSN, timestamp and entropy value of the victim's packets in flight.
    sent: Vec<(Psn, u16, Ev)>,
    /// PSN of the first of them.
    first: Psn,
}

/// PSN, timestamp and entropy value of what the victim sent since the mark, oldest first.
fn sent(bench: &Bench) -> Vec<(Psn, u16, Ev)> {
    let frames = bench.net.astray.iter().map(|(_, bytes)| frame::decode(bytes).unwrap());
    let writes = frames.filter_map(|(meta, packet)| match packet {
        Packet::Data { head, .. } => {
            let ev = Ev(u32::from(meta.src_port) << 16 | meta.flow_label & 0xffff);
            Some((head.bth.psn, head.tseth.unwrap().timestamp, ev))
        }
        _ => None,
    });
    writes.collect()
}

fn seth(bench: &Bench, cack: Psn) -> Seth {
    let (spdcid, dpdcid) = ids(bench);
    Seth { spdcid, dpdcid, cack, sack_offset: 1, mpr: 8, ..Seth::default() }
}

fn ids(bench: &Bench) -> (u16, u16) {
    (ATTACKER_QPN.get() as u16, bench.qp.qpn.get() as u16)
}

fn sack(bench: &Bench, seth: Seth) -> Packet<'static> {
    Packet::Sack { bth: Bth::new(Opcode::Sack, bench.qp.qpn, seth.cack), seth }
}

fn nack(bench: &Bench, reason: NackReason, (psn, tx_timestamp, ev): (Psn, u16, Ev)) -> Packet<'static> {
    let (spdcid, dpdcid) = ids(bench);
    let neth = Neth { spdcid, dpdcid, tx_timestamp, ..Neth::new(reason, psn, ev) };
    Packet::Nack { bth: Bth::new(Opcode::Nack, bench.qp.qpn, psn), neth }
}

fn request(op: EndpointOp, port_status_mask: u32) -> Packet<'static> {
    let bth = Bth::new(Opcode::EndpointRequest, ENDPOINT_QPN, Psn::new(77));
    Packet::EndpointRequest { bth, erth: Erth { op, port_status_mask, ..Erth::default() } }
}

fn response(id: Psn) -> Packet<'static> {
    let eeth = Eeth::new(EndpointOp::EvProbe, OpPosition::default(), 0);
    Packet::EndpointResponse { bth: Bth::new(Opcode::EndpointResponse, ENDPOINT_QPN, id), eeth }
}

fn case(kind: Kind) -> Case {
    let mut bench = Bench::new();
    bench.post_to_attacker(77, 2_560);
    let sent = sent(&bench);
    assert_eq!(sent.len(), 10);
    let (first, last) = (sent[0].0, sent[9].0);
    let (spdcid, dpdcid) = ids(&bench);
    let write = bench.write();
    let forged = |packet| Forged { packet, port: 0, from: 0, class: 0 };
    let forged = match kind {
        K::Write => forged(Packet::Data { head: write, payload: &PAYLOAD, pad: &[] }),
        K::Trimmed => {
            Forged { class: TRIMMED, ..forged(Packet::Data { head: write, payload: &PAYLOAD, pad: &[] }) }
        }
        K::Sack => forged(sack(&bench, Seth { ack_psn_offset: 3, bitmap: 0b111, ..seth(&bench, first) })),
        K::Ack | K::Nak => {
            let aeth = if kind == K::Ack { Aeth::ack(1) } else { Aeth::nak(NakCode::RemoteAccess, 0) };
            forged(Packet::Ack { bth: Bth::new(Opcode::Ack, bench.qp.qpn, last), aeth })
        }
        K::Nack => forged(nack(&bench, NackReason::Trimmed, sent[4])),
        K::FatalNack => forged(nack(&bench, NackReason::UnexpectedEvent, sent[4])),
        K::Probe => {
            let peth = Peth { probe_id: 9, spdcid, dpdcid, tx_timestamp: 3, ..Peth::default() };
            forged(Packet::Probe { bth: Bth::new(Opcode::Probe, bench.qp.qpn, Psn::new(0)), peth })
        }
        K::ProbeAnswer => {
            let mut bad = Seth { mark: Mark::AlwaysSkip, ack_psn_offset: 1, ..seth(&bench, first.sub(1)) };
            (bad.cc.tx_timestamp, bad.entropy) = (sent[0].1, sent[0].2);
            let bad = sack(&bench, bad);
            bench.give(&bad);
            bench.mark();
            bench.net.run_for(2 * MS);
            let mut probes =
                bench.net.astray.iter().rev().filter_map(|(_, bytes)| match frame::decode(bytes)?.1 {
                    Packet::Probe { peth, .. } => Some(peth.probe_id),
                    _ => None,
                });
            let id = probes.next().unwrap();
            forged(sack(&bench, Seth { pr: true, ack_psn_offset: id as i16, ..seth(&bench, first.sub(1)) }))
        }
        K::Update => forged(request(EndpointOp::PortStatusUpdate, 1)),
        K::EvProbe => forged(request(EndpointOp::EvProbe, 0)),
        K::PlaneAnswer => {
            bench.mark();
            bench.give(&request(EndpointOp::PortStatusUpdate, 1));
            let asked = bench.net.astray.iter().find_map(|(_, bytes)| match frame::decode(bytes).unwrap() {
                (meta, Packet::EndpointRequest { bth, .. }) if meta.dst == attacker_ip(1) => Some(bth.psn),
                _ => None,
            });
            Forged { port: 1, from: 1, ..forged(response(asked.unwrap())) }
        }
        K::ApplicationAnswer => {
            let (now, qpn) = (bench.net.now, bench.qp.qpn);
            let id = bench.net.endpoint(VICTIM).send_ev_probe(now, qpn, 0, Ev(0x1234_5678)).unwrap();
            bench.net.pump(VICTIM);
            forged(response(Psn::new(id.into())))
        }
    };
    bench.net.take_events(VICTIM);
    bench.mark();
    Case { bench, forged, sent, first }
}

impl Case {
    fn frame(&self) -> Vec<u8> {
        let Forged { packet, port, from, class } = &self.forged;
        let envelope = Envelope::new(attacker_ip(*from), address(true, VICTIM, *port));
        let mut frame = envelope.seal(packet);
        set_traffic_class(&mut frame, *class);
        frame
    }

    /// All that packets may change, but for what is counted.
    fn state(&mut self) -> String {
        let (qpn, endpoint) = (self.bench.qp.qpn, self.bench.net.endpoint(VICTIM));
        let paths = PathCounters { probe_answers_unknown: 0, ..*endpoint.path_counters(qpn).unwrap() };
        let evs: Vec<_> = endpoint.ev_states(qpn).unwrap().collect();
        let failure = endpoint.qp_failure(qpn);
        let state = format!(
            "{:?} {evs:?} {paths:?} {:?} {failure:?}",
            endpoint.qp_status(qpn),
            endpoint.peer_planes(qpn)
        );
        let events = self.bench.net.take_events(VICTIM);
        format!("{state} {events:?}")
    }

    fn inject(&mut self, frame: &[u8]) {
        let port = self.forged.port;
        self.bench.net.inject(VICTIM, port, frame);
    }

    /// The frame changes nothing, and these are counted for it, and nothing else.
    #[track_caller]
    fn refuse(&mut self, what: &str, frame: &[u8], counts: &[&'static str]) {
        let before = self.state();
        self.bench.mark();
        self.inject(frame);
        let mut expected: Vec<_> = counts.iter().chain(&["rx_packets"]).map(|&name| (name, 1)).collect();
        let mut counted = self.bench.counted();
        expected.sort_unstable();
        counted.sort_unstable();
        assert_eq!(counted, expected, "{what}");
        assert_eq!(self.state(), before, "{what}");
        self.bench.target.check(what);
    }
}

/// A packet of a kind, changed before it is sealed, is refused.
#[track_caller]
fn refused(kind: Kind, what: &str, reason: &'static str, change: impl FnOnce(&Case) -> Forged) {
    let mut case = case(kind);
    case.forged = change(&case);
    let frame = case.frame();
    case.refuse(&format!("{kind:?}: {what}"), &frame, &[kind.counter(), reason]);
}

/// The packets of which the other tests change a part are taken in.
#[test]
fn a_packet_that_matches_changes_something() {
    for kind in KINDS {
        let mut case = case(kind);
        let before = case.state();
        case.bench.mark();
        let frame = case.frame();
        case.inject(&frame);
        let counted = case.bench.counted();
        let told = match kind {
            K::Write => counted.contains(&("rx_placed_bytes", 8)),
            K::Trimmed => counted.contains(&("tx_nacks", 1)),
            K::Probe => counted.contains(&("tx_sacks", 1)),
            K::EvProbe => counted.contains(&("tx_endpoint_responses", 1)),
            _ => case.state() != before,
        };
        assert!(told, "{kind:?}: {counted:?}");
        assert!(counted.contains(&(kind.counter(), 1)), "{kind:?}: {counted:?}");
    }
}

/// What no packet may lack, before it is even counted as one of its kind.
#[test]
fn every_packet_needs_its_address_port_crc_version_and_partition() {
    type Change = fn(&mut Vec<u8>);
    let cells: [(&str, Change); 5] = [
        ("rx_wrong_destination", |frame| frame[IP_DST + 15] ^= 0x40),
        ("rx_other_port", |frame| frame[UDP_DST] ^= 0x40),
        ("rx_wrong_version", |frame| frame[BTH + 1] |= 1),
        ("rx_wrong_partition", |frame| frame[BTH + 3] ^= 1),
        ("rx_bad_icrc", |_| ()),
    ];
    for kind in KINDS {
        for (reason, change) in cells {
            let mut case = case(kind);
            let mut frame = case.frame();
            change(&mut frame);
            fix_icrc(&mut frame);
            let is_crc = reason == "rx_bad_icrc";
            if is_crc {
                *frame.last_mut().unwrap() ^= 1;
            }
            let what = format!("{kind:?}: {reason}");
            match kind {
                // Its CRC was cut off.
                K::Trimmed if is_crc => {}
                K::Trimmed if frame[BTH + 1] != 0 || frame[BTH + 3] != 0xff => {
                    case.refuse(&what, &frame, &["rx_trimmed", reason]);
                }
                _ => case.refuse(&what, &frame, &[reason]),
            }
        }
    }
}

/// The queue pair that is named, or number 2, and the address of its peer.
#[test]
fn every_packet_needs_its_queue_pair_and_its_source() {
    for kind in KINDS {
        let mut case_of_qpn = case(kind);
        let mut frame = case_of_qpn.frame();
        frame[BTH + 7] ^= 1;
        fix_icrc(&mut frame);
        case_of_qpn.refuse(&format!("{kind:?}: QPN"), &frame, &[kind.counter(), "rx_unknown_qp"]);
        let reason = match kind {
            // Anyone may ask whether a path works, and is answered.
            K::EvProbe => continue,
            K::Update => "rx_foreign_port_status",
            K::PlaneAnswer | K::ApplicationAnswer => "rx_unmatched_response",
            _ => "rx_foreign_source",
        };
        let mut case = case(kind);
        let Forged { packet, port, class, .. } = &case.forged;
        let mut frame = Envelope::new(stranger_ip(), address(true, VICTIM, *port)).seal(packet);
        set_traffic_class(&mut frame, *class);
        case.refuse(&format!("{kind:?}: source"), &frame, &[kind.counter(), reason]);
    }
}

#[test]
fn a_queue_pair_needs_to_be_in_the_right_state() {
    for kind in KINDS.into_iter().filter(|kind| kind.is_of_a_pair()) {
        let mut case = case(kind);
        let (now, qpn) = (case.bench.net.now, case.bench.qp.qpn);
        case.bench.net.endpoint(VICTIM).modify_qp(now, qpn, QpModify::Error).unwrap();
        case.bench.net.pump(VICTIM);
        case.bench.net.take_events(VICTIM);
        let reason = if kind == K::Trimmed { "rx_trimmed_useless" } else { "rx_wrong_state" };
        let frame = case.frame();
        case.refuse(&format!("{kind:?}: state"), &frame, &[kind.counter(), reason]);
    }
}

/// SACKs, NACKs and probes reflect the identifiers of the connection.
#[test]
fn connection_identifiers_must_be_those_of_the_queue_pair() {
    for kind in [K::Sack, K::Nack, K::FatalNack, K::Probe, K::ProbeAnswer] {
        for source in [false, true] {
            refused(kind, "identifiers", "rx_wrong_connection", |case| {
                let mut forged = case.forged.clone();
                let (spdcid, dpdcid) = match &mut forged.packet {
                    Packet::Sack { seth, .. } => (&mut seth.spdcid, &mut seth.dpdcid),
                    Packet::Nack { neth, .. } => (&mut neth.spdcid, &mut neth.dpdcid),
                    Packet::Probe { peth, .. } => (&mut peth.spdcid, &mut peth.dpdcid),
                    other => panic!("{other:?}"),
                };
                *(if source { spdcid } else { dpdcid }) ^= 1;
                forged
            });
        }
    }
}

#[test]
fn a_write_must_be_in_the_window_and_of_a_possible_message() {
    let with = |case: &Case, change: fn(&mut DataHead)| {
        let mut forged = case.forged.clone();
        let Packet::Data { head, .. } = &mut forged.packet else { panic!() };
        change(head);
        forged
    };
    let far: fn(&mut DataHead) = |head| head.bth.psn = FIRST_PSN.add(255 * 128);
    let behind: fn(&mut DataHead) = |head| head.bth.psn = FIRST_PSN.add(1 << 23);
    for change in [far, behind] {
        refused(K::Write, "PSN", "rx_out_of_window", |case| with(case, change));
        refused(K::Trimmed, "PSN", "rx_trimmed_useless", |case| with(case, change));
    }
    refused(K::Trimmed, "an old PSN", "rx_trimmed_useless", |case| {
        with(case, |head| head.bth.psn = FIRST_PSN.sub(1))
    });
    refused(K::Write, "message number", "rx_implausible_msn", |case| {
        with(case, |head| head.meth.msn = Msn::new(head.meth.msn.get().wrapping_add(1)))
    });
}

/// Nothing that was never sent can be acknowledged, asked for again or refused.
#[test]
fn only_what_was_sent_can_be_answered() {
    for kind in [K::Ack, K::Nak, K::Nack, K::FatalNack] {
        for ahead in [10, 1_000, 1 << 22] {
            refused(kind, "PSN", "rx_forged_ack", |case| with_psn(case, case.first.add(ahead)));
        }
    }
    let changes: [fn(&mut Seth); 3] =
        [|seth| seth.cack = seth.cack.add(10), |seth| seth.ack_psn_offset = 10, |seth| seth.bitmap = 1 << 9];
    for change in changes {
        refused(K::Sack, "PSNs", "rx_forged_ack", |case| with_seth(case, change));
    }
}

fn with_psn(case: &Case, psn: Psn) -> Forged {
    let mut forged = case.forged.clone();
    match &mut forged.packet {
        Packet::Ack { bth, .. } => bth.psn = psn,
        Packet::Nack { bth, neth } => (bth.psn, neth.nack_psn) = (psn, psn),
        other => panic!("{other:?}"),
    }
    forged
}

fn with_seth(case: &Case, change: impl FnOnce(&mut Seth)) -> Forged {
    let mut forged = case.forged.clone();
    let Packet::Sack { seth, .. } = &mut forged.packet else { panic!() };
    change(seth);
    forged
}

fn with_neth(case: &Case, change: impl FnOnce(&mut Neth)) -> Forged {
    let mut forged = case.forged.clone();
    let Packet::Nack { neth, .. } = &mut forged.packet else { panic!() };
    change(neth);
    forged
}

/// A NACK is of a packet in flight: not behind what has arrived, however far, and of its last copy. The fatal one ends the queue pair,
/// so it names the copy's entropy value as well.
#[test]
fn a_nack_must_be_of_the_copy_in_flight() {
    for kind in [K::Nack, K::FatalNack] {
        for behind in [1, 2, 1_000, 1 << 20, (1 << 23) - 20] {
            refused(kind, "an old PSN", "rx_stale_nack", |case| with_psn(case, case.first.sub(behind)));
        }
        for flip in [1, 1 << 15] {
            refused(kind, "timestamp", "rx_stale_nack", |case| {
                with_neth(case, |neth| neth.tx_timestamp ^= flip)
            });
        }
        // The packet has arrived, below others and above all.
        for arrived in [
            Seth { ack_psn_offset: 5, bitmap: 0b1_1111, ..Seth::default() },
            Seth { ack_psn_offset: 6, bitmap: 0b11_0000, ..Seth::default() },
        ] {
            let mut case = case(kind);
            let base = seth(&case.bench, case.first.sub(1));
            let news = Seth { ack_psn_offset: arrived.ack_psn_offset, bitmap: arrived.bitmap, ..base };
            let news = sack(&case.bench, news);
            case.bench.give(&news);
            case.bench.net.take_events(VICTIM);
            let frame = case.frame();
            case.refuse("it has arrived", &frame, &["rx_nacks", "rx_stale_nack"]);
        }
        // The copy that it is of was sent again since.
        let mut case = case(kind);
        let Packet::Nack { neth, .. } = &case.forged.packet else { panic!() };
        let copy = (neth.nack_psn, neth.tx_timestamp, neth.entropy);
        case.bench.net.run_for(300);
        let trim = nack(&case.bench, NackReason::TrimmedLastHop, copy);
        case.bench.give(&trim);
        let frame = case.frame();
        case.refuse("it was sent again", &frame, &["rx_nacks", "rx_stale_nack"]);
    }
    for flip in [1, 1 << 31] {
        refused(K::FatalNack, "entropy value", "rx_stale_nack", |case| {
            with_neth(case, |neth| neth.entropy.0 ^= flip)
        });
    }
}

/// What a SACK says of a path and of the window counts only if it names the last copy of its packet by the timestamp. It lists nothing
/// new here.
#[test]
fn a_sack_says_nothing_of_paths_that_it_does_not_name() {
    let with_mark = |case: &mut Case, mark, flip| {
        // A window for the penalty to cut.
        let (now, qpn) = (case.bench.net.now, case.bench.qp.qpn);
        let cc = QpModify::Congestion(Box::new(CcConfig::new(100_000_000_000, 10_000, MTU)));
        case.bench.net.endpoint(VICTIM).modify_qp(now, qpn, cc).unwrap();
        let news =
            sack(&case.bench, Seth { ack_psn_offset: 1, bitmap: 1, ..seth(&case.bench, case.first.sub(1)) });
        case.bench.give(&news);
        let timestamp = case.sent[0].1;
        case.forged = with_seth(case, |seth| {
            (seth.mark, seth.cack, seth.bitmap, seth.ack_psn_offset) = (mark, seth.cack.sub(1), 1, 1);
            seth.cc.cwnd_penalty = 127;
            seth.cc.tx_timestamp = timestamp ^ flip;
        });
        case.frame()
    };
    for mark in [Mark::AlwaysSkip, Mark::SkipOnce, Mark::None] {
        for flip in [1, 1 << 15] {
            let mut case = case(K::Sack);
            let frame = with_mark(&mut case, mark, flip);
            case.refuse(&format!("{mark:?}"), &frame, &["rx_sacks"]);
        }
    }
    let mut case = case(K::Sack);
    let frame = with_mark(&mut case, Mark::AlwaysSkip, 0);
    let before = case.state();
    case.inject(&frame);
    assert_ne!(case.state(), before, "it is the timestamp that counts");
    let mut case = self::case(K::Sack);
    let frame = with_mark(&mut case, Mark::None, 0);
    let cwnd = |case: &Case| {
        let endpoint = &case.bench.net.nodes[VICTIM].endpoint;
        endpoint.qp_status(case.bench.qp.qpn).unwrap().cwnd_bytes
    };
    let before = cwnd(&case);
    case.inject(&frame);
    assert!(cwnd(&case) < before, "{} of {before} bytes", cwnd(&case));
}

#[test]
fn an_answer_must_be_to_what_was_asked() {
    refused(K::ProbeAnswer, "probe id", "rx_unmatched_response", |case| {
        with_seth(case, |seth| seth.ack_psn_offset ^= 1)
    });
    let with_id = |case: &Case| {
        let mut forged = case.forged.clone();
        let Packet::EndpointResponse { bth, .. } = &mut forged.packet else { panic!() };
        bth.psn = Psn::new(bth.psn.get() ^ 1);
        forged
    };
    for kind in [K::PlaneAnswer, K::ApplicationAnswer] {
        refused(kind, "request id", "rx_unmatched_response", with_id);
    }
    // Over the other plane, and over this one from the peer's address of the other.
    for (port, from) in [(0, 0), (1, 0), (0, 1)] {
        refused(K::PlaneAnswer, "plane", "rx_unmatched_response", |case| Forged {
            port,
            from,
            ..case.forged.clone()
        });
    }
}

#[test]
fn an_update_must_not_contradict_itself() {
    for mask in [0, 0b10, !1] {
        refused(K::Update, "mask", "rx_contradicting_port_status", |case| Forged {
            packet: request(EndpointOp::PortStatusUpdate, mask),
            ..case.forged.clone()
        });
    }
    // Planes that there are not.
    let mut case = case(K::Update);
    case.forged.packet = request(EndpointOp::PortStatusUpdate, 0b11);
    let frame = case.frame();
    let answered = ["rx_endpoint_requests", "tx_endpoint_responses"];
    case.refuse("planes that there are not", &frame, &answered);
}
