//! Claims of plans: expected results of a run, and their check.

use anyhow::Result;
use serde::Deserialize;
use spindrift_fabric::{EvStateCounts, HostSample, LinkSample, Sample};

use super::fault_impact::FaultImpact;
use super::finding::{Finding, Measured};
use super::plan::{Plan, Reader};
use super::report::{Spread, Step};
use super::run::{JobOutcome, Outcome};
use crate::topology;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Measure {
    Payload,
    Sent,
    Repeats,
    Losses,
    Timeouts,
    Marked,
    Trimmed,
    Cnps,
    SequenceNaks,
    AssumedBad,
    Denied,
    LinkRate,
    Queue,
    Pauses,
    PausedTime,
    ConnectionRate,
    MessageTime,
    Failures,
    BypassTime,
}

impl Measure {
    /// The key with which a claim says what it is about, if there is one.
    const fn subject(self) -> &'static str {
        match self {
            Self::Payload
            | Self::Sent
            | Self::Repeats
            | Self::Losses
            | Self::Timeouts
            | Self::Marked
            | Self::Trimmed
            | Self::Cnps
            | Self::SequenceNaks
            | Self::AssumedBad
            | Self::Denied => "hosts",
            Self::LinkRate | Self::Queue | Self::Pauses | Self::PausedTime => "links",
            Self::ConnectionRate | Self::MessageTime | Self::Failures => "workload",
            Self::BypassTime => "faults",
        }
    }

    const fn unit(self) -> &'static str {
        match self {
            Self::Payload | Self::LinkRate | Self::ConnectionRate => " Gb/s",
            Self::Queue => " kB",
            Self::MessageTime | Self::BypassTime | Self::PausedTime => " us",
            _ => "",
        }
    }

    const fn usual_pick(self) -> Pick {
        match self {
            Self::Payload | Self::LinkRate | Self::ConnectionRate => Pick::Mean,
            Self::MessageTime => Pick::P50,
            Self::Queue | Self::BypassTime => Pick::Max,
            _ => Pick::Sum,
        }
    }

    /// What is counted at a host.
    const fn count(self) -> Option<fn(&HostSample) -> u64> {
        Some(match self {
            Self::Payload => |host| host.stats.placed_bytes,
            Self::Sent => |host| host.stats.sent,
            Self::Repeats => |host| host.stats.repeats,
            Self::Losses => |host| host.stats.losses,
            Self::Timeouts => |host| host.stats.timeouts,
            Self::Marked => |host| host.stats.marked,
            Self::Trimmed => |host| host.stats.trimmed,
            Self::Cnps => |host| host.stats.cnps,
            Self::SequenceNaks => |host| host.stats.sequence_naks,
            _ => return None,
        })
    }

    /// Whether it says something of each of several times, and not of what happened in all of them.
    const fn has_intervals(self) -> bool {
        self.count().is_some() || matches!(self, Self::ConnectionRate) || self.is_of_links()
    }

    const fn is_of_links(self) -> bool {
        matches!(self, Self::LinkRate | Self::Queue | Self::Pauses | Self::PausedTime)
    }
}

/// Which of several values, or what of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Pick {
    Min,
    Mean,
    Max,
    Sum,
    P50,
    P90,
    P99,
    P999,
}

