//! `write-bw` and `write-lat` between two processes, over kernel sockets on this machine's loopback addresses.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod bounds;
mod ends;
mod operations;
mod samples;
mod setup;
mod shift;
mod strangers;
#[path = "../support/mod.rs"]
mod support;

use std::io::{BufRead, BufReader, Read as _};
use std::net::TcpListener;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value as Json;
use support::program::free_port;
use support::{Running, run, spindrift, stderr, stdout};

/// Longer than any of this takes; only a hang meets it.
const PATIENCE: Duration = Duration::from_mins(1);
/// Of the messages between client and server.
const VERSION: u32 = 8;

/// A server that waits for its client.
struct Server {
    process: Running,
    port: String,
    waiting: Option<BufReader<std::process::ChildStderr>>,
}

impl Server {
    fn start(args: &[&str]) -> Self {
        let port = free_port();
        let mut command = spindrift();
        command.args(args).args(["-p", &port]).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = Running::start(&mut command);
        let mut errors = BufReader::new(process.child().stderr.take().unwrap());
        let mut line = String::new();
        errors.read_line(&mut line).unwrap();
        assert!(line.contains("waiting for a client"), "{line}");
        Self { process, port, waiting: Some(errors) }
    }

    /// Until one that keeps serving has ended what it had with the client before, and waits for the next one.
    fn wait_for_next(&mut self) {
        let mut line = String::new();
        while !line.contains("waiting for the next client") {
            line.clear();
            assert_ne!(
                self.waiting.as_mut().unwrap().read_line(&mut line).unwrap(),
                0,
                "the server has ended"
            );
        }
    }

    fn end(mut self) -> Output {
        let mut output = end_of(self.process);
        if let Some(mut errors) = self.waiting.take() {
            errors.read_to_end(&mut output.stderr).unwrap();
        }
        output
    }
}

/// A client that would go on for long.
fn client_of(server: &Server, args: &[&str]) -> Running {
    let mut command = spindrift();
    command.args(["write-bw", "127.0.0.1", "-D", "10m", "-p", &server.port]).args(args);
    Running::start(command.stdout(Stdio::piped()).stderr(Stdio::piped()))
}

