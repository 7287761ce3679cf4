//! Places of ports on this host: addresses and interfaces of planes.

use std::fmt;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::str::FromStr;

use anyhow::{Context as _, Result};
use serde::Deserialize;
use spindrift::endpoint::EndpointConfig;
use spindrift_pmd::netlink::AddressState;
use spindrift_pmd::route::{LocalAddress, local_address, local_addresses};

use crate::usage::usage;

/// Longest name of an interface, `IFNAMSIZ` without the zero behind it.
const NAME_MAX: usize = 15;

/// Where the user wants a plane's port, as it was written. What can be written depends on the [driver](crate::driver::Driver).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct Place(String);

/// A place that the kernel knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KernelPlace {
    Address(IpAddr),
    /// An address with its zone, as in `fe80::1%eth0` (RFC 4007, section 11).
    AddressOn(IpAddr, String),
    Interface(String),
}

/// Where a plane's port is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Local {
    pub(crate) address: IpAddr,
    /// The interface that has the address, or the device of a driver that has its own; some of the loopback interface's addresses are on
    /// no list.
    pub(crate) interface: Option<String>,
    /// The peer's port on the plane, once it is known.
    pub(crate) towards: Option<Towards>,
}

/// The other end of a plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Towards {
    pub(crate) peer: IpAddr,
    /// Longest IP packet in bytes on the way there from the interface of the local address, if it leads there.
    pub(crate) mtu: Option<usize>,
}

impl Place {
    /// An address or an interface of the kernel's.
    pub(crate) fn in_kernel(&self) -> Result<KernelPlace, String> {
        self.0.parse()
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<String> for Place {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl From<IpAddr> for Place {
    fn from(address: IpAddr) -> Self {
        Self(address.to_string())
    }
}

impl KernelPlace {
    /// The address, if one was written.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        match self {
            Self::Address(address) | Self::AddressOn(address, _) => Some(*address),
            Self::Interface(_) => None,
        }
    }
}

impl FromStr for KernelPlace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_name = |name: &str| {
            (1..=NAME_MAX).contains(&name.len())
                && name.chars().all(|c: char| !c.is_whitespace() && !matches!(c, '/' | ':' | '%'))
        };
        if let Some((address, zone)) = text.split_once('%') {
            return match address.parse() {
                Ok(address) if is_name(zone) => Ok(Self::AddressOn(address, zone.to_owned())),
                _ => Err(format!("`{text}` is not an address with the name of its interface after the %")),
            };
        }
        match text.parse() {
            Ok(address) => Ok(Self::Address(address)),
            Err(_) if is_name(text) => Ok(Self::Interface(text.to_owned())),
            Err(_) => Err(format!("`{text}` is neither an address nor the name of an interface")),
        }
    }
}

impl Local {
    pub(crate) fn new(address: IpAddr, interface: Option<String>) -> Self {
        Self { address, interface, towards: None }
    }

    /// An address, whichever interface has it.
    pub(crate) fn of_address(address: IpAddr) -> Result<Self> {
        Ok(with_interface(address, &this_host()?))
    }

    /// The address of a socket.
    pub(crate) fn of_socket(address: SocketAddr) -> Result<Self> {
        let SocketAddr::V6(zoned) = address else { return Self::of_address(address.ip()) };
        let all = local_addresses().context("cannot list the local addresses")?;
        let found =
            all.into_iter().find(|local| local.ip == *zoned.ip() && local.scope_id == zoned.scope_id());
        let interface = found.map(|local| local.interface.name);
        Ok(Self::new(address.ip(), interface))
    }

    /// What the kernel has of it; `None` if no interface lists it.
    pub(crate) fn known(&self) -> Result<Option<LocalAddress>> {
        local_address(self.address, self.interface.as_deref()).context("cannot list the local addresses")
    }
}

/// An interface, one of its addresses, and whether that can be used.
type Known = (String, IpAddr, AddressState);

fn this_host() -> Result<Vec<Known>> {
    let all = local_addresses().context("cannot list the local addresses")?;
    Ok(all.into_iter().map(|local| (local.interface.name, local.ip, local.state)).collect())
}

fn with_interface(address: IpAddr, known: &[Known]) -> Local {
    let interface = known.iter().find(|(_, other, _)| *other == address).map(|(name, ..)| name.clone());
    Local::new(address, interface)
}

