//! Where both sides' planes are. Each side tells the other before either opens its ports: the routes between them decide about MTU,
//! rate and interface.

use std::fs;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use anyhow::{Context as _, Result, anyhow};
use serde::{Deserialize, Serialize};
use spindrift::endpoint::EndpointConfig;
use spindrift_pmd::Medium;
use spindrift_pmd::route::{LocalAddress, PeerRoute};

use super::canonical;
use super::peer::Peer;
use crate::output::eprint_line;
use crate::place::{Local, Towards};

/// A side's planes, as the other one needs to know them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Planes {
    /// By plane.
    addresses: Vec<IpAddr>,
    /// The ends of the set-up connection as this side sees them: its own, and the other's.
    connection: [SocketAddr; 2],
}

/// A plane of this side and the way to the peer's.
struct Way {
    plane: usize,
    local: LocalAddress,
    peer: IpAddr,
    route: PeerRoute,
}

impl Planes {
    pub(super) fn new(local: &[Local], peer: &Peer) -> Result<Self> {
        let addresses = local.iter().map(|local| local.address).collect();
        Ok(Self { addresses, connection: peer.connection()? })
    }

    /// As long as there is no connection.
    pub(super) fn unknown() -> Self {
        let nowhere = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0);
        Self { addresses: Vec::new(), connection: [nowhere; 2] }
    }

    /// A word where the two sides see different addresses of the same connection. `ours` is what this side sees.
    pub(super) fn tell_of_nat(&self, ours: [SocketAddr; 2], name: &str) {
        if let Some(text) = translated(ours, self.connection) {
            eprint_line(format_args!(
                "spindrift: {text}: a NAT or proxy is between this side and the {name}, and the UDP packets of a run pass only if {} can be reached without it",
                list(&self.addresses)
            ));
        }
    }

    /// Refuses what no side has.
    pub(super) fn check(&self) -> Result<(), String> {
        let (count, most) = (self.addresses.len(), EndpointConfig::MAX_PORTS);
        if (1..=most).contains(&count) {
            return Ok(());
        }
        Err(format!("{count} planes; a side has 1 to {most}"))
    }

    /// This side's planes, each with the peer's that it leads to, of which these are the addresses. Says what a user should know of the
    /// routes; an address that cannot reach the peer's is refused.
    pub(super) fn towards(&self, local: &[Local], name: &str) -> Result<Vec<Local>> {
        let (mut ways, mut found) = (Vec::new(), Vec::new());
        for (plane, local) in local.iter().enumerate() {
            let mut local = local.clone();
            // Planes beyond the peer's are not used; families that differ are refused when the queue pairs are compared.
            let peer = self.addresses.get(plane).filter(|peer| peer.is_ipv4() == local.address.is_ipv4());
            if let Some((&peer, known)) = peer.zip(local.known()?) {
                let route = known.route_to(peer).with_context(|| format!("the route to {peer}"))?;
                match route {
                    Some(route) => {
                        local.towards = Some(Towards { peer, mtu: route.bind.then_some(route.mtu) });
                        ways.push(Way { plane, local: known, peer, route });
                    }
                    None if local.address.is_loopback() => {
                        return Err(unreachable(plane, &local, peer, name));
                    }
                    None => {
                        eprint_line(format_args!("spindrift: {}", unreachable(plane, &local, peer, name)));
                    }
                }
            }
            found.push(local);
        }
        for advice in advice(&ways, &sysctl) {
            eprint_line(format_args!("spindrift: {advice}"));
        }
        Ok(found)
    }
}

fn unreachable(plane: usize, local: &Local, peer: IpAddr, name: &str) -> anyhow::Error {
    let why = if local.address.is_loopback() {
        "a loopback address reaches only this host"
    } else {
        "there is no route"
    };
    anyhow!(
        "plane {plane}: {} cannot reach {peer}, the address of the {name} on this plane: {why}; name other addresses with --local, or add a route (`ip route get {peer} from {}` shows the route)",
        local.address,
        local.address
    )
}

fn list(addresses: &[IpAddr]) -> String {
    addresses.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", ")
}

