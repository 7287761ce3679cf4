//! Scenarios: TOML files that say which lab, which traffic, and which faults. `docs/cli.md` lists the keys.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use serde::Deserialize;
use spindrift::path::PlaneSet;
use spindrift_srv6::{Fabric, Node};

use crate::agent;
use crate::config::FallbackName;
use crate::driver::{self, Driver, Kernel, UDP};
use crate::lab::fault::{Action, Dir, LinkFault};
use crate::lab::schedule::{self, Entry};
use crate::lab::small_fabric;
use crate::output::eprint_line;
use crate::times::FaultTable;
use crate::toml_file::TomlFile;
use crate::topology::{self, SwitchKind};
use crate::units::{parse_duration, parse_offset};
use crate::usage::usage;

/// Nothing happens before, so that the rate without faults is known.
pub(super) const QUIET: Duration = Duration::from_millis(500);

/// A scenario that can be run.
#[derive(Debug)]
pub(super) struct Scenario {
    /// What its results are called: the name of the file without its ending.
    pub(super) name: String,
    file: TomlFile,
    pub(super) title: String,
    pub(super) topology: TomlFile,
    pub(super) fabric: Fabric,
    pub(super) duration: Duration,
    /// Of each link in each direction.
    pub(super) link_rate: Option<LinkFault>,
    pub(super) switch: SwitchKind,
    /// The kind of the hosts' ports.
    pub(super) port: &'static Driver,
    pub(super) agents: Option<Agents>,
    pub(super) flows: Vec<Flow>,
    pub(super) entries: Vec<Entry>,
}

/// Agents on hosts of the lab, and what they do with what they find.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Agents {
    pub(super) hosts: Vec<u16>,
    /// The file of the policy by which processes of the host avoid what is at fault.
    pub(super) policy: Option<PathBuf>,
    /// More options of `agent run`.
    pub(super) options: Vec<String>,
}

/// What a flow consists of. Its payload goes `from` one host `to` another in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum FlowOperation {
    #[default]
    Write,
    Send,
    /// The host that payload goes to reads it, so it is the client.
    Read,
}

impl FlowOperation {
    /// The command of both sides.
    pub(super) const fn command(self) -> &'static str {
        match self {
            Self::Write => "write-bw",
            Self::Send => "send-bw",
            Self::Read => "read-bw",
        }
    }

    /// One of its messages.
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Send => "SEND",
            Self::Read => "READ",
        }
    }
}

/// Messages from one host to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Flow {
    pub(super) operation: FlowOperation,
    pub(super) from: u16,
    pub(super) to: u16,
    /// Planes that stand by.
    pub(super) standby: PlaneSet,
    /// How its queue pairs move to them.
    pub(super) fallback: FallbackName,
    pub(super) start: Duration,
    /// It goes back where another one goes.
    pub(super) back: bool,
    /// Its processes avoid what the agents of their hosts deny.
    pub(super) follow_agents: bool,
    /// Options of the command for both sides, for both over kernel sockets alone, for the client and for the server.
    pub(super) options: Vec<String>,
    pub(super) udp_options: Vec<String>,
    pub(super) client_options: Vec<String>,
    pub(super) server_options: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    /// `[experiment]` is the former name, accepted for one version.
    #[serde(alias = "experiment")]
    scenario: ScenarioTable,
    agents: Option<AgentsTable>,
    #[serde(default)]
    flow: Vec<FlowTable>,
    #[serde(default)]
    fault: Vec<FaultTable>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ScenarioTable {
    title: Option<String>,
    topology: Option<PathBuf>,
    duration: Option<String>,
    link_rate: Option<String>,
    switch: Option<SwitchKind>,
    port: Option<&'static Driver>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct AgentsTable {
    hosts: Option<Vec<String>>,
    policy: Option<PathBuf>,
    options: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct FlowTable {
    operation: FlowOperation,
    from: Option<String>,
    to: Option<String>,
    standby: Vec<u8>,
    fallback: FallbackName,
    both: Option<bool>,
    start: Option<String>,
    follow_agents: Option<bool>,
    options: Vec<String>,
    udp_options: Vec<String>,
    client_options: Vec<String>,
    server_options: Vec<String>,
}

impl Scenario {
    /// Reads a scenario and all that it names.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let file = TomlFile::read(path, "scenario")?.renamed("scenario", "experiment");
        let File { scenario, agents, flow, fault } = file.parse()?;
        let reader = Reader { file: &file };
        let title = file.needed("scenario", "title", scenario.title.as_ref())?.clone();
        let topology = file.needed("scenario", "topology", scenario.topology.as_ref())?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let topology = folder.join(topology);
        let topology = TomlFile::read(&topology, "topology")
            .map_err(|why| file.wrong("scenario", "topology", &format!("{why:#}")))?;
        let fabric = small_fabric(&topology)?;
        let duration = file.needed("scenario", "duration", scenario.duration.as_ref())?;
        let duration = parse_duration(duration).map_err(|why| file.wrong("scenario", "duration", &why))?;
        if duration < 2 * QUIET {
            return Err(file.wrong("scenario", "duration", &format!("give {:?} or more", 2 * QUIET)));
        }
        let link_rate = scenario.link_rate.map(|text| reader.rate(&text)).transpose()?;
        let agents = agents.map(|table| reader.agents(&fabric, folder, table)).transpose()?;
        if flow.is_empty() {
            return Err(usage(format!("{}: there is no [[flow]] in it", file.name())));
        }
        let mut flows = Vec::new();
        for (number, table) in flow.into_iter().enumerate() {
            let denies = agents.as_ref().is_some_and(|agents| agents.policy.is_some());
            if table.follow_agents.is_some() && !denies {
                let why = "there is no policy in [agents] to follow";
                return Err(file.wrong(&format!("flow.{number}"), "follow_agents", why));
            }
            flows.extend(reader.flow(&fabric, duration, number, table)?);
        }
        let entries = schedule::entries(&file, &fabric, &fault)?;
        for (number, entry) in entries.iter().enumerate() {
            let at = entry.times.at;
            if at < QUIET || at >= duration {
                let why = format!(
                    "faults begin after the first {QUIET:?}, in which the rate without them is measured, and before the end at {duration:?}"
                );
                return Err(file.wrong(&format!("fault.{number}"), "at", &why));
            }
        }
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let switch = scenario.switch.map_or_else(|| topology::switch(&topology), Ok)?;
        let port = scenario.port.unwrap_or(UDP);
        Ok(Self {
            name,
            file,
            title,
            topology,
            fabric,
            duration,
            link_rate,
            switch,
            port,
            agents,
            flows,
            entries,
        })
    }
}

