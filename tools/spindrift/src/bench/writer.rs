//! Keeps a window of requests in flight on every queue pair and measures: a thread for each lane, with its own queue pairs and
//! completion queue.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Error, Result, bail};
use spindrift::verbs::Wc;

use super::contents::Contents;
use super::endpoint_setup::{Far, Side};
use super::layout::Layout;
use super::options::{Amount, Verify};
use super::pin::{Cores, cpu_time};
use super::preemption::Preemption;
pub(crate) use super::timing::Watch;
use super::timing::{Done, Pace, gbps};
pub(crate) use super::worker::Check;
use super::worker::{Memory, Stream, Worker};

/// What one size gave.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Measured {
    pub(crate) iterations: u64,
    pub(crate) bytes: u64,
    pub(crate) elapsed: Duration,
    /// Time for which this process's threads had cores.
    pub(crate) cpu: Duration,
    pub(crate) peak_gbps: f64,
    /// Longest time that a thread was not run, or stuck in one turn.
    pub(crate) longest_pause: Duration,
}

impl Measured {
    pub(crate) fn gbps(&self) -> f64 {
        gbps(self.bytes, self.elapsed)
    }

    /// This and a later piece of the same run.
    pub(crate) fn and(self, later: Self) -> Self {
        Self {
            iterations: self.iterations + later.iterations,
            bytes: self.bytes + later.bytes,
            elapsed: self.elapsed + later.elapsed,
            cpu: self.cpu + later.cpu,
            peak_gbps: self.peak_gbps.max(later.peak_gbps),
            longest_pause: self.longest_pause.max(later.longest_pause),
        }
    }

    pub(crate) fn mpps(&self) -> f64 {
        self.iterations as f64 / self.elapsed.as_secs_f64().max(1e-9) / 1e6
    }
}

/// The next lap of a run of which so much is over: each place is written once, and can be compared then.
pub(crate) fn next_lap(layout: &Layout, whole: Amount, over: &Measured) -> Option<Amount> {
    let lap = layout.slots * layout.qps as u64;
    let left = match whole {
        Amount::Iterations(all) => all.saturating_sub(over.iterations),
        Amount::Time(time) => {
            if over.elapsed < time {
                lap
            } else {
                0
            }
        }
    };
    (left > 0).then_some(Amount::Iterations(lap.min(left)))
}

