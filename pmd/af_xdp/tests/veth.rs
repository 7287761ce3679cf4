//! Ports over a veth pair. Needs root, `ip` and `tc`; without them the tests say so and pass.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stderr,
    missing_docs,
    reason = "tests"
)]

mod support;

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use spindrift_af_xdp::{AfXdpConfig, AfXdpPort, XdpMode};
use spindrift_pmd::testing::conformance;
use spindrift_pmd::{LinkState, Port as _, Tail};

use support::{DEVICES, Datagram, Hosts, V4, V6, deliver, receive, wait_for};

const PORT: u16 = 4971;

/// Ports of both hosts, between which a datagram has passed; the datagram, and the time.
fn talking(hosts: &Hosts) -> (AfXdpPort, AfXdpPort, Datagram, u64) {
    hosts.introduce();
    let [mut a, mut b] = hosts.open(XdpMode::Auto, V4);
    let mut clock = 0;
    let datagram = Datagram::new(&a, V4[1], PORT, b"x");
    deliver(&mut a, &mut b, &datagram, &mut clock);
    // From now on by events.
    assert_eq!([a.link(), b.link()], [LinkState::Up; 2]);
    (a, b, datagram, clock)
}

/// What any port must do: in both modes, over both families, with frames in one buffer and in several.
#[test]
fn conforms() {
    for (mtu, mode, addresses) in [
        (1500, XdpMode::Native, V6),
        (1500, XdpMode::Generic, V4),
        // The longest frames that fit a buffer, and the shortest that do not.
        (3826, XdpMode::Native, V6),
        (3826, XdpMode::Generic, V4),
        (3827, XdpMode::Generic, V6),
        (9000, XdpMode::Native, V4),
        (9000, XdpMode::Generic, V6),
    ] {
        let Some(hosts) = Hosts::new("conform", mtu, 1) else { return };
        hosts.introduce();
        let [mut a, mut b] = hosts.open(mode, addresses);
        assert_eq!((a.caps().max_frame, a.readable().len()), (mtu + 14, 1));
        conformance(&mut a, &mut b);
    }
}

/// Frames of every length around the ends of buffers, with bytes and with a CRC behind them: each part may lie on both sides of one.
#[test]
fn frames_end_anywhere_in_a_buffer() {
    let Some(hosts) = Hosts::new("ends", 9000, 1) else { return };
    hosts.introduce();
    let [mut a, mut b] = hosts.open(XdpMode::Auto, V6);
    for (lengths, tail) in [3_840, 7_680].into_iter().flat_map(|end| {
        let lengths = end - 62 - 8..end - 62 + 3;
        [(lengths.clone(), Tail::Crc32(0x1234_5678)), (lengths, Tail::Bytes(b"tail"))]
    }) {
        for len in lengths {
            let payload: Vec<u8> = (0..len).map(|at| (at * 7 + len) as u8).collect();
            let datagram = Datagram::new(&a, V6[1], PORT, &payload).with_tail(tail);
            let expected = datagram.frame().tail(&mut [0; 4]).to_vec();
            let (frame, _) = deliver(&mut a, &mut b, &datagram, &mut 0);
            assert_eq!(frame.len(), 62 + len + 4);
            assert!(frame[62..62 + len] == payload, "the payload of {len} bytes");
            assert_eq!(frame[62 + len..], expected, "what follows {len} bytes");
        }
    }
}

/// The kernel has what is not ours: other UDP ports, other addresses, ping, and neighbour discovery, which is how ports find each other.
#[test]
fn the_kernel_has_the_rest() {
    let Some(hosts) = Hosts::new("rest", 1500, 1) else { return };
    let [mut a, mut b] = hosts.open(XdpMode::Auto, V6);
    let mut clock = 0;
    // Nobody knows anybody: what is sent before the other one's address is known is lost, and counted.
    let datagram = Datagram::new(&a, V6[1], PORT, b"hello");
    let (frame, sent) = deliver(&mut a, &mut b, &datagram, &mut clock);
    assert!(frame.ends_with(b"hello"));
    assert_eq!((&frame[..6], &frame[6..12]), (&b.caps().mac.0[..], &a.caps().mac.0[..]));
    let counters = a.counters();
    assert_eq!(counters.tx_frames + counters.tx_dropped, sent, "{counters:?}");
    assert!(counters.tx_dropped >= 1 && counters.tx_dropped == counters.tx_errors, "{counters:?}");

    for (address, port) in [(V6[1], PORT + 1), (V4[1], PORT)] {
        let [from, to] = [0, 1].map(|side| {
            let local = if address == V4[1] { V4[side] } else { V6[side] };
            hosts.on(side, || UdpSocket::bind((local, port)).unwrap())
        });
        to.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        from.send_to(b"kernel", (address, port)).unwrap();
        let mut bytes = [0; 16];
        assert_eq!(to.recv(&mut bytes).unwrap(), 6);
    }
    for address in [V4[1], V6[1]] {
        let ping = hosts.command(0, &format!("ping -c 3 -i 0.05 -W 5 {address}")).output().unwrap();
        assert!(ping.status.success(), "{}", String::from_utf8_lossy(&ping.stdout));
    }
    assert_eq!(receive(&mut b, clock), Vec::<Vec<u8>>::new(), "nothing of that is ours");
}

