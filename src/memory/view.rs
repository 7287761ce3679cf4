//! One lane's copy of the registered memory.

use core::fmt;
use std::sync::Arc;

use super::keys::KeyTable;
use super::space::{MemorySpace, Registration};
use super::{Access, AtomicOp, MemoryError, Payload, PayloadRef, PdId, Region, RegionSlot, Room};

/// One lane's view of a [`MemorySpace`]. Lookups need no lock, since no other thread has it.
pub struct MemoryView {
    space: MemorySpace,
    /// The version of the space that this view shows.
    seen: u64,
    /// Regions that peers may access, by rkey.
    targets: KeyTable<Target>,
    /// Indices of `sources` by lkey.
    lkeys: KeyTable<u32>,
    sources: Vec<Source>,
    /// Indices of `sources` that name no region.
    free: Vec<u32>,
    /// Indices of `sources` without a key that are still in use.
    draining: Vec<u32>,
}

/// A registration, as the packets of peers refer to it.
pub(crate) struct Target {
    pd: PdId,
    access: Access,
    lkey: u32,
    /// Index of `sources`.
    index: u32,
    region: Arc<Region>,
}

impl Target {
    /// The registration, if it grants the peers of this domain the right that an access needs.
    #[inline]
    fn open(known: Option<&Self>, rkey: u32, pd: PdId, needed: Access) -> Result<&Self, MemoryError> {
        let target = known.ok_or(MemoryError::UnknownKey { key: rkey })?;
        if target.pd != pd {
            return Err(MemoryError::WrongPd { key: rkey });
        }
        if !target.access.contains(needed) {
            return Err(MemoryError::NoAccess { key: rkey, needed });
        }
        Ok(target)
    }

    /// The `len` bytes at `va`, if this key grants a peer the right that an access to them needs.
    #[inline]
    pub(crate) fn room(
        known: Option<&Self>,
        rkey: u32,
        pd: PdId,
        va: u64,
        len: usize,
        needed: Access,
    ) -> Result<Room<'_>, MemoryError> {
        Ok(Self::open(known, rkey, pd, needed)?.region.room(va, len)?)
    }
}

/// A region that is in use by work requests, or by responses to a peer.
struct Source {
    region: Option<Arc<Region>>,
    pd: PdId,
    access: Access,
    lkey: u32,
    uses: u32,
    ended: bool,
    /// Number of times that this place was given to a region, to tell its pins from earlier ones.
    turn: u32,
}

impl MemoryView {
    pub(super) fn new(space: MemorySpace) -> Self {
        let mut view = Self {
            space,
            seen: 0,
            targets: KeyTable::new(),
            lkeys: KeyTable::new(),
            sources: Vec::new(),
            free: Vec::new(),
            draining: Vec::new(),
        };
        view.sync();
        view
    }

    /// The space it shows.
    pub const fn space(&self) -> &MemorySpace {
        &self.space
    }

    /// Takes in registrations and ends of registrations since the last call. Without a change it costs one load.
    #[inline]
    pub fn sync(&mut self) {
        if self.space.version() != self.seen {
            self.catch_up();
        }
    }

    #[cold]
    fn catch_up(&mut self) {
        let space = self.space.clone();
        // Regions whose last handle was here are freed after the lock.
        let mut released = Vec::new();
        let state = space.lock();
        let (targets, lkeys) = state.slots();
        self.targets.reserve(targets);
        self.lkeys.reserve(lkeys);
        if let Some(changes) = space.changes_since(&state, self.seen) {
            for change in changes {
                match state.live(change.rkey, change.lkey) {
                    Some(live) => self.add(change.rkey, live),
                    // It has ended, with this change or a later one.
                    None => released.extend(self.end(change.rkey, change.lkey)),
                }
            }
        } else {
            let gone = |(rkey, target): (u32, &Target)| {
                state.live(rkey, target.lkey).is_none().then_some((rkey, target.lkey))
            };
            let gone: Vec<_> = self.targets.iter().filter_map(gone).collect();
            for (rkey, lkey) in gone {
                released.extend(self.end(rkey, lkey));
            }
            for (rkey, live) in state.all_live() {
                self.add(rkey, live);
            }
        }
        self.seen = space.version();
        drop(state);
    }

