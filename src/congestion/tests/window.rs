//! The window of one plane, rule by rule.

use super::super::window::{Cut, Window};
use super::*;

pub(super) const PACKET: f64 = MTU as f64;
/// A round trip with queueing, where one without takes 1 ms.
pub(super) const WAITING: u64 = MS * 6 / 5;
pub(super) const MS: u64 = 1_000_000;
pub(super) const S: u64 = 1_000 * MS;

/// A window whose round trips come one after another: all that may leave does at once, and all of it is answered at once.
pub(super) struct Line {
    pub(super) window: Window,
    pub(super) now: u64,
    pub(super) most: f64,
    pub(super) share: f64,
}

impl Line {
    pub(super) fn new() -> Self {
        // Time 0 is that of a packet that never left.
        Self { window: Window::new(PACKET), now: MS, most: f64::INFINITY, share: 1.0 }
    }

    /// The window in packets.
    pub(super) fn cwnd(&self) -> f64 {
        self.window.cwnd / PACKET
    }

    pub(super) fn send(&mut self, packets: usize) -> Vec<Flight> {
        let packet = Flight { plane: 0, bytes: MTU, sent_at: Time(self.now) };
        (0..packets).for_each(|_| self.window.on_send(&packet));
        vec![packet; packets]
    }

    /// All that the window has room for.
    pub(super) fn fill(&mut self) -> Vec<Flight> {
        let mut sent = Vec::new();
        while self.window.has_room() {
            sent.extend(self.send(1));
        }
        sent
    }

    /// These arrive now, after so long; how their round ends.
    pub(super) fn arrive(&mut self, packets: &[Flight], rtt: u64, marks: usize) -> Option<Cut> {
        for packet in packets {
            self.window.on_arrival(packet, self.most);
        }
        for n in 0..packets.len() {
            self.window.on_sample(Time(self.now), rtt, n < marks);
        }
        assert!(self.window.round_is_over());
        self.window.end_round(Time(self.now), self.share, self.most)
    }

    /// One is lost that was in flight.
    pub(super) fn lose(&mut self, packet: &Flight) -> Option<Cut> {
        self.window.on_gone(packet.bytes);
        self.window.on_loss(Time(self.now), packet)
    }

    /// A round trip with the window full.
    pub(super) fn round(&mut self, rtt: u64) {
        let sent = self.fill();
        self.now += rtt;
        self.arrive(&sent, rtt, 0);
    }

    /// A round trip of a few packets, which the window does not hold back, and how it ends.
    pub(super) fn small_round(&mut self, packets: usize, rtt: u64, marks: usize) -> Option<Cut> {
        let sent = self.send(packets);
        self.now += rtt;
        self.arrive(&sent, rtt, marks)
    }

    /// A packet leaves and is lost later; whether that cut the window.
    pub(super) fn lose_one(&mut self) -> bool {
        self.now += 1;
        let sent = self.send(1);
        self.now += 1;
        self.lose(&sent[0]).is_some()
    }

    /// Has a window of this many packets, out of slow start, which had been larger. Packets were lost at this round-trip time.
    pub(super) fn cut_to(packets: f64, rtt: u64, full_rtt: u64) -> Self {
        let mut line = Self::new();
        while line.cwnd() < 2.0 * packets {
            line.round(rtt);
        }
        line.window.cwnd = 2.0 * packets * PACKET;
        let sent = line.send(1);
        line.now += full_rtt;
        line.window.on_sample(Time(line.now), full_rtt, false);
        assert_eq!(line.lose(&sent[0]), Some(Cut::Loss));
        // Earlier samples are in neither this round nor the last. One loss for two arrivals is not many.
        (0..3).for_each(|_| _ = line.small_round(2, rtt, 0));
        near(line.cwnd(), packets, 1e-9);
        line
    }
}

#[track_caller]
pub(super) fn near(found: f64, expected: f64, off: f64) {
    assert!((found - expected).abs() <= off, "{found}, not {expected}");
}

