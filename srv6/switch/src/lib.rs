//! A switch of an SRv6 uSID fabric as an XDP program of Linux: about twice as fast as the kernel's own `seg6local`.
//!
//! The program takes what a switch does for nearly every packet: the next uSID moves up (RFC 9800 section 4.1), the hop limit falls,
//! and the packet leaves by a link that a segment names or that the kernel's own routes, neighbours and multipath rules
//! give (`bpf_fib_lookup`). Everything else goes on to the kernel, which stays a complete switch of its own with the same
//! segments: neighbour discovery, packets for the switch itself, ends of paths, routing headers, errors that are told by ICMP.
//!
//! What the kernel does to packets that it forwards, such as packet filters and queueing disciplines, does not happen to those that the
//! program takes. It has [`Rules`] of its own instead: loss and marks by chance, and virtual queues that mark, trim and drop.
//! A change of the rules is another program in the place of the first; counters and queues go on.

mod rules;
mod text;

use std::collections::BTreeMap;

use spindrift_bpf::{Array, Existing, Mode, Program};
use spindrift_srv6::{Behavior, F3216, TableError};

pub use rules::{Action, Crossing, Fault, Packets, Queue, Rules, Trim};

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
    /// It has no ports, or too many.
    #[error("a switch has 1 to {max} ports, not {0}", max = Switch::MAX_PORTS)]
    Ports(usize),
    /// Two ports have the same interface.
    #[error("two ports have interface {0}")]
    PortTwice(u32),
    /// A segment leads to a link that is none of the switch's.
    #[error("a segment leads to interface {0}, which is no port of the switch")]
    NoPort(u32),
    /// A rule is about a link that is none of the switch's.
    #[error("a rule is about interface {0}, which is no port of the switch")]
    RuleNoPort(u32),
    /// A rule contradicts itself or another.
    #[error("a rule for interface {interface}: {what}")]
    Rule {
        /// The port's interface.
        interface: u32,
        /// What is wrong.
        what: &'static str,
    },
    /// The numbers are not those of the switch.
    #[error("the map {0} is not that of the switch")]
    Other(u32),
    /// The kernel does not take the program.
    #[error(transparent)]
    Bpf(#[from] spindrift_bpf::Error),
}

/// What a switch has done with packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Sent on by its programs.
    pub forwarded: u64,
    /// Left to the kernel.
    pub passed: u64,
}

/// What a queue of a port has done with packets, as long as there was one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounts {
    /// Marked CE.
    pub marked: u64,
    /// Trimmed.
    pub trimmed: u64,
    /// Dropped.
    pub dropped: u64,
}

/// Places of the numbers that programs share with us: these, then the counters of faults, then those of each port's queue for packets
/// that come in, and of the one for those that leave.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
enum Count {
    Forwarded,
    Passed,
}

impl Count {
    const ALL: usize = 2;
}

/// Places among the numbers of a queue.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
enum QueueCount {
    /// When it will be empty, in the kernel's nanoseconds.
    EmptyAt,
    /// When that of the trimmed packets will be.
    TrimmedEmptyAt,
    Marked,
    Trimmed,
    Dropped,
}

impl QueueCount {
    const ALL: usize = 5;
}

/// Ports by their interfaces, and segments by block and uSID.
#[derive(Debug)]
struct Tables {
    ports: BTreeMap<u32, Port>,
    segments: BTreeMap<u64, Behavior<NextHop>>,
}

