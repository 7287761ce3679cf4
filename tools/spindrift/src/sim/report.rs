//! Results of a run as text, tables and JSON.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};
use hdrhistogram::Histogram;
use serde_json::{Value as Json, json};
use spindrift_fabric::{Done, EvStateCounts, LinkSample, Sample};
use spindrift_srv6::Node;

use super::batch::Played;
use super::digest::{self, Digest, JobDigest};
use super::fault_impact::{FaultImpact, spread_us};
use super::finding::Finding;
use super::nic::TransportKind;
use super::run::{JobOutcome, Outcome};
use super::slowdown;
use crate::output::write_file;
use crate::units::{count, format_rate};

/// Writes all results to a folder. Returns the summary, and what is in `result.json`.
pub(super) fn write(played: &Played, folder: &Path) -> Result<(String, Json)> {
    let (summary, outcomes) = (summary(played), &played.outcomes);
    write_file(folder, "summary.md", |file| file.write_all(summary.as_bytes()))?;
    write_file(folder, "samples.csv", |file| samples(outcomes, file))?;
    write_file(folder, "links.csv", |file| links(outcomes, file))?;
    write_file(folder, "evs.csv", |file| evs(outcomes, file))?;
    write_file(folder, "messages.csv", |file| messages(outcomes, file))?;
    write_file(folder, "latency.csv", |file| latency(outcomes, file))?;
    write_file(folder, "slowdown.csv", |file| slowdown::table(outcomes, file))?;
    let object = object(played);
    let mut text = serde_json::to_string_pretty(&object)?;
    text.push('\n');
    write_file(folder, "result.json", |file| file.write_all(text.as_bytes()))?;
    Ok((summary, object))
}

/// Which claims of a plan hold.
pub(super) fn in_short(played: &Played) -> String {
    let mut text = format!("{}: {}", played.plan_file.name, holding(played.findings.iter().flatten()));
    for finding in played.findings.iter().flatten().filter(|finding| !finding.holds()) {
        text += "\n  ";
        text += &finding.line();
    }
    text
}

/// How many claims of several plans hold.
pub(super) fn all_in_short(played: &[Played]) -> String {
    let findings = played.iter().flat_map(|played| played.findings.iter().flatten());
    format!("{}: {}", count(played.len() as u64, "plan"), holding(findings))
}

fn holding<'a>(findings: impl Iterator<Item = &'a Finding> + Clone) -> String {
    let (all, holding) =
        (findings.clone().count(), findings.clone().filter(|finding| finding.holds()).count());
    let verb = if holding == 1 { "holds" } else { "hold" };
    let text = format!("{holding} of {} {verb}", count(all as u64, "claim"));
    match findings.map(|finding| finding.measured.len()).max() {
        Some(seeds) if seeds > 1 => format!("{text} with all {seeds} seeds"),
        _ => text,
    }
}

/// What was there at the end of an interval, and at its beginning.
pub(super) struct Step<'a> {
    pub(super) before: &'a Sample,
    pub(super) after: &'a Sample,
}

impl Step<'_> {
    fn time_us(&self) -> f64 {
        self.after.at.0 as f64 / 1e3
    }

    /// Bytes that have been added, as Gb/s.
    pub(super) fn gbps(&self, before: u64, after: u64) -> f64 {
        (after - before) as f64 * 8.0 / self.after.at.since(self.before.at).max(1) as f64
    }
}

fn steps(outcome: &Outcome) -> impl Iterator<Item = Step<'_>> {
    let samples = outcome.recorder.samples();
    samples.iter().zip(samples.iter().skip(1)).map(|(before, after)| Step { before, after })
}

