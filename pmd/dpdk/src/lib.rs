//! [`Port`](spindrift_pmd::Port)s over DPDK: frames go from user space to a device and back by a driver of DPDK, and no kernel sees them.
//!
//! Any Ethernet device of DPDK will do: a NIC that is bound to `vfio-pci`, or a virtual device such as `net_memif`. The device is the port's
//! alone, with an address of its own. The port does what a kernel would do for that address: it resolves neighbours (ARP, NDP), answers
//! those who ask for it, and answers ping. What is not on the link goes to a gateway.
//!
//! ```no_run
//! use spindrift_dpdk::{DpdkConfig, DpdkPort, Eal, EalConfig};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let config = DpdkConfig {
//!     device: "0000:3b:00.0".to_owned(),
//!     local: "fd00:1::2".parse()?,
//!     gateways: vec!["fe80::1".parse()?],
//!     mtu: Some(9000),
//!     ..DpdkConfig::default()
//! };
//! let eal = Eal::start(&EalConfig::for_devices(std::slice::from_ref(&config)))?;
//! let lanes = 2;
//! let ports = DpdkPort::open_planes(eal, &[config], lanes)?;
//! # Ok(())
//! # }
//! ```
//!
//! The EAL is started once per process and runs until the process ends. A device is closed when the last of its ports is dropped, and can
//! be opened again. Building the crate needs DPDK 22.11 or newer (`tools/setup.sh --dpdk`).

mod classify;
mod config;
mod counters;
mod eal;
mod open;
mod pci;
mod port;
mod prospect;
pub mod pump;
mod stack;
mod sys;

pub use config::{DpdkConfig, DpdkError, EalConfig};
pub use counters::{DeviceCounters, device_counters};
pub use eal::Eal;
pub use port::DpdkPort;
pub use prospect::{Nic, nics};
