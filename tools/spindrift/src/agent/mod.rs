//! `spindrift agent`: probes the links of a fabric from this host, and shows what an agent knows.

mod client;
mod show;
mod top;

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};
use clap::{Args, Subcommand};
use rand::TryRng as _;
use rand::rngs::SysRng;
use serde_json::json;
use spindrift_agent::policy::{Policy, PolicySettings};
use spindrift_agent::{AgentSettings, LocateSettings, Locator, Plan, ProbeSettings, SharePolicy};
use spindrift_agentd::cluster::Cluster;
use spindrift_agentd::deny::Messenger;
use spindrift_agentd::http::{HttpError, Server};
use spindrift_agentd::runner::{Event, Runner, RunnerError};
use spindrift_agentd::snapshot::{DecisionReport, Part, Scene, Snapshot};
use spindrift_agentd::token::Token;
use spindrift_control::{ControlDir, Watch};
use spindrift_pmd::route::local_addresses;
use spindrift_pmd::tunnel::TunnelError;
use spindrift_srv6::{Fabric, Node};

use self::client::{From, fetch};
use self::show::{explain, probes, status, time};
use self::top::TopArgs;
use crate::metrics;
use crate::output::print_line;
use crate::stop::Stop;
use crate::toml_file::TomlFile;
use crate::topology;
use crate::units::parse_duration;
use crate::usage::usage;

/// Where the agent of this host shows what it knows.
const ADDRESS: &str = "127.0.0.1:9467";
/// How long an agent may take to reply.
const PATIENCE: Duration = Duration::from_secs(5);
/// Views of all agents that the map is made from.
const MAP_VIEWS: usize = 4;
/// Names of a list that are shown.
const MAP_NAMES: usize = 20;
/// The most probes of an interval that are sent without being asked for.
const USUAL_PROBES: usize = 64;

/// Probes every link of a fabric with source-routed packets, and names the component that loses them
#[derive(Args, Debug)]
pub(crate) struct AgentArgs {
    #[command(subcommand)]
    command: AgentCommand,
}

#[derive(Subcommand, Debug)]
enum AgentCommand {
    /// Probes from this host until Ctrl-C, and prints what changes
    Run(RunArgs),
    /// Shows the links that the agent of this host probes, and the faults that it knows of
    Status {
        #[command(flatten)]
        from: From,
        /// Print one JSON object instead of a table
        #[arg(long)]
        json: bool,
    },
    /// Shows links, faults, denied paths and processes in the terminal, and keeps them up to date
    Top(TopArgs),
    /// Shows the faults of the whole fabric, from what all of its agents report to a store
    Map {
        /// Topology file
        #[arg(short, long, value_name = "FILE")]
        topology: PathBuf,
        /// The Redis server of the agents: `redis://HOST[:PORT]` or `unix:///PATH`
        #[arg(long, value_name = "URL")]
        store: String,
        /// Print one JSON object instead of text
        #[arg(long)]
        json: bool,
    },
    /// Says what the agent of this host knows of a link, a switch or a host
    Explain {
        /// h1:p0-t0-0 for a link, p0-t1-3 for a switch, h1 for a host
        #[arg(value_name = "COMPONENT")]
        component: String,
        #[command(flatten)]
        from: From,
    },
}

