//! Source-routed peers: which headers packets to them have, and which entropy values.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

#[path = "../benches/common/mod.rs"]
mod common;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};

use common::{Frame, Pair, Side};
use etherparse::{NetHeaders, PacketHeaders};
use spindrift::endpoint::{EndpointConfig, EndpointError, Event, QpInit, QpModify, Route};
use spindrift::path::{EvSource, EvState, PathConfig, PathConfigError};
use spindrift::pmd::MacAddr;
use spindrift::time::Time;
use spindrift::wire::stack::{self, Outer};
use spindrift::wire::{Ev, Packet};
use spindrift_srv6::{EvProfile, F3216, Field};

const BLOCK: u32 = 0xfcbb_bb00;
const LEN: u32 = 60_000;

/// The paths of a plane: 64 uplinks at the first switch, of which 8 to 55 are there, and two downlinks at the last.
fn paths(plane: u8, side: u16) -> EvProfile {
    let plane = u32::from(plane) << 12;
    let fields = [
        Field::fixed(32, BLOCK),
        Field { width: 16, init: 0xa00 | plane, min: 8, max: 55, mask: 0x3f },
        Field::low_bits(16, 0xe00 | plane, 1),
        Field::fixed(16, 0x200 | plane | u32::from(side)),
    ];
    EvProfile::new(&F3216::FORMAT, &fields).unwrap()
}

fn next_hop(plane: u8) -> MacAddr {
    MacAddr([6, 0, 0, 0, 0, plane])
}

fn source(side: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xfd0f, 0, 0, 0, 0, 0, 0, side)
}

/// Routes to everybody on planes 0 and 1 through an outer packet, on plane 2 through a next hop, and none on plane 3.
fn routes(side: u16, peer: u16) -> Vec<Route> {
    let to = |plane: u8| format!("fd00:{plane:x}::/32").parse().unwrap();
    let outer = |plane| Some(Outer { src: source(side), path: paths(plane, peer), hop_limit: 17 });
    vec![
        Route { next_hop: Some(next_hop(0)), outer: outer(0), ..Route::new(to(0), 0) },
        Route { next_hop: Some(next_hop(1)), outer: outer(1), ..Route::new(to(1), 1) },
        Route { next_hop: Some(next_hop(2)), ..Route::new(to(2), 2) },
    ]
}

fn side(side: u16, peer: u16) -> Side {
    Side::with(side, LEN as usize, |cfg| EndpointConfig {
        routes: routes(side, peer),
        sack_threshold_bytes: 4096,
        ..cfg
    })
}

fn pair() -> Pair {
    Pair::of(side(1, 2), side(2, 1), 1024)
}

/// Checks the headers of a frame from `side` to `peer`, and gives the entropy value and what is inside.
fn check(frame: &Frame, side: u16, peer: u16) -> (Ev, Packet<'_>) {
    let plane = frame.port;
    let parsed = stack::parse(&frame.bytes).unwrap();
    let meta = parsed.meta;
    let ev = Ev(u32::from(meta.src_port) << 16 | meta.flow_label);
    let ip = |side| IpAddr::from(Ipv6Addr::new(0xfd00, plane.into(), 0, 0, 0, 0, 0, side));
    assert_eq!((meta.src, meta.dst), (ip(side), ip(peer)));
    let headers = PacketHeaders::from_ethernet_slice(&frame.bytes).unwrap();
    let link = headers.link.unwrap().ethernet2().unwrap();
    let direct = MacAddr([2, 0, 0, 0, plane, peer as u8]);
    assert_eq!(MacAddr(link.destination), if plane < 3 { next_hop(plane) } else { direct });
    let Some(NetHeaders::Ipv6(outermost, _)) = headers.net else { panic!("no IPv6") };
    if plane < 2 {
        let profile = paths(plane, peer);
        assert_eq!(profile.check(ev.0), Ok(()));
        assert_eq!(outermost.destination_addr(), profile.expand(ev.0).destination());
        assert_eq!((outermost.source_addr(), outermost.hop_limit), (source(side), 17));
        assert_eq!(outermost.flow_label.value(), meta.flow_label);
    } else {
        assert_eq!((IpAddr::from(outermost.destination_addr()), outermost.hop_limit), (ip(peer), 255));
    }
    let mrc = &parsed.mrc[..parsed.mrc.len() - 4];
    (ev, Packet::decode(mrc).unwrap())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Data,
    Answer,
    /// Of the paths of answers, or the answer to one.
    Probe,
}

