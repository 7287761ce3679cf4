//! Packets of messages other than plain writes: those that take receive work requests, reads and atomic operations, and
//! responses to them.

use core::hint::cold_path;

use crate::memory::{Access, AtomicOp, MemoryError, MemoryView, PayloadRef, Target};
use crate::peer::{Meta, Origin};
use crate::requester::{OpenFetch, Source as ReplyFrom};
use crate::responder::{
    Arrived, Buffer, Delivery, NackOut, Receive, Received, Request, Trigger, Violated, Violation,
};
use crate::time::Time;
use crate::wire::{AtomicOperands, DataView, Msn, NackReason, Opcode, Operation};
use crate::work::{Wc, WcOpcode, WcStatus};

use super::receive::{Data, count_refusal, nominal, refusal, trigger};
use super::{Cx, Event, Extensions, Qp, QpState, Wakes};

impl Qp {
    /// A packet of a SEND, whose buffer is most often one range.
    #[inline(never)]
    pub(super) fn on_send<'a, M: Meta>(
        &mut self,
        cx: &mut Cx,
        (now, seq): (Time, u64),
        source: Origin<M>,
        head: DataView<'_>,
        payload: impl Data<'a>,
    ) -> Wakes {
        let len = payload.len();
        let memory = &cx.memory;
        let Some(room) = self.range_for(seq, head, len).and_then(|range| memory.room_of(&range)) else {
            return self.on_taker(cx, (now, seq), source, head, payload);
        };
        let result = self.responder.arrive::<false>(seq, || Arrived::new(head, len), &mut cx.deliveries);
        let demands = head.demands_sack() | source.meta.is_marked();
        if self.responder.count_bytes(len as u32, nominal(head, len), demands) {
            self.paths.acks_follow(source.port);
            self.responder.queue_sack(trigger(cx.cfg.entropy, source.meta, head));
        }
        self.counters.rx_packets += 1;
        cx.counters.rx_placed_bytes += len as u64;
        self.counters.rx_bytes += len as u64;
        // Last, as in `on_data`.
        payload.fill(room);
        if result.is_err() || !cx.deliveries.is_empty() || !self.reverse.is_inbound() {
            return self.after_arrival(cx, now, result);
        }
        Wakes::CONTROL.when(!self.in_control_list && self.responder.has_pending_acks())
    }

    /// Where the `len` bytes of this packet of a SEND go, if all is well and its buffer is one range.
    #[inline]
    fn range_for(&self, seq: u64, head: DataView<'_>, len: usize) -> Option<PayloadRef> {
        let ahead = self.responder.takers_before(seq, head.meth().rqmsn)?;
        let Buffer::One(buffer) = &self.responder.receive(ahead)?.buffer else { return None };
        let reth = head.reth();
        let left = u64::from(reth.dma_len).checked_sub(reth.va)?;
        let fits = reth.dma_len <= buffer.len && len as u64 <= left && !head.opcode().invalidates();
        fits.then(|| buffer.part(reth.va, len as u32))
    }

    /// A packet that is not a plain part of a write.
    #[inline(never)]
    pub(super) fn on_other<'a, M: Meta>(
        &mut self,
        cx: &mut Cx,
        (now, seq): (Time, u64),
        source: Origin<M>,
        head: DataView<'_>,
        payload: impl Data<'a>,
    ) -> Wakes {
        let opcode = head.opcode();
        if opcode.takes_receive() {
            return self.on_taker(cx, (now, seq), source, head, payload);
        }
        match opcode.operation() {
            Some(Operation::ReadRequest | Operation::AtomicRequest) => {
                self.on_request(cx, (now, seq), source, head, payload.len())
            }
            _ => self.on_response(cx, (now, seq), source, head, payload),
        }
    }

    /// A packet of a message that takes a receive work request: part of a SEND, or the end of a write with immediate.
    #[inline(never)]
    fn on_taker<'a, M: Meta>(
        &mut self,
        cx: &mut Cx,
        (now, seq): (Time, u64),
        source: Origin<M>,
        head: DataView<'_>,
        payload: impl Data<'a>,
    ) -> Wakes {
        let (len, reth, opcode) = (payload.len(), head.reth(), head.opcode());
        let ahead = self.receive_for(cx, seq, head.meth().rqmsn);
        let receive = ahead.and_then(|ahead| self.responder.receive(ahead));
        if ahead.is_some() && receive.is_none() && self.extensions.contains(Extensions::RNR) {
            return self.on_not_ready(cx, seq, source, head);
        }
        if opcode.invalidates()
            && let Err(error) = cx.memory.may_invalidate(head.last_word(), self.pd.id())
        {
            count_refusal(&mut cx.counters, error);
            let violation = Violation::Invalidation { rkey: head.last_word(), error };
            return self.on_refused(cx, (now, seq), source, head, (len, violation));
        }
        let destination = match (receive, ahead) {
            _ if opcode.is_write() => Ok(Destination::Address),
            (Some(receive), Some(ahead)) => place_in(&receive.buffer, ahead, head, len),
            (None, Some(_)) => Err(Violation::NoReceive),
            (_, None) => Err(out_of_order(head)),
        };
        let room = match destination {
            Ok(_) if len == 0 => Ok(None),
            Ok(Destination::Address) => {
                let target = match cx.memory.target(reth.rkey) {
                    None => cx.memory.new_target(reth.rkey),
                    known => known,
                };
                match Target::room(target, reth.rkey, self.pd.id(), reth.va, len, Access::REMOTE_WRITE) {
                    Ok(room) => Ok(Some(room)),
                    Err(error) => Err(refusal(&mut cx.counters, (head, len), Access::REMOTE_WRITE, error)),
                }
            }
            Ok(Destination::Range(range)) => Ok(cx.memory.room(&range, 0, range.len)),
            Ok(Destination::Several(ahead)) => {
                self.scatter(cx, ahead, reth.va, payload);
                Ok(None)
            }
            Err(violation) => Err(violation),
        };
        let room = match room {
            Ok(room) => room,
            Err(violation) => return self.on_refused(cx, (now, seq), source, head, (len, violation)),
        };
        let result = self.responder.arrive::<false>(seq, || Arrived::new(head, len), &mut cx.deliveries);
        // No completion is reported before the bytes are placed.
        if let Some(room) = room {
            payload.fill(room);
        }
        self.count_placed(cx, source, head, len);
        if result.is_err() || !cx.deliveries.is_empty() || !self.reverse.is_inbound() {
            return self.after_arrival(cx, now, result);
        }
        Wakes::CONTROL.when(!self.in_control_list && self.responder.has_pending_acks())
    }

    /// Copies the payload of a SEND to the ranges of a receive buffer.
    #[cold]
    fn scatter<'a>(&self, cx: &Cx, ahead: u16, offset: u64, payload: impl Data<'a>) {
        let Some(receive) = self.responder.receive(ahead) else { return };
        scatter(&cx.memory, receive.buffer.parts(offset, payload.len() as u32), payload);
    }

    /// A read or an atomic operation of the peer. It is carried out in its turn. Key, rights and bounds are checked now,
    /// as for a write, so that messages after a refused one are not carried out.
    #[inline]
    fn on_request<M: Meta>(
        &mut self,
        cx: &mut Cx,
        (now, seq): (Time, u64),
        source: Origin<M>,
        head: DataView<'_>,
        len: usize,
    ) -> Wakes {
        if self.state != QpState::Rts {
            // It could not respond. The peer sends the request again.
            cx.counters.rx_wrong_state += 1;
            return Wakes::NONE;
        }
        let (reth, opcode, pd) = (head.reth(), head.opcode(), self.pd.id());
        let is_read = opcode == Opcode::ReadRequest;
        let needed = if is_read { Access::REMOTE_READ } else { Access::REMOTE_ATOMIC };
        if !Arrived::new(head, len).is_request() {
            cx.counters.rx_bad_length += 1;
            let violation = self.bad_length(head, len);
            return self.on_refused(cx, (now, seq), source, head, (len, violation));
        }
        if cx.memory.target(reth.rkey).is_none() {
            cx.memory.sync();
        }
        let checked = match reth.dma_len {
            0 => Ok(()),
            _ if !is_read && !reth.va.is_multiple_of(8) => Err(MemoryError::Misaligned { va: reth.va }),
            len => cx.memory.check_remote(reth.rkey, pd, reth.va, len.into(), needed),
        };
        if let Err(error) = checked {
            let violation = refusal(&mut cx.counters, (head, reth.dma_len as usize), needed, error);
            return self.on_refused(cx, (now, seq), source, head, (0, violation));
        }
        if !is_read {
            self.responder.keep_operands(seq, head.operands());
        }
        let result = self.responder.arrive::<false>(seq, || Arrived::new(head, 0), &mut cx.deliveries);
        self.count_placed(cx, source, head, 0);
        self.after_arrival(cx, now, result)
    }

    /// A packet of the response to a read or an atomic operation of this side. Its bytes go where that request says.
    #[inline]
    fn on_response<'a, M: Meta>(
        &mut self,
        cx: &mut Cx,
        (now, seq): (Time, u64),
        source: Origin<M>,
        head: DataView<'_>,
        payload: impl Data<'a>,
    ) -> Wakes {
        let (len, reth, opcode, rqmsn) = (payload.len(), head.reth(), head.opcode(), head.meth().rqmsn);
        let is_atomic = opcode == Opcode::AtomicResponse;
        let end = reth.va.checked_add(len as u64);
        let fits = end.is_some_and(|end| end <= reth.dma_len.into());
        let fetch = self
            .requester
            .fetch(rqmsn)
            .filter(|fetch| fits && fetch.len == reth.dma_len && fetch.is_atomic == is_atomic)
            .copied();
        let Some(fetch) = fetch else {
            let violation = Violation::NoSuchFetch { opcode, rqmsn, message_len: reth.dma_len };
            return self.on_refused(cx, (now, seq), source, head, (len, violation));
        };
        let result = self.responder.arrive::<false>(seq, || Arrived::new(head, len), &mut cx.deliveries);
        if is_atomic {
            self.place_value(cx, &fetch, payload);
        } else if let Some(place) = fetch.place {
            if let Some(room) = cx.memory.room(&place, reth.va as u32, len as u32) {
                payload.fill(room);
            }
        } else {
            scatter(&cx.memory, self.requester.fetch_parts(&fetch, reth.va, len as u32), payload);
        }
        self.count_placed(cx, source, head, len);
        self.requester.peer_responds(now);
        if result.is_err() || !cx.deliveries.is_empty() || !self.reverse.is_inbound() {
            return self.after_arrival(cx, now, result) | Wakes::ARM;
        }
        Wakes::CONTROL.when(!self.in_control_list && self.responder.has_pending_acks()) | Wakes::ARM
    }

    /// Stores the value that an atomic operation found, in the byte order of this host.
    #[cold]
    fn place_value<'a>(&self, cx: &Cx, fetch: &OpenFetch, payload: impl Data<'a>) {
        let mut bytes = [0; 8];
        payload.read(&mut bytes);
        let value = u64::from_be_bytes(bytes).to_ne_bytes();
        match fetch.place {
            Some(place) => cx.memory.room(&place, 0, 8).map_or((), |room| room.fill(&value)),
            None => scatter(&cx.memory, self.requester.fetch_parts(fetch, 0, 8), &value[..]),
        }
    }

    /// Carries out a read or an atomic operation of the peer: queues the response.
    fn carry_out(&mut self, cx: &mut Cx, now: Time, request: &Request) -> Result<(), Violated> {
        let Request { opcode, number, va, rkey, len, operands, .. } = *request;
        let pd = self.pd.id();
        let (needed, source) = match opcode {
            Opcode::ReadRequest if len == 0 => {
                (Access::REMOTE_READ, Ok(ReplyFrom::Region(PayloadRef::EMPTY)))
            }
            Opcode::ReadRequest => {
                let pinned = cx.memory.pin_remote(rkey, pd, va, len, Access::REMOTE_READ);
                (Access::REMOTE_READ, pinned.map(ReplyFrom::Region))
            }
            _ => {
                let AtomicOperands { swap_or_add, compare } = operands;
                let op = match opcode {
                    Opcode::FetchAdd => AtomicOp::FetchAdd(swap_or_add),
                    _ => AtomicOp::CompareSwap { compare, swap: swap_or_add },
                };
                (Access::REMOTE_ATOMIC, cx.memory.atomic(rkey, pd, va, op).map(ReplyFrom::Value))
            }
        };
        // It was permitted when it arrived, so the registration has ended since.
        let source = source.map_err(|error| {
            count_refusal(&mut cx.counters, error);
            self.responder.refuse(request, Violation::Access { rkey, va, len, needed, error })
        })?;
        let executed = if needed == Access::REMOTE_READ {
            &mut cx.counters.rx_reads
        } else {
            &mut cx.counters.rx_atomics
        };
        *executed += 1;
        self.requester.make_room(&mut cx.spare_queues);
        let most = self.max_dest_rd_atomic;
        let (requester, mut env) = self.send_context(&mut cx.cwnds, &mut cx.counters);
        if !requester.push_response(now, number, (source, len), most, &mut env) {
            if let ReplyFrom::Region(pinned) = source {
                cx.memory.unpin(pinned.slot);
            }
            return Err(self.responder.refuse(request, Violation::TooManyFetches { max: most }));
        }
        self.complete_sends(cx);
        Ok(())
    }

    /// The place of the message with this number among those that take a receive work request, counted from the next
    /// one that is to complete. Nothing if it cannot be in flight: it is refused in its turn.
    ///
    /// The requests up to its own are taken from a shared receive queue, so that the messages before it have theirs.
    #[inline]
    fn receive_for(&mut self, cx: &mut Cx, seq: u64, rqmsn: Msn) -> Option<u16> {
        let ahead = self.responder.takers_before(seq, rqmsn)?;
        if self.responder.receive(ahead).is_none()
            && self.responder.receives().srq().is_some()
            && !self.extensions.is_empty()
        {
            self.take_shared_receives(cx, ahead);
        }
        Some(ahead)
    }

    #[cold]
    fn take_shared_receives(&mut self, cx: &mut Cx, ahead: u16) {
        while self.responder.receive(ahead).is_none() {
            let Some((posted, low)) = self.responder.take_shared() else { break };
            cx.events.extend(low.map(|srq| Event::SrqLimitReached { srq }));
            let buffer = self
                .pin_buffer(&mut cx.memory, &posted)
                .unwrap_or_else(|error| Buffer::Unusable(Box::new(error)));
            self.responder.push_recv(Receive { wr_id: posted.wr.wr_id, buffer });
        }
    }

    /// A message found no receive work request: the peer sends it again later.
    #[cold]
    fn on_not_ready<M: Meta>(
        &mut self,
        cx: &mut Cx,
        seq: u64,
        source: Origin<M>,
        head: DataView<'_>,
    ) -> Wakes {
        cx.counters.rx_not_ready += 1;
        let Trigger { psn, ev, timestamp, .. } = trigger(cx.cfg.entropy, source.meta, head);
        let nack =
            NackOut { reason: NackReason::NoResource.into(), info: self.min_rnr_timer, psn, ev, timestamp };
        if !self.responder.queue_nack(nack) {
            cx.counters.tx_nacks_dropped += 1;
        }
        self.responder.ack_before_refusal(seq, head.rtx());
        Wakes::CONTROL.when(self.responder.has_pending_acks())
    }

    /// Carries out the effects of the messages that are next in order, up to the first that the peer had no right to.
    pub(super) fn deliver(&mut self, cx: &mut Cx, now: Time) -> Result<(), Violated> {
        let mut deliveries = core::mem::take(&mut cx.deliveries);
        let mut result = Ok(());
        for delivery in deliveries.drain(..) {
            match delivery {
                Delivery::Received(received) => self.report_received(cx, &received, result.is_ok()),
                Delivery::Request(_) | Delivery::Response if result.is_err() => {}
                Delivery::Request(request) => result = self.carry_out(cx, now, &request),
                Delivery::Response => {
                    let (requester, mut env) = self.send_context(&mut cx.cwnds, &mut cx.counters);
                    requester.on_response(now, &mut env);
                    self.complete_sends(cx);
                }
            }
        }
        cx.deliveries = deliveries;
        result
    }

    /// Completes the receive of a message, or flushes it if the peer broke a rule before.
    #[inline]
    fn report_received(&mut self, cx: &mut Cx, done: &Received, in_order: bool) {
        let Received { receive: Receive { wr_id, buffer }, opcode, imm, byte_len, low } = done;
        buffer.unpin(|pinned| cx.memory.unpin(pinned));
        cx.events.extend(low.map(|srq| Event::SrqLimitReached { srq }));
        if !in_order {
            cx.events.push_back(self.recv_failed(*wr_id, WcStatus::WrFlushError));
            return;
        }
        let mut invalidated = None;
        if opcode.invalidates() {
            invalidated = Some(*imm);
            // It was permitted when the packet arrived. If the registration has ended since, that is what the peer wants.
            let _ = cx.memory.invalidate_remote(*imm, self.pd.id());
        }
        let wc = Wc {
            wr_id: *wr_id,
            status: WcStatus::Success,
            opcode: if opcode.is_write() { WcOpcode::RecvRdmaWithImm } else { WcOpcode::Recv },
            byte_len: *byte_len,
            imm: opcode.has_imm().then_some(*imm),
            qpn: self.qpn,
            src_qpn: self.dest_qpn,
            invalidated,
        };
        cx.events.push_back(Event::Completion { cq: self.recv_cq, wc });
    }
}

