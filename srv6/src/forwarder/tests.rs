use proptest::prelude::*;

use super::*;

const BLOCK: u32 = 0xfcbb_bb00;
const PAYLOAD: &[u8] = b"whatever comes behind";

fn carrier(usids: &[u16]) -> F3216 {
    F3216::new(BLOCK, usids).unwrap()
}

fn net(text: &str) -> Ipv6Net {
    text.parse().unwrap()
}

fn address(text: &str) -> Ipv6Addr {
    text.parse().unwrap()
}

/// A packet to `destination` that holds `next` and `rest`.
fn packet(destination: Ipv6Addr, next: u8, rest: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0x20, 0, 7, 0, rest.len() as u8, next, 64];
    packet.extend(address("fd00::1").octets());
    packet.extend(destination.octets());
    packet.extend(rest);
    packet
}

/// A packet inside another.
fn encapsulated(destination: Ipv6Addr) -> Vec<u8> {
    packet(destination, IPV6, &packet(address("fd00::2"), UDP, PAYLOAD))
}

/// A routing header with these segments, in the order of travel, of which `left` are still to come, around an inner packet.
fn routed(destination: Ipv6Addr, segments: &[Ipv6Addr], left: u8) -> Vec<u8> {
    let mut rest =
        vec![IPV6, 2 * segments.len() as u8, SEGMENT_ROUTING, left, segments.len() as u8 - 1, 0, 0, 0];
    segments.iter().rev().for_each(|segment| rest.extend(segment.octets()));
    rest.extend(packet(address("fd00::2"), UDP, PAYLOAD));
    packet(destination, ROUTING, &rest)
}

fn destination(packet: &[u8]) -> Ipv6Addr {
    <[u8; 16]>::try_from(&packet[24..40]).unwrap().into()
}

/// A switch with the uSID `usid` and a way to the switch `to` over port 1, and to all others over port 9.
fn switch(usid: u16, to: u16) -> Forwarder<u8> {
    let mut switch = Forwarder::default();
    switch.add_segment(carrier(&[usid]), Behavior::Node).unwrap();
    switch.add_route(carrier(&[to]).prefix(), [1]).unwrap();
    switch.add_route(net("::/0"), [9]).unwrap();
    switch
}

/// The path of the MRC paper, section 2.2: T0, T1, T0, and the host's own segment, which takes the outer packet off.
#[test]
fn a_packet_travels_along_its_path() {
    let mut packet = encapsulated(carrier(&[0xa01, 0xe001, 0x201, 0xb02]).address());
    let inner = packet[40..].to_vec();
    for (hop, (usid, next)) in (1..).zip([(0xa01, 0xe001), (0xe001, 0x201), (0x201, 0xb02)]) {
        assert_eq!(switch(usid, next).forward(&mut packet), Ok(Verdict::Forward(&1)));
        assert_eq!((packet[7], &packet[40..]), (64 - hop, &inner[..]));
        assert_eq!(
            destination(&packet),
            carrier(&[0xa01, 0xe001, 0x201, 0xb02][usize::from(hop)..]).address()
        );
    }
    let mut host = Forwarder::<u8>::default();
    host.add_segment(carrier(&[0xb02]), Behavior::Decapsulate).unwrap();
    host.add_own(address("fd00::2"));
    let arrived = packet.clone();
    assert_eq!(host.forward(&mut packet), Ok(Verdict::Inner(40)));
    assert_eq!(packet, arrived);
    assert_eq!(host.forward(&mut packet[40..]), Ok(Verdict::Deliver));
    assert_eq!(packet, arrived);
}

