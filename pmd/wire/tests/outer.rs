//! The outer headers of source routing: IPv6, perhaps with a routing header, around a frame's IP packet. Etherparse is
//! the judge.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

use std::net::{IpAddr, Ipv6Addr};

use etherparse::{IpNumber, Ipv6Header, Ipv6RawExtHeader};
use proptest::collection::vec;
use proptest::prelude::*;
use spindrift_srv6::{EvProfile, Field, Segments};
use spindrift_wire::MacAddr;
use spindrift_wire::stack::{self, Outer, STACK_LEN_MAX, StackError, StackTemplate};
use spindrift_wire::{Entropy, EntropyMode, Ev, StevOrder, icrc};

const SRC_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const NEXT_HOP: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

/// What a packet has beside its payload.
#[derive(Clone, Debug)]
struct Way {
    v6: bool,
    outer: Outer,
    entropy: Entropy,
    class: u8,
}

/// Paths of one to five addresses, each of which takes some bits of the entropy value, or none.
fn varying() -> impl Strategy<Value = EvProfile> {
    vec((any::<u32>(), any::<u16>(), 0..=6_u8), 1..=5).prop_map(|addresses| {
        let fields = addresses.into_iter().flat_map(|(block, usid, bits)| {
            let usids = [Field::low_bits(16, usid.into(), bits), Field::fixed(16, u32::from(usid ^ 1))];
            [Field::fixed(32, block)].into_iter().chain(usids)
        });
        let fields: Vec<_> = fields.collect();
        EvProfile::new(&[32, 16, 80].repeat(fields.len() / 3), &fields).unwrap()
    })
}

fn way() -> impl Strategy<Value = Way> {
    let address = any::<[u8; 16]>().prop_map(Ipv6Addr::from);
    let fixed = vec(address.clone(), 1..=5).prop_map(|list| Segments::new(&list).unwrap().into());
    let path = prop_oneof![fixed, varying()];
    let outer = (address, path, any::<u8>());
    (any::<bool>(), outer, any::<u16>(), 0..1_u32 << 20, any::<u8>()).prop_map(
        |(v6, (src, path, hop_limit), src_port, flow_label, class)| Way {
            v6,
            outer: Outer { src, path, hop_limit },
            entropy: Entropy { src_port, flow_label },
            class,
        },
    )
}

const STEV: EntropyMode = EntropyMode::Stev(StevOrder::SportHigh);

impl Way {
    /// The addresses that its packets visit.
    fn segments(&self) -> Segments {
        self.outer.path.expand(STEV.extract(self.entropy.src_port, self.entropy.flow_label).0)
    }
}

fn plain(v6: bool) -> StackTemplate {
    let ends = if v6 { ["2001:db8::1", "2001:db8::2"] } else { ["192.0.2.1", "192.0.2.2"] };
    let [src, dst] = ends.map(|end| end.parse::<IpAddr>().unwrap());
    StackTemplate::new(SRC_MAC, NEXT_HOP, src, dst, 4791, 64).unwrap()
}

fn frame_of(template: &StackTemplate, way: &Way, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0xee; template.header_len()];
    let len = template.write(&mut frame, way.entropy, way.class, payload.len());
    assert_eq!(len, frame.len());
    frame.extend_from_slice(payload);
    frame
}

/// The frame as it is with and without an outer packet.
fn frames(way: &Way, payload: &[u8]) -> [Vec<u8>; 2] {
    let template = plain(way.v6);
    [template.clone().through(&way.outer, STEV), template].map(|template| frame_of(&template, way, payload))
}