/// Sends at most 16 packets that one side has, and checks them.
fn deliver(now: Time, from: &mut Side, to: &mut Side, (side, peer): (u16, u16)) -> Vec<(u8, Ev, Kind)> {
    let mut frames = Vec::new();
    from.transmit(now, 16, &mut frames);
    to.receive(now + 1_000, &frames);
    let seen = frames.iter().map(|frame| {
        let (ev, packet) = check(frame, side, peer);
        let kind = match packet {
            Packet::Data { .. } => Kind::Data,
            Packet::EndpointRequest { .. } | Packet::EndpointResponse { .. } => Kind::Probe,
            _ => Kind::Answer,
        };
        (frame.port, ev, kind)
    });
    seen.collect()
}

#[test]
fn every_packet_takes_the_path_of_its_entropy_value() {
    let mut pair = pair();
    let pattern: Vec<u8> = (0..LEN).map(|i| (i * 7 / 3) as u8).collect();
    pair.a.region.write_at(0, &pattern).unwrap();
    for _ in 0..8 {
        pair.a.endpoint.post_send(pair.now, pair.qa, pair.write(LEN)).unwrap();
    }
    let (mut there, mut back) = (Vec::new(), Vec::new());
    for _ in 0..40 {
        there.extend(deliver(pair.now, &mut pair.a, &mut pair.b, (1, 2)));
        pair.now = pair.now + 1_000;
        back.extend(deliver(pair.now, &mut pair.b, &mut pair.a, (2, 1)));
        pair.now = pair.now + 1_000;
    }
    assert_eq!(pair.b.region.first_difference(0, &pattern).unwrap(), None);
    assert_eq!(pair.a.completions(), 8);
    for counters in [pair.a.endpoint.counters(), pair.b.endpoint.counters()] {
        assert_eq!((counters.rx_bad_icrc, counters.rx_bad_stack, counters.tx_retransmits), (0, 0, 0));
    }
    let probes = |seen: &[(u8, Ev, Kind)]| seen.iter().filter(|seen| seen.2 == Kind::Probe).count();
    assert_eq!((probes(&there), probes(&back)), (1, 1), "256 KiB came in");
    there.retain(|seen| seen.2 != Kind::Probe);
    assert!(there.iter().all(|seen| seen.2 == Kind::Data) && back.iter().all(|seen| seen.2 != Kind::Data));
    // All planes carry the same, on many paths; answers take every plane as well.
    for plane in 0..4 {
        let on = |seen: &[(u8, Ev, Kind)]| {
            let evs: Vec<_> = seen.iter().filter(|seen| seen.0 == plane).map(|seen| seen.1).collect();
            (evs.len(), evs.into_iter().collect::<BTreeSet<_>>().len())
        };
        assert_eq!(on(&there), (8 * 59 / 4, 32), "plane {plane}");
        assert!(on(&back).0 > 5, "plane {plane}: {:?}", on(&back));
    }
}

/// Entropy values of queue pairs to source-routed peers are drawn from all that have a path, and are not those that they
/// had before they had a peer.
#[test]
fn entropy_values_are_drawn_when_the_peer_is_known() {
    let mut pair = pair();
    let evs = |side: &Side, qpn, plane: u8| {
        let states = side.endpoint.ev_states(qpn).unwrap();
        states.filter(|state| state.plane == plane).map(|state| state.ev).collect::<BTreeSet<_>>()
    };
    let (mut seen, mut sizes) = (BTreeSet::new(), BTreeSet::new());
    for _ in 0..40 {
        let (qa, qb) = (pair.a.create_qp(16), pair.b.create_qp(16));
        let before: Vec<_> = (0..4).map(|plane| evs(&pair.a, qa, plane)).collect();
        // What is denied stays denied: a plane, and an entropy value, if it is drawn again.
        pair.a.endpoint.deny_plane(qa, 3);
        pair.a.connect(qa, &pair.b, qb, 1024);
        let after: Vec<_> = (0..4).map(|plane| evs(&pair.a, qa, plane)).collect();
        for plane in 0..4 {
            assert_ne!(before[plane], after[plane]);
            sizes.insert(after[plane].len());
        }
        let good = |plane: usize| {
            let profile = paths(plane as u8, 2);
            after[plane].iter().all(|ev| profile.check(ev.0).is_ok())
        };
        assert!(good(0) && good(1));
        assert_eq!(pair.a.endpoint.planes(qa).unwrap().0, 0b1111);
        assert!(!pair.a.endpoint.deny_plane(qa, 3), "it is denied still");
        seen.extend(after[0].iter().copied());
        // In a second life it is as in the first.
        let qa = pair.a.endpoint.modify_qp(pair.now, qa, QpModify::Reset).unwrap();
        assert!(pair.a.endpoint.deny_plane(qa, 3), "a reset forgets that");
        pair.a.endpoint.destroy_qp(qa).unwrap();
    }
    assert_eq!(sizes, BTreeSet::from([48]));
    assert_eq!(seen.len(), 96, "all of them, by and by");
}

