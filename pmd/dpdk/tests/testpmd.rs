//! Frames to and from `dpdk-testpmd`, which is no part of Spindrift: it is at the other end of shared memory, with an EAL of its own.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    missing_docs,
    reason = "tests"
)]

mod support;

use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use spindrift_dpdk::pump::{PumpConfig, Receiver};
use spindrift_dpdk::{DpdkConfig, DpdkPort};
use spindrift_pmd::{LinkState, Port as _};

use support::{Datagram, PORT, V4, V6, eal, introduced, wait_for};

/// UDP source port of test datagrams.
const SOURCE_PORT: u16 = 0xc000;

/// It runs until this is dropped, and leaves no files.
struct Testpmd {
    process: Child,
    prefix: String,
}

impl Testpmd {
    fn start(name: &str, args: &[&str]) -> Self {
        let prefix = socket(name);
        let device = format!("--vdev=net_memif0,role=client,{}", shared(name));
        let eal = ["--no-huge", "-m", "192", "--no-pci", "--no-shconf", "--no-telemetry"];
        let mut command = Command::new("dpdk-testpmd");
        // Both of its threads may run on any processor.
        command.args(eal).args(["--file-prefix", &prefix, "--lcores", "(0,1)@(0-1)", &device, "--"]);
        command.args(["--auto-start", "--mbuf-size=16512", "--total-num-mbufs=2048"]).args(args);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.spawn().expect("dpdk-testpmd runs: tools/setup.sh --tests installs it");
        Self { process, prefix }
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        // Its input ends, and so does it.
        drop(self.process.stdin.take());
        drop(self.process.wait());
        drop(std::fs::remove_dir(format!("/var/run/dpdk/{}", self.prefix)));
    }
}

fn socket(name: &str) -> String {
    format!("spindrift-testpmd-{}-{name}", std::process::id())
}

fn shared(name: &str) -> String {
    format!("bsize=16384,rsize=9,socket-abstract=yes,socket={}", socket(name))
}

fn device(name: &str) -> String {
    format!("net_memif_{name},role=server,{}", shared(name))
}

/// It swaps addresses and ports of each datagram, and sends it back: all bytes go both ways.
#[test]
fn datagrams_come_back() {
    for (name, addresses) in [("v6", V6), ("v4", V4)] {
        let config = introduced(&device(name), addresses[0], addresses[1]);
        let config = DpdkConfig { mtu: Some(9000), udp_ports: vec![SOURCE_PORT], ..config };
        let mut port = DpdkPort::open(eal(), &config).unwrap();
        let testpmd =
            Testpmd::start(name, &["--forward-mode=5tswap", "--port-topology=loop", "--no-flush-rx"]);
        wait_for("the link is up", || port.link() == LinkState::Up);
        let payload = |n: usize| vec![n as u8; [1, 64, 1400, 4096, 8900][n % 5]];
        let (mut sent, mut got, mut clock) = (0, 0, 0);
        wait_for("all come back", || {
            clock += 1_000_000;
            if sent < 3000 && sent - got < 100 && port.tx_room(clock) > 0 {
                let datagram = Datagram::new(&port, addresses[1], PORT, &payload(sent));
                assert_eq!(port.tx_burst(clock, &[datagram.frame()]), 1);
                sent += 1;
            }
            port.flush(clock);
            for frame in support::receive(&mut port, clock) {
                let headers = frame.len() - payload(got).len();
                assert!(frame[headers..] == payload(got), "{got}: {} bytes", frame.len());
                assert_eq!((&frame[6..12], &frame[..6]), (&[2, 0, 0, 0, 0, 9][..], &port.caps().mac.0[..]));
                got += 1;
            }
            got == 3000
        });
        assert_eq!((port.counters().tx_dropped, port.counters().rx_dropped), (0, 0));
        drop(testpmd);
        // See `tests/memif.rs`: the driver wants one end closed after the other.
        wait_for("the other end has gone", || port.link() == LinkState::Down);
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// What it sends at full speed the raw pump receives: frames are known by their length.
#[test]
fn the_pump_counts_what_it_sends() {
    let config = introduced(&device("tx"), V6[0], V6[1]);
    let port = DpdkConfig { mtu: Some(9000), ..config };
    let bytes = Some(50_000 * 1000);
    let config = PumpConfig { port, payload: 1000, bytes, ..PumpConfig::default() };
    let receiver = Receiver::open(eal(), &config).unwrap();
    let _testpmd = Testpmd::start("tx", &["--forward-mode=txonly", "--txpkts=1106"]);
    let stats = receiver.run(&AtomicBool::new(false));
    assert!((50_000..60_000).contains(&stats.packets), "{stats:?}");
    assert_eq!((stats.payload_bytes, stats.errors), (stats.packets * 1000, 0), "{stats:?}");
}
