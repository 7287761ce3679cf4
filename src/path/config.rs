//! Settings of a queue pair's path set, and their validation.

use std::sync::Arc;

use spindrift_srv6::{EvProfile, ProfileError};

use super::{MAX_SKIP_LIMIT, PlaneSet};
use crate::wire::Ev;

/// Most planes a NIC may have: a plane is a bit of the 32-bit port mask of a Port Status Update
/// (MRC 1.0 table 7-20).
pub const MAX_PLANES: u8 = 32;

/// Maximum of entropy values of a queue pair over all planes, active and backup together.
///
/// The paper names 128 to 256 as typical (MRC paper, section 2.1); sixteen times that bounds the
/// memory and the set-up time of a queue pair.
pub const MAX_EVS: usize = 4096;

/// Maximum of reverse entropy values per plane.
pub const MAX_REVERSE_PER_PLANE: u8 = 8;

/// Longest delay between probes that can be configured, in nanoseconds: one hour.
pub const MAX_PROBE_INTERVAL_NS: u64 = 3_600_000_000_000;

/// The source of a queue pair's entropy values.
#[derive(Clone, Debug, PartialEq)]
pub enum EvSource {
    /// Random, distinct within a plane, `width_bits` wide (8 to 32).
    ///
    /// Values with an all-zero 16-bit half are excluded. That half becomes the UDP source port, and port 0 is
    /// reserved: RFC 768 allows it only for senders that want no reply, and firewalls drop it.
    Random {
        /// Width of an entropy value, see the entropy modes of MRC 1.0 (32 bits for STEV, 16 for UDP).
        width_bits: u8,
    },
    /// The usable values of each plane. The ports must be able to send them: kernel sockets have those source ports
    /// alone that they are bound to. These are also the values of a queue pair over kernel sockets that has another
    /// source.
    ///
    /// A plane that lists fewer values than asked for uses all of them, split between active and
    /// backup in the configured proportion.
    Explicit(Arc<[Vec<Ev>]>),
    /// Random, from the values of each plane's profile. A plane whose profile has fewer values than requested uses
    /// all of them. They become active before there is a backup, since each is another path through the network.
    /// Planes without a profile have values as [`Random`](Self::Random) draws them. With a profile, the UDP source
    /// port may be 0, since only the receiver of the outer packet sees it.
    ///
    /// An endpoint whose [routes](crate::endpoint::Route) have an outer packet selects this source by itself.
    Routed {
        /// The profile of each plane.
        profiles: Arc<[Option<EvProfile>]>,
        /// Width of a value on planes without a profile.
        width_bits: u8,
    },
}

