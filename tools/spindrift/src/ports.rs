//! `spindrift ports`: the drivers, what the machine offers each of them, and the settings of their ports.

mod settings;

use anyhow::{Context as _, Result};
use clap::Args;
use serde_json::{Value as Json, json};
use spindrift_pmd::Medium;
use spindrift_pmd::route::{LocalAddress, local_addresses};

use crate::driver::{self, Driver, Prospect};
use crate::output::print_line;
use crate::verbose::Verbosity;

/// Lists the kinds of ports, what this machine offers each of them, and their settings
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

/// A port that the machine offers.
struct Row {
    driver: &'static Driver,
    port: Prospect,
}

pub(crate) fn run(args: &PortsArgs) -> Result<()> {
    let addresses = local_addresses().context("cannot list the local addresses")?;
    let rows = rows(&addresses);
    if args.json {
        let object = json!({
            "command": "ports",
            "version": env!("CARGO_PKG_VERSION"),
            "ports": rows.iter().map(Row::to_json).collect::<Vec<_>>(),
            "kinds": settings::to_json(),
        });
        print_line(&object.to_string());
        return Ok(());
    }
    print_line(&format!(
        "{:>5}  {:<12} {:<40} {:<6} {:>9} {:>6}  {}",
        "index", "interface", "address", "port", "max frame", "batch", "reaches"
    ));
    rows.iter().for_each(Row::show);
    print_line("");
    for line in settings::table() {
        print_line(&line);
    }
    print_line(
        "index: the value for -x of write-bw and write-lat. max frame: bytes, with the Ethernet header. batch: full",
    );
    print_line(
        "packets per call to the kernel (1: no segmentation offload). reaches: on a network, congestion control is on by",
    );
    print_line(
        "default, and 100 Gb/s is assumed where the rate is unknown. `spindrift loopback` needs no port.",
    );
    for driver in driver::all().iter().filter(|driver| driver.backend.is_none()) {
        print_line(&format!("{} ports are not in this build: {}.", driver.name, driver.how_to_build));
    }
    Ok(())
}

/// What the machine offers each driver: by address, then what has none.
fn rows(addresses: &[LocalAddress]) -> Vec<Row> {
    let of = |&driver: &&'static Driver| {
        driver.prospects(addresses).into_iter().map(move |port| Row { driver, port })
    };
    let mut rows: Vec<_> = driver::all().iter().flat_map(of).collect();
    rows.sort_by_key(|row| row.port.index.unwrap_or(usize::MAX));
    rows
}

impl Row {
    fn show(&self) {
        let Self { driver, port: Prospect { index, place, address, caps } } = self;
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let index = or_dash(index.map(|index| index.to_string()));
        let address = or_dash(address.map(|address| address.to_string()));
        let front = format!("{index:>5}  {place:<12} {address:<40} {:<6}", driver.name);
        match caps {
            Ok(caps) => {
                let (frame, batch, reaches) = (caps.max_frame, caps.same_path_batch, reaches(caps.medium));
                print_line(&format!("{front} {frame:>9} {batch:>6}  {reaches}"));
                caps.notes.iter().for_each(|note| print_line(&format!("       note: {note}")));
            }
            Err(error) => print_line(&format!("{front} cannot be used: {error}")),
        }
    }
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
        let Self { driver, port } = self;
        let (caps, error) = match &port.caps {
            Ok(caps) => (Some(caps), None),
            Err(error) => (None, Some(error)),
        };
        json!({
            "index": port.index,
            "interface": port.place,
            "address": port.address,
            "port": driver.name,
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
