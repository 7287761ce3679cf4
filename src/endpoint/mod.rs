//! The endpoint: every queue pair of one lane, without a socket, a clock or a thread.
//!
//! A driver owns the ports and the clock, and repeats these steps:
//!
//! 1. [`receive`](Endpoint::receive) for every frame that came in,
//! 2. [`on_timeout`](Endpoint::on_timeout) when [`next_timeout`](Endpoint::next_timeout) has come,
//! 3. [`transmit`](Endpoint::transmit) until it returns `false`, each result joined with its payload
//!    ([`payload`](Endpoint::payload)) and its iCRC and given to a port,
//! 4. [`poll_event`](Endpoint::poll_event) until it returns `None`; if its ports hold payloads, then as
//!    [`release_before`](Endpoint::release_before) and [`take_recall`](Endpoint::take_recall) say,
//! 5. now and then, [`reclaim`](Endpoint::reclaim), which takes memory back from idle queue pairs.
//!
//! One that was kept from that for a while says so, by [`been_away`](Endpoint::been_away), before it goes on.
//!
//! `now` is an argument everywhere and randomness comes from the configured seed, so two runs with
//! the same inputs are the same, byte for byte. Nothing allocates per packet once windows and
//! queues have reached their sizes.

mod attr;
mod config;
mod control;
mod cwnd;
mod error;
mod event;
mod log;
mod ops;
mod origin;
mod peer;
mod planes;
mod port_status;
mod qp;
mod query;
mod receive;
mod receive_data;
mod receive_ops;
mod reclaim;
mod routes;
mod senders;
mod share;
mod timers;
mod transmit;
mod transmit_data;

pub use crate::responder::Violation;
pub use attr::{
    CqId, PortAddr, QpCap, QpInfo, QpInit, QpModify, QpState, RetryAttr, RtrAttr, RtsAttr, entropy_name,
};
pub use config::{ConfigError, EndpointConfig, Limits, LocalPort};
pub use error::{EndpointError, PostError};
pub use event::{Event, FailReason, QpFailure};
pub use ipnet::IpNet;
pub use qp::{QpCounters, QpStatus};
pub use query::{QpAttr, QpPeer};
pub use routes::Route;
pub use share::{Forward, QpnShare};
pub use transmit::Transmit;

use core::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};
use std::net::IpAddr;

use rand::rngs::ChaCha20Rng;
use spindrift_pmd::batch_ids::BatchIds;

use crate::counters::Counters;
use crate::memory::{MemoryError, MemorySpace, MemoryView, Payload};
use crate::path::PlaneSet;
use crate::requester::{Entry, NotDone, Source, SpareQueues};
use crate::responder::{ImmediateDone, WindowBudget};
use crate::seed::Purpose;
use crate::time::Time;
use crate::wire::Qpn;
use crate::work::{GatherWr, RecvWr, SendWr, Sge, Wc, WcOpcode, WcStatus};
use cwnd::SharedCwnds;
use ops::Ops;
use peer::{Peer, Sweep};
use qp::Qp;
use routes::Routes;
use senders::{List, Senders};

/// All queue pairs of one lane. See the [module documentation](self) for how it is driven.
#[derive(Debug)]
pub struct Endpoint {
    cfg: EndpointConfig,
    routes: Routes,
    rng: ChaCha20Rng,
    memory: MemoryView,
    /// Up to the highest slot that was used.
    qps: Vec<Option<Box<Qp>>>,
    live_qps: u32,
    /// Low bits of a queue pair number that are its slot.
    slot_mask: u32,
    peers: Vec<Option<Peer>>,
    /// Slots of `peers` that are free.
    free_peers: Vec<u32>,
    /// Peers by address.
    peer_addrs: BTreeSet<(IpAddr, u32)>,
    ports_up: PlaneSet,
    sweep: Sweep,
    senders: Senders,
    cwnds: SharedCwnds,
    control_list: VecDeque<u32>,
    timers: BinaryHeap<Reverse<(Time, u32)>>,
    /// No timer runs before.
    timers_from: Time,
    events: VecDeque<Event>,
    spare_queues: SpareQueues,
    windows: WindowBudget,
    /// Completion queues that the driver says are filling up.
    crowded_cqs: BTreeSet<CqId>,
    /// The next queue pair to be visited by `reclaim`, and when.
    next_visit: u32,
    visit_at: Time,
    ops: Ops,
    /// Packets without payload that a port had no room for after all.
    given_back: VecDeque<Transmit>,
    /// The next data packet's.
    next_ticket: u64,
    /// Ports hold no payload of a packet with a smaller ticket.
    released: u64,
    /// Queue pairs whose oldest request only waits for that, and whether one has ended that could not.
    held: Vec<u32>,
    recall: bool,
    /// Immediates whose turn has come, until the packet that they came with is dealt with.
    immediates: Vec<ImmediateDone>,
    /// For the iCRCs of packets that kernel sockets receive.
    batch_ids: BatchIds,
    counters: Counters,
    burst: u64,
    burst_hint: usize,
    /// Packets of one entropy value that it pays to send together, on any port.
    same_path_batch: usize,
    /// How the packet at hand came from another endpoint, and where it goes on.
    forwarded: Option<Forward>,
    forward: Option<Forward>,
}

