//! Runs plans with one seed or several, some simulations at a time.

use std::io::{self, IsTerminal as _};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use indicatif::{ProgressBar, ProgressStyle};
use tracing::subscriber::NoSubscriber;

use super::claim;
use super::digest::Digest;
use super::finding::Finding;
use super::plan::{Plan, PlanFile, PlanSource, SeedChoice};
use super::run::{self, Outcome, Progress};
use crate::stop::Stop;
use crate::usage::usage;

/// A plan to run: its text, and what was read from it for the first seed.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) source: PlanSource,
    pub(super) plan_file: PlanFile,
}

/// A plan that was run.
#[derive(Debug)]
pub(super) struct Played {
    /// Without its variants, which are in the outcomes.
    pub(super) plan_file: PlanFile,
    /// With the first seed, by variant.
    pub(super) outcomes: Vec<Outcome>,
    /// Over all seeds, by variant.
    pub(super) findings: Vec<Vec<Finding>>,
    /// By variant and seed.
    pub(super) digests: Vec<Vec<Digest>>,
}

/// How often, with which seeds, and how many at a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Batch {
    /// The first seed if it is not the plan's.
    pub(super) first_seed: Option<u64>,
    pub(super) seeds: u64,
    pub(super) jobs: Option<u16>,
}

impl Batch {
    const fn choice(self, offset: u64) -> SeedChoice {
        SeedChoice { given: self.first_seed, offset }
    }

    /// Reads a plan for the first seed.
    pub(super) fn read(self, source: PlanSource) -> Result<Request> {
        let plan_file = source.read(self.choice(0))?;
        for Plan { seed, .. } in &plan_file.variants {
            if seed.checked_add(self.seeds - 1).is_none() {
                let (name, more, most) = (&source.name, self.seeds, u64::MAX);
                return Err(usage(format!(
                    "--seeds: {name}: {more} seeds from {seed} on exceed {most}; use a lower --seed"
                )));
            }
        }
        Ok(Request { source, plan_file })
    }

    /// Runs plans, and says how long that took. What came of them does not depend on how many run at a time.
    pub(super) fn play(self, requests: Vec<Request>, stop: &Stop) -> Result<(Vec<Played>, Duration)> {
        let began = Instant::now();
        let (mut plan_files, mut sources) = (Vec::new(), Vec::new());
        for Request { source, mut plan_file } in requests {
            let plans = std::mem::take(&mut plan_file.variants);
            plan_files.push(plan_file);
            sources.push((source, plans));
        }
        let whole_us = sources.iter().flat_map(|(_, plans)| plans).map(|plan| plan.duration_ns / 1_000);
        let bar = bar(whole_us.sum::<u64>().saturating_mul(self.seeds));
        let mut groups = Vec::new();
        for (source, plans) in &mut sources {
            let variants = plans.len();
            let mut first = plans.drain(..).map(Some).collect();
            for offset in 0..self.seeds {
                let plans = std::mem::replace(&mut first, (0..variants).map(|_| None).collect());
                groups.push(Group::new(source, self.choice(offset), plans));
            }
        }
        self.run(&groups, &bar, stop)?;
        let mut groups = groups.into_iter();
        let played = plan_files.into_iter().map(|plan_file| {
            let of_plan = groups.by_ref().take(usize::try_from(self.seeds).unwrap_or(usize::MAX));
            collect(plan_file, of_plan.map(Group::into_judged).collect::<Result<_>>()?)
        });
        Ok((played.collect::<Result<_>>()?, began.elapsed()))
    }

