//! One direction of a queue pair as applications see it: what was posted, and what must come of it.
//!
//! The tests of the core compile this file, too: it knows nothing of the network.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use spindrift::endpoint::{Endpoint, PostError};
use spindrift::memory::{MrKey, Region};
use spindrift::wire::Qpn;
use spindrift::work::{
    GatherWr, MAX_SGE, RecvWr, RemoteAddr, ScatterWr, SendOp, SendWr, Sge, Wc, WcOpcode, WcStatus,
};

use super::rand::Rng;

/// Bytes before and behind the area that messages are written to, which must never change.
pub(crate) const GUARD: usize = 64;

/// Nothing, or what should have held and did not.
pub(crate) type Check<T = ()> = Result<T, String>;

/// Returns what is wrong unless the condition holds.
macro_rules! demand {
    ($holds:expr, $($text:tt)+) => {
        if !$holds {
            return Err(format!($($text)+));
        }
    };
}
pub(crate) use demand;

/// A region with its keys.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    pub(crate) region: Arc<Region>,
    pub(crate) key: MrKey,
}

#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) wr_id: u64,
    pub(crate) signaled: bool,
    pub(crate) op: SendOp,
    pub(crate) len: usize,
    /// Where in the source region it starts.
    pub(crate) source: usize,
    /// The part of the target region that no other message may use meanwhile: the bytes that are written, or the buffer
    /// that receives them.
    pub(crate) target: Range<usize>,
    /// Where its bytes go, in the order of the message.
    pub(crate) pieces: Vec<Range<usize>>,
    /// Its receive buffer is too short: it must fail, and nothing of it be placed.
    pub(crate) short: bool,
}

impl Message {
    /// A message whose bytes go to `target`.
    pub(crate) fn new(wr_id: u64, signaled: bool, op: SendOp, source: usize, target: Range<usize>) -> Self {
        let pieces = vec![target.clone()];
        Self { wr_id, signaled, op, len: target.len(), source, target, pieces, short: false }
    }

    /// Each of its pieces, and the bytes that go there: those of `sent`.
    fn placed<'a>(&'a self, sent: &'a [u8]) -> impl Iterator<Item = (Range<usize>, &'a [u8])> {
        let mut from = 0;
        self.pieces.iter().map(move |piece| {
            let bytes = &sent[from..from + piece.len()];
            from += piece.len();
            (piece.clone(), bytes)
        })
    }
}

/// A receive work request.
#[derive(Clone, Debug)]
pub(crate) struct Receive {
    pub(crate) wr_id: u64,
    pub(crate) elements: Vec<Sge>,
}

impl Receive {
    pub(crate) fn post(&self, endpoint: &mut Endpoint, qpn: Qpn) -> Result<(), PostError> {
        match *self.elements {
            [] => endpoint.post_recv(qpn, RecvWr::empty(self.wr_id)),
            [local] => endpoint.post_recv(qpn, RecvWr { wr_id: self.wr_id, local }),
            _ => endpoint.post_scatter(qpn, ScatterWr { wr_id: self.wr_id, local: &self.elements }),
        }
    }
}

/// What a direction has seen happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) posted: u64,
    pub(crate) retired: u64,
    pub(crate) completions: u64,
    pub(crate) immediates: u64,
    pub(crate) bytes: u64,
}

/// See the [module documentation](self).
pub(crate) struct Ledger {
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
    /// Messages that take a receive work request and have not come out at the peer, with their numbers.
    takers: VecDeque<(u64, Message)>,
    takers_posted: u64,
    /// Receive work requests at the peer that no message has taken.
    receives: VecDeque<u64>,
    receives_posted: u64,
    /// Some messages never get a receive work request, and the requester gives up at last.
    pub(crate) starves: bool,
    /// The queue pair that writes may fail for what it receives, so its requests may all be flushed.
    pub(crate) receives_flaws: bool,
    /// Statuses that the oldest request may fail with; all others are flushed.
    reasons: Vec<WcStatus>,
    /// Somebody forges packets that are right in all that is checked: bytes and immediates prove nothing.
    pub(crate) forged: bool,
    pub(crate) failed: bool,
    pub(crate) receiver_failed: bool,
    pub(crate) tally: Tally,
}

/// The same request with these elements.
pub(crate) fn gather<'a>(wr: &SendWr, local: &'a [Sge]) -> GatherWr<'a> {
    let &SendWr { wr_id, op, remote, signaled, .. } = wr;
    GatherWr { wr_id, op, local, remote, signaled, fence: false }
}

