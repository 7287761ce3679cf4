//! `spindrift pump udp`: the upper limit of kernel sockets.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Result, anyhow, bail};
use clap::Args;
use serde_json::json;
use spindrift_pmd::pump::{PumpConfig, Receiver, receive, send};
use spindrift_pmd::udp::{Offload, SOURCE_PORTS_MAX};

use crate::output::eprint_line;
use crate::place::{Local, Place, resolve};
use crate::pump::{Common, Moved, PumpCommand, Title, check_crcs, report};
use crate::remote::address_towards;
use crate::stop::{SetOnDrop, Stop};
use crate::usage::usage;

/// Raw pump over kernel UDP sockets, with segmentation and receive offload
#[derive(Args, Debug)]
pub(super) struct UdpPumpArgs {
    #[command(flatten)]
    common: Common,
    /// Send and receive in this process, over 127.0.0.1
    #[arg(long, conflicts_with = "remote")]
    loopback: bool,
    /// Local address or interface; a link-local address with its interface: `fe80::1%eth0` [default: any suitable
    /// address]
    #[arg(long, value_name = "ADDR")]
    local: Option<Place>,
    /// Number of sending sockets, used in turn
    #[arg(long, value_name = "N", default_value_t = 1)]
    source_ports: usize,
    /// Do not use the kernel's segmentation offload
    #[arg(long)]
    no_gso: bool,
    /// Do not use the kernel's receive offload
    #[arg(long)]
    no_gro: bool,
}

impl PumpCommand for UdpPumpArgs {
    fn common(&self) -> &Common {
        &self.common
    }

    fn run(&self) -> Result<()> {
        run(self)
    }
}

fn run(args: &UdpPumpArgs) -> Result<()> {
    let common = &args.common;
    let stop = Stop::on_ctrl_c()?;
    let config = config(args)?;
    tracing::info!(?config, "pump starts");
    let moved = if args.loopback {
        both(&config, &stop)?
    } else if common.remote.is_some() {
        Moved { sent: Some(send(&config, stop.flag())?), received: None }
    } else {
        if !common.json {
            eprint_line(format_args!(
                "spindrift pump udp: receiving on {} port {}",
                config.local, config.port
            ));
        }
        Moved { sent: None, received: Some(receive(&config, stop.flag())?) }
    };
    let settings = json!({
        "local": config.local,
        "remote": config.remote,
        "port": config.port,
        "payload_bytes": config.payload,
        "source_ports": config.source_ports,
        "crc_copy": config.crc_copy,
    });
    let remote = moved.sent.as_ref().map(|_| config.remote);
    let title = Title { kind: "udp", local: config.local, remote, how: "offload" };
    let how = |offload| if offload { "yes" } else { "no" }.to_owned();
    report(common, &title, &settings, &moved, |stats| how(stats.offload));
    stop.check()?;
    moved_something(&config, &moved)?;
    check_crcs(common, moved.received.as_ref())
}

fn config(args: &UdpPumpArgs) -> Result<PumpConfig> {
    let common = &args.common;
    let payload = common.payload()?;
    if !(1..=SOURCE_PORTS_MAX).contains(&args.source_ports) {
        return Err(usage(format!("--source-ports {}: give 1 to {SOURCE_PORTS_MAX}", args.source_ports)));
    }
    let localhost = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let local = match (&args.local, common.remote) {
        (Some(place), remote) => {
            let found = resolve("--local", slice::from_ref(place), remote)?.pop();
            found.ok_or_else(|| usage("--local: no address"))?
        }
        (None, Some(remote)) => address_towards(SocketAddr::new(remote, common.port))?,
        (None, None) if args.loopback => Local::new(localhost, None),
        (None, None) => Local::new(Ipv4Addr::UNSPECIFIED.into(), None),
    };
    let offload = |off| if off { Offload::Off } else { Offload::Auto };
    Ok(PumpConfig {
        local: local.address,
        interface: local.interface,
        remote: common.remote.unwrap_or(local.address),
        port: common.port,
        payload,
        source_ports: args.source_ports,
        duration: common.duration,
        gso: offload(args.no_gso),
        gro: offload(args.no_gro),
        crc_copy: common.crc_copy,
        ..PumpConfig::default()
    })
}

fn both(config: &PumpConfig, stop: &Stop) -> Result<Moved> {
    let receiver = Receiver::open(config)?;
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let _ended = SetOnDrop(&ended);
        let receiving = scope.spawn(|| receiver.run_beside(stop.flag(), &ended));
        let sent = send(config, stop.flag())?;
        ended.store(true, Ordering::Release);
        let received = receiving.join().map_err(|_| anyhow!("the receiver's thread panicked"))?;
        Ok(Moved { sent: Some(sent), received: Some(received) })
    })
}

/// A pump that moved nothing measured nothing.
fn moved_something(config: &PumpConfig, moved: &Moved) -> Result<()> {
    if let Some(sent) = moved.sent.as_ref().filter(|sent| sent.packets == 0) {
        bail!(
            "nothing was sent from {} to {}: the kernel refused all {} packets; is there a route between the two, and does its MTU take --size {}?",
            config.local,
            config.remote,
            sent.errors,
            config.payload
        );
    }
    if moved.received.as_ref().is_some_and(|received| received.packets == 0) {
        bail!("nothing was received on {} port {}", config.local, config.port);
    }
    Ok(())
}
