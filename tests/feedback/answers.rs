//! What the responder answers, field by field: which packets draw a SACK, which a NACK, which nothing.
//!
//! Tests decisions 8, 9 and 14 of `docs/protocol.md`.

use spindrift::endpoint::Transmit;
use spindrift::path::PlaneSet;
use spindrift::wire::{Aeth, CcState, Ev, Mark, NackReason, NakCode, Neth, Peth, Seth};

use crate::receiver::{
    Answer, CE, DATA, Data, LEN, NOMINAL, PEER_QPN, Receiver, TRIMMED, TRIMMED_LAST_HOP, data, psn,
};

fn units(packets: u32) -> u32 {
    (packets * NOMINAL).div_ceil(256)
}

/// A receiver that has packets 0 to 3 and owes nothing.
fn after_four() -> Receiver {
    let mut receiver = Receiver::new();
    receiver.give(&[data(0), data(1), data(2), data(3)]);
    assert_eq!(receiver.answers(), []);
    receiver
}

#[test]
fn a_packet_that_asks_gets_an_ack_and_a_sack_with_every_field() {
    let mut receiver = after_four();
    let asking = Data { ack_req: true, ..data(4) };
    receiver.give(&[asking]);
    let cc = CcState { tx_timestamp: asking.timestamp, rcvd_bytes: units(5), ..CcState::default() };
    let seth = Seth { entropy: asking.ev, cc, ..receiver.seth(5) };
    assert_eq!(receiver.answers(), [Answer::Sack(seth, false), Answer::Ack(4, Aeth::ack(5))]);
}

/// A packet out of order that asks: a SACK and no ACK. One of the low half, one of the high half.
#[test]
fn every_packet_ahead_has_its_bit() {
    for bit in 1..64 {
        let mut receiver = after_four();
        let asking = Data { ack_req: true, ..data(4 + bit) };
        receiver.give(&[asking]);
        let seth = receiver.sack();
        let cc = CcState {
            tx_timestamp: asking.timestamp,
            rcvd_bytes: units(5),
            ooo_count: 1,
            ..CcState::default()
        };
        let expected = Seth {
            entropy: asking.ev,
            ack_psn_offset: bit as i16 + 1,
            bitmap: 1 << bit,
            cc,
            ..receiver.seth(4)
        };
        assert_eq!(seth, expected, "bit {bit}");
    }
}

#[test]
fn a_pattern_over_both_halves_is_reported_as_it_is() {
    for pattern in [0x0123_4567_89ab_cdee, 0xffff_ffff_0000_0000, 0x8000_0000_8000_0000, u64::MAX - 1] {
        let mut receiver = after_four();
        let mut packets: Vec<_> =
            (0..64).filter(|bit| pattern >> bit & 1 == 1).map(|bit| data(4 + bit)).collect();
        packets.reverse();
        packets.last_mut().unwrap().ack_req = true;
        receiver.give(&packets);
        let seth = receiver.sack();
        assert_eq!((seth.cack, seth.sack_offset, seth.bitmap), (psn(3), 1, pattern), "{pattern:x}");
        assert_eq!(seth.cc.ooo_count, pattern.count_ones() as u16);
        // The gap closes: all at once.
        receiver.give(&[Data { ack_req: true, ..data(4) }]);
        let seth = receiver.answers().iter().find_map(|answer| match answer {
            Answer::Sack(seth, _) => Some(*seth),
            _ => None,
        });
        let end = 4 + (pattern | 1).trailing_ones() as i32;
        assert_eq!(seth.map(|seth| seth.cack), Some(psn(end - 1)), "{pattern:x}");
    }
}

/// Farther than the bitmap reaches: the highest is its last bit, and a retransmission is told of the oldest gap.
#[test]
fn beyond_the_bitmap_the_highest_is_the_last_bit_and_a_repeat_shows_the_oldest_gap() {
    for n in [64_i32, 65, 100, 300] {
        let mut receiver = after_four();
        receiver.give(&[Data { ack_req: true, ..data(4 + n) }]);
        let seth = receiver.sack();
        assert_eq!((i32::from(seth.sack_offset), seth.bitmap), (n - 63 + 1, 1 << 63), "{n}");
        assert_eq!(i32::from(seth.ack_psn_offset), n + 1, "{n}");
        receiver.give(&[Data { rtx: true, ..data(6) }]);
        let seth = receiver.sack();
        assert_eq!((seth.sack_offset, seth.bitmap, seth.ack_psn_offset), (1, 0b100, 3), "{n}");
    }
}

