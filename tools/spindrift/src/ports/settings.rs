//! The settings that each kind of port accepts. Names and descriptions of flags come from the command line's parser,
//! defaults from the types that the ports are opened with.

use clap::{CommandFactory as _, ValueEnum as _};
use serde_json::{Value as Json, json};
use spindrift::wire::UDP_PORT_MRC;
use spindrift_pmd::udp::{SourcePorts, UdpConfig};

use crate::Cli;
use crate::bench::check::{BUFFERS_USUAL, PLANES};
use crate::config::PortKind;

/// Commands that open ports.
const COMMANDS: [&str; 3] = ["loopback", "write-bw", "write-lat"];

/// A setting of ports.
#[derive(Clone, Debug)]
struct PortSetting {
    /// Its key in a configuration file.
    key: &'static str,
    /// The flag with the same meaning; its help is the description of both.
    flag: &'static str,
    kinds: &'static [PortKind],
    /// What a value counts or is.
    unit: &'static str,
    /// `null` where it is nothing, or chosen at run time: the description says how.
    default: Json,
    /// A value for the file, in TOML.
    value: &'static str,
    /// A value for the flag; empty where it takes none.
    flag_value: &'static str,
}

/// The settings of a kind of port, in the order in which they are printed.
fn settings_of(kind: PortKind) -> Vec<PortSetting> {
    use PortKind::{AfXdp, Loopback, Udp};
    const ALL: &[PortKind] = &[Loopback, Udp, AfXdp];
    let setting = |key, flag, kinds, unit, default, value, flag_value| PortSetting {
        key,
        flag,
        kinds,
        unit,
        default,
        value,
        flag_value,
    };
    let source_ports = match UdpConfig::default().source_ports {
        SourcePorts::Count(count) => count,
        SourcePorts::List(list) => list.len(),
    };
    let quoted = match kind {
        Loopback => "\"loopback\"",
        Udp => "\"udp\"",
        AfXdp => "\"af_xdp\"",
    };
    let (place, routing) = match kind {
        AfXdp => (("[\"eth0\", \"eth1\"]", "eth0,eth1"), ("\"srv6\"", "srv6")),
        _ => (("[\"127.0.0.1\", \"127.0.0.2\"]", "127.0.0.1,127.0.0.2"), ("\"ecmp\"", "ecmp")),
    };
    let all = [
        setting("nic.port", "port", ALL, "kind of port", Json::Null, quoted, kind.name()),
        setting("nic.planes", "planes", &[Loopback, Udp], "planes", PLANES.into(), "2", "2"),
        setting("nic.lanes", "lanes", ALL, "lanes", 1.into(), "2", "2"),
        setting(
            "nic.local",
            "local",
            &[Udp, AfXdp],
            "list of addresses or interfaces",
            Json::Null,
            place.0,
            place.1,
        ),
        setting("nic.plane_ids", "plane-ids", ALL, "list of numbers", Json::Null, "[1, 2]", "1,2"),
        setting(
            "nic.topology",
            "topology",
            &[Udp, AfXdp],
            "file name",
            Json::Null,
            "\"fabric.toml\"",
            "fabric.toml",
        ),
        setting("nic.routing", "routing", &[Udp, AfXdp], "way", Json::Null, routing.0, routing.1),
        setting("nic.source_ports", "source-ports", &[Udp], "UDP ports", source_ports.into(), "64", "64"),
        setting("nic.gso", "no-gso", &[Udp], "boolean", true.into(), "false", ""),
        setting("nic.xdp_mode", "xdp-mode", &[AfXdp], "mode", "auto".into(), "\"generic\"", "generic"),
        setting("nic.rx_buffers", "rx-buffers", &[AfXdp], "buffers", BUFFERS_USUAL.into(), "4096", "4096"),
        setting("nic.tx_buffers", "tx-buffers", &[AfXdp], "buffers", BUFFERS_USUAL.into(), "4096", "4096"),
        setting("nic.link_rate", "link-rate", ALL, "bits per second", Json::Null, "\"10G\"", "10G"),
        setting("path.evs", "evs", &[Loopback, AfXdp], "list of values", Json::Null, "[1, 2]", "1,2"),
        setting("nic.fault", "fault", ALL, "rules", Json::Null, "\"loss=1%\"", "loss=1%"),
        setting(
            "transport.udp_port",
            "udp-port",
            &[Udp, AfXdp],
            "UDP port",
            UDP_PORT_MRC.into(),
            "4791",
            "4791",
        ),
        setting("run.pcap", "pcap", ALL, "file name", Json::Null, "\"run.pcap\"", "run.pcap"),
    ];
    all.into_iter().filter(|setting| setting.kinds.contains(&kind)).collect()
}

impl PortSetting {
    /// A line of a configuration file.
    fn example(&self) -> String {
        format!("{} = {}", self.key, self.value)
    }

    /// The same on the command line.
    fn flag_example(&self) -> String {
        format!("--{} {}", self.flag, self.flag_value).trim_end().to_owned()
    }

