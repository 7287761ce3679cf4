//! Ethernet, IP and UDP around a packet, and the outer headers of source routing.

mod outer;
mod parse;

use std::net::IpAddr;
use std::sync::Arc;

use super::field::{Bytes, U8, U16, U32};
use super::headers::{
    CE, ETHERNET_LEN, ETHERTYPE_IPV4, ETHERTYPE_IPV6, IPV4_LEN, IPV6_LEN, MacAddr, PROTOCOL_IPV4,
    PROTOCOL_IPV6, PROTOCOL_ROUTING, PROTOCOL_UDP, ROUTING_LEN, SEGMENT_LEN, UDP_LEN,
};
use super::{Entropy, EntropyMode};

pub use outer::Outer;
use outer::OuterHeaders;
pub use parse::{Parsed, Plain, V6, parse, parse_front, parse_plain};

/// Bytes of IPv4 and UDP headers.
const IPV4_UDP_LEN: usize = IPV4_LEN + UDP_LEN;
/// Bytes of IPv6 and UDP headers.
const IPV6_UDP_LEN: usize = IPV6_LEN + UDP_LEN;
/// Bytes of Ethernet, IPv4 and UDP headers.
pub const IPV4_STACK_LEN: usize = ETHERNET_LEN + IPV4_UDP_LEN;
/// Bytes of Ethernet, IPv6 and UDP headers.
pub const IPV6_STACK_LEN: usize = ETHERNET_LEN + IPV6_UDP_LEN;
/// Bytes of the longest headers: outer IPv6 with four segments in its routing header around IPv6.
pub const STACK_LEN_MAX: usize = IPV6_STACK_LEN + OuterHeaders::MAX_LEN;

const VERSION_4_NO_OPTIONS: u8 = 0x45;
const VERSION_6: u32 = 6 << 28;
const DONT_FRAGMENT: u16 = 0x4000;
const FLOW_LABEL: u32 = 0x000f_ffff;

/// Offsets in a frame.
mod ethernet {
    use super::{Bytes, U16};
    pub(super) const DST: Bytes<0, 6> = Bytes;
    pub(super) const SRC: Bytes<6, 6> = Bytes;
    pub(super) const TYPE: U16<12> = U16;
}

/// Offsets in IPv4 without options, and UDP.
mod ipv4 {
    use super::{Bytes, U8, U16};
    pub(super) const VERSION_IHL: U8<0> = U8;
    pub(super) const TOS: U8<1> = U8;
    pub(super) const TOTAL_LEN: U16<2> = U16;
    pub(super) const FRAGMENT: U16<6> = U16;
    pub(super) const TTL: U8<8> = U8;
    pub(super) const PROTOCOL: U8<9> = U8;
    pub(super) const CHECKSUM: U16<10> = U16;
    pub(super) const SRC: Bytes<12, 4> = Bytes;
    pub(super) const DST: Bytes<16, 4> = Bytes;
    pub(super) const HEADER: Bytes<0, 20> = Bytes;
    pub(super) const SRC_PORT: U16<20> = U16;
    pub(super) const DST_PORT: U16<22> = U16;
    pub(super) const UDP_LENGTH: U16<24> = U16;
}

/// Offsets in IPv6, and UDP behind it.
mod ipv6 {
    use super::{Bytes, U8, U16, U32};
    pub(super) const VERSION_CLASS_LABEL: U32<0> = U32;
    pub(super) const PAYLOAD_LEN: U16<4> = U16;
    pub(super) const NEXT_HEADER: U8<6> = U8;
    pub(super) const HOP_LIMIT: U8<7> = U8;
    pub(super) const SRC: Bytes<8, 16> = Bytes;
    pub(super) const DST: Bytes<24, 16> = Bytes;
    pub(super) const SRC_PORT: U16<40> = U16;
    pub(super) const DST_PORT: U16<42> = U16;
    pub(super) const UDP_LENGTH: U16<44> = U16;
}

/// Offsets in a routing header.
mod routing {
    use super::U8;
    pub(super) const NEXT_HEADER: U8<0> = U8;
    pub(super) const LEN: U8<1> = U8;
    pub(super) const TYPE: U8<2> = U8;
    pub(super) const SEGMENTS_LEFT: U8<3> = U8;
    pub(super) const LAST_ENTRY: U8<4> = U8;
}

