//! State changes of entropy values after feedback, and the active and backup sets.

use super::steer::LOSS_SKIPS;
use super::{ALIVE, BAD, DENIED, Entry, EvId, EvState, LISTED, Paths, Plane, PlaneSet};
use crate::time::Time;
use crate::wire::Ev;

impl Plane {
    /// Entropy values that are neither bad nor denied.
    pub(super) const fn good(&self) -> u16 {
        self.active + self.spare
    }

    /// Has fewer active entropy values than its target, and so no backups either.
    fn is_short(&self) -> bool {
        self.active < self.target
    }

    /// Activates the first backup.
    fn lend(&mut self, sliced: bool) {
        self.active += 1;
        self.spare -= 1;
        self.clamp(sliced);
    }

    /// Turns active entropy values beyond the plane's share back into backups.
    fn take_back(&mut self, sliced: bool) {
        let lent = self.active.saturating_sub(self.target);
        self.spare += lent;
        self.active -= lent;
        self.clamp(sliced);
    }
}

impl Paths {
    /// The peer asks not to use this path (SACK with `m` = `ALWAYS_SKIP`). The effect is that of a loss that is not
    /// counted as a drop.
    pub fn on_always_skip(&mut self, id: EvId, now: Time) {
        self.counters.always_skips += 1;
        self.assume_bad(id, now);
    }

    /// A packet on this path was lost, not trimmed. The path is assumed to have failed and goes out of use at once. A
    /// backup of the same plane replaces it (MRC paper, sections 2.1 and 4).
    ///
    /// If no plane has a backup left and this path is needed to keep `min_active` paths, a live `ASSUMED_BAD` one
    /// replaces it (`floor_returns` counts it). If there is none, this one stays in use, is passed over 15 times, and
    /// `floor_holds` counts it.
    pub fn on_loss(&mut self, id: EvId, now: Time) {
        self.count_loss(id);
        self.assume_bad(id, now);
    }

    pub(super) fn count_loss(&mut self, id: EvId) {
        let Some(entry) = self.entries.get_mut(usize::from(id.0)) else { return };
        entry.flags &= !ALIVE;
        self.losses.count(id);
        self.counters.losses += 1;
    }

    /// A packet on this path arrived. If the path is `ASSUMED_BAD`, it is probed at once, since the loss may have been
    /// reordering. A packet sent before the decision does not prove that the path still works, so it does not count
    /// as an acknowledged probe.
    #[inline]
    pub fn on_delivered(&mut self, id: EvId, now: Time) {
        if self.shows_life(id) {
            self.probe_soon(id, now);
        } else {
            self.is_proven(id);
        }
    }

    /// Ports of this NIC that have a link (bit set = up). A plane that goes down takes all its entropy values out of
    /// use at once. They return unchanged with the plane.
    pub fn set_local_ports(&mut self, up: PlaneSet) {
        if self.local_ports != up.0 {
            self.local_ports = up.0;
            self.planes_changed();
        }
    }

    /// Ports of the peer's NIC that are reachable, from its Port Status Update (bit set = up, MRC 1.0
    /// table 7-20).
    pub fn set_peer_ports(&mut self, up: PlaneSet) {
        if self.peer_ports != up.0 {
            self.peer_ports = up.0;
            self.planes_changed();
        }
    }

    /// The last port states of this NIC and of the peer's.
    pub fn ports(&self) -> (PlaneSet, PlaneSet) {
        (PlaneSet(self.local_ports), PlaneSet(self.peer_ports))
    }

    /// Takes an entropy value out of use until it is allowed again, on one plane or on all. Returns the number of
    /// changes.
    pub fn deny_ev(&mut self, ev: Ev, plane: Option<u8>) -> usize {
        let mut changed = 0;
        for id in 0..self.entries.len() as u16 {
            if !self.matches(id, ev, plane) || self.has(id, DENIED) && !self.has(id, LISTED) {
                continue;
            }
            if !self.has(id, DENIED) {
                self.deny_id(id);
            }
            self.set_flags(id, DENIED);
            changed += 1;
        }
        self.planes_changed();
        changed
    }

