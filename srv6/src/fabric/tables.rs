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
    pub routes: Vec<(Ipv6Net, Vec<Node>)>,
}

impl Fabric {
    /// The tables of a node: its segments, routes to its neighbours' uSIDs, and plain routes to the hosts, of which a T0 switch
    /// spreads those that lead up over all T1 switches of its plane. A host passes nothing on.
    pub fn tables(&self, node: Node) -> Tables {
        match node {
            Node::Host(host) => {
                self.hosts.get(usize::from(host)).map_or_else(Tables::default, |at| self.host_tables(at))
            }
            Node::T0 { plane, number } => self.t0_tables(plane, number),
            Node::T1 { plane, number } => self.t1_tables(plane, number),
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
        let up: Vec<_> = (0..self.shape.t1).map(|number| Node::T1 { plane, number }).collect();
        for (number, &upper) in (0..).zip(&up) {
            routes.push((self.segment(Role::T1, plane, number).prefix(), vec![upper]));
        }
        let others = (0..self.shape.t0).filter(|&other| other != number);
        routes.extend(others.map(|other| (self.subnet(other), up.clone())));
        Tables {
            segments: vec![(self.segment(Role::T0, plane, number), Behavior::Node)],
            routes,
            ..Tables::default()
        }
    }

    fn t1_tables(&self, plane: u8, number: u16) -> Tables {
        let mut routes = Vec::new();
        for number in 0..self.shape.t0 {
            let below = Node::T0 { plane, number };
            routes.push((self.segment(Role::T0, plane, number).prefix(), vec![below]));
            routes.push((self.subnet(number), vec![below]));
        }
        Tables {
            segments: vec![(self.segment(Role::T1, plane, number), Behavior::Node)],
            routes,
            ..Tables::default()
        }
    }
}

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
    }
}