/// What differs between both sides' views of a connection, each with its own end first. Scope ids are each host's own.
fn translated(ours: [SocketAddr; 2], theirs: [SocketAddr; 2]) -> Option<String> {
    let same = |one: SocketAddr, other: SocketAddr| (one.ip(), one.port()) == (other.ip(), other.port());
    let [our_local, our_peer] = ours.map(canonical);
    let [their_local, their_peer] = theirs.map(canonical);
    if !same(our_peer, their_local) {
        return Some(format!(
            "the set-up connection is with {our_peer}, and the other end has {their_local}"
        ));
    }
    if !same(our_local, their_peer) {
        return Some(format!(
            "the other end of the set-up connection sees {their_peer}, and this end has {our_local}"
        ));
    }
    None
}

/// A setting of the kernel's for an interface, and for all: the larger one counts (Documentation/networking/ip-sysctl.rst).
fn sysctl(interface: &str, name: &str) -> u32 {
    let read = |of: &str| -> Option<u32> {
        let text = fs::read_to_string(format!("/proc/sys/net/ipv4/conf/{of}/{name}")).ok()?;
        text.trim().parse().ok()
    };
    read(interface).max(read("all")).unwrap_or_default()
}

/// What may not be as the user thinks. `sysctl` reads settings of an interface.
fn advice(ways: &[Way], sysctl: &dyn Fn(&str, &str) -> u32) -> Vec<String> {
    let mut advice = Vec::new();
    let network = |way: &&Way| way.route.medium != Medium::Host;
    for Way { plane, local, peer, route } in ways.iter().filter(network) {
        if !route.bind && !local.interface.loopback {
            let (own, other) = (&local.interface.name, &route.interface.name);
            advice.push(format!(
                "plane {plane}: packets from {} leave by {other}, for {own}, which has this address, has no route to {peer}",
                local.ip
            ));
        }
    }
    for (at, way) in ways.iter().enumerate().filter(|(_, way)| network(way)) {
        let Some(first) = ways
            .iter()
            .take(at)
            .filter(network)
            .find(|other| other.route.interface.index == way.route.interface.index)
        else {
            continue;
        };
        advice.push(format!(
            "plane {} shares a link: its packets leave by {}, like those of plane {}",
            way.plane, way.route.interface.name, first.plane
        ));
    }
    if let Some((one, other)) = in_one_subnet(ways) {
        let [a, b] = [one, other].map(|way| &*way.local.interface.name);
        if [a, b].iter().any(|name| sysctl(name, "arp_ignore") == 0) {
            advice.push(format!(
                "{a} and {b} are in one subnet, and either replies to ARP requests for both addresses: the peer may send all to one of them; \
                 `sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2` gives each its own"
            ));
        }
        if [a, b].iter().any(|name| sysctl(name, "rp_filter") == 1) {
            advice.push(format!(
                "{a} and {b} are in one subnet, and strict reverse path filtering drops what arrives at the second: \
                 `sysctl -w net.ipv4.conf.all.rp_filter=2` makes it loose"
            ));
        }
    }
    advice
}

