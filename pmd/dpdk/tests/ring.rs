//! Ports over `net_ring`: frames pass from port to port in their buffers.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs, reason = "tests")]

mod support;

use spindrift_dpdk::{DpdkConfig, DpdkPort};
use spindrift_pmd::testing::conformance;
use spindrift_pmd::{LinkState, Medium, Port as _};

use support::{Datagram, PORT, V4, V6, config, deliver, eal, introduced, receive, refused, rings, wait_for};

/// Two ports that lead to each other and do not ask for each other.
fn pair(name: &str, addresses: [&str; 2], mtu: usize) -> [DpdkPort; 2] {
    let devices = rings(name, 1);
    [0, 1].map(|side| {
        let config = introduced(&devices[side], addresses[side], addresses[1 - side]);
        DpdkPort::open(eal(), &DpdkConfig { mtu: Some(mtu), ..config }).unwrap()
    })
}

#[test]
fn conforms() {
    for (name, mtu, addresses) in [("c0", 1500, V6), ("c1", 9000, V4), ("c2", 9216, V6)] {
        let [mut a, mut b] = pair(name, addresses, mtu);
        assert_eq!((a.caps().max_frame, a.caps().medium), (mtu + 14, Medium::Host));
        conformance(&mut a, &mut b);
    }
}

/// Nobody knows anybody: what is sent before the other one's address is known is given back, and counted.
#[test]
fn neighbours_are_found() {
    for (name, addresses) in [("n0", V6), ("n1", V4)] {
        let devices = rings(name, 1);
        let open = |side: usize| DpdkPort::open(eal(), &config(&devices[side], addresses[side])).unwrap();
        let (mut a, mut b) = (open(0), open(1));
        let datagram = Datagram::new(&a, addresses[1], PORT, b"hello");
        let (frame, sent) = deliver(&mut a, &mut b, &datagram, &mut 0);
        assert!(frame.ends_with(b"hello"));
        assert_eq!((&frame[..6], &frame[6..12]), (&b.caps().mac.0[..], &a.caps().mac.0[..]));
        let counters = a.counters();
        assert_eq!(counters.tx_frames + counters.tx_unsent, sent, "{counters:?}");
        assert!(counters.tx_unsent >= 1 && a.unsent().is_empty(), "{counters:?}");
        assert_eq!((counters.tx_dropped, counters.tx_errors), (0, 0), "{counters:?}");
        assert_eq!(b.counters().rx_frames, counters.tx_frames, "what asks is not counted");
        // Another UDP port is nobody's.
        let other = Datagram::new(&a, addresses[1], PORT + 1, b"other");
        assert_eq!(a.tx_burst(1 << 40, &[other.frame()]), 1);
        assert_eq!(receive(&mut b, 1 << 40), Vec::<Vec<u8>>::new());
    }
}

/// Frames to a neighbour that does not answer are given back for half a second, and lost from then on. Others pass them.
#[test]
fn a_silent_neighbour_holds_nothing_up() {
    let devices = rings("q", 1);
    let neighbours = introduced(&devices[0], V6[0], V6[1]);
    let mut a = DpdkPort::open(eal(), &neighbours).unwrap();
    let mut b = DpdkPort::open(eal(), &config(&devices[1], V6[1])).unwrap();
    wait_for("the link is up", || a.link() == LinkState::Up);
    let silent = Datagram::new(&a, "fd96::99", PORT, b"silent");
    let known = Datagram::new(&a, V6[1], PORT, b"known");
    let burst = [silent.frame(), known.frame(), silent.frame(), known.frame()];
    let ms = 1_000_000;
    for (at_ms, unsent) in [(0, &[0, 2][..]), (100, &[0, 2]), (450, &[0, 2]), (700, &[0, 2]), (800, &[0, 2])]
    {
        assert_eq!((a.tx_burst(at_ms * ms, &burst), a.unsent()), (4, unsent), "{at_ms}");
        let got = receive(&mut b, at_ms * ms);
        assert!(got.len() == 2 && got.iter().all(|frame| frame.ends_with(b"known")), "{at_ms}");
        assert_eq!((a.counters().tx_dropped, a.counters().tx_unsent % 2), (0, 0));
    }
    // The sixth time that it is asked.
    assert_eq!((a.tx_burst(5_000 * ms, &burst), a.unsent()), (4, &[][..]));
    let counters = a.counters();
    assert_eq!((counters.tx_dropped, counters.tx_errors, counters.tx_frames), (2, 2, 12), "{counters:?}");
}