#[derive(Args, Debug)]
struct RunArgs {
    /// Topology file (examples: configs/lab/)
    #[arg(short, long, value_name = "FILE")]
    topology: PathBuf,
    /// The host of the file that this one is [default: the one whose addresses this host has]
    #[arg(long, value_name = "HOST")]
    host: Option<String>,
    /// Each T0 switch of the host is probed once in this time, 100us to 10s
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "1ms")]
    interval: Duration,
    /// Probes in each interval: one for each T0 switch, the others for the links above in turn [default: one for each
    /// link, at most 64]
    #[arg(long, value_name = "N")]
    probes: Option<u32>,
    /// A probe that has not come back in this time is lost, 100us to 250ms
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "20ms")]
    timeout: Duration,
    /// A Redis server by which the agents of the fabric work together: `redis://HOST[:PORT]` or `unix:///PATH` [default:
    /// each works alone]
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// A policy by which processes of this host avoid what is at fault (example: configs/agent-policy.toml) [default:
    /// none do]
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// Folder of the control sockets of the processes that it tells, and whose counters it shows; several times for those
    /// of several users [default: /run/spindrift for root, else spindrift in `$XDG_RUNTIME_DIR`, else
    /// /tmp/spindrift-UID]
    #[arg(long, value_name = "DIR")]
    control_dir: Vec<PathBuf>,
    /// Where the HTTP interface listens: a loopback address, with --token-file any address, or none
    #[arg(long, value_name = "ADDRESS:PORT", default_value = ADDRESS)]
    listen: String,
    /// Whoever asks the HTTP interface has to show the token in this file, 16 bytes or more that its owner alone can read
    /// [default: every user of this machine may ask]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Stops after this time [default: never]
    #[arg(short = 'D', long, value_name = "TIME", value_parser = parse_duration)]
    duration: Option<Duration>,
    /// Print one JSON object per line instead of text
    #[arg(long)]
    json: bool,
    /// Also print 20 times a second how many probes of 50 ms were lost in each plane
    #[arg(long, requires = "json")]
    counts: bool,
}

pub(crate) fn run(args: &AgentArgs) -> Result<()> {
    match &args.command {
        AgentCommand::Run(args) => probe(args),
        AgentCommand::Status { from, json } => status(&fetch(from)?, *json),
        AgentCommand::Top(args) => top::run(args),
        AgentCommand::Map { topology, store, json } => map(topology, store, *json),
        AgentCommand::Explain { component, from } => explain(&fetch(from)?, component),
    }
}

/// The number of the host that this one is.
fn own_host(fabric: &Fabric, name: Option<&String>) -> Result<u16> {
    if let Some(name) = name {
        let there_are = || topology::hosts_there_are(fabric);
        return fabric
            .host(name)
            .ok_or_else(|| usage(format!("--host {name}: no such host; {}", there_are())));
    }
    let local = local_addresses().context("cannot list the local addresses")?;
    let is_local = |host: &u16| {
        let address = fabric.address(*host, 0).map(IpAddr::V6);
        local.iter().any(|local| Some(local.ip) == address)
    };
    (0..fabric.hosts().len() as u16).find(is_local).ok_or_else(|| {
        usage("this host has no address of a host of the topology; name the host with --host, or add its addresses")
    })
}

fn settings(args: &RunArgs, fabric: &Fabric, host: u16) -> Result<AgentSettings> {
    let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let plan = Plan::new(fabric, host, None, SharePolicy::default())?;
    let usual = plan.routes().count().min(USUAL_PROBES).max(plan.lower().len() + 1);
    let probe = ProbeSettings {
        interval_ns: ns(args.interval),
        probes_per_interval: args.probes.unwrap_or(usual as u32),
        timeout_ns: ns(args.timeout),
        ..ProbeSettings::default()
    };
    probe.check(plan.lower().len()).map_err(|error| usage(error.to_string()))?;
    Ok(AgentSettings { probe, ..AgentSettings::default() })
}

fn listen(args: &RunArgs) -> Result<Option<SocketAddr>> {
    if args.listen == "none" {
        return Ok(None);
    }
    let parsed = args.listen.parse();
    parsed.map(Some).map_err(|_| {
        usage(format!("--listen {}: write an address and port, such as {ADDRESS}, or none", args.listen))
    })
}

fn token(path: Option<&Path>) -> Result<Option<Token>> {
    metrics::token("--token-file", path)
}

/// Where the processes of this host have their control sockets.
fn folders(args: &RunArgs) -> Vec<ControlDir> {
    match &*args.control_dir {
        [] => vec![crate::ctl::folder(None)],
        some => some.iter().map(ControlDir::at).collect(),
    }
}

