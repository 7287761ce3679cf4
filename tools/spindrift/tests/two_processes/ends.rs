//! One side ends, in any way and at any moment: the other one ends soon after, with the reason and exit status 1.

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::support::pauses::Pauses;
use super::support::{Running, ending_signals, run, spindrift, stderr, stdout, temp};
use super::{Server, end_of, free_port, signal, wait_for_run};

/// A machine that keeps nobody waiting for longer has no part in how soon a side ends.
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Client,
    Server,
}

/// A run of one command that lasts for long: server and client, and whoever ends it.
fn long_run(command: &str, wait: &str, more: &[&str]) -> (Server, Running) {
    let server = Server::start(&[&[command, "--wait", wait], more].concat());
    let amount = if command.ends_with("-bw") { ["-D", "10m"] } else { ["-n", "1000000000"] };
    let mut client = spindrift();
    client.args([command, "127.0.0.1", "-p", &server.port, "--wait", wait]).args(amount).args(more);
    let client = Running::start(client.stdout(Stdio::piped()).stderr(Stdio::piped()));
    wait_for_run(&server);
    (server, client)
}

/// Ends one side by a signal, and judges how both end.
fn one_ends(command: &str, wait: &str, side: Side, name: &str) {
    let what = format!("{command} --wait {wait}, {side:?} gets {name}");
    let (server, client) = long_run(command, wait, &[]);
    let (pauses, start) = (Pauses::watch(), Instant::now());
    signal(if side == Side::Client { &client } else { &server.process }, name);
    let (client, server) = (end_of(client), server.end());
    let took = start.elapsed();
    if pauses.none_above(PAUSE) {
        assert!(took < Duration::from_secs(1), "{what}: both have ended after {took:?}");
    }
    let (ended, other, peer) = match side {
        Side::Client => (&client, &server, "client"),
        Side::Server => (&server, &client, "server"),
    };
    let status = if name == "-KILL" { None } else { Some(130) };
    assert_eq!(ended.status.code(), status, "{what}: {}", stderr(ended));
    let how = if name == "-KILL" { "closed the connection (it ended" } else { "gave up: interrupted" };
    let error = stderr(other);
    let told = error.lines().last().unwrap_or_default();
    assert_eq!(other.status.code(), Some(1), "{what}: {error}");
    assert!(told.starts_with(&format!("spindrift: the {peer} 127.0.0.1")), "{what}: {error}");
    // The signal may come before the server's first word.
    let early =
        side == Side::Server && name == "-KILL" && told.contains("closed the connection without a message");
    assert!(told.contains(how) || early, "{what}: {error}");
}

fn each_side_and_signal(command: &str, wait: &str) {
    for side in [Side::Client, Side::Server] {
        for name in ending_signals().into_iter().chain(["-KILL"]) {
            one_ends(command, wait, side, name);
        }
    }
}

#[test]
fn the_other_side_of_write_bw_ends_too() {
    each_side_and_signal("write-bw", "spin");
}

#[test]
fn the_other_side_of_write_bw_that_sleeps_ends_too() {
    each_side_and_signal("write-bw", "poll");
}

#[test]
fn the_other_side_of_write_lat_ends_too() {
    each_side_and_signal("write-lat", "spin");
}

#[test]
fn the_other_side_of_write_lat_that_sleeps_ends_too() {
    each_side_and_signal("write-lat", "poll");
}

#[test]
fn the_other_side_of_other_operations_ends_too() {
    for command in ["send-bw", "send-lat", "read-bw", "read-lat", "atomic-bw"] {
        for side in [Side::Client, Side::Server] {
            for name in ["-INT", "-KILL"] {
                one_ends(command, "poll", side, name);
            }
        }
    }
}

/// The connection stays, and so does the kernel that acknowledges its bytes.
#[test]
fn a_side_that_stands_still_is_waited_for_as_long_as_queue_pairs_wait() {
    let config = temp("ends.toml");
    std::fs::write(&config, "[setup]\ntimeout = \"600ms\"\n").unwrap();
    // A budget of 0.2 s.
    let more = ["--config", config.to_str().unwrap(), "--exponential-retries", "2"];
    for (command, side) in [
        ("write-bw", Side::Client),
        ("write-lat", Side::Client),
        ("write-bw", Side::Server),
        ("write-lat", Side::Server),
    ] {
        let (server, client) = long_run(command, "poll", &more);
        // So that the set-up is over, as a rule.
        std::thread::sleep(Duration::from_millis(200));
        let start = Instant::now();
        let (stopped, other) = match side {
            Side::Client => {
                signal(&client, "-STOP");
                let other = server.end();
                signal(&client, "-CONT");
                (end_of(client), other)
            }
            Side::Server => {
                signal(&server.process, "-STOP");
                let other = end_of(client);
                signal(&server.process, "-CONT");
                (server.end(), other)
            }
        };
        let (what, error) = (format!("{command}: {side:?} stands still"), stderr(&other));
        assert_eq!((other.status.code(), stopped.status.code()), (Some(1), Some(1)), "{what}: {error}");
        let silence = error.contains("sent nothing for 600ms") || error.contains("not answer within 600ms");
        let retries = error.contains("transport retry counter exceeded");
        assert!(silence || retries, "{what}: {error}");
        assert!(retries || start.elapsed() >= Duration::from_millis(500), "{what}: {error}");
        // A server that only receives has nothing to retry.
        assert!(silence || (command, side) != ("write-bw", Side::Client), "{what}: {error}");
    }
}

