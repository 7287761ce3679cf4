//! Wrong usage: status 2, nothing on standard output, and the input and the fix named.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod support;

use std::process::Stdio;
use std::time::Duration;

use support::{end_of, spindrift, stderr, stdout, temp};

/// Longer than any refusal takes; only a command that took the input and runs meets it.
const PATIENCE: Duration = Duration::from_secs(20);

fn assert_refused(args: &[&str], parts: &[&str]) {
    let child =
        spindrift().args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let output = end_of(child, PATIENCE, &format!("{args:?}"));
    let error = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
    assert!(parts.iter().all(|part| error.contains(part)), "{args:?}: {error}");
    assert_eq!(stdout(&output), "", "{args:?}");
}

#[test]
fn flags_out_of_range() {
    for (args, parts) in [
        (&["loopback", "-s", "0"] as &[&str], &["--size 0", "at least 1"] as &[&str]),
        (&["loopback", "-s", "5G"], &["--size 5 GiB", "4294967295"]),
        (&["loopback", "-q", "0"], &["--qp 0", "1 to 1024"]),
        (&["loopback", "-m", "1"], &["--mtu 1", "256 to 8960"]),
        (&["loopback", "-t", "0"], &["--tx-depth 0", "1 to 16384"]),
        (&["loopback", "-n", "0"], &["--iters 0", "at least 1"]),
        (&["loopback", "--planes", "33"], &["--planes 33", "1 to 32"]),
        (&["loopback", "--planes", "0"], &["--planes 0", "1 to 32"]),
        (&["loopback", "--fault", "lose=1%"], &["--fault \"lose=1%\"", "loss"]),
        (&["loopback", "--config", "/no/such.toml"], &["/no/such.toml", "No such file"]),
        (&["loopback", "--latency", "-D", "1s"], &["--duration", "--iters"]),
        (&["loopback", "--latency", "-q", "2"], &["--qp 2", "-q 1"]),
        (&["loopback", "--timeout", "0"], &["--timeout 0", "1 to 24"]),
        (&["loopback", "--timeout", "300"], &["--timeout 300", "1 to 24"]),
        (&["loopback", "--linear-retries", "8"], &["--linear-retries 8", "0 to 7"]),
        (&["loopback", "--exponential-retries", "26"], &["--exponential-retries 26", "0 to 25"]),
        (&["write-bw", "--timeout", "25"], &["--timeout 25", "1 to 24"]),
        (&["write-bw", "127.0.0.1", "--timeout", "soon"], &["--timeout", "soon"]),
        (&["write-lat", "127.0.0.1", "--linear-retries", "9"], &["--linear-retries 9", "0 to 7"]),
        (&["write-lat", "--exponential-retries", "99"], &["--exponential-retries 99", "0 to 25"]),
        (&["loopback", "--no-gso"], &["--no-gso", "--port udp"]),
        (&["write-bw", "-s", "0"], &["--size 0", "at least 1"]),
        (&["write-bw", "127.0.0.1", "-s", "0"], &["--size 0", "at least 1"]),
        (&["write-bw", "127.0.0.1", "-q", "1025"], &["--qp 1025", "1 to 1024"]),
        (&["loopback", "--lanes", "0"], &["--lanes 0", "1 to 15"]),
        (&["write-bw", "--lanes", "16"], &["--lanes 16", "1 to 15"]),
        (&["loopback", "--lanes", "2"], &["--lanes 2", "1 queue pair keeps one busy", "-q 2 or more"]),
        (&["write-bw", "127.0.0.1", "--lanes", "3", "-q", "2"], &["--lanes 3", "2 queue pairs", "-q 3"]),
        (&["loopback", "--latency", "--lanes", "2", "-q", "1"], &["--lanes 2"]),
        (&["write-lat", "--lanes", "2"], &["--lanes 2", "one lane", "leave it out"]),
        (&["write-bw", "-m", "1"], &["--mtu 1", "256"]),
        (&["write-bw", "-x", "999"], &["-x 999", "spindrift ports"]),
        (&["write-bw", "--port", "loopback"], &["--port loopback", "spindrift loopback"]),
        (&["write-bw", "--source-ports", "0"], &["--source-ports 0", "1 to 16384"]),
        (&["write-bw", "--source-ports", "9-8"], &["--source-ports", "9-8", "above the last"]),
        (&["write-bw", "--source-ports", "1-20000"], &["--source-ports 1-20000", "1 to 16384"]),
        (&["write-bw", "--source-ports", "many"], &["--source-ports", "many", "50000-50031"]),
        (&["write-bw", "--udp-port", "0"], &["--udp-port 0", "1 to 65535"]),
        (&["write-bw", "--local", "203.0.113.9"], &["--local", "203.0.113.9", "spindrift ports"]),
        (&["write-bw", "--local", "127.0.0.1,127.0.0.1"], &["--local", "127.0.0.1", "twice"]),
        (&["write-bw", "--local", "127.0.0.1,::1"], &["--local", "one family"]),
        (&["write-bw", "--plane-ids", "1,2"], &["--plane-ids", "2 numbers for 1 plane", "--local"]),
        (
            &["write-lat", "--local", "127.0.0.1,127.0.0.2", "--plane-ids", "7"],
            &["--plane-ids", "1 number for 2 planes", "each plane"],
        ),
        (
            &["write-bw", "--local", "127.0.0.1,127.0.0.2,127.0.0.3", "--plane-ids", "4,7,4"],
            &["--plane-ids", "4 is listed twice", "of its own"],
        ),
        (&["write-bw", "--plane-ids", "blue"], &["--plane-ids", "blue"]),
        (&["write-lat", "127.0.0.1", "-D", "1s"], &["--duration", "--iters"]),
        (&["write-lat", "127.0.0.1", "-q", "4"], &["--qp 4", "write-lat", "-q 1"]),
        (&["write-bw", "--yardstick"], &["--yardstick", "client", "address of a server"]),
        (&["write-lat", "127.0.0.1", "--yardstick"], &["--yardstick", "write-bw"]),
        (
            &["write-bw", "127.0.0.1", "--yardstick", "--port", "loopback"],
            &["--port loopback", "spindrift loopback"],
        ),
        (&["loopback", "--yardstick", "--latency"], &["--yardstick", "--latency"]),
        (&["pump", "udp", "--loopback", "-s", "0"], &["--size 0", "1 to 8960"]),
        (&["write-bw", "--wait", "poll", "--share-cores"], &["--wait", "--share-cores"]),
        (&["write-lat", "--wait", "nap"], &["--wait", "nap", "spin", "poll"]),
        (&["loopback", "--wait", "poll"], &["--wait"]),
        (&["pump", "udp", "--loopback", "--source-ports", "0"], &["--source-ports 0", "16384"]),
    ] {
        assert_refused(args, parts);
    }
}

