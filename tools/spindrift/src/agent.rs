//! `spindrift agent`: probes the links of a fabric from this host, and shows what an agent knows.

use std::fmt::Write as _;
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
use spindrift_agentd::http::Server;
use spindrift_agentd::runner::{Event, Runner, RunnerError};
use spindrift_agentd::snapshot::{
    DecisionReport, DeniedReport, DenyReport, FindingReport, Link, Loss, Part, Scene, Snapshot,
};
use spindrift_agentd::token::Token;
use spindrift_control::ControlDir;
use spindrift_pmd::route::local_addresses;
use spindrift_pmd::tunnel::TunnelError;
use spindrift_srv6::{Fabric, Node};

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
struct From {
    /// Where the agent listens
    #[arg(long, value_name = "ADDRESS:PORT", default_value = ADDRESS)]
    agent: SocketAddr,
    /// The file of the agent's token, if it has one
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
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
    /// Folder of the control sockets of these processes; several times for those of several users [default:
    /// /run/spindrift for root, else spindrift in `$XDG_RUNTIME_DIR`, else /tmp/spindrift-UID]
    #[arg(long, value_name = "DIR", requires = "policy")]
    control_dir: Vec<PathBuf>,
    /// Where the HTTP interface listens, a loopback address; or none
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
    path.map(|path| Token::read(path).map_err(|error| usage(format!("--token-file {error}")))).transpose()
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
        let mut folders: Vec<_> = args.control_dir.iter().map(ControlDir::at).collect();
        if folders.is_empty() {
            folders.push(crate::ctl::folder(None));
        }
        let source = format!("agent {}", runner.published().get().host);
        let messenger = Messenger::start(folders, source).context("cannot tell processes what to avoid")?;
        runner.deny(policy, messenger);
    }
    let server = listen.map(|address| Server::start(address, runner.source(), token)).transpose()?;
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

