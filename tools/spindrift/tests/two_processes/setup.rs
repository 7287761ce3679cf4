//! The set-up exchange: strangers, other versions, sides that do not fit, and connections that say nothing.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Instant;

use serde_json::Value as Json;

use super::support::{self, run, stderr};
use super::{PATIENCE, Server, VERSION, both, object};

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
    let server = server.end();
    drop((silent, slow));
    let error = stderr(&server);
    assert_eq!(object(&server)["rows"][0]["verified"], true);
    assert_eq!(error.matches("is not a client").count(), 3, "{error}");
}

/// A message of the set-up exchange.
pub(super) fn framed(message: &Json) -> Vec<u8> {
    let body = message.to_string();
    [&(body.len() as u32).to_be_bytes()[..], body.as_bytes()].concat()
}

/// A client of another version, or one that is broken: the server's log says who and why, and the client learns it.
#[test]
fn a_malformed_first_message_is_explained_to_both_sides() {
    let plan = serde_json::json!({
        "tool": "spindrift-benchmark", "version": VERSION, "kind": "write-bw", "queue_pairs": 1, "tx_depth": 1,
        "sizes": [64], "rounds": 0, "seed": 1, "operation": "write", "outs": 16, "srq": false,
        "planes": {"port": "udp", "addresses": ["127.0.0.1"], "connection": ["127.0.0.1:1", "127.0.0.1:2"]}
    });
    let app = |field: &str, value: Json| {
        let mut plan = plan.clone();
        plan[field] = value;
        serde_json::json!({ "type": "app", "app": plan })
    };
    let cases = [
        (
            app("version", 1.into()),
            "spindrift-benchmark version 8, the client \"spindrift-benchmark\" version 1",
        ),
        (app("version", Json::Null), "version null"),
        (app("tool", "perf\u{1b}test".into()), "the client \"perf"),
        (app("kind", "copy-bw".into()), "there is no benchmark copy-bw"),
        (app("operation", "push".into()), "the plan is malformed: `push` has no weight"),
        (app("operation", "write=1,push=1".into()), "there is no operation `push`"),
        (app("queue_pairs", (-1).into()), "the plan's queue_pairs: -1; 1 to 1024 can be used"),
        (app("sizes", serde_json::json!([64, 1_u64 << 32])), "the plan's sizes: 4294967296; 1 to 4294967295"),
        (app("rounds", u64::MAX.into()), "the plan's rounds: 18446744073709551615; 0 to "),
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

/// A server of an older version refuses; the client says which versions there are.
#[test]
fn an_older_server_is_explained() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let old = std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut length = [0; 4];
        client.read_exact(&mut length).unwrap();
        let mut plan = vec![0; u32::from_be_bytes(length) as usize];
        client.read_exact(&mut plan).unwrap();
        let reason = "the server speaks spindrift-benchmark version 1, the client version 6";
        let refusal = serde_json::json!({ "type": "refuse", "reason": reason });
        client.write_all(&framed(&serde_json::json!({ "type": "app", "app": refusal }))).unwrap();
        serde_json::from_slice::<Json>(&plan).unwrap()
    });
    let client = run(&["write-bw", "127.0.0.1", "-n", "20", "-p", &port, "--with-pump"]);
    let error = stderr(&client);
    assert_eq!(client.status.code(), Some(1), "{error}");
    assert!(error.contains("refused: the server speaks spindrift-benchmark version 1"), "{error}");
    let plan = old.join().unwrap();
    assert_eq!((&plan["app"]["version"], &plan["app"]["with_pump"]), (&VERSION.into(), &true.into()));
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

/// One frame of the exchange.
fn read_frame(stream: &mut TcpStream) -> Vec<u8> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).unwrap();
    let mut frame = length.to_vec();
    frame.resize(4 + u32::from_be_bytes(length) as usize, 0);
    stream.read_exact(&mut frame[4..]).unwrap();
    frame
}

/// A client whose ports take longer to open than the time between two signs of life: the next message that it takes is an offer, and a
/// sign of life in its place was "application data out of turn".
#[test]
fn a_client_may_take_its_time_to_open_its_ports() {
    let server = Server::start(&["write-bw"]);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let server_address = format!("127.0.0.1:{}", server.port);
    let relay = std::thread::spawn(move || {
        let mut client = listener.accept().unwrap().0;
        let mut server = TcpStream::connect(server_address).unwrap();
        let (mut back, mut answers) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        let answers = std::thread::spawn(move || std::io::copy(&mut answers, &mut back));
        server.write_all(&read_frame(&mut client)).unwrap();
        let ready = loop {
            let frame = read_frame(&mut client);
            if String::from_utf8_lossy(&frame).contains("\"ready\"") {
                break frame;
            }
            server.write_all(&frame).unwrap();
        };
        // The client has sent its "ready" and its offer follows; the server sees neither for so long.
        std::thread::sleep(std::time::Duration::from_millis(1200));
        server.write_all(&ready).unwrap();
        let _ = std::io::copy(&mut client, &mut server);
        let _ = server.shutdown(Shutdown::Write);
        let _ = answers.join();
    });
    let client = run(&["write-bw", "127.0.0.1", "-n", "20", "--json", "-p", &port]);
    let server = server.end();
    assert_eq!(object(&client)["rows"][0]["verified"], true, "{}", stderr(&server));
    assert!(server.status.success(), "{}", stderr(&server));
    relay.join().unwrap();
}