impl Endpoint {
    /// Events that fit before the queue has to grow: what one poll of a busy lane brings.
    const EVENT_ROOM: usize = 256;
    /// Timers that fit before the heap has to grow; entries that an earlier deadline has overtaken stay in it
    /// until they are due, so it holds more than one for each queue pair.
    const TIMER_ROOM: usize = 64;

    /// An endpoint without queue pairs, with a memory space of its own.
    ///
    /// # Errors
    /// [`ConfigError`] names the setting that cannot work.
    pub fn new(cfg: EndpointConfig) -> Result<Self, ConfigError> {
        let memory = MemorySpace::new(cfg.seed, cfg.limits.max_regions);
        Self::with_memory(cfg, &memory)
    }

    /// An endpoint without queue pairs, whose protection domains and registered memory are those of a space that
    /// others share. Of the limits, `max_regions` is the space's.
    ///
    /// # Errors
    /// [`ConfigError`] names the setting that cannot work.
    pub fn with_memory(cfg: EndpointConfig, memory: &MemorySpace) -> Result<Self, ConfigError> {
        cfg.validate()?;
        let slot_mask = cfg.limits.max_qps.next_power_of_two() - 1;
        Ok(Self {
            routes: Routes::new(&cfg)?,
            rng: cfg.seed.generator(Purpose::QueuePairs),
            memory: memory.view(),
            qps: Vec::new(),
            live_qps: 0,
            slot_mask,
            peers: Vec::new(),
            free_peers: Vec::new(),
            peer_addrs: BTreeSet::new(),
            ports_up: PlaneSet::first(cfg.ports.len() as u8),
            sweep: Sweep::OVER,
            senders: Senders::default(),
            cwnds: SharedCwnds::default(),
            control_list: VecDeque::new(),
            timers: BinaryHeap::with_capacity(Self::TIMER_ROOM),
            timers_from: Time::ZERO,
            events: VecDeque::with_capacity(Self::EVENT_ROOM),
            spare_queues: SpareQueues::default(),
            windows: WindowBudget::new(cfg.limits.window_budget_psns),
            crowded_cqs: BTreeSet::new(),
            next_visit: 0,
            visit_at: Time::ZERO,
            ops: Ops::new(cfg.seed.generator(Purpose::Requests), cfg.limits.answers_per_second, cfg.qpns),
            given_back: VecDeque::with_capacity(Self::MAX_GIVEN_BACK),
            next_ticket: 0,
            released: u64::MAX,
            held: Vec::new(),
            recall: false,
            immediates: Vec::new(),
            batch_ids: BatchIds::default(),
            counters: Counters::default(),
            burst: 0,
            burst_hint: 0,
            same_path_batch: cfg.ports.iter().map(|port| port.same_path_batch).max().unwrap_or(1).max(1),
            forwarded: None,
            forward: None,
            cfg,
        })
    }

    /// The settings it was made with.
    pub const fn config(&self) -> &EndpointConfig {
        &self.cfg
    }

    /// What has been counted.
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The next thing the driver should know, oldest first.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    #[inline]
    fn slot_of(&self, qpn: Qpn) -> Option<u32> {
        let slot = qpn.get() & self.slot_mask;
        let qp = self.qps.get(slot as usize)?.as_ref()?;
        (qp.qpn == qpn).then_some(slot)
    }

    #[inline]
    fn qp(&self, slot: u32) -> Option<&Qp> {
        self.qps.get(slot as usize)?.as_deref()
    }

    #[inline]
    fn qp_mut(&mut self, slot: u32) -> Option<&mut Qp> {
        self.qps.get_mut(slot as usize)?.as_deref_mut()
    }

