//! Connections that are no clients, clients that come during a run, and servers that are none.

use std::io::{BufRead as _, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::thread;

use super::support::{Running, run, spindrift, stderr, stdout, temp};
use super::{PATIENCE, Server, client_of, end_of, free_port, object, signal, wait_for_run};

fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(format!("127.0.0.1:{}", server.port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// All that a connection is told until it is closed.
fn told(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// They hold all places and let none go; a client has one all the same.
#[test]
fn silent_connections_take_no_place_from_a_client() {
    let server = Server::start(&["write-bw"]);
    let mut silent: Vec<_> = (0..200).map(|_| connect(&server)).collect();
    // Those that are too many were told so, the oldest first.
    let oldest = told(&mut silent[0]);
    assert!(oldest.contains("busy: 64 newer connections"), "{oldest}");
    let client = run(&["write-bw", "127.0.0.1", "-n", "20", "--json", "-p", &server.port]);
    assert_eq!(object(&client)["rows"][0]["verified"], true);
    let server = server.end();
    let error = stderr(&server);
    assert!(server.status.success(), "{error}");
    assert!(error.contains("64 newer connections have yet to send"), "{error}");
    assert!(error.contains("are not reported"), "{error}");
}

#[test]
fn silent_connections_end_at_the_limit() {
    let config = temp("short-timeout.toml");
    std::fs::write(&config, "[setup]\ntimeout = \"1s\"\n").unwrap();
    let server = Server::start(&["write-bw", "--config", config.to_str().unwrap()]);
    let mut silent = [(); 2].map(|()| connect(&server));
    silent[1].write_all(&[0, 0, 0]).unwrap();
    for stream in &mut silent {
        assert_eq!(told(stream), "");
    }
    signal(&server.process, "-INT");
    let error = stderr(&server.end());
    assert_eq!(error.matches("no complete first message within 1s").count(), 2, "{error}");
}

/// No plan is as long as a message may be.
#[test]
fn a_first_message_is_short() {
    let server = Server::start(&["write-bw"]);
    let mut stranger = connect(&server);
    stranger.write_all(&(20_u32 << 10).to_be_bytes()).unwrap();
    assert!(told(&mut stranger).contains("at most 16384"));
}

/// One that serves one client only tells others at once; one that keeps serving lets them wait, but not for ever.
#[test]
fn a_client_that_comes_during_a_run_is_told_that_the_server_is_busy() {
    let config = temp("busy.toml");
    std::fs::write(&config, "[setup]\ntimeout = \"2s\"\n").unwrap();
    let modes: [(&[&str], &str); 2] = [
        (&[], "ends after it; start another server with another -p, or one with --keep-serving"),
        (&["--keep-serving", "--config", config.to_str().unwrap()], "for 1s and longer; try again later"),
    ];
    for (args, reason) in modes {
        let server = Server::start(&[&["write-bw"], args].concat());
        let first = client_of(&server, &[]);
        wait_for_run(&server);
        let second = run(&["write-bw", "127.0.0.1", "-n", "20", "-p", &server.port]);
        let error = stderr(&second);
        assert_eq!(second.status.code(), Some(1), "{error}");
        assert!(error.contains("refused: busy: the server runs with the client 127.0.0.1:"), "{error}");
        assert!(error.contains(reason), "{error}");
        // Strangers are turned away meanwhile, too.
        let mut stranger = connect(&server);
        stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        assert!(told(&mut stranger).contains("HTTP"));
        signal(&first, "-INT");
        assert_eq!(end_of(first).status.code(), Some(130));
        signal(&server.process, "-INT");
        let error = stderr(&server.end());
        assert!(error.contains("refused the client 127.0.0.1:") && error.contains(reason), "{error}");
    }
}

/// A run that ends soon enough is waited for, even by a client that has less patience than the server.
#[test]
fn a_client_waits_for_a_server_that_keeps_serving() {
    let config = temp("impatient.toml");
    std::fs::write(&config, "[setup]\ntimeout = \"1s\"\n").unwrap();
    let server = Server::start(&["write-bw", "--keep-serving"]);
    let first = client_of(&server, &[]);
    wait_for_run(&server);
    let mut command = spindrift();
    command.args(["write-bw", "127.0.0.1", "-n", "20", "--json", "-p", &server.port]);
    command.args(["--config", config.to_str().unwrap()]);
    let second = Running::start(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
    // Longer than the second one would wait for a server that says nothing.
    thread::sleep(std::time::Duration::from_millis(1500));
    signal(&first, "-INT");
    end_of(first);
    let second = end_of(second);
    assert_eq!(object(&second)["rows"][0]["verified"], true, "{}", stderr(&second));
}

const OPENINGS: [(&[u8], &str); 7] = [
    (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "speaks HTTP"),
    (b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n", "speaks SSH"),
    (&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3], "speaks TLS"),
    (b"0000:0048:00b8b6:6d0bd8:00000000:0000000000000000", "speaks perftest"),
    (b"6.20\0\0\0\0\0\0\0\0\0\0\0\0", "speaks perftest"),
    (b"abcdefghijklmnopqrstuvwxyz234567abcd\0", "speaks iperf3"),
    (b"EHLO localhost\r\n", "speaks an unknown protocol (it begins with \"EHLO localhost\\r\\n\")"),
];

#[test]
fn a_server_says_what_a_stranger_speaks() {
    let server = Server::start(&["write-bw"]);
    for (opening, speaks) in OPENINGS {
        let mut stranger = connect(&server);
        stranger.write_all(opening).unwrap();
        let told = told(&mut stranger);
        let name = speaks.trim_start_matches("speaks ").split(" (").next().unwrap();
        assert!(told.contains("refuse") && told.contains(name), "{speaks}: {told}");
    }
    signal(&server.process, "-INT");
    let error = stderr(&server.end());
    for (_, speaks) in OPENINGS {
        assert!(error.contains(speaks), "{speaks}: {error}");
    }
    assert_eq!(error.matches("not the set-up protocol of Spindrift").count(), OPENINGS.len(), "{error}");
    assert!(!error.contains("fewer queue pairs"), "{error}");
}

/// What a client is told by what is no server of ours, which may take what the client says first, or close at once.
#[test]
fn a_client_says_what_a_server_speaks() {
    let servers: [(&[u8], &str); 7] = [
        (b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n", "speaks HTTP"),
        (b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n", "speaks SSH"),
        (&[0x15, 3, 3, 0, 2, 2, 70], "speaks TLS"),
        (b"6.20\0\0\0\0\0\0\0\0\0\0\0\0", "speaks perftest"),
        (&[9, 0xfe, 0, 0, 0, 0x8d, 0, 0, 0, 0], "speaks iperf3"),
        (b"220 mail.example ESMTP\r\n", "speaks an unknown protocol (it begins with \"220 mail.example\")"),
        (b"", "closed the connection without a message: it is not a Spindrift server"),
    ];
    for (answer, says) in servers {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port().to_string();
        let other = thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            // All of the plan, so that the answer is not lost in a reset.
            let mut plan = std::io::BufReader::new(client.try_clone().unwrap());
            let mut end = Vec::new();
            plan.read_until(b']', &mut end).unwrap();
            plan.read_until(b'}', &mut end).unwrap();
            plan.read_until(b'}', &mut end).unwrap();
            client.write_all(answer).unwrap();
        });
        let client = run(&["write-bw", "127.0.0.1", "-n", "20", "-p", &port]);
        other.join().unwrap();
        let error = stderr(&client);
        assert_eq!((client.status.code(), stdout(&client)), (Some(1), String::new()), "{error}");
        assert!(error.contains(says) && error.contains(&format!("127.0.0.1:{port}")), "{says}: {error}");
        assert!(!error.contains("closed the connection (it ended") && !error.contains("fewer"), "{error}");
    }
    // Nobody at all, and somebody who says nothing.
    let error = stderr(&run(&["write-lat", "127.0.0.1", "-p", &free_port()]));
    assert!(
        error.contains("nothing listens at 127.0.0.1:") && error.contains("`spindrift write-lat`"),
        "{error}"
    );
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port().to_string();
    let config = temp("short.toml");
    std::fs::write(&config, "[setup]\ntimeout = \"300ms\"\n").unwrap();
    let error = stderr(&run(&["write-bw", "127.0.0.1", "-p", &port, "--config", config.to_str().unwrap()]));
    assert!(error.contains("for 300ms: it is not a Spindrift server"), "{error}");
}
