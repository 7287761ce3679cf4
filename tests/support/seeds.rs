//! Runs that follow from one number each: which of them to run, and which have failed.

/// Failures after which a share of the seeds gives up.
const MOST_FAILURES: usize = 5;

/// A number from the environment.
#[expect(clippy::disallowed_methods, reason = "how a test is told which seeds to run")]
pub(crate) fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.trim().parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

/// Says which seed of which test failed, whatever made it fail.
pub(crate) struct Blame(pub(crate) &'static str, pub(crate) u64);

impl Drop for Blame {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self(test, seed) = self;
            eprintln!("seed {seed} failed; replay it with every packet printed:");
            eprintln!("  SPINDRIFT_SEED={seed} cargo test --test {test} -- --nocapture replay");
        }
    }
}

/// Runs the seeds, and returns those that failed: a few at most.
pub(crate) fn failures(seeds: impl Iterator<Item = u64>, mut run: impl FnMut(u64)) -> Vec<u64> {
    let mut failed = Vec::new();
    for seed in seeds {
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(seed))).is_err() {
            failed.push(seed);
        }
        if failed.len() >= MOST_FAILURES {
            break;
        }
    }
    failed
}
