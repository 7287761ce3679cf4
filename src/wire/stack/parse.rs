//! Taking the headers off a frame.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use spindrift_pmd::DatagramMeta;

use super::{
    CE, DONT_FRAGMENT, ETHERNET_LEN, ETHERTYPE_IPV4, ETHERTYPE_IPV6, FLOW_LABEL, IPV4_LEN, IPV4_UDP_LEN,
    IPV6_LEN, IPV6_UDP_LEN, PROTOCOL_IPV4, PROTOCOL_IPV6, PROTOCOL_ROUTING, PROTOCOL_UDP, ROUTING_LEN,
    StackError, UDP_LEN, VERSION_4_NO_OPTIONS, ethernet, fold, ipv4, ipv6, routing, words_sum,
};

/// A UDP datagram found in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parsed<'a> {
    /// Addresses and markings. Where there is an outer packet, the DSCP is that of the outer one, which switches
    /// mark, and "congestion experienced" is that of either (RFC 6040 section 4.2); all else is that of the inner one.
    pub meta: DatagramMeta,
    /// From the IP header next to UDP to the end of the IP packet.
    pub l3: &'a [u8],
    /// What is there of the UDP payload; ends with the iCRC if nothing is missing.
    pub mrc: &'a [u8],
    /// Bytes of the IP packet, behind these, that lie elsewhere: see [`parse_front`].
    pub elsewhere: usize,
    /// An outer header (that of UDP, or an inner IP header) announces more than the packet around it holds: a switch
    /// trimmed it.
    pub truncated: bool,
}

/// Takes Ethernet, IP and UDP headers off `frame`, and the outer IPv6 header of a source-routed packet, with or
/// without a routing header.
///
/// What follows the IP packet (Ethernet pads short frames) is ignored. Not taken, with the reason as the error: VLAN
/// tags, IPv4 options and fragments, other IPv6 extension headers, a routing header with segments left, and a
/// second outer packet. The UDP checksum is not looked at; the iCRC covers what it would.
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

/// Where an IP packet lies.
#[derive(Clone, Copy)]
struct Place<'a> {
    frame: &'a [u8],
    /// Bytes of the frame that lie elsewhere, behind these.
    more: usize,
    /// Where in the frame the IP header starts.
    at: usize,
    /// Where the packet around it ends.
    outer_end: Option<usize>,
}

#[expect(clippy::inline_always, reason = "for whole frames `more` is 0, and nothing is left of it")]
#[inline(always)]
fn parse_with(frame: &[u8], more: usize) -> Result<Parsed<'_>, StackError> {
    let Some(ethernet) = frame.first_chunk::<ETHERNET_LEN>() else {
        return Err(StackError::Short { layer: "Ethernet", needed: ETHERNET_LEN, found: frame.len() });
    };
    let place = Place { frame, more, at: ETHERNET_LEN, outer_end: None };
    match ethernet::TYPE.get(ethernet) {
        ETHERTYPE_IPV6 => parse_ipv6(place),
        ETHERTYPE_IPV4 => parse_ipv4(place),
        other => Err(StackError::EtherType(other)),
    }
}

