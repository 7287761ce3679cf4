//! The requester: turns work requests into packets, and acknowledgements into completions and retransmissions.
//!
//! Packets are counted with 64-bit sequence numbers. A PSN is the low 24 bits plus the initial PSN.
//!
//! A packet has a [`Record`] from its first transmission until the peer's cumulative acknowledgement passes it. A
//! work request stays in the [`SendQueue`] until the *transport* ACK passes its last packet. A SACK may cover more
//! than the peer's application can see (MRC 1.0: SACK is reliability, AETH is completion).

mod ack;
mod copies;
mod driver_stall;
mod fetch;
mod loss;
mod packet;
mod queue;
mod rnr;
mod role_doubt;
mod rtt;
mod send;
mod spurious;
#[cfg(test)]
mod tests;
mod timer;

pub(crate) use ack::AckOutcome;
pub(crate) use fetch::OpenFetch;
pub(crate) use loss::Record;
pub(crate) use packet::{Entry, PacketSpec, Pieces, Source};
pub(crate) use queue::SpareQueues;
pub(crate) use send::{OutPacket, SendKind};
pub(crate) use timer::{RetryPolicy, TimerVerdict};

use crate::congestion::{Controller, Flight};
use crate::counters::Counters;
use crate::memory::{PayloadRef, RegionSlot};
use crate::path::{EvId, LossSigns, Paths, PlaneSet};
use crate::ring::{BitRing, SeqRing};
use crate::time::Time;
use crate::wire::{Msn, Opcode, Psn};
use crate::work::{SendOp, SendWr};
use driver_stall::DriverStall;
use fetch::Fetches;
use loss::{Evidence, Loss, judge};
use queue::SendQueue;
use rnr::NotReady;
use role_doubt::RoleDoubt;
use rtt::{PathOrder, Reordering, Rtt};
use spurious::{RtxHistory, RtxReason, SuspectedEvs};

/// Why the oldest work request cannot be completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotDone {
    /// The queue is empty, or the peer has not acknowledged all of the request.
    Unacknowledged,
    /// A port holds, or may hold, payload of the request.
    Held,
}

/// Why a packet is declared lost. This decides whether its path is blamed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LossKind {
    /// Lost without a trim: its path becomes `ASSUMED_BAD` (MRC paper, section 2.1).
    Path,
    /// Trimmed inside the fabric: congestion on its path.
    Trim,
    /// Trimmed at the last hop: incast; no path is to blame.
    LastHopTrim,
    /// Probably lost, but no SACK has proved it missing: its path is suspected.
    Doubt,
    /// In flight when the RTO expired: no path carried a response, so none is to blame.
    Silence,
    /// The peer had no room, or the port went down.
    Nobody,
    /// The peer had no receive work request, or may have had none. Neither a path nor congestion is the cause.
    NotReady,
}

/// State outside the requester that it works with.
pub(crate) struct SendContext<'a> {
    pub(crate) paths: &'a mut Paths,
    pub(crate) cc: &'a mut Controller,
    pub(crate) counters: &'a mut Counters,
}

/// Settings fixed when the queue pair becomes ready to send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequesterSetup {
    pub(crate) initial_psn: Psn,
    pub(crate) initial_msn: Msn,
    pub(crate) mtu: u32,
    pub(crate) window: u32,
    pub(crate) max_wimm: u32,
    /// Whether to follow the window that SACKs grant.
    pub(crate) dynamic_mpr: bool,
    /// The limit of RNR retries, if the peer sends RNR NACKs.
    pub(crate) rnr_retry: Option<u8>,
    /// Reads and atomic operations in flight that the peer accepts.
    pub(crate) max_rd_atomic: u8,
    pub(crate) retry: RetryPolicy,
    pub(crate) probe_floor_ns: u64,
    pub(crate) initial_reordering_ns: u64,
    /// The bits of entropy values that packets carry and SACKs reflect.
    pub(crate) ev_mask: u32,
}

