//! Ethernet, IP and UDP around a packet.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use spindrift_pmd::{DatagramMeta, MacAddr};

use super::Entropy;
use super::field::{Bytes, U8, U16, U32};

const ETHERNET_LEN: usize = 14;
const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
const UDP_LEN: usize = 8;
/// Bytes of Ethernet, IPv4 and UDP headers.
pub const IPV4_STACK_LEN: usize = ETHERNET_LEN + IPV4_LEN + UDP_LEN;
/// Bytes of Ethernet, IPv6 and UDP headers.
pub const IPV6_STACK_LEN: usize = ETHERNET_LEN + IPV6_LEN + UDP_LEN;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const PROTOCOL_UDP: u8 = 17;
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

/// Offsets in a frame that holds IPv4 without options.
mod ipv4 {
    use super::{Bytes, U8, U16};
    pub(super) const VERSION_IHL: U8<14> = U8;
    pub(super) const TOS: U8<15> = U8;
    pub(super) const TOTAL_LEN: U16<16> = U16;
    pub(super) const FRAGMENT: U16<20> = U16;
    pub(super) const TTL: U8<22> = U8;
    pub(super) const PROTOCOL: U8<23> = U8;
    pub(super) const CHECKSUM: U16<24> = U16;
    pub(super) const SRC: Bytes<26, 4> = Bytes;
    pub(super) const DST: Bytes<30, 4> = Bytes;
    pub(super) const HEADER: Bytes<14, 20> = Bytes;
    pub(super) const SRC_PORT: U16<34> = U16;
    pub(super) const DST_PORT: U16<36> = U16;
    pub(super) const UDP_LENGTH: U16<38> = U16;
}

/// Offsets in a frame that holds IPv6 without extension headers.
mod ipv6 {
    use super::{Bytes, U8, U16, U32};
    pub(super) const VERSION_CLASS_LABEL: U32<14> = U32;
    pub(super) const PAYLOAD_LEN: U16<18> = U16;
    pub(super) const NEXT_HEADER: U8<20> = U8;
    pub(super) const HOP_LIMIT: U8<21> = U8;
    pub(super) const SRC: Bytes<22, 16> = Bytes;
    pub(super) const DST: Bytes<38, 16> = Bytes;
    pub(super) const SRC_PORT: U16<54> = U16;
    pub(super) const DST_PORT: U16<56> = U16;
    pub(super) const UDP_LENGTH: U16<58> = U16;
}

/// Why a frame does not hold a UDP datagram that we take, or a template cannot be made.
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
    /// The packet is not UDP; IPv6 extension headers are not taken either.
    #[error("expected UDP (17) after the IP header, found protocol {0}")]
    Protocol(u8),
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