/// A carrier of uSIDs goes to the gateway, whoever the packet inside is for.
#[test]
fn what_is_far_goes_to_the_gateway() {
    let devices = rings("g", 1);
    let gateways = vec![V6[1].parse().unwrap()];
    let mut a = DpdkPort::open(eal(), &DpdkConfig { gateways, ..config(&devices[0], V6[0]) }).unwrap();
    let mut b = DpdkPort::open(eal(), &config(&devices[1], V6[1])).unwrap();
    let inner = Datagram::new(&a, V6[1], PORT, b"inside");
    let outer = Datagram::new(&a, "fcbb:bb00:201:e001::", PORT, b"");
    let (inner, outer) = (inner.frame(), outer.frame());
    let mut head = outer.head[..54].to_vec();
    head[20] = 41;
    head[18..20].copy_from_slice(&(inner.len() as u16 - 14).to_be_bytes());
    head.extend_from_slice(&inner.head[14..]);
    let carrier = spindrift_pmd::TxFrame { head: &head, udp_payload_at: head.len(), ..inner };
    let mut clock = 0;
    let mut got = Vec::new();
    wait_for("the carrier arrives", || {
        clock += 10_000_000;
        a.link();
        a.tx_burst(clock, &[carrier]);
        got = receive(&mut b, clock);
        receive(&mut a, clock);
        !got.is_empty()
    });
    assert_eq!((&got[0][..6], &got[0][14..54]), (&b.caps().mac.0[..], &head[14..54]));
    assert!(got[0].ends_with(b"inside"));
    let nowhere = Datagram::new(&b, "fcbb:bb00:201:e001::", PORT, b"");
    let before = b.counters().tx_errors;
    b.link();
    assert_eq!(b.tx_burst(clock, &[nowhere.frame()]), 1);
    assert_eq!(b.counters().tx_errors, before + 1, "no gateway");
}

/// What the device has no room for waits, keeps its order, and goes as soon as there is room.
#[test]
fn a_slow_receiver_loses_nothing() {
    let [mut a, mut b] = pair("s", V6, 1500);
    let mut clock = 0;
    let (mut sent, mut got) = (0_u32, 0_u32);
    let mut least = usize::MAX;
    while got < 20_000 {
        clock += 1_000_000;
        a.link();
        let room = a.tx_room(clock);
        least = least.min(room);
        for _ in 0..room.min(100) {
            let datagram = Datagram::new(&a, V6[1], PORT, &sent.to_be_bytes());
            assert_eq!(a.tx_burst(clock, &[datagram.frame()]), 1, "as promised");
            sent += 1;
        }
        // A third of what is sent.
        b.rx_burst(clock, 33, &mut |frame| {
            assert_eq!(frame.data[62..], got.to_be_bytes());
            got += 1;
        });
    }
    assert!(least < 100 && sent > got, "{least} {sent}");
    let counters = a.counters();
    assert_eq!((counters.tx_frames, counters.tx_dropped, counters.tx_errors), (u64::from(sent), 0, 0));
    assert!(a.next_event_ns().is_some());
    wait_for("the rest", || {
        clock += 1_000_000;
        a.flush(clock);
        got += receive(&mut b, clock).len() as u32;
        got == sent
    });
    assert_eq!((a.next_event_ns(), b.counters().rx_dropped), (None, 0));
    assert_eq!(a.tx_room(clock), a.caps().max_burst, "all buffers have come back");
}

