//! Reports of packets that were sent more than once, and reports before any round-trip time is known: what they prove
//! of other packets (RFC 8985 section 6.2, steps 2 and 3).
//!
//! Tests decision 7 of `docs/protocol.md`.

use spindrift::wire::{Aeth, Mark, NackReason, Seth};

use crate::sender::{RTT, Sender, Sent, Setup};
use crate::support::pair::Patience;

/// A round of the 16-bit timestamp, and exactly a retransmission timeout of this code.
const ROUND: u64 = 1 << 23;
const ROUND_TIMEOUT: u8 = 13;

/// Packet 0 has told the round-trip time, packet 1 was declared lost by time, packet 2 made that known, packet 3 left
/// 1 us before the repeat of packet 1. Returns the four, and the repeat, which left just now.
fn overdue() -> (Sender, Vec<Sent>, Sent) {
    let mut sender = Sender::new(Setup { active: 64, ..Setup::default() });
    sender.post(1);
    let mut sent = sender.sent();
    sender.wait(RTT);
    sender.sack(sender.answer(&sent[0], 1));
    sender.post(2);
    sent.extend(sender.sent());
    sender.wait(RTT);
    sender.sack(Seth { bitmap: 0b10, ..sender.answer(&sent[2], 1) });
    sender.wait(1_000);
    sender.post(1);
    sent.push(sender.sent_one());
    sender.wait(1_000);
    let again = sender.sent_one();
    assert_eq!((again.n, again.at.since(sent[3].at), sender.net.now), (1, 1_000, again.at));
    (sender, sent, again)
}

/// The packets that are sent again when a report of `copy` comes `after` the repeat of packet 1 left.
fn sent_after(after: u64, copy: impl Fn(&Sent, &[Sent]) -> Sent) -> Option<i32> {
    let (mut sender, sent, again) = overdue();
    sender.wait(after);
    sender.sack(sender.answer(&copy(&again, &sent), 3));
    sender.wait(10 * RTT / 4);
    let numbers = sender.sent_numbers();
    assert!(numbers.len() < 2, "{numbers:?}");
    numbers.first().copied()
}

/// Packet 3 left before the repeat. If the repeat arrived, packet 3 is overdue; nothing else tells of it.
#[test]
fn only_an_answer_to_the_repeat_shows_that_the_repeat_arrived() {
    assert_eq!(sent_after(RTT, |again, _| *again), Some(3), "the answer to the repeat");
    assert_eq!(sent_after(RTT, |_, sent| sent[1]), None, "the answer to the first copy, however late");
    assert_eq!(
        sent_after(RTT, |again, _| Sent { timestamp: again.timestamp + 1, ..*again }),
        None,
        "of no copy known"
    );
}

/// The report lists packet 1 and answers another: it speaks of the repeat if that had time to be answered.
#[test]
fn a_repeat_reported_sooner_than_any_round_trip_did_not_arrive() {
    assert_eq!(sent_after(RTT, |_, sent| sent[2]), Some(3));
    assert_eq!(sent_after(RTT - 1, |_, sent| sent[2]), None);
}

/// A transport ACK answers no copy.
#[test]
fn an_acknowledgement_of_a_repeat_is_judged_by_its_age() {
    for (after, repeats) in [(RTT, vec![3]), (RTT - 1, vec![])] {
        let (mut sender, sent, _) = overdue();
        sender.wait(after);
        sender.ack(3, Aeth::ack(2));
        // Any report brings judgement; this one is of old packets.
        sender.sack(sender.answer(&sent[0], 3));
        sender.wait(10 * RTT / 4);
        assert_eq!(sender.sent_numbers(), repeats, "{after}");
    }
}

/// The transport ACK came over a faster path, and too soon to prove anything. The SACK behind it does.
#[test]
fn the_answer_to_a_repeat_counts_even_if_the_packet_is_acknowledged_already() {
    let (mut sender, sent, again) = overdue();
    sender.wait(RTT - 1);
    sender.ack(3, Aeth::ack(2));
    sender.wait(1);
    sender.sack(sender.answer(&sent[1], 3));
    sender.wait(RTT);
    assert!(sender.sent_numbers().is_empty(), "an answer to the first copy");
    sender.sack(sender.answer(&again, 3));
    sender.wait(10 * RTT / 4);
    assert_eq!(sender.sent_numbers(), [3]);
}

/// The peer stood still; then it answers the first copies, one by one.
#[test]
fn the_first_copy_of_a_probed_packet_shows_nothing_of_the_others() {
    for probe_answered in [false, true] {
        let (mut sender, sent) = Sender::sending(Setup::default(), 4);
        sender.wait(100_000);
        let probe = sender.sent_one();
        assert_eq!(probe.n, 0);
        sender.wait(RTT);
        sender.sack(sender.answer(if probe_answered { &probe } else { &sent[0] }, 1));
        sender.wait(20_000);
        let expected = if probe_answered { vec![1, 2, 3] } else { vec![] };
        assert_eq!(sender.sent_numbers(), expected);
        assert_eq!(sender.counters().loss_overdue, expected.len() as u64);
    }
}

