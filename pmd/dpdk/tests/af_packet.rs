//! Ports over `net_af_packet` on a veth pair: the other end is another port, or Linux itself, which checks what the port does for its
//! address. Needs root and `ip`.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    missing_docs,
    reason = "tests"
)]

mod support;

use std::net::UdpSocket;
use std::os::fd::AsRawFd as _;
use std::process::{Child, Stdio};
use std::time::Duration;

use spindrift_dpdk::{DpdkConfig, DpdkError, DpdkPort};
use spindrift_pmd::testing::{Hosts, conformance, within};
use spindrift_pmd::{LinkState, Medium, Port as _};

use support::{Datagram, PORT, V4, V6, config, deliver, eal, receive, wait_for};

/// A ring whose places hold frames of an MTU of 9000.
const RING: &str = "blocksz=65536,framesz=16384,framecnt=256,qpairs=1";

fn hosts(test: &str, mtu: usize) -> Hosts {
    let hosts = Hosts::new(test, 1).expect("root, and `ip` of iproute2");
    for side in 0..2 {
        hosts.ip(side, &format!("link set n0 mtu {mtu}"));
    }
    hosts
}

/// A port on one side, whose address the kernel does not have.
fn try_open(hosts: &Hosts, side: usize, device: &str, local: &str) -> Result<DpdkPort, DpdkError> {
    let config = config(&format!("{device},iface=n0,{RING}"), local);
    within(hosts.name(side), || DpdkPort::open(eal(), &config))
}

/// The kernel hears what is for the port, too, and would answer: it is kept silent.
fn silence(hosts: &Hosts, side: usize) {
    hosts.sysctl(side, "ipv6/conf/n0/disable_ipv6", "1");
    hosts.ip(side, "link set n0 arp off");
}

#[test]
fn conforms() {
    // With payloads that the port copies, and with those that the driver does.
    for (mtu, addresses, zero_copy) in
        [(1500, V6, None), (9000, V4, None), (8999, V4, Some(true)), (9001, V6, Some(false))]
    {
        let hosts = hosts(&format!("dpc{mtu}"), mtu);
        let mut ports = [0, 1].map(|side| {
            silence(&hosts, side);
            let device = format!("net_af_packet{mtu}{side},iface=n0,{RING}");
            let neighbours = vec![(addresses[1 - side].parse().unwrap(), spindrift_pmd::MacAddr([2; 6]))];
            let config = DpdkConfig { neighbours, zero_copy, ..config(&device, addresses[side]) };
            within(hosts.name(side), || DpdkPort::open(eal(), &config)).unwrap()
        });
        let caps = ports[0].caps();
        assert_eq!((caps.max_frame, caps.medium), (mtu + 14, Medium::Network { rate_bps: None }));
        let [a, b] = &mut ports;
        conformance(a, b);
        assert_eq!(ports.iter().all(|port| port.uncopied_frames() > 0), zero_copy == Some(true));
    }
}

/// Polls a port while a command runs.
fn polled(port: &mut DpdkPort, mut command: Child) -> String {
    let mut clock = 1 << 40;
    wait_for("the command ends", || {
        clock += 1_000_000;
        receive(port, clock);
        port.flush(clock);
        command.try_wait().unwrap().is_some()
    });
    let output = command.wait_with_output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Linux finds the port, pings it, keeps its entry fresh, and exchanges datagrams with it.
#[test]
fn linux_is_a_neighbour() {
    let hosts = hosts("dpl", 1500);
    silence(&hosts, 0);
    hosts.both(["link set n0 mtu 1500", &format!("address add {}/24 dev n0", V4[1])]);
    hosts.ip(1, &format!("address add {}/64 dev n0 nodad", V6[1]));
    hosts.sysctl(1, "ipv6/neigh/n0/base_reachable_time_ms", "1000");
    hosts.sysctl(1, "ipv6/neigh/n0/delay_first_probe_time", "1");
    for (n, addresses) in [V6, V4].into_iter().enumerate() {
        let mut port = try_open(&hosts, 0, &format!("net_af_packet5{n}"), addresses[0]).unwrap();
        let ping = hosts
            .command(1, "ping")
            .args(["-c", "4", "-i", "0.05", "-W", "5", "-s", "1000", addresses[0]])
            .stdout(Stdio::piped())
            .spawn();
        let said = polled(&mut port, ping.unwrap());
        assert!(said.contains(" 0% packet loss"), "{said}");

        let socket = within(hosts.name(1), || UdpSocket::bind((addresses[1], PORT)).unwrap());
        socket.set_nonblocking(true).unwrap();
        allow_no_checksum(&socket);
        let datagram = Datagram::new(&port, addresses[1], PORT, b"from the port");
        let (mut clock, mut bytes) = (1 << 41, [0; 32]);
        wait_for("Linux has the datagram", || {
            clock += 10_000_000;
            port.link();
            port.tx_burst(clock, &[datagram.frame()]);
            receive(&mut port, clock);
            std::thread::sleep(Duration::from_millis(1));
            socket.recv(&mut bytes).is_ok()
        });
        assert_eq!(&bytes[..13], b"from the port");
        let mut got = Vec::new();
        wait_for("the port has the datagram", || {
            clock += 10_000_000;
            socket.send_to(b"from Linux", (addresses[0], PORT)).unwrap();
            got = receive(&mut port, clock);
            std::thread::sleep(Duration::from_millis(1));
            !got.is_empty()
        });
        assert!(got[0].ends_with(b"from Linux"));
        if n == 0 {
            stays_reachable(&hosts, &mut port, addresses[0]);
        }
    }
}

/// Has a socket take UDP over IPv6 without a checksum (RFC 6935), which is how these frames come.
fn allow_no_checksum(socket: &UdpSocket) {
    const NO_CHECK6_RX: libc::c_int = 102;
    let yes: libc::c_int = 1;
    // SAFETY: a live number, as long as is said. It fails for IPv4, which needs no leave.
    unsafe {
        let len = size_of_val(&yes) as libc::socklen_t;
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_UDP, NO_CHECK6_RX, (&raw const yes).cast(), len);
    }
}

