//! Headers between link and UDP that a plain MRC frame lacks: IPv6 extension headers, IPv4 options, and
//! lengths that the kernel leaves open in packets that it will cut up later.

use spindrift::wire::headers::{self, ETHERNET_LEN, PROTOCOL_ROUTING, PROTOCOL_UDP};
pub(super) use spindrift::wire::headers::{IPV4_LEN, IPV6_LEN, UDP_LEN};

pub(super) const ETHERTYPE_IPV4: [u8; 2] = headers::ETHERTYPE_IPV4.to_be_bytes();
pub(super) const ETHERTYPE_IPV6: [u8; 2] = headers::ETHERTYPE_IPV6.to_be_bytes();
const HOP_BY_HOP: u8 = 0;
const DESTINATION_OPTIONS: u8 = 60;
const FRAGMENT: u8 = 44;
const SEGMENT_ROUTING: u8 = 4;
/// Length of a segment in a segment list, in the unit of the length of an extension header.
const SEGMENT_UNITS: u8 = 2;
/// Extension headers that are followed in one packet. A sender needs four at most.
const EXTENSIONS_MAX: usize = 8;

/// The extension headers of an IPv6 packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extensions {
    /// What follows them.
    pub(super) next: u8,
    /// Their length in bytes.
    pub(super) len: usize,
    /// Where the last segment of a segment list stands, if the packet is still on its way there.
    destination_at: Option<usize>,
}

/// Follows the extension headers of the IPv6 packet `ip`, up to a bound.
pub(super) fn extensions(ip: &[u8]) -> Option<Extensions> {
    let mut found = Extensions { next: *ip.get(6)?, len: 0, destination_at: None };
    for _ in 0..EXTENSIONS_MAX {
        if !matches!(found.next, HOP_BY_HOP | PROTOCOL_ROUTING | DESTINATION_OPTIONS) {
            break;
        }
        let at = IPV6_LEN + found.len;
        let header = ip.get(at..at + 8)?;
        // Length, routing type, segments left; the last segment of the way stands first in the list.
        let has_segments = header.get(1).is_some_and(|&len| len >= SEGMENT_UNITS);
        let on_its_way = header.get(2) == Some(&SEGMENT_ROUTING) && header.get(3) != Some(&0);
        if found.next == PROTOCOL_ROUTING && has_segments && on_its_way {
            found.destination_at = Some(at + 8);
        }
        found.next = *header.first()?;
        found.len += (usize::from(*header.get(1)?) + 1) * 8;
    }
    Some(found)
}

/// Traffic class (type of service in IPv4) of the IP packet in a frame.
pub(super) fn traffic_class(frame: &[u8]) -> u8 {
    match frame.get(ETHERNET_LEN..) {
        Some([first, second, ..]) if first >> 4 == 6 => first << 4 | second >> 4,
        Some([_, second, ..]) => *second,
        _ => 0,
    }
}

/// Whether the frame holds a part of an IP packet.
pub(super) fn is_fragment(frame: &[u8]) -> bool {
    let Some(ip) = frame.get(ETHERNET_LEN..) else { return false };
    match frame.get(12..14) {
        // "More fragments", or an offset.
        Some(kind) if kind == ETHERTYPE_IPV4 => {
            ip.get(6..8).is_some_and(|field| field[0] & 0x3f != 0 || field[1] != 0)
        }
        Some(kind) if kind == ETHERTYPE_IPV6 => extensions(ip).is_some_and(|found| found.next == FRAGMENT),
        _ => false,
    }
}

/// Takes the extension headers between IPv6 and UDP out of a frame: what is left is the packet as its receiver
/// sees it, which is the one that the iCRC covers.
pub(super) fn without_extensions(frame: &mut Vec<u8>) {
    if frame.get(12..14) != Some(&ETHERTYPE_IPV6) {
        return;
    }
    let Some(ip) = frame.get(ETHERNET_LEN..) else { return };
    let Some(found) = extensions(ip).filter(|found| found.len > 0 && found.next == PROTOCOL_UDP) else {
        return;
    };
    if ip.len() < IPV6_LEN + found.len {
        return;
    }
    let destination = found.destination_at.and_then(|at| ip.get(at..at + 16)).map(<[u8]>::to_vec);
    let payload_len = ip.get(4..6).map_or(0, |len| usize::from(len[0]) << 8 | usize::from(len[1]));
    // 0 stays 0, which says that the length is open; a length that ends inside the extension headers is wrong.
    if payload_len != 0 && payload_len <= found.len {
        return;
    }
    let Some(ip) = frame.get_mut(ETHERNET_LEN..ETHERNET_LEN + IPV6_LEN) else { return };
    ip[4..6].copy_from_slice(&(payload_len.saturating_sub(found.len) as u16).to_be_bytes());
    ip[6] = PROTOCOL_UDP;
    if let Some(destination) = destination {
        ip[24..40].copy_from_slice(&destination);
    }
    frame.drain(ETHERNET_LEN + IPV6_LEN..ETHERNET_LEN + IPV6_LEN + found.len);
}

