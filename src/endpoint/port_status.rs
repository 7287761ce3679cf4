//! Port status updates in both directions: what a peer's updates change, and how peers learn about our ports.
//!
//! An update received is a hint, checked by [`PeerPlanes`](super::planes::PeerPlanes). Ours are
//! repeated until they are answered, spread out so that many peers can be told.

use std::net::IpAddr;

use crate::path::PlaneSet;
use crate::time::Time;
use crate::wire::{EndpointOp, Ev};

use super::Endpoint;
use super::log;
use super::origin::Source;
use super::peer::{Peer, StatusUpdate, Sweep};
use super::planes::jittered;
use super::share::{AnswerPorts, Heard};
use super::timers::Request;

impl Endpoint {
    /// Marks timers that belong to a peer rather than to a queue pair.
    pub(super) const PEER_TIMER: u32 = 1 << 31;
    /// The timer of the sweep over all peers.
    pub(super) const SWEEP_TIMER: u32 = u32::MAX;

    /// Time from the first port status update to the next when the peer does not answer, ns, give or take a
    /// quarter. It doubles with every one, up to the maximum.
    const STATUS_RETRY_NS: u64 = 1_000_000;
    const STATUS_RETRY_MAX_NS: u64 = 1_000_000_000;
    /// Port status updates sent before a silent peer is left alone, after about a minute.
    const STATUS_TRIES: u8 = 64;
    /// Time from telling one peer of a port to telling the next, ns.
    const STATUS_PACE_NS: u64 = 2_000;
    /// Time until a request that the full queue refused is tried again, ns, give or take a quarter.
    const PUT_OFF_NS: u64 = 100_000;
    /// Peers that share an address, as far as endpoint operations are concerned.
    pub(super) const SHARED: usize = 8;
    /// Queue pairs that learn of new planes in one go, and peers that are told of our ports.
    pub(super) const SLICE: usize = 16;

    /// The peers that have this address.
    pub(super) fn peers_at(&self, ip: IpAddr) -> ([u32; Self::SHARED], usize) {
        let mut found = [0; Self::SHARED];
        let mut count = 0;
        for (slot, &(_, index)) in found.iter_mut().zip(self.peer_addrs.range((ip, 0)..=(ip, u32::MAX))) {
            *slot = index;
            count += 1;
        }
        (found, count)
    }

    /// Where answers to what comes from this address go, as far as this endpoint knows.
    pub(super) fn answer_ports(&self, ip: IpAddr) -> AnswerPorts {
        let (peers, count) = self.peers_at(ip);
        let mut ports = AnswerPorts::default();
        for &index in &peers[..count] {
            if let Some(peer) = self.peers.get(index as usize).and_then(Option::as_ref) {
                ports.add(peer.udp_port);
            }
        }
        ports
    }

    /// A peer, or someone in its name, says which of its ports can be reached. Only what is believed is answered.
    pub(super) fn on_port_status(&mut self, now: Time, source: &Source<'_>, mask: u32) -> Heard {
        let (peers, count) = self.peers_at(source.meta.src);
        if count == 0 {
            return Heard::Stranger;
        }
        log::peer_says(source.meta.src, source.port, mask);
        let mut heard = Heard::Contradiction;
        for &index in &peers[..count] {
            let Some(peer) = self.peers.get_mut(index as usize).and_then(Option::as_mut) else { continue };
            if peer.port_of(source.meta.src, source.port).is_some_and(|port| mask >> port & 1 == 0) {
                continue;
            }
            heard = Heard::Believed;
            let ops = &mut self.ops;
            let before = peer.ports_seen.open();
            if peer.ports_seen.on_update(now, mask, self.ports_up, &mut || ops.draw_id()) {
                self.counters.peer_port_changes += 1;
                peer.refresh_from = peer.members.len();
                self.log_peer_planes(index, before);
            }
            self.run_peer(now, index, &mut { Self::SLICE });
            self.hear(index, source);
        }
        heard
    }

    /// An EV probe came from a peer: the plane that it took works.
    pub(super) fn hear_probe(&mut self, source: &Source<'_>) {
        let (peers, count) = self.peers_at(source.meta.src);
        for &index in &peers[..count] {
            self.hear(index, source);
        }
    }

    /// A response came from `index` to a request that left over the same plane at `sent_at`.
    pub(super) fn on_proof(&mut self, now: Time, index: u32, source: &Source<'_>, sent_at: Time) {
        let Some(peer) = self.peers.get_mut(index as usize).and_then(Option::as_mut) else { return };
        if peer.sent_from(source.meta.src, source.port) && peer.ports_seen.on_proof(source.port, sent_at) {
            self.run_peer(now, index, &mut { Self::SLICE });
        }
    }

