//! Fabrics for trials.

use spindrift_fabric::{ClosSpec, QueueRules};

/// A fabric of one or two tiers: planes, T0 and T1 switches of each plane, hosts at each T0 switch. Links of 100 Gb/s, a microsecond long.
pub fn small(planes: u8, (t0, t1): (u16, u16), hosts_per_t0: u16) -> ClosSpec {
    let links = ClosSpec {
        planes,
        t0,
        t1,
        pods: 1,
        t2: 0,
        hosts_per_t0,
        host_rate_bps: 100_000_000_000,
        trunk_rate_bps: 100_000_000_000,
        host_delay_ns: 1_000,
        trunk_delay_ns: 1_000,
        queues: QueueRules::for_rtt(10_000),
    };
    // Of a full packet under an outer header, and of a SACK.
    ClosSpec { queues: QueueRules::for_rtt(links.base_rtt_ns(4_300, 200)), ..links }
}

/// A fabric of three tiers: planes, T0 and T1 switches of each of the pods, the T2 switches that each T1 switch is joined to, hosts at each T0 switch.
pub fn three_tiers(planes: u8, (t0, t1): (u16, u16), (pods, t2): (u16, u16), hosts_per_t0: u16) -> ClosSpec {
    let flat = ClosSpec { pods, t2, ..small(planes, (t0 * pods, t1), hosts_per_t0) };
    ClosSpec { queues: QueueRules::for_rtt(flat.base_rtt_ns(4_300, 200)), ..flat }
}
