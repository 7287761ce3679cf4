//! ACK generation: which SACKs, NACKs and transport ACKs a responder sends, and when.
//!
//! A SACK is due when enough bytes have arrived, when a packet asks for it, carries a congestion
//! mark or is a retransmission, and when a reliability probe asks (MRC 1.0 section 7.5). Answers
//! are kept as flags and a few pending triggers, and are built when they are sent, so that a burst
//! of packets costs one answer and the answer is as fresh as possible.

use std::collections::VecDeque;

use crate::ring::BitRing;
use crate::wire::{Ev, Psn};

use super::{Culprit, Responder};

/// The packet that makes the responder speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trigger {
    pub(crate) psn: Psn,
    /// Its entropy value, to be reflected.
    pub(crate) ev: Ev,
    /// Its timestamp, to be reflected.
    pub(crate) timestamp: u16,
    /// It carried a congestion-experienced mark.
    pub(crate) marked: bool,
    /// It repeats something the peer believes missing: answer with the oldest gap first.
    pub(crate) repeated: bool,
    /// It is a reliability probe with this id.
    pub(crate) probe_id: Option<u16>,
}

impl Trigger {
    /// Whether the trigger says something of its own path that no later one replaces.
    const fn is_special(&self) -> bool {
        self.marked || self.repeated || self.probe_id.is_some()
    }
}

/// The fields of a SACK that the responder decides.
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

/// A NACK that is owed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NackOut {
    pub(crate) reason: u8,
    pub(crate) psn: Psn,
    pub(crate) ev: Ev,
    pub(crate) timestamp: u16,
}

/// What the responder counts between two SACKs, so that the path of a packet need not touch the endpoint's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AnswerCounts {
    /// Special triggers that found no room.
    pub(crate) triggers_dropped: u64,
    /// Packets that arrived beyond the next one expected.
    pub(crate) out_of_order: u64,
}

/// Everything owed.
#[derive(Debug, Default)]
pub(crate) struct AckState {
    triggers: VecDeque<Trigger>,
    nacks: VecDeque<NackOut>,
    /// Packets above the cumulative acknowledgement that no SACK has listed yet.
    pub(super) unreported: BitRing,
    pub(super) counts: AnswerCounts,
    pub(super) sack_bytes: u32,
    rcvd_bytes: u64,
    /// As the last SACK told it.
    told_bytes: u32,
    /// Triggers that are repeats.
    repeats: u16,
    /// Some of them waited when the last SACK was built.
    repeats_wait: bool,
    ack_pending: bool,
    nak_pending: bool,
    /// Messages completed, and as of the last transport ACK.
    pub(super) completed: u32,
    acknowledged: u32,
}

impl AckState {
    /// Triggers there is room for from the start; the queue grows when more wait.
    const SPARE_TRIGGERS: usize = 8;
    /// Most triggers kept: those of the largest burst that a lane receives in one pass. Beyond it, what a trigger
    /// says of its own path is lost and counted; what has arrived is in the SACKs that are sent all the same.
    pub(super) const MAX_TRIGGERS: usize = 256;
    /// Most NACKs kept; the peer's timers cover what is dropped.
    const MAX_NACKS: usize = 256;
    /// A transport ACK is sent after this many completed messages even if none asked.
    const ACK_EVERY_MESSAGES: u32 = 64;

    /// Makes room for every trigger that may be kept, before packets move.
    pub(crate) fn make_room(&mut self) {
        self.triggers.reserve(Self::SPARE_TRIGGERS);
    }

    /// Gives up memory that an idle queue pair has no use of. Every packet that arrived is below the next one expected.
    pub(super) fn reclaim(&mut self) {
        self.unreported = BitRing::default();
        self.triggers.shrink_to(Self::SPARE_TRIGGERS);
        self.nacks.shrink_to(0);
    }

