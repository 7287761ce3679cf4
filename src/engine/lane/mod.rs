//! The run-to-completion loop.

mod control;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use spindrift_pmd::{LinkState, Port, PortCounters};

use super::async_events::AsyncEvent;
use super::clock::Clock;
use super::counters::LaneCounters;
use super::cq::{CqLoss, CqWriter};
use super::lanes_shared::LanesShared;
use super::rings::{Doorbells, LaneRings, QpIntake, QpSlot};
use super::stats_snapshot::{PortSnapshot, Snapshot, SnapshotSource};
use super::tuning::{
    DEFERRED_ACKS_MAX_FRAMES, FORWARD_QUEUE_BURST, LINK_CHECK_NS, RX_BURST, STALL_THRESHOLD_NS, TX_PER_POLL,
    TX_RECALL_AFTER_NS,
};
use super::tx_batch::TxBatch;
use super::waker::Waker;
use crate::endpoint::{CqId, Endpoint, Event, FailReason, PostError, QpModify, QpState};
use crate::memory::MemoryView;
use crate::time::Time;
use crate::wire::Qpn;
use crate::work::{GatherWr, SendWr, Wc, WcOpcode, WcStatus};

/// An endpoint with its ports and a clock.
pub struct Lane {
    pub(super) endpoint: Endpoint,
    pub(super) ports: Vec<Box<dyn Port>>,
    pub(super) tx: TxBatch,
    pub(super) counters: LaneCounters,
    clock: Clock,
    /// When the last poll began; [`Time::NEVER`] if the lane napped since.
    polled_at: Time,
    links_up: u32,
    next_link_check: Time,
    tx_holds: TxHolds,
    rings: LaneRings,
    qps: Vec<Option<QpEntry>>,
    free_slots: Vec<QpSlot>,
    slots: BTreeMap<Qpn, QpSlot>,
    cqs: Vec<Option<CqWriter>>,
    /// Completions from the endpoint that are not in their rings yet.
    completions: VecDeque<(CqId, Wc)>,
    /// Completion queues that are nearly full.
    cqs_nearly_full: Vec<CqId>,
    /// The lane's number in its context, and the state that it shares with the others.
    number: u32,
    common: Arc<LanesShared>,
    /// Overruns that this lane has processed.
    overruns_processed: u32,
    /// Acknowledgements wait for the next poll.
    acks_deferred: bool,
    /// The last poll was idle.
    last_poll_idle: bool,
}

/// How soon the driver of a lane polls it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PollMode {
    /// Perhaps late.
    MayPause,
    /// At once.
    Busy,
}

/// Payloads that ports still refer to.
struct TxHolds {
    /// Whether any port keeps payloads at all.
    any: bool,
    /// The oldest ticket that a request waited for, and since when it was the oldest.
    oldest: u64,
    since: Time,
}

/// A lane's record of a queue pair.
struct QpEntry {
    intake: QpIntake,
    send_cq: CqId,
    recv_cq: CqId,
    /// Its receive requests come from a shared receive queue and are not counted here.
    shares_recvs: bool,
}

impl core::fmt::Debug for Lane {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Lane")
            .field("ports", &self.ports.len())
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

impl Lane {
    /// Joins an endpoint and the ports that its configuration was made from, in the same order.
    ///
    /// # Errors
    /// The system gave no file descriptor for the asynchronous events.
    pub fn new(endpoint: Endpoint, ports: Vec<Box<dyn Port>>) -> io::Result<Self> {
        Ok(Self::new_in_context(endpoint, ports, 0, &Arc::new(LanesShared::new(1)?)))
    }

