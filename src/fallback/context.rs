//! Two NICs used as one.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use rand::Rng;

use super::config::{Counters, FallbackConfig, FallbackError, ReceiveState, SendState};
use super::connection::Connection;
use super::event::Event;
use super::store::{Record, Store, StoreError, StoreKey};
use super::verbs::{Nic, PairId};
use crate::endpoint::QpInfo;
use crate::engine::process_time;
use crate::memory::{Access, Region, RegionError};
use crate::seed::Purpose;
use crate::time::Time;
use crate::verbs::negotiate::RemoteMr;
use crate::verbs::{
    AsyncEvent, BadWr, Context as NicContext, Cq, CqError, MAX_CQ_DEPTH, Mr as NicMr, Pd, PostError,
    QpConfig, VerbsError,
};
use crate::wire::Qpn;
use crate::work::{GatherWr, RecvWr, ScatterWr, SendWr, Sge, Wc};

/// A queue pair of a [`Context`]: its place there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QpId(usize);

impl QpId {
    pub(super) const fn new(at: usize) -> Self {
        Self(at)
    }
}

impl core::fmt::Display for QpId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.0.fmt(f)
    }
}

/// Events that are kept; later ones are dropped.
const MAX_EVENTS: usize = 1024;

/// Polls between two looks at the links, and at the clock while there are completions.
const POLLS_PER_LOOK: u32 = 64;

/// Time between two rounds of work in the background, ns.
const ROUND_NS: u64 = 1_000_000;

/// Polls between two polls of a NIC that no queue pair uses.
const POLLS_PER_QUIET: u32 = 16;

/// Completions that one poll of a queue takes.
const BATCH: usize = 16;

/// What a context has of one NIC.
#[derive(Debug)]
pub(super) struct NicSide {
    context: NicContext,
    pub(super) pd: Pd,
    pub(super) cq: Cq,
    /// Lanes run inside the caller's thread.
    inline: bool,
    /// No queue pair uses this NIC. It is polled now and then, for what the peers may send.
    pub(super) quiet: bool,
    /// It was driven last time, so its completions are polled.
    driven: bool,
    lost: bool,
    /// Ports, by lane and plane, whose links are down.
    down: BTreeSet<(u32, u8)>,
}

impl NicSide {
    /// Whether no port has a link.
    fn is_down(&self) -> bool {
        self.down.len() >= self.context.lanes() * self.context.config().ports.len()
    }
}

/// The connection and the pair that a queue pair of a NIC belongs to.
type Owner = (usize, PairId);

/// What the connections of a context share.
pub(super) struct Shared {
    pub(super) nics: [NicSide; 2],
    pub(super) store: Box<dyn Store>,
    /// Local keys on the backup NIC, by those of the default NIC.
    pub(super) local_keys: BTreeMap<u32, u32>,
    /// Owners of queue pairs.
    owners: BTreeMap<(Nic, u32), Owner>,
    /// The owner that was looked up last. Completions come in runs.
    last_owner: Option<((Nic, u32), Owner)>,
    /// The name of this context in the store.
    pub(super) home: String,
    events: VecDeque<Event>,
    store_failed: bool,
}

impl Shared {
    /// The owner of a queue pair with this number.
    #[inline]
    fn owner(&mut self, nic: Nic, qpn: u32) -> Option<Owner> {
        match self.last_owner {
            Some((last, owner)) if last == (nic, qpn) => Some(owner),
            _ => {
                let owner = *self.owners.get(&(nic, qpn))?;
                self.last_owner = Some(((nic, qpn), owner));
                Some(owner)
            }
        }
    }

    pub(super) fn own(&mut self, qpn: Qpn, at: usize, pair: PairId) {
        self.owners.insert((pair.nic, qpn.get()), (at, pair));
    }

    pub(super) fn disown(&mut self, qpn: Qpn, nic: Nic) {
        self.owners.remove(&(nic, qpn.get()));
        self.last_owner = None;
    }

    /// Something is sent over this NIC.
    #[inline]
    pub(super) fn wake(&mut self, nic: Nic) {
        let [default, backup] = &mut self.nics;
        let side = if nic == Nic::Default { default } else { backup };
        side.quiet = false;
    }

