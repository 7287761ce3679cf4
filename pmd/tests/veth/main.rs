//! The UDP port over a veth pair between two network namespaces, made and removed by the test. Needs root and
//! `ip`; without them the test says so and passes.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::print_stderr, reason = "tests")]

mod paths;
mod tunnel;

use std::process::Command;
use std::time::{Duration, Instant};

use spindrift_pmd::testing::{Conformance, within};
use spindrift_pmd::udp::{SourcePorts, UdpConfig, UdpPort};
use spindrift_pmd::{DatagramMeta, LinkState, Medium, Port, TxFrame};

fn ip(args: &str) -> bool {
    Command::new("ip").args(args.split_whitespace()).output().is_ok_and(|out| out.status.success())
}

/// Two namespaces, gone when dropped.
struct Namespaces {
    names: [String; 2],
}

impl Namespaces {
    fn new(mtu: usize) -> Option<Self> {
        let names = ["a", "b"].map(|side| format!("sdtest-{side}-{mtu}-{}", std::process::id()));
        let this = Self { names };
        let [a, b] = &this.names;
        let made = ip(&format!("netns add {a}"))
            && ip(&format!("netns add {b}"))
            && ip(&format!(
                "link add sdva index 81 netns {a} mtu {mtu} type veth peer name sdvb index 82 netns {b} mtu {mtu}"
            ))
            && ip(&format!("-n {a} address add 10.98.0.1/24 dev sdva"))
            && ip(&format!("-n {b} address add 10.98.0.2/24 dev sdvb"))
            && ip(&format!("-n {a} address add fd98::1/64 dev sdva nodad"))
            && ip(&format!("-n {b} address add fd98::2/64 dev sdvb nodad"))
            && ip(&format!("-n {a} link set sdva up"))
            && ip(&format!("-n {b} link set sdvb up"));
        made.then_some(this)
    }

    /// Opens a port inside a namespace: sockets stay where they were made.
    fn open(&self, side: usize, address: &str) -> UdpPort {
        let cfg = UdpConfig {
            local: address.parse().unwrap(),
            source_ports: SourcePorts::Count(4),
            ..UdpConfig::default()
        };
        within(&self.names[side], || UdpPort::open(&cfg).unwrap())
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.names {
            ip(&format!("netns del {name}"));
        }
    }
}

/// Lets 100 Mb/s out of the first namespace, and no more than 128 KiB wait.
fn narrow(namespaces: &Namespaces) -> bool {
    let limit = "tbf rate 100mbit burst 128kb limit 128kb";
    let args = format!("-n {} qdisc replace dev sdva root {limit}", namespaces.names[0]);
    Command::new("tc").args(args.split_whitespace()).output().is_ok_and(|out| out.status.success())
}

/// What the queue of an interface drops comes back, and arrives when it is offered again: nothing is lost in silence.
#[test]
fn a_full_interface_queue_gives_frames_back() {
    const FRAMES: u16 = 2_000;
    let Some(namespaces) = Namespaces::new(1400) else {
        eprintln!("skipped: no permission to make network namespaces, or no `ip`");
        return;
    };
    if !narrow(&namespaces) {
        eprintln!("skipped: no `tc`, or a kernel without tbf");
        return;
    }
    for (from, to) in [("10.98.0.1", "10.98.0.2"), ("fd98::1", "fd98::2")] {
        let (mut a, mut b) = (namespaces.open(0, from), namespaces.open(1, to));
        let heads = heads(&a, &b);
        let payload = [7; 1_200];
        let tails: Vec<[u8; 2]> = (0..FRAMES).map(u16::to_be_bytes).collect();
        let frame = |i: &u16| TxFrame {
            head: &heads[usize::from(*i) % heads.len()],
            udp_payload_at: heads[0].len(),
            payload: (&payload).into(),
            tail: (&tails[usize::from(*i)]).into(),
            ticket: 0,
        };
        let (mut waiting, mut seen): (Vec<u16>, Vec<u16>) = ((0..FRAMES).collect(), Vec::new());
        let (mut now, mut idle, mut turned_away) = (0, 0, 0);
        while seen.len() < FRAMES.into() {
            now += 1_000;
            let room = a.tx_room(now);
            turned_away += usize::from(room == 0 && !waiting.is_empty());
            let burst: Vec<u16> = waiting.iter().copied().take(room.min(64)).collect();
            let taken = a.tx_burst(now, &burst.iter().map(frame).collect::<Vec<_>>());
            assert_eq!(taken, burst.len());
            let kept: Vec<u16> = a.unsent().iter().map(|&at| burst[usize::from(at)]).collect();
            assert!(kept.is_sorted(), "in their order: {kept:?}");
            if !kept.is_empty() {
                assert_eq!(
                    (a.tx_room(now), a.next_event_ns().is_some()),
                    (0, true),
                    "room is a matter of time"
                );
            }
            waiting.splice(..burst.len(), kept);
            let before = seen.len();
            b.rx_burst(now, 64, &mut |frame| {
                seen.push(u16::from_be_bytes(*frame.data.last_chunk().unwrap()));
            });
            idle = if seen.len() == before { idle + 1 } else { 0 };
            assert!(idle < 50_000_000, "{} frames arrived: {:?}", seen.len(), a.counters());
        }
        let counters = a.counters();
        println!("{from}: {turned_away} times no room, {counters:?}");
        seen.sort_unstable();
        assert!(seen.iter().copied().eq(0..FRAMES), "each once");
        assert!(counters.tx_unsent > 0 && counters.tx_full > 0 && turned_away > 0, "{counters:?}");
        assert_eq!((counters.tx_frames, counters.tx_dropped), (FRAMES.into(), 0), "{counters:?}");
        assert!(a.uses_gso(), "a full queue is no reason to give up segmentation");
    }
}

