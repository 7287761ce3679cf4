//! Two faults at the same time.

use std::collections::BTreeSet;

use spindrift_agent::{Component, Path};

use crate::faults::hard_faults;
use crate::lab::{Break, Lab, MS, fabric, t0, t1};

/// What two faults should be called: each by itself; only the wider one if it hides the other; and what looks like something else by its probes
/// is that.
fn acceptable(lab: &Lab, components: [Component; 2]) -> Vec<Vec<Vec<Component>>> {
    let paths = |component: Component| -> BTreeSet<Path> { lab.crossing(component).into_iter().collect() };
    let [a, b] = components.map(|component| lab.alike(component));
    let (of_a, of_b) = (paths(components[0]), paths(components[1]));
    let mut all = vec![vec![a.clone(), b.clone()]];
    if of_a.is_superset(&of_b) {
        all.push(vec![a.clone()]);
    }
    if of_b.is_superset(&of_a) {
        all.push(vec![b.clone()]);
    }
    // One component that explains both.
    let both: BTreeSet<Path> = of_a.union(&of_b).copied().collect();
    let one = lab.components().into_iter().find(|&component| paths(component) == both);
    all.extend(one.map(|component| vec![lab.alike(component)]));
    for set in &mut all {
        set.sort();
        set.dedup();
    }
    all
}

/// How many of `pairs` random pairs of hard faults have the right names after a second, and only these.
fn named(shape: ((u8, u16, u16), (u16, u16), u16), pairs: usize, seed: u64) -> usize {
    let mut right = 0;
    for pair in 0..pairs as u64 {
        let mut lab = Lab::new(fabric(shape.0, shape.1, shape.2), seed + pair);
        let faults: Vec<_> = hard_faults(&lab.fabric);
        let picked = [lab.below(faults.len()), lab.below(faults.len())].map(|at| faults[at]);
        lab.run(200 * MS);
        lab.breaks = picked.map(|(broken, _)| broken).into();
        lab.run(400 * MS);
        let acceptable = acceptable(&lab, picked.map(|(_, component)| component));
        if acceptable.contains(&lab.named()) {
            right += 1;
        } else {
            println!("seed {}: {picked:?}: {:?}{}", seed + pair, lab.named(), lab.words());
        }
    }
    println!("seed {seed}, {shape:?}: {right} of {pairs} pairs");
    right
}

#[test]
fn pairs_of_hard_faults() {
    let right = named(((2, 3, 3), (1, 0), 2), 60, 1_000);
    assert!(right * 100 >= 95 * 60, "{right} of 60");
}

#[test]
#[ignore = "slow: tools/check-all.sh"]
fn many_pairs_of_hard_faults() {
    for (shape, seed) in [
        (((1, 2, 2), (1, 0), 2), 10_000),
        (((4, 4, 4), (1, 0), 2), 20_000),
        (((1, 2, 2), (1, 0), 1), 30_000),
        (((2, 4, 2), (2, 2), 2), 40_000),
    ] {
        let right = named(shape, 200, seed);
        assert!(right * 100 >= 95 * 200, "{shape:?}: {right} of 200");
    }
}

/// Two links of one T1 switch of four are these two links, and not a lossy switch.
#[test]
fn two_links_of_a_switch_are_not_the_switch() {
    let mut lab = Lab::new(fabric((1, 4, 4), (1, 0), 2), 1);
    let links = [(t0(0, 0), t1(0, 2)), (t0(0, 3), t1(0, 2))];
    lab.run(200 * MS);
    lab.breaks = links.map(Break::Cut).into();
    lab.run(200 * MS);
    assert_eq!(lab.ever_named(), links.map(|link| vec![Component::Link(link)]), "{}", lab.words());
}

/// A gray link beside a host's link that loses as much.
#[test]
fn a_gray_link_is_seen_beside_a_lossy_host() {
    let mut lab = Lab::new(fabric((1, 2, 2), (1, 0), 3), 1);
    let (port, link) = ((spindrift_srv6::Node::Host(0), t0(0, 0)), (t0(0, 0), t1(0, 0)));
    lab.breaks = vec![Break::Gray(port, 0.01), Break::Gray(link, 0.01)];
    lab.run(10_000 * MS);
    assert_eq!(lab.named(), [vec![Component::Link(port)], vec![Component::Link(link)]], "{}", lab.words());
}

/// The same when a whole T1 switch fails beside a link of another one.
#[test]
fn a_link_is_seen_beside_a_dead_switch() {
    let mut lab = Lab::new(fabric((1, 4, 4), (1, 0), 2), 1);
    let link = (t0(0, 0), t1(0, 2));
    lab.run(200 * MS);
    lab.breaks = vec![Break::Silent(t1(0, 1)), Break::Cut(link)];
    lab.run(200 * MS);
    assert_eq!(
        lab.ever_named(),
        [vec![Component::Link(link)], vec![Component::Node(t1(0, 1))]],
        "{}",
        lab.words()
    );
}