impl Scenario {
    /// Has its hosts use ports of this kind, or of the one that the file names.
    pub(super) fn use_ports(&mut self, kind: Option<&'static Driver>) -> Result<()> {
        let key = || self.file.place("scenario.port").unwrap_or_default();
        let name = kind.map_or_else(key, |_| "--port".to_owned());
        self.port = kind.unwrap_or(self.port);
        let driver = self.port.name;
        if !self.port.reach.between_hosts() {
            let others = driver::names_between_hosts(" or ");
            return Err(usage(format!(
                "{name}: {driver} ports stay within one process; hosts need ports of kind {others}"
            )));
        }
        self.port.check_built(&name)?;
        if self.port.kernel == Kernel::Bypassed {
            self.for_one_process(&name)?;
            self.check_rates(&name)?;
        }
        Ok(())
    }

    /// Ports past the kernel belong to one process each: no host is the end of two flows.
    fn for_one_process(&mut self, name: &str) -> Result<()> {
        let (mut left_out, mut taken) = (Vec::new(), Vec::<u16>::new());
        for flow in &self.flows {
            if flow.back {
                left_out.push(flow.name(&self.fabric));
                continue;
            }
            let ends = [flow.from, flow.to];
            if let Some(host) = ends.into_iter().find(|host| taken.contains(host)) {
                return Err(usage(format!(
                    "{name} {}: an interface belongs to one process, and {} has two flows; leave one out, or use --port udp",
                    self.port.name,
                    self.fabric.name(Node::Host(host))
                )));
            }
            taken.extend(ends);
        }
        self.flows.retain(|flow| !flow.back);
        for flow in left_out {
            eprint_line(format_args!(
                "spindrift: flow {flow} is left out: over {}, a host's interfaces belong to one process",
                self.port.name
            ));
        }
        Ok(())
    }

    /// Ports past the kernel have the rate of links, and what changes it are XDP switches.
    fn check_rates(&self, name: &str) -> Result<()> {
        let of_host = |entry: &&Entry| {
            let mut faults = entry.place.faults(&self.fabric, entry.fault).into_iter();
            faults.any(|(link, fault)| {
                let up = fault.dirs().any(|dir| dir == Dir::Up);
                matches!((link.0, fault.action), (Node::Host(_), Action::Rate(_))) && up
            })
        };
        match self.entries.iter().find(of_host) {
            Some(Entry { name: place, fault, .. }) if self.switch == SwitchKind::Kernel => {
                Err(usage(format!(
                    "{name} {}: kernel switches cannot limit what hosts send ({fault} of {place}); use --switch xdp, or --port udp",
                    self.port.name
                )))
            }
            _ => Ok(()),
        }
    }

    /// Bits per second of each link in each direction.
    pub(super) fn rate(&self) -> Option<u64> {
        match self.link_rate?.action {
            Action::Rate(rate) => Some(rate),
            _ => None,
        }
    }
}

/// Reads tables, and says where something is wrong.
struct Reader<'a> {
    file: &'a TomlFile,
}