#[test]
fn sixteen_small_packets_draw_a_sack_and_fifteen_none() {
    let mut receiver = Receiver::new();
    for round in 0..3 {
        let from = 16 * round;
        receiver.give(&(from..from + 15).map(data).collect::<Vec<_>>());
        assert_eq!(receiver.answers(), []);
        receiver.give(&[data(from + 15)]);
        let seth = receiver.sack();
        assert_eq!((seth.cack, seth.bitmap), (psn(from + 15), 0));
        assert_eq!((seth.entropy, seth.cc.rcvd_bytes), (data(from + 15).ev, units(from as u32 + 16)));
    }
}

/// `rtx` alone, on a packet that has not come before: the peer waits to hear of the gap.
#[test]
fn a_retransmission_draws_a_sack_by_itself() {
    let mut receiver = after_four();
    let again = Data { rtx: true, ..data(4) };
    receiver.give(&[again]);
    let cc = CcState { tx_timestamp: again.timestamp, rcvd_bytes: units(5), ..CcState::default() };
    let seth = Seth { entropy: again.ev, cc, ..receiver.seth(5) };
    assert_eq!(receiver.answers(), [Answer::Sack(seth, true)], "and the SACK says what drew it");
    // Out of order too.
    receiver.give(&[Data { rtx: true, ..data(7) }]);
    assert_eq!(receiver.sack().bitmap, 0b100);
}

#[test]
fn a_packet_marked_by_a_switch_draws_a_sack_that_says_skip() {
    let mut receiver = after_four();
    let marked = Data { class: CE, ..data(4) };
    receiver.give(&[marked]);
    let cc = CcState { tx_timestamp: marked.timestamp, rcvd_bytes: units(5), ..CcState::default() };
    let seth = Seth { mark: Mark::SkipOnce, entropy: marked.ev, cc, ..receiver.seth(5) };
    assert_eq!(receiver.answers(), [Answer::Sack(seth, false)]);
    // The other ECN bits are no mark.
    for (n, class) in [(5, 0b00), (6, 0b01), (7, DATA)] {
        receiver.give(&[Data { class, ..data(n) }]);
        assert_eq!(receiver.answers(), []);
    }
    assert_eq!(receiver.counters().rx_ecn_marked, 1);
}

