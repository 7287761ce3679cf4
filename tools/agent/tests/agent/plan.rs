//! Probes go where their plan says, by the tables of the switches.

use std::collections::BTreeSet;

use spindrift_agent::{Path, Plan, PlanError, Route, SharePolicy, probe_address};
use spindrift_srv6::{Fabric, Link, Node};

use crate::lab::{fabric, forward, plans, t0, t1};

fn shapes() -> Vec<(&'static str, Fabric)> {
    vec![
        ("a lone T0", fabric((2, 1, 0), (1, 0), 3)),
        ("a lone T0 with a T1", fabric((1, 1, 1), (1, 0), 2)),
        ("a dumbbell", fabric((2, 2, 0), (1, 0), 2)),
        ("two tiers", fabric((1, 2, 2), (1, 0), 2)),
        ("four planes", fabric((4, 4, 4), (1, 0), 2)),
        ("three tiers", fabric((2, 4, 2), (2, 3), 2)),
        ("the largest numbers", fabric((32, 2, 512), (1, 0), 1)),
        ("many pods", fabric((1, 8, 3), (8, 256), 1)),
    ]
}

#[test]
fn each_probe_takes_the_links_of_its_route_and_comes_back() {
    for (name, fabric) in shapes() {
        let plans: Vec<_> = plans(&fabric).into_iter().take(3).collect();
        for route in plans.iter().flat_map(|plan| plan.routes().step_by(1 + plan.upper().len() / 200)) {
            let (nodes, delivered) = forward(&fabric, route);
            assert!(delivered, "{name}: {route:?} {nodes:?}");
            assert_eq!(nodes, route.nodes, "{name}");
            assert_eq!(route.path.plane(), Some(route.plane));
            assert!(nodes.contains(&route.path.top), "{name}: {route:?}");
            // It turns once, and goes back as it came.
            let back: Vec<_> = nodes.iter().rev().copied().collect();
            assert_eq!(nodes, back, "{name}");
            let up: Vec<Link> = route.links().collect();
            assert_eq!(up.len(), nodes.len() / 2);
            assert_eq!(route.path.link(&fabric), up.last().copied());
            for (from, to) in route.hops() {
                assert!(fabric.link(from, to).is_some_and(|link| up.contains(&link)), "{name}: {route:?}");
            }
        }
    }
}

/// Each link of the fabric is probed by as many agents as there can be, two at most.
#[test]
fn together_the_agents_probe_each_link() {
    for (name, fabric) in shapes().into_iter().take(6) {
        let plans = plans(&fabric);
        for link in fabric.links() {
            let agents =
                plans.iter().filter(|plan| plan.routes().any(|route| route.path.link(&fabric) == Some(link)));
            let want = if matches!(link.0, Node::Host(_)) { 1 } else { 2 };
            assert_eq!(agents.count(), want, "{name}: {link:?}");
        }
    }
}

#[test]
fn a_path_is_probed_once_and_its_numbers_agree() {
    let fabric = fabric((2, 4, 2), (2, 3), 3);
    let mut upper = 0;
    for plan in plans(&fabric) {
        let paths: BTreeSet<Path> = plan.routes().map(|route| route.path).collect();
        assert_eq!(paths.len(), plan.routes().count());
        assert_eq!(plan.lower().len(), 2);
        for (number, route) in plan.routes().enumerate() {
            assert_eq!((plan.number(route.path), plan.route(number)), (Some(number), Some(route)));
            let below =
                plan.below(number).map(|below| plan.route(below).unwrap().links().collect::<Vec<_>>());
            let links: Vec<_> = route.links().collect();
            match below {
                None => assert_eq!(links.len(), 1),
                // The links of the path below are a part of its own, and one less if the agent has that path.
                Some(below) => {
                    assert!(below.len() < links.len() && links.starts_with(&below), "{below:?} {links:?}");
                    let shorter = Path { host: plan.host(), top: route.nodes[links.len() - 1] };
                    assert_eq!(below.len() + 1 == links.len(), paths.contains(&shorter));
                }
            }
        }
        assert_eq!(plan.route(paths.len()), None);
        upper += plan.upper().len();
    }
    // Two planes; two agents for each of the 8 links to T1 switches and each of the 12 to T2 switches.
    assert_eq!(upper, 2 * 2 * (8 + 12));
}

#[test]
fn carriers_have_the_usids_of_the_table() {
    let fabric = fabric((2, 4, 2), (2, 3), 2);
    let carrier = |host, top| Route::new(&fabric, Path { host, top }).unwrap().carrier.to_string();
    assert_eq!(carrier(1, t0(1, 0)), "fcbb:bb00:4200:c209::");
    assert_eq!(carrier(5, t1(1, 3)), "fcbb:bb00:4202:8201:4202:c209::");
    assert_eq!(carrier(5, Node::T2 { plane: 1, number: 5 }), "fcbb:bb00:4202:8201:302:4202:c209:0");
}

/// Of another T0 switch's hosts, of another pod, of a plane that there is not: no path.
#[test]
fn what_the_host_does_not_reach_upwards_is_no_path() {
    let fabric = fabric((2, 4, 2), (2, 3), 1);
    for top in [
        t0(0, 1),
        t0(2, 0),
        t1(0, 2),
        t1(2, 0),
        Node::T2 { plane: 0, number: 6 },
        Node::T2 { plane: 2, number: 0 },
        Node::Host(0),
    ] {
        let path = Path { host: 0, top };
        assert_eq!((Route::new(&fabric, path), path.way_up(&fabric)), (None, None), "{top}");
    }
    assert_eq!(Route::new(&fabric, Path { host: 4, top: t0(0, 0) }), None);
    assert!(Route::new(&fabric, Path { host: 0, top: t1(1, 1) }).is_some());
}

#[test]
fn who_is_not_there_has_no_plan() {
    let fabric = fabric((1, 2, 2), (1, 0), 1);
    let policy = SharePolicy::default();
    let error = Plan::new(&fabric, 2, None, policy).unwrap_err();
    assert_eq!(error, PlanError::NoHost { host: 2, hosts: 2 });
    assert!(error.to_string().contains("no host 2: the topology has 2"), "{error}");
    assert_eq!(Plan::new(&fabric, 0, Some(&[1]), policy), Err(PlanError::NotLive(0)));
    assert!(Plan::new(&fabric, 0, Some(&[1, 0]), policy).is_ok());
}

/// An address of its own for each port, which no host and no switch has.
#[test]
fn probe_addresses_belong_to_the_agent_alone() {
    let fabric = fabric((4, 4, 4), (1, 0), 2);
    let mut all = BTreeSet::new();
    for host in 0..8 {
        for plane in 0..4 {
            let address = probe_address(&fabric, host, plane).unwrap();
            assert_eq!(fabric.port_of(address), None);
            assert!(fabric.subnet(fabric.hosts()[usize::from(host)].t0).contains(&address));
            assert!(fabric.nodes().all(|node| !fabric.tables(node).own.contains(&address)));
            assert!(all.insert(address), "{address}");
        }
    }
    assert_eq!(probe_address(&fabric, 1, 2).unwrap().to_string(), "fd5d:7072::9b0b:2:a");
    assert_eq!((probe_address(&fabric, 8, 0), probe_address(&fabric, 0, 4)), (None, None));
}
