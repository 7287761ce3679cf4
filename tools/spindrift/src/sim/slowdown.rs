//! How much longer messages took than they would have alone: flow completion time as a multiple of its ideal, by size.

use std::io::{self, Write};

use serde_json::{Value as Json, json};
use spindrift_fabric::{ClosSpec, Done, HostId};
use spindrift_srv6::{Fabric, Node};

use super::nic::Nics;
use super::report::Spread;
use super::run::{JobOutcome, Outcome};

/// Bytes on the wire beside the payload of a packet of MRC: Ethernet with preamble and gap, IPv6, UDP, MRC's headers and the iCRC. A source-routed
/// packet has an outer IPv6 header too. RoCE has shorter headers.
const MRC_HEADERS: u64 = 126;
const OUTER: u64 = 40;
const ROCE_HEADERS: u64 = 102;
/// A SACK, without the outer header.
const MRC_ANSWER: u64 = 162;
const ROCE_ANSWER: u64 = 106;

/// The largest message of each row; the last row has all that are larger.
const SIZES: [u64; 9] =
    [1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20];

/// Messages of some sizes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Row {
    /// None has more bytes; `None` in the last row.
    up_to: Option<u64>,
    slowdown: Spread,
}

/// What a message takes when nothing else is in the fabric.
#[derive(Clone, Copy, Debug)]
struct Ideal<'a> {
    clos: &'a ClosSpec,
    fabric: &'a Fabric,
    mtu: u64,
    headers: u64,
    answer: u64,
}

impl<'a> Ideal<'a> {
    fn of(outcome: &'a Outcome) -> Self {
        let (clos, fabric) = (&outcome.plan.clos, &outcome.plan.fabric);
        let (mtu, headers, answer) = match &outcome.plan.nics {
            Nics::Mrc(nics) => {
                let nic = nics.first();
                let outer = if nic.is_some_and(|nic| nic.srv6) { OUTER } else { 0 };
                (nic.map_or(4096, |nic| nic.mtu), MRC_HEADERS + outer, MRC_ANSWER + outer)
            }
            Nics::Roce(nic) => (nic.qp.mtu, ROCE_HEADERS, ROCE_ANSWER),
        };
        Self { clos, fabric, mtu: mtu.into(), headers, answer }
    }

    /// Links between the switches on the way from one host to another.
    fn trunks(&self, from: HostId, to: HostId) -> u64 {
        let t0 = |host: HostId| self.fabric.hosts().get(host.0 as usize).map(|at| at.t0);
        let pod = |host: HostId| self.fabric.pod_of(Node::Host(host.0 as u16));
        if t0(from) == t0(to) {
            0
        } else if self.clos.t1 == 0 {
            1
        } else if pod(from) == pod(to) {
            2
        } else {
            4
        }
    }

    /// From the first bit until the sender has the acknowledgement, ns. Packets leave on all planes at once, and switches store each and then forward
    /// it. So the last one takes its time on every link, and those before it on the first.
    fn ns(&self, from: HostId, to: HostId, len: u64) -> f64 {
        let clos = self.clos;
        let trunks = self.trunks(from, to) as f64;
        let on = |bytes: u64, rate_bps: u64| bytes as f64 * 8e9 / rate_bps as f64;
        let all = |bytes| 2.0 * on(bytes, clos.host_rate_bps) + trunks * on(bytes, clos.trunk_rate_bps);
        let delay = 2.0 * clos.host_delay_ns as f64 + trunks * clos.trunk_delay_ns as f64;
        let (packets, planes) = (len.div_ceil(self.mtu).max(1), u64::from(clos.planes.max(1)));
        let rounds = packets.div_ceil(planes);
        let last_alone = packets - (rounds - 1) * planes == 1;
        let last = if last_alone { len - (packets - 1) * self.mtu } else { self.mtu.min(len) };
        let before = (rounds - 1) as f64 * on(self.mtu + self.headers, clos.host_rate_bps);
        before + all(last + self.headers) + all(self.answer) + 2.0 * delay
    }
}

/// A row for each size that a workload has messages of.
pub(super) fn rows(outcome: &Outcome, job: &JobOutcome) -> Vec<Row> {
    let ideal = Ideal::of(outcome);
    let mut by_size = vec![Vec::new(); SIZES.len() + 1];
    for Done { side, len, posted, done } in &job.messages {
        let Some(&(first, second)) = job.pairs.get(side.pair as usize) else { continue };
        let (from, to) = if side.second { (second, first) } else { (first, second) };
        let len = u64::from(*len);
        let row = SIZES.iter().position(|&up_to| len <= up_to).unwrap_or(SIZES.len());
        if let Some(row) = by_size.get_mut(row) {
            row.push(done.since(*posted) as f64 / ideal.ns(from, to, len));
        }
    }
    let sizes = SIZES.iter().copied().map(Some).chain([None]);
    let rows = sizes.zip(by_size).filter(|(_, values)| !values.is_empty());
    rows.map(|(up_to, values)| Row { up_to, slowdown: Spread::of(values) }).collect()
}

/// `slowdown.csv`.
pub(super) fn table(outcomes: &[Outcome], out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "variant,workload,up_to_bytes,messages,mean,least,p50,p90,p99,p99.9,most")?;
    for outcome in outcomes {
        for job in &outcome.jobs {
            for Row { up_to, slowdown } in rows(outcome, job) {
                let Spread { count, mean, min, p50, p90, p99, p999, max } = slowdown;
                let up_to = up_to.map_or_else(String::new, |bytes| bytes.to_string());
                write!(out, "{},{},{up_to},{count}", outcome.plan.variant, job.name)?;
                for value in [mean, min, p50, p90, p99, p999, max] {
                    write!(out, ",{value:.4}")?;
                }
                writeln!(out)?;
            }
        }
    }
    Ok(())
}

/// Of `result.json`.
pub(super) fn json(outcome: &Outcome, job: &JobOutcome) -> Json {
    let row = |Row { up_to, slowdown }| json!({ "up_to_bytes": up_to, "slowdown": slowdown.json() });
    rows(outcome, job).into_iter().map(row).collect()
}

/// A line of the summary for a workload with messages of several sizes.
pub(super) fn line(outcome: &Outcome, job: &JobOutcome) -> String {
    let rows = rows(outcome, job);
    if rows.len() < 2 {
        return String::new();
    }
    let row = |Row { up_to, slowdown }: &Row| {
        let size = match up_to {
            Some(bytes) if *bytes < 1 << 20 => format!("up to {} KiB", bytes >> 10),
            Some(bytes) => format!("up to {} MiB", bytes >> 20),
            None => "larger".to_owned(),
        };
        format!("{size} {:.2}, {:.2}", slowdown.p50, slowdown.p99)
    };
    let rows: Vec<_> = rows.iter().map(row).collect();
    format!("  slowdown, as a multiple of the time alone in the fabric (median, 99 %): {}\n", rows.join("; "))
}
