//! `spindrift lab`: a fabric on this machine, whose hosts and switches are network namespaces of the kernel.

pub(crate) mod fault;
pub(crate) mod faults;
mod graph;
mod ip;
mod plan;
mod rules;
mod run;
mod schedule;
mod state;
mod status;
mod switches;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::{Args, Subcommand};
use spindrift_srv6::{Fabric, Node};

use crate::output::{eprint_line, error_chain, print_line};
use crate::stop::Stop;
use crate::times::Times;
use crate::toml_file::TomlFile;
use crate::topology::{self, SwitchKind};
use crate::units::{count, parse_duration};
use crate::usage::usage;
use fault::LinkFault;
use faults::{Faults, Place, check_switches};
use ip::Ip;
use plan::{LabPlan, SWITCH_SYSCTLS, SYSCTLS};
use schedule::{Conductor, Entry};
use state::Lab;

/// Namespaces beyond which a machine gets slow.
const MAX_NODES: usize = 100;

/// Builds a fabric of network namespaces on this machine, injects faults and measures recovery (root, iproute2)
#[derive(Args, Debug)]
pub(crate) struct LabArgs {
    #[command(subcommand)]
    command: LabCommand,
}

#[derive(Subcommand, Debug)]
enum LabCommand {
    /// Builds the lab of a topology file
    Up {
        #[command(flatten)]
        lab: LabName,
        #[command(flatten)]
        switch: SwitchOption,
        /// Topology file (examples: configs/lab/)
        topology: PathBuf,
    },
    /// Ends the processes in a lab and removes it, even after a crash
    Down {
        #[command(flatten)]
        lab: LabName,
    },
    /// Runs a command on a host or a switch
    Exec {
        #[command(flatten)]
        lab: LabName,
        /// Host or switch, such as h1 or p0-t1-3
        node: String,
        /// The command and its arguments, after `--`.
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// Injects a fault into a link, or into all links of a host or switch
    Fault(FaultArgs),
    /// Ends all faults, or those of a link, a host or a switch
    Heal {
        #[command(flatten)]
        lab: LabName,
        /// Link such as h1:p0-t0-0, or a host or switch for all its links
        #[arg(value_name = "WHERE")]
        place: Option<String>,
    },
    /// Runs a scenario: builds its lab, runs its flows and faults, and reports recovery times
    Run(run::RunArgs),
    /// Shows the state, traffic and faults of each link
    Status {
        #[command(flatten)]
        lab: LabName,
        /// Print one JSON object instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// Draws a lab, or the fabric of a topology file, as SVG
    Graph {
        #[command(flatten)]
        lab: LabName,
        /// Draw the fabric of this file; needs neither a lab nor root
        #[arg(short, long, value_name = "FILE")]
        topology: Option<PathBuf>,
        /// File of the picture [default: standard output]
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
}

#[derive(Args, Debug)]
#[command(
    override_usage = "spindrift lab fault [OPTIONS] <WHERE> <ACTION>\n       spindrift lab fault [OPTIONS] --schedule <FILE>"
)]
struct FaultArgs {
    #[command(flatten)]
    lab: LabName,
    /// Link such as h1:p0-t0-0, or a host or switch such as p0-t1-3 for all its links
    #[arg(value_name = "WHERE", required_unless_present = "schedule", requires = "fault")]
    place: Option<String>,
    /// down, blackhole, loss=P%, ecn=P% or rate=R; add ,dir=up or ,dir=down for one direction, ,ev=EV or ,sport=PORT
    /// for some packets
    #[arg(value_name = "ACTION")]
    fault: Option<LinkFault>,
    /// End the fault after this time, or on Ctrl-C [default: it lasts until `lab heal`]
    #[arg(long = "for", value_name = "TIME", value_parser = parse_duration)]
    lasts: Option<Duration>,
    /// Repeat the fault with this period, until Ctrl-C
    #[arg(long, value_name = "TIME", value_parser = parse_duration, requires = "lasts")]
    every: Option<Duration>,
    /// Stop after this many repetitions
    #[arg(long, value_name = "N", requires = "every")]
    times: Option<u32>,
    /// Read the faults and their times from this TOML file (example: configs/schedules/)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["place", "fault", "lasts", "every", "times"])]
    schedule: Option<PathBuf>,
}

#[derive(Args, Debug)]
struct LabName {
    /// Name of the lab, 1 to 16 letters and digits, where there are several
    #[arg(long, value_name = "NAME", default_value = "lab", value_parser = lab_name)]
    name: String,
}

#[derive(Args, Debug)]
struct SwitchOption {
    /// What forwards packets in the switches [default: as the topology file says, else kernel]
    #[arg(long, value_name = "KIND")]
    switch: Option<SwitchKind>,
}

impl SwitchOption {
    /// The kind of switches for a topology.
    fn of(&self, file: &TomlFile) -> Result<SwitchKind> {
        self.switch.map_or_else(|| topology::switch(file), Ok)
    }
}

fn lab_name(text: &str) -> Result<String, String> {
    let fits = (1..=16).contains(&text.len()) && text.chars().all(|letter| letter.is_ascii_alphanumeric());
    if fits {
        Ok(text.to_owned())
    } else {
        Err(format!("`{text}` is not a name of 1 to 16 ASCII letters and digits"))
    }
}

pub(crate) fn run(args: &LabArgs) -> Result<()> {
    match &args.command {
        LabCommand::Up { lab, switch, topology } => {
            up(&lab.name, &TomlFile::read(topology, "topology")?, switch)
        }
        LabCommand::Down { lab } => down(&lab.name),
        LabCommand::Exec { lab, node, command } => exec(&lab.name, node, command),
        LabCommand::Fault(args) => fault(args),
        LabCommand::Heal { lab, place } => heal(&lab.name, place.as_deref()),
        LabCommand::Run(args) => run::run(args),
        LabCommand::Status { lab, json } => status::status(&lab.name, *json),
        LabCommand::Graph { lab, topology, output } => {
            graph(&lab.name, topology.as_deref(), output.as_deref())
        }
    }
}

fn up(name: &str, file: &TomlFile, switch: &SwitchOption) -> Result<()> {
    let fabric = small_fabric(file)?;
    let new = NewLab { name, file, kind: switch.of(file)? };
    new.create(&Ip::find()?, &LabPlan::new(&fabric, name), &Stop::on_ctrl_c()?)?;
    let (nodes, hosts, links) = (fabric.nodes().count(), fabric.hosts().len(), fabric.links().count());
    let kind = match new.kind {
        SwitchKind::Kernel => String::new(),
        kind => format!(" ({kind})"),
    };
    print_line(&format!(
        "lab \"{name}\" is up: {hosts} hosts, {} switches{kind}, {links} links",
        nodes - hosts
    ));
    for (host, number) in fabric.hosts().iter().zip(0..).take(4) {
        let addresses = (0..fabric.shape().planes).filter_map(|plane| fabric.address(number, plane));
        let addresses: Vec<_> = addresses.map(|address| address.to_string()).collect();
        print_line(&format!("  {:<12} {}", host.name, addresses.join(" ")));
    }
    print_line(&format!("run something on a host:  spindrift lab exec{} HOST -- COMMAND", name_flag(name)));
    print_line(&format!("remove it:                spindrift lab down{}", name_flag(name)));
    Ok(())
}

/// The fabric of a file, if a machine can have it as a lab.
fn small_fabric(file: &TomlFile) -> Result<Fabric> {
    let fabric = topology::fabric(file)?;
    let nodes = fabric.nodes().count();
    if nodes > MAX_NODES {
        return Err(usage(format!(
            "{}: {nodes} hosts and switches, a lab has {MAX_NODES} at most; `spindrift path` takes larger fabrics",
            file.name()
        )));
    }
    let shape = fabric.shape();
    if shape.is_on_loopback() {
        let place = file.place("fabric.prefix").unwrap_or_else(|| file.name().to_owned());
        return Err(usage(format!(
            "{place}: fabric.prefix = {}: these are loopback addresses, by which no host of a lab reaches another; leave it out, or give one like fd5d:7072::/48",
            shape.prefix
        )));
    }
    Ok(fabric)
}

/// A lab that is to be.
struct NewLab<'a> {
    name: &'a str,
    file: &'a TomlFile,
    kind: SwitchKind,
}