    pub(super) fn report(&mut self, event: Event) {
        event.log();
        // What NICs report keeps no room from the others, of which there are few.
        let room = if matches!(event, Event::Nic { .. }) { MAX_EVENTS / 2 } else { MAX_EVENTS };
        if self.events.len() < room {
            self.events.push_back(event);
        }
    }

    /// The result of a call of the store. The first failure in a row is an event.
    pub(super) fn note<T>(&mut self, result: Result<T, StoreError>) -> Result<T, StoreError> {
        match &result {
            Ok(_) => self.store_failed = false,
            Err(error) if !std::mem::replace(&mut self.store_failed, true) => {
                self.report(Event::StoreFailed(error.clone()));
            }
            Err(_) => {}
        }
        result
    }

    pub(super) fn get(&mut self, key: &StoreKey) -> Result<Option<Record>, StoreError> {
        let got = self.store.get(key);
        self.note(got)
    }

    pub(super) fn put(&mut self, key: &StoreKey, record: &Record) -> Result<(), StoreError> {
        let put = self.store.put(key, record);
        self.note(put)
    }
}

/// Two NICs used as one: queue pairs that survive the death of either NIC, by sending whole requests again.
///
/// It takes the asynchronous events of both NICs, which are among its own ([`Event::Link`], [`Event::Nic`]).
///
/// One thread owns it. It polls completions, which also drives the handshakes and, if they run inside the caller's thread,
/// the lanes of both NICs.
pub struct Context {
    shared: Shared,
    config: FallbackConfig,
    connections: Vec<Option<Connection>>,
    /// Regions whose keys the store does not have yet.
    unpublished: Vec<(u32, u32)>,
    polls: u32,
    /// When there is work in the background again.
    due: Time,
    any_ready: bool,
    /// Completions of a NIC on their way to the queue pairs.
    batch: Box<[Wc]>,
}

impl core::fmt::Debug for Context {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Context").field("home", &self.shared.home).finish_non_exhaustive()
    }
}

/// Memory that is registered on both NICs.
#[derive(Debug)]
pub struct Mr {
    default: NicMr,
    backup: NicMr,
}

impl Mr {
    /// The bytes, with bounds-checked access.
    pub fn region(&self) -> &Arc<Region> {
        self.default.region()
    }

    /// `len` bytes from `offset`, as the local side of a work request.
    ///
    /// # Errors
    /// [`RegionError::OutOfBounds`].
    pub fn sge(&self, offset: usize, len: u32) -> Result<Sge, RegionError> {
        self.default.sge(offset, len)
    }

    /// The description that a peer needs to access it.
    pub fn remote(&self) -> RemoteMr {
        self.default.remote()
    }
}

impl Context {
    /// Uses two NICs as one. All memory and queue pairs are made through the context that is returned. `depth`: the
    /// completions that may wait to be polled; as many as all queues together have entries.
    ///
    /// # Errors
    /// [`VerbsError`].
    pub fn open(
        default: &NicContext,
        backup: &NicContext,
        store: Box<dyn Store>,
        depth: u32,
        config: FallbackConfig,
    ) -> Result<Self, VerbsError> {
        // During a switch, what one pair flushes waits beside what another one completes.
        let depth = depth.saturating_mul(4).saturating_add(64).min(MAX_CQ_DEPTH);
        let side = |context: &NicContext| {
            let (pd, cq) = (context.create_pd()?, context.create_cq(depth)?);
            Ok::<_, VerbsError>(NicSide {
                context: context.clone(),
                pd,
                cq,
                inline: context.any_inline(),
                quiet: false,
                driven: true,
                lost: false,
                down: BTreeSet::new(),
            })
        };
        let token = default.config().seed.generator(Purpose::Names).next_u64();
        let address = default.config().ports.first().map(|port| port.ip);
        let home = format!("{}:{token:016x}", address.map_or_else(String::new, |ip| ip.to_string()));
        let shared = Shared {
            nics: [side(default)?, side(backup)?],
            store,
            local_keys: BTreeMap::new(),
            owners: BTreeMap::new(),
            last_owner: None,
            home,
            events: VecDeque::new(),
            store_failed: false,
        };
        let (connections, unpublished) = (Vec::new(), Vec::new());
        let batch = vec![Wc::default(); BATCH].into();
        Ok(Self {
            shared,
            config,
            connections,
            unpublished,
            polls: 0,
            due: Time::ZERO,
            any_ready: false,
            batch,
        })
    }

