//! Progress and rates of a run over time.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::preemption::Preemption;

/// Shortest interval that the peak is taken over.
const PEAK_INTERVAL: Duration = Duration::from_millis(10);
/// Fewest messages in it: with less, where one happens to end would matter.
const PEAK_MESSAGES: u64 = 16;
/// How often the watcher is asked.
const WATCH_INTERVAL: Duration = Duration::from_millis(100);

/// What is complete of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Done {
    pub(super) messages: u64,
    pub(super) bytes: u64,
}

pub(super) fn gbps(bytes: u64, elapsed: Duration) -> f64 {
    bytes as f64 * 8.0 / elapsed.as_secs_f64().max(1e-9) / 1e9
}

/// Looks at a run from time to time.
pub(crate) trait Watch {
    /// Called about every 100 ms with the completed messages and the time since the start; an error ends the run.
    fn tick(&mut self, done: u64, elapsed: Duration) -> Result<()>;

    /// Called at each look at the clock, every few polls.
    fn look(&mut self, _now: Instant) {}
}

/// The clock of a run.
pub(super) struct Pace {
    pub(super) start: Instant,
    mark: (Duration, Done),
    next_watch: Duration,
    pub(super) peak_gbps: f64,
    pub(super) pauses: Preemption,
}

impl Pace {
    pub(super) fn new() -> Self {
        Self {
            start: Instant::now(),
            mark: (Duration::ZERO, Done::default()),
            next_watch: WATCH_INTERVAL,
            peak_gbps: 0.0,
            pauses: Preemption::default(),
        }
    }

    /// A look at the clock, by which so much is complete. Returns the time since the start.
    pub(super) fn look(&mut self, done: Done, watch: &mut dyn Watch) -> Result<Duration> {
        let now = Instant::now();
        let elapsed = now.saturating_duration_since(self.start);
        self.pauses.look(elapsed);
        watch.look(now);
        let (mark_time, mark_done) = self.mark;
        let interval = elapsed.saturating_sub(mark_time);
        if interval >= PEAK_INTERVAL && done.messages - mark_done.messages >= PEAK_MESSAGES {
            self.peak_gbps = self.peak_gbps.max(gbps(done.bytes - mark_done.bytes, interval));
            self.mark = (elapsed, done);
        }
        if elapsed >= self.next_watch {
            self.next_watch = elapsed + WATCH_INTERVAL;
            watch.tick(done.messages, elapsed)?;
        }
        Ok(elapsed)
    }
}