/// Requests of one size: writes, as a rule.
pub(crate) struct Writer<'a> {
    contents: Contents,
    first: Worker<'a>,
    others: Vec<Worker<'a>>,
    cores: Cores,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(
        side: &'a mut Side,
        contents: Contents,
        far: &Far,
        (depth, verify): (u32, Verify),
        cores: &Cores,
    ) -> Result<Self> {
        let layout = &contents.layout;
        // Checked once for all slots.
        let memory = Memory {
            source: side.source.sge(0, layout.size)?,
            target: side.target.sge(0, layout.size)?,
            remote_target: far.target.at(0, layout.footprint())?,
            remote_source: far.source.unwrap_or(far.target).at(0, layout.footprint())?,
        };
        let (nics, retry, depth) = (&side.nics, side.retry, side.work.depth(layout, depth));
        let lap = (verify == Verify::Every).then_some(layout.slots);
        let worker = |(lane, cq)| Worker {
            lane,
            nics: nics.clone(),
            streams: Vec::new(),
            cq,
            contents,
            depth,
            memory,
            idle: cores.idle(),
            retry,
            wcs: [Wc::default(); 64],
        };
        let mut workers: Vec<_> = side.cqs.iter_mut().enumerate().map(worker).collect();
        for (number, qp) in side.qps.iter_mut().enumerate() {
            if let Some(worker) = workers.get_mut(qp.lane()) {
                worker.streams.push(Stream { number, qp, posted: 0, completed: 0, lap, end: u64::MAX });
            }
        }
        let mut workers = workers.into_iter();
        let Some(first) = workers.next() else { bail!("no lane") };
        Ok(Self { contents, first, others: workers.collect(), cores: cores.clone() })
    }

    /// Complete writes of each queue pair.
    pub(crate) fn writes(&self) -> Vec<u64> {
        let mut writes = vec![0; self.contents.layout.qps];
        for stream in self.others.iter().chain([&self.first]).flat_map(|worker| &worker.streams) {
            if let Some(writes) = writes.get_mut(stream.number) {
                *writes = stream.completed;
            }
        }
        writes
    }

    /// Messages that are not measured: they take so many receives of each queue pair, which the peer has posted.
    pub(crate) fn consume(&mut self, of_each: u64, watch: &mut dyn Watch, check: Check<'_>) -> Result<()> {
        let contents = self.contents;
        let share = |worker: &mut Worker<'_>| {
            let laps = worker.streams.iter_mut().map(|stream| {
                let lap = contents.messages_of(of_each, stream.number, stream.posted);
                stream.lap = Some(lap);
                lap
            });
            laps.sum()
        };
        let first = share(&mut self.first);
        let others: Vec<u64> = self.others.iter_mut().map(share).collect();
        let all = first + others.iter().sum::<u64>();
        self.run_shares(Amount::Iterations(all), first, &others, watch, check).map(drop)
    }

    /// Writes until the amount is reached and everything posted is complete.
    pub(crate) fn run(
        &mut self,
        amount: Amount,
        watch: &mut dyn Watch,
        check: Check<'_>,
    ) -> Result<Measured> {
        let mut shares = Shares { amount, qps: self.contents.layout.qps, before: 0 };
        let first = shares.next(self.first.streams.len());
        let others: Vec<_> = self.others.iter().map(|worker| shares.next(worker.streams.len())).collect();
        self.run_shares(amount, first, &others, watch, check)
    }

    /// As [`Writer::run`], with so many messages on the first lane, and so many on each of the others.
    fn run_shares(
        &mut self,
        amount: Amount,
        share: u64,
        of_others: &[u64],
        watch: &mut dyn Watch,
        check: Check<'_>,
    ) -> Result<Measured> {
        let Self { first, others, cores, .. } = self;
        let run = Run::new(amount, others.len() + 1);
        let before = cpu_time();
        let (pace, longest) = thread::scope(|scope| {
            let threads: Vec<_> = others
                .iter_mut()
                .zip(of_others)
                .map(|(worker, &share)| {
                    let (run, cores) = (&run, &*cores);
                    scope.spawn(move || {
                        cores.pin(worker.lane);
                        run.aside(worker, share, check)
                    })
                })
                .collect();
            let pace = run.at_the_clock(first, share, watch, check);
            // One that panicked has said so on standard error, and failed the run.
            let pauses = threads.into_iter().map(|thread| thread.join().unwrap_or_default());
            (pace, pauses.max().unwrap_or_default())
        });
        let elapsed = pace.start.elapsed();
        let Done { messages, bytes } = run.result()?;
        let cpu = cpu_time().saturating_sub(before);
        let longest_pause = pace.pauses.longest().max(longest);
        let measured = Measured { iterations: messages, bytes, elapsed, cpu, peak_gbps: 0.0, longest_pause };
        Ok(Measured { peak_gbps: pace.peak_gbps.max(measured.gbps()), ..measured })
    }
}

/// How many messages each lane writes: as many for each queue pair.
struct Shares {
    amount: Amount,
    qps: usize,
    /// Queue pairs that have their share.
    before: usize,
}

impl Shares {
    /// The share of the next so many queue pairs.
    fn next(&mut self, qps: usize) -> u64 {
        let Amount::Iterations(all) = self.amount else {
            return if qps == 0 { 0 } else { u64::MAX };
        };
        let up_to = |qps: usize| (u128::from(all) * qps as u128 / self.qps.max(1) as u128) as u64;
        let share = up_to(self.before + qps) - up_to(self.before);
        self.before += qps;
        share
    }
}

/// What the threads of a run share.
struct Run {
    amount: Amount,
    /// Nobody starts before all are there.
    start: Barrier,
    /// Messages and bytes complete on each lane, about.
    done: Box<[[AtomicU64; 2]]>,
    /// Lanes that have messages to write or in flight.
    writing: AtomicUsize,
    /// Set with the first error.
    failed: AtomicBool,
    error: Mutex<Option<Error>>,
}

impl Run {
    fn new(amount: Amount, lanes: usize) -> Self {
        Self {
            amount,
            start: Barrier::new(lanes),
            done: (0..lanes).map(|_| [const { AtomicU64::new(0) }; 2]).collect(),
            writing: AtomicUsize::new(lanes),
            failed: AtomicBool::new(false),
            error: Mutex::new(None),
        }
    }

    /// What is complete on all lanes.
    fn done(&self) -> Done {
        self.done.iter().fold(Done::default(), |all, [messages, bytes]| Done {
            messages: all.messages + messages.load(Ordering::Relaxed),
            bytes: all.bytes + bytes.load(Ordering::Relaxed),
        })
    }

