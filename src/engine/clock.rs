//! The one place of the transport that reads a clock or asks the system for randomness.

use core::hash::{BuildHasher, Hasher};
use std::collections::hash_map::RandomState;
use std::time::Instant;

use crate::time::Time;

/// A lane's clock: nanoseconds since the process first made one, the same on all lanes of a process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    epoch: Instant,
}

impl Clock {
    #[expect(clippy::disallowed_methods, reason = "a lane is what turns real time into `now` for the core")]
    pub(super) fn start() -> Self {
        static EPOCH: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        Self { epoch: *EPOCH.get_or_init(Instant::now) }
    }

    #[inline]
    pub(super) fn now(&self) -> Time {
        Time(self.epoch.elapsed().as_nanos() as u64)
    }
}

/// A seed that nobody can guess, for keys and numbers that peers shall not predict.
///
/// The standard library seeds its hashers from the operating system; the hash of nothing under two such
/// keys is 64 bits of that.
pub(crate) fn fresh_seed() -> u64 {
    RandomState::new().build_hasher().finish() ^ RandomState::new().build_hasher().finish().rotate_left(32)
}
