//! `spindrift loopback --operation`, small.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod support;

use std::process::{Command, Stdio};

use serde_json::Value as Json;
use support::{Running, end_of, run, spindrift, stderr, stdout};

const OPERATIONS: [&str; 7] = ["write", "write-imm", "send", "send-imm", "read", "fetch-add", "compare-swap"];

fn json(args: &[&str]) -> Json {
    let output = run(&[&["loopback", "--json"], args].concat());
    assert!(output.status.success(), "{args:?}: {}\n{}", stderr(&output), stdout(&output));
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

fn is_atomic(operation: &str) -> bool {
    matches!(operation, "fetch-add" | "compare-swap")
}

#[test]
fn every_operation_is_verified_while_packets_are_lost() {
    for operation in OPERATIONS {
        for more in ["-q 1", "-q 3 --lanes 2", "-t 3 --verify every", "--port udp --planes 2"] {
            let size = if is_atomic(operation) { "8" } else { "16K" };
            let args = ["--operation", operation, "-s", size, "-n", "500", "--fault", "loss=1%"];
            let object = json(&args.into_iter().chain(more.split(' ')).collect::<Vec<_>>());
            let row = &object["rows"][0];
            assert_eq!((&row["verified"], &row["iterations"]), (&true.into(), &500.into()), "{object}");
            assert_eq!(object["settings"]["operation"], operation, "{object}");
            let all = is_atomic(operation) || more.contains("every");
            assert_eq!(row["compared"].as_u64().unwrap() > 500, all, "{operation} {more}: {row}");
            assert_eq!(row["sampled"].as_u64().unwrap() > 500, all, "{operation} {more}: {row}");
        }
    }
}

#[test]
fn shared_receive_queues_serve_several_queue_pairs() {
    for operation in ["send", "send-imm", "write-imm"] {
        for verify in ["last", "every"] {
            let args =
                ["--operation", operation, "--srq", "-s", "4K", "-n", "900", "-q", "3", "--lanes", "2"];
            let object = json(&[&args[..], &["--verify", verify, "--fault", "loss=1%"]].concat());
            let row = &object["rows"][0];
            assert_eq!(
                (&row["verified"], &object["settings"]["srq"]),
                (&true.into(), &true.into()),
                "{object}"
            );
            assert!(row["sampled"].as_u64().unwrap() > 0, "{row}");
        }
    }
}

#[test]
fn every_operation_has_a_latency() {
    for operation in OPERATIONS {
        let size = if is_atomic(operation) { "8" } else { "8K" };
        let args = ["--operation", operation, "-s", size, "--latency", "-n", "300", "--fault", "loss=1%"];
        let row = &json(&args)["latency_rows"][0];
        assert_eq!(row["iterations"], 300);
        let [least, typical] = ["min_us", "typical_us"].map(|name| row[name].as_f64().unwrap());
        assert!(0.0 < least && least <= typical, "{row}");
    }
}

#[test]
fn sweeps_leave_no_receive_behind() {
    for more in ["-t 4", "-q 3", "-q 2 --srq -t 4", "-q 3 --srq --lanes 2"] {
        let args = ["--operation", "send", "-n", "6"];
        let object = json(&args.into_iter().chain(more.split(' ')).collect::<Vec<_>>());
        let rows = object["rows"].as_array().unwrap();
        assert!(rows.len() == 23 && object["verified"] == true, "{object}");
    }
}

/// Compared as a whole: a changed byte is found whichever operation brought it.
#[test]
fn a_changed_byte_is_found() {
    for (operation, fault) in [
        ("send", "corrupt=0.2%,opcode=0xc0|0xc1|0xc2|0xc4"),
        ("send-imm", "corrupt=0.2%,opcode=0xc0|0xc1|0xc3"),
    ] {
        for srq in [&[] as &[&str], &["--srq"]] {
            let args =
                ["loopback", "--operation", operation, "-s", "64K", "-t", "4", "-n", "400", "--no-icrc"];
            let output = run(&[&args[..], &["--verify", "every", "--fault", fault], srq].concat());
            let error = stderr(&output);
            // A header was changed.
            let found =
                ["the peer broke a rule", "remote ", "hold what"].iter().any(|part| error.contains(part));
            assert!(output.status.code() == Some(1) && found, "{operation}: {error}");
        }
    }
}

#[test]
fn a_run_ends_when_it_is_interrupted() {
    for operation in ["send", "read", "fetch-add"] {
        let mut command = spindrift();
        command.args(["loopback", "--operation", operation, "-D", "10m", "-s", "8"]);
        let process = Running::start(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
        std::thread::sleep(std::time::Duration::from_millis(300));
        let interrupt = Command::new("kill").args(["-INT", &process.id().to_string()]).status().unwrap();
        assert!(interrupt.success());
        let output = end_of(process, std::time::Duration::from_mins(1), operation);
        assert_eq!(output.status.code(), Some(130), "{operation}: {}", stderr(&output));
    }
}
