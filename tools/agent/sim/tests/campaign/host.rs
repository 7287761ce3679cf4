//! Probes are packets: they take time, wait, are marked by faults, and leave the transport alone.

use std::sync::Arc;

use spindrift::time::Time;
use spindrift_agent::{ProbeCounters, Refused, Window};
use spindrift_agent_sim::{Idle, WatchSettings, Watched, small, three_tiers};
use spindrift_fabric::workload::{Stream, StreamSpec};
use spindrift_fabric::{ClosSpec, Fault, HostId, Impairment, Messenger, MrcHost, MrcSpec};
use spindrift_srv6::Node;

const MS: u64 = 1_000_000;
const T0: Node = Node::T0 { plane: 0, number: 0 };
const T1: Node = Node::T1 { plane: 0, number: 0 };

fn idle(spec: ClosSpec) -> Watched<Idle> {
    Watched::build(spec, WatchSettings::default(), 1, |_, _| Ok::<_, ()>(Idle)).unwrap()
}

fn sum<T: Messenger>(watched: &Watched<T>, of: impl Fn(&ProbeCounters) -> u64) -> u64 {
    watched.agents().map(|agent| of(agent.prober().counters())).sum()
}

/// Half the round-trip time is that of the links on the way and of the packet's 166 bytes on each, at 100 Gb/s and a microsecond per link.
#[test]
fn a_round_trip_takes_the_time_of_its_links() {
    let mut watched = idle(three_tiers(1, (2, 2), (2, 2), 2));
    watched.run(1_000 * MS, |_| false);
    assert_eq!(sum(&watched, |counters| counters.lost), 0);
    let mut lengths = Vec::new();
    for agent in watched.agents() {
        let (routes, links) = (agent.plan().routes(), agent.recorder().links());
        for (route, link) in routes.zip(links) {
            let (hops, trips) = (route.hops().count() as u64, link.round_trips(watched.now_ns()));
            // 166 bytes are 13.28 ns; the histogram has two digits.
            let expected = hops * 1_014;
            assert!(trips.samples > 900, "{route:?} {trips:?}");
            assert!(
                (expected * 98 / 100..expected * 104 / 100).contains(&trips.p50_ns),
                "{route:?} {trips:?}"
            );
            lengths.push(hops);
        }
    }
    lengths.sort_unstable();
    lengths.dedup();
    assert_eq!(lengths, [2, 4, 6], "by way of T0, T1 and T2 switches");
}

/// Two runs of one seed are the same in every packet; another seed is another run.
#[test]
fn a_run_repeats_from_its_seed() {
    let run = |seed| {
        let mut watched =
            Watched::build(small(2, (2, 2), 2), WatchSettings::default(), seed, |_, _| Ok::<_, ()>(Idle))
                .unwrap();
        watched.run(200 * MS, |_| false);
        let loss = Impairment { loss: 0.1, ..Impairment::default() };
        assert!(watched.apply(&Fault::Impair { from: T0, to: T1, impairment: loss }));
        watched.run(1_200 * MS, |_| false);
        let counters: Vec<_> = watched.agents().map(|agent| *agent.prober().counters()).collect();
        (counters, watched.sim().net().counters(), watched.words())
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7).0, run(8).0);
}

