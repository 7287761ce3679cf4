//! The requester packet by packet.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod congestion;
mod fetches;
mod reports;
mod roles;

use super::*;
use crate::congestion::{CcConfig, NsccOverrides, build};
use crate::path::{EvState, PathConfig};
use crate::wire::{Ev, NackReason, Neth, Opcode, Seth};
use crate::work::{RemoteAddr, Sge};

const MTU: u32 = 256;
const FIRST_PSN: Psn = Psn::new(0xff_fff0);

struct Bench {
    r: Requester,
    paths: Paths,
    cc: Controller,
    counters: Counters,
    now: Time,
    /// The last packet sent requests an acknowledgement.
    asked: bool,
}

impl Bench {
    fn new(adjust: impl FnOnce(&mut RequesterSetup)) -> Self {
        let mut setup = RequesterSetup {
            ev_mask: u32::MAX,
            initial_psn: FIRST_PSN,
            initial_msn: Msn::new(0),
            mtu: MTU,
            window: 128,
            max_wimm: 2,
            dynamic_mpr: false,
            rnr_retry: None,
            max_rd_atomic: 0,
            retry: RetryPolicy { timeout_ns: 1_000_000, linear: 1, exponential: 1 },
            probe_floor_ns: 10_000,
            initial_reordering_ns: 10_000,
        };
        adjust(&mut setup);
        let paths = Paths::new(&PathConfig { active: 8, backup: 0, ..PathConfig::new(2) }, 1).unwrap();
        let cc = build(&CcConfig::none(), Time::ZERO).unwrap();
        let mut r = Requester::new(400, setup);
        r.expect_evs(8);
        Self { r, paths, cc, counters: Counters::default(), now: Time(1_000_000), asked: false }
    }

    fn post(&mut self, packets: u32, op: SendOp) {
        let local = Sge { addr: 0x1000, len: packets * MTU, lkey: 1 };
        let wr = SendWr {
            wr_id: 0,
            op,
            local,
            remote: RemoteAddr { addr: 0x9000, rkey: 2 },
            signaled: true,
            fence: false,
        };
        self.r.push(
            self.now,
            &wr,
            false,
            Source::Region(PayloadRef { len: packets * MTU, ..PayloadRef::EMPTY }),
        );
    }

    fn commit(&mut self, seq: u64, kind: SendKind) {
        self.now = self.now.after(1_000);
        let ev = self.paths.pick(self.paths.usable_planes(), self.r.path_hint(seq, kind).avoid).unwrap();
        let sent = if kind == SendKind::New {
            self.r.send_new_for_probe(self.now, (ev, self.paths.plane(ev)), 0, &mut self.cc)
        } else {
            let mut env =
                SendContext { paths: &mut self.paths, cc: &mut self.cc, counters: &mut self.counters };
            self.r.send_again(self.now, (seq, kind), ev, 0, &mut env)
        };
        let sent = sent.unwrap();
        let told = (sent.seq, sent.kind, sent.psn);
        self.asked = sent.ack_req;
        assert_eq!(told, (seq, kind, self.r.psn(seq)));
    }

    fn send(&mut self) -> Option<(u64, SendKind)> {
        let open = self.r.open_planes(&self.cc, self.now).0 != 0;
        let (seq, kind) = self.r.next_send(open, false)?;
        self.commit(seq, kind);
        Some((seq, kind))
    }

    fn unsent(&mut self, seq: u64, kind: SendKind) {
        let mut env = SendContext { paths: &mut self.paths, cc: &mut self.cc, counters: &mut self.counters };
        self.r.unsent(seq, kind, &mut env);
    }

    fn sendable(&self) -> usize {
        self.r.sendable(&self.cc)
    }

    /// Sends all packets that may be sent. Returns their number.
    fn send_all(&mut self) -> usize {
        core::iter::from_fn(|| self.send()).take(1_000).count()
    }

