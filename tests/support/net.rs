//! The network: nodes with an endpoint each, links between their ports, and one queue of events.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use spindrift::endpoint::{Endpoint, EndpointConfig, Event, LocalPort, Transmit};
use spindrift::path::PlaneSet;
use spindrift::pmd::{DatagramMeta, MacAddr, RxOrigin};
use spindrift::time::Time;
use spindrift::wire::{DscpMap, Packet, stack};

use super::frame;
use super::link::{Link, Outage};
use super::rand::{Rng, mix};
use super::trace::{Fate, Trace};

/// Sees packets as they leave and as they arrive whole.
pub(crate) trait Tap {
    fn sent(&mut self, at: Time, node: usize, packet: &Packet<'_>);
    fn arrived(&mut self, at: Time, node: usize, packet: &Packet<'_>);
    /// Left the endpoint but not the host.
    fn given_back(&mut self, _at: Time, _node: usize, _packet: &Packet<'_>) {}
    /// What becomes of the packet that [`sent`](Self::sent) was just told of.
    fn on_its_way(&mut self, _at: Time, _hop: &Hop) {}
}

/// The way of one packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hop {
    pub(crate) node: usize,
    pub(crate) port: u8,
    /// Stands for the path: the entropy on the wire and the port.
    pub(crate) path: u64,
    /// Nothing usable arrives: lost, swallowed, damaged, or trimmed.
    pub(crate) lost: bool,
}

/// A packet that is neither lost nor delivered until somebody says so; it goes to `port` of `node`.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) node: usize,
    pub(crate) port: u8,
    pub(crate) bytes: Vec<u8>,
}

/// Most packets that one burst takes.
const BURST: usize = 32;

/// A port's transmit queue.
#[derive(Clone, Copy, Debug)]
struct TxPort {
    up: bool,
    busy_until: Time,
}

/// One endpoint and its ports.
pub(crate) struct Node {
    pub(crate) endpoint: Endpoint,
    /// What it told its driver and nobody has taken yet.
    pub(crate) events: Vec<Event>,
    /// Frames reach it as datagrams of kernel sockets, without their headers.
    pub(crate) sockets: bool,
    /// Timers run late by up to this.
    pub(crate) lateness_ns: u64,
    /// Time that 1024 bytes take on a port, ns.
    pub(crate) ns_per_kib: u64,
    /// A port takes packets until this much is queued.
    pub(crate) queue_ns: u64,
    /// Packets that a port takes and then gives back, as its queue is full after all; in ten-thousandths. It is
    /// full for `full_ns` then.
    pub(crate) given_back: u32,
    pub(crate) full_ns: u64,
    ports: Vec<TxPort>,
    wake_at: Time,
}

enum Happening {
    Frame { node: usize, port: u8, bytes: Vec<u8> },
    Link { node: usize, port: u8, up: bool },
    Wake { node: usize, at: Time },
}

/// Everything. See the [module documentation](self).
pub(crate) struct Net {
    pub(crate) now: Time,
    pub(crate) nodes: Vec<Node>,
    /// Links by plane; the same in both directions.
    pub(crate) links: Vec<Link>,
    pub(crate) outages: Vec<Outage>,
    /// Faults end here.
    pub(crate) heal_at: Time,
    pub(crate) trace: Trace,
    pub(crate) tap: Option<Box<dyn Tap>>,
    /// Where packets wait for whoever drives the network by hand; links deliver them when `None`.
    pub(crate) held: Option<Vec<Held>>,
    /// Frames to addresses that no node has.
    pub(crate) astray: Vec<(Time, Vec<u8>)>,
    /// Data packets by node and port.
    pub(crate) data_by_port: BTreeMap<(usize, u8), usize>,
    /// Data packets that an endpoint sent on a port that it knew to be down.
    pub(crate) sent_on_down_port: u64,
    /// Packets that ports gave back.
    pub(crate) given_back: u64,
    pub(crate) steps: u64,
    pub(crate) max_steps: u64,
    pub(crate) max_time: Time,
    addresses: BTreeMap<IpAddr, (usize, u8)>,
    queue: BinaryHeap<Reverse<(Time, u64)>>,
    happenings: BTreeMap<u64, Happening>,
    next_id: u64,
    rng: Rng,
    /// The burst that an endpoint fills.
    frames: Vec<Transmit>,
}

/// Address of a node's port.
pub(crate) fn address(v6: bool, node: usize, port: u8) -> IpAddr {
    if v6 {
        IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, node as u16 + 1, 0, 0, 0, u16::from(port) + 1))
    } else {
        IpAddr::V4(Ipv4Addr::new(10, node as u8 + 1, 0, port + 1))
    }
}

