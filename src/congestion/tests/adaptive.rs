//! Selection of the algorithm, and rules that hold for both.
//!
//! Tests decision 36 of `docs/protocol.md`.

use super::*;

const US: u64 = 1_000;
/// Round-trip time that was configured.
const BASE: u64 = 50 * US;

/// A queue pair with two planes.
struct Host {
    cc: Controller,
    now: u64,
}

impl Host {
    fn new(trimming: bool, most: u64) -> Self {
        let nscc = NsccOverrides { max_cwnd_bytes: Some(most * MTU), ..NsccOverrides::default() };
        let cfg = CcConfig { trimming, nscc, ..CcConfig::for_software(RATE, BASE, MTU as u32) };
        let mut cc = build(&cfg, Time::ZERO).unwrap();
        cc.set_up(Qpn::new(7), 2);
        Self { cc, now: 1_000_000 }
    }

    /// One where packets wait on plane 0, so that losses tell of congestion.
    fn queueing(trimming: bool) -> Self {
        let mut host = Self::new(trimming, 200);
        for rtt in [100 * US, 200 * US] {
            host.round_trip(0, rtt);
        }
        host
    }

    /// Whether windows of the planes limit what is in flight.
    fn by_plane(&self) -> bool {
        match &self.cc {
            Controller::Adaptive(adaptive) => adaptive.by_plane(),
            other => panic!("{other:?}"),
        }
    }

    fn open(&self) -> u32 {
        self.cc.open_planes(MTU, Time(self.now))
    }

    fn send(&mut self, plane: u8) -> Flight {
        self.now += 1;
        let packet = Flight { plane, bytes: MTU, sent_at: Time(self.now) };
        self.cc.on_send(&packet);
        packet
    }

    fn answer(&mut self, packets: &[Flight], rtt: u64, adjust: impl FnOnce(&mut AckSample)) {
        for packet in packets {
            self.cc.on_arrival(packet);
        }
        let mut ack = AckSample::new(Time(self.now), MTU * packets.len() as u64);
        (ack.rtt_ns, ack.plane) = (Some(rtt), packets[0].plane);
        adjust(&mut ack);
        self.cc.on_ack(&ack);
    }

    fn round_trip(&mut self, plane: u8, rtt: u64) {
        let packet = self.send(plane);
        self.now += rtt;
        self.answer(&[packet], rtt, |_| ());
    }

    /// A packet leaves and is lost.
    fn lose(&mut self, counts: bool) {
        let packet = self.send(0);
        self.now += 1;
        self.cc.on_loss(Time(self.now), &packet, counts);
    }

    fn trim(&mut self) {
        let packet = self.send(0);
        self.now += 1;
        self.cc.on_trim_nack(Time(self.now), &packet, false);
    }

    /// After how many of these the other algorithm takes over.
    fn until_change(&mut self, mut what: impl FnMut(&mut Self)) -> Option<usize> {
        let before = self.by_plane();
        (1..=200).find(|_| {
            what(self);
            self.by_plane() != before
        })
    }
}

#[test]
fn the_algorithm_is_at_first_as_the_settings_say() {
    assert!(!Host::new(true, 20).by_plane() && Host::new(false, 20).by_plane());
    // NSCC starts with the largest window, and each plane with ten packets.
    assert_eq!([true, false].map(|trimming| Host::new(trimming, 30).cc.cwnd() / MTU), [30, 20]);
    assert!(Host::new(true, 20).cc.counts_packets());
    assert!(!build(&CcConfig::none(), Time::ZERO).unwrap().counts_packets());
}

#[test]
fn sixteen_trimmed_packets_ask_for_nscc() {
    assert_eq!(Host::queueing(false).until_change(Host::trim), Some(16));
    assert_eq!(Host::queueing(true).until_change(Host::trim), None, "it is that already");
}

