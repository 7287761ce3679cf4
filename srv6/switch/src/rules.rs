//! What a switch does to packets on their way, beside forwarding them.

use std::time::Duration;

use crate::{Port, SwitchError, Tables};

/// All that a switch does to packets on their way, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Each packet meets all of them, one after the other, until it is dropped.
    pub faults: Vec<Fault>,
    /// At most one for each port and direction. A packet meets that of the port that it comes in by, then that of the one that it leaves by.
    pub queues: Vec<Queue>,
}

/// Loses or marks packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// On which link.
    pub port: Crossing,
    /// Which packets.
    pub packets: Packets,
    /// How many of them, in millionths, 1 to [`ALWAYS`](Self::ALWAYS).
    pub chance: u32,
    /// What happens to them.
    pub action: Action,
    /// Which of the switch's counters counts them, from 0 on.
    pub counter: usize,
}

impl Fault {
    /// The chance of a fault that spares no packet.
    pub const ALWAYS: u32 = 1_000_000;
}

/// A port, by its interface, and which way packets cross it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Crossing {
    /// They come in by it.
    In(u32),
    /// They leave by it.
    Out(u32),
}

impl Crossing {
    /// The port's interface.
    #[must_use]
    pub const fn interface(self) -> u32 {
        match self {
            Self::In(interface) | Self::Out(interface) => interface,
        }
    }

    /// Whether packets come in by it.
    pub(crate) const fn is_in(self) -> bool {
        matches!(self, Self::In(_))
    }
}

/// Some of all packets. What is told by UDP is told by the packet's own header or by that of the packet inside it (IPv6 in IPv6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packets {
    /// All of them.
    All,
    /// Those with this UDP source port.
    Port(u16),
    /// Those with this entropy value: its upper half is the UDP source port, its lower half the lower 16 bits of the outer flow label.
    Ev(u32),
}

/// What a fault does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The packet is lost.
    Drop,
    /// It is marked CE (RFC 3168) if it may be.
    Mark,
}

/// A queue that a port would have if its link were this slow. No packet waits in it; it fills and drains as that queue would, and does
/// what a switch does when its queue is long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    /// Which packets are in it. One for those that come in by a port is that of the sender at the other end of the link.
    pub port: Crossing,
    /// Bits per second, of frames from the Ethernet header on; [`MIN_RATE`](Self::MIN_RATE) or more.
    pub rate: u64,
    /// A packet that would wait longer is trimmed or dropped; [`MAX_WAIT`](Self::MAX_WAIT) at most, and exact to a microsecond.
    pub limit: Duration,
    /// A packet that would wait longer is marked CE if it may be; `None` for never.
    pub mark: Option<Duration>,
    /// What there is no room for loses its payload only; `None` to drop it.
    pub trim: Option<Trim>,
}

impl Queue {
    /// The slowest, in bits per second.
    pub const MIN_RATE: u64 = 1000;
    /// The longest.
    pub const MAX_WAIT: Duration = Duration::from_mins(1);
}

/// How a switch trims packets: the front stays, with another DSCP (SAI's `SAI_SWITCH_ATTR_PACKET_TRIM_SIZE` and
/// `SAI_SWITCH_ATTR_PACKET_TRIM_DSCP_VALUE`). Trimmed packets go before others, but get no more than half of the rate (UEC 1.0.3), and are
/// dropped where they would wait for longer than the queue's limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trim {
    /// Bytes that are left, from the IPv6 header on: [`MIN_SIZE`](Self::MIN_SIZE) to the packet's own length. Shorter packets are dropped.
    pub size: u16,
    /// The packets that may be trimmed, by DSCP: one at least.
    pub of: Vec<u8>,
    /// The DSCP of those that are.
    pub dscp: u8,
}

impl Trim {
    /// The headers of IPv6 and UDP.
    pub const MIN_SIZE: u16 = 48;
}

impl Rules {
    /// Whether some rule tells packets apart by their UDP source ports.
    pub(crate) fn need_ports(&self) -> bool {
        self.faults.iter().any(|fault| fault.packets != Packets::All)
    }

    /// Fails on what the program could not do, or would do wrong.
    pub(crate) fn check(&self, tables: &Tables, counters: usize) -> Result<(), SwitchError> {
        let port = |interface: u32| tables.ports.get(&interface).ok_or(SwitchError::RuleNoPort(interface));
        let wrong = |interface: u32, what: &'static str| Err(SwitchError::Rule { interface, what });
        for fault in &self.faults {
            let interface = fault.port.interface();
            port(interface)?;
            if !(1..=Fault::ALWAYS).contains(&fault.chance) {
                return wrong(interface, "a chance is 1 to 1000000 millionths");
            }
            if fault.counter >= counters {
                return wrong(interface, "there is no such counter");
            }
        }
        for (at, queue) in self.queues.iter().enumerate() {
            let &Port { interface, .. } = port(queue.port.interface())?;
            if self.queues.iter().take(at).any(|other| other.port == queue.port) {
                return wrong(interface, "it has a queue for this direction already");
            }
            if queue.rate < Queue::MIN_RATE {
                return wrong(interface, "a queue has 1000 bits per second or more");
            }
            if queue.limit > Queue::MAX_WAIT || queue.mark.is_some_and(|mark| mark > Queue::MAX_WAIT) {
                return wrong(interface, "packets wait a minute at most");
            }
            let Some(trim) = &queue.trim else { continue };
            if trim.size < Trim::MIN_SIZE {
                return wrong(interface, "a trimmed packet has 48 bytes or more");
            }
            if trim.of.is_empty() {
                return wrong(interface, "no packets are to be trimmed");
            }
            if trim.of.iter().chain([&trim.dscp]).any(|&dscp| dscp > 63) {
                return wrong(interface, "a DSCP is 0 to 63");
            }
        }
        Ok(())
    }
}
