//! Samples of a side at short intervals: a line of JSON for each sample and for each change of an entropy value.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use spindrift::endpoint::QpStatus;
use spindrift::path::{EvId, EvState, EvStatus};
use spindrift_pmd::LinkState;

use super::endpoint_setup::Side;
use super::transport::{Nics, Pair, PairOf, Qp};

/// How often a sample is taken if nobody says.
pub(crate) const USUAL_INTERVAL: Duration = Duration::from_millis(10);

/// Most paths, entropy values of planes, whose packets are told one by one.
const MAX_PATHS: usize = 24;

/// Where samples go and how often they are taken.
#[derive(Clone, Debug)]
pub(crate) struct SamplesConfig {
    pub(crate) path: PathBuf,
    pub(crate) interval: Duration,
}

impl SamplesConfig {
    /// Creates the file, empty.
    pub(crate) fn create(&self) -> Result<File> {
        File::create(&self.path)
            .with_context(|| format!("--samples {}: cannot be written", self.path.display()))
    }
}

/// A line of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub(crate) enum Line {
    Sample(Sample),
    Ev(EvLine),
}

/// What a side had done by a moment. Counts are since it was opened, of all lanes and queue pairs together; those with the names of
/// transport counters are those.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sample {
    /// Nanoseconds since 1970.
    pub(crate) unix_ns: u64,
    pub(crate) rx_placed_bytes: u64,
    pub(crate) tx_data: u64,
    pub(crate) tx_data_bytes: u64,
    pub(crate) tx_retransmits: u64,
    pub(crate) tx_tail_probes: u64,
    pub(crate) rx_data: u64,
    pub(crate) rx_ecn_marked: u64,
    pub(crate) rx_trimmed: u64,
    /// Losses declared, whatever they were seen by.
    pub(crate) losses: u64,
    pub(crate) spurious_retransmits: u64,
    pub(crate) timeouts: u64,
    pub(crate) qp_errors: u64,
    /// Mean congestion window of the queue pairs that have one.
    pub(crate) cwnd_bytes: Option<u64>,
    /// Mean of what the queue pairs have in flight, as congestion control counts it.
    pub(crate) inflight_bytes: u64,
    /// Longest smoothed round-trip time of a queue pair; absent before the first sample of one.
    pub(crate) rtt_ns: Option<u64>,
    /// Shortest round-trip time that a queue pair has seen.
    pub(crate) min_rtt_ns: Option<u64>,
    pub(crate) planes: Vec<PlaneSample>,
    /// What took each path; empty where there are more than 24 of them.
    pub(crate) paths: Vec<PathSample>,
}

/// A path, an entropy value of a plane, in a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PathSample {
    pub(crate) plane: u8,
    pub(crate) ev: u32,
    /// Data packets that took it so far, of all queue pairs, repeats and tail probes included.
    pub(crate) packets: u64,
}

/// A plane in a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PlaneSample {
    /// Whether the link is up at this side's port, on every lane.
    pub(crate) up: bool,
    pub(crate) tx_bytes: u64,
    pub(crate) rx_bytes: u64,
    /// Entropy values in use, of all queue pairs.
    pub(crate) good: u64,
    /// In use, and passed over for a while, for congestion or a loss.
    pub(crate) skip: u64,
    /// Good, and in reserve.
    pub(crate) reserve: u64,
    pub(crate) assumed_bad: u64,
    pub(crate) denied: u64,
}

impl PlaneSample {
    /// All entropy values of the plane.
    pub(crate) fn evs(&self) -> u64 {
        self.good + self.skip + self.reserve + self.assumed_bad + self.denied
    }
}

/// The state that an entropy value came to by a moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EvLine {
    pub(crate) unix_ns: u64,
    /// Which queue pair of the run, from 0.
    pub(crate) queue_pair: usize,
    pub(crate) plane: u8,
    pub(crate) ev: u32,
    pub(crate) state: StateName,
    /// In the active set; else in reserve or out of use.
    pub(crate) active: bool,
    /// Packets lost on it.
    pub(crate) drops: u32,
}

/// The state of an entropy value, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum StateName {
    Good,
    Skip,
    AssumedBad,
    Denied,
}

