//! Opens the ports of a run, with captures and faults around them.

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::{Context as _, Result};
use spindrift::endpoint::{EndpointConfig, QpnShare};
use spindrift::verbs::{nic, nic_of_queues};
use spindrift::wire::DscpMap;
use spindrift_pmd::Port;
use spindrift_pmd::fault::{FaultPlan, FaultPort, FaultStats};
use spindrift_pmd::loopback::{self, LoopbackConfig};
use spindrift_pmd::pcap::{Capture, PcapPort};
use spindrift_pmd::rate::RatePort;
use spindrift_pmd::udp::{Offload, UdpConfig, UdpError, UdpPort};

use super::af_xdp;
use super::options::Settings;
use crate::place::Local;
use crate::usage::usage;

/// DSCP that the fault port writes on trimmed packets unless its rule says otherwise.
const FAULT_TRIM_DSCP: u8 = 12;
/// Headers before the payload and the checksum behind it, with room for an outer IPv6 header.
const FRAME_ROOM: usize = EndpointConfig::overhead(true) + 48;
/// Ports to try when the kernel's choice for one address is taken on another.
const PORT_TRIES: usize = 16;

/// The ports of one side.
pub(crate) struct Nic {
    /// Of each lane, by plane.
    pub(crate) lanes: Vec<Vec<Box<dyn Port>>>,
    /// UDP port at which this side receives, if its ports know.
    pub(crate) udp_port: Option<u16>,
    pub(crate) faults: Vec<Arc<FaultStats>>,
    pub(crate) capture: Option<Capture>,
    /// Whether the kernel may segment what is sent.
    pub(crate) gso: bool,
}

impl Nic {
    fn new(lanes: Vec<Vec<Box<dyn Port>>>, udp_port: Option<u16>) -> Self {
        Self { lanes, udp_port, faults: Vec::new(), capture: None, gso: false }
    }

    pub(crate) fn planes(&self) -> usize {
        self.lanes.first().map_or(0, Vec::len)
    }

    /// The same with something around every port, told by lane and plane.
    fn wrapped(mut self, mut wrap: impl FnMut(usize, usize, Box<dyn Port>) -> Box<dyn Port>) -> Self {
        for (lane, ports) in self.lanes.iter_mut().enumerate() {
            *ports = ports.drain(..).enumerate().map(|(plane, port)| wrap(lane, plane, port)).collect();
        }
        self
    }

    /// Ports that are as slow as is wanted: above the faults, for what is lost on its way has left by a port.
    pub(crate) fn with_rate(self, settings: &Settings) -> Self {
        let Some(rate) = settings.link_rate else { return self };
        // Each lane has a part of its plane's link.
        let each = rate / self.lanes.len().max(1) as u64;
        self.wrapped(|_, _, port| Box::new(RatePort::new(port, each)))
    }

    /// Captures below the faults: what the network carries.
    pub(crate) fn with_capture(self, settings: &Settings) -> Result<Self> {
        let Some(path) = &settings.pcap else { return Ok(self) };
        let capture = Capture::create(path, lane_epoch_ns()).context("--pcap")?;
        let nic = self.wrapped(|_, _, port| Box::new(PcapPort::new(port, capture.clone())));
        Ok(Self { capture: Some(capture), ..nic })
    }