    /// The commands that have the flag, for ports of a kind.
    fn commands(&self, kind: PortKind) -> Vec<&'static str> {
        let cli = Cli::command();
        let has = |name: &&str| {
            cli.find_subcommand(name)
                .is_some_and(|command| command.get_arguments().any(|arg| arg.get_long() == Some(self.flag)))
        };
        let opens = |name: &&str| match kind {
            PortKind::Loopback => *name == "loopback",
            PortKind::Udp => true,
            PortKind::AfXdp => *name != "loopback",
        };
        COMMANDS.into_iter().filter(opens).filter(has).collect()
    }

    /// The help of the flag.
    fn about(&self) -> String {
        let cli = Cli::command();
        let mut arguments = COMMANDS
            .iter()
            .filter_map(|name| cli.find_subcommand(name))
            .flat_map(clap::Command::get_arguments);
        let help = arguments.find(|arg| arg.get_long() == Some(self.flag)).and_then(clap::Arg::get_help);
        help.map(ToString::to_string).unwrap_or_default()
    }
}

/// Each kind of port with its settings, for people.
pub(super) fn table() -> Vec<String> {
    let mut lines = Vec::new();
    for &kind in PortKind::value_variants() {
        lines.push(format!("settings of {} ports, as keys of a configuration file:", kind.name()));
        for setting in settings_of(kind) {
            let default = match &setting.default {
                Json::Null => String::new(),
                value => format!(", default {value}"),
            };
            lines.push(format!(
                "  {:<18} {}{default}; example: {}",
                setting.key,
                setting.unit,
                setting.example()
            ));
            let commands = setting.commands(kind).join(", ");
            lines.push(format!("  {:<18} {} ({commands}): {}", "", setting.flag_example(), setting.about()));
        }
        lines.push(String::new());
    }
    lines
}

/// The same for `--json`.
pub(super) fn to_json() -> Json {
    let one = |kind, setting: &PortSetting| {
        json!({
            "name": setting.key,
            "unit": setting.unit,
            "default": setting.default,
            "example": setting.example(),
            "flag": format!("--{}", setting.flag),
            "flag_example": setting.flag_example(),
            "commands": setting.commands(kind),
            "description": setting.about(),
        })
    };
    PortKind::value_variants()
        .iter()
        .map(|&kind| {
            let settings: Vec<Json> = settings_of(kind).iter().map(|setting| one(kind, setting)).collect();
            json!({ "port": kind.name(), "settings": settings })
        })
        .collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::config::{Config, Nic, keys_of};
    use clap::Parser as _;

    fn all() -> Vec<PortSetting> {
        PortKind::value_variants().iter().flat_map(|&kind| settings_of(kind)).collect()
    }

    /// A key that the parser takes and this list lacks, or the other way round, fails here.
    #[test]
    fn every_setting_that_the_parser_accepts_is_listed() {
        let accepted: Vec<String> = keys_of::<Nic>().iter().map(|key| format!("nic.{key}")).collect();
        assert!(accepted.len() > 6, "{accepted:?}");
        let listed: Vec<&str> = all().iter().map(|setting| setting.key).collect();
        let missing: Vec<_> = accepted.iter().filter(|key| !listed.contains(&key.as_str())).collect();
        assert!(missing.is_empty(), "add to `settings_of` in this file: {missing:?}");
        let (text, json) = (table().join("\n"), to_json().to_string());
        assert!(accepted.iter().all(|key| text.contains(key) && json.contains(key)), "{text}\n{json}");
    }

    #[test]
    fn every_example_is_accepted() {
        for setting in all() {
            let example = setting.example();
            assert!(toml::from_str::<Config>(&example).is_ok(), "{example}");
            let kind = *setting.kinds.last().unwrap();
            let commands = setting.commands(kind);
            assert!(!commands.is_empty() && !setting.about().is_empty(), "no command has --{}", setting.flag);
            for command in commands {
                let flag_example = setting.flag_example();
                let line = ["spindrift", command].into_iter().chain(flag_example.split(' '));
                assert!(Cli::try_parse_from(line).is_ok(), "{command} {flag_example}");
            }
        }
    }

    #[test]
    fn each_kind_lists_what_it_uses_with_its_default() {
        let kinds = to_json();
        let find = |kind: &str, name: &str| {
            let kind = kinds.as_array().unwrap().iter().find(|entry| entry["port"] == kind).unwrap();
            kind["settings"].as_array().unwrap().iter().find(|setting| setting["name"] == name).cloned()
        };
        assert_eq!(find("udp", "nic.source_ports").unwrap()["default"], 32);
        assert_eq!(find("udp", "transport.udp_port").unwrap()["default"], 4971);
        assert_eq!(find("loopback", "nic.planes").unwrap()["commands"], json!(["loopback"]));
        assert_eq!(find("udp", "nic.local").unwrap()["commands"], json!(["write-bw", "write-lat"]));
        assert_eq!(find("loopback", "nic.port").unwrap()["commands"], json!(["loopback"]));
        assert_eq!(find("af_xdp", "nic.port").unwrap()["commands"], json!(["write-bw", "write-lat"]));
        assert_eq!(find("af_xdp", "nic.xdp_mode").unwrap()["default"], "auto");
        assert_eq!(find("af_xdp", "nic.rx_buffers").unwrap()["default"], 2048);
        assert_eq!(find("af_xdp", "transport.udp_port").unwrap()["default"], 4971);
        // Which is refused for such ports.
        for (kind, name) in [("loopback", "nic.gso"), ("af_xdp", "nic.gso"), ("udp", "nic.xdp_mode")] {
            assert_eq!(find(kind, name), None);
        }
    }
}
