//! Keeps a window of writes in flight on every queue pair and measures.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use spindrift::verbs::exchange::RemoteMr;
use spindrift::verbs::{RemoteAddr, SendOp, SendWr, Sge, Wc};

use super::layout::Layout;
use super::options::Amount;
use super::pauses::Pauses;
use super::pin::Idle;
use super::report::explain;
use super::side::Side;

/// Shortest interval that the peak is taken over.
const PEAK_INTERVAL: Duration = Duration::from_millis(10);
/// Fewest messages in it: with less, where one happens to end would matter.
const PEAK_MESSAGES: u64 = 16;
/// How often the watcher is asked.
const WATCH_INTERVAL: Duration = Duration::from_millis(100);
/// Polls between two looks at the clock.
const CLOCK_POLLS: u32 = 64;

/// What one size gave.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Measured {
    pub(crate) iterations: u64,
    pub(crate) elapsed: Duration,
    pub(crate) peak_gbps: f64,
    /// Longest time that this thread was not run, or stuck in one turn.
    pub(crate) longest_pause: Duration,
}

impl Measured {
    pub(crate) fn gbps(&self, size: u32) -> f64 {
        gbps(self.iterations, size, self.elapsed)
    }

    pub(crate) fn mpps(&self) -> f64 {
        self.iterations as f64 / self.elapsed.as_secs_f64().max(1e-9) / 1e6
    }
}

fn gbps(iterations: u64, size: u32, elapsed: Duration) -> f64 {
    (iterations * u64::from(size)) as f64 * 8.0 / elapsed.as_secs_f64().max(1e-9) / 1e9
}

/// Looks at a run from time to time.
pub(crate) trait Watch {
    /// Called about every 100 ms with the completed messages and the time since the start; an error ends the run.
    fn tick(&mut self, done: u64, elapsed: Duration) -> Result<()>;

    /// Called for each completed write, before its slot is used again.
    fn completed(&mut self, _qp: usize, _write: u64) -> Result<()> {
        Ok(())
    }
}

/// Writes of one size.
pub(crate) struct Writer<'a> {
    side: &'a mut Side,
    layout: Layout,
    depth: u64,
    local: Sge,
    remote: RemoteAddr,
    idle: Idle,
    /// Writes posted on each queue pair since the target was cleared.
    posted: Vec<u64>,
    completed: Vec<u64>,
    wcs: [Wc; 64],
}

impl<'a> Writer<'a> {
    pub(crate) fn new(
        side: &'a mut Side,
        layout: Layout,
        remote: RemoteMr,
        depth: u32,
        idle: Idle,
    ) -> Result<Self> {
        // Both checked once for all slots.
        let local = side.source.sge(0, layout.size)?;
        let remote = remote.at(0, layout.footprint())?;
        let none = vec![0; side.qps.len()];
        Ok(Self {
            side,
            depth: layout.depth(depth),
            layout,
            local,
            remote,
            idle,
            posted: none.clone(),
            completed: none,
            wcs: [Wc::default(); 64],
        })
    }

    /// Complete writes of each queue pair.
    pub(crate) fn writes(&self) -> &[u64] {
        &self.completed
    }

    /// Writes until the amount is reached and everything posted is complete.
    pub(crate) fn run(&mut self, amount: Amount, watch: &mut dyn Watch) -> Result<Measured> {
        let before: u64 = self.completed.iter().sum();
        let mut left = match amount {
            Amount::Iterations(n) => n,
            Amount::Time(_) => u64::MAX,
        };
        let mut done = 0;
        let mut pace = Pace::new(self.layout.size);
        let mut polls = 0;
        loop {
            left -= self.post(left)?;
            let work = self.side.context.poll();
            let newly = self.complete(watch)?;
            done += newly;
            self.idle.after(work + newly as usize);
            polls += 1;
            if polls >= CLOCK_POLLS {
                polls = 0;
                let elapsed = pace.look(done, watch)?;
                if matches!(amount, Amount::Time(time) if elapsed >= time) {
                    left = 0;
                }
            }
            if left == 0 && self.posted == self.completed {
                break;
            }
        }
        let elapsed = pace.start.elapsed();
        let iterations = self.completed.iter().sum::<u64>() - before;
        let longest_pause = pace.pauses.longest();
        let measured = Measured { iterations, elapsed, peak_gbps: 0.0, longest_pause };
        Ok(Measured { peak_gbps: pace.peak_gbps.max(measured.gbps(self.layout.size)), ..measured })
    }

    /// Posts what the windows take, at most `left`, and returns how many.
    fn post(&mut self, left: u64) -> Result<u64> {
        let mut posted_now = 0;
        for (qp, handle) in self.side.qps.iter_mut().enumerate() {
            let (Some(posted), Some(&completed)) = (self.posted.get_mut(qp), self.completed.get(qp)) else {
                continue;
            };
            while posted_now < left && *posted - completed < self.depth {
                let source = self.layout.source(qp, *posted) as u64;
                let target = self.layout.target(qp, *posted) as u64;
                handle.post_send(SendWr {
                    wr_id: (qp as u64) << 48 | (*posted & WRITE_MASK),
                    op: SendOp::Write,
                    local: Sge { addr: self.local.addr + source, ..self.local },
                    remote: RemoteAddr { addr: self.remote.addr + target, ..self.remote },
                    signaled: true,
                })?;
                *posted += 1;
                posted_now += 1;
            }
        }
        Ok(posted_now)
    }

    /// Takes completions; each must be the next of its queue pair, and a success.
    fn complete(&mut self, watch: &mut dyn Watch) -> Result<u64> {
        let count = self.side.cq.poll(&mut self.wcs)?;
        for wc in self.wcs.iter().take(count) {
            let (qp, write) = ((wc.wr_id >> 48) as usize, wc.wr_id & WRITE_MASK);
            if !wc.status.is_success() {
                bail!(
                    "queue pair {:#08x}: write {write} of {} bytes failed: {}",
                    wc.qpn.get(),
                    self.layout.size,
                    explain(wc.status, &self.side.retry)
                );
            }
            let Some(completed) = self.completed.get_mut(qp) else {
                bail!("completion {:#x} matches no request", wc.wr_id)
            };
            if *completed & WRITE_MASK != write {
                bail!("queue pair {qp}: write {write} completed, but {completed} was next");
            }
            watch.completed(qp, *completed)?;
            *completed += 1;
        }
        Ok(count as u64)
    }
}

const WRITE_MASK: u64 = (1 << 48) - 1;

/// The clock of a run.
struct Pace {
    start: Instant,
    size: u32,
    mark: (Duration, u64),
    next_watch: Duration,
    peak_gbps: f64,
    pauses: Pauses,
}

impl Pace {
    fn new(size: u32) -> Self {
        Self {
            start: Instant::now(),
            size,
            mark: (Duration::ZERO, 0),
            next_watch: WATCH_INTERVAL,
            peak_gbps: 0.0,
            pauses: Pauses::default(),
        }
    }

    fn look(&mut self, done: u64, watch: &mut dyn Watch) -> Result<Duration> {
        let elapsed = self.start.elapsed();
        self.pauses.look(elapsed);
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
