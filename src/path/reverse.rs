//! The reverse set: the paths of SACKs, NACKs and ACKs (MRC paper, section 2.4).
//!
//! It has one entropy value per plane (or a few), each the last one known to work. While SACKs arrive, the data that
//! they acknowledge shows which one works. While data arrives and no SACK does, EV probes show it. A queue pair that
//! receives more probes more often, and at once if its acknowledgements seem to be lost.

use rand_xoshiro::SplitMix64;

use super::ev_pool::below;
use super::{BAD, DENIED, EvId, FORCED, PathConfig, Paths, PlaneSet};
use crate::time::Time;
use crate::wire::Ev;

/// No entropy value: all of the plane are denied.
const NONE: u16 = u16::MAX;

/// Number of EV probes that are remembered. It is more than one, so that a response after a longer round trip than
/// expected still counts.
const REMEMBERED: usize = 4;

/// Bytes received after which the reverse set is refreshed ahead of time. A probe and its response are a thousandth of it.
pub(crate) const REVERSE_REFRESH_BYTES: u64 = 256 << 10;

/// Time before another early probe may follow, while no round trip is known.
const PATIENCE_NS: u64 = 100_000;

/// The longest probe interval that a queue pair backs off to, in units of `reverse_refresh_ns`. With [`REMEMBERED`],
/// responses count after round trips of up to four times as long.
const MAX_REFRESHES: u64 = 32;

#[derive(Clone, Copy, Debug)]
struct Probe {
    ticket: u16,
    id: u16,
    plane: u8,
    sent_at: Time,
    /// A later probe was sent about a round trip after it.
    late: bool,
}

impl Probe {
    /// Whether its response can still arrive, if that takes as long as the last one took.
    fn may_come(&self, took_ns: u64, now: Time) -> bool {
        self.sent_at == now || now < self.sent_at.after(took_ns)
    }
}

/// Position in a round robin.
#[derive(Clone, Copy, Debug)]
struct Turn {
    plane: u8,
    /// Index among the plane's values.
    slot: u8,
}

#[derive(Clone, Debug)]
pub(super) struct Reverse {
    /// `per_plane` entropy values of plane 0, then of plane 1, and so on.
    slots: Box<[u16]>,
    per_plane: u8,
    /// Of acknowledgements without a transport ACK and with one.
    turns: [Turn; 2],
    /// The one of the two that is in progress.
    current_group: Option<bool>,
    last_probed: u8,
    /// A SACK has shown that a path works since the last call for a probe.
    learned: bool,
    probes: [Option<Probe>; REMEMBERED],
    /// Planes whose probe had no response within a round trip, and that nothing has shown to work since.
    unresponsive_planes: u32,
    next_ticket: u16,
    next_probe: Time,
    refresh_ns: u64,
    /// Interval of probes: a round trip, as measured by their responses.
    interval_ns: u64,
    /// Times at which probes were sent since the last response.
    unanswered: u8,
    probed_at: Time,
    /// Time at which several were last sent at once.
    searched_at: Time,
    /// Position of the last probed value among those of its plane.
    probed: u16,
    /// Round trip of the last response to a probe; 0 before there was one.
    rtt_ns: u64,
    /// Probes still to be sent at once.
    probe_burst_left: u8,
    /// The pending acknowledgements are for duplicates, so earlier ones seem to be lost.
    ack_loss_suspected: bool,
    /// The next such acknowledgements take a value from outside the set.
    alternate: bool,
    /// That value, once it is drawn, and its plane.
    fallback_ev: Option<(u16, u8)>,
}

impl Reverse {
    pub(super) fn new(cfg: &PathConfig, rng: &mut SplitMix64) -> Self {
        let slots = usize::from(cfg.planes) * usize::from(cfg.reverse_per_plane);
        let plane = below(rng, u16::from(cfg.planes)) as u8;
        Self {
            slots: vec![NONE; slots].into_boxed_slice(),
            per_plane: cfg.reverse_per_plane,
            turns: [Turn { plane, slot: 0 }; 2],
            current_group: None,
            last_probed: below(rng, u16::from(cfg.planes)) as u8,
            learned: false,
            probes: [None; REMEMBERED],
            unresponsive_planes: 0,
            next_ticket: 0,
            next_probe: Time::ZERO,
            refresh_ns: cfg.reverse_refresh_ns,
            interval_ns: cfg.reverse_refresh_ns,
            unanswered: 0,
            probed_at: Time::ZERO,
            searched_at: Time::ZERO,
            probed: below(rng, u16::MAX),
            rtt_ns: 0,
            probe_burst_left: 0,
            ack_loss_suspected: false,
            alternate: true,
            fallback_ev: None,
        }
    }

