//! Reports of several agents, and findings in words.

use proptest::prelude::*;
use spindrift_agent::{
    Agent, AgentError, AgentSettings, Change, Component, Count, Evidence, Fault, Finding, LocateSettings,
    Locator, Path, PathReport, Report, View, Window,
};
use spindrift_srv6::{Fabric, Node};

use crate::lab::{fabric, plans, t0, t1};

/// What all agents report if so many of the probes of a path are lost.
fn reports(fabric: &Fabric, lost: impl Fn(Path) -> u32) -> Vec<Report> {
    let report = |plan: spindrift_agent::Plan| {
        let paths = plan.routes().map(|route| {
            let count = Count { sent: 1_000, lost: lost(route.path) };
            PathReport { top: route.path.top, counts: [count; 4] }
        });
        Report { host: plan.host(), running_ns: 20_000_000_000, paths: paths.collect() }
    };
    plans(fabric).into_iter().map(report).collect()
}

fn judge(fabric: &Fabric, reports: &[Report]) -> Vec<Finding> {
    let mut locator = Locator::new(LocateSettings::default());
    let view = View::new(reports);
    locator.update(0, fabric, &view);
    locator.update(1, fabric, &view);
    locator.findings().to_vec()
}

#[test]
fn one_agent_has_one_report() {
    let fabric = fabric((1, 2, 2), (1, 0), 2);
    let reports = reports(&fabric, |_| 7);
    let mut view = View::new(&reports);
    assert_eq!(view.unprobed(&fabric), []);
    let path = Path { host: 0, top: t0(0, 0) };
    assert_eq!(view.count(path, Window::Fast), Count { sent: 1_000, lost: 7 });
    assert_eq!(view.counts(Window::Second).filter(|(at, _)| at.host == 0).count(), 3);
    // A newer report takes the place of the older one, with all its paths.
    view.insert(&Report { host: 0, running_ns: 0, paths: vec![] });
    assert_eq!(view.count(path, Window::Fast), Count::default());
    assert_eq!(view.unprobed(&fabric), [(Node::Host(0), t0(0, 0))]);
    view.remove(1);
    let unprobed = view.unprobed(&fabric);
    assert_eq!(unprobed.len(), 4, "two ports, and both links of their switch: {unprobed:?}");
    assert!(unprobed.contains(&(t0(0, 0), t1(0, 1))));
}

#[test]
fn the_word_of_one_agent_against_another() {
    let fabric = fabric((1, 2, 2), (1, 0), 2);
    let link = (t0(0, 0), t1(0, 0));
    let is_on = |path: Path| path.link(&fabric) == Some(link);
    // Both agents of the link lose all: the link.
    let all = |path| if is_on(path) { 1_000 } else { 0 };
    let found = judge(&fabric, &reports(&fabric, all));
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].components.clone(), found[0].fault), (vec![Component::Link(link)], Fault::Down));
    // One loses all and the other nothing: whatever it is, it is no component that both cross, and of the others there is none.
    let one = |path: Path| if is_on(path) && path.host == 0 { 1_000 } else { 0 };
    assert_eq!(judge(&fabric, &reports(&fabric, one)), []);
}

/// A link of one path, 30 probes long: nine lost ones are too few, whatever the rate, and so are 19 probes.
#[test]
fn too_few_probes_accuse_nothing() {
    let fabric = fabric((1, 1, 3), (1, 0), 1);
    for (sent, lost, found) in [(30, 9, 0), (30, 10, 1), (19, 19, 0), (20, 20, 1)] {
        let mut reports = reports(&fabric, |_| 0);
        for path in
            reports.iter_mut().flat_map(|report| &mut report.paths).filter(|path| path.top == t1(0, 1))
        {
            path.counts = [Count { sent, lost }; 4];
        }
        assert_eq!(judge(&fabric, &reports).len(), found, "{lost} of {sent}");
    }
}

/// 2.5 % loss at a port in one second of probes may be a burst of congestion; in ten seconds, or between switches, it is not.
#[test]
fn a_young_agent_accuses_no_port_of_a_burst() {
    let fabric = fabric((1, 2, 2), (1, 0), 2);
    let port = |path: Path| if path.host == 0 { 25 } else { 0 };
    let link = |path: Path| if path.link(&fabric) == Some((t0(0, 0), t1(0, 0))) { 25 } else { 0 };
    let found = |mut reports: Vec<Report>, seconds: u64| {
        for report in &mut reports {
            report.running_ns = seconds * 1_000_000_000;
            for count in report.paths.iter_mut().flat_map(|path| &mut path.counts) {
                *count = Count { sent: 10 * count.sent, lost: 10 * count.lost };
            }
        }
        judge(&fabric, &reports).len()
    };
    assert_eq!([1, 3, 6, 10].map(|seconds| found(reports(&fabric, port), seconds)), [0, 0, 1, 1]);
    assert_eq!(found(reports(&fabric, link), 1), 1);
}

