//! One side of the connection: its machine, and the verbs of its two NICs, which are endpoints of the network.

use std::collections::BTreeMap;
use std::sync::Arc;

use spindrift::endpoint::{CqId, Event, Extensions, FailReason, QpCap, QpInfo, QpInit, QpModify, RtrAttr};
use spindrift::fallback::{
    Cause, EXTRA_RECEIVES, EXTRA_SENDS, Machine, MakePairs, Nic, PairId, Preparation, Record, RemoteKey,
    StoreError, StoreKey, Verbs,
};
use spindrift::memory::{Access, PdId, Region};
use spindrift::path::PathConfig;
use spindrift::time::Time;
use spindrift::verbs::PostError;
use spindrift::wire::Qpn;
use spindrift::work::{GatherWr, RecvWr, ScatterWr, SendWr, Wc};

use crate::plan::{Plan, SidePlan};
use crate::support::ledger::Memory;
use crate::support::net::Net;
use crate::support::pair::{End, Patience, bring_up, create};
use crate::support::rand::Rng;

/// Extensions of a connection with fallback.
fn extensions() -> Extensions {
    Extensions::ALL & !Extensions::INVALIDATE
}

/// The key-value store, and which side can reach it.
#[derive(Default)]
pub(crate) struct Store {
    records: BTreeMap<StoreKey, Record>,
    pub(crate) down: [bool; 2],
}

/// The NICs of a side.
pub(crate) struct Nics {
    side: usize,
    /// By NIC, as what follows.
    pub(crate) nodes: [usize; 2],
    pub(crate) planes: [u8; 2],
    pds: [PdId; 2],
    pub(crate) gone: [bool; 2],
    pub(crate) down: [bool; 2],
    cap: QpCap,
    mtu: u32,
    patience: Patience,
    interval_ns: u64,
    pub(crate) pairs: Vec<(PairId, Qpn)>,
    local_keys: BTreeMap<u32, u32>,
    /// Whose keys the store does not have yet.
    unpublished: Vec<(u32, u32)>,
    remote_keys: BTreeMap<u32, u32>,
    peer_home: Option<String>,
    /// Pairs that were put into ERROR.
    failed: Vec<PairId>,
}

/// A side's NICs, with what it shares with the other side.
pub(crate) struct Hands<'a> {
    pub(crate) net: &'a mut Net,
    pub(crate) store: &'a mut Store,
    nics: &'a mut Nics,
}

impl Nics {
    fn init(&self, nic: Nic) -> QpInit {
        let planes = self.planes[nic as usize];
        let mut init = QpInit::new(self.pds[nic as usize], CqId(0), CqId(1));
        init.cap = self.cap;
        init.max_mtu = self.mtu;
        init.extensions = extensions();
        init.path = PathConfig { active: 16, backup: 8, min_active: 4, ..PathConfig::new(planes) };
        init
    }

    fn end(&self, id: PairId) -> Option<End> {
        let (_, qpn) = self.pairs.iter().find(|(pair, _)| *pair == id)?;
        (!self.gone[id.nic as usize]).then_some(End { node: self.nodes[id.nic as usize], qpn: *qpn })
    }

    fn home(&self) -> String {
        format!("side {}", self.side)
    }
}

impl Hands<'_> {
    fn posted(&mut self, pair: PairId, post: impl FnOnce(&mut Net, End)) -> Result<(), PostError> {
        let Some(end) = self.nics.end(pair) else { return Err(PostError::LaneFailed) };
        post(self.net, end);
        self.net.pump(end.node);
        Ok(())
    }

    fn reachable(&self) -> Result<(), StoreError> {
        if self.store.down[self.nics.side] { Err(StoreError("down".to_owned())) } else { Ok(()) }
    }

    fn lookup(&self, key: &StoreKey) -> Result<Option<Record>, StoreError> {
        self.reachable()?;
        Ok(self.store.records.get(key).cloned())
    }

    fn insert(&mut self, key: StoreKey, record: Record) -> Result<(), StoreError> {
        self.reachable()?;
        self.store.records.insert(key, record);
        Ok(())
    }
}

