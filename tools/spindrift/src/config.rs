//! Configuration files: TOML, with every key of the command line and the settings of the transport that
//! have no flag. `docs/cli.md` lists the keys.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Deserializer};
use spindrift::congestion::CcAlgorithm;
use spindrift::path::{EvSource, MAX_PLANES, PathConfig, PlaneSet};
use spindrift::wire::{DscpMap, OpPosition};

use crate::bench::evs::EvLists;
use crate::bench::source_ports::SourcePortSet;
use crate::ctl::ControlPlace;
use crate::driver::{Driver, OnLink};
use crate::place::Place;
use crate::toml_file::TomlFile;
use crate::units::{parse_duration, parse_rate, parse_size};

/// A configuration file. What it leaves out has the defaults of the command.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Config {
    pub(crate) run: Run,
    pub(crate) nic: Nic,
    pub(crate) transport: Transport,
    pub(crate) path: PathSet,
    pub(crate) cc: Cc,
    pub(crate) setup: Setup,
    /// The file, to name the place of a value in an error.
    #[serde(skip)]
    file: Option<TomlFile>,
}

/// What is done.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Run {
    #[serde(deserialize_with = "size")]
    pub(crate) size: Option<u64>,
    pub(crate) iterations: Option<u64>,
    #[serde(deserialize_with = "duration")]
    pub(crate) duration: Option<Duration>,
    pub(crate) qps: Option<u32>,
    pub(crate) tx_depth: Option<u32>,
    pub(crate) seed: Option<u64>,
    pub(crate) pcap: Option<PathBuf>,
    pub(crate) control_dir: Option<ControlPlace>,
}

/// The ports.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Nic {
    pub(crate) port: Option<&'static Driver>,
    pub(crate) planes: Option<usize>,
    pub(crate) lanes: Option<usize>,
    pub(crate) local: Option<Vec<Place>>,
    pub(crate) plane_ids: Option<Vec<u32>>,
    pub(crate) topology: Option<PathBuf>,
    pub(crate) routing: Option<RoutingName>,
    #[serde(deserialize_with = "source_ports")]
    pub(crate) source_ports: Option<SourcePortSet>,
    pub(crate) gso: Option<bool>,
    pub(crate) xdp_mode: Option<XdpModeName>,
    pub(crate) rx_buffers: Option<u32>,
    pub(crate) tx_buffers: Option<u32>,
    pub(crate) device_addresses: Option<Vec<OnLink>>,
    pub(crate) gateways: Option<Vec<IpAddr>>,
    pub(crate) device_mtu: Option<u32>,
    pub(crate) zero_copy: Option<bool>,
    pub(crate) dpdk_eal: Option<String>,
    #[serde(deserialize_with = "rate")]
    pub(crate) link_rate: Option<u64>,
    pub(crate) fault: Option<String>,
}

/// Settings of the endpoint, named as in `docs/protocol.md`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Transport {
    pub(crate) mtu: Option<u32>,
    pub(crate) udp_port: Option<u16>,
    pub(crate) entropy: Option<EntropyName>,
    pub(crate) icrc: Option<bool>,
    pub(crate) dscp: Option<DscpMap>,
    pub(crate) trimming: Option<bool>,
    pub(crate) oor_nack: Option<bool>,
    pub(crate) op_position: Option<OpPosition>,
    pub(crate) hop_limit: Option<u8>,
    pub(crate) sack_threshold_bytes: Option<u32>,
    pub(crate) tail_probe_floor_ns: Option<u64>,
    pub(crate) initial_reordering_ns: Option<u64>,
    pub(crate) mpr: Option<u8>,
    pub(crate) max_wimm: Option<u16>,
    pub(crate) dynamic_mpr: Option<bool>,
    pub(crate) window_budget_psns: Option<u32>,
    pub(crate) timeout: Option<u8>,
    pub(crate) linear_retries: Option<u8>,
    pub(crate) exponential_retries: Option<u8>,
}