    /// Puts faults around every port. `side` makes the two sides' faults differ; those of lanes do too.
    pub(crate) fn with_faults(self, settings: &Settings, side: u64) -> Self {
        let Some(plan) = &settings.fault else { return self };
        let plan = recognisable(plan, settings.config.transport.dscp.unwrap_or_default());
        let seed = settings.seed.unwrap_or_default() ^ side.wrapping_mul(0xd1b5_4a32_d192_ed03);
        let mut faults = Vec::new();
        let nic = self.wrapped(|lane, plane, port| {
            let seed = seed ^ (lane as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let port = FaultPort::new(port, plane, plan.clone(), seed);
            faults.push(port.stats());
            Box::new(port)
        });
        Self { faults, ..nic }
    }
}

/// Trimming switches and endpoints share a table of code points. Ports know none, so the fault port's own
/// default is replaced by the endpoint's.
fn recognisable(plan: &FaultPlan, dscp: DscpMap) -> FaultPlan {
    let mut plan = plan.clone();
    for trim in plan.rules.iter_mut().filter_map(|rule| rule.trim.as_mut()) {
        if trim.dscp == FAULT_TRIM_DSCP {
            trim.dscp = dscp.trimmed;
        }
    }
    plan
}

/// Two NICs joined by rings, lane by lane.
pub(crate) fn loopback_pair(settings: &Settings, planes: usize) -> [Nic; 2] {
    let frame_max = settings.mtu as usize + FRAME_ROOM;
    let config = LoopbackConfig { frame_max, ..LoopbackConfig::default() };
    let pairs = (0..settings.lanes).map(|_| loopback::pair(planes, config));
    let (left, right) = pairs.map(|(left, right)| (nic(left), nic(right))).unzip();
    [left, right].map(|lanes| Nic::new(lanes, None))
}

/// Two NICs of kernel sockets on this machine's loopback addresses: side 0 on 127.0.0.1, 127.0.0.3, ..; side 1
/// on 127.0.0.2, 127.0.0.4, ..
pub(crate) fn udp_pair(settings: &Settings, planes: usize) -> Result<[Nic; 2]> {
    let nic = &settings.config.nic;
    let given = [("nic.local", settings.local().is_some()), ("nic.topology", nic.topology.is_some())];
    if let Some((key, _)) = given.into_iter().find(|(_, given)| *given) {
        let place = settings.config.place(key);
        return Err(usage(format!(
            "{place}: `loopback` chooses the addresses of both sides; use --planes, or `write-bw` between hosts"
        )));
    }
    let addresses = |side: usize| -> Vec<Local> {
        let address = |plane: usize| Ipv4Addr::new(127, 0, 0, (1 + 2 * plane + side) as u8);
        (0..planes).map(|plane| Local::new(address(plane).into(), None)).collect()
    };
    let wanted = settings.config.transport.udp_port.unwrap_or(0);
    pair_of(wanted, |side, port| try_open_udp(settings, &addresses(side), port))
}

/// Two sides with the same port. One that is free for the first side is not so for the second, always.
fn pair_of(port: u16, mut open: impl FnMut(usize, u16) -> Result<Nic>) -> Result<[Nic; 2]> {
    again_if_any(port, || {
        let left = open(0, port)?;
        let right = open(1, left.udp_port.unwrap_or(port))?;
        Ok([left, right])
    })
}

/// Kernel sockets on these addresses, all with the same port; the kernel chooses it where it is 0.
pub(crate) fn open_udp(settings: &Settings, local: &[Local], port: u16) -> Result<Nic> {
    again_if_any(port, || try_open_udp(settings, local, port))
}

/// Ports past the kernel at these places, which are interfaces' addresses, all with the same UDP port; any that is free if it is 0.
pub(crate) fn open_af_xdp(settings: &Settings, local: &[Local], port: u16) -> Result<Nic> {
    again_if_any(port, || {
        let port = match (port, local.first()) {
            // What is free at one address is most likely free at the others.
            (0, Some(first)) => UdpSocket::bind((first.address, 0))?.local_addr()?.port(),
            _ => port,
        };
        let planes = af_xdp::open(settings, local, port)?;
        Ok(Nic::new(nic_of_queues(planes), Some(port)))
    })
}

/// Whether the reason is that somebody else has the UDP port.
pub(crate) fn is_in_use(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(UdpError::PortInUse { .. })) || af_xdp::is_in_use(error)
}

/// Tries several times if any port will do.
fn again_if_any<T>(port: u16, mut open: impl FnMut() -> Result<T>) -> Result<T> {
    let mut tries = if port == 0 { PORT_TRIES } else { 1 };
    loop {
        tries -= 1;
        match open() {
            Err(error) if tries > 0 && is_in_use(&error) => {}
            done => return done,
        }
    }
}

fn try_open_udp(settings: &Settings, local: &[Local], mut port: u16) -> Result<Nic> {
    let mut planes = Vec::new();
    for Local { address, interface, towards } in local {
        let mut config = UdpConfig {
            local: *address,
            interface: interface.clone(),
            peer: towards.map(|towards| towards.peer),
            port,
            gso: if settings.gso { Offload::Auto } else { Offload::Off },
            ..UdpConfig::default()
        };
        if let Some(set) = settings.config.nic.source_ports {
            config.source_ports = set.into();
        }
        let queues = UdpPort::open_queues(&config, settings.lanes, &QpnShare::STEERING)
            .with_context(|| format!("cannot open a port on {address}"))?;
        port = queues.first().map_or(port, UdpPort::port);
        planes.push(queues);
    }
    Ok(Nic { gso: settings.gso, ..Nic::new(nic_of_queues(planes), Some(port)) })
}

/// Nanoseconds from 1970 to the epoch of the lanes' clock, which is the first use of it: about now.
fn lane_epoch_ns() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    /// Somebody has the second side's port: another will do, unless it was asked for.
    #[test]
    fn a_port_that_one_side_lacks_is_chosen_again() {
        let address = Ipv4Addr::new(127, 0, 0, 2).into();
        for (wanted, taken, tries) in [(0, 2, 3), (0, 99, PORT_TRIES), (4971, 99, 1)] {
            let mut opened = Vec::new();
            let pair = pair_of(wanted, |side, port| {
                let first = opened.len() as u16 / 2;
                opened.push((side, port));
                if side == 1 && first < taken {
                    return Err(UdpError::PortInUse { address, port }).context("cannot open a port");
                }
                Ok(Nic::new(Vec::new(), Some(if port == 0 { 50_000 + first } else { port })))
            });
            let expected: Vec<_> = (0..tries as u16)
                .flat_map(|n| [(0, wanted), (1, if wanted == 0 { 50_000 + n } else { wanted })])
                .collect();
            assert_eq!(opened, expected, "{wanted} {taken}");
            assert_eq!(pair.is_ok(), taken == 2, "{wanted} {taken}");
        }
    }
}