    /// The same for one of several lanes of a context.
    pub(crate) fn new_in_context(
        mut endpoint: Endpoint,
        ports: Vec<Box<dyn Port>>,
        number: u32,
        common: &Arc<LanesShared>,
    ) -> Self {
        let any = ports.iter().any(|port| port.caps().holds_payloads);
        if any {
            endpoint.release_before(0);
        }
        let max_qps = endpoint.config().limits.max_qps.max(1) as usize;
        Self {
            tx: TxBatch::for_ports(&ports),
            links_up: (1u64 << ports.len().min(32)).wrapping_sub(1) as u32,
            endpoint,
            ports,
            counters: LaneCounters::default(),
            clock: Clock::start(),
            polled_at: Time::NEVER,
            next_link_check: Time::ZERO,
            tx_holds: TxHolds { any, oldest: u64::MAX, since: Time::ZERO },
            rings: LaneRings::new(max_qps),
            qps: Vec::new(),
            free_slots: Vec::new(),
            slots: BTreeMap::new(),
            cqs: Vec::new(),
            completions: VecDeque::new(),
            cqs_nearly_full: Vec::new(),
            number,
            common: Arc::clone(common),
            overruns_processed: 0,
            acks_deferred: false,
            last_poll_idle: false,
        }
    }

    /// Polls once: does all work that is ready now. Returns the amount (requests, frames, completions), so that a
    /// driver sees when the lane is idle.
    pub fn poll(&mut self) -> usize {
        self.poll_as(PollMode::MayPause)
    }

    /// The same for a driver that polls without a pause. The acknowledgements of a few frames wait for the next poll
    /// and leave after packets that the application posts in between: sending them may take longer than its reply.
    pub fn poll_busy(&mut self) -> usize {
        self.poll_as(PollMode::Busy)
    }

    pub(super) fn poll_as(&mut self, mode: PollMode) -> usize {
        let now = self.clock.now();
        if now.since(self.polled_at) > STALL_THRESHOLD_NS {
            self.counters.interruptions += 1;
            self.endpoint.on_driver_stall(self.polled_at, now);
        }
        self.polled_at = now;
        let mut work = self.serve_doorbells(now);
        if core::mem::take(&mut self.acks_deferred) {
            work += self.transmit(now);
        }
        let received = self.receive(now);
        work += received;
        if now >= self.next_link_check {
            self.check_links(now);
            self.clear_cq_backpressure();
            self.fail_qps_of_overrun_cqs(now);
            self.endpoint.reclaim(now);
            // The last lane and the last port that learn of it free memory that was dropped elsewhere.
            self.endpoint.memory_mut().sync();
            if self.tx_holds.any {
                self.reap();
            }
        }
        if now >= self.endpoint.next_timeout() {
            self.endpoint.on_timeout(now);
        }
        if self.endpoint.waits_for_release() {
            self.release(now);
        }
        self.acks_deferred = mode == PollMode::Busy
            && (1..=DEFERRED_ACKS_MAX_FRAMES).contains(&received)
            && self.endpoint.has_pending_control();
        if !self.acks_deferred {
            work += self.transmit(now);
        }
        work += self.deliver_events(now);
        self.last_poll_idle = work == 0;
        self.counters.polls += 1;
        self.counters.idle_polls += u64::from(work == 0);
        work
    }

    /// The transport state.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The transport state, for control operations.
    pub fn endpoint_mut(&mut self) -> &mut Endpoint {
        &mut self.endpoint
    }

    /// The doorbell list of this lane. From this call on, posts wake its sleeping thread.
    pub(super) fn set_waker(&self, waker: &Arc<Waker>) -> Doorbells {
        self.rings.set_waker(waker);
        if let Some(queue) = self.common.forward_queue(self.number) {
            queue.set_waker(waker);
        }
        Arc::clone(&self.rings.doorbells)
    }

    pub(super) const fn number(&self) -> u32 {
        self.number
    }

    pub(super) fn common(&self) -> &Arc<LanesShared> {
        &self.common
    }

    /// The lane's counters.
    pub fn counters(&self) -> LaneCounters {
        self.counters
    }

    /// The counters of each port, by plane.
    pub fn port_counters(&self) -> impl Iterator<Item = PortCounters> {
        self.ports.iter().map(Port::counters)
    }

    /// Whether a port's link was up at the last check.
    pub(super) const fn link(&self, plane: u8) -> LinkState {
        if self.links_up >> plane & 1 == 1 { LinkState::Up } else { LinkState::Down }
    }

