//! One queue pair of a context: its machine, its pairs on both NICs, and how new pairs are prepared.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::config::FallbackConfig;
use super::context::{QpId, Shared};
use super::event::Event;
use super::machine::{EXTRA_RECEIVES, EXTRA_SENDS, Machine};
use super::store::{PairRecord, Record, StoreError, StoreKey};
use super::verbs::{Cause, Nic, PairId, RemoteKey, Verbs};
use crate::endpoint::{Extensions, FailReason, QpCap, QpInfo, RtsAttr};
use crate::time::Time;
use crate::verbs::negotiate::Refusal;
use crate::verbs::{PostError, Qp, QpConfig, QpModify, VerbsError};
use crate::wire::Qpn;
use crate::work::{GatherWr, ScatterWr, SendWr, Wc};

/// Looks of the store's interval between two checks whether the peer has ended a pair that is connected.
const LOOKS_PER_CHECK: u64 = 10;

/// The extensions that both sides need.
fn needed() -> Extensions {
    Extensions::EMPTY_MESSAGES | Extensions::RNR
}

/// How a pair on one NIC comes about.
#[derive(Debug, Default)]
struct Preparation {
    /// The newest pair, and whether it is connected.
    pair: Option<(PairId, bool)>,
    /// How to connect to it.
    info: Option<QpInfo>,
    /// The generation and the oldest pair of the record that the store has.
    published: Option<(u32, u32)>,
    /// The generation of this side's newest pair.
    newest: Option<u32>,
    /// The generation of the peer's newest pair, as far as it is known.
    peers: u32,
    /// The peer's generation that this side could not connect to.
    refused: Option<u32>,
    /// When to look for the peer's record.
    due: Time,
}

/// The first address and the number of a queue pair.
type Name = (IpAddr, u32);

/// One queue pair of a context.
#[derive(Debug)]
pub(super) struct Connection {
    at: usize,
    pub(super) machine: Machine,
    pairs: Pairs,
    /// By NIC.
    configs: [QpConfig; 2],
    /// Those of the first pair on this side and on the peer's, once it is connected.
    names: Option<(Name, Name)>,
    preparations: [Preparation; 2],
    /// What events have told: the pair that takes sends, and the failure.
    told: (PairId, bool),
}

/// The pairs of a connection that exist.
#[derive(Debug)]
struct Pairs {
    all: Vec<(PairId, Qp)>,
    /// The extensions that both sides have.
    agreed: Extensions,
    /// The peer's remote keys on its backup NIC, by those of its default NIC.
    remote_keys: BTreeMap<u32, u32>,
    /// The name of the peer's context, once it is known.
    peer_home: Option<String>,
}

impl Pairs {
    #[inline]
    fn get(&mut self, id: PairId) -> Option<&mut Qp> {
        self.all.iter_mut().find(|(pair, _)| *pair == id).map(|(_, qp)| qp)
    }
}

/// The pairs of a connection, and what it shares with others: the verbs of its machine.
struct Hands<'a> {
    pairs: &'a mut Pairs,
    shared: &'a mut Shared,
}