/// The path set of a queue pair: sizes, source of the entropy values, probe cadence.
///
/// Times are in nanoseconds. The sizes are totals over all planes of a role; each plane gets an equal share,
/// rounded up, because equal entropy values per plane equalise the planes' load (MRC paper,
/// section 2.1).
#[derive(Clone, Debug, PartialEq)]
pub struct PathConfig {
    /// Entropy values in use at a time. Default 128 (MRC paper, section 2.1: 128 to 256).
    pub active: u16,
    /// Entropy values that replace failed ones of the same plane. Default 64.
    pub backup: u16,
    /// Losses never reduce the active entropy values of the usable planes below this (the OCP API's `ev_min_active`).
    /// Planes with spare backups then activate more than their share. If there are none, paths that lost packets stay
    /// in use. Default 4. If there are fewer values than requested, at most an eighth of them, and at least 1: of a
    /// few paths all but one may have failed.
    pub min_active: u16,
    /// Planes, that is NIC ports, 1 to [`MAX_PLANES`].
    pub planes: u8,
    /// Planes that stand by for the others, those of a second NIC: see [`PlaneRole`](super::PlaneRole). Some planes
    /// must remain. Default none.
    pub standby: PlaneSet,
    /// Interval between probes of planes that stand by, one path at a time; 0: they are not probed. Default 1 s.
    pub standby_probe_ns: u64,
    /// Time that the preferred planes must be fit before packets return to them. It doubles with every failover.
    /// Default 1 s.
    pub failback_hold_ns: u64,
    /// The longest such time, and the time without a failover that takes one doubling back. Default 60 s.
    pub failback_hold_max_ns: u64,
    /// The source of the entropy values. Default: random, 32 bits wide.
    pub source: EvSource,
    /// The bits of entropy values that packets carry; IPv4 has room for half of them. Random values differ in these
    /// bits if there are enough, so that each is a path of its own. An endpoint sets it. Default all.
    pub carried: Ev,
    /// Time from an entropy value becoming `ASSUMED_BAD` to its first probe. Default 1 ms.
    pub probe_interval_ns: u64,
    /// Longest interval between two probes of one entropy value. The interval doubles with every probe that expires,
    /// up to this. Default 1 s.
    pub probe_interval_max_ns: u64,
    /// Time after which a probe expires, unless the measured round-trip times require a longer one. Default 4 ms:
    /// many round trips even under congestion, and less than the 8.39 ms after which the 16-bit timestamp that the
    /// SACK reflects is ambiguous (MRC 1.0 table 6-6, 128 ns units).
    pub probe_timeout_ns: u64,
    /// Consecutive acknowledged probes that make an entropy value GOOD again. Default 2.
    pub probes_to_revive: u8,
    /// Reverse entropy values per plane, at least 1 (MRC paper, section 2.4). Default 1.
    pub reverse_per_plane: u8,
    /// Interval of the reverse-path probes of a queue pair that receives little and gets no SACK for data of its own.
    /// A longer round-trip time replaces it. A queue pair that receives much sends probes a round trip apart. Default
    /// 1 ms.
    pub reverse_refresh_ns: u64,
    /// Number of entropy values that one burst is spread over, 0 for all; see
    /// [`Paths::begin_burst`](super::Paths::begin_burst). Default 0.
    pub spray_width: u16,
    /// An ECN mark makes the rotation pass over its path. Default yes. If not, marks count for congestion control
    /// only, which shows the effect of steering.
    pub ecn_steering: bool,
    /// Maximum of rotations that a path sits out after each that it takes part in. More marks mean more rotations,
    /// while those of other paths are not marked. A trimmed packet counts 4 rotations at most. 0: each mark and each
    /// trim makes the rotation pass over the path once, and no more (MRC 1.0 figure 5). Default 15, the maximum.
    pub skip_limit: u8,
    /// Counts the data packets on each entropy value, 4 bytes for each. Default no.
    pub count_packets: bool,
}

