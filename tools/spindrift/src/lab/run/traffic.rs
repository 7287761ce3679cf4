//! The processes of the flows, and their output.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::Value as Json;

use super::agents::ControlFolder;
use super::process::Process;
use super::scenario::{Flow, Scenario};
use crate::bench::pin::enough_for;
use crate::bench::samples::{Line, Sample};
use crate::driver::{Kernel, UDP};
use crate::lab::ip::Ip;
use crate::lab::plan::LabPlan;
use spindrift::path::PlaneSet;
use spindrift_srv6::Node;

/// How often a process is looked at.
const NAP: Duration = Duration::from_millis(5);
/// How long a process has for what takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(20);
/// Clients write for so much longer than the scenario takes, for they may begin before it does.
const EXTRA: Duration = Duration::from_millis(300);
/// TCP port of the set-up of the first flow.
const FIRST_PORT: usize = 18_515;

/// Starts processes of this program on hosts of a lab.
pub(super) struct Stage<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) plan: &'a LabPlan<'a>,
    pub(super) ip: &'a Ip,
    pub(super) program: PathBuf,
    /// The file with the lab's topology.
    pub(super) topology: PathBuf,
    /// Where the processes' output and samples go.
    pub(super) folder: &'a Path,
    /// Where the processes that agents tell what to avoid have their control sockets.
    pub(super) control: Option<ControlFolder>,
    /// An error once all have to end.
    pub(super) check: &'a (dyn Fn() -> Result<()> + Sync),
}

/// Files of a flow.
#[derive(Clone, Debug)]
pub(super) struct Files {
    folder: PathBuf,
    flow: String,
}

impl Files {
    pub(super) fn of(folder: &Path, flow: &str) -> Self {
        Self { folder: folder.to_owned(), flow: flow.to_owned() }
    }

    pub(super) fn samples(&self, role: &str) -> PathBuf {
        self.file(role, "samples.jsonl")
    }

    fn file(&self, role: &str, ending: &str) -> PathBuf {
        self.folder.join(format!("{}.{role}.{ending}", self.flow))
    }
}

/// What both sides of a flow said when they had ended.
#[derive(Clone, Debug)]
pub(super) struct Said {
    pub(super) client: Json,
    pub(super) server: Json,
}

/// A flow was ended for a reason that is not its own.
#[derive(Debug)]
pub(super) struct Ended;

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cancelled after another failure")
    }
}

impl std::error::Error for Ended {}

/// When all that begins at once had begun.
#[derive(Default)]
pub(super) struct Begin {
    start: Mutex<Option<Instant>>,
    failed: AtomicBool,
}

impl Begin {
    pub(super) fn set(&self, start: Instant) {
        *self.start.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(start);
    }

    fn get(&self) -> Option<Instant> {
        *self.start.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Ends all flows, for one has failed, or what else there is.
    pub(super) fn fail(&self) {
        self.failed.store(true, Ordering::Relaxed);
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }
}

/// The JSON that a side printed.
fn said(side: Process, role: &str) -> Result<Json> {
    serde_json::from_str(&side.end()?).with_context(|| format!("the output of the {role} is not JSON"))
}

/// Whether the samples of a client show more packets than the first of them. The last line may not be whole.
fn is_under_way(samples: &str) -> bool {
    let lines = samples.lines().filter_map(|line| serde_json::from_str(line).ok());
    let mut counts = lines.filter_map(|line| match line {
        Line::Sample(Sample { tx_data, rx_placed_bytes, .. }) => Some((tx_data, rx_placed_bytes)),
        Line::Ev(_) => None,
    });
    let Some((sent, placed)) = counts.next() else { return false };
    counts.any(|(now_sent, now_placed)| now_sent > sent || now_placed > placed)
}

impl Stage<'_> {
    /// Runs a flow to its end. One that fails ends the others.
    pub(super) fn flow(&self, number: usize, flow: &Flow, name: &str, begin: &Begin) -> Result<Said> {
        let said = self.both(number, flow, name, begin);
        if said.is_err() {
            begin.fail();
        }
        said.with_context(|| format!("flow {name}"))
    }

