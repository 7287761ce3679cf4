//! Topology files: TOML, from which the names, addresses and paths of a fabric follow. `docs/cli.md` lists the keys.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use anyhow::{Error, Result};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use spindrift_srv6::{Fabric, FabricError, FabricHost, Link, Shape};

use crate::toml_file::TomlFile;
use crate::usage::usage;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Topology {
    fabric: FabricTable,
    #[serde(default)]
    lab: LabTable,
    #[serde(default)]
    host: Vec<HostTable>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct FabricTable {
    planes: Option<u8>,
    t0: Option<u16>,
    t1: Option<u16>,
    block: Option<ipnet::Ipv6Net>,
    prefix: Option<ipnet::Ipv6Net>,
    hosts_per_t0: Option<u16>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct LabTable {
    switch: SwitchKind,
}

/// What forwards packets in the switches of a lab.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum SwitchKind {
    /// The kernel: `seg6local` and plain routes.
    #[default]
    Kernel,
    /// An XDP program in the driver; the kernel has what it leaves.
    Xdp,
    /// The same program in the network stack: for devices whose drivers have no XDP.
    XdpGeneric,
}

impl fmt::Display for SwitchKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kernel => "kernel",
            Self::Xdp => "xdp",
            Self::XdpGeneric => "xdp-generic",
        })
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct HostTable {
    name: String,
    #[serde(default)]
    t0: u16,
    downlink: Option<u16>,
}

/// Reads the fabric of a topology file.
pub(crate) fn load(path: &Path) -> Result<Fabric> {
    fabric(&TomlFile::read(path, "topology")?)
}

/// The kind of switches that a file asks for.
pub(crate) fn switch(file: &TomlFile) -> Result<SwitchKind> {
    Ok(file.parse::<Topology>()?.lab.switch)
}

/// The fabric that a file tells of.
pub(crate) fn fabric(file: &TomlFile) -> Result<Fabric> {
    let topology: Topology = file.parse()?;
    let default = Shape::default();
    let FabricTable { planes, t0, t1, block, prefix, hosts_per_t0 } = topology.fabric;
    let shape = Shape {
        planes: planes.unwrap_or(default.planes),
        t0: t0.unwrap_or(default.t0),
        t1: t1.unwrap_or(default.t1),
        block: block.unwrap_or(default.block),
        prefix: prefix.unwrap_or(default.prefix),
    };
    let hosts = match hosts_per_t0 {
        Some(_) if !topology.host.is_empty() => {
            let place = place(file, "fabric.hosts_per_t0");
            return Err(usage(format!("{place}: hosts are listed, too; leave out this key or all [[host]]")));
        }
        Some(each) => many(shape.t0, each),
        None => listed(topology.host),
    };
    Fabric::new(shape, hosts).map_err(|error| explain(file, hosts_per_t0.is_some(), &error))
}

/// As many hosts at each T0 switch, called h1, h2 and so on.
fn many(t0: u16, each: u16) -> Vec<FabricHost> {
    let places = (0..t0).flat_map(|t0| (0..each).map(move |downlink| (t0, downlink)));
    let host = |(number, (t0, downlink))| FabricHost { name: format!("h{number}"), t0, downlink };
    (1..).zip(places).map(host).collect()
}

/// The hosts of a list. Those that name no port get the lowest one that is free, in the order of the list.
fn listed(hosts: Vec<HostTable>) -> Vec<FabricHost> {
    let mut taken: BTreeSet<_> = hosts.iter().filter_map(|host| Some((host.t0, host.downlink?))).collect();
    let mut place = |host: HostTable| {
        let HostTable { name, t0, downlink } = host;
        let free = || (0..=u16::MAX).find(|&port| !taken.contains(&(t0, port))).unwrap_or(u16::MAX);
        let downlink = downlink.unwrap_or_else(free);
        taken.insert((t0, downlink));
        FabricHost { name, t0, downlink }
    };
    hosts.into_iter().map(&mut place).collect()
}

/// The link between two nodes, written as `h1:p0-t0-0`.
pub(crate) fn link(fabric: &Fabric, text: &str) -> Result<Link, String> {
    let (a, b) = text
        .split_once(':')
        .ok_or_else(|| "write the names of two nodes, as in h1:p0-t0-0 or p0-t0-0:p0-t1-3".to_owned())?;
    let node = |name: &str| {
        fabric.node(name).ok_or_else(|| {
            format!(
                "there is no node \"{name}\"; hosts have their names, switches are called p0-t0-0 or p0-t1-3"
            )
        })
    };
    let (a, b) = (node(a)?, node(b)?);
    fabric.link(a, b).ok_or_else(|| {
        let (a, b) = (fabric.name(a), fabric.name(b));
        format!("{a} and {b} are not joined; hosts are joined to a T0 switch of each plane, and those to all T1 switches of their plane")
    })
}

/// What [`link`] understands, the lower end first.
pub(crate) fn link_name(fabric: &Fabric, link: Link) -> String {
    format!("{}:{}", fabric.name(link.0), fabric.name(link.1))
}

fn place(file: &TomlFile, key: &str) -> String {
    file.place(key).unwrap_or_else(|| file.name().to_owned())
}

/// Puts the place in front of what is wrong.
fn explain(file: &TomlFile, counted: bool, error: &FabricError) -> Error {
    let key = match error {
        FabricError::NoHosts if !counted => {
            let name = file.name();
            return usage(format!("{name}: {error}; add [[host]] or hosts_per_t0 in [fabric]"));
        }
        FabricError::NoHosts | FabricError::Hosts(_) | FabricError::Host { .. } if counted => {
            "fabric.hosts_per_t0".to_owned()
        }
        FabricError::Range { setting, .. } | FabricError::Prefix { setting, .. } => {
            format!("fabric.{setting}")
        }
        FabricError::Apart(_) => "fabric.t0".to_owned(),
        FabricError::NoHosts | FabricError::Hosts(_) => "host".to_owned(),
        FabricError::Host { number, setting, .. }
            if file.place(&format!("host.{number}.{setting}")).is_some() =>
        {
            format!("host.{number}.{setting}")
        }
        FabricError::Host { number, .. } => format!("host.{number}"),
    };
    usage(format!("{}: {error}", place(file, &key)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{assert_documented, keys_of};

    /// The table of `docs/cli.md` has a row for each section, with each of its keys.
    #[test]
    fn every_key_is_documented() {
        assert_documented("[fabric]", keys_of::<FabricTable>());
        assert_documented("[lab]", keys_of::<LabTable>());
        assert_documented("[[host]]", keys_of::<HostTable>());
    }
}
