//! How long a message takes through an idle network.

use spindrift_fabric::HostId;
use spindrift_fabric::workload::{Stream, StreamSpec};

use crate::support::{World, clos, dumbbell, rtt_ns, three_tiers};

/// One packet there and its answer back: what the fabric's formula says, at each rate, within a rack, across another one's cable, across T1,
/// and across T2.
#[test]
fn a_packet_and_its_answer_take_a_base_round_trip() {
    for gbps in [10, 100, 800] {
        let shapes = [
            (1, clos(2, 1, 4, gbps)),
            (5, dumbbell(4, gbps)),
            (3, clos(2, 2, 2, gbps)),
            (31, three_tiers(gbps)),
        ];
        for (to, shape) in shapes {
            let spec = StreamSpec { size: 4096, depth: 1, count: Some(20), start_ns: 0, stop_ns: None };
            let stream = Stream::new(vec![(HostId(0), HostId(to))], spec);
            let mut world = World::new(shape, 1, vec![Box::new(stream)]);
            world.finish(1_000_000_000);
            let done = world.sim.jobs()[0].done();
            let took: Vec<_> = done.iter().map(|done| done.done.since(done.posted)).collect();
            let want = rtt_ns(&shape);
            // Headers are not all as long as in the formula, and round trips are whole nanoseconds.
            let near = |took: u64| took.abs_diff(want) * 50 <= want;
            assert!(took.iter().all(|&took| near(took)), "{gbps} Gb/s, to {to}: {took:?}, {want}");
        }
    }
}
