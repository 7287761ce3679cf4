//! `spindrift lab run`: scenarios whose figures can be told beforehand, and what goes wrong with others. Needs root, `ip`, `tc`, `nft`
//! and network namespaces; without them the tests say so and pass.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value as Json;
use support::lab::{KINDS, Lab, PATIENCE, config};
use support::pauses::Pauses;
use support::{end_of, stderr};

/// Longer than any pause of a machine that has time for a test.
const PAUSE: Duration = Duration::from_millis(20);

/// A folder for a scenario and its results.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = support::temp(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn scenario(&self, topology: &str, section: &str, rest: &str) -> String {
        let path = self.0.join("test.toml");
        let (topology, title) = (config(topology), "A test");
        let text = format!("[scenario]\ntitle = \"{title}\"\ntopology = \"{topology}\"\n{section}\n{rest}\n");
        fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    fn results(&self) -> PathBuf {
        self.0.join("results")
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.results().join(name)).unwrap()
    }

    fn result(&self) -> Json {
        serde_json::from_str(&self.read("result.json")).unwrap()
    }

    /// With a fault at this time.
    fn assert_pictures(&self, fault_ms: f64) {
        let svg = self.read("figure.svg");
        let at = format!("1: at {:.3} s", fault_ms / 1e3);
        for part in
            ["A test", "flow h1-h3", "can pass", "plane 1", "assumed bad", &at, "h3:p1-t0-1: blackhole"]
        {
            assert!(svg.contains(part), "{part}");
        }
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    }

    /// The rows of a table, by column.
    fn table(&self, name: &str) -> Vec<Vec<(String, String)>> {
        let text = self.read(name);
        let mut lines = text.lines().map(|line| line.split(',').map(str::to_owned).collect::<Vec<_>>());
        let head = lines.next().unwrap();
        let row = |line: Vec<String>| {
            assert_eq!(line.len(), head.len());
            head.iter().cloned().zip(line).collect()
        };
        lines.map(row).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn cell<'a>(row: &'a [(String, String)], name: &str) -> &'a str {
    &row.iter().find(|(column, _)| column == name).unwrap_or_else(|| panic!("{name}")).1
}

fn number(row: &[(String, String)], name: &str) -> f64 {
    cell(row, name).parse().unwrap()
}

impl Lab {
    fn run_scenario(&self, path: &str, results: &Path) -> (String, String, Option<i32>) {
        self.run(&[&["run", path, "-o", results.to_str().unwrap()][..], &self.switch()].concat())
    }
}

