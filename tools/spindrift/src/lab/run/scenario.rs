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
mod tests {
    use std::fs;

    use super::*;
    use crate::config::{assert_documented, keys_of};
    use crate::driver::LOOPBACK;

    /// A scenario of the lab with two planes, with these lines in its sections.
    fn read(scenario: &str, rest: &str) -> Result<Scenario, String> {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("spindrift-scenario-{}-{number}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("lab.toml"), include_str!("../../../../../configs/lab/two-plane.toml"))
            .unwrap();
        let path = folder.join("test.toml");
        fs::write(&path, format!("[scenario]\n{scenario}{rest}")).unwrap();
        let read = Scenario::read(&path).map_err(|error| format!("{error:#}"));
        fs::remove_dir_all(folder).unwrap();
        read
    }

    const GOOD: &str = "title = \"T\"\ntopology = \"lab.toml\"\nduration = \"2s\"\n";
    const FLOW: &str = "[[flow]]\nfrom = \"h1\"\nto = \"h3\"\n";

    #[test]
    fn a_scenario_is_read_whole() {
        let text = format!(
            "{FLOW}both = true\nstart = \"500ms\"\noptions = [\"-x\"]\nudp_options = [\"-u\"]\nclient_options = [\"-y\"]\nserver_options = [\"-z\"]\n\
             [[flow]]\nfrom = \"h2\"\nto = \"h1\"\n\
             [[fault]]\nat = \"500ms\"\nwhere = \"h1:p0-t0-0\"\naction = \"down\"\n"
        );
        let read =
            read(&format!("{GOOD}link_rate = \"1.5Gbit,mark=1ms\"\nswitch = \"xdp-generic\"\n"), &text)
                .unwrap();
        assert_eq!((read.name.as_str(), read.title.as_str()), ("test", "T"));
        assert_eq!((read.duration, read.switch), (Duration::from_secs(2), SwitchKind::XdpGeneric));
        assert_eq!(read.link_rate.map(|fault| fault.to_string()).as_deref(), Some("rate=1500Mbit,mark=1ms"));
        let flow = |from, to, start, back, options: [&[&str]; 4]| {
            let [options, udp_options, client_options, server_options] =
                options.map(|list| list.iter().map(|&text| text.to_owned()).collect());
            let start = Duration::from_millis(start);
            let (operation, standby) = (FlowOperation::Write, PlaneSet(0));
            let fallback = FallbackName::Seamless;
            Flow {
                operation,
                from,
                to,
                standby,
                fallback,
                start,
                back,
                follow_agents: true,
                options,
                udp_options,
                client_options,
                server_options,
            }
        };
        let all = [&["-x"] as &[_], &["-u"], &["-y"], &["-z"]];
        let [there, back] = [flow(0, 2, 500, false, all), flow(2, 0, 500, true, all)];
        assert_eq!(read.flows, [there, back, flow(1, 0, 0, false, [&[]; 4])]);
        assert_eq!(read.port, UDP);
        assert_eq!(read.flows.first().map(|flow| flow.name(&read.fabric)).as_deref(), Some("h1-h3"));
        assert_eq!(read.entries.len(), 1);
    }

    /// On all hosts, if none is named. The policy is beside the scenario.
    #[test]
    fn agents_are_on_all_hosts_or_on_those_that_are_named() {
        assert_eq!(read(GOOD, FLOW).unwrap().agents, None);
        let all = read(GOOD, &format!("[agents]\n{FLOW}")).unwrap();
        let want = Agents { hosts: vec![0, 1, 2, 3], policy: None, options: Vec::new() };
        assert_eq!((all.agents, all.flows[0].follow_agents), (Some(want), true));
        let policy = std::env::temp_dir().join(format!("spindrift-agents-{}.toml", std::process::id()));
        fs::write(&policy, "deny_loss = 0.5\n").unwrap();
        let table = format!("[agents]\nhosts = [\"h3\"]\noptions = [\"-x\"]\npolicy = {policy:?}\n");
        let some = read(GOOD, &format!("{table}{FLOW}follow_agents = false\n")).unwrap();
        fs::remove_file(&policy).unwrap();
        let want = Agents { hosts: vec![2], policy: Some(policy), options: vec!["-x".to_owned()] };
        assert_eq!((some.agents, some.flows[0].follow_agents), (Some(want), false));
    }

    /// The host that reads is the client. Both sides of any flow have the same planes that stand by.
    #[test]
    fn payload_goes_from_one_host_to_the_other_whoever_asks_for_it() {
        for (operation, sides, hosts, command) in [
            ("write", ["client", "server"], (0, 2), "write-bw"),
            ("send", ["client", "server"], (0, 2), "send-bw"),
            ("read", ["server", "client"], (2, 0), "read-bw"),
        ] {
            let lines = format!("{FLOW}operation = \"{operation}\"\nstandby = [1]\nfallback = \"shift\"\n");
            let flow = read(GOOD, &lines).unwrap().flows.remove(0);
            assert_eq!(flow.fallback, FallbackName::Shift);
            assert_eq!((flow.from, flow.to, flow.standby), (0, 2, PlaneSet(0b10)));
            assert_eq!(([flow.sender(), flow.receiver()], flow.client_and_server()), (sides, hosts));
            assert_eq!(flow.operation.command(), command);
        }
    }

    /// The former name of its section does the same.
    #[test]
    fn the_former_name_is_accepted() {
        let read = |text: &str| {
            let file = TomlFile::of("s.toml", text).renamed("scenario", "experiment");
            file.parse::<File>().map(|read| (read.scenario.title, file.place("scenario.title")))
        };
        let text = "[scenario]\ntitle = \"T\"\n";
        let read_now = read(text).unwrap();
        assert_eq!(read_now.1.as_deref(), Some("s.toml: line 2, column 9: scenario.title"));
        assert_eq!(read(&text.replace("scenario", "experiment")).unwrap(), read_now);
        let both = read(&format!("{text}[experiment]\n")).unwrap_err().to_string();
        assert!(both.contains("duplicate field `scenario`"), "{both}");
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        let fault = |lines: &str| format!("{FLOW}[[fault]]\nwhere = \"h1\"\naction = \"down\"\n{lines}");
        for (scenario, rest, parts) in [
            (GOOD, String::new(), &["no [[flow]]"] as &[&str]),
            (
                "topology = \"lab.toml\"\nduration = \"2s\"\n",
                FLOW.to_owned(),
                &["`title` is missing", "line 1"],
            ),
            ("title = \"T\"\nduration = \"2s\"\n", FLOW.to_owned(), &["`topology` is missing"]),
            ("title = \"T\"\ntopology = \"lab.toml\"\n", FLOW.to_owned(), &["`duration` is missing"]),
            (
                "title = \"T\"\ntopology = \"no.toml\"\nduration = \"2s\"\n",
                FLOW.to_owned(),
                &["line 3, column 12: scenario.topology", "no.toml"],
            ),
            (
                "title = \"T\"\ntopology = \"lab.toml\"\nduration = \"soon\"\n",
                FLOW.to_owned(),
                &["line 4, column 12: scenario.duration", "`soon`"],
            ),
            (
                "title = \"T\"\ntopology = \"lab.toml\"\nduration = \"999ms\"\n",
                FLOW.to_owned(),
                &["scenario.duration", "1s or more"],
            ),
            (
                &format!("{GOOD}link_rate = \"fast\"\n"),
                FLOW.to_owned(),
                &["line 5, column 13", "link_rate", "fast"],
            ),
            (&format!("{GOOD}link_rate = \"5M,dir=up\"\n"), FLOW.to_owned(), &["link_rate", "5M,dir=up"]),
            (&format!("{GOOD}speed = 1\n"), FLOW.to_owned(), &["unknown field `speed`", "line 5"]),
            (GOOD, FLOW.replace("h3", "h9"), &["line 7, column 6: flow.0.to", "no host \"h9\""]),
            (GOOD, FLOW.replace("h3", "h1"), &["flow.0.to", "another host"]),
            (GOOD, "[[flow]]\nto = \"h1\"\n".to_owned(), &["line 5, column 1: flow.0", "`from` is missing"]),
            (GOOD, format!("{FLOW}operation = \"fly\"\n"), &["line 8, column 13", "`fly`", "`send`"]),
            (GOOD, format!("{FLOW}standby = [2]\n"), &["line 8, column 11: flow.0.standby", "no plane 2"]),
            (GOOD, format!("{FLOW}standby = [0, 1]\n"), &["flow.0.standby", "at least one plane"]),
            (
                GOOD,
                format!("{FLOW}fallback = \"shift\"\n"),
                &["flow.0.fallback", "needs planes that stand by"],
            ),
            (GOOD, format!("{FLOW}fallback = \"soft\"\n"), &["fallback", "soft", "shift"]),
            (
                GOOD,
                format!("{FLOW}follow_agents = false\n"),
                &["line 8", "flow.0.follow_agents", "no policy"],
            ),
            (
                GOOD,
                format!("[agents]\n{FLOW}follow_agents = true\n"),
                &["line 9", "flow.0.follow_agents", "no policy"],
            ),
            (GOOD, format!("[agents]\nhosts = []\n{FLOW}"), &["line 6", "agents.hosts", "name a host"]),
            (
                GOOD,
                format!("[agents]\nhosts = [\"h1\", \"h9\"]\n{FLOW}"),
                &["agents.hosts", "no host \"h9\""],
            ),
            (
                GOOD,
                format!("[agents]\nhosts = [\"h2\", \"h1\", \"h2\"]\n{FLOW}"),
                &["agents.hosts", "h2 is named twice"],
            ),
            (
                GOOD,
                format!("[agents]\npolicy = \"no.toml\"\n{FLOW}"),
                &["line 6", "agents.policy", "no.toml"],
            ),
            (
                GOOD,
                format!("[agents]\npolicy = \"lab.toml\"\n{FLOW}"),
                &["agents.policy", "lab.toml", "unknown field"],
            ),
            (GOOD, format!("[agents]\nnames = 1\n{FLOW}"), &["unknown field `names`", "line 6"]),
            (GOOD, format!("{FLOW}start = \"x\"\n"), &["line 8, column 9: flow.0.start", "`x`"]),
            (GOOD, format!("{FLOW}start = \"1501ms\"\n"), &["flow.0.start", "2s"]),
            (GOOD, fault("at = \"499ms\"\n"), &["line 11, column 6: fault.0.at", "500ms"]),
            (GOOD, fault(""), &["line 8, column 1: fault.0", "500ms"]),
            (GOOD, fault("at = \"2s\"\n"), &["fault.0.at", "the end at 2s"]),
            (
                GOOD,
                fault("at = \"1s\"\n").replace("\"h1\"\naction", "\"h7\"\naction"),
                &["fault.0.where", "h7"],
            ),
        ] {
            let error = read(scenario, &rest).unwrap_err();
            assert!(parts.iter().all(|part| error.contains(part)), "{parts:?}: {error}");
        }
    }

    /// Ports past the kernel have one process for each host, and switches that can limit what it sends.
    #[test]
    fn ports_past_the_kernel_need_hosts_of_their_own() {
        let with = |section: &str, rest: &str, kind| -> Result<Vec<String>, String> {
            let mut read = read(&format!("{GOOD}{section}"), &format!("{FLOW}{rest}"))?;
            read.use_ports(kind).map_err(|error| format!("{error:#}"))?;
            assert_eq!(read.port, kind.or(driver::find("af_xdp")).unwrap());
            Ok(read.flows.iter().map(|flow| flow.name(&read.fabric)).collect())
        };
        let names = |names: &[&str]| Ok(names.iter().map(|&name| name.to_owned()).collect());
        let refused = |result: Result<Vec<String>, String>, parts: &[&str]| {
            let error = result.unwrap_err();
            assert!(parts.iter().all(|part| error.contains(part)), "{parts:?}: {error}");
        };
        let (af_xdp, loopback) = (driver::find("af_xdp"), Some(LOOPBACK));
        let another = "[[flow]]\nfrom = \"h2\"\nto = \"h4\"\n";
        let shared = "[[flow]]\nfrom = \"h3\"\nto = \"h4\"\n";
        let fault = |place: &str, action: &str| {
            format!("[[fault]]\nat = \"1s\"\nwhere = \"{place}\"\naction = \"{action}\"\n")
        };
        refused(with("", "", loopback), &["--port: loopback ports stay within one process", "udp", "af_xdp"]);
        refused(with("port = \"loopback\"\n", "", None), &["line 5, column 8: scenario.port: loopback"]);
        refused(with("port = \"fast\"\n", "", None), &["line 5", "`fast`", "`af_xdp`"]);
        let both = format!("both = true\n{another}");
        let udp = Some(UDP);
        assert_eq!(with("port = \"af_xdp\"\n", &both, udp), names(&["h1-h3", "h3-h1", "h2-h4"]));
        assert_eq!(with("link_rate = \"5M\"\n", shared, udp), names(&["h1-h3", "h3-h4"]));
        if af_xdp.is_some_and(|driver| driver.backend.is_none()) {
            return refused(with("", "", af_xdp), &["--port af_xdp: this build has no such ports"]);
        }
        assert_eq!(with("port = \"af_xdp\"\n", &both, None), names(&["h1-h3", "h2-h4"]));
        refused(with("", shared, af_xdp), &["--port af_xdp: ", "h3 has two flows", "--port udp"]);
        refused(
            with("port = \"af_xdp\"\n", &another.replace("h4", "h1"), None),
            &["line 5, column 8: scenario.port af_xdp", "h1 has two"],
        );
        assert_eq!(with("link_rate = \"5M\"\n", "", af_xdp), names(&["h1-h3"]));
        let slow = |place, action| with("", &fault(place, action), af_xdp);
        refused(slow("h1", "rate=5M"), &["rate=5Mbit of h1", "--switch xdp"]);
        refused(slow("p0-t0-0", "rate=5M,dir=up"), &["rate=5Mbit,dir=up of p0-t0-0"]);
        for (place, action) in [
            ("h1", "rate=5M,dir=down"),
            ("h1", "blackhole"),
            ("p0-t0-0:p0-t1-0", "rate=5M"),
            ("p0-t1-1", "rate=5M"),
        ] {
            assert_eq!(slow(place, action), names(&["h1-h3"]), "{place} {action}");
        }
        let held = with("link_rate = \"5M\"\nswitch = \"xdp\"\n", &fault("h1", "rate=2M"), af_xdp);
        assert_eq!(held, names(&["h1-h3"]));
    }

    /// Each scenario that is given can be read, and says in its first line what it is after.
    #[test]
    fn the_scenarios_of_the_repository_are_good() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/lab/scenarios");
        let mut count = 0;
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                continue;
            }
            let read = Scenario::read(&path).unwrap();
            assert!(read.duration <= Duration::from_mins(1), "{}", read.name);
            assert!(fs::read_to_string(&path).unwrap().starts_with("# After "), "{}", read.name);
            count += 1;
        }
        assert!(count > 0);
    }

    /// The tables of `docs/cli.md` have each key.
    #[test]
    fn every_key_is_documented() {
        assert_documented("### Scenarios", "[scenario]", keys_of::<ScenarioTable>());
        assert_documented("### Scenarios", "[agents]", keys_of::<AgentsTable>());
        assert_documented("### Scenarios", "[[flow]]", keys_of::<FlowTable>());
    }
}