impl Ledger {
    pub(crate) fn new(source: Memory, target: Memory, reasons: &[WcStatus], rng: &mut Rng) -> Check<Self> {
        let source_bytes = rng.bytes(source.region.len());
        source.region.write_at(0, &source_bytes).map_err(told)?;
        let model = rng.bytes(target.region.len());
        target.region.write_at(0, &model).map_err(told)?;
        Ok(Self {
            source,
            source_bytes,
            target,
            model,
            under_way: VecDeque::new(),
            failed_messages: Vec::new(),
            awaited: VecDeque::new(),
            takers: VecDeque::new(),
            takers_posted: 0,
            receives: VecDeque::new(),
            receives_posted: 0,
            starves: false,
            receives_flaws: false,
            reasons: reasons.to_vec(),
            forged: false,
            failed: false,
            receiver_failed: false,
            tally: Tally::default(),
        })
    }

    /// Where messages may start and end in the target region.
    pub(crate) fn area(&self) -> Range<usize> {
        GUARD..self.model.len() - GUARD
    }

    pub(crate) fn source(&self) -> &Memory {
        &self.source
    }

    pub(crate) fn source_bytes(&self) -> &[u8] {
        &self.source_bytes
    }

    /// The bytes of `whole`, an element of the source, in up to [`MAX_SGE`] elements: short ones, long ones, empty ones,
    /// some of them in `mirror`, which holds the same bytes elsewhere.
    pub(crate) fn split(&self, whole: &Sge, mirror: &Memory, mtu: u32, rng: &mut Rng) -> Vec<Sge> {
        let count = rng.range(1, MAX_SGE.into());
        let mut left = *whole;
        let mut elements = Vec::new();
        for number in 1..=count {
            let most = u64::from(left.len);
            let len = match rng.below(4) {
                _ if number == count => most,
                0 => 0,
                1 => rng.below(most + 1),
                _ => rng.sized(1, 2 * u64::from(mtu)).min(most),
            } as u32;
            let offset = left.addr - self.source.region.iova();
            let mirrored = Sge { addr: mirror.region.iova() + offset, len, lkey: mirror.key.lkey };
            elements.push(if rng.one_in(2) { mirrored } else { Sge { len, ..left } });
            left = Sge { addr: left.addr + u64::from(len), len: left.len - len, ..left };
        }
        elements
    }

    /// A receive buffer for a SEND at `place`, in one element or in several, which are in any order. The bytes of the
    /// message fill its front.
    pub(crate) fn buffer(&self, message: &mut Message, place: Range<usize>, rng: &mut Rng) -> Vec<Sge> {
        let mut cuts = vec![place.start, place.end];
        if rng.one_in(2) {
            cuts.extend(
                (0..rng.below(MAX_SGE.into()))
                    .map(|_| rng.range(place.start as u64, place.end as u64) as usize),
            );
        }
        cuts.sort_unstable();
        let mut ranges: Vec<_> = cuts.windows(2).map(|ends| ends[0]..ends[1]).collect();
        for at in (1..ranges.len()).rev() {
            ranges.swap(at, rng.below(at as u64 + 1) as usize);
        }
        let mut left = if message.short { 0 } else { message.len };
        message.pieces.clear();
        for range in &ranges {
            let len = range.len().min(left);
            message.pieces.push(range.start..range.start + len);
            left -= len;
        }
        let element = |range: &Range<usize>| match range.len() {
            // Neither its key nor its address is looked at.
            0 => Sge { lkey: 0xbad, ..Sge::EMPTY },
            _ => self.target_sge(range),
        };
        ranges.iter().map(element).collect()
    }

    pub(crate) fn source_len(&self) -> usize {
        self.source_bytes.len()
    }

    /// Requests that hold a place in the send queue.
    pub(crate) fn outstanding(&self) -> usize {
        self.under_way.len()
    }

    /// Messages under way that find no receive work request yet.
    pub(crate) fn lacks_receives(&self) -> bool {
        self.takers.len() > self.receives.len()
    }

    pub(crate) fn target(&self) -> &Memory {
        &self.target
    }

    /// A receive buffer has room at `range` of the target region.
    pub(crate) fn target_sge(&self, range: &Range<usize>) -> Sge {
        Sge {
            addr: self.target.region.iova() + range.start as u64,
            len: range.len() as u32,
            lkey: self.target.key.lkey,
        }
    }

    /// Receive work requests at the peer that have not ended.
    pub(crate) fn receives_left(&self) -> usize {
        self.receives.len()
    }

    /// Nothing is awaited any more.
    pub(crate) fn is_done(&self) -> bool {
        self.failed
            || self.under_way.is_empty()
                && self.awaited.is_empty()
                && (self.takers.is_empty() || self.receiver_failed)
    }

    /// No message under way goes to `target`.
    pub(crate) fn is_free(&self, target: &Range<usize>) -> bool {
        let taken =
            |message: &Message| message.target.start < target.end && target.start < message.target.end;
        !self.under_way.iter().chain(&self.failed_messages).any(taken)
    }

