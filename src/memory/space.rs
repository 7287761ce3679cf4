//! The registrations of a context, which all of its lanes share.

use core::fmt;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use rand::rngs::ChaCha20Rng;
use tracing::debug;

use super::keys::KeyTable;
use super::sync::{AtomicU64, Mutex, MutexGuard, Ordering, PoisonError};
use super::view::MemoryView;
use super::{Access, MemoryError, MrKey, PdId, Region};
use crate::seed::{Purpose, Seed};

/// Maximum of regions in a space.
const MAX_REGIONS: u32 = 1 << 20;

/// Number of changes that are kept for views that have not seen them, even if there are fewer registrations.
const CHANGES_KEPT: usize = 64;

/// Protection domains and registered memory. Clones are handles to the same space.
///
/// No packet looks up a key here. Each lane has a [`MemoryView`] of its own ([`MemorySpace::view`]), a copy that no
/// other thread touches, and takes in changes when the [version](MemoryView::sync) differs. A registration is
/// complete when the call returns, whatever lanes do: a view that meets an unknown key looks for changes before it
/// refuses the key. Ending a registration must visit every view once: [`MemorySpace::deregister`].
#[derive(Clone)]
pub struct MemorySpace {
    shared: Arc<Shared>,
}

struct Shared {
    /// Number of changes. Written with `state` locked.
    version: AtomicU64,
    state: Mutex<State>,
}

pub(super) struct State {
    rng: ChaCha20Rng,
    max_regions: u32,
    /// By rkey.
    registrations: KeyTable<Registration>,
    lkeys: KeyTable<()>,
    /// Live domains, with the number of registrations and queue pairs of each.
    domains: BTreeMap<u32, u32>,
    next_pd: u32,
    /// The latest changes, oldest first.
    changes: VecDeque<Change>,
    views: u32,
}

pub(super) struct Registration {
    pub(super) lkey: u32,
    pub(super) pd: PdId,
    pub(super) access: Access,
    pub(super) region: Arc<Region>,
    /// No key opens it any more, but it was in use when its registration ended.
    ended: bool,
}

/// A registration that began or ended.
#[derive(Clone, Copy)]
pub(super) struct Change {
    pub(super) rkey: u32,
    pub(super) lkey: u32,
}

impl MemorySpace {
    /// An empty space for up to `max_regions` registrations (at most 2^20); its keys are drawn from `seed`.
    pub fn new(seed: Seed, max_regions: u32) -> Self {
        let state = State {
            rng: seed.generator(Purpose::Keys),
            max_regions: max_regions.clamp(1, MAX_REGIONS),
            registrations: KeyTable::new(),
            lkeys: KeyTable::new(),
            domains: BTreeMap::new(),
            next_pd: 1,
            changes: VecDeque::new(),
            views: 0,
        };
        Self { shared: Arc::new(Shared { version: AtomicU64::new(0), state: Mutex::new(state) }) }
    }

    /// A lane's view of the space.
    pub fn view(&self) -> MemoryView {
        self.lock().views += 1;
        MemoryView::new(self.clone())
    }

    /// Makes a protection domain.
    pub fn alloc_pd(&self) -> PdId {
        let mut state = self.lock();
        let pd = state.next_pd;
        state.next_pd += 1;
        state.domains.insert(pd, 0);
        PdId(pd)
    }

    /// Removes a protection domain that is not in use any more.
    ///
    /// # Errors
    /// [`MemoryError::NoSuchPd`], [`MemoryError::PdInUse`].
    pub fn dealloc_pd(&self, pd: PdId) -> Result<(), MemoryError> {
        let mut state = self.lock();
        match state.members(pd)? {
            0 => {
                state.domains.remove(&pd.0);
                Ok(())
            }
            _ => Err(MemoryError::PdInUse { pd: pd.0 }),
        }
    }

    /// Keeps a protection domain alive for a queue pair.
    ///
    /// # Errors
    /// [`MemoryError::NoSuchPd`].
    pub fn join_pd(&self, pd: PdId) -> Result<PdMember, MemoryError> {
        *self.lock().members(pd)? += 1;
        Ok(PdMember { space: self.clone(), pd })
    }

    /// Registers a region under new random keys. It may be registered more than once.
    ///
    /// # Errors
    /// [`MemoryError::NoSuchPd`]; [`MemoryError::TooMany`] when the space is full.
    pub fn register(&self, pd: PdId, region: Arc<Region>, access: Access) -> Result<MrKey, MemoryError> {
        let bytes = region.len();
        let mut state = self.lock();
        state.members(pd)?;
        if state.registrations.len() >= state.max_regions {
            return Err(MemoryError::TooMany { max: state.max_regions });
        }
        *state.members(pd)? += 1;
        let State { rng, registrations, lkeys, .. } = &mut *state;
        let (rkey, lkey) = (registrations.draw(rng), lkeys.draw(rng));
        lkeys.insert(lkey, ());
        registrations.insert(rkey, Registration { lkey, pd, access, region, ended: false });
        self.tell(&mut state, Change { rkey, lkey });
        drop(state);
        // Keys are not logged: they open the memory to readers of the log.
        debug!(target: "spindrift::memory", bytes, ?access, "memory registered");
        Ok(MrKey { lkey, rkey })
    }

