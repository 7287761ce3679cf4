//! The rings from an application's thread to a lane: work requests. (Completions use [`cq`](super::cq).)
//!
//! Each queue pair has a [queue](super::segmented_queue) of send requests and one of receive requests, each with one writing
//! and one reading thread. One list of doorbells shows the lane which queue pairs have work. A queue pair is in that
//! list at most once (see its `armed` flag), so a list as long as the number of queue pairs never overflows.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crossbeam_queue::ArrayQueue;
use crossbeam_utils::CachePadded;
use rtrb::{Consumer, Producer, RingBuffer};
use spindrift_pmd::fork::Home;

use crate::endpoint::{FailReason, QpCap, QpState};
use crate::wire::Qpn;
use crate::work::{PostedRecv, RecvWr, ScatterWr, SendWr, Sge};

use super::segmented_queue::{SegmentLinks, SegmentPool, SegmentedConsumer, SegmentedProducer};
use super::tuning::{RECV_SEGMENT, RECV_SEGMENT_POOL, SEND_SEGMENT, SEND_SEGMENT_POOL};
use super::waker::Waker;

/// Index of a queue pair in its lane's table.
pub(crate) type QpSlot = u32;

/// Queue pairs with something in their rings.
pub(crate) type Doorbells = Arc<ArrayQueue<QpSlot>>;

/// A send request on its way to the lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PostedSend {
    /// If the request has several elements, its only element here has the length of the message.
    pub(super) wr: SendWr,
    /// Number of elements in the ring of elements, if there are several.
    elements: u8,
}

impl PostedSend {
    pub(super) const fn is_gather(&self) -> bool {
        self.elements > 0
    }
}

/// A receive request on its way to the lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RingRecv {
    wr: RecvWr,
    /// Number of elements in the ring of elements, if there are several.
    elements: u8,
}

/// State that the queue pairs of a lane share.
#[derive(Clone, Debug)]
pub(super) struct LaneRings {
    pub(super) doorbells: Doorbells,
    sends: SegmentPool<PostedSend>,
    recvs: SegmentPool<RingRecv>,
    /// Only for a lane whose thread may sleep: without it, a post saves a load.
    waker: Arc<OnceLock<Arc<Waker>>>,
}

impl LaneRings {
    /// Rings for up to `max_qps` queue pairs.
    pub(super) fn new(max_qps: usize) -> Self {
        let doorbells = Arc::new(ArrayQueue::new(max_qps));
        Self {
            doorbells,
            sends: SegmentPool::new(SEND_SEGMENT, SEND_SEGMENT_POOL),
            recvs: SegmentPool::new(RECV_SEGMENT, RECV_SEGMENT_POOL),
            waker: Arc::default(),
        }
    }

    /// Makes later posts wake a thread that naps.
    pub(super) fn set_waker(&self, waker: &Arc<Waker>) {
        let _ = self.waker.set(Arc::clone(waker));
    }

    #[cfg(test)]
    pub(super) fn pooled_segments(&self) -> [usize; 2] {
        [self.sends.len(), self.recvs.len()]
    }
}

/// The maximum of outstanding work requests is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

/// State that both sides of a queue pair share.
#[derive(Debug)]
struct QpFlags {
    /// The queue pair is in the doorbell list.
    armed: CachePadded<AtomicBool>,
    /// Work requests that the lane has completed since the start (wrapping).
    sends_retired: CachePadded<AtomicU32>,
    recvs_retired: AtomicU32,
    /// The lane has failed and takes no further requests.
    closed: AtomicBool,
    /// The process of the lane.
    home: Home,
    sends: SegmentLinks<PostedSend>,
    recvs: SegmentLinks<RingRecv>,
    /// Written when the queue pair changes its state, so that a query does not involve the lane.
    condition: Mutex<Condition>,
}

/// A queue pair's state, and the reason if it failed.
pub(crate) type Condition = (QpState, Option<FailReason>);

/// The application's half of a queue pair.
#[derive(Debug)]
pub(crate) struct QpSubmit {
    sends: SegmentedProducer<PostedSend>,
    /// The elements of requests that have several, up to the maximum; none if requests have one.
    elements: Option<Box<Producer<Sge>>>,
    max_sge: u32,
    recvs: SegmentedProducer<RingRecv>,
    /// The same for receive requests.
    recv_elements: Option<Box<Producer<Sge>>>,
    max_recv_sge: u32,
    max_sends: u32,
    max_recvs: u32,
    sends_posted: u32,
    recvs_posted: u32,
    flags: Arc<QpFlags>,
    lane: LaneRings,
    slot: QpSlot,
}

/// The lane's half of a queue pair.
#[derive(Debug)]
pub(crate) struct QpIntake {
    pub(super) qpn: Qpn,
    sends: SegmentedConsumer<PostedSend>,
    elements: Option<Box<Elements>>,
    recvs: SegmentedConsumer<RingRecv>,
    recv_elements: Option<Box<Elements>>,
    flags: Arc<QpFlags>,
}

