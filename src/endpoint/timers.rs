//! Timers: one heap for the endpoint, at most one live entry a queue pair.
//!
//! Deadlines of a queue pair mostly move later, with every acknowledgement. So an entry is pushed
//! only when a deadline comes *earlier* than the one armed; an entry that fires too early finds out
//! and arms again. Acknowledgements thus never touch the heap.

use core::cmp::Reverse;

use crate::path::PortMask;
use crate::requester::TimerVerdict;
use crate::time::Time;
use crate::wire::{Bth, ENDPOINT_QPN, EndpointOp, Ev, FTYPE_TIMESTAMP, Opcode, Packet, Psn};
use crate::work::WcStatus;

use super::event::FailReason;
use super::ops::{self, OpOut, Purpose};
use super::peer::StatusUpdate;
use super::{Endpoint, QpState};

/// An endpoint request to be sent.
struct Request {
    plane: u8,
    ev: Ev,
    op: EndpointOp,
    id: u16,
}

impl Endpoint {
    /// Time from the first port status update to the next when the peer does not answer, ns. It doubles with
    /// every one, up to the maximum: the peer leaves a plane alone until it hears of it, so giving up early
    /// could cost a plane for good.
    const STATUS_RETRY_NS: u64 = 1_000_000;
    const STATUS_RETRY_MAX_NS: u64 = 1_000_000_000;
    /// Port status updates sent before a silent peer is left alone, after about a minute.
    const STATUS_TRIES: u8 = 64;

    /// When [`on_timeout`](Self::on_timeout) should be called; [`Time::NEVER`] when nothing runs.
    #[inline]
    pub fn next_timeout(&self) -> Time {
        self.timers.peek().map_or(Time::NEVER, |Reverse((at, _))| *at)
    }

    /// Makes sure that the queue pair's next deadline is in the heap.
    #[inline]
    pub(super) fn arm(&mut self, slot: u32) {
        let Some(qp) = self.qps[slot as usize].as_deref_mut() else { return };
        let at = qp.next_timeout();
        if at < qp.armed_at {
            qp.armed_at = at;
            self.push_timer(at, slot);
        }
    }

    /// Entries of the heap, beyond one for each queue pair and peer, at which it is cleared of dead ones.
    pub(super) const SPARE_TIMERS: usize = 64;

    #[inline]
    fn push_timer(&mut self, at: Time, key: u32) {
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
        if key & Self::PEER_TIMER == 0 {
            return self.qp(key).is_some_and(|qp| qp.armed_at == at);
        }
        let peer = self.peers.get((key & !Self::PEER_TIMER) as usize).and_then(Option::as_ref);
        peer.and_then(|peer| peer.status_update).is_some_and(|update| update.due == at)
    }

