//! Instructions that the simulator spends on a packet-hop, exact and repeatable: `cargo bench -p spindrift-fabric`.
//!
//! A packet-hop is a packet that comes to the end of a link. The whole is hosts that run MRC; `bare` is the same fabric with
//! packets of the same run and hosts that do nothing but send them again.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, reason = "benchmark")]

#[path = "common/callgrind.rs"]
mod callgrind;

use std::cell::RefCell;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;

use callgrind::Scenario;
use spindrift::time::Time;
use spindrift_fabric::workload::{Stream, StreamSpec};
use spindrift_fabric::{
    Clos, ClosSpec, Free, HostId, LinkId, MrcHost, MrcSpec, Net, Packet, PacketEvent, QueueRules, Sim,
    Transport,
};
use spindrift_srv6::Node;

const fn scenario(name: &'static str, what: &'static str) -> Scenario {
    Scenario { name, collect: &["simulate"], what, amounts: [50_000, 150_000] }
}

const SCENARIOS: [Scenario; 4] = [
    scenario("mrc", "a packet-hop: 64 hosts at 100 Gb/s, each sends to one other; one plane, SRv6"),
    scenario("ecmp", "the same; switches choose by a hash"),
    scenario("planes", "the same with SRv6 and four planes"),
    scenario("bare", "a packet-hop of the first, with hosts that only send what was sent there"),
];

fn clos(planes: u8) -> ClosSpec {
    let links = ClosSpec {
        planes,
        t0: 8,
        t1: 8,
        pods: 1,
        t2: 0,
        hosts_per_t0: 8,
        host_rate_bps: 100_000_000_000,
        trunk_rate_bps: 100_000_000_000,
        host_delay_ns: 1_000,
        trunk_delay_ns: 1_000,
        queues: QueueRules::for_rtt(10_000),
    };
    ClosSpec { queues: QueueRules::for_rtt(rtt_ns(&links)), ..links }
}

/// Of a full packet under an outer header, and of a SACK.
const fn rtt_ns(spec: &ClosSpec) -> u64 {
    spec.base_rtt_ns(4_300, 200)
}

fn world(planes: u8, srv6: bool) -> (Clos, Sim<MrcHost>) {
    let spec = clos(planes);
    let nic = Arc::new(MrcSpec { srv6, ..MrcSpec::new(planes, spec.nic_rate_bps(), rtt_ns(&spec)) });
    let (clos, net) = Clos::build(spec, 1, |fabric, number| {
        MrcHost::new(&nic, fabric, number, [(number + 11) % 64, (number + 53) % 64], number.into())
    })
    .unwrap();
    let mut sim = Sim::new(net);
    let pairs = (0..64).map(|host| (HostId(host), HostId((host + 11) % 64))).collect();
    let endless = StreamSpec { size: 1 << 20, depth: 4, count: None, start_ns: 0, stop_ns: None };
    sim.add(Box::new(Stream::new(pairs, endless))).unwrap();
    (clos, sim)
}

/// A host that sends what another host sent, again and again.
struct Bare {
    packets: Rc<[Packet]>,
    next: usize,
}

impl Transport for Bare {
    type Event = ();

    fn receive(&mut self, _now: Time, _plane: u8, packet: &Packet) {
        std::hint::black_box(packet.head());
    }

    fn transmit(&mut self, _now: Time, free: Free, out: &mut Packet) -> bool {
        let packet = &self.packets[self.next];
        if free.all() >> packet.plane & 1 == 0 {
            return false;
        }
        out.set_virtual(packet.head(), packet.body_len());
        out.plane = packet.plane;
        self.next = (self.next + 1) % self.packets.len();
        true
    }

    fn next_timeout(&self) -> Time {
        Time::NEVER
    }

    fn on_timeout(&mut self, _now: Time) {}

    fn on_pause(&mut self, _from: Time, _until: Time) {}

    fn carrier(&mut self, _now: Time, _plane: u8, _up: bool) {}

    fn poll(&mut self) -> Option<()> {
        None
    }
}

fn uplink(clos: &Clos, host: Node) -> LinkId {
    clos.neighbours(host).find_map(|switch| clos.link(host, switch)).unwrap()
}

/// The first packets that each host sends in `world(1, true)`.
fn recorded() -> Vec<Rc<[Packet]>> {
    let (clos, mut sim) = world(1, true);
    let uplinks: Vec<_> = (0..64).map(|host| uplink(&clos, Node::Host(host))).collect();
    let sent = Rc::new(RefCell::new(vec![Vec::new(); uplinks.len()]));
    let told = Rc::clone(&sent);
    sim.net_mut().set_tap(Some(Box::new(move |_, link, sight, packet| {
        if let (PacketEvent::Sent, Some(host)) = (sight, uplinks.iter().position(|&uplink| uplink == link)) {
            told.borrow_mut()[host].push(packet.clone());
        }
    })));
    simulate(&mut sim, 100_000);
    sent.take().into_iter().map(Rc::from).collect()
}

fn bare() -> Net<Bare> {
    let recorded = recorded();
    let (_, mut net) = Clos::build(clos(1), 1, |_, number| {
        Ok::<_, core::convert::Infallible>(Bare {
            packets: Rc::clone(&recorded[usize::from(number)]),
            next: 0,
        })
    })
    .unwrap();
    for host in net.hosts() {
        net.with_transport(host, |_, _| ());
    }
    net
}

#[inline(never)]
fn simulate(sim: &mut Sim<MrcHost>, until: u64) -> u64 {
    assert_eq!(sim.run(Time(until)), None);
    sim.net().counters().hops
}

#[inline(never)]
fn simulate_bare(net: &mut Net<Bare>, until: u64) -> u64 {
    assert!(net.run(Time(until)).is_none());
    net.counters().hops
}

/// Runs a scenario for so much time; returns the packet-hops.
fn run(scenario: &str, until: u64) -> u64 {
    match scenario {
        "mrc" => simulate(&mut world(1, true).1, until),
        "ecmp" => simulate(&mut world(1, false).1, until),
        "planes" => simulate(&mut world(4, true).1, until),
        _ => simulate_bare(&mut bare(), until),
    }
}

fn main() -> ExitCode {
    callgrind::main("fabric", &SCENARIOS, run)
}