impl Verbs for Hands<'_> {
    fn check(&self, _: &GatherWr<'_>) -> Result<(), PostError> {
        Ok(())
    }

    fn post_send(&mut self, pair: PairId, wr: SendWr) -> Result<(), PostError> {
        self.posted(pair, |net, end| {
            let now = net.now;
            net.endpoint(end.node).post_send(now, end.qpn, wr).expect("room for a request");
        })
    }

    fn post_gather(&mut self, pair: PairId, wr: GatherWr<'_>) -> Result<(), PostError> {
        self.posted(pair, |net, end| {
            let now = net.now;
            net.endpoint(end.node).post_gather(now, end.qpn, wr).expect("room for a request");
        })
    }

    fn post_recv(&mut self, pair: PairId, wr: ScatterWr<'_>) -> Result<(), PostError> {
        self.posted(pair, |net, end| {
            let endpoint = net.endpoint(end.node);
            match *wr.local {
                [] => endpoint.post_recv(end.qpn, RecvWr::empty(wr.wr_id)),
                _ => endpoint.post_scatter(end.qpn, wr),
            }
            .expect("room for a receive");
        })
    }

    fn fail(&mut self, pair: PairId) {
        self.nics.failed.push(pair);
        if let Some(end) = self.nics.end(pair) {
            let now = self.net.now;
            self.net.endpoint(end.node).modify_qp(now, end.qpn, QpModify::Error).expect("ERROR");
            self.net.pump(end.node);
        }
    }

    fn destroy(&mut self, pair: PairId) {
        assert!(self.nics.failed.contains(&pair), "{pair} was not put into ERROR");
        if let Some(end) = self.nics.end(pair) {
            let endpoint = self.net.endpoint(end.node);
            let status = endpoint.qp_status(end.qpn).expect("a pair that exists");
            assert_eq!(status.send_outstanding, 0, "{pair} has requests");
            endpoint.destroy_qp(end.qpn).expect("a pair that exists");
            let left = |event: &Event| matches!(event, Event::Completion { wc, .. } if wc.qpn == end.qpn);
            let left = self.net.nodes[end.node].events.iter().find(|event| left(event));
            assert_eq!(left, None, "{pair} has completions that nobody has seen");
        }
        self.nics.pairs.retain(|(id, _)| *id != pair);
    }

    fn cause(&self, pair: PairId) -> Cause {
        let end = self.nics.end(pair);
        let failure = end.and_then(|end| self.net.nodes[end.node].endpoint.qp_failure(end.qpn));
        match failure.map(|failure| failure.reason) {
            None | Some(FailReason::RetryExceeded) => Cause::Network,
            Some(_) => Cause::Application,
        }
    }

    fn local_key(&self, nic: Nic, lkey: u32) -> Option<u32> {
        if nic == Nic::Default { Some(lkey) } else { self.nics.local_keys.get(&lkey).copied() }
    }

    fn remote_key(&mut self, nic: Nic, rkey: u32) -> RemoteKey {
        assert_eq!(nic, Nic::Backup, "keys of the default NIC are the application's");
        if let Some(known) = self.nics.remote_keys.get(&rkey) {
            return RemoteKey::Known(*known);
        }
        let Some(home) = self.nics.peer_home.clone() else { return RemoteKey::Pending };
        match self.lookup(&StoreKey::Region { home, rkey }) {
            Ok(Some(Record::Region(backup))) => {
                self.nics.remote_keys.insert(rkey, backup);
                RemoteKey::Known(backup)
            }
            Ok(_) => RemoteKey::Pending,
            Err(_) => RemoteKey::Unreachable,
        }
    }
}