    /// Triggers and NACKs that there is room for.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.triggers.capacity() + self.nacks.capacity()
    }

    /// Forgets the SACKs that are owed, but not what they have to list.
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

    /// Owes a SACK for this trigger. A plain trigger gives way to the next one: its SACK would list no more than
    /// the next. Only when both are copies of one packet are both told, because the requester learns from it
    /// that the first copy arrived. A special trigger never gives way, and when there is no room is counted.
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
    /// Smallest size a packet counts with towards the SACK threshold, bytes (UET 1.0,
    /// `Min_Pkt_Add`).
    const MIN_PACKET_ADD: u32 = 1024;

    /// A packet of `payload` bytes (`nominal` for congestion control) has arrived for the first
    /// time. Whether a SACK is due for it: it `demands` one, as one does whose trigger is special, or enough bytes
    /// have arrived.
    #[inline]
    #[must_use]
    pub(crate) fn count_bytes(&mut self, payload: u32, nominal: u32, demands: bool) -> bool {
        let answers = &mut self.answers;
        answers.rcvd_bytes += u64::from(nominal);
        answers.sack_bytes = answers.sack_bytes.saturating_add(payload.max(Self::MIN_PACKET_ADD));
        demands || answers.sack_bytes >= self.setup.sack_threshold
    }

    /// Owes the SACK that is due.
    pub(crate) fn queue_sack(&mut self, trigger: Trigger) {
        self.answers.sack_bytes = 0;
        self.answers.push(trigger);
    }

    /// A packet seen before, or a probe: always answered with a SACK. `old` packets, which the
    /// cumulative acknowledgement covers, get a transport ACK as well.
    pub(crate) fn ack_duplicate(&mut self, trigger: Trigger, old: bool) {
        self.answers.push(trigger);
        self.answers.ack_pending |= old;
    }

    /// Owes a NACK; `false` when too many are owed already.
    pub(crate) fn queue_nack(&mut self, nack: NackOut) -> bool {
        let fits = self.answers.nacks.len() < AckState::MAX_NACKS;
        if fits {
            self.answers.nacks.push_back(nack);
        }
        fits
    }

    /// The queue pair fails by the peer's fault: say what was completed before, then the NAK.
    pub(crate) fn queue_final_ack_and_nak(&mut self) {
        self.answers.ack_pending = true;
        self.answers.nak_pending = self.culprit.is_some();
        self.answers.triggers.clear();
        self.answers.repeats = 0;
        self.answers.nacks.clear();
    }

    /// The queue pair has failed by the peer's fault and the peer sent more: repeat the NAK.
    pub(crate) fn queue_nak(&mut self) {
        self.answers.nak_pending = self.culprit.is_some();
    }

    /// What was counted since the last call.
    pub(crate) fn take_counts(&mut self) -> AnswerCounts {
        core::mem::take(&mut self.answers.counts)
    }

    /// Whether any answer is owed.
    #[inline]
    pub(crate) fn has_pending_acks(&self) -> bool {
        let a = &self.answers;
        a.ack_pending || a.nak_pending || !a.triggers.is_empty() || !a.nacks.is_empty()
    }

    /// Whether one of them is a transport ACK.
    #[inline]
    pub(crate) fn ack_pending(&self) -> bool {
        self.answers.ack_pending
    }

    /// The NAK owed, with the count of messages completed before it.
    pub(crate) fn take_nak(&mut self) -> Option<(Culprit, u32)> {
        let owed = core::mem::take(&mut self.answers.nak_pending);
        self.culprit().filter(|_| owed).map(|culprit| (culprit, self.answers.completed & 0x00ff_ffff))
    }

    /// The transport ACK owed: PSN up to which all is complete, and the count of messages.
    pub(crate) fn take_ack(&mut self) -> Option<(Psn, u32)> {
        if !core::mem::take(&mut self.answers.ack_pending) {
            return None;
        }
        self.answers.acknowledged = self.answers.completed;
        Some((self.cack(), self.answers.completed & 0x00ff_ffff))
    }

    /// The next NACK owed.
    pub(crate) fn take_nack(&mut self) -> Option<NackOut> {
        self.answers.nacks.pop_front()
    }

    /// The next SACK owed. Its bitmap starts at the oldest gap when the peer repeats itself, else
    /// at the first packet that no SACK has listed, else as high as it can. While packets remain
    /// unlisted the trigger stays, so that every arrival is reported at least once.
    ///
    /// To the requester, a packet that was listed before its repeat was answered had arrived before the repeat. So where the answer to a
    /// repeat waits for room, no more bytes are told of until it has left: the SACKs before it may list what that repeat brought.
    pub(crate) fn take_sack(&mut self) -> Option<SackOut> {
        let trigger = self.answers.triggers.pop_front()?;
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