/// Few paths are all used, in the proportion of active to backup that was asked for.
#[test]
fn a_peer_behind_few_paths_has_as_many_entropy_values() {
    let one = Route {
        outer: Some(Outer {
            src: source(1),
            path: EvProfile::from(spindrift_srv6::Segments::from(Ipv6Addr::LOCALHOST)),
            hop_limit: 9,
        }),
        ..Route::new("fd00::/16".parse().unwrap(), 0)
    };
    let six = {
        let fields = [Field::fixed(32, BLOCK), Field { width: 16, init: 0, min: 1, max: 6, mask: 0x7 }];
        let path = EvProfile::new(&F3216::FORMAT, &fields).unwrap();
        Route {
            outer: Some(Outer { src: source(1), path, hop_limit: 9 }),
            ..Route::new("fd00::/16".parse().unwrap(), 1)
        }
    };
    let a = Side::with(1, 4096, |cfg| EndpointConfig { routes: vec![one, six], ..cfg });
    let pair = Pair::of(a, Side::with(2, 4096, |cfg| cfg), 1024);
    let count = |plane| {
        let states = pair.a.endpoint.ev_states(pair.qa).unwrap();
        let of_plane: Vec<_> = states.filter(|state| state.plane == plane).collect();
        let active = of_plane.iter().filter(|state| state.active).count();
        assert!(of_plane.iter().all(|state| state.state == EvState::Good));
        (of_plane.len(), active)
    };
    assert_eq!([0, 1, 2].map(count), [(1, 1), (6, 6), (48, 32)]);
}

/// Listed values are used if each of them has a path.
#[test]
fn a_listed_entropy_value_without_a_path_is_refused() {
    let (mut a, mut b) = (side(1, 2), side(2, 1));
    let good = |plane: u8| (0..6).map(|n| Ev(paths(plane, 2).nth(n).unwrap())).collect::<Vec<_>>();
    let lists = |change: fn(&mut Vec<Vec<Ev>>)| {
        let mut lists = vec![good(0), good(1), vec![Ev(0x1_0001)], vec![Ev(0x2_0002)]];
        change(&mut lists);
        lists
    };
    let mut connect = |lists: Vec<Vec<Ev>>| {
        let path = PathConfig { source: EvSource::Explicit(lists.into()), ..PathConfig::new(4) };
        let init =
            QpInit { path, ..QpInit::new(a.pd, spindrift::endpoint::CqId(0), spindrift::endpoint::CqId(0)) };
        let qa = a.endpoint.create_qp(init).unwrap();
        let qb = b.create_qp(16);
        let info = b.endpoint.qp_info(qb).unwrap();
        let rtr = common::rtr(&info, 1024);
        a.endpoint.modify_qp(Time(1), qa, QpModify::Init).unwrap();
        let result = a.endpoint.modify_qp(Time(1), qa, QpModify::Rtr(Box::new(rtr))).map(|_| ());
        (
            result,
            a.endpoint.ev_states(qa).unwrap().map(|state| (state.plane, state.ev)).collect::<BTreeSet<_>>(),
        )
    };
    let all = lists(|_| ());
    let (result, evs) = connect(all.clone());
    assert_eq!(result, Ok(()));
    let listed = (0..).zip(&all).flat_map(|(plane, list)| list.iter().map(move |&ev| (plane, ev)));
    assert_eq!(evs, listed.collect());
    // 7 is below the least uplink; a plane without a profile has no such values.
    let (result, _) = connect(lists(|lists| lists[1].push(Ev(7 << 26))));
    let Err(EndpointError::Path(error)) = result else { panic!("{result:?}") };
    assert!(matches!(error, PathConfigError::NoPath { plane: 1, .. }));
    assert_eq!(
        error.to_string(),
        "source: plane 1: entropy value 0x1c000000: field 2 is 7, the profile allows 8 to 55"
    );
    assert_eq!(connect(lists(|lists| lists[3].push(Ev(7 << 26)))).0, Ok(()));
}

