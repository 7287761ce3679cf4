//! `spindrift agent top` on a terminal: what it draws, what keys and signals do, and that the terminal is as before at the end. The terminal is
//! that of `script` (util-linux).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod support;

use support::{refused, run, stderr};

#[test]
fn it_needs_a_terminal() {
    refused(
        &["agent", "top"],
        &["agent top draws on a terminal, and this is none", "spindrift agent status"],
    );
    let output = run(&["agent", "top", "--agent", "nowhere"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("--agent <ADDRESS:PORT>"), "{}", stderr(&output));
}

#[cfg(not(feature = "top"))]
#[test]
fn a_build_without_it_says_how_to_get_it() {
    let command = format!("{} agent top; echo status $?", env!("CARGO_BIN_EXE_spindrift"));
    let mut script = std::process::Command::new("script");
    let output = script.args(["-q", "-c", &command, "/dev/null"]).env("TERM", "xterm").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("--features top") && text.contains("status 2"), "{text}");
}

#[cfg(feature = "top")]
mod on_a_terminal {
    use std::fs;
    use std::io::{Read as _, Write as _};
    use std::net::SocketAddr;
    use std::process::{Child, Command, Stdio};
    use std::sync::{Arc, Mutex};
    use std::thread;
    use std::time::{Duration, Instant};

    use spindrift_agentd::http::Server;
    use spindrift_agentd::published::{Published, Source};
    use spindrift_agentd::snapshot::{FindingReport, Link, Part, Snapshot};
    use spindrift_srv6::{Fabric, FabricHost, Shape};

    /// Only a hang meets it.
    const PATIENCE: Duration = Duration::from_mins(2);
    /// Codes by which a terminal leaves the screen that is drawn on.
    const LEFT: &str = "\u{1b}[?1049l";
    const ENTERED: &str = "\u{1b}[?1049h";

    /// An agent that knows of one link, which is at fault.
    fn agent(address: SocketAddr) -> Server {
        let host = FabricHost { name: "h1".into(), t0: 0, downlink: 0 };
        let fabric = Fabric::new(Shape { planes: 1, t0: 1, t1: 0, ..Shape::default() }, vec![host]).unwrap();
        let link = Link {
            lower: "h1".to_owned(),
            upper: "p0-t0-0".to_owned(),
            state: "down".to_owned(),
            ..Link::default()
        };
        let part = Part { kind: "link".to_owned(), name: "h1:p0-t0-0".to_owned() };
        let text = "The cable is cut.".to_owned();
        let finding = FindingReport { components: vec![part], text, ..FindingReport::default() };
        let published = Arc::new(Published::default());
        published.set(Snapshot {
            host: "h1".to_owned(),
            links: vec![link],
            findings: vec![finding],
            ..Snapshot::default()
        });
        Server::start(address, Source::new(fabric, published, Default::default), None).unwrap()
    }

    /// A terminal with the command on it.
    struct Terminal {
        script: Child,
        output: Arc<Mutex<Vec<u8>>>,
        /// Output before this was waited for.
        seen: usize,
    }

    impl Terminal {
        /// `before` and `after` print the state of the terminal.
        fn start(address: SocketAddr) -> Self {
            let top = format!(
                "exec {} agent top --agent {address} --interval 20ms",
                env!("CARGO_BIN_EXE_spindrift")
            );
            let command = format!(
                "stty rows 20 cols 90; echo before $(stty -g); sh -c 'echo pid $$; {top}'; echo status $?; echo after $(stty -g)"
            );
            let mut script = Command::new("script");
            script.args(["-q", "-c", &command, "/dev/null"]).env("TERM", "xterm").env_remove("NO_COLOR");
            script.stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut script = script.spawn().expect("`script` of util-linux starts");
            let (output, mut from) = (Arc::new(Mutex::new(Vec::new())), script.stdout.take().unwrap());
            let to = Arc::clone(&output);
            thread::spawn(move || {
                let mut part = [0; 4096];
                while let Ok(len @ 1..) = from.read(&mut part) {
                    to.lock().unwrap().extend(&part[..len]);
                }
            });
            Self { script, output, seen: 0 }
        }

        fn text(&self, from: usize) -> String {
            String::from_utf8_lossy(&self.output.lock().unwrap()[from..]).into_owned()
        }

        /// Waits until this has been printed after what was waited for before. What has blanks may be drawn in parts.
        fn until(&mut self, part: &str) {
            let began = Instant::now();
            loop {
                let text = self.text(self.seen);
                if let Some(at) = text.find(part) {
                    self.seen += at + part.len();
                    return;
                }
                let last: String = text.chars().take(2_000).collect();
                assert!(began.elapsed() < PATIENCE, "{part:?}: {last:?}");
                thread::sleep(Duration::from_millis(5));
            }
        }

        fn press(&mut self, keys: &str) {
            let input = self.script.stdin.as_mut().unwrap();
            input.write_all(keys.as_bytes()).unwrap();
            input.flush().unwrap();
        }

