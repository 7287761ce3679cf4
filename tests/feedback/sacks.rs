//! Every field of a SACK that the requester acts on, and that it acts on no other.
//!
//! Tests decisions 5, 7 and 8 of `docs/protocol.md`.

use spindrift::congestion::{CcConfig, NsccOverrides};
use spindrift::path::EvState;
use spindrift::wire::{Aeth, Bth, Ev, Mark, NackReason, Opcode, Packet, Seth};

use crate::sender::{FULL, PACKET, RTT, Sender, Sent, Setup, cc, same_path};

/// Every packet on an entropy value of its own, so that no order on a path tells anything.
fn spread() -> Setup {
    Setup { active: 128, backup: 0, ..Setup::default() }
}

/// Which packets the sender takes for missing: those that it sends again when every one is refused.
fn missing(sender: &mut Sender, sent: &[Sent]) -> Vec<i32> {
    for packet in sent {
        sender.nack(packet, NackReason::TrimmedLastHop);
    }
    sender.sent_numbers()
}

#[track_caller]
fn expect_arrived(end: i32, offset: i16, bitmap: u64) {
    let (mut sender, sent) = Sender::sending(spread(), 100);
    sender.sack(Seth { sack_offset: offset, bitmap, ..sender.seth(end) });
    let base = end - 1 + i32::from(offset);
    let listed = |n: i32| (base..base + 64).contains(&n) && bitmap >> (n - base) & 1 == 1;
    let expected: Vec<_> = (0..100).filter(|&n| n >= end && !listed(n)).collect();
    assert_eq!(sender.inflight(), expected.len() as u64, "cack {end} offset {offset} bitmap {bitmap:x}");
    assert_eq!(missing(&mut sender, &sent), expected, "cack {end} offset {offset} bitmap {bitmap:x}");
}

#[test]
fn every_bit_of_the_bitmap_stands_for_one_packet() {
    for bit in 0..64 {
        expect_arrived(0, 1, 1 << bit);
    }
}

#[test]
fn the_bitmap_starts_at_its_offset_from_the_cumulative_acknowledgement() {
    for bitmap in [1, 1 << 31, 1 << 32, 1 << 63, 0xdead_beef, 0xdead_beef << 32, 0x0123_4567_89ab_cdef] {
        for (end, offset) in [(0, 1), (0, 37), (5, 1), (20, 17), (20, -5), (40, -31), (40, -63), (99, -63)] {
            expect_arrived(end, offset, bitmap);
        }
    }
}

#[test]
fn what_a_bitmap_wholly_below_the_acknowledgement_says_is_old() {
    expect_arrived(80, -64, u64::MAX);
    expect_arrived(99, -98, 1);
}

#[test]
fn the_cumulative_acknowledgement_frees_the_window_and_completes_nothing() {
    let (mut sender, sent) = Sender::sending(spread(), 100);
    sender.sack(sender.seth(40));
    assert_eq!((sender.inflight(), sender.cwnd()), (60, FULL));
    assert_eq!(sender.status().smoothed_rtt_ns, 0, "no packet answered");
    sender.nack(&sent[39], NackReason::Trimmed);
    assert_eq!(sender.counters().rx_stale_nack, 1);
    sender.sack(sender.seth(100));
    assert_eq!((sender.inflight(), sender.ended().0.len()), (0, 0));
    sender.ack(100, Aeth::ack(1));
    assert_eq!(sender.ended().0.len(), 1);
    assert_eq!((sender.blamed(), sender.sent()), (vec![], vec![]));
}

/// `ack_psn_offset`: the packet answered has arrived, and its record gives the round-trip time.
#[test]
fn the_packet_answered_has_arrived() {
    for n in [0_usize, 7, 77] {
        let (mut sender, sent) = Sender::sending(spread(), 100);
        sender.wait(RTT);
        sender.sack(sender.answer(&sent[n], 0));
        assert_eq!(sender.inflight(), 99);
        assert_eq!((sender.status().smoothed_rtt_ns, sender.cwnd()), (RTT, FULL));
        let rest: Vec<_> = (0..100).filter(|&other| other != n as i32).collect();
        assert_eq!(missing(&mut sender, &sent), rest);
    }
}

#[test]
fn a_timestamp_that_is_not_the_last_transmissions_gives_no_time_and_marks_no_path() {
    for wrong in [1, 0x8000, u16::MAX] {
        for mark in [Mark::SkipOnce, Mark::AlwaysSkip] {
            let (mut sender, sent) = Sender::sending(Setup::default(), 8);
            sender.wait(RTT);
            let mut seth = Seth { mark, ..sender.answer(&sent[3], 4) };
            seth.cc.tx_timestamp = seth.cc.tx_timestamp.wrapping_add(wrong);
            sender.sack(seth);
            assert_eq!((sender.inflight(), sender.status().smoothed_rtt_ns), (4, 0));
            assert_eq!(sender.blamed(), []);
        }
    }
}

