//! Waits for a peer that has no receive work request.
//!
//! Tests decision 39 of `docs/protocol.md`.

use spindrift::congestion::{CcConfig, NsccOverrides};
use spindrift::endpoint::{Extensions, FailReason, QpModify};
use spindrift::path::EvState;
use spindrift::time::Time;
use spindrift::wire::{Aeth, NackReason, Seth};
use spindrift::work::{SendOp, WcStatus};

use crate::sender::{FULL, RTT, Sender, Sent, Setup, cc};
use crate::support::pair::Patience;
use WcStatus::{RnrRetryExceeded, Success, WrFlushError};

/// The code of a wait of 0.64 ms, and the wait.
const CODE: u8 = 12;
const WAIT_NS: u64 = 640_000;

/// Messages, by packets and operation.
type Messages = [(u32, SendOp)];

const SEND: SendOp = SendOp::Send;
const WRITE_IMM: SendOp = SendOp::WriteWithImm(7);

fn setup(rnr_retry: u8) -> Setup {
    Setup { extensions: Extensions::ALL, rnr_retry, ..Setup::default() }
}

/// A sender that has just sent these messages, and what left.
fn sending(setup: Setup, messages: &Messages) -> (Sender, Vec<Sent>) {
    let mut sender = Sender::new(setup);
    for &(packets, op) in messages {
        sender.queue(packets, op, true);
    }
    sender.go();
    let sent = sender.sent();
    assert_eq!(sent.len() as u32, messages.iter().map(|(packets, _)| packets).sum::<u32>());
    (sender, sent)
}

/// The request that failed, by its number, and the status of each one that completed.
fn ended(sender: &mut Sender) -> (Vec<(u64, WcStatus)>, Option<FailReason>) {
    let (completions, failure) = sender.ended();
    (completions.iter().map(|wc| (wc.wr_id, wc.status)).collect(), failure)
}

/// Neither path, window nor retries change; nothing is sent until the wait ends, to the nanosecond.
#[test]
fn a_refused_message_waits_as_long_as_the_nack_says() {
    for (code, wait_ns) in [(1, 10_000), (CODE, WAIT_NS), (17, 3_840_000), (0, 655_360_000)] {
        let (mut sender, sent) = sending(setup(7), &[(1, SEND), (1, SEND), (1, SendOp::Write)]);
        sender.wait(RTT);
        let refused_at = sender.net.now;
        sender.rnr(&sent[0], code);
        sender.rnr(&sent[1], code);
        sender.sack(sender.answer(&sent[2], 0));
        sender.post(1);
        assert_eq!(sender.sent(), [], "{code}");
        sender.wait(wait_ns - 1);
        assert_eq!(sender.sent(), [], "{code}: neither tail probe nor retransmission nor new data");
        sender.wait(1);
        let again = sender.sent();
        assert_eq!(again.iter().map(|packet| packet.n).take(2).collect::<Vec<_>>(), [0, 1], "{code}");
        assert!(again.iter().all(|packet| packet.at == refused_at.after(wait_ns)), "{code}: {again:?}");
        assert!(again[..2].iter().all(|packet| packet.rtx), "{code}: {again:?}");
        assert_eq!((sender.blamed(), sender.cwnd()), (vec![], FULL), "{code}");
        let counters = sender.counters();
        assert_eq!((counters.loss_not_ready, counters.loss_nack, counters.timeouts), (2, 0, 0), "{code}");
        assert_eq!(counters.tx_tail_probes, 0, "{code}");
    }
}

