//! Topology files: TOML, from which the names, addresses and paths of a fabric follow. `docs/cli.md` lists the keys.

use std::collections::BTreeSet;
use std::path::Path;
use std::{fmt, iter};

use anyhow::{Error, Result};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use spindrift_srv6::{
    F3216, Fabric, FabricError, FabricHost, Field, Link, ProfileError, Shape, Template, TemplateField,
};

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
    #[serde(default)]
    template: Vec<TemplateTable>,
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
    /// The Linux kernel: `seg6local` and plain routes.
    #[default]
    Kernel,
    /// An XDP program in the driver; the kernel forwards what the program passes.
    Xdp,
    /// The same program in the network stack, for drivers without XDP.
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

/// How paths to some destinations are written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TemplateTable {
    to: ipnet::Ipv6Net,
    #[serde(default)]
    from: Vec<String>,
    #[serde(default)]
    planes: Vec<u8>,
    format: Option<Vec<u8>>,
    fields: Vec<FieldTable>,
}

/// A field of a path, as the OCP API for MRC has it, with the bits that the plane's number takes.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct FieldTable {
    width: Option<u8>,
    init: u32,
    min: u32,
    max: Option<u32>,
    mask: u32,
    plane: u32,
    downlink: u32,
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
        ..default
    };
    if shape.t0 == 2 && t1.is_none() {
        let place = place(file, "fabric.t0");
        return Err(usage(format!(
            "{place}: `t1` is missing; give the number of T1 switches, or 0 if a cable joins the 2 T0 switches"
        )));
    }
    let hosts = match hosts_per_t0 {
        Some(_) if !topology.host.is_empty() => {
            let place = place(file, "fabric.hosts_per_t0");
            return Err(usage(format!(
                "{place}: there are [[host]] tables as well; leave out this key or those"
            )));
        }
        Some(each) => many(shape.t0, each),
        None => listed(topology.host),
    };
    let explain = |error| explain(file, hosts_per_t0.is_some(), &error);
    let fabric = Fabric::new(shape, hosts).map_err(explain)?;
    let named = topology.template.into_iter().enumerate();
    let templates = named.map(|(number, table)| template(file, &fabric, number, table));
    let templates = templates.collect::<Result<Vec<_>>>()?;
    fabric.with_templates(templates).map_err(explain)
}

/// The template of a table, with the hosts that it names.
fn template(file: &TomlFile, fabric: &Fabric, number: usize, table: TemplateTable) -> Result<Template> {
    let TemplateTable { to, from, planes, format, fields } = table;
    let host = |(at, name): (usize, String)| {
        fabric.host(&name).ok_or_else(|| {
            let place = place(file, &format!("template.{number}.from.{at}"));
            usage(format!("{place}: there is no host \"{name}\"; {}", hosts_there_are(fabric)))
        })
    };
    let from = from.into_iter().enumerate().map(host).collect::<Result<_>>()?;
    let format = format.unwrap_or_else(|| F3216::FORMAT.to_vec());
    let places = format.iter().copied().chain(iter::repeat(u8::MAX));
    let fields = fields.iter().zip(places).map(|(table, place)| table.field(place)).collect();
    Ok(Template { from, to, planes, format, fields })
}

impl FieldTable {
    /// The field, in a place of so many bits.
    fn field(&self, place: u8) -> TemplateField {
        let &Self { width, init, min, max, mask, plane, downlink } = self;
        let all = u32::MAX.checked_shr(mask.count_zeros()).unwrap_or(0);
        let field = Field { width: width.unwrap_or(place), init, min, max: max.unwrap_or(all), mask };
        TemplateField { field, plane, downlink }
    }
}

/// The first hosts of a fabric, for errors.
pub(crate) fn hosts_there_are(fabric: &Fabric) -> String {
    let mut names: Vec<_> = fabric.hosts().iter().take(8).map(|host| host.name.as_str()).collect();
    if fabric.hosts().len() > names.len() {
        names.push("..");
    }
    format!("the topology has {}", names.join(", "))
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

/// A direction of a link, written as [`link`] has it: from the first node to the second.
pub(crate) fn way(fabric: &Fabric, text: &str) -> Result<Link, String> {
    let (lower, upper) = link(fabric, text)?;
    let first = text.split(':').next().and_then(|name| fabric.node(name));
    Ok(if first == Some(lower) { (lower, upper) } else { (upper, lower) })
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
        FabricError::Range { setting, .. }
        | FabricError::Pods { setting, .. }
        | FabricError::Prefix { setting, .. } => format!("fabric.{setting}"),
        FabricError::Apart(_) => "fabric.t0".to_owned(),
        FabricError::NoHosts | FabricError::Hosts(_) => "host".to_owned(),
        FabricError::Host { number, setting, .. } => format!("host.{number}.{setting}"),
        FabricError::Template { number, setting, .. } => format!("template.{number}.{setting}"),
        FabricError::TemplatePaths { number, error } => format!("template.{number}.{}", of_profile(error)),
    };
    // What was left out is missed where it should be.
    let there = |key: &str| file.place(key).is_some();
    let mut key = key.as_str();
    while let (false, Some((outer, _))) = (there(key), key.rsplit_once('.')) {
        key = outer;
    }
    usage(format!("{}: {error}", place(file, key)))
}

/// The key of a template that an error is about.
fn of_profile(error: &ProfileError) -> String {
    match error {
        ProfileError::Place { place, .. } => format!("format.{}", place - 1),
        ProfileError::Format(_) => "format".to_owned(),
        ProfileError::Field { place, setting, .. } => format!("fields.{}.{setting}", place - 1),
        _ => "fields".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{assert_documented, keys_of};

    /// The table of `docs/cli.md` has a row for each section, with each of its keys.
    #[test]
    fn every_key_is_documented() {
        assert_documented("## Topology files", "[fabric]", keys_of::<FabricTable>());
        assert_documented("## Topology files", "[lab]", keys_of::<LabTable>());
        assert_documented("## Topology files", "[[host]]", keys_of::<HostTable>());
        assert_documented("## Topology files", "[[template]]", keys_of::<TemplateTable>());
        assert_documented("## Topology files", "[[template.fields]]", keys_of::<FieldTable>());
    }
}
