//! What is denied, when, and how much at most.

use std::collections::BTreeSet;

use spindrift_agent::policy::{Decision, Deny, Policy, PolicySettings, denied_share};
use spindrift_agent::{Component, Count, Evidence, Fault, Finding, Window};
use spindrift_srv6::{Fabric, Node};

use crate::lab::{Break, Lab, MS, fabric, t0, t1};

fn finding(components: &[Component], rate: f64) -> Finding {
    let fault = if rate < 1.0 { Fault::Lossy { rate } } else { Fault::Down };
    let (through, beside) = (Count::default(), Count::default());
    let evidence = Evidence { window: Window::Second, through, beside, paths: 1, agents: 1 };
    Finding { components: components.to_vec(), fault, confidence: 1.0, evidence, since_ns: 0 }
}

fn upper(t0_number: u16, t1_number: u16) -> Component {
    Component::Link((t0(0, t0_number), t1(0, t1_number)))
}

fn port(fabric: &Fabric, host: u16, plane: u8) -> Component {
    Component::Link((Node::Host(host), t0(plane, fabric.hosts()[usize::from(host)].t0)))
}

fn policy(settings: PolicySettings) -> Policy {
    Policy::new(0, settings).unwrap()
}

const DENIED: Deny =
    Deny::Component(Component::Link((Node::T0 { plane: 0, number: 0 }, Node::T1 { plane: 0, number: 1 })));

/// Loss over 1 % for 50 ms denies; loss below 0.5 % for 10 s allows; what is in between changes nothing.
#[test]
fn loss_and_time_decide() {
    let fabric = fabric((4, 4, 4), (1, 0), 2);
    let mut policy = policy(PolicySettings::default());
    let mut at = |ms: u64, rate: f64| policy.update(ms * MS, &fabric, &[finding(&[upper(0, 1)], rate)]);
    assert_eq!(at(0, 0.009), []);
    assert_eq!(at(100, 0.01), []);
    assert_eq!(at(149, 0.01), []);
    // It was better for a moment: the time starts again.
    assert_eq!(at(150, 0.0099), []);
    assert_eq!(at(160, 0.02), []);
    assert_eq!(at(209, 0.02), []);
    assert_eq!(at(210, 0.02), [Decision::Deny(DENIED)]);
    assert_eq!(at(300, 0.02), []);
    assert_eq!(at(1_000, 0.004), []);
    assert_eq!(at(10_999, 0.004), []);
    // Not well any more, though not bad enough to be denied.
    assert_eq!(at(11_000, 0.005), []);
    assert_eq!(at(11_001, 0.004), []);
    assert_eq!(policy.denied(&fabric), [DENIED]);
    // At fault no more is well.
    assert_eq!(policy.update(21_000 * MS, &fabric, &[]), []);
    assert_eq!(policy.update(21_001 * MS, &fabric, &[]), [Decision::Allow(DENIED)]);
    assert_eq!(policy.denied(&fabric), []);
    // And from the start.
    let found = [finding(&[upper(0, 1)], 1.0)];
    assert_eq!(policy.update(21_010 * MS, &fabric, &found), []);
    assert_eq!(policy.update(21_060 * MS, &fabric, &found), [Decision::Deny(DENIED)]);
}

#[test]
fn a_dry_run_decides_and_denies_nothing() {
    let fabric = fabric((4, 4, 4), (1, 0), 2);
    let mut policy = policy(PolicySettings { dry_run: true, deny_after_ms: 0, ..PolicySettings::default() });
    let decisions = policy.update(0, &fabric, &[finding(&[upper(0, 1)], 1.0)]);
    assert_eq!(decisions, [Decision::Deny(DENIED)]);
    assert_eq!((policy.denied(&fabric), policy.would_deny(&fabric)), (vec![], vec![DENIED]));
}

/// Of components that cannot be told apart, the link: the same probes cross it, and fewer paths.
#[test]
fn entries_are_as_narrow_as_they_can_be() {
    let fabric = fabric((4, 4, 4), (1, 0), 2);
    let own = |plane| Component::Node(t0(plane, 0));
    let far = Component::Node(t0(1, 3));
    for (components, want) in [
        (vec![upper(0, 1), Component::Node(t1(0, 1))], DENIED),
        (vec![Component::Node(t1(0, 1))], Deny::Component(Component::Node(t1(0, 1)))),
        (vec![port(&fabric, 0, 2), own(2)], Deny::Plane(2)),
        (vec![own(3)], Deny::Plane(3)),
        // Of other hosts.
        (vec![port(&fabric, 1, 2)], Deny::Component(port(&fabric, 1, 2))),
        (vec![far], Deny::Component(far)),
    ] {
        let mut policy = policy(PolicySettings { deny_after_ms: 0, ..PolicySettings::default() });
        let decisions = policy.update(0, &fabric, &[finding(&components, 1.0)]);
        assert_eq!(decisions, [Decision::Deny(want)], "{components:?}");
    }
}

