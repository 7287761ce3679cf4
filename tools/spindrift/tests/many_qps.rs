//! `write-bw` with many queue pairs between two processes. All of them at once (`-q 1024`) take tens of seconds on a
//! machine with other work, so fewer are used here.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod support;

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Output, Stdio};
use std::time::Duration;

use serde_json::Value as Json;
use support::{end_of, spindrift, stderr, stdout};

/// Longer than any of this takes; only a hang meets it.
const PATIENCE: Duration = Duration::from_mins(2);

/// A server that ends with the test, also when that fails.
struct Server {
    child: Option<Child>,
    errors: BufReader<ChildStderr>,
    port: String,
}

impl Server {
    /// Waits until it listens; the kernel chooses the port.
    fn start() -> Self {
        let mut command = spindrift();
        command.args(["write-bw", "--json", "-p", &free_port()]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let errors = BufReader::new(child.stderr.take().unwrap());
        let mut server = Self { child: Some(child), errors, port: String::new() };
        let mut line = String::new();
        server.errors.read_line(&mut line).unwrap();
        let port = line.trim_end().split("waiting for a client on TCP port ").nth(1);
        server.port = port.unwrap_or_else(|| panic!("{line}")).to_owned();
        server
    }

    fn id(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }

    fn end(mut self) -> Output {
        let mut output = end_of(self.child.take().unwrap(), PATIENCE, "the server");
        self.errors.read_to_end(&mut output.stderr).unwrap();
        output
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn free_port() -> String {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string()
}

fn object(output: &Output) -> Json {
    assert!(output.status.success(), "{}\n{}", stderr(output), stdout(output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn many_queue_pairs_between_two_processes() {
    let server = Server::start();
    let mut client = spindrift();
    client.args(["write-bw", "127.0.0.1", "--json", "-p", &server.port]);
    client.args(["-q", "200", "-t", "16", "-s", "5000", "-n", "4000"]);
    let client = client.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (client, server) = (object(&end_of(client, PATIENCE, "the client")), object(&server.end()));
    for (side, object) in [("client", client), ("server", server)] {
        let row = &object["rows"][0];
        assert_eq!((&row["iterations"], &row["verified"]), (&4000.into(), &true.into()), "{side}: {object}");
        assert_eq!(
            (&object["settings"]["queue_pairs"], &object["error"]),
            (&200.into(), &Json::Null),
            "{side}"
        );
    }
}

/// What the test above relies on.
#[test]
fn a_test_that_fails_leaves_no_server() {
    let server = Server::start();
    let process = PathBuf::from(format!("/proc/{}", server.id()));
    assert!(process.exists());
    let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
        assert_eq!(server.port, "", "this failure is meant");
    }));
    assert!(failed.is_err() && !process.exists());
}
