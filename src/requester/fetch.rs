//! Reads and atomic operations: requests to which the peer responds with bytes (IBTA volume 1, sections 9.7.5.2.4 and
//! 9.7.5.2.6).
//!
//! The request is a message of this side. The response is a message of the peer's sending half, with recovery, paths and
//! congestion control of its own. It names the request by number. The request is complete when the response is.

use std::collections::VecDeque;

use crate::memory::PayloadRef;
use crate::time::Time;
use crate::wire::Msn;

use super::packet::{PacketSpec, Source};
use super::{Requester, RequesterSetup, SendContext, SendQueue};

/// A request that was sent and has no complete response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenFetch {
    /// Its packet.
    pub(super) seq: u64,
    /// Bytes that the peer responds with.
    pub(crate) len: u32,
    /// An atomic operation.
    pub(crate) is_atomic: bool,
    /// Where they go, if that is one range.
    pub(crate) place: Option<PayloadRef>,
}

/// The requests that have no complete response.
#[derive(Debug)]
pub(super) struct Fetches {
    open: VecDeque<OpenFetch>,
    /// The number of the oldest one.
    first: Msn,
}

impl Fetches {
    pub(super) const fn new(first: Msn) -> Self {
        Self { open: VecDeque::new(), first }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    /// Records the request of this packet, which is sent for the first time.
    #[cold]
    pub(super) fn note(&mut self, seq: u64, spec: &PacketSpec<'_>) {
        self.open.push_back(OpenFetch {
            seq,
            len: spec.reth().dma_len,
            is_atomic: spec.operands().is_some(),
            place: spec.place(),
        });
    }

    /// The packet up to which requests are complete if the peer acknowledges all before `acked`: a request is complete
    /// with its response.
    #[inline]
    pub(super) fn complete_until(&self, acked: u64) -> u64 {
        self.open.front().map_or(acked, |fetch| acked.min(fetch.seq))
    }

    pub(super) fn reclaim(&mut self) {
        self.open.shrink_to_fit();
    }
}

/// Whether a limit may hold the next message back.
pub(super) fn any_limit(setup: &RequesterSetup, takers: u32, waits: bool, fetches: &Fetches) -> bool {
    takers >= setup.max_wimm || waits || !fetches.is_empty()
}

impl Requester {
    /// Sets whether a limit may hold the next message back, after a change of what that depends on.
    #[inline]
    pub(super) fn update_limits(&mut self) {
        let waits = self.not_ready.waits();
        self.limited = any_limit(&self.setup, self.wimm_in_flight, waits, &self.fetches);
    }

    /// Whether the next message may begin although a limit may be reached, or may continue.
    #[cold]
    pub(super) fn passes_the_limits(&self) -> bool {
        let Some(entry) = self.queue.sending() else { return false };
        if entry.is_response() {
            return true;
        }
        if self.not_ready.waits() {
            return false;
        }
        if self.next != entry.first {
            return true;
        }
        let open = self.fetches.len();
        (!entry.takes_receive() || self.wimm_in_flight < self.setup.max_wimm)
            && (!entry.fence || open == 0)
            && (!entry.is_fetch() || open < usize::from(self.setup.max_rd_atomic))
    }

    /// Whether a response waits behind messages that a limit holds back, none of which has begun.
    #[inline]
    pub(super) fn response_waits(&self) -> bool {
        self.limited
            && self.queue.newest_response() > self.next
            && self.queue.sending().is_none_or(|entry| entry.first >= self.next)
    }

    /// If a limit holds the next message back, lets the next response go before it. Returns whether a packet may be sent
    /// now.
    #[cold]
    pub(crate) fn promotes_response(&mut self) -> bool {
        if !self.response_waits() {
            return false;
        }
        self.queue.promote_response();
        self.new_packet_fits()
    }

    /// Queues the response to the peer's request number `number`. Returns `false` if the peer has more requests in flight
    /// than agreed (`most`).
    ///
    /// With request *n*, the peer has the responses to all requests up to *n* − `most`, since it has no more in flight.
    pub(crate) fn push_response(
        &mut self,
        now: Time,
        number: Msn,
        (source, len): (Source, u32),
        most: u8,
        env: &mut SendContext<'_>,
    ) -> bool {
        // Ports may hold the payload of older responses.
        if let Some(older) = self.queue.responses().checked_sub(most.into()) {
            let Some(end) = self.queue.end_of_response(older).filter(|&end| end <= self.next) else {
                return false;
            };
            self.on_transport_ack(now, self.psn(end).sub(1), env);
        }
        if !self.busy() {
            self.start_over(now);
        }
        self.queue.push_response(number, source, (len, self.setup.mtu), self.next);
        if self.limited && !self.passes_the_limits() {
            self.promotes_response();
        }
        true
    }

    /// The request with this number, if it was sent and has no complete response.
    #[inline]
    pub(crate) fn fetch(&self, number: Msn) -> Option<&OpenFetch> {
        let at = number.get().wrapping_sub(self.fetches.first.get());
        self.fetches.open.get(usize::from(at))
    }

    /// Where the `len` bytes from `offset` of a response go, if that is not one range.
    pub(crate) fn fetch_parts(
        &self,
        fetch: &OpenFetch,
        offset: u64,
        len: u32,
    ) -> impl Iterator<Item = PayloadRef> + use<'_> {
        self.queue.ranges(fetch.seq, offset, len)
    }

    /// A packet of a response has arrived: the peer works on the requests that wait.
    pub(crate) fn peer_responds(&mut self, now: Time) {
        if self.all_arrived() {
            self.peer_is_alive(now);
        }
    }

    /// The oldest request has its whole response. So it has arrived, and everything before it is complete too.
    pub(crate) fn on_response(&mut self, now: Time, env: &mut SendContext<'_>) {
        let Some(fetch) = self.fetches.open.pop_front() else { return };
        self.fetches.first = self.fetches.first.next();
        self.update_limits();
        self.on_transport_ack(now, self.psn(fetch.seq), env);
        self.done = self.fetches.complete_until(self.acked);
        self.progress(now);
    }
}

impl SendQueue {
    /// The packet after the last one of the newest response; 0 if there is none.
    #[inline]
    fn newest_response(&self) -> u64 {
        self.responses.back().copied().unwrap_or(0)
    }
}
