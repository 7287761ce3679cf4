//! The application's outstanding work requests, kept until they complete, so that another pair can take them.

use std::collections::VecDeque;

use crate::work::{GatherWr, RemoteAddr, ScatterWr, SendOp, SendWr, Sge, Wc, WcOpcode, WcStatus};

use super::message::Count;

/// Elements of requests that have more than one, in slots of equal size that the requests take in turn.
#[derive(Clone, Debug, Hash)]
struct Elements {
    slots: Vec<Sge>,
    each: usize,
}

impl Elements {
    /// For `requests` outstanding requests of up to `most` elements.
    fn new(requests: usize, most: u32) -> Self {
        let each = if most > 1 { most as usize } else { 0 };
        Self { slots: vec![Sge::EMPTY; requests * each], each }
    }

    fn slot(&self, seq: u64) -> std::ops::Range<usize> {
        let requests = self.slots.len().checked_div(self.each).unwrap_or(0) as u64;
        let start = seq.checked_rem(requests).unwrap_or(0) as usize * self.each;
        start..start + self.each
    }

    fn put(&mut self, seq: u64, elements: &[Sge]) {
        let slot = self.slot(seq);
        if let Some(slot) = self.slots.get_mut(slot) {
            slot.iter_mut().zip(elements).for_each(|(slot, element)| *slot = *element);
        }
    }

    fn get(&self, seq: u64, count: u8) -> &[Sge] {
        self.slots.get(self.slot(seq)).and_then(|slot| slot.get(..usize::from(count))).unwrap_or_default()
    }
}

/// A send work request.
#[derive(Clone, Debug, Hash)]
pub(super) struct Send {
    wr_id: u64,
    pub(super) op: SendOp,
    /// Its only element, if it has one.
    local: Sge,
    pub(super) remote: RemoteAddr,
    pub(super) signaled: bool,
    fence: bool,
    /// The application does not allow that it is sent again.
    once: bool,
    /// Elements, if they are several; then `local` has their bytes in all.
    elements: u8,
}

impl Send {
    fn wc(&self, status: WcStatus) -> Wc {
        Wc {
            wr_id: self.wr_id,
            status,
            opcode: self.op.wc_opcode(),
            byte_len: self.local.len,
            ..Wc::default()
        }
    }

    fn takes_receive(&self) -> bool {
        self.op.takes_receive()
    }

    /// Whether it names memory of the peer.
    pub(super) const fn has_remote_key(&self) -> bool {
        self.local.len > 0 && !matches!(self.op, SendOp::Send | SendOp::SendWithImm(_))
    }

    /// The request for one pair.
    pub(super) const fn request<'a>(&self, seq: u64, local: &'a [Sge], remote: RemoteAddr) -> GatherWr<'a> {
        let Self { op, signaled, fence, .. } = *self;
        GatherWr { wr_id: seq, op, local, remote, signaled, fence }
    }
}

/// What the queue needs of a request.
pub(super) trait Request {
    /// Its only element, and 0. If it has several, the second value is their number, and [`Elements`] has them.
    fn local(&self) -> (&Sge, u8);
}

/// Work requests in order: those that were posted to a pair, then those that were not.
#[derive(Clone, Debug, Hash)]
pub(super) struct Queue<R> {
    entries: VecDeque<R>,
    elements: Elements,
    capacity: usize,
    /// Sequence number of the oldest entry.
    first: u64,
    /// Entries that were posted to the present pair.
    posted: usize,
    /// Two-sided messages of requests that have completed.
    completed: Count,
}

/// Send work requests.
pub(super) type Sends = Queue<Send>;

/// Receive work requests.
pub(super) type Receives = Queue<Receive>;

impl<R: Request> Queue<R> {
    pub(super) fn new(capacity: u32, max_sge: u32) -> Self {
        let capacity = capacity as usize;
        Self {
            entries: VecDeque::new(),
            elements: Elements::new(capacity, max_sge),
            capacity,
            first: 0,
            posted: 0,
            completed: Count::default(),
        }
    }

