//! Port status updates in both directions: the effects of a peer's updates, and the updates that we send.
//!
//! A received update is a hint, checked by [`PortReachability`](super::port_reachability::PortReachability). Ours are
//! repeated until they are acknowledged, spread out so that many peers can be updated.

use std::net::IpAddr;

use crate::config::EndpointConfig;
use crate::counters::Counters;
use crate::path::PlaneSet;
use crate::time::Time;
use crate::wire::{EndpointOp, Ev};

use super::port_reachability::jittered;
use super::{Members, Peer, Peers, Request, Source, log};

/// A sweep that sends a change of our own ports to all peers, starting at a random one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sweep {
    pub(crate) began: Time,
    /// Index of the next peer.
    pub(crate) next: u32,
    pub(crate) count: u32,
    /// Peers still to be visited.
    pub(crate) left: u32,
    pub(crate) told: u32,
    /// When it continues; never if it is complete.
    pub(crate) at: Time,
}

impl Sweep {
    pub(crate) const OVER: Self =
        Self { began: Time::ZERO, next: 0, count: 0, left: 0, told: 0, at: Time::NEVER };
}

/// A port status update in progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StatusUpdate {
    /// When the next one is sent.
    pub(crate) due: Time,
    pub(crate) tries: u8,
    /// Updates sent; fewer than tries if no plane was up.
    pub(crate) sent: u8,
    /// Request id of the first update with the current state, drawn at random. Its repetitions differ in the last
    /// eight bits. A response to an earlier update confirms an outdated state.
    pub(crate) first_id: u16,
}

impl StatusUpdate {
    /// The request id of the next update.
    pub(crate) const fn next_id(self) -> u16 {
        // The top four bits select the owner, so they stay.
        self.first_id ^ self.sent as u16
    }

    pub(crate) const fn is_answered_by(self, id: u16) -> bool {
        id ^ self.first_id < self.sent as u16
    }
}

/// The UDP ports at which peers with one address receive: a response goes to each. A request does not show which of
/// them sent it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AnswerPorts {
    /// 0 is none.
    ports: [u16; Peers::SHARED],
}

impl AnswerPorts {
    /// Adds a port, unless it is present or there are too many.
    pub(crate) fn add(&mut self, udp_port: u16) {
        if let Some(place) = self.ports.iter_mut().find(|port| matches!(**port, 0) || **port == udp_port) {
            *place = udp_port;
        }
    }

    pub(crate) fn with(mut self, more: Self) -> Self {
        more.iter().for_each(|port| self.add(port));
        self
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = u16> {
        self.ports.into_iter().filter(|&port| port != 0)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }
}

/// The verdict of the endpoints that a port status update has visited; the greatest counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum StatusVerdict {
    /// Its sender is no endpoint's peer.
    UnknownPeer,
    /// It reports the port that it came from as unreachable.
    SelfContradicting,
    /// It was accepted as a hint.
    Accepted,
}
impl Peers {
    /// The key of the sweep over all peers in the heap of timers; other keys are indexes of peers.
    const SWEEP: u32 = u32::MAX;

    /// Time from the first port status update to the next without a response, ns, plus or minus a quarter. It doubles
    /// with every one, up to the maximum.
    const STATUS_RETRY_NS: u64 = 1_000_000;
    const STATUS_RETRY_MAX_NS: u64 = 1_000_000_000;
    /// Port status updates sent before an unresponsive peer gets no more, after about a minute.
    const STATUS_TRIES: u8 = 64;
    /// Time from the update to one peer to the update to the next, ns.
    const STATUS_PACE_NS: u64 = 2_000;
    /// Time until a request that the full queue refused is tried again, ns, plus or minus a quarter.
    const DEFER_NS: u64 = 100_000;
    /// Peers visited in one slice of a sweep, and queue pairs given new planes in one call.
    pub(crate) const SLICE: usize = 16;

    /// The UDP ports of the peers with this address, to which responses go, as far as this endpoint knows.
    pub(crate) fn answer_ports(&self, ip: IpAddr) -> AnswerPorts {
        let (peers, count) = self.at(ip);
        let mut ports = AnswerPorts::default();
        for &index in &peers[..count] {
            if let Some(peer) = self.get(index) {
                ports.add(peer.udp_port);
            }
        }
        ports
    }

