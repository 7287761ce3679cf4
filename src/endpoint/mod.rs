//! The endpoint: every queue pair of one lane, without a socket, a clock or a thread.
//!
//! It checks packets and passes them to their queue pair or peer, lets queue pairs send in turn, and runs their
//! timers. The code of a connection is in `src/qp`, that of a remote NIC in `src/peer`.
//!
//! A driver owns the ports and the clock, and repeats these steps:
//!
//! 1. [`receive`](Endpoint::receive) for every received frame,
//! 2. [`on_timeout`](Endpoint::on_timeout) at the time of [`next_timeout`](Endpoint::next_timeout),
//! 3. [`transmit`](Endpoint::transmit) until it returns `false`; join each result with its payload
//!    ([`payload`](Endpoint::payload)) and its iCRC and pass it to a port,
//! 4. [`poll_event`](Endpoint::poll_event) until it returns `None`; if ports hold payloads, also follow
//!    [`release_before`](Endpoint::release_before) and [`take_recall`](Endpoint::take_recall),
//! 5. now and then, [`reclaim`](Endpoint::reclaim), which frees memory of idle queue pairs.
//!
//! A driver that was not scheduled for a while first reports that stall with
//! [`on_driver_stall`](Endpoint::on_driver_stall).
//!
//! `now` is an argument everywhere and randomness comes from the configured seed. Two runs with the same inputs are
//! therefore the same, byte for byte. Nothing allocates per packet once windows and queues have reached their sizes.

mod control;
mod deny_list;
mod receive;
mod reclaim;
mod requests;
mod share;
mod timers;
mod transmit;
mod tx_scheduler;

pub use crate::config::{
    ConfigError, DenyList, DenyListError, DenyRule, EndpointConfig, Limits, LocalPort, PortAddr, QpnShare,
    Route,
};
pub use crate::qp::{
    CqId, EndpointError, Event, Extensions, FailReason, PostError, QpAttr, QpCap, QpCounters, QpFailure,
    QpInfo, QpInit, QpModify, QpPeer, QpState, QpStatus, RetryAttr, RtrAttr, RtsAttr, Transmit, entropy_name,
};
pub use crate::responder::Violation;
pub use ipnet::IpNet;
pub use share::Forward;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use rand::rngs::ChaCha20Rng;
use spindrift_wire::batch_ids::BatchIds;

use crate::config::Routes;
use crate::counters::Counters;
use crate::memory::{MemorySpace, Payload};
use crate::peer::Peers;
use crate::qp::{Burst, Cx, Qp, QpTable, SharedCwnds, TxClass, Wakes};
use crate::requester::SpareQueues;
use crate::responder::WindowBudget;
use crate::seed::Purpose;
use crate::time::Time;
use crate::timers::TimerHeap;
use crate::wire::Qpn;
use crate::work::{GatherWr, PostedRecv, RecvWr, ScatterWr, SendWr, Sge, WcStatus};
use tx_scheduler::TxScheduler;

/// All queue pairs of one lane. See the [module documentation](self) for the steps of its driver.
#[derive(Debug)]
pub struct Endpoint {
    /// The state that its queue pairs share.
    cx: Cx,
    qps: QpTable,
    rng: ChaCha20Rng,
    scheduler: TxScheduler,
    /// Queue pairs with pending acknowledgements or probes.
    control_list: VecDeque<u32>,
    /// Packets without payload that were returned because a port had no room.
    given_back: VecDeque<Transmit>,
    burst: Burst,
    timers: TimerHeap,
    deny_list: Arc<DenyList>,
    /// No timer expires before this time.
    timers_from: Time,
    /// The next queue pair that `reclaim` visits, and when.
    next_visit: u32,
    visit_at: Time,
    /// For the iCRCs of packets that kernel sockets receive.
    batch_ids: BatchIds,
    /// How the current packet was forwarded from another endpoint, and where it goes next.
    forwarded: Option<Forward>,
    forward: Option<Forward>,
}

impl Endpoint {
    /// An endpoint without queue pairs, with a memory space of its own.
    ///
    /// # Errors
    /// [`ConfigError`] names the setting that cannot work.
    pub fn new(cfg: EndpointConfig) -> Result<Self, ConfigError> {
        let memory = MemorySpace::new(cfg.seed, cfg.limits.max_regions);
        Self::with_memory(cfg, &memory)
    }

