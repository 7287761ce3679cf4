//! The raw pump on the loopback interface, sender and receiver in two threads.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use spindrift_pmd::pump::{PumpConfig, Receiver, receive, send};
use spindrift_pmd::udp::Offload;

fn free_port(ip: &str) -> u16 {
    UdpSocket::bind((ip, 0)).unwrap().local_addr().unwrap().port()
}

#[test]
fn pumps_with_and_without_offload() {
    for (ip, offload, crc_copy) in [
        ("127.0.0.1", Offload::Auto, false),
        ("127.0.0.1", Offload::Auto, true),
        ("127.0.0.1", Offload::Off, true),
        ("::1", Offload::Auto, false),
    ] {
        let cfg = PumpConfig {
            local: ip.parse().unwrap(),
            remote: ip.parse().unwrap(),
            port: free_port(ip),
            source_ports: 2,
            gso: offload,
            gro: offload,
            duration: Duration::from_mins(1),
            bytes: Some(8 << 20),
            crc_copy,
            ..PumpConfig::default()
        };
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let receiver = scope.spawn(|| receive(&cfg, &stop));
            // The receiver may not be bound yet, and a slow one loses packets: pump until it has enough.
            while !receiver.is_finished() {
                let sent = send(&cfg, &stop).unwrap();
                assert!(sent.packets > 0 && sent.payload_bytes == sent.packets * 4096, "{sent:?}");
            }
            let got = receiver.join().unwrap().unwrap();
            assert!(got.payload_bytes >= 8 << 20 && got.payload_bytes % 4096 == 0, "{got:?}");
            assert!(got.gbps() > 0.0 && got.mpps() > 0.0);
            assert_eq!(got.errors, 0, "every CRC is right");
            if got.offload {
                assert!(got.calls < got.packets, "{got:?}");
            }
        });
    }
}

/// A receiver that looks at the CRC sees that the sender writes none.
#[test]
fn wrong_crcs_are_counted() {
    let receiving = PumpConfig {
        port: free_port("127.0.0.1"),
        duration: Duration::from_mins(1),
        bytes: Some(1 << 20),
        crc_copy: true,
        ..PumpConfig::default()
    };
    let sending = PumpConfig { crc_copy: false, ..receiving.clone() };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| receive(&receiving, &stop));
        while !receiver.is_finished() {
            assert_eq!(send(&sending, &stop).unwrap().errors, 0);
        }
        let got = receiver.join().unwrap().unwrap();
        assert!(got.packets >= 256 && got.errors == got.packets, "{got:?}");
    });
}

/// However late the receiver's thread begins: it takes what has arrived, and ends though nothing has.
#[test]
fn a_receiver_ends_with_its_sender() {
    let cfg = PumpConfig { port: free_port("127.0.0.1"), bytes: Some(4 * 4096), ..PumpConfig::default() };
    let [no, yes] = [false, true].map(AtomicBool::new);
    for sends in [true, false] {
        let receiver = Receiver::open(&PumpConfig { bytes: None, ..cfg.clone() }).unwrap();
        let sent = if sends { send(&cfg, &no).unwrap().packets } else { 0 };
        let got = receiver.run_beside(&no, &yes);
        assert_eq!(got.packets, sent, "{got:?}");
    }
}

#[test]
fn stops_when_told() {
    let stop = AtomicBool::new(true);
    let cfg = PumpConfig { port: free_port("127.0.0.1"), ..PumpConfig::default() };
    assert_eq!(send(&cfg, &stop).unwrap().packets, 0);
    assert_eq!(receive(&cfg, &stop).unwrap().packets, 0);
    stop.store(false, Ordering::Relaxed);
    let cfg = PumpConfig { duration: Duration::ZERO, ..cfg };
    assert_eq!(send(&cfg, &stop).unwrap().packets, 0);
}

#[test]
fn errors_are_those_of_the_udp_port() {
    let cfg = PumpConfig { local: "192.0.2.1".parse().unwrap(), ..PumpConfig::default() };
    assert!(
        send(&cfg, &AtomicBool::new(false)).unwrap_err().to_string().contains("not an address of this host")
    );
}
