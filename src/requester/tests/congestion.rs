//! What congestion control counts: where packets are in flight, and which losses count.

use super::*;
use crate::congestion::AckSample;

/// A bench with windows for its two planes.
fn windows() -> Bench {
    let mut bench = Bench::new(|_| ());
    let full = Requester::counted(Opcode::WriteMiddle, MTU);
    bench.cc = build(&CcConfig::for_software(100_000_000_000, 50_000, full), Time::ZERO).unwrap();
    bench.cc.set_up(crate::wire::Qpn::new(5), 2);
    bench
}

/// The same with `packets` packets in flight.
fn sent(packets: u32) -> Bench {
    let mut bench = windows();
    bench.post(packets, SendOp::Write);
    assert_eq!(bench.send_all(), packets as usize);
    bench
}

impl Bench {
    /// The bytes in flight on each plane. Congestion control must count the same.
    fn on_planes(&self) -> [u64; 2] {
        let mut expected = [0; 2];
        for flight in self.r.flights(&self.paths) {
            expected[usize::from(flight.plane)] += flight.bytes;
        }
        // The first number is that of NSCC, for all planes.
        let state = format!("{:?}", self.cc);
        let told = state.split(" inflight: ").skip(1).map(|rest| {
            let number: String = rest.chars().take_while(char::is_ascii_digit).collect();
            number.parse::<u64>().unwrap()
        });
        let told: Vec<u64> = told.collect();
        assert_eq!(told, [expected[0] + expected[1], expected[0], expected[1]]);
        expected
    }

    fn env(&mut self) -> (&mut Requester, SendContext<'_>) {
        (&mut self.r, SendContext { paths: &mut self.paths, cc: &mut self.cc, counters: &mut self.counters })
    }

    /// Sends packet `seq` again on another plane.
    fn send_elsewhere(&mut self, seq: u64, kind: SendKind) {
        self.now = self.now.after(1_000);
        let before = self.paths.plane(EvId(self.r.records.get(seq).ev));
        let ev = self.paths.pick(PlaneSet(1 << (1 - before)), None).unwrap();
        let now = self.now;
        let (r, mut env) = self.env();
        assert_eq!(r.send_again(now, (seq, kind), ev, 0, &mut env).unwrap().seq, seq);
    }

    fn lose(&mut self, seq: u64, blame: LossKind) {
        let now = self.now;
        let (r, mut env) = self.env();
        r.declare_lost(seq, blame, RtxReason::RackTimeout, now, &mut env);
    }

    /// How many windows `what` cuts. Each cut changes a window of ten packets to one of five.
    fn cuts(&mut self, what: impl FnOnce(&mut Self)) -> u64 {
        let before = self.cc.cwnd();
        what(self);
        let full = u64::from(Requester::counted(Opcode::WriteMiddle, MTU));
        (before - self.cc.cwnd()) / (5 * full)
    }

    /// Processes a SACK that lists the packets before `cack_end` and was triggered by this copy of packet `of.0`.
    fn report(&mut self, cack_end: u64, of: (u64, Record)) {
        let mut seth = Seth {
            cack: self.r.psn(cack_end.wrapping_sub(1)),
            ack_psn_offset: (of.0 as i64 - (cack_end as i64 - 1)) as i16,
            entropy: self.paths.ev(EvId(of.1.ev)),
            ..Default::default()
        };
        seth.cc.tx_timestamp = Time::timestamp(of.1.sent_at);
        seth.cc.rcvd_bytes = self.r.last_rcvd_bytes + 1;
        let now = self.now;
        let (r, mut env) = self.env();
        assert_eq!(r.on_sack(now, &seth, &mut env), AckOutcome::Used);
    }