    /// Heap bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.slots)
    }

    /// Advances the round robin among `planes` (not empty) of acknowledgements with or without a transport ACK.
    fn advance(&mut self, acks: bool, planes: u32) {
        let per_plane = self.per_plane;
        let at = &mut self.turns[usize::from(acks)];
        let plane = plane_after(planes, at.plane);
        if plane <= at.plane {
            at.slot = turn(at.slot, per_plane);
        }
        at.plane = plane;
    }

    /// Records a probe of `id` and schedules the next one. If an earlier one has no response, its plane is marked as
    /// silent. A response to a forgotten probe does not count. While there are only such responses, the interval
    /// doubles.
    fn ask(&mut self, id: u16, plane: u8, now: Time, rtt_ns: u64) -> u16 {
        let took_ns = self.rtt_ns;
        for probes in
            self.probes.iter_mut().flatten().filter(|probes| !probes.late && !probes.may_come(took_ns, now))
        {
            probes.late = true;
            self.unresponsive_planes |= 1 << probes.plane;
        }
        if self.unanswered == 0 || self.probed_at < now {
            if usize::from(self.unanswered) >= REMEMBERED {
                self.interval_ns = self.bounded(self.interval_ns.saturating_mul(2));
            }
            self.unanswered = self.unanswered.saturating_add(1);
        }
        self.probed_at = now;
        self.next_probe = now + rtt_ns.max(self.interval_ns);
        let ticket = self.next_ticket;
        self.next_ticket = ticket.wrapping_add(1);
        if let Some(slot) = self.slot_for_next(ticket) {
            *slot = Some(Probe { ticket, id, plane, sent_at: now, late: false });
        }
        ticket
    }

    /// A free slot for a probe, or else that of the oldest one. Probes without a response must not be forgotten before those that
    /// had one.
    fn slot_for_next(&mut self, ticket: u16) -> Option<&mut Option<Probe>> {
        let age = |slot: &Option<Probe>| slot.map_or(u16::MAX, |probes| ticket.wrapping_sub(probes.ticket));
        self.probes.iter_mut().max_by_key(|slot| age(slot))
    }

    /// The entropy value of the probe with this ticket, if it is remembered.
    fn answered(&mut self, ticket: u16, now: Time) -> Option<u16> {
        let mut probes = self.probes.iter_mut();
        let slot = probes.find(|slot| slot.is_some_and(|probes| probes.ticket == ticket))?;
        let Probe { id, sent_at, .. } = slot.take()?;
        self.rtt_ns = now.since(sent_at);
        self.interval_ns = self.bounded(self.rtt_ns);
        self.unanswered = 0;
        self.probe_burst_left = 0;
        Some(id)
    }

    /// Whether a probe may be sent early: the one before it has a response, or is older than two round trips.
    fn may_probe_early(&self, now: Time) -> bool {
        self.unanswered == 0 || self.has_had_time(self.probed_at, now)
    }

    /// Whether several probes may search for a working path: the last such search is over. A regular probe may have
    /// taken the path that is in doubt.
    fn may_search(&self, now: Time) -> bool {
        self.unanswered == 0 || self.has_had_time(self.searched_at, now)
    }

    /// Number of probes that may still get a response.
    fn under_way(&self, now: Time) -> usize {
        let probes = self.probes.iter().flatten();
        probes.filter(|probes| !probes.late && probes.may_come(self.rtt_ns, now)).count()
    }

    /// Whether a probe sent at `asked_at` is older than two round trips.
    fn has_had_time(&self, probed_at: Time, now: Time) -> bool {
        let patience_ns = if self.rtt_ns == 0 { PATIENCE_NS } else { self.rtt_ns.saturating_mul(2) };
        now >= probed_at.after(patience_ns)
    }

    fn bounded(&self, interval_ns: u64) -> u64 {
        interval_ns.clamp(self.refresh_ns, self.refresh_ns.saturating_mul(MAX_REFRESHES))
    }

    fn of_plane(&mut self, plane: u8) -> &mut [u16] {
        let per_plane = usize::from(self.per_plane);
        let from = usize::from(plane) * per_plane;
        self.slots.get_mut(from..from + per_plane).unwrap_or_default()
    }
}

/// The plane in `mask` (not empty) after `last`, round robin.
fn plane_after(mask: u32, last: u8) -> u8 {
    let after = mask & (u32::MAX << 1 << last);
    (if after == 0 { mask } else { after }).trailing_zeros() as u8
}

/// The number after `at`, modulo `of`.
#[inline]
fn turn(at: u8, of: u8) -> u8 {
    if at + 1 >= of { 0 } else { at + 1 }
}