/// Agents that fall silent take nothing back at once: their finding closes after 20 updates that do not name it.
#[test]
fn what_is_no_more_named_closes_after_a_while() {
    let fabric = fabric((1, 2, 2), (1, 0), 2);
    let link = (t0(0, 0), t1(0, 0));
    let reports = reports(&fabric, |path| if path.link(&fabric) == Some(link) { 1_000 } else { 0 });
    let mut locator = Locator::new(LocateSettings::default());
    let view = View::new(&reports);
    assert_eq!(locator.update(0, &fabric, &view), []);
    assert!(matches!(&locator.update(1, &fabric, &view)[..], [Change::Opened(_)]));
    for now_ns in 2..21 {
        assert_eq!(locator.update(now_ns, &fabric, &View::default()), []);
        assert_eq!(locator.findings().len(), 1);
    }
    // Named again, the count starts again.
    assert_eq!(locator.update(21, &fabric, &view), []);
    for now_ns in 22..41 {
        assert_eq!(locator.update(now_ns, &fabric, &View::default()), []);
    }
    let closed = locator.update(41, &fabric, &View::default());
    assert!(
        matches!(&closed[..], [Change::Closed(finding)] if finding.components == [Component::Link(link)])
    );
    assert_eq!(locator.findings(), []);
}

/// Loss that was in the last ten seconds and not in the last one has ended.
#[test]
fn what_is_over_is_not_accused() {
    let fabric = fabric((1, 2, 2), (1, 0), 2);
    let link = |path: Path| if path.link(&fabric) == Some((t0(0, 0), t1(0, 0))) { 30 } else { 0 };
    let mut reports = reports(&fabric, link);
    assert_eq!(judge(&fabric, &reports).len(), 1);
    for path in reports.iter_mut().flat_map(|report| &mut report.paths) {
        path.counts[1].lost = 0;
    }
    assert_eq!(judge(&fabric, &reports), []);
}

/// Ports of a host in two planes, of which one has too few probes to be named by itself: it may be the NIC, unless the T0 switch explains it there.
#[test]
fn a_port_is_not_named_while_it_may_be_the_nic() {
    let fabric = fabric((2, 2, 2), (1, 0), 2);
    let with = |host_1_sees: u32, few_lost: u32| {
        let mut reports = reports(&fabric, |path| match (path.host, path.plane()) {
            (0, Some(0)) => 1_000,
            (1, Some(1)) => host_1_sees,
            _ => 0,
        });
        for path in reports[0].paths.iter_mut().filter(|path| path.top.plane() == Some(1)) {
            path.counts = [Count { sent: 3, lost: few_lost }; 4];
        }
        judge(&fabric, &reports).into_iter().map(|finding| finding.components).collect::<Vec<_>>()
    };
    let port = vec![Component::Link((Node::Host(0), t0(0, 0)))];
    assert_eq!(with(0, 3), Vec::<Vec<Component>>::new());
    assert_eq!(with(0, 0), std::slice::from_ref(&port));
    assert_eq!(with(1_000, 3), [port, vec![Component::Node(t0(1, 0))]]);
}

/// The plane that an agent's share lacks is no evidence; nor is an agent that does not report.
#[test]
fn who_does_not_report_is_not_accused() {
    let fabric = fabric((2, 2, 2), (1, 0), 2);
    let reports = reports(&fabric, |_| 0);
    assert_eq!(judge(&fabric, &reports[1..]), []);
    assert_eq!(judge(&fabric, &[]), []);
}

fn finding(components: Vec<Component>, fault: Fault, (window, beside): (Window, Count)) -> Finding {
    let through = Count { sent: 2_000, lost: 50 };
    let evidence = Evidence { window, through, beside, paths: 1, agents: 1 };
    Finding { components, fault, confidence: 0.999_999, evidence, since_ns: 0 }
}

