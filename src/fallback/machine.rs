//! The state of one connection: where requests are posted, and what happens to a completion.

use std::collections::VecDeque;

use crate::endpoint::QpCap;
use crate::path::HoldTime;
use crate::time::Time;
use crate::verbs::PostError;
use crate::wire::Qpn;
use crate::work::{GatherWr, MAX_SGE, RemoteAddr, ScatterWr, SendOp, SendWr, Sge, Wc, WcStatus};

use super::config::{Counters, FallbackConfig, FallbackError, ReceiveState, SendState};
use super::message::{Count, Round};
use super::queue::{Receives, Sends, control};
use super::verbs::{Cause, Nic, PairId, RemoteKey, Verbs};

/// Send work requests that the machine posts to a pair beside the application's: a probe or two, its message, and the
/// mark at the end.
pub const EXTRA_SENDS: u32 = 4;

/// Receive work requests that the machine posts to a pair beside the application's: for the peer's message, and the mark
/// at the end.
pub const EXTRA_RECEIVES: u32 = 2;

/// The bit of a `wr_id` on a pair that is set in the machine's own requests. The application's have sequence numbers.
const OWN: u64 = 1 << 63;

/// The machine's own requests.
pub(super) mod own {
    use super::OWN;

    /// A write without bytes, to see whether the pair works.
    pub(in crate::fallback) const PROBE: u64 = OWN;
    /// A report, or the news that requests follow on this pair.
    pub(in crate::fallback) const MESSAGE: u64 = OWN | 1;
    /// The receive work request for the peer's message.
    pub(in crate::fallback) const HELLO: u64 = OWN | 2;
    /// The last request of a pair in ERROR: once it is flushed, all before it have completed.
    pub(in crate::fallback) const END: u64 = OWN | 3;
}

/// What a pair is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Use {
    /// Made. It is not known yet that both sides are connected.
    Created,
    /// Connected on both sides, and not used by either as far as is known.
    Spare,
    /// In use in at least one direction.
    Used,
    /// In ERROR. Its completions are being collected.
    Ending,
}

/// A pair that exists.
#[derive(Clone, Debug, Hash)]
pub(super) struct Pair {
    pub(super) id: PairId,
    pub(super) used: Use,
    /// This side has sent its message on it.
    pub(super) spoke: bool,
    /// The peer's NIC has acknowledged that.
    pub(super) acknowledged: bool,
    /// The peer's report on it: the attempt, and the messages that the peer has received.
    pub(super) report: Option<(Round, Count)>,
    /// A probe is outstanding.
    pub(super) probing: bool,
    /// The first of the application's send work requests that was flushed.
    first_failed: Option<u64>,
    /// Not all completions can be had: the NIC is gone.
    pub(super) lost: bool,
    sends_ended: bool,
    receives_ended: bool,
}

impl Pair {
    const fn new(id: PairId, used: Use) -> Self {
        Self {
            id,
            used,
            spoke: false,
            acknowledged: false,
            report: None,
            probing: false,
            first_failed: None,
            lost: false,
            sends_ended: false,
            receives_ended: false,
        }
    }
}

/// What the sending half does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    /// Requests are posted to the pair in use.
    Steady,
    /// The same, until one of them is signalled.
    WaitSignaled { to: PairId },
    /// Later requests are withheld until those before `fence` have completed.
    WaitDrained { to: PairId, fence: u64 },
    /// Later requests are withheld until the peer's NIC has the message that they follow on this pair.
    Moving { to: PairId },
    /// Pairs in ERROR are being drained, for a switch or for good.
    Draining,
    /// No pair is prepared.
    WaitSpare { until: Time },
    /// This side has reported on a new pair, and the peer has not.
    Reporting { to: PairId },
    /// For good.
    Failed,
}

