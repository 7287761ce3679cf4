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
/// What is left of a link's rate for payload, about.
const PAYLOAD_SHARE: f64 = 0.95;
/// A flow that carried less than this share of what its links can carry, before anything happened, has another limit, and no verdict.
const FULL: f64 = 0.85;
/// Where more arrives than this share of what can pass, what can pass is not known.
const TOO_MUCH: f64 = 1.1;

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
    /// Why it is not judged whether the rate recovered, if so.
    pub(super) not_judged: Option<&'static str>,
    /// `null` if the rate did not recover, or if that is not judged.
    pub(super) recovery_ms: Option<f64>,
    /// How long the rate was below until the next event, `null` if that is not judged.
    pub(super) below_ms: Option<f64>,
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
    let shares: Vec<_> = (0..flows.len()).map(|flow| shares_links(&scenario.flows, flow)).collect();
    let effects = |event: &Known, until_ms: f64| {
        let links = event.capacities.iter().zip(&whole).zip(&shares);
        let there = flows.iter().zip(links).filter(|(flow, _)| flow.start_ms <= event.at_ms);
        there
            .map(|(flow, ((&left, &whole), &shared))| {
                effect(flow, event.at_ms, until_ms, &Possible::of(flow.baseline_bps, left, whole, shared))
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

/// Whether another flow begins or ends at the same host, so that the two share links.
fn shares_links(flows: &[Flow], number: usize) -> bool {
    let Some(flow) = flows.get(number) else { return false };
    let mut others = flows.iter().enumerate().filter(|(other, _)| *other != number);
    others.any(|(_, other)| other.from == flow.from || other.to == flow.to)
}

/// The payload that can pass.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Possible {
    bps: f64,
    not_judged: Option<&'static str>,
}

impl Possible {
    /// Of what the links can carry, `left` of the `whole`. Where flows share links, nobody knows how they would divide them: that is the share of
    /// the rate without faults that is left. Without a rate of links it is that rate, or less if what is left is less.
    fn of(baseline_bps: f64, left: f64, whole: f64, shared: bool) -> Self {
        let bps = match (whole.is_finite(), shared) {
            (false, _) => baseline_bps.min(left * PAYLOAD_SHARE),
            (true, true) => baseline_bps * (left / whole.max(f64::MIN_POSITIVE)).min(1.0),
            (true, false) => left * PAYLOAD_SHARE,
        };
        let not_judged = if bps <= 0.0 {
            Some("nothing can pass")
        } else if whole.is_finite() && !shared && baseline_bps < FULL * PAYLOAD_SHARE * whole {
            Some("the flow did not fill its links before any event")
        } else {
            None
        };
        Self { bps, not_judged }
    }
}

fn effect(flow: &FlowOutcome, at_ms: f64, until_ms: f64, possible: &Possible) -> Effect {
    let Recovery { after_ms, below_ms, longest_gap_ms, least_bps, mean_bps } =
        flow.arrivals.recovery(at_ms, until_ms, possible.bps);
    let during = |count: fn(&crate::bench::samples::Sample) -> u64| {
        let counts = flow.sender.counts([at_ms, until_ms].into_iter(), count);
        counts.last().zip(counts.first()).map_or(0, |(end, start)| (end - start).round().max(0.0) as u64)
    };
    let too_much = (mean_bps > TOO_MUCH * possible.bps).then_some("more arrived than can pass");
    let not_judged = possible.not_judged.or(too_much);
    Effect {
        flow: flow.name.clone(),
        possible_gbps: possible.bps / 1e9,
        not_judged,
        recovery_ms: after_ms.filter(|_| not_judged.is_none()),
        below_ms: not_judged.is_none().then_some(below_ms),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::run::recovery::Arrivals;
    use crate::lab::run::scenario::FlowOperation;

    #[test]
    fn links_say_what_can_pass_where_they_are_known() {
        let bps = |baseline, left, whole, shared| {
            let Possible { bps, not_judged } = Possible::of(baseline, left, whole, shared);
            (bps, not_judged)
        };
        let idle = Some("the flow did not fill its links before any event");
        for (baseline, left, whole, shared, want) in [
            (190.0, 100.0, 200.0, false, (95.0, None)),
            // What was measured before makes no difference, if it is enough.
            (161.6, 200.0, 200.0, false, (190.0, None)),
            (161.4, 200.0, 200.0, false, (190.0, idle)),
            (190.0, 0.0, 200.0, false, (0.0, Some("nothing can pass"))),
            // Two flows of one host.
            (90.0, 100.0, 200.0, true, (45.0, None)),
            (90.0, 0.0, 200.0, true, (0.0, Some("nothing can pass"))),
            (0.0, 0.0, 0.0, true, (0.0, Some("nothing can pass"))),
            // Nothing limits the links.
            (500.0, f64::INFINITY, f64::INFINITY, false, (500.0, None)),
            (500.0, 400.0, f64::INFINITY, false, (380.0, None)),
        ] {
            assert_eq!(bps(baseline, left, whole, shared), want, "{baseline} {left} {whole} {shared}");
        }
    }

    #[test]
    fn flows_share_links_that_begin_or_end_at_one_host() {
        let flow = |from, to| Flow {
            operation: FlowOperation::Write,
            from,
            to,
            standby: spindrift::path::PlaneSet(0),
            fallback: FallbackName::Seamless,
            start: std::time::Duration::ZERO,
            back: false,
            follow_agents: true,
            options: Vec::new(),
            udp_options: Vec::new(),
            client_options: Vec::new(),
            server_options: Vec::new(),
        };
        let shares = |ends: &[(u16, u16)]| {
            let flows: Vec<_> = ends.iter().map(|&(from, to)| flow(from, to)).collect();
            (0..flows.len()).map(|number| shares_links(&flows, number)).collect::<Vec<_>>()
        };
        // Links carry as much in one direction as in the other.
        assert_eq!(shares(&[(0, 1), (1, 0), (2, 3)]), [false; 3]);
        assert_eq!(shares(&[(0, 1), (0, 2), (3, 1), (3, 4)]), [true; 4]);
        assert_eq!(shares(&[(0, 1), (2, 1), (3, 4)]), [true, true, false]);
    }

    /// A verdict needs a rate that fits what can pass.
    #[test]
    fn what_is_not_judged_has_no_recovery() {
        let flow = |bits: f64| FlowOutcome {
            name: "f".to_owned(),
            hosts: ["a", "b"].map(str::to_owned),
            start_ms: 0.0,
            sender: Side::default(),
            receiver: Side::default(),
            arrivals: Arrivals(vec![bits; 100]),
            baseline_bps: 1e6,
            verified: true,
            qp_errors: 0,
            fallback: FallbackName::Seamless,
            said: Said { client: serde_json::Value::Null, server: serde_json::Value::Null },
        };
        let told = |bits, not_judged| {
            let effect = effect(&flow(bits), 0.0, 100.0, &Possible { bps: 1e6, not_judged });
            (effect.recovery_ms, effect.below_ms, effect.not_judged)
        };
        assert_eq!(told(1_000.0, None), (Some(0.0), Some(0.0), None));
        assert_eq!(told(800.0, None), (None, Some(91.0), None));
        assert_eq!(told(1_100.0, None), (Some(0.0), Some(0.0), None));
        assert_eq!(told(1_101.0, None), (None, None, Some("more arrived than can pass")));
        assert_eq!(told(1_000.0, Some("why")), (None, None, Some("why")));
    }
}
