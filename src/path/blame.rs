//! Decides what the loss of a packet means for its path: the path is dead, it loses more than others, or neither.
//!
//! The rule is specific to Spindrift. The MRC paper (section 2.1) takes each loss for a failed path. That costs
//! nothing where a queue pair has many paths and switches trim packets that do not fit. Where switches drop, or where
//! a plane has one path, it would give up working paths.
//!
//! | Observation | Meaning |
//! |---|---|
//! | nothing that left later on the path has arrived | dead |
//! | the same, but round trips are long, or other paths of the plane lose as much | congestion or chance, unless it happens three times in a row |
//! | the same, and nothing that left later on its plane has arrived | dead, however long round trips are |
//! | the same, but the plane has no other path | chance, unless it happens three times in a row |
//! | something that left later on the path has arrived | it loses more than others: out of use, like a dead one |
//! | the same, but round trips are long | congestion, unless it loses three times while others lose less |
//! | the same, but other paths of the plane lose as much, or there is none | congestion or chance |
//!
//! A path that stays in use is passed over for a while.

use super::steer::LOSS_SKIPS;
use super::{EvId, Paths};
use crate::time::Time;

/// The evidence about a path when a packet on it is declared lost. Positions count all transmissions of the queue
/// pair, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LossSigns {
    /// Position of the packet.
    pub order: u64,
    /// Position of the latest transmission.
    pub latest: u64,
    /// Position of the newest packet on its path that is known to have arrived; 0 for none.
    pub newest_on_path: u64,
    /// Something that left later on its plane is known to have arrived.
    pub plane_delivers: bool,
    /// Recent round trips are much longer than the shortest one: packets wait in queues on the way.
    pub queueing: bool,
}

/// The cause of a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blame {
    /// The path fails and goes out of use.
    Path,
    /// Congestion or chance.
    Nobody,
}

/// Consecutive losses after which nothing excuses the path.
const STRIKES: u8 = 3;
/// Other paths lose as much if, since this one last lost a packet, one in this many of them lost one.
const IN_LINE_PART: u32 = 4;

/// Losses of one path.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    /// Random losses on its plane at this path's last loss.
    seen: u32,
    /// Consecutive losses after which nothing has arrived.
    silent: u8,
    /// Losses while others lost less, minus twice the losses while others lost as much.
    odd: u8,
    /// All losses; saturates.
    drops: u16,
    /// Position of the first of the `silent`.
    silent_from: u64,
    /// Position of the latest transmission when the latest loss was noted.
    known_at: u64,
}

/// Random losses of one plane.
#[derive(Clone, Copy, Debug, Default)]
struct PlaneTally {
    /// Losses on paths that have delivered since (wrapping).
    lost: u32,
    /// Time at which the last of them was noted.
    at: Time,
}

/// The losses of a queue pair. Empty until the first.
#[derive(Clone, Debug)]
pub(super) struct Losses {
    paths: Box<[Tally]>,
    planes: Box<[PlaneTally]>,
    sizes: (u16, u8),
    /// Time for which a loss excuses another, ns.
    memory_ns: u64,
}

impl Losses {
    pub(super) fn new(paths: u16, planes: u8, memory_ns: u64) -> Self {
        Self { paths: Box::default(), planes: Box::default(), sizes: (paths, planes), memory_ns }
    }

