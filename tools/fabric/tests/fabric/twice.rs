//! The same settings and the same seed give the same run.

use spindrift_fabric::Impairment;
use spindrift_fabric::workload::{Stream, StreamSpec};

use crate::support::{MIB, World, clos, shifted};

#[test]
fn two_runs_with_one_seed_are_one() {
    let trace = |seed| {
        let spec = StreamSpec { size: MIB, depth: 2, count: Some(2), start_ns: 0, stop_ns: None };
        let stream = Stream::new(shifted(16, 3), spec);
        let mut world = World::new(clos(2, 4, 4, 100), seed, vec![Box::new(stream)]);
        let links: Vec<_> = world.clos.links().map(|(_, link)| link).collect();
        for &link in &links {
            world.sim.net_mut().set_impairment(link, Impairment { loss: 0.001, ..Impairment::default() });
        }
        world.finish(1_000_000_000);
        let net = world.sim.net();
        let links: Vec<_> = links.into_iter().map(|link| net.link(link)).collect();
        (world.sim.jobs()[0].done().to_vec(), net.counters(), links, net.now())
    };
    assert_eq!(trace(1), trace(1));
    assert_ne!(trace(1).0, trace(2).0);
}