/// Whoever is not asked passes a packet on as it is; of several prefixes the longest counts.
#[test]
fn segments_of_others_are_only_routed() {
    let mut switch = switch(0xa01, 0xe001);
    switch.add_route(net("fcbb:bb00:b000::/36"), [2]).unwrap();
    switch.add_route(net("fcbb:bb00:b00b::/48"), [3]).unwrap();
    switch.add_route(net("fcbb:bb00:b00b:1::/64"), [4]).unwrap();
    for (to, port) in [
        ("fcbb:bb00:b00b:1:a01::", 4),
        ("fcbb:bb00:b00b:2:a01::", 3),
        ("fcbb:bb00:b00c::", 2),
        ("fcbb:bb00:c000::", 9),
        ("fcbb:bb01:a01:e001::", 9),
        ("fd00::2", 9),
    ] {
        let mut packet = encapsulated(address(to));
        assert_eq!(switch.forward(&mut packet), Ok(Verdict::Forward(&port)), "{to}");
        assert_eq!((destination(&packet), packet[7]), (address(to), 63));
    }
    let mut lost = Forwarder::<u8>::default();
    lost.add_route(net("fd00::/16"), [1]).unwrap();
    let to = address("fe00::1");
    assert_eq!(lost.forward(&mut encapsulated(to)), Err(Dropped::NoRoute(to)));
}

#[test]
fn a_links_segment_names_the_way_out() {
    let mut switch = switch(0xa01, 0xe001);
    switch.add_segment(carrier(&[0xe101]), Behavior::Adjacency(5)).unwrap();
    let mut packet = encapsulated(carrier(&[0xe101, 0xe001]).address());
    assert_eq!(switch.forward(&mut packet), Ok(Verdict::Forward(&5)), "not by its route");
    assert_eq!((destination(&packet), packet[7]), (carrier(&[0xe001]).address(), 63));
    // Behind the switch's own, in one hop.
    let mut packet = encapsulated(carrier(&[0xa01, 0xa01, 0xe101, 0xe001]).address());
    assert_eq!(switch.forward(&mut packet), Ok(Verdict::Forward(&5)));
    assert_eq!((destination(&packet), packet[7]), (carrier(&[0xe001]).address(), 63));
}

/// RFC 8986 section 4.1: the segment of the routing header that follows takes the place of a carrier that is used up.
#[test]
fn a_routing_header_continues_the_path() {
    let switch = switch(0xa01, 0xe001);
    let second = carrier(&[0xe001, 0x201]).address();
    let list = [carrier(&[0xa01]).address(), second];
    let mut packet = routed(list[0], &list, 1);
    let before = packet.clone();
    assert_eq!(switch.forward(&mut packet), Ok(Verdict::Forward(&1)));
    assert_eq!((destination(&packet), packet[43], packet[7]), (second, 0, 63));
    assert_eq!((&packet[44..], packet[..7].to_vec()), (&before[44..], before[..7].to_vec()));
    // While the carrier lasts, the header is left alone.
    let mut packet = routed(carrier(&[0xa01, 0xe001]).address(), &list, 1);
    assert_eq!(switch.forward(&mut packet), Ok(Verdict::Forward(&1)));
    assert_eq!(packet[40..], before[40..]);
    // At the end of both, only a host goes on.
    let last = list[0];
    assert_eq!(switch.forward(&mut routed(last, &list, 0)), Err(Dropped::PathEnds(last)));
    assert_eq!(switch.forward(&mut encapsulated(last)), Err(Dropped::PathEnds(last)));
    let mut host = Forwarder::<u8>::default();
    host.add_segment(carrier(&[0xa01]), Behavior::Decapsulate).unwrap();
    assert_eq!(host.forward(&mut routed(last, &list, 0)), Ok(Verdict::Inner(40 + 8 + 32)));
    assert_eq!(host.forward(&mut routed(last, &list, 1)), Err(Dropped::NoInner(last)));
    assert_eq!(host.forward(&mut packet_of_udp(last)), Err(Dropped::NoInner(last)));
    let mut cut = encapsulated(last);
    cut.truncate(79);
    assert_eq!(host.forward(&mut cut), Err(Dropped::NoInner(last)));
    assert_eq!(host.forward(&mut encapsulated(last)), Ok(Verdict::Inner(40)));
}