    /// Posts a send work request.
    ///
    /// A request that cannot be carried out (bad key, range outside the region) completes with an
    /// error and fails the queue pair, as in verbs; what the caller can know beforehand is refused
    /// here.
    pub fn post_send(&mut self, now: Time, qpn: Qpn, wr: SendWr) -> Result<(), PostError> {
        self.post(now, qpn, &wr, None)
    }

    /// Posts a send work request of several elements, in the same way.
    #[cold]
    pub fn post_gather(&mut self, now: Time, qpn: Qpn, wr: GatherWr<'_>) -> Result<(), PostError> {
        let qp = self.slot_of(qpn).and_then(|slot| self.qp(slot)).ok_or(PostError::NoSuchQp)?;
        if wr.local.len() > qp.init.cap.max_send_sge as usize {
            return Err(PostError::TooManySges);
        }
        if let Some(only) = wr.only_element() {
            return self.post_send(now, qpn, wr.with_one(only));
        }
        let len = u32::try_from(wr.len()).map_err(|_| PostError::TooLong)?;
        // Its bytes have no addresses but their distance from the first.
        let all = Sge { addr: 0, len, lkey: 0 };
        self.post(now, qpn, &wr.with_one(all), Some(&wr))
    }

    /// Posts a request with the element in it, or with those of `gather`.
    #[expect(clippy::inline_always, reason = "the way of every request; measured by benches/instructions.rs")]
    #[inline(always)]
    fn post(
        &mut self,
        now: Time,
        qpn: Qpn,
        wr: &SendWr,
        gather: Option<&GatherWr<'_>>,
    ) -> Result<(), PostError> {
        let slot = self.slot_of(qpn).ok_or(PostError::NoSuchQp)?;
        let Some(qp) = self.qps[slot as usize].as_deref_mut() else { return Err(PostError::NoSuchQp) };
        if wr.local.len == 0 {
            return Err(PostError::Empty);
        }
        match qp.state {
            QpState::Rts => {}
            QpState::Error => {
                self.reject_send(qpn, wr, WcStatus::WrFlushError);
                return Ok(());
            }
            state => return Err(PostError::WrongState(state)),
        }
        if qp.requester.is_full() {
            return Err(PostError::QueueFull);
        }
        if !qp.requester.takes(wr.op) {
            return Err(PostError::NoImmediates);
        }
        let Sge { addr, len, lkey } = wr.local;
        let source = match gather {
            None => self.memory.pin(lkey, qp.pd.id(), addr, len).map(Source::Region),
            Some(gather) => pin_pieces(qp, &mut self.memory, gather),
        };
        if let Ok(source) = source {
            qp.requester.make_room(&mut self.spare_queues);
            qp.requester.push(now, wr, qp.sig_all, source);
            // The first packet arms the timers, if a plane can take it.
            let stuck = qp.paths.usable_planes().0 == 0;
            if !qp.places[List::New as usize].listed {
                self.wake_data(slot);
            }
            if stuck {
                self.arm(slot);
            }
        } else {
            self.reject_send(qpn, wr, WcStatus::LocalProtectionError);
        }
        Ok(())
    }

    /// Completes a work request that was never queued with an error, and fails the queue pair.
    pub fn reject_send(&mut self, qpn: Qpn, wr: &SendWr, status: WcStatus) {
        let Some(slot) = self.slot_of(qpn) else { return };
        self.fail_qp(slot, FailReason::LocalWorkRequest, None);
        let Some(qp) = self.qps[slot as usize].as_deref_mut() else { return };
        qp.retired += 1;
        let wc = Wc { wr_id: wr.wr_id, status, opcode: WcOpcode::RdmaWrite, byte_len: 0, imm: None, qpn };
        self.events.push_back(Event::Completion { cq: qp.send_cq, wc });
        self.report_retired(slot);
    }

    /// Posts a receive work request: one is consumed by every immediate that arrives. Those of a queue pair with a shared
    /// receive queue come from there.
    pub fn post_recv(&mut self, qpn: Qpn, wr: RecvWr) -> Result<(), PostError> {
        let slot = self.slot_of(qpn).ok_or(PostError::NoSuchQp)?;
        let Some(qp) = self.qps[slot as usize].as_deref_mut() else { return Err(PostError::NoSuchQp) };
        if qp.responder.receives().srq().is_some() {
            return Err(PostError::SharedReceives);
        }
        match qp.state {
            QpState::Reset => Err(PostError::WrongState(QpState::Reset)),
            QpState::Error => {
                let event = recv_flushed(qp, wr);
                self.events.push_back(event);
                Ok(())
            }
            QpState::Init | QpState::Rtr | QpState::Rts => {
                if qp.responder.post_recv(wr) {
                    Ok(())
                } else {
                    Err(PostError::QueueFull)
                }
            }
        }
    }