/// What etherparse puts around the IP packet `inner`.
fn outer_by_etherparse(way: &Way, inner: &[u8]) -> Vec<u8> {
    let protocol = if way.v6 { IpNumber::IPV6 } else { IpNumber::IPV4 };
    let segments = way.segments();
    let later = segments.later();
    let routing = (!later.is_empty()).then(|| {
        let count = later.len() as u8;
        // Type 4, segments left, last entry, flags, tag (RFC 8754 section 2); the list starts with the last segment.
        let mut payload = vec![4, count, count - 1, 0, 0, 0];
        payload.extend(later.iter().rev().flat_map(Ipv6Addr::octets));
        Ipv6RawExtHeader::new_raw(protocol, &payload).unwrap()
    });
    let routing_len = routing.as_ref().map_or(0, Ipv6RawExtHeader::header_len);
    let header = Ipv6Header {
        traffic_class: way.class,
        flow_label: way.entropy.flow_label.try_into().unwrap(),
        payload_length: (routing_len + inner.len()) as u16,
        next_header: if routing.is_some() { IpNumber::IPV6_ROUTE_HEADER } else { protocol },
        hop_limit: way.outer.hop_limit,
        source: way.outer.src.octets(),
        destination: segments.destination().octets(),
    };
    let mut out = [&NEXT_HOP.0[..], &SRC_MAC.0, &[0x86, 0xdd]].concat();
    header.write(&mut out).unwrap();
    if let Some(routing) = routing {
        routing.write(&mut out).unwrap();
    }
    out.extend_from_slice(inner);
    out
}

/// The packet at its destination, where no segments are left.
fn arrived(way: &Way, mut frame: Vec<u8>) -> Vec<u8> {
    if !way.segments().later().is_empty() {
        frame[57] = 0;
    }
    frame
}

proptest! {
    #[test]
    fn etherparse_writes_the_same(way in way(), payload in vec(any::<u8>(), 0..200)) {
        let [encapsulated, plain] = frames(&way, &payload);
        prop_assert_eq!(encapsulated, outer_by_etherparse(&way, &plain[14..]));
    }

    /// The packet inside is read as it is without an outer packet, in one piece and in two.
    #[test]
    fn the_inner_packet_is_read_as_without_the_outer(
        way in way(),
        payload in vec(any::<u8>(), 16..200),
        fill in 0..20_usize,
        cut in 0..240_usize,
    ) {
        let [frame, plain] = frames(&way, &payload);
        let template = self::plain(way.v6).through(&way.outer, STEV);
        let (l3_at, headers, end) = (template.l3_at(), template.header_len(), frame.len());
        prop_assert_eq!(&frame[l3_at..], &plain[14..]);
        let mut frame = arrived(&way, frame);
        frame.resize(end + fill, 0);
        let (parsed, direct) = (stack::parse(&frame).unwrap(), stack::parse(&plain).unwrap());
        prop_assert_eq!(parsed, direct);
        // What the outer packet has behind the inner one is no part of that.
        let mut longer = frame.clone();
        let outer_len = (longer.len() - 54) as u16;
        longer[18..20].copy_from_slice(&outer_len.to_be_bytes());
        prop_assert_eq!(stack::parse(&longer).unwrap(), direct);
        let cut = (headers + cut).min(frame.len());
        let front = stack::parse_front(&frame[..cut], frame.len() - cut).unwrap();
        prop_assert_eq!(front.meta, direct.meta);
        prop_assert_eq!((front.l3, front.mrc), (&frame[l3_at..cut.min(end)], &frame[headers..cut.min(end)]));
        prop_assert_eq!((front.elsewhere, front.truncated), (end.saturating_sub(cut), false));
        for more in 0..front.elsewhere {
            prop_assert!(stack::parse_front(&frame[..cut], more).is_err());
        }
    }

    /// A switch that trims mends the length of the packet that it sees, which is the outer one.
    #[test]
    fn a_trimmed_outer_packet_is_told(way in way(), payload in vec(any::<u8>(), 1..200), keep in 0..200_usize) {
        let [frame, plain] = frames(&way, &payload);
        let mut frame = arrived(&way, frame);
        let keep = keep.min(payload.len() - 1);
        frame.truncate(frame.len() - payload.len() + keep);
        let refused = matches!(stack::parse(&frame), Err(StackError::Short { .. }));
        prop_assert!(refused, "no length was mended");
        let outer_len = (frame.len() - 54) as u16;
        frame[18..20].copy_from_slice(&outer_len.to_be_bytes());
        // Ethernet pads it, perhaps.
        frame.extend([0; 30]);
        let parsed = stack::parse(&frame).unwrap();
        prop_assert!(parsed.truncated);
        prop_assert_eq!(parsed.meta, stack::parse(&plain).unwrap().meta);
        prop_assert_eq!(parsed.mrc, &payload[..keep]);
    }

    /// Cut anywhere, at the end of the frame or by its outer length, it is refused or told to be trimmed.
    #[test]
    fn an_outer_packet_cut_short_never_passes(way in way(), payload in vec(any::<u8>(), 1..60), cut in 1..260_usize) {
        let frame = arrived(&way, frames(&way, &payload)[0].clone());
        let left = frame.len().saturating_sub(cut);
        prop_assert!(stack::parse(&frame[..left]).is_err());
        let mut short = frame;
        short[18..20].copy_from_slice(&(left.saturating_sub(54) as u16).to_be_bytes());
        prop_assert!(stack::parse(&short).map_or(true, |parsed| parsed.truncated));
    }
}

