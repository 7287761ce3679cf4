//! Late is not lost: what reordering costs, and that a real loss is still found at once where packets keep order.
//!
//! Tests decision 7 of `docs/protocol.md`.

use crate::flow::{Flow, TARGET, WRITER};
use crate::support::link::Link;

/// Every packet takes 100 to 300 us, so packets of one path overtake each other, and nothing is lost.
#[test]
fn jitter_without_loss_hardly_repeats_anything() {
    let (mut all_told, mut all_duplicates) = (0, 0);
    for seed in 0..4 {
        let link = Link { jitter_ns: 200_000, ..Link::clean(100_000) };
        let mut flow = Flow::new(seed, vec![link], 128);
        flow.stream(1_000, 65_536, 16);
        let (writer, target) = (flow.counters(WRITER), flow.counters(TARGET));
        let repeats = writer.tx_retransmits + writer.tx_tail_probes;
        let duplicates = target.rx_duplicates + target.rx_old;
        println!(
            "seed {seed}: {} sent, {repeats} repeats, {duplicates} duplicates, {} told, order rule set aside {} times",
            writer.tx_data, writer.spurious_retransmits, writer.order_rule_pauses
        );
        assert!(repeats * 100 < writer.tx_data, "{repeats} of {} repeated", writer.tx_data);
        assert!(writer.order_rule_pauses >= 1, "the rule was wrong and learned");
        assert!(writer.spurious_retransmits <= duplicates, "never more than there were");
        all_told += writer.spurious_retransmits;
        all_duplicates += duplicates;
    }
    assert!(all_duplicates >= 50, "enough to judge by");
    assert!(all_told * 10 >= all_duplicates * 9, "{all_told} told of {all_duplicates}");
}

/// Paths of different length keep the order of their own packets. Hardly any packet is repeated on them, not even at the
/// start, when only the fastest have reported.
#[test]
fn unequal_paths_without_loss_repeat_nothing() {
    let (mut sent, mut repeats) = (0, 0);
    for seed in 0..16 {
        let link = Link { spread_ns: 50_000, ..Link::clean(10_000) };
        let mut flow = Flow::new(seed, vec![link; 2], 64);
        flow.stream(30, 65_536, 8);
        let start = flow.counters(WRITER);
        assert_eq!(start.tx_retransmits, 0, "seed {seed}: {start:?}");
        flow.stream(270, 65_536, 8);
        let writer = flow.counters(WRITER);
        sent += writer.tx_data;
        repeats += writer.tx_retransmits;
        assert_eq!(writer.order_rule_pauses, 0, "seed {seed}");
        assert!(flow.counters(TARGET).rx_out_of_order > 1_000, "they did overtake each other");
    }
    // A pair of a slow path there and a slow one back that was not seen for a while.
    assert!(repeats * 2_000 <= sent, "{repeats} of {sent} repeated");
}

/// With 1 % loss on paths that keep order, nearly every loss is proved by order, within two round trips.
#[test]
fn a_loss_on_a_path_that_keeps_order_is_found_by_order() {
    let link = Link { loss: 100, ..Link::clean(50_000) };
    let mut flow = Flow::new(4, vec![link], 4);
    flow.stream(500, 65_536, 16);
    let (writer, target) = (flow.counters(WRITER), flow.counters(TARGET));
    println!(
        "by order {}, overdue {}, spurious {}",
        writer.loss_same_ev, writer.loss_overdue, writer.spurious_retransmits
    );
    assert_eq!(writer.order_rule_pauses, 0, "the rule was never wrong");
    assert!(writer.loss_same_ev > 4 * writer.loss_overdue, "{writer:?}");
    assert!(target.rx_duplicates + target.rx_old <= writer.tx_retransmits / 20, "hardly any needless");
}
