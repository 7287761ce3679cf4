//! Lenient parsing of arbitrary frames: addresses, markings and lengths, for middleware and tools.
//!
//! The transport reads its packets with [`stack::parse`](crate::stack::parse), which is strict.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::headers::{
    DatagramMeta, ETHERNET_LEN, IPV4_LEN, IPV6_LEN, PROTOCOL_IPV4, PROTOCOL_IPV6, PROTOCOL_ROUTING,
    PROTOCOL_UDP, UDP_LEN,
};

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// Reads the UDP datagram in an Ethernet frame, of which the headers suffice, and where its payload starts.
/// Looks through outer IPv6 headers, with or without a routing header; markings are the outermost ones. `None`: no UDP.
pub fn parse(frame: &[u8]) -> Option<(DatagramMeta, usize)> {
    let mut at = ETHERNET_LEN;
    let traffic_class = traffic_class(frame)?;
    let mut version = frame.get(at)? >> 4;
    while version == 6 {
        let (mut next, mut len) = (*frame.get(at + 6)?, IPV6_LEN);
        if next == PROTOCOL_ROUTING {
            let routing = frame.get(at + IPV6_LEN..at + IPV6_LEN + 2)?;
            next = routing[0];
            len += 8 + usize::from(routing[1]) * 8;
        }
        version = match next {
            PROTOCOL_IPV6 => 6,
            PROTOCOL_IPV4 => 4,
            _ => break,
        };
        at += len;
        if frame.get(at)? >> 4 != version {
            return None;
        }
    }
    let ip = frame.get(at..)?;
    let (src, dst, flow_label, hop_limit, protocol, len): (IpAddr, IpAddr, _, _, _, _) = match version {
        4 => {
            let src = Ipv4Addr::from(*ip.get(12..16)?.first_chunk::<4>()?);
            let dst = Ipv4Addr::from(*ip.get(16..20)?.first_chunk::<4>()?);
            (src.into(), dst.into(), 0, ip[8], ip[9], (ip[0] & 0xf) as usize * 4)
        }
        6 => {
            let src = Ipv6Addr::from(*ip.get(8..24)?.first_chunk::<16>()?);
            let dst = Ipv6Addr::from(*ip.get(24..40)?.first_chunk::<16>()?);
            let label = u32::from_be_bytes([0, ip[1] & 0xf, ip[2], ip[3]]);
            (src.into(), dst.into(), label, ip[7], ip[6], IPV6_LEN)
        }
        _ => return None,
    };
    if protocol != PROTOCOL_UDP || ip.len() < len + UDP_LEN {
        return None;
    }
    let (src_port, dst_port) = (word(ip, len)?, word(ip, len + 2)?);
    let meta = DatagramMeta { src, dst, src_port, dst_port, flow_label, traffic_class, hop_limit };
    Some((meta, at + len + UDP_LEN))
}

/// DSCP and ECN of the outermost IP header.
pub fn traffic_class(frame: &[u8]) -> Option<u8> {
    let ip = frame.get(ETHERNET_LEN..ETHERNET_LEN + IPV4_LEN)?;
    match ip[0] >> 4 {
        4 => Some(ip[1]),
        6 => Some(ip[0] << 4 | ip[1] >> 4),
        _ => None,
    }
}

/// Rewrites DSCP and ECN of the outermost IP header, and the IPv4 checksum.
pub fn set_traffic_class(frame: &mut [u8], class: u8) {
    let Some(ip) = frame.get_mut(ETHERNET_LEN..ETHERNET_LEN + IPV4_LEN) else { return };
    match ip[0] >> 4 {
        4 => ip[1] = class,
        6 => {
            ip[0] = 0x60 | class >> 4;
            ip[1] = class << 4 | ip[1] & 0xf;
        }
        _ => return,
    }
    fix_ipv4_checksum(frame);
}

/// Rewrites the outermost IP header's length to that of the frame, and the IPv4 checksum.
pub fn set_ip_len(frame: &mut [u8]) {
    let len = frame.len();
    let Some(ip) = frame.get_mut(ETHERNET_LEN..ETHERNET_LEN + IPV4_LEN) else { return };
    match ip[0] >> 4 {
        4 => ip[2..4].copy_from_slice(&((len - ETHERNET_LEN) as u16).to_be_bytes()),
        6 => ip[4..6].copy_from_slice(&(len.saturating_sub(ETHERNET_LEN + IPV6_LEN) as u16).to_be_bytes()),
        _ => return,
    }
    fix_ipv4_checksum(frame);
}

fn fix_ipv4_checksum(frame: &mut [u8]) {
    let Some(ip) = frame.get_mut(ETHERNET_LEN..) else { return };
    let len = ip.first().map_or(0, |b| (b & 0xf) as usize * 4);
    if ip.first().is_none_or(|b| b >> 4 != 4) || len < 20 || ip.len() < len {
        return;
    }
    let header = &mut ip[..len];
    header[10..12].fill(0);
    let sum = ones_sum(header);
    header[10..12].copy_from_slice(&(!sum).to_be_bytes());
}

/// Sum of big-endian words in ones' complement (RFC 1071).
fn ones_sum(bytes: &[u8]) -> u16 {
    let mut sum: u32 =
        bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |&b| b.into())).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Ethernet, IP and UDP headers for a datagram of which only the meta is known. The UDP checksum is 0, and
