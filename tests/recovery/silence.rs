//! When nothing is heard, a probe goes out soon, whatever congestion control says.
//!
//! Tests decision 7 of `docs/protocol.md`.

use spindrift::congestion::CcConfig;
use spindrift::endpoint::QpInit;
use spindrift::time::Time;

use crate::flow::{Flow, TARGET, WRITER};
use crate::support::link::{Link, Outage};

fn with_nscc(init: QpInit) -> QpInit {
    let mut cc = CcConfig::new(10_000_000_000, 10_000, 4096);
    cc.trimming = true;
    QpInit { cc, ..init }
}

fn silent(sender: Option<usize>, from: Time, ns: u64) -> Outage {
    Outage { from, to: from.after(ns), plane: 0, sender, paths: 0 }
}

/// The window is full, some packets are known to be lost, and the answers to the others never come.
#[test]
fn a_full_window_and_a_loss_do_not_wait_for_the_retransmission_timer() {
    let mut flow = Flow::with(1, vec![Link::clean(5_000)], 32, with_nscc);
    for _ in 0..10 {
        flow.write(100_000);
    }
    let start = flow.net.now;
    // The first packets arrive and are answered; from then on nothing passes either way for a while.
    flow.net.outages = vec![silent(None, start.after(1), 300_000)];
    let before = flow.counters(WRITER);
    let took = flow.write(100_000);
    let after = flow.counters(WRITER);
    println!("took {} us, {} tail probes", took / 1_000, after.tx_tail_probes - before.tx_tail_probes);
    assert_eq!(after.timeouts, before.timeouts, "the retransmission timer is for when all else fails");
    assert!(took < 300_000 + 1_500_000, "{took} ns");
}

/// More packets are trimmed at once than the target has room to report.
#[test]
fn an_incast_of_more_trims_than_nacks_kept_recovers_in_round_trips() {
    let adjust = |init: QpInit| QpInit { mpr_dest: 32, ..init };
    let trims = Link { trim: 10_000, ..Link::clean(5_000) };
    let mut flow = Flow::with(2, vec![trims], 32, adjust);
    // The target's port is slow, so that what it owes piles up.
    flow.net.nodes[TARGET].ns_per_kib = 10_000;
    flow.net.heal_at = flow.net.now.after(1);
    let took = flow.stream(2, 1_000_000, 2);
    let dropped = flow.counters(TARGET).tx_nacks_dropped;
    let counters = flow.counters(WRITER);
    println!("took {} us, NACKs {}, dropped {dropped}", took / 1_000, counters.rx_nacks);
    assert!(dropped > 0, "the case this is about");
    assert_eq!(counters.timeouts, 0);
    assert!(took < 2_000_000, "{took} ns");
    assert_eq!(counters.rx_nacks, flow.counters(TARGET).rx_trimmed - dropped);
}

/// All of a write but its first packets is lost. One probe shows it, and the rest is sent again in one go: not packet
/// by packet, each after a silence of its own.
#[test]
fn a_lost_tail_is_sent_again_after_one_probe() {
    let mut flow = Flow::new(3, vec![Link::clean(5_000)], 32);
    for _ in 0..10 {
        flow.write(1_000_000);
    }
    let start = flow.net.now;
    flow.net.outages = vec![silent(Some(WRITER), start, 1)];
    let before = flow.counters(WRITER);
    let took = flow.write(500_000);
    let after = flow.counters(WRITER);
    println!("took {} us, {} tail probes", took / 1_000, after.tx_tail_probes - before.tx_tail_probes);
    assert_eq!(after.tx_tail_probes - before.tx_tail_probes, 1);
    assert!(took < 200_000, "the probe's 100 us and a few round trips of 10 us: {took} ns");
}
