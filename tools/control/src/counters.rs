//! The counters of a context, as its control socket reports them.
//!
//! They are read when somebody asks, from snapshots that lanes publish between two polls. A packet costs nothing more for them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use spindrift::counters::Counters;
use spindrift::engine::LaneCounters;
use spindrift::path::{EvState, EvStatus};
use spindrift::pmd::{LinkState, PortCounters};
use spindrift::verbs::{Context, QpState, VerbsError};

use crate::controlled::visit;

/// Characters of a program's name that are kept.
const NAME_MAX: usize = 64;

/// What a context has counted since it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CountersReport {
    /// The version of the transport.
    pub version: String,
    /// The number of the process.
    pub process: u32,
    /// Which of the process's control sockets this is, from 0.
    pub context: u32,
    /// What the program calls itself.
    pub program: String,
    /// Of all lanes together, by the names of [`Counters`].
    pub transport: BTreeMap<String, u64>,
    /// Of all lanes together, by the names of [`LaneCounters`].
    pub lanes: BTreeMap<String, u64>,
    /// The planes, in ascending order.
    pub planes: Vec<PlaneCounters>,
    /// The queue pairs that there are.
    pub queue_pairs: QpTotals,
    /// Rules on its deny list.
    pub deny_rules: u64,
}

/// A plane: the ports of all lanes, and the entropy values of all queue pairs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaneCounters {
    /// Its number.
    pub plane: usize,
    /// Kind and address of the first lane's port.
    pub port: String,
    /// The links of all its ports are up.
    pub up: bool,
    /// By the names of [`PortCounters`].
    pub counters: BTreeMap<String, u64>,
    /// Its entropy values now.
    pub evs: EvTotals,
}

/// Entropy values by state, of all queue pairs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvTotals {
    /// In use.
    pub good: u64,
    /// In use, and passed over for a while, for congestion or a loss.
    pub skip: u64,
    /// Good, and in reserve.
    pub reserve: u64,
    /// They lose packets, and are probed.
    pub assumed_bad: u64,
    /// Denied, themselves or with their plane.
    pub denied: u64,
}

/// The queue pairs of a context now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpTotals {
    /// How many there are in each state: `RESET`, `INIT`, `RTR`, `RTS` and `ERROR`.
    pub states: BTreeMap<String, u64>,
    /// Send work requests not complete.
    pub sends_outstanding: u64,
    /// Smoothed round-trip times of the queue pairs that have measured one.
    pub rtt: RttTotals,
}

/// Smoothed round-trip times of queue pairs in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RttTotals {
    /// Queue pairs that have measured one. Without any, all that follows is 0.
    pub queue_pairs: u64,
    /// The shortest.
    pub min_ns: u64,
    /// Half of the queue pairs have no longer one.
    pub p50_ns: u64,
    /// 99 % have no longer one.
    pub p99_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

impl RttTotals {
    fn of(mut rtts_ns: Vec<u64>) -> Self {
        rtts_ns.sort_unstable();
        let at = |percent: usize| {
            let last = rtts_ns.len().saturating_sub(1);
            rtts_ns.get((rtts_ns.len() * percent).div_ceil(100).saturating_sub(1).min(last))
        };
        let [min_ns, p50_ns, p99_ns, max_ns] =
            [0, 50, 99, 100].map(|percent| at(percent).copied().unwrap_or_default());
        Self { queue_pairs: rtts_ns.len() as u64, min_ns, p50_ns, p99_ns, max_ns }
    }
}

impl EvTotals {
    fn add(&mut self, status: &EvStatus) {
        let of = match status.state {
            EvState::AssumedBad => &mut self.assumed_bad,
            EvState::Denied => &mut self.denied,
            EvState::Good | EvState::Skip if !status.active => &mut self.reserve,
            EvState::Good => &mut self.good,
            EvState::Skip => &mut self.skip,
        };
        *of += 1;
    }
}

/// The names of the states of queue pairs, in the order in which they are passed.
pub(crate) const QP_STATES: [&str; 5] = ["RESET", "INIT", "RTR", "RTS", "ERROR"];

pub(crate) const fn state_name(state: QpState) -> &'static str {
    match state {
        QpState::Reset => "RESET",
        QpState::Init => "INIT",
        QpState::Rtr => "RTR",
        QpState::Rts => "RTS",
        QpState::Error => "ERROR",
    }
}

