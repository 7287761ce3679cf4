//! Connections by address and port: what `librdmacm.so.1` does, in the same file as verbs.
//!
//! | Module | What it holds |
//! |---|---|
//! | `abi` | what `rdma/rdma_cma.h` declares |
//! | `message`, `conversation` | what two processes tell each other, and in which order |
//! | `service` | the thread that has the sockets |
//! | `id`, `channel` | the objects of C, and their events |
//! | `connect` | to ask, to accept, to refuse, to disconnect |
//! | `queue` | queue pairs of an object |
//! | `address` | addresses of C and the devices that have them |
//! | `info` | names, options, and what is not supported |

pub(crate) mod abi;
mod address;
pub(crate) mod channel;
pub(crate) mod connect;
mod conversation;
pub(crate) mod id;
pub(crate) mod info;
pub(crate) mod message;
pub(crate) mod queue;
mod service;
#[cfg(test)]
mod tests;

use core::ffi::c_int;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use crate::abi::{ibv_context, ibv_pd};
use crate::context::{ContextBox, ibv_open_device};
use crate::device::{self, DeviceBox};
use crate::error::last_code;
use crate::pd::ibv_alloc_pd;
use service::Service;

/// The service of this process. That of a parent is of no use to the child of a fork.
fn service() -> Result<Arc<Service>, c_int> {
    static SERVICE: Mutex<Option<Arc<Service>>> = Mutex::new(None);
    let mut service = SERVICE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(service) = service.as_ref().filter(|service| !service.is_elsewhere()) {
        return Ok(Arc::clone(service));
    }
    Ok(Arc::clone(service.insert(Service::start()?)))
}

/// A device that is open for all objects of this process, and its protection domain for those that have no other.
#[derive(Clone, Copy)]
pub(crate) struct Opened {
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    pid: u32,
}

// SAFETY: both objects may be used by any thread, and are never freed.
unsafe impl Send for Opened {}

impl Opened {
    fn address(&self) -> Result<IpAddr, c_int> {
        // SAFETY: it stays open.
        let nic = &unsafe { ContextBox::of(self.context) }.nic;
        nic.planes.first().copied().ok_or(libc::ENODEV)
    }

    /// The code of its MTU.
    fn mtu(&self) -> u8 {
        // SAFETY: as above.
        unsafe { ContextBox::of(self.context) }.nic.mtu_code() as u8
    }
}

/// Opens a device, once.
fn open(device: &DeviceBox) -> Result<Opened, c_int> {
    static OPENED: Mutex<Vec<(usize, Opened)>> = Mutex::new(Vec::new());
    let mut all = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    let pid = std::process::id();
    if let Some((_, opened)) = all.iter().find(|(index, opened)| *index == device.index && opened.pid == pid)
    {
        return Ok(*opened);
    }
    // SAFETY: a device of this library.
    let context = unsafe { ibv_open_device(device.as_c()) };
    if context.is_null() {
        return Err(last_code());
    }
    // SAFETY: a context that was just opened.
    let pd = unsafe { ibv_alloc_pd(context) };
    if pd.is_null() {
        return Err(last_code());
    }
    let opened = Opened { context, pd, pid };
    all.push((device.index, opened));
    Ok(opened)
}

/// The device that has this address. What comes over the loopback interface is for the first one, if no plane has the address.
fn device_of(address: IpAddr) -> Option<&'static DeviceBox> {
    let has = |device: &&DeviceBox| device.settings.planes.contains(&address);
    let all = device::all();
    all.iter().find(has).or_else(|| all.first().filter(|_| address.is_loopback()))
}
