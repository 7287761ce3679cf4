//! The peers that queue pairs are connected to: addresses, header templates, and the state of their ports.
//!
//! Queue pairs to one NIC share a [`Peer`], so that templates are stored once and a port status
//! update reaches all of them.

use std::net::IpAddr;

use crate::time::Time;
use crate::wire::StackTemplate;

use super::attr::PortAddr;
use super::config::EndpointConfig;
use super::error::EndpointError;
use super::planes::PeerPlanes;
use super::routes::Routes;

/// A peer NIC.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) ports: Vec<PortAddr>,
    pub(super) udp_port: u16,
    /// One template a plane that both sides have.
    pub(super) templates: Vec<StackTemplate>,
    /// Which of its ports can be reached, as far as is known.
    pub(super) ports_seen: PeerPlanes,
    /// For each plane, whose turn it is among the entropy values, to carry a packet that belongs to no queue pair.
    pub(super) ev_turns: Vec<u32>,
    /// Slots of the queue pairs connected to it.
    pub(super) members: Vec<u32>,
    /// Congestion windows that some of them share.
    pub(super) cwnds: Vec<u32>,
    /// `members` below this have not heard of the last change of planes.
    pub(super) refresh_from: usize,
    /// When the next of them should; never if all have.
    pub(super) refresh_at: Time,
    /// A port status update that the peer has not answered yet.
    pub(super) status_update: Option<StatusUpdate>,
    /// The earliest live entry of the timer heap.
    pub(super) armed_at: Time,
}

/// A change of our own ports on its way to the peers, from one that is drawn at random once around.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sweep {
    pub(super) began: Time,
    /// The place of the next peer, of so many.
    pub(super) next: u32,
    pub(super) count: u32,
    /// Places still to be visited.
    pub(super) left: u32,
    pub(super) told: u32,
    /// When it goes on; never if it is over.
    pub(super) at: Time,
}

impl Sweep {
    pub(super) const OVER: Self =
        Self { began: Time::ZERO, next: 0, count: 0, left: 0, told: 0, at: Time::NEVER };
}

/// A port status update under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct StatusUpdate {
    /// When the next one goes out.
    pub(super) due: Time,
    pub(super) tries: u8,
    /// Updates sent; fewer than tries if no plane was up.
    pub(super) sent: u8,
    /// Request id of the first update that says what is true now, drawn at random; those that follow differ in the
    /// last eight bits. An answer to an earlier one confirms what is no longer so.
    pub(super) first_id: u16,
}

impl StatusUpdate {
    /// The request id of the next update.
    pub(super) const fn next_id(self) -> u16 {
        // The top four bits say whose it is, so they stay.
        self.first_id ^ self.sent as u16
    }

    pub(super) const fn is_answered_by(self, id: u16) -> bool {
        id ^ self.first_id < self.sent as u16
    }
}

impl Peer {
    pub(super) fn new(
        cfg: &EndpointConfig,
        routes: &Routes,
        ports: &[PortAddr],
        udp_port: u16,
    ) -> Result<Self, EndpointError> {
        if ports.is_empty() || ports.len() > EndpointConfig::MAX_PORTS {
            return Err(EndpointError::Ports(format!("{} given, 1 to 32 needed", ports.len())));
        }
        let templates = (0..)
            .zip(&cfg.ports)
            .zip(ports)
            .map(|(ours, theirs)| routes.template(cfg, ours, theirs, udp_port))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| EndpointError::Ports(error.to_string()))?;
        Ok(Self {
            ports: ports.to_vec(),
            udp_port,
            ports_seen: PeerPlanes::new(templates.len() as u8),
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

    /// Whether `ip` is one of the peer's addresses; `port`, where the packet came in, is tried first.
    #[inline]
    pub(super) fn owns(&self, ip: IpAddr, port: u8) -> bool {
        self.sent_from(ip, port) || self.owns_elsewhere(ip)
    }

    #[cold]
    fn owns_elsewhere(&self, ip: IpAddr) -> bool {
        self.ports.iter().any(|addr| addr.ip == ip)
    }

    /// Whether a packet that came in on our `port` from `ip` left the peer on the same plane.
    #[inline]
    pub(super) fn sent_from(&self, ip: IpAddr, port: u8) -> bool {
        self.ports.get(usize::from(port)).is_some_and(|addr| addr.ip == ip)
    }

    /// The peer's port that a packet left from: of those with address `ip`, the one on the plane where it
    /// came in, if there is.
    pub(super) fn port_of(&self, ip: IpAddr, port: u8) -> Option<u8> {
        if self.sent_from(ip, port) {
            return Some(port);
        }
        self.ports.iter().position(|addr| addr.ip == ip).map(|at| at as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::port;
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
