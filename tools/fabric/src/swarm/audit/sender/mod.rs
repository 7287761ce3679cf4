//! What a queue pair sends, judged by what it was told.
//!
//! - *A gap is repaired before new data leaves.* When a packet that left later has been reported, and the time for this one has passed,
//!   no data leaves for the first time before it has left again.
//! - *What was reported is not sent again*, but for a tail probe that asks for a completion.
//! - *What may be on its way is sent again for a reason only*: a NACK, a port that changed its state, the report of a packet that left
//!   later, a round trip ago at least; or silence, for two round trips or the tail probe's floor, or a retransmission timeout.
//!
//! Time is measured in round trips as they are in the run, however long queues and outages make them.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use spindrift::time::Time;
use spindrift::wire::{DataHead, NackReason, Neth, Psn, Seth};

use crate::swarm::ledger::{Check, demand};

/// The least that counts as a reordering window, ns.
const REORDERING_FLOOR_NS: u64 = 2_000;
/// Round trips after which one of them no longer shows in a smoothed value: (7/8)^128 of it is left.
const RTT_MEMORY: u32 = 128;
/// A smoothed round trip and four times its variation are at most this many of the longest.
const SPREAD: u64 = 5;

/// A packet that was sent.
#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    /// How often.
    copies: u32,
    /// When it was sent last, and for how long the host had stood still then.
    at: Time,
    paused_ns: u64,
    /// Position of the last copy among all that the queue pair sent.
    order: u64,
    timestamp: u16,
    reported: bool,
    nacked: bool,
    /// The first packet of its message.
    first: usize,
}

/// Settings of a queue pair, ns.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::struct_field_names, reason = "the unit stands last in a name")]
pub(crate) struct Timers {
    /// Reordering that is expected at first.
    pub(crate) initial_reordering_ns: u64,
    /// The least silence before a tail probe.
    pub(crate) probe_floor_ns: u64,
    /// The shortest retransmission timeout.
    pub(crate) timeout_ns: u64,
}

/// See the [module documentation](self).
#[derive(Debug, Default)]
pub(super) struct Sender {
    timers: Timers,
    first: Psn,
    all: Vec<Sent>,
    actions: u64,
    /// The oldest packet that has not been reported; and the oldest of those that no fetch may have reported, either.
    una: usize,
    unknown: usize,
    /// The last packets of READs and atomic operations, and of responses to those of the peer, by number.
    requests: BTreeMap<u16, usize>,
    responses: BTreeMap<u16, usize>,
    max_dest_rd_atomic: u8,
    /// The packets before it may have been reported by fetches: a request is complete with its response, of which the peer may
    /// have sent a part, and a request tells that old responses have arrived (decision 40).
    fetched: usize,
    /// It may wait for the response to a fetch.
    waits: bool,
    /// Packets not reported, and not known to be overtaken, by the order of their last copy.
    in_order: BTreeMap<u64, usize>,
    /// Those known to be overtaken: when they should have left again at the latest.
    overtaken: BTreeSet<(Time, usize)>,
    /// Of those sent once, the latest that was reported.
    newest: u64,
    /// Of those sent again, the latest that was reported; it may have been an earlier copy that arrived.
    newest_repeat: u64,
    longest: Longest,
    /// No round trip was shorter.
    shortest_ns: Option<u64>,
    /// One was measured for certain.
    sampled: bool,
    /// And the peer has said something new since: only then do all tail probes wait for two of them.
    measured: bool,
    /// Packets that found no receive work request, and have not left again.
    unready: BTreeSet<usize>,
    /// Copies up to this one may leave again at any time.
    excused: u64,
    /// When something was last reported for the first time.
    quiet_since: Time,
    /// Packets sent again since, without another reason.
    probes: u64,
}

/// The longest of the last round trips, ns.
#[derive(Clone, Copy, Debug, Default)]
struct Longest {
    before: u64,
    now: u64,
    count: u32,
}

impl Longest {
    fn add(&mut self, ns: u64) {
        if self.count == RTT_MEMORY {
            *self = Self { before: self.now, now: 0, count: 0 };
        }
        self.now = self.now.max(ns);
        self.count += 1;
    }

    fn ns(&self) -> u64 {
        self.before.max(self.now)
    }
}