#[inline]
fn psn_of(setup: &RequesterSetup, seq: u64) -> Psn {
    setup.initial_psn.add(seq as u32 & 0x00ff_ffff)
}

/// The sending half of a queue pair.
#[derive(Debug)]
pub(crate) struct Requester {
    queue: SendQueue,
    setup: RequesterSetup,
    /// Window granted now, in PSNs.
    window: u32,
    /// Next packet to be sent for the first time.
    next: u64,
    /// Oldest packet that the peer's cumulative acknowledgement has not passed.
    una: u64,
    /// Oldest packet that the transport acknowledgement has not passed.
    acked: u64,
    /// Oldest packet whose message is not complete: a read or an atomic operation waits for its response too.
    done: u64,
    /// One past the highest packet acknowledged.
    reported: u64,
    /// One past the highest packet that was sent before an acknowledged transmission. Only a retransmission makes it
    /// larger than `reported`.
    overtaken: u64,
    /// The newest retransmission: its position among all transmissions, and `next` when it was sent.
    newest_rtx: (u64, u64),
    records: SeqRing<Record>,
    sacked: BitRing,
    lost: BitRing,
    /// The number of consecutive packets that these three have room for.
    room: u64,
    lost_count: u32,
    wimm_in_flight: u32,
    /// Number of completed messages (wrapping).
    completed: u32,
    orders: u64,
    /// Indexed by entropy value, up to `evs`. Empty if nothing has been acknowledged since the queue pair was idle.
    newest_on_ev: Box<[u64]>,
    evs: usize,
    newest_sent_at: Time,
    newest_order: u64,
    rtt: Rtt,
    reordering: Reordering,
    path_order: PathOrder,
    rtx_history: RtxHistory,
    suspects: SuspectedEvs,
    last_rcvd_bytes: u32,
    loss_check_at: Time,
    timer_base: Time,
    retries: u32,
    /// The least wait for the next TLP: twice the wait for the last one, and at least a PTO after it left. Zero
    /// before the first TLP.
    least_probe_wait_ns: u64,
    probe_pending: bool,
    /// Number of TLPs sent since the peer last reported progress, modulo 256.
    tail_probes: u8,
    /// The entropy value in use that the last TLP took.
    probed: Option<EvId>,
    /// New data was sent in place of a TLP, and the peer has reported no progress since.
    new_asked: bool,
    /// A due TLP waited for room on another plane until the RTO expired.
    any_plane: bool,
    role_doubt: RoleDoubt,
    /// When the retransmission timer last expired.
    timed_out_at: Time,
    driver_stall: DriverStall,
    not_ready: NotReady,
    fetches: Fetches,
    /// A limit may hold the next message back.
    limited: bool,
}

impl Requester {
    pub(crate) fn new(depth: usize, setup: RequesterSetup) -> Self {
        let mut queue = SendQueue::new(depth);
        queue.start_at(setup.initial_msn);
        Self {
            queue,
            setup,
            window: setup.window,
            next: 0,
            una: 0,
            acked: 0,
            done: 0,
            reported: 0,
            overtaken: 0,
            newest_rtx: (0, 0),
            records: SeqRing::default(),
            sacked: BitRing::default(),
            lost: BitRing::default(),
            room: 0,
            lost_count: 0,
            wimm_in_flight: 0,
            completed: 0,
            orders: 0,
            newest_on_ev: Box::default(),
            evs: 64,
            newest_sent_at: Time::ZERO,
            newest_order: 0,
            rtt: Rtt::default(),
            reordering: Reordering::assumed(setup.initial_reordering_ns),
            path_order: PathOrder::default(),
            rtx_history: RtxHistory::default(),
            suspects: SuspectedEvs::default(),
            last_rcvd_bytes: 0,
            loss_check_at: Time::NEVER,
            timer_base: Time::ZERO,
            retries: 0,
            least_probe_wait_ns: 0,
            probe_pending: false,
            tail_probes: 0,
            probed: None,
            new_asked: false,
            any_plane: false,
            role_doubt: RoleDoubt::default(),
            timed_out_at: Time::ZERO,
            driver_stall: DriverStall::default(),
            not_ready: NotReady::default(),
            fetches: Fetches::new(setup.initial_msn),
            limited: setup.max_wimm == 0,
        }
    }

