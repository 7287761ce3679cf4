//! Runs a plan in simulated time.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use spindrift::time::Time;
use spindrift_fabric::{Clos, HostId, Job, NetCounters, Recorder, Sim, Striping, Tap, Watch};

use super::digest::Totals;
use super::fault::Faults;
use super::fault_impact::{FaultImpact, FaultImpacts};
use super::logged::{Logged, RunLog};
use super::nic::Host;
use super::plan::Plan;
use crate::stop::Stop;
use crate::times::{Event, Timeline};
use crate::trace::Trace;

/// Numbers of alarms.
const SAMPLE: u32 = 0;
const FAULT: u32 = 1;

/// How often the user is told.
const TELL: Duration = Duration::from_millis(200);

/// What came of a plan.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) plan: Plan,
    pub(super) jobs: Vec<JobOutcome>,
    pub(super) recorder: Recorder,
    /// The names of the recorded links and flows.
    pub(super) links: Vec<String>,
    pub(super) flows: Vec<String>,
    /// Faults that began and ended, with their times in ns.
    pub(super) events: Vec<(u64, String, bool)>,
    /// What those that began cost, in the same order.
    pub(super) impacts: Vec<FaultImpact>,
    pub(super) counters: NetCounters,
    pub(super) totals: Totals,
    /// When it ended, and whether all work was done then.
    pub(super) ended_ns: u64,
    pub(super) done: bool,
    /// How long that took.
    pub(super) wall: Duration,
}

/// What came of a workload.
#[derive(Debug)]
pub(super) struct JobOutcome {
    pub(super) name: String,
    /// Queue pairs of each connection.
    pub(super) qps: u32,
    /// The hosts of its connections.
    pub(super) pairs: Vec<(HostId, HostId)>,
    pub(super) messages: Vec<spindrift_fabric::Done>,
    pub(super) failures: Vec<spindrift_fabric::Failure>,
    pub(super) finished_ns: Option<u64>,
    /// Messages of a list that have not begun, and those that are not complete.
    pub(super) left: Option<[usize; 2]>,
}

impl JobOutcome {
    fn of(name: String, job: &Job) -> Self {
        Self {
            name,
            qps: job.qps(),
            pairs: job.pairs().collect(),
            messages: job.done().to_vec(),
            failures: job.failures().to_vec(),
            finished_ns: job.finished().map(|at| at.0),
            left: job.left(),
        }
    }
}

/// How far a simulation is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Progress {
    pub(super) now_ns: u64,
    pub(super) hops: u64,
}

/// Carries out a plan. `tell` is called now and then.
pub(super) fn run(mut plan: Plan, stop: &Stop, tell: &mut dyn FnMut(Progress)) -> Result<Outcome> {
    let began = Instant::now();
    let _log = RunLog::begin(&plan);
    let (clos, mut sim, names) = build(&mut plan)?;
    let capture = plan.capture.as_ref();
    let trace =
        capture.map(|capture| Trace::create(&capture.path, &plan.fabric, capture.links.iter().copied()));
    let trace = trace.transpose()?;
    let impacts = FaultImpacts::default();
    sim.net_mut().set_tap(tap(&plan, &clos, trace.as_ref(), &impacts));
    let mut recorder = Recorder::new(watch(&plan, &clos, &sim));
    let flows = recorder.watch().flows.iter().map(|end| flow_name(&sim, *end)).collect();
    let links =
        plan.links.iter().map(|&(from, to)| format!("{}:{}", plan.fabric.name(from), plan.fabric.name(to)));
    let links = links.collect();
    let times: Vec<_> = plan.faults.iter().map(|fault| fault.times).collect();
    let (mut timeline, mut faults) = (Timeline::new(&times), Faults::new(&plan.fabric, &plan.faults));
    let (mut due, mut events) = (timeline.next(), Vec::new());
    let end = Time(plan.duration_ns);
    recorder.begin(sim.net_mut());
    let first = Time(plan.sample_ns);
    if first <= end {
        sim.net_mut().set_alarm(first, SAMPLE);
    }
    set_fault_alarm(&mut sim, due.as_ref(), end);
    let mut told = began;
    while let Some(alarm) = sim.run(end) {
        if alarm == FAULT {
            for event in due.take().into_iter().flatten() {
                faults.change(&clos, sim.net_mut(), event.entry, event.begins);
                let directions = plan.faults.get(event.entry).map(|fault| fault.directions(&plan.fabric));
                let links = directions.into_iter().flatten().filter_map(|(from, to)| clos.link(from, to));
                impacts.change(event.entry, sim.net().now(), links, event.begins);
                let line = plan.faults.get(event.entry).map(|fault| fault.line(event.begins));
                events.push((sim.net().now().0, line.unwrap_or_default(), event.begins));
            }
            due = timeline.next();
            set_fault_alarm(&mut sim, due.as_ref(), end);
            continue;
        }
        recorder.look(sim.net_mut());
        let next = sim.net().now() + plan.sample_ns;
        if next <= end {
            sim.net_mut().set_alarm(next, SAMPLE);
        }
        if told.elapsed() > TELL {
            told = Instant::now();
            stop.check()?;
            tell(Progress { now_ns: sim.net().now().0, hops: sim.net().counters().hops });
        }
    }
    recorder.look(sim.net_mut());
    trace.map_or(Ok(()), Trace::finish)?;
    let net = sim.net();
    let (counters, totals) = (net.counters(), Totals::of(&plan.fabric, &clos, net));
    let jobs = names.into_iter().zip(sim.jobs()).map(|(name, job)| JobOutcome::of(name, job)).collect();
    Ok(Outcome {
        jobs,
        recorder,
        links,
        flows,
        events,
        impacts: impacts.list(),
        counters,
        totals,
        ended_ns: net.now().0,
        done: sim.is_done(),
        wall: began.elapsed(),
        plan,
    })
}

