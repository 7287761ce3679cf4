//! Tables and JSON of the benchmarks.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use serde_json::{Map, Value as Json, json};
use spindrift::fallback::FallbackError;
use spindrift::path::PlaneSet;
use spindrift::verbs::{RtsAttr, WcStatus};

use super::endpoint_setup::{Counted, InUse};
use super::options::{Amount, Settings};
use super::pin::WaitName;
use super::pingpong::Led;
use super::preemption::invalidates;
use super::writer::Measured;
use super::yardstick::Yardstick;
use crate::config::RoutingName;
use crate::driver::Kernel;
use crate::output::eprint_line;
use crate::units::{format_rate, format_size};

/// One size of a bandwidth run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct BandwidthRow {
    pub(crate) size_bytes: u64,
    pub(crate) iterations: u64,
    pub(crate) bandwidth_peak_gbps: f64,
    pub(crate) bandwidth_gbps: f64,
    pub(crate) message_rate_mpps: f64,
    /// Only where both sides are on this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) baseline_gbps: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ratio: Option<f64>,
    /// The pump that ran in the same seconds, if one did.
    #[serde(flatten)]
    pub(crate) beside: Option<PumpCells>,
    pub(crate) verified: bool,
    /// Writes that were compared whole, the warm-up's among them, and all there were.
    pub(crate) compared: u64,
    #[serde(skip)]
    pub(crate) writes: u64,
    /// Longest time in which the writer's thread was not run.
    pub(crate) longest_pause_ms: f64,
    /// Time for which this process's threads had cores.
    pub(crate) cpu_s: f64,
    /// Writes compared while the run went on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sampled: Option<u64>,
}

/// What the pump beside a run reached.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PumpCells {
    /// What it did.
    pub(crate) pump: &'static str,
    pub(crate) pump_gbps: f64,
    /// Bandwidth over `pump_gbps`.
    pub(crate) pump_ratio: f64,
    pub(crate) pump_slices_gbps: Vec<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) core_latency_before_ns: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) core_latency_after_ns: Option<f64>,
    pub(crate) disturbed: bool,
}

impl PumpCells {
    pub(crate) fn new(pump: &'static str, yardstick: &Yardstick, bandwidth_gbps: f64) -> Self {
        let pump_gbps = yardstick.gbps();
        Self {
            pump,
            pump_gbps,
            pump_ratio: if pump_gbps > 0.0 { bandwidth_gbps / pump_gbps } else { 0.0 },
            pump_slices_gbps: yardstick.slices.clone(),
            core_latency_before_ns: yardstick.latency_ns.map(|[before, _]| before),
            core_latency_after_ns: yardstick.latency_ns.map(|[_, after]| after),
            disturbed: yardstick.disturbed(),
        }
    }
}

/// Which columns a table of bandwidths has besides the usual ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Columns {
    Usual,
    /// The pump.
    Pump,
    /// The two-core pump and the core latency.
    Cores,
}

impl BandwidthRow {
    pub(crate) fn new(size: u32, measured: &Measured, verified: bool, [compared, writes]: [u64; 2]) -> Self {
        Self {
            size_bytes: size.into(),
            iterations: measured.iterations,
            bandwidth_peak_gbps: measured.peak_gbps,
            bandwidth_gbps: measured.gbps(),
            message_rate_mpps: measured.mpps(),
            baseline_gbps: None,
            ratio: None,
            beside: None,
            verified,
            compared,
            writes,
            longest_pause_ms: measured.longest_pause.as_secs_f64() * 1000.0,
            cpu_s: measured.cpu.as_secs_f64(),
            sampled: None,
        }
    }

    /// A word on standard error where the average says more about a busy machine than about the transport.
    pub(crate) fn warn_of_pause(&self, measured: &Measured) {
        if invalidates(measured.longest_pause, measured.elapsed) {
            eprint_line(format_args!(
                "spindrift: at {} the writer did not run for {:.0} ms of {:.0} ms: the machine is busy, the average too low",
                format_size(self.size_bytes),
                self.longest_pause_ms,
                measured.elapsed.as_secs_f64() * 1000.0
            ));
        }
    }

    pub(crate) fn head(columns: Columns) -> String {
        let mut line = format!(
            "{:>9} {:>12} {:>14} {:>17} {:>14}",
            "#bytes", "#iterations", "BW peak[Gb/s]", "BW average[Gb/s]", "MsgRate[Mpps]"
        );
        if columns != Columns::Usual {
            line += &format!(" {:>10} {:>6}", "pump[Gb/s]", "ratio");
        }
        if columns == Columns::Cores {
            line += &format!(" {:>11}", "one-way[ns]");
        }
        line + "  verified"
    }

