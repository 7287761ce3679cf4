//! Ethernet, IP and UDP headers, with etherparse as the judge.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use etherparse::{
    IpHeaders, IpNumber, Ipv4Extensions, Ipv4Header, Ipv4HeaderSlice, Ipv6Extensions, Ipv6Header, LinkSlice,
    NetSlice, PacketBuilder, SlicedPacket, TransportSlice,
};
use proptest::collection::vec;
use proptest::prelude::*;
use spindrift_wire::batch_ids::{BatchIds, SEGMENTS_MAX};
use spindrift_wire::dscp::{self, DscpError, DscpMap, TrimKind};
use spindrift_wire::stack::{self, IPV4_STACK_LEN, IPV6_STACK_LEN, StackError, StackTemplate};
use spindrift_wire::{DatagramMeta, MacAddr};
use spindrift_wire::{Entropy, icrc};

const SRC_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const DST_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

/// A datagram between addresses of one family.
fn meta() -> impl Strategy<Value = DatagramMeta> {
    let v4 = any::<[[u8; 4]; 2]>().prop_map(|ends| ends.map(|end| IpAddr::V4(Ipv4Addr::from(end))));
    let v6 = any::<[[u8; 16]; 2]>().prop_map(|ends| ends.map(|end| IpAddr::V6(Ipv6Addr::from(end))));
    let rest = (any::<u16>(), any::<u16>(), 0..1_u32 << 20, any::<u8>(), any::<u8>());
    (prop_oneof![v4, v6], rest).prop_map(
        |([src, dst], (src_port, dst_port, label, traffic_class, hop_limit))| {
            let flow_label = if src.is_ipv6() { label } else { 0 };
            DatagramMeta { src, dst, src_port, dst_port, flow_label, traffic_class, hop_limit }
        },
    )
}

fn frame_by_us(meta: &DatagramMeta, payload: &[u8]) -> Vec<u8> {
    let template =
        StackTemplate::new(SRC_MAC, DST_MAC, meta.src, meta.dst, meta.dst_port, meta.hop_limit).unwrap();
    let mut frame = vec![0xee; template.header_len()];
    let entropy = Entropy { src_port: meta.src_port, flow_label: meta.flow_label };
    assert_eq!(template.write(&mut frame, entropy, meta.traffic_class, payload.len()), template.header_len());
    frame.extend_from_slice(payload);
    frame
}

fn frame_by_etherparse(meta: &DatagramMeta, payload: &[u8]) -> Vec<u8> {
    let ethernet = PacketBuilder::ethernet2(SRC_MAC.0, DST_MAC.0);
    let ip = match (meta.src, meta.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let mut header =
                Ipv4Header::new(0, meta.hop_limit, IpNumber::UDP, src.octets(), dst.octets()).unwrap();
            header.dscp = (meta.traffic_class >> 2).try_into().unwrap();
            header.ecn = (meta.traffic_class & 3).try_into().unwrap();
            ethernet.ip(IpHeaders::Ipv4(header, Ipv4Extensions::default()))
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let header = Ipv6Header {
                traffic_class: meta.traffic_class,
                flow_label: meta.flow_label.try_into().unwrap(),
                hop_limit: meta.hop_limit,
                source: src.octets(),
                destination: dst.octets(),
                ..Ipv6Header::default()
            };
            ethernet.ip(IpHeaders::Ipv6(header, Ipv6Extensions::default()))
        }
        _ => panic!("addresses of two families"),
    };
    let builder = ip.udp(meta.src_port, meta.dst_port);
    let mut frame = Vec::new();
    builder.write(&mut frame, payload).unwrap();
    frame
}

/// What etherparse finds in `frame`, and its UDP payload.
fn read_by_etherparse(frame: &[u8]) -> (DatagramMeta, &[u8]) {
    let packet = SlicedPacket::from_ethernet(frame).unwrap();
    let Some(LinkSlice::Ethernet2(ethernet)) = packet.link else { panic!("no Ethernet") };
    assert_eq!((ethernet.source(), ethernet.destination()), (SRC_MAC.0, DST_MAC.0));
    let Some(TransportSlice::Udp(udp)) = packet.transport else { panic!("no UDP") };
    let (src, dst, flow_label, traffic_class, hop_limit) = match packet.net.unwrap() {
        NetSlice::Ipv4(ip) => {
            let header = ip.header();
            assert_eq!(header.header_checksum(), header.to_header().calc_header_checksum());
            assert!(header.dont_fragment() && !header.more_fragments() && header.identification() == 0);
            let traffic_class = header.dcp().value() << 2 | header.ecn().value();
            (header.source_addr().into(), header.destination_addr().into(), 0, traffic_class, header.ttl())
        }
        NetSlice::Ipv6(ip) => {
            let header = ip.header();
            let flow_label = header.flow_label().value();
            let ends: [IpAddr; 2] = [header.source_addr().into(), header.destination_addr().into()];
            (ends[0], ends[1], flow_label, header.traffic_class(), header.hop_limit())
        }
        NetSlice::Arp(_) => panic!("ARP"),
    };
    let (src_port, dst_port) = (udp.source_port(), udp.destination_port());
    (DatagramMeta { src, dst, src_port, dst_port, flow_label, traffic_class, hop_limit }, udp.payload())
}

