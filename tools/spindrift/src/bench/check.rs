//! Refuses settings that cannot be run, before anything is opened. Every error names the flag, or the place
//! in the configuration file, that the value came from.

use std::ops::RangeInclusive;

use anyhow::Result;
use spindrift::congestion::CcConfig;
use spindrift::endpoint::EndpointConfig;
use spindrift::path::MAX_EVS;
use spindrift::verbs::{Context, RtsAttr};
use spindrift_pmd::fault::FaultPlan;

use super::operation::Verb;
use super::options::{Amount, RunArgs, Settings};
use crate::config::{Config, EntropyName};
use crate::driver::{self, Driver, Kernel, Reach};
use crate::units::count;
use crate::usage::usage;

const MTU_RANGE: RangeInclusive<u64> = 256..=8960;
/// Most messages in flight on a queue pair.
pub(crate) const TX_DEPTH_MAX: u64 = 16_384;
/// Planes of `loopback` where neither flag nor file says how many.
pub(crate) const PLANES: usize = 4;

/// Checks what needs no knowledge of the planes.
pub(super) fn check(settings: &Settings, args: &RunArgs) -> Result<()> {
    let config = &settings.config;
    let named = |value: Option<()>, flag: &str, key: &str| config.origin(value.is_some(), flag, key);
    let range = |name: String, value: u64, range: RangeInclusive<u64>| in_range(&name, value, &range);
    range(named(args.mtu.map(drop), "--mtu", "transport.mtu"), settings.mtu.into(), MTU_RANGE)?;
    range(named(args.qp.map(drop), "--qp", "run.qps"), settings.qps as u64, 1..=Settings::QPS_MAX.into())?;
    let lanes = named(args.lanes.map(drop), "--lanes", "nic.lanes");
    range(lanes, settings.lanes as u64, 1..=Context::MAX_LANES as u64)?;
    let depth = settings.tx_depth.into();
    range(named(args.tx_depth.map(drop), "--tx-depth", "run.tx_depth"), depth, 1..=TX_DEPTH_MAX)?;
    if settings.amount == Amount::Iterations(0) {
        let name = named(args.iterations.map(drop), "--iters", "run.iterations");
        return Err(usage(format!("{name} 0 measures nothing; give at least 1")));
    }
    let size = named(args.size.or(args.all.then_some(0)).map(drop), "--size", "run.size");
    for &bytes in &settings.sizes {
        settings
            .work
            .layout(bytes, settings.qps, settings.tx_depth)
            .map_err(|error| usage(format!("{size} {error}")))?;
    }
    transport(settings)?;
    congestion(settings)
}

/// An atomic operation has one size.
pub(super) fn check_atomic_size(config: &Config, args: &RunArgs) -> Result<()> {
    let name =
        config.origin(args.size.is_some() || args.all, if args.all { "--all" } else { "--size" }, "run.size");
    match args.size.or(config.run.size) {
        _ if args.all => {}
        None | Some(8) => return Ok(()),
        Some(_) => {}
    }
    Err(usage(format!("{name}: an atomic operation has 8 bytes; leave it out")))
}

/// Checks what the side needs that decides on the operation.
pub(crate) fn check_work(settings: &Settings) -> Result<()> {
    let (work, offered) = (settings.work, settings.extensions);
    in_range("--outs", work.outs.into(), &(1..=u8::MAX.into()))?;
    if work.srq && !work.operations.takes_receive() {
        return Err(usage(format!(
            "--srq: {} take no receive work request; leave it out, or use operations that do",
            work.operations.plural()
        )));
    }
    if work.shares_buffers() && work.operations.any(|operation| operation.verb() == Verb::Write) {
        return Err(usage(format!(
            "--srq: in the mix {} RDMA writes may go to a buffer that is posted; leave it out, or mix no writes with SENDs",
            work.operations
        )));
    }
    let needed = work.operations.extensions();
    if let Some(name) = needed.names().find(|&name| !offered.names().any(|offered| offered == name)) {
        return Err(usage(format!(
            "--extensions {offered}: {} need the extension {name}; add it, or leave the option out",
            work.operations.plural()
        )));
    }
    Ok(())
}

