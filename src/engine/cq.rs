//! Completion queues: one reader, and a ring of completions from each lane whose queue pairs report there.
//!
//! A ring is made with the first queue pair of its lane. Lanes share only the word with the queue's end state and its
//! number of rings. Completions of one queue pair are in order, since it stays on its lane. Those of queue pairs on
//! different lanes have no order.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rtrb::{Consumer, Producer, RingBuffer};
use spindrift_pmd::fork::Home;

use super::comp_channel::{CqNotifier, EventChannel};
use crate::endpoint::CqId;
use crate::work::Wc;

/// The reason why a completion queue has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CqEnd {
    /// It overran.
    Overrun,
    /// A lane of its context has failed.
    LaneFailed,
}

impl CqEnd {
    /// The bits of [`CqCore::state`] for this, and their value while the queue is in use.
    const MASK: u32 = 0xff;
    const OPEN: u32 = 0;
    const OVERRUN: u32 = 1;
    const LANE_FAILED: u32 = 2;

    const fn code(self) -> u32 {
        match self {
            Self::Overrun => Self::OVERRUN,
            Self::LaneFailed => Self::LANE_FAILED,
        }
    }

    const fn of(state: u32) -> Option<Self> {
        match state & Self::MASK {
            Self::OPEN => None,
            Self::OVERRUN => Some(Self::Overrun),
            _ => Some(Self::LaneFailed),
        }
    }
}

/// A completion did not reach its queue, so the queue pairs that report there must fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CqLoss {
    /// The queue was full. Later completions may be incomplete.
    Overrun,
    /// The queue had ended before, for all lanes.
    Ended,
}

/// The shared state of a completion queue.
#[derive(Debug)]
pub(crate) struct CqCore {
    id: CqId,
    depth: u32,
    /// Its end state, and in the bits above the number of rings since the start: a reader gets both in one load.
    state: AtomicU32,
    /// Rings that the reader has not taken over yet.
    added: Mutex<Vec<Consumer<Wc>>>,
    /// Lanes that have a ring, as bits.
    lanes: AtomicU32,
    /// The application has dropped its half.
    abandoned: AtomicBool,
    notifier: Option<Arc<CqNotifier>>,
    table: Weak<CqTable>,
    home: Home,
}

impl CqCore {
    const ONE_RING: u32 = CqEnd::MASK + 1;

    pub(crate) fn id(&self) -> CqId {
        self.id
    }

    /// Its end state, if it has ended.
    pub(crate) fn end_state(&self) -> Option<CqEnd> {
        CqEnd::of(self.state.load(Ordering::Relaxed))
    }

    /// The lanes whose queue pairs report here or did, as bits.
    pub(crate) fn lanes(&self) -> u32 {
        self.lanes.load(Ordering::Acquire)
    }

    /// Ends the queue after the contents of its rings, unless it has ended. Returns whether this call did it.
    fn end(&self, end: CqEnd) -> bool {
        let open = |state: u32| CqEnd::of(state).is_none().then_some(state | end.code());
        self.state.fetch_update(Ordering::AcqRel, Ordering::Relaxed, open).is_ok()
    }

    /// Whether the application has dropped its half.
    fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Acquire)
    }

    #[inline]
    fn notify(&self) {
        if let Some(notifier) = &self.notifier {
            notifier.notify();
        }
    }

    fn added(&self) -> MutexGuard<'_, Vec<Consumer<Wc>>> {
        self.added.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for CqCore {
    fn drop(&mut self) {
        if self.home.is_elsewhere() {
            return;
        }
        if let Some(table) = self.table.upgrade() {
            let mut entries = table.lock();
            if let Some(place) = entries.queues.get_mut(self.id.0 as usize) {
                *place = None;
            }
            entries.free.push(self.id);
        }
    }
}