    /// Puts the queue pair in the lists of those that may send data. Its state is looked at when it has its turn.
    #[inline]
    fn wake_data(&mut self, slot: u32) {
        let Some(qp) = self.qps[slot as usize].as_deref_mut() else { return };
        let [new, repairs] = &mut qp.places;
        if !new.listed && qp.requester.has_work() {
            new.listed = true;
            self.senders.push(List::New, slot);
        }
        if qp.requester.has_repairs() && !repairs.listed {
            repairs.listed = true;
            self.senders.push(List::Repairs, slot);
        }
    }

    /// Puts the queue pair in the list of those that owe an answer or a probe.
    #[inline]
    fn wake_control(&mut self, slot: u32) {
        if let Some(qp) = self.qps[slot as usize].as_deref_mut()
            && !qp.in_control_list
        {
            qp.in_control_list = true;
            self.control_list.push_back(slot);
        }
    }

    /// Lists a queue pair that owes answers again, after its planes changed.
    fn wake_answers(&mut self, slot: u32) {
        if self.qp(slot).is_some_and(|qp| qp.responder.owes()) {
            self.wake_control(slot);
        }
    }

    /// Completes every work request that the transport acknowledgement has passed and that no port holds a part of.
    fn complete_sends(&mut self, slot: u32) {
        self.complete_released(slot, self.released);
    }

    fn complete_released(&mut self, slot: u32, released: u64) {
        let Some(qp) = self.qps[slot as usize].as_deref_mut() else { return };
        let end = loop {
            match qp.requester.pop_done(released, |pinned| self.memory.unpin(pinned)) {
                Ok(entry) => {
                    self.recall |= entry.held_until > self.released;
                    qp.retired += 1;
                    if entry.signaled {
                        let wc = send_wc(qp.qpn, &entry, WcStatus::Success);
                        self.events.push_back(Event::Completion { cq: qp.send_cq, wc });
                    }
                }
                Err(end) => break end,
            }
        };
        if end == NotDone::Held && !qp.held {
            qp.held = true;
            self.held.push(slot);
        }
        qp.requester.give_room(&mut self.spare_queues);
        self.report_retired(slot);
    }

    /// Takes note that ports hold no payload of data packets that left before the one with this
    /// [ticket](Transmit::ticket), and completes what waited for that. A ticket beyond the last one means all that have
    /// left so far.
    ///
    /// A driver whose ports [hold payloads](spindrift_pmd::PortCaps::holds_payloads) calls this with 0 before it sends
    /// anything, and again with what [`Port::reap`](spindrift_pmd::Port::reap) says, the least of all ports, while
    /// [`waits_for_release`](Self::waits_for_release) is true. Without the first call nothing ever waits.
    pub fn release_before(&mut self, ticket: u64) {
        self.released = ticket.min(self.next_ticket);
        for at in (0..self.held.len()).rev() {
            let slot = self.held.swap_remove(at);
            if let Some(qp) = self.qp_mut(slot) {
                qp.held = false;
                self.complete_sends(slot);
            }
        }
    }

    /// Whether a request is complete but for payload that a port holds.
    #[inline]
    pub const fn waits_for_release(&self) -> bool {
        !self.held.is_empty()
    }

    /// Whether requests ended, since the last call, of which ports may still hold payload: with an error, or because
    /// their queue pair is gone. The driver makes its ports [let go](spindrift_pmd::Port::recall) of everything before
    /// it passes on the next event.
    #[inline]
    pub const fn take_recall(&mut self) -> bool {
        core::mem::replace(&mut self.recall, false)
    }

    fn report_retired(&mut self, slot: u32) {
        let Some(qp) = self.qps[slot as usize].as_deref_mut() else { return };
        if qp.retired > 0 {
            let event = Event::SendRetired { qpn: qp.qpn, count: core::mem::take(&mut qp.retired) };
            self.events.push_back(event);
        }
    }

    /// Moves a queue pair to ERROR because its driver can do no more for it.
    pub(crate) fn abandon_qp(&mut self, qpn: Qpn) {
        if let Some(slot) = self.slot_of(qpn) {
            self.fail_qp(slot, FailReason::LaneFailed, None);
        }
    }

