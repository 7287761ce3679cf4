//! Send path: selects the queue pair that sends next.
//!
//! Acknowledgements and probes go before data, but after the data of short messages. The path is chosen at the last
//! moment among ports that have room, so a full port does not delay a packet that could take another.

use core::hint::cold_path;

use crate::path::PlaneSet;
use crate::qp::{ControlPath, NOT_ECT, Transmit, Turn, TxClass, TxOrigin, TxSlot, uncount, write_control};
use crate::time::Time;
use crate::wire::dscp;

use super::Endpoint;

impl Endpoint {
    /// Begins a burst of at most `packets` packets. Optional: it gives ports that batch by entropy value several
    /// packets of one.
    pub fn begin_burst(&mut self, packets: usize) {
        self.burst.number += 1;
        self.burst.packets = packets;
    }

    /// Queue pairs without room that are skipped in one call, in each of the two lists. The next call continues after
    /// them.
    const MAX_BLOCKED: usize = 64;

    /// Fills `out` with the next packet whose port is in `free`; `false` when there is none now.
    pub fn transmit(&mut self, now: Time, free: PlaneSet, out: &mut Transmit) -> bool {
        if free.0 == 0 {
            return false;
        }
        if self.given_back.is_empty() && self.cx.peers.requests.is_empty() && self.control_list.is_empty() {
            self.transmit_from_scheduler(now, free, out)
        } else {
            self.transmit_control_first(now, free, out)
        }
    }

    /// Whether acknowledgements or probes wait to be sent.
    pub fn has_pending_control(&self) -> bool {
        !self.control_list.is_empty()
    }

    /// Data packets that may go ahead of acknowledgements.
    pub const AHEAD: usize = 4;

    /// Whether the next packet is data of a short message that should go ahead of pending acknowledgements. An
    /// application waits for it, and acknowledgements may take a driver longer to send than the message. A driver
    /// checks this before it sends anything else, sends at most [`AHEAD`](Self::AHEAD) packets in this way
    /// ([`transmit_ahead`](Self::transmit_ahead)), and passes them to the port before the next burst.
    pub fn goes_ahead(&self) -> bool {
        if self.control_list.is_empty() || !self.given_back.is_empty() || !self.scheduler.no_retransmissions()
        {
            return false;
        }
        // A queue pair that has sent its last packet stays in the list until the next packet is requested.
        let in_turn =
            self.scheduler.in_turn(TxClass::New).take(Self::AHEAD).filter_map(|slot| self.qps.get(slot));
        let mut left = in_turn.map(|qp| qp.requester.sendable(qp.cwnd.get(&self.cx.cwnds)));
        left.find(|&left| left > 0).is_some_and(|left| left <= Self::AHEAD)
    }

    /// As [`transmit`](Self::transmit), for data that [goes ahead](Self::goes_ahead).
    pub fn transmit_ahead(&mut self, now: Time, free: PlaneSet, out: &mut Transmit) -> bool {
        free.0 != 0 && self.goes_ahead() && self.transmit_from_scheduler(now, free, out)
    }

    #[inline(never)]
    fn transmit_control_first(&mut self, now: Time, free: PlaneSet, out: &mut Transmit) -> bool {
        (!self.given_back.is_empty() && self.transmit_given_back(free, out))
            || (!self.cx.peers.requests.is_empty() && self.transmit_request(free, out))
            || self.transmit_from_control_list(now, free, out)
            || self.transmit_from_scheduler(now, free, out)
    }

    /// Data packets: from one list if nothing is lost, otherwise from two.
    #[inline(never)]
    fn transmit_from_scheduler(&mut self, now: Time, free: PlaneSet, out: &mut Transmit) -> bool {
        if !self.scheduler.no_retransmissions() {
            return self.transmit_from_lists(now, free, out);
        }
        let Some(slot) = self.scheduler.front(TxClass::New) else { return false };
        match self.transmit_data(TxClass::New, now, slot, free, out) {
            Turn::Sent => true,
            turn => self.transmit_behind(TxClass::New, turn, now, free, out),
        }
    }