/// Links of 100 Mb/s in two planes: one is silent for a while, and all files tell of that.
#[test]
#[ignore = "slow: tools/check-all.sh"]
fn a_silent_link_is_told_in_all_results() {
    for lab in Lab::each("silent", &KINDS[..2]) {
        let folder = Folder::new("lab-run-silent");
        let path = folder.scenario(
            "two-plane.toml",
            "duration = \"5s\"\nlink_rate = \"100M\"",
            "[[flow]]\nfrom = \"h1\"\nto = \"h3\"\noptions = [\"--no-gso\"]\nclient_options = [\"-q\", \"2\", \"-t\", \"16\"]\n\
             [[fault]]\nat = \"1s\"\nwhere = \"h3:p1-t0-1\"\naction = \"blackhole\"\nfor = \"2s\"",
        );
        let pauses = Pauses::watch();
        let (out, error, status) = lab.run_scenario(&path, &folder.results());
        assert_eq!(status, Some(0), "{error}");
        assert_eq!(lab.left(), [""; 0], "nothing is left");
        let begins = error.lines().find(|line| line.ends_with(" s  h3:p1-t0-1: blackhole"));
        let begins = begins.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
        assert!(begins.is_some_and(|seconds| seconds >= 1.0), "{error}");
        let result = folder.result();
        let flow = &result["flows"][0];
        assert_eq!((&flow["name"], &flow["verified"]), (&"h1-h3".into(), &true.into()));
        let baseline = flow["baseline_gbps"].as_f64().unwrap();
        assert!(baseline > 0.0, "{flow}");
        let events = result["events"].as_array().unwrap();
        let of = |number: usize, name: &str| events[number]["flows"][0][name].as_f64().unwrap();
        let what: Vec<_> = events
            .iter()
            .map(|event| (event["what"][0].as_str().unwrap(), event["goal_ms"].as_f64().unwrap()))
            .collect();
        assert_eq!(what, [("h3:p1-t0-1: blackhole", 50.0), ("h3:p1-t0-1: blackhole ends", 1000.0)]);
        // 95 % of the links' rate, which is 0.1 Gb/s each.
        let possible = [(0, 0.095), (1, 0.19)];
        assert!(possible.iter().all(|&(at, gbps)| (of(at, "possible_gbps") - gbps).abs() < 1e-6), "{result}");
        assert!(of(0, "losses") > 0.0, "{result}");
        // What the host's own full queue refused, again and again, is not sent again.
        assert!(of(0, "retransmits") <= of(0, "losses") + 100.0, "{result}");

        let kept_time = pauses.none_above(PAUSE);
        if kept_time {
            assert!(baseline > 0.04, "two links of 0.1 Gb/s: {baseline}");
            assert!(of(0, "mean_gbps") < 0.12 && of(1, "mean_gbps") > 0.6 * baseline, "{events:?}");
            let judged = events[0]["flows"][0]["not_judged"].is_null();
            assert!(!judged || of(0, "recovery_ms") < 1000.0, "{events:?}");
        }
        // A slow machine begins and ends a fault late.
        let silent = [0, 1].map(|number: usize| events[number]["at_ms"].as_f64().unwrap());
        assert_silent_plane(&folder, silent, of(0, "mean_gbps"), kept_time.then_some(baseline));
        folder.assert_pictures(silent[0]);

        let summary = folder.read("summary.md");
        assert!(out.starts_with(summary.trim_end()), "{out}");
        for part in
            ["# A test\n", "2 planes, links of 100 Mb/s", "every byte verified, no queue pair error", "50: "]
        {
            assert!(summary.contains(part), "{part}: {summary}");
        }
    }
}

/// The tables of five seconds over links of 100 Mb/s: plane 1 carries nothing between these times, plane 0 goes on, and entropy values of
/// plane 1 are bad. `baseline` is the rate without faults, if rates are judged.
fn assert_silent_plane(folder: &Folder, [from, until]: [f64; 2], mean_gbps: f64, baseline: Option<f64>) {
    let rows = folder.table("samples.csv");
    assert_eq!(rows.len(), 500);
    let within = |from: f64, to: f64| {
        rows.iter().filter(move |row| (from..to).contains(&number(row, "time_ms"))).collect::<Vec<_>>()
    };
    let mean = |rows: &[&Vec<(String, String)>], name: &str| {
        rows.iter().map(|row| number(row, name)).sum::<f64>() / rows.len() as f64
    };
    // A link carries no more than its rate, though a receiver may take at once what has waited for it.
    let means = ["p0_gbps", "p1_gbps"].map(|name| mean(&within(0.0, 5000.0), name));
    assert!(means.iter().all(|&gbps| 0.0 < gbps && gbps < 0.11), "links of 0.1 Gb/s: {means:?}");
    let dark = within(from, until);
    assert!((mean(&dark, "gbps") - mean_gbps).abs() < 0.02, "{mean_gbps}");
    // The time of one packet on a link at least.
    assert!(mean(&dark, "rtt_us") > 100.0, "{}", mean(&dark, "rtt_us"));
    // A slow machine takes late what was sent before.
    let deep = within(from + 0.4 * (until - from), until - 0.3 * (until - from));
    for row in &deep {
        assert_eq!((number(row, "p1_gbps"), cell(row, "p1_up")), (0.0, "1"), "nobody can see it: {row:?}");
    }
    assert!(mean(&deep, "p0_gbps") > 0.0 && mean(&deep, "p1_assumed_bad") > 0.0, "{deep:?}");
    assert!(mean(&deep, "cwnd_bytes") > 8_000.0 && mean(&deep, "inflight_bytes") > 0.0, "{deep:?}");
    assert!(mean(&within(until, 5000.0), "p1_gbps") > 0.0, "it carries again");
    let evs = folder.table("evs.csv");
    let is_bad =
        |row: &&Vec<(String, String)>| cell(row, "state") == "assumed-bad" && cell(row, "plane") == "1";
    let bad = |until: f64| {
        let times = evs.iter().filter(is_bad).map(|row| number(row, "time_ms"));
        times.filter(|at| (from..until).contains(at)).count()
    };
    assert!(bad(until) > 0, "{evs:?}");
    if let Some(baseline) = baseline {
        assert!(mean(&deep, "p0_gbps") > 0.3 * baseline && mean(&deep, "p1_assumed_bad") > 8.0, "{deep:?}");
        assert!(mean(&deep, "inflight_bytes") > 4_000.0, "{deep:?}");
        assert!(mean(&within(until + 500.0, 5000.0), "p1_gbps") > 0.25 * baseline, "it carries again");
        assert!(bad(from + 200.0) > 8, "{evs:?}");
    }
}

