//! `spindrift pump dpdk`: the upper limit of a DPDK device. Every build has its options.

use anyhow::Result;
use clap::Args;

use super::OnLink;
use crate::pump::{Common, PumpCommand};

/// Raw pump over a DPDK device
#[derive(Args, Debug)]
pub(super) struct DpdkPumpArgs {
    #[command(flatten)]
    pub(super) common: Common,
    /// Device: a PCI address, or a virtual device with its arguments, as in `--port dpdk:DEVICE`
    #[arg(long, value_name = "DEVICE", value_parser = device)]
    pub(super) local: String,
    /// Address of this side, with the prefix length of its link [default: /64, or /24 for IPv4]
    #[arg(long, value_name = "ADDR[/LEN]")]
    pub(super) device_address: OnLink,
    /// Longest IP packet [default: that of the interface behind the device, else 1500]
    #[arg(long, value_name = "BYTES")]
    pub(super) device_mtu: Option<u32>,
    /// Arguments of the EAL, such as "--lcores 0@2 --iova-mode=va"
    #[arg(long, value_name = "ARGS", allow_hyphen_values = true)]
    pub(super) dpdk_eal: Option<String>,
    /// Ethernet address of the receiver, such as 02:00:00:00:00:02 [default: found by ARP or neighbour discovery]
    #[arg(long, value_name = "MAC", value_parser = ethernet, requires = "remote")]
    pub(super) peer_mac: Option<[u8; 6]>,
}

impl PumpCommand for DpdkPumpArgs {
    fn common(&self) -> &Common {
        &self.common
    }

    fn run(&self) -> Result<()> {
        super::built::pump(self)
    }
}

fn device(text: &str) -> Result<String, String> {
    super::check_place(text).map(|()| text.to_owned())
}

fn ethernet(text: &str) -> Result<[u8; 6], String> {
    let byte = |part: &str| {
        Some(part).filter(|part| part.len() == 2).and_then(|part| u8::from_str_radix(part, 16).ok())
    };
    let bytes: Option<Vec<u8>> = text.split(':').map(byte).collect();
    let mac: Option<[u8; 6]> = bytes.and_then(|bytes| bytes.try_into().ok());
    mac.filter(|mac| mac[0] & 1 == 0)
        .ok_or_else(|| format!("`{text}` is not a unicast Ethernet address, as in 02:00:00:00:00:02"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ethernet_addresses_are_six_bytes_of_a_host() {
        assert_eq!(ethernet("02:00:00:00:aB:ff"), Ok([2, 0, 0, 0, 0xab, 0xff]));
        for bad in [
            "",
            "02:00:00:00:00",
            "02:00:00:00:00:00:00",
            "2:0:0:0:0:1",
            "33:33:00:00:00:01",
            "02-00-00-00-00-01",
        ] {
            assert!(ethernet(bad).is_err_and(|why| why.contains(&format!("`{bad}`"))), "{bad}");
        }
    }
}
