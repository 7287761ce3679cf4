//! ACK generation: which SACKs, NACKs and transport ACKs a responder sends, and when.
//!
//! A SACK is due when enough bytes have arrived. It is also due for a packet that requests one, carries a congestion
//! mark or is a retransmission, and for a reliability probe (MRC 1.0 section 7.5).
//!
//! Pending acknowledgements are kept as flags and a few triggers, and are built when they are sent. A burst of
//! packets then costs one acknowledgement, and its content is up to date.

use std::collections::VecDeque;

use crate::ring::BitRing;
use crate::wire::{Ev, NackReason, Psn};

use super::{Culprit, Responder};

/// The packet that triggers a SACK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trigger {
    pub(crate) psn: Psn,
    /// Its entropy value, to be reflected.
    pub(crate) ev: Ev,
    /// Its timestamp, to be reflected.
    pub(crate) timestamp: u16,
    /// Whether it carried a congestion-experienced mark.
    pub(crate) marked: bool,
    /// Whether it is a retransmission. The SACK then starts at the oldest gap.
    pub(crate) repeated: bool,
    /// The id of the reliability probe, if it is one.
    pub(crate) probe_id: Option<u16>,
}

impl Trigger {
    /// Whether the trigger has information about its own path that no later trigger replaces.
    const fn is_special(&self) -> bool {
        self.marked || self.repeated || self.probe_id.is_some()
    }
}

/// The fields of a SACK that the responder determines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SackOut {
    pub(crate) trigger: Trigger,
    pub(crate) cack: Psn,
    pub(crate) sack_offset: i16,
    pub(crate) bitmap: u64,
    pub(crate) out_of_order: u16,
    /// Units of 256 bytes, rounded up, 24 bits.
    pub(crate) rcvd_bytes: u32,
}

/// A pending NACK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NackOut {
    pub(crate) reason: u8,
    /// The vendor byte: the RNR timer, in an RNR NACK.
    pub(crate) info: u8,
    pub(crate) psn: Psn,
    pub(crate) ev: Ev,
    pub(crate) timestamp: u16,
}

/// Counts that are kept here between two SACKs, so that processing a packet does not touch the endpoint's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AnswerCounts {
    /// Special triggers dropped for lack of room.
    pub(crate) triggers_dropped: u64,
    /// Packets that arrived beyond the next one expected.
    pub(crate) out_of_order: u64,
}

/// All pending acknowledgements.
#[derive(Debug, Default)]
pub(crate) struct AckState {
    triggers: VecDeque<Trigger>,
    nacks: VecDeque<NackOut>,
    /// Packets above the cumulative acknowledgement that no SACK has listed yet.
    pub(super) unreported: BitRing,
    pub(super) counts: AnswerCounts,
    pub(super) sack_bytes: u32,
    /// The first packet that was refused for lack of a receive work request, until it arrives again.
    refused: Option<u64>,
    rcvd_bytes: u64,
    /// `rcvd_bytes` of the last SACK.
    told_bytes: u32,
    /// Number of pending triggers that are retransmissions.
    repeats: u16,
    /// Whether any of them were pending when the last SACK was built.
    repeats_wait: bool,
    ack_pending: bool,
    nak_pending: bool,
    /// Number of messages completed, now and as of the last transport ACK.
    pub(super) completed: u32,
    acknowledged: u32,
}

impl AckState {
    /// Initial room for triggers. The queue grows when more are pending.
    const SPARE_TRIGGERS: usize = 8;
    /// Most triggers kept: those of the largest burst that a lane receives in one poll. Beyond it, a trigger's
    /// information about its own path is lost and counted. The packets that arrived are still listed in the SACKs
    /// that are sent.
    pub(super) const MAX_TRIGGERS: usize = 256;
    /// Most NACKs kept (decision 39). The peer's timers recover packets whose NACK is dropped.
    const MAX_NACKS: usize = 256;
    /// A transport ACK is sent after this many completed messages even if none requested it.
    const ACK_EVERY_MESSAGES: u32 = 64;

    /// Reserves the initial room for triggers, before packets arrive.
    pub(crate) fn make_room(&mut self) {
        self.triggers.reserve(Self::SPARE_TRIGGERS);
    }

    /// Releases memory that an idle queue pair does not need. Every packet that arrived is below the next one
    /// expected.
    pub(super) fn reclaim(&mut self) {
        self.unreported = BitRing::default();
        self.triggers.shrink_to(Self::SPARE_TRIGGERS);
        self.nacks.shrink_to(0);
    }

