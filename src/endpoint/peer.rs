//! Whom queue pairs are connected to: addresses, header templates, and the state of their ports.
//!
//! Queue pairs to one NIC share a [`Peer`], so that templates are stored once and a port status
//! update reaches all of them.

use std::net::IpAddr;

use spindrift_pmd::MacAddr;

use crate::path::PortMask;
use crate::time::Time;
use crate::wire::StackTemplate;

use super::config::{EndpointConfig, EndpointError, PortAddr};

/// A peer NIC.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) ports: Vec<PortAddr>,
    pub(super) udp_port: u16,
    /// One template a plane that both sides have.
    pub(super) templates: Vec<StackTemplate>,
    /// Ports that the peer says can be reached.
    pub(super) up: PortMask,
    /// Queue pairs connected to it.
    pub(super) refs: u32,
    /// A port status update that the peer has not answered yet.
    pub(super) status_update: Option<StatusUpdate>,
    pub(super) status_seen: Option<StatusSeen>,
}

/// A port status update under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct StatusUpdate {
    /// When the next one goes out.
    pub(super) due: Time,
    pub(super) tries: u8,
    /// Request id of the first update that says what is true now; an answer to an earlier one confirms what
    /// is no longer so.
    pub(super) first_id: u16,
}

/// The newest port status update that a peer sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct StatusSeen {
    id: u16,
    at: Time,
}

impl StatusSeen {
    /// How long a packet may wander through the network, ns. Ids are compared no longer than this, because a
    /// peer may start them over.
    const LIFETIME_NS: u64 = 1_000_000_000;
}

impl Peer {
    pub(super) fn new(
        cfg: &EndpointConfig,
        ports: &[PortAddr],
        udp_port: u16,
    ) -> Result<Self, EndpointError> {
        if ports.is_empty() || ports.len() > EndpointConfig::MAX_PORTS {
            return Err(EndpointError::Ports(format!("{} given, 1 to 32 needed", ports.len())));
        }
        let templates = cfg
            .ports
            .iter()
            .zip(ports)
            .map(|(ours, theirs)| {
                StackTemplate::new(ours.mac, MacAddr(theirs.mac), ours.ip, theirs.ip, udp_port, cfg.hop_limit)
            })
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| EndpointError::Ports(error.to_string()))?;
        Ok(Self {
            ports: ports.to_vec(),
            udp_port,
            templates,
            up: PortMask(u32::MAX),
            refs: 0,
            status_update: None,
            status_seen: None,
        })
    }

    /// Whether the port status update with this request id is no older than the newest that was taken in. The
    /// network may reorder and repeat them, and acting on an old one would leave the planes wrong for good.
    pub(super) fn is_news(&mut self, id: u16, now: Time) -> bool {
        let old = self.status_seen.is_some_and(|seen| {
            (id.wrapping_sub(seen.id) as i16) < 0 && now.since(seen.at) < StatusSeen::LIFETIME_NS
        });
        if !old {
            self.status_seen = Some(StatusSeen { id, at: now });
        }
        !old
    }

    /// Whether the last port status update came so long ago that it cannot belong to a connection being made now.
    pub(super) fn status_is_old(&self, now: Time) -> bool {
        const SET_UP_NS: u64 = 10_000_000_000;
        self.status_seen.is_none_or(|seen| now.since(seen.at) > SET_UP_NS)
    }

    /// Planes that both sides have.
    pub(super) fn planes(&self) -> u8 {
        self.templates.len() as u8
    }

    /// Whether `ip` is one of the peer's addresses; `port`, where the packet came in, is tried first.
    #[inline]
    pub(super) fn owns(&self, ip: IpAddr, port: u8) -> bool {
        self.ports.get(usize::from(port)).is_some_and(|addr| addr.ip == ip)
            || self.ports.iter().any(|addr| addr.ip == ip)
    }
}