/// The application's half of a completion queue.
#[derive(Debug)]
pub(crate) struct CqReader {
    rings: Vec<Consumer<Wc>>,
    /// The ring to read first, in turn, so that none has to wait until the others are empty.
    next_ring: usize,
    /// A reported end is final, even if a lane that had not seen it adds more.
    ended: Option<CqEnd>,
    core: Arc<CqCore>,
}

impl CqReader {
    /// Moves completions to `out`, oldest first, and returns their number. The end is reported after all completions
    /// before it.
    #[inline]
    pub(crate) fn poll(&mut self, out: &mut [Wc]) -> Result<usize, CqEnd> {
        // Read before the rings: if it shows the end of the queue, every valid completion is already visible.
        let state = self.core.state.load(Ordering::Acquire);
        if self.is_behind(state) && !self.core.home.is_elsewhere() {
            self.take_rings();
        }
        let count = match self.rings.as_mut_slice() {
            [ring] => drain(ring, out),
            _ => self.poll_round_robin(out),
        };
        if count > 0 && self.ended.is_none() {
            return Ok(count);
        }
        // No thread adds to a forked child's copy.
        let end = if self.core.home.is_elsewhere() { Some(CqEnd::LaneFailed) } else { CqEnd::of(state) };
        self.report(end, out.is_empty())
    }

    #[inline]
    fn is_behind(&self, state: u32) -> bool {
        state / CqCore::ONE_RING != self.rings.len() as u32
    }

    #[cold]
    fn take_rings(&mut self) {
        self.rings.append(&mut self.core.added());
    }

    fn poll_round_robin(&mut self, out: &mut [Wc]) -> usize {
        let rings = self.rings.len();
        let mut count = 0;
        for _ in 0..rings {
            let ring = self.next_ring;
            self.next_ring = (ring + 1) % rings;
            count += drain(&mut self.rings[ring], &mut out[count..]);
            if count == out.len() {
                break;
            }
        }
        count
    }

    #[inline]
    fn report(&mut self, end: Option<CqEnd>, is_empty_poll: bool) -> Result<usize, CqEnd> {
        match end {
            Some(end) if !is_empty_poll => {
                self.ended = Some(end);
                Err(end)
            }
            _ => Ok(0),
        }
    }

    /// Arms the queue's channel for the next completion, or the end of the queue. Returns whether there is something
    /// to poll already, for which there may be no event; [`None`] if the queue has no channel.
    pub(crate) fn arm(&mut self) -> Option<bool> {
        self.core.notifier.as_ref()?.arm();
        let state = self.core.state.load(Ordering::Acquire);
        if self.core.home.is_elsewhere() {
            return Some(true);
        }
        if self.is_behind(state) {
            self.take_rings();
        }
        Some(self.rings.iter().any(|ring| ring.slots() > 0) || CqEnd::of(state).is_some())
    }

    /// The reader has dropped the queue.
    pub(crate) fn abandon(&self) {
        self.core.abandoned.store(true, Ordering::Release);
        if let Some(notifier) = &self.core.notifier {
            notifier.detach();
        }
    }

    /// The state that its lanes share.
    pub(crate) fn core(&self) -> &Arc<CqCore> {
        &self.core
    }
}

impl Drop for CqReader {
    fn drop(&mut self) {
        self.abandon();
    }
}

#[inline]
fn drain(ring: &mut Consumer<Wc>, out: &mut [Wc]) -> usize {
    let mut count = 0;
    for place in out {
        let Ok(wc) = ring.pop() else { break };
        *place = wc;
        count += 1;
    }
    count
}

/// A lane's half of a completion queue.
#[derive(Debug)]
pub(super) struct CqWriter {
    ring: Producer<Wc>,
    /// The lane has processed the queue's end.
    ended: bool,
    lane: u32,
    core: Arc<CqCore>,
}

impl CqWriter {
    /// The half of the lane with this number, which has none yet.
    pub(super) fn new(core: &Arc<CqCore>, lane: u32) -> Self {
        let (ring, reader) = RingBuffer::new(core.depth as usize);
        core.lanes.fetch_or(1 << lane, Ordering::AcqRel);
        let mut added = core.added();
        added.push(reader);
        core.state.fetch_add(CqCore::ONE_RING, Ordering::AcqRel);
        drop(added);
        Self { ring, ended: false, lane, core: Arc::clone(core) }
    }

