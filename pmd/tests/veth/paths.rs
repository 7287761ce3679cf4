//! Networks that are not as the interface of the local address says.

use std::net::IpAddr;

use spindrift_pmd::route::{NotReady, local_address};
use spindrift_pmd::testing::{Hosts, head, within};
use spindrift_pmd::udp::{SourcePorts, UdpConfig, UdpError, UdpPort};
use spindrift_pmd::{DatagramMeta, LinkState, Medium, Port, TxFrame};

use super::{comes_true, link_becomes};

/// Two hosts, each with the sysctls that these tests need.
fn hosts(test: &str, links: usize) -> Option<Hosts> {
    let hosts = Hosts::new(test, links);
    if hosts.is_none() {
        eprintln!("skipped: no permission to make network namespaces, or no `ip`");
    }
    hosts
}

fn open(hosts: &Hosts, side: usize, config: &UdpConfig) -> Result<UdpPort, UdpError> {
    within(hosts.name(side), || UdpPort::open(config))
}

/// Opens ports at both sides, each with the other for its peer.
fn pair(hosts: &Hosts, addresses: [&str; 2]) -> [UdpPort; 2] {
    [0, 1].map(|side| open(hosts, side, &config(addresses[side], Some(addresses[1 - side]))).unwrap())
}

fn config(local: &str, peer: Option<&str>) -> UdpConfig {
    UdpConfig {
        local: local.parse().unwrap(),
        peer: peer.map(|peer| peer.parse().unwrap()),
        source_ports: SourcePorts::Count(2),
        ..UdpConfig::default()
    }
}

/// Sends datagrams of this many IP bytes, a few in one burst, and waits for all of them.
fn passes(from: &mut UdpPort, to: &mut UdpPort, ip_len: usize) -> bool {
    const FRAMES: usize = 4;
    let peer: IpAddr = to.caps().local_ip;
    let meta = DatagramMeta {
        src: from.caps().local_ip,
        dst: peer,
        src_port: from.caps().source_ports.as_ref().unwrap()[0],
        dst_port: to.port(),
        flow_label: 0,
        traffic_class: 0,
        hop_limit: 64,
    };
    let payload = vec![7; ip_len - 8 - if peer.is_ipv4() { 20 } else { 40 }];
    let mut bytes = [0; 62];
    let len = head(&meta, payload.len(), &mut bytes);
    let frame = TxFrame {
        head: &bytes[..len],
        udp_payload_at: len,
        payload: (&payload[..]).into(),
        tail: (&[]).into(),
        ticket: 0,
    };
    assert_eq!(from.tx_burst(0, &[frame; FRAMES]), FRAMES);
    let mut seen = 0;
    for _ in 0..3_000_000 {
        to.rx_burst(0, 64, &mut |frame| {
            assert_eq!(frame.data, payload);
            seen += 1;
        });
        if seen == FRAMES {
            return true;
        }
        if from.counters().tx_dropped > 0 {
            break;
        }
    }
    false
}

fn mtu(port: &UdpPort) -> usize {
    port.caps().max_frame - 14
}

/// BGP to the host: the address is on `lo`, and two NICs lead to the peer.
#[test]
fn an_address_on_lo_has_the_mtu_and_medium_of_the_way_to_the_peer() {
    let Some(hosts) = hosts("lo", 2) else { return };
    for (side, other) in [(0, 1), (1, 0)] {
        hosts.ip(side, &format!("address add 10.9.9.{side}/32 dev lo"));
        for n in 0..2 {
            hosts.ip(side, &format!("address add 10.0.{n}.{}/24 dev n{n}", side + 1));
        }
        let hops = (0..2).map(|n| format!("nexthop via 10.0.{n}.{} dev n{n}", other + 1));
        hosts.ip(side, &format!("route add 10.9.9.{other}/32 {}", hops.collect::<Vec<_>>().join(" ")));
    }
    let [mut a, mut b] = pair(&hosts, ["10.9.9.0", "10.9.9.1"]);
    let network = Medium::Network { rate_bps: None };
    assert_eq!((mtu(&a), a.caps().medium), (1500, network));
    assert!(passes(&mut a, &mut b, 1500), "{:?}", a.counters());
    // For any peer: a network too, and the least MTU that packets may meet.
    hosts.ip(0, "link set n1 mtu 1400");
    let any = open(&hosts, 0, &UdpConfig { port: 0, ..config("10.9.9.0", None) }).unwrap();
    assert_eq!((mtu(&any), any.caps().medium), (1400, network));
    assert!(any.caps().notes.iter().any(|note| note.contains("10.9.9.0 is on lo")), "{:?}", any.caps());
    // Towards itself it is another matter.
    let own = open(&hosts, 0, &UdpConfig { port: 0, ..config("10.9.9.0", Some("10.9.9.0")) }).unwrap();
    assert_eq!(own.caps().medium, Medium::Host);
}

