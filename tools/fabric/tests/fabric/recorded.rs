//! What a recorder sees is what happened.

use spindrift::time::Time;
use spindrift_fabric::workload::{
    Neighbours, PingPong, Poisson, PoissonSpec, Sizes, Stream, StreamSpec, Trace, TraceEntry,
};
use spindrift_fabric::{EvStateCounts, Fault, HostFlow, HostId, Messenger, Recorder, TransportStats, Watch};
use spindrift_srv6::Node;

use crate::support::{MIB, US, World, clos, rtt_ns, shifted};

const ENDLESS: StreamSpec =
    StreamSpec { size: 256 << 10, depth: 16, count: None, start_ns: 0, stop_ns: None };

/// Goes on to `to_us`, and looks every 10 us.
fn watch(world: &mut World, recorder: &mut Recorder, to_us: u64) {
    let from_us = world.sim.net().now().0 / US;
    for us in (from_us..=to_us).step_by(10) {
        world.run_until(Time(us * US));
        recorder.look(world.sim.net_mut());
    }
}

/// A path of a flow fails in silence: its bytes, losses, repeats, trims, queues and entropy values tell.
#[test]
fn a_failed_path_is_seen_in_every_row() {
    let stream = Stream::new(vec![(HostId(0), HostId(8))], ENDLESS);
    let mut world = World::new(clos(2, 2, 8, 100), 1, vec![Box::new(stream)]);
    let flow = world.sim.jobs()[0].ends()[0][0];
    assert_eq!(flow, HostFlow { host: HostId(0), flow: 0 });
    let (t0, t1) = (Node::T0 { plane: 1, number: 0 }, Node::T1 { plane: 1, number: 2 });
    let cut = world.clos.link(t0, t1).unwrap();
    let mut recorder =
        Recorder::new(Watch { hosts: vec![HostId(0), HostId(8)], links: vec![cut], flows: vec![flow] });
    watch(&mut world, &mut recorder, 300);
    world.clos.apply(world.sim.net_mut(), &Fault::Cable { ends: (t0, t1), up: false, carrier: true });
    watch(&mut world, &mut recorder, 400);
    let samples = recorder.samples();
    assert_eq!(samples.len(), 41, "one for each time");
    assert!(samples.iter().zip(0..).all(|(sample, step)| sample.at == Time(10 * US * step)));
    let (first, before, last) = (&samples[0], &samples[30], &samples[40]);
    assert_eq!(first.hosts[1].stats, TransportStats::default());
    assert_eq!(first.links[0].counters.lost_down, 0);
    let [sender, receiver] = &before.hosts[..] else { panic!("{before:?}") };
    assert_eq!((sender.stats.placed_bytes, receiver.stats.sent), (0, 0));
    assert_eq!((sender.stats.losses, sender.stats.repeats), (0, 0), "nothing is lost");
    // All that left the queues is payload in memory, headers, or still under way; both planes had their share.
    let arrived: u64 = receiver.plane_bytes.iter().sum();
    let payload = receiver.stats.placed_bytes;
    assert!(arrived * 94 / 100 <= payload && payload < arrived, "{payload} of {arrived}");
    assert!(receiver.plane_bytes[0].abs_diff(receiver.plane_bytes[1]) < arrived / 20, "{receiver:?}");
    assert!(payload * 8 > 280_000 * 180, "{payload} bytes in 300 us");
    assert!(before.links[0].counters.packets > 100 && before.links[0].counters.lost_down == 0);
    assert!(before.net.sent >= sender.stats.sent && before.net.hops > 3 * sender.stats.sent);
    let evs = |sample: &spindrift_fabric::Sample, plane: usize| sample.flows[0][plane];
    let all =
        |evs: EvStateCounts| evs.good + evs.skip + evs.reserve + evs.assumed_bad + evs.denied + evs.closed;
    assert_eq!((all(evs(before, 1)), evs(before, 1).assumed_bad), (all(evs(last, 1)), 0));
    assert!(all(evs(before, 0)) >= 8, "{:?}", before.flows);
    assert!(evs(last, 1).assumed_bad > 0 && evs(last, 0).assumed_bad == 0, "{:?}", last.flows);
    let lost = last.links[0].counters.lost_down;
    let tally = last.hosts[0].stats;
    assert!(lost > 0 && tally.losses >= lost && tally.repeats >= lost, "{lost} lost, {tally:?}");
    assert_eq!(last.hosts[0].stats.timeouts, 0);
}

