//! The counters of the transport for Prometheus: `--metrics` of benchmarks and of `spindrift run`, and `spindrift ctl counters`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]
#![allow(clippy::float_cmp, reason = "values of metrics are whole numbers")]

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use support::program::{PATIENCE, free_port, run_of};
use support::{Running, json, refused, run, spindrift, stderr, stdout, temp};

/// The status and the body of a reply.
fn get(address: &str, path: &str, header: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    let head = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n{header}Connection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    let (head, body) = reply.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// A command that serves metrics, and where.
struct Served {
    process: Running,
    address: String,
    dir: PathBuf,
}

impl Served {
    fn start(name: &str, command: &mut Command) -> Self {
        let dir = temp(name);
        command.arg("--control-dir").arg(&dir).args(["--metrics", "127.0.0.1:0"]);
        Self::of(dir, command)
    }

    fn of(dir: PathBuf, command: &mut Command) -> Self {
        let mut process = Running::start(command.stdout(Stdio::null()).stderr(Stdio::piped()));
        let mut errors = BufReader::new(process.child().stderr.take().unwrap());
        let mut line = String::new();
        let address = loop {
            line.clear();
            assert_ne!(errors.read_line(&mut line).unwrap(), 0, "it has ended");
            if let Some((_, url)) = line.trim().split_once("metrics at http://") {
                break url.strip_suffix("/metrics").unwrap().to_owned();
            }
        };
        thread::spawn(move || errors.read_to_end(&mut Vec::new()));
        Self { process, address, dir }
    }

    /// A long run within one process.
    fn loopback(name: &str, args: &[&str]) -> Self {
        let mut command = spindrift();
        command.args(["loopback", "-s", "64K", "-D", "10m"]).args(args);
        Self::start(name, &mut command)
    }

    /// The sums over contexts, by metric and labels other than those of a context.
    fn sums(&self) -> BTreeMap<String, f64> {
        let (status, text) = get(&self.address, "/metrics", "");
        assert_eq!(status, 200, "{text}");
        let mut sums = BTreeMap::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (name, value) = line.rsplit_once(' ').unwrap();
            let name = name.strip_prefix("spindrift_transport_").unwrap();
            let (metric, labels) = name.split_once('{').unwrap();
            let labels = labels.trim_end_matches('}').split(',');
            let own = labels.filter(|label| {
                !["process=", "context=", "program=", "loopback", " "].iter().any(|of| label.starts_with(of))
            });
            let own: Vec<_> = own.collect();
            *sums.entry(format!("{metric}{{{}}}", own.join(","))).or_default() +=
                value.parse::<f64>().unwrap();
        }
        sums
    }

    /// Waits until something is so. Only a hang meets the limit.
    fn until(&mut self, what: &str, is: impl Fn(&BTreeMap<String, f64>) -> bool) -> BTreeMap<String, f64> {
        let give_up = Instant::now() + PATIENCE;
        loop {
            let sums = self.sums();
            if is(&sums) {
                return sums;
            }
            assert!(self.process.child().try_wait().unwrap().is_none(), "it has ended");
            assert!(Instant::now() < give_up, "{what}: {sums:#?}");
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Ends a command as Ctrl-C does, so that a run ends its programs too, also where a test has failed. One that does not end is killed.
fn end(process: &mut Running) {
    let give_up = Instant::now() + Duration::from_secs(20);
    let _ = Command::new("kill").args(["-TERM", &process.id().to_string()]).stderr(Stdio::null()).status();
    while process.child().try_wait().is_ok_and(|status| status.is_none()) && Instant::now() < give_up {
        thread::sleep(Duration::from_millis(10));
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        end(&mut self.process);
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// A run without metrics.
struct Run(Running);

impl Drop for Run {
    fn drop(&mut self) {
        end(&mut self.0);
    }
}

/// Each event moves the counters that stand for it, and no other that it does not cause.
#[test]
fn counters_move_with_what_happens() {
    // Without a fault. A loaded machine may retransmit all the same.
    let still = [
        "losses_total{cause=\"nack\"}",
        "data_received_total{condition=\"trimmed\"}",
        "data_received_total{condition=\"marked\"}",
        "dropped_packets_total{reason=\"bad_icrc\"}",
    ];
    let usual = ["packets_sent_total{kind=\"data\"}", "placed_bytes_total{}", "sent_bytes_total{}"];
    let cases: [(&str, &[&str]); 6] = [
        ("", &["lane_events_total{event=\"poll\"}", "port_bytes_total{plane=\"1\",direction=\"tx\"}"]),
        ("loss=5%", &["retransmits_total{}", "losses_total{cause=\"later_packet_of_path\"}"]),
        ("trim=5%", &["data_received_total{condition=\"trimmed\"}", "losses_total{cause=\"nack\"}"]),
        ("ecn=5%", &["data_received_total{condition=\"marked\"}"]),
        ("dup=5%", &["data_received_total{condition=\"duplicate\"}"]),
        ("corrupt=5%", &["dropped_packets_total{reason=\"bad_icrc\"}", "retransmits_total{}"]),
    ];
    for (number, (fault, moved)) in cases.into_iter().enumerate() {
        let faults = if fault.is_empty() { vec![] } else { vec!["--fault", fault] };
        let mut served = Served::loopback(&format!("moves-{number}"), &faults);
        let sums = served.until(fault, |sums| {
            usual.iter().chain(moved).all(|name| sums.get(*name).is_some_and(|value| *value > 0.0))
        });
        assert_eq!(sums["queue_pairs{state=\"rts\"}"], 2.0, "{fault}");
        assert_eq!((sums["contexts{state=\"seen\"}"], sums["contexts{state=\"failed\"}"]), (2.0, 0.0));
        assert!(sums["entropy_values{plane=\"3\",state=\"good\"}"] > 0.0, "{sums:?}");
        if fault.is_empty() {
            let moved: Vec<_> = still.iter().filter(|name| sums[**name] > 0.0).collect();
            assert!(moved.is_empty(), "{moved:?}");
        }
        // Values only grow.
        let later = served.sums();
        for (name, value) in sums.iter().filter(|(name, _)| name.contains("_total{")) {
            assert!(later[name] >= *value, "{name}");
        }
    }
}

/// Links, and deny rules of an operator.
#[test]
fn gauges_show_what_is_so_now() {
    let served = Served::loopback("gauges", &["--planes", "2", "--fault", "down,port=1,from=100ms"]);
    let dir = served.dir.to_str().unwrap().to_owned();
    let mut served = served;
    // Both ends of the link see it.
    served.until("the link is down", |sums| sums.get("port_up{plane=\"1\"}") == Some(&0.0));
    let sums =
        served.until("rtt", |sums| sums.get("rtt_seconds{quantile=\"1\"}").is_some_and(|rtt| *rtt > 0.0));
    assert_eq!((sums["port_up{plane=\"0\"}"], sums["deny_rules{}"]), (2.0, 0.0));
    assert!(run(&["ctl", "deny", "--plane", "1", "--control-dir", &dir]).status.success());
    let sums = served.until("denied", |sums| sums["deny_rules{}"] == 2.0);
    assert!(sums["entropy_values{plane=\"1\",state=\"denied\"}"] > 0.0, "{sums:?}");
}

/// Both sides of a benchmark, one of which is killed.
#[test]
fn a_client_and_its_server_have_metrics() {
    let port = free_port();
    let mut server = spindrift();
    let mut server = Served::start("server", server.args(["write-bw", "--keep-serving", "-p", &port]));
    assert_eq!(server.sums()["contexts{state=\"seen\"}"], 0.0, "without a client there is no context");
    let mut client = spindrift();
    let client_args = ["write-bw", "127.0.0.1", "-D", "10m", "-p", &port];
    let mut client = Served::start("client", client.args(client_args));
    let is_placed =
        |sums: &BTreeMap<String, f64>| sums.get("placed_bytes_total{}").is_some_and(|sum| *sum > 0.0);
    server.until("bytes arrive", is_placed);
    client.until("bytes leave", |sums| sums.get("sent_bytes_total{}").is_some_and(|sum| *sum > 0.0));
    // The server goes on without its client: its context ends, and its metrics stay.
    client.process.child().kill().unwrap();
    server.until("the run has ended", |sums| sums["contexts{state=\"seen\"}"] == 0.0);
}

#[test]
fn a_process_that_is_stopped_is_silent() {
    let mut served = Served::loopback("stopped", &[]);
    served.until("it runs", |sums| sums["contexts{state=\"seen\"}"] == 2.0);
    let pid = served.process.id().to_string();
    let dir = served.dir.to_str().unwrap().to_owned();
    let kill = |signal: &str| assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    kill("-STOP");
    let output = run(&["ctl", "counters", "--control-dir", &dir]);
    let metrics = run(&["ctl", "counters", "--prometheus", "--control-dir", &dir]);
    kill("-CONT");
    assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
    assert_eq!(
        stderr(&output).matches(&format!("process {pid} does not reply")).count(),
        2,
        "{}",
        stderr(&output)
    );
    assert!(
        stdout(&metrics).contains("spindrift_transport_contexts{state=\"silent\"} 2\n"),
        "{}",
        stdout(&metrics)
    );
}

#[test]
fn counters_are_printed_by_hand() {
    let mut served = Served::loopback("by-hand", &[]);
    let data = "packets_sent_total{kind=\"data\"}";
    served.until("it sends", |sums| sums["contexts{state=\"seen\"}"] == 2.0 && sums[data] > 0.0);
    let dir = served.dir.to_str().unwrap().to_owned();
    let counters = |args: &[&str]| run(&[&["ctl", "counters", "--control-dir", &dir], args].concat());
    let text = stdout(&counters(&[]));
    let pid = served.process.id();
    assert!(text.contains(&format!("process {pid}: loopback, writer, 1 queue pair\n")), "{text}");
    assert!(text.lines().any(|line| line.trim().starts_with("tx_data ")), "{text}");
    let object = json(&counters(&["--json", "--pid", &pid.to_string()]).stdout);
    assert_eq!(
        (&object["command"], &object["processes"][1]["program"]),
        (&"ctl counters".into(), &"loopback, target".into())
    );
    assert!(object["processes"][0]["transport"]["tx_data"].as_u64().unwrap() > 0);
    let metrics = stdout(&counters(&["--prometheus"]));
    assert!(metrics.starts_with("# HELP spindrift_transport_packets_sent_total "), "{metrics}");
    let missing = counters(&["--pid", "1"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(
        stderr(&missing).contains("--pid 1: no control socket of this process is in"),
        "{}",
        stderr(&missing)
    );
    drop(served);
    let empty = counters(&[]);
    assert!(stdout(&empty).starts_with("no process has a control socket in "), "{}", stdout(&empty));
}

/// A file with a token.
fn token(name: &str) -> PathBuf {
    let path = temp(name);
    fs::write(&path, "0123456789abcdef\n").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    path
}

#[test]
fn a_token_is_asked_for() {
    let file = token("token");
    let mut served = Served::loopback("token-run", &["--metrics-token-file", file.to_str().unwrap()]);
    let with = |header: &str| get(&served.address, "/metrics", header);
    assert_eq!(with("").0, 401);
    assert_eq!(with("Authorization: Bearer 0123456789abcdee\r\n").0, 401);
    let (status, text) = with("Authorization: Bearer 0123456789abcdef\r\n");
    assert!(status == 200 && text.contains("spindrift_transport_"), "{text}");
    let (status, text) = get(&served.address, "/", "Authorization: Bearer 0123456789abcdef\r\n");
    assert!(status == 404 && text.contains("/metrics has the metrics"), "{text}");
    assert!(served.process.child().try_wait().unwrap().is_none());
    fs::remove_file(file).unwrap();
}

#[test]
fn metrics_that_cannot_be_served_are_refused() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().to_string();
    let short = ["loopback", "-s", "64", "-n", "10"];
    let refuse = |args: &[&str], parts: &[&str]| refused(&[&short, args].concat(), parts);
    refuse(&["--metrics", "9468"], &["--metrics 9468: write an address and a port, such as 127.0.0.1:9468"]);
    refuse(
        &["--metrics", "0.0.0.0:0"],
        &["--metrics: 0.0.0.0:0 is no loopback address", "--metrics-token-file"],
    );
    refuse(&["--metrics", "127.0.0.1:0", "--control-dir", "none"], &["leave out --control-dir none"]);
    refuse(
        &["--metrics", "127.0.0.1:0", "--metrics-token-file", "/no/such"],
        &["--metrics-token-file /no/such: No such file"],
    );
    refused(
        &["run", "--planes", "127.0.0.1", "--control-dir", "none", "--metrics", "127.0.0.1:0", "--", "true"],
        &["leave out --control-dir none"],
    );
    let output = run(&[&short[..], &["--metrics", &port]].concat());
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains(&format!("--metrics: cannot listen on {port}: Address already in use")));
    // A folder where there can be no socket.
    let file = temp("no-folder");
    fs::write(&file, "").unwrap();
    let output =
        run(&[&short[..], &["--metrics", "127.0.0.1:0", "--control-dir", file.to_str().unwrap()]].concat());
    fs::remove_file(file).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("--metrics needs the control socket: "), "{}", stderr(&output));
}

/// The metrics of a run are those of its processes, and end with it.
#[test]
fn programs_of_a_run_have_metrics() {
    if !Path::new("/usr/bin/ibv_rc_pingpong").exists() {
        assert!(std::env::var_os("SPINDRIFT_REQUIRE_UCX").is_none(), "there is no ibv_rc_pingpong");
        return;
    }
    // Somebody else's process in the same folder.
    let mut other = Served::loopback("run", &[]);
    other.until("it runs", |sums| sums["contexts{state=\"seen\"}"] == 2.0);
    let port = free_port();
    let common = ["-d", "spindrift0", "-g", "3", "-p", &port, "-n", "1000000000"];
    let of = |options: &[&str], program: &[&str]| {
        let mut command = run_of(
            &[&["--planes", "127.0.0.1", "--control-dir", other.dir.to_str().unwrap()], options].concat(),
            &[&["ibv_rc_pingpong"][..], &common, program].concat(),
        );
        command.env_remove("SPINDRIFT_CONTROL_DIR");
        command
    };
    let mut server = Served::of(temp("none"), &mut of(&["--metrics", "127.0.0.1:0"], &[]));
    server.until("the device is open", |sums| sums["contexts{state=\"seen\"}"] == 1.0);
    let mut client = of(&[], &["127.0.0.1"]);
    let mut client = Run(Running::start(client.stdout(Stdio::null()).stderr(Stdio::null())));
    let sums = server.until("bytes arrive", |sums| sums["placed_bytes_total{}"] > 0.0);
    assert_eq!(sums["contexts{state=\"seen\"}"], 1.0, "neither the other run nor the client's");
    end(&mut client.0);
    end(&mut server.process);
    assert!(TcpStream::connect(&server.address).is_err());
}