    /// Takes note of a message, and returns the request to post; `completes` if its success is told.
    pub(crate) fn post(&mut self, message: Message, completes: bool) -> SendWr {
        let wr = SendWr {
            wr_id: message.wr_id,
            op: message.op,
            local: Sge {
                addr: self.source.region.iova() + message.source as u64,
                len: message.len as u32,
                lkey: self.source.key.lkey,
            },
            remote: RemoteAddr {
                addr: self.target.region.iova() + message.target.start as u64,
                rkey: self.target.key.rkey,
            },
            signaled: message.signaled,
            fence: false,
        };
        self.tally.posted += 1;
        if completes {
            self.awaited.push_back(message.wr_id);
        }
        if message.op.takes_receive() {
            self.takers.push_back((self.takers_posted, message.clone()));
            self.takers_posted += 1;
        }
        self.under_way.push_back(message);
        wr
    }

    /// Takes note of a receive work request at the peer.
    pub(crate) fn post_recv(&mut self, wr_id: u64) {
        self.receives.push_back(wr_id);
        self.receives_posted += 1;
    }

    /// A send completion of the queue pair that writes.
    pub(crate) fn on_send_completion(&mut self, wc: &Wc) -> Check {
        self.tally.completions += 1;
        if self.failed || !wc.status.is_success() {
            return self.on_failure(wc);
        }
        let expected = self.awaited.pop_front();
        let name = Some(wc.wr_id);
        demand!(
            name == expected,
            "completions come in order, one a signalled request: {wc:?}, not {expected:x?}"
        );
        let posted = self.under_way.iter().find(|message| message.wr_id == wc.wr_id);
        let message =
            posted.ok_or_else(|| format!("a completion comes before its request retires: {wc:?}"))?;
        let is_send = matches!(message.op, SendOp::Send | SendOp::SendWithImm(_));
        let opcode = if is_send { WcOpcode::Send } else { WcOpcode::RdmaWrite };
        demand!(
            wc.byte_len as usize == message.len && wc.opcode == opcode && wc.imm.is_none() && !message.short,
            "{wc:?} of a message {message:?}"
        );
        self.check_arrived(message, "a send completion")
    }

    fn on_failure(&mut self, wc: &Wc) -> Check {
        let message = self.under_way.pop_front();
        let message = message.ok_or_else(|| format!("a flushed request was posted: {wc:?}"))?;
        let flushed = wc.status == WcStatus::WrFlushError;
        let is_reason = match wc.status {
            WcStatus::RnrRetryExceeded => self.is_starved(&message),
            WcStatus::RemoteInvalidRequest if message.short => true,
            status => self.reasons.contains(&status),
        };
        // A forged NAK may say that older requests were not complete: they are flushed before the one at fault. So are
        // those whose packets were lost for as long as a later message found no receive work request.
        let late = self.forged || self.starves && wc.status == WcStatus::RnrRetryExceeded;
        demand!(
            flushed && (self.failed || self.starves || self.receives_flaws)
                || is_reason && (!self.failed || late),
            "the oldest request ends with the reason, the others are flushed: {wc:?}"
        );
        demand!(wc.wr_id == message.wr_id, "requests are flushed in order: {wc:?}, not {:#x}", message.wr_id);
        self.failed_messages.push(message);
        self.failed = true;
        self.awaited.clear();
        Ok(())
    }

    /// Whether no receive work request has been posted for this message.
    fn is_starved(&self, message: &Message) -> bool {
        let number = self.takers.iter().find(|(_, taker)| taker.wr_id == message.wr_id);
        self.starves && number.is_some_and(|(number, _)| *number >= self.receives_posted)
    }

    /// The queue pair says that `count` work requests left its queue: there is room for others.
    pub(crate) fn on_retired(&mut self, count: u32) -> Check {
        self.tally.retired += u64::from(count);
        if self.failed {
            return Ok(());
        }
        for _ in 0..count {
            let message = self.under_way.pop_front().ok_or("what retires was posted")?;
            self.check_arrived(&message, "the retirement of a request")?;
            let awaited = self.awaited.front();
            let early = awaited == Some(&message.wr_id);
            demand!(!early, "a signalled request retires after its completion: {:#x}", message.wr_id);
            let sent = &self.source_bytes[message.source..message.source + message.len];
            self.tally.bytes += sent.len() as u64;
            for (piece, bytes) in message.placed(sent) {
                self.model[piece].copy_from_slice(bytes);
            }
        }
        Ok(())
    }

