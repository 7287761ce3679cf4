//! The only code of the transport that reads a clock or gets randomness from the system.

use std::io;
use std::time::{Duration, Instant};

use rand::TryRng;
use rand::rngs::SysRng;

use crate::seed::Seed;
use crate::time::Time;

/// A lane's clock: nanoseconds since the first one in the process, the same on all lanes of a process.
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

/// The time of all lanes of this process.
pub(crate) fn process_time() -> Time {
    Clock::start().now()
}

/// A limit in real time, for waits for peers and not for a lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    started: Instant,
    timeout: Duration,
}

impl Deadline {
    #[expect(clippy::disallowed_methods, reason = "whoever waits for real peers waits in real time")]
    pub(crate) fn after(timeout: Duration) -> Self {
        Self { started: Instant::now(), timeout }
    }

    /// The remaining time, never zero.
    pub(crate) fn left(&self) -> Option<Duration> {
        self.timeout.checked_sub(self.started.elapsed()).filter(|left| !left.is_zero())
    }
}

/// An unpredictable seed: 256 bits from the operating system.
///
/// # Errors
/// The system has no random numbers.
pub(crate) fn fresh_seed() -> io::Result<Seed> {
    let mut bytes = [0; 32];
    SysRng.try_fill_bytes(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(Seed::from(bytes))
}