    /// A packet that was accepted came from this peer: a plane that works is not left closed.
    #[cold]
    pub(super) fn hear(&mut self, index: u32, source: &Source<'_>) {
        let Some(peer) = self.peers.get_mut(index as usize).and_then(Option::as_mut) else { return };
        if peer.ports_seen.hear(source.port) {
            if peer.sent_from(source.meta.src, source.port) {
                self.arm_peer(index);
            } else {
                peer.ports_seen.unhear(source.port);
            }
        }
    }

    /// A response came from `index`. Whether it was one to a port status update or a probe of a plane.
    pub(super) fn on_peer_response(&mut self, now: Time, index: u32, source: &Source<'_>, id: u16) -> bool {
        let Some(peer) = self.peers.get_mut(index as usize).and_then(Option::as_mut) else { return false };
        if peer.status_update.is_some_and(|update| update.is_answered_by(id)) {
            peer.status_update = None;
            return true;
        }
        let ops = &mut self.ops;
        if !peer.sent_from(source.meta.src, source.port)
            || !peer.ports_seen.on_answer(now, source.port, id, &mut || ops.draw_id())
        {
            return false;
        }
        self.run_peer(now, index, &mut { Self::SLICE });
        true
    }

    /// Does what a peer is due for, and arms its timer. At most so many of its queue pairs learn of new planes; those
    /// that do are taken from `refreshes`.
    pub(super) fn run_peer(&mut self, now: Time, index: u32, refreshes: &mut usize) {
        let Some(peer) = self.peers.get_mut(index as usize).and_then(Option::as_mut) else { return };
        peer.ports_seen.listen(now);
        while let Some(peer) = self.peers.get(index as usize).and_then(Option::as_ref)
            && let Some((plane, id)) = peer.ports_seen.probe_due(now, self.ports_up)
        {
            let evs = peer.ports_seen.probe_evs(plane);
            let sent = self.probe_plane(now, index, (plane, evs), id);
            let random = self.ops.draw();
            let Some(peer) = self.peers.get_mut(index as usize).and_then(Option::as_mut) else { return };
            if sent > 0 {
                self.counters.tx_plane_probes += sent;
                peer.ports_seen.probed(now, plane, random);
            } else {
                peer.ports_seen.put_off(now, plane, jittered(Self::PUT_OFF_NS, u64::MAX, random));
            }
        }
        self.review_planes(index);
        self.refresh_slice(now, index, refreshes);
        self.announce_if_due(now, index);
        self.arm_peer(index);
    }

    fn review_planes(&mut self, index: u32) {
        let Some(peer) = self.peers.get_mut(index as usize).and_then(Option::as_mut) else { return };
        let before = peer.ports_seen.open();
        if peer.ports_seen.review(self.ports_up) {
            self.counters.peer_port_changes += 1;
            self.log_peer_planes(index, before);
            self.refresh_all(index);
        }
    }

    /// Tells the next few queue pairs of a peer's planes, last to first. A queue pair that connects meanwhile
    /// knows them, and one that leaves gives its place to one that has been told.
    fn refresh_slice(&mut self, now: Time, index: u32, refreshes: &mut usize) {
        while *refreshes > 0 {
            let Some(peer) = self.peers.get_mut(index as usize).and_then(Option::as_mut) else { return };
            peer.refresh_from = peer.refresh_from.min(peer.members.len());
            let Some(at) = peer.refresh_from.checked_sub(1) else { break };
            peer.refresh_from = at;
            *refreshes -= 1;
            let slot = peer.members[at];
            self.refresh_ports(now, slot);
        }
        if let Some(peer) = self.peers.get_mut(index as usize).and_then(Option::as_mut) {
            // Later than now, so that the driver has other work done in between.
            peer.refresh_at = if peer.refresh_from > 0 { now.after(1) } else { Time::NEVER };
        }
    }

    /// Makes sure that the peer's next deadline is in the heap.
    pub(super) fn arm_peer(&mut self, index: u32) {
        let local = self.ports_up;
        let Some(peer) = self.peers.get_mut(index as usize).and_then(Option::as_mut) else { return };
        let at = peer.next_timeout(local);
        if at < peer.armed_at {
            peer.armed_at = at;
            self.push_timer(at, index | Self::PEER_TIMER);
        }
    }

    /// Follows a change of our own ports: every peer is told, one after the other, and so are the queue pairs
    /// connected to it.
    pub(super) fn announce_to_all(&mut self, now: Time) {
        let count = self.peers.len() as u32;
        let next = u32::from(self.ops.draw()) % count.max(1);
        self.sweep = Sweep { began: now, next, count, left: count, told: 0, at: Time::NEVER };
        self.run_sweep(now, &mut { Self::SLICE });
    }