    fn note(&self, lane: usize, done: Done) {
        if let Some([messages, bytes]) = self.done.get(lane) {
            messages.store(done.messages, Ordering::Relaxed);
            bytes.store(done.bytes, Ordering::Relaxed);
        }
    }

    fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    fn is_over(&self, elapsed: Duration) -> bool {
        matches!(self.amount, Amount::Time(time) if elapsed >= time)
    }

    /// Writes a lane's share, and drives it until all lanes have done so. An error ends them all.
    fn take_part(
        &self,
        worker: &mut Worker<'_>,
        share: u64,
        check: Check<'_>,
        clock: &mut dyn FnMut() -> Result<Duration>,
    ) {
        let part = Part(self);
        let lane = worker.lane;
        let wrote = worker.write(share, check, &mut |done| {
            self.note(lane, done);
            let elapsed = clock()?;
            if self.has_failed() {
                bail!("another lane failed");
            }
            Ok(self.is_over(elapsed))
        });
        let result = wrote.and_then(|done| {
            self.note(lane, done);
            drop(part);
            worker.serve(&mut || {
                clock()?;
                Ok(self.has_failed() || self.writing.load(Ordering::Acquire) == 0)
            })
        });
        if let Err(error) = result {
            // The first one is why the others ended.
            self.error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            self.failed.store(true, Ordering::Relaxed);
        }
    }

    /// As [`Run::take_part`], and keeps the time of all.
    fn at_the_clock(
        &self,
        worker: &mut Worker<'_>,
        share: u64,
        watch: &mut dyn Watch,
        check: Check<'_>,
    ) -> Pace {
        self.start.wait();
        let mut pace = Pace::new();
        self.take_part(worker, share, check, &mut || pace.look(self.done(), watch));
        pace
    }

    /// As [`Run::take_part`]. Returns the longest time that the thread was not run.
    fn aside(&self, worker: &mut Worker<'_>, share: u64, check: Check<'_>) -> Duration {
        self.start.wait();
        let (start, mut pauses) = (Instant::now(), Preemption::default());
        self.take_part(worker, share, check, &mut || {
            let elapsed = start.elapsed();
            pauses.look(elapsed);
            Ok(elapsed)
        });
        pauses.longest()
    }

    /// What is complete on all lanes, or why one failed.
    fn result(self) -> Result<Done> {
        let done = self.done();
        match self.error.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error),
            None if self.failed.into_inner() => bail!("the thread of a lane panicked"),
            None => Ok(done),
        }
    }
}

/// A lane that still writes.
struct Part<'a>(&'a Run);

impl Drop for Part<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.failed.store(true, Ordering::Relaxed);
        }
        self.0.writing.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn laps_end_with_the_run() {
        let layout = Layout::new(64, 3, 4).unwrap();
        let over = |iterations, ms| Measured {
            iterations,
            elapsed: Duration::from_millis(ms),
            ..Measured::default()
        };
        let laps = |whole, over| next_lap(&layout, whole, &over);
        let (lap, few) = (Some(Amount::Iterations(12)), Some(Amount::Iterations(1)));
        assert_eq!(laps(Amount::Iterations(25), over(0, 0)), lap);
        assert_eq!(laps(Amount::Iterations(25), over(24, 999)), few);
        assert_eq!(laps(Amount::Iterations(25), over(25, 0)), None);
        let time = Amount::Time(Duration::from_millis(10));
        assert_eq!((laps(time, over(999, 9)), laps(time, over(0, 10))), (lap, None));
    }

    #[test]
    fn lanes_write_as_much_for_each_queue_pair() {
        let shares = |all, lanes: &[usize]| {
            let mut shares = Shares { amount: Amount::Iterations(all), qps: lanes.iter().sum(), before: 0 };
            lanes.iter().map(|&qps| shares.next(qps)).collect::<Vec<_>>()
        };
        assert_eq!(shares(100, &[1]), [100]);
        assert_eq!(shares(100, &[3, 2]), [60, 40]);
        assert_eq!(shares(100, &[1, 1, 1]).iter().sum::<u64>(), 100);
        assert_eq!(shares(1, &[1, 1, 0]), [0, 1, 0]);
        assert_eq!(shares(u64::MAX, &[1, 1]).iter().sum::<u64>(), u64::MAX);
        let mut timed = Shares { amount: Amount::Time(Duration::ZERO), qps: 2, before: 0 };
        assert_eq!([2, 0].map(|qps| timed.next(qps)), [u64::MAX, 0]);
    }
}
