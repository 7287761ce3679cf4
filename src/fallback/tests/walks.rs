//! Random orders of events, for longer scripts and more failures than a search of all of them can take.

use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rand_xoshiro::SplitMix64;

use super::search::digest;
use super::world::{Limits, Op, Step, World};
use crate::fallback::FallbackConfig;

const SCRIPTS: &[&[Op]] = &[
    &[],
    &[Op::Send],
    &[Op::Write, Op::UnsignaledWrite, Op::Send, Op::Write, Op::Send],
    &[Op::UnsignaledWrite, Op::Send, Op::UnsignaledWrite, Op::Send, Op::Send, Op::Write],
    &[Op::Send, Op::Send, Op::Send, Op::Send, Op::Send, Op::Send, Op::Send, Op::Send],
    &[Op::Write, Op::Read, Op::Read, Op::Send, Op::Read],
    &[Op::Send, Op::Atomic, Op::Write, Op::Send, Op::Atomic],
];

/// Names the seed when a check fails.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("in the walk of seed {}", self.0);
        }
    }
}

/// A walk to its end. Returns whether everything succeeded, and whether a link died.
fn walk(seed: u64) -> bool {
    let _seed = Seed(seed);
    let mut rng = SplitMix64::seed_from_u64(seed);
    let mut pick = || *SCRIPTS.choose(&mut rng).expect("scripts");
    let scripts = [pick(), pick()];
    let limits = Limits {
        downs: rng.random_range(0..4),
        ups: rng.random_range(0..4),
        removals: u8::from(rng.random_ratio(1, 8)),
        pairs: rng.random_range(1..8),
        prompt: rng.random(),
    };
    let config = FallbackConfig {
        max_attempts: 4,
        prepare_timeout_ns: 1,
        hold_ns: 0,
        hold_max_ns: 0,
        probe_ns: 0,
        ..FallbackConfig::default()
    };
    let mut world = World::new(scripts, &config, limits);
    // Links seldom change, so that something happens between two changes.
    let rare = |step: &Step| matches!(step, Step::Down(_) | Step::Up(_) | Step::Remove(..));
    for _ in 0..20_000 {
        let steps = world.steps();
        let common: Vec<_> = steps.iter().filter(|step| !rare(step)).copied().collect();
        let from = if common.is_empty() || rng.random_ratio(1, 16) { &steps } else { &common };
        let mut step = from.choose(&mut rng).copied();
        if step.is_none() || rng.random_ratio(1, 64) {
            step = world.expiries().next().or(step);
        }
        if let Some(step) = step {
            // An application may poll late.
            world.patient = rng.random();
            world.take(step);
        }
        if rng.random() {
            world.collect();
        }
        // At the end, only ticks are left, and nothing comes of them.
        let steps = world.steps();
        let idle = || {
            let mut later = world.clone();
            for step in &steps {
                later.take(*step);
            }
            digest(&later) == digest(&world)
        };
        let only_ticks = || steps.iter().all(|step| matches!(step, Step::Tick(_)));
        if world.is_settled() || only_ticks() && world.expiries().next().is_none() && idle() {
            world.collect();
            world.check_end();
            return world.failures().iter().all(Option::is_none);
        }
    }
    panic!("seed {seed} does not end: {world:?}");
}

/// Most walks fail for good: links die for ever.
fn walks(count: u64) {
    let successes = (0..count).filter(|seed| walk(*seed)).count() as u64;
    assert!((count / 4..count).contains(&successes), "{successes} of {count} walks succeed");
}

#[test]
fn walks_end_well() {
    walks(4000);
}

#[test]
#[ignore = "slow: tools/check-all.sh"]
fn many_walks_end_well() {
    walks(100_000);
}
