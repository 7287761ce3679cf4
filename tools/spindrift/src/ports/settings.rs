//! The drivers with the settings that each accepts. Names and descriptions of flags come from the command line's parser, defaults from the
//! types that the ports are opened with.

use clap::CommandFactory as _;
use serde_json::{Value as Json, json};

use crate::Cli;
use crate::driver::{self, Driver, Setting};

/// Commands that open ports.
const COMMANDS: [&str; 10] = [
    "loopback",
    "write-bw",
    "write-lat",
    "send-bw",
    "send-lat",
    "read-bw",
    "read-lat",
    "atomic-bw",
    "atomic-lat",
    "mix-bw",
];

impl Setting {
    /// A line of a configuration file.
    fn example(&self) -> String {
        format!("{} = {}", self.key, self.value)
    }

    /// The same on the command line.
    fn flag_example(&self) -> String {
        format!("--{} {}", self.flag, self.flag_value).trim_end().to_owned()
    }

    /// The commands that have the flag, for ports of a driver.
    fn commands(&self, driver: &Driver) -> Vec<&'static str> {
        let cli = Cli::command();
        let has = |name: &&str| {
            cli.find_subcommand(name)
                .is_some_and(|command| command.get_arguments().any(|arg| arg.get_long() == Some(self.flag)))
        };
        let opens = |name: &&str| match *name {
            "loopback" => driver.reach.within_process(),
            _ => driver.reach.between_hosts(),
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

/// Each driver with its settings, for people.
pub(super) fn table() -> Vec<String> {
    let mut lines = Vec::new();
    for driver in driver::all() {
        let left_out = if driver.backend.is_some() { "" } else { " (not in this build)" };
        lines.push(format!("{}: {}{left_out}", driver.name, driver.about));
        lines.push(format!("settings of {} ports, as keys of a configuration file:", driver.name));
        for setting in (driver.settings)() {
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
            let (commands, about) = (setting.commands(driver), setting.about());
            let flag = if commands.is_empty() {
                "no flag".to_owned()
            } else {
                format!("{} ({})", setting.flag_example(), commands.join(", "))
            };
            lines.push(format!("  {:<18} {flag}: {about}", ""));
        }
        lines.push(String::new());
    }
    lines
}

/// The same for `--json`.
pub(super) fn to_json() -> Json {
    let one = |driver: &Driver, setting: &Setting| {
        json!({
            "name": setting.key,
            "unit": setting.unit,
            "default": setting.default,
            "example": setting.example(),
            "flag": format!("--{}", setting.flag),
            "flag_example": setting.flag_example(),
            "commands": setting.commands(driver),
            "description": setting.about(),
        })
    };
    let of = |driver: &&Driver| {
        let built = driver.backend.is_some();
        let settings: Vec<Json> = (driver.settings)().iter().map(|setting| one(driver, setting)).collect();
        json!({
            "port": driver.name,
            "about": driver.about,
            "built": built,
            "how_to_build": (!built).then_some(driver.how_to_build),
            "settings": settings,
        })
    };
    driver::all().iter().map(of).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::config::{Config, Nic, keys_of};
    use clap::Parser as _;

    fn all() -> Vec<(&'static Driver, Setting)> {
        let of =
            |&driver: &&'static Driver| (driver.settings)().into_iter().map(move |setting| (driver, setting));
        driver::all().iter().flat_map(of).collect()
    }

    /// A key that the parser takes and this list lacks, or the other way round, fails here.
    #[test]
    fn every_setting_that_the_parser_accepts_is_listed() {
        let accepted: Vec<String> = keys_of::<Nic>().iter().map(|key| format!("nic.{key}")).collect();
        assert!(accepted.len() > 6, "{accepted:?}");
        let listed: Vec<&str> = all().iter().map(|(_, setting)| setting.key).collect();
        let missing: Vec<_> = accepted.iter().filter(|key| !listed.contains(&key.as_str())).collect();
        assert!(missing.is_empty(), "add to the `settings` of a driver: {missing:?}");
        let (text, json) = (table().join("\n"), to_json().to_string());
        assert!(accepted.iter().all(|key| text.contains(key) && json.contains(key)), "{text}\n{json}");
    }

    #[test]
    fn every_example_is_accepted() {
        for (driver, setting) in all() {
            let example = setting.example();
            assert!(toml::from_str::<Config>(&example).is_ok(), "{example}");
            let commands = setting.commands(driver);
            assert!(!setting.about().is_empty(), "no command has --{}", setting.flag);
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
        let [_, between_hosts @ ..] = COMMANDS;
        let find = |kind: &str, name: &str| {
            let kind = kinds.as_array().unwrap().iter().find(|entry| entry["port"] == kind).unwrap();
            kind["settings"].as_array().unwrap().iter().find(|setting| setting["name"] == name).cloned()
        };
        assert_eq!(find("udp", "nic.source_ports").unwrap()["default"], 32);
        assert_eq!(find("udp", "transport.udp_port").unwrap()["default"], 4971);
        assert_eq!(find("loopback", "nic.planes").unwrap()["commands"], json!(["loopback"]));
        assert_eq!(find("udp", "nic.local").unwrap()["commands"], json!(between_hosts));
        assert_eq!(find("loopback", "nic.port").unwrap()["commands"], json!(["loopback"]));
        assert_eq!(find("af_xdp", "nic.port").unwrap()["commands"], json!(between_hosts));
        assert_eq!(find("af_xdp", "nic.xdp_mode").unwrap()["default"], "auto");
        assert_eq!(find("af_xdp", "nic.rx_buffers").unwrap()["default"], 2048);
        assert_eq!(find("af_xdp", "transport.udp_port").unwrap()["default"], 4971);
        // Which is refused for such ports.
        for (kind, name) in [("loopback", "nic.gso"), ("af_xdp", "nic.gso"), ("udp", "nic.xdp_mode")] {
            assert_eq!(find(kind, name), None);
        }
    }
}
