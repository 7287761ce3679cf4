//! Packets that do not form messages, that come from outside the window, or that bring too many immediates.
//!
//! Tests decisions 6, 18, 21 and 23 of `docs/protocol.md`.

use spindrift::endpoint::{EndpointConfig, FailReason, Violation};
use spindrift::wire::{Aeth, Bth, DataHead, Msn, NakCode, Opcode, Packet};
use spindrift::work::{RecvWr, WcStatus};

use crate::bench::{Bench, FIRST_MSN, FIRST_PSN, IOVA, LEN, MAX_WIMM, MTU, VICTIM, nak};
use crate::support::pair::Patience;

/// The three packets of a message of 600 bytes.
fn message(bench: &Bench) -> [DataHead; 3] {
    let opcodes = [Opcode::WriteFirst, Opcode::WriteMiddle, Opcode::WriteLast];
    let mut at = 0;
    opcodes.map(|opcode| {
        let mut head = bench.write();
        head.bth.opcode = opcode;
        head.bth.psn = FIRST_PSN.add(at);
        head.reth.va = IOVA + u64::from(at * MTU);
        head.reth.dma_len = 600;
        at += 1;
        head
    })
}

fn give_all(bench: &mut Bench, heads: &[DataHead]) {
    for head in heads {
        let len = if head.bth.opcode == Opcode::WriteLast { 600 - 512 } else { MTU as usize };
        let from = (head.reth.va - IOVA) as usize;
        // The bytes that are there already: what matters here is not the content.
        let payload = bench.target.expected[from..from + len].to_vec();
        bench.give(&Packet::Data { head: *head, payload: &payload, pad: &[] });
    }
}

#[track_caller]
fn no_message(what: &str, at: u32, spoil: impl Fn(&mut [DataHead; 3])) {
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        let mut bench = Bench::new();
        let mut heads = message(&bench);
        spoil(&mut heads);
        give_all(&mut bench, &order.map(|n| heads[n]));
        assert_eq!(bench.count("rx_invalid_request"), 1, "{what} {order:?}: {:?}", bench.counted());
        let answers = bench.answers();
        assert!(
            answers.contains(&nak(NakCode::InvalidRequest, FIRST_PSN.add(at))),
            "{what} {order:?}: {answers:?}"
        );
        assert_eq!(bench.failures(), [(bench.qp.qpn, FailReason::PeerViolation)], "{what}");
        let DataHead { bth, reth, .. } = heads[at as usize];
        let (opcode, rkey, va, message_len) = (bth.opcode, reth.rkey, reth.va, reth.dma_len);
        let told = Violation::Order { opcode, rkey, va, message_len };
        assert_eq!(bench.violation(), Some((FIRST_PSN.add(at), told)), "{what} {order:?}");
        bench.check_healthy(what);
    }
}

#[test]
fn packets_must_form_messages() {
    let mut bench = Bench::new();
    let heads = message(&bench);
    give_all(&mut bench, &heads);
    assert_eq!(bench.failures(), [], "the message as it should be");

    no_message("length changes", 1, |heads| heads[1].reth.dma_len = 1_000);
    no_message("key changes to a bad one of the same region", 2, |heads| heads[2].reth.va -= 1);
    no_message("address repeats", 1, |heads| heads[1].reth.va = IOVA);
    no_message("a message starts inside another", 1, |heads| heads[1].bth.opcode = Opcode::WriteFirst);
    no_message("starts in the middle", 0, |heads| heads[0].bth.opcode = Opcode::WriteMiddle);
    no_message("does not end where it should", 1, |heads| {
        heads[0].reth.dma_len = 512;
        heads[1].reth.dma_len = 512;
        heads[1].bth.opcode = Opcode::WriteMiddle;
        heads[2].reth.dma_len = 600;
    });
}

/// Padding is taken, answered as any packet, and written nowhere.
#[test]
fn padding_is_not_placed() {
    let mut bench = Bench::new();
    let mut head = bench.write();
    head.bth.pad = 3;
    head.reth.dma_len = 5;
    bench.give(&Packet::Data { head, payload: b"hello", pad: &[0xee; 3] });
    bench.target.expected[..5].copy_from_slice(b"hello");
    bench.target.check("with padding");
    assert!(!bench.answers().is_empty());
    assert_eq!(bench.failures(), []);
    assert_eq!(bench.count("rx_placed_bytes"), 5);
}