#[test]
fn slow_start_doubles_the_window_every_round_trip() {
    let mut line = Line::new();
    for expected in [20.0, 40.0, 80.0, 160.0] {
        line.round(MS);
        assert_eq!(line.cwnd(), expected);
    }
}

#[test]
fn slow_start_goes_on_only_where_the_window_was_the_limit() {
    let mut line = Line::new();
    line.small_round(9, MS, 0);
    assert_eq!(line.cwnd(), 10.0);
    // With the tenth there is no room for another one.
    line.small_round(10, MS, 0);
    assert_eq!(line.cwnd(), 20.0);
    line.small_round(10, MS, 0);
    assert_eq!(line.cwnd(), 20.0, "the round before does not count");
}

/// More bytes than a full packet has count as one: no packet has more.
#[test]
fn slow_start_grows_by_what_arrives() {
    let mut line = Line::new();
    let sent = line.fill();
    for (bytes, grown) in [(MTU / 2, 10.5), (MTU, 11.5), (2 * MTU, 12.5)] {
        line.window.on_arrival(&Flight { bytes, ..sent[0] }, f64::INFINITY);
        assert_eq!(line.cwnd(), grown);
    }
}

#[test]
fn no_growth_goes_beyond_the_largest_window() {
    let mut line = Line { most: 15.0 * PACKET, ..Line::new() };
    line.round(MS);
    assert_eq!(line.cwnd(), 15.0);
    let mut line = Line::cut_to(20.0, MS, 2 * MS);
    line.most = 21.25 * PACKET;
    (0..6).for_each(|_| line.round(MS));
    assert_eq!(line.cwnd(), 21.25);
    // One that is larger already stays.
    line.most = PACKET;
    (0..6).for_each(|_| line.round(MS));
    assert_eq!(line.cwnd(), 21.25);
    let mut line = Line { most: PACKET, ..Line::new() };
    line.round(MS);
    assert_eq!(line.cwnd(), 10.0);
}

#[test]
fn the_first_loss_halves_the_window_and_later_ones_take_three_tenths() {
    let mut line = Line::new();
    line.round(MS);
    assert!(line.lose_one());
    assert_eq!(line.cwnd(), 10.0);
    for expected in [7.0, 4.9, 3.43] {
        assert!(line.lose_one());
        near(line.cwnd(), expected, 1e-9);
    }
}

/// Packets that left at the time of the cut, too, left before it.
#[test]
fn a_cut_answers_all_losses_of_packets_that_left_before_it() {
    let mut line = Line::new();
    let first = line.send(1);
    line.now += 100;
    assert_eq!(line.lose(&first[0]), Some(Cut::Loss));
    assert_eq!(line.cwnd(), 5.0);
    let at_once = line.send(1);
    line.now += 1;
    let after = line.send(1);
    line.now += 100;
    assert_eq!(line.lose(&at_once[0]), None);
    assert_eq!(line.cwnd(), 5.0);
    assert_eq!(line.lose(&after[0]), Some(Cut::Loss));
    assert_eq!(line.cwnd(), 3.5);
}

/// After it slow start goes on, as if there had been no cut.
#[test]
fn a_cut_is_taken_back_when_all_of_its_losses_were_wrong() {
    let mut line = Line::new();
    line.round(MS);
    let sent = line.fill();
    line.now += MS;
    for packet in &sent[..3] {
        line.lose(packet);
    }
    assert_eq!(line.cwnd(), 10.0);
    for (packet, expected) in sent[..3].iter().zip([10.0, 10.0, 20.0]) {
        line.window.on_wrong_loss(packet);
        assert_eq!(line.cwnd(), expected);
    }
    line.arrive(&sent[3..], MS, 0);
    assert_eq!(line.cwnd(), 37.0);
    // Nothing is left to be taken back.
    line.lose_one();
    let after_another = line.cwnd();
    assert_eq!(after_another, 18.5);
    line.now += 1;
    let later = line.send(1);
    line.window.on_wrong_loss(&later[0]);
    assert_eq!(line.cwnd(), after_another, "of a packet that left after the cut");
}

