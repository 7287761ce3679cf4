//! Switches as programs in the kernel: loaded when a lab is built, and reloaded when its faults change.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde::{Deserialize, Serialize};
use spindrift::wire::DscpMap;
use spindrift_bpf::Mode;
use spindrift_srv6::{Behavior, F3216, Link, Node};
use spindrift_switch::{
    self as switch, Crossing, Fault, NextHop, Pipeline, Port, Queue, QueueCounts, Rules, Switch, Trim,
};

use super::fault::{Action, Chance, Dir, Packets};
use super::ip::Ip;
use super::plan::{LabPlan, MTU};
use super::rules::{self, Broken, Limit, QUEUE};
use super::state::Lab;
use crate::topology::SwitchKind;

/// Where `ip netns` keeps namespaces.
const NAMESPACES: &str = "/run/netns";

/// What is left of a trimmed packet, from the IPv6 header on: the default of switches (SAI). With an outer header, all headers of MRC.
const TRIM_SIZE: u16 = 128;

/// What is in the file.
#[derive(Debug, Serialize, Deserialize)]
struct Written {
    kind: SwitchKind,
    /// By the names of the switches: which numbers of the kernel are theirs.
    numbers: BTreeMap<String, u32>,
}

/// The switches of a lab that are programs.
pub(super) struct Switches<'a> {
    plan: &'a LabPlan<'a>,
    pub(super) kind: SwitchKind,
    mode: Mode,
    numbers: BTreeMap<Node, u32>,
}

/// A program that a switch is to have.
pub(super) struct Change {
    namespace: String,
    mode: Mode,
    pipeline: Pipeline,
    switch: Switch,
    /// Queues that begin, or get another rate.
    other_queues: Vec<Crossing>,
}

fn path(lab: &Lab) -> PathBuf {
    lab.file("switches.json")
}

fn mode(kind: SwitchKind) -> Option<Mode> {
    match kind {
        SwitchKind::Kernel => None,
        SwitchKind::Xdp => Some(Mode::Native),
        SwitchKind::XdpGeneric => Some(Mode::Generic),
    }
}