    /// Heap bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.paths) + size_of_val(&*self.planes)
    }

    #[cold]
    fn make_room(&mut self) {
        let (paths, planes) = self.sizes;
        self.paths = vec![Tally::default(); usize::from(paths)].into_boxed_slice();
        self.planes = vec![PlaneTally::default(); usize::from(planes)].into_boxed_slice();
    }

    /// Counts a loss.
    pub(super) fn count(&mut self, id: EvId) {
        if self.paths.is_empty() {
            self.make_room();
        }
        if let Some(tally) = self.paths.get_mut(usize::from(id.0)) {
            tally.drops = tally.drops.saturating_add(1);
        }
    }

    /// A declared loss was spurious.
    pub(super) fn uncount(&mut self, id: EvId) {
        if let Some(tally) = self.paths.get_mut(usize::from(id.0)) {
            tally.drops = tally.drops.saturating_sub(1);
        }
    }

    /// Judges a loss on path `id` of `plane`, which has `others` further paths that are neither bad nor denied. Also
    /// returns whether the path loses no more than they do.
    fn judge(&mut self, id: EvId, plane: u8, others: u16, signs: &LossSigns, now: Time) -> (Blame, bool) {
        if self.paths.is_empty() {
            self.make_room();
        }
        let memory_ns = self.memory_ns;
        let Some(tally) = self.paths.get_mut(usize::from(id.0)) else { return (Blame::Nobody, true) };
        let Some(of_plane) = self.planes.get_mut(usize::from(plane)) else { return (Blame::Nobody, true) };
        if signs.newest_on_path > tally.silent_from {
            of_plane.note(tally.silent, now);
            tally.silent = 0;
        }
        let delivers = signs.newest_on_path > signs.order;
        // Packets in flight together were lost for one reason.
        let again = signs.order <= tally.known_at;
        let by_others = of_plane.lost.wrapping_sub(tally.seen);
        let recent = now.since(of_plane.at) <= memory_ns;
        let in_line = recent && others != 0 && by_others.saturating_mul(IN_LINE_PART) >= u32::from(others);
        if !delivers {
            if tally.silent == 0 {
                tally.silent_from = signs.order;
            }
            tally.silent = tally.silent.saturating_add(1);
        } else if !again {
            of_plane.note(1, now);
            tally.odd = match others {
                0 => 0,
                _ if in_line => tally.odd.saturating_sub(2),
                _ => tally.odd.saturating_add(1),
            };
        }
        if !again {
            (tally.seen, tally.known_at) = (of_plane.lost, signs.latest);
        }
        let excused = match (others, delivers) {
            (0, delivers) => delivers || tally.silent < STRIKES,
            (_, true) => again || in_line || signs.queueing && tally.odd < STRIKES,
            (_, false) => signs.plane_delivers && (in_line || signs.queueing) && tally.silent < STRIKES,
        };
        (if excused { Blame::Nobody } else { Blame::Path }, in_line)
    }

    /// Positions start again at 1.
    pub(super) fn restart(&mut self) {
        for tally in &mut self.paths {
            (tally.silent, tally.silent_from, tally.known_at) = (0, 0, 0);
        }
    }

    /// A loss on this path was spurious, or the path works again: its losses were random.
    pub(super) fn acquit(&mut self, id: EvId, plane: u8, now: Time) {
        let Some(tally) = self.paths.get_mut(usize::from(id.0)) else { return };
        let Some(of_plane) = self.planes.get_mut(usize::from(plane)) else { return };
        // A path's own losses do not excuse it.
        of_plane.note(tally.silent, now);
        tally.seen = tally.seen.wrapping_add(u32::from(tally.silent));
        (tally.silent, tally.odd) = (0, 0);
    }
}

impl PlaneTally {
    fn note(&mut self, losses: u8, now: Time) {
        if losses > 0 {
            self.lost = self.lost.wrapping_add(u32::from(losses));
            self.at = now;
        }
    }
}

impl Paths {
    /// The plane of a path, and the number of other paths there that are neither bad nor denied, if this one is
    /// neither.
    pub(super) fn others(&self, id: EvId) -> (u8, u16) {
        let plane = self.plane(id);
        let good = self.planes.get(usize::from(plane)).map_or(0, |state| state.active + state.spare);
        (plane, good.saturating_sub(1))
    }

    pub(super) fn drops(&self, id: EvId) -> u32 {
        self.losses.paths.get(usize::from(id.0)).map_or(0, |tally| u32::from(tally.drops))
    }

    /// Whether the path stays in use although packets on it were lost, and nothing has arrived on it since.
    pub(crate) fn stays_in_silence(&self, id: EvId, newest: u64) -> bool {
        let tally = self.losses.paths.get(usize::from(id.0));
        self.works(id) && tally.is_some_and(|tally| tally.silent > 0 && newest <= tally.silent_from)
    }

    /// From now on positions in [`LossSigns`] are those of another requester.
    pub(crate) fn restart_positions(&mut self) {
        self.losses.restart();
    }

    /// A packet on this path was lost, not trimmed. If nothing excuses the loss, the path goes out of use as by
    /// [`on_loss`](Self::on_loss), and this returns `true`. Otherwise it is passed over for a while, and `tolerated`
    /// counts it.
    pub fn on_packet_lost(&mut self, id: EvId, signs: &LossSigns, now: Time) -> bool {
        if !self.works(id) {
            self.on_loss(id, now);
            return true;
        }
        let (plane, others) = self.others(id);
        let (blame, in_line) = self.losses.judge(id, plane, others, signs, now);
        if in_line {
            self.prober.acquit(id.0);
        }
        match blame {
            Blame::Path => self.on_loss(id, now),
            Blame::Nobody => {
                self.count_loss(id);
                self.counters.tolerated += 1;
                self.pass_over(id, LOSS_SKIPS);
            }
        }
        blame == Blame::Path
    }
}