impl Sender {
    pub(super) fn new(timers: Timers, max_dest_rd_atomic: u8) -> Self {
        Self { timers, max_dest_rd_atomic, ..Self::default() }
    }

    /// A packet of the peer's data has come to this host.
    pub(super) fn on_data(&mut self, now: Time, head: &DataHead) {
        self.note_fetched(head);
        self.hear_of_fetched(now);
        self.advance();
    }

    /// What a packet of a response or a request tells, to a requester that takes it into account.
    fn note_fetched(&mut self, head: &DataHead) {
        let number = head.meth.rqmsn.get();
        let opcode = head.bth.opcode;
        let (sent, number) = if opcode.is_fetch_response() {
            (&mut self.requests, number)
        } else if opcode.is_fetch_request() {
            (&mut self.responses, number.wrapping_sub(self.max_dest_rd_atomic.into()))
        } else {
            return;
        };
        let is_over = |of: u16| number.wrapping_sub(of) < 1 << 15;
        let end = sent.iter().filter(|(of, _)| is_over(**of)).map(|(_, at)| at + 1).max();
        sent.retain(|of, _| !is_over(*of));
        if end.is_some_and(|end| end > self.fetched) {
            // Progress, if the requester was told; but its silence is not counted from here.
            self.probes = 0;
        }
        self.fetched = self.fetched.max(end.unwrap_or(0));
    }

    /// The requester may be told now of packets that fetches may have reported. The messages of the peer take effect in their order,
    /// so each packet of data, whatever it carries, may end the wait of responses and requests that came before it.
    fn hear_of_fetched(&mut self, now: Time) {
        let told = self.all.get(self.una..self.fetched).unwrap_or_default();
        let (mut newest, mut shortest_ns, mut longest_ns) = (0, None, 0);
        for sent in told.iter().filter(|sent| !sent.reported) {
            let age_ns = now.since(sent.at);
            if sent.copies == 1 {
                // It has had a round trip.
                shortest_ns = Some(shortest_ns.map_or(age_ns, |shortest: u64| shortest.min(age_ns)));
                longest_ns = longest_ns.max(age_ns);
            } else if age_ns < self.shortest_ns.unwrap_or(0) {
                continue;
            }
            // If it was sent again, the last copy counts as the one that arrived. What left before it may be lost.
            newest = newest.max(sent.order);
        }
        self.newest_repeat = self.newest_repeat.max(newest);
        if let Some(shortest_ns) = shortest_ns {
            self.at_most(shortest_ns);
            self.bound(longest_ns);
        }
    }

    /// What was sent until now may leave again: a port of this host or of the peer's has changed its state.
    pub(super) const fn excuse(&mut self) {
        self.excused = self.actions;
    }

    /// Position of a packet, the first being 0; below, and beyond what was sent, there is none.
    fn at(&self, psn: Psn) -> i64 {
        let next = self.first.add(self.all.len() as u32 & 0x00ff_ffff);
        self.all.len() as i64 + i64::from(psn.distance(next))
    }

    fn psn(&self, at: usize) -> u32 {
        self.first.add(at as u32 & 0x00ff_ffff).get()
    }

    fn at_most(&mut self, rtt_ns: u64) {
        self.shortest_ns = Some(self.shortest_ns.map_or(rtt_ns, |shortest| shortest.min(rtt_ns)));
    }

    /// Before the first measurement, the age of a packet that has arrived stands in for the round trip.
    fn bound(&mut self, age_ns: u64) {
        if !self.sampled {
            self.longest.add(age_ns);
        }
    }

    /// After this long a packet that was overtaken counts as lost: a fair round trip and the widest reordering window (RFC 8985,
    /// section 6.2).
    fn lost_after_ns(&self) -> u64 {
        let longest = self.longest.ns();
        longest + (SPREAD * longest).max(self.timers.initial_reordering_ns).max(REORDERING_FLOOR_NS)
    }

