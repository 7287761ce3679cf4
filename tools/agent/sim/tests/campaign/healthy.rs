//! A fabric at full load, whose queues drop packets, accuses nobody.

use spindrift_agent_sim::WatchSettings;
use spindrift_agent_sim::healthy::{Load, Probed};
use spindrift_fabric::Messenger;

const S: u64 = 1_000_000_000;

/// Runs a load, and returns the share of probes that were lost.
fn accuses_nobody(load: &Load) -> f64 {
    let mut watched = load.start(WatchSettings::default()).unwrap();
    watched.run(load.for_ns, |_| false);
    let net = watched.sim().net();
    let placed: u64 = net.hosts().map(|host| net.transport(host).stats().placed_bytes).sum();
    let capacity = load.spec.nic_rate_bps() as f64 * f64::from(load.spec.hosts()) * load.for_ns as f64 / 1e9;
    let busy = placed as f64 * 8.0 / capacity;
    let Probed { sent, lost } = Probed::of(&watched);
    println!("seed {}: {busy:.2} of the capacity, {lost} of {sent} probes lost", load.seed);
    assert!(busy > 0.65, "the ports are busy with data: {busy}");
    assert!(net.counters().dropped > 0, "queues are full at times: {:?}", net.counters());
    assert_eq!(watched.changes(), [], "{}", watched.words());
    lost as f64 / sent as f64
}

#[test]
fn congestion_accuses_nobody() {
    let heavy = Load { trims: false, random_share: 0.5, for_ns: 6 * S, ..Load::slow(1, 2, 2, 1) };
    assert!(accuses_nobody(&heavy) > 0.0005, "probes are lost too");
    accuses_nobody(&Load { trims: true, ..heavy });
}

#[test]
#[ignore = "slow: tools/check-all.sh"]
fn congestion_accuses_nobody_for_a_minute() {
    for (seed, message_bytes) in [(2, 50_000), (3, 2_000_000)] {
        let load = Load::slow(1, 2, 2, seed);
        accuses_nobody(&Load { trims: false, random_share: 0.6, message_bytes, for_ns: 30 * S, ..load });
    }
}
