//! `spindrift lab run`: a scenario from its file to its summary.

mod agents;
mod capacity;
mod figure;
mod outcome;
mod process;
mod record;
mod recovery;
mod report;
mod scenario;
mod series;
mod traffic;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};
use clap::Args;

use self::agents::{ControlFolder, Running};
use self::outcome::{Outcome, Run};
use self::scenario::Scenario;
use self::traffic::{Begin, Ended, Files, Stage};
use super::faults::{Faults, check_switches};
use super::ip::Ip;
use super::plan::LabPlan;
use super::schedule::{self, Conductor, Happened};
use super::{LabName, NewLab, SwitchOption};
use crate::driver::Driver;
use crate::lab::state::Lab;
use crate::output::{eprint_line, error_chain, print_line};
use crate::stop::Stop;

/// How long flows have to begin.
const PATIENCE: Duration = Duration::from_secs(30);
const NAP: Duration = Duration::from_millis(5);

#[derive(Args, Debug)]
pub(super) struct RunArgs {
    #[command(flatten)]
    lab: LabName,
    #[command(flatten)]
    switch: SwitchOption,
    /// Kind of the hosts' ports [default: as the scenario says, else udp]
    #[arg(long, value_name = "KIND")]
    port: Option<&'static Driver>,
    /// Scenario file (examples: configs/lab/scenarios/)
    #[arg(value_name = "SCENARIO")]
    scenario: PathBuf,
    /// Folder for the results [default: results/NAME, after the name of the scenario file]
    #[arg(short, long, value_name = "FOLDER")]
    output: Option<PathBuf>,
}

pub(super) fn run(args: &RunArgs) -> Result<()> {
    let mut scenario = Scenario::read(&args.scenario)?;
    scenario.switch = args.switch.switch.unwrap_or(scenario.switch);
    scenario.use_ports(args.port)?;
    let ip = Ip::find()?;
    let stop = Stop::on_ctrl_c()?;
    let folder = args.output.clone().unwrap_or_else(|| Path::new("results").join(&scenario.name));
    let raw = folder.join("raw");
    fs::create_dir_all(&raw).with_context(|| format!("--output: cannot make {}", raw.display()))?;
    let plan = LabPlan::new(&scenario.fabric, &args.lab.name);
    let (name, file) = (&args.lab.name, &scenario.topology);
    let faults = scenario.entries.iter().map(|entry| &entry.fault).chain(&scenario.link_rate);
    check_switches(scenario.switch, faults)?;
    let lab = NewLab { name, file, kind: scenario.switch }.create(&ip, &plan, &stop)?;
    let topology = raw.join("topology.toml");
    fs::write(&topology, file.text()).with_context(|| format!("cannot write {}", topology.display()))?;
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let check = || stop.check();
    let denies = scenario.agents.as_ref().is_some_and(|agents| agents.policy.is_some());
    let control = denies.then(|| ControlFolder::make(name)).transpose()?;
    let stage = Stage {
        scenario: &scenario,
        plan: &plan,
        ip: &ip,
        program,
        topology,
        folder: &raw,
        control,
        check: &check,
    };
    let faults = Faults::open(Lab::open(name), &plan, &ip);
    let played = faults.and_then(|faults| play(&stage, &faults, &stop));
    let removed = lab.remove(&ip);
    // Ctrl-C ends the processes, too; and why it ended first counts.
    let played = stop.check().and(played);
    let run = match (played, removed) {
        (Ok(run), removed) => removed.map(|_| run)?,
        (Err(error), Ok(_)) => return Err(error),
        (Err(error), Err(left)) => {
            eprint_line(format_args!("spindrift: {}", error_chain(&left)));
            return Err(error);
        }
    };
    let outcome = Outcome::of(&scenario, run)?;
    let summary = report::write(&scenario, &outcome, &folder)?;
    print_line(summary.trim_end());
    print_line(&format!("\nresults: {}", folder.display()));
    outcome.check()
}