proptest! {
    #[test]
    fn etherparse_reads_what_we_write(meta in meta(), payload in vec(any::<u8>(), 0..200)) {
        let frame = frame_by_us(&meta, &payload);
        let (seen, seen_payload) = read_by_etherparse(&frame);
        prop_assert_eq!(seen, meta);
        prop_assert_eq!(seen_payload, payload);
    }

    #[test]
    fn we_read_what_etherparse_writes(meta in meta(), payload in vec(any::<u8>(), 0..200), fill in 0..20_usize) {
        let mut frame = frame_by_etherparse(&meta, &payload);
        let ip_end = frame.len();
        frame.resize(ip_end + fill, 0);
        let parsed = stack::parse(&frame).unwrap();
        prop_assert_eq!(parsed.meta, meta);
        prop_assert_eq!(parsed.mrc, payload);
        prop_assert_eq!(parsed.l3, &frame[14..ip_end]);
        prop_assert!(!parsed.truncated);
    }

    /// Of a frame whose end lies elsewhere, the front says the same.
    #[test]
    fn the_front_of_a_frame_says_the_same(
        meta in meta(),
        payload in vec(any::<u8>(), 0..200),
        fill in 0..20_usize,
        cut in 0..240_usize,
    ) {
        let mut frame = frame_by_us(&meta, &payload);
        let ip_end = frame.len();
        let headers = ip_end - payload.len();
        frame.resize(ip_end + fill, 0);
        let cut = (headers + cut).min(frame.len());
        let parsed = stack::parse_front(&frame[..cut], frame.len() - cut).unwrap();
        prop_assert_eq!(parsed.meta, meta);
        prop_assert_eq!(parsed.l3, &frame[14..cut.min(ip_end)]);
        prop_assert_eq!(parsed.mrc, &frame[headers..cut.min(ip_end)]);
        prop_assert_eq!((parsed.elsewhere, parsed.truncated), (ip_end.saturating_sub(cut), false));
        for more in 0..parsed.elsewhere {
            let short = StackError::Short { layer: "IP length", needed: ip_end, found: cut + more };
            prop_assert_eq!(stack::parse_front(&frame[..cut], more), Err(short));
        }
    }

    /// Byte for byte, but for the UDP checksum, which we leave out (decision 20).
    #[test]
    fn we_write_what_etherparse_writes(meta in meta(), payload in vec(any::<u8>(), 0..200)) {
        let mut theirs = frame_by_etherparse(&meta, &payload);
        let header = theirs.len() - payload.len();
        theirs[header - 2..header].fill(0);
        prop_assert_eq!(frame_by_us(&meta, &payload), theirs);
    }

    #[test]
    fn a_datagram_verifies_as_its_frame_does(meta in meta(), mrc in vec(any::<u8>(), 12..200)) {
        let mut frame = frame_by_us(&meta, &[&mrc[..], &[0; 4]].concat());
        let (covered, _) = frame.split_last_chunk::<4>().unwrap();
        let icrc = icrc::compute(&covered[14..], &[], &[]);
        frame.last_chunk_mut::<4>().unwrap().copy_from_slice(&icrc);
        let parsed = stack::parse(&frame).unwrap();
        prop_assert!(icrc::verify_frame(parsed.l3));
        prop_assert!(icrc::verify_datagram(&parsed.meta, parsed.mrc, &mut BatchIds::default()));
        let other_port = DatagramMeta { src_port: meta.src_port ^ 1, ..meta };
        prop_assert!(!icrc::verify_datagram(&other_port, parsed.mrc, &mut BatchIds::default()));
    }

    /// A batch over IPv4 that was cut on the way: the packets have numbers, which a socket does not see, and iCRCs for them.
    #[test]
    fn packets_of_a_batch_verify_with_their_numbers(
        meta in meta().prop_filter("IPv4", |meta| meta.src.is_ipv4()),
        mrc in vec(any::<u8>(), 12..200),
        id in 0..70_u16,
    ) {
        let mut frame = frame_by_us(&meta, &[&mrc[..], &[0; 4]].concat());
        let (covered, _) = frame.split_last_chunk::<4>().unwrap();
        let first = u32::from_le_bytes(icrc::compute(&covered[14..], &[], &[]));
        frame[18..20].copy_from_slice(&id.to_be_bytes());
        // RFC 1624.
        let sum = u32::from(!u16::from_be_bytes([frame[24], frame[25]])) + u32::from(id);
        let checksum = !(sum as u16 + (sum >> 16) as u16);
        frame[24..26].copy_from_slice(&checksum.to_be_bytes());
        let (covered, _) = frame.split_last_chunk::<4>().unwrap();
        let icrc = icrc::compute(&covered[14..], &[], &[]);
        frame.last_chunk_mut::<4>().unwrap().copy_from_slice(&icrc);
        let parsed = stack::parse(&frame).unwrap();
        prop_assert!(icrc::verify_frame(parsed.l3));
        let mut ids = BatchIds::default();
        let in_batch = usize::from(id) < SEGMENTS_MAX;
        prop_assert_eq!(icrc::verify_datagram(&parsed.meta, parsed.mrc, &mut ids), in_batch);
        if in_batch {
            let delta = ids.deltas(parsed.mrc.len())[usize::from(id)];
            prop_assert_eq!((first ^ delta).to_le_bytes(), icrc, "as a sender has it");
        }
    }

    /// A switch that trims mends the IP length and leaves the UDP length.
    #[test]
    fn a_trimmed_frame_is_told(meta in meta(), payload in vec(any::<u8>(), 1..200), keep in 0..200_usize) {
        let mut frame = frame_by_us(&meta, &payload);
        let header = frame.len() - payload.len();
        let keep = keep.min(payload.len() - 1);
        frame.truncate(header + keep);
        let ip_len = frame.len() - 14;
        if meta.src.is_ipv6() {
            frame[18..20].copy_from_slice(&(ip_len as u16 - 40).to_be_bytes());
        } else {
            frame[16..18].copy_from_slice(&(ip_len as u16).to_be_bytes());
            mend_ipv4_checksum(&mut frame);
        }
        let parsed = stack::parse(&frame).unwrap();
        prop_assert!(parsed.truncated);
        prop_assert_eq!(parsed.meta, meta);
        prop_assert_eq!(parsed.mrc, &payload[..keep]);
    }

    #[test]
    fn a_frame_cut_without_mending_is_refused(meta in meta(), payload in vec(any::<u8>(), 0..100), cut in 1..200_usize) {
        let frame = frame_by_us(&meta, &payload);
        let left = frame.len().saturating_sub(cut);
        let is_short = matches!(stack::parse(&frame[..left]), Err(StackError::Short { .. }));
        prop_assert!(is_short);
    }
}