    /// Acknowledges the packets before `end` as received, and as complete too if `done`.
    fn acknowledge(&mut self, end: u64, done: bool) {
        self.now = self.now.after(5_000);
        let cack = self.r.psn(end - 1);
        let record = self.r.records.get(end - 1);
        let mut seth = Seth { cack, entropy: self.paths.ev(EvId(record.ev)), ..Default::default() };
        seth.cc.tx_timestamp = record.sent_at.timestamp();
        let mut env = SendContext { paths: &mut self.paths, cc: &mut self.cc, counters: &mut self.counters };
        assert_eq!(self.r.on_sack(self.now, &seth, &mut env), AckOutcome::Used);
        if done {
            assert_eq!(self.r.on_transport_ack(self.now, cack, &mut env), AckOutcome::Used);
            while self.r.pop_done(u64::MAX, |_| ()).is_ok() {}
        }
    }

    fn time_passes(&mut self) {
        self.now = self.r.next_timeout();
        let mut env = SendContext { paths: &mut self.paths, cc: &mut self.cc, counters: &mut self.counters };
        assert_eq!(self.r.on_timer(self.now, &mut env), TimerVerdict::GoOn);
    }
}

/// Whether the oldest packet in flight, sent as `kind`, should take a path that is not in use.
fn tries_bad_path(bench: &Bench, kind: SendKind) -> bool {
    bench.r.path_hint(bench.r.una, kind).bad_but.is_some()
}

/// A burst takes as many paths as the packets that may be sent now fill. Packets that must wait do not count.
#[test]
fn no_more_packets_are_expected_to_leave_than_the_congestion_window_has_room_for() {
    let mut bench = Bench::new(|_| ());
    let full = Requester::counted(Opcode::WriteMiddle, MTU);
    let nscc = NsccOverrides { max_cwnd_bytes: Some(10 * u64::from(full)), ..NsccOverrides::default() };
    bench.cc = build(&CcConfig { nscc, ..CcConfig::new(100_000_000_000, 12_000, full) }, Time::ZERO).unwrap();
    bench.post(7, SendOp::Write);
    assert_eq!((bench.sendable(), bench.send_all(), bench.sendable()), (7, 7, 0));
    bench.post(20, SendOp::Write);
    assert_eq!((bench.sendable(), bench.send_all(), bench.sendable()), (3, 3, 0));
    bench.acknowledge(2, false);
    assert_eq!((bench.sendable(), bench.send_all()), (2, 2));
}

#[test]
fn a_queue_is_full_at_its_depth() {
    let mut bench = Bench::new(|_| ());
    for n in 0..400 {
        assert_eq!((bench.r.is_full(), bench.r.queued()), (false, n));
        bench.post(1, SendOp::Write);
    }
    assert!(bench.r.is_full());
}

#[test]
fn writes_with_immediate_need_a_peer_that_takes_them() {
    for (max_wimm, takes) in [(0, false), (1, true)] {
        let bench = Bench::new(|setup| setup.max_wimm = max_wimm);
        assert_eq!((bench.r.takes(SendOp::WriteWithImm(1)), bench.r.takes(SendOp::Write)), (takes, true));
    }
}

/// MRC 1.0 section 6.3.1: the packets from `cack + 1` up to, but not including, `cack + mpr` may be in flight.
#[test]
fn packets_leave_up_to_the_edge_of_the_window() {
    let mut bench = Bench::new(|_| ());
    assert!(!bench.r.busy() && !bench.r.has_work() && bench.sendable() == 0);
    bench.post(100, SendOp::Write);
    assert!(bench.r.busy() && bench.r.has_work());
    assert_eq!((bench.sendable(), bench.send_all(), bench.sendable()), (100, 100, 0));
    assert!(!bench.r.has_work());
    bench.post(200, SendOp::Write);
    assert_eq!((bench.sendable(), bench.send_all(), bench.sendable()), (27, 27, 0));
    bench.acknowledge(3, false);
    assert_eq!((bench.r.has_work(), bench.sendable(), bench.send_all()), (true, 3, 3));
    bench.acknowledge(130, true);
    assert_eq!((bench.r.queued(), bench.sendable(), bench.send_all()), (1, 127, 127));
    bench.acknowledge(257, false);
    assert_eq!((bench.sendable(), bench.send_all()), (43, 43));
    bench.acknowledge(300, true);
    assert!(!bench.r.busy() && !bench.r.has_work() && !bench.r.outstanding());
}

