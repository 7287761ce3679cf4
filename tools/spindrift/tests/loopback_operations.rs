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

/// Every message is compared, or the last to each slot and all atomic operations.
#[test]
fn mixes_are_verified_while_packets_are_lost() {
    let all = "write=30,write-imm=10,send=10,send-imm=10,read=20,fetch-add=10,compare-swap=10";
    for (mix, more) in [
        ("write=60,send=20,read=20", "-s 16K -q 1"),
        (all, "-s 16K -q 3 --lanes 2"),
        (all, "-s 2 -t 3"),
        (all, "-s 64K -t 16 -q 2 --verify last"),
        ("read=3,fetch-add=1", "-s 4K -o 2"),
        ("send=1,send-imm=2,read=3", "-s 4K -q 3 --srq"),
        ("write=60,send=20,read=20", "-s 4K --port udp --planes 2"),
    ] {
        let args = ["--mix", mix, "-n", "600", "--fault", "loss=1%"];
        let object = json(&args.into_iter().chain(more.split(' ')).collect::<Vec<_>>());
        let row = &object["rows"][0];
        assert_eq!((&row["verified"], &row["iterations"]), (&true.into(), &600.into()), "{object}");
        assert_eq!(object["settings"]["operation"], mix, "{object}");
        let compared = row["compared"].as_u64().unwrap();
        assert_eq!(compared > 600, !more.contains("last"), "{mix} {more}: {row}");
        assert!(row["sampled"].as_u64().unwrap() > 0, "{mix} {more}: {row}");
    }
}

/// Rates are those of the bytes that are moved: an atomic operation has few.
#[test]
fn the_rate_of_a_mix_is_that_of_its_bytes() {
    let row = &json(&["--mix", "write=1,fetch-add=1", "-s", "1M", "-n", "400", "-t", "4"])["rows"][0];
    let [gbps, mpps] = ["bandwidth_gbps", "message_rate_mpps"].map(|name| row[name].as_f64().unwrap());
    let bytes_of_each = gbps * 1e9 / 8.0 / (mpps * 1e6);
    let share = bytes_of_each / f64::from(1 << 20);
    assert!((0.4..0.6).contains(&share), "{share}: {row}");
}

#[test]
fn mixes_that_cannot_be_are_refused() {
    for (options, part) in [
        ("--mix write", "--mix"),
        ("--mix write=1,push=1", "there is no operation `push`"),
        ("--mix write=1,send=1 --operation read", "cannot be used with"),
        ("--mix write=1,send=1 --latency", "cannot be used with"),
        ("--mix write=1,send=1 --srq", "--srq: in the mix write=1,send=1 RDMA writes may go to"),
        ("--mix write=1,read=1 --srq", "--srq: operations take no receive"),
        ("--mix write=1,read=1 --extensions send", "operations need the extension read"),
        ("--mix write=1,fetch-add=1 --yardstick", "--yardstick: the pump moves bytes"),
    ] {
        let args: Vec<_> = ["loopback", "-n", "1"].into_iter().chain(options.split(' ')).collect();
        let output = run(&args);
        if options == "--mix write" {
            // One operation is a mix too.
            assert!(output.status.success(), "{}", stderr(&output));
            continue;
        }
        assert_eq!(output.status.code(), Some(2), "{options}");
        assert!(stderr(&output).contains(part), "{options}: {}", stderr(&output));
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
    for more in [
        "--operation send -t 4",
        "--operation send -q 3",
        "--operation send -q 2 --srq -t 4",
        "--operation send -q 3 --srq --lanes 2",
        "--mix write=60,send=20,read=20 -q 3 --lanes 2 -t 4",
    ] {
        let object = json(&["-n", "6"].into_iter().chain(more.split(' ')).collect::<Vec<_>>());
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
        ("write=1,send=1", "corrupt=1%,opcode=0xc0|0xc1|0xc2|0xc4"),
    ] {
        let (option, srqs) = if operation.contains('=') {
            ("--mix", &[&[] as &[&str]] as &[&[&str]])
        } else {
            ("--operation", &[&[] as &[&str], &["--srq"]] as &[&[&str]])
        };
        for srq in srqs {
            let args = ["loopback", option, operation, "-s", "64K", "-t", "4", "-n", "400", "--no-icrc"];
            let output = run(&[&args[..], &["--verify", "every", "--fault", fault], *srq].concat());
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
