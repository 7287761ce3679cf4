//! Roles of planes: those of the primary NIC, and those of a NIC that stands by.
//!
//! MRC 1.0 has no roles: all planes carry equal load, and a queue pair fails with its NIC (MRC paper, section 5.1).
//! Here the planes of a second NIC can stand by. Packets take the planes of one role, the preferred one, as long as it
//! is *fit*: its open planes have `min_active` entropy values that are neither bad nor denied, and not in use only
//! because there are no others. Otherwise they take those of the other role, if that is fit, and else all. The queue pair, its PSNs and its records of packets in
//! flight stay the same, so nothing is replayed.
//!
//! | Event | Effect |
//! |---|---|
//! | the role that serves is no longer fit | the other one serves at once (failover) |
//! | nothing arrives on the role that serves, while the other one is acknowledged ([`fail_serving`](Paths::fail_serving)) | the same |
//! | the preferred role is fit again, stays so for the hold time, and a probe of it is acknowledged then | it serves again (failback) |
//! | the other role is not fit, and the preferred one is | the same, at once |
//! | [`prefer`](Paths::prefer) | the role named serves, at once if it is fit |
//!
//! The hold time doubles with every failover, up to a maximum. It loses one doubling for each such maximum that the
//! preferred role serves without a failover. SHIFT, in contrast, returns as soon as one probe succeeds (SHIFT paper,
//! section 4.3.3).
//!
//! Acknowledgements take the role on which the peer's packets arrive, since each direction fails over by itself.

use super::ev_pool::below;
use super::hold::HoldTime;
use super::{BAD, DENIED, Entry, EvId, EvState, FORCED, PathConfig, Paths, PlaneSet, SelectedPath};
use crate::time::Time;

/// The role of a plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PlaneRole {
    /// It carries packets by default.
    Primary,
    /// It carries packets while the primary planes cannot ([`PathConfig::standby`]).
    Standby,
}

/// The roles of a queue pair's planes, see [`Paths::role_status`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoleStatus {
    /// Planes that carry packets by default.
    pub primary: PlaneSet,
    /// Planes that stand by.
    pub standby: PlaneSet,
    /// Planes that carry packets: those of one role, or all if neither is fit.
    pub serving: PlaneSet,
    /// The role that carries packets whenever it is fit.
    pub preferred: PlaneRole,
    /// Times that packets left the planes of the preferred role.
    pub failovers: u64,
    /// Failovers because nothing arrived on those planes, although no port reported it.
    pub silent_failovers: u64,
    /// Times that packets returned to the planes of the preferred role.
    pub failbacks: u64,
    /// The present hold time, ns.
    pub hold_ns: u64,
}

/// A probe of a plane that stands by expires after this fraction (1/n) of their interval, or later.
const PROBE_PARTS: u64 = 10;

/// State of a queue pair whose planes have roles.
#[derive(Clone, Debug)]
pub(super) struct Roles {
    all: u32,
    standby: u32,
    preferred: PlaneRole,
    /// The preferred role is fit, but does not serve; since when, once the timer has run.
    fit: bool,
    fit_since: Option<Time>,
    /// The hold time is over. The preferred role serves again once a probe of its planes is acknowledged.
    returns: bool,
    /// The timer has not run since a failover, whose time it takes.
    failed_over: bool,
    hold: HoldTime,
    /// When the next probe of the planes that stand by is due.
    probe_due: Time,
    probe_ns: u64,
    /// Counts those probes, which take planes and entropy values in turn.
    probe_turn: u16,
    /// The last of those probes to end has expired: others follow without delay.
    probe_expired: bool,
    /// Other planes serve than at the last look.
    switched: bool,
    failovers: u64,
    failbacks: u64,
}

impl Roles {
    /// `None` if all planes have one role.
    pub(super) fn new(cfg: &PathConfig) -> Option<Box<Self>> {
        let all = PlaneSet::first(cfg.planes).0;
        let roles = Self {
            all,
            standby: cfg.standby.0,
            preferred: PlaneRole::Primary,
            fit: false,
            fit_since: None,
            returns: false,
            failed_over: false,
            hold: HoldTime::new(cfg.failback_hold_ns, cfg.failback_hold_max_ns),
            probe_due: if cfg.standby_probe_ns == 0 { Time::NEVER } else { Time::ZERO },
            probe_ns: cfg.standby_probe_ns,
            probe_turn: 0,
            probe_expired: false,
            switched: false,
            failovers: 0,
            failbacks: 0,
        };
        (roles.standby != 0).then(|| Box::new(roles))
    }

