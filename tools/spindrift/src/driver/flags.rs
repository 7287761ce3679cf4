//! Flags of drivers: settings of ports that not every driver has.

use clap::Args;

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
    /// Buffers of 4 KiB for what arrives at an `af_xdp` port, for each queue: a power of two [default: 2048].
    #[arg(long, value_name = "N")]
    rx_buffers: Option<u32>,
    /// The same for what it sends [default: 2048].
    #[arg(long, value_name = "N")]
    tx_buffers: Option<u32>,
}

impl PortFlags {
    /// Those that were given.
    pub(crate) fn given(&self) -> impl Iterator<Item = &'static str> {
        let all = [
            ("--source-ports", self.source_ports.is_some()),
            ("--xdp-mode", self.xdp_mode.is_some()),
            ("--rx-buffers", self.rx_buffers.is_some()),
            ("--tx-buffers", self.tx_buffers.is_some()),
        ];
        all.into_iter().filter(|(_, given)| *given).map(|(flag, _)| flag)
    }

    /// Puts them over what the file says.
    pub(crate) fn put(&self, nic: &mut Nic) {
        nic.source_ports = self.source_ports.or(nic.source_ports);
        nic.xdp_mode = self.xdp_mode.or(nic.xdp_mode);
        nic.rx_buffers = self.rx_buffers.or(nic.rx_buffers);
        nic.tx_buffers = self.tx_buffers.or(nic.tx_buffers);
    }
}