    /// Sets the number of entropy values, so that per-value state is allocated at once. A loss that brings a backup
    /// into use then allocates nothing.
    pub(crate) const fn expect_evs(&mut self, evs: usize) {
        self.evs = evs;
    }

    pub(crate) fn is_full(&self) -> bool {
        self.queue.is_full()
    }

    /// Whether the peer accepts this operation at all.
    #[inline]
    pub(crate) const fn takes(&self, op: SendOp) -> bool {
        (self.setup.max_wimm > 0 || !op.takes_receive()) && (self.setup.max_rd_atomic > 0 || !op.is_fetch())
    }

    /// PSN of the next packet to be sent for the first time.
    pub(crate) fn next_psn(&self) -> Psn {
        self.psn(self.next)
    }

    /// The window that the peer grants now, in PSNs.
    pub(crate) const fn window_psns(&self) -> u32 {
        self.window
    }

    pub(crate) fn queued(&self) -> usize {
        self.queue.requests()
    }

    /// Smoothed round-trip time, zero before the first sample.
    pub(crate) const fn smoothed_rtt_ns(&self) -> u64 {
        if self.rtt.min_ns() == 0 { 0 } else { self.rtt.smoothed_ns() }
    }

    /// Smallest round-trip time seen, zero before the first sample.
    pub(crate) const fn min_rtt_ns(&self) -> u64 {
        self.rtt.min_ns()
    }

    /// The PTO: how long after a transmission its acknowledgement is overdue. Zero before the first sample.
    pub(crate) const fn late_after_ns(&self) -> u64 {
        self.rtt.late_after_ns()
    }

    /// Queues a request whose bytes are pinned. It is signalled if the request or its queue pair asks for that.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "the way of every request; measured by benches/instructions.rs")]
    pub(crate) fn push(&mut self, now: Time, wr: &SendWr, sig_all: bool, source: Source) {
        if !self.busy() {
            self.start_over(now);
        }
        self.queue.push(wr, sig_all, source, self.setup.mtu);
    }

    /// Begins the list of pieces of the next work request.
    pub(crate) fn begin_pieces(&self) -> Pieces {
        self.queue.begin_pieces()
    }

    /// Adds a piece to the list begun last.
    pub(crate) fn add_piece(&mut self, pieces: &mut Pieces, piece: PayloadRef) {
        self.queue.add_piece(pieces, piece);
    }

    /// Discards the pieces of a request that is not posted. `unpin` is called for each pinned region.
    pub(crate) fn take_back_pieces(&mut self, pieces: Pieces, unpin: impl FnMut(RegionSlot)) {
        self.queue.take_back_pieces(pieces, unpin);
    }

    /// Makes room for one more work request, from storage that other queue pairs of the endpoint do not need.
    #[inline]
    pub(crate) fn make_room(&mut self, spare: &mut SpareQueues) {
        if self.queue.has_outgrown() {
            spare.grow(&mut self.queue);
        }
    }

    /// Releases storage that an empty send queue does not need.
    #[inline]
    pub(crate) fn give_room(&mut self, spare: &mut SpareQueues) {
        if self.queue.is_oversized() {
            spare.shrink(&mut self.queue);
        }
    }

    /// Releases the records of earlier packets, if the queue pair has no requests and has sent nothing for a while.
    pub(crate) fn reclaim(&mut self) {
        if !self.busy() && self.una == self.next {
            (self.records, self.sacked, self.lost, self.room) = Default::default();
            // Earlier arrivals are no evidence about future packets. They only clear suspicions.
            let newest_on_ev = core::mem::take(&mut self.newest_on_ev);
            self.suspects.retain_unconfirmed(|ev| newest_on_ev.get(usize::from(ev)).copied().unwrap_or(0));
            // An acknowledgement of these was sent before the queue pair became idle.
            self.rtx_history = RtxHistory::default();
            self.queue.give_up_room();
            self.fetches.reclaim();
        }
    }