/// Refuses settings that the driver does not have. `flags` are those that were given; `fits` says which drivers the command can use.
pub(crate) fn check_kind(settings: &Settings, flags: &[&str], fits: impl Fn(Reach) -> bool) -> Result<()> {
    let (config, driver) = (&settings.config, settings.port);
    // A file for another kind, and a flag that goes before it.
    let file_is_for_another = config.nic.port.is_some_and(|port| port != driver);
    for other in driver::all() {
        for setting in (other.settings)() {
            let Some(what) = setting.lack else { continue };
            let flag = format!("--{}", setting.flag);
            let by_flag = flags.contains(&&*flag);
            let given = by_flag || (config.has(setting.key) && !file_is_for_another);
            if given && !driver.has(setting.key) {
                let with = |other: &&&Driver| other.has(setting.key);
                let fitting = driver::all().iter().filter(with).find(|other| fits(other.reach));
                return Err(usage(format!(
                    "{}: a port of kind {} has no {what}; leave it out, or use --port {}",
                    config.origin(by_flag, &flag, setting.key),
                    driver.name,
                    fitting.unwrap_or(other).name,
                )));
            }
        }
    }
    Ok(())
}

/// Checks the file's settings of the transport, which have no flag.
fn transport(settings: &Settings) -> Result<()> {
    let config = &settings.config;
    let from = &config.transport;
    let ranges = [
        ("transport.hop_limit", from.hop_limit.map(u64::from), 1..=255),
        ("transport.mpr", from.mpr.map(u64::from), 1..=255),
        ("transport.max_wimm", from.max_wimm.map(u64::from), 1..=65_535),
        ("transport.sack_threshold_bytes", from.sack_threshold_bytes.map(u64::from), 1..=u32::MAX.into()),
        ("transport.tail_probe_floor_ns", from.tail_probe_floor_ns, 1..=u64::MAX),
        (
            "transport.initial_reordering_ns",
            from.initial_reordering_ns,
            0..=EndpointConfig::MAX_INITIAL_REORDERING_NS,
        ),
        ("setup.port", config.setup.port.map(u64::from), 1..=65_535),
    ];
    for (key, value, range) in ranges {
        if let Some(value) = value {
            in_range(&config.place(key), value, &range)?;
        }
    }
    if let Some(Err(error)) = from.dscp.map(|dscp| dscp.validate()) {
        return Err(usage(format!("{}: {error}", config.place("transport.dscp"))));
    }
    if from.window_budget_psns.is_some() && from.dynamic_mpr != Some(true) {
        let place = config.place("transport.window_budget_psns");
        return Err(usage(format!(
            "{place}: only dynamic windows use the budget; leave it out, or write dynamic_mpr = true"
        )));
    }
    let stev = matches!(from.entropy, Some(EntropyName::StevSportHigh | EntropyName::StevSportLow));
    if stev && settings.port.kernel == Kernel::WritesHeaders {
        let place = config.place("transport.entropy");
        return Err(usage(format!(
            "{place}: kernel sockets carry the entropy value in the UDP source port; write \"udp\""
        )));
    }
    Ok(())
}

/// Joins what flags and file say of the retransmission timer, over the library's defaults.
pub(super) fn retry(config: &Config, args: &RunArgs) -> Result<RtsAttr> {
    let (base, from) = (RtsAttr::default(), &config.transport);
    let join = |flag: (&str, Option<u64>), key: (&str, Option<u8>), default: u8, least: u64, most: u8| {
        let name = config.origin(flag.1.is_some(), flag.0, key.0);
        let value = flag.1.or(key.1.map(u64::from)).unwrap_or(default.into());
        in_range(&name, value, &(least..=most.into())).map(|()| value as u8)
    };
    Ok(RtsAttr {
        timeout: join(
            ("--timeout", args.timeout),
            ("transport.timeout", from.timeout),
            base.timeout,
            1,
            RtsAttr::MAX_TIMEOUT,
        )?,
        linear_retries: join(
            ("--linear-retries", args.linear_retries),
            ("transport.linear_retries", from.linear_retries),
            base.linear_retries,
            0,
            RtsAttr::MAX_LINEAR,
        )?,
        exponential_retries: join(
            ("--exponential-retries", args.exponential_retries),
            ("transport.exponential_retries", from.exponential_retries),
            base.exponential_retries,
            0,
            RtsAttr::MAX_EXPONENTIAL,
        )?,
        ..base
    })
}

