//! Attributes and counters of a port.

use std::net::IpAddr;

use spindrift_pmd::{LinkState, MacAddr, Medium, PortCaps, PortCounters};

use crate::endpoint::EndpointConfig;

/// A port: its properties, its capabilities and its counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortAttr {
    /// The lane that it belongs to.
    pub lane: usize,
    /// The plane of the network that it is on: its index in the list of ports.
    pub plane: usize,
    /// Kind and address, for display.
    pub name: String,
    /// The source address of packets.
    pub ip: IpAddr,
    /// Ethernet address; zero where a kernel socket hides it.
    pub mac: MacAddr,
    /// Whether the link is up, as the lane last checked. It checks every 10 us while it is driven.
    pub link: LinkState,
    /// Longest Ethernet frame in bytes that is sent here, with its header.
    pub max_frame: usize,
    /// Largest payload of a packet in bytes that fits in such a frame. The smallest value of a lane's ports limits the
    /// path MTU of its queue pairs.
    pub max_mtu: u32,
    /// The largest number of frames sent in one burst.
    pub max_burst: usize,
    /// The only UDP source ports that can be used; `None`: any.
    pub source_ports: Option<Vec<u16>>,
    /// How many frames of one source port and one size are worth sending in one burst; 1: no gain.
    pub same_path_batch: usize,
    /// Whether the port may keep payload for a while after a packet has left. The request completes only after that.
    pub holds_payloads: bool,
    /// The medium that packets travel over, and its rate.
    pub medium: Medium,
    /// Notes for the user, such as an offload that the kernel lacks.
    pub notes: Vec<String>,
    /// Errors seen while sending, each kind once, with an explanation.
    pub send_errors: Vec<String>,
    /// Counters since it was opened.
    pub counters: PortCounters,
}

impl PortAttr {
    /// The ports of a lane with these settings, with all counters zero.
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
