//! A network and what runs over it.

use core::fmt;

use spindrift::time::Time;

use crate::net::{HostFlow, HostId, Net, SimEvent};
use crate::stripes::{Backlog, Ordered, Striping};
use crate::transport::{ConnectError, FlowEvent, Message, Messenger};
use crate::workload::{FlowEndpoint, Workload, WorkloadActions};

/// A message that is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// Who sent it.
    pub side: FlowEndpoint,
    /// Bytes of it.
    pub len: u32,
    /// When the workload ordered it: what waits at its sender for room there waits from then on.
    pub posted: Time,
    /// When its sender knew that it had arrived.
    pub done: Time,
}

/// A connection that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// When.
    pub at: Time,
    /// Which end noticed.
    pub side: FlowEndpoint,
    /// Why.
    pub why: &'static str,
}

/// A workload on its hosts.
pub struct Job {
    workload: Box<dyn Workload>,
    /// Queue pairs of a connection.
    qps: u32,
    ends: Vec<[HostFlow; 2]>,
    /// By connection and end.
    backlogs: Vec<[Backlog; 2]>,
    /// When the workload is to be called.
    alarm: Option<Time>,
    done: Vec<Done>,
    failures: Vec<Failure>,
    finished: Option<Time>,
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job")
            .field("connections", &self.backlogs.len())
            .field("done", &self.done.len())
            .field("finished", &self.finished)
            .finish_non_exhaustive()
    }
}

impl Job {
    /// The ends of its queue pairs: those of the first connection, then those of the second.
    pub fn ends(&self) -> &[[HostFlow; 2]] {
        &self.ends
    }

    /// Queue pairs of each connection.
    pub const fn qps(&self) -> u32 {
        self.qps
    }

    /// The hosts of its connections, each once however many queue pairs it has.
    pub fn pairs(&self) -> impl Iterator<Item = (HostId, HostId)> + '_ {
        self.ends.iter().step_by(self.qps as usize).map(|[one, other]| (one.host, other.host))
    }

    /// The messages that are complete, in that order.
    pub fn done(&self) -> &[Done] {
        &self.done
    }

    /// The connections that failed, in that order.
    pub fn failures(&self) -> &[Failure] {
        &self.failures
    }

    /// How many messages of a list have not begun, and how many have and are not complete. `None` where there is no list.
    pub fn left(&self) -> Option<[usize; 2]> {
        let listed = self.workload.listed()?;
        let under_way = self.backlogs.iter().flatten().map(Backlog::outstanding).sum();
        Some([listed.saturating_sub(self.done.len() + under_way), under_way])
    }

    /// When all was done.
    pub const fn finished(&self) -> Option<Time> {
        self.finished
    }

    /// The backlog of an end, and its queue pairs.
    fn end(&mut self, side: FlowEndpoint) -> Option<(&mut Backlog, Flows<'_>)> {
        let first = side.pair as usize * self.qps as usize;
        let ends = self.ends.get(first..first + self.qps as usize)?;
        let (backlogs, end) = (self.backlogs.get_mut(side.pair as usize)?, usize::from(side.second));
        Some((&mut backlogs[end], Flows { ends, end }))
    }
}

/// The queue pairs of one end of a connection.
#[derive(Clone, Copy, Debug)]
struct Flows<'a> {
    ends: &'a [[HostFlow; 2]],
    end: usize,
}

impl Flows<'_> {
    const fn of(self, qp: u32) -> HostFlow {
        self.ends[qp as usize][self.end]
    }
}

/// A network and the workloads on it.
///
/// Alarms of the network that it did not set itself it hands to the caller: numbers from [`Sim::ALARMS`] on are its own.
pub struct Sim<T: Messenger> {
    net: Net<T>,
    jobs: Vec<Job>,
    /// Whose a flow is, by host and by its number there.
    owners: Vec<Vec<Owner>>,
}

/// Whose a flow is: the job, the end of its connection, and which of its queue pairs.
#[derive(Clone, Copy, Debug)]
struct Owner {
    job: u32,
    side: FlowEndpoint,
    qp: u32,
}

impl<T: Messenger> fmt::Debug for Sim<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sim").field("net", &self.net).field("jobs", &self.jobs).finish_non_exhaustive()
    }
}

impl<T: Messenger> Sim<T> {
    /// The first number of an alarm that is not the caller's.
    pub const ALARMS: u32 = 1 << 31;

    /// A network without flows, and nothing that runs over it yet.
    pub fn new(net: Net<T>) -> Self {
        let owners = net.hosts().map(|_| Vec::new()).collect();
        Self { net, jobs: Vec::new(), owners }
    }

    /// The network.
    pub const fn net(&self) -> &Net<T> {
        &self.net
    }

    /// The network, for changes.
    pub const fn net_mut(&mut self) -> &mut Net<T> {
        &mut self.net
    }

    /// The workloads, in the order in which they were added.
    pub fn jobs(&self) -> &[Job] {
        &self.jobs
    }

    /// Connects what a workload needs, with one queue pair for each connection, and begins it.
    ///
    /// # Errors
    /// If hosts cannot be connected.
    pub fn add(&mut self, workload: Box<dyn Workload>) -> Result<(), ConnectError> {
        self.add_striped(workload, Striping::NONE)
    }