/// Each transmission of the message counts once, however many of its packets are refused and in whichever order.
#[test]
fn the_repetitions_are_counted_exactly() {
    // The packets that find no receive work request, of messages of these sizes.
    let refusals: [(&str, &Messages, &[i32]); 6] = [
        ("a SEND", &[(1, SEND)], &[0]),
        ("a SEND of several packets", &[(3, SEND)], &[0, 1, 2]),
        ("the last packet first", &[(3, SEND)], &[2, 0, 1]),
        ("a later message first", &[(1, SEND), (1, SEND)], &[1, 0]),
        ("a write with immediate", &[(1, WRITE_IMM)], &[0]),
        ("the end of a write with immediate", &[(3, WRITE_IMM)], &[2]),
    ];
    for (what, messages, refused) in refusals {
        // Without repetitions, the message whose NACK comes first is the one that fails.
        for retries in u8::from(refused == [1, 0])..7 {
            let (mut sender, mut sent) = sending(setup(retries), messages);
            for turn in 0..=retries {
                assert_eq!(ended(&mut sender), (vec![], None), "{what} {retries}: before refusal {turn}");
                sender.wait(RTT);
                if refused.len() == 1 && sent[0].n == 0 && refused[0] > 0 {
                    sender.sack(sender.answer(&sent[1], refused[0]));
                }
                for &n in refused {
                    let packet = *sent.iter().find(|packet| packet.n == n).unwrap();
                    sender.rnr(&packet, 1);
                }
                sender.wait(10_000);
                sent = sender.sent();
            }
            let (completions, failure) = ended(&mut sender);
            assert_eq!(failure, Some(FailReason::RnrRetryExceeded), "{what} {retries}");
            assert_eq!(completions[0], (0, WcStatus::RnrRetryExceeded), "{what} {retries}");
            assert!(completions[1..].iter().all(|wc| wc.1 == WcStatus::WrFlushError), "{what} {retries}");
            assert_eq!(completions.len(), messages.len(), "{what} {retries}");
            assert_eq!(sent, [], "{what} {retries}");
        }
        // 7 is no limit.
        let (mut sender, mut sent) = sending(setup(7), messages);
        for turn in 0..300 {
            sender.wait(RTT);
            if refused == [2] {
                sender.sack(sender.seth(2));
            }
            for &n in refused {
                let packet = *sent.iter().find(|packet| packet.n == n).unwrap();
                sender.rnr(&packet, 1);
            }
            sender.wait(10_000);
            sent = sender.sent();
            assert!(refused.iter().all(|n| sent.iter().any(|packet| packet.n == *n)), "{what} {turn}");
        }
        assert_eq!(ended(&mut sender), (vec![], None), "{what}");
        assert_eq!((sender.blamed(), sender.cwnd()), (vec![], FULL), "{what}");
    }
}

/// A message is refused again and again, and each NACK comes on a slow path, after the wait that a NACK for a later message
/// has caused.
#[test]
fn refusals_that_come_after_the_wait_count() {
    for retries in 1..7 {
        // The round-trip time is longer than all of this, so nothing is overdue.
        let cc = CcConfig::none();
        let (mut sender, sent) = sending(Setup { cc, ..setup(retries) }, &[(1, SendOp::Write)]);
        sender.wait(90_000);
        sender.sack(sender.answer(&sent[0], 1));
        sender.ack(1, Aeth::ack(1));
        assert_eq!(ended(&mut sender), (vec![(0, WcStatus::Success)], None));
        sender.queue(1, SEND, true);
        sender.queue(1, SEND, true);
        sender.go();
        let sent = sender.sent();
        let [mut first, mut second] = [sent[0], sent[1]];
        for turn in 0..=retries {
            assert_eq!(ended(&mut sender), (vec![], None), "{retries}: before refusal {turn}");
            sender.rnr(&second, 1);
            sender.wait(10_000);
            second = sender.sent_one();
            sender.rnr(&first, 1);
            first = sender.sent().first().copied().unwrap_or(first);
            sender.wait(1);
        }
        let failed = vec![(1, WcStatus::RnrRetryExceeded), (2, WcStatus::WrFlushError)];
        assert_eq!(ended(&mut sender), (failed, Some(FailReason::RnrRetryExceeded)), "{retries}");
    }
}

/// Earlier requests complete, the refused one fails, later ones are flushed.
#[test]
fn the_request_that_was_refused_fails() {
    let messages = [(1, SendOp::Write), (2, SEND), (1, SEND), (1, SendOp::Write)];
    let (mut sender, sent) = sending(setup(0), &messages);
    sender.wait(RTT);
    sender.sack(sender.answer(&sent[1], 3));
    sender.ack(3, Aeth::ack(2));
    sender.rnr(&sent[3], CODE);
    let failed = Some(FailReason::RnrRetryExceeded);
    let statuses = vec![(0, Success), (1, Success), (2, RnrRetryExceeded), (3, WrFlushError)];
    assert_eq!(ended(&mut sender), (statuses, failed));
    sender.wait(WAIT_NS);
    assert_eq!(sender.sent(), []);
}

