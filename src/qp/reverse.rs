//! Timing of the probes of a queue pair's reverse paths, which acknowledgements take (MRC paper, section 2.4;
//! decision 30).
//!
//! [`Paths`](crate::path::Paths) keeps the reverse EVs and chooses which to probe. This file decides when: while data
//! arrives and no SACK does, after much data, and when the peer retransmits packets that have arrived.

use crate::path::REVERSE_REFRESH_BYTES;
use crate::peer::{Purpose, Request};
use crate::responder::Trigger;
use crate::time::Time;
use crate::wire::{EndpointOp, Ev};

use super::{Cx, Qp, Wakes};

/// State of a queue pair's reverse paths.
#[derive(Debug)]
pub(super) struct ReverseWatch {
    /// Data has arrived since reverse paths were last checked.
    inbound: bool,
    check_at: Time,
    /// Bytes received at the last early refresh.
    refreshed_bytes: u64,
    /// The last retransmission of a packet that had arrived, until a working reverse path is found; and whether the
    /// cumulative acknowledgement covered it.
    unconfirmed: Option<(Trigger, bool)>,
}

impl Default for ReverseWatch {
    fn default() -> Self {
        Self { inbound: false, check_at: Time::NEVER, refreshed_bytes: 0, unconfirmed: None }
    }
}

impl ReverseWatch {
    /// When the reverse paths are to be checked.
    #[inline]
    pub(super) const fn check_at(&self) -> Time {
        self.check_at
    }

    /// Whether data has arrived since the last check.
    #[inline]
    pub(super) const fn is_inbound(&self) -> bool {
        self.inbound
    }
}

impl Qp {
    /// Data has begun to arrive: from now on the reverse paths are checked.
    #[cold]
    pub(super) fn expect_data(&mut self, now: Time) -> Wakes {
        self.reverse.inbound = true;
        let refresh_ns = self.requester.smoothed_rtt_ns().max(self.init.path.reverse_refresh_ns);
        self.reverse.check_at = now.after(refresh_ns);
        Wakes::ARM
    }

    /// Refreshes the reverse paths of a queue pair that only receives.
    pub(super) fn check_reverse_paths(&mut self, cx: &mut Cx, now: Time) {
        if now < self.reverse.check_at {
            return;
        }
        let rtt_ns = self.requester.smoothed_rtt_ns();
        let inbound = core::mem::take(&mut self.reverse.inbound);
        // The next received packet arms it again; an idle queue pair has no timer.
        self.reverse.check_at = Time::NEVER;
        if let Some(probe) = self.paths.poll_reverse_probe(now, rtt_ns, inbound) {
            self.queue_reverse_probe(cx, now, probe);
        }
    }

    /// Refreshes the reverse paths early if much data has arrived.
    #[inline]
    pub(super) fn refresh_reverse_paths_after_data(&mut self, cx: &mut Cx, now: Time) {
        if self.counters.rx_bytes.wrapping_sub(self.reverse.refreshed_bytes) >= REVERSE_REFRESH_BYTES {
            self.refresh_reverse_paths(cx, now);
        }
    }

    #[cold]
    fn refresh_reverse_paths(&mut self, cx: &mut Cx, now: Time) {
        self.reverse.refreshed_bytes = self.counters.rx_bytes;
        self.reverse.unconfirmed = None;
        self.paths.refresh_reverse(now);
        self.send_early_probes(cx, now);
    }

    /// The peer retransmits a packet that has arrived: its acknowledgement was probably lost on its path.
    #[cold]
    pub(super) fn suspect_reverse_paths(&mut self, cx: &mut Cx, now: Time, duplicate: (Trigger, bool)) {
        self.reverse.unconfirmed = Some(duplicate);
        self.paths.suspect_reverse(now);
        self.send_early_probes(cx, now);
    }

    fn send_early_probes(&mut self, cx: &mut Cx, now: Time) {
        let rtt_ns = self.requester.smoothed_rtt_ns();
        while let Some(probe) = self.paths.poll_early_probe(now, rtt_ns) {
            self.queue_reverse_probe(cx, now, probe);
        }
    }

    fn queue_reverse_probe(&mut self, cx: &mut Cx, now: Time, (ev, plane, ticket): (Ev, u8, u16)) {
        let Cx { cfg, peers, counters, .. } = cx;
        let id = peers.requests.next_id();
        let request = Request { plane, ev, op: EndpointOp::EvProbe, id };
        if peers.queue_request(now, self.peer, &request, (cfg, counters)) {
            peers.requests.register(now, plane, Purpose::ReverseProbe(self.qpn, ticket));
        }
    }

    /// A response to a reverse probe arrived. The last retransmission that seemed to be unacknowledged is acknowledged
    /// again, because the peer waits twice as long before the next one.
    pub(crate) fn on_reverse_probe_response(&mut self, ticket: u16, now: Time) -> Wakes {
        let found = self.paths.on_reverse_probe_answer(ticket, now);
        let receives = self.receives();
        let Some((duplicate, old)) = self.reverse.unconfirmed.take_if(|_| found && receives) else {
            return Wakes::NONE;
        };
        self.responder.ack_duplicate(duplicate, old);
        Wakes::CONTROL
    }
}
