//! Planes that close and return, and the paths that control packets take.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::rc::Rc;

use spindrift::path::PlaneSet;
use spindrift::time::Time;
use spindrift::wire::{
    Bth, ENDPOINT_QPN, EndpointOp, Entropy, Erth, ICRC_LEN, Opcode, Packet as Wire, Psn, StackTemplate,
    UDP_PORT_MRC, stack,
};
use spindrift_fabric::workload::{Stream, StreamSpec};
use spindrift_fabric::{ClosSpec, Fault, HostId, Messenger, Packet, PacketEvent, Transport};
use spindrift_pmd::MacAddr;
use spindrift_srv6::Node;

use crate::support::{US, World, clos};

const ENDLESS: StreamSpec =
    StreamSpec { size: 256 << 10, depth: 16, count: None, start_ns: 0, stop_ns: None };
const MS: u64 = 1_000 * US;
/// Hosts at two T0 switches.
const ENDS: [u16; 2] = [0, 4];
const PLANES: u8 = 2;

/// Flows from one host to another, with so many T1 switches in each of two planes.
fn world(t1: u16, seed: u64, flows: &[(u16, u16)]) -> World {
    let flow = |&(from, to): &(u16, u16)| {
        Box::new(Stream::new(vec![(HostId(from.into()), HostId(to.into()))], ENDLESS)) as Box<_>
    };
    let spec = ClosSpec { t1, ..clos(PLANES, 2, 4, 100) };
    World::new(spec, seed, flows.iter().map(flow).collect())
}

/// One flow each way between [`ENDS`].
fn both_ways(t1: u16, seed: u64) -> World {
    let [one, other] = ENDS;
    world(t1, seed, &[(one, other), (other, one)])
}

/// A flow whose receiver stands still from 300 us on.
fn to_a_mute_peer(t1: u16) -> World {
    let [one, other] = ENDS;
    let mut world = world(t1, 9, &[(one, other)]);
    world.run_until(Time(300 * US));
    world.sim.net_mut().pause(HostId(other.into()), 200 * MS);
    world
}

/// Planes that the first queue pair of a host may use as far as the peer's ports are concerned.
fn open(world: &World, host: u16) -> PlaneSet {
    let host = world.sim.net().transport(HostId(host.into()));
    host.endpoint().peer_planes(host.qpn(0).unwrap()).unwrap()
}

/// Someone tells a host, on `plane` and in the peer's name, which of the peer's ports can be reached.
fn forge(world: &mut World, host: u16, plane: u8, mask: u32) {
    let address = |host| IpAddr::from(world.clos.fabric().address(host, plane).unwrap());
    let (from, to) = (address(ENDS[usize::from(host == ENDS[0])]), address(host));
    let erth = Erth { op: EndpointOp::PortStatusUpdate, port_status_mask: mask, ..Erth::default() };
    let bth = Bth::new(Opcode::EndpointRequest, ENDPOINT_QPN, Psn::new(7));
    let mut mrc = [0; 64];
    let mrc_len = Wire::EndpointRequest { bth, erth }.encode_head(&mut mrc);
    let mut head = [0; 128];
    let template = StackTemplate::new(MacAddr([2; 6]), MacAddr([4; 6]), from, to, UDP_PORT_MRC, 64).unwrap();
    let entropy = Entropy { src_port: 0xc123, flow_label: 0x4567 };
    let len = template.write(&mut head, entropy, 0, mrc_len + ICRC_LEN);
    head[len..len + mrc_len].copy_from_slice(&mrc[..mrc_len]);
    let mut packet = Packet::default();
    packet.set_virtual(&head[..len + mrc_len], ICRC_LEN as u32);
    let before = world.sim.net().transport(HostId(host.into())).counters().rx_endpoint_requests;
    let after = world.sim.net_mut().with_transport(HostId(host.into()), |transport, now| {
        transport.receive(now, plane, &packet);
        transport.counters().rx_endpoint_requests
    });
    assert_eq!(after, before + 1, "it was taken in");
}

