//! Receiving: which checks a packet must pass, and which queue pair gets it.
//!
//! The checks, in this order: the stack parses; the destination address is this port's and the UDP port
//! is MRC's; the iCRC matches, unless the DSCP says that the packet was trimmed; version and partition are
//! ours; the transport headers parse; the queue pair exists and its peer owns the source address. A packet
//! that fails a check is counted and dropped. Where several endpoints share addresses, a packet of another one goes there
//! before its iCRC is checked.
//!
//! A kernel socket is bound to its port's address, so what it delivers was sent there: the
//! destination is compared for Ethernet frames only.

use std::net::IpAddr;

use spindrift_pmd::{DatagramMeta, RxFrame, RxOrigin};

use crate::counters::Counters;
use crate::memory::{MemoryError, MemoryView, PdId, Pieces};
use crate::requester::{Requester, SackVerdict};
use crate::responder::{Arrived, Class, NackOut, Trigger, Violation};
use crate::time::Time;
use crate::wire::{
    Aeth, AethKind, Bth, Foreign, ICRC_LEN, NackReason, NakCode, Neth, Packet, Peth, Psn, Qpn, Reth, Seth,
    TrimKind, TrimmedHead, Tseth, WriteHead, icrc, is_mrc_port, stack,
};
use crate::work::{Wc, WcOpcode, WcStatus};

use super::event::{Event, FailReason};
use super::transmit::reflected;
use super::{Endpoint, QpState};

/// Where a packet came from.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    pub(super) meta: &'a DatagramMeta,
    pub(super) port: u8,
    /// The Ethernet frame, when the port shows it.
    frame: &'a [u8],
}

impl Source<'_> {
    /// The Ethernet address that it came from; zero when the port does not show it.
    pub(super) fn mac(&self) -> [u8; 6] {
        self.frame.get(6..12).and_then(|mac| mac.try_into().ok()).unwrap_or_default()
    }
}

/// Congestion experienced (RFC 3168).
const CE: u8 = 0b11;

/// What follows the UDP header: a slice, or parts that lie in several places.
trait Data<'a>: Copy {
    /// Copies it to where the packet says.
    fn place(self, memory: &mut MemoryView, pd: PdId, reth: &Reth) -> Result<(), MemoryError>;
    /// What is in the first place, all headers among it.
    fn front(self) -> &'a [u8];
    fn without_last(self, count: usize) -> Option<Self>;
    fn len(self) -> usize;
}

impl<'a> Data<'a> for &'a [u8] {
    #[inline]
    fn place(self, memory: &mut MemoryView, pd: PdId, reth: &Reth) -> Result<(), MemoryError> {
        memory.place(reth.rkey, pd, reth.va, self)
    }

    #[inline]
    fn front(self) -> &'a [u8] {
        self
    }

    #[inline]
    fn without_last(self, count: usize) -> Option<Self> {
        self.len().checked_sub(count).and_then(|len| self.get(..len))
    }

    #[inline]
    fn len(self) -> usize {
        <[u8]>::len(self)
    }
}

impl<'a> Data<'a> for Pieces<'a> {
    fn place(self, memory: &mut MemoryView, pd: PdId, reth: &Reth) -> Result<(), MemoryError> {
        memory.place_pieces(reth.rkey, pd, reth.va, &self)
    }

    fn front(self) -> &'a [u8] {
        Pieces::front(&self)
    }

    fn without_last(self, count: usize) -> Option<Self> {
        Pieces::without_last(self, count)
    }

    fn len(self) -> usize {
        Pieces::len(&self)
    }
}

impl Endpoint {
    /// Takes in a frame that arrived on `port`.
    pub fn receive(&mut self, now: Time, port: u8, frame: &RxFrame<'_>) {
        self.counters.rx_packets += 1;
        if frame.rest.is_empty() {
            self.receive_whole(now, port, frame.origin, frame.data);
        } else {
            self.receive_parts(now, port, frame);
        }
    }

