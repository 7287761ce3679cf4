//! Parsing the headers of a frame.

use core::hint::cold_path;
use std::net::{Ipv4Addr, Ipv6Addr};

use crate::DatagramMeta;

use super::{
    CE, DONT_FRAGMENT, ETHERNET_LEN, ETHERTYPE_IPV4, ETHERTYPE_IPV6, FLOW_LABEL, IPV4_LEN, IPV4_UDP_LEN,
    IPV6_LEN, IPV6_STACK_LEN, IPV6_UDP_LEN, PROTOCOL_IPV4, PROTOCOL_IPV6, PROTOCOL_ROUTING, PROTOCOL_UDP,
    ROUTING_LEN, StackError, UDP_LEN, VERSION_4_NO_OPTIONS, ethernet, fold, ipv4, ipv6, routing, words_sum,
};

/// A UDP datagram found in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parsed<'a> {
    /// Addresses and markings. Where there is an outer packet, the DSCP is that of the outer one, which switches
    /// mark, and "congestion experienced" is that of either (RFC 6040 section 4.2); all else is that of the inner one.
    pub meta: DatagramMeta,
    /// From the IP header next to UDP to the end of the IP packet.
    pub l3: &'a [u8],
    /// The available part of the UDP payload; it ends with the iCRC if nothing is missing.
    pub mrc: &'a [u8],
    /// Bytes of the IP packet after these that are in other pieces: see [`parse_front`].
    pub elsewhere: usize,
    /// An outer header (that of UDP, or an inner IP header) announces more than the packet around it holds: a switch
    /// trimmed it.
    pub truncated: bool,
}

/// Takes Ethernet, IP and UDP headers off `frame`, and the outer IPv6 header of a source-routed packet, with or
/// without a routing header.
///
/// Bytes after the IP packet (Ethernet pads short frames) are ignored. Refused, with the reason as the error: VLAN
/// tags, IPv4 options and fragments, other IPv6 extension headers, a routing header with segments left, and a second
/// outer packet. The UDP checksum is not checked, because the iCRC covers the same bytes.
#[inline]
pub fn parse(frame: &[u8]) -> Result<Parsed<'_>, StackError> {
    parse_with(frame, 0)
}

/// The same for the first part of a frame, which holds at least these headers and is followed by `more` bytes in other
/// pieces.
#[inline]
pub fn parse_front(frame: &[u8], more: usize) -> Result<Parsed<'_>, StackError> {
    parse_with(frame, more)
}

/// An IPv6 datagram without an outer packet: the same as [`Parsed`], with addresses and markings read in place.
#[derive(Clone, Copy)]
pub struct Plain<'a> {
    /// Addresses and markings.
    pub meta: V6<'a>,
    /// As in [`Parsed`].
    pub l3: &'a [u8],
    /// As in [`Parsed`].
    pub mrc: &'a [u8],
    /// As in [`Parsed`].
    pub elsewhere: usize,
    /// As in [`Parsed`].
    pub truncated: bool,
}

/// Ethernet, IPv6 and UDP headers.
#[derive(Clone, Copy)]
pub struct V6<'a>(&'a [u8; IPV6_STACK_LEN]);

impl<'a> V6<'a> {
    #[inline]
    fn ip(self) -> &'a [u8; IPV6_UDP_LEN] {
        const { assert!(IPV6_UDP_LEN <= IPV6_STACK_LEN, "so there is such a chunk") };
        self.0.last_chunk().unwrap_or(&[0; _])
    }

    /// Ethernet address of the sender.
    pub fn src_mac(self) -> [u8; 6] {
        ethernet::SRC.get(self.0)
    }

    /// Source address.
    #[inline]
    pub fn src(self) -> Ipv6Addr {
        ipv6::SRC.get(self.ip()).into()
    }

    /// Destination address.
    #[inline]
    pub fn dst(self) -> Ipv6Addr {
        ipv6::DST.get(self.ip()).into()
    }

    /// UDP source port.
    #[inline]
    pub fn src_port(self) -> u16 {
        ipv6::SRC_PORT.get(self.ip())
    }

    /// UDP destination port.
    #[inline]
    pub fn dst_port(self) -> u16 {
        ipv6::DST_PORT.get(self.ip())
    }

    /// Flow label, 20 bits.
    #[inline]
    pub fn flow_label(self) -> u32 {
        ipv6::VERSION_CLASS_LABEL.get(self.ip()) & FLOW_LABEL
    }

    /// Traffic class: DSCP and ECN.
    #[inline]
    pub fn traffic_class(self) -> u8 {
        (ipv6::VERSION_CLASS_LABEL.get(self.ip()) >> 20) as u8
    }

    /// All of it, read.
    #[inline]
    pub fn read(self) -> DatagramMeta {
        DatagramMeta {
            src: self.src().into(),
            dst: self.dst().into(),
            src_port: self.src_port(),
            dst_port: self.dst_port(),
            flow_label: self.flow_label(),
            traffic_class: self.traffic_class(),
            hop_limit: ipv6::HOP_LIMIT.get(self.ip()),
        }
    }
}

