//! What a port is and what it has done.

use std::net::IpAddr;

use spindrift_pmd::{LinkState, MacAddr, Medium, PortCaps, PortCounters};

use crate::endpoint::EndpointConfig;

/// A port: what it is, what it can do, and what it has done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortAttr {
    /// The lane that it belongs to.
    pub lane: usize,
    /// The plane of the network that it is on: its place in the list of ports.
    pub plane: usize,
    /// For people: kind and address.
    pub name: String,
    /// The address that packets leave from.
    pub ip: IpAddr,
    /// Ethernet address; zero where a kernel socket hides it.
    pub mac: MacAddr,
    /// Whether the link is up, as the lane saw it last; it looks every 10 us while it is driven.
    pub link: LinkState,
    /// Longest Ethernet frame in bytes that is sent here, header included.
    pub max_frame: usize,
    /// Largest payload of a packet in bytes that fits in such a frame. The least of a lane's ports bounds the path MTU of its
    /// queue pairs.
    pub max_mtu: u32,
    /// Most frames that are sent in one burst.
    pub max_burst: usize,
    /// The only UDP source ports that can be used; `None`: any.
    pub source_ports: Option<Vec<u16>>,
    /// Frames of one source port and one size that pay to be sent in one burst; 1: no gain.
    pub same_path_batch: usize,
    /// Whether the port may keep payload for a while when a packet has left. Its request completes only after that.
    pub holds_payloads: bool,
    /// What packets travel over, and what the link carries.
    pub medium: Medium,
    /// What a user should know, such as an offload that the kernel lacks.
    pub notes: Vec<String>,
    /// Errors that sending has met, each kind once, and what each means.
    pub send_errors: Vec<String>,
    /// What went through since it was opened, and what did not.
    pub counters: PortCounters,
}

impl PortAttr {
    /// The ports of a lane with these settings, before anything has happened.
    pub(super) fn of_lane(lane: usize, settings: &EndpointConfig, caps: &[PortCaps]) -> Vec<Self> {
        let ports = settings.ports.iter().zip(caps).enumerate();
        ports
            .map(|(plane, (local, caps))| Self {
                lane,
                plane,
                name: caps.name.clone(),
                ip: local.ip,
                mac: local.mac,
                link: LinkState::Up,
                max_frame: local.max_frame,
                max_mtu: settings.max_mtu_of(plane),
                max_burst: caps.max_burst,
                source_ports: local.source_ports.clone(),
                same_path_batch: local.same_path_batch,
                holds_payloads: caps.holds_payloads,
                medium: caps.medium,
                notes: caps.notes.clone(),
                send_errors: caps.send_errors.clone(),
                counters: PortCounters::default(),
            })
            .collect()
    }
}
