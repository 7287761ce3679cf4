//! Duplicate address detection between ports: a peer has the address already, or takes it at the same time.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs, reason = "tests")]

mod support;

use std::time::Duration;

use spindrift_dpdk::{DpdkConfig, DpdkPort};
use spindrift_pmd::{LinkState, Medium, Port as _};

use support::{Datagram, PORT, V4, V6, config, deliver, eal, receive, rings, wait_for};

const WAIT: Duration = Duration::from_millis(300);
const MS: u64 = 1_000_000;

/// Settings of a port that looks for duplicates.
fn careful(device: &str, local: &str) -> DpdkConfig {
    DpdkConfig { duplicate_wait: WAIT, ..config(device, local) }
}

/// Has ports do what their drivers would for so long, by their clock.
fn poll(ports: &mut [&mut DpdkPort], clock: &mut u64, for_ms: u64) {
    let end = *clock + for_ms * MS;
    while *clock < end {
        *clock += 10 * MS;
        for port in ports.iter_mut() {
            port.tx_room(*clock);
            receive(port, *clock);
        }
        // The link is looked at by the system's clock.
        std::thread::sleep(Duration::from_millis(2));
        for port in ports.iter_mut() {
            port.link();
        }
    }
}

/// A message that names the address and the node.
fn names(message: &str, address: &str, owner: &DpdkPort) -> bool {
    message.contains(&format!("{address} is a duplicate")) && message.contains(&owner.caps().mac.to_string())
}

fn memif(name: &str, role: &str) -> String {
    let socket = format!("spindrift-duplicate-{}-{name}", std::process::id());
    format!("net_memif_{name}{role},role={role},bsize=4096,socket-abstract=yes,socket={socket}")
}

/// Closes the ends of shared memory one after the other.
fn close(first: DpdkPort, mut second: DpdkPort) {
    drop(first);
    wait_for("the other end has heard of it", || second.link() == LinkState::Down);
    std::thread::sleep(Duration::from_millis(50));
}

/// A link that leads to this host alone has its port use the address at once, and stop when the other end turns out to have it.
#[test]
fn a_peer_that_has_the_address_is_named() {
    let devices = rings("d", 1);
    let mut owner = DpdkPort::open(eal(), &config(&devices[0], V6[0])).unwrap();
    let other = DpdkConfig { local: V6[0].parse().unwrap(), ..careful(&devices[1], V6[1]) };
    let mut port = DpdkPort::open(eal(), &other).unwrap();
    assert_eq!((port.caps().medium, port.link()), (Medium::Host, LinkState::Up));
    let mut clock = 0;
    poll(&mut [&mut owner, &mut port], &mut clock, 100);
    assert_eq!((owner.link(), port.link()), (LinkState::Up, LinkState::Down));
    let errors = port.caps().send_errors.join("\n");
    assert!(names(&errors, V6[0], &owner) && errors.contains(&devices[1]), "{errors}");
    assert!(owner.caps().send_errors.is_empty());
    // What is sent nevertheless is lost, and counted.
    let datagram = Datagram::new(&port, V6[1], PORT, b"x");
    assert_eq!(port.tx_burst(clock, &[datagram.frame()]), 1);
    assert_eq!((port.counters().tx_dropped, port.counters().tx_frames), (1, 0));
}

/// Both ends of shared memory take the same address: neither keeps it. The link is not up yet when the first one opens its device.
#[test]
fn ends_that_take_an_address_together_both_lose_it() {
    let open = |role| DpdkPort::open(eal(), &careful(&memif("b", role), V6[0])).unwrap();
    let mut server = open("server");
    let mut clock = 0;
    assert_eq!(server.link(), LinkState::Down);
    poll(&mut [&mut server], &mut clock, 1000);
    let mut client = open("client");
    wait_for("both have found the other", || {
        poll(&mut [&mut server, &mut client], &mut clock, 10);
        [&server, &client].iter().all(|port| !port.caps().send_errors.is_empty())
    });
    assert_eq!([server.link(), client.link()], [LinkState::Down; 2]);
    assert!(names(&server.caps().send_errors[0], V6[0], &client), "{:?}", server.caps().send_errors);
    assert!(names(&client.caps().send_errors[0], V6[0], &server), "{:?}", client.caps().send_errors);
    drop(server);
    // The link of the other one is down in any case.
    std::thread::sleep(Duration::from_millis(300));
    drop(client);
}

/// Ends with addresses of their own keep them, while they look and afterwards. A link that loops everything back has no duplicates either.
#[test]
fn addresses_of_one_node_are_kept() {
    for (name, [a, b]) in [("k", V6), ("l", V4)] {
        let mut server = DpdkPort::open(eal(), &careful(&memif(name, "server"), a)).unwrap();
        let mut client = DpdkPort::open(eal(), &careful(&memif(name, "client"), b)).unwrap();
        wait_for("both are up", || [server.link(), client.link()] == [LinkState::Up; 2]);
        let mut clock = 0;
        let datagram = Datagram::new(&server, b, PORT, b"early");
        assert!(deliver(&mut server, &mut client, &datagram, &mut clock).0.ends_with(b"early"));
        poll(&mut [&mut server, &mut client], &mut clock, 500);
        let datagram = Datagram::new(&client, a, PORT, b"late");
        assert!(deliver(&mut client, &mut server, &datagram, &mut clock).0.ends_with(b"late"));
        assert!([&server, &client].iter().all(|port| port.caps().send_errors.is_empty()));
        close(server, client);
    }
    let mut port = DpdkPort::open(eal(), &careful("net_ring92", V6[0])).unwrap();
    poll(&mut [&mut port], &mut 0, 500);
    assert_eq!((port.link(), &port.caps().send_errors[..]), (LinkState::Up, &[][..]));
}