    /// Runs what is due.
    pub fn on_timeout(&mut self, now: Time) {
        while let Some(&Reverse((at, slot))) = self.timers.peek() {
            if at > now {
                break;
            }
            self.timers.pop();
            if !self.is_live(at, slot) {
                continue;
            }
            if slot & Self::PEER_TIMER != 0 {
                self.announce_ports_again(now, slot & !Self::PEER_TIMER);
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
        if qp.state == QpState::Rts {
            let (requester, mut env) = qp.requester_env(&mut self.counters);
            if requester.on_timer(now, &mut env) == TimerVerdict::Exhausted {
                self.counters.retries_exhausted += 1;
                self.fail_qp(slot, FailReason::RetryExceeded, Some((None, WcStatus::RetryExceeded)));
                return;
            }
        }
        if qp.paths.next_timeout() <= now {
            qp.paths.expire_probes(now);
            self.wake_control(slot);
        }
        self.check_reverse_paths(now, slot);
        self.wake_data(slot);
    }

    /// Keeps the reverse paths of a queue pair that only receives fresh (MRC paper, section 2.4).
    fn check_reverse_paths(&mut self, now: Time, slot: u32) {
        let Some(qp) = self.qps[slot as usize].as_deref_mut() else { return };
        if now < qp.reverse_check_at {
            return;
        }
        let rtt_ns = qp.requester.smoothed_rtt_ns();
        let (inbound, outbound) = (qp.inbound, qp.outbound);
        (qp.inbound, qp.outbound) = (false, false);
        // Armed again by the next packet in; an idle queue pair runs no timer.
        qp.reverse_check_at = Time::NEVER;
        if let Some((ev, plane, path_id)) = qp.paths.poll_reverse_probe(now, rtt_ns, inbound, outbound) {
            let (index, qpn) = (qp.peer, qp.qpn);
            let id = self.ops.register(now, Purpose::ReverseProbe(qpn, path_id));
            self.push_request(now, index, &Request { plane, ev, op: EndpointOp::EvProbe, id });
        }
    }

    /// Queues an endpoint request to a peer.
    fn push_request(&mut self, now: Time, index: u32, request: &Request) {
        let Some(peer) = self.peers.get(index as usize).and_then(Option::as_ref) else { return };
        let plane = request.plane;
        let Some(&template) = peer.templates.get(usize::from(plane)) else { return };
        let timestamp = crate::requester::Requester::timestamp(now);
        let mut erth = ops::request(request.op, self.ports_up.0, timestamp);
        erth.ftype = FTYPE_TIMESTAMP;
        let bth = Bth::new(Opcode::EndpointRequest, ENDPOINT_QPN, Psn::new(u32::from(request.id)));
        let entropy = self.cfg.entropy.place(request.ev);
        let packet = Packet::EndpointRequest { bth, erth };
        if self.ops.push(OpOut { plane, template, entropy, packet, control_class: false }) {
            self.counters.tx_endpoint_requests += 1;
        }
    }

    /// Marks timers that belong to a peer rather than to a queue pair.
    const PEER_TIMER: u32 = 1 << 31;

    /// Starts telling a peer which of our ports can be reached.
    pub(super) fn announce_ports(&mut self, now: Time, index: u32) {
        let Some(peer) = self.peers.get_mut(index as usize).and_then(Option::as_mut) else { return };
        peer.status_update = Some(StatusUpdate { due: now, tries: 0, first_id: self.ops.next_id() });
        self.announce_ports_again(now, index);
    }

    /// Sends the port status over the next plane that is up, until it is answered.
    fn announce_ports_again(&mut self, now: Time, index: u32) {
        let up = self.ports_up;
        let Some(peer) = self.peers.get_mut(index as usize).and_then(Option::as_mut) else { return };
        let Some(update) = peer.status_update else { return };
        if update.tries >= Self::STATUS_TRIES {
            peer.status_update = None;
            return;
        }
        let usable = PortMask(up.0 & peer.up.0 & PortMask::first(peer.planes()).0);
        let wait = Self::STATUS_RETRY_NS << update.tries.min(10);
        let due = now.after(wait.min(Self::STATUS_RETRY_MAX_NS));
        peer.status_update = Some(StatusUpdate { due, tries: update.tries + 1, ..update });
        self.push_timer(due, index | Self::PEER_TIMER);
        if let Some(plane) = nth_plane(usable, u32::from(update.tries)) {
            let id = self.ops.register(now, Purpose::PortStatus(index));
            let ev = self.any_ev(index, plane);
            self.push_request(now, index, &Request { plane, ev, op: EndpointOp::PortStatusUpdate, id });
        }
    }

    /// An entropy value for a request that belongs to no queue pair.
    fn any_ev(&self, index: u32, plane: u8) -> Ev {
        let sockets = self.cfg.ports.get(usize::from(plane)).and_then(|port| port.source_ports.as_ref());
        let wanted = Ev(0xc000_0000 | index << 16 | 0xc000 | index);
        ops::allowed_source_port(sockets, wanted).map_or(wanted, |port| Ev(u32::from(port)))
    }

    /// Probes one entropy value of a queue pair's peer (MRC 1.0 section 7.4.7); the answer comes as
    /// [`Event::EvProbeAnswered`](super::Event::EvProbeAnswered) with the id returned here. `None`
    /// when the queue pair is not connected.
    pub fn send_ev_probe(&mut self, now: Time, qpn: crate::wire::Qpn, plane: u8, ev: Ev) -> Option<u16> {
        let slot = self.slot_of(qpn)?;
        let index = self.qp(slot).filter(|qp| qp.receives())?.peer;
        let id = self.ops.register(now, Purpose::Application(qpn));
        self.push_request(now, index, &Request { plane, ev, op: EndpointOp::EvProbe, id });
        Some(id)
    }
}

/// The `n`th plane of a set, counting round and round.
fn nth_plane(set: PortMask, n: u32) -> Option<u8> {
    let count = set.0.count_ones();
    let n = n.checked_rem(count)?;
    (0..32).filter(|&plane| set.contains(plane)).nth(n as usize)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use spindrift_pmd::MacAddr;

    use super::*;
    use crate::endpoint::{EndpointConfig, LocalPort};

    /// Near deadlines that come and go while a far one waits must not pile up in the heap.
    #[test]
    fn dead_timers_are_dropped() {
        let port = LocalPort {
            ip: [10, 0, 0, 1].into(),
            mac: MacAddr([2; 6]),
            max_frame: 1514,
            source_ports: None,
            same_path_batch: 1,
        };
        let mut endpoint = Endpoint::new(EndpointConfig::new(vec![port])).unwrap();
        for near in 0..100_000 {
            endpoint.push_timer(Time(1_000_000_000), 0);
            endpoint.push_timer(Time(near), 0);
            assert!(endpoint.timers.len() <= Endpoint::SPARE_TIMERS + 1);
        }
    }
}
