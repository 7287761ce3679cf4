//! This host in a topology file: the places of its ports, and its paths to the other hosts.

use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;

use anyhow::{Context as _, Result};
use ipnet::IpNet;
use spindrift::endpoint::{EndpointConfig, Route};
use spindrift::wire::stack::Outer;
use spindrift_exchange::Offer;
use spindrift_pmd::route::local_addresses;
use spindrift_srv6::{Fabric, Node};

use crate::bench::options::Settings;
use crate::config::{EntropyName, RoutingName};
use crate::driver;
use crate::output::eprint_line;
use crate::place::{KernelPlace, Place};
use crate::topology;
use crate::usage::usage;

/// An interface and one of its addresses.
type Known = (String, IpAddr);

/// What the user said, and by which name each was given, for errors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'a> {
    pub(super) topology: Option<(&'a str, &'a Path)>,
    /// Where the ports are; without it, wherever the topology has any for this host.
    pub(super) places: Option<(&'a str, &'a [Place])>,
    pub(super) routing: Option<(&'a str, RoutingName)>,
    /// What gave the planes numbers, if anything did.
    pub(super) plane_ids: Option<&'a str>,
}

/// Puts what the topology says into the settings: places and numbers of planes, and source-routed paths if packets are to take them.
pub(super) fn locate(settings: &mut Settings, wanted: &Wanted<'_>) -> Result<()> {
    let Some((name, path)) = wanted.topology else {
        return match wanted.routing {
            Some((routing, RoutingName::Srv6)) => Err(usage(format!(
                "{routing} srv6: source routing needs a topology file; give one with --topology"
            ))),
            _ => Ok(()),
        };
    };
    if let Some(ids) = wanted.plane_ids {
        return Err(usage(format!("{ids} and {name} both give the planes numbers; give one of them")));
    }
    let routing = routing(settings, wanted)?;
    let fabric = topology::load(path)?;
    let file = path.display().to_string();
    let known = local_addresses().context("cannot list the local addresses")?;
    let known: Vec<_> = known.into_iter().map(|local| (local.interface.name, local.ip)).collect();
    let own = wanted.places.filter(|_| settings.port.check_place.is_some());
    let host_config = match (own, wanted.places) {
        // Only the driver knows the addresses of its devices.
        (Some((name, places)), _) => {
            let found = settings.port.resolve(settings, name, places, None)?;
            let addresses: Vec<_> = found.iter().map(|local| Place::from(local.address)).collect();
            HostConfig::at(&fabric, &file, (name, &addresses), &known)?
        }
        (None, Some(places)) => HostConfig::at(&fabric, &file, places, &known)?,
        (None, None) => HostConfig::anywhere(&fabric, &file, name, &known)?,
    };
    let addresses = host_config.planes.iter().map(|&(_, address)| Place::from(IpAddr::from(address)));
    let config = &mut settings.config;
    config.nic.local = Some(own.map_or_else(|| addresses.collect(), |(_, places)| places.to_vec()));
    config.nic.plane_ids = Some(host_config.planes.iter().map(|&(plane, _)| plane.into()).collect());
    config.nic.topology = Some(path.to_owned());
    config.nic.routing = Some(routing);
    let hop_limit = config.transport.hop_limit;
    settings.host = fabric.hosts().get(usize::from(host_config.host)).map(|host| host.name.clone());
    if routing == RoutingName::Srv6 {
        let usual = EndpointConfig::new(Vec::new()).hop_limit;
        settings.routes = host_config.routes(&fabric, hop_limit.unwrap_or(usual));
    }
    Ok(())
}

