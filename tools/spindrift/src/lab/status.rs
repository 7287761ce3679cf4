//! `spindrift lab status`: the links of a lab, with their counters and faults.

use std::collections::BTreeMap;

use anyhow::Result;
use serde_json::{Value as Json, json};
use spindrift_srv6::{Fabric, Node};
use spindrift_switch::{Counts, QueueCounts};

use super::fault::Dir;
use super::faults::Faults;
use super::ip::{self, Ip};
use super::plan::{Interface, LabPlan};
use super::state::Lab;
use super::switches::Switches;
use crate::output::print_line;
use crate::topology::SwitchKind;

/// What the kernel says of one end of a link.
pub(super) struct EndState {
    pub(super) up: bool,
    pub(super) tx_packets: u64,
    pub(super) rx_packets: u64,
    pub(super) dropped: u64,
}

pub(super) fn status(name: &str, as_json: bool) -> Result<()> {
    let ip = Ip::find()?;
    let fabric = super::fabric(name)?;
    let plan = LabPlan::new(&fabric, name);
    let faults = Faults::open(Lab::open(name), &plan, &ip)?;
    let set = faults.read()?;
    let (counts, queues) = (faults.counts(&set)?, faults.queues(&set)?);
    let mut links = Vec::new();
    if !as_json {
        print_line(&format!(
            "{:<28} {:<28} {:<6} {:>12} {:>12} {:>9}  faults",
            "lower end", "upper end", "state", "packets up", "packets down", "dropped"
        ));
    }
    let (kind, switches) = (faults.kind(), faults.switches());
    let taken = switches.map(Switches::counts).transpose()?.unwrap_or_default();
    let mut states = ip::Links::default();
    for (link, [lower, upper]) in plan.links() {
        let mut state = |end: &Interface| states.of(&ip, &plan.namespace(end.node), &end.name);
        let (low, high) = (state(&lower)?, state(&upper)?);
        let up = low.up && high.up;
        let end = |end: &Interface| format!("{} {}", fabric.name(end.node), end.name);
        let dropped = low.dropped + high.dropped;
        let faults = set.all.iter().filter(|broken| broken.link == link);
        let faults = faults.map(|broken| (broken.fault.to_string(), counts.get(&broken.id)));
        let queues = queues.iter().filter(|&&(of, ..)| of == link).map(|&(_, dir, counts)| (dir, counts));
        if as_json {
            links.push(json!({
                "lower": { "node": fabric.name(lower.node), "interface": lower.name, "up": low.up },
                "upper": { "node": fabric.name(upper.node), "interface": upper.name, "up": high.up },
                "up": up,
                "packets_up": low.tx_packets,
                "packets_down": low.rx_packets,
                "dropped": dropped,
                "faults": faults.map(|(fault, packets)| json!({ "fault": fault, "packets": packets })).collect::<Vec<_>>(),
                "queues": queues.map(queue_json).collect::<Vec<_>>(),
            }));
        } else {
            let word = if up { "up" } else { "down" };
            let packets = format!("{:>12} {:>12} {dropped:>9}", low.tx_packets, low.rx_packets);
            let told: Vec<_> = faults.map(fault_text).chain(queues.map(queue_text)).collect();
            let line =
                format!("{:<28} {:<28} {word:<6} {packets}  {}", end(&lower), end(&upper), told.join(" "));
            print_line(line.trim_end());
        }
    }
    if !as_json {
        say_taken(kind, &taken, &fabric);
    }
    if as_json {
        let object: Json = json!({
            "command": "lab status",
            "version": env!("CARGO_PKG_VERSION"),
            "name": name,
            "switch": kind,
            "switches": taken.iter().map(|(&node, counts)| json!({
                "name": fabric.name(node),
                "forwarded": counts.forwarded,
                "left": counts.passed,
            })).collect::<Vec<_>>(),
            "links": links,
        });
        print_line(&object.to_string());
    }
    Ok(())
}

/// A fault, with how many packets it took.
fn fault_text((fault, packets): (String, Option<&u64>)) -> String {
    match packets {
        Some(packets) => format!("{fault} ({packets} packets)"),
        None => fault,
    }
}

/// What the queue of a direction has done.
fn queue_text((dir, counts): (Dir, QueueCounts)) -> String {
    let QueueCounts { marked, trimmed, dropped } = counts;
    format!("[{dir}: {marked} marked, {trimmed} trimmed, {dropped} dropped]")
}

fn queue_json((dir, counts): (Dir, QueueCounts)) -> Json {
    let QueueCounts { marked, trimmed, dropped } = counts;
    json!({ "dir": dir.to_string(), "marked": marked, "trimmed": trimmed, "dropped": dropped })
}

/// What switches that are programs have taken, and what they left to the kernel.
fn say_taken(kind: SwitchKind, taken: &BTreeMap<Node, Counts>, fabric: &Fabric) {
    if kind == SwitchKind::Kernel {
        return;
    }
    print_line(&format!("\n{:<28} {:>12} {:>12}", format!("switch ({kind})"), "forwarded", "left"));
    for (&node, counts) in taken {
        print_line(&format!("{:<28} {:>12} {:>12}", fabric.name(node), counts.forwarded, counts.passed));
    }
}