impl MakePairs for Hands<'_> {
    fn make(&mut self, id: PairId) -> Option<QpInfo> {
        let nic = id.nic as usize;
        if self.nics.gone[nic] {
            return None;
        }
        let init = self.nics.init(id.nic);
        let end = create(self.net, self.nics.nodes[nic], init);
        let now = self.net.now;
        self.net.endpoint(end.node).modify_qp(now, end.qpn, QpModify::Init).expect("INIT");
        self.nics.pairs.push((id, end.qpn));
        self.net.endpoint(end.node).qp_info(end.qpn)
    }

    fn join(&mut self, id: PairId, peer: &QpInfo) -> Result<(), String> {
        let Some(end) = self.nics.end(id) else { return Err("the NIC is gone".to_owned()) };
        let now = self.net.now;
        let rts = crate::support::pair::rts_attr(peer, self.nics.patience);
        let endpoint = self.net.endpoint(end.node);
        let ours = endpoint.qp_info(end.qpn).expect("a pair that exists");
        let rtr = RtrAttr::between(&ours, peer);
        endpoint.modify_qp(now, end.qpn, QpModify::Rtr(Box::new(rtr))).map_err(|error| error.to_string())?;
        endpoint.modify_qp(now, end.qpn, QpModify::Rts(rts)).map_err(|error| error.to_string())?;
        self.net.pump(end.node);
        Ok(())
    }

    fn home(&self) -> String {
        self.nics.home()
    }

    fn set_peer_home(&mut self, home: &str) {
        self.nics.peer_home.get_or_insert_with(|| home.to_owned());
    }

    fn interval_ns(&self) -> u64 {
        self.nics.interval_ns
    }

    fn put(&mut self, key: &StoreKey, record: &Record) -> Result<(), StoreError> {
        self.insert(key.clone(), record.clone())
    }

    fn get(&mut self, key: &StoreKey) -> Result<Option<Record>, StoreError> {
        self.lookup(key)
    }

    fn on_refused(&mut self, reason: String) {
        panic!("a pair cannot be connected: {reason}");
    }
}

/// See the [module documentation](self).
pub(crate) struct Side {
    pub(crate) machine: Machine,
    preparation: Preparation,
    pub(crate) nics: Nics,
    pub(crate) first: End,
    round_ns: u64,
    poll_ns: u64,
    /// When the next round of work in the background is.
    pub(crate) round_at: Time,
    /// When completions are polled.
    pub(crate) poll_at: Time,
    rng: Rng,
    /// Completions for the application.
    pub(crate) done: Vec<Wc>,
}

impl Side {
    /// A side whose first pair is in RESET.
    pub(crate) fn new(plan: &Plan, number: usize, net: &mut Net, nodes: [usize; 2]) -> Self {
        let SidePlan { work, round_ns, poll_ns, .. } = plan.sides[number].clone();
        let cap = QpCap { max_send_wr: work.depth + 1, max_recv_wr: 512, max_send_sge: 16, max_recv_sge: 16 };
        let pds = nodes.map(|node| net.endpoint(node).alloc_pd());
        let of_pairs = QpCap {
            max_send_wr: cap.max_send_wr + EXTRA_SENDS,
            max_recv_wr: cap.max_recv_wr + EXTRA_RECEIVES,
            ..cap
        };
        let mut nics = Nics {
            side: number,
            nodes,
            planes: plan.planes,
            pds,
            gone: [false; 2],
            down: [false; 2],
            cap: of_pairs,
            mtu: plan.mtu,
            patience: plan.patience,
            interval_ns: plan.interval_ns,
            pairs: Vec::new(),
            local_keys: BTreeMap::new(),
            unpublished: Vec::new(),
            remote_keys: BTreeMap::new(),
            peer_home: None,
            failed: Vec::new(),
        };
        let first = create(net, nodes[0], nics.init(Nic::Default));
        nics.pairs.push((PairId::FIRST, first.qpn));
        Self {
            machine: Machine::new(plan.config.clone(), cap, first.qpn),
            preparation: Preparation::default(),
            nics,
            first,
            round_ns,
            poll_ns,
            round_at: Time(number as u64 * 7_000),
            poll_at: Time::NEVER,
            rng: Rng::new(plan.seed ^ (number as u64) << 40),
            done: Vec::new(),
        }
    }

    pub(crate) fn connect(&mut self, net: &mut Net, peer: &QpInfo) {
        let own = net.endpoint(self.first.node).qp_info(self.first.qpn).expect("info");
        bring_up(net, self.first, peer, self.nics.patience);
        self.machine.connected(Qpn::new(peer.qpn));
        self.preparation.connected(&own, peer);
    }