    pub(super) const fn capacity(&self) -> u32 {
        self.capacity as u32
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.entries.len() >= self.capacity
    }

    /// Sequence number of the oldest request.
    pub(super) const fn first(&self) -> u64 {
        self.first
    }

    /// Sequence number of the request after the last one.
    pub(super) fn end(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    /// Sequence number of the first request that was not posted to the present pair.
    pub(super) const fn posted_end(&self) -> u64 {
        self.first + self.posted as u64
    }

    pub(super) fn all_posted(&self) -> bool {
        self.posted == self.entries.len()
    }

    /// Two-sided messages that have completed, since the connection began.
    pub(super) const fn completed(&self) -> Count {
        self.completed
    }

    /// The first request that was not posted: its sequence number, the request, and its elements.
    pub(super) fn next(&self) -> Option<(u64, &R, &[Sge])> {
        let seq = self.posted_end();
        let request = self.entries.get(self.posted)?;
        let elements = match request.local() {
            (local, 0) => std::slice::from_ref(local),
            (_, count) => self.elements.get(seq, count),
        };
        Some((seq, request, elements))
    }

    /// That request was posted.
    pub(super) const fn advance(&mut self) {
        self.posted += 1;
    }

    /// None was posted to the present pair.
    pub(super) const fn rewind(&mut self) {
        self.posted = 0;
    }
}

impl Request for Send {
    fn local(&self) -> (&Sge, u8) {
        (&self.local, self.elements)
    }
}

impl Sends {
    /// A request with one element.
    #[inline]
    pub(super) fn push_one(&mut self, wr: &SendWr, once: bool) {
        let SendWr { wr_id, op, local, remote, signaled, fence } = *wr;
        self.entries.push_back(Send { wr_id, op, local, remote, signaled, fence, once, elements: 0 });
    }

    pub(super) fn push(&mut self, wr: &GatherWr<'_>, once: bool) {
        let only = wr.only_element();
        let local = only.unwrap_or(Sge { len: wr.len() as u32, ..Sge::EMPTY });
        let elements = if only.is_some() { 0 } else { wr.local.len() as u8 };
        self.elements.put(self.end(), if elements == 0 { &[] } else { wr.local });
        let GatherWr { wr_id, op, remote, signaled, fence, .. } = *wr;
        self.entries.push_back(Send { wr_id, op, local, remote, signaled, fence, once, elements });
    }

    /// Whether the last posted request is one whose completion will be reported; `None` if none was posted.
    pub(super) fn last_posted_is_signaled(&self) -> Option<bool> {
        self.entries.get(self.posted.checked_sub(1)?).map(|send| send.signaled)
    }

    fn pop(&mut self) -> Option<Send> {
        let send = self.entries.pop_front()?;
        self.first += 1;
        self.posted = self.posted.saturating_sub(1);
        self.completed = self.completed.add(u32::from(send.takes_receive()));
        Some(send)
    }

    /// All posted requests up to `seq` are done, and this one has its completion: returns that. `None` if no such
    /// request was posted.
    #[inline]
    pub(super) fn complete(&mut self, seq: u64) -> Option<Wc> {
        if !(self.first..self.posted_end()).contains(&seq) {
            return None;
        }
        while self.first < seq {
            self.pop();
        }
        self.pop().map(|send| send.wc(WcStatus::Success))
    }

    /// All requests before `seq` have succeeded, without a completion that says so.
    pub(super) fn complete_before(&mut self, seq: u64, done: &mut VecDeque<Wc>) -> u32 {
        let mut count = 0;
        while self.first < seq
            && let Some(send) = self.pop()
        {
            count += 1;
            if send.signaled {
                done.push_back(send.wc(WcStatus::Success));
            }
        }
        count
    }

    /// Requests before `end`.
    pub(super) const fn count_before(&self, end: u64) -> u64 {
        end.saturating_sub(self.first)
    }

