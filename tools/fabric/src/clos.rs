//! A multi-plane fabric of up to three tiers, by formula.

use std::collections::BTreeMap;

use spindrift::wire::DscpMap;
use spindrift_srv6::{Behavior, Fabric, FabricError, FabricHost, Forwarder, Node, Shape, TableError};

use crate::link::{LinkId, LinkSpec};
use crate::net::{HostId, Net, SwitchId};
use crate::pfc::PfcSpec;
use crate::queue::{EcnSpec, QueueSpec, TrimSpec, WHOLE_PPM};
use crate::transport::Transport;

/// A fabric: each host has a port in each plane, at the T0 switch of the same number; each T0 switch is joined to all T1 switches
/// of its plane (MRC paper, section 2), or of its pod of it where T2 switches join several pods. Two T0 switches may be joined to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClosSpec {
    /// Planes.
    pub planes: u8,
    /// T0 switches in each plane.
    pub t0: u16,
    /// T1 switches of each pod of a plane; 0 where there is one T0 switch, or for two that are joined to each other.
    pub t1: u16,
    /// Pods in each plane, with an equal number of T0 switches each.
    pub pods: u16,
    /// T2 switches that each T1 switch is joined to; 0 where there is one pod.
    pub t2: u16,
    /// Hosts at each T0 switch.
    pub hosts_per_t0: u16,
    /// Rate of a host's port in one plane, bits per second.
    pub host_rate_bps: u64,
    /// Rate of a link between switches.
    pub trunk_rate_bps: u64,
    /// From a host to its T0 switch or back: the cable, and what deals with the packet at its end, ns.
    pub host_delay_ns: u64,
    /// The same between switches.
    pub trunk_delay_ns: u64,
    /// The queues.
    pub queues: QueueRules,
}

/// What all queues of a fabric do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueRules {
    /// Data that may wait at a port between switches, as the time that the port takes to send it, ns. More is trimmed.
    pub limit_ns: u64,
    /// The same at a port to a host.
    pub last_hop_limit_ns: u64,
    /// Control packets and trimmed ones that may wait, likewise.
    pub control_limit_ns: u64,
    /// From which delay on packets are marked, and from which all are, ns; `None` to mark none.
    pub ecn_ns: Option<(u64, u64)>,
    /// The share of packets that are marked just below the delay from which all are, in millionths: Pmax.
    pub ecn_most_ppm: u32,
    /// Whether ports to hosts mark. The paper has it off: there, only incast can fill a queue (MRC paper, section 2.1).
    pub ecn_on_last_hop: bool,
    /// What is left of a packet that finds no room, in bytes beside an outer IPv6 header; `None` to drop packets.
    pub trim_bytes: Option<u32>,
    /// The classes.
    pub dscp: DscpMap,
    /// Priority flow control, with a buffer that the ports of a switch share. It takes the place of the limits on data above, and of
    /// trimming.
    pub pfc: Option<PfcSpec>,
}

/// The nodes and links of a fabric in a network.
#[derive(Clone, Debug)]
pub struct Clos {
    fabric: Fabric,
    spec: ClosSpec,
    switches: BTreeMap<Node, SwitchId>,
    links: BTreeMap<(Node, Node), LinkId>,
}

/// Why a fabric cannot be built.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ClosError<E> {
    /// Its shape.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The tables of a switch.
    #[error(transparent)]
    Table(#[from] TableError),
    /// A host.
    #[error("host {0}: {1}")]
    Host(u16, E),
}

impl QueueRules {
    /// What UET 1.0 recommends for switches between hosts that are `base_rtt_ns` apart, there and back: room for the data of one round trip, on the last hop of
    /// one and a half, and marks between a fifth and four fifths of one, on the last hop none (MRC paper, section 2.1). Trimming to
    /// 128 bytes.
    pub fn for_rtt(base_rtt_ns: u64) -> Self {
        Self {
            limit_ns: base_rtt_ns,
            last_hop_limit_ns: base_rtt_ns * 3 / 2,
            control_limit_ns: 2 * base_rtt_ns,
            ecn_ns: Some((base_rtt_ns / 5, base_rtt_ns * 4 / 5)),
            ecn_on_last_hop: false,
            trim_bytes: Some(128),
            dscp: DscpMap::default(),
            ecn_most_ppm: WHOLE_PPM,
            pfc: None,
        }
    }
}

impl ClosSpec {
    /// Hosts of the fabric.
    pub const fn hosts(&self) -> u32 {
        self.t0 as u32 * self.hosts_per_t0 as u32
    }

