//! The `ip` commands that build a lab, as text.

use std::fmt::Write as _;

use spindrift_srv6::{Behavior, Fabric, Link, Node};

/// One end of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Interface {
    pub(super) node: Node,
    pub(super) name: String,
    /// The number of the device: no two ends share one, because carrier events take long where they do.
    index: usize,
}

/// The first device number.
const FIRST_INDEX: usize = 1000;

/// Every packet fits with an outer header around it.
pub(super) const MTU: u16 = 9216;

/// A pair of interfaces that a node has to itself. The kernel binds each segment of its own to an interface, and forgets it when that goes
/// down; `lo` does not do, and these stay up whatever becomes of the links.
const SEGMENTS: [&str; 2] = ["sr0", "sr1"];

/// Link-local addresses of the two ends of a link.
const UPPER: &str = "fe80::1";
const LOWER: &str = "fe80::2";

/// Settings of the kernel in every namespace, before it has interfaces: static addresses and routes only, segment routing, and
/// routes that end where the carrier does.
pub(super) const SYSCTLS: [&str; 11] = [
    "net.ipv6.conf.all.disable_ipv6=0",
    "net.ipv6.conf.default.disable_ipv6=0",
    "net.ipv6.conf.all.seg6_enabled=1",
    "net.ipv6.conf.default.seg6_enabled=1",
    "net.ipv6.conf.default.addr_gen_mode=1",
    "net.ipv6.conf.default.accept_ra=0",
    "net.ipv6.conf.default.accept_dad=0",
    "net.ipv6.conf.default.router_solicitations=0",
    "net.ipv6.conf.all.ignore_routes_with_linkdown=1",
    "net.ipv6.conf.default.ignore_routes_with_linkdown=1",
    // Ports decide among equal routes, too.
    "net.ipv6.fib_multipath_hash_policy=1",
];

/// Those of a switch alone.
pub(super) const SWITCH_SYSCTLS: [&str; 2] =
    ["net.ipv6.conf.all.forwarding=1", "net.ipv6.conf.default.forwarding=1"];

/// Names of namespaces and commands for a lab of this name.
pub(super) struct LabPlan<'a> {
    pub(super) fabric: &'a Fabric,
    prefix: String,
}

impl<'a> LabPlan<'a> {
    pub(super) fn new(fabric: &'a Fabric, lab: &str) -> Self {
        Self { fabric, prefix: namespace_prefix(lab) }
    }

    /// The namespace of a node.
    pub(super) fn namespace(&self, node: Node) -> String {
        format!("{}{}", self.prefix, self.fabric.name(node))
    }