/// Writes and probes share the ports: all of both arrive.
#[test]
fn a_transport_and_an_agent_share_the_ports() {
    let spec = small(2, (2, 2), 1);
    let rtt_ns = spec.base_rtt_ns(4_300, 200);
    let nic = Arc::new(MrcSpec::new(2, spec.nic_rate_bps(), rtt_ns));
    let host = |fabric: &_, number| MrcHost::new(&nic, fabric, number, [1 - number], number.into());
    let mut watched = Watched::build(spec, WatchSettings::default(), 3, host).unwrap();
    let pairs = vec![(HostId(0), HostId(1)), (HostId(1), HostId(0))];
    let each = StreamSpec { size: 1 << 20, depth: 4, count: Some(60), start_ns: MS, stop_ns: None };
    watched.sim_mut().add(Box::new(Stream::new(pairs, each))).unwrap();
    watched.run(40 * MS, |_| false);
    let job = &watched.sim().jobs()[0];
    assert_eq!((job.done().len(), job.failures().len()), (120, 0));
    let placed: u64 =
        (0..2).map(|host| watched.sim().net().transport(HostId(host)).stats().placed_bytes).sum();
    assert_eq!(placed, 120 << 20);
    let (sent, returned) =
        (sum(&watched, |counters| counters.tx_probes), sum(&watched, |counters| counters.rx_returned));
    assert!(
        sent > 400 && sent - returned <= 24,
        "{returned} of {sent} came back, and a millisecond's are under way"
    );
    let net = watched.sim().net();
    assert!(net.counters().add_up(net.on_their_way()), "{:?}", net.counters());
}

/// Probes that wait for a slow port hold up none of the other ports.
#[test]
fn a_slow_port_delays_its_own_probes_alone() {
    let mut watched = idle(small(2, (1, 0), 1));
    // A probe takes 2.7 ms there, and one is due each millisecond.
    assert!(watched.apply(&Fault::Rate { from: Node::Host(0), to: T0, rate_bps: 500_000 }));
    watched.run(100 * MS, |_| false);
    let agent = watched.agents().next().unwrap();
    let count = |path| agent.recorder().count(path, Window::Fast, watched.now_ns()).unwrap();
    assert!(count(0).lost > 20, "{:?}", count(0));
    assert_eq!((count(1).sent, count(1).lost), (50, 0));
    let [slow, fast] = [0, 1].map(|path| agent.recorder().links()[path].round_trips(watched.now_ns()));
    assert!(slow.p50_ns > 2_600_000 && fast.max_ns < 2_100, "{slow:?} {fast:?}");
}

/// A bit that is flipped on the way makes a packet that is no probe, or one that the tables take elsewhere; where it changes nothing that anybody
/// reads, the probe counts.
#[test]
fn flipped_bits_are_noticed() {
    let mut watched = idle(small(1, (1, 0), 1));
    let impairment = Impairment { corrupt: 1.0, ..Impairment::default() };
    assert!(watched.apply(&Fault::Impair { from: Node::Host(0), to: T0, impairment }));
    watched.run(2_000 * MS, |_| false);
    let counters = *watched.agents().next().unwrap().prober().counters();
    let ProbeCounters { tx_probes, rx_returned, rx_malformed, rx_forged, rx_unknown, .. } = counters;
    assert_eq!((rx_forged, rx_unknown), (0, 0), "the checksum tells before");
    // Source, traffic class, flow label and hop limit of the outer header, and what the kernel passes over in the inner one, are 24 to 36 % of the bits.
    assert!((tx_probes / 5..tx_probes * 2 / 5).contains(&rx_returned), "{counters:?}");
    assert!(rx_malformed > tx_probes / 3, "{counters:?}");
}

/// An agent that is started again does not know the probes of the one before; without an agent nobody does.
#[test]
fn an_agent_can_stop_and_start_again() {
    let mut watched = idle(small(1, (1, 0), 2));
    watched.run(50 * MS, |_| false);
    // A probe is under way for 2 µs.
    let host = HostId(0);
    while watched.sim().net().on_their_way() == 0 {
        let now_ns = watched.now_ns();
        watched.run(now_ns + 500, |_| false);
    }
    for host in [0, 1] {
        watched.start_agent(host, None).unwrap();
    }
    watched.run(60 * MS, |_| false);
    let refused: u64 = sum(&watched, |counters| counters.rx_foreign);
    assert_eq!(refused, 1, "{}", Refused::Foreign);
    watched.sim_mut().net_mut().with_transport(host, |at, _: Time| at.stop_agent());
    assert_eq!(watched.agents().count(), 1);
    let before = sum(&watched, |counters| counters.tx_probes);
    watched.run(100 * MS, |_| false);
    assert_eq!(sum(&watched, |counters| counters.tx_probes) - before, 40, "those of the other host");
}