/// Runs the flows while the faults happen.
fn play(stage: &Stage<'_>, faults: &Faults<'_>, stop: &Stop) -> Result<Run> {
    let scenario = stage.scenario;
    if let Some(fault) = scenario.link_rate {
        faults.change(|set| scenario.fabric.links().for_each(|link| set.add("", link, fault)))?;
    }
    let agents = Running::start(stage)?;
    let names = names(scenario);
    let begin = Begin::default();
    let happened = Mutex::new(Vec::<Happened>::new());
    thread::scope(|scope| {
        let flows: Vec<_> = scenario
            .flows
            .iter()
            .zip(&names)
            .enumerate()
            .map(|(number, (flow, name))| {
                let begin = &begin;
                scope.spawn(move || stage.flow(number, flow, name, begin))
            })
            .collect();
        let check = || {
            if begin.has_failed() {
                return Err(Ended.into());
            }
            stop.check()?;
            agents.check()
        };
        let played = begin_all(stage, &names, &begin, &check).and_then(|(start, start_ns)| {
            let mut told = |happened_now: &Happened| {
                let at = happened_now.from.duration_since(start).as_secs_f64();
                for line in happened_now.lines(&scenario.entries) {
                    eprint_line(format_args!("{at:>9.3} s  {line}"));
                }
                if let Ok(mut all) = happened.lock() {
                    all.push(happened_now.clone());
                }
            };
            let until = Some(scenario.duration);
            let mut conductor = Conductor { start, until, check: &check, told: &mut told };
            schedule::play(faults, &scenario.fabric, &scenario.entries, &mut conductor)?;
            Ok((start, start_ns))
        });
        if played.is_err() {
            begin.fail();
        }
        let (mut said, mut errors) = (Vec::new(), Vec::new());
        for flow in flows {
            match flow.join().unwrap_or_else(|_| bail!("a thread panicked")) {
                Ok(flow) => said.push(flow),
                Err(error) => errors.push(error),
            }
        }
        let start = played.map_err(|error| errors.push(error)).ok();
        // What ended because of something else has nothing to say of it.
        errors.sort_by_key(anyhow::Error::is::<Ended>);
        if let Some(error) = errors.into_iter().next() {
            return Err(error);
        }
        let (start, start_ns) = start.context("the scenario did not start")?;
        let files = names.iter().map(|name| Files::of(stage.folder, name)).collect();
        let happened = happened.into_inner().unwrap_or_default();
        Ok(Run { start, start_ns, names: names.clone(), files, said, happened, agents: Vec::new() })
    })
    .and_then(|run| Ok(Run { agents: agents.end(run.start_ns)?, ..run }))
}

/// Waits until all flows that begin at once are under way: that is when the scenario starts. The time is also told in nanoseconds since 1970.
fn begin_all(
    stage: &Stage<'_>,
    names: &[String],
    begin: &Begin,
    check: &dyn Fn() -> Result<()>,
) -> Result<(Instant, u64)> {
    let waiting = Instant::now();
    for (flow, name) in stage.scenario.flows.iter().zip(names) {
        while flow.start.is_zero() && !stage.flows(name) {
            check()?;
            if waiting.elapsed() > PATIENCE {
                bail!("flow {name}: no payload arrives");
            }
            thread::sleep(NAP);
        }
    }
    let (start, wall) = (Instant::now(), SystemTime::now());
    begin.set(start);
    Ok((start, wall.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)))
}

/// A name for each flow.
fn names(scenario: &Scenario) -> Vec<String> {
    let mut names = Vec::<String>::new();
    for flow in &scenario.flows {
        let name = flow.name(&scenario.fabric);
        let same = scenario
            .flows
            .iter()
            .take(names.len())
            .filter(|other| (other.from, other.to) == (flow.from, flow.to));
        let same = same.count();
        names.push(if same == 0 { name } else { format!("{name}.{}", same + 1) });
    }
    names
}
