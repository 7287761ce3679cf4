//! A host whose agent probes the fabric beside its transport.

use core::fmt;
use std::collections::VecDeque;
use std::net::Ipv6Addr;

use spindrift::time::Time;
use spindrift_agent::frame::{self, Template};
use spindrift_agent::{Agent, AgentError, AgentSettings, probe_address};
use spindrift_fabric::{
    Class, ConnectError, EvStateCounts, FlowEvent, Free, Message, Messenger, Packet, Transport,
    TransportStats,
};
use spindrift_srv6::{Fabric, Forwarder, Node, Verdict};

/// Bytes of an Ethernet header.
const ETHERNET_LEN: usize = 14;
/// Headers of a probe, from Ethernet on.
const HEAD_LEN: usize = ETHERNET_LEN + frame::LEN - spindrift_agent::PAYLOAD_LEN;
/// Where the destination of the inner IPv6 header is.
const INNER_TO: usize = ETHERNET_LEN + 40 + 24;
/// Probes that wait for a port. A port without carrier takes none from the kernel either.
const WAITING: usize = 1_024;

/// A host that has nothing to send but probes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Idle;

/// A host with an agent beside its transport: probes leave by the same ports, and what comes in goes to whom it is for.
///
/// A probe is a packet of the bytes that a real agent sends ([`Template`]), with an Ethernet header. It is data of traffic class 0, so queues
/// mark and drop it like any other. What comes back is taken through the host's own tables, which take the outer header off.
pub struct ProbingHost<T> {
    transport: T,
    probing: Option<Probing>,
}

struct Probing {
    agent: Agent,
    /// By path.
    templates: Vec<Template>,
    /// By plane.
    ports: Vec<Port>,
    tables: Forwarder<Node>,
}

struct Port {
    inner: Ipv6Addr,
    ethernet: [u8; ETHERNET_LEN],
    waiting: VecDeque<[u8; frame::LEN]>,
}

impl<T> fmt::Debug for ProbingHost<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProbingHost").field("agent", &self.agent().is_some()).finish_non_exhaustive()
    }
}

impl<T> ProbingHost<T> {
    /// The host with this transport and no agent yet.
    pub const fn new(transport: T) -> Self {
        Self { transport, probing: None }
    }

    /// Starts an agent on the host, in place of one that runs. `live` are the hosts whose agents share the links; `None` for all.
    ///
    /// # Errors
    /// If the host or a setting is wrong, by name.
    pub fn start_agent(
        &mut self,
        (fabric, host): (&Fabric, u16),
        live: Option<&[u16]>,
        settings: AgentSettings,
        (seed, now): (u64, Time),
    ) -> Result<(), AgentError> {
        let agent = Agent::new(fabric, host, live, settings, (bytes(seed, host), now.0))?;
        let mut tables = fabric.forwarder(Node::Host(host));
        let mut ports = Vec::new();
        for plane in 0..fabric.shape().planes {
            let Some(inner) = probe_address(fabric, host, plane) else { continue };
            tables.add_own(inner);
            let [high, low] = host.to_be_bytes();
            let mut ethernet = [0; ETHERNET_LEN];
            ethernet[6..].copy_from_slice(&[2, 0, 0, plane, high, low, 0x86, 0xdd]);
            ports.push(Port { inner, ethernet, waiting: VecDeque::new() });
        }
        let mut probing = Probing { agent, templates: Vec::new(), ports, tables };
        probing.make_templates(fabric);
        self.probing = Some(probing);
        Ok(())
    }

    /// Has the agent share the links with those of the `live` hosts from now on; `None` for those of all hosts.
    ///
    /// # Errors
    /// See [`Agent::replan`].
    pub fn replan(&mut self, fabric: &Fabric, live: Option<&[u16]>, now: Time) -> Result<(), AgentError> {
        if let Some(probing) = &mut self.probing
            && probing.agent.replan(fabric, live, now.0)?
        {
            probing.make_templates(fabric);
        }
        Ok(())
    }

    /// Stops the agent: its probes in flight come back to nobody.
    pub fn stop_agent(&mut self) {
        self.probing = None;
    }

    /// The agent.
    pub fn agent(&self) -> Option<&Agent> {
        self.probing.as_ref().map(|probing| &probing.agent)
    }

    /// The transport.
    pub const fn transport(&self) -> &T {
        &self.transport
    }
}

