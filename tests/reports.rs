//! What the transport reports through `tracing`: each change of state once, with its queue pair, peer and path, and
//! nothing about packets that go their way.
//!
//! A program of its own, because `tracing` keeps what is listened to for each place in the code: another thread that
//! reaches such a place while nobody listens could switch it off.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

#[path = "recovery/flow.rs"]
#[allow(dead_code, reason = "shared with another program")]
mod flow;
#[path = "support/mod.rs"]
mod support;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Once;

use spindrift::congestion::CcConfig;
use spindrift::endpoint::{Event, FailReason, QpInit, RtsAttr};
use spindrift::path::{EvState, EvStatus};
use spindrift::time::Time;
use tracing::field::{Field, Visit};
use tracing::subscriber::set_global_default;
use tracing::{Level, Metadata, Subscriber, span};

use crate::flow::{Flow, TARGET, WRITER};
use crate::support::link::{Link, Outage};
use crate::support::net::address;

const MS: u64 = 1_000_000;

#[derive(Clone, Debug)]
struct Report {
    level: Level,
    target: &'static str,
    fields: BTreeMap<&'static str, String>,
}

impl Report {
    fn get(&self, field: &str) -> &str {
        self.fields.get(field).map_or("", String::as_str)
    }

    fn text(&self) -> &str {
        self.get("message")
    }
}

impl Visit for Report {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.fields.insert(field.name(), format!("{value:?}"));
    }
}

thread_local! {
    /// The reports that came on this thread, in whose tests somebody listens.
    static SEEN: RefCell<Vec<Report>> = const { RefCell::new(Vec::new()) };
}

/// The reports since the last call.
fn take() -> Vec<Report> {
    SEEN.take()
}

/// Hears all threads; each test reads its own.
struct Listener;

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("spindrift::")
    }

    fn event(&self, event: &tracing::Event<'_>) {
        let (level, target) = (*event.metadata().level(), event.metadata().target());
        let mut report = Report { level, target, fields: BTreeMap::new() };
        event.record(&mut report);
        SEEN.with_borrow_mut(|seen| seen.push(report));
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        panic!("the transport has no spans");
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

/// Starts to listen; the first thing that every test does.
fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| set_global_default(Listener).unwrap());
    take();
}

fn with_text<'a>(reports: &'a [Report], text: &str) -> Vec<&'a Report> {
    reports.iter().filter(|report| report.text() == text).collect()
}

/// Asserts that a report is about the writer's queue pair.
fn about_writer(flow: &Flow, report: &Report) {
    assert_eq!(report.get("qpn"), flow.ends[WRITER].qpn.to_string(), "{report:?}");
    assert_eq!(report.get("peer_qpn"), flow.ends[TARGET].qpn.to_string(), "{report:?}");
    assert_eq!(report.get("peer"), address(true, TARGET, 0).to_string(), "{report:?}");
}

/// Does with path events what a lane does.
fn poll_paths(flow: &mut Flow) {
    let qpn = flow.ends[WRITER].qpn;
    while flow.net.endpoint(WRITER).poll_ev_event(qpn).is_some() {}
}

#[test]
fn a_life_without_trouble_is_reported_by_its_states_alone() {
    listen();
    let mut flow = Flow::new(1, vec![Link::clean(5_000); 2], 16);
    let reports = take();
    let states: Vec<_> = with_text(&reports, "queue pair changed its state")
        .iter()
        .filter(|report| report.get("qpn") == flow.ends[WRITER].qpn.to_string())
        .map(|report| (report.get("state").to_owned(), report.level))
        .collect();
    let expected = ["Reset", "Init", "Rtr", "Rts"].map(|state| (state.to_owned(), Level::INFO));
    assert_eq!(states, expected);
    about_writer(
        &flow,
        reports.iter().rfind(|report| report.get("qpn") == flow.ends[WRITER].qpn.to_string()).unwrap(),
    );
    assert_eq!(with_text(&reports, "memory registered").len(), 2);
    assert_eq!(reports.len(), 2 * 4 + 2, "{reports:#?}");

    flow.stream(200, 100_000, 8);
    assert!(flow.counters(WRITER).tx_data > 4_000);
    assert_eq!(take().len(), 0);

    let qpn = flow.ends[WRITER].qpn;
    flow.net.endpoint(WRITER).destroy_qp(qpn).unwrap();
    let reports = take();
    assert_eq!((reports.len(), reports[0].text()), (1, "queue pair destroyed"));
    about_writer(&flow, &reports[0]);
}

#[test]
fn paths_that_die_and_come_back_are_reported_once() {
    listen();
    let mut flow = Flow::new(3, vec![Link::clean(5_000)], 32);
    let dead = Outage { from: Time::ZERO, to: Time::NEVER, plane: 0, sender: Some(WRITER), paths: 4 };
    flow.net.outages.push(dead);
    take();
    flow.stream(2_000, 64, 4);
    poll_paths(&mut flow);
    let key = |path: &EvStatus| (path.ev.to_string(), path.plane.to_string());
    let mut bad: Vec<_> =
        flow.evs().iter().filter(|path| path.state == EvState::AssumedBad).map(key).collect();
    let reports = take();
    let told = with_text(&reports, "path is assumed bad");
    let mut of: Vec<_> =
        told.iter().map(|report| (report.get("ev").to_owned(), report.get("plane").to_owned())).collect();
    bad.sort();
    of.sort();
    assert!(bad.len() >= 4, "{bad:?}");
    assert_eq!(of, bad);
    for report in told {
        about_writer(&flow, report);
        assert_eq!((report.level, report.target), (Level::DEBUG, "spindrift::path"));
    }

    flow.net.outages.clear();
    flow.net.run_for(5_000 * MS);
    poll_paths(&mut flow);
    let reports = take();
    assert_eq!(with_text(&reports, "path is good again").len(), bad.len());
    assert_eq!(reports.len(), bad.len(), "{reports:#?}");
}

