//! What a port says when it cannot be opened, and what is left of one whose process was killed.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stderr,
    missing_docs,
    reason = "tests"
)]

mod support;

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use spindrift_af_xdp::{AfXdpConfig, AfXdpError, AfXdpPort, XdpMode};
use spindrift_bpf::{Assembler, Existing, Link, Mode, Program, Reg, attach, attached, verdict};
use spindrift_pmd::Port as _;

use support::{DEVICES, Hosts, V4, V6, wait_for};

#[test]
fn errors_tell_what_to_do() {
    let Some(hosts) = Hosts::new("errors", 1500, 1) else { return };
    let good = Hosts::config(0, XdpMode::Auto, V6[0]);
    let refused = |config: &AfXdpConfig, parts: &[&str]| {
        let error = hosts.try_open(0, config).expect_err("refused").to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    };
    refused(&AfXdpConfig { interface: "eth77".to_owned(), ..good.clone() }, &["eth77", "lo, sdxa"]);
    refused(&AfXdpConfig { interface: String::new(), ..good.clone() }, &["\"\"", "lo, sdxa"]);
    refused(&AfXdpConfig { interface: "lo".to_owned(), ..good.clone() }, &["lo is not Ethernet", "udp"]);
    let elsewhere = Some("fd12::1".parse().unwrap());
    refused(&AfXdpConfig { local: elsewhere, ..good.clone() }, &["fd12::1", "sdxa", "fd97::1, 10.97.0.1"]);
    refused(&AfXdpConfig { rx_buffers: 100, ..good.clone() }, &["rx_buffers is 100", "power of two"]);
    refused(&AfXdpConfig { tx_buffers: 32, ..good.clone() }, &["tx_buffers is 32", "64"]);
    refused(&AfXdpConfig { udp_ports: vec![], ..good.clone() }, &["UDP ports []"]);
    refused(&AfXdpConfig { udp_ports: vec![4971, 0], ..good.clone() }, &["UDP ports [4971, 0]"]);
    assert!(hosts.ip(0, &format!("address flush dev {} scope global", DEVICES[0])));
    // That of the link takes its time until it is known to be nobody else's.
    wait_for("there is still the address of the link", || {
        hosts.try_open(0, &AfXdpConfig { local: None, ..good.clone() }).is_ok()
    });
    assert!(hosts.ip(0, &format!("address flush dev {}", DEVICES[0])));
    refused(&AfXdpConfig { local: None, ..good.clone() }, &["sdxa has no address", "ip address add"]);
    refused(&good, &["fd97::1", "which has none"]);
}

/// A program that is there already is left alone, whichever mode it is in.
#[test]
fn another_program_is_in_the_way() {
    let Some(hosts) = Hosts::new("busy", 1500, 1) else { return };
    for (mode, option) in [(Mode::Native, "xdp"), (Mode::Generic, "xdpgeneric")] {
        let program = hosts.on(0, || {
            let mut text = Assembler::new();
            text.mov(Reg::R0, verdict::PASS).exit();
            let program = Program::load("other", text).unwrap();
            attach(81, &program, mode, Existing::Refuse).unwrap();
            program.id().unwrap()
        });
        for wanted in [XdpMode::Auto, XdpMode::Native, XdpMode::Generic] {
            let error = hosts.try_open(0, &Hosts::config(0, wanted, V6[0])).err().unwrap().to_string();
            let parts = ["sdxa", "XDP program already", &program.to_string()];
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        }
        assert_eq!(hosts.on(0, || attached(81).unwrap().unwrap().program), program);
        assert!(hosts.ip(0, &format!("link set {} {option} off", DEVICES[0])));
    }
    // The same for a port that is open; it leaves nothing when it is closed.
    let config = Hosts::config(0, XdpMode::Auto, V6[0]);
    let port = hosts.try_open(0, &config).unwrap();
    let other = AfXdpConfig { udp_ports: vec![4972], ..config.clone() };
    let error = hosts.try_open(0, &other).err().unwrap().to_string();
    assert!(error.contains("XDP program already"), "{error}");
    drop(port);
    // Again and again: the kernel takes its time to clean up.
    for _ in 0..20 {
        hosts.try_open(0, &config).unwrap();
    }
}

