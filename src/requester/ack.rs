//! Processing of SACKs, NACKs and transport ACKs: their effect on the packets in flight.

use crate::congestion::{AckSample, Flight};
use crate::path::{EvId, EvMark};
use crate::time::Time;
use crate::wire::{Ev, Mark, NackReason, Neth, Psn, Seth};

use super::loss::{Evidence, Record};
use super::rnr::NeverReady;
use super::spurious::{AckSnapshot, AckedCopy, RtxReason, RtxVerdict};
use super::{LossKind, Requester, SendContext};

/// The result of processing an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AckOutcome {
    /// It was processed.
    Used,
    /// It names packets that were never sent, so all of it was ignored.
    Forged,
    /// The peer cannot continue (NACK `UNEXP_EVENT`).
    Fatal,
    /// The peer had no receive work request after all retries.
    NeverReady {
        /// The first packet of the message.
        first: u64,
    },
}

/// A SACK, translated to packet sequence numbers and limited to what is in flight.
struct Report {
    /// One past the last packet received without a gap, but never below `una`.
    cack_end: u64,
    /// First packet that the bitmap covers.
    base: u64,
    bitmap: u64,
    /// The packet that triggered the SACK, if it is still in flight.
    trigger: Option<u64>,
    /// The packet that triggered the SACK, in flight or not.
    answered: Option<u64>,
    /// The timestamp and the entropy value of the copy that triggered the SACK.
    copy: (u16, Ev),
    /// One past the cumulative acknowledgement as the SACK states it.
    told_end: u64,
    /// A newer SACK was processed before: packets that this one does not list may have arrived.
    stale: bool,
    /// The SACK lists everything that had arrived.
    lists_all: bool,
}

impl Report {
    /// Whether the bitmap proves this packet missing: its bit is clear, below the highest set bit.
    fn says_missing(&self, seq: u64) -> bool {
        let bit = seq.wrapping_sub(self.base);
        seq >= self.base && bit < 64 - u64::from(self.bitmap.leading_zeros()) && self.bitmap >> bit & 1 == 0
    }

    /// Whether a copy of the packet of `record` other than its latest triggered this SACK. Copies may be a whole
    /// period of the 16-bit timestamp apart after an RTO; then the entropy value decides.
    fn of_another_copy(&self, record: &Record, ev_mask: u32, env: &SendContext<'_>) -> bool {
        is_another_copy(self.copy, record, ev_mask, env)
    }
}

/// Whether this timestamp and entropy value, limited to `ev_mask`, differ from those of the latest copy of a packet.
fn is_another_copy(
    (timestamp, Ev(ev)): (u16, Ev),
    record: &Record,
    ev_mask: u32,
    env: &SendContext<'_>,
) -> bool {
    timestamp != record.sent_at.timestamp() || (ev ^ env.paths.ev(EvId(record.ev)).0) & ev_mask != 0
}

impl Requester {
    /// Retransmissions are remembered for this many round trips, and at least for this many nanoseconds.
    const REPEAT_MEMORY_RTTS: u64 = 16;
    const REPEAT_MEMORY_NS: u64 = 1_000_000;
    /// At most this many searches per round trip for gaps that no SACK covers.
    const CHECKS_PER_RTT: u64 = 4;

    /// Processes a SACK (MRC 1.0 tables 7-12 to 7-15).
    pub(crate) fn on_sack(&mut self, now: Time, sack: &Seth, env: &mut SendContext<'_>) -> AckOutcome {
        let Some(report) = self.translate(sack) else {
            env.counters.rx_forged_ack += 1;
            return AckOutcome::Forged;
        };
        if report.stale {
            env.counters.rx_stale_sack += 1;
        } else if self.setup.dynamic_mpr && sack.mpr > 0 {
            // It may be less than what is in flight: the window limits new packets only.
            self.window = u32::from(sack.mpr) * 128;
        }
        if !self.rtx_history.is_empty() {
            self.learn_from_repeats(now, sack, &report, env);
        }
        let rtt_ns = self.feedback(now, sack, &report, env);
        let newly_acked = self.take_in(now, &report, env);
        self.bound_rtt(now);
        // Like path feedback, congestion feedback counts only if the packet's last transmission triggered the SACK.
        let answers = rtt_ns.is_some();
        env.cc.on_ack(&AckSample {
            now,
            newly_acked,
            ecn: answers && sack.mark == Mark::SkipOnce,
            rtt_ns,
            penalty: if answers { sack.cc.cwnd_penalty } else { 0 },
            restore_cwnd: answers && sack.cc.restore_cwnd,
            plane: rtt_ns
                .and(report.answered)
                .map_or(0, |seq| env.paths.plane(EvId(self.records.get(seq).ev))),
        });
        if self.reported.max(self.overtaken) > self.una && !report.stale {
            self.judge_holes(now, &report, env);
            if !self.suspects.is_empty() {
                self.resolve_doubts(now, &report, env);
            }
        }
        self.fail_over_if_silent(now, env);
        AckOutcome::Used
    }

