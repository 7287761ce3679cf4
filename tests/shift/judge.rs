//! One direction of the connection: the requests of its application, and what must come of them.

use std::collections::VecDeque;

use spindrift::fallback::Machine;
use spindrift::time::Time;
use spindrift::work::{GatherWr, RemoteAddr, ScatterWr, SendOp, Sge, Wc};

use crate::plan::SidePlan;
use crate::side::{Hands, Side, Store};
use crate::support::ledger::{Memory, Receive};
use crate::support::net::Net;
use crate::support::rand::Rng;
use crate::support::writer::Writer;

/// The `wr_id` of requests without bytes that are signalled, after others that are not: only then is there room again.
const CLOSER: u64 = u64::MAX;

pub(crate) struct Stream {
    plan: SidePlan,
    pub(crate) writer: Writer,
    next_post_at: Time,
    /// Receive work requests that are posted late, in order, and when the next one is.
    receives: VecDeque<Receive>,
    next_receive_at: Time,
    /// Messages posted before the closer that is outstanding.
    closed: Option<u64>,
    /// The newest signalled message's number, plus one.
    signaled: u64,
    rng: Rng,
    /// The failure was reported.
    pub(crate) failed: bool,
}

impl Stream {
    pub(crate) fn new(plan: &SidePlan, from: &Side, mtu: u32, memory: [Memory; 4], mut rng: Rng) -> Self {
        let writer = Writer::new(plan.work, from.first.qpn, mtu, memory, rng.fork()).unwrap();
        Self {
            plan: plan.clone(),
            writer,
            next_post_at: Time(rng.below(plan.pause_ns + 1)),
            receives: VecDeque::new(),
            next_receive_at: Time::NEVER,
            closed: None,
            signaled: 0,
            rng,
            failed: false,
        }
    }

    /// When it has something to do next.
    pub(crate) fn due(&self) -> Time {
        self.next_post_at.min(self.next_receive_at)
    }

    /// Does what is due, between the side that sends and the one that receives.
    pub(crate) fn act(&mut self, net: &mut Net, store: &mut Store, from: &mut Side, to: &mut Side) {
        if self.next_receive_at <= net.now {
            let count = self.rng.range(1, 8);
            self.post_receives(net, store, to, count);
            let again = net.now.after(1 + self.rng.below(self.plan.late_ns));
            self.next_receive_at = if self.receives.is_empty() { Time::NEVER } else { again };
        }
        if self.next_post_at <= net.now {
            self.post(net, store, from, to);
        }
    }

    fn post(&mut self, net: &mut Net, store: &mut Store, from: &mut Side, to: &mut Side) {
        self.next_post_at = net.now.after(1 + self.rng.below(self.plan.pause_ns));
        for _ in 0..self.rng.range(1, self.plan.burst) {
            let Some(posting) = self.writer.next() else {
                self.next_post_at = Time::NEVER;
                self.close(net, store, from);
                return;
            };
            if let Some(receive) = posting.receive.clone() {
                self.receives.push_back(receive);
                if self.plan.late_ns == 0 {
                    self.post_receives(net, store, to, 1);
                } else if self.next_receive_at == Time::NEVER {
                    self.next_receive_at = net.now.after(self.rng.below(self.plan.late_ns));
                }
            }
            let (request, once) = (posting.request(), self.rng.chance(self.plan.once));
            if request.signaled {
                self.signaled = self.writer.ledger.tally.posted;
            }
            from.with(net, store, |machine, hands| post(machine, hands, request, once));
        }
    }

    /// Requests that are not signalled hold their place until a later one that is has completed.
    fn close(&mut self, net: &mut Net, store: &mut Store, from: &mut Side) {
        let tally = self.writer.ledger.tally;
        let none_awaited = self.closed.is_none() && self.signaled <= tally.retired;
        if self.writer.ledger.failed || !none_awaited || tally.retired == tally.posted {
            return;
        }
        self.closed = Some(tally.posted);
        let remote = RemoteAddr { addr: 0, rkey: 0 };
        let (op, local) = (SendOp::Write, &[Sge::EMPTY]);
        let wr = GatherWr { wr_id: CLOSER, op, local, remote, signaled: true, fence: false };
        from.with(net, store, |machine, hands| post(machine, hands, wr, false));
    }

    fn post_receives(&mut self, net: &mut Net, store: &mut Store, to: &mut Side, count: u64) {
        for _ in 0..count {
            let Some(receive) = self.receives.pop_front() else { break };
            if self.writer.ledger.receiver_failed {
                continue;
            }
            self.writer.ledger.post_recv(receive.wr_id);
            let wr = ScatterWr { wr_id: receive.wr_id, local: &receive.elements };
            to.with(net, store, |machine, hands| machine.post_recv(hands, wr)).expect("room");
        }
    }

    /// A send completion of the side that sends.
    pub(crate) fn on_sent(&mut self, now: Time, wc: &Wc) {
        if self.next_post_at == Time::NEVER {
            self.next_post_at = now.after(self.rng.below(self.plan.pause_ns));
        }
        if wc.wr_id == CLOSER {
            let closed = self.closed.take().expect("it was posted");
            self.retire_before(closed);
            return;
        }
        let number = wc.wr_id >> 8;
        if !wc.status.is_success() {
            // Those before it that have no completion have succeeded.
            self.retire_before(number);
        }
        self.writer.ledger.on_send_completion(wc).unwrap();
        self.retire_before(number + 1);
    }

    fn retire_before(&mut self, number: u64) {
        let ledger = &mut self.writer.ledger;
        ledger.on_retired((number - ledger.tally.retired) as u32).unwrap();
    }

    /// The connection has failed on the side that sends, and all that was outstanding has completed: the rest has succeeded.
    pub(crate) fn sender_failed(&mut self) {
        self.retire_before(self.writer.ledger.tally.posted);
        self.writer.ledger.failed = true;
        self.next_post_at = Time::NEVER;
    }

    pub(crate) fn receiver_failed(&mut self) {
        self.writer.ledger.receiver_failed = true;
    }

    pub(crate) fn finished(&self) -> bool {
        let tally = self.writer.ledger.tally;
        let all = self.writer.ledger.failed || tally.retired == tally.posted;
        self.writer.finished() && all && self.receives.is_empty()
    }
}

fn post(machine: &mut Machine, hands: &mut Hands<'_>, wr: GatherWr<'_>, once: bool) {
    let posted = match wr.local {
        [local] => {
            let GatherWr { wr_id, op, remote, signaled, fence, .. } = wr;
            let wr = spindrift::work::SendWr { wr_id, op, local: *local, remote, signaled, fence };
            machine.post_send(hands, wr, once)
        }
        _ => machine.post_gather(hands, wr, once),
    };
    posted.expect("room");
}
