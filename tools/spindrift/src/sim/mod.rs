//! `spindrift sim`: a fabric in this process, with traffic and faults as a plan says.

mod batch;
mod builtin_plans;
mod claim;
mod digest;
mod fault;
mod fault_impact;
mod finding;
mod flaps;
mod logged;
mod nic;
mod page;
mod picture;
mod plan;
mod report;
mod roce;
mod run;
mod slowdown;
mod workload;

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::Args;
use serde_json::Value as Json;

use self::batch::{Batch, Played, Request};
pub(crate) use self::logged::Clock;
use self::plan::{Capture, PlanFile, PlanSource};
use crate::output::{print_line, write_file};
use crate::stop::Stop;
use crate::topology;
use crate::usage::usage;
use crate::verbose;

/// Runs the transport in a simulated fabric, with the traffic and faults of a plan
#[derive(Args, Debug)]
pub(crate) struct SimArgs {
    /// Plan files, names of built-in plans (figure-10, ..), or `all` for all built-in plans
    #[arg(value_name = "PLAN", required = true)]
    plans: Vec<String>,
    /// Folder for the results [default: results/NAME; with several plans, results, which then has one folder per plan]
    #[arg(short, long, value_name = "FOLDER")]
    output: Option<PathBuf>,
    /// Seed of all randomness; overrides the plan's
    #[arg(long, value_name = "SEED")]
    seed: Option<u64>,
    /// Run each plan with N seeds, the first and those that follow it (seed, seed+1, ..), and judge claims over all of them. Tables and
    /// pictures are of the first
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    /// Simulations to run in parallel [default: the number of processors]
    #[arg(short = 'j', long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: Option<u16>,
    /// Capture packets on these links (such as p0-t0-0:h1) or on all links, to packets.pcapng or, for a plan with variants, to
    /// packets-1.pcapng and so on; of several seeds, the first. Not with several plans
    #[arg(long, value_name = "LINK,..|all", value_delimiter = ',')]
    capture: Vec<String>,
    /// Log to standard error what hosts do, with simulated time, host, variant and seed: -v life cycle, -vv also paths, congestion and
    /// timeouts, -vvv everything. `SPINDRIFT_LOG` selects in detail [default: nothing]
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,
    /// Print the object of result.json instead of the summary; with several plans, a list of objects
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &SimArgs) -> Result<()> {
    let batch = Batch { first_seed: args.seed, seeds: args.seeds, jobs: args.jobs };
    let sources = find(&args.plans)?;
    let mut requests = sources.into_iter().map(|source| batch.read(source)).collect::<Result<Vec<_>>>()?;
    let results = Results { output: args.output.as_deref(), several: requests.len() > 1, json: args.json };
    if results.several && !args.capture.is_empty() {
        return Err(usage("--capture: name one plan: links are those of its fabric"));
    }
    for Request { plan_file, .. } in &mut requests {
        capture(plan_file, &args.capture, &results.folder(&plan_file.name))?;
    }
    for Request { plan_file, .. } in &requests {
        let folder = results.folder(&plan_file.name);
        std::fs::create_dir_all(&folder)
            .with_context(|| format!("--output: cannot make {}", folder.display()))?;
    }
    verbose::start_if_asked(args.verbose)?;
    let stop = Stop::on_ctrl_c()?;
    let (played, wall) = batch.play(requests, &stop)?;
    let mut objects = Vec::new();
    for played in &played {
        objects.push(results.write(played)?);
    }
    if results.several {
        results.write_page(&played, args.seeds)?;
    }
    if args.json {
        let object = if results.several { Json::Array(objects) } else { objects.pop().unwrap_or_default() };
        print_line(&object.to_string());
    } else {
        print_line(&report::speed(played.iter().flat_map(|played| played.digests.iter().flatten()), wall));
    }
    played.into_iter().try_for_each(|played| {
        let checked = report::check(&played);
        if results.several { checked.with_context(|| played.plan_file.name) } else { checked }
    })
}

/// The plans that are meant, each a file or a built-in one. No two have one name: results are in a folder of that name.
fn find(plans: &[String]) -> Result<Vec<PlanSource>> {
    let mut sources = Vec::new();
    for plan in plans {
        let path = Path::new(plan);
        let is_file = path.extension().is_some_and(|end| end == "toml") || path.components().count() > 1;
        if is_file {
            sources.push(PlanSource::of_file(path)?);
        } else if plan == "all" {
            sources.extend(builtin_plans::all());
        } else {
            sources.push(builtin_plans::find(plan).ok_or_else(|| builtin_plans::unknown(plan))?);
        }
    }
    let mut names = BTreeSet::new();
    if let Some(twice) = sources.iter().find(|source| !names.insert(&source.name)) {
        let name = &twice.name;
        return Err(usage(format!("two plans are called {name}, which would be one folder; name it once")));
    }
    Ok(sources)
}

/// Where results go, and what is printed of them.
#[derive(Clone, Copy, Debug)]
struct Results<'a> {
    output: Option<&'a Path>,
    /// Each of several plans has a folder of its own.
    several: bool,
    json: bool,
}

impl Results<'_> {
    fn whole(self) -> PathBuf {
        self.output.unwrap_or(Path::new("results")).to_owned()
    }

    /// The folder of a plan.
    fn folder(self, name: &str) -> PathBuf {
        if self.several || self.output.is_none() { self.whole().join(name) } else { self.whole() }
    }

    /// Returns what is in `result.json`.
    fn write(self, played: &Played) -> Result<Json> {
        let folder = self.folder(&played.plan_file.name);
        let (summary, object) = report::write(played, &folder)?;
        let PlanFile { figure, title, .. } = &played.plan_file;
        picture::draw(*figure, title, &played.outcomes).write(&folder)?;
        if !self.json {
            let said = if self.several {
                report::in_short(played)
            } else {
                format!("{summary}\nresults: {}", folder.display())
            };
            print_line(said.trim_end());
        }
        Ok(object)
    }

    /// All plans in one page.
    fn write_page(self, played: &[Played], seeds: u64) -> Result<()> {
        let (page, folder) = (page::page(played, seeds), self.whole());
        write_file(&folder, "experiments.md", |file| file.write_all(page.as_bytes()))?;
        if !self.json {
            print_line(&report::all_in_short(played));
            print_line(&format!("\nresults: {}, all in one page: experiments.md", folder.display()));
        }
        Ok(())
    }
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