    fn translate(&self, sack: &Seth) -> Option<Report> {
        let next = self.next as i64;
        let cack = self.seq_of(sack.cack);
        if cack >= next {
            return None;
        }
        let trigger = if sack.pr { cack } else { cack + i64::from(sack.ack_psn_offset) };
        let base = cack + i64::from(sack.sack_offset);
        let top = base + 63 - i64::from(sack.bitmap.leading_zeros());
        if trigger >= next || (sack.bitmap != 0 && top >= next) {
            return None;
        }
        let una = self.una as i64;
        // The part of the bitmap before `una` is already known.
        let below = (una - base).max(0);
        let bitmap = if below < 64 { sack.bitmap >> below } else { 0 };
        let behind = sack.cc.rcvd_bytes.wrapping_sub(self.last_rcvd_bytes) & 0x00ff_ffff >= 0x0080_0000;
        Some(Report {
            cack_end: (cack + 1).max(una) as u64,
            base: base.max(una) as u64,
            bitmap,
            trigger: (!sack.pr && trigger >= una).then_some(trigger as u64),
            told_end: (cack + 1).max(0) as u64,
            answered: (!sack.pr && trigger >= 0).then_some(trigger as u64),
            copy: (sack.cc.tx_timestamp, sack.entropy),
            stale: cack + 1 < una || behind,
            lists_all: sack.bitmap.count_ones() == u32::from(sack.cc.ooo_count),
        })
    }

    /// Processes what the SACK proves about packets that were sent more than once.
    #[cold]
    fn learn_from_repeats(&mut self, now: Time, sack: &Seth, report: &Report, env: &mut SendContext<'_>) {
        let listing = AckSnapshot { rcvd_bytes: sack.cc.rcvd_bytes, cack_end: report.told_end };
        let answered = report.answered.map(|seq| AckedCopy {
            seq,
            timestamp: sack.cc.tx_timestamp,
            ev_bits: sack.entropy,
        });
        let (base, bitmap) = (report.base, report.bitmap);
        let listed = |seq: u64| seq.checked_sub(base).is_some_and(|bit| bit < 64 && bitmap >> bit & 1 == 1);
        let mut repeats = core::mem::take(&mut self.rtx_history);
        repeats.on_sack(answered.as_ref(), listing, listed, |proof| match proof {
            RtxVerdict::Lost { ev, order, sent_at } => {
                let plane = env.paths.plane(EvId(ev));
                env.cc.on_repaired_loss(now, &Flight { plane, bytes: u64::from(self.setup.mtu), sent_at });
                self.suspect(ev, order, now, env);
            }
            RtxVerdict::Needless { ev, cause } => {
                env.counters.spurious_retransmits += 1;
                self.had_arrived(ev, cause, now, env);
            }
        });
        self.rtx_history = repeats;
        let memory_ns = (Self::REPEAT_MEMORY_RTTS * self.rtt.fair_ns()).max(Self::REPEAT_MEMORY_NS);
        self.rtx_history.forget(Time(now.0.saturating_sub(memory_ns)));
    }

    /// Suspects entropy value `ev`: the copy at position `order` was probably lost. Congestion control counted the
    /// packet once, when it was first sent, and counts it out when it is acknowledged.
    fn suspect(&mut self, ev: u16, order: u64, now: Time, env: &mut SendContext<'_>) {
        env.counters.tail_suspects += 1;
        let id = EvId(ev);
        let newest = self.newest_on(id);
        if self.suspects.suspect(ev, order, newest) {
            env.paths.on_loss(id, now);
        } else if env.paths.stays_in_silence(id, newest)
            && self.suspects.confirm(ev, u64::MAX, newest).is_some()
        {
            env.paths.on_packet_lost(id, &self.signs(id, order, env), now);
        }
    }