/// A packet whose message number cannot be is taken for a stray copy of a long gone one, unless it only shows
/// when its turn comes.
#[test]
fn message_numbers_must_count_up_one_by_one() {
    type Spoil = fn(&mut [DataHead; 3]);
    /// For each order: taken for strays, and requests that are invalid.
    type Counts = [(u64, u64); 3];
    let spoils: [(&str, Spoil, Counts); 3] = [
        ("jumps ahead", |heads| heads.iter_mut().for_each(|head| head.meth.msn = Msn::new(7)), [(3, 0); 3]),
        (
            "falls back",
            |heads| heads.iter_mut().for_each(|head| head.meth.msn = Msn::new(0xfffe)),
            [(3, 0); 3],
        ),
        ("changes inside", |heads| heads[1].meth.msn = FIRST_MSN.next(), [(1, 0), (0, 1), (0, 1)]),
    ];
    for (what, spoil, expected) in spoils {
        for (order, expected) in [[0, 1, 2], [2, 1, 0], [1, 2, 0]].into_iter().zip(expected) {
            let mut bench = Bench::new();
            let mut heads = message(&bench);
            spoil(&mut heads);
            give_all(&mut bench, &order.map(|n| heads[n]));
            let (stray, invalid) = (bench.count("rx_implausible_msn"), bench.count("rx_invalid_request"));
            assert_eq!((stray, invalid), expected, "{what} {order:?}: {:?}", bench.counted());
            assert_eq!(bench.failures().len() as u64, invalid, "{what} {order:?}");
            let told = Violation::MessageNumber { msn: heads[1].meth.msn, expected: FIRST_MSN };
            let told = (invalid > 0).then_some((FIRST_PSN.add(1), told));
            assert_eq!(bench.violation(), told, "{what} {order:?}");
            let complete = format!("Ack psn {:06x}", FIRST_PSN.add(2).get());
            assert!(!bench.answers().contains(&complete), "{what} {order:?}");
            bench.check_healthy(what);
        }
    }
}

#[test]
fn the_window_ends_where_it_says() {
    for (oor_nack, offset, answered) in [
        (false, 1023, 0),
        (false, 1 << 22, 0),
        (false, (1 << 23) - 1, 0),
        (false, 1 << 23, 0),
        (true, 1023, 1),
        (true, 1 << 22, 1),
    ] {
        let adjust = |cfg: &mut EndpointConfig| cfg.oor_nack = oor_nack;
        let mut bench = Bench::with(adjust, Patience::default());
        let mut head = bench.write();
        head.bth.psn = FIRST_PSN.add(offset);
        bench.give(&Packet::Data { head, payload: &[1; 8], pad: &[] });
        let mut expected = vec![("rx_packets", 1), ("rx_data", 1), ("rx_out_of_window", 1)];
        if answered > 0 {
            expected.push(("tx_nacks", 1));
            assert_eq!(bench.answers(), [format!("Nack 11 psn {:06x}", head.bth.psn.get())]);
        }
        bench.expect_counts(&format!("offset {offset}"), &expected);
        bench.check_healthy("beyond the window");
    }
    // Just inside, and just behind.
    let mut bench = Bench::new();
    let mut head = bench.write();
    head.bth.psn = FIRST_PSN.add(1022);
    bench.give(&Packet::Data { head, payload: &[1; 8], pad: &[] });
    bench.target.expected[..8].fill(1);
    assert_eq!(bench.count("rx_placed_bytes"), 8);
    head.bth.psn = FIRST_PSN.sub(1);
    bench.give(&Packet::Data { head, payload: &[9; 8], pad: &[] });
    assert_eq!((bench.count("rx_old"), bench.count("rx_placed_bytes")), (1, 8));
    bench.check_healthy("the edges of the window");
}