/// The result of [`parse_front`], if it is an IPv6 datagram without an outer packet. Any other frame, and any with an
/// error, is left to that function.
#[inline]
pub fn parse_plain(frame: &[u8], more: usize) -> Option<Plain<'_>> {
    let Some(headers) = frame.first_chunk::<IPV6_STACK_LEN>() else {
        cold_path();
        return None;
    };
    if ethernet::TYPE.get(headers) != ETHERTYPE_IPV6 {
        cold_path();
        return None;
    }
    let place = Place { frame, more, at: ETHERNET_LEN, outer_end: None };
    let (_, Cut { l3, mrc, elsewhere, truncated }) = parse_ipv6_udp(place).ok()?;
    Some(Plain { meta: V6(headers), l3, mrc, elsewhere, truncated })
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

#[inline]
fn parse_ipv6(place: Place<'_>) -> Result<Parsed<'_>, StackError> {
    match parse_ipv6_udp(place) {
        Ok((h, Cut { l3, mrc, elsewhere, truncated })) => {
            let class_label = ipv6::VERSION_CLASS_LABEL.get(h);
            let meta = DatagramMeta {
                src: Ipv6Addr::from(ipv6::SRC.get(h)).into(),
                dst: Ipv6Addr::from(ipv6::DST.get(h)).into(),
                src_port: ipv6::SRC_PORT.get(h),
                dst_port: ipv6::DST_PORT.get(h),
                flow_label: class_label & FLOW_LABEL,
                traffic_class: (class_label >> 20) as u8,
                hop_limit: ipv6::HOP_LIMIT.get(h),
            };
            Ok(Parsed { meta, l3, mrc, elsewhere, truncated })
        }
        Err(StackError::Protocol(_)) if place.outer_end.is_none() => parse_encapsulated(place),
        Err(error) => Err(error),
    }
}

#[expect(clippy::inline_always, reason = "`at` and `outer_end` are constants where there is no outer packet")]
#[inline(always)]
fn parse_ipv6_udp(place: Place<'_>) -> Result<(&[u8; IPV6_UDP_LEN], Cut<'_>), StackError> {
    let h = place.headers::<IPV6_UDP_LEN>("IPv6 and UDP")?;
    let class_label = ipv6::VERSION_CLASS_LABEL.get(h);
    if class_label >> 28 != 6 {
        cold_path();
        return Err(StackError::Version { expected: 0x60, found: (class_label >> 24) as u8 });
    }
    if ipv6::NEXT_HEADER.get(h) != PROTOCOL_UDP {
        cold_path();
        return Err(StackError::Protocol(ipv6::NEXT_HEADER.get(h)));
    }
    let ip_len = IPV6_LEN + usize::from(ipv6::PAYLOAD_LEN.get(h));
    Ok((h, cut(place, (IPV6_LEN, ip_len), ipv6::UDP_LENGTH.get(h).into())?))
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
        src: Ipv4Addr::from(ipv4::SRC.get(h)).into(),
        dst: Ipv4Addr::from(ipv4::DST.get(h)).into(),
        src_port: ipv4::SRC_PORT.get(h),
        dst_port: ipv4::DST_PORT.get(h),
        flow_label: 0,
        traffic_class: ipv4::TOS.get(h),
        hop_limit: ipv4::TTL.get(h),
    };
    let ip_len = ipv4::TOTAL_LEN.get(h).into();
    let Cut { l3, mrc, elsewhere, truncated } =
        cut(place, (IPV4_LEN, ip_len), ipv4::UDP_LENGTH.get(h).into())?;
    Ok(Parsed { meta, l3, mrc, elsewhere, truncated })
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

/// An IP packet and its UDP payload, as in [`Parsed`].
struct Cut<'a> {
    l3: &'a [u8],
    mrc: &'a [u8],
    elsewhere: usize,
    truncated: bool,
}