    /// The links, each with its interface at the lower and at the upper end.
    pub(super) fn links(&self) -> impl Iterator<Item = (Link, [Interface; 2])> + '_ {
        self.fabric.links().enumerate().map(|(at, link)| {
            let end = |node, other, upper: usize| {
                let name = self.interface(node, other);
                Interface { node, name, index: FIRST_INDEX + 2 * at + upper }
            };
            (link, [end(link.0, link.1, 0), end(link.1, link.0, 1)])
        })
    }

    /// The ends of links that a node has.
    pub(super) fn interfaces(&self, node: Node) -> impl Iterator<Item = Interface> + '_ {
        self.links().flat_map(|(_, ends)| ends).filter(move |end| end.node == node)
    }

    /// What the interface of a node to a neighbour is called: `eth` and the plane at a host, `down` and `up` and the number of the
    /// link at a switch, and `side` and the number of the other one between two T0 switches.
    fn interface(&self, node: Node, neighbour: Node) -> String {
        match (node, neighbour) {
            (Node::Host(_), Node::T0 { plane, .. }) => format!("eth{plane}"),
            (Node::T0 { .. }, Node::Host(host)) => {
                let downlink = self.fabric.hosts().get(usize::from(host)).map_or(0, |host| host.downlink);
                format!("down{downlink}")
            }
            (Node::T1 { .. }, Node::T0 { number, .. }) | (Node::T2 { .. }, Node::T1 { number, .. }) => {
                format!("down{number}")
            }
            (_, Node::T1 { number, .. } | Node::T2 { number, .. }) => format!("up{number}"),
            (_, Node::T0 { number, .. }) => format!("side{number}"),
            // Of no link.
            _ => "lo".to_owned(),
        }
    }

    /// Commands that make the namespaces.
    pub(super) fn namespaces(&self) -> String {
        self.fabric.nodes().fold(String::new(), |mut lines, node| {
            let _ = writeln!(lines, "netns add {}", self.namespace(node));
            lines
        })
    }

    /// Commands that make the links.
    pub(super) fn cables(&self) -> String {
        let end = |end: &Interface| {
            let Interface { node, name, index } = end;
            format!(
                "{name} index {index} address {} mtu {MTU} netns {}",
                end.mac_text(),
                self.namespace(*node)
            )
        };
        let own = self.fabric.nodes().zip((FIRST_INDEX + 2 * self.fabric.links().count()..).step_by(2));
        let own = own.map(|(node, first)| {
            let [one, other] = SEGMENTS.map(str::to_owned);
            [Interface { node, name: one, index: first }, Interface { node, name: other, index: first + 1 }]
        });
        self.links().map(|(_, ends)| ends).chain(own).fold(String::new(), |mut lines, [one, other]| {
            let _ = writeln!(lines, "link add {} type veth peer name {}", end(&one), end(&other));
            lines
        })
    }

    /// Commands that set up a node, in its namespace: interfaces, addresses, neighbours, segments, routes.
    pub(super) fn node(&self, node: Node) -> String {
        let mut lines = String::from("link set lo up\n");
        let mut add = |line: std::fmt::Arguments<'_>| {
            let _ = writeln!(lines, "{line}");
        };
        for name in SEGMENTS {
            add(format_args!("link set {name} up"));
        }
        for (_, [lower, upper]) in self.links() {
            let (own, other, from, to) = match node {
                node if lower.node == node => (lower, upper, LOWER, UPPER),
                node if upper.node == node => (upper, lower, UPPER, LOWER),
                _ => continue,
            };
            let name = &own.name;
            add(format_args!("link set {name} up"));
            add(format_args!("address add {from}/64 dev {name} nodad"));
            add(format_args!("neighbour add {to} lladdr {} dev {name} nud permanent", other.mac_text()));
        }
        let tables = self.fabric.tables(node);
        if let Node::Host(host) = node {
            for (plane, address) in (0_u8..).zip(&tables.own) {
                add(format_args!("address add {address}/128 dev eth{plane} nodad"));
                // Where paths begin, for packets that the kernel puts into outer ones.
                if let Some(first) = self.fabric.first_segment(host, plane) {
                    add(format_args!("route add {} via {UPPER} dev eth{plane}", first.prefix()));
                }
                for other in (0..self.fabric.hosts().len() as u16).filter(|&other| other != host) {
                    let Some(to) = self.fabric.address(other, plane) else { continue };
                    add(format_args!("route add {to}/128 via {UPPER} dev eth{plane} src {address}"));
                }
            }
        }
        for (segment, behavior) in &tables.segments {
            let action = match behavior {
                // The local table: what is inside must be for this host.
                Behavior::Decapsulate => "End.DT6 table 255".to_owned(),
                Behavior::Node => "End flavors next-csid lblen 32 nflen 16".to_owned(),
                Behavior::Adjacency(next) => format!(
                    "End.X nh6 {} oif {} flavors next-csid lblen 32 nflen 16",
                    link_local(node, *next),
                    self.interface(node, *next)
                ),
            };
            let prefix = segment.prefix();
            add(format_args!("route add {prefix} encap seg6local action {action} dev {}", SEGMENTS[0]));
        }
        for (to, next_hops) in &tables.routes {
            let hop =
                |&next: &Node| format!("via {} dev {}", link_local(node, next), self.interface(node, next));
            let hops: Vec<_> = next_hops.iter().map(hop).collect();
            match &*hops {
                [one] => add(format_args!("route add {to} {one}")),
                several => add(format_args!("route add {to} nexthop {}", several.join(" nexthop "))),
            }
        }
        lines
    }
}

impl LabPlan<'_> {
    /// Commands that bring an interface up again and give back what the kernel took from it as it went down: its addresses and
    /// neighbours, and the routes over it.
    pub(super) fn restore(&self, interface: &Interface) -> String {
        let all = self.node(interface.node);
        let own = all.lines().filter(|line| line.split(' ').any(|word| word == interface.name));
        own.fold(String::new(), |mut lines, line| {
            let _ = writeln!(lines, "{}", line.replacen(" add ", " replace ", 1));
            lines
        })
    }
}

impl Interface {
    /// The number that its namespace knows it by.
    pub(super) fn number(&self) -> u32 {
        self.index as u32
    }

    /// Locally administered, and as unique as the number.
    pub(super) fn mac(&self) -> [u8; 6] {
        let [.., high, middle, low] = self.index.to_be_bytes();
        [2, 0, 0x5d, high, middle, low]
    }

    fn mac_text(&self) -> String {
        self.mac().map(|byte| format!("{byte:02x}")).join(":")
    }
}

/// What the namespaces of a lab start with.
pub(super) fn namespace_prefix(lab: &str) -> String {
    format!("sdlab-{lab}-")
}

/// The address of a neighbour on the link to it.
fn link_local(node: Node, neighbour: Node) -> &'static str {
    // Nodes are ordered by tier.
    if neighbour > node { UPPER } else { LOWER }
}

