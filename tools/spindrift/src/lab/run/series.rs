//! A flow over time, in equal steps: payload received, and the state of the sender's paths.

use std::ops::Range;

use super::outcome::FlowOutcome;
use super::record::Side;
use crate::bench::samples::{PathSample, PlaneSample, Sample};

/// One step.
#[derive(Clone, Debug)]
pub(super) struct Step<'a> {
    /// Milliseconds after the start of the scenario.
    pub(super) span_ms: Range<usize>,
    /// Payload that was placed at the receiver, bits per second.
    pub(super) bps: f64,
    /// Counts within the step.
    pub(super) losses: f64,
    pub(super) retransmits: f64,
    pub(super) timeouts: f64,
    pub(super) ecn_marked: f64,
    pub(super) trimmed: f64,
    /// The sender's latest sample.
    pub(super) sender: Option<&'a Sample>,
    pub(super) planes: Vec<PlaneStep>,
    /// Paths of the sender that are known one by one, and the data packets that took them within the step.
    pub(super) paths: Vec<PathSample>,
}

/// A plane in a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlaneStep {
    /// What arrived at the receiver's port, bits per second.
    pub(super) bps: f64,
    /// How the sender saw the plane.
    pub(super) state: PlaneSample,
}

/// The first `length_ms` of the scenario in steps of `step_ms`. A shorter rest at the end is left out.
pub(super) fn steps(flow: &FlowOutcome, planes: usize, length_ms: usize, step_ms: usize) -> Vec<Step<'_>> {
    let number = length_ms / step_ms.max(1);
    let within = |side: &Side, count: &dyn Fn(&Sample) -> u64| {
        let edges = (0..=number).map(|edge| (edge * step_ms) as f64);
        let counts = side.counts(edges, count);
        counts.windows(2).map(|pair| pair[1] - pair[0]).map(f64::round).collect::<Vec<_>>()
    };
    let losses = within(&flow.sender, &|sample| sample.losses);
    let retransmits = within(&flow.sender, &|sample| sample.tx_retransmits);
    let timeouts = within(&flow.sender, &|sample| sample.timeouts);
    let ecn_marked = within(&flow.receiver, &|sample| sample.rx_ecn_marked);
    let trimmed = within(&flow.receiver, &|sample| sample.rx_trimmed);
    let rx_bytes =
        |plane: usize| move |sample: &Sample| sample.planes.get(plane).map_or(0, |plane| plane.rx_bytes);
    let known = flow.sender.samples.last().map_or(&[][..], |sample| &sample.paths);
    let taken = |path: &PathSample| within(&flow.sender, &|sample| packets_of(sample, path));
    let taken: Vec<_> = known.iter().map(taken).collect();
    let arrived: Vec<_> =
        (0..planes).map(|plane| flow.receiver.arrivals(length_ms, rx_bytes(plane))).collect();
    let step = |step: usize| {
        let span_ms = step * step_ms..(step + 1) * step_ms;
        let of = |counts: &[f64]| counts.get(step).copied().unwrap_or_default();
        let sender = flow.sender.latest(span_ms.end as f64);
        let state = |plane: usize| sender.and_then(|sample| sample.planes.get(plane)).copied();
        let planes = arrived.iter().enumerate().map(|(plane, arrived)| PlaneStep {
            bps: arrived.mean_bps(span_ms.clone()),
            state: state(plane).unwrap_or_default(),
        });
        Step {
            bps: flow.arrivals.mean_bps(span_ms.clone()),
            losses: of(&losses),
            retransmits: of(&retransmits),
            timeouts: of(&timeouts),
            ecn_marked: of(&ecn_marked),
            trimmed: of(&trimmed),
            sender,
            planes: planes.collect(),
            paths: known
                .iter()
                .zip(&taken)
                .map(|(path, taken)| PathSample { packets: of(taken) as u64, ..*path })
                .collect(),
            span_ms,
        }
    };
    (0..number).map(step).collect()
}

/// Packets that took a path, where they are known.
fn packets_of(sample: &Sample, path: &PathSample) -> u64 {
    let same = |other: &&PathSample| (other.plane, other.ev) == (path.plane, path.ev);
    sample.paths.iter().find(same).map_or(0, |path| path.packets)
}
