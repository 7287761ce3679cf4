//! Ethernet, IPv4, IPv6, UDP and routing headers: lengths and protocol numbers.
//!
//! Every crate that reads or writes these headers takes its constants from here.

use std::fmt;
use std::net::IpAddr;

/// Bytes of an Ethernet header.
pub const ETHERNET_LEN: usize = 14;
/// Bytes of an IPv4 header without options (RFC 791).
pub const IPV4_LEN: usize = 20;
/// Bytes of an IPv6 header (RFC 8200).
pub const IPV6_LEN: usize = 40;
/// Bytes of a UDP header (RFC 768).
pub const UDP_LEN: usize = 8;
/// Bytes of a segment routing header without its segments (RFC 8754 section 2).
pub const ROUTING_LEN: usize = 8;
/// Bytes of a segment.
pub const SEGMENT_LEN: usize = 16;

/// `EtherType` of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// `EtherType` of IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86dd;

/// IP protocol number of IPv4 in IP.
pub const PROTOCOL_IPV4: u8 = 4;
/// IP protocol number of UDP.
pub const PROTOCOL_UDP: u8 = 17;
/// IP protocol number of IPv6 in IP.
pub const PROTOCOL_IPV6: u8 = 41;
/// IP protocol number of an IPv6 routing header.
pub const PROTOCOL_ROUTING: u8 = 43;

/// ECN codepoint "congestion experienced" (RFC 3168).
pub const CE: u8 = 0b11;

/// An Ethernet address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacAddr(pub [u8; 6]);

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, byte) in self.0.iter().enumerate() {
            let colon = if i == 0 { "" } else { ":" };
            write!(f, "{colon}{byte:02x}")?;
        }
        Ok(())
    }
}

/// Addresses and markings of one UDP datagram.
///
/// Filled in by a kernel socket, or parsed from an Ethernet frame. Fields that a kernel socket does not report are
/// zero (the flow label, and the hop limit unless it was requested).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramMeta {
    /// Sender's address.
    pub src: IpAddr,
    /// Receiver's address.
    pub dst: IpAddr,
    /// Sender's UDP port.
    pub src_port: u16,
    /// Receiver's UDP port.
    pub dst_port: u16,
    /// IPv6 flow label, 20 bits; 0 for IPv4.
    pub flow_label: u32,
    /// IPv6 traffic class or IPv4 type of service: DSCP in the upper six bits, ECN in the lower two.
    pub traffic_class: u8,
    /// IPv6 hop limit or IPv4 time to live.
    pub hop_limit: u8,
}