#[test]
fn options_that_do_not_fit_the_operation() {
    for (args, parts) in [
        (&["atomic-bw", "127.0.0.1", "-s", "64"] as &[_], &["--size", "8 bytes"] as &[_]),
        (&["atomic-lat", "127.0.0.1", "-a"], &["--all", "8 bytes"]),
        (&["atomic-lat", "127.0.0.1", "-A", "SWAP"], &["SWAP", "FETCH_AND_ADD", "CMP_AND_SWAP"]),
        (&["loopback", "--operation", "fetch-add", "-s", "4K"], &["--size", "8 bytes"]),
        (&["loopback", "--operation", "copy"], &["copy", "compare-swap"]),
        (&["loopback", "--operation", "read", "--srq"], &["--srq", "RDMA READs", "leave it out"]),
        (&["loopback", "--operation", "read", "-o", "0"], &["--outs 0", "1 to 255"]),
        (&["read-bw", "127.0.0.1", "-o", "256"], &["256", "--outs"]),
        (&["write-bw", "127.0.0.1", "--srq"], &["--imm"]),
        (
            &["send-bw", "127.0.0.1", "--extensions", "read"],
            &["--extensions read", "SENDs", "extension send"],
        ),
        (&["send-bw", "127.0.0.1", "--extensions", "send"], &["--extensions send", "extension rnr"]),
        (
            &["write-bw", "127.0.0.1", "--imm", "--extensions", "none"],
            &["--extensions none", "extension rnr"],
        ),
        (&["loopback", "--extensions", "verbs"], &["`verbs` is no extension", "none", "atomic"]),
        (&["read-bw", "127.0.0.1", "--yardstick"], &["--yardstick", "write-bw or send-bw"]),
        (&["atomic-bw", "--yardstick"], &["--yardstick", "write-bw or send-bw"]),
        (&["loopback", "--operation", "fetch-add", "--yardstick"], &["--yardstick", "leave it out"]),
        (&["read-lat", "127.0.0.1", "--verify", "every"], &["--verify", "read-lat", "leave it out"]),
        (&["send-lat", "127.0.0.1", "-q", "2"], &["--qp 2", "send-lat", "-q 1"]),
        (&["read-lat", "127.0.0.1", "--samples", "x"], &["--samples", "read-bw"]),
        (&["send-bw", "--verify", "every"], &["--verify", "client"]),
    ] {
        assert_refused(args, parts);
    }
}

