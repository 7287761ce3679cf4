//! The receiving side of SENDs and immediates: keeps receive work requests posted, and checks each completion.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use spindrift::memory::Region;
use spindrift::verbs::{RecvWr, Sge, Srq, Wc, WcOpcode};

use super::contents::Contents;
use super::layout::Layout;
use super::operation::Work;
use super::transport::{Cq, Mr, Qp};

/// How long completions may take that have to come: only a fault of the transport reaches it.
pub(crate) const ARRIVAL_LIMIT: Duration = Duration::from_secs(30);
const NUMBER_MASK: u64 = (1 << 48) - 1;
/// The value for a buffer that no message has filled.
const NOTHING: u64 = u64::MAX;

/// A queue pair of a lane.
struct Stream<'a> {
    /// Its number among all of the run.
    number: usize,
    qp: &'a mut Qp,
    /// The message that takes the next receive to be posted.
    next: u64,
    /// The message that completes a receive next.
    due: u64,
    /// Messages that must have been sent: the number behind that of the last one that has completed a receive.
    sent: u64,
}

struct Lane<'a> {
    streams: Vec<Stream<'a>>,
    /// Indices of `streams`, by queue pair number.
    by_qpn: BTreeMap<u32, usize>,
    cq: &'a mut Cq,
    wcs: [Wc; 64],
}

/// All queue pairs of a side, by lane. Each lane has a thread that takes its turns.
pub(crate) struct Receivers<'a> {
    lanes: Vec<Mutex<Lane<'a>>>,
    work: Work,
    srq: Option<Srq>,
    /// The first buffer.
    buffers: Sge,
    contents: Contents,
    /// With a shared receive queue, what each buffer holds: the queue pair's number, and the message's.
    held: Box<[AtomicU64]>,
    /// Consumed requests are not replaced.
    closed: AtomicBool,
    comparison: Option<Comparison>,
    sampled: AtomicU64,
    wrong: AtomicU64,
}

/// Which messages in shared buffers are compared on arrival, and with what.
pub(crate) struct Comparison {
    pub(crate) pattern: Arc<Vec<u8>>,
    pub(crate) target: Arc<Region>,
    /// One message in so many, and most bytes of each.
    pub(crate) one_in: u64,
    pub(crate) most: usize,
}

impl<'a> Receivers<'a> {
    /// Receivers of a side whose operation takes receive work requests, before the first size.
    pub(crate) fn new(
        qps: &'a mut [Qp],
        cqs: &'a mut [Cq],
        srq: Option<&Srq>,
        buffers: &Mr,
        work: Work,
    ) -> Result<Self> {
        let lane = |cq| Lane { streams: Vec::new(), by_qpn: BTreeMap::new(), cq, wcs: [Wc::default(); 64] };
        let mut lanes: Vec<_> = cqs.iter_mut().map(lane).collect();
        for (number, qp) in qps.iter_mut().enumerate() {
            if let Some(lane) = lanes.get_mut(qp.lane()) {
                lane.by_qpn.insert(qp.qpn().get(), lane.streams.len());
                lane.streams.push(Stream { number, qp, next: 0, due: 0, sent: 0 });
            }
        }
        Ok(Self {
            lanes: lanes.into_iter().map(Mutex::new).collect(),
            work,
            srq: srq.cloned(),
            buffers: buffers.sge(0, 1)?,
            contents: Contents { layout: Layout::new(1, 1, 1)?, operations: work.operations, seed: 0 },
            held: Box::default(),
            closed: AtomicBool::new(false),
            comparison: None,
            sampled: AtomicU64::new(0),
            wrong: AtomicU64::new(0),
        })
    }

