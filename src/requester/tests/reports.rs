//! What SACKs prove about packets and paths, and what they do not.

use super::*;

/// Processes a SACK: the packets before `cack_end` and those in `listed` have arrived. This copy of packet `of.0`
/// triggered it.
fn report(
    bench: &mut Bench,
    cack_end: u64,
    listed: &[u64],
    of: (u64, Record),
    adjust: impl FnOnce(&mut Seth),
) {
    let mut seth = Seth {
        cack: bench.r.psn(cack_end.wrapping_sub(1)),
        ack_psn_offset: (of.0 as i64 - (cack_end as i64 - 1)) as i16,
        sack_offset: 1,
        bitmap: listed.iter().map(|seq| 1 << (seq - cack_end)).sum(),
        entropy: bench.paths.ev(EvId(of.1.ev)),
        ..Default::default()
    };
    seth.cc.tx_timestamp = Time::timestamp(of.1.sent_at);
    seth.cc.rcvd_bytes = bench.r.last_rcvd_bytes + 1;
    adjust(&mut seth);
    let mut env = SendContext { paths: &mut bench.paths, cc: &mut bench.cc, counters: &mut bench.counters };
    assert_eq!(bench.r.on_sack(bench.now, &seth, &mut env), AckOutcome::Used);
}

fn record(bench: &Bench, seq: u64) -> (u64, Record) {
    (seq, bench.r.records.get(seq))
}

/// A bench with `packets` packets in flight.
fn sent(packets: u32) -> Bench {
    let mut bench = Bench::new(|_| ());
    bench.post(packets, SendOp::Write);
    assert_eq!(bench.send_all(), packets as usize);
    bench
}

/// Declares packet `seq` lost without blaming a path, and sends it again.
fn repeat(bench: &mut Bench, seq: u64) {
    let mut env = SendContext { paths: &mut bench.paths, cc: &mut bench.cc, counters: &mut bench.counters };
    bench.r.declare_lost(seq, LossKind::Nobody, RtxReason::Nack, bench.now, &mut env);
    assert_eq!(bench.send(), Some((seq, SendKind::Retransmit)));
}

/// If a packet was listed before the SACK for its retransmission, the first copy had arrived. The last packet that
/// the cumulative acknowledgement covers counts as listed, and so do those in the bitmap.
#[test]
fn a_packet_listed_before_its_repeat_is_answered_was_repeated_needlessly() {
    // The retransmitted packet; then, for each of two SACKs, its end, the packets that it lists and, for the first,
    // the packet that triggered it.
    for (repeated, first, second) in [
        (0, (1, vec![2], 2), (2, vec![2])),
        (2, (1, vec![2, 4], 4), (1, vec![2, 4, 5])),
        (2, (1, vec![2, 3, 4], 4), (6, vec![])),
    ] {
        let mut bench = sent(6);
        repeat(&mut bench, repeated);
        let answered = record(&bench, first.2);
        report(&mut bench, first.0, &first.1, answered, |_| ());
        assert_eq!(bench.counters.spurious_retransmits, 0);
        let again = record(&bench, repeated);
        report(&mut bench, second.0, &second.1, again, |_| ());
        assert_eq!((bench.counters.spurious_retransmits, bench.counters.tail_suspects), (1, 0), "{repeated}");
    }
    // The packet was not listed before, so nothing is proved.
    let mut bench = sent(6);
    repeat(&mut bench, 2);
    let answered = record(&bench, 4);
    report(&mut bench, 1, &[3, 4], answered, |_| ());
    let again = record(&bench, 2);
    report(&mut bench, 1, &[2, 3, 4, 5], again, |_| ());
    assert_eq!(bench.counters.spurious_retransmits, 0);
}

/// The SACK for a reliability probe reflects the probe. It proves nothing about the copy of the packet that it names.
#[test]
fn the_answer_to_a_probe_is_no_answer_to_a_packet() {
    let mut bench = sent(2);
    let first = record(&bench, 0);
    report(&mut bench, 1, &[], first, |seth| seth.pr = true);
    assert_eq!((bench.r.una, bench.r.rtt.min_ns()), (1, 0));
    let second = record(&bench, 1);
    report(&mut bench, 2, &[], second, |_| ());
    assert!(bench.r.rtt.min_ns() > 0);
}

