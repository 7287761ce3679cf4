//! A fabric of up to three tiers and several planes: names, addresses, uSIDs, paths and the tables of its switches.

mod tables;
mod templates;
mod walk;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::Ipv6Addr;

use ipnet::Ipv6Net;

use crate::profile::ones;
use crate::{EvProfile, F3216, Field, ProfileError};

pub use tables::Tables;
pub use templates::{Template, TemplateField};
pub use walk::{End, Hop, Walk, Walker};

const BLOCK_BITS: u8 = crate::BLOCK_BITS as u8;
const USID_BITS: u8 = crate::USID_BITS as u8;
/// Bits of the numbers in a uSID, behind the two of the [`Role`].
const PLANE_BITS: u32 = 5;
const NUMBER_BITS: u32 = 9;
/// Bits of an address in front of the T0 switch's number: the prefix of a fabric is no longer.
const SUBNET_AT: u8 = 48;
/// Set in the uSIDs of T2 switches, of which one would be 0 otherwise, and end a carrier.
const T2_BIT: u16 = 1 << (NUMBER_BITS - 1);

/// What a uSID names, in its first two bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    T2 = 0,
    T0 = 1,
    T1 = 2,
    Host = 3,
}

/// How large a fabric is, and where its addresses come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Planes: each is a network of its own, and each host has a port in each. 1 to 32.
    pub planes: u8,
    /// T0 switches in each plane, 1 to 512, in equal parts in the pods.
    pub t0: u16,
    /// T1 switches of each pod of a plane, each joined to every T0 switch of the pod. 0 to 512; 0 only where there is one T0 switch, or
    /// two, which are then joined to each other (a dumbbell).
    pub t1: u16,
    /// Pods, 1 to 512: with more than one, a third tier joins them.
    pub pods: u16,
    /// T2 switches that a T1 switch is joined to, each of which is joined to the T1 switches of this number in all pods. 1 to 256; 0 where
    /// there is one pod.
    pub t2: u16,
    /// The block of all uSIDs, 32 bits long.
    pub block: Ipv6Net,
    /// What the addresses of hosts start with, at most 48 bits long. With `::/48`, the address of a lone host is `::1`.
    pub prefix: Ipv6Net,
}

/// A host and its place: the same T0 switch, and the same port of it, in each plane.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FabricHost {
    /// Its name: ASCII letters, digits, `-`, `_` and `.`, at most 63.
    pub name: String,
    /// Number of its T0 switch.
    pub t0: u16,
    /// The port of the T0 switch that it is joined to, 0 to 511.
    pub downlink: u16,
}

/// A host or a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Node {
    /// The host with this number.
    Host(u16),
    /// A switch that hosts are joined to.
    T0 {
        /// Its plane.
        plane: u8,
        /// Its number in the plane.
        number: u16,
    },
    /// A switch that joins T0 switches.
    T1 {
        /// Its plane.
        plane: u8,
        /// Its number in the plane: those of the first pod come first. In its pod, and with one pod, it is that of the uplinks to it.
        number: u16,
    },
    /// A switch that joins pods.
    T2 {
        /// Its plane.
        plane: u8,
        /// Its number in the plane: those at the first T1 switches of the pods come first. Among these it is that of the uplinks to it.
        number: u16,
    },
}

/// A cable: the lower tier's node, and the upper one's. Of two T0 switches the first is the lower one.
pub type Link = (Node, Node);

