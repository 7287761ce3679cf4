//! Endpoint operations: connectionless requests and responses to queue pair number 2, for port
//! status and for probing entropy values (MRC 1.0 sections 7.4.7 and 7.4.8).

use std::collections::VecDeque;

use rand::Rng;
use rand::rngs::ChaCha20Rng;

use crate::config::{EndpointConfig, PortAddr, QpnShare};
use crate::counters::Counters;
use crate::time::Time;
use crate::wire::{
    Bth, ENDPOINT_QPN, Eeth, EndpointOp, Entropy, Erth, Ev, Opcode, Packet, Psn, Qpn, StackTemplate,
};

use super::{Peers, Source};

/// An endpoint packet waiting to be sent.
#[derive(Clone, Debug)]
pub(crate) struct OutRequest {
    pub(crate) plane: u8,
    pub(crate) template: StackTemplate,
    pub(crate) entropy: Entropy,
    pub(crate) packet: Packet<'static>,
    pub(crate) control_class: bool,
}

/// The purpose of an outstanding request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A reverse-path probe of this queue pair, with the path set's own id.
    ReverseProbe(Qpn, u16),
    /// A probe that the application requested on this queue pair.
    Application(Qpn),
}

#[derive(Clone, Copy, Debug)]
struct Outstanding {
    id: u16,
    purpose: Purpose,
    plane: u8,
    sent_at: Time,
}

/// A bucket of tokens that fills at a constant rate.
#[derive(Debug)]
struct TokenBucket {
    per_second: u64,
    /// Tokens in billionths.
    level: u64,
    filled_at: Time,
}

impl TokenBucket {
    /// Tokens the bucket holds, as a share of a second's worth.
    const BURST_DIVISOR: u64 = 100;
    const ONE: u64 = 1_000_000_000;

    fn new(per_second: u32) -> Self {
        Self { per_second: u64::from(per_second), level: u64::MAX, filled_at: Time::ZERO }
    }

    /// Adds a token for each `bytes_each` of `bytes`.
    fn earn(&mut self, bytes: u64, bytes_each: u64) {
        let gained = u128::from(bytes) * u128::from(Self::ONE) / u128::from(bytes_each);
        self.level = self.level.saturating_add(u64::try_from(gained).unwrap_or(u64::MAX));
    }

    fn take(&mut self, now: Time) -> bool {
        let full = (self.per_second / Self::BURST_DIVISOR).max(16) * Self::ONE;
        let gained = now.since(self.filled_at).saturating_mul(self.per_second);
        self.level = self.level.saturating_add(gained).min(full);
        self.filled_at = now;
        let enough = self.level >= Self::ONE;
        if enough {
            self.level -= Self::ONE;
        }
        enough
    }
}

/// The endpoint's requests and responses.
#[derive(Debug)]
pub(crate) struct Requests {
    out: VecDeque<OutRequest>,
    outstanding: Box<[Option<Outstanding>]>,
    next_id: u16,
    answers: TokenBucket,
    /// Bytes of data sent when `answers` was last increased for them.
    sent_bytes: u64,
    stranger_answers: TokenBucket,
    probe_answers: TokenBucket,
    rounds: TokenBucket,
    share: QpnShare,
    /// Separate from the generator of queue pair numbers and PSNs, so that those do not depend on port events.
    rng: ChaCha20Rng,
}

impl Requests {
    /// Requests that are remembered; the oldest is dropped when its slot is needed.
    const OUTSTANDING: usize = 256;
    /// The part of an id that is the slot of its request. It counts up; the rest is random.
    const SLOT_MASK: u16 = Self::OUTSTANDING as u16 - 1;
    /// Packets waiting to be sent; more are refused, as endpoint operations are not reliable.
    const MAX_OUT: usize = 512;
    /// Room that responses leave for requests, because any sender can cause responses.
    const FOR_REQUESTS: usize = 256;
    /// Data sent that allows one more response to peers: half the data after which they probe their reverse paths
    /// once.
    const BYTES_PER_ANSWER: u64 = crate::path::REVERSE_REFRESH_BYTES / 2;
    /// Unknown senders share this fraction of the responses that peers may have.
    const STRANGERS_DIVISOR: u32 = 16;

