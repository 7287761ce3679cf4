//! Waits for a peer that had no receive work request (RNR NACK: IBTA volume 1, section 9.7.5.2.8).
//!
//! The refused message, and all requests after it, wait for as long as the peer's NACK says. Its packets count as lost,
//! but neither a path nor congestion is the cause.

use crate::time::Time;

use super::{LossKind, Requester, RtxReason, SendContext};

/// The number of RNR retries that means no limit.
const NO_LIMIT: u8 = 7;

/// The oldest message that the peer was not ready for.
#[derive(Clone, Copy, Debug)]
pub(super) struct NotReady {
    /// Its first packet.
    first: u64,
    /// How often it was refused: at most once between two waits.
    refusals: u8,
    /// It was refused since the last wait ended.
    counted: bool,
    /// The current wait, or the last one, ends here.
    until: Time,
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
        Self { first: 0, refusals: 0, counted: false, until: Time::ZERO, waits: false }
    }
}

/// The peer was not ready after all retries. `first` is the first packet of the message.
pub(super) struct NeverReady {
    pub(super) first: u64,
}

impl Requester {
    /// Processes an RNR NACK for packet `seq`, which is for its last transmission.
    #[cold]
    pub(super) fn on_not_ready(
        &mut self,
        now: Time,
        (seq, wait_ns): (u64, u64),
        retries: u8,
        env: &mut SendContext<'_>,
    ) -> Result<(), NeverReady> {
        let sent_at = self.records.get(seq).sent_at;
        self.declare_lost(seq, LossKind::Nobody, RtxReason::Nack, now, env);
        let Some(first) = self.queue.find(seq).filter(|entry| entry.takes_receive()).map(|entry| entry.first)
        else {
            return Ok(());
        };
        env.counters.loss_not_ready += 1;
        let resolved = self.una > self.not_ready.first || self.sacked.test(self.not_ready.first);
        let state = &mut self.not_ready;
        // A copy that left before the wait ended says nothing new.
        if state.waits || sent_at >= state.until {
            if !state.waits {
                (state.until, state.waits, state.counted) = (now.after(wait_ns), true, false);
            }
            if state.refusals == 0 || resolved || first < state.first {
                (state.first, state.refusals, state.counted) = (first, 1, true);
            } else if first == state.first && !state.counted {
                (state.refusals, state.counted) = (state.refusals.saturating_add(1), true);
            }
            if retries < NO_LIMIT && state.refusals > retries {
                return Err(NeverReady { first: state.first });
            }
        }
        self.update_limits();
        // The peer works. Its patience is limited by the number of retries.
        self.progress(now);
        Ok(())
    }

    /// Whether packet `seq` waits until the peer may be ready.
    #[inline]
    pub(super) const fn waits_for_receive(&self, seq: u64) -> bool {
        self.not_ready.waits && seq >= self.not_ready.first
    }

    /// Whether nothing is to be sent, and nothing from the peer is overdue, until the wait ends.
    #[inline]
    pub(super) const fn is_paused(&self) -> bool {
        self.waits_for_receive(self.una)
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
