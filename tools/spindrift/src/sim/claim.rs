//! Claims of plans: expected results of a run, and their check.

use std::borrow::Cow;

use anyhow::Result;
use serde::Deserialize;
use serde_json::{Value as Json, json};
use spindrift_fabric::{EvStateCounts, HostSample, LinkSample, Sample};

use super::fault_impact::FaultImpact;
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
    AssumedBad,
    Denied,
    LinkRate,
    Queue,
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
            | Self::AssumedBad
            | Self::Denied => "hosts",
            Self::LinkRate | Self::Queue => "links",
            Self::ConnectionRate | Self::MessageTime | Self::Failures => "workload",
            Self::BypassTime => "faults",
        }
    }

    const fn unit(self) -> &'static str {
        match self {
            Self::Payload | Self::LinkRate | Self::ConnectionRate => " Gb/s",
            Self::Queue => " kB",
            Self::MessageTime | Self::BypassTime => " us",
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
            _ => return None,
        })
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

/// From one time to another, in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Window {
    from: u64,
    to: u64,
}

/// What came of a claim.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Finding {
    pub(super) what: String,
    /// What was measured; nothing if it could not be.
    pub(super) value: Option<f64>,
    pub(super) unit: &'static str,
    pub(super) least: Option<f64>,
    pub(super) most: Option<f64>,
    /// Why it does not hold, if that is known.
    pub(super) why: Option<String>,
}

impl Finding {
    pub(super) fn holds(&self) -> bool {
        let within = |value: f64| {
            self.least.is_none_or(|least| value >= least) && self.most.is_none_or(|most| value <= most)
        };
        self.value.is_some_and(within)
    }

    pub(super) fn measured(&self) -> String {
        let value = |value| format!("{}{}", number(value), self.unit);
        self.value.map_or_else(|| "no data in that time".to_owned(), value)
    }

    pub(super) fn claimed(&self) -> String {
        match (self.least, self.most) {
            (Some(least), Some(most)) => format!("{} to {}", number(least), number(most)),
            (Some(least), None) => format!("at least {}", number(least)),
            (None, Some(most)) => format!("at most {}", number(most)),
            (None, None) => String::new(),
        }
    }

    pub(super) fn verdict(&self) -> Cow<'_, str> {
        match (self.holds(), &self.why) {
            (true, _) => "holds".into(),
            (false, None) => "DOES NOT HOLD".into(),
            (false, Some(why)) => format!("does not hold: {why}").into(),
        }
    }

    /// All of it.
    pub(super) fn line(&self) -> String {
        format!("{}: {} ({}), {}", self.what, self.measured(), self.claimed(), self.verdict())
    }

    pub(super) fn json(&self) -> Json {
        let Self { what, value, unit, least, most, why } = self;
        let unit = unit.trim_start();
        json!({ "what": what, "value": value, "unit": unit, "least": least, "most": most, "holds": self.holds(), "why": why })
    }
}

/// As many digits as say something.
fn number(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        _ => 2,
    };
    let text = format!("{value:.digits$}");
    match text.split_once('.') {
        Some((whole, rest)) if rest.bytes().all(|digit| digit == b'0') => whole.to_owned(),
        _ => text,
    }
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
        for (key, given) in [("from", self.from.is_some()), ("to", self.to.is_some())] {
            if given && measure == Measure::ConnectionRate {
                return Err(wrong(key, "this is measured from a connection's first message to its last"));
            }
        }
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
            against: against.transpose()?,
            least: self.least,
            most: self.most,
            why: self.why.clone(),
        })
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
    Ok(Window { from: from_ns, to: to_ns })
}

/// What came of all claims, by variant.
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
        Finding { what, value, unit, least, most, why }
    }

    /// What is measured in a window; nothing if the run ended before.
    fn value(&self, outcome: &Outcome, window: Window) -> Option<f64> {
        let values = match &self.subject {
            Subject::Workload(name) => {
                let named = |job: &&JobOutcome| name.as_ref().is_none_or(|name| job.name == *name);
                outcome.jobs.iter().filter(named).flat_map(|job| self.of_job(job, window)).collect()
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
        };
        // Nothing that happened may be what is claimed; no message, no rate is not.
        let counted = matches!(self.measure, Measure::Failures) || !values.is_empty();
        counted.then(|| self.pick.of(values))
    }

    fn of_job(&self, job: &JobOutcome, window: Window) -> Vec<f64> {
        match self.measure {
            Measure::ConnectionRate => job.rates(),
            Measure::MessageTime => {
                let within =
                    job.messages.iter().filter(|done| window.from < done.done.0 && done.done.0 <= window.to);
                within.map(|done| done.done.since(done.posted) as f64 / 1e3).collect()
            }
            _ => {
                let failed = |failure: &&spindrift_fabric::Failure| {
                    window.from < failure.at.0 && failure.at.0 <= window.to
                };
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
        let queue = |place| {
            let within = outcome.recorder.samples().iter().filter(|sample| window.holds(sample.at.0));
            let waits = within.filter_map(|sample| sample.links.get(place));
            waits.map(|link: &LinkSample| link.queued_bytes as f64 / 1e3).fold(0.0, f64::max)
        };
        let value = |place| if self.measure == Measure::LinkRate { rate(place) } else { queue(place) };
        Some((0..outcome.links.len()).filter(chosen).map(value).collect())
    }
}

impl Window {
    fn holds(self, at_ns: u64) -> bool {
        self.from <= at_ns && at_ns <= self.to
    }
}

/// From the first sample in a window to the last one.
fn step(outcome: &Outcome, window: Window) -> Option<Step<'_>> {
    let mut within = outcome.recorder.samples().iter().filter(|sample| window.holds(sample.at.0));
    let before = within.next()?;
    let after = within.next_back()?;
    // All but what a sample leaves over is there.
    let reaches = after.at.0.saturating_add(outcome.plan.sample_ns) > window.to;
    reaches.then_some(Step { before, after })
}
