//! Drivers: the kinds of ports that `--port` names.
//!
//! A [`Driver`] describes a kind of port in every build: its name, its settings, and what the rest of the command has to know of it.
//! Its [`Backend`] opens such ports. A build without the driver's feature has no backend; the driver is listed all the same, with how to
//! build it.
//!
//! A new driver is a file here, a line in [`ALL`], and its settings in [`config::Nic`](crate::config::Nic). A setting that is to have a
//! flag gets it in [`PortFlags`]. Nothing else in the command names a driver, but for defaults such as [`UDP`].

mod af_xdp;
mod backend;
mod dpdk;
mod flags;
#[cfg(test)]
mod in_test;
mod loopback;
mod setting;
mod udp;

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use anyhow::Result;
use clap::ValueEnum;
use clap::builder::PossibleValue;
use serde::{Deserialize, Deserializer};
use spindrift::wire::UDP_PORT_MRC;

pub(crate) use self::backend::{Backend, Prospect};
pub(crate) use self::dpdk::OnLink;
pub(crate) use self::flags::PortFlags;
pub(crate) use self::setting::Setting;

use crate::bench::nic::Nic;
use crate::bench::options::Settings;
use crate::place::{Local, Place};
use crate::pump::Pump;
use crate::usage::usage;

/// All drivers, in the order in which they are listed.
static ALL: &[&Driver] = &[
    LOOPBACK,
    UDP,
    &af_xdp::DRIVER,
    &dpdk::DRIVER,
    #[cfg(test)]
    &in_test::MEMORY,
    #[cfg(test)]
    &in_test::LEFT_OUT,
];

/// What `loopback` uses where nobody says which.
pub(crate) static LOOPBACK: &Driver = &loopback::DRIVER;
/// What hosts use where nobody says which.
pub(crate) static UDP: &Driver = &udp::DRIVER;

/// A kind of port.
pub(crate) struct Driver {
    /// What `--port` and `nic.port` call it.
    pub(crate) name: &'static str,
    /// What such a port is, for people.
    pub(crate) about: &'static str,
    /// How to build the command with it; empty where every build has it.
    pub(crate) how_to_build: &'static str,
    pub(crate) reach: Reach,
    pub(crate) kernel: Kernel,
    /// The settings that it takes, in the order in which they are printed.
    pub(crate) settings: fn() -> Vec<Setting>,
    /// Whether a text names a place where such a port can be, for drivers with places of their own. `None`: places are addresses and
    /// interfaces of the kernel.
    pub(crate) check_place: Option<PlaceCheck>,
    /// Options by which a host of a lab uses such ports, given its address on each plane. `None`: the driver's name suffices.
    pub(crate) in_lab: Option<LabOptions>,
    /// `spindrift pump NAME`, if there is one.
    pub(crate) pump: Option<Pump>,
    /// `None`: this build has no such ports.
    pub(crate) backend: Option<&'static dyn Backend>,
}

/// Says what is wrong with a text that is to be a place.
type PlaceCheck = fn(&str) -> Result<(), String>;

type LabOptions = fn(&[Ipv6Addr]) -> Vec<String>;

/// Where a port leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// To another lane of the same process.
    Process,
    /// To other hosts.
    Hosts,
    /// To either.
    Both,
}

/// What the kernel does with a port's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kernel {
    /// Nothing: they never leave memory.
    Uninvolved,
    /// It writes their headers. So the entropy value is the UDP source port, and packets cannot be source-routed.
    WritesHeaders,
    /// They bypass it. No queue of the kernel limits their rate, and an interface belongs to one process.
    Bypassed,
}

impl Reach {
    pub(crate) fn within_process(self) -> bool {
        self != Self::Hosts
    }

    pub(crate) fn between_hosts(self) -> bool {
        self != Self::Process
    }
}

/// What the devices of this process's ports count beside the ports, of all drivers.
pub(crate) fn device_counters() -> Vec<(String, Vec<(String, u64)>)> {
    ALL.iter().filter_map(|driver| driver.backend).flat_map(Backend::device_counters).collect()
}

/// All drivers, those that this build lacks among them.
pub(crate) fn all() -> &'static [&'static Driver] {
    ALL
}

/// The driver of this name.
pub(crate) fn find(name: &str) -> Option<&'static Driver> {
    ALL.iter().copied().find(|driver| driver.name == name)
}

/// The names of the drivers that lead to other hosts, with a word between the last two: `udp or af_xdp`.
pub(crate) fn names_between_hosts(last: &str) -> String {
    let names: Vec<_> =
        ALL.iter().filter(|driver| driver.reach.between_hosts()).map(|driver| driver.name).collect();
    match &names[..] {
        [first @ .., end] if !first.is_empty() => format!("{}{last}{end}", first.join(", ")),
        _ => names.concat(),
    }
}

impl Driver {
    /// Refuses a driver that this build lacks; `name` is what asked for it.
    pub(crate) fn check_built(&self, name: &str) -> Result<()> {
        if self.backend.is_some() {
            return Ok(());
        }
        let (driver, how) = (self.name, self.how_to_build);
        Err(usage(format!("{name} {driver}: this build has no such ports; {how}, or use --port udp")))
    }

