//! The paths of a queue pair: entropy values, their health, and the selection of the next packet's path.
//!
//! A queue pair sprays its packets over a set of entropy values (EVs), each of which is one path on
//! one plane (MRC paper, section 2.1). [`Paths`] holds the active set, a backup set from which
//! failed EVs of the same plane are replaced, and a small reverse set for acknowledgements. It is
//! plain data: feedback goes in with the time, decisions come out.
//!
//! | In | Out |
//! |---|---|
//! | [`on_ecn`](Paths::on_ecn), [`on_trim`](Paths::on_trim), [`on_always_skip`](Paths::on_always_skip), [`on_packet_lost`](Paths::on_packet_lost), [`on_loss`](Paths::on_loss), [`on_unmarked`](Paths::on_unmarked), [`on_delivered`](Paths::on_delivered) | [`pick`](Paths::pick) |
//! | [`on_probe_answer`](Paths::on_probe_answer), [`on_timer`](Paths::on_timer) | [`poll_probe`](Paths::poll_probe), [`next_timeout`](Paths::next_timeout) |
//! | [`set_local_ports`](Paths::set_local_ports), [`set_peer_ports`](Paths::set_peer_ports), [`deny_ev`](Paths::deny_ev), [`deny_plane`](Paths::deny_plane) | [`usable_planes`](Paths::usable_planes), [`states`](Paths::states), [`poll_event`](Paths::poll_event) |
//! | [`follow_deny_list`](Paths::follow_deny_list) | [`deny_list_status`](Paths::deny_list_status) |
//! | [`prefer`](Paths::prefer), [`fail_serving`](Paths::fail_serving) | [`role_status`](Paths::role_status) |
//! | [`learn_reverse`](Paths::learn_reverse), [`on_reverse_probe_answer`](Paths::on_reverse_probe_answer) | [`pick_reverse`](Paths::pick_reverse), [`end_acks`](Paths::end_acks), [`poll_reverse_probe`](Paths::poll_reverse_probe) |
//!
//! An EV's life (MRC 1.0, figure 5):
//!
//! ```text
//!       ECN mark, trim, excused loss
//!      GOOD ------------------> SKIP     passed over for one rotation or more, then GOOD
//!       | ^                      |
//!  loss | |  probes answered     | loss
//!       v |                      |
//!   ASSUMED_BAD <----------------+       replaced by a backup of the same plane, probed
//!
//!   any -- deny --> DENIED -- allow --> GOOD
//! ```
//!
//! All planes carry equal load whatever happens to their EVs, as long as each has one that works
//! (MRC paper, section 4). Planes of a second NIC may [stand by](PathConfig::standby); then this holds for the planes of
//! one [role](PlaneRole).

mod blame;
mod config;
mod deny_list;
mod ev_pool;
mod events;
mod health;
mod hold;
mod probe;
mod reverse;
mod roles;
mod spray;
mod status;
mod steer;
#[cfg(test)]
mod tests;

use core::fmt;

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::SeedableRng;

pub use self::blame::LossSigns;
pub use self::config::{
    EvSource, MAX_EVS, MAX_PLANES, MAX_PROBE_INTERVAL_NS, MAX_REVERSE_PER_PLANE, PathConfig, PathConfigError,
};
pub use self::deny_list::DenyListStatus;
pub use self::probe::{MAX_PROBES_IN_FLIGHT, Probe};
pub use self::roles::{PlaneRole, RoleStatus};
pub use self::status::{EvEvent, EvState, EvStatus, PathCounters};
pub use self::steer::MAX_SKIP_LIMIT;

use self::blame::Losses;
use self::deny_list::Listed;
use self::events::Events;
pub(crate) use self::hold::HoldTime;
use self::probe::Prober;
pub(crate) use self::reverse::REVERSE_REFRESH_BYTES;
use self::reverse::Reverse;
use self::roles::Roles;
use crate::wire::Ev;

/// A set of planes: bit n is plane n.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PlaneSet(pub u32);

impl PlaneSet {
    /// All possible planes.
    pub const ALL: Self = Self(u32::MAX);

    /// The planes 0 to `planes - 1`.
    pub const fn first(planes: u8) -> Self {
        if planes >= 32 { Self::ALL } else { Self((1 << planes) - 1) }
    }

    /// Whether `plane` is in the set.
    pub const fn contains(self, plane: u8) -> bool {
        plane < 32 && self.0 >> plane & 1 == 1
    }

    /// The number of planes in the set.
    pub(crate) const fn count(self) -> u16 {
        self.0.count_ones() as u16
    }

    /// The planes in ascending order.
    pub fn iter(self) -> impl Iterator<Item = u8> {
        (0..32).filter(move |&plane| self.contains(plane))
    }

    /// The plane number `n` of the set, in ascending order.
    pub(crate) fn nth(self, n: u16) -> Option<u8> {
        self.iter().nth(usize::from(n))
    }
}

