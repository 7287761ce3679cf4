//! The loop of an agent: sends the probes that are due, takes those that have come back, and tells what has changed.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::Ipv6Addr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use spindrift_agent::frame::{self, Template};
use spindrift_agent::policy::{Decision, Deny, Policy};
use spindrift_agent::{
    Agent, AgentError, AgentSettings, Change, Component, Fault, Finding, LinkState, LiveAgents, PAYLOAD_LEN,
    ProbeCounters, Route, View, Window, probe_address,
};
use spindrift_pmd::tunnel::{TunnelError, TunnelSocket};
use spindrift_srv6::Fabric;

use crate::cluster::Cluster;
use crate::deny::{Messenger, Told, reason, rules};
use crate::published::{Published, Source};
use crate::snapshot::{
    CountReport, DecisionReport, DeniedReport, DenyReport, FindingReport, Part, Plane, PlaneCount, Probes,
    Scene, Snapshot, Store,
};

/// How often faults are located: what loses all packets is to be named within 100 ms.
const LOCATE_NS: u64 = 20_000_000;
/// The time between two times, at least, as a multiple of what the last one took, since probing waits meanwhile; and the longest.
const LOCATE_REST: u64 = 10;
const LOCATE_MOST_NS: u64 = 250_000_000;
/// How often the own report is handed out, of which the store takes one each 200 ms.
const REPORT_NS: u64 = 50_000_000;
/// How long after its report has gone from the store another agent's links are taken over.
const GONE_NS: u64 = 1_000_000_000;
/// How often what the agent knows is published.
const PUBLISH_NS: u64 = 250_000_000;
/// Packets that are taken from a port before the others have their turn.
const BURST: usize = 256;
/// Longest packet that is looked at: a probe, and padding.
const PACKET: usize = 256;

/// An agent cannot run.
#[derive(Debug, thiserror::Error)]
pub enum RunnerError {
    /// Its settings do not fit.
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// A port of its host cannot be used.
    #[error("plane {plane}: {error}")]
    Port {
        /// The plane.
        plane: u8,
        /// Why.
        error: TunnelError,
    },
    /// The topology lacks an address.
    #[error("plane {0}: the topology has no address of the host there")]
    NoAddress(u8),
    /// The kernel does not let it wait.
    #[error("cannot wait for packets: {0}")]
    Wait(io::Error),
}

/// What is told of at once.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A component is at fault.
    Opened(FindingReport),
    /// One that was lossy is down, or the other way round; the time is that of the change.
    Changed(FindingReport, f64),
    /// It is not any more; the time is that of its end.
    Closed(FindingReport, f64),
    /// The transports of this host avoid a component from now on, or no longer.
    Decided(DecisionReport),
    /// What became of the latest probes, for whoever [asks](Runner::tell_counts).
    Counted(CountReport),
}

impl Event {
    /// As a JSON object, which the stream of events and `--json` have.
    pub fn json(&self) -> serde_json::Value {
        let (event, time, finding) = match self {
            Self::Decided(decision) => {
                return serde_json::json!({ "event": decision.what, "time": decision.time, "denied": decision.entry, "dry_run": decision.dry_run });
            }
            Self::Counted(CountReport { time, planes }) => {
                return serde_json::json!({ "event": "counts", "time": time, "planes": planes });
            }
            Self::Opened(finding) => ("fault", finding.since, finding),
            Self::Changed(finding, at) => ("changed", *at, finding),
            Self::Closed(finding, at) => ("healed", *at, finding),
        };
        serde_json::json!({ "event": event, "time": time, "finding": finding })
    }
}

struct Port {
    socket: TunnelSocket,
    outer: Ipv6Addr,
    inner: Ipv6Addr,
    shown: Plane,
}

/// What tells the transports of this host what to avoid.
struct Denier {
    policy: Policy,
    messenger: Messenger,
    denied: Vec<DeniedReport>,
}

impl Denier {
    fn report(&self) -> DenyReport {
        let Told { processes, errors } = self.messenger.told();
        DenyReport {
            dry_run: self.policy.is_dry_run(),
            denied: self.denied.clone(),
            processes: processes as u64,
            errors,
        }
    }
}

/// An agent on this host.
pub struct Runner {
    fabric: Fabric,
    agent: Agent,
    ports: Vec<Port>,
    /// Of each path.
    templates: Vec<Template>,
    began: Instant,
    started: f64,
    unsent: u64,
    /// Why the kernel did not take the last of them.
    send_error: Option<String>,
    /// The planes whose T0 switch does not reply.
    silent: BTreeSet<u8>,
    cluster: Option<Arc<Cluster>>,
    /// The agents that share the links, as the store tells.
    live: LiveAgents,
    reported_at: u64,
    denier: Option<Denier>,
    /// The findings that were told of, and whether they were said to be down.
    told: BTreeMap<Vec<Component>, bool>,
    /// When the counts of probes are told of next: never, if nobody asks.
    count_at: u64,
    published: Arc<Published>,
}

