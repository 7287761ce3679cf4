//! Timers: one heap for the endpoint, at most one live entry per queue pair.
//!
//! A queue pair's deadlines mostly move later, with every acknowledgement. So an entry is pushed
//! only when a deadline is *earlier* than the one armed; an entry that fires too early is
//! armed again. Acknowledgements thus never touch the heap.

use core::cmp::Reverse;

use crate::requester::TimerVerdict;
use crate::responder::Trigger;
use crate::time::Time;
use crate::wire::{Bth, ENDPOINT_QPN, EndpointOp, Ev, Opcode, Packet, Psn};
use crate::work::WcStatus;

use super::event::FailReason;
use super::ops::{self, OpOut, Purpose};
use super::{Endpoint, QpState};

/// An endpoint request to be sent.
pub(super) struct Request {
    pub(super) plane: u8,
    pub(super) ev: Ev,
    pub(super) op: EndpointOp,
    pub(super) id: u16,
}

impl Endpoint {
    /// How long what arrived while the driver was away has time to be taken in, at most, before timers run: a few polls,
    /// and longer than most round trips across a fabric.
    const RETURN_NS: u64 = 250_000;
    /// Bytes received after which the paths of answers are refreshed ahead of time. A probe and its answer are
    /// a thousandth of it.
    pub(super) const REFRESH_BYTES: u64 = 256 << 10;

    /// When [`on_timeout`](Self::on_timeout) should be called; [`Time::NEVER`] when nothing runs.
    #[inline]
    pub fn next_timeout(&self) -> Time {
        self.timers.peek().map_or(Time::NEVER, |Reverse((at, _))| (*at).max(self.timers_from))
    }

    /// The driver should have gone on at `from`, which is after everything before this call, and does so at `until`,
    /// which is now: its thread was not run, say. That time does not make a packet late, and no timer runs for as long
    /// again, 250 us at most, so that answers that wait at the ports are heard first.
    ///
    /// A driver that is away again and again holds a timer up once.
    pub fn been_away(&mut self, from: Time, until: Time) {
        let due = self.timers.peek().map_or(Time::NEVER, |Reverse((at, _))| *at);
        if due > from {
            self.timers_from = until.after(until.since(from).min(Self::RETURN_NS));
        }
        // A queue pair with packets in flight waits for something.
        for Reverse((_, key)) in &self.timers {
            if let Some(qp) = self.qps.get_mut(*key as usize).and_then(Option::as_mut) {
                qp.requester.been_away(from, until);
            }
        }
    }

    /// Makes sure that the queue pair's next deadline is in the heap.
    #[inline]
    pub(super) fn arm(&mut self, slot: u32) {
        let Some(qp) = self.qps[slot as usize].as_deref_mut() else { return };
        if qp.paths.has_events() && !core::mem::replace(&mut qp.paths_told, true) {
            self.events.push_back(super::Event::PathsChanged { qpn: qp.qpn });
        }
        let at = qp.next_timeout();
        if at < qp.armed_at {
            qp.armed_at = at;
            self.push_timer(at, slot);
        }
    }

    /// Entries of the heap, beyond one for each queue pair and peer, at which it is cleared of dead ones.
    pub(super) const SPARE_TIMERS: usize = 64;

    #[inline]
    pub(super) fn push_timer(&mut self, at: Time, key: u32) {
        self.timers.push(Reverse((at, key)));
        if self.timers.len() > 2 * (self.live_qps as usize + self.peers.len()) + Self::SPARE_TIMERS {
            self.drop_dead_timers();
        }
    }

    /// Drops entries that were overtaken by earlier ones. They would find out by themselves, but a
    /// busy queue pair with a deadline far off makes new ones faster than that.
    #[cold]
    fn drop_dead_timers(&mut self) {
        let mut entries = core::mem::take(&mut self.timers).into_vec();
        entries.retain(|&Reverse((at, key))| self.is_live(at, key));
        entries.sort_unstable();
        entries.dedup();
        self.timers = entries.into();
    }

    /// Whether an entry of the heap is the one that its owner waits for.
    fn is_live(&self, at: Time, key: u32) -> bool {
        if key == Self::SWEEP_TIMER {
            return self.sweep.at == at;
        }
        if key & Self::PEER_TIMER == 0 {
            return self.qp(key).is_some_and(|qp| qp.armed_at == at);
        }
        let peer = self.peers.get((key & !Self::PEER_TIMER) as usize).and_then(Option::as_ref);
        peer.is_some_and(|peer| peer.armed_at == at)
    }

    /// Runs what is due.
    pub fn on_timeout(&mut self, now: Time) {
        if now < self.timers_from {
            return;
        }
        let mut refreshes = Self::SLICE;
        while let Some(&Reverse((at, slot))) = self.timers.peek() {
            if at > now {
                break;
            }
            self.timers.pop();
            if !self.is_live(at, slot) {
                continue;
            }
            if slot == Self::SWEEP_TIMER {
                self.run_sweep(now, &mut refreshes);
                continue;
            }
            if slot & Self::PEER_TIMER != 0 {
                let index = slot & !Self::PEER_TIMER;
                if let Some(peer) = self.peers.get_mut(index as usize).and_then(Option::as_mut) {
                    peer.armed_at = Time::NEVER;
                }
                self.run_peer(now, index, &mut refreshes);
                continue;
            }
            let Some(qp) = self.qp_mut(slot) else { continue };
            qp.armed_at = Time::NEVER;
            self.run_timers(now, slot);
            self.arm(slot);
        }
    }