/// How packets are to find their way, if these ports can do it.
fn routing(settings: &Settings, wanted: &Wanted<'_>) -> Result<RoutingName> {
    let in_sockets = settings.config.transport.entropy == Some(EntropyName::Udp);
    let source_routes = settings.port.source_routes();
    let usual = if source_routes && !in_sockets { RoutingName::Srv6 } else { RoutingName::Ecmp };
    let Some((name, routing)) = wanted.routing else { return Ok(usual) };
    if routing == RoutingName::Ecmp {
        return Ok(routing);
    }
    if !source_routes {
        let kind = settings.port.name;
        let other =
            driver::all().iter().find(|driver| driver.source_routes()).map_or("", |driver| driver.name);
        return Err(usage(format!(
            "{name} srv6: the kernel writes the headers of {kind} ports; leave it out, or use --port {other}"
        )));
    }
    if in_sockets {
        let place = settings.config.place("transport.entropy");
        return Err(usage(format!(
            "{place}: \"udp\" has no room for the path that {name} srv6 needs; write \"stev-sport-high\", or use ecmp"
        )));
    }
    Ok(routing)
}

/// This host in a fabric.
#[derive(Debug, PartialEq, Eq)]
struct HostConfig {
    host: u16,
    /// Number and address of each port's plane.
    planes: Vec<(u8, Ipv6Addr)>,
}

impl HostConfig {
    /// The host that has its ports at these places, which `name` gave. `known` is what this machine has.
    fn at(fabric: &Fabric, file: &str, (name, places): (&str, &[Place]), known: &[Known]) -> Result<Self> {
        let find = |place: &Place| match place.in_kernel()? {
            KernelPlace::Address(address) | KernelPlace::AddressOn(address, _) => {
                of(fabric, address).ok_or_else(|| format!("no host of {file} has the address {address}"))
            }
            KernelPlace::Interface(interface) => {
                let mut of_it = known.iter().filter(|(name, _)| *name == interface);
                of_it.find_map(|(_, address)| of(fabric, *address)).ok_or_else(|| {
                    format!("no host of {file} has an address of interface {interface}; `spindrift ports` lists them")
                })
            }
        };
        let found = places.iter().map(find).collect::<Result<Vec<_>, _>>();
        let found = found.map_err(|why| usage(format!("{name}: {why}")))?;
        match only_host(&found) {
            Ok(Some(host)) => Ok(Self { host, planes: found.into_iter().map(|(_, port)| port).collect() }),
            Ok(None) => Err(usage(format!("{name}: give a place for each plane"))),
            Err(hosts) => {
                let [one, other] = hosts.map(|host| fabric.name(Node::Host(host)));
                Err(usage(format!("{name}: in {file} these are ports of two hosts, {one} and {other}")))
            }
        }
    }

    /// The host that this machine is, with all its planes; `name` gave the file.
    fn anywhere(fabric: &Fabric, file: &str, name: &str, known: &[Known]) -> Result<Self> {
        let ours: Vec<_> = known.iter().filter_map(|(_, address)| of(fabric, *address)).collect();
        let host = match only_host(&ours) {
            Ok(Some(host)) => host,
            Ok(None) => {
                let (first, address) = (fabric.name(Node::Host(0)), fabric.address(0, 0));
                let example = address.map(|address| format!(", such as {address} of {first}"));
                return Err(usage(format!(
                    "{name}: this machine has no address of a host of {file}{}; `spindrift ports` lists what it has",
                    example.unwrap_or_default()
                )));
            }
            Err(hosts) => {
                let [one, other] = hosts.map(|host| fabric.name(Node::Host(host)));
                return Err(usage(format!(
                    "{name}: this machine has addresses of {one} and of {other}; give those to use with --local"
                )));
            }
        };
        let all = (0..fabric.shape().planes).filter_map(|plane| Some((plane, fabric.address(host, plane)?)));
        let planes: Vec<_> = all.collect();
        match planes.iter().find(|&&port| !ours.contains(&(host, port))) {
            None => Ok(Self { host, planes }),
            Some((plane, address)) => Err(usage(format!(
                "{name}: this machine is {}, but has no address {address}, its address in plane {plane}; add it, or give those to use with --local, on both sides",
                fabric.name(Node::Host(host))
            ))),
        }
    }