    fn backend(&self) -> Result<&'static dyn Backend> {
        self.backend
            .ok_or_else(|| usage(format!("this build has no {} ports; {}", self.name, self.how_to_build)))
    }

    /// Whether it has the setting with this key of a configuration file.
    pub(crate) fn has(&self, key: &str) -> bool {
        (self.settings)().iter().any(|setting| setting.key == key)
    }

    /// Options by which a host of a lab, with these addresses on its planes, uses such ports.
    pub(crate) fn lab_options(&self, addresses: &[Ipv6Addr]) -> Vec<String> {
        match self.in_lab {
            Some(options) => options(addresses),
            None => vec!["--port".to_owned(), self.name.to_owned()],
        }
    }

    /// Whether packets can name the switches that they pass.
    pub(crate) fn source_routes(&self) -> bool {
        self.reach.between_hosts() && self.kernel != Kernel::WritesHeaders
    }

    /// A place of such a port, if the text is one.
    pub(crate) fn place(&self, text: &str) -> Result<Place, String> {
        let place = Place::from(text.to_owned());
        match self.check_place {
            Some(check) => check(text)?,
            None => drop(place.in_kernel()?),
        }
        Ok(place)
    }

    /// Checks the values of its own settings. `flags` are those that were given.
    pub(crate) fn check_settings(&self, settings: &Settings, flags: &[&str]) -> Result<()> {
        self.backend.map_or(Ok(()), |backend| backend.check_settings(settings, flags))
    }

    /// See [`Backend::prospects`].
    pub(crate) fn prospects(&self, addresses: &[spindrift_pmd::route::LocalAddress]) -> Vec<Prospect> {
        self.backend.map_or_else(Vec::new, |backend| backend.prospects(addresses))
    }

    /// See [`Backend::resolve`].
    pub(crate) fn resolve(
        &self,
        settings: &Settings,
        name: &str,
        places: &[Place],
        like: Option<IpAddr>,
    ) -> Result<Vec<Local>> {
        self.backend()?.resolve(settings, name, places, like)
    }

    /// See [`Backend::check`].
    pub(crate) fn check(&self, settings: &Settings, local: Option<&[Local]>) -> Result<()> {
        self.backend()?.check(settings, local)
    }

    /// Opens ports at these places, all with the UDP port that was asked for. Without one that is the usual port, or any other if the
    /// usual one is taken: client and server on one host cannot both have it.
    pub(crate) fn open(&self, settings: &Settings, local: &[Local]) -> Result<Nic> {
        let backend = self.backend()?;
        match settings.config.transport.udp_port {
            Some(port) => backend.open(settings, local, port),
            None => match backend.open(settings, local, UDP_PORT_MRC) {
                Err(error) if backend.is_in_use(&error) => backend.open(settings, local, 0),
                opened => opened,
            },
        }
    }

    /// See [`Backend::open_pair`].
    pub(crate) fn open_pair(&self, settings: &Settings, planes: usize) -> Result<[Nic; 2]> {
        self.backend()?.open_pair(settings, planes)
    }
}

impl PartialEq for Driver {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Driver {}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl ValueEnum for &'static Driver {
    fn value_variants<'a>() -> &'a [Self] {
        ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.name).help(self.about))
    }
}

impl<'de> Deserialize<'de> for &'static Driver {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        let name = String::deserialize(input)?;
        find(&name).ok_or_else(|| {
            let known: Vec<_> = ALL.iter().map(|driver| format!("`{}`", driver.name)).collect();
            serde::de::Error::custom(format!(
                "unknown variant `{name}`, expected one of {}",
                known.join(", ")
            ))
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_the_unknown_are_told_which_there_are() {
        for driver in all() {
            assert_eq!(find(driver.name), Some(*driver));
            assert_eq!(all().iter().filter(|other| *other == driver).count(), 1, "{driver:?}");
            assert!(!driver.about.is_empty() && !driver.about.ends_with('.'), "{driver:?}");
        }
        let error = toml::from_str::<crate::config::Nic>("port = \"fast\"").unwrap_err().to_string();
        assert!(all().iter().all(|driver| error.contains(driver.name)), "{error}");
    }

    /// Every build knows every driver; those that it lacks say how to get them.
    #[test]
    fn a_driver_that_is_left_out_tells_how_to_build_it() {
        let missing: Vec<_> = all().iter().filter(|driver| driver.backend.is_none()).collect();
        assert!(missing.contains(&&&in_test::LEFT_OUT));
        for driver in missing {
            assert!(!driver.how_to_build.is_empty(), "{driver:?}");
            let error = driver.check_built("--port").unwrap_err().to_string();
            let parts = ["--port ", driver.name, "this build has no such ports", driver.how_to_build];
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
            let error = driver.backend().err().unwrap().to_string();
            assert!(error.contains(driver.how_to_build), "{error}");
        }
        assert!(UDP.check_built("--port").is_ok() && LOOPBACK.check_built("--port").is_ok());
    }
}
