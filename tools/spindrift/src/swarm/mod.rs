//! `spindrift swarm`: simulated fabrics under faults that are drawn from seeds, every byte compared.

mod hunt;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use clap::Args;
use serde_json::{Value as Json, json};
use spindrift::time::Time;
use spindrift_fabric::swarm::{Case, Outcome, Part, Watch, run as run_case};
use spindrift_srv6::{Node, Shape};

use crate::output::{eprint_line, print_line};
use crate::trace::Trace;
use crate::units::{count, format_rate, parse_duration};
use crate::usage::usage;
use crate::verbose::Verbosity;

/// Tests the transport in random simulated fabrics with faults; compares every byte and completion with a model
#[derive(Args, Debug)]
pub(crate) struct SwarmArgs {
    /// Number of seeds to run [default: 1000, or no limit with --time]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    seeds: Option<u64>,
    /// Start no further seed after this time: 90s, 10m
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    time: Option<Duration>,
    /// First seed (then consecutive), or `random`
    #[arg(long, value_name = "SEED", default_value = "0", value_parser = parse_first)]
    first: u64,
    /// Seeds to run in parallel [default: the number of processors]
    #[arg(short = 'j', long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: Option<u16>,
    /// Run only this seed, and print its fabric, flows and fault episodes
    #[arg(long, value_name = "SEED", conflicts_with_all = ["seeds", "time", "first", "jobs"])]
    seed: Option<u64>,
    /// With --seed: keep only these fault episodes, such as 0,3, or none
    #[arg(long, value_name = "LIST", requires = "seed", value_parser = parse_list)]
    episodes: Option<List>,
    /// With --seed: keep only these queue pairs, such as 0,3
    #[arg(long, value_name = "LIST", requires = "seed", value_parser = parse_list)]
    flows: Option<List>,
    /// With --seed: write the packets of every link to this file (pcapng)
    #[arg(long, value_name = "FILE", requires = "seed")]
    pcap: Option<PathBuf>,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    verbosity: Verbosity,
}

/// Numbers of parts.
#[derive(Clone, Debug)]
struct List(Vec<usize>);

fn parse_list(text: &str) -> Result<List, String> {
    if text == "none" {
        return Ok(List(Vec::new()));
    }
    let numbers: Result<Vec<_>, _> = text.split(',').map(|number| number.trim().parse()).collect();
    let bad = |_| format!("`{text}` is not a list; write numbers, as in 0,3, or none");
    let mut numbers = numbers.map_err(bad)?;
    numbers.sort_unstable();
    numbers.dedup();
    Ok(List(numbers))
}

fn parse_first(text: &str) -> Result<u64, String> {
    use std::hash::{BuildHasher as _, RandomState};
    if text == "random" {
        // Its keys are random. A seed of 48 bits is exact in any JSON reader.
        return Ok(RandomState::new().hash_one(0) >> 16);
    }
    text.parse().map_err(|_| format!("`{text}` is not a seed; give a number, or random"))
}

impl SwarmArgs {
    /// How much of one run is reported; nothing of what happens in thousands of them.
    pub(crate) fn verbosity(&self) -> Option<Verbosity> {
        self.seed.map(|_| self.verbosity)
    }
}

pub(crate) fn run(args: &SwarmArgs) -> Result<()> {
    args.seed.map_or_else(|| hunt::run(args), |seed| replay(args, seed))
}

/// One seed, or a part of it.
fn replay(args: &SwarmArgs, seed: u64) -> Result<()> {
    let whole = Case::draw(seed);
    let part = part(args, &whole)?;
    let case = part.of(&whole);
    if !args.json {
        tell_case(&whole, &part)?;
    }
    let trace = args.pcap.as_ref().map(|path| trace(path, &case)).transpose()?;
    let began = Instant::now();
    let result = run_case(&case, trace.as_ref().map(|trace| -> Watch { Box::new(trace.sink()) }));
    let took = began.elapsed();
    if let Some(trace) = trace {
        trace.finish()?;
    }
    let error = result.as_ref().err().map(|failure| format!("seed {seed} failed {failure}"));
    if args.json {
        let outcome = result.as_ref().map_or(Json::Null, outcome_json);
        print_line(
            &json!({
                "command": "swarm",
                "version": env!("CARGO_PKG_VERSION"),
                "seed": seed,
                "episodes": part.episodes,
                "flows": part.flows,
                "outcome": outcome,
                "elapsed_s": took.as_secs_f64(),
                "error": error,
            })
            .to_string(),
        );
    } else if let Ok(outcome) = &result {
        print_line("held:");
        tell_outcome(outcome, took);
    }
    error.map_or(Ok(()), |error| Err(anyhow!(error)))
}

/// A capture of each direction of each cable.
fn trace(path: &Path, case: &Case) -> Result<Trace> {
    let fabric = case.fabric.fabric()?;
    Trace::create(path, &fabric, fabric.links().flat_map(|(lower, upper)| [(lower, upper), (upper, lower)]))
}

/// The parts of a case that are asked for.
fn part(args: &SwarmArgs, case: &Case) -> Result<Part> {
    let whole = Part::whole(case);
    let pick = |flag, list: &Option<List>, all: Vec<usize>, what| {
        let Some(List(numbers)) = list else { return Ok(all) };
        match numbers.iter().find(|number| !all.contains(number)) {
            None => Ok(numbers.clone()),
            Some(number) => {
                let there_are = match all.last() {
                    None => "none".to_owned(),
                    Some(last) => format!("0 to {last}"),
                };
                Err(usage(format!("{flag} {number}: of {what} the seed has {there_are}")))
            }
        }
    };
    let flows = pick("--flows", &args.flows, whole.flows, "queue pairs")?;
    if flows.is_empty() {
        return Err(usage("--flows none: give at least one queue pair"));
    }
    Ok(Part { episodes: pick("--episodes", &args.episodes, whole.episodes, "faults")?, flows })
}

