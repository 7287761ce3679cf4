//! Pictures of a plan: values over time, or results of each variant.

use spindrift_fabric::{EvStateCounts, HostId, HostSample, LinkSample, Sample};
use spindrift_srv6::Node;

use super::plan::FigureKind;
use super::report::{Spread, Step};
use super::run::{JobOutcome, Outcome};
use crate::figure::{
    ARRIVED, BAD, Bars, Column, Content, DENIED, DOWN, FAULT, Group, Key, LINES, LOST, Line, Mark, Page,
    Panel, Picture, REPAIR, RESERVE, SKIPPED, Series, StackedArea, USED,
};

/// Intervals that a picture shows. Of longer plans each is several of the tables'.
const MAX_STEPS: usize = 1000;
/// Most of a kind that are drawn one by one.
const MAX_LINES: usize = 8;
/// Experiments up to this long have an axis in us.
const SHORT_NS: u64 = 10_000_000;

/// Entropy values by state: name, colour, and how many there are of it.
type StateCount = fn(&EvStateCounts) -> u32;
const STATES: [(&str, &str, StateCount); 6] = [
    ("good", USED, |evs| evs.good),
    ("skipped once", SKIPPED, |evs| evs.skip),
    ("in reserve", RESERVE, |evs| evs.reserve),
    ("assumed bad", BAD, |evs| evs.assumed_bad),
    ("denied", DENIED, |evs| evs.denied),
    ("plane closed", DOWN, |evs| evs.closed),
];

/// Of the values of a spread: name, colour and which.
type Pick = fn(&Spread) -> f64;
const RATES: [(&str, &str, Pick); 3] = [
    ("slowest", LINES[4], |spread| spread.min),
    ("mean", LINES[0], |spread| spread.mean),
    ("fastest", LINES[2], |spread| spread.max),
];
const TIMES: [(&str, &str, Pick); 3] = [
    ("median", LINES[0], |spread| spread.p50),
    ("99 %", LINES[1], |spread| spread.p99),
    ("longest", LINES[5], |spread| spread.max),
];

pub(super) fn draw(kind: FigureKind, title: &str, outcomes: &[Outcome]) -> Picture {
    match kind {
        FigureKind::Time => over_time(title, outcomes),
        FigureKind::Variants => of_variants(title, outcomes),
    }
}

/// A column for each variant.
fn over_time(title: &str, outcomes: &[Outcome]) -> Picture {
    let end_ns = outcomes.iter().map(|outcome| outcome.ended_ns).max().unwrap_or_default();
    let axis = if end_ns <= SHORT_NS { Axis { unit: "us", ns: 1e3 } } else { Axis { unit: "ms", ns: 1e6 } };
    let column = |outcome: &Outcome| {
        let chart = Chart::new(axis, outcome);
        Column {
            heading: outcome.plan.variant.clone(),
            panels: vec![
                chart.goodput(),
                chart.connections(),
                chart.planes(),
                chart.packets(),
                chart.repeats(),
                chart.link_rates(),
                chart.queues(),
                chart.paused(),
                chart.states(),
            ],
            marks: outcome.events.iter().map(|event| axis.mark(event)).collect(),
        }
    };
    let columns = outcomes.iter().map(column).collect();
    Page { title, x_label: axis.unit, x_max: Some(end_ns as f64 / axis.ns), columns }.draw()
}

/// The horizontal axis.
#[derive(Clone, Copy, Debug)]
struct Axis {
    unit: &'static str,
    /// Nanoseconds of a unit.
    ns: f64,
}

impl Axis {
    fn mark(self, (at_ns, what, begins): &(u64, String, bool)) -> Mark {
        let at = *at_ns as f64 / self.ns;
        let color = if *begins { FAULT } else { REPAIR };
        Mark { at, color, description: format!("at {at:.3} {}, {what}", self.unit) }
    }
}

/// What the panels of a variant are drawn from.
struct Chart<'a> {
    outcome: &'a Outcome,
    steps: Vec<Step<'a>>,
    /// The middle of each step.
    x: Vec<f64>,
    /// How long a step is, with its unit.
    step: String,
}

