//! Kernel sockets.

mod pump;

use std::net::Ipv4Addr;

use anyhow::{Context as _, Error, Result};
use spindrift::endpoint::QpnShare;
use spindrift::verbs::nic_of_queues;
use spindrift_pmd::route::LocalAddress;
use spindrift_pmd::udp::{Offload, SOURCE_PORTS_MAX, SourcePorts, UdpConfig, UdpError, UdpPort};
use spindrift_pmd::{Port as _, PortCaps};

use super::backend::again_if_any;
use super::{Backend, Driver, Kernel, Prospect, Reach, Setting, UDP, setting};
use crate::bench::nic::Nic;
use crate::bench::options::Settings;
use crate::place::Local;
use crate::pump::Pump;
use crate::usage::usage;

pub(super) static DRIVER: Driver = Driver {
    name: "udp",
    about: "Kernel sockets",
    how_to_build: "",
    reach: Reach::Both,
    kernel: Kernel::WritesHeaders,
    settings,
    check_place: None,
    in_lab: None,
    pump: Some(Pump::of::<pump::UdpPumpArgs>()),
    backend: Some(&Sockets),
};

fn settings() -> Vec<Setting> {
    use setting::{
        fault, lanes, link_rate, local, pcap, plane_ids, planes, port, routing, topology, udp_port,
    };
    let usual = match UdpConfig::default().source_ports {
        SourcePorts::Count(count) => count,
        SourcePorts::List(list) => list.len(),
    };
    vec![
        port(DRIVER.name),
        planes(),
        lanes(),
        local("list of addresses or interfaces", ["127.0.0.1", "127.0.0.2"]),
        plane_ids(),
        topology(),
        routing("ecmp"),
        Setting::new(("nic.source_ports", "source-ports"), "UDP ports", ("64", "64"))
            .default(usual)
            .or_refused("list of source ports, and uses any"),
        Setting::new(("nic.gso", "no-gso"), "boolean", ("false", ""))
            .default(true)
            .or_refused("segmentation offload"),
        link_rate(),
        fault(),
        udp_port(),
        pcap(),
    ]
}

struct Sockets;

impl Backend for Sockets {
    fn prospects(&self, addresses: &[LocalAddress]) -> Vec<Prospect> {
        Prospect::of_addresses(addresses, |local| Some(probe(local)))
    }

    /// Checks the number of source ports.
    fn check_settings(&self, settings: &Settings, flags: &[&str]) -> Result<()> {
        let (config, flag) = (&settings.config, "--source-ports");
        match config.nic.source_ports {
            Some(set) if !(1..=SOURCE_PORTS_MAX).contains(&set.len()) => {
                let name = config.origin(flags.contains(&flag), flag, "nic.source_ports");
                Err(usage(format!("{name} {set}: give 1 to {SOURCE_PORTS_MAX} ports")))
            }
            _ => Ok(()),
        }
    }

    /// Opens the ports and closes them again.
    fn check(&self, settings: &Settings, local: Option<&[Local]>) -> Result<()> {
        let some = [Local::new(Ipv4Addr::LOCALHOST.into(), None)];
        UDP.open(settings, local.unwrap_or(&some)).map(drop)
    }

    fn open(&self, settings: &Settings, local: &[Local], port: u16) -> Result<Nic> {
        again_if_any(port, is_in_use, || try_open(settings, local, port))
    }

    /// Two NICs on this machine's loopback addresses: side 0 on 127.0.0.1, 127.0.0.3, ..; side 1 on 127.0.0.2, 127.0.0.4, ..
    fn open_pair(&self, settings: &Settings, planes: usize) -> Result<[Nic; 2]> {
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
        pair_of(wanted, |side, port| try_open(settings, &addresses(side), port))
    }

    fn is_in_use(&self, error: &Error) -> bool {
        is_in_use(error)
    }
}

fn is_in_use(error: &Error) -> bool {
    matches!(error.downcast_ref(), Some(UdpError::PortInUse { .. }))
}

/// Opens the port on a UDP port of the kernel's choice and closes it again.
fn probe(local: &LocalAddress) -> Result<PortCaps, String> {
    let interface = Some(local.interface.name.clone());
    let config = UdpConfig { local: local.ip, interface, port: 0, ..UdpConfig::default() };
    let caps = UdpPort::open(&config).map(|port| port.caps().clone()).map_err(|error| error.to_string());
    tracing::info!(local = %local.ip, usable = caps.is_ok(), "port tried");
    caps
}

/// Two sides with the same UDP port. One that is free for the first side need not be free for the second.
fn pair_of(port: u16, mut open: impl FnMut(usize, u16) -> Result<Nic>) -> Result<[Nic; 2]> {
    again_if_any(port, is_in_use, || {
        let left = open(0, port)?;
        let right = open(1, left.udp_port.unwrap_or(port))?;
        Ok([left, right])
    })
}

/// Opens sockets on these addresses, all with the same port; the kernel chooses it where it is 0.
fn try_open(settings: &Settings, local: &[Local], mut port: u16) -> Result<Nic> {
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

#[cfg(test)]
mod tests {
    use super::super::backend::PORT_TRIES;
    use super::*;

    /// The second side's port is taken: another will do, unless it was asked for.
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