/// Whether both ends may use both planes.
fn all_open(world: &World) -> bool {
    ENDS.iter().all(|&host| open(world, host) == PlaneSet::first(PLANES))
}

/// Microseconds until both ends use both planes, looked at every 5 us, `most` at most.
fn until_open(world: &mut World, most: u64) -> u64 {
    let start = world.sim.net().now();
    let passed = |us: &u64| {
        world.run_until(start + us * US);
        all_open(world)
    };
    (0..=most).step_by(5).find(passed).unwrap_or(u64::MAX)
}

/// A packet other than data on the uplink of one of [`ENDS`], or at the other one.
#[derive(Clone, Copy, Debug)]
struct Seen {
    at: Time,
    host: u16,
    plane: u8,
    opcode: Opcode,
    /// Of a request.
    op: Option<EndpointOp>,
    ev: u32,
    arrived: bool,
}

/// From now on all of them are noted.
fn watch(world: &mut World) -> Rc<RefCell<Vec<Seen>>> {
    let seen = Rc::new(RefCell::new(Vec::new()));
    let mut links = BTreeMap::new();
    for (host, number) in ENDS.into_iter().zip(0..) {
        for plane in 0..PLANES {
            let t0 = Node::T0 { plane, number };
            links.insert(world.clos.link(Node::Host(host), t0).unwrap(), (host, plane, PacketEvent::Sent));
            links.insert(world.clos.link(t0, Node::Host(host)).unwrap(), (host, plane, PacketEvent::Arrived));
        }
    }
    let log = Rc::clone(&seen);
    world.sim.net_mut().set_tap(Some(Box::new(move |at, link, sight, packet| {
        let Some(&(host, plane, wanted)) = links.get(&link) else { return };
        let opcode = packet.opcode().unwrap();
        if sight != wanted
            || Wire::decode(mrc(packet)).is_ok_and(|packet| matches!(packet, Wire::Data { .. }))
        {
            return;
        }
        let op = match Wire::decode(mrc(packet)) {
            Ok(Wire::EndpointRequest { erth, .. }) => Some(erth.op),
            _ => None,
        };
        let ev = packet.ev().unwrap();
        log.borrow_mut().push(Seen {
            at,
            host,
            plane,
            opcode,
            op,
            ev,
            arrived: sight == PacketEvent::Arrived,
        });
    })));
    seen
}

fn mrc(packet: &Packet) -> &[u8] {
    stack::parse_front(packet.head(), packet.body_len() as usize).unwrap().mrc
}

/// Every control packet takes an entropy value that the fabric has a path for, whatever the number of T1 switches, and where nothing
/// is broken each of them arrives.
#[test]
fn every_control_packet_takes_a_path_that_there_is() {
    for t1 in [1, 3, 4, 6] {
        let mut world = both_ways(t1, t1.into());
        let seen = watch(&mut world);
        world.run_until(Time(300 * US));
        for (host, plane) in [(ENDS[0], 0), (ENDS[1], 1)] {
            forge(&mut world, host, 1 - plane, 1 << (1 - plane));
        }
        world.run_until(Time(600 * US));
        // A host takes its port for down, although the link is up.
        for up in [false, true] {
            world.sim.net_mut().set_carrier(HostId(0), 1, up);
            let now = world.sim.net().now();
            world.run_until(now + 300 * US);
        }
        let now = world.sim.net().now();
        let mut counts = BTreeMap::<_, [u32; 2]>::new();
        for seen in seen.borrow().iter() {
            // What left a moment ago may be under way.
            let counts = counts.entry(format!("{:?} {:?}", seen.opcode, seen.op)).or_default();
            counts[usize::from(seen.arrived)] += u32::from(seen.arrived || seen.at + 100 * US <= now);
        }
        println!("{t1} T1 switches: {counts:?}");
        for kind in [
            "EndpointRequest Some(PortStatusUpdate)",
            "EndpointRequest Some(EvProbe)",
            "EndpointResponse None",
            "Sack None",
        ] {
            assert!(counts.contains_key(kind), "{t1} T1 switches: {counts:?}");
        }
        for (kind, [sent, arrived]) in counts {
            assert!(sent <= arrived, "{t1} T1 switches: {arrived} of {sent} {kind} arrived");
        }
        // What is broken may lose them, and more kinds are sent.
        let t1_switch = Node::T1 { plane: 1, number: 0 };
        for on in [false, true] {
            let fault = Fault::Forwarding { switch: t1_switch, on };
            assert!(world.clos.apply(world.sim.net_mut(), &fault));
            let now = world.sim.net().now();
            world.run_until(now + 2 * MS);
        }
        let seen = seen.borrow();
        assert!(seen.iter().any(|seen| seen.opcode == Opcode::Probe), "{t1} T1 switches");
        for seen in seen.iter().filter(|seen| !seen.arrived) {
            let to = ENDS[usize::from(seen.host == ENDS[0])];
            let paths = world.clos.fabric().paths(seen.host, to, seen.plane).unwrap();
            assert_eq!(paths.check(seen.ev), Ok(()), "{t1} T1 switches: {seen:?}");
        }
    }
}

