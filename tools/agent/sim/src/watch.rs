//! A fabric in the simulator with an agent on each host, and what its agents name together.

use std::collections::BTreeMap;
use std::rc::Rc;

use spindrift::time::Time;
use spindrift_agent::{
    Agent, AgentError, AgentSettings, Change, Component, LiveAgents, Locator, Path, Report, View,
};
use spindrift_fabric::{Clos, ClosError, ClosSpec, Fault, HostId, Messenger, Sim};
use spindrift_srv6::{Fabric, Node};

use crate::host::ProbingHost;

/// How the agents of a fabric work together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WatchSettings {
    /// How each agent works.
    pub agent: AgentSettings,
    /// How often the reports are judged, in nanoseconds.
    pub judge_ns: u64,
    /// How often each agent hands out a report, in nanoseconds: the others know nothing newer. 0 for each time that reports are judged.
    pub report_ns: u64,
    /// After how long without a report the others take over the links of an agent, in nanoseconds; `None` if they never do.
    pub gone_ns: Option<u64>,
}

impl Default for WatchSettings {
    /// Those of `spindrift agent run`, whose agents have no store between them that would take its time.
    fn default() -> Self {
        Self { agent: AgentSettings::default(), judge_ns: 20_000_000, report_ns: 0, gone_ns: None }
    }
}

/// A fabric whose agents are watched.
pub struct Watched<T: Messenger> {
    clos: Clos,
    sim: Sim<ProbingHost<T>>,
    settings: WatchSettings,
    seed: u64,
    locator: Locator,
    /// The latest report of each host's agent.
    view: View,
    /// What each of these agents knows about the others.
    live: BTreeMap<u16, LiveAgents>,
    judge_at: u64,
    report_at: u64,
    changes: Vec<(u64, Change)>,
    /// The paths of all agents by the components that they cross; made when first asked for.
    crossings: Option<Rc<Crossings>>,
}

/// Which paths of all agents cross a component.
#[derive(Clone, Debug, Default)]
pub struct Crossings(BTreeMap<Component, Vec<Path>>);

