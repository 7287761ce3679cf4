//! One direction of a queue pair: the work it is given, and what must come of it.

use std::collections::VecDeque;

use spindrift::time::Time;

use crate::plan::EndPlan;
use crate::support::ledger::{Memory, Receive};
use crate::support::net::Net;
use crate::support::pair::End;
use crate::support::rand::Rng;
use crate::support::writer::{Fault, Work, Writer};

pub(crate) struct Stream {
    pub(crate) from: End,
    pub(crate) to: End,
    plan: EndPlan,
    pub(crate) writer: Writer,
    pub(crate) next_post_at: Time,
    /// Receive work requests that are posted late, in order, and when the next one is.
    receives: VecDeque<Receive>,
    next_receive_at: Time,
}

impl EndPlan {
    pub(crate) fn work(&self) -> Work {
        let &Self { messages, largest, long, signaled, immediates, depth, sig_all, kinds, .. } = self;
        Work { messages, largest, long, signaled, immediates, depth, sig_all, kinds }
    }
}

impl Stream {
    pub(crate) fn new(
        (from, to): (End, End),
        plan: &EndPlan,
        mtu: u32,
        memory: [Memory; 4],
        rng: Rng,
    ) -> Self {
        let mut writer = Writer::new(plan.work(), from.qpn, mtu, memory, rng).unwrap();
        let next_post_at = Time(writer.rng.below(plan.pause_ns + 1));
        Self {
            from,
            to,
            plan: plan.clone(),
            writer,
            next_post_at,
            receives: VecDeque::new(),
            next_receive_at: Time::NEVER,
        }
    }

    /// Posts a few more work requests; they wait when the send queue or the target memory is full.
    pub(crate) fn post(&mut self, net: &mut Net) {
        self.next_post_at = net.now.after(1 + self.writer.rng.below(self.plan.pause_ns));
        if self.plan.denies {
            self.deny_or_allow(net);
        }
        for _ in 0..self.writer.rng.range(1, self.plan.burst) {
            if self.writer.all_posted() {
                break;
            }
            let Some(posting) = self.writer.next() else {
                self.next_post_at = Time::NEVER;
                break;
            };
            if let Some(receive) = posting.receive.clone() {
                self.receives.push_back(receive);
                if self.plan.late_ns == 0 {
                    self.post_receives(net, 1);
                } else if self.next_receive_at == Time::NEVER {
                    self.next_receive_at = net.now.after(self.writer.rng.below(self.plan.late_ns));
                }
            }
            let now = net.now;
            posting.post(now, self.from.qpn, net.endpoint(self.from.node)).unwrap();
        }
        if self.plan.denies && (self.next_post_at == Time::NEVER || self.writer.all_posted()) {
            self.allow_all(net);
        }
        net.pump(self.from.node);
    }

    pub(crate) fn fault(&self) -> Option<Fault> {
        self.plan.kinds.fault.map(|(fault, _)| fault)
    }

    /// When it has something to do next.
    pub(crate) fn due(&self) -> Time {
        let post_at = if self.writer.all_posted() { Time::NEVER } else { self.next_post_at };
        post_at.min(self.next_receive_at)
    }

    /// Does what is due.
    pub(crate) fn act(&mut self, net: &mut Net) {
        if self.next_receive_at <= net.now {
            let count = self.writer.rng.range(1, 8);
            self.post_receives(net, count);
            let again = net.now.after(1 + self.writer.rng.below(self.plan.late_ns));
            self.next_receive_at = if self.receives.is_empty() { Time::NEVER } else { again };
        }
        if !self.writer.all_posted() && self.next_post_at <= net.now {
            self.post(net);
        }
    }

    fn post_receives(&mut self, net: &mut Net, count: u64) {
        for _ in 0..count {
            let Some(receive) = self.receives.pop_front() else { break };
            if self.writer.ledger.receiver_failed {
                continue;
            }
            self.writer.ledger.post_recv(receive.wr_id);
            receive.post(net.endpoint(self.to.node), self.to.qpn).unwrap();
        }
    }

    /// What an operator may do at any time.
    fn deny_or_allow(&mut self, net: &mut Net) {
        let rng = &mut self.writer.rng;
        let plane = rng.below(net.links.len() as u64) as u8;
        let (qpn, denies, whole) = (self.from.qpn, rng.one_in(2), rng.one_in(3));
        let endpoint = net.endpoint(self.from.node);
        if whole {
            let _ = if denies { endpoint.deny_plane(qpn, plane) } else { endpoint.allow_plane(qpn, plane) };
        }
        let evs: Vec<_> = endpoint.ev_states(qpn).unwrap().map(|state| state.ev).collect();
        for ev in evs {
            if rng.one_in(4) {
                let _ = if denies {
                    endpoint.deny_ev(qpn, ev, Some(plane))
                } else {
                    endpoint.allow_ev(qpn, ev, None)
                };
            }
        }
    }

    /// Nothing is denied while nothing is posted, lest the work done so far be held up for ever.
    fn allow_all(&mut self, net: &mut Net) {
        let (qpn, planes) = (self.from.qpn, net.links.len() as u8);
        let endpoint = net.endpoint(self.from.node);
        let evs: Vec<_> = endpoint.ev_states(qpn).unwrap().map(|state| state.ev).collect();
        for ev in evs {
            endpoint.allow_ev(qpn, ev, None);
        }
        for plane in 0..planes {
            endpoint.allow_plane(qpn, plane);
        }
    }

    /// There is room for other requests.
    pub(crate) fn on_retired(&mut self, now: Time, count: u32) {
        if self.next_post_at == Time::NEVER {
            self.next_post_at = now.after(self.writer.rng.below(self.plan.pause_ns));
        }
        self.writer.ledger.on_retired(count).unwrap();
    }
}