#[test]
fn skip_leaves_the_path_out_for_one_rotation_and_the_window_as_it_is() {
    let (mut sender, sent) = Sender::sending(Setup::default(), 8);
    sender.wait(RTT);
    // The path is that of the packet's record, whatever the SACK reflects.
    let seth = Seth { mark: Mark::SkipOnce, entropy: sent[1].ev, ..sender.answer(&sent[5], 8) };
    sender.sack(seth);
    let marked = sent[5].ev;
    assert_eq!(sender.blamed(), [(marked, EvState::Skip, 0)]);
    assert_eq!((sender.paths().ecn_skips, sender.paths().losses, sender.cwnd()), (1, 0, FULL));
    // The round without it, and a round with it.
    sender.post(7 + 8);
    let sent = sender.sent();
    assert!(sent[..7].iter().all(|packet| packet.ev != marked));
    assert_eq!(sent.iter().filter(|packet| packet.ev == marked).count(), 1);
    assert_eq!((sender.blamed(), sender.paths().passed_over), (vec![], 1));
}

#[test]
fn skip_with_a_long_queue_halves_the_window_too() {
    for (mark, cwnd, state) in [
        (Mark::SkipOnce, FULL / 2, Some(EvState::Skip)),
        (Mark::None, FULL, None),
        (Mark::Reserved, FULL, None),
    ] {
        let nscc = NsccOverrides { target_delay_ns: Some(1_000), eta: Some(0.0), ..NsccOverrides::default() };
        let setup = Setup { cc: cc(nscc), tail_probe_floor_ns: 5_000_000, ..Setup::default() };
        let (mut sender, sent) = Sender::sending(setup, 8);
        sender.wait(1_000_000);
        sender.sack(Seth { mark, ..sender.answer(&sent[2], 8) });
        assert_eq!(sender.cwnd(), cwnd, "{mark:?}");
        let blamed: Vec<_> = state.map(|state| (sent[2].ev, state, 0)).into_iter().collect();
        assert_eq!(sender.blamed(), blamed, "{mark:?}");
    }
}

#[test]
fn a_mark_that_comes_after_the_transport_acknowledgement_still_counts() {
    let (mut sender, sent) = Sender::sending(Setup::default(), 8);
    sender.wait(RTT);
    sender.ack(8, Aeth::ack(1));
    sender.sack(Seth { mark: Mark::SkipOnce, ..sender.answer(&sent[7], 8) });
    assert_eq!(sender.blamed(), [(sent[7].ev, EvState::Skip, 0)]);
}

#[test]
fn always_skip_takes_the_path_out_but_is_no_loss() {
    let (mut sender, sent) = Sender::sending(Setup::default(), 8);
    let before = sender.active();
    sender.wait(RTT);
    sender.sack(Seth { mark: Mark::AlwaysSkip, ..sender.answer(&sent[5], 8) });
    assert_eq!(sender.blamed(), [(sent[5].ev, EvState::AssumedBad, 0)]);
    let paths = sender.paths();
    assert_eq!((paths.always_skips, paths.losses, paths.swaps), (1, 0, 1));
    assert_eq!((sender.cwnd(), sender.sent()), (FULL, vec![]));
    let after = sender.active();
    assert_eq!((after.len(), after.contains(&sent[5].ev)), (8, false));
    assert_eq!(after.iter().filter(|ev| !before.contains(ev)).count(), 1, "a backup is in its place");
    // It is probed, on itself.
    sender.wait(1_000_000);
    assert_eq!(sender.probes().iter().map(|probe| probe.ev).collect::<Vec<_>>(), [sent[5].ev]);
}

/// `pr`: the offset is a probe's id, so no packet is answered and no path marked by it.
#[test]
fn an_answer_to_a_probe_reports_no_packet() {
    let (mut sender, sent) = Sender::sending(Setup::default(), 8);
    sender.wait(RTT);
    sender.sack(Seth { pr: true, mark: Mark::AlwaysSkip, ..sender.answer(&sent[5], 0) });
    assert_eq!((sender.inflight(), sender.status().smoothed_rtt_ns), (8, 0));
    assert_eq!((sender.blamed(), sender.counters().rx_unmatched_response), (vec![], 1));
    // Nor is any id the number of a packet that was never sent.
    for (end, id) in [(1, i16::MAX), (2, 0x100)] {
        sender.sack(Seth { pr: true, ack_psn_offset: id, ..sender.seth(end) });
        assert_eq!((sender.inflight(), sender.counters().rx_forged_ack), (8 - end as u64, 0));
    }
    assert_eq!(missing(&mut sender, &sent), (2..8).collect::<Vec<_>>());
}

fn windowed(dynamic_mpr: bool) -> Sender {
    let mut sender = Sender::new(Setup { mpr: 1, dynamic_mpr, cc: CcConfig::none(), ..spread() });
    sender.post(600);
    assert_eq!(sender.sent().len(), 127, "MRC 1.0 section 6.3.1: below cack + mpr");
    sender
}

