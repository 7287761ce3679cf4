//! `spindrift agent` on a host of a lab: faults of the lab's links and switches, by name. Needs root, `ip` and network namespaces; without them
//! the tests say so and pass.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]
#![allow(clippy::print_stderr, reason = "tests that are skipped say so")]

mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};
use std::time::Instant;

use serde_json::Value;
use spindrift_pmd::testing::within;
use support::lab::{KINDS, Lab, PATIENCE, config};
use support::{Running, end_of, spindrift, stderr, stdout};

/// An agent in a lab, and what it prints.
struct Agent<'a> {
    lab: &'a Lab,
    host: &'static str,
    running: Running,
    lines: BufReader<ChildStdout>,
}

impl<'a> Agent<'a> {
    fn start(lab: &'a Lab, host: &'static str, topology: &str) -> Self {
        Self::start_with(lab, host, topology, &[])
    }

    fn start_with(lab: &'a Lab, host: &'static str, topology: &str, more: &[&str]) -> Self {
        let agent = Self::start_lossy(lab, host, topology, more);
        // Until all is known to be well.
        agent.until(|status| links(status).all(|link| link["state"] == "up"));
        agent
    }

    fn start_lossy(lab: &'a Lab, host: &'static str, topology: &str, more: &[&str]) -> Self {
        let topology = config(topology);
        let args = ["agent", "run", "-t", &topology, "--interval", "10ms", "--json"];
        let mut running = Running::start(&mut lab.spindrift(host, &[&args, more].concat()));
        let lines = BufReader::new(running.child().stdout.take().unwrap());
        Self { lab, host, running, lines }
    }

    fn status(&self) -> Option<Value> {
        let output = self.lab.spindrift(self.host, &["agent", "status", "--json"]).output().unwrap();
        output.status.success().then(|| serde_json::from_slice(&output.stdout).unwrap())
    }

    #[track_caller]
    fn until(&self, holds: impl Fn(&Value) -> bool) -> Value {
        let began = Instant::now();
        loop {
            match self.status() {
                Some(status) if holds(&status) => return status,
                status => assert!(began.elapsed() < PATIENCE, "{status:?}"),
            }
        }
    }

    /// The next event of this kind. Others may come before it: a fault is often lossy before it is down.
    #[track_caller]
    fn event(&mut self, kind: &str) -> Value {
        loop {
            let mut line = String::new();
            assert!(self.lines.read_line(&mut line).unwrap() > 0, "the agent has ended");
            let event: Value = serde_json::from_str(&line).unwrap();
            if event["event"] == kind {
                return event;
            }
        }
    }

    /// Ends it as a user would, and returns the last thing that it says.
    fn end(mut self) -> Value {
        let pid = self.running.child().id().to_string();
        assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
        let end = self.event("end");
        let output = end_of(self.running, PATIENCE, "the agent");
        assert!(output.status.success(), "{}", stderr(&output));
        end
    }
}

fn links(status: &Value) -> impl Iterator<Item = &Value> {
    status["links"].as_array().unwrap().iter()
}

/// Kind and name of the components of a finding.
fn components(finding: &Value) -> Vec<(String, String)> {
    let text = |part: &Value, key: &str| part[key].as_str().unwrap().to_owned();
    let parts = finding["components"].as_array().unwrap();
    parts.iter().map(|part| (text(part, "kind"), text(part, "name"))).collect()
}

fn parts(all: &[(&str, &str)]) -> Vec<(String, String)> {
    all.iter().map(|(kind, name)| ((*kind).to_owned(), (*name).to_owned())).collect()
}

#[test]
fn a_fault_is_named_and_its_end_is_too() {
    faults_are_named(&KINDS[..1]);
}

#[test]
#[ignore = "slow: tools/check-all.sh"]
fn a_fault_is_named_whatever_the_switches_are() {
    faults_are_named(&KINDS[1..]);
}

