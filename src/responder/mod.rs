//! The responder: decides which packets may be placed, what is complete, and what to acknowledge.
//!
//! Payload is placed on arrival, in any order; this module never sees it. The module tracks which packets have
//! arrived. It then processes them in order, to check that they form messages and to complete immediates. It keeps
//! two positions apart: what has *arrived* (SACK) and what is *complete* for the application (transport ACK). See MRC
//! 1.0 sections 6.3 and 7.5.

mod ack_gen;
mod message;
mod receives;
mod violation;
mod window;

#[cfg(test)]
mod tests;

pub(crate) use ack_gen::{NackOut, SackOut, Trigger};
pub(crate) use message::Arrived;
pub(crate) use receives::{Buffer, Receive, Receives};
pub(crate) use violation::Culprit;
pub use violation::Violation;
pub(crate) use window::WindowBudget;

use std::collections::BTreeMap;

use crate::ring::{BitRing, SeqRing};
use crate::wire::{AtomicOperands, Msn, Opcode, Psn};
use crate::work::{PostedRecv, SrqId};
use ack_gen::AckState;
use message::{Assembly, Flaw};
use window::Window;

/// Settings fixed when the queue pair becomes ready to receive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResponderSetup {
    /// The peer's initial PSN.
    pub(crate) initial_psn: Psn,
    /// The peer's initial message number.
    pub(crate) initial_msn: Msn,
    /// The own initial message number, which is that of the first request that a response is for.
    pub(crate) own_msn: Msn,
    /// The accepted window, in PSNs.
    pub(crate) window: u32,
    /// Whether the window may change. If so, `window` is its initial and its largest size.
    pub(crate) dynamic: bool,
    /// Number of messages in flight that take a receive work request: writes with immediate, and SENDs.
    pub(crate) max_wimm: u32,
    /// Bytes received between SACKs.
    pub(crate) sack_threshold: u32,
}

/// The position of a packet relative to the receive window (MRC 1.0 section 6.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Not received before. The value is its sequence number.
    New(u64),
    /// Received before, above the cumulative acknowledgement.
    Duplicate,
    /// At or below the cumulative acknowledgement.
    Old,
    /// Beyond the window, or too old to be classified.
    OutOfWindow,
}

/// The peer broke a rule, and the queue pair ends. [`Responder::culprit`] returns the details.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Violated;

/// A message that has an effect beyond the placement of its bytes, and is complete in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// It took a receive work request.
    Received(Received),
    /// A read or an atomic operation of the peer, to be carried out.
    Request(Request),
    /// The response to a read or an atomic operation of this side.
    Response,
}

/// A read or an atomic operation of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) psn: Psn,
    /// Number of messages completed before it.
    pub(crate) before: u32,
    pub(crate) opcode: Opcode,
    pub(crate) number: Msn,
    pub(crate) va: u64,
    pub(crate) rkey: u32,
    pub(crate) len: u32,
    pub(crate) operands: AtomicOperands,
}

/// A message that took a receive work request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) receive: Receive,
    /// Its last packet.
    pub(crate) opcode: Opcode,
    /// Immediate data or a key to invalidate, if the opcode has any.
    pub(crate) imm: u32,
    pub(crate) byte_len: u32,
    /// The shared receive queue, if it is now below its limit.
    pub(crate) low: Option<SrqId>,
}

/// The receiving half of a queue pair.
#[derive(Debug)]
pub(crate) struct Responder {
    setup: ResponderSetup,
    window: Window,
    /// Next packet in order: the cumulative acknowledgement is one less.
    expected: u64,
    /// One past the highest packet received.
    highest: u64,
    received: BitRing,
    stash: SeqRing<Arrived>,
    /// Number of stashed packets that end a message which takes a receive work request.
    stashed_takers: u32,
    /// Number of packets received beyond `expected`.
    out_of_order: u32,
    assembly: Assembly,
    receives: Receives,
    answers: AckState,
    /// The first refused packet that is not yet in order, and the reason. The queue pair ends when it is.
    refused: Option<Box<(u64, Violation)>>,
    culprit: Option<Box<Culprit>>,
    /// Operands of the atomic operations that are not next in order.
    operands: BTreeMap<u64, AtomicOperands>,
}

impl Responder {
    pub(crate) fn new(receives: Receives, setup: ResponderSetup) -> Self {
        Self {
            setup,
            window: Window::new(setup.window, setup.dynamic),
            expected: 0,
            highest: 0,
            received: BitRing::default(),
            stash: SeqRing::default(),
            stashed_takers: 0,
            out_of_order: 0,
            assembly: Assembly::new(setup.initial_msn, setup.own_msn),
            receives,
            answers: AckState::default(),
            refused: None,
            culprit: None,
            operands: BTreeMap::new(),
        }
    }

