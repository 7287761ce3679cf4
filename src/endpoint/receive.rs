//! Receive path: the checks on packets, and their delivery to queue pairs.
//!
//! The checks, in this order: the headers of the stack parse; the destination address is this port's and the UDP port
//! is MRC's; the iCRC matches, unless the DSCP marks the packet as trimmed; version and partition are ours; the
//! transport headers parse; the queue pair exists and its peer owns the source address. A packet that fails a check is
//! counted and dropped. If several endpoints share addresses, a packet for another endpoint is forwarded before its
//! iCRC is checked.
//!
//! A kernel socket is bound to its port's address, so its datagrams have that destination. The destination is
//! therefore compared for Ethernet frames only.

use core::hint::cold_path;
use std::net::IpAddr;

use spindrift_pmd::{RxFrame, RxOrigin};
use spindrift_wire::batch_ids::BatchIds;

use crate::memory::{Payload, Pieces};
use crate::peer::{Meta, Origin, Source};
use crate::qp::{Cx, Data, Qp, QpTable, Wakes, count_rare};
use crate::time::Time;
use crate::wire::{
    AethKind, Bth, DataView, Foreign, ICRC_LEN, Packet, Qpn, TrimKind, TrimmedHead, icrc, is_mrc_port, stack,
};

use super::Endpoint;

