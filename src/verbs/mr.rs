//! Memory regions: registered local memory, and the description of it that peers get.

use std::sync::Arc;

use crate::memory::{Access, MrKey, Region, RegionError};
use crate::work::{RemoteAddr, Sge};

use super::error::VerbsError;
use super::negotiate::RemoteMr;
use super::pd::Pd;

/// Registered memory.
///
/// Work requests name parts of it with [`Mr::sge`], peers with [`Mr::remote`]. Each kind of access needs its own right,
/// which is granted at registration:
///
/// | Right | Grants |
/// |---|---|
/// | none ([`Access::LOCAL_READ`]) | sources of this side's sends and writes |
/// | [`Access::LOCAL_WRITE`] | receive buffers of this side, and where its reads and the results of its atomics go |
/// | [`Access::REMOTE_WRITE`] | writes by peers |
/// | [`Access::REMOTE_READ`] | reads by peers |
/// | [`Access::REMOTE_ATOMIC`] | atomics by peers: [counters](spindrift_pmd::memory#counters) of 8 bytes |
/// | [`Access::REMOTE_INVALIDATE`] | the end of the registration by a peer |
///
/// When it is dropped, its keys are invalid at once, and the memory is kept until no work request uses it, and no
/// response to a peer's read. [`Mr::deregister`] ends it only if nothing uses it.
///
/// See [`memory`](crate::memory) for the rules that the application must follow while the network uses the same bytes.
#[derive(Debug)]
pub struct Mr {
    pd: Pd,
    region: Arc<Region>,
    key: MrKey,
    registered: bool,
}

impl Pd {
    /// Allocates and registers `len` zeroed bytes, and grants the rights given. Any combination of rights is permitted:
    /// unlike in libibverbs, rights of peers need no [`Access::LOCAL_WRITE`].
    ///
    /// # Errors
    /// [`VerbsError::Memory`] if `len` is zero, or if memory or keys run out.
    pub fn register(&self, len: usize, access: Access) -> Result<Mr, VerbsError> {
        self.register_region(Region::alloc(len)?, access)
    }

    /// Registers the bytes of a vector. The registration owns them from then on.
    ///
    /// # Errors
    /// As [`Pd::register`].
    pub fn register_vec(&self, bytes: Vec<u8>, access: Access) -> Result<Mr, VerbsError> {
        self.register_region(Region::from_vec(bytes)?, access)
    }

    /// Registers a region that the caller made, such as one over mapped memory
    /// ([`Region::from_raw`]). A region may be registered more than once.
    ///
    /// # Errors
    /// [`VerbsError::Memory`] if keys run out, [`VerbsError::Control`] if the lane has failed.
    pub fn register_region(&self, region: Arc<Region>, access: Access) -> Result<Mr, VerbsError> {
        Mr::create(self, region, access)
    }
}

impl Mr {
    pub(super) fn create(pd: &Pd, region: Arc<Region>, access: Access) -> Result<Self, VerbsError> {
        pd.context().check_alive()?;
        let key = pd.context().memory().register(pd.id(), Arc::clone(&region), access)?;
        Ok(Self { pd: pd.clone(), region, key, registered: true })
    }

    /// Address of the first byte, for local work requests and for peers.
    pub fn addr(&self) -> u64 {
        self.region.iova()
    }

    /// Length in bytes, at least 1.
    #[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> usize {
        self.region.len()
    }

    /// The key for local work requests.
    pub fn lkey(&self) -> u32 {
        self.key.lkey
    }

    /// The key for peers, as far as rights are granted to them.
    pub fn rkey(&self) -> u32 {
        self.key.rkey
    }

    /// The description that a peer needs to access it.
    pub fn remote(&self) -> RemoteMr {
        RemoteMr { addr: self.addr(), rkey: self.rkey(), len: self.len() as u64 }
    }

    /// `len` bytes from `offset`, as the local side of a work request.
    ///
    /// # Errors
    /// [`RegionError::OutOfBounds`].
    pub fn sge(&self, offset: usize, len: u32) -> Result<Sge, RegionError> {
        let addr = inside(&self.remote(), offset as u64, u64::from(len))?;
        Ok(Sge { addr, len, lkey: self.lkey() })
    }

    /// The bytes, with bounds-checked access.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Copies `bytes` to `offset` bytes from the start.
    ///
    /// # Errors
    /// [`RegionError::OutOfBounds`], and nothing is written.
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), RegionError> {
        self.region.write_at(offset, bytes)
    }

    /// Copies `out.len()` bytes from `offset` bytes after the start.
    ///
    /// # Errors
    /// [`RegionError::OutOfBounds`], and `out` is left as it was.
    pub fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<(), RegionError> {
        self.region.read_at(offset, out)
    }

    /// Ends the registration: the key is invalid from here on, and the memory is freed (if nothing else owns it).
    ///
    /// # Errors
    /// [`MemoryError::Busy`](crate::memory::MemoryError::Busy) while work requests use it, or a
    /// response to a peer that has not been acknowledged (with `copy_responses`: that has not been sent in full).
    /// [`MemoryError::UnknownKey`](crate::memory::MemoryError::UnknownKey) if a peer has ended it before
    /// ([`Access::REMOTE_INVALIDATE`]). The error returns the registration, unchanged.
    pub fn deregister(mut self) -> Result<(), (Self, VerbsError)> {
        match self.pd.context().deregister(self.key.rkey) {
            Ok(()) => {
                self.registered = false;
                Ok(())
            }
            Err(error) => Err((self, error)),
        }
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        if self.registered {
            self.pd.context().invalidate(self.key.rkey);
        }
    }
}

impl RemoteMr {
    /// `len` bytes from `offset`, as the remote side of a work request.
    ///
    /// # Errors
    /// [`RegionError::OutOfBounds`].
    pub fn at(&self, offset: u64, len: u64) -> Result<RemoteAddr, RegionError> {
        Ok(RemoteAddr { addr: inside(self, offset, len)?, rkey: self.rkey })
    }
}

fn inside(region: &RemoteMr, offset: u64, len: u64) -> Result<u64, RegionError> {
    let fits = offset.checked_add(len).is_some_and(|end| end <= region.len);
    match region.addr.checked_add(offset) {
        Some(addr) if fits => Ok(addr),
        addr => Err(RegionError::OutOfBounds {
            addr: addr.unwrap_or(u64::MAX),
            len,
            region_addr: region.addr,
            region_len: region.len,
        }),
    }
}