    pub(crate) fn new(rng: ChaCha20Rng, answers_per_second: u32, share: QpnShare) -> Self {
        let mut requests = Self {
            out: VecDeque::with_capacity(Self::MAX_OUT),
            outstanding: vec![None; Self::OUTSTANDING].into_boxed_slice(),
            next_id: 0,
            answers: TokenBucket::new(answers_per_second),
            sent_bytes: 0,
            stranger_answers: TokenBucket::new(answers_per_second.div_ceil(Self::STRANGERS_DIVISOR)),
            probe_answers: TokenBucket::new(answers_per_second),
            rounds: TokenBucket::new(answers_per_second),
            share,
            rng,
        };
        requests.next_id = requests.draw_id() & !Self::SLOT_MASK;
        requests
    }

    /// A random number: the id of a reliability probe, half of an entropy value.
    pub(crate) fn draw(&mut self) -> u16 {
        (self.rng.next_u64() >> 48) as u16
    }

    /// A random request id that belongs to this endpoint. Its top four bits select the owner.
    pub(crate) fn draw_id(&mut self) -> u16 {
        loop {
            let id = self.draw();
            if self.share.has_request(id) {
                return id;
            }
        }
    }

    /// Whether one more endpoint request may get a response now, when this many bytes of data have been sent in all.
    /// Unknown senders, who may probe paths before they connect, have a limit of their own.
    ///
    /// Peers probe their reverse paths more often the more data they receive. Those probes have a limit that grows
    /// with the data, so that they do not use up that of port status updates and probes of planes.
    pub(crate) fn may_answer(&mut self, now: Time, stranger: bool, sent_bytes: u64) -> bool {
        if stranger {
            return self.stranger_answers.take(now);
        }
        let more = sent_bytes.saturating_sub(self.sent_bytes);
        self.sent_bytes = sent_bytes;
        self.answers.earn(more, Self::BYTES_PER_ANSWER);
        self.answers.take(now)
    }

    /// Whether one more reliability probe may get a SACK now. Counted separately, because any sender can send endpoint
    /// requests and only a connected peer a probe.
    pub(crate) fn may_answer_probe(&mut self, now: Time) -> bool {
        self.probe_answers.take(now)
    }

    /// Whether one more port status update may be forwarded to the other endpoints with the same addresses. Any sender
    /// can send them.
    pub(crate) fn may_go_round(&mut self, now: Time) -> bool {
        self.rounds.take(now)
    }

    /// The id that the next request will have.
    pub(crate) const fn next_id(&self) -> u16 {
        self.next_id
    }

    /// Records a request that leaves over `plane`, and returns its id.
    pub(crate) fn register(&mut self, now: Time, plane: u8, purpose: Purpose) -> u16 {
        let id = self.next_id;
        let slot = usize::from(id & Self::SLOT_MASK);
        self.outstanding[slot] = Some(Outstanding { id, purpose, plane, sent_at: now });
        self.next_id = self.draw_next_id(id.wrapping_add(1) & Self::SLOT_MASK);
        id
    }

    /// A random id for a slot, different from that of the request in the slot.
    fn draw_next_id(&mut self, slot: u16) -> u16 {
        let old = self.outstanding[usize::from(slot)].map(|request| request.id);
        loop {
            let id = self.draw_id() & !Self::SLOT_MASK | slot;
            if old != Some(id) {
                return id;
            }
        }
    }

    /// The request that a response with `id` belongs to, the plane that it took, and when it was sent. Each gets one
    /// response.
    pub(crate) fn answered(&mut self, id: u16) -> Option<(Purpose, u8, Time)> {
        let slot = &mut self.outstanding[usize::from(id) % Self::OUTSTANDING];
        let found = slot.filter(|request| request.id == id)?;
        *slot = None;
        Some((found.purpose, found.plane, found.sent_at))
    }

    /// The purpose of request `id`, if it is still outstanding.
    pub(crate) fn purpose(&self, id: u16) -> Option<Purpose> {
        let slot = &self.outstanding[usize::from(id) % Self::OUTSTANDING];
        slot.filter(|request| request.id == id).map(|request| request.purpose)
    }

    pub(crate) fn push(&mut self, op: OutRequest) -> bool {
        let response = matches!(op.packet, Packet::EndpointResponse { .. });
        let kept = if response { Self::FOR_REQUESTS } else { 0 };
        let fits = self.out.len() < Self::MAX_OUT - kept;
        if fits {
            self.out.push_back(op);
        }
        fits
    }

    /// The next packet to send whose plane is in `free` (bit n = plane n).
    pub(crate) fn pop(&mut self, free: u32) -> Option<OutRequest> {
        let at = self.out.iter().position(|op| free >> op.plane & 1 == 1)?;
        self.out.remove(at)
    }

