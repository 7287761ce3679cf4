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
    /// Request id and time of the newest port status update from the peer.
    pub(super) last_status: Option<(u16, Time)>,
}

/// A port status update under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct StatusUpdate {
    pub(super) tries: u32,
    /// When it is sent again.
    pub(super) due: Time,
}

impl Peer {
    pub(super) fn new(cfg: &EndpointConfig, ports: &[PortAddr], udp_port: u16) -> Result<Self, EndpointError> {
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
            last_status: None,
        })
    }

    /// Planes that both sides have.
    pub(super) fn planes(&self) -> u8 {
        self.templates.len() as u8
    }

    /// Whether a port status update was overtaken by a newer one: its id is a little below that of
    /// one that came moments ago. Ids count up; the bounds keep a peer that draws them at random
    /// from being misjudged for long.
    pub(super) fn is_overtaken(&mut self, now: Time, id: u16) -> bool {
        const RECENT_NS: u64 = 100_000_000;
        const BEHIND: i16 = -1024;
        let overtaken = self.last_status.is_some_and(|(last, at)| {
            now.since(at) < RECENT_NS && (BEHIND..0).contains(&(id.wrapping_sub(last) as i16))
        });
        if !overtaken {
            self.last_status = Some((id, now));
        }
        overtaken
    }

    /// Whether `ip` is one of the peer's addresses; `port`, where the packet came in, is tried first.
    #[inline]
    pub(super) fn owns(&self, ip: IpAddr, port: u8) -> bool {
        self.ports.get(usize::from(port)).is_some_and(|addr| addr.ip == ip)
            || self.ports.iter().any(|addr| addr.ip == ip)
    }
}