impl Paths {
    /// The path for the next SACK, NACK or ACK: `None` if none of its eligible planes is in `free`.
    ///
    /// Acknowledgements that leave together take one path, until [`end_acks`](Self::end_acks), as long as its
    /// port has room. Those with a transport ACK among them (`acks`) take the planes and their values in turn. Those
    /// without have a turn of their own. So the ACKs for retransmissions use every path, whatever is acknowledged in
    /// between.
    ///
    /// If planes have roles, those of the role on which the peer's packets arrive come first. Planes without a working
    /// entropy value, and those whose last EV probe had no response, are used only if no
    /// other is up. An acknowledgement on a doubtful path is better than none, but one that waits until a port has
    /// room is better still.
    #[inline]
    pub fn pick_reverse(&mut self, free: PlaneSet, acks: bool) -> Option<(Ev, u8)> {
        let own = self.ack_planes();
        let trusted = own & !self.reverse.unresponsive_planes;
        let all = [trusted, own].into_iter().find(|&planes| planes != 0).unwrap_or(self.open);
        let mut planes = all & free.0;
        if planes != 0 && self.reverse.current_group != Some(acks) {
            self.reverse.current_group = Some(acks);
            self.reverse.advance(acks, all);
        }
        let Turn { plane: mut at, slot } = self.reverse.turns[usize::from(acks)];
        while planes != 0 {
            if planes >> at & 1 == 0 {
                at = plane_after(planes, at);
            }
            if let Some(ev) = self.fallback_of(at).or_else(|| self.reverse_of(at, slot)) {
                return Some((ev, at));
            }
            planes &= !(1 << at);
        }
        None
    }

    /// No more acknowledgements are pending: the next ones take another path.
    #[inline]
    pub fn end_acks(&mut self) {
        self.reverse.current_group = None;
        if core::mem::take(&mut self.reverse.ack_loss_suspected) {
            self.reverse.alternate = !self.reverse.alternate;
            self.reverse.fallback_ev = None;
        }
    }

    /// A SACK for data sent on this path arrived, so the path works.
    #[inline]
    pub fn learn_reverse(&mut self, id: EvId) {
        self.reverse.learned = true;
        self.keep_reverse(id);
    }

    #[inline]
    fn keep_reverse(&mut self, id: EvId) {
        let Some(&entry) = self.entries.get(usize::from(id.0)) else { return };
        let Some(state) = self.planes.get_mut(usize::from(entry.plane)) else { return };
        self.reverse.unresponsive_planes &= !(1 << entry.plane);
        if entry.flags & (BAD | DENIED | FORCED) != 0 {
            self.is_proven(id);
            self.shows_life(id);
            return;
        }
        let slots = self.reverse.of_plane(entry.plane);
        if slots.contains(&id.0) {
            return;
        }
        if let Some(slot) = slots.get_mut(usize::from(state.reverse_learn)) {
            *slot = id.0;
        }
        state.reverse_learn = turn(state.reverse_learn, self.reverse.per_plane);
    }

    /// The EV probe that a queue pair should send now to keep its reverse set fresh: entropy value, plane, and a
    /// ticket for [`on_reverse_probe_answer`](Self::on_reverse_probe_answer).
    ///
    /// A queue pair that receives data, and has not [learned](Self::learn_reverse) a path since, tests a random
    /// entropy value, planes in turn (MRC paper, section 2.4, for one that only receives). It does so once every
    /// round trip, and no more often than `reverse_refresh_ns`. A queue pair that also sends needs this too: if the
    /// paths of acknowledgements are dead both ways, no SACK arrives at either end. The round trip is the larger of
    /// `rtt_ns` and the one measured by these probes, since a queue pair that only receives has no other.
    ///
    /// Tickets count up, since they stay in this host. The id on the wire is the endpoint's, drawn at random.
    pub fn poll_reverse_probe(
        &mut self,
        now: Time,
        rtt_ns: u64,
        inbound_active: bool,
    ) -> Option<(Ev, u8, u16)> {
        let learned = core::mem::take(&mut self.reverse.learned);
        if !inbound_active || learned || now < self.reverse.next_probe {
            return None;
        }
        self.probe_reverse(now, rtt_ns)
    }

    /// Much data has arrived: one probe may be sent early, as soon as the one before it has a response (MRC paper,
    /// section 2.4, has one each round trip).
    pub fn refresh_reverse(&mut self, now: Time) {
        if !core::mem::take(&mut self.reverse.learned) && self.reverse.may_probe_early(now) {
            self.reverse.probe_burst_left = 1;
        }
        self.reverse.alternate = true;
    }

