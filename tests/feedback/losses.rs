//! Losses that the requester infers itself: who is blamed, when and where the packet goes again, what it costs.
//!
//! Tests decision 7 of `docs/protocol.md`.

use spindrift::path::EvState;
use spindrift::wire::{Aeth, NackReason, Seth};

use crate::sender::{FULL, PACKET, RTT, Sender, Sent, Setup, same_path};

/// A SACK for `packet` alone.
fn only(sender: &Sender, packet: &Sent) -> Seth {
    Seth { bitmap: 1 << packet.n, ..sender.answer(packet, 0) }
}

#[test]
fn a_packet_overtaken_on_its_path_is_lost_at_once_and_its_path_goes_bad() {
    let (mut sender, sent) = Sender::sending(Setup { planes: 2, ..Setup::default() }, 32);
    let (lost, later) = same_path(&sent);
    let before = sender.active();
    sender.wait(RTT);
    sender.sack(only(&sender, &later));
    let again = sender.sent_one();
    assert_eq!((again.n, again.rtx, again.ack_req, again.at), (lost.n, true, true, sender.net.now));
    assert_ne!(again.plane, lost.plane);
    assert_eq!(sender.blamed(), [(lost.ev, EvState::AssumedBad, 1)]);
    let (paths, counters) = (sender.paths(), sender.counters());
    assert_eq!((paths.losses, paths.swaps), (1, 1));
    assert_eq!((counters.loss_same_ev, counters.loss_overdue, counters.tx_retransmits), (1, 0, 1));
    assert_eq!((sender.cwnd(), sender.inflight()), (FULL - PACKET, 31));
    let after = sender.active();
    assert_eq!((after.len(), after.contains(&lost.ev)), (16, false));
    assert_eq!(after.iter().filter(|ev| !before.contains(ev)).count(), 1, "a backup is in its place");
    // Nothing more is sent on it, for two rounds.
    sender.post(32);
    assert!(sender.sent().iter().all(|packet| packet.ev != lost.ev));
}

/// A loss on the only path of a plane is no reason to leave it, as long as it delivers.
#[test]
fn an_only_path_that_delivers_stays_in_use() {
    let only_path = Setup { planes: 2, active: 1, backup: 0, ..Setup::default() };
    let (mut sender, sent) = Sender::sending(only_path, 8);
    let (lost, later) = same_path(&sent);
    sender.wait(RTT);
    sender.sack_silently(only(&sender, &later));
    assert_eq!(sender.blamed(), [(lost.ev, EvState::Skip, 1)]);
    assert_eq!((sender.paths().tolerated, sender.counters().loss_same_ev), (1, 1));
    assert_eq!((sender.cwnd(), sender.inflight()), (FULL - PACKET, 6), "a loss all the same");
}

/// The packets that the SACK says nothing of, or that are on other paths, may still come.
#[test]
fn only_the_packets_that_a_report_shows_missing_are_judged_by_order() {
    let (mut sender, sent) = Sender::sending(Setup { active: 100, ..Setup::default() }, 200);
    sender.wait(RTT);
    // Bitmap from packet 100: the mates before it are not covered, but for the first.
    let mate = |n: i32| sent.iter().find(|packet| packet.ev == sent[n as usize].ev).unwrap();
    let seth = Seth { sack_offset: 101, bitmap: u64::MAX, ..sender.answer(&sent[150], 0) };
    sender.sack(seth);
    let expected: Vec<_> = (100..164).filter(|&n| mate(n).n == 0).map(|n| mate(n).n).collect();
    assert_eq!(sender.sent_numbers(), expected);
    assert_eq!(sender.blamed().len(), expected.len());
    assert_eq!(sender.inflight(), 200 - 64);
}

#[test]
fn every_lost_packet_blames_its_own_path_and_the_oldest_goes_first() {
    let (mut sender, sent) = Sender::sending(Setup { active: 4, backup: 4, ..Setup::default() }, 8);
    sender.wait(RTT);
    // The second round arrived, the first did not.
    sender.sack(Seth { bitmap: 0xf0, ..sender.answer(&sent[7], 0) });
    let again = sender.sent();
    assert_eq!(again.iter().map(|packet| packet.n).collect::<Vec<_>>(), [0, 1, 2, 3]);
    let bad: Vec<_> = sender.blamed();
    assert_eq!(bad.len(), 4);
    // When two of eight have lost one each, and deliver, a third is no worse than they are.
    let states: Vec<_> =
        sent[..4].iter().map(|packet| bad.iter().find(|bad| bad.0 == packet.ev).unwrap().1).collect();
    assert_eq!(states, [EvState::AssumedBad, EvState::AssumedBad, EvState::Skip, EvState::Skip]);
    assert!(bad.iter().all(|&(.., drops)| drops == 1));
    assert!(again.iter().all(|packet| bad.iter().all(|&(ev, ..)| ev != packet.ev)));
    assert_eq!((sender.cwnd(), sender.inflight()), (FULL - 4 * PACKET, 4));
}

