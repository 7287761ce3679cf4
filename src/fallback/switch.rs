//! The switch to another pair after a failure (SHIFT paper, section 4.3.2).
//!
//! 1. All pairs in use are put into ERROR and drained. So this side knows which requests have completed and which messages
//!    it has received, and neither changes any more.
//! 2. It selects a prepared pair, on the other NIC if there is one, posts its receives there, and sends a report: how many
//!    messages it has received.
//! 3. When the peer's report arrives on the same pair, requests that the peer has received are complete. The others are
//!    sent again, on that pair.
//!
//! The peer does the same when it fails by itself, or when the report arrives. If both begin at once on different NICs, each
//! has sent a report with the number of its attempt. The later attempt wins, then the backup NIC; the other side adopts
//! that pair.

use crate::time::Time;
use crate::work::{SendOp, WcStatus};

use super::config::FallbackError;
use super::machine::{Machine, Phase, Use, own};
use super::message::{Count, Message, Round};
use super::queue::control;
use super::verbs::{Cause, Nic, PairId, Verbs};

impl Machine {
    /// A pair is in ERROR, and this side did not put it there.
    pub(super) fn pair_failed(&mut self, verbs: &mut impl Verbs, id: PairId, cause: Cause) {
        match self.pair(id).map(|pair| pair.used) {
            None | Some(Use::Ending) => {}
            Some(Use::Created | Use::Spare) => self.spare_failed(verbs, id),
            Some(Use::Used) if cause == Cause::Network => {
                self.counters.switches += 1;
                self.begin_switch(verbs, id.nic);
            }
            Some(Use::Used) => self.give_up(verbs, FallbackError::PairFailed),
        }
    }

    /// The NIC of this pair is gone: no completion comes any more. Those that had come have been passed on.
    pub fn on_lost(&mut self, verbs: &mut impl Verbs, id: PairId) {
        self.pair_failed(verbs, id, Cause::Network);
        if let Some(pair) = self.pair_mut(id) {
            pair.lost = true;
            self.on_ended(verbs, id);
        }
    }

    /// All links of a NIC of this side are down. If a pair is prepared on the other NIC, it takes over now, and not when
    /// retransmissions are exhausted; unless a request in flight may not be sent again, and the link may be back in time.
    pub fn on_link_down(&mut self, verbs: &mut impl Verbs, nic: Nic) {
        if !self.has_spare(nic.other()) || self.sends.not_repeatable(self.sends.posted_end()).is_some() {
            return;
        }
        let in_use = self.pairs.iter().find(|pair| pair.used == Use::Used && pair.id.nic == nic);
        if let Some(id) = in_use.map(|pair| pair.id) {
            self.pair_failed(verbs, id, Cause::Network);
        }
    }

    /// The peer has given up its side of a pair that it has not used.
    pub fn on_stale(&mut self, verbs: &mut impl Verbs, id: PairId) {
        if self.is_unused(id) {
            self.spare_failed(verbs, id);
        }
    }

    /// The peer has made pairs up to `newest` on this NIC, and has given up all but those that are `alive`. If this side uses one of the
    /// others, it may be about to leave it anyway. A probe finds out: a side that only receives, or waits, would not notice otherwise.
    pub fn on_peer_pairs(&mut self, verbs: &mut impl Verbs, nic: Nic, newest: u32, alive: &[u32]) {
        let ended = |id: PairId| id.nic == nic && id.generation <= newest && !alive.contains(&id.generation);
        let here = self.pairs.iter().filter(|pair| pair.used != Use::Ending && ended(pair.id));
        let here: Vec<_> = here.map(|pair| pair.id).collect();
        for id in here {
            if self.is_unused(id) {
                self.spare_failed(verbs, id);
            } else {
                self.send_probe(verbs, id);
            }
        }
    }

    /// Whether a pair exists and neither side has used it, as far as is known.
    pub fn is_unused(&self, id: PairId) -> bool {
        self.pair(id).is_some_and(|pair| matches!(pair.used, Use::Created | Use::Spare))
    }

    fn spare_failed(&mut self, verbs: &mut impl Verbs, id: PairId) {
        self.counters.spares_failed += 1;
        self.probe_due = self.now.after(self.config.probe_ns);
        self.end_pair(verbs, id);
        self.cancel_move(verbs, id);
    }

    /// The pair is connected on both sides.
    pub fn prepared(&mut self, verbs: &mut impl Verbs, id: PairId) {
        let Some(pair) = self.pair_mut(id).filter(|pair| pair.used == Use::Created) else { return };
        pair.used = Use::Spare;
        match self.phase {
            Phase::WaitSpare { .. } => self.choose_pair(verbs),
            Phase::Failed => self.tell_peer(verbs),
            _ => {}
        }
    }