/// A window that has grown larger meanwhile stays so, and one below which it stopped to double counts again.
#[test]
fn a_cut_that_is_taken_back_leaves_no_trace() {
    let mut line = Line::cut_to(20.0, MS, 2 * MS);
    let before = line.window.clone();
    assert!(line.lose_one());
    assert_eq!(line.cwnd(), 14.0);
    let lost = Flight { plane: 0, bytes: MTU, sent_at: Time(line.now - 1) };
    line.window.cwnd = 25.0 * PACKET;
    line.window.on_wrong_loss(&lost);
    assert_eq!(line.cwnd(), 25.0);
    // The next cut of 0.7, and the growth after it, are as without the one taken back.
    let mut other = Line { window: before, ..Line::new() };
    other.now = line.now;
    other.window.cwnd = 25.0 * PACKET;
    for line in [&mut line, &mut other] {
        assert!(line.lose_one());
        (0..10).for_each(|_| line.round(MS));
    }
    assert_eq!(line.cwnd(), other.cwnd());
}

/// A round with a loss that was chance does not grow either.
#[test]
fn a_round_with_a_loss_does_not_grow() {
    let mut line = Line::cut_to(20.0, MS, 3 * MS);
    (0..300).for_each(|_| {
        line.small_round(1, MS, 0);
    });
    for (lost, grows) in [(1, false), (0, true)] {
        let sent = line.fill();
        line.now += MS;
        sent[..lost].iter().for_each(|packet| assert_eq!(line.lose(packet), None));
        line.arrive(&sent[lost..], MS, 0);
        assert_eq!(line.cwnd() > 20.0, grows);
    }
}

/// From 0.7 of the window before the cut on, along the curve of RFC 9438: `W + 0.4 (t - K)^3` with `K = cbrt(0.3 W / 0.4)`.
/// With round trips of most of a second, the growth of TCP Reno is at most a packet more than that.
#[test]
fn the_window_is_back_where_it_was_cut_after_the_time_of_cubic() {
    let rtt = 750 * MS;
    let mut line = Line::cut_to(400.0, rtt, S);
    // So that the window is not smaller than at the last cut.
    while line.cwnd() <= 801.0 {
        line.round(rtt);
    }
    let before = line.cwnd();
    // More than the queue has room for, and more than one in fifty.
    let sent = line.fill();
    line.now += rtt;
    let (lost, rest) = sent.split_at(40);
    line.window.on_sample(Time(line.now), 2 * rtt, false);
    let cuts = lost.iter().filter(|packet| line.lose(packet).is_some()).count();
    assert_eq!(cuts, 1);
    near(line.cwnd(), 0.7 * before, 1e-6);
    line.arrive(rest, rtt, 0);
    near(line.cwnd(), 0.7 * before, 1e-6);
    line.round(rtt);
    // This round was the first to grow.
    let begun = line.now;
    let k = (before * 0.3 / 0.4).cbrt();
    while line.now < begun + (2.0 * k * 1e9) as u64 {
        // The window is that of the end of the next round trip, as long as it is smoothed.
        let t = (line.now - begun + rtt) as f64 / 1e9 - k;
        near(line.cwnd(), before + 0.4 * t * t * t, if t < 0.0 { 1.0 } else { 2.0 });
        line.round(rtt);
    }
    assert!(line.cwnd() > 1.25 * before);
}