/// Copies a payload to several ranges.
#[cold]
fn scatter<'a>(memory: &MemoryView, ranges: impl Iterator<Item = PayloadRef>, payload: impl Data<'a>) {
    let mut from = 0;
    for range in ranges {
        if let Some(room) = memory.room(&range, 0, range.len) {
            payload.fill_part(from, room);
        }
        from += range.len as usize;
    }
}

/// Where the payload of a message goes that takes a receive work request.
enum Destination {
    /// To the address that the packet names.
    Address,
    /// Into a receive buffer of one range.
    Range(PayloadRef),
    /// Into the receive buffer of the message so many after the next one, which has several ranges.
    Several(u16),
}

/// Where the packet of a SEND goes that takes this buffer.
#[inline]
fn place_in(buffer: &Buffer, ahead: u16, head: DataView<'_>, len: usize) -> Result<Destination, Violation> {
    let reth = head.reth();
    let message_len = reth.dma_len;
    if u64::from(message_len) > buffer.len() {
        cold_path();
        return Err(match buffer {
            Buffer::Unusable(error) => Violation::ReceiveBuffer { error: **error },
            _ => Violation::ReceiveTooShort { message_len, buffer_len: buffer.len() },
        });
    }
    if reth.va.checked_add(len as u64).is_none_or(|end| end > message_len.into()) {
        return Err(out_of_order(head));
    }
    Ok(match buffer {
        Buffer::One(range) => Destination::Range(range.part(reth.va, len as u32)),
        Buffer::Several(_) | Buffer::Unusable(_) => Destination::Several(ahead),
    })
}

/// The violation by a packet of a SEND that cannot follow any packet before it.
#[cold]
fn out_of_order(head: DataView<'_>) -> Violation {
    let reth = head.reth();
    Violation::Order { opcode: head.opcode(), rkey: reth.rkey, va: reth.va, message_len: reth.dma_len }
}
