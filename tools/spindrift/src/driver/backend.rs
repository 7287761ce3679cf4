//! Operations of a driver that use the machine.

use std::net::IpAddr;

use anyhow::{Error, Result, bail};
use spindrift_pmd::PortCaps;
use spindrift_pmd::route::LocalAddress;

use crate::bench::nic::Nic;
use crate::bench::options::Settings;
use crate::place::{Local, Place, resolve};

/// Attempts to find a UDP port that is free at all addresses.
pub(super) const PORT_TRIES: usize = 16;

/// Opens a driver's ports.
pub(crate) trait Backend: Sync {
    /// What the machine offers: a port for each place where one could be opened, or why it could not. `addresses` are the machine's.
    fn prospects(&self, addresses: &[LocalAddress]) -> Vec<Prospect>;

    /// Checks the values of the driver's own settings. `flags` are those that were given: an error names what the value came from.
    fn check_settings(&self, settings: &Settings, flags: &[&str]) -> Result<()> {
        let _ = (settings, flags);
        Ok(())
    }

    /// The address and the interface, or the device, of each place. `name` is what gave the places, for errors. `like` is an address that
    /// they have to do with: of several addresses, those of its family are taken.
    fn resolve(
        &self,
        settings: &Settings,
        name: &str,
        places: &[Place],
        like: Option<IpAddr>,
    ) -> Result<Vec<Local>> {
        let _ = settings;
        resolve(name, places, like)
    }

    /// Tells what is in the way of opening ports, before a peer is there. `local`: `None` if the peer's address will decide.
    fn check(&self, settings: &Settings, local: Option<&[Local]>) -> Result<()> {
        let _ = (settings, local);
        Ok(())
    }

    /// Opens ports for every lane at these places, all with the same UDP port; with any that is free if it is 0.
    fn open(&self, settings: &Settings, local: &[Local], port: u16) -> Result<Nic> {
        let _ = (settings, local, port);
        bail!("these ports do not reach other hosts")
    }

    /// Opens both sides of a run within this process.
    fn open_pair(&self, settings: &Settings, planes: usize) -> Result<[Nic; 2]> {
        let _ = (settings, planes);
        bail!("these ports reach other hosts only")
    }

    /// What the devices of open ports count beside the ports: each device's name, and its counters by the names of its own driver.
    fn device_counters(&self) -> Vec<(String, Vec<(String, u64)>)> {
        Vec::new()
    }

    /// Whether opening ports failed because another socket has the UDP port.
    fn is_in_use(&self, error: &Error) -> bool {
        let _ = error;
        false
    }
}

/// A port that could be opened.
pub(crate) struct Prospect {
    /// Of the local address, in the order in which the machine's are listed.
    pub(crate) index: Option<usize>,
    /// The interface or the device.
    pub(crate) place: String,
    pub(crate) address: Option<IpAddr>,
    pub(crate) caps: Result<PortCaps, String>,
}

impl Prospect {
    /// What ports are at each local address. `look` returns `None` where there can be none.
    pub(super) fn of_addresses(
        addresses: &[LocalAddress],
        look: impl Fn(&LocalAddress) -> Option<Result<PortCaps, String>>,
    ) -> Vec<Self> {
        let one = |(index, local): (usize, &LocalAddress)| {
            let (place, address) = (local.interface.name.clone(), Some(local.ip));
            Some(Self { index: Some(index), place, address, caps: look(local)? })
        };
        addresses.iter().enumerate().filter_map(one).collect()
    }
}

/// Opens ports, several times if any UDP port will do and the one that was chosen turns out to be in use.
pub(super) fn again_if_any<T>(
    port: u16,
    is_in_use: impl Fn(&Error) -> bool,
    mut open: impl FnMut() -> Result<T>,
) -> Result<T> {
    let mut tries = if port == 0 { PORT_TRIES } else { 1 };
    loop {
        tries -= 1;
        match open() {
            Err(error) if tries > 0 && is_in_use(&error) => {}
            done => return done,
        }
    }
}