    /// The same with several queue pairs for each connection.
    ///
    /// # Errors
    /// If hosts cannot be connected.
    pub fn add_striped(
        &mut self,
        workload: Box<dyn Workload>,
        striping: Striping,
    ) -> Result<(), ConnectError> {
        let (job, qps) = (self.jobs.len() as u32, striping.qps.max(1));
        let (mut ends, mut backlogs) = (Vec::new(), Vec::new());
        for (pair, (one, other)) in (0..).zip(workload.pairs()) {
            for qp in 0..qps {
                let flows = self.net.connect(one, other)?;
                for (flow, second) in flows.into_iter().zip([false, true]) {
                    let owners = self.owners.get_mut(flow.host.0 as usize);
                    let owners = owners.ok_or_else(|| ConnectError(format!("no host {}", flow.host.0)))?;
                    debug_assert_eq!(owners.len(), flow.flow as usize, "flows are numbered as they are made");
                    owners.push(Owner { job, side: FlowEndpoint { pair, second }, qp });
                }
                ends.push(flows);
            }
            backlogs.push([Backlog::new(striping), Backlog::new(striping)]);
        }
        self.jobs.push(Job {
            workload,
            qps,
            backlogs,
            alarm: None,
            ends,
            done: Vec::new(),
            failures: Vec::new(),
            finished: None,
        });
        self.ask(job, |job, actions| job.workload.start(actions));
        Ok(())
    }

    /// Lets a job say what to do next, and does it.
    fn ask(&mut self, number: u32, question: impl FnOnce(&mut Job, &mut WorkloadActions)) {
        let now = self.net.now();
        let Some(job) = self.jobs.get_mut(number as usize) else { return };
        let mut actions = WorkloadActions { now, ..WorkloadActions::default() };
        question(job, &mut actions);
        for (side, message) in actions.posts {
            self.post(number, side, message);
        }
        let Some(job) = self.jobs.get_mut(number as usize) else { return };
        let alarm = actions.alarm.map(|at| at.max(now));
        if let Some(at) = alarm
            && alarm != job.alarm
        {
            job.alarm = alarm;
            self.net.set_alarm(at, Self::ALARMS + number);
        }
        if job.finished.is_none() && job.workload.is_done() {
            job.finished = Some(now);
        }
    }

    fn post(&mut self, number: u32, side: FlowEndpoint, message: Message) {
        let (now, net) = (self.net.now(), &mut self.net);
        let Some(job) = self.jobs.get_mut(number as usize) else { return };
        let Some((backlog, flows)) = job.end(side) else { return };
        if !backlog.send(now, message, |qp, part| net.post(flows.of(qp), part)) {
            job.failures.push(Failure { at: now, side, why: "the message was refused" });
        }
    }

    fn on_transport_event(&mut self, host: HostId, notice: FlowEvent) {
        let (FlowEvent::Sent { flow, .. }
        | FlowEvent::Received { flow, .. }
        | FlowEvent::Failed { flow, .. }) = notice;
        let owners = self.owners.get(host.0 as usize);
        let Some(&owner) = owners.and_then(|owners| owners.get(flow as usize)) else { return };
        match notice {
            FlowEvent::Sent { tag, .. } => self.on_sent(owner, tag),
            FlowEvent::Received { tag, .. } => self.on_received(owner, tag),
            FlowEvent::Failed { why, .. } => self.on_failed(owner, why),
        }
    }

    /// A part of a message is complete.
    fn on_sent(&mut self, Owner { job: number, side, qp }: Owner, part: u32) {
        let (now, net) = (self.net.now(), &mut self.net);
        if let Some((backlog, flows)) = self.jobs.get_mut(number as usize).and_then(|job| job.end(side)) {
            backlog.on_sent(qp, part, |qp, part| net.post(flows.of(qp), part));
        }
        while let Some(job) = self.jobs.get_mut(number as usize)
            && let Some(Ordered { tag, len, at }) = job.end(side).and_then(|(backlog, _)| backlog.pop_sent())
        {
            job.done.push(Done { side, len, posted: at, done: now });
            self.ask(number, |job, actions| job.workload.sent(side, tag, actions));
        }
    }

    /// A part of a message that notifies has come in at an end.
    fn on_received(&mut self, Owner { job: number, side, .. }: Owner, part: u32) {
        let sender = FlowEndpoint { second: !side.second, ..side };
        if let Some((backlog, _)) = self.jobs.get_mut(number as usize).and_then(|job| job.end(sender)) {
            backlog.on_received(part);
        }
        while let Some(job) = self.jobs.get_mut(number as usize)
            && let Some(tag) = job.end(sender).and_then(|(backlog, _)| backlog.pop_received())
        {
            self.ask(number, |job, actions| job.workload.received(side, tag, actions));
        }
    }

    /// A queue pair has failed, and with it its connection.
    fn on_failed(&mut self, Owner { job: number, side, .. }: Owner, why: &'static str) {
        let now = self.net.now();
        if let Some(job) = self.jobs.get_mut(number as usize)
            && !job.failures.iter().any(|failure| failure.side == side)
        {
            job.failures.push(Failure { at: now, side, why });
        }
        self.ask(number, |_, _| ());
    }

    fn alarm(&mut self, number: u32) {
        let now = self.net.now();
        let Some(job) = self.jobs.get_mut(number as usize) else { return };
        // Another one may have taken its place.
        if job.alarm == Some(now) {
            job.alarm = None;
            self.ask(number, |job, actions| job.workload.alarm(actions));
        }
    }

    /// Whether every workload is done.
    pub fn is_done(&self) -> bool {
        self.jobs.iter().all(|job| job.finished.is_some())
    }

    /// Goes on until every workload is done, an alarm of the caller's comes, whose number is returned, or `until`.
    pub fn run(&mut self, until: Time) -> Option<u32> {
        while !self.is_done() {
            match self.net.run(until)? {
                SimEvent::Transport { host, event } => self.on_transport_event(host, event),
                SimEvent::Alarm(number) => match number.checked_sub(Self::ALARMS) {
                    None => return Some(number),
                    Some(number) => self.alarm(number),
                },
            }
        }
        None
    }
}
