//! Two hosts for tests: network namespaces with cables between them.

use std::fs;
use std::process::{Command, Stdio};

use super::within;

/// Two network namespaces, joined by veth pairs: the interfaces `n0`, `n1`, .. of one are connected to those of the other. All of it
/// goes when this is dropped.
///
/// It needs root and `ip`.
#[derive(Debug)]
pub struct Hosts {
    names: [String; 2],
}

/// Whether a command of iproute2 succeeds.
fn ip(args: &str) -> bool {
    let mut command = Command::new("ip");
    command.args(args.split_whitespace()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

impl Hosts {
    /// Makes them, with so many links that are up and have no addresses. `None` without the right to do so. `test` keeps tests apart.
    ///
    /// # Panics
    /// When something else fails.
    pub fn new(test: &str, links: usize) -> Option<Self> {
        let names = ["a", "b"].map(|side| format!("sdhosts-{test}-{side}-{}", std::process::id()));
        let this = Self { names };
        if !ip(&format!("netns add {}", this.names[0])) {
            return None;
        }
        assert!(ip(&format!("netns add {}", this.names[1])), "the second namespace");
        for n in 0..links {
            let [a, b] = &this.names;
            let pair = format!("link add n{n} netns {a} type veth peer name n{n} netns {b}");
            assert!(ip(&pair), "ip {pair}");
        }
        for side in 0..2 {
            this.ip(side, "link set lo up");
            for n in 0..links {
                // Addresses can be used at once.
                this.sysctl(side, &format!("ipv6/conf/n{n}/accept_dad"), "0");
                this.ip(side, &format!("link set n{n} up"));
            }
        }
        Some(this)
    }

    /// The namespace of one side, as [`within`] takes it.
    pub fn name(&self, side: usize) -> &str {
        &self.names[side]
    }

    /// Runs `ip` on one side.
    ///
    /// # Panics
    /// When it fails.
    pub fn ip(&self, side: usize, args: &str) {
        assert!(ip(&format!("-n {} {args}", self.names[side])), "ip {args}");
    }

    /// Runs `ip` on both sides.
    ///
    /// # Panics
    /// When it fails.
    pub fn both(&self, args: [&str; 2]) {
        self.ip(0, args[0]);
        self.ip(1, args[1]);
    }

    /// Sets a value below `/proc/sys/net` on one side.
    ///
    /// # Panics
    /// When it cannot be set.
    pub fn sysctl(&self, side: usize, path: &str, value: &str) {
        let written = within(&self.names[side], || fs::write(format!("/proc/sys/net/{path}"), value));
        assert!(written.is_ok(), "{path} {value}: {written:?}");
    }

    /// A command that runs on one side.
    pub fn command(&self, side: usize, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[side], program]);
        command
    }

    /// Bytes that an interface of one side has sent.
    ///
    /// # Panics
    /// When there is no such interface.
    #[expect(clippy::panic, reason = "it fails the test that calls it")]
    pub fn sent(&self, side: usize, interface: &str) -> u64 {
        let path = format!("/sys/class/net/{interface}/statistics/tx_bytes");
        // That folder shows the namespace in which it was mounted, which `ip netns exec` does.
        let out = self.command(side, "cat").arg(&path).output();
        let text = out.map(|out| String::from_utf8_lossy(&out.stdout).trim().to_owned()).unwrap_or_default();
        text.parse().unwrap_or_else(|_| panic!("{path}: {text}"))
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            ip(&format!("netns del {name}"));
        }
    }
}
