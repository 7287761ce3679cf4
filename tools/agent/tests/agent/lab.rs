//! Fabrics in simulated time: probes go where the tables of the fabric send them, unless a fault takes them.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng};
use spindrift_agent::{
    Agent, AgentSettings, Change, Component, Locator, PAYLOAD_LEN, Path, Plan, Route, SharePolicy, View,
    probe_address,
};
use spindrift_srv6::{Fabric, FabricHost, Forwarder, Link, Node, Shape, Verdict};

pub(crate) const MS: u64 = 1_000_000;
/// Time goes on in steps of this; a probe comes back a step after it left.
pub(crate) const STEP_NS: u64 = 250_000;
/// How often the reports are judged.
pub(crate) const JUDGE_NS: u64 = 10 * MS;

/// `planes` planes of `t0` × `t1` switches in each of `pods` pods with `t2` T2 switches for each T1 switch, and `hosts` hosts at each T0 switch.
pub(crate) fn fabric((planes, t0, t1): (u8, u16, u16), (pods, t2): (u16, u16), hosts: u16) -> Fabric {
    let shape = Shape { planes, t0, t1, pods, t2, ..Shape::default() };
    let host = |t0, at| FabricHost { name: format!("h{t0}-{at}"), t0, downlink: 7 * at + 2 };
    Fabric::new(shape, (0..t0).flat_map(|t0| (0..hosts).map(move |at| host(t0, at))).collect()).unwrap()
}

pub(crate) fn t0(plane: u8, number: u16) -> Node {
    Node::T0 { plane, number }
}

pub(crate) fn t1(plane: u8, number: u16) -> Node {
    Node::T1 { plane, number }
}

/// Where the tables of a fabric take a packet with headers as [`Plan`] describes them, from a host's port; the last node gets it, and `None`
/// follows if that is not the host with this agent's address.
pub(crate) fn forward(fabric: &Fabric, route: &Route) -> (Vec<Node>, bool) {
    let (host, plane) = (route.path.host, route.plane);
    let own = probe_address(fabric, host, plane).unwrap();
    let outer =
        header(fabric.address(host, plane).unwrap(), route.carrier.address(), 41, 40 + 8 + PAYLOAD_LEN);
    let mut packet = [outer, header(own, own, 17, 8 + PAYLOAD_LEN)].concat();
    packet.extend([0; 8 + PAYLOAD_LEN]);
    let number = fabric.hosts()[usize::from(host)].t0;
    let (mut nodes, mut node) = (vec![Node::Host(host)], t0(plane, number));
    loop {
        nodes.push(node);
        let mut tables = fabric.forwarder(node);
        if let Node::Host(host) = node {
            tables.add_own(probe_address(fabric, host, plane).unwrap());
        }
        match tables.forward(&mut packet) {
            Ok(Verdict::Forward(&next)) => node = next,
            Ok(Verdict::Inner(at)) => return (nodes, delivered(&tables, &mut packet[at..])),
            Ok(Verdict::Deliver) | Err(_) => return (nodes, false),
        }
    }
}

fn delivered(tables: &Forwarder<Node>, inner: &mut [u8]) -> bool {
    tables.forward(inner) == Ok(Verdict::Deliver)
}

fn header(source: Ipv6Addr, destination: Ipv6Addr, next: u8, len: usize) -> Vec<u8> {
    let mut bytes = vec![0x60, 0, 0, 0, 0, len as u8, next, 64];
    bytes.extend(source.octets());
    bytes.extend(destination.octets());
    bytes
}

/// What takes packets away.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Break {
    /// A cable carries nothing.
    Cut(Link),
    /// A cable carries nothing from the first node to the other one.
    OneWay(Node, Node),
    /// A cable loses a packet with this probability, in each direction.
    Gray(Link, f64),
    /// A cable changes a bit of each packet with this probability, in each direction.
    Corrupt(Link, f64),
    /// A switch, or a NIC, takes every packet and forwards none.
    Silent(Node),
    /// A switch loses a packet with this probability.
    GraySwitch(Node, f64),
    /// No switch of a plane forwards.
    Plane(u8),
}