    /// Adds a completion. Returns [`CqLoss`] once, for the first lost one. Later completions are dropped, as are
    /// those of a queue that the application has dropped.
    #[inline]
    pub(super) fn push(&mut self, wc: Wc) -> Result<(), CqLoss> {
        if self.core.end_state().is_some() {
            return self.notice_end();
        }
        let taken = self.ring.push(wc).is_ok() || self.core.is_abandoned();
        let overran = !taken && self.core.end(CqEnd::Overrun);
        self.core.notify();
        match (taken, overran) {
            (true, _) => Ok(()),
            (false, true) => {
                self.ended = true;
                Err(CqLoss::Overrun)
            }
            (false, false) => self.notice_end(),
        }
    }

    #[cold]
    fn notice_end(&mut self) -> Result<(), CqLoss> {
        if core::mem::replace(&mut self.ended, true) { Ok(()) } else { Err(CqLoss::Ended) }
    }

    /// Whether the queue has ended and this lane did not know.
    pub(super) fn has_ended(&mut self) -> bool {
        self.core.end_state().is_some() && self.notice_end().is_err()
    }

    /// Whether less than a quarter is free.
    #[inline]
    pub(super) fn is_filling_up(&self) -> bool {
        let quarter = self.ring.buffer().capacity() / 4;
        // Entries that were free at the last check are still free, and this costs nothing.
        self.ring.cached_slots() < quarter && self.ring.slots() < quarter
    }

    /// Whether half of it is free again, or the reader has dropped it.
    pub(super) fn has_drained(&self) -> bool {
        self.ring.slots() >= self.ring.buffer().capacity() / 2 || self.is_abandoned()
    }

    /// Whether the application has dropped its half.
    pub(super) fn is_abandoned(&self) -> bool {
        self.core.is_abandoned()
    }
}

impl Drop for CqWriter {
    fn drop(&mut self) {
        self.core.lanes.fetch_and(!(1 << self.lane), Ordering::AcqRel);
    }
}

/// The completion queues and completion channels of a context.
#[derive(Debug, Default)]
pub(crate) struct CqTable {
    entries: Mutex<Entries>,
    /// Number of queues that a lane has ended; the others look for them when it changes.
    overruns: AtomicU32,
}

#[derive(Debug, Default)]
struct Entries {
    queues: Vec<Option<Weak<CqCore>>>,
    free: Vec<CqId>,
    channels: Vec<Weak<EventChannel>>,
    /// No further completions follow.
    failed: bool,
}

impl CqTable {
    /// A completion queue for `depth` completions from each lane, with an optional channel.
    pub(crate) fn create(self: &Arc<Self>, depth: u32, channel: Option<&Arc<EventChannel>>) -> CqReader {
        let mut entries = self.lock();
        let id = entries.free.pop().unwrap_or(CqId(entries.queues.len() as u32));
        let core = Arc::new(CqCore {
            id,
            depth,
            state: AtomicU32::new(if entries.failed { CqEnd::LANE_FAILED } else { CqEnd::OPEN }),
            added: Mutex::default(),
            lanes: AtomicU32::new(0),
            abandoned: AtomicBool::new(false),
            notifier: channel.map(|channel| Arc::new(CqNotifier::new(id, channel))),
            table: Arc::downgrade(self),
            home: Home::here(),
        });
        let entry = Some(Arc::downgrade(&core));
        match entries.queues.get_mut(id.0 as usize) {
            Some(place) => *place = entry,
            None => entries.queues.push(entry),
        }
        drop(entries);
        CqReader { rings: Vec::new(), next_ring: 0, ended: None, core }
    }

