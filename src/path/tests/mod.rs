//! Traces of path choice, written as: what happens, then what the next packets do.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that meets the unexpected shall fail"
)]

mod deny_list;
mod losses;
mod model;
mod probes;
mod reverse;
mod roles;
mod setup;
mod spray;
mod steering;
mod transitions;

use super::*;
use crate::time::Time;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const ALL: PlaneSet = PlaneSet::ALL;

fn at_us(us: u64) -> Time {
    Time(us * US)
}

/// A small set: per plane `active` + `backup`.
fn small(planes: u8, active: u16, backup: u16) -> PathConfig {
    PathConfig {
        active: active * u16::from(planes),
        backup: backup * u16::from(planes),
        min_active: 1,
        ..PathConfig::new(planes)
    }
}

fn paths(cfg: &PathConfig) -> Paths {
    Paths::new(cfg, 7).unwrap()
}

fn picks(paths: &mut Paths, count: usize) -> Vec<EvId> {
    (0..count).map(|_| paths.pick(ALL, None).unwrap()).collect()
}

fn planes_of(paths: &Paths, ids: &[EvId]) -> Vec<u8> {
    ids.iter().map(|&id| paths.plane(id)).collect()
}

fn status(paths: &Paths, id: EvId) -> EvStatus {
    paths.states().find(|status| status.id == id).unwrap()
}

fn state(paths: &Paths, id: EvId) -> EvState {
    status(paths, id).state
}

/// Takes probes as an endpoint does, with a generator that says everything three times.
trait NextProbe {
    fn next_probe(&mut self, now: Time) -> Option<Probe> {
        self.patient_probe(now, 0)
    }

    fn patient_probe(&mut self, now: Time, patience_ns: u64) -> Option<Probe>;
}

impl NextProbe for Paths {
    fn patient_probe(&mut self, now: Time, patience_ns: u64) -> Option<Probe> {
        let mut said = (now.0 as u32).wrapping_mul(0x9e37_79b1) >> 16;
        let draw = || {
            said += 1;
            (said / 3) as u16
        };
        self.poll_probe(now, ALL, patience_ns, draw)
    }
}

/// Ids in a plane, active or not.
fn ids(paths: &Paths, plane: u8, active: bool) -> Vec<EvId> {
    paths.states().filter(|s| s.plane == plane && s.active == active).map(|s| s.id).collect()
}

fn sorted(mut ids: Vec<EvId>) -> Vec<EvId> {
    ids.sort();
    ids
}
