//! Ports on interfaces.

mod pump;

use std::net::UdpSocket;

use anyhow::{Context as _, Error, Result};
use spindrift::verbs::nic_of_queues;
use spindrift::wire::UDP_PORT_MRC;
use spindrift_af_xdp::{AfXdpConfig, AfXdpError, AfXdpPort, XdpMode};
use spindrift_pmd::PortCaps;
use spindrift_pmd::route::LocalAddress;

pub(super) use self::pump::run as pump;
use super::super::backend::{Backend, Prospect, again_if_any};
use crate::bench::nic::Nic;
use crate::bench::options::Settings;
use crate::config::{self, XdpModeName};
use crate::place::Local;
use crate::usage::usage;

pub(super) const BACKEND: Option<&'static dyn Backend> = Some(&Interfaces);

struct Interfaces;

impl Backend for Interfaces {
    fn prospects(&self, addresses: &[LocalAddress]) -> Vec<Prospect> {
        Prospect::of_addresses(addresses, prospect)
    }

    /// Checks the numbers of buffers.
    fn check_settings(&self, settings: &Settings, flags: &[&str]) -> Result<()> {
        let (least, most) = (AfXdpConfig::BUFFERS_MIN, AfXdpConfig::BUFFERS_MAX);
        let config = &settings.config;
        for (key, flag, value) in [
            ("nic.rx_buffers", "--rx-buffers", config.nic.rx_buffers),
            ("nic.tx_buffers", "--tx-buffers", config.nic.tx_buffers),
        ] {
            let fits = |value: &u32| value.is_power_of_two() && (least..=most).contains(value);
            if let Some(value) = value.filter(|value| !fits(value)) {
                let name = config.origin(flags.contains(&flag), flag, key);
                return Err(usage(format!("{name} {value}: give a power of two from {least} to {most}")));
            }
        }
        Ok(())
    }

    /// Opens nothing: that may cost an interface its link for a while.
    fn check(&self, settings: &Settings, local: Option<&[Local]>) -> Result<()> {
        for local in local.unwrap_or_default() {
            let wanted = settings.config.transport.udp_port;
            let config = config_of(&settings.config.nic, local, wanted.unwrap_or(UDP_PORT_MRC))?;
            AfXdpPort::prospect(&config, settings.lanes).context("cannot open AF_XDP ports")?;
            let address = local.address;
            if let Some(port) = wanted.filter(|&port| UdpSocket::bind((address, port)).is_err()) {
                return Err(AfXdpError::PortInUse { address, port }.into());
            }
        }
        Ok(())
    }

    fn open(&self, settings: &Settings, local: &[Local], port: u16) -> Result<Nic> {
        again_if_any(port, is_in_use, || {
            let port = match (port, local.first()) {
                // What is free at one address is most likely free at the others.
                (0, Some(first)) => UdpSocket::bind((first.address, 0))?.local_addr()?.port(),
                _ => port,
            };
            let config = |local| config_of(&settings.config.nic, local, port);
            let configs = local.iter().map(config).collect::<Result<Vec<_>>>()?;
            let planes =
                AfXdpPort::open_planes(&configs, settings.lanes).context("cannot open AF_XDP ports")?;
            Ok(Nic::new(nic_of_queues(planes), Some(port)))
        })
    }

    fn is_in_use(&self, error: &Error) -> bool {
        is_in_use(error)
    }
}

fn is_in_use(error: &Error) -> bool {
    matches!(error.downcast_ref(), Some(AfXdpError::PortInUse { .. }))
}

fn interface_of(local: &Local) -> Result<String> {
    local.interface.clone().ok_or_else(|| {
        let address = local.address;
        usage(format!("{address} is no interface's address; `spindrift ports` lists those of this host"))
    })
}

fn config_of(nic: &config::Nic, local: &Local, port: u16) -> Result<AfXdpConfig> {
    let usual = AfXdpConfig::default();
    Ok(AfXdpConfig {
        interface: interface_of(local)?,
        local: Some(local.address),
        udp_ports: vec![port],
        mode: mode_of(nic.xdp_mode.unwrap_or_default()),
        mtu: local.towards.and_then(|towards| towards.mtu),
        rx_buffers: nic.rx_buffers.unwrap_or(usual.rx_buffers),
        tx_buffers: nic.tx_buffers.unwrap_or(usual.tx_buffers),
        ..usual
    })
}

/// The port's word for a mode.
fn mode_of(name: XdpModeName) -> XdpMode {
    match name {
        XdpModeName::Auto => XdpMode::Auto,
        XdpModeName::Native => XdpMode::Native,
        XdpModeName::Generic => XdpMode::Generic,
    }
}

/// What a port would be; `None` where there can be none.
fn prospect(local: &LocalAddress) -> Option<Result<PortCaps, String>> {
    let interface = local.interface.name.clone();
    let config = AfXdpConfig { interface, local: Some(local.ip), ..AfXdpConfig::default() };
    match AfXdpPort::prospect(&config, 1) {
        Err(AfXdpError::NotEthernet(_)) => None,
        told => Some(told.map_err(|error| error.to_string())),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::driver::af_xdp::BUFFERS_USUAL;

    #[test]
    fn settings_reach_the_port() {
        let address = [10, 0, 0, 1].into();
        let local = Local::new(address, Some("eth3".to_owned()));
        let of = |text| config_of(&toml::from_str(text).unwrap(), &local, 4791).unwrap();
        let usual = of("");
        assert_eq!(
            (&usual.interface[..], usual.local, &usual.udp_ports[..]),
            ("eth3", Some(address), &[4791][..])
        );
        assert_eq!((usual.rx_buffers, usual.tx_buffers), (BUFFERS_USUAL, BUFFERS_USUAL));
        let other = of("rx_buffers = 128\ntx_buffers = 512");
        assert_eq!((other.rx_buffers, other.tx_buffers), (128, 512));
        for (text, mode) in [
            ("", XdpMode::Auto),
            ("xdp_mode = \"auto\"", XdpMode::Auto),
            ("xdp_mode = \"native\"", XdpMode::Native),
            ("xdp_mode = \"generic\"", XdpMode::Generic),
        ] {
            assert_eq!(of(text).mode, mode);
        }
    }
}
