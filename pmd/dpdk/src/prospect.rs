//! What ports would be, without opening any: the EAL need not run.

use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;

use spindrift_pmd::{ETHERNET_LEN, MacAddr, Medium, PortCaps};

use crate::open::{self, MTU_DEFAULT, STAGED};
use crate::{DpdkConfig, DpdkError, pci};

/// A PCI NIC of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nic {
    /// Its PCI address, such as `0000:3b:00.0`.
    pub address: String,
}

/// The PCI NICs of this machine, those of the kernel among them.
pub fn nics() -> Vec<Nic> {
    pci::nics(Path::new(pci::DEVICES)).into_iter().map(|address| Nic { address }).collect()
}

impl Nic {
    /// Tells what a port with the usual settings would be, as far as the kernel knows, or why DPDK cannot have the NIC.
    ///
    /// # Errors
    /// See [`DpdkError`].
    pub fn prospect(&self) -> Result<PortCaps, DpdkError> {
        pci::check(Path::new(pci::DEVICES), &self.address)?;
        Ok(PortCaps {
            name: format!("dpdk {}", self.address),
            local_ip: Ipv6Addr::UNSPECIFIED.into(),
            mac: MacAddr::default(),
            max_frame: MTU_DEFAULT + ETHERNET_LEN,
            max_burst: STAGED,
            source_ports: None,
            same_path_batch: 1,
            holds_payloads: false,
            medium: Medium::Network { rate_bps: None },
            notes: vec!["the settings give it its address, and may give it a longer MTU".to_owned()],
            send_errors: Vec::new(),
        })
    }
}

impl DpdkConfig {
    /// Whether the settings fit each other, and whether DPDK has a driver for the device and can have it. What only the device knows,
    /// such as its MTU, opening tells.
    ///
    /// # Errors
    /// See [`DpdkError`].
    pub fn check(&self) -> Result<(), DpdkError> {
        open::check(self)?;
        match pci::address(&self.device) {
            Some(address) => pci::check(Path::new(pci::DEVICES), &address),
            None => open::check_driver(open::name_of(&self.device).as_str()),
        }
    }

    /// Whether an address is a neighbour's by [`local`](Self::local) and [`prefix_len`](Self::prefix_len).
    pub fn is_on_link(&self, address: IpAddr) -> bool {
        open::addresses(self, MacAddr::default()).is_on_link(address)
    }
}