    pub(super) fn refuse(&mut self, seq: u64, reason: NackReason) {
        let nack = Neth {
            nack_psn: self.r.psn(seq),
            reason: reason.into(),
            tx_timestamp: Time::timestamp(self.r.records.get(seq).sent_at),
            ..Default::default()
        };
        let now = self.now;
        let (r, mut env) = self.env();
        assert_eq!(r.on_nack(now, &nack, &mut env), AckOutcome::Used);
    }
}

#[test]
fn packets_are_in_flight_on_their_planes_until_they_are_told_of() {
    let mut bench = sent(8);
    let [left, right] = bench.on_planes();
    assert!(left > 0 && right > 0);
    bench.acknowledge(3, false);
    bench.on_planes();
    // A transport ACK may be the first to acknowledge a packet.
    let (psn, now) = (bench.r.psn(5), bench.now);
    let (r, mut env) = bench.env();
    assert_eq!(r.on_transport_ack(now, psn, &mut env), AckOutcome::Used);
    let [left, right] = bench.on_planes();
    assert!(left + right < 3 * 400);
    bench.lose(6, LossKind::Nobody);
    bench.on_planes();
    assert_eq!(bench.send(), Some((6, SendKind::Retransmit)));
    bench.on_planes();
    bench.acknowledge(8, true);
    assert_eq!(bench.on_planes(), [0, 0]);
}

/// The bytes in flight move with a packet's new copy, and move back if that copy never left.
#[test]
fn a_tail_probe_on_another_plane_moves_what_is_in_flight() {
    let mut bench = sent(4);
    let before = bench.on_planes();
    let first = bench.r.records.get(0);
    let plane = usize::from(bench.paths.plane(EvId(first.ev)));
    bench.time_passes();
    bench.send_elsewhere(0, SendKind::Probe);
    let after = bench.on_planes();
    assert_eq!(after[plane], before[plane] - u64::from(first.bytes));
    assert_eq!(after[1 - plane], before[1 - plane] + u64::from(first.bytes));
    bench.unsent(0, SendKind::Probe);
    assert_eq!(bench.on_planes(), before);
    // The same again, this time with a SACK.
    bench.send_elsewhere(0, SendKind::Probe);
    assert_eq!(bench.on_planes(), after);
    bench.acknowledge(4, true);
    assert_eq!(bench.on_planes(), [0, 0]);
}

/// A TLP of a packet that has arrived moves no bytes.
#[test]
fn a_tail_probe_of_what_has_arrived_is_not_in_flight() {
    let mut bench = sent(3);
    bench.acknowledge(3, false);
    bench.time_passes();
    bench.send_elsewhere(2, SendKind::Probe);
    assert_eq!(bench.on_planes(), [0, 0]);
    bench.unsent(2, SendKind::Probe);
    assert_eq!(bench.on_planes(), [0, 0]);
}

#[test]
fn a_repeat_of_a_lost_packet_that_never_left_is_in_flight_nowhere() {
    for kind in [SendKind::Retransmit, SendKind::Probe] {
        let mut bench = sent(4);
        bench.lose(1, LossKind::Nobody);
        let before = bench.on_planes();
        bench.send_elsewhere(1, kind);
        assert_ne!(bench.on_planes(), before);
        bench.unsent(1, kind);
        assert_eq!(bench.on_planes(), before);
    }
    let mut bench = sent(4);
    bench.unsent(3, SendKind::New);
    bench.on_planes();
    assert_eq!(bench.send(), Some((3, SendKind::Resend)));
    bench.on_planes();
}

#[test]
fn losses_count_as_congestion_unless_something_else_explains_them() {
    for (blame, cuts) in [
        (LossKind::Trim, 1),
        (LossKind::LastHopTrim, 1),
        (LossKind::Doubt, 1),
        (LossKind::Silence, 1),
        (LossKind::Nobody, 0),
    ] {
        let mut bench = sent(8);
        assert_eq!(bench.cuts(|bench| bench.lose(2, blame)), cuts, "{blame:?}");
        bench.on_planes();
    }
}

