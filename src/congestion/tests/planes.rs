//! The windows of the planes of a queue pair.

use super::super::planes::Planes;
use super::super::window::Cut;
use super::*;

const PACKET: f64 = MTU as f64;
const MS: u64 = 1_000_000;

/// Packets in flight on each plane are acknowledged a round trip later, and as many follow.
struct Lines {
    planes: Planes,
    now: u64,
}

impl Lines {
    fn new(planes: u8) -> Self {
        let mut lines = Self { planes: Planes::new(MTU as u32), now: MS };
        lines.planes.make_room(planes);
        lines
    }

    /// All windows together in packets.
    fn cwnd(&self) -> f64 {
        self.planes.cwnd() / PACKET
    }

    fn open(&self) -> u32 {
        self.planes.open(Time(self.now))
    }

    const fn packet(&self, plane: u8) -> Flight {
        Flight { plane, bytes: MTU, sent_at: Time(self.now) }
    }

    fn send(&mut self, plane: u8, packets: usize) -> Vec<Flight> {
        let sent = vec![self.packet(plane); packets];
        for packet in &sent {
            self.planes.on_send(packet);
        }
        sent
    }

    /// They arrive now, after `rtt`; how much the windows grow.
    fn arrive(&mut self, packets: &[Flight], rtt: u64) -> f64 {
        let before = self.cwnd();
        for packet in packets {
            self.planes.on_arrival(packet, f64::INFINITY);
            self.planes.on_sample(Time(self.now), packet.plane, rtt, false);
        }
        self.planes
            .end_rounds(Time(self.now), f64::INFINITY, |_, _, _, _| panic!("nothing was lost or marked"));
        self.cwnd() - before
    }

    /// Ends slow start where the window of the plane is as large as it is now: it becomes half of that. Packets were lost at 4 ms.
    fn cut(&mut self, plane: u8) {
        let sent = self.send(plane, 1);
        self.now += 4 * MS;
        self.planes.on_sample(Time(self.now), plane, 4 * MS, false);
        assert_eq!(self.planes.on_loss(Time(self.now), &sent[0], true), Some(Cut::Loss));
        // The round of the cut, and another, so that nothing of it is left.
        for _ in 0..3 {
            let sent = self.send(plane, 2);
            self.now += MS;
            assert_eq!(self.arrive(&sent, MS), 0.0);
        }
    }
}

/// Keeps windows of so many packets full, and has those on one plane after another answered; how much each of them grew.
fn growth(lines: &mut Lines, used: &[(u8, usize)]) -> Vec<f64> {
    let sent: Vec<_> = used.iter().map(|&(plane, packets)| lines.send(plane, packets)).collect();
    lines.now += MS;
    let one = |(sent, &(plane, packets)): (&Vec<Flight>, &(u8, usize))| {
        let grown = lines.arrive(sent, MS);
        lines.send(plane, packets);
        grown
    };
    sent.iter().zip(used).map(one).collect()
}

/// RFC 6356: as one window, since all of them may lead through one bottleneck.
#[test]
fn windows_of_several_planes_grow_together_by_what_one_would() {
    for planes in [1, 2, 4] {
        let mut lines = Lines::new(planes);
        (0..planes).for_each(|plane| lines.cut(plane));
        assert_eq!(lines.cwnd(), 5.0 * f64::from(planes));
        let used: Vec<_> = (0..planes).map(|plane| (plane, 5)).collect();
        for grown in growth(&mut lines, &used) {
            // CUBIC adds a little to what TCP Reno has.
            assert!((grown - 9.0 / 17.0 / f64::from(planes)).abs() < 1e-6, "{grown} on {planes} planes");
        }
    }
}

#[test]
fn planes_without_packets_in_flight_do_not_count() {
    let mut lines = Lines::new(4);
    (0..4).for_each(|plane| lines.cut(plane));
    for grown in growth(&mut lines, &[(1, 5), (3, 5)]) {
        assert!((grown - 9.0 / 34.0).abs() < 1e-6, "{grown}");
    }
    let mut lines = Lines::new(4);
    (0..4).for_each(|plane| lines.cut(plane));
    let grown = growth(&mut lines, &[(2, 5)]);
    assert!((grown[0] - 9.0 / 17.0).abs() < 1e-6, "{grown:?}");
}