impl From<EvState> for StateName {
    fn from(state: EvState) -> Self {
        match state {
            EvState::Good => Self::Good,
            EvState::Skip => Self::Skip,
            EvState::AssumedBad => Self::AssumedBad,
            EvState::Denied => Self::Denied,
        }
    }
}

/// Takes samples of a side. The thread that drives the first lane asks for them: they cost no lock of another thread's there.
pub(crate) struct Sampler {
    out: BufWriter<File>,
    path: PathBuf,
    interval: Duration,
    /// Wall clock and monotonic clock at one moment. From then on only the second counts: steps of the first do no harm.
    epoch: (u64, Instant),
    next: Instant,
    nics: Nics,
    /// Of each queue pair.
    pairs: Vec<PairOf>,
    /// As far as they were told.
    told: BTreeMap<(Pair, EvId), Told>,
    /// What took each path of a plane; nothing once there were too many to be told.
    paths: Option<BTreeMap<(u8, u32), u64>>,
    /// The first error; nothing more is written then.
    error: Option<anyhow::Error>,
}

/// What was told of an entropy value of a queue pair, and what had taken it by then.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    state: Option<(StateName, bool)>,
    packets: u32,
}

impl Sampler {
    /// Begins with a sample at the first look.
    pub(crate) fn new(config: &SamplesConfig, side: &Side) -> Result<Self> {
        let (wall, now) = (SystemTime::now(), Instant::now());
        let since_1970 = wall.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        Ok(Self {
            out: BufWriter::new(config.create()?),
            path: config.path.clone(),
            interval: config.interval,
            epoch: (since_1970, now),
            next: now,
            nics: side.nics.clone(),
            pairs: side.qps.iter().map(Qp::pair_of).collect(),
            told: BTreeMap::new(),
            paths: Some(BTreeMap::new()),
            error: None,
        })
    }

    /// Takes a sample if one is due. What goes wrong is kept for [`Sampler::finish`]: a run is not ended for it.
    pub(crate) fn look(&mut self, now: Instant) {
        if now < self.next || self.error.is_some() {
            return;
        }
        // After a pause the grid stays: samples of two sides are to be laid beside each other.
        let behind = now.duration_since(self.next).as_nanos() / self.interval.as_nanos().max(1);
        self.next += self.interval * (behind as u32).saturating_add(1);
        if let Err(error) = self.take(now) {
            self.error = Some(error);
        }
    }

    /// The last sample, and the end of the file.
    pub(crate) fn finish(&mut self) -> Result<()> {
        if self.error.is_none() {
            let result = self.take(Instant::now());
            self.error = result.err();
        }
        match self.error.take() {
            Some(error) => {
                Err(error.context(format!("--samples {}: the file is not complete", self.path.display())))
            }
            None => Ok(()),
        }
    }