impl<'a> Chart<'a> {
    fn new(axis: Axis, outcome: &'a Outcome) -> Self {
        let samples = outcome.recorder.samples();
        let each = samples.len().div_ceil(MAX_STEPS).max(1);
        let kept: Vec<_> = samples.iter().step_by(each).collect();
        let steps: Vec<_> =
            kept.iter().zip(kept.iter().skip(1)).map(|(before, after)| Step { before, after }).collect();
        let x =
            steps.iter().map(|step| (step.before.at.0 + step.after.at.0) as f64 / 2.0 / axis.ns).collect();
        let length_us = outcome.plan.sample_ns as f64 * each as f64 / 1e3;
        Self { outcome, steps, x, step: format!("{length_us} us") }
    }

    /// A line with a value for each step.
    fn line(&self, key: Key, value: impl Fn(&Step<'a>) -> f64) -> Line {
        let values = self.steps.iter().map(value);
        Line::new(key, self.x.iter().copied().zip(values).collect())
    }

    /// A line for each of a few; of many, the most, the mean and the least.
    fn lines(&self, names: &[String], value: impl Fn(&Step<'a>, usize) -> f64) -> Content {
        if names.len() <= MAX_LINES {
            let line = |((number, name), color): ((usize, &String), &&'static str)| {
                self.line(Key::new(name, color), |step| value(step, number))
            };
            return Content::Lines(names.iter().enumerate().zip(LINES.iter().cycle()).map(line).collect());
        }
        let of = |step: &Step<'a>| Spread::of((0..names.len()).map(|number| value(step, number)).collect());
        let picks: [(&str, &str, Pick); 3] = [
            ("most", LINES[2], |spread| spread.max),
            ("mean", LINES[0], |spread| spread.mean),
            ("least", LINES[5], |spread| spread.min),
        ];
        let line = |(name, color, pick): (&str, &'static str, Pick)| {
            self.line(Key::new(&format!("{name} of {}", names.len()), color), |step| pick(&of(step)))
        };
        Content::Lines(picks.map(line).into())
    }

    /// The recorded hosts, and their names, of which there is more than nothing at the end.
    fn hosts_with(&self, value: impl Fn(&Sample, usize) -> u64) -> (Vec<usize>, Vec<String>) {
        let plan = &self.outcome.plan;
        let hosts = plan.hosts.iter().enumerate();
        hosts
            .filter(|(number, _)| self.steps.last().is_some_and(|step| value(step.after, *number) > 0))
            .map(|(number, host)| (number, plan.fabric.name(Node::Host(host.0 as u16))))
            .unzip()
    }

    /// Of the hosts that receive anything.
    fn goodput(&self) -> Panel {
        let placed = |sample: &Sample, number: usize| {
            sample.hosts.get(number).map_or(0, |host: &HostSample| host.stats.placed_bytes)
        };
        let (hosts, names) = self.hosts_with(placed);
        let gbps = |step: &Step<'_>, index: usize| {
            let number = hosts.get(index).copied().unwrap_or_default();
            step.gbps(placed(step.before, number), placed(step.after, number))
        };
        Panel::new("payload, Gb/s", self.lines(&names, gbps))
    }

    /// Of each connection, in messages that were complete; nothing where no host receives from two, which is then that of the hosts.
    fn connections(&self) -> Panel {
        let name = |host: HostId| self.outcome.plan.fabric.name(Node::Host(host.0 as u16));
        if !receive_from_several(&self.outcome.jobs) {
            return Panel::new("connections, Gb/s", Content::Lines(Vec::new()));
        }
        let pairs = self.outcome.jobs.iter().flat_map(|job| &job.pairs);
        let names = pairs.map(|&(from, to)| format!("{}-{}", name(from), name(to)));
        let rates: Vec<Vec<f64>> = self
            .steps
            .iter()
            .map(|step| {
                let (from, to) = (step.before.at.0, step.after.at.0);
                self.outcome.jobs.iter().flat_map(|job| job.rates_between(from, to)).collect()
            })
            .collect();
        let number = |step: &Step<'_>| self.steps.partition_point(|other| other.after.at < step.after.at);
        let gbps = |step: &Step<'_>, connection: usize| {
            rates.get(number(step)).and_then(|rates| rates.get(connection)).copied().unwrap_or_default()
        };
        Panel::new("connections, Gb/s", self.lines(&names.collect::<Vec<_>>(), gbps))
    }