/// A message that is accepted at last does not count for the next one.
#[test]
fn each_message_has_its_own_repetitions() {
    for op in [SEND, WRITE_IMM] {
        let (mut sender, mut sent) = sending(setup(2), &[(2, op), (2, op), (2, op)]);
        for message in 0..3 {
            let last = 2 * message + 1;
            for turn in 0..2 {
                sender.wait(RTT);
                for n in (last..6).filter(|n| op == SEND || n % 2 == 1) {
                    let packet = *sent.iter().find(|packet| packet.n == n).unwrap();
                    sender.rnr(&packet, 1);
                }
                sender.wait(10_000);
                sent = sender.sent();
                assert_eq!(sender.counters().qp_errors, 0, "{op:?} {message} {turn}");
            }
            sender.wait(RTT);
            let answered = *sent.iter().find(|packet| packet.n == last).unwrap();
            sender.sack(sender.answer(&answered, last + 1));
            sender.ack(last + 1, Aeth::ack(message.cast_unsigned() + 1));
        }
        let (completions, failure) = ended(&mut sender);
        assert_eq!((completions.len(), failure), (3, None), "{op:?}");
        assert!(completions.iter().all(|wc| wc.1 == WcStatus::Success), "{op:?}");
    }
}

/// A NACK that is not for the last transmission of a packet in flight changes nothing.
#[test]
fn stale_and_forged_nacks_are_ignored() {
    let (mut sender, sent) = sending(setup(0), &[(1, SEND), (1, SEND)]);
    sender.wait(RTT);
    sender.sack(sender.answer(&sent[0], 1));
    // Arrived.
    sender.rnr(&sent[0], CODE);
    // Another copy.
    sender.rnr(&Sent { timestamp: sent[1].timestamp ^ 1, ..sent[1] }, CODE);
    assert_eq!(sender.counters().rx_stale_nack, 2);
    // Never sent.
    sender.rnr(&Sent { n: 2, ..sent[1] }, CODE);
    sender.rnr(&Sent { n: 1 << 20, ..sent[1] }, CODE);
    assert_eq!(sender.counters().rx_forged_ack, 2);
    assert_eq!((sender.sent(), sender.counters().loss_not_ready), (vec![], 0));
    assert_eq!(ended(&mut sender), (vec![], None));
    sender.queue(1, SEND, true);
    sender.go();
    assert_eq!(sender.sent_numbers(), [2], "no wait");
}

/// Only a packet that takes a receive work request can be refused for the lack of one. For any other, `NO_RESOURCE`
/// means what it means in plain MRC.
#[test]
fn a_packet_that_takes_no_receive_is_sent_again_at_once() {
    let messages: [(&Messages, usize); 2] = [(&[(2, SendOp::Write)], 0), (&[(3, WRITE_IMM)], 1)];
    for (messages, refused) in messages {
        let (mut sender, sent) = sending(setup(0), messages);
        sender.wait(RTT);
        sender.rnr(&sent[refused], CODE);
        assert_eq!(sender.sent_numbers(), [sent[refused].n]);
        let counters = sender.counters();
        assert_eq!((counters.loss_nack, counters.loss_not_ready), (1, 0));
        assert_eq!(ended(&mut sender), (vec![], None));
    }
    // Without the extension, nothing waits.
    let plain = Setup { extensions: Extensions::SEND, ..setup(0) };
    let (mut sender, sent) = sending(plain, &[(1, SEND)]);
    sender.rnr(&sent[0], CODE);
    assert_eq!((sender.sent_numbers(), sender.counters().loss_nack), (vec![0], 1));
}