    /// The packet at position `order` on entropy value `ev` was lost, but its path stays in use. If a packet before
    /// it is suspected to be lost and nothing has arrived in between, that loss counts too. Returns whether the path
    /// is given up now.
    #[cold]
    pub(super) fn confirm(&mut self, ev: EvId, order: u64, now: Time, env: &mut SendContext<'_>) -> bool {
        let lost = self.suspects.confirm(ev.0, order, self.newest_on(ev));
        lost.is_some_and(|lost| env.paths.on_packet_lost(ev, &self.signs(ev, lost, env), now))
    }

    /// Suspects the path of packet `seq`. The packet is probably lost, or no SACK has come since it arrived. The path
    /// is blamed if a SACK proves the packet missing, or if the same happens to a packet that was sent later.
    #[cold]
    pub(super) fn doubt(&mut self, seq: u64, record: &Record, now: Time, env: &mut SendContext<'_>) {
        let ev = record.ev;
        let newest = self.newest_on_ev.get(usize::from(ev)).copied().unwrap_or(0);
        if self.suspects.doubt(ev, (seq, record.order), newest, self.orders) {
            env.paths.on_loss(EvId(ev), now);
        }
    }

    /// Blames the suspected paths of packets that this SACK proves missing.
    #[cold]
    fn resolve_doubts(&mut self, now: Time, report: &Report, env: &mut SendContext<'_>) {
        let mut suspects = core::mem::take(&mut self.suspects);
        let (una, sacked) = (self.una, &self.sacked);
        let missing = |seq: u64| !sacked.test(seq) && (seq == una || report.says_missing(seq));
        suspects.resolve(missing, |ev, order| {
            let signs = self.signs(EvId(ev), order, env);
            env.paths.on_packet_lost(EvId(ev), &signs, now);
        });
        self.suspects = suspects;
    }

    /// A packet on this entropy value was declared lost or retransmitted for this cause, but had arrived.
    fn had_arrived(&mut self, ev: u16, cause: RtxReason, now: Time, env: &mut SendContext<'_>) {
        let rtt = self.rtt;
        match cause {
            RtxReason::Reordering => {
                env.counters.order_rule_pauses += u64::from(self.path_order.disproved(&rtt, now));
            }
            RtxReason::RackTimeout => self.reordering.widen(&rtt, now.0),
            RtxReason::Tlp | RtxReason::TxRejected | RtxReason::Nack => {
                return env.paths.on_delivered(EvId(ev), now);
            }
        }
        env.paths.on_wrong_loss(EvId(ev), now);
    }

    /// Applies the SACK's feedback to the path of the packet that triggered it. Returns the round-trip time, which is
    /// valid only if the packet's last transmission triggered the SACK.
    fn feedback(
        &mut self,
        now: Time,
        sack: &Seth,
        report: &Report,
        env: &mut SendContext<'_>,
    ) -> Option<u64> {
        if !report.stale {
            self.last_rcvd_bytes = sack.cc.rcvd_bytes;
        }
        // A transport ACK may have completed the packet before the SACK arrives. Its record still exists.
        let seq = report.answered.filter(|&seq| self.records.keeps(seq, self.next))?;
        let record = self.records.get(seq);
        if record.order == 0
            || record.sent_at.timestamp() != sack.cc.tx_timestamp
            || (record.retries > 0 && report.of_another_copy(&record, self.setup.ev_mask, env))
        {
            return None;
        }
        let ev = EvId(record.ev);
        let of_standby = self.role_doubt.probed_by(record.order);
        if env.paths.has_idle_planes() {
            self.weigh_roles(now, ev, record.order, env);
        }
        match sack.mark {
            Mark::SkipOnce => env.paths.on_ecn(ev, now),
            Mark::AlwaysSkip => env.paths.on_always_skip(ev, now),
            Mark::None | Mark::Reserved => env.paths.on_unmarked(ev),
        }
        let rtt_ns = now.since(record.sent_at);
        if record.retries > 0 {
            // Two copies on one path are a whole timestamp period apart: this may be a late SACK for the first.
            if rtt_ns < self.rtt.min_ns() && self.rtx_history.may_be_mistaken(seq, record.order) {
                return None;
            }
            self.overtakes(&record, now);
        }
        // Planes that stand by are empty, so their round-trip time says nothing about those that serve.
        if of_standby {
            return None;
        }
        self.rtt.sample(rtt_ns);
        Some(rtt_ns)
    }

