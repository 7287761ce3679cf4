//! Remote NICs: addresses, header templates, the state of their ports, and endpoint operations.
//!
//! Queue pairs to one NIC share a [`Peer`], so that templates are stored once and a port status update reaches all of
//! them. Connectionless requests and responses (MRC 1.0 sections 7.4.7 and 7.4.8) belong to a peer, not to a queue pair.

mod log;
mod port_reachability;
mod port_status;
mod requests;
mod source;

use std::collections::BTreeSet;
use std::net::IpAddr;

use rand::rngs::ChaCha20Rng;

use crate::config::{EndpointConfig, PortAddr, Routes};
use crate::path::PlaneSet;
use crate::time::Time;
use crate::timers::TimerHeap;
use crate::wire::{Ev, StackTemplate};
use port_reachability::PortReachability;
use port_status::{StatusUpdate, Sweep};
use requests::Requests;

pub(crate) use log::{local_port as log_local_port, port_status as log_port_status};
pub(crate) use port_status::{AnswerPorts, PeerTimer, StatusVerdict};
pub(crate) use requests::{Purpose, Request};
pub(crate) use source::{Meta, Origin, Source};

/// A peer NIC.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) ports: Vec<PortAddr>,
    pub(crate) udp_port: u16,
    /// One template per plane that both sides have.
    pub(crate) templates: Vec<StackTemplate>,
    /// The reachability of its ports, as far as is known.
    pub(crate) reachability: PortReachability,
    /// For each plane, the turn of the entropy values that carry packets of no queue pair.
    pub(crate) ev_turns: Vec<u32>,
    /// Slots of the queue pairs connected to it.
    pub(crate) members: Vec<u32>,
    /// Congestion windows that some of them share.
    pub(crate) cwnds: Vec<u32>,
    /// `members` below this have not been given the last change of planes.
    pub(crate) refresh_from: usize,
    /// When the next of them is updated; never if all are.
    pub(crate) refresh_at: Time,
    /// A port status update that the peer has not acknowledged yet.
    pub(crate) status_update: Option<StatusUpdate>,
    /// The earliest live entry of the timer heap.
    pub(crate) armed_at: Time,
}

/// Information about connected queue pairs that requests to a peer need.
pub(crate) trait Members {
    /// The entropy value number `turn` of the queue pair in `slot` on `plane`; if `work`, one that is known to work.
    fn ev_in_turn(&self, slot: u32, plane: u8, turn: u32, work: bool) -> Option<Ev>;
}

/// All peers of an endpoint.
#[derive(Debug)]
pub(crate) struct Peers {
    slots: Vec<Option<Peer>>,
    /// Slots that are free.
    free: Vec<u32>,
    by_addr: BTreeSet<(IpAddr, u32)>,
    pub(crate) routes: Routes,
    pub(crate) requests: Requests,
    /// Local ports that are up.
    pub(crate) ports_up: PlaneSet,
    sweep: Sweep,
    timers: TimerHeap,
}

impl Peers {
    /// The number of peers with one address that endpoint operations consider.
    pub(crate) const SHARED: usize = 8;

    pub(crate) fn new(cfg: &EndpointConfig, routes: Routes, rng: ChaCha20Rng) -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            by_addr: BTreeSet::new(),
            routes,
            requests: Requests::new(rng, cfg.limits.answers_per_second, cfg.qpns),
            ports_up: PlaneSet::first(cfg.ports.len() as u8),
            sweep: Sweep::OVER,
            timers: TimerHeap::default(),
        }
    }

    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&Peer> {
        self.slots.get(index as usize)?.as_ref()
    }

    /// All slots, for tests.
    #[cfg(test)]
    pub(crate) fn slots(&self) -> impl Iterator<Item = Option<&Peer>> {
        self.slots.iter().map(Option::as_ref)
    }

    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut Peer> {
        self.slots.get_mut(index as usize)?.as_mut()
    }

    /// The headers of packets to a peer on a plane.
    #[inline]
    pub(crate) fn template(&self, index: u32, plane: u8) -> Option<&StackTemplate> {
        self.get(index)?.templates.get(usize::from(plane))
    }

    /// The first address of a peer, for reports.
    pub(crate) fn first_ip(&self, index: u32) -> Option<IpAddr> {
        Some(self.get(index)?.ports.first()?.ip)
    }

    /// The peers with this address.
    pub(crate) fn at(&self, ip: IpAddr) -> ([u32; Self::SHARED], usize) {
        let mut found = [0; Self::SHARED];
        let mut count = 0;
        for (slot, &(_, index)) in found.iter_mut().zip(self.by_addr.range((ip, 0)..=(ip, u32::MAX))) {
            *slot = index;
            count += 1;
        }
        (found, count)
    }

    /// The peer with these addresses, created if it is new.
    ///
    /// # Errors
    /// The reason why these addresses cannot belong to a peer.
    pub(crate) fn join(
        &mut self,
        cfg: &EndpointConfig,
        ports: &[PortAddr],
        udp_port: u16,
    ) -> Result<u32, String> {
        if let Some(first) = ports.first() {
            let same = |index: u32| {
                self.get(index).is_some_and(|peer| peer.udp_port == udp_port && peer.ports == ports)
            };
            let mut there = self.by_addr.range((first.ip, 0)..=(first.ip, u32::MAX));
            if let Some(&(_, index)) = there.find(|(_, index)| same(*index)) {
                return Ok(index);
            }
        }
        let peer = Peer::new(cfg, &self.routes, ports, udp_port)?;
        let at = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        self.by_addr.extend(peer.ports.iter().map(|port| (port.ip, at)));
        if let Some(slot) = self.slots.get_mut(at as usize) {
            *slot = Some(peer);
        }
        Ok(at)
    }

    /// Reserves room in the heap of timers for this many peers.
    pub(crate) fn reserve_for(&mut self, peers: usize) {
        self.timers.reserve_for(peers + 1);
    }

    /// Removes a member, and the peer with its last one. Returns the slot of the queue pair that moved to the member's
    /// place, if one did.
    pub(crate) fn leave(&mut self, index: u32, place: u32) -> Option<u32> {
        let peer = self.slots.get_mut(index as usize)?.as_mut()?;
        peer.members.swap_remove(place as usize);
        if let Some(&moved) = peer.members.get(place as usize) {
            return Some(moved);
        }
        if peer.members.is_empty() {
            for port in &peer.ports {
                self.by_addr.remove(&(port.ip, index));
            }
            self.slots[index as usize] = None;
            self.free.push(index);
        }
        None
    }
}