    #[inline]
    fn receive_whole(&mut self, now: Time, port: u8, origin: RxOrigin, data: &[u8]) {
        match origin {
            // Looked at where it lies: a copy of it would cost as much as all these checks.
            RxOrigin::Ethernet => match &stack::parse(data) {
                Err(_) => self.counters.rx_bad_stack += 1,
                Ok(parsed) => {
                    let source = Source { meta: &parsed.meta, port, frame: data };
                    if !self.is_address_of(port, parsed.meta.dst) {
                        self.counters.rx_wrong_destination += 1;
                        return;
                    }
                    let verify = || icrc::verify_frame(parsed.l3);
                    if let Some(body) = self.admit(&source, parsed.mrc, parsed.truncated, verify) {
                        self.receive_packet(now, &source, body);
                    }
                }
            },
            RxOrigin::Udp(meta) => {
                let source = Source { meta: &meta, port, frame: &[] };
                if let Some(body) = self.admit(&source, data, false, || icrc::verify_datagram(&meta, data)) {
                    self.receive_packet(now, &source, body);
                }
            }
        }
    }

    /// A frame that lies in several places. A write's payload is placed from there; any other, which should be short, and
    /// one whose headers are not in one place, is joined first.
    #[inline(never)]
    fn receive_parts(&mut self, now: Time, port: u8, frame: &RxFrame<'_>) {
        let RxFrame { origin, data, rest } = *frame;
        let (meta, l3, mrc, elsewhere) = match origin {
            RxOrigin::Ethernet => match stack::parse_front(data, frame.len() - data.len()) {
                Ok(parsed) if !parsed.truncated => {
                    (parsed.meta, Some(parsed.l3), parsed.mrc, parsed.elsewhere)
                }
                _ => return self.receive_joined(now, port, frame),
            },
            // All of the rest, which is no more than this.
            RxOrigin::Udp(meta) => (meta, None, data, frame.len()),
        };
        let Ok((head, first)) = WriteHead::decode(mrc) else {
            return self.receive_joined(now, port, frame);
        };
        let source = Source { meta: &meta, port, frame: if l3.is_some() { data } else { &[] } };
        if l3.is_some() && !self.is_address_of(port, meta.dst) {
            self.counters.rx_wrong_destination += 1;
            return;
        }
        let headers = mrc.len() - first.len();
        // What pads the frame is left out.
        let mrc = Pieces::new(mrc, rest).first_bytes(mrc.len() + elsewhere);
        let verify = || match l3 {
            Some(l3) => icrc::verify_frame(Pieces::new(l3, rest).first_bytes(l3.len() + elsewhere)),
            None => icrc::verify_datagram(&meta, mrc),
        };
        if let Some(body) = self.admit(&source, mrc, false, verify) {
            let payload =
                body.split_front(headers).and_then(|(_, data)| data.without_last(head.bth.pad.into()));
            match payload {
                Some(payload) => self.on_write(now, &source, &head, payload),
                None => self.counters.rx_malformed += 1,
            }
        }
    }

    #[cold]
    fn receive_joined(&mut self, now: Time, port: u8, frame: &RxFrame<'_>) {
        let mut whole = Vec::new();
        frame.append_to(&mut whole);
        self.receive_whole(now, port, frame.origin, &whole);
    }

    /// Whether packets to `dst` are for `port`.
    #[inline]
    fn is_address_of(&self, port: u8, dst: IpAddr) -> bool {
        self.cfg.ports.get(usize::from(port)).is_some_and(|ours| match (ours.ip, dst) {
            // As one number each.
            (IpAddr::V6(ours), IpAddr::V6(dst)) => ours.to_bits() == dst.to_bits(),
            (IpAddr::V4(ours), IpAddr::V4(dst)) => ours.to_bits() == dst.to_bits(),
            _ => false,
        })
    }

    /// Counts a packet of another version or partition.
    #[cold]
    fn count_foreign(&mut self, reason: Foreign) {
        match reason {
            Foreign::Version => self.counters.rx_wrong_version += 1,
            Foreign::Partition => self.counters.rx_wrong_partition += 1,
        }
    }

