//! Sends and receives through `AF_XDP` rings.

use std::net::SocketAddr;

use anyhow::{Result, bail};
use serde_json::json;
use spindrift_af_xdp::AfXdpConfig;
use spindrift_af_xdp::pump::{PumpConfig, Receiver, Wait, send};

use super::super::pump::AfXdpPumpArgs;
use super::{interface_of, mode_of};
use crate::bench::pin::WaitName;
use crate::output::eprint_line;
use crate::place::{Local, resolve};
use crate::pump::{Moved, Title, check_crcs, report};
use crate::remote::address_towards;
use crate::stop::Stop;
use crate::usage::usage;

pub(in crate::driver::af_xdp) fn run(args: &AfXdpPumpArgs) -> Result<()> {
    let common = &args.common;
    let stop = Stop::on_ctrl_c()?;
    let payload = common.payload()?;
    let local = local(args)?;
    let interface = interface_of(&local)?;
    let config = PumpConfig {
        port: AfXdpConfig {
            interface,
            local: Some(local.address),
            udp_ports: vec![common.port],
            mode: mode_of(args.xdp_mode),
            ..AfXdpConfig::default()
        },
        payload,
        carrier: args.carrier,
        duration: common.duration,
        bytes: None,
        wait: match args.wait {
            WaitName::Spin => Wait::Spin,
            WaitName::Poll => Wait::Poll,
        },
        crc_copy: common.crc_copy,
    };
    tracing::info!(?config, "pump starts");
    let moved = if let Some(remote) = common.remote {
        Moved { sent: Some(send(&config, remote, stop.flag())?), received: None }
    } else {
        let receiver = Receiver::open(&config)?;
        if !common.json {
            let notes = receiver.notes().join("; ");
            eprint_line(format_args!(
                "spindrift pump af_xdp: receiving on {} port {} ({notes})",
                local.address, common.port
            ));
        }
        Moved { sent: None, received: Some(receiver.run(stop.flag())) }
    };
    let settings = json!({
        "interface": config.port.interface,
        "local": local.address,
        "remote": common.remote,
        "port": common.port,
        "payload_bytes": payload,
        "carrier": config.carrier,
        "crc_copy": config.crc_copy,
    });
    let title = Title { kind: "af_xdp", local: local.address, remote: common.remote, how: "" };
    report(common, &title, &settings, &moved, |_| String::new());
    stop.check()?;
    moved_something(&config, &moved)?;
    check_crcs(common, moved.received.as_ref())
}

/// A place, or where the routes to the other side lead by.
fn local(args: &AfXdpPumpArgs) -> Result<Local> {
    let remote = args.common.remote;
    let place = match (&args.local, remote) {
        (Some(place), _) => place.clone(),
        (None, Some(remote)) => address_towards(SocketAddr::new(remote, args.common.port))?.address.into(),
        (None, None) => return Err(usage("--local: give the interface that packets arrive at")),
    };
    let mut found = resolve("--local", &[place], remote)?;
    found.pop().ok_or_else(|| usage("--local: no interface"))
}

/// A pump that moved nothing measured nothing.
fn moved_something(config: &PumpConfig, moved: &Moved) -> Result<()> {
    let interface = &config.port.interface;
    if let Some(sent) = moved.sent.as_ref().filter(|sent| sent.packets == 0) {
        bail!("nothing was sent by {interface} ({} errors); is its link up?", sent.errors);
    }
    if moved.received.as_ref().is_some_and(|received| received.packets == 0) {
        bail!("nothing was received by {interface}");
    }
    Ok(())
}
