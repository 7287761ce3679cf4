//! Ports: send and receive the frames of a lane.
//!
//! A [`Port`] is one plane: one NIC port, one kernel address, or one end of a shared ring. A NIC is a list of ports,
//! and a port's index in that list is its plane number. The trait handles frames and addresses; only the transport
//! above interprets their bytes.
//!
//! | module | content |
//! |---|---|
//! | [`loopback`] | two ends of a shared ring, for two lanes of one process |
//! | [`device`] | what the kernel reports about a network interface |
//! | [`neighbours`] | for ports that bypass the kernel: the Ethernet addresses of next hops, from the kernel's tables |
//! | [`netlink`] | the kernel's interfaces, addresses, routes and neighbours |
//! | [`udp`] | kernel sockets with segmentation and receive offload, no privileges needed |
//! | [`fork`] | the process that made an object; a child has copies of its objects |
//! | [`fault`] | over any port: loss, reordering, duplication, corruption, delay, ECN marks, trimming |
//! | [`pcap`] | over any port: a nanosecond capture file |
//! | [`rate`] | over any port: a link that is slower |
//! | [`route`] | local addresses, and the routes from them to peers |
//! | [`shared_interface`] | for ports that bypass the kernel: link and next hops of an interface shared with it |
//! | [`trace`] | over any port: one line of text per frame |
//! | [`pump`] | raw UDP offload sender and receiver: the reference rate of the `udp` port |
//! | `testing` | (feature) how to write a port, the conformance run for every port, access to network namespaces |
//!
//! A poll loop drives a port like this:
//!
//! ```
//! use spindrift_pmd::{loopback, Port, TxFrame};
//!
//! let (mut left, mut right) = loopback::pair(1, loopback::LoopbackConfig::default());
//! let now_ns = 0;
//! let frame = TxFrame { head: &[0; 62], udp_payload_at: 62, payload: b"bytes".into(), tail: (&[]).into(), ticket: 0 };
//! assert_eq!(left[0].tx_burst(now_ns, &[frame]), 1);
//! left[0].flush(now_ns);
//! let got = right[0].rx_burst(now_ns, 32, &mut |frame| assert_eq!(&frame.data[62..], b"bytes"));
//! assert_eq!(got, 1);
//! ```

pub mod device;
pub mod fault;
pub mod fork;
mod forward;
pub mod loopback;
pub mod neighbours;
pub mod netlink;
pub mod pcap;
pub mod pump;
pub mod rate;
pub mod route;
pub mod shared_interface;
mod steering;
#[cfg(feature = "testing")]
pub mod testing;
pub mod trace;
pub mod tunnel;
pub mod udp;

use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use memory::Payload;
pub use spindrift_memory as memory;
use spindrift_wire::frame;
pub use spindrift_wire::{DatagramMeta, ETHERNET_LEN, MacAddr, batch_ids};
pub use steering::{Steering, SteeringException};

/// One frame to send, in the pieces that the port joins.
#[derive(Clone, Copy, Debug)]
pub struct TxFrame<'a> {
    /// Ethernet, IP, UDP and transport headers, contiguous.
    pub head: &'a [u8],
    /// Offset in `head` of the first byte after the UDP header.
    pub udp_payload_at: usize,
    /// Payload bytes, often a part of registered memory.
    pub payload: Payload<'a>,
    /// The bytes after the payload.
    pub tail: Tail<'a>,
    /// The sender's number of a frame whose payload is part of a region. It never decreases from frame to frame. See
    /// [`Port::reap`].
    pub ticket: u64,
}

/// The end of a frame, after its payload.
#[derive(Clone, Copy, Debug)]
pub enum Tail<'a> {
    /// These bytes.
    Bytes(&'a [u8]),
    /// Four bytes that the port computes: the CRC-32 of Ethernet, least significant byte first. It continues over the
    /// payload from this value, which is the CRC of the bytes before it (0 if there are none). A port whose packets
    /// leave with an IPv4 identification other than the frame's adjusts the CRC: see [`batch_ids`].
    ///
    /// A port that copies the payload computes the CRC over its copy, which is in the cache and cannot change.
    Crc32(u32),
}

impl Tail<'_> {
    /// Bytes of a CRC.
    pub const CRC_LEN: usize = 4;

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Crc32(_) => Self::CRC_LEN,
        }
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<'a> From<&'a [u8]> for Tail<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self::Bytes(bytes)
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Tail<'a> {
    fn from(bytes: &'a [u8; N]) -> Self {
        Self::Bytes(bytes)
    }
}

impl<'a> TxFrame<'a> {
    /// The bytes after the UDP header, up to the tail.
    #[inline]
    pub fn udp_payload(&self) -> [Payload<'a>; 2] {
        [self.head.get(self.udp_payload_at..).unwrap_or_default().into(), self.payload]
    }

