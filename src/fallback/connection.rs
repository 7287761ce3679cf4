//! One queue pair of a context: its machine, and its pairs on both NICs.

use std::collections::BTreeMap;

use super::config::FallbackConfig;
use super::context::{QpId, Shared};
use super::event::Event;
use super::machine::{EXTRA_RECEIVES, EXTRA_SENDS, Machine};
use super::preparation::{MakePairs, Preparation};
use super::store::{Record, StoreError, StoreKey};
use super::verbs::{Cause, Nic, PairId, RemoteKey, Verbs};
use crate::endpoint::{Extensions, FailReason, QpCap, QpInfo, RtsAttr};
use crate::time::Time;
use crate::verbs::negotiate::Refusal;
use crate::verbs::{PostError, Qp, QpConfig, QpModify, VerbsError};
use crate::wire::Qpn;
use crate::work::{GatherWr, ScatterWr, SendWr, Wc};

/// The extensions that both sides need.
fn needed() -> Extensions {
    Extensions::EMPTY_MESSAGES | Extensions::RNR
}

/// One queue pair of a context.
#[derive(Debug)]
pub(super) struct Connection {
    at: usize,
    pub(super) machine: Machine,
    pairs: Pairs,
    preparation: Preparation,
    /// What events have told: the pair that takes sends, and the failure.
    told: (PairId, bool),
}

/// The pairs of a connection that exist.
#[derive(Debug)]
struct Pairs {
    all: Vec<(PairId, Qp)>,
    /// Settings of those that are made, by NIC.
    configs: [QpConfig; 2],
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
    /// Which connection it is.
    at: usize,
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
        Ok(Self {
            at,
            machine: Machine::new(settings.clone(), cap, qp.qpn()),
            pairs: Pairs {
                all: vec![(PairId::FIRST, qp)],
                configs: [config, backup],
                agreed: Extensions::NONE,
                remote_keys: BTreeMap::new(),
                peer_home: None,
            },
            preparation: Preparation::default(),
            told: (PairId::FIRST, false),
        })
    }

    #[inline]
    const fn sig_all(&self) -> bool {
        self.pairs.configs[0].sig_all
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
        self.preparation.connected(&own, peer);
        Ok(())
    }

    /// Calls the machine.
    #[inline]
    fn with<R>(&mut self, shared: &mut Shared, act: impl FnOnce(&mut Machine, &mut Hands<'_>) -> R) -> R {
        let mut hands = Hands { at: self.at, pairs: &mut self.pairs, shared };
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

    /// Makes and connects pairs, as far as that is possible now.
    pub(super) fn prepare(&mut self, shared: &mut Shared, now: Time) {
        let mut hands = Hands { at: self.at, pairs: &mut self.pairs, shared };
        self.preparation.step(&mut self.machine, &mut hands, now);
        self.tell(shared);
    }
}

impl MakePairs for Hands<'_> {
    fn make(&mut self, id: PairId) -> Option<QpInfo> {
        // Without its NIC there is no pair, and the machine waits until it gives up.
        let [default, backup] = &self.pairs.configs;
        let config = if id.nic == Nic::Default { default } else { backup };
        let mut qp = create(config, id.nic, self.shared).ok()?;
        qp.init().ok()?;
        let info = qp.info().ok()?;
        self.shared.own(qp.qpn(), self.at, id);
        self.pairs.all.push((id, qp));
        Some(info)
    }

    fn join(&mut self, id: PairId, peer: &QpInfo) -> Result<(), String> {
        let agreed = self.pairs.agreed;
        let Some(qp) = self.pairs.get(id) else { return Err(PostError::Dropped.to_string()) };
        join_pair(qp, agreed, peer).map_err(|error| error.to_string())
    }

    fn home(&self) -> String {
        self.shared.home.clone()
    }

    fn set_peer_home(&mut self, home: &str) {
        self.pairs.peer_home.get_or_insert_with(|| home.to_owned());
    }

    fn interval_ns(&self) -> u64 {
        self.shared.store.interval_ns()
    }

    fn put(&mut self, key: &StoreKey, record: &Record) -> Result<(), StoreError> {
        self.shared.put(key, record)
    }

    fn get(&mut self, key: &StoreKey) -> Result<Option<Record>, StoreError> {
        self.shared.get(key)
    }

    fn on_prepared(&mut self, id: PairId) {
        self.shared.report(Event::Prepared { qp: QpId::new(self.at), pair: id });
    }

    fn on_refused(&mut self, reason: String) {
        self.shared.report(Event::PeerRefused { qp: QpId::new(self.at), reason });
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