fn sample(v6: bool, later: usize) -> (Way, Vec<u8>) {
    let list: Vec<_> =
        (1..=later as u16 + 1).map(|n| Ipv6Addr::new(0xfcbb, 0xbb00, n, 0, 0, 0, 0, 0)).collect();
    let path = Segments::new(&list).unwrap().into();
    let outer = Outer { src: Ipv6Addr::LOCALHOST, path, hop_limit: 9 };
    let way = Way { v6, outer, entropy: Entropy { src_port: 7, flow_label: 0xabcde }, class: 0x2a };
    let frame = frames(&way, &[1; 24])[0].clone();
    (way, frame)
}

/// A packet on its way is for the switches. The kernel of a host that is no switch answers it with an ICMP error.
#[test]
fn a_packet_with_segments_left_is_not_for_us() {
    for later in 1..=4 {
        let (way, frame) = sample(true, later);
        assert_eq!(stack::parse(&frame), Err(StackError::SegmentsLeft(later as u8)));
        assert!(stack::parse(&arrived(&way, frame)).is_ok());
    }
}

/// DSCP as the switches of the path left it, and no mark is lost (RFC 6040 section 4.2).
#[test]
fn markings_are_those_of_the_outer_packet() {
    for (outer, inner, seen) in [
        (0b1000_0110, 0b0010_1010, 0b1000_0110),
        (0b1000_0111, 0b0010_1010, 0b1000_0111),
        (0b1000_0110, 0b0010_1011, 0b1000_0111),
        (0b1000_0100, 0b0010_1001, 0b1000_0100),
    ] {
        for v6 in [false, true] {
            let (_, mut frame) = sample(v6, 0);
            let ip = plain(v6).through(&sample(v6, 0).0.outer, STEV).l3_at();
            assert_eq!(ip, 54);
            if v6 {
                let [a, b] = (0x6000_u16 | inner << 4).to_be_bytes();
                (frame[ip], frame[ip + 1]) = (a, b | frame[ip + 1] & 0xf);
            } else {
                // The checksum makes up for what is added.
                let sum = u16::from_be_bytes([frame[ip + 10], frame[ip + 11]]);
                let sum = sum + u16::from(frame[ip + 1]) - inner;
                frame[ip + 1] = inner as u8;
                frame[ip + 10..ip + 12].copy_from_slice(&sum.to_be_bytes());
            }
            let [a, b] = (0x6000_u16 | outer << 4).to_be_bytes();
            (frame[14], frame[15]) = (a, b | frame[15] & 0xf);
            let meta = stack::parse(&frame).unwrap().meta;
            assert_eq!(u16::from(meta.traffic_class), seen, "{outer:08b} around {inner:08b}");
            assert_eq!(meta.hop_limit, 64, "the inner packet's");
            assert_eq!(meta.flow_label, if v6 { 0xabcde } else { 0 });
        }
    }
}