    /// The tail's bytes: those given, or the CRC computed now, in `room`.
    #[inline]
    pub fn tail<'b>(&self, room: &'b mut [u8; Tail::CRC_LEN]) -> &'b [u8]
    where
        'a: 'b,
    {
        match self.tail {
            Tail::Bytes(bytes) => bytes,
            Tail::Crc32(state) => {
                *room = self.payload.crc32(state).to_le_bytes();
                room
            }
        }
    }

    /// Bytes of the whole Ethernet frame.
    pub fn len(&self) -> usize {
        self.head.len() + self.payload.len() + self.tail.len()
    }

    /// Whether the frame has no bytes at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Where the data of a received frame begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RxOrigin {
    /// At the Ethernet header.
    Ethernet,
    /// After the UDP header: a kernel socket removed the headers and kept these fields.
    Udp(DatagramMeta),
}

/// One received frame: the bytes of `data`, then those of `rest`. They are valid until the callback that gets them
/// returns.
#[derive(Clone, Copy, Debug)]
pub struct RxFrame<'a> {
    /// Where `data` starts.
    pub origin: RxOrigin,
    /// The whole frame, or its first part with all headers. Private to the port: it does not change.
    pub data: &'a [u8],
    /// The parts in other places: further buffers, or the sender's own memory, which may change while it is read.
    pub rest: &'a [Payload<'a>],
}

impl<'a> RxFrame<'a> {
    /// A frame in one piece.
    #[inline]
    pub const fn whole(origin: RxOrigin, data: &'a [u8]) -> Self {
        Self { origin, data, rest: &[] }
    }

    /// Length in bytes, from the start that `origin` names.
    #[inline]
    pub fn len(&self) -> usize {
        self.data.len() + self.rest.iter().map(Payload::len).sum::<usize>()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends a copy of all bytes.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.data);
        for piece in self.rest {
            piece.append_to(out, usize::MAX);
        }
    }
}

/// Whether a port can carry frames now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// The link is up.
    Up,
    /// No carrier, or set down.
    Down,
}

/// What a port's link connects to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Medium {
    /// This host alone: memory, or a loopback interface. No other traffic shares it.
    #[default]
    Host,
    /// A network, with queues that other traffic shares.
    Network {
        /// The link rate in bits per second, if the device knows it.
        rate_bps: Option<u64>,
    },
}

/// Properties and capabilities of a port. Fixed at open, with three exceptions: `notes` and `send_errors` grow, and
/// `same_path_batch` may become 1.
#[derive(Clone, Debug)]
pub struct PortCaps {
    /// Kind and address, for display.
    pub name: String,
    /// Address that peers send to.
    pub local_ip: IpAddr,
    /// Ethernet address; zero where a kernel socket hides it.
    pub mac: MacAddr,
    /// Longest Ethernet frame in bytes, 14-byte header included. Kernel sockets: 14 + MTU.
    pub max_frame: usize,
    /// The largest number of frames that one `tx_burst` considers.
    pub max_burst: usize,
    /// Kernel sockets: the only UDP source ports that can be used. `None`: any.
    pub source_ports: Option<Vec<u16>>,
    /// How many frames of one source port and one size are worth sending in one burst; 1: no gain.
    pub same_path_batch: usize,
    /// Whether the port may keep payloads that are part of a region after `tx_burst` has returned: see [`Port::reap`].
    pub holds_payloads: bool,
    /// The medium that frames travel over. Congestion control is on by default if it is a network.
    pub medium: Medium,
    /// Notes for the user, such as an offload that the kernel lacks.
    pub notes: Vec<String>,
    /// Errors seen while sending, each kind once, with an explanation. A peer that has just ended may be the only
    /// cause.
    pub send_errors: Vec<String>,
}

/// Counters of a port, all since open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Frames handed to the medium.
    pub tx_frames: u64,
    /// Their Ethernet bytes (kernel sockets: as built by the caller).
    pub tx_bytes: u64,
    /// Frames passed to the receiver.
    pub rx_frames: u64,
    /// Their bytes, from where `origin` says they start.
    pub rx_bytes: u64,
    /// Frames that `tx_burst` accepted and then lost, for one of the reasons below or because the link is down.
    pub tx_dropped: u64,
    /// Received frames that were lost: link down, or truncated by a buffer that is too short.
    pub rx_dropped: u64,
    /// Frames for this port that it does not parse, such as those with VLAN tags, IPv6 extension headers, IPv4 options
    /// or fragments. The kernel received them instead.
    pub rx_unread: u64,
    /// Times that `tx_burst` or `tx_room` did not have room for all frames offered.
    pub tx_full: u64,
    /// Frames returned by [`Port::unsent`] because a queue of this host was full. Not part of `tx_dropped`.
    pub tx_unsent: u64,
    /// Frames longer than the port can send (part of `tx_dropped`).
    pub tx_oversize: u64,
    /// Frames longer than the path MTU has become, which the kernel sent as IP fragments (part of `tx_frames`).
    pub tx_fragmented: u64,
    /// Frames that the port cannot parse or has no socket for (part of `tx_dropped`).
    pub tx_unsendable: u64,
    /// Errors of the medium while sending, such as unreachable or refused.
    pub tx_errors: u64,
    /// Errors of the medium while receiving.
    pub rx_errors: u64,
    /// System calls (or doorbells) made to send.
    pub tx_calls: u64,
    /// System calls made to receive that returned frames.
    pub rx_calls: u64,
}