    /// PSN of packet `seq`.
    #[inline]
    pub(crate) fn psn(&self, seq: u64) -> Psn {
        psn_of(&self.setup, seq)
    }

    /// The packet that `psn` names: the one nearest to the oldest outstanding packet. It may lie before packet 0 or
    /// beyond what was sent; the caller checks.
    #[inline]
    fn seq_of(&self, psn: Psn) -> i64 {
        self.una as i64 + i64::from(psn.distance(self.psn(self.una)))
    }

    /// Makes room for the state of all packets from the oldest outstanding one up to, but not including, `end`.
    #[inline]
    fn make_room_until(&mut self, end: u64) {
        if end - self.una > self.room {
            self.grow(self.una, end);
        }
    }

    #[cold]
    fn grow(&mut self, low: u64, end: u64) {
        self.records.ensure(low, end);
        self.sacked.ensure(low, end);
        self.lost.ensure(low, end);
        self.room = self.records.room().min(self.sacked.room()).min(self.lost.room());
    }

    /// Whether the retransmission timer has expired since the last progress.
    pub(crate) const fn retries(&self) -> bool {
        self.retries > 0
    }

    /// Whether congestion control counts packet `seq`, which was sent, as in flight.
    fn is_in_flight(&self, seq: u64) -> bool {
        seq >= self.una && !self.sacked.test(seq) && !self.lost.test(seq)
    }

    /// What congestion control counts as in flight for this queue pair.
    pub(crate) fn flights<'a>(&'a self, paths: &'a Paths) -> impl Iterator<Item = Flight> + 'a {
        let in_flight = (self.una..self.next).filter(|&seq| self.is_in_flight(seq));
        in_flight.map(|seq| self.records.get(seq).flight(paths))
    }

    /// Whether anything sent is not yet complete.
    #[inline]
    pub(crate) const fn outstanding(&self) -> bool {
        self.done < self.next
    }

    /// Whether the peer has acknowledged everything sent.
    #[inline]
    pub(crate) const fn all_arrived(&self) -> bool {
        self.una == self.next
    }

    /// Whether the peer has to send an acknowledgement: for a packet, or for a message that was sent whole.
    #[inline]
    pub(super) fn awaits_answer(&self) -> bool {
        let is_later = |entry: &Entry| self.done < entry.first;
        self.outstanding() && (!self.all_arrived() || self.queue.sending().is_none_or(is_later))
    }

    /// The packet at `seq`, or else the oldest in flight. If it is in flight, the path of its last transmission is
    /// included.
    pub(crate) fn in_flight(&self, seq: Option<u64>) -> Option<(Psn, Option<EvId>)> {
        let seq = seq.or((self.una < self.next).then_some(self.una))?;
        let ev = (self.una..self.next).contains(&seq).then(|| EvId(self.records.get(seq).ev));
        Some((self.psn(seq), ev))
    }

    /// Whether a work request is not complete, sent or not. Without a usable plane it may never be sent. The
    /// retransmission timer then fails it like a request in flight.
    #[inline]
    pub(crate) fn busy(&self) -> bool {
        self.done < self.queue.end() && self.queue.len() > 0
    }