/// A fabric cannot be watched.
#[derive(Debug, thiserror::Error)]
pub enum WatchError<E> {
    /// The fabric cannot be built.
    #[error(transparent)]
    Fabric(#[from] ClosError<E>),
    /// An agent cannot start.
    #[error(transparent)]
    Agent(#[from] AgentError),
}

impl<T: Messenger> Watched<T> {
    /// Builds a fabric, with the transports that `transport` makes and an agent on each host, which starts at once.
    ///
    /// # Errors
    /// A shape that cannot be, what `transport` fails with, or settings that do not fit.
    pub fn build<E>(
        spec: ClosSpec,
        settings: WatchSettings,
        seed: u64,
        mut transport: impl FnMut(&Fabric, u16) -> Result<T, E>,
    ) -> Result<Self, WatchError<E>> {
        let host = |fabric: &Fabric, number| transport(fabric, number).map(ProbingHost::new);
        let (clos, net) = Clos::build(spec, seed, host)?;
        let mut watched = Self {
            clos,
            sim: Sim::new(net),
            settings,
            seed,
            locator: Locator::new(settings.agent.locate),
            view: View::default(),
            live: BTreeMap::new(),
            judge_at: settings.judge_ns,
            report_at: 0,
            changes: Vec::new(),
            crossings: None,
        };
        for host in 0..watched.fabric().hosts().len() as u16 {
            watched.start_agent(host, None)?;
        }
        Ok(watched)
    }

    /// Starts the agent of a host, in place of one that runs, among those of the `live` hosts; `None` for those of all hosts.
    ///
    /// # Errors
    /// If the host or a setting is wrong, by name.
    pub fn start_agent(&mut self, host: u16, live: Option<&[u16]>) -> Result<(), AgentError> {
        let (fabric, settings, seed) = (self.clos.fabric(), self.settings.agent, self.seed);
        self.crossings = None;
        if let Some(gone_ns) = self.settings.gone_ns {
            self.live.insert(host, LiveAgents::new(host, gone_ns));
        }
        self.sim.net_mut().with_transport(HostId(host.into()), |at, now| {
            at.start_agent((fabric, host), live, settings, (seed ^ now.0, now))
        })
    }

    /// Stops the agent of a host.
    pub fn stop_agent(&mut self, host: u16) {
        self.crossings = None;
        self.live.remove(&host);
        self.sim.net_mut().with_transport(HostId(host.into()), |at, _| at.stop_agent());
    }

    /// How the agents work together.
    pub const fn settings(&self) -> &WatchSettings {
        &self.settings
    }

    /// Names, addresses and paths.
    pub const fn fabric(&self) -> &Fabric {
        self.clos.fabric()
    }

    /// The nodes and links.
    pub const fn clos(&self) -> &Clos {
        &self.clos
    }

    /// The network and its workloads.
    pub const fn sim(&self) -> &Sim<ProbingHost<T>> {
        &self.sim
    }

    /// The network and its workloads, for changes.
    pub const fn sim_mut(&mut self) -> &mut Sim<ProbingHost<T>> {
        &mut self.sim
    }

    /// The time since the beginning, in nanoseconds.
    pub const fn now_ns(&self) -> u64 {
        self.sim.net().now().0
    }

    /// The agents that run.
    pub fn agents(&self) -> impl Iterator<Item = &Agent> {
        let net = self.sim.net();
        net.hosts().filter_map(|host| net.transport(host).agent())
    }

    /// What the agents name together now.
    pub const fn locator(&self) -> &Locator {
        &self.locator
    }

    /// The sets of components that are named now.
    pub fn named(&self) -> Vec<&[Component]> {
        self.locator.findings().iter().map(|finding| &finding.components[..]).collect()
    }

    /// All that was named and withdrawn so far, and when in nanoseconds.
    pub fn changes(&self) -> &[(u64, Change)] {
        &self.changes
    }

    /// Forgets the changes so far.
    pub fn clear_changes(&mut self) {
        self.changes.clear();
    }

    /// Lets a fault happen now; `false` if the fabric has no such part.
    pub fn apply(&mut self, fault: &Fault) -> bool {
        self.clos.apply(self.sim.net_mut(), fault)
    }

    /// Ends all faults but a pause.
    pub fn heal(&mut self) {
        self.clos.heal(self.sim.net_mut());
    }

    /// Goes on until `until_ns`, or until `done` says so after reports were judged; whether it did.
    pub fn run(&mut self, until_ns: u64, mut done: impl FnMut(&Self) -> bool) -> bool {
        while self.now_ns() < until_ns {
            self.advance(self.judge_at.min(until_ns));
            if self.now_ns() < self.judge_at {
                return false;
            }
            self.judge();
            if done(self) {
                return true;
            }
        }
        false
    }

    fn advance(&mut self, until_ns: u64) {
        let until = Time(until_ns);
        while self.sim.run(until).is_some() {}
        // Without a workload that goes on, the network does.
        while self.now_ns() < until_ns {
            if self.sim.net_mut().run(until).is_none() {
                break;
            }
        }
    }

    fn judge(&mut self) {
        let now_ns = self.now_ns();
        self.judge_at = now_ns + self.settings.judge_ns;
        if now_ns >= self.report_at {
            self.report_at = now_ns + self.settings.report_ns;
            let reports: Vec<Report> = self.agents().map(|agent| agent.report(now_ns)).collect();
            self.view = View::new(&reports);
            self.share();
        }
        let changes = self.locator.update(now_ns, self.clos.fabric(), &self.view);
        self.changes.extend(changes.into_iter().map(|change| (now_ns, change)));
    }

    /// Each agent hears who reports, and takes its share of the links among them.
    fn share(&mut self) {
        let reporting: Vec<u16> = self.view.hosts().collect();
        for (&host, live) in &mut self.live {
            let now = self.sim.net().now();
            if !live.update(now.0, reporting.iter().copied()) {
                continue;
            }
            self.crossings = None;
            let (fabric, live) = (self.clos.fabric(), live.live());
            self.sim.net_mut().with_transport(HostId(host.into()), |at, now| {
                // The host is among them, and the settings fitted before.
                let _ = at.replan(fabric, live, now);
            });
        }
    }

    /// What was named, in words, a line for each change.
    pub fn words(&self) -> String {
        let line = |(at_ns, change): &(u64, Change)| {
            let (what, finding) = match change {
                Change::Opened(finding) => ("opened", finding),
                Change::Closed(finding) => ("closed", finding),
            };
            format!("\n{} ms: {what}: {}", at_ns / 1_000_000, finding.explain(self.fabric()))
        };
        self.changes.iter().map(line).collect()
    }

    /// Which paths of the agents cross which component.
    pub fn crossings(&mut self) -> Rc<Crossings> {
        let crossings = self.crossings.take().unwrap_or_else(|| Rc::new(Crossings::of(self.agents())));
        self.crossings = Some(Rc::clone(&crossings));
        crossings
    }
}

impl Crossings {
    /// Those of these agents, worked out from their routes.
    pub fn of<'a>(agents: impl Iterator<Item = &'a Agent>) -> Self {
        let mut all: BTreeMap<Component, Vec<Path>> = BTreeMap::new();
        for agent in agents {
            for route in agent.plan().routes() {
                let links = route.links().map(Component::Link);
                let up = route.nodes.len() / 2 + 1;
                let nodes = route.nodes.iter().take(up).copied().map(Component::Node);
                for component in links.chain(nodes) {
                    all.entry(component).or_default().push(route.path);
                }
            }
        }
        for paths in all.values_mut() {
            paths.sort_unstable();
        }
        Self(all)
    }

    /// The paths over a component, in order.
    pub fn paths(&self, component: Component) -> &[Path] {
        self.0.get(&component).map_or(&[], Vec::as_slice)
    }

    /// A component and those that no probe tells apart from it, in order, if the probes of `hidden` paths show nothing; none if no probe
    /// that shows something crosses it.
    ///
    /// A NIC is named only where it has several ports: with one, its only link is.
    pub fn alike(&self, component: Component, hidden: &[Path]) -> Vec<Component> {
        let left = |component| -> Vec<Path> {
            self.paths(component).iter().copied().filter(|path| hidden.binary_search(path).is_err()).collect()
        };
        let seen = left(component);
        if seen.is_empty() {
            return Vec::new();
        }
        let is_nic = |other: &Component| matches!(other, Component::Node(Node::Host(_)));
        let candidates = self.0.keys().copied().filter(|&other| left(other) == seen);
        let alike: Vec<Component> = candidates.collect();
        let named = |other: &Component| !is_nic(other) || alike.len() == 1;
        alike.iter().copied().filter(named).collect()
    }
}