/// A process that this one starts has copies of all its files for a moment, of a closed port's too. They are waited for half a second; a
/// machine that pauses this test for longer has it try again.
#[test]
fn a_program_that_is_about_to_go_is_no_obstacle() {
    let Some(hosts) = Hosts::new("going", 1500, 1) else { return };
    let config = Hosts::config(0, XdpMode::Auto, V6[0]);
    let look = || AfXdpPort::prospect(&config, 1).map(drop);
    let open = || AfXdpPort::open(&config).map(drop);
    for attempt in [&look as &(dyn Fn() -> Result<(), AfXdpError> + Sync), &open] {
        wait_for("the port", || {
            let mut text = Assembler::new();
            text.mov(Reg::R0, verdict::PASS).exit();
            let program = Program::load("going", text).unwrap();
            let link = hosts.on(0, || Link::attach(81, &program, Mode::Native).unwrap());
            let began = Instant::now();
            std::thread::scope(|scope| {
                let done = scope.spawn(|| hosts.on(0, attempt));
                std::thread::sleep(Duration::from_millis(20));
                let waited = !done.is_finished();
                drop(link);
                let in_time = began.elapsed() < Duration::from_millis(400);
                let opened = done.join().unwrap();
                assert!(!in_time || waited && opened.is_ok(), "{waited} {opened:?}");
                in_time
            })
        });
    }
}

/// A port takes no other socket's datagrams, and no other socket gets those of a port.
#[test]
fn udp_ports_have_one_owner() {
    let Some(hosts) = Hosts::new("owner", 1500, 1) else { return };
    let bind = |address: &str, port: u16| {
        hosts.on(0, || UdpSocket::bind((address, port)).map_err(|error| error.kind()))
    };
    // Programs that the tests beside this one start have copies of its sockets until they run.
    let free = |address, port| {
        let mut socket = None;
        wait_for("the UDP port is free", || {
            socket = bind(address, port).ok();
            socket.is_some()
        });
        socket
    };
    let config =
        |local| AfXdpConfig { udp_ports: vec![4971, 4972], ..Hosts::config(0, XdpMode::Auto, local) };
    for (address, wildcard) in [(V6[0], "::"), (V4[0], "0.0.0.0")] {
        for taken in [address, wildcard] {
            let socket = free(taken, 4972);
            let error = hosts.try_open(0, &config(address)).expect_err("refused");
            let text = error.to_string();
            assert!(matches!(error, AfXdpError::PortInUse { port: 4972, .. }), "{text}");
            assert!([address, "4972", "ss -nulp"].iter().all(|part| text.contains(part)), "{text}");
            assert!(hosts.on(0, || attached(81).unwrap()).is_none(), "nothing was attached");
            drop(socket);
        }
        let port = hosts.try_open(0, &config(address)).unwrap();
        for port in [4971, 4972] {
            assert_eq!(bind(address, port).err(), Some(ErrorKind::AddrInUse));
            assert_eq!(bind(wildcard, port).err(), Some(ErrorKind::AddrInUse));
        }
        free(address, 4973);
        drop(port);
        free(address, 4971);
    }
}

