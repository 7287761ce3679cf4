//! What a kernel does for an address: neighbour discovery (NDP, RFC 4861), ARP (RFC 826), reports of multicast groups (MLD, RFC 3810) and
//! echo (ping), on a NIC that no kernel sees.
//!
//! The messages are read and written by smoltcp's `wire` types. Its interface is not used: it does not answer a solicitation that is sent
//! to our own address, by which Linux checks that a neighbour is still there, and nobody can ask it for a neighbour's Ethernet address.
//!
//! There is no clock, no I/O and no table without a limit. Frames come in as bytes, and go out the same way.

mod duplicates;
mod messages;

use duplicates::Detection;
pub(crate) use duplicates::{Duplicate, NONCE_LEN, Search};

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::ops::Bound;

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol, Icmpv4Packet,
    Icmpv4Repr, Icmpv6Packet, Icmpv6Repr, IpProtocol, Ipv4Packet, Ipv4Repr, Ipv6Packet, Ipv6Repr,
    NdiscNeighborFlags, NdiscRepr, RawHardwareAddress,
};
use spindrift_pmd::MacAddr;

/// How long a neighbour may take to answer the first solicitations.
const FIRST_RETRY_NS: u64 = 100_000_000;
/// How many those are.
const FIRST_RETRIES: u32 = 5;
/// How long it may take to answer later ones (`RETRANS_TIMER` of RFC 4861).
const RETRY_NS: u64 = 1_000_000_000;
/// How long an answer counts. After that the neighbour is asked again, and used as before until it answers.
const FRESH_NS: u64 = 10_000_000_000;
/// Solicitations to the known Ethernet address of a neighbour before everybody is asked.
const UNICAST_TRIES: u32 = 2;
/// When switches are told of our groups: soon again, as the first report may be lost, and then within the time for which they
/// remember it (260 s, RFC 3810, section 9.4).
const REPORT_AGAIN_NS: u64 = 1_000_000_000;
const REPORT_NS: u64 = 60_000_000_000;
/// Neighbours that are kept. When there are more, all are asked for again.
const MOST: usize = 4096;

/// Addresses of a port, and where its packets go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Addresses {
    pub(crate) mac: MacAddr,
    pub(crate) local: IpAddr,
    /// Destinations that have so many first bits in common with `local` are on the link.
    pub(crate) prefix_len: u8,
    /// The first of each family takes what is not on the link.
    pub(crate) gateways: Vec<IpAddr>,
    /// Neighbours that are not asked.
    pub(crate) fixed: Vec<(IpAddr, MacAddr)>,
}

impl Addresses {
    /// The address of the link alone that belongs to the Ethernet address (RFC 4291, appendix A).
    fn link_local(&self) -> Ipv6Addr {
        let mac = self.mac.0.map(u16::from);
        let words = [mac[0] << 8 ^ 0x200 | mac[1], mac[2] << 8 | 0xff, 0xfe00 | mac[3], mac[4] << 8 | mac[5]];
        Ipv6Addr::new(0xfe80, 0, 0, 0, words[0], words[1], words[2], words[3])
    }

    fn is_ours(&self, ip: IpAddr) -> bool {
        ip == self.local || ip == IpAddr::V6(self.link_local())
    }

    pub(crate) fn is_on_link(&self, to: IpAddr) -> bool {
        match (self.local, to) {
            (_, IpAddr::V6(to)) if to.is_unicast_link_local() => true,
            (IpAddr::V6(local), IpAddr::V6(to)) => {
                let differ = local.to_bits() ^ to.to_bits();
                differ.leading_zeros() >= u32::from(self.prefix_len)
            }
            (IpAddr::V4(local), IpAddr::V4(to)) => {
                let differ = local.to_bits() ^ to.to_bits();
                differ.leading_zeros() >= u32::from(self.prefix_len)
            }
            _ => false,
        }
    }

    /// The neighbour that is next on the way to an address.
    fn next_hop(&self, to: IpAddr) -> Option<IpAddr> {
        if to.is_multicast() || to.is_unspecified() {
            return None;
        }
        if self.is_on_link(to) {
            return Some(to);
        }
        self.gateways.iter().copied().find(|gateway| gateway.is_ipv4() == to.is_ipv4())
    }