impl Pick {
    fn of(self, values: Vec<f64>) -> f64 {
        let spread = Spread::of(values);
        match self {
            Self::Min => spread.min,
            Self::Mean => spread.mean,
            Self::Max => spread.max,
            Self::Sum => spread.mean * spread.count as f64,
            Self::P50 => spread.p50,
            Self::P90 => spread.p90,
            Self::P99 => spread.p99,
            Self::P999 => spread.p999,
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ClaimTable {
    what: Option<String>,
    variant: Option<String>,
    measure: Option<Measure>,
    hosts: Option<String>,
    links: Vec<String>,
    workload: Option<String>,
    pick: Option<Pick>,
    from: Option<String>,
    to: Option<String>,
    interval: Option<String>,
    against: Option<AgainstTable>,
    least: Option<f64>,
    most: Option<f64>,
    why: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct AgainstTable {
    variant: Option<String>,
    from: Option<String>,
    to: Option<String>,
}

/// A claim about a variant.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    what: String,
    measure: Measure,
    subject: Subject,
    pick: Pick,
    window: Window,
    /// Measured in each such time, ns; otherwise once.
    interval_ns: Option<u64>,
    against: Option<(Option<String>, Window)>,
    least: Option<f64>,
    most: Option<f64>,
    why: Option<String>,
}

/// What is measured of.
#[derive(Clone, Debug)]
enum Subject {
    /// Recorded hosts, by their places in the list of them; without names, all that the measure says something of.
    Hosts(Option<Vec<usize>>),
    /// Recorded links, likewise.
    Links(Option<Vec<usize>>),
    /// A workload, or all of them.
    Workload(Option<String>),
    /// Faults, by when they begin.
    Faults,
}

/// From one time to another, in ns; or to the end of the run, whenever that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Window {
    from: u64,
    to: Option<u64>,
}

impl ClaimTable {
    /// The names of variants that the claim is about.
    pub(super) fn variants(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let own = self.variant.as_deref().map(|name| ("variant", name));
        let other = self.against.as_ref().and_then(|against| against.variant.as_deref());
        own.into_iter().chain(other.map(|name| ("against.variant", name)))
    }

    /// Whether it says something about a variant.
    pub(super) fn is_about(&self, variant: &str) -> bool {
        self.variant.as_deref().is_none_or(|name| name == variant)
    }

    /// Reads it as a claim about one; `place` is the name of the table.
    pub(super) fn read(&self, reader: &Reader<'_>, place: &str, plan: &Plan) -> Result<Claim> {
        let wrong = |key: &str, why: &str| reader.wrong(place, key, why);
        let measure = self.measure.ok_or_else(|| wrong("measure", "`measure` is missing"))?;
        let what = self.what.clone().ok_or_else(|| wrong("what", "`what` is missing"))?;
        for (key, given) in [
            ("hosts", self.hosts.is_some()),
            ("links", !self.links.is_empty()),
            ("workload", self.workload.is_some()),
        ] {
            if given && key != measure.subject() {
                let why = format!("does not apply to this measure, whose subject is `{}`", measure.subject());
                return Err(wrong(key, &why));
            }
        }
        let subject = match measure.subject() {
            "hosts" => Subject::Hosts(self.host_places(reader, place, plan)?),
            "links" => Subject::Links(self.link_places(reader, place, plan)?),
            "faults" => Subject::Faults,
            _ => Subject::Workload(self.workload_name(reader, place, plan)?),
        };
        let interval_ns = self.interval_ns(reader, place, plan, measure)?;
        if self.least.is_none() && self.most.is_none() {
            return Err(wrong("what", "a claim needs `least`, `most` or both"));
        }
        let own = window(reader, place, plan, self.from.as_ref(), self.to.as_ref())?;
        let against = self.against.as_ref().map(|against| {
            let inner = format!("{place}.against");
            // What is not given is as in the claim itself.
            let from = against.from.as_ref().or(self.from.as_ref());
            let to = against.to.as_ref().or(self.to.as_ref());
            Ok::<_, anyhow::Error>((against.variant.clone(), window(reader, &inner, plan, from, to)?))
        });
        Ok(Claim {
            what,
            measure,
            subject,
            pick: self.pick.unwrap_or(measure.usual_pick()),
            window: own,
            interval_ns,
            against: against.transpose()?,
            least: self.least,
            most: self.most,
            why: self.why.clone(),
        })
    }

    fn interval_ns(
        &self,
        reader: &Reader<'_>,
        place: &str,
        plan: &Plan,
        measure: Measure,
    ) -> Result<Option<u64>> {
        let Some(text) = &self.interval else { return Ok(None) };
        let wrong = |why: &str| Err(reader.wrong(place, "interval", why));
        let interval_ns = reader.time(place, "interval", Some(text), 0)?;
        if !measure.has_intervals() {
            return wrong("does not apply to this measure, which is counted once; leave it out");
        }
        if interval_ns < plan.sample_ns {
            return wrong("this is shorter than the time between two samples, `plan.sample`");
        }
        Ok(Some(interval_ns))
    }

    fn host_places(&self, reader: &Reader<'_>, place: &str, plan: &Plan) -> Result<Option<Vec<usize>>> {
        let Some(text) = &self.hosts else { return Ok(None) };
        let hosts = reader.hosts(&plan.fabric, place, "hosts", text)?;
        let place_of = |host| plan.hosts.iter().position(|other| *other == host);
        let places: Option<Vec<_>> = hosts.into_iter().map(place_of).collect();
        let places = places.ok_or_else(|| {
            reader.wrong(place, "hosts", "not all of them are recorded; name them in [record] hosts")
        });
        places.map(Some)
    }

    fn link_places(&self, reader: &Reader<'_>, place: &str, plan: &Plan) -> Result<Option<Vec<usize>>> {
        let mut places = Vec::new();
        for (number, text) in self.links.iter().enumerate() {
            let wrong = |why: String| reader.wrong(place, &format!("links.{number}"), &why);
            let way = topology::way(&plan.fabric, text).map_err(wrong)?;
            let known = plan.links.iter().position(|other| *other == way);
            places.push(
                known.ok_or_else(|| wrong("it is not recorded; name it in [record] links".to_owned()))?,
            );
        }
        Ok((!places.is_empty()).then_some(places))
    }

    fn workload_name(&self, reader: &Reader<'_>, place: &str, plan: &Plan) -> Result<Option<String>> {
        let Some(name) = &self.workload else { return Ok(None) };
        let names: Vec<_> = plan.workloads.iter().map(|workload| workload.name.as_str()).collect();
        if !names.contains(&name.as_str()) {
            let why = format!("there is no workload \"{name}\"; there are {}", names.join(", "));
            return Err(reader.wrong(place, "workload", &why));
        }
        Ok(Some(name.clone()))
    }
}

/// Between two times of a table; without them, the whole run.
fn window(
    reader: &Reader<'_>,
    place: &str,
    plan: &Plan,
    from: Option<&String>,
    to: Option<&String>,
) -> Result<Window> {
    let from_ns = reader.offset(place, "from", from)?;
    let to_ns = to.map_or(Ok(plan.duration_ns), |_| reader.offset(place, "to", to))?;
    if to_ns > plan.duration_ns {
        return Err(reader.wrong(place, "to", "the run ends before"));
    }
    if to_ns < from_ns.saturating_add(plan.sample_ns) {
        let key = if to.is_some() { "to" } else { "from" };
        return Err(reader.wrong(place, key, "at least one sample interval is between `from` and `to`"));
    }
    Ok(Window { from: from_ns, to: to.map(|_| to_ns) })
}

/// What came of all claims with one seed, by variant.
pub(super) fn judge(outcomes: &[Outcome]) -> Vec<Vec<Finding>> {
    let of =
        |outcome: &Outcome| outcome.plan.claims.iter().map(|claim| claim.judge(outcome, outcomes)).collect();
    outcomes.iter().map(of).collect()
}

impl Claim {
    fn judge(&self, outcome: &Outcome, all: &[Outcome]) -> Finding {
        let own = self.value(outcome, self.window);
        let (value, unit) = match &self.against {
            None => (own, self.measure.unit()),
            Some((variant, window)) => {
                let other = variant
                    .as_ref()
                    .map_or(Some(outcome), |name| all.iter().find(|other| other.plan.variant == *name));
                let other = other.and_then(|other| self.value(other, *window)).filter(|&other| other != 0.0);
                (own.zip(other).map(|(own, other)| own / other * 100.0), " %")
            }
        };
        let Self { what, least, most, why, .. } = self.clone();
        let measured = vec![Measured { seed: outcome.plan.seed, value }];
        Finding { what, measured, unit, least, most, why }
    }

    /// What is measured in a window; nothing if the run ended before the window does.
    fn value(&self, outcome: &Outcome, window: Window) -> Option<f64> {
        let values = match self.interval_ns {
            None => self.values(outcome, window)?,
            Some(interval_ns) => {
                let parts = window.parts(interval_ns, outcome.ended_ns).into_iter();
                let parts: Option<Vec<_>> = parts.map(|part| self.values(outcome, part)).collect();
                parts?.concat()
            }
        };
        // Nothing that happened may be what is claimed; no message, no rate is not.
        let counted = matches!(self.measure, Measure::Failures) || !values.is_empty();
        counted.then(|| self.pick.of(values))
    }

    fn values(&self, outcome: &Outcome, window: Window) -> Option<Vec<f64>> {
        Some(match &self.subject {
            Subject::Workload(name) => {
                let named = |job: &&JobOutcome| name.as_ref().is_none_or(|name| job.name == *name);
                let ended_ns = outcome.ended_ns;
                outcome.jobs.iter().filter(named).flat_map(|job| self.of_job(job, window, ended_ns)).collect()
            }
            Subject::Hosts(places) => {
                let step = step(outcome, window)?;
                match self.measure.count() {
                    Some(count) => self.of_hosts(&step, count, places.as_deref()),
                    None => self.of_flows(outcome, &step, places.as_deref()),
                }
            }
            Subject::Links(places) => self.of_links(outcome, window, places.as_deref())?,
            Subject::Faults => {
                let within = outcome.impacts.iter().filter(|impact| window.holds(impact.began_ns()));
                within.map(FaultImpact::lasted_us).collect()
            }
        })
    }

    fn of_job(&self, job: &JobOutcome, window: Window, ended_ns: u64) -> Vec<f64> {
        match self.measure {
            Measure::ConnectionRate if window == Window::ALL => job.rates(),
            Measure::ConnectionRate => job.rates_between(window.from, window.to.unwrap_or(ended_ns)),
            Measure::MessageTime => {
                let within = job.messages.iter().filter(|done| window.has_within(done.done.0));
                within.map(|done| done.done.since(done.posted) as f64 / 1e3).collect()
            }
            _ => {
                let failed = |failure: &&spindrift_fabric::Failure| window.has_within(failure.at.0);
                vec![job.failures.iter().filter(failed).count() as f64]
            }
        }
    }

    fn of_hosts(&self, step: &Step<'_>, count: fn(&HostSample) -> u64, places: Option<&[usize]>) -> Vec<f64> {
        let payload = self.measure == Measure::Payload;
        let hosts = step.before.hosts.iter().zip(&step.after.hosts).enumerate();
        // Without names, those that only send have no share in what arrives.
        let hosts = hosts.filter(|(place, (_, after))| {
            places.map_or(!payload || after.stats.placed_bytes > 0, |places| places.contains(place))
        });
        let value = |(_, (before, after)): (usize, (&HostSample, &HostSample))| {
            let (before, after) = (count(before), count(after));
            if payload { step.gbps(before, after) } else { (after - before) as f64 }
        };
        hosts.map(value).collect()
    }

    /// Entropy values of connections that hosts have begun, at the end of a step.
    fn of_flows(&self, outcome: &Outcome, step: &Step<'_>, places: Option<&[usize]>) -> Vec<f64> {
        let count = |evs: &EvStateCounts| match self.measure {
            Measure::AssumedBad => evs.assumed_bad,
            _ => evs.denied,
        };
        let flows = outcome.recorder.watch().flows.iter().zip(&step.after.flows);
        let of_hosts = flows.filter(|(end, _)| {
            let place = outcome.plan.hosts.iter().position(|host| *host == end.host);
            places.is_none_or(|places| place.is_some_and(|place| places.contains(&place)))
        });
        of_hosts.map(|(_, planes)| f64::from(planes.iter().map(count).sum::<u32>())).collect()
    }

    fn of_links(&self, outcome: &Outcome, window: Window, places: Option<&[usize]>) -> Option<Vec<f64>> {
        let step = step(outcome, window)?;
        let chosen = |place: &usize| places.is_none_or(|places| places.contains(place));
        let bytes = |sample: &Sample, place| {
            sample.links.get(place).map_or(0, |link: &LinkSample| link.counters.bytes)
        };
        let rate = |place| step.gbps(bytes(step.before, place), bytes(step.after, place));
        // The peak of a sample is that of the interval before it.
        let queue = |place| {
            let within = outcome.recorder.samples().iter().filter(|sample| window.has_within(sample.at.0));
            let waits = within.filter_map(|sample| sample.links.get(place));
            waits.map(|link: &LinkSample| link.peak_bytes as f64 / 1e3).fold(0.0, f64::max)
        };
        let counter = |place: usize, count: fn(&LinkSample) -> u64| {
            let [before, after] =
                [step.before, step.after].map(|sample| sample.links.get(place).map_or(0, count));
            (after - before) as f64
        };
        let value = |place| match self.measure {
            Measure::LinkRate => rate(place),
            Measure::Pauses => counter(place, |link| link.counters.pauses),
            Measure::PausedTime => counter(place, |link| link.counters.paused_ns) / 1e3,
            _ => queue(place),
        };
        Some((0..outcome.links.len()).filter(chosen).map(value).collect())
    }
}

impl Window {
    /// The whole run.
    const ALL: Self = Self { from: 0, to: None };

    /// Parts of this length, one after the other, up to its end or that of the run. What is left over is in none.
    fn parts(self, interval_ns: u64, ended_ns: u64) -> Vec<Self> {
        let to = self.to.unwrap_or(ended_ns);
        let count = to.saturating_sub(self.from) / interval_ns.max(1);
        let part = |number| {
            let from = self.from + number * interval_ns;
            Self { from, to: Some(from + interval_ns) }
        };
        (0..count).map(part).collect()
    }

    fn holds(self, at_ns: u64) -> bool {
        self.from <= at_ns && self.to.is_none_or(|to| at_ns <= to)
    }

    /// Likewise, without its first moment: of two windows that meet, an event is in one.
    fn has_within(self, at_ns: u64) -> bool {
        self.from < at_ns && self.holds(at_ns)
    }
}

/// From the first sample in a window to the last one.
fn step(outcome: &Outcome, window: Window) -> Option<Step<'_>> {
    let mut within = outcome.recorder.samples().iter().filter(|sample| window.holds(sample.at.0));
    let before = within.next()?;
    let after = within.next_back()?;
    // All but what a sample leaves over is there.
    let reaches = window.to.is_none_or(|to| after.at.0.saturating_add(outcome.plan.sample_ns) > to);
    reaches.then_some(Step { before, after })
}