/// Why there can be no such fabric.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FabricError {
    /// A number is out of its range.
    #[error("{setting} = {value}: must be {min} to {max}")]
    Range {
        /// A field of [`Shape`].
        setting: &'static str,
        /// What was given.
        value: u16,
        /// The least that can be.
        min: u16,
        /// The most.
        max: u16,
    },
    /// T0 switches that nothing joins.
    #[error("t1 = 0: {0} T0 switches need T1 switches between them; set t1 to 1 or more, or t0 to 1 or 2")]
    Apart(u16),
    /// Pods that cannot be, or that nothing joins.
    #[error("{setting} = {value}: {why}")]
    Pods {
        /// A field of [`Shape`].
        setting: &'static str,
        /// What was given.
        value: u16,
        /// What is wrong with it.
        why: String,
    },
    /// A prefix is of the wrong length, or has something behind it.
    #[error("{setting} = {prefix}: {why}")]
    Prefix {
        /// A field of [`Shape`].
        setting: &'static str,
        /// What was given.
        prefix: Ipv6Net,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Nothing to join.
    #[error("there are no hosts")]
    NoHosts,
    /// More hosts than numbers for them.
    #[error("{0} hosts given: at most {max}", max = u16::MAX)]
    Hosts(usize),
    /// Something is wrong with a host.
    #[error("{setting} of host \"{name}\": {why}")]
    Host {
        /// Its number.
        number: usize,
        /// Its name.
        name: String,
        /// A field of [`FabricHost`].
        setting: &'static str,
        /// What is wrong.
        why: String,
    },
    /// Something is wrong with a template.
    #[error("{setting} of template {}: {why}", number + 1)]
    Template {
        /// Its number, from 0.
        number: usize,
        /// A field of [`Template`].
        setting: &'static str,
        /// What is wrong.
        why: String,
    },
    /// The fields of a template make no paths.
    #[error("template {}: {error}", number + 1)]
    TemplatePaths {
        /// Its number, from 0.
        number: usize,
        /// What is wrong with them.
        error: ProfileError,
    },
}

/// A fabric: planes of T0 and T1 switches, each T0 switch joined to all T1 switches of its plane and each host to one T0
/// switch of every plane (MRC paper, section 2.1). A larger one has several such pods in each plane, and T2 switches that join their T1
/// switches.
///
/// Its uSIDs follow the paper's scheme (section 2.3): the plane is in each of them, the uplink that a packet takes is in that of the T1
/// switch, and the port of the last T0 switch in that of the destination. A uSID has two bits that tell what it names
/// (0 a T2 switch, 1 a T0 switch, 2 a T1 switch, 3 a host), five for the plane, and nine for the number: of a T0 switch in the plane, of the
/// uplink to a T1 or T2 switch (with the first of the nine bits set for the latter), or of the host's port at
/// its T0 switch, which alone knows it. A path is `T0, T1, T0, host`, or `T0, T1, T2, T0, host` between pods, or `T0, host` between
/// hosts of one T0 switch, and the entropy value chooses the T1 switch with its first bits and the T2 switch with the next ones.
///
/// A host has one address in each plane: the prefix, the number of its T0 switch in the fourth 16-bit group, the
/// plane in the seventh, and one more than its port in the last.
///
/// ```
/// use spindrift_srv6::{Fabric, FabricHost, Node, Shape};
///
/// let shape = Shape { planes: 2, t0: 2, t1: 4, ..Shape::default() };
/// let host = |name: &str, t0| FabricHost { name: name.into(), t0, downlink: 0 };
/// let fabric = Fabric::new(shape, vec![host("h1", 0), host("h2", 1)])?;
/// let (h1, h2) = (fabric.host("h1").ok_or("h1")?, fabric.host("h2").ok_or("h2")?);
/// let paths = fabric.paths(h1, h2, 1).ok_or("plane 1")?;
/// assert_eq!(paths.count(), 4);
/// assert_eq!(paths.expand(0xc000_0000).destination().to_string(), "fcbb:bb00:4200:8203:4201:c200::");
/// let walk = fabric.walker().walk(h1, h2, 1, 0xc000_0000).ok_or("plane 1")?;
/// let names: Vec<_> = walk.hops.iter().map(|hop| fabric.name(hop.node)).collect();
/// assert_eq!(names, ["h1", "p1-t0-0", "p1-t1-3", "p1-t0-1", "h2"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fabric {
    shape: Shape,
    hosts: Vec<FabricHost>,
    templates: Vec<Template>,
}

impl Default for Shape {
    /// One plane with one switch; uSIDs in `fcbb:bb00::/32` and hosts in `fd5d:7072::/48`.
    fn default() -> Self {
        Self {
            planes: 1,
            t0: 1,
            t1: 0,
            pods: 1,
            t2: 0,
            block: Ipv6Net::new_assert(Ipv6Addr::new(0xfcbb, 0xbb00, 0, 0, 0, 0, 0, 0), 32),
            prefix: Ipv6Net::new_assert(Ipv6Addr::new(0xfd5d, 0x7072, 0, 0, 0, 0, 0, 0), SUBNET_AT),
        }
    }
}

/// Whether an address begins like the loopback address and IPv4 addresses (RFC 4291, section 2.5).
const fn is_local(address: Ipv6Addr) -> bool {
    address.segments()[0] <= 0x00ff
}

