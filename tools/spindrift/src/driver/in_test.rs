//! Drivers of the tests. All that the command has to know of them is here and in the registry.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::net::{IpAddr, Ipv6Addr};

use anyhow::Result;
use clap::{Args, Parser as _};
use spindrift::verbs::nic;
use spindrift_pmd::Port as _;
use spindrift_pmd::loopback::{self, LoopbackConfig};
use spindrift_pmd::route::LocalAddress;

use super::{Backend, Driver, Kernel, Prospect, Reach, find, setting};
use crate::bench::nic::Nic;
use crate::bench::options::Settings;
use crate::place::{Local, Place};
use crate::pump::{Common, Pump, PumpCommand};
use crate::usage::usage;
use crate::{Cli, Command};

/// Rings at places of its own, which no interface has.
pub(super) static MEMORY: Driver = Driver {
    name: "memory",
    about: "Rings with the names of devices",
    how_to_build: "",
    reach: Reach::Both,
    kernel: Kernel::Bypassed,
    settings: || {
        use setting::{lanes, local, port, topology};
        vec![port("memory"), lanes(), local("list of devices", ["net_ring0", "0000:01:00.0"]), topology()]
    },
    check_place: Some(check_place),
    in_lab: None,
    pump: Some(Pump::of::<Nothing>()),
    backend: Some(&Memory),
};

/// A driver that this build lacks.
pub(super) static LEFT_OUT: Driver = Driver {
    name: "left_out",
    about: "Ports of another build",
    how_to_build: "`cargo build --features left_out`",
    reach: Reach::Process,
    kernel: Kernel::Uninvolved,
    settings: || vec![setting::port("left_out")],
    check_place: None,
    in_lab: None,
    pump: None,
    backend: None,
};

fn check_place(text: &str) -> Result<(), String> {
    if text.starts_with("net_ring") || text.starts_with("0000:") {
        return Ok(());
    }
    Err(format!("`{text}` is no device"))
}

/// The address of a device's place in a list.
fn address(index: usize) -> IpAddr {
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, index as u16 + 1).into()
}

struct Memory;

impl Backend for Memory {
    fn prospects(&self, _: &[LocalAddress]) -> Vec<Prospect> {
        let (left, _) = loopback::pair(1, LoopbackConfig::default());
        let caps = left.first().map(|port| port.caps().clone()).ok_or_else(String::new);
        vec![Prospect { index: None, place: "0000:01:00.0".to_owned(), address: None, caps }]
    }

    fn resolve(&self, _: &Settings, name: &str, places: &[Place], _: Option<IpAddr>) -> Result<Vec<Local>> {
        let one = |(index, place): (usize, &Place)| {
            check_place(&place.to_string()).map_err(|why| usage(format!("{name}: {why}")))?;
            Ok(Local::new(address(index), Some(place.to_string())))
        };
        places.iter().enumerate().map(one).collect()
    }

    fn open(&self, settings: &Settings, local: &[Local], port: u16) -> Result<Nic> {
        let ends = (0..settings.lanes).map(|_| loopback::pair(local.len(), LoopbackConfig::default()));
        Ok(Nic::new(ends.map(|(left, _)| nic(left)).collect(), Some(port)))
    }

    fn open_pair(&self, settings: &Settings, planes: usize) -> Result<[Nic; 2]> {
        super::LOOPBACK.open_pair(settings, planes)
    }
}

#[derive(Args, Debug)]
struct Nothing {
    #[command(flatten)]
    common: Common,
}

impl PumpCommand for Nothing {
    fn common(&self) -> &Common {
        &self.common
    }

    fn run(&self) -> Result<()> {
        Err(usage(format!("nothing to pump to {:?}", self.common.remote)))
    }
}

fn run(args: &[&str]) -> Result<(), String> {
    let cli = Cli::try_parse_from([&["spindrift"], args].concat()).map_err(|error| error.to_string())?;
    let result = match cli.command.unwrap() {
        Command::Loopback(args) => crate::loopback::run(&args),
        Command::WriteBw(args) => args.bandwidth(),
        Command::Pump(args) => crate::pump::run(&args),
        other => panic!("{other:?}"),
    };
    result.map_err(|error| error.to_string())
}

fn refused(args: &[&str], parts: &[&str]) {
    let error = run(args).unwrap_err();
    assert!(parts.iter().all(|part| error.contains(part)), "{error}");
}

#[test]
fn a_driver_in_the_registry_is_one_of_the_command() {
    run(&["loopback", "--port", "memory", "-s", "64", "-n", "100", "--json"]).unwrap();
    refused(&["pump", "memory", "10.0.0.1"], &["nothing to pump to Some(10.0.0.1)"]);
    // What it lacks, and who has it.
    refused(
        &["loopback", "--port", "memory", "--no-gso"],
        &["kind memory has no segmentation", "--port udp"],
    );
    refused(&["write-bw", "--port", "memory", "--evs", "1"], &["has no entropy values", "--port af_xdp"]);
    refused(
        &["write-bw", "--port", "memory", "--xdp-mode", "native"],
        &["has no XDP program", "--port af_xdp"],
    );
    refused(
        &["loopback", "--port", "left_out"],
        &["--port left_out: this build has no such ports", "cargo build --features left_out"],
    );
}

/// A place is what the driver says it is.
#[test]
fn drivers_have_places_of_their_own() {
    let memory = find("memory").unwrap();
    refused(&["write-bw", "--port", "memory:eth0"], &["`eth0` is no device"]);
    refused(
        &["write-bw", "--port", "memory", "--local", "net_ring0,eth0"],
        &["--local: `eth0` is no device"],
    );
    refused(&["write-bw", "--port", "udp", "--local", "0000:01:00.0"], &["--local: ", "neither an address"]);
    let fabric = concat!(env!("CARGO_MANIFEST_DIR"), "/../../configs/lab/two-plane.toml");
    let at_device = ["write-bw", "--port", "memory:net_ring0", "--topology", fabric];
    refused(&at_device, &["--port: no host of", "has the address fd00::1"]);
    let places = ["net_ring0", "0000:01:00.0"].map(|text| memory.place(text).unwrap());
    let local = memory.resolve(&Settings::of_test(memory), "--port", &places, None).unwrap();
    assert_eq!(local.first(), Some(&Local::new(address(0), Some("net_ring0".to_owned()))));
    assert_eq!(local.last(), Some(&Local::new(address(1), Some("0000:01:00.0".to_owned()))));
    let settings = Settings::of_test(memory);
    let nic = memory.open(&settings, &local).unwrap();
    assert_eq!((nic.planes(), nic.udp_port), (2, Some(4971)));
}

/// Devices that have no address of the machine stand after those that have.
#[test]
fn the_machine_may_offer_what_has_no_address() {
    let offered = find("memory").unwrap().prospects(&[]);
    let names: Vec<_> = offered.iter().map(|port| (port.index, &*port.place, port.caps.is_ok())).collect();
    assert_eq!(names, [(None, "0000:01:00.0", true)]);
}