    pub(crate) fn line(&self) -> String {
        let mut line = format!(
            "{:>9} {:>12} {:>14} {:>17} {:>14.6}",
            self.size_bytes,
            self.iterations,
            significant(self.bandwidth_peak_gbps),
            significant(self.bandwidth_gbps),
            self.message_rate_mpps
        );
        if let Some(beside) = &self.beside {
            line += &format!(" {:>10} {:>6.2}", significant(beside.pump_gbps), beside.pump_ratio);
            if let (Some(before), Some(after)) = (beside.core_latency_before_ns, beside.core_latency_after_ns)
            {
                line += &format!(" {:>11}", format!("{before:.0}, {after:.0}"));
            }
        }
        line += "  ";
        match (self.verified, self.compared) {
            (false, _) => line += "NO",
            (true, all) if all == self.writes => line += "yes, all",
            (true, some) => line += &format!("yes, last {some}"),
        }
        line + if self.beside.as_ref().is_some_and(|beside| beside.disturbed) { "  disturbed" } else { "" }
    }
}

/// Two decimals, or three digits of a small number.
fn significant(value: f64) -> String {
    if value >= 1.0 { format!("{value:.2}") } else { format!("{value:.4}") }
}

/// One size of a latency run, in microseconds.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct LatencyRow {
    pub(crate) size_bytes: u64,
    pub(crate) iterations: u64,
    pub(crate) min_us: f64,
    pub(crate) typical_us: f64,
    pub(crate) mean_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
    pub(crate) max_us: f64,
    /// Longest time in which this side's thread was not run; in `loopback` that of either side.
    pub(crate) longest_pause_ms: f64,
    /// Time for which this process's threads had cores.
    pub(crate) cpu_s: f64,
}

impl LatencyRow {
    pub(crate) fn new(size: u32, led: &Led) -> Self {
        let histogram = &led.histogram;
        let us = |ns: u64| ns as f64 / 1000.0;
        Self {
            size_bytes: size.into(),
            iterations: histogram.len(),
            min_us: us(histogram.min()),
            typical_us: us(histogram.value_at_quantile(0.5)),
            mean_us: histogram.mean() / 1000.0,
            p99_us: us(histogram.value_at_quantile(0.99)),
            p999_us: us(histogram.value_at_quantile(0.999)),
            max_us: us(histogram.max()),
            longest_pause_ms: led.longest_pause.as_secs_f64() * 1000.0,
            cpu_s: led.cpu.as_secs_f64(),
        }
    }

    /// As [`BandwidthRow::warn_of_pause`].
    pub(crate) fn warn_of_pause(&self, led: &Led) {
        if let Some(warning) = self.pause_warning(led) {
            eprint_line(format_args!("{warning}"));
        }
    }

    fn pause_warning(&self, led: &Led) -> Option<String> {
        invalidates(led.longest_pause, led.elapsed).then(|| {
            format!(
                "spindrift: at {} a side did not run for {:.0} ms of {:.0} ms: the machine is busy, the average too high",
                format_size(self.size_bytes),
                self.longest_pause_ms,
                led.elapsed.as_secs_f64() * 1000.0
            )
        })
    }

    pub(crate) fn head() -> String {
        format!(
            "{:>9} {:>12} {:>11} {:>15} {:>12} {:>11} {:>13} {:>11}",
            "#bytes",
            "#iterations",
            "t_min[us]",
            "t_typical[us]",
            "t_avg[us]",
            "99%[us]",
            "99.9%[us]",
            "t_max[us]"
        )
    }

    pub(crate) fn line(&self) -> String {
        format!(
            "{:>9} {:>12} {:>11.2} {:>15.2} {:>12.2} {:>11.2} {:>13.2} {:>11.2}",
            self.size_bytes,
            self.iterations,
            self.min_us,
            self.typical_us,
            self.mean_us,
            self.p99_us,
            self.p999_us,
            self.max_us
        )
    }
}