fn by_name(counters: impl IntoIterator<Item = (&'static str, u64)>) -> BTreeMap<String, u64> {
    counters.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn add_by_name(sum: &mut BTreeMap<String, u64>, more: BTreeMap<String, u64>) {
    for (name, value) in more {
        *sum.entry(name).or_default() += value;
    }
}

fn of_lanes(counters: LaneCounters) -> BTreeMap<String, u64> {
    let LaneCounters {
        polls,
        idle_polls,
        interruptions,
        doorbells,
        rx_frames,
        tx_frames,
        tx_refused,
        refused_requests,
        cq_overruns,
        taken_over,
        handover_lost,
    } = counters;
    by_name([
        ("polls", polls),
        ("idle_polls", idle_polls),
        ("interruptions", interruptions),
        ("doorbells", doorbells),
        ("rx_frames", rx_frames),
        ("tx_frames", tx_frames),
        ("tx_refused", tx_refused),
        ("refused_requests", refused_requests),
        ("cq_overruns", cq_overruns),
        ("taken_over", taken_over),
        ("handover_lost", handover_lost),
    ])
}

fn of_port(counters: PortCounters) -> BTreeMap<String, u64> {
    let PortCounters {
        tx_frames,
        tx_bytes,
        rx_frames,
        rx_bytes,
        tx_dropped,
        rx_dropped,
        rx_unread,
        tx_full,
        tx_unsent,
        tx_oversize,
        tx_fragmented,
        tx_unsendable,
        tx_errors,
        rx_errors,
        tx_calls,
        rx_calls,
    } = counters;
    by_name([
        ("tx_frames", tx_frames),
        ("tx_bytes", tx_bytes),
        ("rx_frames", rx_frames),
        ("rx_bytes", rx_bytes),
        ("tx_dropped", tx_dropped),
        ("rx_dropped", rx_dropped),
        ("rx_unread", rx_unread),
        ("tx_full", tx_full),
        ("tx_unsent", tx_unsent),
        ("tx_oversize", tx_oversize),
        ("tx_fragmented", tx_fragmented),
        ("tx_unsendable", tx_unsendable),
        ("tx_errors", tx_errors),
        ("rx_errors", rx_errors),
        ("tx_calls", tx_calls),
        ("rx_calls", rx_calls),
    ])
}

/// The sums over one context, or over the two of a device with fallback.
#[derive(Debug, Default)]
pub struct Totals {
    transport: Counters,
    lanes: LaneCounters,
    planes: BTreeMap<usize, PlaneCounters>,
    queue_pairs: QpTotals,
    rtts_ns: Vec<u64>,
}

impl Totals {
    /// Adds what a context has counted. `number` is what the operator calls a plane of it.
    ///
    /// # Errors
    /// [`VerbsError`].
    pub fn add(&mut self, context: &Context, number: impl Fn(usize) -> usize) -> Result<(), VerbsError> {
        self.transport.add(&context.counters());
        self.lanes.add(&context.lane_counters());
        for port in context.query_ports() {
            let plane = number(port.plane);
            let up = port.link == LinkState::Up;
            let new = || PlaneCounters { plane, port: port.name.clone(), up, ..PlaneCounters::default() };
            let of_plane = self.planes.entry(plane).or_insert_with(new);
            of_plane.up &= up;
            add_by_name(&mut of_plane.counters, of_port(port.counters));
        }
        visit(context, None, |endpoint, _, qpn| {
            let Some(status) = endpoint.qp_status(qpn) else { return };
            *self.queue_pairs.states.entry(state_name(status.state).to_owned()).or_default() += 1;
            self.queue_pairs.sends_outstanding += u64::from(status.send_outstanding);
            self.rtts_ns.extend(Some(status.smoothed_rtt_ns).filter(|&ns| ns > 0));
            for ev in endpoint.ev_states(qpn).into_iter().flatten() {
                if let Some(plane) = self.planes.get_mut(&number(ev.plane.into())) {
                    plane.evs.add(&ev);
                }
            }
        })
    }

    /// As the socket with this number, of this program, reports them.
    pub(crate) fn report(
        self,
        (process, context): (u32, u32),
        program: &str,
        deny_rules: usize,
    ) -> CountersReport {
        let Self { transport, lanes, planes, mut queue_pairs, rtts_ns } = self;
        for state in QP_STATES {
            queue_pairs.states.entry(state.to_owned()).or_default();
        }
        queue_pairs.rtt = RttTotals::of(rtts_ns);
        CountersReport {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            process,
            context,
            program: program.chars().take(NAME_MAX).collect(),
            transport: by_name(transport.iter().map(|(name, _, value)| (name, value))),
            lanes: of_lanes(lanes),
            planes: planes.into_values().collect(),
            queue_pairs,
            deny_rules: deny_rules as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_are_ordered() {
        let of = |rtts: &[u64]| {
            let rtt = RttTotals::of(rtts.to_vec());
            (rtt.queue_pairs, [rtt.min_ns, rtt.p50_ns, rtt.p99_ns, rtt.max_ns])
        };
        assert_eq!(of(&[]), (0, [0; 4]));
        assert_eq!(of(&[7]), (1, [7; 4]));
        assert_eq!(of(&[9, 1, 5]), (3, [1, 5, 9, 9]));
        let many: Vec<_> = (1..=200).rev().collect();
        assert_eq!(of(&many), (200, [1, 100, 198, 200]));
    }
}