/// A mark tells of the path, although the write will be refused once those before it have arrived.
#[test]
fn the_mark_of_a_packet_to_be_refused_is_told() {
    for class in [DATA, CE] {
        let mut receiver = after_four();
        let key = receiver.key;
        receiver.key.rkey ^= 1;
        receiver.give(&[Data { class, ..data(5) }]);
        let marks: Vec<_> = receiver
            .answers()
            .iter()
            .map(|answer| match answer {
                Answer::Sack(seth, _) => (seth.mark, seth.entropy),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(marks, Vec::from_iter((class == CE).then(|| (Mark::SkipOnce, data(5).ev))));
        receiver.key = key;
        receiver.give(&[data(4)]);
        let nak = Answer::Ack(5, Aeth::nak(NakCode::RemoteAccess, 5));
        assert!(receiver.answers().contains(&nak));
    }
}

/// Each mark of a burst names its own path; a plain packet after it does not take its place.
#[test]
fn every_mark_is_told_of_its_own_path() {
    let mut receiver = Receiver::new();
    let marked = |n| Data { class: CE, ..data(n) };
    receiver.give(&[marked(0), Data { ack_req: true, ..data(1) }, marked(2), marked(3)]);
    let sacks: Vec<_> = receiver
        .answers()
        .iter()
        .filter_map(|answer| match answer {
            Answer::Sack(seth, _) => {
                Some((seth.entropy, seth.mark, seth.ack_psn_offset, seth.cc.tx_timestamp))
            }
            _ => None,
        })
        .collect();
    let told = |n: i32| (data(n).ev, Mark::SkipOnce, n as i16 - 3, data(n).timestamp);
    assert_eq!(sacks, [told(0), told(2), told(3)]);
}

#[test]
fn a_duplicate_draws_a_sack_and_an_old_packet_an_ack_too() {
    let mut receiver = after_four();
    receiver.give(&[data(6)]);
    assert_eq!(receiver.answers(), []);
    let twin = Data { timestamp: 0x777, ev: Ev(0x1111_2222), ..data(6) };
    receiver.give(&[twin]);
    let cc = CcState { tx_timestamp: 0x777, rcvd_bytes: units(5), ooo_count: 1, ..CcState::default() };
    let seth = Seth { entropy: twin.ev, ack_psn_offset: 3, bitmap: 0b100, cc, ..receiver.seth(4) };
    assert_eq!(receiver.answers(), [Answer::Sack(seth, true)], "its bytes count once");
    let old = Data { timestamp: 0x888, ..data(1) };
    receiver.give(&[old]);
    let cc = CcState { tx_timestamp: 0x888, ..cc };
    let seth = Seth { entropy: old.ev, ack_psn_offset: -2, cc, ..seth };
    assert_eq!(receiver.answers(), [Answer::Sack(seth, true), Answer::Ack(3, Aeth::ack(4))]);
}

#[test]
fn a_reliability_probe_is_answered_with_its_id() {
    let mut receiver = after_four();
    receiver.give(&[data(5)]);
    let peth = Peth {
        probe_id: 0xfedc,
        spdcid: PEER_QPN.low16(),
        dpdcid: receiver.qp.qpn.low16(),
        tx_timestamp: 0xabcd,
        ..Peth::default()
    };
    let ev = Ev(0x2222_3333);
    for (class, mark) in [(DATA, Mark::None), (CE, Mark::SkipOnce)] {
        receiver.give_probe(peth, ev, class);
        let cc = CcState { tx_timestamp: 0xabcd, rcvd_bytes: units(5), ooo_count: 1, ..CcState::default() };
        let seth = Seth {
            pr: true,
            mark,
            entropy: ev,
            ack_psn_offset: 0xfedc_u16.cast_signed(),
            bitmap: 0b10,
            cc,
            ..receiver.seth(4)
        };
        assert_eq!(receiver.answers(), [Answer::Sack(seth, false)]);
    }
    for forged in [Peth { spdcid: 1, ..peth }, Peth { dpdcid: 1, ..peth }] {
        receiver.give_probe(forged, ev, DATA);
        assert_eq!(receiver.answers(), []);
    }
}

#[test]
fn a_trimmed_packet_becomes_a_nack_that_says_where() {
    for (dscp, reason) in [(TRIMMED, NackReason::Trimmed), (TRIMMED_LAST_HOP, NackReason::TrimmedLastHop)] {
        let mut receiver = after_four();

        for n in [4, 6] {
            receiver.give_trimmed(&data(n), dscp);
            let neth = Neth {
                spdcid: receiver.qp.qpn.low16(),
                dpdcid: PEER_QPN.low16(),
                tx_timestamp: data(n).timestamp,
                ..Neth::new(reason, psn(n), data(n).ev)
            };
            assert_eq!(neth.cc_type, 2, "MRC 1.0 table 7-16");
            assert_eq!(receiver.answers(), [Answer::Nack(neth)]);
        }
        // What has arrived is not refused, nor what is outside the window.
        receiver.give(&[data(6)]);
        for n in [0, 3, 6, 1_000] {
            receiver.give_trimmed(&data(n), dscp);
            assert_eq!(receiver.answers(), [], "{n}");
        }
        // Nothing of it was taken in.
        receiver.give(&[Data { ack_req: true, ..data(4) }]);
        let rcvd = receiver.answers().iter().find_map(|answer| match answer {
            Answer::Sack(seth, _) => Some((seth.cack, seth.cc.rcvd_bytes, seth.bitmap)),
            _ => None,
        });
        assert_eq!(rcvd, Some((psn(4), units(6), 0b10)));
        assert_eq!(receiver.counters().rx_placed_bytes, 6 * u64::from(LEN));
    }
}

#[test]
fn a_packet_outside_the_window_draws_a_nack_only_where_wanted() {
    for wanted in [false, true] {
        let mut receiver = Receiver::with(|cfg| cfg.oor_nack = wanted);
        // The window is 3 times 128, and half open.
        let outside = Data { ack_req: true, rtx: true, ..data(3 * 128 - 1) };
        receiver.give(&[outside]);
        let neth = Neth {
            spdcid: receiver.qp.qpn.low16(),
            dpdcid: PEER_QPN.low16(),
            tx_timestamp: outside.timestamp,
            ..Neth::new(NackReason::PsnOutOfWindow, psn(outside.n), outside.ev)
        };
        let expected = if wanted { vec![Answer::Nack(neth)] } else { vec![] };
        assert_eq!(receiver.answers(), expected);
        receiver.give(&[Data { ack_req: true, ..data(3 * 128 - 2) }]);
        assert_eq!(receiver.sack().bitmap, 1 << 63);
    }
}

/// Every arrival is in some SACK, though none asks for the others.
#[test]
fn what_no_sack_has_listed_follows() {
    let mut receiver = Receiver::new();
    let packets: Vec<_> = (1..300).filter(|n| n % 3 != 0).map(data).collect();
    let (last, others) = packets.split_last().unwrap();
    receiver.give(others);
    let mut listed = list(&receiver.answers());
    receiver.give(&[Data { ack_req: true, ..*last }]);
    listed.extend(list(&receiver.answers()));
    listed.sort_unstable();
    listed.dedup();
    assert_eq!(listed, packets.iter().map(|packet| packet.n).collect::<Vec<_>>());
}

fn list(answers: &[Answer]) -> Vec<i32> {
    let mut listed = Vec::new();
    for answer in answers {
        let Answer::Sack(seth, _) = answer else { panic!("{answer:?}") };
        assert_eq!(seth.cack, psn(-1));
        let bits = (0..64).filter(|bit| seth.bitmap >> bit & 1 == 1);
        listed.extend(bits.map(|bit| i32::from(seth.sack_offset) - 1 + bit));
    }
    listed
}

/// After 64 completed messages an ACK goes out though nobody asked.
#[test]
fn an_ack_is_sent_after_sixty_four_messages() {
    let mut receiver = Receiver::new();
    receiver.give(&(0..63).map(data).collect::<Vec<_>>());
    assert!(receiver.answers().iter().all(|answer| matches!(answer, Answer::Sack(..))));
    receiver.give(&[data(63)]);
    assert_eq!(receiver.answers().last(), Some(&Answer::Ack(63, Aeth::ack(64))));
}

/// Answers wait for a port that they can take, and for nothing else.
#[test]
fn answers_wait_for_their_port() {
    let mut receiver = Receiver::new();
    let first = receiver.qp;
    for qp in [receiver.add_qp(|_| {}), first] {
        receiver.qp = qp;
        receiver.give_silently(&[Data { ack_req: true, ..data(0) }]);
    }
    let (now, mut out) = (receiver.net.now, Transmit::default());
    let endpoint = receiver.net.endpoint(receiver.qp.node);
    for _ in 0..3 {
        assert!(!endpoint.transmit(now, PlaneSet(0b10), &mut out), "another port has room");
    }
    let sent = core::iter::from_fn(|| endpoint.transmit(now, PlaneSet(0b01), &mut out).then_some(())).count();
    assert_eq!(sent, 4, "an acknowledgement and a SACK each");
    let counters = receiver.counters();
    assert_eq!((counters.tx_acks, counters.tx_sacks), (2, 2));
}

/// Each answer is counted once, and so is each that there was no room for.
#[test]
fn answers_are_counted() {
    const MARKS: i32 = 300;
    let mut receiver = after_four();
    receiver.give_trimmed(&data(4), TRIMMED);
    receiver.give_trimmed(&data(5), TRIMMED);
    assert_eq!((receiver.counters().tx_nacks, receiver.answers().len()), (2, 2));
    // Packet 4 is missing still.
    for n in 5..5 + MARKS {
        receiver.give_silently(&[Data { class: CE, ..data(n) }]);
    }
    receiver.give(&[]);
    let sacks = receiver.answers().len() as u64;
    let counters = receiver.counters();
    assert_eq!((counters.tx_sacks, counters.tx_sacks_dropped), (sacks, MARKS as u64 - sacks));
    assert!(counters.tx_sacks_dropped > 0 && counters.rx_out_of_order == MARKS as u64);
}