/// The fallback of one connection: this side's queues, and the pairs that carry them.
///
/// It has no thread, socket or clock. Its caller passes in work requests, the completions of all pairs, pairs that are
/// prepared, and the time.
#[derive(Clone, Debug, Hash)]
pub struct Machine {
    pub(super) config: FallbackConfig,
    cap: QpCap,
    /// The numbers that completions have: those of the first pair.
    qpn: Qpn,
    peer_qpn: Qpn,
    pub(super) sends: Sends,
    pub(super) receives: Receives,
    pub(super) pairs: Vec<Pair>,
    /// The pair that takes sends.
    pub(super) tx: PairId,
    /// The pair that takes receives.
    pub(super) rx: PairId,
    pub(super) phase: Phase,
    pub(super) preferred: Nic,
    /// The peer sends on this pair from now on, and has sent so many messages before.
    pub(super) moved_in: Option<(PairId, Count)>,
    pub(super) round: Round,
    /// Attempts to switch since the last success.
    pub(super) attempts: u32,
    /// The NIC that failed last.
    pub(super) down: Nic,
    /// The end of the requests that a pair had at the last failure.
    pub(super) at_risk: u64,
    pub(super) hold: HoldTime,
    pub(super) probe_due: Time,
    /// Since when the next request waits for a remote key.
    waits_since: Option<Time>,
    pub(super) now: Time,
    /// Completions for the application, before all that come later.
    pub(super) ready: VecDeque<Wc>,
    pub(super) failure: Option<FallbackError>,
    /// The status of the first outstanding send work request, if it fails.
    pub(super) failed_with: WcStatus,
    pub(super) counters: Counters,
}

impl Machine {
    /// For a queue pair whose first pair is [`PairId::FIRST`]. Completions have the number of that pair.
    ///
    /// As in libibverbs, an unsignalled send work request is outstanding until a later signalled one has completed.
    pub fn new(config: FallbackConfig, cap: QpCap, qpn: Qpn) -> Self {
        let first = Pair { spoke: true, ..Pair::new(PairId::FIRST, Use::Used) };
        Self {
            qpn,
            peer_qpn: Qpn::new(0),
            sends: Sends::new(cap.max_send_wr, cap.max_send_sge),
            receives: Receives::new(cap.max_recv_wr, cap.max_recv_sge),
            pairs: vec![first],
            tx: PairId::FIRST,
            rx: PairId::FIRST,
            phase: Phase::Steady,
            preferred: Nic::Default,
            moved_in: None,
            round: Round::default(),
            attempts: 0,
            down: Nic::Default,
            at_risk: 0,
            hold: HoldTime::new(config.hold_ns, config.hold_max_ns),
            probe_due: Time::ZERO,
            waits_since: None,
            now: Time::ZERO,
            ready: VecDeque::new(),
            failure: None,
            failed_with: WcStatus::RetryExceeded,
            cap,
            counters: Counters::default(),
            config,
        }
    }

    /// The first pair is connected, to the peer's pair with this number.
    pub const fn connected(&mut self, peer_qpn: Qpn) {
        self.peer_qpn = peer_qpn;
    }

    /// Posts a send work request. `once`: it may not be sent again, so a failure while it is outstanding is an error.
    ///
    /// # Errors
    /// [`PostError`]; then nothing has been posted.
    #[inline]
    pub fn post_send(&mut self, verbs: &mut impl Verbs, wr: SendWr, once: bool) -> Result<(), PostError> {
        if self.posts_at_once() {
            // The usual case: the same request goes to the NIC at once, with the application's keys.
            let posted = verbs.post_send(self.tx, SendWr { wr_id: self.sends.end(), ..wr });
            if !matches!(posted, Err(PostError::LaneFailed)) {
                posted?;
                self.sends.push_one(&wr, once);
                self.sends.advance();
                return Ok(());
            }
        }
        let SendWr { wr_id, op, local, remote, signaled, fence } = wr;
        self.post_later(verbs, &GatherWr { wr_id, op, local: &[local], remote, signaled, fence }, once)
    }

