//! The frames that [`Stack`](super::Stack) sends.

use std::net::{Ipv4Addr, Ipv6Addr};

use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol, EthernetRepr,
    Icmpv4Packet, Icmpv4Repr, Icmpv6Packet, Icmpv6Repr, IpProtocol, Ipv4Packet, Ipv4Repr, Ipv6Packet,
    Ipv6Repr, MldRepr, NdiscNeighborFlags, NdiscRepr,
};
use spindrift_pmd::{ETHERNET_LEN, MacAddr};

use super::duplicates::{NONCE_LEN, NONCE_OPTION};
use super::{Addresses, checksums, to_smoltcp};

/// Shortest Ethernet frame, without its checksum.
const FRAME_MIN: usize = 60;
const IPV6_LEN: usize = 40;
const IPV4_LEN: usize = 20;
const ARP_LEN: usize = 28;
/// All nodes of a link (RFC 4291, section 2.7.1).
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// All routers that speak version 2 of MLD (RFC 3810, section 5.2.14).
const ALL_MLD_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);
/// Everything that is sent to a group is wanted from now on (RFC 3810, section 5.2.12).
const CHANGE_TO_EXCLUDE: u8 = 4;
/// A hop-by-hop header in front of ICMPv6, with a router alert (RFC 2711) and padding.
const ROUTER_ALERT: [u8; 8] = [58, 0, 5, 2, 0, 0, 1, 0];

/// A frame with room for `len` bytes behind its Ethernet header, zeros but for that header.
fn frame(from: MacAddr, to: EthernetAddress, ethertype: EthernetProtocol, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; (ETHERNET_LEN + len).max(FRAME_MIN)];
    let header = EthernetRepr { src_addr: to_smoltcp(from), dst_addr: to, ethertype };
    header.emit(&mut EthernetFrame::new_unchecked(&mut bytes));
    bytes
}

/// The Ethernet address of a group (RFC 2464, section 7).
fn group(ip: Ipv6Addr) -> EthernetAddress {
    let [.., a, b, c, d] = ip.octets();
    EthernetAddress([0x33, 0x33, a, b, c, d])
}

/// The group of those that may have an address (RFC 4291, section 2.7.1).
pub(super) fn solicited_node(ip: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = ip.octets();
    Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c])
}

/// An ARP message about our address; `known` is the Ethernet address of `about`.
pub(super) fn arp(
    mac: MacAddr,
    local: Ipv4Addr,
    operation: ArpOperation,
    about: Ipv4Addr,
    known: Option<MacAddr>,
) -> Vec<u8> {
    let to = known.map_or(EthernetAddress::BROADCAST, to_smoltcp);
    let message = ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr: to_smoltcp(mac),
        source_protocol_addr: local,
        target_hardware_addr: known.map_or(EthernetAddress([0; 6]), to_smoltcp),
        target_protocol_addr: about,
    };
    let mut bytes = frame(mac, to, EthernetProtocol::Arp, ARP_LEN);
    if let Some(rest) = bytes.get_mut(ETHERNET_LEN..) {
        message.emit(&mut ArpPacket::new_unchecked(rest));
    }
    bytes
}

/// An ICMPv4 message between these Ethernet and IP addresses, from and to.
pub(super) fn icmpv4(
    (from, to): (MacAddr, MacAddr),
    (src_addr, dst_addr): (Ipv4Addr, Ipv4Addr),
    message: &Icmpv4Repr<'_>,
) -> Vec<u8> {
    let payload_len = message.buffer_len();
    let ip = Ipv4Repr { src_addr, dst_addr, next_header: IpProtocol::Icmp, payload_len, hop_limit: 64 };
    let mut bytes = frame(from, to_smoltcp(to), EthernetProtocol::Ipv4, IPV4_LEN + payload_len);
    let packet = bytes.get_mut(ETHERNET_LEN..ETHERNET_LEN + IPV4_LEN + payload_len);
    if let Some((header, rest)) = packet.and_then(|packet| packet.split_at_mut_checked(IPV4_LEN)) {
        message.emit(&mut Icmpv4Packet::new_unchecked(rest), &checksums());
        ip.emit(&mut Ipv4Packet::new_unchecked(header), &checksums());
    }
    bytes
}

/// An ICMPv6 message between these Ethernet and IP addresses, from and to.
pub(super) fn icmpv6(
    (from, to): (MacAddr, MacAddr),
    (src_addr, dst_addr): (Ipv6Addr, Ipv6Addr),
    hop_limit: u8,
    message: &Icmpv6Repr<'_>,
) -> Vec<u8> {
    let payload_len = message.buffer_len();
    let ip = Ipv6Repr { src_addr, dst_addr, next_header: IpProtocol::Icmpv6, payload_len, hop_limit };
    let mut bytes = frame(from, to_smoltcp(to), EthernetProtocol::Ipv6, IPV6_LEN + payload_len);
    let packet = bytes.get_mut(ETHERNET_LEN..ETHERNET_LEN + IPV6_LEN + payload_len);
    if let Some((header, rest)) = packet.and_then(|packet| packet.split_at_mut_checked(IPV6_LEN)) {
        ip.emit(&mut Ipv6Packet::new_unchecked(header));
        message.emit(&src_addr, &dst_addr, &mut Icmpv6Packet::new_unchecked(rest), &checksums());
    }
    bytes
}

