//! `--fallback shift`: two NICs on each side, and queue pairs that move whole requests from one to the other.

use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};

use super::setup::framed;
use super::support::{end_of as end, run, stderr, stdout, temp};
use super::{PATIENCE, Server, both, client_of, end_of, object, signal};

/// Both sides' NICs.
const NICS: [&str; 6] = ["--local", "127.0.0.1,127.0.0.2", "--standby", "1", "--fallback", "shift"];

/// Retries end after 0.6 s, in which a busy machine runs both sides.
const FEW_RETRIES: [&str; 2] = ["--exponential-retries", "4"];

fn counter(side: &Json, name: &str) -> u64 {
    side["counters"]["fallback"][name].as_u64().unwrap_or_default()
}

#[test]
fn every_benchmark_runs_over_two_nics() {
    for (command, options) in [
        ("write-bw", "-s 16K -q 3"),
        ("write-bw", "-s 16K --imm"),
        ("write-bw", "-a -n 4 -t 4"),
        ("send-bw", "-s 16K -q 2 --verify every"),
        ("send-bw", "-a -n 4 -t 4 -q 2"),
        ("read-bw", "-s 16K"),
        ("atomic-bw", ""),
        ("mix-bw", "-s 16K -q 2"),
        ("write-lat", "-s 8"),
        ("write-lat", "-s 16K"),
        ("send-lat", "-s 8"),
        ("read-lat", "-s 8"),
        ("atomic-lat", ""),
    ] {
        let options: Vec<_> = options.split(' ').filter(|text| !text.is_empty()).collect();
        let few: &[&str] = if options.contains(&"-n") { &[] } else { &["-n", "300"] };
        let (client, server) = both(command, &NICS, &[&NICS[..], &options, few].concat());
        for side in [&client, &server] {
            let settings = &side["settings"];
            assert_eq!(
                (&settings["fallback"], &settings["standby"]),
                (&json!("shift"), &json!([1])),
                "{side}"
            );
            assert_eq!(settings["planes"], 2);
            let rows = side["rows"].as_array().unwrap();
            assert!(!rows.is_empty() && rows.iter().all(|row| row["verified"] != false), "{command}: {side}");
            assert_eq!((counter(side, "switches"), counter(side, "moves")), (0, 0), "{command}: {side}");
        }
    }
}

/// The first NIC of either side stops sending or receiving in the middle, without a sign. Every message is compared.
#[test]
fn messages_survive_a_nic_that_falls_silent() {
    // After so many packets with payload, or so many without.
    const PAYLOAD: [&str; 2] = ["blackhole,port=0,after=900", "blackhole,port=0,after=900,dir=rx"];
    const OTHERS: [&str; 2] = ["blackhole,port=0,after=30", "blackhole,port=0,after=30,dir=rx"];
    for (command, options, payload_to_server) in [
        ("write-bw", "-q 2", true),
        ("write-bw", "--imm", true),
        ("send-bw", "-q 2", true),
        ("read-bw", "-q 2", false),
        ("mix-bw", "--mix write=1,write-imm=1,send=1,send-imm=1", true),
    ] {
        let (sends, receives) = ([PAYLOAD[0], OTHERS[1]], [OTHERS[0], PAYLOAD[1]]);
        let [at_client, at_server] = if payload_to_server { [sends, receives] } else { [receives, sends] };
        let faults = at_client.map(|fault| (Some(fault), None)).into_iter();
        for (at_client, at_server) in faults.chain(at_server.map(|fault| (None, Some(fault)))) {
            let of = |fault: Option<&'static str>| fault.map_or(Vec::new(), |fault| vec!["--fault", fault]);
            let all = "-s 16K -t 16 -n 1200 --verify every";
            let options: Vec<_> = all.split(' ').chain(options.split(' ')).collect();
            let server = [&NICS[..], &FEW_RETRIES, &of(at_server)].concat();
            let client = [&NICS[..], &FEW_RETRIES, &options, &of(at_client)].concat();
            let (client, server) = both(command, &server, &client);
            let what = format!("{command} {options:?} {at_client:?} {at_server:?}: {client} {server}");
            assert_eq!(client["rows"][0]["verified"], true, "{what}");
            let switches = |side| counter(side, "switches") + counter(side, "switches_by_peer");
            assert!(switches(&client) > 0 && switches(&server) > 0, "{what}");
        }
    }
}