    /// Posts receive work requests for a size. All requests of the size before must have been consumed.
    pub(crate) fn start(&mut self, contents: &Contents, comparison: Option<Comparison>) -> Result<()> {
        let layout = &contents.layout;
        (self.contents, self.comparison) = (*contents, comparison);
        self.closed = AtomicBool::new(false);
        (self.sampled, self.wrong) = (AtomicU64::new(0), AtomicU64::new(0));
        for lane in &mut self.lanes {
            let lane = lane.get_mut().unwrap_or_else(PoisonError::into_inner);
            for stream in &mut lane.streams {
                let first = contents.next_taker(stream.number, 0);
                (stream.next, stream.due, stream.sent) = (first, first, 0);
            }
        }
        if let Some(srq) = &self.srq {
            let buffers = layout.slots * layout.qps as u64;
            self.held = (0..buffers).map(|_| AtomicU64::new(NOTHING)).collect();
            for buffer in 0..buffers {
                srq.post_recv(self.shared_request(buffer))?;
            }
            return Ok(());
        }
        for lane in &self.lanes {
            let mut lane = lock(lane);
            for place in 0..lane.streams.len() {
                for _ in 0..self.work.receives(layout.slots) {
                    self.post(&mut lane, place)?;
                }
            }
        }
        Ok(())
    }

    /// Posts the next request of a queue pair.
    fn post(&self, lane: &mut Lane<'_>, place: usize) -> Result<()> {
        let Some(stream) = lane.streams.get_mut(place) else { return Ok(()) };
        let (qp, number) = (stream.number, stream.next);
        let wr_id = (place as u64) << 48 | (number & NUMBER_MASK);
        let local = if self.contents.operation(qp, number).fills_receive() {
            self.buffer(self.contents.layout.target(qp, number))
        } else {
            Sge::EMPTY
        };
        stream.qp.post_recv(RecvWr { wr_id, local })?;
        stream.next = self.contents.next_taker(qp, number + 1);
        Ok(())
    }

    fn buffer(&self, offset: usize) -> Sge {
        Sge { addr: self.buffers.addr + offset as u64, len: self.contents.layout.size, ..self.buffers }
    }

    /// A request for whichever message comes next, into a shared buffer if messages need one.
    fn shared_request(&self, buffer: u64) -> RecvWr {
        let shares = self.work.shares_buffers();
        let local = if shares { self.buffer(offset_of(&self.contents.layout, buffer)) } else { Sge::EMPTY };
        RecvWr { wr_id: buffer, local }
    }

    /// Takes the completions of a lane, and returns how many there were. Each must be that of the next message.
    pub(crate) fn turn(&self, lane: usize) -> Result<usize> {
        let Some(lane) = self.lanes.get(lane) else { return Ok(0) };
        let mut lane = lock(lane);
        let Lane { cq, wcs, .. } = &mut *lane;
        let count = cq.poll(wcs)?;
        for index in 0..count {
            let wc = lane.wcs.get(index).copied().context("more completions than asked for")?;
            self.complete(&mut lane, &wc)?;
        }
        Ok(count)
    }

    fn complete(&self, lane: &mut Lane<'_>, wc: &Wc) -> Result<()> {
        if !wc.status.is_success() {
            let what = self.work.operations.plural();
            bail!("queue pair {:#08x}: a receive for {what} failed: {}", wc.qpn.get(), wc.status);
        }
        let place = lane.by_qpn.get(&wc.qpn.get()).copied();
        let stream = place.and_then(|place| lane.streams.get_mut(place));
        let (Some(place), Some(stream)) = (place, stream) else {
            bail!("a receive completed on queue pair {:#08x}, which is none of this run", wc.qpn.get())
        };
        let (number, next) = (stream.number, stream.due);
        let (operation, size) = (self.contents.operation(number, next), self.contents.layout.size);
        let wrong = |what: String| anyhow!("queue pair {number}: message {next} has {what}");
        let opcode = if operation.fills_receive() { WcOpcode::Recv } else { WcOpcode::RecvRdmaWithImm };
        if wc.opcode != opcode {
            return Err(wrong(format!("a completion of {:?} and not of {opcode:?}", wc.opcode)));
        }
        if wc.byte_len != size {
            return Err(wrong(format!("{} bytes and not {size}", wc.byte_len)));
        }
        let imm = operation.has_imm().then_some(next as u32);
        if wc.imm != imm {
            return Err(wrong(format!("the immediate {:?} and not {imm:?}", wc.imm)));
        }
        stream.sent = next + 1;
        stream.due = self.contents.next_taker(number, next + 1);
        if let Some(srq) = &self.srq {
            let held = self.held.get(wc.wr_id as usize).context("a receive that nobody posted completed")?;
            held.store((number as u64) << 48 | next & NUMBER_MASK, Ordering::Relaxed);
            if let (Some(comparison), true) = (&self.comparison, operation.fills_receive()) {
                self.compare(comparison, (number, next), wc.wr_id)?;
            }
            if !self.closed.load(Ordering::Relaxed) {
                srq.post_recv(self.shared_request(wc.wr_id))?;
            }
            return Ok(());
        }
        if wc.wr_id & NUMBER_MASK != next & NUMBER_MASK {
            return Err(wrong(format!("the receive {} and not {next}", wc.wr_id & NUMBER_MASK)));
        }
        if !self.closed.load(Ordering::Relaxed) {
            self.post(lane, place)?;
        }
        Ok(())
    }

