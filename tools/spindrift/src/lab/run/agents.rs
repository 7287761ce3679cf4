//! Agents on the hosts of a scenario: what they found, and when.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde::Serialize;
use serde_json::Value as Json;
use spindrift_agentd::snapshot::{FindingReport, Part};
use spindrift_srv6::Node;

use super::process::Process;
use super::scenario::Agents;
use super::traffic::Stage;
use crate::agent;

/// How long agents have until the first of their probes are back.
const PATIENCE: Duration = Duration::from_secs(20);
const NAP: Duration = Duration::from_millis(20);

/// A folder for the control sockets of each host's processes, which is removed in the end. Its path is short, as those of sockets have
/// to be.
#[derive(Debug)]
pub(super) struct ControlFolder(PathBuf);

impl ControlFolder {
    pub(super) fn make(lab: &str) -> Result<Self> {
        let path = std::env::temp_dir().join(format!("spindrift-{lab}-{}", std::process::id()));
        fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self(path))
    }

    /// That of a host.
    pub(super) fn of(&self, host: &str) -> PathBuf {
        self.0.join(host)
    }
}

impl Drop for ControlFolder {
    fn drop(&mut self) {
        // What is left does no harm.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What an agent said, on the time axis of the scenario.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct AgentLog {
    pub(super) host: String,
    pub(super) events: Vec<AgentEvent>,
    /// What became of its probes.
    #[serde(skip)]
    pub(super) counts: Vec<ProbeCounts>,
}

/// A finding, or a decision of the policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct AgentEvent {
    pub(super) at_ms: f64,
    /// `fault`, `changed`, `healed`, `denied`, `allowed` or `not denied`.
    pub(super) event: String,
    pub(super) what: String,
}

/// The probes of 50 ms.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ProbeCounts {
    /// The end of that time.
    pub(super) at_ms: f64,
    /// Sent and lost in each plane.
    pub(super) planes: Vec<(u64, u64)>,
}

impl AgentLog {
    /// What an agent printed, of which the last line may not be whole. The scenario began at `start_ns` after 1970.
    fn read(host: String, text: &str, start_ns: u64) -> Result<Self> {
        let mut log = Self { host, ..Self::default() };
        for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
            let line: Json = serde_json::from_str(line)
                .with_context(|| format!("the agent of {} printed `{line}`", log.host))?;
            let at_ms = line["time"].as_f64().unwrap_or_default() * 1e3 - start_ns as f64 / 1e6;
            match line["event"].as_str() {
                Some("counts") => log.counts.push(ProbeCounts { at_ms, planes: counts(&line) }),
                Some(event) => {
                    let (event, what) = (event.to_owned(), what(&line)?);
                    log.events.push(AgentEvent { at_ms, event, what });
                }
                None => {}
            }
        }
        Ok(log)
    }
}

/// Sent and lost in each plane, of a line of counts.
fn counts(line: &Json) -> Vec<(u64, u64)> {
    let planes = line["planes"].as_array().map(Vec::as_slice).unwrap_or_default();
    let of = |plane: &Json, key: &str| plane[key].as_u64().unwrap_or_default();
    planes.iter().map(|plane| (of(plane, "sent"), of(plane, "lost"))).collect()
}

/// What an event is about.
fn what(line: &Json) -> Result<String> {
    if let Some(component) = line["denied"]["component"].as_str() {
        return Ok(component.to_owned());
    }
    let finding: FindingReport =
        serde_json::from_value(line["finding"].clone()).with_context(|| format!("of an agent: {line}"))?;
    let parts: &[Part] = &finding.components;
    let names = agent::names(parts);
    let is_over = line["event"] == "healed";
    Ok(match finding.fault.as_str() {
        _ if is_over => names,
        "lossy" => format!("{names}: loses {:.1} %", finding.rate * 100.0),
        fault => format!("{names}: {fault}"),
    })
}

/// Agents that run. They end with this.
#[derive(Default)]
pub(super) struct Running(Mutex<Vec<(String, Process)>>);

impl Running {
    /// Starts the agents of a scenario, and waits until probes of each plane have come back to each.
    pub(super) fn start(stage: &Stage<'_>) -> Result<Self> {
        let Some(agents) = &stage.scenario.agents else { return Ok(Self::default()) };
        let start = |&host: &u16| {
            let name = stage.scenario.fabric.name(Node::Host(host));
            start(stage, agents, host, &name).map(|process| (name, process))
        };
        let running = agents.hosts.iter().map(start).collect::<Result<Vec<_>>>()?;
        let running = Self(Mutex::new(running));
        let waiting = Instant::now();
        while !running.probe()? {
            (stage.check)()?;
            running.check()?;
            if waiting.elapsed() > PATIENCE {
                bail!("[agents]: not every plane has probes that come back");
            }
            thread::sleep(NAP);
        }
        Ok(running)
    }