#[test]
fn a_packet_is_placed_once() {
    let mut bench = Bench::new();
    let head = bench.write();
    bench.give(&Packet::Data { head, payload: &[1; 8], pad: &[] });
    bench.target.expected[..8].fill(1);
    let mut later = head;
    later.bth.psn = FIRST_PSN.add(5);
    later.meth.msn = Msn::new(3);
    later.reth.va = IOVA + 100;
    later.reth.dma_len = 12;
    bench.give(&Packet::Data { head: later, payload: &[5; 12], pad: &[] });
    bench.target.expected[100..112].fill(5);
    bench.mark();
    // The same packets with other bytes: one is old, one a duplicate.
    bench.give(&Packet::Data { head, payload: &[2; 8], pad: &[] });
    bench.give(&Packet::Data { head: later, payload: &[6; 12], pad: &[] });
    bench.expect_counts(
        "repeats",
        &[
            ("rx_packets", 2),
            ("rx_data", 2),
            ("rx_duplicates", 1),
            ("rx_old", 1),
            ("tx_sacks", 2),
            ("tx_acks", 1),
        ],
    );
    let qpn = bench.qp.qpn;
    let counters = bench.net.endpoint(VICTIM).qp_status(qpn).unwrap().counters;
    assert_eq!((counters.rx_packets, counters.rx_bytes), (2, 20), "what was placed");
    bench.check_healthy("repeats");
}

fn immediate(bench: &Bench, n: u32) -> DataHead {
    let mut head = bench.write();
    head.bth.opcode = Opcode::WriteOnlyImm;
    head.bth.psn = FIRST_PSN.add(n);
    head.meth.msn = Msn::new(FIRST_MSN.get().wrapping_add(n as u16));
    head.meth.rqmsn = head.meth.msn;
    head.imm = Some(n);
    head
}

fn post_receives(bench: &mut Bench, count: u64) {
    let qpn = bench.qp.qpn;
    for wr_id in 0..count {
        bench.net.endpoint(VICTIM).post_recv(qpn, RecvWr::empty(wr_id)).unwrap();
    }
}

fn give_immediate(bench: &mut Bench, head: DataHead) {
    let payload = bench.target.expected[..8].to_vec();
    bench.give(&Packet::Data { head, payload: &payload, pad: &[] });
}

#[test]
fn more_immediates_than_agreed_end_the_connection() {
    let mut bench = Bench::new();
    post_receives(&mut bench, 20);
    let limit = u32::from(MAX_WIMM);
    for n in 1..=limit {
        let head = immediate(&bench, n);
        give_immediate(&mut bench, head);
        // A repeat does not count again.
        give_immediate(&mut bench, head);
    }
    assert_eq!(bench.failures(), []);
    let head = immediate(&bench, limit + 1);
    give_immediate(&mut bench, head);
    assert_eq!(bench.count("rx_invalid_request"), 1);
    // The NAK vouches for all packets before the one it names: none has come.
    assert!(bench.answers().contains(&nak(NakCode::InvalidRequest, FIRST_PSN)));
    let told = Violation::TooManyImmediates { max_wimm: limit };
    assert_eq!(bench.violation(), Some((FIRST_PSN, told)));
    let flushed = bench.completions();
    assert_eq!(flushed.len(), 20);
    assert!(flushed.iter().zip(0..).all(|(wc, n)| wc.wr_id == n && wc.status == WcStatus::WrFlushError));
    bench.check_healthy("too many immediates");
}

#[test]
fn immediates_come_out_in_send_order_however_they_arrive() {
    let mut bench = Bench::new();
    post_receives(&mut bench, 20);
    for n in [2, 1, 3, 0] {
        assert_eq!(bench.completions(), []);
        let head = immediate(&bench, n);
        give_immediate(&mut bench, head);
    }
    let seen: Vec<_> = bench.completions().iter().map(|wc| (wc.wr_id, wc.imm, wc.byte_len)).collect();
    assert_eq!(seen, [(0, Some(0), 8), (1, Some(1), 8), (2, Some(2), 8), (3, Some(3), 8)]);
    bench.check_healthy("immediates out of order");
}