    fn run_timers(&mut self, now: Time, slot: u32) {
        let Some(qp) = self.qps[slot as usize].as_deref_mut() else { return };
        self.cwnds.now = now;
        if qp.pace_at <= now {
            qp.pace_at = Time::NEVER;
        }
        if qp.state == QpState::Rts {
            let timeouts = self.counters.timeouts;
            let (requester, mut env) = qp.requester_env(&mut self.cwnds, &mut self.counters);
            if requester.on_timer(now, &mut env) == TimerVerdict::Exhausted {
                self.counters.retries_exhausted += 1;
                self.fail_qp(slot, FailReason::RetryExceeded, Some((None, WcStatus::RetryExceeded)));
                return;
            }
            if self.counters.timeouts != timeouts {
                self.log_timeout(slot);
                self.step_aside(slot);
            }
        }
        let Some(qp) = self.qps[slot as usize].as_deref_mut() else { return };
        if qp.paths.next_timeout() <= now {
            qp.paths.expire_probes(now);
            self.wake_control(slot);
        }
        self.check_reverse_paths(now, slot);
        self.go_on(slot);
    }

    /// Keeps the reverse paths of a queue pair that only receives fresh (MRC paper, section 2.4).
    fn check_reverse_paths(&mut self, now: Time, slot: u32) {
        let Some(qp) = self.qps[slot as usize].as_deref_mut() else { return };
        if now < qp.reverse_check_at {
            return;
        }
        let rtt_ns = qp.requester.smoothed_rtt_ns();
        let inbound = core::mem::take(&mut qp.inbound);
        // Armed again by the next packet in; an idle queue pair runs no timer.
        qp.reverse_check_at = Time::NEVER;
        if let Some(probe) = qp.paths.poll_reverse_probe(now, rtt_ns, inbound) {
            self.queue_reverse_probe(now, slot, probe);
        }
    }

    /// The same, after much data has come in.
    #[cold]
    pub(super) fn refresh_reverse_paths(&mut self, now: Time, slot: u32) {
        let Some(qp) = self.qps[slot as usize].as_deref_mut() else { return };
        qp.refreshed_bytes = qp.counters.rx_bytes;
        qp.unheard = None;
        qp.paths.refresh_reverse(now);
        self.hurry_reverse_probes(now, slot);
    }

    /// The peer repeats what has arrived.
    #[cold]
    pub(super) fn doubt_reverse_paths(&mut self, now: Time, slot: u32, repeat: (Trigger, bool)) {
        let Some(qp) = self.qps[slot as usize].as_deref_mut() else { return };
        qp.unheard = Some(repeat);
        qp.paths.doubt_reverse(now);
        self.hurry_reverse_probes(now, slot);
    }

    fn hurry_reverse_probes(&mut self, now: Time, slot: u32) {
        while let Some(qp) = self.qps[slot as usize].as_deref_mut() {
            let rtt_ns = qp.requester.smoothed_rtt_ns();
            let Some(probe) = qp.paths.poll_hurried_probe(now, rtt_ns) else { return };
            self.queue_reverse_probe(now, slot, probe);
        }
    }

    fn queue_reverse_probe(&mut self, now: Time, slot: u32, (ev, plane, ticket): (Ev, u8, u16)) {
        let Some(qp) = self.qps[slot as usize].as_deref() else { return };
        let (index, qpn) = (qp.peer, qp.qpn);
        let id = self.ops.next_id();
        if self.queue_request(now, index, &Request { plane, ev, op: EndpointOp::EvProbe, id }) {
            self.ops.register(now, plane, Purpose::ReverseProbe(qpn, ticket));
        }
    }

    /// Queues an endpoint request to a peer; `false` if it was not queued.
    pub(super) fn queue_request(&mut self, now: Time, index: u32, request: &Request) -> bool {
        let Some(peer) = self.peers.get(index as usize).and_then(Option::as_ref) else { return false };
        let plane = request.plane;
        let Some(template) = peer.templates.get(usize::from(plane)).cloned() else { return false };
        let timestamp = crate::requester::Requester::timestamp(now);
        let erth = ops::request(request.op, self.ports_up.0, timestamp);
        let bth = Bth::new(Opcode::EndpointRequest, ENDPOINT_QPN, Psn::new(u32::from(request.id)));
        let entropy = self.cfg.entropy.place(request.ev);
        let packet = Packet::EndpointRequest { bth, erth };
        let queued = self.ops.push(OpOut { plane, template, entropy, packet, control_class: false });
        if queued {
            self.counters.tx_endpoint_requests += 1;
        } else {
            self.counters.tx_endpoint_requests_refused += 1;
        }
        queued
    }

    /// Probes one entropy value of a queue pair's peer (MRC 1.0 section 7.4.7); the answer comes as
    /// [`Event::EvProbeAnswered`](super::Event::EvProbeAnswered) with the id returned here. `None`
    /// when the queue pair is not connected, or too many endpoint packets wait to be sent.
    pub fn send_ev_probe(&mut self, now: Time, qpn: crate::wire::Qpn, plane: u8, ev: Ev) -> Option<u16> {
        let slot = self.slot_of(qpn)?;
        let index = self.qp(slot).filter(|qp| qp.receives())?.peer;
        let id = self.ops.next_id();
        let queued = self.queue_request(now, index, &Request { plane, ev, op: EndpointOp::EvProbe, id });
        queued.then(|| self.ops.register(now, plane, Purpose::Application(qpn)))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::endpoint::EndpointConfig;
    use crate::endpoint::tests::port;

    /// Near deadlines that come and go while a far one waits must not pile up in the heap.
    #[test]
    fn dead_timers_are_dropped() {
        let mut endpoint = Endpoint::new(EndpointConfig::new(vec![port(1)])).unwrap();
        for near in 0..100_000 {
            endpoint.push_timer(Time(1_000_000_000), 0);
            endpoint.push_timer(Time(near), 0);
            assert!(endpoint.timers.len() <= Endpoint::SPARE_TIMERS + 1);
        }
    }
}