/// Seven to one: packets are trimmed, and wait in the queue of the last hop.
#[test]
fn an_incast_is_seen_in_the_queue() {
    let stream = Stream::new((4..11).map(|from| (HostId(from), HostId(0))).collect(), ENDLESS);
    let mut world = World::new(clos(1, 4, 4, 400), 3, vec![Box::new(stream)]);
    let last_hop = world.sim.net().downlinks(HostId(0))[0];
    let t0 = Node::T0 { plane: 0, number: 0 };
    assert_eq!(world.clos.link(t0, Node::Host(0)), Some(last_hop));
    let mut recorder = Recorder::new(Watch { hosts: vec![HostId(0)], links: vec![last_hop], flows: vec![] });
    watch(&mut world, &mut recorder, 100);
    let most = recorder.samples().iter().map(|sample| sample.links[0].queued_bytes).max().unwrap();
    let last = recorder.samples().last().unwrap();
    let limit = u64::from(400_000_u32 / 8) * rtt_ns(world.clos.spec()) * 3 / 2 / 1_000;
    assert!(most > limit / 2, "{most} of {limit}");
    let trimmed = last.links[0].counters.queue.trimmed;
    assert!(trimmed > 0 && last.hosts[0].stats.trimmed.abs_diff(trimmed) < 1_000, "{trimmed} {last:?}");
}

/// The longest queue is that of the whole time between two samples, many or few. What finds a link idle does not wait.
#[test]
fn queues_are_known_between_samples() {
    let peaks = |step_us: usize| {
        let stream = Stream::new((4..11).map(|from| (HostId(from), HostId(0))).collect(), ENDLESS);
        let ping = PingPong::new(vec![(HostId(12), HostId(13))], 8, 1_000);
        let mut world = World::new(clos(1, 4, 4, 400), 3, vec![Box::new(stream), Box::new(ping)]);
        let links = [0, 13].map(|host| world.sim.net().downlinks(HostId(host))[0]);
        let watch = Watch { links: links.to_vec(), ..Watch::default() };
        let mut recorder = Recorder::new(watch);
        recorder.begin(world.sim.net_mut());
        for us in (0..=60).step_by(step_us) {
            world.run_until(Time(us * US));
            // A sample that replaces one of the same time keeps what that has seen.
            recorder.look(world.sim.net_mut());
            recorder.look(world.sim.net_mut());
        }
        let samples = recorder.samples();
        assert_eq!(samples.len(), 1 + 60 / step_us);
        for pair in samples.windows(2) {
            let [before, after] = [0, 1].map(|at: usize| pair[at].links[0]);
            assert!(after.peak_bytes >= after.queued_bytes.max(before.queued_bytes), "{before:?} {after:?}");
        }
        assert!(world.sim.net().link(links[1]).packets > 5);
        [0, 1].map(|link: usize| samples.iter().map(|sample| sample.links[link].peak_bytes).max().unwrap())
    };
    let (fine, coarse) = (peaks(1), peaks(60));
    assert_eq!(fine, coarse);
    assert!(fine[0] > 100_000 && fine[1] == 0, "{fine:?}");
}

/// A small message takes as long as the links and the wires do.
#[test]
fn latency_is_that_of_the_way() {
    let spec = clos(2, 2, 4, 400);
    let rounds = PingPong::new(vec![(HostId(0), HostId(1)), (HostId(2), HostId(6))], 8, 100);
    let mut world = World::new(spec, 5, vec![Box::new(rounds)]);
    world.finish(10_000_000);
    for (pair, switches) in [(0, 1_u64), (1, 3)] {
        let done = world.sim.jobs()[0].done().iter().filter(|done| done.side.pair == pair);
        let pings: Vec<_> = done.filter(|done| !done.side.second).map(|done| done.posted).collect();
        assert_eq!(pings.len(), 100);
        // 1 us for each wire, and about 3 ns for each time that 130 bytes are put on one.
        let half: Vec<_> = pings.windows(2).map(|two| two[1].since(two[0]) / 2).collect();
        let wires = (switches + 1) * 1_000;
        assert!(half.iter().all(|&ns| (wires..wires + 30).contains(&ns)), "{half:?}");
    }
}