/// A seed for the agent of a host. A simulation is no place for secrets.
fn bytes(seed: u64, host: u16) -> [u8; 32] {
    let mut bytes = [0x5d; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    bytes[8..10].copy_from_slice(&host.to_le_bytes());
    bytes
}

impl Probing {
    fn make_templates(&mut self, fabric: &Fabric) {
        let (host, ports) = (self.agent.plan().host(), &self.ports);
        let template = |route: &spindrift_agent::Route| {
            let port = ports.get(usize::from(route.plane))?;
            Some(Template::new(route, fabric.address(host, route.plane)?, port.inner))
        };
        self.templates = self.agent.plan().routes().filter_map(template).collect();
    }

    /// Lets the agent do what is due, and takes its probes.
    fn on_time(&mut self, now: Time) {
        while self.agent.on_timeout(now.0) {}
        while let Some(probe) = self.agent.poll(now.0) {
            let plane = self.agent.plan().route(probe.path).map(|route| usize::from(route.plane));
            let port = plane.and_then(|plane| self.ports.get_mut(plane));
            let Some((port, template)) = port.zip(self.templates.get(probe.path)) else { continue };
            if port.waiting.len() < WAITING {
                port.waiting.push_back(template.packet(probe.payload));
            }
        }
    }

    /// Makes `out` the next probe that waits for a plane that is free.
    fn transmit(&mut self, free: u32, out: &mut Packet) -> bool {
        let mut ports = (0_u8..).zip(&mut self.ports).filter(|(plane, _)| free >> plane & 1 == 1);
        let next = ports.find_map(|(plane, port)| Some((plane, port.ethernet, port.waiting.pop_front()?)));
        let Some((plane, ethernet, packet)) = next else { return false };
        let (headers, payload) = packet.split_at(HEAD_LEN - ETHERNET_LEN);
        let mut head = [0; HEAD_LEN];
        head[..ETHERNET_LEN].copy_from_slice(&ethernet);
        head[ETHERNET_LEN..].copy_from_slice(headers);
        out.set_real(&head, |body| body.extend_from_slice(payload));
        out.plane = plane;
        true
    }

    /// Takes a packet that is for the agent; `false` if it is not.
    fn receive(&mut self, now: Time, plane: u8, packet: &Packet) -> bool {
        let (head, body) = (packet.head(), packet.body().unwrap_or_default());
        let Some(port) = self.ports.get(usize::from(plane)) else { return false };
        if head.len() != HEAD_LEN || head.get(INNER_TO..INNER_TO + 16) != Some(&port.inner.octets()[..]) {
            return false;
        }
        let mut whole = [0; frame::LEN];
        let (headers, payload) = whole.split_at_mut(HEAD_LEN - ETHERNET_LEN);
        headers.copy_from_slice(&head[ETHERNET_LEN..]);
        if body.len() != payload.len() {
            return false;
        }
        payload.copy_from_slice(body);
        let ends_here = matches!(self.tables.forward(&mut whole), Ok(Verdict::Inner(_)));
        let payload = frame::payload(&whole, port.inner).filter(|_| ends_here).unwrap_or_default();
        let _ = self.agent.on_return(now.0, plane, payload);
        true
    }
}

impl<T: Transport> Transport for ProbingHost<T> {
    type Event = T::Event;

    fn receive(&mut self, now: Time, plane: u8, packet: &Packet) {
        if !self.probing.as_mut().is_some_and(|probing| probing.receive(now, plane, packet)) {
            self.transport.receive(now, plane, packet);
        }
    }

    fn transmit(&mut self, now: Time, free: Free, out: &mut Packet) -> bool {
        let for_probes = free.of(Class::Data);
        self.probing.as_mut().is_some_and(|probing| probing.transmit(for_probes, out))
            || self.transport.transmit(now, free, out)
    }

    fn next_timeout(&self) -> Time {
        let agent = self.agent().map_or(u64::MAX, Agent::next_timeout);
        self.transport.next_timeout().min(Time(agent))
    }

    fn on_timeout(&mut self, now: Time) {
        if let Some(probing) = &mut self.probing {
            probing.on_time(now);
        }
        if self.transport.next_timeout() <= now {
            self.transport.on_timeout(now);
        }
    }

    fn on_pause(&mut self, from: Time, until: Time) {
        self.transport.on_pause(from, until);
    }

    fn carrier(&mut self, now: Time, plane: u8, up: bool) {
        self.transport.carrier(now, plane, up);
    }

    fn poll(&mut self) -> Option<T::Event> {
        self.transport.poll()
    }
}

impl<T: Messenger> Messenger for ProbingHost<T> {
    fn connect(now: Time, one: &mut Self, other: &mut Self) -> Result<[u32; 2], ConnectError> {
        T::connect(now, &mut one.transport, &mut other.transport)
    }

    fn post(&mut self, now: Time, flow: u32, message: Message) -> bool {
        self.transport.post(now, flow, message)
    }

    fn stats(&self) -> TransportStats {
        self.transport.stats()
    }

    fn evs(&self, flow: u32) -> Vec<EvStateCounts> {
        self.transport.evs(flow)
    }
}

impl Transport for Idle {
    type Event = FlowEvent;

    fn receive(&mut self, _now: Time, _plane: u8, _packet: &Packet) {}

    fn transmit(&mut self, _now: Time, _free: Free, _out: &mut Packet) -> bool {
        false
    }

    fn next_timeout(&self) -> Time {
        Time::NEVER
    }

    fn on_timeout(&mut self, _now: Time) {}

    fn on_pause(&mut self, _from: Time, _until: Time) {}

    fn carrier(&mut self, _now: Time, _plane: u8, _up: bool) {}

    fn poll(&mut self) -> Option<FlowEvent> {
        None
    }
}

impl Messenger for Idle {
    fn connect(_now: Time, _one: &mut Self, _other: &mut Self) -> Result<[u32; 2], ConnectError> {
        Err(ConnectError("the hosts have no transport".into()))
    }

    fn post(&mut self, _now: Time, _flow: u32, _message: Message) -> bool {
        false
    }

    fn stats(&self) -> TransportStats {
        TransportStats::default()
    }
}
