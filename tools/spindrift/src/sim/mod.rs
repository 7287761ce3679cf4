//! `spindrift sim`: a fabric in this process, with traffic and faults as a plan says.

mod builtin_plans;
mod claim;
mod fault;
mod fault_impact;
mod nic;
mod page;
mod picture;
mod plan;
mod report;
mod run;
mod workload;

use std::io::{self, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value as Json;

use self::claim::Finding;
use self::plan::{Capture, Plan, PlanFile};
use self::run::{Outcome, Progress};
use crate::output::{print_line, write_file};
use crate::stop::Stop;
use crate::topology;
use crate::units::count;
use crate::usage::usage;

/// Runs the transport in a simulated fabric, with the traffic and faults of a plan
#[derive(Args, Debug)]
pub(crate) struct SimArgs {
    /// Plan file, the name of a built-in plan (figure-10, ..), or `all` for all built-in plans
    plan: String,
    /// Folder for the results [default: results/NAME; with `all`, results, which then has one folder per plan]
    #[arg(short, long, value_name = "FOLDER")]
    output: Option<PathBuf>,
    /// Seed of all randomness; overrides the plan's
    #[arg(long, value_name = "SEED")]
    seed: Option<u64>,
    /// Simulations to run in parallel [default: the number of processors]
    #[arg(short = 'j', long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: Option<u16>,
    /// Capture packets on these links (such as p0-t0-0:h1) or on all links, to packets.pcapng or, for a plan with variants, to
    /// packets-1.pcapng and so on. Not with the plan `all`
    #[arg(long, value_name = "LINK,..|all", value_delimiter = ',')]
    capture: Vec<String>,
    /// Print the object of result.json instead of the summary; with `all`, a list of objects
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &SimArgs) -> Result<()> {
    let all = args.plan == "all";
    let mut plan_files =
        if all { builtin_plans::all(args.seed)? } else { vec![find(&args.plan, args.seed)?] };
    if all && !args.capture.is_empty() {
        return Err(usage("--capture: name one plan, not `all`: links are those of its fabric"));
    }
    let results = Path::new("results");
    let folder = |plan_file: &PlanFile| match &args.output {
        Some(folder) if all => folder.join(&plan_file.name),
        Some(folder) => folder.clone(),
        None => results.join(&plan_file.name),
    };
    for plan_file in &mut plan_files {
        let folder = folder(plan_file);
        capture(plan_file, &args.capture, &folder)?;
    }
    for plan_file in &plan_files {
        let folder = folder(plan_file);
        std::fs::create_dir_all(&folder)
            .with_context(|| format!("--output: cannot make {}", folder.display()))?;
    }
    let stop = Stop::on_ctrl_c()?;
    let (mut played, wall) = play(plan_files, args.jobs, &stop)?;
    let mut objects = Vec::new();
    for played in &played {
        let folder = folder(&played.plan_file);
        let (summary, object) = played.write(&folder)?;
        if !args.json {
            let said =
                if all { played.in_short() } else { format!("{summary}\nresults: {}", folder.display()) };
            print_line(said.trim_end());
        }
        objects.push(object);
    }
    if all {
        let page = page::page(&played.iter().map(Played::entry).collect::<Vec<_>>());
        let folder = args.output.as_deref().unwrap_or(results);
        write_file(folder, "experiments.md", |file| file.write_all(page.as_bytes()))?;
        if !args.json {
            print_line(&format!("\nresults: {}, all in one page: experiments.md", folder.display()));
        }
    }
    if args.json {
        let object = if all { Json::Array(objects) } else { objects.pop().unwrap_or_default() };
        print_line(&object.to_string());
    } else {
        print_line(&report::speed(played.iter().flat_map(|played| &played.outcomes), wall));
    }
    played.drain(..).try_for_each(|played| {
        let checked = report::check(&played.outcomes, &played.findings);
        if all { checked.with_context(|| played.plan_file.name) } else { checked }
    })
}

/// The plan that is meant: a file, or one that is given.
fn find(plan: &str, seed: Option<u64>) -> Result<PlanFile> {
    let path = Path::new(plan);
    let is_file = path.extension().is_some_and(|end| end == "toml") || path.components().count() > 1;
    if is_file {
        return PlanFile::read(path, seed);
    }
    builtin_plans::find(plan, seed).unwrap_or_else(|| Err(builtin_plans::unknown(plan)))
}

/// Has packets on these links written to files in a folder, one for each variant.
fn capture(plan_file: &mut PlanFile, links: &[String], folder: &Path) -> Result<()> {
    let several = plan_file.variants.len() > 1;
    for (plan, number) in plan_file.variants.iter_mut().zip(1..).filter(|_| !links.is_empty()) {
        let fabric = &plan.fabric;
        let links = if links == ["all"] {
            fabric.links().flat_map(|(lower, upper)| [(lower, upper), (upper, lower)]).collect()
        } else {
            let links = links.iter().map(|text| topology::way(fabric, text.trim()));
            links.collect::<Result<_, _>>().map_err(|why| usage(format!("--capture: {why}")))?
        };
        let name = if several { format!("packets-{number}.pcapng") } else { "packets.pcapng".to_owned() };
        plan.capture = Some(Capture { path: folder.join(name), links });
    }
    Ok(())
}

/// A plan that was carried out.
#[derive(Debug)]
struct Played {
    /// Without its plans, which are in the outcomes.
    plan_file: PlanFile,
    outcomes: Vec<Outcome>,
    findings: Vec<Vec<Finding>>,
}

impl Played {
    /// Returns the summary, and what is in `result.json`.
    fn write(&self, folder: &Path) -> Result<(String, Json)> {
        let Self { plan_file, outcomes, findings } = self;
        let written = report::write(plan_file, outcomes, findings, folder)?;
        picture::draw(plan_file.figure, &plan_file.title, outcomes).write(folder)?;
        Ok(written)
    }

    fn entry(&self) -> page::Entry<'_> {
        let PlanFile { name, title, paper, scale, .. } = &self.plan_file;
        let variants = self.outcomes.iter().map(|outcome| outcome.plan.variant.as_str());
        page::Entry {
            name,
            title,
            paper: paper.as_deref(),
            scale: scale.as_deref(),
            findings: variants.zip(self.findings.iter().map(Vec::as_slice)).collect(),
        }
    }

    /// Which claims hold.
    fn in_short(&self) -> String {
        let all: Vec<_> = self.findings.iter().flatten().collect();
        let holding = all.iter().filter(|finding| finding.holds()).count();
        let mut text = format!("{}: {holding} of {}", self.plan_file.name, count(all.len() as u64, "claim"));
        text += if holding == 1 { " holds" } else { " hold" };
        for finding in all.iter().filter(|finding| !finding.holds()) {
            text += "\n  ";
            text += &finding.line();
        }
        text
    }
}

/// Carries out plans, and how long that took.
fn play(mut plan_files: Vec<PlanFile>, jobs: Option<u16>, stop: &Stop) -> Result<(Vec<Played>, Duration)> {
    let began = Instant::now();
    let plans: Vec<Vec<Plan>> =
        plan_files.iter_mut().map(|plan_file| std::mem::take(&mut plan_file.variants)).collect();
    let counts: Vec<_> = plans.iter().map(Vec::len).collect();
    let mut outcomes = play_plans(plans.into_iter().flatten().collect(), jobs, stop)?.into_iter();
    let played = plan_files.into_iter().zip(counts).map(|(plan_file, count)| {
        let outcomes: Vec<_> = outcomes.by_ref().take(count).collect();
        let findings = claim::judge(&outcomes);
        Played { plan_file, outcomes, findings }
    });
    Ok((played.collect(), began.elapsed()))
}

/// Carries out plans, some at a time; their outcomes are in the order of the plans.
fn play_plans(plans: Vec<Plan>, jobs: Option<u16>, stop: &Stop) -> Result<Vec<Outcome>> {
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