    /// Runs each variant of all groups.
    fn run(self, groups: &[Group<'_>], bar: &ProgressBar, stop: &Stop) -> Result<()> {
        let units: Vec<_> = groups
            .iter()
            .flat_map(|group| (0..group.plans.len()).map(move |number| (group, number)))
            .collect();
        let progress = Mutex::new(vec![Progress::default(); units.len()]);
        let results: Vec<_> = units.iter().map(|_| Mutex::new(Ok(()))).collect();
        let next = AtomicUsize::new(0);
        let work = || loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(((group, variant), result)) = units.get(number).zip(results.get(number)) else { return };
            let outcome = stop.check().and_then(|()| {
                run::run(group.plan(*variant)?, stop, &mut |at| {
                    let mut progress = locked(&progress);
                    if let Some(own) = progress.get_mut(number) {
                        *own = at;
                    }
                    show(bar, &progress);
                })
            });
            *locked(result) = outcome.map(|outcome| group.put(*variant, outcome));
        };
        let threads =
            self.jobs.map_or_else(|| thread::available_parallelism().map_or(1, Into::into), usize::from);
        thread::scope(|scope| {
            for _ in 0..threads.min(units.len()) {
                scope.spawn(work);
            }
        });
        bar.finish_and_clear();
        results.into_iter().try_for_each(|result| result.into_inner().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A plan with one seed. Its claims are judged as soon as all of its variants have run.
struct Group<'a> {
    source: &'a PlanSource,
    choice: SeedChoice,
    /// Variants that have been read; others are read when they run.
    plans: Vec<Mutex<Option<Plan>>>,
    outcomes: Mutex<Vec<Option<Outcome>>>,
    judged: Mutex<Option<Judged>>,
}

/// What came of a plan with one seed, by variant.
struct Judged {
    findings: Vec<Vec<Finding>>,
    digests: Vec<Digest>,
    /// Of the first seed only: those of many would not fit into memory.
    outcomes: Vec<Outcome>,
}

impl<'a> Group<'a> {
    fn new(source: &'a PlanSource, choice: SeedChoice, plans: Vec<Option<Plan>>) -> Self {
        let outcomes = plans.iter().map(|_| None).collect();
        let plans = plans.into_iter().map(Mutex::new).collect();
        Self { source, choice, plans, outcomes: Mutex::new(outcomes), judged: Mutex::new(None) }
    }

    fn plan(&self, variant: usize) -> Result<Plan> {
        if let Some(plan) = self.plans.get(variant).and_then(|plan| locked(plan).take()) {
            return Ok(plan);
        }
        // Reading tries connections out, which is nothing to log.
        let read = || self.source.read(self.choice);
        let plan_file = tracing::subscriber::with_default(NoSubscriber::default(), read)?;
        let plan = plan_file.variants.into_iter().nth(variant);
        plan.ok_or_else(|| anyhow!("{}: the plan has lost a variant", self.source.name))
    }

    /// One of the variants has run.
    fn put(&self, variant: usize, outcome: Outcome) {
        let mut outcomes = locked(&self.outcomes);
        if let Some(own) = outcomes.get_mut(variant) {
            *own = Some(outcome);
        }
        if outcomes.iter().any(Option::is_none) {
            return;
        }
        let outcomes: Vec<_> = std::mem::take(&mut *outcomes).into_iter().flatten().collect();
        let findings = claim::judge(&outcomes);
        let digests = outcomes.iter().map(Digest::of).collect();
        let outcomes = if self.choice.offset == 0 { outcomes } else { Vec::new() };
        *locked(&self.judged) = Some(Judged { findings, digests, outcomes });
    }

    fn into_judged(self) -> Result<Judged> {
        let judged = self.judged.into_inner().unwrap_or_else(PoisonError::into_inner);
        judged.ok_or_else(|| anyhow!("{}: a variant was not run", self.source.name))
    }
}

/// What came of a plan with each of its seeds, in one.
fn collect(plan_file: PlanFile, of_seeds: Vec<Judged>) -> Result<Played> {
    let mut of_seeds = of_seeds.into_iter();
    let first = of_seeds.next().ok_or_else(|| anyhow!("{}: there is no seed", plan_file.name))?;
    let Judged { mut findings, digests, outcomes } = first;
    let mut digests: Vec<_> = digests.into_iter().map(|digest| vec![digest]).collect();
    for judged in of_seeds {
        for (own, other) in findings.iter_mut().flatten().zip(judged.findings.into_iter().flatten()) {
            own.add(other);
        }
        for (own, other) in digests.iter_mut().zip(judged.digests) {
            own.push(other);
        }
    }
    Ok(Played { plan_file, outcomes, findings, digests })
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Simulated time, on standard error if that is a terminal.
fn bar(whole_us: u64) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(whole_us);
    if let Ok(style) = ProgressStyle::with_template("{wide_bar} {msg} ({elapsed}, {eta} left)") {
        bar.set_style(style);
    }
    bar
}

fn show(bar: &ProgressBar, progress: &[Progress]) {
    let now_ns: u64 = progress.iter().map(|at| at.now_ns).sum();
    let hops: u64 = progress.iter().map(|at| at.hops).sum();
    bar.set_position(now_ns / 1_000);
    let rate = hops as f64 / bar.elapsed().as_secs_f64().max(1e-3) / 1e6;
    bar.set_message(format!("{:.3} ms simulated, {rate:.1} million packet-hops/s", now_ns as f64 / 1e6));
}
