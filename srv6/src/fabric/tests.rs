use super::walk::header;
use super::*;
use crate::Dropped;

fn host(name: &str, t0: u16, downlink: u16) -> FabricHost {
    FabricHost { name: name.to_owned(), t0, downlink }
}

/// Hosts of three T0 switches, two of them at one.
fn fabric(planes: u8, t1: u16) -> Fabric {
    let hosts = vec![host("a", 0, 0), host("b", 2, 7), host("c", 2, 0), host("d", 1, 511)];
    Fabric::new(Shape { planes, t0: 3, t1, ..Shape::default() }, hosts).unwrap()
}

#[test]
fn every_path_of_every_plane_leads_over_its_own_switch_to_the_right_host() {
    for (planes, t1) in [(1, 1), (2, 5), (4, 8)] {
        let fabric = fabric(planes, t1);
        let mut walker = fabric.walker();
        for (from, to) in (0..4).flat_map(|from| (0..4).map(move |to| (from, to))) {
            for plane in 0..planes {
                let t0 = |host: u16| Node::T0 { plane, number: fabric.hosts()[usize::from(host)].t0 };
                let paths = fabric.paths(from, to, plane).unwrap();
                let near = t0(from) == t0(to);
                assert_eq!(paths.count(), if near { 1 } else { t1.into() });
                for number in 0..paths.count() {
                    let walk = walker.walk(from, to, plane, paths.nth(number).unwrap()).unwrap();
                    let up = Node::T1 { plane, number: number as u16 };
                    let between = if near { vec![t0(from)] } else { vec![t0(from), up, t0(to)] };
                    let nodes: Vec<_> = walk.hops.iter().map(|hop| hop.node).collect();
                    assert_eq!(nodes, [vec![Node::Host(from)], between, vec![Node::Host(to)]].concat());
                    assert_eq!(walk.end, End::Delivered(fabric.address(to, plane).unwrap()));
                    for link in fabric.links() {
                        let crossed =
                            nodes.windows(2).any(|pair| fabric.link(pair[0], pair[1]) == Some(link));
                        assert_eq!(walk.crosses(link), crossed, "{link:?}");
                    }
                }
            }
        }
    }
}

/// The bits that docs/cli.md tells of.
#[test]
fn uses_the_usids_of_the_scheme_and_shifts_them() {
    let fabric = fabric(2, 5);
    let walk = fabric.walker().walk(0, 1, 1, 0x8000_0000).unwrap();
    let destinations: Vec<_> = walk.hops.iter().map(|hop| hop.destination.to_string()).collect();
    let expected = [
        "fcbb:bb00:4200:8204:4202:c207::",
        "fcbb:bb00:8204:4202:c207::",
        "fcbb:bb00:4202:c207::",
        "fcbb:bb00:c207::",
        "fcbb:bb00:c207::",
    ];
    assert_eq!(destinations, expected);
    assert_eq!(fabric.address(1, 1).unwrap().to_string(), "fd5d:7072:0:2::1:8");
    assert_eq!(fabric.subnet(2).to_string(), "fd5d:7072:0:2::/64");
    assert_eq!(fabric.first_segment(1, 1).unwrap().to_string(), "fcbb:bb00:4202::");
    // Three bits for five switches: the others are none.
    let paths = fabric.paths(0, 1, 1).unwrap();
    assert_eq!((paths.bits(), paths.nth(4), paths.check(0xa000_0000).is_err()), (3, Some(0x8000_0000), true));
}

#[test]
fn plain_packets_spread_over_the_upper_switches() {
    let fabric = fabric(2, 4);
    let mut walker = fabric.walker();
    let mut over = BTreeSet::new();
    for flow in 0..64 {
        let (from, to) = (fabric.address(0, 1).unwrap(), fabric.address(1, 1).unwrap());
        let mut packet = header(from, to, 59, 0);
        packet[3] = flow;
        let walk = walker.send(0, 1, &mut packet).unwrap();
        assert_eq!(walk.end, End::Delivered(to));
        over.insert(walk.hops[2].node);
    }
    assert_eq!(
        over.into_iter().collect::<Vec<_>>(),
        (0..4).map(|n| Node::T1 { plane: 1, number: n }).collect::<Vec<_>>()
    );
    // The planes are apart, and each knows its own ports of the hosts.
    let to = fabric.address(1, 1).unwrap();
    let walk = walker.send(0, 0, &mut header(fabric.address(0, 1).unwrap(), to, 59, 0)).unwrap();
    assert_eq!((walk.hops.len(), walk.end), (4, End::Dropped(Dropped::NoRoute(to))));
}