/// Elements of requests, and those of the request that the lane took last.
#[derive(Debug)]
struct Elements {
    ring: Consumer<Sge>,
    taken: Vec<Sge>,
}

/// Makes both halves of a queue pair's rings.
pub(super) fn qp_rings(qpn: Qpn, slot: QpSlot, lane: &LaneRings, cap: QpCap) -> (QpSubmit, QpIntake) {
    let QpCap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge } = cap;
    let (send_in, send_links, sends) = lane.sends.new_queue(max_send_wr as usize);
    let (recv_in, recv_links, recvs) = lane.recvs.new_queue(max_recv_wr as usize);
    let (element_in, elements) = Elements::rings(max_send_wr, max_send_sge);
    let (recv_element_in, recv_elements) = Elements::rings(max_recv_wr, max_recv_sge);
    let flags = Arc::new(QpFlags {
        armed: CachePadded::default(),
        sends_retired: CachePadded::default(),
        recvs_retired: AtomicU32::new(0),
        closed: AtomicBool::new(false),
        home: Home::here(),
        sends: send_links,
        recvs: recv_links,
        condition: Mutex::new((QpState::Reset, None)),
    });
    let submit = QpSubmit {
        sends: send_in,
        elements: element_in,
        max_sge: max_send_sge,
        recvs: recv_in,
        recv_elements: recv_element_in,
        max_recv_sge,
        max_sends: max_send_wr,
        max_recvs: max_recv_wr,
        sends_posted: 0,
        recvs_posted: 0,
        flags: Arc::clone(&flags),
        lane: lane.clone(),
        slot,
    };
    (submit, QpIntake { qpn, sends, elements, recvs, recv_elements, flags })
}

impl Elements {
    /// A ring for the elements of all outstanding requests, if requests have several.
    fn rings(requests: u32, each: u32) -> (Option<Box<Producer<Sge>>>, Option<Box<Self>>) {
        if each <= 1 || requests == 0 {
            return (None, None);
        }
        let (end, ring) = RingBuffer::new(requests as usize * each as usize);
        (Some(Box::new(end)), Some(Box::new(Self { ring, taken: Vec::with_capacity(each as usize) })))
    }

    #[cold]
    fn take(&mut self, count: usize) {
        self.taken.clear();
        // They were written before the request.
        self.taken.extend(self.ring.read_chunk(count).into_iter().flatten());
    }
}

/// Adds elements to their ring. There is room for those of all outstanding requests: they are removed before their
/// request is.
fn push_elements(
    ring: Option<&mut Producer<Sge>>,
    elements: impl Iterator<Item = Sge> + Clone,
) -> Result<u8, Full> {
    let count = elements.clone().count();
    let room = ring.and_then(|ring| ring.write_chunk_uninit(count).ok()).ok_or(Full)?;
    room.fill_from_iter(elements);
    Ok(count as u8)
}

impl QpSubmit {
    /// Maximum of outstanding send requests.
    pub(crate) fn max_sends(&self) -> u32 {
        self.max_sends
    }

    /// Maximum of outstanding receive requests.
    pub(crate) fn max_recvs(&self) -> u32 {
        self.max_recvs
    }

    /// Send requests posted and not completed.
    pub(crate) fn sends_outstanding(&self) -> u32 {
        self.sends_posted.wrapping_sub(self.flags.sends_retired.load(Ordering::Acquire))
    }

    /// Receive requests posted and not consumed.
    pub(crate) fn recvs_outstanding(&self) -> u32 {
        self.recvs_posted.wrapping_sub(self.flags.recvs_retired.load(Ordering::Acquire))
    }

    /// Maximum of scatter/gather elements of a send request.
    pub(crate) fn max_sge(&self) -> u32 {
        self.max_sge
    }

    /// Maximum of scatter/gather elements of a receive request.
    pub(crate) fn max_recv_sge(&self) -> u32 {
        self.max_recv_sge
    }

    /// Posts a send request, if the limit allows one more. [`QpSubmit::ring`] notifies the lane.
    #[inline]
    pub(crate) fn push_send(&mut self, wr: SendWr) -> Result<(), Full> {
        self.push(PostedSend { wr, elements: 0 })
    }

    /// The same for a send request of several elements, up to [`QpSubmit::max_sge`]; `wr` has the length of all.
    pub(crate) fn push_gather(
        &mut self,
        wr: SendWr,
        elements: impl Iterator<Item = Sge> + Clone,
    ) -> Result<(), Full> {
        if self.sends_outstanding() >= self.max_sends() {
            return Err(Full);
        }
        let elements = push_elements(self.elements.as_deref_mut(), elements)?;
        self.push(PostedSend { wr, elements })
    }

    #[inline]
    fn push(&mut self, posted: PostedSend) -> Result<(), Full> {
        if self.sends_outstanding() >= self.max_sends() {
            return Err(Full);
        }
        self.sends.push(&self.flags.sends, posted);
        self.sends_posted = self.sends_posted.wrapping_add(1);
        Ok(())
    }

