//! What uses the agent's metrics: the dashboard and the alert rules in `configs/`, and the operator's guide. `promtool` judges them too where
//! it is installed (Debian: `prometheus`); with `SPINDRIFT_REQUIRE_PROMTOOL` it has to be.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]
#![allow(clippy::print_stderr, reason = "tests that are skipped say so")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use spindrift_agentd::metrics;
use spindrift_agentd::snapshot::{DeniedReport, DenyReport, FindingReport, Link, Part, Rtt, Snapshot, Store};

const PREFIX: &str = "spindrift_agent_";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}

/// The metrics of an agent that has some of everything.
fn text() -> String {
    let part = Part { kind: "link".to_owned(), name: "p0-t0-0:p0-t1-0".to_owned() };
    let link = Link {
        lower: "p0-t0-0".to_owned(),
        upper: "p0-t1-0".to_owned(),
        state: "up".to_owned(),
        rtt: Rtt { samples: 1, p50_ns: 1_000, ..Rtt::default() },
        ..Link::default()
    };
    let finding =
        FindingReport { components: vec![part], fault: "down".to_owned(), ..FindingReport::default() };
    let store = Some(Store { agents: 3, error: None });
    let denied =
        vec![DeniedReport { component: "link p0-t0-0:p0-t1-0".to_owned(), ..DeniedReport::default() }];
    let deny = Some(DenyReport { denied, ..DenyReport::default() });
    metrics::text(&Snapshot {
        links: vec![link],
        findings: vec![finding],
        store,
        deny,
        ..Snapshot::default()
    })
}

/// The names of metrics and their labels.
fn exported() -> BTreeMap<String, BTreeSet<String>> {
    let mut names = BTreeMap::<String, BTreeSet<String>>::new();
    let text = text();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let end = line.find(['{', ' ']).unwrap();
        let labels = line[end..].split('}').next().unwrap().split("=\"").map(|part| {
            part.rsplit(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_').next().unwrap()
        });
        let labels = labels.filter(|label| !label.is_empty()).map(str::to_owned);
        names.entry(line[..end].to_owned()).or_default().extend(labels);
    }
    names
}

/// The names of metrics in a text.
fn used(text: &str) -> BTreeSet<String> {
    let names = text.match_indices(PREFIX).map(|(at, _)| {
        let rest = &text[at..];
        let end = rest.find(|letter: char| !letter.is_ascii_lowercase() && letter != '_');
        rest[..end.unwrap_or(rest.len())].to_owned()
    });
    names.collect()
}

/// The expressions of the dashboard, and those of the rules.
fn expressions() -> Vec<String> {
    let rules = read("configs/prometheus/spindrift-agent.rules.yml");
    let of_rules = rules.lines().filter_map(|line| line.trim().strip_prefix("expr: ")).map(str::to_owned);
    let dashboard: Value = serde_json::from_str(&read("configs/grafana/spindrift-agent.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    let of_panels = targets.map(|target| target["expr"].as_str().unwrap().to_owned());
    let all: Vec<_> = of_rules.chain(of_panels).collect();
    assert!(all.len() > 20, "{all:?}");
    all
}

#[test]
fn dashboards_and_rules_name_metrics_that_there_are() {
    let exported = exported();
    let (mut all, prefix) = (BTreeSet::new(), PREFIX.to_owned());
    for expression in expressions() {
        let used = used(&expression);
        assert!(!used.is_empty(), "{expression}");
        let mut labels: BTreeSet<&str> = used
            .iter()
            .flat_map(|name| {
                let labels =
                    exported.get(name).unwrap_or_else(|| panic!("{name} is not exported: {expression}"));
                labels.iter().map(String::as_str)
            })
            .collect();
        // Added by Prometheus, for each agent.
        labels.insert("instance");
        let grouped =
            expression.split("by (").skip(1).flat_map(|rest| rest.split(')').next().unwrap().split(", "));
        let braces =
            expression.split('{').skip(1).flat_map(|rest| rest.split('}').next().unwrap().split(", "));
        let matched = braces.map(|part| part.split(['=', '!']).next().unwrap());
        for label in grouped.chain(matched) {
            assert!(labels.contains(label), "{label}: {expression}");
        }
        all.extend(used);
    }
    // And each metric is used.
    let unused: Vec<_> = exported.keys().filter(|name| !all.contains(*name) && **name != prefix).collect();
    assert!(unused.is_empty(), "{unused:?}");
}

#[test]
fn the_guide_and_the_rules_speak_of_metrics_that_there_are() {
    let exported = exported();
    let rules = used(&read("configs/prometheus/spindrift-agent.rules.yml"));
    assert!(rules.iter().all(|name| exported.contains_key(name)), "{rules:?}");
    // `{a,b}` in the guide stands for both.
    let guide = read("docs/agent.md");
    let mut named = BTreeSet::new();
    for cell in guide.lines().filter(|line| line.starts_with("| `spindrift_agent_")).flat_map(|line| {
        line.split('|')
            .nth(1)
            .unwrap()
            .split('`')
            .filter(|part| part.starts_with(PREFIX))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    }) {
        match (cell.split_once('{'), cell.split_once('}')) {
            (Some((before, _)), Some((inner, after))) => {
                let parts = inner.split_once('{').unwrap().1.split(',');
                named.extend(parts.map(|part| format!("{before}{part}{after}")));
            }
            _ => {
                named.insert(cell);
            }
        }
    }
    assert_eq!(named.iter().collect::<Vec<_>>(), exported.keys().collect::<Vec<_>>());
}

/// What `promtool` says of these arguments and this input: nothing, if all is well.
fn promtool(args: &[&str], input: &str) -> Option<String> {
    let mut command = Command::new("promtool");
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut process) = command.spawn() else {
        assert!(
            std::env::var_os("SPINDRIFT_REQUIRE_PROMTOOL").is_none(),
            "SPINDRIFT_REQUIRE_PROMTOOL is set and there is no promtool: apt-get install prometheus"
        );
        eprintln!("skipped: there is no promtool (apt-get install prometheus)");
        return None;
    };
    process.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = process.wait_with_output().unwrap();
    let said =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    if output.status.success() { None } else { Some(said) }
}

#[test]
fn promtool_finds_nothing_wrong() {
    let rules = root().join("configs/prometheus/spindrift-agent.rules.yml").canonicalize().unwrap();
    let rules = rules.to_str().unwrap();
    assert_eq!(promtool(&["check", "metrics"], &text()), None);
    assert_eq!(promtool(&["check", "rules", rules], ""), None);
    // Each alert fires when it should: the file of tests names the rules by their place.
    let tests = read("tools/agentd/tests/rules.test.yml").replace("RULES", rules);
    let place = std::env::temp_dir().join(format!("spindrift-rules-{}.yml", std::process::id()));
    fs::write(&place, tests).unwrap();
    let said = promtool(&["test", "rules", place.to_str().unwrap()], "");
    fs::remove_file(&place).unwrap();
    assert_eq!(said, None);
}

/// Each alert has a test.
#[test]
fn no_alert_is_left_out() {
    let tests = read("tools/agentd/tests/rules.test.yml");
    let rules = read("configs/prometheus/spindrift-agent.rules.yml");
    let alerts = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
    let untested: Vec<_> =
        alerts.filter(|alert| !tests.contains(&format!("alertname: {alert}\n        exp_alerts"))).collect();
    assert!(untested.is_empty(), "{untested:?}");
}