/// The NIC of the host that is read from loses its links. The other NIC takes over, and the first one serves again later. Payload is counted
/// where it arrives, which is at the client. With one queue pair over both NICs, and with one on each.
#[test]
#[ignore = "slow: tools/check-all.sh"]
fn the_other_nic_takes_over() {
    let lab = Lab::new("nics");
    let Some(lab) = lab else { return };
    for fallback in ["seamless", "shift"] {
        assert_other_nic_takes_over(&lab, fallback);
    }
}

fn assert_other_nic_takes_over(lab: &Lab, fallback: &str) {
    let folder = Folder::new("lab-run-nics");
    let path = folder.scenario(
        "two-plane.toml",
        "duration = \"4s\"\nlink_rate = \"100M\"",
        &format!(
            "[[flow]]\noperation = \"read\"\nfrom = \"h1\"\nto = \"h3\"\nstandby = [1]\nfallback = \"{fallback}\"\n\
         options = [\"--failback-hold\", \"100ms\"]\nudp_options = [\"--no-gso\"]\nclient_options = [\"-s\", \"16K\", \"-t\", \"16\"]\n\
         [[fault]]\nat = \"1s\"\nwhere = \"h1:p0-t0-0\"\naction = \"down\"\nfor = \"1s\""
        ),
    );
    let pauses = Pauses::watch();
    let (_, error, status) = lab.run_scenario(&path, &folder.results());
    assert_eq!(status, Some(0), "{error}");
    let result = folder.result();
    let flow = &result["flows"][0];
    assert_eq!((&flow["name"], &flow["verified"]), (&"h1-h3".into(), &true.into()));
    let baseline = flow["baseline_gbps"].as_f64().unwrap();
    let possible = |event: usize| result["events"][event]["flows"][0]["possible_gbps"].as_f64().unwrap();
    assert!([0, 1].into_iter().all(|event| (possible(event) - 0.095).abs() < 1e-6), "{result}");
    let rows = folder.table("samples.csv");
    let [from, until] = [0, 1].map(|event: usize| result["events"][event]["at_ms"].as_f64().unwrap());
    let mean = |from: f64, until: f64, name: &str| {
        let within = rows.iter().filter(|row| (from..until).contains(&number(row, "time_ms")));
        let values: Vec<_> = within.map(|row| number(row, name)).collect();
        values.iter().sum::<f64>() / values.len().max(1) as f64
    };
    // A slow machine takes late what was sent before.
    let dead = (from + 0.4 * (until - from), until - 0.3 * (until - from));
    assert!(mean(dead.0, dead.1, "p1_gbps") > 0.0 && mean(dead.0, dead.1, "p0_gbps") == 0.0, "{result}");
    assert!(folder.read("summary.md").contains("READs, every byte verified"));
    if pauses.none_above(PAUSE) {
        assert!(baseline > 0.04, "a link of 0.1 Gb/s: {baseline}");
        let [before, after] =
            [(300.0, from), (until + 500.0, 4000.0)].map(|(from, until)| mean(from, until, "p0_gbps"));
        assert!(before > 0.8 * baseline && after > 0.8 * baseline, "{before} {after} {baseline}");
        assert!(mean(dead.0, dead.1, "p1_gbps") > 0.8 * baseline, "{result}");
    }
}

