//! Ports on devices.

mod eal;
mod pump;

use std::net::IpAddr;

use anyhow::{Context as _, Result};
use spindrift::verbs::nic_of_queues;
use spindrift::wire::UDP_PORT_MRC;
use spindrift_dpdk::{DpdkConfig, DpdkPort, Eal};
use spindrift_pmd::PortCaps;
use spindrift_pmd::route::LocalAddress;

pub(super) use self::pump::run as pump;
use super::super::backend::{Backend, Prospect};
use super::OnLink;
use crate::bench::nic::Nic;
use crate::bench::options::Settings;
use crate::config;
use crate::place::{Local, Place};
use crate::usage::usage;

pub(super) const BACKEND: Option<&'static dyn Backend> = Some(&Devices);

struct Devices;

impl Backend for Devices {
    /// The machine's PCI NICs. Virtual devices are made as they are opened.
    fn prospects(&self, _: &[LocalAddress]) -> Vec<Prospect> {
        let one = |nic: spindrift_dpdk::Nic| {
            let caps: Result<PortCaps, _> = nic.prospect().map_err(|error| error.to_string());
            Prospect { index: None, place: nic.address, address: None, caps }
        };
        spindrift_dpdk::nics().into_iter().map(one).collect()
    }

    /// Checks the numbers of descriptors, the arguments of the EAL, and that each device has its address.
    fn check_settings(&self, settings: &Settings, flags: &[&str]) -> Result<()> {
        let nic = &settings.config.nic;
        let name = |flag: &str, key| settings.config.origin(flags.contains(&flag), flag, key);
        let (least, most) = (DpdkConfig::DESCRIPTORS_MIN, DpdkConfig::DESCRIPTORS_MAX);
        for (key, flag, value) in [
            ("nic.rx_buffers", "--rx-buffers", nic.rx_buffers),
            ("nic.tx_buffers", "--tx-buffers", nic.tx_buffers),
        ] {
            let fits = |value: &u32| value.is_power_of_two() && (least.into()..=most.into()).contains(value);
            if let Some(value) = value.filter(|value| !fits(value)) {
                let name = name(flag, key);
                return Err(usage(format!("{name} {value}: give a power of two from {least} to {most}")));
            }
        }
        let mtu = nic.device_mtu.unwrap_or(DpdkConfig::MTU_MAX as u32);
        if mtu as usize > DpdkConfig::MTU_MAX {
            let name = name("--device-mtu", "nic.device_mtu");
            return Err(usage(format!("{name} {mtu}: give at most {}", DpdkConfig::MTU_MAX)));
        }
        let eal = eal::config(nic.dpdk_eal.as_deref().unwrap_or_default(), &[]);
        eal.map_err(|why| usage(format!("{} {why}", name("--dpdk-eal", "nic.dpdk_eal"))))?;
        let (addresses, gateways) = (own(nic), nic.gateways.as_deref().unwrap_or_default());
        let family =
            |address: &IpAddr| addresses.iter().any(|own| own.address.is_ipv4() == address.is_ipv4());
        if let Some(gateway) = gateways.iter().find(|gateway| !family(gateway)) {
            let name = name("--gateways", "nic.gateways");
            return Err(usage(format!("{name} {gateway}: no device has an address of its family")));
        }
        if settings.local().is_none() {
            let name = name("--port", "nic.port");
            return Err(usage(format!(
                "{name} dpdk: no route of the kernel leads to a device; name one with --port dpdk:DEVICE for each plane, and its address with --device-addresses"
            )));
        }
        Ok(())
    }