    /// The room for triggers and NACKs.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.triggers.capacity() + self.nacks.capacity()
    }

    /// Drops the pending SACKs, but not the packets that they have to list.
    #[cfg(test)]
    pub(super) fn take_triggers(&mut self) {
        self.triggers.clear();
        self.repeats = 0;
    }

    pub(super) fn fit(&mut self, low: u64, high: u64, most: u64) {
        self.unreported.fit(low, high, most);
    }

    pub(crate) fn unreported(&mut self, expected: u64, seq: u64) {
        self.unreported.insert(expected, seq);
    }

    pub(crate) fn forget(&mut self, seq: u64) {
        self.unreported.clear(seq);
    }

    #[inline]
    pub(crate) fn message_complete(&mut self, asked: bool) {
        self.completed = self.completed.wrapping_add(1);
        if asked || self.completed.wrapping_sub(self.acknowledged) >= Self::ACK_EVERY_MESSAGES {
            self.ack_pending = true;
        }
    }

    /// Queues a SACK for this trigger.
    ///
    /// A later trigger replaces a plain one, because its SACK lists at least as much. If both are copies of one
    /// packet, both are kept: the SACK for the first proves to the requester that the first copy arrived. A special
    /// trigger is never replaced. If there is no room for it, it is counted.
    fn push(&mut self, trigger: Trigger) {
        let full = self.triggers.len() >= Self::MAX_TRIGGERS;
        match self.triggers.back_mut() {
            Some(last) if !last.is_special() && (!trigger.is_special() || last.psn != trigger.psn) => {
                *last = trigger;
            }
            Some(_) if full => {
                self.counts.triggers_dropped += u64::from(trigger.is_special());
                return;
            }
            _ => self.triggers.push_back(trigger),
        }
        self.repeats += u16::from(trigger.repeated);
    }
}

impl Responder {
    /// Least size that a packet counts with towards the SACK threshold, bytes (UET 1.0, `Min_Pkt_Add`).
    const MIN_PACKET_ADD: u32 = 1024;

    /// Counts a packet of `payload` bytes (`nominal` for congestion control) that has arrived for the first time.
    /// Returns whether a SACK is due: the packet `demands` one, as all with a special trigger do, or enough bytes
    /// have arrived.
    #[inline]
    #[must_use]
    pub(crate) fn count_bytes(&mut self, payload: u32, nominal: u32, demands: bool) -> bool {
        let answers = &mut self.answers;
        answers.rcvd_bytes += u64::from(nominal);
        answers.sack_bytes = answers.sack_bytes.saturating_add(payload.max(Self::MIN_PACKET_ADD));
        demands || answers.sack_bytes >= self.setup.sack_threshold
    }

    /// Queues the SACK that is due. The next packet causes another one if a message is refused.
    pub(crate) fn queue_sack(&mut self, trigger: Trigger) {
        self.answers.sack_bytes = if self.answers.refused.is_some() { u32::MAX } else { 0 };
        self.answers.push(trigger);
    }

    /// Acknowledges a duplicate packet or a reliability probe: each gets a SACK. `old` packets, which the cumulative
    /// acknowledgement covers, get a transport ACK as well.
    pub(crate) fn ack_duplicate(&mut self, trigger: Trigger, old: bool) {
        self.answers.push(trigger);
        self.answers.ack_pending |= old;
    }

    /// Queues a NACK. Returns `false` if too many are pending.
    pub(crate) fn queue_nack(&mut self, nack: NackOut) -> bool {
        let fits = self.answers.nacks.len() < AckState::MAX_NACKS;
        if fits {
            self.answers.nacks.push_back(nack);
        }
        fits
    }

    /// A message found no receive work request, and its packet `seq` is a retransmission or not. Acknowledges the messages
    /// that are complete, unless the peer surely knows: it sends nothing else until this message is accepted, so
    /// nothing else would make it ask again for an ACK that was lost.
    ///
    /// The NACK also makes the peer judge the other packets that it has sent, so those that arrive are reported at once.
    pub(crate) fn ack_before_refusal(&mut self, seq: u64, repeated: bool) {
        let answers = &mut self.answers;
        answers.refused = Some(answers.refused.map_or(seq, |first| first.min(seq)));
        answers.sack_bytes = u32::MAX;
        let AckState { completed, acknowledged, .. } = self.answers;
        self.answers.ack_pending |= completed != acknowledged || (repeated && completed > 0);
    }

    /// Whether the transport ACK must precede the next NACK. The NACK of a message without a receive work request may
    /// end the peer's queue pair, and the messages before it are complete.
    pub(crate) fn ack_precedes_nack(&self) -> bool {
        let is_refusal = |nack: &NackOut| nack.reason == NackReason::NoResource.into();
        self.answers.ack_pending && self.answers.nacks.front().is_some_and(is_refusal)
    }