impl Runner {
    /// Opens the ports of a host, which must be this one. `seed` is from a cryptographic source.
    ///
    /// # Errors
    /// The settings, or an address that is not this host's, by name.
    pub fn open(
        fabric: Fabric,
        host: u16,
        settings: AgentSettings,
        seed: [u8; 32],
    ) -> Result<Self, RunnerError> {
        let agent = Agent::new(&fabric, host, None, settings, (seed, 0))?;
        let mut ports = Vec::new();
        for plane in 0..fabric.shape().planes {
            let outer = fabric.address(host, plane).ok_or(RunnerError::NoAddress(plane))?;
            let inner = probe_address(&fabric, host, plane).ok_or(RunnerError::NoAddress(plane))?;
            let socket = TunnelSocket::open(outer, inner, frame::PROBE_PORT)
                .map_err(|error| RunnerError::Port { plane, error })?;
            let shown = Plane {
                plane,
                interface: socket.interface().to_owned(),
                address: outer.to_string(),
                probe_address: inner.to_string(),
            };
            ports.push(Port { socket, outer, inner, shown });
        }
        let mut runner = Self {
            fabric,
            agent,
            ports,
            templates: Vec::new(),
            began: Instant::now(),
            started: time_of_day(),
            unsent: 0,
            send_error: None,
            silent: BTreeSet::new(),
            cluster: None,
            live: LiveAgents::new(host, GONE_NS),
            reported_at: 0,
            denier: None,
            told: BTreeMap::new(),
            count_at: u64::MAX,
            published: Arc::default(),
        };
        runner.make_templates();
        runner.publish(0);
        Ok(runner)
    }

    fn make_templates(&mut self) {
        let template = |route: &Route| {
            let port = self.ports.get(usize::from(route.plane))?;
            Some(Template::new(route, port.outer, port.inner))
        };
        self.templates = self.agent.plan().routes().filter_map(template).collect();
    }

    /// Works together with other agents from now on.
    pub fn join(&mut self, cluster: Cluster) {
        self.cluster = Some(Arc::new(cluster));
    }

    /// Tells the transports of this host what to avoid from now on.
    pub fn deny(&mut self, policy: Policy, messenger: Messenger) {
        self.denier = Some(Denier { policy, messenger, denied: Vec::new() });
    }

    /// Tells 20 times a second what became of the probes of 50 ms, from now on.
    pub fn tell_counts(&mut self) {
        self.count_at = self.now_ns();
    }

    /// The agent.
    pub fn agent(&self) -> &Agent {
        &self.agent
    }

    /// What it knows, for other threads.
    pub fn published(&self) -> Arc<Published> {
        Arc::clone(&self.published)
    }

    /// What the HTTP interface shows.
    pub fn source(&self) -> Source {
        let cluster = self.cluster.clone();
        let others = move || cluster.as_ref().map(|cluster| cluster.view()).unwrap_or_default();
        Source::new(self.fabric.clone(), self.published(), others)
    }