/// Has the switches of a lab be what they are to be.
pub(super) fn build(ip: &Ip, lab: &Lab, plan: &LabPlan<'_>, kind: SwitchKind) -> Result<()> {
    let Some(mode) = mode(kind) else { return Ok(()) };
    let mut numbers = BTreeMap::new();
    for node in plan.fabric.nodes() {
        let namespace = plan.namespace(node);
        if let Node::Host(_) = node {
            for interface in plan.interfaces(node) {
                ip.take_frames(&namespace, &interface.name)?;
            }
            continue;
        }
        let (ports, segments) = tables(plan, node);
        let name = plan.fabric.name(node);
        let made = Switch::new(&ports, &segments).and_then(|switch| {
            let pipeline = switch.load(&Rules::default())?;
            Ok((switch.id()?, pipeline, switch))
        });
        let (id, pipeline, _numbers) = made.with_context(|| format!("switch {name} as an XDP program"))?;
        within(&namespace, || Ok(pipeline.attach(mode)?))
            .with_context(|| format!("switch {name} as an XDP program"))?;
        numbers.insert(name, id);
    }
    let text = serde_json::to_vec(&Written { kind, numbers }).context("switches as JSON")?;
    let path = path(lab);
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// The ports and segments of a switch.
fn tables(plan: &LabPlan<'_>, node: Node) -> (Vec<Port>, Vec<(F3216, Behavior<NextHop>)>) {
    let (mut ports, mut next_hops) = (Vec::new(), BTreeMap::new());
    for (_, [lower, upper]) in plan.links() {
        let (own, other) = match node {
            node if lower.node == node => (lower, upper),
            node if upper.node == node => (upper, lower),
            _ => continue,
        };
        ports.push(Port { interface: own.number(), mac: own.mac(), mtu: MTU });
        next_hops.insert(other.node, NextHop { interface: own.number(), mac: other.mac() });
    }
    let segment = |(segment, behavior)| {
        let behavior = match behavior {
            Behavior::Node => Behavior::Node,
            Behavior::Decapsulate => Behavior::Decapsulate,
            Behavior::Adjacency(next) => Behavior::Adjacency(*next_hops.get(&next)?),
        };
        Some((segment, behavior))
    };
    let segments = plan.fabric.tables(node).segments.into_iter().filter_map(segment).collect();
    (ports, segments)
}

impl<'a> Switches<'a> {
    /// The switches of a lab; `None` if they are the kernel's.
    pub(super) fn open(lab: &Lab, plan: &'a LabPlan<'a>) -> Result<Option<Self>> {
        let path = path(lab);
        if !path.exists() {
            return Ok(None);
        }
        let name = path.display();
        let text = fs::read(&path).with_context(|| format!("cannot read {name}"))?;
        let broken = || format!("{name} is damaged; remove the lab");
        let Written { kind, numbers } = serde_json::from_slice(&text).with_context(broken)?;
        let node = |(name, id): (String, u32)| Some((plan.fabric.node(&name)?, id));
        let numbers = numbers.into_iter().map(node).collect::<Option<_>>();
        let (mode, numbers) = mode(kind).zip(numbers).with_context(broken)?;
        Ok(Some(Self { plan, kind, mode, numbers }))
    }

    /// What programs need to lead from some faults to others, loaded. Counters of faults that are new start from 0.
    pub(super) fn change(&self, old: &[Broken], new: &[Broken]) -> Result<Vec<Change>> {
        if new.iter().filter(|broken| broken.fault.is_filter()).count() > Switch::COUNTERS {
            bail!("a lab with XDP switches has {} faults at most", Switch::COUNTERS);
        }
        let (before, after) = (self.rules(old), self.rules(new));
        let nodes: BTreeSet<Node> = before.keys().chain(after.keys()).copied().collect();
        let counters = |rules: Option<&Rules>| -> BTreeSet<_> {
            rules.into_iter().flat_map(|rules| &rules.faults).map(|fault| fault.counter).collect()
        };
        let mut changes = Vec::new();
        for node in nodes {
            let (before, after) = (before.get(&node), after.get(&node));
            if before == after {
                continue;
            }
            let begun: Vec<_> = counters(after).difference(&counters(before)).copied().collect();
            let load = || {
                let switch = self.switch(node)?;
                switch.clear(&begun)?;
                let pipeline = switch.load(&after.cloned().unwrap_or_default())?;
                anyhow::Ok((switch, pipeline))
            };
            let (switch, pipeline) =
                load().with_context(|| format!("switch {}", self.plan.fabric.name(node)))?;
            let (namespace, mode) = (self.plan.namespace(node), self.mode);
            let other_queues = other_queues(before, after);
            changes.push(Change { namespace, mode, pipeline, switch, other_queues });
        }
        Ok(changes)
    }

    fn switch(&self, node: Node) -> Result<Switch> {
        let id =
            *self.numbers.get(&node).context("the lab is incomplete; remove it with `spindrift lab down`")?;
        let (ports, segments) = tables(self.plan, node);
        Switch::resume(&ports, &segments, id)
            .context("the lab is incomplete; remove it with `spindrift lab down`")
    }

    /// The rules of each switch that has some.
    fn rules(&self, all: &[Broken]) -> BTreeMap<Node, Rules> {
        let mut rules = BTreeMap::<Node, Rules>::new();
        let ends = rules::ends(self.plan, all);
        for place in rules::places(&ends, all) {
            let interface = place.end.number();
            let port = if place.incoming { Crossing::In(interface) } else { Crossing::Out(interface) };
            let (action, Chance(chance)) = match place.broken.fault.action {
                Action::Loss(chance) => (switch::Action::Drop, chance),
                Action::Ecn(chance) => (switch::Action::Mark, chance),
                Action::Blackhole | Action::Down | Action::Rate(_) => (switch::Action::Drop, Chance::ALWAYS),
            };
            let packets = match place.broken.fault.packets {
                None => switch::Packets::All,
                Some(Packets::Ev(ev)) => switch::Packets::Ev(ev),
                Some(Packets::Port(port)) => switch::Packets::Port(port),
            };
            let counter = place.broken.number();
            let fault = Fault { port, packets, chance, action, counter };
            rules.entry(place.end.node).or_default().faults.push(fault);
        }
        for limit in rules::limits(&ends, all) {
            let (at, queue) = queue(&limit);
            rules.entry(at).or_default().queues.push(queue);
        }
        rules
    }

    /// What the queue of each link and direction with a rate has done since the lab is there.
    pub(super) fn queues(&self, all: &[Broken]) -> Result<Vec<(Link, Dir, QueueCounts)>> {
        let ends = rules::ends(self.plan, all);
        let count = |limit: Limit<'_>| {
            let (at, queue) = queue(&limit);
            Ok((limit.link, limit.dir, self.switch(at)?.queue(queue.port)?))
        };
        rules::limits(&ends, all).into_iter().map(count).collect()
    }

    /// What each switch has done.
    pub(super) fn counts(&self) -> Result<BTreeMap<Node, switch::Counts>> {
        self.numbers.keys().map(|&node| Ok((node, self.switch(node)?.counts()?))).collect()
    }

    /// How many packets each fault has taken or marked, by its number.
    pub(super) fn hits(&self, all: &[Broken]) -> Result<BTreeMap<u32, u64>> {
        let mut hits = BTreeMap::new();
        for (node, rules) in self.rules(all) {
            if rules.faults.is_empty() {
                continue;
            }
            let counters = self.switch(node)?.counters()?;
            let here: BTreeSet<_> = rules.faults.iter().map(|fault| fault.counter).collect();
            for broken in all.iter().filter(|broken| here.contains(&broken.number())) {
                let count = counters.get(broken.number()).copied().unwrap_or_default();
                *hits.entry(broken.id).or_default() += count;
            }
        }
        Ok(hits)
    }
}