#[test]
fn sixteen_cuts_of_windows_while_packets_wait_ask_for_windows() {
    assert_eq!(Host::queueing(true).until_change(|host| host.lose(true)), Some(16));
    assert_eq!(Host::queueing(false).until_change(|host| host.lose(true)), None, "it is these already");
    // Losses of one round trip are one cut.
    let mut host = Host::queueing(true);
    for _ in 0..15 {
        let sent = [host.send(0), host.send(0)];
        for packet in &sent {
            host.cc.on_loss(Time(host.now), packet, true);
        }
    }
    assert!(!host.by_plane());
    assert_eq!(host.until_change(|host| host.lose(true)), Some(1));
}

/// Packets are lost by chance whether others wait or not.
#[test]
fn losses_while_nothing_waits_ask_for_nothing() {
    for (latest, changes) in [(199, None), (200, Some(16))] {
        let mut host = Host::new(true, 200);
        host.round_trip(0, 100 * US);
        host.round_trip(0, latest * US);
        assert_eq!(host.until_change(|host| host.lose(true)), changes, "{latest}");
    }
    // The plane of the loss counts.
    let mut host = Host::new(true, 200);
    for (plane, rtt) in [(0, 100), (1, 100), (1, 200)] {
        host.round_trip(plane, rtt * US);
    }
    assert_eq!(host.until_change(|host| host.lose(true)), None);
}

#[test]
fn trims_and_losses_together_decide_nothing() {
    for trimming in [true, false] {
        let mut host = Host::queueing(trimming);
        let both = |host: &mut Host| {
            host.trim();
            host.lose(true);
        };
        assert_eq!(host.until_change(both), None);
    }
}

/// Sixteen, and four times as many as of the other kind.
#[test]
fn a_few_signs_of_the_other_kind_are_outnumbered() {
    for (others, needed) in [(0, 16), (4, 16), (5, 20), (15, 60)] {
        let mut host = Host::queueing(false);
        (0..others).for_each(|_| host.lose(true));
        assert_eq!(host.until_change(Host::trim), Some(needed), "after {others} cuts");
        let mut host = Host::queueing(true);
        (0..others).for_each(|_| host.trim());
        assert_eq!(host.until_change(|host| host.lose(true)), Some(needed), "after {others} trims");
    }
}

/// Events before a decision do not count after it, even if it changed nothing.
#[test]
fn after_a_decision_both_kinds_count_from_zero() {
    let mut host = Host::queueing(false);
    for _ in 0..3 {
        assert_eq!(host.until_change(Host::trim), Some(16));
        assert_eq!(host.until_change(|host| host.lose(true)), Some(16));
    }
    (0..16).for_each(|_| host.lose(true));
    assert_eq!(host.until_change(Host::trim), Some(16));
    (0..32).for_each(|_| host.trim());
    assert_eq!(host.until_change(|host| host.lose(true)), Some(16));
}

#[test]
fn losses_that_do_not_count_neither_cut_nor_ask_for_windows() {
    let mut host = Host::queueing(true);
    assert_eq!(host.until_change(|host| host.lose(false)), None);
    assert_eq!(host.cc.inflight(), 0);
    let mut host = Host::queueing(false);
    let (before, sent) = (host.cc.cwnd(), [0; 10].map(|plane| host.send(plane)));
    assert_eq!(host.open(), 0b10);
    host.cc.on_loss(Time(host.now), &sent[0], false);
    assert_eq!((host.cc.cwnd(), host.cc.inflight(), host.open()), (before, 9 * MTU, 0b11));
    host.cc.on_loss(Time(host.now), &sent[1], true);
    assert_eq!((host.cc.cwnd(), host.cc.inflight(), host.open()), (before - 5 * MTU, 8 * MTU, 0b10));
}

