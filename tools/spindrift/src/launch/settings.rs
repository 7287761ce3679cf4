//! The devices of a run: options come before environment variables, and those before a file.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use serde::Deserialize;
use spindrift_pmd::route::local_addresses;
use spindrift_programs::{Settings, gid};

use crate::toml_file::TomlFile;
use crate::usage::usage;

const SETTINGS: usize = 10;

/// Each setting: its variable, and its option.
const NAMES: [(&str, &str); SETTINGS] = [
    ("SPINDRIFT_PLANES", "--planes"),
    ("SPINDRIFT_NICS", "--nics"),
    ("SPINDRIFT_CONTROL_PORT", "--control-port"),
    ("SPINDRIFT_VENDOR_PART_ID", "--vendor-part-id"),
    ("SPINDRIFT_FAULT", "--fault"),
    ("SPINDRIFT_SEED", "--seed"),
    ("SPINDRIFT_CONTROL_DIR", "--control-dir"),
    ("SPINDRIFT_DEVICE_DIR", "--device-dir"),
    ("SPINDRIFT_STATIC_PEERS", "--static-peers"),
    ("SPINDRIFT_UDP_PORT", "--udp-port"),
];

/// Settings as the user gives them.
#[derive(Args, Debug)]
pub(super) struct Sources {
    /// This host's addresses on the planes of the one device `spindrift0`, as A,B,C; planes of a second NIC, which
    /// stands by, after a +, as A,B+C,D [default: the address from which this host reaches others]
    #[arg(long, value_name = "ADDRESSES")]
    planes: Option<String>,
    /// Several devices, as NAME=A,B;NAME=C+D
    #[arg(long, value_name = "DEVICES", conflicts_with = "planes")]
    nics: Option<String>,
    /// The first UDP port by which processes find each other, 1024 to 60000 [default: 24971]
    #[arg(long, value_name = "PORT")]
    control_port: Option<String>,
    /// What devices report as `vendor_part_id` [default: 0]
    #[arg(long, value_name = "NUMBER")]
    vendor_part_id: Option<String>,
    /// Faults on all planes, such as `loss=1%`; see docs/faults.md
    #[arg(long, value_name = "PLAN")]
    fault: Option<String>,
    /// Seed of the faults' draws [default: 1]
    #[arg(long, value_name = "NUMBER")]
    seed: Option<String>,
    /// Folder of the sockets for `spindrift ctl`, or none [default: where `spindrift ctl` looks]
    #[arg(long, value_name = "DIR")]
    control_dir: Option<String>,
    /// Folder in which MRC controllers keep profiles and port states of devices [default: /run/spindrift-devices]
    #[arg(long, value_name = "DIR")]
    device_dir: Option<String>,
    /// Peers that are not Spindrift, such as MRC NICs: the planes of each as A,B;C,D, or any if each has one
    #[arg(long, value_name = "PEERS")]
    static_peers: Option<String>,
    /// UDP port of MRC with --static-peers [default: 4971]
    #[arg(long, value_name = "PORT")]
    udp_port: Option<String>,
    /// A file with settings (TOML). Options and environment variables come before it
    #[arg(long, value_name = "FILE")]
    settings: Option<PathBuf>,
}

/// A settings file. Its keys are those of the options.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct File {
    planes: Option<Planes>,
    nics: Option<BTreeMap<String, Planes>>,
    control_port: Option<u64>,
    vendor_part_id: Option<u64>,
    fault: Option<String>,
    seed: Option<u64>,
    control_dir: Option<String>,
    device_dir: Option<String>,
    static_peers: Option<StaticPeers>,
    udp_port: Option<u64>,
}

/// The planes of one NIC, or those of the two NICs of a device.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a list of addresses, or two such lists: the second NIC stands by")]
enum Planes {
    One(Vec<String>),
    Several(Vec<Vec<String>>),
}

/// `any`, or the planes of each peer.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "any, or a list of lists of addresses: the planes of each peer")]
enum StaticPeers {
    Any(String),
    Planes(Vec<Vec<String>>),
}

impl StaticPeers {
    /// As options have it.
    fn text(self) -> String {
        match self {
            Self::Any(text) => text,
            Self::Planes(peers) => peers.iter().map(|planes| planes.join(",")).collect::<Vec<_>>().join(";"),
        }
    }
}

