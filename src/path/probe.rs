//! Reliability probes: tests of `ASSUMED_BAD` paths (MRC 1.0 section 7.4.6).
//!
//! A bad path is probed after `probe_interval_ns`. Every expired probe doubles the delay before the next one, up to
//! `probe_interval_max_ns`; an acknowledged probe resets it. A path that fails again soon after it was revived
//! (within `probe_interval_max_ns`) has a doubled delay from then on, once for every such relapse. A flapping path
//! therefore returns only when enough probes succeed over time (MRC paper, section 3).
//!
//! Planes that stand by are probed too, one path at a time, so that a dead one is known before it is needed.

use super::{ALIVE, BAD, EvId, EvMark, PROBING, PathConfig, Paths, PlaneSet};
use crate::time::Time;

/// Maximum of probes in flight per queue pair. It is small because probes share the data class. A queue pair with
/// many bad paths has probably lost a plane, which one acknowledged probe does not bring back.
pub const MAX_PROBES_IN_FLIGHT: usize = 4;

/// Maximum of doublings, so that a delay loses no bits; the configured maximum limits it much earlier.
const MAX_DOUBLINGS: u8 = 20;

/// A reliability probe to be sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The probe id, echoed in the SACK (MRC 1.0 table 7-18).
    pub id: u16,
    /// The path to send it on.
    pub ev: EvId,
}

#[derive(Clone, Copy, Debug)]
struct InFlight {
    probe: Probe,
    /// Time at which it expires.
    until: Time,
}

/// Probe history of one path.
#[derive(Clone, Copy, Debug, Default)]
struct History {
    /// Consecutive expired probes.
    failures: u8,
    /// Times that the path failed again soon after it was revived.
    relapses: u8,
    /// Consecutive acknowledged probes.
    answers: u8,
}

#[derive(Clone, Debug)]
pub(super) struct Prober {
    /// For a bad path, the time of the next probe; for a revived one, the time of that; else NEVER. Like `history`,
    /// empty until a path goes bad: most queue pairs never have one.
    due: Box<[Time]>,
    history: Box<[History]>,
    /// Number of paths.
    paths: u16,
    in_flight: [Option<InFlight>; MAX_PROBES_IN_FLIGHT],
    /// No probe is due before this.
    next_due: Time,
    /// Number of `ASSUMED_BAD` paths, whatever their plane.
    pub(super) bad: u16,
    needed: u8,
    interval_ns: u64,
    interval_max_ns: u64,
    timeout_ns: u64,
}

impl Prober {
    pub(super) fn new(cfg: &PathConfig, paths: u16) -> Self {
        Self {
            due: Box::default(),
            history: Box::default(),
            paths,
            in_flight: [None; MAX_PROBES_IN_FLIGHT],
            next_due: Time::NEVER,
            bad: 0,
            needed: cfg.probes_to_revive,
            interval_ns: cfg.probe_interval_ns,
            interval_max_ns: cfg.probe_interval_max_ns,
            timeout_ns: cfg.probe_timeout_ns,
        }
    }

    /// Allocates the records of bad paths.
    #[cold]
    fn make_room(&mut self) {
        let paths = usize::from(self.paths);
        self.due = vec![Time::NEVER; paths].into_boxed_slice();
        self.history = vec![History::default(); paths].into_boxed_slice();
    }

    /// Heap bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.due) + size_of_val(&*self.history)
    }

    /// Forgets the history of a path.
    pub(super) fn forget(&mut self, id: u16) {
        if let Some((due, history)) = self.record(id) {
            *due = Time::NEVER;
            *history = History::default();
        }
    }

    fn record(&mut self, id: u16) -> Option<(&mut Time, &mut History)> {
        Some((self.due.get_mut(usize::from(id))?, self.history.get_mut(usize::from(id))?))
    }

    /// An id from `draw` that no probe in flight has.
    fn fresh_id(&self, mut draw: impl FnMut() -> u16) -> u16 {
        loop {
            let id = draw();
            if self.in_flight.iter().flatten().all(|flight| flight.probe.id != id) {
                return id;
            }
        }
    }

    fn free_slot(&self) -> Option<usize> {
        self.in_flight.iter().position(Option::is_none)
    }

    fn delay_ns(&self, history: History) -> u64 {
        let doublings = (history.failures + history.relapses).min(MAX_DOUBLINGS);
        self.interval_ns.saturating_mul(1 << doublings).min(self.interval_max_ns)
    }

    /// Timeout of a probe.
    fn wait_ns(&self, patience_ns: u64) -> u64 {
        self.timeout_ns.max(patience_ns.min(self.interval_max_ns))
    }

    pub(super) fn first(&mut self, id: u16, now: Time) {
        let max = self.interval_max_ns;
        if self.due.is_empty() {
            self.make_room();
        }
        let Some((due, history)) = self.record(id) else { return };
        let relapse = *due != Time::NEVER && now.since(*due) < max;
        let relapses = if relapse { (history.relapses + 1).min(MAX_DOUBLINGS) } else { 0 };
        *history = History { relapses, ..History::default() };
        self.again(id, now);
    }

    /// The loss that made a path bad was spurious: it is no relapse.
    pub(super) fn acquit(&mut self, id: u16) {
        if let Some((_, history)) = self.record(id) {
            history.relapses = history.relapses.saturating_sub(1);
        }
    }

    fn failed(&mut self, id: u16, now: Time) {
        let Some((_, history)) = self.record(id) else { return };
        history.answers = 0;
        history.failures = (history.failures + 1).min(MAX_DOUBLINGS);
        self.again(id, now);
    }

    /// Counts an acknowledged probe; returns `true` if it was the last one needed.
    fn answered(&mut self, id: u16, now: Time) -> bool {
        let needed = self.needed;
        let Some((due, history)) = self.record(id) else { return false };
        history.failures = 0;
        history.answers = history.answers.saturating_add(1);
        if history.answers >= needed {
            *due = now;
            return true;
        }
        self.again(id, now);
        false
    }

    fn again(&mut self, id: u16, now: Time) {
        let Some(&history) = self.history.get(usize::from(id)) else { return };
        let at = now + self.delay_ns(history);
        if let Some((due, _)) = self.record(id) {
            *due = at;
        }
    }
}

