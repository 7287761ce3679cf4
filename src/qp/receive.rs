//! Packets that a queue pair receives: data, acknowledgements, probes, and packets that a switch trimmed.

use crate::counters::Counters;
use crate::memory::{Access, MemoryError, Pieces, RegionError, Room, Target};
use crate::peer::{Meta, Origin, Source};
use crate::requester::{AckOutcome, Requester};
use crate::responder::{Arrived, Class, NackOut, Trigger, Violated, Violation};
use crate::time::Time;
use crate::wire::{
    Aeth, AethKind, Bth, DataView, EntropyMode, ICRC_LEN, NackReason, NakCode, Neth, Peth, Psn, Seth,
    TrimKind, TrimmedHead,
};
use crate::work::WcStatus;

use super::{Cx, Extensions, FailReason, Qp, QpState, Wakes};

/// The bytes after the UDP header: a slice, or several pieces.
pub(crate) trait Data<'a>: Copy {
    /// Copies it to the place that the packet names.
    fn fill(self, room: Room<'_>);
    /// Copies the bytes from `from` on, as many as there is room for.
    fn fill_part(self, from: usize, room: Room<'_>);
    /// Copies the first bytes to `out`.
    fn read(self, out: &mut [u8]);
    /// The first piece, which contains all headers.
    fn front(self) -> &'a [u8];
    fn without_last(self, count: usize) -> Option<Self>;
    fn len(self) -> usize;
}

impl<'a> Data<'a> for &'a [u8] {
    #[inline]
    fn fill(self, room: Room<'_>) {
        room.fill(self);
    }

    fn fill_part(self, from: usize, room: Room<'_>) {
        Pieces::new(self, &[]).place_part(from, room);
    }

    fn read(self, out: &mut [u8]) {
        Data::read(Pieces::new(self, &[]), out);
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

    fn fill_part(self, from: usize, room: Room<'_>) {
        self.place_part(from, room);
    }

    fn read(self, out: &mut [u8]) {
        let mut at = 0;
        for piece in self.iter() {
            at += out.get_mut(at..).map_or(0, |rest| piece.read(rest));
        }
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

/// Counts a rare event, marked as cold for the compiler.
#[cold]
#[inline(never)]
pub(crate) const fn count_rare(counter: &mut u64) {
    *counter += 1;
}

impl Qp {
    /// A data packet: its payload is placed at once, whatever the order in which packets arrive.
    #[inline]
    pub(crate) fn on_data<'a, M: Meta>(
        &mut self,
        cx: &mut Cx,
        now: Time,
        source: Origin<M>,
        head: DataView<'_>,
        payload: impl Data<'a>,
    ) -> Wakes {
        if !self.receives() {
            return self.on_data_in_wrong_state(cx);
        }
        let opcode = head.opcode();
        if !self.admitted.has(opcode) {
            count_rare(&mut cx.counters.rx_not_negotiated);
            return Wakes::NONE;
        }
        if source.meta.is_marked() {
            count_rare(&mut cx.counters.rx_ecn_marked);
        }
        let class = self.responder.classify(head.psn());
        let Class::New(seq) = class else {
            return self.on_unplaced(cx, now, class, source, head);
        };
        if !self.responder.plausible(seq, head.meth().msn) {
            return self.on_unplaced(cx, now, class, source, head);
        }
        let (len, reth) = (payload.len(), head.reth());
        if !Arrived::new(head, len).well_formed(self.path_mtu) {
            return self.on_odd_length(cx, (now, seq), source, head, len);
        }
        if !opcode.is_plain_write() {
            if opcode.is_send() {
                return self.on_send(cx, (now, seq), source, head, payload);
            }
            return self.on_other(cx, (now, seq), source, head, payload);
        }
        let target = match cx.memory.target(reth.rkey) {
            None => cx.memory.new_target(reth.rkey),
            known => known,
        };
        let room = match Target::room(target, reth.rkey, self.pd.id(), reth.va, len, Access::REMOTE_WRITE) {
            Ok(room) => room,
            Err(error) => {
                let violation = refusal(&mut cx.counters, (head, len), Access::REMOTE_WRITE, error);
                return self.on_refused(cx, (now, seq), source, head, (len, violation));
            }
        };
        let result = self.responder.arrive::<true>(seq, || Arrived::plain(head, len), &mut cx.deliveries);
        let demands = head.demands_sack() | source.meta.is_marked();
        if self.responder.count_bytes(len as u32, nominal(head, len), demands) {
            self.paths.acks_follow(source.port);
            self.responder.queue_sack(trigger(cx.cfg.entropy, source.meta, head));
        }
        self.counters.rx_packets += 1;
        cx.counters.rx_placed_bytes += len as u64;
        self.counters.rx_bytes += len as u64;
        // Last, because values needed after a long copy would have to be stored. No completion is reported before the
        // bytes are placed.
        payload.fill(room);
        if result.is_err() || !cx.deliveries.is_empty() || !self.reverse.is_inbound() {
            return self.after_arrival(cx, now, result);
        }
        Wakes::CONTROL.when(!self.in_control_list && self.responder.has_pending_acks())
    }

    /// A new packet inside the window, of `len` bytes, whose payload must not be placed.
    #[cold]
    pub(super) fn on_refused<M: Meta>(
        &mut self,
        cx: &mut Cx,
        (now, seq): (Time, u64),
        source: Origin<M>,
        head: DataView<'_>,
        (len, violation): (usize, Violation),
    ) -> Wakes {
        let arrived = Arrived::new(head, len);
        let result = self.responder.arrive_refused(seq, arrived, violation, &mut cx.deliveries);
        self.count_arrival(cx, source, head, len);
        self.after_arrival(cx, now, result)
    }

    /// Counts a new packet that was placed.
    #[inline]
    pub(super) fn count_placed<M: Meta>(
        &mut self,
        cx: &mut Cx,
        source: Origin<M>,
        head: DataView<'_>,
        len: usize,
    ) {
        self.count_arrival(cx, source, head, len);
        self.counters.rx_packets += 1;
        cx.counters.rx_placed_bytes += len as u64;
        self.counters.rx_bytes += len as u64;
    }

    /// Counts a new packet for its SACK.
    fn count_arrival<M: Meta>(&mut self, cx: &Cx, source: Origin<M>, head: DataView<'_>, len: usize) {
        let demands = head.demands_sack() | source.meta.is_marked();
        if self.responder.count_bytes(len as u32, nominal(head, len), demands) {
            self.paths.acks_follow(source.port);
            self.responder.queue_sack(trigger(cx.cfg.entropy, source.meta, head));
        }
    }

    /// A packet whose length does not fit its message, or a message without bytes. For the latter, neither key nor
    /// address are checked (IBTA volume 1, section 9.4.3).
    #[cold]
    fn on_odd_length<M: Meta>(
        &mut self,
        cx: &mut Cx,
        (now, seq): (Time, u64),
        source: Origin<M>,
        head: DataView<'_>,
        len: usize,
    ) -> Wakes {
        let arrived = Arrived::new(head, len);
        let opcode = head.opcode();
        let may_be_empty = self.extensions.contains(Extensions::EMPTY_MESSAGES) || !opcode.is_write();
        if may_be_empty && (arrived.is_empty() || arrived.is_request()) {
            if opcode.takes_receive() || !opcode.is_write() {
                return self.on_other(cx, (now, seq), source, head, &[][..]);
            }
            let result = self.responder.arrive::<false>(seq, || arrived, &mut cx.deliveries);
            self.count_arrival(cx, source, head, len);
            self.counters.rx_packets += 1;
            return self.after_arrival(cx, now, result);
        }
        cx.counters.rx_bad_length += 1;
        let violation = self.bad_length(head, len);
        self.on_refused(cx, (now, seq), source, head, (len, violation))
    }

    #[cold]
    pub(super) fn bad_length(&self, head: DataView<'_>, len: usize) -> Violation {
        Violation::PayloadLength {
            opcode: head.opcode(),
            len: len as u32,
            message_len: head.reth().dma_len,
            path_mtu: self.path_mtu,
        }
    }

    /// Reports the effects of a new packet.
    #[cold]
    pub(super) fn after_arrival(&mut self, cx: &mut Cx, now: Time, result: Result<(), Violated>) -> Wakes {
        let before = Wakes::DATA.when(!cx.deliveries.is_empty());
        let delivered = self.deliver(cx, now);
        let wakes = if result.and(delivered).is_err() { self.on_violation(cx) } else { before };
        wakes | self.after_data(now)
    }

    /// A data packet that is not placed.
    #[cold]
    fn on_unplaced<M: Meta>(
        &mut self,
        cx: &mut Cx,
        now: Time,
        class: Class,
        source: Origin<M>,
        head: DataView<'_>,
    ) -> Wakes {
        self.paths.acks_follow(source.port);
        let trigger = trigger(cx.cfg.entropy, source.meta, head);
        let duplicate = Trigger { repeated: true, ..trigger };
        match class {
            Class::New(_) => cx.counters.rx_implausible_msn += 1,
            Class::Duplicate => {
                cx.counters.rx_duplicates += 1;
                self.responder.ack_duplicate(duplicate, false);
            }
            Class::Old => {
                cx.counters.rx_old += 1;
                self.responder.ack_duplicate(duplicate, true);
            }
            Class::OutOfWindow => {
                cx.counters.rx_out_of_window += 1;
                if cx.cfg.oor_nack {
                    self.queue_nack(&mut cx.counters, NackReason::PsnOutOfWindow, trigger);
                }
            }
        }
        if head.rtx() && matches!(class, Class::Duplicate | Class::Old) {
            self.suspect_reverse_paths(cx, now, (duplicate, class == Class::Old));
        }
        self.after_data(now)
    }

    /// A data packet for a queue pair that accepts none.
    #[cold]
    fn on_data_in_wrong_state(&mut self, cx: &mut Cx) -> Wakes {
        cx.counters.rx_wrong_state += 1;
        // A peer that has not received our NAK continues to retransmit: send it again.
        self.responder.queue_nak();
        Wakes::CONTROL.when(self.responder.has_pending_acks())
    }

    fn queue_nack(&mut self, counters: &mut Counters, reason: NackReason, trigger: Trigger) {
        let nack = NackOut {
            reason: reason.into(),
            info: 0,
            psn: trigger.psn,
            ev: trigger.ev,
            timestamp: trigger.timestamp,
        };
        if !self.responder.queue_nack(nack) {
            counters.tx_nacks_dropped += 1;
        }
    }

    #[cold]
    fn on_violation(&mut self, cx: &mut Cx) -> Wakes {
        match self.responder.culprit().map(|culprit| culprit.violation.code()) {
            Some(NakCode::InvalidRequest) => cx.counters.rx_invalid_request += 1,
            Some(NakCode::RemoteOperational) => cx.counters.rx_no_receive += 1,
            Some(NakCode::RemoteAccess | NakCode::PsnSequence) | None => {}
        }
        self.responder.queue_final_ack_and_nak();
        self.fail(cx, FailReason::PeerViolation, None)
    }

    #[inline]
    fn after_data(&mut self, now: Time) -> Wakes {
        let control = Wakes::CONTROL.when(self.responder.has_pending_acks());
        if self.reverse.is_inbound() { control } else { control | self.expect_data(now) }
    }

    /// A packet that a switch trimmed: only BTH, METH and TSETH are read, no CRC can be checked and nothing is placed.
    /// A NACK is sent, so a forged one causes at most a retransmission.
    #[cold]
    pub(crate) fn on_trimmed<M: Meta>(
        &mut self,
        cx: &mut Cx,
        source: Origin<M>,
        head: &TrimmedHead,
        kind: TrimKind,
    ) -> Wakes {
        let psn = head.bth.psn;
        if !self.receives() || !cx.cfg.trimming || !matches!(self.responder.classify(psn), Class::New(_)) {
            cx.counters.rx_trimmed_useless += 1;
            return Wakes::NONE;
        }
        let reason = match kind {
            TrimKind::Fabric => NackReason::Trimmed,
            TrimKind::LastHop => NackReason::TrimmedLastHop,
        };
        let timestamp = head.tseth.map_or(0, |tseth| tseth.timestamp);
        let trigger = trigger_of(cx.cfg.entropy, source.meta, psn, timestamp, head.bth.rtx);
        self.queue_nack(&mut cx.counters, reason, trigger);
        Wakes::CONTROL
    }

    /// Whether a packet that reflects these connection identifiers is of this connection. Source and destination are the
    /// peer's view.
    fn is_connection(&self, spdcid: u16, dpdcid: u16) -> bool {
        (spdcid, dpdcid) == (self.dest_qpn.low16(), self.qpn.low16())
    }

    /// Whether an acknowledgement is for this queue pair: it sends, and the reflected connection identifiers are its own.
    fn takes_acknowledgement(&self, cx: &mut Cx, ids: Option<(u16, u16)>) -> bool {
        if self.state != QpState::Rts {
            cx.counters.rx_wrong_state += 1;
            return false;
        }
        let fits = ids.is_none_or(|(spdcid, dpdcid)| self.is_connection(spdcid, dpdcid));
        if !fits {
            cx.counters.rx_wrong_connection += 1;
        }
        fits
    }

    pub(crate) fn on_sack(&mut self, cx: &mut Cx, now: Time, sack: &Seth) -> Wakes {
        if !self.takes_acknowledgement(cx, Some((sack.spdcid, sack.dpdcid))) {
            return Wakes::NONE;
        }
        if sack.pr && self.paths.on_probe_answer(sack.probe_id(), Requester::mark_of(sack), now).is_none() {
            cx.counters.rx_unmatched_response += 1;
        }
        let (requester, mut env) = self.send_context(&mut cx.cwnds, &mut cx.counters);
        requester.on_sack(now, sack, &mut env);
        self.on_peer_response(cx, now) | Wakes::ARM
    }

    pub(crate) fn on_ack(&mut self, cx: &mut Cx, now: Time, psn: Psn, aeth: &Aeth) -> Wakes {
        if !self.takes_acknowledgement(cx, None) {
            return Wakes::NONE;
        }
        match aeth.kind() {
            AethKind::Ack => {
                let (requester, mut env) = self.send_context(&mut cx.cwnds, &mut cx.counters);
                requester.on_transport_ack(now, psn, &mut env);
                self.complete_sends(cx);
                self.on_peer_response(cx, now) | Wakes::ARM
            }
            AethKind::Nak(code) => self.on_nak(cx, psn, aeth.msn, code),
            AethKind::Other(_) => {
                cx.counters.rx_malformed += 1;
                Wakes::NONE
            }
        }
    }

    /// A transport NAK. The first request to end with an error is the one at fault, even if the ACK for those before
    /// it was lost or comes later.
    fn on_nak(&mut self, cx: &mut Cx, psn: Psn, msn: u32, code: NakCode) -> Wakes {
        let status = match code {
            NakCode::InvalidRequest => WcStatus::RemoteInvalidRequest,
            NakCode::RemoteAccess => WcStatus::RemoteAccessError,
            NakCode::RemoteOperational => WcStatus::RemoteOperationError,
            // RoCE's go-back-N request. MRC's SACK and NACK replace it, so no peer sends it.
            NakCode::PsnSequence => {
                cx.counters.rx_malformed += 1;
                return Wakes::NONE;
            }
        };
        let Some(target) = self.requester.on_nak(psn, msn) else {
            cx.counters.rx_forged_ack += 1;
            return Wakes::NONE;
        };
        self.complete_sends(cx);
        self.fail(cx, FailReason::PeerRefused, Some((Some(target), status)))
    }

    pub(crate) fn on_nack(&mut self, cx: &mut Cx, now: Time, nack: &Neth) -> Wakes {
        if !self.takes_acknowledgement(cx, Some((nack.spdcid, nack.dpdcid))) {
            return Wakes::NONE;
        }
        let (requester, mut env) = self.send_context(&mut cx.cwnds, &mut cx.counters);
        match requester.on_nack(now, nack, &mut env) {
            AckOutcome::Used | AckOutcome::Forged => {}
            AckOutcome::Fatal => {
                return self.fail(cx, FailReason::PeerFatal, Some((None, WcStatus::FatalError)))
                    | Wakes::CWND;
            }
            AckOutcome::NeverReady { first } => {
                let culprit = Some((Some(first), WcStatus::RnrRetryExceeded));
                return self.fail(cx, FailReason::RnrRetryExceeded, culprit) | Wakes::CWND;
            }
        }
        self.on_peer_response(cx, now) | Wakes::ARM
    }

    /// A reliability probe: triggers a SACK with its id (MRC 1.0 section 7.4.6).
    pub(crate) fn on_probe(
        &mut self,
        cx: &mut Cx,
        now: Time,
        source: &Source<'_>,
        bth: &Bth,
        probe: &Peth,
    ) -> Wakes {
        if !self.receives() {
            cx.counters.rx_wrong_state += 1;
            return Wakes::NONE;
        }
        if !self.is_connection(probe.spdcid, probe.dpdcid) {
            cx.counters.rx_wrong_connection += 1;
            return Wakes::NONE;
        }
        if !cx.peers.requests.may_answer_probe(now) {
            cx.counters.rx_rate_limited += 1;
            return Wakes::NONE;
        }
        let cack = self.responder.cack();
        let trigger = trigger_of(cx.cfg.entropy, source, cack, probe.tx_timestamp, bth.rtx);
        self.responder.ack_duplicate(Trigger { probe_id: Some(probe.probe_id), ..trigger }, false);
        Wakes::CONTROL
    }
}

/// The size in bytes that congestion control counts for a write packet.
#[inline]
pub(super) fn nominal(head: DataView<'_>, len: usize) -> u32 {
    (head.header_len() + ICRC_LEN + len) as u32 + Requester::NOMINAL_OVERHEAD
}

/// The fields of a data packet that its SACK reflects.
#[inline(never)]
pub(super) fn trigger(entropy: EntropyMode, meta: impl Meta, head: DataView<'_>) -> Trigger {
    trigger_of(entropy, meta, head.psn(), head.timestamp(), head.rtx())
}

fn trigger_of(entropy: EntropyMode, meta: impl Meta, psn: Psn, timestamp: u16, repeated: bool) -> Trigger {
    Trigger {
        psn,
        ev: entropy.extract(meta.src_port(), meta.flow_label()),
        timestamp,
        marked: meta.is_marked(),
        repeated,
        probe_id: None,
    }
}

/// Counts a refused access to `len` bytes.
#[cold]
pub(super) fn refusal(
    counters: &mut Counters,
    (head, len): (DataView<'_>, usize),
    needed: Access,
    error: MemoryError,
) -> Violation {
    count_refusal(counters, error);
    let reth = head.reth();
    Violation::Access { rkey: reth.rkey, va: reth.va, len: len as u32, needed, error }
}

#[cold]
pub(super) fn count_refusal(counters: &mut Counters, error: MemoryError) {
    match error {
        MemoryError::WrongPd { .. } => counters.rx_wrong_pd += 1,
        MemoryError::NoAccess { .. } => counters.rx_no_access += 1,
        MemoryError::Misaligned { .. } | MemoryError::Region(RegionError::Misaligned { .. }) => {
            counters.rx_misaligned += 1;
        }
        MemoryError::Region(_) => counters.rx_out_of_bounds += 1,
        _ => counters.rx_bad_rkey += 1,
    }
}
