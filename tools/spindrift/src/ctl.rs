//! `spindrift ctl`: the queue pairs of running processes, seen and moved from outside, and the paths that they avoid.

mod counters;
mod deny;

use std::convert::Infallible;
use std::env;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Error, Result, anyhow, bail};
use clap::{Args, Subcommand, ValueEnum};
use serde::Deserialize;
use serde_json::{Value as Json, json};
use spindrift::wire::Qpn;
use spindrift_control::{
    ControlDir, ControlSocketError, Controlled, Moved, PlaneStatus, QpStatus, Reply, Request, Role,
    RolesStatus, Server, ShiftStatus, Socket, Status,
};

use self::deny::{DeniedPaths, avoids_text, denied_text};
use crate::output::{eprint_line, print_line};
use crate::units::{count, parse_duration, parse_qpn};

/// Shows the queue pairs of running processes, moves them to another NIC and back, and tells them which paths to avoid
#[derive(Args, Debug)]
pub(crate) struct CtlArgs {
    #[command(subcommand)]
    command: CtlCommand,
}

#[derive(Subcommand, Debug)]
enum CtlCommand {
    /// Shows the ports and queue pairs of running processes
    Status {
        #[command(flatten)]
        processes: Processes,
    },
    /// Moves queue pairs to the primary planes or to those that stand by, and keeps them there while those work
    Prefer {
        /// Where packets are sent from now on
        role: RoleName,
        /// The queue pair to move [default: all]
        #[arg(long, value_name = "NUMBER", value_parser = parse_qpn)]
        qp: Option<Qpn>,
        #[command(flatten)]
        processes: Processes,
    },
    /// Shows what running processes have counted: packets, losses, drops and so on
    Counters {
        /// Print the metrics of Prometheus instead of text
        #[arg(long, conflicts_with = "json")]
        prometheus: bool,
        #[command(flatten)]
        processes: Processes,
    },
    /// Makes queue pairs avoid paths, as far as others suffice
    Deny {
        #[command(flatten)]
        paths: DeniedPaths,
        /// The paths are allowed again after this time [default: they stay denied]
        #[arg(long = "for", value_name = "TIME", value_parser = parse_duration)]
        lifetime: Option<Duration>,
        #[command(flatten)]
        processes: Processes,
    },
    /// Allows paths again that were denied here
    Allow {
        #[command(flatten)]
        paths: DeniedPaths,
        /// All that were denied here
        #[arg(long, conflicts_with_all = ["plane", "peer", "ev", "path"])]
        all: bool,
        #[command(flatten)]
        processes: Processes,
    },
}

/// Which processes, and how they are shown.
#[derive(Args, Debug)]
struct Processes {
    /// Number of the process [default: all with a control socket]
    #[arg(long, value_name = "NUMBER")]
    pid: Option<u32>,
    /// Folder of the control sockets [default: /run/spindrift for root, else spindrift in `$XDG_RUNTIME_DIR`, else
    /// /tmp/spindrift-UID]
    #[arg(long, value_name = "DIR")]
    control_dir: Option<PathBuf>,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum RoleName {
    Primary,
    Standby,
}

impl From<RoleName> for Role {
    fn from(name: RoleName) -> Self {
        match name {
            RoleName::Primary => Self::Primary,
            RoleName::Standby => Self::Standby,
        }
    }
}

/// Where a process that runs has its control socket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "String")]
pub(crate) enum ControlPlace {
    /// In the user's folder, if that can be had.
    #[default]
    Usual,
    /// It has none.
    None,
    /// In this folder.
    At(PathBuf),
}

impl From<String> for ControlPlace {
    fn from(text: String) -> Self {
        if text == "none" { Self::None } else { Self::At(text.into()) }
    }
}

impl FromStr for ControlPlace {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(text.to_owned().into())
    }
}

pub(crate) fn folder(place: Option<&PathBuf>) -> ControlDir {
    place.map_or_else(
        || ControlDir::of_user(env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from)),
        ControlDir::at,
    )
}

impl ControlPlace {
    /// Opens the socket. Without one the process runs all the same, unless it is `needed`.
    ///
    /// # Errors
    /// It is needed, and cannot be opened.
    pub(crate) fn serve(
        &self,
        program: &str,
        controlled: impl Controlled,
        needed: bool,
    ) -> Result<Option<Server>> {
        let place = match self {
            Self::None => return Ok(None),
            Self::Usual => None,
            Self::At(path) => Some(path),
        };
        match Server::start(&folder(place), program, controlled) {
            Ok(server) => Ok(Some(server)),
            Err(error) if needed => Err(Error::from(error).context("--metrics needs the control socket")),
            Err(error) if place.is_some() => {
                tracing::warn!(target: "spindrift::control", %error, "no control socket");
                Ok(None)
            }
            Err(error) => {
                tracing::info!(target: "spindrift::control", %error, "no control socket");
                Ok(None)
            }
        }
    }
}