    fn add(&mut self, rkey: u32, live: &Registration) {
        if self.targets.get(rkey).is_some() {
            return;
        }
        let Registration { lkey, pd, access, ref region, .. } = *live;
        let index = self.free.pop().unwrap_or(self.sources.len() as u32);
        self.targets.insert(rkey, Target { pd, access, lkey, index, region: Arc::clone(region) });
        let turn = self.sources.get(index as usize).map_or(0, |before| before.turn.wrapping_add(1));
        let region = Some(Arc::clone(region));
        let source = Source { region, pd, access, lkey, uses: 0, ended: false, turn };
        match self.sources.get_mut(index as usize) {
            Some(place) => *place = source,
            None => self.sources.push(source),
        }
        self.lkeys.insert(lkey, index);
    }

    /// Forgets both keys, and returns the region if nothing uses it.
    fn end(&mut self, rkey: u32, lkey: u32) -> Option<Arc<Region>> {
        self.targets.get(rkey).filter(|target| target.lkey == lkey)?;
        self.targets.remove(rkey);
        let index = self.lkeys.remove(lkey)?;
        let source = self.sources.get_mut(index as usize)?;
        source.ended = true;
        if source.uses == 0 {
            return self.release(index);
        }
        self.draining.push(index);
        None
    }

    fn release(&mut self, index: u32) -> Option<Arc<Region>> {
        self.free.push(index);
        self.sources.get_mut(index as usize)?.region.take()
    }

    /// Copies a packet's bytes to the address it names, if it may write there. An unknown key is looked for among
    /// recent changes.
    ///
    /// # Errors
    /// As [`MemoryView::check_remote`]; nothing is written then.
    #[inline]
    pub fn place(&mut self, rkey: u32, pd: PdId, va: u64, data: &[u8]) -> Result<(), MemoryError> {
        let target = self.target_or_new(rkey);
        Target::room(target, rkey, pd, va, data.len(), Access::REMOTE_WRITE)?.fill(data);
        Ok(())
    }

    /// The registration behind a peer's key, as of the last sync.
    #[inline]
    pub(crate) fn target(&self, rkey: u32) -> Option<&Target> {
        self.targets.get(rkey)
    }

    /// The same for an unknown key, after a sync.
    #[cold]
    pub(crate) fn new_target(&mut self, rkey: u32) -> Option<&Target> {
        self.sync();
        self.targets.get(rkey)
    }

    /// The registration behind a peer's key, after a sync if it is unknown.
    #[inline]
    fn target_or_new(&mut self, rkey: u32) -> Option<&Target> {
        if self.target(rkey).is_none() {
            return self.new_target(rkey);
        }
        self.target(rkey)
    }

    /// Whether a peer has the right that an access needs to `len` bytes at `va`. A range of zero bytes must lie inside
    /// the region too.
    ///
    /// # Errors
    /// [`MemoryError::UnknownKey`], [`WrongPd`](MemoryError::WrongPd), [`NoAccess`](MemoryError::NoAccess) or
    /// [`OutOfBounds`](super::RegionError::OutOfBounds), checked in this order.
    #[inline]
    pub fn check_remote(
        &self,
        rkey: u32,
        pd: PdId,
        va: u64,
        len: u64,
        needed: Access,
    ) -> Result<(), MemoryError> {
        Target::open(self.targets.get(rkey), rkey, pd, needed)?.region.offset_of(va, len)?;
        Ok(())
    }

    /// Counts one more work request that sends from `len` bytes at `addr`, and returns their location. An unknown key
    /// is looked for among recent changes.
    ///
    /// # Errors
    /// [`MemoryError::UnknownKey`], [`WrongPd`](MemoryError::WrongPd) or [`OutOfBounds`](super::RegionError::OutOfBounds).
    #[inline]
    pub fn pin(&mut self, lkey: u32, pd: PdId, addr: u64, len: u32) -> Result<PayloadRef, MemoryError> {
        self.pin_local(lkey, pd, addr, len, Access::LOCAL_READ)
    }

