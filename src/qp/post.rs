//! Work requests: posting, completion, and the failure of a queue pair.

use crate::memory::{Access, MemoryError, MemoryView, PayloadRef};
use crate::requester::{Entry, NotDone, Source};
use crate::responder::{Buffer, Receive, Violation};
use crate::time::Time;
use crate::wire::{Psn, Qpn};
use crate::work::{GatherWr, PostedRecv, SendOp, SendWr, Sge, Wc, WcOpcode, WcStatus};

use super::{Cx, Event, Extensions, FailReason, PostError, Qp, QpFailure, QpState, TxClass, Wakes, log};

/// The work request at fault, by its first packet (`None`: the oldest request), and the status that it completes with.
pub(crate) type Culprit = (Option<u64>, WcStatus);

impl Qp {
    /// Posts a request with its own element, or with those of `gather`.
    #[expect(
        clippy::inline_always,
        reason = "the path of every request; measured by benches/instructions.rs"
    )]
    #[inline(always)]
    pub(crate) fn post(
        &mut self,
        cx: &mut Cx,
        now: Time,
        wr: &SendWr,
        gather: Option<&GatherWr<'_>>,
    ) -> Result<Wakes, PostError> {
        match self.state {
            QpState::Rts => {}
            QpState::Error => return Ok(self.reject_send(cx, wr, WcStatus::WrFlushError)),
            state => return Err(PostError::WrongState(state)),
        }
        if self.requester.is_full() {
            return Err(PostError::QueueFull);
        }
        let Sge { addr, len, lkey } = wr.local;
        // What MRC has, and most programs use most.
        let plain = matches!(wr.op, SendOp::Write) && len > 0;
        if !plain {
            self.check_request(wr)?;
        }
        let source = match gather {
            None if plain => cx.memory.pin(lkey, self.pd.id(), addr, len).map(Source::Region),
            _ => self.pin_other(&mut cx.memory, wr, gather),
        };
        let Ok(source) = source else {
            return Ok(self.reject_send(cx, wr, WcStatus::LocalProtectionError));
        };
        self.requester.make_room(&mut cx.spare_queues);
        self.requester.push(now, wr, self.sig_all, source);
        // The first packet arms the timers, if a plane can carry it.
        let stuck = self.paths.usable_planes().0 == 0;
        let listed = self.tx_slots[TxClass::New as usize].listed;
        Ok(Wakes::DATA.when(!listed) | Wakes::ARM.when(stuck))
    }

    /// Pins the memory of any request.
    #[inline(never)]
    fn pin_other(
        &mut self,
        memory: &mut MemoryView,
        wr: &SendWr,
        gather: Option<&GatherWr<'_>>,
    ) -> Result<Source, MemoryError> {
        let Sge { addr, len, lkey } = wr.local;
        match gather {
            _ if len == 0 => Ok(Source::Region(PayloadRef::EMPTY)),
            Some(gather) => self.pin_pieces(memory, gather),
            None if wr.op.is_fetch() => self.pin_to_fill(memory, wr.local).map(Source::Region),
            None => memory.pin(lkey, self.pd.id(), addr, len).map(Source::Region),
        }
    }

    /// Whether the peer takes this request: it has agreed to the operation, and to messages without bytes.
    #[inline(never)]
    fn check_request(&self, wr: &SendWr) -> Result<(), PostError> {
        if !self.requester.takes(wr.op) {
            return Err(PostError::NoneAccepted);
        }
        let needed = Extensions::of(wr.op);
        if !self.extensions.contains(needed) {
            return Err(PostError::NotNegotiated { needed });
        }
        if wr.local.len == 0 && needed.is_empty() && !self.extensions.contains(Extensions::EMPTY_MESSAGES) {
            return Err(PostError::Empty);
        }
        if wr.op.is_atomic() && wr.local.len != 8 {
            return Err(PostError::AtomicLength { len: wr.local.len });
        }
        Ok(())
    }

    /// Pins an element that a read, an atomic operation or a SEND of the peer fills.
    #[inline]
    fn pin_to_fill(&self, memory: &mut MemoryView, element: Sge) -> Result<PayloadRef, MemoryError> {
        let Sge { addr, len, lkey } = element;
        memory.pin_local(lkey, self.pd.id(), addr, len, Access::LOCAL_WRITE)
    }

    /// Pins the memory of all elements, or of none.
    #[cold]
    fn pin_pieces(&mut self, memory: &mut MemoryView, gather: &GatherWr<'_>) -> Result<Source, MemoryError> {
        let mut pieces = self.requester.begin_pieces();
        for element in gather.elements() {
            let Sge { addr, len, lkey } = element;
            let pinned = if gather.op.is_fetch() {
                self.pin_to_fill(memory, element)
            } else {
                memory.pin(lkey, self.pd.id(), addr, len)
            };
            match pinned {
                Ok(piece) => self.requester.add_piece(&mut pieces, piece),
                Err(error) => {
                    self.requester.take_back_pieces(pieces, |pinned| memory.unpin(pinned));
                    return Err(error);
                }
            }
        }
        Ok(Source::Pieces(pieces))
    }

    /// Completes a work request that was never queued with an error, and fails the queue pair.
    #[cold]
    pub(crate) fn reject_send(&mut self, cx: &mut Cx, wr: &SendWr, status: WcStatus) -> Wakes {
        let wakes = self.fail(cx, FailReason::LocalWorkRequest, None);
        self.retired += 1;
        let opcode = wr.op.wc_opcode();
        let (qpn, src_qpn) = (self.qpn, Qpn::new(0));
        let wc =
            Wc { wr_id: wr.wr_id, status, opcode, byte_len: 0, imm: None, qpn, src_qpn, invalidated: None };
        cx.events.push_back(Event::Completion { cq: self.send_cq, wc });
        self.report_retired(cx);
        wakes
    }

    /// Posts a receive work request.
    ///
    /// If its buffer cannot be used, it completes with an error and the queue pair fails.
    pub(crate) fn post_recv(&mut self, cx: &mut Cx, posted: &PostedRecv) -> Result<Wakes, PostError> {
        if self.responder.receives().srq().is_some() {
            return Err(PostError::SharedReceives);
        }
        match self.state {
            QpState::Reset => Err(PostError::WrongState(QpState::Reset)),
            QpState::Error => {
                cx.events.push_back(self.recv_failed(posted.wr.wr_id, WcStatus::WrFlushError));
                Ok(Wakes::NONE)
            }
            QpState::Init | QpState::Rtr | QpState::Rts => {
                if self.responder.recvs_full() {
                    return Err(PostError::QueueFull);
                }
                let wr_id = posted.wr.wr_id;
                let Ok(buffer) = self.pin_buffer(&mut cx.memory, posted) else {
                    let wakes = self.fail(cx, FailReason::LocalWorkRequest, None);
                    cx.events.push_back(self.recv_failed(wr_id, WcStatus::LocalProtectionError));
                    return Ok(wakes);
                };
                self.responder.push_recv(Receive { wr_id, buffer });
                Ok(Wakes::NONE)
            }
        }
    }

    /// Pins the buffer of a receive work request.
    #[inline]
    pub(crate) fn pin_buffer(
        &self,
        memory: &mut MemoryView,
        posted: &PostedRecv,
    ) -> Result<Buffer, MemoryError> {
        let Some(elements) = &posted.elements else {
            let local = posted.wr.local;
            return Ok(if local.len == 0 {
                Buffer::NONE
            } else {
                Buffer::One(self.pin_to_fill(memory, local)?)
            });
        };
        let mut ranges = Vec::with_capacity(elements.len());
        for &element in elements {
            match self.pin_to_fill(memory, element) {
                Ok(range) => ranges.push(range),
                Err(error) => {
                    for range in ranges {
                        memory.unpin(range.slot);
                    }
                    return Err(error);
                }
            }
        }
        Ok(Buffer::Several(ranges.into()))
    }

    /// Completes every work request that the transport acknowledgement covers and whose payload no port holds.
    pub(crate) fn complete_sends(&mut self, cx: &mut Cx) {
        let released = cx.released;
        self.complete_released(cx, released);
    }

    fn complete_released(&mut self, cx: &mut Cx, released: u64) {
        let end = loop {
            match self.requester.pop_done(released, |pinned| cx.memory.unpin(pinned)) {
                Ok(entry) => {
                    cx.recall |= entry.held_until > cx.released;
                    self.retired += u32::from(!entry.is_response());
                    if entry.signaled {
                        let wc = send_wc(self.qpn, &entry, WcStatus::Success);
                        cx.events.push_back(Event::Completion { cq: self.send_cq, wc });
                    }
                }
                Err(end) => break end,
            }
        };
        if end == NotDone::Held && !self.held {
            self.held = true;
            cx.held.push(self.slot);
        }
        self.requester.give_room(&mut cx.spare_queues);
        self.report_retired(cx);
    }

    fn report_retired(&mut self, cx: &mut Cx) {
        if self.retired > 0 {
            let count = core::mem::take(&mut self.retired);
            cx.events.push_back(Event::SendRetired { qpn: self.qpn, count });
        }
    }

    /// Moves a queue pair to ERROR. The work request at fault completes with its status and every other one is
    /// flushed, all in order.
    pub(crate) fn fail(&mut self, cx: &mut Cx, reason: FailReason, culprit: Option<Culprit>) -> Wakes {
        if self.state == QpState::Error {
            return Wakes::NONE;
        }
        self.state = QpState::Error;
        self.responder.leave(&mut cx.windows);
        let wakes = self.leave_cwnd(cx);
        let (psn, id) = culprit.and_then(|(at, _)| self.requester.in_flight(at)).unzip();
        self.failure = Some(Box::new(self.describe_failure(cx, reason, culprit, (psn, id.flatten()))));
        self.failure.as_deref().inspect(|failure| log::failed(failure));
        cx.counters.qp_errors += 1;
        // Acknowledged requests complete successfully; the driver recalls payload that ports hold.
        self.complete_released(cx, u64::MAX);
        self.flush(cx, culprit);
        cx.events.push_back(Event::QpFailed { qpn: self.qpn, reason });
        self.report_retired(cx);
        wakes
    }

    fn describe_failure(
        &self,
        cx: &Cx,
        reason: FailReason,
        culprit: Option<Culprit>,
        (psn, id): (Option<Psn>, Option<crate::path::EvId>),
    ) -> QpFailure {
        let broken = self.responder.culprit().filter(|_| reason == FailReason::PeerViolation);
        let path = id.and_then(|id| self.paths.states().find(|path| path.id == id));
        QpFailure {
            qpn: self.qpn,
            reason,
            peer: cx.peers.first_ip(self.peer),
            peer_qpn: self.dest_qpn,
            psn: psn.or_else(|| broken.map(|packet| packet.psn)),
            ev: path.map(|path| path.ev),
            plane: path.map(|path| path.plane),
            status: culprit.map(|(_, status)| status),
            violation: broken.map(|packet| packet.violation),
        }
    }

    /// Ends all queued work requests.
    fn flush(&mut self, cx: &mut Cx, mut culprit: Option<Culprit>) {
        while let Some(entry) = self.requester.pop_any(|pinned| cx.memory.unpin(pinned)) {
            cx.recall |= entry.held_until > cx.released;
            if entry.is_response() {
                continue;
            }
            self.retired += 1;
            let status = match culprit {
                Some((at, status)) if at.is_none_or(|first| first == entry.first) => {
                    culprit = None;
                    status
                }
                _ => WcStatus::WrFlushError,
            };
            let wc = send_wc(self.qpn, &entry, status);
            cx.events.push_back(Event::Completion { cq: self.send_cq, wc });
        }
        // The next receive in order is that of the message that broke a rule.
        let mut status = match self.responder.culprit().map(|culprit| culprit.violation) {
            Some(Violation::ReceiveTooShort { .. }) => WcStatus::LocalLengthError,
            Some(Violation::ReceiveBuffer { .. }) => WcStatus::LocalProtectionError,
            _ => WcStatus::WrFlushError,
        };
        while let Some(receive) = self.responder.pop_recv() {
            receive.buffer.unpin(|pinned| cx.memory.unpin(pinned));
            cx.events.push_back(self.recv_failed(receive.wr_id, status));
            status = WcStatus::WrFlushError;
        }
    }

    /// Drops all work requests, without completions.
    pub(crate) fn drop_work(&mut self, cx: &mut Cx) {
        while let Some(entry) = self.requester.pop_any(|pinned| cx.memory.unpin(pinned)) {
            cx.recall |= entry.held_until > cx.released;
        }
        while let Some(receive) = self.responder.pop_recv() {
            receive.buffer.unpin(|pinned| cx.memory.unpin(pinned));
        }
    }

    pub(super) fn recv_failed(&self, wr_id: u64, status: WcStatus) -> Event {
        let wc = Wc {
            wr_id,
            status,
            opcode: WcOpcode::RecvRdmaWithImm,
            byte_len: 0,
            imm: None,
            qpn: self.qpn,
            src_qpn: self.dest_qpn,
            invalidated: None,
        };
        Event::Completion { cq: self.recv_cq, wc }
    }
}

fn send_wc(qpn: Qpn, entry: &Entry, status: WcStatus) -> Wc {
    let byte_len = if status.is_success() { entry.len } else { 0 };
    let (opcode, src_qpn) = (entry.op.wc_opcode(), Qpn::new(0));
    Wc { wr_id: entry.wr_id, status, opcode, byte_len, imm: None, qpn, src_qpn, invalidated: None }
}
