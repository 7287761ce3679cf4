//! Selects the entropy value of the next packet. This code runs for every packet.

use core::hint::cold_path;

use rand_xoshiro::SplitMix64;

use super::ev_pool::below;
use super::{ALIVE, BAD, DENIED, Entry, EvId, LISTED, PathHint, Paths, Plane, PlaneSet, SelectedPath};

/// Maximum of saved turns of a plane without room. It is enough for a full transmit ring of a small port. More would
/// let a plane that was blocked for long flood its path when it gets room again.
const MAX_DEBT: u8 = 32;

impl Paths {
    /// Chooses the path of the next packet: `None` if no usable plane is in `free`.
    ///
    /// Planes take turns, so that all carry equal load (MRC paper, section 2.1). A plane that is not in `free` saves
    /// its turns, up to 32, until it has room again. Within a plane, the active entropy values come in a random order
    /// that changes with each rotation, so that queue pairs do not synchronise (MRC 1.0 section 9.3.1). One in SKIP
    /// is passed over.
    ///
    /// `avoid` is the path of an earlier transmission of this packet. Another plane is chosen if one is free, else
    /// another entropy value of the same plane if there is one.
    #[inline]
    pub fn pick(&mut self, free: PlaneSet, avoid: Option<EvId>) -> Option<EvId> {
        match avoid {
            None => self.pick_among(self.usable & free.0),
            Some(avoid) => self.pick_avoiding(self.usable & free.0, avoid),
        }
    }

    /// The same, with the plane and the bits of the entropy value.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "the path of every packet; measured by benches/instructions.rs")]
    pub(crate) fn pick_path(&mut self, free: PlaneSet, avoid: Option<EvId>) -> Option<SelectedPath> {
        let id = self.pick(free, avoid)?;
        self.takes(id)
    }

    /// A bad entropy value of an open plane, for a probe of paths that are not in use. It is random among the best
    /// candidates: another plane than that of `avoid`, and a live one, if there are any. `None` if `free` has none
    /// but `avoid`.
    #[cold]
    pub(crate) fn pick_bad(&mut self, free: PlaneSet, avoid: EvId) -> Option<SelectedPath> {
        let open = PlaneSet(self.open & free.0);
        let own = self.plane(avoid);
        let bad = self.entries.iter().zip(0..).filter(|&(entry, id)| {
            Self::may_be_tried(entry) && open.contains(entry.plane) && EvId(id) != avoid
        });
        let mut best = None;
        let mut equals = 0;
        for (entry, id) in bad {
            let rank = (entry.plane == own, entry.flags & (ALIVE | LISTED) == 0);
            match best {
                Some((other, _)) if other < rank => continue,
                Some((other, _)) if other == rank => equals += 1,
                _ => equals = 1,
            }
            if below(&mut self.rng, equals) == 0 {
                best = Some((rank, id));
            }
        }
        let (_, id) = best?;
        self.takes(EvId(id))
    }

    /// The active path, other than `avoid`, on which the newest packet arrived, by `newest`. `None` if nothing has
    /// arrived on any in `free`.
    #[cold]
    pub(crate) fn pick_proven(
        &mut self,
        free: PlaneSet,
        avoid: EvId,
        newest: impl Fn(EvId) -> u64,
    ) -> Option<SelectedPath> {
        let usable = PlaneSet(self.usable & free.0);
        let planes = (0..).zip(self.planes.iter()).filter(|&(plane, _)| usable.contains(plane));
        let active = planes.flat_map(|(_, state)| self.active_ids(state)).map(|&id| EvId(id));
        let proven = active.filter(|&id| id != avoid && newest(id) > 0).max_by_key(|&id| newest(id))?;
        self.takes(proven)
    }