    /// Takes a value that is not denied out of use.
    pub(super) fn deny_id(&mut self, id: u16) {
        if self.has(id, BAD) {
            self.prober.bad -= 1;
        } else {
            self.take_out(id);
        }
    }

    /// A denied value is GOOD again.
    pub(super) fn allow_id(&mut self, id: u16) {
        self.set_flags(id, 0);
        self.prober.forget(id);
        self.bring_back(id);
    }

    /// Allows an entropy value again that [`deny_ev`](Self::deny_ev) denied: it is GOOD (MRC 1.0 figure 5), unless a deny
    /// list has it. Returns the number of changes.
    pub fn allow_ev(&mut self, ev: Ev, plane: Option<u8>) -> usize {
        let mut changed = 0;
        for id in 0..self.entries.len() as u16 {
            if !self.matches(id, ev, plane) || !self.has(id, DENIED) || self.has(id, LISTED) {
                continue;
            }
            if self.stays_listed(id) {
                self.set_flags(id, DENIED | LISTED);
            } else {
                self.allow_id(id);
            }
            changed += 1;
        }
        self.planes_changed();
        changed
    }

    /// Takes a whole plane out of use, forward and reverse, until it is allowed again (MRC paper,
    /// section 4: a plane with an unacceptable loss rate). Returns whether this changed anything.
    pub fn deny_plane(&mut self, plane: u8) -> bool {
        let bit = self.plane_bit(plane);
        let changed = bit & !self.denied_planes != 0;
        self.denied_planes |= bit;
        self.planes_changed();
        changed
    }

    /// Allows a denied plane again; its entropy values are as they were. Returns whether this changed
    /// anything.
    pub fn allow_plane(&mut self, plane: u8) -> bool {
        let bit = self.plane_bit(plane);
        let changed = bit & self.denied_planes != 0;
        self.denied_planes &= !bit;
        self.planes_changed();
        changed
    }

    /// Denies what the application has denied to `other`: planes, and entropy values that both have.
    pub(crate) fn deny_as(&mut self, other: &Self) {
        let denied = |id: &EvId| other.has(id.0, DENIED) && !other.has(id.0, LISTED);
        for id in (0..other.entries.len() as u16).map(EvId).filter(denied) {
            self.deny_ev(other.ev(id), Some(other.plane(id)));
        }
        self.denied_planes = other.denied_planes;
        self.planes_changed();
    }

    /// Active entropy values of `plane`, whether it is up or not.
    pub fn active_len(&self, plane: u8) -> usize {
        self.planes.get(usize::from(plane)).map_or(0, |state| usize::from(state.active))
    }

    pub(super) fn assume_bad(&mut self, id: EvId, now: Time) {
        let Some(entry) = self.entries.get(usize::from(id.0)) else { return };
        if entry.flags & (BAD | DENIED) != 0 {
            return;
        }
        let plane = entry.plane;
        if self.is_needed(plane) && !self.release_listed() {
            let Some(other) = self.bad_to_use(|other| other.flags & ALIVE != 0) else {
                self.counters.floor_holds += 1;
                self.pass_over(id, LOSS_SKIPS);
                self.force(id);
                if self.has_idle_sets() {
                    self.role_health_changed();
                }
                return;
            };
            self.counters.floor_returns += 1;
            self.revive(other, 0);
            self.heal_reverse(self.plane(other));
        }
        self.take_out(id.0);
        self.set_flags(id.0, BAD);
        self.schedule_first_probe(id, now);
        self.push_event(id, EvState::AssumedBad);
        self.share_backups();
        self.heal_reverse(plane);
        self.role_health_changed();
    }

    /// Whether the floor on active entropy values keeps one of this plane in use that is neither bad nor denied. As
    /// no plane has backups left then, it is active. None is needed if planes that stand by can take over.
    fn is_needed(&self, plane: u8) -> bool {
        PlaneSet(self.usable).contains(plane)
            && self.sum(self.usable, Plane::good) <= self.min_active
            && !self.idle_is_fit()
    }