/// All packets on a dead path are lost, however much room the network has.
#[test]
fn losses_of_a_path_that_dies_are_no_congestion() {
    let mut met = [false; 2];
    for arrived_later in [false, true] {
        let mut bench = sent(16);
        let ev = bench.r.records.get(2).ev;
        if arrived_later {
            // A later packet arrived and round trips are long, so this packet may have met a full queue.
            bench.r.note_order(ev, 20);
            bench.r.rtt.sample(10_000);
            bench.r.rtt.sample(20_000);
        }
        let tolerated = bench.paths.counters().tolerated;
        let cuts = bench.cuts(|bench| bench.lose(2, LossKind::Path));
        assert_eq!(cuts, bench.paths.counters().tolerated - tolerated);
        met[cuts as usize] = true;
        bench.on_planes();
    }
    assert_eq!(met, [true; 2], "one that dies and one that does not");
}

/// Packets in flight when the RTO expired are lost without blame for a path, but the network may be congested.
#[test]
fn losses_in_silence_cut_windows_and_blame_no_path() {
    for (silent, blamed) in [(true, false), (false, true)] {
        let mut bench = sent(8);
        let lost = bench.r.records.get(2);
        if silent {
            bench.r.timed_out_at = bench.r.records.get(7).sent_at;
        }
        let others: Vec<u64> = (0..8).filter(|&seq| seq != 2).collect();
        for seq in others {
            bench.r.sacked.set(seq);
            let record = bench.r.records.get(seq);
            bench.cc.on_arrival(&record.flight(&bench.paths));
            bench.cc.on_ack(&crate::congestion::AckSample::new(bench.now, u64::from(record.bytes)));
        }
        (bench.r.reported, bench.r.newest_order) = (8, bench.r.records.get(7).order);
        let now = bench.now.after(1_000_000);
        let told = |bench: &Bench| {
            let out = bench.paths.states().filter(|status| status.state != EvState::Good).count();
            (out, bench.paths.counters().tolerated)
        };
        let before = told(&bench);
        let cuts = bench.cuts(|bench| {
            let (r, mut env) = bench.env();
            r.scan_overdue(true, now, &mut env);
        });
        assert!(bench.r.lost.test(2));
        assert_eq!(told(&bench) != before, blamed, "{lost:?}");
        if silent {
            assert_eq!(cuts, 1);
        }
    }
}

#[test]
fn packets_of_lost_planes_and_those_that_the_peer_had_no_room_for_are_no_congestion() {
    let mut bench = sent(8);
    let now = bench.now;
    let cuts = bench.cuts(|bench| {
        let (r, mut env) = bench.env();
        r.planes_lost(now, PlaneSet(0b10), &mut env);
    });
    let [left, right] = bench.on_planes();
    assert!(cuts == 0 && left > 0 && right == 0);
    for (reason, cuts) in [
        (NackReason::NoResource, 0),
        (NackReason::NoPacketBuffer, 0),
        (NackReason::Trimmed, 1),
        (NackReason::TrimmedLastHop, 1),
    ] {
        let mut bench = sent(8);
        assert_eq!(bench.cuts(|bench| bench.refuse(2, reason)), cuts, "{reason:?}");
        assert!(bench.r.lost.test(2));
        bench.on_planes();
    }
}

/// RFC 8985 section 7.4: a probe that repairs the only loss must not hide it from congestion control. If no packets
/// wait in queues, the peer may just have been paused.
#[test]
fn a_tail_loss_that_a_probe_repaired_cuts_the_window_of_the_lost_copy() {
    for (latest, cuts) in [(19_999, 0), (20_000, 1)] {
        let mut bench = sent(3);
        for (plane, rtt_ns) in [(0, 10_000), (1, 10_000), (0, latest), (1, latest)] {
            let now = bench.now;
            bench.cc.on_ack(&AckSample { rtt_ns: Some(rtt_ns), plane, ..AckSample::new(now, 0) });
        }
        repaired_by_a_probe(bench, cuts);
    }
    // The first copy was only late.
    let mut bench = sent(3);
    let first = (0, bench.r.records.get(0));
    bench.time_passes();
    bench.send_elsewhere(0, SendKind::Probe);
    bench.now = bench.now.after(20_000);
    assert_eq!(bench.cuts(|bench| bench.report(3, first)), 0);
    assert_eq!(bench.on_planes(), [0, 0]);
}