/// A neighbour with another Ethernet address, and a way over somebody else, are noticed while packets flow.
#[test]
fn follows_the_kernels_neighbours_and_routes() {
    let Some(hosts) = Hosts::new("follow", 1500, 1) else { return };
    hosts.introduce();
    let [mut a, mut b] = hosts.open(XdpMode::Auto, V6);
    let mut clock = 0;
    let mut goes_to = |to: &str, mac: [u8; 6]| {
        let datagram = Datagram::new(&a, to, PORT, b"x");
        wait_for("frames go to another address", || {
            clock += 1_000_000;
            a.link();
            a.tx_room(clock);
            a.tx_burst(clock, &[datagram.frame()]);
            receive(&mut b, clock).last().is_some_and(|frame| frame[..6] == mac)
        });
    };
    goes_to(V6[1], [2, 0, 0, 0, 0x97, 1]);
    let neighbour = |mac: &str, ip| {
        assert!(hosts.ip(0, &format!("neigh replace {ip} lladdr {mac} dev {} nud permanent", DEVICES[0])));
    };
    neighbour("02:00:00:00:97:09", V6[1]);
    goes_to(V6[1], [2, 0, 0, 0, 0x97, 9]);
    neighbour("02:00:00:00:97:08", "fd97::8");
    assert!(hosts.ip(0, &format!("-6 route add {}/128 via fd97::8 dev {}", V6[1], DEVICES[0])));
    goes_to(V6[1], [2, 0, 0, 0, 0x97, 8]);
    assert!(hosts.ip(0, &format!("-6 route del {}/128", V6[1])));
    goes_to(V6[1], [2, 0, 0, 0, 0x97, 9]);
}

/// The kernel does not see our packets, so it is told that the neighbour they go to is in use.
#[test]
fn neighbours_in_use_are_kept_fresh() {
    let Some(hosts) = Hosts::new("fresh", 1500, 1) else { return };
    let [mut a, mut b] = hosts.open(XdpMode::Auto, V6);
    let mut clock = 0;
    let datagram = Datagram::new(&a, V6[1], PORT, b"x");
    deliver(&mut a, &mut b, &datagram, &mut clock);
    let stale = format!("neigh replace {} lladdr 02:00:00:00:97:01 dev {} nud stale", V6[1], DEVICES[0]);
    assert!(hosts.ip(0, &stale));
    let is_stale = || {
        let shown =
            hosts.command(0, &format!("ip neigh show {} dev {}", V6[1], DEVICES[0])).output().unwrap();
        String::from_utf8_lossy(&shown.stdout).contains("STALE")
    };
    assert!(is_stale());
    deliver(&mut a, &mut b, &datagram, &mut clock);
    assert!(is_stale(), "not with every packet");
    wait_for("the kernel looks after the neighbour", || {
        clock += 1_000_000_000;
        a.tx_room(clock);
        !is_stale()
    });
}

#[test]
fn a_destination_without_a_way_is_counted() {
    let Some(hosts) = Hosts::new("noway", 1500, 1) else { return };
    let [mut a, _b] = hosts.open(XdpMode::Auto, V6);
    let datagram = Datagram::new(&a, "fd55::1", PORT, b"x");
    assert_eq!(a.tx_burst(0, &[datagram.frame(), datagram.frame()]), 2);
    let counters = a.counters();
    assert_eq!((counters.tx_frames, counters.tx_dropped, counters.tx_errors), (0, 2, 2), "{counters:?}");
}

/// The other end's interface goes down and comes back, and so does ours.
#[test]
fn survives_links_that_go_down() {
    let Some(hosts) = Hosts::new("down", 1500, 1) else { return };
    let (mut a, mut b, datagram, mut clock) = talking(&hosts);
    for side in [1, 0] {
        let set = |state: &str| assert!(hosts.ip(side, &format!("link set {} {state}", DEVICES[side])));
        set("down");
        wait_for("the link is down", || a.link() == LinkState::Down);
        let before = a.counters();
        assert_eq!(a.tx_burst(clock, &[datagram.frame()]), 1);
        let now = a.counters();
        assert_eq!((now.tx_frames, now.tx_dropped), (before.tx_frames, before.tx_dropped + 1));
        set("up");
        wait_for("the link is up", || a.link() == LinkState::Up);
        hosts.introduce();
        deliver(&mut a, &mut b, &datagram, &mut clock);
    }
}