#[test]
fn repeats_are_remembered_for_sixteen_round_trips() {
    let mut bench = sent(6);
    let first = record(&bench, 0);
    bench.now = first.1.sent_at.after(1_000_000);
    report(&mut bench, 1, &[], first, |_| ());
    repeat(&mut bench, 2);
    let again = bench.r.records.get(2).sent_at;
    for (after_ns, remembered) in [(15_900_000, true), (16_100_000, false)] {
        bench.now = again.after(after_ns);
        let first = record(&bench, 0);
        report(&mut bench, 1, &[], first, |seth| seth.cc.tx_timestamp ^= 1);
        assert_eq!(!bench.r.rtx_history.is_empty(), remembered, "{after_ns} ns, {:?}", bench.r.rtt);
    }
}

/// If a SACK for a retransmission may be for an earlier copy, it counts only from the shortest round trip on.
#[test]
fn an_answer_to_a_repeat_counts_from_the_shortest_round_trip_on() {
    for (rtt_ns, known, counts) in [(99_999, false, false), (100_000, false, true), (99_999, true, true)] {
        let mut bench = sent(6);
        for (seq, after_ns) in [(0, 100_000), (1, 500_000)] {
            let of = record(&bench, seq);
            bench.now = of.1.sent_at.after(after_ns);
            report(&mut bench, seq + 1, &[], of, |_| ());
        }
        repeat(&mut bench, 2);
        if !known {
            bench.r.rtx_history = RtxHistory::default();
        }
        let again = record(&bench, 2);
        bench.now = again.1.sent_at.after(rtt_ns);
        let before = bench.r.rtt.smoothed_ns();
        report(&mut bench, 3, &[], again, |_| ());
        assert_eq!(bench.r.rtt.smoothed_ns() < before, counts, "{rtt_ns}");
    }
}

/// A packet that was sent once has no other copy. Its SACK counts whatever entropy value it reflects and however soon
/// it comes.
#[test]
fn an_answer_to_a_packet_sent_once_cannot_be_mistaken() {
    let mut bench = sent(3);
    for (seq, rtt_ns) in [(0, 100_000), (1, 90_000), (2, 80_000)] {
        let of = record(&bench, seq);
        bench.now = of.1.sent_at.after(rtt_ns);
        report(&mut bench, seq + 1, &[], of, |seth| seth.entropy.0 ^= u32::from(seq == 2));
        assert_eq!(bench.r.rtt.min_ns(), rtt_ns);
    }
}

/// Over IPv4, packets carry only one half of the entropy value. It identifies the copy that triggered the SACK.
#[test]
fn an_answer_names_its_copy_by_what_packets_carry() {
    const HALF: u32 = 0xffff_0000;
    for (ev_mask, differs, named) in
        [(HALF, 0, true), (u32::MAX, 0, false), (HALF, 1 << 16, false), (HALF, 1, true)]
    {
        let mut bench = Bench::new(|setup| setup.ev_mask = ev_mask);
        bench.post(3, SendOp::Write);
        assert_eq!(bench.send_all(), 3);
        bench.now = bench.now.after(1_000_000);
        repeat(&mut bench, 1);
        let again = record(&bench, 1);
        bench.now = again.1.sent_at.after(50_000);
        report(&mut bench, 2, &[], again, |seth| seth.entropy = Ev(seth.entropy.0 & HALF ^ differs));
        assert_eq!(bench.r.rtt.min_ns() == 50_000, named, "{ev_mask:#x} {differs:#x}");
    }
}

/// A SACK for an unknown copy bounds the round-trip time by the age of the newest packet, once.
#[test]
fn the_first_report_bounds_the_round_trip_time() {
    let unknown = |seth: &mut Seth| seth.cc.tx_timestamp ^= 1;
    let mut bench = sent(3);
    let first = record(&bench, 0);
    bench.now = bench.now.after(50_000);
    report(&mut bench, 0, &[], first, |seth| {
        unknown(seth);
        seth.ack_psn_offset = 0;
    });
    assert_eq!(bench.r.rtt.smoothed_ns(), 0, "nothing has arrived");
    report(&mut bench, 1, &[], first, unknown);
    let bound = bench.r.rtt.smoothed_ns();
    assert_eq!(bound, bench.now.since(first.1.sent_at));
    bench.now = bench.now.after(500_000);
    report(&mut bench, 2, &[], first, unknown);
    assert_eq!(bench.r.rtt.smoothed_ns(), bound);
}