/// The larger ones by their share of all, and the smaller ones by an equal one, so that they grow as well.
#[test]
fn windows_grow_by_their_share_or_an_equal_one() {
    let mut lines = Lines::new(2);
    for packets in [10, 20] {
        let sent = lines.send(1, packets);
        lines.now += MS;
        lines.arrive(&sent, MS);
    }
    (0..2).for_each(|plane| lines.cut(plane));
    assert_eq!(lines.cwnd(), 25.0);
    let grown = growth(&mut lines, &[(0, 5), (1, 20)]);
    assert!((grown[0] - 0.5 * 9.0 / 17.0).abs() < 1e-6, "{grown:?}");
    assert!((grown[1] - 0.8 * 9.0 / 17.0).abs() < 0.01, "{grown:?}");
}

/// Slow start is that of each plane alone: nothing is known of any of them.
#[test]
fn planes_start_on_their_own() {
    let mut lines = Lines::new(3);
    let grown = growth(&mut lines, &[(0, 10), (1, 10), (2, 10)]);
    assert_eq!(grown, [10.0; 3]);
}

#[test]
fn a_plane_is_open_while_a_full_packet_fits_into_its_window() {
    let mut lines = Lines::new(2);
    assert_eq!(lines.open(), 0b11);
    lines.send(0, 9);
    assert_eq!(lines.open(), 0b11);
    let last = lines.send(0, 1);
    assert_eq!(lines.open(), 0b10);
    lines.send(1, 10);
    assert_eq!(lines.open(), 0b00);
    let half = Flight { bytes: MTU / 2, ..last[0] };
    lines.planes.on_gone(&half);
    assert_eq!(lines.open(), 0b00, "half a packet");
    lines.planes.on_gone(&half);
    assert_eq!(lines.open(), 0b01);
    lines.planes.on_arrival(&lines.packet(1), f64::INFINITY);
    assert_eq!(lines.open(), 0b11);
    lines.send(0, 1);
    // Half of the window is left by a loss, and nine packets are in flight.
    lines.planes.on_loss(Time(lines.now), &lines.packet(0), true);
    assert_eq!(lines.open(), 0b10);
    lines.planes.clear();
    assert_eq!(lines.open(), 0b11);
    // More planes come, and those that there are stay as they are.
    lines.send(0, 5);
    lines.planes.make_room(3);
    assert_eq!(lines.open(), 0b110);
    lines.planes.make_room(1);
    assert_eq!((lines.open(), lines.cwnd()), (0b110, 26.0));
}

/// A wrong loss gives back the window, which may have room then; so may the end of a round.
#[test]
fn what_changes_a_window_opens_and_closes_its_plane() {
    let mut lines = Lines::new(1);
    let sent = lines.send(0, 7);
    lines.now += MS;
    lines.planes.on_loss(Time(lines.now), &sent[0], true);
    assert_eq!(lines.open(), 0);
    lines.planes.on_wrong_loss(&sent[0]);
    assert_eq!(lines.open(), 1);
    let mut lines = Lines::new(1);
    let sent = lines.send(0, 10);
    lines.planes.on_sample(Time(lines.now), 0, MS, false);
    lines.planes.on_arrival(&sent[0], 0.0);
    lines.planes.end_rounds(Time(lines.now), 0.0, |_, _, _, _| panic!("no reason"));
    let sent = lines.send(0, 1);
    lines.planes.on_sample(Time(lines.now), 0, 2 * MS, true);
    lines.planes.on_arrival(&sent[0], 0.0);
    assert_eq!(lines.open(), 1);
    let mut cuts = Vec::new();
    lines.planes.end_rounds(Time(lines.now), 0.0, |plane, cut, before, after| {
        cuts.push((plane, cut, before / PACKET, after / PACKET));
    });
    assert_eq!((lines.open(), cuts), (0, vec![(0, Cut::Mark, 10.0, 8.5)]));
}