/// What was in flight may have been executed, and must not be executed twice.
#[test]
fn atomic_operations_do_not_survive() {
    for (command, options) in
        [("atomic-bw", &["-t", "16"] as &[&str]), ("mix-bw", &["-s", "4K", "--mix", "read=1,write=1"])]
    {
        let server = Server::start(&[&[command], &NICS[..], &FEW_RETRIES].concat());
        let fault = ["--fault", "blackhole,port=0,after=900", "-n", "1000000"];
        let to = [command, "127.0.0.1", "-p", &server.port];
        let client = run(&[&to, &NICS[..], &FEW_RETRIES, &fault, options].concat());
        let error = stderr(&client);
        assert_eq!(client.status.code(), Some(1), "{error}");
        assert!(error.contains("must not be sent again"), "{command}: {error}");
        assert_eq!(server.end().status.code(), Some(1));
    }
}

#[test]
fn both_sides_need_the_same_nics() {
    let seamless = ["--local", "127.0.0.1,127.0.0.2", "--standby", "1"];
    let other = ["--local", "127.0.0.1,127.0.0.2", "--standby", "0", "--fallback", "shift"];
    for (of_server, of_client, part) in [
        (&seamless[..], &NICS[..], "start the server with --fallback shift --standby 1"),
        (&NICS, &seamless, "give it to both sides, or to none"),
        (
            &NICS,
            &other,
            "the client has --fallback shift --standby 0, the server --fallback shift --standby 1",
        ),
    ] {
        let server = Server::start(&[&["send-bw"], of_server].concat());
        let client = run(&[&["send-bw", "127.0.0.1", "-p", &server.port], of_client].concat());
        for output in [client, server.end()] {
            let error = stderr(&output);
            assert!(output.status.code() == Some(1) && error.contains(part), "{error}");
        }
    }
}

#[test]
fn what_the_mode_lacks_is_told() {
    let shift = ["--local", "127.0.0.1,127.0.0.2", "--fallback", "shift"];
    let with_standby = ["--standby", "1"];
    for (options, part) in [
        (&[&shift[..]] as &[&[&str]], "--fallback shift: needs the planes of the second NIC"),
        (&[&shift, &with_standby, &["--srq"]], "--srq"),
        (&[&shift, &with_standby, &["--lanes", "2", "-q", "2"]], "--lanes"),
        (&[&shift, &with_standby, &["--wait", "poll"]], "--wait poll"),
        (&[&shift, &["--standby", "0,1"]], "--standby"),
        (&[&["--fallback", "soft"]], "[possible values: seamless, shift]"),
    ] {
        let output = run(&[&["send-bw", "127.0.0.1", "-p", "1"], &options.concat()[..]].concat());
        let error = stderr(&output);
        assert!(output.status.code() == Some(2) && error.contains(part), "{error}");
    }
    let config = temp("shift.toml");
    std::fs::write(&config, "[path]\nfallback = \"shift\"\n").unwrap();
    let output = run(&["write-bw", "127.0.0.1", "--config", config.to_str().unwrap()]);
    let error = stderr(&output);
    assert!(
        error.contains("shift.toml") && error.contains("line 2") && error.contains("--standby"),
        "{error}"
    );
}