/// The entropy values of a queue pair.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct PathSet {
    pub(crate) evs: Option<EvLists>,
    pub(crate) active: Option<u16>,
    pub(crate) backup: Option<u16>,
    pub(crate) min_active: Option<u16>,
    #[serde(deserialize_with = "planes")]
    pub(crate) standby: Option<PlaneSet>,
    pub(crate) fallback: Option<FallbackName>,
    pub(crate) standby_probe_ns: Option<u64>,
    pub(crate) failback_hold_ns: Option<u64>,
    pub(crate) failback_hold_max_ns: Option<u64>,
    pub(crate) spray_width: Option<u16>,
    pub(crate) ecn_steering: Option<bool>,
    pub(crate) skip_limit: Option<u8>,
    pub(crate) probe_interval_ns: Option<u64>,
    pub(crate) probe_interval_max_ns: Option<u64>,
    pub(crate) probe_timeout_ns: Option<u64>,
    pub(crate) probes_to_revive: Option<u8>,
    pub(crate) reverse_per_plane: Option<u8>,
    pub(crate) reverse_refresh_ns: Option<u64>,
}

impl PathSet {
    /// The entropy values of a queue pair with so many planes; what is left out has its default.
    pub(crate) fn paths(&self, planes: u8) -> PathConfig {
        let mut base = PathConfig::new(planes);
        if let Some(evs) = &self.evs {
            // All that are named are used, or wait.
            let planes = usize::from(base.planes);
            let waiting = usize::from(self.backup.unwrap_or_default()).div_ceil(planes.max(1));
            let used = evs.longest().saturating_sub(waiting) * planes;
            let used = used.try_into().unwrap_or(u16::MAX);
            base.active = if self.backup.is_some() { used } else { base.active.max(used) };
            base.backup = 0;
            // As where fewer are found than were asked for: all but one of a few may fail.
            base.min_active = (base.active.min(used) / 8).clamp(1, base.min_active);
            base.source = EvSource::Explicit(evs.of_planes(base.planes));
        }
        PathConfig {
            active: self.active.unwrap_or(base.active),
            backup: self.backup.unwrap_or(base.backup),
            min_active: self.min_active.unwrap_or(base.min_active),
            standby: self.standby.unwrap_or(base.standby),
            standby_probe_ns: self.standby_probe_ns.unwrap_or(base.standby_probe_ns),
            failback_hold_ns: self.failback_hold_ns.unwrap_or(base.failback_hold_ns),
            failback_hold_max_ns: self.failback_hold_max_ns.unwrap_or(base.failback_hold_max_ns),
            spray_width: self.spray_width.unwrap_or(base.spray_width),
            ecn_steering: self.ecn_steering.unwrap_or(base.ecn_steering),
            skip_limit: self.skip_limit.unwrap_or(base.skip_limit),
            probe_interval_ns: self.probe_interval_ns.unwrap_or(base.probe_interval_ns),
            probe_interval_max_ns: self.probe_interval_max_ns.unwrap_or(base.probe_interval_max_ns),
            probe_timeout_ns: self.probe_timeout_ns.unwrap_or(base.probe_timeout_ns),
            probes_to_revive: self.probes_to_revive.unwrap_or(base.probes_to_revive),
            reverse_per_plane: self.reverse_per_plane.unwrap_or(base.reverse_per_plane),
            reverse_refresh_ns: self.reverse_refresh_ns.unwrap_or(base.reverse_refresh_ns),
            ..base
        }
    }
}

/// Congestion control.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Cc {
    pub(crate) algorithm: Option<CcName>,
    pub(crate) link_rate_gbps: Option<f64>,
    pub(crate) base_rtt_ns: Option<u64>,
    pub(crate) shared: Option<bool>,
}

/// The TCP connection that sets two hosts up.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Setup {
    pub(crate) port: Option<u16>,
    #[serde(deserialize_with = "duration")]
    pub(crate) timeout: Option<Duration>,
    #[serde(deserialize_with = "size")]
    pub(crate) max_memory: Option<u64>,
}