/// Cuts the IP packet of `ip_len` bytes, `ip_head` of them its header, and its UDP payload out of the frame.
#[expect(clippy::inline_always, reason = "as for IPv6")]
#[inline(always)]
fn cut(
    Place { frame, more, at, outer_end }: Place<'_>,
    (ip_head, ip_len): (usize, usize),
    udp_len: usize,
) -> Result<Cut<'_>, StackError> {
    // A switch that trims corrects only the length of the outer packet.
    let end = outer_end.map_or(at + ip_len, |outer_end| outer_end.min(at + ip_len));
    let elsewhere = end.saturating_sub(frame.len());
    if elsewhere > more {
        cold_path();
        return Err(StackError::Short { layer: "IP length", needed: end, found: frame.len() + more });
    }
    // Its headers are there, so this is not empty.
    let l3 = frame.get(at..end - elsewhere).unwrap_or_default();
    let Some(mrc) = l3.get(ip_head + UDP_LEN..) else {
        cold_path();
        return Err(StackError::UdpLength { expected: ip_len.saturating_sub(ip_head), found: udp_len });
    };
    let expected = ip_len - ip_head;
    if udp_len < expected {
        cold_path();
        return Err(StackError::UdpLength { expected, found: udp_len });
    }
    Ok(Cut { l3, mrc, elsewhere, truncated: udp_len > end - at - ip_head })
}

#[cfg(test)]
#[expect(clippy::indexing_slicing, reason = "test")]
mod tests {
    use rand::rngs::ChaCha20Rng;
    use rand::{Rng, RngExt, SeedableRng};

    use super::super::StackTemplate;
    use super::*;
    use crate::Entropy;
    use crate::MacAddr;

    /// What the path of data packets finds is what the other finds, in part of a frame as in the whole, and nothing
    /// where that finds an error, IPv4 or an outer packet.
    #[test]
    fn plain_datagrams_are_found_alike() {
        let mut rng = ChaCha20Rng::seed_from_u64(11);
        let ip = |last| Ipv6Addr::new(0xfd00, 1, 2, 3, 4, 5, 6, last).into();
        let template = StackTemplate::new(MacAddr([2; 6]), MacAddr([4; 6]), ip(1), ip(2), 4971, 64).unwrap();
        let (mut plain_found, mut errors) = (0, 0);
        for _ in 0..100_000 {
            let entropy = Entropy { src_port: rng.random(), flow_label: rng.random_range(0..1 << 20) };
            let mut frame = vec![0; IPV6_STACK_LEN + rng.random_range(0..80)];
            let payload = frame.len() - IPV6_STACK_LEN;
            template.write(&mut frame, entropy, rng.random(), payload);
            if rng.random() {
                // One of the bytes that lengths, versions and protocols are in, most of the time.
                let at = *[12, 13, 14, 18, 19, 20, 58, 59, rng.random_range(0..frame.len())]
                    .get(rng.random_range(0..9))
                    .unwrap();
                frame[at] = if rng.random() { rng.random() } else { frame[at] ^ 1 << rng.random_range(0..8) };
            }
            frame.extend((0..rng.random_range(0..3)).map(|_| rng.next_u32() as u8));
            let cut = if rng.random() { frame.len() } else { rng.random_range(0..=frame.len()) };
            let (front, more) = (&frame[..cut], frame.len() - cut);
            let is_plain = front.get(12..14) == Some(&[0x86, 0xdd]) && front.get(20) == Some(&PROTOCOL_UDP);
            let expected = parse_front(front, more).ok().filter(|_| is_plain);
            let found = parse_plain(front, more).map(|plain| {
                assert_eq!(plain.meta.src_mac(), front[6..12]);
                let Plain { meta, l3, mrc, elsewhere, truncated } = plain;
                Parsed { meta: meta.read(), l3, mrc, elsewhere, truncated }
            });
            assert_eq!(found, expected, "{front:?} and {more}");
            plain_found += u32::from(found.is_some());
            errors += u32::from(found.is_none());
        }
        assert!(plain_found > 20_000 && errors > 20_000, "{plain_found} {errors}");
    }
}