/// The ports of a node.
pub(crate) fn ports(v6: bool, node: usize, planes: u8, max_frame: usize) -> Vec<LocalPort> {
    (0..planes)
        .map(|port| LocalPort {
            ip: address(v6, node, port),
            mac: MacAddr([2, 0, 0, 0, node as u8, port]),
            max_frame,
            source_ports: None,
            same_path_batch: 1,
        })
        .collect()
}

impl Drop for Net {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the last packets before {}:\n{}", self.now, self.trace.text());
            for (number, node) in self.nodes.iter().enumerate() {
                let counted: Vec<_> = node
                    .endpoint
                    .counters()
                    .iter()
                    .filter(|row| row.2 > 0)
                    .map(|row| (row.0, row.2))
                    .collect();
                eprintln!("node {number} counted {counted:?}");
                for qpn in node.endpoint.qpns().take(8) {
                    eprintln!("  queue pair {:#08x}: {:?}", qpn.get(), node.endpoint.qp_status(qpn));
                }
            }
        }
    }
}

impl Net {
    pub(crate) fn new(seed: u64, links: Vec<Link>) -> Self {
        Self {
            now: Time(1_000),
            nodes: Vec::new(),
            links,
            outages: Vec::new(),
            heal_at: Time::ZERO,
            trace: Trace::new(200),
            tap: None,
            held: None,
            astray: Vec::new(),
            data_by_port: BTreeMap::new(),
            sent_on_down_port: 0,
            given_back: 0,
            steps: 0,
            max_steps: 2_000_000,
            max_time: Time(3_600_000_000_000),
            addresses: BTreeMap::new(),
            queue: BinaryHeap::new(),
            happenings: BTreeMap::new(),
            next_id: 0,
            rng: Rng::new(seed ^ 0x006e_6574),
            frames: vec![Transmit::default(); BURST],
        }
    }

    /// Adds an endpoint; its ports' addresses are its own.
    pub(crate) fn add(&mut self, cfg: EndpointConfig) -> usize {
        let node = self.nodes.len();
        for (port, local) in (0..).zip(&cfg.ports) {
            self.addresses.insert(local.ip, (node, port));
        }
        let ports = vec![TxPort { up: true, busy_until: Time::ZERO }; cfg.ports.len()];
        self.nodes.push(Node {
            endpoint: Endpoint::new(cfg).expect("settings"),
            events: Vec::new(),
            sockets: false,
            lateness_ns: 0,
            ns_per_kib: 0,
            queue_ns: 0,
            given_back: 0,
            full_ns: 0,
            ports,
            wake_at: Time::NEVER,
        });
        node
    }

    pub(crate) fn endpoint(&mut self, node: usize) -> &mut Endpoint {
        &mut self.nodes[node].endpoint
    }

    pub(crate) fn take_events(&mut self, node: usize) -> Vec<Event> {
        core::mem::take(&mut self.nodes[node].events)
    }

    fn schedule(&mut self, at: Time, what: Happening) {
        self.queue.push(Reverse((at, self.next_id)));
        self.happenings.insert(self.next_id, what);
        self.next_id += 1;
    }

    /// A port's link changes at `at`, and the endpoint is told.
    pub(crate) fn schedule_link(&mut self, at: Time, node: usize, port: u8, up: bool) {
        self.schedule(at, Happening::Link { node, port, up });
    }

    /// A frame that no endpoint sent arrives now.
    pub(crate) fn inject(&mut self, node: usize, port: u8, bytes: &[u8]) {
        self.deliver(node, port, bytes);
        self.pump(node);
    }