/// A time of day.
fn time(seconds: f64) -> String {
    let since = Duration::try_from_secs_f64(seconds).unwrap_or_default();
    let time = UNIX_EPOCH.checked_add(since).unwrap_or(SystemTime::UNIX_EPOCH);
    humantime::format_rfc3339_millis(time).to_string()
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

/// What the transports of the host avoid.
fn denied_lines(deny: &DenyReport) -> Vec<String> {
    let DenyReport { dry_run, denied, processes, errors } = deny;
    let follow = if *dry_run {
        "no process is told (dry run)".to_owned()
    } else {
        match processes {
            1 => "1 process follows".to_owned(),
            processes => format!("{processes} processes follow"),
        }
    };
    let mut lines = vec![match denied.len() {
        0 => "Nothing is denied.".to_owned(),
        _ => format!("Denied; {follow}:"),
    }];
    let line = |entry: &DeniedReport| {
        format!("  since {}: {} ({})", time(entry.since), entry.component, entry.rules.join("; "))
    };
    lines.extend(denied.iter().map(line));
    lines.extend(errors.iter().map(|error| format!("  a process cannot be told: {error}")));
    lines
}

/// What the agent there knows.
fn fetch(from: &From) -> Result<Snapshot> {
    let url = format!("http://{}/api/v1/status", from.agent);
    let agent = ureq::Agent::config_builder().timeout_global(Some(PATIENCE)).build().new_agent();
    let mut request = agent.get(&url);
    if let Some(token) = token(from.token_file.as_deref())? {
        request = request.header("Authorization", token.header());
    }
    let reply = request.call();
    if let Err(ureq::Error::StatusCode(401)) = reply {
        let how = if from.token_file.is_some() {
            "that of --token-file is another one"
        } else {
            "name its file with --token-file"
        };
        bail!("the agent at {} asks for its token: {how}", from.agent);
    }
    let reply = reply.with_context(|| {
        format!(
            "no agent replies at {}; start one with `spindrift agent run`, or name its address with --agent",
            from.agent
        )
    })?;
    reply.into_body().read_json().with_context(|| format!("what {url} says is not the status of an agent"))
}

fn probes(known: &Snapshot) -> String {
    let probes = &known.probes;
    let mut line =
        format!("probes: {} sent, {} returned, {} lost", probes.sent, probes.returned, probes.lost);
    let rest = [
        (probes.void, "of unknown end"),
        (probes.skipped, "skipped"),
        (probes.unsent, "refused by the kernel"),
        (probes.refused, "packets that are no returns"),
    ];
    for (number, what) in rest.into_iter().filter(|(number, _)| *number > 0) {
        let _ = write!(line, ", {number} {what}");
    }
    line
}

fn percent(loss: &Loss) -> String {
    match loss.sent {
        0 => "-".to_owned(),
        _ if loss.net == 0.0 => "0 %".to_owned(),
        _ => format!("{:.2} %", loss.net * 100.0),
    }
}

fn row(link: &Link) -> String {
    let rtt =
        |ns: u64| if link.rtt.samples == 0 { "-".to_owned() } else { format!("{:.1} us", ns as f64 / 1e3) };
    format!(
        "{:<28} {:<8} {:>9} {:>9} {:>9} {:>11} {:>11} {:>6}",
        format!("{}:{}", link.lower, link.upper),
        link.state,
        percent(&link.loss_1s),
        percent(&link.loss_10s),
        percent(&link.loss_5min),
        rtt(link.rtt.p50_ns),
        rtt(link.rtt.p99_ns),
        link.flaps,
    )
}

fn header() -> String {
    format!(
        "{:<28} {:<8} {:>9} {:>9} {:>9} {:>11} {:>11} {:>6}",
        "link", "state", "loss 1s", "10s", "5min", "rtt p50", "p99", "flaps"
    )
}

fn status(known: &Snapshot, json: bool) -> Result<()> {
    if json {
        let mut object = serde_json::to_value(known)?;
        if let Some(object) = object.as_object_mut() {
            object.insert("command".to_owned(), "agent status".into());
        }
        print_line(&object.to_string());
        return Ok(());
    }
    let up = humantime::format_duration(Duration::from_secs((known.time - known.started) as u64));
    print_line(&format!("{}, up {up}; {}", known.host, probes(known)));
    if let Some(store) = &known.store {
        print_line(&match &store.error {
            None => format!("{} agents report to the store", store.agents),
            Some(error) => format!("alone: the store cannot be reached: {error}"),
        });
    }
    if let Some(error) = &known.send_error {
        print_line(&format!("the kernel does not take all probes: {error}"));
    }
    print_line("");
    print_line(&header());
    known.links.iter().for_each(|link| print_line(&row(link)));
    print_line("");
    if known.findings.is_empty() {
        print_line("No component is at fault.");
    }
    known
        .findings
        .iter()
        .for_each(|finding| print_line(&format!("since {}: {}", time(finding.since), finding.text)));
    if let Some(deny) = &known.deny {
        for line in denied_lines(deny) {
            print_line(&line);
        }
    }
    Ok(())
}

/// Whether a component has this name, a link in either direction.
fn is_called(part: &Part, name: &str) -> bool {
    let turned = name.split_once(':').map(|(a, b)| format!("{b}:{a}"));
    part.name == name || Some(&part.name) == turned.as_ref()
}

fn explain(known: &Snapshot, name: &str) -> Result<()> {
    let of_name = |finding: &&FindingReport| finding.components.iter().any(|part| is_called(part, name));
    let findings: Vec<_> = known.findings.iter().filter(of_name).collect();
    let touches = |link: &&Link| {
        let whole = Part { kind: String::new(), name: format!("{}:{}", link.lower, link.upper) };
        is_called(&whole, name) || link.lower == name || link.upper == name
    };
    let links: Vec<_> = known.links.iter().filter(touches).collect();
    if findings.is_empty() && links.is_empty() {
        bail!(
            "{name}: the agent of {} probes no such component; `spindrift agent status` lists its links",
            known.host
        );
    }
    for finding in &findings {
        print_line(&format!("since {}: {}", time(finding.since), finding.text));
    }
    if findings.is_empty() {
        print_line(&format!("{name} is not at fault, as far as {} can tell.", known.host));
    }
    print_line("");
    print_line(&header());
    for link in links {
        print_line(&row(link));
        for transition in &link.transitions {
            let state = if transition.up { "up" } else { "down" };
            print_line(&format!("    {} {state}", time(transition.time)));
        }
    }
    Ok(())
}