/// Half of the paths at most: of four planes two, the worst ones; the next one follows when one of these is allowed.
#[test]
fn no_more_is_denied_than_may_be() {
    let fabric = fabric((4, 4, 4), (1, 0), 2);
    let settings = PolicySettings { deny_after_ms: 0, allow_after_ms: 100, ..PolicySettings::default() };
    let mut policy = policy(settings);
    let rates = [0.2, 0.5, 0.1, 1.0];
    let found = |planes: &[u8]| -> Vec<Finding> {
        planes.iter().map(|&plane| finding(&[port(&fabric, 0, plane)], rates[usize::from(plane)])).collect()
    };
    let decisions = policy.update(0, &fabric, &found(&[0, 1, 2, 3]));
    let [three, one, zero, two] = [3, 1, 0, 2].map(Deny::Plane);
    assert_eq!(
        decisions,
        [Decision::Deny(three), Decision::Deny(one), Decision::TooMany(zero), Decision::TooMany(two)]
    );
    // It is said once.
    assert_eq!(policy.update(MS, &fabric, &found(&[0, 1, 2, 3])), []);
    assert_eq!(policy.denied(&fabric), [one, three]);
    // Plane 1 heals, and plane 0 takes its place; plane 2 heals by itself, which nobody need know.
    assert_eq!(policy.update(2 * MS, &fabric, &found(&[0, 3])), []);
    assert_eq!(
        policy.update(102 * MS, &fabric, &found(&[0, 3])),
        [Decision::Allow(one), Decision::Deny(zero)]
    );
    assert_eq!(policy.denied(&fabric), [zero, three]);
    assert_eq!(policy.update(103 * MS, &fabric, &found(&[0, 2, 3])), [Decision::TooMany(two)]);
}

/// A host is never cut off, whatever is found: neither this one nor another.
#[test]
fn a_whole_host_is_never_denied() {
    for (shape, component) in [
        ((1, 2, 2), Component::Link((Node::Host(0), t0(0, 0)))),
        ((1, 2, 2), Component::Link((Node::Host(3), t0(0, 1)))),
        ((1, 2, 2), Component::Node(t0(0, 1))),
        ((2, 2, 2), Component::Node(Node::Host(0))),
        ((2, 2, 2), Component::Node(Node::Host(3))),
        ((1, 2, 1), Component::Node(t1(0, 0))),
        ((1, 2, 0), Component::Link((t0(0, 0), t0(0, 1)))),
    ] {
        let fabric = fabric(shape, (1, 0), 2);
        let settings = PolicySettings { deny_after_ms: 0, max_denied: 0.9, ..PolicySettings::default() };
        let mut policy = policy(settings);
        let decisions = policy.update(0, &fabric, &[finding(&[component], 1.0)]);
        assert!(matches!(decisions[..], [Decision::TooMany(_)]), "{component:?}: {decisions:?}");
        assert_eq!(policy.denied(&fabric), []);
    }
}

#[test]
fn the_share_is_that_of_the_worst_destination() {
    let share = |fabric: &Fabric, denied: &[Component]| {
        denied_share(fabric, 0, &denied.iter().copied().collect::<BTreeSet<_>>())
    };
    let is = |share: f64, want: f64| assert!((share - want).abs() < 1e-9, "{share}, expected {want}");
    let fabric = fabric((2, 4, 4), (1, 0), 2);
    is(share(&fabric, &[]), 0.0);
    // Of 2 planes × 4 uplinks: one; one at each end, of which the other end's counts for its hosts alone.
    is(share(&fabric, &[upper(0, 1)]), 1.0 / 8.0);
    is(share(&fabric, &[upper(2, 1)]), 1.0 / 8.0);
    is(share(&fabric, &[upper(0, 1), upper(2, 1)]), 1.0 / 8.0);
    is(share(&fabric, &[upper(0, 1), upper(2, 3)]), 2.0 / 8.0);
    is(share(&fabric, &[upper(1, 1), upper(2, 3)]), 1.0 / 8.0);
    is(share(&fabric, &[Component::Node(t1(0, 1)), upper(2, 3)]), 2.0 / 8.0);
    is(share(&fabric, &[port(&fabric, 0, 1)]), 0.5);
    // To the host beside it, to hosts elsewhere.
    is(share(&fabric, &[port(&fabric, 1, 0)]), 0.5);
    is(share(&fabric, &[port(&fabric, 7, 0)]), 0.5);
    is(share(&fabric, &[port(&fabric, 0, 1), port(&fabric, 7, 0)]), 1.0);
    is(share(&fabric, &[Component::Node(t0(1, 0)), Component::Node(t0(0, 3))]), 1.0);
    // Between pods: 3 T2 switches at each of 2 T1 switches.
    let pods = crate::lab::fabric((1, 4, 2), (2, 3), 1);
    let t2 = |number| Node::T2 { plane: 0, number };
    is(share(&pods, &[Component::Link((t1(0, 0), t2(0)))]), 1.0 / 6.0);
    is(share(&pods, &[Component::Link((t1(0, 2), t2(0)))]), 1.0 / 6.0);
    is(share(&pods, &[Component::Link((t1(0, 0), t2(0))), Component::Link((t1(0, 3), t2(3)))]), 2.0 / 6.0);
    is(share(&pods, &[Component::Node(t2(5))]), 1.0 / 6.0);
    is(share(&pods, &[Component::Node(t1(0, 3))]), 0.5);
    // A host of its own.
    is(share(&crate::lab::fabric((1, 1, 0), (1, 0), 1), &[Component::Node(t0(0, 0))]), 0.0);
}