    /// Goes on to the next few peers. Those that came since it began know our ports from the start.
    pub(super) fn run_sweep(&mut self, now: Time, refreshes: &mut usize) {
        for _ in 0..Self::SLICE.min(self.sweep.left as usize) {
            let index = self.sweep.next;
            self.sweep.next = (index + 1) % self.sweep.count;
            self.sweep.left -= 1;
            let due = self.sweep.began.after(u64::from(self.sweep.told) * Self::STATUS_PACE_NS);
            if self.start_announcing(due, index) {
                self.sweep.told += 1;
                self.review_planes(index);
                self.refresh_all(index);
                self.run_peer(now, index, refreshes);
            }
        }
        self.sweep.at = Time::NEVER;
        if self.sweep.left > 0 {
            // Later than now, so that the driver has other work done in between.
            self.sweep.at = now.after(1);
            self.push_timer(self.sweep.at, Self::SWEEP_TIMER);
        }
    }

    /// Has every queue pair of a peer look at the planes again, soon.
    fn refresh_all(&mut self, index: u32) {
        if let Some(peer) = self.peers.get_mut(index as usize).and_then(Option::as_mut) {
            peer.refresh_from = peer.members.len();
        }
    }

    /// Starts telling a peer at `due` which of our ports can be reached. `false` if there is no such peer.
    pub(super) fn start_announcing(&mut self, due: Time, index: u32) -> bool {
        let first_id = self.ops.draw_id();
        let Some(peer) = self.peers.get_mut(index as usize).and_then(Option::as_mut) else { return false };
        peer.status_update = Some(StatusUpdate { due, tries: 0, sent: 0, first_id });
        true
    }

    /// Sends the port status over the next plane that is up, until it is answered.
    fn announce_if_due(&mut self, now: Time, index: u32) {
        let up = self.ports_up;
        let Some(peer) = self.peers.get_mut(index as usize).and_then(Option::as_mut) else { return };
        let Some(mut update) = peer.status_update.filter(|update| update.due <= now) else { return };
        if update.tries >= Self::STATUS_TRIES {
            peer.status_update = None;
            log::peer_is_deaf(peer.ports.first().map(|port| port.ip));
            self.counters.tx_port_status_unheard += 1;
            return;
        }
        let usable = PlaneSet(up.0 & peer.ports_seen.open().0);
        let plane = nth_plane(usable, u32::from(update.tries));
        let id = update.next_id();
        let refused = plane.is_some_and(|plane| {
            let ev = self.next_ev(index, plane, true);
            let request = |ev| Request { plane, ev, op: EndpointOp::PortStatusUpdate, id };
            !ev.is_some_and(|ev| self.queue_request(now, index, &request(ev)))
        });
        let (wait, most) = if refused {
            (Self::PUT_OFF_NS, u64::MAX)
        } else {
            (Self::STATUS_RETRY_NS << update.tries.min(10), Self::STATUS_RETRY_MAX_NS)
        };
        update.due = now.after(jittered(wait, most, self.ops.draw()));
        update.tries += u8::from(!refused);
        update.sent += u8::from(!refused && plane.is_some());
        if let Some(peer) = self.peers.get_mut(index as usize).and_then(Option::as_mut) {
            peer.status_update = Some(update);
        }
    }

    /// Probes a plane over so many of its entropy values, or all if there are fewer. How many probes were queued.
    fn probe_plane(&mut self, now: Time, index: u32, (plane, evs): (u8, usize), id: u16) -> u64 {
        let (mut first, mut sent) = (None, 0);
        for _ in 0..evs {
            // One alone takes a path that is known to work. When it had no answer, what is known counts for nothing.
            let Some(ev) = self.next_ev(index, plane, evs == 1).filter(|&ev| first != Some(ev)) else {
                break;
            };
            first = first.or(Some(ev));
            let request = Request { plane, ev, op: EndpointOp::EvProbe, id };
            if !self.queue_request(now, index, &request) {
                break;
            }
            sent += 1;
        }
        sent
    }

    /// The entropy value for a request to a peer that belongs to no queue pair. The peer's queue pairs have values of which there are
    /// paths to it; these are taken in turn, so that one path that fails does not stop all requests.
    fn next_ev(&mut self, index: u32, plane: u8, work: bool) -> Option<Ev> {
        let peer = self.peers.get_mut(index as usize)?.as_mut()?;
        let turn = peer.ev_turns.get_mut(usize::from(plane))?;
        let member = *peer.members.first()?;
        let ev = self.qps.get(member as usize)?.as_deref()?.paths.ev_in_turn(plane, *turn, work);
        *turn = turn.wrapping_add(1);
        ev
    }
}

impl Peer {
    fn next_timeout(&self, local: PlaneSet) -> Time {
        let update = self.status_update.map_or(Time::NEVER, |update| update.due);
        update.min(self.ports_seen.next_timeout(local)).min(self.refresh_at)
    }
}

/// The `n`th plane of a set, counting round and round.
fn nth_plane(set: PlaneSet, n: u32) -> Option<u8> {
    let count = set.0.count_ones();
    let n = n.checked_rem(count)?;
    (0..32).filter(|&plane| set.contains(plane)).nth(n as usize)
}