    /// Allocates `len` zeroed bytes, and registers them on both NICs.
    ///
    /// # Errors
    /// [`VerbsError::Memory`], [`VerbsError::Control`].
    pub fn register(&mut self, len: usize, access: Access) -> Result<Mr, VerbsError> {
        let [default, backup] = &self.shared.nics;
        let default = default.pd.register(len, access)?;
        let backup = backup.pd.register_region(Arc::clone(default.region()), access)?;
        self.shared.local_keys.insert(default.lkey(), backup.lkey());
        self.unpublished.push((default.rkey(), backup.rkey()));
        self.publish();
        Ok(Mr { default, backup })
    }

    /// Ends a registration on both NICs. The peer's requests with its key fail from then on.
    pub fn deregister(&mut self, mr: Mr) {
        let Mr { default, backup } = mr;
        self.shared.local_keys.remove(&default.lkey());
        self.unpublished.retain(|waiting| *waiting != (default.rkey(), backup.rkey()));
        drop((default, backup));
    }

    /// Puts keys into the store.
    fn publish(&mut self) {
        while let Some((rkey, backup)) = self.unpublished.last().copied() {
            let key = StoreKey::Region { home: self.shared.home.clone(), rkey };
            if self.shared.put(&key, &Record::Region(backup)).is_err() {
                return;
            }
            self.unpublished.pop();
        }
    }

    /// Makes a queue pair. `config` holds for each of its pairs, with these differences: it cannot have a shared receive
    /// queue or inline sends, messages that find no receive are repeated without limit, and
    /// [`INVALIDATE`](crate::endpoint::Extensions::INVALIDATE) is not offered, because it would end the registration on one NIC only.
    ///
    /// # Errors
    /// [`VerbsError`].
    pub fn create_qp(&mut self, config: &QpConfig) -> Result<QpId, VerbsError> {
        self.create_qp_on(config, config)
    }

    /// As [`Context::create_qp`], for NICs that differ: the pairs on the backup NIC have the `path` and the `cc` of
    /// `backup`, and all else of `default`.
    ///
    /// # Errors
    /// [`VerbsError`].
    pub fn create_qp_on(&mut self, default: &QpConfig, backup: &QpConfig) -> Result<QpId, VerbsError> {
        if default.srq.is_some() {
            return Err(VerbsError::NoFallback("a shared receive queue"));
        }
        if default.max_inline > 0 {
            return Err(VerbsError::NoFallback("inline sends"));
        }
        let at = self.connections.iter().position(Option::is_none).unwrap_or(self.connections.len());
        let configs = [default, backup];
        let connection = Connection::new(at, configs, &self.config, &mut self.shared)?;
        match self.connections.get_mut(at) {
            Some(slot) => *slot = Some(connection),
            None => self.connections.push(Some(connection)),
        }
        Ok(QpId(at))
    }

    /// The information that a peer needs to connect.
    ///
    /// # Errors
    /// [`VerbsError::NoSuchQp`], [`VerbsError::Endpoint`].
    pub fn info(&self, qp: QpId) -> Result<QpInfo, VerbsError> {
        self.connection(qp)?.info()
    }

    /// Makes it ready for receives, before it is connected.
    ///
    /// # Errors
    /// [`VerbsError::NoSuchQp`], [`VerbsError::Endpoint`].
    pub fn init(&mut self, qp: QpId) -> Result<(), VerbsError> {
        self.connection_mut(qp)?.0.init()
    }

    /// Connects to a peer's queue pair, which must be one of such a context too.
    ///
    /// # Errors
    /// [`VerbsError::Refused`] if the peer is not compatible, [`VerbsError::Endpoint`].
    pub fn connect(&mut self, qp: QpId, peer: &QpInfo) -> Result<(), VerbsError> {
        let (connection, shared) = self.connection_mut(qp)?;
        connection.connect(peer)?;
        connection.prepare(shared, process_time());
        Ok(())
    }