    /// The path of a retransmission, on a plane in `free` of those that congestion control has `open`. `newest` is the position
    /// of the newest packet that arrived on an entropy value.
    #[cold]
    pub(crate) fn select(
        &mut self,
        (free, open): (PlaneSet, PlaneSet),
        hint: &PathHint,
        newest: impl Fn(EvId) -> u64,
    ) -> Option<SelectedPath> {
        let mut free = PlaneSet(free.0 & open.0);
        if hint.idle
            && let Some(idle) = self.pick_idle(free)
        {
            return Some(idle);
        }
        if let Some(bad) = hint.bad_but.and_then(|last| self.pick_bad(free, last)) {
            return Some(bad);
        }
        // A plane that may be dead keeps its window full.
        if let Some(avoid) = hint.avoid.filter(|_| hint.other_plane)
            && self.others_if_any(open, avoid).0 & self.usable != 0
        {
            free = self.others_if_any(free, avoid);
        }
        let proven = hint.proven_but.and_then(|last| self.pick_proven(free, last, newest));
        proven.or_else(|| self.pick_path(free, hint.avoid))
    }

    /// Whether an entropy value is in use: neither bad nor denied.
    pub(crate) fn is_in_use(&self, id: EvId) -> bool {
        !self.has(id.0, BAD | DENIED)
    }

    /// Counts a packet on this path.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "the path of every packet; measured by benches/instructions.rs")]
    pub(super) fn takes(&mut self, id: EvId) -> Option<SelectedPath> {
        if let Some(taken) = self.taken.get_mut(usize::from(id.0)) {
            cold_path();
            *taken = taken.wrapping_add(1);
        }
        self.entries.get(usize::from(id.0)).map(|&Entry { ev, plane, .. }| SelectedPath { id, ev, plane })
    }

    /// The planes of `free` without that of `avoid`, if another is usable; otherwise all of them.
    pub(crate) fn others_if_any(&self, free: PlaneSet, avoid: EvId) -> PlaneSet {
        let own = 1 << self.plane(avoid);
        if self.usable & !own == 0 { free } else { PlaneSet(free.0 & !own) }
    }

    /// Limits the next packets to a slice of the active entropy values, so that a port that batches packets of one
    /// path (kernel segmentation offload) gets several for each.
    ///
    /// The slice has `spray_width` entropy values over all planes, at least one per plane, and no more than
    /// `packets_hint`. Each call continues with those that have not been used for longest, so all are used equally.
    /// Without this call, or with a `spray_width` of 0, every packet takes the next of all.
    pub fn begin_burst(&mut self, packets_hint: usize) {
        if self.spray_width == 0 {
            return;
        }
        self.sliced = true;
        let planes = self.usable.count_ones().max(1) as usize;
        let wanted = usize::from(self.spray_width).min(packets_hint.max(1));
        let width = wanted.div_ceil(planes).min(usize::from(u16::MAX)) as u16;
        for state in &mut self.planes {
            let from = usize::from(state.base);
            if let Some(order) = self.order.get_mut(from..from + usize::from(state.active)) {
                state.next_slice(width, order, &mut self.rng);
            }
        }
    }

    fn pick_avoiding(&mut self, eligible: u32, avoid: EvId) -> Option<EvId> {
        let others = eligible & !(1 << self.plane(avoid));
        let id = self.pick_among(if others == 0 { eligible } else { others })?;
        Some(if id == avoid { self.other_in_plane(id) } else { id })
    }

    /// Chooses among the planes in `eligible`, a subset of `usable`.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "the path of every packet; measured by benches/instructions.rs")]
    fn pick_among(&mut self, eligible: u32) -> Option<EvId> {
        let due = eligible & self.round;
        if due == 0 { self.pick_in_new_round(eligible) } else { self.pick_from(due) }
    }

    #[inline(never)]
    fn pick_in_new_round(&mut self, eligible: u32) -> Option<EvId> {
        if eligible == 0 {
            return None;
        }
        self.new_round();
        self.pick_from(eligible)
    }

    /// Selects the plane in `due`, which is not empty, that follows the last one.
    #[inline]
    fn pick_from(&mut self, due: u32) -> Option<EvId> {
        let after_last = due & (u32::MAX << 1 << self.last_plane);
        let plane = (if after_last == 0 { due } else { after_last }).trailing_zeros() as u8;
        self.last_plane = plane;
        self.take_turn(plane)
    }

    /// Gives every usable plane a turn; those that miss theirs may take it later.
    #[inline]
    fn new_round(&mut self) {
        let mut waiting = self.round & self.usable;
        while waiting != 0 {
            if let Some(state) = self.planes.get_mut(waiting.trailing_zeros() as usize) {
                state.debt = (state.debt + 1).min(MAX_DEBT);
            }
            waiting &= waiting - 1;
        }
        self.round = self.usable;
    }