/// A later flow is an event for the others; two flows between the same hosts have names of their own; unlimited links leave the rate as
/// it is while there is a way.
#[test]
#[ignore = "slow: tools/check-all.sh"]
fn flows_begin_when_they_are_told_to() {
    let Some(lab) = Lab::new("flows") else { return };
    let folder = Folder::new("lab-run-flows");
    let path = folder.scenario(
        "one-plane.toml",
        "duration = \"1500ms\"",
        "[[flow]]\nfrom = \"h1\"\nto = \"h2\"\nclient_options = [\"-t\", \"2\"]\n\
         [[flow]]\nfrom = \"h1\"\nto = \"h2\"\nstart = \"700ms\"\nclient_options = [\"-t\", \"2\"]",
    );
    let (_, error, status) = lab.run_scenario(&path, &folder.results());
    assert_eq!((error.as_str(), status), ("", Some(0)));
    let result = folder.result();
    let names: Vec<_> = result["flows"].as_array().unwrap().iter().map(|flow| &flow["name"]).collect();
    assert_eq!(names, ["h1-h2", "h1-h2.2"]);
    let events = result["events"].as_array().unwrap();
    assert_eq!((events.len(), &events[0]["what"][0]), (1, &"flow h1-h2.2 begins".into()));
    for (number, effect) in events[0]["flows"].as_array().unwrap().iter().enumerate() {
        let baseline = &result["flows"][number]["baseline_gbps"];
        assert_eq!((&effect["flow"], &effect["possible_gbps"]), (names[number], baseline));
    }
    let early = folder.table("samples.csv").into_iter();
    let mut early = early.filter(|row| cell(row, "flow") == "h1-h2.2" && number(row, "time_ms") < 690.0);
    assert!(early.all(|row| number(&row, "gbps") == 0.0));
    assert_eq!(lab.left(), [""; 0]);
}