/// Across paths only time tells: a round trip and the least reordering window, to the nanosecond.
#[test]
fn a_packet_overtaken_across_paths_is_lost_when_its_time_has_passed() {
    let (mut sender, sent) = Sender::sending(Setup { planes: 2, ..Setup::default() }, 2);
    sender.wait(RTT);
    sender.sack(sender.answer(&sent[1], 0));
    let due = sent[0].at.after(RTT + 2_000);
    sender.wait(due.since(sender.net.now) - 1);
    assert_eq!((sender.sent(), sender.blamed()), (vec![], vec![]));
    sender.wait(1);
    let again = sender.sent_one();
    assert_eq!((again.n, again.at, again.rtx), (0, due, true));
    assert_ne!(again.plane, sent[0].plane);
    assert_eq!(sender.blamed(), [(sent[0].ev, EvState::AssumedBad, 1)]);
    let counters = sender.counters();
    assert_eq!((counters.loss_overdue, counters.loss_same_ev, counters.tx_tail_probes), (1, 0, 0));
    assert_eq!((sender.cwnd(), sender.inflight()), (FULL - PACKET, 1));
}

#[test]
fn what_was_sent_after_all_that_arrived_is_not_judged() {
    let (mut sender, _) = Sender::sending(Setup::default(), 2);
    sender.wait(5_000);
    sender.post(2);
    let second = sender.sent();
    sender.wait(5_000);
    sender.sack(Seth { bitmap: 0b10, ..sender.answer(&Sent { n: 1, timestamp: 7, ..second[0] }, 0) });
    sender.wait(20_000);
    assert_eq!(sender.sent_numbers(), [0], "not 2 and 3");
    assert_eq!(sender.blamed(), [], "no report came since its time has passed");
}

/// The path order is found wrong: the time rule alone decides from then on, and the path is probed at once.
#[test]
fn a_loss_that_was_none_is_taken_back() {
    let (mut sender, sent) = Sender::sending(Setup::default(), 16);
    let (lost, later) = same_path(&sent);
    sender.wait(RTT);
    sender.sack_silently(only(&sender, &later));
    assert_eq!(sender.blamed(), [(lost.ev, EvState::AssumedBad, 1)]);
    assert_eq!((sender.cwnd(), sender.inflight()), (FULL - PACKET, 14));
    // The next report has it, before it went out again.
    let both = Seth { bitmap: 1 << later.n | 1 << lost.n, ..sender.answer(&lost, 0) };
    sender.sack(both);
    assert_eq!(sender.sent(), []);
    assert_eq!(sender.inflight(), 14, "its bytes were taken off when it was declared lost");
    let counters = sender.counters();
    assert_eq!((counters.spurious_losses, counters.order_rule_pauses, counters.tx_retransmits), (1, 1, 0));
    sender.wait(0);
    let probes = sender.probes();
    assert_eq!(
        probes.iter().map(|probe| (probe.ev, probe.at)).collect::<Vec<_>>(),
        [(lost.ev, sender.net.now)]
    );
    assert_eq!(sender.blamed(), [(lost.ev, EvState::AssumedBad, 0)], "nothing was lost");
    // The next pair on one path: no verdict by order.
    let (lost, later) = same_path(&sent[1..]);
    let all = Seth { bitmap: both.bitmap | 1 << later.n, ..sender.answer(&later, 0) };
    sender.sack_silently(all);
    assert_eq!((sender.blamed().len(), sender.counters().loss_same_ev), (1, 1), "{lost:?}");
}

/// The repeat was needless: the SACK for the first copy says so.
#[test]
fn a_repeat_that_was_needless_has_its_path_probed_at_once() {
    let (mut sender, sent) = Sender::sending(Setup::default(), 16);
    let (lost, later) = same_path(&sent);
    sender.wait(RTT);
    sender.sack(only(&sender, &later));
    let again = sender.sent_one();
    assert_eq!(again.n, lost.n);
    sender.wait(1_000);
    sender.sack(Seth { bitmap: 1 << later.n | 1 << lost.n, ..sender.answer(&lost, 0) });
    let counters = sender.counters();
    assert_eq!((counters.spurious_retransmits, counters.order_rule_pauses), (1, 1));
    sender.wait(0);
    let probes = sender.probes();
    assert_eq!(
        probes.iter().map(|probe| (probe.ev, probe.at)).collect::<Vec<_>>(),
        [(lost.ev, sender.net.now)]
    );
    assert_eq!(
        sender.blamed(),
        [(lost.ev, EvState::AssumedBad, 0)],
        "until the probe is answered; nothing was lost"
    );
}

