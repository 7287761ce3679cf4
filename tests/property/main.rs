//! The property run: two endpoints, a network that does its worst for a while and then heals, and demands that
//! hold whatever happened in between. Every run follows from one number, its seed.
//!
//! | Variable | Effect |
//! |---|---|
//! | `SPINDRIFT_SEEDS` | how many fixed seeds to run (and a quarter as many fresh ones) |
//! | `SPINDRIFT_FRESH` | where the fresh seeds start; none are run without it |
//! | `SPINDRIFT_JUDGE` | `1`: judge recovery in the fresh seeds too |
//! | `SPINDRIFT_SEED` | replay this one seed and print every packet |

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod plan;
mod recovery;
mod run;
mod shared_queue;
mod stream;
mod wire_rules;

#[path = "../support/mod.rs"]
mod support;

use plan::Plan;
use run::{Outcome, run};
use support::seeds::{Blame, failures, setting};

/// Fixed seeds beyond the usual ones that failed once. They run every time.
const FAILED_ONCE: [u64; 9] = [
    // The last path of a dead plane lost four packets: suspected losses did not count with the others.
    25_836, 38_318,
    // Two entropy values were one path over IPv4, and a repeat took the one after the other.
    32_922,
    // Packets that were refused without a NACK condemned all paths but one, so repeats had no other. The first remedy
    // kept a dead path in use while the peer refused again and again.
    54_137, 20_594, 34_384,
    // Packets beyond a refused message had arrived, but no SACK was due, so they were taken for lost.
    39_792, 44_082, 41_991,
];

fn one(seed: u64, print: bool, judges_recovery: bool) -> Outcome {
    let _blame = Blame("property", seed);
    let plan = Plan { judges_recovery, ..Plan::draw(seed) };
    if print {
        println!("{plan:#?}");
    }
    run(&plan, print)
}

/// Runs every second seed of `seeds` from `part`; two tests share the work. Fails if one fails.
fn run_all(seeds: impl Iterator<Item = u64>, part: u64, judges_recovery: bool) -> Outcome {
    let mut total = Outcome::default();
    let mine = seeds.filter(|seed| seed % 2 == part);
    let failed = failures(mine, |seed| total.add(&one(seed, false, judges_recovery)));
    println!("{total:?}");
    assert!(failed.is_empty(), "failed seeds: {failed:?}");
    total
}

/// The fixed seeds, then the fresh ones. A rare fault of recovery that no fixed seed shows must not stop unrelated work, so
/// fresh seeds are judged for it on demand only.
fn share(part: u64) {
    if setting("SPINDRIFT_SEED").is_some() {
        return;
    }
    let count = setting("SPINDRIFT_SEEDS").unwrap_or(1_000);
    let fixed = run_all(0..count, part, true);
    fixed.reached.check_shares(fixed.runs);
    if let Some(base) = setting("SPINDRIFT_FRESH") {
        let seeds = (0..count.div_ceil(4)).map(|n| base.wrapping_add(n));
        run_all(seeds, part, setting("SPINDRIFT_JUDGE").is_some());
    }
}

#[test]
fn seeds_that_failed_once_hold() {
    if setting("SPINDRIFT_SEED").is_some() {
        return;
    }
    for part in 0..2 {
        run_all(FAILED_ONCE.into_iter(), part, true);
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

/// Runs nothing unless `SPINDRIFT_SEED` names a seed.
#[test]
fn replay() {
    if let Some(seed) = setting("SPINDRIFT_SEED") {
        println!("{:#?}", one(seed, true, true));
    }
}

#[test]
fn a_seed_decides_everything() {
    for seed in [3, 77, 1_000_003, u64::MAX] {
        let (first, second) = (one(seed, false, true), one(seed, false, true));
        assert_eq!(first, second, "seed {seed}");
        assert!(first.packets > 0);
    }
}