fn mend_ipv4_checksum(frame: &mut [u8]) {
    frame[24..26].fill(0);
    let header = Ipv4HeaderSlice::from_slice(&frame[14..34]).unwrap().to_header();
    frame[24..26].copy_from_slice(&header.calc_header_checksum().to_be_bytes());
}

fn sample(src: &str, dst: &str) -> Vec<u8> {
    let (src, dst) = (src.parse().unwrap(), dst.parse().unwrap());
    let meta = DatagramMeta {
        src,
        dst,
        src_port: 9,
        dst_port: 4791,
        flow_label: 0,
        traffic_class: 2,
        hop_limit: 255,
    };
    frame_by_us(&meta, &[1; 24])
}

/// The last word of the address takes every value, and with it the sum every carry.
#[test]
fn every_ipv4_checksum_is_right() {
    for low in 0..=u16::MAX {
        let frame = sample("10.0.0.1", &format!("10.0.{}.{}", low >> 8, low & 0xff));
        let sum: u32 =
            frame[14..34].as_chunks().0.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum();
        assert_eq!(sum % 0xffff, 0, "10.0.{}.{}", low >> 8, low & 0xff);
    }
}

#[test]
fn what_we_do_not_take_is_refused_with_the_reason() {
    type Change = fn(&mut Vec<u8>);
    let v4: [(Change, StackError); 8] = [
        (|f| f[12..14].fill(0x81), StackError::EtherType(0x8181)),
        (|f| f[14] = 0x46, StackError::Version { expected: 0x45, found: 0x46 }),
        (|f| f[14] = 0x65, StackError::Version { expected: 0x45, found: 0x65 }),
        (|f| f[22] -= 1, StackError::Checksum),
        (|f| f[20] = 0x20, StackError::Fragment(0x2000)),
        (|f| f[21] = 1, StackError::Fragment(0x4001)),
        (|f| f[23] = 6, StackError::Protocol(6)),
        (|f| f[39] -= 1, StackError::UdpLength { expected: 32, found: 31 }),
    ];
    let v6: [(Change, StackError); 6] = [
        (|f| f[14] = 0x45, StackError::Version { expected: 0x60, found: 0x45 }),
        (|f| f[20] = 60, StackError::Protocol(60)),
        (|f| f[59] -= 1, StackError::UdpLength { expected: 32, found: 31 }),
        (|f| f[18..20].fill(0), StackError::UdpLength { expected: 0, found: 32 }),
        (|f| f.truncate(30), StackError::Short { layer: "IPv6 and UDP", needed: 62, found: 30 }),
        (|f| f.truncate(9), StackError::Short { layer: "Ethernet", needed: 14, found: 9 }),
    ];
    let v4 = v4.map(|case| ("192.0.2.1", "192.0.2.2", case));
    let v6 = v6.map(|case| ("2001:db8::1", "2001:db8::2", case));
    for (src, dst, (change, error)) in v4.into_iter().chain(v6) {
        let mut frame = sample(src, dst);
        change(&mut frame);
        if frame.len() > 34 && frame[14] == 0x45 && error != StackError::Checksum {
            mend_ipv4_checksum(&mut frame);
        }
        assert_eq!(stack::parse(&frame), Err(error));
        assert!(!error.to_string().is_empty());
    }
}

