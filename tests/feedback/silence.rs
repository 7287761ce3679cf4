//! Nothing comes back: tail probes, and the retransmission timer.
//!
//! Tests decisions 7 and 26 of `docs/protocol.md`.

use spindrift::endpoint::FailReason;
use spindrift::path::EvState;
use spindrift::wire::{Aeth, NackReason, Seth};
use spindrift::work::WcStatus;

use crate::sender::{FULL, PACKET, RTT, Sender, Sent, Setup};
use crate::support::pair::{Patience, gives_up_at};

const FLOOR: u64 = 100_000;

#[test]
fn a_tail_probe_repeats_the_oldest_packet_on_another_path_and_costs_no_window() {
    let (mut sender, sent) = Sender::sending(Setup { planes: 2, ..Setup::default() }, 4);
    sender.sack(sender.seth(1));
    sender.wait(FLOOR - 1);
    assert_eq!(sender.sent(), []);
    sender.wait(1);
    let probe = sender.sent_one();
    assert_eq!((probe.n, probe.rtx, probe.ack_req, probe.at), (1, true, true, sent[0].at.after(FLOOR)));
    assert_ne!(probe.plane, sent[1].plane);
    let counters = sender.counters();
    assert_eq!((counters.tx_tail_probes, counters.tx_retransmits, counters.loss_overdue), (1, 0, 0));
    assert_eq!((sender.cwnd(), sender.inflight(), sender.blamed()), (FULL, 3, vec![]));
    // The next one after twice as long, and not where the last one went.
    sender.wait(2 * FLOOR - 1 - FLOOR);
    assert_eq!(sender.sent(), []);
    sender.wait(1);
    let next = sender.sent_one();
    assert_eq!((next.n, next.at), (1, sent[0].at.after(2 * FLOOR)));
    assert_ne!(next.plane, probe.plane);
}

/// The first packet after a silence takes the path that brought the newest of all packets that have arrived; the next ones do not, since
/// that may have died as well.
#[test]
fn the_first_tail_probe_takes_a_path_that_is_known_to_work() {
    for count in 2_u8..=8 {
        let (mut sender, sent) =
            Sender::sending(Setup { active: 8, backup: 0, ..Setup::default() }, count.into());
        sender.wait(RTT);
        sender.sack(sender.seth(count.into()));
        sender.post(1);
        let lost = sender.sent_one();
        let expected = sent.iter().rfind(|packet| packet.ev != lost.ev).unwrap();
        sender.wait(FLOOR);
        let probe = sender.sent_one();
        assert_eq!((probe.n, probe.ev), (i32::from(count), expected.ev), "{count}");
        sender.wait(2 * FLOOR);
        assert!(sender.sent().iter().all(|packet| packet.ev != expected.ev), "{count}: the next one");
    }
}

/// After a round-trip time is known, the probe waits for two of them if that is longer.
#[test]
fn a_tail_probe_waits_for_two_round_trips() {
    let (mut sender, sent) = Sender::sending(Setup { tail_probe_floor_ns: 1_000_000, ..Setup::default() }, 4);
    sender.wait(600_000);
    sender.sack(sender.answer(&sent[3], 4));
    sender.post(1);
    let (last, heard) = (sender.sent_one(), sender.net.now);
    assert_eq!((last.n, last.at), (4, heard));
    let wait = 600_000 + 4 * 300_000;
    sender.wait(wait - 1);
    assert_eq!(sender.sent(), []);
    sender.wait(1);
    assert_eq!(sender.sent_one().n, 4, "a round trip and four times its variation");
}

#[test]
fn when_only_the_completion_is_missing_the_last_packet_asks_for_it() {
    let (mut sender, sent) = Sender::sending(Setup::default(), 4);
    sender.sack(sender.seth(4));
    assert_eq!(sender.inflight(), 0);
    sender.wait(FLOOR);
    let probe = sender.sent_one();
    assert_eq!((probe.n, probe.rtx, probe.ack_req), (3, true, true));
    assert_ne!(probe.ev, sent[3].ev);
    assert_eq!((sender.cwnd(), sender.inflight(), sender.blamed()), (FULL, 0, vec![]));
    sender.ack(4, Aeth::ack(1));
    sender.wait(100 * FLOOR);
    assert_eq!(sender.sent(), []);
}

