//! Keys, and the memory that each of them gives access to.

use core::fmt;
use core::ops::{BitOr, BitOrAssign};
use std::sync::Arc;

use rand::Rng;
use rand::rngs::ChaCha20Rng;

use super::{MemoryError, Payload, Region};
use crate::seed::{Purpose, Seed};

/// A protection domain: queue pairs may only touch regions of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PdId(pub u32);

/// What a registration allows, besides being read as the source of this side's own work requests.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Access(u8);

impl Access {
    /// Read by this side's own work requests; nobody else may touch it.
    pub const LOCAL_READ: Self = Self(0);
    /// This side's own work requests may write (no work request of MRC does so yet).
    pub const LOCAL_WRITE: Self = Self(1);
    /// The peers of the protection domain's queue pairs may write.
    pub const REMOTE_WRITE: Self = Self(2);

    /// Whether every right of `other` is granted.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for Access {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for Access {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            0 => "LOCAL_READ",
            1 => "LOCAL_WRITE",
            2 => "REMOTE_WRITE",
            _ => "LOCAL_WRITE | REMOTE_WRITE",
        })
    }
}

/// The keys of a registration. Both are the same number, as on most NICs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MrKey {
    /// For this side's own work requests.
    pub lkey: u32,
    /// To be told to peers that shall write here.
    pub rkey: u32,
}

/// A region in use by a work request, from [`MemoryTable::pin`] to [`MemoryTable::unpin`].
///
/// The default value names no region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegionSlot(u32);

/// Bytes of a pinned region, as a packet's payload refers to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PayloadRef {
    /// The region.
    pub slot: RegionSlot,
    /// Distance from the region's first byte, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub len: u32,
}

impl PayloadRef {
    /// No bytes: for packets without a payload.
    pub const EMPTY: Self = Self { slot: RegionSlot(NO_KEY), offset: 0, len: 0 };
}

/// Never given out as a key.
const NO_KEY: u32 = 0;

/// Most regions of a table.
const MAX_REGIONS: u32 = 1 << 20;

/// Slots of a table that holds few regions.
const FIRST_SLOTS: usize = 16;

/// All registered memory of one endpoint.
///
/// All 32 bits of a key are random. Its low bits are the number of its slot: a key is drawn until one meets a
/// free slot, of which there are always at least as many as taken ones. So finding a slot costs no more than a
/// mask, and a slot's number says nothing of when or beside what it was registered.
#[derive(Debug)]
pub struct MemoryTable {
    /// As many as a power of two, or none yet.
    slots: Vec<Slot>,
    live: u32,
    max_regions: u32,
    /// Of `slots`' length.
    index_mask: u32,
    rng: ChaCha20Rng,
}

#[derive(Debug)]
struct Slot {
    /// [`NO_KEY`] if never used, the last region's key when free.
    key: u32,
    pd: PdId,
    access: Access,
    /// No new use: waits for `uses` to reach zero.
    draining: bool,
    uses: u32,
    region: Option<Arc<Region>>,
}

impl MemoryTable {
    /// An empty table for up to `max_regions` regions (at most 2^20); its keys are drawn from `seed`.
    pub fn new(seed: Seed, max_regions: u32) -> Self {
        Self {
            slots: Vec::new(),
            live: 0,
            max_regions: max_regions.clamp(1, MAX_REGIONS),
            index_mask: 0,
            rng: seed.generator(Purpose::Keys),
        }
    }

    /// Makes a region reachable under new random keys.
    ///
    /// # Errors
    /// [`MemoryError::TooMany`] when the table is full.
    pub fn register(&mut self, pd: PdId, region: Arc<Region>, access: Access) -> Result<MrKey, MemoryError> {
        if self.live >= self.max_regions {
            return Err(MemoryError::TooMany { max: self.max_regions });
        }
        if 2 * (self.live as usize + 1) > self.slots.len() {
            self.grow();
        }
        let key = self.draw_key();
        let index = self.index(key);
        if let Some(slot) = self.slots.get_mut(index) {
            *slot = Slot { key, pd, access, draining: false, uses: 0, region: Some(region) };
            self.live += 1;
        }
        Ok(MrKey { lkey: key, rkey: key })
    }

    /// Ends a registration. The memory may be reused or freed as soon as this succeeds.
    ///
    /// # Errors
    /// [`MemoryError::Busy`] while work requests use the region (nothing changes), [`MemoryError::UnknownKey`].
    pub fn deregister(&mut self, rkey: u32) -> Result<(), MemoryError> {
        let slot = self.live(rkey)?;
        if slot.uses != 0 {
            return Err(MemoryError::Busy { uses: slot.uses });
        }
        self.release(rkey);
        Ok(())
    }

    /// Ends a registration at once for anything new. Work requests that use the region go on, and the
    /// last of them releases it. An unknown key is ignored.
    pub fn invalidate(&mut self, rkey: u32) {
        let Some(slot) = self.slot_mut(rkey) else { return };
        slot.draining = true;
        if slot.uses == 0 {
            self.release(rkey);
        }
    }

    /// Copies a packet's bytes to the address it names, if it may write there.
    ///
    /// # Errors
    /// As [`MemoryTable::check_remote`]; nothing is written then.
    #[inline]
    pub fn place(&self, rkey: u32, pd: PdId, va: u64, data: &[u8]) -> Result<(), MemoryError> {
        Ok(self.remote(rkey, pd)?.write_to(va, data)?)
    }