/// The headers that all packets to one address of a peer share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackTemplate(Kind);

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
    /// Headers from `src_ip` to `dst_ip`, as seen on the Ethernet segment between `src_mac` and `dst_mac`.
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
        match (src_ip, dst_ip) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let mut headers = [0; IPV4_STACK_LEN];
                put_ethernet(&mut headers, src_mac, dst_mac, ETHERTYPE_IPV4);
                ipv4::VERSION_IHL.set(&mut headers, VERSION_4_NO_OPTIONS);
                ipv4::FRAGMENT.set(&mut headers, DONT_FRAGMENT);
                ipv4::TTL.set(&mut headers, hop_limit);
                ipv4::PROTOCOL.set(&mut headers, PROTOCOL_UDP);
                ipv4::SRC.set(&mut headers, src.octets());
                ipv4::DST.set(&mut headers, dst.octets());
                ipv4::DST_PORT.set(&mut headers, dst_port);
                let sum = words_sum(ipv4::HEADER.get(&headers));
                Ok(Self(Kind::V4 { headers, sum }))
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let mut headers = [0; IPV6_STACK_LEN];
                put_ethernet(&mut headers, src_mac, dst_mac, ETHERTYPE_IPV6);
                ipv6::NEXT_HEADER.set(&mut headers, PROTOCOL_UDP);
                ipv6::HOP_LIMIT.set(&mut headers, hop_limit);
                ipv6::SRC.set(&mut headers, src.octets());
                ipv6::DST.set(&mut headers, dst.octets());
                ipv6::DST_PORT.set(&mut headers, dst_port);
                Ok(Self(Kind::V6 { headers }))
            }
            (src, dst) => Err(StackError::MixedFamilies { src, dst }),
        }
    }

    /// Bytes of the headers: 42 for IPv4, 62 for IPv6.
    #[inline]
    pub const fn header_len(&self) -> usize {
        match self.0 {
            Kind::V4 { .. } => IPV4_STACK_LEN,
            Kind::V6 { .. } => IPV6_STACK_LEN,
        }
    }

    /// Writes the headers of a datagram with `udp_payload_len` bytes to the front of `out` and returns their length.
    ///
    /// Returns 0 and leaves `out` alone if it is too short or if IP cannot hold that much. The UDP checksum is 0,
    /// as in `RoCEv2`; IPv4 goes with identification 0 and "don't fragment", and drops the flow label.
    #[inline]
    pub fn write(
        &self,
        out: &mut [u8],
        entropy: Entropy,
        traffic_class: u8,
        udp_payload_len: usize,
    ) -> usize {
        let ip_room = match self.0 {
            Kind::V4 { .. } => IPV4_LEN,
            Kind::V6 { .. } => 0,
        };
        let udp_len = udp_payload_len.saturating_add(UDP_LEN);
        if udp_len > u16::MAX as usize - ip_room {
            return 0;
        }
        let udp_len = udp_len as u16;
        match &self.0 {
            Kind::V6 { headers } => {
                let Some(out) = out.first_chunk_mut() else { return 0 };
                *out = *headers;
                let class_label = (u32::from(traffic_class) << 20) | (entropy.flow_label & FLOW_LABEL);
                ipv6::VERSION_CLASS_LABEL.set(out, VERSION_6 | class_label);
                ipv6::PAYLOAD_LEN.set(out, udp_len);
                ipv6::SRC_PORT.set(out, entropy.src_port);
                ipv6::UDP_LENGTH.set(out, udp_len);
                IPV6_STACK_LEN
            }
            Kind::V4 { headers, sum } => {
                let Some(out) = out.first_chunk_mut() else { return 0 };
                *out = *headers;
                let total_len = udp_len + IPV4_LEN as u16;
                ipv4::TOS.set(out, traffic_class);
                ipv4::TOTAL_LEN.set(out, total_len);
                ipv4::CHECKSUM.set(out, !fold(sum + u32::from(traffic_class) + u32::from(total_len)));
                ipv4::SRC_PORT.set(out, entropy.src_port);
                ipv4::UDP_LENGTH.set(out, udp_len);
                IPV4_STACK_LEN
            }
        }
    }
}

fn put_ethernet<const N: usize>(headers: &mut [u8; N], src: MacAddr, dst: MacAddr, ethertype: u16) {
    // Every frame is at least this long, so the copy always happens.
    if let Some(ethernet) = headers.first_chunk_mut::<ETHERNET_LEN>() {
        ethernet::DST.set(ethernet, dst.0);
        ethernet::SRC.set(ethernet, src.0);
        ethernet::TYPE.set(ethernet, ethertype);
    }
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

/// A UDP datagram found in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parsed<'a> {
    /// Addresses and markings.
    pub meta: DatagramMeta,
    /// From the IP header to the end of the IP packet.
    pub l3: &'a [u8],
    /// What is there of the UDP payload; ends with the iCRC if nothing is missing.
    pub mrc: &'a [u8],
    /// Bytes of the IP packet, behind these, that lie elsewhere: see [`parse_front`].
    pub elsewhere: usize,
    /// The UDP header announces more than the IP packet holds: a switch trimmed it.
    pub truncated: bool,
}

/// Takes Ethernet, IP and UDP headers off `frame`.
///
/// What follows the IP packet (Ethernet pads short frames) is ignored. Not taken, with the reason as the error: VLAN
/// tags, IPv4 options and fragments, IPv6 extension headers. The UDP checksum is not looked at; the iCRC
/// covers what it would.
#[inline]
pub fn parse(frame: &[u8]) -> Result<Parsed<'_>, StackError> {
    parse_with(frame, 0)
}

/// The same for the first part of a frame, which holds these headers at least and is followed by `more` bytes that lie
/// elsewhere.
#[inline]
pub fn parse_front(frame: &[u8], more: usize) -> Result<Parsed<'_>, StackError> {
    parse_with(frame, more)
}

#[expect(clippy::inline_always, reason = "for whole frames `more` is 0, and nothing is left of it")]
#[inline(always)]
fn parse_with(frame: &[u8], more: usize) -> Result<Parsed<'_>, StackError> {
    let Some(ethernet) = frame.first_chunk::<ETHERNET_LEN>() else {
        return Err(StackError::Short { layer: "Ethernet", needed: ETHERNET_LEN, found: frame.len() });
    };
    match ethernet::TYPE.get(ethernet) {
        ETHERTYPE_IPV6 => parse_ipv6(frame, more),
        ETHERTYPE_IPV4 => parse_ipv4(frame, more),
        other => Err(StackError::EtherType(other)),
    }
}