/// so are the Ethernet addresses. Returns the headers' length.
pub fn synthesise(meta: &DatagramMeta, payload_len: usize, out: &mut [u8; 62]) -> usize {
    out.fill(0);
    let udp_len = (payload_len + UDP_LEN) as u16;
    let class = meta.traffic_class;
    let udp_at = match (meta.src, meta.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            out[12..14].copy_from_slice(&[0x08, 0]);
            out[14..24].copy_from_slice(&[0x45, class, 0, 0, 0, 0, 0x40, 0, meta.hop_limit, PROTOCOL_UDP]);
            out[16..18].copy_from_slice(&(udp_len + IPV4_LEN as u16).to_be_bytes());
            out[26..30].copy_from_slice(&src.octets());
            out[30..34].copy_from_slice(&dst.octets());
            fix_ipv4_checksum(&mut out[..34]);
            34
        }
        (src, dst) => {
            let octets = |ip| match ip {
                IpAddr::V4(v4) => Ipv4Addr::to_ipv6_mapped(&v4).octets(),
                IpAddr::V6(v6) => Ipv6Addr::octets(&v6),
            };
            out[12..14].copy_from_slice(&[0x86, 0xdd]);
            let first = 6 << 28 | u32::from(class) << 20 | meta.flow_label & 0xf_ffff;
            out[14..18].copy_from_slice(&first.to_be_bytes());
            out[18..20].copy_from_slice(&udp_len.to_be_bytes());
            (out[20], out[21]) = (PROTOCOL_UDP, meta.hop_limit);
            out[22..38].copy_from_slice(&octets(src));
            out[38..54].copy_from_slice(&octets(dst));
            54
        }
    };
    out[udp_at..udp_at + 2].copy_from_slice(&meta.src_port.to_be_bytes());
    out[udp_at + 2..udp_at + 4].copy_from_slice(&meta.dst_port.to_be_bytes());
    out[udp_at + 4..udp_at + 6].copy_from_slice(&udp_len.to_be_bytes());
    udp_at + UDP_LEN
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(src: &str, dst: &str) -> DatagramMeta {
        DatagramMeta {
            src: src.parse().unwrap(),
            dst: dst.parse().unwrap(),
            src_port: 0xc001,
            dst_port: 4971,
            flow_label: 0,
            traffic_class: 0x2a << 2 | 2,
            hop_limit: 63,
        }
    }

    #[test]
    fn synthesised_headers_parse_back_and_etherparse_agrees() {
        for (src, dst) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
            let mut meta = meta(src, dst);
            if meta.src.is_ipv6() {
                meta.flow_label = 0xabcde;
            }
            let mut head = [0; 62];
            let len = synthesise(&meta, 5, &mut head);
            assert_eq!(parse(&head[..len]), Some((meta, len)));
            let mut frame = head[..len].to_vec();
            frame.extend(b"hello");
            let packet = etherparse::PacketHeaders::from_ethernet_slice(&frame).unwrap();
            if let Some(etherparse::NetHeaders::Ipv4(ip, _)) = &packet.net {
                assert_eq!(ip.header_checksum, ip.calc_header_checksum());
            }
            assert_eq!(packet.transport.unwrap().udp().unwrap().source_port, 0xc001);
            assert_eq!(packet.payload.slice(), b"hello");
            set_traffic_class(&mut frame, 0x27);
            frame.truncate(len + 2);
            set_ip_len(&mut frame);
            assert_eq!(traffic_class(&frame), Some(0x27));
            let lax = etherparse::LaxPacketHeaders::from_ethernet(&frame).unwrap();
            assert_eq!(lax.payload.slice(), b"he");
            let udp = lax.transport.unwrap().udp().unwrap();
            assert_eq!(udp.length, 13, "the UDP length still tells of five bytes");
        }
    }

    #[test]
    fn looks_into_an_outer_ipv6_header() {
        let mut inner = [0; 62];
        let inner_meta = meta("fd00::1", "fd00::2");
        synthesise(&inner_meta, 0, &mut inner);
        let mut frame = inner[..54].to_vec();
        frame[20] = PROTOCOL_IPV6;
        frame.extend(&inner[14..]);
        set_traffic_class(&mut frame, 3);
        assert_eq!(parse(&frame), Some((DatagramMeta { traffic_class: 3, ..inner_meta }, 102)));
        for len in 0..102 {
            assert_eq!(parse(&frame[..len]), None);
        }
    }

    /// Also with segments left: middleware runs at the start of the path as well as at its end.
    #[test]
    fn looks_past_a_routing_header() {
        for ends in [["10.0.0.1", "10.0.0.2"], ["fd00::1", "fd00::2"]] {
            let inner_meta = meta(ends[0], ends[1]);
            let mut inner = [0; 62];
            let inner_len = synthesise(&inner_meta, 0, &mut inner);
            let protocol = if inner_meta.src.is_ipv6() { PROTOCOL_IPV6 } else { PROTOCOL_IPV4 };
            let mut frame = vec![0; 54 + 8 + 32];
            frame[12..15].copy_from_slice(&[0x86, 0xdd, 0x60]);
            frame[20] = PROTOCOL_ROUTING;
            frame[54..58].copy_from_slice(&[protocol, 4, 4, 2]);
            frame.extend(&inner[14..inner_len]);
            set_traffic_class(&mut frame, 3);
            let len = frame.len();
            assert_eq!(parse(&frame), Some((DatagramMeta { traffic_class: 3, ..inner_meta }, len)));
            for len in 0..len {
                assert_eq!(parse(&frame[..len]), None);
            }
            frame[54] = PROTOCOL_IPV4 + PROTOCOL_IPV6 - protocol;
            assert_eq!(parse(&frame), None, "of the other version");
            frame[54] = PROTOCOL_ROUTING;
            assert_eq!(parse(&frame), None, "a second routing header");
        }
    }
}
