//! Packets on their way: real headers, and a payload that may be a length alone.

use core::fmt;

use spindrift::endpoint::Transmit;
use spindrift_srv6::{Dropped, Forwarder, Verdict};

/// Bytes of an Ethernet header.
const ETHERNET_LEN: usize = 14;
/// The longest headers.
const HEAD_ROOM: usize = Transmit::HEAD_ROOM;
/// Bytes of an IPv6 header.
const IPV6_LEN: usize = 40;
/// The shortest Ethernet frame, without its checksum.
const SHORTEST_FRAME: u32 = 60;
/// What a link is busy with besides the frame: preamble, checksum and the gap between frames (IEEE 802.3).
const AROUND_FRAME: u32 = 8 + 4 + 12;
/// Next headers of IPv6 that start another packet.
const PROTOCOL_IPV6: u8 = 41;
/// ECN codepoint: congestion experienced (RFC 3168).
const CE: u8 = 0b11;

/// What follows the headers.
#[derive(Clone, Debug, Default)]
struct Body {
    /// Bytes of it.
    len: u32,
    /// The bytes, if there are any; otherwise all are zero.
    bytes: Vec<u8>,
}

/// A packet: an Ethernet frame with IPv6 in it.
#[derive(Clone)]
pub struct Packet {
    head: [u8; HEAD_ROOM],
    head_len: u16,
    body: Body,
    /// The plane that it leaves its host on.
    pub plane: u8,
    /// How often the link that it is on had gone down when it left.
    pub(crate) outage: u32,
}

impl Default for Packet {
    fn default() -> Self {
        Self { head: [0; HEAD_ROOM], head_len: 0, body: Body::default(), plane: 0, outage: 0 }
    }
}

impl fmt::Debug for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Packet({} + {} bytes, DSCP {})", self.head_len, self.body.len, self.dscp())
    }
}

impl Packet {
    /// Makes this a packet with these headers, from Ethernet on, and `len` bytes of zeros behind them.
    ///
    /// Headers longer than those of a [`Transmit`] are cut off.
    #[inline]
    pub fn set_virtual(&mut self, head: &[u8], len: u32) {
        self.set_head(head);
        self.body.len = len;
        self.body.bytes.clear();
    }

    /// The same with bytes behind the headers, which `fill` appends.
    pub fn set_real(&mut self, head: &[u8], fill: impl FnOnce(&mut Vec<u8>)) {
        self.set_head(head);
        self.body.bytes.clear();
        fill(&mut self.body.bytes);
        self.body.len = self.body.bytes.len() as u32;
    }

    #[inline]
    fn set_head(&mut self, head: &[u8]) {
        let len = head.len().min(HEAD_ROOM);
        debug_assert_eq!(len, head.len(), "headers are too long");
        if let (Some(room), Some(head)) = (self.head.get_mut(..len), head.get(..len)) {
            room.copy_from_slice(head);
        }
        self.head_len = len as u16;
    }

    /// The headers, from Ethernet on.
    #[inline]
    pub fn head(&self) -> &[u8] {
        self.head.get(..usize::from(self.head_len)).unwrap_or_default()
    }

    /// Bytes behind the headers.
    #[inline]
    pub const fn body_len(&self) -> u32 {
        self.body.len
    }

    /// The bytes behind the headers; `None` if they are zeros that nobody wrote down.
    #[inline]
    pub fn body(&self) -> Option<&[u8]> {
        (!self.body.bytes.is_empty() || self.body.len == 0).then_some(&self.body.bytes)
    }

    /// Bytes of the frame, without what goes around it on a link.
    #[inline]
    pub const fn frame_len(&self) -> u32 {
        self.head_len as u32 + self.body.len
    }

    /// Bytes for which the packet occupies a link.
    #[inline]
    pub fn wire_len(&self) -> u32 {
        self.frame_len().max(SHORTEST_FRAME) + AROUND_FRAME
    }

    /// The class that the outermost header asks for.
    #[inline]
    pub const fn dscp(&self) -> u8 {
        self.traffic_class() >> 2
    }

    #[inline]
    const fn traffic_class(&self) -> u8 {
        self.head[ETHERNET_LEN] << 4 | self.head[ETHERNET_LEN + 1] >> 4
    }

    #[inline]
    const fn set_traffic_class(&mut self, class: u8) {
        let [first, second] = [self.head[ETHERNET_LEN], self.head[ETHERNET_LEN + 1]];
        self.head[ETHERNET_LEN] = first & 0xf0 | class >> 4;
        self.head[ETHERNET_LEN + 1] = second & 0x0f | class << 4;
    }

    /// Marks the packet as one that met congestion, if its sender wants to know (RFC 3168). Whether it was marked.
    #[inline]
    pub fn mark(&mut self) -> bool {
        let class = self.traffic_class();
        let wanted = class & CE != 0;
        if wanted {
            self.set_traffic_class(class | CE);
        }
        wanted
    }

    /// Whether a switch has marked the packet.
    pub const fn is_marked(&self) -> bool {
        self.traffic_class() & CE == CE
    }

