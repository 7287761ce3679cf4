//! `write-bw` and `write-lat` between two processes, over kernel sockets on this machine's loopback addresses.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value as Json;
use support::{Running, run, spindrift, stderr, stdout};

/// Longer than any of this takes; only a hang meets it.
const PATIENCE: Duration = Duration::from_mins(1);

fn free_port() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string()
}

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

/// The raw pump beside each row, before and after it, or between its pieces too.
#[test]
fn the_pump_runs_beside_the_writes() {
    for (args, slices) in
        [(&["-s", "64K", "-n", "100"] as &[&str], 2..=2), (&["-s", "4K", "-D", "600ms", "-m", "1024"], 2..=3)]
    {
        let (client, server) = both("write-bw", &[], &[args, &["--with-pump"]].concat());
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
    assert_eq!(client["rows"][0]["pump_gbps"], Json::Null, "not asked for");
}

/// Packets come one in three milliseconds, and both sides leave their cores to others in between; the bytes are the same.
#[test]
fn sides_that_wait_by_poll_sleep_between_packets() {
    let slow = ["-s", "4K", "-D", "1s", "--link-rate", "10M", "--wait", "poll"];
    let (client, server) = both("write-bw", &["--wait", "poll"], &slow);
    let row = &client["rows"][0];
    assert!(row["verified"] == true && row["iterations"].as_u64().unwrap() > 100, "{row}");
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
        &["--local", "127.0.0.32", "--udp-port", "45818", "-D", "300ms"],
    );
    let count = |name: &str| server["counters"]["transport"][name].as_u64().unwrap_or(0);
    let (asked, heard) = (count("tx_endpoint_requests"), count("rx_endpoint_responses"));
    assert!(asked > 10 && heard > asked / 2, "{asked} probes for the paths of answers, {heard} answered");
    assert_eq!(count("rx_unmatched_response"), 0);
}

/// The lines of a file of samples, by type.
fn samples(path: &Path) -> (Vec<Json>, Vec<Json>) {
    let text = fs::read_to_string(path).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Json>(line).unwrap());
    lines.partition(|line| line["type"] == "sample")
}

/// Only the client limits what it has in flight, and only it sends anything that is answered.
fn assert_windows(taken: &[Json], last: &Json) {
    assert!(last["cwnd_bytes"].is_null() && last["rtt_ns"].is_null() && last["min_rtt_ns"].is_null());
    assert_eq!(last["inflight_bytes"], 0);
    let busy = |sample: &&Json| sample["inflight_bytes"].as_u64().unwrap() > 20_000;
    assert!(taken.iter().filter(busy).count() > taken.len() / 4, "128 writes wait for each queue pair");
    let most = |name: &str| taken.iter().map(|sample| sample[name].as_u64().unwrap()).max().unwrap();
    // Losses make a window smaller than what is in flight already.
    assert!(most("inflight_bytes") <= most("cwnd_bytes") + 5_000);
    for sample in taken.iter().filter(|sample| !sample["rtt_ns"].is_null()) {
        assert!(sample["min_rtt_ns"].as_u64() <= sample["rtt_ns"].as_u64(), "{sample}");
    }
    assert!(taken.last().unwrap()["min_rtt_ns"].as_u64().unwrap() > 1_000);
}

