//! The raw pump between two namespaces, sender and receiver in two threads.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    clippy::print_stderr,
    missing_docs,
    reason = "tests"
)]

mod support;

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use etherparse::{NetHeaders, PacketHeaders};
use spindrift_af_xdp::pump::{PumpConfig, PumpError, Receiver, Wait, receive, send};
use spindrift_af_xdp::{AfXdpConfig, AfXdpPort, XdpMode};
use spindrift_pmd::pump::PumpStats;

use support::{DEVICES, Hosts, V4, V6};

/// Headers and checksum of a packet beside Ethernet, IP, UDP and payload.
const OURS: usize = 44;
/// A path's first destination.
const CARRIER: &str = "fcbb:bb00:201:1::";

fn config(side: usize, addresses: [&str; 2]) -> PumpConfig {
    PumpConfig {
        port: Hosts::config(side, XdpMode::Auto, addresses[side]),
        duration: Duration::from_mins(1),
        ..PumpConfig::default()
    }
}

/// Has host 0 send to host 1, and returns what each has moved. The receiver ends a second after the last packet.
fn pump(hosts: &Hosts, sending: &PumpConfig, receiving: &PumpConfig) -> [PumpStats; 2] {
    let stop = AtomicBool::new(false);
    let receiver = hosts.on(1, || Receiver::open(receiving)).unwrap();
    assert!(receiver.notes().iter().any(|note| note == "native XDP"), "{:?}", receiver.notes());
    let to = receiving.port.local.unwrap();
    std::thread::scope(|scope| {
        let received = scope.spawn(|| receiver.run(&stop));
        let sent = hosts.on(0, || send(sending, to, &stop)).unwrap();
        [sent, received.join().unwrap()]
    })
}

/// Every packet that was sent came, unless the receiver had no room for it and said so.
#[test]
#[ignore = "slow: tools/check-all.sh"]
fn what_is_sent_arrives() {
    let Some(hosts) = Hosts::new("pump", 9216, 1) else { return };
    hosts.introduce();
    // Small ones, two that take one buffer and two of them, and the longest.
    for (addresses, payload, wait, crc_copy) in [
        (V6, 64, Wait::Spin, false),
        (V6, 3840 - 14 - 48 - OURS, Wait::Poll, true),
        (V6, 3840 - 14 - 48 - OURS + 1, Wait::Spin, true),
        (V6, 4096, Wait::Spin, false),
        (V4, 4096, Wait::Poll, true),
        (V6, 8960, Wait::Spin, true),
        (V4, 1, Wait::Spin, true),
    ] {
        let [mut sending, mut receiving] = [0, 1].map(|side| config(side, addresses));
        for config in [&mut sending, &mut receiving] {
            (config.payload, config.crc_copy, config.wait) = (payload, crc_copy, wait);
        }
        sending.bytes = Some(2000 * payload as u64);
        let [sent, received] = pump(&hosts, &sending, &receiving);
        let what = format!("{payload} bytes to {}: {sent:?}, {received:?}", addresses[1]);
        assert!((2000..2064).contains(&sent.packets), "{what}");
        let dropped = received.dropped.unwrap();
        assert_eq!(sent.packets, received.packets + dropped, "{what}");
        assert!(received.packets > 500, "{what}");
        for stats in [sent, received] {
            assert_eq!(stats.payload_bytes, stats.packets * payload as u64, "{what}");
            assert!(stats.errors == 0 && stats.calls > 0 && stats.gbps() > 0.0, "{what}");
        }
    }
}

/// A receiver that looks at the CRC sees that the sender writes none, or of another length.
#[test]
#[ignore = "slow: tools/check-all.sh"]
fn wrong_crcs_are_counted() {
    let Some(hosts) = Hosts::new("pumpcrc", 9216, 1) else { return };
    hosts.introduce();
    let receiving = PumpConfig { crc_copy: true, ..config(1, V6) };
    for (crc_copy, payload) in [(false, 4096), (true, 4095), (true, 4097), (true, 1)] {
        let sending = PumpConfig { crc_copy, payload, bytes: Some(200 * payload as u64), ..config(0, V6) };
        let [sent, received] = pump(&hosts, &sending, &receiving);
        assert!(received.packets >= 100 && received.errors == received.packets, "{sent:?}, {received:?}");
    }
}

/// A receiver ends at its limit, whatever is still being sent; and so does a sender.
#[test]
fn limits() {
    let Some(hosts) = Hosts::new("pumplimit", 9216, 1) else { return };
    hosts.introduce();
    for (duration, bytes) in [(Duration::from_mins(1), Some(1 << 20)), (Duration::from_millis(50), None)] {
        let receiving = PumpConfig { duration, bytes, ..config(1, V6) };
        let stop = AtomicBool::new(false);
        let receiver = hosts.on(1, || Receiver::open(&receiving)).unwrap();
        let (sent, received) = std::thread::scope(|scope| {
            let sending = config(0, V6);
            let to = receiving.port.local.unwrap();
            let (hosts, stop) = (&hosts, &stop);
            let sent = scope.spawn(move || hosts.on(0, || send(&sending, to, stop)).unwrap());
            let received = receiver.run(stop);
            stop.store(true, Ordering::Relaxed);
            (sent.join().unwrap(), received)
        });
        assert!(received.packets > 0 && received.packets <= sent.packets, "{sent:?}, {received:?}");
        assert!(sent.elapsed < config(0, V6).duration, "the receiver ended first: {sent:?}, {received:?}");
    }
    let brief = PumpConfig { duration: Duration::from_millis(50), ..config(0, V6) };
    let [sent, _] = pump(&hosts, &brief, &config(1, V6));
    assert!(sent.elapsed >= brief.duration && sent.elapsed < config(0, V6).duration, "{sent:?}");
    let stop = AtomicBool::new(true);
    assert_eq!(hosts.on(1, || receive(&config(1, V6), &stop)).unwrap().packets, 0);
    assert_eq!(hosts.on(0, || send(&config(0, V6), V6[1].parse().unwrap(), &stop)).unwrap().packets, 0);
}

