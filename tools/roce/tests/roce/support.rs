//! Fabrics of RoCE hosts with something to do.

use std::sync::Arc;

use spindrift::time::Time;
use spindrift_fabric::workload::{Stream, StreamSpec, Workload};
use spindrift_fabric::{Clos, ClosSpec, HostId, PfcSpec, Sim, Striping};
use spindrift_roce::{Profile, Retry, RoceHost, RoceSpec};

pub(crate) const GBPS: u64 = 1_000_000_000;
pub(crate) const MIB: u32 = 1 << 20;
/// A full packet of 4,096 bytes on the wire: Ethernet, IPv6, UDP, BTH, iCRC, and what is around a frame.
pub(crate) const WIRE: u64 = 14 + 40 + 8 + 12 + 4_096 + 4 + 24;

/// What a port carries of payload, Gb/s.
pub(crate) fn line(gbps: u64) -> f64 {
    gbps as f64 * 4_096.0 / WIRE as f64
}

/// Switches with 8 MiB of shared buffer.
pub(crate) fn pfc() -> PfcSpec {
    PfcSpec::new(8 << 20, 4_300)
}

/// A fabric of one plane with full bisection, 1 us for each link; with priority flow control, and the marks of a profile, or of none.
pub(crate) fn clos(
    t0: u16,
    hosts_per_t0: u16,
    gbps: u64,
    profile: Option<Profile>,
    pfc: Option<PfcSpec>,
) -> ClosSpec {
    let rate_bps = gbps * GBPS;
    let mut queues = profile.unwrap_or(Profile::Vendor).queues(rate_bps, pfc);
    if profile.is_none() {
        queues.ecn_ns = None;
    }
    ClosSpec {
        planes: 1,
        t0,
        t1: if t0 > 1 { hosts_per_t0 } else { 0 },
        pods: 1,
        t2: 0,
        hosts_per_t0,
        host_rate_bps: rate_bps,
        trunk_rate_bps: rate_bps,
        host_delay_ns: 1_000,
        trunk_delay_ns: 1_000,
        queues,
    }
}

/// A NIC with the usual settings.
pub(crate) fn nic(gbps: u64, profile: Option<Profile>) -> RoceSpec {
    RoceSpec::new(gbps * GBPS, profile)
}

/// The same without congestion control, and with a timer that runs for 131 us, so that tests need not wait for it.
pub(crate) fn nic_for_losses(gbps: u64) -> RoceSpec {
    let mut spec = nic(gbps, None);
    spec.qp.retry = Retry { timeout: 5, count: 7, doublings: 0 };
    spec
}

pub(crate) const fn messages(size: u32, depth: u32, count: Option<u64>) -> StreamSpec {
    StreamSpec { size, depth, count, start_ns: 0, stop_ns: None }
}

/// Sends over these pairs without end: 64 messages of 64 KiB at a time.
pub(crate) fn endless(pairs: impl IntoIterator<Item = (u32, u32)>) -> Box<dyn Workload> {
    let pairs = pairs.into_iter().map(|(from, to)| (HostId(from), HostId(to))).collect();
    Box::new(Stream::new(pairs, messages(64 << 10, 64, None)))
}

/// NICs, and how many queue pairs they have for each connection.
#[derive(Clone, Copy)]
pub(crate) struct Nics {
    pub(crate) spec: RoceSpec,
    qps: u32,
}

impl From<RoceSpec> for Nics {
    fn from(spec: RoceSpec) -> Self {
        over(1, spec)
    }
}

/// So many queue pairs for each connection.
pub(crate) const fn over(qps: u32, spec: RoceSpec) -> Nics {
    Nics { spec, qps }
}

/// A fabric and what runs over it.
pub(crate) struct World {
    pub(crate) clos: Clos,
    pub(crate) sim: Sim<RoceHost>,
}

impl World {
    pub(crate) fn new(
        fabric: ClosSpec,
        nics: impl Into<Nics>,
        seed: u64,
        work: Vec<Box<dyn Workload>>,
    ) -> Self {
        let Nics { spec, qps } = nics.into();
        let nic = Arc::new(spec);
        let (clos, net) = Clos::build(fabric, seed, |fabric, host| {
            RoceHost::new(&nic, fabric, host, seed << 32 | u64::from(host))
        })
        .unwrap();
        let mut sim = Sim::new(net);
        for workload in work {
            sim.add_striped(workload, Striping { qps, mtu: spec.qp.mtu }).unwrap();
        }
        Self { clos, sim }
    }

    /// Goes on until `at`, and nothing may fail.
    pub(crate) fn run_until(&mut self, at: u64) {
        assert_eq!(self.sim.run(Time(at)), None);
        let net = self.sim.net();
        let counters = net.counters();
        assert!(counters.add_up(net.on_their_way()), "{counters:?}");
        assert_eq!(counters.unroutable, 0);
        for job in self.sim.jobs() {
            assert_eq!(job.failures(), []);
        }
    }

    /// Gb/s of each connection of a job: bytes of the messages that were complete in a time.
    pub(crate) fn rates(&self, job: usize, from: u64, to: u64) -> Vec<f64> {
        let job = &self.sim.jobs()[job];
        let mut bytes = vec![0_u64; job.pairs().count()];
        for done in job.done().iter().filter(|done| done.done > Time(from) && done.done <= Time(to)) {
            bytes[done.side.pair as usize] += u64::from(done.len);
        }
        bytes.into_iter().map(|bytes| bytes as f64 * 8.0 / (to - from) as f64).collect()
    }

    /// What all hosts have counted, by one of the counters.
    pub(crate) fn total(&self, of: impl Fn(spindrift_roce::endpoint::Counters) -> u64) -> u64 {
        let net = self.sim.net();
        net.hosts().map(|host| of(net.transport(host).counters())).sum()
    }
}

pub(crate) fn sum(values: &[f64]) -> f64 {
    values.iter().sum()
}

pub(crate) fn least(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::MAX, f64::min)
}

pub(crate) fn most(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}