    /// Memory that is registered on both NICs.
    pub(crate) fn memory(&mut self, net: &mut Net, len: usize, rng: &mut Rng) -> Memory {
        let iova = if rng.one_in(4) { 0_u64.wrapping_sub(len as u64 + 1) } else { rng.bits() >> 8 & !7 };
        let region = Region::alloc_at(len, iova).unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let [key, backup] = [0, 1].map(|nic| {
            let endpoint = net.endpoint(self.nics.nodes[nic]);
            endpoint.register(self.nics.pds[nic], Arc::clone(&region), access).unwrap()
        });
        self.nics.local_keys.insert(key.lkey, backup.lkey);
        self.nics.unpublished.push((key.rkey, backup.rkey));
        Memory { region, key }
    }

    /// Calls the machine, and takes what it has for the application.
    pub(crate) fn with<R>(
        &mut self,
        net: &mut Net,
        store: &mut Store,
        act: impl FnOnce(&mut Machine, &mut Hands<'_>) -> R,
    ) -> R {
        let mut hands = Hands { net, store, nics: &mut self.nics };
        let result = act(&mut self.machine, &mut hands);
        self.done.extend(std::iter::from_fn(|| self.machine.next_wc()));
        result
    }

    /// Work in the background.
    pub(crate) fn round(&mut self, net: &mut Net, store: &mut Store) {
        let now = net.now;
        self.round_at = now.after(self.round_ns);
        let mut hands = Hands { net, store, nics: &mut self.nics };
        while let Some((rkey, backup)) = hands.nics.unpublished.last().copied() {
            let key = StoreKey::Region { home: hands.nics.home(), rkey };
            if hands.insert(key, Record::Region(backup)).is_err() {
                break;
            }
            hands.nics.unpublished.pop();
        }
        self.preparation.step(&mut self.machine, &mut hands, now);
        self.with(net, store, |machine, hands| machine.on_time(hands, now));
    }

    /// There may be completions: they are polled now or somewhat later.
    pub(crate) fn notice(&mut self, net: &Net) {
        let any = self.nics.nodes.iter().any(|node| !net.nodes[*node].events.is_empty());
        if any && self.poll_at == Time::NEVER {
            self.poll_at = net.now.after(self.rng.below(self.poll_ns + 1));
        }
    }

    /// Passes the completions of both NICs to the machine.
    pub(crate) fn poll(&mut self, net: &mut Net, store: &mut Store) {
        self.poll_at = Time::NEVER;
        for nic in Nic::ALL {
            let node = self.nics.nodes[nic as usize];
            let mut events = net.take_events(node).into_iter();
            while let Some(event) = events.next() {
                let Event::Completion { wc, .. } = event else { continue };
                let is_its = |(id, qpn): &&(PairId, Qpn)| id.nic == nic && *qpn == wc.qpn;
                let Some((id, _)) = self.nics.pairs.iter().find(is_its).copied() else { continue };
                // Those behind it are in the queue still.
                net.nodes[node].events.splice(0..0, events);
                let done = self.with_direct(net, store, id, wc);
                self.done.extend(done);
                events = net.take_events(node).into_iter();
            }
        }
    }

    fn with_direct(&mut self, net: &mut Net, store: &mut Store, id: PairId, wc: Wc) -> Option<Wc> {
        let mut hands = Hands { net, store, nics: &mut self.nics };
        let direct = self.machine.on_wc(&mut hands, id, wc);
        assert!(direct.is_none() || !self.machine.has_wc(), "a completion overtakes another");
        self.done.extend(std::iter::from_fn(|| self.machine.next_wc()));
        direct
    }

    /// A NIC is removed: its completions so far were polled, and no others come.
    pub(crate) fn lose(&mut self, net: &mut Net, store: &mut Store, nic: Nic) {
        if self.nics.gone[nic as usize] {
            return;
        }
        self.poll(net, store);
        self.nics.gone[nic as usize] = true;
        while let Some((id, _)) = self.nics.pairs.iter().find(|(id, _)| id.nic == nic).copied() {
            self.with(net, store, |machine, hands| machine.on_lost(hands, id));
            self.nics.pairs.retain(|(pair, _)| *pair != id);
        }
        net.take_events(self.nics.nodes[nic as usize]);
    }
}