#[test]
fn what_no_table_knows_is_dropped_where_it_is_seen() {
    let fabric = fabric(2, 4);
    let mut walker = fabric.walker();
    // The host takes the outer packet off, and the inner one is not for it.
    let outside = Ipv6Addr::LOCALHOST;
    let path = fabric.paths(0, 1, 0).unwrap().expand(0).destination();
    let mut packet = [header(outside, path, 41, 40), header(outside, outside, 59, 0)].concat();
    let walk = walker.send(0, 0, &mut packet).unwrap();
    assert_eq!((walk.hops.len(), walk.end), (5, End::Dropped(Dropped::NoRoute(outside))));
    // A switch of another plane.
    let other = fabric.paths(0, 1, 1).unwrap().expand(0).destination();
    let mut packet = [header(outside, other, 41, 40), header(outside, outside, 59, 0)].concat();
    let walk = walker.send(0, 0, &mut packet).unwrap();
    assert_eq!((walk.hops.len(), walk.end), (2, End::Dropped(Dropped::NoRoute(other))));
    assert_eq!(walk.hops[1], Hop { node: Node::T0 { plane: 0, number: 0 }, destination: other });
}

#[test]
fn ports_are_found_by_their_addresses() {
    let fabric = fabric(3, 2);
    for port in (0..4).flat_map(|host| (0..3).map(move |plane| (host, plane))) {
        let address = fabric.address(port.0, port.1).unwrap();
        assert_eq!(fabric.port_of(address), Some(port));
        let bits = address.to_bits();
        for other in [bits ^ 1, bits ^ 1 << 18, bits ^ 1 << 40, bits ^ 1 << 70, bits ^ 1 << 81] {
            let found = fabric.port_of(Ipv6Addr::from_bits(other));
            assert!(
                found.is_none_or(|(host, plane)| fabric.address(host, plane).unwrap().to_bits() == other)
            );
        }
    }
    // Beyond the planes, the downlinks, and the T0 switches that there are.
    for nobody in
        ["fd5d:7072::3:1", "fd5d:7072::2", "fd5d:7072:0:3::1", "fd5d:7073::1", "fd5d:7072::1:0:0:1", "::1"]
    {
        assert_eq!(fabric.port_of(nobody.parse().unwrap()), None, "{nobody}");
    }
}

#[test]
fn who_is_not_there_has_no_path() {
    let fabric = fabric(2, 4);
    let mut walker = fabric.walker();
    for (from, to, plane) in [(4, 0, 0), (0, 4, 0), (0, 1, 2)] {
        assert_eq!(fabric.paths(from, to, plane), None);
        assert_eq!(walker.walk(from, to, plane, 0), None);
    }
    assert_eq!((walker.send(4, 0, &mut []), walker.send(0, 2, &mut [])), (None, None));
    assert_eq!((fabric.address(4, 0), fabric.address(0, 2)), (None, None));
    assert_eq!((fabric.first_segment(4, 0), fabric.first_segment(0, 2)), (None, None));
    assert_eq!(walker.send(0, 0, &mut []).unwrap().end, End::Dropped(Dropped::NotIpv6));
}

#[test]
fn names_are_found_again() {
    let fabric = fabric(2, 4);
    let nodes: Vec<_> = fabric.nodes().collect();
    assert_eq!(nodes.len(), 4 + 2 * (3 + 4));
    for &node in &nodes {
        assert_eq!(fabric.node(&fabric.name(node)), Some(node));
    }
    for name in
        ["p2-t0-0", "p0-t0-3", "p0-t1-4", "p0-t2-0", "p00-t0-0", "p0-t0-+1", "p0-t0-", "e", "", "host 0"]
    {
        assert_eq!(fabric.node(name), None, "{name}");
    }
    assert_eq!(fabric.links().count(), 2 * (4 + 3 * 4));
    for (a, b) in fabric.links() {
        assert_eq!((fabric.link(a, b), fabric.link(b, a)), (Some((a, b)), Some((a, b))));
    }
    let (a, switch) = (fabric.node("a").unwrap(), |name| fabric.node(name).unwrap());
    assert_eq!(fabric.link(a, switch("p0-t0-1")), None);
    assert_eq!(fabric.link(switch("p0-t0-0"), switch("p1-t1-0")), None);
}

