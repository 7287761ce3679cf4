//! Results of a scenario.

use std::time::Instant;

use anyhow::{Result, bail};
use serde::Serialize;
use spindrift_srv6::Node;

use super::agents::AgentLog;
use super::capacity::capacity;
use super::record::Side;
use super::recovery::{Arrivals, Recovery};
use super::scenario::{Flow, QUIET, Scenario};
use super::traffic::{Files, Said};
use crate::config::FallbackName;
use crate::lab::fault::Action;
use crate::lab::faults::{FaultSet, Place};
use crate::lab::schedule::{Happened, apply};
use crate::times::Event;

/// After a flow began, its rate counts from here on, ms.
const SETTLED_MS: f64 = 200.0;
/// What is left of a link's rate for payload, about, where the rate without faults does not tell.
const PAYLOAD_SHARE: f64 = 0.95;

/// A scenario that was run.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) start: Instant,
    /// The same, since 1970.
    pub(super) start_ns: u64,
    pub(super) names: Vec<String>,
    pub(super) files: Vec<Files>,
    pub(super) said: Vec<Said>,
    pub(super) happened: Vec<Happened>,
    pub(super) agents: Vec<AgentLog>,
}

/// What is known of it.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) flows: Vec<FlowOutcome>,
    pub(super) events: Vec<EventOutcome>,
    pub(super) agents: Vec<AgentLog>,
}

/// A flow.
#[derive(Debug)]
pub(super) struct FlowOutcome {
    pub(super) name: String,
    /// The hosts that payload comes from and goes to.
    pub(super) hosts: [String; 2],
    pub(super) start_ms: f64,
    pub(super) sender: Side,
    pub(super) receiver: Side,
    pub(super) arrivals: Arrivals,
    /// Payload per second before anything happened.
    pub(super) baseline_bps: f64,
    pub(super) verified: bool,
    pub(super) qp_errors: u64,
    /// In mode `shift`, other queue pairs replace those that fail.
    pub(super) fallback: FallbackName,
    pub(super) said: Said,
}

/// Something that happened: faults that began and ended, or flows that began.
#[derive(Clone, Debug, Serialize)]
pub(super) struct EventOutcome {
    pub(super) at_ms: f64,
    pub(super) kind: EventKind,
    /// How long it took to change the lab. Packets may feel it from the first to the last moment.
    pub(super) took_ms: f64,
    pub(super) what: Vec<String>,
    /// Within what time traffic should be itself again.
    pub(super) goal_ms: Option<f64>,
    /// A link fails, and no port tells. In mode `shift` retries must be exhausted first, for which there is no goal.
    pub(super) silent: bool,
    pub(super) flows: Vec<Effect>,
}

impl EventOutcome {
    /// What happened, in a line.
    pub(super) fn in_short(&self) -> String {
        match self.what.as_slice() {
            [one, two, more @ ..] if !more.is_empty() => format!("{one}, {two} and {} more", more.len()),
            few => few.join(", "),
        }
    }
}

/// What an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum EventKind {
    /// Faults began, and perhaps others ended.
    Fault,
    /// Faults ended.
    Repair,
    /// A flow began.
    Flow,
}

/// What it did to a flow, until the next event.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Effect {
    pub(super) flow: String,
    /// The payload that can pass.
    pub(super) possible_gbps: f64,
    /// `null` if the rate did not recover, or if nothing can pass.
    pub(super) recovery_ms: Option<f64>,
    pub(super) longest_gap_ms: f64,
    pub(super) least_gbps: f64,
    pub(super) mean_gbps: f64,
    pub(super) losses: u64,
    pub(super) retransmits: u64,
}