    /// Drops the packets queued for `plane`, which is down, and returns how many there were.
    pub(crate) fn drop_plane(&mut self, plane: u8) -> u64 {
        let before = self.out.len();
        self.out.retain(|op| op.plane != plane);
        (before - self.out.len()) as u64
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.out.is_empty()
    }
}

/// An endpoint request to be sent.
pub(crate) struct Request {
    pub(crate) plane: u8,
    pub(crate) ev: Ev,
    pub(crate) op: EndpointOp,
    pub(crate) id: u16,
}

impl Peers {
    /// Queues an endpoint request to a peer; `false` if it was not queued.
    pub(crate) fn queue_request(
        &mut self,
        now: Time,
        index: u32,
        request: &Request,
        (cfg, counters): (&EndpointConfig, &mut Counters),
    ) -> bool {
        let plane = request.plane;
        let Some(template) = self.template(index, plane).cloned() else { return false };
        let erth = erth(request.op, self.ports_up.0, now.timestamp());
        let bth = Bth::new(Opcode::EndpointRequest, ENDPOINT_QPN, Psn::new(u32::from(request.id)));
        let entropy = cfg.entropy.place(request.ev);
        let packet = Packet::EndpointRequest { bth, erth };
        let queued =
            self.requests.push(OutRequest { plane, template, entropy, packet, control_class: false });
        if queued {
            counters.tx_endpoint_requests += 1;
        } else {
            counters.tx_endpoint_requests_refused += 1;
        }
        queued
    }

    /// Queues the response to an endpoint request, on the path that the request took, in the control class.
    pub(crate) fn respond(
        &mut self,
        source: &Source<'_>,
        udp_port: u16,
        (id, erth): (Psn, &Erth),
        (cfg, counters): (&EndpointConfig, &mut Counters),
    ) {
        let Some(port) = cfg.ports.get(usize::from(source.port)) else { return };
        let peer = PortAddr { ip: source.meta.src, mac: source.mac() };
        let ours = (source.port, port);
        // Both addresses are from one packet, and so of one family.
        let Ok(template) = self.routes.template(cfg, ours, &peer, udp_port) else { return };
        let reflected = cfg.entropy.extract(source.meta.src_port, source.meta.flow_label);
        let ev = self.routes.answer_ev(source.port, peer.ip, reflected);
        let mut entropy = cfg.entropy.place(ev);
        if let Some(allowed) = allowed_source_port(port.source_ports.as_ref(), ev) {
            entropy.src_port = allowed;
        }
        let bth = Bth::new(Opcode::EndpointResponse, ENDPOINT_QPN, id);
        let eeth = Eeth::new(erth.op, cfg.op_position, erth.tx_timestamp);
        let packet = Packet::EndpointResponse { bth, eeth };
        let plane = source.port;
        if self.requests.push(OutRequest { plane, template, entropy, packet, control_class: true }) {
            counters.tx_endpoint_responses += 1;
        }
    }
}

/// A request header with all reserved bits zero.
fn erth(op: EndpointOp, port_status_mask: u32, tx_timestamp: u16) -> Erth {
    Erth { op, port_status_mask, tx_timestamp, ..Erth::default() }
}

