//! What the processes of a run have moved.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::json;
use spindrift_programs::report::{PlaneReport, ProcessReport};

use crate::units::count;

/// The summary for people: for each device, over all processes.
pub(super) fn lines(reports: &[ProcessReport]) -> Vec<String> {
    if reports.is_empty() {
        return vec!["no process has opened a device".to_owned()];
    }
    let mut devices: BTreeMap<&str, Vec<&ProcessReport>> = BTreeMap::new();
    for report in reports {
        devices.entry(&report.device).or_default().push(report);
    }
    devices.into_iter().flat_map(|(device, reports)| of_device(device, &reports)).collect()
}

fn of_device(device: &str, reports: &[&ProcessReport]) -> Vec<String> {
    let sum = |value: &dyn Fn(&ProcessReport) -> u64| reports.iter().map(|report| value(report)).sum::<u64>();
    let counter = |name: &str| sum(&|report| report.counters.get(name).copied().unwrap_or(0));
    let (connected, failed) =
        (sum(&|report| report.queue_pairs.connected), sum(&|report| report.queue_pairs.failed));
    let killed = reports.iter().filter(|report| !report.ended).count();
    let mut lines = vec![format!(
        "{device}: processes {}{}, queue pairs {connected} connected, {failed} failed",
        reports.len(),
        if killed > 0 { format!(" ({killed} did not end in order)") } else { String::new() },
    )];
    let mut planes: BTreeMap<(usize, std::net::IpAddr), PlaneReport> = BTreeMap::new();
    for report in reports {
        for (at, plane) in report.planes.iter().enumerate() {
            let known = planes.entry((at, plane.address)).or_insert_with(|| PlaneReport {
                tx_frames: 0,
                rx_frames: 0,
                tx_bytes: 0,
                rx_bytes: 0,
                ..plane.clone()
            });
            known.is_up &= plane.is_up;
            known.tx_frames += plane.tx_frames;
            known.rx_frames += plane.rx_frames;
            known.tx_bytes += plane.tx_bytes;
            known.rx_bytes += plane.rx_bytes;
        }
    }
    for ((at, address), plane) in planes {
        lines.push(format!(
            "  plane {at}, {address}: sent {} in {}, received {} in {}{}",
            megabytes(plane.tx_bytes),
            count(plane.tx_frames, "packet"),
            megabytes(plane.rx_bytes),
            count(plane.rx_frames, "packet"),
            if plane.is_up { "" } else { "; its link is down" },
        ));
    }
    let (data, again) = (counter("tx_data"), counter("tx_retransmits") + counter("tx_tail_probes"));
    let share = if data == 0 { 0.0 } else { 100.0 * again as f64 / data as f64 };
    lines.push(format!(
        "  retransmitted {} ({share:.2} % of data packets), timeouts {}, plane changes {}",
        count(again, "packet"),
        counter("timeouts"),
        counter("port_changes") + counter("peer_port_changes"),
    ));
    let (failovers, failbacks) =
        (sum(&|report| report.queue_pairs.failovers), sum(&|report| report.queue_pairs.failbacks));
    if failovers + failbacks > 0 {
        let (there, back) = (count(failovers, "time"), count(failbacks, "time"));
        lines.push(format!("  moved to the second NIC {there}, and back {back}"));
    }
    let (sent, dropped) = (sum(&|report| report.datagrams.sent), sum(&|report| report.datagrams.dropped));
    if sent + dropped > 0 {
        let received = sum(&|report| report.datagrams.received);
        lines.push(format!("  datagrams: {sent} sent, {received} received, {dropped} dropped"));
    }
    lines
}

fn megabytes(bytes: u64) -> String {
    match bytes {
        0..10_000 => format!("{bytes} bytes"),
        10_000..10_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        _ => format!("{:.1} MB", bytes as f64 / 1e6),
    }
}

/// The same for tools: each process with each device.
pub(super) fn write(path: &Path, reports: &[ProcessReport], status: Option<i32>) -> Result<()> {
    let object = json!({
        "command": "run",
        "version": env!("CARGO_PKG_VERSION"),
        "status": status,
        "processes": reports,
    });
    fs::write(path, format!("{object}\n")).with_context(|| format!("cannot write {}", path.display()))
}