/// The queue that holds packets to a rate, and the switch that has it.
fn queue(limit: &Limit<'_>) -> (Node, Queue) {
    let &Limit { end, far, rate, mark, trim, .. } = limit;
    // As much as `tc` lets pass at once.
    let burst = Duration::from_secs_f64(rules::burst(rate) as f64 * 8.0 / rate as f64);
    // What a host sends past its kernel meets no queue there, but at its switch. What the kernel sends has waited already, and comes in
    // bursts.
    let (at, port, late) = match end.node {
        Node::Host(_) => (far.node, Crossing::In(far.number()), burst),
        _ => (end.node, Crossing::Out(end.number()), Duration::ZERO),
    };
    let dscp = DscpMap::default();
    let trimmed = if matches!(far.node, Node::Host(_)) { dscp.trimmed_last_hop } else { dscp.trimmed };
    let trimming = Trim { size: TRIM_SIZE, of: vec![dscp.trimmable, dscp.trimmable_retx], dscp: trimmed };
    let queue = Queue {
        port,
        rate,
        limit: trim.map_or(QUEUE + burst, |trim| trim + late),
        mark: mark.map(|mark| mark + late),
        trim: trim.map(|_| trimming),
    };
    (at, queue)
}

/// The queues whose rate is another one than before.
fn other_queues(before: Option<&Rules>, after: Option<&Rules>) -> Vec<Crossing> {
    let queues = |rules: Option<&Rules>| -> BTreeMap<Crossing, u64> {
        rules.into_iter().flat_map(|rules| &rules.queues).map(|queue| (queue.port, queue.rate)).collect()
    };
    let before = queues(before);
    let other = |&(port, rate): &(Crossing, u64)| before.get(&port) != Some(&rate);
    queues(after).into_iter().filter(other).map(|(port, _)| port).collect()
}

impl Change {
    /// Has the switch go on with its new program.
    pub(super) fn apply(&self) -> Result<()> {
        within(&self.namespace, || Ok(self.pipeline.replace(self.mode)?))?;
        Ok(self.switch.empty(&self.other_queues)?)
    }
}