/// A packet and its tail probe; the probe alone is answered.
fn lose_the_first_copy(sender: &mut Sender) -> Sent {
    sender.post(1);
    let first = sender.sent_one();
    sender.wait(FLOOR);
    let probe = sender.sent_one();
    assert_eq!(probe.n, first.n);
    assert_ne!(probe.ev, first.ev);
    sender.wait(RTT);
    sender.sack(sender.answer(&probe, first.n + 1));
    sender.ack(first.n + 1, Aeth::ack((first.n + 1) as u32));
    first
}

#[test]
fn a_path_that_only_the_probe_survives_twice_goes_bad() {
    let mut sender = Sender::new(Setup { active: 2, backup: 2, ..Setup::default() });
    // What both carried before is no excuse.
    sender.post(4);
    let sent = sender.sent();
    sender.wait(RTT);
    sender.sack(sender.answer(&sent[3], 4));
    sender.ack(4, Aeth::ack(1));
    let first = lose_the_first_copy(&mut sender);
    assert_eq!((sender.counters().tail_suspects, sender.blamed()), (1, vec![]));
    let mut suspects = vec![first.ev];
    loop {
        let next = lose_the_first_copy(&mut sender);
        if suspects.contains(&next.ev) {
            assert_eq!(sender.blamed(), [(next.ev, EvState::AssumedBad, 1)]);
            break;
        }
        assert_eq!(sender.blamed(), []);
        suspects.push(next.ev);
    }
    assert_eq!(sender.counters().tail_suspects, suspects.len() as u64 + 1);
    assert_eq!(sender.cwnd(), FULL, "each packet counted once, and arrived");
}

#[test]
fn a_first_copy_that_was_only_late_blames_nobody() {
    for silent in [false, true] {
        let (mut sender, sent) = Sender::sending(Setup { active: 2, backup: 2, ..Setup::default() }, 1);
        sender.wait(FLOOR);
        let probe = sender.sent_one();
        sender.sack(sender.answer(&sent[0], 1));
        if silent {
            sender.sack(sender.answer(&probe, 1));
        }
        let counters = sender.counters();
        assert_eq!((counters.spurious_retransmits, counters.tail_suspects), (1, 0));
        assert_eq!((sender.blamed(), sender.cwnd(), sender.inflight()), (vec![], FULL, 0));
    }
}

/// Both copies bear the same 16-bit timestamp: the entropy value reflected tells which one is answered.
#[test]
fn copies_a_round_of_timestamps_apart_are_told_by_entropy() {
    for (first, expected) in [(true, (1, 0)), (false, (0, 1))] {
        let setup = Setup { tail_probe_floor_ns: 1 << 23, ..Setup::default() };
        let (mut sender, sent) = Sender::sending(setup, 1);
        sender.wait(1 << 23);
        let probe = sender.sent_one();
        assert_eq!(probe.timestamp, sent[0].timestamp);
        sender.wait(RTT);
        sender.sack(sender.answer(if first { &sent[0] } else { &probe }, 1));
        let counters = sender.counters();
        assert_eq!((counters.spurious_retransmits, counters.tail_suspects), expected);
    }
}

/// The answer to the probe overtakes the whole burst, which is then overdue.
#[test]
fn the_answer_to_a_tail_probe_reveals_the_rest() {
    let (mut sender, sent) = Sender::sending(Setup { active: 16, backup: 16, ..Setup::default() }, 8);
    sender.wait(FLOOR);
    let probe = sender.sent_one();
    assert_eq!(probe.n, 0);
    sender.wait(RTT);
    sender.sack(sender.answer(&probe, 1));
    assert_eq!(sender.sent_numbers(), (1..8).collect::<Vec<_>>());
    let mut bad: Vec<_> = sent[1..].iter().map(|packet| (packet.ev, EvState::AssumedBad, 1)).collect();
    bad.sort_unstable_by_key(|bad| bad.0);
    let mut blamed = sender.blamed();
    blamed.sort_unstable_by_key(|bad| bad.0);
    assert_eq!(blamed, bad, "and of the first the path is suspected only");
    let counters = sender.counters();
    assert_eq!((counters.loss_overdue, counters.tail_suspects, counters.tx_retransmits), (7, 1, 7));
    assert_eq!((sender.cwnd(), sender.inflight()), (FULL - 7 * PACKET, 7));
}