impl Paths {
    /// The next reliability probe to send on a plane in `free`: the one that has been due for longest. At most
    /// [`MAX_PROBES_IN_FLIGHT`] are in flight at a time. Planes that are down or denied are not probed.
    ///
    /// The probe expires after `probe_timeout_ns`, or `patience_ns` if that is longer. The latter is the probe
    /// timeout from the measured round-trip times, which queues on the way may make longer than any setting. No peer
    /// can extend it beyond `probe_interval_max_ns`.
    ///
    /// Its id is the first value from `draw` that no probe in flight has. A sender that can predict an id can
    /// acknowledge a probe of a dead path, so `draw` uses the endpoint's generator.
    #[inline]
    pub fn poll_probe(
        &mut self,
        now: Time,
        free: PlaneSet,
        patience_ns: u64,
        draw: impl FnMut() -> u16,
    ) -> Option<Probe> {
        if now < self.prober.next_due {
            return None;
        }
        let (slot, ev) = self.due_probe(now, free)?;
        let probe = Probe { id: self.prober.fresh_id(draw), ev };
        let mut wait_ns = self.prober.wait_ns(patience_ns);
        if !self.has(ev.0, BAD) {
            wait_ns = wait_ns.max(self.idle_probe_wait_ns());
        }
        self.start_probe(slot, probe, now, now + wait_ns);
        Some(probe)
    }

    /// Whether a probe is due. If [`poll_probe`](Self::poll_probe) returns none, its plane has no room.
    #[inline]
    pub fn probe_is_due(&self, now: Time) -> bool {
        self.prober.next_due <= now && self.prober.free_slot().is_some()
    }

    /// The path whose probe is due, and a free slot for it.
    #[cold]
    fn due_probe(&self, now: Time, free: PlaneSet) -> Option<(usize, EvId)> {
        let slot = self.prober.free_slot()?;
        if let Some((id, _)) = self.most_due(free).filter(|&(_, due)| due <= now) {
            return Some((slot, EvId(id)));
        }
        let idle = self.idle_probe_path(free).filter(|_| self.idle_probe_due() <= now)?;
        Some((slot, idle))
    }

    #[cold]
    fn start_probe(&mut self, slot: usize, probe: Probe, now: Time, until: Time) {
        if let Some(place) = self.prober.in_flight.get_mut(slot) {
            *place = Some(InFlight { probe, until });
        }
        match self.entries.get_mut(usize::from(probe.ev.0)) {
            Some(entry) if entry.flags & BAD != 0 => entry.flags |= PROBING,
            _ => self.idle_probe_sent(now),
        }
        self.counters.probes_sent += 1;
        self.find_next_probe();
    }

    /// The peer acknowledged a reliability probe (SACK with `pr` = 1, MRC 1.0 table 7-14). Returns the path it was
    /// sent on, `None` if no such probe is in flight.
    ///
    /// After `probes_to_revive` acknowledged probes in a row the path is GOOD again: active if its plane is short of
    /// active ones, else a backup. [`EvMark::AlwaysSkip`] counts as an expired probe.
    pub fn on_probe_answer(&mut self, probe_id: u16, mark: EvMark, now: Time) -> Option<EvId> {
        let waiting = self.prober.in_flight.iter_mut();
        let slot = waiting.into_iter().find(|slot| slot.is_some_and(|flight| flight.probe.id == probe_id));
        let Some(flight) = slot.and_then(Option::take) else {
            self.counters.probe_answers_unknown += 1;
            return None;
        };
        let id = flight.probe.ev;
        self.counters.probes_answered += 1;
        if !self.has(id.0, BAD) {
            self.idle_probe_answered(id, now);
            return Some(id);
        }
        self.set_flags(id.0, if mark == EvMark::AlwaysSkip { BAD } else { BAD | ALIVE });
        if mark == EvMark::AlwaysSkip {
            self.prober.failed(id.0, now);
        } else if self.prober.answered(id.0, now) {
            self.counters.revived += 1;
            self.losses.acquit(id, self.plane(id), now);
            let skip = mark == EvMark::SkipOnce && self.ecn_steering;
            self.revive(id, u8::from(skip));
            self.heal_reverse(self.plane(id));
            self.role_health_changed();
        }
        self.find_next_probe();
        Some(id)
    }

