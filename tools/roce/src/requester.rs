//! The sending half of a queue pair: go-back-N (InfiniBand specification, volume 1, section 9.7.5, and 9.9.2 for errors).
//!
//! Packets carry the low 24 bits of a sequence number that never wraps, so no two outstanding packets are taken for each other as long as less
//! than half of these numbers is outstanding ([`WINDOW`]).

use std::collections::VecDeque;

use spindrift::time::Time;
use spindrift::wire::{Psn, Reth};

use crate::wire::{Data, Opcode};

/// The most packets that may be outstanding: less than half of all PSNs, so that an old one is never taken for a new one.
pub const WINDOW: u64 = 1 << 23;

/// An RDMA write to carry out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// Comes back in its completion.
    pub wr_id: u64,
    /// Where it goes.
    pub va: u64,
    /// Bytes of it; there may be none.
    pub len: u32,
    /// Immediate data, of which the peer is told when all has arrived.
    pub imm: Option<u32>,
}

/// How a write ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// All of it is in the peer's memory.
    Success,
    /// No answer, or none that helped, after all retries.
    RetryExceeded,
    /// The peer refused a packet.
    Refused,
    /// An earlier one failed.
    Flushed,
}

/// How a requester retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// The timer is 4.096 us times 2 to the power of this; 0 for none (section 9.7.6.1.3).
    pub timeout: u8,
    /// Retries without progress before the queue pair fails, 0 to 7 (section 9.9.2.1.1).
    pub count: u8,
    /// How often the timer doubles while it expires again and again. The specification has it constant, which is 0; NICs have such a setting.
    pub doublings: u8,
}

impl Retry {
    /// How long the timer runs after so many retries without progress; `None` if it is off.
    pub const fn timer_ns(&self, retries: u8) -> Option<u64> {
        if self.timeout == 0 {
            return None;
        }
        let exponent = if self.timeout > 31 { 31 } else { self.timeout };
        let doublings = if retries < self.doublings { retries } else { self.doublings };
        let doublings = if doublings > 16 { 16 } else { doublings };
        Some(4_096 << (exponent + doublings))
    }
}

/// A write, and which packets it is made of.
#[derive(Clone, Copy, Debug)]
struct Posted {
    write: Write,
    first: u64,
    packets: u64,
}

/// What a requester has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequesterCounters {
    /// Data packets sent.
    pub sent: u64,
    /// Those sent before.
    pub repeats: u64,
    /// Sequence error NAKs that made it go back.
    pub sequence_naks: u64,
    /// Times that its timer expired.
    pub timeouts: u64,
    /// Acknowledgements of packets that it has not sent, or that were acknowledged before.
    pub strange_acks: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Requester {
    mtu: u32,
    retry: Retry,
    posted: VecDeque<Posted>,
    /// The oldest packet that is not acknowledged.
    una: u64,
    /// The next to send: `una` or later.
    next: u64,
    /// Beyond the latest that was ever sent.
    high: u64,
    /// Beyond the last that is posted.
    end: u64,
    /// Retries since something was acknowledged last.
    retries: u8,
    deadline: Time,
    failed: bool,
    completions: VecDeque<(u64, Status)>,
    counters: RequesterCounters,
}

impl Requester {
    /// Begins at a PSN, with packets of `mtu` bytes of payload.
    pub fn new(psn: Psn, mtu: u32, retry: Retry) -> Self {
        // Far from zero, so that nothing is before the beginning.
        let first = 1 << 24 | u64::from(psn.get());
        Self {
            mtu: mtu.max(1),
            retry,
            posted: VecDeque::new(),
            una: first,
            next: first,
            high: first,
            end: first,
            retries: 0,
            deadline: Time::NEVER,
            failed: false,
            completions: VecDeque::new(),
            counters: RequesterCounters::default(),
        }
    }

    /// Takes a write; `false` after a failure.
    pub fn post(&mut self, write: Write) -> bool {
        if self.failed {
            return false;
        }
        let packets = u64::from(write.len.div_ceil(self.mtu).max(1));
        self.posted.push_back(Posted { write, first: self.end, packets });
        self.end += packets;
        true
    }

    /// Whether there is a packet to send.
    pub const fn has_next(&self) -> bool {
        !self.failed && self.next < self.end && self.next - self.una < WINDOW
    }