    /// What came in over each plane at the recorded hosts; nothing where there is one.
    fn planes(&self) -> Panel {
        let planes = usize::from(self.outcome.plan.clos.planes);
        let names: Vec<_> =
            (0..planes).filter(|_| planes > 1).map(|plane| format!("plane {plane}")).collect();
        let came = |sample: &Sample, plane: usize| -> u64 {
            sample.hosts.iter().filter_map(|host| host.plane_bytes.get(plane)).sum()
        };
        let gbps =
            |step: &Step<'_>, plane: usize| step.gbps(came(step.before, plane), came(step.after, plane));
        Panel::new("planes, Gb/s", self.lines(&names, gbps))
    }

    /// Of all recorded hosts.
    fn packets(&self) -> Panel {
        let sum =
            |sample: &Sample, value: fn(&HostSample) -> u64| sample.hosts.iter().map(value).sum::<u64>();
        let line = |name: &str, color: &'static str, value: fn(&HostSample) -> u64| {
            self.line(Key::new(name, color), |step| (sum(step.after, value) - sum(step.before, value)) as f64)
        };
        let mut lines = vec![
            line("trimmed", LINES[1], |host| host.stats.trimmed),
            line("lost", LOST, |host| host.stats.losses),
            line("sent again", ARRIVED, |host| host.stats.repeats),
        ];
        // A transport that trims has no CNPs, and the other way round.
        if self.steps.last().is_some_and(|step| sum(step.after, |host| host.stats.cnps) > 0) {
            lines.remove(0);
            lines.push(line("CNPs", LINES[1], |host| host.stats.cnps));
        }
        Panel::new(&format!("packets in {}", self.step), Content::Lines(lines))
    }

    /// Of each host that sent anything again; nothing where one did, which is that of all.
    fn repeats(&self) -> Panel {
        let again =
            |sample: &Sample, number: usize| sample.hosts.get(number).map_or(0, |host| host.stats.repeats);
        let (hosts, names) = self.hosts_with(again);
        let (hosts, names) = if hosts.len() > 1 { (hosts, names) } else { (Vec::new(), Vec::new()) };
        let count = |step: &Step<'_>, index: usize| {
            let number = hosts.get(index).copied().unwrap_or_default();
            (again(step.after, number) - again(step.before, number)) as f64
        };
        Panel::new("sent again, by host", self.lines(&names, count))
    }

    /// Of recorded links.
    fn link_rates(&self) -> Panel {
        let sent = |sample: &Sample, link: usize| {
            sample.links.get(link).map_or(0, |link: &LinkSample| link.counters.bytes)
        };
        let gbps = |step: &Step<'_>, link: usize| step.gbps(sent(step.before, link), sent(step.after, link));
        Panel::new("links, Gb/s", self.lines(&self.outcome.links, gbps))
    }

    /// The longest in each step, whatever the samples at its ends say.
    fn queues(&self) -> Panel {
        let samples = self.outcome.recorder.samples();
        let longest = |step: &Step<'_>, link: usize| {
            let [from, to] =
                [step.before, step.after].map(|end| samples.partition_point(|sample| sample.at <= end.at));
            let within = samples.get(from..to).unwrap_or_default().iter();
            let peaks = within.filter_map(|sample| sample.links.get(link)).map(|link| link.peak_bytes);
            peaks.max().unwrap_or_default() as f64 / 1e3
        };
        Panel::new("longest queue, kB", self.lines(&self.outcome.links, longest))
    }

    /// How much of the time recorded links were stopped (PFC): those that ever were.
    fn paused(&self) -> Panel {
        let paused = |sample: &Sample, link: usize| {
            sample.links.get(link).map_or(0, |link: &LinkSample| link.counters.paused_ns)
        };
        let links = self.outcome.links.iter().enumerate();
        let (links, names): (Vec<_>, Vec<_>) = links
            .filter(|(link, _)| self.steps.last().is_some_and(|step| paused(step.after, *link) > 0))
            .map(|(link, name)| (link, name.clone()))
            .unzip();
        let share = |step: &Step<'_>, index: usize| {
            let link = links.get(index).copied().unwrap_or_default();
            let stopped = paused(step.after, link) - paused(step.before, link);
            stopped as f64 * 100.0 / step.after.at.since(step.before.at).max(1) as f64
        };
        Panel::new("stopped, % of time", self.lines(&names, share))
    }

    /// Of recorded connections.
    fn states(&self) -> Panel {
        if self.outcome.flows.is_empty() {
            return Panel::new("entropy values", Content::Lines(Vec::new()));
        }
        let series = |&(name, color, count): &(&str, &'static str, StateCount)| {
            let all = |step: &Step<'_>| step.after.flows.iter().flatten().map(count).sum::<u32>();
            let values = self.steps.iter().map(|step| f64::from(all(step))).collect();
            Series { key: Key::new(name, color), values }
        };
        let area = StackedArea { x: self.x.clone(), series: STATES.iter().map(series).collect() };
        Panel::new("entropy values", Content::StackedArea(area))
    }
}