    /// Gives up all pairs in use, and selects another one when they are drained.
    pub(super) fn begin_switch(&mut self, verbs: &mut impl Verbs, down: Nic) {
        if self.phase == Phase::Failed {
            return;
        }
        if self.tx.nic == self.preferred && !matches!(self.phase, Phase::Draining | Phase::WaitSpare { .. }) {
            self.hold.failed(self.now);
        }
        self.at_risk = self.at_risk.max(self.sends.posted_end());
        self.down = down;
        self.phase = Phase::Draining;
        self.moved_in = None;
        self.end_used(verbs);
        self.pair_is_gone(verbs);
    }

    fn end_used(&mut self, verbs: &mut impl Verbs) {
        while let Some(pair) = self.pairs.iter().find(|pair| pair.used == Use::Used) {
            let id = pair.id;
            self.end_pair(verbs, id);
        }
    }

    /// A pair has been drained, or none had to be.
    pub(super) fn pair_is_gone(&mut self, verbs: &mut impl Verbs) {
        if self.phase != Phase::Draining
            || self.pairs.iter().any(|pair| matches!(pair.used, Use::Ending | Use::Used))
        {
            return;
        }
        if self.failure.is_some() {
            return self.finish_failure(verbs);
        }
        if let Some(wr_id) = self.sends.not_repeatable(self.at_risk) {
            return self.give_up(verbs, FallbackError::NotRepeatable { wr_id });
        }
        self.choose_pair(verbs);
    }

    /// Which of two reports counts: the one of the later attempt, then that on the backup NIC, then that on the newer pair.
    fn precedes(a: (Round, PairId), b: (Round, PairId)) -> bool {
        b.0.is_after(a.0) || b.0 == a.0 && a.1 < b.1
    }

    /// Everything is drained: reports on the pair that the peer has reported on, or else on a prepared one.
    fn choose_pair(&mut self, verbs: &mut impl Verbs) {
        let reported = self.pairs.iter().filter(|pair| pair.used == Use::Spare);
        let reported = reported.filter_map(|pair| pair.report.map(|(round, _)| (round, pair.id)));
        let reported = reported.reduce(|a, b| if Self::precedes(a, b) { b } else { a });
        if let Some((round, id)) = reported {
            if round.is_after(self.round) {
                self.round = round;
            }
            return self.report_on(verbs, id);
        }
        if self.attempts >= self.config.max_attempts {
            return self.give_up(verbs, FallbackError::AttemptsExhausted { attempts: self.attempts });
        }
        let spare = |nic| self.pairs.iter().find(move |pair| pair.used == Use::Spare && pair.id.nic == nic);
        let Some(id) = spare(self.down.other()).or(spare(self.down)).map(|pair| pair.id) else {
            if !matches!(self.phase, Phase::WaitSpare { .. }) {
                self.phase = Phase::WaitSpare { until: self.now.after(self.config.prepare_timeout_ns) };
            }
            return;
        };
        self.attempts += 1;
        self.round = self.round.next();
        self.report_on(verbs, id);
    }

    fn report_on(&mut self, verbs: &mut impl Verbs, id: PairId) {
        self.phase = Phase::Reporting { to: id };
        self.rx = id;
        self.receives.rewind();
        self.sends.rewind();
        self.probe_due = self.now.after(self.config.probe_ns);
        if let Some(pair) = self.pair_mut(id) {
            pair.used = Use::Used;
        }
        self.pump_receives(verbs);
        if self.phase != (Phase::Reporting { to: id }) {
            return;
        }
        let report = Message::Report { round: self.round, received: self.receives.completed() };
        if self.speak(verbs, id, report) && self.pair(id).is_some_and(|pair| pair.report.is_some()) {
            self.finish_switch(verbs, id);
        }
    }

    /// Sends this side's message on a pair. Returns whether the pair takes it.
    pub(super) fn speak(&mut self, verbs: &mut impl Verbs, id: PairId, message: Message) -> bool {
        if let Some(pair) = self.pair_mut(id) {
            pair.spoke = true;
        }
        let posted = verbs.post_send(id, control(own::MESSAGE, SendOp::WriteWithImm(message.encode())));
        if posted.is_err() {
            self.pair_failed(verbs, id, Cause::Network);
        }
        posted.is_ok()
    }

    /// The peer's message on a pair has arrived.
    pub(super) fn on_message(&mut self, verbs: &mut impl Verbs, id: PairId, imm: Option<u32>) {
        let Some(pair) = self.pair_mut(id).filter(|pair| pair.used != Use::Ending) else { return };
        if pair.used == Use::Created {
            // The peer is connected, or it could not have sent.
            pair.used = Use::Spare;
        }
        match imm.and_then(Message::decode) {
            Some(Message::Report { round, received }) => self.on_report(verbs, id, round, received),
            Some(Message::Moved { sent }) => self.on_moved(verbs, id, sent),
            Some(Message::GaveUp) if self.phase == Phase::Failed => self.end_pair(verbs, id),
            Some(Message::GaveUp) => {
                // This side need not tell the peer.
                self.end_pair(verbs, id);
                self.give_up(verbs, FallbackError::PeerGaveUp);
            }
            None => self.give_up(verbs, FallbackError::PeerViolation("an unknown message")),
        }
    }