fn congestion(settings: &Settings) -> Result<()> {
    let config = &settings.config;
    // As on ports that reach a network, so that what the file says counts.
    let default = CcConfig::for_software(CcConfig::USUAL_LINK_BPS, CcConfig::SOFTWARE_RTT_NS, settings.mtu);
    settings.congestion(1, &default).validate().map_err(|error| {
        let text = error.to_string();
        let key = if text.starts_with("link_rate_bps") { "cc.link_rate_gbps" } else { "cc.base_rtt_ns" };
        usage(format!("{}: {text}", config.place(key)))
    })
}

/// Checks what depends on how many planes this side has. `fix` tells how to get more.
pub(crate) fn check_planes(settings: &Settings, args: &RunArgs, planes: usize, fix: &str) -> Result<()> {
    let config = &settings.config;
    for port in settings.fault.iter().flat_map(|plan| &plan.rules).filter_map(|rule| rule.port) {
        if port >= planes {
            let name = config.origin(args.fault.is_some(), "--fault", "nic.fault");
            let there = match planes {
                1 => "this side has one plane, number 0".to_owned(),
                _ => format!("this side has {planes} planes, numbers 0 to {}", planes - 1),
            };
            return Err(usage(format!(
                "{name}: port={port} would never match: {there}; name one of those{fix}"
            )));
        }
    }
    // The library raises a small `active` to one for each plane. Who writes a number is told instead.
    check_evs(settings, args, planes)?;
    settings.paths(planes).validate().map_err(|error| {
        let text = error.to_string();
        let field = text.split(' ').next().unwrap_or_default();
        let flag = match field {
            "standby" => Some((args.standby.is_some(), "--standby")),
            "failback_hold_ns" => Some((args.failback_hold.is_some(), "--failback-hold")),
            _ => None,
        };
        if let Some((given, flag)) = flag {
            return usage(format!("{}: {text}", config.origin(given, flag, &format!("path.{field}"))));
        }
        usage(format!("{}: {text}", config.place(&format!("path.{field}"))))
    })
}

/// Checks the entropy values of the planes.
fn check_evs(settings: &Settings, args: &RunArgs, planes: usize) -> Result<()> {
    let Settings { config, evs: Some(evs), .. } = settings else { return Ok(()) };
    let name = config.origin(args.evs.is_some(), "--evs", "path.evs");
    if evs.len() != 1 && evs.len() != planes {
        let (lists, planes) = (evs.len(), count(planes as u64, "plane"));
        return Err(usage(format!(
            "{name} {evs}: {lists} lists for {planes}; give one for all, or one for each"
        )));
    }
    let all = evs.longest() * planes;
    if all > MAX_EVS {
        return Err(usage(format!(
            "{name}: {all} values on {}; give at most {MAX_EVS}",
            count(planes as u64, "plane")
        )));
    }
    let reserve = settings.backup_of_plane(planes);
    if reserve >= evs.longest() {
        let name = config.origin(args.backup_evs.is_some(), "--backup-evs", "path.backup");
        let (wanted, listed) = (settings.backup.unwrap_or_default(), evs.longest());
        return Err(usage(format!(
            "{name} {wanted}: {reserve} of each plane, for which {evs} lists {listed}; leave at least one to be used"
        )));
    }
    if config.transport.entropy == Some(EntropyName::Udp) {
        let wide = evs.iter().find(|ev| !(1..=0xffff).contains(ev));
        if let Some(ev) = wide {
            let place = config.place("transport.entropy");
            return Err(usage(format!(
                "{name}: {ev:#x} is not a UDP source port, which {place} = \"udp\" makes of entropy values; give 1 to 0xffff"
            )));
        }
    }
    Ok(())
}

