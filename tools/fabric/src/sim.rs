//! A network and what runs over it.

use core::fmt;
use std::collections::VecDeque;

use spindrift::time::Time;

use crate::net::{HostFlow, HostId, Net, SimEvent};
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

/// What an end of a connection has to do.
#[derive(Debug, Default)]
struct Backlog {
    /// Messages that are not complete, oldest first: when each was ordered, and its length.
    outstanding: VecDeque<(Time, u32)>,
    /// The last ones of these, which the transport has had no room for yet.
    waiting: VecDeque<Message>,
}

/// A workload on its hosts.
pub struct Job {
    workload: Box<dyn Workload>,
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
            .field("connections", &self.ends.len())
            .field("done", &self.done.len())
            .field("finished", &self.finished)
            .finish_non_exhaustive()
    }
}

impl Job {
    /// The ends of its connections.
    pub fn ends(&self) -> &[[HostFlow; 2]] {
        &self.ends
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
        let under_way = self.backlogs.iter().flatten().map(|backlog| backlog.outstanding.len()).sum();
        Some([listed.saturating_sub(self.done.len() + under_way), under_way])
    }

    /// When all was done.
    pub const fn finished(&self) -> Option<Time> {
        self.finished
    }

    fn end(&mut self, side: FlowEndpoint) -> Option<(HostFlow, &mut Backlog)> {
        let ends = self.ends.get(side.pair as usize)?;
        let backlogs = self.backlogs.get_mut(side.pair as usize)?;
        let end = usize::from(side.second);
        Some((ends[end], &mut backlogs[end]))
    }

    fn complete(&mut self, now: Time, side: FlowEndpoint) {
        let Some((posted, len)) = self.end(side).and_then(|(_, backlog)| backlog.outstanding.pop_front())
        else {
            return;
        };
        self.done.push(Done { side, len, posted, done: now });
    }
}

/// A network and the workloads on it.
///
/// Alarms of the network that it did not set itself it hands to the caller: numbers from [`Sim::ALARMS`] on are its own.
pub struct Sim<T: Messenger> {
    net: Net<T>,
    jobs: Vec<Job>,
    /// Whose a flow is, by host and by its number there.
    owners: Vec<Vec<(u32, FlowEndpoint)>>,
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

    /// Connects what a workload needs, and begins it.
    ///
    /// # Errors
    /// If hosts cannot be connected.
    pub fn add(&mut self, workload: Box<dyn Workload>) -> Result<(), ConnectError> {
        let number = self.jobs.len() as u32;
        let mut ends = Vec::new();
        for (pair, (one, other)) in (0..).zip(workload.pairs()) {
            let flows = self.net.connect(one, other)?;
            for (flow, second) in flows.into_iter().zip([false, true]) {
                let owners = self.owners.get_mut(flow.host.0 as usize);
                let owners = owners.ok_or_else(|| ConnectError(format!("no host {}", flow.host.0)))?;
                debug_assert_eq!(owners.len(), flow.flow as usize, "flows are numbered as they are made");
                owners.push((number, FlowEndpoint { pair, second }));
            }
            ends.push(flows);
        }
        self.jobs.push(Job {
            workload,
            backlogs: ends.iter().map(|_| Default::default()).collect(),
            alarm: None,
            ends,
            done: Vec::new(),
            failures: Vec::new(),
            finished: None,
        });
        self.ask(number, |job, actions| job.workload.start(actions));
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
        let now = self.net.now();
        let Some(job) = self.jobs.get_mut(number as usize) else { return };
        let Some((end, backlog)) = job.end(side) else { return };
        backlog.outstanding.push_back((now, message.len));
        if !backlog.waiting.is_empty() || !self.net.post(end, message) {
            backlog.waiting.push_back(message);
        }
        if backlog.waiting.len() == backlog.outstanding.len() {
            // None is under way whose completion would make room.
            backlog.outstanding.pop_back();
            backlog.waiting.pop_back();
            job.failures.push(Failure { at: now, side, why: "the message was refused" });
        }
    }

    /// Posts what waits at an end, as far as there is room.
    fn post_waiting(&mut self, number: u32, side: FlowEndpoint) {
        let end = self.jobs.get_mut(number as usize).and_then(|job| job.end(side));
        let Some((end, backlog)) = end else { return };
        while let Some(&message) = backlog.waiting.front()
            && self.net.post(end, message)
        {
            backlog.waiting.pop_front();
        }
    }

    fn on_transport_event(&mut self, host: HostId, notice: FlowEvent) {
        let (FlowEvent::Sent { flow, .. }
        | FlowEvent::Received { flow, .. }
        | FlowEvent::Failed { flow, .. }) = notice;
        let owners = self.owners.get(host.0 as usize);
        let Some(&(number, side)) = owners.and_then(|owners| owners.get(flow as usize)) else { return };
        let now = self.net.now();
        if let FlowEvent::Sent { .. } = notice {
            self.post_waiting(number, side);
        }
        self.ask(number, |job, actions| match notice {
            FlowEvent::Sent { tag, .. } => {
                job.complete(now, side);
                job.workload.sent(side, tag, actions);
            }
            FlowEvent::Received { tag, .. } => job.workload.received(side, tag, actions),
            FlowEvent::Failed { why, .. } => job.failures.push(Failure { at: now, side, why }),
        });
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