/// Packets before the refused message are retransmitted meanwhile, by loss rules, NACKs and timers.
#[test]
fn earlier_packets_are_retransmitted_during_the_wait() {
    let (mut sender, sent) = sending(setup(7), &[(2, SendOp::Write), (1, SEND), (1, SendOp::Write)]);
    sender.wait(RTT);
    sender.rnr(&sent[2], 0);
    sender.nack(&sent[1], NackReason::TrimmedLastHop);
    assert_eq!(sender.sent_numbers(), [1], "a trimmed packet at once");
    sender.wait(10_000_000);
    let probes = sender.sent();
    assert!(!probes.is_empty() && probes.iter().all(|packet| packet.n < 2), "tail probes: {probes:?}");
    let last = *probes.last().unwrap();
    sender.sack(sender.answer(&last, 2));
    sender.wait(600_000_000);
    assert_eq!(sender.sent(), [], "only the refused message is left");
    sender.wait(100_000_000);
    assert_eq!(sender.sent()[0].n, 2);
}

/// Refusals restart the timers, and still a packet that is lost before the refused one is found.
#[test]
fn refusals_do_not_hide_the_loss_of_an_earlier_packet() {
    for op in [SEND, SendOp::Write] {
        let (mut sender, sent) = sending(setup(7), &[(1, op), (1, SEND)]);
        let mut refused = sent[1];
        let mut turns = 0;
        let again = loop {
            sender.wait(RTT);
            sender.rnr(&refused, 1);
            sender.wait(10_000);
            let sent = sender.sent();
            refused = sent.iter().copied().find(|packet| packet.n == 1).unwrap_or(refused);
            if let Some(again) = sent.iter().find(|packet| packet.n == 0) {
                break *again;
            }
            turns += 1;
            assert!(turns < 8, "{op:?}: packet 0 is never sent again");
        };
        assert!(again.rtx);
        assert_eq!(sender.counters().timeouts, 0);
    }
}

/// After the wait, silence has the usual effect: tail probes, timeouts, an error at last.
#[test]
fn the_timers_run_again_after_the_wait() {
    let patience = Patience { timeout: 8, linear: 2, exponential: 2 };
    let (mut sender, sent) = sending(Setup { patience, ..setup(7) }, &[(1, SEND)]);
    sender.wait(RTT);
    sender.rnr(&sent[0], 20);
    sender.wait(10_240_000 - 1);
    assert_eq!((sender.sent(), sender.counters().timeouts), (vec![], 0));
    sender.wait(1);
    let start = sender.sent_one().at;
    let end = crate::support::pair::gives_up_at(start, patience);
    sender.wait(end.since(start) - 1);
    assert_eq!(ended(&mut sender), (vec![], None));
    sender.wait(1_000);
    assert_eq!(ended(&mut sender), (vec![(0, WcStatus::RetryExceeded)], Some(FailReason::RetryExceeded)));
}

/// A peer that refuses again and again works: its NACKs restart the retransmission timer.
#[test]
fn refusals_do_not_use_up_timeouts() {
    let patience = Patience { timeout: 1, linear: 0, exponential: 0 };
    let (mut sender, mut sent) =
        sending(Setup { patience, tail_probe_floor_ns: 1_000_000, ..setup(7) }, &[(1, SEND)]);
    for turn in 0..200 {
        sender.wait(1_900);
        sender.rnr(&sent[0], 1);
        sender.wait(10_000);
        sent = sender.sent();
        assert_eq!(sent.len(), 1, "{turn}");
    }
    assert_eq!((ended(&mut sender), sender.counters().timeouts), ((vec![], None), 0));
}

/// The wait ends with the connection.
#[test]
fn a_reset_ends_the_wait() {
    for to_error in [false, true] {
        let (mut sender, sent) = sending(setup(7), &[(1, SEND), (1, SEND)]);
        sender.wait(RTT);
        sender.rnr(&sent[0], CODE);
        let (now, qpn) = (sender.net.now, sender.qp.qpn);
        let change = if to_error { QpModify::Error } else { QpModify::Reset };
        sender.net.endpoint(0).modify_qp(now, qpn, change).unwrap();
        sender.go();
        sender.wait(10 * WAIT_NS);
        assert_eq!(sender.sent(), []);
        let flushed = vec![(0, WcStatus::WrFlushError), (1, WcStatus::WrFlushError)];
        let expected = if to_error { (flushed, Some(FailReason::Requested)) } else { (vec![], None) };
        assert_eq!(ended(&mut sender), expected);
        assert_eq!(sender.net.next_at(), Time::NEVER, "no timer is left");
    }
}