    /// An error if one has ended.
    pub(super) fn check(&self) -> Result<()> {
        self.each(|process| if process.has_ended()? { bail!("{}", process.why()?) } else { Ok(()) })
    }

    /// Whether probes of each plane have come back to each.
    fn probe(&self) -> Result<bool> {
        let mut all = true;
        self.each(|process| {
            let log = AgentLog::read(String::new(), &process.output()?, 0)?;
            let back = |counts: &ProbeCounts| counts.planes.iter().all(|(sent, lost)| sent > lost);
            all &= log.counts.iter().any(back);
            Ok(())
        })?;
        Ok(all)
    }

    fn each(&self, mut act: impl FnMut(&mut Process) -> Result<()>) -> Result<()> {
        let mut all = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        all.iter_mut().try_for_each(|(_, process)| act(process))
    }

    /// What they said, at the end of the scenario that began at `start_ns` after 1970.
    pub(super) fn end(self, start_ns: u64) -> Result<Vec<AgentLog>> {
        self.check()?;
        let all = self.0.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        all.into_iter().map(|(host, process)| AgentLog::read(host, &process.output()?, start_ns)).collect()
    }
}

fn start(stage: &Stage<'_>, agents: &Agents, host: u16, name: &str) -> Result<Process> {
    let mut command = stage.on(host);
    command.args(["agent", "run", "--json", "--counts", "--listen", "none", "--host", name]);
    command.arg("--topology").arg(&stage.topology);
    if let (Some(policy), Some(control)) = (&agents.policy, &stage.control) {
        command.arg("--policy").arg(policy).arg("--control-dir").arg(control.of(name));
    }
    command.args(&agents.options);
    let file = |ending: &str| -> PathBuf { Path::new(stage.folder).join(format!("{name}.agent.{ending}")) };
    Process::start(command, format!("the agent on {name}"), file("jsonl"), file("log"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAULT: &str = r#"{"event":"fault","time":12.5,"finding":{"components":[{"kind":"link","name":"h1:p1-t0-0"},{"kind":"switch","name":"p1-t0-0"}],"fault":"lossy","rate":0.0178,"confidence":1.0,"since":12.5,"text":"T"}}"#;

    #[test]
    fn a_log_is_read_on_the_time_axis_of_the_scenario() {
        let down = FAULT.replace("lossy", "down").replace("\"fault\",", "\"changed\",");
        let text = [
            r#"{"event":"counts","time":9.75,"planes":[{"sent":50,"lost":1},{"sent":60,"lost":60}]}"#,
            FAULT,
            &down,
            r#"{"event":"denied","time":12.75,"denied":{"component":"plane 1 of this host","rules":["plane 1"],"since":12.75},"dry_run":false}"#,
            &FAULT.replace("\"fault\",", "\"healed\","),
            "{\"event\":\"coun",
        ]
        .join("\n");
        let log = AgentLog::read("h1".to_owned(), &text, 10_000_000_000).unwrap();
        assert_eq!(log.counts, [ProbeCounts { at_ms: -250.0, planes: vec![(50, 1), (60, 60)] }]);
        let events: Vec<_> =
            log.events.iter().map(|event| (event.at_ms, event.event.as_str(), event.what.as_str())).collect();
        let names = "link h1:p1-t0-0 or switch p1-t0-0";
        assert_eq!(
            events,
            [
                (2500.0, "fault", &*format!("{names}: loses 1.8 %")),
                (2500.0, "changed", &*format!("{names}: down")),
                (2750.0, "denied", "plane 1 of this host"),
                (2500.0, "healed", names),
            ]
        );
    }

    /// A line in the midst is whole, so one that cannot be read is a fault of this program.
    #[test]
    fn a_damaged_line_is_named() {
        let error = AgentLog::read("h1".to_owned(), "{\"event\":\n{}\n", 0).unwrap_err();
        assert_eq!(error.to_string(), "the agent of h1 printed `{\"event\":`");
        let text = FAULT.replace("finding", "found") + "\n";
        let error = format!("{:#}", AgentLog::read("h1".to_owned(), &text, 0).unwrap_err());
        assert!(error.starts_with("of an agent: "), "{error}");
    }

    #[test]
    fn the_folder_of_control_sockets_is_removed() {
        let folder = ControlFolder::make("agents-test").unwrap();
        let host = folder.of("h1");
        fs::create_dir(&host).unwrap();
        assert!(host.starts_with(std::env::temp_dir()));
        let path = host.parent().unwrap().to_owned();
        drop(folder);
        assert!(!path.exists());
    }
}