impl Reader<'_> {
    fn rate(&self, text: &str) -> Result<LinkFault> {
        let fault = format!("rate={text}").parse::<LinkFault>();
        let why = match fault {
            Ok(fault @ LinkFault { action: Action::Rate(_), dir: None, packets: None, .. }) => {
                return Ok(fault);
            }
            Ok(_) => format!("`{text}` is not a rate; write 100M or 1.5Gbit"),
            Err(why) => why,
        };
        Err(self.file.wrong("scenario", "link_rate", &why))
    }

    /// The agents of a table: on all hosts, or on those that it names.
    fn agents(&self, fabric: &Fabric, folder: &Path, table: AgentsTable) -> Result<Agents> {
        let wrong = |key: &str, why: &str| self.file.wrong("agents", key, why);
        let number = |name: &String| {
            fabric.host(name).ok_or_else(|| wrong("hosts", &format!("there is no host \"{name}\"")))
        };
        let hosts = match &table.hosts {
            Some(names) => names.iter().map(number).collect::<Result<Vec<_>>>()?,
            None => (0..fabric.hosts().len() as u16).collect(),
        };
        if hosts.is_empty() {
            return Err(wrong("hosts", "name a host, or leave the key out for agents on all hosts"));
        }
        if let Some((_, name)) = hosts
            .iter()
            .enumerate()
            .find(|(place, host)| hosts.get(..*place).is_some_and(|before| before.contains(host)))
        {
            let name = fabric.name(Node::Host(*name));
            return Err(wrong("hosts", &format!("{name} is named twice; a host has one agent")));
        }
        let policy = table.policy.map(|policy| folder.join(policy));
        for host in &hosts {
            let policy = policy.as_ref().map(|path| agent::policy(path, *host));
            policy.transpose().map_err(|why| wrong("policy", &format!("{why:#}")))?;
        }
        Ok(Agents { hosts, policy, options: table.options })
    }

    /// The flow of a table, or two, one each way.
    fn flow(&self, fabric: &Fabric, whole: Duration, number: usize, table: FlowTable) -> Result<Vec<Flow>> {
        let place = format!("flow.{number}");
        let host = |key: &str, name: Option<&String>| {
            let name = self.file.needed(&place, key, name)?;
            fabric
                .host(name)
                .ok_or_else(|| self.file.wrong(&place, key, &format!("there is no host \"{name}\"")))
        };
        let (from, to) = (host("from", table.from.as_ref())?, host("to", table.to.as_ref())?);
        if from == to {
            return Err(self.file.wrong(&place, "to", "this must be another host than `from`"));
        }
        let start =
            parse_offset(table.start.as_deref()).map_err(|why| self.file.wrong(&place, "start", &why))?;
        if start + QUIET > whole {
            let why = format!("begins too late to be measured: the scenario ends at {whole:?}");
            return Err(self.file.wrong(&place, "start", &why));
        }
        let planes = fabric.shape().planes;
        if let Some(plane) = table.standby.iter().find(|&&plane| plane >= planes) {
            let why = format!("there is no plane {plane}; the fabric has {planes}");
            return Err(self.file.wrong(&place, "standby", &why));
        }
        let standby = PlaneSet(table.standby.iter().fold(0, |set, plane| set | 1 << plane));
        if standby == PlaneSet::first(planes) {
            return Err(self.file.wrong(&place, "standby", "at least one plane must not stand by"));
        }
        if table.fallback == FallbackName::Shift && standby == PlaneSet(0) {
            let why = "\"shift\" needs planes that stand by: those of the second NIC";
            return Err(self.file.wrong(&place, "fallback", why));
        }
        let FlowTable { operation, fallback, options, udp_options, client_options, server_options, .. } =
            table;
        let there = Flow {
            operation,
            from,
            to,
            standby,
            fallback,
            start,
            back: false,
            follow_agents: table.follow_agents.unwrap_or(true),
            options,
            udp_options,
            client_options,
            server_options,
        };
        let back = Flow { from: to, to: from, back: true, ..there.clone() };
        Ok([there, back].into_iter().take(if table.both == Some(true) { 2 } else { 1 }).collect())
    }
}

impl Flow {
    /// The side that payload comes from.
    pub(super) fn sender(&self) -> &'static str {
        if self.operation == FlowOperation::Read { "server" } else { "client" }
    }

    /// The side that payload goes to.
    pub(super) fn receiver(&self) -> &'static str {
        if self.operation == FlowOperation::Read { "client" } else { "server" }
    }

    /// The hosts of the client and the server.
    pub(super) fn client_and_server(&self) -> (u16, u16) {
        if self.operation == FlowOperation::Read { (self.to, self.from) } else { (self.from, self.to) }
    }

    /// What it is called.
    pub(super) fn name(&self, fabric: &Fabric) -> String {
        let host = |number: u16| fabric.hosts().get(usize::from(number)).map_or("", |host| &host.name);
        format!("{}-{}", host(self.from), host(self.to))
    }
}

#[cfg(test)]
mod tests;