    /// The queue pair fails because of the peer: acknowledges what was completed before, then queues the NAK.
    pub(crate) fn queue_final_ack_and_nak(&mut self) {
        self.answers.ack_pending = true;
        self.answers.nak_pending = self.culprit.is_some();
        self.answers.triggers.clear();
        self.answers.repeats = 0;
        self.answers.nacks.clear();
    }

    /// The peer sent more after the queue pair failed because of it: queues the NAK again.
    pub(crate) fn queue_nak(&mut self) {
        self.answers.nak_pending = self.culprit.is_some();
    }

    /// Takes the counts since the last call.
    pub(crate) fn take_counts(&mut self) -> AnswerCounts {
        core::mem::take(&mut self.answers.counts)
    }

    /// Whether any acknowledgement is pending.
    #[inline]
    pub(crate) fn has_pending_acks(&self) -> bool {
        let a = &self.answers;
        a.ack_pending || a.nak_pending || !a.triggers.is_empty() || !a.nacks.is_empty()
    }

    /// Whether a transport ACK is pending.
    #[inline]
    pub(crate) fn ack_pending(&self) -> bool {
        self.answers.ack_pending
    }

    /// Takes the pending NAK, with the number of messages completed before it.
    pub(crate) fn take_nak(&mut self) -> Option<(Culprit, u32)> {
        let owed = core::mem::take(&mut self.answers.nak_pending);
        self.culprit().filter(|_| owed).map(|culprit| (culprit, culprit.before & 0x00ff_ffff))
    }

    /// Takes the pending transport ACK: the PSN up to which everything is complete, and the number of completed
    /// messages. A request that is refused in its turn is not complete, nor is anything after it.
    pub(crate) fn take_ack(&mut self) -> Option<(Psn, u32)> {
        if !core::mem::take(&mut self.answers.ack_pending) {
            return None;
        }
        self.answers.acknowledged = self.answers.completed;
        let all = (self.cack(), self.answers.completed);
        let (psn, completed) =
            self.culprit.as_deref().map_or(all, |culprit| (culprit.psn.sub(1), culprit.before));
        Some((psn, completed & 0x00ff_ffff))
    }

    /// Takes the next pending NACK.
    pub(crate) fn take_nack(&mut self) -> Option<NackOut> {
        self.answers.nacks.pop_front()
    }

    /// Takes the next pending SACK.
    ///
    /// For a retransmission, its bitmap starts at the oldest gap. Otherwise it starts at the first packet that no
    /// SACK has listed, or else as high as possible. While packets remain unlisted the trigger stays, so every
    /// arrival is reported at least once.
    ///
    /// If a SACK lists a packet with fewer `rcvd_bytes` than the SACK for its retransmission, the requester concludes
    /// that an earlier copy had arrived. So `rcvd_bytes` does not grow while the SACK for a retransmission is
    /// pending: the SACKs before it may list the packet that this retransmission carried.
    pub(crate) fn take_sack(&mut self) -> Option<SackOut> {
        let trigger = self.answers.triggers.pop_front()?;
        if self.answers.refused.is_some_and(|first| first < self.expected) {
            (self.answers.refused, self.answers.sack_bytes) = (None, 0);
        }
        let (base, bitmap) = self.bitmap(trigger.repeated);
        let answers = &mut self.answers;
        answers.repeats -= u16::from(trigger.repeated);
        if !core::mem::replace(&mut answers.repeats_wait, answers.repeats > 0) {
            answers.told_bytes = (answers.rcvd_bytes.div_ceil(256) & 0x00ff_ffff) as u32;
        }
        let rcvd_bytes = answers.told_bytes;
        let sack = SackOut {
            trigger,
            cack: self.cack(),
            sack_offset: (base + 1 - self.expected) as i16,
            bitmap,
            out_of_order: self.out_of_order.min(0x7fff) as u16,
            rcvd_bytes,
        };
        if self.out_of_order > 0 {
            self.answers.unreported.clear_range(base, base + 64);
            if self.answers.triggers.is_empty()
                && self.answers.unreported.next_set(self.expected, self.highest).is_some()
            {
                let again = Trigger { marked: false, repeated: false, probe_id: None, ..trigger };
                self.answers.triggers.push_back(again);
            }
        }
        Some(sack)
    }

    fn bitmap(&self, oldest_gap: bool) -> (u64, u64) {
        if self.out_of_order == 0 {
            return (self.expected, 0);
        }
        let base = if oldest_gap || self.highest - self.expected <= 64 {
            self.expected
        } else {
            let newest = self.highest - 64;
            let unlisted = self.answers.unreported.next_set(self.expected, self.highest);
            unlisted.map_or(newest, |seq| seq.min(newest))
        };
        (base, self.received.get64(base))
    }
}