    pub(super) const fn planes(&self, role: PlaneRole) -> u32 {
        match role {
            PlaneRole::Primary => self.all & !self.standby,
            PlaneRole::Standby => self.standby,
        }
    }

    /// The planes with the role of `plane`.
    const fn planes_like(&self, plane: u8) -> u32 {
        self.planes(if PlaneSet(self.standby).contains(plane) {
            PlaneRole::Standby
        } else {
            PlaneRole::Primary
        })
    }

    /// The hold time starts after a failover, or continues.
    fn on_timer(&mut self, now: Time) -> bool {
        if core::mem::take(&mut self.failed_over) {
            self.hold.failed(now);
        }
        if !self.fit || self.returns {
            return false;
        }
        let since = *self.fit_since.get_or_insert(now);
        now >= since.after(self.hold.ns())
    }

    /// When [`on_timer`](Self::on_timer) has work.
    fn next_timeout(&self) -> Time {
        match (self.failed_over, self.fit && !self.returns, self.fit_since) {
            (true, ..) | (_, true, None) => Time::ZERO,
            (_, false, _) => Time::NEVER,
            (_, true, Some(since)) => since.after(self.hold.ns()),
        }
    }
}

impl Paths {
    /// The roles of the planes; `None` if they have none.
    pub fn role_status(&self) -> Option<RoleStatus> {
        self.roles.as_deref().map(|roles| RoleStatus {
            primary: PlaneSet(roles.planes(PlaneRole::Primary)),
            standby: PlaneSet(roles.planes(PlaneRole::Standby)),
            serving: PlaneSet(self.serving),
            preferred: roles.preferred,
            failovers: roles.failovers,
            silent_failovers: self.silent_failovers,
            failbacks: roles.failbacks,
            hold_ns: roles.hold.ns(),
        })
    }

    /// Makes `role` the preferred one. If it is fit, it serves from now on, else after it has been fit for the hold
    /// time, which starts over at its first value. Packets in flight stay where they are. Returns whether it serves;
    /// `false` also if planes have no roles.
    pub fn prefer(&mut self, role: PlaneRole) -> bool {
        let Some(roles) = self.roles.as_deref_mut() else { return false };
        roles.preferred = role;
        (roles.fit, roles.fit_since, roles.returns) = (false, None, false);
        roles.failed_over = false;
        roles.hold.reset();
        let planes = roles.planes(role);
        if self.is_fit(planes) {
            self.serve(planes);
        }
        self.choose_role();
        self.on_serving_changed();
        self.serving == planes
    }

    /// The planes that serve carry nothing: what was sent on them is lost, while the peer acknowledges packets on planes
    /// of the other role. All their entropy values become `ASSUMED_BAD`, so probes find out when they work again.
    /// Returns the planes; `None` if the other role is not fit.
    pub fn fail_serving(&mut self, now: Time) -> Option<PlaneSet> {
        if !self.idle_is_fit() {
            return None;
        }
        let failed = PlaneSet(self.carrying());
        for id in (0..self.entries.len() as u16).map(EvId) {
            if failed.contains(self.plane(id)) && !self.has(id.0, BAD | DENIED) {
                self.take_out(id.0);
                self.set_flags(id.0, BAD);
                self.prober.bad += 1;
                self.prober.first(id.0, now);
                self.push_event(id, EvState::AssumedBad);
            }
        }
        self.silent_failovers += 1;
        self.role_health_changed();
        for plane in 0..self.planes.len() as u8 {
            self.heal_reverse(plane);
        }
        Some(failed)
    }

    /// Planes that stand by.
    const fn idle_planes(&self) -> u32 {
        PlaneSet::first(self.planes.len() as u8).0 & !self.carrying()
    }

    /// Whether planes stand by.
    #[inline]
    pub(crate) const fn has_idle_planes(&self) -> bool {
        self.idle_planes() != 0
    }

    /// Whether the plane of this path does not stand by.
    pub(crate) fn is_serving(&self, id: EvId) -> bool {
        PlaneSet(self.carrying()).contains(self.plane(id))
    }

    /// A packet to be acknowledged arrived on `plane`: acknowledgements leave on planes with the same role. A deny list
    /// divides the planes of a role in the same way.
    #[inline]
    pub(crate) fn acks_follow(&mut self, plane: u8) {
        if !PlaneSet(self.ack_role).contains(plane) {
            self.switch_acks(plane);
        }
    }

