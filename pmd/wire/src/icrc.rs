//! The invariant CRC at the end of each packet (the rules of `RoCEv2`, `InfiniBand` annex A17).
//!
//! CRC-32 as in Ethernet, over eight bytes of ones in place of a link header, the IP and UDP headers, and all of the
//! packet up to the iCRC. It is stored least significant byte first. Fields that switches may change count as ones: in
//! IPv4 the type of service, time to live and header checksum; in IPv6 the traffic class, flow label and hop limit;
//! the UDP checksum; and the fifth byte of the BTH.
//!
//! The flow label is not covered, so that half of a structured entropy value is not protected.

use std::net::IpAddr;

use spindrift_memory::{Payload, Pieces, crc32_with_ones};

use super::ICRC_LEN;
use super::batch_ids::BatchIds;
use super::headers::{DatagramMeta, IPV4_LEN, IPV6_LEN, UDP_LEN};

/// CRC register after the eight bytes of ones, inverted as [`Payload::crc32`] has it.
const AFTER_LINK_HEADER: u32 = !0xdebb_20e3;

/// Bytes of the BTH up to the last masked one.
const BTH_MASKED: usize = 5;
const IPV4_MASKED: usize = IPV4_LEN + UDP_LEN + BTH_MASKED;
const IPV6_MASKED: usize = IPV6_LEN + UDP_LEN + BTH_MASKED;

/// What switches may change: in an IP header of this length, here the whole bytes given, then the UDP checksum and the
/// fifth byte of the BTH.
#[expect(clippy::indexing_slicing, reason = "evaluated when this is compiled")]
const fn ones<const N: usize>(ip_len: usize, of_ip: [usize; N]) -> [u8; 64] {
    let mut ones = [0; 64];
    let mut rest: &[usize] = &of_ip;
    while let [at, more @ ..] = rest {
        ones[*at] = 0xff;
        rest = more;
    }
    ones[ip_len + 6] = 0xff;
    ones[ip_len + 7] = 0xff;
    ones[ip_len + UDP_LEN + 4] = 0xff;
    ones
}

static IPV4_ONES: [u8; 64] = ones(IPV4_LEN, [1, 8, 10, 11]);
static IPV6_ONES: [u8; 64] = {
    let mut ones = ones(IPV6_LEN, [1, 2, 3, 7]);
    // The version next to the traffic class stays.
    ones[0] = 0x0f;
    ones
};

/// The CRC of a packet up to its payload, `l3_head` from the IP header to the last MRC header, to be continued over
/// the payload least significant byte first.
///
/// The version in the first byte decides between IPv4 (without options) and IPv6.
#[inline]
pub fn before_payload(l3_head: &[u8]) -> u32 {
    let ones = if is_ipv6(l3_head) { &IPV6_ONES } else { &IPV4_ONES };
    crc32_with_ones(AFTER_LINK_HEADER, l3_head, ones)
}

/// The iCRC of a packet in three pieces: as [`before_payload`], payload, pad.
#[inline]
pub fn compute<'a>(l3_head: &[u8], payload: impl Into<Payload<'a>>, pad: &[u8]) -> [u8; ICRC_LEN] {
    let crc = payload.into().crc32(before_payload(l3_head));
    Payload::from(pad).crc32(crc).to_le_bytes()
}

/// Whether the iCRC at the end of `l3`, which starts at the IP header, is right. What switches may change must lie in
/// the first piece.
#[inline]
pub fn verify_frame<'a>(l3: impl Into<Pieces<'a>>) -> bool {
    let l3 = l3.into();
    let masked = if is_ipv6(l3.front()) { IPV6_MASKED } else { IPV4_MASKED };
    let Some((covered, icrc)) = l3.split_last::<ICRC_LEN>() else { return false };
    // Together, as the sender does: a CRC takes longer for two short parts than for one.
    let head = covered.front();
    let Some((head, rest)) = covered.split_front(head.len()).filter(|(head, _)| head.len() >= masked) else {
        return false;
    };
    rest.crc32(before_payload(head)).to_le_bytes() == icrc
}

/// How the iCRC at the end of `rest` differs from that of `l3_head` and `rest`; `None` if there is none.
#[inline]
fn difference(l3_head: &[u8], rest: Pieces<'_>) -> Option<u32> {
    let (covered, icrc) = rest.split_last::<ICRC_LEN>()?;
    Some(covered.crc32(before_payload(l3_head)) ^ u32::from_le_bytes(icrc))
}

/// Whether the iCRC at the end of `udp_payload`, which a kernel socket received, is right. The first bytes of the BTH
/// must be in the first piece.
///
/// The IP header is rebuilt from `meta`. For IPv4, "don't fragment" is assumed to be set, and the identification to be
/// 0 or the number of a packet in a segmented batch, since sockets do not report it; our own ports send it so. So one
/// changed packet in 2^26 passes instead of one in 2^32, unless the UDP checksum has detected it before.
#[inline]
pub fn verify_datagram<'a>(
    meta: &DatagramMeta,
    udp_payload: impl Into<Pieces<'a>>,
    ids: &mut BatchIds,
) -> bool {
    let udp_payload = udp_payload.into();
    let Some((bth, rest)) = udp_payload.split_front(BTH_MASKED) else { return false };
    let Ok(udp_len) = u16::try_from(UDP_LEN + udp_payload.len()) else { return false };
    match (meta.src, meta.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let Some(ip_len) = udp_len.checked_add(IPV4_LEN as u16) else { return false };
            let mut head = [0; IPV4_MASKED];
            let [a, b] = ip_len.to_be_bytes();
            let fields: [&[u8]; 6] = [
                &[0x45, 0, a, b, 0, 0, 0x40, 0, 0, 17, 0, 0],
                &src.octets(),
                &dst.octets(),
                &ports(meta),
                &checksumless(udp_len),
                bth,
            ];
            join(&mut head, &fields);
            let datagram = udp_payload.len();
            difference(&head, rest).is_some_and(|by| by == 0 || ids.number(datagram, by).is_some())
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let mut head = [0; IPV6_MASKED];
            let [a, b] = udp_len.to_be_bytes();
            let fields: [&[u8]; 6] = [
                &[0x60, 0, 0, 0, a, b, 17, 0],
                &src.octets(),
                &dst.octets(),
                &ports(meta),
                &checksumless(udp_len),
                bth,
            ];
            join(&mut head, &fields);
            difference(&head, rest) == Some(0)
        }
        _ => false,
    }
}

#[inline]
fn ports(meta: &DatagramMeta) -> [u8; 4] {
    ((u32::from(meta.src_port) << 16) | u32::from(meta.dst_port)).to_be_bytes()
}

#[inline]
fn checksumless(udp_len: u16) -> [u8; 4] {
    (u32::from(udp_len) << 16).to_be_bytes()
}

/// Lays `pieces` one after the other into `out`.
#[inline]
fn join(out: &mut [u8], pieces: &[&[u8]]) {
    let mut rest = out;
    for piece in pieces {
        let Some((room, more)) = rest.split_at_mut_checked(piece.len()) else { return };
        room.copy_from_slice(piece);
        rest = more;
    }
}

#[inline]
fn is_ipv6(l3: &[u8]) -> bool {
    l3.first().is_some_and(|first| first >> 4 == 6)
}