    fn take(&mut self, now: Instant) -> Result<()> {
        let (epoch_ns, epoch) = self.epoch;
        let unix_ns = epoch_ns + now.duration_since(epoch).as_nanos() as u64;
        let mut planes = Vec::new();
        for port in self.nics.query_ports() {
            if planes.len() <= port.plane {
                planes.resize(port.plane + 1, PlaneSample { up: true, ..PlaneSample::default() });
            }
            let Some(plane) = planes.get_mut(port.plane) else { continue };
            plane.up &= port.link == LinkState::Up;
            plane.tx_bytes += port.counters.tx_bytes;
            plane.rx_bytes += port.counters.rx_bytes;
        }
        // During a switch a queue pair may have none.
        let pairs =
            self.pairs.iter().enumerate().filter_map(|(number, pair)| Some((number, pair.now().ok()?)));
        let pairs: Vec<(usize, Pair)> = pairs.collect();
        let mut statuses = Vec::with_capacity(pairs.len());
        for (number, pair) in pairs {
            let (evs, status) = self.nics.with_endpoint(pair, |endpoint| {
                let evs: Vec<EvStatus> = endpoint.ev_states(pair.qpn).into_iter().flatten().collect();
                (evs, endpoint.qp_status(pair.qpn))
            })?;
            statuses.extend(status);
            for mut status in evs {
                status.plane = self.nics.plane(pair.nic, status.plane.into()) as u8;
                let state = StateName::from(status.state);
                if let Some(plane) = planes.get_mut(usize::from(status.plane)) {
                    *plane.count(state, status.active) += 1;
                }
                self.tell(unix_ns, (number, pair), state, &status)?;
            }
        }
        let counters = self.nics.counters();
        self.write(&Line::Sample(Sample {
            unix_ns,
            rx_placed_bytes: counters.rx_placed_bytes,
            tx_data: counters.tx_data,
            tx_data_bytes: counters.tx_data_bytes,
            tx_retransmits: counters.tx_retransmits,
            tx_tail_probes: counters.tx_tail_probes,
            rx_data: counters.rx_data,
            rx_ecn_marked: counters.rx_ecn_marked,
            rx_trimmed: counters.rx_trimmed,
            losses: counters.loss_same_ev + counters.loss_overdue + counters.loss_nack,
            spurious_retransmits: counters.spurious_retransmits,
            timeouts: counters.timeouts,
            qp_errors: counters.qp_errors,
            cwnd_bytes: mean(statuses.iter().map(|qp| qp.cwnd_bytes).filter(|&cwnd| cwnd < u64::MAX)),
            inflight_bytes: mean(statuses.iter().map(|qp| qp.inflight_bytes)).unwrap_or_default(),
            rtt_ns: measured(&statuses, |qp| qp.smoothed_rtt_ns).max(),
            min_rtt_ns: measured(&statuses, |qp| qp.min_rtt_ns).min(),
            planes,
            paths: self.paths.iter().flatten().map(path_sample).collect(),
        }))?;
        // Whoever watches the file sees it at once.
        Ok(self.out.flush()?)
    }

    /// Adds what has taken an entropy value since it was looked at last; writes what it came to, if that is news.
    fn tell(
        &mut self,
        unix_ns: u64,
        (queue_pair, pair): (usize, Pair),
        state: StateName,
        status: &EvStatus,
    ) -> Result<()> {
        // SKIP lasts one turn, and is told by its number in the samples.
        let lasting = if state == StateName::Skip { StateName::Good } else { state };
        let news = Told { state: Some((lasting, status.active)), packets: status.packets };
        let before = self.told.insert((pair, status.id), news).unwrap_or_default();
        if let Some(paths) = &mut self.paths {
            let taken = status.packets.wrapping_sub(before.packets);
            *paths.entry((status.plane, status.ev.0)).or_default() += u64::from(taken);
            if paths.len() > MAX_PATHS {
                self.paths = None;
            }
        }
        if before.state == news.state {
            return Ok(());
        }
        self.write(&Line::Ev(EvLine {
            unix_ns,
            queue_pair,
            plane: status.plane,
            ev: status.ev.0,
            state: lasting,
            active: status.active,
            drops: status.drop_count,
        }))
    }

    fn write(&mut self, line: &Line) -> Result<()> {
        serde_json::to_writer(&mut self.out, line)?;
        Ok(self.out.write_all(b"\n")?)
    }
}

fn path_sample((&(plane, ev), &packets): (&(u8, u32), &u64)) -> PathSample {
    PathSample { plane, ev, packets }
}

fn mean(values: impl Iterator<Item = u64>) -> Option<u64> {
    let (sum, count) =
        values.fold((0_u64, 0_u64), |(sum, count), value| (sum.saturating_add(value), count + 1));
    sum.checked_div(count)
}

/// Times of the queue pairs that have measured one.
fn measured(statuses: &[QpStatus], time: fn(&QpStatus) -> u64) -> impl Iterator<Item = u64> {
    statuses.iter().map(time).filter(|&ns| ns > 0)
}

impl PlaneSample {
    fn count(&mut self, state: StateName, active: bool) -> &mut u64 {
        match state {
            StateName::AssumedBad => &mut self.assumed_bad,
            StateName::Denied => &mut self.denied,
            _ if !active => &mut self.reserve,
            StateName::Good => &mut self.good,
            StateName::Skip => &mut self.skip,
        }
    }
}