    /// Whether a peer may write `len` bytes at `va`. A range of zero bytes must lie inside the region too.
    ///
    /// # Errors
    /// [`MemoryError::UnknownKey`], [`WrongPd`](MemoryError::WrongPd), [`NoAccess`](MemoryError::NoAccess) or
    /// [`OutOfBounds`](super::RegionError::OutOfBounds).
    #[inline]
    pub fn check_remote(&self, rkey: u32, pd: PdId, va: u64, len: u64) -> Result<(), MemoryError> {
        self.remote(rkey, pd)?.offset_of(va, len)?;
        Ok(())
    }

    /// Counts one more work request that sends from `len` bytes at `addr`.
    ///
    /// # Errors
    /// [`MemoryError::UnknownKey`], [`WrongPd`](MemoryError::WrongPd) or [`OutOfBounds`](super::RegionError::OutOfBounds).
    pub fn pin(&mut self, lkey: u32, pd: PdId, addr: u64, len: u32) -> Result<RegionSlot, MemoryError> {
        let slot = self.live(lkey)?;
        if slot.pd != pd {
            return Err(MemoryError::WrongPd { key: lkey });
        }
        slot.region.as_deref().map(|region| region.offset_of(addr, u64::from(len))).transpose()?;
        slot.uses += 1;
        Ok(RegionSlot(lkey))
    }

    /// One work request less; call it once for every [`MemoryTable::pin`].
    pub fn unpin(&mut self, pinned: RegionSlot) {
        let Some(slot) = self.slot_mut(pinned.0) else { return };
        slot.uses = slot.uses.saturating_sub(1);
        if slot.uses == 0 && slot.draining {
            self.release(pinned.0);
        }
    }

    /// Refers to `len` bytes at `addr` of a pinned region. [`Endpoint::payload`](crate::endpoint::Endpoint::payload)
    /// looks them up for a packet.
    #[inline]
    pub fn payload(&self, slot: RegionSlot, addr: u64, len: u32) -> PayloadRef {
        let offset = self.region(slot.0).map_or(0, |region| addr.wrapping_sub(region.iova()));
        PayloadRef { slot, offset, len }
    }

    /// The bytes of a packet's payload; none if the region was released or does not hold them.
    #[inline]
    pub fn bytes(&self, payload: &PayloadRef) -> Payload<'_> {
        let Some(region) = self.region(payload.slot.0) else { return Payload::EMPTY };
        let offset = usize::try_from(payload.offset).unwrap_or(usize::MAX);
        region.payload(offset, payload.len as usize).unwrap_or_default()
    }

    /// Registrations now, those that wait for their last use included.
    pub fn regions(&self) -> usize {
        self.live as usize
    }

    /// Whether the protection domain holds registrations.
    pub fn pd_in_use(&self, pd: PdId) -> bool {
        self.slots.iter().any(|slot| slot.region.is_some() && slot.pd == pd)
    }

    /// The region that a peer may write to by this key.
    #[inline]
    fn remote(&self, rkey: u32, pd: PdId) -> Result<&Region, MemoryError> {
        let unknown = MemoryError::UnknownKey { key: rkey };
        let slot = self.slot(rkey).filter(|slot| !slot.draining).ok_or(unknown)?;
        if slot.pd != pd {
            return Err(MemoryError::WrongPd { key: rkey });
        }
        if !slot.access.contains(Access::REMOTE_WRITE) {
            return Err(MemoryError::NoAccess { key: rkey, needed: Access::REMOTE_WRITE });
        }
        slot.region.as_deref().ok_or(unknown)
    }

    #[inline]
    fn region(&self, key: u32) -> Option<&Region> {
        self.slot(key)?.region.as_deref()
    }

    fn live(&mut self, key: u32) -> Result<&mut Slot, MemoryError> {
        self.slot_mut(key).filter(|slot| !slot.draining).ok_or(MemoryError::UnknownKey { key })
    }

    #[inline]
    fn slot(&self, key: u32) -> Option<&Slot> {
        let slot = self.slots.get(self.index(key))?;
        (slot.key == key && key != NO_KEY && slot.region.is_some()).then_some(slot)
    }

    fn slot_mut(&mut self, key: u32) -> Option<&mut Slot> {
        let index = self.index(key);
        let slot = self.slots.get_mut(index)?;
        (slot.key == key && key != NO_KEY && slot.region.is_some()).then_some(slot)
    }

    #[inline]
    fn index(&self, key: u32) -> usize {
        (key & self.index_mask) as usize
    }

    /// Twice the slots. Keys that met different slots before do so now, too, since one more of their bits counts.
    fn grow(&mut self) {
        let len = (2 * self.slots.len()).max(FIRST_SLOTS);
        let mut slots: Vec<_> = core::iter::repeat_with(|| Slot::EMPTY).take(len).collect();
        self.index_mask = len as u32 - 1;
        for slot in self.slots.drain(..).filter(|slot| slot.region.is_some()) {
            if let Some(place) = slots.get_mut((slot.key & self.index_mask) as usize) {
                *place = slot;
            }
        }
        self.slots = slots;
    }

    /// A random key that meets a free slot, and is not the one that this slot had before.
    fn draw_key(&mut self) -> u32 {
        loop {
            let key = self.rng.next_u32();
            let slot = self.slots.get(self.index(key));
            if key != NO_KEY && slot.is_some_and(|slot| slot.region.is_none() && slot.key != key) {
                return key;
            }
        }
    }

    /// Drops the region but leaves the key, so that the slot's next key differs from it.
    fn release(&mut self, key: u32) {
        if let Some(slot) = self.slot_mut(key) {
            slot.region = None;
            self.live -= 1;
        }
    }
}

impl Slot {
    const EMPTY: Self =
        Self { key: NO_KEY, pd: PdId(0), access: Access::LOCAL_READ, draining: false, uses: 0, region: None };
}