/// One that lists less than has arrived leaves it open what has arrived of the rest: only of the first packet is it sure.
#[test]
fn a_report_that_does_not_list_all_leaves_the_paths_of_the_rest_in_doubt() {
    for (others, counts) in [(0, 7), (1, 1), (100, 1)] {
        let (mut sender, sent) = Sender::sending(Setup { active: 16, backup: 16, ..Setup::default() }, 8);
        sender.wait(FLOOR);
        let probe = sender.sent_one();
        sender.wait(RTT);
        let mut seth = sender.answer(&probe, 1);
        seth.cc.ooo_count = others;
        sender.sack(seth);
        assert_eq!(sender.sent_numbers(), (1..8).collect::<Vec<_>>(), "all are sent again");
        let blamed = sender.blamed();
        assert_eq!(blamed.len(), counts, "{others} others: {blamed:?}");
        assert!(blamed.iter().any(|bad| bad.0 == sent[1].ev));
    }
}

/// What is overdue without a new report may have arrived, with no SACK due for it or with one that was lost: the next report tells.
#[test]
fn the_report_that_follows_decides_what_became_overdue_before() {
    for (bits, cack, blamed) in [(0b1110, 0, true), (0b1111, 0, false), (0, 4, false), (0, 0, true)] {
        let (mut sender, sent) = Sender::sending(Setup { active: 16, backup: 16, ..Setup::default() }, 8);
        sender.wait(RTT);
        sender.sack(Seth { bitmap: 0b10, ..sender.answer(&sent[1], 0) });
        sender.wait(RTT);
        assert_eq!((sender.sent_numbers(), sender.blamed()), (vec![0], vec![]));
        sender.sack(Seth { bitmap: bits, ..sender.answer(&sent[3], cack) });
        // It took two round trips, so the packet may have been lost to congestion.
        let path = if blamed { vec![(sent[0].ev, EvState::Skip, 1)] } else { vec![] };
        let on_path: Vec<_> = sender.blamed().into_iter().filter(|bad| bad.0 == sent[0].ev).collect();
        assert_eq!(on_path, path, "{bits:b} from {cack}");
    }
    // A report that was overtaken decides nothing.
    let (mut sender, sent) = Sender::sending(Setup { active: 16, backup: 16, ..Setup::default() }, 8);
    sender.wait(RTT);
    let mut seth = Seth { bitmap: 0b10, ..sender.answer(&sent[1], 0) };
    seth.cc.rcvd_bytes = 100;
    sender.sack(seth);
    sender.wait(RTT);
    assert_eq!(sender.sent_numbers(), [0]);
    let mut seth = Seth { bitmap: 0b1110, ..sender.answer(&sent[3], 0) };
    seth.cc.rcvd_bytes = 99;
    sender.sack(seth);
    assert_eq!(sender.blamed(), []);
}

/// Where everything else has been reported, the peer would have told that it came.
#[test]
fn no_path_is_blamed_for_what_becomes_overdue_in_silence() {
    // The first is missing, and those behind are reported as far as this.
    for (reported, blames) in [(8, true), (7, false), (2, false)] {
        let (mut sender, sent) = Sender::sending(Setup { active: 16, backup: 16, ..Setup::default() }, 8);
        sender.wait(RTT);
        let listed = (1 << (reported - 1)) - 1;
        let seth = Seth { bitmap: listed << 1, ..sender.answer(&sent[1], 0) };
        sender.sack(seth);
        assert_eq!((sender.sent(), sender.blamed()), (vec![], vec![]), "not yet");
        sender.wait(RTT);
        assert_eq!(sender.sent_numbers(), [0], "it is sent again all the same");
        let path = if blames { vec![(sent[0].ev, EvState::AssumedBad, 1)] } else { vec![] };
        assert_eq!((sender.blamed(), sender.counters().loss_overdue), (path, 1), "up to {reported}");
    }
}

