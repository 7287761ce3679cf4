//! What an agent knows, in words and tables.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Result, anyhow};
use spindrift_agentd::snapshot::{DeniedReport, DenyReport, FindingReport, Link, Loss, Part, Snapshot};

use crate::output::print_line;

/// A time of day.
pub(super) fn time(seconds: f64) -> String {
    let since = Duration::try_from_secs_f64(seconds).unwrap_or_default();
    let time = UNIX_EPOCH.checked_add(since).unwrap_or(SystemTime::UNIX_EPOCH);
    humantime::format_rfc3339_millis(time).to_string()
}

/// What the transports of the host avoid.
pub(super) fn denied_lines(deny: &DenyReport) -> Vec<String> {
    let DenyReport { dry_run, denied, processes, errors } = deny;
    let follow = if *dry_run {
        "no process is told (dry run)".to_owned()
    } else {
        match processes {
            1 => "1 process follows".to_owned(),
            processes => format!("{processes} processes follow"),
        }
    };
    let mut lines = vec![match denied.len() {
        0 => "Nothing is denied.".to_owned(),
        _ => format!("Denied; {follow}:"),
    }];
    let line = |entry: &DeniedReport| {
        format!("  since {}: {} ({})", time(entry.since), entry.component, entry.rules.join("; "))
    };
    lines.extend(denied.iter().map(line));
    lines.extend(errors.iter().map(|error| format!("  a process cannot be told: {error}")));
    lines
}

pub(super) fn probes(known: &Snapshot) -> String {
    let probes = &known.probes;
    let mut line =
        format!("probes: {} sent, {} returned, {} lost", probes.sent, probes.returned, probes.lost);
    let rest = [
        (probes.void, "of unknown end"),
        (probes.skipped, "skipped"),
        (probes.unsent, "refused by the kernel"),
        (probes.refused, "packets that are no returns"),
    ];
    for (number, what) in rest.into_iter().filter(|(number, _)| *number > 0) {
        let _ = write!(line, ", {number} {what}");
    }
    line
}

pub(super) fn percent(loss: &Loss) -> String {
    match loss.sent {
        0 => "-".to_owned(),
        _ if loss.net == 0.0 => "0 %".to_owned(),
        _ => format!("{:.2} %", loss.net * 100.0),
    }
}

pub(super) fn row(link: &Link) -> String {
    let rtt =
        |ns: u64| if link.rtt.samples == 0 { "-".to_owned() } else { format!("{:.1} us", ns as f64 / 1e3) };
    format!(
        "{:<28} {:<8} {:>9} {:>9} {:>9} {:>11} {:>11} {:>6}",
        format!("{}:{}", link.lower, link.upper),
        link.state,
        percent(&link.loss_1s),
        percent(&link.loss_10s),
        percent(&link.loss_5min),
        rtt(link.rtt.p50_ns),
        rtt(link.rtt.p99_ns),
        link.flaps,
    )
}

pub(super) fn header() -> String {
    format!(
        "{:<28} {:<8} {:>9} {:>9} {:>9} {:>11} {:>11} {:>6}",
        "link", "state", "loss 1s", "10s", "5min", "rtt p50", "p99", "flaps"
    )
}

pub(super) fn status(known: &Snapshot, json: bool) -> Result<()> {
    if json {
        let mut object = serde_json::to_value(known)?;
        if let Some(object) = object.as_object_mut() {
            object.insert("command".to_owned(), "agent status".into());
        }
        print_line(&object.to_string());
        return Ok(());
    }
    let up = humantime::format_duration(Duration::from_secs((known.time - known.started) as u64));
    print_line(&format!("{}, up {up}; {}", known.host, probes(known)));
    if let Some(store) = &known.store {
        print_line(&match &store.error {
            None => format!("{} agents report to the store", store.agents),
            Some(error) => format!("alone: the store cannot be reached: {error}"),
        });
    }
    if let Some(error) = &known.send_error {
        print_line(&format!("the kernel does not take all probes: {error}"));
    }
    print_line("");
    print_line(&header());
    known.links.iter().for_each(|link| print_line(&row(link)));
    print_line("");
    if known.findings.is_empty() {
        print_line("No component is at fault.");
    }
    known
        .findings
        .iter()
        .for_each(|finding| print_line(&format!("since {}: {}", time(finding.since), finding.text)));
    if let Some(deny) = &known.deny {
        for line in denied_lines(deny) {
            print_line(&line);
        }
    }
    Ok(())
}

/// Whether a component has this name, a link in either direction.
pub(super) fn is_called(part: &Part, name: &str) -> bool {
    let turned = name.split_once(':').map(|(a, b)| format!("{b}:{a}"));
    part.name == name || Some(&part.name) == turned.as_ref()
}

/// What the agent knows of a component, in words and as rows of its links; `None` if it does not probe it.
pub(super) fn explanation(known: &Snapshot, name: &str) -> Option<Vec<String>> {
    let of_name = |finding: &&FindingReport| finding.components.iter().any(|part| is_called(part, name));
    let findings: Vec<_> = known.findings.iter().filter(of_name).collect();
    let touches = |link: &&Link| {
        let whole = Part { kind: String::new(), name: format!("{}:{}", link.lower, link.upper) };
        is_called(&whole, name) || link.lower == name || link.upper == name
    };
    let links: Vec<_> = known.links.iter().filter(touches).collect();
    if findings.is_empty() && links.is_empty() {
        return None;
    }
    let mut lines: Vec<_> =
        findings.iter().map(|finding| format!("since {}: {}", time(finding.since), finding.text)).collect();
    if findings.is_empty() {
        lines.push(format!("{name} is not at fault, as far as {} can tell.", known.host));
    }
    lines.push(String::new());
    lines.push(header());
    for link in links {
        lines.push(row(link));
        lines.extend(link.transitions.iter().map(|transition| {
            let state = if transition.up { "up" } else { "down" };
            format!("    {} {state}", time(transition.time))
        }));
    }
    Some(lines)
}

pub(super) fn explain(known: &Snapshot, name: &str) -> Result<()> {
    let lines = explanation(known, name).ok_or_else(|| {
        anyhow!(
            "{name}: the agent of {} probes no such component; `spindrift agent status` lists its links",
            known.host
        )
    })?;
    for line in &lines {
        print_line(line);
    }
    Ok(())
}