/// Without a round-trip time, it is unknown which copy of a retransmitted packet arrived.
#[test]
fn a_repeat_that_arrives_before_any_round_trip_proves_nothing_of_later_packets() {
    let mut bench = sent(2);
    repeat(&mut bench, 0);
    bench.now = bench.now.after(50_000);
    let psn = bench.r.psn(0);
    let mut env = SendContext { paths: &mut bench.paths, cc: &mut bench.cc, counters: &mut bench.counters };
    bench.r.on_transport_ack(bench.now, psn, &mut env);
    assert_eq!((bench.r.una, bench.r.newest_order), (1, 0));
}

/// The arrival of the newest retransmission shows that it overtook everything sent before it. That of an older one
/// does not.
#[test]
fn only_the_newest_repeat_overtakes() {
    let mut bench = sent(6);
    repeat(&mut bench, 0);
    repeat(&mut bench, 1);
    let older = record(&bench, 0);
    report(&mut bench, 1, &[], older, |_| ());
    assert_eq!(bench.r.overtaken, 0);
    let newest = record(&bench, 1);
    report(&mut bench, 2, &[], newest, |_| ());
    assert_eq!(bench.r.overtaken, 6);
}

/// A filled hole is progress, although neither end of the acknowledged range moves.
#[test]
fn a_hole_filled_starts_the_timers_anew() {
    let mut bench = sent(6);
    for listed in [&[4][..], &[2, 4]] {
        let of = record(&bench, listed[0]);
        bench.now = bench.now.after(5_000);
        report(&mut bench, 1, listed, of, |_| ());
        assert_eq!((bench.r.timer_base, bench.r.reported), (bench.now, 5));
    }
    let of = record(&bench, 2);
    let before = bench.now;
    bench.now = bench.now.after(5_000);
    report(&mut bench, 1, &[2, 4], of, |_| ());
    assert_eq!(bench.r.timer_base, before, "nothing new");
    let mut env = SendContext { paths: &mut bench.paths, cc: &mut bench.cc, counters: &mut bench.counters };
    bench.r.declare_lost(3, LossKind::Nobody, RtxReason::Nack, bench.now, &mut env);
    let of = record(&bench, 3);
    bench.now = bench.now.after(5_000);
    report(&mut bench, 1, &[2, 3, 4], of, |_| ());
    assert_eq!(bench.r.timer_base, bench.now, "it was taken for lost");
}

/// A packet is declared lost once, however often SACKs prove it missing.
#[test]
fn a_hole_is_judged_until_it_is_lost() {
    let mut bench = sent(8);
    bench.acknowledge(1, false);
    bench.now = bench.now.after(10_000_000);
    for top in [4, 5, 6] {
        let of = record(&bench, top);
        let listed: Vec<u64> = [3].into_iter().chain(4..=top).collect();
        report(&mut bench, 1, &listed, of, |seth| seth.cc.tx_timestamp ^= 1);
        let lost = bench.counters.loss_overdue + bench.counters.loss_same_ev;
        assert_eq!((lost, bench.r.lost_count), (2, 2), "up to {top}");
    }
}

