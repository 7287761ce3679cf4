//! Endpoints that share addresses, such as the lanes of one NIC: a packet can arrive on any of them.
//!
//! A queue pair number shows which endpoint it belongs to, and so does a request id. A packet that arrives on a
//! different endpoint is [forwarded](Endpoint::take_forward) unchanged, before any further check. A port status update
//! concerns the queue pairs of all endpoints. It visits each in turn, and the last one responds if any of them
//! accepted it. So a response means that all endpoints have processed the update, and the peer retransmits lost ones.
//! A probe visits endpoints until one is connected to its sender, and so knows where to send the response.

use spindrift_pmd::RxFrame;

use crate::config::QpnShare;
use crate::peer::{AnswerPorts, StatusVerdict};
use crate::time::Time;
use crate::wire::{Bth, ENDPOINT_QPN, Opcode};

use super::Endpoint;

/// The destination of a packet that arrived on one of several endpoints with the same addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forward {
    to: u32,
    round: Option<Round>,
}

impl Forward {
    /// The [index](QpnShare::index) of the endpoint to forward it to.
    pub const fn to(self) -> u32 {
        self.to
    }
}

/// A request that is forwarded from endpoint to endpoint: a port status update to all, a probe until one knows its
/// sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Round {
    /// Endpoints that it visits after the next one.
    left: u32,
    verdict: StatusVerdict,
    answer_to: AnswerPorts,
}

impl Endpoint {
    /// Where to forward the packet that was last passed to [`receive`](Self::receive) or
    /// [`receive_forwarded`](Self::receive_forwarded), if it is for another endpoint: to `receive_forwarded` of the
    /// endpoint named. Only an endpoint with a [share](super::EndpointConfig::qpns) of the numbers forwards packets.
    #[inline]
    pub const fn take_forward(&mut self) -> Option<Forward> {
        self.forward.take()
    }

    /// Processes a frame that arrived on `port` of another endpoint, which has the same address.
    pub fn receive_forwarded(&mut self, now: Time, port: u8, frame: &RxFrame<'_>, forward: Forward) {
        self.forwarded = Some(forward);
        self.receive(now, port, frame);
        self.forwarded = None;
        // It was counted where it arrived.
        self.cx.counters.rx_packets -= 1;
    }

    /// Forwards a packet that belongs to another endpoint; `false` if it does not.
    #[inline(never)]
    pub(super) fn passes_on(&mut self, mrc: &[u8]) -> bool {
        let (Ok(bth), None) = (Bth::read(mrc), self.forwarded) else { return false };
        let of = self.cx.cfg.qpns.of;
        let to = match (bth.dest_qpn, bth.opcode) {
            (ENDPOINT_QPN, Opcode::EndpointResponse) => QpnShare::owner_of_request(bth.psn.get() as u16, of),
            // Any endpoint can process a request.
            (ENDPOINT_QPN, _) => return false,
            (qpn, _) => QpnShare::owner(qpn, of),
        };
        let elsewhere = to != self.cx.cfg.qpns.index;
        if elsewhere {
            self.pass_on(Forward { to, round: None });
        }
        elsewhere
    }

    /// The combined verdict of all endpoints on a request and the destination of its response, if this is the last
    /// that it visits; otherwise it is forwarded.
    pub(super) fn end_of_round(
        &mut self,
        now: Time,
        verdict: StatusVerdict,
        answer_to: AnswerPorts,
    ) -> Option<(StatusVerdict, AnswerPorts)> {
        let QpnShare { index, of } = self.cx.cfg.qpns;
        let so_far = self.forwarded.and_then(|forward| forward.round);
        let (left, verdict, answer_to) = match so_far {
            Some(round) => (round.left, verdict.max(round.verdict), round.answer_to.with(answer_to)),
            None => (of - 1, verdict, answer_to),
        };
        let Some(left) = left.checked_sub(1) else { return Some((verdict, answer_to)) };
        if so_far.is_none() && !self.cx.peers.requests.may_go_round(now) {
            self.cx.counters.rx_rate_limited += 1;
            return None;
        }
        self.pass_on(Forward { to: (index + 1) % of, round: Some(Round { left, verdict, answer_to }) });
        None
    }

    fn pass_on(&mut self, forward: Forward) {
        self.cx.counters.rx_other_lane += 1;
        self.forward = Some(forward);
    }

    /// Whether the current packet was forwarded by another endpoint.
    pub(super) const fn is_forwarded(&self) -> bool {
        self.forwarded.is_some()
    }
}