/// One row for each interval and host.
fn samples(outcomes: &[Outcome], out: &mut impl Write) -> io::Result<()> {
    let planes = outcomes.iter().map(|outcome| outcome.plan.clos.planes).max().unwrap_or_default();
    write!(out, "variant,time_us,host,gbps,sent,repeats,losses,timeouts,marked,trimmed,cnps,sequence_naks")?;
    for plane in 0..planes {
        write!(out, ",p{plane}_gbps")?;
    }
    writeln!(out)?;
    for outcome in outcomes {
        for step in steps(outcome) {
            let hosts = outcome.plan.hosts.iter().zip(step.before.hosts.iter().zip(&step.after.hosts));
            for (host, (before, after)) in hosts {
                let name = outcome.plan.fabric.name(Node::Host(host.0 as u16));
                let (a, b) = (&before.stats, &after.stats);
                let gbps = step.gbps(a.placed_bytes, b.placed_bytes);
                write!(out, "{},{:.3},{name},{gbps:.6}", outcome.plan.variant, step.time_us())?;
                for (before, after) in [
                    (a.sent, b.sent),
                    (a.repeats, b.repeats),
                    (a.losses, b.losses),
                    (a.timeouts, b.timeouts),
                    (a.marked, b.marked),
                    (a.trimmed, b.trimmed),
                    (a.cnps, b.cnps),
                    (a.sequence_naks, b.sequence_naks),
                ] {
                    write!(out, ",{}", after - before)?;
                }
                for plane in 0..usize::from(planes) {
                    match (before.plane_bytes.get(plane), after.plane_bytes.get(plane)) {
                        (Some(&before), Some(&after)) => write!(out, ",{:.6}", step.gbps(before, after))?,
                        _ => write!(out, ",")?,
                    }
                }
                writeln!(out)?;
            }
        }
    }
    Ok(())
}

/// One row for each interval and direction of a link.
fn links(outcomes: &[Outcome], out: &mut impl Write) -> io::Result<()> {
    writeln!(
        out,
        "variant,time_us,link,gbps,queued_bytes,peak_bytes,marked,trimmed,dropped,lost,pauses,paused_us"
    )?;
    for outcome in outcomes {
        for step in steps(outcome) {
            let links = outcome.links.iter().zip(step.before.links.iter().zip(&step.after.links));
            for (name, (before, after)) in links {
                let (a, b) = (before.counters, after.counters);
                let dropped = |link: &LinkSample| {
                    let queue = link.counters.queue;
                    queue.dropped_data + queue.dropped_control + link.counters.overflowed
                };
                let lost = |link: &LinkSample| link.counters.lost_down + link.counters.lost_impaired;
                writeln!(
                    out,
                    "{},{:.3},{name},{:.6},{},{},{},{},{},{},{},{:.3}",
                    outcome.plan.variant,
                    step.time_us(),
                    step.gbps(a.bytes, b.bytes),
                    after.queued_bytes,
                    after.peak_bytes,
                    b.queue.marked - a.queue.marked,
                    b.queue.trimmed - a.queue.trimmed,
                    dropped(after) - dropped(before),
                    lost(after) - lost(before),
                    b.pauses - a.pauses,
                    (b.paused_ns - a.paused_ns) as f64 / 1e3,
                )?;
            }
        }
    }
    Ok(())
}

/// One row for each sample, flow and plane.
fn evs(outcomes: &[Outcome], out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "variant,time_us,flow,plane,good,skip,reserve,assumed_bad,denied,closed")?;
    for outcome in outcomes {
        for sample in outcome.recorder.samples() {
            for (flow, planes) in outcome.flows.iter().zip(&sample.flows) {
                for (plane, evs) in planes.iter().enumerate() {
                    let EvStateCounts { good, skip, reserve, assumed_bad, denied, closed } = evs;
                    let time_us = sample.at.0 as f64 / 1e3;
                    write!(out, "{},{time_us:.3},{flow},{plane}", outcome.plan.variant)?;
                    writeln!(out, ",{good},{skip},{reserve},{assumed_bad},{denied},{closed}")?;
                }
            }
        }
    }
    Ok(())
}

/// One row for each message that is complete.
fn messages(outcomes: &[Outcome], out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "variant,workload,from,to,bytes,posted_ns,complete_ns")?;
    for outcome in outcomes {
        for job in &outcome.jobs {
            for Done { side, len, posted, done } in &job.messages {
                let Some(&(first, second)) = job.pairs.get(side.pair as usize) else { continue };
                let (from, to) = if side.second { (second, first) } else { (first, second) };
                let name =
                    |host: spindrift_fabric::HostId| outcome.plan.fabric.name(Node::Host(host.0 as u16));
                let (from, to) = (name(from), name(to));
                let variant = &outcome.plan.variant;
                writeln!(out, "{variant},{},{from},{to},{len},{},{}", job.name, posted.0, done.0)?;
            }
        }
    }
    Ok(())
}

