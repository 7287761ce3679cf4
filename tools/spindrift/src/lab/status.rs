//! `spindrift lab status`: the links of a lab, with what the kernel counts on them and what is wrong with them.

use anyhow::Result;
use serde_json::{Value as Json, json};

use super::faults::Faults;
use super::ip::{self, Ip};
use super::plan::{Interface, LabPlan};
use super::state::Lab;
use crate::output::say;

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
    let faults = Faults::new(Lab::open(name), &plan, &ip);
    let set = faults.read()?;
    let counts = faults.counts(&set)?;
    let mut links = Vec::new();
    if !as_json {
        say(&format!(
            "{:<28} {:<28} {:<6} {:>12} {:>12} {:>9}  faults",
            "lower end", "upper end", "state", "packets up", "packets down", "dropped"
        ));
    }
    let mut states = ip::Links::default();
    for (link, [lower, upper]) in plan.links() {
        let mut state = |end: &Interface| states.of(&ip, &plan.namespace(end.node), &end.name);
        let (low, high) = (state(&lower)?, state(&upper)?);
        let up = low.up && high.up;
        let end = |end: &Interface| format!("{} {}", fabric.name(end.node), end.name);
        let dropped = low.dropped + high.dropped;
        let faults = set.all.iter().filter(|broken| broken.link == link);
        let faults = faults.map(|broken| (broken.fault.to_string(), counts.get(&broken.id)));
        if as_json {
            links.push(json!({
                "lower": { "node": fabric.name(lower.node), "interface": lower.name, "up": low.up },
                "upper": { "node": fabric.name(upper.node), "interface": upper.name, "up": high.up },
                "up": up,
                "packets_up": low.tx_packets,
                "packets_down": low.rx_packets,
                "dropped": dropped,
                "faults": faults.map(|(fault, packets)| json!({ "fault": fault, "packets": packets })).collect::<Vec<_>>(),
            }));
        } else {
            let word = if up { "up" } else { "down" };
            let faults: Vec<_> = faults
                .map(|(fault, packets)| match packets {
                    Some(packets) => format!("{fault} ({packets} packets)"),
                    None => fault,
                })
                .collect();
            let line = format!(
                "{:<28} {:<28} {word:<6} {:>12} {:>12} {dropped:>9}  {}",
                end(&lower),
                end(&upper),
                low.tx_packets,
                low.rx_packets,
                faults.join(" ")
            );
            say(line.trim_end());
        }
    }
    if as_json {
        let object: Json = json!({
            "command": "lab status",
            "version": env!("CARGO_PKG_VERSION"),
            "name": name,
            "links": links,
        });
        say(&object.to_string());
    }
    Ok(())
}