/// What was run, for the JSON object.
pub(crate) fn settings_json(settings: &Settings, in_use: &InUse) -> Map<String, Json> {
    let mut map = Map::new();
    let mut put = |name: &str, value: Json| map.insert(name.to_owned(), value);
    put("port", settings.port.name.into());
    put("planes", in_use.planes.into());
    let port = |(name, notes): &(String, Vec<String>)| json!({ "name": name, "notes": notes });
    put("ports", in_use.ports.iter().map(port).collect());
    if let (Some(host), nic) = (&settings.host, &settings.config.nic) {
        put("topology", nic.topology.as_ref().map(|file| file.display().to_string()).into());
        put("host", host.clone().into());
        put("routing", nic.routing.map(RoutingName::name).into());
    }
    put("operation", settings.work.operations.to_string().into());
    if settings.work.operations.has_fetches() {
        put("outs", settings.work.outs.into());
    }
    put("srq", settings.work.srq.into());
    if let Some(standby) = settings.standby.filter(|set| *set != PlaneSet::default()) {
        put("standby", standby.iter().collect::<Vec<_>>().into());
        put("fallback", settings.fallback.name().into());
    }
    put("lanes", settings.lanes.into());
    put("wait", settings.wait.name().into());
    put("queue_pairs", settings.qps.into());
    put("tx_depth", settings.tx_depth.into());
    put("mtu", in_use.mtu.into());
    put("icrc", settings.icrc.into());
    if settings.port.has("nic.gso") {
        put("gso", in_use.gso.into());
    }
    put("cc", in_use.cc.name().into());
    put("timeout", settings.retry.timeout.into());
    put("linear_retries", settings.retry.linear_retries.into());
    put("exponential_retries", settings.retry.exponential_retries.into());
    put("retry_budget_s", settings.retry.budget_ns().map(|ns| ns as f64 / 1e9).into());
    if let Some(rate) = settings.link_rate {
        put("link_rate_bps", rate.into());
    }
    if let Some(evs) = &settings.evs {
        put("evs", evs.to_string().into());
    }
    put("verify", settings.verify.name().into());
    put("fault", settings.fault_text.clone().into());
    put("seed", settings.seed.into());
    match settings.amount {
        Amount::Iterations(n) => put("iterations", n.into()),
        Amount::Time(time) => put("duration_s", time.as_secs_f64().into()),
    };
    map
}

/// What was run, for people: a line, one more if there is a topology, and one for each port that bypasses the kernel, whose notes
/// differ most.
pub(crate) fn settings_lines(settings: &Settings, in_use: &InUse) -> String {
    let mut lines = settings_line(settings, in_use);
    if let (Some(host), Some(routing)) = (&settings.host, settings.config.nic.routing) {
        let how = match routing {
            RoutingName::Srv6 => "packets are source-routed by SRv6",
            RoutingName::Ecmp => "the switches route packets (ECMP)",
        };
        let _ = write!(lines, "\n  this is {host} of the topology; {how}");
    }
    if settings.port.kernel == Kernel::Bypassed {
        for (name, notes) in &in_use.ports {
            let _ = write!(lines, "\n  {name}: {}", notes.join("; "));
        }
    }
    lines
}

fn settings_line(settings: &Settings, in_use: &InUse) -> String {
    let many =
        |count: usize, one: &str| if count == 1 { format!("1 {one}") } else { format!("{count} {one}s") };
    format!(
        "port {}, {}{}{}{}{}, {}, tx depth {}{}, MTU {}, iCRC {}, congestion control {}, {}",
        settings.port.name,
        many(in_use.planes, "plane"),
        settings.link_rate.map_or_else(String::new, |rate| format!(" of {}/s", format_rate(rate))),
        match settings.standby.filter(|set| *set != PlaneSet::default()) {
            Some(standby) => format!(", standby {standby} ({} fallback)", settings.fallback.name()),
            None => String::new(),
        },
        if settings.lanes == 1 { String::new() } else { format!(", {} lanes", settings.lanes) },
        if settings.wait == WaitName::Poll { ", asleep while idle" } else { "" },
        many(settings.qps, "queue pair"),
        settings.tx_depth,
        if settings.work.operations.has_fetches() {
            format!(", {} outstanding", settings.work.outs)
        } else {
            String::new()
        },
        in_use.mtu,
        if settings.icrc { "on" } else { "off" },
        in_use.cc.name(),
        match settings.retry.budget_ns() {
            Some(ns) => format!("gives up after {} without progress", seconds(ns)),
            None => "never gives up".to_owned(),
        }
    )
}

/// Seconds with three digits or more.
fn seconds(ns: u64) -> String {
    let seconds = ns as f64 / 1e9;
    let decimals = if seconds >= 10.0 {
        1
    } else if seconds >= 1.0 {
        2
    } else {
        4
    };
    format!("{seconds:.decimals$} s")
}

/// What a completion with an error means. To wait longer helps only where something of the peer's has `arrived` before.
pub(crate) fn explain(
    status: WcStatus,
    failure: Option<FallbackError>,
    retry: &RtsAttr,
    arrived: bool,
) -> String {
    if let Some(failure) = failure.filter(|failure| !matches!(failure, FallbackError::Application(_))) {
        return format!("{status}: {failure}");
    }
    match retry.budget_ns() {
        Some(ns) if status == WcStatus::RetryExceeded => format!(
            "{status}: no progress for {} (--timeout {}, --linear-retries {}, --exponential-retries {}){}",
            seconds(ns),
            retry.timeout,
            retry.linear_retries,
            retry.exponential_retries,
            if arrived {
                "; to survive longer outages, raise --exponential-retries by 1, which about doubles this time"
            } else {
                ""
            }
        ),
        _ => status.to_string(),
    }
}