fn repaired_by_a_probe(mut bench: Bench, cuts: u64) {
    bench.time_passes();
    bench.send_elsewhere(0, SendKind::Probe);
    bench.now = bench.now.after(20_000);
    let probe = (0, bench.r.records.get(0));
    assert_eq!(bench.cuts(|bench| bench.report(3, probe)), cuts);
    assert_eq!((bench.on_planes(), bench.counters.tail_suspects), ([0, 0], 1));
    // The loss counts once.
    assert_eq!(bench.cuts(|bench| bench.report(3, probe)), 0);
}

#[test]
fn a_cut_is_taken_back_when_the_packet_arrives_after_all() {
    let mut bench = sent(8);
    let before = bench.cc.cwnd();
    assert_eq!(bench.cuts(|bench| bench.lose(2, LossKind::Silence)), 1);
    bench.acknowledge(8, false);
    assert_eq!((bench.counters.spurious_losses, bench.on_planes()), (1, [0, 0]));
    assert!(bench.cc.cwnd() >= before);
}

/// A lost packet that waits for the rate of its window serves as the TLP when that rate allows it. One that waits for
/// acknowledgements is sent at once.
#[test]
fn a_tail_probe_waits_for_the_pace_of_a_lost_packet() {
    let mut bench = sent(4);
    bench.lose(1, LossKind::Nobody);
    assert_eq!([false, true].map(|opens| bench.r.next_send(false, opens)), [None, None], "none is due");
    bench.time_passes();
    assert!(bench.r.has_retransmissions());
    assert_eq!(bench.r.next_send(false, true), None);
    assert_eq!(bench.r.next_send(false, false), Some((1, SendKind::Probe)));
    assert_eq!(bench.r.next_send(true, true), Some((1, SendKind::Retransmit)));
    // A packet that never left serves as the TLP too, but not sooner either.
    let mut bench = sent(4);
    bench.unsent(3, SendKind::New);
    bench.time_passes();
    assert_eq!(bench.r.next_send(false, true), None);
    assert_eq!(bench.r.next_send(false, false), Some((3, SendKind::Resend)));
    // If nothing is lost, a TLP does not wait for a window.
    let mut bench = sent(4);
    bench.time_passes();
    for (open, opens) in [(false, false), (false, true), (true, false)] {
        assert_eq!(bench.r.next_send(open, opens), Some((0, SendKind::Probe)));
    }
}

/// Both windows of ten packets are full, so no new packet is sent. An acknowledgement opens the plane that its packet
/// took.
#[test]
fn new_packets_leave_on_planes_that_have_room() {
    let mut bench = windows();
    bench.post(60, SendOp::Write);
    let mut sent = [0; 2];
    while let open @ 1.. = bench.r.open_planes(&bench.cc, bench.now).0 {
        let ev = bench.paths.pick(PlaneSet(open), None).unwrap();
        let plane = bench.paths.plane(ev);
        bench.r.send_new(bench.now, (ev, plane), 0, &mut bench.cc).unwrap();
        sent[usize::from(plane)] += 1;
    }
    assert_eq!(sent, [10, 10]);
    bench.on_planes();
    let plane = bench.paths.plane(EvId(bench.r.records.get(0).ev));
    bench.acknowledge(1, false);
    assert_eq!(bench.r.open_planes(&bench.cc, bench.now), PlaneSet(1 << plane));
}