fn object(output: &Output) -> Json {
    assert!(output.status.success(), "{}\n{}", stderr(output), stdout(output));
    assert_eq!(stdout(output).lines().count(), 1, "{}", stdout(output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn both(command: &str, server_args: &[&str], client_args: &[&str]) -> (Json, Json) {
    let mut args = vec![command, "--json"];
    args.extend(server_args);
    let server = Server::start(&args);
    let mut args = vec![command, "127.0.0.1", "--json", "-p", &server.port];
    args.extend(client_args);
    let client = run(&args);
    let server = server.end();
    assert!(client.status.success(), "{}\nserver: {}", stderr(&client), stderr(&server));
    (object(&client), object(&server))
}

fn signal(process: &Running, name: &str) {
    assert!(Command::new("kill").args([name, &process.id().to_string()]).status().unwrap().success());
}

/// Waits for the end, but not for ever.
fn end_of(process: Running) -> Output {
    support::end_of(process, PATIENCE, "it")
}

#[test]
fn bandwidth_is_measured_and_verified() {
    let (client, server) = both("write-bw", &[], &["-s", "64K", "-n", "300"]);
    let row = &client["rows"][0];
    assert_eq!(
        (&row["size_bytes"], &row["iterations"], &row["verified"]),
        (&65_536.into(), &300.into(), &true.into())
    );
    assert!(row["bandwidth_gbps"].as_f64().unwrap() > 0.0);
    assert_eq!((&client["role"], &client["error"]), (&"client".into(), &Json::Null));
    let row = &server["rows"][0];
    assert_eq!(
        row,
        &serde_json::json!({"size_bytes": 65_536, "iterations": 300, "verified": true, "cpu_s": row["cpu_s"]})
    );
}

/// The last write to each place as a rule; every write on demand, over several queue pairs and lanes, by number and by time.
#[test]
fn what_was_compared_is_told() {
    let row = |options: &[&str]| both("write-bw", &[], options).0["rows"][0].clone();
    let last = row(&["-s", "4K", "-t", "16", "-q", "2", "-n", "1000"]);
    assert_eq!(
        (&last["verified"], &last["compared"], &last["iterations"]),
        (&true.into(), &32.into(), &1000.into())
    );
    let every = ["-s", "4K", "-t", "16", "-q", "3", "--lanes", "2", "--verify", "every"];
    let by_number = row(&[&every[..], &["-n", "1000"]].concat());
    // The warm-up is a lap.
    assert_eq!((&by_number["verified"], &by_number["compared"]), (&true.into(), &1048.into()), "{by_number}");
    assert_eq!(by_number["iterations"], 1000);
    let by_time = row(&[&every[..], &["-D", "100ms"]].concat());
    let all = by_time["iterations"].as_u64().unwrap() + 48;
    assert_eq!((&by_time["verified"], &by_time["compared"]), (&true.into(), &all.into()), "{by_time}");
    let args = ["write-bw", "-p", &free_port(), "--verify", "every"];
    let (none, error) = (run(&args), "--verify: the client decides");
    assert!(none.status.code() == Some(2) && stderr(&none).contains(error), "{}", stderr(&none));
}

/// A byte that was changed on the way, and that no iCRC told of, is found wherever it is, also when a later write has replaced it.
#[test]
fn with_every_write_compared_no_changed_byte_goes_unseen() {
    // Each write is compared with a chance of one in thirty otherwise.
    let args = ["-s", "64K", "-t", "4", "-n", "400", "--no-icrc", "--verify", "every"];
    let server = Server::start(&["write-bw", "--no-icrc"]);
    let fault = ["--fault", "corrupt=1%,opcode=write"];
    let client = run(&[&["write-bw", "127.0.0.1", "-p", &server.port], &args[..], &fault].concat());
    let server = server.end();
    let alone = run(&[&["loopback"], &args[..], &fault].concat());
    for output in [client, server, alone] {
        let error = stderr(&output);
        // A header was changed.
        let broke = error.contains("the peer broke a rule");
        assert!(output.status.code() == Some(1) && (broke || error.contains("hold what")), "{error}");
    }
}

/// The raw pump beside each row, before and after it, or between its pieces too.
#[test]
fn the_pump_runs_beside_the_writes() {
    for (args, slices) in
        [(&["-s", "64K", "-n", "100"] as &[&str], 2..=2), (&["-s", "4K", "-D", "600ms", "-m", "1024"], 2..=3)]
    {
        let (client, server) = both("write-bw", &[], &[args, &["--yardstick"]].concat());
        let row = &client["rows"][0];
        let number = |name: &str| row[name].as_f64().unwrap();
        assert!(slices.contains(&row["pump_slices_gbps"].as_array().unwrap().len()), "{row}");
        assert!(number("pump_gbps") > 0.0 && row["disturbed"].is_boolean(), "{row}");
        let ratio = number("bandwidth_gbps") / number("pump_gbps");
        assert!((number("pump_ratio") - ratio).abs() <= 1e-9 * ratio, "{row}");
        assert_eq!((&row["pump"], &row["verified"]), (&"UDP sockets".into(), &true.into()));
        assert_eq!((&row["core_latency_before_ns"], &server["error"]), (&Json::Null, &Json::Null));
    }
    let (client, _) = both("write-bw", &[], &["-s", "64K", "-n", "10"]);
    for field in ["pump", "pump_gbps", "pump_ratio", "pump_slices_gbps", "disturbed"] {
        assert!(client["rows"][0].get(field).is_none(), "{field} was not asked for");
    }
}

/// Packets come one in three milliseconds, and both sides leave their cores to others in between; the bytes are the same.
#[test]
fn sides_that_wait_by_poll_sleep_between_packets() {
    // A second at least.
    let slow = ["-s", "4K", "-n", "300", "--link-rate", "10M", "--wait", "poll"];
    let (client, server) = both("write-bw", &["--wait", "poll"], &slow);
    let row = &client["rows"][0];
    assert!(row["verified"] == true && row["iterations"] == 300, "{row}");
    for object in [client, server] {
        assert_eq!(object["settings"]["wait"], "poll");
        let cpu_s = object["rows"][0]["cpu_s"].as_f64().unwrap();
        // One that spins takes a second.
        assert!(cpu_s > 0.0 && cpu_s < 0.4, "{object}");
    }
}

#[test]
fn a_ping_pong_between_sleepers_is_answered() {
    for size in ["2", "16K"] {
        let (client, server) =
            both("write-lat", &["--wait", "poll"], &["-s", size, "-n", "300", "--wait", "poll"]);
        let row = &client["rows"][0];
        assert_eq!((&row["iterations"], &server["rows"][0]["iterations"]), (&300.into(), &300.into()));
        assert!([row, &server["rows"][0]].iter().all(|row| row["cpu_s"].as_f64().unwrap() > 0.0), "{server}");
        // Nobody is woken by a timer instead: a side looks at the clock after a millisecond.
        assert!(row["min_us"].as_f64().unwrap() < 500.0, "{row}");
    }
}

/// Two processes of one host cannot listen on one port, and what one of them asks the other answers where it listens.
#[test]
fn sides_that_listen_on_different_ports_hear_each_others_answers() {
    let (_, server) = both(
        "write-bw",
        &["--local", "127.0.0.31", "--udp-port", "45817"],
        &["--local", "127.0.0.32", "--udp-port", "45818", "-D", "600ms"],
    );
    let count = |name: &str| server["counters"]["transport"][name].as_u64().unwrap_or(0);
    let (asked, heard) = (count("tx_endpoint_requests"), count("rx_endpoint_responses"));
    assert!(heard > 0 && heard <= asked, "{asked} probes for the paths of answers, {heard} answered");
    assert_eq!(count("rx_unmatched_response"), 0);
}

#[test]
fn several_planes_queue_pairs_and_faults() {
    let server_args = ["--local", "127.0.0.11,127.0.0.12"];
    let client_args = [
        "--local",
        "127.0.0.13,127.0.0.14",
        "-q",
        "3",
        "-s",
        "20000",
        "-n",
        "100",
        "-m",
        "2048",
        "--fault",
        "loss=0.5%",
    ];
    let (client, server) = both("write-bw", &server_args, &client_args);
    assert_eq!(client["settings"]["planes"], 2);
    assert_eq!((&client["settings"]["mtu"], &server["settings"]["mtu"]), (&2048.into(), &2048.into()));
    assert_eq!(client["rows"][0]["verified"], true);
    assert_eq!(server["settings"]["queue_pairs"], 3);
}

/// All that a server takes (`-q 1024`) would take tens of seconds on a machine with other work.
/// Each side has as many as it likes: what one batch brings for several lanes is handed over.
#[test]
fn several_lanes_on_each_side() {
    let (client, server) = both(
        "write-bw",
        &["--lanes", "3", "--local", "127.0.0.1,127.0.0.3"],
        &["--lanes", "2", "--local", "127.0.0.2,127.0.0.4", "-q", "7", "-n", "700", "-s", "30000"],
    );
    assert_eq!((&client["settings"]["lanes"], &server["settings"]["lanes"]), (&2.into(), &3.into()));
    assert_eq!(
        (&client["rows"][0]["verified"], &server["rows"][0]["verified"]),
        (&true.into(), &true.into())
    );
    assert_eq!(
        (&client["rows"][0]["iterations"], &server["rows"][0]["iterations"]),
        (&700.into(), &700.into())
    );
    let counted = &server["counters"];
    let of = |group: &str, name: &str| counted[group][name].as_u64().unwrap_or(0);
    let (handed, taken) = (of("transport", "rx_other_lane"), of("lanes", "taken_over"));
    // When the run ends, the last few may still be on their way to their lane.
    assert!((taken..taken + 8).contains(&handed) && of("lanes", "handover_lost") == 0, "{counted}");
}

#[test]
fn many_queue_pairs() {
    let (client, server) = both("write-bw", &[], &["-q", "200", "-t", "16", "-s", "5000", "-n", "4000"]);
    for (side, object) in [("client", client), ("server", server)] {
        let row = &object["rows"][0];
        assert_eq!((&row["iterations"], &row["verified"]), (&4000.into(), &true.into()), "{side}: {object}");
        assert_eq!(object["settings"]["queue_pairs"], 200, "{side}");
    }
}

#[test]
fn latency_is_measured() {
    for size in ["2", "10000"] {
        let (client, server) = both("write-lat", &[], &["-s", size, "-n", "100"]);
        let row = &client["rows"][0];
        let of = |field: &str| row[field].as_f64().unwrap();
        assert!(
            0.0 < of("min_us") && of("min_us") <= of("typical_us") && of("p99_us") <= of("max_us"),
            "{row}"
        );
        assert_eq!(server["rows"][0]["iterations"], 100);
    }
}

#[test]
fn a_failing_test_leaves_no_process_behind() {
    let server = Server::start(&["write-bw"]);
    let (id, port) = (server.process.id(), server.port.clone());
    let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
        let server = server;
        assert_eq!(server.port, "", "this failure is wanted");
    }));
    assert!(failed.is_err());
    assert!(!std::path::Path::new(&format!("/proc/{id}")).exists(), "process {id} still runs");
    TcpListener::bind(format!("127.0.0.1:{port}")).expect("nobody listens any more");
}