    /// Posts a send work request with several elements.
    ///
    /// # Errors
    /// [`PostError`]; then nothing has been posted.
    pub fn post_gather(
        &mut self,
        verbs: &mut impl Verbs,
        wr: GatherWr<'_>,
        once: bool,
    ) -> Result<(), PostError> {
        if self.posts_at_once() && wr.local.len() <= self.cap.max_send_sge as usize {
            let posted = verbs.post_gather(self.tx, GatherWr { wr_id: self.sends.end(), ..wr });
            if !matches!(posted, Err(PostError::LaneFailed)) {
                posted?;
                self.sends.push(&wr, once);
                self.sends.advance();
                return Ok(());
            }
        }
        self.post_later(verbs, &wr, once)
    }

    /// Whether a request goes to the default NIC as it is.
    #[inline]
    fn posts_at_once(&self) -> bool {
        let usual = self.phase == Phase::Steady && self.tx.nic == Nic::Default;
        usual && self.sends.all_posted() && !self.sends.is_full()
    }

    #[cold]
    fn post_later(&mut self, verbs: &mut impl Verbs, wr: &GatherWr<'_>, once: bool) -> Result<(), PostError> {
        let (count, max) = (wr.local.len(), self.cap.max_send_sge);
        if count > max as usize {
            return Err(PostError::TooManySges { count, max });
        }
        if self.phase == Phase::Failed {
            self.ready.push_back(Sends::flushed(wr));
            return Ok(());
        }
        if self.sends.is_full() {
            return Err(PostError::QueueFull { max: self.sends.capacity() });
        }
        verbs.check(wr)?;
        self.sends.push(wr, once);
        self.pump(verbs);
        Ok(())
    }

    /// Posts a receive work request.
    ///
    /// # Errors
    /// [`PostError`]; then nothing has been posted.
    pub fn post_recv(&mut self, verbs: &mut impl Verbs, wr: ScatterWr<'_>) -> Result<(), PostError> {
        let (count, max) = (wr.local.len(), self.cap.max_recv_sge);
        if count > max as usize {
            return Err(PostError::TooManySges { count, max });
        }
        if self.phase == Phase::Failed {
            self.ready.push_back(Receives::flushed(wr.wr_id));
            return Ok(());
        }
        if self.receives.is_full() {
            return Err(PostError::QueueFull { max: self.receives.capacity() });
        }
        self.receives.push(&wr);
        self.pump_receives(verbs);
        Ok(())
    }

    /// Whether sends are posted as they come.
    const fn is_posting(&self) -> bool {
        matches!(self.phase, Phase::Steady | Phase::WaitSignaled { .. })
    }

    /// Posts what waits in the send queue, as far as the state and the keys allow.
    pub(super) fn pump(&mut self, verbs: &mut impl Verbs) {
        while self.is_posting()
            && let Some((seq, send, elements)) = self.sends.next()
        {
            let nic = self.tx.nic;
            let needs_key = nic != Nic::Default && send.has_remote_key();
            let rkey = match needs_key.then(|| verbs.remote_key(nic, send.remote.rkey)) {
                None => send.remote.rkey,
                Some(RemoteKey::Known(rkey)) => rkey,
                Some(RemoteKey::Pending) => return self.wait_for_key(verbs),
                Some(RemoteKey::Unreachable) => return self.give_up(verbs, FallbackError::StoreUnreachable),
            };
            self.waits_since = None;
            let mut scratch = [Sge::EMPTY; MAX_SGE as usize];
            let local = match translate(verbs, nic, elements, &mut scratch) {
                Ok(local) => local,
                Err(lkey) => return self.give_up(verbs, FallbackError::UnknownLocalKey { lkey }),
            };
            let remote = RemoteAddr { rkey, ..send.remote };
            if verbs.post_gather(self.tx, send.request(seq, local, remote)).is_err() {
                return self.pair_failed(verbs, self.tx, Cause::Network);
            }
            self.sends.advance();
            if let Phase::WaitSignaled { to } = self.phase {
                self.find_fence(verbs, to);
            }
        }
    }

