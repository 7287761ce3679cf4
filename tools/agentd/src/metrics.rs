//! What an agent knows, in the text format of Prometheus (version 0.0.4). Times are seconds, loss a share from 0 to 1.

use std::fmt::Write as _;

use crate::snapshot::{Link, Snapshot};

/// The labels of a link.
fn labels(link: &Link) -> String {
    format!("lower=\"{}\",upper=\"{}\",plane=\"{}\"", link.lower, link.upper, link.plane)
}

/// A metric of each link.
fn of_links(
    text: &mut String,
    snapshot: &Snapshot,
    [name, kind, help]: [&str; 3],
    values: impl Fn(&Link) -> Vec<(String, f64)>,
) {
    let _ = writeln!(text, "# HELP spindrift_agent_{name} {help}\n# TYPE spindrift_agent_{name} {kind}");
    for link in &snapshot.links {
        let labels = labels(link);
        for (more, value) in values(link) {
            let _ = writeln!(text, "spindrift_agent_{name}{{{labels}{more}}} {value}");
        }
    }
}

/// Values that the agent has one of.
fn of_agent(text: &mut String, snapshot: &Snapshot) {
    let probes = &snapshot.probes;
    let counters = [
        ("probes_sent_total", probes.sent, "Probes sent."),
        ("probes_returned_total", probes.returned, "Probes that came back in time."),
        ("probes_lost_total", probes.lost, "Probes that did not come back in time."),
        (
            "probes_void_total",
            probes.void,
            "Probes of which nothing is known, since the agent did not run meanwhile.",
        ),
        ("probes_skipped_total", probes.skipped, "Probes that were not sent, since the agent came too late."),
        ("probes_unsent_total", probes.unsent, "Probes that the kernel did not take."),
        ("packets_refused_total", probes.refused, "Packets that are no return of a probe in flight."),
    ];
    for (name, value, help) in counters {
        let _ = writeln!(
            text,
            "# HELP spindrift_agent_{name} {help}\n# TYPE spindrift_agent_{name} counter\nspindrift_agent_{name} {value}"
        );
    }
    if let Some(store) = &snapshot.store {
        let up = u8::from(store.error.is_none());
        let gauges = [
            ("store_up", u64::from(up), "Whether the store can be reached by which agents work together."),
            ("agents", store.agents, "Agents of the fabric that report now, this one included."),
        ];
        for (name, value, help) in gauges {
            let _ = writeln!(
                text,
                "# HELP spindrift_agent_{name} {help}\n# TYPE spindrift_agent_{name} gauge\nspindrift_agent_{name} {value}"
            );
        }
    }
}

/// All metrics.
pub fn text(snapshot: &Snapshot) -> String {
    let mut text = String::new();
    of_agent(&mut text, snapshot);
    of_links(
        &mut text,
        snapshot,
        ["link_up", "gauge", "Whether probes of the link come back; absent while unknown."],
        |link| match link.state.as_str() {
            "up" => vec![(String::new(), 1.0)],
            "down" => vec![(String::new(), 0.0)],
            _ => Vec::new(),
        },
    );
    of_links(&mut text, snapshot, ["link_flaps_total", "counter", "How often the link went down."], |link| {
        vec![(String::new(), link.flaps as f64)]
    });
    let loss = "Share of the link's probes that were lost, less that of the path below it.";
    of_links(&mut text, snapshot, ["link_loss_ratio", "gauge", loss], |link| {
        let windows = [("1s", link.loss_1s), ("10s", link.loss_10s), ("5m", link.loss_5min)];
        windows.map(|(window, loss)| (format!(",window=\"{window}\""), loss.net)).into()
    });
    let rtt = "Round-trip times of the link's probes in the last 10 to 20 s.";
    of_links(&mut text, snapshot, ["link_rtt_seconds", "summary", rtt], |link| {
        let Some(_) = std::num::NonZero::new(link.rtt.samples) else { return Vec::new() };
        let quantiles = [("0.5", link.rtt.p50_ns), ("0.99", link.rtt.p99_ns), ("0.999", link.rtt.p999_ns)];
        quantiles.map(|(quantile, ns)| (format!(",quantile=\"{quantile}\""), ns as f64 / 1e9)).into()
    });
    let _ = writeln!(
        text,
        "# HELP spindrift_agent_finding Share of probes that a component at fault loses; one of several with the same number is.\n\
         # TYPE spindrift_agent_finding gauge"
    );
    for (number, finding) in snapshot.findings.iter().enumerate() {
        for part in &finding.components {
            let _ = writeln!(
                text,
                "spindrift_agent_finding{{number=\"{number}\",kind=\"{}\",component=\"{}\",fault=\"{}\"}} {}",
                part.kind, part.name, finding.fault, finding.rate
            );
        }
    }
    of_denied(&mut text, snapshot);
    text
}