    /// An endpoint without queue pairs that uses the protection domains and registered memory of a shared space. The
    /// limit `max_regions` is the space's.
    ///
    /// # Errors
    /// [`ConfigError`] names the setting that cannot work.
    pub fn with_memory(cfg: EndpointConfig, memory: &MemorySpace) -> Result<Self, ConfigError> {
        cfg.validate()?;
        let same_path_batch = cfg.ports.iter().map(|port| port.same_path_batch).max().unwrap_or(1).max(1);
        let peers = Peers::new(&cfg, Routes::new(&cfg)?, cfg.seed.generator(Purpose::Requests));
        Ok(Self {
            qps: QpTable::new(cfg.limits.max_qps),
            rng: cfg.seed.generator(Purpose::QueuePairs),
            scheduler: TxScheduler::default(),
            control_list: VecDeque::new(),
            given_back: VecDeque::with_capacity(Self::MAX_GIVEN_BACK),
            burst: Burst { number: 0, packets: 0, same_path_batch },
            timers: TimerHeap::default(),
            deny_list: Arc::default(),
            timers_from: Time::ZERO,
            next_visit: 0,
            visit_at: Time::ZERO,
            batch_ids: BatchIds::default(),
            forwarded: None,
            forward: None,
            cx: Cx {
                memory: memory.view(),
                peers,
                cwnds: SharedCwnds::default(),
                counters: Counters::default(),
                events: VecDeque::with_capacity(Cx::EVENT_ROOM),
                windows: WindowBudget::new(cfg.limits.window_budget_psns),
                spare_queues: SpareQueues::default(),
                cqs_nearly_full: BTreeSet::new(),
                deliveries: Vec::new(),
                next_ticket: 0,
                released: u64::MAX,
                held: Vec::new(),
                pinned_until: VecDeque::new(),
                recall: false,
                cfg,
            },
        })
    }

    /// The settings that it was made with.
    pub const fn config(&self) -> &EndpointConfig {
        &self.cx.cfg
    }

    /// The counters.
    pub const fn counters(&self) -> &Counters {
        &self.cx.counters
    }

