//! Ports over `net_null`, which receives frames without end and drops what is sent.
#![allow(clippy::unwrap_used, clippy::panic, clippy::disallowed_methods, missing_docs, reason = "tests")]

mod support;

use spindrift_dpdk::{DpdkConfig, DpdkPort};
use spindrift_pmd::{LinkState, Port as _};

use support::{Datagram, PORT, V6, eal, introduced};

#[test]
fn frames_without_end_do_not_hold_the_caller() {
    let config = introduced("net_null0,size=512", V6[0], V6[1]);
    let mut port = DpdkPort::open(eal(), &config).unwrap();
    assert_eq!(port.link(), LinkState::Up);
    for now in 0..100 {
        assert_eq!(port.rx_burst(now, 64, &mut |_| panic!("zeros are not Spindrift's")), 0);
    }
    assert_eq!(port.counters().rx_frames, 0);
    let datagram = Datagram::new(&port, V6[1], PORT, &[7; 1000]);
    for turn in 1..100 {
        let now = turn << 20;
        let room = port.tx_room(now);
        assert!(room > 100);
        assert_eq!(port.tx_burst(now, &vec![datagram.frame(); room]), room);
        assert_eq!(port.counters().tx_frames, turn * room as u64);
    }
    assert!(port.caps().notes.iter().any(|note| note.contains("DPDK") && note.contains("net_null")));
}

/// Drivers that take no frames in several parts cannot read payloads where they are.
#[test]
fn what_takes_whole_frames_only_gets_copies() {
    let settings = DpdkConfig { zero_copy: Some(true), ..introduced("net_null41", V6[0], V6[1]) };
    let error = DpdkPort::open(eal(), &settings).unwrap_err().to_string();
    assert!(error.contains("`zero_copy` with net_null41 (net_null)"), "{error}");
    let port = DpdkPort::open(eal(), &DpdkConfig { zero_copy: Some(false), ..settings }).unwrap();
    assert!(port.caps().notes.iter().any(|note| note.contains("with copies")));
}

/// Several planes of a NIC, on several devices.
#[test]
fn planes_are_opened_together() {
    let configs = [0, 1, 2]
        .map(|n| DpdkConfig { mtu: Some(9000), ..introduced(&format!("net_null7{n}"), V6[0], V6[1]) });
    let planes = DpdkPort::open_planes(eal(), &configs, 1).unwrap();
    let names: Vec<_> = planes.iter().flatten().map(|port| port.caps().name.clone()).collect();
    assert_eq!(names.len(), 3);
    assert!(names[2].contains("dpdk net_null72 (fd96::1)"), "{names:?}");
    // One that fails closes the others.
    drop(planes);
    let bad = DpdkConfig { device: "net_nix0".to_owned(), ..configs[0].clone() };
    let all = [configs.to_vec(), vec![bad]].concat();
    let error = DpdkPort::open_planes(eal(), &all, 1).unwrap_err().to_string();
    assert!(error.contains("net_nix0"), "{error}");
    assert_eq!(DpdkPort::open_planes(eal(), &configs, 1).unwrap().len(), 3);
}
