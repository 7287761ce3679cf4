//! The receiving half of a queue pair: only the expected packet is taken (InfiniBand specification, volume 1, section 9.7.4), and marked packets
//! make it send CNPs.

use spindrift::time::Time;
use spindrift::wire::{Aeth, NakCode, Psn};

use crate::wire::{Content, Data};

/// Bytes that were placed in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Where.
    pub va: u64,
    /// How many.
    pub len: u32,
    /// Whether a message is complete with them.
    pub last: bool,
    /// Its immediate data.
    pub imm: Option<u32>,
}

/// What a responder has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResponderCounters {
    /// Bytes placed.
    pub placed_bytes: u64,
    /// Packets that had come before.
    pub duplicates: u64,
    /// Packets that came too early, which are dropped.
    pub gaps: u64,
    /// Packets that make no sense where they came.
    pub refused: u64,
    /// Packets that came in marked.
    pub marked: u64,
}

/// A message of which a part has come.
#[derive(Clone, Copy, Debug)]
struct Open {
    va: u64,
    left: u32,
}

/// See the module.
#[derive(Debug)]
pub struct Responder {
    mtu: u32,
    expected: Psn,
    /// Complete messages, modulo 2^24.
    msn: u32,
    open: Option<Open>,
    /// A NAK for the expected packet has been sent, and it has not come yet.
    nak_sent: bool,
    refused: bool,
    ack_every: u32,
    /// Packets since the last acknowledgement.
    unacknowledged: u32,
    reply: Option<Aeth>,
    counters: ResponderCounters,
}

impl Responder {
    /// Expects a PSN first, and acknowledges each message and at least every `ack_every` packets.
    pub fn new(psn: Psn, mtu: u32, ack_every: u32) -> Self {
        Self {
            mtu: mtu.max(1),
            expected: psn,
            msn: 0,
            open: None,
            nak_sent: false,
            refused: false,
            ack_every: ack_every.max(1),
            unacknowledged: 0,
            reply: None,
            counters: ResponderCounters::default(),
        }
    }

    /// A packet has come in. What it placed, if it was the expected one.
    pub fn receive(&mut self, data: &Data) -> Option<Placed> {
        if self.refused {
            return None;
        }
        match data.psn.distance(self.expected) {
            0 => self.take(data),
            // Writes may be carried out once only, and have been; the requester has not heard (section 9.7.5.1.4).
            ..0 => {
                self.counters.duplicates += 1;
                self.acknowledge(data.ack_req);
                None
            }
            // Sequence error: one NAK until the expected packet comes (section 9.7.5.2.8).
            _ => {
                self.counters.gaps += 1;
                if !self.nak_sent {
                    self.nak_sent = true;
                    self.reply = Some(Aeth::nak(NakCode::PsnSequence, self.msn));
                }
                None
            }
        }
    }

    fn take(&mut self, data: &Data) -> Option<Placed> {
        let last = data.opcode.is_last();
        let open = match (data.reth, self.open) {
            (Some(reth), None) => Some(Open { va: reth.va, left: reth.dma_len }),
            (None, Some(open)) => Some(open),
            _ => None,
        };
        let fits = |open: &Open| {
            if last { open.left == data.len } else { data.len == self.mtu && open.left > self.mtu }
        };
        let Some(open) = open.filter(|open| fits(open) && data.len <= self.mtu) else {
            // Out of order within the message, or of a wrong length (section 9.7.4.1.3): the queue pair takes nothing more.
            self.counters.refused += 1;
            self.refused = true;
            self.reply = Some(Aeth::nak(NakCode::InvalidRequest, self.msn));
            return None;
        };
        let next = Open { va: open.va.wrapping_add(u64::from(data.len)), left: open.left - data.len };
        self.open = Some(next).filter(|_| !last);
        self.expected = self.expected.add(1);
        self.nak_sent = false;
        self.msn = (self.msn + u32::from(last)) & 0xff_ffff;
        self.counters.placed_bytes += u64::from(data.len);
        self.acknowledge(data.ack_req);
        Some(Placed { va: open.va, len: data.len, last, imm: data.imm })
    }

    fn acknowledge(&mut self, asked: bool) {
        self.unacknowledged += 1;
        // A NAK that waits for its turn acknowledges as much as an ACK. Once its packet has come, an ACK takes its place.
        let nak_waits = self.nak_sent && self.reply.is_some();
        if !nak_waits && (asked || self.reply.is_some() || self.unacknowledged >= self.ack_every) {
            self.reply = Some(Aeth::ack(self.msn));
        }
    }

    /// The acknowledgement to send. One that waits for its turn is made of what has come until then.
    pub fn reply(&mut self) -> Option<Content> {
        let aeth = self.reply.take()?;
        self.unacknowledged = 0;
        // An ACK names the last packet that came in order, a NAK the one that is expected.
        let is_ack = aeth.syndrome == Aeth::ack(0).syndrome;
        let psn = if is_ack { self.expected.sub(1) } else { self.expected };
        Some(Content::Ack { psn, aeth: Aeth { msn: self.msn, ..aeth } })
    }

    /// Whether there is one.
    pub const fn has_reply(&self) -> bool {
        self.reply.is_some()
    }

    /// A packet has come in marked.
    pub const fn count_mark(&mut self) {
        self.counters.marked += 1;
    }

    /// What it has done.
    pub const fn counters(&self) -> ResponderCounters {
        self.counters
    }
}

/// The notification point of DCQCN (Zhu et al., "Congestion control for large-scale RDMA deployments", 2015, section 3.1): a CNP when a
/// marked packet comes, and no other for an interval.
#[derive(Clone, Copy, Debug)]
pub struct NotificationPoint {
    interval_ns: u64,
    next: Time,
    sent: u64,
}

impl NotificationPoint {
    /// At most one CNP in each interval.
    pub const fn new(interval_ns: u64) -> Self {
        Self { interval_ns, next: Time::ZERO, sent: 0 }
    }

    /// A marked packet has come in. Whether to send a CNP.
    pub fn on_mark(&mut self, now: Time) -> bool {
        if now < self.next {
            return false;
        }
        self.next = now + self.interval_ns;
        self.sent += 1;
        true
    }

    /// CNPs so far.
    pub const fn sent(&self) -> u64 {
        self.sent
    }
}

#[cfg(test)]
mod tests;