/// A tunnel, a VPN, or what an administrator knows of switches beyond.
#[test]
fn the_mtu_is_that_of_the_path() {
    let Some(hosts) = hosts("mtu", 1) else { return };
    hosts.both(["address add 10.0.0.1/24 dev n0", "address add 10.0.0.2/24 dev n0"]);
    hosts.both(["address add fd00::1/64 dev n0 nodad", "address add fd00::2/64 dev n0 nodad"]);
    hosts.ip(0, "route add 10.0.0.2/32 dev n0 mtu 1300");
    hosts.ip(0, "-6 route add fd00::2/128 dev n0 mtu 1320");
    for (addresses, limit) in [(["10.0.0.1", "10.0.0.2"], 1300), (["fd00::1", "fd00::2"], 1320)] {
        let [mut a, mut b] = pair(&hosts, addresses);
        assert_eq!((mtu(&a), mtu(&b)), (limit, 1500));
        let note = format!("the path to {} takes {limit} bytes, and the MTU of n0 is 1500", addresses[1]);
        assert_eq!(a.caps().notes.iter().filter(|had| **had == note).count(), 1, "{:?}", a.caps().notes);
        assert!(!b.caps().notes.iter().any(|note| note.contains("path")), "{:?}", b.caps().notes);
        assert!(passes(&mut a, &mut b, limit) && a.uses_gso(), "{:?}", a.counters());
        assert_eq!((a.counters().tx_fragmented, a.counters().tx_oversize), (0, 0));
        let too_long =
            UdpConfig { port: 0, mtu: Some(limit + 1), ..config(addresses[0], Some(addresses[1])) };
        let error = open(&hosts, 0, &too_long).err().unwrap().to_string();
        assert!(error.contains(&format!("{limit}, the MTU of the path to {}", addresses[1])), "{error}");
    }
    // Of this host's own addresses too.
    hosts.ip(0, "route replace local 127.0.0.1 dev lo table local mtu 1300");
    let lo = open(&hosts, 0, &config("127.0.0.1", Some("127.0.0.1"))).unwrap();
    assert_eq!((mtu(&lo), lo.caps().medium), (1300, Medium::Host));
}

/// Packets that have numbers cannot be cut anew, so they go in fragments; and whole again when they fit.
#[test]
fn a_path_that_shrinks_during_a_run_is_followed() {
    let Some(hosts) = hosts("shrink", 1) else { return };
    hosts.both(["address add 10.0.0.1/24 dev n0", "address add 10.0.0.2/24 dev n0"]);
    hosts.both(["address add fd00::1/64 dev n0 nodad", "address add fd00::2/64 dev n0 nodad"]);
    for (addresses, route) in [
        (["10.0.0.1", "10.0.0.2"], "route replace 10.0.0.2/32 dev n0"),
        (["fd00::1", "fd00::2"], "-6 route replace fd00::2/128 dev n0"),
    ] {
        let [mut a, mut b] = pair(&hosts, addresses);
        assert!(passes(&mut a, &mut b, 1500));
        let comes = |port: &mut UdpPort, text: &str| {
            comes_true(|| {
                port.link();
                port.caps().notes.last().unwrap().contains(text)
            })
        };
        for (limit, fragmented) in [(1400, 4), (1300, 8)] {
            hosts.ip(0, &format!("{route} mtu {limit}"));
            assert!(passes(&mut a, &mut b, 1500), "{:?} {:?}", a.counters(), a.caps().notes);
            assert!(
                comes(&mut a, &format!("{} has come to take {limit} bytes", addresses[1])),
                "{:?}",
                a.caps()
            );
            assert_eq!((a.counters().tx_fragmented, a.counters().tx_dropped), (fragmented, 0));
            assert!(passes(&mut a, &mut b, limit) && a.uses_gso(), "what fits goes as ever: {:?}", a.caps());
            assert_eq!(a.counters().tx_fragmented, fragmented);
        }
        // Nobody has looked yet.
        hosts.ip(0, &format!("{route} mtu 1280"));
        assert!(passes(&mut a, &mut b, 1300) && a.uses_gso(), "{:?}", a.caps());
        assert!(a.caps().notes.last().unwrap().contains("1280 bytes"), "{:?}", a.caps());
        assert_eq!(a.counters().tx_fragmented, 12);
        hosts.ip(0, &format!("{route} mtu 1500"));
        assert!(comes(&mut a, "takes 1500 bytes again"), "{:?}", a.caps().notes);
        assert!(passes(&mut a, &mut b, 1500) && a.uses_gso());
        assert_eq!(a.counters().tx_fragmented, 12);
    }
}

