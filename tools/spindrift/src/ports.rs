//! `spindrift ports`: what each local address would be as a port, and the settings of ports.

mod settings;

use std::net::IpAddr;

use anyhow::{Context as _, Result};
use clap::Args;
use serde_json::{Value as Json, json};
use spindrift_pmd::route::{LocalAddress, local_addresses};
use spindrift_pmd::udp::{UdpConfig, UdpPort};
use spindrift_pmd::{Medium, Port, PortCaps};

use crate::bench::af_xdp;
use crate::config::PortKind;
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

/// A port that an address could be.
struct Row {
    /// Of the address.
    index: usize,
    interface: String,
    address: IpAddr,
    kind: PortKind,
    caps: Result<PortCaps, String>,
}

pub(crate) fn run(args: &PortsArgs) -> Result<()> {
    let addresses = local_addresses().context("cannot list the local addresses")?;
    let rows: Vec<_> = addresses.into_iter().enumerate().flat_map(rows_of).collect();
    if args.json {
        let object = json!({
            "command": "ports",
            "version": env!("CARGO_PKG_VERSION"),
            "ports": rows.iter().map(Row::to_json).collect::<Vec<_>>(),
            "kinds": settings::to_json(),
        });
        say(&object.to_string());
        return Ok(());
    }
    say(&format!(
        "{:>5}  {:<12} {:<40} {:<6} {:>9} {:>6}  {}",
        "index", "interface", "address", "port", "max frame", "batch", "reaches"
    ));
    rows.iter().for_each(Row::show);
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
    if !af_xdp::BUILT {
        say(&format!("af_xdp ports are not in this build: {}.", af_xdp::HOW_TO_BUILD));
    }
    Ok(())
}

/// What an address could be, of each kind.
fn rows_of((index, local): (usize, LocalAddress)) -> Vec<Row> {
    let (interface, address) = (local.interface.name, local.ip);
    let kinds = [
        (PortKind::Udp, Some(probe(address, &interface))),
        (PortKind::AfXdp, af_xdp::prospect(&interface, address)),
    ];
    let row = |(kind, caps)| Some(Row { index, interface: interface.clone(), address, kind, caps: caps? });
    kinds.into_iter().filter_map(row).collect()
}

impl Row {
    fn show(&self) {
        let Self { index, interface, address, kind, caps } = self;
        let front = format!("{index:>5}  {interface:<12} {:<40} {:<6}", address.to_string(), kind.name());
        match caps {
            Ok(caps) => {
                let (frame, batch, reaches) = (caps.max_frame, caps.same_path_batch, reaches(caps.medium));
                say(&format!("{front} {frame:>9} {batch:>6}  {reaches}"));
                caps.notes.iter().for_each(|note| say(&format!("       note: {note}")));
            }
            Err(error) => say(&format!("{front} cannot be used: {error}")),
        }
    }
}

/// Opens the port on a UDP port of the kernel's choice and closes it again.
fn probe(local: IpAddr, interface: &str) -> Result<PortCaps, String> {
    let config = UdpConfig { local, interface: Some(interface.to_owned()), port: 0, ..UdpConfig::default() };
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

impl Row {
    fn to_json(&self) -> Json {
        let (caps, error) = match &self.caps {
            Ok(caps) => (Some(caps), None),
            Err(error) => (None, Some(error)),
        };
        json!({
            "index": self.index,
            "interface": self.interface,
            "address": self.address,
            "port": self.kind.name(),
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
}