/// Who runs the XDP program of `af_xdp` ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum XdpModeName {
    /// The driver if it can, else the network stack.
    #[default]
    Auto,
    /// The driver.
    Native,
    /// The network stack.
    Generic,
}

/// How packets find their way through a fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum RoutingName {
    /// SRv6 source routing: the entropy value selects the path, and the packet lists its switches.
    Srv6,
    /// The switches hash the headers of each packet.
    Ecmp,
}

impl RoutingName {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Srv6 => "srv6",
            Self::Ecmp => "ecmp",
        }
    }
}

/// How queue pairs move to the planes that stand by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum FallbackName {
    /// With their transport state.
    #[default]
    Seamless,
    /// By sending requests again over a second queue pair, after the SHIFT paper.
    Shift,
}

impl FallbackName {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Seamless => "seamless",
            Self::Shift => "shift",
        }
    }
}

/// Congestion control algorithms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum CcName {
    /// `adaptive` on a network, `none` within one host.
    Auto,
    /// No congestion window.
    None,
    /// NSCC where switches trim packets, a window per plane where they drop them.
    Adaptive,
    /// Network-signalled congestion control (NSCC).
    Nscc,
}

impl From<CcAlgorithm> for CcName {
    fn from(algorithm: CcAlgorithm) -> Self {
        match algorithm {
            CcAlgorithm::None => Self::None,
            CcAlgorithm::Adaptive => Self::Adaptive,
            CcAlgorithm::Nscc => Self::Nscc,
        }
    }
}

impl CcName {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::None => "none",
            Self::Adaptive => "adaptive",
            Self::Nscc => "nscc",
        }
    }
}

/// Where the entropy value travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum EntropyName {
    StevSportHigh,
    StevSportLow,
    Udp,
}

impl Config {
    /// Reads a file; everything is the default without one.
    pub(crate) fn load(path: Option<&Path>) -> Result<Self> {
        let Some(path) = path else { return Ok(Self::default()) };
        let file = TomlFile::read(path, "configuration")?;
        let mut config: Self = file.parse()?;
        config.file = Some(file);
        // As a file that it speaks of moves with it.
        let folder = path.parent().unwrap_or(Path::new(""));
        config.nic.topology = config.nic.topology.map(|topology| folder.join(topology));
        Ok(config)
    }

    /// Names where a value came from: the flag if it was given, else the key in the file.
    pub(crate) fn origin(&self, from_flag: bool, flag: &str, key: &str) -> String {
        let place = if from_flag { None } else { self.find(key) };
        place.unwrap_or_else(|| flag.to_owned())
    }

    /// Names a key in the file with its line and column, `key` alone if it is not there.
    pub(crate) fn place(&self, key: &str) -> String {
        self.find(key).unwrap_or_else(|| key.to_owned())
    }

    /// Whether the file has this key.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.find(key).is_some()
    }

    fn find(&self, key: &str) -> Option<String> {
        self.file.as_ref()?.place(key)
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum NumberOrText {
    Integer(u64),
    Float(f64),
    Text(String),
}

impl NumberOrText {
    fn text(self) -> String {
        match self {
            Self::Integer(number) => number.to_string(),
            Self::Float(number) => number.to_string(),
            Self::Text(text) => text,
        }
    }
}

fn size<'de, D: Deserializer<'de>>(input: D) -> Result<Option<u64>, D::Error> {
    let text = NumberOrText::deserialize(input)?.text();
    parse_size(&text).map(Some).map_err(serde::de::Error::custom)
}

fn duration<'de, D: Deserializer<'de>>(input: D) -> Result<Option<Duration>, D::Error> {
    let text = NumberOrText::deserialize(input)?.text();
    parse_duration(&text).map(Some).map_err(serde::de::Error::custom)
}

/// Planes, separated by commas.
pub(crate) fn parse_planes(text: &str) -> Result<PlaneSet, String> {
    if text == "none" {
        return Ok(PlaneSet::default());
    }
    text.split(',').try_fold(PlaneSet::default(), |set, number| match number.trim().parse::<u8>() {
        Ok(plane) if plane < MAX_PLANES => Ok(PlaneSet(set.0 | 1_u32 << plane)),
        _ => Err(format!("`{number}` is no plane; give numbers from 0 to {}, or none", MAX_PLANES - 1)),
    })
}

/// The same, or a list of numbers.
fn planes<'de, D: Deserializer<'de>>(input: D) -> Result<Option<PlaneSet>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Planes {
        List(Vec<u8>),
        Text(NumberOrText),
    }
    let text = match Planes::deserialize(input)? {
        Planes::List(planes) if planes.is_empty() => "none".to_owned(),
        Planes::List(planes) => planes.iter().map(u8::to_string).collect::<Vec<_>>().join(","),
        Planes::Text(text) => text.text(),
    };
    parse_planes(&text).map(Some).map_err(serde::de::Error::custom)
}