pub(crate) fn run(args: &CtlArgs) -> Result<()> {
    match &args.command {
        CtlCommand::Status { processes } => status(processes),
        CtlCommand::Prefer { role, qp, processes } => prefer(processes, (*role).into(), qp.map(Qpn::get)),
        CtlCommand::Counters { prometheus, processes } => counters::counters(processes, *prometheus),
        CtlCommand::Deny { paths, lifetime, processes } => deny::deny(paths, *lifetime, processes),
        CtlCommand::Allow { paths, all, processes } => deny::allow(paths, *all, processes),
    }
}

/// What the processes reply, and the errors of those that do not.
struct Replies {
    replies: Vec<(Socket, Reply)>,
    errors: Vec<ControlSocketError>,
}

impl Processes {
    /// Sends a request to each process. One that ends meanwhile is none.
    fn ask(&self, request: &Request) -> Result<Replies> {
        let dir = folder(self.control_dir.as_ref());
        let sockets = dir.sockets()?;
        let wanted: Vec<_> =
            sockets.into_iter().filter(|socket| self.pid.is_none_or(|pid| pid == socket.process())).collect();
        let mut all = Replies { replies: Vec::new(), errors: Vec::new() };
        for socket in wanted {
            match socket.try_ask(request) {
                Ok(Some(reply)) => all.replies.push((socket, reply)),
                Ok(None) => {}
                Err(error) => all.errors.push(error),
            }
        }
        if let (Some(pid), true) = (self.pid, all.replies.is_empty() && all.errors.is_empty()) {
            return Err(no_socket(pid, &dir));
        }
        Ok(all)
    }

    /// Says that there is no process.
    fn tell_none(&self) {
        let dir = folder(self.control_dir.as_ref());
        print_line(&format!("no process has a control socket in {}", dir.path().display()));
    }
}

fn no_socket(pid: u32, dir: &ControlDir) -> Error {
    anyhow!(
        "--pid {pid}: no control socket of this process is in {}; `spindrift ctl status` lists the processes",
        dir.path().display()
    )
}

impl Replies {
    /// Prints the errors of the processes. The last one is the command's.
    fn finish(self) -> Result<()> {
        let mut errors = self.errors;
        let last = errors.pop();
        for error in errors {
            eprint_line(format_args!("spindrift: {error}"));
        }
        last.map_or(Ok(()), |error| Err(error.into()))
    }
}

fn status(processes: &Processes) -> Result<()> {
    let all = processes.ask(&Request::Status)?;
    let mut shown = Vec::new();
    for (socket, reply) in &all.replies {
        match reply {
            Reply::Status(status) => shown.push(status),
            other => bail!("process {}: {}", socket.process(), refusal(other)),
        }
    }
    if processes.json {
        print_line(&object("status", "processes", &json!(shown)));
    } else if shown.is_empty() && all.errors.is_empty() {
        processes.tell_none();
    } else {
        for (index, status) in shown.iter().enumerate() {
            if index > 0 {
                print_line("");
            }
            for line in lines(status) {
                print_line(&line);
            }
        }
    }
    all.finish()
}

fn object(command: &str, name: &str, value: &Json) -> String {
    let version = env!("CARGO_PKG_VERSION");
    json!({ "command": format!("ctl {command}"), "version": version, name: value }).to_string()
}

fn refusal(reply: &Reply) -> &str {
    match reply {
        Reply::Error(reason) => reason,
        _ => "it replied to another request",
    }
}

/// A process, for people.
fn lines(status: &Status) -> Vec<String> {
    let Status { process, program, lanes, planes, queue_pairs, denied, .. } = status;
    let mut lines = vec![format!(
        "process {process}: {program}, {}, {}",
        count(*lanes as u64, "lane"),
        count(queue_pairs.len() as u64, "queue pair")
    )];
    lines.extend(planes.iter().map(|PlaneStatus { plane, port, up }| {
        format!("  plane {plane}: {port}, link {}", if *up { "up" } else { "down" })
    }));
    if !denied.is_empty() {
        lines.push("  denied:".to_owned());
        lines.extend(denied.iter().map(|entry| format!("  {}", denied_text(entry))));
    }
    if queue_pairs.is_empty() {
        return lines;
    }
    let peers: Vec<_> = queue_pairs.iter().map(peer).collect();
    let width = peers.iter().map(String::len).max().unwrap_or_default().max("peer".len());
    lines.push(format!(
        "  {:<10} {:>4} {:<5} {:<width$} {:>6}  planes",
        "queue pair", "lane", "state", "peer", "sends"
    ));
    for (qp, peer) in queue_pairs.iter().zip(peers) {
        let number = format!("{:#08x}", qp.queue_pair);
        lines.push(format!(
            "  {number:<10} {:>4} {:<5} {peer:<width$} {:>6}  {}",
            qp.lane,
            qp.state,
            qp.sends_outstanding,
            planes_text(qp) + &qp.denied.as_ref().map(avoids_text).unwrap_or_default()
        ));
    }
    lines
}

