//! Results of a scenario as text, tables and JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

use anyhow::Result;
use serde_json::{Value as Json, json};

use super::agents::AgentEvent;
use super::figure;
use super::outcome::{Effect, EventOutcome, FlowOutcome, Outcome};
use super::recovery::ENOUGH;
use super::scenario::Scenario;
use super::series::{PlaneStep, Step, steps};
use crate::bench::samples::{PathSample, PlaneSample, Sample, StateName};
use crate::config::FallbackName;
use crate::output::write_file;
use crate::topology::SwitchKind;
use crate::units::count;

/// Milliseconds of a row of the table of samples, and the least of a step of the figure.
pub(super) const STEP_MS: usize = 10;

/// Writes all results to a folder, and returns the summary.
pub(super) fn write(scenario: &Scenario, outcome: &Outcome, folder: &Path) -> Result<String> {
    let summary = summary(scenario, outcome);
    write_file(folder, "summary.md", |file| file.write_all(summary.as_bytes()))?;
    write_file(folder, "samples.csv", |file| samples(scenario, outcome, file))?;
    write_file(folder, "evs.csv", |file| evs(outcome, file))?;
    write_file(folder, "paths.csv", |file| paths(scenario, outcome, file))?;
    let mut object = serde_json::to_string_pretty(&object(scenario, outcome))?;
    object.push('\n');
    write_file(folder, "result.json", |file| file.write_all(object.as_bytes()))?;
    let planes = usize::from(scenario.fabric.shape().planes);
    let length_ms = scenario.duration.as_millis() as usize;
    figure::draw(&scenario.title, planes, length_ms, outcome).write(folder)?;
    Ok(summary)
}

/// One row for each flow and ten milliseconds.
fn samples(scenario: &Scenario, outcome: &Outcome, out: &mut impl std::io::Write) -> std::io::Result<()> {
    let planes = usize::from(scenario.fabric.shape().planes);
    write!(
        out,
        "time_ms,flow,gbps,losses,retransmits,timeouts,ecn_marked,trimmed,cwnd_bytes,inflight_bytes,rtt_us"
    )?;
    for plane in 0..planes {
        for name in ["gbps", "up", "good", "skip", "reserve", "assumed_bad", "denied"] {
            write!(out, ",p{plane}_{name}")?;
        }
    }
    writeln!(out)?;
    let length_ms = scenario.duration.as_millis() as usize;
    for flow in &outcome.flows {
        for step in steps(flow, planes, length_ms, STEP_MS) {
            let Step {
                span_ms, bps, losses, retransmits, timeouts, ecn_marked, trimmed, sender, planes, ..
            } = step;
            write!(out, "{},{},{:.6}", span_ms.start, flow.name, bps / 1e9)?;
            write!(out, ",{losses},{retransmits},{timeouts},{ecn_marked},{trimmed}")?;
            write!(out, ",{}", sender.map_or_else(|| ",,".to_owned(), window))?;
            for PlaneStep { bps, state } in planes {
                let PlaneSample { up, good, skip, reserve, assumed_bad, denied, .. } = state;
                let (gbps, up) = (bps / 1e9, u8::from(up));
                write!(out, ",{gbps:.6},{up},{good},{skip},{reserve},{assumed_bad},{denied}")?;
            }
            writeln!(out)?;
        }
    }
    Ok(())
}

/// One row for each flow, ten milliseconds and path of the sender, of flows with few of them.
fn paths(scenario: &Scenario, outcome: &Outcome, out: &mut impl std::io::Write) -> std::io::Result<()> {
    writeln!(out, "time_ms,flow,plane,ev,packets")?;
    let length_ms = scenario.duration.as_millis() as usize;
    for flow in &outcome.flows {
        for Step { span_ms, paths, .. } in steps(flow, 0, length_ms, STEP_MS) {
            for PathSample { plane, ev, packets } in paths {
                writeln!(out, "{},{},{plane},{ev},{packets}", span_ms.start, flow.name)?;
            }
        }
    }
    Ok(())
}

