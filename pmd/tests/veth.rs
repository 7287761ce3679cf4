//! The UDP port over a veth pair between two network namespaces, made and removed by the test. Needs root and
//! `ip`; without them the test says so and passes.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::print_stderr, reason = "tests")]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::process::Command;

use spindrift_pmd::testing::Conformance;
use spindrift_pmd::udp::{SourcePorts, UdpConfig, UdpPort};
use spindrift_pmd::{LinkState, Port};

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
        let namespace = File::open(format!("/run/netns/{}", self.names[side])).unwrap();
        let cfg = UdpConfig {
            local: address.parse().unwrap(),
            source_ports: SourcePorts::Count(4),
            ..UdpConfig::default()
        };
        std::thread::scope(|scope| {
            let opened = scope.spawn(|| {
                // SAFETY: a live descriptor; only this short thread changes its namespace.
                assert_eq!(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) }, 0);
                UdpPort::open(&cfg).unwrap()
            });
            opened.join().unwrap()
        })
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.names {
            ip(&format!("netns del {name}"));
        }
    }
}

fn link_becomes(port: &mut UdpPort, state: LinkState) -> bool {
    // The kernel tells the other end a little later.
    (0..5_000_000).any(|_| port.link() == state)
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
            Conformance::default().run(&mut a, &mut b);
        }
        let mut b = namespaces.open(1, "10.98.0.2");
        assert_eq!(b.link(), LinkState::Up);
        assert!(ip(&format!("-n {} link set sdva down", namespaces.names[0])));
        assert!(link_becomes(&mut b, LinkState::Down), "a peer that goes down takes the carrier away");
        assert!(ip(&format!("-n {} link set sdva up", namespaces.names[0])));
        assert!(link_becomes(&mut b, LinkState::Up));
    }
}