    /// Expires probes; see [`poll_probe`](Self::poll_probe). Also returns packets to the preferred
    /// [role](super::PlaneRole) when its hold time is over, and follows a deny list again.
    pub fn on_timer(&mut self, now: Time) {
        self.expire_probes(now);
        self.run_roles(now);
        self.run_deny_list(now);
    }

    fn expire_probes(&mut self, now: Time) {
        let mut expired = false;
        for slot in 0..MAX_PROBES_IN_FLIGHT {
            let Some(place) = self.prober.in_flight.get_mut(slot) else { continue };
            if !place.is_some_and(|flight| now >= flight.until) {
                continue;
            }
            let Some(flight) = place.take() else { continue };
            self.counters.probes_expired += 1;
            expired = true;
            if self.has(flight.probe.ev.0, BAD) {
                self.set_flags(flight.probe.ev.0, BAD);
                self.prober.failed(flight.probe.ev.0, now);
            } else {
                self.idle_probe_expired(flight.probe.ev, now);
            }
        }
        if expired {
            self.find_next_probe();
        }
    }

    /// Next time at which [`poll_probe`](Self::poll_probe) or [`on_timer`](Self::on_timer) has work;
    /// [`Time::NEVER`] if no path is bad and no plane stands by.
    pub fn next_timeout(&self) -> Time {
        let prober = &self.prober;
        let send = if prober.free_slot().is_some() { prober.next_due } else { Time::NEVER };
        self.next_expiry().min(send)
    }

    /// Next time at which [`on_timer`](Self::on_timer) has work: [`next_timeout`](Self::next_timeout) for a
    /// caller that polls probes anyway.
    pub fn next_expiry(&self) -> Time {
        let waiting = self.prober.in_flight.iter().flatten().map(|flight| flight.until);
        waiting.min().unwrap_or(Time::NEVER).min(self.next_role_timeout()).min(self.next_deny_list_timeout())
    }

    pub(super) fn schedule_first_probe(&mut self, id: EvId, now: Time) {
        self.prober.bad += 1;
        self.prober.first(id.0, now);
        self.find_next_probe();
    }

    /// A packet on this path that was declared lost had arrived. If the path is bad, it is probed at once. The error
    /// counts neither as a drop nor as a relapse.
    #[cold]
    pub fn on_wrong_loss(&mut self, id: EvId, now: Time) {
        self.losses.uncount(id);
        self.losses.acquit(id, self.plane(id), now);
        if self.shows_life(id) {
            self.prober.acquit(id.0);
            self.probe_soon(id, now);
        }
    }

    /// Makes a probe of a bad path due at once.
    #[cold]
    pub(super) fn probe_soon(&mut self, id: EvId, now: Time) {
        if let Some((due, _)) = self.prober.record(id.0) {
            *due = now.min(*due);
        }
        self.find_next_probe();
    }

    /// Makes probes of the bad paths on returned planes due at once: their delays grew while the plane was down.
    pub(super) fn probe_planes_soon(&mut self, planes: u32) {
        for id in 0..self.entries.len() as u16 {
            if self.has(id, BAD)
                && PlaneSet(planes).contains(self.plane(EvId(id)))
                && let Some((due, history)) = self.prober.record(id)
            {
                *due = Time::ZERO;
                history.failures = 0;
            }
        }
    }

    pub(super) fn find_next_probe(&mut self) {
        let bad_due = self.most_due(PlaneSet::ALL).map_or(Time::NEVER, |(_, due)| due);
        self.prober.next_due = bad_due.min(self.idle_probe_due());
    }

    /// The bad path among the planes in `among` whose probe has been due for longest.
    fn most_due(&self, among: PlaneSet) -> Option<(u16, Time)> {
        if self.prober.bad == 0 {
            return None;
        }
        let dues = self.entries.iter().zip(self.prober.due.iter()).zip(0..);
        dues.filter(|((entry, _), _)| {
            entry.flags & (BAD | PROBING) == BAD && PlaneSet(self.open & among.0).contains(entry.plane)
        })
        .map(|((_, due), id)| (id, *due))
        .min_by_key(|&(_, due)| due)
    }
}