impl Endpoint {
    /// Processes a frame that arrived on `port`.
    pub fn receive(&mut self, now: Time, port: u8, frame: &RxFrame<'_>) {
        self.cx.counters.rx_packets += 1;
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

    /// A frame whose stack is not plain IPv6, or that cannot be parsed.
    fn receive_other(&mut self, now: Time, port: u8, origin: RxOrigin, data: &[u8]) {
        match origin {
            RxOrigin::Ethernet => match &stack::parse(data) {
                Err(_) => self.cx.counters.rx_bad_stack += 1,
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

    /// A frame in several pieces. The payload of a write is placed from the pieces. Other packets are short and are
    /// joined first, and so are writes whose headers are not in one piece.
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

    /// The datagram `mrc` of a frame in several pieces, if it is a write.
    #[inline]
    fn receive_write<M: Meta>(
        &mut self,
        now: Time,
        source: Origin<M>,
        mrc: Pieces<'_>,
        frame: &RxFrame<'_>,
        verify: impl FnOnce(&mut BatchIds) -> bool,
    ) {
        let Some((head, _)) = DataView::split(mrc.front()) else {
            return self.receive_joined(now, source.port, frame);
        };
        let Some(body) = self.admit(source, mrc, false, verify) else { return };
        match body.split_front(head.header_len()).and_then(|(_, data)| data.without_last(head.pad().into())) {
            Some(payload) => self.receive_data(now, source, head, payload),
            None => self.cx.counters.rx_malformed += 1,
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
        self.cx.cfg.ports.get(usize::from(port)).is_some_and(|ours| match (ours.ip, dst) {
            // Compared as one number each.
            (IpAddr::V6(ours), IpAddr::V6(dst)) => ours.to_bits() == dst.to_bits(),
            (IpAddr::V4(ours), IpAddr::V4(dst)) => ours.to_bits() == dst.to_bits(),
            _ => false,
        })
    }

    /// Counts a packet of a different version or partition.
    #[cold]
    fn count_foreign(&mut self, reason: Foreign) {
        match reason {
            Foreign::Version => self.cx.counters.rx_wrong_version += 1,
            Foreign::Partition => self.cx.counters.rx_wrong_partition += 1,
        }
    }

    /// The checks that every datagram must pass. Returns the packet without its iCRC, if it has one. A trimmed packet
    /// is processed here.
    #[inline]
    fn admit<'a, D: Data<'a>, M: Meta>(
        &mut self,
        source: Origin<M>,
        data: D,
        truncated: bool,
        verify: impl FnOnce(&mut BatchIds) -> bool,
    ) -> Option<D> {
        // A kernel socket only delivers datagrams for its address.
        if source.meta.mac().is_some() && !self.is_address_of(source.port, source.meta.dst()) {
            count_rare(&mut self.cx.counters.rx_wrong_destination);
            return None;
        }
        if !is_mrc_port(source.meta.dst_port(), self.cx.cfg.udp_port) {
            count_rare(&mut self.cx.counters.rx_other_port);
            return None;
        }
        if self.cx.cfg.qpns.of > 1 && self.passes_on(data.front()) {
            return None;
        }
        if let Some(kind) = self.cx.cfg.dscp.class_of_trim(source.meta.traffic_class() >> 2) {
            self.receive_trimmed(source, data.front(), kind);
            return None;
        }
        if truncated {
            count_rare(&mut self.cx.counters.rx_truncated);
            return None;
        }
        let Some(body) = data.without_last(ICRC_LEN) else {
            count_rare(&mut self.cx.counters.rx_malformed);
            return None;
        };
        if self.cx.cfg.icrc && !verify(&mut self.batch_ids) {
            count_rare(&mut self.cx.counters.rx_bad_icrc);
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
        let Some((head, data)) = DataView::split(body) else {
            cold_path();
            return self.receive_control(now, source, body);
        };
        match data.without_last(head.pad().into()) {
            Some(payload) => self.receive_data(now, source, head, payload),
            None => count_rare(&mut self.cx.counters.rx_malformed),
        }
    }

    /// A packet that is not a write.
    #[inline(never)]
    fn receive_control<M: Meta>(&mut self, now: Time, source: Origin<M>, body: &[u8]) {
        source.read(|source| self.dispatch(now, source, body));
    }

    fn dispatch(&mut self, now: Time, source: &Source<'_>, body: &[u8]) {
        let counters = &mut self.cx.counters;
        match &Packet::decode(body) {
            Ok(Packet::Sack { bth, seth }) => {
                counters.rx_sacks += 1;
                self.for_qp(bth.dest_qpn, source, |qp, cx| qp.on_sack(cx, now, seth));
            }
            Ok(Packet::Ack { bth, aeth }) => {
                match aeth.kind() {
                    AethKind::Ack => counters.rx_acks += 1,
                    AethKind::Nak(_) | AethKind::Other(_) => counters.rx_naks += 1,
                }
                self.for_qp(bth.dest_qpn, source, |qp, cx| qp.on_ack(cx, now, bth.psn, aeth));
            }
            Ok(Packet::Nack { bth, neth }) => {
                counters.rx_nacks += 1;
                self.for_qp(bth.dest_qpn, source, |qp, cx| qp.on_nack(cx, now, neth));
            }
            Ok(Packet::Probe { bth, peth }) => {
                counters.rx_probes += 1;
                self.for_qp(bth.dest_qpn, source, |qp, cx| qp.on_probe(cx, now, source, bth, peth));
            }
            Ok(Packet::EndpointRequest { bth, erth }) => self.on_endpoint_request(now, source, bth, erth),
            Ok(Packet::EndpointResponse { bth, eeth }) => self.on_endpoint_response(now, source, bth, eeth),
            Ok(Packet::Data { .. }) | Err(_) => counters.rx_malformed += 1,
        }
    }

    #[inline]
    fn receive_data<'a, M: Meta>(
        &mut self,
        now: Time,
        source: Origin<M>,
        head: DataView<'_>,
        payload: impl Data<'a>,
    ) {
        self.cx.counters.rx_data += 1;
        if let Some(qp) = connected(&mut self.qps, &mut self.cx, head.dest_qpn(), source) {
            let slot = qp.slot;
            let wakes = qp.on_data(&mut self.cx, now, source, head, payload);
            self.apply(slot, wakes);
        }
    }

    /// A packet that a switch trimmed.
    #[cold]
    fn receive_trimmed<M: Meta>(&mut self, source: Origin<M>, data: &[u8], kind: TrimKind) {
        self.cx.counters.rx_trimmed += 1;
        if let Err(reason) = Bth::admit(data) {
            self.count_foreign(reason);
            return;
        }
        let Ok(head) = TrimmedHead::decode(data) else {
            self.cx.counters.rx_trimmed_useless += 1;
            return;
        };
        if let Some(qp) = connected(&mut self.qps, &mut self.cx, head.bth.dest_qpn, source) {
            let slot = qp.slot;
            let wakes = qp.on_trimmed(&mut self.cx, source, &head, kind);
            self.apply(slot, wakes);
        }
    }

    /// Passes a packet to the connected queue pair that `dest` names, if `source` is its peer's.
    fn for_qp(&mut self, dest: Qpn, source: &Source<'_>, act: impl FnOnce(&mut Qp, &mut Cx) -> Wakes) {
        if let Some(qp) = connected(&mut self.qps, &mut self.cx, dest, source.origin()) {
            let slot = qp.slot;
            let wakes = act(qp, &mut self.cx);
            self.apply(slot, wakes);
        }
    }
}

/// The connected queue pair that `dest` names, if `source` is its peer's.
#[expect(clippy::inline_always, reason = "a call costs a data packet more than the checks themselves")]
#[inline(always)]
fn connected<'a, M: Meta>(
    qps: &'a mut QpTable,
    cx: &mut Cx,
    dest: Qpn,
    source: Origin<M>,
) -> Option<&'a mut Qp> {
    let Some(qp) = qps.find_mut(dest) else {
        count_rare(&mut cx.counters.rx_unknown_qp);
        return None;
    };
    let Some(peer) = cx.peers.get(qp.peer) else {
        count_rare(&mut cx.counters.rx_wrong_state);
        return None;
    };
    if !peer.owns(source.meta.src(), source.port) {
        count_rare(&mut cx.counters.rx_foreign_source);
        return None;
    }
    if peer.reachability.any_suspect() {
        note_rx(cx, qp.peer, source);
    }
    Some(qp)
}

#[cold]
fn note_rx<M: Meta>(cx: &mut Cx, index: u32, source: Origin<M>) {
    source.read(|source| cx.peers.note_rx(index, source));
}

/// A packet that starts with `front` and continues with this many bytes of `rest`, without the padding of the frame.
#[inline]
fn pieces<'a>(front: &'a [u8], rest: &'a [Payload<'a>], elsewhere: usize) -> Pieces<'a> {
    Pieces::new(front, rest).first_bytes(front.len() + elsewhere)
}