    /// A port status update arrived from a peer's address, which may be forged. Returns `false` if it reports the port
    /// that it came from as unreachable.
    pub(crate) fn on_update(
        &mut self,
        now: Time,
        index: u32,
        source: &Source<'_>,
        mask: u32,
        counters: &mut Counters,
    ) -> bool {
        let Some(peer) = self.slots.get_mut(index as usize).and_then(Option::as_mut) else { return false };
        if peer.port_of(source.meta.src, source.port).is_some_and(|port| mask >> port & 1 == 0) {
            return false;
        }
        let before = peer.reachability.open();
        if peer.reachability.on_update(now, mask, self.ports_up, &mut || self.requests.draw_id()) {
            counters.peer_port_changes += 1;
            peer.refresh_from = peer.members.len();
            self.log_planes(index, before);
        }
        true
    }

    /// An EV probe arrived from a peer: the plane that it took works.
    pub(crate) fn on_ev_probe(&mut self, source: &Source<'_>) {
        let (peers, count) = self.at(source.meta.src);
        for &index in &peers[..count] {
            self.note_rx(index, source);
        }
    }

    /// A response arrived from a peer to a request that left over the same plane at `sent_at`. Returns whether that
    /// settles a doubt: then the peer has to be [served](Self::probe_planes).
    pub(crate) fn on_proof(&mut self, index: u32, source: &Source<'_>, sent_at: Time) -> bool {
        self.get_mut(index).is_some_and(|peer| {
            peer.sent_from(source.meta.src, source.port) && peer.reachability.on_proof(source.port, sent_at)
        })
    }

    /// An accepted packet arrived from a peer: a plane that works does not stay closed.
    #[cold]
    pub(crate) fn note_rx(&mut self, index: u32, source: &Source<'_>) {
        let Some(peer) = self.get_mut(index) else { return };
        if peer.reachability.note_rx(source.port) {
            if peer.sent_from(source.meta.src, source.port) {
                self.arm(index);
            } else {
                peer.reachability.forget_rx(source.port);
            }
        }
    }

    /// A response arrived from a peer. `Some` if it belongs to a port status update or a probe of a plane; `true` if
    /// the peer then has to be [served](Self::probe_planes).
    pub(crate) fn on_response(
        &mut self,
        now: Time,
        index: u32,
        source: &Source<'_>,
        id: u16,
    ) -> Option<bool> {
        let peer = self.slots.get_mut(index as usize).and_then(Option::as_mut)?;
        if peer.status_update.is_some_and(|update| update.is_answered_by(id)) {
            peer.status_update = None;
            return Some(false);
        }
        let sent_from = peer.sent_from(source.meta.src, source.port);
        let draw_id = &mut || self.requests.draw_id();
        (sent_from && peer.reachability.on_answer(now, source.port, id, draw_id)).then_some(true)
    }

    /// Sends the probes of planes that are due, and decides which planes are open.
    pub(crate) fn probe_planes(
        &mut self,
        now: Time,
        index: u32,
        (cfg, counters): (&EndpointConfig, &mut Counters),
        members: &impl Members,
    ) {
        let local = self.ports_up;
        let Some(peer) = self.get_mut(index) else { return };
        peer.reachability.confirm_by_rx(now);
        while let Some((plane, id)) = self.get(index).and_then(|peer| peer.reachability.probe_due(now, local))
        {
            let sent = self.probe_plane(now, index, (plane, id), (cfg, counters), members);
            let random = self.requests.draw();
            let Some(peer) = self.get_mut(index) else { return };
            if sent > 0 {
                counters.tx_plane_probes += sent;
                peer.reachability.probed(now, plane, random);
            } else {
                peer.reachability.defer_probe(now, plane, jittered(Self::DEFER_NS, u64::MAX, random));
            }
        }
        self.review(index, counters);
    }

    /// Decides which planes to a peer are open. If they changed, all its queue pairs are to be updated.
    fn review(&mut self, index: u32, counters: &mut Counters) {
        let local = self.ports_up;
        let Some(peer) = self.get_mut(index) else { return };
        let before = peer.reachability.open();
        if peer.reachability.review(local) {
            counters.peer_port_changes += 1;
            peer.refresh_from = peer.members.len();
            self.log_planes(index, before);
        }
    }