    /// The peer retransmits a packet that has arrived, so its acknowledgement was probably lost, and perhaps all on
    /// that path. Unless such probes are in flight, several search for a working path; after the first response, the
    /// acknowledgement may be sent again. The next acknowledgements take a random value from outside the set, every
    /// other time.
    pub fn suspect_reverse(&mut self, now: Time) {
        if self.reverse.may_search(now) {
            self.reverse.searched_at = now;
            self.reverse.probe_burst_left = (REMEMBERED - self.reverse.under_way(now)) as u8;
            self.reverse.ack_loss_suspected = true;
        }
    }

    /// The next early probe: see [`poll_reverse_probe`](Self::poll_reverse_probe).
    pub fn poll_early_probe(&mut self, now: Time, rtt_ns: u64) -> Option<(Ev, u8, u16)> {
        self.reverse.probe_burst_left = self.reverse.probe_burst_left.checked_sub(1)?;
        self.probe_reverse(now, rtt_ns)
    }

    fn probe_reverse(&mut self, now: Time, rtt_ns: u64) -> Option<(Ev, u8, u16)> {
        let planes = self.ack_planes();
        if planes == 0 {
            self.reverse.probe_burst_left = 0;
            return None;
        }
        let plane = plane_after(planes, self.reverse.last_probed);
        let state = self.planes.get(usize::from(plane))?;
        // Probes of one time take consecutive values, so that they differ as long as there are enough.
        let at = if self.reverse.probed_at == now {
            self.reverse.probed.wrapping_add(1)
        } else {
            below(&mut self.rng, u16::MAX)
        };
        self.reverse.probed = at;
        let id = *self.active_ids(state).get(usize::from(at % state.active.max(1)))?;
        self.reverse.last_probed = plane;
        let ticket = self.reverse.ask(id, plane, now, rtt_ns);
        self.counters.reverse_probes_sent += 1;
        Some((self.ev(EvId(id)), plane, ticket))
    }

    /// An EV probe got a response: its entropy value becomes the plane's reverse one. Returns `false` if no such
    /// probe is remembered.
    pub fn on_reverse_probe_answer(&mut self, ticket: u16, now: Time) -> bool {
        let Some(id) = self.reverse.answered(ticket, now) else { return false };
        self.counters.reverse_probes_answered += 1;
        self.on_delivered(EvId(id), now);
        self.keep_reverse(EvId(id));
        true
    }

    /// The value from outside the set for acknowledgements on `plane`, if those of the set seem to be lost, and it is
    /// its turn.
    fn fallback_of(&mut self, plane: u8) -> Option<Ev> {
        let reverse = &self.reverse;
        if !(reverse.ack_loss_suspected && reverse.alternate) {
            return None;
        }
        let id = match reverse.fallback_ev {
            Some((id, of)) if of == plane && !self.has(id, BAD | DENIED) => id,
            _ => self.reverse_choice(plane),
        };
        self.reverse.fallback_ev = Some((id, plane));
        self.entries.get(usize::from(id)).map(|entry| entry.ev)
    }

    fn reverse_of(&mut self, plane: u8, slot: u8) -> Option<Ev> {
        let id = *self.reverse.of_plane(plane).get(usize::from(slot))?;
        // `NONE` names no entry: the plane has nothing that is allowed.
        self.entries.get(usize::from(id)).map(|entry| entry.ev)
    }

    /// Replaces reverse entropy values of `plane` that are bad or denied by active ones. If there are none, it takes
    /// the bad one that was in use last.
    pub(super) fn heal_reverse(&mut self, plane: u8) {
        for slot in 0..usize::from(self.reverse.per_plane) {
            let Some(&current) = self.reverse.of_plane(plane).get(slot) else { continue };
            if current != NONE && !self.has(current, BAD | DENIED) {
                continue;
            }
            let choice = self.reverse_choice(plane);
            if let Some(place) = self.reverse.of_plane(plane).get_mut(slot) {
                *place = choice;
            }
        }
    }

    fn reverse_choice(&mut self, plane: u8) -> u16 {
        let Some(&state) = self.planes.get(usize::from(plane)) else { return NONE };
        let from = usize::from(below(&mut self.rng, state.active));
        let slots = usize::from(plane) * usize::from(self.reverse.per_plane);
        let taken = self.reverse.slots.get(slots..slots + usize::from(self.reverse.per_plane));
        let active = self.active_ids(&state);
        let in_turn = active[from..].iter().chain(&active[..from]);
        let fresh = in_turn.clone().find(|id| !taken.unwrap_or_default().contains(id));
        if let Some(&id) = fresh.or_else(|| in_turn.clone().next()) {
            return id;
        }
        // None is active. The last one that went out of use comes first.
        self.ids(&state).iter().copied().find(|&id| !self.has(id, DENIED)).unwrap_or(NONE)
    }
}
