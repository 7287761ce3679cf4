//! What one end of a queue pair writes to the other: which messages, from where, to where.
//!
//! The tests of the core compile this file, too: it knows nothing of the network.

use spindrift::endpoint::{Endpoint, PostError};
use spindrift::time::Time;
use spindrift::wire::Qpn;
use spindrift::work::{GatherWr, SendOp, SendWr, Sge, WcStatus};

use super::ledger::{Check, GUARD, Ledger, Memory, Receive, gather};
use super::message::Message;
use super::rand::Rng;

/// What else messages are than writes with bytes. The default is nothing else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Kinds {
    /// SENDs, in ten-thousandths.
    pub(crate) sends: u32,
    /// Messages without bytes, in ten-thousandths: among SENDs only, or among all.
    pub(crate) empty: u32,
    pub(crate) empty_writes: bool,
    /// READs and atomic operations, in ten-thousandths. Where there are any, some requests have the fence flag.
    pub(crate) reads: u32,
    pub(crate) atomics: u32,
    /// What the application at the other end does wrong, from this message on that takes a receive work request.
    pub(crate) fault: Option<(Fault, u64)>,
}

impl Kinds {
    pub(crate) const fn fetches(&self) -> bool {
        self.reads + self.atomics > 0
    }
}

/// What an application does wrong.
#[allow(dead_code, reason = "only the tests of the core have such applications")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It posts no receive work request any more.
    Starves,
    /// The buffer of the first SEND is a byte too short.
    Short,
}

/// The work of one end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    pub(crate) messages: u64,
    pub(crate) largest: u32,
    /// Bytes of the first message, if it is to be a long one.
    pub(crate) long: u32,
    /// In ten-thousandths.
    pub(crate) signaled: u32,
    pub(crate) immediates: u32,
    pub(crate) depth: u32,
    pub(crate) sig_all: bool,
    pub(crate) kinds: Kinds,
}

/// A message to post, and the receive work request that it takes at the other end.
pub(crate) struct Posting {
    wr: SendWr,
    /// The same bytes in several elements.
    local: Option<Vec<Sge>>,
    /// It is to be posted before its message or, between peers that have RNR NACKs, at any time.
    pub(crate) receive: Option<Receive>,
}

/// See the [module documentation](self).
pub(crate) struct Writer {
    work: Work,
    qpn: Qpn,
    mtu: u32,
    pub(crate) rng: Rng,
    /// The same bytes as in the source, in memory of their own.
    mirror: Memory,
    pub(crate) ledger: Ledger,
    cursor: usize,
    /// The same in the region for responses.
    results_cursor: usize,
    /// Messages that take a receive work request.
    takers: u64,
    is_short: bool,
}

impl Work {
    /// Bytes of the region that messages are read from.
    pub(crate) fn source_len(&self) -> usize {
        self.largest.max(self.long) as usize + 5_000
    }

    /// Bytes of the region that they are written to.
    pub(crate) fn target_len(&self) -> usize {
        // At the end of the address space, too, it starts at a multiple of 8.
        self.results_len() | 7
    }

    /// Bytes of the region that responses are written to.
    pub(crate) fn results_len(&self) -> usize {
        2 * GUARD + self.largest.max(self.long) as usize * 2 + 4096
    }
}

impl Posting {
    /// The request, with one element or several.
    pub(crate) fn request(&self) -> GatherWr<'_> {
        gather(&self.wr, self.local.as_deref().unwrap_or(std::slice::from_ref(&self.wr.local)))
    }

    pub(crate) fn post(&self, now: Time, qpn: Qpn, endpoint: &mut Endpoint) -> Result<(), PostError> {
        match &self.local {
            None => endpoint.post_send(now, qpn, self.wr),
            Some(_) => endpoint.post_gather(now, qpn, self.request()),
        }
    }
}

