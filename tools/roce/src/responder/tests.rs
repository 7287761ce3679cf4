use spindrift::wire::{AethKind, Reth};

use super::*;
use crate::wire::Opcode;

const MTU: u32 = 1_000;

fn responder(psn: u32) -> Responder {
    Responder::new(Psn::new(psn), MTU, 4)
}

/// A packet of a message of `packets` full ones that begins at `first`.
fn packet(first: u32, packets: u32, psn: u32) -> Data {
    let index = Psn::new(psn).distance(Psn::new(first)) as u32;
    let last = index + 1 == packets;
    Data {
        opcode: Opcode::write(index == 0, last, false),
        psn: Psn::new(psn),
        ack_req: last,
        reth: (index == 0).then_some(Reth { va: 7_000, rkey: 0, dma_len: packets * MTU }),
        imm: None,
        len: MTU,
    }
}

/// The acknowledgement that waits: its PSN, whether it is a NAK for a gap, and its MSN.
fn reply(responder: &mut Responder) -> Option<(u32, bool, u32)> {
    let Some(Content::Ack { psn, aeth }) = responder.reply() else { return None };
    Some((psn.get(), aeth.kind() == AethKind::Nak(NakCode::PsnSequence), aeth.msn))
}

#[test]
fn packets_in_order_are_placed() {
    let mut responder = responder(0xff_ffff);
    let placed: Vec<_> = [0xff_ffff, 0, 1].map(|psn| responder.receive(&packet(0xff_ffff, 3, psn))).into();
    let want = [(7_000, false), (8_000, false), (9_000, true)];
    let want = want.map(|(va, last)| Some(Placed { va, len: MTU, last, imm: None }));
    assert_eq!(placed, want);
    assert_eq!(reply(&mut responder), Some((1, false, 1)));
    assert_eq!(reply(&mut responder), None, "once");
    assert_eq!(responder.counters().placed_bytes, 3_000);
}

#[test]
fn every_few_packets_are_acknowledged() {
    let mut responder = responder(0);
    let mut replies = Vec::new();
    for psn in 0..10 {
        responder.receive(&packet(0, 10, psn));
        replies.extend(reply(&mut responder));
    }
    // Every four, and the end of the message.
    assert_eq!(replies, [(3, false, 0), (7, false, 0), (9, false, 1)]);
}

/// An acknowledgement that waits for its turn is made of all that has come until it leaves.
#[test]
fn acknowledgements_coalesce() {
    let mut responder = responder(0);
    for psn in 0..6 {
        responder.receive(&packet(0, 10, psn));
    }
    assert_eq!((reply(&mut responder), reply(&mut responder)), (Some((5, false, 0)), None));
}

#[test]
fn a_gap_has_one_nak() {
    let mut responder = responder(0);
    responder.receive(&packet(0, 10, 0));
    for psn in [2, 3, 4] {
        assert_eq!(responder.receive(&packet(0, 10, psn)), None, "{psn} is not taken");
    }
    assert_eq!(reply(&mut responder), Some((1, true, 0)));
    responder.receive(&packet(0, 10, 5));
    assert_eq!(reply(&mut responder), None, "one is outstanding");
    // The expected packet ends that; the next gap has a NAK of its own.
    assert!(responder.receive(&packet(0, 10, 1)).is_some());
    assert!(responder.receive(&packet(0, 10, 3)).is_none());
    assert_eq!(reply(&mut responder), Some((2, true, 0)));
    assert_eq!((responder.counters().gaps, responder.counters().placed_bytes), (5, 2_000));
}

/// A NAK that still waits when its packet comes would make the peer go back for nothing.
#[test]
fn a_nak_that_is_too_late_becomes_an_acknowledgement() {
    let mut responder = responder(0);
    responder.receive(&packet(0, 10, 1));
    responder.receive(&packet(0, 10, 0));
    assert_eq!(reply(&mut responder), Some((0, false, 0)));
}

/// A duplicate of what has come changes nothing; the acknowledgement that it asks for names the last packet in order.
#[test]
fn duplicates_are_acknowledged_and_not_placed() {
    let mut responder = responder(0);
    for psn in 0..3 {
        responder.receive(&packet(0, 3, psn));
    }
    assert_eq!(reply(&mut responder), Some((2, false, 1)));
    assert_eq!(responder.receive(&packet(0, 3, 1)), None);
    assert_eq!(reply(&mut responder), None, "it does not ask");
    assert_eq!(responder.receive(&packet(0, 3, 2)), None);
    assert_eq!(reply(&mut responder), Some((2, false, 1)));
    assert_eq!((responder.counters().duplicates, responder.counters().placed_bytes), (2, 3_000));
    // While a gap is known, a duplicate does not take the NAK's place.
    responder.receive(&packet(3, 3, 4));
    responder.receive(&packet(0, 3, 2));
    assert_eq!(reply(&mut responder), Some((3, true, 1)));
    // But a requester that has not heard the NAK, and goes back further, hears how far it was.
    responder.receive(&packet(0, 3, 2));
    assert_eq!(reply(&mut responder), Some((2, false, 1)));
}

#[test]
fn what_makes_no_sense_is_refused() {
    let good = packet(0, 3, 0);
    let reth = |dma_len| Some(Reth { va: 0, rkey: 0, dma_len });
    let only = Data { opcode: Opcode::WriteOnly, reth: reth(1_000), ..good };
    let wrong = [
        packet(5, 3, 6),
        Data { len: 999, ..good },
        Data { len: 1_001, ..good },
        Data { reth: reth(1_000), ..good },
        Data { len: 999, ..only },
        Data { reth: reth(2_000), len: 2_000, ..only },
    ];
    for data in wrong {
        let mut responder = responder(0);
        assert_eq!(responder.receive(&Data { psn: Psn::new(0), ..data }), None, "{data:?}");
        let Some(Content::Ack { psn, aeth }) = responder.reply() else { panic!("{data:?}") };
        assert_eq!((psn.get(), aeth.kind()), (0, AethKind::Nak(NakCode::InvalidRequest)));
        // It takes nothing more.
        assert_eq!((responder.receive(&good), responder.reply()), (None, None));
        assert_eq!(responder.counters().refused, 1);
    }
    // A message begins while another has not ended.
    let mut responder = responder(0);
    responder.receive(&good);
    assert_eq!(responder.receive(&Data { psn: Psn::new(1), ..good }), None);
    assert_eq!(responder.counters().refused, 1);
}

#[test]
fn cnps_keep_their_distance() {
    let mut point = NotificationPoint::new(50_000);
    let times = [0, 1, 49_999, 50_000, 99_999, 100_001, 150_000, 150_001];
    let sent = times.map(|at| point.on_mark(Time(at)));
    assert_eq!(sent, [true, false, false, true, false, true, false, true]);
    assert_eq!(point.sent(), 4);
}
