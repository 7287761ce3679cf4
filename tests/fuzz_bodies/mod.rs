//! What the fuzz targets check, shared with the replay that runs on a stable compiler.

use etherparse::{IpNumber, Ipv6Header, Ipv6RawExtHeader, NetSlice, SlicedPacket, TransportSlice};
use spindrift::memory::{Payload, Pieces};
use spindrift::pmd::batch_ids::{BatchIds, SEGMENTS_MAX};
use spindrift::wire::stack::{self, Parsed};
use spindrift::wire::{
    Aeth, AtomicOperands, Bth, DataHead, Eeth, Erth, ImmDt, Meth, Neth, Packet, Peth, Reth, Seth,
    TrimmedHead, Tseth, icrc,
};
use std::net::IpAddr;

/// Reads `data` as a packet without iCRC: what can be read must encode to the same bytes.
pub(crate) fn decode(data: &[u8]) {
    match Packet::decode(data) {
        Ok(packet) => encodes_to(&packet, data),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    match (TrimmedHead::decode(data), DataHead::decode(data)) {
        (Ok(trimmed), Ok((head, rest))) => {
            assert_eq!((trimmed.bth, trimmed.meth, trimmed.tseth), (head.bth, head.meth, head.tseth));
            assert_eq!(head.encoded_len() + rest.len(), data.len());
        }
        (trimmed, whole) => assert!(whole.is_err(), "whole but not trimmed: {trimmed:?}"),
    }
    headers_keep_every_bit(data);
}

fn encodes_to(packet: &Packet<'_>, data: &[u8]) {
    let mut head = [0; Packet::MAX_HEAD_LEN];
    let len = packet.encode_head(&mut head);
    let mut bytes = head[..len].to_vec();
    if let Packet::Data { head, payload, pad } = packet {
        assert_eq!(pad.len(), usize::from(head.bth.pad));
        bytes.extend_from_slice(payload);
        bytes.extend_from_slice(pad);
    }
    assert_eq!(bytes, data);
    for room in 0..len {
        let written = packet.encode_head(&mut head[..room]);
        assert_eq!(written, 0, "{len} bytes of headers went into {room}");
    }
}

fn headers_keep_every_bit(data: &[u8]) {
    macro_rules! check {
        ($($header:ident)*) => {
            $(
                if let Ok(header) = $header::read(data) {
                    let mut out = [0; $header::LEN];
                    assert_eq!(header.write(&mut out), $header::LEN);
                    assert_eq!(out, data[..$header::LEN], stringify!($header));
                }
            )*
        };
    }
    check!(Bth Meth Tseth Reth ImmDt AtomicOperands Aeth Seth Neth Peth Erth Eeth);
}

/// Reads `data` as an Ethernet frame: what we take, etherparse reads the same way, and its iCRC can be checked.
pub(crate) fn frame(data: &[u8]) {
    let _ = icrc::verify_frame(data);
    let parsed = match stack::parse(data) {
        Ok(parsed) => parsed,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let l3_at = parsed.l3.as_ptr() as usize - data.as_ptr() as usize;
    assert_eq!(parsed.l3, &data[l3_at..l3_at + parsed.l3.len()]);
    assert!(parsed.l3.ends_with(parsed.mrc));
    let outer_class = (l3_at > 14).then(|| outer(&data[14..], l3_at - 14, parsed.l3.len()));
    if !parsed.truncated {
        etherparse_agrees(if outer_class.is_some() { parsed.l3 } else { &data[14..] }, &parsed, outer_class);
    }
    icrcs_agree(&parsed);
    in_parts(data, &parsed);
    decode(parsed.mrc);
    if let Some((mrc, _)) = parsed.mrc.split_last_chunk::<4>() {
        decode(mrc);
    }
}

/// Checks the outer packet at the front of `data` around one of `inner_len` bytes at `inner_at`, and returns its
/// traffic class.
fn outer(data: &[u8], inner_at: usize, inner_len: usize) -> u8 {
    let (header, rest) = Ipv6Header::from_slice(data).unwrap();
    assert!(inner_at + inner_len <= 40 + usize::from(header.payload_length));
    let mut next = header.next_header;
    if next == IpNumber::IPV6_ROUTE_HEADER {
        let (routing, _) = Ipv6RawExtHeader::from_slice(rest).unwrap();
        assert_eq!(inner_at, 40 + routing.header_len());
        assert_eq!(routing.payload()[1], 0, "no segments are left");
        next = routing.next_header;
    } else {
        assert_eq!(inner_at, 40);
    }
    let inner = if data[inner_at] >> 4 == 6 { IpNumber::IPV6 } else { IpNumber::IPV4 };
    assert_eq!(next, inner);
    header.traffic_class
}

/// A frame that is cut anywhere behind its headers says the same, and has the same iCRC.
fn in_parts(data: &[u8], whole: &Parsed<'_>) {
    let l3_at = whole.l3.as_ptr() as usize - data.as_ptr() as usize;
    let headers = l3_at + whole.l3.len() - whole.mrc.len();
    let end = l3_at + whole.l3.len();
    let cut = headers + 5 + usize::from(data[data.len() - 1]);
    for cut in [headers, cut, end.saturating_sub(2), end, data.len()] {
        let Some((front, more)) = data.split_at_checked(cut).filter(|_| cut >= headers) else { continue };
        let parsed = stack::parse_front(front, more.len()).unwrap();
        let elsewhere = end.saturating_sub(cut);
        assert_eq!(
            (parsed.meta, parsed.truncated, parsed.elsewhere),
            (whole.meta, whole.truncated, elsewhere)
        );
        assert_eq!(
            (parsed.l3, parsed.mrc),
            (&whole.l3[..end.min(cut) - l3_at], &whole.mrc[..end.min(cut) - headers])
        );
        let rest = [Payload::from(&more[..elsewhere / 2]), Payload::from(&more[elsewhere / 2..])];
        let l3 = Pieces::new(parsed.l3, &rest).first_bytes(whole.l3.len());
        assert_eq!(l3.len(), whole.l3.len());
        if cut >= headers + 5 {
            assert_eq!(icrc::verify_frame(l3), icrc::verify_frame(whole.l3));
            let mrc = Pieces::new(parsed.mrc, &rest).first_bytes(whole.mrc.len());
            let mut ids = BatchIds::default();
            assert_eq!(
                icrc::verify_datagram(&parsed.meta, mrc, &mut ids),
                icrc::verify_datagram(&parsed.meta, whole.mrc, &mut ids)
            );
        }
        if elsewhere > 0 {
            assert!(stack::parse_front(front, elsewhere - 1).is_err(), "it ends early");
        }
    }
}

/// That etherparse reads the IP packet `ip` as we do, inside an outer one of `outer_class` if there is one.
fn etherparse_agrees(ip: &[u8], parsed: &Parsed<'_>, outer_class: Option<u8>) {
    let packet = SlicedPacket::from_ip(ip).unwrap();
    let meta = parsed.meta;
    let class = |own: u8| outer_class.map_or(own, |outer| if own & 3 == 3 { outer | 3 } else { outer });
    match packet.net {
        Some(NetSlice::Ipv4(ip)) => {
            let header = ip.header();
            assert_eq!(meta.src, IpAddr::from(header.source_addr()));
            assert_eq!(meta.dst, IpAddr::from(header.destination_addr()));
            assert_eq!(meta.traffic_class, class(header.dcp().value() << 2 | header.ecn().value()));
            assert_eq!((meta.hop_limit, meta.flow_label), (header.ttl(), 0));
            assert!(!ip.is_payload_fragmented());
        }
        Some(NetSlice::Ipv6(ip)) => {
            let header = ip.header();
            assert_eq!(meta.src, IpAddr::from(header.source_addr()));
            assert_eq!(meta.dst, IpAddr::from(header.destination_addr()));
            assert_eq!(meta.traffic_class, class(header.traffic_class()));
            assert_eq!((meta.hop_limit, meta.flow_label), (header.hop_limit(), header.flow_label().value()));
        }
        other => panic!("etherparse sees {other:?}"),
    }
    let Some(TransportSlice::Udp(udp)) = packet.transport else { panic!("etherparse sees no UDP") };
    assert_eq!((meta.src_port, meta.dst_port), (udp.source_port(), udp.destination_port()));
    assert_eq!(parsed.mrc, udp.payload());
}

/// A datagram verifies if and only if its frame does, where the frame is one that a socket can tell apart.
fn icrcs_agree(parsed: &Parsed<'_>) {
    let by_datagram = icrc::verify_datagram(&parsed.meta, parsed.mrc, &mut BatchIds::default());
    let by_frame = |l3: &[u8]| icrc::verify_frame(l3);
    if !parsed.truncated && parsed.meta.src.is_ipv6() {
        assert_eq!(by_datagram, by_frame(parsed.l3));
    } else if !parsed.truncated && parsed.l3[4..8] == [0, 0, 0x40, 0] {
        // With the number of any packet of a batch.
        let mut l3 = parsed.l3.to_vec();
        let any = (0..SEGMENTS_MAX).any(|id| {
            l3[5] = id as u8;
            by_frame(&l3)
        });
        assert_eq!(by_datagram, any);
    }
    let mut repaired = parsed.l3.to_vec();
    let masked = repaired.len() - parsed.mrc.len() + 5;
    if parsed.mrc.len() >= 9 {
        let (covered, icrc) = repaired.split_last_chunk_mut::<4>().unwrap();
        *icrc = icrc::compute(&covered[..masked], &covered[masked..], &[]);
        assert!(icrc::verify_frame(&repaired));
    }
}
