//! Packets without payload that a queue pair sends: acknowledgements of all kinds, and reliability probes.

use std::collections::BTreeSet;

use crate::counters::Counters;
use crate::path::PlaneSet;
use crate::responder::{NackOut, SackOut, WindowBudget};
use crate::time::Time;
use crate::wire::{Aeth, Bth, CcState, Mark, NackReason, Neth, Opcode, Packet, Peth, Psn, Qpn, Seth, dscp};

use super::transmit::ECT0;
use super::{ControlPath, CqId, Cx, NOT_ECT, Qp, QpState, Transmit, Turn, write_control};

impl Qp {
    /// The next probe or acknowledgement, if one is pending and its path has room.
    pub(crate) fn transmit_control(
        &mut self,
        cx: &mut Cx,
        now: Time,
        free: PlaneSet,
        out: &mut Transmit,
    ) -> Turn {
        if let Some(turn) = self.transmit_probe(cx, now, free, out) {
            cx.counters.tx_probes += 1;
            return turn;
        }
        if !self.responder.has_pending_acks() {
            self.paths.end_acks();
            let probe_waits = self.state == QpState::Rts && self.paths.probe_is_due(now);
            self.refresh_reverse_paths_after_data(cx, now);
            return if probe_waits { Turn::Blocked } else { Turn::Idle };
        }
        let Some((ev, plane)) = self.paths.pick_reverse(free, self.responder.ack_pending()) else {
            // Without an open plane it would block for ever; a port that comes up lists it again.
            return if self.paths.open_planes().0 == 0 { Turn::Idle } else { Turn::Blocked };
        };
        let backlog = cx.events.len() > Cx::EVENT_ROOM;
        let mut inputs = WindowInputs { budget: &mut cx.windows, nearly_full: &cx.cqs_nearly_full, backlog };
        let Some(packet) = next_ack(self, &mut cx.counters, &mut inputs) else { return Turn::Idle };
        let Some(template) = cx.peers.template(self.peer, plane) else { return Turn::Idle };
        let entropy = cx.cfg.entropy.place(ev);
        let traffic_class = dscp::traffic_class(cx.cfg.dscp.control, NOT_ECT);
        write_control(out, &ControlPath { plane, template, entropy, traffic_class }, &packet);
        Turn::Sent
    }

    /// A reliability probe of an entropy value that is `ASSUMED_BAD`, if one is due and its plane has room (MRC 1.0
    /// section 7.4.6). It has the traffic class of data and takes the path that it tests.
    fn transmit_probe(&mut self, cx: &mut Cx, now: Time, free: PlaneSet, out: &mut Transmit) -> Option<Turn> {
        if self.state != QpState::Rts {
            return None;
        }
        let late_after_ns = self.requester.late_after_ns();
        let probe = self.paths.poll_probe(now, free, late_after_ns, || cx.peers.requests.draw())?;
        let plane = self.paths.plane(probe.ev);
        let template = cx.peers.template(self.peer, plane)?;
        let peth = Peth {
            probe_id: probe.id,
            spdcid: self.qpn.low16(),
            dpdcid: self.dest_qpn.low16(),
            tx_timestamp: now.timestamp(),
            ..Peth::default()
        };
        let packet = Packet::Probe { bth: Bth::new(Opcode::Probe, self.dest_qpn, Psn::new(0)), peth };
        let entropy = cx.cfg.entropy.place(self.paths.ev(probe.ev));
        let traffic_class = dscp::traffic_class(cx.cfg.dscp.no_trim, ECT0);
        write_control(out, &ControlPath { plane, template, entropy, traffic_class }, &packet);
        Some(Turn::Sent)
    }
}

/// Inputs to the granted window from outside its queue pair.
struct WindowInputs<'a> {
    budget: &'a mut WindowBudget,
    nearly_full: &'a BTreeSet<CqId>,
    /// The driver does not poll events fast enough.
    backlog: bool,
}