    /// `timers_run`: the host's timers are not held back after a stall.
    pub(super) fn on_send(&mut self, now: Time, paused_ns: u64, timers_run: bool, head: &DataHead) -> Check {
        if self.all.is_empty() {
            self.first = head.bth.psn;
        }
        let at = self.at(head.bth.psn) as usize;
        if self.unknown == self.all.len() && at == self.unknown && !self.waits {
            self.progress(now);
        }
        self.actions += 1;
        let timestamp = head.tseth.map_or(0, |tseth| tseth.timestamp);
        let copy = Sent {
            copies: 1,
            at: now,
            paused_ns,
            order: self.actions,
            timestamp,
            reported: false,
            nacked: false,
            first: at,
        };
        let Some(&before) = self.all.get(at) else {
            let first = match self.all.last() {
                Some(last) if !head.bth.opcode.is_first() => last.first,
                _ => at,
            };
            self.all.push(Sent { first, ..copy });
            self.note_fetch(head, at);
            self.in_order.insert(self.actions, at);
            return if timers_run { self.check_gaps(now, paused_ns) } else { Ok(()) };
        };
        let psn = head.bth.psn.get();
        if before.reported {
            demand!(
                self.unknown == self.all.len(),
                "packet {psn} was sent again although the peer had told of it"
            );
            // The SACK for this copy shows a round trip, too.
            let Sent { order, timestamp, .. } = copy;
            self.all[at] = Sent { copies: before.copies + 1, at: now, paused_ns, order, timestamp, ..before };
            return Ok(());
        }
        // The requester may have been told that it arrived, and if not, no reason is known.
        let check = if at < self.fetched { Ok(()) } else { self.check_reason(now, psn, &before) };
        self.in_order.remove(&before.order);
        self.overtaken.retain(|(_, seq)| *seq != at);
        self.in_order.insert(self.actions, at);
        self.unready.remove(&at);
        self.all[at] = Sent { copies: before.copies + 1, first: before.first, ..copy };
        check
    }

    /// All its work requests are complete.
    pub(super) const fn has_retired(&mut self) {
        self.waits = false;
    }

    /// A packet leaves for the first time.
    fn note_fetch(&mut self, head: &DataHead, at: usize) {
        let number = head.meth.rqmsn.get();
        if head.bth.opcode.is_fetch_request() {
            self.waits = true;
            self.requests.insert(number, at);
        } else if head.bth.opcode.is_fetch_response() {
            self.responses.insert(number, at);
        }
    }

    /// A packet leaves again that has not been reported.
    fn check_reason(&mut self, now: Time, psn: u32, before: &Sent) -> Check {
        let shortest_ns = self.shortest_ns.unwrap_or(0);
        let overtaken = before.order < self.newest.max(self.newest_repeat);
        let may_be_lost = overtaken && now.since(before.at) >= shortest_ns;
        if before.nacked || before.order <= self.excused || may_be_lost {
            return Ok(());
        }
        self.probes += 1;
        let (silence_ns, timeout_ns) = (now.since(self.quiet_since), self.timers.timeout_ns.max(1));
        let late_ns = if self.measured { 2 * shortest_ns } else { 0 };
        let probe_ns = late_ns.max(self.timers.probe_floor_ns).max(1);
        demand!(
            self.probes <= silence_ns / probe_ns + silence_ns / timeout_ns,
            "packet {psn} was sent again, and nothing says that it is lost: tail probe number {} in a silence of {silence_ns} ns; one may leave every {probe_ns} ns, and at each retransmission timeout of {timeout_ns} ns",
            self.probes
        );
        Ok(())
    }

    /// The peer said something new.
    const fn progress(&mut self, now: Time) {
        (self.quiet_since, self.probes) = (now, 0);
        // Tail probes that were due sooner are due no more.
        self.measured = self.sampled;
    }

    pub(super) fn on_nack(&mut self, now: Time, neth: &Neth) {
        let Ok(at) = usize::try_from(self.at(neth.nack_psn)) else { return };
        let Some(sent) = self.all.get_mut(at) else { return };
        sent.nacked = true;
        let reason = NackReason::from(neth.reason);
        // A packet that found no receive work request has arrived.
        if reason == NackReason::NoResource && neth.tx_timestamp == sent.timestamp {
            self.newest_repeat = self.newest_repeat.max(sent.order);
            self.unready.insert(at);
            let rtt_ns = now.since(sent.at);
            self.at_most(rtt_ns);
            self.bound(rtt_ns);
        }
        // A peer without room for a packet says nothing new: its silence goes on.
        if matches!(reason, NackReason::Trimmed | NackReason::TrimmedLastHop | NackReason::NoResource) {
            self.progress(now);
        }
    }

