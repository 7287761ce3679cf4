//! A picture of a scenario: a column for each flow, and under each other what arrived, over which planes, what was lost, and the
//! states of the entropy values.

mod timeline;

use super::agents::{AgentEvent, AgentLog, ProbeCounts};
use super::outcome::{EventKind, EventOutcome, FlowOutcome, Outcome};
use super::report::STEP_MS;
use super::series::{Step, steps};
use crate::bench::samples::{PathSample, PlaneSample};
use crate::figure::{
    AGENT, ARRIVED, BAD, Column, Content, DENIED, DOWN, FAULT, FLOW, Key, LINES, LOST, Line, Mark, Page,
    Panel, Picture, REPAIR, RESERVE, SKIPPED, Series, StackedArea, USED,
};

/// Steps that a picture shows. Of longer scenarios each is a multiple of what the table of samples has.
const MAX_STEPS: usize = 1000;
/// Most paths of a flow that are drawn one by one.
const MAX_PATHS: usize = 8;

/// Entropy values of a plane, by state: name, colour, and how many there are of it.
type StateCount = fn(&PlaneSample) -> u64;
const STATES: [(&str, &str, StateCount); 6] = [
    ("good", USED, |plane| if plane.up { plane.good } else { 0 }),
    ("skipped once", SKIPPED, |plane| if plane.up { plane.skip } else { 0 }),
    ("in reserve", RESERVE, |plane| if plane.up { plane.reserve } else { 0 }),
    ("assumed bad", BAD, |plane| if plane.up { plane.assumed_bad } else { 0 }),
    ("denied", DENIED, |plane| if plane.up { plane.denied } else { 0 }),
    ("own port down", DOWN, |plane| if plane.up { 0 } else { plane.evs() }),
];

/// A picture of the first `length_ms` of a scenario.
pub(super) fn draw(title: &str, planes: usize, length_ms: usize, outcome: &Outcome) -> Picture {
    let step_ms = step_ms(length_ms);
    let events: Vec<_> = outcome.events.iter().map(mark).collect();
    let column = |flow: &FlowOutcome| {
        let steps = steps(flow, planes, length_ms, step_ms);
        let possible = possible(flow, outcome, length_ms as f64);
        let agents = flow.hosts.each_ref().map(|host| outcome.agents.iter().find(|log| log.host == *host));
        let found = agents.iter().flatten().flat_map(|log| log.events.iter().map(|event| found(log, event)));
        let marks = events.iter().cloned().chain(found).collect();
        let [sender, receiver] = agents.map(|log| probes(log, planes, length_ms as f64));
        let panels = vec![
            goodput(&steps, &possible),
            sender,
            receiver,
            of_planes(&steps),
            losses(&steps, step_ms),
            of_paths(&steps, step_ms),
            states(&steps),
            timeline::panel(&timeline::lives(&flow.sender, length_ms as f64)),
        ];
        Column { heading: format!("flow {}", flow.name), panels, marks }
    };
    let columns = outcome.flows.iter().map(column).collect();
    Page { title, x_label: "s", x_max: Some(length_ms as f64 / 1e3), columns }.draw()
}

/// Milliseconds of a step.
fn step_ms(length_ms: usize) -> usize {
    length_ms.div_ceil(STEP_MS * MAX_STEPS).max(1) * STEP_MS
}

/// An event, in seconds.
fn mark(event: &EventOutcome) -> Mark {
    let color = match event.kind {
        EventKind::Fault => FAULT,
        EventKind::Repair => REPAIR,
        EventKind::Flow => FLOW,
    };
    let at = event.at_ms / 1e3;
    Mark { at, color, description: format!("at {at:.3} s, {}", event.in_short()) }
}

/// What an agent found, in seconds.
fn found(log: &AgentLog, event: &AgentEvent) -> Mark {
    let AgentEvent { at_ms, event, what } = event;
    let at = at_ms / 1e3;
    let description = format!("at {at:.3} s, agent of {}: {event}, {what}", log.host);
    Mark { at, color: AGENT, description }
}

