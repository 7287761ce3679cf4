//! `ip` of iproute2, which knows all that a lab needs of the kernel.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use rustix::io::Errno;
use rustix::process::{Pid, Signal};
use serde::Deserialize;

use super::EndState;

/// How long a process has to end after a signal.
const GRACE: Duration = Duration::from_secs(2);

/// The program, found and allowed to do its work.
pub(super) struct Ip {
    program: &'static str,
}

impl Ip {
    /// Fails without the program, or without the right to make namespaces.
    pub(super) fn find() -> Result<Self> {
        if !rustix::process::geteuid().is_root() {
            bail!(
                "a lab needs root (CAP_SYS_ADMIN and CAP_NET_ADMIN, to make network namespaces); run it with sudo. \
                 `spindrift path` tells of the same topology without"
            );
        }
        let this = Self { program: "ip" };
        match this.command().arg("-V").output() {
            Ok(output) if output.status.success() => Ok(this),
            Ok(output) => bail!("ip -V failed: {}", text(&output.stderr)),
            Err(error) => {
                bail!("cannot run ip, of iproute2: {error}; `apt-get install iproute2` installs it")
            }
        }
    }

    pub(super) fn command(&self) -> Command {
        Command::new(self.program)
    }

    /// Runs commands, one a line, in a namespace or in this one, up to the first that fails.
    pub(super) fn batch(&self, namespace: Option<&str>, lines: &str) -> Result<()> {
        let mut command = self.command();
        if let Some(namespace) = namespace {
            command.args(["-n", namespace]);
        }
        command.args(["-batch", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().context("cannot run ip")?;
        let output =
            feed(&mut child, lines).and_then(|()| child.wait_with_output().context("ip was lost"))?;
        if output.status.success() { Ok(()) } else { Err(failed(namespace, lines, &output)) }
    }

    /// Sets settings of the kernel, each as `name=value`, in a namespace.
    pub(super) fn sysctl(&self, namespace: &str, settings: &[&str]) -> Result<()> {
        let output = self.inside(namespace, &[&["sysctl", "-qw"], settings].concat())?;
        if !output.status.success() {
            bail!(
                "cannot set the kernel's settings in {namespace}: {}; is procps installed, and has the kernel IPv6 and SRv6?",
                text(&output.stderr)
            );
        }
        Ok(())
    }

    /// Runs a program in a namespace to its end.
    fn inside(&self, namespace: &str, program: &[&str]) -> Result<Output> {
        let mut command = self.command();
        command.args(["netns", "exec", namespace]).args(program).stdin(Stdio::null());
        command.output().with_context(|| format!("cannot run ip netns exec {namespace}"))
    }

    /// The names of all namespaces.
    pub(super) fn namespaces(&self) -> Result<Vec<String>> {
        let output = self.command().args(["netns", "list"]).output().context("cannot run ip netns list")?;
        if !output.status.success() {
            bail!("ip netns list failed: {}", text(&output.stderr));
        }
        // A name, and perhaps "(id: 3)".
        let lines = String::from_utf8_lossy(&output.stdout);
        Ok(lines.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect())
    }

    /// Ends the processes in some namespaces: asks them, waits, and then makes them.
    pub(super) fn end_processes(&self, namespaces: &[String]) -> Result<()> {
        for signal in [Signal::TERM, Signal::KILL] {
            if !self.signal(namespaces, signal)? {
                return Ok(());
            }
            let patience = Instant::now() + GRACE;
            while !self.processes(namespaces)?.is_empty() {
                if Instant::now() > patience {
                    break;
                }
                thread::sleep(Duration::from_millis(20));
            }
        }
        let left = self.processes(namespaces)?;
        if left.is_empty() {
            return Ok(());
        }
        let left: Vec<_> = left.iter().map(|pid| pid.as_raw_nonzero().to_string()).collect();
        bail!("processes in the lab do not end: {}", left.join(", "))
    }

    /// Sends a signal to all processes of some namespaces. Returns whether there are any.
    fn signal(&self, namespaces: &[String], signal: Signal) -> Result<bool> {
        let processes = self.processes(namespaces)?;
        for &process in &processes {
            match rustix::process::kill_process(process, signal) {
                Ok(()) | Err(Errno::SRCH) => {}
                Err(error) => {
                    let number = process.as_raw_nonzero();
                    return Err(error).with_context(|| format!("cannot end process {number}"));
                }
            }
        }
        Ok(!processes.is_empty())
    }

    /// The processes in some namespaces, but for this one.
    fn processes(&self, namespaces: &[String]) -> Result<Vec<Pid>> {
        let mut all = Vec::new();
        for namespace in namespaces {
            let command = ["netns", "pids", namespace];
            let output = self.command().args(command).output().context("cannot run ip netns pids")?;
            let numbers = String::from_utf8_lossy(&output.stdout);
            all.extend(numbers.lines().filter_map(|line| Pid::from_raw(line.trim().parse().ok()?)));
        }
        all.retain(|&process| process != rustix::process::getpid());
        Ok(all)
    }
}

/// Gives a program its input.
fn feed(child: &mut Child, lines: &str) -> Result<()> {
    let Some(mut input) = child.stdin.take() else { return Ok(()) };
    // One that has seen enough closes its input; its status tells why.
    match input.write_all(lines.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to ip")
        }
        _ => Ok(()),
    }
}

/// What a failed batch says, with the line that it failed at.
fn failed(namespace: Option<&str>, lines: &str, output: &Output) -> anyhow::Error {
    let said = text(&output.stderr);
    let number =
        said.rsplit_once("Command failed -:").and_then(|(_, number)| number.trim().parse::<usize>().ok());
    let line = number.and_then(|number| lines.lines().nth(number.checked_sub(1)?)).unwrap_or("-batch");
    let place = namespace.map_or_else(String::new, |namespace| format!(" in {namespace}"));
    anyhow!("ip {line}{place}: {}", said.lines().next().unwrap_or("failed"))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim().to_owned()
}

/// What the kernel says of the interfaces of namespaces, each of which is asked once.
#[derive(Default)]
pub(super) struct Links {
    known: BTreeMap<String, Vec<Told>>,
}

#[derive(Deserialize)]
struct Told {
    ifname: String,
    #[serde(default)]
    flags: Vec<String>,
    stats64: Stats,
}

#[derive(Deserialize)]
struct Stats {
    rx: Count,
    tx: Count,
}

#[derive(Deserialize)]
struct Count {
    packets: u64,
    dropped: u64,
}

impl Links {
    pub(super) fn of(&mut self, ip: &Ip, namespace: &str, interface: &str) -> Result<EndState> {
        if !self.known.contains_key(namespace) {
            let command = ["-n", namespace, "-json", "-statistics", "link", "show"];
            let output = ip.command().args(command).output().context("cannot run ip link show")?;
            if !output.status.success() {
                bail!(
                    "the lab is not whole, remove it: ip -n {namespace} link show: {}",
                    text(&output.stderr)
                );
            }
            let told = serde_json::from_slice(&output.stdout)
                .context("ip -json link show printed something else")?;
            self.known.insert(namespace.to_owned(), told);
        }
        let told = self.known.get(namespace).into_iter().flatten().find(|told| told.ifname == interface);
        let told =
            told.with_context(|| format!("the lab is not whole, remove it: {namespace} has no {interface}"))?;
        Ok(EndState {
            // Up, and the other end is, too.
            up: told.flags.iter().any(|flag| flag == "LOWER_UP")
                && told.flags.iter().any(|flag| flag == "UP"),
            tx_packets: told.stats64.tx.packets,
            rx_packets: told.stats64.rx.packets,
            dropped: told.stats64.rx.dropped + told.stats64.tx.dropped,
        })
    }
}