    /// The address that the settings give the device: no kernel has one.
    fn resolve(
        &self,
        settings: &Settings,
        name: &str,
        places: &[Place],
        _: Option<IpAddr>,
    ) -> Result<Vec<Local>> {
        let own = own(&settings.config.nic);
        if own.len() != places.len() {
            let (devices, addresses) = (places.len(), own.len());
            return Err(usage(format!(
                "{name}: {devices} device(s) and {addresses} address(es) of their own; give each one with --device-addresses, as in fd00::1/64"
            )));
        }
        let mut locals: Vec<Local> = Vec::new();
        for (place, own) in places.iter().zip(own) {
            let device = place.to_string();
            super::check_place(&device).map_err(|why| usage(format!("{name}: {why}")))?;
            let local = Local::new(own.address, Some(device));
            if let Some(other) = locals.iter().find(|other| other.address == local.address) {
                return Err(usage(format!(
                    "--device-addresses: {} is listed twice; each plane needs its own",
                    other.address
                )));
            }
            if locals.iter().any(|other| device_name(other) == device_name(&local)) {
                return Err(usage(format!(
                    "{name}: {place} is listed twice; each plane needs a device of its own"
                )));
            }
            if locals.iter().any(|other| other.address.is_ipv4() != local.address.is_ipv4()) {
                return Err(usage("--device-addresses: IPv4 and IPv6 addresses are mixed; use one family"));
            }
            locals.push(local);
        }
        Ok(locals)
    }

    /// Opens nothing: a device of shared memory has one peer, and that would see it go.
    fn check(&self, settings: &Settings, local: Option<&[Local]>) -> Result<()> {
        for config in configs(settings, local.unwrap_or_default(), UDP_PORT_MRC)? {
            config.check().context("cannot open DPDK ports")?;
        }
        Ok(())
    }

    fn open(&self, settings: &Settings, local: &[Local], port: u16) -> Result<Nic> {
        // Nobody else has the device, and so every UDP port is free.
        let port = if port == 0 { UDP_PORT_MRC } else { port };
        let configs = configs(settings, local, port)?;
        let words = settings.config.nic.dpdk_eal.as_deref().unwrap_or_default();
        let eal = eal::config(words, &configs).map_err(usage)?;
        let eal = Eal::start(&eal).context("cannot open DPDK ports")?;
        let planes =
            DpdkPort::open_planes(eal, &configs, settings.lanes).context("cannot open DPDK ports")?;
        Ok(Nic::new(nic_of_queues(planes), Some(port)))
    }

    fn device_counters(&self) -> Vec<(String, Vec<(String, u64)>)> {
        spindrift_dpdk::device_counters().into_iter().map(|one| (one.device, one.counters)).collect()
    }
}

fn own(nic: &config::Nic) -> &[OnLink] {
    nic.device_addresses.as_deref().unwrap_or_default()
}

/// A device's name without its arguments.
fn device_name(local: &Local) -> Option<&str> {
    local.interface.as_deref()?.split(',').next()
}

fn configs(settings: &Settings, local: &[Local], port: u16) -> Result<Vec<DpdkConfig>> {
    local.iter().map(|local| config_of(&settings.config.nic, local, port)).collect()
}