impl Tables {
    fn new(ports: &[Port], segments: &[(F3216, Behavior<NextHop>)]) -> Result<Self, SwitchError> {
        let mut this = Self { ports: BTreeMap::new(), segments: BTreeMap::new() };
        if !(1..=Switch::MAX_PORTS).contains(&ports.len()) {
            return Err(SwitchError::Ports(ports.len()));
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

    /// How many numbers a switch has.
    fn numbers(&self) -> usize {
        Count::ALL + Switch::COUNTERS + 2 * QueueCount::ALL * self.ports.len()
    }

    /// The place of a number of a queue.
    fn place(&self, port: Crossing, count: QueueCount) -> usize {
        let before = 2 * self.ports.range(..port.interface()).count() + usize::from(!port.is_in());
        Count::ALL + Switch::COUNTERS + QueueCount::ALL * before + count as usize
    }
}

/// The place of a counter of faults.
fn place_of_counter(counter: usize) -> usize {
    Count::ALL + counter
}

/// A switch: its tables, and numbers in the kernel that its programs share. They outlive this value, as long as a program that uses them
/// is on some interface.
#[derive(Debug)]
pub struct Switch {
    tables: Tables,
    numbers: Array,
}

impl Switch {
    /// The most ports.
    pub const MAX_PORTS: usize = 255;
    /// How many counters its faults have.
    pub const COUNTERS: usize = 1024;

    /// A switch with these ports and segments, whose numbers are all 0. Its routes are the kernel's.
    ///
    /// # Errors
    /// If the tables contradict themselves or the process may not make maps.
    pub fn new(ports: &[Port], segments: &[(F3216, Behavior<NextHop>)]) -> Result<Self, SwitchError> {
        let tables = Tables::new(ports, segments)?;
        let numbers = Array::new("usid_switch", tables.numbers())?;
        Ok(Self { tables, numbers })
    }

    /// The switch with these tables that somebody has made, by the [`id`](Self::id) of its numbers.
    ///
    /// # Errors
    /// If the tables contradict themselves, or the numbers are not those of such a switch.
    pub fn resume(
        ports: &[Port],
        segments: &[(F3216, Behavior<NextHop>)],
        id: u32,
    ) -> Result<Self, SwitchError> {
        let tables = Tables::new(ports, segments)?;
        let numbers = Array::by_id(id)?;
        if numbers.len() != tables.numbers() {
            return Err(SwitchError::Other(id));
        }
        Ok(Self { tables, numbers })
    }

    /// What [`resume`](Self::resume) finds its numbers by.
    ///
    /// # Errors
    /// If the process may not ask.
    pub fn id(&self) -> Result<u32, SwitchError> {
        Ok(self.numbers.id()?)
    }

    /// The program that forwards by the switch's tables and these rules, loaded, on no port yet.
    ///
    /// # Errors
    /// If the rules are not for this switch or the process may not load programs.
    pub fn load(&self, rules: &Rules) -> Result<Pipeline, SwitchError> {
        rules.check(&self.tables, Self::COUNTERS)?;
        let program = Program::load("usid_switch", text::text(&self.tables, rules, &self.numbers))?;
        Ok(Pipeline { ports: self.tables.ports.keys().copied().collect(), program })
    }

    /// What it has done so far.
    ///
    /// # Errors
    /// If the process may not ask.
    pub fn counts(&self) -> Result<Counts, SwitchError> {
        let all = self.numbers.read()?;
        let count = |at: Count| all.get(at as usize).copied().unwrap_or_default();
        Ok(Counts { forwarded: count(Count::Forwarded), passed: count(Count::Passed) })
    }

    /// All counters of its faults.
    ///
    /// # Errors
    /// If the process may not ask.
    pub fn counters(&self) -> Result<Vec<u64>, SwitchError> {
        let all = self.numbers.read()?;
        Ok(all.into_iter().skip(place_of_counter(0)).take(Self::COUNTERS).collect())
    }

    /// Sets counters to 0, for faults that are to use them.
    ///
    /// # Errors
    /// If there is no such counter, or the process may not do it.
    pub fn clear(&self, counters: &[usize]) -> Result<(), SwitchError> {
        let places: Vec<_> = counters.iter().map(|&counter| place_of_counter(counter)).collect();
        Ok(self.numbers.clear(&places)?)
    }

    /// Empties queues, for rules that give them another rate: what a queue holds is kept as a time, which the new rate would make another
    /// number of bytes. Queues of ports that the switch does not have are none.
    ///
    /// # Errors
    /// If the process may not do it.
    pub fn empty(&self, queues: &[Crossing]) -> Result<(), SwitchError> {
        let there = queues.iter().filter(|port| self.tables.ports.contains_key(&port.interface()));
        let times = [QueueCount::EmptyAt, QueueCount::TrimmedEmptyAt];
        let places = there.flat_map(|&port| times.map(|time| self.tables.place(port, time)));
        let places: Vec<_> = places.collect();
        Ok(self.numbers.clear(&places)?)
    }

    /// What a queue of a port has done; nothing, if there is none or no such port.
    ///
    /// # Errors
    /// If the process may not ask.
    pub fn queue(&self, port: Crossing) -> Result<QueueCounts, SwitchError> {
        if !self.tables.ports.contains_key(&port.interface()) {
            return Ok(QueueCounts::default());
        }
        let all = self.numbers.read()?;
        let count = |at| all.get(self.tables.place(port, at)).copied().unwrap_or_default();
        Ok(QueueCounts {
            marked: count(QueueCount::Marked),
            trimmed: count(QueueCount::Trimmed),
            dropped: count(QueueCount::Dropped),
        })
    }
}

/// A program for the ports of a switch. Those of which it is on keep it when this value goes.
#[derive(Debug)]
pub struct Pipeline {
    ports: Vec<u32>,
    program: Program,
}

impl Pipeline {
    /// Has every port take its packets through the program. The ports are those of this thread's network namespace, and stay so when the
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

    /// Like [`attach`](Self::attach), in the place of the programs that the ports have. Each packet meets the old one or the new one.
    ///
    /// # Errors
    /// At the first port that cannot have it; those before have it.
    pub fn replace(&self, mode: Mode) -> Result<(), SwitchError> {
        for &port in &self.ports {
            spindrift_bpf::attach(port, &self.program, mode, Existing::Replace)?;
        }
        Ok(())
    }

    /// Leaves all packets of all ports to the kernel again, whichever program they have.
    ///
    /// # Errors
    /// If a port is gone; the others are done first.
    pub fn detach(&self, mode: Mode) -> Result<(), SwitchError> {
        let ends = self.ports.iter().map(|&port| spindrift_bpf::detach(port, mode));
        // All of them, not only up to the first error.
        ends.fold(Ok(()), Result::and).map_err(SwitchError::from)
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
        has(error(&[], &[]), "1 to 255 ports");
        let twice = [(segment(&[1]), Behavior::Node), (segment(&[1]), Behavior::Decapsulate)];
        has(error(&[port(8)], &twice), "fcbb:bb00:1::/48");
        has(error(&[port(8)], &[(segment(&[1, 2]), Behavior::Node)]), "fcbb:bb00:1:2::");
    }
}
