//! Connections of several queue pairs: messages stay whole and in order.

use spindrift_fabric::workload::{RingAllReduce, Stream, StreamSpec, Workload};
use spindrift_fabric::{HostId, Messenger as _, MrcSpec, Striping};

use crate::support::{MIB, World, clos};

const QPS: u32 = 4;

/// Two racks of four hosts, whose switches choose paths by a hash.
fn world(work: Box<dyn Workload>, qps: u32) -> World {
    let mut world = World::with(clos(1, 2, 4, 100), 1, vec![], |nic| MrcSpec { srv6: false, ..nic });
    world.sim.add_striped(work, Striping { qps, mtu: 4_096 }).unwrap();
    world
}

#[test]
fn messages_over_several_queue_pairs_are_whole() {
    let pairs = vec![(HostId(0), HostId(4)), (HostId(1), HostId(5))];
    let spec = StreamSpec { size: 100_000, depth: 3, count: Some(20), start_ns: 0, stop_ns: None };
    let mut world = world(Box::new(Stream::new(pairs.clone(), spec)), QPS);
    world.finish(10_000_000);
    let (net, job) = (world.sim.net(), &world.sim.jobs()[0]);
    assert_eq!((job.ends().len(), job.pairs().collect::<Vec<_>>()), (8, pairs));
    for pair in 0..2 {
        let done: Vec<_> = job.done().iter().filter(|done| done.side.pair == pair).collect();
        assert!(done.len() == 20 && done.iter().all(|done| done.len == 100_000));
        assert!(done.windows(2).all(|two| two[0].posted <= two[1].posted));
        let stats = [pair, pair + 4].map(|host| net.transport(HostId(host)).stats());
        // Parts end where packets do, so there are no more of them than of the whole message: 25.
        assert_eq!((stats[0].sent - stats[0].repeats, stats[1].placed_bytes), (20 * 25, 2_000_000));
    }
    // The queue pairs of a connection lie between different ends.
    let flows: Vec<_> = job.ends().iter().map(|[one, _]| (one.host.0, one.flow)).collect();
    assert_eq!(flows, [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3)]);
}

/// A host waits for all parts of what it passes on; with one queue pair or several, the same bytes arrive.
#[test]
fn a_collective_runs_over_several_queue_pairs() {
    for qps in [1, 3] {
        let ring = RingAllReduce::new([0, 4, 1, 5].map(HostId).into(), u64::from(MIB), 2);
        let mut world = world(Box::new(ring), qps);
        world.finish(10_000_000);
        let net = world.sim.net();
        let placed = [0, 4, 1, 5].map(|host| net.transport(HostId(host)).stats().placed_bytes);
        assert_eq!(placed, [2 * 6 * u64::from(MIB) / 4; 4], "{qps}");
        assert_eq!(world.sim.jobs()[0].done().len(), 2 * 6 * 4);
    }
}