    /// The peer has received this many messages, of requests before `end`: those that it received, and all requests before them, have succeeded.
    /// Returns how many requests that completes, or `None` if the number cannot be right.
    pub(super) fn complete_received(
        &mut self,
        received: Count,
        end: u64,
        done: &mut VecDeque<Wc>,
    ) -> Option<u32> {
        let ahead = received.ahead_of(self.completed) as usize;
        if ahead == 0 {
            return Some(0);
        }
        let sent = self.entries.iter().take(self.count_before(end) as usize).enumerate();
        let mut two_sided = sent.filter(|(_, send)| send.takes_receive());
        let (last, _) = two_sided.nth(ahead - 1)?;
        Some(self.complete_before(self.first + last as u64 + 1, done))
    }

    /// The `wr_id` of a request before `end` that may not be sent again: an atomic operation, one with the hint, or a read
    /// before a request that may change what it reads.
    pub(super) fn not_repeatable(&self, end: u64) -> Option<u64> {
        let mut posted = self.entries.iter().take(self.count_before(end) as usize);
        let once = |send: &&Send| send.once || send.op.is_atomic();
        let by_itself = posted.clone().find(once).map(|send| send.wr_id);
        let read = posted.clone().position(|send| send.op == SendOp::Read);
        let early_read = || {
            let read = posted.nth(read?)?.wr_id;
            posted.any(|send| send.op != SendOp::Read).then_some(read)
        };
        by_itself.or_else(early_read)
    }

    /// Ends all requests: the first with `status`, the others as flushed.
    pub(super) fn fail_all(&mut self, mut status: WcStatus, done: &mut VecDeque<Wc>) {
        while let Some(send) = self.pop() {
            done.push_back(send.wc(status));
            status = WcStatus::WrFlushError;
        }
    }

    /// The completion of a request that was posted after the failure.
    pub(super) fn flushed(wr: &GatherWr<'_>) -> Wc {
        let op = wr.op.wc_opcode();
        Wc {
            wr_id: wr.wr_id,
            status: WcStatus::WrFlushError,
            opcode: op,
            byte_len: wr.len() as u32,
            ..Wc::default()
        }
    }
}

/// A receive work request.
#[derive(Clone, Debug, Hash)]
pub(super) struct Receive {
    wr_id: u64,
    local: Sge,
    elements: u8,
}

impl Request for Receive {
    fn local(&self) -> (&Sge, u8) {
        (&self.local, self.elements)
    }
}

impl Receives {
    pub(super) fn push(&mut self, wr: &ScatterWr<'_>) {
        let only = wr.with_one();
        let elements = if only.is_some() { 0 } else { wr.local.len() as u8 };
        self.elements.put(self.end(), if elements == 0 { &[] } else { wr.local });
        let local = only.map_or(Sge::EMPTY, |only| only.local);
        self.entries.push_back(Receive { wr_id: wr.wr_id, local, elements });
    }

    /// The oldest request has completed: its `wr_id`. `None` if that is not the oldest one that was posted.
    #[inline]
    pub(super) fn complete(&mut self, seq: u64) -> Option<u64> {
        if seq != self.first || self.posted == 0 {
            return None;
        }
        let receive = self.entries.pop_front()?;
        self.first += 1;
        self.posted -= 1;
        self.completed = self.completed.add(1);
        Some(receive.wr_id)
    }

    /// Ends all requests as flushed.
    pub(super) fn fail_all(&mut self, done: &mut VecDeque<Wc>) {
        while let Some(receive) = self.entries.pop_front() {
            self.first += 1;
            done.push_back(Self::flushed(receive.wr_id));
        }
        self.posted = 0;
    }

    pub(super) fn flushed(wr_id: u64) -> Wc {
        Wc { wr_id, status: WcStatus::WrFlushError, opcode: WcOpcode::Recv, ..Wc::default() }
    }
}

/// A write without bytes: what the machine itself sends.
pub(super) const fn control(wr_id: u64, op: SendOp) -> SendWr {
    let remote = RemoteAddr { addr: 0, rkey: 0 };
    SendWr { wr_id, op, local: Sge::EMPTY, remote, signaled: true, fence: false }
}
