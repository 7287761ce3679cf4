//! What the benchmarks put on a wire: a veth pair between two network namespaces, made and removed by the test, with a
//! raw socket on it. Needs root and `ip`; without them the test says so and passes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]
#![allow(clippy::print_stderr, reason = "a skipped test says so")]

mod support;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use serde_json::Value as Json;
use spindrift::wire::{UDP_PORT_MRC, icrc};
use support::Running;
use support::raw::{OverOnDrop, Ring};

/// Longer than any of this takes; only a hang meets it.
const PATIENCE: Duration = Duration::from_mins(1);
const MTU: usize = 1_500;

fn ip(args: &str) -> bool {
    Command::new("ip").args(args.split_whitespace()).output().is_ok_and(|out| out.status.success())
}

/// Two namespaces, gone when dropped.
struct Namespaces([String; 2]);

impl Namespaces {
    fn new() -> Option<Self> {
        let this = Self(["a", "b"].map(|side| format!("sdwire-{side}-{}", std::process::id())));
        let [a, b] = &this.0;
        let pair = format!("link add sdwa netns {a} mtu {MTU} type veth peer name sdwb netns {b} mtu {MTU}");
        let made = ip(&format!("netns add {a}")) && ip(&format!("netns add {b}")) && ip(&pair);
        let up = |name: &str, device: &str, host: u8| {
            // One segment at most: the kernel cuts batches up before the device, as it does for most hardware.
            ip(&format!("-n {name} link set {device} gso_max_segs 1"))
                && ip(&format!("-n {name} link set lo up"))
                && ip(&format!("-n {name} address add 10.97.0.{host}/24 dev {device}"))
                && ip(&format!("-n {name} address add fd97::{host}/64 dev {device} nodad"))
                && ip(&format!("-n {name} link set {device} up"))
        };
        (made && up(a, "sdwa", 1) && up(b, "sdwb", 2)).then_some(this)
    }

    fn spindrift(&self, side: usize, args: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0[side], env!("CARGO_BIN_EXE_spindrift")]).args(args);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.0 {
            ip(&format!("netns del {name}"));
        }
    }
}

/// What was seen of MRC.
#[derive(Debug, Default)]
struct Seen {
    right: u64,
    wrong: u64,
    /// With another IPv4 identification than 0.
    numbered: u64,
    longest: usize,
}

impl Seen {
    fn note(&mut self, frame: &[u8]) {
        let Some((_, l3)) = frame.split_at_checked(14) else { return };
        let (udp_at, len) = match (l3.first(), l3.len()) {
            (Some(0x45), 28..) if l3[9] == 17 => (20, usize::from(u16::from_be_bytes([l3[2], l3[3]]))),
            (Some(0x60..=0x6f), 48..) if l3[6] == 17 => {
                (40, 40 + usize::from(u16::from_be_bytes([l3[4], l3[5]])))
            }
            _ => return,
        };
        if u16::from_be_bytes([l3[udp_at + 2], l3[udp_at + 3]]) != UDP_PORT_MRC {
            return;
        }
        self.longest = self.longest.max(len);
        self.numbered += u64::from(udp_at == 20 && l3[4..6] != [0, 0]);
        if icrc::verify_frame(&l3[..len]) {
            self.right += 1;
        } else {
            self.wrong += 1;
        }
    }
}

fn wait_until_it_listens(server: &mut Running) {
    let mut line = String::new();
    BufReader::new(server.child().stderr.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("waiting for a client"), "{line}");
}

/// Runs `write-bw` over the wire; the client's object and what was seen.
fn write_bw(namespaces: &Namespaces, address: &str, options: &[&str]) -> (Json, Seen) {
    let mut ring = Ring::new(&namespaces.0[1], 2048);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let seen = scope.spawn(|| {
            let mut seen = Seen::default();
            ring.listen(&over, |frame| seen.note(frame));
            seen
        });
        let listening = OverOnDrop(&over);
        let server_args = [&["write-bw", "--udp-port", "4971"] as &[&str], options].concat();
        let mut server = Running::start(&mut namespaces.spindrift(1, &server_args));
        wait_until_it_listens(&mut server);
        let client_args = [
            &["write-bw", address, "--udp-port", "4971", "-s", "64K", "-n", "50", "--json"] as &[&str],
            options,
        ];
        let client = Running::start(&mut namespaces.spindrift(0, &client_args.concat()));
        let client = support::end_of(client, PATIENCE, "the client");
        let server = support::end_of(server, PATIENCE, "the server");
        drop(listening);
        let seen = seen.join().unwrap();
        assert!(client.status.success() && server.status.success(), "{}", support::stderr(&client));
        (serde_json::from_slice(&client.stdout).unwrap(), seen)
    })
}

#[test]
fn the_icrc_of_each_packet_that_leaves() {
    let Some(namespaces) = Namespaces::new() else {
        eprintln!("skipped: no permission to make network namespaces, or no `ip`");
        return;
    };
    let cases: [(&str, &[&str], bool); 4] = [
        ("fd97::2", &[], false),
        ("fd97::2", &["--no-gso"], false),
        ("10.97.0.2", &["--no-gso"], false),
        // The kernel numbers the packets of a batch.
        ("10.97.0.2", &[], true),
    ];
    for (address, options, numbered) in cases {
        let (client, seen) = write_bw(&namespaces, address, options);
        let ports = &client["counters"]["ports"];
        let (frames, calls) = (ports["tx_frames"].as_u64().unwrap(), ports["tx_calls"].as_u64().unwrap());
        println!("{address} {options:?}: {seen:?}, {frames} frames in {calls} calls");
        assert_eq!(client["rows"][0]["verified"], true);
        assert_eq!(client["settings"]["gso"], options.is_empty());
        // Bytes of 50 writes of 64 KiB, and the warm-up before them.
        assert!(seen.right + seen.wrong > 50 * (64 << 10) / MTU as u64, "{seen:?}");
        assert!(seen.longest <= MTU, "{seen:?}: each packet was seen by itself");
        assert_eq!(seen.wrong, 0, "{address} {options:?}: {seen:?}");
        assert_eq!(seen.numbered > seen.right / 2, numbered, "{address} {options:?}: {seen:?}");
        assert!(!options.is_empty() || calls * 2 < frames, "{frames} frames in {calls} calls: no batches");
    }
}
