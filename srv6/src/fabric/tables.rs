//! What the nodes of a fabric know: the same for the forwarder and for whoever sets up a switch.

use std::net::Ipv6Addr;

use ipnet::Ipv6Net;

use super::{Fabric, FabricHost, Node, Role};
use crate::{Behavior, F3216, Forwarder, TableError};

/// The tables of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tables {
    /// Addresses of its own.
    pub own: Vec<Ipv6Addr>,
    /// Its segments, each of one uSID.
    pub segments: Vec<(F3216, Behavior<Node>)>,
    /// Routes, and the neighbours that each leads to.
    pub routes: Vec<Route>,
}

impl Fabric {
    /// The tables of a node: its segments, routes to its neighbours' uSIDs (a T2 switch: to those of all T0 switches, through the one T1
    /// switch of their pod that it is joined to), and plain routes to the hosts, of which a switch
    /// spreads those that lead up over all switches above it. A host passes nothing on, and a node that is not there has none.
    pub fn tables(&self, node: Node) -> Tables {
        if !self.has(node) {
            return Tables::default();
        }
        match node {
            Node::Host(host) => {
                self.hosts.get(usize::from(host)).map_or_else(Tables::default, |at| self.host_tables(at))
            }
            Node::T0 { plane, number } => self.t0_tables(plane, number),
            Node::T1 { plane, number } => self.t1_tables(plane, number),
            Node::T2 { plane, number } => self.t2_tables(plane, number),
        }
    }

    /// What the node with these tables does to packets.
    pub fn forwarder(&self, node: Node) -> Forwarder<Node> {
        let mut forwarder = Forwarder::new(hash_key(node));
        let filled = fill(&mut forwarder, self.tables(node));
        debug_assert_eq!(filled, Ok(()), "each entry is there once and well-formed");
        forwarder
    }

    fn host_tables(&self, at: &FabricHost) -> Tables {
        let planes = 0..self.shape.planes;
        let segment = |plane| (self.segment(Role::Host, plane, at.downlink), Behavior::Decapsulate);
        Tables {
            own: planes.clone().map(|plane| self.address_at(at, plane)).collect(),
            segments: planes.map(segment).collect(),
            routes: Vec::new(),
        }
    }

    fn t0_tables(&self, plane: u8, number: u16) -> Tables {
        let mut routes = Vec::new();
        for (host, at) in (0..).zip(&self.hosts).filter(|(_, at)| at.t0 == number) {
            routes.push((self.segment(Role::Host, plane, at.downlink).prefix(), vec![Node::Host(host)]));
            routes.push((self.address_at(at, plane).into(), vec![Node::Host(host)]));
        }
        let others = (0..self.shape.t0).filter(|&other| other != number);
        if self.shape.is_dumbbell() {
            routes.extend(
                others.flat_map(|other| self.routes_to(plane, other, Node::T0 { plane, number: other })),
            );
        } else {
            routes.extend(self.routes_up(Node::T0 { plane, number }, Role::T1, others));
        }
        Tables {
            segments: vec![(self.segment(Role::T0, plane, number), Behavior::Node)],
            routes,
            ..Tables::default()
        }
    }

    fn t1_tables(&self, plane: u8, number: u16) -> Tables {
        let shape = &self.shape;
        let (pod, uplink) = (number / shape.t1, number % shape.t1);
        let (within, beyond): (Vec<_>, Vec<_>) = (0..shape.t0).partition(|&t0| shape.pod(t0) == pod);
        let below =
            within.into_iter().flat_map(|t0| self.routes_to(plane, t0, Node::T0 { plane, number: t0 }));
        let above = self.routes_up(Node::T1 { plane, number }, Role::T2, beyond.into_iter());
        Tables {
            segments: vec![(self.segment(Role::T1, plane, uplink), Behavior::Node)],
            routes: below.chain(above).collect(),
            ..Tables::default()
        }
    }

    fn t2_tables(&self, plane: u8, number: u16) -> Tables {
        let shape = &self.shape;
        let (at, uplink) = (number / shape.t2, number % shape.t2);
        let below = |t0| Node::T1 { plane, number: shape.pod(t0) * shape.t1 + at };
        Tables {
            segments: vec![(self.segment(Role::T2, plane, uplink), Behavior::Node)],
            routes: (0..shape.t0).flat_map(|t0| self.routes_to(plane, t0, below(t0))).collect(),
            ..Tables::default()
        }
    }

    /// To a T0 switch, and to the hosts at it, through a neighbour.
    fn routes_to(&self, plane: u8, t0: u16, through: Node) -> [Route; 2] {
        let segment = self.segment(Role::T0, plane, t0);
        [(segment.prefix(), vec![through]), (self.subnet(t0), vec![through])]
    }

    /// To each switch above a switch, and through any of them to the hosts at T0 switches.
    fn routes_up(&self, node: Node, role: Role, t0: impl Iterator<Item = u16>) -> Vec<Route> {
        let up: Vec<_> = self.shape.above(node).collect();
        let plane = node.plane().unwrap_or_default();
        let each = (0..).zip(&up);
        let each = each.map(|(uplink, &upper)| (self.segment(role, plane, uplink).prefix(), vec![upper]));
        each.chain(t0.map(|t0| (self.subnet(t0), up.clone()))).collect()
    }
}

/// A prefix, and the neighbours that lead to it.
type Route = (Ipv6Net, Vec<Node>);

fn fill(forwarder: &mut Forwarder<Node>, tables: Tables) -> Result<(), TableError> {
    tables.own.into_iter().for_each(|address| forwarder.add_own(address));
    for (segment, behavior) in tables.segments {
        forwarder.add_segment(segment, behavior)?;
    }
    for (to, next_hops) in tables.routes {
        forwarder.add_route(to, next_hops)?;
    }
    Ok(())
}

/// Switches decide differently about flows.
fn hash_key(node: Node) -> u64 {
    let key = |tier: u64, plane: u8, number: u16| tier << 32 | u64::from(plane) << 16 | u64::from(number);
    match node {
        Node::Host(host) => key(0, 0, host),
        Node::T0 { plane, number } => key(1, plane, number),
        Node::T1 { plane, number } => key(2, plane, number),
        Node::T2 { plane, number } => key(3, plane, number),
    }
}