/// What a port would be is what it is, and finding out changes nothing.
#[test]
fn prospects() {
    let Some(hosts) = Hosts::new("prospect", 9000, 2) else { return };
    let config = Hosts::config(0, XdpMode::Auto, V6[0]);
    let look = |config: &AfXdpConfig| hosts.on(0, || AfXdpPort::prospect(config, 1));
    let said = look(&config).unwrap();
    assert!(hosts.on(0, || attached(81).unwrap()).is_none(), "nothing was attached");
    let port = hosts.try_open(0, &config).unwrap();
    let is = port.caps();
    assert_eq!((&said.name, said.local_ip, said.mac), (&is.name, is.local_ip, is.mac));
    assert_eq!((said.max_frame, said.medium), (is.max_frame, is.medium));
    let has = |part: &str| said.notes.iter().any(|note| note.contains(part));
    assert!(has("veth: native XDP, with copies") || has("older than 6.3"), "{:?}", said.notes);
    assert!(has("2 queues"), "{:?}", said.notes);
    assert!(is.notes.iter().any(|note| note.contains("native XDP")), "{:?}", is.notes);
    // The same errors as opening has.
    let refused = |config: &AfXdpConfig, parts: &[&str]| {
        let error = look(config).expect_err("refused").to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    };
    refused(&config, &["sdxa", "XDP program already"]);
    drop(port);
    refused(&AfXdpConfig { interface: "lo".to_owned(), ..config.clone() }, &["lo is not Ethernet"]);
    refused(&AfXdpConfig { rx_buffers: 100, ..config.clone() }, &["rx_buffers is 100"]);
    let error = hosts.on(0, || AfXdpPort::prospect(&config, 3)).expect_err("refused").to_string();
    assert!(error.contains("3 lanes") && error.contains("has 2 receive"), "{error}");
    hosts.on(0, || {
        let none = CapabilitySet::empty();
        let sets = capabilities(None).unwrap();
        set_capabilities(None, CapabilitySets { effective: none, ..sets }).unwrap();
        let error = AfXdpPort::prospect(&config, 1).expect_err("refused").to_string();
        assert!(error.contains("CAP_NET_RAW") && error.contains("`udp` port"), "{error}");
        set_capabilities(None, CapabilitySets { effective: CapabilitySet::NET_RAW, ..sets }).unwrap();
        let error = AfXdpPort::prospect(&config, 1).expect_err("refused").to_string();
        assert!(error.contains("CAP_BPF") && error.contains("`udp` port"), "{error}");
    });
}

/// Where nobody but the network stack runs programs.
#[test]
fn a_driver_without_xdp() {
    let Some(hosts) = Hosts::new("driver", 1500, 1) else { return };
    if !hosts.ip(0, "link add odd0 type bridge") {
        return eprintln!("skipped: this kernel has no bridges");
    }
    assert!(hosts.ip(0, "address add 192.0.2.1/24 dev odd0") && hosts.ip(0, "link set odd0 up"));
    let config = |mode| AfXdpConfig { interface: "odd0".to_owned(), mode, ..AfXdpConfig::default() };
    let native = config(XdpMode::Native);
    let errors = [hosts.try_open(0, &native).err(), hosts.on(0, || AfXdpPort::prospect(&native, 1)).err()];
    let told = |part: &str| errors.iter().flatten().filter(|error| error.to_string().contains(part)).count();
    // Kernels older than 6.3 do not tell before.
    assert!(
        errors[0].is_some() && told("odd0 (bridge) has no native XDP; use the mode `auto`") >= 1,
        "{errors:?}"
    );
    for (mode, note) in
        [(XdpMode::Auto, "generic XDP: the driver of odd0"), (XdpMode::Generic, "as was asked for")]
    {
        let port = hosts.try_open(0, &config(mode)).unwrap();
        assert!(port.caps().notes.iter().any(|told| told.contains(note)), "{:?}", port.caps().notes);
        drop(port);
        let said = hosts.on(0, || AfXdpPort::prospect(&config(mode), 1)).unwrap();
        assert!(said.notes.iter().any(|told| told.contains("driver bridge")), "{:?}", said.notes);
    }
}