    /// The checks that any datagram must pass, and the packet without its iCRC if it has. A trimmed one ends here.
    #[inline]
    fn admit<'a, D: Data<'a>>(
        &mut self,
        source: &Source<'_>,
        data: D,
        truncated: bool,
        verify: impl FnOnce() -> bool,
    ) -> Option<D> {
        if !is_mrc_port(source.meta.dst_port, self.cfg.udp_port) {
            self.counters.rx_other_port += 1;
            return None;
        }
        if self.cfg.qpns.of > 1 && self.passes_on(data.front()) {
            return None;
        }
        if let Some(kind) = self.cfg.dscp.class_of_trim(source.meta.traffic_class >> 2) {
            self.on_trimmed(source, data.front(), kind);
            return None;
        }
        if truncated {
            self.counters.rx_truncated += 1;
            return None;
        }
        let Some(body) = data.without_last(ICRC_LEN) else {
            self.counters.rx_malformed += 1;
            return None;
        };
        if self.cfg.icrc && !verify() {
            self.counters.rx_bad_icrc += 1;
            return None;
        }
        if let Err(reason) = Bth::admit(body.front()) {
            self.count_foreign(reason);
            return None;
        }
        Some(body)
    }

    #[inline]
    fn receive_packet(&mut self, now: Time, source: &Source<'_>, body: &[u8]) {
        match &Packet::decode(body) {
            Ok(packet) => self.dispatch(now, source, packet),
            Err(_) => self.counters.rx_malformed += 1,
        }
    }

    #[inline]
    fn dispatch(&mut self, now: Time, source: &Source<'_>, packet: &Packet<'_>) {
        match packet {
            Packet::Write { head, payload, .. } => self.on_write(now, source, head, *payload),
            Packet::Sack { bth, seth } => self.on_sack(now, source, bth, seth),
            Packet::Ack { bth, aeth } => self.on_ack(now, source, bth, aeth),
            Packet::Nack { bth, neth } => self.on_nack(now, source, bth, neth),
            Packet::Probe { bth, peth } => self.on_probe(now, source, bth, peth),
            Packet::EndpointRequest { bth, erth } => self.on_endpoint_request(now, source, bth, erth),
            Packet::EndpointResponse { bth, eeth } => self.on_endpoint_response(now, source, bth, eeth),
        }
    }

    /// The connected queue pair that `dest` names, if `source` is its peer's.
    fn connected(&mut self, dest: Qpn, source: &Source<'_>) -> Option<u32> {
        self.connected_inline(dest, source)
    }

    /// [`connected`](Self::connected) for data packets.
    #[expect(clippy::inline_always, reason = "a call costs a data packet more than the checks themselves")]
    #[inline(always)]
    fn connected_inline(&mut self, dest: Qpn, source: &Source<'_>) -> Option<u32> {
        let Some(slot) = self.slot_of(dest) else {
            self.counters.rx_unknown_qp += 1;
            return None;
        };
        let qp = self.qps[slot as usize].as_deref()?;
        let Some(peer) = self.peers.get(qp.peer as usize).and_then(Option::as_ref) else {
            self.counters.rx_wrong_state += 1;
            return None;
        };
        if !peer.owns(source.meta.src, source.port) {
            self.counters.rx_foreign_source += 1;
            return None;
        }
        if peer.ports_seen.any_in_doubt() {
            let index = qp.peer;
            self.hear(index, source);
        }
        Some(slot)
    }