/// Counters of one side as nested objects.
pub(crate) fn counters_json(counted: &Counted) -> Json {
    let mut groups: Map<String, Json> = ["transport", "lanes", "ports", "faults", "fallback"]
        .map(|name| (name.to_owned(), json!({})))
        .into_iter()
        .collect();
    for (group, name, value) in counted.list() {
        if let Some(Json::Object(group)) = groups.get_mut(group) {
            group.insert(name.to_owned(), value.into());
        }
    }
    if !counted.devices.is_empty() {
        let counters = |list: &[(String, u64)]| -> Map<String, Json> {
            list.iter().map(|(name, value)| (name.clone(), (*value).into())).collect()
        };
        let devices: Map<_, _> =
            counted.devices.iter().map(|(device, list)| (device.clone(), counters(list).into())).collect();
        groups.insert("devices".to_owned(), devices.into());
    }
    Json::Object(groups)
}

/// Counters of several sides, side by side.
pub(crate) fn counters_table(sides: &[(&str, &Counted)]) -> String {
    let lists: Vec<_> = sides.iter().map(|(_, counted)| counted.list()).collect();
    let mut names: Vec<(&str, &str)> = Vec::new();
    for group in ["transport", "lanes", "ports", "faults", "fallback"] {
        for (found, name, _) in lists.iter().flatten() {
            if *found == group && !names.contains(&(group, name)) {
                names.push((group, name));
            }
        }
    }
    let mut text = format!("{:<34}", "counter");
    for (side, _) in sides {
        text += &format!(" {side:>16}");
    }
    for (group, name) in names {
        text += &format!("\n{:<34}", format!("{group}.{name}"));
        for list in &lists {
            let value =
                list.iter().find(|(g, n, _)| (*g, *n) == (group, name)).map_or(0, |(_, _, value)| *value);
            text += &format!(" {value:>16}");
        }
    }
    for (at, (_, counted)) in sides.iter().enumerate() {
        for (device, counters) in &counted.devices {
            for (name, value) in counters {
                text += &format!("\n{:<34}", format!("{device}.{name}"));
                for column in 0..sides.len() {
                    text += &format!(" {:>16}", if column == at { *value } else { 0 });
                }
            }
        }
    }
    text
}

/// What faults did, in one line for each side.
pub(crate) fn faults_line(side: &str, counted: &Counted) -> String {
    let parts: Vec<_> = counted.faults.iter().map(|(name, value)| format!("{name} {value}")).collect();
    let what = if parts.is_empty() { "nothing".to_owned() } else { parts.join(", ") };
    format!("faults on frames sent by the {side}: {what}")
}

/// Progress of one size, on a terminal only.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
}

impl Progress {
    pub(crate) fn new(size: u64, amount: Amount) -> Self {
        if !io::stderr().is_terminal() {
            return Self { bar: None };
        }
        let total = match amount {
            Amount::Iterations(n) => n,
            Amount::Time(time) => time.as_millis() as u64,
        };
        let bar = ProgressBar::new(total).with_message(format_size(size));
        if let Ok(style) = ProgressStyle::with_template("{msg:>10} {bar:30} {percent:>3}%") {
            bar.set_style(style);
        }
        Self { bar: Some(bar) }
    }

    pub(crate) fn set(&self, amount: Amount, done: u64, elapsed: Duration) {
        if let Some(bar) = &self.bar {
            bar.set_position(match amount {
                Amount::Iterations(_) => done,
                Amount::Time(_) => elapsed.as_millis() as u64,
            });
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn latency_warns_of_a_busy_machine() {
        let mut histogram = hdrhistogram::Histogram::new(3).unwrap();
        histogram.record(9000).unwrap();
        let led = |pause, elapsed| Led {
            histogram: histogram.clone(),
            elapsed: Duration::from_millis(elapsed),
            cpu: Duration::ZERO,
            longest_pause: Duration::from_millis(pause),
        };
        let warning = |led: &Led| LatencyRow::new(2, led).pause_warning(led);
        let busy = warning(&led(40, 100)).unwrap();
        assert!(
            busy.contains("at 2 ") && busy.contains("40 ms of 100 ms") && busy.contains("busy"),
            "{busy}"
        );
        assert_eq!(warning(&led(40, 1000)), None);
        assert_eq!(warning(&led(1, 5)), None);
    }
}
