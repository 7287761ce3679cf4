//! The goals: every single fault is named, and nineteen of twenty pairs; what loses all packets in 100 ms, and what loses 1 % in 10 s.

use spindrift_agent::{Path, Window};
use spindrift_agent_sim::campaign::{Campaign, named_well};
use spindrift_agent_sim::trial::{Trial, Verdict};
use spindrift_agent_sim::{Idle, KINDS, Tier, WatchSettings, Watched, small, three_tiers};
use spindrift_fabric::ClosSpec;

const MS: u64 = 1_000_000;

fn campaign(spec: ClosSpec, seed: u64) -> Campaign {
    Campaign { spec, settings: WatchSettings::default(), seed }
}

/// Whether the fault was named as well and as soon as it should be.
#[track_caller]
fn check(trial: &Trial, seed: u64) {
    let case = trial.cases[0];
    assert!(trial.verdict <= Verdict::Alike, "seed {seed}: {case:?}: {:?}{}", trial.verdict, trial.words);
    assert!(trial.named_ns.is_none_or(|ns| ns <= case.kind.goal_ns()), "seed {seed}: {trial:?}");
}

fn singles(spec: ClosSpec, places: (usize, usize), seed: u64) {
    let campaign = campaign(spec, seed);
    for (seed, case) in (seed..).zip(campaign.cases(places).unwrap()) {
        check(&campaign.single(case, seed).unwrap(), seed);
    }
}

#[test]
fn single_faults_of_one_tier() {
    singles(small(2, (1, 0), 2), (1, 1), 100);
}

#[test]
fn single_faults_of_two_tiers() {
    singles(small(1, (2, 2), 2), (1, 1), 200);
}

#[test]
fn single_faults_of_three_tiers() {
    // Gray ones take long: see the slow test.
    singles(three_tiers(1, (2, 2), (2, 1), 2), (2, 0), 300);
}

#[test]
#[ignore = "slow: tools/check-all.sh"]
fn single_faults_of_all_tiers() {
    singles(small(2, (2, 0), 2), (2, 1), 1_000);
    singles(small(2, (2, 3), 2), (2, 1), 2_000);
    singles(three_tiers(1, (2, 2), (2, 1), 2), (2, 1), 3_000);
}

fn pairs(spec: ClosSpec, (count, hard_only): (u64, bool), seed: u64) {
    let campaign = campaign(spec, seed);
    let trials: Vec<Trial> =
        (seed..seed + count).map(|seed| campaign.pair(seed, hard_only).unwrap()).collect();
    for (seed, trial) in (seed..).zip(&trials).filter(|(_, trial)| trial.verdict > Verdict::Alike) {
        println!("seed {seed}: {:?}: {:?}{}", trial.verdict, trial.cases, trial.words);
    }
    let well = named_well(&trials);
    assert!(well as u64 * 100 >= 95 * count, "{well} of {count}");
}

#[test]
fn pairs_of_hard_faults() {
    pairs(small(1, (3, 3), 2), (40, true), 5_000);
}

#[test]
#[ignore = "slow: tools/check-all.sh"]
fn pairs_of_any_faults() {
    pairs(small(1, (3, 3), 2), (40, false), 6_000);
}

/// Each kind of fault has a place in a fabric of three tiers, and loses probes of exactly those paths that cross the component; what the agents
/// cannot see loses none.
#[test]
fn each_kind_loses_the_probes_over_its_component() {
    let spec = three_tiers(1, (2, 2), (2, 1), 2);
    let campaign = campaign(spec, 1);
    let cases = campaign.cases((1, 1)).unwrap();
    assert!(KINDS.iter().all(|kind| cases.iter().any(|case| case.kind == *kind)));
    for tier in [Tier::HostLink, Tier::Trunk, Tier::T0, Tier::Upper, Tier::Host] {
        assert!(cases.iter().any(|case| Tier::of(case.component) == tier), "{tier:?}");
    }
    for case in cases {
        let mut watched = campaign.build(2).unwrap();
        watched.run(50 * MS, |_| false);
        let crossings = watched.crossings();
        let over = crossings.paths(case.component);
        assert!(!over.is_empty(), "{case:?}");
        // What a fault begins with; a flapping link stays down.
        for (_, fault) in case.script(watched.clos()).iter().filter(|(after_ns, _)| *after_ns == 0) {
            assert!(watched.apply(fault), "{case:?}: {fault:?}");
        }
        watched.run(600 * MS, |_| false);
        let lost = lossy_paths(&watched, case.kind.is_hard());
        assert!(lost.iter().all(|path| over.contains(path)), "{case:?}: {lost:?} are not over it");
        assert_eq!(!lost.is_empty(), case.kind.loses_probes(), "{case:?}");
        assert!(!case.kind.is_hard() || lost == over, "{case:?}: {lost:?} of {over:?}");
    }
}

/// The paths that have lost probes, in order: most of the last 50 ms (bits that nobody reads may be flipped), or a few.
fn lossy_paths(watched: &Watched<Idle>, is_hard: bool) -> Vec<Path> {
    let mut lossy = Vec::new();
    for agent in watched.agents() {
        for (number, route) in agent.plan().routes().enumerate() {
            let count = |window| agent.recorder().count(number, window, watched.now_ns()).unwrap();
            let (fast, second) = (count(Window::Fast), count(Window::Second));
            if second.lost > 0 {
                assert!(
                    if is_hard { 10 * fast.lost > 7 * fast.sent } else { second.loss() < 0.2 },
                    "{route:?}: {fast:?} {second:?}"
                );
                lossy.push(route.path);
            }
        }
    }
    lossy.sort_unstable();
    lossy
}
