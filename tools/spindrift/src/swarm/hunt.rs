//! Runs many seeds on several threads, for a number of seeds or a time.

use std::io::{self, IsTerminal as _};
use std::panic;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value as Json, json};
use spindrift_fabric::swarm::{Case, Failure, Outcome, Part, minimise, run as run_case};

use super::{SwarmArgs, note, outcome_json, tell_outcome};
use crate::output::print_line;
use crate::stop::{Interrupted, Stop};
use crate::units::count;

/// Seeds unless told otherwise.
const SEEDS: u64 = 1000;
/// Failures after which there is enough to look at.
const MOST_FAILURES: usize = 5;

/// A seed that failed.
struct Failed {
    seed: u64,
    failure: Failure,
    case: Case,
    smallest: Part,
}

#[derive(Default)]
struct Found {
    total: Outcome,
    failed: Vec<Failed>,
}

/// What the threads share.
struct Hunt<'a> {
    first: u64,
    /// Seeds to run, and when to begin no other one.
    seeds: u64,
    until: Option<Instant>,
    next: AtomicU64,
    found: Mutex<Found>,
    stop: &'a Stop,
    bar: Option<ProgressBar>,
}

pub(super) fn run(args: &SwarmArgs) -> Result<()> {
    let began = Instant::now();
    let stop = Stop::on_ctrl_c()?;
    let seeds = args.seeds.unwrap_or(if args.time.is_some() { u64::MAX } else { SEEDS });
    let hunt = Hunt {
        first: args.first,
        seeds,
        until: args.time.map(|time| began + time),
        next: AtomicU64::new(0),
        found: Mutex::default(),
        stop: &stop,
        bar: bar(args, seeds),
    };
    let jobs = args.jobs.map_or_else(|| thread::available_parallelism().map_or(1, Into::into), usize::from);
    // A panic is a failure like any other, and told with the seed; the replay shows where it was.
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| hunt.work());
        }
    });
    panic::set_hook(hook);
    let stopped = stop.check().is_err();
    if let Some(bar) = &hunt.bar {
        bar.finish_and_clear();
    }
    let mut found = hunt.found.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    found.failed.sort_by_key(|failed| failed.seed);
    report(args, &found, began.elapsed());
    if stopped {
        return Err(Interrupted.into());
    }
    match found.failed.len() {
        0 => Ok(()),
        failed => Err(anyhow!(error(failed, &found))),
    }
}

fn error(failed: usize, found: &Found) -> String {
    format!("{failed} of {} failed", count(found.total.runs + failed as u64, "seed"))
}

fn bar(args: &SwarmArgs, seeds: u64) -> Option<ProgressBar> {
    if !io::stderr().is_terminal() {
        return None;
    }
    // Of a time, the milliseconds that have passed are shown.
    let total = if seeds == u64::MAX { args.time.map_or(0, |time| time.as_millis() as u64) } else { seeds };
    let bar = ProgressBar::new(total);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {percent:>3}%  {msg}") {
        bar.set_style(style);
    }
    Some(bar)
}

impl Hunt<'_> {
    fn work(&self) {
        let began = Instant::now();
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let late = self.until.is_some_and(|until| Instant::now() >= until);
            if number >= self.seeds || late || self.stop.check().is_err() {
                return;
            }
            if !self.one(self.first.wrapping_add(number), began) {
                return;
            }
        }
    }

    /// Runs a seed; `false` once there are enough failures.
    fn one(&self, seed: u64, began: Instant) -> bool {
        let case = Case::draw(seed);
        let result = run_case(&case, None);
        let failed = result.as_ref().err().map(|failure| {
            let smallest = minimise(&case, |case| run_case(case, None).is_err());
            Failed { seed, failure: failure.clone(), smallest, case: case.clone() }
        });
        let mut found = self.found.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Ok(outcome) = &result {
            found.total.add(outcome);
        }
        found.failed.extend(failed);
        self.show(&found, began);
        found.failed.len() < MOST_FAILURES
    }

    fn show(&self, found: &Found, began: Instant) {
        let Some(bar) = &self.bar else { return };
        let (runs, elapsed) = (found.total.runs + found.failed.len() as u64, began.elapsed());
        bar.set_position(if self.seeds == u64::MAX { elapsed.as_millis() as u64 } else { runs });
        let rate = found.total.hops as f64 / elapsed.as_secs_f64().max(1e-9) / 1e6;
        let simulated = Duration::from_nanos(found.total.virtual_ns);
        bar.set_message(format!("{runs} seeds, {simulated:.1?} simulated, {rate:.1} M hops/s"));
    }
}

fn report(args: &SwarmArgs, found: &Found, took: Duration) {
    let failures: Vec<_> = found.failed.iter().map(Failed::json).collect();
    if args.json {
        let failed = found.failed.len();
        let error = (failed > 0).then(|| error(failed, found));
        let object = json!({
            "command": "swarm",
            "version": env!("CARGO_PKG_VERSION"),
            "first": args.first,
            "outcome": outcome_json(&found.total),
            "failures": failures,
            "elapsed_s": took.as_secs_f64(),
            "error": error,
        });
        return print_line(&object.to_string());
    }
    let seeds = count(found.total.runs, "seed");
    print_line(&format!("{seeds} held, from {} on:", args.first));
    tell_outcome(&found.total, took);
    for failed in &found.failed {
        failed.tell();
    }
}

impl Failed {
    fn replay(&self) -> String {
        format!("spindrift swarm {}", self.smallest.options(self.seed))
    }

    fn tell(&self) {
        let Self { seed, failure, case, smallest } = self;
        note(&format!("seed {seed} failed {failure}"));
        for &number in &smallest.episodes {
            // Both are there: the case was built.
            if let (Some(episode), Ok(fabric)) = (case.episodes.get(number), case.fabric.fabric()) {
                note(&format!("  with episode {number}: {}", episode.describe(&fabric)));
            }
        }
        note(&format!("  replay it with: {} --pcap seed-{seed}.pcapng", self.replay()));
    }

    fn json(&self) -> Json {
        let Self { seed, failure, smallest, .. } = self;
        json!({
            "seed": seed,
            "at_ns": failure.at.0,
            "what": failure.what,
            "episodes": smallest.episodes,
            "flows": smallest.flows,
            "replay": self.replay(),
        })
    }
}