/// `spindrift ctl` moves them while they are verified.
#[test]
fn an_operator_moves_them_to_the_second_nic_and_back() {
    let dir = temp("shift-ctl");
    let folder = ["--control-dir", dir.to_str().unwrap()];
    let server = Server::start(&[&["send-bw", "--json"], &NICS[..], &folder].concat());
    let port = server.port.clone();
    let client = thread::spawn({
        let folder = folder.map(str::to_owned);
        move || {
            let folder = folder.each_ref().map(String::as_str);
            let to = ["send-bw", "127.0.0.1", "--json", "-p", &port];
            run(&[&to, &NICS[..], &folder, &["-q", "2", "-s", "4K", "-D", "5s", "--verify", "every"]]
                .concat())
        }
    });
    let ctl = |args: &[&str]| run(&[&["ctl"], args, &folder].concat());
    let wait_for = |serving: &Json| {
        let give_up = Instant::now() + PATIENCE;
        loop {
            let output = ctl(&["status", "--json"]);
            let status: Json = serde_json::from_slice(&output.stdout).unwrap();
            let sides = status["processes"].as_array().unwrap().clone();
            let qps: Vec<_> = sides.iter().flat_map(|side| side["queue_pairs"].as_array().unwrap()).collect();
            let there = |qp: &&Json| &qp["roles"]["serving"] == serving && qp["shift"]["prepared"] == true;
            if qps.len() == 4 && qps.iter().all(there) {
                return;
            }
            assert!(Instant::now() < give_up, "{status}");
            thread::sleep(Duration::from_millis(10));
        }
    };
    wait_for(&json!([0]));
    let moved = ctl(&["prefer", "standby"]);
    assert!(moved.status.success() && stdout(&moved).contains("2 queue pairs"), "{}", stdout(&moved));
    wait_for(&json!([1]));
    let shown = stdout(&ctl(&["status"]));
    assert!(shown.contains("in use 1, preferred standby; shift fallback, prepared, 1 move"), "{shown}");
    // Both NICs are counted, by the numbers of the run's planes. The second one sends now.
    let counted: Json = serde_json::from_slice(&ctl(&["counters", "--json"]).stdout).unwrap();
    let sides = counted["processes"].as_array().unwrap();
    let planes = |side: &Json| side["planes"].as_array().unwrap().clone();
    let sender =
        sides.iter().find(|side| side["program"].as_str().unwrap().contains("with the server")).unwrap();
    let sent = |plane: &Json| plane["counters"]["tx_bytes"].as_u64() > Some(0);
    let found: Vec<_> = planes(sender).iter().map(|plane| (plane["plane"].clone(), sent(plane))).collect();
    assert_eq!(found, [(json!(0), true), (json!(1), true)], "{counted}");
    assert!(planes(sender).iter().all(|plane| plane["evs"]["good"].as_u64() > Some(0)), "{counted}");
    ctl(&["prefer", "primary"]);
    wait_for(&json!([0]));
    let (client, server) = (object(&client.join().unwrap()), object(&server.end()));
    for side in [&client, &server] {
        assert_eq!((&side["rows"][0]["verified"], counter(side, "moves")), (&json!(true), 4), "{side}");
        assert_eq!(counter(side, "switches"), 0, "{side}");
    }
    let _ = std::fs::remove_dir_all(dir);
}

/// The other side ends with an error, and the server takes the next client.
#[test]
fn a_side_that_is_killed_ends_the_other() {
    let mut server = Server::start(&[&["write-bw", "--keep-serving"], &NICS[..]].concat());
    for _ in 0..2 {
        let client = client_of(&server, &NICS);
        super::wait_for_run(&server);
        signal(&client, "-KILL");
        end_of(client);
        server.wait_for_next();
    }
    let last =
        run(&[&["write-bw", "127.0.0.1", "-n", "20", "--json", "-p", &server.port], &NICS[..]].concat());
    assert_eq!(object(&last)["rows"][0]["verified"], true);
    server.wait_for_next();
    let client = client_of(&server, &NICS);
    super::wait_for_run(&server);
    signal(&server.process, "-KILL");
    let error = stderr(&end(client, PATIENCE, "the client"));
    // In the run, or while it is set up.
    assert!(error.contains("closed the connection") || error.contains("is the peer running"), "{error}");
    let _ = server.end();
}

/// Nobody else can give a run's queue pairs other ones to connect to.
#[test]
fn a_stranger_is_no_key_value_store() {
    use std::io::{Read as _, Write as _};
    let server = Server::start(&[&["write-bw"], &NICS[..]].concat());
    let mut stranger = TcpStream::connect(format!("127.0.0.1:{}", server.port)).unwrap();
    stranger.set_read_timeout(Some(PATIENCE)).unwrap();
    let greeting = json!({ "tool": "spindrift-benchmark", "version": super::VERSION, "store": 7 });
    stranger.write_all(&framed(&json!({ "type": "app", "app": greeting }))).unwrap();
    let mut told = Vec::new();
    stranger.read_to_end(&mut told).unwrap();
    assert!(String::from_utf8_lossy(&told).contains("no client has announced"), "{told:?}");
    let client =
        run(&[&["write-bw", "127.0.0.1", "-n", "20", "--json", "-p", &server.port], &NICS[..]].concat());
    assert_eq!(object(&client)["rows"][0]["verified"], true);
    assert!(server.end().status.success());
}