/// With a policy only.
fn of_denied(text: &mut String, snapshot: &Snapshot) {
    let Some(deny) = &snapshot.deny else { return };
    let _ = writeln!(
        text,
        "# HELP spindrift_agent_denied_processes Processes of the host that avoid what is denied.\n\
         # TYPE spindrift_agent_denied_processes gauge\n\
         spindrift_agent_denied_processes {}\n\
         # HELP spindrift_agent_denied Components that the policy denies: 1 while it does.\n\
         # TYPE spindrift_agent_denied gauge",
        deny.processes
    );
    for entry in &deny.denied {
        let _ = writeln!(text, "spindrift_agent_denied{{component=\"{}\"}} 1", entry.component);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{DeniedReport, DenyReport, FindingReport, Loss, Part, Probes, Rtt, Store};

    fn link(lower: &str, state: &str, samples: u64) -> Link {
        let loss = |net| Loss { sent: 1000, lost: 20, net };
        Link {
            lower: lower.to_owned(),
            upper: "p1-t1-0".to_owned(),
            plane: 1,
            state: state.to_owned(),
            loss_1s: loss(0.5),
            loss_10s: loss(0.25),
            loss_5min: loss(0.0),
            rtt: Rtt { samples, p50_ns: 10_500, p99_ns: 20_000, p999_ns: 1_000_000, max_ns: 2_000_000 },
            flaps: 3,
            transitions: Vec::new(),
        }
    }

    /// Names and units are an interface: dashboards and rules of others use them.
    #[test]
    fn the_text_is_this() {
        let part = |kind: &str, name: &str| Part { kind: kind.to_owned(), name: name.to_owned() };
        let finding = FindingReport {
            components: vec![part("link", "p1-t0-0:p1-t1-0"), part("switch", "p1-t1-0")],
            fault: "lossy".to_owned(),
            rate: 0.125,
            ..FindingReport::default()
        };
        let denied = DeniedReport { component: "plane 1 of this host".to_owned(), ..DeniedReport::default() };
        let snapshot = Snapshot {
            probes: Probes { sent: 9, returned: 6, lost: 2, void: 1, skipped: 4, unsent: 5, refused: 7 },
            links: vec![link("p1-t0-0", "up", 5), link("p1-t0-1", "down", 0), link("p1-t0-2", "unknown", 0)],
            findings: vec![finding],
            store: Some(Store { agents: 3, error: None }),
            deny: Some(DenyReport { denied: vec![denied], processes: 2, ..DenyReport::default() }),
            ..Snapshot::default()
        };
        let text = text(&snapshot);
        let values: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let of = |lower: &str| format!("lower=\"p1-t0-{lower}\",upper=\"p1-t1-0\",plane=\"1\"");
        let mut expected: Vec<String> = [
            "probes_sent_total 9",
            "probes_returned_total 6",
            "probes_lost_total 2",
            "probes_void_total 1",
            "probes_skipped_total 4",
            "probes_unsent_total 5",
            "packets_refused_total 7",
            "store_up 1",
            "agents 3",
        ]
        .map(str::to_owned)
        .into();
        expected.push(format!("link_up{{{}}} 1", of("0")));
        expected.push(format!("link_up{{{}}} 0", of("1")));
        expected.extend(["0", "1", "2"].map(|lower| format!("link_flaps_total{{{}}} 3", of(lower))));
        for lower in ["0", "1", "2"] {
            for (window, value) in [("1s", "0.5"), ("10s", "0.25"), ("5m", "0")] {
                expected.push(format!("link_loss_ratio{{{},window=\"{window}\"}} {value}", of(lower)));
            }
        }
        for (quantile, value) in [("0.5", "0.0000105"), ("0.99", "0.00002"), ("0.999", "0.001")] {
            expected.push(format!("link_rtt_seconds{{{},quantile=\"{quantile}\"}} {value}", of("0")));
        }
        for (kind, name) in [("link", "p1-t0-0:p1-t1-0"), ("switch", "p1-t1-0")] {
            expected.push(format!(
                "finding{{number=\"0\",kind=\"{kind}\",component=\"{name}\",fault=\"lossy\"}} 0.125"
            ));
        }
        expected.push("denied_processes 2".to_owned());
        expected.push("denied{component=\"plane 1 of this host\"} 1".to_owned());
        let expected: Vec<_> = expected.iter().map(|line| format!("spindrift_agent_{line}")).collect();
        assert_eq!(values, expected);
        // Each metric has its help and its type, once, before its values.
        let mut known = std::collections::BTreeSet::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                assert!(known.insert(rest.split(' ').next().unwrap_or_default().to_owned()), "{line}");
            }
        }
        for value in values {
            let name = value.split(['{', ' ']).next().unwrap_or_default();
            assert!(known.contains(name) && text.contains(&format!("# TYPE {name} ")), "{name}");
        }
        assert!(text.contains("# TYPE spindrift_agent_link_rtt_seconds summary\n"), "that has quantiles");
    }
}