/// Congestion window, bytes in flight and round-trip time; empty where there is none.
fn window(sample: &Sample) -> String {
    let cwnd = sample.cwnd_bytes.map_or_else(String::new, |bytes| bytes.to_string());
    let rtt = sample.rtt_ns.map_or_else(String::new, |ns| format!("{:.1}", ns as f64 / 1e3));
    format!("{cwnd},{},{rtt}", sample.inflight_bytes)
}

/// One row for each entropy value and change of its state.
fn evs(outcome: &Outcome, out: &mut impl std::io::Write) -> std::io::Result<()> {
    writeln!(out, "time_ms,flow,queue_pair,plane,ev,state,active,drops")?;
    for flow in &outcome.flows {
        for (at, line) in &flow.sender.evs {
            let state = match line.state {
                StateName::Good => "good",
                StateName::Skip => "skip",
                StateName::AssumedBad => "assumed-bad",
                StateName::Denied => "denied",
            };
            let (queue_pair, plane, ev) = (line.queue_pair, line.plane, line.ev);
            let (active, drops) = (u8::from(line.active), line.drops);
            writeln!(out, "{at:.3},{},{queue_pair},{plane},{ev},{state},{active},{drops}", flow.name)?;
        }
    }
    Ok(())
}

fn object(scenario: &Scenario, outcome: &Outcome) -> Json {
    let flow = |flow: &FlowOutcome| {
        json!({
            "name": flow.name,
            "start_ms": flow.start_ms,
            "baseline_gbps": flow.baseline_bps / 1e9,
            "verified": flow.verified,
            "qp_errors": flow.qp_errors,
            "client": flow.said.client,
            "server": flow.said.server,
        })
    };
    json!({
        "scenario": scenario.name,
        // The former name of the field, for one version.
        "experiment": scenario.name,
        "title": scenario.title,
        "version": env!("CARGO_PKG_VERSION"),
        "topology": scenario.topology.name(),
        "duration_ms": scenario.duration.as_millis() as u64,
        "link_rate_bps": scenario.rate(),
        "switch": scenario.switch,
        "port": scenario.port.name,
        "flows": outcome.flows.iter().map(flow).collect::<Vec<_>>(),
        "events": outcome.events,
        "agents": outcome.agents,
    })
}

/// A page in Markdown.
fn summary(scenario: &Scenario, outcome: &Outcome) -> String {
    let mut page = format!("# {}\n\n", scenario.title);
    let shape = scenario.fabric.shape();
    let links = scenario
        .rate()
        .map_or_else(String::new, |rate| format!(", links of {} Mb/s in each direction", rate as f64 / 1e6));
    let planes = count(shape.planes.into(), "plane");
    let switches = match scenario.switch {
        SwitchKind::Kernel => String::new(),
        kind => format!(", switches of kind {kind}"),
    };
    let ports = format!("ports of kind {}", scenario.port.name);
    let _ = writeln!(page, "{planes}{links}{switches}, {ports}, {} s.\n", scenario.duration.as_secs_f64());
    for (flow, of_scenario) in outcome.flows.iter().zip(&scenario.flows) {
        let verdict = if flow.verified { "every byte verified" } else { "MEMORY IS WRONG" };
        let errors = match flow.qp_errors {
            0 => "no queue pair error".to_owned(),
            errors if flow.fallback == FallbackName::Shift => {
                format!("{} that other queue pairs replaced", count(errors, "queue pair error"))
            }
            errors => count(errors, "QUEUE PAIR ERROR"),
        };
        let messages = flow.said.client["rows"][0]["iterations"].as_u64().unwrap_or_default();
        let baseline = flow.baseline_bps / 1e9;
        let _ = writeln!(
            page,
            "- flow {}: {baseline:.3} Gb/s before any event; {}, {verdict}, {errors}",
            flow.name,
            count(messages, of_scenario.operation.word())
        );
    }
    if !outcome.events.is_empty() {
        page += &events(outcome);
    }
    if !outcome.agents.is_empty() {
        page += &agents(outcome);
    }
    page
}

