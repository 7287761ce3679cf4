//! The property run: two endpoints, a network that does its worst for a while and then heals, and demands that
//! hold whatever happened in between. Every run follows from one number, its seed.
//!
//! | Variable | Effect |
//! |---|---|
//! | `SPINDRIFT_SEEDS` | how many fixed seeds to run (and a quarter as many fresh ones) |
//! | `SPINDRIFT_FRESH` | where the fresh seeds start; none are run without it |
//! | `SPINDRIFT_SEED` | replay this one seed and print every packet |

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod plan;
mod recovery;
mod run;
mod stream;
mod wire_rules;

#[path = "../support/mod.rs"]
mod support;

use plan::Plan;
use run::{Outcome, run};

/// Failures after which a share of the seeds gives up.
const MOST_FAILURES: usize = 5;

/// A number from the environment.
#[expect(clippy::disallowed_methods, reason = "how a test is told which seeds to run")]
fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.trim().parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

/// Says which seed failed, whatever made it fail.
struct Blame(u64);

impl Drop for Blame {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let seed = self.0;
            eprintln!("seed {seed} failed; replay it with every packet printed:");
            eprintln!("  SPINDRIFT_SEED={seed} cargo test --test property -- --nocapture replay");
        }
    }
}

fn one(seed: u64, print: bool) -> Outcome {
    let _blame = Blame(seed);
    let plan = Plan::draw(seed);
    if print {
        println!("{plan:#?}");
    }
    run(&plan, print)
}

/// Runs every second seed of the fixed ones, then of the fresh ones, from `part`; two tests share the work.
fn share(part: u64) {
    if setting("SPINDRIFT_SEED").is_some() {
        return;
    }
    let count = setting("SPINDRIFT_SEEDS").unwrap_or(4_000);
    let fresh = setting("SPINDRIFT_FRESH");
    let fixed = (0..count).filter(|seed| seed % 2 == part);
    let also = fresh.into_iter().flat_map(|base| (0..count.div_ceil(4)).map(move |n| base.wrapping_add(n)));
    let mut total = Outcome::default();
    let mut failed = Vec::new();
    for seed in fixed.chain(also.filter(|seed| seed % 2 == part)) {
        match std::panic::catch_unwind(|| one(seed, false)) {
            Ok(outcome) => total.add(&outcome),
            Err(_) => failed.push(seed),
        }
        if failed.len() >= MOST_FAILURES {
            break;
        }
    }
    println!("{total:?}");
    assert!(failed.is_empty(), "failed seeds: {failed:?}");
    total.reached.check_shares(total.runs);
}

#[test]
fn even_seeds_hold() {
    share(0);
}

#[test]
fn odd_seeds_hold() {
    share(1);
}

/// Runs nothing unless `SPINDRIFT_SEED` names a seed.
#[test]
fn replay() {
    if let Some(seed) = setting("SPINDRIFT_SEED") {
        println!("{:#?}", one(seed, true));
    }
}

#[test]
fn a_seed_decides_everything() {
    for seed in [3, 77, 1_000_003, u64::MAX] {
        let (first, second) = (one(seed, false), one(seed, false));
        assert_eq!(first, second, "seed {seed}");
        assert!(first.packets > 0);
    }
}
