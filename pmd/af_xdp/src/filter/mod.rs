//! The XDP program in front of the sockets: Spindrift's packets go to them, all others to the kernel.
//!
//! A packet is Spindrift's if it is UDP to the port's address and one of its UDP ports, by itself or inside an outer IPv6 packet, with or
//! without a routing header that is used up (RFC 8754 section 4.3.2): what `spindrift::wire::parse` takes. Fragments and IPv4 headers
//! with options are the kernel's, and so is whatever an end of a path has to do for others. Of these, what is for the port is counted.

mod unread;

use std::net::IpAddr;

use spindrift_bpf::{Alu, Array, Assembler, Cond, Helper, Label, Reg, SocketMap, Width, context, verdict};

use Reg::{R0, R1, R2, R3, R4, R6, R7, R8, R9};

/// Which packets are Spindrift's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// Destination of the packet next to UDP.
    pub(crate) ip: IpAddr,
    /// UDP destination ports.
    pub(crate) ports: Vec<u16>,
}

/// Places in the array that the program counts in.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(crate) enum Count {
    /// Packets of ours that arrived on a receive queue without a socket. They are dropped.
    NoSocket,
    /// Packets for the port in forms that it does not read. The kernel gets them.
    Unread,
}

impl Count {
    pub(crate) const ALL: usize = 2;
}

const ETHERNET_LEN: i32 = 14;
const IPV6_LEN: i32 = 40;
const IPV4_LEN: i32 = 20;
const UDP_LEN: i32 = 8;
const ROUTING_LEN: i32 = 8;

const PROTOCOL_IPV4: i32 = 4;
const PROTOCOL_UDP: i32 = 17;
const PROTOCOL_IPV6: i32 = 41;
const PROTOCOL_ROUTING: i32 = 43;

/// A number of the network as a load of the machine reads it.
const fn half(value: u16) -> i32 {
    value.to_be() as i32
}

/// The program.
pub(crate) fn text<'maps>(
    wanted: &Wanted,
    sockets: &'maps SocketMap,
    counts: &'maps Array,
) -> Assembler<'maps> {
    let mut text = Assembler::new();
    let [pass, inner, ours, other] = [text.label(), text.label(), text.label(), text.label()];
    // R6 is the context, R7 and R8 begin and end of the packet, and R9 the IP header next to UDP.
    text.mov(R6, R1).load(Width::Word, R7, R6, context::DATA).load(Width::Word, R8, R6, context::DATA_END);
    has(&mut text, R7, ETHERNET_LEN + IPV4_LEN + UDP_LEN, other);
    text.mov(R9, R7).alu(Alu::Add, R9, ETHERNET_LEN).load(Width::Half, R2, R7, 12);
    if wanted.ip.is_ipv4() {
        text.jump_if(Cond::Equal, R2, half(0x0800), inner);
    }
    text.jump_if(Cond::NotEqual, R2, half(0x86dd), other);
    through_outer(&mut text, wanted.ip, inner, other);
    text.place(inner);
    match wanted.ip {
        IpAddr::V6(ip) => {
            has(&mut text, R9, IPV6_LEN + UDP_LEN, pass);
            version(&mut text, 6, pass);
            text.load(Width::Byte, R2, R9, 6).jump_if(Cond::NotEqual, R2, PROTOCOL_UDP, pass);
            let ip = u128::from_ne_bytes(ip.octets());
            for (offset, half) in [(24, ip as u64), (32, (ip >> 64) as u64)] {
                text.load(Width::Double, R2, R9, offset);
                text.imm64(R3, half).jump_if(Cond::NotEqual, R2, R3, pass);
            }
            text.load(Width::Half, R2, R9, 42);
        }
        IpAddr::V4(ip) => {
            has(&mut text, R9, IPV4_LEN + UDP_LEN, pass);
            text.load(Width::Byte, R2, R9, 0).jump_if(Cond::NotEqual, R2, 0x45, other);
            // More fragments, or not the first one.
            text.load(Width::Half, R2, R9, 6).jump_if(Cond::AnyBit, R2, half(0x3fff), other);
            text.load(Width::Byte, R2, R9, 9).jump_if(Cond::NotEqual, R2, PROTOCOL_UDP, pass);
            let ip = u64::from(u32::from_ne_bytes(ip.octets()));
            text.load(Width::Word, R2, R9, 16).imm64(R3, ip).jump_if(Cond::NotEqual, R2, R3, pass);
            text.load(Width::Half, R2, R9, 22);
        }
    }
    for &port in &wanted.ports {
        text.jump_if(Cond::Equal, R2, half(port), ours);
    }
    text.jump(pass).place(other);
    unread::count(&mut text, wanted, counts, pass);
    text.place(pass).mov(R0, verdict::PASS).exit();
    text.place(ours);
    hand_over(&mut text, sockets, counts);
    text
}

