//! Steers traffic away from congested paths: those with ECN marks, trims or occasional losses.
//!
//! An ECN mark makes the rotation pass over its path once (MRC 1.0 figure 5), a trimmed packet four times. If marks
//! continue, the path backs off: it sits out some rotations after each that it takes part in. Each mark adds an
//! eighth of a rotation, each report without a mark subtracts half of one. If a quarter of the packets on the plane's
//! other paths are marked, those have no room, and steering would only leave one idle. Marks then reduce the backoff
//! too, and congestion control reacts instead. The other paths are all but the one that was marked last, since one
//! path alone can be marked all the time.

use super::{BAD, DENIED, Entry, EvId, Paths};
use crate::time::Time;

/// Maximum of consecutive rotations that a path sits out.
pub const MAX_SKIP_LIMIT: u8 = 15;

/// Rotations that a path sits out after an excused loss (15 for a packet that timed out in htsim, the reference
/// simulator of UET).
pub(super) const LOSS_SKIPS: u8 = 15;

/// Rotations that a path sits out for a trimmed packet (4 in htsim), up to the [limit](super::PathConfig::skip_limit).
const TRIM_SKIPS: u8 = 4;

/// [`Entry::backoff`] for one rotation.
const ROTATION: u8 = 8;
/// Decrease for a packet without a mark, and for one with a mark while the whole plane is congested.
const RELIEF: u8 = 4;
/// Share of marked packets on the other paths of a congested plane, in 1/65,536.
const CONGESTED: u16 = 1 << 14;
/// The weight of each report in that share is 1/2^5.
const SHARE_SHIFT: u16 = 5;

impl Entry {
    /// Takes part in this rotation.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "the path of every packet; measured by benches/instructions.rs")]
    pub(super) fn take(&mut self) {
        self.skip = self.backoff / ROTATION;
    }

    /// Neither bad nor denied.
    const fn works(&self) -> bool {
        self.flags & (BAD | DENIED) == 0
    }

    /// Passes over it at least this many times.
    fn pass_over(&mut self, times: u8) {
        self.skip = self.skip.max(times);
    }
}

impl Paths {
    /// A packet on this path was ECN-marked (SACK with `m` = `SKIP_ONCE`): the path is congested and sits out one
    /// rotation (MRC 1.0 figure 5). It sits out more if marks continue while other paths have room. Nothing happens
    /// if [`PathConfig::ecn_steering`](super::PathConfig::ecn_steering) is off.
    #[inline]
    pub fn on_ecn(&mut self, id: EvId, _now: Time) {
        if !self.ecn_steering || !self.works(id) {
            self.shows_life(id);
            return;
        }
        self.counters.ecn_skips += 1;
        let most = self.skip_limit * ROTATION;
        let Some(entry) = self.entries.get_mut(usize::from(id.0)) else { return };
        let Some(plane) = self.planes.get_mut(usize::from(entry.plane)) else { return };
        if plane.last_marked != id.0 {
            plane.marked += (u16::MAX - plane.marked) >> SHARE_SHIFT;
            plane.last_marked = id.0;
        }
        entry.backoff = if plane.marked < CONGESTED {
            (entry.backoff + 1).min(most)
        } else {
            entry.backoff.saturating_sub(RELIEF)
        };
        entry.pass_over(1);
    }

    /// A packet on this path arrived without a mark, by the SACK that it triggered.
    #[inline]
    pub fn on_unmarked(&mut self, id: EvId) {
        let Some(entry) = self.entries.get_mut(usize::from(id.0)) else { return };
        let Some(plane) = self.planes.get_mut(usize::from(entry.plane)) else { return };
        if plane.last_marked != id.0 {
            plane.marked -= plane.marked >> SHARE_SHIFT;
        }
        entry.backoff = entry.backoff.saturating_sub(RELIEF);
        self.learn_reverse(id);
    }

    /// A packet on this path was trimmed before the last hop (NACK TRIMMED). Trims on the last hop are incast and no
    /// sign of a bad path (MRC 1.0 table 7-17): do not report them here.
    #[inline]
    pub fn on_trim(&mut self, id: EvId, _now: Time) {
        if self.pass_over(id, TRIM_SKIPS.min(self.skip_limit.max(1))) {
            self.counters.trim_skips += 1;
        }
    }

    /// Makes the path sit out this many rotations, if it is neither bad nor denied.
    #[inline]
    pub(super) fn pass_over(&mut self, id: EvId, times: u8) -> bool {
        match self.entries.get_mut(usize::from(id.0)) {
            Some(entry) if entry.works() => {
                entry.pass_over(times);
                true
            }
            _ => false,
        }
    }

    /// Whether the path is neither bad nor denied.
    pub(super) fn works(&self, id: EvId) -> bool {
        self.entries.get(usize::from(id.0)).is_some_and(Entry::works)
    }
}