impl Writer {
    /// The writer of a queue pair. `mirror` is as long as `source`.
    pub(crate) fn new(
        work: Work,
        qpn: Qpn,
        mtu: u32,
        [source, mirror, target, results]: [Memory; 4],
        mut rng: Rng,
    ) -> Check<Self> {
        let mut ledger = Ledger::new([source, target, results], &[WcStatus::RetryExceeded], &mut rng)?;
        ledger.starves = matches!(work.kinds.fault, Some((Fault::Starves, _)));
        mirror.region.write_at(0, ledger.source_bytes()).map_err(|error| error.to_string())?;
        let (cursor, results_cursor) = (GUARD, GUARD);
        Ok(Self { work, qpn, mtu, rng, mirror, ledger, cursor, results_cursor, takers: 0, is_short: false })
    }

    /// The keys of the memory that it sends from, and that responses go to.
    pub(crate) fn lkeys(&self) -> [u32; 3] {
        [self.ledger.source(), &self.mirror, self.ledger.results()].map(|memory| memory.key.lkey)
    }

    pub(crate) fn all_posted(&self) -> bool {
        self.ledger.failed || self.ledger.tally.posted == self.work.messages
    }

    pub(crate) fn finished(&self) -> bool {
        self.all_posted() && self.ledger.is_done()
    }

    /// The next message to post; `None` if all are, or the send queue is full, or messages under way use the place that it
    /// would be written to.
    pub(crate) fn next(&mut self) -> Option<Posting> {
        if self.all_posted() || self.ledger.outstanding() >= self.work.depth as usize {
            return None;
        }
        let wr_id = self.ledger.tally.posted << 8 | u64::from(self.qpn.get() & 0xff);
        // Drawn apart, so that what else a seed stands for does not depend on it.
        let mut apart = Rng::new(wr_id.swap_bytes());
        let Kinds { reads, atomics, .. } = self.work.kinds;
        let fences = self.work.kinds.fetches() && apart.one_in(4);
        let kind = apart.below(10_000);
        let is_long = self.work.long > 0 && self.ledger.tally.posted == 0;
        if kind < u64::from(reads + atomics) && !is_long {
            return self.next_fetch(wr_id, kind >= u64::from(reads), fences, apart);
        }
        let (message, receive) = self.next_message(wr_id, fences)?;
        let completes = message.signaled || self.work.sig_all;
        let wr = self.ledger.post(message, completes);
        // Drawn apart, so that what else a seed stands for does not depend on it.
        let mut rng = Rng::new(wr.wr_id ^ wr.local.addr);
        let several = rng.one_in(3);
        let local = several.then(|| self.ledger.split(&wr.local, &self.mirror, self.mtu, &mut rng));
        Some(Posting { wr, local, receive })
    }

    /// A READ or an atomic operation. It uses the bytes of the newest message, if that is possible, to see that they are
    /// in order.
    fn next_fetch(&mut self, wr_id: u64, is_atomic: bool, fence: bool, mut rng: Rng) -> Option<Posting> {
        let (area, kinds) = (self.ledger.area(), self.work.kinds);
        let len = match is_atomic {
            true => 8,
            false if rng.chance(kinds.empty) => 0,
            false => self.length(&mut rng),
        };
        let near = self.ledger.newest_target().filter(|_| rng.one_in(2));
        let start = match near {
            Some(target) => target.start,
            // Few, so that several operations are about the same number.
            None if is_atomic => area.start + 8 * rng.below(4) as usize,
            None => area.start + rng.below((area.len() - len) as u64 + 1) as usize,
        };
        let start = if is_atomic { start.next_multiple_of(8) } else { start }.min(area.end - len);
        let start = if is_atomic { start & !7 } else { start };
        let target = start..start + len;
        let op = match rng.below(3) {
            _ if !is_atomic => SendOp::Read,
            0 => SendOp::FetchAdd(rng.bits()),
            1 => SendOp::CompareSwap { compare: self.ledger.number_at(&target), swap: rng.bits() },
            _ => SendOp::CompareSwap { compare: rng.bits(), swap: rng.bits() },
        };
        let places = self.ledger.results_area();
        let place = self.results_cursor + rng.below(9) as usize;
        let place = if place + len > places.end { places.start } else { place };
        let place = place..place + len;
        if !self.ledger.is_free(&target, op, fence) || !self.ledger.has_place(&place) {
            return None;
        }
        self.results_cursor = place.end;
        let signaled = rng.chance(self.work.signaled);
        let mut message = Message { fence, ..Message::fetch(wr_id, signaled, op, target, place) };
        let local = rng.one_in(2).then(|| self.ledger.destination(&mut message, &mut rng));
        let wr = self.ledger.post(message, signaled || self.work.sig_all);
        Some(Posting { wr, local, receive: None })
    }