fn rate<'de, D: Deserializer<'de>>(input: D) -> Result<Option<u64>, D::Error> {
    let text = NumberOrText::deserialize(input)?.text();
    parse_rate(&text).map(Some).map_err(serde::de::Error::custom)
}

fn source_ports<'de, D: Deserializer<'de>>(input: D) -> Result<Option<SourcePortSet>, D::Error> {
    let text = NumberOrText::deserialize(input)?.text();
    text.parse().map(Some).map_err(serde::de::Error::custom)
}

/// Checks that `docs/cli.md` has each of these keys below a heading: in the row of that name, or in the table whose head has the name.
#[cfg(test)]
pub(crate) fn assert_documented(heading: &str, section: &str, keys: &[&str]) {
    let page = include_str!("../../../docs/cli.md");
    let at = page.find(&format!("\n{heading}\n")).expect("the heading is there");
    let page = page.get(at..).unwrap_or_default();
    let row = page.lines().skip_while(|line| !line.starts_with(&format!("| `{section}` |")));
    let is_head = row.clone().nth(1).is_some_and(|line| line.starts_with("|---"));
    let length = if is_head { usize::MAX } else { 1 };
    let rows: Vec<_> = row.take(length).take_while(|line| line.starts_with('|')).collect();
    for key in keys {
        let there = rows.iter().any(|row| row.contains(&format!("`{key}`")));
        assert!(there, "docs/cli.md: `{key}` of {section} is missing");
    }
}

/// The keys that a section accepts, as its parser has them.
#[cfg(test)]
pub(crate) fn keys_of<'de, T: Deserialize<'de>>() -> &'static [&'static str] {
    use serde::de::value::Error;
    use serde::de::{Error as _, Visitor};

    struct Names<'a>(&'a mut &'static [&'static str]);

    impl<'de> Deserializer<'de> for Names<'_> {
        type Error = Error;

        fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
            Err(Error::custom("no section"))
        }

        fn deserialize_struct<V: Visitor<'de>>(
            self,
            _: &'static str,
            fields: &'static [&'static str],
            _: V,
        ) -> Result<V::Value, Error> {
            *self.0 = fields;
            Err(Error::custom("only its names are wanted"))
        }

        serde::forward_to_deserialize_any! {
            bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
            unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
        }
    }

    let mut names: &'static [&'static str] = &[];
    assert!(T::deserialize(Names(&mut names)).is_err());
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of `docs/cli.md` has a row for each section, with each of its keys.
    #[test]
    fn every_key_is_documented() {
        let sections = [
            ("run", keys_of::<Run>()),
            ("nic", keys_of::<Nic>()),
            ("transport", keys_of::<Transport>()),
            ("transport.dscp", keys_of::<DscpMap>()),
            ("path", keys_of::<PathSet>()),
            ("cc", keys_of::<Cc>()),
            ("setup", keys_of::<Setup>()),
        ];
        for section in keys_of::<Config>() {
            assert!(sections.iter().any(|(name, _)| name == section), "[{section}] is checked below");
        }
        for (section, keys) in sections {
            let keys: Vec<_> = keys.iter().copied().filter(|key| *key != "dscp").collect();
            assert_documented("## Configuration files", &format!("[{section}]"), &keys);
        }
    }
}