/// Why a frame has no UDP datagram that is accepted, or a template cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StackError {
    /// One address is IPv4 and the other IPv6.
    #[error("expected addresses of one family, found {src} and {dst}")]
    MixedFamilies {
        /// Source address.
        src: IpAddr,
        /// Destination address.
        dst: IpAddr,
    },
    /// The frame ends inside a header, or before the end that a header gives.
    #[error("{layer}: expected {needed} bytes of frame, found {found}")]
    Short {
        /// The header.
        layer: &'static str,
        /// The bytes that the frame should have.
        needed: usize,
        /// The bytes that it has.
        found: usize,
    },
    /// The frame holds something other than IP.
    #[error("expected IPv4 (0x0800) or IPv6 (0x86DD) in the frame, found type {0:#06X}")]
    EtherType(u16),
    /// The IP version does not suit the type of the frame, or the header has options.
    #[error("expected an IP header that starts with {expected:#04X}, found {found:#04X}")]
    Version {
        /// What the first byte should be (in IPv6, its upper half).
        expected: u8,
        /// What it is.
        found: u8,
    },
    /// The packet is neither UDP nor an IP packet around UDP. Of the IPv6 extension headers, only a routing header of
    /// an outer packet is accepted.
    #[error("expected UDP (17), in IPv6 also IPv6 (41) or IPv4 (4) around UDP, found protocol {0}")]
    Protocol(u8),
    /// The routing header has segments left, so the packet is for another node.
    #[error("expected a routing header with no segments left, found {0}")]
    SegmentsLeft(u8),
    /// The packet is a fragment.
    #[error("expected a whole IPv4 packet, found a fragment (flags and offset {0:#06X})")]
    Fragment(u16),
    /// The checksum of the IPv4 header is wrong.
    #[error("the IPv4 header checksum is wrong")]
    Checksum,
    /// The UDP length does not suit the IP length.
    #[error("expected a UDP length of {expected}, found {found}")]
    UdpLength {
        /// What the IP header leaves for UDP.
        expected: usize,
        /// What the UDP header says.
        found: usize,
    },
}

/// The headers that all packets of one route share: from a local port, over the next hop, to an address of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackTemplate {
    kind: Kind,
    l3_at: u8,
    /// Shared, so that a copy of the template stays small.
    outer: Option<Arc<OuterHeaders>>,
}

/// Ethernet, IP and UDP, as they are without an outer packet but for the type of the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    V4 {
        headers: [u8; IPV4_STACK_LEN],
        /// Ones' complement sum of the IP header without what a packet changes.
        sum: u32,
    },
    V6 {
        headers: [u8; IPV6_STACK_LEN],
    },
}

impl StackTemplate {
    /// Headers from `src_ip` to `dst_ip`, as seen on the Ethernet segment between `src_mac` and the next hop, `dst_mac`.
    ///
    /// `hop_limit` is the time to live in IPv4. Fails if the addresses are of different families.
    pub fn new(
        src_mac: MacAddr,
        dst_mac: MacAddr,
        src_ip: IpAddr,
        dst_ip: IpAddr,
        dst_port: u16,
        hop_limit: u8,
    ) -> Result<Self, StackError> {
        let kind = match (src_ip, dst_ip) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let mut ip = [0; IPV4_UDP_LEN];
                ipv4::VERSION_IHL.set(&mut ip, VERSION_4_NO_OPTIONS);
                ipv4::FRAGMENT.set(&mut ip, DONT_FRAGMENT);
                ipv4::TTL.set(&mut ip, hop_limit);
                ipv4::PROTOCOL.set(&mut ip, PROTOCOL_UDP);
                ipv4::SRC.set(&mut ip, src.octets());
                ipv4::DST.set(&mut ip, dst.octets());
                ipv4::DST_PORT.set(&mut ip, dst_port);
                let headers = behind_ethernet(src_mac, dst_mac, ETHERTYPE_IPV4, ip);
                Kind::V4 { headers, sum: words_sum(ipv4::HEADER.get(&ip)) }
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let mut ip = [0; IPV6_UDP_LEN];
                ipv6::NEXT_HEADER.set(&mut ip, PROTOCOL_UDP);
                ipv6::HOP_LIMIT.set(&mut ip, hop_limit);
                ipv6::SRC.set(&mut ip, src.octets());
                ipv6::DST.set(&mut ip, dst.octets());
                ipv6::DST_PORT.set(&mut ip, dst_port);
                Kind::V6 { headers: behind_ethernet(src_mac, dst_mac, ETHERTYPE_IPV6, ip) }
            }
            (src, dst) => return Err(StackError::MixedFamilies { src, dst }),
        };
        Ok(Self { kind, l3_at: ETHERNET_LEN as u8, outer: None })
    }

    /// The same packets inside an outer IPv6 packet, which takes them along the path of their entropy value (RFC 8986
    /// section 5.2), as `entropy` puts it into the fields that [`write`](Self::write) gets.
    #[must_use]
    pub fn through(mut self, outer: &Outer, entropy: EntropyMode) -> Self {
        let protocol = match &mut self.kind {
            Kind::V6 { .. } => PROTOCOL_IPV6,
            Kind::V4 { headers, .. } => {
                ethernet::TYPE.set(headers, ETHERTYPE_IPV6);
                PROTOCOL_IPV4
            }
        };
        let outer = OuterHeaders::new(outer, entropy, protocol);
        self.l3_at = (ETHERNET_LEN + outer.len()) as u8;
        self.outer = Some(Arc::new(outer));
        self
    }

    /// Bytes before the IP header next to UDP, where the coverage of the iCRC starts: 14 without an outer packet.
    #[inline]
    pub const fn l3_at(&self) -> usize {
        self.l3_at as usize
    }

    /// Bytes of the headers: 42 for IPv4, 62 for IPv6, and those of the outer packet.
    #[inline]
    pub const fn header_len(&self) -> usize {
        let inner = match self.kind {
            Kind::V4 { .. } => IPV4_UDP_LEN,
            Kind::V6 { .. } => IPV6_UDP_LEN,
        };
        self.l3_at() + inner
    }

    /// Writes the headers of a datagram with `udp_payload_len` bytes to the front of `out` and returns their length.
    ///
    /// Returns 0 and does not change `out` if it is too short or if the length exceeds what IP allows. The UDP
    /// checksum is 0, as in `RoCEv2`. IPv4 has identification 0 and "don't fragment", and no flow label. An outer
    /// packet has the same traffic class and the same flow label.
    #[inline]
    pub fn write(
        &self,
        out: &mut [u8],
        entropy: Entropy,
        traffic_class: u8,
        udp_payload_len: usize,
    ) -> usize {
        match &self.outer {
            None => self.kind.write(out, entropy, traffic_class, udp_payload_len),
            Some(outer) => self.write_encapsulated(outer, out, entropy, traffic_class, udp_payload_len),
        }
    }

    #[cold]
    fn write_encapsulated(
        &self,
        outer: &OuterHeaders,
        out: &mut [u8],
        entropy: Entropy,
        traffic_class: u8,
        udp_payload_len: usize,
    ) -> usize {
        let mut room = [0; IPV6_STACK_LEN];
        let plain_len = self.kind.write(&mut room, entropy, traffic_class, udp_payload_len);
        let Some((ethernet, inner)) = room.get(..plain_len).and_then(<[u8]>::split_first_chunk) else {
            return 0;
        };
        let Some(out) = out.get_mut(..self.header_len()) else { return 0 };
        let Some((link, rest)) = out.split_first_chunk_mut::<ETHERNET_LEN>() else { return 0 };
        let (around, place) = rest.split_at_mut(outer.len());
        if !outer.write(around, entropy, traffic_class, inner.len() + udp_payload_len) {
            return 0;
        }
        *link = *ethernet;
        place.copy_from_slice(inner);
        self.header_len()
    }
}