/// Significant digits of the times in histograms.
const TIME_DIGITS: u8 = 2;

/// A histogram for each workload: one row for each time that messages took, with those that took no longer.
fn latency(outcomes: &[Outcome], out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "variant,workload,up_to_us,messages,percent")?;
    for outcome in outcomes {
        for job in &outcome.jobs {
            let mut histogram = Histogram::<u64>::new(TIME_DIGITS).map_err(io::Error::other)?;
            for ns in job.times_ns() {
                histogram.record(ns).map_err(io::Error::other)?;
            }
            for bar in histogram.iter_recorded() {
                let (up_to_us, count) = (bar.value_iterated_to() as f64 / 1e3, bar.count_at_value());
                write!(out, "{},{},{up_to_us:.3},{count}", outcome.plan.variant, job.name)?;
                writeln!(out, ",{:.4}", bar.percentile())?;
            }
        }
    }
    Ok(())
}

/// How values are spread.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Spread {
    pub(super) count: usize,
    pub(super) mean: f64,
    pub(super) min: f64,
    pub(super) p50: f64,
    pub(super) p90: f64,
    pub(super) p99: f64,
    pub(super) p999: f64,
    pub(super) max: f64,
}

impl Spread {
    /// Of some values: percentiles are values that are there, by nearest rank.
    pub(super) fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let count = values.len();
        let rank = |share: f64| {
            let rank = (share * count as f64).ceil() as usize;
            values.get(rank.clamp(1, count.max(1)) - 1).copied().unwrap_or_default()
        };
        Self {
            count,
            // The sum of nothing is -0.
            mean: (values.iter().sum::<f64>() + 0.0) / count.max(1) as f64,
            min: rank(0.0),
            p50: rank(0.5),
            p90: rank(0.9),
            p99: rank(0.99),
            p999: rank(0.999),
            max: rank(1.0),
        }
    }

    pub(super) fn json(self) -> Json {
        let Self { count, mean, min, p50, p90, p99, p999, max } = self;
        json!({ "count": count, "mean": mean, "min": min, "p50": p50, "p90": p90, "p99": p99, "p99.9": p999, "max": max })
    }
}

impl JobOutcome {
    /// How long messages took, from when they were ordered to when their senders knew of their arrival.
    fn times_ns(&self) -> impl Iterator<Item = u64> {
        self.messages.iter().map(|done| done.done.since(done.posted))
    }

    pub(super) fn times_us(&self) -> Spread {
        Spread::of(self.times_ns().map(|ns| ns as f64 / 1e3).collect())
    }

    pub(super) fn gbps(&self) -> Spread {
        Spread::of(self.rates())
    }

    /// Payload of each connection from its first order to its last completion, in Gb/s.
    pub(super) fn rates(&self) -> Vec<f64> {
        let mut ways = vec![(0_u64, u64::MAX, 0); self.pairs.len()];
        for done in &self.messages {
            let Some((bytes, first, last)) = ways.get_mut(done.side.pair as usize) else { continue };
            *bytes += u64::from(done.len);
            (*first, *last) = ((*first).min(done.posted.0), done.done.0);
        }
        let rates = ways.into_iter().filter(|(bytes, ..)| *bytes > 0);
        rates.map(|(bytes, first, last)| bytes as f64 * 8.0 / (last - first).max(1) as f64).collect()
    }
}

impl JobOutcome {
    /// Payload of each connection in the messages that were complete after one time and up to another, ns, in Gb/s.
    pub(super) fn rates_between(&self, from_ns: u64, to_ns: u64) -> Vec<f64> {
        let mut bytes = vec![0_u64; self.pairs.len()];
        for done in self.messages.iter().filter(|done| done.done.0 > from_ns && done.done.0 <= to_ns) {
            if let Some(bytes) = bytes.get_mut(done.side.pair as usize) {
                *bytes += u64::from(done.len);
            }
        }
        let time_ns = to_ns.saturating_sub(from_ns).max(1);
        bytes.into_iter().map(|bytes| bytes as f64 * 8.0 / time_ns as f64).collect()
    }
}

