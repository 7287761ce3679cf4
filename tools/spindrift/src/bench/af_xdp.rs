//! Ports of kind `af_xdp`, in builds that have them: the feature `af_xdp`.

#[cfg(feature = "af_xdp")]
pub(crate) use with::{check, is_in_use, mode_of, open, prospect};
#[cfg(not(feature = "af_xdp"))]
pub(crate) use without::{check, is_in_use, open, prospect};

use anyhow::Result;

use crate::usage::usage;

/// Whether this build has such ports.
pub(crate) const BUILT: bool = cfg!(feature = "af_xdp");
/// How to get them.
pub(crate) const HOW_TO_BUILD: &str =
    "`./tools/setup.sh --af-xdp`, then `cargo build --release -p spindrift-cli --features af_xdp`";

/// Refuses where this build has none; `name` is what asked for one.
pub(crate) fn check_built(name: &str) -> Result<()> {
    if BUILT {
        return Ok(());
    }
    Err(usage(format!("{name} af_xdp: this build has no such ports; {HOW_TO_BUILD}, or use --port udp")))
}

#[cfg(feature = "af_xdp")]
mod with {
    use std::net::{IpAddr, UdpSocket};

    use anyhow::{Context as _, Result};
    use spindrift::wire::UDP_PORT_MRC;
    use spindrift_af_xdp::{AfXdpConfig, AfXdpError, AfXdpPort, XdpMode};
    use spindrift_pmd::PortCaps;

    use crate::bench::options::Settings;
    use crate::config::{Nic, XdpModeName};
    use crate::place::Local;
    use crate::usage::usage;

    /// By plane the ports of each lane.
    pub(crate) fn open(settings: &Settings, local: &[Local], port: u16) -> Result<Vec<Vec<AfXdpPort>>> {
        let config = |local| config_of(&settings.config.nic, local, port);
        let configs = local.iter().map(config).collect::<Result<Vec<_>>>()?;
        AfXdpPort::open_planes(&configs, settings.lanes).context("cannot open AF_XDP ports")
    }

    /// Says what is in the way of opening ports, as far as that can be told without: opening some may cost an interface its link for a
    /// while.
    pub(crate) fn check(settings: &Settings, local: &[Local]) -> Result<()> {
        for local in local {
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

    fn config_of(nic: &Nic, local: &Local, port: u16) -> Result<AfXdpConfig> {
        let usual = AfXdpConfig::default();
        let interface = local.interface.clone().ok_or_else(|| {
            let address = local.address;
            usage(format!("{address} is no interface's address; `spindrift ports` lists those of this host"))
        })?;
        Ok(AfXdpConfig {
            interface,
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
    pub(crate) fn mode_of(name: XdpModeName) -> XdpMode {
        match name {
            XdpModeName::Auto => XdpMode::Auto,
            XdpModeName::Native => XdpMode::Native,
            XdpModeName::Generic => XdpMode::Generic,
        }
    }

    pub(crate) fn is_in_use(error: &anyhow::Error) -> bool {
        matches!(error.downcast_ref(), Some(AfXdpError::PortInUse { .. }))
    }

    /// What a port would be; `None` in builds without such ports.
    pub(crate) fn prospect(interface: &str, address: IpAddr) -> Option<Result<PortCaps, String>> {
        let config =
            AfXdpConfig { interface: interface.to_owned(), local: Some(address), ..AfXdpConfig::default() };
        match AfXdpPort::prospect(&config, 1) {
            // Nothing of this kind can ever be had there.
            Err(AfXdpError::NotEthernet(_)) => None,
            told => Some(told.map_err(|error| error.to_string())),
        }
    }

    #[cfg(test)]
    #[allow(clippy::unwrap_used, reason = "tests")]
    mod tests {
        use super::*;
        use crate::bench::check::{BUFFERS, BUFFERS_USUAL};

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
            assert_eq!(BUFFERS, (AfXdpConfig::BUFFERS_MIN, AfXdpConfig::BUFFERS_MAX));
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
}

#[cfg(not(feature = "af_xdp"))]
mod without {
    use std::net::IpAddr;

    use anyhow::Result;
    use spindrift_pmd::PortCaps;
    use spindrift_pmd::udp::UdpPort;

    use super::HOW_TO_BUILD;
    use crate::bench::options::Settings;
    use crate::place::Local;
    use crate::usage::usage;

    pub(crate) fn open(_: &Settings, _: &[Local], _: u16) -> Result<Vec<Vec<UdpPort>>> {
        Err(usage(format!("this build has no AF_XDP ports; {HOW_TO_BUILD}")))
    }

    pub(crate) fn check(settings: &Settings, local: &[Local]) -> Result<()> {
        open(settings, local, 0).map(drop)
    }

    pub(crate) fn is_in_use(_: &anyhow::Error) -> bool {
        false
    }

    pub(crate) fn prospect(_: &str, _: IpAddr) -> Option<Result<PortCaps, String>> {
        None
    }
}