    /// Ends a queue pair. Its outstanding requests never complete.
    ///
    /// # Errors
    /// [`VerbsError::NoSuchQp`].
    pub fn destroy_qp(&mut self, qp: QpId) -> Result<(), VerbsError> {
        self.connection(qp)?;
        if let Some(slot) = self.connections.get_mut(qp.0) {
            *slot = None;
        }
        self.shared.owners.retain(|_, owner| owner.0 != qp.0);
        self.shared.last_owner = None;
        Ok(())
    }

    /// Posts a send work request.
    ///
    /// # Errors
    /// [`PostError`]; then nothing has been posted.
    #[inline]
    pub fn post_send(&mut self, qp: QpId, wr: SendWr) -> Result<(), PostError> {
        let connection = self.connections.get_mut(qp.0).and_then(Option::as_mut).ok_or(PostError::Dropped)?;
        let posted = connection.post_send(&mut self.shared, wr);
        self.any_ready |= connection.machine.has_wc();
        posted
    }

    /// Posts a list of send work requests.
    ///
    /// # Errors
    /// [`BadWr`] names the first request that was refused. Those before it have been posted.
    pub fn post_sends(&mut self, qp: QpId, wrs: &[SendWr]) -> Result<(), BadWr> {
        for (index, wr) in wrs.iter().enumerate() {
            self.post_send(qp, *wr).map_err(|error| BadWr { index, error })?;
        }
        Ok(())
    }

    /// Posts a send work request with several elements.
    ///
    /// # Errors
    /// [`PostError`]; then nothing has been posted.
    pub fn post_gather(&mut self, qp: QpId, wr: GatherWr<'_>) -> Result<(), PostError> {
        self.post(qp, wr, false)
    }

    /// Posts a send work request that must not be sent again. If its NIC fails while it is outstanding, the queue pair
    /// fails too (the hint of the SHIFT paper, section 3.1). Atomic operations are such requests in any case.
    ///
    /// # Errors
    /// [`PostError`]; then nothing has been posted.
    pub fn post_once(&mut self, qp: QpId, wr: GatherWr<'_>) -> Result<(), PostError> {
        self.post(qp, wr, true)
    }

    fn post(&mut self, qp: QpId, wr: GatherWr<'_>, once: bool) -> Result<(), PostError> {
        let connection = self.connections.get_mut(qp.0).and_then(Option::as_mut).ok_or(PostError::Dropped)?;
        let posted = connection.post_gather(&mut self.shared, wr, once);
        self.any_ready |= connection.machine.has_wc();
        posted
    }

    /// Posts a receive work request.
    ///
    /// # Errors
    /// [`PostError`]; then nothing has been posted.
    pub fn post_recv(&mut self, qp: QpId, wr: RecvWr) -> Result<(), PostError> {
        self.post_scatter(qp, ScatterWr { wr_id: wr.wr_id, local: &[wr.local] })
    }

    /// Posts a receive work request whose buffer has several elements.
    ///
    /// # Errors
    /// [`PostError`]; then nothing has been posted.
    pub fn post_scatter(&mut self, qp: QpId, wr: ScatterWr<'_>) -> Result<(), PostError> {
        let connection = self.connections.get_mut(qp.0).and_then(Option::as_mut).ok_or(PostError::Dropped)?;
        let posted = connection.post_recv(&mut self.shared, wr);
        self.any_ready |= connection.machine.has_wc();
        posted
    }

    /// Drives lanes that run inside this thread and what happens in the background, moves completions of all queue pairs
    /// to `out`, and returns how many there were.
    pub fn poll(&mut self, out: &mut [Wc]) -> usize {
        self.drive();
        self.completions(out)
    }

    /// The first half of [`Context::poll`]: drives lanes that run inside this thread. The second half must follow.
    /// Returns how many packets were received or sent, about: 0 if there was nothing to do.
    pub fn drive(&mut self) -> usize {
        self.polls = self.polls.wrapping_add(1);
        let in_turn = self.polls.is_multiple_of(POLLS_PER_QUIET);
        let mut work = 0;
        for side in &mut self.shared.nics {
            side.driven = !side.lost && (in_turn || !side.quiet);
            if side.driven && side.inline {
                work += side.context.poll();
            }
        }
        if self.polls.is_multiple_of(POLLS_PER_LOOK) {
            for nic in Nic::ALL {
                self.watch_links(nic);
            }
            self.work_in_background(process_time());
        }
        work
    }