fn object(Played { plan_file, outcomes, findings, digests }: &Played) -> Json {
    let job = |outcome: &Outcome, job: &JobOutcome| {
        let failures = job.failures.iter().map(
            |failure| json!({ "at_ns": failure.at.0, "connection": failure.side.pair, "why": failure.why }),
        );
        json!({
            "name": job.name,
            "connections": job.pairs.len(),
            "qps": job.qps,
            "finished_ns": job.finished_ns,
            "messages_not_begun": job.left.map(|[not_begun, _]| not_begun),
            "messages_under_way": job.left.map(|[_, under_way]| under_way),
            "bytes": job.messages.iter().map(|done| u64::from(done.len)).sum::<u64>(),
            "message_us": job.times_us().json(),
            "slowdown": slowdown::json(outcome, job),
            "connection_gbps": job.gbps().json(),
            "failures": failures.collect::<Vec<_>>(),
        })
    };
    let variant = |((outcome, findings), digests): ((&Outcome, &Vec<Finding>), &Vec<Digest>)| {
        let events = told(outcome).map(|(at_ns, what, impact)| {
            let (lost, last_ns) = (impact.map(|impact| impact.lost), impact.and_then(FaultImpact::last_ns));
            json!({ "at_ns": at_ns, "what": what, "lost": lost, "last_lost_ns": last_ns })
        });
        json!({
            "variant": outcome.plan.variant,
            "seed": outcome.plan.seed,
            "hosts": outcome.plan.fabric.hosts().len(),
            "planes": outcome.plan.clos.planes,
            "transport": outcome.plan.nics.kind().name(),
            "ended_ns": outcome.ended_ns,
            "done": outcome.done,
            "workloads": outcome.jobs.iter().map(|of| job(outcome, of)).collect::<Vec<_>>(),
            "events": events.collect::<Vec<_>>(),
            "claims": findings.iter().map(Finding::json).collect::<Vec<_>>(),
            "packets": digest::packets(&outcome.counters),
            "totals": outcome.totals.json(),
            "seeds": digests.iter().map(Digest::json).collect::<Vec<_>>(),
        })
    };
    json!({
        "plan": plan_file.name,
        // The former name of the field, for one version.
        "experiment": plan_file.name,
        "title": plan_file.title,
        "version": env!("CARGO_PKG_VERSION"),
        "variants": outcomes.iter().zip(findings).zip(digests).map(variant).collect::<Vec<_>>(),
    })
}

/// A page in Markdown.
fn summary(Played { plan_file, outcomes, findings, digests }: &Played) -> String {
    let mut page = format!("# {}\n", plan_file.title);
    for ((outcome, findings), digests) in outcomes.iter().zip(findings).zip(digests) {
        if !outcome.plan.variant.is_empty() {
            let _ = write!(page, "\n## {}\n", outcome.plan.variant);
        }
        if digests.len() > 1 {
            let _ = write!(page, "\nWith seed {}, the first:\n", outcome.plan.seed);
        }
        page += &summary_of(outcome);
        page += &digest::table(digests);
        if !findings.is_empty() {
            page += if digests.len() > 1 {
                "\nClaims, with the median and the range over all seeds:\n\n"
            } else {
                "\nClaims:\n\n"
            };
        }
        for finding in findings {
            let _ = writeln!(page, "- {}", finding.line());
        }
    }
    page
}

