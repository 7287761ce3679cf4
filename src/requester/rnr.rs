//! Waits for a peer that had no receive work request (RNR NACK: IBTA volume 1, section 9.7.5.2.8).
//!
//! The refused message, and all requests after it, wait for as long as the peer's NACK says. Its packets count as lost,
//! but neither a path nor congestion is the cause.

use crate::time::Time;

use super::{LossKind, Record, Requester, RtxReason, SendContext};

/// The number of RNR retries that means no limit.
const NO_LIMIT: u8 = 7;

/// The most NACKs that the peer keeps until it can send them (decision 39).
const NACKS_KEPT: u64 = 256;

/// The oldest message that the peer was not ready for.
#[derive(Clone, Copy, Debug)]
pub(super) struct NotReady {
    /// Its first packet.
    first: u64,
    /// The first of its packets that was refused. When it has arrived, the message has its receive work request.
    refused: u64,
    /// How often it was refused: once for each time that it was sent.
    refusals: u8,
    /// The newest transmission when it was last counted. Copies of its packets up to here were sent together.
    counted_until: u64,
    /// The newest transmission when a NACK last came.
    known_at: u64,
    /// The current wait, or the last one, ends here.
    until: Time,
    /// It holds back the packets from this one on: the first packet of the oldest message that was refused since it
    /// began. That may be a later message than the one above, of which a copy may be lost.
    from: u64,
    /// That time has not come.
    waits: bool,
}

impl NotReady {
    /// Whether the queue pair waits for the peer.
    pub(super) const fn waits(&self) -> bool {
        self.waits
    }
}

impl Default for NotReady {
    fn default() -> Self {
        Self {
            first: 0,
            refused: 0,
            refusals: 0,
            counted_until: 0,
            known_at: 0,
            until: Time::ZERO,
            from: 0,
            waits: false,
        }
    }
}

/// The peer was not ready after all retries. `first` is the first packet of the message.
pub(super) struct NeverReady {
    pub(super) first: u64,
}

impl Requester {
    /// The first packet of the message of packet `seq`, if this packet takes a receive work request: any packet of a
    /// SEND, and the last one of a write with immediate.
    pub(super) fn taker(&self, seq: u64) -> Option<u64> {
        self.queue.packet(seq, self.setup.mtu).filter(|packet| packet.opcode().takes_receive())?;
        self.queue.find(seq).map(|entry| entry.first)
    }

    /// Processes an RNR NACK for packet `seq` of the message that starts with `first`. It is for the packet's last
    /// transmission.
    #[cold]
    pub(super) fn on_not_ready(
        &mut self,
        now: Time,
        (first, seq, wait_ns): (u64, u64, u64),
        retries: u8,
        env: &mut SendContext<'_>,
    ) -> Result<(), NeverReady> {
        let record = self.records.get(seq);
        let Record { sent_at, order, .. } = record;
        self.arrived_unready(seq, &record, now);
        self.declare_lost(seq, LossKind::NotReady, RtxReason::Nack, now, env);
        env.counters.loss_not_ready += 1;
        let resolved = self.una > self.not_ready.refused || self.sacked.test(self.not_ready.refused);
        let state = &mut self.not_ready;
        state.known_at = self.orders;
        // The message of a copy that left before the last wait ended has waited.
        if !state.waits && sent_at >= state.until {
            (state.until, state.from, state.waits) = (now.after(wait_ns), first, true);
        } else if state.waits && first < state.from {
            // Its copy may have left during the wait.
            (state.until, state.from) = (state.until.max(now.after(wait_ns)), first);
        }
        if state.refusals == 0 || resolved || first < state.first {
            (state.first, state.refused, state.refusals) = (first, seq, 1);
            state.counted_until = self.orders;
        } else if first == state.first && order > state.counted_until {
            (state.refused, state.refusals) = (seq, state.refusals.saturating_add(1));
            state.counted_until = self.orders;
        } else if first == state.first {
            state.refused = state.refused.min(seq);
        }
        if retries < NO_LIMIT && state.refusals > retries {
            return Err(NeverReady { first: state.first });
        }
        self.update_limits();
        // The peer works. Its patience is limited by the number of retries.
        self.progress(now);
        Ok(())
    }

    /// A copy of packet `seq` has arrived, although it was refused. What was sent before it and is not acknowledged is
    /// judged by it (RFC 8985, section 6.2): refusals restart the timers, so nothing else would find a loss.
    fn arrived_unready(&mut self, seq: u64, record: &Record, now: Time) {
        self.overtakes(record, now);
        self.overtaken = self.overtaken.max(seq);
        self.loss_check_at = self.loss_check_at.min(now);
        self.bound_rtt(now);
    }

    /// Whether packet `seq` waits until the peer may be ready.
    #[inline]
    pub(super) const fn waits_for_receive(&self, seq: u64) -> bool {
        self.not_ready.waits && seq >= self.not_ready.from
    }

    /// Whether the peer may have refused the last transmission of packet `seq` and not said so, since it keeps a limited
    /// number of NACKs: it has had more packets to refuse than that. The packet takes a receive work request, is not
    /// before the message that was refused, and left before the peer was known to have none.
    #[cold]
    pub(super) fn may_be_refused(&self, seq: u64) -> bool {
        let state = &self.not_ready;
        seq >= state.refused
            && self.next - state.refused > NACKS_KEPT
            && self.records.get(seq).order <= state.known_at
            && self.taker(seq).is_some()
    }

    /// Whether nothing is to be sent, and nothing from the peer is overdue, until the wait ends.
    #[inline]
    pub(super) const fn is_paused(&self) -> bool {
        self.waits_for_receive(self.una)
    }

    /// Whether [`next_send`](Self::next_send) selects neither a lost packet nor a TLP before the wait ends.
    pub(super) fn retransmissions_wait(&self) -> bool {
        let all_wait = self.lost_count > 0 && self.next_lost().is_none();
        all_wait && (self.is_paused() || !self.probe_pending)
    }

    /// When the wait ends.
    #[inline]
    pub(super) const fn ready_at(&self) -> Time {
        if self.not_ready.waits { self.not_ready.until } else { Time::NEVER }
    }

    /// Ends the wait if its time has come.
    #[inline]
    pub(super) fn end_wait(&mut self, now: Time) {
        if self.not_ready.waits && now >= self.not_ready.until {
            self.not_ready.waits = false;
            self.update_limits();
            self.start_over(now);
        }
    }
}
