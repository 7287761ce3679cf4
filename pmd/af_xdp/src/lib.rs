//! [`Port`](spindrift_pmd::Port)s over `AF_XDP` sockets: frames go from user space to a NIC's driver and back, past the kernel's network
//! stack.
//!
//! An XDP program of ours takes Spindrift's packets out of what arrives, for the sockets. Everything else on the interface goes on to the
//! kernel: its own addresses, SSH, ping, neighbour discovery. The program is on the interface as long as the ports are open, and leaves with
//! their process, however that ends.
//!
//! ```no_run
//! use spindrift_af_xdp::{AfXdpConfig, AfXdpPort};
//!
//! # fn main() -> Result<(), spindrift_af_xdp::AfXdpError> {
//! let config = AfXdpConfig { interface: "eth1".to_owned(), ..AfXdpConfig::default() };
//! let port = AfXdpPort::open(&config)?;
//! # Ok(())
//! # }
//! ```
//!
//! It needs the capabilities `CAP_NET_ADMIN`, `CAP_NET_RAW` and `CAP_BPF`, which root has. Drivers that cannot run XDP programs are served
//! by the kernel's generic mode, those that cannot share their buffers by copies; [`PortCaps::notes`](spindrift_pmd::PortCaps::notes)
//! tell. Frames longer than 3840 bytes take several buffers (Linux 6.6 and later).

mod config;
mod features;
mod filter;
mod open;
mod port;
mod prospect;
pub mod pump;
mod queue;

pub use config::{AfXdpConfig, AfXdpError, XdpMode};
pub use port::AfXdpPort;
