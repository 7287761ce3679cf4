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

fn nodes(walk: &Walk) -> Vec<Node> {
    walk.hops.iter().map(|hop| hop.node).collect()
}

/// The destination address at each hop, as text.
fn destinations(walk: &Walk) -> Vec<String> {
    walk.hops.iter().map(|hop| hop.destination.to_string()).collect()
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
                    let nodes = nodes(&walk);
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

/// Six T0 switches in as many pods as given, two hosts at each: those of one differ in their port there.
fn pods(pods: u16, t1: u16, t2: u16) -> Fabric {
    let hosts = (0..12).map(|at| host(&format!("h{at}"), at / 2, at % 2 * 300)).collect();
    Fabric::new(Shape { planes: 2, t0: 6, t1, pods, t2, ..Shape::default() }, hosts).unwrap()
}

fn pairs(fabric: &Fabric) -> impl Iterator<Item = (u16, u16)> + use<> {
    let hosts = fabric.hosts().len() as u16;
    (0..hosts).flat_map(move |from| (0..hosts).map(move |to| (from, to)))
}

#[test]
fn paths_between_pods_lead_over_every_switch_of_the_third_tier_to_the_right_host() {
    for (count, t1, t2) in [(2, 1, 1), (3, 3, 2), (6, 2, 5)] {
        let fabric = pods(count, t1, t2);
        let pod = |host: u16| host / 2 / (6 / count);
        let mut walker = fabric.walker();
        for (from, to) in pairs(&fabric) {
            for plane in 0..2 {
                let t0 = |host: u16| Node::T0 { plane, number: host / 2 };
                let t1_of = |host, uplink: u16| Node::T1 { plane, number: pod(host) * t1 + uplink };
                let paths = fabric.paths(from, to, plane).unwrap();
                let mut expected = Vec::new();
                for uplink in 0..t1 {
                    let (up, down) = (t1_of(from, uplink), t1_of(to, uplink));
                    let tops = (0..t2).map(|top| Node::T2 { plane, number: uplink * t2 + top });
                    if pod(from) == pod(to) {
                        expected.push(vec![t0(from), up, t0(to)]);
                    } else {
                        expected.extend(tops.map(|top| vec![t0(from), up, top, down, t0(to)]));
                    }
                }
                if t0(from) == t0(to) {
                    expected = vec![vec![t0(from)]];
                }
                let walks = (0..paths.count()).map(|number| {
                    let walk = walker.walk(from, to, plane, paths.nth(number).unwrap()).unwrap();
                    assert_eq!(walk.end, End::Delivered(fabric.address(to, plane).unwrap()));
                    let nodes = nodes(&walk);
                    assert!(
                        nodes.windows(2).all(|pair| fabric.link(pair[0], pair[1]).is_some()),
                        "{nodes:?}"
                    );
                    nodes[1..nodes.len() - 1].to_vec()
                });
                assert_eq!(walks.collect::<Vec<_>>(), expected, "{from} to {to}");
            }
        }
    }
}

#[test]
fn plain_packets_between_pods_spread_over_the_third_tier_and_take_no_detour() {
    let fabric = pods(3, 2, 3);
    let mut walker = fabric.walker();
    let (mut tops, mut uplinks) = (BTreeSet::new(), BTreeSet::new());
    for (from, to) in pairs(&fabric).filter(|(from, to)| from != to) {
        for flow in 0..24 {
            let (here, there) = (fabric.address(from, 1).unwrap(), fabric.address(to, 1).unwrap());
            let mut packet = header(here, there, 59, 0);
            packet[3] = flow;
            let walk = walker.send(from, 1, &mut packet).unwrap();
            assert_eq!(walk.end, End::Delivered(there));
            let hops = match (from / 2 == to / 2, from / 4 == to / 4) {
                (true, _) => 3,
                (_, true) => 5,
                _ => 7,
            };
            assert_eq!(walk.hops.len(), hops, "{from} to {to}");
            tops.extend(walk.hops.iter().map(|hop| hop.node).filter(|node| matches!(node, Node::T2 { .. })));
            if from == 0 {
                uplinks.insert(walk.hops[2].node);
            }
        }
    }
    assert_eq!(tops, (0..6).map(|number| Node::T2 { plane: 1, number }).collect());
    assert!(uplinks.is_superset(&(0..2).map(|number| Node::T1 { plane: 1, number }).collect()));
}

/// The bits that docs/cli.md tells of.
#[test]
fn uses_the_usids_of_the_third_tier() {
    let fabric = pods(3, 3, 5);
    // The last uplink of the T0 switch, and the last but one of the T1 switch.
    let walk = fabric.walker().walk(0, 11, 1, 0b10_011 << 27).unwrap();
    let expected = [
        "fcbb:bb00:4200:8202:303:4205:c32c:0",
        "fcbb:bb00:8202:303:4205:c32c::",
        "fcbb:bb00:303:4205:c32c::",
        "fcbb:bb00:4205:c32c::",
        "fcbb:bb00:4205:c32c::",
        "fcbb:bb00:c32c::",
        "fcbb:bb00:c32c::",
    ];
    assert_eq!(destinations(&walk), expected);
    let names: Vec<_> = walk.hops.iter().map(|hop| fabric.name(hop.node)).collect();
    assert_eq!(names, ["h0", "p1-t0-0", "p1-t1-2", "p1-t2-13", "p1-t1-8", "p1-t0-5", "h11"]);
    let nodes: Vec<_> = fabric.nodes().collect();
    assert_eq!(nodes.len(), 12 + 2 * (6 + 9 + 15));
    for &node in &nodes {
        assert_eq!(fabric.node(&fabric.name(node)), Some(node));
    }
    for name in ["p0-t1-9", "p0-t2-15", "p2-t2-0"] {
        assert_eq!(fabric.node(name), None, "{name}");
    }
    assert_eq!(fabric.links().count(), 2 * (12 + 6 * 3 + 9 * 5));
    assert_eq!(nodes.iter().map(|node| node.plane()).max(), Some(Some(1)));
    // Who is not there does nothing.
    assert_eq!(fabric.tables(Node::T2 { plane: 0, number: 15 }), Tables::default());
    assert_eq!(self::fabric(1, 2).tables(Node::T2 { plane: 0, number: 0 }), Tables::default());
    let shape = fabric.shape();
    assert_eq!((shape.tiers(), [0, 1, 2, 3].map(|tier| shape.of_tier(tier))), (3, [6, 9, 15, 0]));
}

#[test]
fn two_switches_may_be_joined_to_each_other() {
    let hosts = vec![host("a", 0, 0), host("b", 1, 0), host("c", 1, 1)];
    let fabric = Fabric::new(Shape { planes: 2, t0: 2, t1: 0, ..Shape::default() }, hosts).unwrap();
    assert_eq!((fabric.links().count(), fabric.shape().tiers()), (2 * (3 + 1), 1));
    let mut walker = fabric.walker();
    for (from, to) in pairs(&fabric) {
        let address = |host| fabric.address(host, 1).unwrap();
        assert_eq!(fabric.paths(from, to, 1).unwrap().count(), 1);
        let routed = walker.walk(from, to, 1, 0).unwrap();
        let plain = walker.send(from, 1, &mut header(address(from), address(to), 59, 0)).unwrap();
        let number = |host: u16| fabric.hosts()[usize::from(host)].t0;
        let mut expected = vec![Node::T0 { plane: 1, number: number(from) }];
        expected.extend((number(from) != number(to)).then(|| Node::T0 { plane: 1, number: number(to) }));
        for walk in [routed, plain] {
            assert_eq!(walk.end, End::Delivered(address(to)));
            let nodes = nodes(&walk);
            assert_eq!(nodes[1..nodes.len() - 1], expected);
        }
    }
}

/// The bits that docs/cli.md tells of.
#[test]
fn uses_the_usids_of_the_scheme_and_shifts_them() {
    let fabric = fabric(2, 5);
    let walk = fabric.walker().walk(0, 1, 1, 0x8000_0000).unwrap();
    let expected = [
        "fcbb:bb00:4200:8204:4202:c207::",
        "fcbb:bb00:8204:4202:c207::",
        "fcbb:bb00:4202:c207::",
        "fcbb:bb00:c207::",
        "fcbb:bb00:c207::",
    ];
    assert_eq!(destinations(&walk), expected);
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

/// A node's uSID is that of its own table, and its uplinks are the links that start there.
#[test]
fn segments_and_uplinks_are_those_of_the_tables() {
    let place = |name: &str, t0| host(name, t0, 3);
    let two_tiers = fabric(2, 4);
    let shape = Shape { planes: 2, t0: 4, t1: 3, pods: 2, t2: 2, ..Shape::default() };
    let three_tiers = Fabric::new(shape, vec![place("a", 0), place("b", 3)]).unwrap();
    let shape = Shape { planes: 2, t0: 2, ..Shape::default() };
    let dumbbell = Fabric::new(shape, vec![place("a", 0), place("b", 1)]).unwrap();
    for fabric in [&two_tiers, &three_tiers, &dumbbell] {
        for node in fabric.nodes() {
            let planes = node.plane().map_or(0..fabric.shape().planes, |plane| plane..plane + 1);
            let own: Vec<_> = planes.clone().map(|plane| fabric.segment_of(node, plane).unwrap()).collect();
            let table: Vec<_> =
                fabric.tables(node).segments.into_iter().map(|(segment, _)| segment).collect();
            assert_eq!(own, table, "{node}");
            assert_eq!(fabric.segment_of(node, planes.end.max(2)), None);
            if let Some(plane) = node.plane() {
                assert_eq!(fabric.segment_of(node, 1 - plane), None, "{node}");
                let mut up: Vec<_> =
                    fabric.links().filter(|&(lower, _)| lower == node).map(|(_, upper)| upper).collect();
                if fabric == &dumbbell {
                    up = vec![Node::T0 { plane, number: u16::from(node == Node::T0 { plane, number: 0 }) }];
                }
                assert_eq!(fabric.uplinks(node).collect::<Vec<_>>(), up, "{node}");
            }
        }
        for nobody in [Node::Host(9), Node::T0 { plane: 0, number: 9 }, Node::T1 { plane: 2, number: 0 }] {
            assert_eq!((fabric.segment_of(nobody, 0), fabric.pod_of(nobody)), (None, None));
            assert_eq!(fabric.uplinks(nobody).count(), 0);
        }
    }
    let pods: Vec<_> = ["a", "b", "p0-t0-1", "p0-t0-2", "p1-t1-2", "p1-t1-3", "p0-t2-0"]
        .map(|name| three_tiers.pod_of(three_tiers.node(name).unwrap()))
        .into();
    assert_eq!(pods, [Some(0), Some(1), Some(0), Some(1), Some(0), Some(1), None]);
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
    // The same of one with a third tier.
    let hosts = vec![host("first", 0, 0), host("last", 511, 511)];
    let shape = Shape { planes: 32, t0: 512, t1: 255, pods: 256, t2: 256, ..Shape::default() };
    let fabric = Fabric::new(shape, hosts).unwrap();
    let mut walker = fabric.walker();
    let walk = walker.walk(0, 1, 31, 0xfeff << 16).unwrap();
    assert_eq!(walk.end, End::Delivered(fabric.address(1, 31).unwrap()));
    assert_eq!(walk.hops[0].destination.to_string(), "fcbb:bb00:7e00:befe:3fff:7fff:ffff:0");
    assert_eq!(fabric.name(walk.hops[3].node), "p31-t2-65279");
    assert_eq!(fabric.name(walk.hops[4].node), "p31-t1-65279");
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
        (Shape { pods: 0, ..good }, "pods = 0: must be 1 to 512"),
        (Shape { pods: 513, ..good }, "pods = 513"),
        (Shape { pods: 2, t2: 1, ..good }, "pods = 2: 3 T0 switches are not a multiple"),
        (Shape { pods: 6, t2: 1, ..good }, "pods = 6: 3 T0 switches are not a multiple"),
        (Shape { t2: 257, ..good }, "t2 = 257: must be 0 to 256"),
        (Shape { t2: 1, ..good }, "t2 = 1: T2 switches join pods, and there is one"),
        (Shape { pods: 3, ..good }, "t2 = 0: 3 pods need"),
        (Shape { t0: 2, pods: 2, t1: 0, t2: 1, ..good }, "t1 = 0: 2 pods need"),
        (
            Shape { t0: 256, pods: 256, t1: 256, t2: 1, ..good },
            "pods = 256: with t1 = 256, a plane has more than 65535 T1",
        ),
        (
            Shape { pods: 3, t1: 256, t2: 256, ..good },
            "t2 = 256: with t1 = 256, a plane has more than 65535 T2",
        ),
        (Shape { block: net("fcbb::/16"), ..good }, "block = fcbb::/16: a block has 32 bits"),
        (Shape { block: net("fcbb:bb00::1/32"), ..good }, "block = fcbb:bb00::1/32: there are bits behind"),
        (Shape { prefix: net("fd00::/49"), ..good }, "prefix = fd00::/49: at most 48 bits"),
        (Shape { prefix: net("fd00::1/48"), ..good }, "prefix = fd00::1/48: there are bits behind"),
        (Shape { prefix: net("fcbb:bb00:1::/48"), ..good }, "overlaps the block"),
        (Shape { block: net("fe80::/32"), ..good }, "block = fe80::/32: these are link-local addresses"),
        (Shape { prefix: net("febf:1:2::/48"), ..good }, "prefix = febf:1:2::/48: these are link-local"),
        (Shape { prefix: net("ff0e::/48"), ..good }, "prefix = ff0e::/48: these are multicast addresses"),
        (Shape { block: net("ffff:ffff::/32"), ..good }, "block = ffff:ffff::/32: these are multicast"),
        (Shape { block: net("ff:ffff::/32"), ..good }, "block = ff:ffff::/32: loopback and IPv4 addresses"),
        (Shape { prefix: net("fc00::/7"), ..good }, "overlaps the block"),
    ] {
        assert!(text(shape, one()).contains(part), "{}", text(shape, one()));
    }
    for prefix in ["2001:db8::/32", "::/48", "100::/48", "fe7f:ffff:ffff::/48", "fec0::/48", "feff::/48"] {
        let shape = Shape { prefix: net(prefix), ..good };
        assert_eq!(shape.is_on_loopback(), prefix == "::/48", "{prefix}");
        assert!(Fabric::new(shape, one()).is_ok(), "{prefix}");
    }
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