/// The reason why a [`PathConfig`] is invalid. Every message names the field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathConfigError {
    /// `planes` is 0 or more than [`MAX_PLANES`].
    #[error("planes = {0}: must be 1 to {MAX_PLANES}")]
    Planes(u8),
    /// `standby` has all planes, or one that does not exist.
    #[error("standby = {standby}: must leave at least one of the {planes} planes, and name no others than 0 to {last}", last = planes - 1)]
    Standby {
        /// The given set.
        standby: PlaneSet,
        /// The number of planes requested.
        planes: u8,
    },
    /// `standby_probe_ns` is more than [`MAX_PROBE_INTERVAL_NS`].
    #[error("standby_probe_ns = {0}: at most {MAX_PROBE_INTERVAL_NS}")]
    StandbyProbe(u64),
    /// `failback_hold_ns` is more than `failback_hold_max_ns`, or that is more than [`MAX_PROBE_INTERVAL_NS`].
    #[error(
        "failback_hold_ns = {hold}: at most failback_hold_max_ns ({max}), and that at most {MAX_PROBE_INTERVAL_NS}"
    )]
    FailbackHold {
        /// The given value.
        hold: u64,
        /// The given `failback_hold_max_ns`.
        max: u64,
    },
    /// `active` is smaller than `planes`.
    #[error("active = {active}: every one of the {planes} planes needs at least one entropy value")]
    Active {
        /// The given value.
        active: u16,
        /// The number of planes requested.
        planes: u8,
    },
    /// `active` and `backup` together exceed [`MAX_EVS`].
    #[error("active + backup = {0} after rounding up to equal planes: at most {MAX_EVS}")]
    TooMany(usize),
    /// `min_active` is 0 or more than `active`.
    #[error("min_active = {min_active}: must be 1 to active ({active})")]
    MinActive {
        /// The given value.
        min_active: u16,
        /// The number of active entropy values requested.
        active: u16,
    },
    /// `source` is random with a width outside 8 to 32 bits.
    #[error("source.width_bits = {0}: must be 8 to 32")]
    Width(u8),
    /// `source` is random and too narrow for the number of entropy values requested.
    #[error("source.width_bits = {width_bits}: too narrow for {per_plane} entropy values per plane")]
    TooNarrow {
        /// The given width.
        width_bits: u8,
        /// Active and backup entropy values of one plane.
        per_plane: usize,
    },
    /// `source` has lists or profiles, and not one for each plane.
    #[error("source: {lists} lists or profiles of entropy values for {planes} planes")]
    SourcePlanes {
        /// Lists or profiles given.
        lists: usize,
        /// The number of planes requested.
        planes: u8,
    },
    /// `source` is explicit and has no entropy value for a plane.
    #[error("source: plane {0} has no entropy value")]
    ExplicitEmpty(u8),
    /// `source` is explicit and names an entropy value twice in one plane.
    #[error("source: plane {plane} lists entropy value {ev:#x} twice", ev = ev.0)]
    ExplicitTwice {
        /// The plane.
        plane: u8,
        /// The value.
        ev: Ev,
    },
    /// `source` is explicit, and an entropy value has no path to the peer.
    #[error("source: plane {plane}: {why}")]
    NoPath {
        /// The plane.
        plane: u8,
        /// The reason.
        why: ProfileError,
    },
    /// `probe_interval_ns` is 0 or more than `probe_interval_max_ns`.
    #[error("probe_interval_ns = {interval}: must be 1 to probe_interval_max_ns ({max})")]
    ProbeInterval {
        /// The given value.
        interval: u64,
        /// The given `probe_interval_max_ns`.
        max: u64,
    },
    /// `probe_interval_max_ns` is more than [`MAX_PROBE_INTERVAL_NS`].
    #[error("probe_interval_max_ns = {0}: at most {MAX_PROBE_INTERVAL_NS}")]
    ProbeIntervalMax(u64),
    /// `probe_timeout_ns` is 0.
    #[error("probe_timeout_ns = 0: must be at least 1")]
    ProbeTimeout,
    /// `probes_to_revive` is 0.
    #[error("probes_to_revive = 0: must be at least 1")]
    ProbesToRevive,
    /// `skip_limit` is more than [`MAX_SKIP_LIMIT`].
    #[error("skip_limit = {0}: at most {MAX_SKIP_LIMIT}")]
    SkipLimit(u8),
    /// `reverse_per_plane` is 0 or more than [`MAX_REVERSE_PER_PLANE`].
    #[error("reverse_per_plane = {0}: must be 1 to {MAX_REVERSE_PER_PLANE}")]
    ReversePerPlane(u8),
}

impl PathConfig {
    /// The defaults for `planes` planes.
    pub fn new(planes: u8) -> Self {
        Self {
            active: 128,
            backup: 64,
            min_active: 4,
            planes,
            standby: PlaneSet::default(),
            standby_probe_ns: 1_000_000_000,
            failback_hold_ns: 1_000_000_000,
            failback_hold_max_ns: 60_000_000_000,
            source: EvSource::Random { width_bits: 32 },
            carried: Ev(u32::MAX),
            probe_interval_ns: 1_000_000,
            probe_interval_max_ns: 1_000_000_000,
            probe_timeout_ns: 4_000_000,
            probes_to_revive: 2,
            reverse_per_plane: 1,
            reverse_refresh_ns: 1_000_000,
            spray_width: 0,
            ecn_steering: true,
            skip_limit: 15,
            count_packets: false,
        }
    }