    /// A port's link is up.
    pub(crate) fn is_up(&self, node: usize, port: u8) -> bool {
        self.nodes[node].ports[usize::from(port)].up
    }

    /// When the next thing happens; [`Time::NEVER`] when all is quiet.
    pub(crate) fn next_at(&self) -> Time {
        let timers = (0..self.nodes.len()).map(|node| self.timer_at(node)).min().unwrap_or(Time::NEVER);
        self.queue.peek().map_or(Time::NEVER, |Reverse((at, _))| *at).min(timers)
    }

    fn timer_at(&self, node: usize) -> Time {
        let node = &self.nodes[node];
        let due = node.endpoint.next_timeout();
        if due == Time::NEVER || node.lateness_ns == 0 {
            return due;
        }
        due.after(mix(due.0) % node.lateness_ns)
    }

    /// Lets the next thing happen; `false` when nothing will, or a cap was reached.
    pub(crate) fn step(&mut self) -> bool {
        let at = self.next_at();
        if at == Time::NEVER || at > self.max_time || self.steps >= self.max_steps {
            return false;
        }
        self.steps += 1;
        self.now = self.now.max(at);
        if self.queue.peek().is_some_and(|Reverse((due, _))| *due <= self.now) {
            let Some(Reverse((_, id))) = self.queue.pop() else { return false };
            if let Some(what) = self.happenings.remove(&id) {
                self.happen(what);
            }
            return true;
        }
        for node in 0..self.nodes.len() {
            if self.timer_at(node) <= self.now {
                self.nodes[node].endpoint.on_timeout(self.now);
                self.pump(node);
            }
        }
        true
    }

    /// Steps until `done` says so; `false` when the network fell quiet or a cap was reached before.
    pub(crate) fn run_until(&mut self, mut done: impl FnMut(&mut Self) -> bool) -> bool {
        loop {
            if done(self) {
                return true;
            }
            if !self.step() {
                return false;
            }
        }
    }

    /// Lets `ns` pass.
    pub(crate) fn run_for(&mut self, ns: u64) {
        let end = self.now.after(ns);
        while self.next_at() <= end && self.step() {}
        self.now = self.now.max(end);
    }

    /// Why a run ended before it was done.
    pub(crate) fn why_stopped(&self) -> String {
        if self.steps >= self.max_steps {
            format!("{} steps were not enough", self.steps)
        } else if self.next_at() == Time::NEVER {
            "nothing is left to happen".to_owned()
        } else {
            format!("virtual time ran out at {}", self.now)
        }
    }

    fn happen(&mut self, what: Happening) {
        match what {
            Happening::Frame { node, port, bytes } => {
                if self.is_up(node, port) {
                    self.inject(node, port, &bytes);
                }
            }
            Happening::Link { node, port, up } => {
                let now = self.now;
                self.nodes[node].ports[usize::from(port)].up = up;
                self.nodes[node].endpoint.port_link(now, port, up);
                self.pump(node);
            }
            // An earlier one has taken the place of any other: each would schedule the next, and they would multiply.
            Happening::Wake { node, at } if self.nodes[node].wake_at == at => {
                self.nodes[node].wake_at = Time::NEVER;
                self.pump(node);
            }
            Happening::Wake { .. } => {}
        }
    }

    fn deliver(&mut self, node: usize, port: u8, bytes: &[u8]) {
        // A flipped bit that the iCRC does not cover leaves a packet whole.
        if let Some(tap) = self.tap.as_mut()
            && frame::is_whole(bytes)
            && let Some((_, packet)) = frame::decode(bytes)
        {
            tap.arrived(self.now, node, &packet);
        }
        let (now, target) = (self.now, &mut self.nodes[node]);
        if !target.sockets {
            frame::in_parts(bytes, 110 + frame::outer_len(bytes), RxOrigin::Ethernet, |frame| {
                target.endpoint.receive(now, port, frame);
            });
        } else if let Ok(parsed) = stack::parse(bytes)
            && !parsed.truncated
        {
            // A socket hands over what the kernel took for a whole datagram.
            let meta: DatagramMeta = parsed.meta;
            frame::in_parts(parsed.mrc, 48, RxOrigin::Udp(meta), |frame| {
                target.endpoint.receive(now, port, frame);
            });
        }
    }