/// Why no switch forwards packets to an address, if none does (RFC 4291, section 2.4).
const fn not_routed(address: Ipv6Addr) -> Option<&'static str> {
    match address.segments()[0] {
        0xfe80..=0xfebf => Some("these are link-local addresses, which no switch forwards to"),
        0xff00..=0xffff => Some("these are multicast addresses; hosts and switches need unicast ones"),
        _ => None,
    }
}

impl Shape {
    fn check(&self) -> Result<(), FabricError> {
        let most = 1 << NUMBER_BITS;
        let ranges = [
            ("planes", u16::from(self.planes), 1, 1 << PLANE_BITS),
            ("t0", self.t0, 1, most),
            ("t1", self.t1, 0, most),
            ("pods", self.pods, 1, most),
            ("t2", self.t2, 0, T2_BIT),
        ];
        for (setting, value, min, max) in ranges {
            if !(min..=max).contains(&value) {
                return Err(FabricError::Range { setting, value, min, max });
            }
        }
        if self.t1 == 0 && self.t0 > 2 {
            return Err(FabricError::Apart(self.t0));
        }
        self.check_pods()?;
        let bad = |setting, prefix, why| Err(FabricError::Prefix { setting, prefix, why });
        if self.block.prefix_len() != BLOCK_BITS {
            return bad("block", self.block, "a block has 32 bits, as in fcbb:bb00::/32");
        }
        if self.prefix.prefix_len() > SUBNET_AT {
            return bad("prefix", self.prefix, "at most 48 bits, as in fd5d:7072::/48");
        }
        for (setting, prefix) in [("block", self.block), ("prefix", self.prefix)] {
            if prefix.trunc() != prefix {
                return bad(setting, prefix, "there are bits behind the prefix");
            }
            if let Some(why) = not_routed(prefix.addr()) {
                return bad(setting, prefix, why);
            }
        }
        if is_local(self.block.addr()) {
            let why = "loopback and IPv4 addresses begin like this, and no switch forwards to them";
            return bad("block", self.block, why);
        }
        if self.block.contains(&self.prefix) || self.prefix.contains(&self.block) {
            return bad("prefix", self.prefix, "it overlaps the block of the uSIDs");
        }
        Ok(())
    }

    fn check_pods(&self) -> Result<(), FabricError> {
        let Self { t0, t1, pods, t2, .. } = *self;
        let bad = |setting, value, why: String| Err(FabricError::Pods { setting, value, why });
        if !t0.is_multiple_of(pods) {
            return bad("pods", pods, format!("{t0} T0 switches are not a multiple of this"));
        }
        if pods == 1 {
            return match t2 {
                0 => Ok(()),
                _ => {
                    bad("t2", t2, "T2 switches join pods, and there is one; set pods to 2 or more".to_owned())
                }
            };
        }
        for (setting, value) in [("t1", t1), ("t2", t2)] {
            if value == 0 {
                return bad(setting, value, format!("{pods} pods need T1 and T2 switches between them"));
            }
        }
        for (setting, value, tier) in [("pods", pods, "T1"), ("t2", t2, "T2")] {
            if t1.checked_mul(value).is_none() {
                let why = format!("with t1 = {t1}, a plane has more than {} {tier} switches", u16::MAX);
                return bad(setting, value, why);
            }
        }
        Ok(())
    }

    /// T0 switches of each pod of a plane.
    const fn t0_of_pod(&self) -> u16 {
        self.t0 / self.pods
    }

    /// The pod of a T0 switch.
    const fn pod(&self, t0: u16) -> u16 {
        t0 / self.t0_of_pod()
    }

    /// The switches of a tier in each plane: T0 switches are those of tier 0.
    pub const fn of_tier(&self, tier: u8) -> u16 {
        match tier {
            0 => self.t0,
            1 => self.pods.saturating_mul(self.t1),
            2 => self.t1.saturating_mul(self.t2),
            _ => 0,
        }
    }

    /// Whether the addresses of hosts are loopback addresses, by which no host reaches another.
    pub const fn is_on_loopback(&self) -> bool {
        is_local(self.prefix.addr())
    }

    /// Tiers of switches, 1 to 3.
    pub const fn tiers(&self) -> u8 {
        1 + (self.t1 > 0) as u8 + (self.t2 > 0) as u8
    }

    /// Whether the two T0 switches of a plane are joined to each other.
    const fn is_dumbbell(&self) -> bool {
        self.t0 == 2 && self.t1 == 0
    }