/// Each side at short intervals, to the end: samples that only grow, the last of which is what the run says of itself.
#[test]
fn samples_tell_what_a_side_did_and_when() {
    let files = ["client", "server"].map(|side| support::temp(&format!("samples-{side}.jsonl")));
    let [client_file, server_file] = files.each_ref().map(|file| file.to_str().unwrap());
    let start = now_ns();
    let locals = ["127.0.0.21,127.0.0.22", "127.0.0.23,127.0.0.24"];
    let (client, server) = both(
        "write-bw",
        &["--local", locals[0], "--samples", server_file],
        &[
            &["--local", locals[1], "--samples", client_file, "--sample-interval", "2ms", "-q", "2"]
                as &[_],
            &["--cc", "nscc"],
            &["-s", "20000", "-D", "400ms", "--source-ports", "41000-41011", "--fault", "loss=1%,port=1"],
        ]
        .concat(),
    );
    let end = now_ns();
    for (file, side, least) in [(&files[0], &client, 100), (&files[1], &server, 20)] {
        let (taken, evs) = samples(file);
        assert!(taken.len() >= least, "{}", taken.len());
        let times: Vec<_> = taken.iter().map(|sample| sample["unix_ns"].as_u64().unwrap()).collect();
        assert!(times.is_sorted() && start <= times[0] && *times.last().unwrap() <= end);
        let counters = &side["counters"]["transport"];
        for name in ["rx_placed_bytes", "tx_data", "tx_data_bytes", "tx_retransmits", "rx_data", "timeouts"] {
            let values: Vec<_> = taken.iter().map(|sample| sample[name].as_u64().unwrap()).collect();
            assert!(values.is_sorted(), "{name}");
            assert_eq!(*values.last().unwrap(), counters[name].as_u64().unwrap_or(0), "{name}");
        }
        let last = taken.last().unwrap();
        let planes = last["planes"].as_array().unwrap();
        assert_eq!(planes.len(), 2);
        for (name, of_ports) in [("tx_bytes", "tx_bytes"), ("rx_bytes", "rx_bytes")] {
            let sum: u64 = planes.iter().map(|plane| plane[name].as_u64().unwrap()).sum();
            assert_eq!(sum, side["counters"]["ports"][of_ports].as_u64().unwrap(), "{name}");
        }
        assert!(planes.iter().all(|plane| plane["up"] == true && plane["tx_bytes"].as_u64().unwrap() > 0));
        // The states that were told last add up to those of the last sample.
        let mut told = BTreeMap::new();
        for ev in &evs {
            let key = ["queue_pair", "plane", "ev"].map(|name| ev[name].as_u64().unwrap());
            told.insert(key, (ev["state"].as_str().unwrap(), ev["active"] == true));
        }
        for (plane, sample) in (0..).zip(planes) {
            let count = |state, active: &[bool]| {
                let of_plane = told.iter().filter(|(key, _)| key[1] == plane);
                of_plane.filter(|(_, told)| told.0 == state && active.contains(&told.1)).count() as u64
            };
            let number = |name: &str| sample[name].as_u64().unwrap();
            assert_eq!(number("good") + number("skip"), count("good", &[true]));
            assert_eq!(number("reserve"), count("good", &[false]));
            assert_eq!(number("assumed_bad"), count("assumed-bad", &[false, true]));
            assert_eq!(number("denied"), 0);
        }
        assert!(planes[0]["good"].as_u64().unwrap() > 0);
    }
    assert_windows(&samples(&files[0]).0, samples(&files[1]).0.last().unwrap());
    // What was lost on plane 1 shows there, and the source ports are those that were asked for.
    let (taken, evs) = samples(&files[0]);
    assert!(taken.last().unwrap()["losses"].as_u64().unwrap() > 0);
    // A busy machine may lose some on the other plane.
    let bad: Vec<_> = evs.iter().filter(|ev| ev["state"] == "assumed-bad" && ev["plane"] == 1).collect();
    // Where none counts, it was taken back: that packet had arrived.
    assert!(bad.iter().any(|ev| ev["drops"].as_u64().unwrap() > 0));
    assert!(evs.iter().all(|ev| (41_000..=41_011).contains(&ev["ev"].as_u64().unwrap())));
    assert!(evs.iter().any(|ev| ev["queue_pair"] == 1));
    // All that was sent took one of the paths: as many as are told one by one. The server has more.
    let last = taken.last().unwrap();
    let paths = last["paths"].as_array().unwrap();
    assert_eq!(paths.len(), 24);
    let sum = |name: &str| paths.iter().map(|path| path[name].as_u64().unwrap()).sum::<u64>();
    assert_eq!((sum("packets"), sum("plane")), (last["tx_data"].as_u64().unwrap(), 12));
    assert_eq!(samples(&files[1]).0.last().unwrap()["paths"], Json::Array(Vec::new()));
    let moved: u64 = client["rows"][0]["iterations"].as_u64().unwrap() * 20_000;
    assert!(samples(&files[1]).0.last().unwrap()["rx_placed_bytes"].as_u64().unwrap() >= moved);
}

fn now_ns() -> u64 {
    std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64
}

