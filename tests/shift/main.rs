//! Fallback between two queue pairs (mode `shift`) over endpoints in virtual time: two NICs on each of two sides, links between them,
//! and deaths of NICs drawn from a seed, some of them at a given step of a switch or of the return. The judge knows every byte and
//! every completion. The protocol alone is searched state by state in `src/fallback/tests`.
//!
//! | Variable | Effect |
//! |---|---|
//! | `SPINDRIFT_SEEDS` | how many fixed seeds to run (and a quarter as many fresh ones) |
//! | `SPINDRIFT_FRESH` | where the fresh seeds start; none are run without it |
//! | `SPINDRIFT_SEED` | replay this one seed and print every packet |

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod judge;
mod plan;
mod run;
mod side;

#[path = "../support/mod.rs"]
mod support;

use plan::Plan;
use run::{Outcome, run};
use support::seeds::{Blame, failures, setting};

fn one(seed: u64, print: bool) -> Outcome {
    let _blame = Blame("shift", seed);
    let plan = Plan::draw(seed);
    if print {
        println!("{plan:#?}");
    }
    run(&plan, print)
}

/// Fails if one seed fails.
fn run_all(seeds: impl Iterator<Item = u64>) -> Outcome {
    let mut total = Outcome::default();
    let failed = failures(seeds, |seed| total.add(&one(seed, false)));
    println!("{total:#?}");
    assert!(failed.is_empty(), "failed seeds: {failed:?}");
    total
}

/// The fixed seeds of two tests that share the work, then the fresh ones.
fn share(part: u64) {
    if setting("SPINDRIFT_SEED").is_some() {
        return;
    }
    let count = setting("SPINDRIFT_SEEDS").unwrap_or(8_000);
    let of_part = |seed: &u64| seed % 2 == part;
    run_all((0..count).filter(of_part)).check_shares();
    if let Some(base) = setting("SPINDRIFT_FRESH") {
        run_all((0..count.div_ceil(4)).map(|n| base.wrapping_add(n)).filter(of_part));
    }
}

#[test]
fn even_seeds_hold() {
    share(0);
}

#[test]
fn odd_seeds_hold() {
    share(1);
}

/// Fresh seeds that once failed.
#[test]
fn seeds_that_failed_hold() {
    // The default NIC's return crosses a report, and the backup NIC is dead.
    run_all([31_676_740_627_812].into_iter());
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