/// With the window used up by what is lost, the oldest gap goes out as the probe.
#[test]
fn a_tail_probe_goes_out_when_congestion_control_allows_nothing() {
    let (mut sender, sent) = Sender::sending(Setup::default(), 16);
    sender.wait(RTT);
    let mut seth = sender.answer(&sent[4], 0);
    seth.cc.cwnd_penalty = 127;
    sender.sack(seth);
    sender.sent();
    sender.nack(&sent[6], NackReason::TrimmedLastHop);
    assert_eq!(sender.sent(), []);
    let (cwnd, inflight) = (sender.cwnd(), sender.inflight());
    assert!(inflight * PACKET + 256 > cwnd);
    // Meanwhile the others count as overdue.
    sender.wait(FLOOR);
    let sent = sender.sent();
    assert!(!sent.is_empty() && sent[0].rtx, "{sent:?}");
}

const PATIENCE: Patience = Patience { timeout: 8, linear: 2, exponential: 3 };
const INTERVAL: u64 = 1024 << 8;

fn patient() -> Setup {
    // No tail probe before the timer.
    Setup { patience: PATIENCE, tail_probe_floor_ns: 10 * INTERVAL, ..Setup::default() }
}

/// Silence does not tell lost packets from late ones: the timer sends one, and its answer decides on the others.
#[test]
fn the_retransmission_timer_sends_the_oldest_again_and_its_answer_brings_the_others() {
    let (mut sender, sent) = Sender::sending(patient(), 8);
    sender.wait(INTERVAL - 1);
    assert_eq!(sender.sent(), []);
    sender.wait(1);
    let again = sender.sent_one();
    assert_eq!((again.n, again.rtx, again.ack_req, again.at.since(sent[0].at)), (0, true, true, INTERVAL));
    assert_ne!(again.ev, sent[0].ev);
    assert_eq!((sender.cwnd(), sender.inflight()), (FULL, 8));
    let counters = sender.counters();
    assert_eq!((counters.timeouts, counters.tx_tail_probes, counters.tx_retransmits), (1, 1, 0));

    sender.wait(RTT);
    sender.sack(sender.answer(&again, 1));
    sender.wait(RTT);
    let rest = sender.sent();
    assert_eq!(rest.iter().map(|packet| packet.n).collect::<Vec<_>>(), (1..8).collect::<Vec<_>>());
    assert!(rest.iter().zip(&sent[1..]).all(|(again, sent)| again.rtx && again.ev != sent.ev));
    assert_eq!(sender.blamed(), [], "no path answered, so it was none of theirs");
    assert_eq!((sender.counters().tx_retransmits, sender.cwnd()), (7, FULL - 7 * PACKET));
}

/// The same for packets that were sent after the timer expired: those say something of their paths.
#[test]
fn a_path_is_blamed_for_what_it_loses_after_the_silence() {
    let (mut sender, sent) = Sender::sending(patient(), 1);
    sender.wait(INTERVAL);
    let again = sender.sent_one();
    sender.wait(1);
    sender.post(1);
    let later = sender.sent_one();
    sender.wait(RTT);
    sender.sack(sender.answer(&again, 1));
    sender.post(1);
    let newest = sender.sent_one();
    sender.wait(RTT);
    sender.sack(Seth { bitmap: 0b10, ..sender.answer(&newest, 1) });
    sender.wait(RTT);
    assert_eq!(sender.sent_numbers(), [1]);
    assert_eq!(sender.blamed(), [(later.ev, EvState::AssumedBad, 1)]);
    assert_ne!(later.ev, sent[0].ev);
}

#[test]
fn the_timer_leaves_out_what_has_arrived() {
    let (mut sender, sent) = Sender::sending(patient(), 4);
    sender.wait(RTT);
    sender.nack(&sent[0], NackReason::TrimmedLastHop);
    let again = sender.sent_one();
    // The repeat left after all that has arrived, so it is not overdue.
    sender.sack(Seth { bitmap: 0b1110, ..sender.answer(&sent[3], 0) });
    assert_eq!((sender.inflight(), sender.sent()), (1, vec![]));
    sender.wait(INTERVAL);
    let once_more = sender.sent_one();
    assert_eq!(once_more.n, 0);
    assert_ne!(once_more.ev, again.ev, "the path of the copy sent last");
    assert_eq!(sender.blamed(), []);
}

