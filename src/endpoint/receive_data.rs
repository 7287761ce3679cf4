//! Data packets: which are placed, and what follows from each.

use core::hint::cold_path;

use crate::counters::Counters;
use crate::memory::{Access, MemoryError, Target};
use crate::requester::Requester;
use crate::responder::{Arrived, Class, NackOut, Trigger, Violated, Violation};
use crate::time::Time;
use crate::wire::{Bth, EntropyMode, ICRC_LEN, NackReason, NakCode, Psn, TrimKind, TrimmedHead, WriteView};
use crate::work::{Wc, WcOpcode, WcStatus};

use super::Endpoint;
use super::event::{Event, FailReason};
use super::origin::{Meta, Origin};
use super::receive::{Data, count};

impl Endpoint {
    #[inline]
    pub(super) fn on_write<'a, M: Meta>(
        &mut self,
        now: Time,
        source: Origin<M>,
        head: WriteView<'_>,
        payload: impl Data<'a>,
    ) {
        self.counters.rx_data += 1;
        let Some(slot) = self.connected_inline(head.dest_qpn(), source) else { return };
        let Some(qp) = self.qps[slot as usize].as_deref_mut() else {
            cold_path();
            return;
        };
        if !qp.receives() {
            self.refuse(slot);
            return;
        }
        if source.meta.is_marked() {
            count(&mut self.counters.rx_ecn_marked);
        }
        let class = qp.responder.classify(head.psn());
        let Class::New(seq) = class else {
            self.turn_away((now, slot), class, source, head);
            return self.after_data(now, slot);
        };
        if !qp.responder.plausible(seq, head.meth().msn) {
            self.turn_away((now, slot), class, source, head);
            return self.after_data(now, slot);
        }
        let (len, reth) = (payload.len(), head.reth());
        if !Arrived::new(head, len).well_formed(qp.path_mtu) {
            count(&mut self.counters.rx_bad_length);
            return self.accept_refused((now, slot, seq), source, head, len, None);
        }
        let target = match self.memory.target(reth.rkey) {
            None => self.memory.new_target(reth.rkey),
            known => known,
        };
        let room = match Target::room(target, reth.rkey, qp.pd.id(), reth.va, len) {
            Ok(room) => room,
            Err(error) => {
                count_refusal(&mut self.counters, error);
                return self.accept_refused((now, slot, seq), source, head, len, Some(error));
            }
        };
        let result = qp.responder.arrive(seq, || Arrived::new(head, len), &mut self.immediates);
        let demands = head.demands_sack() | source.meta.is_marked();
        if qp.responder.count_bytes(len as u32, nominal(head, len), demands) {
            qp.responder.owe_sack(trigger(self.cfg.entropy, source.meta, head));
        }
        qp.counters.rx_packets += 1;
        self.counters.rx_placed_bytes += len as u64;
        qp.counters.rx_bytes += len as u64;
        // Last, because what is to be remembered across a long copy has to be put away. Nobody is told before that the
        // bytes are there.
        payload.fill(room);
        let news = !qp.in_control_list && qp.responder.owes();
        if result.is_err() || !self.immediates.is_empty() || !qp.inbound {
            self.after_arrival(now, slot, result);
        } else if news {
            self.wake_control(slot);
        }
    }

    /// A packet inside the window that was not seen before, whose payload cannot be placed: `error` says why, or its length does not
    /// suit it.
    #[cold]
    fn accept_refused<M: Meta>(
        &mut self,
        (now, slot, seq): (Time, u32, u64),
        source: Origin<M>,
        head: WriteView<'_>,
        len: usize,
        error: Option<MemoryError>,
    ) {
        let Some(qp) = self.qps[slot as usize].as_deref_mut() else { return };
        let (reth, len_32) = (head.reth(), len as u32);
        let violation = match error {
            Some(error) => Violation::Access {
                rkey: reth.rkey,
                va: reth.va,
                len: len_32,
                needed: Access::REMOTE_WRITE,
                error,
            },
            None => Violation::PayloadLength {
                opcode: head.opcode(),
                len: len_32,
                message_len: reth.dma_len,
                path_mtu: qp.path_mtu,
            },
        };
        let arrived = Arrived::new(head, len);
        let result = qp.responder.arrive_refused(seq, arrived, violation, &mut self.immediates);
        let demands = head.demands_sack() | source.meta.is_marked();
        if qp.responder.count_bytes(len as u32, nominal(head, len), demands) {
            qp.responder.owe_sack(trigger(self.cfg.entropy, source.meta, head));
        }
        self.after_arrival(now, slot, result);
    }

    /// Tells whoever wants to know what a packet that was not seen before has led to.
    #[cold]
    fn after_arrival(&mut self, now: Time, slot: u32, result: Result<(), Violated>) {
        self.report_immediates(slot);
        if result.is_err() {
            self.on_violation(slot);
        }
        self.after_data(now, slot);
    }

    /// A data packet that is not placed.
    #[cold]
    fn turn_away<M: Meta>(
        &mut self,
        (now, slot): (Time, u32),
        class: Class,
        source: Origin<M>,
        head: WriteView<'_>,
    ) {
        let Some(qp) = self.qps[slot as usize].as_deref_mut() else { return };
        let trigger = trigger(self.cfg.entropy, source.meta, head);
        let again = Trigger { repeated: true, ..trigger };
        match class {
            Class::New(_) => self.counters.rx_implausible_msn += 1,
            Class::Duplicate => {
                self.counters.rx_duplicates += 1;
                qp.responder.answer_repeat(again, false);
            }
            Class::Old => {
                self.counters.rx_old += 1;
                qp.responder.answer_repeat(again, true);
            }
            Class::OutOfWindow => {
                self.counters.rx_out_of_window += 1;
                if self.cfg.oor_nack {
                    self.owe_nack(slot, NackReason::PsnOutOfWindow, trigger);
                }
            }
        }
        if head.rtx() && matches!(class, Class::Duplicate | Class::Old) {
            self.doubt_reverse_paths(now, slot, (again, class == Class::Old));
        }
    }

    /// A data packet for a queue pair that takes none.
    #[cold]
    fn refuse(&mut self, slot: u32) {
        self.counters.rx_wrong_state += 1;
        let Some(qp) = self.qp_mut(slot) else { return };
        // A peer that has not heard our NAK goes on retransmitting: tell it again.
        qp.responder.owe_nak();
        if qp.responder.owes() {
            self.wake_control(slot);
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

    /// Tells the application of the immediates whose turn has come.
    fn report_immediates(&mut self, slot: u32) {
        let Some(qp) = self.qps[slot as usize].as_deref() else { return };
        for done in self.immediates.drain(..) {
            let wc = Wc {
                wr_id: done.wr.wr_id,
                status: WcStatus::Success,
                opcode: WcOpcode::RecvRdmaWithImm,
                byte_len: done.byte_len,
                imm: Some(done.imm),
                qpn: qp.qpn,
            };
            self.events.push_back(Event::Completion { cq: qp.recv_cq, wc });
            self.events.extend(done.low.map(|srq| Event::SrqLimitReached { srq }));
        }
    }

    #[cold]
    fn on_violation(&mut self, slot: u32) {
        let culprit = self.qp_mut(slot).and_then(|qp| qp.responder.culprit());
        match culprit.map(|culprit| culprit.violation.code()) {
            Some(NakCode::InvalidRequest) => self.counters.rx_invalid_request += 1,
            Some(NakCode::RemoteOperational) => self.counters.rx_no_receive += 1,
            Some(NakCode::RemoteAccess | NakCode::PsnSequence) | None => {}
        }
        if let Some(qp) = self.qp_mut(slot) {
            qp.responder.owe_last_words();
        }
        self.fail_qp(slot, FailReason::PeerViolation, None);
    }

    #[inline]
    fn after_data(&mut self, now: Time, slot: u32) {
        let Some(qp) = self.qps[slot as usize].as_deref_mut() else { return };
        let (owes, first) = (qp.responder.owes(), !qp.inbound);
        if owes {
            self.wake_control(slot);
        }
        if first {
            self.expect_data(now, slot);
        }
    }

    /// Keeps watch over the way back of a queue pair that data has begun to come to.
    #[cold]
    fn expect_data(&mut self, now: Time, slot: u32) {
        let Some(qp) = self.qp_mut(slot) else { return };
        qp.inbound = true;
        let refresh_ns = qp.requester.smoothed_rtt_ns().max(qp.init.path.reverse_refresh_ns);
        qp.reverse_check_at = now.after(refresh_ns);
        self.arm(slot);
    }

    /// A packet that a switch cut: only BTH, METH and TSETH are read, nothing can be checked by CRC
    /// and nothing is placed. It becomes a NACK, so the worst that a forged one does is a
    /// retransmission.
    #[cold]
    pub(super) fn on_trimmed<M: Meta>(&mut self, source: Origin<M>, data: &[u8], kind: TrimKind) {
        self.counters.rx_trimmed += 1;
        if let Err(reason) = Bth::admit(data) {
            self.count_foreign(reason);
            return;
        }
        let Ok(head) = TrimmedHead::decode(data) else {
            self.counters.rx_trimmed_useless += 1;
            return;
        };
        let Some(slot) = self.connected_inline(head.bth.dest_qpn, source) else { return };
        let timestamp = head.tseth.map_or(0, |tseth| tseth.timestamp);
        let trigger = trigger_of(self.cfg.entropy, source.meta, head.bth.psn, timestamp, head.bth.rtx);
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
}

/// What a write packet counts with in congestion control, bytes.
#[inline]
fn nominal(head: WriteView<'_>, len: usize) -> u32 {
    (head.header_len() + ICRC_LEN + len) as u32 + Requester::NOMINAL_OVERHEAD
}

/// What a data packet's SACK says of it.
#[inline(never)]
fn trigger(entropy: EntropyMode, meta: impl Meta, head: WriteView<'_>) -> Trigger {
    trigger_of(entropy, meta, head.psn(), head.timestamp(), head.rtx())
}

pub(super) fn trigger_of(
    entropy: EntropyMode,
    meta: impl Meta,
    psn: Psn,
    timestamp: u16,
    repeated: bool,
) -> Trigger {
    Trigger {
        psn,
        ev: entropy.extract(meta.src_port(), meta.flow_label()),
        timestamp,
        marked: meta.is_marked(),
        repeated,
        probe_id: None,
    }
}

#[cold]
fn count_refusal(counters: &mut Counters, error: MemoryError) {
    match error {
        MemoryError::WrongPd { .. } => counters.rx_wrong_pd += 1,
        MemoryError::NoAccess { .. } => counters.rx_no_access += 1,
        MemoryError::Region(_) => counters.rx_out_of_bounds += 1,
        _ => counters.rx_bad_rkey += 1,
    }
}