/// The share of an agent's probes that were lost in each plane.
fn probes(log: Option<&AgentLog>, planes: usize, end_ms: f64) -> Panel {
    let Some(log) = log else { return Panel::new("", Content::Lines(Vec::new())) };
    let share = |counts: &ProbeCounts, plane: usize| {
        let &(sent, lost) = counts.planes.get(plane)?;
        (sent > 0).then(|| (counts.at_ms / 1e3, 100.0 * lost as f64 / sent as f64))
    };
    let line = |(plane, color): (usize, &&'static str)| {
        let within = log.counts.iter().filter(|counts| (0.0..=end_ms).contains(&counts.at_ms));
        let points = within.filter_map(|counts| share(counts, plane)).collect();
        Line::new(Key::new(&format!("plane {plane}"), color), points)
    };
    let lines = LINES.iter().cycle().enumerate().take(planes).map(line).collect();
    Panel::new(&format!("probes of {} lost, %", log.host), Content::Lines(lines))
}

/// What can pass, as the corners of a line: seconds and Gb/s.
fn possible(flow: &FlowOutcome, outcome: &Outcome, end_ms: f64) -> Vec<(f64, f64)> {
    let mut gbps = flow.baseline_bps / 1e9;
    let mut corners = vec![(flow.start_ms / 1e3, gbps)];
    for event in &outcome.events {
        let Some(effect) = event.flows.iter().find(|effect| effect.flow == flow.name) else { continue };
        let at_s = event.at_ms / 1e3;
        corners.push((at_s, gbps));
        gbps = effect.possible_gbps;
        corners.push((at_s, gbps));
    }
    corners.push((end_ms / 1e3, gbps));
    corners
}

/// A line through the middle of each step.
fn line<'a>(key: Key, steps: &[Step<'a>], value: impl Fn(&Step<'a>) -> f64) -> Line {
    Line::new(key, steps.iter().map(|step| (middle_s(step), value(step))).collect())
}

fn middle_s(step: &Step<'_>) -> f64 {
    (step.span_ms.start + step.span_ms.end) as f64 / 2e3
}

fn goodput(steps: &[Step<'_>], possible: &[(f64, f64)]) -> Panel {
    let arrived = line(Key::new("arrived", ARRIVED), steps, |step| step.bps / 1e9);
    let possible = Line::new(Key::new("can pass", "black"), possible.to_vec());
    let possible = Line { dashed: true, ..possible };
    Panel::new("payload, Gb/s", Content::Lines(vec![arrived, possible]))
}

fn of_planes(steps: &[Step<'_>]) -> Panel {
    let planes = steps.first().map_or(0, |step| step.planes.len());
    let plane = |(plane, color): (usize, &&'static str)| {
        line(Key::new(&format!("plane {plane}"), color), steps, |step| {
            step.planes.get(plane).map_or(0.0, |plane| plane.bps / 1e9)
        })
    };
    let lines = LINES.iter().cycle().enumerate().take(planes).map(plane).collect();
    Panel::new("planes, Gb/s", Content::Lines(lines))
}

fn losses(steps: &[Step<'_>], step_ms: usize) -> Panel {
    // The lower line shows at both sides of the upper.
    let lost = Line { width: 2.6, ..line(Key::new("lost", LOST), steps, |step| step.losses) };
    let again = line(Key::new("sent again", ARRIVED), steps, |step| step.retransmits);
    Panel::new(&format!("packets in {step_ms} ms"), Content::Lines(vec![lost, again]))
}

/// Nothing where paths are unknown or too many.
fn of_paths(steps: &[Step<'_>], step_ms: usize) -> Panel {
    let known = steps.first().map_or(&[][..], |step| &step.paths);
    let known = if known.len() > MAX_PATHS { &[] } else { known };
    let path = |((number, path), color): ((usize, &PathSample), &&'static str)| {
        let name = format!("{} ({})", timeline::ev_name(path.ev), path.plane);
        line(Key::new(&name, color), steps, |step| {
            step.paths.get(number).map_or(0.0, |path| path.packets as f64)
        })
    };
    let lines = known.iter().enumerate().zip(LINES.iter().cycle()).map(path);
    Panel::new(&format!("packets by EV in {step_ms} ms"), Content::Lines(lines.collect()))
}

fn states(steps: &[Step<'_>]) -> Panel {
    let series = |&(name, color, count): &(&str, &'static str, StateCount)| {
        let all = |step: &Step<'_>| step.planes.iter().map(|plane| count(&plane.state)).sum::<u64>() as f64;
        Series { key: Key::new(name, color), values: steps.iter().map(all).collect() }
    };
    let area =
        StackedArea { x: steps.iter().map(middle_s).collect(), series: STATES.iter().map(series).collect() };
    Panel::new("entropy values", Content::StackedArea(area))
}

#[cfg(test)]
mod tests;