/// The planes in ascending order, separated by commas: `0,2`, or `none`.
///
/// ```
/// use spindrift::path::PlaneSet;
///
/// assert_eq!([0, 0b101].map(|mask| PlaneSet(mask).to_string()), ["none", "0,2"]);
/// ```
impl fmt::Display for PlaneSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("none");
        }
        self.iter().try_fold("", |comma, plane| write!(f, "{comma}{plane}").map(|()| ","))?;
        Ok(())
    }
}

/// Identifies an entropy value of one [`Paths`] for the lifetime of that, whether it is active, a backup or bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EvId(pub u16);

/// The path of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SelectedPath {
    pub(crate) id: EvId,
    pub(crate) ev: Ev,
    pub(crate) plane: u8,
}

/// What the path of a retransmission should be like (decision 7).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PathHint {
    /// Take a path of the role that does not serve, if there is one.
    pub(crate) idle: bool,
    /// Take a bad path, if there is one other than this.
    pub(crate) bad_but: Option<EvId>,
    /// Take the active path on which the newest packet arrived, if there is one other than this.
    pub(crate) proven_but: Option<EvId>,
    /// Take a path other than this, if there is one.
    pub(crate) avoid: Option<EvId>,
    /// Wait until another plane than that of `avoid` has room.
    pub(crate) other_plane: bool,
}

/// The mark in the SACK for a reliability probe: its `m` field (MRC 1.0 table 7-14).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvMark {
    /// No mark: the path works.
    None,
    /// The probe was ECN-marked: the path works but is congested.
    SkipOnce,
    /// The peer asks not to use the path.
    AlwaysSkip,
}

/// The state of one entropy value: 8 bytes, because [`Paths::pick`] reads one for every packet.
#[derive(Clone, Copy, Debug)]
struct Entry {
    ev: Ev,
    plane: u8,
    /// `BAD`, `DENIED` (at most one of these), `PROBING`, `ALIVE`, `FORCED`, `LISTED`.
    flags: u8,
    /// Number of times still to be passed over: in SKIP unless 0.
    skip: u8,
    /// Rotations that it sits out after each that it takes part in, in eighths.
    backoff: u8,
}

/// `ASSUMED_BAD`: out of use, being probed.
const BAD: u8 = 1;
/// Denied by the application, or by a deny list.
const DENIED: u8 = 2;
/// Bad, and a probe is in flight.
const PROBING: u8 = 4;
/// Live: `ASSUMED_BAD`, and a packet has arrived on it since the last loss or expired probe.
const ALIVE: u8 = 8;
/// Neither bad nor denied, but only to keep `min_active`: nothing shows that it works. Set only if planes stand by.
const FORCED: u8 = 16;
/// Denied, and by a deny list alone.
const LISTED: u8 = 32;

/// One plane's part of the arrays, and the state of its rotation.
///
/// The plane's entropy values are `order[base..base + len]`: first the active ones, then the backups, then those out
/// of use (bad or denied). `cursor`, `used`, `start` and `end` are positions in the active part, relative to `base`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(8))]
struct Plane {
    base: u16,
    len: u16,
    active: u16,
    spare: u16,
    /// Target number of active entropy values.
    target: u16,
    /// The next position to use. Those from here to `end` have not been used in this turn.
    cursor: u16,
    /// Positions below this have been used in this round; kept up to date only at the end of a slice.
    used: u16,
    /// The part of the rotation that the current burst uses; all of it when not sliced.
    start: u16,
    end: u16,
    /// Turns that this plane missed because its port had no room.
    debt: u8,
    /// Index of the plane's reverse entropy value to replace next.
    reverse_learn: u8,
    /// Recent share of marked packets, without those of the path that was marked last, in 1/65,536.
    marked: u16,
    /// The path that was marked last.
    last_marked: u16,
}

/// The entropy values of one queue pair, forward and reverse.
#[derive(Clone, Debug)]
pub struct Paths {
    entries: Box<[Entry]>,
    /// Data packets on each, modulo 2^32, if they are counted.
    taken: Box<[u32]>,
    order: Box<[u16]>,
    planes: Box<[Plane]>,
    rng: SplitMix64,
    /// Planes that are up on both sides and not denied.
    open: u32,
    /// Open planes with at least one active entropy value.
    working: u32,
    /// Those of them that serve and do not stand by, or all if none does.
    usable: u32,
    /// Planes whose role lets them carry packets: all, if planes have no roles.
    serving: u32,
    /// Planes whose role lets them carry acknowledgements, and which a deny list avoids or not, as that on which the
    /// last packet arrived.
    ack_role: u32,
    /// `None` if planes have no roles.
    roles: Option<Box<Roles>>,
    /// Planes of the role that serves that stand by because of a deny list.
    avoided: u32,
    /// Times that the planes that serve were silent, while others stood by.
    silent_failovers: u64,
    /// What is on the deny list; `None` if nothing is.
    listed: Option<Box<Listed>>,
    /// The hold time, at first and at most, ns.
    hold_ns: u64,
    hold_max_ns: u64,
    /// Planes whose turn in this round is still to come.
    round: u32,
    local_ports: u32,
    peer_ports: u32,
    denied_planes: u32,
    /// The plane that had the last turn.
    last_plane: u8,
    /// A burst is limited to a part of the rotation.
    sliced: bool,
    ecn_steering: bool,
    skip_limit: u8,
    spray_width: u16,
    min_active: u16,
    prober: Prober,
    losses: Losses,
    reverse: Reverse,
    events: Events,
    counters: PathCounters,
}