fn config_of(nic: &config::Nic, local: &Local, port: u16) -> Result<DpdkConfig> {
    let usual = DpdkConfig::default();
    let device = local.interface.clone().context("a port without a device")?;
    let own =
        own(nic).iter().find(|own| own.address == local.address).context("a device without an address")?;
    let gateways = nic.gateways.iter().flatten().copied();
    let descriptors =
        |wanted: Option<u32>, usual| wanted.map_or(usual, |count| count.try_into().unwrap_or(u16::MAX));
    let mut config = DpdkConfig {
        device,
        local: own.address,
        prefix_len: own.prefix_len,
        udp_ports: vec![port],
        mtu: nic.device_mtu.map(|mtu| mtu as usize),
        zero_copy: nic.zero_copy,
        rx_descriptors: descriptors(nic.rx_buffers, usual.rx_descriptors),
        tx_descriptors: descriptors(nic.tx_buffers, usual.tx_descriptors),
        ..usual
    };
    // Each device has those on its own link.
    config.gateways = gateways.filter(|&gateway| config.is_on_link(gateway)).collect();
    Ok(config)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::driver::find;

    fn settings_of(text: &str) -> Settings {
        let port = find("dpdk").unwrap();
        Settings { config: toml::from_str(text).unwrap(), ..Settings::of_test(port) }
    }

    fn local(settings: &Settings) -> Result<Vec<Local>, String> {
        let places = settings.local().unwrap_or_default();
        Devices.resolve(settings, "nic.local", places, None).map_err(|error| error.to_string())
    }

    #[test]
    fn settings_reach_the_port() {
        let settings = settings_of(
            "[nic]\nlocal = [\"net_memif0,role=client\", \"0000:3b:00.0\"]\n\
             device_addresses = [\"fd00::1\", \"fd01::1/112\"]\ngateways = [\"fd00::9\", \"fd01::9\", \"fe80::1\"]\n\
             device_mtu = 9000\nzero_copy = false\nrx_buffers = 512\ntx_buffers = 2048",
        );
        Devices.check_settings(&settings, &[]).unwrap();
        let configs = configs(&settings, &local(&settings).unwrap(), 4791).unwrap();
        let of = |at: usize| configs.get(at).unwrap();
        assert_eq!((&of(0).device[..], &of(1).device[..]), ("net_memif0,role=client", "0000:3b:00.0"));
        assert_eq!((of(0).prefix_len, of(1).prefix_len), (64, 112));
        let addresses =
            |list: &[&str]| list.iter().map(|text| text.parse().unwrap()).collect::<Vec<IpAddr>>();
        assert_eq!((of(0).local, of(1).local), ("fd00::1".parse().unwrap(), "fd01::1".parse().unwrap()));
        // A link-local router may be on any link.
        assert_eq!(of(0).gateways, addresses(&["fd00::9", "fe80::1"]));
        assert_eq!(of(1).gateways, addresses(&["fd01::9", "fe80::1"]));
        for config in &configs {
            assert_eq!((config.mtu, &config.udp_ports[..]), (Some(9000), &[4791][..]));
            assert_eq!((config.rx_descriptors, config.tx_descriptors), (512, 2048));
            assert_eq!(config.zero_copy, Some(false));
        }
        let usual = settings_of("[nic]\nlocal = [\"net_null0\"]\ndevice_addresses = [\"10.0.0.1\"]");
        let usual = config_of(&usual.config.nic, local(&usual).unwrap().first().unwrap(), 1).unwrap();
        let count = u16::try_from(super::super::DESCRIPTORS_USUAL).unwrap();
        assert_eq!((usual.rx_descriptors, usual.tx_descriptors, usual.prefix_len), (count, count, 24));
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let refused = |text: &str, parts: &[&str]| {
            let settings = settings_of(text);
            let checked = Devices.check_settings(&settings, &[]).map_err(|error| error.to_string());
            let error = checked.and_then(|()| local(&settings).map(drop)).unwrap_err();
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        };
        refused("", &["no route of the kernel", "--port dpdk:DEVICE"]);
        let one = "[nic]\nlocal = [\"net_null0\"]\n";
        refused(one, &["1 device(s) and 0 address(es)", "--device-addresses"]);
        let with = |more: &str| format!("{one}device_addresses = [\"fd00::1\"]\n{more}");
        refused(&with("gateways = [\"10.0.0.1\"]"), &["--gateways 10.0.0.1", "family"]);
        refused(&with("rx_buffers = 500"), &["--rx-buffers 500", "power of two from 32 to 16384"]);
        refused(&with("tx_buffers = 32768"), &["--tx-buffers 32768"]);
        refused(&with("device_mtu = 9217"), &["--device-mtu 9217", "at most 9216"]);
        refused(&with("dpdk_eal = \"-m\""), &["--dpdk-eal", "`-m`"]);
        let two = |devices: &str, addresses: &str| {
            format!("[nic]\nlocal = [{devices}]\ndevice_addresses = [{addresses}]")
        };
        refused(
            &two("\"net_null0\", \"net_null1\"", "\"fd00::1\", \"fd00::1/48\""),
            &["fd00::1 is listed twice"],
        );
        refused(
            &two("\"net_null0\", \"net_null0,size=64\"", "\"fd00::1\", \"fd00::2\""),
            &["net_null0,size=64 is listed twice"],
        );
        refused(&two("\"net_null0\", \"net_null1\"", "\"fd00::1\", \"10.0.0.1\""), &["one family"]);
        refused(&two("\"net null\"", "\"fd00::1\""), &["`net null` is no device"]);
    }
}