/// A needless repeat of the time rule widens its window: the next packet gets more time.
#[test]
fn a_verdict_by_time_that_was_wrong_widens_the_reordering_window() {
    let (mut sender, sent) = Sender::sending(Setup { active: 64, ..Setup::default() }, 2);
    sender.wait(RTT);
    sender.sack(sender.answer(&sent[1], 0));
    sender.wait(2_000);
    let again = sender.sent_one();
    sender.wait(100);
    sender.sack(sender.answer(&sent[0], 2));
    sender.ack(2, Aeth::ack(1));
    assert_eq!((again.n, sender.counters().spurious_retransmits), (0, 1));
    assert_eq!(sender.status().smoothed_rtt_ns, RTT, "the first copy's answer gives no time");
    // A quarter of a round trip, and a quarter more than that.
    let window = (RTT / 4) + (RTT / 4) / 4;
    sender.post(2);
    let sent = sender.sent();
    sender.wait(RTT);
    sender.sack(sender.answer(&sent[1], 2));
    sender.wait(window - 1);
    assert_eq!(sender.sent(), []);
    sender.wait(1);
    assert_eq!(sender.sent_one().n, 2);
}

/// Without a backup the last paths stay in use, passed over once for each loss.
#[test]
fn the_floor_keeps_a_path_in_use() {
    let setup = Setup { active: 4, backup: 0, min_active: 4, ..Setup::default() };
    let (mut sender, sent) = Sender::sending(setup, 8);
    let (lost, later) = same_path(&sent);
    sender.wait(RTT);
    sender.sack_silently(only(&sender, &later));
    assert_eq!(sender.blamed(), [(lost.ev, EvState::Skip, 1)]);
    sender.sack(only(&sender, &later));
    assert_ne!(sender.sent_one().ev, lost.ev);
    let paths = sender.paths();
    assert_eq!((paths.losses, paths.floor_holds, sender.active().len()), (1, 1, 4));
    sender.wait(2_000_000);
    assert_eq!(sender.probes().len(), 0, "it is not bad");
}

/// A loss shrinks the window by its size, and its repeat waits for room.
#[test]
fn a_repeat_waits_for_the_window() {
    let (mut sender, sent) = Sender::sending(Setup::default(), 16);
    let (lost, later) = same_path(&sent);
    sender.wait(RTT);
    let mut seth = only(&sender, &later);
    // All that is acknowledged, off what is in flight: one packet.
    seth.cc.cwnd_penalty = 127;
    sender.sack(seth);
    let cut = 15 * PACKET - (PACKET * 127 / 128) - PACKET;
    assert_eq!((sender.cwnd(), sender.inflight(), sender.sent()), (cut, 14, vec![]));
    assert_eq!(sender.blamed(), [(lost.ev, EvState::AssumedBad, 1)], "blamed all the same");
    // Three packets more are acknowledged: there is room for it, and for nothing new before it.
    sender.post(1);
    assert_eq!(sender.sent(), []);
    sender.sack(Seth { bitmap: 0b111 << 8, ..sender.answer(&sent[10], 0) });
    assert_eq!(sender.sent().first().map(|packet| packet.n), Some(0));
}

/// Two reports on two ways, the older one behind: it takes nothing for lost.
#[test]
fn a_report_of_an_earlier_acknowledgement_is_stale() {
    let (mut sender, sent) = Sender::sending(Setup::default(), 24);
    sender.wait(RTT);
    sender.sack(sender.answer(&sent[7], 8));
    assert_eq!(sender.inflight(), 16);
    let (first, second) = same_path(&sent[8..]);
    sender.sack(Seth { bitmap: 1 << second.n, ..sender.answer(&second, 0) });
    assert_eq!((sender.inflight(), sender.counters().rx_stale_sack), (15, 1));
    assert_eq!((sender.sent(), sender.blamed()), (vec![], vec![]), "{first:?}");
}

/// The path of the copy that was lost has been blamed; the repeat's answer adds nothing to that.
#[test]
fn a_loss_is_counted_once() {
    let (mut sender, sent) = Sender::sending(Setup::default(), 16);
    let (lost, later) = same_path(&sent);
    sender.wait(RTT);
    assert_eq!(lost.n, 0);
    sender.sack(Seth { bitmap: 0xfffe, ..sender.answer(&later, 0) });
    let again = sender.sent_one();
    sender.wait(RTT);
    sender.sack(sender.answer(&again, 16));
    assert_eq!((sender.inflight(), sender.counters().tail_suspects), (0, 0));
    assert_eq!((sender.counters().spurious_retransmits, sender.paths().losses), (0, 1));
    assert_eq!(sender.blamed(), [(lost.ev, EvState::AssumedBad, 1)]);
}

/// A repeat has another traffic class, which switches may queue apart: the order on its path proves nothing.
#[test]
fn a_repeat_is_not_judged_by_order() {
    let (mut sender, sent) = Sender::sending(Setup { active: 4, backup: 4, ..Setup::default() }, 4);
    sender.wait(RTT);
    sender.nack(&sent[0], NackReason::TrimmedLastHop);
    let again = sender.sent_one();
    sender.post(8);
    let new = sender.sent();
    let later = new.iter().find(|packet| packet.ev == again.ev).unwrap();
    sender.wait(RTT);
    let rest = 0b1110 | (0xff << 4);
    sender.sack(Seth { bitmap: rest, ..sender.answer(later, 0) });
    assert_eq!((sender.sent(), sender.blamed(), sender.inflight()), (vec![], vec![], 1));
}
