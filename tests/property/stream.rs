//! One direction of a queue pair: the work it is given, and what must come of it.

use spindrift::time::Time;
use spindrift::work::WcStatus;

use crate::plan::EndPlan;
use crate::support::ledger::{GUARD, Ledger, Memory, Message, gather};
use crate::support::net::Net;
use crate::support::pair::End;
use crate::support::rand::Rng;

pub(crate) struct Stream {
    pub(crate) from: End,
    pub(crate) to: End,
    plan: EndPlan,
    mtu: u32,
    rng: Rng,
    /// The same bytes as in the source, in memory of their own.
    mirror: Memory,
    pub(crate) ledger: Ledger,
    cursor: usize,
    pub(crate) next_post_at: Time,
}

impl Stream {
    /// Bytes of the region that a stream of `plan` writes to.
    pub(crate) fn target_len(plan: &EndPlan) -> usize {
        2 * GUARD + plan.largest.max(plan.long) as usize * 2 + 4096
    }

    pub(crate) fn new(
        (from, to): (End, End),
        plan: &EndPlan,
        mtu: u32,
        [source, mirror, target]: [Memory; 3],
        mut rng: Rng,
    ) -> Self {
        let ledger = Ledger::new(source, target, &[WcStatus::RetryExceeded], &mut rng);
        mirror.region.write_at(0, ledger.source_bytes()).unwrap();
        Self {
            from,
            to,
            plan: plan.clone(),
            mtu,
            mirror,
            ledger,
            cursor: GUARD,
            next_post_at: Time(rng.below(plan.pause_ns + 1)),
            rng,
        }
    }

    /// The keys of the memory that it sends from.
    pub(crate) fn lkeys(&self) -> [u32; 2] {
        [self.ledger.source(), &self.mirror].map(|memory| memory.key.lkey)
    }

    pub(crate) fn all_posted(&self) -> bool {
        self.ledger.failed || self.ledger.tally.posted == self.plan.messages
    }

    pub(crate) fn finished(&self) -> bool {
        self.all_posted() && self.ledger.is_done()
    }

    /// Posts a few more work requests; they wait when the send queue or the target memory is full.
    pub(crate) fn post(&mut self, net: &mut Net) {
        self.next_post_at = net.now.after(1 + self.rng.below(self.plan.pause_ns));
        if self.plan.denies {
            self.deny_or_allow(net);
        }
        for _ in 0..self.rng.range(1, self.plan.burst) {
            if self.all_posted() {
                break;
            }
            let full = self.ledger.outstanding() >= self.plan.depth as usize;
            let Some(message) = (if full { None } else { self.next_message() }) else {
                self.next_post_at = Time::NEVER;
                break;
            };
            self.post_one(net, message);
        }
        if self.plan.denies && (self.next_post_at == Time::NEVER || self.all_posted()) {
            self.allow_all(net);
        }
        net.pump(self.from.node);
    }

    /// What an operator may do at any time.
    fn deny_or_allow(&mut self, net: &mut Net) {
        let plane = self.rng.below(net.links.len() as u64) as u8;
        let (qpn, denies, whole) = (self.from.qpn, self.rng.one_in(2), self.rng.one_in(3));
        let endpoint = net.endpoint(self.from.node);
        if whole {
            let _ = if denies { endpoint.deny_plane(qpn, plane) } else { endpoint.allow_plane(qpn, plane) };
        }
        let evs: Vec<_> = endpoint.ev_states(qpn).unwrap().map(|state| state.ev).collect();
        for ev in evs {
            if self.rng.one_in(4) {
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

    fn post_one(&mut self, net: &mut Net, message: Message) {
        let now = net.now;
        if message.imm.is_some() {
            let wr = self.ledger.post_recv(message.wr_id ^ 0xf00d);
            net.endpoint(self.to.node).post_recv(self.to.qpn, wr).unwrap();
        }
        let completes = message.signaled || self.plan.sig_all;
        let wr = self.ledger.post(message, completes);
        // Drawn apart, so that what else a seed stands for does not depend on it.
        let mut rng = Rng::new(wr.wr_id ^ wr.local.addr);
        if rng.one_in(3) {
            let local = self.ledger.split(&wr.local, &self.mirror, self.mtu, &mut rng);
            net.endpoint(self.from.node).post_gather(now, self.from.qpn, gather(&wr, &local)).unwrap();
        } else {
            net.endpoint(self.from.node).post_send(now, self.from.qpn, wr).unwrap();
        }
    }

    /// The next message, if there is room for it that no message under way uses.
    fn next_message(&mut self) -> Option<Message> {
        let mut rng = self.rng.clone();
        let len = match self.ledger.tally.posted {
            0 if self.plan.long > 0 => self.plan.long as usize,
            _ => self.length(&mut rng),
        };
        let start = self.cursor + rng.below(33) as usize;
        let area = self.ledger.area();
        let start = if start + len > area.end { area.start } else { start };
        let target = start..start + len;
        if !self.ledger.is_free(&target) {
            return None;
        }
        let message = Message {
            wr_id: self.ledger.tally.posted << 8 | u64::from(self.from.qpn.get() & 0xff),
            signaled: rng.chance(self.plan.signaled),
            imm: rng.chance(self.plan.immediates).then(|| rng.bits() as u32),
            source: rng.below((self.ledger.source_len() - len + 1) as u64) as usize,
            target,
        };
        self.cursor = message.target.end;
        self.rng = rng;
        Some(message)
    }

    fn length(&self, rng: &mut Rng) -> usize {
        let mtu = u64::from(self.mtu);
        let largest = u64::from(self.plan.largest);
        let len = match rng.below(4) {
            0 => rng.range(1, largest),
            1 => (mtu * rng.range(1, largest / mtu + 1) + rng.below(3)).saturating_sub(1),
            _ => rng.sized(1, largest),
        };
        len.clamp(1, largest) as usize
    }

    /// There is room for other requests.
    pub(crate) fn on_retired(&mut self, now: Time, count: u32) {
        if self.next_post_at == Time::NEVER {
            self.next_post_at = now.after(self.rng.below(self.plan.pause_ns));
        }
        self.ledger.on_retired(count);
    }

    /// All that must hold when nothing is under way any more.
    pub(crate) fn check_end(&mut self) {
        self.ledger.check_end();
        assert!(self.ledger.failed || self.ledger.tally.posted == self.plan.messages);
    }
}
