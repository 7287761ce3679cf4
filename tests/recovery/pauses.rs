//! A peer that stands still for seconds loses nothing; one that never comes back is given up when the settings say.
//!
//! Tests decision 26 of `docs/protocol.md`.

use spindrift::endpoint::{Event, FailReason, QpState, RtsAttr};
use spindrift::time::Time;
use spindrift::work::WcStatus;

use crate::flow::{Flow, TARGET, WRITER, patience};
use crate::support::link::{Link, Outage};
use crate::support::pair::gives_up_at;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

/// Nothing passes either way from `from` on, for so long: the worst that a peer which stands still does, since
/// what comes in meanwhile is lost.
fn nothing_passes(from: Time, ns: u64) -> Outage {
    Outage { from, to: from.after(ns), plane: 0, sender: None, paths: 0 }
}

/// Pauses a stream of writes over so many entropy values for `ns`; how long after the pause the first of them completes.
fn resumes_after(active: u16, one_way_ns: u64, ns: u64) -> u64 {
    let mut flow = Flow::new(u64::from(active), vec![Link::clean(one_way_ns)], active);
    for _ in 0..10 {
        flow.write(100_000);
    }
    for _ in 0..4 {
        flow.post(100_000);
    }
    // The first packets are on their way.
    flow.net.run_for(one_way_ns / 2);
    flow.net.outages = vec![nothing_passes(flow.net.now, ns)];
    let back = flow.net.now.after(ns);
    flow.finish_all_but(3);
    let took = flow.net.now.since(back);
    flow.finish_all_but(0);
    let rest = flow.net.now.since(back);
    for end in flow.ends {
        assert_eq!(flow.net.endpoint(end.node).qp_state(end.qpn), Some(QpState::Rts));
    }
    assert_eq!(flow.counters(WRITER).retries_exhausted, 0);
    assert_eq!(flow.counters(TARGET).rx_placed_bytes, 14 * 100_000, "each byte once");
    println!(
        "{:>6} ms away, one way {one_way_ns} ns: first after {} us, all after {} us",
        ns / MS,
        took / 1_000,
        rest / 1_000
    );
    assert!(rest - took < 200 * one_way_ns + 50 * MS, "the rest follows in round trips: {} ns", rest - took);
    took
}

/// The bound of the documentation: a third of the pause, or 10 ms.
#[test]
fn traffic_resumes_within_a_third_of_a_pause_of_up_to_ten_seconds() {
    for (active, one_way_ns) in [(4, 5_000), (32, 5_000), (128, 60_000), (4, 500_000)] {
        for ms in [1, 5, 20, 100, 150, 200, 500, 1_000, 2_000, 3_300, 5_000, 6_500, 7_000, 8_000, 10_000] {
            let took = resumes_after(active, one_way_ns, ms * MS);
            let bound = (ms * MS / 3).max(10 * MS) + 10 * one_way_ns;
            assert!(took <= bound, "{ms} ms away: {took} ns");
        }
    }
}

/// The figure that users are promised.
#[test]
fn after_ten_seconds_traffic_resumes_within_one_and_a_half() {
    for shift in 0..8 {
        let took = resumes_after(4 << (shift / 2), 5_000 << shift, 10 * SECOND);
        assert!(took <= 1_500 * MS, "{took} ns");
    }
}

/// A peer that never comes back, with the defaults and with settings of each kind: the queue pair fails at the time that
/// the formula gives, neither earlier nor later.
#[test]
fn a_dead_peer_is_given_up_when_the_formula_says() {
    let default = RtsAttr::default();
    let with = |timeout, linear_retries, exponential_retries| RtsAttr {
        timeout,
        linear_retries,
        exponential_retries,
        ..default
    };
    for attr in [default, with(8, 0, 0), with(14, 7, 7), with(21, 7, 0), with(20, 7, 3), with(1, 0, 24)] {
        let mut flow = Flow::patient(4, vec![Link::clean(5_000)], 32, &attr);
        flow.write(1_000);
        let start = flow.net.now;
        flow.net.outages = vec![nothing_passes(start, u64::MAX - start.0)];
        flow.post(1_000);
        let mut events = Vec::new();
        flow.net.run_until(|net| {
            events.extend(net.take_events(WRITER));
            events.iter().any(|event| matches!(event, Event::QpFailed { .. }))
        });
        let budget = attr.budget_ns().expect("a limit");
        assert_eq!(flow.net.now, start.after(budget), "{attr:?}");
        assert_eq!(gives_up_at(start, patience(&attr)), start.after(budget), "{attr:?}");
        let status = events.iter().find_map(|event| match event {
            Event::Completion { wc, .. } => Some(wc.status),
            _ => None,
        });
        assert_eq!(status, Some(WcStatus::RetryExceeded));
        let qpn = flow.ends[WRITER].qpn;
        assert!(events.contains(&Event::QpFailed { qpn, reason: FailReason::RetryExceeded }));
    }
    assert!(default.budget_ns().is_some_and(|ns| (17 * SECOND..18 * SECOND).contains(&ns)));
}

#[test]
fn for_ever_is_for_ever() {
    let attr = RtsAttr { exponential_retries: RtsAttr::MAX_EXPONENTIAL, ..RtsAttr::default() };
    assert_eq!(attr.budget_ns(), None);
    let mut flow = Flow::patient(5, vec![Link::clean(5_000)], 32, &attr);
    flow.write(1_000);
    flow.net.outages = vec![nothing_passes(flow.net.now, 3_000 * SECOND)];
    flow.post(1_000);
    flow.net.run_for(3_000 * SECOND);
    let qpn = flow.ends[WRITER].qpn;
    assert_eq!(flow.net.endpoint(WRITER).qp_state(qpn), Some(QpState::Rts));
}