/// A fabric of two T0 and two T1 switches in each plane, with a host `a` and a host `b` at one T0 switch each.
#[cfg(test)]
pub(super) fn two_hosts(planes: u8) -> Fabric {
    use spindrift_srv6::{FabricHost, Shape};

    let host = |name: &str, t0| FabricHost { name: name.to_owned(), t0, downlink: 0 };
    let shape = Shape { planes, t0: 2, t1: 2, ..Shape::default() };
    Fabric::new(shape, vec![host("a", 0), host("b", 1)]).expect("a fabric")
}

#[cfg(test)]
mod tests {
    use spindrift_srv6::{FabricHost, Shape};

    use super::*;

    fn lines(text: &str) -> Vec<&str> {
        text.lines().collect()
    }

    #[test]
    fn commands_follow_from_the_fabric() {
        let shape = Shape { planes: 2, t0: 2, t1: 2, ..Shape::default() };
        let host = |name: &str, t0, downlink| FabricHost { name: name.to_owned(), t0, downlink };
        let fabric = Fabric::new(shape, vec![host("a", 0, 3), host("b", 1, 0)]).unwrap();
        let plan = LabPlan::new(&fabric, "x");
        let namespaces = plan.namespaces();
        assert_eq!(lines(&namespaces).len(), 2 + 2 * 4);
        assert_eq!(lines(&namespaces)[2], "netns add sdlab-x-p0-t0-0");
        let cables = plan.cables();
        let first = "link add eth0 index 1000 address 02:00:5d:00:03:e8 mtu 9216 netns sdlab-x-a \
                     type veth peer name down3 index 1001 address 02:00:5d:00:03:e9 mtu 9216 netns sdlab-x-p0-t0-0";
        assert_eq!((lines(&cables)[0], lines(&cables).len()), (first, 2 * (2 + 4) + 2 + 2 * 4));
        let has = |node: &str, expected: &[&str]| {
            let commands = plan.node(fabric.node(node).unwrap());
            for line in expected {
                assert!(lines(&commands).contains(line), "{line}\n{commands}");
            }
        };
        let own = "link add sr0 index 1024 address 02:00:5d:00:04:00 mtu 9216 netns sdlab-x-a \
                   type veth peer name sr1 index 1025 address 02:00:5d:00:04:01 mtu 9216 netns sdlab-x-a";
        assert_eq!(lines(&cables)[12], own);
        has(
            "p0-t0-0",
            &[
                "link set sr0 up",
                "link set sr1 up",
                "link set down3 up",
                "link set up1 up",
                "address add fe80::1/64 dev down3 nodad",
                "address add fe80::2/64 dev up0 nodad",
                "neighbour add fe80::2 lladdr 02:00:5d:00:03:e8 dev down3 nud permanent",
                "route add fcbb:bb00:4000::/48 encap seg6local action End flavors next-csid lblen 32 nflen 16 dev sr0",
                "route add fcbb:bb00:c003::/48 via fe80::2 dev down3",
                "route add fd5d:7072::4/128 via fe80::2 dev down3",
                "route add fcbb:bb00:8001::/48 via fe80::1 dev up1",
                "route add fd5d:7072:0:1::/64 nexthop via fe80::1 dev up0 nexthop via fe80::1 dev up1",
            ],
        );
        has(
            "p1-t1-1",
            &[
                "route add fcbb:bb00:8201::/48 encap seg6local action End flavors next-csid lblen 32 nflen 16 dev sr0",
                "route add fcbb:bb00:4201::/48 via fe80::2 dev down1",
                "route add fd5d:7072:0:1::/64 via fe80::2 dev down1",
            ],
        );
        has(
            "a",
            &[
                "address add fd5d:7072::1:4/128 dev eth1 nodad",
                "route add fd5d:7072:0:1::1:1/128 via fe80::1 dev eth1 src fd5d:7072::1:4",
                "route add fcbb:bb00:4200::/48 via fe80::1 dev eth1",
                "route add fcbb:bb00:c203::/48 encap seg6local action End.DT6 table 255 dev sr0",
            ],
        );
    }

    #[test]
    fn no_two_interfaces_are_alike() {
        let shape = Shape { planes: 4, t0: 3, t1: 5, ..Shape::default() };
        let host =
            |number: u16| FabricHost { name: format!("h{number}"), t0: number % 3, downlink: number / 3 };
        let fabric = Fabric::new(shape, (0..12).map(host).collect()).unwrap();
        let plan = LabPlan::new(&fabric, "x");
        let all: Vec<_> = plan.links().flat_map(|(_, ends)| ends).collect();
        let distinct = |key: &dyn Fn(&Interface) -> String| {
            let mut keys: Vec<_> = all.iter().map(key).collect();
            keys.sort();
            keys.dedup();
            keys.len()
        };
        assert_eq!(distinct(&|end| end.index.to_string()), all.len());
        assert_eq!(distinct(&Interface::mac_text), all.len());
        assert_eq!(distinct(&|end| format!("{:?} {}", end.node, end.name)), all.len());
        assert!(all.iter().all(|end| end.name.len() < 16 && end.name != "lo"));
    }
}
