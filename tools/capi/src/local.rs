//! Registered memory that this library itself reads and writes, for datagrams.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use spindrift::memory::{Access, Region};
use spindrift::work::Sge;

/// The regions of a device, by local key.
#[derive(Debug, Default)]
pub(crate) struct LocalMemory {
    regions: RwLock<BTreeMap<u32, Registered>>,
}

#[derive(Clone, Debug)]
pub(crate) struct Registered {
    pub(crate) region: Arc<Region>,
    pub(crate) access: Access,
    /// The address of its protection domain.
    pub(crate) pd: usize,
}

/// An element of a list names memory that is not registered for this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotPermitted;

impl LocalMemory {
    pub(crate) fn add(&self, lkey: u32, registered: Registered) {
        self.regions.write().unwrap_or_else(PoisonError::into_inner).insert(lkey, registered);
    }

    /// Nobody reads or writes the region after this.
    pub(crate) fn remove(&self, lkey: u32) -> Option<Registered> {
        self.regions.write().unwrap_or_else(PoisonError::into_inner).remove(&lkey)
    }

    /// Calls `act` with the region of each element that has bytes, and the element's place in it, while none of them can end.
    fn with(
        &self,
        pd: usize,
        list: &[Sge],
        needs: Access,
        mut act: impl FnMut(&Region, usize, usize) -> Result<(), NotPermitted>,
    ) -> Result<(), NotPermitted> {
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        list.iter().filter(|sge| sge.len > 0).try_for_each(|sge| {
            let found = regions.get(&sge.lkey).filter(|found| found.pd == pd && found.access.contains(needs));
            let region = &found.ok_or(NotPermitted)?.region;
            let offset = region.offset_of(sge.addr, sge.len.into()).map_err(|_| NotPermitted)?;
            act(region, offset, sge.len as usize)
        })
    }

    /// Appends the bytes of a list.
    ///
    /// # Errors
    /// An element that may not be read. What was appended before stays.
    pub(crate) fn gather(&self, pd: usize, list: &[Sge], to: &mut Vec<u8>) -> Result<(), NotPermitted> {
        self.with(pd, list, Access::LOCAL_READ, |region, offset, len| {
            let from = to.len();
            to.resize(from + len, 0);
            let room = to.get_mut(from..).unwrap_or_default();
            region.read_at(offset, room).map_err(|_| NotPermitted)
        })
    }

    /// Places bytes into a list. The caller has seen that they fit.
    ///
    /// # Errors
    /// An element that may not be written. No byte was placed.
    pub(crate) fn scatter(&self, pd: usize, list: &[Sge], bytes: &[u8]) -> Result<(), NotPermitted> {
        self.with(pd, list, Access::LOCAL_WRITE, |_, _, _| Ok(()))?;
        let mut left = bytes;
        self.with(pd, list, Access::LOCAL_WRITE, |region, offset, len| {
            let (now, later) = left.split_at(len.min(left.len()));
            left = later;
            region.write_at(offset, now).map_err(|_| NotPermitted)
        })
    }
}