    #[cold]
    fn transmit_from_lists(&mut self, now: Time, free: PlaneSet, out: &mut Transmit) -> bool {
        let first = self.first_list();
        let mut class = first;
        while !self.transmit_from_list(class, now, free, out) {
            if class == TxClass::New && self.scheduler.no_retransmissions() {
                return false;
            }
            let Some(other) = self.scheduler.after(first, class) else { return false };
            class = other;
        }
        true
    }

    /// Acknowledgements, probes and endpoint packets returned by ports that are kept; more are dropped and counted.
    pub(super) const MAX_GIVEN_BACK: usize = 256;

    /// Takes back a packet of the current burst that did not leave because a queue of this host was full, and what was
    /// counted for it: see [`Port::unsent`](spindrift_pmd::Port::unsent). It is sent again when a port has room. It
    /// counts as no loss, because the network had no part in it.
    #[cold]
    pub fn unsent(&mut self, packet: &Transmit) {
        self.cx.counters.tx_unsent += 1;
        match packet.origin {
            TxOrigin::Control if self.given_back.len() < Self::MAX_GIVEN_BACK => {
                self.given_back.push_back(packet.clone());
            }
            TxOrigin::Control => self.cx.counters.tx_unsent_dropped += 1,
            TxOrigin::Data { slot, seq, kind } if self.qps.get(slot).is_some() => {
                self.with_qp(slot, |qp, cx| qp.unsent(cx, (seq, kind), packet.payload.len));
            }
            TxOrigin::Data { kind, .. } => uncount(kind, packet.payload.len, None, &mut self.cx.counters),
        }
    }

    /// A packet without payload is sent again unchanged: its content was correct when it was written, as if it had
    /// waited in the port.
    #[cold]
    fn transmit_given_back(&mut self, free: PlaneSet, out: &mut Transmit) -> bool {
        let Some(at) = self.given_back.iter().position(|packet| free.contains(packet.port)) else {
            return false;
        };
        let Some(packet) = self.given_back.remove(at) else { return false };
        *out = packet;
        true
    }

    fn transmit_from_control_list(&mut self, now: Time, free: PlaneSet, out: &mut Transmit) -> bool {
        let mut blocked = 0;
        while let Some(&slot) = self.control_list.front() {
            let Some(qp) = self.qps.get_mut(slot) else {
                self.control_list.pop_front();
                continue;
            };
            match qp.transmit_control(&mut self.cx, now, free, out) {
                Turn::Sent | Turn::SentLast { .. } => return true,
                Turn::Blocked => {
                    blocked += 1;
                    self.control_list.rotate_left(1);
                    if blocked >= self.control_list.len().min(Self::MAX_BLOCKED) {
                        break;
                    }
                }
                Turn::Idle | Turn::Paced => {
                    self.control_list.pop_front();
                    if let Some(qp) = self.qps.get_mut(slot) {
                        qp.in_control_list = false;
                    }
                    self.arm(slot);
                }
            }
        }
        false
    }

    /// The list that the next packet comes from, if some queue pairs may have retransmissions.
    fn first_list(&mut self) -> TxClass {
        while let Some(slot) = self.scheduler.front(TxClass::Retransmit) {
            if self.qps.get(slot).is_some_and(|qp| qp.requester.has_retransmissions()) {
                break;
            }
            self.leave_list(TxClass::Retransmit);
        }
        self.scheduler.first(self.cx.cfg.quantum)
    }

    /// Removes the queue pair at the front of the list.
    fn leave_list(&mut self, class: TxClass) {
        let Some(slot) = self.scheduler.pop(class) else { return };
        if let Some(qp) = self.qps.get_mut(slot) {
            let waits = class == TxClass::New && qp.waits_for_cwnd;
            qp.tx_slots[class as usize] = TxSlot { listed: waits, ..TxSlot::default() };
            // It may leave room in a window that other queue pairs wait for.
            qp.cwnd.get_mut_may_open(&mut self.cx.cwnds);
        }
        self.wake_cwnd_waiters();
    }