/// A cut of a window that had not come back to where the last one was gives room to others (RFC 9438 section 4.7).
#[test]
fn a_window_that_did_not_come_back_aims_lower() {
    let mut line = Line::cut_to(80.0, MS, 3 * MS);
    // The cut from 160 packets to 80 is followed by one at 80, when more than one packet in fifty is lost.
    assert!((0..3).any(|_| line.lose_one()));
    near(line.cwnd(), 56.0, 1e-9);
    // It aims at 80 * 0.85 = 68, and grows by a packet a round trip from there on.
    let mut grown = Vec::new();
    line.round(MS);
    for _ in 0..40 {
        let before = line.cwnd();
        line.round(MS);
        grown.push((before, line.cwnd() - before));
    }
    assert!(line.cwnd() > 70.0);
    for (before, grown) in grown {
        near(grown, if before < 68.0 { 0.529 } else { 1.0 }, 0.01);
    }
}

/// With short round trips: by 3 * 0.3 / 1.7 packets until the window is where it was cut, and by one from then on.
#[test]
fn short_round_trips_grow_the_window_as_tcp_reno_does() {
    let mut line = Line::cut_to(60.0, MS, 3 * MS);
    let mut rounds = [0, 0];
    while line.cwnd() < 140.0 {
        let before = line.cwnd();
        line.round(MS);
        let beyond = before >= 120.0;
        // CUBIC alone would grow by a few thousandths of a packet.
        near(line.cwnd() - before, if beyond { 1.0 } else { 9.0 / 17.0 }, 1e-9);
        rounds[usize::from(beyond)] += 1;
    }
    assert!(rounds[0] > 100 && rounds[1] >= 19, "{rounds:?}");
}

#[test]
fn a_window_that_is_not_used_does_not_grow() {
    let mut line = Line::cut_to(20.0, MS, 3 * MS);
    (0..100).for_each(|_| {
        line.small_round(19, MS, 0);
    });
    assert_eq!(line.cwnd(), 20.0);
    line.small_round(20, MS, 0);
    assert!(line.cwnd() > 20.0);
}

/// The time in which a window was not used is no time of growth: it would leave by half its size at once.
#[test]
fn the_curve_starts_over_after_rounds_that_did_not_use_the_window() {
    let mut line = Line::cut_to(100.0, 200 * MS, S);
    (0..10).for_each(|_| line.round(200 * MS));
    let before = line.cwnd();
    (0..100).for_each(|_| {
        line.small_round(1, 200 * MS, 0);
    });
    line.round(200 * MS);
    near(line.cwnd(), before, 6.0);
}

/// Growth in the round trip that takes this long, where packets were lost at 2 ms.
fn headroom(packets: f64, rtt: u64) -> f64 {
    let mut line = Line::cut_to(packets, MS, 2 * MS);
    let sent = line.fill();
    line.now += rtt;
    line.arrive(&sent, rtt, 0);
    (line.cwnd() - packets) / (9.0 / 17.0)
}

#[test]
fn a_queue_that_is_nearly_full_slows_small_windows_down() {
    // Up to 0.6 times 2 ms there is room.
    for (rtt, part) in [(1_000, 1.0), (1_200, 1.0), (1_400, 0.75), (1_600, 0.5), (1_900, 0.25), (2_000, 0.25)]
    {
        near(headroom(12.0, rtt * 1_000), part, 0.01);
    }
    for (packets, part) in [(4.0, 1.0 / 12.0), (24.0, 0.5), (36.0, 0.75), (48.0, 1.0), (96.0, 1.0)] {
        near(headroom(packets, 2 * MS), part, 0.01);
    }
    // Before the first loss nothing is known of the queue.
    let mut line = Line::new();
    line.small_round(1, MS, 0);
    line.small_round(1, WAITING, 1);
    line.round(2 * MS);
    near(line.cwnd(), 8.0, 0.01);
}

/// The smallest round-trip time of a round counts, and when nothing is lost where it was before, there is more room.
#[test]
fn the_full_queue_grows_when_nothing_is_lost() {
    let mut line = Line::cut_to(12.0, MS, 2 * MS);
    // Four rounds at 3 ms: 3 - (3/4)^4 = 2.684 ms.
    (0..4).for_each(|_| {
        line.small_round(1, 3 * MS, 0);
    });
    let sent = line.fill();
    line.now += 2 * MS;
    line.window.on_sample(Time(line.now), 5 * MS, false);
    line.arrive(&sent, 2 * MS, 0);
    near((line.cwnd() - 12.0) / (9.0 / 17.0), (2.684 - 2.0) / (0.4 * 2.684), 0.01);
}