    /// The second half of [`Context::poll`]: moves completions of all queue pairs to `out`, and returns how many there were.
    pub fn completions(&mut self, out: &mut [Wc]) -> usize {
        let mut count = self.poll_ready(out);
        // They take turns, so that one that fills `out` does not keep the other one waiting.
        let first = if self.polls.is_multiple_of(2) { Nic::Default } else { Nic::Backup };
        for nic in [first, first.other()] {
            count += self.poll_nic(nic, out.get_mut(count..).unwrap_or_default());
        }
        count += self.poll_ready(out.get_mut(count..).unwrap_or_default());
        if count == 0 {
            self.work_in_background(process_time());
        }
        count
    }

    fn poll_nic(&mut self, nic: Nic, out: &mut [Wc]) -> usize {
        if !self.shared.nics.get(nic as usize).is_some_and(|side| side.driven) {
            return 0;
        }
        let mut count = 0;
        while count < out.len() {
            let room = BATCH.min(out.len() - count);
            let Some(side) = self.shared.nics.get_mut(nic as usize) else { break };
            let polled = match side.cq.poll(self.batch.get_mut(..room).unwrap_or_default()) {
                Ok(polled) => polled,
                Err(reason) => {
                    self.lose(nic, reason);
                    break;
                }
            };
            for at in 0..polled {
                if let Some(wc) = self.batch.get(at).copied()
                    && let Some(wc) = self.dispatch(nic, wc)
                    && let Some(slot) = out.get_mut(count)
                {
                    *slot = wc;
                    count += 1;
                }
            }
            if polled < room {
                break;
            }
        }
        count
    }

    /// Passes a completion of a NIC to the queue pair that it belongs to.
    #[inline]
    fn dispatch(&mut self, nic: Nic, wc: Wc) -> Option<Wc> {
        let (at, pair) = self.shared.owner(nic, wc.qpn.get())?;
        let connection = self.connections.get_mut(at)?.as_mut()?;
        let done = connection.on_wc(&mut self.shared, pair, wc);
        self.any_ready |= connection.machine.has_wc();
        done
    }

    /// A NIC of this side does no more work, and its completions have been polled.
    fn lose(&mut self, nic: Nic, reason: CqError) {
        if let Some(side) = self.shared.nics.get_mut(nic as usize) {
            (side.lost, side.driven) = (true, false);
        }
        self.shared.report(Event::NicLost { nic, reason });
        for connection in self.connections.iter_mut().flatten() {
            connection.lose(&mut self.shared, nic);
        }
        self.any_ready = true;
    }

    /// Completions that came of something else than a completion.
    fn poll_ready(&mut self, out: &mut [Wc]) -> usize {
        if !self.any_ready {
            return 0;
        }
        let mut count = 0;
        for connection in self.connections.iter_mut().flatten() {
            while let Some(slot) = out.get_mut(count)
                && let Some(wc) = connection.machine.next_wc()
            {
                *slot = wc;
                count += 1;
            }
        }
        self.any_ready = self.connections.iter().flatten().any(|connection| connection.machine.has_wc());
        count
    }

    fn work_in_background(&mut self, now: Time) {
        if now < self.due {
            return;
        }
        self.due = now.after(ROUND_NS);
        self.publish();
        for connection in self.connections.iter_mut().flatten() {
            connection.prepare(&mut self.shared, now);
            connection.on_time(&mut self.shared, now);
            self.any_ready |= connection.machine.has_wc();
        }
        for (side, nic) in self.shared.nics.iter_mut().zip(Nic::ALL) {
            side.quiet = !self.connections.iter().flatten().any(|connection| connection.machine.uses(nic));
        }
    }