/// Requests to a peer that gives no answer take one path after the other: updates one at a time, and probes of a closed plane several
/// at once.
#[test]
fn unanswered_requests_take_all_paths_in_turn() {
    for t1 in [1_u16, 3, 4, 6] {
        let mut world = to_a_mute_peer(t1);
        let seen = watch(&mut world);
        world.sim.net_mut().set_carrier(HostId(0), 1, false);
        world.run_until(Time(150 * MS));
        let updates: Vec<_> = {
            let seen = seen.borrow();
            let updates =
                seen.iter().filter(|seen| !seen.arrived && seen.op == Some(EndpointOp::PortStatusUpdate));
            updates.map(|seen| (seen.plane, seen.ev)).collect()
        };
        assert!(updates.len() >= 6 && updates.iter().all(|&(plane, _)| plane == 0), "{updates:?}");
        let different = |evs: &[(u8, u32)]| evs.iter().collect::<BTreeSet<_>>().len();
        for round in updates.windows(t1.into()) {
            assert_eq!(different(round), usize::from(t1), "{t1} T1 switches: {updates:x?}");
        }
    }
    for t1 in [1_u16, 3, 4, 6] {
        let mut world = to_a_mute_peer(t1);
        let seen = watch(&mut world);
        world.run_until(Time(310 * US));
        forge(&mut world, 0, 0, 0b01);
        world.run_until(Time(20 * MS));
        assert_eq!(open(&world, 0), PlaneSet(0b01));
        // Those of one time.
        let mut probes = BTreeMap::<Time, Vec<(u8, u32)>>::new();
        let mut last = Time::ZERO;
        for seen in seen
            .borrow()
            .iter()
            .filter(|seen| !seen.arrived && seen.op == Some(EndpointOp::EvProbe) && seen.plane == 1)
        {
            last = if seen.at > last + 100 * US { seen.at } else { last };
            probes.entry(last).or_default().push((seen.plane, seen.ev));
        }
        let counts: Vec<_> = probes.values().map(Vec::len).collect();
        let several = usize::from(t1).min(4);
        assert!(counts.len() >= 4 && counts[0] == 1, "{t1} T1 switches: {counts:?}");
        assert!(counts[1..].iter().all(|&count| count == several), "{t1} T1 switches: {counts:?}");
        let evs: Vec<_> = probes.into_values().collect();
        for at_once in &evs {
            assert_eq!(at_once.iter().collect::<BTreeSet<_>>().len(), at_once.len(), "{t1} T1 switches");
        }
        let all: BTreeSet<_> = evs[1..3].iter().flatten().collect();
        assert_eq!(all.len(), usize::from(t1), "{t1} T1 switches: {evs:x?}");
    }
}