/// The peer's first address and queue pair.
fn peer(qp: &QpStatus) -> String {
    let Some(peer) = &qp.peer else { return "-".to_owned() };
    let number = format!("{:#08x}", peer.queue_pair);
    peer.addresses.first().map_or(number.clone(), |address| format!("{address} {number}"))
}

/// Planes in ascending order, separated by commas.
fn list(planes: &[u8]) -> String {
    if planes.is_empty() {
        return "none".to_owned();
    }
    planes.iter().map(u8::to_string).collect::<Vec<_>>().join(",")
}

/// The planes of a queue pair: which are up, and which carry packets if they have roles.
fn planes_text(qp: &QpStatus) -> String {
    let mut text = format!("up {}", list(&qp.planes));
    let Some(roles) = &qp.roles else { return text };
    let RolesStatus { primary, standby, serving, preferred, failovers, silent_failovers, failbacks, hold_ns } =
        roles;
    let name = |role: &Role| match role {
        Role::Primary => "primary",
        Role::Standby => "standby",
    };
    let _ = write!(
        text,
        "; primary {}, standby {}, in use {}, preferred {}",
        list(primary),
        list(standby),
        list(serving),
        name(preferred)
    );
    if let Some(shift) = &qp.shift {
        text.push_str(&shift_text(shift));
    } else if *failovers > 0 {
        let hold = Duration::from_nanos(*hold_ns);
        let _ = write!(
            text,
            "; {} ({silent_failovers} silent), {}, hold time {hold:?}",
            count(*failovers, "failover"),
            count(*failbacks, "failback")
        );
    }
    text
}

/// What a queue pair does with its second NIC.
fn shift_text(status: &ShiftStatus) -> String {
    let ShiftStatus { send, prepared, switches, moves, repeated, spared, failure } = status;
    let mut text = format!("; shift {send}, {}", if *prepared { "prepared" } else { "NOT PREPARED" });
    if *switches > 0 {
        let (failovers, requests) = (count(*switches, "failover"), count(*repeated, "request"));
        let _ = write!(text, ", {failovers} ({requests} sent again, {spared} spared)");
    }
    if *moves > 0 {
        let _ = write!(text, ", {}", count(*moves, "move"));
    }
    if let Some(failure) = failure {
        let _ = write!(text, "; {failure}");
    }
    text
}

fn prefer(processes: &Processes, role: Role, queue_pair: Option<u32>) -> Result<()> {
    let all = processes.ask(&Request::Prefer { role, queue_pair })?;
    let (mut moved, mut refused) = (Vec::new(), Vec::new());
    for (socket, reply) in &all.replies {
        match reply {
            Reply::Moved(of_process) => moved.push((socket.process(), of_process)),
            other => refused.push(format!("process {}: {}", socket.process(), refusal(other))),
        }
    }
    let wanted = |(_, moved): &(u32, &Moved)| !(moved.now.is_empty() && moved.later.is_empty());
    let some = moved.iter().any(wanted);
    if processes.json {
        let list = moved.iter().map(|(process, moved)| json!({ "process": process, "moved": moved }));
        print_line(&object("prefer", "processes", &list.collect()));
    } else {
        for (process, moved) in moved.iter().filter(|moved| wanted(moved)) {
            print_line(&moved_text(*process, role, moved));
        }
    }
    // A queue pair belongs to one context; the others do not have it.
    if queue_pair.is_none() || !some {
        if let Some(reason) = refused.first() {
            bail!("{reason}");
        }
        if !some && all.errors.is_empty() {
            bail!("{}", nothing_moved(processes, &moved));
        }
    }
    all.finish()
}

fn moved_text(process: u32, role: Role, moved: &Moved) -> String {
    let planes = match role {
        Role::Primary => "the primary planes",
        Role::Standby => "the planes that stand by",
    };
    let Moved { now, later, without_roles } = moved;
    let qps = |list: &[u32]| count(list.len() as u64, "queue pair");
    let mut text = format!("process {process}: {} on {planes} now", qps(now));
    if !later.is_empty() {
        let _ = write!(text, ", {} once these have worked for the hold time", qps(later));
    }
    if !without_roles.is_empty() {
        let _ = write!(text, ", {} without planes that stand by", qps(without_roles));
    }
    text
}