#[inline]
fn parse_ipv6(frame: &[u8], more: usize) -> Result<Parsed<'_>, StackError> {
    let h = headers::<IPV6_STACK_LEN>(frame, "IPv6 and UDP")?;
    let class_label = ipv6::VERSION_CLASS_LABEL.get(h);
    if class_label >> 28 != 6 {
        return Err(StackError::Version { expected: 0x60, found: (class_label >> 24) as u8 });
    }
    if ipv6::NEXT_HEADER.get(h) != PROTOCOL_UDP {
        return Err(StackError::Protocol(ipv6::NEXT_HEADER.get(h)));
    }
    let meta = DatagramMeta {
        src: IpAddr::V6(Ipv6Addr::from(ipv6::SRC.get(h))),
        dst: IpAddr::V6(Ipv6Addr::from(ipv6::DST.get(h))),
        src_port: ipv6::SRC_PORT.get(h),
        dst_port: ipv6::DST_PORT.get(h),
        flow_label: class_label & FLOW_LABEL,
        traffic_class: (class_label >> 20) as u8,
        hop_limit: ipv6::HOP_LIMIT.get(h),
    };
    let ip_len = IPV6_LEN + usize::from(ipv6::PAYLOAD_LEN.get(h));
    datagram((frame, more), meta, (IPV6_LEN, ip_len), ipv6::UDP_LENGTH.get(h).into())
}

#[inline]
fn parse_ipv4(frame: &[u8], more: usize) -> Result<Parsed<'_>, StackError> {
    let h = headers::<IPV4_STACK_LEN>(frame, "IPv4 and UDP")?;
    let version = ipv4::VERSION_IHL.get(h);
    if version != VERSION_4_NO_OPTIONS {
        return Err(StackError::Version { expected: VERSION_4_NO_OPTIONS, found: version });
    }
    if fold(words_sum(ipv4::HEADER.get(h))) != 0xffff {
        return Err(StackError::Checksum);
    }
    if ipv4::FRAGMENT.get(h) & !DONT_FRAGMENT != 0 {
        return Err(StackError::Fragment(ipv4::FRAGMENT.get(h)));
    }
    if ipv4::PROTOCOL.get(h) != PROTOCOL_UDP {
        return Err(StackError::Protocol(ipv4::PROTOCOL.get(h)));
    }
    let meta = DatagramMeta {
        src: IpAddr::V4(Ipv4Addr::from(ipv4::SRC.get(h))),
        dst: IpAddr::V4(Ipv4Addr::from(ipv4::DST.get(h))),
        src_port: ipv4::SRC_PORT.get(h),
        dst_port: ipv4::DST_PORT.get(h),
        flow_label: 0,
        traffic_class: ipv4::TOS.get(h),
        hop_limit: ipv4::TTL.get(h),
    };
    datagram((frame, more), meta, (IPV4_LEN, ipv4::TOTAL_LEN.get(h).into()), ipv4::UDP_LENGTH.get(h).into())
}

#[inline]
fn headers<'a, const N: usize>(frame: &'a [u8], layer: &'static str) -> Result<&'a [u8; N], StackError> {
    frame.first_chunk().ok_or(StackError::Short { layer, needed: N, found: frame.len() })
}

/// Cuts the IP packet of `ip_len` bytes, `ip_head` of them its header, and its UDP payload out of `frame`.
#[inline]
fn datagram(
    (frame, more): (&[u8], usize),
    meta: DatagramMeta,
    (ip_head, ip_len): (usize, usize),
    udp_len: usize,
) -> Result<Parsed<'_>, StackError> {
    let (needed, found) = (ETHERNET_LEN + ip_len, frame.len() + more);
    let elsewhere = needed.saturating_sub(frame.len());
    if elsewhere > more {
        return Err(StackError::Short { layer: "IP length", needed, found });
    }
    // Its headers are there, so this is not empty.
    let l3 = frame.get(ETHERNET_LEN..needed - elsewhere).unwrap_or_default();
    let Some(mrc) = l3.get(ip_head + UDP_LEN..) else {
        return Err(StackError::UdpLength { expected: ip_len.saturating_sub(ip_head), found: udp_len });
    };
    let expected = ip_len - ip_head;
    if udp_len < expected {
        return Err(StackError::UdpLength { expected, found: udp_len });
    }
    Ok(Parsed { meta, l3, mrc, elsewhere, truncated: udp_len > expected })
}