/// Takes the options out of the IPv4 header of a frame (RFC 791, section 3.1). Receivers over kernel sockets see the packet so, and
/// check the iCRC for it.
pub(super) fn without_options(frame: &mut Vec<u8>) {
    if frame.get(12..14) != Some(&ETHERTYPE_IPV4) {
        return;
    }
    let Some(ip) = frame.get_mut(ETHERNET_LEN..) else { return };
    let len = usize::from(ip.first().map_or(0, |first| first & 0xf)) * 4;
    if ip.first().is_none_or(|first| first >> 4 != 4) || len <= IPV4_LEN || ip.len() < len {
        return;
    }
    let total_len = u16::from_be_bytes([ip[2], ip[3]]);
    // 0 stays 0, which says that the length is open.
    if total_len != 0 && usize::from(total_len) < len {
        return;
    }
    ip[0] = 0x45;
    ip[2..4].copy_from_slice(&total_len.saturating_sub((len - IPV4_LEN) as u16).to_be_bytes());
    set_checksum(ip);
    frame.drain(ETHERNET_LEN + IPV4_LEN..ETHERNET_LEN + len);
}

/// Fills in the length of a UDP header whose end was not captured: `kept` bytes of the frame were.
pub(super) fn complete_udp(frame: &mut [u8], kept: usize) {
    let v6 = frame.get(12..14) == Some(&ETHERTYPE_IPV6);
    let (len_at, protocol_at, head) = if v6 { (4, 6, IPV6_LEN) } else { (2, 9, IPV4_LEN) };
    let Some(ip) = frame.get_mut(ETHERNET_LEN..).filter(|ip| ip.len() >= head + UDP_LEN) else { return };
    if ip[protocol_at] != PROTOCOL_UDP || kept >= ETHERNET_LEN + head + UDP_LEN {
        return;
    }
    let len = u16::from_be_bytes([ip[len_at], ip[len_at + 1]]);
    let udp_len = if v6 { len } else { len.saturating_sub(IPV4_LEN as u16) };
    ip[head + 4..head + 6].copy_from_slice(&udp_len.to_be_bytes());
}

/// Fills in the lengths of a packet whose IP length field is 0: inside the kernel, before segmentation offload, the
/// field is still open, or the packet is longer than it can say. Returns whether there was one. `frame` is as long as
/// on the wire.
pub(super) fn fill_lengths(frame: &mut [u8]) -> bool {
    let v6 = frame.get(12..14) == Some(&ETHERTYPE_IPV6);
    let Some(ip) = frame.get_mut(ETHERNET_LEN..) else { return false };
    let (len_at, protocol_at, head) = if v6 { (4, 6, IPV6_LEN) } else { (2, 9, IPV4_LEN) };
    if ip.len() < head + UDP_LEN || ip[protocol_at] != PROTOCOL_UDP || ip[len_at..len_at + 2] != [0, 0] {
        return false;
    }
    let most = usize::from(u16::MAX);
    let len = if v6 { ip.len() - head } else { ip.len() }.min(most) as u16;
    let udp_len = (ip.len() - head).min(most) as u16;
    ip[len_at..len_at + 2].copy_from_slice(&len.to_be_bytes());
    ip[head + 4..head + 6].copy_from_slice(&udp_len.to_be_bytes());
    if !v6 {
        // The checksum may be that of length 0, or not computed yet.
        set_checksum(ip);
    }
    true
}

/// Makes the length of the IP packet in `frame` the one that it has: a switch that trims a packet inside an outer one
/// corrects the length of the outer one only. That of UDP stays.
pub(super) fn shorten(frame: &mut [u8]) {
    let Some(ip) = frame.get_mut(ETHERNET_LEN..).filter(|ip| ip.len() >= IPV6_LEN) else { return };
    let v6 = ip[0] >> 4 == 6;
    let (len_at, head) = if v6 { (4, IPV6_LEN) } else { (2, 0) };
    let len = (ip.len() - head).min(usize::from(u16::MAX)) as u16;
    ip[len_at..len_at + 2].copy_from_slice(&len.to_be_bytes());
    if !v6 {
        set_checksum(ip);
    }
}

/// The checksum of the IPv4 header without options that `ip` starts with, and that has so many bytes at least.
fn set_checksum(ip: &mut [u8]) {
    ip[10..12].fill(0);
    let sum: u32 =
        ip[..IPV4_LEN].chunks_exact(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    ip[10..12].copy_from_slice(&(!(folded as u16)).to_be_bytes());
}