    fn now_ns(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    /// Probes until `stop` says so; it is asked at least ten times a second.
    ///
    /// # Errors
    /// The kernel's, while it waits.
    pub fn run(&mut self, stop: impl Fn() -> bool, mut tell: impl FnMut(Event)) -> Result<(), RunnerError> {
        let (mut locate_at, mut publish_at) = (LOCATE_NS, PUBLISH_NS);
        while !stop() {
            self.receive();
            let now_ns = self.now_ns();
            while self.agent.on_timeout(now_ns) {}
            self.send(now_ns);
            if now_ns >= locate_at {
                let others = self.exchange(now_ns);
                self.share(now_ns);
                let changes = self.agent.locate(now_ns, &self.fabric, others);
                let events = changes.iter().map(|change| self.event(change, now_ns)).collect::<Vec<_>>();
                let events = events.into_iter().chain(self.changed(now_ns)).collect::<Vec<_>>();
                for event in events.into_iter().chain(self.decide(now_ns)) {
                    // What one host avoids concerns no other.
                    if let (Some(cluster), false) = (&self.cluster, matches!(event, Event::Decided(_))) {
                        cluster.tell(event.json().to_string());
                    }
                    self.published.note(&event);
                    tell(event);
                }
                let took_ns = self.now_ns().saturating_sub(now_ns);
                locate_at = now_ns + (LOCATE_REST * took_ns).clamp(LOCATE_NS, LOCATE_MOST_NS);
            }
            if now_ns >= self.count_at {
                self.count_at = now_ns + Window::Fast.span_ns();
                tell(Event::Counted(self.counted(now_ns)));
            }
            if now_ns >= publish_at {
                publish_at = now_ns + PUBLISH_NS;
                self.renew();
                self.publish(now_ns);
                self.send_error = None;
            }
            let due = self.agent.next_timeout().min(locate_at).min(publish_at).min(self.count_at);
            self.wait(due.saturating_sub(self.now_ns()))?;
        }
        self.publish(self.now_ns());
        Ok(())
    }

    /// Hands out the own report, and takes those of the other agents.
    fn exchange(&mut self, now_ns: u64) -> View {
        let Some(cluster) = &self.cluster else { return View::default() };
        if now_ns >= self.reported_at + REPORT_NS {
            self.reported_at = now_ns;
            cluster.publish(&self.agent.report(now_ns));
        }
        cluster.view()
    }

    /// Takes the share of the links that is this agent's among those that report. While the store is away nothing is known about them, and it
    /// stays as it is.
    fn share(&mut self, now_ns: u64) {
        let Some(cluster) = &self.cluster else { return };
        let (rounds, error) = cluster.condition();
        if rounds == 0 || error.is_some() || !self.live.update(now_ns, cluster.hosts()) {
            return;
        }
        // The own host is among them, and the settings have fitted before.
        if let Ok(true) = self.agent.replan(&self.fabric, self.live.live(), now_ns) {
            self.make_templates();
        }
    }

    /// An interface that was down has lost the address of probes.
    fn renew(&mut self) {
        let links = self.agent.plan().lower().iter().zip(self.agent.recorder().links());
        for (route, link) in links {
            let is_silent = link.state() == LinkState::Down;
            let was_silent =
                if is_silent { !self.silent.insert(route.plane) } else { self.silent.remove(&route.plane) };
            if was_silent
                && !is_silent
                && let Some(port) = self.ports.get_mut(usize::from(route.plane))
            {
                port.socket.renew();
            }
        }
    }

    /// Findings that have become better or worse since they were told of.
    fn changed(&mut self, now_ns: u64) -> Vec<Event> {
        let is_down = |finding: &Finding| matches!(finding.fault, Fault::Down);
        let findings = self.agent.locator().findings();
        let scene = self.scene();
        let has_changed = |finding: &&Finding| {
            self.told.get(&finding.components).is_some_and(|before| *before != is_down(finding))
        };
        let changed = findings.iter().filter(has_changed);
        let events =
            changed.map(|finding| Event::Changed(scene.finding(finding), scene.time(now_ns))).collect();
        self.told = findings.iter().map(|finding| (finding.components.clone(), is_down(finding))).collect();
        events
    }

    /// What the policy makes of the findings.
    fn decide(&mut self, now_ns: u64) -> Vec<Event> {
        let epoch = self.scene().epoch;
        let (fabric, host) = (&self.fabric, self.agent.plan().host());
        let scene = Scene { fabric, epoch };
        let Some(denier) = &mut self.denier else { return Vec::new() };
        let findings = self.agent.locator().findings();
        let decisions = denier.policy.update(now_ns, fabric, findings);
        if !decisions.is_empty() {
            let rules = denier.policy.denied(fabric).into_iter().flat_map(|entry| rules(fabric, host, entry));
            denier.messenger.set(rules.collect());
        }
        let report = |decision: &Decision| {
            let (what, entry) = match *decision {
                Decision::Deny(entry) => ("denied", entry),
                Decision::Allow(entry) => ("allowed", entry),
                Decision::TooMany(entry) => ("not denied", entry),
            };
            let rules = rules(fabric, host, entry);
            let time = scene.time(now_ns);
            let component = match entry {
                Deny::Plane(plane) => format!("plane {plane} of this host"),
                Deny::Component(component) => {
                    let Part { kind, name } = scene.part(component);
                    format!("{kind} {name}")
                }
            };
            let rules = rules.iter().map(ToString::to_string).collect();
            let reason = reason(fabric, host, entry, findings);
            let entry = DeniedReport { component, rules, reason, since: time };
            DecisionReport { what, time, entry, dry_run: denier.policy.is_dry_run() }
        };
        let reports: Vec<_> = decisions.iter().map(report).collect();
        for report in &reports {
            denier.denied.retain(|entry| entry.component != report.entry.component);
            if report.what == "denied" {
                denier.denied.push(report.entry.clone());
            }
        }
        reports.into_iter().map(Event::Decided).collect()
    }

    /// The probes of the latest 50 ms whose end is known.
    fn counted(&self, now_ns: u64) -> CountReport {
        let (plan, recorder) = (self.agent.plan(), self.agent.recorder());
        let mut planes = vec![PlaneCount::default(); self.ports.len()];
        for (path, route) in plan.routes().enumerate() {
            let count = recorder.count(path, Window::Fast, now_ns).unwrap_or_default();
            if let Some(plane) = planes.get_mut(usize::from(route.plane)) {
                plane.sent += u64::from(count.sent);
                plane.lost += u64::from(count.lost);
            }
        }
        let timeout_ns = self.agent.prober().settings().timeout_ns;
        CountReport { time: self.scene().time(now_ns.saturating_sub(timeout_ns)), planes }
    }

    fn receive(&mut self) {
        let mut buffer = [0; PACKET];
        for (plane, port) in (0..).zip(&self.ports) {
            for _ in 0..BURST {
                let Ok(len) = port.socket.receive(&mut buffer) else { break };
                let packet = buffer.get(..len.min(PACKET)).unwrap_or_default();
                // What is no probe is counted as malformed, by the agent.
                let payload = frame::payload(packet, port.inner).unwrap_or_default();
                let _ = self.agent.on_return(self.began.elapsed().as_nanos() as u64, plane, payload);
            }
        }
    }

    fn send(&mut self, now_ns: u64) {
        while let Some(probe) = self.agent.poll(now_ns) {
            let plane = self.agent.plan().route(probe.path).map(|route| route.plane);
            let port = plane.and_then(|plane| self.ports.get(usize::from(plane)));
            let Some((port, template)) = port.zip(self.templates.get(probe.path)) else { continue };
            // It is lost then, since a port without carrier takes none; but not if the transport has filled the queue.
            if let Err(error) = port.socket.send(&template.packet(probe.payload), template.to()) {
                self.unsent += 1;
                if is_queue_full(&error) {
                    self.agent.on_unsent(&probe);
                }
                if self.send_error.is_none() {
                    self.send_error = Some(format!("{}: {error}", port.socket.interface()));
                }
            }
        }
    }

    /// Waits for a packet, at most so long.
    fn wait(&self, ns: u64) -> Result<(), RunnerError> {
        let mut fds: Vec<_> =
            self.ports.iter().map(|port| PollFd::new(&port.socket, PollFlags::IN)).collect();
        let wait = Duration::from_nanos(ns.min(100_000_000));
        let wait = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() };
        match poll(&mut fds, Some(&wait)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(RunnerError::Wait(error.into())),
        }
    }