/// Without a choice it is the address that most can send to, IPv6 before IPv4, and none that may be somebody else's.
#[test]
fn an_address_is_chosen() {
    let Some(hosts) = Hosts::new("choice", 1500, 1) else { return };
    let chosen = || {
        let config = AfXdpConfig { local: None, ..Hosts::config(0, XdpMode::Auto, V6[0]) };
        hosts.try_open(0, &config).map(|port| port.caps().local_ip.to_string())
    };
    let on = DEVICES[0];
    wait_for("the address of the link is usable", || {
        let shown = hosts.command(0, &format!("ip -6 address show dev {on} tentative")).output().unwrap();
        shown.stdout.is_empty()
    });
    assert_eq!(chosen().unwrap(), V6[0]);
    assert!(hosts.ip(0, &format!("address del {}/64 dev {on}", V6[0])));
    assert_eq!(chosen().unwrap(), V4[0]);
    assert!(hosts.ip(0, &format!("address del {}/24 dev {on}", V4[0])));
    assert!(chosen().unwrap().starts_with("fe80::"), "that of the link is left");
    // Whether somebody else has it is found out when it is added.
    assert!(hosts.ip(0, &format!("address add fd99::1/64 dev {on}")));
    assert!(chosen().unwrap().starts_with("fe80::"));
    wait_for("nobody else has it", || chosen().is_ok_and(|ip| ip == "fd99::1"));
}

#[test]
fn missing_capabilities_are_named() {
    let Some(hosts) = Hosts::new("caps", 1500, 1) else { return };
    let config = Hosts::config(0, XdpMode::Auto, V6[0]);
    let lacking = |missing: CapabilitySet| {
        hosts.on(0, || {
            let all = capabilities(None).unwrap();
            let less = CapabilitySets { effective: all.effective.difference(missing), ..all };
            set_capabilities(None, less).unwrap();
            spindrift_af_xdp::AfXdpPort::open(&config).err().map(|error| error.to_string())
        })
    };
    let everything = CapabilitySet::all();
    for missing in [
        everything,
        CapabilitySet::NET_RAW,
        CapabilitySet::NET_ADMIN | CapabilitySet::SYS_ADMIN,
        CapabilitySet::BPF | CapabilitySet::SYS_ADMIN,
    ] {
        let error = lacking(missing).unwrap();
        let named = if missing.contains(CapabilitySet::NET_RAW) { "CAP_NET_RAW" } else { "CAP_BPF" };
        assert!([named, "which root has", "`udp` port"].iter().all(|part| error.contains(part)), "{error}");
    }
    assert_eq!(lacking(CapabilitySet::SYS_ADMIN | CapabilitySet::SYS_CHROOT), None, "which nobody needs");
}

const HOLD: &str = "SPINDRIFT_TEST_HOLD";

/// Not a test of its own: what the next one runs and kills.
#[test]
fn hold_a_port() {
    let Ok(interface) = std::env::var(HOLD) else { return };
    let config = AfXdpConfig { interface, ..AfXdpConfig::default() };
    let mut port = spindrift_af_xdp::AfXdpPort::open(&config).unwrap();
    loop {
        port.rx_burst(0, 64, &mut |_| ());
    }
}

#[test]
fn a_killed_process_leaves_nothing() {
    let Some(hosts) = Hosts::new("killed", 1500, 1) else { return };
    let me = std::env::current_exe().unwrap();
    let command = format!("{} --exact hold_a_port --nocapture", me.display());
    let mut holder = hosts
        .command(0, &command)
        .env(HOLD, DEVICES[0])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_for("the process has its port", || hosts.on(0, || attached(81).unwrap().is_some()));
    holder.kill().unwrap();
    holder.wait().unwrap();
    // The kernel cleans up behind the process that has ended.
    let config = Hosts::config(0, XdpMode::Auto, V4[0]);
    let mut port = None;
    wait_for("the port can be opened again", || {
        port = hosts.try_open(0, &config).ok();
        port.is_some()
    });
    assert_eq!(port.unwrap().caps().local_ip.to_string(), V4[0]);
}