/// Bars side by side for each variant: rates, and times of messages, by workload.
fn of_variants(title: &str, outcomes: &[Outcome]) -> Picture {
    let mut names: Vec<&str> = Vec::new();
    for job in outcomes.iter().flat_map(|outcome| &outcome.jobs) {
        if !names.contains(&job.name.as_str()) {
            names.push(&job.name);
        }
    }
    let panels = names.iter().flat_map(|name| {
        let of = |label, picks, spread: fn(&JobOutcome) -> Spread| {
            let of_job = |outcome: &Outcome| outcome.jobs.iter().find(|job| job.name == *name).map(spread);
            let bars = bars(outcomes, picks, of_job);
            Panel { title: (*name).to_owned(), ..Panel::new(label, Content::Bars(bars)) }
        };
        [of("connection, Gb/s", &RATES, JobOutcome::gbps), of("message, us", &TIMES, JobOutcome::times_us)]
    });
    let mut panels: Vec<_> = panels.collect();
    // Several connections of a host have its rate together, which their own do not show.
    if outcomes.iter().any(|outcome| receive_from_several(&outcome.jobs)) {
        let bars = bars(outcomes, &RATES, |outcome| Some(received(outcome)));
        panels.insert(0, Panel::new("receiving host, Gb/s", Content::Bars(bars)));
    }
    if outcomes.iter().any(|outcome| outcome.totals.pauses > 0) {
        let group = |outcome: &Outcome| Group {
            name: outcome.plan.variant.clone(),
            values: vec![outcome.totals.pauses as f64],
        };
        let keys = vec![Key::new("pauses", LINES[6])];
        let bars = Bars { keys, groups: outcomes.iter().map(group).collect() };
        panels.push(Panel::new("pauses, all links", Content::Bars(bars)));
    }
    let column = Column { heading: String::new(), panels, marks: Vec::new() };
    Page { title, x_label: "", x_max: None, columns: vec![column] }.draw()
}

/// Whether a host receives from several connections.
fn receive_from_several(jobs: &[JobOutcome]) -> bool {
    let mut to: Vec<_> = jobs.iter().flat_map(|job| &job.pairs).map(|(_, to)| to).collect();
    to.sort_unstable();
    to.windows(2).any(|two| two[0] == two[1])
}

/// Payload of each recorded host that received any, over the whole run, in Gb/s.
fn received(outcome: &Outcome) -> Spread {
    let hosts = outcome.recorder.samples().last().into_iter().flat_map(|sample| &sample.hosts);
    let bytes = hosts.map(|host| host.stats.placed_bytes).filter(|bytes| *bytes > 0);
    Spread::of(bytes.map(|bytes| bytes as f64 * 8.0 / outcome.ended_ns.max(1) as f64).collect())
}