    /// Cuts the packet down to `keep` bytes and what an outer header takes, and says so in its class. The inner lengths stay, as
    /// switches leave them. A packet that is no longer than that stays whole.
    pub fn trim(&mut self, keep: u32, dscp: u8) {
        let outer = if self.head[ETHERNET_LEN + 6] == PROTOCOL_IPV6 { IPV6_LEN as u32 } else { 0 };
        let kept = (keep + outer).max(u32::from(self.head_len));
        if kept >= self.frame_len() {
            return;
        }
        self.body.len = kept - u32::from(self.head_len);
        self.body.bytes.truncate(self.body.len as usize);
        let ip_len = (kept as usize - ETHERNET_LEN - IPV6_LEN) as u16;
        let [high, low] = ip_len.to_be_bytes();
        (self.head[ETHERNET_LEN + 4], self.head[ETHERNET_LEN + 5]) = (high, low);
        self.set_traffic_class(dscp << 2 | self.traffic_class() & CE);
    }

    /// Takes the packet through a switch.
    ///
    /// # Errors
    /// Why the switch drops it.
    #[inline]
    pub(crate) fn forward<'a, T>(&mut self, switch: &'a Forwarder<T>) -> Result<Verdict<'a, T>, Dropped> {
        let l3 = self.head.get_mut(ETHERNET_LEN..usize::from(self.head_len));
        switch.forward(l3.ok_or(Dropped::NotIpv6)?)
    }
}

/// The number of a packet in a [`Pool`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PacketId(u32);

/// All packets on their way, in slots that are used again.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    packets: Vec<Packet>,
    free: Vec<PacketId>,
}

impl Pool {
    /// A packet of which nothing is known.
    #[inline]
    pub(crate) fn take(&mut self) -> PacketId {
        self.free.pop().unwrap_or_else(|| {
            self.packets.push(Packet::default());
            PacketId(self.packets.len() as u32 - 1)
        })
    }

    /// The packet is gone.
    #[inline]
    pub(crate) fn give_back(&mut self, id: PacketId) {
        debug_assert!(!self.free.contains(&id) || self.free.len() > 64, "{id:?} was given back before");
        self.free.push(id);
    }

    /// Packets on their way.
    pub(crate) fn in_use(&self) -> usize {
        self.packets.len() - self.free.len()
    }

    #[inline]
    pub(crate) fn get(&self, id: PacketId) -> &Packet {
        &self.packets[id.0 as usize]
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: PacketId) -> &mut Packet {
        &mut self.packets[id.0 as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UDP: u8 = 17;

    /// A packet with these next headers, the outer one first, and `len` bytes behind its headers.
    fn packet(next: &[u8], real: bool, len: u32) -> Packet {
        let mut head = vec![0; ETHERNET_LEN];
        for &next in next {
            let mut ip = [0; IPV6_LEN];
            (ip[0], ip[1], ip[6]) = (0x60, 0b10 << 4, next);
            head.extend(ip);
        }
        head.extend([7; 52]);
        let mut packet = Packet::default();
        if real {
            packet.set_real(&head, |bytes| bytes.extend((0..len).map(|at| at as u8)));
        } else {
            packet.set_virtual(&head, len);
        }
        packet
    }

    /// The outermost header's length is what is left; the payload keeps its first bytes.
    #[test]
    fn trimmed_packets_are_short_and_say_so() {
        for real in [false, true] {
            for (next, want) in [(&[UDP][..], 128), (&[PROTOCOL_IPV6, UDP], 168)] {
                let mut packet = packet(next, real, 4_000);
                let whole = packet.clone();
                assert!(packet.mark());
                packet.trim(128, 12);
                let head = packet.head().len();
                assert_eq!((packet.frame_len(), packet.dscp(), packet.is_marked()), (want, 12, true));
                assert_eq!(packet.head()[18..20], (want as u16 - 54).to_be_bytes());
                assert_eq!(packet.head()[20..], whole.head()[20..], "nothing else is changed");
                let left: Vec<_> = (0..want as usize - head).map(|at| at as u8).collect();
                assert_eq!(packet.body(), real.then_some(&left[..]), "{next:?}");
            }
        }
    }

    #[test]
    fn short_packets_are_not_trimmed_and_headers_stay() {
        let mut short = packet(&[UDP], false, 22);
        assert_eq!(short.frame_len(), 128);
        short.trim(128, 12);
        assert_eq!((short.frame_len(), short.dscp()), (128, 0));
        let mut long = packet(&[UDP], false, 4_000);
        long.trim(10, 12);
        assert_eq!((long.frame_len(), long.body_len()), (106, 0));
    }

    #[test]
    fn a_link_is_busy_with_more_than_the_frame() {
        assert_eq!(packet(&[UDP], false, 894).wire_len(), 1_024);
        let mut tiny = Packet::default();
        tiny.set_virtual(&[0; 54], 0);
        assert_eq!(tiny.wire_len(), 84, "the shortest frame and what is around it");
    }
}
