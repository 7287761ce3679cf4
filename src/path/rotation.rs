//! Which entropy value the next packet takes: the code that runs for every packet.

use super::select::below;
use super::{EvId, Paths, Plane, PortMask, SKIP};

/// Most turns a plane without room saves up. Enough for a full transmit ring of a small port; more
/// would let a plane that was stuck for long flood its path when it gets room again.
const MAX_DEBT: u8 = 32;

impl Paths {
    /// Chooses the path of the next packet: `None` if no usable plane is in `free`.
    ///
    /// Planes take turns, so that all carry equal load (MRC paper, section 2.1). A plane that is not
    /// in `free` keeps its turn (up to 32 of them) for when it has room again. Within a plane the
    /// active entropy values come in a random order that changes each time round, so that queue
    /// pairs do not march in step (MRC 1.0 section 9.3.1); one in SKIP is passed over once.
    ///
    /// `avoid` names the path of an earlier transmission of this packet: another plane is chosen if
    /// one is free, else another entropy value of the same plane if there is one.
    #[inline]
    pub fn pick(&mut self, free: PortMask, avoid: Option<EvId>) -> Option<EvId> {
        let mut eligible = self.usable & free.0;
        if let Some(avoid) = avoid {
            let others = eligible & !(1 << self.plane(avoid));
            if others != 0 {
                eligible = others;
            }
        }
        if eligible == 0 {
            return None;
        }
        let plane = self.take_turn(eligible);
        match self.next_in_plane(plane) {
            Some(id) if Some(id) == avoid => Some(self.other_in_plane(plane, id)),
            choice => choice,
        }
    }

    /// Limits the coming packets to a slice of the active entropy values, so that a port that sends
    /// packets of one path in one go (kernel segmentation offload) finds several for each.
    ///
    /// The slice has `spray_width` entropy values over all planes, at least one a plane, and no more
    /// than `packets_hint`. Each call moves on to those that have not been used for longest, so all
    /// are used equally. Without this call, or with a `spray_width` of 0, every packet takes the
    /// next of all.
    pub fn begin_burst(&mut self, packets_hint: usize) {
        if self.spray_width == 0 {
            return;
        }
        self.sliced = true;
        let planes = self.usable.count_ones().max(1) as usize;
        let wanted = usize::from(self.spray_width).min(packets_hint.max(1));
        let width = wanted.div_ceil(planes).min(usize::from(u16::MAX)) as u16;
        for plane in &mut self.planes {
            plane.next_slice(width);
        }
    }

    /// Chooses among the planes of `eligible`, which is not empty and a part of `usable`.
    #[inline]
    fn take_turn(&mut self, eligible: u32) -> u8 {
        let mut due = eligible & self.round;
        if due == 0 {
            self.new_round();
            due = eligible;
        }
        let after_last = due & (u32::MAX << 1 << self.last_plane);
        let plane = (if after_last == 0 { due } else { after_last }).trailing_zeros() as u8;
        self.last_plane = plane;
        if let Some(state) = self.planes.get_mut(usize::from(plane)) {
            if state.debt == 0 {
                self.round &= !(1 << plane);
            } else {
                state.debt -= 1;
            }
        }
        plane
    }

    /// Gives every usable plane a turn; those that did not get theirs may have it later.
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

    /// The next entropy value in the plane's rotation.
    #[inline]
    fn next_in_plane(&mut self, plane: u8) -> Option<EvId> {
        let state = self.planes.get_mut(usize::from(plane))?;
        let order = self.order.get_mut(usize::from(state.base)..)?.get_mut(..usize::from(state.active))?;
        // Ends: every turn of the loop returns or clears a SKIP, and no one sets them meanwhile.
        loop {
            let at = state.advance(self.sliced);
            if at == state.drawn {
                // The next step of a Fisher-Yates shuffle, so that the cost is spread over the round.
                let other = at + below(&mut self.rng, state.active.wrapping_sub(at));
                if usize::from(other) < order.len() {
                    order.swap(usize::from(at), usize::from(other));
                }
                state.drawn += 1;
            }
            let id = *order.get(usize::from(at))?;
            let entry = self.entries.get_mut(usize::from(id))?;
            if entry.flags & SKIP == 0 {
                return Some(EvId(id));
            }
            entry.flags &= !SKIP;
            self.counters.passed_over += 1;
            if self.sliced {
                state.drop_from_slice(at, order);
            }
        }
    }

    /// Another active entropy value of `plane` than `avoid` if there is one, preferably not in SKIP.
    #[cold]
    fn other_in_plane(&mut self, plane: u8, avoid: EvId) -> EvId {
        let Some(&state) = self.planes.get(usize::from(plane)) else { return avoid };
        let from = usize::from(below(&mut self.rng, state.active));
        let active = self.active_ids(&state);
        let mut choice = avoid;
        for &id in active[from..].iter().chain(&active[..from]) {
            if id == avoid.0 {
                continue;
            }
            choice = EvId(id);
            if self.entries.get(usize::from(id)).is_some_and(|entry| entry.flags & SKIP == 0) {
                break;
            }
        }
        choice
    }
}

impl Plane {
    /// Moves the rotation on and returns the position to use.
    #[inline]
    fn advance(&mut self, sliced: bool) -> u16 {
        if self.cursor >= self.end {
            self.cursor = self.start;
            if !sliced {
                self.drawn = 0;
            }
        }
        let at = self.cursor;
        self.cursor += 1;
        at
    }

    /// Starts the slice of about `width` entropy values that follows the last one used. The slices
    /// of a round are of equal size, give or take one.
    fn next_slice(&mut self, width: u16) {
        if self.drawn >= self.active {
            self.drawn = 0;
        }
        let left = self.active - self.drawn;
        let slices = left.div_ceil(width.max(1)).max(1);
        self.start = self.drawn;
        self.end = self.drawn + left.div_ceil(slices);
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
        self.drawn = self.drawn.min(self.active);
        self.cursor = self.cursor.min(self.end);
    }
}