fn probe(args: &RunArgs) -> Result<()> {
    let fabric = topology::load(&args.topology)?;
    let host = own_host(&fabric, args.host.as_ref())?;
    let settings = settings(args, &fabric, host)?;
    let (listen, token) = (listen(args)?, token(args.token_file.as_deref())?);
    let policy = args.policy.as_ref().map(|path| policy(path, host)).transpose()?;
    let mut seed = [0; 32];
    SysRng.try_fill_bytes(&mut seed).context("the system gives no random numbers")?;
    let cluster = args.store.as_ref().map(|url| join(url, &fabric, Some(host))).transpose()?;
    let opened = Runner::open(fabric, host, settings, seed);
    let mut runner = opened.map_err(|error| match error {
        RunnerError::Port { error: TunnelError::NotLocal(_), .. } => {
            usage(format!("{error}; or is this another host of the topology? (--host)"))
        }
        error => error.into(),
    })?;
    if args.counts {
        runner.tell_counts();
    }
    if let Some(cluster) = cluster {
        runner.join(cluster);
    }
    if let Some(policy) = policy {
        let source = format!("agent {}", runner.published().get().host);
        let messenger =
            Messenger::start(folders(args), source).context("cannot tell processes what to avoid")?;
        runner.deny(policy, messenger);
    }
    let source = runner.source().with_processes(Watch::all(folders(args)));
    let started = listen.map(|address| Server::start(address, source, token)).transpose();
    let server = started.map_err(|error| match error {
        HttpError::NeedsToken(..) => usage(format!("--listen: {error}")),
        error => error.into(),
    })?;
    let stop = Stop::on_ctrl_c()?;
    begin(args, &runner, server.as_ref());
    let until = args.duration.map(|time| Instant::now() + time);
    runner.run(
        || stop.check().is_err() || until.is_some_and(|until| Instant::now() >= until),
        |event| print_line(&if args.json { event.json().to_string() } else { event_text(&event) }),
    )?;
    end(args, &runner.published().get());
    Ok(())
}

/// The policy of a file.
pub(crate) fn policy(path: &Path, host: u16) -> Result<Policy> {
    let file = TomlFile::read(path, "policy")?;
    let settings: PolicySettings = file.parse()?;
    Policy::new(host, settings).map_err(|error| {
        let place =
            file.place(error.setting).map(|place| format!("{place} = {}: {}", error.value, error.fix));
        usage(place.unwrap_or_else(|| format!("{}: {error}", file.name())))
    })
}

/// The other agents of the fabric.
fn join(url: &str, fabric: &Fabric, host: Option<u16>) -> Result<Cluster> {
    Cluster::open(url, fabric, host).map_err(|error| usage(format!("--store: {error}")))
}

/// What all agents know together.
fn map(topology: &Path, store: &str, json: bool) -> Result<()> {
    let fabric = topology::load(topology)?;
    let cluster = join(store, &fabric, None)?;
    let (began, mut locator) = (Instant::now(), Locator::new(LocateSettings::default()));
    let mut seen = 0;
    // A finding needs several views in a row.
    for _ in 0..MAP_VIEWS {
        seen = next_view(&cluster, seen)?;
        locator.update(began.elapsed().as_nanos() as u64, &fabric, &cluster.view());
    }
    let (view, hosts) = (cluster.view(), cluster.hosts());
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let scene = Scene { fabric: &fabric, epoch: seconds - began.elapsed().as_secs_f64() };
    let name = |link: (Node, Node)| format!("{}:{}", fabric.name(link.0), fabric.name(link.1));
    let unprobed: Vec<_> = view.unprobed(&fabric).into_iter().map(name).collect();
    let findings: Vec<_> = locator.findings().iter().map(|finding| scene.finding(finding)).collect();
    let silent: Vec<_> = (0..fabric.hosts().len() as u16).filter(|host| !hosts.contains(host)).collect();
    let silent: Vec<_> = silent.into_iter().map(|host| fabric.name(Node::Host(host))).collect();
    if json {
        let object = json!({
            "command": "agent map", "version": env!("CARGO_PKG_VERSION"), "agents": hosts.len(),
            "silent": silent, "unprobed": unprobed, "findings": findings,
        });
        print_line(&object.to_string());
        return Ok(());
    }
    print_line(&format!("{} of {} hosts have an agent that reports.", hosts.len(), fabric.hosts().len()));
    for (what, names) in [("without", &silent), ("links that no agent probes", &unprobed)] {
        if !names.is_empty() {
            let shown = names.iter().take(MAP_NAMES).cloned().collect::<Vec<_>>().join(", ");
            let more = names.len().saturating_sub(MAP_NAMES);
            let more = if more > 0 { format!(", and {more} more") } else { String::new() };
            print_line(&format!("{what}: {shown}{more}"));
        }
    }
    print_line("");
    if findings.is_empty() {
        print_line("No component is at fault.");
    }
    for finding in &findings {
        print_line(&finding.text);
    }
    Ok(())
}