#[test]
fn an_immediate_must_find_a_receive_request_and_its_number() {
    let mut bench = Bench::new();
    let head = immediate(&bench, 0);
    give_immediate(&mut bench, head);
    assert_eq!(bench.count("rx_no_receive"), 1);
    assert!(bench.answers().contains(&nak(NakCode::RemoteOperational, FIRST_PSN)));
    assert_eq!(bench.violation(), Some((FIRST_PSN, Violation::NoReceive)));
    bench.check_healthy("no receive request");

    let mut bench = Bench::new();
    post_receives(&mut bench, 1);
    let mut head = immediate(&bench, 0);
    head.meth.rqmsn = head.meth.rqmsn.next();
    give_immediate(&mut bench, head);
    assert_eq!(bench.count("rx_invalid_request"), 1);
    let told = Violation::ImmediateNumber { rqmsn: head.meth.rqmsn, expected: FIRST_MSN };
    assert_eq!(bench.violation(), Some((FIRST_PSN, told)));
    bench.check_healthy("wrong receive number");
}

/// Where a frame is cut between the port's buffers changes nothing.
#[test]
fn a_frame_may_lie_in_several_buffers() {
    const HEADERS: isize = 62 + 12 + 4 + 4 + 16;
    for cut in (1..HEADERS + 4).chain([HEADERS + 99, -5, -4, -3, -1]) {
        let mut bench = Bench::new();
        let mut head = bench.write();
        head.reth.dma_len = 100;
        bench.give_in_parts(&Packet::Data { head, payload: &[7; 100], pad: &[] }, cut);
        let counts =
            [("rx_packets", 1), ("rx_data", 1), ("rx_placed_bytes", 100), ("tx_sacks", 1), ("tx_acks", 1)];
        bench.expect_counts(&format!("cut at {cut}"), &counts);
        bench.target.expected[..100].fill(7);
        bench.target.check("a packet in parts");
    }
}

/// What ends up in another buffer is no less part of the packet.
#[test]
fn a_packet_in_several_buffers_is_checked_as_a_whole() {
    let mut bench = Bench::new();
    let head = bench.write();
    // Eight bytes announced, more sent.
    bench.give_in_parts(&Packet::Data { head, payload: &[9; 60], pad: &[] }, -40);
    assert_eq!(bench.count("rx_bad_length"), 1);
    assert_eq!(bench.failures(), [(bench.qp.qpn, FailReason::PeerViolation)]);
    let told = Violation::PayloadLength { opcode: Opcode::WriteOnly, len: 60, message_len: 8, path_mtu: MTU };
    assert_eq!(bench.violation(), Some((FIRST_PSN, told)));
    bench.check_healthy("too long");
    // A region that the payload does not fit into, but its first buffer does.
    let mut bench = Bench::new();
    let mut head = bench.write();
    (head.reth.va, head.reth.dma_len) = (IOVA + LEN as u64 - 50, 100);
    bench.give_in_parts(&Packet::Data { head, payload: &[9; 100], pad: &[] }, -80);
    assert_eq!(
        (bench.count("rx_remote_access"), bench.count("rx_placed_bytes")),
        (0, 0),
        "{:?}",
        bench.counted()
    );
    assert_eq!(bench.failures(), [(bench.qp.qpn, FailReason::PeerViolation)]);
    bench.check_healthy("out of bounds");
    // Padding is no payload.
    let mut bench = Bench::new();
    let mut head = bench.write();
    head.bth.pad = 3;
    bench.give_in_parts(&Packet::Data { head, payload: &[9; 8], pad: &[0; 3] }, -9);
    assert_eq!(bench.count("rx_placed_bytes"), 8);
    bench.target.expected[..8].fill(9);
    bench.check_healthy("padded");
    // Others are short, and may be cut as well.
    for cut in [1, 20, 62, 70, 74, 78, -4, -1] {
        let mut bench = Bench::new();
        let bth = Bth::new(Opcode::Ack, bench.qp.qpn, FIRST_PSN);
        bench.give_in_parts(&Packet::Ack { bth, aeth: Aeth::ack(0) }, cut);
        assert_eq!((bench.count("rx_acks"), bench.count("rx_malformed")), (1, 0), "{cut}");
    }
}