    /// Active entropy values of the open planes that serve.
    fn active_open(&self) -> u16 {
        self.sum(self.floor_planes(), |state| state.active)
    }

    /// The sum of `count` over the planes in `mask`: at most the number of entropy values.
    pub(super) fn sum(&self, mask: u32, count: impl Fn(&Plane) -> u16) -> u16 {
        let planes = (0..).zip(self.planes.iter());
        planes.filter(|(plane, _)| mask >> plane & 1 == 1).map(|(_, state)| count(state)).sum()
    }

    /// If the planes together have fewer than `min_active` in use, those with backups activate more than their own
    /// share. No dead path of another plane stays in use only to keep the minimum.
    fn share_backups(&mut self) {
        let sliced = self.sliced;
        self.planes.iter_mut().for_each(|state| state.take_back(sliced));
        while self.active_open() < self.min_active {
            let open = self.floor_planes();
            let lenders = (0..).zip(self.planes.iter_mut());
            let lenders = lenders.filter(|(plane, state)| open >> plane & 1 == 1 && state.spare > 0);
            let Some((_, state)) = lenders.min_by_key(|(_, state)| state.active) else { return };
            state.lend(sliced);
        }
    }

    /// Handles a change of ports or of the deny list.
    pub(super) fn planes_changed(&mut self) {
        let mask = PlaneSet::first(self.planes.len() as u8).0;
        let open = mask & self.local_ports & self.peer_ports & !self.denied_planes;
        let returned = open & !self.open;
        self.open = open;
        self.choose_role();
        self.choose_avoided();
        self.probe_planes_soon(returned);
        self.keep_floor();
        self.refresh_usable();
        for plane in 0..self.planes.len() as u8 {
            self.heal_reverse(plane);
        }
        self.find_next_probe();
    }

    /// Reactivates `ASSUMED_BAD` entropy values if ports or the deny list leave fewer than `min_active`, backups
    /// included: a path that may be bad is better than none.
    pub(super) fn keep_floor(&mut self) {
        self.share_backups();
        if self.active_open() < self.min_active && self.release_listed() {
            self.share_backups();
        }
        while self.active_open() < self.min_active {
            let Some(id) = self.bad_to_use(|_| true) else { return };
            self.counters.floor_returns += 1;
            self.revive(id, 1);
            self.force(id);
        }
    }

    /// The `ASSUMED_BAD` entropy value to reactivate, among those on open planes that serve and are `fit`: preferably a live one,
    /// then one of the plane with the fewest active ones.
    fn bad_to_use(&self, fit: impl Fn(&Entry) -> bool) -> Option<EvId> {
        let open = PlaneSet(self.floor_planes());
        let bad = self.entries.iter().zip(0..);
        let bad = bad.filter(|(entry, _)| entry.flags & BAD != 0 && open.contains(entry.plane) && fit(entry));
        let least = bad.min_by_key(|(entry, _)| (entry.flags & ALIVE == 0, self.active_len(entry.plane)));
        least.map(|(_, id)| EvId(id))
    }

    /// A packet on this path arrived. If the path is `ASSUMED_BAD`, it is now live, and this returns `true`.
    pub(super) fn shows_life(&mut self, id: EvId) -> bool {
        match self.entries.get_mut(usize::from(id.0)) {
            Some(entry) if entry.flags & BAD != 0 => {
                entry.flags |= ALIVE;
                true
            }
            _ => false,
        }
    }

    /// Makes an `ASSUMED_BAD` entropy value GOOD.
    pub(super) fn revive(&mut self, id: EvId, skip: u8) {
        self.prober.bad -= 1;
        self.set_flags(id.0, 0);
        self.pass_over(id, skip);
        self.bring_back(id.0);
        self.share_backups();
        self.push_event(id, EvState::Good);
    }