/// Two repeats of one burst, which have one send time.
#[test]
fn an_answer_proves_nothing_of_what_left_behind_it_at_the_same_time() {
    for (answered, end, bitmap, again) in [(0, 1, 0b10, vec![]), (1, 0, 0b110, vec![0])] {
        let (mut sender, sent) = Sender::sending(Setup::default(), 3);
        sender.wait(RTT);
        sender.sack(Seth { bitmap: 0b100, ..sender.answer(&sent[2], 0) });
        sender.nack(&sent[0], NackReason::Trimmed);
        sender.nack(&sent[1], NackReason::Trimmed);
        let repeats = sender.sent();
        assert_eq!(repeats.iter().map(|repeat| repeat.n).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(repeats[0].at, repeats[1].at);
        sender.wait(RTT);
        sender.sack(Seth { bitmap, ..sender.answer(&repeats[answered], end) });
        sender.wait(20_000);
        assert_eq!(sender.sent_numbers(), again, "{answered} is answered");
    }
}

/// Copies a whole round of timestamps apart: the entropy value tells which one is answered.
#[test]
fn a_late_answer_to_the_first_copy_is_no_round_trip_time_and_marks_no_path() {
    let patience = Patience { timeout: ROUND_TIMEOUT, linear: 7, exponential: 7 };
    let setup = || Setup { patience, tail_probe_floor_ns: 4 * ROUND, ..Setup::default() };
    let (mut sender, sent) = Sender::sending(setup(), 1);
    sender.wait(ROUND);
    let again = sender.sent_one();
    assert_eq!((again.n, again.timestamp, again.at.since(sent[0].at)), (0, sent[0].timestamp, ROUND));
    assert_ne!(again.ev, sent[0].ev);
    sender.wait(1_000);
    sender.sack(Seth { mark: Mark::AlwaysSkip, ..sender.answer(&sent[0], 1) });
    assert_eq!((sender.status().smoothed_rtt_ns, sender.status().min_rtt_ns), (0, 0));
    assert_eq!(sender.blamed(), []);

    let (mut sender, _) = Sender::sending(setup(), 1);
    sender.wait(ROUND);
    let again = sender.sent_one();
    sender.wait(RTT);
    sender.sack(sender.answer(&again, 1));
    assert_eq!((sender.status().smoothed_rtt_ns, sender.status().min_rtt_ns), (RTT, RTT));
}

/// On the only path there is, not even that tells them apart; but nothing is answered sooner than the fastest was.
#[test]
fn an_answer_faster_than_any_may_be_to_the_first_copy() {
    let patience = Patience { timeout: ROUND_TIMEOUT, linear: 7, exponential: 7 };
    let setup = Setup { active: 1, backup: 0, patience, tail_probe_floor_ns: 4 * ROUND, ..Setup::default() };
    let (mut sender, sent) = Sender::sending(setup, 1);
    sender.wait(RTT);
    sender.sack(sender.answer(&sent[0], 1));
    sender.ack(1, Aeth::ack(1));
    sender.post(1);
    sender.sent_one();
    sender.wait(ROUND);
    let again = sender.sent_one();
    assert_eq!((again.n, again.ev), (1, sent[0].ev));
    sender.wait(RTT - 1);
    sender.sack(sender.answer(&again, 2));
    assert_eq!((sender.status().smoothed_rtt_ns, sender.status().min_rtt_ns), (RTT, RTT));
}

/// Elsewhere the copies are told apart, and the fastest round trip may be that of a repeat: if only repeats get through, there is no other.
#[test]
fn a_repeat_may_be_answered_faster_than_anything_before() {
    let (mut sender, sent, again) = overdue();
    sender.wait(RTT - 1);
    sender.sack(sender.answer(&again, 3));
    assert_eq!(sender.status().min_rtt_ns, RTT - 1);
    sender.wait(10 * RTT / 4);
    assert_eq!((sender.sent_numbers(), sent.len()), (vec![3], 4), "it overtook what left before it");
}

/// The first report brings no time. That it came after 10 us bounds the round trip, and the rule goes by that.
#[test]
fn before_a_round_trip_is_known_the_age_of_the_first_report_stands_for_it() {
    for by_ack in [false, true] {
        let (mut sender, sent) = Sender::sending(Setup { planes: 2, ..Setup::default() }, 3);
        let (lost, unknown) = (i32::from(by_ack), Sent { timestamp: 0x7777, ..sent[2] });
        sender.wait(RTT);
        if by_ack {
            sender.ack(1, Aeth::ack(0));
        }
        sender.sack(Seth { bitmap: if by_ack { 0b10 } else { 0b110 }, ..sender.answer(&unknown, lost) });
        let due = sent[0].at.after(RTT + 2_000);
        sender.wait(1_999);
        assert_eq!((sender.sent(), sender.blamed()), (vec![], vec![]));
        sender.wait(1);
        let again = sender.sent_one();
        assert_eq!((again.n, again.at, again.rtx), (lost, due, true));
        assert_eq!((sender.status().smoothed_rtt_ns, sender.inflight()), (0, 1));
        // The first sample replaces the bound.
        sender.wait(500);
        sender.sack(Seth { bitmap: 0b11, ..sender.answer(&again, lost) });
        assert_eq!(sender.status().smoothed_rtt_ns, 500);
    }
}