    /// The source of an NDP message.
    fn source(&self) -> Ipv6Addr {
        match self.local {
            IpAddr::V6(ip) => ip,
            IpAddr::V4(_) => self.link_local(),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Hop {
    mac: Option<MacAddr>,
    /// The answer does not get old.
    is_fixed: bool,
    /// When it answered last.
    confirmed_at: u64,
    asked_at: u64,
    /// Solicitations since its last answer.
    tries: u32,
}

impl Hop {
    /// Whether it is time to ask.
    fn is_due(&self, now_ns: u64) -> bool {
        if self.is_fixed || (self.mac.is_some() && now_ns.saturating_sub(self.confirmed_at) < FRESH_NS) {
            return false;
        }
        let pause = if self.tries < FIRST_RETRIES { FIRST_RETRY_NS } else { RETRY_NS };
        self.tries == 0 || now_ns.saturating_sub(self.asked_at) >= pause
    }
}

/// Frames to send.
pub(crate) type Out = Vec<Vec<u8>>;

/// Neighbours and answers of one device.
pub(crate) struct Stack {
    own: Addresses,
    hops: BTreeMap<IpAddr, Hop>,
    /// Grows whenever an answer of [`mac_of`](Self::mac_of) may have become wrong.
    changes: u64,
    /// How often switches have been told of our groups, and when to tell them next.
    reports: u64,
    report_at: u64,
    /// The neighbour that was looked at last, to see whether its answer is old.
    looked_at: Option<IpAddr>,
    detection: Detection,
}

/// The checksums of all messages are checked and written.
fn checksums() -> ChecksumCapabilities {
    ChecksumCapabilities::default()
}

fn to_smoltcp(mac: MacAddr) -> EthernetAddress {
    EthernetAddress(mac.0)
}

/// The Ethernet address of a single node.
fn unicast(mac: EthernetAddress) -> Option<MacAddr> {
    (mac.is_unicast() && mac.0 != [0; 6]).then_some(MacAddr(mac.0))
}

fn unicast_of(raw: Option<RawHardwareAddress>) -> Option<MacAddr> {
    let bytes = raw?;
    bytes.as_bytes().try_into().ok().and_then(|bytes| unicast(EthernetAddress(bytes)))
}

impl Stack {
    pub(crate) fn new(own: Addresses, search: Search) -> Self {
        let fixed =
            |&(ip, mac): &(IpAddr, MacAddr)| (ip, Hop { mac: Some(mac), is_fixed: true, ..Hop::default() });
        let hops = own.fixed.iter().map(fixed).collect();
        let detection = Detection::new(search, &own);
        Self { own, hops, changes: 0, reports: 0, report_at: 0, looked_at: None, detection }
    }

    /// Looks for duplicates of the port's addresses. To be called now and then.
    pub(crate) fn detect(&mut self, has_link: bool, now_ns: u64, out: &mut Out) {
        self.detection.proceed(&self.own, has_link, now_ns, out);
    }

    /// Whether the port's addresses can be used: no duplicate is known, and there was time for one to be found.
    pub(crate) fn is_usable(&self) -> bool {
        self.detection.is_usable()
    }

    /// Whether a duplicate may still be found.
    pub(crate) fn is_detecting(&self) -> bool {
        self.detection.is_open()
    }

    /// When that ends.
    pub(crate) fn detected_at(&self) -> Option<u64> {
        self.detection.until_ns()
    }

    /// The node that has an address of the port.
    pub(crate) fn duplicate(&self) -> Option<Duplicate> {
        self.detection.duplicate()
    }

    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Where packets to an address go. `None`: there is no way, or nobody knows yet, and the neighbour is asked from time to time.
    pub(crate) fn mac_of(&mut self, to: IpAddr, now_ns: u64, out: &mut Out) -> Option<MacAddr> {
        let ip = self.own.next_hop(to)?;
        if self.hops.len() >= MOST && !self.hops.contains_key(&ip) {
            self.hops.retain(|_, hop| hop.is_fixed);
            self.changes += 1;
        }
        let mac = self.hops.entry(ip).or_default().mac;
        if mac.is_none() {
            self.ask_if_due(ip, now_ns, out);
        }
        mac
    }

    /// Whether [`mac_of`](Self::mac_of) may know an address soon: its neighbour was asked for the first time lately.
    pub(crate) fn may_know_soon(&self, to: IpAddr) -> bool {
        let hop = self.own.next_hop(to).and_then(|ip| self.hops.get(&ip));
        hop.is_some_and(|hop| hop.mac.is_none() && (1..=FIRST_RETRIES).contains(&hop.tries))
    }

    /// Tells switches of our groups, when it is time to. To be called now and then.
    pub(crate) fn announce(&mut self, now_ns: u64, out: &mut Out) {
        if self.reports > 0 && now_ns < self.report_at {
            return;
        }
        self.report_at = now_ns.saturating_add(if self.reports < 2 { REPORT_AGAIN_NS } else { REPORT_NS });
        self.reports += 1;
        out.push(messages::report(&self.own));
    }

    /// Asks one neighbour again whose answer is old. To be called now and then.
    pub(crate) fn refresh(&mut self, now_ns: u64, out: &mut Out) {
        let behind = self.looked_at.map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.hops.range((behind, Bound::Unbounded)).next().or_else(|| self.hops.iter().next());
        self.looked_at = next.map(|(&ip, _)| ip);
        if let Some((ip, Hop { mac: Some(_), .. })) = next.map(|(&ip, &hop)| (ip, hop)) {
            self.ask_if_due(ip, now_ns, out);
        }
    }

    fn ask_if_due(&mut self, ip: IpAddr, now_ns: u64, out: &mut Out) {
        let Some(hop) = self.hops.get_mut(&ip).filter(|hop| hop.is_due(now_ns)) else { return };
        let known = hop.mac.filter(|_| hop.tries < UNICAST_TRIES);
        hop.asked_at = now_ns;
        hop.tries = hop.tries.saturating_add(1);
        match ip {
            IpAddr::V6(ip) => out.push(messages::solicitation(&self.own, ip, known)),
            IpAddr::V4(ip) => {
                if let IpAddr::V4(local) = self.own.local {
                    out.push(messages::arp(self.own.mac, local, ArpOperation::Request, ip, known));
                }
            }
        }
    }

    /// Takes note of the Ethernet address of a neighbour that packets go to. `overrides`: it may replace another one.
    fn learn(&mut self, ip: IpAddr, mac: Option<MacAddr>, overrides: bool, now_ns: u64) {
        let Some(hop) = self.hops.get_mut(&ip).filter(|hop| !hop.is_fixed) else { return };
        let is_new = mac.is_some() && mac != hop.mac;
        if is_new && hop.mac.is_some() && !overrides {
            return;
        }
        if mac.or(hop.mac).is_none() {
            return;
        }
        hop.mac = mac.or(hop.mac);
        hop.confirmed_at = now_ns;
        hop.tries = 0;
        self.changes += u64::from(is_new);
    }

    /// Takes a frame that is not the transport's, and answers it.
    pub(crate) fn receive(&mut self, frame: &[u8], now_ns: u64, out: &mut Out) {
        let Ok(frame) = EthernetFrame::new_checked(frame) else { return };
        let Some(from) = unicast(frame.src_addr()) else { return };
        let to = frame.dst_addr();
        if to != to_smoltcp(self.own.mac) && to.is_unicast() {
            return;
        }
        match frame.ethertype() {
            EthernetProtocol::Arp => self.receive_arp(frame.payload(), now_ns, out),
            EthernetProtocol::Ipv4 if to.is_unicast() => self.receive_ipv4(from, frame.payload(), out),
            EthernetProtocol::Ipv6 => self.receive_ipv6(from, frame.payload(), now_ns, out),
            _ => {}
        }
    }

    fn receive_arp(&mut self, packet: &[u8], now_ns: u64, out: &mut Out) {
        let Ok(ArpRepr::EthernetIpv4 {
            operation,
            source_hardware_addr,
            source_protocol_addr,
            target_protocol_addr,
            ..
        }) = ArpPacket::new_checked(packet).and_then(|packet| ArpRepr::parse(&packet))
        else {
            return;
        };
        let Some(mac) = unicast(source_hardware_addr) else { return };
        if IpAddr::V4(source_protocol_addr) == self.own.local {
            return;
        }
        self.learn(IpAddr::V4(source_protocol_addr), Some(mac), true, now_ns);
        if operation == ArpOperation::Request && IpAddr::V4(target_protocol_addr) == self.own.local {
            let reply = ArpOperation::Reply;
            out.push(messages::arp(
                self.own.mac,
                target_protocol_addr,
                reply,
                source_protocol_addr,
                Some(mac),
            ));
        }
    }

    fn receive_ipv4(&self, from: MacAddr, packet: &[u8], out: &mut Out) {
        let Ok(packet) = Ipv4Packet::new_checked(packet) else { return };
        let Ok(ip) = Ipv4Repr::parse(&packet, &checksums()) else { return };
        let is_whole = !packet.more_frags() && packet.frag_offset() == 0;
        if IpAddr::V4(ip.dst_addr) != self.own.local || ip.next_header != IpProtocol::Icmp || !is_whole {
            return;
        }
        if ip.src_addr.is_multicast() || ip.src_addr.is_broadcast() || ip.src_addr.is_unspecified() {
            return;
        }
        let Ok(message) = Icmpv4Packet::new_checked(packet.payload()) else { return };
        if let Ok(Icmpv4Repr::EchoRequest { ident, seq_no, data }) = Icmpv4Repr::parse(&message, &checksums())
        {
            let reply = Icmpv4Repr::EchoReply { ident, seq_no, data };
            out.push(messages::icmpv4((self.own.mac, from), (ip.dst_addr, ip.src_addr), &reply));
        }
    }

    fn receive_ipv6(&mut self, from: MacAddr, packet: &[u8], now_ns: u64, out: &mut Out) {
        let Ok(packet) = Ipv6Packet::new_checked(packet) else { return };
        let Ok(ip) = Ipv6Repr::parse(&packet) else { return };
        if ip.next_header != IpProtocol::Icmpv6 || ip.src_addr.is_multicast() {
            return;
        }
        let Ok(message) = Icmpv6Packet::new_checked(packet.payload()) else { return };
        match Icmpv6Repr::parse(&ip.src_addr, &ip.dst_addr, &message, &checksums()) {
            Ok(Icmpv6Repr::EchoRequest { ident, seq_no, data })
                if self.is_usable()
                    && self.own.is_ours(ip.dst_addr.into())
                    && !ip.src_addr.is_unspecified() =>
            {
                let reply = Icmpv6Repr::EchoReply { ident, seq_no, data };
                out.push(messages::icmpv6((self.own.mac, from), (ip.dst_addr, ip.src_addr), 64, &reply));
            }
            // RFC 4861, section 7.1: "The IP Hop Limit field has a value of 255".
            Ok(Icmpv6Repr::Ndisc(message)) if ip.hop_limit == 255 => {
                let ends = (from, ip.src_addr);
                if self.detection.receive(&self.own, ends, &message, packet.payload()) {
                    self.receive_ndp(from, &ip, &message, now_ns, out);
                }
            }
            _ => {}
        }
    }

    fn receive_ndp(
        &mut self,
        from: MacAddr,
        ip: &Ipv6Repr,
        message: &NdiscRepr<'_>,
        now_ns: u64,
        out: &mut Out,
    ) {
        match *message {
            NdiscRepr::NeighborSolicit { target_addr, lladdr } => {
                let mac = unicast_of(lladdr);
                if !ip.src_addr.is_unspecified() && !self.own.is_ours(ip.src_addr.into()) {
                    self.learn(ip.src_addr.into(), mac, true, now_ns);
                }
                // RFC 4862, section 5.4.3: a solicitation for a tentative address is not answered.
                if self.is_usable() && self.own.is_ours(target_addr.into()) {
                    let to = (mac.unwrap_or(from), ip.src_addr);
                    out.push(messages::advertisement(&self.own, target_addr, to));
                }
            }
            NdiscRepr::NeighborAdvert { flags, target_addr, lladdr }
                if !target_addr.is_multicast() && !self.own.is_ours(target_addr.into()) =>
            {
                let overrides = flags.contains(NdiscNeighborFlags::OVERRIDE);
                self.learn(target_addr.into(), unicast_of(lladdr), overrides, now_ns);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
