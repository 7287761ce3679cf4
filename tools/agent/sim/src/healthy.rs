//! Fabrics in which nothing is wrong, at full load: whatever is named there is a false accusation.

use std::sync::Arc;

use spindrift_fabric::workload::{Poisson, PoissonSpec, Sizes, Stream, StreamSpec};
use spindrift_fabric::{ClosSpec, ConnectError, HostId, MrcError, MrcHost, MrcSpec, QueueRules};

use crate::watch::{WatchError, WatchSettings, Watched};

/// What hosts send beside probes.
///
/// Each host writes to one other without end, as fast as it can, and all of them write messages to random others at random times on top: so several
/// hosts often send to one at the same time, and its port drops packets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// The fabric.
    pub spec: ClosSpec,
    /// Whether switches trim data packets that find no room, and not only drop them. Probes are dropped in both cases.
    pub trims: bool,
    /// What is written at random, as a share of what all hosts together can send.
    pub random_share: f64,
    /// How long each of these messages is, in bytes.
    pub message_bytes: u32,
    /// How long all this goes on, in nanoseconds.
    pub for_ns: u64,
    /// What everything random follows from.
    pub seed: u64,
}

/// A load cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The fabric cannot be built.
    #[error(transparent)]
    Watch(#[from] WatchError<MrcError>),
    /// Two of its hosts cannot be connected.
    #[error(transparent)]
    Connect(#[from] ConnectError),
}

/// Probes of all agents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Probed {
    /// Sent.
    pub sent: u64,
    /// Not returned in time.
    pub lost: u64,
}

impl Load {
    /// A load that is heavier than the hosts' ports can take, on a fabric with links of 100 Mb/s: an hour at 100 Gb/s would be 10^12 packets.
    pub fn slow(planes: u8, t0: u16, hosts_per_t0: u16, seed: u64) -> Self {
        let links = ClosSpec {
            planes,
            t0,
            t1: 2,
            pods: 1,
            t2: 0,
            hosts_per_t0,
            host_rate_bps: 100_000_000,
            trunk_rate_bps: 100_000_000,
            host_delay_ns: 1_000,
            trunk_delay_ns: 1_000,
            queues: QueueRules::for_rtt(1_000_000),
        };
        let queues = QueueRules::for_rtt(links.base_rtt_ns(4_300, 200));
        let spec = ClosSpec { queues, ..links };
        Self { spec, trims: true, random_share: 0.2, message_bytes: 200_000, for_ns: 10_000_000_000, seed }
    }

    /// The fabric at work, with an agent on each host.
    ///
    /// # Errors
    /// A shape or settings that cannot be.
    pub fn start(&self, settings: WatchSettings) -> Result<Watched<MrcHost>, LoadError> {
        let trim_bytes = self.spec.queues.trim_bytes.filter(|_| self.trims);
        let spec = ClosSpec { queues: QueueRules { trim_bytes, ..self.spec.queues }, ..self.spec };
        let rtt_ns = spec.base_rtt_ns(4_300, 200);
        let nic = MrcSpec { trimming: self.trims, ..MrcSpec::new(spec.planes, spec.nic_rate_bps(), rtt_ns) };
        let (nic, hosts) = (Arc::new(nic), spec.hosts());
        let mut watched = Watched::build(spec, settings, self.seed, |fabric, number| {
            let others = (0..hosts as u16).filter(|&other| other != number);
            MrcHost::new(&nic, fabric, number, others, self.seed ^ u64::from(number) << 32)
        })?;
        // Half way round, so that most of it crosses T1 switches.
        let partner = |host| HostId((host + hosts / 2) % hosts);
        let pairs = (0..hosts).map(|host| (HostId(host), partner(host))).collect();
        let endless = StreamSpec { size: 1 << 20, depth: 4, count: None, start_ns: 0, stop_ns: None };
        watched.sim_mut().add(Box::new(Stream::new(pairs, endless)))?;
        let all = (0..hosts).flat_map(|a| (0..hosts).map(move |b| (HostId(a), HostId(b))));
        let offered_bps = spec.nic_rate_bps() as f64 * f64::from(hosts) * self.random_share;
        let random = PoissonSpec {
            sizes: Sizes::fixed(self.message_bytes),
            offered_bps: offered_bps as u64,
            during_ns: (0, self.for_ns),
            seed: self.seed,
        };
        let pairs = all.filter(|(from, to)| from != to).collect();
        watched.sim_mut().add(Box::new(Poisson::new(pairs, random)))?;
        Ok(watched)
    }
}

impl Probed {
    /// Those of a fabric so far.
    pub fn of(watched: &Watched<MrcHost>) -> Self {
        let counters = watched.agents().map(|agent| *agent.prober().counters());
        counters.fold(Self::default(), |sum, counters| Self {
            sent: sum.sent + counters.tx_probes,
            lost: sum.lost + counters.lost,
        })
    }
}