/// Finds the address of each place. Those of interfaces are IPv6 if each has one that others can send to, unless `like`, an address
/// that the port will have to do with, is IPv4 and each has an IPv4 address. `name` is where the places came from.
pub(crate) fn resolve(name: &str, places: &[Place], like: Option<IpAddr>) -> Result<Vec<Local>> {
    let places = places.iter().map(Place::in_kernel).collect::<Result<Vec<_>, _>>();
    let places = places.map_err(|why| usage(format!("{name}: {why}")))?;
    let known = this_host()?;
    let locals = addresses(name, &places, like, &known)?;
    for (at, local) in locals.iter().enumerate() {
        let address = local.address;
        if locals.iter().take(at).any(|other| other.address == address) {
            return Err(usage(format!("{name}: {address} is listed twice; each plane needs its own")));
        }
        if locals.iter().any(|other| other.address.is_ipv4() != address.is_ipv4()) {
            return Err(usage(format!("{name}: IPv4 and IPv6 addresses are mixed; use one family")));
        }
        if let Some(found) = local.known()? {
            found.check().map_err(|why| usage(format!("{name}: {why}")))?;
            continue;
        }
        // Local by a route alone, it may be.
        UdpSocket::bind((address, 0)).map_err(|error| {
            usage(format!(
                "{name}: {address} is not an address of this host; `spindrift ports` lists them: {error}"
            ))
        })?;
    }
    Ok(locals)
}

fn addresses(
    name: &str,
    places: &[KernelPlace],
    like: Option<IpAddr>,
    known: &[Known],
) -> Result<Vec<Local>> {
    if places.len() > EndpointConfig::MAX_PORTS {
        let most = EndpointConfig::MAX_PORTS;
        return Err(usage(format!("{name}: {} addresses; give at most {most}, one per plane", places.len())));
    }
    for place in places {
        check_zone(place, known).map_err(|why| usage(format!("{name}: {why}")))?;
    }
    // Addresses that were written decide on the family of the others.
    let written = places.iter().find_map(KernelPlace::address);
    let v4_first = written.or(like).is_some_and(|address| address.is_ipv4());
    let of_family = |v4: bool| -> Option<Vec<Local>> {
        let of = |place: &KernelPlace| match place {
            KernelPlace::Address(address) => Some(with_interface(*address, known)),
            KernelPlace::AddressOn(address, zone) => Some(Local::new(*address, Some(zone.clone()))),
            KernelPlace::Interface(interface) => of_interface(interface, v4, known),
        };
        places.iter().map(of).collect()
    };
    of_family(v4_first)
        .or_else(|| of_family(!v4_first))
        .ok_or_else(|| usage(format!("{name}: {}", missing_address_reason(places, known))))
}

/// An address is on the interface of its zone. A link-local address that several interfaces have needs one.
fn check_zone(place: &KernelPlace, known: &[Known]) -> Result<(), String> {
    let of = |address: &IpAddr| -> Vec<&str> {
        let on = known.iter().filter(|(_, other, _)| other == address);
        on.map(|(name, ..)| &name[..]).collect()
    };
    match place {
        KernelPlace::AddressOn(address, zone) => {
            let on = of(address);
            match on.first() {
                _ if on.contains(&&zone[..]) => Ok(()),
                None => Err(format!("no interface has the address {address}; `spindrift ports` lists them")),
                Some(_) => Err(format!("interface {zone} does not have {address}, but {}", on.join(", "))),
            }
        }
        KernelPlace::Address(IpAddr::V6(address)) if address.is_unicast_link_local() => {
            match of(&(*address).into())[..] {
                [first, second, ..] => Err(format!(
                    "{address} is an address of {first} and of {second}; name the interface, as in {address}%{first}"
                )),
                _ => Ok(()),
            }
        }
        KernelPlace::Address(_) | KernelPlace::Interface(_) => Ok(()),
    }
}

/// The first address of an interface and a family that others can send to, best one that can be used.
fn of_interface(interface: &str, v4: bool, known: &[Known]) -> Option<Local> {
    let fits = |address: IpAddr| match address {
        IpAddr::V4(_) => v4,
        IpAddr::V6(address) => !v4 && !address.is_unicast_link_local(),
    };
    let mut of_it = known.iter().filter(|(name, address, _)| name == interface && fits(*address));
    let first = of_it.clone().next();
    let (interface, address, _) = of_it.find(|(.., state)| *state == AddressState::Ready).or(first)?;
    Some(Local::new(*address, Some(interface.clone())))
}

