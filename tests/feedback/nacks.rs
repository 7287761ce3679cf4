//! NACKs of every code, and what a stale one does.
//!
//! Tests decisions 5 and 11 of `docs/protocol.md`.

use spindrift::endpoint::FailReason;
use spindrift::path::EvState;
use spindrift::wire::{Mark, NackReason, Seth};
use spindrift::work::WcStatus;

use crate::sender::{FULL, PACKET, RTT, Sender, Setup};
use crate::support::pair::{Patience, gives_up_at};

const TRIMMABLE_RETX: u8 = 8;

/// The codes other than `UNEXP_EVENT`, and whether the packet's path goes to SKIP.
const CODES: [(u8, bool); 9] = [
    (0x01, true),
    (0x02, false),
    (0x06, false),
    (0x07, false),
    (0x0a, false),
    (0x0b, false),
    (0x00, false),
    (0x03, false),
    (0xff, false),
];

#[test]
fn every_code_has_the_packet_sent_again_and_only_a_trim_inside_marks_the_path() {
    for (code, skip) in CODES {
        let (mut sender, sent) = Sender::sending(Setup { planes: 2, ..Setup::default() }, 16);
        sender.wait(RTT);
        let refused = sent[4];
        sender.nack(&refused, NackReason::from(code));
        let again = sender.sent_one();
        assert_eq!(
            (again.n, again.rtx, again.ack_req, again.at),
            (4, true, true, sender.net.now),
            "{code:02x}"
        );
        assert_ne!(again.plane, refused.plane, "{code:02x}: the other plane");
        assert_eq!(again.class >> 2, TRIMMABLE_RETX, "{code:02x}");
        let blamed = if skip { vec![(refused.ev, EvState::Skip, 0)] } else { vec![] };
        assert_eq!(sender.blamed(), blamed, "{code:02x}");
        let paths = sender.paths();
        assert_eq!((paths.trim_skips, paths.losses, paths.swaps), (u64::from(skip), 0, 0), "{code:02x}");
        assert_eq!((sender.cwnd(), sender.inflight()), (FULL - PACKET, 16), "{code:02x}: cut by the packet");
        let counters = sender.counters();
        assert_eq!((counters.loss_nack, counters.tx_retransmits), (1, 1), "{code:02x}");
        // It speaks of the first copy, so once is enough.
        sender.wait(200);
        sender.nack(&refused, NackReason::from(code));
        assert_eq!((sender.sent(), sender.counters().rx_stale_nack), (vec![], 1), "{code:02x}");
        assert_eq!(sender.cwnd(), FULL - PACKET, "{code:02x}");
    }
}

#[test]
fn unexpected_event_ends_the_queue_pair() {
    let (mut sender, sent) = Sender::sending(Setup::default(), 4);
    sender.nack(&sent[1], NackReason::UnexpectedEvent);
    let (completions, failure) = sender.ended();
    assert_eq!(failure, Some(FailReason::PeerFatal));
    assert_eq!(completions.iter().map(|wc| wc.status).collect::<Vec<_>>(), [WcStatus::FatalError]);
    assert_eq!((sender.blamed(), sender.sent()), (vec![], vec![]));
}

#[test]
fn a_refused_packet_that_has_arrived_is_not_sent_again() {
    for code in CODES.map(|(code, _)| code) {
        let (mut sender, sent) = Sender::sending(Setup::default(), 8);
        sender.wait(100);
        sender.sack(sender.answer(&sent[4], 0));
        sender.nack(&sent[4], NackReason::from(code));
        assert_eq!((sender.sent(), sender.blamed(), sender.cwnd()), (vec![], vec![], FULL), "{code:02x}");
    }
}

#[test]
fn a_nack_needs_the_timestamp_of_the_last_transmission() {
    let (mut sender, mut sent) = Sender::sending(Setup::default(), 8);
    sent[3].timestamp ^= 1;
    sender.nack(&sent[3], NackReason::Trimmed);
    assert_eq!((sender.sent(), sender.blamed(), sender.cwnd()), (vec![], vec![], FULL));
    assert_eq!(sender.counters().rx_stale_nack, 1);
}