    /// The switches of a plane.
    fn switches(&self, plane: u8) -> impl Iterator<Item = Node> + use<> {
        let t0 = (0..self.of_tier(0)).map(move |number| Node::T0 { plane, number });
        let t1 = (0..self.of_tier(1)).map(move |number| Node::T1 { plane, number });
        let t2 = (0..self.of_tier(2)).map(move |number| Node::T2 { plane, number });
        t0.chain(t1).chain(t2)
    }

    /// The switches above a switch: of a T0 switch those of the next tier, in the order of its uplinks, and the same of a T1 switch.
    fn above(&self, node: Node) -> impl Iterator<Item = Node> + use<> {
        let (t1, t2) = (self.t1, self.t2);
        let (tier, plane, first, count) = match node {
            Node::T0 { plane, number } => (1, plane, self.pod(number) * t1, t1),
            Node::T1 { plane, number } => (2, plane, number % t1 * t2, t2),
            Node::Host(_) | Node::T2 { .. } => (0, 0, 0, 0),
        };
        (first..first + count).map(move |number| match tier {
            1 => Node::T1 { plane, number },
            _ => Node::T2 { plane, number },
        })
    }
}

impl Fabric {
    /// The fabric of this shape with these hosts.
    ///
    /// # Errors
    /// What cannot be, by name: see [`FabricError`].
    pub fn new(shape: Shape, hosts: Vec<FabricHost>) -> Result<Self, FabricError> {
        shape.check()?;
        if hosts.is_empty() {
            return Err(FabricError::NoHosts);
        }
        if hosts.len() > usize::from(u16::MAX) {
            return Err(FabricError::Hosts(hosts.len()));
        }
        let (mut names, mut places) = (BTreeSet::new(), BTreeMap::new());
        for (number, host) in hosts.iter().enumerate() {
            let FabricHost { name, t0, downlink } = host;
            let bad = |setting, why| Err(FabricError::Host { number, name: name.clone(), setting, why });
            let fits = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
            if name.is_empty() || name.len() > 63 || !name.chars().all(fits) {
                let allowed = "a name has 1 to 63 ASCII letters, digits, '-', '_' and '.'";
                return bad("name", allowed.to_owned());
            }
            if switch_named(name).is_some() {
                return bad("name", "switches have names of this form".to_owned());
            }
            if !names.insert(name) {
                return bad("name", "another host has the same name".to_owned());
            }
            if *t0 >= shape.t0 {
                return bad("t0", format!("there is no T0 switch {t0}, the last one is {}", shape.t0 - 1));
            }
            if *downlink >= 1 << NUMBER_BITS {
                return bad("downlink", format!("{downlink} is more than {}", (1 << NUMBER_BITS) - 1));
            }
            if let Some(other) = places.insert((t0, downlink), name) {
                return bad("downlink", format!("port {downlink} of T0 switch {t0} is taken by \"{other}\""));
            }
        }
        Ok(Self { shape, hosts, templates: Vec::new() })
    }

    /// The shape that it was made of.
    pub const fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The hosts, in the order of their numbers.
    pub fn hosts(&self) -> &[FabricHost] {
        &self.hosts
    }

    /// The number of a host.
    pub fn host(&self, name: &str) -> Option<u16> {
        self.hosts.iter().position(|host| host.name == name).map(|at| at as u16)
    }