    /// The lane's time now.
    pub fn now(&self) -> Time {
        self.clock.now()
    }

    /// Whether there is no work now.
    pub(super) const fn is_idle(&self) -> bool {
        self.last_poll_idle && !self.acks_deferred
    }

    /// The lane is idle and will not be polled for a while.
    pub(super) const fn note_sleep(&mut self) {
        self.polled_at = Time::NEVER;
    }

    /// Time at which the lane must be polled again even if nothing arrives.
    pub(super) fn next_timer(&self) -> Time {
        let ports = self.ports.iter().filter_map(Port::next_event_ns).min();
        // A port that releases payload causes no event.
        let release = if self.endpoint.waits_for_release() { self.next_link_check } else { Time::NEVER };
        self.endpoint.next_timeout().min(release).min(ports.map_or(Time::NEVER, Time))
    }

    /// Takes all requests that were posted before this call, and delivers pending completions.
    pub(super) fn drain(&mut self) {
        let now = self.clock.now();
        self.serve_doorbells(now);
        self.deliver_events(now);
    }

    fn serve_doorbells(&mut self, now: Time) -> usize {
        let mut served = 0;
        // The check costs two loads; taking from an empty list would cost a fence.
        while !self.rings.doorbells.is_empty() {
            let Some(slot) = self.rings.doorbells.pop() else { break };
            self.take_requests(now, slot);
            served += 1;
        }
        self.counters.doorbells += served as u64;
        served
    }

    fn take_requests(&mut self, now: Time, slot: QpSlot) {
        let Self { endpoint, qps, counters, .. } = self;
        let Some(QpEntry { intake, .. }) = qps.get_mut(slot as usize).and_then(Option::as_mut) else {
            return;
        };
        intake.disarm();
        let qpn = intake.qpn;
        while let Some(posted) = intake.pop_recv() {
            if let Err(error) = endpoint.post_received(qpn, &posted) {
                let wc = error_completion(qpn, posted.wr.wr_id, WcOpcode::RecvRdmaWithImm, error);
                return self.reject(now, slot, wc);
            }
        }
        while let Some(posted) = intake.pop_send() {
            let wr = posted.wr;
            let taken = if posted.is_gather() {
                let SendWr { wr_id, op, remote, signaled, fence, .. } = wr;
                let local = intake.elements();
                endpoint.post_gather(now, qpn, GatherWr { wr_id, op, local, remote, signaled, fence })
            } else {
                endpoint.post_send(now, qpn, wr)
            };
            match taken {
                Ok(()) => {}
                Err(PostError::NoSuchQp) => {
                    let wc = error_completion(qpn, wr.wr_id, wr.op.wc_opcode(), PostError::NoSuchQp);
                    return self.reject(now, slot, wc);
                }
                // Sends complete in the order in which they were posted, and inline sends rely on that to reuse their
                // memory. So the queue pair fails, which completes earlier requests first.
                Err(_) => {
                    counters.refused_requests += 1;
                    endpoint.reject_send(qpn, &wr, WcStatus::LocalQpOperationError);
                }
            }
        }
    }

    /// Completes a request that the endpoint refused, after earlier ones, and continues with the rest.
    fn reject(&mut self, now: Time, slot: QpSlot, wc: Wc) {
        self.counters.refused_requests += 1;
        self.deliver_events(now);
        if let Some(entry) = self.entry(slot) {
            let cq = if wc.opcode.is_receive() {
                entry.intake.retire_recv();
                entry.recv_cq
            } else {
                entry.intake.retire_sends(1);
                entry.send_cq
            };
            self.push_completion(now, cq, wc);
        }
        self.take_requests(now, slot);
    }

    fn receive(&mut self, now: Time) -> usize {
        if !self.common.forward_queues.is_empty() {
            return self.receive_and_forward(now);
        }
        let Self { endpoint, ports, .. } = self;
        let mut received = 0;
        for (plane, port) in ports.iter_mut().enumerate() {
            received +=
                port.rx_burst(now.0, RX_BURST, &mut |frame| endpoint.receive(now, plane as u8, frame));
        }
        self.counters.rx_frames += received as u64;
        received
    }