/// Where answers take long, the timer waits for them: for two round trips or for the classic timeout, up to four intervals.
#[test]
fn the_timer_waits_as_long_as_answers_take() {
    let cases: [(&[u64], u64); 4] = [
        (&[10_000], INTERVAL),
        (&[100_000], 300_000),
        (&[250_000, 250_000, 250_000, 250_000, 250_000, 250_000, 250_000, 250_000, 250_000], 500_000),
        (&[250_000, 740_000], 4 * INTERVAL),
    ];
    for (round_trips, expected) in cases {
        let mut sender = Sender::new(patient());
        for (&rtt, end) in round_trips.iter().zip(1..) {
            sender.post(1);
            let sent = sender.sent_one();
            sender.wait(rtt);
            sender.sack(sender.answer(&sent, end));
            sender.ack(end, Aeth::ack(end as u32));
            assert_eq!(sender.sent(), []);
        }
        sender.post(1);
        let sent = sender.sent_one();
        sender.wait(expected - 1);
        assert_eq!(sender.sent(), [], "{round_trips:?}");
        sender.wait(1);
        assert_eq!(sender.sent_one().n, sent.n, "{round_trips:?}");
    }
}

/// Tail probes after a timeout begin at a quarter of the silence: the longer it lasts, the rarer they are.
#[test]
fn tail_probes_are_rarer_in_a_long_silence() {
    let setup = Setup { patience: PATIENCE, tail_probe_floor_ns: 10_000, ..Setup::default() };
    let (mut sender, sent) = Sender::sending(setup, 1);
    sender.wait(10 * INTERVAL);
    let times: Vec<_> = sender.sent().iter().map(|packet| packet.at.since(sent[0].at)).collect();
    let mut expected = Vec::new();
    // Before the first timeout from the floor, then from a quarter of 1, 2, 3, 5 and 9 intervals.
    for (from, to) in [(0, 1), (1, 2), (2, 3), (3, 5), (5, 9)] {
        let (from, to) = (from * INTERVAL, to * INTERVAL);
        let mut wait = (from / 4).max(10_000);
        while from + wait < to {
            expected.push(from + wait);
            wait *= 2;
        }
        expected.push(to);
    }
    expected.push(9 * INTERVAL + 9 * INTERVAL / 4);
    expected.retain(|&at| at <= 10 * INTERVAL);
    assert_eq!(times, expected);
}

#[test]
fn timeouts_are_linear_then_doubling_and_then_the_queue_pair_fails() {
    let (mut sender, sent) = Sender::sending(patient(), 1);
    let start = sent[0].at;
    sender.wait(100 * INTERVAL);
    let mut times: Vec<_> = sender.sent().iter().map(|packet| packet.at.since(start) / INTERVAL).collect();
    times.dedup();
    assert_eq!(times, [1, 2, 3, 5, 9]);
    let (completions, failure) = sender.ended();
    assert_eq!(failure, Some(FailReason::RetryExceeded));
    assert_eq!(completions.iter().map(|wc| wc.status).collect::<Vec<_>>(), [WcStatus::RetryExceeded]);
    assert_eq!(gives_up_at(start, PATIENCE).since(start) / INTERVAL, 17);
}

/// Whatever arrives gives the queue pair all its retries back.
#[test]
fn news_give_the_retries_back() {
    let (mut sender, _) = Sender::sending(patient(), 2);
    sender.wait(4 * INTERVAL);
    assert_eq!(sender.counters().timeouts, 3);
    sender.sent();
    sender.sack(sender.seth(1));
    let start = sender.net.now;
    sender.wait(100 * INTERVAL);
    let mut times: Vec<_> = sender.sent().iter().map(|packet| packet.at.since(start) / INTERVAL).collect();
    times.dedup();
    assert_eq!((times, sender.counters().timeouts), (vec![1, 2, 3, 5, 9], 9));
}

/// Anything new that arrives starts the timers over; what is known already does not.
#[test]
fn only_news_restart_the_timer() {
    for (news, expected) in [(true, 2 * INTERVAL - 10), (false, INTERVAL)] {
        let (mut sender, sent) = Sender::sending(patient(), 2);
        sender.sack(sender.seth(1));
        let start = sent[0].at;
        sender.wait(INTERVAL - 10);
        sender.sack(if news { Seth { bitmap: 0b10, ..sender.seth(0) } } else { sender.seth(1) });
        if news {
            // Packet 1 has arrived: only the completion is missing.
            assert_eq!(sender.inflight(), 0);
        }
        sender.wait(2 * INTERVAL);
        let first = sender.sent().first().map(|packet| packet.at.since(start));
        assert_eq!(first, Some(expected), "{news}");
    }
}