/// One agent alone cannot tell a link from the switch above it.
fn faults_are_named(kinds: &[&'static str]) {
    for lab in Lab::each("agent", kinds) {
        lab.up("two-tier.toml");
        let mut agent = Agent::start(&lab, "h1", "two-tier.toml");
        let known = agent.status().unwrap();
        assert_eq!((known["host"].as_str(), links(&known).count()), (Some("h1"), 2 + 12));
        assert_eq!(known["findings"], Value::Array(Vec::new()));
        for (fault, expected) in [
            (["p1-t0-0:p1-t1-2", "down"], parts(&[("link", "p1-t0-0:p1-t1-2"), ("switch", "p1-t1-2")])),
            (["h1:p0-t0-0", "loss=60%"], parts(&[("link", "h1:p0-t0-0"), ("switch", "p0-t0-0")])),
        ] {
            let (_, error, status) = lab.run(&["fault", fault[0], fault[1]]);
            assert_eq!(status, Some(0), "{error}");
            let event = agent.event("fault");
            assert_eq!(components(&event["finding"]), expected, "{event}");
            let status = agent.until(|status| status["findings"].as_array().unwrap().len() == 1);
            assert_eq!(components(&status["findings"][0]), expected);
            let named = lab.spindrift("h1", &["agent", "explain", fault[0]]).output().unwrap();
            assert!(named.status.success() && stdout(&named).starts_with("since 20"), "{}", stdout(&named));
            assert_eq!(lab.run(&["heal"]).2, Some(0));
            assert_eq!(components(&agent.event("healed")["finding"]), expected);
        }
        agent.until(|status| status["findings"] == Value::Array(Vec::new()));
        // An interface that goes down and comes back.
        assert_eq!(lab.run(&["fault", "h1:p1-t0-0", "down"]).2, Some(0));
        let status = agent.until(|status| links(status).any(|link| link["state"] == "down"));
        assert!(status["send_error"].as_str().unwrap().starts_with("eth1: "), "{status}");
        assert_eq!(lab.run(&["heal"]).2, Some(0));
        agent.until(|status| links(status).all(|link| link["state"] == "up"));
        agent.until(|_| {
            stdout(&lab.on("h1", "ip", &["-6", "address", "show", "dev", "eth1"]).output().unwrap())
                .contains("9b0b")
        });
        agent
            .until(|status| status["findings"] == Value::Array(Vec::new()) && status["send_error"].is_null());
        // Packets of somebody else at the agent's address are counted and change nothing.
        let to = known["planes"][0]["probe_address"].as_str().unwrap();
        within(&lab.namespace("h1"), || {
            UdpSocket::bind("[::]:0").unwrap().send_to(b"?", (to, 4972)).unwrap()
        });
        let end = agent.end();
        let probes = &end["status"]["probes"];
        assert!(probes["lost"].as_u64().unwrap() > 0 && probes["sent"].as_u64().unwrap() > 1000, "{probes}");
        // The kernel had nothing to report, and its addresses are as before.
        let left = lab.on("h1", "ip", &["-6", "address"]).output().unwrap();
        assert!(!stdout(&left).contains("9b0b"), "{}", stdout(&left));
        let counts = stdout(&lab.on("h1", "cat", &["/proc/net/snmp6"]).output().unwrap());
        let unreachable = counts.lines().find(|line| line.starts_with("Icmp6OutDestUnreachs")).unwrap();
        let before_the_address_was_back = 100;
        let unreachable: u64 = unreachable.split_whitespace().nth(1).unwrap().parse().unwrap();
        assert!(unreachable < before_the_address_was_back, "{unreachable}");
    }
}

/// A Redis server that all hosts of a lab reach: by a socket in the file system.
struct Redis {
    folder: PathBuf,
    process: Running,
}

impl Redis {
    fn start(folder: &Path) -> Self {
        fs::create_dir_all(folder).unwrap();
        let socket = folder.join("redis.sock");
        // The same program as `redis-server`. The package with that name would also start a server for the whole machine.
        let mut command = Command::new("redis-check-rdb");
        command.arg0("redis-server").args(["--port", "0", "--save", "", "--unixsocket"]).arg(&socket);
        let process = Running::start(command.stdout(Stdio::null()).stderr(Stdio::null()));
        let began = Instant::now();
        while UnixStream::connect(&socket).is_err() {
            assert!(
                began.elapsed() < PATIENCE,
                "redis-check-rdb does not start; tools/setup.sh --tests installs it"
            );
        }
        Self { folder: folder.to_owned(), process }
    }

    fn url(&self) -> String {
        format!("unix://{}", self.folder.join("redis.sock").display())
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.process.child().kill();
        let _ = self.process.child().wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// With the reports of the others an agent tells a switch from its links, and anybody sees the whole fabric.
#[test]
#[ignore = "slow: tools/check-all.sh"]
fn agents_that_share_a_store_tell_a_switch_from_a_link() {
    let Some(lab) = Lab::new("agents") else { return };
    lab.up("two-tier.toml");
    let folder = std::env::temp_dir().join(format!("spindrift-agents-{}", std::process::id()));
    let redis = Redis::start(&folder);
    let url = redis.url();
    let agents =
        ["h1", "h2", "h3"].map(|host| Agent::start_with(&lab, host, "two-tier.toml", &["--store", &url]));
    let map = || {
        let topology = config("two-tier.toml");
        let output =
            spindrift().args(["agent", "map", "-t", &topology, "--store", &url, "--json"]).output().unwrap();
        output.status.success().then(|| serde_json::from_slice::<Value>(&output.stdout).unwrap())
    };
    let becomes = |holds: &dyn Fn(&Value) -> bool| {
        let began = Instant::now();
        loop {
            match map() {
                Some(map) if holds(&map) => return map,
                map => assert!(began.elapsed() < PATIENCE, "{map:?}"),
            }
        }
    };
    let none = |map: &Value| map["findings"] == Value::Array(Vec::new());
    let well = becomes(&|map| map["agents"] == 3 && none(map));
    assert_eq!((&well["silent"], &well["unprobed"]), (&Value::Array(vec![]), &Value::Array(vec![])));
    for agent in &agents {
        agent.until(|status| status["store"]["agents"] == 3 && status["store"]["error"].is_null());
    }
    for (fault, expected) in
        [("p0-t1-3", ("switch", "p0-t1-3")), ("p1-t0-1:p1-t1-5", ("link", "p1-t0-1:p1-t1-5"))]
    {
        assert_eq!(lab.run(&["fault", fault, "down"]).2, Some(0));
        let named = |findings: &Value| {
            findings.as_array().unwrap().iter().map(components).collect::<Vec<_>>() == [parts(&[expected])]
        };
        becomes(&|map| named(&map["findings"]));
        // An agent that does not probe the component knows it as well.
        agents[2].until(|status| named(&status["findings"]));
        assert_eq!(lab.run(&["heal"]).2, Some(0));
        becomes(&none);
    }
    // Without the store each works alone, and with it again all work together.
    drop(redis);
    for agent in &agents {
        let alone = agent.until(|status| status["store"]["error"].is_string());
        assert!(links(&alone).all(|link| link["state"] == "up"));
    }
    assert!(map().is_none());
    let _redis = Redis::start(&folder);
    becomes(&|map| map["agents"] == 3 && none(map));
    // What was told of meanwhile and before is in the stream; a host whose agent ends is silent.
    let [first, others @ ..] = agents;
    first.end();
    becomes(&|map| map["agents"] == 2 && map["silent"][0] == "h1");
    for agent in others {
        agent.end();
    }
}

/// Two hosts that write, with control sockets of their own.
struct Writers {
    folders: [PathBuf; 2],
    _running: [Running; 2],
}

impl Writers {
    fn start(lab: &Lab, name: &str) -> Self {
        let ports = ["fd5d:7072::1,fd5d:7072::1:1", "fd5d:7072:0:1::1,fd5d:7072:0:1::1:1"];
        Self::with(lab, name, &ports.map(|ports| ["--local", ports].map(str::to_owned).to_vec()))
    }

    fn with(lab: &Lab, name: &str, ports: &[Vec<String>; 2]) -> Self {
        let folders = [1, 2]
            .map(|host| std::env::temp_dir().join(format!("spindrift-{name}-{host}-{}", std::process::id())));
        let args = |host: usize| {
            let mut args = vec!["-D", "10m", "--control-dir", folders[host].to_str().unwrap()];
            args.extend(ports[host].iter().map(String::as_str));
            args
        };
        let server = lab.server("h2", &args(1));
        let mut client = lab.spindrift("h1", &[&["write-bw"], &args(0)[..], &["fd5d:7072:0:1::1"]].concat());
        let client = Running::start(client.stdout(Stdio::null()).stderr(Stdio::null()));
        Self { folders, _running: [client, server] }
    }

    /// What the queue pair of a host does about the deny list, and by whose rules, once it is connected.
    fn denied(&self, host: usize) -> Option<(Value, Value)> {
        let folder = self.folders[host].to_str().unwrap();
        let output = spindrift().args(["ctl", "status", "--json", "--control-dir", folder]).output().unwrap();
        let status: Value = serde_json::from_slice(&output.stdout).ok()?;
        let process = status["processes"].get(0)?;
        let queue_pair = process["queue_pairs"].get(0)?;
        (queue_pair["state"] == "RTS").then(|| (queue_pair["denied"].clone(), process["denied"].clone()))
    }

    #[track_caller]
    fn until(&self, host: usize, holds: impl Fn(&Value, &Value) -> bool) {
        let began = Instant::now();
        loop {
            match self.denied(host) {
                Some((queue_pair, rules)) if holds(&queue_pair, &rules) => return,
                denied => assert!(began.elapsed() < PATIENCE, "{denied:?}"),
            }
        }
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        for folder in &self.folders {
            let _ = fs::remove_dir_all(folder);
        }
    }
}

/// A policy that allows again soon.
fn policy(name: &str, more: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("spindrift-policy-{name}-{}.toml", std::process::id()));
    fs::write(&path, format!("allow_after_ms = 100\n{more}")).unwrap();
    path
}

/// The cable of a host loses some packets: its processes avoid the plane until it is well, also those that start later, and none does
/// in a dry run or when the agent ends.
#[test]
fn processes_of_the_host_avoid_a_lossy_plane() {
    let Some(lab) = Lab::new("denies") else { return };
    lab.up("two-tier.toml");
    let [folder, policy, dry] = [
        std::env::temp_dir().join(format!("spindrift-lossy-1-{}", std::process::id())),
        policy("lossy", ""),
        policy("dry", "dry_run = true"),
    ];
    let with = |policy: &Path| {
        let args = ["--policy", policy.to_str().unwrap(), "--control-dir", folder.to_str().unwrap()];
        args.map(str::to_owned)
    };
    let args = with(&policy);
    let mut agent = Agent::start_with(&lab, "h1", "two-tier.toml", &args.each_ref().map(String::as_str));
    assert_eq!(lab.run(&["fault", "h1:p1-t0-0", "loss=50%"]).2, Some(0));
    let event = agent.event("denied");
    assert_eq!(
        (&event["denied"]["component"], &event["dry_run"]),
        (&"plane 1 of this host".into(), &false.into())
    );
    // A process that starts later.
    let writers = Writers::start(&lab, "lossy");
    writers.until(0, |queue_pair, rules| {
        queue_pair["avoided"] == serde_json::json!([1]) && rules[0]["source"] == "agent h1"
    });
    writers.until(1, |queue_pair, rules| queue_pair.is_null() && rules.is_null());
    let status = agent.until(|status| status["deny"]["processes"] == 1);
    assert_eq!(status["deny"]["denied"][0]["rules"][0], "plane 1");
    let shown = stdout(&lab.spindrift("h1", &["agent", "status"]).output().unwrap());
    assert!(
        shown.contains("Denied; 1 process follows:") && shown.contains(": plane 1 of this host (plane 1)"),
        "{shown}"
    );
    assert_eq!(lab.run(&["heal"]).2, Some(0));
    agent.event("allowed");
    writers.until(0, |queue_pair, rules| queue_pair.is_null() && rules.is_null());
    // The rules end with the agent.
    assert_eq!(lab.run(&["fault", "h1:p0-t0-0", "loss=50%"]).2, Some(0));
    agent.event("denied");
    writers.until(0, |queue_pair, _| queue_pair["avoided"] == serde_json::json!([0]));
    agent.end();
    writers.until(0, |queue_pair, rules| queue_pair.is_null() && rules.is_null());
    // A dry run only says so.
    let args = with(&dry);
    let mut agent = Agent::start_lossy(&lab, "h1", "two-tier.toml", &args.each_ref().map(String::as_str));
    assert_eq!(agent.event("denied")["dry_run"], true);
    let status = agent.until(|status| status["deny"]["denied"][0]["rules"][0] == "plane 0");
    assert_eq!((&status["deny"]["dry_run"], &status["deny"]["processes"]), (&true.into(), &0.into()));
    assert!(writers.denied(0).is_some_and(|(queue_pair, rules)| queue_pair.is_null() && rules.is_null()));
    agent.end();
    for path in [policy, dry] {
        fs::remove_file(path).unwrap();
    }
}

/// A link above loses packets: source-routed queue pairs leave out the path over it, and no other.
#[test]
#[cfg(feature = "af_xdp")]
#[ignore = "slow: tools/check-all.sh"]
fn source_routed_paths_over_a_lossy_link_are_avoided() {
    let Some(lab) = Lab::new("routes") else { return };
    lab.up("two-tier.toml");
    let topology = config("two-tier.toml");
    let policy = policy("routes", "");
    let folder = std::env::temp_dir().join(format!("spindrift-routes-1-{}", std::process::id()));
    let args = ["--policy", policy.to_str().unwrap(), "--control-dir", folder.to_str().unwrap()];
    let mut agent = Agent::start_with(&lab, "h1", "two-tier.toml", &args);
    let ports = ["--port", "af_xdp", "--topology", &topology].map(str::to_owned).to_vec();
    let writers = Writers::with(&lab, "routes", &[ports.clone(), ports]);
    writers.until(0, |queue_pair, _| queue_pair.is_null());
    assert_eq!(lab.run(&["fault", "p1-t0-0:p1-t1-3", "loss=50%"]).2, Some(0));
    assert_eq!(agent.event("denied")["denied"]["component"], "link p1-t0-0:p1-t1-3");
    let expected = [
        ("planes", serde_json::json!([])),
        ("avoided", serde_json::json!([])),
        ("evs", 1.into()),
        ("released", false.into()),
    ];
    writers.until(0, |queue_pair, _| expected.iter().all(|(name, value)| queue_pair[*name] == *value));
    assert_eq!(lab.run(&["heal"]).2, Some(0));
    agent.event("allowed");
    writers.until(0, |queue_pair, _| queue_pair.is_null());
    agent.end();
    fs::remove_file(policy).unwrap();
}

/// What an agent needs is said before it starts, and what is not there by name.
#[test]
fn errors_name_what_is_wrong() {
    let topology = config("two-tier.toml");
    let bad = std::env::temp_dir().join(format!("spindrift-bad-policy-{}.toml", std::process::id()));
    fs::write(&bad, "max_denied = 1.0\n").unwrap();
    for (args, code, text) in [
        (&["run", "-t", "nowhere.toml"][..], 2, "nowhere.toml"),
        (
            &["run", "-t", &topology, "--host", "h9"],
            2,
            "--host h9: no such host; the topology has h1, h2, h3",
        ),
        (&["run", "-t", &topology], 2, "this host has no address of a host of the topology"),
        (&["run", "-t", &topology, "--host", "h1"], 2, "is not an address of this host"),
        (&["run", "-t", &topology, "--host", "h1", "--interval", "1us"], 2, "interval_ns = 1000"),
        (&["run", "-t", &topology, "--host", "h1", "--probes", "2"], 2, "set it to 3 or more"),
        (
            &["run", "-t", &topology, "--host", "h1", "--listen", "here"],
            2,
            "--listen here: write an address and port",
        ),
        (
            &["run", "-t", &topology, "--host", "h1", "--token-file", "nowhere.txt"],
            2,
            "--token-file nowhere.txt: No such file",
        ),
        (
            &["run", "-t", &topology, "--host", "h1", "--store", "http://a"],
            2,
            "--store: the store is not `redis://HOST",
        ),
        (
            &["run", "-t", &topology, "--host", "h1", "--policy", "none.toml"],
            2,
            "cannot read the policy none.toml",
        ),
        (
            &["run", "-t", &topology, "--host", "h1", "--policy", bad.to_str().unwrap()],
            2,
            "line 1, column 14: max_denied = 1: must be above 0, up to 0.9: some paths must be left",
        ),
        (&["map", "-t", &topology, "--store", "redis://127.0.0.1:9"], 1, "the store cannot be reached: "),
        (&["status", "--agent", "127.0.0.1:9"], 1, "no agent replies at 127.0.0.1:9; start one with"),
        (&["explain", "h1", "--agent", "127.0.0.1:9"], 1, "no agent replies"),
    ] {
        let output = spindrift().arg("agent").args(args).output().unwrap();
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
        assert!(said.contains(text), "{args:?}: {said}");
    }
    fs::remove_file(bad).unwrap();
}