    /// The same for one of several lanes, which may share addresses: forwards frames of other lanes, and processes
    /// frames that others forwarded.
    fn receive_and_forward(&mut self, now: Time) -> usize {
        let Self { endpoint, ports, counters, common, .. } = self;
        let mut received = 0;
        for (plane, port) in (0u8..).zip(ports) {
            received += port.rx_burst(now.0, RX_BURST, &mut |frame| {
                endpoint.receive(now, plane, frame);
                if let Some(forward) = endpoint.take_forward() {
                    counters.handover_lost += u64::from(!common.forward_frame(plane, frame, forward));
                }
            });
        }
        counters.rx_frames += received as u64;
        let Some(queue) = common.forward_queue(self.number) else { return received };
        let mut taken = 0;
        // The check costs two loads; taking from an empty one would cost a fence.
        while taken < FORWARD_QUEUE_BURST
            && !queue.is_empty()
            && let Some(forwarded) = queue.pop()
        {
            let frame = forwarded.frame();
            endpoint.receive_forwarded(now, forwarded.plane, &frame, forwarded.forward);
            if let Some(forward) = endpoint.take_forward() {
                counters.handover_lost += u64::from(!common.forward_frame(forwarded.plane, &frame, forward));
            }
            queue.recycle(forwarded);
            taken += 1;
        }
        counters.taken_over += taken as u64;
        received + taken
    }

    /// The oldest ticket whose payload a port still refers to.
    fn reap(&mut self) -> u64 {
        self.ports.iter_mut().map(Port::reap).min().unwrap_or(u64::MAX)
    }

    /// Completes requests whose payload the ports have released.
    fn release(&mut self, now: Time) {
        let oldest = self.reap();
        self.endpoint.release_before(oldest);
        if oldest != self.tx_holds.oldest {
            (self.tx_holds.oldest, self.tx_holds.since) = (oldest, now);
        } else if self.endpoint.waits_for_release() && now >= self.tx_holds.since.after(TX_RECALL_AFTER_NS) {
            self.recall();
        }
    }

    #[cold]
    fn recall(&mut self) {
        for port in &mut self.ports {
            port.recall();
        }
        self.endpoint.release_before(u64::MAX);
    }

    /// The registered memory, for operations that end a registration. Nothing that a peer has read is in use: the ports
    /// release what they hold.
    pub(crate) fn memory_to_deregister(&mut self) -> &mut MemoryView {
        if self.endpoint.waits_for_release() {
            self.recall();
        }
        self.endpoint.memory_mut()
    }

    fn check_links(&mut self, now: Time) {
        self.next_link_check = now.after(LINK_CHECK_NS);
        for (plane, port) in self.ports.iter_mut().enumerate() {
            let bit = 1u32 << plane;
            let up = port.link() == LinkState::Up;
            if up != (self.links_up & bit != 0) {
                self.links_up ^= bit;
                self.endpoint.port_link(now, plane as u8, up);
                let (lane, plane) = (self.number, plane as u8);
                self.common.events.push(if up {
                    AsyncEvent::PortUp { lane, plane }
                } else {
                    AsyncEvent::PortDown { lane, plane }
                });
            }
        }
    }

    fn transmit(&mut self, now: Time) -> usize {
        let mut sent = self.tx.fill_ahead(now, &mut self.endpoint, &mut self.ports);
        if sent > 0 {
            self.counters.tx_refused += self.tx.send(now, &mut self.endpoint, &mut self.ports) as u64;
        }
        while sent < TX_PER_POLL {
            let filled = self.tx.fill(now, &mut self.endpoint, &mut self.ports);
            if filled == 0 {
                break;
            }
            self.counters.tx_refused += self.tx.send(now, &mut self.endpoint, &mut self.ports) as u64;
            sent += filled;
            if !self.tx.was_full() {
                break;
            }
        }
        if sent > 0 {
            self.tx.flush(now, &mut self.ports);
        }
        self.counters.tx_frames += sent as u64;
        sent
    }

