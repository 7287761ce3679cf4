//! Sends and receives through a device.

use anyhow::{Context as _, Result, bail};
use serde_json::json;
use spindrift_dpdk::pump::{PumpConfig, Receiver, send};
use spindrift_dpdk::{DpdkConfig, Eal};
use spindrift_pmd::MacAddr;

use super::super::pump::DpdkPumpArgs;
use super::eal;
use crate::output::eprint_line;
use crate::pump::{Moved, Title, check_crcs, report};
use crate::stop::Stop;
use crate::usage::usage;

pub(in crate::driver::dpdk) fn run(args: &DpdkPumpArgs) -> Result<()> {
    let common = &args.common;
    let stop = Stop::on_ctrl_c()?;
    let config = config_of(args)?;
    let (local, words) = (config.port.local, args.dpdk_eal.as_deref().unwrap_or_default());
    let eal = eal::config(words, std::slice::from_ref(&config.port));
    let eal = eal.map_err(|why| usage(format!("--dpdk-eal {why}")))?;
    config.port.check().with_context(|| format!("cannot open {}", args.local))?;
    tracing::info!(?config, "pump starts");
    let eal = Eal::start(&eal).with_context(|| format!("cannot open {}", args.local))?;
    let moved = if let Some(remote) = common.remote {
        let sent = send(eal, &config, remote, stop.flag());
        if sent.is_err() {
            stop.check()?;
        }
        Moved { sent: Some(sent?), received: None }
    } else {
        let receiver = Receiver::open(eal, &config)?;
        if !common.json {
            let notes = receiver.notes().join("; ");
            eprint_line(format_args!(
                "spindrift pump dpdk: receiving on {local} port {} ({notes})",
                common.port
            ));
        }
        Moved { sent: None, received: Some(receiver.run(stop.flag())) }
    };
    let settings = json!({
        "device": config.port.device,
        "local": local,
        "remote": common.remote,
        "port": common.port,
        "payload_bytes": config.payload,
        "device_mtu": config.port.mtu,
        "crc_copy": config.crc_copy,
    });
    let title = Title { kind: "dpdk", local, remote: common.remote, how: "" };
    report(common, &title, &settings, &moved, |_| String::new());
    stop.check()?;
    moved_something(&args.local, &moved)?;
    check_crcs(common, moved.received.as_ref())
}

fn config_of(args: &DpdkPumpArgs) -> Result<PumpConfig> {
    let common = &args.common;
    let own = args.device_address;
    let mtu = args.device_mtu.map(|mtu| mtu as usize);
    if let Some(mtu) = mtu.filter(|&mtu| mtu > DpdkConfig::MTU_MAX) {
        return Err(usage(format!("--device-mtu {mtu}: give at most {}", DpdkConfig::MTU_MAX)));
    }
    if let Some(remote) = common.remote.filter(|&remote| remote == own.address) {
        return Err(usage(format!("{remote} is this side's own address; give the receiver's")));
    }
    let port = DpdkConfig {
        device: args.local.clone(),
        local: own.address,
        prefix_len: own.prefix_len,
        neighbours: common.remote.into_iter().zip(args.peer_mac.map(MacAddr)).collect(),
        udp_ports: vec![common.port],
        mtu,
        ..DpdkConfig::default()
    };
    Ok(PumpConfig {
        port,
        payload: common.payload()?,
        duration: common.duration,
        bytes: None,
        crc_copy: common.crc_copy,
    })
}

/// A pump that moved nothing measured nothing.
fn moved_something(device: &str, moved: &Moved) -> Result<()> {
    if let Some(sent) = moved.sent.as_ref().filter(|sent| sent.packets == 0) {
        bail!("nothing was sent by {device} ({} errors); is there a receiver at the other end?", sent.errors);
    }
    if moved.received.as_ref().is_some_and(|received| received.packets == 0) {
        bail!("nothing was received by {device}");
    }
    Ok(())
}
