//! Which frames are the transport's: UDP to the port's address and one of its UDP ports, by itself or inside an outer IPv6 packet, with or
//! without a routing header that is used up (RFC 8754 section 4.3.2). The XDP filter of `AF_XDP` ports takes the same.

use std::net::IpAddr;

use spindrift_pmd::ETHERNET_LEN;

const IPV6_LEN: usize = 40;
const IPV4_LEN: usize = 20;
const UDP_LEN: usize = 8;
const PROTOCOL_IPV4: u8 = 4;
const PROTOCOL_UDP: u8 = 17;
const PROTOCOL_IPV6: u8 = 41;
const PROTOCOL_ROUTING: u8 = 43;
/// VLAN tags (IEEE 802.1Q and 802.1ad), the first of which is looked through.
const VLAN_TYPES: [[u8; 2]; 2] = [[0x81, 0x00], [0x88, 0xa8]];
const VLAN_LEN: usize = 4;
/// IPv6 extension headers that a packet for this port may have and that it does not read: hop by hop, fragment, destination options.
const EXTENSIONS: [u8; 3] = [0, 44, 60];

/// Which packets are the transport's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// Destination of the packet next to UDP.
    pub(crate) ip: IpAddr,
    /// UDP destination ports.
    pub(crate) ports: Vec<u16>,
}

/// Whose a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The transport's.
    Ours,
    /// It is for the port, in a form that it does not read: behind a VLAN tag, extension headers or options, or a fragment.
    Unread,
    /// Neighbour discovery, ping, and what is nobody's.
    Other,
}

/// What an IP header says.
struct Ip<'a> {
    is_ours: bool,
    protocol: u8,
    /// It has options, or is a part of a packet.
    is_odd: bool,
    rest: &'a [u8],
}

impl Wanted {
    /// Whose a frame is, by its headers.
    #[inline]
    pub(crate) fn kind(&self, frame: &[u8]) -> Kind {
        let Some((ethernet, packet)) = frame.split_at_checked(ETHERNET_LEN) else { return Kind::Other };
        match [ethernet[12], ethernet[13]] {
            [0x86, 0xdd] => self.ipv6(packet),
            [0x08, 0x00] => self.ipv4(packet),
            tag if VLAN_TYPES.contains(&tag) => self.tagged(packet),
            _ => Kind::Other,
        }
    }

    /// Behind a VLAN tag.
    fn tagged(&self, behind: &[u8]) -> Kind {
        let kind = match behind.split_at_checked(VLAN_LEN) {
            Some(([_, _, 0x86, 0xdd], packet)) => self.ipv6(packet),
            Some(([_, _, 0x08, 0x00], packet)) => self.ipv4(packet),
            _ => Kind::Other,
        };
        if kind == Kind::Ours { Kind::Unread } else { kind }
    }

    fn ipv4(&self, packet: &[u8]) -> Kind {
        if self.ip.is_ipv4() { self.inner(self.read_ipv4(packet).as_ref()) } else { Kind::Other }
    }

    fn ipv6(&self, packet: &[u8]) -> Kind {
        let Some(ip) = self.read_ipv6(packet) else { return Kind::Other };
        // With a next header of UDP there is nothing inside.
        if self.ip.is_ipv6() && (ip.protocol == PROTOCOL_UDP || ip.is_odd) {
            return self.inner(Some(&ip));
        }
        let (protocol, rest) = if ip.protocol == PROTOCOL_ROUTING {
            match ip.rest {
                // What follows, its length in units of eight bytes behind the first eight, and what is left of the path.
                [protocol, len, _, 0, ..] => {
                    let Some(rest) = ip.rest.get(8 + usize::from(*len) * 8..) else { return Kind::Other };
                    (*protocol, rest)
                }
                _ => return Kind::Other,
            }
        } else {
            (ip.protocol, ip.rest)
        };
        match protocol {
            PROTOCOL_IPV6 if self.ip.is_ipv6() => self.inner(self.read_ipv6(rest).as_ref()),
            PROTOCOL_IPV4 if self.ip.is_ipv4() => self.inner(self.read_ipv4(rest).as_ref()),
            _ => Kind::Other,
        }
    }

    /// The header next to UDP.
    fn inner(&self, ip: Option<&Ip<'_>>) -> Kind {
        match ip {
            Some(Ip { is_ours: true, is_odd: true, .. }) => Kind::Unread,
            Some(Ip { is_ours: true, protocol: PROTOCOL_UDP, rest, .. }) if rest.len() >= UDP_LEN => {
                let port = u16::from_be_bytes([rest[2], rest[3]]);
                if self.ports.contains(&port) { Kind::Ours } else { Kind::Other }
            }
            _ => Kind::Other,
        }
    }