#[test]
fn immediates_wait_until_the_peer_has_room_for_one() {
    let mut bench = Bench::new(|_| ());
    for packets in [2, 1, 3, 1] {
        bench.post(packets, SendOp::WriteWithImm(7));
    }
    bench.post(1, SendOp::Write);
    assert_eq!(bench.send_all(), 3, "two messages with immediate");
    assert!(!bench.r.has_work());
    bench.acknowledge(2, false);
    assert_eq!(bench.send_all(), 0, "arrived, not complete");
    bench.acknowledge(2, true);
    assert_eq!(bench.send_all(), 3, "all of the third, though the limit is met after its first packet");
    bench.acknowledge(6, true);
    assert_eq!(bench.send_all(), 2, "the fourth, and a plain write after it");
    bench.acknowledge(8, true);
    assert_eq!((bench.r.wimm_in_flight, bench.r.busy()), (0, false));
}

/// A plain write needs no room for immediates, whatever is in flight.
#[test]
fn plain_writes_pass_the_limit_of_immediates() {
    let mut bench = Bench::new(|setup| setup.max_wimm = 1);
    bench.post(1, SendOp::WriteWithImm(7));
    bench.post(2, SendOp::Write);
    bench.post(1, SendOp::WriteWithImm(8));
    assert_eq!(bench.send_all(), 3);
}

#[test]
fn a_failure_names_the_packet_and_its_path_while_it_is_in_flight() {
    let mut bench = Bench::new(|_| ());
    bench.post(20, SendOp::Write);
    assert_eq!(bench.r.in_flight(None), None);
    for seq in 0..18 {
        assert_eq!(bench.send(), Some((seq, SendKind::New)));
    }
    let ev = |bench: &Bench, seq| Some(EvId(bench.r.records.get(seq).ev));
    assert_eq!(bench.r.in_flight(None), Some((FIRST_PSN, ev(&bench, 0))));
    assert_eq!(bench.r.in_flight(Some(17)), Some((Psn::new(1), ev(&bench, 17))));
    assert_eq!(bench.r.in_flight(Some(18)), Some((Psn::new(2), None)), "not sent yet");
    bench.acknowledge(17, false);
    assert_eq!(bench.r.in_flight(None), Some((Psn::new(1), ev(&bench, 17))));
    assert_eq!(bench.r.in_flight(Some(16)), Some((Psn::new(0), None)), "acknowledged");
    bench.acknowledge(18, false);
    assert_eq!(bench.r.in_flight(None), None);
}

/// The target is the oldest unacknowledged packet, or the end of the oldest message if only its completion is
/// missing.
#[test]
fn a_tail_probe_repeats_what_makes_the_peer_answer() {
    let mut bench = Bench::new(|_| ());
    bench.post(3, SendOp::Write);
    bench.post(2, SendOp::Write);
    assert_eq!(bench.send_all(), 5);
    bench.acknowledge(2, false);
    bench.time_passes();
    assert_eq!(bench.send(), Some((2, SendKind::Probe)));
    assert_eq!((bench.send(), bench.r.has_retransmissions()), (None, false));
    bench.acknowledge(5, false);
    bench.time_passes();
    assert_eq!(bench.send(), Some((2, SendKind::Probe)));
    assert_eq!(bench.r.records.get(2).retries, 2);
    bench.acknowledge(3, true);
    bench.time_passes();
    assert_eq!(bench.send(), Some((4, SendKind::Probe)));
    bench.acknowledge(5, true);
    assert_eq!((bench.r.busy(), bench.r.next_timeout()), (false, Time::NEVER));
    assert_eq!(bench.counters.tx_tail_probes, 3);
}