#[test]
fn samples_of_nothing() {
    for (args, parts) in [
        (&["write-lat", "127.0.0.1", "--samples", "x"] as &[_], &["--samples", "write-bw"] as &[_]),
        (&["write-bw", "--sample-interval", "1ms"], &["--samples"]),
        (&["write-bw", "--samples", "x", "--sample-interval", "99us"], &["--sample-interval 99", "100µs or"]),
        (&["write-bw", "--samples", "x", "--sample-interval", "0"], &["--sample-interval", "duration"]),
        (&["write-bw", "--samples", "x", "--keep-serving"], &["--samples", "--keep-serving"]),
    ] {
        assert_refused(args, parts);
    }
}

#[test]
fn a_fault_on_a_plane_that_is_not_there() {
    let rules = "loss=1%,port=3; loss=1%,port=9";
    assert_refused(&["loopback", "--fault", rules], &["--fault", "port=9", "0 to 3", "--planes"]);
    assert_refused(&["loopback", "--planes", "1", "--fault", "loss=1%,port=1"], &["port=1", "number 0"]);
    assert_refused(&["write-bw", "--fault", "loss=1%,port=1"], &["--fault", "port=1", "--local"]);
    let within = ["loopback", "-s", "4K", "-n", "5", "--fault", "loss=1%,port=3"];
    assert!(support::run(&within).status.success());
}