    fn on_report(&mut self, verbs: &mut impl Verbs, id: PairId, round: Round, received: Count) {
        let Some(pair) = self.pair_mut(id) else { return };
        let spoke = pair.spoke;
        pair.report = Some((round, received));
        match self.phase {
            Phase::Reporting { to } if to == id => {
                if round.is_after(self.round) {
                    self.round = round;
                }
                self.finish_switch(verbs, id);
            }
            Phase::Reporting { to } if Self::precedes((self.round, to), (round, id)) => {
                self.begin_switch(verbs, to.nic);
            }
            Phase::Reporting { .. } | Phase::Draining => {}
            Phase::Failed => self.tell_peer(verbs),
            Phase::WaitSpare { .. } => self.choose_pair(verbs),
            Phase::Steady | Phase::WaitSignaled { .. } | Phase::WaitDrained { .. } | Phase::Moving { .. } => {
                // On a pair that this side uses already, there can be no second message to accept with. The peer took
                // this NIC because the other one failed it.
                let down = if spoke { id.nic.other() } else { self.tx.nic };
                if round.is_after(self.round) {
                    self.round = round;
                }
                self.counters.switches_by_peer += 1;
                self.begin_switch(verbs, down);
            }
        }
    }

    /// Both reports are there: leaves out what the peer has received, and sends the rest again.
    fn finish_switch(&mut self, verbs: &mut impl Verbs, id: PairId) {
        let Some((_, received)) = self.pair(id).and_then(|pair| pair.report) else { return };
        let Some(spared) = self.sends.complete_received(received, self.at_risk, &mut self.ready) else {
            let rule = "it has received more messages than were sent, or fewer than it has acknowledged";
            return self.give_up(verbs, FallbackError::PeerViolation(rule));
        };
        self.counters.spared += u64::from(spared);
        self.counters.repeated += self.sends.count_before(self.at_risk);
        (self.tx, self.at_risk) = (id, 0);
        self.phase = Phase::Steady;
        self.probe_due = self.now.after(self.hold.ns());
        self.note_success();
        self.pump(verbs);
    }

    /// A pair that has carried messages of both sides works, as far as a side without requests can tell. For a side with
    /// requests, only a completion counts: the NIC may lose longer packets.
    pub(super) fn note_success(&mut self) {
        let acknowledged = self.pair(self.tx).is_some_and(|pair| pair.acknowledged);
        if self.phase == Phase::Steady && acknowledged && self.sends.len() == 0 {
            self.attempts = 0;
        }
    }

    /// Ends everything that is outstanding, once the pairs in use are drained.
    pub(super) fn give_up(&mut self, verbs: &mut impl Verbs, error: FallbackError) {
        if self.failure.is_some() {
            return;
        }
        self.failure = Some(error);
        self.failed_with = match error {
            FallbackError::Application(status) => status,
            FallbackError::PairFailed => WcStatus::WrFlushError,
            FallbackError::UnknownLocalKey { .. } => WcStatus::LocalProtectionError,
            _ => WcStatus::RetryExceeded,
        };
        self.phase = Phase::Draining;
        self.end_used(verbs);
        self.pair_is_gone(verbs);
    }

    fn finish_failure(&mut self, verbs: &mut impl Verbs) {
        self.phase = Phase::Failed;
        self.sends.fail_all(self.failed_with, &mut self.ready);
        self.receives.fail_all(&mut self.ready);
        self.tell_peer(verbs);
    }

    /// Tells the peer of the failure on a prepared pair of each NIC.
    fn tell_peer(&mut self, verbs: &mut impl Verbs) {
        while let Some(pair) = self.pairs.iter().find(|pair| pair.used == Use::Spare && !pair.spoke) {
            let id = pair.id;
            self.speak(verbs, id, Message::GaveUp);
        }
    }

    /// Tells that time has passed. To be called at [`Machine::next_timeout`], and as often as the caller likes.
    pub fn on_time(&mut self, verbs: &mut impl Verbs, now: Time) {
        self.now = now;
        match self.phase {
            Phase::WaitSpare { until } if now >= until => {
                self.give_up(verbs, FallbackError::NoSpare { failed: self.down });
            }
            // To notice if the peer's process has died.
            Phase::Reporting { to } if now >= self.probe_due => self.probe(verbs, to),
            Phase::Steady | Phase::WaitSignaled { .. } if !self.sends.all_posted() => self.pump(verbs),
            Phase::Steady if now >= self.probe_due => self.probe_preferred(verbs),
            _ => {}
        }
    }

    /// When [`Machine::on_time`] has something to do.
    pub fn next_timeout(&self) -> Time {
        match self.phase {
            Phase::WaitSpare { until } => until,
            Phase::Reporting { .. } => self.probe_due,
            // Remote keys that are not known are asked for again.
            Phase::Steady | Phase::WaitSignaled { .. } if !self.sends.all_posted() => Time::ZERO,
            Phase::Steady if self.tx.nic != self.preferred => self.probe_due,
            _ => Time::NEVER,
        }
    }
}