#[test]
fn a_template_is_of_one_family_and_knows_its_room() {
    let (v4, v6): (IpAddr, IpAddr) = ("192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap());
    let mixed = StackTemplate::new(SRC_MAC, DST_MAC, v4, v6, 4791, 64);
    assert_eq!(mixed, Err(StackError::MixedFamilies { src: v4, dst: v6 }));
    for (ip, len, most) in [(v4, IPV4_STACK_LEN, 65_507), (v6, IPV6_STACK_LEN, 65_527)] {
        let template = StackTemplate::new(SRC_MAC, DST_MAC, ip, ip, 4791, 64).unwrap();
        assert_eq!(template.header_len(), len);
        let mut out = vec![0; len];
        assert_eq!(template.write(&mut out, Entropy::default(), 0, most), len);
        assert_eq!(template.write(&mut out, Entropy::default(), 0, most + 1), 0);
        assert_eq!(template.write(&mut out, Entropy::default(), 0, usize::MAX), 0);
        assert_eq!(template.write(&mut out[..len - 1], Entropy::default(), 0, 0), 0);
    }
}

#[test]
fn a_datagram_of_two_families_or_no_length_does_not_verify() {
    let (src, dst) = ("192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap());
    let mixed =
        DatagramMeta { src, dst, src_port: 1, dst_port: 2, flow_label: 0, traffic_class: 0, hop_limit: 1 };
    assert!(!icrc::verify_datagram(&mixed, &[0; 32], &mut BatchIds::default()));
    let v4 = DatagramMeta { dst: src, ..mixed };
    for len in [0, 3, 4, 8, 65_528, 70_000] {
        assert!(!icrc::verify_datagram(&v4, &vec![0; len], &mut BatchIds::default()));
    }
    for len in 0..57 {
        assert!(!icrc::verify_frame(&vec![0x60; len]), "{len}");
    }
}

/// Decision 11.
#[test]
fn trimmed_classes_are_told_apart() {
    let map = DscpMap::default();
    assert_eq!(map.validate(), Ok(()));
    for dscp in 0..64 {
        let expected = match dscp {
            12 => Some(TrimKind::Fabric),
            16 => Some(TrimKind::LastHop),
            _ => None,
        };
        assert_eq!(map.class_of_trim(dscp), expected);
    }
    assert_eq!(DscpMap { control: 63, ..map }.validate(), Ok(()));
    let large = DscpMap { control: 64, ..map };
    assert_eq!(large.validate(), Err(DscpError::TooLarge { name: "control", value: 64 }));
    let ambiguous = DscpMap { no_trim: 12, ..map };
    assert_eq!(
        ambiguous.validate(),
        Err(DscpError::Ambiguous { name: "trimmed", other: "no_trim", value: 12 })
    );
    assert!(DscpMap { trimmed_last_hop: 12, ..map }.validate().is_err());
    assert_eq!(dscp::traffic_class(46, 3), 0xbb);
}