    /// Before the first sample, the age of the newest acknowledged packet is an upper bound of the round-trip time.
    #[inline]
    pub(super) fn bound_rtt(&mut self, now: Time) {
        if self.rtt.smoothed_ns() == 0 && self.newest_order > 0 {
            self.rtt.at_most(now.since(self.newest_sent_at));
        }
    }

    /// A packet that was sent more than once has arrived. Its latest transmission is taken to have arrived (RFC 8985
    /// section 6.2, step 2), unless another copy triggered the SACK, or the SACK came sooner than the shortest round
    /// trip.
    #[cold]
    #[inline(never)]
    fn repeated_arrived(
        &mut self,
        seq: u64,
        record: &Record,
        sack: Option<&Report>,
        now: Time,
        env: &SendContext<'_>,
    ) {
        let of_the_latest = match sack.filter(|report| report.answered == Some(seq)) {
            Some(report) => !report.of_another_copy(record, self.setup.ev_mask, env),
            None => self.rtt.min_ns() > 0 && now.since(record.sent_at) >= self.rtt.min_ns(),
        };
        if of_the_latest {
            self.overtakes(record, now);
        }
    }

    /// The latest transmission of a packet that was sent more than once has arrived. It has overtaken every earlier
    /// transmission that is not acknowledged.
    #[cold]
    pub(super) fn overtakes(&mut self, record: &Record, now: Time) {
        self.newest_sent_at = self.newest_sent_at.max(record.sent_at);
        self.newest_order = self.newest_order.max(record.order);
        if record.order == self.newest_rtx.0 {
            self.overtaken = self.overtaken.max(self.newest_rtx.1);
            self.loss_check_at = now;
        }
    }

    /// Marks everything that the SACK lists as received. Returns the bytes that left the network.
    fn take_in(&mut self, now: Time, report: &Report, env: &mut SendContext<'_>) -> u64 {
        // Packets that were declared lost count as progress too, but were not in flight.
        let before = (self.una, self.reported, env.counters.spurious_losses);
        let mut newly = self.deliver_below(report.cack_end, Some(report), now, env);
        let mut bits = report.bitmap;
        while bits != 0 {
            let seq = report.base + u64::from(bits.trailing_zeros());
            bits &= bits - 1;
            if seq >= report.cack_end {
                newly += self.deliver(seq, Some(report), now, env);
            }
        }
        if let Some(seq) = report.trigger.filter(|&seq| seq >= report.cack_end) {
            newly += self.deliver(seq, Some(report), now, env);
        }
        // A transport ACK or a response may have told more than an older SACK, whose bitmap then begins there.
        let una = if report.cack_end > report.told_end {
            self.reported_until(report.cack_end)
        } else {
            report.cack_end
        };
        self.advance(una);
        if newly > 0 || (self.una, self.reported, env.counters.spurious_losses) != before {
            self.progress(now);
        }
        newly
    }

    /// The first packet from `una` on that the peer has not reported.
    fn reported_until(&self, una: u64) -> u64 {
        (una..self.next).find(|&seq| !self.sacked.test(seq)).unwrap_or(self.next.max(una))
    }

    fn advance(&mut self, una: u64) {
        self.sacked.clear_range(self.una, una);
        self.una = una;
        self.reported = self.reported.max(una);
    }

    /// Marks every packet before `end` as arrived; the caller [advances](Self::advance) to it. Returns the bytes of
    /// those that were still counted as in flight.
    fn deliver_below(
        &mut self,
        end: u64,
        sack: Option<&Report>,
        now: Time,
        env: &mut SendContext<'_>,
    ) -> u64 {
        let mut newly = 0;
        let mut at = self.una;
        while at < end {
            let count = (end - at).min(64);
            // They need no mark, because no later code looks at them.
            let mut news = !self.sacked.get64(at) & (u64::MAX >> (64 - count));
            while news != 0 {
                let seq = at + u64::from(news.trailing_zeros());
                news &= news - 1;
                newly += self.arrived(seq, sack, now, env);
            }
            at += count;
        }
        newly
    }

