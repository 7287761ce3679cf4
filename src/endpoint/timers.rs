//! Timers: one heap for the queue pairs of an endpoint, one for its peers.

use crate::path::PlaneSet;
use crate::peer::{PeerTimer, Peers, Purpose, Request};
use crate::qp::Cx;
use crate::time::Time;
use crate::wire::{EndpointOp, Ev, Qpn};

use super::{Endpoint, Event};

impl Endpoint {
    /// The longest time for which timers are held back after a driver stall, so that packets which arrived meanwhile
    /// are received first: a few polls, and longer than most round trips across a fabric.
    const AFTER_STALL_NS: u64 = 250_000;

    /// When [`on_timeout`](Self::on_timeout) should be called; [`Time::NEVER`] if no timer is set.
    #[inline]
    pub fn next_timeout(&self) -> Time {
        let next = self.timers.next().min(self.cx.peers.next_timeout());
        if next == Time::NEVER { next } else { next.max(self.timers_from) }
    }

    /// Reports a driver stall: the driver was not scheduled between `from`, which is after all earlier calls, and
    /// `until`, which is now. That time does not count towards timeouts. No timer expires for as long again, 250 us at
    /// most, so that acknowledgements queued at the ports are received first.
    ///
    /// Repeated stalls delay a timer only once.
    pub fn on_driver_stall(&mut self, from: Time, until: Time) {
        if self.timers.next().min(self.cx.peers.next_timeout()) > from {
            self.timers_from = until.after(until.since(from).min(Self::AFTER_STALL_NS));
        }
        // A queue pair with packets in flight has an entry.
        for slot in self.timers.keys() {
            if let Some(qp) = self.qps.get_mut(slot) {
                qp.requester.on_driver_stall(from, until);
            }
        }
    }

    /// Makes sure that the queue pair's next deadline is in the heap.
    #[inline]
    pub(super) fn arm(&mut self, slot: u32) {
        let Some(qp) = self.qps.get_mut(slot) else { return };
        if qp.paths.has_events() && !core::mem::replace(&mut qp.path_events_reported, true) {
            self.cx.events.push_back(Event::PathsChanged { qpn: qp.qpn });
        }
        if let Some(planes) = qp.paths.take_switch() {
            qp.log_switch(&self.cx.peers, planes);
            self.cx.events.push_back(Event::PlanesSwitched { qpn: qp.qpn, planes });
        }
        let at = qp.next_timeout();
        if at < qp.armed_at {
            qp.armed_at = at;
            self.push_timer(at, slot);
        }
    }

    #[inline]
    pub(super) fn push_timer(&mut self, at: Time, slot: u32) {
        let qps = &self.qps;
        let is_live = |at, slot| qps.get(slot).is_some_and(|qp| qp.armed_at == at);
        self.timers.push(at, slot, qps.live() as usize, is_live);
    }

    /// Runs the timers that are due.
    pub fn on_timeout(&mut self, now: Time) {
        self.cx.unpin_released();
        if now < self.timers_from {
            return;
        }
        let mut refreshes = Peers::SLICE;
        loop {
            // At the same time, queue pairs come before peers.
            let (of_qps, of_peers) = (self.timers.next(), self.cx.peers.next_timeout());
            if of_qps.min(of_peers) > now {
                break;
            }
            if of_qps <= of_peers {
                self.run_qp_timer(now);
                continue;
            }
            match self.cx.peers.pop_timer() {
                Some(PeerTimer::Sweep) => self.run_sweep(now, &mut refreshes),
                Some(PeerTimer::Peer(index)) => self.run_peer(now, index, &mut refreshes),
                None => {}
            }
        }
    }

    fn run_qp_timer(&mut self, now: Time) {
        let Some((at, slot)) = self.timers.peek() else { return };
        self.timers.pop();
        let Some(qp) = self.qps.get_mut(slot).filter(|qp| qp.armed_at == at) else { return };
        qp.armed_at = Time::NEVER;
        let wakes = qp.on_timeout(&mut self.cx, now);
        self.apply(slot, wakes);
        self.arm(slot);
    }

    /// Serves a peer whose timer expired, and arms its timer again. At most `refreshes` of its queue pairs are given
    /// new planes; they are subtracted from that number.
    pub(super) fn run_peer(&mut self, now: Time, index: u32, refreshes: &mut usize) {
        let Cx { cfg, counters, peers, .. } = &mut self.cx;
        peers.probe_planes(now, index, (cfg, counters), &self.qps);
        while *refreshes > 0
            && let Some(slot) = self.cx.peers.next_to_refresh(index)
        {
            *refreshes -= 1;
            self.refresh_ports(now, slot);
        }
        let Cx { cfg, counters, peers, .. } = &mut self.cx;
        peers.end_refresh(now, index);
        peers.announce_if_due(now, index, (cfg, counters), &self.qps);
        peers.arm(index);
    }

    /// After a change of our own ports, updates every peer, one after the other, and the queue pairs connected to it.
    pub(super) fn announce_to_all(&mut self, now: Time) {
        self.cx.peers.start_sweep(now);
        self.run_sweep(now, &mut { Peers::SLICE });
    }

    /// Visits the next few peers.
    fn run_sweep(&mut self, now: Time, refreshes: &mut usize) {
        for _ in 0..self.cx.peers.sweep_slice() {
            if let Some(index) = self.cx.peers.next_in_sweep(&mut self.cx.counters) {
                self.run_peer(now, index, refreshes);
            }
        }
        self.cx.peers.pause_sweep(now);
    }

    /// Gives a queue pair the port states of both sides.
    fn refresh_ports(&mut self, now: Time, slot: u32) {
        self.with_qp(slot, |qp, cx| qp.refresh_ports(cx, now));
    }

    /// Probes one entropy value of a queue pair's peer (MRC 1.0 section 7.4.7). The response is reported as
    /// [`Event::EvProbeAnswered`] with the id returned here. `None` if the queue pair is not connected, or if too many
    /// endpoint packets are queued.
    pub fn send_ev_probe(&mut self, now: Time, qpn: Qpn, plane: u8, ev: Ev) -> Option<u16> {
        let index = self.qps.find(qpn).filter(|qp| qp.receives())?.peer;
        let Cx { cfg, counters, peers, .. } = &mut self.cx;
        let id = peers.requests.next_id();
        let request = Request { plane, ev, op: EndpointOp::EvProbe, id };
        let queued = peers.queue_request(now, index, &request, (cfg, counters));
        queued.then(|| peers.requests.register(now, plane, Purpose::Application(qpn)))
    }

    /// Local ports that are up.
    pub(super) const fn ports_up(&self) -> PlaneSet {
        self.cx.peers.ports_up
    }
}