/// It counts as in flight, since its repeat does.
#[test]
fn a_repaired_loss_cuts_and_takes_nothing_out() {
    let mut host = Host::queueing(false);
    let (before, sent) = (host.cc.cwnd(), [0; 10].map(|plane| host.send(plane)));
    host.cc.on_repaired_loss(Time(host.now), &sent[0]);
    assert_eq!((host.cc.cwnd(), host.cc.inflight()), (before - 5 * MTU, 10 * MTU));
    host.cc.on_repaired_loss(Time(host.now), &sent[1]);
    assert_eq!(host.cc.cwnd(), before - 5 * MTU, "one cut for all of a round trip");
    let mut host = Host::queueing(true);
    let repaired = |host: &mut Host| {
        let packet = host.send(0);
        host.now += 1;
        host.cc.on_repaired_loss(Time(host.now), &packet);
    };
    assert_eq!(host.until_change(repaired), None);
    assert_eq!(host.cc.inflight(), 200 * MTU);
}

#[test]
fn trims_cut_windows_too_and_take_packets_out() {
    let mut host = Host::queueing(false);
    let (before, sent) = (host.cc.cwnd(), [0; 10].map(|plane| host.send(plane)));
    host.cc.on_trim_nack(Time(host.now), &sent[0], false);
    assert_eq!((host.cc.cwnd(), host.cc.inflight()), (before - 5 * MTU, 9 * MTU));
}

#[test]
fn a_cut_that_was_wrong_is_taken_back() {
    let mut host = Host::queueing(false);
    let (before, sent) = (host.cc.cwnd(), [host.send(0), host.send(0)]);
    host.now += 1;
    host.cc.on_loss(Time(host.now), &sent[0], true);
    assert_eq!((host.cc.cwnd(), host.cc.inflight()), (before - 5 * MTU, MTU));
    host.cc.on_wrong_loss(&sent[0]);
    assert_eq!((host.cc.cwnd(), host.cc.inflight()), (before, MTU));
}

/// Both algorithms take in all that happens, so either can take over.
#[test]
fn the_algorithm_that_takes_over_knows_what_is_in_flight() {
    let mut host = Host::queueing(true);
    let sent: Vec<_> = (0..12).map(|_| host.send(1)).collect();
    assert_eq!((host.open(), host.cc.opens_at(Time(host.now))), (u32::MAX, Time::NEVER));
    assert_eq!(host.until_change(|host| host.lose(true)), Some(16));
    assert_eq!(host.cc.inflight(), 12 * MTU);
    assert_eq!(host.open() & 0b10, 0, "more than its window has room for");
    // Nothing is in flight on plane 0.
    assert_eq!(host.open() & 0b01, 0b01);
    host.answer(&sent, 100 * US, |_| ());
    assert_eq!((host.cc.inflight(), host.open() & 0b11), (0, 0b11));
    assert_eq!(host.until_change(Host::trim), Some(16));
    assert_eq!((host.open(), host.cc.opens_at(Time(host.now))), (u32::MAX, Time::NEVER));
}

/// The largest window: as configured, or as much more as the shortest round trip on the slowest plane is longer than was configured.
#[test]
fn all_planes_together_have_no_more_in_flight_than_the_largest_window() {
    for (rtts, most) in
        [([BASE, BASE], 20), ([BASE / 2; 2], 20), ([BASE, 2 * BASE], 40), ([3 * BASE, BASE], 60)]
    {
        let mut host = Host::new(false, 20);
        for _ in 0..6 {
            for (plane, rtt) in [0, 1].into_iter().zip(rtts) {
                let mut sent = Vec::new();
                while host.open() & 1 << plane != 0 {
                    sent.push(host.send(plane));
                }
                host.now += rtt;
                host.answer(&sent, rtt, |_| ());
            }
        }
        assert_eq!(host.cc.cwnd(), most * MTU, "{rtts:?}");
        let sent = (0..1_000).take_while(|n| {
            let open = host.open();
            let plane = (n % 2) as u8;
            let plane = if open & 1 << plane == 0 { 1 - plane } else { plane };
            let goes = open & 1 << plane != 0;
            if goes {
                host.send(plane);
            }
            goes
        });
        assert_eq!(sent.count() as u64, most, "{rtts:?}");
    }
    // A single packet may always leave.
    let mut host = Host::new(false, 1);
    assert_eq!(host.cc.cwnd(), MTU);
    assert_ne!(host.cc.open_planes(2 * MTU, Time(host.now)), 0);
    host.send(0);
    assert_eq!(host.open(), 0);
}