    /// Marks packet `seq`, above the cumulative acknowledgement, as arrived by a SACK or a transport ACK. Returns its
    /// bytes if they were still counted as in flight.
    fn deliver(&mut self, seq: u64, sack: Option<&Report>, now: Time, env: &mut SendContext<'_>) -> u64 {
        if self.sacked.test(seq) {
            return 0;
        }
        self.sacked.set(seq);
        self.reported = self.reported.max(seq + 1);
        self.arrived(seq, sack, now, env)
    }

    /// Records the arrival of packet `seq`, when it is acknowledged for the first time. Returns its bytes if they
    /// were still counted as in flight.
    #[inline]
    fn arrived(&mut self, seq: u64, sack: Option<&Report>, now: Time, env: &mut SendContext<'_>) -> u64 {
        let record = self.records.get(seq);
        if record.retries == 0 {
            self.first_arrived(&record, now);
        } else {
            self.repeated_arrived(seq, &record, sack, now, env);
        }
        if self.lost_count > 0 && self.lost.test(seq) {
            self.lost.clear(seq);
            self.lost_count -= 1;
            env.counters.spurious_losses += 1;
            env.cc.on_wrong_loss(&record.flight(env.paths));
            self.had_arrived(record.ev, record.cause, now, env);
            return 0;
        }
        if env.cc.counts_packets() {
            env.cc.on_arrival(&record.flight(env.paths));
        }
        u64::from(record.bytes)
    }

    /// A packet that was sent once has arrived.
    #[inline]
    fn first_arrived(&mut self, record: &Record, now: Time) {
        if record.order < self.newest_order {
            // Packets of one burst have one send time, so the packet that overtook this one may show no later time.
            // The delay of the SACK is then the measure.
            let overtaken_by = self.newest_sent_at.since(record.sent_at);
            let late_by = now.since(record.sent_at).saturating_sub(self.rtt.smoothed_ns());
            self.reordering.observe(overtaken_by.max(late_by), now.0);
        } else {
            (self.newest_order, self.newest_sent_at) = (record.order, record.sent_at);
        }
        self.note_order(record.ev, record.order);
    }

    /// Records the newest first transmission that arrived on an entropy value. The order rule ignores
    /// retransmissions: they have another traffic class, which switches may queue separately.
    #[inline]
    pub(super) fn note_order(&mut self, ev: u16, order: u64) {
        let at = usize::from(ev);
        if self.newest_on_ev.len() <= at {
            self.newest_on_ev = grown(&self.newest_on_ev, (at + 1).max(self.evs));
        }
        self.newest_on_ev[at] = self.newest_on_ev[at].max(order);
    }

    /// Judges the packets that this SACK proves missing: the first after the cumulative acknowledgement, and the
    /// clear bits below the highest set bit.
    fn judge_holes(&mut self, now: Time, report: &Report, env: &mut SendContext<'_>) {
        let evidence = self.evidence(now);
        self.judge_hole(self.una, &evidence, now, env);
        let covered = report.base + 64 - u64::from(report.bitmap.leading_zeros());
        let mut holes = if report.bitmap == 0 { 0 } else { !report.bitmap };
        while holes != 0 {
            let seq = report.base + u64::from(holes.trailing_zeros());
            if seq >= covered {
                break;
            }
            holes &= holes - 1;
            self.judge_hole(seq, &evidence, now, env);
        }
        // The oldest gap and the gaps that the SACK covers need no timer, but others do.
        let others = report.base > self.una + 1 || covered < self.reported.max(self.overtaken);
        if now >= self.loss_check_at {
            self.scan_overdue(report.lists_all, now, env);
        } else if others || self.loss_check_at == Time::NEVER {
            let check_at = now.after(evidence.rtt_ns / Self::CHECKS_PER_RTT);
            self.loss_check_at = self.loss_check_at.min(check_at);
        }
    }

    fn judge_hole(&mut self, seq: u64, evidence: &Evidence, now: Time, env: &mut SendContext<'_>) {
        if self.sacked.test(seq) || self.lost.test(seq) {
            return;
        }
        let record = self.records.get(seq);
        let newest_on_ev = self
            .newest_on_ev
            .get(usize::from(record.ev))
            .copied()
            .filter(|_| record.retries == 0 && self.path_order.holds(now));
        self.judge_one(seq, &Evidence { newest_on_ev, ..*evidence }, LossKind::Path, now, env);
    }