/// Headers of frames from one port to the other, one for each source port.
fn heads(a: &UdpPort, b: &UdpPort) -> Vec<Vec<u8>> {
    let ports = a.caps().source_ports.as_ref().unwrap();
    let head = |&src_port: &u16| {
        let meta = DatagramMeta {
            src: a.caps().local_ip,
            dst: b.caps().local_ip,
            src_port,
            dst_port: b.port(),
            flow_label: 0,
            traffic_class: 2,
            hop_limit: 64,
        };
        let mut head = [0; 62];
        let len = spindrift_pmd::testing::head(&meta, 1_202, &mut head);
        head[..len].to_vec()
    };
    ports.iter().map(head).collect()
}

/// Longer than anything takes; only what hangs meets it.
const PATIENCE: Duration = Duration::from_mins(1);

fn comes_true(mut is_so: impl FnMut() -> bool) -> bool {
    let began = Instant::now();
    while !is_so() {
        if began.elapsed() > PATIENCE {
            return false;
        }
    }
    true
}

/// Waits, but not for ever: the kernel tells of a link a little after it was set up or changed, more so under load.
fn link_becomes(port: &mut UdpPort, state: LinkState) -> bool {
    comes_true(|| port.link() == state)
}

#[test]
fn conforms_over_veth_and_sees_the_link() {
    for mtu in [9000, 1500] {
        let Some(namespaces) = Namespaces::new(mtu) else {
            eprintln!("skipped: no permission to make network namespaces, or no `ip`");
            return;
        };
        for (a, b) in [("10.98.0.1", "10.98.0.2"), ("fd98::1", "fd98::2")] {
            let (mut a, mut b) = (namespaces.open(0, a), namespaces.open(1, b));
            assert_eq!(a.caps().max_frame, mtu + 14);
            for port in [&mut a, &mut b] {
                assert!(link_becomes(port, LinkState::Up), "the link was set up");
            }
            Conformance::default().run(&mut a, &mut b);
        }
        let mut b = namespaces.open(1, "10.98.0.2");
        assert!(link_becomes(&mut b, LinkState::Up), "the link was set up");
        assert!(ip(&format!("-n {} link set sdva down", namespaces.names[0])));
        assert!(link_becomes(&mut b, LinkState::Down), "a peer that goes down takes the carrier away");
        assert!(ip(&format!("-n {} link set sdva up", namespaces.names[0])));
        assert!(link_becomes(&mut b, LinkState::Up));
    }
}

/// What the drivers of virtual links say of their rate (10 Gb/s, 10 Mb/s) means nothing.
#[test]
fn a_port_knows_a_network_from_its_own_host_and_believes_no_rate_of_a_virtual_link() {
    let Some(namespaces) = Namespaces::new(1400) else {
        eprintln!("skipped: no permission to make network namespaces, or no `ip`");
        return;
    };
    let medium = |address: &str| namespaces.open(0, address).caps().medium;
    assert!(ip(&format!("-n {} link set lo up", namespaces.names[0])));
    assert_eq!([medium("127.0.0.1"), medium("127.0.0.9")], [Medium::Host; 2]);
    let unknown = Medium::Network { rate_bps: None };
    assert_eq!([medium("10.98.0.1"), medium("fd98::1")], [unknown; 2]);
    let inside = |command: &str| ip(&format!("-n {} {command}", namespaces.names[0]));
    if inside("tuntap add mode tun name sdtun") {
        assert!(inside("address add 10.99.0.1/24 dev sdtun"));
        assert_eq!(medium("10.99.0.1"), unknown);
    }
}
