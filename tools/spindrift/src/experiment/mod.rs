//! `spindrift experiment`: a fabric in this process, with traffic and faults as a plan says.

mod fault;
mod plan;
mod report;
mod run;
mod workload;

use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Context as _, Result, anyhow};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use self::plan::{Experiment, Plan};
use self::run::{Outcome, Progress};
use crate::output::say;
use crate::stop::Stop;

/// Runs an experiment in a simulated fabric, in simulated time: hosts that run the transport, traffic and faults as a plan says.
#[derive(Args, Debug)]
pub(crate) struct ExperimentArgs {
    /// Plan file (examples in configs/experiments/fabric/).
    plan: PathBuf,
    /// Folder for the results [default: results/NAME, by the name of the file].
    #[arg(short, long, value_name = "FOLDER")]
    output: Option<PathBuf>,
    /// Of everything random, in place of the plan's.
    #[arg(long, value_name = "SEED")]
    seed: Option<u64>,
    /// Variants of a plan that run at a time; as many as there are processors unless given.
    #[arg(short = 'j', long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: Option<u16>,
    /// Print the object of result.json instead of the summary.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &ExperimentArgs) -> Result<()> {
    let experiment = Experiment::read(&args.plan, args.seed)?;
    let folder = args.output.clone().unwrap_or_else(|| Path::new("results").join(&experiment.name));
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("--output: cannot make {}", folder.display()))?;
    let stop = Stop::on_ctrl_c()?;
    let Experiment { name, title, variants } = experiment;
    let outcomes = play(variants, args.jobs, &stop)?;
    let (summary, object) = report::write(&name, &title, &outcomes, &folder)?;
    if args.json {
        say(&object.to_string());
    } else {
        say(summary.trim_end());
        say(&format!("\n{}\nresults: {}", report::speed(&outcomes), folder.display()));
    }
    report::check(&outcomes)
}

/// Carries out plans, some at a time; their outcomes are in the order of the plans.
fn play(plans: Vec<Plan>, jobs: Option<u16>, stop: &Stop) -> Result<Vec<Outcome>> {
    let threads = jobs.map_or_else(|| thread::available_parallelism().map_or(1, Into::into), usize::from);
    let all = plans.len();
    let bar = bar(&plans);
    let progress = Mutex::new(vec![Progress::default(); all]);
    let plans: Vec<_> = plans.into_iter().map(|plan| Mutex::new(Some(plan))).collect();
    let outcomes: Vec<_> = (0..all).map(|_| Mutex::new(None)).collect();
    let next = AtomicUsize::new(0);
    let work = || loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        let Some((plan, outcome)) = plans.get(number).zip(outcomes.get(number)) else { return };
        let Some(plan) = locked(plan).take() else { return };
        let result = stop.check().and_then(|()| {
            run::run(plan, stop, &mut |at| {
                let mut progress = locked(&progress);
                if let Some(own) = progress.get_mut(number) {
                    *own = at;
                }
                show(&bar, &progress);
            })
        });
        *locked(outcome) = Some(result);
    };
    thread::scope(|scope| {
        for _ in 0..threads.min(all) {
            scope.spawn(work);
        }
    });
    bar.finish_and_clear();
    let outcomes = outcomes.into_iter().map(|outcome| {
        let outcome = outcome.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        outcome.unwrap_or_else(|| Err(anyhow!("a variant was not run")))
    });
    outcomes.collect()
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Simulated time, on standard error if that is a terminal.
fn bar(plans: &[Plan]) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let whole_us: u64 = plans.iter().map(|plan| plan.duration_ns / 1_000).sum();
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