    /// Takes the plane's turn: the next entropy value of its rotation.
    #[inline]
    fn take_turn(&mut self, plane: u8) -> Option<EvId> {
        let state = self.planes.get_mut(usize::from(plane))?;
        if state.debt == 0 {
            self.round &= !(1 << plane);
        } else {
            state.debt -= 1;
        }
        let at = state.cursor;
        if at < state.end {
            state.cursor = at + 1;
            let id = *self.order.get(usize::from(state.base + at))?;
            let entry = self.entries.get_mut(usize::from(id))?;
            if entry.skip == 0 {
                entry.take();
                return Some(EvId(id));
            }
            state.cursor = at;
        }
        self.turn_round(plane)
    }

    /// The next entropy value, if that takes more than one step: at the end of the rotation, or past those in SKIP.
    #[inline(never)]
    fn turn_round(&mut self, plane: u8) -> Option<EvId> {
        let state = self.planes.get_mut(usize::from(plane))?;
        let order = self.order.get_mut(usize::from(state.base)..)?.get_mut(..usize::from(state.active))?;
        // Terminates: each iteration returns or decrements a SKIP, and none is set meanwhile.
        loop {
            if state.cursor >= state.end {
                state.cursor = state.start;
                state.used = state.end;
                if !self.sliced {
                    shuffle(order, &mut self.rng);
                }
            }
            let at = state.cursor;
            state.cursor += 1;
            let id = *order.get(usize::from(at))?;
            let entry = self.entries.get_mut(usize::from(id))?;
            if entry.skip == 0 {
                entry.take();
                return Some(EvId(id));
            }
            entry.skip -= 1;
            self.counters.passed_over += 1;
            if self.sliced {
                state.drop_from_slice(at, order);
            }
        }
    }

    /// Another active entropy value of the same plane if there is one, preferably not in SKIP.
    #[cold]
    fn other_in_plane(&mut self, avoid: EvId) -> EvId {
        let Some(&state) = self.planes.get(usize::from(self.plane(avoid))) else { return avoid };
        let from = usize::from(below(&mut self.rng, state.active));
        let active = self.active_ids(&state);
        let mut choice = avoid;
        for &id in active[from..].iter().chain(&active[..from]) {
            if id == avoid.0 {
                continue;
            }
            choice = EvId(id);
            if self.entries.get(usize::from(id)).is_some_and(|entry| entry.skip == 0) {
                break;
            }
        }
        choice
    }
}

/// Fisher-Yates.
#[inline]
fn shuffle(order: &mut [u16], rng: &mut SplitMix64) {
    let mut rest = order;
    while rest.len() > 1 {
        let other = below(rng, rest.len() as u16);
        rest.swap(0, usize::from(other));
        rest = &mut rest[1..];
    }
}

impl Plane {
    /// Starts the slice of about `width` entropy values that follows the last one used. The slices
    /// of a round are of equal size, give or take one.
    fn next_slice(&mut self, width: u16, order: &mut [u16], rng: &mut SplitMix64) {
        self.used = self.used.max(self.cursor);
        if self.used >= self.active {
            self.used = 0;
            shuffle(order, rng);
        }
        let left = self.active - self.used;
        let slices = left.div_ceil(width.max(1)).max(1);
        self.start = self.used;
        self.end = self.used + left.div_ceil(slices);
        self.cursor = self.start;
    }

    /// Takes the entropy value at `at`, just passed over, out of the slice, so that a slice shorter
    /// than the rotation does not come back to it in the same burst.
    fn drop_from_slice(&mut self, at: u16, order: &mut [u16]) {
        if self.end - self.start == 1 {
            if self.end == self.active {
                return;
            }
            self.end += 1;
        }
        order.swap(usize::from(at), usize::from(self.start));
        self.start += 1;
    }

    /// Brings the positions back into range after the active part changed.
    pub(super) fn clamp(&mut self, sliced: bool) {
        if !sliced {
            self.start = 0;
            self.end = self.active;
        }
        self.start = self.start.min(self.active.saturating_sub(1));
        self.end = self.end.max(self.start + 1).min(self.active);
        self.used = self.used.min(self.active);
        self.cursor = self.cursor.min(self.end);
    }
}