#[test]
fn what_the_receiver_asks_for_holds_whichever_algorithm_it_is() {
    for trimming in [true, false] {
        let mut host = Host::new(trimming, 20);
        let sent = [0; 5].map(|plane| host.send(plane));
        assert_ne!(host.open(), 0);
        // Four are in flight, of which the penalty leaves a window of three.
        host.answer(&sent[..1], BASE, |ack| ack.penalty = 127);
        assert_eq!(host.open(), 0);
        let mut restored = Host { cc: host.cc.clone(), ..host };
        restored.answer(&sent[1..2], BASE, |ack| ack.restore_cwnd = true);
        (0..5).for_each(|_| _ = restored.send(1));
        assert_ne!(restored.open(), 0, "as if nothing had been asked for");
        host.answer(&sent[1..], BASE, |_| ());
        assert_ne!(host.open(), 0, "nothing is in flight");
    }
}

#[test]
fn a_packet_that_fills_the_window_asks_for_an_answer() {
    let mut host = Host::new(false, 30);
    (0..8).for_each(|_| _ = host.send(0));
    assert!(!host.cc.wants_ack(0, MTU) && host.cc.wants_ack(0, MTU + 1) && !host.cc.wants_ack(1, MTU + 1));
    // All planes together may have sixteen packets, and then no window is full.
    let mut host = Host::new(false, 16);
    (0..14).for_each(|n| _ = host.send(n % 2));
    assert!(!host.cc.wants_ack(0, MTU) && host.cc.wants_ack(0, MTU + 1));
    let mut host = Host::new(true, 30);
    (0..28).for_each(|_| _ = host.send(0));
    assert!(!host.cc.wants_ack(0, MTU) && host.cc.wants_ack(0, MTU + 1));
}

#[test]
fn a_packet_that_is_repeated_counts_where_its_latest_copy_is() {
    let mut host = Host::new(false, 30);
    let mut sent = Vec::new();
    (0..10).for_each(|_| sent.push(host.send(0)));
    (0..9).for_each(|_| sent.push(host.send(1)));
    assert_eq!(host.open(), 0b10);
    let moved = Flight { plane: 1, sent_at: Time(host.now), ..sent[0] };
    host.cc.on_move(&sent[0], &moved);
    assert_eq!((host.open(), host.cc.inflight()), (0b01, 19 * MTU));
    host.cc.on_move(&moved, &sent[0]);
    assert_eq!((host.open(), host.cc.inflight()), (0b10, 19 * MTU));
    host.cc.on_discard(&sent[0]);
    assert_eq!((host.open(), host.cc.inflight()), (0b11, 18 * MTU));
    host.cc.clear();
    assert_eq!((host.open(), host.cc.inflight(), host.cc.cwnd()), (0b11, 0, 20 * MTU));
    (0..10).for_each(|_| _ = host.send(0));
    assert_eq!(host.open(), 0b10);
}

/// An answer that does not tell of a round trip ends one as well, but nothing is measured.
#[test]
fn round_trips_are_measured_on_the_plane_of_the_packet() {
    let mut host = Host::new(false, 20);
    let sent = [host.send(0), host.send(1)];
    host.now += 2 * BASE;
    host.answer(&sent, 0, |ack| ack.rtt_ns = None);
    // Without one, the largest window is that of the settings.
    (0..4).for_each(|_| {
        let sent = [0; 10].map(|plane| host.send(plane));
        host.answer(&sent, 0, |ack| ack.rtt_ns = None);
    });
    assert_eq!(host.cc.cwnd(), 20 * MTU);
    // Nor are packets paced.
    (0..3).for_each(|_| host.lose(true));
    assert_eq!(host.cc.opens_at(Time(host.now)), Time::NEVER);
}