pub(crate) struct Lab {
    pub(crate) fabric: Fabric,
    pub(crate) agents: Vec<Agent>,
    pub(crate) breaks: Vec<Break>,
    pub(crate) now_ns: u64,
    /// Findings that opened or closed, and when.
    pub(crate) changes: Vec<(u64, Change)>,
    pub(crate) locator: Locator,
    /// Probes of each path.
    pub(crate) sent: BTreeMap<Path, u64>,
    /// Chance of a loss at a host's port, by host and plane: congestion, which the test changes as time goes on.
    pub(crate) congestion: BTreeMap<(u16, u8), f64>,
    /// The agents whose reports the locator sees.
    pub(crate) reporting: Vec<u16>,
    rng: Xoshiro256PlusPlus,
    /// Nodes that the tables take a path's packets to.
    walks: BTreeMap<Path, Vec<(Node, Node)>>,
    /// For each agent, what will have arrived in the next step.
    arriving: Vec<Vec<(u8, [u8; PAYLOAD_LEN])>>,
}

impl Lab {
    /// An agent on each host.
    pub(crate) fn new(fabric: Fabric, seed: u64) -> Self {
        Self::with(fabric, seed, AgentSettings::default())
    }

    pub(crate) fn with(fabric: Fabric, seed: u64, settings: AgentSettings) -> Self {
        let hosts = 0..fabric.hosts().len() as u16;
        let seed_of = |host: u16| {
            let mut bytes = [seed as u8; 32];
            bytes[..2].copy_from_slice(&host.to_le_bytes());
            bytes[2..10].copy_from_slice(&seed.to_le_bytes());
            bytes
        };
        let agent = |host| Agent::new(&fabric, host, None, settings, (seed_of(host), 0)).unwrap();
        let agents: Vec<_> = hosts.map(agent).collect();
        Self {
            locator: Locator::new(settings.locate),
            breaks: Vec::new(),
            reporting: (0..agents.len() as u16).collect(),
            now_ns: 0,
            changes: Vec::new(),
            sent: BTreeMap::new(),
            congestion: BTreeMap::new(),
            rng: Xoshiro256PlusPlus::seed_from_u64(seed),
            walks: BTreeMap::new(),
            arriving: vec![Vec::new(); agents.len()],
            fabric,
            agents,
        }
    }

    pub(crate) fn unit(&mut self) -> f64 {
        (self.rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.unit() * n as f64) as usize
    }

    /// Lets `ns` pass.
    pub(crate) fn run(&mut self, ns: u64) {
        let end = self.now_ns + ns;
        while self.now_ns < end {
            self.step();
        }
    }

    /// Lets time pass until `done`, or `ns` at most; whether it was done.
    pub(crate) fn run_until(&mut self, ns: u64, done: impl Fn(&Self) -> bool) -> bool {
        let end = self.now_ns + ns;
        while self.now_ns < end && !done(self) {
            self.step();
        }
        done(self)
    }

    fn step(&mut self) {
        self.now_ns += STEP_NS;
        let now_ns = self.now_ns;
        for number in 0..self.agents.len() {
            for (plane, payload) in std::mem::take(&mut self.arriving[number]) {
                let _ = self.agents[number].on_return(now_ns, plane, &payload);
            }
            while self.agents[number].on_timeout(now_ns) {}
            while let Some(probe) = self.agents[number].poll(now_ns) {
                let path = probe.payload.path;
                *self.sent.entry(path).or_default() += 1;
                let mut payload = probe.payload.to_bytes();
                if self.passes(path, &mut payload) {
                    self.arriving[number].push((path.plane().unwrap(), payload));
                }
            }
        }
        if now_ns.is_multiple_of(JUDGE_NS) {
            let reports: Vec<_> =
                self.reporting.iter().map(|&host| self.agents[usize::from(host)].report(now_ns)).collect();
            let changes = self.locator.update(now_ns, &self.fabric, &View::new(&reports));
            self.changes.extend(changes.into_iter().map(|change| (now_ns, change)));
        }
    }