#[test]
fn the_window_granted_is_followed_up_and_down() {
    let mut sender = windowed(true);
    for (end, mpr, sent) in [
        (0, 2, 128),
        (0, 1, 0),
        (100, 1, 0),
        (128, 1, 0),
        (129, 1, 1),
        (129, 0, 0),
        (130, 0, 1),
        (130, 3, 256),
    ] {
        sender.sack(Seth { mpr, ..sender.seth(end) });
        assert_eq!(sender.sent().len(), sent, "cack {end} mpr {mpr}");
    }
    // A grant that another has overtaken counts no more.
    sender.sack(Seth { mpr: 4, ..sender.seth(129) });
    assert_eq!((sender.sent().len(), sender.counters().rx_stale_sack), (0, 1));
}

#[test]
fn without_dynamic_mpr_the_window_stays() {
    let mut sender = windowed(false);
    for (end, mpr, sent) in [(0, 2, 0), (0, 255, 0), (10, 2, 10), (20, 0, 10)] {
        sender.sack(Seth { mpr, ..sender.seth(end) });
        assert_eq!(sender.sent().len(), sent, "cack {end} mpr {mpr}");
    }
}

/// `rcvd_bytes` orders reports: what an older one does not list may have arrived.
#[test]
fn a_report_with_fewer_bytes_received_judges_nothing() {
    let (mut sender, sent) = Sender::sending(Setup::default(), 16);
    let (first, second) = same_path(&sent);
    sender.wait(RTT);
    let with = |sender: &Sender, rcvd_bytes| {
        let mut seth = Seth { bitmap: 1 << second.n, ..sender.seth(0) };
        seth.cc.rcvd_bytes = rcvd_bytes;
        seth
    };
    let mut newer = sender.answer(&sent[1], 0);
    newer.cc.rcvd_bytes = 3;
    sender.sack(newer);
    sender.sack(with(&sender, 0xff_ffff));
    assert_eq!((sender.inflight(), sender.counters().rx_stale_sack), (14, 1), "24 bits that wrap");
    assert_eq!((sender.sent(), sender.blamed()), (vec![], vec![]));
    sender.sack(with(&sender, 3));
    assert_eq!(sender.sent_one().n, first.n);
    assert_eq!(sender.blamed(), [(first.ev, EvState::AssumedBad, 1)]);
}

#[test]
fn a_penalty_cuts_the_window_and_can_be_taken_back() {
    let (mut sender, sent) = Sender::sending(Setup::default(), 16);
    sender.wait(RTT);
    let mut seth = sender.answer(&sent[7], 8);
    seth.cc.cwnd_penalty = 64;
    sender.sack(seth);
    assert_eq!(
        sender.cwnd(),
        8 * PACKET - 8 * PACKET / 2,
        "half of what is acknowledged, off what is in flight"
    );
    let mut seth = sender.answer(&sent[8], 9);
    seth.cc.restore_cwnd = true;
    sender.sack(seth);
    assert_eq!((sender.cwnd(), sender.blamed()), (FULL, vec![]));
}

#[test]
fn a_sack_for_another_connection_changes_nothing() {
    let (mut sender, _) = Sender::sending(Setup::default(), 8);
    let before = sender.status();
    for forge in [|seth: &mut Seth| seth.spdcid ^= 1, |seth: &mut Seth| seth.dpdcid ^= 0x100] {
        let mut seth = sender.seth(8);
        forge(&mut seth);
        sender.sack(seth);
    }
    assert_eq!((sender.status(), sender.counters().rx_wrong_connection), (before, 2));
}

/// `ooo_count`, the congestion type and flags, reserved bits, and the BTH's `rtx` change nothing.
#[test]
fn no_other_field_changes_anything() {
    let run = |adjust: fn(&mut Seth, &mut Bth)| {
        let (mut sender, sent) = Sender::sending(Setup::default(), 16);
        sender.wait(RTT);
        let (_, second) = same_path(&sent);
        let mut seth = Seth { bitmap: 1 << second.n, ..sender.answer(&second, 0) };
        let mut bth = Bth::new(Opcode::Sack, sender.qp.qpn, seth.cack);
        adjust(&mut seth, &mut bth);
        sender.give(&Packet::Sack { bth, seth });
        (sender.status(), sender.sent(), sender.blamed(), sender.counters(), sender.paths())
    };
    let plain = run(|_, _| {});
    assert_eq!((plain.1.len(), plain.2.len()), (1, 1), "a loss and its path");
    let others: [fn(&mut Seth, &mut Bth); 8] = [
        |seth, _| seth.reserved0 = 0xff9d,
        |seth, _| seth.entropy = Ev(0x1234_5678),
        |seth, _| seth.reserved12 = 0xff,
        |seth, _| seth.cc_type = 0xf,
        |seth, _| seth.cc_flags = 0xf,
        |seth, _| seth.cc.reserved = true,
        |seth, _| seth.cc.ooo_count = 0x7fff,
        |_, bth| bth.rtx = true,
    ];
    for (number, other) in others.into_iter().enumerate() {
        assert_eq!(run(other), plain, "{number}");
    }
}