/// The routing table and ARP prefer the first of two.
#[test]
fn two_nics_in_one_subnet_carry_what_is_theirs() {
    let Some(hosts) = hosts("subnet", 2) else { return };
    for side in 0..2 {
        for n in 0..2 {
            hosts.ip(side, &format!("address add 10.0.0.{}{n}/24 dev n{n}", side + 1));
            hosts.sysctl(side, &format!("ipv4/conf/n{n}/arp_ignore"), "1");
        }
    }
    for n in [1, 0] {
        let [mut a, mut b] = pair(&hosts, [&format!("10.0.0.1{n}"), &format!("10.0.0.2{n}")]);
        let before = [0, 1].map(|n| hosts.sent(0, &format!("n{n}")));
        for _ in 0..10 {
            assert!(passes(&mut a, &mut b, 1500));
        }
        let sent = [0, 1].map(|at| hosts.sent(0, &format!("n{at}")) - before[at]);
        assert!(sent[n] >= 55_000 && sent[1 - n] < 2_000, "by n{n}: {sent:?}");
        assert!(!a.caps().notes.iter().any(|note| note.contains("bound")), "{:?}", a.caps().notes);
    }
    // Without a route by the interface of the address, the one that there is.
    hosts.both(["address add 10.7.0.1/32 dev n1", "route add 10.7.0.1/32 via 10.0.0.10"]);
    let port = open(&hosts, 0, &config("10.7.0.1", Some("192.0.2.1"))).err().unwrap();
    assert!(matches!(port, UdpError::NoRoute { .. }) && port.to_string().contains("192.0.2.1"), "{port}");
    hosts.both(["route add 10.8.0.0/24 via 10.0.0.20 dev n0", "address add 10.8.0.1/32 dev lo"]);
    let route = within(hosts.name(0), || {
        let local = local_address([10, 7, 0, 1].into(), None).unwrap().unwrap();
        local.route_to([10, 8, 0, 1].into()).unwrap().unwrap()
    });
    assert_eq!((&route.interface.name[..], route.bind), ("n0", false));
    let [mut a, mut b] = pair(&hosts, ["10.7.0.1", "10.8.0.1"]);
    assert!(passes(&mut a, &mut b, 1500));
}

#[test]
fn no_other_host_can_reply_to_a_loopback_address() {
    let Some(hosts) = hosts("lopeer", 1) else { return };
    hosts.both(["address add 10.0.0.1/24 dev n0", "address add 10.0.0.2/24 dev n0"]);
    hosts.both(["address add fd00::1/64 dev n0 nodad", "address add fd00::2/64 dev n0 nodad"]);
    for (local, peer) in [("127.0.0.1", "10.0.0.2"), ("::1", "fd00::2")] {
        let error = open(&hosts, 0, &config(local, Some(peer))).err().unwrap().to_string();
        assert!(error.contains(&format!("no route leads from {local} to the peer {peer}")), "{error}");
    }
    for peer in ["127.0.0.5", "10.0.0.1"] {
        let own = open(&hosts, 0, &config("127.0.0.1", Some(peer))).unwrap();
        assert_eq!(own.caps().medium, Medium::Host);
    }
}