/// Over ports past the kernel: hosts send no faster than their links, so that next to nothing is lost but what meets the fault; each packet
/// has a path of its own; and while a plane is silent the other one carries all it can.
#[test]
#[ignore = "slow: tools/check-all.sh"]
fn ports_past_the_kernel_keep_to_their_links() {
    let built = [("af_xdp", cfg!(feature = "af_xdp")), ("dpdk", cfg!(feature = "dpdk"))];
    let kinds = |port: &str| if port == "af_xdp" { &KINDS[..2] } else { &KINDS[..1] };
    let ports = built.iter().filter(|(_, built)| *built).map(|(port, _)| *port);
    for (port, lab) in ports.flat_map(|port| Lab::each("past", kinds(port)).map(move |lab| (port, lab))) {
        let folder = Folder::new("lab-run-past");
        let path = folder.scenario(
            "two-plane.toml",
            &format!("duration = \"4s\"\nlink_rate = \"100M\"\nport = \"{port}\""),
            "[[flow]]\nfrom = \"h1\"\nto = \"h3\"\nboth = true\nudp_options = [\"--no-gso\"]\n\
             client_options = [\"-q\", \"4\", \"-t\", \"32\", \"--evs\", \"0x0,0x40000000,0xc0000000\", \"--backup-evs\", \"2\"]\n\
             [[fault]]\nat = \"1s\"\nwhere = \"h1:p1-t0-0\"\naction = \"blackhole\"\nfor = \"1500ms\"",
        );
        let pauses = Pauses::watch();
        let (_, error, status) = lab.run_scenario(&path, &folder.results());
        assert_eq!(status, Some(0), "{error}");
        assert!(error.contains(&format!("flow h3-h1 is left out: over {port}")), "{error}");
        assert_eq!(lab.left(), [""; 0]);
        let result = folder.result();
        let flow = &result["flows"][0];
        assert_eq!((&result["port"], result["flows"].as_array().unwrap().len()), (&port.into(), 1));
        assert_eq!((&flow["verified"], &flow["qp_errors"]), (&true.into(), &0.into()));
        for side in ["client", "server"] {
            let settings = &flow[side]["settings"];
            assert_eq!(
                (&settings["port"], &settings["routing"], &settings["link_rate_bps"]),
                (&port.into(), &"srv6".into(), &100_000_000.into())
            );
        }
        let baseline = flow["baseline_gbps"].as_f64().unwrap();
        let fault = &result["events"][0]["flows"][0];
        let of = |name: &str| fault[name].as_f64().unwrap();
        let [from, until] = [0, 1].map(|number: usize| result["events"][number]["at_ms"].as_f64().unwrap());
        let rows = folder.table("samples.csv");
        let mean = |name: &str| rows.iter().map(|row| number(row, name)).sum::<f64>() / rows.len() as f64;
        let means = ["p0_gbps", "p1_gbps"].map(mean);
        assert!(means.iter().all(|&gbps| 0.0 < gbps && gbps < 0.11), "links of 0.1 Gb/s: {means:?}");
        assert!(0.0 < baseline && baseline < 0.2, "two links of 0.1 Gb/s: {baseline}");
        let kept_time = pauses.none_above(PAUSE);
        if kept_time {
            // What was on its way when the plane went silent: of 9,000 packets the few that windows hold.
            assert!(of("losses") < 500.0, "{fault}");
            // Where the hosts could fill their links before.
            let keeps_up = of("mean_gbps") > 0.6 * of("possible_gbps");
            assert!(keeps_up || !fault["not_judged"].is_null(), "{fault}");
        }
        let late = rows.iter().filter(|row| number(row, "time_ms") >= until);
        assert!(late.map(|row| number(row, "p1_gbps")).sum::<f64>() > 0.0, "it carries again");
        assert!(folder.read("summary.md").contains(&format!("ports of kind {port}")));
        // Of the paths of a plane each queue pair has one in reserve, maybe all of them the same one; where a plane is silent, reserves
        // take the place of others at first. Then it carries nothing but probes.
        let paths = folder.table("paths.csv");
        let names = ["0", "1073741824", "3221225472"];
        let taken = |plane: &str, ev: &str, from: f64, until: f64| {
            let of_path = |row: &&Vec<_>| cell(row, "plane") == plane && cell(row, "ev") == ev;
            let within = |row: &&Vec<_>| (from..until).contains(&number(row, "time_ms"));
            paths.iter().filter(of_path).filter(within).map(|row| number(row, "packets")).sum::<f64>()
        };
        assert!(paths.iter().all(|row| names.contains(&cell(row, "ev"))), "{paths:?}");
        let in_use = |plane| names.iter().filter(|ev| taken(plane, ev, 0.0, 4000.0) > 0.0).count();
        assert!(in_use("0") >= 2 && in_use("1") == 3, "{} {}", in_use("0"), in_use("1"));
        let [live, silent] = ["0", "1"]
            .map(|plane| names.map(|ev| taken(plane, ev, from + 300.0, until - 50.0)).iter().sum::<f64>());
        assert!(live > 0.0 && (silent < 0.1 * live || !kept_time), "{silent} {live}");
    }
}