    /// The next packet.
    pub fn transmit(&mut self, now: Time) -> Option<Data> {
        if !self.has_next() {
            return None;
        }
        // Posted writes are in order of their packets, and none is empty.
        let at = self.posted.partition_point(|posted| posted.first <= self.next).checked_sub(1)?;
        let Posted { write, first, packets } = *self.posted.get(at)?;
        let (index, last) = (self.next - first, first + packets - 1 == self.next);
        let before = index as u32 * self.mtu;
        let data = Data {
            opcode: Opcode::write(index == 0, last, write.imm.is_some()),
            psn: Psn::new(self.next as u32),
            ack_req: last || self.next + 1 - self.una == WINDOW,
            reth: (index == 0).then_some(Reth { va: write.va, rkey: 0, dma_len: write.len }),
            imm: write.imm.filter(|_| last),
            len: if last { write.len - before } else { self.mtu },
        };
        self.counters.sent += 1;
        self.counters.repeats += u64::from(self.next < self.high);
        self.next += 1;
        self.high = self.high.max(self.next);
        if self.deadline == Time::NEVER {
            self.start_timer(now);
        }
        Some(data)
    }

    fn start_timer(&mut self, now: Time) {
        let runs = self.una < self.high && !self.failed;
        let ns = self.retry.timer_ns(self.retries).filter(|_| runs);
        self.deadline = ns.map_or(Time::NEVER, |ns| now + ns);
    }

    /// The packet that a PSN in an acknowledgement means: at most half of all PSNs from the oldest outstanding one.
    const fn sequence(&self, psn: Psn) -> Option<u64> {
        let distance = psn.distance(Psn::new(self.una as u32)) as i64;
        self.una.checked_add_signed(distance)
    }

    /// Everything up to `psn` has arrived (section 9.7.5.1.2: acknowledgements coalesce).
    pub fn on_ack(&mut self, now: Time, psn: Psn) {
        match self.sequence(psn) {
            Some(acked) if acked >= self.una && acked < self.high => self.advance(now, acked + 1),
            _ => self.counters.strange_acks += 1,
        }
    }

    /// The peer expected `psn` and got a later one. Everything before it has arrived; from it on, all is sent again (section 9.7.5.2.8).
    pub fn on_sequence_nak(&mut self, now: Time, psn: Psn) {
        let expected = match self.sequence(psn) {
            Some(expected) if expected >= self.una && expected < self.high => expected,
            _ => {
                self.counters.strange_acks += 1;
                return;
            }
        };
        self.counters.sequence_naks += 1;
        self.advance(now, expected);
        self.go_back(now);
    }

    /// The peer refused a packet: the queue pair cannot go on (section 9.9.2.4.2).
    pub fn on_refusal(&mut self, now: Time, psn: Psn) {
        match self.sequence(psn) {
            Some(refused) if refused >= self.una && refused < self.high => {
                self.advance(now, refused);
                self.fail(Status::Refused);
            }
            _ => self.counters.strange_acks += 1,
        }
    }

    /// Everything before `una` has arrived.
    fn advance(&mut self, now: Time, una: u64) {
        if una <= self.una || self.failed {
            return;
        }
        self.una = una;
        self.next = self.next.max(una);
        self.retries = 0;
        while let Some(done) = self.posted.front().filter(|posted| posted.first + posted.packets <= una) {
            self.completions.push_back((done.write.wr_id, Status::Success));
            self.posted.pop_front();
        }
        self.start_timer(now);
    }

    /// Sends all that is outstanding again, unless it has been tried too often.
    fn go_back(&mut self, now: Time) {
        if self.failed {
            return;
        }
        if self.retries >= self.retry.count {
            return self.fail(Status::RetryExceeded);
        }
        self.retries += 1;
        self.next = self.una;
        self.start_timer(now);
    }

    /// When [`on_timeout`](Self::on_timeout) is due.
    pub const fn deadline(&self) -> Time {
        self.deadline
    }

    /// Nothing was acknowledged for as long as the timer runs.
    pub fn on_timeout(&mut self, now: Time) {
        if now < self.deadline {
            return;
        }
        self.deadline = Time::NEVER;
        if self.una < self.high {
            self.counters.timeouts += 1;
            self.go_back(now);
        }
    }

    fn fail(&mut self, status: Status) {
        self.failed = true;
        self.deadline = Time::NEVER;
        let statuses = core::iter::once(status).chain(core::iter::repeat(Status::Flushed));
        let ended = self.posted.drain(..).zip(statuses);
        self.completions.extend(ended.map(|(posted, status)| (posted.write.wr_id, status)));
    }

    /// Whether it has failed.
    pub const fn has_failed(&self) -> bool {
        self.failed
    }

    /// The next write that ended, in the order in which they were posted.
    pub fn poll(&mut self) -> Option<(u64, Status)> {
        self.completions.pop_front()
    }

    /// What it has done.
    pub const fn counters(&self) -> RequesterCounters {
        self.counters
    }
}

#[cfg(test)]
mod tests;
