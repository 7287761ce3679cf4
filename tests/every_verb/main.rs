//! Seeded runs of all operations between two endpoints over a bad network: SENDs, writes, reads and atomic operations in
//! both directions at once, with and without fences, at the wrap of every counter.
//!
//! Each run is compared with a model: every byte that a read or a SEND brings, every value that an atomic operation
//! finds, the order, status and length of every completion. `SPINDRIFT_SEED=N` replays one run.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod liveness;
mod ordering;
#[path = "../support/mod.rs"]
mod support;
mod world;

/// Runs in the default test.
const RUNS: u64 = 400;

/// A number from the environment.
#[expect(clippy::disallowed_methods, reason = "how a test is told which seeds to run")]
fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.trim().parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

/// Decisions 37, 38, 39, 40, 41.
#[test]
fn every_operation_does_what_the_model_does() {
    if let Some(seed) = setting("SPINDRIFT_SEED") {
        println!("{:#?}", world::run(seed, true));
        return;
    }
    let mut total = world::Reached::default();
    for seed in 0..setting("SPINDRIFT_SEEDS").unwrap_or(RUNS) {
        let reached = std::panic::catch_unwind(|| world::run(seed, false));
        let Ok(reached) = reached else {
            panic!("seed {seed} failed: SPINDRIFT_SEED={seed} cargo test --test every_verb -- --nocapture")
        };
        total.add(&reached);
    }
    println!("{total:?}");
    total.check();
}