impl NewLab<'_> {
    /// Builds it. Where that fails, nothing of it is left.
    fn create(&self, ip: &Ip, plan: &LabPlan<'_>, stop: &Stop) -> Result<Lab> {
        let lab = Lab::create(self.name, self.file.text())?;
        let built = build(ip, plan, stop).and_then(|()| switches::build(ip, &lab, plan, self.kind));
        if let Err(error) = built.and_then(|()| stop.check()) {
            // What went wrong first is what the user wants to know, and Ctrl-C ends `ip`, too.
            let error = stop.check().err().unwrap_or(error);
            if let Err(left) = lab.remove(ip) {
                eprint_line(format_args!("spindrift: {}", error_chain(&left)));
            }
            return Err(error);
        }
        Ok(lab)
    }
}

fn build(ip: &Ip, plan: &LabPlan<'_>, stop: &Stop) -> Result<()> {
    ip.batch(None, &plan.namespaces())?;
    for node in plan.fabric.nodes() {
        stop.check()?;
        let switch = if matches!(node, Node::Host(_)) { &[] } else { &SWITCH_SYSCTLS as &[_] };
        ip.sysctl(&plan.namespace(node), &[&SYSCTLS, switch].concat())?;
    }
    stop.check()?;
    ip.batch(None, &plan.cables())?;
    for node in plan.fabric.nodes() {
        stop.check()?;
        ip.batch(Some(&plan.namespace(node)), &plan.node(node))?;
    }
    stop.check()
}

fn down(name: &str) -> Result<()> {
    let ip = Ip::find()?;
    match Lab::open(name).remove(&ip)? {
        0 => print_line(&format!("there is no lab \"{name}\"")),
        removed => print_line(&format!("lab \"{name}\" is gone: {removed} namespaces removed")),
    }
    Ok(())
}

