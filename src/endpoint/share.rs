//! Endpoints that share addresses, as the lanes of one NIC may: a packet can come in on any of them.
//!
//! A queue pair number tells which endpoint it belongs to, and so does a request id. What comes in on another one is
//! [passed on](Endpoint::take_forward) as it is, before it is checked any further. A port status update concerns the
//! queue pairs of all endpoints: it goes round, and the last one answers if any of them believed it. So what is
//! answered has been learnt everywhere, and what is lost on its way the peer repeats. A probe goes round until it comes to
//! an endpoint that is connected to its sender, and so knows where the answer goes.

use spindrift_pmd::{RxFrame, Steering, SteeringException};

use super::Endpoint;
use crate::time::Time;
use crate::wire::{Bth, ENDPOINT_QPN, Opcode, Qpn};

/// The part of all queue pair numbers and request ids that an endpoint gives, where several lanes of one NIC have an
/// endpoint each: a number tells which of them it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpnShare {
    /// Which part, from 0.
    pub index: u32,
    /// How many parts there are.
    pub of: u32,
}

impl QpnShare {
    /// All numbers.
    pub const ALL: Self = Self { index: 0, of: 1 };

    /// Most parts: the top four bits of a number decide, and the first part needs two values of them, since a few numbers
    /// with none of these bits stand for something else.
    pub const MAX: u32 = 15;

    /// The same for what shares packets out before any lane sees them: the queue of a packet is the index of its owner. A
    /// request to the endpoint, which any of them can answer, goes by its id too, so that lanes share the work, and answers to
    /// different lanes of a peer that has as many do not mix.
    pub const STEERING: Steering = Steering {
        // The first byte of BTH's destination queue pair.
        byte: 5,
        // Requests and responses name none; their id is the lower 16 bits of BTH's PSN.
        exception: Some(SteeringException { mask: 0xfe, value: Opcode::EndpointRequest as u8, byte: 10 }),
    };

    /// The part of `of` that a queue pair number is in.
    pub const fn owner(qpn: Qpn, of: u32) -> u32 {
        (qpn.get() >> 20) % of
    }

    /// The part of `of` that the id of an endpoint request is in.
    pub const fn owner_of_request(id: u16, of: u32) -> u32 {
        (id >> 12) as u32 % of
    }

    /// Whether a queue pair number is in this part.
    pub(super) const fn has(self, qpn: Qpn) -> bool {
        Self::owner(qpn, self.of) == self.index
    }

    /// Whether the id of an endpoint request is.
    pub(super) const fn has_request(self, id: u16) -> bool {
        Self::owner_of_request(id, self.of) == self.index
    }
}

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
    heard: Heard,
    answer_to: AnswerPorts,
}

/// The UDP ports that peers with one address listen on: an answer goes to each. A request does not say which of them sent it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct AnswerPorts {
    /// 0 is none.
    ports: [u16; Endpoint::SHARED],
}

impl AnswerPorts {
    /// One more, unless it is there or there are too many.
    pub(super) fn add(&mut self, udp_port: u16) {
        if let Some(place) = self.ports.iter_mut().find(|port| matches!(**port, 0) || **port == udp_port) {
            *place = udp_port;
        }
    }

    fn with(mut self, more: Self) -> Self {
        more.iter().for_each(|port| self.add(port));
        self
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u16> {
        self.ports.into_iter().filter(|&port| port != 0)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }
}

/// What a request is to those that it has visited, the best of it last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Heard {
    /// Its sender is the peer of none.
    Stranger,
    /// It says that the port it came from cannot be reached.
    Contradiction,
    Believed,
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
        self.counters.rx_packets -= 1;
    }

    /// Passes a packet on that belongs to another endpoint; `false` if it does not.
    #[inline(never)]
    pub(super) fn passes_on(&mut self, mrc: &[u8]) -> bool {
        let (Ok(bth), None) = (Bth::read(mrc), self.forwarded) else { return false };
        let of = self.cfg.qpns.of;
        let to = match (bth.dest_qpn, bth.opcode) {
            (ENDPOINT_QPN, Opcode::EndpointResponse) => QpnShare::owner_of_request(bth.psn.get() as u16, of),
            // Whoever gets a request can answer it.
            (ENDPOINT_QPN, _) => return false,
            (qpn, _) => QpnShare::owner(qpn, of),
        };
        let elsewhere = to != self.cfg.qpns.index;
        if elsewhere {
            self.pass_on(Forward { to, round: None });
        }
        elsewhere
    }

    /// What a request is to all endpoints, and where its answer goes, when this is the last that it visits; else it goes on.
    pub(super) fn end_of_round(
        &mut self,
        now: Time,
        heard: Heard,
        answer_to: AnswerPorts,
    ) -> Option<(Heard, AnswerPorts)> {
        let QpnShare { index, of } = self.cfg.qpns;
        let so_far = self.forwarded.and_then(|forward| forward.round);
        let (left, heard, answer_to) = match so_far {
            Some(round) => (round.left, heard.max(round.heard), round.answer_to.with(answer_to)),
            None => (of - 1, heard, answer_to),
        };
        let Some(left) = left.checked_sub(1) else { return Some((heard, answer_to)) };
        if so_far.is_none() && !self.ops.may_go_round(now) {
            self.counters.rx_rate_limited += 1;
            return None;
        }
        self.pass_on(Forward { to: (index + 1) % of, round: Some(Round { left, heard, answer_to }) });
        None
    }

    fn pass_on(&mut self, forward: Forward) {
        self.counters.rx_other_lane += 1;
        self.forward = Some(forward);
    }

    /// Whether the packet at hand came from another endpoint.
    pub(super) const fn is_forwarded(&self) -> bool {
        self.forwarded.is_some()
    }
}