/// Goes on at `pass` if the packet's first buffer ends less than `len` bytes behind `from`.
fn has(text: &mut Assembler<'_>, from: Reg, len: i32, pass: Label) {
    text.mov(R2, from).alu(Alu::Add, R2, len).jump_if(Cond::Greater, R2, R8, pass);
}

/// Goes on at `pass` if the IP header at `R9` is of another version.
fn version(text: &mut Assembler<'_>, version: i32, pass: Label) {
    text.load(Width::Byte, R2, R9, 0).alu(Alu::ShiftRight, R2, 4);
    text.jump_if(Cond::NotEqual, R2, version, pass);
}

/// Moves `R9` from an IPv6 header to the one inside, if that is of the family of `ip` and the header is not the one wanted itself.
fn through_outer(text: &mut Assembler<'_>, ip: IpAddr, inner: Label, pass: Label) {
    let inside = if ip.is_ipv6() { PROTOCOL_IPV6 } else { PROTOCOL_IPV4 };
    has(text, R7, ETHERNET_LEN + IPV6_LEN + ROUTING_LEN, pass);
    version(text, 6, pass);
    let plain = text.label();
    text.load(Width::Byte, R2, R9, 6);
    if ip.is_ipv6() {
        text.jump_if(Cond::Equal, R2, PROTOCOL_UDP, inner);
    }
    text.alu(Alu::Add, R9, IPV6_LEN).jump_if(Cond::NotEqual, R2, PROTOCOL_ROUTING, plain);
    // What follows the routing header, how long it is in units of eight bytes behind the first eight, and how much of the path is left.
    text.load(Width::Byte, R3, R9, 3).jump_if(Cond::NotEqual, R3, 0, pass);
    text.load(Width::Byte, R2, R9, 0).load(Width::Byte, R3, R9, 1);
    text.alu(Alu::ShiftLeft, R3, 3).alu(Alu::Add, R9, ROUTING_LEN).alu(Alu::Add, R9, R3);
    text.place(plain).jump_if(Cond::NotEqual, R2, inside, pass);
}

/// Returns with the packet at the socket of its receive queue.
fn hand_over<'maps>(text: &mut Assembler<'maps>, sockets: &'maps SocketMap, counts: &'maps Array) {
    let end = text.label();
    text.sockets(R1, sockets).load(Width::Word, R2, R6, context::QUEUE).mov(R3, verdict::DROP);
    text.call(Helper::RedirectMap).jump_if(Cond::NotEqual, R0, verdict::DROP, end);
    text.array(R3, counts).mov(R4, 1).atomic_add(R3, 8 * Count::NoSocket as i16, R4);
    text.place(end).exit();
}

