//! A network and what runs over it.

use core::fmt;
use std::collections::VecDeque;

use spindrift::time::Time;

use crate::net::{FlowEnd, Happened, HostId, Net};
use crate::transport::{ConnectError, Message, Messenger, Notice};
use crate::workload::{Orders, Side, Workload};

/// A message that is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// Who sent it.
    pub side: Side,
    /// Bytes of it.
    pub len: u32,
    /// When it was posted.
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
    pub side: Side,
    /// Why.
    pub why: &'static str,
}

/// A workload on its hosts.
pub struct Job {
    workload: Box<dyn Workload>,
    ends: Vec<[FlowEnd; 2]>,
    /// Messages that are not complete, oldest first, by connection and end: when each was posted, and its length.
    outstanding: Vec<[VecDeque<(Time, u32)>; 2]>,
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
    pub fn ends(&self) -> &[[FlowEnd; 2]] {
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

    /// When all was done.
    pub const fn finished(&self) -> Option<Time> {
        self.finished
    }

    fn outstanding(&mut self, side: Side) -> Option<&mut VecDeque<(Time, u32)>> {
        let ends = self.outstanding.get_mut(side.pair as usize)?;
        Some(&mut ends[usize::from(side.second)])
    }

    fn complete(&mut self, now: Time, side: Side) {
        let Some((posted, len)) = self.outstanding(side).and_then(VecDeque::pop_front) else { return };
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
    owners: Vec<Vec<(u32, Side)>>,
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
                owners.push((number, Side { pair, second }));
            }
            ends.push(flows);
        }
        self.jobs.push(Job {
            workload,
            outstanding: ends.iter().map(|_| Default::default()).collect(),
            ends,
            done: Vec::new(),
            failures: Vec::new(),
            finished: None,
        });
        self.ask(number, |job, orders| job.workload.start(orders));
        Ok(())
    }

    /// Lets a job say what to do next, and does it.
    fn ask(&mut self, number: u32, question: impl FnOnce(&mut Job, &mut Orders)) {
        let now = self.net.now();
        let Some(job) = self.jobs.get_mut(number as usize) else { return };
        let mut orders = Orders { now, ..Orders::default() };
        question(job, &mut orders);
        for (side, message) in orders.posts {
            self.post(number, side, message);
        }
        if let Some(at) = orders.alarm {
            self.net.set_alarm(at, Self::ALARMS + number);
        }
        if let Some(job) = self.jobs.get_mut(number as usize)
            && job.finished.is_none()
            && job.workload.is_done()
        {
            job.finished = Some(now);
        }
    }

    fn post(&mut self, number: u32, side: Side, message: Message) {
        let now = self.net.now();
        let Some(job) = self.jobs.get_mut(number as usize) else { return };
        let Some(ends) = job.ends.get(side.pair as usize) else { return };
        let end = ends[usize::from(side.second)];
        if self.net.post(end, message) {
            if let Some(outstanding) = job.outstanding(side) {
                outstanding.push_back((now, message.len));
            }
        } else {
            job.failures.push(Failure { at: now, side, why: "the message was refused" });
        }
    }

    fn notice(&mut self, host: HostId, notice: Notice) {
        let (Notice::Sent { flow, .. } | Notice::Received { flow, .. } | Notice::Failed { flow, .. }) =
            notice;
        let owners = self.owners.get(host.0 as usize);
        let Some(&(number, side)) = owners.and_then(|owners| owners.get(flow as usize)) else { return };
        let now = self.net.now();
        self.ask(number, |job, orders| match notice {
            Notice::Sent { tag, .. } => {
                job.complete(now, side);
                job.workload.sent(side, tag, orders);
            }
            Notice::Received { tag, .. } => job.workload.received(side, tag, orders),
            Notice::Failed { why, .. } => job.failures.push(Failure { at: now, side, why }),
        });
    }

    /// Whether every workload is done.
    pub fn is_done(&self) -> bool {
        self.jobs.iter().all(|job| job.finished.is_some())
    }

    /// Goes on until every workload is done, an alarm of the caller's comes, whose number is returned, or `until`.
    pub fn run(&mut self, until: Time) -> Option<u32> {
        while !self.is_done() {
            match self.net.run(until)? {
                Happened::Noticed { host, news } => self.notice(host, news),
                Happened::Alarm(number) => match number.checked_sub(Self::ALARMS) {
                    None => return Some(number),
                    Some(job) => self.ask(job, |job, orders| job.workload.alarm(orders)),
                },
            }
        }
        None
    }
}