/// What looks at packets: at those of links that are captured, and at those that faults cost.
fn tap(plan: &Plan, clos: &Clos, trace: Option<&Trace>, impacts: &FaultImpacts) -> Option<Tap> {
    let captured = plan.capture.as_ref().map(|capture| &capture.links);
    let ways: BTreeMap<_, _> = clos
        .links()
        .filter(|(way, _)| captured.is_some_and(|links| links.contains(way)))
        .map(|(way, link)| (link, way))
        .collect();
    let mut sink = trace.map(Trace::sink);
    let impacts = (!plan.faults.is_empty()).then(|| impacts.clone());
    if sink.is_none() && impacts.is_none() {
        return None;
    }
    Some(Box::new(move |at, link, sight, packet| {
        if let Some(impacts) = &impacts {
            impacts.see(at, link, sight, packet);
        }
        if let Some((sink, &way)) = sink.as_mut().zip(ways.get(&link)) {
            sink(at, way, sight, packet);
        }
    }))
}

fn set_fault_alarm(sim: &mut Sim<Logged<Host>>, due: Option<&Vec<Event>>, end: Time) {
    let at = due.and_then(|events| events.first()).map(|event| Time(event.at.as_nanos() as u64));
    if let Some(at) = at.filter(|&at| at <= end) {
        sim.net_mut().set_alarm(at, FAULT);
    }
}

/// The fabric with its hosts and workloads, and the names of these.
fn build(plan: &mut Plan) -> Result<(Clos, Sim<Logged<Host>>, Vec<String>)> {
    let mut peers = vec![Vec::new(); plan.fabric.hosts().len()];
    for (one, other) in plan.workloads.iter().flat_map(|workload| workload.workload.pairs()) {
        for (from, to) in [(one, other), (other, one)] {
            if let Some(peers) = peers.get_mut(from.0 as usize) {
                peers.push(to.0 as u16);
            }
        }
    }
    let (clos, net) = Clos::build(plan.clos, plan.seed, |fabric, number| {
        let mut peers = peers.get(usize::from(number)).cloned().unwrap_or_default();
        peers.sort_unstable();
        peers.dedup();
        let host = plan.nics.host(fabric, number, peers, plan.seed << 32 | u64::from(number))?;
        Ok::<_, String>(Logged::new(host, number.into()))
    })
    .map_err(|error| anyhow!("the fabric cannot be built: {error}"))?;
    let mut sim = Sim::new(net);
    let mut names = Vec::new();
    let mtu = plan.nics.mtu();
    for workload in plan.workloads.drain(..) {
        let striping = Striping { qps: workload.qps, mtu };
        sim.add_striped(workload.workload, striping)
            .map_err(|error| anyhow!("{}: {error}", workload.name))?;
        names.push(workload.name);
    }
    Ok((clos, sim, names))
}

/// What the plan wants to be recorded; of flows, those that begin at recorded hosts.
fn watch(plan: &Plan, clos: &Clos, sim: &Sim<Logged<Host>>) -> Watch {
    let links = plan.links.iter().filter_map(|&(from, to)| clos.link(from, to)).collect();
    let ends = sim.jobs().iter().flat_map(Job::ends).map(|[first, _]| *first);
    let flows = ends.filter(|end| plan.hosts.contains(&end.host)).take(super::plan::MOST_RECORDED).collect();
    Watch { hosts: plan.hosts.clone(), links, flows }
}

/// The workload's connection that a flow is, by its hosts.
fn flow_name(sim: &Sim<Logged<Host>>, end: spindrift_fabric::HostFlow) -> String {
    let mut pairs = sim.jobs().iter().flat_map(Job::ends);
    pairs
        .find(|[first, _]| *first == end)
        .map_or_else(String::new, |[first, second]| format!("h{}-h{}", first.host.0 + 1, second.host.0 + 1))
}