/// The largest one: each number fits its bits, and no entry is in a table twice.
#[test]
fn the_largest_fabric_has_a_usid_for_everything() {
    let hosts = vec![host("first", 0, 0), host("last", 511, 511), host("near", 511, 0)];
    let fabric = Fabric::new(Shape { planes: 32, t0: 512, t1: 512, ..Shape::default() }, hosts).unwrap();
    let mut walker = fabric.walker();
    let walk = walker.walk(0, 1, 31, u32::MAX << 23).unwrap();
    assert_eq!(walk.end, End::Delivered(fabric.address(1, 31).unwrap()));
    assert_eq!(walk.hops[0].destination.to_string(), "fcbb:bb00:7e00:bfff:7fff:ffff::");
    assert_eq!(fabric.name(walk.hops[2].node), "p31-t1-511");
    assert_eq!(fabric.address(1, 31).unwrap().to_string(), "fd5d:7072:0:1ff::1f:200");
}

#[test]
fn errors_name_what_is_wrong() {
    let text = |shape: Shape, hosts: Vec<FabricHost>| Fabric::new(shape, hosts).unwrap_err().to_string();
    let good = Shape { planes: 2, t0: 3, t1: 4, ..Shape::default() };
    let one = || vec![host("a", 0, 0)];
    let net = |text: &str| text.parse::<Ipv6Net>().unwrap();
    for (shape, part) in [
        (Shape { planes: 0, ..good }, "planes = 0: must be 1 to 32"),
        (Shape { planes: 33, ..good }, "planes = 33"),
        (Shape { t0: 0, ..good }, "t0 = 0: must be 1 to 512"),
        (Shape { t0: 513, ..good }, "t0 = 513"),
        (Shape { t1: 513, ..good }, "t1 = 513: must be 0 to 512"),
        (Shape { t1: 0, ..good }, "3 T0 switches need T1 switches"),
        (Shape { block: net("fcbb::/16"), ..good }, "block = fcbb::/16: a block has 32 bits"),
        (Shape { block: net("fcbb:bb00::1/32"), ..good }, "block = fcbb:bb00::1/32: there are bits behind"),
        (Shape { prefix: net("fd00::/49"), ..good }, "prefix = fd00::/49: at most 48 bits"),
        (Shape { prefix: net("fd00::1/48"), ..good }, "prefix = fd00::1/48: there are bits behind"),
        (Shape { prefix: net("fcbb:bb00:1::/48"), ..good }, "overlaps the block"),
        (Shape { prefix: net("fc00::/7"), ..good }, "overlaps the block"),
    ] {
        assert!(text(shape, one()).contains(part), "{}", text(shape, one()));
    }
    assert!(Fabric::new(Shape { prefix: net("2001:db8::/32"), ..good }, one()).is_ok());
    assert!(Fabric::new(Shape { t0: 1, t1: 0, ..good }, one()).is_ok());
    let long = "x".repeat(64);
    for (hosts, part) in [
        (vec![], "there are no hosts"),
        (vec![host("", 0, 0)], "name of host \"\": a name has"),
        (vec![host(&long, 0, 0)], "a name has 1 to 63"),
        (vec![host("a b", 0, 0)], "a name has"),
        (vec![host("p7-t1-9", 0, 0)], "switches have names of this form"),
        (vec![host("a", 0, 0), host("a", 0, 1)], "another host has the same name"),
        (vec![host("a", 3, 0)], "t0 of host \"a\": there is no T0 switch 3, the last one is 2"),
        (vec![host("a", 0, 512)], "downlink of host \"a\": 512 is more than 511"),
        (
            vec![host("a", 1, 4), host("b", 1, 4)],
            "downlink of host \"b\": port 4 of T0 switch 1 is taken by \"a\"",
        ),
        (vec![host("a", 0, 0); 65_536], "65536 hosts given: at most 65535"),
    ] {
        assert!(text(good, hosts.clone()).contains(part), "{}", text(good, hosts));
    }
    assert!(Fabric::new(good, vec![host(&long[1..], 0, 0), host("a.b_c-D", 0, 1)]).is_ok());
}
