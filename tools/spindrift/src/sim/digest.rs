//! What is kept of a run when only the first of several seeds keeps its samples.

use std::time::Duration;

use serde_json::{Value as Json, json};
use spindrift_fabric::{Clos, Messenger, Net, NetCounters, QueueCounters, TransportStats};
use spindrift_srv6::Fabric;

use super::report::Spread;
use super::run::{JobOutcome, Outcome};

/// Counts of a whole run, over all hosts and all links.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Totals {
    pub(super) hosts: TransportStats,
    /// Packets marked and trimmed at links, dropped for lack of room, and lost on dead or impaired links.
    pub(super) marked: u64,
    pub(super) trimmed: u64,
    pub(super) dropped: u64,
    pub(super) lost: u64,
    /// Pause frames of switches that stopped links, and for how long all links together were stopped, ns (PFC).
    pub(super) pauses: u64,
    pub(super) paused_ns: u64,
    /// The most data that waited for one link, and which link that was.
    pub(super) longest_queue_bytes: u64,
    pub(super) longest_queue: Option<String>,
}

impl Totals {
    pub(super) fn of<T: Messenger>(fabric: &Fabric, clos: &Clos, net: &Net<T>) -> Self {
        let mut totals = Self::default();
        for host in net.hosts() {
            let stats = net.transport(host).stats();
            let TransportStats { placed_bytes, sent, repeats, losses, timeouts, marked, trimmed, .. } = stats;
            let sums = &mut totals.hosts;
            sums.placed_bytes += placed_bytes;
            sums.sent += sent;
            sums.repeats += repeats;
            sums.losses += losses;
            sums.timeouts += timeouts;
            sums.marked += marked;
            sums.trimmed += trimmed;
            sums.cnps += stats.cnps;
            sums.sequence_naks += stats.sequence_naks;
        }
        for ((from, to), link) in clos.links() {
            let counters = net.link(link);
            let QueueCounters { trimmed, dropped_data, dropped_control, marked, most_bytes } = counters.queue;
            totals.marked += marked;
            totals.trimmed += trimmed;
            totals.dropped += dropped_data + dropped_control;
            totals.lost += counters.lost_down + counters.lost_impaired;
            totals.dropped += counters.overflowed;
            totals.pauses += counters.pauses;
            totals.paused_ns += counters.paused_ns;
            if most_bytes > totals.longest_queue_bytes {
                totals.longest_queue_bytes = most_bytes;
                totals.longest_queue = Some(format!("{}:{}", fabric.name(from), fabric.name(to)));
            }
        }
        totals
    }

    pub(super) fn json(&self) -> Json {
        let Self { hosts, marked, trimmed, dropped, lost, pauses, paused_ns, .. } = self;
        json!({
            "hosts": {
                "payload_bytes": hosts.placed_bytes,
                "sent": hosts.sent,
                "repeats": hosts.repeats,
                "losses": hosts.losses,
                "timeouts": hosts.timeouts,
                "marked": hosts.marked,
                "trimmed": hosts.trimmed,
                "cnps": hosts.cnps,
                "sequence_naks": hosts.sequence_naks,
            },
            "links": {
                "marked": marked,
                "trimmed": trimmed,
                "dropped": dropped,
                "lost": lost,
                "pauses": pauses,
                "paused_ns": paused_ns,
                "longest_queue_bytes": self.longest_queue_bytes,
                "longest_queue": self.longest_queue,
            },
        })
    }

    /// Two lines of the summary.
    pub(super) fn lines(&self) -> String {
        let Self { hosts, marked, trimmed, dropped, lost, pauses, paused_ns, .. } = self;
        let TransportStats { sent, repeats, losses, timeouts, .. } = hosts;
        let mut text = format!(
            "- all hosts: {sent} data packets sent, of which {repeats} retransmissions; {losses} losses declared, {timeouts} timeouts; \
             {} marked and {} trimmed packets received{}\n\
             - all links: {marked} packets marked, {trimmed} trimmed, {dropped} dropped for lack of room, {lost} lost",
            hosts.marked,
            hosts.trimmed,
            match (hosts.cnps, hosts.sequence_naks) {
                (0, 0) => String::new(),
                (cnps, naks) => format!(", {cnps} CNPs, {naks} NAKs for packets out of sequence"),
            }
        );
        if *pauses > 0 {
            text += &format!("; stopped {pauses} times, for {:.1} us in all", *paused_ns as f64 / 1e3);
        }
        if let Some(link) = &self.longest_queue {
            text += &format!("; longest queue {:.1} kB, at {link}", self.longest_queue_bytes as f64 / 1e3);
        }
        text.push('\n');
        text
    }
}

/// Rows that only RoCE and PFC have something for.
const CNPS: &str = "CNPs received";
const NAKS: &str = "NAKs for packets out of sequence";
const PAUSES: &str = "pauses of links";
const PAUSED: &str = "time that links were stopped, us";