    /// Ends a registration. When this succeeds, no lane will access the memory again for it, and it may be reused or
    /// freed.
    ///
    /// `each_view` calls its argument for every view of the space, one after the other, while its lane is stopped,
    /// and after the lane has taken in all work requests that were posted before.
    ///
    /// # Errors
    /// [`MemoryError::UnknownKey`]. [`MemoryError::Busy`] while work requests use the region, or responses to peers.
    /// Nothing has changed then, unless some began during the call: the keys may have ended, those uses continue, and the
    /// call must be repeated. [`MemoryError::ViewsLeftOut`] if `each_view` missed some. Errors of `each_view`.
    pub fn deregister<E: From<MemoryError>>(
        &self,
        rkey: u32,
        mut each_view: impl FnMut(&mut dyn FnMut(&mut MemoryView)) -> Result<(), E>,
    ) -> Result<(), E> {
        let unknown = MemoryError::UnknownKey { key: rkey };
        let lkey = self.lock().registrations.get(rkey).ok_or(unknown)?.lkey;
        let mut check_unused = || -> Result<(), E> {
            let (mut uses, mut visited) = (0, 0);
            each_view(&mut |view| {
                view.sync();
                uses += view.uses(lkey);
                visited += 1;
            })?;
            let views = self.lock().views;
            if visited < views {
                return Err(MemoryError::ViewsLeftOut { visited, views }.into());
            }
            if uses > 0 { Err(MemoryError::Busy { uses }.into()) } else { Ok(()) }
        };
        check_unused()?;
        self.end(rkey);
        // No view opens the region from here on. If none has it open now, none ever will.
        check_unused()?;
        drop(self.lock().forget(rkey));
        Ok(())
    }

    /// Ends a registration for new requests, on each lane as soon as it [syncs](MemoryView::sync). Work requests and
    /// responses to peers that use the region continue, and the last of them releases it. An unknown key is ignored.
    pub fn invalidate(&self, rkey: u32) {
        self.end(rkey);
        // Not with the lock held: this may drop the last handle to much memory.
        drop(self.lock().forget(rkey));
    }

    /// Maximum of registrations at a time.
    pub fn max_regions(&self) -> u32 {
        self.lock().max_regions
    }

    /// Registrations that have not ended.
    pub fn regions(&self) -> usize {
        self.lock().registrations.len() as usize
    }

    fn end(&self, rkey: u32) {
        let mut state = self.lock();
        let Some(registration) = state.registrations.get_mut(rkey).filter(|live| !live.ended) else { return };
        registration.ended = true;
        let lkey = registration.lkey;
        self.tell(&mut state, Change { rkey, lkey });
    }

    fn tell(&self, state: &mut State, change: Change) {
        // A view that missed as many changes as there are registrations reads those instead.
        let kept = CHANGES_KEPT.max(state.registrations.len() as usize);
        while state.changes.len() >= kept {
            state.changes.pop_front();
        }
        state.changes.push_back(change);
        // No other thread writes while the state is locked.
        self.shared.version.store(self.version() + 1, Ordering::Release);
    }

    /// The changes after `version`, or `None` if that is too long ago.
    pub(super) fn changes_since<'a>(
        &self,
        state: &'a State,
        version: u64,
    ) -> Option<impl Iterator<Item = Change> + use<'a>> {
        let missed = usize::try_from(self.version() - version).ok()?;
        let known = state.changes.len().checked_sub(missed)?;
        Some(state.changes.range(known..).copied())
    }

    /// Number of changes. While the state is locked, those that it shows.
    #[inline]
    pub(super) fn version(&self) -> u64 {
        self.shared.version.load(Ordering::Acquire)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn leave(&self) {
        self.lock().views -= 1;
    }
}

impl State {
    fn members(&mut self, pd: PdId) -> Result<&mut u32, MemoryError> {
        self.domains.get_mut(&pd.0).ok_or(MemoryError::NoSuchPd { pd: pd.0 })
    }

    fn forget(&mut self, rkey: u32) -> Option<Registration> {
        let registration = self.registrations.remove(rkey)?;
        self.lkeys.remove(registration.lkey);
        self.leave_pd(registration.pd);
        Some(registration)
    }

    fn leave_pd(&mut self, pd: PdId) {
        if let Ok(members) = self.members(pd) {
            *members -= 1;
        }
    }

    /// The registration of these two keys, if it has not ended.
    pub(super) fn live(&self, rkey: u32, lkey: u32) -> Option<&Registration> {
        self.registrations.get(rkey).filter(|live| live.lkey == lkey && !live.ended)
    }

    /// Every rkey, with its registration, that has not ended.
    pub(super) fn all_live(&self) -> impl Iterator<Item = (u32, &Registration)> {
        self.registrations.iter().filter(|(_, live)| !live.ended)
    }

    /// Slots of the tables of rkeys and lkeys.
    pub(super) const fn slots(&self) -> (usize, usize) {
        (self.registrations.slots(), self.lkeys.slots())
    }
}

impl fmt::Debug for MemorySpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemorySpace").field("regions", &self.regions()).finish_non_exhaustive()
    }
}

/// A queue pair's place in its protection domain, which stays as long as this is held.
#[derive(Debug)]
pub struct PdMember {
    space: MemorySpace,
    pd: PdId,
}

impl PdMember {
    /// The domain.
    #[inline]
    pub const fn id(&self) -> PdId {
        self.pd
    }
}

impl Drop for PdMember {
    fn drop(&mut self) {
        self.space.lock().leave_pd(self.pd);
    }
}
