//! `spindrift ports`: what each local address would be as a port, and the settings of ports.

mod settings;

use std::net::IpAddr;

use anyhow::{Context as _, Result};
use clap::Args;
use serde_json::{Value as Json, json};
use spindrift_pmd::udp::{UdpConfig, UdpPort, local_addresses};
use spindrift_pmd::{Medium, Port, PortCaps};

use crate::output::say;
use crate::verbose::Verbosity;

/// Lists what each local address would be as a port, and the settings of each kind of port.
#[derive(Args, Debug)]
pub(crate) struct PortsArgs {
    #[command(flatten)]
    verbosity: Verbosity,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

impl PortsArgs {
    pub(crate) fn verbosity(&self) -> Verbosity {
        self.verbosity
    }
}

pub(crate) fn run(args: &PortsArgs) -> Result<()> {
    let addresses = local_addresses().context("cannot list the local addresses")?;
    let ports: Vec<_> =
        addresses.into_iter().map(|(interface, address)| (interface, address, probe(address))).collect();
    if args.json {
        let ports: Vec<Json> = ports
            .iter()
            .enumerate()
            .map(|(index, (interface, address, caps))| to_json(index, interface, *address, caps))
            .collect();
        let object = json!({
            "command": "ports",
            "version": env!("CARGO_PKG_VERSION"),
            "ports": ports,
            "kinds": settings::to_json(),
        });
        say(&object.to_string());
        return Ok(());
    }
    say(&format!(
        "{:>5}  {:<12} {:<40} {:<5} {:>9} {:>6}  {}",
        "index", "interface", "address", "port", "max frame", "batch", "reaches"
    ));
    for (index, (interface, address, caps)) in ports.iter().enumerate() {
        let front = format!("{index:>5}  {interface:<12} {:<40} udp  ", address.to_string());
        match caps {
            Ok(caps) => {
                let (frame, batch, reaches) = (caps.max_frame, caps.same_path_batch, reaches(caps.medium));
                say(&format!("{front} {frame:>9} {batch:>6}  {reaches}"));
                caps.notes.iter().for_each(|note| say(&format!("       note: {note}")));
            }
            Err(error) => say(&format!("{front} cannot be used: {error}")),
        }
    }
    say("");
    for line in settings::table() {
        say(&line);
    }
    say("index: for -x of write-bw and write-lat. max frame: bytes, Ethernet header included. batch: full");
    say(
        "packets that go to the kernel in one call (1: no segmentation offload). reaches: a network, for which congestion",
    );
    say(
        "control is on by default and which is taken for 100 Gb/s where the rate is not known. `spindrift loopback` needs no port.",
    );
    Ok(())
}

/// Opens the port on a UDP port of the kernel's choice and closes it again.
fn probe(local: IpAddr) -> Result<PortCaps, String> {
    let config = UdpConfig { local, port: 0, ..UdpConfig::default() };
    let caps = UdpPort::open(&config).map(|port| port.caps().clone()).map_err(|error| error.to_string());
    tracing::info!(%local, usable = caps.is_ok(), "port tried");
    caps
}

/// What is at the other end, for people.
fn reaches(medium: Medium) -> String {
    match medium {
        Medium::Host => "this host".to_owned(),
        Medium::Network { rate_bps: None } => "a network".to_owned(),
        Medium::Network { rate_bps: Some(bps) } => format!("a network, {} Gb/s", bps as f64 / 1e9),
    }
}

fn to_json(index: usize, interface: &str, address: IpAddr, caps: &Result<PortCaps, String>) -> Json {
    let (caps, error) = match caps {
        Ok(caps) => (Some(caps), None),
        Err(error) => (None, Some(error)),
    };
    json!({
        "index": index,
        "interface": interface,
        "address": address,
        "port": "udp",
        "max_frame": caps.map(|caps| caps.max_frame),
        "batch": caps.map(|caps| caps.same_path_batch),
        "source_ports": caps.and_then(|caps| caps.source_ports.as_ref()).map(Vec::len),
        "network": caps.map(|caps| caps.medium != Medium::Host),
        "link_rate_bps": caps.and_then(|caps| match caps.medium {
            Medium::Host => None,
            Medium::Network { rate_bps } => rate_bps,
        }),
        "notes": caps.map(|caps| &caps.notes),
        "error": error,
    })
}
