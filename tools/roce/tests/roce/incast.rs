//! Incast: what PFC and DCQCN do (MRC paper, figures 18, 21 and 22).

use spindrift_fabric::workload::Workload;
use spindrift_fabric::{ClosSpec, LinkId, PfcSpec};
use spindrift_roce::{Marking, Profile};
use spindrift_srv6::Node;

use crate::support::{GBPS, Nics, WIRE, World, clos, endless, least, line, most, nic, over, sum};

/// What came of an incast of `senders` to host 0 and of a victim that sends to host 1 in the same rack.
#[derive(Debug)]
struct Outcome {
    /// Gb/s of each of the incast, and of the victim.
    incast: Vec<f64>,
    victim: f64,
    /// Bytes that waited for the link to host 0, every ten microseconds.
    queue: Vec<u64>,
    pauses: u64,
    dropped: u64,
    timeouts: u64,
}

/// Seven to one from two racks, and a victim from the third; over `ms` milliseconds after as many again.
fn cross_spine(
    profile: Option<Profile>,
    pfc: Option<PfcSpec>,
    nics: impl Into<Nics>,
    ms: u64,
    seed: u64,
) -> Outcome {
    let nics = nics.into();
    let fabric = clos(4, 4, nics.spec.qp.line_bps / GBPS, profile, pfc);
    run(fabric, nics, vec![endless((4..11).map(|from| (from, 0))), endless([(12, 1)])], ms, seed)
}

/// So many to one in a rack.
fn in_a_rack(profile: Profile, senders: u32, ms: u64) -> Outcome {
    let fabric = clos(1, 16, 100, Some(profile), Some(buffer(32)));
    let victim = endless([(0, 15)]);
    run(fabric, nic(100, Some(profile)), vec![endless((1..=senders).map(|from| (from, 0))), victim], ms, 1)
}

fn run(fabric: ClosSpec, nics: impl Into<Nics>, work: Vec<Box<dyn Workload>>, ms: u64, seed: u64) -> Outcome {
    let mut world = World::new(fabric, nics, seed, work);
    let last_hop: LinkId = {
        let host = Node::Host(0);
        let t0 = world.clos.neighbours(host).next().unwrap();
        world.clos.link(t0, host).unwrap()
    };
    let (from, to) = (ms * 1_000_000, 2 * ms * 1_000_000);
    world.run_until(from);
    let pauses = world.sim.net().counters().pauses;
    let mut queue = Vec::new();
    for at in 1..=ms * 100 {
        world.run_until(from + at * 10_000);
        queue.push(world.sim.net().queued_bytes(last_hop));
    }
    let counters = world.sim.net().counters();
    Outcome {
        incast: world.rates(0, from, to),
        victim: world.rates(1, from, to)[0],
        queue,
        pauses: counters.pauses - pauses,
        dropped: counters.dropped,
        timeouts: world.total(|host| host.timeouts),
    }
}

impl Outcome {
    fn print(&self, what: &str) {
        let Self { incast, victim, queue, pauses, dropped, timeouts } = self;
        let (low, high) = (queue.iter().min().unwrap(), queue.iter().max().unwrap());
        println!(
            "{what}: {incast:.1?} = {:.1}, victim {victim:.0}, queue {low} to {high}, mean {:.0}, {pauses} pauses, {dropped} dropped, {timeouts} timeouts",
            sum(incast),
            self.mean_queue()
        );
    }

    fn mean_queue(&self) -> f64 {
        self.queue.iter().sum::<u64>() as f64 / self.queue.len() as f64
    }
}

const MIB: u64 = 1 << 20;

const fn buffer(mib: u64) -> PfcSpec {
    PfcSpec::new(mib * MIB, 4_300)
}