    /// Moves a queue pair to ERROR: the work request that starts at packet `culprit.0` (the oldest
    /// when `None` of that number exists) completes with `culprit.1`, every other is flushed, all in order.
    fn fail_qp(&mut self, slot: u32, reason: FailReason, culprit: Option<(Option<u64>, WcStatus)>) {
        let Some(qp) = self.qps[slot as usize].as_deref_mut() else { return };
        if qp.state == QpState::Error {
            return;
        }
        qp.state = QpState::Error;
        qp.responder.leave(&mut self.windows);
        self.leave_cwnd(slot);
        let Some(qp) = self.qps[slot as usize].as_deref_mut() else { return };
        let (psn, id) = culprit.and_then(|(at, _)| qp.requester.in_flight(at)).unzip();
        let broken = qp.responder.culprit().filter(|_| reason == FailReason::PeerViolation);
        let path = id.flatten().and_then(|id| qp.paths.states().find(|path| path.id == id));
        let peer = self.peers.get(qp.peer as usize).and_then(Option::as_ref);
        qp.failure = Some(Box::new(QpFailure {
            qpn: qp.qpn,
            reason,
            peer: peer.and_then(|peer| Some(peer.ports.first()?.ip)),
            peer_qpn: qp.dest_qpn,
            psn: psn.or_else(|| broken.map(|packet| packet.psn)),
            ev: path.map(|path| path.ev),
            plane: path.map(|path| path.plane),
            status: culprit.map(|(_, status)| status),
            violation: broken.map(|packet| packet.violation),
        }));
        qp.failure.as_deref().inspect(|failure| log::failed(failure));
        self.counters.qp_errors += 1;
        // What the peer has acknowledged ends well; the driver sees to what ports hold of it.
        self.complete_released(slot, u64::MAX);
        let Some(qp) = self.qps[slot as usize].as_deref_mut() else { return };
        let mut culprit = culprit;
        while let Some(entry) = qp.requester.pop_any(|pinned| self.memory.unpin(pinned)) {
            self.recall |= entry.held_until > self.released;
            qp.retired += 1;
            let status = match culprit {
                Some((at, status)) if at.is_none_or(|first| first == entry.first) => {
                    culprit = None;
                    status
                }
                _ => WcStatus::WrFlushError,
            };
            let wc = send_wc(qp.qpn, &entry, status);
            self.events.push_back(Event::Completion { cq: qp.send_cq, wc });
        }
        while let Some(wr) = qp.responder.pop_recv() {
            let event = recv_flushed(qp, wr);
            self.events.push_back(event);
        }
        self.events.push_back(Event::QpFailed { qpn: qp.qpn, reason });
        self.report_retired(slot);
    }

    /// The bytes of a packet that [`transmit`](Self::transmit) produced, as long as its work request has not completed.
    #[inline]
    pub fn payload<'a>(&'a self, transmit: &'a Transmit) -> Payload<'a> {
        if transmit.payload.is_gathered() {
            transmit.gathered()
        } else {
            self.memory.bytes(&transmit.payload)
        }
    }
}

/// Pins the memory of all elements, or of none.
#[cold]
fn pin_pieces(qp: &mut Qp, memory: &mut MemoryView, gather: &GatherWr<'_>) -> Result<Source, MemoryError> {
    let mut pieces = qp.requester.begin_pieces();
    for Sge { addr, len, lkey } in gather.elements() {
        match memory.pin(lkey, qp.pd.id(), addr, len) {
            Ok(piece) => qp.requester.add_piece(&mut pieces, piece),
            Err(error) => {
                qp.requester.take_back_pieces(pieces, |pinned| memory.unpin(pinned));
                return Err(error);
            }
        }
    }
    Ok(Source::Pieces(pieces))
}

fn send_wc(qpn: Qpn, entry: &Entry, status: WcStatus) -> Wc {
    let byte_len = if status.is_success() { entry.len } else { 0 };
    Wc { wr_id: entry.wr_id, status, opcode: WcOpcode::RdmaWrite, byte_len, imm: None, qpn }
}

fn recv_flushed(qp: &Qp, wr: RecvWr) -> Event {
    let wc = Wc {
        wr_id: wr.wr_id,
        status: WcStatus::WrFlushError,
        opcode: WcOpcode::RecvRdmaWithImm,
        byte_len: 0,
        imm: None,
        qpn: qp.qpn,
    };
    Event::Completion { cq: qp.recv_cq, wc }
}

#[cfg(test)]
mod tests;