/// Each bad value stands on line 3, column 8 or behind: the place of the value and not of its section.
#[test]
fn a_bad_value_in_a_file_is_named_with_its_place() {
    let cases: [(&str, &str, &str, &[&str]); 33] = [
        ("loopback", "run", "size = 0", &["run.size", "at least 1"]),
        ("loopback", "run", "qps = 0", &["run.qps 0", "1 to 1024"]),
        ("loopback", "run", "tx_depth = 0", &["run.tx_depth 0", "1 to 16384"]),
        ("loopback", "run", "iterations = 0", &["run.iterations 0", "at least 1"]),
        ("loopback", "run", "duration = 2\niterations = 4", &["run.duration", "iterations", "one of them"]),
        ("loopback", "nic", "planes = 33", &["nic.planes 33", "1 to 32"]),
        ("loopback", "nic", "fault = \"lose=1%\"", &["nic.fault", "lose=1%"]),
        ("loopback", "nic", "fault = \"loss=1%,port=9\"", &["nic.fault", "port=9", "0 to 3"]),
        ("write-bw", "nic", "source_ports = 0", &["nic.source_ports 0", "1 to 16384"]),
        ("loopback", "nic", "source_ports = 64", &["nic.source_ports", "loopback", "--port udp"]),
        ("loopback", "nic", "local = [\"127.0.0.1\"]", &["nic.local", "loopback", "--port udp"]),
        ("loopback", "nic", "local = [\"127.0.0.1\"]\nport = \"udp\"", &["nic.local", "--planes"]),
        ("loopback", "nic", "plane_ids = [1, 2]", &["nic.plane_ids", "2 numbers for 4 planes", "--planes"]),
        ("loopback", "nic", "plane_ids = [1, 2, 3, 2]", &["nic.plane_ids", "2 is listed twice"]),
        ("loopback", "nic", "gso = false", &["nic.gso", "--port udp"]),
        ("loopback", "transport", "mtu = 1", &["transport.mtu 1", "256"]),
        ("loopback", "transport", "udp_port = 0", &["transport.udp_port 0", "1 to 65535"]),
        ("loopback", "transport", "hop_limit = 0", &["transport.hop_limit 0", "1 to 255"]),
        ("loopback", "transport", "mpr = 0", &["transport.mpr 0", "1 to 255"]),
        ("loopback", "transport", "window_budget_psns = 9", &["window_budget_psns", "dynamic_mpr = true"]),
        ("write-bw", "transport", "max_wimm = 0", &["transport.max_wimm 0", "1 to 65535"]),
        (
            "loopback",
            "transport",
            "sack_threshold_bytes = 0",
            &["transport.sack_threshold_bytes 0", "1 to 4294967295"],
        ),
        ("loopback", "transport", "timeout = 25", &["transport.timeout 25", "1 to 24"]),
        ("loopback", "transport", "linear_retries = 8", &["transport.linear_retries 8", "0 to 7"]),
        (
            "loopback",
            "transport",
            "exponential_retries = 26",
            &["transport.exponential_retries 26", "0 to 25"],
        ),
        ("loopback", "transport", "dscp = { control = 99 }", &["transport.dscp", "control", "99"]),
        ("loopback", "path", "active = 0", &["path.active", "active = 0", "at least one"]),
        ("loopback", "path", "min_active = 1000", &["path.min_active", "1 to active"]),
        ("loopback", "path", "probes_to_revive = 0", &["path.probes_to_revive", "at least 1"]),
        ("loopback", "cc", "link_rate_gbps = -1\nalgorithm = \"nscc\"", &["cc.link_rate_gbps", "at least 1"]),
        ("write-bw", "setup", "port = 0", &["setup.port 0", "1 to 65535"]),
        ("write-bw", "transport", "entropy = \"stev-sport-high\"", &["transport.entropy", "\"udp\""]),
        ("write-lat", "run", "qps = 4", &["run.qps 4", "-q 1"]),
    ];
    assert_place_named(&cases);
}

/// As above, of entropy values.
#[test]
fn entropy_values_that_cannot_be_used_are_named() {
    let cases: [(&str, &str, &str, &[&str]); 5] = [
        ("loopback", "path", "evs = [[1], [2]]", &["path.evs 0x1/0x2: 2 lists for 4 planes", "one for each"]),
        (
            "loopback",
            "path",
            "backup = 8\nevs = [1, 2]",
            &["path.backup 8: 2 of each plane", "0x1,0x2 lists 2"],
        ),
        (
            "loopback",
            "path",
            "evs = [1, 0x10000]\n[transport]\nentropy = \"udp\"",
            &["path.evs: 0x10000 is not a UDP source port", "entropy"],
        ),
        (
            "loopback",
            "path",
            "evs = [0, 1]\n[transport]\nentropy = \"udp\"",
            &["path.evs: 0x0 is not a UDP source port"],
        ),
        (
            "write-bw",
            "path",
            "evs = [1]",
            &["path.evs: a port of kind udp has no entropy values but", "--port af_xdp"],
        ),
    ];
    assert_place_named(&cases);
}

/// The command refuses a file whose third line is the first of these, in this section, and names the place and these parts.
fn assert_place_named(cases: &[(&str, &str, &str, &[&str])]) {
    for (number, (command, section, line, parts)) in cases.iter().enumerate() {
        let path = temp(&format!("place-{}-{number}.toml", cases.len()));
        std::fs::write(&path, format!("# comment\n[{section}]\n{line}\n")).unwrap();
        let path = path.to_str().unwrap();
        let column = line.find('=').unwrap() + 3;
        let mut all = vec![path.to_owned(), format!("line 3, column {column}")];
        all.extend(parts.iter().map(|&part| part.to_owned()));
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        assert_refused(&[command, "--config", path], &all);
    }
}

