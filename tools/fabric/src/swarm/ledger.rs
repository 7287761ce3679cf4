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

use super::message::{Change, Message};
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

impl Memory {
    fn sge(&self, range: &Range<usize>) -> Sge {
        let addr = self.region.iova() + range.start as u64;
        Sge { addr, len: range.len() as u32, lkey: self.key.lkey }
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
    /// Written or sent.
    pub(crate) bytes: u64,
    /// Read, or the results of atomic operations.
    pub(crate) fetched: u64,
}

/// See the [module documentation](self).
pub(crate) struct Ledger {
    source: Memory,
    source_bytes: Vec<u8>,
    target: Memory,
    /// Where responses of the peer go.
    results: Memory,
    /// What the target region and that of responses hold, but for messages under way.
    model: Vec<u8>,
    results_model: Vec<u8>,
    /// Posted and neither retired nor failed.
    under_way: VecDeque<Message>,
    /// Failed: they may have been written in part, and be written on as long as their packets wander about.
    failed_messages: Vec<Message>,
    /// The newest message that has retired. Their identifiers grow.
    newest_retired: Option<u64>,
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
    /// A request has failed with a reason, and was not just flushed.
    has_reason: bool,
    pub(crate) receiver_failed: bool,
    pub(crate) tally: Tally,
}

/// The same request with these elements.
pub(crate) fn gather<'a>(wr: &SendWr, local: &'a [Sge]) -> GatherWr<'a> {
    let &SendWr { wr_id, op, remote, signaled, fence, .. } = wr;
    GatherWr { wr_id, op, local, remote, signaled, fence }
}

impl Ledger {
    /// The ledger of a direction that writes from `source` to `target`, and fetches from `target` to `results`.
    pub(crate) fn new(
        [source, target, results]: [Memory; 3],
        reasons: &[WcStatus],
        rng: &mut Rng,
    ) -> Check<Self> {
        let source_bytes = rng.bytes(source.region.len());
        source.region.write_at(0, &source_bytes).map_err(told)?;
        let model = rng.bytes(target.region.len());
        target.region.write_at(0, &model).map_err(told)?;
        let results_model = vec![0xa5; results.region.len()];
        results.region.write_at(0, &results_model).map_err(told)?;
        Ok(Self {
            source,
            source_bytes,
            target,
            results,
            model,
            results_model,
            under_way: VecDeque::new(),
            newest_retired: None,
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
            has_reason: false,
            receiver_failed: false,
            tally: Tally::default(),
        })
    }

    /// Where messages may start and end in the target region.
    pub(crate) fn area(&self) -> Range<usize> {
        GUARD..self.model.len() - GUARD
    }

    /// Where responses may start and end in the region for them.
    pub(crate) fn results_area(&self) -> Range<usize> {
        GUARD..self.results_model.len() - GUARD
    }

    pub(crate) fn source(&self) -> &Memory {
        &self.source
    }