    /// Resets the state to the peer's parameters. Posted receive work requests stay.
    pub(crate) fn connect(&mut self, setup: ResponderSetup) {
        let receives = core::mem::replace(&mut self.receives, Receives::own(0));
        *self = Self::new(receives, setup);
        self.answers.make_room();
    }

    #[inline]
    fn psn(&self, seq: u64) -> Psn {
        self.setup.initial_psn.add(seq as u32)
    }

    /// The PSN up to and including which every packet has arrived.
    pub(crate) fn cack(&self) -> Psn {
        self.psn(self.expected).sub(1)
    }

    /// PSN of the next packet in order.
    pub(crate) fn next_psn(&self) -> Psn {
        self.psn(self.expected)
    }

    pub(crate) const fn setup(&self) -> &ResponderSetup {
        &self.setup
    }

    /// The source of its receive work requests.
    pub(crate) const fn receives(&self) -> &Receives {
        &self.receives
    }

    /// Number of its own receive work requests that no message has consumed.
    pub(crate) fn recvs_queued(&self) -> usize {
        self.receives.len()
    }

    /// Whether its own receive queue has no room.
    pub(crate) fn recvs_full(&self) -> bool {
        self.receives.is_full()
    }

    /// Queues a pinned receive work request: its own, or one taken from the shared queue.
    pub(crate) fn push_recv(&mut self, receive: Receive) {
        self.receives.push(receive);
    }

    /// Takes its oldest receive work request back, because the queue pair has failed.
    pub(crate) fn pop_recv(&mut self) -> Option<Receive> {
        self.receives.take_back()
    }

    /// Takes one more request from the shared receive queue. Its buffer is to be pinned, and the request to be
    /// [pushed](Self::push_recv).
    pub(crate) fn take_shared(&self) -> Option<(PostedRecv, Option<SrqId>)> {
        self.receives.take_shared()
    }

    /// How many messages that take a receive work request come before the one with this number, of which `seq` is a
    /// packet. Nothing if the message is complete already, or if as many cannot be in flight: each has at least one
    /// packet, and the peer has agreed to a limit.
    #[inline]
    pub(crate) fn takers_before(&self, seq: u64, rqmsn: Msn) -> Option<u16> {
        let ahead = rqmsn.get().wrapping_sub(self.assembly.next_rqmsn().get());
        let most = (seq - self.expected).min(u64::from(self.setup.max_wimm).saturating_sub(1));
        (u64::from(ahead) <= most).then_some(ahead)
    }

    /// The receive work request that the message `ahead` of the next one takes, if there is one.
    #[inline]
    pub(crate) fn receive(&self, ahead: u16) -> Option<&Receive> {
        self.receives.get(ahead)
    }

    /// Classifies `psn` relative to the window.
    #[inline]
    pub(crate) fn classify(&self, psn: Psn) -> Class {
        let offset = i64::from(psn.distance(self.psn(self.expected)));
        if offset.is_negative() {
            // PSN <= cack - 2^23 cannot be told from the far future.
            return if offset > -(1 << 23) { Class::Old } else { Class::OutOfWindow };
        }
        // Rule 6: [cack + 1, cack + mpr).
        if offset + 1 >= i64::from(self.setup.window) {
            return Class::OutOfWindow;
        }
        let seq = self.expected + offset as u64;
        if seq < self.highest && self.received.test(seq) {
            return Class::Duplicate;
        }
        Class::New(seq)
    }

    /// Whether a packet at `seq` can carry message number `msn`. Every message has at least one packet, so the number
    /// cannot be further ahead than the packet. A copy that was delayed until its PSN came round again fails this
    /// check, and must not be placed.
    #[inline]
    pub(crate) fn plausible(&self, seq: u64, msn: Msn) -> bool {
        let ahead = msn.get().wrapping_sub(self.assembly.next_msn().get());
        u64::from(ahead) <= seq - self.expected
    }

    /// Records a new packet that was refused: its payload has not been placed.
    #[cold]
    pub(crate) fn arrive_refused(
        &mut self,
        seq: u64,
        packet: Arrived,
        violation: Violation,
        done: &mut Vec<Delivery>,
    ) -> Result<(), Violated> {
        if self.refused.as_deref().is_none_or(|(first, _)| seq < *first) {
            self.refused = Some(Box::new((seq, violation)));
        }
        self.arrive::<false>(seq, || Arrived { refused: true, ..packet }, done)
    }

    /// The packet that ended the queue pair, if any.
    pub(crate) fn culprit(&self) -> Option<Culprit> {
        self.culprit.as_deref().copied()
    }

    /// Records a new packet whose payload has been placed. Messages with a further effect that are now complete are added
    /// to `done` in order. `PLAIN`: the packet is part of a write without immediate.
    #[expect(clippy::inline_always, reason = "for a packet in order the value is never put together then")]
    #[inline(always)]
    pub(crate) fn arrive<const PLAIN: bool>(
        &mut self,
        seq: u64,
        packet: impl FnOnce() -> Arrived,
        done: &mut Vec<Delivery>,
    ) -> Result<(), Violated> {
        if seq != self.expected {
            return self.stash(seq, packet());
        }
        self.step::<PLAIN>(&packet(), done)?;
        if self.out_of_order > 0 { self.unstash(done) } else { Ok(()) }
    }

