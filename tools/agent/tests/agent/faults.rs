//! Every kind of single fault, everywhere in small fabrics of every kind: the right component is named, and no other.

use spindrift_agent::{Change, Component, Fault};
use spindrift_srv6::{Fabric, Node};

use crate::lab::{Break, JUDGE_NS, Lab, MS, fabric, t0, t1};

/// What is wrong, with the component that should be named for it.
pub(crate) fn hard_faults(fabric: &Fabric) -> Vec<(Break, Component)> {
    let mut faults = Vec::new();
    for link in fabric.links() {
        let component = Component::Link(link);
        faults.push((Break::Cut(link), component));
        faults.push((Break::OneWay(link.0, link.1), component));
        faults.push((Break::OneWay(link.1, link.0), component));
        faults.push((Break::Corrupt(link, 1.0), component));
    }
    faults.extend(fabric.nodes().map(|node| (Break::Silent(node), Component::Node(node))));
    faults
}

fn gray_faults(fabric: &Fabric, loss: f64) -> Vec<(Break, Component)> {
    let links = fabric.links().flat_map(|link| {
        let component = Component::Link(link);
        [(Break::Gray(link, loss), component), (Break::Corrupt(link, loss), component)]
    });
    let switches = fabric.nodes().filter(|node| node.plane().is_some());
    links
        .chain(switches.map(|node| {
            // A T0 switch is crossed once by some probes, and its loss must be above that of congestion.
            let loss = if matches!(node, Node::T0 { .. }) { 2.0 * loss } else { loss };
            (Break::GraySwitch(node, loss), Component::Node(node))
        }))
        .collect()
}

/// How a fault was found.
pub(crate) struct Found {
    pub(crate) ms: u64,
    /// Probes over the component since it broke.
    pub(crate) probes: u64,
}

/// Breaks `lab`, and returns when exactly the component (or those that no probe tells apart from it) is named; nothing else may have been
/// named before.
fn find(lab: &mut Lab, (broken, component): (Break, Component), limit_ns: u64) -> Found {
    let expected = lab.alike(component);
    assert!(!expected.is_empty(), "{broken:?}: no probe crosses it");
    lab.breaks = vec![broken];
    let start_ns = lab.now_ns;
    let sent =
        |lab: &Lab| -> u64 { lab.crossing(component).iter().filter_map(|path| lab.sent.get(path)).sum() };
    let before = sent(lab);
    let found = lab.run_until(limit_ns, |lab| !lab.changes.is_empty());
    assert!(found, "{broken:?}: nothing was named");
    assert_eq!(lab.named(), std::slice::from_ref(&expected), "{broken:?}: {}", lab.words());
    let found = Found { ms: (lab.now_ns - start_ns) / MS, probes: sent(lab) - before };
    // It stays so, and ends soon after the fault.
    lab.run(100 * MS);
    assert_eq!(lab.named(), std::slice::from_ref(&expected), "{broken:?}: {}", lab.words());
    found
}

/// Ends the fault of `lab`; when nothing is named any more.
fn heal(lab: &mut Lab, limit_ns: u64) -> u64 {
    let start_ns = lab.now_ns;
    lab.breaks.clear();
    let healed = lab.run_until(limit_ns, |lab| lab.named().is_empty());
    assert!(healed, "{}", lab.words());
    lab.run(100 * MS);
    assert!(lab.named().is_empty(), "{}", lab.words());
    (lab.now_ns - start_ns) / MS - 100
}

#[derive(Default)]
struct Summary {
    times: Vec<u64>,
    probes: Vec<u64>,
    healed: Vec<u64>,
}

impl Summary {
    fn add(&mut self, found: &Found, healed: u64) {
        self.times.push(found.ms);
        self.probes.push(found.probes);
        self.healed.push(healed);
    }

    fn print(&mut self, what: &str) {
        let of = |numbers: &mut Vec<u64>| {
            numbers.sort_unstable();
            format!("{} / {}", numbers[numbers.len() / 2], numbers[numbers.len() - 1])
        };
        println!(
            "{what}: {} faults; median / worst: {} ms, {} probes, healed after {} ms",
            self.times.len(),
            of(&mut self.times),
            of(&mut self.probes),
            of(&mut self.healed),
        );
    }
}