/// What cannot be run says so, and leaves nothing.
#[test]
#[ignore = "slow: tools/check-all.sh"]
fn what_goes_wrong_is_told() {
    let Some(lab) = Lab::new("wrong") else { return };
    let folder = Folder::new("lab-run-wrong");
    let flow = "[[flow]]\nfrom = \"h1\"\nto = \"h2\"\n";
    let wrong = |path: &str, code: i32, parts: &[&str]| {
        let (_, error, status) = lab.run_scenario(path, &folder.results());
        assert_eq!(status, Some(code), "{error}");
        assert!(parts.iter().all(|part| error.contains(part)), "{parts:?}: {error}");
        assert_eq!(lab.left(), [""; 0], "{parts:?}");
    };
    wrong("no-such.toml", 2, &["cannot read the scenario no-such.toml"]);
    let path = folder.scenario("one-plane.toml", "duration = \"1s\"", "");
    wrong(&path, 2, &["test.toml", "[[flow]]"]);
    let path = folder.scenario("one-plane.toml", "duration = \"1s\"\nport = \"loopback\"", flow);
    wrong(&path, 2, &["test.toml: line 5, column 8: scenario.port: loopback ports stay within one process"]);
    let path =
        folder.scenario("one-plane.toml", "duration = \"1s\"", &format!("{flow}options = [\"--fast\"]"));
    wrong(&path, 1, &["flow h1-h2: the server on h2 failed", "--fast"]);
    let path = folder.scenario(
        "one-plane.toml",
        "duration = \"1s\"",
        &format!("{flow}client_options = [\"-m\", \"1\"]"),
    );
    wrong(&path, 1, &["flow h1-h2: the client on h1 failed", "--mtu"]);
    if cfg!(feature = "af_xdp") {
        let path = folder.scenario(
            "two-plane.toml",
            "duration = \"1s\"\nport = \"af_xdp\"",
            "[[flow]]\nfrom = \"h1\"\nto = \"h3\"\nserver_options = [\"--evs\", \"0x0/0x0,0x1\"]",
        );
        let why = "--evs: plane 1: entropy value 0x00000001: the paths take its first 2 bits";
        wrong(&path, 1, &["the server on h3 failed", why]);
    }
    fs::write(folder.0.join("file"), "").unwrap();
    let (_, error, status) = lab.run(&["run", &path, "-o", folder.0.join("file").to_str().unwrap()]);
    assert_eq!(status, Some(1));
    assert!(error.contains("--output: cannot make"), "{error}");
    // A lab that is there is not touched.
    lab.up("one-plane.toml");
    let there = lab.left();
    let (_, error, status) = lab.run_scenario(&path, &folder.results());
    assert_eq!(status, Some(1));
    assert!(error.contains("already"), "{error}");
    assert_eq!(lab.left(), there);
}