/// What happened, and what it did to each flow.
fn events(outcome: &Outcome) -> String {
    let mut page = String::new();
    let _ = writeln!(
        page,
        "\nRecovered: at {:.0} % of the possible rate, and there on average until the next event, in ms after the lab began to change. Below: ms of rates below that. Rates in Gb/s.\n",
        ENOUGH * 100.0
    );
    let head = [
        "at s",
        "what",
        "flow",
        "can pass",
        "mean",
        "recovered",
        "goal",
        "below",
        "gap ms",
        "lost",
        "repeated",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for event in &outcome.events {
        for (number, effect) in event.flows.iter().enumerate() {
            let flow = outcome.flows.iter().find(|flow| flow.name == effect.flow);
            let exhausts = event.silent && flow.is_some_and(|flow| flow.fallback == FallbackName::Shift);
            rows.push(row(event, effect, number == 0, event.goal_ms.filter(|_| !exhausts)));
        }
    }
    page += &table(&rows);
    let mut not_judged = BTreeMap::<_, Vec<_>>::new();
    for event in &outcome.events {
        for effect in &event.flows {
            if let Some(why) = effect.not_judged {
                not_judged.entry((&effect.flow, why)).or_default().push(format!("{:.3}", event.at_ms / 1e3));
            }
        }
    }
    for ((flow, why), at) in not_judged {
        let _ = writeln!(page, "\nNot judged: flow {flow} at {} s, since {why}.", at.join(", "));
    }
    page
}

/// What the agents said, and how long after the last event.
fn agents(outcome: &Outcome) -> String {
    let mut all: Vec<_> =
        outcome.agents.iter().flat_map(|log| log.events.iter().map(|event| (&log.host, event))).collect();
    if all.is_empty() {
        return "\nThe agents found no fault.\n".to_owned();
    }
    all.sort_by(|(_, one), (_, other)| one.at_ms.total_cmp(&other.at_ms));
    let head = ["at s", "ms after the last event", "agent of", "", "what"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for (host, AgentEvent { at_ms, event, what }) in all {
        let before = outcome.events.iter().map(|event| event.at_ms).take_while(|before| before <= at_ms);
        let after = before.last().map_or_else(|| "-".to_owned(), |before| format!("{:.0}", at_ms - before));
        let at = format!("{:.3}", at_ms / 1e3);
        rows.push(vec![at, after, host.clone(), event.clone(), what.clone()]);
    }
    format!("\nWhat the agents found:\n\n{}", table(&rows))
}

fn row(event: &EventOutcome, effect: &Effect, first: bool, goal_ms: Option<f64>) -> Vec<String> {
    let recovered = match effect.recovery_ms {
        Some(0.0) => "no dip".to_owned(),
        Some(after) => format!("{after:.0}"),
        None if effect.not_judged.is_some() => "-".to_owned(),
        None => "NO".to_owned(),
    };
    let goal = match goal_ms.filter(|_| effect.not_judged.is_none()) {
        None => "-".to_owned(),
        Some(goal) if effect.recovery_ms.is_some_and(|after| after <= goal) => format!("{goal:.0}: met"),
        Some(goal) => format!("{goal:.0}: missed"),
    };
    let (at, what) = if first {
        (format!("{:.3}", event.at_ms / 1e3), event.in_short())
    } else {
        (String::new(), String::new())
    };
    vec![
        at,
        what,
        effect.flow.clone(),
        format!("{:.3}", effect.possible_gbps),
        format!("{:.3}", effect.mean_gbps),
        recovered,
        goal,
        effect.below_ms.map_or_else(|| "-".to_owned(), |below| format!("{below:.0}")),
        format!("{:.0}", effect.longest_gap_ms),
        effect.losses.to_string(),
        effect.retransmits.to_string(),
    ]
}

/// A table in Markdown that can be read as it is.
fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<_> = (0..columns).map(|column| width(column).unwrap_or_default()).collect();
    let line = |row: &[String]| {
        let cells = row.iter().zip(&widths).map(|(cell, &width)| format!(" {cell:<width$} "));
        format!("|{}|\n", cells.collect::<Vec<_>>().join("|"))
    };
    let mut text = String::new();
    for (number, row) in rows.iter().enumerate() {
        text += &line(row);
        if number == 0 {
            let rule: Vec<_> = widths.iter().map(|&width| "-".repeat(width + 2)).collect();
            text += &format!("|{}|\n", rule.join("|"));
        }
    }
    text
}