    /// The next request cannot be posted without its remote key.
    fn wait_for_key(&mut self, verbs: &mut impl Verbs) {
        let since = *self.waits_since.get_or_insert(self.now);
        if self.now >= since.after(self.config.prepare_timeout_ns) {
            self.give_up(verbs, FallbackError::UnknownRemoteKey);
        }
    }

    /// Posts what waits in the receive queue.
    pub(super) fn pump_receives(&mut self, verbs: &mut impl Verbs) {
        if matches!(self.phase, Phase::Draining | Phase::WaitSpare { .. } | Phase::Failed) {
            return;
        }
        while let Some((seq, _, elements)) = self.receives.next() {
            let mut scratch = [Sge::EMPTY; MAX_SGE as usize];
            let local = match translate(verbs, self.rx.nic, elements, &mut scratch) {
                Ok(local) => local,
                Err(lkey) => return self.give_up(verbs, FallbackError::UnknownLocalKey { lkey }),
            };
            if verbs.post_recv(self.rx, ScatterWr { wr_id: seq, local }).is_err() {
                return self.pair_failed(verbs, self.rx, Cause::Network);
            }
            self.receives.advance();
        }
    }

    /// A completion of any pair. Returns the application's, if it has one now; those of [`Machine::next_wc`] are before
    /// it.
    #[inline]
    pub fn on_wc(&mut self, verbs: &mut impl Verbs, pair: PairId, wc: Wc) -> Option<Wc> {
        if !wc.status.is_success() || wc.wr_id & OWN != 0 {
            self.on_other_wc(verbs, pair, &wc);
            return None;
        }
        let done = if wc.opcode.is_receive() {
            self.on_received(verbs, pair, wc)
        } else {
            self.on_sent(verbs, pair, wc.wr_id)
        };
        if done.is_some() && !self.ready.is_empty() {
            self.ready.extend(done);
            return None;
        }
        done
    }

    #[inline]
    fn on_sent(&mut self, verbs: &mut impl Verbs, pair: PairId, seq: u64) -> Option<Wc> {
        let done = if pair == self.tx { self.sends.complete(seq) } else { None }?;
        self.attempts = 0;
        if let Phase::WaitDrained { to, fence } = self.phase {
            self.on_drained_to(verbs, to, fence);
        }
        Some(self.own_numbers(done))
    }

    #[inline]
    fn on_received(&mut self, verbs: &mut impl Verbs, pair: PairId, wc: Wc) -> Option<Wc> {
        let done = if pair == self.rx { self.receives.complete(wc.wr_id) } else { None };
        let Some(wr_id) = done else {
            self.give_up(verbs, FallbackError::PeerViolation("a message on a pair that it had left"));
            return None;
        };
        self.attempts = 0;
        if self.moved_in.is_some() {
            self.move_receives(verbs);
        }
        Some(self.own_numbers(Wc { wr_id, ..wc }))
    }

    /// The completion with the numbers of the first pair.
    pub(super) fn own_numbers(&self, wc: Wc) -> Wc {
        Wc { qpn: self.qpn, src_qpn: if wc.opcode.is_receive() { self.peer_qpn } else { wc.src_qpn }, ..wc }
    }

    /// Whether [`Machine::next_wc`] has a completion.
    pub fn has_wc(&self) -> bool {
        !self.ready.is_empty()
    }

    /// The next completion that no call of [`Machine::on_wc`] has returned.
    pub fn next_wc(&mut self) -> Option<Wc> {
        let wc = self.ready.pop_front()?;
        Some(self.own_numbers(wc))
    }

