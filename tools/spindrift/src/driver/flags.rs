//! Flags of drivers: settings of ports that not every driver has.

use std::net::IpAddr;

use clap::Args;

use super::OnLink;
use crate::bench::source_ports::SourcePortSet;
use crate::config::{Nic, XdpModeName};

/// Flags of `write-bw` and `write-lat` that are settings of some drivers. Those that the driver in use lacks are refused by their names.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct PortFlags {
    /// UDP source ports of each plane, which are its paths: a number of ports, or a range such as 50000-50031
    /// [default: 32]
    #[arg(long, value_name = "N")]
    source_ports: Option<SourcePortSet>,
    /// `af_xdp`: where the XDP program runs, in the driver or (slower) in the network stack [default: auto, which
    /// prefers the driver]
    #[arg(long, value_enum)]
    xdp_mode: Option<XdpModeName>,
    /// `af_xdp`, `dpdk`: receive buffers per queue, a power of two [default: 2048, 1024 for `dpdk`]
    #[arg(long, value_name = "N")]
    rx_buffers: Option<u32>,
    /// `af_xdp`, `dpdk`: transmit buffers per queue, a power of two [default: 2048, 1024 for `dpdk`]
    #[arg(long, value_name = "N")]
    tx_buffers: Option<u32>,
    /// `dpdk`: address of each device, with the prefix length of its link [default: /64, or /24 for IPv4]
    #[arg(long, value_name = "ADDR[/LEN]", value_delimiter = ',')]
    device_addresses: Vec<OnLink>,
    /// `dpdk`: routers of the links, for other networks and for SRv6 carriers [default: none]
    #[arg(long, value_name = "ADDR", value_delimiter = ',')]
    gateways: Vec<IpAddr>,
    /// `dpdk`: longest IP packet, up to 9216 [default: that of the interface behind the device, else 1500]
    #[arg(long, value_name = "BYTES")]
    device_mtu: Option<u32>,
    /// `dpdk`: whether drivers that can read payloads in place do so [default: true for `net_memif`]
    #[arg(long, value_name = "BOOL")]
    zero_copy: Option<bool>,
    /// `dpdk`: arguments of the EAL, such as "--lcores 0@2 --iova-mode=va" [default: what the devices need]
    #[arg(long, value_name = "ARGS", allow_hyphen_values = true)]
    dpdk_eal: Option<String>,
}

impl PortFlags {
    /// Those that were given.
    pub(crate) fn given(&self) -> impl Iterator<Item = &'static str> {
        let all = [
            ("--source-ports", self.source_ports.is_some()),
            ("--xdp-mode", self.xdp_mode.is_some()),
            ("--rx-buffers", self.rx_buffers.is_some()),
            ("--tx-buffers", self.tx_buffers.is_some()),
            ("--device-addresses", !self.device_addresses.is_empty()),
            ("--gateways", !self.gateways.is_empty()),
            ("--device-mtu", self.device_mtu.is_some()),
            ("--zero-copy", self.zero_copy.is_some()),
            ("--dpdk-eal", self.dpdk_eal.is_some()),
        ];
        all.into_iter().filter(|(_, given)| *given).map(|(flag, _)| flag)
    }

    /// Puts them over what the file says.
    pub(crate) fn put(&self, nic: &mut Nic) {
        nic.source_ports = self.source_ports.or(nic.source_ports);
        nic.xdp_mode = self.xdp_mode.or(nic.xdp_mode);
        nic.rx_buffers = self.rx_buffers.or(nic.rx_buffers);
        nic.tx_buffers = self.tx_buffers.or(nic.tx_buffers);
        if !self.device_addresses.is_empty() {
            nic.device_addresses = Some(self.device_addresses.clone());
        }
        if !self.gateways.is_empty() {
            nic.gateways = Some(self.gateways.clone());
        }
        nic.device_mtu = self.device_mtu.or(nic.device_mtu);
        nic.zero_copy = self.zero_copy.or(nic.zero_copy);
        nic.dpdk_eal = self.dpdk_eal.clone().or(nic.dpdk_eal.take());
    }
}