/// An error in what the file says names no flag, and one in a flag no file.
#[test]
fn the_source_of_a_value_is_not_mixed_up() {
    let path = temp("source.toml");
    std::fs::write(&path, "[nic]\nfault = \"lose=1%\"\n\n[transport]\nmtu = 1\n").unwrap();
    let path = path.to_str().unwrap();
    let from_file = support::run(&["loopback", "--config", path]);
    let error = stderr(&from_file);
    assert!(error.contains("line 2, column 9: nic.fault") && !error.contains("--fault"), "{error}");
    let from_flag = support::run(&["loopback", "--config", path, "--fault", "lost=1%"]);
    let error = stderr(&from_flag);
    assert!(error.contains("--fault \"lost=1%\"") && !error.contains("source.toml"), "{error}");
}

/// Results that cannot be written are an error with a message, whatever prints them.
#[test]
fn lost_output_is_an_error() {
    let capture = support::write_capture("full.pcap");
    let capture = capture.to_str().unwrap();
    let config = ["loopback", "-s", "4K", "-n", "5", "--json"];
    let cases: [&[&str]; 8] = [
        &config,
        &["loopback", "-s", "4K", "-n", "5"],
        &["loopback", "--latency", "-n", "5", "--json"],
        &["ports"],
        &["ports", "--json"],
        &["dissect", capture],
        &["--help"],
        &[],
    ];
    for args in cases {
        let full = std::fs::File::create("/dev/full").unwrap();
        let output = spindrift().args(args).stdout(full).stderr(Stdio::piped()).output().unwrap();
        let error = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {error}");
        assert!(error.contains("standard output") && error.contains("No space left"), "{args:?}: {error}");
    }
}

/// As with `| head -1`: the command ends soon, in silence, with the status of a broken pipe.
#[test]
fn a_closed_pipe_ends_the_command_in_silence() {
    let capture = support::write_capture("pipe.pcap");
    let capture = capture.to_str().unwrap();
    let cases: [&[&str]; 4] =
        [&["loopback", "-s", "4K", "-D", "10m"], &["ports"], &["dissect", capture, "-v"], &["--help"]];
    for args in cases {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let child = spindrift().args(args).stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
        let output = end_of(child, PATIENCE, &format!("{args:?}"));
        assert_eq!((output.status.code(), stderr(&output)), (Some(141), String::new()), "{args:?}");
    }
}

#[test]
fn a_closed_standard_error_is_no_panic() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let status = spindrift().args(["loopback", "-s", "0"]).stderr(writer).status().unwrap();
    assert_eq!(status.code(), Some(2));
}

/// No other host could reply to a loopback address.
#[test]
fn a_pump_without_a_route_is_refused() {
    let output =
        support::run(&["pump", "udp", "240.0.0.1", "--local", "127.0.0.1", "-D", "50ms", "--port", "9"]);
    assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
    let error = stderr(&output);
    assert!(error.contains("no route leads from 127.0.0.1 to the peer 240.0.0.1"), "{error}");
}