/// New data elicits a SACK as well as a copy does, and costs nothing. It is used only once, because its path may be
/// dead.
#[test]
fn new_data_takes_the_place_of_a_tail_probe_once() {
    let mut bench = Bench::new(|_| ());
    bench.post(9, SendOp::Write);
    for seq in 0..2 {
        assert_eq!(bench.send(), Some((seq, SendKind::New)));
        assert!(!bench.asked);
    }
    let proven_but = |bench: &Bench| bench.r.path_hint(2, SendKind::New).proven_but;
    assert_eq!(proven_but(&bench), None);
    bench.time_passes();
    // Like the first probe of a silence, it takes a path that is known to work, and not that of the oldest packet.
    assert_eq!(proven_but(&bench), Some(EvId(bench.r.records.get(0).ev)));
    assert_eq!((bench.send(), bench.asked), (Some((2, SendKind::New)), true));
    assert_eq!(proven_but(&bench), None);
    assert!(!bench.r.has_retransmissions());
    assert_eq!((bench.send(), bench.asked), (Some((3, SendKind::New)), false), "nothing is due now");
    // No acknowledgement comes.
    bench.time_passes();
    assert_eq!(bench.send(), Some((0, SendKind::Probe)));
    bench.time_passes();
    assert_eq!(bench.send(), Some((0, SendKind::Probe)));
    // The peer acknowledges progress: new data may be used again.
    bench.acknowledge(4, false);
    assert_eq!(bench.send(), Some((4, SendKind::New)));
    bench.time_passes();
    assert_eq!((bench.send(), bench.asked), (Some((5, SendKind::New)), true));
    // After an RTO, a copy is sent too: a new packet might wait for the window.
    while bench.counters.timeouts == 0 {
        bench.time_passes();
        assert!(bench.send().is_none_or(|(seq, kind)| (seq, kind) == (4, SendKind::Probe)));
    }
    // If no new data may be sent, only a copy is left.
    bench.acknowledge(6, false);
    assert_eq!(bench.send_all(), 3);
    bench.time_passes();
    assert_eq!(bench.send(), Some((6, SendKind::Probe)));
}

/// The second TLP in a row takes a path that is not in use, and so does every other one from then on, whether an RTO
/// expires or not.
#[test]
fn every_other_tail_probe_takes_a_bad_path() {
    let mut bench = Bench::new(|_| ());
    bench.post(4, SendOp::Write);
    for seq in 0..2 {
        assert_eq!(bench.send(), Some((seq, SendKind::New)));
    }
    bench.time_passes();
    assert!(!tries_bad_path(&bench, SendKind::Probe));
    assert_eq!(bench.send(), Some((2, SendKind::New)), "in its place");
    for bad in [true, false].repeat(4) {
        bench.time_passes();
        assert_eq!(tries_bad_path(&bench, SendKind::Probe), bad);
        for kind in [SendKind::New, SendKind::Resend, SendKind::Retransmit] {
            assert!(!tries_bad_path(&bench, kind));
        }
        assert_eq!(bench.send(), Some((0, SendKind::Probe)));
    }
    assert!(bench.counters.timeouts > 0);
    bench.time_passes();
    assert!(tries_bad_path(&bench, SendKind::Probe));
    bench.acknowledge(1, false);
    assert!(!tries_bad_path(&bench, SendKind::Probe), "the peer speaks");
}