/// Breaks and heals each of these in turn.
fn each_is_found(name: &str, fabric: &Fabric, faults: &[(Break, Component)], limits: (u64, u64)) {
    let mut summary = Summary::default();
    for (seed, &fault) in (0..).zip(faults) {
        println!("{name}, seed {seed}: {fault:?}");
        let mut lab = Lab::new(fabric.clone(), seed);
        // For gray faults the longest window is full of what was before.
        lab.run(if limits == HARD { 300 } else { 11_000 } * MS);
        assert_eq!(lab.ever_named(), Vec::<Vec<Component>>::new(), "before the fault");
        let found = find(&mut lab, fault, limits.0);
        let is_hard = matches!(fault.0, Break::Cut(_) | Break::OneWay(..) | Break::Silent(_));
        if is_hard {
            assert_eq!(lab.locator.findings()[0].fault, Fault::Down);
        }
        let healed = heal(&mut lab, limits.1);
        assert_eq!(lab.ever_named().len(), 1, "{}", lab.words());
        summary.add(&found, healed);
    }
    summary.print(name);
}

/// A hard fault is named in 100 ms, and no more named 100 ms after its end.
const HARD: (u64, u64) = (100 * MS, 100 * MS);

#[test]
fn hard_faults_of_two_tiers() {
    let fabric = fabric((1, 2, 2), (1, 0), 2);
    each_is_found("two tiers", &fabric, &hard_faults(&fabric), HARD);
}

#[test]
fn hard_faults_of_a_lone_agent_at_each_switch() {
    let fabric = fabric((1, 2, 2), (1, 0), 1);
    each_is_found("one host at each T0", &fabric, &hard_faults(&fabric), HARD);
}

#[test]
fn hard_faults_of_a_lone_switch() {
    for hosts in [1, 3] {
        let fabric = fabric((2, 1, 0), (1, 0), hosts);
        each_is_found("a lone T0", &fabric, &hard_faults(&fabric), HARD);
    }
}

#[test]
fn hard_faults_of_a_dumbbell() {
    let fabric = fabric((2, 2, 0), (1, 0), 2);
    each_is_found("a dumbbell", &fabric, &hard_faults(&fabric), HARD);
}

#[test]
fn hard_faults_of_three_tiers() {
    let fabric = fabric((1, 4, 2), (2, 2), 2);
    each_is_found("three tiers", &fabric, &hard_faults(&fabric), HARD);
}

#[test]
fn hard_faults_of_four_planes() {
    let fabric = fabric((4, 4, 4), (1, 0), 2);
    let ends = |node: Node| node.plane().is_none_or(|plane| plane == 0 || plane == 3);
    let faults: Vec<_> = hard_faults(&fabric)
        .into_iter()
        .filter(|(broken, component)| match *component {
            Component::Link((_, upper)) => upper.plane() == Some(3) && !matches!(broken, Break::Corrupt(..)),
            Component::Node(node) => ends(node),
        })
        .collect();
    each_is_found("four planes", &fabric, &faults, HARD);
}

/// A plane that is dead is all of its T0 switches; the other planes are fine. Where a T0 switch has one host, it may be that host's link.
#[test]
fn a_dead_plane_is_its_t0_switches() {
    for (hosts, planes) in [(2, 2), (1, 2), (2, 1)] {
        let mut lab = Lab::new(fabric((planes, 3, 2), (1, 0), hosts), 1);
        lab.run(300 * MS);
        lab.breaks = vec![Break::Plane(0)];
        assert!(lab.run_until(100 * MS, |lab| lab.named().len() == 3), "{}", lab.words());
        let mut expected: Vec<_> = (0..3).map(|number| lab.alike(Component::Node(t0(0, number)))).collect();
        expected.sort();
        assert_eq!(lab.ever_named(), expected, "{}", lab.words());
        assert!(expected.iter().all(|set| set.len() == if hosts == 1 { 2 } else { 1 }));
    }
}

/// With its own report alone, an agent names its host link or T0 switch, or the link above or the switch there: no more can be told.
#[test]
fn an_agent_alone_names_what_it_can_tell() {
    let fabric = fabric((2, 2, 2), (1, 0), 2);
    let down = t0(1, 0);
    let agents = |lab: &Lab| -> Vec<u16> {
        let crossing = lab.crossing(Component::Link((down, t1(1, 1))));
        crossing.iter().map(|path| path.host).collect()
    };
    for (broken, expected) in [
        (Break::Silent(down), vec![Component::Link((Node::Host(0), down)), Component::Node(down)]),
        (Break::Silent(t1(1, 1)), vec![Component::Link((down, t1(1, 1))), Component::Node(t1(1, 1))]),
        (Break::Silent(Node::Host(0)), vec![Component::Node(Node::Host(0))]),
    ] {
        let mut lab = Lab::new(fabric.clone(), 3);
        assert_eq!(agents(&lab), [0, 1]);
        lab.reporting = vec![0];
        lab.run(300 * MS);
        lab.breaks = vec![broken];
        lab.run(150 * MS);
        assert_eq!(lab.ever_named(), [expected], "{broken:?}: {}", lab.words());
    }
}