/// The kernel checks an entry that is in use by solicitations to the port's own address.
fn stays_reachable(hosts: &Hosts, port: &mut DpdkPort, address: &str) {
    let mut states = Vec::new();
    for _ in 0..6 {
        let ping =
            hosts.command(1, "ping").args(["-c", "2", "-i", "0.5", address]).stdout(Stdio::piped()).spawn();
        let said = polled(port, ping.unwrap());
        assert!(said.contains(" 0% packet loss"), "{said}");
        let shown = hosts.command(1, "ip").args(["neigh", "show", address, "dev", "n0"]).output().unwrap();
        states.push(String::from_utf8_lossy(&shown.stdout).trim().to_owned());
    }
    assert!(states.iter().all(|state| !state.contains("FAILED") && state.contains("lladdr")), "{states:?}");
}

/// A switch that forwards multicast frames to listeners only (here Linux's bridge) learns of the groups by which neighbours ask.
#[test]
fn switches_learn_our_groups() {
    let hosts = hosts("dpm", 1500);
    silence(&hosts, 0);
    hosts.ip(1, "link add br0 type bridge mcast_snooping 1");
    hosts.ip(1, "link set n0 master br0");
    hosts.ip(1, "link set br0 up");
    let mut port = try_open(&hosts, 0, "net_af_packet70", V6[0]).unwrap();
    let mut clock = 0;
    wait_for("the bridge has the group", || {
        clock += 100_000_000;
        port.link();
        port.tx_room(clock);
        std::thread::sleep(Duration::from_millis(10));
        let shown = hosts.command(1, "bridge").args(["mdb", "show"]).output().unwrap();
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        shown.lines().any(|line| line.contains("port n0") && line.contains("ff02::1:ff00:1"))
    });
}

/// The other end's interface goes down and comes back, and so does ours; the driver itself says nothing of it.
#[test]
fn survives_links_that_go_down() {
    let hosts = hosts("dpd", 1500);
    let [mut a, mut b] = [0, 1].map(|side| {
        silence(&hosts, side);
        try_open(&hosts, side, &format!("net_af_packet8{side}"), V6[side]).unwrap()
    });
    let datagram = Datagram::new(&a, V6[1], PORT, b"x");
    let mut clock = 0;
    deliver(&mut a, &mut b, &datagram, &mut clock);
    for side in [1, 0] {
        let set = |state: &str| hosts.ip(side, &format!("link set n0 {state}"));
        set("down");
        wait_for("the link is down", || a.link() == LinkState::Down);
        let before = a.counters();
        assert_eq!(a.tx_burst(clock, &[datagram.frame()]), 1);
        let now = a.counters();
        assert_eq!((now.tx_frames, now.tx_dropped), (before.tx_frames, before.tx_dropped + 1));
        set("up");
        wait_for("the link is up", || a.link() == LinkState::Up);
        deliver(&mut a, &mut b, &datagram, &mut clock);
    }
}