    /// The oldest event for the driver, if there is one.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.cx.events.pop_front()
    }

    /// Carries out the result of a method call on the queue pair in `slot`.
    #[inline]
    fn apply(&mut self, slot: u32, wakes: Wakes) {
        if wakes == Wakes::NONE {
            return;
        }
        if wakes.has(Wakes::CONTROL) {
            self.wake_control(slot);
        }
        if wakes.has(Wakes::DATA) {
            self.wake_data(slot);
        }
        if wakes.has(Wakes::CWND) {
            self.wake_cwnd_waiters();
        }
        if wakes.has(Wakes::ARM) {
            self.arm(slot);
        }
    }

    /// Calls `act` with the queue pair in `slot`, and carries out its result.
    #[inline]
    fn with_qp(&mut self, slot: u32, act: impl FnOnce(&mut Qp, &mut Cx) -> Wakes) {
        if let Some(qp) = self.qps.get_mut(slot) {
            let wakes = act(qp, &mut self.cx);
            self.apply(slot, wakes);
        }
    }

    /// Posts a send work request.
    ///
    /// A request that cannot be carried out (bad key, range outside the region) completes with an error and fails the
    /// queue pair, as in verbs. Errors that the caller can detect beforehand are refused here.
    pub fn post_send(&mut self, now: Time, qpn: Qpn, wr: SendWr) -> Result<(), PostError> {
        self.post(now, qpn, &wr, None)
    }

    /// Posts a send work request of several elements, in the same way.
    #[cold]
    pub fn post_gather(&mut self, now: Time, qpn: Qpn, wr: GatherWr<'_>) -> Result<(), PostError> {
        let qp = self.qps.find(qpn).ok_or(PostError::NoSuchQp)?;
        if wr.local.len() > qp.init.cap.max_send_sge as usize {
            return Err(PostError::TooManySges);
        }
        if let Some(only) = wr.only_element() {
            return self.post_send(now, qpn, wr.with_one(only));
        }
        let len = u32::try_from(wr.len()).map_err(|_| PostError::TooLong)?;
        // The bytes have no common address; this one is their offset from the first byte.
        let all = Sge { addr: 0, len, lkey: 0 };
        self.post(now, qpn, &wr.with_one(all), Some(&wr))
    }

    /// Posts a request with its own element, or with those of `gather`.
    #[expect(
        clippy::inline_always,
        reason = "the path of every request; measured by benches/instructions.rs"
    )]
    #[inline(always)]
    fn post(
        &mut self,
        now: Time,
        qpn: Qpn,
        wr: &SendWr,
        gather: Option<&GatherWr<'_>>,
    ) -> Result<(), PostError> {
        let qp = self.qps.find_mut(qpn).ok_or(PostError::NoSuchQp)?;
        let slot = qp.slot;
        let wakes = qp.post(&mut self.cx, now, wr, gather)?;
        self.apply(slot, wakes);
        Ok(())
    }

    /// Completes a work request that was never queued with an error, and fails the queue pair.
    pub fn reject_send(&mut self, qpn: Qpn, wr: &SendWr, status: WcStatus) {
        if let Some(slot) = self.slot_of(qpn) {
            self.with_qp(slot, |qp, cx| qp.reject_send(cx, wr, status));
        }
    }

    /// Posts a receive work request. Every immediate and every SEND that arrives consumes one. A queue pair with a
    /// shared receive queue takes them from there.
    ///
    /// A request whose buffer cannot be used (bad key, range outside the region) completes with an error and fails the
    /// queue pair.
    pub fn post_recv(&mut self, qpn: Qpn, wr: RecvWr) -> Result<(), PostError> {
        self.post_received(qpn, &wr.into())
    }

    /// Posts a receive work request whose buffer has several elements, in the same way.
    #[cold]
    pub fn post_scatter(&mut self, qpn: Qpn, wr: ScatterWr<'_>) -> Result<(), PostError> {
        let qp = self.qps.find(qpn).ok_or(PostError::NoSuchQp)?;
        if wr.local.len() > qp.init.cap.max_recv_sge as usize {
            return Err(PostError::TooManySges);
        }
        self.post_received(qpn, &PostedRecv::from(&wr))
    }

    #[inline]
    pub(crate) fn post_received(&mut self, qpn: Qpn, posted: &PostedRecv) -> Result<(), PostError> {
        let qp = self.qps.find_mut(qpn).ok_or(PostError::NoSuchQp)?;
        let slot = qp.slot;
        let wakes = qp.post_recv(&mut self.cx, posted)?;
        if wakes != Wakes::NONE {
            self.apply(slot, wakes);
        }
        Ok(())
    }

    #[inline]
    fn slot_of(&self, qpn: Qpn) -> Option<u32> {
        self.qps.find(qpn).map(|qp| qp.slot)
    }

    /// Adds the queue pair to the lists of those that may send data. Its state is checked at its turn.
    #[inline]
    fn wake_data(&mut self, slot: u32) {
        let Some(qp) = self.qps.get_mut(slot) else { return };
        let [new, retransmit] = &mut qp.tx_slots;
        if !new.listed && qp.requester.has_work() {
            new.listed = true;
            self.scheduler.push(TxClass::New, slot);
        }
        if qp.requester.has_retransmissions() && !retransmit.listed {
            retransmit.listed = true;
            self.scheduler.push(TxClass::Retransmit, slot);
        }
    }

    /// Adds the queue pair to the list of those with pending acknowledgements or probes.
    #[inline]
    fn wake_control(&mut self, slot: u32) {
        if let Some(qp) = self.qps.get_mut(slot)
            && !qp.in_control_list
        {
            qp.in_control_list = true;
            self.control_list.push_back(slot);
        }
    }

    /// Lists queue pairs that waited for a window which now has room.
    #[inline]
    fn wake_cwnd_waiters(&mut self) {
        if self.cx.cwnds.may_have_opened() {
            self.list_cwnd_waiters();
        }
    }

    #[cold]
    fn list_cwnd_waiters(&mut self) {
        let woken = self.cx.cwnds.wake_waiters(&self.qps);
        for &(slot, at) in &woken {
            let Some(qp) = self.qps.get_mut(slot) else { continue };
            if let Some(at) = at {
                qp.pace_at = at;
                self.arm(slot);
            } else {
                qp.stop_waiting();
                self.wake_data(slot);
            }
        }
        self.cx.cwnds.reuse(woken);
    }

    /// Records that ports hold no payload of data packets sent before the one with this [ticket](Transmit::ticket),
    /// and completes the requests that waited for this. A ticket beyond the last one stands for all packets sent so
    /// far.
    ///
    /// A driver whose ports [hold payloads](spindrift_pmd::PortCaps::holds_payloads) calls this with 0 before it sends
    /// anything. While [`waits_for_release`](Self::waits_for_release) is true, it calls it again with the least result
    /// of [`Port::reap`](spindrift_pmd::Port::reap) of all ports. Without the first call no request ever waits.
    pub fn release_before(&mut self, ticket: u64) {
        self.cx.released = ticket.min(self.cx.next_ticket);
        self.cx.unpin_released();
        for at in (0..self.cx.held.len()).rev() {
            let slot = self.cx.held.swap_remove(at);
            if let Some(qp) = self.qps.get_mut(slot) {
                qp.held = false;
                qp.complete_sends(&mut self.cx);
            }
        }
    }

    /// Whether a request, or a region that a peer has read, only waits for a port to release payload.
    #[inline]
    pub fn waits_for_release(&self) -> bool {
        !self.cx.held.is_empty() || (self.cx.released != u64::MAX && !self.cx.pinned_until.is_empty())
    }

    /// Whether requests have ended since the last call while ports may still hold their payload: with an error, or
    /// because their queue pair was destroyed. The driver then makes its ports [release](spindrift_pmd::Port::recall)
    /// all payloads before it passes on the next event.
    #[inline]
    pub const fn take_recall(&mut self) -> bool {
        core::mem::replace(&mut self.cx.recall, false)
    }

    /// Moves a queue pair to ERROR because its driver cannot continue it.
    pub(crate) fn abandon_qp(&mut self, qpn: Qpn) {
        if let Some(slot) = self.slot_of(qpn) {
            self.with_qp(slot, |qp, cx| qp.fail(cx, FailReason::LaneFailed, None));
        }
    }

    /// The payload of a packet that [`transmit`](Self::transmit) produced, as long as its work request has not
    /// completed.
    #[inline]
    pub fn payload<'a>(&'a self, transmit: &'a Transmit) -> Payload<'a> {
        if transmit.payload.is_gathered() {
            transmit.gathered()
        } else {
            self.cx.memory.bytes(&transmit.payload)
        }
    }
}

#[cfg(test)]
mod tests;