    #[inline]
    fn on_write<'a>(&mut self, now: Time, source: &Source<'_>, head: &WriteHead, payload: impl Data<'a>) {
        self.counters.rx_data += 1;
        let Some(slot) = self.connected_inline(head.bth.dest_qpn, source) else { return };
        let trigger = self.trigger(source, &head.bth, head.tseth);
        let Some(qp) = self.qps[slot as usize].as_deref_mut() else { return };
        if !qp.receives() {
            self.counters.rx_wrong_state += 1;
            // A peer that has not heard our NAK goes on retransmitting: tell it again.
            qp.responder.owe_nak();
            if qp.responder.owes() {
                self.wake_control(slot);
            }
            return;
        }
        if trigger.marked {
            self.counters.rx_ecn_marked += 1;
        }
        match qp.responder.classify(head.bth.psn) {
            Class::New(seq) if !qp.responder.plausible(seq, head.meth.msn) => {
                self.counters.rx_implausible_msn += 1;
            }
            Class::New(seq) => self.accept(slot, seq, head, payload, trigger),
            Class::Duplicate => {
                self.counters.rx_duplicates += 1;
                qp.responder.answer_repeat(Trigger { repeated: true, ..trigger }, false);
            }
            Class::Old => {
                self.counters.rx_old += 1;
                qp.responder.answer_repeat(Trigger { repeated: true, ..trigger }, true);
            }
            Class::OutOfWindow => self.out_of_window(slot, trigger),
        }
        self.after_data(now, slot);
    }

    fn out_of_window(&mut self, slot: u32, trigger: Trigger) {
        self.counters.rx_out_of_window += 1;
        if self.cfg.oor_nack {
            self.owe_nack(slot, NackReason::PsnOutOfWindow, trigger);
        }
    }

    fn owe_nack(&mut self, slot: u32, reason: NackReason, trigger: Trigger) {
        let Some(qp) = self.qps[slot as usize].as_deref_mut() else { return };
        let nack =
            NackOut { reason: reason.into(), psn: trigger.psn, ev: trigger.ev, timestamp: trigger.timestamp };
        if !qp.responder.owe_nack(nack) {
            self.counters.tx_nacks_dropped += 1;
        }
    }

    #[inline]
    fn trigger(&self, source: &Source<'_>, bth: &Bth, tseth: Option<Tseth>) -> Trigger {
        Trigger {
            psn: bth.psn,
            ev: reflected(&self.cfg, source.meta),
            timestamp: tseth.map_or(0, |tseth| tseth.timestamp),
            marked: source.meta.traffic_class & 3 == CE,
            repeated: bth.rtx,
            probe_id: None,
        }
    }

    /// A packet inside the window that was not seen before: place it, then take it into account.
    #[inline]
    fn accept<'a>(
        &mut self,
        slot: u32,
        seq: u64,
        head: &WriteHead,
        payload: impl Data<'a>,
        trigger: Trigger,
    ) {
        let Some(qp) = self.qps[slot as usize].as_deref_mut() else { return };
        let mut arrived = Arrived::new(head, payload.len());
        if !arrived.well_formed(qp.path_mtu) {
            self.counters.rx_bad_length += 1;
            arrived.error = Some(NakCode::InvalidRequest);
        } else if let Err(error) = payload.place(&mut self.memory, qp.pd.id(), &head.reth) {
            count_refusal(&mut self.counters, error);
            arrived.error = Some(NakCode::RemoteAccess);
        } else {
            self.counters.rx_placed_bytes += payload.len() as u64;
            qp.counters.rx_packets += 1;
            qp.counters.rx_bytes += payload.len() as u64;
        }
        let (qpn, cq) = (qp.qpn, qp.recv_cq);
        let events = &mut self.events;
        let result = qp.responder.arrive(seq, arrived, &mut |done| {
            let wc = Wc {
                wr_id: done.wr.wr_id,
                status: WcStatus::Success,
                opcode: WcOpcode::RecvRdmaWithImm,
                byte_len: done.byte_len,
                imm: Some(done.imm),
                qpn,
            };
            events.push_back(Event::Completion { cq, wc });
        });
        let nominal = (head.encoded_len() + ICRC_LEN + payload.len()) as u32 + Requester::NOMINAL_OVERHEAD;
        qp.responder.count_bytes(payload.len() as u32, nominal, trigger, head.bth.ack_req);
        if let Err(violation) = result {
            self.on_violation(slot, violation);
        }
    }

    fn on_violation(&mut self, slot: u32, violation: Violation) {
        match violation.code {
            NakCode::InvalidRequest => self.counters.rx_invalid_request += 1,
            NakCode::RemoteOperational => self.counters.rx_no_receive += 1,
            NakCode::RemoteAccess | NakCode::PsnSequence => {}
        }
        if let Some(qp) = self.qp_mut(slot) {
            qp.responder.owe_last_words();
        }
        self.fail_qp(slot, FailReason::PeerViolation, None);
    }

    #[inline]
    fn after_data(&mut self, now: Time, slot: u32) {
        let Some(qp) = self.qps[slot as usize].as_deref_mut() else { return };
        let first = !core::mem::replace(&mut qp.inbound, true);
        if first {
            let refresh_ns = qp.requester.smoothed_rtt_ns().max(qp.init.path.reverse_refresh_ns);
            qp.reverse_check_at = now.after(refresh_ns);
        }
        if qp.responder.owes() {
            self.wake_control(slot);
        }
        if first {
            self.arm(slot);
        }
    }

    /// A packet that a switch cut: only BTH, METH and TSETH are read, nothing can be checked by CRC
    /// and nothing is placed. It becomes a NACK, so the worst that a forged one does is a
    /// retransmission.
    fn on_trimmed(&mut self, source: &Source<'_>, data: &[u8], kind: TrimKind) {
        self.counters.rx_trimmed += 1;
        if let Err(reason) = Bth::admit(data) {
            self.count_foreign(reason);
            return;
        }
        let Ok(head) = TrimmedHead::decode(data) else {
            self.counters.rx_trimmed_useless += 1;
            return;
        };
        let Some(slot) = self.connected(head.bth.dest_qpn, source) else { return };
        let trigger = self.trigger(source, &head.bth, head.tseth);
        let Some(qp) = self.qps[slot as usize].as_deref_mut() else { return };
        if !qp.receives()
            || !self.cfg.trimming
            || !matches!(qp.responder.classify(head.bth.psn), Class::New(_))
        {
            self.counters.rx_trimmed_useless += 1;
            return;
        }
        let reason = match kind {
            TrimKind::Fabric => NackReason::Trimmed,
            TrimKind::LastHop => NackReason::TrimmedLastHop,
        };
        self.owe_nack(slot, reason, trigger);
        self.wake_control(slot);
    }

    /// The queue pair that an acknowledgement is for, if it is one that sends and the reflected
    /// connection identifiers are its own.
    #[inline]
    fn sender(&mut self, source: &Source<'_>, bth: &Bth, ids: Option<(u16, u16)>) -> Option<u32> {
        let slot = self.connected(bth.dest_qpn, source)?;
        let qp = self.qps[slot as usize].as_deref()?;
        if qp.state != QpState::Rts {
            self.counters.rx_wrong_state += 1;
            return None;
        }
        // Source and destination are the acknowledging peer's view.
        if ids.is_some_and(|ids| ids != (qp.dest_qpn.low16(), qp.qpn.low16())) {
            self.counters.rx_wrong_connection += 1;
            return None;
        }
        Some(slot)
    }

    fn on_sack(&mut self, now: Time, source: &Source<'_>, bth: &Bth, sack: &Seth) {
        self.counters.rx_sacks += 1;
        let Some(slot) = self.sender(source, bth, Some((sack.spdcid, sack.dpdcid))) else { return };
        let Some(qp) = self.qps[slot as usize].as_deref_mut() else { return };
        if sack.pr && qp.paths.on_probe_answer(sack.probe_id(), Requester::mark_of(sack), now).is_none() {
            self.counters.rx_unmatched_response += 1;
        }
        let (requester, mut env) = qp.requester_env(&mut self.counters);
        requester.on_sack(now, sack, &mut env);
        self.wake_data(slot);
        self.arm(slot);
    }

    fn on_ack(&mut self, now: Time, source: &Source<'_>, bth: &Bth, aeth: &Aeth) {
        match aeth.kind() {
            AethKind::Ack => self.counters.rx_acks += 1,
            AethKind::Nak(_) | AethKind::Other(_) => self.counters.rx_naks += 1,
        }
        let Some(slot) = self.sender(source, bth, None) else { return };
        match aeth.kind() {
            AethKind::Ack => {
                let Some(qp) = self.qps[slot as usize].as_deref_mut() else { return };
                let (requester, mut env) = qp.requester_env(&mut self.counters);
                requester.on_transport_ack(now, bth.psn, &mut env);
                self.complete_sends(slot);
                self.wake_data(slot);
                self.arm(slot);
            }
            AethKind::Nak(code) => self.on_nak(slot, bth.psn, aeth.msn, code),
            AethKind::Other(_) => self.counters.rx_malformed += 1,
        }
    }

    /// A transport NAK. The first request to end with an error is the one at fault, also when the ACK for those
    /// before it was lost or comes later.
    fn on_nak(&mut self, slot: u32, psn: Psn, msn: u32, code: NakCode) {
        let status = match code {
            NakCode::InvalidRequest => WcStatus::RemoteInvalidRequest,
            NakCode::RemoteAccess => WcStatus::RemoteAccessError,
            NakCode::RemoteOperational => WcStatus::RemoteOperationError,
            // RoCE's go-back-N request; MRC's SACK and NACK take its place, so no peer sends it.
            NakCode::PsnSequence => {
                self.counters.rx_malformed += 1;
                return;
            }
        };
        let Some(target) = self.qp_mut(slot).and_then(|qp| qp.requester.on_nak(psn, msn)) else {
            self.counters.rx_forged_ack += 1;
            return;
        };
        self.complete_sends(slot);
        self.fail_qp(slot, FailReason::PeerRefused, Some((Some(target), status)));
    }

    fn on_nack(&mut self, now: Time, source: &Source<'_>, bth: &Bth, nack: &Neth) {
        self.counters.rx_nacks += 1;
        let Some(slot) = self.sender(source, bth, Some((nack.spdcid, nack.dpdcid))) else { return };
        let Some(qp) = self.qps[slot as usize].as_deref_mut() else { return };
        let (requester, mut env) = qp.requester_env(&mut self.counters);
        if requester.on_nack(now, nack, &mut env) == SackVerdict::Fatal {
            self.fail_qp(slot, FailReason::PeerFatal, Some((None, WcStatus::FatalError)));
            return;
        }
        self.wake_data(slot);
        self.arm(slot);
    }

    /// A reliability probe: answered with a SACK that says so (MRC 1.0 section 7.4.6).
    fn on_probe(&mut self, now: Time, source: &Source<'_>, bth: &Bth, probe: &Peth) {
        self.counters.rx_probes += 1;
        let Some(slot) = self.connected(bth.dest_qpn, source) else { return };
        let mut trigger = self.trigger(source, bth, None);
        let Some(qp) = self.qps[slot as usize].as_deref_mut() else { return };
        if !qp.receives() {
            self.counters.rx_wrong_state += 1;
            return;
        }
        if (probe.spdcid, probe.dpdcid) != (qp.dest_qpn.low16(), qp.qpn.low16()) {
            self.counters.rx_wrong_connection += 1;
            return;
        }
        if !self.ops.may_answer_probe(now) {
            self.counters.rx_rate_limited += 1;
            return;
        }
        trigger.psn = qp.responder.cack();
        trigger.timestamp = probe.tx_timestamp;
        trigger.probe_id = Some(probe.probe_id);
        qp.responder.answer_repeat(trigger, false);
        self.wake_control(slot);
    }
}

fn count_refusal(counters: &mut Counters, error: MemoryError) {
    match error {
        MemoryError::WrongPd { .. } => counters.rx_wrong_pd += 1,
        MemoryError::NoAccess { .. } => counters.rx_no_access += 1,
        MemoryError::Region(_) => counters.rx_out_of_bounds += 1,
        _ => counters.rx_bad_rkey += 1,
    }
}