fn packet_of_udp(to: Ipv6Addr) -> Vec<u8> {
    packet(to, UDP, &[PAYLOAD, PAYLOAD].concat())
}

#[test]
fn malformed_packets_are_dropped() {
    let switch = switch(0xa01, 0xe001);
    let own = carrier(&[0xa01]).address();
    assert_eq!(switch.forward(&mut encapsulated(own)[..39]), Err(Dropped::NotIpv6));
    assert_eq!(switch.forward(&mut []), Err(Dropped::NotIpv6));
    let mut packet = encapsulated(own);
    packet[0] = 0x45;
    assert_eq!(switch.forward(&mut packet), Err(Dropped::NotIpv6));
    let good = routed(own, &[own, carrier(&[0xe001]).address()], 1);
    assert!(switch.forward(&mut good.clone()).is_ok());
    // Units, kind, segments left, last entry.
    for (at, value) in [(41, 3), (41, 200), (42, 3), (43, 3), (43, 255), (44, 2), (44, 255)] {
        let mut packet = good.clone();
        packet[at] = value;
        assert_eq!(switch.forward(&mut packet), Err(Dropped::RoutingHeader), "byte {at} is {value}");
    }
    for len in [40, 44, 45, 79] {
        assert_eq!(switch.forward(&mut good.clone()[..len]), Err(Dropped::RoutingHeader), "{len} bytes");
    }
    assert!(switch.forward(&mut good.clone()[..80]).is_ok(), "the inner packet is no business of a switch");
}

#[test]
fn the_hop_limit_ends_a_journey() {
    let mut switch = switch(0xa01, 0xe001);
    switch.add_own(address("fd00::9"));
    for to in [carrier(&[0xa01, 0xe001]).address(), address("fd00::2")] {
        for (limit, goes_on) in [(0, false), (1, false), (2, true)] {
            let mut packet = encapsulated(to);
            packet[7] = limit;
            let result = switch.forward(&mut packet);
            assert_eq!((result.is_ok(), result == Err(Dropped::HopLimit)), (goes_on, !goes_on), "{limit}");
            assert!(!goes_on || packet[7] == 1);
        }
    }
    let mut packet = encapsulated(address("fd00::9"));
    packet[7] = 0;
    assert_eq!(switch.forward(&mut packet), Ok(Verdict::Deliver), "it has arrived");
    assert_eq!(packet[7], 0);
}

/// A flow keeps to one next hop; flows that differ in anything spread over all.
#[test]
fn flows_spread_over_the_next_hops() {
    let several = |key| {
        let mut switch = Forwarder::new(key);
        switch.add_route(net("fd00::/16"), [0, 1, 2, 3]).unwrap();
        switch
    };
    let (one, other) = (several(1), several(2));
    let choice = |switch: &Forwarder<usize>, packet: &[u8]| match switch.forward(&mut packet.to_vec()) {
        Ok(Verdict::Forward(&port)) => port,
        other => panic!("{other:?}"),
    };
    // The lowest byte of the flow label, of the source and the destination address, of the ports.
    for at in [3, 23, 39, 41, 43] {
        let mut counts = [0; 4];
        let mut differ = 0;
        for value in 0..=255 {
            let mut packet = packet(address("fd00::2"), UDP, PAYLOAD);
            packet[at] = value;
            let port = choice(&one, &packet);
            counts[port] += 1;
            differ += usize::from(port != choice(&other, &packet));
            // Nothing else counts: traffic class, length, hop limit, what is behind the ports.
            for at in [4, 5, 7, 44] {
                packet[at] ^= 0x15;
            }
            packet[1] ^= 0x30;
            assert_eq!(choice(&one, &packet), port);
        }
        assert!(counts.iter().all(|count| (40..90).contains(count)), "byte {at}: {counts:?}");
        assert!(differ > 128, "byte {at}: {differ}");
    }
    let mut packet = encapsulated(address("fd00::2"));
    let port = choice(&one, &packet);
    packet[41] ^= 1;
    assert_eq!(choice(&one, &packet), port, "only UDP has ports there");
}