/// A file that cannot be written stops the run before it begins, on either side; one that fills up, when it is over.
#[test]
fn samples_that_cannot_be_written_are_an_error() {
    let nowhere = support::temp("no-such-folder").join("samples.jsonl");
    let nowhere = nowhere.to_str().unwrap();
    let server = run(&["write-bw", "-p", &free_port(), "--samples", nowhere]);
    let server_error = stderr(&server);
    assert!(!server_error.contains("waiting") && server_error.contains(nowhere), "{server_error}");
    let listening = Server::start(&["write-bw"]);
    let args = ["write-bw", "127.0.0.1", "-n", "20", "-p", &listening.port, "--samples"];
    let client = run(&[&args as &[_], &[nowhere]].concat());
    assert_eq!([server.status.code(), client.status.code()], [Some(1); 2]);
    assert!(
        stderr(&client).contains(&format!("--samples {nowhere}: cannot be written")),
        "{}",
        stderr(&client)
    );
    drop(listening);
    let listening = Server::start(&["write-bw"]);
    let client = run(&["write-bw", "127.0.0.1", "-n", "20", "-p", &listening.port, "--samples", "/dev/full"]);
    assert_eq!(client.status.code(), Some(1));
    assert!(stderr(&client).contains("--samples /dev/full: the file is not complete"), "{}", stderr(&client));
    assert!(stdout(&client).contains("yes"), "the run itself was good: {}", stdout(&client));
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
fn a_client_notices_that_its_server_died() {
    let server = Server::start(&["write-bw"]);
    let client = client_of(&server, &[]);
    wait_for_run(&server);
    signal(&server.process, "-KILL");
    let client = end_of(client);
    assert_eq!(client.status.code(), Some(1));
    let error = stderr(&client);
    assert!(error.contains("127.0.0.1") && error.contains("went away"), "{error}");
    server.end();
}

#[test]
fn a_server_notices_that_its_client_died() {
    let server = Server::start(&["write-bw"]);
    let client = client_of(&server, &[]);
    wait_for_run(&server);
    signal(&client, "-KILL");
    end_of(client);
    let server = server.end();
    assert_eq!(server.status.code(), Some(1));
    assert!(stderr(&server).contains("went away"), "{}", stderr(&server));
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

/// Until the server's process has UDP sockets: the set-up is over or about to be.
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
        (&["127.0.0.1", "-p", &port], &["127.0.0.1", &port, "is the peer running"]),
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

/// A server's usual visitors on an open network: none of them ends it or keeps the next client waiting.
#[test]
fn strangers_do_not_stop_a_server() {
    let server = Server::start(&["write-bw", "--json"]);
    let address = format!("127.0.0.1:{}", server.port);
    let connect = || TcpStream::connect(&address).unwrap();
    let no_clients: [&[u8]; 3] =
        [b"", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", &[0, 0, 0, 3, 0xff, 0x5a, 1, 9, 9, 9]];
    for greeting in no_clients {
        let mut stranger = connect();
        stranger.write_all(greeting).unwrap();
        stranger.shutdown(Shutdown::Write).unwrap();
        // Until it is turned away: one that comes to be judged after the client is not mentioned.
        stranger.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut told = Vec::new();
        stranger.read_to_end(&mut told).unwrap();
        let told = String::from_utf8_lossy(&told);
        assert_eq!(told.contains("\"refuse\""), !greeting.is_empty(), "{told}");
    }
    // Nothing, but stays; and one that stays in the middle of a message.
    let silent = connect();
    let mut slow = connect();
    slow.write_all(&[0, 0]).unwrap();
    let start = Instant::now();
    let client = run(&["write-bw", "127.0.0.1", "-n", "20", "--json", "-p", &server.port]);
    assert_eq!(object(&client)["rows"][0]["verified"], true);
    assert!(start.elapsed() < PATIENCE);
    drop((silent, slow));
    let server = server.end();
    let error = stderr(&server);
    assert_eq!(object(&server)["rows"][0]["verified"], true);
    assert_eq!(error.matches("is not a client").count(), 3, "{error}");
}

/// A message of the set-up exchange.
fn framed(message: &Json) -> Vec<u8> {
    let body = message.to_string();
    [&(body.len() as u32).to_be_bytes()[..], body.as_bytes()].concat()
}

/// A client of another version, or one that is broken: the server's log says who and why, and the client learns it.
#[test]
fn a_malformed_first_message_is_explained_to_both_sides() {
    let plan = serde_json::json!({
        "tool": "spindrift-benchmark", "version": 1, "kind": "write-bw", "queue_pairs": 1, "tx_depth": 1,
        "sizes": [64], "rounds": 0, "seed": 1
    });
    let app = |field: &str, value: Json| {
        let mut plan = plan.clone();
        plan[field] = value;
        serde_json::json!({ "type": "app", "app": plan })
    };
    let cases = [
        (
            app("version", 3.into()),
            "spindrift-benchmark version 1 or 2, the client \"spindrift-benchmark\" version 3",
        ),
        (app("version", Json::Null), "version null"),
        (app("tool", "perf\u{1b}test".into()), "the client \"perf"),
        (app("kind", "read-bw".into()), "unknown variant `read-bw`"),
        (app("queue_pairs", (-1).into()), "integer `-1`"),
        (serde_json::json!({ "type": "app", "app": 5 }), "the client none version none"),
        (serde_json::json!({ "type": "app" }), "missing field `app`"),
        (serde_json::json!({ "type": "ready" }), "\"ready\" out of turn"),
    ];
    let server = Server::start(&["write-bw"]);
    let mut log = Vec::new();
    for (message, reason) in cases {
        let mut client = TcpStream::connect(format!("127.0.0.1:{}", server.port)).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client.write_all(&framed(&message)).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut told = Vec::new();
        client.read_to_end(&mut told).unwrap();
        let told: Json = serde_json::from_slice(told.get(4..).unwrap()).expect("an answer");
        let texts = [told["app"]["reason"].as_str(), told["refusal"]["theirs"].as_str()];
        assert!(texts.iter().flatten().any(|text| text.contains(reason)), "{message}: {told}");
        log.push((client.local_addr().unwrap().to_string(), reason));
    }
    let client = run(&["write-bw", "127.0.0.1", "-n", "20", "-p", &server.port]);
    assert!(client.status.success(), "{}", stderr(&client));
    let server = stderr(&server.end());
    for (peer, reason) in log {
        let line = server.lines().find(|line| line.contains(&format!("{peer} "))).unwrap_or_default();
        assert!(line.contains(reason) && !line.contains('\u{1b}'), "{peer}: {reason}: {server}");
    }
}

/// A server that knows nothing of pumps refuses the version; the client says what to do.
#[test]
fn a_server_without_the_pump_is_explained() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let old = std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut length = [0; 4];
        client.read_exact(&mut length).unwrap();
        let mut plan = vec![0; u32::from_be_bytes(length) as usize];
        client.read_exact(&mut plan).unwrap();
        let reason = "the server speaks spindrift-benchmark version 1, the client version 2";
        let refusal = serde_json::json!({ "type": "refuse", "reason": reason });
        client.write_all(&framed(&serde_json::json!({ "type": "app", "app": refusal }))).unwrap();
        serde_json::from_slice::<Json>(&plan).unwrap()
    });
    let client = run(&["write-bw", "127.0.0.1", "-n", "20", "-p", &port, "--with-pump"]);
    let error = stderr(&client);
    assert_eq!(client.status.code(), Some(1), "{error}");
    assert!(error.contains("version 2") && error.contains("run without --with-pump"), "{error}");
    let plan = old.join().unwrap();
    assert_eq!((&plan["app"]["version"], &plan["app"]["with_pump"]), (&2.into(), &true.into()));
}

