//! Which losses are taken for chance, and do not cut the window.

use super::window::{Line, MS};
use super::*;

/// After so many packets, whether a loss is taken for chance.
fn is_chance(packets: usize, losses: usize, latest_rtt: u64) -> bool {
    let mut line = Line::new();
    (0..packets).for_each(|_| {
        line.small_round(1, MS, 0);
    });
    line.window.on_sample(Time(line.now), latest_rtt, false);
    let mut cut = false;
    (0..losses).for_each(|_| cut = line.lose_one());
    assert_eq!(line.cwnd() < 10.0, cut);
    !cut
}

#[test]
fn few_losses_while_round_trips_are_short_are_chance() {
    assert_eq!([49, 50].map(|packets| is_chance(packets, 1, MS)), [false, true], "enough were seen");
    assert_eq!([1, 2].map(|losses| is_chance(99, losses, MS)), [true, false], "one in fifty");
    assert_eq!([1, 2].map(|losses| is_chance(100, losses, MS)), [true, true]);
    let a_quarter_more = [1_249_999, 1_250_000].map(|latest| is_chance(75, 1, latest));
    assert_eq!(a_quarter_more, [true, false], "the queue is short");
}

/// Once it is known at which round-trip time packets are lost, half of the way there is short.
#[test]
fn round_trips_are_short_up_to_half_of_the_full_queue() {
    for (latest, chance) in [(1_990_000, true), (2_000_000, false)] {
        let mut line = Line::cut_to(20.0, MS, 3 * MS);
        (0..300).for_each(|_| {
            line.small_round(1, MS, 0);
        });
        line.window.on_sample(Time(line.now), latest, false);
        assert_eq!(!line.lose_one(), chance, "{latest}");
    }
}

/// Of 2,000 packets, the last 512 to 1,024 count, and so up to twenty losses.
#[test]
fn chance_is_measured_over_the_packets_of_late() {
    let mut line = Line::new();
    (0..2_000).for_each(|_| {
        line.small_round(1, MS, 0);
    });
    let chances = (0..30).take_while(|_| !line.lose_one()).count();
    assert!((10..=20).contains(&chances), "{chances}");
    // Losses of long ago do not count on.
    (0..3_000).for_each(|_| {
        line.small_round(1, MS, 0);
    });
    assert!(!line.lose_one());
}

/// One that was no loss is not held against the next.
#[test]
fn a_wrong_loss_is_no_loss_in_fifty() {
    let mut line = Line::new();
    (0..75).for_each(|_| {
        line.small_round(1, MS, 0);
    });
    for _ in 0..5 {
        assert!(!line.lose_one());
        line.window.on_wrong_loss(&Flight { plane: 0, bytes: MTU, sent_at: Time(line.now - 1) });
    }
    assert!(!line.lose_one());
    assert!(line.lose_one());
}