    #[cold]
    pub(super) fn switch_acks(&mut self, plane: u8) {
        let all = PlaneSet::first(self.planes.len() as u8).0;
        let role = self.roles.as_deref().map_or(all, |roles| roles.planes_like(plane));
        let avoided = PlaneSet(self.avoided);
        self.ack_role = role & if avoided.contains(plane) { avoided.0 } else { !avoided.0 };
    }

    /// Planes on which acknowledgements leave: those of the role on which packets arrive, unless none of them has an
    /// active entropy value.
    #[inline]
    pub(super) const fn ack_planes(&self) -> u32 {
        let own = self.working & self.ack_role;
        if own == 0 { self.usable } else { own }
    }

    /// An active path on a plane in `free` that stands by, at random.
    #[cold]
    pub(super) fn pick_idle(&mut self, free: PlaneSet) -> Option<SelectedPath> {
        let planes = PlaneSet(self.working & self.idle_planes() & free.0);
        if planes.0 == 0 {
            return None;
        }
        let nth = below(&mut self.rng, planes.count());
        let state = *self.planes.get(usize::from(planes.nth(nth)?))?;
        let at = below(&mut self.rng, state.active);
        let id = *self.active_ids(&state).get(usize::from(at))?;
        self.takes(EvId(id))
    }

    /// Whether these planes suffice for the packets of the queue pair.
    pub(super) fn is_fit(&self, planes: u32) -> bool {
        let (open, planes) = (PlaneSet(self.open & planes), PlaneSet(planes));
        let works = |entry: &&Entry| entry.flags & (BAD | DENIED | FORCED) == 0 && open.contains(entry.plane);
        let good = self.entries.iter().filter(works).count();
        let all = self.entries.iter().filter(|entry| planes.contains(entry.plane)).count();
        good > 0 && good >= usize::from(self.min_active).min(all)
    }

    /// Whether planes that stand by can take over.
    pub(super) fn idle_is_fit(&self) -> bool {
        self.is_fit(self.idle_planes())
    }

    /// This entropy value stays in use only to keep `min_active`.
    pub(super) fn force(&mut self, id: EvId) {
        if self.has_idle_sets()
            && let Some(entry) = self.entries.get_mut(usize::from(id.0))
        {
            entry.flags |= FORCED;
        }
    }

    /// A packet on this path arrived: if it stayed in use only to keep `min_active`, it works after all.
    #[cold]
    pub(super) fn is_proven(&mut self, id: EvId) {
        if let Some(entry) = self.entries.get_mut(usize::from(id.0)).filter(|entry| entry.flags & FORCED != 0)
        {
            entry.flags &= !FORCED;
            self.role_health_changed();
        }
    }

    /// Whether planes may stand by: by their role, or because of a deny list.
    pub(super) const fn has_idle_sets(&self) -> bool {
        self.roles.is_some() || self.listed.is_some()
    }

    fn serve(&mut self, planes: u32) {
        let Some(roles) = self.roles.as_deref_mut() else { return };
        roles.switched |= self.serving != planes;
        self.serving = planes;
    }

    /// Decides which role serves, after any change of planes or of the health of their entropy values.
    pub(super) fn choose_role(&mut self) {
        let Some(roles) = self.roles.as_deref() else { return };
        let preferred = roles.planes(roles.preferred);
        let (all, other) = (roles.all, roles.all & !preferred);
        let before = self.serving;
        let (preferred_fits, other_fits) = (self.is_fit(preferred), self.is_fit(other));
        let serving = match (preferred_fits, other_fits) {
            // Until the hold time is over.
            (true, true) if before == other => other,
            (true, _) => preferred,
            (false, true) => other,
            (false, false) => all,
        };
        self.serve(serving);
        let Some(roles) = self.roles.as_deref_mut() else { return };
        if before == preferred && serving != preferred {
            roles.failovers += 1;
            roles.failed_over = true;
        } else if before != preferred && serving == preferred {
            roles.failbacks += 1;
        }
        roles.fit = preferred_fits && serving != preferred;
        roles.returns &= roles.fit;
        roles.fit_since = roles.fit_since.filter(|_| roles.fit);
    }

    /// The health of entropy values has changed, and so may the planes that packets take.
    pub(super) fn role_health_changed(&mut self) {
        let before = self.carrying();
        self.choose_role();
        self.choose_avoided();
        if self.carrying() != before {
            self.keep_floor();
        }
        self.refresh_usable();
        self.find_next_probe();
    }