    fn deliver_events(&mut self, now: Time) -> usize {
        let mut delivered = 0;
        loop {
            if self.endpoint.take_recall() {
                self.recall();
            }
            let events = self.take_events();
            if events == 0 {
                return delivered;
            }
            delivered += events;
            // Completions are published only after all room for new requests has been made: an application that posts
            // in response must not find the queue still full.
            while let Some((cq, wc)) = self.completions.pop_front() {
                self.push_completion(now, cq, wc);
            }
        }
    }

    /// Processes all events of the endpoint, and keeps its completions for later.
    fn take_events(&mut self) -> usize {
        let mut taken = 0;
        while let Some(event) = self.endpoint.poll_event() {
            taken += 1;
            match event {
                Event::SendRetired { qpn, count } => {
                    if let Some(entry) = self.entry_of(qpn) {
                        entry.intake.retire_sends(count);
                    }
                }
                Event::Completion { cq, wc } => {
                    if wc.opcode.is_receive()
                        && let Some(entry) = self.entry_of(wc.qpn)
                        && !entry.shares_recvs
                    {
                        entry.intake.retire_recv();
                    }
                    self.completions.push_back((cq, wc));
                }
                Event::QpFailed { qpn, reason } => {
                    if let Some(entry) = self.entry_of(qpn) {
                        entry.intake.set_condition(QpState::Error, Some(reason));
                    }
                    if let Some(failure) = self.endpoint.qp_failure(qpn) {
                        self.common.events.push(AsyncEvent::QpFatal(failure));
                    }
                }
                event => self.forward_async_event(event),
            }
        }
        taken
    }

    /// Forwards asynchronous events.
    fn forward_async_event(&mut self, event: Event) {
        match event {
            Event::PathsChanged { qpn } => {
                while let Some(change) = self.endpoint.poll_ev_event(qpn) {
                    self.common.events.push(AsyncEvent::Path { qpn, change });
                }
            }
            Event::PlanesSwitched { qpn, planes } => {
                self.common.events.push(AsyncEvent::PlanesSwitched { qpn, planes });
            }
            Event::PathDenied { qpn, ev, plane } => {
                self.common.events.push(AsyncEvent::PathDenied { qpn, ev, plane });
            }
            Event::EvProbeAnswered { qpn, request_id, rtt_ns } => {
                self.common.events.push(AsyncEvent::EvProbeAnswered { qpn, request_id, rtt_ns });
            }
            Event::SrqLimitReached { srq } => self.common.events.push(AsyncEvent::SrqLimitReached { srq }),
            Event::Completion { .. } | Event::SendRetired { .. } | Event::QpFailed { .. } => {}
        }
    }

    fn push_completion(&mut self, now: Time, cq: CqId, wc: Wc) {
        let Some(writer) = self.cqs.get_mut(cq.0 as usize).and_then(Option::as_mut) else { return };
        match writer.push(wc) {
            Ok(()) => {
                if writer.is_filling_up() && !self.cqs_nearly_full.contains(&cq) {
                    self.cqs_nearly_full.push(cq);
                    self.endpoint.set_cq_nearly_full(cq, true);
                }
            }
            Err(CqLoss::Overrun) => {
                self.counters.cq_overruns += 1;
                tracing::error!(target: "spindrift::lane", cq = cq.0, "completion queue overran");
                self.common.events.push(AsyncEvent::CqError { cq });
                self.common.cqs.count_overrun();
                self.fail_qps_of_cq(now, cq);
            }
            Err(CqLoss::Ended) => self.fail_qps_of_cq(now, cq),
        }
    }

    /// Fails the queue pairs of this lane whose completion queue another lane has ended.
    fn fail_qps_of_overrun_cqs(&mut self, now: Time) {
        let overruns = self.common.cqs.overruns();
        if core::mem::replace(&mut self.overruns_processed, overruns) == overruns {
            return;
        }
        for cq in 0..self.cqs.len() {
            if self.cqs[cq].as_mut().is_some_and(CqWriter::has_ended) {
                self.fail_qps_of_cq(now, CqId(cq as u32));
            }
        }
    }