    /// The slot of the next queue pair to be given the peer's planes, last to first. A queue pair that connects
    /// meanwhile already has them. A queue pair that leaves is replaced by one that was already updated.
    pub(crate) fn next_to_refresh(&mut self, index: u32) -> Option<u32> {
        let peer = self.get_mut(index)?;
        peer.refresh_from = peer.refresh_from.min(peer.members.len());
        let at = peer.refresh_from.checked_sub(1)?;
        peer.refresh_from = at;
        peer.members.get(at).copied()
    }

    /// Ends the updates of queue pairs in this call; the others follow in the next.
    pub(crate) fn end_refresh(&mut self, now: Time, index: u32) {
        if let Some(peer) = self.get_mut(index) {
            // Later than now, so that the driver does other work in between.
            peer.refresh_at = if peer.refresh_from > 0 { now.after(1) } else { Time::NEVER };
        }
    }

    /// Makes sure that the peer's next deadline is in the heap.
    pub(crate) fn arm(&mut self, index: u32) {
        let local = self.ports_up;
        let Some(peer) = self.get_mut(index) else { return };
        let at = peer.next_timeout(local);
        if at < peer.armed_at {
            peer.armed_at = at;
            self.push_timer(at, index);
        }
    }

    fn push_timer(&mut self, at: Time, key: u32) {
        let Self { timers, slots, sweep, .. } = self;
        let is_live = |at: Time, key: u32| {
            let armed_at = match key {
                Self::SWEEP => Some(sweep.at),
                index => slots.get(index as usize).and_then(Option::as_ref).map(|peer| peer.armed_at),
            };
            armed_at == Some(at)
        };
        timers.push(at, key, slots.len(), is_live);
    }

    /// The next deadline of a peer or the sweep.
    #[inline]
    pub(crate) fn next_timeout(&self) -> Time {
        self.timers.next()
    }

    /// Removes the earliest entry from the heap of timers. Returns the peer that it concerns, unless it is dead.
    pub(crate) fn pop_timer(&mut self) -> Option<PeerTimer> {
        let (at, key) = self.timers.peek()?;
        self.timers.pop();
        if key == Self::SWEEP {
            return (self.sweep.at == at).then_some(PeerTimer::Sweep);
        }
        let peer = self.get_mut(key).filter(|peer| peer.armed_at == at)?;
        peer.armed_at = Time::NEVER;
        Some(PeerTimer::Peer(key))
    }

    /// After a change of our own ports, every peer gets a port status update, one after the other, and the queue pairs
    /// connected to it get the new planes. [`next_in_sweep`](Self::next_in_sweep) follows.
    pub(crate) fn start_sweep(&mut self, now: Time) {
        let count = self.slots.len() as u32;
        let next = u32::from(self.requests.draw()) % count.max(1);
        self.sweep = Sweep { began: now, next, count, left: count, told: 0, at: Time::NEVER };
    }

    /// Peers that the sweep visits in one slice.
    pub(crate) fn sweep_slice(&self) -> usize {
        Self::SLICE.min(self.sweep.left as usize)
    }

    /// Visits the next place of the sweep. Returns the peer there, which has to be [served](Self::probe_planes). Peers
    /// added since the sweep began know our ports from the start.
    pub(crate) fn next_in_sweep(&mut self, counters: &mut Counters) -> Option<u32> {
        let index = self.sweep.next;
        self.sweep.next = (index + 1) % self.sweep.count;
        self.sweep.left -= 1;
        let due = self.sweep.began.after(u64::from(self.sweep.told) * Self::STATUS_PACE_NS);
        if !self.start_announcing(due, index) {
            return None;
        }
        self.sweep.told += 1;
        self.review(index, counters);
        if let Some(peer) = self.get_mut(index) {
            peer.refresh_from = peer.members.len();
        }
        Some(index)
    }

    /// The sweep pauses, if it is not complete.
    pub(crate) fn pause_sweep(&mut self, now: Time) {
        self.sweep.at = Time::NEVER;
        if self.sweep.left > 0 {
            // Later than now, so that the driver does other work in between.
            self.sweep.at = now.after(1);
            self.push_timer(self.sweep.at, Self::SWEEP);
        }
    }

    /// Starts port status updates to a peer at `due`. `false` if there is no such peer.
    pub(crate) fn start_announcing(&mut self, due: Time, index: u32) -> bool {
        let first_id = self.requests.draw_id();
        let Some(peer) = self.get_mut(index) else { return false };
        peer.status_update = Some(StatusUpdate { due, tries: 0, sent: 0, first_id });
        true
    }