#[test]
fn findings_are_plain_sentences() {
    let fabric = fabric((2, 2, 2), (1, 0), 2);
    let (switch, host) = (Component::Node(t1(1, 0)), Component::Node(Node::Host(3)));
    let port = Component::Link((Node::Host(3), t0(0, 1)));
    let beside = Count { sent: 300, lost: 1 };
    let text = |finding: Finding| finding.explain(&fabric);
    assert_eq!(
        text(finding(vec![switch], Fault::Lossy { rate: 0.012_34 }, (Window::TenSeconds, beside))),
        "The switch p1-t1-0 loses 1.23 % of all probes. In the last 10 s, 50 of 2000 probes over it were lost (1 path of 1 agent), \
         and 1 of 300 probes on this agent's other paths in the plane. Confidence: 99.99 %."
    );
    assert_eq!(
        text(finding(vec![host], Fault::Lossy { rate: 0.4 }, (Window::Second, Count::default()))),
        "The host h1-1 loses 40 % of all probes. In the last second, 50 of 2000 probes over it were lost (1 path of 1 agent). \
         Confidence: 99.99 %."
    );
    let several = text(finding(vec![port, host], Fault::Down, (Window::Fast, beside)));
    assert!(
        several.starts_with("One of these forwards nothing, and the probes cannot tell which: the link h1-1 - p0-t0-1, the host h1-1. In"),
        "{several}"
    );
}

#[test]
fn settings_of_an_agent_are_checked() {
    let fabric = fabric((1, 2, 2), (1, 0), 2);
    let agent = |settings| Agent::new(&fabric, 0, None, settings, ([0; 32], 0)).map(|_| ());
    let good = AgentSettings::default();
    assert_eq!(agent(good), Ok(()));
    let locate = good.locate;
    for (locate, part) in [
        (LocateSettings { noise: 0.0, ..locate }, "noise = 0: must be 0.000000001 to 0.01"),
        (LocateSettings { noise: f64::NAN, ..locate }, "noise = NaN"),
        (LocateSettings { switch_loss: 1e-4, ..locate }, "switch_loss = 0.0001: must be 0.0002 to 0.5"),
        (LocateSettings { host_loss: 0.6, ..locate }, "host_loss = 0.6"),
        (LocateSettings { certainty: 2.0, ..locate }, "certainty = 2: must be 3"),
        (LocateSettings { lead: 0.5, ..locate }, "lead = 0.5"),
        (LocateSettings { min_probes: 0, ..locate }, "min_probes = 0"),
        (LocateSettings { min_lost: 0, ..locate }, "min_lost = 0"),
        (LocateSettings { confirm: 0, ..locate }, "confirm = 0"),
        (LocateSettings { release: 0, ..locate }, "release = 0"),
    ] {
        let error = agent(AgentSettings { locate, ..good }).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    let mut probe = good;
    probe.probe.timeout_ns = 250_000_001;
    assert!(matches!(agent(probe), Err(AgentError::Probe(_))));
    assert!(matches!(Agent::new(&fabric, 4, None, good, ([0; 32], 0)), Err(AgentError::Plan(_))));
}

prop_compose! {
    fn any_report()(
        host in 0_u16..6,
        paths in proptest::collection::vec((0..4, 0_u8..3, 0_u16..6, any::<[(u32, u32); 4]>(), any::<u8>()), 0..12),
    ) -> Report {
        let paths = paths.into_iter().map(|(tier, plane, number, counts, small)| {
            let top = match tier {
                0 => Node::T0 { plane, number },
                1 => Node::T1 { plane, number },
                2 => Node::T2 { plane, number },
                _ => Node::Host(number),
            };
            let counts = counts.map(|(sent, lost)| Count { sent: sent >> (small % 32), lost: lost >> (small % 32) });
            PathReport { top, counts }
        });
        Report { host, running_ns: u64::from(host) << 32, paths: paths.collect() }
    }
}

proptest! {
    /// Reports come from other machines: nothing in them does harm, and what is found in them is part of the fabric.
    #[test]
    fn any_reports_are_judged(reports in proptest::collection::vec(any_report(), 0..6)) {
        for fabric in [fabric((2, 2, 2), (1, 0), 2), fabric((1, 4, 2), (2, 2), 1), fabric((2, 2, 0), (1, 0), 2)] {
            for finding in judge(&fabric, &reports) {
                prop_assert!(!finding.components.is_empty());
                prop_assert!((0.9..=1.0).contains(&finding.confidence), "{finding:?}");
                prop_assert!((0.003..=1.0).contains(&finding.fault.rate()), "{finding:?}");
                prop_assert!(finding.explain(&fabric).ends_with(" %."));
                for component in finding.components {
                    let known = match component {
                        Component::Link((a, b)) => fabric.link(a, b) == Some((a, b)),
                        Component::Node(node) => fabric.nodes().any(|other| other == node),
                    };
                    prop_assert!(known, "{component:?}");
                }
            }
        }
    }
}