    /// Processes the stashed packets that are now in order.
    #[inline(never)]
    fn unstash(&mut self, done: &mut Vec<Delivery>) -> Result<(), Violated> {
        while self.received.test(self.expected) {
            let seq = self.expected;
            let packet = self.stash.get(seq);
            self.received.clear(seq);
            self.answers.forget(seq);
            self.out_of_order -= 1;
            if packet.ends_taker() {
                self.stashed_takers -= 1;
            }
            self.step::<false>(&packet, done)?;
        }
        Ok(())
    }

    #[inline(never)]
    fn stash(&mut self, seq: u64, packet: Arrived) -> Result<(), Violated> {
        if packet.ends_taker() {
            self.stashed_takers += 1;
            if self.stashed_takers > self.setup.max_wimm {
                // A NAK implies that everything before it has arrived, so it names the first packet that is missing.
                let max_wimm = self.setup.max_wimm;
                return Err(self.violate(self.expected, Violation::TooManyImmediates { max_wimm }));
            }
        }
        self.received.insert(self.expected, seq);
        self.stash.insert(self.expected, seq, packet);
        self.answers.unreported(self.expected, seq);
        self.answers.counts.out_of_order += 1;
        self.out_of_order += 1;
        self.highest = self.highest.max(seq + 1);
        Ok(())
    }

    /// Processes the next packet in order.
    #[expect(clippy::inline_always, reason = "see `arrive`")]
    #[inline(always)]
    fn step<const PLAIN: bool>(
        &mut self,
        packet: &Arrived,
        done: &mut Vec<Delivery>,
    ) -> Result<(), Violated> {
        let seq = self.expected;
        let complete = match self.assembly.step::<PLAIN>(packet) {
            Ok(complete) => complete,
            Err(flaw) => return Err(self.flawed(seq, flaw, packet)),
        };
        if complete && !PLAIN && !packet.opcode.is_plain_write() {
            self.deliver(seq, packet, done)?;
        }
        self.expected = seq + 1;
        self.highest = self.highest.max(self.expected);
        if complete {
            self.answers.message_complete(packet.ack_req);
        }
        Ok(())
    }

    /// Adds the effect of a complete message that is more than a write.
    #[inline(never)]
    fn deliver(&mut self, seq: u64, packet: &Arrived, done: &mut Vec<Delivery>) -> Result<(), Violated> {
        if packet.opcode.takes_receive() {
            let Some((receive, low)) = self.receives.consume() else {
                return Err(self.violate(seq, Violation::NoReceive));
            };
            let Arrived { opcode, imm, dma_len: byte_len, .. } = *packet;
            done.push(Delivery::Received(Received { receive, opcode, imm, byte_len, low }));
            return Ok(());
        }
        done.push(self.fetched(seq, packet));
        Ok(())
    }

    /// The effect of a complete message that is neither a write nor takes a receive work request.
    #[cold]
    fn fetched(&mut self, seq: u64, packet: &Arrived) -> Delivery {
        let Arrived { opcode, rqmsn: number, va, rkey, dma_len: len, .. } = *packet;
        if !opcode.is_fetch_request() {
            return Delivery::Response;
        }
        let operands = self.operands.remove(&seq).unwrap_or_default();
        let (psn, before) = (self.psn(seq), self.answers.completed);
        Delivery::Request(Request { psn, before, opcode, number, va, rkey, len, operands })
    }

    /// Keeps the operands of packet `seq`, an atomic operation, until it is next in order.
    pub(crate) fn keep_operands(&mut self, seq: u64, operands: AtomicOperands) {
        self.operands.insert(seq, operands);
    }

    /// The peer broke a rule with a request that was in order. Packets after it may have been in order too, and one of
    /// them may break a rule as well: the request is before it.
    #[cold]
    pub(crate) fn refuse(&mut self, request: &Request, violation: Violation) -> Violated {
        let &Request { psn, before, .. } = request;
        self.culprit = Some(Box::new(Culprit { psn, before, violation }));
        Violated
    }

    #[cold]
    fn flawed(&mut self, seq: u64, flaw: Flaw, packet: &Arrived) -> Violated {
        let refused = || self.refused.as_deref().map(|(_, violation)| *violation);
        match Violation::of(flaw, packet).or_else(refused) {
            Some(violation) => self.violate(seq, violation),
            None => Violated,
        }
    }

    #[cold]
    fn violate(&mut self, seq: u64, violation: Violation) -> Violated {
        let (psn, before) = (self.psn(seq), self.answers.completed);
        self.culprit = Some(Box::new(Culprit { psn, before, violation }));
        Violated
    }
}