    /// Counts one more work request that uses `len` bytes at `addr`, which needs a right, and returns their location.
    /// Receive buffers, and the targets of reads and of atomics' results, need [`Access::LOCAL_WRITE`].
    ///
    /// # Errors
    /// As [`MemoryView::pin`]; [`NoAccess`](MemoryError::NoAccess) if the right is missing.
    #[inline]
    pub fn pin_local(
        &mut self,
        lkey: u32,
        pd: PdId,
        addr: u64,
        len: u32,
        needed: Access,
    ) -> Result<PayloadRef, MemoryError> {
        let unknown = MemoryError::UnknownKey { key: lkey };
        let &index = match self.lkeys.get(lkey) {
            None => {
                self.sync();
                self.lkeys.get(lkey).ok_or(unknown)?
            }
            Some(known) => known,
        };
        let source = self.sources.get_mut(index as usize).ok_or(unknown)?;
        if source.pd != pd {
            return Err(MemoryError::WrongPd { key: lkey });
        }
        if !source.access.contains(needed) {
            return Err(MemoryError::NoAccess { key: lkey, needed });
        }
        let offset = source.region.as_ref().ok_or(unknown)?.offset_of(addr, u64::from(len))? as u64;
        source.uses += 1;
        Ok(PayloadRef { slot: RegionSlot { index, turn: source.turn }, offset, len })
    }

    /// Counts one more use of `len` bytes at `va` on behalf of a peer, and returns their location. The region is kept
    /// until [`MemoryView::unpin`], so that a response to a read can be sent from it in several packets: a
    /// deregistration meanwhile is refused as [`MemoryError::Busy`]. An unknown key is looked for among recent changes.
    ///
    /// # Errors
    /// As [`MemoryView::check_remote`]; nothing is counted then.
    pub fn pin_remote(
        &mut self,
        rkey: u32,
        pd: PdId,
        va: u64,
        len: u32,
        needed: Access,
    ) -> Result<PayloadRef, MemoryError> {
        let target = Target::open(self.target_or_new(rkey), rkey, pd, needed)?;
        let (index, offset) = (target.index, target.region.offset_of(va, u64::from(len))? as u64);
        let unknown = MemoryError::UnknownKey { key: rkey };
        let source = self.sources.get_mut(index as usize).ok_or(unknown)?;
        source.uses += 1;
        Ok(PayloadRef { slot: RegionSlot { index, turn: source.turn }, offset, len })
    }

