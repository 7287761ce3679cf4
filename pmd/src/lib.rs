//! Ports.

use std::net::IpAddr;

/// An Ethernet address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MacAddr(pub [u8; 6]);

/// Addresses and markings of a UDP datagram: what a kernel socket tells us, or what is parsed out of an
/// Ethernet frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramMeta {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// UDP source port.
    pub src_port: u16,
    /// UDP destination port.
    pub dst_port: u16,
    /// IPv6 flow label, zero for IPv4.
    pub flow_label: u32,
    /// DSCP in the upper six bits, ECN in the lower two.
    pub traffic_class: u8,
    /// Hop limit or time to live.
    pub hop_limit: u8,
}
