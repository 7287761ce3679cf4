use super::*;
use crate::bench::samples::{PathSample, Sample};
use crate::figure::tests::{assert_drawn, has, lines_of};
use crate::lab::run::outcome::Effect;
use crate::lab::run::record::Side;
use crate::lab::run::recovery::Arrivals;
use crate::lab::run::traffic::Said;

fn flow(name: &str) -> FlowOutcome {
    FlowOutcome {
        name: name.to_owned(),
        hosts: ["a", "b"].map(str::to_owned),
        start_ms: 0.0,
        sender: Side::default(),
        receiver: Side::default(),
        arrivals: Arrivals::default(),
        baseline_bps: 1e9,
        verified: true,
        qp_errors: 0,
        fallback: crate::config::FallbackName::Seamless,
        said: Said { client: serde_json::Value::Null, server: serde_json::Value::Null },
    }
}

/// Samples at the edges of two steps of 10 ms. All counts are `scale` times what they are else.
fn side(scale: u64, planes: [PlaneSample; 2]) -> Side {
    let sample = |number: u64| Sample {
        losses: scale * 3 * number * number,
        tx_retransmits: scale * 5 * number,
        timeouts: scale * 7 * number,
        rx_ecn_marked: scale * 11 * number,
        rx_trimmed: scale * 13 * number,
        // The second path comes late.
        paths: [(0, 7), (1, 0x4000_0000)]
            .into_iter()
            .take(if number == 0 { 1 } else { 2 })
            .map(|(plane, ev)| PathSample {
                plane,
                ev,
                packets: scale * 13 * number * (u64::from(plane) + 1),
            })
            .collect(),
        planes: planes
            .map(|plane| PlaneSample { rx_bytes: scale * plane.rx_bytes * number, ..plane })
            .to_vec(),
        ..Sample::default()
    };
    Side { times_ms: vec![0.0, 10.0, 20.0], samples: (0..3).map(sample).collect(), evs: Vec::new() }
}

#[test]
fn panels_show_what_was_sampled() {
    let states = PlaneSample {
        up: true,
        good: 1,
        skip: 2,
        reserve: 3,
        assumed_bad: 4,
        denied: 5,
        ..Default::default()
    };
    let down = PlaneSample { up: false, good: 100, ..states };
    let rates = [12_500, 25_000].map(|rx_bytes| PlaneSample { rx_bytes, ..Default::default() });
    let mut flow = flow("a-b");
    (flow.sender, flow.receiver) = (side(1, [states, down]), side(100, rates));
    flow.arrivals.0 = [vec![1e6; 10], vec![2e6; 10]].concat();
    let steps = steps(&flow, 2, 25, 10);
    assert_eq!(steps.len(), 2, "a rest is left out");
    assert_eq!(steps[1].span_ms, 10..20);
    assert_eq!((steps[1].timeouts, steps[1].ecn_marked, steps[1].trimmed), (7.0, 1100.0, 1300.0));
    let possible = [(0.0, 3.0), (0.02, 3.0)];
    assert_eq!(
        lines_of(&goodput(&steps, &possible)),
        [("arrived", ARRIVED, vec![(0.005, 1.0), (0.015, 2.0)]), ("can pass", "black", possible.to_vec()),]
    );
    assert_eq!(
        lines_of(&of_planes(&steps)),
        [
            ("plane 0", LINES[0], vec![(0.005, 1.0), (0.015, 1.0)]),
            ("plane 1", LINES[1], vec![(0.005, 2.0), (0.015, 2.0)]),
        ]
    );
    let packets = losses(&steps, 10);
    assert_eq!(
        lines_of(&packets),
        [
            ("lost", LOST, vec![(0.005, 3.0), (0.015, 9.0)]),
            ("sent again", ARRIVED, vec![(0.005, 5.0), (0.015, 5.0)]),
        ]
    );
    assert_eq!(packets.label, "packets in 10 ms");
    let packets = of_paths(&steps, 10);
    assert_eq!(
        lines_of(&packets),
        [
            ("7 (0)", LINES[0], vec![(0.005, 13.0), (0.015, 13.0)]),
            ("0x40000000 (1)", LINES[1], vec![(0.005, 26.0), (0.015, 26.0)]),
        ]
    );
    assert_eq!(packets.label, "packets by EV in 10 ms");
    let states = super::states(&steps);
    let Content::StackedArea(area) = &states.content else { panic!("an area") };
    let first_two = |series: &Series| (series.key.name.clone(), series.values[0], series.values[1]);
    let of: Vec<_> = area.series.iter().map(first_two).collect();
    let of: Vec<_> = of.iter().map(|(name, first, second)| (name.as_str(), *first, *second)).collect();
    assert_eq!(
        of,
        [
            ("good", 1.0, 1.0),
            ("skipped once", 2.0, 2.0),
            ("in reserve", 3.0, 3.0),
            ("assumed bad", 4.0, 4.0),
            ("denied", 5.0, 5.0),
            ("own port down", 114.0, 114.0),
        ]
    );
    assert_eq!(area.x, [0.005, 0.015]);
}