/// Figures 21a and 21b: with PFC alone nothing is lost, and the victim, which shares no full link with the incast, has 30 to 100 of 400 Gb/s.
#[test]
fn pfc_alone_blocks_a_victim() {
    for seed in 1..=3 {
        let outcome = cross_spine(None, Some(buffer(8)), nic(400, None), 2, seed);
        outcome.print(&format!("PFC alone, seed {seed}"));
        assert!(outcome.pauses > 100 && outcome.dropped == 0 && outcome.timeouts == 0);
        assert!(sum(&outcome.incast) > 0.98 * line(400), "the bottleneck is full");
        assert!((0.05..0.4).contains(&(outcome.victim / line(400))), "{}", outcome.victim);
    }
}

/// Without it the queue overflows. Repeats are lost as well, and then every queue pair waits for its timer.
#[test]
fn without_pfc_the_incast_collapses() {
    let outcome = cross_spine(None, None, nic(400, None), 2, 1);
    outcome.print("neither");
    assert!(outcome.dropped > 1_000 && outcome.pauses == 0);
    assert!(sum(&outcome.incast) < 0.5 * line(400));
}

/// The paper's DCQCN keeps the queue between Kmin and Kmax, so that the bottleneck is full and nobody is paused.
#[test]
fn dcqcn_keeps_the_queue_between_its_thresholds() {
    for senders in [7, 14] {
        let outcome = in_a_rack(Profile::Paper, senders, 25);
        outcome.print(&format!("paper, {senders}"));
        let Marking { kmin_bytes, kmax_bytes, .. } = Profile::Paper.marking(100 * GBPS);
        let (low, high) = (*outcome.queue.iter().min().unwrap(), *outcome.queue.iter().max().unwrap());
        // A few packets are on their way when the queue is at Kmax.
        assert!(low >= kmin_bytes && high <= kmax_bytes + 10 * WIRE, "{low} to {high}");
        assert!(sum(&outcome.incast) > 0.98 * line(100) && outcome.victim > 0.98 * line(100));
        assert_eq!((outcome.pauses, outcome.dropped), (0, 0));
        let fair = line(100) / f64::from(senders);
        assert!(least(&outcome.incast) > 0.7 * fair && most(&outcome.incast) < 1.3 * fair);
    }
}

/// Figure 22: with few flows the vendor's default holds the queue. The aggressive sets hold it lower, and lose a part of the rate.
#[test]
fn aggressive_sets_hold_the_queue_lower_and_lose_rate() {
    let profiles = [Profile::Vendor, Profile::Aggressive, Profile::MostAggressive];
    let outcomes = profiles.map(|profile| {
        let outcome = in_a_rack(profile, 7, 30);
        outcome.print(profile.name());
        let Marking { kmax_bytes, .. } = profile.marking(100 * GBPS);
        assert!(outcome.queue.iter().all(|&queue| queue <= kmax_bytes + 10 * WIRE));
        assert_eq!((outcome.pauses, outcome.dropped), (0, 0));
        outcome
    });
    let Marking { kmin_bytes, kmax_bytes, .. } = Profile::Vendor.marking(100 * GBPS);
    let [queues, rates] = [
        outcomes.each_ref().map(Outcome::mean_queue),
        outcomes.each_ref().map(|outcome| sum(&outcome.incast) / line(100)),
    ];
    assert!((kmin_bytes as f64..kmax_bytes as f64).contains(&queues[0]), "{queues:?}");
    assert!(queues[0] > 2.0 * queues[1] && queues[1] > 1.2 * queues[2], "{queues:?}");
    assert!(rates[0] > 0.98 && rates[1] < 0.97 && rates[2] < rates[1], "{rates:?}");
}

/// Figures 18a and 18b: with many queue pairs DCQCN is too slow for the buffer, some pauses are left, and the victim pays.
#[test]
fn dcqcn_does_not_prevent_all_pauses() {
    let spec = over(8, nic(100, Some(Profile::Vendor)));
    let outcome = cross_spine(Some(Profile::Vendor), Some(buffer(8)), spec, 8, 1);
    outcome.print("vendor, 8 queue pairs");
    assert!(outcome.pauses > 10 && outcome.dropped == 0);
    assert!(outcome.victim < 0.9 * line(100), "{}", outcome.victim);
}