    /// Sends the port status over the next plane that is up, until it is acknowledged.
    pub(crate) fn announce_if_due(
        &mut self,
        now: Time,
        index: u32,
        (cfg, counters): (&EndpointConfig, &mut Counters),
        members: &impl Members,
    ) {
        let up = self.ports_up;
        let Some(peer) = self.get_mut(index) else { return };
        let Some(mut update) = peer.status_update.filter(|update| update.due <= now) else { return };
        if update.tries >= Self::STATUS_TRIES {
            peer.status_update = None;
            log::peer_unresponsive(peer.ports.first().map(|port| port.ip));
            counters.tx_port_status_unheard += 1;
            return;
        }
        let usable = PlaneSet(up.0 & peer.reachability.open().0);
        let plane = u16::from(update.tries).checked_rem(usable.count()).and_then(|turn| usable.nth(turn));
        let id = update.next_id();
        let refused = plane.is_some_and(|plane| {
            let ev = self.next_ev(index, plane, true, members);
            let request = |ev| Request { plane, ev, op: EndpointOp::PortStatusUpdate, id };
            !ev.is_some_and(|ev| self.queue_request(now, index, &request(ev), (cfg, counters)))
        });
        let (wait, most) = if refused {
            (Self::DEFER_NS, u64::MAX)
        } else {
            (Self::STATUS_RETRY_NS << update.tries.min(10), Self::STATUS_RETRY_MAX_NS)
        };
        update.due = now.after(jittered(wait, most, self.requests.draw()));
        update.tries += u8::from(!refused);
        update.sent += u8::from(!refused && plane.is_some());
        if let Some(peer) = self.get_mut(index) {
            peer.status_update = Some(update);
        }
    }

    /// Probes a plane over the configured number of entropy values of a probe, or all if there are fewer. Returns how
    /// many probes were queued.
    fn probe_plane(
        &mut self,
        now: Time,
        index: u32,
        (plane, id): (u8, u16),
        (cfg, counters): (&EndpointConfig, &mut Counters),
        members: &impl Members,
    ) -> u64 {
        let evs = self.get(index).map_or(0, |peer| peer.reachability.probe_evs(plane));
        let (mut first, mut sent) = (None, 0);
        for _ in 0..evs {
            // A single probe takes a path that is known to work. After one that timed out, that knowledge is not used.
            let ev = self.next_ev(index, plane, evs == 1, members);
            let Some(ev) = ev.filter(|&ev| first != Some(ev)) else { break };
            first = first.or(Some(ev));
            let request = Request { plane, ev, op: EndpointOp::EvProbe, id };
            if !self.queue_request(now, index, &request, (cfg, counters)) {
                break;
            }
            sent += 1;
        }
        sent
    }

    /// The entropy value for a request to a peer that belongs to no queue pair. The peer's queue pairs have values
    /// with paths to it. These are taken in turn, so that one failed path does not stop all requests.
    fn next_ev(&mut self, index: u32, plane: u8, work: bool, members: &impl Members) -> Option<Ev> {
        let peer = self.get_mut(index)?;
        let turn = peer.ev_turns.get_mut(usize::from(plane))?;
        let ev = members.ev_in_turn(*peer.members.first()?, plane, *turn, work);
        *turn = turn.wrapping_add(1);
        ev
    }
}

/// A timer of a peer that has expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerTimer {
    /// The sweep over all peers continues.
    Sweep,
    /// The timer of the peer with this index.
    Peer(u32),
}

impl Peer {
    fn next_timeout(&self, local: PlaneSet) -> Time {
        let update = self.status_update.map_or(Time::NEVER, |update| update.due);
        update.min(self.reachability.next_timeout(local)).min(self.refresh_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_to_updates_are_those_since_the_last_change() {
        for first_id in [0, 100, 0x0fff, u16::MAX] {
            let update = |sent| StatusUpdate { due: Time::ZERO, tries: 5, sent, first_id };
            let sent = [0, 1, 2].map(|sent| update(sent).next_id());
            let answered: Vec<_> = (0..=u16::MAX).filter(|&id| update(3).is_answered_by(id)).collect();
            assert_eq!(answered.len(), 3);
            assert!(sent.iter().all(|id| answered.contains(id) && id >> 12 == first_id >> 12), "{sent:?}");
            assert!(!update(0).is_answered_by(first_id), "none was sent");
        }
    }
}