/// A path that was trimmed is passed over once, as after a mark.
#[test]
fn a_trimmed_path_is_left_out_for_four_rotations() {
    let (mut sender, sent) = Sender::sending(Setup::default(), 8);
    sender.nack(&sent[2], NackReason::Trimmed);
    let again = sender.sent_one();
    sender.post(4 * 7);
    let without = sender.sent();
    assert!(without.iter().chain([&again]).all(|packet| packet.ev != sent[2].ev));
    sender.post(8);
    assert_eq!(sender.sent().iter().filter(|packet| packet.ev == sent[2].ev).count(), 1);
}

/// Fifty times the same packet, with one plane and two paths: never twice in a row on one of them.
#[test]
fn a_retransmission_never_takes_the_path_of_the_copy_that_was_lost() {
    let (mut sender, sent) = Sender::sending(Setup { active: 2, backup: 0, ..Setup::default() }, 1);
    let mut last = sent[0];
    for turn in 0..50 {
        sender.wait(1_000);
        sender.nack(&last, NackReason::TrimmedLastHop);
        let again = sender.sent_one();
        assert_ne!(again.ev, last.ev, "turn {turn}");
        last = again;
    }
    assert_eq!(sender.blamed(), []);
}

/// With planes of one path each, whoever has the next turn.
#[test]
fn a_retransmission_takes_another_plane() {
    for packets in 2..8 {
        for lost in 0..packets {
            let setup = Setup { planes: 2, active: 1, backup: 0, ..Setup::default() };
            let (mut sender, sent) = Sender::sending(setup, packets);
            let lost = sent[lost as usize];
            sender.nack(&lost, NackReason::TrimmedLastHop);
            assert_ne!(sender.sent_one().plane, lost.plane, "{lost:?} of {packets}");
        }
    }
}

/// A trim shows that the way to the peer works, so the retries start over; a peer that never has room uses them up.
#[test]
fn only_trims_restart_the_retries() {
    const SHORT: Patience = Patience { timeout: 8, linear: 2, exponential: 2 };
    for (code, _) in CODES {
        let (mut sender, sent) =
            Sender::sending(Setup { patience: SHORT, tail_probe_floor_ns: 50_000, ..Setup::default() }, 1);
        let (start, mut last) = (sent[0].at, sent[0]);
        let end = gives_up_at(start, SHORT);
        while sender.net.now < end.after(5_000_000) && sender.ended().1.is_none() {
            sender.wait(10_000);
            last = sender.sent().last().copied().unwrap_or(last);
            sender.nack(&last, NackReason::from(code));
        }
        let failed = sender.net.now < end.after(5_000_000);
        assert_eq!(failed, !matches!(code, 1 | 2), "{code:02x}");
        if failed {
            assert!(sender.net.now.since(end) <= 10_000, "{code:02x}: {} instead of {end}", sender.net.now);
        }
    }
}

/// The SACK for the repeat of a trimmed packet gives a round-trip time: its record is the repeat's.
#[test]
fn the_answer_to_a_repeat_is_timed_from_the_repeat() {
    let (mut sender, sent) = Sender::sending(Setup::default(), 8);
    sender.wait(RTT);
    sender.nack(&sent[0], NackReason::TrimmedLastHop);
    let again = sender.sent_one();
    sender.wait(3_000);
    sender.sack(Seth { mark: Mark::SkipOnce, ..sender.answer(&sent[0], 8) });
    assert_eq!((sender.status().smoothed_rtt_ns, sender.blamed()), (0, vec![]), "not the copy last sent");
    sender.sack(Seth { mark: Mark::SkipOnce, ..sender.answer(&again, 8) });
    assert_eq!(sender.status().smoothed_rtt_ns, 3_000);
    assert_eq!(sender.blamed(), [(again.ev, EvState::Skip, 0)]);
}
