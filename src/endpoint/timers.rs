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

impl Endpoint {
    /// Interval between port status updates to a peer that has not answered, ns.
    const STATUS_RETRY_NS: u64 = 1_000_000;
    /// Port status updates sent before a silent peer is left alone.
    const STATUS_TRIES: u8 = 16;

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
            self.timers.push(Reverse((at, slot)));
        }
    }

    /// Runs what is due.
    pub fn on_timeout(&mut self, now: Time) {
        while let Some(&Reverse((at, slot))) = self.timers.peek() {
            if at > now {
                break;
            }
            self.timers.pop();
            if slot & Self::PEER_TIMER != 0 {
                self.announce_ports_again(now, slot & !Self::PEER_TIMER);
                continue;
            }
            let Some(qp) = self.qp_mut(slot) else { continue };
            if qp.armed_at != at {
                continue;
            }
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
            let id = self.ops.register(now, Purpose::ReverseProbe(slot, path_id));
            self.push_request(now, slot, plane, ev, EndpointOp::EvProbe, id);
        }
    }

    /// Queues an endpoint request on one path of a queue pair.
    pub(super) fn push_request(&mut self, now: Time, slot: u32, plane: u8, ev: Ev, op: EndpointOp, id: u16) {
        let Some(index) = self.qp(slot).map(|qp| qp.peer) else { return };
        self.push_peer_request(now, index, plane, ev, op, id);
    }

    fn push_peer_request(&mut self, now: Time, index: u32, plane: u8, ev: Ev, op: EndpointOp, id: u16) {
        let Some(peer) = self.peers.get(index as usize).and_then(Option::as_ref) else { return };
        let Some(&template) = peer.templates.get(usize::from(plane)) else { return };
        let mut erth = ops::request(op, self.ports_up.0, crate::requester::Requester::timestamp(now));
        erth.ftype = FTYPE_TIMESTAMP;
        let bth = Bth::new(Opcode::EndpointRequest, ENDPOINT_QPN, Psn::new(u32::from(id)));
        let entropy = self.cfg.entropy.place(ev);
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
        let running = peer.status_update.is_some();
        peer.status_update = Some(StatusUpdate { tries: 0 });
        if !running {
            self.announce_ports_again(now, index);
        }
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
        let due = now.after(Self::STATUS_RETRY_NS);
        peer.status_update = Some(StatusUpdate { tries: update.tries + 1 });
        self.timers.push(Reverse((due, index | Self::PEER_TIMER)));
        if let Some(plane) = nth_plane(usable, u32::from(update.tries)) {
            let id = self.ops.register(now, Purpose::PortStatus(index));
            let ev = self.any_ev(index, plane);
            self.push_peer_request(now, index, plane, ev, EndpointOp::PortStatusUpdate, id);
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
        self.qp(slot).filter(|qp| qp.receives())?;
        let id = self.ops.register(now, Purpose::Application(slot));
        self.push_request(now, slot, plane, ev, EndpointOp::EvProbe, id);
        Some(id)
    }
}

/// The `n`th plane of a set, counting round and round.
fn nth_plane(set: PortMask, n: u32) -> Option<u8> {
    let count = set.0.count_ones();
    let n = n.checked_rem(count)?;
    (0..32).filter(|&plane| set.contains(plane)).nth(n as usize)
}
