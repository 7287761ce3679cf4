//! Congestion marks reach the sender, every one, however many come at once.

use spindrift::path::EvState;

use crate::flow::{Flow, TARGET, WRITER};
use crate::support::link::Link;

/// Every packet of a burst is marked, each on an entropy value of its own: each is told and put in SKIP.
#[test]
fn every_mark_of_a_burst_is_told() {
    let link = Link { ecn: 10_000, ..Link::clean(5_000) };
    let mut flow = Flow::new(6, vec![link], 64);
    // The target's port is slow: it owes all the answers before it can send the second.
    flow.net.nodes[TARGET].ns_per_kib = 100_000;
    flow.post(64 * 4096);
    flow.finish_all_but(0);
    let target = flow.counters(TARGET);
    assert_eq!(target.rx_ecn_marked, 64);
    assert_eq!(target.tx_sacks_dropped, 0);
    let qpn = flow.ends[WRITER].qpn;
    flow.net.run_for(1_000_000);
    let skips = flow.net.endpoint(WRITER).path_counters(qpn).unwrap().ecn_skips;
    assert_eq!(skips, 64, "SKIP for each mark");
    assert!(flow.evs().iter().filter(|ev| ev.active).all(|ev| ev.state == EvState::Skip));
}