    pub(crate) fn results(&self) -> &Memory {
        &self.results
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

    /// A receive buffer for a SEND at `place`, in one element or in several, which are in any order.
    pub(crate) fn buffer(&self, message: &mut Message, place: Range<usize>, rng: &mut Rng) -> Vec<Sge> {
        divide(message, place, &self.target, rng)
    }

    /// The elements that a fetch fills: one, or several in any order.
    pub(crate) fn destination(&self, message: &mut Message, rng: &mut Rng) -> Vec<Sge> {
        divide(message, message.place.clone(), &self.results, rng)
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
        self.target.sge(range)
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

    /// No message under way prevents one with this operation from using `target`.
    pub(crate) fn is_free(&self, target: &Range<usize>, op: SendOp, fence: bool) -> bool {
        let overlaps =
            |message: &&Message| message.target.start < target.end && target.start < message.target.end;
        !self.under_way.iter().filter(overlaps).any(|message| message.excludes(op, fence))
            && !self.failed_messages.iter().any(|message| overlaps(&message))
    }

    /// No response under way goes to `place`.
    pub(crate) fn has_place(&self, place: &Range<usize>) -> bool {
        let taken = |message: &Message| message.place.start < place.end && place.start < message.place.end;
        !self.under_way.iter().chain(&self.failed_messages).any(taken)
    }

    /// The part of the target region that the newest message uses.
    pub(crate) fn newest_target(&self) -> Option<Range<usize>> {
        self.under_way.back().map(|message| message.target.clone())
    }

    /// What a part of the target region holds when all messages under way are complete.
    pub(crate) fn foreseen(&self, range: &Range<usize>) -> Vec<u8> {
        let mut bytes = self.model[range.clone()].to_vec();
        for message in &self.under_way {
            message.changes(self.sent(message)).for_each(|change| change.must(range, &mut bytes));
        }
        bytes
    }

    /// The number that an atomic operation finds there.
    pub(crate) fn number_at(&self, range: &Range<usize>) -> u64 {
        let bytes = self.foreseen(range);
        u64::from_ne_bytes(bytes.try_into().unwrap_or_default())
    }

    /// Takes note of a message, and returns the request to post; `completes` if its success is told.
    pub(crate) fn post(&mut self, mut message: Message, completes: bool) -> SendWr {
        let fetches = message.op.is_fetch();
        if fetches {
            message.response = self.foreseen(&message.target);
        }
        if message.op.is_atomic() {
            let before = self.number_at(&message.target);
            message.stored = Some(after(message.op, before).to_ne_bytes());
        }
        let local = if fetches {
            self.results.sge(&message.place)
        } else {
            self.source.sge(&(message.source..message.source + message.len))
        };
        let wr = SendWr {
            wr_id: message.wr_id,
            op: message.op,
            local,
            remote: RemoteAddr {
                addr: self.target.region.iova() + message.target.start as u64,
                rkey: self.target.key.rkey,
            },
            signaled: message.signaled,
            fence: message.fence,
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
        let opcode = message.op.wc_opcode();
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
        // So are fetches whose response did not come before a later message was refused, with what follows them.
        let oldest = self.failed_messages.first().unwrap_or(&message);
        let unanswered = oldest.op.is_fetch() && self.under_way.iter().chain([&message]).any(|one| one.short);
        let after_fetch = oldest.op.is_fetch() && !self.has_reason;
        let late = self.forged || self.starves && wc.status == WcStatus::RnrRetryExceeded || after_fetch;
        self.has_reason |= !flushed;
        demand!(
            flushed && (self.failed || self.starves || self.receives_flaws || unanswered)
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
            let all = 0..self.model.len();
            self.newest_retired = Some(message.wr_id);
            message.changes(sent).for_each(|change| change.must(&all, &mut self.model));
            if message.op.is_fetch() {
                self.tally.fetched += message.len as u64;
                for (place, bytes) in message.placed(sent) {
                    self.results_model[place].copy_from_slice(bytes);
                }
            } else {
                self.tally.bytes += message.len as u64;
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
        let number = message.wr_id;
        let sent = self.sent(message);
        if message.op.is_fetch() {
            for (place, bytes) in message.placed(sent) {
                let differs = self.results.region.first_difference(place.start, bytes).map_err(told)?;
                demand!(differs.is_none(), "byte {differs:?} fetched by {number:#x} is wrong at {by}");
            }
        }
        for change in message.changes(sent) {
            // Its receive completion may be told after it has retired, and others that used the same bytes.
            let has_retired = self.newest_retired.is_some_and(|newest| number <= newest);
            let bytes = if has_retired { &self.model[change.place.clone()] } else { change.bytes };
            let (start, mut bytes) = (change.place.start, bytes.to_vec());
            self.later_changes(number, &change.place, &mut bytes)?;
            let differs = self.target.region.first_difference(start, &bytes).map_err(told)?;
            demand!(
                differs.is_none(),
                "byte {differs:?} of request {number:#x} not there at the time of {by}"
            );
        }
        Ok(())
    }

    /// Makes `bytes`, those at a place of the target region, what the messages after `wr_id` may have made of them.
    fn later_changes(&self, wr_id: u64, place: &Range<usize>, bytes: &mut [u8]) -> Check {
        let mut later: Vec<_> = self.failed_messages.iter().chain(&self.under_way).collect();
        if let Some(at) = later.iter().position(|message| message.wr_id == wr_id) {
            later.drain(..=at);
        }
        later.retain(|message| message.target.start < place.end && place.start < message.target.end);
        if later.is_empty() {
            return Ok(());
        }
        let mut there = vec![0; place.len()];
        self.target.region.read_at(place.start, &mut there).map_err(told)?;
        for (at, message) in later.iter().enumerate() {
            // What an atomic operation has stored may be overwritten in part by now.
            let overlaps = |other: &&Message| {
                other.target.start < message.target.end && message.target.start < other.target.end
            };
            let is_last = !later[at + 1..].iter().any(overlaps);
            for change in message.changes(self.sent(message)) {
                Change { whole: change.whole && is_last, ..change }.may(place, bytes, &there);
            }
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
        let messages = || self.failed_messages.iter().chain(&self.under_way);
        let expected = self.with_changes(&self.target, &self.model, messages(), Message::changes)?;
        check_region(&self.target, &expected, "memory")?;
        let expected = self.with_changes(&self.results, &self.results_model, messages(), Message::results)?;
        check_region(&self.results, &expected, "memory for responses")
    }

    /// What a region may hold: its model, with what messages may have changed in it.
    fn with_changes<'a, C: Iterator<Item = Change<'a>>>(
        &'a self,
        memory: &Memory,
        model: &[u8],
        messages: impl Iterator<Item = &'a Message>,
        changes: impl Fn(&'a Message, &'a [u8]) -> C,
    ) -> Check<Vec<u8>> {
        let (mut expected, mut there, all) = (model.to_vec(), vec![0; model.len()], 0..model.len());
        memory.region.read_at(0, &mut there).map_err(told)?;
        for message in messages {
            for change in changes(message, self.sent(message)) {
                change.may(&all, &mut expected, &there);
            }
        }
        Ok(expected)
    }

    /// The region that messages are read from is as it was.
    pub(crate) fn check_source(&self) -> Check {
        let differs = self.source.region.first_difference(0, &self.source_bytes).map_err(told)?;
        demand!(differs.is_none(), "the memory that is read from has changed at byte {differs:?}");
        Ok(())
    }

    /// What must hold when nothing is under way any more.
    pub(crate) fn check_end(&mut self) -> Check {
        self.failed_messages.extend(self.under_way.drain(..));
        let failed = || self.failed_messages.iter();
        let model = self.with_changes(&self.target, &self.model, failed(), Message::changes)?;
        let results = self.with_changes(&self.results, &self.results_model, failed(), Message::results)?;
        (self.model, self.results_model) = (model, results);
        check_region(&self.target, &self.model, "memory")?;
        check_region(&self.results, &self.results_model, "memory for responses")?;
        demand!(self.tally.retired == self.tally.posted, "every request retires: {:?}", self.tally);
        demand!(self.failed || self.failed_messages.is_empty(), "nothing failed, and some are not complete");
        Ok(())
    }
}

/// A buffer for a message at `place` of a region, in one element or in several, which are in any order. The bytes of the
/// message fill its front.
fn divide(message: &mut Message, place: Range<usize>, memory: &Memory, rng: &mut Rng) -> Vec<Sge> {
    let mut cuts = vec![place.start, place.end];
    if rng.one_in(2) {
        cuts.extend(
            (0..rng.below(MAX_SGE.into())).map(|_| rng.range(place.start as u64, place.end as u64) as usize),
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
        _ => memory.sge(range),
    };
    ranges.iter().map(element).collect()
}

fn told(error: impl core::fmt::Display) -> String {
    error.to_string()
}

/// The number that an atomic operation leaves.
fn after(op: SendOp, before: u64) -> u64 {
    match op {
        SendOp::FetchAdd(add) => before.wrapping_add(add),
        SendOp::CompareSwap { compare, swap } if compare == before => swap,
        _ => before,
    }
}

fn check_region(memory: &Memory, expected: &[u8], what: &str) -> Check {
    let differs = memory.region.first_difference(0, expected).map_err(told)?;
    let len = expected.len();
    demand!(differs.is_none(), "{what} differs from the model at byte {differs:?} of {len}");
    Ok(())
}