impl Planes {
    /// As options have it.
    fn text(&self) -> String {
        match self {
            Self::One(planes) => planes.join(","),
            Self::Several(nics) => nics.iter().map(|planes| planes.join(",")).collect::<Vec<_>>().join("+"),
        }
    }
}

impl File {
    fn values(self) -> [Option<String>; SETTINGS] {
        let number = |value: Option<u64>| value.map(|value| value.to_string());
        let nics = self.nics.map(|nics| {
            nics.into_iter()
                .map(|(name, planes)| format!("{name}={}", planes.text()))
                .collect::<Vec<_>>()
                .join(";")
        });
        [
            self.planes.as_ref().map(Planes::text),
            nics,
            number(self.control_port),
            number(self.vendor_part_id),
            self.fault,
            number(self.seed),
            self.control_dir,
            self.device_dir,
            self.static_peers.map(StaticPeers::text),
            number(self.udp_port),
        ]
    }
}

/// What came of it.
pub(super) struct Found {
    pub(super) resolved: Settings,
    /// The variables that say the same to the library.
    pub(super) variables: Vec<(String, OsString)>,
}

impl Sources {
    pub(super) fn settings(&self) -> Result<Found> {
        let options = [
            &self.planes,
            &self.nics,
            &self.control_port,
            &self.vendor_part_id,
            &self.fault,
            &self.seed,
            &self.control_dir,
            &self.device_dir,
            &self.static_peers,
            &self.udp_port,
        ]
        .map(Clone::clone);
        let variables = NAMES.map(|(variable, _)| env::var(variable).ok().filter(|value| !value.is_empty()));
        let (file, file_name) = match &self.settings {
            None => ([const { None }; SETTINGS], String::new()),
            Some(path) => {
                let file = TomlFile::read(path, "settings file")?;
                (file.parse::<File>()?.values(), file.name().to_owned())
            }
        };
        let found = resolve([options, variables, file], &file_name)?;
        check_local(&found.resolved)?;
        Ok(found)
    }
}

/// The first of the sources that has a setting decides. Planes and devices are one setting.
fn resolve(sources: [[Option<String>; SETTINGS]; 3], file: &str) -> Result<Found> {
    let mut values: [Option<(usize, String)>; SETTINGS] = [const { None }; SETTINGS];
    for (source, given) in sources.into_iter().enumerate() {
        let has_devices = values.iter().take(2).any(Option::is_some);
        for (at, (value, given)) in values.iter_mut().zip(given).enumerate() {
            if value.is_none() && !(at < 2 && has_devices) {
                *value = given.map(|given| (source, given));
            }
        }
    }
    let get = |name: &'static str| {
        let at = NAMES.iter().position(|(variable, _)| *variable == name)?;
        values.get(at)?.as_ref().map(|(_, value)| value.clone())
    };
    let resolved = Settings::from(get).map_err(|error| {
        let at = NAMES.iter().position(|(variable, _)| *variable == error.name());
        let source = at.and_then(|at| values.get(at)?.as_ref()).map_or(1, |(source, _)| *source);
        let option = at.and_then(|at| NAMES.get(at)).map_or("", |(_, option)| option);
        usage(match source {
            0 => format!("{option} {}: {}", error.value(), error.reason()),
            1 => error.to_string(),
            _ => {
                format!("{file}: {} = {}: {}", option.trim_start_matches('-'), error.value(), error.reason())
            }
        })
    })?;
    let variables = NAMES.iter().zip(values).map(|((variable, _), value)| {
        ((*variable).to_owned(), value.map(|(_, value)| value).unwrap_or_default().into())
    });
    Ok(Found { variables: variables.collect(), resolved })
}

/// All planes have to be addresses of this host.
fn check_local(settings: &Settings) -> Result<()> {
    let Ok(local) = local_addresses() else { return Ok(()) };
    for plane in settings.nics.iter().flat_map(|nic| &nic.planes) {
        let is_own = local.iter().any(|address| address.ip == *plane || plane.is_loopback());
        if !is_own {
            let own: Vec<String> = local.iter().map(|address| address.ip.to_string()).collect();
            return Err(usage(format!("{plane} is not an address of this host; it has {}", own.join(", "))));
        }
    }
    Ok(())
}