    /// Whether the queue pair may have packets to send.
    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        (self.has_retransmissions() && !self.retransmissions_wait())
            || self.new_packet_fits()
            || self.response_waits()
    }

    /// Whether a lost packet or a TLP waits to be sent.
    #[inline]
    pub(crate) fn has_retransmissions(&self) -> bool {
        self.lost_count | u32::from(self.probe_pending) != 0
    }

    /// About how many packets may leave now.
    pub(crate) fn sendable(&self, cc: &Controller) -> usize {
        let window_end = (self.una + u64::from(self.window)).saturating_sub(1);
        let new = self.queue.end().min(window_end).saturating_sub(self.next);
        let room = cc.cwnd().saturating_sub(cc.inflight())
            / u64::from(Self::counted(Opcode::WriteMiddle, self.setup.mtu));
        (u64::from(self.lost_count) + new).min(room) as usize
    }

    /// Removes the oldest work request if the peer has acknowledged it and no port holds its payload. Ports may hold
    /// the payload of packets from ticket `released` on. `unpin` is called for each region pinned for the request.
    pub(crate) fn pop_done(
        &mut self,
        released: u64,
        unpin: impl FnMut(RegionSlot),
    ) -> Result<Entry, NotDone> {
        let front =
            self.queue.front().filter(|entry| entry.end() <= self.done).ok_or(NotDone::Unacknowledged)?;
        if front.held_until > released {
            return Err(NotDone::Held);
        }
        let entry = self.queue.pop(unpin).ok_or(NotDone::Unacknowledged)?;
        self.completed = self.completed.wrapping_add(1);
        if entry.takes_receive() {
            self.wimm_in_flight -= 1;
            self.update_limits();
        }
        Ok(entry)
    }

    /// Removes the oldest work request, complete or not, because the queue pair has failed. `unpin` is called for
    /// each region pinned for it.
    pub(crate) fn pop_any(&mut self, unpin: impl FnMut(RegionSlot)) -> Option<Entry> {
        self.queue.pop(unpin)
    }

    /// Processes a transport NAK for `psn` and returns the work request that it fails.
    ///
    /// `msn` is the peer's count of completed messages. If it covers all requests before the failed one, they are
    /// complete: the ACK sent for them before the NAK was lost, or was overtaken on another plane. Otherwise older
    /// requests are complete only as far as acknowledgements cover them.
    pub(crate) fn on_nak(&mut self, psn: Psn, msn: u32) -> Option<u64> {
        let seq = self.seq_of(psn);
        let seq = u64::try_from(seq).ok().filter(|&seq| seq >= self.done && seq < self.next)?;
        let (first, ahead) = self.queue.find(seq).map(|entry| (entry.first, self.queue.ahead_of(seq)))?;
        if self.completed.wrapping_add(ahead) & 0x00ff_ffff == msn {
            self.done = self.done.max(self.fetches.complete_until(first));
        }
        Some(first)
    }

    /// Declares the packets in flight on these planes lost without blaming a path: the ports are down.
    pub(crate) fn planes_lost(&mut self, now: Time, planes: PlaneSet, env: &mut SendContext<'_>) {
        let gone = |ev: u16| planes.contains(env.paths.plane(EvId(ev)));
        self.rtx_history.discard_planes(gone);
        self.suspects.discard_planes(gone);
        for seq in self.una..self.next {
            let record = self.records.get(seq);
            if planes.contains(env.paths.plane(EvId(record.ev))) {
                self.declare_lost(seq, LossKind::Nobody, RtxReason::Nack, now, env);
            }
        }
    }

    fn declare_lost(
        &mut self,
        seq: u64,
        blame: LossKind,
        cause: RtxReason,
        now: Time,
        env: &mut SendContext<'_>,
    ) {
        if self.sacked.test(seq) || self.lost.test(seq) {
            return;
        }
        self.lost.set(seq);
        self.lost_count += 1;
        let record = self.records.get_mut(seq);
        record.cause = cause;
        let record = *record;
        let (ev, flight) = (EvId(record.ev), record.flight(env.paths));
        match blame {
            LossKind::Path => {
                let mut of_path = env.paths.on_packet_lost(ev, &self.signs(ev, record.order, env), now);
                if !of_path && !self.suspects.is_empty() {
                    of_path = self.confirm(ev, record.order, now, env);
                }
                env.cc.on_loss(now, &flight, !of_path);
            }
            LossKind::Trim => {
                env.paths.on_trim(ev, now);
                env.cc.on_trim_nack(now, &flight, false);
            }
            LossKind::Doubt => {
                self.doubt(seq, &record, now, env);
                env.cc.on_loss(now, &flight, true);
            }
            LossKind::LastHopTrim => env.cc.on_trim_nack(now, &flight, true),
            LossKind::Silence => env.cc.on_loss(now, &flight, true),
            LossKind::Nobody => env.cc.on_loss(now, &flight, false),
            LossKind::NotReady => env.cc.on_discard(&flight),
        }
    }

    /// The newest position among all transmissions that is known to have arrived on this path; 0 for none.
    pub(crate) fn newest_on(&self, ev: EvId) -> u64 {
        self.newest_on_ev.get(usize::from(ev.0)).copied().unwrap_or(0)
    }

    /// The evidence about the path of a lost packet that was sent at position `order`.
    fn signs(&self, ev: EvId, order: u64, env: &SendContext<'_>) -> LossSigns {
        LossSigns {
            order,
            latest: self.orders,
            newest_on_path: self.newest_on(ev),
            plane_delivers: env
                .paths
                .of_plane(env.paths.plane(ev))
                .any(|at| self.newest_on_ev.get(at).is_some_and(|&newest| newest > order)),
            queueing: self.rtt.queueing(),
        }
    }

    /// Records that the driver did not run between these times, and has not stalled since.
    pub(crate) const fn on_driver_stall(&mut self, from: Time, until: Time) {
        self.driver_stall = DriverStall::new(from, until);
    }

    fn evidence(&mut self, now: Time) -> Evidence {
        Evidence {
            newest_on_ev: None,
            newest_order: self.newest_order,
            rtt_ns: self.rtt.fair_ns(),
            reordering_ns: self.reordering.window_ns(&self.rtt, now.0),
            driver_stall: self.driver_stall,
        }
    }

    /// Whether all packets sent but one have been acknowledged.
    fn lacks_one(&self) -> bool {
        let unreported = (self.una..self.next).filter(|&seq| !self.sacked.test(seq));
        unreported.take(2).count() == 1
    }

    /// Judges by the time rule every unacknowledged packet that a later transmission has overtaken. If the whole tail
    /// of a burst is lost, the TLP is that transmission.
    ///
    /// A packet that no SACK proves missing may have arrived. Unless `certain`, its path is only suspected.
    fn scan_overdue(&mut self, certain: bool, now: Time, env: &mut SendContext<'_>) {
        let evidence = self.evidence(now);
        let blame = if certain { LossKind::Path } else { LossKind::Doubt };
        self.loss_check_at = Time::NEVER;
        let end = self.reported.max(self.overtaken);
        let mut at = self.una;
        while at < end {
            let mut holes = !self.sacked.get64(at) & !self.lost.get64(at);
            if end - at < 64 {
                holes &= (1 << (end - at)) - 1;
            }
            while holes != 0 {
                let seq = at + u64::from(holes.trailing_zeros());
                holes &= holes - 1;
                self.judge_one(seq, &evidence, blame, now, env);
            }
            at += 64;
        }
    }

    fn judge_one(
        &mut self,
        seq: u64,
        evidence: &Evidence,
        blame: LossKind,
        now: Time,
        env: &mut SendContext<'_>,
    ) {
        let loss = judge(&self.records.get(seq), evidence, now);
        let is_lost = matches!(loss, Loss::OvertakenOnItsPath | Loss::Overdue);
        let blame = if is_lost && self.may_be_refused(seq) { LossKind::NotReady } else { blame };
        match loss {
            Loss::OvertakenOnItsPath => {
                env.counters.loss_same_ev += 1;
                self.declare_lost(seq, blame, RtxReason::Reordering, now, env);
            }
            Loss::Overdue => {
                env.counters.loss_overdue += 1;
                // A packet in flight when the RTO expired is no evidence against its path: no path carried a
                // response.
                let silence = self.records.get(seq).sent_at <= self.timed_out_at;
                let blame = if silence && blame != LossKind::NotReady { LossKind::Silence } else { blame };
                self.declare_lost(seq, blame, RtxReason::RackTimeout, now, env);
            }
            Loss::NotYet { until } => self.loss_check_at = self.loss_check_at.min(until),
            Loss::NoEvidence => {}
        }
    }
}
