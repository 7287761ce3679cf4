//! Packets on their way: real headers, and a payload that may be a length alone.

use core::fmt;
use std::net::Ipv6Addr;

use spindrift::endpoint::Transmit;
use spindrift::wire::Opcode;
use spindrift::wire::headers::{
    CE, ETHERNET_LEN, IPV6_LEN, PROTOCOL_IPV6, PROTOCOL_ROUTING, PROTOCOL_UDP, UDP_LEN,
};
use spindrift_srv6::{Dropped, Forwarder, Verdict};

/// The longest headers.
const HEAD_ROOM: usize = Transmit::HEAD_ROOM;
/// The shortest Ethernet frame, without its checksum.
const SHORTEST_FRAME: u32 = 60;
/// What a link is busy with besides the frame: preamble, checksum and the gap between frames (IEEE 802.3).
const AROUND_FRAME: u32 = 8 + 4 + 12;

/// A packet: an Ethernet frame with IPv6 in it.
///
/// All that links and switches read is at the start of it, on two cache lines: with many packets on their way, each hop has to fetch
/// them from memory.
#[derive(Clone)]
#[repr(C, align(64))]
pub struct Packet {
    /// How often the link that it is on had gone down when it left.
    pub(crate) outage: u32,
    /// The link that it came to the switch by whose buffer it is in, where [PFC](crate::PfcSpec) counts that.
    pub(crate) ingress: u32,
    /// Bytes that follow the headers.
    body_len: u32,
    head_len: u16,
    /// The plane that it leaves its host on.
    pub plane: u8,
    /// Bits of bytes that are not there were flipped.
    broken: bool,
    /// These bytes, if there are any; otherwise all are zero.
    body: Vec<u8>,
    head: [u8; HEAD_ROOM],
}

impl Default for Packet {
    fn default() -> Self {
        Self {
            outage: 0,
            ingress: Self::UNCOUNTED,
            body_len: 0,
            head_len: 0,
            plane: 0,
            broken: false,
            body: Vec::new(),
            head: [0; HEAD_ROOM],
        }
    }
}

impl fmt::Debug for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Packet({} + {} bytes, DSCP {})", self.head_len, self.body_len, self.dscp())
    }
}

impl Packet {
    /// The [`ingress`](Self::ingress) of a packet that no buffer counts.
    pub(crate) const UNCOUNTED: u32 = u32::MAX;

    /// Makes this a packet with these headers, from Ethernet on, and `len` bytes of zeros behind them.
    ///
    /// Headers longer than those of a [`Transmit`] are cut off.
    #[inline]
    pub fn set_virtual(&mut self, head: &[u8], len: u32) {
        self.set_head(head);
        self.body_len = len;
        self.body.clear();
    }

    /// The same with bytes behind the headers, which `fill` appends.
    pub fn set_real(&mut self, head: &[u8], fill: impl FnOnce(&mut Vec<u8>)) {
        self.set_head(head);
        self.body.clear();
        fill(&mut self.body);
        self.body_len = self.body.len() as u32;
    }

    #[inline]
    fn set_head(&mut self, head: &[u8]) {
        let len = head.len().min(HEAD_ROOM);
        debug_assert_eq!(len, head.len(), "headers are too long");
        if let (Some(room), Some(head)) = (self.head.get_mut(..len), head.get(..len)) {
            room.copy_from_slice(head);
        }
        self.head_len = len as u16;
        self.ingress = Self::UNCOUNTED;
        self.broken = false;
    }

    /// The headers, from Ethernet on.
    #[inline]
    pub fn head(&self) -> &[u8] {
        self.head.get(..usize::from(self.head_len)).unwrap_or_default()
    }

    /// Bytes behind the headers.
    #[inline]
    pub const fn body_len(&self) -> u32 {
        self.body_len
    }

    /// The bytes behind the headers; `None` if they are zeros that nobody wrote down.
    #[inline]
    pub fn body(&self) -> Option<&[u8]> {
        (!self.body.is_empty() || self.body_len == 0).then_some(&self.body)
    }

