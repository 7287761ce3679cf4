//! Ports over `net_memif`: shared memory between two processes, each with an EAL of its own.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs, reason = "tests")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use spindrift_dpdk::{DpdkConfig, DpdkPort, device_counters};
use spindrift_pmd::memory::{Payload, Region};
use spindrift_pmd::testing::conformance;
use spindrift_pmd::{LinkState, Port as _, RxFrame, Tail, TxFrame};

use support::{Datagram, PORT, V4, V6, eal, introduced, wait_for};

fn settings(name: &str, role: &str, mtu: usize, local: &str, neighbour: &str) -> DpdkConfig {
    let socket = format!("spindrift-test-{}-{name}", std::process::id());
    let device =
        format!("net_memif_{name}{role},role={role},bsize=16384,rsize=9,socket-abstract=yes,socket={socket}");
    DpdkConfig { mtu: Some(mtu), ..introduced(&device, local, neighbour) }
}

/// Two ends that are up.
fn pair(name: &str, mtu: usize, [a, b]: [&str; 2], zero_copy: Option<bool>) -> [DpdkPort; 2] {
    let mut ports = [("server", a, b), ("client", b, a)].map(|(role, local, neighbour)| {
        let config = DpdkConfig { zero_copy, ..settings(name, role, mtu, local, neighbour) };
        DpdkPort::open(eal(), &config).unwrap()
    });
    wait_for("both are up", || ports.iter_mut().all(|port| port.link() == LinkState::Up));
    ports
}

/// Both roles in one process, with payloads that the driver copies and with those that the port copies.
#[test]
fn conforms() {
    for (name, mtu, addresses, zero_copy) in [
        ("a", 6000, V6, None),
        ("b", 9000, V4, Some(true)),
        ("c", 9000, V6, Some(false)),
        ("d", 1500, V4, Some(false)),
    ] {
        let [mut first, mut second] = pair(name, mtu, addresses, zero_copy);
        assert_eq!(first.caps().max_frame, mtu + 14);
        assert!(!first.caps().holds_payloads);
        conformance(&mut first, &mut second);
        for port in [&first, &second] {
            let (uncopied, is_on) = (port.uncopied_frames(), zero_copy != Some(false));
            assert_eq!(uncopied > 0, is_on, "{name}");
            let notes = port.caps().notes.join(" ");
            assert_eq!(notes.contains("copied once, by the driver"), is_on, "{notes}");
            assert_eq!(notes.contains("with copies"), !is_on, "{notes}");
        }
        close(first, second);
    }
}

/// What a frame is made of may change as soon as `tx_burst` has returned, whether the device had room for the frame or not. Each frame
/// is counted as copied by the port or as not.
#[test]
fn payloads_are_not_read_after_the_call() {
    let [mut a, mut b] = pair("r", 9000, V6, Some(true));
    let lengths = [4095, 4096, 6000, 8192];
    let region = Region::alloc(8192).unwrap();
    let (mut sent, mut got, mut clock) = (0_u32, 0_u32, 0);
    let mut lent_least = 0_u64;
    let mut has_been_full = false;
    while got < 10_000 {
        clock += 1_000_000;
        a.link();
        let room = a.tx_room(clock).min(if sent < 10_000 { 64 } else { 0 });
        for _ in 0..room {
            let len = lengths[sent as usize % lengths.len()];
            region.write_at(0, &vec![sent as u8; len]).unwrap();
            let payload = region.payload(0, len).unwrap();
            let datagram = Datagram::new(&a, V6[1], PORT, &vec![0; len + 4]);
            let frame = TxFrame { payload, tail: Tail::Crc32(1), ..datagram.frame() };
            let lent = a.uncopied_frames();
            assert_eq!(a.tx_burst(clock, &[frame]), 1, "as promised");
            region.write_at(0, &[0xee; 8192]).unwrap();
            let is_long = u64::from(len >= 4096);
            assert!(a.uncopied_frames() - lent <= is_long, "{len}");
            lent_least += a.uncopied_frames() - lent;
            has_been_full |= a.next_event_ns().is_some();
            sent += 1;
        }
        a.flush(clock);
        // Fewer than are sent, so that the device gets full.
        b.rx_burst(clock, 40, &mut |frame| {
            let len = lengths[got as usize % lengths.len()];
            let mut bytes = Vec::new();
            frame.append_to(&mut bytes);
            let (payload, crc) = bytes[62..].split_at(len);
            assert!(payload.iter().all(|&byte| byte == got as u8), "{got}: {}", payload[0]);
            let expected = Payload::from(payload).crc32(1).to_le_bytes();
            assert_eq!(crc, expected, "{got}");
            got += 1;
        });
    }
    let counters = a.counters();
    assert!(has_been_full, "some frames found no room");
    assert!(lent_least > 0 && lent_least < 7_500, "{lent_least} of 7500 long ones");
    assert_eq!((counters.tx_frames, counters.tx_dropped, counters.tx_errors), (u64::from(sent), 0, 0));
    assert_eq!(Arc::strong_count(&region), 1);
    close(a, b);
}