    fn read_ipv6<'a>(&self, packet: &'a [u8]) -> Option<Ip<'a>> {
        let (header, rest) = packet.split_at_checked(IPV6_LEN)?;
        let IpAddr::V6(local) = self.ip else {
            let protocol = header[6];
            return (header[0] >> 4 == 6).then_some(Ip { is_ours: false, protocol, is_odd: false, rest });
        };
        let is_ours = header[24..40] == local.octets();
        // An extension header before UDP; deeper ones are not looked for.
        let is_odd = EXTENSIONS.contains(&header[6]) && rest.first() == Some(&PROTOCOL_UDP);
        (header[0] >> 4 == 6).then_some(Ip { is_ours, protocol: header[6], is_odd, rest })
    }

    fn read_ipv4<'a>(&self, packet: &'a [u8]) -> Option<Ip<'a>> {
        let (header, rest) = packet.split_at_checked(IPV4_LEN)?;
        let IpAddr::V4(local) = self.ip else { return None };
        let is_ours = header[16..20] == local.octets();
        let is_fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
        let is_odd = header[9] == PROTOCOL_UDP && (header[0] != 0x45 || is_fragment);
        (header[0] >> 4 == 4).then_some(Ip { is_ours, protocol: header[9], is_odd, rest })
    }
}

#[cfg(test)]
mod tests {
    use rand_xoshiro::Xoshiro256PlusPlus;
    use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};
    use spindrift_pmd::DatagramMeta;
    use spindrift_pmd::testing::head;

    use super::*;

    const V4: [&str; 2] = ["10.0.0.1", "10.0.0.2"];
    const V6: [&str; 2] = ["fd00::1", "fd00::2"];

    fn wanted(ip: &str) -> Wanted {
        Wanted { ip: ip.parse().unwrap(), ports: vec![4971, 4791] }
    }

    fn packet([src, dst]: [&str; 2], dst_port: u16) -> Vec<u8> {
        let meta = DatagramMeta {
            src: src.parse().unwrap(),
            dst: dst.parse().unwrap(),
            src_port: 0xc000,
            dst_port,
            flow_label: 7,
            traffic_class: 1,
            hop_limit: 64,
        };
        let mut bytes = [0; 62];
        let len = head(&meta, 0, &mut bytes);
        bytes[..len].to_vec()
    }

    /// Inside an outer IPv6 packet with this header between.
    fn inside(inner: &[u8], protocol: u8, between: &[u8]) -> Vec<u8> {
        let mut frame = packet(["fcbb:bb00::1", "fcbb:bb00:a01::"], 0)[..54].to_vec();
        frame[20] = if between.is_empty() { protocol } else { PROTOCOL_ROUTING };
        frame.extend(between);
        frame.extend(&inner[14..]);
        frame
    }

    #[test]
    fn ours_are_told_from_others() {
        for (ends, protocol) in [(V4, PROTOCOL_IPV4), (V6, PROTOCOL_IPV6)] {
            let wanted = wanted(ends[1]);
            for port in [4971, 4791] {
                let frame = packet(ends, port);
                assert_eq!(wanted.kind(&frame), Kind::Ours);
                let routing = [protocol, 2, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
                for between in [&[][..], &routing] {
                    let outer = inside(&frame, protocol, between);
                    assert_eq!(wanted.kind(&outer), Kind::Ours, "{ends:?} {between:?}");
                    for len in 0..outer.len() {
                        assert_eq!(wanted.kind(&outer[..len]), Kind::Other, "{len}");
                    }
                }
                let mut unfinished = routing;
                unfinished[3] = 1;
                assert_eq!(wanted.kind(&inside(&frame, protocol, &unfinished)), Kind::Other);
            }
            assert_eq!(wanted.kind(&packet(ends, 4972)), Kind::Other, "another UDP port");
            assert_eq!(wanted.kind(&packet([ends[1], ends[0]], 4971)), Kind::Other, "another address");
        }
        assert_eq!(wanted(V4[1]).kind(&packet(V6, 4971)), Kind::Other);
        assert_eq!(wanted(V6[1]).kind(&packet(V4, 4971)), Kind::Other);
    }

    #[test]
    fn odd_forms_are_told() {
        for ends in [V4, V6] {
            let frame = packet(ends, 4971);
            let mut tagged = frame[..12].to_vec();
            tagged.extend([0x81, 0, 0, 5]);
            tagged.extend(&frame[12..]);
            assert_eq!(wanted(ends[1]).kind(&tagged), Kind::Unread);
            assert_eq!(wanted(ends[0]).kind(&tagged), Kind::Other);
        }
        let mut fragment = packet(V4, 4971);
        fragment[20] |= 0x20;
        assert_eq!(wanted(V4[1]).kind(&fragment), Kind::Unread);
        let mut options = packet(V4, 4971);
        options[14] = 0x46;
        assert_eq!(wanted(V4[1]).kind(&options), Kind::Unread);
        let mut extended = packet(V6, 4971);
        extended[20] = 60;
        extended.splice(54..54, [PROTOCOL_UDP, 0, 1, 4, 0, 0, 0, 0]);
        assert_eq!(wanted(V6[1]).kind(&extended), Kind::Unread);
    }

    #[test]
    fn no_frame_makes_it_panic() {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(7);
        for ends in [V4, V6] {
            let frames =
                [packet(ends, 4971), inside(&packet(ends, 4971), PROTOCOL_IPV6, &[41, 0, 4, 0, 0, 0, 0, 0])];
            for frame in frames {
                for _ in 0..20_000 {
                    let mut frame = frame.clone();
                    for _ in 0..random.next_u32() % 6 {
                        let at = random.next_u32() as usize % frame.len();
                        frame[at] = random.next_u32() as u8;
                    }
                    frame.truncate(random.next_u32() as usize % (frame.len() + 1));
                    wanted(ends[1]).kind(&frame);
                }
            }
        }
    }
}
