//! `send-bw`, `read-lat` and the others beside `write-bw` and `write-lat`: the same runs with other operations.

use serde_json::Value as Json;

use super::support::{run, stderr};
use super::{Server, both};

/// Lost in both directions, so that requests, bytes, responses and acknowledgements are all repeated.
const LOSS: [&str; 2] = ["--fault", "loss=1%"];

fn assert_row(json: &Json, size: u64, iterations: u64) {
    let row = &json["rows"][0];
    assert_eq!((&row["size_bytes"], &row["iterations"]), (&size.into(), &iterations.into()), "{json}");
    assert_eq!(json["error"], Json::Null, "{json}");
}

/// Each bandwidth benchmark with each of its options, over several queue pairs and lanes, while packets are lost.
#[test]
fn every_operation_is_measured_and_verified_while_packets_are_lost() {
    for (command, options, operation, compared) in [
        ("write-bw", "--imm -s 16K -q 2", "write-imm", Some(256)),
        ("write-bw", "--imm --srq -s 16K -q 2", "write-imm", Some(512)),
        ("send-bw", "-s 16K -q 2", "send", Some(256)),
        ("send-bw", "-s 16K -q 3 --lanes 2 --imm", "send-imm", Some(384)),
        ("send-bw", "-s 16K -q 3 --lanes 2 --srq", "send", Some(510)),
        ("send-bw", "-s 16K -t 16 --verify every", "send", None),
        ("send-bw", "-s 16K -t 16 -q 2 --srq --imm --verify every", "send-imm", None),
        ("read-bw", "-s 16K -q 2", "read", Some(256)),
        ("read-bw", "-s 16K -q 3 --lanes 2 -o 2 --verify every", "read", None),
        ("atomic-bw", "-q 2", "fetch-add", None),
        ("atomic-bw", "-q 3 --lanes 2 -A CMP_AND_SWAP -o 3", "compare-swap", None),
        ("mix-bw", "-s 16K -q 2", "write=60,send=20,read=20", None),
        (
            "mix-bw",
            "-s 16K -q 3 --lanes 2 -t 16 --mix write-imm=1,send-imm=1,read=1,fetch-add=1,compare-swap=1",
            "write-imm=1,send-imm=1,read=1,fetch-add=1,compare-swap=1",
            None,
        ),
        // The last message to each slot of either side.
        ("mix-bw", "-s 16K -q 2 -t 8 --verify last --mix write=1,read=1", "write=1,read=1", Some(32)),
        ("mix-bw", "-s 16K -t 8 --verify last --mix read", "read", Some(8)),
    ] {
        let options: Vec<_> = options.split(' ').chain(["-n", "600"]).chain(LOSS).collect();
        let (client, server) = both(command, &LOSS, &options);
        let size = if command == "atomic-bw" { 8 } else { 16_384 };
        for side in [&client, &server] {
            assert_row(side, size, 600);
            assert_eq!(side["rows"][0]["verified"], true, "{side}");
            assert_eq!(side["settings"]["operation"], operation, "{side}");
        }
        let compared_there = client["rows"][0]["compared"].as_u64().unwrap();
        match compared {
            Some(compared) => assert_eq!(compared_there, compared, "{command} {options:?}: {client}"),
            // The warm-up too.
            None => assert!(compared_there > 600, "{command} {options:?}: {client}"),
        }
    }
}

#[test]
fn the_latency_of_every_operation_is_measured_while_packets_are_lost() {
    for (command, options) in [
        ("write-lat", "-s 8 --imm"),
        ("write-lat", "-s 16K --imm --srq"),
        ("send-lat", "-s 8"),
        ("send-lat", "-s 16K --imm"),
        ("send-lat", "-s 16K --srq"),
        ("read-lat", "-s 8"),
        ("read-lat", "-s 16K"),
        ("atomic-lat", "-s 8"),
        ("atomic-lat", "-s 8 -A cmp_and_swap"),
    ] {
        let options: Vec<_> = options.split(' ').chain(["-n", "200"]).chain(LOSS).collect();
        let (client, server) = both(command, &LOSS, &options);
        let size = if options.contains(&"16K") { 16_384 } else { 8 };
        assert_row(&client, size, 200);
        assert_row(&server, size, 200);
        let row = &client["rows"][0];
        let [least, most] = ["min_us", "max_us"].map(|name| row[name].as_f64().unwrap());
        assert!(0.0 < least && least <= most, "{row}");
    }
}