    /// A receive completion of the peer's queue pair.
    pub(crate) fn on_receive_completion(&mut self, wc: &Wc) -> Check {
        let (name, expected) = (Some(wc.wr_id), self.receives.pop_front());
        demand!(name == expected, "receive requests are used in order: {wc:?}, not {expected:x?}");
        if self.receiver_failed || wc.status == WcStatus::WrFlushError {
            demand!(wc.status == WcStatus::WrFlushError, "a failed queue pair receives nothing: {wc:?}");
            self.receiver_failed = true;
            return Ok(());
        }
        if wc.status == WcStatus::LocalLengthError {
            let oldest = self.takers.front();
            demand!(oldest.is_some_and(|(_, taker)| taker.short), "the buffer is long enough: {wc:?}");
            self.receiver_failed = true;
            return Ok(());
        }
        self.tally.immediates += 1;
        demand!(wc.status.is_success(), "a message comes or is flushed: {wc:?}");
        if self.forged {
            self.takers.pop_front();
            return Ok(());
        }
        let message = self.takers.pop_front();
        let (_, message) = message.ok_or_else(|| format!("a message that was sent: {wc:?}"))?;
        let is_send = matches!(message.op, SendOp::Send | SendOp::SendWithImm(_));
        let opcode = if is_send { WcOpcode::Recv } else { WcOpcode::RecvRdmaWithImm };
        demand!(
            wc.imm == message.op.imm()
                && wc.byte_len as usize == message.len
                && wc.opcode == opcode
                && !message.short,
            "messages come out in the order they were sent: {wc:?}, not {message:?}"
        );
        self.check_arrived(&message, "its receive completion")
    }

    fn check_arrived(&self, message: &Message, by: &str) -> Check {
        if self.forged {
            return Ok(());
        }
        for (piece, bytes) in message.placed(self.sent(message)) {
            let differs = self.target.region.first_difference(piece.start, bytes).map_err(told)?;
            let number = message.wr_id;
            demand!(
                differs.is_none(),
                "byte {differs:?} of request {number:#x} not there at the time of {by}"
            );
        }
        Ok(())
    }

    fn sent(&self, message: &Message) -> &[u8] {
        &self.source_bytes[message.source..message.source + message.len]
    }

    /// The queue pair that writes was destroyed, and its requests with it.
    pub(crate) fn forget_sends(&mut self) {
        self.failed = true;
        self.failed_messages.extend(self.under_way.drain(..));
        self.awaited.clear();
    }

    /// The queue pair that is written to was destroyed, and its receive work requests with it.
    pub(crate) fn forget_receives(&mut self) {
        self.receiver_failed = true;
        self.receives.clear();
    }

    /// What must hold at any time: memory outside the messages is as it was, and they write only their own bytes.
    pub(crate) fn check_memory(&self) -> Check {
        if self.forged {
            return Ok(());
        }
        let mut expected = self.model.clone();
        for message in self.under_way.iter().chain(&self.failed_messages) {
            take_partly(&self.target.region, message, self.sent(message), &mut expected)?;
        }
        self.check_target(&expected)
    }

    /// The region that messages are read from is as it was.
    pub(crate) fn check_source(&self) -> Check {
        let differs = self.source.region.first_difference(0, &self.source_bytes).map_err(told)?;
        demand!(differs.is_none(), "the memory that is read from has changed at byte {differs:?}");
        Ok(())
    }

    fn check_target(&self, expected: &[u8]) -> Check {
        let differs = self.target.region.first_difference(0, expected).map_err(told)?;
        let len = self.model.len();
        demand!(differs.is_none(), "memory differs from the model at byte {differs:?} of {len}");
        Ok(())
    }

    /// What must hold when nothing is under way any more.
    pub(crate) fn check_end(&mut self) -> Check {
        self.failed_messages.extend(self.under_way.drain(..));
        for message in &self.failed_messages {
            let sent = &self.source_bytes[message.source..message.source + message.len];
            take_partly(&self.target.region, message, sent, &mut self.model)?;
        }
        self.check_target(&self.model)?;
        demand!(self.tally.retired == self.tally.posted, "every request retires: {:?}", self.tally);
        demand!(self.failed || self.failed_messages.is_empty(), "nothing failed, and some are not complete");
        Ok(())
    }
}

fn told(error: impl core::fmt::Display) -> String {
    error.to_string()
}

/// Makes `model` what `message` has made of it: one that is under way or failed may have been written in part, and nowhere
/// else.
fn take_partly(target: &Region, message: &Message, sent: &[u8], model: &mut [u8]) -> Check {
    for (piece, bytes) in message.placed(sent) {
        let mut now = vec![0; piece.len()];
        target.read_at(piece.start, &mut now).map_err(told)?;
        for ((old, now), sent) in model[piece].iter_mut().zip(&now).zip(bytes) {
            demand!(now == old || now == sent, "{message:?}, which failed, may only write its own bytes");
            *old = *now;
        }
    }
    Ok(())
}