/// SACKs that would have covered a gap are lost, and the oldest gap has just been retransmitted. The other gaps are
/// still searched for, a few times per round trip.
#[test]
fn a_gap_that_no_report_covers_is_found_by_time() {
    let mut bench = sent(100);
    bench.acknowledge(1, false);
    bench.now = bench.now.after(1_000_000);
    repeat(&mut bench, 1);
    let of = record(&bench, 50);
    let far = |seth: &mut Seth| {
        (seth.sack_offset, seth.bitmap) = (48, 0b101);
        seth.cc.tx_timestamp ^= 1;
    };
    report(&mut bench, 1, &[], of, far);
    let rtt_ns = bench.r.rtt.fair_ns();
    assert_eq!(bench.r.loss_check_at, bench.now.after(rtt_ns / 4));
    assert_eq!((bench.counters.loss_overdue, bench.counters.loss_same_ev), (1, 0), "packet 49 is covered");
    let soon = bench.now.after(1_000);
    bench.r.loss_check_at = soon;
    report(&mut bench, 1, &[], of, far);
    assert_eq!(bench.r.loss_check_at, soon, "nor is it put off by further reports");
    bench.now = soon;
    let mut env = SendContext { paths: &mut bench.paths, cc: &mut bench.cc, counters: &mut bench.counters };
    assert_eq!(bench.r.on_timer(bench.now, &mut env), TimerVerdict::GoOn);
    let lost: Vec<u64> = (0..100).filter(|&seq| bench.r.lost.test(seq)).collect();
    assert_eq!(lost, [2..48, 49..50].into_iter().flatten().collect::<Vec<u64>>());
    assert_eq!(bench.r.loss_check_at, Time::NEVER);
}

/// If only the last missing packet completes everything, the peer would have acknowledged its arrival. In the middle
/// of a message it may have arrived without a SACK, and so may one of two missing packets.
#[test]
fn the_last_packet_of_all_that_is_missing_is_lost_and_one_before_may_not_be() {
    let all = [1, 2, 3, 4, 5, 6];
    for (posted, listed, lost, blamed) in
        [(7, &all[..], 1, 1), (8, &all[..], 1, 0), (7, &[1, 2, 4, 5, 6], 2, 0), (7, &[2, 3, 4, 5, 6], 2, 0)]
    {
        let mut bench = Bench::new(|setup| setup.window = 8);
        bench.post(posted, SendOp::Write);
        assert_eq!(bench.send_all(), 7, "the window is full");
        bench.now = bench.now.after(5_000);
        let of = record(&bench, 6);
        report(&mut bench, 0, listed, of, |_| ());
        bench.now = bench.now.after(30_000);
        let mut env =
            SendContext { paths: &mut bench.paths, cc: &mut bench.cc, counters: &mut bench.counters };
        bench.r.on_timer(bench.now, &mut env);
        let bad = bench.paths.states().filter(|status| status.state == EvState::AssumedBad).count();
        assert_eq!((bench.counters.loss_overdue, bad), (lost, blamed), "{listed:?} of {posted}");
        assert_eq!(bench.r.suspects.is_empty(), blamed == 1);
    }
}

/// Each TLP may be a copy of a different packet, and the last copies of all of them may have taken the same entropy
/// value.
#[test]
fn tail_probes_take_the_values_in_use_in_turn() {
    let mut bench = sent(8);
    let ev = |bench: &Bench, seq: u64| EvId(bench.r.records.get(seq).ev);
    let avoided = |bench: &Bench, kind| bench.r.path_hint(0, kind).avoid;
    let last = Some(ev(&bench, 0));
    assert_eq!(avoided(&bench, SendKind::Probe), last, "the first avoids the last copy's");
    let other = ev(&bench, 3);
    bench.r.note_probed(SendKind::Retransmit, other);
    assert_eq!(avoided(&bench, SendKind::Probe), last);
    let probed = ev(&bench, 4);
    bench.r.note_probed(SendKind::Probe, probed);
    assert_eq!(avoided(&bench, SendKind::Probe), Some(probed));
    assert_eq!(avoided(&bench, SendKind::Retransmit), last);
    let of = record(&bench, 7);
    report(&mut bench, 1, &[7], of, |_| ());
    assert_eq!(avoided(&bench, SendKind::Probe), last, "the peer responds");
}

#[test]
fn a_plane_that_goes_takes_suspicions_with_it() {
    let mut bench = sent(2);
    let (seq, record) = record(&bench, 0);
    let mut env = SendContext { paths: &mut bench.paths, cc: &mut bench.cc, counters: &mut bench.counters };
    bench.r.doubt(seq, &record, bench.now, &mut env);
    let plane = PlaneSet(1 << env.paths.plane(EvId(record.ev)));
    bench.r.planes_lost(bench.now, PlaneSet(0b11 & !plane.0), &mut env);
    assert!(!bench.r.suspects.is_empty());
    bench.r.planes_lost(bench.now, plane, &mut env);
    assert!(bench.r.suspects.is_empty());
}

