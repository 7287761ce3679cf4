//! `spindrift pump udp`: what kernel sockets can do at best, without a transport.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use clap::{Args, Subcommand};
use serde_json::{Value as Json, json};
use spindrift_pmd::pump::{PumpConfig, PumpStats, receive, send};
use spindrift_pmd::udp::{Offload, SOURCE_PORTS_MAX};

use crate::output::{say, tell};
use crate::stop::Stop;
use crate::units::{format_size, parse_duration, parse_size};
use crate::usage::usage;
use crate::verbose::Verbosity;

/// Raw pumps: the limit that a kind of port is measured against.
#[derive(Args, Debug)]
pub(crate) struct PumpArgs {
    #[command(subcommand)]
    kind: PumpKind,
}

#[derive(Subcommand, Debug)]
enum PumpKind {
    /// UDP over kernel sockets, with segmentation and receive offload.
    Udp(UdpPumpArgs),
}

#[derive(Args, Debug)]
struct UdpPumpArgs {
    #[command(flatten)]
    verbosity: Verbosity,
    /// Address to send to; without it, this side receives.
    remote: Option<IpAddr>,
    /// Send and receive in this process, over 127.0.0.1.
    #[arg(long, conflicts_with = "remote")]
    loopback: bool,
    /// Local address [default: any that suits].
    #[arg(long, value_name = "ADDR")]
    local: Option<IpAddr>,
    /// UDP port of the receiver.
    #[arg(short, long, default_value_t = 4971)]
    port: u16,
    /// Payload bytes of a packet; 44 bytes of headers and checksum are added.
    #[arg(short, long, value_name = "SIZE", value_parser = parse_size, default_value = "4096")]
    size: u64,
    /// Sockets to send from, in turn.
    #[arg(long, value_name = "N", default_value_t = 1)]
    source_ports: usize,
    /// How long to send, or to receive once something came.
    #[arg(short = 'D', long, value_name = "TIME", value_parser = parse_duration, default_value = "3s")]
    duration: Duration,
    /// Without the kernel's segmentation offload.
    #[arg(long)]
    no_gso: bool,
    /// Without the kernel's receive offload.
    #[arg(long)]
    no_gro: bool,
    /// Write the CRC-32 of each packet behind it; on the other side check it, and copy the payload to memory. To be given on
    /// both sides.
    #[arg(long)]
    crc_copy: bool,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

impl PumpArgs {
    pub(crate) fn verbosity(&self) -> Verbosity {
        let PumpKind::Udp(args) = &self.kind;
        args.verbosity
    }
}

pub(crate) fn run(args: &PumpArgs) -> Result<()> {
    let PumpKind::Udp(args) = &args.kind;
    let stop = Stop::on_ctrl_c()?;
    let config = config(args)?;
    tracing::info!(?config, "pump starts");
    let (sent, received) = if args.loopback {
        both(&config, &stop)?
    } else if args.remote.is_some() {
        (Some(send(&config, stop.flag())?), None)
    } else {
        if !args.json {
            tell(format_args!("spindrift pump udp: receiving on {} port {}", config.local, config.port));
        }
        (None, Some(receive(&config, stop.flag())?))
    };
    report(args, &config, sent.as_ref(), received.as_ref());
    stop.check()?;
    moved_something(&config, sent.as_ref(), received.as_ref())
}

fn config(args: &UdpPumpArgs) -> Result<PumpConfig> {
    let payload = usize::try_from(args.size).ok().filter(|size| (1..=8960).contains(size));
    let payload =
        payload.ok_or_else(|| usage(format!("--size {}: give 1 to 8960 bytes per packet", args.size)))?;
    if !(1..=SOURCE_PORTS_MAX).contains(&args.source_ports) {
        return Err(usage(format!("--source-ports {}: give 1 to {SOURCE_PORTS_MAX}", args.source_ports)));
    }
    if args.port == 0 {
        return Err(usage("--port 0: give 1 to 65535"));
    }
    let localhost = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let local = match (args.local, args.remote) {
        (Some(local), _) => local,
        (None, Some(remote)) => {
            crate::remote::address_towards(&std::net::SocketAddr::new(remote, args.port).to_string())?
        }
        (None, None) if args.loopback => localhost,
        (None, None) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    };
    let offload = |off| if off { Offload::Off } else { Offload::Auto };
    Ok(PumpConfig {
        local,
        remote: args.remote.unwrap_or(local),
        port: args.port,
        payload,
        source_ports: args.source_ports,
        duration: args.duration,
        gso: offload(args.no_gso),
        gro: offload(args.no_gro),
        crc_copy: args.crc_copy,
        ..PumpConfig::default()
    })
}

fn both(config: &PumpConfig, stop: &Stop) -> Result<(Option<PumpStats>, Option<PumpStats>)> {
    thread::scope(|scope| {
        let receiver = scope.spawn(|| receive(config, stop.flag()));
        let sent = send(config, stop.flag()).inspect_err(|_| {
            // Nothing will come.
            stop.flag().store(true, Ordering::Relaxed);
        })?;
        let received = receiver.join().map_err(|_| anyhow!("the receiver's thread panicked"))??;
        Ok((Some(sent), Some(received)))
    })
}

/// A pump that moved nothing measured nothing.
fn moved_something(
    config: &PumpConfig,
    sent: Option<&PumpStats>,
    received: Option<&PumpStats>,
) -> Result<()> {
    if let Some(sent) = sent.filter(|sent| sent.packets == 0) {
        bail!(
            "nothing was sent from {} to {}: the kernel refused all {} packets; is there a route between the two, and does its MTU take --size {}?",
            config.local,
            config.remote,
            sent.errors,
            config.payload
        );
    }
    if received.is_some_and(|received| received.packets == 0) {
        bail!("nothing was received on {} port {}", config.local, config.port);
    }
    if received.is_some_and(|received| config.crc_copy && received.errors >= received.packets) {
        bail!("no packet had the right CRC: give --crc-copy to the sender too");
    }
    Ok(())
}

fn report(args: &UdpPumpArgs, config: &PumpConfig, sent: Option<&PumpStats>, received: Option<&PumpStats>) {
    if args.json {
        let object = json!({
            "command": "pump udp",
            "version": env!("CARGO_PKG_VERSION"),
            "settings": {
                "local": config.local,
                "remote": config.remote,
                "port": config.port,
                "payload_bytes": config.payload,
                "source_ports": config.source_ports,
                "crc_copy": config.crc_copy,
            },
            "sent": sent.map(stats_json),
            "received": received.map(stats_json),
        });
        say(&object.to_string());
        return;
    }
    let size = format_size(config.payload as u64);
    let way = match sent {
        Some(_) => format!("{} to {}", config.local, config.remote),
        None => format!("received on {}", config.local),
    };
    let with = if config.crc_copy { ", with CRC and copy" } else { "" };
    say(&format!("spindrift pump udp: {way} port {}, {size} per packet{with}", config.port));
    say(&format!(
        "{:>9} {:>12} {:>10} {:>12} {:>10} {:>8}  offload",
        "", "#packets", "BW[Gb/s]", "Rate[Mpps]", "#calls", "#errors"
    ));
    for (name, stats) in [("sent", sent), ("received", received)] {
        let Some(stats) = stats else { continue };
        let offload = if stats.offload { "yes" } else { "no" };
        say(&format!(
            "{name:>9} {:>12} {:>10.2} {:>12.6} {:>10} {:>8}  {offload}",
            stats.packets,
            stats.gbps(),
            stats.mpps(),
            stats.calls,
            stats.errors
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
        "offload": stats.offload,
    })
}
