//! Endpoints that share addresses, as the lanes of one NIC may: a packet can come in on any of them.
//!
//! A queue pair number tells which endpoint it belongs to, and so does a request id. What comes in on another one is
//! [passed on](Endpoint::take_forward) as it is, before it is checked any further. A port status update concerns the
//! queue pairs of all endpoints: it goes round, and the last one answers if any of them accepted it. So what is
//! answered has been learnt everywhere, and what is lost on its way the peer repeats. A probe goes round until it comes to
//! an endpoint that is connected to its sender, and so knows where the answer goes.

use spindrift_pmd::RxFrame;

use crate::config::QpnShare;
use crate::peer::{AnswerPorts, StatusVerdict};
use crate::time::Time;
use crate::wire::{Bth, ENDPOINT_QPN, Opcode};

use super::Endpoint;

/// Where a packet goes that has come in on one of several endpoints with the same addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forward {
    to: u32,
    round: Option<Round>,
}

impl Forward {
    /// The [index](QpnShare::index) of the endpoint that it goes to.
    pub const fn to(self) -> u32 {
        self.to
    }
}

/// A request on its way past the endpoints: a port status update past all, a probe until one knows its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Round {
    /// Endpoints that it visits after the next one.
    left: u32,
    verdict: StatusVerdict,
    answer_to: AnswerPorts,
}

impl Endpoint {
    /// Where the packet that the last call of [`receive`](Self::receive) or
    /// [`receive_forwarded`](Self::receive_forwarded) was given goes on, if it does: to that call of the endpoint named.
    /// Only an endpoint with a [share](super::EndpointConfig::qpns) of the numbers passes packets on.
    #[inline]
    pub const fn take_forward(&mut self) -> Option<Forward> {
        self.forward.take()
    }

    /// Takes in a frame that came in on `port` of another endpoint, which has the same address.
    pub fn receive_forwarded(&mut self, now: Time, port: u8, frame: &RxFrame<'_>, forward: Forward) {
        self.forwarded = Some(forward);
        self.receive(now, port, frame);
        self.forwarded = None;
        // It has been counted where it came in.
        self.cx.counters.rx_packets -= 1;
    }

    /// Passes a packet on that belongs to another endpoint; `false` if it does not.
    #[inline(never)]
    pub(super) fn passes_on(&mut self, mrc: &[u8]) -> bool {
        let (Ok(bth), None) = (Bth::read(mrc), self.forwarded) else { return false };
        let of = self.cx.cfg.qpns.of;
        let to = match (bth.dest_qpn, bth.opcode) {
            (ENDPOINT_QPN, Opcode::EndpointResponse) => QpnShare::owner_of_request(bth.psn.get() as u16, of),
            // Whoever gets a request can answer it.
            (ENDPOINT_QPN, _) => return false,
            (qpn, _) => QpnShare::owner(qpn, of),
        };
        let elsewhere = to != self.cx.cfg.qpns.index;
        if elsewhere {
            self.pass_on(Forward { to, round: None });
        }
        elsewhere
    }

    /// What a request is to all endpoints, and where its answer goes, when this is the last that it visits; else it goes on.
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

    /// Whether the packet at hand came from another endpoint.
    pub(super) const fn is_forwarded(&self) -> bool {
        self.forwarded.is_some()
    }
}