/// One plane of a NIC. One thread drives it. `now_ns` is the driver's clock and never goes back.
pub trait Port: Send {
    /// The properties and capabilities of the port.
    fn caps(&self) -> &PortCaps;

    /// Whether the link is up. Cheap enough to be called once per poll.
    fn link(&mut self) -> LinkState;

    /// The number of frames that the next `tx_burst` is certain to accept.
    fn tx_room(&mut self, now_ns: u64) -> usize;

    /// Sends a prefix of `frames` and returns its length. Bytes are copied or sent before it returns. The exception is
    /// payloads that are part of a region, if the [capabilities](PortCaps::holds_payloads) say so: see
    /// [`reap`](Self::reap). Frames with a [virtual](Payload) payload cannot be sent if bytes have to leave this
    /// process. An accepted frame may still be lost (link down, too long). It is then counted in
    /// [`PortCounters::tx_dropped`], and to the caller it looks like a loss in the network. Or it may be returned: see
    /// [`unsent`](Self::unsent).
    fn tx_burst(&mut self, now_ns: u64, frames: &[TxFrame<'_>]) -> usize;

    /// The frames accepted by the last `tx_burst` that did not leave because a queue of this host was full: their
    /// indices in that burst, ascending. The port does not keep them, so the caller may send them again. A full local
    /// queue is no evidence about the network.
    fn unsent(&self) -> &[u16];

    /// Sends what earlier bursts may have left queued.
    fn flush(&mut self, now_ns: u64);

    /// Passes up to `max` received frames to `sink`, in order of arrival, and returns how many.
    fn rx_burst(&mut self, now_ns: u64, max: usize, sink: &mut dyn FnMut(&RxFrame<'_>)) -> usize;

    /// Releases payloads that the medium no longer needs. Returns the smallest [ticket](TxFrame::ticket) of a frame
    /// whose payload the port still holds, or `u64::MAX` if there is none.
    ///
    /// A port that holds the payload of a frame refers to its bytes in place, and keeps their region alive. If these
    /// bytes are overwritten meanwhile, the new bytes may be sent. So the sender must not complete the work request
    /// before the port releases them. A port that holds no payloads returns `u64::MAX`.
    fn reap(&mut self) -> u64;

    /// Makes the port release all payloads: when it returns, each frame has been sent, copied or dropped. It may take
    /// as long as the medium needs, so it is for the rare case that a sender cannot wait. A port that holds no
    /// payloads does nothing.
    fn recall(&mut self);

    /// The time at which the port has to be polled again even if nothing else happens, such as for a delayed frame.
    fn next_event_ns(&self) -> Option<u64> {
        None
    }

    /// File descriptors, one of which is readable if a frame has arrived since [`rx_burst`](Self::rx_burst) last found
    /// none. An idle driver can sleep on them. They do not change. Empty for a port that has to be polled.
    fn readable(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    /// Counters since open.
    fn counters(&self) -> PortCounters;
}

impl<P: Port + ?Sized> Port for Box<P> {
    fn caps(&self) -> &PortCaps {
        (**self).caps()
    }
    fn link(&mut self) -> LinkState {
        (**self).link()
    }
    fn tx_room(&mut self, now_ns: u64) -> usize {
        (**self).tx_room(now_ns)
    }
    fn tx_burst(&mut self, now_ns: u64, frames: &[TxFrame<'_>]) -> usize {
        (**self).tx_burst(now_ns, frames)
    }
    fn unsent(&self) -> &[u16] {
        (**self).unsent()
    }
    fn flush(&mut self, now_ns: u64) {
        (**self).flush(now_ns);
    }
    fn rx_burst(&mut self, now_ns: u64, max: usize, sink: &mut dyn FnMut(&RxFrame<'_>)) -> usize {
        (**self).rx_burst(now_ns, max, sink)
    }
    fn reap(&mut self) -> u64 {
        (**self).reap()
    }
    fn recall(&mut self) {
        (**self).recall();
    }
    fn next_event_ns(&self) -> Option<u64> {
        (**self).next_event_ns()
    }
    fn readable(&self) -> Vec<BorrowedFd<'_>> {
        (**self).readable()
    }
    fn counters(&self) -> PortCounters {
        (**self).counters()
    }
}