/// Waits until reports were read again after round `seen`, and returns the round.
fn next_view(cluster: &Cluster, seen: u64) -> Result<u64> {
    let began = Instant::now();
    loop {
        match cluster.condition() {
            (rounds, None) if rounds > seen => return Ok(rounds),
            (_, Some(error)) => bail!("the store cannot be reached: {error}"),
            _ if began.elapsed() > PATIENCE => bail!("the store does not reply"),
            _ => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

fn begin(args: &RunArgs, runner: &Runner, server: Option<&Server>) {
    if args.json {
        return;
    }
    let known = runner.published().get();
    let planes = known.planes.iter().map(|plane| plane.interface.as_str()).collect::<Vec<_>>().join(", ");
    let links = known.links.len() - known.planes.len();
    let (lower, upper) =
        (Duration::from_nanos(known.interval_ns), Duration::from_nanos(known.upper_interval_ns));
    print_line(&format!(
        "{} probes {} T0 switches by {planes} every {lower:?}, and {links} links above every {upper:?}.",
        known.host,
        known.planes.len()
    ));
    if let Some(server) = server {
        let agent = if server.address().to_string() == ADDRESS {
            String::new()
        } else {
            format!(" --agent {}", server.address())
        };
        print_line(&format!(
            "`spindrift agent status{agent}` shows them, and http://{0}/ in a browser. Metrics: http://{0}/metrics",
            server.address()
        ));
    }
}

fn end(args: &RunArgs, known: &Snapshot) {
    if args.json {
        print_line(&json!({ "event": "end", "status": known }).to_string());
    } else {
        print_line(&probes(known));
    }
}

pub(crate) fn names(parts: &[Part]) -> String {
    let names = parts.iter().map(|part| format!("{} {}", part.kind, part.name));
    names.collect::<Vec<_>>().join(" or ")
}

fn event_text(event: &Event) -> String {
    match event {
        Event::Opened(finding) => format!("{}  FAULT   {}", time(finding.since), finding.text),
        Event::Changed(finding, at) => format!("{}  CHANGED {}", time(*at), finding.text),
        Event::Closed(finding, at) => {
            let lasted =
                humantime::format_duration(Duration::from_millis(((at - finding.since) * 1e3) as u64));
            format!("{}  HEALED  {}, after {lasted}", time(*at), names(&finding.components))
        }
        Event::Decided(decision) => decision_text(decision),
        // These are printed as JSON alone.
        Event::Counted(_) => String::new(),
    }
}

fn decision_text(decision: &DecisionReport) -> String {
    let DecisionReport { what, time: at, entry, dry_run } = decision;
    let (what, why) = match *what {
        "denied" => ("DENIED ", ""),
        "allowed" => ("ALLOWED", ""),
        _ => ("NOT DENIED", ": too many paths would be, by max_denied of the policy"),
    };
    let dry = if *dry_run { " (dry run)" } else { "" };
    format!("{}  {what} {}{why}{dry}", time(*at), entry.component)
}