/// The devices, for people.
pub(super) fn explain(found: &Found) -> Vec<String> {
    let settings = &found.resolved;
    let local = local_addresses().unwrap_or_default();
    let mut lines = Vec::new();
    for nic in &settings.nics {
        let known = nic.planes.first().and_then(|plane| gid::entry(*plane, gid::ENTRIES - 1));
        let text = known.map(|(gid, _)| std::net::Ipv6Addr::from(gid).to_string()).unwrap_or_default();
        lines.push(format!("device         {}, GID {text} at index {}", nic.name, gid::ENTRIES - 1));
        for (at, plane) in nic.planes.iter().enumerate() {
            let found = local.iter().find(|address| address.ip == *plane);
            let interface = found.map_or("lo", |address| &address.interface.name);
            let role = if nic.standby.contains(at as u8) { ", stands by" } else { "" };
            lines.push(format!("  plane {at:<6} {plane} on {interface}{role}"));
        }
    }
    lines.push(format!("control port   UDP {}, or the first free one after it", settings.control_port));
    let fault = found.variables.iter().find(|(name, _)| name == "SPINDRIFT_FAULT");
    if let Some((_, fault)) = fault.filter(|(_, fault)| !fault.is_empty()) {
        lines.push(format!("faults         {}, seed {}", fault.display(), settings.seed));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some(values: [&str; SETTINGS]) -> [Option<String>; SETTINGS] {
        values.map(|value| (!value.is_empty()).then(|| value.to_owned()))
    }

    fn found(sources: &[[&str; SETTINGS]; 3]) -> Result<Vec<String>, String> {
        let found = resolve((*sources).map(some), "here.toml").map_err(|error| error.to_string())?;
        Ok(found.variables.iter().map(|(_, value)| value.to_string_lossy().into_owned()).collect())
    }

    #[test]
    fn options_come_before_variables_and_those_before_a_file() {
        let none = [""; SETTINGS];
        let file =
            ["127.0.0.3", "", "30000", "4129", "loss=1%", "7", "/run/a", "/run/b", "127.0.0.9", "4791"];
        let variables = ["", "a=127.0.0.2", "30001", "", "", "", "", "", "", ""];
        assert_eq!(found(&[none, none, file]).unwrap(), file);
        // Devices of one source replace the planes of another.
        assert_eq!(
            found(&[none, variables, file]).unwrap(),
            ["", "a=127.0.0.2", "30001", "4129", "loss=1%", "7", "/run/a", "/run/b", "127.0.0.9", "4791"]
        );
        let options = ["127.0.0.1", "", "", "", "", "8", "none", "", "any", ""];
        assert_eq!(
            found(&[options, variables, file]).unwrap(),
            ["127.0.0.1", "", "30001", "4129", "loss=1%", "8", "none", "/run/b", "any", "4791"]
        );
    }

    #[test]
    fn a_file_has_lists_of_addresses() {
        let values = |text: &str| toml::from_str::<File>(text).map(File::values);
        let one = values("planes = [\"::1\", \"::2\"]").unwrap();
        assert_eq!(one[0].as_deref(), Some("::1,::2"));
        let two = values("[nics]\na = [[\"::1\", \"::2\"], [\"::3\"]]\nb = [\"::4\"]").unwrap();
        assert_eq!(two[1].as_deref(), Some("a=::1,::2+::3;b=::4"));
        let peers = values("static-peers = [[\"::1\", \"::2\"], [\"::3\"]]").unwrap();
        assert_eq!(peers[8].as_deref(), Some("::1,::2;::3"));
        assert_eq!(values("static-peers = \"any\"").unwrap()[8].as_deref(), Some("any"));
        let error = values("planes = \"::1\"").unwrap_err().to_string();
        assert!(error.contains("a list of addresses, or two such lists"), "{error}");
    }

    #[test]
    fn an_error_names_where_the_setting_came_from() {
        let (none, bad) = ([""; SETTINGS], ["127.0.0.1,x", "", "", "", "", "", "", "", "", ""]);
        for (sources, text) in [
            ([bad, none, none], "--planes 127.0.0.1,x: x is no address"),
            ([none, bad, none], "SPINDRIFT_PLANES=127.0.0.1,x: x is no address"),
            ([none, none, bad], "here.toml: planes = 127.0.0.1,x: x is no address"),
        ] {
            assert_eq!(found(&sources).unwrap_err(), text);
        }
    }
}