/// An answer goes back by a path that there is, the same one where both sides have it.
#[test]
fn answers_to_probes_take_a_path_of_their_sender() {
    let mut pair = pair();
    let own = paths(0, 2);
    for (plane, ev) in [
        (0, Ev(own.nth(60).unwrap())),
        (0, Ev(0)),
        (1, Ev(u32::MAX)),
        (1, Ev(5 << 26)),
        (2, Ev(0x1234_5678)),
        (3, Ev(0x8765_4321)),
    ] {
        let mut frames = Vec::new();
        let id = pair.a.endpoint.send_ev_probe(pair.now, pair.qa, plane, ev).unwrap();
        pair.a.transmit(pair.now, usize::MAX, &mut frames);
        assert_eq!(frames.len(), 1);
        let meta = stack::parse(&frames[0].bytes).unwrap().meta;
        assert_eq!(Ev(u32::from(meta.src_port) << 16 | meta.flow_label), ev, "as it was asked for");
        pair.b.receive(pair.now + 1_000, &frames);
        let back = deliver(pair.now + 2_000, &mut pair.b, &mut pair.a, (2, 1));
        assert_eq!((back.len(), back[0].0), (1, plane));
        let there_is = plane > 1 || own.check(ev.0).is_ok();
        assert_eq!(back[0].1 == ev, there_is);
        let answered = std::iter::from_fn(|| pair.a.endpoint.poll_event())
            .any(|event| matches!(event, Event::EvProbeAnswered { request_id, .. } if request_id == id));
        assert!(answered);
        pair.now = pair.now + 10_000;
    }
}

/// Of the routes of a port, the longest prefix counts; a route of another port counts for nothing.
#[test]
fn the_longest_prefix_counts() {
    let hop = |n| Some(MacAddr([8, 0, 0, 0, 0, n]));
    let to = |text: &str| text.parse().unwrap();
    let all = [
        Route { next_hop: hop(1), ..Route::new(to("::/0"), 0) },
        Route { next_hop: hop(2), ..Route::new(to("fd00:0::/32"), 0) },
        Route { next_hop: hop(3), ..Route::new(to("fd00:0::2/128"), 0) },
        Route { next_hop: hop(4), ..Route::new(to("fd00:0::3/128"), 0) },
        Route::new(to("fd00:1::2/128"), 1),
        Route { next_hop: hop(5), ..Route::new(to("fd00::/16"), 1) },
        Route { next_hop: hop(6), ..Route::new(to("fd00:2::2/128"), 1) },
    ];
    for (kept, want) in [(7, hop(3)), (2, hop(2)), (1, hop(1)), (0, None)] {
        let mut kept: Vec<_> = all[..kept].to_vec();
        // The order says nothing.
        kept.reverse();
        let several = kept.len() == 7;
        let a = Side::with(1, 4096, |cfg| EndpointConfig { routes: kept, ..cfg });
        let mut pair = Pair::of(a, Side::with(2, 4096, |cfg| cfg), 1024);
        for _ in 0..8 {
            pair.a.endpoint.post_send(pair.now, pair.qa, pair.write(64)).unwrap();
        }
        let mut frames = Vec::new();
        pair.a.transmit(pair.now, usize::MAX, &mut frames);
        for frame in frames {
            let direct = MacAddr([2, 0, 0, 0, frame.port, 2]);
            let want = if frame.port == 0 { want.unwrap_or(direct) } else { direct };
            assert_eq!(frame.bytes[..6], want.0, "plane {}, all: {several}", frame.port);
        }
    }
}

/// A path of so many addresses.
fn fixed_route(addresses: u8, port: u8) -> Route {
    let path = EvProfile::new(&vec![128; addresses.into()], &[]).unwrap();
    let outer = Outer { src: Ipv6Addr::LOCALHOST, path, hop_limit: 1 };
    Route { outer: Some(outer), ..Route::new(format!("fd00:{addresses}::/32").parse().unwrap(), port) }
}

/// Packets with the headers of the longest route fit the frames of their port.
#[test]
fn the_payload_leaves_room_for_outer_headers() {
    let max_mtu = |adjust: fn(&mut Vec<Route>)| {
        Side::with(1, 4096, |mut cfg| {
            adjust(&mut cfg.routes);
            cfg
        })
        .endpoint
        .config()
        .max_mtu()
    };
    let direct = max_mtu(|_| ());
    assert_eq!(direct as usize, 9014 - EndpointConfig::overhead(true));
    assert_eq!(max_mtu(|routes| routes.push(fixed_route(1, 2))), direct - 40);
    assert_eq!(max_mtu(|routes| routes.extend([fixed_route(1, 3), fixed_route(3, 3)])), direct - 40 - 8 - 32);
    assert_eq!(max_mtu(|routes| routes.extend([fixed_route(5, 1), fixed_route(3, 3)])), direct - 40 - 8 - 64);
}