impl Outcome {
    pub(super) fn of(scenario: &Scenario, run: Run) -> Result<Self> {
        let length_ms = scenario.duration.as_millis() as usize;
        let first_ms = run.happened.first().map_or(length_ms as f64, |first| ms(run.start, first.from));
        let mut flows = Vec::new();
        for ((flow, name), (files, said)) in
            scenario.flows.iter().zip(run.names).zip(run.files.into_iter().zip(run.said))
        {
            let sender = Side::read(&files.samples(flow.sender()), run.start_ns)?;
            let receiver = Side::read(&files.samples(flow.receiver()), run.start_ns)?;
            let arrivals = receiver.arrivals(length_ms, |sample| sample.rx_placed_bytes);
            let start_ms = flow.start.as_secs_f64() * 1e3;
            let quiet_until =
                if flow.start.is_zero() { first_ms } else { start_ms + QUIET.as_secs_f64() * 1e3 };
            let baseline_bps = arrivals.mean_bps((start_ms + SETTLED_MS) as usize..quiet_until as usize);
            let qp_errors =
                [&sender, &receiver].map(|side| side.samples.last().map_or(0, |last| last.qp_errors));
            let hosts = [flow.from, flow.to].map(|host| scenario.fabric.name(Node::Host(host)));
            flows.push(FlowOutcome {
                name,
                hosts,
                start_ms,
                sender,
                receiver,
                arrivals,
                baseline_bps,
                verified: is_verified(&said),
                qp_errors: qp_errors.iter().sum(),
                fallback: flow.fallback,
                said,
            });
        }
        let events = events(scenario, run.start, &run.happened, &flows);
        Ok(Self { flows, events, agents: run.agents })
    }

    /// An error if anything was not as it must be. Goals are no part of it: a busy machine misses them.
    pub(super) fn check(&self) -> Result<()> {
        for flow in &self.flows {
            if !flow.verified {
                bail!("flow {}: memory does not hold what was written", flow.name);
            }
            if flow.qp_errors > 0 && flow.fallback == FallbackName::Seamless {
                bail!("flow {}: a queue pair failed", flow.name);
            }
        }
        Ok(())
    }
}

/// Both sides say so of all that was written.
fn is_verified(said: &Said) -> bool {
    [&said.client, &said.server].iter().all(|side| {
        let rows = side["rows"].as_array().map(Vec::as_slice).unwrap_or_default();
        !rows.is_empty() && rows.iter().all(|row| row["verified"] == true) && side["error"].is_null()
    })
}

fn ms(start: Instant, at: Instant) -> f64 {
    at.saturating_duration_since(start).as_secs_f64() * 1e3
}

/// An event before its effects are known.
struct Known {
    at_ms: f64,
    kind: EventKind,
    took_ms: f64,
    what: Vec<String>,
    goal_ms: Option<f64>,
    silent: bool,
    /// What each flow can carry from then on.
    capacities: Vec<f64>,
}

fn events(
    scenario: &Scenario,
    start: Instant,
    happened: &[Happened],
    flows: &[FlowOutcome],
) -> Vec<EventOutcome> {
    let rate = scenario.rate().map_or(f64::INFINITY, |rate| rate as f64);
    let routed = scenario.port.source_routes();
    let capacities = |set: &FaultSet| -> Vec<f64> {
        let of = |flow: &Flow| {
            capacity(&scenario.fabric, rate, &set.all, (flow.from, flow.to), flow.standby, routed)
        };
        scenario.flows.iter().map(of).collect()
    };
    let mut set = FaultSet::default();
    let whole = capacities(&set);
    let mut known: Vec<_> = happened
        .iter()
        .map(|happened| {
            for event in &happened.events {
                apply(&mut set, &scenario.fabric, &scenario.entries, event);
            }
            Known {
                at_ms: ms(start, happened.from),
                kind: if happened.events.iter().any(|event| event.begins) {
                    EventKind::Fault
                } else {
                    EventKind::Repair
                },
                took_ms: ms(happened.from, happened.to),
                what: happened.lines(&scenario.entries),
                goal_ms: goal_ms(scenario, &happened.events),
                silent: happened.events.iter().any(|event| is_silent(scenario, event)),
                capacities: capacities(&set),
            }
        })
        .collect();
    for flow in flows.iter().filter(|flow| flow.start_ms > 0.0) {
        let place = known.partition_point(|event| event.at_ms < flow.start_ms);
        let before = place.checked_sub(1).and_then(|before| known.get(before));
        let capacities = before.map_or_else(|| whole.clone(), |before| before.capacities.clone());
        let what = vec![format!("flow {} begins", flow.name)];
        let (at_ms, kind) = (flow.start_ms, EventKind::Flow);
        known.insert(
            place,
            Known { at_ms, kind, took_ms: 0.0, what, goal_ms: None, silent: false, capacities },
        );
    }
    let end_ms = scenario.duration.as_secs_f64() * 1e3;
    let ends: Vec<_> = known.iter().skip(1).map(|event| event.at_ms).chain([end_ms]).collect();
    let effects = |event: &Known, until_ms: f64| {
        let each = flows.iter().zip(event.capacities.iter().zip(&whole));
        let there = each.filter(|(flow, _)| flow.start_ms <= event.at_ms);
        there
            .map(|(flow, (&left, &whole))| {
                let possible_bps = possible_bps(flow.baseline_bps, left, whole);
                effect(flow, event.at_ms, until_ms, possible_bps)
            })
            .collect()
    };
    let outcome = |(event, until_ms): (Known, f64)| EventOutcome {
        flows: effects(&event, until_ms),
        at_ms: event.at_ms,
        kind: event.kind,
        took_ms: event.took_ms,
        what: event.what,
        goal_ms: event.goal_ms,
        silent: event.silent,
    };
    known.into_iter().zip(ends).map(outcome).collect()
}