impl Verbs for Hands<'_> {
    fn check(&self, wr: &GatherWr<'_>) -> Result<(), PostError> {
        let len = u32::try_from(wr.len()).map_err(|_| PostError::TooLong { len: wr.len() })?;
        let needed = Extensions::of(wr.op);
        if wr.op.is_atomic() && len != 8 {
            return Err(PostError::AtomicLength { len });
        }
        // All pairs have the same extensions.
        if self.pairs.agreed.contains(needed) { Ok(()) } else { Err(PostError::NotNegotiated { needed }) }
    }

    #[inline]
    fn post_send(&mut self, pair: PairId, wr: SendWr) -> Result<(), PostError> {
        self.shared.wake(pair.nic);
        self.pairs.get(pair).ok_or(PostError::Dropped)?.post_send(wr)
    }

    fn post_gather(&mut self, pair: PairId, wr: GatherWr<'_>) -> Result<(), PostError> {
        self.shared.wake(pair.nic);
        self.pairs.get(pair).ok_or(PostError::Dropped)?.post_gather(wr)
    }

    #[inline]
    fn post_recv(&mut self, pair: PairId, wr: ScatterWr<'_>) -> Result<(), PostError> {
        self.pairs.get(pair).ok_or(PostError::Dropped)?.post_scatter(wr)
    }

    fn fail(&mut self, pair: PairId) {
        if let Some(qp) = self.pairs.get(pair) {
            // It fails only if the lane has failed, and then the pair is in ERROR.
            let _ = qp.modify(QpModify::Error);
        }
    }

    fn destroy(&mut self, pair: PairId) {
        if let Some(at) = self.pairs.all.iter().position(|(id, _)| *id == pair) {
            let (_, qp) = self.pairs.all.swap_remove(at);
            self.shared.disown(qp.qpn(), pair.nic);
        }
    }

    fn cause(&self, pair: PairId) -> Cause {
        let qp = self.pairs.all.iter().find(|(id, _)| *id == pair);
        match qp.and_then(|(_, qp)| qp.state().1) {
            None | Some(FailReason::RetryExceeded | FailReason::LaneFailed) => Cause::Network,
            Some(_) => Cause::Application,
        }
    }

    fn local_key(&self, nic: Nic, lkey: u32) -> Option<u32> {
        match nic {
            Nic::Default => Some(lkey),
            Nic::Backup => self.shared.local_keys.get(&lkey).copied(),
        }
    }

    fn remote_key(&mut self, nic: Nic, rkey: u32) -> RemoteKey {
        if nic == Nic::Default {
            return RemoteKey::Known(rkey);
        }
        if let Some(known) = self.pairs.remote_keys.get(&rkey) {
            return RemoteKey::Known(*known);
        }
        let Some(home) = self.pairs.peer_home.clone() else { return RemoteKey::Pending };
        match self.shared.get(&StoreKey::Region { home, rkey }) {
            Ok(Some(Record::Region(backup))) => {
                self.pairs.remote_keys.insert(rkey, backup);
                RemoteKey::Known(backup)
            }
            Ok(_) => RemoteKey::Pending,
            Err(_) => RemoteKey::Unreachable,
        }
    }
}

impl Connection {
    /// A queue pair that consists of a pair on the default NIC. The second one of `configs` gives the paths and the
    /// congestion control of pairs on the backup NIC.
    pub(super) fn new(
        at: usize,
        [config, backup]: [&QpConfig; 2],
        settings: &FallbackConfig,
        shared: &mut Shared,
    ) -> Result<Self, VerbsError> {
        let config = QpConfig {
            max_send_wr: config.max_send_wr.saturating_add(EXTRA_SENDS),
            max_recv_wr: config.max_recv_wr.saturating_add(EXTRA_RECEIVES),
            extensions: config.extensions & !Extensions::INVALIDATE,
            retry: RtsAttr { rnr_retry: RtsAttr::MAX_RNR, ..config.retry },
            ..config.clone()
        };
        let cap = QpCap {
            max_send_wr: config.max_send_wr - EXTRA_SENDS,
            max_recv_wr: config.max_recv_wr - EXTRA_RECEIVES,
            max_send_sge: config.max_send_sge,
            max_recv_sge: config.max_recv_sge,
        };
        let backup = QpConfig { path: backup.path.clone(), cc: backup.cc.clone(), ..config.clone() };
        let qp = create(&config, Nic::Default, shared)?;
        shared.own(qp.qpn(), at, PairId::FIRST);
        let newest = Some(PairId::FIRST.generation);
        Ok(Self {
            at,
            machine: Machine::new(settings.clone(), cap, qp.qpn()),
            pairs: Pairs {
                all: vec![(PairId::FIRST, qp)],
                agreed: Extensions::NONE,
                remote_keys: BTreeMap::new(),
                peer_home: None,
            },
            configs: [config, backup],
            names: None,
            preparations: [Preparation { newest, ..Preparation::default() }, Preparation::default()],
            told: (PairId::FIRST, false),
        })
    }

    #[inline]
    const fn sig_all(&self) -> bool {
        self.configs[0].sig_all
    }

    fn first(&mut self) -> Result<&mut Qp, VerbsError> {
        // Control calls are made before a switch.
        self.pairs.get(PairId::FIRST).ok_or(VerbsError::NoSuchQp)
    }

    pub(super) fn info(&self) -> Result<QpInfo, VerbsError> {
        let first = self.pairs.all.iter().find(|(id, _)| *id == PairId::FIRST);
        first.ok_or(VerbsError::NoSuchQp)?.1.info()
    }

    /// Where sends go.
    pub(super) fn pair(&self) -> Option<(Nic, Qpn)> {
        let (tx, _) = self.machine.pairs_in_use();
        self.pairs.all.iter().find(|(id, _)| *id == tx).map(|(_, qp)| (tx.nic, qp.qpn()))
    }

    pub(super) fn init(&mut self) -> Result<(), VerbsError> {
        self.first()?.init()
    }