/// Forged updates to both ends cost the plane that they name a round trip.
#[test]
fn forged_updates_to_both_ends_close_a_plane_for_microseconds() {
    for t1 in [1, 3, 4, 6] {
        for seed in 0..5 {
            let mut world = both_ways(t1, seed);
            world.run_until(Time(300 * US));
            for host in ENDS {
                forge(&mut world, host, 0, 0b01);
            }
            assert!(ENDS.iter().all(|&host| open(&world, host) == PlaneSet(0b01)), "{t1} T1 switches");
            let us = until_open(&mut world, 50_000);
            assert!(us <= 50, "{t1} T1 switches, seed {seed}: open after {us} us");
            let start = world.sim.net().now() + 100 * US;
            world.run_until(start + 400 * US);
            for job in [0, 1] {
                let rate = world.rates(job, start, start + 400 * US)[0];
                assert!(rate > 180.0, "{t1} T1 switches, seed {seed}: {rate} Gb/s");
            }
        }
    }
}

/// The same when all paths of the plane but one have failed at that time: it is found by what the next probes find.
#[test]
fn a_closed_plane_with_one_path_left_is_found_within_5_ms() {
    for (t1, seed) in [(3, 1), (4, 2), (6, 3), (6, 4)] {
        for left in 0..t1 {
            let mut world = both_ways(t1, seed);
            world.run_until(Time(300 * US));
            for number in (0..t1).filter(|&number| number != left) {
                let fault = Fault::Forwarding { switch: Node::T1 { plane: 1, number }, on: false };
                assert!(world.clos.apply(world.sim.net_mut(), &fault));
            }
            for host in ENDS {
                forge(&mut world, host, 0, 0b01);
            }
            let us = until_open(&mut world, 50_000);
            assert!(us <= 5_000, "{t1} T1 switches, {left} is left: open after {us} us");
        }
    }
}

/// Ports of a host that get their carriers back at one time are in use at one time, however much their peer probes the paths of its
/// answers: those probes take none of the answers to which probes of planes are entitled.
#[test]
fn planes_that_return_together_are_in_use_together() {
    const ALL: u8 = 8;
    for seed in [1, 101, 102, 103, 104, 105, 106] {
        let pairs = |from, to| vec![(HostId(from), HostId(to)); 4];
        let flows = [(0, 1), (1, 0)].map(|(from, to)| {
            Box::new(Stream::new(pairs(from, to), ENDLESS)) as Box<dyn spindrift_fabric::workload::Workload>
        });
        let mut world = World::new(clos(ALL, 2, 4, 100), seed, flows.into());
        let set = |world: &mut World, up| {
            for plane in 0..4 {
                let ends = (Node::Host(0), Node::T0 { plane, number: 0 });
                let cable = Fault::Cable { ends, up, carrier: true };
                assert!(world.clos.apply(world.sim.net_mut(), &cable));
            }
        };
        world.run_until(Time(300 * US));
        set(&mut world, false);
        world.run_until(Time(14 * MS));
        let states = |world: &World| world.sim.net().transport(HostId(1)).evs(0);
        let closed = states(&world);
        assert!((0..8).all(|plane| (closed[plane].closed > 0) == (plane < 4)), "{closed:?}");
        assert!((0..4).all(|plane| closed[plane].good == 0), "{closed:?}");
        set(&mut world, true);
        world.run_until(Time(14 * MS + 100 * US));
        let sent = |world: &World| -> Vec<u64> {
            let link = |plane| world.clos.link(Node::Host(1), Node::T0 { plane, number: 0 }).unwrap();
            (0..ALL).map(|plane| world.sim.net().link(link(plane)).packets).collect()
        };
        let before = sent(&world);
        let opened = states(&world);
        assert!(
            opened.iter().all(|plane| plane.closed == 0 && plane.good + plane.skip > 0),
            "seed {seed}: {opened:?}"
        );
        world.run_until(Time(14 * MS + 600 * US));
        let packets: Vec<_> = sent(&world).iter().zip(&before).map(|(now, before)| now - before).collect();
        let (least, most) = (packets.iter().min().unwrap(), packets.iter().max().unwrap());
        assert!(least * 10 > most * 9, "seed {seed}: packets by plane {packets:?}");
        let limited = [0, 1].map(|host| world.sim.net().transport(HostId(host)).counters().rx_rate_limited);
        assert_eq!(limited, [0, 0], "seed {seed}");
    }
}