/// What the kernel has taken and cannot send waits, and goes as soon as it can.
#[test]
fn what_waits_is_sent_later() {
    let Some(hosts) = Hosts::new("waits", 1500, 1) else { return };
    hosts.introduce();
    let [mut a, mut b] = hosts.open(XdpMode::Auto, V4);
    let mut clock = 0;
    let datagram = Datagram::new(&a, V4[1], PORT, b"x");
    for how in 0..3 {
        deliver(&mut a, &mut b, &datagram, &mut clock);
        assert_eq!(a.next_event_ns(), None);
        assert!(hosts.ip(0, &format!("link set {} down", DEVICES[0])));
        // Sent before the port knows.
        assert_eq!(a.tx_burst(clock, &[datagram.frame(), datagram.frame()]), 2);
        assert!(a.next_event_ns().is_some_and(|at| at > clock));
        assert!(hosts.ip(0, &format!("link set {} up", DEVICES[0])));
        let mut got = 0;
        wait_for("what waited arrives", || {
            clock += 1_000_000;
            match how {
                0 => a.flush(clock),
                1 => drop(receive(&mut a, clock)),
                _ => assert!(a.tx_room(clock) > 0),
            }
            got += receive(&mut b, clock).len();
            got == 2
        });
        assert_eq!(a.next_event_ns(), None);
        assert_eq!(a.link(), LinkState::Up);
        hosts.introduce();
    }
}

/// What happens to another interface is nothing to a port.
#[test]
fn other_interfaces_do_not_matter() {
    let Some(hosts) = Hosts::new("others", 1500, 1) else { return };
    hosts.introduce();
    let [mut a, _b] = hosts.open(XdpMode::Auto, V4);
    assert_eq!(a.link(), LinkState::Up);
    for args in
        ["link add sdxo type veth peer name sdxp", "link set sdxo up", "link set sdxo down", "link del sdxo"]
    {
        assert!(hosts.ip(0, args), "{args}");
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(20) {
            assert_eq!(a.link(), LinkState::Up, "after {args}");
        }
    }
}

#[test]
fn survives_an_interface_that_goes() {
    let Some(hosts) = Hosts::new("gone", 1500, 1) else { return };
    let (mut a, mut b, datagram, mut clock) = talking(&hosts);
    assert!(hosts.ip(0, &format!("link del {}", DEVICES[0])));
    for port in [&mut a, &mut b] {
        wait_for("the link is down", || port.link() == LinkState::Down);
        for _ in 0..100 {
            clock += 1_000_000;
            port.tx_room(clock);
            port.tx_burst(clock, &[datagram.frame()]);
            port.flush(clock);
            assert_eq!(receive(port, clock), Vec::<Vec<u8>>::new());
            port.counters();
        }
    }
}

/// Every frame that the kernel takes arrives or is counted as dropped, however slow the receiver is.
#[test]
fn a_slow_receiver_loses_frames_and_knows_how_many() {
    let Some(hosts) = Hosts::new("slow", 9000, 1) else { return };
    hosts.introduce();
    for mode in [XdpMode::Native, XdpMode::Generic] {
        let few =
            |side| AfXdpConfig { rx_buffers: 64, tx_buffers: 64, ..Hosts::config(side, mode, V6[side]) };
        let [mut a, mut b] = [0, 1].map(|side| hosts.try_open(side, &few(side)).unwrap());
        let mut clock = 0;
        let datagrams = [10, 4_000, 8_000].map(|len| Datagram::new(&a, V6[1], PORT, &vec![7; len]));
        let (mut got, mut sent, mut turns) = (0, 0, 0);
        while sent < 3_000 {
            clock += 1_000_000;
            let room = a.tx_room(clock);
            for _ in 0..room {
                let datagram = &datagrams[sent as usize % 3];
                assert_eq!(a.tx_burst(clock, &[datagram.frame()]), 1, "as promised");
                sent += 1;
            }
            turns += 1;
            if turns % 7 == 0 {
                got += receive(&mut b, clock).len() as u64;
            }
        }
        let mut seen = (0, 0);
        wait_for("all have arrived or are lost", || {
            clock += 1_000_000;
            a.flush(clock);
            got += receive(&mut b, clock).len() as u64;
            let counters = b.counters();
            seen = (got, counters.rx_dropped);
            assert_eq!(counters.rx_frames, got);
            got + counters.rx_dropped == sent
        });
        assert!(seen.0 > 64 && seen.1 > 64, "{mode:?}: {seen:?} arrived and lost of {sent}");
        assert_eq!(a.counters().tx_frames, sent);
        // Room is for frames of any length, in one burst.
        clock += 1_000_000;
        let longest = datagrams[2].frame();
        let burst = vec![longest; a.tx_room(clock)];
        assert!(burst.len() > 10);
        assert_eq!(a.tx_burst(clock, &burst), burst.len());
        wait_for("the receiver is empty", || receive(&mut b, clock).is_empty());
        // It goes on as if nothing had been.
        for datagram in &datagrams {
            let before = b.counters().rx_frames;
            deliver(&mut a, &mut b, datagram, &mut clock);
            assert!(b.counters().rx_frames > before);
        }
    }
}