    /// Takes a packet along its path: `false` if it is lost.
    fn passes(&mut self, path: Path, payload: &mut [u8; PAYLOAD_LEN]) -> bool {
        if !self.walks.contains_key(&path) {
            let route = Route::new(&self.fabric, path).unwrap();
            // Tables never change, so one packet shows the way of all.
            let (nodes, delivered) = forward(&self.fabric, &route);
            assert!(delivered, "{route:?} {nodes:?}");
            self.walks.insert(path, nodes.windows(2).map(|pair| (pair[0], pair[1])).collect());
        }
        let walk = std::mem::take(self.walks.get_mut(&path).unwrap());
        let passes = walk.iter().all(|&hop| self.hop(hop, payload));
        self.walks.insert(path, walk);
        passes
    }

    fn hop(&mut self, (from, to): (Node, Node), payload: &mut [u8; PAYLOAD_LEN]) -> bool {
        let link = (from.min(to), from.max(to));
        if let (Node::Host(host), Node::T0 { plane, .. }) = link
            && let Some(&chance) = self.congestion.get(&(host, plane))
            && self.unit() < chance
        {
            return false;
        }
        for at in 0..self.breaks.len() {
            let lost = match self.breaks[at] {
                Break::Cut(broken) => link == broken,
                Break::OneWay(a, b) => (from, to) == (a, b),
                Break::Gray(broken, chance) => link == broken && self.unit() < chance,
                Break::Corrupt(broken, chance) => {
                    if link == broken && self.unit() < chance {
                        let bit = self.below(8 * PAYLOAD_LEN);
                        payload[bit / 8] ^= 1 << (bit % 8);
                    }
                    false
                }
                Break::Silent(node) => to == node,
                Break::GraySwitch(node, chance) => to == node && self.unit() < chance,
                Break::Plane(plane) => to.plane() == Some(plane),
            };
            if lost {
                return false;
            }
        }
        true
    }

    /// Everything that was named, in words.
    pub(crate) fn words(&self) -> String {
        let line = |(at_ns, change): &(u64, Change)| {
            let (what, finding) = match change {
                Change::Opened(finding) => ("opened", finding),
                Change::Closed(finding) => ("closed", finding),
            };
            format!("\n{} ms: {what}: {}", at_ns / MS, finding.explain(&self.fabric))
        };
        self.changes.iter().map(line).collect()
    }

    /// What the locator names now.
    pub(crate) fn named(&self) -> Vec<Vec<Component>> {
        self.locator.findings().iter().map(|finding| finding.components.clone()).collect()
    }

    /// All that was ever named.
    pub(crate) fn ever_named(&self) -> Vec<Vec<Component>> {
        let mut all: Vec<_> = self
            .changes
            .iter()
            .map(|(_, change)| match change {
                Change::Opened(finding) | Change::Closed(finding) => finding.components.clone(),
            })
            .collect();
        all.sort();
        all.dedup();
        all
    }

    /// The paths of all agents that cross a component, worked out from their routes.
    pub(crate) fn crossing(&self, component: Component) -> Vec<Path> {
        let mut paths = Vec::new();
        for route in self.agents.iter().flat_map(|agent| agent.plan().routes()) {
            let crosses = match component {
                Component::Link(link) => route.links().any(|other| other == link),
                Component::Node(node) => route.nodes.contains(&node),
            };
            if crosses {
                paths.push(route.path);
            }
        }
        paths
    }

    /// Every part of the fabric, a host's NIC too.
    pub(crate) fn components(&self) -> Vec<Component> {
        let links = self.fabric.links().map(Component::Link);
        links.chain(self.fabric.nodes().map(Component::Node)).collect()
    }

    /// A component, and those that no probe tells apart from it: none if no probe crosses it.
    pub(crate) fn alike(&self, component: Component) -> Vec<Component> {
        let paths = self.crossing(component);
        // With one plane, a NIC is the end of its only link.
        let is_port = |other: &Component| matches!(other, Component::Node(Node::Host(_)));
        if paths.is_empty() {
            return Vec::new();
        }
        let mut alike: Vec<_> = self.components();
        alike.retain(|other| self.crossing(*other) == paths && (other == &component || !is_port(other)));
        if is_port(&component) && alike.len() > 1 {
            alike.retain(|other| !is_port(other));
        }
        alike.sort();
        alike
    }
}

/// The plans of all agents.
pub(crate) fn plans(fabric: &Fabric) -> Vec<Plan> {
    let hosts = 0..fabric.hosts().len() as u16;
    hosts.map(|host| Plan::new(fabric, host, None, SharePolicy::default()).unwrap()).collect()
}