    /// Starts the hold time, or ends it. Its planes may have failed while they carried nothing, so a probe comes first.
    pub(super) fn run_roles(&mut self, now: Time) {
        let Some(roles) = self.roles.as_deref_mut() else { return };
        if roles.on_timer(now) {
            (roles.returns, roles.probe_due) = (true, now);
            self.find_next_probe();
        }
    }

    /// The preferred role serves again.
    fn fail_back(&mut self, now: Time) {
        let Some(roles) = self.roles.as_deref_mut() else { return };
        (roles.fit, roles.fit_since, roles.returns) = (false, None, false);
        roles.hold.returned(now);
        roles.failbacks += 1;
        let preferred = roles.planes(roles.preferred);
        self.serve(preferred);
        self.on_serving_changed();
    }

    /// Other planes may serve.
    fn on_serving_changed(&mut self) {
        self.choose_avoided();
        self.keep_floor();
        self.refresh_usable();
        self.find_next_probe();
    }

    /// When [`run_roles`](Self::run_roles) has work.
    pub(super) fn next_role_timeout(&self) -> Time {
        self.roles.as_deref().map_or(Time::NEVER, Roles::next_timeout)
    }

    /// When a probe of the planes that stand by is due.
    pub(super) fn idle_probe_due(&self) -> Time {
        match self.roles.as_deref() {
            Some(roles) if self.working & self.idle_planes() != 0 => roles.probe_due,
            _ => Time::NEVER,
        }
    }

    /// The path of that probe, on a plane in `free`: planes and their entropy values in turn.
    pub(super) fn idle_probe_path(&self, free: PlaneSet) -> Option<EvId> {
        let turn = self.roles.as_deref()?.probe_turn;
        let planes = PlaneSet(self.working & self.idle_planes() & free.0);
        let plane = planes.nth(turn.checked_rem(planes.count())?)?;
        let active = self.active_ids(self.planes.get(usize::from(plane))?);
        let at = usize::from(turn / planes.count()).checked_rem(active.len())?;
        active.get(at).map(|&id| EvId(id))
    }

    /// That probe was sent.
    pub(super) fn idle_probe_sent(&mut self, now: Time) {
        if let Some(roles) = self.roles.as_deref_mut() {
            roles.probe_turn = roles.probe_turn.wrapping_add(1);
            roles.probe_due = match roles.probe_ns {
                0 => Time::NEVER,
                _ if roles.probe_expired => now,
                probe_ns => now.after(probe_ns),
            };
        }
    }

    /// Timeout of that probe. There is no hurry, and a busy peer may take long.
    pub(super) fn idle_probe_wait_ns(&self) -> u64 {
        self.roles.as_deref().map_or(0, |roles| roles.probe_ns / PROBE_PARTS)
    }

    /// That probe, of path `id`, was acknowledged.
    pub(super) fn idle_probe_answered(&mut self, id: EvId, now: Time) {
        let plane = self.plane(id);
        let Some(roles) = self.roles.as_deref_mut() else { return };
        if roles.probe_expired {
            roles.probe_expired = false;
            roles.probe_due = now.after(roles.probe_ns);
            self.find_next_probe();
        }
        if let Some(roles) = self.roles.as_deref().filter(|roles| roles.returns)
            && PlaneSet(roles.planes(roles.preferred)).contains(plane)
        {
            self.fail_back(now);
        }
    }

    /// That probe expired. Its path is assumed to have failed, and the next ones are probed without delay.
    pub(super) fn idle_probe_expired(&mut self, id: EvId, now: Time) {
        if self.is_serving(id) || !self.open_planes().contains(self.plane(id)) {
            return;
        }
        if let Some(roles) = self.roles.as_deref_mut().filter(|roles| roles.probe_ns != 0 || roles.returns) {
            roles.probe_expired = roles.probe_ns != 0;
            roles.probe_due = now.min(roles.probe_due);
        }
        self.assume_bad(id, now);
    }

    /// The planes that serve, if they are others than at the last call.
    pub(crate) fn take_switch(&mut self) -> Option<PlaneSet> {
        let roles = self.roles.as_deref_mut()?;
        core::mem::take(&mut roles.switched).then_some(PlaneSet(self.serving))
    }

    /// Open planes to which the floor on active entropy values applies.
    pub(super) const fn floor_planes(&self) -> u32 {
        let own = self.open & self.carrying();
        if own == 0 { self.open } else { own }
    }
}
