//! What happens between processes: each has an EAL of its own, may be killed at any moment, and leaves nothing in the way of the next one.
//!
//! A test starts this program again for the other process, which does what its variable says.
#![allow(
    clippy::panic,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stdout,
    missing_docs,
    reason = "tests"
)]

mod support;

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use spindrift_dpdk::{DpdkConfig, DpdkPort, Eal, EalConfig};
use spindrift_pmd::testing::in_child;
use spindrift_pmd::{LinkState, Port as _};

use support::{Datagram, PORT, V6, config, eal, eal_config, introduced, receive, rings, wait_for};

const ROLE: &str = "SPINDRIFT_TEST_ROLE";

/// This test again, in another process.
fn again(test: &str, role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(ROLE, role);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// Runs it to its end; returns what it wrote to standard output and standard error.
fn finished(test: &str, role: &str) -> [String; 2] {
    let output = again(test, role).output().unwrap();
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(output.status.success(), "{text:?}");
    text
}

fn memif(role: &str, socket: &str, local: &str, neighbour: &str) -> DpdkPort {
    let device = format!("net_memif0,role={role},bsize=16384,socket-abstract=yes,socket={socket}");
    let config = DpdkConfig { mtu: Some(9000), ..introduced(&device, local, neighbour) };
    DpdkPort::open(eal(), &config).unwrap()
}

/// Sends back what arrives, until it is killed or nobody is there.
fn echo(socket: &str) {
    let mut port = memif("client", socket, V6[1], V6[0]);
    println!("ready");
    let mut clock = 0;
    while std::os::unix::process::parent_id() != 1 {
        clock += 1_000_000;
        // What arrives before the port knows that it may answer waits.
        if port.link() == LinkState::Down {
            std::thread::yield_now();
            continue;
        }
        for frame in receive(&mut port, clock) {
            let datagram = Datagram::new(&port, V6[0], PORT, &frame[62..]);
            wait_for("room", || port.tx_room(clock) > 0);
            assert_eq!(port.tx_burst(clock, &[datagram.frame()]), 1);
        }
        port.flush(clock);
        std::thread::yield_now();
    }
}

fn wait_until_ready(child: &mut Child) {
    let mut lines = BufReader::new(child.stdout.as_mut().unwrap());
    let mut line = String::new();
    while !line.contains("ready") {
        line.clear();
        if lines.read_line(&mut line).unwrap() == 0 {
            let mut text = String::new();
            child.stderr.as_mut().unwrap().read_to_string(&mut text).unwrap();
            panic!("{text}");
        }
    }
}

/// Datagrams of several sizes go over shared memory and come back; then the other process is killed, and another one takes its place.
#[test]
fn a_killed_process_leaves_room_for_the_next() {
    let socket = match role() {
        Some(socket) => return echo(&socket),
        None => format!("spindrift-process-{}", std::process::id()),
    };
    let mut port = memif("server", &socket, V6[0], V6[1]);
    let mut clock = 0;
    for _ in 0..3 {
        let mut child = again("a_killed_process_leaves_room_for_the_next", &socket).spawn().unwrap();
        wait_until_ready(&mut child);
        wait_for("the link is up", || port.link() == LinkState::Up);
        let (mut sent, mut got) = (0_usize, 0);
        let payload = |n: usize| vec![n as u8; [1, 1400, 4096, 8900][n % 4]];
        wait_for("all come back", || {
            clock += 1_000_000;
            port.link();
            if sent < 2000 && sent - got < 50 && port.tx_room(clock) > 0 {
                let datagram = Datagram::new(&port, V6[1], PORT, &payload(sent));
                assert_eq!(port.tx_burst(clock, &[datagram.frame()]), 1);
                sent += 1;
            }
            port.flush(clock);
            for frame in receive(&mut port, clock) {
                let (len, first) = (frame.len() - 62, frame[62]);
                assert!(frame[62..] == payload(got), "{got}: {len} bytes, {first}; {:?}", port.counters());
                got += 1;
            }
            got == 2000
        });
        // In the middle of something.
        let datagram = Datagram::new(&port, V6[1], PORT, &payload(3));
        port.tx_burst(clock, &vec![datagram.frame(); 100]);
        child.kill().unwrap();
        child.wait().unwrap();
        wait_for("the link is down", || port.link() == LinkState::Down);
        let before = port.counters().tx_dropped;
        assert_eq!(port.tx_burst(clock, &[datagram.frame()]), 1);
        assert_eq!(port.counters().tx_dropped, before + 1, "lost, and counted");
        std::thread::sleep(Duration::from_millis(50));
    }
    let folder = fs::read_dir("/var/run/dpdk/spindrift").map_or(0, Iterator::count);
    assert_eq!(folder, 0, "no files are left");
}

/// The EAL starts once; another start finds it, or is told that it runs with other settings. The caller stays on its processors.
#[test]
fn the_eal_starts_once() {
    if role().is_none() {
        drop(finished("the_eal_starts_once", "own"));
        return;
    }
    let processors = || {
        let status = fs::read_to_string("/proc/thread-self/status").unwrap();
        status.lines().find(|line| line.starts_with("Cpus_allowed_list")).unwrap().to_owned()
    };
    let before = processors();
    for _ in 0..3 {
        Eal::start(&eal_config()).unwrap();
    }
    assert_eq!(processors(), before);
    assert!(Eal::version().starts_with("DPDK 2"), "{}", Eal::version());
    let other = EalConfig { memory_mib: Some(64), ..eal_config() };
    let error = Eal::start(&other).unwrap_err().to_string();
    assert!(error.contains("other settings") && error.contains("-m 192"), "{error}");
    let told =
        in_child(|| Eal::start(&eal_config()).is_err_and(|error| error.to_string().contains("parent")));
    assert_eq!(told, Some(true));
}

#[test]
fn an_eal_that_does_not_start_says_why() {
    if role().is_none() {
        drop(finished("an_eal_that_does_not_start_says_why", "own"));
        return;
    }
    // Looked at before the EAL is started, so another start may follow.
    let huge = EalConfig { memory_mib: Some(1 << 30), ..EalConfig::default() };
    let error = Eal::start(&huge).unwrap_err().to_string();
    assert!(error.contains("sysctl") && error.contains("nr_hugepages"), "{error}");
    let bad = EalConfig { extra_args: vec!["--help".to_owned()], ..eal_config() };
    let error = Eal::start(&bad).unwrap_err().to_string();
    assert!(error.contains("--help"), "{error}");
    let error = Eal::start(&eal_config()).unwrap_err().to_string();
    assert!(error.contains("starts once only") && error.contains("--help"), "{error}");
}

/// What DPDK logs is in the error, and not between the lines of the program.
#[test]
fn errors_tell_what_to_do() {
    if role().is_none() {
        let [out, err] = finished("errors_tell_what_to_do", "own");
        assert!(!out.contains("EAL:") && err.is_empty(), "{out}\n{err}");
        return;
    }
    let with_pci = EalConfig { pci: true, ..eal_config() };
    let eal = Eal::start(&with_pci).unwrap();
    let refused = |config: &DpdkConfig, parts: &[&str]| {
        let error = DpdkPort::open(eal, config).unwrap_err().to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    };
    let good = config("net_null0", V6[0]);
    let at = |device: &str| DpdkConfig { device: device.to_owned(), ..good.clone() };
    refused(&at("net_nix0"), &["no driver net_nix for net_nix0", "apt-get install", "tools/setup.sh --dpdk"]);
    refused(&at("eth0"), &["no device eth0", "net_memif0"]);
    refused(&at(""), &["no device"]);
    refused(&at("0000:ff:1f.7"), &["no device 0000:ff:1f.7", "dpdk-devbind.py"]);
    refused(&at("net_null0,nix=1"), &["net_null0,nix=1", "DPDK's log", "nix"]);
    refused(&at("net_memif0,role=nix"), &["net_memif0,role=nix", "DPDK's log"]);
    refused(&DpdkConfig { mtu: Some(9217), ..good.clone() }, &["9217", "net_null0", "576 to 9216"]);
    let memif = at("net_memif0,role=server,socket-abstract=yes,socket=spindrift-x,bsize=4096");
    refused(&DpdkConfig { mtu: Some(4083), ..memif.clone() }, &["4083", "576 to 4082", "bsize"]);
    refused(&DpdkConfig { mtu: Some(575), ..good.clone() }, &["575", "576"]);
    refused(&DpdkConfig { local: "::1".parse().unwrap(), ..good.clone() }, &["::1", "the address of a port"]);
    let many = DpdkPort::open_planes(eal, std::slice::from_ref(&good), 5000).unwrap_err().to_string();
    assert!(many.contains("5000 lanes") && many.contains("net_null"), "{many}");
    let large =
        DpdkConfig { rx_descriptors: 1 << 14, tx_descriptors: 1 << 14, mtu: Some(9000), ..good.clone() };
    let memory = DpdkPort::open_planes(eal, &[large], 3).unwrap_err().to_string();
    assert!(memory.contains("not enough memory") && memory.contains("memory_mib"), "{memory}");
    // None of that is in the way.
    drop(DpdkPort::open(eal, &good).unwrap());
    // But for this driver's socket, which stays in use until the process ends.
    drop(DpdkPort::open(eal, &at("net_memif0,role=server,socket-abstract=yes,socket=spindrift-y")).unwrap());
}

#[test]
fn pci_has_to_be_asked_for() {
    support::refused(&config("3b:00.0", V6[0]), 1, &["0000:3b:00.0 is a PCI device", "`pci`"]);
    let nic = EalConfig::for_devices(&[config("net_null0", V6[0]), config("3b:00.0", V6[0])]);
    assert!(nic.pci && nic.huge_pages);
    let none = EalConfig::for_devices(&[config("net_null0", V6[0])]);
    assert!(!none.pci && !none.huge_pages);
}

/// A child has a copy of its parent's ports. They are the parent's, and dropping one there harms nobody.
#[test]
fn a_childs_copies_are_not_its_own() {
    let devices = rings("f", 1);
    let open =
        |side: usize| DpdkPort::open(eal(), &introduced(&devices[side], V6[side], V6[1 - side])).unwrap();
    let (mut a, mut b) = (Some(open(0)), Some(open(1)));
    let done = in_child(|| {
        drop(a.take());
        drop(b.take());
        true
    });
    assert_eq!(done, Some(true));
    let (a, b) = (a.as_mut().unwrap(), b.as_mut().unwrap());
    let datagram = Datagram::new(a, V6[1], PORT, b"still there");
    support::deliver(a, b, &datagram, &mut 0);
}