/// In the middle of a message, no acknowledgement is due once every packet is acknowledged: the queue pair waits for
/// its turn.
#[test]
fn waiting_for_its_turn_in_the_midst_of_a_message_is_no_silence() {
    let mut bench = Bench::new(|_| ());
    bench.post(9, SendOp::Write);
    bench.send();
    bench.send();
    bench.acknowledge(2, false);
    assert!(bench.r.outstanding() && bench.r.all_arrived());
    for _ in 0..20 {
        let before = bench.now;
        bench.time_passes();
        assert!(
            bench.now.since(before) >= 1_000_000 && !bench.r.has_retransmissions(),
            "the longer timer alone"
        );
    }
    // It gets its turn: the timers run from then on.
    assert_eq!(bench.send(), Some((2, SendKind::New)));
    assert!(bench.r.next_timeout() > bench.now);
    assert_eq!((bench.counters.timeouts, bench.r.retry().0), (0, 0));
    bench.time_passes();
    assert!(bench.r.has_retransmissions());
    // For a message that was sent whole, the completion is due.
    bench.acknowledge(3, false);
    assert_eq!(bench.send_all(), 6);
    bench.acknowledge(9, false);
    bench.time_passes();
    assert_eq!(bench.send(), Some((8, SendKind::Probe)));
}

/// The first packet in flight starts the timers if the armed time may be later than theirs. No timer expires before
/// the shorter of the least PTO and the RTO.
#[test]
fn the_first_packet_in_flight_starts_timers() {
    for (floor_ns, timeout_ns) in [(50_000, 1_000_000), (1_000_000, 50_000)] {
        let mut bench = Bench::new(|setup| {
            (setup.probe_floor_ns, setup.retry.timeout_ns) = (floor_ns, timeout_ns);
        });
        bench.post(3, SendOp::Write);
        let sent_at = bench.now;
        bench.send();
        assert!(bench.r.next_timeout() >= sent_at.after(50_000));
        let least = bench.now.after(50_000);
        for (seq, armed_at, starts) in
            [(0, Time::NEVER, true), (0, Time(least.0 + 1), true), (0, least, false), (1, Time::NEVER, false)]
        {
            assert_eq!(bench.r.starts_timers(seq, bench.now, armed_at), starts, "{seq} {armed_at:?}");
        }
        bench.send();
        bench.acknowledge(2, false);
        assert!(bench.r.starts_timers(2, bench.now, Time::NEVER));
    }
}

/// A TLP that waited long for its port is given a full PTO, however long ago it was due.
#[test]
fn a_probe_that_left_late_is_not_followed_at_once() {
    for new in [true, false] {
        let mut bench = Bench::new(|setup| setup.retry.timeout_ns = 100_000_000);
        bench.post(if new { 9 } else { 2 }, SendOp::Write);
        bench.send();
        bench.send();
        let begun = bench.now;
        bench.time_passes();
        let wait = bench.now.since(begun) + 1_000;
        // The port is full for a hundred times as long.
        bench.now = bench.now.after(100 * wait);
        let kind = bench.send().unwrap().1;
        assert_eq!(kind == SendKind::New, new);
        assert_eq!(bench.r.next_timeout(), bench.now.after(bench.r.setup.probe_floor_ns));
    }
}

/// A TLP without a target is dropped, and does not keep the queue pair scheduled.
#[test]
fn a_probe_without_a_target_is_forgotten() {
    let mut bench = Bench::new(|_| ());
    bench.post(1, SendOp::Write);
    bench.r.probe_pending = true;
    assert_eq!(bench.send(), Some((0, SendKind::New)), "nothing sent yet, so nothing to repeat");
    assert!(!bench.r.has_retransmissions());
}