fn event(at_ms: f64, kind: EventKind, flow: &str, possible_gbps: f64) -> EventOutcome {
    let effect = Effect {
        flow: flow.to_owned(),
        possible_gbps,
        not_judged: None,
        recovery_ms: None,
        below_ms: None,
        longest_gap_ms: 0.0,
        least_gbps: 0.0,
        mean_gbps: 0.0,
        losses: 0,
        retransmits: 0,
    };
    let what = vec![format!("{kind:?}")];
    EventOutcome { at_ms, kind, took_ms: 0.0, what, goal_ms: None, silent: false, flows: vec![effect] }
}

#[test]
fn what_can_pass_changes_with_the_events_of_a_flow() {
    let mut flow = flow("a-b");
    (flow.start_ms, flow.baseline_bps) = (500.0, 4e9);
    let events = vec![
        event(1000.0, EventKind::Fault, "a-b", 2.0),
        event(1500.0, EventKind::Flow, "b-a", 9.0),
        event(2000.0, EventKind::Repair, "a-b", 3.0),
    ];
    let outcome = Outcome { flows: Vec::new(), events, agents: Vec::new() };
    assert_eq!(
        possible(&flow, &outcome, 4000.0),
        [(0.5, 4.0), (1.0, 4.0), (1.0, 2.0), (2.0, 2.0), (2.0, 3.0), (4.0, 3.0)]
    );
    let marks = outcome.events.iter().map(mark).collect::<Vec<_>>();
    let marks = marks.iter().map(|mark| (mark.at, mark.color, mark.description.as_str())).collect::<Vec<_>>();
    assert_eq!(
        marks,
        [
            (1.0, FAULT, "at 1.000 s, Fault"),
            (1.5, FLOW, "at 1.500 s, Flow"),
            (2.0, REPAIR, "at 2.000 s, Repair")
        ]
    );
}

/// Where there are more paths than can be told apart, none is drawn.
#[test]
fn few_paths_are_drawn_one_by_one() {
    let path = |ev| PathSample { plane: 0, ev, packets: 1 };
    let step = |paths: u32| Step {
        span_ms: 0..10,
        bps: 0.0,
        losses: 0.0,
        retransmits: 0.0,
        timeouts: 0.0,
        ecn_marked: 0.0,
        trimmed: 0.0,
        sender: None,
        planes: Vec::new(),
        paths: (0..paths).map(path).collect(),
    };
    let drawn = [0, 1, 8, 9].map(|paths| lines_of(&of_paths(&[step(paths)], 10)).len());
    assert_eq!(drawn, [0, 1, 8, 0]);
}

#[test]
fn long_scenarios_have_longer_steps() {
    assert_eq!([1000, 10_000, 10_001, 20_000, 60_000].map(step_ms), [10, 10, 20, 20, 60]);
}

/// Many flows and planes, flows of which nothing is known, and times without an event.
#[test]
fn everything_can_be_drawn() {
    for (planes, flows) in [(1, 1), (8, 2), (32, 5)] {
        let outcome = Outcome {
            flows: (0..flows).map(|number| flow(&format!("f{number}"))).collect(),
            events: vec![event(100.0, EventKind::Fault, "f0", 0.0)],
            agents: Vec::new(),
        };
        let picture = draw("Much & <little>", planes, 1000, &outcome);
        let last = format!("plane {}", planes - 1);
        let parts = ["Much & <little>", "flow f0", "plane 0", &last, "1: at 0.100 s, Fault"];
        assert_drawn(&picture, &parts);
    }
}

/// The agents of both ends are in a flow's column, and no other's.
#[test]
fn what_agents_found_shows_beside_the_flows_of_their_hosts() {
    let log = |host: &str, at_ms: f64| AgentLog {
        host: host.to_owned(),
        events: vec![AgentEvent { at_ms, event: "denied".to_owned(), what: "plane 1".to_owned() }],
        counts: vec![
            ProbeCounts { at_ms: -50.0, planes: vec![(9, 9), (9, 9)] },
            ProbeCounts { at_ms: 50.0, planes: vec![(8, 0), (8, 2)] },
            ProbeCounts { at_ms: 100.0, planes: vec![(0, 0), (4, 4)] },
            ProbeCounts { at_ms: 1_001.0, planes: vec![(9, 9), (9, 9)] },
        ],
    };
    let panel = probes(Some(&log("b", 0.0)), 2, 1_000.0);
    assert_eq!(panel.label, "probes of b lost, %");
    assert_eq!(
        lines_of(&panel),
        [("plane 0", LINES[0], vec![(0.05, 0.0)]), ("plane 1", LINES[1], vec![(0.05, 25.0), (0.1, 100.0)]),]
    );
    let agents = vec![log("b", 200.0), log("c", 300.0)];
    let picture = draw("T", 2, 1_000, &Outcome { flows: vec![flow("a-b")], events: Vec::new(), agents });
    assert_drawn(&picture, &["1: at 0.200 s, agent of b: denied, plane 1", "probes of b lost, %"]);
    assert!(!has(&picture, "of c"));
}