#[cfg(test)]
#[allow(clippy::print_stderr, reason = "tests")]
mod tests {
    use etherparse::{EtherType, Ethernet2HeaderSlice, IpNumber};
    use rand_xoshiro::Xoshiro256PlusPlus;
    use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};
    use spindrift_bpf::{Error, Program};

    use super::*;

    const OURS_V6: &str = "fd97::1:2";
    const OURS_V4: &str = "10.97.1.2";
    const PORTS: [u16; 2] = [4971, 4791];

    /// A program for tests, with its counters: what is ours is dropped and counted, as no queue has a socket.
    fn program(ip: &str) -> Option<(Program, Array)> {
        let wanted = Wanted { ip: ip.parse().unwrap(), ports: PORTS.to_vec() };
        let sockets = match SocketMap::new("test", 1) {
            Ok(sockets) => sockets,
            Err(error @ Error::Permission { .. }) => {
                eprintln!("skipped: {error}");
                return None;
            }
            Err(error) => panic!("{error}"),
        };
        let counts = Array::new("test", Count::ALL).unwrap();
        let program = Program::load("test", text(&wanted, &sockets, &counts)).unwrap();
        Some((program, counts))
    }

    fn takes(program: &Program, packet: &[u8]) -> bool {
        let ran = program.run(packet).unwrap();
        assert!([verdict::PASS, verdict::DROP].contains(&ran.verdict), "{}", ran.verdict);
        assert_eq!(ran.packet, packet, "a filter changes nothing");
        ran.verdict == verdict::DROP
    }

    /// What the program has to take, as another reader of packets sees it.
    fn is_ours(packet: &[u8], ip: IpAddr) -> bool {
        let Ok(ethernet) = Ethernet2HeaderSlice::from_slice(packet) else { return false };
        let (ether_type, mut at) = (ethernet.ether_type(), &packet[14..]);
        if ![EtherType::IPV4, EtherType::IPV6].contains(&ether_type) {
            return false;
        }
        // The type of the frame and the version of the packet agree.
        if at.first().is_none_or(|byte| byte >> 4 != if ether_type == EtherType::IPV4 { 4 } else { 6 }) {
            return false;
        }
        if ether_type == EtherType::IPV6 && (ip.is_ipv4() || at.get(6) != Some(&17)) {
            let Some(inside) = inside(at, ip) else { return false };
            at = inside;
        }
        let (dst, protocol, udp) = match ip {
            IpAddr::V6(_) if at.len() >= 48 && at[0] >> 4 == 6 => {
                let header = etherparse::Ipv6HeaderSlice::from_slice(at).unwrap();
                (IpAddr::V6(header.destination_addr()), header.next_header(), &at[40..])
            }
            IpAddr::V4(_) if at.len() >= 28 && at[0] == 0x45 => {
                let header = etherparse::Ipv4HeaderSlice::from_slice(at).unwrap();
                if header.is_fragmenting_payload() {
                    return false;
                }
                (IpAddr::V4(header.destination_addr()), header.protocol(), &at[20..])
            }
            _ => return false,
        };
        let port = u16::from_be_bytes([udp[2], udp[3]]);
        dst == ip && protocol == IpNumber::UDP && PORTS.contains(&port)
    }

    /// The packet inside an outer one, if the way of that is at its end.
    fn inside(outer: &[u8], ip: IpAddr) -> Option<&[u8]> {
        let header = etherparse::Ipv6HeaderSlice::from_slice(outer.get(..48)?).ok()?;
        let wanted = if ip.is_ipv6() { IpNumber::IPV6 } else { IpNumber::IPV4 };
        let behind = &outer[40..];
        if header.next_header() != IpNumber::IPV6_ROUTE_HEADER {
            return (header.next_header() == wanted).then_some(behind);
        }
        let len = 8 + 8 * usize::from(behind[1]);
        (behind[0] == wanted.0 && behind[3] == 0).then(|| behind.get(len..))?
    }

    fn ethernet(ether_type: u16, ip: &[u8]) -> Vec<u8> {
        [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2], &ether_type.to_be_bytes()[..], ip].concat()
    }

    fn udp(port: u16) -> Vec<u8> {
        [&[0xc0, 0][..], &port.to_be_bytes(), &[0, 12, 0, 0, 1, 2, 3, 4]].concat()
    }

    fn v6(next: u8, dst: &str, payload: &[u8]) -> Vec<u8> {
        let IpAddr::V6(dst) = dst.parse().unwrap() else { panic!() };
        let len = (payload.len() as u16).to_be_bytes();
        [&[0x60, 0, 0, 0][..], &len, &[next, 64], &[0xfd; 16], &dst.octets(), payload].concat()
    }

    fn v4(protocol: u8, dst: &str, payload: &[u8]) -> Vec<u8> {
        let IpAddr::V4(dst) = dst.parse().unwrap() else { panic!() };
        let len = (20 + payload.len() as u16).to_be_bytes();
        let start = [0x45, 0, len[0], len[1], 0, 0, 0x40, 0, 64, protocol, 0, 0];
        [&start[..], &[10, 97, 1, 1], &dst.octets(), payload].concat()
    }

    fn routing(next: u8, segments: usize, left: u8, payload: &[u8]) -> Vec<u8> {
        let start = [next, 2 * segments as u8, 4, left, segments as u8 - 1, 0, 0, 0];
        [&start[..], &vec![0xfc; 16 * segments], payload].concat()
    }

    /// Packets that are ours, for an address of each family.
    fn good(ip: &str) -> Vec<Vec<u8>> {
        let (inner, number, ether_type) = match ip {
            OURS_V6 => (v6(17, ip, &udp(PORTS[0])), 41, 0x86dd),
            _ => (v4(17, ip, &udp(PORTS[1])), 4, 0x0800),
        };
        let outer = |next, payload: &[u8]| ethernet(0x86dd, &v6(next, "fcbb:bb00:201::", payload));
        vec![
            ethernet(ether_type, &inner),
            outer(number, &inner),
            outer(43, &routing(number, 1, 0, &inner)),
            outer(43, &routing(number, 4, 0, &inner)),
        ]
    }

    #[test]
    fn takes_what_is_ours_in_all_of_its_forms() {
        for ip in [OURS_V6, OURS_V4] {
            let Some((program, counts)) = program(ip) else { return };
            for packet in good(ip) {
                assert!(is_ours(&packet, ip.parse().unwrap()) && takes(&program, &packet), "{packet:02x?}");
                // Not the start of one that is longer than its first buffer: all headers have to be in that.
                for len in 14..packet.len() {
                    let short = &packet[..len];
                    assert_eq!(
                        takes(&program, short),
                        is_ours(short, ip.parse().unwrap()),
                        "{len} of {packet:02x?}"
                    );
                }
            }
            assert!(counts.read().unwrap()[Count::NoSocket as usize] >= 4);
        }
    }

    #[test]
    fn leaves_the_rest_to_the_kernel() {
        for ip in [OURS_V6, OURS_V4] {
            let Some((program, counts)) = program(ip) else { return };
            let v6_of = |dst: &str, port| ethernet(0x86dd, &v6(17, dst, &udp(port)));
            let v4_of = |dst: &str, port| ethernet(0x0800, &v4(17, dst, &udp(port)));
            let inner = v6(17, OURS_V6, &udp(4971));
            let others = [
                v6_of(OURS_V6, 4972),
                v6_of("fd97::1:3", 4971),
                v6_of("fe97::1:2", 4971),
                v4_of(OURS_V4, 443),
                v4_of("10.97.1.3", 4971),
                // TCP, ICMPv6, a fragment, the same under another type of frame.
                ethernet(0x86dd, &v6(6, OURS_V6, &udp(4971))),
                ethernet(0x86dd, &v6(58, OURS_V6, &udp(4971))),
                ethernet(0x86dd, &v6(44, OURS_V6, &udp(4971))),
                ethernet(0x0806, &inner),
                // Segments left: the kernel's to forward, or to refuse.
                ethernet(0x86dd, &v6(43, "fcbb:bb00:201::", &routing(41, 2, 1, &inner))),
                // A routing header around UDP itself.
                ethernet(0x86dd, &v6(43, OURS_V6, &routing(17, 1, 0, &udp(4971)))),
            ];
            for packet in others {
                assert!(!is_ours(&packet, ip.parse().unwrap()) && !takes(&program, &packet), "{packet:02x?}");
            }
            // What is the other family's.
            let other = if ip == OURS_V6 { OURS_V4 } else { OURS_V6 };
            assert!(good(other).iter().all(|packet| !takes(&program, packet)));
            assert_eq!(counts.read().unwrap()[Count::NoSocket as usize], 0);
        }
    }

    fn vlan(tags: &[u16], ether_type: u16, ip: &[u8]) -> Vec<u8> {
        let mut inside = ip.to_vec();
        let mut kind = ether_type;
        for tag in tags.iter().rev() {
            inside = [&[0, 0][..], &kind.to_be_bytes(), &inside].concat();
            kind = *tag;
        }
        ethernet(kind, &inside)
    }

    /// An extension header of so many units of eight bytes before what is inside.
    fn extension(next: u8, units: usize, inside: &[u8]) -> Vec<u8> {
        [&[next, units as u8 - 1][..], &vec![0; 8 * units - 2], inside].concat()
    }

    /// An IPv4 packet with 4-byte words of options, and these flags and offset.
    fn v4_with(words: usize, fragment: u16, protocol: u8, dst: &str, udp: &[u8]) -> Vec<u8> {
        let mut packet = v4(protocol, dst, &[&vec![1; 4 * words], udp].concat());
        packet[0] = 0x45 + words as u8;
        packet[6..8].copy_from_slice(&fragment.to_be_bytes());
        packet
    }

    /// Whoever sends packets that are for this port and looks why they do not arrive finds them in a counter.
    #[test]
    fn what_is_for_the_port_and_in_a_form_that_it_does_not_read_is_counted() {
        const VLAN: u16 = 0x8100;
        const SERVICE: u16 = 0x88a8;
        let plain6 = v6(17, OURS_V6, &udp(4971));
        let in_v6 = |next, rest: &[u8]| ethernet(0x86dd, &v6(next, OURS_V6, rest));
        let udp_only = udp(4971);
        let fragment = |offset: u16, next: u8, rest: &[u8]| {
            in_v6(44, &[&[next, 0][..], &offset.to_be_bytes(), &[0; 4], rest].concat())
        };
        let four = [0, 60, 43, 60].iter().rev().fold((17, udp_only.clone()), |(next, rest), &kind| {
            (kind, extension(next, 1 + usize::from(kind % 3), &rest))
        });
        let sixes = [
            (vlan(&[VLAN], 0x86dd, &plain6), 1),
            (vlan(&[SERVICE, VLAN], 0x86dd, &plain6), 1),
            (vlan(&[SERVICE, VLAN, VLAN], 0x86dd, &plain6), 0),
            (vlan(&[VLAN], 0x86dd, &v6(17, "fd97::1:3", &udp_only)), 0),
            (vlan(&[VLAN], 0x86dd, &v6(17, OURS_V6, &udp(4972))), 0),
            (vlan(&[VLAN], 0x86dd, &v6(6, OURS_V6, &udp_only)), 0),
            (vlan(&[VLAN], 0x0800, &v4(17, OURS_V4, &udp_only)), 0),
            (vlan(&[VLAN], 0x86dd, &v6(60, OURS_V6, &extension(17, 3, &udp_only))), 1),
            (in_v6(0, &extension(17, 1, &udp_only)), 1),
            (in_v6(60, &extension(17, 255, &udp_only)), 1),
            (in_v6(43, &routing(17, 2, 1, &udp_only)), 1),
            (in_v6(four.0, &four.1), 1),
            (in_v6(60, &extension(four.0, 1, &four.1)), 0),
            (in_v6(60, &extension(17, 1, &udp(4972))), 0),
            (in_v6(60, &extension(6, 1, &udp_only)), 0),
            // ESP, and no next header.
            (in_v6(50, &udp_only), 0),
            (in_v6(59, &udp_only), 0),
            // The first fragment, and others.
            (fragment(1, 17, &udp_only), 1),
            (fragment(8, 17, &udp_only), 0),
            (fragment(1, 6, &udp_only), 0),
        ];
        let four = |words, fragment, protocol, port| {
            ethernet(0x0800, &v4_with(words, fragment, protocol, OURS_V4, &udp(port)))
        };
        let fours = [
            (vlan(&[VLAN], 0x0800, &v4(17, OURS_V4, &udp_only)), 1),
            (vlan(&[SERVICE, VLAN], 0x0800, &v4(17, OURS_V4, &udp_only)), 1),
            (vlan(&[VLAN], 0x0800, &v4(17, "10.97.1.3", &udp_only)), 0),
            (vlan(&[VLAN], 0x86dd, &plain6), 0),
            (four(1, 0x4000, 17, 4971), 1),
            (four(10, 0x4000, 17, 4971), 1),
            (four(10, 0x4000, 17, 4972), 0),
            (four(1, 0x4000, 6, 4971), 0),
            (four(0, 0x2000, 17, 4971), 1),
            (four(0, 0x2001, 17, 4971), 0),
            (four(0, 0x0001, 17, 4971), 0),
            (four(0, 0x4000, 17, 4972), 0),
        ];
        for (ip, cases) in [(OURS_V6, &sixes[..]), (OURS_V4, &fours)] {
            let Some((program, counts)) = program(ip) else { return };
            for (packet, counted) in cases {
                let before = counts.read().unwrap();
                assert!(!takes(&program, packet), "{packet:02x?}");
                let after = counts.read().unwrap();
                let of = |count: Count| after[count as usize] - before[count as usize];
                assert_eq!((of(Count::Unread), of(Count::NoSocket)), (*counted, 0), "{packet:02x?} for {ip}");
                // Cut anywhere, it is nobody's, unless its ports are there.
                for len in 14..packet.len() - 12 {
                    assert!(!takes(&program, &packet[..len]), "{len} of {packet:02x?}");
                }
                let cut = counts.read().unwrap();
                assert_eq!(cut, after, "{packet:02x?}");
            }
            for packet in good(ip) {
                takes(&program, &packet);
            }
            let unread = cases.iter().map(|(_, counted)| counted).sum::<u64>();
            assert_eq!(counts.read().unwrap()[Count::Unread as usize], unread);
        }
    }

    /// Packets with some bytes changed: the program and the other reader agree on each.
    #[test]
    fn agrees_with_another_reader_on_any_packet() {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(7);
        let (mut ours, mut all) = (0, 0);
        for ip in [OURS_V6, OURS_V4] {
            let Some((program, _)) = program(ip) else { return };
            let good: Vec<_> = [OURS_V6, OURS_V4].iter().flat_map(|ip| good(ip)).collect();
            for _ in 0..20_000 {
                let mut packet = good[rng.next_u32() as usize % good.len()].clone();
                for _ in 0..=(rng.next_u32() % 2) {
                    // Mostly one bit, near the front, where the headers are.
                    let at = 12 + rng.next_u32() as usize % (packet.len() - 12);
                    packet[at] ^= 1 << (rng.next_u32() % 8);
                }
                if rng.next_u32() % 8 == 0 {
                    packet.truncate(14 + rng.next_u32() as usize % (packet.len() - 14));
                }
                let expected = is_ours(&packet, ip.parse().unwrap());
                assert_eq!(takes(&program, &packet), expected, "{packet:02x?} for {ip}");
                ours += u32::from(expected);
                all += 1;
            }
        }
        assert!(ours > all / 20 && ours < all - all / 20, "{ours} of {all}: a test of both answers");
    }
}