#[test]
fn settings_are_read_and_checked() {
    let read = |text: &str| toml::from_str::<PolicySettings>(text);
    assert_eq!(read(""), Ok(PolicySettings::default()));
    assert_eq!(PolicySettings::default().check(), Ok(()));
    let settings = read("dry_run = true\ndeny_loss = 0.02\nmax_denied = 0.25").unwrap();
    let want =
        PolicySettings { dry_run: true, deny_loss: 0.02, max_denied: 0.25, ..PolicySettings::default() };
    assert_eq!(settings, want);
    let error = read("deny_los = 0.02").unwrap_err().to_string();
    assert!(error.contains("unknown field `deny_los`") && error.contains("`deny_loss`"), "{error}");
    for (text, part) in [
        ("deny_loss = 0.0", "deny_loss = 0: must be above 0, up to 1; write 0.01 for 1 %"),
        ("deny_loss = 1.1", "deny_loss = 1.1"),
        ("deny_loss = nan", "deny_loss = NaN"),
        ("allow_loss = 0.01", "allow_loss = 0.01: must be above 0 and less than deny_loss, which is 0.01"),
        ("allow_loss = 0.0", "allow_loss = 0"),
        ("deny_after_ms = 3600001", "deny_after_ms = 3600001: must be at most 3600000, an hour"),
        ("allow_after_ms = 86400001", "allow_after_ms = 86400001: must be at most 86400000, a day"),
        ("max_denied = 0.91", "max_denied = 0.91: must be above 0, up to 0.9"),
        ("max_denied = 0.0", "max_denied = 0"),
    ] {
        let error = Policy::new(0, read(text).unwrap()).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    let limits = "deny_after_ms = 3600000\nallow_after_ms = 86400000\nmax_denied = 0.9\ndeny_loss = 1.0";
    assert_eq!(read(limits).unwrap().check(), Ok(()));
}

/// MRC paper, section 4: a host's link that loses 2 % is a case for the deny list.
#[test]
fn a_gray_link_of_a_host_denies_its_plane() {
    let mut lab = Lab::new(fabric((2, 2, 2), (1, 0), 2), 21);
    let link = (Node::Host(0), t0(1, 0));
    let mut policy = policy(PolicySettings::default());
    let mut decided = Vec::new();
    let mut run = |lab: &mut Lab, policy: &mut Policy, ms: u64| {
        for _ in 0..ms / 10 {
            lab.run(10 * MS);
            let decisions = policy.update(lab.now_ns, &lab.fabric, lab.locator.findings());
            decided.extend(decisions.into_iter().map(|decision| (lab.now_ns / MS, decision)));
        }
    };
    lab.breaks = vec![Break::Gray(link, 0.01)];
    run(&mut lab, &mut policy, 10_000);
    assert_eq!(policy.denied(&lab.fabric), [Deny::Plane(1)]);
    lab.breaks.clear();
    run(&mut lab, &mut policy, 14_000);
    assert_eq!(policy.denied(&lab.fabric), []);
    let [(denied_ms, Decision::Deny(_)), (allowed_ms, Decision::Allow(_))] = decided[..] else {
        panic!("{decided:?}{}", lab.words());
    };
    assert!(denied_ms < 10_000 && (20_000..24_000).contains(&allowed_ms), "{decided:?}");
}