    /// A packet of the queue pair whose turn it is, or of a later one if that has none now.
    fn transmit_from_list(&mut self, class: TxClass, now: Time, free: PlaneSet, out: &mut Transmit) -> bool {
        let Some(slot) = self.scheduler.front(class) else { return false };
        let turn = self.transmit_any(class, now, slot, free, out);
        self.transmit_behind(class, turn, now, free, out)
    }

    /// [`transmit_data`](Self::transmit_data), not inlined.
    #[inline(never)]
    fn transmit_any(
        &mut self,
        class: TxClass,
        now: Time,
        slot: u32,
        free: PlaneSet,
        out: &mut Transmit,
    ) -> Turn {
        self.transmit_data(class, now, slot, free, out)
    }

    /// Goes through the list until a packet leaves; `turn` is the result for the queue pair at its front.
    #[cold]
    fn transmit_behind(
        &mut self,
        class: TxClass,
        mut turn: Turn,
        now: Time,
        free: PlaneSet,
        out: &mut Transmit,
    ) -> bool {
        let mut blocked = 0;
        loop {
            match turn {
                Turn::Sent | Turn::SentLast { .. } => return true,
                Turn::Blocked => {
                    // Another queue pair may have other planes; this one keeps its turn.
                    blocked += 1;
                    self.scheduler.rotate(class);
                    if blocked >= self.scheduler.len(class).min(Self::MAX_BLOCKED) {
                        return false;
                    }
                }
                Turn::Idle | Turn::Paced => self.leave_list(class),
            }
            let Some(slot) = self.scheduler.front(class) else { return false };
            turn = self.transmit_any(class, now, slot, free, out);
        }
    }

    fn transmit_request(&mut self, free: PlaneSet, out: &mut Transmit) -> bool {
        let Some(request) = self.cx.peers.requests.pop(free.0) else { return false };
        let map = &self.cx.cfg.dscp;
        let class = if request.control_class { map.control } else { map.no_trim };
        let traffic_class = dscp::traffic_class(class, NOT_ECT);
        let (plane, entropy) = (request.plane, request.entropy);
        write_control(
            out,
            &ControlPath { plane, template: &request.template, entropy, traffic_class },
            &request.packet,
        );
        true
    }

    /// A data packet of the queue pair in `slot`.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "the path of every packet; measured by benches/instructions.rs")]
    fn transmit_data(
        &mut self,
        class: TxClass,
        now: Time,
        slot: u32,
        free: PlaneSet,
        out: &mut Transmit,
    ) -> Turn {
        let Some(qp) = self.qps.get_mut(slot) else {
            cold_path();
            return Turn::Idle;
        };
        match qp.transmit_data(&mut self.cx, (class, now, free), &self.burst, out) {
            Turn::SentLast { arms } => {
                self.end_turn(class, slot, arms);
                Turn::Sent
            }
            Turn::Paced => {
                cold_path();
                self.arm(slot);
                Turn::Idle
            }
            turn => turn,
        }
    }

    /// After a packet of the queue pair: arms its timers, if requested or if none is armed, and moves on to the next
    /// queue pair when its quantum is used up.
    #[cold]
    fn end_turn(&mut self, class: TxClass, slot: u32, mut arms: bool) {
        let quantum = self.cx.cfg.quantum;
        let Some(qp) = self.qps.get_mut(slot) else { return };
        arms |= qp.armed_at == Time::NEVER;
        let tx_slot = &mut qp.tx_slots[class as usize];
        if tx_slot.quantum_used >= quantum {
            tx_slot.quantum_used = 0;
            self.scheduler.rotate(class);
        }
        if arms {
            self.arm(slot);
        }
    }
}