#[expect(clippy::inline_always, reason = "`at` and `outer_end` are constants where there is no outer packet")]
#[inline(always)]
fn parse_ipv6(place: Place<'_>) -> Result<Parsed<'_>, StackError> {
    let h = place.headers::<IPV6_UDP_LEN>("IPv6 and UDP")?;
    let class_label = ipv6::VERSION_CLASS_LABEL.get(h);
    if class_label >> 28 != 6 {
        return Err(StackError::Version { expected: 0x60, found: (class_label >> 24) as u8 });
    }
    if ipv6::NEXT_HEADER.get(h) != PROTOCOL_UDP {
        return match place.outer_end {
            None => parse_encapsulated(place),
            Some(_) => Err(StackError::Protocol(ipv6::NEXT_HEADER.get(h))),
        };
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
    datagram(place, meta, (IPV6_LEN, ip_len), ipv6::UDP_LENGTH.get(h).into())
}

#[expect(clippy::inline_always, reason = "as for IPv6")]
#[inline(always)]
fn parse_ipv4(place: Place<'_>) -> Result<Parsed<'_>, StackError> {
    let h = place.headers::<IPV4_UDP_LEN>("IPv4 and UDP")?;
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
    datagram(place, meta, (IPV4_LEN, ipv4::TOTAL_LEN.get(h).into()), ipv4::UDP_LENGTH.get(h).into())
}

/// The packet inside the IPv6 packet at `place`.
#[inline(never)]
fn parse_encapsulated(place: Place<'_>) -> Result<Parsed<'_>, StackError> {
    let h = place.headers::<IPV6_LEN>("outer IPv6")?;
    let outer_class = (ipv6::VERSION_CLASS_LABEL.get(h) >> 20) as u8;
    let outer_end = place.at + IPV6_LEN + usize::from(ipv6::PAYLOAD_LEN.get(h));
    let found = place.frame.len() + place.more;
    if outer_end > found {
        return Err(StackError::Short { layer: "outer IPv6 length", needed: outer_end, found });
    }
    let mut protocol = ipv6::NEXT_HEADER.get(h);
    let mut inner = Place { at: place.at + IPV6_LEN, outer_end: Some(outer_end), ..place };
    if protocol == PROTOCOL_ROUTING {
        let routing = inner.headers::<ROUTING_LEN>("routing header")?;
        let left = routing::SEGMENTS_LEFT.get(routing);
        if left != 0 {
            return Err(StackError::SegmentsLeft(left));
        }
        protocol = routing::NEXT_HEADER.get(routing);
        inner.at += ROUTING_LEN + usize::from(routing::LEN.get(routing)) * 8;
    }
    let mut parsed = match protocol {
        PROTOCOL_IPV6 => parse_ipv6(inner)?,
        PROTOCOL_IPV4 => parse_ipv4(inner)?,
        other => return Err(StackError::Protocol(other)),
    };
    let marked = if parsed.meta.traffic_class & CE == CE { CE } else { 0 };
    parsed.meta.traffic_class = outer_class | marked;
    Ok(parsed)
}

impl<'a> Place<'a> {
    /// The first `N` bytes, which `layer` needs.
    #[inline]
    fn headers<const N: usize>(self, layer: &'static str) -> Result<&'a [u8; N], StackError> {
        let (needed, found) = (self.at + N, self.frame.len());
        if self.outer_end.is_some_and(|end| needed > end) {
            return Err(StackError::Short { layer, needed, found: self.outer_end.unwrap_or(found) });
        }
        let header = self.frame.get(self.at..).and_then(|rest| rest.first_chunk());
        header.ok_or(StackError::Short { layer, needed, found })
    }
}

/// Cuts the IP packet of `ip_len` bytes, `ip_head` of them its header, and its UDP payload out of the frame.
#[expect(clippy::inline_always, reason = "as for IPv6")]
#[inline(always)]
fn datagram(
    Place { frame, more, at, outer_end }: Place<'_>,
    meta: DatagramMeta,
    (ip_head, ip_len): (usize, usize),
    udp_len: usize,
) -> Result<Parsed<'_>, StackError> {
    // A switch that trims mends the length of the outer packet alone.
    let end = outer_end.map_or(at + ip_len, |outer_end| outer_end.min(at + ip_len));
    let elsewhere = end.saturating_sub(frame.len());
    if elsewhere > more {
        return Err(StackError::Short { layer: "IP length", needed: end, found: frame.len() + more });
    }
    // Its headers are there, so this is not empty.
    let l3 = frame.get(at..end - elsewhere).unwrap_or_default();
    let Some(mrc) = l3.get(ip_head + UDP_LEN..) else {
        return Err(StackError::UdpLength { expected: ip_len.saturating_sub(ip_head), found: udp_len });
    };
    let expected = ip_len - ip_head;
    if udp_len < expected {
        return Err(StackError::UdpLength { expected, found: udp_len });
    }
    Ok(Parsed { meta, l3, mrc, elsewhere, truncated: udp_len > end - at - ip_head })
}