/// Tells switches that forward multicast frames to listeners only which groups we listen to (MLD, RFC 3810, section 5.2): those by which
/// neighbours ask for our addresses.
pub(super) fn report(own: &Addresses) -> Vec<u8> {
    let (src, dst) = (own.link_local(), ALL_MLD_ROUTERS);
    // smoltcp's own way to write records (0.14) takes no room for them.
    let records: Vec<u8> = [src, own.source()]
        .into_iter()
        .flat_map(|ip| [CHANGE_TO_EXCLUDE, 0, 0, 0].into_iter().chain(solicited_node(ip).octets()))
        .collect();
    let message = Icmpv6Repr::Mld(MldRepr::Report { nr_mcast_addr_rcrds: 2, data: &records });
    let payload_len = ROUTER_ALERT.len() + message.buffer_len();
    let ip = Ipv6Repr {
        src_addr: src,
        dst_addr: dst,
        next_header: IpProtocol::HopByHop,
        payload_len,
        hop_limit: 1,
    };
    let mut bytes = frame(own.mac, group(dst), EthernetProtocol::Ipv6, IPV6_LEN + payload_len);
    let packet = bytes.get_mut(ETHERNET_LEN..ETHERNET_LEN + IPV6_LEN + payload_len);
    if let Some((header, rest)) = packet.and_then(|packet| packet.split_at_mut_checked(IPV6_LEN)) {
        ip.emit(&mut Ipv6Packet::new_unchecked(header));
        if let Some((option, rest)) = rest.split_at_mut_checked(ROUTER_ALERT.len()) {
            option.copy_from_slice(&ROUTER_ALERT);
            message.emit(&src, &dst, &mut Icmpv6Packet::new_unchecked(rest), &checksums());
        }
    }
    bytes
}

/// Asks for the Ethernet address of a neighbour (RFC 4861, section 4.3): everybody, or the one that has been `known` to have it.
pub(super) fn solicitation(own: &Addresses, target_addr: Ipv6Addr, known: Option<MacAddr>) -> Vec<u8> {
    let message = NdiscRepr::NeighborSolicit { target_addr, lladdr: Some(to_smoltcp(own.mac).into()) };
    let (mac, ip) = match known {
        Some(mac) => (mac, target_addr),
        None => (MacAddr(group(solicited_node(target_addr)).0), solicited_node(target_addr)),
    };
    icmpv6((own.mac, mac), (own.source(), ip), 255, &Icmpv6Repr::Ndisc(message))
}

/// Asks whether another node has an address (RFC 4862, section 5.4.2): from nowhere, with a nonce (RFC 7527) and no Ethernet address.
pub(super) fn duplicate_solicitation(mac: MacAddr, target: Ipv6Addr, nonce: [u8; NONCE_LEN]) -> Vec<u8> {
    // smoltcp's solicitations have no nonce.
    const LEN: usize = 24 + 2 + NONCE_LEN;
    const NEIGHBOR_SOLICITATION: u8 = 135;
    let (src, dst) = (Ipv6Addr::UNSPECIFIED, solicited_node(target));
    let mut message = [0; LEN];
    message[0] = NEIGHBOR_SOLICITATION;
    message[8..24].copy_from_slice(&target.octets());
    message[24..26].copy_from_slice(&[NONCE_OPTION, 1]);
    message[26..].copy_from_slice(&nonce);
    let ip = Ipv6Repr {
        src_addr: src,
        dst_addr: dst,
        next_header: IpProtocol::Icmpv6,
        payload_len: LEN,
        hop_limit: 255,
    };
    let mut bytes = frame(mac, group(dst), EthernetProtocol::Ipv6, IPV6_LEN + LEN);
    let packet = bytes.get_mut(ETHERNET_LEN..ETHERNET_LEN + IPV6_LEN + LEN);
    if let Some((header, rest)) = packet.and_then(|packet| packet.split_at_mut_checked(IPV6_LEN)) {
        rest.copy_from_slice(&message);
        Icmpv6Packet::new_unchecked(rest).fill_checksum(&src, &dst);
        ip.emit(&mut Ipv6Packet::new_unchecked(header));
    }
    bytes
}

/// Answers a solicitation (RFC 4861, section 7.2.4). One without a source, which looks for duplicates of an address, is answered to all.
pub(super) fn advertisement(
    own: &Addresses,
    target_addr: Ipv6Addr,
    (mac, ip): (MacAddr, Ipv6Addr),
) -> Vec<u8> {
    let (mac, ip, flags) = if ip.is_unspecified() {
        (MacAddr(group(ALL_NODES).0), ALL_NODES, NdiscNeighborFlags::OVERRIDE)
    } else {
        (mac, ip, NdiscNeighborFlags::SOLICITED | NdiscNeighborFlags::OVERRIDE)
    };
    let message = NdiscRepr::NeighborAdvert { flags, target_addr, lladdr: Some(to_smoltcp(own.mac).into()) };
    icmpv6((own.mac, mac), (target_addr, ip), 255, &Icmpv6Repr::Ndisc(message))
}