/// Loses a packet, has a window of twelve packets then, and tells by how many it grows in a round trip that takes so long. Beyond
/// where it was cut, that is one where there is room.
fn growth_after_a_loss(mut line: Line, rtt: u64) -> f64 {
    assert!(line.lose_one());
    line.small_round(1, MS, 0);
    line.window.cwnd = 12.0 * PACKET;
    line.small_round(1, MS, 0);
    let sent = line.fill();
    line.now += rtt;
    line.arrive(&sent, rtt, 0);
    line.cwnd() - 12.0
}

/// The longest round trip of this round and of the last tells how long the queue is that overflows.
#[test]
fn losses_say_how_long_the_full_queue_is() {
    // Two rounds ago is too long ago.
    for (rounds, part) in [(0, 1.0), (1, 1.0), (2, 0.25)] {
        let mut line = Line::cut_to(12.0, MS, 2 * MS);
        line.window.on_sample(Time(line.now), 10 * MS, false);
        (0..rounds).for_each(|_| {
            line.small_round(1, 2 * MS, 0);
        });
        near(growth_after_a_loss(line, 2 * MS), part, 0.01);
    }
    // A shorter one counts by a sixteenth: 3 - 1/16 = 2.9375 ms.
    let mut line = Line::cut_to(12.0, MS, 3 * MS);
    (0..2).for_each(|_| {
        line.small_round(1, MS, 0);
    });
    line.small_round(1, 2 * MS, 0);
    near(growth_after_a_loss(line, 2_500_000), (2.9375 - 2.5) / (0.4 * 2.9375), 0.01);
}

/// A full window of 40 packets of which so many arrive: the window after that, and after one more round trip.
fn round_with_losses(arrived: usize) -> [f64; 2] {
    let mut line = Line::new();
    (0..2).for_each(|_| line.round(MS));
    let sent = line.fill();
    assert_eq!(sent.len(), 40);
    line.now += MS;
    for packet in &sent[arrived..] {
        line.lose(packet);
    }
    assert_eq!(line.cwnd(), 20.0);
    line.arrive(&sent[..arrived], MS, 0);
    let after = line.cwnd();
    line.round(MS);
    [after, line.cwnd()]
}

#[test]
fn a_round_of_which_most_is_lost_leaves_what_got_through() {
    assert_eq!(round_with_losses(30)[0], 20.0, "few were lost");
    assert_eq!(round_with_losses(19), [19.0, 19.0]);
    // It doubles up to half of what was left by the cut.
    assert_eq!(round_with_losses(8), [8.0, 10.0]);
    assert_eq!(round_with_losses(4), [4.0, 8.0]);
    assert_eq!(round_with_losses(1), [1.0, 2.0]);
}

/// A loss among few packets says little about the room in the queue.
#[test]
fn windows_of_four_packets_do_not_collapse() {
    for (packets, left) in [(5.7, 3.99), (5.8, 1.0)] {
        let mut line = Line::cut_to(packets, MS, 3 * MS);
        let sent = line.fill();
        line.now += MS;
        sent[1..].iter().for_each(|packet| _ = line.lose(packet));
        let cut = line.arrive(&sent[..1], MS, 0);
        near(line.cwnd(), left, 1e-9);
        assert_eq!(cut.is_some(), left == 1.0);
    }
}

/// The window becomes so many packets by losses.
fn shrunk(packets: f64) -> Line {
    let mut line = Line::new();
    line.small_round(1, MS, 0);
    while line.cwnd() > packets {
        assert!(line.lose_one());
    }
    line.window.next_send = Time::ZERO;
    line
}