    /// Checks completion queues that were nearly full.
    fn clear_cq_backpressure(&mut self) {
        let Self { cqs_nearly_full, cqs, endpoint, .. } = self;
        cqs_nearly_full.retain(|&cq| {
            let writer = cqs.get_mut(cq.0 as usize).and_then(Option::as_mut);
            let still = writer.is_some_and(|writer| !writer.has_drained());
            if !still {
                endpoint.set_cq_nearly_full(cq, false);
            }
            still
        });
    }

    /// A queue pair whose completions can be lost must fail (as `IBV_EVENT_CQ_ERR` in verbs).
    fn fail_qps_of_cq(&mut self, now: Time, cq: CqId) {
        for entry in self.qps.iter().flatten().filter(|entry| entry.send_cq == cq || entry.recv_cq == cq) {
            // The endpoint knows every queue pair of this table, and ERROR can be reached from any state.
            let _ = self.endpoint.modify_qp(now, entry.intake.qpn, QpModify::Error);
        }
    }

    fn entry(&mut self, slot: QpSlot) -> Option<&mut QpEntry> {
        self.qps.get_mut(slot as usize)?.as_mut()
    }

    fn entry_of(&mut self, qpn: Qpn) -> Option<&mut QpEntry> {
        let slot = *self.slots.get(&qpn)?;
        self.entry(slot)
    }
}

impl SnapshotSource for Lane {
    fn now(&self) -> Time {
        self.clock.now()
    }

    fn write_snapshot(&self, snapshot: &mut Snapshot) {
        snapshot.transport.clone_from(self.endpoint.counters());
        snapshot.lane = self.counters;
        snapshot.ports.resize_with(self.ports.len(), PortSnapshot::default);
        for (plane, (shown, port)) in (0..).zip(snapshot.ports.iter_mut().zip(&self.ports)) {
            shown.link = self.link(plane);
            shown.counters = port.counters();
            let notes = &port.caps().notes;
            if shown.notes != *notes {
                shown.notes.clone_from(notes);
            }
            // Errors are never removed, so equal lengths mean equal lists.
            let errors = &port.caps().send_errors;
            if shown.send_errors.len() != errors.len() {
                shown.send_errors.clone_from(errors);
            }
        }
    }
}

/// The end of a lane after a panic of itself or of another.
impl Lane {
    /// Fails every queue pair: posted requests are flushed, as far as the state after the panic allows.
    pub(super) fn fail_all_qps(&mut self) {
        let now = self.clock.now();
        for slot in 0..self.qps.len() as QpSlot {
            let Some(entry) = self.entry(slot) else { continue };
            let qpn = entry.intake.qpn;
            entry.intake.close();
            // An inconsistent queue pair must not cost the others their completions.
            let _ = catch_unwind(AssertUnwindSafe(|| {
                self.take_requests(now, slot);
                self.endpoint.abandon_qp(qpn);
            }));
            let _ = catch_unwind(AssertUnwindSafe(|| self.deliver_events(now)));
            if let Some(entry) = self.entry(slot) {
                let reason = match entry.intake.condition() {
                    (QpState::Error, Some(reason)) if reason != FailReason::Requested => reason,
                    _ => FailReason::LaneFailed,
                };
                entry.intake.set_condition(QpState::Error, Some(reason));
            }
        }
    }
}

/// The completion of a request that the endpoint refused. Posting has checked all else, so the queue pair has failed
/// since.
fn error_completion(qpn: Qpn, wr_id: u64, opcode: WcOpcode, error: PostError) -> Wc {
    let status = match error {
        PostError::WrongState(QpState::Error) => WcStatus::WrFlushError,
        _ => WcStatus::LocalQpOperationError,
    };
    Wc { wr_id, status, opcode, byte_len: 0, imm: None, qpn, src_qpn: Qpn::new(0), invalidated: None }
}