    /// Rate of all ports of a host together, bits per second.
    pub const fn nic_rate_bps(&self) -> u64 {
        self.host_rate_bps * self.planes as u64
    }

    /// The round-trip time of the longest path when the network is idle: a packet of `frame_bytes` one way, and one of `answer_bytes`
    /// back, ns. Bytes are those on the wire; switches store packets and then forward them.
    pub const fn base_rtt_ns(&self, frame_bytes: u64, answer_bytes: u64) -> u64 {
        let bits = (frame_bytes + answer_bytes) * 8 * 1_000_000_000;
        let trunks = match (self.t0, self.t1, self.pods) {
            (..2, _, _) => 0,
            (_, 0, _) => 1,
            (_, _, 1) => 2,
            _ => 4,
        };
        2 * (2 * self.host_delay_ns + bits / self.host_rate_bps)
            + trunks * (2 * self.trunk_delay_ns + bits / self.trunk_rate_bps)
    }

    /// Names, addresses and paths of a fabric of this shape.
    ///
    /// # Errors
    /// A shape that cannot be.
    pub fn fabric(&self) -> Result<Fabric, FabricError> {
        let Self { planes, t0, t1, pods, t2, .. } = *self;
        let shape = Shape { planes, t0, t1, pods, t2, ..Shape::default() };
        let places = (0..self.t0).flat_map(|t0| (0..self.hosts_per_t0).map(move |downlink| (t0, downlink)));
        let named = (1..).zip(places);
        let hosts =
            named.map(|(number, (t0, downlink))| FabricHost { name: format!("h{number}"), t0, downlink });
        Fabric::new(shape, hosts.collect())
    }

    fn link(&self, from: Node, to: Node) -> LinkSpec {
        let to_host = matches!(to, Node::Host(_));
        let trunk = !to_host && !matches!(from, Node::Host(_));
        let (rate_bps, delay_ns) = if trunk {
            (self.trunk_rate_bps, self.trunk_delay_ns)
        } else {
            (self.host_rate_bps, self.host_delay_ns)
        };
        let rules = &self.queues;
        let bytes = |ns: u64| (u128::from(ns) * u128::from(rate_bps) / 8_000_000_000) as u64;
        let marks = if to_host { rules.ecn_on_last_hop } else { true };
        let ecn = rules.ecn_ns.filter(|_| marks);
        let dscp = if to_host { rules.dscp.trimmed_last_hop } else { rules.dscp.trimmed };
        let limit = bytes(if to_host { rules.last_hop_limit_ns } else { rules.limit_ns });
        let queue = QueueSpec {
            limit_bytes: if rules.pfc.is_some() { u64::MAX } else { limit },
            control_limit_bytes: bytes(rules.control_limit_ns),
            ecn: ecn.map(|(low, high)| EcnSpec {
                low_bytes: bytes(low),
                high_bytes: bytes(high),
                most_ppm: rules.ecn_most_ppm,
            }),
            trim: rules
                .trim_bytes
                .filter(|_| rules.pfc.is_none())
                .map(|keep_bytes| TrimSpec { keep_bytes, dscp }),
            dscp: rules.dscp,
        };
        LinkSpec { rate_bps, delay_ns, queue }
    }

    /// The queue of a host's own port holds what the host gives it, and neither marks nor trims: the host knows it.
    fn uplink(&self, host: Node, t0: Node) -> LinkSpec {
        let link = self.link(host, t0);
        let queue = QueueSpec {
            limit_bytes: u64::MAX,
            control_limit_bytes: u64::MAX,
            ecn: None,
            trim: None,
            ..link.queue
        };
        LinkSpec { queue, ..link }
    }
}