#[test]
fn below_two_packets_the_window_is_a_rate() {
    for packets in [1.9, 0.9, 0.3] {
        let mut line = shrunk(packets);
        line.now += MS;
        let cwnd = line.cwnd();
        assert!(cwnd < 2.0);
        let gap = (1e6 / cwnd) as u64;
        line.send(1);
        near(line.window.next_send.0 as f64, (line.now + gap) as f64, 1.0);
        assert_eq!(line.window.has_room(), cwnd > 1.0, "one is in flight");
        // Half of a packet, half of the time, and from the end of the last gap on.
        line.window.on_send(&Flight { plane: 0, bytes: MTU / 2, sent_at: Time(line.now + 1) });
        near(line.window.next_send.0 as f64, (line.now + gap + gap / 2) as f64, 2.0);
        assert!(!line.window.has_room() || cwnd > 1.5);
        // Time that was not used is lost.
        line.now += 100 * gap;
        line.send(1);
        near(line.window.next_send.0 as f64, (line.now + gap) as f64, 1.0);
    }
}

#[test]
fn below_eight_packets_the_window_is_paced() {
    let mut line = shrunk(7.9);
    let cwnd = line.cwnd();
    assert!(line.window.is_paced() && cwnd > 2.0);
    line.now += MS;
    line.send(1);
    near(line.window.next_send.0 as f64, line.now as f64 + 0.8e6 / cwnd, 1.0);
    line.window.cwnd = 8.0 * PACKET;
    assert!(!line.window.is_paced());
    let before = line.window.next_send;
    line.send(1);
    assert_eq!(line.window.next_send, before);
    line.window.cwnd = 7.99 * PACKET;
    assert!(line.window.is_paced());
    // Nothing is known of the round-trip time yet.
    let mut window = Window::new(PACKET);
    window.cwnd = PACKET;
    assert!(!window.is_paced());
}

/// From two packets on, a full packet has to fit.
#[test]
fn there_is_room_for_full_packets() {
    for (cwnd, inflight, room) in [
        (2.0, 1.0, true),
        (2.0, 1.1, false),
        (1.9, 1.1, true),
        (1.9, 1.95, false),
        (2.5, 2.0, false),
        (0.1, 0.0, true),
        (0.1, 0.2, false),
    ] {
        let mut window = Window::new(PACKET);
        window.cwnd = cwnd * PACKET;
        window.inflight = (inflight * PACKET) as u64;
        assert_eq!(window.has_room(), room, "{inflight} of {cwnd}");
    }
}

#[test]
fn the_window_is_never_below_a_sixty_fourth_of_a_packet() {
    let line = shrunk(1.0 / 64.0);
    assert_eq!(line.cwnd(), 1.0 / 64.0);
    let mut line = line;
    assert!(line.lose_one());
    assert_eq!(line.cwnd(), 1.0 / 64.0);
    line.small_round(1, 5 * MS, 1);
    assert_eq!(line.cwnd(), 1.0 / 64.0);
}

/// One that takes two round trips to send a packet grows by twice as much when it has been answered.
#[test]
fn a_window_below_one_packet_grows_as_fast_as_others() {
    for packets in [2.0, 1.0, 0.5, 0.25] {
        let mut line = Line::cut_to(40.0, MS, 4 * MS);
        line.window.cwnd = packets * PACKET;
        assert!(line.lose_one());
        line.small_round(1, MS, 0);
        line.window.cwnd = packets * PACKET;
        let sent = line.fill();
        line.now += MS;
        line.arrive(&sent, MS, 0);
        let round_trips = (1.0 / packets).max(1.0);
        let grown = (line.cwnd() - packets) / round_trips;
        assert!((0.5..=1.0).contains(&grown), "{grown}");
    }
}