#[test]
fn several_lanes_have_a_queue_each() {
    let devices = rings("l", 2);
    let open = |side: usize| -> [DpdkPort; 2] {
        let config = config(&devices[side], V6[side]);
        let ports = DpdkPort::open_planes(eal(), &[config], 2).unwrap();
        ports.into_iter().flatten().collect::<Vec<_>>().try_into().ok().unwrap()
    };
    let (mut a, mut b) = (open(0), open(1));
    for lane in [1, 0] {
        let datagram = Datagram::new(&a[lane], V6[1], PORT, &[lane as u8; 30]);
        let frame = deliver(&mut a[lane], &mut b[lane], &datagram, &mut 0).0;
        assert!(frame.ends_with(&[lane as u8; 30]));
    }
    // What one lane has learned the other knows.
    assert_eq!(a[0].counters().tx_unsent, 0);
    assert!(a[1].counters().tx_unsent > 0);
    drop(b);
    refused(&config(&devices[0], V6[0]), 1, &[&devices[0], "another port of this process"]);
    let devices = rings("m", 2);
    refused(&config(&devices[1], V6[1]), 3, &["3 lanes", &devices[1], "2 queue(s)"]);
    refused(&config(&devices[1], V6[1]), 0, &["0 lanes"]);
}

/// A device is closed with the last of its ports, even while frames of it are on their way, and can be opened again.
#[test]
fn devices_are_closed_and_opened_again() {
    for round in 0..30 {
        let devices = ["net_ring90", "net_ring91"];
        let [mut first, second] =
            devices.map(|device| DpdkPort::open(eal(), &introduced(device, V6[0], V6[1])).unwrap());
        let again = introduced(devices[0], V6[0], V6[1]);
        refused(&again, 1, &["net_ring90", "in use"]);
        // What this device sends it receives.
        let datagram = Datagram::new(&first, V6[1], PORT, b"x");
        assert_eq!(first.link(), LinkState::Up);
        assert_eq!(first.tx_burst(0, &[datagram.frame(); 10]), 10);
        if round % 2 == 0 {
            drop(second);
            drop(first);
        } else {
            drop((first, second));
        }
    }
}

/// A lane is a thread. The EAL knows each as long as it lives, and buffers go from one to the other and back.
#[test]
fn lanes_are_threads() {
    const FRAMES: u32 = 50_000;
    for round in 0..3 {
        let [mut a, mut b] = pair(&format!("t{round}"), V6, 9000);
        let sender = std::thread::spawn(move || {
            let (mut sent, mut now) = (0_u32, 0);
            wait_for("all are sent", || {
                now += 1_000_000;
                a.link();
                for _ in 0..a.tx_room(now).min(64).min((FRAMES - sent) as usize) {
                    let payload = vec![sent as u8; 4 + sent as usize % 4000];
                    let datagram =
                        Datagram::new(&a, V6[1], PORT, &[&sent.to_be_bytes()[..], &payload].concat());
                    assert_eq!(a.tx_burst(now, &[datagram.frame()]), 1, "as promised");
                    sent += 1;
                }
                a.flush(now);
                std::thread::yield_now();
                sent == FRAMES && a.next_event_ns().is_none()
            });
            a.counters()
        });
        let mut got = 0_u32;
        wait_for("all arrive", || {
            b.rx_burst(0, 64, &mut |frame| {
                assert_eq!(frame.data[62..66], got.to_be_bytes());
                assert!(frame.data[66..].iter().all(|&byte| byte == got as u8));
                got += 1;
            });
            std::thread::yield_now();
            got == FRAMES
        });
        // The sender has closed its device while buffers of it were still here.
        let counters = sender.join().unwrap();
        assert_eq!((counters.tx_frames, counters.tx_dropped), (u64::from(FRAMES), 0));
    }
}