fn summary_of(outcome: &Outcome) -> String {
    let (clos, mut page) = (&outcome.plan.clos, String::new());
    let hosts = count(outcome.plan.fabric.hosts().len() as u64, "host");
    let planes = count(clos.planes.into(), "plane");
    let _ = writeln!(
        page,
        "\n{hosts}, {planes} of {}{}, {:.3} ms simulated{}.\n",
        format_rate(clos.host_rate_bps),
        if outcome.plan.nics.kind() == TransportKind::Roce { ", RoCE" } else { "" },
        outcome.ended_ns as f64 / 1e6,
        if outcome.done { ", all work done" } else { "" }
    );
    for job in &outcome.jobs {
        let (times, rates) = (job.times_us(), job.gbps());
        let _ = writeln!(
            page,
            "- {}: {}, {}; each {:.3} to {:.3} Gb/s, mean {:.3}; a message took {:.3} us (median), {:.3} (99 %), {:.3} (longest)",
            job.name,
            connections(job),
            count(times.count as u64, "message"),
            rates.min,
            rates.max,
            rates.mean,
            times.p50,
            times.p99,
            times.max,
        );
        page += &slowdown::line(outcome, job);
        page += &unfinished(job);
        if let Some(failure) = job.failures.first() {
            let failed = count(job.failures.len() as u64, "FAILURE");
            let _ = writeln!(
                page,
                "  {failed}, the first at {:.3} ms: {}",
                failure.at.0 as f64 / 1e6,
                failure.why
            );
        }
    }
    let counters = &outcome.counters;
    let _ = writeln!(
        page,
        "- {} packets sent, {} dropped, {} lost, {} corrupted, {} duplicated",
        counters.sent, counters.dropped, counters.lost, counters.corrupted, counters.duplicated
    );
    page += &outcome.totals.lines();
    for (at_ns, what, impact) in told(outcome) {
        let _ = write!(page, "- at {:.3} ms, {what}", at_ns as f64 / 1e6);
        if let Some(impact) = impact.filter(|impact| impact.lost > 0) {
            let lost = count(impact.lost, "data packet");
            let _ = write!(page, "; {lost} lost there, the last {:.3} us later", impact.lasted_us());
        }
        page.push('\n');
    }
    if outcome.impacts.len() > 1 {
        let Spread { count: faults, min, p50, p90, p99, max, .. } = spread_us(&outcome.impacts);
        let _ = writeln!(
            page,
            "- of {faults} faults, the last data packet was lost {min:.3} us (least), {p50:.3} (median), {p90:.3} (90 %), {p99:.3} (99 %), {max:.3} (most) after it began"
        );
    }
    page
}

/// How many there are, and of how many queue pairs if these are several.
fn connections(job: &JobOutcome) -> String {
    let connections = count(job.pairs.len() as u64, "connection");
    match job.qps {
        1 => connections,
        qps => format!("{connections} of {qps} queue pairs"),
    }
}

/// A line about the messages of a list that the end came before.
fn unfinished(job: &JobOutcome) -> String {
    match job.left {
        None | Some([0, 0]) => String::new(),
        Some([not_begun, under_way]) => format!(
            "  not complete at the end: {}, of which {not_begun} had not begun\n",
            count((not_begun + under_way) as u64, "message")
        ),
    }
}

/// When what happened; and if it was the beginning of a fault, what that cost.
fn told(outcome: &Outcome) -> impl Iterator<Item = (u64, &str, Option<&FaultImpact>)> {
    let mut impacts = outcome.impacts.iter();
    outcome.events.iter().map(move |(at_ns, what, begins)| {
        (*at_ns, what.as_str(), if *begins { impacts.next() } else { None })
    })
}

/// How fast it went, all in all within a time.
pub(super) fn speed<'a>(digests: impl Iterator<Item = &'a Digest>, wall: Duration) -> String {
    let (mut hops, mut busy) = (0, 0.0);
    for digest in digests {
        hops += digest.counters.hops;
        busy += digest.wall.as_secs_f64();
    }
    let rate = hops as f64 / busy.max(1e-9) / 1e6;
    format!(
        "{:.1} million packet-hops in {:.1} s, {rate:.2} million/s on a processor",
        hops as f64 / 1e6,
        wall.as_secs_f64()
    )
}

/// An error if a connection failed, or if a claim does not hold and nobody says why.
pub(super) fn check(Played { outcomes, findings, digests, .. }: &Played) -> Result<()> {
    for ((outcome, findings), digests) in outcomes.iter().zip(findings).zip(digests) {
        let variant = &outcome.plan.variant;
        let of = if variant.is_empty() { String::new() } else { format!(" of variant {variant}") };
        if let Some(finding) = findings.iter().find(|finding| !finding.holds() && finding.why.is_none()) {
            bail!("a claim{of} does not hold: {}", finding.line());
        }
        for digest in digests {
            let with = if digests.len() > 1 { format!(" with seed {}", digest.seed) } else { String::new() };
            for JobDigest { name, first_failure, .. } in &digest.jobs {
                if let Some((at_ns, why)) = first_failure {
                    bail!("workload {name}{of}: a connection failed at {at_ns} ns{with}: {why}");
                }
            }
        }
    }
    Ok(())
}