/// Then it starts at ten packets and doubles up to three quarters of what it was.
#[test]
fn a_window_that_was_not_used_for_a_second_starts_again() {
    let start = |packets: f64, idle: u64| {
        let mut line = Line::new();
        line.round(MS);
        line.window.cwnd = packets * PACKET;
        let last = line.now - MS;
        line.now = last + idle;
        line.send(1);
        line
    };
    assert_eq!(start(40.0, S).cwnd(), 40.0);
    let mut line = start(40.0, S + 1);
    assert_eq!(line.cwnd(), 10.0);
    line.window.on_gone(MTU);
    // At the end of slow start, the round counts as one that follows it.
    for expected in [20.0, 31.0, 32.0] {
        line.round(MS);
        near(line.cwnd(), expected, 1e-6);
    }
    // Of a window that was hardly larger, three quarters are fewer than ten.
    let mut line = start(12.0, 2 * S);
    assert_eq!(line.cwnd(), 10.0);
    line.window.on_gone(MTU);
    line.round(MS);
    assert_eq!(line.cwnd(), 11.0);
    assert_eq!(start(9.0, 2 * S).cwnd(), 9.0, "smaller than the first one anyway");
    // With packets in flight it is in use, and the first packet of all finds nothing to start again.
    let mut line = Line::new();
    line.window.cwnd = 40.0 * PACKET;
    line.now = 5 * S;
    line.send(1);
    line.now = 10 * S;
    line.send(1);
    assert_eq!(line.cwnd(), 40.0);
}

/// The route may have changed: what was shorter is forgotten after ten seconds at the earliest, and after twenty at the latest.
#[test]
fn the_smallest_round_trip_time_is_forgotten_after_a_while() {
    let mut line = Line::new();
    assert_eq!(line.window.base_ns(), 0);
    let begun = line.now + MS;
    line.small_round(1, MS, 0);
    for (until, base) in [(5, MS), (10, MS), (19, MS), (21, 2 * MS), (60, 2 * MS)] {
        while line.now < begun + until * S {
            line.now += 100 * MS;
            line.small_round(1, 2 * MS, 0);
        }
        assert_eq!(line.window.base_ns(), base, "{until} s");
    }
    // A shorter one counts at once.
    line.small_round(1, MS / 2, 0);
    assert_eq!(line.window.base_ns(), MS / 2);
    line.now += 11 * S;
    line.small_round(1, MS, 0);
    assert_eq!(line.window.base_ns(), MS / 2, "of the ten seconds before");
}

#[test]
fn packets_wait_where_the_latest_round_trip_took_twice_the_shortest() {
    let mut line = Line::new();
    for (rtt, queues) in
        [(MS, false), (2 * MS - 1, false), (2 * MS, true), (MS, false), (MS / 2, false), (MS, true)]
    {
        line.window.on_sample(Time(line.now), rtt, false);
        assert_eq!(line.window.queues(), queues, "{rtt}");
    }
    assert!(!Window::new(PACKET).queues());
}

/// A packet of the round before does not end the next one.
#[test]
fn a_round_is_over_when_a_packet_that_left_in_it_arrives() {
    let mut line = Line::new();
    let first = line.send(2);
    line.now += MS;
    line.arrive(&first[..1], MS, 0);
    assert!(!line.window.round_is_over());
    line.window.on_arrival(&first[1], line.most);
    assert!(!line.window.round_is_over());
    let second = line.send(1);
    line.now += MS;
    line.window.on_arrival(&second[0], line.most);
    assert!(line.window.round_is_over());
}

/// A late packet of an earlier cut says nothing of the losses of the latest one.
#[test]
fn a_wrong_loss_of_an_earlier_cut_does_not_take_back_a_later_one() {
    let mut line = Line::new();
    let first = line.send(1);
    line.now += 100;
    assert_eq!(line.lose(&first[0]), Some(Cut::Loss));
    assert!(line.lose_one());
    assert_eq!(line.cwnd(), 3.5);
    line.window.on_wrong_loss(&first[0]);
    assert_eq!(line.cwnd(), 3.5);
}
