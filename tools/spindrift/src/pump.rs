//! `spindrift pump`: the upper limit of a kind of port, without a transport.

use std::fmt::Debug;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::error::ErrorKind;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use serde_json::{Value as Json, json};
use spindrift_pmd::pump::PumpStats;

use crate::driver::{self, Driver};
use crate::output::print_line;
use crate::units::{format_size, parse_duration, parse_size};
use crate::usage::usage;
use crate::verbose::Verbosity;

/// Most payload bytes of a packet, as for the transport.
const PAYLOAD_MAX: usize = 8960;

/// A raw pump: the limit that a kind of port is measured against.
#[derive(Debug)]
pub(crate) struct PumpArgs {
    driver: &'static Driver,
    command: Box<dyn PumpCommand>,
}

/// A driver's pump as the command line has it.
#[derive(Clone, Copy)]
pub(crate) struct Pump {
    augment: fn(Command) -> Command,
    read: fn(&ArgMatches) -> Result<Box<dyn PumpCommand>, clap::Error>,
}

/// The options of a pump, and what it does with them.
pub(crate) trait PumpCommand: Debug {
    fn common(&self) -> &Common;
    fn run(&self) -> Result<()>;
}

impl Pump {
    /// The pump with these options.
    pub(crate) const fn of<A: Args + PumpCommand + 'static>() -> Self {
        Self {
            augment: A::augment_args,
            read: |matches| A::from_arg_matches(matches).map(|args| Box::new(args) as Box<dyn PumpCommand>),
        }
    }
}

impl FromArgMatches for PumpArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let pump = matches.subcommand().and_then(|(name, matches)| {
            let driver = driver::find(name)?;
            Some((driver, driver.pump?, matches))
        });
        let (driver, pump, matches) = pump.ok_or_else(|| clap::Error::new(ErrorKind::MissingSubcommand))?;
        Ok(Self { driver, command: (pump.read)(matches)? })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for PumpArgs {
    fn augment_args(command: Command) -> Command {
        let command = command
            .about("Raw pumps: the upper limit of each kind of port, without a transport")
            .subcommand_required(true)
            .arg_required_else_help(true);
        let pumps = driver::all().iter().filter_map(|driver| Some((driver.name, driver.pump?)));
        pumps.fold(command, |command, (name, pump)| command.subcommand((pump.augment)(Command::new(name))))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// What all pumps have.
#[derive(Args, Debug)]
pub(crate) struct Common {
    #[command(flatten)]
    pub(crate) verbosity: Verbosity,
    /// Address of the receiver; without it, this side receives
    pub(crate) remote: Option<IpAddr>,
    /// UDP port of the receiver
    #[arg(short, long, default_value_t = 4971)]
    pub(crate) port: u16,
    /// Payload bytes of a packet; headers and checksum add 44 bytes
    #[arg(short, long, value_name = "SIZE", value_parser = parse_size, default_value = "4096")]
    size: u64,
    /// How long to send, or to receive after the first packet
    #[arg(short = 'D', long, value_name = "TIME", value_parser = parse_duration, default_value = "3s")]
    pub(crate) duration: Duration,
    /// Append the CRC-32 of each packet; the receiver checks it and copies the payload to memory (on both sides)
    #[arg(long)]
    pub(crate) crc_copy: bool,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

impl Common {
    /// The payload of a packet, if that and the UDP port can be used.
    pub(crate) fn payload(&self) -> Result<usize> {
        if self.port == 0 {
            return Err(usage("--port 0: give 1 to 65535"));
        }
        let payload = usize::try_from(self.size).ok().filter(|size| (1..=PAYLOAD_MAX).contains(size));
        payload
            .ok_or_else(|| usage(format!("--size {}: give 1 to {PAYLOAD_MAX} bytes per packet", self.size)))
    }
}

impl PumpArgs {
    pub(crate) fn verbosity(&self) -> Verbosity {
        self.command.common().verbosity
    }
}

pub(crate) fn run(args: &PumpArgs) -> Result<()> {
    let PumpArgs { driver, command } = args;
    if driver.backend.is_none() {
        let (name, how) = (driver.name, driver.how_to_build);
        return Err(usage(format!(
            "pump {name}: this build has no such ports; {how}, or use `spindrift pump udp`"
        )));
    }
    command.run()
}

/// What each side moved, if it ran here.
pub(crate) struct Moved {
    pub(crate) sent: Option<PumpStats>,
    pub(crate) received: Option<PumpStats>,
}

/// What a pump did, in words.
pub(crate) struct Title<'a> {
    /// Its name, as in `udp`.
    pub(crate) kind: &'a str,
    pub(crate) local: IpAddr,
    pub(crate) remote: Option<IpAddr>,
    /// The last column: how packets went.
    pub(crate) how: &'a str,
}

/// Prints what was moved. `settings`: those of this kind of pump.
pub(crate) fn report(
    args: &Common,
    title: &Title<'_>,
    settings: &Json,
    moved: &Moved,
    how: impl Fn(&PumpStats) -> String,
) {
    let Title { kind, local, remote, how: last } = title;
    if args.json {
        let of = |stats: &Option<PumpStats>| stats.as_ref().map(stats_json);
        let object = json!({
            "command": format!("pump {kind}"),
            "version": env!("CARGO_PKG_VERSION"),
            "settings": settings,
            "sent": of(&moved.sent),
            "received": of(&moved.received),
        });
        print_line(&object.to_string());
        return;
    }
    let size = format_size(args.size);
    let way = match remote {
        Some(remote) => format!("{local} to {remote}"),
        None => format!("received on {local}"),
    };
    let with = if args.crc_copy { ", with CRC and copy" } else { "" };
    print_line(&format!("spindrift pump {kind}: {way} port {}, {size} per packet{with}", args.port));
    print_line(&format!(
        "{:>9} {:>12} {:>10} {:>12} {:>10} {:>8} {:>10}  {last}",
        "", "#packets", "BW[Gb/s]", "Rate[Mpps]", "#calls", "#errors", "#dropped"
    ));
    for (name, stats) in [("sent", &moved.sent), ("received", &moved.received)] {
        let Some(stats) = stats else { continue };
        print_line(&format!(
            "{name:>9} {:>12} {:>10.2} {:>12.6} {:>10} {:>8} {:>10}  {}",
            stats.packets,
            stats.gbps(),
            stats.mpps(),
            stats.calls,
            stats.errors,
            stats.dropped.map_or_else(|| "-".to_owned(), |dropped| dropped.to_string()),
            how(stats)
        ));
    }
}

fn stats_json(stats: &PumpStats) -> Json {
    json!({
        "packets": stats.packets,
        "payload_bytes": stats.payload_bytes,
        "elapsed_s": stats.elapsed.as_secs_f64(),
        "bandwidth_gbps": stats.gbps(),
        "packet_rate_mpps": stats.mpps(),
        "calls": stats.calls,
        "errors": stats.errors,
        "dropped": stats.dropped,
        "offload": stats.offload,
    })
}

/// A receiver that found every CRC wrong was sent none.
pub(crate) fn check_crcs(args: &Common, received: Option<&PumpStats>) -> Result<()> {
    if received
        .is_some_and(|received| args.crc_copy && received.packets > 0 && received.errors >= received.packets)
    {
        bail!("no packet had the right CRC: give --crc-copy and the same --size to the sender too");
    }
    Ok(())
}