fn exec(name: &str, node: &str, command: &[String]) -> Result<()> {
    let ip = Ip::find()?;
    let fabric = fabric(name)?;
    let plan = LabPlan::new(&fabric, name);
    let found = fabric.node(node).ok_or_else(|| {
        let names: Vec<_> = fabric.nodes().take(8).map(|node| fabric.name(node)).collect();
        usage(format!("{node}: no such node in lab \"{name}\"; it has {} ..", names.join(", ")))
    })?;
    let namespace = plan.namespace(found);
    // Returns only if it fails: from here on this process is the command, with its signals and its exit status.
    let error = ip.command().args(["netns", "exec", &namespace]).args(command).exec();
    Err(error).with_context(|| format!("cannot run ip netns exec {namespace}"))
}

fn fault(args: &FaultArgs) -> Result<()> {
    let ip = Ip::find()?;
    let name = &args.lab.name;
    let fabric = fabric(name)?;
    let plan = LabPlan::new(&fabric, name);
    let faults = Faults::open(Lab::open(name), &plan, &ip)?;
    if let Some(path) = &args.schedule {
        let entries = schedule::load(&TomlFile::read(path, "schedule")?, &fabric)?;
        check_switches(faults.kind(), entries.iter().map(|entry| &entry.fault))?;
        return play(&faults, &fabric, &entries);
    }
    // The option parser sees to both.
    let (Some(place), Some(fault)) = (&args.place, args.fault) else { return Ok(()) };
    let times = Times { at: Duration::ZERO, lasts: args.lasts, every: args.every, count: args.times };
    let entry = Entry::new(&fabric, place, fault, times).map_err(|(key, why)| {
        let given = match key {
            "where" => format!("WHERE {place}"),
            "action" => format!("ACTION {fault}"),
            option => format!("--{option}"),
        };
        usage(format!("{given}: {why}"))
    })?;
    if args.lasts.is_some() {
        return play(&faults, &fabric, &[entry]);
    }
    let links = faults.change(|set| schedule::begin(set, &fabric, "", &entry))?;
    print_line(&format!("{place}: {fault} on {}", count(links as u64, "link")));
    print_line(&format!("end it:  spindrift lab heal{} {place}", name_flag(name)));
    Ok(())
}

/// Plays a schedule until it is over or the user wants an end.
fn play(faults: &Faults<'_>, fabric: &Fabric, entries: &[Entry]) -> Result<()> {
    let (stop, start) = (Stop::on_ctrl_c()?, Instant::now());
    let mut told = |happened: &schedule::Happened| {
        let at = happened.to.duration_since(start).as_secs_f64();
        for line in happened.lines(entries) {
            print_line(&format!("{at:>9.3} s  {line}"));
        }
    };
    let check = || stop.check();
    schedule::play(
        faults,
        fabric,
        entries,
        &mut Conductor { start, until: None, check: &check, told: &mut told },
    )
}

fn heal(name: &str, place: Option<&str>) -> Result<()> {
    let ip = Ip::find()?;
    let fabric = fabric(name)?;
    let plan = LabPlan::new(&fabric, name);
    let faults = Faults::open(Lab::open(name), &plan, &ip)?;
    let parse = |text| Place::parse(&fabric, text).map_err(|why| usage(format!("WHERE {text}: {why}")));
    let place = place.map(parse).transpose()?;
    let links = faults.change(|set| set.heal(place))?;
    print_line(&format!("{} healed", count(links as u64, "link")));
    Ok(())
}

/// The fabric of a lab that is up.
fn fabric(name: &str) -> Result<Fabric> {
    let Some(file) = Lab::open(name).topology()? else {
        bail!("there is no lab \"{name}\"; build one with `spindrift lab up{} FILE`", name_flag(name));
    };
    topology::fabric(&file)
}

/// The option that names a lab, where it is needed.
fn name_flag(name: &str) -> String {
    if name == "lab" { String::new() } else { format!(" --name {name}") }
}

fn graph(name: &str, topology: Option<&Path>, output: Option<&Path>) -> Result<()> {
    let svg = if let Some(path) = topology {
        graph::draw(&topology::load(path)?, |_| graph::Look::default())
    } else {
        let ip = Ip::find()?;
        let fabric = fabric(name)?;
        let plan = LabPlan::new(&fabric, name);
        let mut states = ip::Links::default();
        let mut looks = BTreeMap::<_, graph::Look>::new();
        for (link, ends) in plan.links() {
            for end in &ends {
                if !states.of(&ip, &plan.namespace(end.node), &end.name)?.up {
                    looks.entry(link).or_default().down = true;
                }
            }
        }
        for broken in Faults::open(Lab::open(name), &plan, &ip)?.read()?.all {
            looks.entry(broken.link).or_default().faults.push(broken.fault.to_string());
        }
        graph::draw(&fabric, |link| looks.get(&link).cloned().unwrap_or_default())
    };
    let Some(path) = output else {
        print_line(svg.trim_end());
        return Ok(());
    };
    fs::write(path, svg).with_context(|| format!("cannot write {}", path.display()))
}