/// The payload that what is left of the fabric can carry. Where links are the limit, that is the share of the rate without faults
/// that is left of them; else that rate, or less if what is left is less.
fn possible_bps(baseline: f64, left: f64, whole: f64) -> f64 {
    if whole.is_finite() {
        return if whole > 0.0 { baseline * (left / whole).min(1.0) } else { 0.0 };
    }
    baseline.min(left * PAYLOAD_SHARE)
}

fn effect(flow: &FlowOutcome, at_ms: f64, until_ms: f64, possible_bps: f64) -> Effect {
    let Recovery { after_ms, longest_gap_ms, least_bps, mean_bps } =
        flow.arrivals.recovery(at_ms, until_ms, possible_bps);
    let during = |count: fn(&crate::bench::samples::Sample) -> u64| {
        let counts = flow.sender.counts([at_ms, until_ms].into_iter(), count);
        counts.last().zip(counts.first()).map_or(0, |(end, start)| (end - start).round().max(0.0) as u64)
    };
    Effect {
        flow: flow.name.clone(),
        possible_gbps: possible_bps / 1e9,
        recovery_ms: after_ms.filter(|_| possible_bps > 0.0),
        longest_gap_ms,
        least_gbps: if least_bps.is_finite() { least_bps / 1e9 } else { 0.0 },
        mean_gbps: mean_bps / 1e9,
        losses: during(|sample| sample.losses),
        retransmits: during(|sample| sample.tx_retransmits),
    }
}

fn is_silent(scenario: &Scenario, event: &Event) -> bool {
    let entry = scenario.entries.get(event.entry);
    event.begins && entry.is_some_and(|entry| matches!(entry.fault.action, Action::Blackhole))
}

/// The time within which traffic should have recovered: from paths that fail without a sign 5 ms, from a host's port that does so
/// 50 ms, and 10 ms where the host can see it; 1 s after a repair. Of several events the longest.
fn goal_ms(scenario: &Scenario, events: &[Event]) -> Option<f64> {
    let goal = |event: &Event| {
        let entry = scenario.entries.get(event.entry)?;
        let at_port = match entry.place {
            Place::Link((lower, _)) => matches!(lower, Node::Host(_)),
            Place::Node(node) => matches!(node, Node::Host(_) | Node::T0 { .. }),
        };
        match (entry.fault.action, event.begins) {
            (Action::Down | Action::Blackhole, false) => Some(1000.0),
            (Action::Down, true) if at_port => Some(10.0),
            (Action::Blackhole, true) if at_port => Some(50.0),
            (Action::Down | Action::Blackhole, true) => Some(5.0),
            _ => None,
        }
    };
    events.iter().filter_map(goal).reduce(f64::max)
}