/// While it waits, it does not wait for room in the window that it shares.
#[test]
fn a_refused_message_does_not_wait_for_a_shared_window() {
    let cc = CcConfig { shared: true, ..cc(NsccOverrides::default()) };
    let (mut sender, sent) = sending(Setup { cc, ..setup(7) }, &[(1, SEND), (1, SEND)]);
    sender.wait(RTT);
    sender.rnr(&sent[0], CODE);
    sender.rnr(&sent[1], CODE);
    sender.post(1);
    assert_eq!((sender.sent(), sender.counters().tx_cwnd_waits), (vec![], 0));
    sender.wait(WAIT_NS);
    assert_eq!(sender.sent_numbers(), [0, 1, 2]);
}

/// A peer refuses this many packets of two SENDs several times, all but three without a NACK. What left last is returned too.
fn refused_without_nacks(packets: i32) -> (Sender, Vec<Sent>) {
    let each = (packets / 2).unsigned_abs();
    let setup = Setup { cc: CcConfig::none(), ..setup(7) };
    let (mut sender, mut sent) = sending(setup, &[(each, SEND), (each, SEND)]);
    for turn in 0..4 {
        if turn > 0 {
            sender.wait(WAIT_NS);
            sent = sender.sent();
            assert_eq!(sent.len() as i32, packets, "{turn}: all are sent again");
        }
        sender.wait(RTT);
        for n in [0, 1, packets - 1] {
            let packet = *sent.iter().find(|packet| packet.n == n).unwrap();
            sender.rnr(&packet, CODE);
        }
    }
    (sender, sent)
}

/// A SACK for this packet, which shows that those before it are missing.
fn shows_missing(sender: &Sender, packet: &Sent) -> Seth {
    Seth { sack_offset: (packet.n - 62) as i16, bitmap: 1 << 63, ..sender.answer(packet, 0) }
}

/// The peer keeps a limited number of NACKs, so most packets of a long message that it refuses get none: that blames no path.
#[test]
fn packets_that_are_refused_without_a_nack_blame_no_path() {
    let (mut sender, sent) = refused_without_nacks(300);
    assert_eq!(sender.blamed(), []);
    // A receive was posted when all but one had been refused.
    let taken = *sent.iter().find(|packet| packet.n == 298).unwrap();
    sender.sack(shows_missing(&sender, &taken));
    sender.wait(WAIT_NS);
    let again = sender.sent();
    assert_eq!(again.len(), 299);
    assert_eq!((sender.blamed(), sender.counters().timeouts), (vec![], 0));
    // What is sent to a peer that is ready is judged as ever.
    let last = *again.iter().find(|packet| packet.n == 299).unwrap();
    sender.sack(shows_missing(&sender, &last));
    sender.wait(10 * RTT);
    sender.sack(shows_missing(&sender, &last));
    assert_ne!(sender.blamed(), []);
}

/// Of fewer packets, each that arrives and is refused has a NACK. Those without one are lost, however often others are refused.
#[test]
fn a_path_that_dies_is_left_although_the_peer_is_not_ready() {
    let (mut sender, _) = refused_without_nacks(256);
    assert_ne!(sender.blamed(), []);
}

/// A storm of NACKs for one refusal is one refusal, and does not prolong the wait.
#[test]
fn repeated_nacks_count_once() {
    let (mut sender, sent) = sending(setup(1), &[(1, SEND), (1, SEND)]);
    sender.wait(RTT);
    let refused_at = sender.net.now;
    for _ in 0..500 {
        sender.rnr(&sent[0], CODE);
        sender.rnr(&sent[1], 31);
        sender.wait(1_000);
    }
    assert_eq!(sender.sent(), []);
    sender.wait(WAIT_NS - sender.net.now.since(refused_at));
    let again = sender.sent();
    assert_eq!(again.iter().map(|packet| packet.n).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(again[0].at, refused_at.after(WAIT_NS));
    // Those of before the wait come late.
    sender.rnr(&sent[0], CODE);
    assert_eq!(ended(&mut sender), (vec![], None));
    assert!(sender.evs().iter().all(|ev| ev.state == EvState::Good));
    sender.rnr(&again[0], CODE);
    assert_eq!(ended(&mut sender).1, Some(FailReason::RnrRetryExceeded));
}