    /// All nodes: hosts, then the switches plane by plane.
    pub fn nodes(&self) -> impl Iterator<Item = Node> + '_ {
        let switches = (0..self.shape.planes).flat_map(|plane| self.shape.switches(plane));
        (0..self.hosts.len() as u16).map(Node::Host).chain(switches)
    }

    /// All links, plane by plane: those of hosts, then those between switches, tier by tier.
    pub fn links(&self) -> impl Iterator<Item = Link> + '_ {
        (0..self.shape.planes).flat_map(move |plane| {
            let down = (0..).zip(&self.hosts);
            let down = down.map(move |(host, at)| (Node::Host(host), Node::T0 { plane, number: at.t0 }));
            let switches = self.shape.switches(plane);
            let up = switches.flat_map(|lower| self.shape.above(lower).map(move |upper| (lower, upper)));
            let across = self.shape.is_dumbbell().then(|| {
                let t0 = |number| Node::T0 { plane, number };
                (t0(0), t0(1))
            });
            down.chain(up).chain(across)
        })
    }

    /// The link between two nodes, named in either order.
    pub fn link(&self, a: Node, b: Node) -> Option<Link> {
        let link = (a.min(b), a.max(b));
        self.links().find(|&other| other == link)
    }

    /// What a node is called: a host by its name, a switch by plane, tier and number, as in `p0-t1-3`.
    pub fn name(&self, node: Node) -> String {
        match node {
            Node::Host(host) => {
                self.hosts.get(usize::from(host)).map_or_else(String::new, |at| at.name.clone())
            }
            switch => switch.to_string(),
        }
    }

    /// Whether there is such a node.
    fn has(&self, node: Node) -> bool {
        let (number, count) = match node {
            Node::Host(number) => (number, self.hosts.len() as u16),
            Node::T0 { number, .. } => (number, self.shape.of_tier(0)),
            Node::T1 { number, .. } => (number, self.shape.of_tier(1)),
            Node::T2 { number, .. } => (number, self.shape.of_tier(2)),
        };
        node.plane().is_none_or(|plane| plane < self.shape.planes) && number < count
    }

    /// The node of this name.
    pub fn node(&self, name: &str) -> Option<Node> {
        switch_named(name).filter(|&node| self.has(node)).or_else(|| self.host(name).map(Node::Host))
    }

    /// The address of a host's port in a plane; `None` where there is no such host or plane.
    pub fn address(&self, host: u16, plane: u8) -> Option<Ipv6Addr> {
        let at = self.hosts.get(usize::from(host))?;
        (plane < self.shape.planes).then(|| self.address_at(at, plane))
    }

    /// The host and the plane whose address this is; `None` where no host has it.
    pub fn port_of(&self, address: Ipv6Addr) -> Option<(u16, u8)> {
        let t0 = (address.to_bits() >> 64) as u16;
        let at_t0 = |(_, host): &(u16, &FabricHost)| host.t0 == t0;
        let planes = |(number, host)| (0..self.shape.planes).map(move |plane| (number, host, plane));
        let mut ports = (0..).zip(&self.hosts).filter(at_t0).flat_map(planes);
        let found = ports.find(|(_, host, plane)| self.address_at(host, *plane) == address);
        found.map(|(number, _, plane)| (number, plane))
    }

    /// The prefix of the hosts at a T0 switch, which is the same in each plane.
    pub fn subnet(&self, t0: u16) -> Ipv6Net {
        let bits = self.shape.prefix.addr().to_bits() | u128::from(t0) << 64;
        Ipv6Net::new_assert(Ipv6Addr::from_bits(bits), 64)
    }

    /// The paths of a plane between two hosts, which may be one and the same: what a [`Template`] says, or one for each T1 switch of a pod,
    /// one for each T2 switch between pods, and a single one where both are at one T0 switch or there are no others. `None` where there is
    /// no such host or plane.
    pub fn paths(&self, from: u16, to: u16, plane: u8) -> Option<EvProfile> {
        let (number, from, to) = (from, self.hosts.get(usize::from(from))?, self.hosts.get(usize::from(to))?);
        if plane >= self.shape.planes {
            return None;
        }
        if let Some(paths) = self.templated(number, to, plane) {
            return Some(paths);
        }
        let shape = &self.shape;
        let fixed = |role, number| Field::fixed(USID_BITS, usid(role, plane, number).into());
        let any_of = |role, count: u16| {
            let largest = u32::from(count) - 1;
            let mask = ones(u32::BITS - largest.leading_zeros());
            Field { max: largest, mask, ..fixed(role, 0) }
        };
        let mut fields = vec![Field::fixed(BLOCK_BITS, self.block()), fixed(Role::T0, from.t0)];
        if from.t0 != to.t0 {
            if !shape.is_dumbbell() {
                fields.push(any_of(Role::T1, shape.t1));
            }
            if shape.pod(from.t0) != shape.pod(to.t0) {
                fields.push(any_of(Role::T2, shape.t2));
            }
            fields.push(fixed(Role::T0, to.t0));
        }
        fields.push(fixed(Role::Host, to.downlink));
        EvProfile::new(&F3216::FORMAT, &fields).ok()
    }

    /// The first uSID of a host's paths in a plane: that of its T0 switch. `None` where there is no such host or plane.
    pub fn first_segment(&self, host: u16, plane: u8) -> Option<F3216> {
        let at = self.hosts.get(usize::from(host))?;
        (plane < self.shape.planes).then(|| self.segment(Role::T0, plane, at.t0))
    }

    /// The uSID of a node in a plane, as a carrier of it alone. Each switch below a T1 or T2 switch knows it by the number of the uplink, so
    /// switches of several pods have the same one, and a host's is known to its T0 switch alone. `None` where there is no such node, or
    /// where it has no port in the plane.
    pub fn segment_of(&self, node: Node, plane: u8) -> Option<F3216> {
        if !self.has(node) || plane >= self.shape.planes || node.plane().is_some_and(|of| of != plane) {
            return None;
        }
        let (role, number) = match node {
            Node::Host(host) => (Role::Host, self.hosts.get(usize::from(host))?.downlink),
            Node::T0 { number, .. } => (Role::T0, number),
            Node::T1 { number, .. } => (Role::T1, number % self.shape.t1),
            Node::T2 { number, .. } => (Role::T2, number % self.shape.t2),
        };
        Some(self.segment(role, plane, number))
    }

    /// The switches of the next tier that a switch is joined to, in the order of its uplinks; none where there is no such node. Of a
    /// dumbbell, the other T0 switch.
    pub fn uplinks(&self, node: Node) -> impl Iterator<Item = Node> + '_ {
        let node = Some(node).filter(|&node| self.has(node));
        let across = match node {
            Some(Node::T0 { plane, number }) if self.shape.is_dumbbell() => {
                Some(Node::T0 { plane, number: 1 - number })
            }
            _ => None,
        };
        node.into_iter().flat_map(|node| self.shape.above(node)).chain(across)
    }

    /// The pod of a switch of the lower tiers; `None` for a T2 switch, which is in none, and where there is no such node.
    pub fn pod_of(&self, node: Node) -> Option<u16> {
        match node {
            _ if !self.has(node) => None,
            Node::Host(host) => self.hosts.get(usize::from(host)).map(|at| self.shape.pod(at.t0)),
            Node::T0 { number, .. } => Some(self.shape.pod(number)),
            Node::T1 { number, .. } => Some(number / self.shape.t1),
            Node::T2 { .. } => None,
        }
    }

    fn block(&self) -> u32 {
        (self.shape.block.addr().to_bits() >> (u128::BITS - u32::from(BLOCK_BITS))) as u32
    }

    /// The carrier of one uSID.
    fn segment(&self, role: Role, plane: u8, number: u16) -> F3216 {
        F3216::of_one(self.block(), usid(role, plane, number))
    }

    fn address_at(&self, host: &FabricHost, plane: u8) -> Ipv6Addr {
        let port = u128::from(plane) << 16 | u128::from(host.downlink + 1);
        Ipv6Addr::from_bits(self.subnet(host.t0).addr().to_bits() | port)
    }
}