    /// Registers a channel, to be notified at the end of all queues.
    pub(crate) fn add_channel(&self, channel: &Arc<EventChannel>) {
        let mut entries = self.lock();
        entries.channels.retain(|channel| channel.strong_count() > 0);
        entries.channels.push(Arc::downgrade(channel));
        if entries.failed {
            channel.fail();
        }
    }

    /// Number of overruns.
    #[inline]
    pub(super) fn overruns(&self) -> u32 {
        self.overruns.load(Ordering::Relaxed)
    }

    /// Makes the other lanes look for an overrun queue.
    pub(super) fn count_overrun(&self) {
        self.overruns.fetch_add(1, Ordering::Release);
    }

    /// Ends all queues after their contents: no lane writes to them any more.
    pub(super) fn fail(&self) {
        let mut entries = self.lock();
        entries.failed = true;
        let queues: Vec<_> = entries.queues.iter().flatten().filter_map(Weak::upgrade).collect();
        let channels: Vec<_> = entries.channels.iter().filter_map(Weak::upgrade).collect();
        // The drop below may release the last handle of a queue, which takes this lock.
        drop(entries);
        for queue in &queues {
            queue.end(CqEnd::LaneFailed);
            queue.notify();
        }
        for channel in &channels {
            channel.fail();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn queue(depth: u32, lanes: u32) -> (CqReader, Vec<CqWriter>) {
        let reader = Arc::new(CqTable::default()).create(depth, None);
        let writers = (0..lanes).map(|lane| CqWriter::new(reader.core(), lane)).collect();
        (reader, writers)
    }

    fn wc(wr_id: u64) -> Wc {
        Wc { wr_id, ..Wc::default() }
    }

    /// All results of a poll with room for `room`.
    fn poll(reader: &mut CqReader, room: usize) -> Result<Vec<u64>, CqEnd> {
        let mut out = vec![Wc::default(); room];
        let count = reader.poll(&mut out)?;
        Ok(out[..count].iter().map(|wc| wc.wr_id).collect())
    }

    #[test]
    fn an_overrun_is_reported_after_what_the_queue_holds() {
        let (mut reader, mut writers) = queue(2, 1);
        let pushed: Vec<_> = (0..4).map(|id| writers[0].push(wc(id))).collect();
        assert_eq!(pushed, [Ok(()), Ok(()), Err(CqLoss::Overrun), Ok(())], "reported once");
        assert_eq!(poll(&mut reader, 4), Ok(vec![0, 1]));
        assert_eq!((poll(&mut reader, 4), poll(&mut reader, 4)), (Err(CqEnd::Overrun), Err(CqEnd::Overrun)));
        assert_eq!(poll(&mut reader, 0), Ok(vec![]));
        assert!(!writers[0].has_ended(), "it knows");
    }

    #[test]
    fn it_fills_up_at_three_quarters_and_has_drained_at_half() {
        let (mut reader, mut writers) = queue(8, 1);
        let writer = &mut writers[0];
        let mut states = Vec::new();
        for _ in 0..8 {
            writer.push(wc(0)).unwrap();
            states.push((writer.is_filling_up(), writer.has_drained()));
        }
        assert_eq!(states[..4], [(false, true); 4]);
        assert_eq!(states[4..6], [(false, false); 2]);
        assert_eq!(states[6..], [(true, false); 2]);
        let drained = (0..8).map(|_| (poll(&mut reader, 1).unwrap(), writer.has_drained()).1);
        assert_eq!(drained.collect::<Vec<_>>(), [false, false, false, true, true, true, true, true]);
        assert!(!writer.is_filling_up());
        drop(reader);
        (0..8).for_each(|_| writer.push(wc(0)).unwrap());
        assert!(writer.has_drained(), "nobody reads it");
    }

    #[test]
    fn completions_for_a_dropped_queue_are_no_overrun() {
        let (reader, mut writers) = queue(1, 2);
        drop(reader);
        for writer in &mut writers {
            assert_eq!((writer.push(wc(0)), writer.push(wc(1))), (Ok(()), Ok(())));
            assert!(writer.is_abandoned());
        }
    }

    /// A reader with little room takes from each lane in turn, and also reads a ring that is added meanwhile.
    #[test]
    fn no_lane_waits_for_the_others() {
        let (mut reader, mut writers) = queue(8, 2);
        (0..6).for_each(|id| writers[0].push(wc(id)).unwrap());
        (10..12).for_each(|id| writers[1].push(wc(id)).unwrap());
        assert_eq!(poll(&mut reader, 1), Ok(vec![0]));
        assert_eq!(poll(&mut reader, 1), Ok(vec![10]));
        let mut third = CqWriter::new(reader.core(), 2);
        third.push(wc(20)).unwrap();
        assert_eq!(poll(&mut reader, 3), Ok(vec![1, 2, 3]));
        assert_eq!(poll(&mut reader, 5), Ok(vec![11, 20, 4, 5]));
        assert_eq!((poll(&mut reader, 5), reader.core().lanes()), (Ok(vec![]), 0b111));
        drop(third);
        assert_eq!(reader.core().lanes(), 0b11);
    }

    #[test]
    fn an_overrun_ends_the_queue_for_all_lanes_and_each_hears_of_it_once() {
        let (mut reader, mut writers) = queue(2, 3);
        let [one, other, third] = writers.as_mut_slice() else { unreachable!() };
        other.push(wc(10)).unwrap();
        assert_eq!((one.push(wc(0)), one.push(wc(1))), (Ok(()), Ok(())));
        assert!(!other.has_ended());
        assert_eq!(one.push(wc(2)), Err(CqLoss::Overrun));
        assert_eq!((other.push(wc(11)), other.push(wc(12))), (Err(CqLoss::Ended), Ok(())));
        assert_eq!((third.has_ended(), third.has_ended(), third.push(wc(20))), (true, false, Ok(())));
        assert_eq!(poll(&mut reader, 8), Ok(vec![0, 1, 10]));
        assert_eq!(poll(&mut reader, 8), Err(CqEnd::Overrun));
        // A lane that had tested the state before the end adds its completion after it.
        third.ring.push(wc(21)).unwrap();
        assert_eq!(poll(&mut reader, 8), Err(CqEnd::Overrun), "for ever");
    }

    #[test]
    fn when_a_lane_fails_all_queues_end_and_those_made_later() {
        let table = Arc::new(CqTable::default());
        let (mut plain, mut overrun) = (table.create(1, None), table.create(1, None));
        let mut writer = CqWriter::new(overrun.core(), 0);
        assert_eq!((writer.push(wc(0)), writer.push(wc(1))), (Ok(()), Err(CqLoss::Overrun)));
        drop(table.create(1, None));
        table.fail();
        assert_eq!(poll(&mut plain, 1), Err(CqEnd::LaneFailed));
        assert_eq!((poll(&mut overrun, 1), poll(&mut overrun, 1)), (Ok(vec![0]), Err(CqEnd::Overrun)));
        assert_eq!(poll(&mut table.create(1, None), 1), Err(CqEnd::LaneFailed));
    }

    /// The reader reads the rings after it has seen the end, so it misses no earlier completion.
    #[test]
    fn nothing_is_lost_between_threads() {
        const COUNT: u64 = 50_000;
        let (mut reader, writers) = queue(COUNT as u32, 0);
        drop(writers);
        let core = Arc::clone(reader.core());
        std::thread::scope(|scope| {
            for lane in 0..2 {
                let core = &core;
                scope.spawn(move || {
                    let mut writer = CqWriter::new(core, lane);
                    (0..COUNT).for_each(|n| writer.push(wc(n * 2 + u64::from(lane))).unwrap());
                });
            }
            let mut next = [0, 0];
            while next != [COUNT; 2] {
                for id in poll(&mut reader, 16).unwrap() {
                    assert_eq!(id / 2, next[id as usize % 2], "in order");
                    next[id as usize % 2] += 1;
                }
            }
        });
    }
}