    /// Posts a receive request, if the limit allows one more. [`QpSubmit::ring`] notifies the lane.
    #[inline]
    pub(crate) fn push_recv(&mut self, wr: RecvWr) -> Result<(), Full> {
        if self.recvs_outstanding() >= self.max_recvs() {
            return Err(Full);
        }
        self.push_ring_recv(RingRecv { wr, elements: 0 });
        Ok(())
    }

    /// The same for a receive request of several elements, up to [`QpSubmit::max_recv_sge`].
    pub(crate) fn push_scatter(&mut self, wr: &ScatterWr<'_>) -> Result<(), Full> {
        if let Some(one) = wr.with_one() {
            return self.push_recv(one);
        }
        if self.recvs_outstanding() >= self.max_recvs() {
            return Err(Full);
        }
        let elements = push_elements(self.recv_elements.as_deref_mut(), wr.elements())?;
        self.push_ring_recv(RingRecv { wr: RecvWr::empty(wr.wr_id), elements });
        Ok(())
    }

    #[inline]
    fn push_ring_recv(&mut self, posted: RingRecv) {
        self.recvs.push(&self.flags.recvs, posted);
        self.recvs_posted = self.recvs_posted.wrapping_add(1);
    }

    /// Counts everything posted as completed: the queue pair was reset, which drops its requests silently.
    pub(crate) fn reset_outstanding(&mut self) {
        self.sends_posted = self.flags.sends_retired.load(Ordering::Acquire);
        self.recvs_posted = self.flags.recvs_retired.load(Ordering::Acquire);
    }

    /// Whether the lane has failed, or works in the parent of this process.
    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.flags.closed.load(Ordering::Acquire) || self.flags.home.is_elsewhere()
    }

    /// The latest state of the queue pair.
    pub(crate) fn condition(&self) -> Condition {
        if self.flags.home.is_elsewhere() {
            return (QpState::Error, Some(FailReason::LaneFailed));
        }
        *self.flags.condition.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Rings the doorbell: there are requests.
    #[inline]
    pub(crate) fn ring(&self) {
        // Both sides swap this flag. If it was set already, the lane has yet to clear it, and will then read the
        // rings, so it sees what was pushed before this swap.
        if self.flags.armed.swap(true, Ordering::AcqRel) {
            return;
        }
        if self.lane.doorbells.push(self.slot).is_err() {
            // Impossible while the list is as long as the table of queue pairs. If it happened, the next request
            // would ring again.
            self.flags.armed.store(false, Ordering::Release);
        }
        if let Some(waker) = self.lane.waker.get() {
            waker.wake();
        }
    }
}

impl QpIntake {
    /// The oldest send request that the lane has not taken. [`QpIntake::elements`] are its elements if it has
    /// several.
    #[inline]
    pub(super) fn pop_send(&mut self) -> Option<PostedSend> {
        let posted = self.sends.pop(&self.flags.sends)?;
        if posted.is_gather()
            && let Some(elements) = self.elements.as_deref_mut()
        {
            elements.take(usize::from(posted.elements));
        }
        Some(posted)
    }

    /// The elements of the request taken last, if it has several.
    pub(super) fn elements(&self) -> &[Sge] {
        self.elements.as_deref().map_or(&[], |elements| &elements.taken)
    }

    /// The oldest receive request that the lane has not taken.
    #[inline]
    pub(super) fn pop_recv(&mut self) -> Option<PostedRecv> {
        let RingRecv { wr, elements: count } = self.recvs.pop(&self.flags.recvs)?;
        let mut elements = None;
        if count > 0
            && let Some(ring) = self.recv_elements.as_deref_mut()
        {
            ring.take(usize::from(count));
            elements = Some(ring.taken.as_slice().into());
        }
        Some(PostedRecv { wr, elements })
    }

    /// The lane has taken this queue pair off the list and will read its rings.
    #[inline]
    pub(super) fn disarm(&self) {
        self.flags.armed.swap(false, Ordering::AcqRel);
    }

    /// Refuses requests from here on.
    pub(super) fn close(&self) {
        self.flags.closed.store(true, Ordering::Release);
    }

    /// The last published state of the queue pair.
    pub(super) fn condition(&self) -> Condition {
        *self.flags.condition.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes the state of the queue pair.
    pub(super) fn set_condition(&self, state: QpState, failed: Option<FailReason>) {
        *self.flags.condition.lock().unwrap_or_else(PoisonError::into_inner) = (state, failed);
    }

    /// The lane has completed the `count` oldest send requests.
    #[inline]
    pub(super) fn retire_sends(&self, count: u32) {
        retire(&self.flags.sends_retired, count);
    }

    /// The lane has consumed the oldest receive request.
    #[inline]
    pub(super) fn retire_recv(&self) {
        retire(&self.flags.recvs_retired, 1);
    }
}

/// Adds to a counter that only the lane writes, without the cost of a locked instruction.
#[inline]
fn retire(total: &AtomicU32, count: u32) {
    total.store(total.load(Ordering::Relaxed).wrapping_add(count), Ordering::Release);
}
