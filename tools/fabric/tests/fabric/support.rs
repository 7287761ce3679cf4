//! Fabrics with something to do.

use std::sync::Arc;

use spindrift::time::Time;
use spindrift_fabric::workload::Workload;
use spindrift_fabric::{Clos, ClosSpec, HostId, MrcHost, MrcSpec, QueueRules, Sim};

pub(crate) const MIB: u32 = 1 << 20;
pub(crate) const US: u64 = 1_000;

/// Bytes on the wire of a full packet with an outer header, and of a SACK.
const FULL: u64 = 4_300;
const ANSWER: u64 = 200;

/// A fabric with full bisection and about 10 us from host to host and back.
pub(crate) fn clos(planes: u8, t0: u16, hosts_per_t0: u16, gbps: u64) -> ClosSpec {
    let rate_bps = gbps * 1_000_000_000;
    with_usual_queues(ClosSpec {
        planes,
        t0,
        t1: if t0 > 1 { hosts_per_t0 } else { 0 },
        pods: 1,
        t2: 0,
        hosts_per_t0,
        host_rate_bps: rate_bps,
        trunk_rate_bps: rate_bps,
        host_delay_ns: 1_000,
        trunk_delay_ns: 1_000,
        queues: QueueRules::for_rtt(10_000),
    })
}

/// Four pods of two planes, each with two T0 switches and eight hosts, and with full bisection in all tiers.
pub(crate) fn three_tiers(gbps: u64) -> ClosSpec {
    with_usual_queues(ClosSpec { pods: 4, t2: 2, ..clos(2, 8, 4, gbps) })
}

/// Two switches with a cable between them that is as fast as a host's.
pub(crate) fn dumbbell(hosts: u16, gbps: u64) -> ClosSpec {
    with_usual_queues(ClosSpec { t1: 0, ..clos(1, 2, hosts, gbps) })
}

fn with_usual_queues(links: ClosSpec) -> ClosSpec {
    ClosSpec { queues: QueueRules::for_rtt(rtt_ns(&links)), ..links }
}

pub(crate) const fn rtt_ns(spec: &ClosSpec) -> u64 {
    spec.base_rtt_ns(FULL, ANSWER)
}

/// A fabric and what runs over it.
pub(crate) struct World {
    pub(crate) clos: Clos,
    pub(crate) sim: Sim<MrcHost>,
}

impl World {
    /// Hosts with the defaults of a NIC.
    pub(crate) fn new(spec: ClosSpec, seed: u64, workloads: Vec<Box<dyn Workload>>) -> Self {
        Self::with(spec, seed, workloads, |nic| nic)
    }

    pub(crate) fn with(
        spec: ClosSpec,
        seed: u64,
        workloads: Vec<Box<dyn Workload>>,
        adjust: impl FnOnce(MrcSpec) -> MrcSpec,
    ) -> Self {
        let nic = Arc::new(adjust(MrcSpec::new(spec.planes, spec.nic_rate_bps(), rtt_ns(&spec))));
        let pairs: Vec<_> = workloads.iter().flat_map(|workload| workload.pairs()).collect();
        let (clos, net) = Clos::build(spec, seed, |fabric, number| {
            let me = HostId(number.into());
            let peers = pairs.iter().filter_map(|&(a, b)| match me {
                _ if me == a => Some(b.0 as u16),
                _ if me == b => Some(a.0 as u16),
                _ => None,
            });
            let mut peers: Vec<_> = peers.collect();
            peers.sort_unstable();
            peers.dedup();
            MrcHost::new(&nic, fabric, number, peers, seed << 32 | u64::from(number))
        })
        .unwrap();
        let mut sim = Sim::new(net);
        for workload in workloads {
            sim.add(workload).unwrap();
        }
        Self { clos, sim }
    }

    /// Until all is done, which must not take longer than this, and nothing may fail.
    pub(crate) fn finish(&mut self, within_ns: u64) {
        let until = self.sim.net().now() + within_ns;
        assert_eq!(self.sim.run(until), None);
        self.check();
        assert!(self.sim.is_done(), "not done at {}: {:?}", self.sim.net().now(), self.sim);
    }

    /// Goes on until `at`, and nothing may fail.
    pub(crate) fn run_until(&mut self, at: Time) {
        assert_eq!(self.sim.run(at), None);
        self.check();
    }

    fn check(&self) {
        let net = self.sim.net();
        let counters = net.counters();
        assert!(counters.add_up(net.on_their_way()), "{counters:?}, {} on their way", net.on_their_way());
        assert_eq!(counters.unroutable, 0);
        for job in self.sim.jobs() {
            assert_eq!(job.failures(), []);
        }
    }

    /// Gb/s of each connection of a job: bytes of the messages that were complete in a time.
    pub(crate) fn rates(&self, job: usize, from: Time, to: Time) -> Vec<f64> {
        let job = &self.sim.jobs()[job];
        let mut bytes = vec![0_u64; job.ends().len()];
        for done in job.done().iter().filter(|done| done.done > from && done.done <= to) {
            bytes[done.side.pair as usize] += u64::from(done.len);
        }
        bytes.into_iter().map(|bytes| bytes as f64 * 8.0 / to.since(from) as f64).collect()
    }

    /// Gb/s of each connection of a job from its first post to its last completion.
    pub(crate) fn own_rates(&self, job: usize) -> Vec<f64> {
        let job = &self.sim.jobs()[job];
        let mut ways = vec![(0_u64, Time::NEVER, Time::ZERO); job.ends().len()];
        for done in job.done() {
            let (bytes, first, last) = &mut ways[done.side.pair as usize];
            *bytes += u64::from(done.len);
            (*first, *last) = ((*first).min(done.posted), done.done);
        }
        ways.into_iter().map(|(bytes, first, last)| bytes as f64 * 8.0 / last.since(first) as f64).collect()
    }
}

/// Each of the first `hosts` hosts sends to the one that is `by` further.
pub(crate) fn shifted(hosts: u32, by: u32) -> Vec<(HostId, HostId)> {
    (0..hosts).map(|host| (HostId(host), HostId((host + by) % hosts))).collect()
}

pub(crate) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

pub(crate) fn least(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::MAX, f64::min)
}

pub(crate) fn most(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}