    /// Stops the replacement of consumed requests. All requests consumed so far must have been replaced. Returns how many of
    /// each queue pair are posted.
    pub(crate) fn close(&self) -> u64 {
        self.closed.store(true, Ordering::Relaxed);
        let slots = self.contents.layout.slots;
        if self.srq.is_some() { slots } else { self.work.receives(slots).into() }
    }

    /// Whether all of the first so many messages of each queue pair that take receives have arrived, and none behind them.
    pub(crate) fn has_taken(&self, messages: &[u64]) -> bool {
        let has_taken = |stream: &Stream<'_>| {
            let messages = messages.get(stream.number).copied().unwrap_or_default();
            stream.sent <= messages && messages <= stream.due
        };
        self.lanes.iter().all(|lane| lock(lane).streams.iter().all(has_taken))
    }

    /// Of each queue pair, the message that has to complete a receive next.
    pub(crate) fn due(&self) -> Vec<u64> {
        let mut due = vec![0; self.contents.layout.qps];
        for lane in &self.lanes {
            for stream in &lock(lane).streams {
                if let Some(due) = due.get_mut(stream.number) {
                    *due = stream.due;
                }
            }
        }
        due
    }

    /// Where in the source the bytes of a slot came from, if the messages decide that and not their numbers.
    pub(crate) fn content(&self, qp: usize, slot: u64) -> Option<usize> {
        let layout = &self.contents.layout;
        let held = self.held.get((qp as u64 * layout.slots + slot) as usize)?.load(Ordering::Relaxed);
        (held != NOTHING).then(|| layout.source((held >> 48) as usize, held & NUMBER_MASK))
    }

    /// Messages that were compared, and those of them that were wrong.
    pub(crate) fn compared(&self) -> [u64; 2] {
        [&self.sampled, &self.wrong].map(|count| count.load(Ordering::Relaxed))
    }

    /// Compares a message in a shared buffer before the next one can take it.
    fn compare(&self, comparison: &Comparison, (qp, number): (usize, u64), buffer: u64) -> Result<()> {
        let Comparison { pattern, target, one_in, most } = comparison;
        if number.is_multiple_of(*one_in) {
            let layout = &self.contents.layout;
            let offset = offset_of(layout, buffer);
            self.sampled.fetch_add(1, Ordering::Relaxed);
            if !layout.sample_at(target, pattern, (qp, number), offset, *most)? {
                self.wrong.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    }
}

/// Where a buffer is.
fn offset_of(layout: &Layout, buffer: u64) -> usize {
    layout.target((buffer / layout.slots) as usize, buffer % layout.slots)
}

fn lock<'m, 'a>(lane: &'m Mutex<Lane<'a>>) -> MutexGuard<'m, Lane<'a>> {
    lane.lock().unwrap_or_else(PoisonError::into_inner)
}
