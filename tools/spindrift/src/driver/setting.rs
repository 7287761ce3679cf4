//! Settings of ports: their keys, flags and examples. Those that several drivers have are here.

use serde_json::Value as Json;
use spindrift::wire::UDP_PORT_MRC;

use crate::bench::check::PLANES;

/// A setting that a driver takes.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    /// Its key in a configuration file.
    pub(crate) key: &'static str,
    /// The flag with the same meaning; its help is the description of both.
    pub(crate) flag: &'static str,
    /// What a value counts or is.
    pub(crate) unit: &'static str,
    /// `null` where it is nothing, or chosen at run time: the description says how.
    pub(crate) default: Json,
    /// A value for the file, in TOML.
    pub(crate) value: String,
    /// A value for the flag; empty where it takes none.
    pub(crate) flag_value: String,
    /// What ports lack whose driver does not have the setting: "a port of kind udp has no ..". `None`: without effect there, and not
    /// refused.
    pub(crate) lack: Option<&'static str>,
}

impl Setting {
    /// A setting with its unit and an example, as it is in a file and as a flag's value.
    pub(super) fn new(
        (key, flag): (&'static str, &'static str),
        unit: &'static str,
        (value, flag_value): (&str, &str),
    ) -> Self {
        let (value, flag_value) = (value.to_owned(), flag_value.to_owned());
        Self { key, flag, unit, default: Json::Null, value, flag_value, lack: None }
    }

    pub(super) fn default(self, default: impl Into<Json>) -> Self {
        Self { default: default.into(), ..self }
    }

    /// Refused for ports of drivers without the setting, which have no `what`.
    pub(super) fn or_refused(self, what: &'static str) -> Self {
        Self { lack: Some(what), ..self }
    }
}

pub(super) fn port(driver: &str) -> Setting {
    Setting::new(("nic.port", "port"), "kind of port", (&format!("\"{driver}\""), driver))
}

pub(super) fn planes() -> Setting {
    Setting::new(("nic.planes", "planes"), "planes", ("2", "2")).default(PLANES)
}

pub(super) fn lanes() -> Setting {
    Setting::new(("nic.lanes", "lanes"), "lanes", ("2", "2")).default(1)
}

/// Where ports are; the examples are two places of the driver's.
pub(super) fn local(unit: &'static str, [one, other]: [&str; 2]) -> Setting {
    let (value, flag_value) = (format!("[\"{one}\", \"{other}\"]"), format!("{one},{other}"));
    Setting::new(("nic.local", "local"), unit, (&value, &flag_value)).or_refused("place on this host")
}

pub(super) fn plane_ids() -> Setting {
    Setting::new(("nic.plane_ids", "plane-ids"), "list of numbers", ("[1, 2]", "1,2"))
}

pub(super) fn topology() -> Setting {
    Setting::new(("nic.topology", "topology"), "file name", ("\"fabric.toml\"", "fabric.toml"))
        .or_refused("place in a fabric")
}

pub(super) fn routing(usual: &str) -> Setting {
    Setting::new(("nic.routing", "routing"), "way", (&format!("\"{usual}\""), usual))
        .or_refused("way through a fabric")
}

pub(super) fn buffers(key: &'static str, flag: &'static str, usual: u32) -> Setting {
    Setting::new((key, flag), "buffers", ("4096", "4096")).default(usual).or_refused("buffers of its own")
}

pub(super) fn link_rate() -> Setting {
    Setting::new(("nic.link_rate", "link-rate"), "bits per second", ("\"10G\"", "10G"))
}

pub(super) fn evs() -> Setting {
    Setting::new(("path.evs", "evs"), "list of values", ("[1, 2]", "1,2"))
        .or_refused("entropy values but its source ports")
}

pub(super) fn fault() -> Setting {
    Setting::new(("nic.fault", "fault"), "rules", ("\"loss=1%\"", "loss=1%"))
}

pub(super) fn udp_port() -> Setting {
    Setting::new(("transport.udp_port", "udp-port"), "UDP port", ("4791", "4791")).default(UDP_PORT_MRC)
}

pub(super) fn pcap() -> Setting {
    Setting::new(("run.pcap", "pcap"), "file name", ("\"run.pcap\"", "run.pcap"))
}
