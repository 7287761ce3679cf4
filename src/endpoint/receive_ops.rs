//! Endpoint requests and responses that arrive (MRC 1.0 sections 7.4.7 and 7.4.8).

use crate::time::Time;
use crate::wire::{Bth, ENDPOINT_QPN, Eeth, EndpointOp, Erth, Opcode, Packet, Psn};

use super::Endpoint;
use super::attr::PortAddr;
use super::event::Event;
use super::ops::{self, OpOut, Purpose};
use super::origin::Source;
use super::share::Heard;

impl Endpoint {
    pub(super) fn on_endpoint_request(&mut self, now: Time, source: &Source<'_>, bth: &Bth, erth: &Erth) {
        self.counters.rx_endpoint_requests += u64::from(!self.is_forwarded());
        if bth.dest_qpn != ENDPOINT_QPN {
            self.counters.rx_unknown_qp += 1;
            return;
        }
        let known = self.answer_ports(source.meta.src);
        let (stranger, answer_to) = match erth.op {
            // Taken in whether it may be answered or not; what it costs is bounded by itself.
            EndpointOp::PortStatusUpdate => {
                let heard = self.on_port_status(now, source, erth.port_status_mask);
                match self.end_of_round(now, heard, known) {
                    Some((Heard::Believed, answer_to)) => (false, answer_to),
                    Some((Heard::Stranger, _)) => {
                        self.counters.rx_foreign_port_status += 1;
                        return;
                    }
                    Some((Heard::Contradiction, _)) => {
                        self.counters.rx_contradicting_port_status += 1;
                        return;
                    }
                    None => return,
                }
            }
            // Anyone may ask whether a path works: it changes nothing and is rate limited.
            EndpointOp::EvProbe if known.is_empty() => {
                let Some((_, nobody)) = self.end_of_round(now, Heard::Stranger, known) else { return };
                (true, nobody)
            }
            EndpointOp::EvProbe => {
                self.hear_probe(source);
                (false, known)
            }
            EndpointOp::Reserved2 | EndpointOp::Reserved3 => {
                self.counters.rx_malformed += 1;
                return;
            }
        };
        // A stranger listens where everybody does.
        let usual = answer_to.is_empty().then_some(self.cfg.udp_port);
        for udp_port in answer_to.iter().chain(usual) {
            if self.ops.may_answer(now, stranger, self.counters.tx_data_bytes) {
                self.respond(source, udp_port, bth.psn, erth);
            } else {
                self.counters.rx_rate_limited += 1;
            }
        }
    }

    /// Answers an endpoint request on the path it came by, in the control class.
    fn respond(&mut self, source: &Source<'_>, udp_port: u16, request_id: Psn, erth: &Erth) {
        let Some(port) = self.cfg.ports.get(usize::from(source.port)) else { return };
        let peer = PortAddr { ip: source.meta.src, mac: source.mac() };
        let ours = (source.port, port);
        // Both addresses are of one packet, and so of one family.
        let Ok(template) = self.routes.template(&self.cfg, ours, &peer, udp_port) else { return };
        let ev = self.routes.answer_ev(
            source.port,
            peer.ip,
            self.cfg.entropy.extract(source.meta.src_port, source.meta.flow_label),
        );
        let mut entropy = self.cfg.entropy.place(ev);
        if let Some(allowed) = ops::allowed_source_port(port.source_ports.as_ref(), ev) {
            entropy.src_port = allowed;
        }
        let bth = Bth::new(Opcode::EndpointResponse, ENDPOINT_QPN, request_id);
        let eeth = Eeth::new(erth.op, self.cfg.op_position, erth.tx_timestamp);
        let packet = Packet::EndpointResponse { bth, eeth };
        if self.ops.push(OpOut { plane: source.port, template, entropy, packet, control_class: true }) {
            self.counters.tx_endpoint_responses += 1;
        }
    }

    pub(super) fn on_endpoint_response(&mut self, now: Time, source: &Source<'_>, bth: &Bth, _eeth: &Eeth) {
        self.counters.rx_endpoint_responses += 1;
        if bth.dest_qpn != ENDPOINT_QPN {
            self.counters.rx_unknown_qp += 1;
            return;
        }
        let id = bth.psn.get() as u16;
        let (peers, count) = self.peers_at(source.meta.src);
        if peers[..count].iter().any(|&index| self.on_peer_response(now, index, source, id)) {
            return;
        }
        let Some(purpose) = self.ops.purpose(id) else {
            self.counters.rx_unmatched_response += 1;
            return;
        };
        let (Purpose::ReverseProbe(qpn, _) | Purpose::Application(qpn)) = purpose;
        let index = self.slot_of(qpn).and_then(|slot| self.qp(slot)).map_or(u32::MAX, |qp| qp.peer);
        let from_peer = self
            .peers
            .get(index as usize)
            .and_then(Option::as_ref)
            .is_some_and(|peer| peer.owns(source.meta.src, source.port));
        if !from_peer {
            self.counters.rx_foreign_source += 1;
            return;
        }
        let Some((purpose, plane, sent_at)) = self.ops.answered(id) else { return };
        if plane == source.port {
            self.on_proof(now, index, source, sent_at);
        }
        match purpose {
            Purpose::ReverseProbe(qpn, ticket) => {
                if let Some(slot) = self.slot_of(qpn)
                    && let Some(qp) = self.qp_mut(slot)
                {
                    let found = qp.paths.on_reverse_probe_answer(ticket, now);
                    // The peer's next repeat is twice as far away as the last one was.
                    let receives = qp.receives();
                    if let Some((repeat, old)) = qp.unheard.take_if(|_| found && receives) {
                        qp.responder.answer_repeat(repeat, old);
                        self.wake_control(slot);
                    }
                }
            }
            Purpose::Application(qpn) => {
                let event = Event::EvProbeAnswered { qpn, request_id: id, rtt_ns: now.since(sent_at) };
                self.events.push_back(event);
            }
        }
    }
}