impl Kind {
    #[inline]
    fn write(&self, out: &mut [u8], entropy: Entropy, traffic_class: u8, udp_payload_len: usize) -> usize {
        let ip_room = match self {
            Self::V4 { .. } => IPV4_LEN,
            Self::V6 { .. } => 0,
        };
        let udp_len = udp_payload_len.saturating_add(UDP_LEN);
        if udp_len > u16::MAX as usize - ip_room {
            return 0;
        }
        let udp_len = udp_len as u16;
        match self {
            Self::V6 { headers } => {
                let Some(out) = out.first_chunk_mut::<IPV6_STACK_LEN>() else { return 0 };
                *out = *headers;
                let Some(ip) = out.last_chunk_mut::<IPV6_UDP_LEN>() else { return 0 };
                ipv6::VERSION_CLASS_LABEL.set(ip, class_and_label(traffic_class, entropy));
                ipv6::PAYLOAD_LEN.set(ip, udp_len);
                ipv6::SRC_PORT.set(ip, entropy.src_port);
                ipv6::UDP_LENGTH.set(ip, udp_len);
                IPV6_STACK_LEN
            }
            Self::V4 { headers, sum } => {
                let Some(out) = out.first_chunk_mut::<IPV4_STACK_LEN>() else { return 0 };
                *out = *headers;
                let Some(ip) = out.last_chunk_mut::<IPV4_UDP_LEN>() else { return 0 };
                let total_len = udp_len + IPV4_LEN as u16;
                ipv4::TOS.set(ip, traffic_class);
                ipv4::TOTAL_LEN.set(ip, total_len);
                ipv4::CHECKSUM.set(ip, !fold(sum + u32::from(traffic_class) + u32::from(total_len)));
                ipv4::SRC_PORT.set(ip, entropy.src_port);
                ipv4::UDP_LENGTH.set(ip, udp_len);
                IPV4_STACK_LEN
            }
        }
    }
}

/// An Ethernet header, followed by `ip`.
fn behind_ethernet<const M: usize, const N: usize>(
    src: MacAddr,
    dst: MacAddr,
    ethertype: u16,
    ip: [u8; M],
) -> [u8; N] {
    const { assert!(ETHERNET_LEN + M == N, "the two make up the stack") };
    let mut headers = [0; N];
    ethernet::DST.set(&mut headers, dst.0);
    ethernet::SRC.set(&mut headers, src.0);
    ethernet::TYPE.set(&mut headers, ethertype);
    if let Some(room) = headers.last_chunk_mut() {
        *room = ip;
    }
    headers
}

/// The first word of an IPv6 header.
#[inline]
fn class_and_label(traffic_class: u8, entropy: Entropy) -> u32 {
    VERSION_6 | (u32::from(traffic_class) << 20) | (entropy.flow_label & FLOW_LABEL)
}

/// Sum of the 16-bit words of an IPv4 header.
#[inline]
fn words_sum(header: [u8; IPV4_LEN]) -> u32 {
    header.as_chunks().0.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum()
}

/// Ones' complement sum down to 16 bits.
#[inline]
const fn fold(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}