/// More messages than a queue pair takes at once wait at their sender, in order, and their time counts from when they came.
#[test]
fn messages_wait_for_room() {
    let together = |number: u32| TraceEntry {
        start_ns: 0,
        from: HostId(0),
        to: HostId(1),
        bytes: 1 + number % 2 * MIB / 64,
        after: None,
    };
    let trace = Trace::new((0..1_000).map(together).collect()).unwrap();
    let mut world = World::new(clos(2, 1, 4, 100), 1, vec![Box::new(trace)]);
    world.finish(100_000_000);
    let done = world.sim.jobs()[0].done();
    assert_eq!(done.len(), 1_000);
    for (number, done) in (0..).zip(done) {
        assert_eq!((done.posted, done.len), (Time::ZERO, together(number).bytes));
    }
    assert!(done.is_sorted_by_key(|done| done.done));
}

#[test]
fn random_messages_come_to_their_end() {
    let pairs = (0..8).flat_map(|from| (0..8).map(move |to| (HostId(from), HostId(to))));
    let pairs: Vec<_> = pairs.filter(|(from, to)| from != to).collect();
    let sizes = Sizes::new(vec![(1_000, 0.2), (30_000, 0.8), (2 * MIB, 1.0)]).unwrap();
    let spec = PoissonSpec { sizes, offered_bps: 8 * 100_000_000_000, during_ns: (0, 2_000_000), seed: 5 };
    let exchange = Neighbours::new((0..8).map(HostId).collect(), MIB, 4);
    let workloads: Vec<Box<dyn spindrift_fabric::workload::Workload>> =
        vec![Box::new(Poisson::new(pairs, spec)), Box::new(exchange)];
    let mut world = World::new(clos(2, 2, 4, 100), 9, workloads);
    world.finish(100_000_000);
    let jobs = world.sim.jobs();
    let bytes = |job: usize| jobs[job].done().iter().map(|done| u64::from(done.len)).sum::<u64>();
    // 200 million bytes are offered in 2 ms.
    assert!((150_000_000..250_000_000).contains(&bytes(0)), "{}", bytes(0));
    assert_eq!(bytes(1), 8 * 4 * u64::from(MIB));
    assert!(jobs[0].finished().unwrap() >= Time(1_900_000));
    let placed = |host| world.sim.net().transport(HostId(host)).stats().placed_bytes;
    assert_eq!((0..8).map(placed).sum::<u64>(), bytes(0) + bytes(1));
}

/// Rates over time of every host add up to what was sent, and no plane has more than its link can carry.
#[test]
fn no_port_carries_more_than_it_can() {
    let stream = Stream::new(shifted(8, 3), StreamSpec { stop_ns: Some(200 * US), ..ENDLESS });
    let mut world = World::new(clos(2, 2, 4, 100), 2, vec![Box::new(stream)]);
    let hosts: Vec<_> = world.sim.net().hosts().collect();
    let mut recorder = Recorder::new(Watch { hosts, ..Watch::default() });
    watch(&mut world, &mut recorder, 500);
    assert!(world.sim.is_done());
    for two in recorder.samples().windows(2) {
        for (before, after) in two[0].hosts.iter().zip(&two[1].hosts) {
            for (before, after) in before.plane_bytes.iter().zip(&after.plane_bytes) {
                let bits = (after - before) * 8;
                assert!(bits <= 100 * 10 * US + 8 * 4_400, "{bits} bits in 10 us");
            }
        }
    }
    let last = recorder.samples().last().unwrap();
    let placed: u64 = last.hosts.iter().map(|host| host.stats.placed_bytes).sum();
    let done = world.sim.jobs()[0].done().iter().map(|done| u64::from(done.len)).sum::<u64>();
    assert_eq!(placed, done);
}