    /// Data leaves for the first time.
    fn check_gaps(&self, now: Time, paused_ns: u64) -> Check {
        // From the first message on that found no receive work request, all wait but responses.
        let unready =
            self.unready.first().and_then(|at| self.all.get(*at)).map_or(usize::MAX, |sent| sent.first);
        for &(latest, at) in &self.overtaken {
            if latest >= now {
                break;
            }
            if at < self.fetched || at >= unready {
                continue;
            }
            let sent = self.all[at];
            let age_ns = now.since(sent.at).saturating_sub(paused_ns - sent.paused_ns);
            let (lost_after_ns, psn) = (self.lost_after_ns(), self.psn(at));
            demand!(
                age_ns <= lost_after_ns,
                "data left for the first time although packet {psn} is lost: sent {} times, the last time {age_ns} ns ago; it counts as lost after {lost_after_ns} ns",
                sent.copies
            );
        }
        Ok(())
    }

    pub(super) fn on_sack(&mut self, now: Time, paused_ns: u64, seth: &Seth) {
        if self.all.is_empty() {
            // It answers a probe of a path: the first PSN is not known yet.
            return;
        }
        if !seth.pr
            && let Some(sent) = self.answered(seth)
        {
            let rtt_ns = now.since(sent.at);
            self.longest.add(rtt_ns);
            self.at_most(rtt_ns);
            self.sampled |= sent.copies == 1 && !sent.reported;
            self.newest_repeat = self.newest_repeat.max(sent.order);
        }
        let base = self.at(seth.sack_base());
        for at in self.una as i64..=self.at(seth.cack) {
            self.report(at, now);
        }
        for bit in (0..64).filter(|bit| seth.bitmap >> bit & 1 == 1) {
            self.report(base + bit, now);
        }
        if !seth.pr {
            self.report(self.at(seth.ack_psn()), now);
        }
        self.advance();
        let (lost_after_ns, next_report) = (self.lost_after_ns(), now.after(self.longest.ns()));
        while let Some(entry) = self.in_order.first_entry().filter(|entry| *entry.key() < self.newest) {
            let at = entry.remove();
            let sent = self.all[at];
            let due = sent.at.after(lost_after_ns + (paused_ns - sent.paused_ns));
            // The report that shows that it was overtaken need not cover it; the next one makes the requester look.
            self.overtaken.insert((due.max(next_report), at));
        }
    }

    /// All packets up to this one have arrived.
    pub(super) fn on_ack(&mut self, now: Time, psn: Psn) {
        for at in self.una as i64..=self.at(psn) {
            self.report(at, now);
        }
        self.advance();
    }

    fn advance(&mut self) {
        while self.all.get(self.una).is_some_and(|sent| sent.reported) {
            self.una += 1;
        }
        self.unknown = self.unknown.max(self.una).max(self.fetched);
        while self.all.get(self.unknown).is_some_and(|sent| sent.reported) {
            self.unknown += 1;
        }
    }

    /// The packet whose last copy made the peer send this SACK.
    fn answered(&self, seth: &Seth) -> Option<Sent> {
        let at = usize::try_from(self.at(seth.ack_psn())).ok()?;
        let sent = *self.all.get(at)?;
        (sent.timestamp == seth.cc.tx_timestamp).then_some(sent)
    }

    fn report(&mut self, at: i64, now: Time) {
        let Ok(at) = usize::try_from(at) else { return };
        let Some(sent) = self.all.get_mut(at).filter(|sent| !sent.reported) else { return };
        sent.reported = true;
        self.unready.remove(&at);
        let sent = *sent;
        if sent.copies == 1 {
            self.newest = self.newest.max(sent.order);
            let age_ns = now.since(sent.at);
            self.at_most(age_ns);
            if self.longest.ns() == 0 {
                self.longest.add(age_ns);
            }
        } else {
            self.newest_repeat = self.newest_repeat.max(sent.order);
        }
        // Of others a response may have told before.
        if at >= self.fetched {
            self.progress(now);
        }
        if self.in_order.remove(&sent.order).is_none() {
            self.overtaken.retain(|(_, other)| *other != at);
        }
    }
}