/// Why no queue pair was moved.
fn nothing_moved(processes: &Processes, moved: &[(u32, &Moved)]) -> String {
    let dir = folder(processes.control_dir.as_ref());
    if moved.is_empty() {
        return format!("no process has a control socket in {}", dir.path().display());
    }
    if moved.iter().all(|(_, moved)| moved.without_roles.is_empty()) {
        return "the processes have no queue pairs now".to_owned();
    }
    "no queue pair has planes that stand by; start the programs with --standby, as in --standby 2,3"
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue_pair(roles: Option<RolesStatus>) -> QpStatus {
        QpStatus {
            queue_pair: 0x12,
            lane: 0,
            state: "RTS".to_owned(),
            peer: Some(spindrift_control::PeerStatus {
                queue_pair: 0x00ab_cdef,
                addresses: vec!["10.0.0.2".parse().unwrap(), "10.0.1.2".parse().unwrap()],
            }),
            planes: vec![0, 1],
            roles,
            shift: None,
            denied: None,
            sends_outstanding: 128,
        }
    }

    fn roles(failovers: u64) -> RolesStatus {
        RolesStatus {
            primary: vec![0],
            standby: vec![1],
            serving: vec![1],
            preferred: Role::Primary,
            failovers,
            silent_failovers: 1,
            failbacks: 2,
            hold_ns: 20_000_000,
        }
    }

    #[test]
    fn a_process_is_shown() {
        let new = QpStatus { state: "INIT".to_owned(), peer: None, planes: Vec::new(), ..queue_pair(None) };
        let status = Status {
            version: "1".to_owned(),
            process: 77,
            program: "write-bw with the client 10.0.0.2".to_owned(),
            lanes: 1,
            planes: vec![
                PlaneStatus { plane: 0, port: "udp 10.0.0.1".to_owned(), up: true },
                PlaneStatus { plane: 1, port: "udp 10.0.1.1".to_owned(), up: false },
            ],
            queue_pairs: vec![queue_pair(None), queue_pair(Some(roles(0))), queue_pair(Some(roles(3))), new],
            denied: Vec::new(),
        };
        let expected = "\
process 77: write-bw with the client 10.0.0.2, 1 lane, 4 queue pairs
  plane 0: udp 10.0.0.1, link up
  plane 1: udp 10.0.1.1, link down
  queue pair lane state peer               sends  planes
  0x000012      0 RTS   10.0.0.2 0xabcdef    128  up 0,1
  0x000012      0 RTS   10.0.0.2 0xabcdef    128  up 0,1; primary 0, standby 1, in use 1, preferred primary
  0x000012      0 RTS   10.0.0.2 0xabcdef    128  up 0,1; primary 0, standby 1, in use 1, preferred primary; 3 failovers (1 silent), 2 failbacks, hold time 20ms
  0x000012      0 INIT  -                    128  up none";
        assert_eq!(lines(&status).join("\n"), expected);
        let none = Status { queue_pairs: Vec::new(), planes: Vec::new(), ..status };
        assert_eq!(lines(&none), ["process 77: write-bw with the client 10.0.0.2, 1 lane, 0 queue pairs"]);
    }

    #[test]
    fn what_shift_mode_does_is_shown() {
        let shift = |switches, moves, failure: Option<&str>| ShiftStatus {
            send: "fallback".to_owned(),
            prepared: failure.is_none(),
            switches,
            moves,
            repeated: 9,
            spared: 4,
            failure: failure.map(str::to_owned),
        };
        let text = |shift| planes_text(&QpStatus { shift: Some(shift), ..queue_pair(Some(roles(3))) });
        let roles = "up 0,1; primary 0, standby 1, in use 1, preferred primary";
        assert_eq!(text(shift(0, 0, None)), format!("{roles}; shift fallback, prepared"));
        let all = text(shift(1, 2, None));
        assert_eq!(
            all,
            format!(
                "{roles}; shift fallback, prepared, 1 failover (9 requests sent again, 4 spared), 2 moves"
            )
        );
        let failed = text(shift(0, 1, Some("no spare")));
        assert_eq!(failed, format!("{roles}; shift fallback, NOT PREPARED, 1 move; no spare"));
    }

    #[test]
    fn a_move_is_told_with_what_did_not_move() {
        let moved = Moved { now: vec![1, 2], later: vec![3], without_roles: vec![4] };
        assert_eq!(
            moved_text(5, Role::Standby, &moved),
            "process 5: 2 queue pairs on the planes that stand by now, 1 queue pair once these have worked for the hold time, 1 queue pair without planes that stand by"
        );
        let moved = Moved { now: vec![1], ..Moved::default() };
        assert_eq!(moved_text(5, Role::Primary, &moved), "process 5: 1 queue pair on the primary planes now");
    }

    #[test]
    fn a_place_is_a_folder_or_none() {
        let of = |text: &str| text.parse::<ControlPlace>().unwrap();
        assert_eq!([of("none"), of("/a")], [ControlPlace::None, ControlPlace::At("/a".into())]);
        assert_eq!(ControlPlace::default(), ControlPlace::Usual);
    }
}
