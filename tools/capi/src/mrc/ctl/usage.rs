//! Queue pairs that use profiles.
//!
//! A queue pair takes its profiles when its program moves it to RTR. It registers first and reads the state of the device then; a controller
//! that takes a profile OFFLINE writes first and counts users then. So one of the two sees the other.

use core::ffi::c_int;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, MutexGuard, PoisonError};

use spindrift::congestion::CcConfig;
use spindrift::endpoint::Endpoint;
use spindrift::path::{EvEvent, EvSource, EvState, PathConfig, PlaneSet};
use spindrift::verbs::QpModify;
use spindrift::wire::{Ev, Qpn};

use super::abi::ev_state;
use super::bus::Change;
use super::managed::Managed;
use super::state::{DeviceState, EvProfile, Mode, Profile, ProfileState, Refusal, Result, refuse};
use crate::abi::qp_state;
use crate::connection::{Inner, QpCore};
use crate::error::{code_of, tell};

/// What a queue pair uses.
#[derive(Debug, Default)]
pub(crate) struct Used {
    /// Profiles of entropy values and of congestion control; 0: the device's own.
    ev: u64,
    cc: u64,
    /// The entropy values of the profile by plane and source port; none of a profile that has the device's.
    values: BTreeMap<(u8, u16), u32>,
    denied: BTreeSet<(u8, u16)>,
    settings: Option<CcConfig>,
    /// Events that its paths have lost so far.
    events_lost: u64,
    /// It was given other paths, or other congestion control, than the device's own.
    other_paths: bool,
    other_cc: bool,
}

/// The source ports of a profile, by plane, and what it is for a queue pair.
#[derive(Debug)]
pub(crate) struct Paths {
    pub(crate) config: PathConfig,
    values: BTreeMap<(u8, u16), u32>,
    denied: BTreeSet<(u8, u16)>,
    /// Planes without any.
    without: PlaneSet,
}

/// A profile that is ONLINE.
fn online<'a, T>(
    id: u64,
    of: &str,
    found: Option<&'a T>,
    state: impl Fn(&T) -> ProfileState,
) -> Result<&'a T> {
    match found {
        Some(profile) if state(profile) == ProfileState::Online => Ok(profile),
        Some(_) => refuse(libc::EINVAL, format!("profile {id} of {of} is not ONLINE")),
        None => refuse(libc::EINVAL, format!("profile {id} of {of} does not exist; 0 is that of the device")),
    }
}

/// Whether queue pairs may have these profiles.
pub(crate) fn check(state: &DeviceState, (ev, cc): (u64, u64)) -> Result<()> {
    if ev != 0 {
        online(ev, "entropy values", state.ev(ev), |profile| profile.state)?;
    }
    if cc != 0 {
        online(cc, "congestion control", state.cc(cc), |profile| profile.state)?;
    }
    Ok(())
}

/// Entropy values that are denied, by plane and source port.
fn denied(profile: &EvProfile) -> Result<BTreeSet<(u8, u16)>> {
    let denied = profile.entries().iter().filter(|entry| entry.denied && entry.port > 0);
    denied.map(|entry| Ok((entry.port - 1, profile.source_port(entry.value)?))).collect()
}

/// The paths of a queue pair with a profile. `first` is a source port of a plane that is always open.
pub(crate) fn paths(
    profile: &EvProfile,
    standby: PlaneSet,
    planes: u8,
    first: impl Fn(u8) -> u16,
) -> Result<Paths> {
    let default = PathConfig { standby, ..PathConfig::new(planes) };
    let least = |evs: u16| u16::try_from(profile.min_active).unwrap_or(u16::MAX).clamp(1, evs.max(1));
    if profile.mode == Some(Mode::Auto) {
        let config = PathConfig { min_active: least(default.active), ..default };
        let (values, denied) = (BTreeMap::new(), BTreeSet::new());
        return Ok(Paths { config, values, denied, without: PlaneSet(0) });
    }
    let mut values = BTreeMap::new();
    for entry in profile.entries() {
        // Those of ports that this device has no more.
        if (1..=planes).contains(&entry.port) {
            values.insert((entry.port - 1, profile.source_port(entry.value)?), entry.value);
        }
    }
    let mut without = PlaneSet(0);
    let mut lists: Vec<Vec<Ev>> = Vec::new();
    for plane in 0..planes {
        let of_plane = values.range((plane, 0)..=(plane, u16::MAX));
        let mut list: Vec<Ev> = of_plane.map(|((_, port), _)| Ev((*port).into())).collect();
        if list.is_empty() {
            without.0 |= 1 << plane;
            list.push(Ev(first(plane).into()));
        }
        lists.push(list);
    }
    if without == PlaneSet::first(planes) {
        return refuse(libc::EINVAL, "the profile has no entropy value on a port of this device");
    }
    // Each plane uses all that it has, and has no backups.
    let most = lists.iter().map(Vec::len).max().unwrap_or(1) as u16;
    let active = most * u16::from(planes);
    let source = EvSource::Explicit(lists.into());
    let config = PathConfig { active, backup: 0, min_active: least(active), source, ..default };
    Ok(Paths { config, values, denied: denied(profile)?, without })
}