    /// Takes the events of a NIC. Queue pairs leave it while it has no links, and the other one has.
    fn watch_links(&mut self, nic: Nic) {
        while let Some(side) = self.shared.nics.get_mut(nic as usize)
            && let Some(event) = side.context.poll_async_event()
        {
            let (lane, plane, up) = match event {
                AsyncEvent::PortDown { lane, plane } => (lane, plane, false),
                AsyncEvent::PortUp { lane, plane } => (lane, plane, true),
                event => {
                    self.shared.report(Event::Nic { nic, event });
                    continue;
                }
            };
            let had_links = !side.is_down();
            if up {
                side.down.remove(&(lane, plane));
            } else {
                side.down.insert((lane, plane));
            }
            let has_links = !side.is_down();
            self.shared.report(Event::Link { nic, lane, plane, up });
            if has_links && !had_links {
                self.connections
                    .iter_mut()
                    .flatten()
                    .for_each(|connection| connection.machine.on_link_up(nic));
            }
        }
        let is_down = |nic: Nic| self.shared.nics.get(nic as usize).is_some_and(NicSide::is_down);
        if self.config.leave_on_link_down && is_down(nic) && !is_down(nic.other()) {
            for connection in self.connections.iter_mut().flatten() {
                connection.on_link_down(&mut self.shared, nic);
                self.any_ready |= connection.machine.has_wc();
            }
        }
    }

    /// Moves the sends of a queue pair to a NIC without an error, and returns to it after failures: for maintenance, or
    /// because a NIC slows the job (SHIFT paper, section 4.4).
    ///
    /// # Errors
    /// [`VerbsError::NoSuchQp`].
    pub fn prefer(&mut self, qp: QpId, nic: Nic) -> Result<(), VerbsError> {
        self.connection_mut(qp)?.0.machine.prefer(nic);
        Ok(())
    }

    /// The NIC that takes its sends while that works: the last one of [`Context::prefer`], the default NIC otherwise.
    ///
    /// # Errors
    /// [`VerbsError::NoSuchQp`].
    pub fn preferred(&self, qp: QpId) -> Result<Nic, VerbsError> {
        Ok(self.connection(qp)?.machine.preferred())
    }

    /// The states of its halves.
    ///
    /// # Errors
    /// [`VerbsError::NoSuchQp`].
    pub fn state(&self, qp: QpId) -> Result<(SendState, ReceiveState), VerbsError> {
        let machine = &self.connection(qp)?.machine;
        Ok((machine.send_state(), machine.receive_state()))
    }

    /// Why it failed, if it did.
    ///
    /// # Errors
    /// [`VerbsError::NoSuchQp`].
    pub fn failure(&self, qp: QpId) -> Result<Option<FallbackError>, VerbsError> {
        Ok(self.connection(qp)?.machine.failure().copied())
    }

    /// Whether a pair is prepared on this NIC, so that the queue pair survives the failure of the other one.
    ///
    /// # Errors
    /// [`VerbsError::NoSuchQp`].
    pub fn is_prepared(&self, qp: QpId, nic: Nic) -> Result<bool, VerbsError> {
        Ok(self.connection(qp)?.machine.has_spare(nic))
    }

    /// The NIC and the number of the queue pair there that takes its sends.
    ///
    /// # Errors
    /// [`VerbsError::NoSuchQp`].
    pub fn pair(&self, qp: QpId) -> Result<(Nic, Qpn), VerbsError> {
        self.connection(qp)?.pair().ok_or(VerbsError::NoSuchQp)
    }

    /// Send work requests that have not completed.
    ///
    /// # Errors
    /// [`VerbsError::NoSuchQp`].
    pub fn sends_outstanding(&self, qp: QpId) -> Result<usize, VerbsError> {
        Ok(self.connection(qp)?.machine.sends_outstanding())
    }

    /// The context of a NIC: for its counters, ports and paths.
    pub fn nic(&self, nic: Nic) -> &NicContext {
        let [default, backup] = &self.shared.nics;
        let side = if nic == Nic::Default { default } else { backup };
        &side.context
    }

    /// What it has done.
    ///
    /// # Errors
    /// [`VerbsError::NoSuchQp`].
    pub fn counters(&self, qp: QpId) -> Result<Counters, VerbsError> {
        Ok(self.connection(qp)?.machine.counters())
    }

    /// The oldest event that was not polled yet.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.shared.events.pop_front()
    }

    fn connection(&self, qp: QpId) -> Result<&Connection, VerbsError> {
        self.connections.get(qp.0).and_then(Option::as_ref).ok_or(VerbsError::NoSuchQp)
    }

    fn connection_mut(&mut self, qp: QpId) -> Result<(&mut Connection, &mut Shared), VerbsError> {
        let connection = self.connections.get_mut(qp.0).and_then(Option::as_mut);
        Ok((connection.ok_or(VerbsError::NoSuchQp)?, &mut self.shared))
    }
}
