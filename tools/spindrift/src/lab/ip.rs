//! Runs `ip` and `tc` of iproute2, and `nft` of nftables: the interface of a lab to the kernel.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::io::Errno;
use rustix::process::{Pid, Signal};
use serde::Deserialize;
use serde_json::Value as Json;

use super::status::EndState;

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

    /// Runs commands of `ip`, one a line, in a namespace or in this one, up to the first that fails.
    pub(super) fn batch(&self, namespace: Option<&str>, lines: &str) -> Result<()> {
        let mut command = self.command();
        if let Some(namespace) = namespace {
            command.args(["-n", namespace]);
        }
        command.args(["-batch", "-"]);
        Ready::new(command, Program::Ip, namespace)?.go(lines)?.end()
    }

    /// Has a program wait in a namespace, for commands to be given to it, one a line.
    pub(super) fn ready(&self, program: Program, namespace: &str) -> Result<Ready> {
        let command = match program {
            Program::Ip | Program::Tc => {
                let mut command = Command::new(program.name());
                command.args(["-n", namespace, "-batch", "-"]);
                command
            }
            Program::Nft => {
                let mut command = self.command();
                command.args(["netns", "exec", namespace, program.name(), "-f", "-"]);
                command
            }
        };
        Ready::new(command, program, Some(namespace))
    }

    /// The counters of a namespace's packet filter: names, and packets.
    pub(super) fn counters(&self, namespace: &str) -> Result<Vec<(String, u64)>> {
        let output = self.inside(namespace, &["nft", "-j", "list", "counters"])?;
        if !output.status.success() {
            bail!("nft -j list counters in {namespace}: {}", text(&output.stderr));
        }
        let told: Json =
            serde_json::from_slice(&output.stdout).context("unexpected output of nft -j list counters")?;
        let counters = told["nftables"].as_array().into_iter().flatten().filter_map(|object| {
            let counter = object.get("counter")?;
            Some((counter["name"].as_str()?.to_owned(), counter["packets"].as_u64()?))
        });
        Ok(counters.collect())
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

    /// Has an interface hand each packet over as it is, with its checksum, to what takes frames at its other end, and wait where there is no
    /// room for them; and has what comes in be taken as frames.
    pub(super) fn take_frames(&self, namespace: &str, interface: &str) -> Result<()> {
        let command = ["ethtool", "-K", interface, "tx", "off", "gro", "on"];
        let output = self.inside(namespace, &command)?;
        if !output.status.success() {
            let said = text(&output.stderr);
            if said.contains("exec of \"ethtool\" failed") {
                bail!("cannot run ethtool, which XDP switches need; `apt-get install ethtool` installs it");
            }
            bail!("ethtool -K {interface} tx off gro on in {namespace}: {said}");
        }
        self.ready(Program::Tc, namespace)?.go(&super::rules::queue(interface))?.end()
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

/// What takes commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Program {
    Ip,
    Tc,
    Nft,
}

impl Program {
    fn name(self) -> &'static str {
        match self {
            Self::Ip => "ip",
            Self::Tc => "tc",
            Self::Nft => "nft",
        }
    }
}

/// A program that waits for commands. Without any it ends, with this.
pub(super) struct Ready {
    /// Until it has commands.
    child: Option<Child>,
    program: Program,
    namespace: Option<String>,
}

impl Ready {
    fn new(mut command: Command, program: Program, namespace: Option<&str>) -> Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        // Ctrl-C is for this process, which stops where it leaves no half of a thing.
        command.process_group(0);
        let child = command.spawn().with_context(|| format!("cannot run {}", program.name()))?;
        Ok(Self { child: Some(child), program, namespace: namespace.map(str::to_owned) })
    }

    /// Has it do its commands.
    pub(super) fn go(mut self, lines: &str) -> Result<Started> {
        let program = self.program;
        let mut child = self.child.take().with_context(|| format!("{} has ended", program.name()))?;
        // One that has seen enough closes its input; its status tells why.
        match child.stdin.take().map(|mut input| input.write_all(lines.as_bytes())) {
            Some(Err(error)) if error.kind() != std::io::ErrorKind::BrokenPipe => {
                let written = Err(error).with_context(|| format!("cannot write to {}", program.name()));
                child.wait().with_context(|| format!("{} was lost", program.name()))?;
                written
            }
            _ => Ok(Started { child, program, namespace: self.namespace.take(), lines: lines.to_owned() }),
        }
    }
}

impl Drop for Ready {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It was to do nothing, and has nothing to say. This closes its input first.
            let _ = child.wait();
        }
    }
}

/// A program at work on commands.
pub(super) struct Started {
    child: Child,
    program: Program,
    namespace: Option<String>,
    lines: String,
}

impl Started {
    /// Waits for its end. What it could not do is an error.
    pub(super) fn end(self) -> Result<()> {
        let Self { child, program, namespace, lines } = self;
        let output = child.wait_with_output().with_context(|| format!("{} was lost", program.name()))?;
        if output.status.success() {
            return Ok(());
        }
        let said = text(&output.stderr);
        let said = said.lines().next().unwrap_or("failed");
        let place = namespace.map_or_else(String::new, |namespace| format!(" in {namespace}"));
        let name = program.name();
        if program == Program::Nft && said.contains("exec of \"nft\" failed") {
            bail!("cannot run nft, of nftables; `apt-get install nftables` installs it");
        }
        let line =
            failed_line(&text(&output.stderr)).and_then(|number| lines.lines().nth(number.checked_sub(1)?));
        bail!("{name} {}{place}: {said}", line.unwrap_or("-batch"))
    }
}

/// The number of the line that failed: the last thing that `ip` and `tc` say, and the first that `nft` does.
fn failed_line(said: &str) -> Option<usize> {
    let batch = said.rsplit_once("Command failed -:").map(|(_, number)| number.trim());
    let nft = || said.strip_prefix("/dev/stdin:")?.split(':').next();
    batch.or_else(nft)?.parse().ok()
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
                    "the lab is incomplete; remove it with `spindrift lab down`: ip -n {namespace} link show: {}",
                    text(&output.stderr)
                );
            }
            let told =
                serde_json::from_slice(&output.stdout).context("unexpected output of ip -json link show")?;
            self.known.insert(namespace.to_owned(), told);
        }
        let told = self.known.get(namespace).into_iter().flatten().find(|told| told.ifname == interface);
        let told = told.with_context(|| {
            format!(
                "the lab is incomplete; remove it with `spindrift lab down`: {namespace} has no {interface}"
            )
        })?;
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