    /// The source-routed ways from each port to all hosts: a packet's entropy value says which switches it passes (MRC paper, section
    /// 2.2).
    fn routes(&self, fabric: &Fabric, hop_limit: u8) -> Vec<Route> {
        let mut routes = Vec::new();
        for (port, &(plane, src)) in (0..).zip(&self.planes) {
            for host in hosts(fabric) {
                let ends = fabric.address(host, plane).zip(fabric.paths(self.host, host, plane));
                routes.extend(ends.map(|(to, path)| {
                    let outer = Some(Outer { src, path, hop_limit });
                    Route { outer, ..Route::new(IpNet::V6(to.into()), port) }
                }));
            }
        }
        routes
    }
}

/// Checks that each of the entropy values that `name` gave is a path to some host, where paths are known.
pub(super) fn check_evs(settings: &Settings, name: &str, planes: usize) -> Result<()> {
    let Settings { evs: Some(evs), routes, .. } = settings else { return Ok(()) };
    for (port, list) in (0..).zip(evs.of_planes(planes as u8).iter()) {
        let of_port = routes.iter().filter(|route| route.port == port);
        let paths: Vec<_> =
            of_port.filter_map(|route| route.outer.as_ref().map(|outer| &outer.path)).collect();
        let Some(most) = paths.iter().max_by_key(|path| path.count()) else { continue };
        let to_none = |ev: u32| paths.iter().all(|path| path.check(ev).is_err());
        let mut stray = list.iter().filter(|ev| to_none(ev.0));
        if let Some(why) = stray.find_map(|ev| most.check(ev.0).err()) {
            return Err(usage(format!("{name}: plane {port}: {why}; `spindrift path` lists what there is")));
        }
    }
    Ok(())
}

/// Says so where packets to a peer are not source-routed although others would be.
pub(super) fn tell_without_path(settings: &Settings, peer: &str, theirs: &Offer) {
    let (Some(file), Some(first)) = (&settings.config.nic.topology, theirs.qps.first()) else { return };
    for (port, address) in (0..).zip(&first.ports) {
        let of_port = |route: &&Route| route.port == port;
        let mut routes = settings.routes.iter().filter(of_port).peekable();
        if routes.peek().is_some() && !routes.any(|route| route.to.contains(&address.ip)) {
            eprint_line(format_args!(
                "spindrift: the {peer} has {} on plane {port}, which no host has there in {}: the switches route packets to it",
                address.ip,
                file.display()
            ));
        }
    }
}

fn hosts(fabric: &Fabric) -> impl Iterator<Item = u16> + '_ {
    fabric.nodes().map_while(|node| if let Node::Host(host) = node { Some(host) } else { None })
}

/// Whose address this is: the host, the plane, and the address itself.
fn of(fabric: &Fabric, address: IpAddr) -> Option<(u16, (u8, Ipv6Addr))> {
    let IpAddr::V6(address) = address else { return None };
    fabric.port_of(address).map(|(host, plane)| (host, (plane, address)))
}