    #[cold]
    fn on_other_wc(&mut self, verbs: &mut impl Verbs, id: PairId, wc: &Wc) {
        if !wc.status.is_success() {
            return self.on_failed_wc(verbs, id, wc);
        }
        match wc.wr_id {
            own::PROBE => self.on_probe_acked(verbs, id),
            own::MESSAGE => self.on_message_sent(verbs, id),
            own::HELLO => self.on_message(verbs, id, wc.imm),
            _ => {}
        }
    }

    fn on_failed_wc(&mut self, verbs: &mut impl Verbs, id: PairId, wc: &Wc) {
        let receive = wc.opcode.is_receive();
        let Some(pair) = self.pair_mut(id) else { return };
        if wc.wr_id == own::END {
            pair.sends_ended |= !receive;
            pair.receives_ended |= receive;
            return self.on_ended(verbs, id);
        }
        let is_own = wc.wr_id & OWN != 0;
        if !receive && !is_own {
            pair.first_failed.get_or_insert(wc.wr_id);
        }
        match (pair.used, wc.status) {
            (Use::Ending, _) => {}
            (Use::Used, WcStatus::WrFlushError) => {
                let cause = verbs.cause(id);
                self.pair_failed(verbs, id, cause);
            }
            (Use::Created | Use::Spare, _) | (_, WcStatus::RetryExceeded) => {
                self.pair_failed(verbs, id, Cause::Network);
            }
            (Use::Used, status) => {
                // A receive that fails has a completion of its own. Those after it are flushed.
                let failed = receive && !is_own && id == self.rx;
                if let Some(wr_id) = failed.then(|| self.receives.complete(wc.wr_id)).flatten() {
                    self.ready.push_back(Wc { wr_id, ..*wc });
                }
                self.give_up(verbs, FallbackError::Application(status));
                if receive {
                    self.failed_with = WcStatus::WrFlushError;
                }
            }
        }
    }

    pub(super) fn pair(&self, id: PairId) -> Option<&Pair> {
        self.pairs.iter().find(|pair| pair.id == id)
    }

    pub(super) fn pair_mut(&mut self, id: PairId) -> Option<&mut Pair> {
        self.pairs.iter_mut().find(|pair| pair.id == id)
    }

    /// A pair was made, in a state in which it takes receives. [`Machine::prepared`] follows once both sides are connected.
    pub fn created(&mut self, verbs: &mut impl Verbs, id: PairId) {
        self.pairs.push(Pair::new(id, Use::Created));
        let hello = ScatterWr { wr_id: own::HELLO, local: &[] };
        if verbs.post_recv(id, hello).is_err() {
            self.end_pair(verbs, id);
        }
    }

    /// Whether requests or receives are on this NIC, or may be soon.
    pub fn uses(&self, nic: Nic) -> bool {
        self.phase != Phase::Steady || self.tx.nic == nic || self.rx.nic == nic
    }

    /// Whether a pair should be made on this NIC.
    pub fn wants(&self, nic: Nic) -> bool {
        let over = self.phase == Phase::Failed || self.failure.is_some();
        let in_use = (self.tx.nic, self.rx.nic) == (nic, nic) && self.phase == Phase::Steady;
        // One that the peer uses alone may serve a move, but not a switch, which ends all pairs in use.
        let is_unused = |pair: &Pair| matches!(pair.used, Use::Created | Use::Spare) && !pair.spoke;
        let has = |pair: &Pair| pair.id.nic == nic && is_unused(pair);
        let needless = in_use && nic == self.preferred;
        !over && !needless && !self.pairs.iter().any(has)
    }