/// The source port of a response if a port can only use some: the one that `ev` maps to.
fn allowed_source_port(allowed: Option<&Vec<u16>>, ev: Ev) -> Option<u16> {
    let ports = allowed.filter(|ports| !ports.is_empty())?;
    ports.get(ev.0 as usize % ports.len()).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seed::{Purpose as For, Seed};
    use crate::wire::{Bth, EndpointOp, Opcode, Psn};

    fn requests(answers_per_second: u32) -> Requests {
        Requests::new(Seed::fixed(1).generator(For::Requests), answers_per_second, QpnShare::ALL)
    }

    #[test]
    fn ids_of_requests_are_not_counted_up() {
        let mut requests = requests(100);
        let ids: Vec<u16> =
            (0..1000).map(|_| requests.register(Time(1), 0, Purpose::Application(Qpn::new(3)))).collect();
        let steps = ids.windows(2).filter(|pair| pair[1] == pair[0].wrapping_add(1)).count();
        assert!(steps < 20, "{steps} of 1000 follow their predecessor");
        let mut latest = ids[1000 - Requests::OUTSTANDING..].to_vec();
        latest.sort_unstable();
        latest.dedup();
        assert_eq!(latest.len(), Requests::OUTSTANDING, "those remembered differ");
    }

    #[test]
    fn a_response_is_matched_once() {
        let mut requests = requests(100);
        let id = requests.register(Time(5), 3, Purpose::Application(Qpn::new(3)));
        assert_eq!(requests.answered(id.wrapping_add(1)), None);
        assert_eq!(requests.answered(id), Some((Purpose::Application(Qpn::new(3)), 3, Time(5))));
        assert_eq!(requests.answered(id), None);
    }

    #[test]
    fn a_forgotten_request_is_not_mistaken_for_a_new_one() {
        let mut requests = requests(100);
        let old = requests.register(Time(1), 0, Purpose::Application(Qpn::new(1)));
        for _ in 0..Requests::OUTSTANDING {
            requests.register(Time(2), 0, Purpose::Application(Qpn::new(2)));
        }
        assert_eq!(requests.answered(old), None);
    }

    /// A request over `plane`.
    fn op(plane: u8) -> OutRequest {
        let ip = |last: u8| [10, 0, 0, last].into();
        let mac = spindrift_pmd::MacAddr([2; 6]);
        let bth = Bth::new(Opcode::EndpointRequest, Qpn::new(2), Psn::new(7));
        OutRequest {
            plane,
            template: StackTemplate::new(mac, mac, ip(1), ip(2), 4793, 64).unwrap(),
            entropy: Entropy { src_port: 1, flow_label: 0 },
            packet: Packet::EndpointRequest { bth, erth: erth(EndpointOp::EvProbe, 5, 6) },
            control_class: true,
        }
    }

    #[test]
    fn what_waits_for_a_port_that_goes_down_is_dropped_and_counted() {
        let mut requests = requests(100);
        assert!(requests.is_empty());
        for plane in [0, 1, 2, 1, 1, 0] {
            assert!(requests.push(op(plane)));
        }
        assert_eq!((requests.drop_plane(1), requests.drop_plane(1), requests.is_empty()), (3, 0, false));
        let left: Vec<u8> = core::iter::from_fn(|| requests.pop(u32::MAX)).map(|op| op.plane).collect();
        assert_eq!((left, requests.is_empty()), (vec![0, 2, 0], true));
    }

    #[test]
    fn requests_have_what_they_were_given_and_zeros() {
        let erth = erth(EndpointOp::PortStatusUpdate, 0x8000_0001, 0x1234);
        let expected = Erth { op: EndpointOp::PortStatusUpdate, ..Erth::default() };
        assert_eq!(Erth { port_status_mask: 0, tx_timestamp: 0, ..erth }, expected);
        assert_eq!((erth.port_status_mask, erth.tx_timestamp), (0x8000_0001, 0x1234));
    }

    #[test]
    fn answers_leave_from_source_ports_that_there_are() {
        let ports = vec![100, 101, 102];
        let chosen = [0, 1, 2, 3, 4, 0xc000_c000].map(|ev| allowed_source_port(Some(&ports), Ev(ev)));
        assert_eq!(chosen, [100, 101, 102, 100, 101, 100].map(Some));
        assert_eq!(allowed_source_port(None, Ev(7)), None, "any will do");
        assert_eq!(allowed_source_port(Some(&Vec::new()), Ev(7)), None);
    }

    /// Data that is sent allows extra responses, to peers only, and at most a burst of them accumulates.
    #[test]
    fn data_sent_allows_more_answers() {
        let each = Requests::BYTES_PER_ANSWER;
        let mut requests = requests(1_000);
        let drain = |requests: &mut Requests, stranger, sent| {
            (0..1_000).filter(|_| requests.may_answer(Time(0), stranger, sent)).count()
        };
        assert_eq!(drain(&mut requests, false, 0), 16);
        assert_eq!(drain(&mut requests, false, 5 * each), 5);
        assert_eq!(drain(&mut requests, false, 5 * each), 0, "the same data");
        assert_eq!(drain(&mut requests, false, 4 * each), 0, "some was taken back");
        assert_eq!(drain(&mut requests, false, 5 * each + each / 2), 1);
        assert_eq!(drain(&mut requests, false, 6 * each), 1);
        assert_eq!(drain(&mut requests, false, u64::MAX), 16);
        assert_eq!((drain(&mut requests, true, 0), drain(&mut requests, true, u64::MAX)), (16, 0));
    }

    #[test]
    fn answers_are_rate_limited() {
        let mut requests = requests(1_000);
        let burst = (0..1_000).filter(|_| requests.may_answer(Time(0), false, 0)).count();
        assert_eq!(burst, 16);
        let second = (0..1_000_000_u64)
            .step_by(100)
            .filter(|&us| requests.may_answer(Time(us * 1_000), false, 0))
            .count();
        assert!((990..=1_016).contains(&second), "{second}");
    }
}