/// Denies and allows what differs.
fn deny(endpoint: &mut Endpoint, qpn: Qpn, before: &BTreeSet<(u8, u16)>, now: &BTreeSet<(u8, u16)>) {
    for &(plane, port) in now.difference(before) {
        endpoint.deny_ev(qpn, Ev(port.into()), Some(plane));
    }
    for &(plane, port) in before.difference(now) {
        endpoint.allow_ev(qpn, Ev(port.into()), Some(plane));
    }
}

fn failed(error: &spindrift::verbs::VerbsError) -> Refusal {
    Refusal { code: code_of(error), why: error.to_string() }
}

impl QpCore {
    pub(crate) fn used(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn managed(&self) -> &Managed {
        &self.nic.managed
    }

    /// Acts on the endpoint of the queue pair.
    fn with_endpoint<R>(&self, act: impl FnOnce(&mut Endpoint, Qpn) -> R) -> Result<R> {
        let qpn = Qpn::new(self.wire());
        let verbs = &self.nic.verbs;
        verbs
            .with_endpoint_of(verbs.lane_of(qpn), |endpoint| act(endpoint, qpn))
            .map_err(|error| failed(&error))
    }

    /// Gives the queue pair the profiles that its program has set. It is in INIT.
    pub(crate) fn use_profiles(&self, inner: &mut Inner) -> core::result::Result<(), c_int> {
        let Some((ev, cc)) = inner.mrc.as_ref().map(crate::mrc::attributes::Attributes::profiles) else {
            return Ok(());
        };
        let mut used = self.used();
        if ev == 0 && cc == 0 && !used.other_paths && !used.other_cc {
            return Ok(());
        }
        (used.ev, used.cc) = (ev, cc);
        // Whoever counts users does so with the lock.
        let done = self.managed().read().and_then(|state| {
            check(&state, (ev, cc))?;
            self.take_paths(inner, &mut used, state.ev(ev))?;
            self.take_congestion(inner, &mut used, &state)
        });
        done.map_err(|refusal| {
            (used.ev, used.cc) = (0, 0);
            tell(&format!("queue pair {:#x}", self.number.get()), &refusal.why);
            refusal.code
        })
    }

    fn take_paths(&self, inner: &mut Inner, used: &mut Used, profile: Option<&EvProfile>) -> Result<()> {
        if profile.is_none() && !used.other_paths {
            return Ok(());
        }
        let planes = self.managed().planes();
        let count = planes.len() as u8;
        let first = |plane: u8| planes.get(usize::from(plane)).map_or(0, |plane| plane.first_source());
        let standby = self.nic.standby;
        let paths = match profile {
            Some(profile) => paths(profile, standby, count, first)?,
            None => Paths {
                config: PathConfig { standby, ..PathConfig::new(count) },
                values: BTreeMap::new(),
                denied: BTreeSet::new(),
                without: PlaneSet(0),
            },
        };
        for (at, plane) in (0..).zip(planes) {
            let ports = paths.values.range((at, 0)..=(at, u16::MAX)).map(|((_, port), _)| *port);
            let opened = plane.open_sources(ports);
            opened.map_err(|error| Refusal { code: libc::ENOMEM, why: error.to_string() })?;
        }
        let of = |code: c_int| Refusal { code, why: "the queue pair is gone".to_owned() };
        let change = QpModify::Paths(Box::new(paths.config));
        inner.qp().map_err(of)?.modify(change).map_err(|error| failed(&error))?;
        let before = core::mem::take(&mut used.denied);
        self.with_endpoint(|endpoint, qpn| {
            for plane in 0..count {
                if paths.without.contains(plane) {
                    endpoint.deny_plane(qpn, plane);
                } else {
                    endpoint.allow_plane(qpn, plane);
                }
            }
            // RESET forgets what is denied.
            deny(endpoint, qpn, &before, &BTreeSet::new());
            deny(endpoint, qpn, &BTreeSet::new(), &paths.denied);
        })?;
        (used.values, used.denied) = (paths.values, paths.denied);
        (used.other_paths, used.events_lost) = (profile.is_some(), 0);
        Ok(())
    }

    fn take_congestion(&self, inner: &mut Inner, used: &mut Used, state: &DeviceState) -> Result<()> {
        let default = self.nic.verbs.default_cc(self.nic.verbs.lane_of(Qpn::new(self.wire())));
        let wanted = state.cc(used.cc).map(|profile| profile.settings(&default));
        if wanted.is_none() && !used.other_cc {
            return Ok(());
        }
        let settings = wanted.clone().unwrap_or(default);
        let of = |code: c_int| Refusal { code, why: "the queue pair is gone".to_owned() };
        let change = QpModify::Congestion(Box::new(settings));
        inner.qp().map_err(of)?.modify(change).map_err(|error| failed(&error))?;
        (used.other_cc, used.settings) = (wanted.is_some(), wanted);
        Ok(())
    }

    /// Follows a change of the device's state.
    pub(crate) fn follow(&self, state: &DeviceState) {
        let mut inner = self.lock();
        if !matches!(Self::state(&inner), qp_state::RTR | qp_state::RTS) {
            return;
        }
        let mut used = self.used();
        let done = self.follow_paths(&mut used, state).and_then(|()| {
            let online = state.cc(used.cc).filter(|profile| profile.state == ProfileState::Online);
            let Some(profile) = online else { return Ok(()) };
            let default = self.nic.verbs.default_cc(self.nic.verbs.lane_of(Qpn::new(self.wire())));
            if used.settings.as_ref() == Some(&profile.settings(&default)) {
                return Ok(());
            }
            self.take_congestion(&mut inner, &mut used, state)
        });
        if let Err(refusal) = done {
            tell(&format!("queue pair {:#x} does not follow its profiles", self.number.get()), &refusal.why);
        }
    }

    fn follow_paths(&self, used: &mut Used, state: &DeviceState) -> Result<()> {
        let Some(profile) = state.ev(used.ev) else { return Ok(()) };
        let now = denied(profile)?;
        if now == used.denied {
            return Ok(());
        }
        let before = core::mem::replace(&mut used.denied, now);
        self.with_endpoint(|endpoint, qpn| deny(endpoint, qpn, &before, &used.denied))
    }

    /// Whether it uses a profile, and the entropy values of that which are `ASSUMED_BAD`.
    pub(crate) fn uses(&self, profile: Profile) -> (bool, Vec<(u32, u8)>) {
        let inner = self.lock();
        let is_active = matches!(Self::state(&inner), qp_state::RTR | qp_state::RTS);
        drop(inner);
        let used = self.used();
        match profile {
            Profile::Entropy(id) if is_active && used.ev == id => {}
            Profile::Congestion(id) => return (is_active && used.cc == id, Vec::new()),
            Profile::Entropy(_) => return (false, Vec::new()),
        }
        let bad = self.with_endpoint(|endpoint, qpn| {
            let states = endpoint.ev_states(qpn).into_iter().flatten();
            let bad = states.filter(|status| status.state == EvState::AssumedBad);
            bad.map(|status| used.named(status.ev, status.plane)).collect()
        });
        (true, bad.unwrap_or_default())
    }

    /// The event of a path for the controllers, with the profile; `None`: they do not want it.
    pub(crate) fn path_event(&self, state: &DeviceState, event: &EvEvent) -> Option<(u64, Change)> {
        let used = self.used();
        let to = match event.state {
            EvState::Good => ev_state::GOOD,
            EvState::AssumedBad => ev_state::ASSUMED_BAD,
            EvState::Denied | EvState::Skip => return None,
        };
        state.ev(used.ev).filter(|profile| profile.event_mask & to != 0)?;
        let (value, port) = used.named(event.ev, event.plane);
        Some((used.ev, Change { value, port, state: to }))
    }

    /// Events that its paths have lost since the last call.
    pub(crate) fn events_lost(&self) -> u32 {
        let mut used = self.used();
        let lost = self.with_endpoint(|endpoint, qpn| endpoint.path_counters(qpn).map(|all| all.events_lost));
        let Ok(Some(lost)) = lost else { return 0 };
        let before = core::mem::replace(&mut used.events_lost, lost);
        u32::try_from(lost.saturating_sub(before)).unwrap_or(u32::MAX)
    }
}

impl Used {
    /// An entropy value as the profile has it, with its port.
    fn named(&self, ev: Ev, plane: u8) -> (u32, u8) {
        let port = u16::try_from(ev.0).unwrap_or_default();
        (self.values.get(&(plane, port)).copied().unwrap_or(ev.0), plane + 1)
    }
}

/// How many queue pairs of a process use a profile, and its entropy values that are `ASSUMED_BAD` for one of them.
pub(crate) fn count<'a>(
    queue_pairs: impl Iterator<Item = &'a Arc<QpCore>>,
    profile: Profile,
) -> (u32, Vec<(u32, u8)>) {
    let (mut users, mut all) = (0, BTreeSet::new());
    for core in queue_pairs {
        let (uses, bad) = core.uses(profile);
        users += u32::from(uses);
        all.extend(bad);
    }
    (users, all.into_iter().collect())
}