    /// Takes from an endpoint what it wants to send and to say.
    pub(crate) fn pump(&mut self, node: usize) {
        while self.burst(node) {}
        while let Some(event) = self.nodes[node].endpoint.poll_event() {
            assert!(!matches!(event, Event::SendRetired { count: 0, .. }), "an event that says nothing");
            self.nodes[node].events.push(event);
        }
        self.wake_when_free(node);
    }

    /// Takes up to a burst of packets, and gives back at its end what found a queue full, as a driver does.
    fn burst(&mut self, node: usize) -> bool {
        let filled = self.fill(node);
        let frames = core::mem::take(&mut self.frames);
        let mut given_back = Vec::new();
        let mut full = PlaneSet(0);
        for (at, out) in frames.iter().enumerate().take(filled) {
            let faulty = self.now < self.heal_at && self.nodes[node].given_back > 0;
            // Behind a frame that finds the queue full, so do the others.
            if full.contains(out.port) || faulty && self.rng.chance(self.nodes[node].given_back) {
                full.0 |= 1 << out.port;
                let until = self.now.after(self.nodes[node].full_ns);
                let port = &mut self.nodes[node].ports[usize::from(out.port)];
                port.busy_until = port.busy_until.max(until);
                self.tell_given_back(node, out);
                given_back.push(at);
                continue;
            }
            let bytes = frame::join(&self.nodes[node].endpoint, out);
            self.occupy(node, out.port, bytes.len());
            self.send(node, out.port, bytes);
        }
        for at in given_back {
            self.given_back += 1;
            self.nodes[node].endpoint.unsent(&frames[at]);
        }
        self.frames = frames;
        filled > 0
    }

    /// Asks for packets while any port has room.
    fn fill(&mut self, node: usize) -> usize {
        let mut room = self.room(node);
        let endpoint = &mut self.nodes[node].endpoint;
        endpoint.begin_burst(BURST);
        for (filled, out) in self.frames.iter_mut().enumerate() {
            let free = (0..).zip(&room).filter(|(_, left)| **left > 0);
            let free = PlaneSet(free.fold(0, |mask, (port, _)| mask | 1 << port));
            if !endpoint.transmit(self.now, free, out) {
                return filled;
            }
            assert!(free.contains(out.port), "plane {} has no room", out.port);
            room[usize::from(out.port)] -= 1;
        }
        BURST
    }

    fn tell_given_back(&mut self, node: usize, out: &Transmit) {
        let bytes = frame::join(&self.nodes[node].endpoint, out);
        if let Some(tap) = self.tap.as_mut()
            && let Some((_, packet)) = frame::decode(&bytes)
        {
            tap.given_back(self.now, node, &packet);
        }
    }

    /// How many of the longest frames find room in each port's queue.
    fn room(&self, node: usize) -> Vec<usize> {
        let node = &self.nodes[node];
        let frame_ns = 5 * node.ns_per_kib;
        let more = |left_ns: u64| left_ns.checked_div(frame_ns).map_or(BURST, |more| more as usize);
        let left_ns = |port: &TxPort| node.queue_ns.checked_sub(port.busy_until.since(self.now));
        node.ports.iter().map(|port| left_ns(port).map_or(0, |left_ns| 1 + more(left_ns))).collect()
    }

    fn occupy(&mut self, node: usize, port: u8, bytes: usize) {
        let (now, node) = (self.now, &mut self.nodes[node]);
        let port = &mut node.ports[usize::from(port)];
        port.busy_until = port.busy_until.max(now).after(bytes as u64 * node.ns_per_kib / 1024);
    }

    fn wake_when_free(&mut self, node: usize) {
        let now = self.now;
        let state = &mut self.nodes[node];
        let full = state.ports.iter().filter(|port| port.busy_until.since(now) > state.queue_ns);
        let Some(at) = full.map(|port| Time(port.busy_until.0 - state.queue_ns)).min() else { return };
        if at < state.wake_at {
            state.wake_at = at;
            self.schedule(at, Happening::Wake { node, at });
        }
    }

