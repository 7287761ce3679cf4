//! Snapshots of the paths for users and tools.

use super::{BAD, DENIED, Entry, EvId, Listed, Paths, Plane, PlaneSet};
use crate::wire::Ev;

/// The state of an entropy value. The numbers are those of the OCP API, where SKIP is not visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum EvState {
    /// In use, or a backup.
    Good = 1,
    /// Lost packets without an excuse; being probed.
    AssumedBad = 2,
    /// Denied by the operator, itself or with its plane.
    Denied = 4,
    /// Congested, or lost a packet by chance: will be passed over once or more. The OCP API shows it as GOOD.
    Skip = 8,
}

/// One entropy value, as [`Paths::states`] reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvStatus {
    /// Its id in this [`Paths`].
    pub id: EvId,
    /// The value.
    pub ev: Ev,
    /// Its plane.
    pub plane: u8,
    /// Its state.
    pub state: EvState,
    /// Active; else a backup or out of use.
    pub active: bool,
    /// Packets lost on it, up to 65,535.
    pub drop_count: u32,
    /// Data packets sent on it, retransmissions included, modulo 2^32; 0 unless
    /// [they are counted](super::PathConfig::count_packets).
    pub packets: u32,
}

/// A change of state, see [`Paths::poll_event`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvEvent {
    /// The entropy value.
    pub ev: Ev,
    /// Its plane.
    pub plane: u8,
    /// Packets lost on it when the event was polled, up to 65,535.
    pub drop_count: u32,
    /// The new state: [`EvState::Good`] or [`EvState::AssumedBad`].
    pub state: EvState,
}

/// Counters of the paths of a queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathCounters {
    /// Entropy values put in SKIP by an ECN mark.
    pub ecn_skips: u64,
    /// Entropy values put in SKIP by a trimmed packet.
    pub trim_skips: u64,
    /// Times that the rotation passed over an entropy value in SKIP.
    pub passed_over: u64,
    /// Losses reported.
    pub losses: u64,
    /// `ALWAYS_SKIP` marks reported.
    pub always_skips: u64,
    /// Losses attributed to congestion or chance: their entropy values stayed in use.
    pub tolerated: u64,
    /// Active entropy values replaced by a backup.
    pub swaps: u64,
    /// Entropy values that stayed in use after a loss, to keep `min_active`.
    pub floor_holds: u64,
    /// Bad entropy values reactivated to keep `min_active`: after a port or deny change, or to replace one that lost a packet.
    pub floor_returns: u64,
    /// Reliability probes sent.
    pub probes_sent: u64,
    /// Reliability probes acknowledged in time.
    pub probes_answered: u64,
    /// Reliability probes that expired.
    pub probes_expired: u64,
    /// SACKs that matched no probe in flight: late, duplicate or forged.
    pub probe_answers_unknown: u64,
    /// Bad entropy values made GOOD by acknowledged probes.
    pub revived: u64,
    /// EV probes for the reverse set sent.
    pub reverse_probes_sent: u64,
    /// EV probes for the reverse set with a response.
    pub reverse_probes_answered: u64,
    /// Events lost because the queue was full.
    pub events_lost: u64,
}

impl Paths {
    /// Every entropy value with its state: plane by plane, the active ones first.
    pub fn states(&self) -> impl Iterator<Item = EvStatus> + '_ {
        self.planes.iter().flat_map(move |plane| {
            let ids = self.ids(plane).iter().zip(0..);
            ids.filter_map(move |(&id, at)| {
                let &entry = self.entries.get(usize::from(id))?;
                Some(self.status(EvId(id), entry, at, plane))
            })
        })
    }

    /// Entropy value number `turn` of `plane`, modulo their number, for a packet of the endpoint itself. Denied ones are
    /// excluded as far as others remain, and with `work` also bad ones. `None` if there is no such plane.
    pub(crate) fn ev_in_turn(&self, plane: u8, turn: u32, work: bool) -> Option<Ev> {
        let state = self.planes.get(usize::from(plane))?;
        let entries = self.entries.get(usize::from(state.base)..usize::from(state.base + state.len))?;
        let unfit = [if work { BAD | DENIED } else { DENIED }, DENIED, 0];
        unfit.into_iter().find_map(|unfit| {
            let fit = || entries.iter().filter(|entry| entry.flags & unfit == 0);
            let at = turn.checked_rem(fit().count() as u32)?;
            fit().nth(at as usize).map(|entry| entry.ev)
        })
    }

    /// The counters.
    pub fn counters(&self) -> &PathCounters {
        &self.counters
    }

    /// Memory use in bytes, on and off the heap.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>()
            + size_of_val(&*self.entries)
            + size_of_val(&*self.taken)
            + size_of_val(&*self.order)
            + size_of_val(&*self.planes)
            + self.prober.memory_bytes()
            + self.losses.memory_bytes()
            + self.reverse.memory_bytes()
            + self.roles.as_deref().map_or(0, size_of_val)
            + self.listed.as_deref().map_or(0, Listed::memory_bytes)
    }

    fn status(&self, id: EvId, entry: Entry, at: u16, plane: &Plane) -> EvStatus {
        let planes = PlaneSet(self.denied_planes | self.avoided);
        let denied = entry.flags & DENIED != 0 || planes.contains(entry.plane);
        let state = if denied {
            EvState::Denied
        } else if entry.flags & BAD != 0 {
            EvState::AssumedBad
        } else if entry.skip != 0 {
            EvState::Skip
        } else {
            EvState::Good
        };
        EvStatus {
            id,
            ev: entry.ev,
            plane: entry.plane,
            state,
            active: at < plane.active,
            drop_count: self.drops(id),
            packets: self.taken.get(usize::from(id.0)).copied().unwrap_or_default(),
        }
    }
}