/// The agent of a host names what is at fault there. One of two flows leaves the plane out, which follows it.
#[test]
#[ignore = "slow: tools/check-all.sh"]
fn agents_say_what_is_at_fault_and_flows_follow() {
    let Some(lab) = Lab::new("agents") else { return };
    let folder = Folder::new("lab-run-agents");
    let policy = folder.0.join("policy.toml");
    fs::write(&policy, "allow_after_ms = 60_000\n").unwrap();
    let flow = "udp_options = [\"--no-gso\"]\nclient_options = [\"-q\", \"2\"]\n";
    let rest = format!(
        "[agents]\nhosts = [\"h1\"]\npolicy = {policy:?}\noptions = [\"--interval\", \"5ms\", \"--timeout\", \"200ms\"]\n\
         [[flow]]\nfrom = \"h1\"\nto = \"h3\"\n{flow}\
         [[flow]]\nfrom = \"h1\"\nto = \"h4\"\nfollow_agents = false\n{flow}\
         [[fault]]\nat = \"1s\"\nwhere = \"h1:p1-t0-0\"\naction = \"loss=60%\"\n"
    );
    let path = folder.scenario("two-plane.toml", "duration = \"9s\"\nlink_rate = \"20M\"", &rest);
    let (summary, error, status) = lab.run_scenario(&path, &folder.results());
    assert_eq!(status, Some(0), "{error}");
    let result = folder.result();
    assert_eq!(result["agents"][0]["host"], "h1");
    let events = result["agents"][0]["events"].as_array().unwrap();
    let of = |kind: &str| {
        let event =
            events.iter().find(|event| event["event"] == kind).unwrap_or_else(|| panic!("{events:?}"));
        (event["at_ms"].as_f64().unwrap(), event["what"].as_str().unwrap())
    };
    let (fault, denied) = (of("fault"), of("denied"));
    assert!(fault.1.starts_with("link h1:p1-t0-0 or switch p1-t0-0: "), "{fault:?}");
    assert_eq!(denied.1, "plane 1 of this host");
    assert!(1_000.0 < fault.0 && fault.0 <= denied.0, "{fault:?} {denied:?}");
    assert!(
        summary.contains("What the agents found:") && summary.contains("plane 1 of this host"),
        "{summary}"
    );
    let svg = folder.read("figure.svg");
    assert!(svg.contains("agent of h1: denied") && svg.contains("probes of h1 lost, %"));
    // The states of entropy values that each flow's samples end with.
    let rows = folder.table("samples.csv");
    let last = |flow: &str| rows.iter().rfind(|row| cell(row, "flow") == flow).unwrap();
    assert!(number(last("h1-h3"), "p1_denied") > 0.0 && number(last("h1-h3"), "p0_denied") == 0.0);
    assert!(number(last("h1-h4"), "p1_denied") == 0.0);
    // One that cannot run ends the scenario.
    let rest = rest.replace("5ms", "1ns");
    let path = folder.scenario("two-plane.toml", "duration = \"2s\"", &rest);
    let (_, error, status) = lab.run_scenario(&path, &folder.results());
    assert_eq!(status, Some(1), "{error}");
    assert!(error.contains("the agent on h1 failed") && error.contains("interval"), "{error}");
    assert_eq!(lab.left(), [""; 0]);
}

/// Ctrl-C in the midst of it.
#[test]
#[ignore = "slow: tools/check-all.sh"]
fn an_interrupted_scenario_leaves_nothing() {
    let Some(lab) = Lab::new("ended") else { return };
    let folder = Folder::new("lab-run-ended");
    let path = folder.scenario(
        "one-plane.toml",
        "duration = \"60s\"",
        "[[flow]]\nfrom = \"h1\"\nto = \"h2\"\n[[fault]]\nat = \"500ms\"\nwhere = \"h1\"\naction = \"ecn=1%\"",
    );
    let results = folder.results();
    // Twice, as `timeout` does. Half a second later the second signal would mean that it is to end at once.
    let interrupted = || {
        let mut command = lab.command(&["run", &path, "-o", results.to_str().unwrap()]);
        let child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let start = Instant::now();
        while lab.links_or_none().is_none_or(|links| links.iter().all(|link| link["faults"][0].is_null())) {
            assert!(start.elapsed() < PATIENCE, "the fault does not come");
            std::thread::sleep(Duration::from_millis(50));
        }
        let id = child.id().to_string();
        let pauses = Pauses::watch();
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
        std::thread::sleep(Duration::from_millis(20));
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
        let output = end_of(child, PATIENCE, "lab run");
        assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
        assert!(!results.join("result.json").exists());
        if pauses.none_above(Duration::from_millis(200)) {
            assert!(stderr(&output).contains("interrupted"), "{}", stderr(&output));
            assert_eq!(lab.left(), [""; 0]);
            return true;
        }
        lab.run(&["down"]);
        false
    };
    let _judged = (0..5).any(|_| interrupted());
}

impl Lab {
    /// Its links, once it is up.
    fn links_or_none(&self) -> Option<Vec<Json>> {
        let (out, _, status) = self.run(&["status", "--json"]);
        let object: Json = serde_json::from_str(&out).ok().filter(|_| status == Some(0))?;
        object["links"].as_array().cloned()
    }
}
