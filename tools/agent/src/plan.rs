//! What an agent probes: paths from a host through the fabric and back to the same host.

use std::net::Ipv6Addr;

use spindrift_srv6::{F3216, Fabric, Link, Node};

use crate::share::{self, SharePolicy};

/// A probe's path: from a host up to the switch where it turns, and back to the host by the same links.
///
/// In a fabric of this shape the two ends say it all: each switch is reached from a host by one way up. A path is also the name of its
/// highest link, between the switch where it turns and the node below: an agent has one path for each link that it covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Path {
    /// Number of the host in the topology.
    pub host: u16,
    /// The switch where the probe turns. Of a dumbbell's link between its T0 switches, the one far from the host.
    pub top: Node,
}

/// The nodes of a path from the host up, at most four.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    nodes: [Node; 4],
    len: usize,
}

impl Way {
    pub(crate) fn nodes(&self) -> &[Node] {
        self.nodes.get(..self.len).unwrap_or_default()
    }
}

/// How the packets of a [`Path`] travel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The path.
    pub path: Path,
    /// The plane, and so the port that probes leave by and must come back to.
    pub plane: u8,
    /// The outer packet's destination, whose uSIDs lead through the fabric and back.
    pub carrier: F3216,
    /// The nodes in the order of travel, the host first and last.
    pub nodes: Vec<Node>,
}

/// The paths of an agent, and its addresses.
///
/// A probe is a UDP datagram in IPv6 in IPv6, like the packets of the transport (MRC paper, section 2.3).
///
/// | Header | Source | Destination |
/// |---|---|---|
/// | outer IPv6 | the [address](Fabric::address) of the host's port | the [carrier](Route::carrier) |
/// | inner IPv6 | [`probe_address`] of the port | the same |
/// | UDP | any port | any port; the payload is [`Payload`](crate::Payload) |
///
/// Switches look at the outer destination alone, so the inner one needs no route and no entry in any switch: the last uSID, the
/// host's own, makes the T0 switch pass the packet to the NIC and the host take the outer header off. The inner address belongs to the
/// agent: the host has it in addition to the transport's, and a NIC, a socket or a kernel-bypass port that selects packets
/// by destination address keeps probes and the transport apart. The outer source is the port's plain address so that errors of switches
/// (`ICMPv6`) find their way back, and filters against forged sources let probes pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    host: u16,
    lower: Vec<Route>,
    upper: Vec<Route>,
}

/// No plan can be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The topology has no host of this number.
    #[error(
        "there is no host {host}: the topology has {hosts}, counted from 0; the agent runs on one of them"
    )]
    NoHost {
        /// What was given.
        host: u16,
        /// Hosts of the topology.
        hosts: usize,
    },
    /// The other agents think that this one is not there.
    #[error("host {0} is not among the live agents; an agent counts itself in")]
    NotLive(u16),
}

/// Set in the sixth 16-bit group of the agent's addresses, which is 0 in all addresses of a [`Fabric`].
const AGENT_GROUP: u128 = 0x9b0b << 32;

/// The address of a host's port in a plane that its agent's probes come back to: that of the port with 0x9b0b in its sixth 16-bit group, so it
/// is an address of no host, and in the prefix of the T0 switch. `None` where there is no such host or plane.
pub fn probe_address(fabric: &Fabric, host: u16, plane: u8) -> Option<Ipv6Addr> {
    Some(Ipv6Addr::from_bits(fabric.address(host, plane)?.to_bits() | AGENT_GROUP))
}

impl Path {
    /// The plane of the path; `None` for one that turns at a host, which no path does.
    pub const fn plane(self) -> Option<u8> {
        self.top.plane()
    }

    /// The nodes from the host up to the switch where the probe turns; `None` where the host does not reach it upwards.
    pub fn way_up(self, fabric: &Fabric) -> Option<Vec<Node>> {
        Some(self.way(fabric)?.nodes().to_vec())
    }

    /// The same, without memory of its own.
    pub(crate) fn way(self, fabric: &Fabric) -> Option<Way> {
        let plane = self.plane()?;
        let number = fabric.hosts().get(usize::from(self.host))?.t0;
        let (host, t0) = (Node::Host(self.host), Node::T0 { plane, number });
        let shape = fabric.shape();
        let pod = fabric.pod_of(t0)?;
        let top = self.top;
        match top {
            _ if top == t0 => Some(Way { nodes: [host, t0, t0, t0], len: 2 }),
            Node::T0 { .. } => fabric
                .uplinks(t0)
                .any(|node| node == top)
                .then_some(Way { nodes: [host, t0, top, top], len: 3 }),
            Node::T1 { .. } => {
                (fabric.pod_of(top)? == pod).then_some(Way { nodes: [host, t0, top, top], len: 3 })
            }
            Node::T2 { number, .. } => {
                fabric.segment_of(top, plane)?;
                let number = pod.checked_mul(shape.t1)?.checked_add(number.checked_div(shape.t2)?)?;
                Some(Way { nodes: [host, t0, Node::T1 { plane, number }, top], len: 4 })
            }
            Node::Host(_) => None,
        }
    }