    fn send(&mut self, node: usize, port: u8, bytes: Vec<u8>) {
        let (now, from) = (self.now, (node, port));
        let Some((meta, packet)) = frame::decode(&bytes) else {
            panic!("node {node} sent what does not decode: {bytes:02x?}");
        };
        if let Some(tap) = self.tap.as_mut() {
            tap.sent(now, node, &packet);
        }
        if matches!(packet, Packet::Data { .. }) {
            *self.data_by_port.entry(from).or_default() += 1;
        }
        let Some(&(to, to_port)) = self.addresses.get(&meta.dst) else {
            self.trace.note(now, from, Fate::Nobody, "", &bytes);
            self.astray.push((now, bytes));
            return;
        };
        let path = u64::from(meta.src_port) << 32 | u64::from(meta.flow_label) << 8 | u64::from(port);
        if !self.is_up(node, port) {
            self.sent_on_down_port += u64::from(matches!(packet, Packet::Data { .. }));
            self.trace.note(now, from, Fate::PortDown, "", &bytes);
            self.tell_way(from, path, true);
            return;
        }
        if self.outages.iter().any(|outage| outage.swallows(now, port, node, path)) {
            self.trace.note(now, from, Fate::Swallowed, "", &bytes);
            self.tell_way(from, path, true);
            return;
        }
        if let Some(held) = &mut self.held {
            self.trace.note(now, from, Fate::Held, "", &bytes);
            held.push(Held { node: to, port: to_port, bytes });
            return;
        }
        let link = self.links[usize::from(port)];
        let faulty = now < self.heal_at;
        if faulty && self.rng.chance(link.loss) {
            self.trace.note(now, from, Fate::Lost, "", &bytes);
            self.tell_way(from, path, true);
            return;
        }
        let leaves = self.nodes[node].ports[usize::from(port)].busy_until.max(now);
        if faulty && self.rng.chance(link.duplicate) {
            let at = leaves
                .after(link.latency(path, faulty, &mut self.rng))
                .after(self.rng.below(link.stray_ns + 1));
            self.trace.note(now, from, Fate::Arrives(at), " twin", &bytes);
            self.schedule(at, Happening::Frame { node: to, port: to_port, bytes: bytes.clone() });
        }
        let at = leaves.after(link.latency(path, faulty, &mut self.rng));
        let (bytes, note) = if faulty { self.maul(&link, &from, bytes) } else { (bytes, "") };
        self.trace.note(now, from, Fate::Arrives(at), note, &bytes);
        self.tell_way(from, path, matches!(note, " corrupt" | " trimmed"));
        self.schedule(at, Happening::Frame { node: to, port: to_port, bytes });
    }

    fn tell_way(&mut self, (node, port): (usize, u8), path: u64, lost: bool) {
        if let Some(tap) = self.tap.as_mut() {
            tap.on_its_way(self.now, &Hop { node, port, path, lost });
        }
    }

    /// What switches and bad cables do to a packet.
    fn maul(&mut self, link: &Link, from: &(usize, u8), mut bytes: Vec<u8>) -> (Vec<u8>, &'static str) {
        if self.rng.chance(link.corrupt) {
            // Fewer flips than the CRC is sure to find.
            for _ in 0..self.rng.range(1, 3) {
                let bit = self.rng.below(bytes.len() as u64 * 8);
                bytes[bit as usize / 8] ^= 1 << (bit % 8);
            }
            return (bytes, " corrupt");
        }
        let map: DscpMap = self.nodes[from.0].endpoint.config().dscp;
        let class = frame::traffic_class(&bytes) >> 2;
        if (class == map.trimmable || class == map.trimmable_retx) && self.rng.chance(link.trim) {
            let dscp = if self.rng.one_in(3) { map.trimmed_last_hop } else { map.trimmed };
            frame::trim(&mut bytes, dscp);
            return (bytes, " trimmed");
        }
        if self.rng.chance(link.ecn) && frame::mark_congested(&mut bytes) {
            return (bytes, " marked");
        }
        (bytes, "")
    }
}