#[test]
fn ctrl_c_ends_both_sides_cleanly() {
    let server = Server::start(&["write-bw", "--json"]);
    let client = client_of(&server, &["--json"]);
    wait_for_run(&server);
    signal(&client, "-INT");
    let client = end_of(client);
    assert_eq!(client.status.code(), Some(130), "{}", stderr(&client));
    let object: Json = serde_json::from_slice(&client.stdout).expect("still one JSON object");
    assert_eq!(object["error"], "interrupted");
    let server = server.end();
    assert_eq!(server.status.code(), Some(1));
    assert!(stderr(&server).contains("gave up: interrupted"), "{}", stderr(&server));
}

#[test]
fn ctrl_c_ends_a_server_that_waits() {
    let server = Server::start(&["write-lat"]);
    signal(&server.process, "-INT");
    assert_eq!(server.end().status.code(), Some(130));
}

/// Until the server's process has UDP sockets: the set-up is over or about to be. The server has none of a client before:
/// [`Server::wait_for_next`].
fn wait_for_run(server: &Server) {
    let start = Instant::now();
    let path = format!("/proc/{}/fd", server.process.id());
    while std::fs::read_dir(&path).unwrap().count() < 20 {
        assert!(start.elapsed() < PATIENCE, "the run does not start");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn what_does_not_fit_is_refused_on_both_sides_with_the_reason() {
    let server = Server::start(&["write-lat"]);
    let client = run(&["write-bw", "127.0.0.1", "-p", &server.port]);
    let server = server.end();
    for output in [&client, &server] {
        assert_eq!(output.status.code(), Some(1));
        let error = stderr(output);
        assert!(error.contains("the server runs write-lat, the client write-bw"), "{error}");
    }
    let server = Server::start(&["write-bw", "--no-icrc"]);
    let client = run(&["write-bw", "127.0.0.1", "-p", &server.port]);
    let server = server.end();
    for output in [&client, &server] {
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(output).contains("icrc: this side has"), "{}", stderr(output));
    }
}

#[test]
fn errors_name_the_input_and_the_fix() {
    let port = free_port();
    let cases: [(&[&str], &[&str]); 6] = [
        (
            &["127.0.0.1", "-p", &port],
            &["nothing listens at 127.0.0.1:", &port, "start `spindrift write-bw` there"],
        ),
        (&["-p", "0"], &["`0`", "1 to 65535"]),
        (&["--port", "loopback"], &["spindrift loopback"]),
        (&["--local", "10.0.0.300"], &["10.0.0.300"]),
        (&["-x", "999"], &["-x 999", "spindrift ports"]),
        (&["no.such.host.invalid", "-p", &port], &["no.such.host.invalid"]),
    ];
    for (args, parts) in cases {
        let output = spindrift().arg("write-bw").args(args).output().unwrap();
        assert!(matches!(output.status.code(), Some(1 | 2)), "{args:?}");
        let error = stderr(&output);
        assert!(parts.iter().all(|part| error.contains(part)), "{args:?}: {error}");
    }
}

#[test]
fn the_pump_pumps() {
    let port = free_port();
    let output = run(&["pump", "udp", "--loopback", "-D", "200ms", "-p", &port, "--json"]);
    let object = object(&output);
    assert!(object["sent"]["packets"].as_u64().unwrap() > 0);
    assert!(object["received"]["bandwidth_gbps"].as_f64().unwrap() > 0.0, "{object}");
}

#[test]
fn ports_are_listed() {
    let text = stdout(&run(&["ports"]));
    assert!(text.contains("127.0.0.1"), "{text}");
    let object = object(&run(&["ports", "--json"]));
    assert!(object["ports"].as_array().unwrap().iter().any(|port| port["address"] == "127.0.0.1"));
}

#[test]
fn a_server_that_keeps_serving_has_more_than_one_run() {
    let server = Server::start(&["write-bw", "--keep-serving", "--json"]);
    for _ in 0..2 {
        let client = run(&["write-bw", "127.0.0.1", "-n", "20", "-p", &server.port]);
        assert!(client.status.success(), "{}", stderr(&client));
    }
    // One that does not fit does not end it either.
    let misfit = run(&["write-lat", "127.0.0.1", "-p", &server.port]);
    assert_eq!(misfit.status.code(), Some(1));
    let client = run(&["write-bw", "127.0.0.1", "-n", "20", "-p", &server.port]);
    assert!(client.status.success(), "{}", stderr(&client));
    signal(&server.process, "-INT");
    let server = server.end();
    assert_eq!(server.status.code(), Some(130), "{}", stderr(&server));
    let objects: Vec<Json> =
        stdout(&server).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let verified = objects.iter().filter(|object| object["rows"][0]["verified"] == true).count();
    assert_eq!(verified, 3, "{}", stdout(&server));
}

/// A server that could serve nobody says so at once, and not when a client has come.
#[test]
fn a_server_checks_its_settings_before_it_listens() {
    let taken = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let udp_port = taken.local_addr().unwrap().port().to_string();
    let cases: [(&[&str], &str); 3] = [
        (&["--local", "127.0.0.1", "--udp-port", &udp_port], &udp_port),
        (&["--pcap", "/no/such/folder/run.pcap"], "/no/such/folder/run.pcap"),
        (&["--source-ports", "16384"], "source ports"),
    ];
    for (args, part) in cases {
        let port = free_port();
        // Few open files, so that the last case fails everywhere.
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -n 200; exec \"$0\" write-bw \"$@\"", env!("CARGO_BIN_EXE_spindrift")]);
        let process = Running::start(command.args(args).args(["-p", &port]).stderr(Stdio::piped()));
        let output = end_of(process);
        let error = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains(part) && !error.contains("waiting"), "{error}");
    }
}
