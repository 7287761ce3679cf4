//! Selects the entropy values of a queue pair at set-up.

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::Rng;

use spindrift_srv6::EvProfile;

use super::config::{EvSource, PathConfig};
use crate::wire::Ev;

/// The entropy values of one plane: the first `active` are in use at first, the rest are backups.
pub(super) struct Selection {
    pub(super) evs: Vec<Ev>,
    pub(super) active: usize,
}

/// A random number below `n` (0 if `n` is 0), by multiplication instead of division. The bias is
/// `n / 2^32`.
#[inline]
pub(super) fn below(rng: &mut SplitMix64, n: u16) -> u16 {
    ((u64::from(rng.next_u32()) * u64::from(n)) >> 32) as u16
}

/// Chooses the entropy values of `plane`. `cfg` is valid.
pub(super) fn select(cfg: &PathConfig, plane: u8, rng: &mut SplitMix64) -> Selection {
    let active = cfg.active_of(plane);
    let wanted = active + cfg.backup_of(plane);
    let evs = match &cfg.source {
        EvSource::Random { width_bits } => draw((*width_bits, cfg.carried), wanted, rng),
        EvSource::Explicit(lists) => {
            let list = lists.get(usize::from(plane)).map_or(&[][..], Vec::as_slice);
            sample(list.to_vec(), wanted, rng)
        }
        EvSource::Routed { profiles, width_bits } => match profiles.get(usize::from(plane)) {
            Some(Some(profile)) => draw_paths(profile, wanted, rng),
            _ => draw((*width_bits, cfg.carried), wanted, rng),
        },
    };
    let share = match &cfg.source {
        // Each is a path of its own. A backup would leave its link unused.
        EvSource::Routed { .. } => evs.len().min(active),
        // If there are too few, the ratio of active to backup values is as configured.
        _ => (evs.len() * active).div_ceil(wanted),
    };
    Selection { evs, active: share }
}

/// `count` random values that are distinct in the bits `carried`, or only as a whole if these bits are too few. Either
/// way there are at least four times as many as needed, so few draws are duplicates.
fn draw((width_bits, carried): (u8, Ev), count: usize, rng: &mut SplitMix64) -> Vec<Ev> {
    let all = u32::MAX >> (32 - u32::from(width_bits));
    let enough = 1_u64 << (carried.0 & all).count_ones() >= 4 * count as u64;
    let mask = if enough { carried.0 } else { u32::MAX };
    let mut evs: Vec<Ev> = Vec::with_capacity(count);
    while evs.len() < count {
        let ev = Ev(rng.next_u32() >> (32 - u32::from(width_bits)));
        if has_port_zero(ev, width_bits) || evs.iter().any(|other| (other.0 ^ ev.0) & mask == 0) {
            continue;
        }
        evs.push(ev);
    }
    evs
}

/// `count` distinct values of a profile, or all if it has fewer.
fn draw_paths(profile: &EvProfile, count: usize, rng: &mut SplitMix64) -> Vec<Ev> {
    // Few enough to list them, or so many that few draws are duplicates.
    if profile.count() <= 4 * count as u64 {
        let all = (0..profile.count()).filter_map(|n| profile.nth(n)).map(Ev).collect();
        return sample(all, count, rng);
    }
    let mut evs = Vec::with_capacity(count);
    while evs.len() < count {
        let n = (u64::from(rng.next_u32()) * profile.count()) >> 32;
        let ev = Ev(profile.nth(n).unwrap_or_default());
        if !evs.contains(&ev) {
            evs.push(ev);
        }
    }
    evs
}

/// Whether one of the 16-bit halves that may become the UDP source port is zero.
fn has_port_zero(ev: Ev, width_bits: u8) -> bool {
    ev.0 as u16 == 0 || (width_bits > 16 && ev.0 >> 16 == 0)
}

/// A random subset of `evs` in random order, at most `wanted` long.
fn sample(mut evs: Vec<Ev>, wanted: usize, rng: &mut SplitMix64) -> Vec<Ev> {
    let take = wanted.min(evs.len());
    for at in 0..take {
        let left = (evs.len() - at).min(usize::from(u16::MAX)) as u16;
        evs.swap(at, at + usize::from(below(rng, left)));
    }
    evs.truncate(take);
    evs.shrink_to_fit();
    evs
}