#[test]
fn ports_that_go_down_and_up_are_reported_on_both_sides() {
    listen();
    let mut flow = Flow::new(4, vec![Link::clean(5_000); 2], 16);
    flow.stream(10, 10_000, 2);
    take();
    let writer = address(true, WRITER, 0).to_string();
    for (up, texts, level) in [
        (false, ["port is down", "plane to a peer closed"], Level::WARN),
        (true, ["port is up", "plane to a peer opened"], Level::INFO),
    ] {
        let now = flow.net.now;
        flow.net.schedule_link(now.after(1_000), WRITER, 1, up);
        flow.net.run_for(20 * MS);
        let reports = take();
        let loud: Vec<_> = reports.iter().filter(|report| report.level <= Level::INFO).collect();
        assert_eq!([loud[0].text(), loud[1].text()], texts, "{reports:#?}");
        assert_eq!(loud.len(), 2, "{reports:#?}");
        assert!(loud.iter().all(|report| (report.level, report.get("plane")) == (level, "1")));
        assert_eq!((loud[0].get("peer"), loud[1].get("peer")), ("", writer.as_str()));
        let says = with_text(&reports, "port status update");
        assert_eq!((says.len(), says[0].get("mask")), (1, if up { "3" } else { "1" }));
    }
}

#[test]
fn every_timeout_and_the_end_of_all_retries_are_reported() {
    listen();
    let retry = RtsAttr { timeout: 9, linear_retries: 1, exponential_retries: 2, ..RtsAttr::default() };
    let mut flow = Flow::patient(5, vec![Link::clean(5_000)], 16, &retry);
    flow.write(64);
    take();
    let forever = Outage { from: Time::ZERO, to: Time::NEVER, plane: 0, sender: None, paths: 0 };
    flow.net.outages.push(forever);
    flow.post(64);
    flow.net
        .run_until(|net| net.take_events(WRITER).iter().any(|event| matches!(event, Event::QpFailed { .. })));
    let reports = take();
    let timeouts: Vec<_> = with_text(&reports, "retransmission timeout")
        .iter()
        .map(|report| {
            about_writer(&flow, report);
            (report.get("number").to_owned(), report.get("wait_ns").parse::<u64>().unwrap())
        })
        .collect();
    let first = retry.timeout_ns();
    let expected = [(1, first), (2, 2 * first), (3, 4 * first)].map(|(n, wait)| (format!("{n}"), wait));
    assert_eq!(timeouts, expected);
    let last = reports.last().unwrap();
    about_writer(&flow, last);
    assert_eq!((last.level, last.text()), (Level::ERROR, "queue pair failed"));
    assert_eq!(last.get("reason"), format!("{:?}", FailReason::RetryExceeded));
    let failure = flow.net.endpoint(WRITER).qp_failure(flow.ends[WRITER].qpn).unwrap();
    assert_eq!(last.get("psn"), failure.psn.unwrap().to_string());
    assert_eq!(last.get("ev"), failure.ev.unwrap().to_string());
    assert_eq!(last.get("plane"), "0");
}

#[test]
fn cuts_of_the_congestion_window_are_reported_once_a_round_trip() {
    listen();
    let nscc = |init: QpInit| {
        let mut cc = CcConfig::new(10_000_000_000, 10_000, 4096);
        cc.trimming = true;
        QpInit { cc, ..init }
    };
    let trims = Link { trim: 1_000, ..Link::clean(5_000) };
    let mut flow = Flow::with(2, vec![trims], 32, nscc);
    take();
    let start = flow.net.now;
    flow.stream(10, 100_000, 2);
    let reports = take();
    let cuts = with_text(&reports, "congestion window cut");
    assert!(!cuts.is_empty());
    for cut in &cuts {
        assert_eq!(cut.get("qpn"), flow.ends[WRITER].qpn.to_string());
        assert_eq!((cut.target, cut.level), ("spindrift::congestion", Level::DEBUG));
        assert_eq!(cut.get("reason"), "\"quick adaptation\"");
        let [before, after] =
            ["before_bytes", "cwnd_bytes"].map(|name| cut.get(name).parse::<u64>().unwrap());
        assert!(after <= before && after >= 4096, "{cut:?}");
    }
    let round_trips = flow.net.now.since(start) / 10_000;
    assert!(cuts.len() as u64 <= round_trips, "{} cuts in {round_trips} round trips", cuts.len());
}

#[test]
fn what_the_application_denies_and_allows_is_reported() {
    listen();
    let mut flow = Flow::new(6, vec![Link::clean(5_000); 2], 16);
    let qpn = flow.ends[WRITER].qpn;
    let EvStatus { ev, plane, .. } = flow.evs()[0];
    take();
    let endpoint = flow.net.endpoint(WRITER);
    endpoint.deny_ev(qpn, ev, Some(plane));
    endpoint.deny_ev(qpn, ev, Some(plane));
    endpoint.deny_plane(qpn, 1);
    endpoint.allow_ev(qpn, ev, Some(plane));
    endpoint.allow_plane(qpn, 1);
    endpoint.allow_plane(qpn, 1);
    let reports = take();
    let of: Vec<_> =
        reports.iter().map(|report| [report.text(), report.get("ev"), report.get("plane")]).collect();
    let (ev, plane) = (ev.to_string(), plane.to_string());
    assert_eq!(
        of,
        [
            ["path denied", &ev, &plane],
            ["path denied", "", "1"],
            ["path allowed", &ev, &plane],
            ["path allowed", "", "1"]
        ]
    );
    for report in &reports {
        about_writer(&flow, report);
    }
}
