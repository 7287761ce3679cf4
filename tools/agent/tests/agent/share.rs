//! Links are shared evenly, by two, and stay where they are.

use std::collections::{BTreeMap, BTreeSet};

use spindrift_agent::share::{candidates, of_agent, of_link};
use spindrift_agent::{Path, SharePolicy};
use spindrift_srv6::{Fabric, Link, Node};

use crate::lab::fabric;

type Shares = BTreeMap<Link, BTreeSet<u16>>;

fn shares(fabric: &Fabric, live: &[u16]) -> Shares {
    let mut shares = Shares::new();
    for &host in live {
        for top in of_agent(fabric, host, Some(live), SharePolicy::default()) {
            let link = Path { host, top }.link(fabric).unwrap();
            assert!(shares.entry(link).or_default().insert(host), "twice in a share: {link:?}");
        }
    }
    shares
}

/// What an agent works out for itself is what the link's list says, from which every agent of it is live and below the link.
#[test]
fn all_agents_agree() {
    for fabric in [
        fabric((2, 3, 5), (1, 0), 4),
        fabric((1, 4, 2), (2, 3), 2),
        fabric((2, 2, 0), (1, 0), 2),
        fabric((1, 1, 3), (1, 0), 1),
    ] {
        let all: Vec<u16> = (0..fabric.hosts().len() as u16).collect();
        let some: Vec<u16> = all.iter().copied().filter(|host| host % 3 != 1).collect();
        for live in [&all, &some] {
            let shares = shares(&fabric, live);
            for link in fabric.links().filter(|(lower, _)| !matches!(lower, Node::Host(_))) {
                let agents = of_link(&fabric, link, Some(live), SharePolicy::default());
                let below = candidates(&fabric, link, Some(live));
                assert_eq!(agents.len(), below.len().min(2), "{link:?}");
                let agents: BTreeSet<u16> = agents.into_iter().collect();
                assert!(agents.iter().all(|host| below.contains(host)));
                assert_eq!(shares.get(&link).cloned().unwrap_or_default(), agents, "{link:?}");
            }
        }
        assert_eq!(shares(&fabric, &all), {
            let own = |host| of_agent(&fabric, host, None, SharePolicy::default());
            let pairs = all.iter().flat_map(|&host| own(host).into_iter().map(move |top| Path { host, top }));
            let mut shares = Shares::new();
            pairs.for_each(|path| {
                shares.entry(path.link(&fabric).unwrap()).or_default().insert(path.host);
            });
            shares
        });
    }
}

/// When one agent of many goes, its links get one other agent each, and no other link changes; when it comes back all is as before.
#[test]
fn only_the_links_of_who_goes_move() {
    let fabric = fabric((2, 2, 16), (1, 0), 12);
    let all: Vec<u16> = (0..24).collect();
    let before = shares(&fabric, &all);
    for gone in [0, 7, 23] {
        let rest: Vec<u16> = all.iter().copied().filter(|&host| host != gone).collect();
        let after = shares(&fabric, &rest);
        for (link, agents) in &before {
            let kept: BTreeSet<u16> = agents.iter().copied().filter(|&host| host != gone).collect();
            let new = &after[link];
            assert!(new.is_superset(&kept) && new.len() == 2, "{link:?}: {agents:?} {new:?}");
            assert!(agents.contains(&gone) || new == agents, "{link:?} moved: {agents:?} {new:?}");
        }
        assert!(before.values().any(|agents| agents.contains(&gone)), "{gone} had nothing");
    }
}

/// 2 planes × 64 links × 2 agents over 16 hosts: 16 links for each, more or less.
#[test]
fn shares_are_even() {
    let fabric = fabric((2, 2, 64), (1, 0), 16);
    for host in 0..32 {
        let len = of_agent(&fabric, host, None, SharePolicy::default()).len();
        assert!((6..=28).contains(&len), "host {host} has {len} links");
    }
    let one = SharePolicy { agents_per_link: 1 };
    let total: usize = (0..32).map(|host| of_agent(&fabric, host, None, one).len()).sum();
    assert_eq!(total, 2 * 2 * 64);
}

/// The link between the two T0 switches of a dumbbell is below the hosts of both.
#[test]
fn both_sides_of_a_dumbbell_probe_its_link() {
    let fabric = fabric((1, 2, 0), (1, 0), 2);
    let link = (Node::T0 { plane: 0, number: 0 }, Node::T0 { plane: 0, number: 1 });
    assert_eq!(candidates(&fabric, link, None), [0, 1, 2, 3]);
    assert_eq!(candidates(&fabric, link, Some(&[3, 9])), [3]);
}

/// Hosts and switches that there are not, from an older topology perhaps, have no part in it.
#[test]
fn who_is_not_there_has_no_share() {
    let fabric = fabric((1, 4, 2), (2, 3), 2);
    let (t1, t2) = (|number| Node::T1 { plane: 0, number }, |number| Node::T2 { plane: 0, number });
    let live = [0, 1, 8, 900];
    assert_eq!(candidates(&fabric, (t1(0), t2(0)), Some(&live)), [0, 1]);
    assert_eq!(candidates(&fabric, (t1(9), t2(0)), Some(&live)), []);
    assert_eq!(candidates(&fabric, (Node::Host(0), Node::T0 { plane: 0, number: 0 }), None), []);
    assert_eq!(of_agent(&fabric, 8, None, SharePolicy::default()), []);
    assert_eq!(of_agent(&fabric, 0, Some(&[1, 2]), SharePolicy::default()), []);
    // In two copies it is one agent still.
    assert_eq!(candidates(&fabric, (t1(0), t2(0)), Some(&[1, 0, 1])), [0, 1]);
}

/// The same everywhere and for ever: agents of different versions work together.
#[test]
fn weights_do_not_change() {
    let fabric = fabric((1, 2, 4), (1, 0), 6);
    let agents: Vec<_> = fabric
        .links()
        .filter(|(lower, _)| matches!(lower, Node::T0 { .. }))
        .map(|link| of_link(&fabric, link, None, SharePolicy::default()))
        .collect();
    assert_eq!(agents, WEIGHTS.map(|pair| pair.to_vec()));
}

const WEIGHTS: [[u16; 2]; 8] = [[0, 5], [2, 1], [1, 0], [1, 4], [7, 10], [10, 7], [7, 9], [8, 10]];