/// Which plane an address is on no address tells: hosts that number their planes notice another order.
#[test]
fn planes_in_another_order_are_refused_on_both_sides() {
    let server_local = ["--local", "127.0.0.31,127.0.0.32"];
    let client_local = ["--local", "127.0.0.33,127.0.0.34", "-s", "4K", "-n", "20"];
    let server = Server::start(&[&["write-bw", "--plane-ids", "1,2"] as &[_], &server_local].concat());
    let client =
        run(&[&["write-bw", "127.0.0.1", "-p", &server.port, "--plane-ids", "2,1"] as &[_], &client_local]
            .concat());
    let server = server.end();
    for (output, ours, theirs) in [(&client, "2, 1", "1, 2"), (&server, "1, 2", "2, 1")] {
        assert_eq!(output.status.code(), Some(1));
        let error = stderr(output);
        let lists = format!("plane_ids: this side has {ours}, the peer has {theirs}; list the ports");
        assert!(error.contains(&lists), "{error}");
    }
    // The same order from a file; and a side that does not tell.
    let config = support::temp("plane-ids.toml");
    std::fs::write(&config, "[nic]\nplane_ids = [7, 9]\n").unwrap();
    let ids: [&[&str]; 2] = [&["--config", config.to_str().unwrap()], &[]];
    for server_ids in ids {
        let (client, _) = both(
            "write-bw",
            &[server_ids, &server_local].concat(),
            &[&["--plane-ids", "7,9"] as &[_], &client_local].concat(),
        );
        assert_eq!(client["rows"][0]["verified"], true);
    }
}

/// More than the server greets at a time: the rest is closed, and a client comes through once those gave up.
#[test]
fn silent_connections_are_bounded_in_number_and_time() {
    let config = support::temp("short-timeout.toml");
    std::fs::write(&config, "[setup]\ntimeout = \"2s\"\n").unwrap();
    let server = Server::start(&["write-bw", "--config", config.to_str().unwrap()]);
    let address = format!("127.0.0.1:{}", server.port);
    let mut silent: Vec<_> = (0..65).map(|_| TcpStream::connect(&address).unwrap()).collect();
    // All of them are closed by the server: the last at once, the others at the limit.
    for stream in silent.iter_mut().rev() {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.read_to_end(&mut Vec::new()).unwrap();
    }
    let client = run(&["write-bw", "127.0.0.1", "-n", "20", "-p", &server.port]);
    assert!(client.status.success(), "{}", stderr(&client));
    let server = server.end();
    assert!(server.status.success());
    let error = stderr(&server);
    assert!(
        error.contains("64 connections have yet to send") && error.contains("are not reported"),
        "{error}"
    );
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