/// Checks that every lane has a queue pair, on the side that says how many there are.
pub(crate) fn check_lanes(settings: &Settings, args: &RunArgs) -> Result<()> {
    let Settings { lanes, qps, config, .. } = settings;
    if lanes <= qps {
        return Ok(());
    }
    let name = config.origin(args.lanes.is_some(), "--lanes", "nic.lanes");
    let have = if *qps == 1 { "1 queue pair keeps one" } else { &format!("{qps} queue pairs keep as many") };
    Err(usage(format!("{name} {lanes}: {have} busy; give -q {lanes} or more, or fewer lanes")))
}

/// Checks the number of planes of `loopback`.
pub(crate) fn check_loopback(settings: &Settings, args: &RunArgs, planes: Option<usize>) -> Result<usize> {
    let config = &settings.config;
    let name = config.origin(planes.is_some(), "--planes", "nic.planes");
    let planes = planes.or(config.nic.planes).unwrap_or(PLANES);
    in_range(&name, planes as u64, &(1..=EndpointConfig::MAX_PORTS as u64))?;
    check_lanes(settings, args)?;
    check_planes(settings, args, planes, ", or raise --planes")?;
    check_plane_ids(config, false, planes, ", or change --planes")?;
    Ok(planes)
}

/// Checks the numbers of the planes; `from_flag` says that a flag gave them, `fix` how to get more planes.
pub(crate) fn check_plane_ids(config: &Config, from_flag: bool, planes: usize, fix: &str) -> Result<()> {
    let Some(ids) = &config.nic.plane_ids else { return Ok(()) };
    let name = config.origin(from_flag, "--plane-ids", "nic.plane_ids");
    if ids.len() != planes {
        let counted =
            |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
        return Err(usage(format!(
            "{name}: {} for {}; give one number for each plane{fix}",
            counted(ids.len(), "number"),
            counted(planes, "plane")
        )));
    }
    match ids.iter().zip(1..).find(|&(id, next)| ids.iter().skip(next).any(|other| other == id)) {
        Some((id, _)) => {
            Err(usage(format!("{name}: {id} is listed twice; give each plane a number of its own")))
        }
        None => Ok(()),
    }
}

/// Checks the UDP port to receive on; `flag` is what the flag said.
pub(crate) fn check_udp_port(config: &Config, flag: Option<u16>) -> Result<()> {
    let name = config.origin(flag.is_some(), "--udp-port", "transport.udp_port");
    let port = flag.or(config.transport.udp_port);
    port.map_or(Ok(()), |port| in_range(&name, port.into(), &(1..=65_535)))
}

/// Latency is played on one queue pair, and counted in rounds.
pub(crate) fn check_latency(settings: &Settings, args: &RunArgs, what: &str) -> Result<()> {
    let config = &settings.config;
    if matches!(settings.amount, Amount::Time(_)) {
        let name = config.origin(args.duration.is_some(), "--duration", "run.duration");
        return Err(usage(format!("{name}: {what} counts round trips: give --iters, not --duration")));
    }
    if settings.qps != 1 {
        let name = config.origin(args.qp.is_some(), "--qp", "run.qps");
        return Err(usage(format!("{name} {}: {what} uses one queue pair; give -q 1", settings.qps)));
    }
    if settings.lanes != 1 {
        let name = config.origin(args.lanes.is_some(), "--lanes", "nic.lanes");
        return Err(usage(format!("{name} {}: {what} uses one lane; leave it out", settings.lanes)));
    }
    if args.verify.is_some() {
        let sees = match settings.work.operations.verb() {
            Verb::Write | Verb::Send | Verb::Mix => "the last byte of each message only",
            Verb::Read => "the last byte of each message, and all of the last message",
            Verb::Atomic => "every result",
        };
        return Err(usage(format!("--verify: {what} compares {sees}; leave it out")));
    }
    Ok(())
}

fn in_range(name: &str, value: u64, range: &RangeInclusive<u64>) -> Result<()> {
    if range.contains(&value) {
        return Ok(());
    }
    let (least, most) = (range.start(), range.end());
    Err(usage(if *most == u64::MAX {
        format!("{name} {value}: give at least {least}")
    } else {
        format!("{name} {value}: give {least} to {most}")
    }))
}

/// Reads the rules; the error names `name`, where they came from.
pub(super) fn parse_faults(name: &str, text: &str) -> Result<FaultPlan> {
    text.parse().map_err(|error| usage(format!("{name} \"{text}\": {error}")))
}