        /// The word after this one.
        fn word(&self, name: &str) -> String {
            let text = self.text(0);
            let (_, rest) =
                text.split_once(&format!("{name} ")).unwrap_or_else(|| panic!("{name}: {text:?}"));
            rest.split_whitespace().next().unwrap().to_owned()
        }

        fn signal(&self, name: &str) {
            assert!(Command::new("kill").args([name, &self.word("pid")]).status().unwrap().success());
        }

        /// It has ended with this status, and the terminal is as it was.
        fn ends(mut self, status: &str) {
            self.until("after ");
            assert!(self.script.wait().unwrap().success());
            // The reader may be behind.
            self.until("\n");
            let text = self.text(0);
            assert_eq!(self.word("status"), status, "{text:?}");
            assert_eq!(self.word("before"), self.word("after"), "{text:?}");
            let (left, shown) = (text.rfind(LEFT).unwrap(), text.rfind("\u{1b}[?25h").unwrap());
            assert!(left > text.rfind(ENTERED).unwrap() && shown > text.rfind("\u{1b}[?25l").unwrap());
        }
    }

    impl Drop for Terminal {
        fn drop(&mut self) {
            let _ = self.script.kill();
            let _ = self.script.wait();
        }
    }

    #[test]
    fn it_shows_an_agent_that_goes_and_returns() {
        let server = agent("127.0.0.1:0".parse().unwrap());
        let address = server.address();
        let mut terminal = Terminal::start(address);
        terminal.until("h1:p0-t0-0");
        terminal.press("\r");
        terminal.until("The cable is cut.");
        terminal.press("q");
        terminal.until("loss 1s");
        drop(server);
        terminal.until("AGENT GONE");
        let _again = agent(address);
        terminal.until("1 finding; of 1 links 1 down");
        terminal.press("q");
        terminal.ends("0");
    }

    #[test]
    fn signals_leave_the_terminal_as_it_was() {
        let server = agent("127.0.0.1:0".parse().unwrap());
        for (how, status) in [("-TERM", "130"), ("-INT", "130"), ("\u{3}", "130")] {
            let mut terminal = Terminal::start(server.address());
            terminal.until("h1:p0-t0-0");
            if how.starts_with('-') {
                terminal.signal(how);
            } else {
                terminal.press(how);
            }
            terminal.ends(status);
        }
    }

    /// By the signal, and by the key.
    #[test]
    fn it_stops_and_goes_on() {
        let server = agent("127.0.0.1:0".parse().unwrap());
        let mut terminal = Terminal::start(server.address());
        terminal.until("h1:p0-t0-0");
        for by_key in [false, true] {
            if by_key {
                terminal.press("\u{1a}");
            } else {
                terminal.signal("-TSTP");
            }
            terminal.until(LEFT);
            let began = Instant::now();
            let stat = format!("/proc/{}/stat", terminal.word("pid"));
            while !fs::read_to_string(&stat).unwrap().contains(") T ") {
                assert!(began.elapsed() < PATIENCE);
                thread::sleep(Duration::from_millis(5));
            }
            terminal.signal("-CONT");
            terminal.until(ENTERED);
            // All is drawn again.
            terminal.until("h1:p0-t0-0");
        }
        terminal.press("q");
        terminal.ends("0");
    }

    #[test]
    fn it_is_drawn_anew_in_another_size() {
        let server = agent("127.0.0.1:0".parse().unwrap());
        let mut terminal = Terminal::start(server.address());
        terminal.until("h1:p0-t0-0");
        let tty = fs::read_link(format!("/proc/{}/fd/0", terminal.word("pid"))).unwrap();
        let resize = |rows: &str| {
            let stty = Command::new("stty").arg("-F").arg(&tty).args(["rows", rows]).status();
            assert!(stty.unwrap().success());
        };
        resize("6");
        terminal.until("small:");
        resize("30");
        terminal.until("h1:p0-t0-0");
        terminal.press("q");
        terminal.ends("0");
    }

    /// The window is closed, or the connection to the machine is lost.
    #[test]
    fn it_ends_with_its_terminal() {
        let server = agent("127.0.0.1:0".parse().unwrap());
        let mut terminal = Terminal::start(server.address());
        terminal.until("h1:p0-t0-0");
        let process = format!("/proc/{}/exe", terminal.word("pid"));
        assert!(fs::read_link(&process).is_ok());
        terminal.script.kill().unwrap();
        let began = Instant::now();
        while fs::read_link(&process).is_ok() {
            assert!(began.elapsed() < PATIENCE, "it goes on without a terminal");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// At first, too.
    #[test]
    fn without_an_agent_it_says_so_and_waits() {
        let address = agent("127.0.0.1:0".parse().unwrap()).address();
        let mut terminal = Terminal::start(address);
        terminal.until("trying again: no agent replies at ");
        let _server = agent(address);
        terminal.until("h1:p0-t0-0");
        terminal.press("q");
        terminal.ends("0");
    }
}