/// Packets that pass a link with a loss of 1 % in one direction: named within 10 s.
#[test]
fn gray_links_are_found_in_ten_seconds() {
    let fabric = fabric((1, 2, 2), (1, 0), 2);
    let link = (t0(0, 1), t1(0, 0));
    let faults = [
        (Break::Gray(link, 0.005), Component::Link(link)),
        (Break::Corrupt((t0(0, 0), t1(0, 1)), 0.01), Component::Link((t0(0, 0), t1(0, 1)))),
        (Break::GraySwitch(t1(0, 1), 0.01), Component::Node(t1(0, 1))),
        (Break::Gray((Node::Host(2), t0(0, 1)), 0.01), Component::Link((Node::Host(2), t0(0, 1)))),
    ];
    each_is_found("1 % loss", &fabric, &faults, (10_000 * MS, 10_000 * MS));
}

#[test]
#[ignore = "slow: tools/check-all.sh"]
fn gray_faults_everywhere() {
    for (name, fabric) in [
        ("two tiers", fabric((1, 2, 2), (1, 0), 2)),
        ("one host at each T0", fabric((1, 2, 2), (1, 0), 1)),
        ("a lone T0", fabric((2, 1, 0), (1, 0), 2)),
        ("a dumbbell", fabric((1, 2, 0), (1, 0), 2)),
        ("three tiers", fabric((1, 4, 2), (2, 2), 2)),
        ("four planes", fabric((4, 4, 4), (1, 0), 2)),
    ] {
        for loss in [0.01, 0.1] {
            let is_first = |component: &Component| match *component {
                Component::Link((_, upper)) => upper.plane() == Some(0),
                Component::Node(node) => node.plane() == Some(0),
            };
            let faults: Vec<_> =
                gray_faults(&fabric, loss).into_iter().filter(|(_, component)| is_first(component)).collect();
            each_is_found(&format!("{name}, loss {loss}"), &fabric, &faults, (10_000 * MS, 10_000 * MS));
        }
    }
}

/// The rate of a finding is that of the component: of both directions together for a link, and of one pass for a switch.
#[test]
fn the_rate_is_the_components() {
    let link = (t0(0, 1), t1(0, 0));
    for (broken, rate) in [
        (Break::Gray(link, 0.1), 0.19),
        (Break::GraySwitch(t1(0, 0), 0.1), 0.1),
        (Break::GraySwitch(t0(0, 1), 0.02), 0.02),
        (Break::Gray((Node::Host(2), t0(0, 1)), 0.05), 0.0975),
    ] {
        let mut lab = Lab::new(fabric((1, 2, 2), (1, 0), 2), 7);
        lab.breaks = vec![broken];
        lab.run(11_000 * MS);
        let [finding] = lab.locator.findings() else { panic!("{broken:?}: {}", lab.words()) };
        let found = finding.fault.rate();
        assert!((found / rate - 1.0).abs() < 0.2, "{broken:?}: {found}, expected {rate}");
        assert!(matches!(finding.fault, Fault::Lossy { .. }) && finding.confidence > 0.999);
    }
}

/// A finding says when it was named first, and keeps that as its numbers change.
#[test]
fn since_is_when_it_was_named_first() {
    let mut lab = Lab::new(fabric((1, 2, 2), (1, 0), 2), 5);
    lab.run(200 * MS);
    let broken_ns = lab.now_ns;
    lab.breaks = vec![Break::Cut((t0(0, 1), t1(0, 0)))];
    lab.run(1_000 * MS);
    let [(opened_ns, Change::Opened(first))] = &lab.changes[..] else { panic!("{}", lab.words()) };
    let now = &lab.locator.findings()[0];
    assert_eq!((now.since_ns, first.since_ns), (opened_ns - JUDGE_NS, opened_ns - JUDGE_NS));
    assert!(first.since_ns > broken_ns && now.evidence.through.lost >= first.evidence.through.lost);
    assert_eq!((now.evidence.paths, now.evidence.agents), (2, 2));
    assert_eq!((now.evidence.through.sent, now.evidence.through.lost), (100, 100));
    // Each of the two agents' T0 path, and their links to the other switch, which both have.
    assert_eq!((now.evidence.beside.sent, now.evidence.beside.lost), (200, 0));
    assert_eq!(
        now.explain(&lab.fabric),
        "The link p0-t0-1 - p0-t1-0 forwards nothing. In the last 50 ms, 100 of 100 probes over it were lost (2 paths of 2 agents), \
         and 0 of 200 probes on these agents' other paths in the plane. Confidence: 99.99 %."
    );
}