/// A region may go while frames of it wait for room, and so may the device and its peer.
#[test]
fn regions_devices_and_peers_may_go_meanwhile() {
    for round in 0..4 {
        let [mut a, mut b] = pair(&format!("g{round}"), 9000, V6, Some(true));
        // The client's first look makes room for what the server sends.
        assert_eq!(b.rx_burst(0, 64, &mut |_| ()), 0);
        let mut b = Some(b);
        let region = Region::alloc(4096).unwrap();
        let mut clock = 0;
        wait_for("the device is full", || {
            clock += 1_000_000;
            a.link();
            let datagram = Datagram::new(&a, V6[1], PORT, &[0; 4096]);
            let frame = TxFrame { payload: region.payload(0, 4096).unwrap(), ..datagram.frame() };
            a.tx_burst(clock, &[frame; 64]);
            a.tx_room(clock) == 0
        });
        drop(region);
        if round % 2 == 0 {
            drop(b.take());
            wait_for("the peer has gone", || a.link() == LinkState::Down);
            std::thread::sleep(Duration::from_millis(50));
        }
        clock += 1_000_000;
        a.flush(clock);
        a.recall();
        assert_eq!(a.reap(), u64::MAX);
        match b {
            Some(mut b) => {
                let mut frames = 0;
                wait_for("what waited arrives", || {
                    clock += 1_000_000;
                    a.flush(clock);
                    let zeros = |frame: &RxFrame<'_>| frame.data[62..].iter().all(|&byte| byte == 0);
                    frames += b.rx_burst(clock, 64, &mut |frame| assert!(zeros(frame)));
                    frames as u64 == a.counters().tx_frames
                });
                assert!(frames > 256 && a.uncopied_frames() < frames as u64, "{frames}");
                close(a, b);
            }
            None => drop(a),
        }
    }
}

/// What the driver counts is there by its own names, for each device that is open.
#[test]
fn devices_have_counters_of_their_own() {
    let [mut a, mut b] = pair("x", 1500, V6, None);
    assert_eq!(b.rx_burst(0, 64, &mut |_| ()), 0);
    let datagram = Datagram::new(&a, V6[1], PORT, &[7; 100]);
    let mut clock = 0;
    let mut got = 0;
    for _ in 0..10 {
        clock += 1_000_000;
        assert_eq!(a.tx_burst(clock, &[datagram.frame(); 10]), 10);
        got += b.rx_burst(clock, 64, &mut |_| ());
    }
    let of = |role: &str, counter: &str| {
        let all = device_counters();
        let device = all.iter().find(|one| one.device == format!("net_memif_x{role}")).unwrap();
        device.counters.iter().find(|(name, _)| name == counter).unwrap().1
    };
    assert_eq!((of("server", "tx_good_packets"), of("client", "rx_good_packets")), (100, got as u64));
    assert_eq!(of("server", "tx_q0_packets"), 100);
    assert!(of("client", "tx_good_packets") > 0, "it told switches of the port's groups");
    close(a, b);
    assert!(device_counters().iter().all(|one| !one.device.contains("memif_x")), "closed");
}

/// Where the port has to copy, asking for the opposite is an error that says why.
#[test]
fn devices_that_keep_frames_are_refused() {
    let ask = |config: &DpdkConfig| {
        let config = DpdkConfig { zero_copy: Some(true), ..config.clone() };
        DpdkPort::open(eal(), &config).unwrap_err().to_string()
    };
    let ring = ask(&introduced("net_ring80", V6[0], V6[1]));
    assert!(ring.contains("net_ring80 (net_ring)") && ring.contains("keeps frames after the call"), "{ring}");
    let mut shared = settings("z", "client", 1500, V6[0], V6[1]);
    shared.device += ",zero-copy=yes";
    let shared = ask(&shared);
    assert!(shared.contains("zero-copy=yes") && shared.contains("net_memif"), "{shared}");
    // Without the setting both copy.
    let port = DpdkPort::open(eal(), &introduced("net_ring80", V6[0], V6[1])).unwrap();
    assert!(port.caps().notes.iter().any(|note| note.contains("with copies")));
}

/// Closes two ends, one after the other: the driver (DPDK 22.11) frees memory twice where an end is closed while it hears that the
/// other one has gone.
fn close(first: DpdkPort, mut second: DpdkPort) {
    drop(first);
    wait_for("the other end has heard of it", || second.link() == LinkState::Down);
    std::thread::sleep(Duration::from_millis(50));
}