/// perftest's options that are none of ours: each is told what ours is called, or that it is not needed.
#[test]
fn options_of_perftest_are_told_what_to_write() {
    let cases: [(&[&str], &str); 23] = [
        (&["-A", "CMP_AND_SWAP"], "it is for atomic-bw and atomic-lat"),
        (
            &["-b"],
            "-b, --bidirectional is an option of perftest, not of this command: a run has one direction",
        ),
        (&["--bidirectional"], "second server with another -p"),
        (&["-d", "mlx5_0"], "--local eth0, or -x N"),
        (&["-dmlx5_0"], "--local eth0, or -x N"),
        (&["--ib-dev=mlx5_0"], "--local eth0, or -x N"),
        (&["-i", "1"], "--local eth0, or -x N"),
        (&["-R"], "always goes over TCP"),
        (&["-c", "RC"], "one kind of connection"),
        (&["-e"], "--wait poll"),
        (&["-u", "14"], "it is called --timeout"),
        (&["--run_infinitely"], "write -D 24h, and end it with Ctrl-C"),
        (&["-I", "0"], "leave it out"),
        (&["-l", "16"], "leave it out"),
        (&["-Q", "100"], "leave it out"),
        (&["-N"], "leave it out"),
        (&["-H"], "percentiles"),
        (&["-T", "106"], "[transport.dscp]"),
        (&["--tclass", "106"], "[transport.dscp]"),
        (&["-O"], "--local eth0,eth1"),
        (&["--rate_limit=5"], "--link-rate"),
        (&["--out_json"], "it is called --json"),
        (&["--bind_source_ip", "10.0.0.1"], "it is called --local"),
    ];
    for command in ["write-bw", "write-lat", "send-bw", "read-lat"] {
        for (args, part) in cases {
            let client = [&[command, "127.0.0.1", "-a"], args].concat();
            assert_refused(&client, &["spindrift: -", part]);
            assert_refused(&[&[command], args].concat(), &[part]);
        }
        // An option of nobody is no address either.
        let output = spindrift().args([command, "--nonsense"]).output().unwrap();
        let error = stderr(&output);
        assert!(error.contains("--nonsense") && !error.contains("-- --nonsense"), "{error}");
    }
    assert_refused(&["send-bw", "-o", "4"], &["-o, --outs", "READs and atomic operations"]);
    assert_refused(&["read-bw", "--use-srq"], &["--use-srq", "it is for SENDs"]);
    assert_refused(&["send-lat", "--write_with_imm"], &["SENDs have --imm"]);
    // What other commands do not know has nothing to do with perftest.
    assert_refused(&["ports", "-b"], &["unexpected argument '-b'"]);
}

/// Those that mean the same are taken, and those that change nothing are named. The client gets as far as the network.
#[test]
fn options_of_perftest_that_fit_are_accepted() {
    let args = "127.0.0.1 -p 1 -a -D 1 -q 2 -t 16 -m 1024 -F --report_gbits";
    let output = spindrift().arg("write-bw").args(args.split(' ')).output().unwrap();
    let error = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("-F has no effect here: the clock rate of cores is not checked"), "{error}");
    assert!(error.contains("--report_gbits has no effect here: rates are always in Gb/s"), "{error}");
    assert!(error.contains("nothing listens at 127.0.0.1:1"), "{error}");
    let args = "127.0.0.1 -p 1 --all --duration 1 --qp 2 --tx-depth 16 --mtu 1024 --CPU-freq";
    let output = spindrift().arg("write-bw").args(args.split(' ')).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    for args in ["127.0.0.1 -s 64 -n 5 -p 1 -x 0", "127.0.0.1 --size=64 --iters=5 --port=1 --gid-index=0"] {
        let output = spindrift().arg("write-lat").args(args.split(' ')).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    }
}

/// A server's address in its usual spellings leads there; another one is told how to write it.
#[test]
fn addresses_of_servers() {
    for (args, at) in [
        (&["127.0.0.1:1"] as &[&str], "nothing listens at 127.0.0.1:1 "),
        (&["127.0.0.1:1", "-p", "1"], "nothing listens at 127.0.0.1:1 "),
        (&["localhost:1"], ":1 (TCP)"),
        (&["[::1]:1"], "[::1]:1"),
        (&["[::1]", "-p", "1"], "[::1]:1"),
        (&["::1", "-p", "1"], "[::1]:1"),
    ] {
        let output = spindrift().arg("write-bw").args(args).output().unwrap();
        let error = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {error}");
        assert!(error.contains(at), "{args:?}: {error}");
    }
    assert_refused(
        &["write-bw", "127.0.0.1:1", "-p", "2"],
        &["127.0.0.1 has TCP port 1", "-p has 2", "give one of them"],
    );
    assert_refused(&["write-bw", "::1:18515"], &["::1:18515", "[::1]:18515"]);
    assert_refused(&["write-bw", "[::1"], &["[::1", "[::1] or [::1]:18515"]);
    assert_refused(&["write-bw", "node7:0"], &["node7:0", "1 to 65535"]);
    assert_refused(&["write-bw", ""], &["leave it out to run as the server"]);
}