    /// Recomputes which planes can be picked. A plane that cannot be picked loses its saved turns.
    pub(super) fn refresh_usable(&mut self) {
        let states = || (0..).zip(self.planes.iter());
        let working = states().filter(|&(plane, state)| self.open >> plane & 1 == 1 && state.active > 0);
        self.working = working.fold(0, |mask, (plane, _)| mask | 1 << plane);
        let serving = self.working & self.carrying();
        let usable = if serving == 0 { self.working } else { serving };
        for (plane, state) in (0..).zip(self.planes.iter_mut()) {
            if usable >> plane & 1 == 0 {
                state.debt = 0;
            }
        }
        self.usable = usable;
        self.round &= usable;
    }

    /// Moves an entropy value from the active or backup part to the part out of use; a backup replaces an active one.
    pub(super) fn take_out(&mut self, id: u16) {
        let Some((plane, at)) = self.place(id) else { return };
        let sliced = self.sliced;
        let Some((state, order)) = self.plane_mut(plane) else { return };
        let (active, spare) = (usize::from(state.active), usize::from(state.spare));
        let at = usize::from(at);
        let mut swapped = false;
        if at >= active + spare {
            return;
        } else if at >= active {
            order.swap(at, active + spare - 1);
            state.spare -= 1;
        } else if spare > 0 {
            // First in, first out: one that was just revived is the last to be trusted again.
            order.swap(at, active);
            order[active..active + spare].rotate_left(1);
            state.spare -= 1;
            swapped = true;
        } else {
            order.swap(at, active - 1);
            state.active -= 1;
            state.clamp(sliced);
        }
        if swapped {
            self.counters.swaps += 1;
        }
    }

    /// Moves an entropy value that was out of use to the active part if its plane is short, else to the end of the
    /// backup set.
    fn bring_back(&mut self, id: u16) {
        let Some((plane, at)) = self.place(id) else { return };
        let sliced = self.sliced;
        let Some((state, order)) = self.plane_mut(plane) else { return };
        let in_use = usize::from(state.active + state.spare);
        if usize::from(at) < in_use {
            return;
        }
        order.swap(usize::from(at), in_use);
        if state.is_short() {
            state.active += 1;
            state.clamp(sliced);
        } else {
            state.spare += 1;
        }
    }

    /// The plane of an entropy value and its position there.
    fn place(&self, id: u16) -> Option<(u8, u16)> {
        let plane = self.entries.get(usize::from(id))?.plane;
        let at = self.position(self.planes.get(usize::from(plane))?, id)?;
        Some((plane, at))
    }

    fn position(&self, state: &Plane, id: u16) -> Option<u16> {
        let ids = self.ids(state);
        ids.iter().position(|&other| other == id).map(|at| at as u16)
    }

    /// All entropy values of a plane: active, backup, out of use.
    pub(super) fn ids(&self, state: &Plane) -> &[u16] {
        self.order.get(usize::from(state.base)..usize::from(state.base + state.len)).unwrap_or_default()
    }

    /// The active entropy values of a plane.
    pub(super) fn active_ids(&self, state: &Plane) -> &[u16] {
        self.ids(state).get(..usize::from(state.active)).unwrap_or_default()
    }

    fn plane_mut(&mut self, plane: u8) -> Option<(&mut Plane, &mut [u16])> {
        let state = self.planes.get_mut(usize::from(plane))?;
        let order = self.order.get_mut(usize::from(state.base)..usize::from(state.base + state.len))?;
        Some((state, order))
    }

    fn plane_bit(&self, plane: u8) -> u32 {
        if usize::from(plane) < self.planes.len() { 1 << plane } else { 0 }
    }

    fn matches(&self, id: u16, ev: Ev, plane: Option<u8>) -> bool {
        self.entries
            .get(usize::from(id))
            .is_some_and(|entry| entry.ev == ev && plane.is_none_or(|plane| plane == entry.plane))
    }

    pub(super) fn has(&self, id: u16, flags: u8) -> bool {
        self.entries.get(usize::from(id)).is_some_and(|entry| entry.flags & flags != 0)
    }

    pub(super) fn set_flags(&mut self, id: u16, flags: u8) {
        if let Some(entry) = self.entries.get_mut(usize::from(id)) {
            entry.flags = flags;
            (entry.skip, entry.backoff) = (0, 0);
        }
    }
}