/// Receives of one size are of no use to the next: each size leaves none behind.
#[test]
fn sweeps_over_all_sizes() {
    for (command, options) in [
        ("send-bw", &["-t", "4", "-q", "2"] as &[&str]),
        ("send-bw", &["-q", "3", "-m", "512"]),
        ("send-bw", &["-t", "4", "-q", "2", "--srq"]),
        ("write-bw", &["-t", "4", "--imm"]),
        ("read-bw", &["-t", "4"]),
        ("send-lat", &[]),
        ("mix-bw", &["-t", "4", "-q", "2"]),
        ("mix-bw", &["-t", "4", "-q", "2", "--lanes", "2", "--verify", "last"]),
    ] {
        let (client, server) = both(command, &[], &[&["-a", "-n", "4"], options].concat());
        for side in [client, server] {
            let rows = side["rows"].as_array().unwrap();
            let sizes: Vec<_> = rows.iter().map(|row| row["size_bytes"].as_u64().unwrap()).collect();
            assert_eq!(sizes, (1..=23).map(|shift| 1 << shift).collect::<Vec<u64>>(), "{command}");
            assert!(rows.iter().all(|row| row["verified"] != false), "{command}: {side}");
        }
    }
}

/// As [`super::with_every_write_compared_no_changed_byte_goes_unseen`], on whichever side the bytes arrive.
#[test]
fn a_changed_byte_is_found_wherever_bytes_go() {
    const TO_SERVER: &str = "corrupt=1%,opcode=0xc0|0xc1|0xc2|0xc4";
    const TO_CLIENT: &str = "corrupt=1%,opcode=0xcd|0xce|0xcf|0xd0";
    for (command, options, [server_fault, client_fault]) in [
        ("send-bw", "", [None, Some(TO_SERVER)]),
        ("send-bw", "--srq", [None, Some(TO_SERVER)]),
        ("read-bw", "", [Some(TO_CLIENT), None]),
        ("mix-bw", "", [Some(TO_CLIENT), None]),
        ("mix-bw", "", [None, Some(TO_SERVER)]),
    ] {
        let fault = |fault: Option<&'static str>| fault.map_or(Vec::new(), |text| vec!["--fault", text]);
        let server = Server::start(&[&[command, "--no-icrc"], &fault(server_fault)[..]].concat());
        let all = "-s 64K -t 4 -n 400 --no-icrc --verify every";
        let args: Vec<_> = all.split(' ').chain(options.split(' ').filter(|text| !text.is_empty())).collect();
        let client = [&[command, "127.0.0.1", "-p", &server.port], &args[..], &fault(client_fault)].concat();
        let client = run(&client);
        let server = server.end();
        for output in [client, server] {
            let error = stderr(&output);
            // A header was changed.
            let broke = error.contains("the peer broke a rule") || error.contains("remote invalid request");
            let found = broke || error.contains("hold what") || error.contains("remote access error");
            assert!(output.status.code() == Some(1) && found, "{command} {options}: {error}");
        }
    }
}

/// A server that leaves an extension out says which, and both sides say what to do.
#[test]
fn a_side_without_the_extension_is_told_its_name() {
    for (command, options, offered, name) in [
        ("write-bw", &["--imm"] as &[&str], "none", "rnr"),
        ("send-bw", &[], "read,rnr", "send"),
        ("send-lat", &[], "send", "rnr"),
        ("read-bw", &[], "none", "read"),
        ("read-lat", &[], "send,atomic", "read"),
        ("atomic-bw", &[], "none", "atomic"),
        ("atomic-lat", &["-A", "CMP_AND_SWAP"], "read", "atomic"),
        ("mix-bw", &[], "send,rnr", "read"),
    ] {
        let server = Server::start(&[command, "--extensions", offered]);
        let client = run(&[&[command, "127.0.0.1", "-p", &server.port], options].concat());
        for output in [client, server.end()] {
            let error = stderr(&output);
            let named = format!("needs the extension {name} of MRC, which --extensions ");
            assert!(output.status.code() == Some(1) && error.contains(&named), "{command}: {error}");
            assert!(error.contains("start it without that option"), "{command}: {error}");
        }
    }
    // Plain writes need none.
    let (client, _) = both("write-bw", &["--extensions", "none"], &["-n", "20"]);
    assert_row(&client, 65_536, 20);
}

#[test]
fn another_benchmark_is_refused_by_name() {
    let server = Server::start(&["read-bw"]);
    let client = run(&["send-bw", "127.0.0.1", "-p", &server.port]);
    let reason = "the server runs read-bw, the client send-bw";
    for output in [client, server.end()] {
        assert!(output.status.code() == Some(1) && stderr(&output).contains(reason), "{}", stderr(&output));
    }
}