    fn both(&self, number: usize, flow: &Flow, name: &str, begin: &Begin) -> Result<Said> {
        let port = ["-p".to_owned(), (FIRST_PORT + number).to_string()];
        let files = Files::of(self.folder, name);
        let none = Vec::new();
        let of_kind = if self.scenario.port == UDP { &flow.udp_options } else { &none };
        let (client_host, server_host) = flow.client_and_server();
        let standby = match flow.standby {
            PlaneSet(0) => Vec::new(),
            planes => {
                let texts = ["--standby", &planes.to_string(), "--fallback", flow.fallback.name()];
                texts.map(str::to_owned).to_vec()
            }
        };
        let control = self.control(flow, server_host);
        let options: &[&[String]] =
            &[&port, &standby, &control, &flow.options, of_kind, &flow.server_options];
        let program = flow.operation.command();
        let mut server = self.start(&files, program, "server", server_host, options)?;
        self.wait(begin, Some(PATIENCE), "a server takes too long to start", || {
            Ok(server.has_ended()? || server.messages()?.contains("waiting for a client"))
        })?;
        if server.has_ended()? {
            bail!("{}", server.why()?);
        }
        if !flow.start.is_zero() {
            self.wait(begin, None, "", || {
                Ok(begin.get().is_some_and(|start| start.elapsed() >= flow.start))
            })?;
        }
        let length = self.scenario.duration.saturating_sub(flow.start) + EXTRA;
        let length = format!("{}ms", length.as_millis());
        let address = self.scenario.fabric.address(server_host, 0).context("the fabric has no plane")?;
        let more = ["-D".to_owned(), length, address.to_string()];
        let control = self.control(flow, client_host);
        let options: &[&[String]] =
            &[&port, &standby, &control, &flow.options, of_kind, &flow.client_options, &more];
        let mut client = self.start(&files, program, "client", client_host, options)?;
        self.wait(begin, None, "", || client.has_ended())?;
        let client = said(client, "client")?;
        self.wait(begin, Some(PATIENCE), "the server does not end", || server.has_ended())?;
        Ok(Said { client, server: said(server, "server")? })
    }

    /// Whether a flow's payload is under way. Packets that the client sends before its first sample test the paths.
    pub(super) fn flows(&self, name: &str) -> bool {
        let path = Files::of(self.folder, name).samples("client");
        is_under_way(&fs::read_to_string(path).unwrap_or_default())
    }

    fn wait(
        &self,
        begin: &Begin,
        patience: Option<Duration>,
        why: &str,
        mut done: impl FnMut() -> Result<bool>,
    ) -> Result<()> {
        let start = Instant::now();
        while !done()? {
            (self.check)()?;
            if begin.has_failed() {
                return Err(Ended.into());
            }
            if patience.is_some_and(|patience| start.elapsed() > patience) {
                bail!("{why}");
            }
            thread::sleep(NAP);
        }
        Ok(())
    }

    /// This program on a host.
    pub(super) fn on(&self, host: u16) -> Command {
        let mut command = self.ip.command();
        command.args(["netns", "exec", &self.plan.namespace(Node::Host(host))]).arg(&self.program);
        command
    }

    /// Whether the agents of the scenario tell a flow's processes what to avoid.
    fn control(&self, flow: &Flow, host: u16) -> Vec<String> {
        let Some(folder) = &self.control else { return Vec::new() };
        let place = if flow.follow_agents {
            folder.of(&self.scenario.fabric.name(Node::Host(host))).display().to_string()
        } else {
            "none".to_owned()
        };
        vec!["--control-dir".to_owned(), place]
    }

    /// Starts one side of a flow, with these options.
    fn start(
        &self,
        files: &Files,
        program: &str,
        role: &str,
        host: u16,
        options: &[&[String]],
    ) -> Result<Process> {
        let (output, messages) = (files.file(role, "json"), files.file(role, "log"));
        let mut command = self.on(host);
        command.arg(program);
        let fabric = &self.scenario.fabric;
        let addresses = (0..fabric.shape().planes).map_while(|plane| fabric.address(host, plane));
        let addresses: Vec<_> = addresses.collect();
        command.arg("--json").args(self.scenario.port.lab_options(&addresses));
        command.arg("--topology").arg(&self.topology);
        let slower =
            options.iter().copied().flatten().any(|option| option.split('=').next() == Some("--link-rate"));
        if let (Kernel::Bypassed, Some(rate), false) =
            (self.scenario.port.kernel, self.scenario.rate(), slower)
        {
            // No queue of the kernel holds these packets up.
            command.args(["--link-rate", &rate.to_string()]);
        }
        command.arg("--samples").arg(files.samples(role)).args(["--sample-interval", "1ms"]);
        if !enough_for(2 * self.scenario.flows.len()) {
            command.arg("--share-cores");
        }
        command.args(options.iter().copied().flatten());
        let host = self.scenario.fabric.name(Node::Host(host));
        Process::start(command, format!("the {role} on {host}"), output, messages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Those that write and send count what they send, and those that read what they get.
    #[test]
    fn a_flow_is_under_way_once_it_has_more_than_its_first_sample() {
        let sample = |tx_data, rx_placed_bytes| {
            let line = Line::Sample(Sample { rx_placed_bytes, tx_data, ..Sample::default() });
            serde_json::to_string(&line).unwrap() + "\n"
        };
        let same = sample(12, 5) + &sample(12, 5);
        for (samples, want) in [
            (String::new(), false),
            (sample(12, 5), false),
            (same.clone(), false),
            (same.clone() + &sample(13, 5), true),
            (same.clone() + &sample(12, 6), true),
            (same.clone() + sample(13, 5).get(..20).unwrap(), false),
            (same + &sample(13, 5) + &sample(13, 5), true),
        ] {
            assert_eq!(is_under_way(&samples), want, "{samples}");
        }
    }
}