    /// The generations of the pairs on this NIC that were not put into ERROR.
    pub fn alive(&self, nic: Nic) -> impl Iterator<Item = u32> + '_ {
        let alive = self.pairs.iter().filter(move |pair| pair.id.nic == nic && pair.used != Use::Ending);
        alive.map(|pair| pair.id.generation)
    }

    /// Whether an unused pair on this NIC is connected on both sides.
    pub fn has_spare(&self, nic: Nic) -> bool {
        self.pairs.iter().any(|pair| pair.id.nic == nic && pair.used == Use::Spare)
    }

    /// Puts a pair into ERROR, and has its completions collected.
    pub(super) fn end_pair(&mut self, verbs: &mut impl Verbs, id: PairId) {
        let Some(pair) = self.pair_mut(id).filter(|pair| pair.used != Use::Ending) else { return };
        pair.used = Use::Ending;
        pair.report = None;
        verbs.fail(id);
        // If they are refused, the NIC is gone, and `on_lost` ends the pair.
        let _ = verbs.post_send(id, control(own::END, SendOp::Write));
        let _ = verbs.post_recv(id, ScatterWr { wr_id: own::END, local: &[] });
    }

    /// A pair's completions may all be there.
    pub(super) fn on_ended(&mut self, verbs: &mut impl Verbs, id: PairId) {
        let Some(at) = self.pairs.iter().position(|pair| pair.id == id) else { return };
        let Some(pair) = self.pairs.get(at) else { return };
        if pair.used != Use::Ending || !(pair.lost || pair.sends_ended && pair.receives_ended) {
            return;
        }
        if id == self.tx && !pair.lost {
            // Every request that did not succeed was flushed. So those before the first of them did, signalled or not.
            let end = pair.first_failed.unwrap_or(self.sends.posted_end());
            self.sends.complete_before(end, &mut self.ready);
        }
        self.pairs.remove(at);
        verbs.destroy(id);
        self.pair_is_gone(verbs);
    }

    /// The state of the sending half.
    pub const fn send_state(&self) -> SendState {
        match self.phase {
            Phase::Steady if matches!(self.tx.nic, Nic::Default) => SendState::Default,
            Phase::Steady => SendState::Fallback,
            Phase::WaitSignaled { .. } => SendState::WaitSignaled,
            Phase::WaitDrained { .. } | Phase::Moving { .. } => SendState::WaitDrained,
            Phase::Draining | Phase::WaitSpare { .. } | Phase::Reporting { .. } => SendState::Switching,
            Phase::Failed => SendState::Failed,
        }
    }

    /// The state of the receiving half.
    pub const fn receive_state(&self) -> ReceiveState {
        match self.rx.nic {
            Nic::Default => ReceiveState::Default,
            Nic::Backup => ReceiveState::Fallback,
        }
    }

    /// The pairs that take sends and receives.
    pub const fn pairs_in_use(&self) -> (PairId, PairId) {
        (self.tx, self.rx)
    }

    /// The NIC that takes requests while it works.
    pub const fn preferred(&self) -> Nic {
        self.preferred
    }

    /// Why it failed, if it did.
    pub const fn failure(&self) -> Option<&FallbackError> {
        self.failure.as_ref()
    }

    /// What it has done.
    pub const fn counters(&self) -> Counters {
        self.counters
    }

    /// Send work requests that have not completed, as far as completions tell.
    pub fn sends_outstanding(&self) -> usize {
        self.sends.len()
    }

    /// Receive work requests that have not completed.
    pub fn recvs_outstanding(&self) -> usize {
        self.receives.len()
    }
}

/// The elements with the keys of this NIC, or the key that it does not have.
fn translate<'a>(
    verbs: &impl Verbs,
    nic: Nic,
    elements: &'a [Sge],
    scratch: &'a mut [Sge; MAX_SGE as usize],
) -> Result<&'a [Sge], u32> {
    if nic == Nic::Default {
        return Ok(elements);
    }
    for (to, from) in scratch.iter_mut().zip(elements) {
        *to = match from.len {
            0 => Sge::EMPTY,
            _ => Sge { lkey: verbs.local_key(nic, from.lkey).ok_or(from.lkey)?, ..*from },
        };
    }
    Ok(scratch.get(..elements.len()).unwrap_or_default())
}