#[test]
fn entries_that_cannot_work_are_refused() {
    let mut switch = switch(0xa01, 0xe001);
    let twice = switch.add_segment(carrier(&[0xa01]), Behavior::Decapsulate).unwrap_err();
    assert_eq!(twice.to_string(), "there is an entry for fcbb:bb00:a01::/48 already");
    for segment in [carrier(&[]), carrier(&[1, 2])] {
        let error = switch.add_segment(segment, Behavior::Node).unwrap_err();
        assert_eq!(error, TableError::NotOneUsid(segment));
        assert!(error.to_string().contains("one uSID"), "{error}");
    }
    let route = |switch: &mut Forwarder<u8>, to: &str, hops: &[u8]| {
        switch.add_route(net(to), hops).unwrap_err().to_string()
    };
    assert_eq!(route(&mut switch, "::/0", &[1]), "there is an entry for ::/0 already");
    assert_eq!(route(&mut switch, "fd00::/16", &[]), "the route to fd00::/16 has no next hop");
    assert_eq!(
        route(&mut switch, "fd00::1/16", &[1]),
        "there are bits behind the prefix fd00::1/16; write fd00::/16"
    );
    let left: Vec<_> = switch.routes.iter().map(|routes| (routes.len, routes.next_hops.len())).collect();
    assert_eq!((switch.segments.len(), left), (1, vec![(48, 1), (0, 1)]), "what was refused left nothing");
}

proptest! {
    /// Whatever comes: what leaves has one hop less and is changed in its destination and in the segments left, and
    /// nowhere else; what stays is not changed at all.
    #[test]
    fn anything_may_come(
        usids in prop::collection::vec(1_u16..5, 1..6),
        mut packet in prop::collection::vec(any::<u8>(), 0..160),
        segments in prop::collection::vec(prop::collection::vec(1_u16..5, 1..6), 1..4),
        (left, routing, next, limit) in (0_u8..5, any::<bool>(), prop::sample::select(vec![IPV6, UDP]), any::<u8>()),
        random in any::<bool>(),
    ) {
        let mut switch = Forwarder::default();
        switch.add_segment(carrier(&[1]), Behavior::Node).unwrap();
        switch.add_segment(carrier(&[2]), Behavior::Adjacency(7)).unwrap();
        switch.add_segment(carrier(&[3]), Behavior::Decapsulate).unwrap();
        switch.add_route(carrier(&[4]).prefix(), [8, 9]).unwrap();
        switch.add_own(carrier(&[4, 4]).address());
        if !random {
            let to = carrier(&usids).address();
            let list: Vec<_> = segments.iter().map(|usids| carrier(usids).address()).collect();
            packet = if routing { routed(to, &list, left) } else { encapsulated(to) };
            if !routing {
                packet[6] = next;
            }
            packet[7] = limit;
        }
        let before = packet.clone();
        match switch.forward(&mut packet) {
            Ok(Verdict::Forward(&port)) => {
                prop_assert_eq!(packet[7], before[7] - 1);
                let routed = before[6] == ROUTING;
                let changes = |at: usize| at == 7 || (24..40).contains(&at) || (routed && at == 43);
                prop_assert!((0..before.len()).all(|at| changes(at) || packet[at] == before[at]));
                prop_assert!(port == 7 || F3216::try_from(destination(&packet)).is_ok_and(|to| to.active() == Some(4)));
            }
            Ok(Verdict::Inner(at)) => {
                prop_assert!(at + HEADER_LEN <= before.len());
                prop_assert_eq!(before[6] == ROUTING, at > HEADER_LEN);
                prop_assert_eq!(&packet[at..], &before[at..]);
            }
            Ok(Verdict::Deliver) => prop_assert_eq!(destination(&packet), carrier(&[4, 4]).address()),
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }
}
