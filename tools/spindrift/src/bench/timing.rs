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

pub(super) fn gbps(iterations: u64, size: u32, elapsed: Duration) -> f64 {
    (iterations * u64::from(size)) as f64 * 8.0 / elapsed.as_secs_f64().max(1e-9) / 1e9
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
    size: u32,
    mark: (Duration, u64),
    next_watch: Duration,
    pub(super) peak_gbps: f64,
    pub(super) pauses: Preemption,
}

impl Pace {
    pub(super) fn new(size: u32) -> Self {
        Self {
            start: Instant::now(),
            size,
            mark: (Duration::ZERO, 0),
            next_watch: WATCH_INTERVAL,
            peak_gbps: 0.0,
            pauses: Preemption::default(),
        }
    }

    /// A look at the clock, by which so many messages are complete. Returns the time since the start.
    pub(super) fn look(&mut self, done: u64, watch: &mut dyn Watch) -> Result<Duration> {
        let now = Instant::now();
        let elapsed = now.saturating_duration_since(self.start);
        self.pauses.look(elapsed);
        watch.look(now);
        let (mark_time, mark_done) = self.mark;
        let interval = elapsed.saturating_sub(mark_time);
        if interval >= PEAK_INTERVAL && done - mark_done >= PEAK_MESSAGES {
            self.peak_gbps = self.peak_gbps.max(gbps(done - mark_done, self.size, interval));
            self.mark = (elapsed, done);
        }
        if elapsed >= self.next_watch {
            self.next_watch = elapsed + WATCH_INTERVAL;
            watch.tick(done, elapsed)?;
        }
        Ok(elapsed)
    }
}
