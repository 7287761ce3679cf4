//! What an endpoint reports, in virtual time.

use spindrift::congestion::{self, AckSample, CcAlgorithm, CcConfig, Flight};
use spindrift::endpoint::{Event, FailReason, QpInit, QpModify, RtsAttr};
use spindrift::path::{EvState, EvStatus};
use spindrift::time::Time;
use tracing::Level;

use crate::flow::{Flow, TARGET, WRITER};
use crate::listener::{Report, listen, take, with_text};
use crate::support::link::{Link, Outage};
use crate::support::net::address;

const MS: u64 = 1_000_000;

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

/// A flow over two planes that has carried data; what was reported until then is dropped.
fn two_planes(seed: u64) -> Flow {
    listen();
    let mut flow = Flow::new(seed, vec![Link::clean(5_000); 2], 16);
    flow.stream(10, 10_000, 2);
    take();
    flow
}

#[test]
fn ports_that_go_down_and_up_are_reported_on_both_sides() {
    let mut flow = two_planes(4);
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
        assert_eq!(flow.counters(TARGET).peer_port_changes, if up { 2 } else { 1 });
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
    // Which of two calls is reported does not show in what both brought.
    let endpoint = flow.net.endpoint(WRITER);
    for (denied, allowed) in [(1, 1), (0, 0)] {
        let EvStatus { ev, plane, .. } = endpoint.ev_states(qpn).unwrap().next().unwrap();
        if denied == 1 {
            endpoint.deny_ev(qpn, ev, Some(plane));
        }
        assert_eq!(take().len(), denied);
        endpoint.allow_ev(qpn, ev, Some(plane));
        assert_eq!(take().len(), allowed);
    }
}

/// What changes in RTS is no new state.
#[test]
fn changes_without_a_new_state_are_not_reported_as_one() {
    listen();
    let mut flow = Flow::new(11, vec![Link::clean(5_000)], 16);
    let (now, qpn) = (flow.net.now, flow.ends[WRITER].qpn);
    take();
    let endpoint = flow.net.endpoint(WRITER);
    endpoint.modify_qp(now, qpn, QpModify::Retry(RtsAttr::default().retry())).unwrap();
    assert!(take().is_empty());
}

/// The first report has the old number, the second the new one, which has no peer yet.
#[test]
fn a_reset_is_reported_with_both_numbers() {
    let mut flow = two_planes(12);
    let (now, qpn) = (flow.net.now, flow.ends[WRITER].qpn);
    let anew = flow.net.endpoint(WRITER).modify_qp(now, qpn, QpModify::Reset).unwrap();
    let reports = take();
    let texts: Vec<_> = reports.iter().map(Report::text).collect();
    assert_eq!(texts, ["queue pair reset", "queue pair changed its state"], "{reports:#?}");
    about_writer(&flow, &reports[0]);
    assert_eq!((reports[0].level, reports[0].target), (Level::INFO, "spindrift::qp"));
    assert_eq!([reports[1].get("qpn"), reports[1].get("state")], [&*anew.to_string(), "Reset"]);
    assert_eq!(reports[1].get("peer"), "");
}

/// A peer that hears nothing of a port that went down is reported once, when it is given up.
#[test]
fn a_peer_that_never_answers_is_reported() {
    let mut flow = two_planes(7);
    let deaf = Outage { from: Time::ZERO, to: Time::NEVER, plane: 0, sender: Some(WRITER), paths: 0 };
    flow.net.outages.push(deaf);
    let now = flow.net.now;
    flow.net.schedule_link(now.after(1_000), WRITER, 1, false);
    flow.net.run_for(120_000 * MS);
    let reports = take();
    let told = with_text(&reports, "peer never answered our port status update");
    assert_eq!(told.len(), 1, "{reports:#?}");
    assert_eq!((told[0].level, told[0].target), (Level::WARN, "spindrift::plane"));
    assert_eq!(told[0].get("peer"), address(true, TARGET, 0).to_string());
    assert_eq!(flow.counters(WRITER).tx_port_status_unheard, 1);
}

fn nscc() -> CcConfig {
    CcConfig { algorithm: CcAlgorithm::Nscc, ..CcConfig::new(10_000_000_000, 10_000, 4096) }
}

/// The first penalty of a row, with the window before it.
#[test]
fn a_penalty_of_the_receiver_is_reported_once() {
    listen();
    let mut cc = congestion::build(&nscc(), Time::ZERO).unwrap();
    let before = cc.cwnd();
    cc.on_send(&Flight { plane: 0, bytes: 8_192, sent_at: Time(0) });
    take();
    for time in [10_000, 20_000] {
        cc.on_ack(&AckSample { penalty: 64, ..AckSample::new(Time(time), 4_096) });
    }
    let reports = take();
    assert_eq!(reports.len(), 1, "{reports:#?}");
    assert_eq!(reports[0].get("reason"), "\"penalty of the receiver\"");
    assert_eq!(reports[0].get("before_bytes"), before.to_string());
}

/// At most one in a round trip.
#[test]
fn a_cut_for_marks_and_delay_is_reported_with_what_caused_it() {
    listen();
    let mut cc = congestion::build(&nscc(), Time::ZERO).unwrap();
    let mut cuts = 0;
    for n in 1..=100_u64 {
        cc.on_send(&Flight { plane: 0, bytes: 4_096, sent_at: Time(0) });
        let (before, time) = (cc.cwnd(), Time(2_500 * n));
        take();
        cc.on_ack(&AckSample { ecn: true, rtt_ns: Some(60_000), ..AckSample::new(time, 4_096) });
        let reports = take();
        // At its smallest it may have grown back by now.
        assert!(reports.len() <= 1, "{reports:#?}");
        assert!(reports.len() == 1 || cc.cwnd() >= before, "{before} {}", cc.cwnd());
        if let [report] = &reports[..] {
            assert_eq!(report.get("reason"), "\"marks and delay\"");
            assert_eq!(report.get("before_bytes"), before.to_string());
            // What was collected since the last adjustment is added after the cut.
            let after: u64 = report.get("cwnd_bytes").parse().unwrap();
            assert!((before / 2..=cc.cwnd()).contains(&after), "{before} {after} {}", cc.cwnd());
            let delay: u64 = report.get("delay_ns").parse().unwrap();
            assert!((1..=50_000).contains(&delay), "{delay}");
            cuts += 1;
        }
    }
    assert!((10..=20).contains(&cuts), "{cuts}");
}