/// Why interfaces have no addresses of one family.
fn missing_address_reason(places: &[KernelPlace], known: &[Known]) -> String {
    for place in places {
        let KernelPlace::Interface(name) = place else { continue };
        if !known.iter().any(|(interface, ..)| interface == name) {
            return format!(
                "there is no interface {name} with an address here; `spindrift ports` lists those there are"
            );
        }
        if [true, false].iter().all(|&v4| of_interface(name, v4, known).is_none()) {
            return format!(
                "interface {name} has no address that other hosts can reach; add one with `ip address add ADDRESS/LENGTH dev {name}`, or give its link-local address as ADDRESS%{name}"
            );
        }
    }
    "some of these interfaces have only IPv4 addresses and others IPv6; planes need one family".to_owned()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn host() -> Vec<Known> {
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
            ("eth4", "fe80::3"),
        ]
        .map(|(name, address)| (name.to_owned(), address.parse().unwrap(), AddressState::Ready))
        .to_vec()
    }

    fn strings(list: &[&str]) -> Vec<String> {
        list.iter().map(|&text| text.to_owned()).collect()
    }

    fn found(places: &[&str], like: Option<&str>) -> Result<Vec<String>, String> {
        let places: Vec<KernelPlace> = places.iter().map(|place| place.parse().unwrap()).collect();
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
        assert_eq!(found(&["fe80::1%eth0"], None), Ok(strings(&["eth0 fe80::1"])));
        assert_eq!(found(&["fe80::1"], None), Ok(strings(&["eth0 fe80::1"])));
        assert_eq!(found(&["fe80::3%eth4", "eth0"], None), Ok(strings(&["eth4 fe80::3", "eth0 fd00::1"])));
        assert_eq!(found(&["127.0.0.9", "lo"], None), Ok(strings(&[" 127.0.0.9", "lo 127.0.0.1"])));
    }

    #[test]
    fn the_missing_address_is_named() {
        let refused = |places: &[&str], parts: &[&str]| {
            let error = found(places, None).unwrap_err();
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        };
        refused(&["eth0", "eth7"], &["--local: ", "no interface eth7", "spindrift ports"]);
        refused(&["eth3"], &["eth3 has no address that other hosts can reach", "dev eth3"]);
        refused(&["eth1", "eth2"], &["one family"]);
        refused(&["fe80::3"], &["fe80::3 is an address of eth3 and of eth4", "fe80::3%eth3"]);
        refused(&["fe80::1%eth1"], &["interface eth1 does not have fe80::1, but eth0"]);
        refused(&["fe80::9%eth1"], &["no interface has the address fe80::9"]);
        refused(&["eth0"; 33], &["33 addresses", "at most 32"]);
    }

    #[test]
    fn places_are_addresses_or_names() {
        let interface = |name: &str| Ok(KernelPlace::Interface(name.to_owned()));
        assert_eq!("10.0.0.1".parse(), Ok(KernelPlace::Address([10, 0, 0, 1].into())));
        assert_eq!("::1".parse(), Ok(KernelPlace::Address(std::net::Ipv6Addr::LOCALHOST.into())));
        assert_eq!("enp3s0f0np0".parse(), interface("enp3s0f0np0"));
        assert_eq!("a23456789012345".parse(), interface("a23456789012345"));
        let zoned = KernelPlace::AddressOn("fe80::1".parse().unwrap(), "eth0".to_owned());
        assert_eq!("fe80::1%eth0".parse(), Ok(zoned));
        for bad in ["", "a234567890123456", "fe80::1%", "eth0%eth1", "eth0:1", "et h0", "eth/0"] {
            assert!(bad.parse::<KernelPlace>().unwrap_err().contains(bad));
        }
    }

    /// One that can be used is better.
    #[test]
    fn tentative_addresses_are_taken_last() {
        let mut host = host();
        let first = host.iter_mut().find(|(_, address, _)| *address == IpAddr::from([10, 0, 0, 1])).unwrap();
        first.2 = AddressState::Tentative;
        let found = |host: &[Known]| of_interface("eth0", true, host).unwrap().address;
        assert_eq!(found(&host), IpAddr::from([10, 0, 1, 1]));
        host.retain(|(_, address, _)| *address != IpAddr::from([10, 0, 1, 1]));
        assert_eq!(found(&host), IpAddr::from([10, 0, 0, 1]), "so that it can be told");
    }
}
