//! Processing of received endpoint requests and responses (MRC 1.0 sections 7.4.7 and 7.4.8).

use crate::peer::{Peers, Purpose, Source, StatusVerdict, log_port_status};
use crate::qp::{Cx, Event};
use crate::time::Time;
use crate::wire::{Bth, ENDPOINT_QPN, Eeth, EndpointOp, Erth};

use super::Endpoint;

impl Endpoint {
    pub(super) fn on_endpoint_request(&mut self, now: Time, source: &Source<'_>, bth: &Bth, erth: &Erth) {
        self.cx.counters.rx_endpoint_requests += u64::from(!self.is_forwarded());
        if bth.dest_qpn != ENDPOINT_QPN {
            self.cx.counters.rx_unknown_qp += 1;
            return;
        }
        let known = self.cx.peers.answer_ports(source.meta.src);
        let (stranger, answer_to) = match erth.op {
            // Processed even if no response may be sent: its cost has a limit of its own.
            EndpointOp::PortStatusUpdate => {
                let verdict = self.on_port_status(now, source, erth.port_status_mask);
                match self.end_of_round(now, verdict, known) {
                    Some((StatusVerdict::Accepted, answer_to)) => (false, answer_to),
                    Some((StatusVerdict::UnknownPeer, _)) => {
                        self.cx.counters.rx_foreign_port_status += 1;
                        return;
                    }
                    Some((StatusVerdict::SelfContradicting, _)) => {
                        self.cx.counters.rx_contradicting_port_status += 1;
                        return;
                    }
                    None => return,
                }
            }
            // Any sender may test whether a path works: it changes nothing and is rate limited.
            EndpointOp::EvProbe if known.is_empty() => {
                let Some((_, nobody)) = self.end_of_round(now, StatusVerdict::UnknownPeer, known) else {
                    return;
                };
                (true, nobody)
            }
            EndpointOp::EvProbe => {
                self.cx.peers.on_ev_probe(source);
                (false, known)
            }
            EndpointOp::Reserved2 | EndpointOp::Reserved3 => {
                self.cx.counters.rx_malformed += 1;
                return;
            }
        };
        // An unknown sender is assumed to receive at the default port.
        let usual = answer_to.is_empty().then_some(self.cx.cfg.udp_port);
        for udp_port in answer_to.iter().chain(usual) {
            if self.cx.peers.requests.may_answer(now, stranger, self.cx.counters.tx_data_bytes) {
                let Cx { cfg, counters, peers, .. } = &mut self.cx;
                peers.respond(source, udp_port, (bth.psn, erth), (cfg, counters));
            } else {
                self.cx.counters.rx_rate_limited += 1;
            }
        }
    }

    /// A port status update arrived from a peer's address, which may be forged. Only an accepted one gets a response.
    fn on_port_status(&mut self, now: Time, source: &Source<'_>, mask: u32) -> StatusVerdict {
        let (peers, count) = self.cx.peers.at(source.meta.src);
        if count == 0 {
            return StatusVerdict::UnknownPeer;
        }
        log_port_status(source.meta.src, source.port, mask);
        let mut verdict = StatusVerdict::SelfContradicting;
        for &index in &peers[..count] {
            if self.cx.peers.on_update(now, index, source, mask, &mut self.cx.counters) {
                verdict = StatusVerdict::Accepted;
                self.run_peer(now, index, &mut { Peers::SLICE });
                self.cx.peers.note_rx(index, source);
            }
        }
        verdict
    }

    pub(super) fn on_endpoint_response(&mut self, now: Time, source: &Source<'_>, bth: &Bth, _eeth: &Eeth) {
        self.cx.counters.rx_endpoint_responses += 1;
        if bth.dest_qpn != ENDPOINT_QPN {
            self.cx.counters.rx_unknown_qp += 1;
            return;
        }
        let id = bth.psn.get() as u16;
        let (peers, count) = self.cx.peers.at(source.meta.src);
        for &index in &peers[..count] {
            if let Some(serve) = self.cx.peers.on_response(now, index, source, id) {
                if serve {
                    self.run_peer(now, index, &mut { Peers::SLICE });
                }
                return;
            }
        }
        let Some(purpose) = self.cx.peers.requests.purpose(id) else {
            self.cx.counters.rx_unmatched_response += 1;
            return;
        };
        let (Purpose::ReverseProbe(qpn, _) | Purpose::Application(qpn)) = purpose;
        let index = self.qps.find(qpn).map_or(u32::MAX, |qp| qp.peer);
        if !self.cx.peers.get(index).is_some_and(|peer| peer.owns(source.meta.src, source.port)) {
            // Ids are random: an honest peer's late response may have the id of a request to another peer.
            self.cx.counters.rx_unmatched_response += 1;
            return;
        }
        let Some((purpose, plane, sent_at)) = self.cx.peers.requests.answered(id) else { return };
        if plane == source.port && self.cx.peers.on_proof(index, source, sent_at) {
            self.run_peer(now, index, &mut { Peers::SLICE });
        }
        match purpose {
            Purpose::ReverseProbe(qpn, ticket) => {
                if let Some(slot) = self.slot_of(qpn) {
                    self.with_qp(slot, |qp, _| qp.on_reverse_probe_response(ticket, now));
                }
            }
            Purpose::Application(qpn) => {
                let event = Event::EvProbeAnswered { qpn, request_id: id, rtt_ns: now.since(sent_at) };
                self.cx.events.push_back(event);
            }
        }
    }
}