    /// Checks every field against its range and against the others.
    ///
    /// # Errors
    /// The first invalid field.
    pub fn validate(&self) -> Result<(), PathConfigError> {
        use PathConfigError as E;
        if self.planes == 0 || self.planes > MAX_PLANES {
            return Err(E::Planes(self.planes));
        }
        if self.active < u16::from(self.planes) {
            return Err(E::Active { active: self.active, planes: self.planes });
        }
        let all = PlaneSet::first(self.planes).0;
        if self.standby.0 & !all != 0 || self.standby.0 == all {
            return Err(E::Standby { standby: self.standby, planes: self.planes });
        }
        let total = self.wanted_evs();
        if total > MAX_EVS {
            return Err(E::TooMany(total));
        }
        if self.min_active == 0 || self.min_active > self.active {
            return Err(E::MinActive { min_active: self.min_active, active: self.active });
        }
        if self.probe_interval_max_ns > MAX_PROBE_INTERVAL_NS {
            return Err(E::ProbeIntervalMax(self.probe_interval_max_ns));
        }
        if self.probe_interval_ns == 0 || self.probe_interval_ns > self.probe_interval_max_ns {
            return Err(E::ProbeInterval {
                interval: self.probe_interval_ns,
                max: self.probe_interval_max_ns,
            });
        }
        if self.probe_timeout_ns == 0 {
            return Err(E::ProbeTimeout);
        }
        if self.probes_to_revive == 0 {
            return Err(E::ProbesToRevive);
        }
        if self.standby_probe_ns > MAX_PROBE_INTERVAL_NS {
            return Err(E::StandbyProbe(self.standby_probe_ns));
        }
        let (hold, max) = (self.failback_hold_ns, self.failback_hold_max_ns);
        if hold > max || max > MAX_PROBE_INTERVAL_NS {
            return Err(E::FailbackHold { hold, max });
        }
        if self.skip_limit > MAX_SKIP_LIMIT {
            return Err(E::SkipLimit(self.skip_limit));
        }
        if self.reverse_per_plane == 0 || self.reverse_per_plane > MAX_REVERSE_PER_PLANE {
            return Err(E::ReversePerPlane(self.reverse_per_plane));
        }
        self.validate_source()
    }

    fn validate_source(&self) -> Result<(), PathConfigError> {
        use PathConfigError as E;
        match &self.source {
            EvSource::Random { width_bits } => self.validate_width(*width_bits),
            EvSource::Routed { profiles, width_bits } => {
                self.one_each(profiles.len())?;
                self.validate_width(*width_bits)
            }
            EvSource::Explicit(lists) => {
                self.one_each(lists.len())?;
                for (plane, list) in (0..).zip(lists.iter()) {
                    if list.is_empty() {
                        return Err(E::ExplicitEmpty(plane));
                    }
                    let mut sorted = list.clone();
                    sorted.sort_unstable();
                    if let Some(twice) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
                        return Err(E::ExplicitTwice { plane, ev: twice[0] });
                    }
                }
                Ok(())
            }
        }
    }

    fn validate_width(&self, width_bits: u8) -> Result<(), PathConfigError> {
        if !(8..=32).contains(&width_bits) {
            return Err(PathConfigError::Width(width_bits));
        }
        // A quarter of the space, so that random distinct values need few draws.
        let per_plane = (0..self.planes).map(|plane| self.evs_of(plane)).max().unwrap_or(0);
        if per_plane as u64 > (1_u64 << width_bits) / 4 {
            return Err(PathConfigError::TooNarrow { width_bits, per_plane });
        }
        Ok(())
    }

    /// Checks that there is one list or profile for each plane.
    fn one_each(&self, lists: usize) -> Result<(), PathConfigError> {
        if lists == usize::from(self.planes) {
            Ok(())
        } else {
            Err(PathConfigError::SourcePlanes { lists, planes: self.planes })
        }
    }

    /// The minimum of active values if there are `evs` in all.
    pub(super) fn floor_of(&self, evs: usize) -> u16 {
        let wanted = self.wanted_evs();
        let most = if evs < wanted { (evs / 8).max(1) } else { evs };
        usize::from(self.min_active).min(most) as u16
    }

    /// Entropy values of all planes, if the source has enough.
    fn wanted_evs(&self) -> usize {
        (0..self.planes).map(|plane| self.evs_of(plane)).sum()
    }

    fn evs_of(&self, plane: u8) -> usize {
        self.active_of(plane) + self.backup_of(plane)
    }

    /// Active entropy values of a plane: an equal share among those of its role, rounded up.
    pub(super) fn active_of(&self, plane: u8) -> usize {
        usize::from(self.active).div_ceil(self.planes_like(plane))
    }

    /// Backup entropy values of a plane: an equal share among those of its role, rounded up.
    pub(super) fn backup_of(&self, plane: u8) -> usize {
        usize::from(self.backup).div_ceil(self.planes_like(plane))
    }

    /// Planes with the role of this one.
    fn planes_like(&self, plane: u8) -> usize {
        let standby = self.standby.0.count_ones() as usize;
        let count = if self.standby.contains(plane) { standby } else { usize::from(self.planes) - standby };
        count.max(1)
    }
}