#[test]
fn the_newest_on_each_path_is_kept_for_any_number_of_paths() {
    let mut bench = Bench::new(|_| ());
    for ev in [0, 63, 64, 65, 128, 300] {
        bench.r.note_order(ev, 7);
        bench.r.note_order(ev, 6);
        assert_eq!(bench.r.newest_on_ev[usize::from(ev)], 7);
    }
}

/// A transport ACK, or a response, may complete a message while packets of later ones have been reported: these are not
/// sent again.
#[test]
fn a_tail_probe_after_an_ack_repeats_no_packet_that_was_reported() {
    let mut bench = Bench::new(|_| ());
    bench.post(2, SendOp::Write);
    bench.post(3, SendOp::Write);
    assert_eq!(bench.send_all(), 5);
    let answered = record(&bench, 3);
    report(&mut bench, 1, &[2, 3], answered, |_| ());
    bench.now = bench.now.after(1_000);
    let mut env = SendContext { paths: &mut bench.paths, cc: &mut bench.cc, counters: &mut bench.counters };
    assert_eq!(bench.r.on_transport_ack(bench.now, FIRST_PSN.add(1), &mut env), AckOutcome::Used);
    assert_eq!((bench.r.una, bench.r.acked), (4, 2));
    let probe = core::iter::repeat_with(|| {
        bench.time_passes();
        bench.send()
    });
    assert_eq!(probe.take(4).flatten().next(), Some((4, SendKind::Probe)));
}

/// Gaps before those that a SACK covers are searched for a quarter of a round trip after it, even if one that it covers is
/// only overdue much later.
#[test]
fn a_gap_that_no_sack_covers_does_not_wait_for_one_that_is() {
    let mut bench = Bench::new(|_| ());
    bench.post(100, SendOp::Write);
    for seq in 0..80 {
        assert_eq!(bench.send(), Some((seq, SendKind::New)));
    }
    bench.acknowledge(1, false);
    let rtt_ns = bench.r.rtt.fair_ns();
    bench.r.reordering = Reordering::assumed(1_000_000);
    bench.now = bench.now.after(10_000_000);
    for seq in 80..84 {
        assert_eq!(bench.send(), Some((seq, SendKind::New)));
    }
    // Packets 1 to 79 are long overdue. Of the last four, 83 has arrived and the others are late.
    bench.now = bench.now.after(rtt_ns);
    let answered = record(&bench, 83);
    report(&mut bench, 1, &[], answered, |seth| (seth.sack_offset, seth.bitmap) = (80, 0b1000));
    assert_eq!(bench.r.lost.next_set(2, 80), None, "not covered");
    assert!(bench.r.loss_check_at <= bench.now.after(rtt_ns / 4));
    bench.time_passes();
    assert!((2..80).all(|seq| bench.r.lost.test(seq)));
}

/// A transport ACK, or a response, may overtake an older SACK. What that lists right after is no gap: a tail loss probe
/// takes the oldest packet that the peer has not told of.
#[test]
fn an_older_sack_continues_what_a_transport_ack_has_told() {
    for (listed, oldest) in [(&[2, 3, 4][..], 5), (&[3], 4), (&[4], 3), (&[2], 3)] {
        let mut bench = sent(6);
        bench.now = bench.now.after(5_000);
        let mut env =
            SendContext { paths: &mut bench.paths, cc: &mut bench.cc, counters: &mut bench.counters };
        assert_eq!(bench.r.on_transport_ack(bench.now, bench.r.psn(2), &mut env), AckOutcome::Used);
        let of = record(&bench, *listed.last().unwrap());
        report(&mut bench, 1, listed, of, |_| ());
        assert_eq!(bench.r.una, oldest, "{listed:?}");
        bench.time_passes();
        assert_eq!(bench.r.next_send(true, true), Some((oldest, SendKind::Probe)), "{listed:?}");
    }
}
