//! Two faults at the same time.

use std::collections::BTreeSet;

use spindrift_agent::{Component, Path};

use crate::faults::hard_faults;
use crate::lab::{Break, Lab, MS, fabric, t0, t1};

/// How two faults were named.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Named {
    /// Each by itself; or only the wider one, which hides the other.
    Exactly,
    /// By other components, or with others, not more of them, that explain the same: no probe can tell these from the faults.
    Alike,
    Wrongly,
}

fn judge(lab: &Lab, components: [Component; 2]) -> Named {
    let paths = |component: Component| -> BTreeSet<Path> { lab.crossing(component).into_iter().collect() };
    let of = components.map(paths);
    let mut sets = components.map(|component| lab.alike(component)).to_vec();
    sets.sort();
    sets.dedup();
    let wider = usize::from(!of[0].is_superset(&of[1]));
    let hides = of[wider].is_superset(&of[1 - wider]);
    let named = lab.named();
    if named == sets || hides && named == [lab.alike(components[wider])] {
        return Named::Exactly;
    }
    let all: BTreeSet<Path> = of.iter().flatten().copied().collect();
    let explained: BTreeSet<Path> = named.iter().flatten().flat_map(|&component| paths(component)).collect();
    // Each set has a component that is wholly dark, and each path that is dark has a name.
    let is_dark = |set: &Vec<Component>| set.iter().any(|&component| paths(component).is_subset(&all));
    let is_alike = named.len() <= 2 && named.iter().all(is_dark) && explained.is_superset(&all);
    if is_alike { Named::Alike } else { Named::Wrongly }
}

/// How many of `pairs` random pairs of hard faults are named as well as can be after 0.4 s.
fn named(shape: ((u8, u16, u16), (u16, u16), u16), pairs: usize, seed: u64) -> usize {
    let (mut exactly, mut alike) = (0, 0);
    for pair in 0..pairs as u64 {
        let mut lab = Lab::new(fabric(shape.0, shape.1, shape.2), seed + pair);
        let faults: Vec<_> = hard_faults(&lab.fabric);
        let picked = [lab.below(faults.len()), lab.below(faults.len())].map(|at| faults[at]);
        lab.run(200 * MS);
        lab.breaks = picked.map(|(broken, _)| broken).into();
        lab.run(400 * MS);
        match judge(&lab, picked.map(|(_, component)| component)) {
            Named::Exactly => exactly += 1,
            Named::Alike => {
                alike += 1;
                println!("alike, seed {}: {picked:?}: {:?}", seed + pair, lab.named());
            }
            Named::Wrongly => println!("seed {}: {picked:?}: {:?}{}", seed + pair, lab.named(), lab.words()),
        }
    }
    println!("{shape:?}, seed {seed}: {exactly} exactly and {alike} alike of {pairs} pairs");
    exactly + alike
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

/// A port that loses packets is named while the switch of the host's other port is dead: that loss is explained, and says nothing about the NIC.
#[test]
fn a_gray_port_is_seen_beside_a_dead_switch_of_another_plane() {
    let mut lab = Lab::new(fabric((2, 1, 0), (1, 0), 3), 1);
    let port = (spindrift_srv6::Node::Host(1), t0(1, 0));
    lab.run(1_000 * MS);
    lab.breaks = vec![Break::Silent(t0(0, 0)), Break::Gray(port, 0.02)];
    lab.run(10_000 * MS);
    assert_eq!(
        lab.named(),
        [vec![Component::Link(port)], vec![Component::Node(t0(0, 0))]],
        "{}",
        lab.words()
    );
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

/// Two faults at the same time, in a window that is longer than they are: losses that are not independent there.
#[test]
fn faults_of_the_same_time_are_not_others() {
    let mut lab = Lab::new(fabric((2, 4, 2), (2, 2), 2), 40_001);
    let port = (spindrift_srv6::Node::Host(3), t0(0, 1));
    lab.run(200 * MS);
    lab.breaks = vec![Break::Cut(port), Break::Silent(t1(0, 0))];
    lab.run(1_000 * MS);
    let expected = [vec![Component::Link(port)], vec![Component::Node(t1(0, 0))]];
    assert_eq!(lab.ever_named(), expected, "{}", lab.words());
    lab.breaks.clear();
    lab.run(2_000 * MS);
    assert_eq!(lab.ever_named(), expected, "{}", lab.words());
    assert!(lab.named().is_empty(), "{}", lab.words());
}

/// Behind a dead port nothing is seen of a switch, so what the other agent sees may be the switch or its link.
#[test]
fn what_a_dead_port_hides_is_left_open() {
    let mut lab = Lab::new(fabric((1, 2, 2), (1, 0), 1), 1);
    let port = (spindrift_srv6::Node::Host(0), t0(0, 0));
    lab.run(200 * MS);
    lab.breaks = vec![Break::Cut(port), Break::Silent(t1(0, 0))];
    lab.run(1_000 * MS);
    let hidden = vec![Component::Link((t0(0, 1), t1(0, 0))), Component::Node(t1(0, 0))];
    assert_eq!(lab.named(), [lab.alike(Component::Link(port)), hidden], "{}", lab.words());
}

/// A name that a better one takes the place of says nothing about the paths: those count as before.
#[test]
fn names_that_are_replaced_hide_nothing() {
    let mut lab = Lab::new(fabric((2, 4, 2), (2, 2), 2), 40_188);
    let (link, t2) = ((t0(0, 2), t1(0, 2)), spindrift_srv6::Node::T2 { plane: 0, number: 1 });
    lab.run(200 * MS);
    lab.breaks = vec![Break::OneWay(link.0, link.1), Break::Silent(t2)];
    lab.run(250 * MS);
    for _ in 0..30 {
        lab.run(10 * MS);
        let expected = [vec![Component::Link(link)], vec![Component::Node(t2)]];
        assert_eq!(lab.named(), expected, "{}", lab.words());
    }
}
