//! The raw pump over shared memory, sender and receiver in two threads.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs, reason = "tests")]

mod support;

use std::net::IpAddr;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use spindrift_dpdk::pump::{PumpConfig, PumpError, Receiver, receive, send};
use spindrift_dpdk::{DpdkConfig, DpdkError};
use spindrift_pmd::MacAddr;
use spindrift_pmd::pump::PumpStats;

use support::{V4, V6, config, eal};

/// Tests of this driver take turns: it frees memory twice where one device connects while another one closes (DPDK 22.11).
static TURN: Mutex<()> = Mutex::new(());

const SIGSEGV: i32 = 11;

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn side(name: &str, side: usize, addresses: [&str; 2]) -> PumpConfig {
    let (role, socket) =
        (["server", "client"][side], format!("spindrift-pump-{}-{name}", std::process::id()));
    let device =
        format!("net_memif_{name}{role},role={role},bsize=10240,rsize=8,socket-abstract=yes,socket={socket}");
    PumpConfig {
        port: DpdkConfig { mtu: Some(9000), ..config(&device, addresses[side]) },
        duration: Duration::from_mins(1),
        ..PumpConfig::default()
    }
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Has the client send to the server, and returns what each has moved.
fn pump(sending: &PumpConfig, receiving: &PumpConfig) -> [PumpStats; 2] {
    let stop = AtomicBool::new(false);
    let receiver = Receiver::open(eal(), receiving).unwrap();
    assert!(receiver.notes().iter().any(|note| note.contains("net_memif")), "{:?}", receiver.notes());
    std::thread::scope(|scope| {
        let received = scope.spawn(|| receiver.run(&stop));
        let sent = send(eal(), sending, receiving.port.local, &stop);
        let began = Instant::now();
        while !received.is_finished() && began.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(1));
        }
        stop.store(true, Ordering::Relaxed);
        [sent.unwrap(), received.join().unwrap()]
    })
}

/// Runs a test in a process of its own, again if that crashes.
///
/// Where a peer disconnects, the EAL's interrupt thread unmaps the rings of `net_memif`, also while a burst reads or writes them (DPDK
/// 22.11): the process may crash then.
fn in_child(name: &str, test: impl FnOnce()) {
    const IN_CHILD: &str = "SPINDRIFT_TEST_IN_CHILD";
    const ATTEMPTS: usize = 5;
    if std::env::var_os(IN_CHILD).is_some() {
        return test();
    }
    let _turn = turn();
    let ends_well = || {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", name, "--nocapture"]).env(IN_CHILD, "1").stdin(Stdio::null());
        let status = command.status().unwrap();
        assert!(status.success() || status.signal() == Some(SIGSEGV), "{status}");
        status.success()
    };
    assert!((0..ATTEMPTS).any(|_| ends_well()), "the process crashed in each of {ATTEMPTS} attempts");
}

/// Every packet that was sent comes, with the right CRC; the sender finds the receiver's Ethernet address.
#[test]
fn what_is_sent_arrives() {
    in_child("what_is_sent_arrives", what_is_sent_arrives_here);
}

fn what_is_sent_arrives_here() {
    for (name, addresses, payload, crc_copy) in [
        ("a", V6, 64, false),
        ("b", V6, 4096, true),
        ("c", V4, 4096, false),
        ("d", V4, 1, true),
        ("e", V6, 8892, true),
    ] {
        let [mut receiving, mut sending] = [0, 1].map(|n| side(name, n, addresses));
        for config in [&mut sending, &mut receiving] {
            (config.payload, config.crc_copy) = (payload, crc_copy);
        }
        sending.bytes = Some(3000 * payload as u64);
        let [sent, received] = pump(&sending, &receiving);
        let what = format!("{payload} bytes to {}: {sent:?}, {received:?}", addresses[0]);
        assert!((3000..3032).contains(&sent.packets), "{what}");
        assert_eq!(sent.packets, received.packets, "{what}");
        assert_eq!(received.dropped, Some(0), "{what}");
        for stats in [sent, received] {
            assert_eq!(stats.payload_bytes, stats.packets * payload as u64, "{what}");
            assert!(stats.errors == 0 && stats.calls > 0 && stats.gbps() > 0.0, "{what}");
        }
    }
}

/// A receiver that wants CRCs counts what has none.
#[test]
fn wrong_crcs_are_counted() {
    in_child("wrong_crcs_are_counted", wrong_crcs_are_counted_here);
}

fn wrong_crcs_are_counted_here() {
    let [mut receiving, mut sending] = [0, 1].map(|n| side("crc", n, V6));
    receiving.crc_copy = true;
    sending.bytes = Some(100 * 4096);
    let [sent, received] = pump(&sending, &receiving);
    assert_eq!((sent.packets, received.errors), (received.packets, received.packets), "{received:?}");
}

/// A sender whose peer is gone ends soon, and a receiver that is told to ends at once.
#[test]
fn both_end_early() {
    in_child("both_end_early", both_end_early_here);
}

fn both_end_early_here() {
    let [receiving, sending] = [0, 1].map(|n| side("end", n, V6));
    let (stop, go_on) = (AtomicBool::new(false), AtomicBool::new(false));
    let receiver = Receiver::open(eal(), &receiving).unwrap();
    let began = Instant::now();
    std::thread::scope(|scope| {
        let received = scope.spawn(|| receiver.run(&stop));
        let sent = scope.spawn(|| send(eal(), &sending, receiving.port.local, &go_on).unwrap());
        std::thread::sleep(Duration::from_millis(300));
        stop.store(true, Ordering::Relaxed);
        let received = received.join().unwrap();
        let sent = sent.join().unwrap();
        assert!(received.packets > 0 && sent.packets >= received.packets, "{sent:?} {received:?}");
    });
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

#[test]
fn what_cannot_be_pumped_is_refused() {
    let _turn = turn();
    let stop = AtomicBool::new(false);
    let to = |config: &PumpConfig, remote: &str| send(eal(), config, address(remote), &stop).unwrap_err();
    let mut alone = PumpConfig { port: config("net_null_pump", V6[0]), ..PumpConfig::default() };
    assert!(matches!(to(&alone, V4[1]), PumpError::Family { .. }));
    let text = to(&alone, V6[1]).to_string();
    assert!(text.contains("4096 bytes makes frames of 4202") && text.contains("up to 1514"), "{text}");
    let text = receive(eal(), &alone, &stop).unwrap_err().to_string();
    assert!(text.contains("frames of 4202"), "{text}");
    alone.payload = 64;
    let text = to(&alone, V6[1]).to_string();
    assert!(text.contains("no neighbour answers") && text.contains(V6[1]), "{text}");
    let text = to(&side("nobody", 0, V6), V6[1]).to_string();
    assert!(text.contains("no link") && text.contains("other end"), "{text}");
    let mut nobody = side("noserver", 1, V6);
    let text = to(&nobody, V6[0]).to_string();
    assert!(text.contains("Failed to connect socket"), "{text}");
    nobody.port.device = "net_nix0".to_owned();
    assert!(matches!(to(&nobody, V6[1]), PumpError::Port(DpdkError::NoDriver { .. })));
    // A neighbour that is known is not asked for, and this device takes everything.
    alone.port.neighbours = vec![(address(V6[1]), MacAddr([2; 6]))];
    alone.bytes = Some(64);
    assert!(send(eal(), &alone, address(V6[1]), &stop).unwrap().packets > 0);
}