    /// Processes a transport ACK: every message up to `psn` is complete at the peer.
    pub(crate) fn on_transport_ack(&mut self, now: Time, psn: Psn, env: &mut SendContext<'_>) -> AckOutcome {
        let end = self.seq_of(psn) + 1;
        if end > self.next as i64 {
            env.counters.rx_forged_ack += 1;
            return AckOutcome::Forged;
        }
        let end = end.max(0) as u64;
        if end <= self.acked {
            if !self.fetches.is_empty() {
                // The peer has nothing to report but that it works.
                self.peer_responds(now);
            }
            return AckOutcome::Used;
        }
        self.acked = end;
        self.done = self.fetches.complete_until(end);
        if end > self.una {
            let newly_acked = self.deliver_below(end, None, now, env);
            // The peer may have reported the packets after it already.
            self.advance(self.reported_until(end));
            self.bound_rtt(now);
            env.cc.on_ack(&AckSample {
                now,
                newly_acked,
                ecn: false,
                rtt_ns: None,
                penalty: 0,
                restore_cwnd: false,
                plane: 0,
            });
        }
        self.progress(now);
        AckOutcome::Used
    }

    /// The packet that a NACK refuses, if it is not known to have arrived and the NACK is for its last transmission.
    /// A NACK for an earlier copy is no evidence about the copy in flight.
    ///
    /// The timestamp identifies the copy. A NACK that ends the queue pair must match the entropy value as well.
    fn refused(&self, seq: i64, nack: &Neth, env: &SendContext<'_>) -> Option<u64> {
        let seq = u64::try_from(seq).ok().filter(|&seq| seq >= self.una && !self.sacked.test(seq))?;
        let record = self.records.get(seq);
        let fatal = NackReason::from(nack.reason) == NackReason::UnexpectedEvent;
        let ev_mask = if fatal { self.setup.ev_mask } else { 0 };
        let copy = (nack.tx_timestamp, nack.entropy);
        (!is_another_copy(copy, &record, ev_mask, env)).then_some(seq)
    }

    /// Processes a NACK (MRC 1.0 tables 7-16 and 7-17): the packet is retransmitted at once.
    pub(crate) fn on_nack(&mut self, now: Time, nack: &Neth, env: &mut SendContext<'_>) -> AckOutcome {
        let seq = self.seq_of(nack.nack_psn);
        if seq >= self.next as i64 {
            env.counters.rx_forged_ack += 1;
            return AckOutcome::Forged;
        }
        let Some(seq) = self.refused(seq, nack, env) else {
            env.counters.rx_stale_nack += 1;
            return AckOutcome::Used;
        };
        let reason = NackReason::from(nack.reason);
        if reason == NackReason::UnexpectedEvent {
            return AckOutcome::Fatal;
        }
        if let (NackReason::NoResource, Some(retries)) = (reason, self.setup.rnr_retry)
            && let Some(first) = self.taker(seq)
        {
            let wait_ns = Neth::rnr_timer_ns(nack.vendor_info);
            return match self.on_not_ready(now, (first, seq, wait_ns), retries, env) {
                Ok(()) => AckOutcome::Used,
                Err(NeverReady { first }) => AckOutcome::NeverReady { first },
            };
        }
        env.counters.loss_nack += 1;
        let blame = match reason {
            NackReason::Trimmed => LossKind::Trim,
            NackReason::TrimmedLastHop => LossKind::LastHopTrim,
            _ => LossKind::Nobody,
        };
        self.declare_lost(seq, blame, RtxReason::Nack, now, env);
        if blame != LossKind::Nobody {
            // A trim shows that the path to the peer works. A peer without room shows nothing: if this never ends,
            // the retries must run out.
            self.progress(now);
        }
        AckOutcome::Used
    }

    /// The path mark of a SACK. In a SACK for a reliability probe, it applies to the probed path.
    pub(crate) const fn mark_of(sack: &Seth) -> EvMark {
        match sack.mark {
            Mark::None | Mark::Reserved => EvMark::None,
            Mark::SkipOnce => EvMark::SkipOnce,
            Mark::AlwaysSkip => EvMark::AlwaysSkip,
        }
    }
}

fn grown(old: &[u64], len: usize) -> Box<[u64]> {
    let mut grown = vec![0; len].into_boxed_slice();
    grown[..old.len()].copy_from_slice(old);
    grown
}
