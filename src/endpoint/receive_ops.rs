//! Endpoint requests and responses that arrive (MRC 1.0 sections 7.4.7 and 7.4.8).

use spindrift_pmd::MacAddr;

use crate::path::PortMask;
use crate::time::Time;
use crate::wire::{Bth, ENDPOINT_QPN, Eeth, EndpointOp, Erth, Opcode, Packet, Psn, StackTemplate};

use super::Endpoint;
use super::event::Event;
use super::ops::{self, OpOut, Purpose};
use super::receive::Source;
use super::transmit::reflected;

impl Endpoint {
    pub(super) fn on_endpoint_request(&mut self, now: Time, source: &Source, bth: &Bth, erth: &Erth) {
        self.counters.rx_endpoint_requests += 1;
        if bth.dest_qpn != ENDPOINT_QPN {
            self.counters.rx_unknown_qp += 1;
            return;
        }
        if !self.ops.may_answer(now) {
            self.counters.rx_rate_limited += 1;
            return;
        }
        match erth.op {
            EndpointOp::PortStatusUpdate => {
                if !self.on_port_status(now, source, bth.psn.get() as u16, erth.port_status_mask) {
                    return;
                }
            }
            // Anyone may ask whether a path works: it changes nothing and is rate limited.
            EndpointOp::EvProbe => {}
            EndpointOp::Reserved2 | EndpointOp::Reserved3 => {
                self.counters.rx_malformed += 1;
                return;
            }
        }
        self.respond(source, bth.psn, erth);
    }

    /// A connected peer says which of its ports can be reached. `false` when it must not be answered: it is no
    /// peer, or has said something newer.
    fn on_port_status(&mut self, now: Time, source: &Source, id: u16, mask: u32) -> bool {
        let (mut known, mut taken) = (false, false);
        for index in 0..self.peers.len() {
            let Some(peer) = self.peers[index].as_mut() else { continue };
            if !peer.owns(source.meta.src, source.port) {
                continue;
            }
            known = true;
            if !peer.is_news(id, now) {
                continue;
            }
            taken = true;
            let lost = peer.up.0 & !mask;
            if peer.up == PortMask(mask) {
                continue;
            }
            peer.up = PortMask(mask);
            self.counters.peer_port_changes += 1;
            for slot in 0..self.qps.len() as u32 {
                if self.qp(slot).is_some_and(|qp| qp.peer == index as u32) {
                    self.refresh_ports(now, slot, (lost != 0).then_some(lost));
                }
            }
        }
        if !known {
            self.counters.rx_foreign_port_status += 1;
        } else if !taken {
            self.counters.rx_stale_port_status += 1;
        }
        taken
    }

    /// Answers an endpoint request on the path it came by, in the control class.
    fn respond(&mut self, source: &Source, request_id: Psn, erth: &Erth) {
        let Some(port) = self.cfg.ports.get(usize::from(source.port)) else { return };
        let Ok(template) = StackTemplate::new(
            port.mac,
            MacAddr(source.mac.unwrap_or_default()),
            port.ip,
            source.meta.src,
            self.cfg.udp_port,
            self.cfg.hop_limit,
        ) else {
            self.counters.rx_bad_stack += 1;
            return;
        };
        let ev = reflected(&self.cfg, &source.meta);
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

    pub(super) fn on_endpoint_response(&mut self, now: Time, source: &Source, bth: &Bth, _eeth: &Eeth) {
        self.counters.rx_endpoint_responses += 1;
        let id = bth.psn.get() as u16;
        let Some(purpose) = self.ops.purpose(id) else {
            self.counters.rx_unmatched_response += 1;
            return;
        };
        let index = match purpose {
            Purpose::PortStatus(index) => index,
            Purpose::ReverseProbe(qpn, _) | Purpose::Application(qpn) => {
                self.slot_of(qpn).and_then(|slot| self.qp(slot)).map_or(u32::MAX, |qp| qp.peer)
            }
        };
        let from_peer = self
            .peers
            .get(index as usize)
            .and_then(Option::as_ref)
            .is_some_and(|peer| peer.owns(source.meta.src, source.port));
        if !from_peer {
            self.counters.rx_foreign_source += 1;
            return;
        }
        let Some((purpose, sent_at)) = self.ops.answered(id) else { return };
        match purpose {
            Purpose::PortStatus(index) => {
                if let Some(peer) = self.peers.get_mut(index as usize).and_then(Option::as_mut)
                    && peer.status_update.is_some_and(|update| id.wrapping_sub(update.first_id) as i16 >= 0)
                {
                    peer.status_update = None;
                }
            }
            Purpose::ReverseProbe(qpn, path_id) => {
                if let Some(slot) = self.slot_of(qpn)
                    && let Some(qp) = self.qp_mut(slot)
                {
                    qp.paths.on_reverse_probe_answer(path_id, now);
                }
            }
            Purpose::Application(qpn) => {
                let event = Event::EvProbeAnswered { qpn, request_id: id, rtt_ns: now.since(sent_at) };
                self.events.push_back(event);
            }
        }
    }
}