/// Never 0.
const fn usid(role: Role, plane: u8, number: u16) -> u16 {
    let number = if matches!(role, Role::T2) { T2_BIT | number } else { number };
    (role as u16) << (PLANE_BITS + NUMBER_BITS) | (plane as u16) << NUMBER_BITS | number
}

/// The switch that has this name in a fabric that is large enough.
fn switch_named(name: &str) -> Option<Node> {
    let (plane, rest) = name.strip_prefix('p')?.split_once('-')?;
    let (tier, number) = rest.split_once('-')?;
    let (plane, number) = (plane.parse().ok()?, number.parse().ok()?);
    let node = match tier {
        "t0" => Node::T0 { plane, number },
        "t1" => Node::T1 { plane, number },
        "t2" => Node::T2 { plane, number },
        _ => return None,
    };
    // As it would be written: no leading zeros or signs.
    (node.to_string() == name).then_some(node)
}

impl Node {
    /// The plane of a switch; `None` for a host, which is in all of them.
    pub const fn plane(self) -> Option<u8> {
        match self {
            Self::Host(_) => None,
            Self::T0 { plane, .. } | Self::T1 { plane, .. } | Self::T2 { plane, .. } => Some(plane),
        }
    }
}

impl fmt::Display for Node {
    /// A host by its number: its name is the fabric's to tell.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(host) => write!(f, "host {host}"),
            Self::T0 { plane, number } => write!(f, "p{plane}-t0-{number}"),
            Self::T1 { plane, number } => write!(f, "p{plane}-t1-{number}"),
            Self::T2 { plane, number } => write!(f, "p{plane}-t2-{number}"),
        }
    }
}

#[cfg(test)]
mod tests;
