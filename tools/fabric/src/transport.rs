//! What runs on a host: the transport under test, behind one trait.

use std::sync::Arc;

use spindrift::endpoint::DenyList;
use spindrift::time::Time;

use crate::packet::Packet;
use crate::pfc::Free;

/// A message to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Comes back when it is complete.
    pub tag: u32,
    /// Bytes of it, at least 1.
    pub len: u32,
    /// Whether the receiver is told that it has arrived, with the tag.
    pub notify: bool,
}

/// What a transport tells whoever uses it. A flow is called by the number that it has at its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowEvent {
    /// A message is complete: all of it is at the receiver, and the sender knows.
    Sent {
        /// The flow.
        flow: u32,
        /// The message's.
        tag: u32,
    },
    /// A message that notifies has arrived, after all that were sent before it.
    Received {
        /// The flow.
        flow: u32,
        /// The message's.
        tag: u32,
    },
    /// The flow has failed: nothing more comes of it.
    Failed {
        /// The flow.
        flow: u32,
        /// Why.
        why: &'static str,
    },
}

/// Why two hosts cannot be connected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot connect: {0}")]
pub struct ConnectError(pub String);

/// The transport of a host as a network sees it: no clock, no socket, no thread.
pub trait Transport {
    /// What it tells whoever drives the network.
    type Event;

    /// A packet has come in on a plane.
    fn receive(&mut self, now: Time, plane: u8, packet: &Packet);

    /// Makes `out` the next packet to send, on a plane that is free for the packet's class. `false` when there is none.
    fn transmit(&mut self, now: Time, free: Free, out: &mut Packet) -> bool;

    /// When [`on_timeout`](Self::on_timeout) has to be called.
    fn next_timeout(&self) -> Time;

    /// That time has come.
    fn on_timeout(&mut self, now: Time);

    /// The host stood still from one time to the other, which is now, and goes on.
    fn on_pause(&mut self, from: Time, until: Time);

    /// The host's port in a plane has found or lost its carrier.
    fn carrier(&mut self, now: Time, plane: u8, up: bool);

    /// The next thing to know, oldest first.
    fn poll(&mut self) -> Option<Self::Event>;
}

/// A transport that carries messages, for [workloads](crate::workload).
pub trait Messenger: Transport<Event = FlowEvent> + Sized {
    /// Makes a flow between two hosts, and returns its number at each. Either may send on it.
    ///
    /// # Errors
    /// Why there can be none.
    fn connect(now: Time, one: &mut Self, other: &mut Self) -> Result<[u32; 2], ConnectError>;

    /// Sends a message on a flow; `false` if the flow has failed or holds as many as it can.
    fn post(&mut self, now: Time, flow: u32, message: Message) -> bool;

    /// What it has done since it was made.
    fn stats(&self) -> TransportStats;

    /// Has it avoid some paths from now on; it may have no paths to choose from.
    fn set_deny_list(&mut self, _now: Time, _list: &Arc<DenyList>) {}

    /// The states of a flow's entropy values, by plane; nothing for a transport that has none.
    fn evs(&self, _flow: u32) -> Vec<EvStateCounts> {
        Vec::new()
    }
}

/// What a transport has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransportStats {
    /// Payload that was placed in the host's memory, each byte once.
    pub placed_bytes: u64,
    /// Data packets sent, repeats included.
    pub sent: u64,
    /// Those sent again.
    pub repeats: u64,
    /// Losses declared, whatever they were seen by.
    pub losses: u64,
    /// Times that nothing had come back for too long.
    pub timeouts: u64,
    /// Packets that came in marked.
    pub marked: u64,
    /// Packets that came in trimmed.
    pub trimmed: u64,
    /// Congestion notification packets that came in, of a transport that has them (DCQCN).
    pub cnps: u64,
    /// Negative acknowledgements for a gap in the sequence that came in, of a transport that has them (go-back-N).
    pub sequence_naks: u64,
}

/// How many of a flow's entropy values are in which state, in one plane (MRC paper, section 3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EvStateCounts {
    /// In use.
    pub good: u32,
    /// In use, and passed over once more for congestion.
    pub skip: u32,
    /// Good, and in reserve.
    pub reserve: u32,
    /// Out of use until a probe comes back.
    pub assumed_bad: u32,
    /// Out of use until somebody says otherwise.
    pub denied: u32,
    /// Out of use, whatever their own state, because the plane is closed: a port is down here or, as far as is known, at the peer.
    pub closed: u32,
}