impl Peer {
    pub(crate) fn new(
        cfg: &EndpointConfig,
        routes: &Routes,
        ports: &[PortAddr],
        udp_port: u16,
    ) -> Result<Self, String> {
        if ports.is_empty() || ports.len() > EndpointConfig::MAX_PORTS {
            return Err(format!("{} given, 1 to 32 needed", ports.len()));
        }
        let templates = (0..)
            .zip(&cfg.ports)
            .zip(ports)
            .map(|(ours, theirs)| routes.template(cfg, ours, theirs, udp_port))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| error.to_string())?;
        Ok(Self {
            ports: ports.to_vec(),
            udp_port,
            reachability: PortReachability::new(templates.len() as u8),
            ev_turns: vec![0; templates.len()],
            templates,
            members: Vec::new(),
            cwnds: Vec::new(),
            refresh_from: 0,
            refresh_at: Time::NEVER,
            status_update: None,
            armed_at: Time::NEVER,
        })
    }

    /// Whether `ip` is one of the peer's addresses; `port`, where the packet arrived, is tried first.
    #[inline]
    pub(crate) fn owns(&self, ip: IpAddr, port: u8) -> bool {
        self.sent_from(ip, port) || self.owns_elsewhere(ip)
    }

    #[cold]
    fn owns_elsewhere(&self, ip: IpAddr) -> bool {
        self.ports.iter().any(|addr| addr.ip == ip)
    }

    /// Whether a packet that arrived on our `port` from `ip` left the peer on the same plane.
    #[inline]
    pub(crate) fn sent_from(&self, ip: IpAddr, port: u8) -> bool {
        self.ports.get(usize::from(port)).is_some_and(|addr| addr.ip == ip)
    }

    /// The peer's port that a packet left from: of those with address `ip`, the one on the plane where it arrived, if
    /// there is one.
    pub(crate) fn port_of(&self, ip: IpAddr, port: u8) -> Option<u8> {
        if self.sent_from(ip, port) {
            return Some(port);
        }
        self.ports.iter().position(|addr| addr.ip == ip).map(|at| at as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::test_port as port;

    #[test]
    fn a_peer_is_known_by_each_of_its_addresses_on_every_plane() {
        let ip = |last: u8| IpAddr::from([10, 0, 0, last]);
        // The last two ports share an address.
        let ports: Vec<_> = [7, 8, 9, 9].map(|last| PortAddr { ip: ip(last), mac: [6; 6] }).into();
        let cfg = EndpointConfig::new((1..5).map(port).collect());
        let peer = Peer::new(&cfg, &Routes::default(), &ports, 4793).unwrap();
        for plane in 0..5 {
            assert!([7, 8, 9].iter().all(|&last| peer.owns(ip(last), plane)));
            assert!(!peer.owns(ip(10), plane));
            assert_eq!([7, 8, 10].map(|last| peer.port_of(ip(last), plane)), [Some(0), Some(1), None]);
            assert_eq!(peer.port_of(ip(9), plane), Some(if plane == 3 { 3 } else { 2 }));
            let from = [7, 8, 9].map(|last| peer.sent_from(ip(last), plane));
            assert_eq!(from, [plane == 0, plane == 1, plane == 2 || plane == 3]);
        }
    }
}