/// A run with one seed.
#[derive(Clone, Debug)]
pub(super) struct Digest {
    pub(super) seed: u64,
    pub(super) ended_ns: u64,
    pub(super) done: bool,
    pub(super) counters: NetCounters,
    pub(super) totals: Totals,
    pub(super) jobs: Vec<JobDigest>,
    /// How long it took.
    pub(super) wall: Duration,
}

/// A workload of it.
#[derive(Clone, Debug)]
pub(super) struct JobDigest {
    pub(super) name: String,
    pub(super) rates: Spread,
    pub(super) times: Spread,
    pub(super) failures: usize,
    /// When and why the first connection failed.
    pub(super) first_failure: Option<(u64, &'static str)>,
}

impl Digest {
    pub(super) fn of(outcome: &Outcome) -> Self {
        Self {
            seed: outcome.plan.seed,
            ended_ns: outcome.ended_ns,
            done: outcome.done,
            counters: outcome.counters,
            totals: outcome.totals.clone(),
            jobs: outcome.jobs.iter().map(JobDigest::of).collect(),
            wall: outcome.wall,
        }
    }

    pub(super) fn json(&self) -> Json {
        let job = |job: &JobDigest| {
            let (rates, times) = (job.rates.json(), job.times.json());
            json!({ "name": job.name, "message_us": times, "connection_gbps": rates, "failures": job.failures })
        };
        json!({
            "seed": self.seed,
            "ended_ns": self.ended_ns,
            "done": self.done,
            "packets": packets(&self.counters),
            "totals": self.totals.json(),
            "workloads": self.jobs.iter().map(job).collect::<Vec<_>>(),
        })
    }

    /// What the summary shows the spread of, with names; the same names for each seed.
    fn values(&self) -> Vec<(String, f64)> {
        let mut values = Vec::new();
        for JobDigest { name, rates, times, .. } in &self.jobs {
            values.extend([
                (format!("{name}: slowest connection, Gb/s"), rates.min),
                (format!("{name}: mean of the connections, Gb/s"), rates.mean),
                (format!("{name}: median message, us"), times.p50),
                (format!("{name}: 99 % of messages, us"), times.p99),
                (format!("{name}: longest message, us"), times.max),
            ]);
        }
        let Totals { hosts, marked, trimmed, dropped, lost, pauses, longest_queue_bytes, .. } = &self.totals;
        let counts = [
            ("data packets sent", hosts.sent),
            ("retransmissions", hosts.repeats),
            ("losses declared", hosts.losses),
            ("timeouts", hosts.timeouts),
            ("packets marked", *marked),
            ("packets trimmed", *trimmed),
            ("packets dropped for lack of room", *dropped),
            ("packets lost", *lost),
            (CNPS, hosts.cnps),
            (NAKS, hosts.sequence_naks),
            (PAUSES, *pauses),
        ];
        values.extend(counts.map(|(name, count)| (name.to_owned(), count as f64)));
        values.push((PAUSED.to_owned(), self.totals.paused_ns as f64 / 1e3));
        values.push(("longest queue, kB".to_owned(), *longest_queue_bytes as f64 / 1e3));
        values.push(("simulated time, us".to_owned(), self.ended_ns as f64 / 1e3));
        values
    }
}

impl JobDigest {
    fn of(job: &JobOutcome) -> Self {
        let first = job.failures.first();
        Self {
            name: job.name.clone(),
            rates: job.gbps(),
            times: job.times_us(),
            failures: job.failures.len(),
            first_failure: first.map(|failure| (failure.at.0, failure.why)),
        }
    }
}

/// What became of packets.
pub(super) fn packets(counters: &NetCounters) -> Json {
    json!({
        "sent": counters.sent,
        "delivered": counters.delivered,
        "dropped": counters.dropped,
        "lost": counters.lost,
        "corrupted": counters.corrupted,
        "duplicated": counters.duplicated,
        "overrun": counters.overrun,
        "unroutable": counters.unroutable,
        "hops": counters.hops,
    })
}

/// A table of how values are spread over seeds; empty for one seed.
pub(super) fn table(digests: &[Digest]) -> String {
    let [first, .., last] = digests else { return String::new() };
    let (count, from, to) = (digests.len(), first.seed, last.seed);
    let mut text =
        format!("\nOver {count} seeds, {from} to {to}:\n\n| | Median | Least | Most |\n|---|---|---|---|\n");
    let all: Vec<_> = digests.iter().map(Digest::values).collect();
    for (number, (name, _)) in first.values().iter().enumerate() {
        let values = all.iter().filter_map(|values| values.get(number)).map(|(_, value)| *value);
        let Spread { p50, min, max, .. } = Spread::of(values.collect());
        if max == 0.0 && [CNPS, NAKS, PAUSES, PAUSED].contains(&name.as_str()) {
            continue;
        }
        let [p50, min, max] = [p50, min, max].map(super::finding::number);
        text += &format!("| {name} | {p50} | {min} | {max} |\n");
    }
    text
}