    pub(super) fn connect(&mut self, peer: &QpInfo) -> Result<(), VerbsError> {
        let own = self.info()?;
        let agreed = own.extensions & peer.extensions;
        if !agreed.contains(needed()) {
            let fix = "use fallback in mode `shift` on both sides, with these extensions";
            return Err(Refusal::new("extensions", needed(), peer.extensions, fix).into());
        }
        self.first()?.connect(peer)?;
        self.pairs.agreed = agreed;
        self.machine.connected(Qpn::new(peer.qpn));
        let name = |info: &QpInfo| info.ports.first().map(|port| (port.ip, info.qpn));
        self.names = name(&own).zip(name(peer));
        Ok(())
    }

    /// Calls the machine.
    #[inline]
    fn with<R>(&mut self, shared: &mut Shared, act: impl FnOnce(&mut Machine, &mut Hands<'_>) -> R) -> R {
        let mut hands = Hands { pairs: &mut self.pairs, shared };
        act(&mut self.machine, &mut hands)
    }

    #[inline]
    pub(super) fn post_send(&mut self, shared: &mut Shared, wr: SendWr) -> Result<(), PostError> {
        let wr = SendWr { signaled: wr.signaled || self.sig_all(), ..wr };
        self.with(shared, |machine, hands| machine.post_send(hands, wr, false))
    }

    pub(super) fn post_gather(
        &mut self,
        shared: &mut Shared,
        wr: GatherWr<'_>,
        once: bool,
    ) -> Result<(), PostError> {
        let wr = GatherWr { signaled: wr.signaled || self.sig_all(), ..wr };
        self.with(shared, |machine, hands| machine.post_gather(hands, wr, once))
    }

    pub(super) fn post_recv(&mut self, shared: &mut Shared, wr: ScatterWr<'_>) -> Result<(), PostError> {
        self.with(shared, |machine, hands| machine.post_recv(hands, wr))
    }

    #[inline]
    pub(super) fn on_wc(&mut self, shared: &mut Shared, pair: PairId, wc: Wc) -> Option<Wc> {
        let done = self.with(shared, |machine, hands| machine.on_wc(hands, pair, wc));
        self.tell(shared);
        done
    }

    pub(super) fn on_time(&mut self, shared: &mut Shared, now: Time) {
        self.with(shared, |machine, hands| machine.on_time(hands, now));
        self.tell(shared);
    }

    /// All links of a NIC of this side are down.
    pub(super) fn on_link_down(&mut self, shared: &mut Shared, nic: Nic) {
        self.with(shared, |machine, hands| machine.on_link_down(hands, nic));
        self.tell(shared);
    }

    /// A NIC of this side is gone.
    pub(super) fn lose(&mut self, shared: &mut Shared, nic: Nic) {
        while let Some(id) = self.pairs.all.iter().map(|(id, _)| *id).find(|id| id.nic == nic) {
            self.with(shared, |machine, hands| {
                machine.on_lost(hands, id);
                // The machine ends every pair that it knows.
                hands.destroy(id);
            });
        }
        self.tell(shared);
    }

    /// Reports what has changed.
    #[inline]
    fn tell(&mut self, shared: &mut Shared) {
        let (tx, _) = self.machine.pairs_in_use();
        if self.told != (tx, self.machine.failure().is_some()) {
            self.tell_changes(shared, tx);
        }
    }

    #[cold]
    fn tell_changes(&mut self, shared: &mut Shared, tx: PairId) {
        let qp = QpId::new(self.at);
        if self.told.0 != tx {
            shared.report(Event::Switched { qp, pair: tx });
        }
        if let Some(error) = self.machine.failure().filter(|_| !self.told.1) {
            shared.report(Event::Failed { qp, error: *error });
        }
        self.told = (tx, self.machine.failure().is_some());
    }

    /// Makes pairs that the machine wants, and connects those that the peer has made too (the shadow verbs of the SHIFT
    /// paper, section 4.2). Each step that is not possible yet is tried again later, and none waits for another, so there
    /// is no deadlock by order (appendix B).
    pub(super) fn prepare(&mut self, shared: &mut Shared, now: Time) {
        let Some((own, peer)) = self.names else { return };
        for nic in Nic::ALL {
            if self.machine.wants(nic) {
                self.make(shared, nic);
            }
            // It is tried again in the next round.
            if self.publish(shared, nic, own).is_ok() {
                self.look(shared, now, nic, peer);
            }
        }
    }

    fn make(&mut self, shared: &mut Shared, nic: Nic) {
        // Without its NIC there is no pair, and the machine waits until it gives up.
        let [default, backup] = &self.configs;
        let config = if nic == Nic::Default { default } else { backup };
        let Ok(mut qp) = create(config, nic, shared) else { return };
        let (Ok(()), Ok(info)) = (qp.init(), qp.info()) else { return };
        let Some(preparation) = self.preparations.get_mut(nic as usize) else { return };
        let generation = preparation.newest.map_or(0, |newest| newest + 1);
        let generation = generation.max(preparation.peers);
        let id = PairId { nic, generation };
        preparation.newest = Some(generation);
        preparation.pair = Some((id, false));
        preparation.info = Some(info);
        preparation.due = Time::ZERO;
        shared.own(qp.qpn(), self.at, id);
        self.pairs.all.push((id, qp));
        self.with(shared, |machine, hands| machine.created(hands, id));
    }

    /// Publishes this side's newest pair on a NIC, and which have ended, as far as that has changed.
    fn publish(&mut self, shared: &mut Shared, nic: Nic, own: Name) -> Result<(), StoreError> {
        let Some(preparation) = self.preparations.get_mut(nic as usize) else { return Ok(()) };
        let (Some(generation), Some(info)) = (preparation.newest, &preparation.info) else { return Ok(()) };
        let oldest = self.machine.oldest(nic).unwrap_or(generation + 1);
        if preparation.published == Some((generation, oldest)) {
            return Ok(());
        }
        let (home, info) = (shared.home.clone(), info.clone());
        let record = Record::Pair(Box::new(PairRecord { generation, oldest, home, info }));
        let (address, qpn) = own;
        shared.put(&StoreKey::Pair { address, qpn, nic }, &record)?;
        preparation.published = Some((generation, oldest));
        Ok(())
    }

    /// Looks for the peer's newest pair on a NIC.
    fn look(&mut self, shared: &mut Shared, now: Time, nic: Nic, peer: Name) {
        let Some(preparation) = self.preparations.get_mut(nic as usize) else { return };
        let Some((id, connected)) = preparation.pair.filter(|_| now >= preparation.due) else { return };
        if !self.machine.is_unused(id) {
            preparation.pair = None;
            return;
        }
        let interval = shared.store.interval_ns();
        preparation.due = now.after(if connected { interval * LOOKS_PER_CHECK } else { interval });
        let (address, qpn) = peer;
        let Ok(Some(Record::Pair(theirs))) = shared.get(&StoreKey::Pair { address, qpn, nic }) else {
            return;
        };
        preparation.peers = preparation.peers.max(theirs.generation);
        self.pairs.peer_home.get_or_insert_with(|| theirs.home.clone());
        // A newer pair alone does not mean that this one has ended: the peer may have begun to use it.
        if id.generation < theirs.oldest || !connected && id.generation < theirs.generation {
            preparation.pair = None;
            self.with(shared, |machine, hands| machine.on_stale(hands, id));
        } else if id.generation == theirs.generation && !connected {
            self.join(shared, id, &theirs);
        }
    }

    /// Connects a pair to the peer's.
    fn join(&mut self, shared: &mut Shared, id: PairId, theirs: &PairRecord) {
        let Some(preparation) = self.preparations.get_mut(id.nic as usize) else { return };
        let agreed = self.pairs.agreed;
        let Some(qp) = self.pairs.get(id) else { return };
        if let Err(error) = join_pair(qp, agreed, &theirs.info) {
            if preparation.refused.replace(id.generation) != Some(id.generation) {
                shared.report(Event::PeerRefused { qp: QpId::new(self.at), reason: error.to_string() });
            }
            return;
        }
        preparation.pair = Some((id, true));
        shared.report(Event::Prepared { qp: QpId::new(self.at), pair: id });
        self.with(shared, |machine, hands| machine.prepared(hands, id));
        self.tell(shared);
    }
}

/// Connects a pair, if it can carry all that the first one can.
fn join_pair(qp: &mut Qp, agreed: Extensions, peer: &QpInfo) -> Result<(), VerbsError> {
    if !(qp.info()?.extensions & peer.extensions).contains(agreed) {
        let fix = "let both NICs have the same extensions";
        return Err(Refusal::new("extensions", agreed, peer.extensions, fix).into());
    }
    qp.connect(peer)
}

/// A pair on one NIC.
fn create(config: &QpConfig, nic: Nic, shared: &Shared) -> Result<Qp, VerbsError> {
    let [default, backup] = &shared.nics;
    let side = if nic == Nic::Default { default } else { backup };
    Qp::create(&side.pd, &side.cq, &side.cq, config)
}
