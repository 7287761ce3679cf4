//! One direction of a queue pair: the work it is given, and what must come of it.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use spindrift::memory::{MrKey, Region};
use spindrift::time::Time;
use spindrift::work::{RecvWr, RemoteAddr, SendOp, SendWr, Sge, Wc, WcStatus};

use crate::plan::EndPlan;
use crate::support::net::Net;
use crate::support::pair::End;
use crate::support::rand::Rng;

/// Bytes before and behind the area that messages are written to, which must never change.
const GUARD: usize = 64;

/// A region with its keys.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    pub(crate) region: Arc<Region>,
    pub(crate) key: MrKey,
}

#[derive(Clone, Debug)]
struct Message {
    wr_id: u64,
    signaled: bool,
    imm: Option<u32>,
    /// Where in the source region it starts, and where in the target region it goes.
    source: usize,
    target: Range<usize>,
}

/// What a stream has seen happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) posted: u64,
    pub(crate) retired: u64,
    pub(crate) completions: u64,
    pub(crate) immediates: u64,
    pub(crate) bytes: u64,
}

pub(crate) struct Stream {
    pub(crate) from: End,
    pub(crate) to: End,
    plan: EndPlan,
    mtu: u32,
    rng: Rng,
    source: Memory,
    source_bytes: Vec<u8>,
    target: Memory,
    /// What the target region holds, but for messages under way.
    model: Vec<u8>,
    /// Posted and neither retired nor failed.
    under_way: VecDeque<Message>,
    /// Failed: they may have been written in part, and be written on as long as their packets wander about.
    failed_messages: Vec<Message>,
    /// Signalled, in order, and not completed.
    awaited: VecDeque<u64>,
    /// Messages whose immediate has not come out at the peer.
    immediates: VecDeque<Message>,
    /// Receive work requests at the peer that no immediate has taken.
    receives: VecDeque<u64>,
    cursor: usize,
    pub(crate) next_post_at: Time,
    pub(crate) failed: bool,
    pub(crate) receiver_failed: bool,
    pub(crate) tally: Tally,
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
        source: Memory,
        target: Memory,
        mut rng: Rng,
    ) -> Self {
        let source_bytes = rng.bytes(source.region.len());
        source.region.write_at(0, &source_bytes).unwrap();
        let model = rng.bytes(target.region.len());
        target.region.write_at(0, &model).unwrap();
        Self {
            from,
            to,
            plan: plan.clone(),
            mtu,
            source,
            source_bytes,
            target,
            model,
            under_way: VecDeque::new(),
            failed_messages: Vec::new(),
            awaited: VecDeque::new(),
            immediates: VecDeque::new(),
            receives: VecDeque::new(),
            cursor: GUARD,
            next_post_at: Time(rng.below(plan.pause_ns + 1)),
            failed: false,
            receiver_failed: false,
            tally: Tally::default(),
            rng,
        }
    }

    pub(crate) fn all_posted(&self) -> bool {
        self.failed || self.tally.posted == self.plan.messages
    }

    pub(crate) fn finished(&self) -> bool {
        self.failed
            || self.all_posted()
                && self.under_way.is_empty()
                && self.awaited.is_empty()
                && (self.immediates.is_empty() || self.receiver_failed)
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
            let full = self.under_way.len() >= self.plan.depth as usize;
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
            let wr = RecvWr { wr_id: message.wr_id ^ 0xf00d };
            net.endpoint(self.to.node).post_recv(self.to.qpn, wr).unwrap();
            self.receives.push_back(wr.wr_id);
        }
        let wr = SendWr {
            wr_id: message.wr_id,
            op: message.imm.map_or(SendOp::Write, SendOp::WriteWithImm),
            local: Sge {
                addr: self.source.region.iova() + message.source as u64,
                len: message.target.len() as u32,
                lkey: self.source.key.lkey,
            },
            remote: RemoteAddr {
                addr: self.target.region.iova() + message.target.start as u64,
                rkey: self.target.key.rkey,
            },
            signaled: message.signaled,
        };
        self.tally.posted += 1;
        if message.signaled || self.plan.sig_all {
            self.awaited.push_back(message.wr_id);
        }
        if message.imm.is_some() {
            self.immediates.push_back(message.clone());
        }
        self.under_way.push_back(message);
        net.endpoint(self.from.node).post_send(now, self.from.qpn, wr).unwrap();
    }

    /// The next message, if there is room for it that no message under way uses.
    fn next_message(&mut self) -> Option<Message> {
        let mut rng = self.rng.clone();
        let len = match self.tally.posted {
            0 if self.plan.long > 0 => self.plan.long as usize,
            _ => self.length(&mut rng),
        };
        let start = self.cursor + rng.below(33) as usize;
        let area = GUARD..self.model.len() - GUARD;
        let start = if start + len > area.end { area.start } else { start };
        let target = start..start + len;
        let taken =
            |message: &Message| message.target.start < target.end && target.start < message.target.end;
        if self.under_way.iter().any(taken) {
            return None;
        }
        let message = Message {
            wr_id: self.tally.posted << 8 | u64::from(self.from.qpn.get() & 0xff),
            signaled: rng.chance(self.plan.signaled),
            imm: rng.chance(self.plan.immediates).then(|| rng.bits() as u32),
            source: rng.below((self.source_bytes.len() - len + 1) as u64) as usize,
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

    /// A send completion of this stream's queue pair.
    pub(crate) fn on_send_completion(&mut self, wc: &Wc) {
        self.tally.completions += 1;
        if self.failed || !wc.status.is_success() {
            self.on_failure(wc);
            return;
        }
        let expected = self.awaited.pop_front();
        assert_eq!(Some(wc.wr_id), expected, "completions come in order, one a signalled request");
        let at = self.under_way.iter().position(|message| message.wr_id == wc.wr_id);
        let message = &self.under_way[at.expect("a completion comes before its request retires")];
        assert_eq!(wc.byte_len as usize, message.target.len());
        self.check_arrived(message, "a send completion");
    }

    fn on_failure(&mut self, wc: &Wc) {
        let expected = if self.failed { WcStatus::WrFlushError } else { WcStatus::RetryExceeded };
        assert_eq!(wc.status, expected, "the oldest request ends with the reason, the others are flushed");
        let message = self.under_way.pop_front().expect("a flushed request was posted");
        assert_eq!(wc.wr_id, message.wr_id, "requests are flushed in order");
        self.failed_messages.push(message);
        self.failed = true;
        self.awaited.clear();
    }

    /// A message that failed may have been written in part, and nowhere else.
    fn settle_partly(&mut self, message: &Message) {
        let mut now = vec![0; message.target.len()];
        self.target.region.read_at(message.target.start, &mut now).unwrap();
        let sent = &self.source_bytes[message.source..message.source + now.len()];
        let old = &mut self.model[message.target.clone()];
        for ((old, now), sent) in old.iter_mut().zip(&now).zip(sent) {
            assert!(now == old || now == sent, "a failed message may only write its own bytes");
            *old = *now;
        }
    }

    /// The queue pair says that `count` work requests left its queue: there is room for others.
    pub(crate) fn on_retired(&mut self, now: Time, count: u32) {
        if self.next_post_at == Time::NEVER {
            self.next_post_at = now.after(self.rng.below(self.plan.pause_ns));
        }
        self.tally.retired += u64::from(count);
        if self.failed {
            return;
        }
        for _ in 0..count {
            let message = self.under_way.pop_front().expect("what retires was posted");
            self.check_arrived(&message, "the retirement of a request");
            let awaited = self.awaited.front();
            assert_ne!(awaited, Some(&message.wr_id), "a signalled request retires after its completion");
            let sent = &self.source_bytes[message.source..message.source + message.target.len()];
            self.tally.bytes += sent.len() as u64;
            self.model[message.target].copy_from_slice(sent);
        }
    }

    /// A receive completion of the peer's queue pair.
    pub(crate) fn on_receive_completion(&mut self, wc: &Wc) {
        assert_eq!(Some(wc.wr_id), self.receives.pop_front(), "receive requests are used in order");
        if self.receiver_failed || wc.status == WcStatus::WrFlushError {
            assert_eq!(wc.status, WcStatus::WrFlushError);
            self.receiver_failed = true;
            return;
        }
        self.tally.immediates += 1;
        assert_eq!(wc.status, WcStatus::Success);
        let message = self.immediates.pop_front().expect("an immediate that was sent");
        assert_eq!(wc.imm, message.imm, "immediates come out in the order they were sent");
        assert_eq!(wc.byte_len as usize, message.target.len());
        self.check_arrived(&message, "its immediate");
    }

    fn check_arrived(&self, message: &Message, by: &str) {
        let sent = &self.source_bytes[message.source..message.source + message.target.len()];
        let differs = self.target.region.first_difference(message.target.start, sent).unwrap();
        assert_eq!(differs, None, "byte of request {:#x} not there at the time of {by}", message.wr_id);
    }

    /// All that must hold when nothing is under way any more.
    pub(crate) fn check_end(&mut self) {
        self.failed_messages.extend(self.under_way.drain(..));
        for message in &self.failed_messages.clone() {
            self.settle_partly(message);
        }
        let differs = self.target.region.first_difference(0, &self.model).unwrap();
        assert_eq!(differs, None, "memory differs from the model at this byte of {}", self.model.len());
        assert_eq!(self.tally.retired, self.tally.posted, "every request retires");
        if !self.failed {
            assert!(self.failed_messages.is_empty());
            assert_eq!(self.tally.posted, self.plan.messages);
        }
    }
}