    fn scene(&self) -> Scene<'_> {
        // The clock of the day may be set, and goes on while the machine sleeps.
        Scene { fabric: &self.fabric, epoch: time_of_day() - self.began.elapsed().as_secs_f64() }
    }

    fn event(&self, change: &Change, now_ns: u64) -> Event {
        let scene = self.scene();
        match change {
            Change::Opened(finding) => Event::Opened(scene.finding(finding)),
            Change::Closed(finding) => Event::Closed(scene.finding(finding), scene.time(now_ns)),
        }
    }

    fn publish(&self, now_ns: u64) {
        let scene = self.scene();
        let prober = self.agent.prober();
        let host = spindrift_srv6::Node::Host(self.agent.plan().host());
        self.published.report(self.agent.report(now_ns));
        self.published.set(Snapshot {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            host: self.fabric.name(host),
            time: scene.time(now_ns),
            started: self.started,
            interval_ns: prober.settings().interval_ns,
            upper_interval_ns: prober.upper_interval_ns(),
            probes: probes(prober.counters(), self.unsent),
            send_error: self.send_error.clone(),
            store: self.cluster.as_ref().map(|cluster| Store {
                agents: cluster.hosts().len() as u64 + 1,
                error: cluster.condition().1,
            }),
            deny: self.denier.as_ref().map(Denier::report),
            planes: self.ports.iter().map(|port| port.shown.clone()).collect(),
            links: scene.links(&self.agent, now_ns),
            findings: self.agent.locator().findings().iter().map(|finding| scene.finding(finding)).collect(),
        });
    }
}

/// A packet was not sent since the queue of the interface or of the socket was full.
fn is_queue_full(error: &io::Error) -> bool {
    let full = [rustix::io::Errno::NOBUFS, rustix::io::Errno::AGAIN, rustix::io::Errno::NOMEM];
    full.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// Seconds since 1970.
fn time_of_day() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

fn probes(counters: &ProbeCounters, unsent: u64) -> Probes {
    let ProbeCounters { tx_probes, rx_returned, lost, void, skipped, .. } = *counters;
    let refused = counters.rx_malformed
        + counters.rx_foreign
        + counters.rx_unknown
        + counters.rx_forged
        + counters.rx_duplicate
        + counters.rx_late;
    Probes { sent: tx_probes, returned: rx_returned, lost, void, skipped, unsent, refused }
}

const _: () = assert!(frame::LEN <= PACKET && PAYLOAD_LEN < PACKET, "a probe fits into the buffer");