#[test]
fn data_that_never_arrives_ends_both_sides() {
    let few = ["--exponential-retries", "0", "--linear-retries", "1"];
    for command in ["write-bw", "write-lat"] {
        for side in [Side::Client, Side::Server] {
            let of = |at: Side| if at == side { &["--fault", "blackhole"] as &[&str] } else { &[] };
            let server = Server::start(&[&[command], &few as &[&str], of(Side::Server)].concat());
            let client = run(&[
                &[command, "127.0.0.1", "-p", &server.port, "-n", "100"],
                &few as &[&str],
                of(Side::Client),
            ]
            .concat());
            let server = server.end();
            for (output, peer) in [(&client, "server"), (&server, "client")] {
                let error = stderr(output);
                assert_eq!(output.status.code(), Some(1), "{command}, {side:?}: {error}");
                assert!(error.contains("transport retry counter exceeded"), "{command}, {side:?}: {error}");
                assert!(error.contains(&format!("the {peer} 127.0.0.1")), "{command}, {side:?}: {error}");
            }
        }
    }
}

/// Clients that are killed at any moment, before, during and after the set-up, and one that is not.
#[test]
fn a_server_outlives_clients_that_end_at_any_moment() {
    for command in ["write-bw", "write-lat"] {
        let server = Server::start(&[command, "--keep-serving", "--json"]);
        for step in 0..12 {
            let mut client = spindrift();
            client.args([command, "127.0.0.1", "-p", &server.port, "-n", "2000"]);
            let client = Running::start(client.stdout(Stdio::null()).stderr(Stdio::null()));
            std::thread::sleep(Duration::from_millis(step * 4));
            signal(&client, if step % 2 == 0 { "-KILL" } else { "-INT" });
            end_of(client);
        }
        let client = run(&[command, "127.0.0.1", "-n", "20", "-p", &server.port]);
        assert!(client.status.success(), "{}", stderr(&client));
        signal(&server.process, "-INT");
        let server = server.end();
        assert_eq!(server.status.code(), Some(130), "{}", stderr(&server));
        // Only those that came so far as to send a plan had a run.
        let runs = stdout(&server);
        assert!(runs.lines().count() <= 14, "{runs}");
        assert!(runs.lines().any(|run| run.contains("\"error\":null")), "{runs}");
    }
}

/// Nothing that waits for the peer keeps Ctrl-C waiting: here one that never says a word.
#[test]
fn ctrl_c_ends_a_client_that_waits_for_a_silent_server() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port().to_string();
    let mut client = spindrift();
    client.args(["write-bw", "127.0.0.1", "-p", &port]);
    let client = Running::start(client.stdout(Stdio::piped()).stderr(Stdio::piped()));
    let (connection, _) = silent.accept().unwrap();
    signal(&client, "-INT");
    let client = end_of(client);
    assert_eq!(client.status.code(), Some(130), "{}", stderr(&client));
    drop(connection);
}

/// A command that was started under `nohup` outlives its terminal, but not Ctrl-C.
#[test]
fn a_hang_up_that_is_ignored_stays_so() {
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' HUP; exec \"$0\" write-bw -p \"$1\"", env!("CARGO_BIN_EXE_spindrift")]);
    let port = free_port();
    let mut server = Running::start(command.arg(&port).stderr(Stdio::piped()));
    let mut errors = BufReader::new(server.child().stderr.take().unwrap());
    errors.read_line(&mut String::new()).unwrap();
    signal(&server, "-HUP");
    let client = run(&["write-bw", "127.0.0.1", "-n", "20", "-p", &port]);
    assert!(client.status.success(), "{}", stderr(&client));
    assert!(end_of(server).status.success());
}

/// Without iCRCs, headers that were changed on the way look like a peer that breaks rules. Whoever sees it says which one, and its peer
/// repeats it; in one process it is told behind the error.
#[test]
fn a_rule_that_the_peer_broke_is_told_on_both_sides() {
    let config = temp("no-icrc.toml");
    std::fs::write(&config, "[transport]\nicrc = false\n").unwrap();
    let more = ["-s", "8", "--config", config.to_str().unwrap()];
    let client = ["-n", "1000000", "--fault", "corrupt=10%,opcode=write"];
    let server = Server::start(&[&["write-bw"], &more[..]].concat());
    let args = [&["write-bw", "127.0.0.1", "-p", &server.port], &more[..], &client].concat();
    let (client_says, server_says) = (run(&args), server.end());
    let alone = run(&[&["loopback", "--port", "udp"], &more[..], &client].concat());
    for output in [&client_says, &server_says, &alone] {
        let error = stderr(output);
        let told = error.lines().last().unwrap_or_default();
        assert_eq!(output.status.code(), Some(1), "{error}");
        let rule = told.split_once("the peer broke a rule: ").unwrap_or_else(|| panic!("{error}")).1;
        assert!(rule.starts_with("its ") && rule.contains("(PSN 0x"), "{error}");
    }
    assert!(stderr(&client_says).contains("the server 127.0.0.1:"), "{}", stderr(&client_says));
}
