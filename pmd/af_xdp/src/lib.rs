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

use spindrift_pmd::PortCaps;

/// How ports are opened.
impl AfXdpPort {
    /// Opens a port for one lane.
    ///
    /// # Errors
    /// See [`AfXdpError`].
    pub fn open(config: &AfXdpConfig) -> Result<Self, AfXdpError> {
        let ports = open::open(std::slice::from_ref(config), 1)?.into_iter().flatten().next();
        ports.ok_or_else(|| AfXdpError::Lanes { interface: config.interface.clone(), lanes: 0, queues: 0 })
    }

    /// Opens the planes of a NIC for several lanes: for each interface one port per lane. The queues of an interface are dealt out
    /// to the lanes, so that a packet may arrive at another lane than its own. All ports of a lane have their buffers in one UMEM, whose
    /// rings are as large as the largest of these settings.
    ///
    /// # Errors
    /// See [`AfXdpError`].
    pub fn open_planes(configs: &[AfXdpConfig], lanes: usize) -> Result<Vec<Vec<Self>>, AfXdpError> {
        open::open(configs, lanes)
    }

    /// Tells what ports with these settings would be for so many lanes, or why they cannot be opened, without opening any: the caller
    /// needs the same permissions, and nothing changes at the interface, which may lose its link for a while when a program is put on
    /// it. Whether a UDP port or a queue is in use only opening tells.
    ///
    /// # Errors
    /// See [`AfXdpError`].
    pub fn prospect(config: &AfXdpConfig, lanes: usize) -> Result<PortCaps, AfXdpError> {
        prospect::prospect(config, lanes)
    }
}