/// A packet that a full queue of this host returns changes neither the record nor congestion control.
#[test]
fn what_never_left_is_as_if_it_had_not_been_sent() {
    let mut bench = Bench::new(|_| ());
    bench.post(4, SendOp::Write);
    for _ in 0..4 {
        bench.send();
    }
    let packet = u64::from(Requester::counted(Opcode::WriteMiddle, MTU));
    assert_eq!(bench.cc.inflight(), 4 * packet);
    // A first transmission is sent with its own number, and does not count as a retransmission.
    bench.unsent(1, SendKind::New);
    assert_eq!((bench.cc.inflight(), bench.r.lost_count), (3 * packet, 1));
    assert_eq!(bench.r.next_send(true, false), Some((1, SendKind::Resend)));
    assert_eq!(bench.r.path_hint(1, SendKind::Resend).avoid, None);
    bench.commit(1, SendKind::Resend);
    assert_eq!((bench.r.records.get(1).retries, bench.cc.inflight()), (0, 4 * packet));
    bench.unsent(1, SendKind::Resend);
    assert_eq!(bench.send(), Some((1, SendKind::Resend)));
    assert_eq!((bench.r.records.get(1).retries, bench.cc.inflight()), (0, 4 * packet));

    // A retransmission is lost as before, with its earlier cause, count and path.
    let nack = |bench: &mut Bench, seq: u64| {
        let sent_at = bench.r.records.get(seq).sent_at;
        let nack = Neth {
            nack_psn: bench.r.psn(seq),
            reason: NackReason::Trimmed.into(),
            tx_timestamp: sent_at.timestamp(),
            ..Default::default()
        };
        let mut env =
            SendContext { paths: &mut bench.paths, cc: &mut bench.cc, counters: &mut bench.counters };
        assert_eq!(bench.r.on_nack(bench.now, &nack, &mut env), AckOutcome::Used);
    };
    nack(&mut bench, 2);
    let before = bench.r.records.get(2);
    assert_eq!(bench.send(), Some((2, SendKind::Retransmit)));
    assert_eq!(bench.r.records.get(2).retries, 1);
    bench.unsent(2, SendKind::Retransmit);
    let after = bench.r.records.get(2);
    assert_eq!(
        (after.sent_at, after.order, after.ev, after.retries, after.cause),
        (before.sent_at, before.order, before.ev, 0, before.cause)
    );
    assert_eq!((bench.cc.inflight(), bench.r.lost_count), (3 * packet, 1));
    assert_eq!(bench.send(), Some((2, SendKind::Retransmit)));
    assert_eq!((bench.r.records.get(2).retries, bench.cc.inflight()), (1, 4 * packet));

    // A packet whose TLP never left stays in flight, and the TLP stays due.
    bench.time_passes();
    let before = bench.r.records.get(0);
    assert_eq!(bench.send(), Some((0, SendKind::Probe)));
    assert!(!bench.r.has_retransmissions());
    assert!(tries_bad_path(&bench, SendKind::Probe), "the next one");
    bench.unsent(0, SendKind::Probe);
    assert!(!tries_bad_path(&bench, SendKind::Probe), "the same once more");
    let after = bench.r.records.get(0);
    assert_eq!(
        (after.sent_at, after.order, after.ev, after.retries),
        (before.sent_at, before.order, before.ev, 0)
    );
    assert_eq!(
        (bench.cc.inflight(), bench.r.lost_count, bench.r.has_retransmissions()),
        (4 * packet, 0, true)
    );
    assert_eq!(bench.send(), Some((0, SendKind::Probe)));
    assert!(!bench.r.has_retransmissions());
}

/// A lost packet whose copy never left is lost again for the earlier cause, whatever kind of copy it was.
#[test]
fn a_repeat_that_never_left_is_lost_for_the_cause_from_before() {
    let mut bench = Bench::new(|_| ());
    bench.post(4, SendOp::Write);
    assert_eq!(bench.send_all(), 4);
    let packet = u64::from(Requester::counted(Opcode::WriteMiddle, MTU));
    for (seq, kind, cause) in
        [(1, SendKind::Retransmit, RtxReason::RackTimeout), (2, SendKind::Probe, RtxReason::Reordering)]
    {
        let mut env =
            SendContext { paths: &mut bench.paths, cc: &mut bench.cc, counters: &mut bench.counters };
        bench.r.declare_lost(seq, LossKind::Nobody, cause, bench.now, &mut env);
        assert_eq!((bench.cc.inflight(), bench.r.lost_count), (3 * packet, 1));
        bench.commit(seq, kind);
        assert_eq!((bench.cc.inflight(), bench.r.lost_count), (4 * packet, 0));
        bench.unsent(seq, kind);
        assert_eq!((bench.cc.inflight(), bench.r.lost_count), (3 * packet, 1));
        assert_eq!((bench.r.records.get(seq).cause, bench.r.records.get(seq).retries), (cause, 0));
        assert_eq!(bench.send(), Some((seq, SendKind::Retransmit)));
    }
}

