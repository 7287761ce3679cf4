//! A lab of a test.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::net::{Ipv6Addr, UdpSocket};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use spindrift_pmd::testing::within;

use super::{Running, end_of, json, spindrift, stderr, stdout};

/// Longer than anything takes; only what hangs meets it.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

pub(crate) fn config(name: &str) -> String {
    format!("{}/../../configs/lab/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// All kinds of switches.
pub(crate) const KINDS: [&str; 3] = ["kernel", "xdp", "xdp-generic"];

/// A name for a lab, which is gone when this is dropped. One at a time: the machine is small.
pub(crate) struct Lab {
    pub(crate) name: String,
    /// What `--switch` says, if it is there.
    switch: Option<&'static str>,
    _alone: MutexGuard<'static, ()>,
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = self.command(&["down"]).output();
    }
}

impl Lab {
    /// `None` where there can be no labs.
    pub(crate) fn new(test: &str) -> Option<Self> {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let name = format!("{test}{}", std::process::id());
        let probe = format!("sdlab-{name}-probe");
        let ip = |args: &[&str]| Command::new("ip").args(args).output().is_ok_and(|out| out.status.success());
        if !ip(&["netns", "add", &probe]) {
            eprintln!("SKIPPED: a lab needs root, iproute2 and network namespaces");
            return None;
        }
        assert!(ip(&["netns", "delete", &probe]));
        Some(Self { name, switch: None, _alone: alone })
    }

    /// Labs with each of these kinds of switches, one after the other; none where there can be no labs.
    pub(crate) fn each(test: &str, kinds: &[&'static str]) -> impl Iterator<Item = Self> {
        kinds.iter().map_while(|&switch| {
            let mut lab = Self::new(test)?;
            lab.switch = Some(switch);
            Some(lab)
        })
    }

    /// The arguments that say so.
    pub(crate) fn switch(&self) -> Vec<&'static str> {
        self.switch.map_or_else(Vec::new, |kind| vec!["--switch", kind])
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = spindrift();
        command.args(["lab", args[0], "--name", &self.name]).args(&args[1..]);
        command
    }

    /// Output, messages and status.
    pub(crate) fn run(&self, args: &[&str]) -> (String, String, Option<i32>) {
        let child =
            self.command(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let output = end_of(child.unwrap(), PATIENCE, &format!("lab {args:?}"));
        (stdout(&output), stderr(&output), output.status.code())
    }

    pub(crate) fn up(&self, topology: &str) {
        let (out, error, status) = self.run(&[&["up", &config(topology)][..], &self.switch()].concat());
        assert_eq!((error.as_str(), status), ("", Some(0)), "{out}");
        assert!(out.starts_with(&format!("lab \"{}\" is up: ", self.name)), "{out}");
    }

    pub(crate) fn namespace(&self, node: &str) -> String {
        format!("sdlab-{}-{node}", self.name)
    }

    /// What is left of it: namespaces, and its folder.
    pub(crate) fn left(&self) -> Vec<String> {
        let list = Command::new("ip").args(["netns", "list"]).output().unwrap();
        let mut left: Vec<_> = stdout(&list)
            .lines()
            .filter(|line| line.starts_with(&self.namespace("")))
            .map(str::to_owned)
            .collect();
        let folder = PathBuf::from("/run/spindrift/lab").join(&self.name);
        left.extend(folder.exists().then(|| folder.display().to_string()));
        left
    }

    /// A program on a host.
    pub(crate) fn on(&self, host: &str, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace(host), program]).args(args);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub(crate) fn spindrift(&self, host: &str, args: &[&str]) -> Command {
        self.on(host, env!("CARGO_BIN_EXE_spindrift"), args)
    }

    /// A server of `write-bw` that waits for its client.
    pub(crate) fn server(&self, host: &str, args: &[&str]) -> Running {
        let mut server = Running::start(&mut self.spindrift(host, &[&["write-bw", "--json"], args].concat()));
        let mut line = String::new();
        BufReader::new(server.child().stderr.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains("waiting for a client"), "{line}");
        server
    }

    /// Writes from one host to another, which has this address. The objects of server and client.
    pub(crate) fn write_bw(
        &self,
        [from, to]: [&str; 2],
        address: &str,
        [of_server, of_client]: [&[&str]; 2],
    ) -> [Value; 2] {
        let server = self.server(to, of_server);
        let args = [&["write-bw", address, "--json", "-s", "64K", "-n", "300"], of_client].concat();
        let client = end_of(Running::start(&mut self.spindrift(from, &args)), PATIENCE, "the client");
        let server = end_of(server, PATIENCE, "the server");
        let both = [json(&server.stdout), json(&client.stdout)];
        assert!(client.status.success() && server.status.success(), "{both:?} {}", stderr(&client));
        for side in &both {
            assert_eq!(side["rows"][0]["verified"], true, "{side}");
        }
        both
    }

    /// A socket on a host, at one of its addresses.
    pub(crate) fn socket(&self, host: &str, address: Ipv6Addr, port: u16) -> UdpSocket {
        within(&self.namespace(host), || UdpSocket::bind((address, port)).unwrap())
    }

    pub(crate) fn status(&self) -> Value {
        let (out, error, status) = self.run(&["status", "--json"]);
        assert_eq!(status, Some(0), "{error}");
        serde_json::from_str(&out).unwrap()
    }

    pub(crate) fn links(&self) -> Vec<Value> {
        self.status()["links"].as_array().unwrap().clone()
    }

    /// Packets that went up from a T0 switch to each T1 switch.
    pub(crate) fn up_packets(&self, t0: &str) -> Vec<u64> {
        let of = |link: &Value| link["lower"]["node"] == t0;
        self.links().iter().filter(|link| of(link)).map(|link| link["packets_up"].as_u64().unwrap()).collect()
    }
}

/// What a lab says of its faults.
impl Lab {
    pub(crate) fn ok(&self, args: &[&str]) -> String {
        let (out, error, status) = self.run(args);
        assert_eq!((error.as_str(), status), ("", Some(0)), "{args:?}: {out}");
        out
    }

    pub(crate) fn wrong(&self, args: &[&str], status: i32, parts: &[&str]) {
        let (out, error, found) = self.run(args);
        assert_eq!((out.as_str(), found), ("", Some(status)), "{args:?}: {error}");
        assert!(parts.iter().all(|part| error.contains(part)), "{args:?}: {error}");
    }

    /// The faults of each link that has some, with how many packets they took.
    pub(crate) fn faults(&self) -> BTreeMap<String, Vec<(String, Option<u64>)>> {
        let fault = |fault: &Value| (fault["fault"].as_str().unwrap().to_owned(), fault["packets"].as_u64());
        let of = |link: &Value| link["faults"].as_array().unwrap().iter().map(fault).collect::<Vec<_>>();
        let all = self.links().into_iter().map(|link| (name(&link), of(&link)));
        all.filter(|(_, faults)| !faults.is_empty()).collect()
    }

    /// The names of all faults, and of their links.
    pub(crate) fn named(&self) -> Vec<String> {
        let all = self.faults().into_iter();
        all.flat_map(|(link, faults)| faults.into_iter().map(move |(fault, _)| format!("{link} {fault}")))
            .collect()
    }

    /// How many packets all faults took.
    pub(crate) fn taken(&self) -> usize {
        self.faults().values().flatten().map(|(_, packets)| packets.unwrap_or(0) as usize).sum()
    }

    /// The links that are down.
    pub(crate) fn down(&self) -> Vec<String> {
        self.links().iter().filter(|link| link["up"] != true).map(name).collect()
    }
}

/// The name of a link.
pub(crate) fn name(link: &Value) -> String {
    format!("{}:{}", link["lower"]["node"].as_str().unwrap(), link["upper"]["node"].as_str().unwrap())
}
