//! Effects of ECN marks on the window of a plane.

use super::window::{Line, MS, WAITING, near};
use super::*;
use crate::congestion::window::Cut;

/// Every loss is heard of in the round after the cut as well; it says nothing new.
#[test]
fn the_round_of_a_cut_is_no_sign_of_marks_or_of_growth() {
    let mut line = Line::cut_to(40.0, MS, 3 * MS);
    assert!(line.lose_one());
    assert_eq!(line.cwnd(), 28.0);
    let sent = line.fill();
    line.now += MS;
    assert_eq!(line.arrive(&sent, MS, 28), None);
    assert_eq!(line.cwnd(), 28.0);
    assert_eq!(line.small_round(1, WAITING, 1), Some(Cut::Mark));
}

#[test]
fn marks_of_a_managed_queue_cut_by_fifteen_hundredths() {
    for (rtt, cwnd) in [(1_500_000, 28.0), (1_500_001, 34.0)] {
        let mut line = Line::new();
        (0..2).for_each(|_| line.round(MS));
        assert_eq!(line.small_round(8, rtt, 8), Some(Cut::Mark));
        near(line.cwnd(), cwnd, 1e-9);
        // Slow start is over.
        line.window.on_sample(Time(line.now), MS, false);
        let (before, sent) = (line.cwnd(), line.fill());
        line.now += MS;
        line.arrive(&sent, MS, 0);
        assert!(line.cwnd() <= before + 1.0);
    }
}

#[test]
fn marks_on_a_part_of_the_packets_cut_by_three_tenths_of_that_part() {
    for (marks, cwnd) in [(0, 40.0), (1, 38.5), (2, 37.0), (4, 34.0), (8, 28.0)] {
        let mut line = Line::new();
        (0..2).for_each(|_| line.round(MS));
        // Another path has room.
        assert_eq!(line.small_round(8, MS + MS / 11, marks), None);
        near(line.cwnd(), 40.0, 1e-9);
        assert_eq!(line.small_round(8, WAITING, marks).is_some(), marks > 0);
        near(line.cwnd(), cwnd, 1e-9);
        // Each round again.
        line.small_round(8, WAITING, marks);
        near(line.cwnd(), cwnd * cwnd / 40.0, 1e-9);
    }
}

/// The smallest round-trip time of the round counts: a mark that one late packet bears is none of a queue.
#[test]
fn one_late_packet_is_no_queue() {
    let mut line = Line::new();
    (0..2).for_each(|_| line.round(MS));
    let sent = line.send(8);
    line.now += MS;
    line.window.on_sample(Time(line.now), 5 * MS, true);
    line.arrive(&sent[..7], MS, 0);
    near(line.cwnd(), 40.0, 1e-9);
    // If packets wait in queues, it counts as one of eight, however late it is.
    let sent = line.send(8);
    line.now += MS;
    line.window.on_sample(Time(line.now), 5 * MS, true);
    line.arrive(&sent[..7], WAITING, 0);
    near(line.cwnd(), 40.0 * (1.0 - 0.3 / 8.0), 1e-9);
}

/// A cut for marks answers losses of packets that left before it, and there is nothing to be taken back then.
#[test]
fn a_cut_for_marks_of_a_managed_queue_answers_losses() {
    let mut line = Line::new();
    (0..2).for_each(|_| line.round(MS));
    let early = line.send(1);
    line.small_round(8, 2 * MS, 8);
    near(line.cwnd(), 34.0, 1e-9);
    assert_eq!(line.lose(&early[0]), None);
    line.window.on_wrong_loss(&early[0]);
    near(line.cwnd(), 34.0, 1e-9);
    assert!(line.lose_one());
}