/// So many retransmissions followed that this one is forgotten. The packet is lost until it is sent again.
#[test]
fn a_forgotten_retransmission_that_never_left_is_lost() {
    let mut bench = Bench::new(|_| ());
    bench.post(1, SendOp::Write);
    assert_eq!(bench.send_all(), 1);
    let mut env = SendContext { paths: &mut bench.paths, cc: &mut bench.cc, counters: &mut bench.counters };
    bench.r.declare_lost(0, LossKind::Nobody, RtxReason::RackTimeout, bench.now, &mut env);
    assert_eq!(bench.send(), Some((0, SendKind::Retransmit)));
    bench.r.rtx_history = RtxHistory::default();
    bench.unsent(0, SendKind::Retransmit);
    assert_eq!((bench.cc.inflight(), bench.r.lost_count), (0, 1));
    assert_eq!(bench.send(), Some((0, SendKind::Retransmit)));
}

/// A NAK fails the request of its packet. Its message count tells how many of the earlier requests are complete.
#[test]
fn a_nak_condemns_a_request_in_flight() {
    let mut bench = Bench::new(|_| ());
    for packets in [2, 2, 3] {
        bench.post(packets, SendOp::Write);
    }
    for _ in 0..5 {
        bench.send();
    }
    let nak = |bench: &mut Bench, seq: u64, msn: u32| bench.r.on_nak(bench.r.psn(seq), msn);
    assert_eq!(nak(&mut bench, 5, 2), None, "not sent yet");
    assert_eq!((nak(&mut bench, 3, 0), bench.r.done), (Some(2), 0), "the first is not complete at the peer");
    assert_eq!((nak(&mut bench, 4, 1), bench.r.done), (Some(4), 0), "nor is the second");
    assert_eq!((nak(&mut bench, 3, 1), bench.r.done), (Some(2), 2));
    assert_eq!(nak(&mut bench, 1, 0), None, "complete, though the application has not been told");
    assert_eq!((nak(&mut bench, 4, 2), bench.r.done), (Some(4), 4));
}

/// Each ring makes room for a packet before the packet is counted, so the slot of the oldest one is not reused.
#[test]
fn the_newest_packet_has_a_place_of_its_own() {
    for slots in [64, 128] {
        let mut bench = Bench::new(|setup| setup.window = 256);
        bench.post(200, SendOp::Write);
        for _ in 0..=slots {
            bench.send();
        }
        assert_eq!(bench.r.records.get(0).order, 1);
        bench.r.sacked.set(slots);
        bench.r.lost.set(slots);
        assert!(!bench.r.sacked.test(0) && !bench.r.lost.test(0));
    }
}

/// All holes before the last acknowledged packet are judged, and nothing else.
#[test]
fn time_is_up_for_every_hole_before_the_last_report() {
    for (first, end) in [(0, 40), (30, 93), (30, 94), (30, 95), (20, 120), (90, 95)] {
        let mut bench = Bench::new(|_| ());
        bench.post(125, SendOp::Write);
        assert_eq!(bench.send_all(), 125);
        if first > 0 {
            bench.acknowledge(first, false);
        }
        let holes = [first, u64::midpoint(first, end), end - 2];
        for seq in (first..end).filter(|seq| !holes.contains(seq)) {
            bench.r.sacked.set(seq);
        }
        (bench.r.reported, bench.r.newest_order) = (end, bench.r.records.get(end - 1).order);
        let mut env =
            SendContext { paths: &mut bench.paths, cc: &mut bench.cc, counters: &mut bench.counters };
        bench.r.scan_overdue(true, bench.now.after(1_000_000), &mut env);
        let lost: Vec<u64> = (0..256).filter(|&seq| bench.r.lost.test(seq)).collect();
        assert_eq!((lost, bench.r.lost_count), (holes.to_vec(), 3), "{first} to {end}");
    }
}