/// Queues are dealt out to lanes, and a lane that has several receives from all of them.
#[test]
fn several_queues_and_lanes() {
    let Some(hosts) = Hosts::new("queues", 1500, 2) else { return };
    hosts.introduce();
    let open = |side: usize, lanes: usize| -> Vec<AfXdpPort> {
        let config = Hosts::config(side, XdpMode::Native, V6[side]);
        hosts.on(side, || AfXdpPort::open_planes(&[config], lanes)).unwrap().into_iter().flatten().collect()
    };
    let mut a = open(0, 2);
    for lanes in [2, 1] {
        let mut b = open(1, lanes);
        assert_eq!((a.len(), b.len()), (2, lanes));
        for from in 0..2 {
            let datagram = Datagram::new(&a[from], V6[1], PORT, &[from as u8; 30]);
            let frame = deliver(&mut a[from], &mut b[from % lanes], &datagram, &mut 0).0;
            assert!(frame.ends_with(&[from as u8; 30]));
        }
    }
    // No more than is asked for, over all queues.
    let mut b = open(1, 1).pop().unwrap();
    for port in &mut a {
        let datagram = Datagram::new(port, V6[1], PORT, b"x");
        assert_eq!(port.tx_burst(0, &[datagram.frame(); 5]), 5);
    }
    let mut got = 0;
    wait_for("all have arrived", || {
        let shown = b.rx_burst(0, 3, &mut |_| got += 1);
        assert!(shown <= 3, "{shown}");
        got == 10
    });
    drop(b);
    let config = Hosts::config(1, XdpMode::Native, V6[1]);
    let error = hosts.on(1, || AfXdpPort::open_planes(&[config], 3)).err().unwrap().to_string();
    assert!(error.contains("3 lanes") && error.contains("ethtool -L sdxb combined 3"), "{error}");
}

/// Two interfaces of a host, whose ports share a UMEM.
#[test]
fn several_planes_in_one_umem() {
    let Some(hosts) = Hosts::new("planes", 9000, 1) else { return };
    let [a, b] = &hosts.names;
    assert!(support::ip(&format!(
        "link add sdxc index 91 mtu 1500 netns {a} type veth peer name sdxd index 92 mtu 1500 netns {b}"
    )));
    for (side, device, address) in [(0, "sdxc", "fd98::1/64"), (1, "sdxd", "fd98::2/64")] {
        assert!(hosts.ip(side, &format!("address add {address} dev {device} nodad")));
        assert!(hosts.ip(side, &format!("link set {device} up")));
    }
    let open = |side: usize, second: &str| -> [AfXdpPort; 2] {
        let first = Hosts::config(side, XdpMode::Auto, V6[side]);
        let second = AfXdpConfig { interface: second.to_owned(), tx_buffers: 256, ..AfXdpConfig::default() };
        let ports = hosts.on(side, || AfXdpPort::open_planes(&[first, second], 1)).unwrap();
        let ports: Vec<AfXdpPort> = ports.into_iter().flatten().collect();
        ports.try_into().ok().unwrap()
    };
    let (mut a, mut b) = (open(0, "sdxc"), open(1, "sdxd"));
    assert_eq!(a[1].caps().local_ip.to_string(), "fd98::1", "the interface's own address");
    for turn in 0..50_u8 {
        for plane in 0..2 {
            let to = b[plane].caps().local_ip.to_string();
            let datagram = Datagram::new(&a[plane], &to, PORT, &[turn, plane as u8, 9]);
            let frame = deliver(&mut a[plane], &mut b[plane], &datagram, &mut (u64::from(turn) << 32)).0;
            assert!(frame.ends_with(&[turn, plane as u8, 9]), "{frame:?}");
        }
    }
}
