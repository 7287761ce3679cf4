//! A switch of an SRv6 uSID fabric as an XDP program of Linux: about twice as fast as the kernel's own `seg6local`.
//!
//! The program takes what a switch does for nearly every packet: the next uSID moves up (RFC 9800 section 4.1), the hop limit falls,
//! and the packet leaves by a link that a segment names or that the kernel's own routes, neighbours and multipath rules
//! give (`bpf_fib_lookup`). Everything else goes on to the kernel, which stays a complete switch of its own with the same
//! segments: neighbour discovery, packets for the switch itself, ends of paths, routing headers, errors that are told by ICMP.
//!
//! What the kernel does to packets that it forwards, such as packet filters and queueing disciplines, does not happen to those that the
//! program takes.

mod text;

use std::collections::BTreeMap;

use spindrift_bpf::{Array, Existing, Mode, Program};
use spindrift_srv6::{Behavior, F3216, TableError};

/// A link of a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// The number of its interface, which no other has.
    pub interface: u32,
    /// The address of the interface. Packets to another one are none of the switch's.
    pub mac: [u8; 6],
    /// The longest packet that a segment may send over it, in bytes from the IP header on.
    pub mtu: u16,
}

/// Where packets for a segment go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextHop {
    /// By the port with this interface,
    pub interface: u32,
    /// to the neighbour with this address.
    pub mac: [u8; 6],
}

/// Why there is no such switch.
#[derive(Debug, thiserror::Error)]
pub enum SwitchError {
    /// Its segments contradict each other.
    #[error(transparent)]
    Table(#[from] TableError),
    /// It has no ports.
    #[error("a switch without ports forwards nothing")]
    NoPorts,
    /// Two ports have the same interface.
    #[error("two ports have interface {0}")]
    PortTwice(u32),
    /// A segment leads to a link that is none of the switch's.
    #[error("a segment leads to interface {0}, which is no port of the switch")]
    NoPort(u32),
    /// The kernel does not take the program.
    #[error(transparent)]
    Bpf(#[from] spindrift_bpf::Error),
}

/// What a switch has done with packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Sent on by the program.
    pub forwarded: u64,
    /// Left to the kernel.
    pub passed: u64,
}

/// Places of the numbers that the program shares with us.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
enum Count {
    Forwarded,
    Passed,
}

impl Count {
    const ALL: usize = 2;
}

/// Ports by their interfaces, and segments by block and uSID.
struct Tables {
    ports: BTreeMap<u32, Port>,
    segments: BTreeMap<u64, Behavior<NextHop>>,
}

impl Tables {
    fn new(ports: &[Port], segments: &[(F3216, Behavior<NextHop>)]) -> Result<Self, SwitchError> {
        let mut this = Self { ports: BTreeMap::new(), segments: BTreeMap::new() };
        if ports.is_empty() {
            return Err(SwitchError::NoPorts);
        }
        for &port in ports {
            if this.ports.insert(port.interface, port).is_some() {
                return Err(SwitchError::PortTwice(port.interface));
            }
        }
        for &(segment, behavior) in segments {
            if segment.len() != 1 {
                return Err(TableError::NotOneUsid(segment).into());
            }
            match behavior {
                Behavior::Adjacency(next) if !this.ports.contains_key(&next.interface) => {
                    return Err(SwitchError::NoPort(next.interface));
                }
                _ => {}
            }
            if this.segments.insert(segment.locator(), behavior).is_some() {
                return Err(TableError::Twice(segment.prefix()).into());
            }
        }
        Ok(this)
    }
}

/// A switch: a program in the kernel with its counters, on no port at first.
#[derive(Debug)]
pub struct Switch {
    ports: Vec<u32>,
    program: Program,
    counts: Array,
}

impl Switch {
    /// A switch with these ports and segments. Its routes are the kernel's.
    ///
    /// # Errors
    /// If the tables contradict themselves or the process may not load programs.
    pub fn load(ports: &[Port], segments: &[(F3216, Behavior<NextHop>)]) -> Result<Self, SwitchError> {
        let tables = Tables::new(ports, segments)?;
        let counts = Array::new("usid_switch", Count::ALL)?;
        let program = Program::load("usid_switch", text::text(&tables, &counts))?;
        Ok(Self { ports: tables.ports.into_keys().collect(), program, counts })
    }

    /// Has every port take its packets through the switch. The ports are those of this thread's network namespace, and stay so when the
    /// process ends. In [`Mode::Native`] what is at the other end of a `veth` port must take packets as frames: a
    /// program of its own, or generic receive offload (`ethtool -K NAME gro on`), is what makes it.
    ///
    /// # Errors
    /// If a port has a program already or cannot have one. None has this one then.
    pub fn attach(&self, mode: Mode) -> Result<(), SwitchError> {
        for (at, &port) in self.ports.iter().enumerate() {
            if let Err(error) = spindrift_bpf::attach(port, &self.program, mode, Existing::Refuse) {
                for &port in self.ports.iter().take(at) {
                    spindrift_bpf::detach(port, mode)?;
                }
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Leaves all packets of all ports to the kernel again.
    ///
    /// # Errors
    /// If a port is gone; the others are done first.
    pub fn detach(&self, mode: Mode) -> Result<(), SwitchError> {
        let ends = self.ports.iter().map(|&port| spindrift_bpf::detach(port, mode));
        // All of them, not only up to the first error.
        ends.fold(Ok(()), Result::and).map_err(SwitchError::from)
    }

    /// What it has done so far.
    ///
    /// # Errors
    /// If the process may not ask.
    pub fn counts(&self) -> Result<Counts, SwitchError> {
        let all = self.counts.read()?;
        let count = |at: Count| all.get(at as usize).copied().unwrap_or_default();
        Ok(Counts { forwarded: count(Count::Forwarded), passed: count(Count::Passed) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_that_contradict_themselves_are_refused() {
        let port = |interface| Port { interface, mac: [2, 0, 0, 0, 0, 1], mtu: 1500 };
        let segment = |usids: &[u16]| F3216::new(0xfcbb_bb00, usids).unwrap();
        let adjacency = |interface| Behavior::Adjacency(NextHop { interface, mac: [2; 6] });
        let error = |ports: &[Port], segments: &[(F3216, Behavior<NextHop>)]| {
            Tables::new(ports, segments).err().map(|error| error.to_string())
        };
        let both = [(segment(&[1]), Behavior::Node), (segment(&[2]), adjacency(7))];
        assert_eq!(error(&[port(7), port(8)], &both), None);
        let has =
            |error: Option<String>, part: &str| assert!(error.as_ref().unwrap().contains(part), "{error:?}");
        has(error(&[port(7), port(7)], &[]), "interface 7");
        has(error(&[port(8)], &both), "interface 7");
        has(error(&[], &[]), "without ports");
        let twice = [(segment(&[1]), Behavior::Node), (segment(&[1]), Behavior::Decapsulate)];
        has(error(&[port(8)], &twice), "fcbb:bb00:1::/48");
        has(error(&[port(8)], &[(segment(&[1, 2]), Behavior::Node)]), "fcbb:bb00:1:2::");
    }
}