/// Does something in a network namespace.
fn within<T: Send>(namespace: &str, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let path = format!("{NAMESPACES}/{namespace}");
    let file = File::open(&path).with_context(|| format!("cannot open {path}; is the lab complete?"))?;
    let go = move || {
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
            .with_context(|| format!("cannot enter {path}"))?;
        work()
    };
    // A thread that ends there: this one stays where it is.
    let done = thread::scope(|scope| scope.spawn(go).join());
    done.unwrap_or_else(|_| bail!("a thread panicked"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::plan::two_hosts;

    /// Which port meets what, and which counter and queue that is.
    #[test]
    fn rules_are_those_of_the_packet_filter() {
        let fabric = two_hosts(1);
        let plan = LabPlan::new(&fabric, "x");
        let numbers = BTreeMap::new();
        let switches = Switches { plan: &plan, kind: SwitchKind::Xdp, mode: Mode::Native, numbers };
        let faults = [
            "a:p0-t0-0 loss=2%",
            "p0-t0-0:p0-t1-1 ecn=100%,ev=0x70001",
            "p0-t0-0:p0-t1-1 rate=8M",
            "p0-t0-0:p0-t1-1 rate=16M,mark=2ms,trim=5ms,dir=up",
            "a:p0-t0-0 rate=8M,mark=3ms",
            "a:p0-t0-0 rate=16M,trim=4ms",
        ];
        let broken = |(id, text): (u32, &str)| {
            let (link, fault) = text.split_once(' ').unwrap();
            let link = crate::topology::link(&fabric, link).unwrap();
            Broken { id, owner: String::new(), link, fault: fault.parse().unwrap() }
        };
        let all: Vec<_> = (1023..).zip(faults).map(broken).collect();
        let rules = switches.rules(&all);
        let number = |node: &str, name: &str| {
            let node = fabric.node(node).unwrap();
            plan.interfaces(node).find(|end| end.name == name).unwrap().number()
        };
        let of = |node: &str| &rules[&fabric.node(node).unwrap()];
        assert_eq!(rules.len(), 2);
        let (host, up, down) =
            (number("p0-t0-0", "down0"), number("p0-t0-0", "up1"), number("p0-t1-1", "down0"));
        let loss = |port| {
            let (packets, action) = (switch::Packets::All, switch::Action::Drop);
            Fault { port, packets, chance: 20_000, action, counter: 1023 }
        };
        let mark = |port| {
            let (packets, action) = (switch::Packets::Ev(0x7_0001), switch::Action::Mark);
            Fault { port, packets, chance: Fault::ALWAYS, action, counter: 0 }
        };
        let all = [loss(Crossing::In(host)), loss(Crossing::Out(host)), mark(Crossing::Out(up))];
        assert_eq!(of("p0-t0-0").faults, all);
        assert_eq!(of("p0-t1-1").faults, [mark(Crossing::Out(down))]);
        // Twenty thousand bytes more than the queue.
        let ms = Duration::from_millis;
        let queue = |port, mark| Queue { port, rate: 8_000_000, limit: ms(30), mark, trim: None };
        let trimming = |port, mark, limit, dscp| Queue {
            limit,
            trim: Some(Trim { size: 128, of: vec![0, 8], dscp }),
            ..queue(port, Some(mark))
        };
        let [of_host, to_host] = [Crossing::In(host), Crossing::Out(host)];
        // A host's packets are held up where they come in, if its own queue has not done it.
        let all = [
            trimming(of_host, ms(23), ms(24), 12),
            trimming(to_host, ms(3), ms(4), 16),
            trimming(Crossing::Out(up), ms(2), ms(5), 12),
        ];
        assert_eq!(of("p0-t0-0").queues, all);
        assert_eq!(of("p0-t1-1").queues, [queue(Crossing::Out(down), None)]);
    }

    /// A queue is kept as a time, which means nothing at another rate.
    #[test]
    fn queues_that_get_another_rate_are_emptied() {
        let queue = |port, rate, mark| Queue {
            port,
            rate,
            limit: QUEUE,
            mark: Some(Duration::from_millis(mark)),
            trim: None,
        };
        let rules = |queues: &[Queue]| Rules { faults: Vec::new(), queues: queues.to_vec() };
        let (one, other) = (Crossing::In(7), Crossing::Out(7));
        let old = rules(&[queue(one, 1000, 1), queue(other, 1000, 1)]);
        let new = rules(&[queue(one, 1000, 2), queue(other, 2000, 1), queue(Crossing::Out(8), 1000, 1)]);
        assert_eq!(other_queues(Some(&old), Some(&new)), [other, Crossing::Out(8)]);
        assert_eq!(other_queues(None, Some(&old)), [one, other]);
        assert_eq!((other_queues(Some(&old), Some(&old)), other_queues(Some(&old), None)), (vec![], vec![]));
    }
}
