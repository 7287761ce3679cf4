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

use core::hint::cold_path;
use std::net::IpAddr;

use spindrift_pmd::batch_ids::BatchIds;
use spindrift_pmd::{RxFrame, RxOrigin};

use crate::memory::{Payload, Pieces, Room};
use crate::requester::{Requester, SackVerdict};
use crate::responder::Trigger;
use crate::time::Time;
use crate::wire::{
    Aeth, AethKind, Bth, Foreign, ICRC_LEN, NakCode, Neth, Packet, Peth, Psn, Qpn, Seth, WriteView, icrc,
    is_mrc_port, stack,
};
use crate::work::WcStatus;

use super::event::FailReason;
use super::origin::{Meta, Origin, Source};
use super::receive_data::trigger_of;
use super::{Endpoint, QpState};

/// What follows the UDP header: a slice, or parts that lie in several places.
pub(super) trait Data<'a>: Copy {
    /// Copies it to where the packet says.
    fn fill(self, room: Room<'_>);
    /// What is in the first place, all headers among it.
    fn front(self) -> &'a [u8];
    fn without_last(self, count: usize) -> Option<Self>;
    fn len(self) -> usize;
}

impl<'a> Data<'a> for &'a [u8] {
    #[inline]
    fn fill(self, room: Room<'_>) {
        room.fill(self);
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
    fn fill(self, room: Room<'_>) {
        room.place(self);
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
        if matches!(origin, RxOrigin::Ethernet)
            && let Some(plain) = stack::parse_plain(data, 0)
        {
            let source = Origin { meta: plain.meta, port };
            self.receive_datagram(now, source, plain.mrc, plain.truncated, |_| icrc::verify_frame(plain.l3));
        } else {
            self.receive_other(now, port, origin, data);
        }
    }

    /// A frame with another stack than IPv6 alone, or none that can be parsed.
    fn receive_other(&mut self, now: Time, port: u8, origin: RxOrigin, data: &[u8]) {
        match origin {
            RxOrigin::Ethernet => match &stack::parse(data) {
                Err(_) => self.counters.rx_bad_stack += 1,
                Ok(parsed) => {
                    let source = Source::new(&parsed.meta, port, data);
                    let verify = |_: &mut BatchIds| icrc::verify_frame(parsed.l3);
                    self.receive_datagram(now, source.origin(), parsed.mrc, parsed.truncated, verify);
                }
            },
            RxOrigin::Udp(meta) => {
                let source = Source::new(&meta, port, &[]);
                let verify = |ids: &mut BatchIds| icrc::verify_datagram(&meta, data, ids);
                self.receive_datagram(now, source.origin(), data, false, verify);
            }
        }
    }

    #[inline]
    fn receive_datagram<M: Meta>(
        &mut self,
        now: Time,
        source: Origin<M>,
        mrc: &[u8],
        truncated: bool,
        verify: impl FnOnce(&mut BatchIds) -> bool,
    ) {
        if let Some(body) = self.admit(source, mrc, truncated, verify) {
            self.receive_body(now, source, body);
        }
    }

    /// A frame that lies in several places. A write's payload is placed from there; any other, which should be short, and
    /// one whose headers are not in one place, is joined first.
    #[inline(never)]
    fn receive_parts(&mut self, now: Time, port: u8, frame: &RxFrame<'_>) {
        let RxFrame { origin, data, rest } = *frame;
        let more = frame.len() - data.len();
        match origin {
            RxOrigin::Ethernet => {
                if let Some(plain) = stack::parse_plain(data, more)
                    && !plain.truncated
                {
                    let source = Origin { meta: plain.meta, port };
                    let mrc = pieces(plain.mrc, rest, plain.elsewhere);
                    let verify =
                        |_: &mut BatchIds| icrc::verify_frame(pieces(plain.l3, rest, plain.elsewhere));
                    self.receive_write(now, source, mrc, frame, verify);
                } else if let Ok(parsed) = &stack::parse_front(data, more)
                    && !parsed.truncated
                {
                    let source = Source::new(&parsed.meta, port, data);
                    let mrc = pieces(parsed.mrc, rest, parsed.elsewhere);
                    let verify =
                        |_: &mut BatchIds| icrc::verify_frame(pieces(parsed.l3, rest, parsed.elsewhere));
                    self.receive_write(now, source.origin(), mrc, frame, verify);
                } else {
                    self.receive_joined(now, port, frame);
                }
            }
            RxOrigin::Udp(meta) => {
                let source = Source::new(&meta, port, &[]);
                let mrc = Pieces::new(data, rest);
                let verify = |ids: &mut BatchIds| icrc::verify_datagram(&meta, mrc, ids);
                self.receive_write(now, source.origin(), mrc, frame, verify);
            }
        }
    }

    /// The datagram `mrc` of a frame that lies in several places, if it is a write.
    #[inline]
    fn receive_write<M: Meta>(
        &mut self,
        now: Time,
        source: Origin<M>,
        mrc: Pieces<'_>,
        frame: &RxFrame<'_>,
        verify: impl FnOnce(&mut BatchIds) -> bool,
    ) {
        let Some((head, _)) = WriteView::split(mrc.front()) else {
            return self.receive_joined(now, source.port, frame);
        };
        let Some(body) = self.admit(source, mrc, false, verify) else { return };
        match body.split_front(head.header_len()).and_then(|(_, data)| data.without_last(head.pad().into())) {
            Some(payload) => self.on_write(now, source, head, payload),
            None => self.counters.rx_malformed += 1,
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
    pub(super) fn count_foreign(&mut self, reason: Foreign) {
        match reason {
            Foreign::Version => self.counters.rx_wrong_version += 1,
            Foreign::Partition => self.counters.rx_wrong_partition += 1,
        }
    }

    /// The checks that any datagram must pass, and the packet without its iCRC if it has. A trimmed one ends here.
    #[inline]
    fn admit<'a, D: Data<'a>, M: Meta>(
        &mut self,
        source: Origin<M>,
        data: D,
        truncated: bool,
        verify: impl FnOnce(&mut BatchIds) -> bool,
    ) -> Option<D> {
        // What a kernel socket delivers was sent to it.
        if source.meta.mac().is_some() && !self.is_address_of(source.port, source.meta.dst()) {
            count(&mut self.counters.rx_wrong_destination);
            return None;
        }
        if !is_mrc_port(source.meta.dst_port(), self.cfg.udp_port) {
            count(&mut self.counters.rx_other_port);
            return None;
        }
        if self.cfg.qpns.of > 1 && self.passes_on(data.front()) {
            return None;
        }
        if let Some(kind) = self.cfg.dscp.class_of_trim(source.meta.traffic_class() >> 2) {
            self.on_trimmed(source, data.front(), kind);
            return None;
        }
        if truncated {
            count(&mut self.counters.rx_truncated);
            return None;
        }
        let Some(body) = data.without_last(ICRC_LEN) else {
            count(&mut self.counters.rx_malformed);
            return None;
        };
        if self.cfg.icrc && !verify(&mut self.batch_ids) {
            count(&mut self.counters.rx_bad_icrc);
            return None;
        }
        if let Err(reason) = Bth::admit(body.front()) {
            self.count_foreign(reason);
            return None;
        }
        Some(body)
    }

    #[inline]
    fn receive_body<M: Meta>(&mut self, now: Time, source: Origin<M>, body: &[u8]) {
        let Some((head, data)) = WriteView::split(body) else {
            cold_path();
            return self.receive_control(now, source, body);
        };
        match data.without_last(head.pad().into()) {
            Some(payload) => self.on_write(now, source, head, payload),
            None => count(&mut self.counters.rx_malformed),
        }
    }

    /// A packet that is not a write.
    #[inline(never)]
    fn receive_control<M: Meta>(&mut self, now: Time, source: Origin<M>, body: &[u8]) {
        source.read(|source| self.dispatch(now, source, body));
    }

    fn dispatch(&mut self, now: Time, source: &Source<'_>, body: &[u8]) {
        match &Packet::decode(body) {
            Ok(Packet::Sack { bth, seth }) => self.on_sack(now, source, bth, seth),
            Ok(Packet::Ack { bth, aeth }) => self.on_ack(now, source, bth, aeth),
            Ok(Packet::Nack { bth, neth }) => self.on_nack(now, source, bth, neth),
            Ok(Packet::Probe { bth, peth }) => self.on_probe(now, source, bth, peth),
            Ok(Packet::EndpointRequest { bth, erth }) => self.on_endpoint_request(now, source, bth, erth),
            Ok(Packet::EndpointResponse { bth, eeth }) => self.on_endpoint_response(now, source, bth, eeth),
            Ok(Packet::Write { .. }) | Err(_) => self.counters.rx_malformed += 1,
        }
    }

    /// The connected queue pair that `dest` names, if `source` is its peer's.
    fn connected(&mut self, dest: Qpn, source: &Source<'_>) -> Option<u32> {
        self.connected_inline(dest, source.origin())
    }

    /// [`connected`](Self::connected) for data packets.
    #[expect(clippy::inline_always, reason = "a call costs a data packet more than the checks themselves")]
    #[inline(always)]
    pub(super) fn connected_inline<M: Meta>(&mut self, dest: Qpn, source: Origin<M>) -> Option<u32> {
        let Some(slot) = self.slot_of(dest) else {
            count(&mut self.counters.rx_unknown_qp);
            return None;
        };
        let Some(qp) = self.qps[slot as usize].as_deref() else {
            cold_path();
            return None;
        };
        let Some(peer) = self.peers.get(qp.peer as usize).and_then(Option::as_ref) else {
            count(&mut self.counters.rx_wrong_state);
            return None;
        };
        if !peer.owns(source.meta.src(), source.port) {
            count(&mut self.counters.rx_foreign_source);
            return None;
        }
        if peer.ports_seen.any_in_doubt() {
            let index = qp.peer;
            self.hear_from(index, source);
        }
        Some(slot)
    }

    #[cold]
    fn hear_from<M: Meta>(&mut self, index: u32, source: Origin<M>) {
        source.read(|source| self.hear(index, source));
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
        let (requester, mut env) = qp.requester_env(&mut self.cwnds, &mut self.counters);
        requester.on_sack(now, sack, &mut env);
        self.heard(now, slot);
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
                let (requester, mut env) = qp.requester_env(&mut self.cwnds, &mut self.counters);
                requester.on_transport_ack(now, bth.psn, &mut env);
                self.complete_sends(slot);
                self.heard(now, slot);
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
        let (requester, mut env) = qp.requester_env(&mut self.cwnds, &mut self.counters);
        if requester.on_nack(now, nack, &mut env) == SackVerdict::Fatal {
            self.fail_qp(slot, FailReason::PeerFatal, Some((None, WcStatus::FatalError)));
            return;
        }
        self.heard(now, slot);
        self.arm(slot);
    }

    /// A reliability probe: answered with a SACK that says so (MRC 1.0 section 7.4.6).
    fn on_probe(&mut self, now: Time, source: &Source<'_>, bth: &Bth, probe: &Peth) {
        self.counters.rx_probes += 1;
        let Some(slot) = self.connected(bth.dest_qpn, source) else { return };
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
        let cack = qp.responder.cack();
        let trigger = trigger_of(self.cfg.entropy, source, cack, probe.tx_timestamp, bth.rtx);
        qp.responder.answer_repeat(Trigger { probe_id: Some(probe.probe_id), ..trigger }, false);
        self.wake_control(slot);
    }
}

/// A packet that starts with `front` and goes on with so many bytes of `rest`; what pads the frame is left out.
#[inline]
fn pieces<'a>(front: &'a [u8], rest: &'a [Payload<'a>], elsewhere: usize) -> Pieces<'a> {
    Pieces::new(front, rest).first_bytes(front.len() + elsewhere)
}

/// Counts what is rare, so that the compiler knows.
#[cold]
#[inline(never)]
pub(super) const fn count(counter: &mut u64) {
    *counter += 1;
}
