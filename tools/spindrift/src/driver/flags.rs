//! Flags of drivers: settings of ports that not every driver has.

use std::net::IpAddr;

use clap::Args;

use super::OnLink;
use crate::bench::source_ports::SourcePortSet;
use crate::config::{Nic, XdpModeName};

/// Flags of `write-bw` and `write-lat` that are settings of some drivers. Those that the driver in use lacks are refused by their names.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct PortFlags {
    /// UDP source ports of each plane, its paths: how many of the kernel's choice, or which, as in 50000-50031
    /// [default: 32].
    #[arg(long, value_name = "N")]
    source_ports: Option<SourcePortSet>,
    /// Who runs the XDP program of `af_xdp` ports: the driver, or the network stack, which is slower [default: auto, the driver if it
    /// can].
    #[arg(long, value_enum)]
    xdp_mode: Option<XdpModeName>,
    /// Buffers for what arrives at an `af_xdp` or `dpdk` port, for each queue: a power of two [default: 2048, for `dpdk` 1024].
    #[arg(long, value_name = "N")]
    rx_buffers: Option<u32>,
    /// The same for what it sends [default: 2048, for `dpdk` 1024].
    #[arg(long, value_name = "N")]
    tx_buffers: Option<u32>,
    /// Addresses of `dpdk` ports, one for each plane, with the length of the prefix of their link [default: /64, or /24 for IPv4].
    #[arg(long, value_name = "ADDR[/LEN]", value_delimiter = ',')]
    device_addresses: Vec<OnLink>,
    /// Routers of the links of `dpdk` ports: where packets to other networks go, and those to SRv6 carriers.
    #[arg(long, value_name = "ADDR", value_delimiter = ',')]
    gateways: Vec<IpAddr>,
    /// Longest IP packet of `dpdk` ports [default: that of the interface behind the device if there is one, else 1500].
    #[arg(long, value_name = "BYTES")]
    device_mtu: Option<u32>,
    /// Whether drivers of `dpdk` ports read longer payloads where they are, where they can [default: true for `net_memif`].
    #[arg(long, value_name = "BOOL")]
    zero_copy: Option<bool>,
    /// Arguments of DPDK's EAL, as in "--lcores 0@2 --iova-mode=va".
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