    /// The highest link of the path; `None` where there is no such path.
    pub fn link(self, fabric: &Fabric) -> Option<Link> {
        match *self.way(fabric)?.nodes() {
            [.., below, top] => Some((below.min(top), below.max(top))),
            _ => None,
        }
    }
}

impl Route {
    /// The route of a path: `None` where the fabric has no such path, or its uSIDs do not fit a carrier.
    ///
    /// | Turns at | uSIDs |
    /// |---|---|
    /// | T0 | T0, host |
    /// | T1 | T0, T1, T0, host |
    /// | T2 | T0, T1, T2, T0, host: a T2 switch knows one way down to a T0 switch |
    /// | the other T0 of a dumbbell | T0, other T0, T0, host |
    pub fn new(fabric: &Fabric, path: Path) -> Option<Self> {
        let way = path.way_up(fabric)?;
        let plane = path.plane()?;
        let t0 = *way.get(1)?;
        let back = [Some(t0).filter(|_| way.len() > 2), way.first().copied()];
        let mut carrier: Option<F3216> = None;
        for &node in way.get(1..)?.iter().chain(back.iter().flatten()) {
            let segment = fabric.segment_of(node, plane)?;
            carrier = Some(match carrier {
                None => segment,
                Some(so_far) => so_far.push(segment.active()?).ok()?,
            });
        }
        let nodes = way.iter().chain(way.iter().rev().skip(1)).copied().collect();
        Some(Self { path, plane, carrier: carrier?, nodes })
    }

    /// The links in the order of travel, each as the node that the packet leaves and the node where it arrives.
    pub fn hops(&self) -> impl Iterator<Item = (Node, Node)> + '_ {
        self.nodes.windows(2).filter_map(|pair| match *pair {
            [from, to] => Some((from, to)),
            _ => None,
        })
    }

    /// The links, from the host up. A probe crosses each in both directions, so it cannot tell which of them lost it.
    pub fn links(&self) -> impl Iterator<Item = Link> + '_ {
        let up = self.nodes.len() / 2;
        self.hops().take(up).map(|(from, to)| (from.min(to), from.max(to)))
    }
}

impl Plan {
    /// What the agent of `host` probes while the agents of the `live` hosts do their part; `None` for those of all hosts.
    ///
    /// It probes its T0 switch in each plane, and its [share](share) of the links above.
    pub fn new(
        fabric: &Fabric,
        host: u16,
        live: Option<&[u16]>,
        policy: SharePolicy,
    ) -> Result<Self, PlanError> {
        let hosts = fabric.hosts().len();
        let at = fabric.hosts().get(usize::from(host)).ok_or(PlanError::NoHost { host, hosts })?;
        if live.is_some_and(|live| !live.contains(&host)) {
            return Err(PlanError::NotLive(host));
        }
        let planes = 0..fabric.shape().planes;
        let own = planes.map(|plane| Node::T0 { plane, number: at.t0 });
        let route = |top| Route::new(fabric, Path { host, top });
        let lower = own.filter_map(route).collect();
        let upper = share::of_agent(fabric, host, live, policy).into_iter().filter_map(route).collect();
        Ok(Self { host, lower, upper })
    }

    /// Number of the agent's host.
    pub const fn host(&self) -> u16 {
        self.host
    }

    /// The paths that turn at the host's own T0 switches, one for each plane.
    pub fn lower(&self) -> &[Route] {
        &self.lower
    }

    /// The paths that turn above, plane by plane and tier by tier.
    pub fn upper(&self) -> &[Route] {
        &self.upper
    }

    /// All paths: those of [`lower`](Self::lower), then those of [`upper`](Self::upper). Their places here are the numbers of paths
    /// elsewhere.
    pub fn routes(&self) -> impl Iterator<Item = &Route> {
        self.lower.iter().chain(&self.upper)
    }

    /// The path of this number.
    pub fn route(&self, number: usize) -> Option<&Route> {
        self.lower.get(number).or_else(|| self.upper.get(number.checked_sub(self.lower.len())?))
    }

    /// The number of a path.
    pub fn number(&self, path: Path) -> Option<usize> {
        self.routes().position(|route| route.path == path)
    }

    /// The number of the path that is one link shorter: what it loses, the path of this number loses too. `None` for the shortest ones,
    /// and where the agent does not probe that path.
    pub fn below(&self, number: usize) -> Option<usize> {
        let route = self.route(number)?;
        let (host, below) = (route.path.host, *route.nodes.get((route.nodes.len() / 2).checked_sub(1)?)?);
        let lower = || self.lower.iter().position(|other| other.plane == route.plane);
        match below {
            Node::Host(_) => None,
            Node::T0 { .. } => lower(),
            top => self.number(Path { host, top }).or_else(lower),
        }
    }
}
