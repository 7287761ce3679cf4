//! Ports over `net_memif`: shared memory between two processes, each with an EAL of its own.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs, reason = "tests")]

mod support;

use std::time::Duration;

use spindrift_dpdk::{DpdkConfig, DpdkPort};
use spindrift_pmd::testing::conformance;
use spindrift_pmd::{LinkState, Port as _};

use support::{V4, V6, eal, introduced, wait_for};

fn open(name: &str, role: &str, mtu: usize, local: &str, neighbour: &str) -> DpdkPort {
    let socket = format!("spindrift-test-{}-{name}", std::process::id());
    let device =
        format!("net_memif_{name}{role},role={role},bsize=16384,rsize=9,socket-abstract=yes,socket={socket}");
    let config = DpdkConfig { mtu: Some(mtu), ..introduced(&device, local, neighbour) };
    DpdkPort::open(eal(), &config).unwrap()
}

/// Both roles in one process.
#[test]
fn conforms() {
    for (name, mtu, addresses) in [("a", 1500, V6), ("b", 9000, V4)] {
        let [a, b] = addresses;
        let mut first = open(name, "server", mtu, a, b);
        let mut second = open(name, "client", mtu, b, a);
        wait_for("both are up", || [first.link(), second.link()] == [LinkState::Up; 2]);
        assert_eq!(first.caps().max_frame, mtu + 14);
        conformance(&mut first, &mut second);
        close(first, second);
    }
}

/// Closes two ends, one after the other: the driver (DPDK 22.11) frees memory twice where an end is closed while it hears that the
/// other one has gone.
fn close(first: DpdkPort, mut second: DpdkPort) {
    drop(first);
    wait_for("the other end has heard of it", || second.link() == LinkState::Down);
    std::thread::sleep(Duration::from_millis(50));
}