impl Clos {
    /// Builds the fabric with the hosts that `host` makes, whose numbers are those of the fabric.
    ///
    /// # Errors
    /// A shape that cannot be, or what `host` fails with.
    pub fn build<T: Transport, E>(
        spec: ClosSpec,
        seed: u64,
        mut host: impl FnMut(&Fabric, u16) -> Result<T, E>,
    ) -> Result<(Self, Net<T>), ClosError<E>> {
        let fabric = spec.fabric()?;
        let mut net = Net::new(seed);
        for number in 0..fabric.hosts().len() as u16 {
            net.add_host(host(&fabric, number).map_err(|error| ClosError::Host(number, error))?);
        }
        let mut clos = Self { switches: BTreeMap::new(), links: BTreeMap::new(), fabric, spec };
        for node in clos.fabric.nodes().filter(|node| !matches!(node, Node::Host(_))) {
            clos.switches.insert(node, net.add_switch());
        }
        for (lower, upper) in clos.fabric.links() {
            for (from, to) in [(lower, upper), (upper, lower)] {
                let link = clos.cable(&mut net, from, to);
                clos.links.insert((from, to), link);
            }
            net.set_cable(clos.links[&(lower, upper)], clos.links[&(upper, lower)]);
        }
        net.set_pfc(spec.queues.pfc);
        for (at, (&node, &switch)) in (0..).zip(&clos.switches) {
            net.set_tables(switch, clos.tables(node, seed ^ at)?);
        }
        Ok((clos, net))
    }

    fn cable<T: Transport>(&self, net: &mut Net<T>, from: Node, to: Node) -> LinkId {
        match (from, to) {
            (Node::Host(host), to) => {
                net.add_uplink(HostId(host.into()), self.switches[&to], self.spec.uplink(from, to))
            }
            (Node::T0 { .. }, Node::Host(host)) => {
                net.add_downlink(HostId(host.into()), self.spec.link(from, to))
            }
            (from, to) => net.add_trunk(self.switches[&to], self.spec.link(from, to)),
        }
    }

    /// The tables of a switch, with links for next hops.
    fn tables(&self, node: Node, key: u64) -> Result<Forwarder<LinkId>, TableError> {
        let mut forwarder = Forwarder::new(key);
        let tables = self.fabric.tables(node);
        for (segment, behavior) in tables.segments {
            let behavior = match behavior {
                Behavior::Node => Behavior::Node,
                Behavior::Adjacency(next) => Behavior::Adjacency(self.links[&(node, next)]),
                Behavior::Decapsulate => Behavior::Decapsulate,
            };
            forwarder.add_segment(segment, behavior)?;
        }
        for (to, next_hops) in tables.routes {
            let links: Vec<_> = next_hops.into_iter().map(|next| self.links[&(node, next)]).collect();
            forwarder.add_route(to, links)?;
        }
        Ok(forwarder)
    }

    /// Names, addresses and paths.
    pub const fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// What it was made of.
    pub const fn spec(&self) -> &ClosSpec {
        &self.spec
    }

    /// The link from one node to another; `None` where there is none.
    pub fn link(&self, from: Node, to: Node) -> Option<LinkId> {
        self.links.get(&(from, to)).copied()
    }

    /// The number of a switch; `None` for a host.
    pub fn switch(&self, node: Node) -> Option<SwitchId> {
        self.switches.get(&node).copied()
    }

    /// The switches.
    pub fn switches(&self) -> impl Iterator<Item = SwitchId> + '_ {
        self.switches.values().copied()
    }

    /// The rate that a link was built with, bits per second; `None` where there is none.
    pub fn rate_bps(&self, from: Node, to: Node) -> Option<u64> {
        self.link(from, to).map(|_| self.spec.link(from, to).rate_bps)
    }

    /// Both directions of a cable come up or go down, and a host at its end learns of it if there is a `carrier` to tell it. `false` if
    /// there is no such cable.
    pub fn set_cable<T: Transport>(
        &self,
        net: &mut Net<T>,
        (a, b): (Node, Node),
        up: bool,
        carrier: bool,
    ) -> bool {
        let (Some(there), Some(back)) = (self.link(a, b), self.link(b, a)) else { return false };
        for link in [there, back] {
            net.set_link(link, up);
        }
        let ((Node::Host(host), Node::T0 { plane, .. }) | (Node::T0 { plane, .. }, Node::Host(host))) =
            (a, b)
        else {
            return true;
        };
        if carrier {
            net.set_carrier(HostId(host.into()), plane, up);
        }
        true
    }

    /// The nodes at the other ends of a node's cables.
    pub fn neighbours(&self, node: Node) -> impl Iterator<Item = Node> + '_ {
        // Nodes of the least kind come first, and the greatest one is a T2 switch.
        let all = (node, Node::Host(0))..=(node, Node::T2 { plane: u8::MAX, number: u16::MAX });
        self.links.range(all).map(|((_, other), _)| *other)
    }

    /// All links, with the nodes at their ends.
    pub fn links(&self) -> impl Iterator<Item = ((Node, Node), LinkId)> + '_ {
        self.links.iter().map(|(&ends, &link)| (ends, link))
    }
}
