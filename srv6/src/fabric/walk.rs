//! Where a packet goes: through the tables of the nodes that it meets, and not by what the numbers mean.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;

use super::{Fabric, Node};
use crate::forwarder::{DESTINATION, HEADER_LEN, IPV6, ROUTING, SEGMENT_ROUTING};
use crate::{Dropped, Forwarder, Verdict};

/// A node that a packet came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The node.
    pub node: Node,
    /// The packet's destination address as it leaves the node; where the walk ends, as it came.
    pub destination: Ipv6Addr,
}

/// How a packet ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The last node took it, for this address of its own.
    Delivered(Ipv6Addr),
    /// The last node dropped it.
    Dropped(Dropped),
}

/// Where a packet went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Walk {
    /// The nodes, from the host that sent it.
    pub hops: Vec<Hop>,
    /// What became of it at the last one.
    pub end: End,
}

impl Walk {
    /// Whether the packet crossed a link, in either direction.
    pub fn crosses(&self, (a, b): super::Link) -> bool {
        self.hops.windows(2).any(|pair| {
            let [from, to] = pair else { return false };
            (from.node, to.node) == (a, b) || (to.node, from.node) == (a, b)
        })
    }
}

/// Sends packets through a fabric, and keeps the tables of the nodes that they met.
#[derive(Clone, Debug)]
pub struct Walker<'a> {
    fabric: &'a Fabric,
    tables: BTreeMap<Node, Forwarder<Node>>,
}

impl Fabric {
    /// Something to send packets with.
    pub const fn walker(&self) -> Walker<'_> {
        Walker { fabric: self, tables: BTreeMap::new() }
    }
}

impl Walker<'_> {
    /// Sends a packet with this entropy value from one host to another, on one plane. `None` where there is no such
    /// host or plane.
    pub fn walk(&mut self, from: u16, to: u16, plane: u8, ev: u32) -> Option<Walk> {
        let path = self.fabric.paths(from, to, plane)?.expand(ev);
        let (source, inner) = (self.fabric.address(from, plane)?, self.fabric.address(to, plane)?);
        let inner = header(source, inner, NO_NEXT_HEADER, 0);
        let mut packet = routing(path.later());
        packet.extend(inner);
        let next = if path.later().is_empty() { IPV6 } else { ROUTING };
        let outer = header(source, path.destination(), next, packet.len() as u8);
        self.send(from, plane, &mut [&outer, &*packet].concat())
    }

    /// Sends `packet`, which starts with its IPv6 header, from a host's port in a plane; it is changed on the way.
    /// `None` where there is no such host or plane.
    pub fn send(&mut self, from: u16, plane: u8, packet: &mut [u8]) -> Option<Walk> {
        self.fabric.address(from, plane)?;
        let number = self.fabric.hosts().get(usize::from(from))?.t0;
        let mut hops = vec![Hop { node: Node::Host(from), destination: destination(packet) }];
        let mut node = Node::T0 { plane, number };
        // Ends: each hop takes one off the hop limit.
        let end = loop {
            let came = destination(packet);
            let tables = self.tables.entry(node).or_insert_with(|| self.fabric.forwarder(node));
            let verdict = tables.forward(packet);
            if let Ok(Verdict::Forward(&next)) = verdict {
                hops.push(Hop { node, destination: destination(packet) });
                node = next;
                continue;
            }
            hops.push(Hop { node, destination: came });
            break match verdict {
                Ok(Verdict::Inner(at)) => take_in(tables, packet.get_mut(at..).unwrap_or_default()),
                Ok(_) => End::Delivered(came),
                Err(why) => End::Dropped(why),
            };
        };
        Some(Walk { hops, end })
    }
}

/// What the node that took the outer packet off does with the inner one: a host passes nothing on.
fn take_in(tables: &Forwarder<Node>, inner: &mut [u8]) -> End {
    let to = destination(inner);
    match tables.forward(inner) {
        Ok(Verdict::Deliver) => End::Delivered(to),
        Ok(_) => End::Dropped(Dropped::NoRoute(to)),
        Err(why) => End::Dropped(why),
    }
}

const NO_NEXT_HEADER: u8 = 59;

/// An IPv6 header.
pub(super) fn header(source: Ipv6Addr, destination: Ipv6Addr, next: u8, payload_len: u8) -> [u8; HEADER_LEN] {
    let mut bytes = [0; HEADER_LEN];
    bytes[..8].copy_from_slice(&[0x60, 0, 0, 0, 0, payload_len, next, 64]);
    bytes[8..DESTINATION].copy_from_slice(&source.octets());
    bytes[DESTINATION..].copy_from_slice(&destination.octets());
    bytes
}

/// The routing header of a path, which goes on to these segments, in front of an IPv6 packet: nothing where there are none. (RFC 8754,
/// section 2: the last segment comes first.)
fn routing(later: &[Ipv6Addr]) -> Vec<u8> {
    let Some(last) = later.len().checked_sub(1) else { return Vec::new() };
    let (last, left) = (last as u8, later.len() as u8);
    let mut header = vec![IPV6, 2 * left, SEGMENT_ROUTING, left, last, 0, 0, 0];
    header.extend(later.iter().rev().flat_map(Ipv6Addr::octets));
    header
}

fn destination(packet: &[u8]) -> Ipv6Addr {
    let octets = packet.get(DESTINATION..).and_then(<[u8]>::first_chunk::<16>);
    octets.map_or(Ipv6Addr::UNSPECIFIED, |&octets| octets.into())
}