/// Values of each variant; 0 where a variant has none.
fn bars(
    outcomes: &[Outcome],
    picks: &[(&str, &'static str, Pick)],
    spread: impl Fn(&Outcome) -> Option<Spread>,
) -> Bars {
    let group = |outcome: &Outcome| {
        let values = spread(outcome).unwrap_or_default();
        let values = picks.iter().map(|(.., pick)| pick(&values)).collect();
        Group { name: outcome.plan.variant.clone(), values }
    };
    Bars {
        keys: picks.iter().map(|(name, color, _)| Key::new(name, color)).collect(),
        groups: outcomes.iter().map(group).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::{PlanSource, SeedChoice};
    use super::super::run;
    use super::*;
    use crate::figure::tests::{assert_drawn, lines_of};
    use crate::stop::Stop;

    /// Two planes, a port of a receiver fails for a while; `workload` is one of more lines.
    fn outcomes(hosts_per_t0: u32, workload: &str) -> Vec<Outcome> {
        let text = format!(
            "[plan]\ntitle = \"x\"\nduration = \"200us\"\nsample = \"20us\"\n\
             [fabric]\nplanes = 2\nt1 = 4\nhosts_per_t0 = {hosts_per_t0}\n[[workload]]\n{workload}\n\
             [[fault]]\nat = \"60us\"\nfor = \"40us\"\nwhere = \"h2:p1-t0-0\"\naction = \"dark\"\n\
             [[variant]]\nname = \"two\"\n[[variant]]\nname = \"one\"\nset = {{ \"fabric.planes\" = 1 , \"fault.0.where\" = \"h2:p0-t0-0\" }}\n"
        );
        let plan_file = PlanSource::of_text("plan", &text).read(SeedChoice::default()).unwrap();
        let stop = Stop::default();
        plan_file.variants.into_iter().map(|plan| run::run(plan, &stop, &mut |_| {}).unwrap()).collect()
    }

    const AXIS: Axis = Axis { unit: "us", ns: 1e3 };

    fn close(points: &[(f64, f64)], expected: impl IntoIterator<Item = (f64, f64)>) {
        let expected: Vec<_> = expected.into_iter().collect();
        assert_eq!(points.len(), expected.len());
        for (point, expected) in points.iter().zip(&expected) {
            let off = (point.0 - expected.0).abs() + (point.1 - expected.1).abs();
            assert!(off < 1e-6, "{points:?} {expected:?}");
        }
    }

    /// What an interval of 20 us after `before` adds to a count.
    fn added(outcome: &Outcome, count: impl Fn(&Sample) -> u64) -> Vec<u64> {
        let counts: Vec<_> = outcome.recorder.samples().iter().map(count).collect();
        assert_eq!(counts.len(), 11);
        counts.windows(2).map(|pair| pair[1] - pair[0]).collect()
    }

    #[test]
    fn panels_show_what_was_sampled() {
        let outcomes = outcomes(2, "kind = \"write\"\nfrom = \"h1, h3\"\nto = \"h2, h4\"");
        let outcome = &outcomes[0];
        let chart = Chart::new(AXIS, outcome);
        let x: Vec<f64> = (0..10).map(|step| f64::from(step) * 20.0 + 10.0).collect();
        let gbps = |bytes: Vec<u64>| -> Vec<_> {
            x.iter().copied().zip(bytes.into_iter().map(|bytes| bytes as f64 * 8.0 / 20_000.0)).collect()
        };
        // Only those that receive; of the hosts, h2 is the second.
        let panel = chart.goodput();
        let lines = lines_of(&panel);
        assert_eq!(
            lines.iter().map(|line| (line.0, line.1)).collect::<Vec<_>>(),
            [("h2", LINES[0]), ("h4", LINES[1])]
        );
        close(&lines[0].2, gbps(added(outcome, |sample| sample.hosts[1].stats.placed_bytes)));
        close(&lines[1].2, gbps(added(outcome, |sample| sample.hosts[3].stats.placed_bytes)));
        assert!(lines[0].2[2].1 > 150.0 && lines[0].2[4].1 < 110.0);
        let panel = chart.planes();
        let lines = lines_of(&panel);
        assert_eq!(lines.iter().map(|line| line.0).collect::<Vec<_>>(), ["plane 0", "plane 1"]);
        let of_plane = |sample: &Sample| sample.hosts.iter().map(|host| host.plane_bytes[1]).sum();
        close(&lines[1].2, gbps(added(outcome, of_plane)));
        let panel = chart.packets();
        let lines = lines_of(&panel);
        assert_eq!(panel.label, "packets in 20 us");
        let counts = |count: fn(&HostSample) -> u64| {
            let all = added(outcome, |sample| sample.hosts.iter().map(count).sum());
            x.iter().copied().zip(all.into_iter().map(|count| count as f64)).collect::<Vec<_>>()
        };
        let (lost, again) = (counts(|host| host.stats.losses), counts(|host| host.stats.repeats));
        assert!(lost.iter().any(|point| point.1 > 0.0));
        assert_eq!(lines[1], ("lost", LOST, lost));
        assert_eq!(lines[2], ("sent again", ARRIVED, again));
        assert_eq!((lines[0].0, lines[0].2.len()), ("trimmed", 10));
        assert!(lines_of(&chart.repeats()).is_empty(), "of one host alone");
    }

    /// Hosts that send to a port that fails have a line each, those that sent nothing again have none.
    #[test]
    fn hosts_that_send_again_have_their_lines() {
        let outcomes = outcomes(2, "kind = \"write\"\nfrom = \"h1, h3, h2\"\nto = \"h2, h2, h4\"");
        let outcome = &outcomes[0];
        let repeats = |sample: &Sample, host: usize| sample.hosts[host].stats.repeats;
        let panel = Chart::new(AXIS, outcome).repeats();
        let lines = lines_of(&panel);
        let all: Vec<_> = (0..4)
            .filter(|&host| added(outcome, |sample| repeats(sample, host)).iter().sum::<u64>() > 0)
            .collect();
        assert!(all.len() > 1 && all.len() < 4, "{all:?}");
        assert_eq!(lines.len(), all.len());
        for (line, host) in lines.iter().zip(all) {
            assert_eq!(line.0, format!("h{}", host + 1));
            let counts = added(outcome, |sample| repeats(sample, host)).into_iter().map(|count| count as f64);
            close(&line.2, line.2.iter().map(|point| point.0).zip(counts));
        }
    }

    /// RoCE with a small buffer: an incast of two, over whose links there are pauses, and a flow by itself.
    fn roce(figure: &str) -> Vec<Outcome> {
        let text = format!(
            "[plan]\ntitle = \"x\"\nduration = \"200us\"\nsample = \"20us\"\nfigure = \"{figure}\"\n\
             [transport]\nkind = \"roce\"\n[pfc]\nshared = \"400K\"\n[dcqcn]\nkmin = \"20K\"\nkmax = \"60K\"\n\
             [record]\nlinks = [\"all\"]\n\
             [[workload]]\nkind = \"write\"\nsize = \"16K\"\nfrom = \"h1, h3\"\nto = \"h2, h2\"\n\
             [[workload]]\nkind = \"write\"\nsize = \"16K\"\nfrom = \"h2\"\nto = \"h4\"\n\
             [[variant]]\nname = \"roce\"\n[[variant]]\nname = \"alone\"\nset = {{ \"workload.0.to\" = \"h2, h4\", \"workload.1.to\" = \"h1\" }}\n"
        );
        let plan_file = PlanSource::of_text("plan", &text).read(SeedChoice::default()).unwrap();
        let stop = Stop::default();
        plan_file.variants.into_iter().map(|plan| run::run(plan, &stop, &mut |_| {}).unwrap()).collect()
    }

    /// Rates of connections where a host has several; links that PFC stopped; and CNPs in place of trimmed packets.
    #[test]
    fn connections_and_pauses_are_drawn() {
        let outcomes = roce("time");
        let (chart, alone) = (Chart::new(AXIS, &outcomes[0]), Chart::new(AXIS, &outcomes[1]));
        let panel = chart.connections();
        let lines = lines_of(&panel);
        assert_eq!(lines.iter().map(|line| line.0).collect::<Vec<_>>(), ["h1-h2", "h3-h2", "h2-h4"]);
        for (line, job, pair) in [(0, 0, 0), (1, 0, 1), (2, 1, 0)] {
            for (step, point) in lines[line].2.iter().enumerate() {
                let from = step as u64 * 20_000;
                let of_step = |done: &&spindrift_fabric::Done| {
                    done.side.pair == pair && done.done.0 > from && done.done.0 <= from + 20_000
                };
                let messages = outcomes[0].jobs[job].messages.iter().filter(of_step).count();
                close(&[*point], [(from as f64 / 1e3 + 10.0, messages as f64 * 16_384.0 * 8.0 / 20_000.0)]);
            }
        }
        assert!(lines_of(&alone.connections()).is_empty(), "each host receives from one");
        let panel = chart.paused();
        let paused = lines_of(&panel);
        let samples = outcomes[0].recorder.samples();
        let stopped = |link: usize, sample: usize| samples[sample].links[link].counters.paused_ns;
        let links: Vec<_> = (0..outcomes[0].links.len()).filter(|link| stopped(*link, 10) > 0).collect();
        assert!(!links.is_empty() && links.len() < outcomes[0].links.len());
        assert_eq!(paused.len(), links.len());
        for (line, link) in paused.iter().zip(links) {
            assert_eq!(line.0, outcomes[0].links[link]);
            let shares = (0..10).map(|step| (stopped(link, step + 1) - stopped(link, step)) as f64 / 200.0);
            close(&line.2, line.2.iter().map(|point| point.0).zip(shares));
        }
        assert!(lines_of(&alone.paused()).is_empty());
        let names = |chart: &Chart<'_>| {
            lines_of(&chart.packets()).iter().map(|line| line.0.to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(names(&chart), ["lost", "sent again", "CNPs"]);
        assert_eq!(names(&alone), ["trimmed", "lost", "sent again"]);
    }

    /// The rate of a host with several connections is their sum, and bars of pauses are there where any variant has some.
    #[test]
    fn bars_of_hosts_and_pauses_are_drawn() {
        let outcomes = roce("variants");
        let placed = |host: usize| outcomes[0].recorder.samples()[10].hosts[host].stats.placed_bytes as f64;
        let spread = received(&outcomes[0]);
        let rates = [placed(1), placed(3)].map(|bytes| bytes * 8.0 / 200_000.0);
        let near = |one: f64, other: f64| assert!((one - other).abs() < 1e-9, "{one} {other}");
        near(spread.max, rates[0].max(rates[1]));
        near(spread.min, rates[0].min(rates[1]));
        assert_eq!(spread.count, 2, "h1 and h3 receive nothing");
        let picture = draw(FigureKind::Variants, "x", &outcomes);
        assert_drawn(&picture, &["receiving host, Gb/s", "pauses, all links", "pauses"]);
    }

    #[test]
    fn links_and_entropy_values_are_drawn() {
        let outcomes = outcomes(2, "kind = \"write\"\nfrom = \"h1, h3\"\nto = \"h2, h2\"");
        let chart = Chart::new(AXIS, &outcomes[0]);
        let samples = outcomes[0].recorder.samples();
        let (rates, queues) = (chart.link_rates(), chart.queues());
        for panel in [&rates, &queues] {
            let names = lines_of(panel).iter().map(|line| line.0.to_owned()).collect::<Vec<_>>();
            assert_eq!(names, ["h2:p1-t0-0", "p1-t0-0:h2"]);
        }
        let bytes = added(&outcomes[0], |sample| sample.links[1].counters.bytes);
        let points = lines_of(&rates)[1].2.clone();
        close(
            &points,
            points.iter().map(|point| point.0).zip(bytes.iter().map(|&bytes| bytes as f64 * 8.0 / 20_000.0)),
        );
        let waits: Vec<_> =
            samples.iter().skip(1).map(|sample| sample.links[1].peak_bytes as f64 / 1e3).collect();
        assert!(waits.iter().any(|&waits| waits > 1.0));
        assert_eq!(lines_of(&queues)[1].2.iter().map(|point| point.1).collect::<Vec<_>>(), waits);
        // Each entropy value is in one state; some are bad while the link is dark.
        let states = chart.states();
        let Content::StackedArea(area) = &states.content else { panic!("an area") };
        let names: Vec<_> = area.series.iter().map(|series| series.key.name.as_str()).collect();
        assert_eq!(names, ["good", "skipped once", "in reserve", "assumed bad", "denied", "plane closed"]);
        let all = |step: usize| area.series.iter().map(|series| series.values[step]).sum::<f64>();
        let each: u32 = samples[0].flows.iter().flatten().map(|evs| evs.good + evs.reserve).sum();
        assert!((0..10).all(|step| (all(step) - f64::from(each)).abs() < 1e-9), "{:?}", area.series);
        assert!(area.series[3].values[4] > 0.0 && area.series[3].values[1] == 0.0);
    }

    /// A step of several samples has the longest queue of all of them.
    #[test]
    fn queues_between_the_samples_of_a_step_are_drawn() {
        let mut outcomes = outcomes(2, "kind = \"write\"\nfrom = \"h1, h3\"\nto = \"h2, h2\"");
        let outcome = outcomes.remove(0);
        let mut chart = Chart::new(AXIS, &outcome);
        let samples = outcome.recorder.samples();
        chart.steps = vec![Step { before: &samples[2], after: &samples[8] }];
        chart.x = vec![0.0];
        let most = samples[3..=8].iter().map(|sample| sample.links[1].peak_bytes).max().unwrap();
        assert!(most > samples[8].links[1].peak_bytes, "the last is not the longest");
        assert_eq!(lines_of(&chart.queues())[1].2, [(0.0, most as f64 / 1e3)]);
    }

    /// Of many hosts, three lines; and one plane needs none of its own.
    #[test]
    fn many_are_drawn_as_a_band() {
        let outcomes = outcomes(5, "kind = \"permutation\"");
        let (chart, one) = (Chart::new(AXIS, &outcomes[0]), Chart::new(AXIS, &outcomes[1]));
        let panel = chart.goodput();
        let lines = lines_of(&panel);
        assert_eq!(
            lines.iter().map(|line| line.0).collect::<Vec<_>>(),
            ["most of 10", "mean of 10", "least of 10"]
        );
        let values: Vec<Vec<u64>> =
            (0..10).map(|host| added(&outcomes[0], |sample| sample.hosts[host].stats.placed_bytes)).collect();
        let of_step = |step: usize| {
            let rates: Vec<_> = values.iter().map(|host| host[step] as f64 * 8.0 / 20_000.0).collect();
            let most = rates.iter().copied().fold(0.0, f64::max);
            let least = rates.iter().copied().fold(f64::MAX, f64::min);
            [most, rates.iter().sum::<f64>() / 10.0, least]
        };
        for (number, (.., points)) in lines.iter().enumerate() {
            close(points, (0..10).map(|step| (points[step].0, of_step(step)[number])));
        }
        assert_eq!((lines_of(&chart.planes()).len(), lines_of(&one.planes()).len()), (2, 0));
    }

    #[test]
    fn pictures_have_a_column_for_each_variant() {
        let outcomes = outcomes(2, "kind = \"write\"\nfrom = \"h1\"\nto = \"h2\"");
        let parts = [
            "two",
            "one",
            "plane 1",
            "1: at 60.000 us, h2:p1-t0-0: dark",
            "2: at 60.000 us, h2:p0-t0-0: dark",
            "3: at 100.000 us, h2:p1-t0-0: dark ends",
        ];
        assert_drawn(&draw(FigureKind::Time, "x", &outcomes), &parts);
        let marks: Vec<_> = outcomes[0].events.iter().map(|event| AXIS.mark(event)).collect();
        assert_eq!(
            marks.iter().map(|mark| (mark.at, mark.color)).collect::<Vec<_>>(),
            [(60.0, FAULT), (100.0, REPAIR)]
        );
    }

    #[test]
    fn variants_have_their_bars() {
        let outcomes = outcomes(
            2,
            "kind = \"write\"\nname = \"job\"\nsize = \"64K\"\nfrom = \"h1, h3\"\nto = \"h2, h4\"",
        );
        let bars = bars(&outcomes, &RATES, |outcome| Some(outcome.jobs[0].gbps()));
        let group = |number: usize| {
            let group = &bars.groups[number];
            (group.name.as_str(), group.values.clone())
        };
        for (number, name) in ["two", "one"].into_iter().enumerate() {
            let rates = outcomes[number].jobs[0].gbps();
            assert!(rates.min < rates.mean && rates.mean < rates.max);
            assert_eq!(group(number), (name, vec![rates.min, rates.mean, rates.max]));
        }
        let keys: Vec<_> = bars.keys.iter().map(|key| key.name.as_str()).collect();
        assert_eq!(keys, ["slowest", "mean", "fastest"]);
        assert_drawn(
            &draw(FigureKind::Variants, "x", &outcomes),
            &["two", "job", "connection, Gb/s", "message, us", "99 %"],
        );
    }
}