#[test]
fn a_renamed_interface_keeps_its_port() {
    let Some(hosts) = hosts("rename", 1) else { return };
    hosts.both(["address add 10.0.0.1/24 dev n0", "address add 10.0.0.2/24 dev n0"]);
    let [mut a, mut b] = pair(&hosts, ["10.0.0.1", "10.0.0.2"]);
    assert!(link_becomes(&mut a, LinkState::Up));
    // Up to Linux 6.1 only what is down can be renamed.
    hosts.ip(0, "link set n0 down");
    assert!(link_becomes(&mut a, LinkState::Down));
    hosts.ip(0, "link set n0 name fast0");
    hosts.ip(0, "link set fast0 up");
    assert!(link_becomes(&mut a, LinkState::Up), "under its new name");
    assert!(passes(&mut a, &mut b, 1500), "{:?}", a.counters());
    hosts.ip(0, "link del fast0");
    assert!(link_becomes(&mut a, LinkState::Down));
}

/// Two interfaces may have the same one.
#[test]
fn link_local_addresses_are_of_an_interface() {
    let Some(hosts) = hosts("zone", 2) else { return };
    for side in 0..2 {
        for n in 0..2 {
            hosts.ip(side, &format!("address add fe80::{}/64 dev n{n} nodad", side + 1));
        }
    }
    for n in [1, 0] {
        let interface = Some(format!("n{n}"));
        let on = |local, peer| UdpConfig { interface: interface.clone(), ..config(local, Some(peer)) };
        let mut a = open(&hosts, 0, &on("fe80::1", "fe80::2")).unwrap();
        let mut b = open(&hosts, 1, &on("fe80::2", "fe80::1")).unwrap();
        let before = hosts.sent(0, &format!("n{n}"));
        assert!(passes(&mut a, &mut b, 1500), "{:?}", a.counters());
        assert!(hosts.sent(0, &format!("n{n}")) - before >= 5_500);
        assert!(a.caps().name.ends_with(&format!("on n{n}")), "{}", a.caps().name);
    }
    let config = UdpConfig { interface: Some("lo".to_owned()), ..config("fe80::1", None) };
    let error = open(&hosts, 0, &config).err().unwrap().to_string();
    assert!(error.contains("interface lo does not have the address fe80::1"), "{error}");
    assert!(error.contains("fe80::1 (n1)"), "{error}");
}

#[test]
fn addresses_that_are_not_ready_are_told_as_that() {
    let Some(hosts) = hosts("dad", 1) else { return };
    // As long as it takes.
    for (name, value) in [("accept_dad", "1"), ("dad_transmits", "100")] {
        hosts.sysctl(0, &format!("ipv6/conf/n0/{name}"), value);
    }
    hosts.both(["address add fd00::1/64 dev n0", "address add fd00::2/64 dev n0 nodad"]);
    let error = open(&hosts, 0, &config("fd00::1", None)).err().unwrap();
    assert!(matches!(error, UdpError::NotReady(NotReady::Tentative { .. })), "{error}");
    assert!(error.to_string().contains("fd00::1 on n0 is tentative"), "{error}");
    hosts.sysctl(0, "ipv6/conf/n0/dad_transmits", "1");
    hosts.ip(0, "address add fd00::2/64 dev n0");
    let duplicate = |hosts: &Hosts| {
        let state =
            within(hosts.name(0), || local_address("fd00::2".parse().unwrap(), None)).unwrap().unwrap().state;
        state == spindrift_pmd::netlink::AddressState::Duplicate
    };
    assert!(comes_true(|| duplicate(&hosts)), "the kernel finds the other host");
    let error = open(&hosts, 0, &config("fd00::2", None)).err().unwrap();
    assert!(matches!(error, UdpError::NotReady(NotReady::Duplicate { .. })), "{error}");
    assert!(error.to_string().contains("another host on this link has it"), "{error}");
}

/// A namespace has ephemeral ports of its own.
#[test]
fn no_free_port_is_told_as_that() {
    let Some(hosts) = hosts("ephemeral", 0) else { return };
    hosts.sysctl(0, "ipv4/ip_local_port_range", "50000 50003");
    let config = UdpConfig { source_ports: SourcePorts::Count(16), ..config("127.0.0.1", None) };
    let error = open(&hosts, 0, &config).err().unwrap();
    assert!(matches!(error, UdpError::NoFreePort { .. }), "{error}");
}
