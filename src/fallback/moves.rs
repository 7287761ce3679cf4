//! The move to another pair without a failure: the return to the default NIC (SHIFT paper, section 4.3.3), or the way an
//! operator wants it (section 4.4). Each direction moves by itself.
//!
//! A signalled request is the fence. Later requests are withheld until it has completed, and with it all before it. A
//! message on the new pair then says how many messages there were before. Once it has completed, the withheld requests
//! follow on that pair. The receiver takes its unused receives over to the new pair when it has received as many
//! messages. A message that comes before that finds no receive, and is repeated (RNR).

use crate::work::SendOp;

use super::config::FallbackError;
use super::machine::{Machine, Pair, Phase, Use, own};
use super::message::{Count, Message};
use super::queue::control;
use super::verbs::{Cause, Nic, PairId, Verbs};

impl Machine {
    /// Moves sends to this NIC, without an error and in order, as soon as a probe of it succeeds, and returns to it
    /// after failures.
    pub fn prefer(&mut self, nic: Nic) {
        if self.preferred != nic {
            self.preferred = nic;
            self.hold.reset();
            self.probe_due = self.now;
        }
    }

    /// A NIC of this side has links again. If it is the preferred one, it is probed when they have lasted for the hold time.
    pub fn on_link_up(&mut self, nic: Nic) {
        if nic == self.preferred && self.tx.nic != nic {
            self.probe_due = self.now.after(self.hold.ns());
        }
    }

    /// A pair on the preferred NIC that this side may move to: one that the peer uses already, or a prepared one.
    fn pair_to_move_to(&self) -> Option<PairId> {
        let fit = |used| {
            let fits = move |pair: &&Pair| {
                pair.used == used && pair.id.nic == self.preferred && !pair.spoke && pair.report.is_none()
            };
            self.pairs.iter().find(fits).map(|pair| pair.id)
        };
        fit(Use::Used).or_else(|| fit(Use::Spare))
    }

    pub(super) fn probe_preferred(&mut self, verbs: &mut impl Verbs) {
        if self.tx.nic != self.preferred
            && let Some(id) = self.pair_to_move_to()
        {
            self.probe(verbs, id);
        }
    }

    /// Sends a write without bytes, unless one is outstanding, and the next one after the time between two probes.
    pub(super) fn probe(&mut self, verbs: &mut impl Verbs, id: PairId) {
        self.probe_due = self.now.after(self.config.probe_ns);
        self.send_probe(verbs, id);
    }

    pub(super) fn send_probe(&mut self, verbs: &mut impl Verbs, id: PairId) {
        let Some(pair) = self.pair_mut(id).filter(|pair| !pair.probing) else { return };
        pair.probing = true;
        if verbs.post_send(id, control(own::PROBE, SendOp::Write)).is_err() {
            self.pair_failed(verbs, id, Cause::Network);
        }
    }

    pub(super) fn on_probe_acked(&mut self, verbs: &mut impl Verbs, id: PairId) {
        let Some(pair) = self.pair_mut(id) else { return };
        pair.probing = false;
        if self.phase == Phase::Steady && self.tx.nic != self.preferred && self.pair_to_move_to() == Some(id)
        {
            self.phase = Phase::WaitSignaled { to: id };
            self.find_fence(verbs, id);
        }
    }

    /// If the last request that was posted is signalled, it is the fence.
    pub(super) fn find_fence(&mut self, verbs: &mut impl Verbs, to: PairId) {
        match self.sends.last_posted_is_signaled() {
            None => self.announce_move(verbs, to),
            Some(true) => self.phase = Phase::WaitDrained { to, fence: self.sends.posted_end() },
            Some(false) => {}
        }
    }

    /// A request has completed while others are withheld.
    pub(super) fn on_drained_to(&mut self, verbs: &mut impl Verbs, to: PairId, fence: u64) {
        if self.sends.first() >= fence {
            self.announce_move(verbs, to);
        }
    }

    /// Nothing is outstanding on the old pair.
    fn announce_move(&mut self, verbs: &mut impl Verbs, to: PairId) {
        self.phase = Phase::Moving { to };
        if let Some(pair) = self.pair_mut(to) {
            pair.used = Use::Used;
        }
        let sent = self.sends.completed();
        self.speak(verbs, to, Message::Moved { sent });
    }

    /// The peer's NIC has this side's message on a pair.
    pub(super) fn on_message_sent(&mut self, verbs: &mut impl Verbs, id: PairId) {
        if let Some(pair) = self.pair_mut(id) {
            pair.acknowledged = true;
        }
        match self.phase {
            Phase::Moving { to } if to == id => {
                self.tx = id;
                self.phase = Phase::Steady;
                self.counters.moves += 1;
                self.hold.returned(self.now);
                self.retire(verbs);
                self.pump(verbs);
            }
            Phase::Failed => self.end_pair(verbs, id),
            _ => {}
        }
        self.note_success();
    }

    /// The pair that requests were to move to does not work.
    pub(super) fn cancel_move(&mut self, verbs: &mut impl Verbs, id: PairId) {
        if let Phase::WaitSignaled { to } | Phase::WaitDrained { to, .. } = self.phase
            && to == id
        {
            self.phase = Phase::Steady;
            self.pump(verbs);
        }
    }

    /// The peer sends on this pair from now on.
    pub(super) fn on_moved(&mut self, verbs: &mut impl Verbs, id: PairId, sent: Count) {
        let Some(pair) = self.pair_mut(id) else { return };
        pair.used = Use::Used;
        if id.nic == self.preferred && self.tx.nic != id.nic {
            // The peer has found that it works.
            self.probe_due = self.now;
        }
        match self.phase {
            Phase::Steady | Phase::WaitSignaled { .. } | Phase::WaitDrained { .. } | Phase::Moving { .. } => {
                self.moved_in = Some((id, sent));
                self.move_receives(verbs);
            }
            // The receives are there, and the peer finds this side's report there. It reports on another pair, which
            // this side then accepts.
            Phase::Reporting { to } if to == id => {}
            // The peer finds this side's report on another pair.
            Phase::Reporting { .. } | Phase::Draining | Phase::WaitSpare { .. } | Phase::Failed => {
                self.end_pair(verbs, id);
            }
        }
    }

    /// Takes the receives over, if all messages before have arrived.
    pub(super) fn move_receives(&mut self, verbs: &mut impl Verbs) {
        let Some((id, sent)) = self.moved_in else { return };
        match sent.ahead_of(self.receives.completed()) {
            0 => {
                self.moved_in = None;
                self.rx = id;
                self.receives.rewind();
                self.pump_receives(verbs);
                self.retire(verbs);
            }
            // More than may be outstanding.
            ahead if ahead > self.receives.capacity() => {
                let rule = "it has sent fewer messages than have arrived, or more than there are receives";
                self.give_up(verbs, FallbackError::PeerViolation(rule));
            }
            _ => {}
        }
    }

    /// Ends pairs that neither direction uses any more.
    fn retire(&mut self, verbs: &mut impl Verbs) {
        let to = match self.phase {
            Phase::WaitSignaled { to } | Phase::WaitDrained { to, .. } | Phase::Moving { to } => Some(to),
            _ => None,
        };
        let coming = self.moved_in.map(|(id, _)| id);
        let idle = |id: PairId| id != self.tx && id != self.rx && Some(id) != to && Some(id) != coming;
        let idle = self.pairs.iter().find(|pair| pair.used == Use::Used && idle(pair.id)).map(|pair| pair.id);
        if let Some(id) = idle {
            self.end_pair(verbs, id);
        }
    }
}
