//! Collectives: what QP scaling gives (MRC paper, figures 16 and 17).

use spindrift_fabric::workload::{AllToAll, RingAllReduce, Workload};
use spindrift_fabric::{HostId, Impairment};
use spindrift_roce::Profile;

use crate::support::{MIB, World, clos, line, nic, nic_for_losses, over, pfc};

const GBPS: u64 = 100;
const SEEDS: u64 = 3;

/// Sixteen hosts of four racks, such that neighbours in the ring are in different racks.
fn ring() -> Vec<HostId> {
    (0..16).map(|at| HostId(at % 4 * 4 + at / 4)).collect()
}

/// How long a collective takes with so many queue pairs for each flow, when every link to a host loses this share of packets: us, the mean of some seeds.
fn takes(qps: u32, loss: f64, work: impl Fn() -> Box<dyn Workload>) -> f64 {
    let mut total = 0.0;
    for seed in 1..=SEEDS {
        let base = if loss > 0.0 { nic_for_losses(GBPS) } else { nic(GBPS, Some(Profile::Vendor)) };
        let spec = over(qps, base);
        let fabric = clos(4, 4, GBPS, Some(Profile::Vendor), Some(pfc()));
        let mut world = World::new(fabric, spec, seed, vec![work()]);
        let hosts = world.sim.net().hosts();
        let down: Vec<_> = hosts.flat_map(|host| world.sim.net().downlinks(host).to_vec()).collect();
        for link in down {
            world.sim.net_mut().set_impairment(link, Impairment { loss, ..Impairment::default() });
        }
        world.run_until(1_000_000_000);
        total += world.sim.jobs()[0].finished().unwrap().0 as f64 / 1e3;
    }
    total / SEEDS as f64
}

/// Every host sends to its neighbour at once, so a collision of two flows slows the whole ring down.
#[test]
fn more_queue_pairs_help_a_ring() {
    let bytes = 16 * u64::from(MIB);
    let [one, four, sixteen] =
        [1, 4, 16].map(|qps| takes(qps, 0.0, || Box::new(RingAllReduce::new(ring(), bytes, 1))));
    // Each host sends 30 parts of a sixteenth.
    let ideal = bytes as f64 * 30.0 / 16.0 * 8.0 / line(GBPS) / 1e3;
    println!(
        "ring: {one:.0} us with one queue pair, {four:.0} with 4, {sixteen:.0} with 16, {ideal:.0} on paper"
    );
    assert!(
        (1.8..4.0).contains(&(one / ideal)) && four < one && sixteen < 0.75 * one,
        "{one} {four} {sixteen}"
    );
    assert!(sixteen > 1.05 * ideal, "but they do not reach it");
}

/// Many flows at once mask each other's collisions, so more queue pairs help less; in the paper's testbed, not at all.
#[test]
fn more_queue_pairs_help_an_all_to_all_less() {
    let work = || Box::new(AllToAll::new(ring(), MIB, 15)) as Box<dyn Workload>;
    let [one, sixteen] = [1, 16].map(|qps| takes(qps, 0.0, work));
    println!("all-to-all: {one:.0} us with one queue pair, {sixteen:.0} with 16");
    assert!((0.7..1.1).contains(&(sixteen / one)), "{one} {sixteen}");
}

/// The whole ring waits for the slowest, so losses cost it much more than one flow.
#[test]
fn losses_hurt_a_ring() {
    let bytes = 8 * u64::from(MIB);
    let [none, few, many] =
        [1e-9, 0.001, 0.01].map(|loss| takes(1, loss, || Box::new(RingAllReduce::new(ring(), bytes, 1))));
    println!("ring: {none:.0} us without loss, {few:.0} at 0.1 %, {many:.0} at 1 %");
    assert!(few > 1.02 * none && many > 1.2 * none, "{none} {few} {many}");
}