#[test]
fn what_we_do_not_take_inside_is_refused_with_the_reason() {
    type Change = fn(&mut Vec<u8>);
    let cases: [(usize, Change, StackError); 9] = [
        (0, |f| f[20] = 6, StackError::Protocol(6)),
        (1, |f| f[54] = 17, StackError::Protocol(17)),
        (1, |f| f[54] = 43, StackError::Protocol(43)),
        (0, |f| f[60] = 41, StackError::Protocol(41)),
        (0, |f| f[60] = 43, StackError::Protocol(43)),
        (0, |f| f[54] = 0x45, StackError::Version { expected: 0x60, found: 0x45 }),
        (0, |f| f[20] = 4, StackError::Version { expected: 0x45, found: 0x62 }),
        (0, |f| f[18..20].fill(0), StackError::Short { layer: "IPv6 and UDP", needed: 102, found: 54 }),
        (1, |f| f[55] = 255, StackError::Short { layer: "IPv6 and UDP", needed: 2150, found: 150 }),
    ];
    for (later, change, error) in cases {
        let (way, frame) = sample(true, later);
        let mut frame = arrived(&way, frame);
        change(&mut frame);
        assert_eq!(stack::parse(&frame), Err(error));
        assert!(!error.to_string().is_empty());
    }
}

/// The entropy value is the one that the receiver finds in source port and flow label.
#[test]
fn the_path_is_that_of_the_entropy_value() {
    let ev = Ev(0x9abc_def0);
    for mode in [STEV, EntropyMode::Stev(StevOrder::SportLow), EntropyMode::Udp] {
        let path = EvProfile::new(&[96, 32], &[Field::fixed(32, 1), Field::low_bits(32, 0, 32)]).unwrap();
        let outer = Outer { src: Ipv6Addr::LOCALHOST, path, hop_limit: 9 };
        let mut out = [0; STACK_LEN_MAX];
        let len = plain(true).through(&outer, mode).write(&mut out, mode.place(ev), 0, 4);
        let meta = stack::parse(&[&out[..len], &[0; 4]].concat()).unwrap().meta;
        let found = mode.extract(meta.src_port, meta.flow_label);
        assert_eq!(found, if mode == EntropyMode::Udp { Ev(0xdef0) } else { ev });
        assert_eq!(out[50..54], found.0.to_be_bytes());
    }
}

/// The longest headers, and the longest packet that the length of the outer one can tell of.
#[test]
fn a_route_knows_its_room() {
    for v6 in [false, true] {
        for later in 0..=4 {
            let (way, _) = sample(v6, later);
            let route = plain(v6).through(&way.outer, STEV);
            let routing = if later == 0 { 0 } else { 8 + 16 * later };
            assert_eq!(route.l3_at(), 54 + routing);
            assert_eq!(route.header_len(), 54 + routing + if v6 { 48 } else { 28 });
            let mut out = vec![0xee; STACK_LEN_MAX];
            let most = 65_535 - routing - if v6 { 48 } else { 28 };
            assert_eq!(route.write(&mut out, way.entropy, 0, most), route.header_len());
            assert_eq!(u16::from_be_bytes([out[18], out[19]]), u16::MAX);
            for too_much in [most + 1, usize::MAX] {
                assert_eq!(route.write(&mut out, way.entropy, 0, too_much), 0);
            }
            let mut short = vec![0xee; route.header_len() - 1];
            assert_eq!(route.write(&mut short, way.entropy, 0, 0), 0);
            assert!(short.iter().all(|&byte| byte == 0xee));
        }
    }
    let (way, _) = sample(true, 4);
    assert_eq!(plain(true).through(&way.outer, STEV).header_len(), STACK_LEN_MAX);
}

/// Of an encapsulated packet, the iCRC covers what it covers without the outer packet.
#[test]
fn the_icrc_is_that_of_the_inner_packet() {
    for v6 in [false, true] {
        let (way, mut frame) = sample(v6, 2);
        let l3_at = plain(v6).through(&way.outer, STEV).l3_at();
        let end = frame.len() - 4;
        let crc = icrc::compute(&frame[l3_at..end], &[], &[]);
        frame[end..].copy_from_slice(&crc);
        let frame = arrived(&way, frame);
        assert!(icrc::verify_frame(stack::parse(&frame).unwrap().l3));
    }
}
