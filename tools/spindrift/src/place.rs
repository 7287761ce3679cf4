//! Where the ports of planes are on this host.

use std::net::{IpAddr, UdpSocket};
use std::str::FromStr;

use anyhow::{Context as _, Result};
use serde::Deserialize;
use spindrift::endpoint::EndpointConfig;
use spindrift_pmd::udp::local_addresses;

use crate::usage::usage;

/// Longest name of an interface, `IFNAMSIZ` without the zero behind it.
const NAME_MAX: usize = 15;

/// Where the user wants a plane's port.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) enum Place {
    Address(IpAddr),
    Interface(String),
}

/// Where a plane's port is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Local {
    pub(crate) address: IpAddr,
    /// The interface that has the address; some of the loopback interface's addresses are on no list.
    pub(crate) interface: Option<String>,
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let of_name = |c: char| !c.is_whitespace() && !matches!(c, '/' | ':');
        match text.parse() {
            Ok(address) => Ok(Self::Address(address)),
            Err(_) if (1..=NAME_MAX).contains(&text.len()) && text.chars().all(of_name) => {
                Ok(Self::Interface(text.to_owned()))
            }
            Err(_) => Err(format!("`{text}` is neither an address nor the name of an interface")),
        }
    }
}

impl TryFrom<String> for Place {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl Local {
    /// An address, whichever interface has it.
    pub(crate) fn of_address(address: IpAddr) -> Result<Self> {
        Ok(with_interface(address, &this_host()?))
    }
}

fn this_host() -> Result<Vec<(String, IpAddr)>> {
    local_addresses().context("cannot list the local addresses")
}

fn with_interface(address: IpAddr, known: &[(String, IpAddr)]) -> Local {
    let interface = known.iter().find(|(_, other)| *other == address).map(|(name, _)| name.clone());
    Local { address, interface }
}

/// Finds the address of each place. Those of interfaces are IPv6 if each has one that others can send to, unless `like`, an address
/// that the port will have to do with, is IPv4 and each has an IPv4 address. `name` is where the places came from.
pub(crate) fn resolve(name: &str, places: &[Place], like: Option<IpAddr>) -> Result<Vec<Local>> {
    let known = this_host()?;
    let locals = addresses(name, places, like, &known)?;
    for (at, Local { address, .. }) in locals.iter().enumerate() {
        if locals.iter().take(at).any(|other| other.address == *address) {
            return Err(usage(format!("{name}: {address} is listed twice; each plane needs its own")));
        }
        if locals.iter().any(|other| other.address.is_ipv4() != address.is_ipv4()) {
            return Err(usage(format!("{name}: IPv4 and IPv6 addresses; give one family")));
        }
        UdpSocket::bind((*address, 0)).map_err(|error| {
            usage(format!(
                "{name}: {address} is not an address of this host; `spindrift ports` lists them: {error}"
            ))
        })?;
    }
    Ok(locals)
}

fn addresses(
    name: &str,
    places: &[Place],
    like: Option<IpAddr>,
    known: &[(String, IpAddr)],
) -> Result<Vec<Local>> {
    if places.len() > EndpointConfig::MAX_PORTS {
        let most = EndpointConfig::MAX_PORTS;
        return Err(usage(format!("{name}: {} addresses; give at most {most}, one per plane", places.len())));
    }
    // Addresses that were written decide on the family of the others.
    let written = places.iter().find_map(|place| match place {
        Place::Address(address) => Some(*address),
        Place::Interface(_) => None,
    });
    let v4_first = written.or(like).is_some_and(|address| address.is_ipv4());
    let of_family = |v4: bool| -> Option<Vec<Local>> {
        let of = |place: &Place| match place {
            Place::Address(address) => Some(with_interface(*address, known)),
            Place::Interface(interface) => of_interface(interface, v4, known),
        };
        places.iter().map(of).collect()
    };
    of_family(v4_first)
        .or_else(|| of_family(!v4_first))
        .ok_or_else(|| usage(format!("{name}: {}", what_is_missing(places, known))))
}

/// The first address of an interface and a family that others can send to.
fn of_interface(interface: &str, v4: bool, known: &[(String, IpAddr)]) -> Option<Local> {
    let fits = |address: IpAddr| match address {
        IpAddr::V4(_) => v4,
        IpAddr::V6(address) => !v4 && !address.is_unicast_link_local(),
    };
    let (interface, address) = known.iter().find(|(name, address)| name == interface && fits(*address))?;
    Some(Local { address: *address, interface: Some(interface.clone()) })
}

/// Why interfaces have no addresses of one family.
fn what_is_missing(places: &[Place], known: &[(String, IpAddr)]) -> String {
    for place in places {
        let Place::Interface(name) = place else { continue };
        if !known.iter().any(|(interface, _)| interface == name) {
            return format!(
                "there is no interface {name} with an address here; `spindrift ports` lists those there are"
            );
        }
        if [true, false].iter().all(|&v4| of_interface(name, v4, known).is_none()) {
            return format!(
                "interface {name} has no address that others can send to; add one with `ip address add ADDRESS/LENGTH dev {name}`"
            );
        }
    }
    "some of these interfaces have IPv4 addresses alone and others IPv6; planes need one family".to_owned()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn host() -> Vec<(String, IpAddr)> {
        [
            ("lo", "127.0.0.1"),
            ("lo", "::1"),
            ("eth0", "fe80::1"),
            ("eth0", "10.0.0.1"),
            ("eth0", "10.0.1.1"),
            ("eth0", "fd00::1"),
            ("eth1", "10.1.0.1"),
            ("eth1", "fe80::2"),
            ("eth2", "fd02::1"),
            ("eth3", "fe80::3"),
        ]
        .map(|(name, address)| (name.to_owned(), address.parse().unwrap()))
        .to_vec()
    }

    fn strings(list: &[&str]) -> Vec<String> {
        list.iter().map(|&text| text.to_owned()).collect()
    }

    fn found(places: &[&str], like: Option<&str>) -> Result<Vec<String>, String> {
        let places: Vec<Place> = places.iter().map(|place| place.parse().unwrap()).collect();
        let like = like.map(|address| address.parse().unwrap());
        let locals = addresses("--local", &places, like, &host()).map_err(|error| error.to_string())?;
        let text = |local: Local| format!("{} {}", local.interface.unwrap_or_default(), local.address);
        Ok(locals.into_iter().map(text).collect())
    }

    #[test]
    fn interfaces_have_addresses_of_one_family() {
        assert_eq!(found(&["eth0"], None), Ok(strings(&["eth0 fd00::1"])));
        assert_eq!(found(&["eth0"], Some("192.0.2.1")), Ok(strings(&["eth0 10.0.0.1"])));
        assert_eq!(found(&["eth0"], Some("fd77::1")), Ok(strings(&["eth0 fd00::1"])));
        // The one family that all of them have.
        assert_eq!(found(&["eth0", "eth1"], None), Ok(strings(&["eth0 10.0.0.1", "eth1 10.1.0.1"])));
        assert_eq!(
            found(&["eth0", "eth2"], Some("192.0.2.1")),
            Ok(strings(&["eth0 fd00::1", "eth2 fd02::1"]))
        );
        // Or that of an address beside them.
        assert_eq!(found(&["10.1.0.1", "eth0"], None), Ok(strings(&["eth1 10.1.0.1", "eth0 10.0.0.1"])));
        assert_eq!(
            found(&["10.1.0.1", "eth0"], Some("fd77::1")),
            Ok(strings(&["eth1 10.1.0.1", "eth0 10.0.0.1"]))
        );
        assert_eq!(found(&["127.0.0.9", "lo"], None), Ok(strings(&[" 127.0.0.9", "lo 127.0.0.1"])));
    }

    #[test]
    fn what_is_missing_is_named() {
        let refused = |places: &[&str], parts: &[&str]| {
            let error = found(places, None).unwrap_err();
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        };
        refused(&["eth0", "eth7"], &["--local: ", "no interface eth7", "spindrift ports"]);
        refused(&["eth3"], &["eth3 has no address that others can send to", "dev eth3"]);
        refused(&["eth1", "eth2"], &["one family"]);
        refused(&["eth0"; 33], &["33 addresses", "at most 32"]);
    }

    #[test]
    fn places_are_addresses_or_names() {
        let interface = |name: &str| Ok(Place::Interface(name.to_owned()));
        assert_eq!("10.0.0.1".parse(), Ok(Place::Address([10, 0, 0, 1].into())));
        assert_eq!("::1".parse(), Ok(Place::Address(std::net::Ipv6Addr::LOCALHOST.into())));
        assert_eq!("enp3s0f0np0".parse(), interface("enp3s0f0np0"));
        assert_eq!("a23456789012345".parse(), interface("a23456789012345"));
        for bad in ["", "a234567890123456", "fe80::1%eth0", "eth0:1", "et h0", "eth/0"] {
            assert!(bad.parse::<Place>().unwrap_err().contains(bad));
        }
    }
}
