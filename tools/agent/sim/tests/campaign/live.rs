//! Agents that come and go: every link stays covered by two of those that are there.

use std::collections::{BTreeMap, BTreeSet};

use spindrift_agent::Component;
use spindrift_agent_sim::{Idle, WatchSettings, Watched, small};
use spindrift_fabric::Fault;
use spindrift_srv6::{Link, Node};

const MS: u64 = 1_000_000;
const GONE_NS: u64 = 1_000 * MS;

type Shares = BTreeMap<Link, BTreeSet<u16>>;

/// Two T0 and four T1 switches, with four hosts at each T0 switch.
fn watched() -> Watched<Idle> {
    let settings = WatchSettings { gone_ns: Some(GONE_NS), ..WatchSettings::default() };
    Watched::build(small(1, (2, 4), 4), settings, 1, |_, _| Ok::<_, ()>(Idle)).unwrap()
}

fn go_on(watched: &mut Watched<Idle>, ns: u64) {
    watched.run(watched.now_ns() + ns, |_| false);
}

/// The agents of each link between switches.
fn shares(watched: &Watched<Idle>) -> Shares {
    let mut shares: Shares = watched
        .fabric()
        .links()
        .filter(|(lower, _)| matches!(lower, Node::T0 { .. }))
        .map(|link| (link, BTreeSet::new()))
        .collect();
    for agent in watched.agents() {
        for route in agent.plan().upper() {
            let link = route.path.link(watched.fabric()).unwrap();
            shares.get_mut(&link).unwrap().insert(agent.plan().host());
        }
    }
    shares
}

#[test]
fn the_links_of_an_agent_that_dies_are_taken_over() {
    let mut watched = watched();
    go_on(&mut watched, 500 * MS);
    let before = shares(&watched);
    assert!(before.values().all(|agents| agents.len() == 2), "{before:?}");
    watched.stop_agent(0);
    // It may only have missed a report.
    go_on(&mut watched, GONE_NS - 40 * MS);
    let alone = |agents: &&BTreeSet<u16>| agents.len() == 1;
    assert!(shares(&watched).values().filter(alone).count() > 0, "{before:?}");
    go_on(&mut watched, 80 * MS);
    let after = shares(&watched);
    for (link, agents) in &after {
        assert!(agents.len() == 2 && !agents.contains(&0), "{link:?}: {agents:?}");
        let stay = before[link].iter().filter(|&&host| host != 0).all(|host| agents.contains(host));
        assert!(stay, "{link:?}: {:?} to {agents:?}", before[link]);
    }
    // The new agents of a link see what happens to it.
    let moved = *after.iter().find(|(link, agents)| before[link] != **agents).unwrap().0;
    go_on(&mut watched, 100 * MS);
    assert!(watched.apply(&Fault::Cable { ends: moved, up: false, carrier: false }));
    go_on(&mut watched, 100 * MS);
    assert_eq!(watched.named(), [[Component::Link(moved)]], "{}", watched.words());
    watched.heal();
    // It comes back, and all is as it was: nothing was lost by that, and nobody accused.
    watched.start_agent(0, None).unwrap();
    go_on(&mut watched, 500 * MS);
    assert_eq!(shares(&watched), before);
    assert_eq!(watched.named(), Vec::<&[Component]>::new());
    let lost: u64 = watched.agents().map(|agent| agent.prober().counters().lost).sum();
    assert!((150..=260).contains(&lost), "{lost}: those of two agents in 100 ms");
    assert_eq!(watched.changes().len(), 2, "{}", watched.words());
}

/// An agent that stops and starts all the time moves the links of its own, if any: the others keep theirs.
#[test]
fn an_agent_that_flaps_moves_its_own_links_alone() {
    for off_ns in [GONE_NS / 2, 2 * GONE_NS] {
        let mut watched = watched();
        go_on(&mut watched, 500 * MS);
        let before = shares(&watched);
        for _ in 0..3 {
            watched.stop_agent(5);
            go_on(&mut watched, off_ns);
            for (link, agents) in shares(&watched) {
                let own = before[&link].contains(&5);
                assert!(own || agents == before[&link], "{link:?} moved");
                let rest = before[&link].iter().filter(|&&host| host != 5).count();
                assert_eq!(agents.len(), if off_ns < GONE_NS { rest } else { 2 }, "{link:?}: {agents:?}");
            }
            watched.start_agent(5, None).unwrap();
            go_on(&mut watched, GONE_NS / 4);
            assert_eq!(shares(&watched), before);
        }
        assert_eq!(watched.changes(), [], "{}", watched.words());
    }
}