    /// Room for `len` bytes that begin `from` bytes after the start of a pinned range. The range was pinned with the
    /// right to write to it. `None` if the region was released, or if the range does not hold that many bytes.
    #[inline]
    pub fn room(&self, place: &PayloadRef, from: u32, len: u32) -> Option<Room<'_>> {
        if from > place.len || len > place.len - from {
            return None;
        }
        let offset = usize::try_from(place.offset.checked_add(u64::from(from))?).ok()?;
        self.source(place.slot)?.room_at(offset, len as usize).ok()
    }

    /// Room for all of a pinned range, in the same way.
    #[inline]
    pub(crate) fn room_of(&self, place: &PayloadRef) -> Option<Room<'_>> {
        let offset = usize::try_from(place.offset).ok()?;
        self.source(place.slot)?.room_at(offset, place.len as usize).ok()
    }

    /// Changes the 8 bytes at `va` on behalf of a peer, which needs [`Access::REMOTE_ATOMIC`], and returns their value
    /// before. They are a number in the byte order of this host, and change as [`Region::fetch_add`] describes. An
    /// unknown key is looked for among recent changes.
    ///
    /// # Errors
    /// As [`MemoryView::check_remote`]; [`Misaligned`](MemoryError::Misaligned) if `va` is not a multiple of 8, and
    /// [`RegionError::Misaligned`](super::RegionError::Misaligned) if the bytes are not aligned in this process.
    /// Nothing is changed then.
    pub fn atomic(&mut self, rkey: u32, pd: PdId, va: u64, op: AtomicOp) -> Result<u64, MemoryError> {
        let target = Target::open(self.target_or_new(rkey), rkey, pd, Access::REMOTE_ATOMIC)?;
        let offset = target.region.offset_of(va, AtomicOp::LEN)?;
        if !va.is_multiple_of(AtomicOp::LEN) {
            return Err(MemoryError::Misaligned { va });
        }
        Ok(match op {
            AtomicOp::FetchAdd(add) => target.region.fetch_add(offset, add)?,
            AtomicOp::CompareSwap { compare, swap } => target.region.compare_swap(offset, compare, swap)?,
        })
    }

    /// Ends a registration on behalf of a peer, which needs [`Access::REMOTE_INVALIDATE`]. Both keys are invalid in
    /// this view at once, and in others as soon as they [sync](MemoryView::sync). Work requests and responses that use
    /// the region continue, and the last of them releases it.
    ///
    /// # Errors
    /// [`MemoryError::UnknownKey`], also if the registration has ended on another lane; [`MemoryError::WrongPd`] or
    /// [`MemoryError::NoAccess`], and the registration continues.
    pub fn invalidate_remote(&mut self, rkey: u32, pd: PdId) -> Result<(), MemoryError> {
        self.sync();
        Target::open(self.targets.get(rkey), rkey, pd, Access::REMOTE_INVALIDATE)?;
        self.space.invalidate(rkey);
        self.sync();
        Ok(())
    }

    /// Whether a peer may end this registration.
    ///
    /// # Errors
    /// As [`MemoryView::invalidate_remote`].
    pub(crate) fn may_invalidate(&mut self, rkey: u32, pd: PdId) -> Result<(), MemoryError> {
        self.sync();
        Target::open(self.targets.get(rkey), rkey, pd, Access::REMOTE_INVALIDATE)?;
        Ok(())
    }

    /// Counts one use less; call it once for every [`MemoryView::pin`], [`MemoryView::pin_local`] and
    /// [`MemoryView::pin_remote`], with the slot that it returned.
    #[inline]
    pub fn unpin(&mut self, pinned: RegionSlot) {
        let Some(source) = self.sources.get_mut(pinned.index as usize) else { return };
        if source.turn != pinned.turn || source.uses == 0 {
            return;
        }
        source.uses -= 1;
        if source.uses == 0 && source.ended {
            self.drained(pinned.index);
        }
    }

    /// The last use of a registration that has ended is over.
    #[cold]
    fn drained(&mut self, drained: u32) {
        self.draining.retain(|&index| index != drained);
        self.release(drained);
    }

    /// Uses of the region in this lane, by work requests and by responses to a peer.
    pub fn uses(&self, lkey: u32) -> u32 {
        let open = self.lkeys.get(lkey).into_iter();
        let sources = open.chain(&self.draining).filter_map(|&index| self.sources.get(index as usize));
        sources.filter(|source| source.lkey == lkey).map(|source| source.uses).sum()
    }

    /// The bytes of a packet's payload; none if the region was released or does not hold them.
    #[inline]
    pub fn bytes(&self, payload: &PayloadRef) -> Payload<'_> {
        let Some(region) = self.source(payload.slot) else { return Payload::EMPTY };
        let offset = usize::try_from(payload.offset).unwrap_or(usize::MAX);
        region.payload(offset, payload.len as usize).unwrap_or_default()
    }

    #[inline]
    fn source(&self, slot: RegionSlot) -> Option<&Arc<Region>> {
        let source = self.sources.get(slot.index as usize)?;
        source.region.as_ref().filter(|_| source.turn == slot.turn)
    }

    /// Regions in this lane's view, including those that wait for their last use.
    pub fn regions(&self) -> usize {
        self.sources.len() - self.free.len()
    }
}

impl Drop for MemoryView {
    fn drop(&mut self) {
        self.space.leave();
    }
}

impl fmt::Debug for MemoryView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryView")
            .field("regions", &self.regions())
            .field("draining", &self.draining.len())
            .field("seen", &self.seen)
            .finish_non_exhaustive()
    }
}