/// The next pending acknowledgement. The ACK follows the SACK, which is longer. Ports that batch frames of one path
/// send both at once, since only the last frame of a batch may be shorter. A receiver processes both anyway.
fn next_ack(qp: &mut Qp, counters: &mut Counters, inputs: &mut WindowInputs<'_>) -> Option<Packet<'static>> {
    let dest = qp.dest_qpn;
    if qp.responder.ack_precedes_nack() {
        return ack_packet(qp, counters);
    }
    if let Some(nack) = qp.responder.take_nack() {
        counters.tx_nacks += 1;
        return Some(nack_packet(qp.qpn, dest, &nack));
    }
    if let Some(sack) = qp.responder.take_sack() {
        counters.tx_sacks += 1;
        let counts = qp.responder.take_counts();
        counters.tx_sacks_dropped += counts.triggers_dropped;
        counters.rx_out_of_order += counts.out_of_order;
        let behind = || inputs.backlog || inputs.nearly_full.contains(&qp.recv_cq);
        let mpr = qp.responder.grant(inputs.budget, behind);
        return Some(sack_packet(qp.qpn, dest, &sack, mpr));
    }
    if let Some(ack) = ack_packet(qp, counters) {
        return Some(ack);
    }
    let (culprit, msn) = qp.responder.take_nak()?;
    counters.tx_naks += 1;
    let bth = Bth::new(Opcode::Ack, dest, culprit.psn);
    Some(Packet::Ack { bth, aeth: Aeth::nak(culprit.violation.code(), msn) })
}

fn ack_packet(qp: &mut Qp, counters: &mut Counters) -> Option<Packet<'static>> {
    let (psn, msn) = qp.responder.take_ack()?;
    counters.tx_acks += 1;
    Some(Packet::Ack { bth: Bth::new(Opcode::Ack, qp.dest_qpn, psn), aeth: Aeth::ack(msn) })
}

fn nack_packet(qpn: Qpn, dest: Qpn, nack: &NackOut) -> Packet<'static> {
    let neth = Neth {
        spdcid: qpn.low16(),
        dpdcid: dest.low16(),
        tx_timestamp: nack.timestamp,
        vendor_info: nack.info,
        ..Neth::new(NackReason::from(nack.reason), nack.psn, nack.ev)
    };
    Packet::Nack { bth: Bth::new(Opcode::Nack, dest, nack.psn), neth }
}

/// Encodes a SACK (MRC 1.0 tables 7-12 to 7-15).
fn sack_packet(qpn: Qpn, dest: Qpn, sack: &SackOut, mpr: u8) -> Packet<'static> {
    let trigger = &sack.trigger;
    let seth = Seth {
        mark: if trigger.marked { Mark::SkipOnce } else { Mark::None },
        pr: trigger.probe_id.is_some(),
        ack_psn_offset: match trigger.probe_id {
            Some(id) => id as i16,
            None => ack_offset(trigger.psn, sack.cack),
        },
        entropy: trigger.ev,
        spdcid: qpn.low16(),
        dpdcid: dest.low16(),
        cack: sack.cack,
        mpr,
        sack_offset: sack.sack_offset,
        bitmap: sack.bitmap,
        cc: CcState {
            tx_timestamp: trigger.timestamp,
            ooo_count: sack.out_of_order,
            rcvd_bytes: sack.rcvd_bytes,
            ..CcState::default()
        },
        ..Seth::default()
    };
    let mut bth = Bth::new(Opcode::Sack, dest, sack.cack);
    bth.rtx = trigger.repeated && trigger.probe_id.is_none();
    Packet::Sack { bth, seth }
}

/// The triggering PSN relative to the cumulative acknowledgement. If it is too far back to encode, the oldest offset
/// that can be encoded.
fn ack_offset(psn: Psn, cack: Psn) -> i16 {
    psn.distance(cack).clamp(i32::from(i16::MIN), i32::from(i16::MAX)) as i16
}