/// Linux at the other end has the address. Opening says so, and which node it is, before the address is used; another one is free.
#[test]
fn an_address_that_linux_has_is_refused() {
    const WAIT: Duration = Duration::from_millis(700);
    let hosts = hosts("dpu", 1500);
    silence(&hosts, 0);
    hosts.ip(1, &format!("address add {}/64 dev n0 nodad", V6[1]));
    let open = |local| {
        let device = format!("net_af_packet90,iface=n0,{RING}");
        let config = DpdkConfig { duplicate_wait: WAIT, ..config(&device, local) };
        within(hosts.name(0), || DpdkPort::open(eal(), &config))
    };
    let error = open(V6[1]).unwrap_err();
    let shown = hosts.command(1, "ip").args(["-br", "link", "show", "n0"]).output().unwrap();
    let linux = String::from_utf8_lossy(&shown.stdout).into_owned();
    let DpdkError::Duplicate { address, mac, .. } = &error else { panic!("{error}") };
    assert_eq!(address.to_string(), V6[1]);
    assert!(linux.contains(&mac.to_string()), "{mac}: {linux}");
    assert!(error.to_string().contains("net_af_packet90") && error.to_string().contains(V6[1]), "{error}");
    // The device is closed again. Nobody has the other address, and that takes the whole time to find out.
    let began = std::time::Instant::now();
    let mut port = open(V6[0]).unwrap();
    assert!(began.elapsed() >= WAIT);
    assert_eq!(port.link(), LinkState::Up);
    // Without the question nobody is told.
    drop(port);
    drop(try_open(&hosts, 0, "net_af_packet90", V6[1]).unwrap());
}

/// A port whose link comes late is down until its address is its own, or for good if it is not.
#[test]
fn a_late_link_is_up_once_the_address_is_unique() {
    let hosts = hosts("dpt", 1500);
    silence(&hosts, 0);
    hosts.ip(1, &format!("address add {}/64 dev n0 nodad", V6[1]));
    for (n, is_taken) in [false, true].into_iter().enumerate() {
        hosts.ip(1, "link set n0 down");
        // The kernel takes its time to say so.
        wait_for("the other end is down", || {
            let shown = hosts.command(0, "ip").args(["link", "show", "n0"]).output().unwrap();
            let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
            shown.contains("NO-CARRIER") && !shown.contains("state UP")
        });
        let device = format!("net_af_packet9{},iface=n0,{RING}", n + 1);
        let wait = Duration::from_millis(300);
        let settings = DpdkConfig { duplicate_wait: wait, ..config(&device, V6[usize::from(is_taken)]) };
        let mut port = within(hosts.name(0), || DpdkPort::open(eal(), &settings)).unwrap();
        let mut clock = 1 << 40;
        let mut poll = |port: &mut DpdkPort, until: &mut dyn FnMut(&mut DpdkPort) -> bool| {
            wait_for("the port", || {
                clock += 1_000_000;
                port.tx_room(clock);
                receive(port, clock);
                std::thread::sleep(Duration::from_millis(1));
                until(port)
            });
            clock
        };
        hosts.ip(1, "link set n0 up");
        // The kernel takes addresses away when a link goes down.
        hosts.ip(1, &format!("address replace {}/64 dev n0 nodad", V6[1]));
        // Until then, the kernel drops what either end sends. The port has not looked at its link yet.
        for host in 0..2 {
            wait_for("the link is up", || {
                let shown = hosts.command(host, "ip").args(["link", "show", "n0"]).output().unwrap();
                String::from_utf8_lossy(&shown.stdout).contains("state UP")
            });
        }
        if is_taken {
            poll(&mut port, &mut |port| {
                assert_eq!(port.link(), LinkState::Down);
                !port.caps().send_errors.is_empty()
            });
            assert!(port.caps().send_errors[0].contains(&format!("{} is a duplicate", V6[1])));
        } else {
            let asked_at = poll(&mut port, &mut |port| {
                assert_eq!(port.link(), LinkState::Down);
                port.next_event_ns().is_some()
            });
            let up_at = poll(&mut port, &mut |port| port.link() == LinkState::Up);
            assert!(up_at - asked_at >= 280_000_000, "{}", up_at - asked_at);
        }
    }
}

#[test]
fn errors_tell_what_is_wrong() {
    let hosts = hosts("dpe", 1500);
    let error = |device: &str| try_open(&hosts, 0, device, V6[0]).unwrap_err().to_string();
    let text = within(hosts.name(0), || {
        let config = config("net_af_packet60,iface=nix", V6[0]);
        DpdkPort::open(eal(), &config).unwrap_err().to_string()
    });
    assert!(text.contains("net_af_packet60") && text.contains("nix"), "{text}");
    assert!(error("net_af_packets,iface").contains("net_af_packets"));
    let config = DpdkConfig { mtu: Some(1501), ..config(&format!("net_af_packet61,iface=n0,{RING}"), V6[0]) };
    let text = within(hosts.name(0), || DpdkPort::open(eal(), &config).unwrap_err().to_string());
    assert!(text.contains("1501") && text.contains("576 to 1500; `ip link set`"), "{text}");
    // What failed left nothing in the way.
    drop(try_open(&hosts, 0, "net_af_packet61", V6[0]).unwrap());
}