/// Two planes whose interfaces have IPv4 addresses of one subnet.
fn in_one_subnet(ways: &[Way]) -> Option<(&Way, &Way)> {
    let of = |way: &Way| match way.local.ip {
        IpAddr::V4(ip) if way.route.bind => Some((ip.to_bits(), u32::from(way.local.prefix_len))),
        _ => None,
    };
    ways.iter().enumerate().find_map(|(at, way)| {
        let (ip, len) = of(way)?;
        let shares = |other: &&Way| {
            let same = |(other, other_len): (u32, u32)| (ip ^ other).leading_zeros() >= len.min(other_len);
            other.local.interface.index != way.local.interface.index && of(other).is_some_and(same)
        };
        Some((ways.iter().take(at).find(shares)?, way))
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use spindrift_pmd::netlink::{AddressState, Interface};

    use super::*;

    fn interface(index: u32) -> Interface {
        let name = if index == 1 { "lo".to_owned() } else { format!("eth{}", index - 2) };
        Interface { index, name, mac: None, mtu: 1500, loopback: index == 1, running: true, queues: true }
    }

    /// A plane whose address is on one interface and whose packets leave by another, maybe.
    fn way(plane: usize, ip: &str, on: u32, by: u32) -> Way {
        let ip: IpAddr = ip.parse().unwrap();
        Way {
            plane,
            local: LocalAddress {
                ip,
                prefix_len: 24,
                interface: interface(on),
                state: AddressState::Ready,
                scope_id: 0,
            },
            peer: [10, 9, 9, 9].into(),
            route: PeerRoute {
                interface: interface(by),
                bind: on == by,
                mtu: 1500,
                medium: if by == 1 { Medium::Host } else { Medium::Network { rate_bps: None } },
            },
        }
    }

    fn told(ways: &[Way], settings: &[(&str, u32)]) -> Vec<String> {
        advice(ways, &|_, name| {
            settings.iter().find(|(known, _)| *known == name).map_or(0, |(_, value)| *value)
        })
    }

    #[test]
    fn planes_of_links_of_their_own_need_no_words() {
        let none: &[(&str, u32)] = &[];
        assert!(told(&[way(0, "10.0.0.1", 2, 2), way(1, "10.0.1.1", 3, 3)], none).is_empty());
        // Addresses of a host that routes by BGP, and of this host.
        assert!(told(&[way(0, "10.0.0.1", 1, 2)], none).is_empty());
        assert!(told(&[way(0, "127.0.0.1", 1, 1), way(1, "127.0.0.3", 1, 1)], none).is_empty());
    }

    #[test]
    fn planes_that_share_a_link_are_told() {
        let shared = told(&[way(0, "10.0.0.1", 2, 2), way(1, "10.1.0.1", 3, 2)], &[]);
        assert_eq!(
            shared,
            [
                "plane 1: packets from 10.1.0.1 leave by eth0, for eth1, which has this address, has no route to 10.9.9.9",
                "plane 1 shares a link: its packets leave by eth0, like those of plane 0",
            ]
        );
        let two = [way(0, "10.0.0.1", 1, 2), way(1, "10.0.0.2", 1, 2)];
        assert_eq!(told(&two, &[]).len(), 1, "by ECMP or not");
    }

    #[test]
    fn two_nics_in_one_subnet_need_settings_of_the_kernel() {
        let two = [way(0, "10.0.0.1", 2, 2), way(1, "10.0.0.2", 3, 3)];
        let names = |settings: &[(&str, u32)]| {
            let told = told(&two, settings);
            ["arp_ignore", "rp_filter"].map(|name| told.iter().any(|text| text.contains(name)))
        };
        assert_eq!(names(&[]), [true, false]);
        assert_eq!(names(&[("arp_ignore", 1)]), [false, false]);
        assert_eq!(names(&[("arp_ignore", 2), ("rp_filter", 1)]), [false, true]);
        assert_eq!(names(&[("rp_filter", 2)]), [true, false]);
        let others = [way(0, "10.0.0.1", 2, 2), way(1, "10.0.1.2", 3, 3)];
        assert!(told(&others, &[]).is_empty());
        let v6 = [way(0, "fd00::1", 2, 2), way(1, "fd00::2", 3, 3)];
        assert!(told(&v6, &[]).is_empty(), "neighbour discovery keeps them apart");
    }

    #[test]
    fn a_nat_is_seen_from_both_ends() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let (client, server, nat) = (at("10.0.0.5:40000"), at("192.0.2.1:18515"), at("198.51.100.9:1024"));
        assert_eq!(translated([server, client], [client, server]), None);
        assert_eq!(translated([at("[::ffff:192.0.2.1]:18515"), client], [client, server]), None);
        assert_eq!(
            translated(
                [at("[fe80::1%2]:1"), at("[fe80::2%2]:2")],
                [at("[fe80::2%7]:2"), at("[fe80::1%7]:1")]
            ),
            None
        );
        // The client's address is translated.
        let text = translated([server, nat], [client, server]).unwrap();
        assert!(text.contains("is with 198.51.100.9:1024, and the other end has 10.0.0.5:40000"), "{text}");
        let text = translated([client, server], [server, nat]).unwrap();
        assert!(text.contains("sees 198.51.100.9:1024, and this end has 10.0.0.5:40000"), "{text}");
        // Only its port.
        assert!(translated([server, at("10.0.0.5:1024")], [client, server]).is_some());
    }

    #[test]
    fn a_side_has_a_plane_at_least() {
        let nobody = SocketAddr::from(([10, 0, 0, 1], 1));
        let planes = |count| Planes { addresses: vec![[10, 0, 0, 1].into(); count], connection: [nobody; 2] };
        for (count, fits) in [(0, false), (1, true), (32, true), (33, false)] {
            assert_eq!(planes(count).check().is_ok(), fits, "{count}");
        }
    }
}