/// The switches of a plane, tier by tier, from the hosts' on: `4 + 6 + 3`.
fn tiers(shape: &Shape) -> String {
    let each: Vec<_> = (0..shape.tiers()).map(|tier| shape.of_tier(tier).to_string()).collect();
    each.join(" + ")
}

fn tell_case(case: &Case, part: &Part) -> Result<()> {
    let (fabric, names) = (&case.fabric, case.fabric.fabric()?);
    print_line(&format!(
        "{} with {} at {}; switches in each: {}; hosts at each T0 switch: {}; {}, round trip {} us",
        count(fabric.hosts().into(), "host"),
        count(fabric.planes.into(), "plane"),
        format_rate(fabric.host_rate_bps),
        tiers(names.shape()),
        fabric.hosts_per_t0,
        if case.srv6 { "source routes" } else { "equal-cost paths" },
        case.rtt_ns() / 1_000,
    ));
    for (number, flow) in case.flows.iter().enumerate() {
        let [a, b] = &flow.ends;
        let left_out = if part.flows.contains(&number) { "" } else { " (left out)" };
        let [there, back] = [a, b].map(|end| match end.operations() {
            none if none.is_empty() || end.messages == 0 => String::new(),
            some => format!(" ({some})"),
        });
        print_line(&format!(
            "  flow {number}: {} and {}, from {}, {} messages of up to {} B there{there}, {} of up to {} B back{back}{left_out}",
            names.name(Node::Host(flow.hosts[0])),
            names.name(Node::Host(flow.hosts[1])),
            flow.starts_at,
            a.messages,
            a.largest,
            b.messages,
            b.largest,
        ));
    }
    for (number, episode) in case.episodes.iter().enumerate() {
        let left_out = if part.episodes.contains(&number) { "" } else { " (left out)" };
        print_line(&format!("  episode {number}: {}{left_out}", episode.describe(&names)));
    }
    if let Some(roles) = case.roles {
        let [hold, most] = roles.hold_ns.map(Time);
        let planes = (0..32).filter(|plane| roles.standby >> plane & 1 == 1);
        let planes: Vec<_> = planes.map(|plane| plane.to_string()).collect();
        let probes = match roles.probe_ns {
            0 => "not probed".to_owned(),
            ns => format!("probed each {}", Time(ns)),
        };
        let planes = planes.join(", ");
        print_line(&format!(
            "  planes that stand by: {planes}; {probes}; traffic returns after {hold} to {most}"
        ));
    }
    let may_fail = if case.may_fail { "; queue pairs may give up" } else { "" };
    print_line(&format!("  the network heals at {}{may_fail}", case.heal_at));
    Ok(())
}

fn tell_outcome(outcome: &Outcome, took: Duration) {
    let Outcome { packets, hops, messages, bytes, fetches, not_ready, lost, trimmed, .. } = *outcome;
    let Outcome { retransmits, needless, timeouts, gave_up, virtual_ns, slowest_ns, .. } = *outcome;
    let (simulated, slowest) = (Duration::from_nanos(virtual_ns), Duration::from_nanos(slowest_ns));
    print_line(&format!("  {packets} packets over {hops} hops, {messages} messages of {bytes} bytes in all"));
    print_line(&format!(
        "  {fetches} READs and atomic operations; {not_ready} packets found no receive work request"
    ));
    print_line(&format!(
        "  {lost} packets lost, {trimmed} trimmed, {retransmits} retransmitted, {needless} needlessly; {timeouts} retransmission timeouts"
    ));
    let rate = hops as f64 / took.as_secs_f64().max(1e-9) / 1e6;
    print_line(&format!(
        "  {simulated:.3?} of simulated time in {took:.1?}, {rate:.2} million hops a second"
    ));
    print_line(&format!("  all work was complete at most {slowest:.3?} after the network had healed"));
    let Outcome { failovers, silent_failovers, failbacks, .. } = *outcome;
    if failovers > 0 {
        let failovers = count(failovers, "failover");
        print_line(&format!(
            "  {failovers} to another NIC, {silent_failovers} of them in silence; {failbacks} back"
        ));
    }
    if gave_up > 0 {
        print_line(&format!("  {} gave up, as they may", count(gave_up, "queue pair")));
    }
}

fn outcome_json(outcome: &Outcome) -> Json {
    let Outcome { runs, packets, hops, messages, bytes, fetches, not_ready, lost, trimmed, .. } = *outcome;
    let Outcome { retransmits, needless, timeouts, gave_up, virtual_ns, slowest_ns, .. } = *outcome;
    json!({
        "runs": runs,
        "packets": packets,
        "hops": hops,
        "messages": messages,
        "bytes": bytes,
        "fetches": fetches,
        "not_ready": not_ready,
        "lost": lost,
        "trimmed": trimmed,
        "retransmits": retransmits,
        "needless": needless,
        "timeouts": timeouts,
        "gave_up": gave_up,
        "failovers": outcome.failovers,
        "silent_failovers": outcome.silent_failovers,
        "failbacks": outcome.failbacks,
        "simulated_ns": virtual_ns,
        "slowest_ns": slowest_ns,
    })
}

/// Prints on standard error what is told beside a result.
fn note(line: &str) {
    eprint_line(format_args!("{line}"));
}