/// The one host that all ports are of, or two that some are of.
fn only_host<T>(ports: &[(u16, T)]) -> Result<Option<u16>, [u16; 2]> {
    let Some(&(host, _)) = ports.first() else { return Ok(None) };
    match ports.iter().find(|(other, _)| *other != host) {
        Some(&(other, _)) => Err([host, other]),
        None => Ok(Some(host)),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]
mod tests {
    use spindrift_srv6::{FabricHost, Shape};

    use super::*;

    /// Two planes with two hosts at the first T0 switch and one at the second, as in `configs/lab/two-plane.toml`.
    fn fabric() -> Fabric {
        let host = |name: &str, t0, downlink| FabricHost { name: name.to_owned(), t0, downlink };
        let hosts = vec![host("h1", 0, 0), host("h2", 0, 1), host("h3", 1, 0)];
        Fabric::new(Shape { planes: 2, t0: 2, t1: 4, ..Shape::default() }, hosts).unwrap()
    }

    fn known(list: &[(&str, &str)]) -> Vec<Known> {
        list.iter().map(|&(name, address)| (name.to_owned(), address.parse().unwrap())).collect()
    }

    const H1: [(&str, &str); 5] = [
        ("lo", "::1"),
        ("eth1", "fe80::1"),
        ("eth1", "fd5d:7072::1:1"),
        ("eth0", "10.0.0.1"),
        ("eth0", "fd5d:7072::1"),
    ];

    fn anywhere(of_machine: &[(&str, &str)]) -> Result<HostConfig, String> {
        let host_config = HostConfig::anywhere(&fabric(), "f.toml", "--topology", &known(of_machine));
        host_config.map_err(|error| error.to_string())
    }

    fn at(places: &[&str]) -> Result<HostConfig, String> {
        let places: Vec<Place> = places.iter().map(|place| Place::from((*place).to_owned())).collect();
        let mut of_machine = known(&H1);
        of_machine.push(("eth2".to_owned(), "fd5d:7072:0:1::1".parse().unwrap()));
        let host_config = HostConfig::at(&fabric(), "f.toml", ("--local", &places), &of_machine);
        host_config.map_err(|error| error.to_string())
    }

    fn host_config(host: u16, planes: &[(u8, &str)]) -> HostConfig {
        let planes = planes.iter().map(|&(plane, address)| (plane, address.parse().unwrap())).collect();
        HostConfig { host, planes }
    }

    #[test]
    fn a_machine_is_the_host_whose_addresses_it_has() {
        let h1 = host_config(0, &[(0, "fd5d:7072::1"), (1, "fd5d:7072::1:1")]);
        assert_eq!(anywhere(&H1), Ok(h1));
        let refused = |of_machine: &[(&str, &str)], parts: &[&str]| {
            let error = anywhere(of_machine).unwrap_err();
            assert!(error.starts_with("--topology: "), "{error}");
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        };
        refused(
            &H1[..2],
            &["no address of a host of f.toml, such as fd5d:7072::1 of h1;", "spindrift ports"],
        );
        refused(&H1[..4], &["is h1, but has no address fd5d:7072::1, its address in plane 0", "--local"]);
        let two = [H1[2], H1[4], ("eth2", "fd5d:7072:0:1::1")];
        refused(&two, &["addresses of h1 and of h3", "--local"]);
    }

    /// In the order of the places.
    #[test]
    fn places_are_found_in_the_topology() {
        let swapped = host_config(0, &[(1, "fd5d:7072::1:1"), (0, "fd5d:7072::1")]);
        assert_eq!(at(&["eth1", "fd5d:7072::1"]), Ok(swapped));
        // Whether the machine has an address is seen when it is used.
        assert_eq!(at(&["fd5d:7072::1:2"]), Ok(host_config(1, &[(1, "fd5d:7072::1:2")])));
        let refused = |places: &[&str], parts: &[&str]| {
            let error = at(places).unwrap_err();
            assert!(error.starts_with("--local: "), "{error}");
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        };
        refused(&["eth0", "fd5d:7072::9"], &["no host of f.toml has the address fd5d:7072::9"]);
        refused(&["10.0.0.1"], &["no host of f.toml has the address 10.0.0.1"]);
        refused(&["lo"], &["no host of f.toml has an address of interface lo", "spindrift ports"]);
        refused(&["eth7"], &["interface eth7"]);
        refused(&["eth0", "eth2"], &["two hosts, h1 and h3"]);
    }

    /// To each host in the port's own plane, over the switches that the fabric has between them.
    #[test]
    fn routes_are_the_paths_of_the_fabric() {
        let fabric = fabric();
        let swapped = at(&["eth1", "eth0"]).unwrap();
        let routes = swapped.routes(&fabric, 7);
        assert_eq!(routes.len(), 2 * 3);
        for (port, plane) in [(0, 1), (1, 0)] {
            for host in 0..3 {
                let to: IpNet = IpAddr::V6(fabric.address(host, plane).unwrap()).into();
                let route = routes.iter().find(|route| (route.to, route.port) == (to, port)).unwrap();
                let outer = Outer {
                    src: fabric.address(0, plane).unwrap(),
                    path: fabric.paths(0, host, plane).unwrap(),
                    hop_limit: 7,
                };
                assert_eq!((&route.outer, route.next_hop), (&Some(outer), None));
            }
        }
    }
}