/// Only a queue pair without requests and without packets in flight releases its records.
#[test]
fn only_an_idle_requester_gives_up_its_records() {
    let mut bench = Bench::new(|_| ());
    let kept = |bench: &mut Bench| {
        bench.r.reclaim();
        bench.r.records.keeps(0, 2)
    };
    bench.post(2, SendOp::Write);
    bench.send_all();
    assert!(kept(&mut bench), "in flight");
    bench.acknowledge(2, false);
    assert!(kept(&mut bench), "arrived, not complete");
    bench.post(1, SendOp::Write);
    bench.acknowledge(2, true);
    assert!(kept(&mut bench), "another request waits");
    bench.send_all();
    while bench.r.pop_any(|_| ()).is_some() {}
    assert!(kept(&mut bench), "in flight without a request, as after a failure");
    bench.acknowledge(3, false);
    assert!(!bench.r.newest_on_ev.is_empty());
    assert!(!kept(&mut bench));
    assert!(bench.r.newest_on_ev.is_empty());
}

/// A suspicion outlasts an idle time, unless something has arrived on the path since. Retransmissions from before are
/// forgotten.
#[test]
fn an_idle_requester_keeps_the_suspicions_that_stand() {
    let mut bench = Bench::new(|_| ());
    let copy = |order| spurious::Transmission { sent_at: Time(1), order, ev: 0, ev_bits: Ev(1) };
    bench.r.rtx_history.note(0, copy(1), copy(2), RtxReason::RackTimeout);
    for ev in [1, 2] {
        assert!(!bench.r.suspects.suspect(ev, 10, 0));
    }
    bench.r.note_order(2, 20);
    bench.r.reclaim();
    assert!(bench.r.rtx_history.is_empty() && bench.r.newest_on_ev.is_empty());
    assert_eq!([1, 2].map(|ev| bench.r.suspects.suspect(ev, 30, 0)), [true, false]);
}

/// The timers run from the first request of an idle queue pair. Later requests do not restart them.
#[test]
fn only_the_first_request_starts_the_timers() {
    let mut bench = Bench::new(|_| ());
    assert_eq!(bench.r.next_timeout(), Time::NEVER);
    let start = bench.now;
    bench.post(1, SendOp::Write);
    assert_eq!(bench.r.next_timeout(), start.after(1_000_000));
    bench.now = start.after(400_000);
    bench.post(1, SendOp::Write);
    assert_eq!(bench.r.next_timeout(), start.after(1_000_000));
    // The first packet in flight restarts the timers; further packets do not.
    bench.send();
    let sent = bench.now;
    let probe = bench.r.next_timeout();
    assert!(probe > sent && probe < start.after(1_000_000));
    bench.now = sent.after(5_000);
    bench.send();
    assert_eq!(bench.r.next_timeout(), probe);
    bench.time_passes();
    assert_eq!((bench.now, bench.r.has_retransmissions()), (probe, true));
}

#[test]
fn room_in_the_queue_goes_from_the_idle_to_the_busy() {
    let (mut spare, mut benches) = (SpareQueues::default(), [Bench::new(|_| ()), Bench::new(|_| ())]);
    let fill = |bench: &mut Bench, spare: &mut SpareQueues| {
        for _ in 0..100 {
            bench.r.make_room(spare);
            bench.post(1, SendOp::Write);
        }
    };
    fill(&mut benches[0], &mut spare);
    benches[0].r.give_room(&mut spare);
    assert!(!benches[0].r.queue.is_oversized(), "it is not empty");
    while benches[0].r.pop_any(|_| ()).is_some() {}
    assert!(benches[0].r.queue.is_oversized());
    benches[0].r.give_room(&mut spare);
    assert!(!benches[0].r.queue.is_oversized());
    let kept = spare.kept();
    assert!(kept >= 128, "{kept}");
    fill(&mut benches[1], &mut spare);
    assert!(spare.kept() < kept, "{} of {kept}", spare.kept());
}
