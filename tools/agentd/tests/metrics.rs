//! What uses the metrics of the agent and of the transport: dashboards and alert rules in `configs/`, and the guides. `promtool` judges them too where
//! it is installed (Debian: `prometheus`); with `SPINDRIFT_REQUIRE_PROMTOOL` it has to be.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]
#![allow(clippy::print_stderr, reason = "tests that are skipped say so")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use spindrift::pmd::loopback::{self, LoopbackConfig};
use spindrift::verbs::{Context, ContextConfig, nic};
use spindrift_agentd::metrics;
use spindrift_agentd::snapshot::{DeniedReport, DenyReport, FindingReport, Link, Part, Rtt, Snapshot, Store};
use spindrift_control::counters::RttTotals;
use spindrift_control::{ControlDir, Server, Watch, prometheus};

/// Metrics, and what uses them.
struct Metrics {
    prefix: &'static str,
    text: fn() -> String,
    dashboard: &'static str,
    rules: &'static str,
    /// Of `promtool test rules`, where the word RULES stands for the place of the rules.
    tests: &'static str,
    guide: &'static str,
}

const ALL: [Metrics; 2] = [
    Metrics {
        prefix: "spindrift_agent_",
        text: of_agent,
        dashboard: "configs/grafana/spindrift-agent.json",
        rules: "configs/prometheus/spindrift-agent.rules.yml",
        tests: "tools/agentd/tests/rules.test.yml",
        guide: "docs/agent.md",
    },
    Metrics {
        prefix: "spindrift_transport_",
        text: of_transport,
        dashboard: "configs/grafana/spindrift-transport.json",
        rules: "configs/prometheus/spindrift-transport.rules.yml",
        tests: "tools/agentd/tests/transport.test.yml",
        guide: "docs/cli.md",
    },
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}

/// The metrics of a process.
fn of_transport() -> String {
    let folder = std::env::temp_dir().join(format!("spindrift-metrics-{}", std::process::id()));
    let dir = ControlDir::at(&folder);
    let ports = nic(loopback::pair(2, LoopbackConfig::default()).0);
    let config = ContextConfig::new(&ports);
    let server = Server::start(&dir, "a test", Context::open(ports, config).unwrap()).unwrap();
    let mut seen = Watch::only(vec![dir], |process| process == std::process::id()).look();
    drop(server);
    // Another test of this file may use it.
    let _ = fs::remove_dir(folder);
    seen.contexts.truncate(1);
    seen.contexts[0].queue_pairs.rtt = RttTotals { queue_pairs: 1, ..RttTotals::default() };
    prometheus::text(&seen)
}

/// The metrics of an agent that has some of everything.
fn of_agent() -> String {
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

impl Metrics {
    /// The names of metrics and their labels.
    fn exported(&self) -> BTreeMap<String, BTreeSet<String>> {
        let mut names = BTreeMap::<String, BTreeSet<String>>::new();
        let text = (self.text)();
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
    fn used(&self, text: &str) -> BTreeSet<String> {
        let names = text.match_indices(self.prefix).map(|(at, _)| {
            let rest = &text[at..];
            let end = rest.find(|letter: char| !letter.is_ascii_lowercase() && letter != '_');
            rest[..end.unwrap_or(rest.len())].to_owned()
        });
        names.collect()
    }

    /// The expressions of the dashboard, and those of the rules.
    fn expressions(&self) -> Vec<String> {
        let rules = read(self.rules);
        let of_rules = rules.lines().filter_map(|line| line.trim().strip_prefix("expr: ")).map(str::to_owned);
        let dashboard: Value = serde_json::from_str(&read(self.dashboard)).unwrap();
        let panels = dashboard["panels"].as_array().unwrap();
        let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap());
        let of_panels = targets.map(|target| target["expr"].as_str().unwrap().to_owned());
        let all: Vec<_> = of_rules.chain(of_panels).collect();
        assert!(all.len() > 20, "{all:?}");
        all
    }

    fn check_expressions(&self) {
        let exported = self.exported();
        let mut all = BTreeSet::new();
        for expression in self.expressions() {
            let used = self.used(&expression);
            assert!(!used.is_empty(), "{expression}");
            let mut labels: BTreeSet<&str> = used
                .iter()
                .flat_map(|name| {
                    let labels =
                        exported.get(name).unwrap_or_else(|| panic!("{name} is not exported: {expression}"));
                    labels.iter().map(String::as_str)
                })
                .collect();
            // Added by Prometheus, for each target.
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
        let unused: Vec<_> = exported.keys().filter(|name| !all.contains(*name)).collect();
        assert!(unused.is_empty(), "{unused:?}");
    }

    /// The names in the guide's table, in which `{a,b}` stands for both.
    fn in_guide(&self) -> BTreeSet<String> {
        let guide = read(self.guide);
        let row = format!("| `{}", self.prefix);
        let mut named = BTreeSet::new();
        for line in guide.lines().filter(|line| line.starts_with(&row)) {
            let cell = line.split('|').nth(1).unwrap();
            for name in cell.split('`').filter(|part| part.starts_with(self.prefix)) {
                match (name.split_once('{'), name.split_once('}')) {
                    (Some((before, _)), Some((inner, after))) => {
                        let parts = inner.split_once('{').unwrap().1.split(',');
                        named.extend(parts.map(|part| format!("{before}{part}{after}")));
                    }
                    _ => {
                        named.insert(name.to_owned());
                    }
                }
            }
        }
        named
    }
}

#[test]
fn dashboards_and_rules_name_metrics_that_there_are() {
    ALL.iter().for_each(Metrics::check_expressions);
}

#[test]
fn the_guides_and_the_rules_speak_of_metrics_that_there_are() {
    for metrics in &ALL {
        let exported = metrics.exported();
        let rules = metrics.used(&read(metrics.rules));
        assert!(rules.iter().all(|name| exported.contains_key(name)), "{rules:?}");
        assert_eq!(metrics.in_guide().iter().collect::<Vec<_>>(), exported.keys().collect::<Vec<_>>());
    }
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
    for metrics in &ALL {
        let rules = root().join(metrics.rules).canonicalize().unwrap();
        let rules = rules.to_str().unwrap();
        assert_eq!(promtool(&["check", "metrics"], &(metrics.text)()), None);
        assert_eq!(promtool(&["check", "rules", rules], ""), None);
        // Each alert fires when it should: the file of tests names the rules by their place.
        let tests = read(metrics.tests).replace("RULES", rules);
        let name = format!("{}rules-{}.yml", metrics.prefix, std::process::id());
        let place = std::env::temp_dir().join(name);
        fs::write(&place, tests).unwrap();
        let said = promtool(&["test", "rules", place.to_str().unwrap()], "");
        fs::remove_file(&place).unwrap();
        assert_eq!(said, None);
    }
}

/// Each alert has a test.
#[test]
fn no_alert_is_left_out() {
    for metrics in &ALL {
        let (tests, rules) = (read(metrics.tests), read(metrics.rules));
        let alerts = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
        let is_untested = |alert: &&str| !tests.contains(&format!("alertname: {alert}\n        exp_alerts"));
        let untested: Vec<_> = alerts.filter(is_untested).collect();
        assert!(untested.is_empty(), "{untested:?}");
    }
}