    /// Bytes of the frame, without what goes around it on a link.
    #[inline]
    pub const fn frame_len(&self) -> u32 {
        self.head_len as u32 + self.body_len
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

    /// Where the IPv6 header next to UDP starts.
    fn inner_at(&self) -> Option<usize> {
        let (head, mut at) = (self.head(), ETHERNET_LEN);
        let mut next = *head.get(at + 6)?;
        let mut end = at + IPV6_LEN;
        if next == PROTOCOL_ROUTING {
            let &[after, units] = head.get(end..end + 2)? else { return None };
            (next, end) = (after, end + 8 * (usize::from(units) + 1));
        }
        if next == PROTOCOL_IPV6 {
            (next, at) = (*head.get(end + 6)?, end);
        }
        (next == PROTOCOL_UDP).then_some(at)
    }

    /// The entropy value, of which the UDP source port is the upper half and the flow label the lower one; `None` where there
    /// is no UDP.
    pub fn ev(&self) -> Option<u32> {
        let at = self.inner_at()?;
        let label = self.head().get(at + 2..at + 4)?;
        let port = self.head().get(at + IPV6_LEN..at + IPV6_LEN + 2)?;
        Some(u32::from_be_bytes([port[0], port[1], label[0], label[1]]))
    }

    /// Where the packet inside is to go, and its transport headers; `None` where that cannot be one of MRC.
    pub(crate) fn mrc(&self) -> Option<(Ipv6Addr, &[u8])> {
        let at = self.inner_at()?;
        let to: [u8; 16] = self.head().get(at + 24..at + IPV6_LEN)?.try_into().ok()?;
        Some((to.into(), self.head().get(at + IPV6_LEN + UDP_LEN..)?))
    }

    /// What kind of packet it is; `None` where that cannot be one of MRC.
    pub fn opcode(&self) -> Option<Opcode> {
        let code = *self.head().get(self.inner_at()? + IPV6_LEN + UDP_LEN)?;
        Opcode::try_from(code).ok()
    }

    /// Flips a bit behind the Ethernet header, which `number` picks; of a packet without bytes it is only noted.
    pub(crate) fn corrupt(&mut self, number: u64) {
        if self.body().is_none() {
            self.broken = true;
            return;
        }
        let head = usize::from(self.head_len) - ETHERNET_LEN;
        let bit = (number % (8 * (head + self.body.len()) as u64)) as usize;
        let (byte, flip) = (bit / 8, 1 << (bit % 8));
        let place = match byte.checked_sub(head) {
            None => self.head.get_mut(ETHERNET_LEN + byte),
            Some(at) => self.body.get_mut(at),
        };
        if let Some(place) = place {
            *place ^= flip;
        }
    }

    /// Whether bits were flipped that the packet has no bytes for: the iCRC would be wrong.
    pub const fn is_broken(&self) -> bool {
        self.broken
    }

    /// Cuts the packet down to `keep` bytes and what an outer header takes, and says so in its class. The inner lengths stay, as
    /// switches leave them. A packet that is no longer than that stays whole.
    pub fn trim(&mut self, keep: u32, dscp: u8) {
        let outer = if self.head[ETHERNET_LEN + 6] == PROTOCOL_IPV6 { IPV6_LEN as u32 } else { 0 };
        let kept = (keep + outer).max(u32::from(self.head_len));
        if kept >= self.frame_len() {
            return;
        }
        self.body_len = kept - u32::from(self.head_len);
        self.body.truncate(self.body_len as usize);
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

    /// Another packet that is the same.
    pub(crate) fn copy(&mut self, of: PacketId) -> PacketId {
        let (copy, packet) = (self.take(), self.get(of).clone());
        *self.get_mut(copy) = packet;
        copy
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

/// Packets that tests of other modules send.
#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// A data packet with an outer header, capable of ECN, with this entropy value and so many bytes of zeros behind its headers.
    pub(crate) fn data(ev: u32, len: u32) -> Packet {
        let [p0, p1, l0, l1] = ev.to_be_bytes();
        let mut head = [0; ETHERNET_LEN + 2 * IPV6_LEN + 52];
        for (at, next) in [(ETHERNET_LEN, PROTOCOL_IPV6), (ETHERNET_LEN + IPV6_LEN, PROTOCOL_UDP)] {
            head[at..at + 7].copy_from_slice(&[0x60, 0b10 << 4, l0, l1, 0, 0, next]);
        }
        let udp = ETHERNET_LEN + 2 * IPV6_LEN;
        head[udp..udp + 2].copy_from_slice(&[p0, p1]);
        let mut packet = Packet::default();
        packet.set_virtual(&head, len);
        packet
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UDP: u8 = PROTOCOL_UDP;

    #[test]
    fn the_entropy_value_is_that_of_the_inner_packet() {
        assert_eq!(testing::data(0xc123_4567, 100).ev(), Some(0xc123_4567));
        let mut packet = packet(&[59], false, 100);
        assert_eq!(packet.ev(), None, "no UDP");
        packet.set_virtual(&[0; 30], 0);
        assert_eq!(packet.ev(), None, "cut short");
    }

    #[test]
    fn the_opcode_is_behind_udp() {
        for next in [&[UDP][..], &[PROTOCOL_IPV6, UDP]] {
            let mut packet = packet(next, false, 100);
            assert_eq!(packet.opcode(), None, "7 is none");
            let mut head = packet.head().to_vec();
            head[ETHERNET_LEN + next.len() * IPV6_LEN + 8] = Opcode::Probe.code();
            packet.set_virtual(&head, 0);
            assert_eq!(packet.opcode(), Some(Opcode::Probe));
            packet.set_virtual(&head[..head.len() - 44], 0);
            assert_eq!(packet.opcode(), None, "cut short");
        }
    }

    #[test]
    fn bits_are_flipped_or_their_flipping_is_noted() {
        let mut zeros = packet(&[UDP], false, 100);
        let before = zeros.head().to_vec();
        zeros.corrupt(5);
        assert_eq!((zeros.is_broken(), zeros.head()), (true, &before[..]));
        zeros.set_virtual(&before, 10);
        assert!(!zeros.is_broken(), "another packet");
        let whole = packet(&[UDP], true, 100);
        let bits = 8 * (whole.frame_len() as u64 - ETHERNET_LEN as u64);
        for number in [0, 7, 8 * 92 - 1, 8 * 92, bits - 1] {
            let mut bad = whole.clone();
            bad.corrupt(number + bits);
            let differ = |a: &[u8], b: &[u8]| a.iter().zip(b).map(|(a, b)| (a ^ b).count_ones()).sum::<u32>();
            let heads = differ(bad.head(), whole.head());
            let bodies = differ(bad.body().unwrap(), whole.body().unwrap());
            assert_eq!((heads + bodies, bad.is_broken()), (1, false), "{number}");
            assert_eq!(bad.head()[..ETHERNET_LEN], whole.head()[..ETHERNET_LEN]);
            bad.corrupt(number);
            assert_eq!(
                differ(bad.head(), whole.head()) + differ(bad.body().unwrap(), whole.body().unwrap()),
                0
            );
        }
    }

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