/// The frames are what they seem: another reader understands them.
#[test]
fn frames_are_well_formed() {
    let Some(hosts) = Hosts::new("pumpframe", 9216, 1) else { return };
    hosts.introduce();
    let device = DEVICES[0];
    assert!(hosts.ip(0, &format!("route add fcbb:bb00::/32 via {} dev {device}", V6[1])));
    for (addresses, carrier) in [(V6, None), (V4, None), (V6, Some(CARRIER)), (V4, Some(CARRIER))] {
        let mut port = hosts.try_open(1, &Hosts::config(1, XdpMode::Auto, addresses[1])).unwrap();
        let carrier = carrier.map(|text| text.parse().unwrap());
        let sending = PumpConfig { carrier, crc_copy: true, bytes: Some(1), ..config(0, addresses) };
        let to: IpAddr = addresses[1].parse().unwrap();
        let sent = hosts.on(0, || send(&sending, to, &AtomicBool::new(false))).unwrap();
        let frames = support::receive(&mut port, 0);
        assert_eq!(frames.len() as u64, sent.packets.min(64));
        for frame in frames {
            check(&frame, addresses, carrier.map(IpAddr::V6));
        }
    }
}

fn check(frame: &[u8], [from, to]: [&str; 2], carrier: Option<IpAddr>) {
    let mut packet = PacketHeaders::from_ethernet_slice(frame).unwrap();
    let link = packet.link.take().unwrap().ethernet2().unwrap();
    assert_eq!((link.source, link.destination), ([2, 0, 0, 0, 0x97, 0], [2, 0, 0, 0, 0x97, 1]));
    let ends = |net: &NetHeaders| -> [IpAddr; 2] {
        match net {
            NetHeaders::Ipv6(ip, _) => {
                assert_eq!((ip.hop_limit, ip.traffic_class), (64, 0));
                [ip.source.into(), ip.destination.into()]
            }
            NetHeaders::Ipv4(ip, _) => {
                assert_eq!((ip.header_checksum, ip.time_to_live), (ip.calc_header_checksum(), 64));
                [ip.source.into(), ip.destination.into()]
            }
            NetHeaders::Arp(_) => panic!("ARP"),
        }
    };
    if let Some(carrier) = carrier {
        let [_, outer] = ends(packet.net.as_ref().unwrap());
        assert_eq!(outer, carrier);
        let inside = packet.payload.slice().to_vec();
        assert_eq!(inside.len(), frame.len() - 14 - 40);
        let inner = PacketHeaders::from_ip_slice(&inside).unwrap();
        return check_inner(&inner, ends(inner.net.as_ref().unwrap()), [from, to]);
    }
    let found = ends(packet.net.as_ref().unwrap());
    check_inner(&packet, found, [from, to]);
}

fn check_inner(packet: &PacketHeaders<'_>, found: [IpAddr; 2], expected: [&str; 2]) {
    assert_eq!(found, expected.map(|text| text.parse::<IpAddr>().unwrap()));
    let udp = packet.transport.as_ref().unwrap().clone().udp().unwrap();
    assert_eq!((udp.source_port, udp.destination_port, udp.checksum), (0xC000, 4971, 0));
    assert_eq!(usize::from(udp.length), 8 + OURS + 4096);
    let payload = packet.payload.slice();
    assert_eq!(payload.len(), OURS + 4096);
    let (rest, crc) = payload.split_at(payload.len() - 4);
    let expected = spindrift_pmd::memory::Payload::from(&rest[OURS - 4..]).crc32(0);
    assert_eq!(crc, expected.to_le_bytes());
}

#[test]
#[ignore = "slow: tools/check-all.sh"]
fn errors_tell_what_to_do() {
    let Some(hosts) = Hosts::new("pumperr", 1500, 1) else { return };
    let stop = AtomicBool::new(false);
    let refused = |config: &PumpConfig, to: &str, parts: &[&str]| {
        let error = hosts.on(0, || send(config, to.parse().unwrap(), &stop)).unwrap_err();
        let text = error.to_string();
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
        error
    };
    let good = config(0, V6);
    let error = refused(&good, V4[1], &["fd97::1 cannot send to 10.97.0.2", "IPv4", "IPv6"]);
    assert!(matches!(error, PumpError::Family { .. }));
    // Nobody has that address.
    let error =
        refused(&good, "fd97::77", &["no way from af_xdp sdxa (fd97::1) to fd97::77", "neighbour answers"]);
    assert!(matches!(error, PumpError::NoWay { .. }));
    refused(&good, "fd55::1", &["no way", "no route by this interface"]);
    hosts.introduce();
    refused(&good, V6[1], &["a payload of 4096 bytes", "frames of 4202", "takes up to 1514"]);
    let port = AfXdpConfig { interface: "eth77".to_owned(), ..good.port.clone() };
    refused(&PumpConfig { port, ..good.clone() }, V6[1], &["no interface \"eth77\""]);
    // One that is open keeps the others out.
    let open = hosts.on(0, || AfXdpPort::open(&good.port)).unwrap();
    refused(&good, V6[1], &["UDP port 4971", "in use"]);
    drop(open);
    stop.store(true, Ordering::Relaxed);
    refused(&good, "fd97::78", &["no way"]);
}