/// A packet that is repeated already counts as in flight on.
#[test]
fn a_loss_takes_packets_out_only_if_they_were_in_flight() {
    for (in_flight, left) in [(true, 4), (false, 5)] {
        let mut lines = Lines::new(1);
        let sent = lines.send(0, 5);
        lines.planes.on_loss(Time(MS + 1), &sent[0], in_flight);
        // Of five packets, a window that is paced has room for another one if four are in flight.
        assert_eq!(lines.cwnd(), 5.0);
        assert_eq!(lines.open(), u32::from(left == 4));
    }
}

/// Before it is known how many planes there are, all are open.
#[test]
fn planes_appear_when_they_are_used() {
    let mut planes = Planes::new(MTU as u32);
    assert_eq!((planes.open(Time(1)), planes.cwnd(), planes.base_ns()), (u32::MAX, 0.0, 0));
    assert!(planes.is_filled_by(0, 1, 0) && !planes.queues(0));
    planes.on_send(&Flight { plane: 2, bytes: MTU, sent_at: Time(1) });
    assert_eq!((planes.open(Time(1)), planes.cwnd()), (0b111, 30.0 * PACKET));
    planes.make_room(0);
    assert_eq!(planes.open(Time(1)), 0b111);
}

#[test]
fn paced_planes_open_at_their_time() {
    let mut lines = Lines::new(3);
    assert_eq!(lines.planes.opens_at(Time(lines.now)), Time::NEVER);
    (0..2).for_each(|plane| lines.cut(plane));
    lines.now += 100 * MS;
    assert_eq!((lines.open(), lines.planes.opens_at(Time(lines.now))), (0b111, Time::NEVER));
    lines.send(1, 1);
    assert_eq!(lines.open(), 0b101);
    let second = lines.planes.opens_at(Time(lines.now));
    // A fifth of the smoothed round trip, which is between 1 and 4 ms, less a fifth of that.
    assert!((160_000..640_000).contains(&second.since(Time(lines.now))), "{second}");
    lines.now += 50_000;
    lines.send(0, 1);
    assert_eq!((lines.open(), lines.planes.opens_at(Time(lines.now))), (0b100, second), "the first of both");
    lines.now = second.0 - 1;
    assert_eq!((lines.open(), lines.planes.opens_at(Time(lines.now))), (0b100, second));
    lines.now = second.0;
    assert_eq!(lines.open(), 0b110);
    let first = lines.planes.opens_at(Time(lines.now));
    assert!(first > second && first != Time::NEVER);
    // The planes that are full do not open by time.
    lines.send(0, 4);
    lines.send(1, 4);
    lines.send(2, 10);
    assert_eq!((lines.open(), lines.planes.opens_at(Time(lines.now))), (0, Time::NEVER));
    lines.now += 100 * MS;
    assert_eq!(lines.open(), 0);
    lines.planes.clear();
    assert_eq!(lines.open(), 0b111);
}

#[test]
fn a_packet_fills_the_window_if_no_other_fits_beside_it() {
    let mut lines = Lines::new(2);
    lines.send(0, 8);
    assert!(!lines.planes.is_filled_by(0, MTU, 0) && lines.planes.is_filled_by(0, MTU + 1, 0));
    assert!(!lines.planes.is_filled_by(1, 9 * MTU, 0) && lines.planes.is_filled_by(1, 9 * MTU + 1, 0));
    assert!(lines.planes.is_filled_by(2, 1, 0));
    // A window that the receiver may take whole without an answer.
    assert!(!lines.planes.is_filled_by(1, 1, 10 * MTU) && lines.planes.is_filled_by(1, 1, 10 * MTU + 1));
}

#[test]
fn each_plane_has_round_trips_of_its_own() {
    let mut lines = Lines::new(2);
    for (plane, rtt) in [(0, MS), (1, 3 * MS), (1, 5 * MS)] {
        lines.planes.on_sample(Time(lines.now), plane, rtt, false);
    }
    assert_eq!(lines.planes.base_ns(), 3 * MS);
    assert_eq!([0, 1].map(|plane| lines.planes.queues(plane)), [false; 2]);
    lines.planes.on_sample(Time(lines.now), 0, 2 * MS, false);
    assert_eq!([0, 1].map(|plane| lines.planes.queues(plane)), [true, false]);
}