    fn next_message(&mut self, wr_id: u64, fence: bool) -> Option<(Message, Option<Receive>)> {
        let mut rng = self.rng.clone();
        let len = match self.ledger.tally.posted {
            0 if self.work.long > 0 => self.work.long as usize,
            _ => self.length(&mut rng),
        };
        // Drawn apart, too.
        let mut apart = Rng::new(!wr_id);
        let kinds = self.work.kinds;
        let sends = apart.chance(kinds.sends);
        let is_empty = apart.chance(kinds.empty) && (sends || kinds.empty_writes);
        let len = if is_empty { 0 } else { len };
        let room = if sends && apart.one_in(2) { len + apart.sized(1, 300) as usize } else { len };
        let start = self.cursor + rng.below(33) as usize;
        let area = self.ledger.area();
        let start = if start + room > area.end { area.start } else { start };
        let target = start..start + room;
        if !self.ledger.is_free(&target, SendOp::Write, fence) {
            return None;
        }
        let signaled = rng.chance(self.work.signaled);
        let imm = rng.chance(self.work.immediates).then(|| rng.bits() as u32);
        let op = match (sends, imm) {
            (false, None) => SendOp::Write,
            (false, Some(imm)) => SendOp::WriteWithImm(imm),
            (true, None) => SendOp::Send,
            (true, Some(imm)) => SendOp::SendWithImm(imm),
        };
        let source = rng.below((self.ledger.source_len() - len + 1) as u64) as usize;
        let mut message = Message { fence, len, ..Message::new(wr_id, signaled, op, source, target) };
        self.cursor = message.target.end;
        self.rng = rng;
        let receive = op.takes_receive().then(|| {
            let elements = if sends {
                self.buffer(&mut message, &mut apart)
            } else if apart.one_in(2) {
                // A write with immediate does not use its buffer.
                vec![self.ledger.target_sge(&(0..GUARD))]
            } else {
                Vec::new()
            };
            self.takers += 1;
            Receive { wr_id: wr_id ^ 0xf00d, elements }
        });
        let starves = matches!(kinds.fault, Some((Fault::Starves, from)) if self.takers > from);
        Some((message, receive.filter(|_| !starves)))
    }

    /// A receive buffer for a SEND, which may be the one that is too short.
    fn buffer(&mut self, message: &mut Message, rng: &mut Rng) -> Vec<Sge> {
        let mut place = message.target.clone();
        let short = matches!(self.work.kinds.fault, Some((Fault::Short, from)) if self.takers >= from);
        if short && message.len > 0 && !self.is_short {
            (self.is_short, message.short) = (true, true);
            place.end = place.start + message.len - 1;
        }
        self.ledger.buffer(message, place, rng)
    }

    fn length(&self, rng: &mut Rng) -> usize {
        let mtu = u64::from(self.mtu);
        let largest = u64::from(self.work.largest);
        let len = match rng.below(4) {
            0 => rng.range(1, largest),
            1 => (mtu * rng.range(1, largest / mtu + 1) + rng.below(3)).saturating_sub(1),
            _ => rng.sized(1, largest),
        };
        len.clamp(1, largest) as usize
    }

    /// What must hold when nothing is under way any more.
    pub(crate) fn check_end(&mut self) -> Check {
        self.ledger.check_end()?;
        let Work { messages, .. } = self.work;
        super::ledger::demand!(
            self.ledger.failed || self.ledger.tally.posted == messages,
            "all {messages} messages are posted: {:?}",
            self.ledger.tally
        );
        Ok(())
    }
}
