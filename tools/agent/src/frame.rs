//! Probes as packets: UDP in IPv6 in IPv6 (see [`Plan`]).

use std::net::Ipv6Addr;

#[cfg(doc)]
use crate::Plan;
use crate::{PAYLOAD_LEN, Payload, Route};
use etherparse::{IpNumber, Ipv6Header, UdpHeader};

/// UDP port of probes, on both sides.
pub const PROBE_PORT: u16 = 4_972;
/// Bytes of the packet of a probe.
pub const LEN: usize = 2 * Ipv6Header::LEN + UdpHeader::LEN + PAYLOAD_LEN;
/// Bytes from the inner header on.
const INNER_LEN: usize = LEN - Ipv6Header::LEN;
const UDP_AT: usize = 2 * Ipv6Header::LEN;
const PAYLOAD_AT: usize = UDP_AT + UdpHeader::LEN;
const HOP_LIMIT: u8 = 64;

/// Where probes of one path go, and what is the same in all of them.
#[derive(Clone, Debug)]
pub struct Template {
    bytes: [u8; LEN],
    inner: Ipv6Header,
    to: Ipv6Addr,
}

fn header(source: Ipv6Addr, destination: Ipv6Addr, payload: usize, next: IpNumber) -> Ipv6Header {
    Ipv6Header {
        traffic_class: 0,
        flow_label: etherparse::Ipv6FlowLabel::ZERO,
        payload_length: payload as u16,
        next_header: next,
        hop_limit: HOP_LIMIT,
        source: source.octets(),
        destination: destination.octets(),
    }
}

impl Template {
    /// The packets of a route, from this port and for this inner address.
    pub fn new(route: &Route, outer: Ipv6Addr, inner: Ipv6Addr) -> Self {
        let to = Ipv6Addr::from(route.carrier);
        let outer = header(outer, to, INNER_LEN, IpNumber::IPV6);
        let inner = header(inner, inner, INNER_LEN - Ipv6Header::LEN, IpNumber::UDP);
        let mut bytes = [0; LEN];
        bytes[..Ipv6Header::LEN].copy_from_slice(&outer.to_bytes());
        bytes[Ipv6Header::LEN..UDP_AT].copy_from_slice(&inner.to_bytes());
        Self { bytes, inner, to }
    }

    /// The outer destination.
    pub const fn to(&self) -> Ipv6Addr {
        self.to
    }

    /// The packet of a probe.
    pub fn packet(&self, payload: Payload) -> [u8; LEN] {
        let (mut bytes, payload) = (self.bytes, payload.to_bytes());
        // Ports and lengths are in range, which is all that can fail.
        if let Ok(udp) = UdpHeader::with_ipv6_checksum(PROBE_PORT, PROBE_PORT, &self.inner, &payload) {
            bytes[UDP_AT..PAYLOAD_AT].copy_from_slice(&udp.to_bytes());
        }
        bytes[PAYLOAD_AT..].copy_from_slice(&payload);
        bytes
    }
}

/// The payload of a packet that has come back to the inner address. `None`: it is no probe, or was changed on its way.
pub fn payload(packet: &[u8], inner: Ipv6Addr) -> Option<&[u8]> {
    let (outer, rest) = Ipv6Header::from_slice(packet).ok()?;
    if outer.next_header != IpNumber::IPV6 {
        return None;
    }
    let (header, rest) = Ipv6Header::from_slice(rest).ok()?;
    if header.next_header != IpNumber::UDP || header.destination != inner.octets() {
        return None;
    }
    let (udp, rest) = UdpHeader::from_slice(rest).ok()?;
    // A short packet may have been padded.
    let len = usize::from(udp.length).checked_sub(UdpHeader::LEN)?;
    let payload = rest.get(..len)?;
    let sum = UdpHeader { checksum: 0, ..udp.clone() }.calc_checksum_ipv6(&header, payload).ok()?;
    (udp.destination_port == PROBE_PORT && sum == udp.checksum).then_some(payload)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use spindrift_srv6::{Fabric, FabricHost, Node, Shape};

    use super::*;
    use crate::{Path, Plan, SharePolicy, probe_address};

    fn template() -> (Template, Payload, Ipv6Addr) {
        let host = |name: &str, t0| FabricHost { name: name.into(), t0, downlink: 0 };
        let shape = Shape { planes: 2, t0: 2, t1: 2, ..Shape::default() };
        let fabric = Fabric::new(shape, vec![host("h1", 0), host("h2", 1)]).unwrap();
        let plan = Plan::new(&fabric, 0, None, SharePolicy::default()).unwrap();
        let route = plan.upper().first().unwrap();
        let inner = probe_address(&fabric, 0, route.plane).unwrap();
        let outer = fabric.address(0, route.plane).unwrap();
        let path = Path { host: 0, top: Node::T1 { plane: route.plane, number: 1 } };
        (Template::new(route, outer, inner), Payload { path, run: 3, seq: 5, nonce: 7 }, inner)
    }

    #[test]
    fn a_probe_comes_back_as_it_was_sent() {
        let (template, sent, inner) = template();
        let packet = template.packet(sent);
        assert_eq!(packet.len(), LEN);
        let (outer, _) = Ipv6Header::from_slice(&packet).unwrap();
        assert_eq!(outer.destination, template.to().octets());
        assert_eq!(usize::from(outer.payload_length), LEN - 40);
        let found = payload(&packet, inner).unwrap();
        assert_eq!(Payload::from_bytes(found), Ok(sent));
        // Padded, as short frames are.
        let padded = [&packet[..], &[0; 7]].concat();
        assert_eq!(payload(&padded, inner), Some(found));
    }

    /// What switches may change is the outer header.
    #[test]
    fn a_packet_that_was_changed_is_no_probe() {
        let (template, sent, inner) = template();
        let packet = template.packet(sent);
        for at in 48..LEN {
            for bit in 0..8 {
                let mut other = packet;
                other[at] ^= 1 << bit;
                let found = payload(&other, inner);
                // The hop limit of the inner header is nobody's to check.
                assert!(at == 47 || found.is_none(), "bit {bit} of byte {at}");
            }
        }
        for len in 0..LEN {
            assert_eq!(payload(&packet[..len], inner), None);
        }
        assert_eq!(payload(&packet, template.to()), None, "for somebody else");
    }
}