impl Paths {
    /// Chooses the entropy values of a queue pair. Equal `seed`s choose and rotate alike.
    ///
    /// # Errors
    /// The errors of [`PathConfig::validate`].
    pub fn new(cfg: &PathConfig, seed: u64) -> Result<Self, PathConfigError> {
        cfg.validate()?;
        let mut rng = SplitMix64::seed_from_u64(seed);
        let mut entries = Vec::new();
        let mut planes = Vec::with_capacity(usize::from(cfg.planes));
        for plane in 0..cfg.planes {
            let chosen = ev_pool::select(cfg, plane, &mut rng);
            let active = chosen.active as u16;
            planes.push(Plane {
                base: entries.len() as u16,
                len: chosen.evs.len() as u16,
                active,
                spare: (chosen.evs.len() - chosen.active) as u16,
                target: active,
                end: active,
                ..Plane::default()
            });
            entries.extend(chosen.evs.into_iter().map(|ev| Entry {
                ev,
                plane,
                flags: 0,
                skip: 0,
                backoff: 0,
            }));
        }
        let order = (0..entries.len() as u16).collect();
        let min_active = cfg.floor_of(entries.len());
        let all = PlaneSet::first(cfg.planes).0;
        let serving = all & !cfg.standby.0;
        let last_plane = ev_pool::below(&mut rng, u16::from(cfg.planes)) as u8;
        let mut paths = Self {
            prober: Prober::new(cfg, entries.len() as u16),
            losses: Losses::new(entries.len() as u16, cfg.planes, cfg.probe_interval_max_ns),
            reverse: Reverse::new(cfg, &mut rng),
            taken: vec![0; if cfg.count_packets { entries.len() } else { 0 }].into_boxed_slice(),
            entries: entries.into_boxed_slice(),
            order,
            planes: planes.into_boxed_slice(),
            rng,
            open: all,
            working: all,
            usable: serving,
            round: serving,
            serving,
            ack_role: serving,
            roles: Roles::new(cfg),
            avoided: 0,
            silent_failovers: 0,
            listed: None,
            hold_ns: cfg.failback_hold_ns,
            hold_max_ns: cfg.failback_hold_max_ns,
            local_ports: all,
            peer_ports: all,
            denied_planes: 0,
            last_plane,
            sliced: false,
            spray_width: cfg.spray_width,
            ecn_steering: cfg.ecn_steering,
            skip_limit: cfg.skip_limit,
            min_active,
            events: Events::default(),
            counters: PathCounters::default(),
        };
        for plane in 0..cfg.planes {
            paths.heal_reverse(plane);
        }
        paths.find_next_probe();
        Ok(paths)
    }

    /// The entropy value that `id` names; all zero for an id of another queue pair.
    #[inline]
    pub fn ev(&self, id: EvId) -> Ev {
        self.entries.get(usize::from(id.0)).map_or(Ev(0), |entry| entry.ev)
    }

    /// The numbers of the entropy values of `plane`.
    pub(crate) fn of_plane(&self, plane: u8) -> core::ops::Range<usize> {
        let range = |state: &Plane| usize::from(state.base)..usize::from(state.base + state.len);
        self.planes.get(usize::from(plane)).map_or(0..0, range)
    }

    /// The number of planes.
    pub(crate) const fn plane_count(&self) -> u8 {
        self.planes.len() as u8
    }

    /// The plane of `id`; 0 for an id of another queue pair.
    #[inline]
    pub fn plane(&self, id: EvId) -> u8 {
        self.entries.get(usize::from(id.0)).map_or(0, |entry| entry.plane)
    }

    /// Planes that [`pick`](Self::pick) can choose: up on both sides, not denied, with at least one
    /// active entropy value, and of the role that serves.
    #[inline]
    pub fn usable_planes(&self) -> PlaneSet {
        PlaneSet(self.usable)
    }

    /// Planes that are up on both sides and not denied, with or without an active entropy value.
    #[inline]
    pub fn open_planes(&self) -> PlaneSet {
        PlaneSet(self.open)
    }
}
