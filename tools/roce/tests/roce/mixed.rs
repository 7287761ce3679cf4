//! RoCE beside MRC in one fabric.

use std::sync::Arc;

use spindrift::time::Time;
use spindrift_fabric::workload::Stream;
use spindrift_fabric::{
    Clos, ClosSpec, Either, HostId, Messenger as _, MrcHost, MrcSpec, Net, QueueRules, Sim,
};
use spindrift_roce::{RoceHost, RoceSpec};

use crate::support::{clos, least, line, messages, nic, pfc};

type Host = Either<MrcHost, RoceHost>;

/// Two racks of four hosts at 100 Gb/s with PFC and without marks; those that `roce` names run RoCE.
fn fabric(roce: impl Fn(u16) -> bool) -> (Clos, Net<Host>) {
    let links = ClosSpec {
        queues: QueueRules { pfc: Some(pfc()), ecn_ns: None, ..QueueRules::for_rtt(10_000) },
        ..clos(2, 4, 100, None, None)
    };
    let mrc = Arc::new(MrcSpec { srv6: false, ..MrcSpec::new(1, links.nic_rate_bps(), 10_000) });
    let nic = Arc::new(RoceSpec { dscp: links.queues.dscp, ..nic(100, None) });
    let made = Clos::build(links, 1, |fabric, host| {
        let seed = 1 << 32 | u64::from(host);
        if roce(host) {
            RoceHost::new(&nic, fabric, host, seed).map(Either::Second).map_err(|error| error.to_string())
        } else {
            let made = MrcHost::new(&mrc, fabric, host, [], seed);
            made.map(Either::First).map_err(|error| error.to_string())
        }
    });
    made.unwrap()
}

#[test]
fn both_run_in_one_fabric() {
    let (_, net) = fabric(|host| host % 2 == 0);
    let mut sim = Sim::new(net);
    // Each host writes to the one of its number in the other rack: two flows of each kind, over four links.
    let pairs = (0..4).map(|host| (HostId(host), HostId(host + 4))).collect();
    sim.add(Box::new(Stream::new(pairs, messages(64 << 10, 16, None)))).unwrap();
    assert_eq!(sim.run(Time(4_000_000)), None);
    let net = sim.net();
    let bytes = [0, 1, 2, 3].map(|host| net.transport(HostId(host + 4)).stats().placed_bytes);
    let rates = bytes.map(|bytes| bytes as f64 * 8.0 / 4e6);
    println!("{rates:?} of {}, {:?}", line(100), net.counters());
    assert!(least(&rates) > 0.2 * line(100), "{rates:?}");
    assert!(net.counters().add_up(net.on_their_way()));
    assert_eq!(net.counters().dropped, 0);
    let kinds = net.hosts().map(|host| matches!(net.transport(host), Either::Second(_)));
    assert!(kinds.eq([true, false].into_iter().cycle().take(8)));
}

/// RoCE and MRC do not speak to each other.
#[test]
fn different_transports_are_not_connected() {
    let (_, mut net) = fabric(|host| host == 0);
    let refused = net.connect(HostId(0), HostId(1)).unwrap_err();
    assert!(refused.to_string().contains("different transports"), "{refused}");
    assert!(net.connect(HostId(1), HostId(2)).is_ok());
}
