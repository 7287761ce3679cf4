//! Two sides with two NICs each, driven by one thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use spindrift::fallback::{self, FallbackConfig, MemoryStore, Nic, QpId, SendState};
use spindrift::path::{PathConfig, PlaneSet};
use spindrift::pmd::loopback::{self, LoopbackConfig, LoopbackPort};
use spindrift::pmd::{LinkState, Port, RxFrame, TxFrame, forward_to_inner};
use spindrift::verbs::negotiate::RemoteMr;
use spindrift::verbs::{
    self, Access, Context, ContextConfig, Cq, Pd, Qp, QpConfig, RtsAttr, SendOp, SendWr, Wc, nic,
};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(30);
const PLANES_OF_NIC: usize = 2;
/// Bytes of each side's memory.
pub const MEMORY: usize = 1 << 20;
/// Send work requests of a queue pair.
const DEPTH: u32 = 64;

/// How queue pairs survive a NIC.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// They do not: one NIC.
    None,
    Seamless,
    Shift,
}

impl Mode {
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "one NIC",
            Self::Seamless => "seamless",
            Self::Shift => "shift",
        }
    }
}

/// What is wrong with a NIC.
const CUT: u8 = 1;
const NO_LINK: u8 = 2;

/// A NIC of a side.
#[derive(Clone, Default)]
pub struct Switch(Arc<AtomicU8>);

impl Switch {
    /// Nothing arrives or leaves, and its links are down if `told`.
    pub fn fail(&self, told: bool) {
        self.0.store(if told { CUT | NO_LINK } else { CUT }, Ordering::Relaxed);
    }

    pub fn heal(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    fn has(&self, what: u8) -> bool {
        self.0.load(Ordering::Relaxed) & what != 0
    }
}

struct Switched {
    inner: LoopbackPort,
    switch: Switch,
}

impl Port for Switched {
    forward_to_inner!(caps, tx_room, unsent, flush, reap, recall, counters);

    fn link(&mut self) -> LinkState {
        if self.switch.has(NO_LINK) { LinkState::Down } else { self.inner.link() }
    }

    fn tx_burst(&mut self, now_ns: u64, frames: &[TxFrame<'_>]) -> usize {
        if self.switch.has(CUT) { frames.len() } else { self.inner.tx_burst(now_ns, frames) }
    }

    fn rx_burst(&mut self, now_ns: u64, max: usize, sink: &mut dyn FnMut(&RxFrame<'_>)) -> usize {
        let is_cut = self.switch.has(CUT);
        self.inner.rx_burst(now_ns, max, &mut |frame| {
            if !is_cut {
                sink(frame);
            }
        })
    }
}

type Ports = Vec<Box<dyn Port>>;

/// The ports of both NICs of both sides, and the switches of the first NIC, by side.
fn cables() -> [([Ports; 2], Switch); 2] {
    let (left, right) = loopback::pair(2 * PLANES_OF_NIC, LoopbackConfig::default());
    [left, right].map(|mut ports| {
        let switch = Switch::default();
        let second = ports.split_off(PLANES_OF_NIC);
        let first = ports.into_iter().map(|inner| Switched { inner, switch: switch.clone() });
        ([nic(first.collect()), nic(second)], switch)
    })
}

pub fn open(ports: Ports) -> Context {
    let config = ContextConfig::new(&ports);
    Context::open(ports, config).unwrap()
}

/// Settings of the queue pairs: retries are exhausted after 2.6 ms.
pub fn qp_config(mode: Mode) -> QpConfig {
    let retry = RtsAttr { timeout: 9, linear_retries: 1, exponential_retries: 1, ..RtsAttr::default() };
    let path = match mode {
        Mode::Seamless => PathConfig {
            standby: PlaneSet(0b1100),
            failback_hold_ns: 1_000_000,
            failback_hold_max_ns: 1_000_000,
            ..PathConfig::new(4)
        },
        Mode::None | Mode::Shift => PathConfig::new(PLANES_OF_NIC as u8),
    };
    // A seamless queue pair keeps trying while the roles change.
    let retry = if mode == Mode::Seamless { RtsAttr::default() } else { retry };
    QpConfig { max_send_wr: DEPTH, path, retry, ..QpConfig::default() }
}

pub fn fallback_config() -> FallbackConfig {
    FallbackConfig {
        hold_ns: 1_000_000,
        hold_max_ns: 1_000_000,
        probe_ns: 1_000_000,
        ..FallbackConfig::default()
    }
}

const ACCESS: Access = Access::REMOTE_WRITE;

/// One side.
enum Half {
    Verbs { context: Context, _pd: Pd, cq: Cq, mr: verbs::Mr, qp: Qp, _idle: Vec<Qp> },
    Shift { context: fallback::Context, mr: fallback::Mr, qp: QpId },
}

impl Half {
    fn verbs(mode: Mode, ports: Ports, idle: usize) -> Self {
        let context = open(ports);
        let pd = context.create_pd().unwrap();
        let cq = context.create_cq(4 * DEPTH).unwrap();
        let mr = pd.register(MEMORY, ACCESS).unwrap();
        let qp = Qp::create(&pd, &cq, &cq, &qp_config(mode)).unwrap();
        let idle = (0..idle).map(|_| Qp::create(&pd, &cq, &cq, &qp_config(mode)).unwrap()).collect();
        Self::Verbs { context, _pd: pd, cq, mr, qp, _idle: idle }
    }

    fn shift([default, backup]: [Ports; 2], store: &MemoryStore) -> Self {
        let (default, backup) = (open(default), open(backup));
        let store = Box::new(store.clone());
        let mut context =
            fallback::Context::open(&default, &backup, store, DEPTH, fallback_config()).unwrap();
        let mr = context.register(MEMORY, ACCESS).unwrap();
        let qp = context.create_qp(&qp_config(Mode::Shift)).unwrap();
        Self::Shift { context, mr, qp }
    }

    fn info(&self) -> spindrift::endpoint::QpInfo {
        match self {
            Self::Verbs { qp, .. } => qp.info().unwrap(),
            Self::Shift { context, qp, .. } => context.info(*qp).unwrap(),
        }
    }

    fn connect(&mut self, peer: &spindrift::endpoint::QpInfo) {
        match self {
            Self::Verbs { qp, .. } => qp.connect(peer).unwrap(),
            Self::Shift { context, qp, .. } => context.connect(*qp, peer).unwrap(),
        }
    }

    fn remote(&self) -> RemoteMr {
        match self {
            Self::Verbs { mr, .. } => mr.remote(),
            Self::Shift { mr, .. } => mr.remote(),
        }
    }

    fn region(&self) -> &spindrift::memory::Region {
        match self {
            Self::Verbs { mr, .. } => mr.region(),
            Self::Shift { mr, .. } => mr.region(),
        }
    }

    fn poll(&mut self, out: &mut [Wc]) -> usize {
        match self {
            Self::Verbs { context, cq, .. } => {
                context.poll();
                cq.poll(out).unwrap()
            }
            Self::Shift { context, .. } => context.poll(out),
        }
    }

    fn post(&mut self, len: u32, peer: &RemoteMr) {
        let remote = peer.at(0, len.into()).unwrap();
        let wr = |local| SendWr { wr_id: 0, op: SendOp::Write, local, remote, signaled: true, fence: false };
        match self {
            Self::Verbs { mr, qp, .. } => qp.post_send(wr(mr.sge(0, len).unwrap())).unwrap(),
            Self::Shift { context, mr, qp } => {
                context.post_send(*qp, wr(mr.sge(0, len).unwrap())).unwrap();
            }
        }
    }

    fn failure(&self) -> Option<fallback::FallbackError> {
        match self {
            Self::Verbs { .. } => None,
            Self::Shift { context, qp, .. } => context.failure(*qp).unwrap(),
        }
    }

    /// It sends over its first NIC, and would survive its failure.
    fn is_ready(&self) -> bool {
        match self {
            Self::Verbs { qp, .. } => {
                qp.role_status().unwrap().is_none_or(|roles| roles.serving == roles.primary)
            }
            Self::Shift { context, qp, .. } => {
                let state = context.state(*qp).unwrap().0;
                state == SendState::Default && context.is_prepared(*qp, Nic::Backup).unwrap()
            }
        }
    }

    /// It has noticed a failure.
    fn has_noticed(&self) -> bool {
        match self {
            Self::Verbs { qp, .. } => {
                qp.role_status().unwrap().is_some_and(|roles| roles.serving != roles.primary)
            }
            Self::Shift { context, qp, .. } => context.state(*qp).unwrap().0 != SendState::Default,
        }
    }
}

/// Both sides. The first one writes.
pub struct Rig {
    halves: [Half; 2],
    remotes: [RemoteMr; 2],
    /// Of the first NIC, by side.
    pub switches: [Switch; 2],
    in_flight: usize,
}

impl Rig {
    /// With so many more queue pairs on each side that nobody uses.
    pub fn new(mode: Mode, idle: usize) -> Self {
        let store = MemoryStore::default();
        let sides = cables();
        let switches = sides.each_ref().map(|(_, switch)| switch.clone());
        let mut halves = sides.map(|([first, second], _)| match mode {
            Mode::None => Half::verbs(mode, first, idle),
            Mode::Seamless => Half::verbs(mode, first.into_iter().chain(second).collect(), idle),
            Mode::Shift => Half::shift([first, second], &store),
        });
        let infos = halves.each_ref().map(Half::info);
        for (half, peer) in halves.iter_mut().zip(infos.iter().rev()) {
            half.connect(peer);
        }
        let remotes = halves.each_ref().map(Half::remote);
        let mut rig = Self { halves, remotes, switches, in_flight: 0 };
        rig.until_ready();
        rig
    }

    pub fn until_ready(&mut self) {
        let start = Instant::now();
        while !self.halves.iter().all(Half::is_ready) {
            self.stream(1);
            assert!(start.elapsed() < PATIENCE, "the first NIC is not used again");
        }
    }

    /// Polls both sides, and keeps so many writes of 4 KiB in flight. Returns how many have completed.
    pub fn stream(&mut self, depth: usize) -> usize {
        while self.in_flight < depth {
            let [_, peer] = &self.remotes;
            self.halves[0].post(4096, peer);
            self.in_flight += 1;
        }
        let mut out = [Wc::default(); DEPTH as usize];
        let count = self.halves[0].poll(&mut out);
        if let Some(wc) = out[..count].iter().find(|wc| !wc.status.is_success()) {
            panic!("{}: {:?}", wc.status, self.halves.each_ref().map(Half::failure));
        }
        self.in_flight -= count;
        let of_peer = self.halves[1].poll(&mut out);
        assert_eq!(of_peer, 0);
        count
    }

    /// The times from a failure until it was noticed by the side that writes, and until the next write completed.
    pub fn failure(&mut self, fail: impl FnOnce(&[Switch; 2])) -> [Duration; 2] {
        fail(&self.switches);
        let start = Instant::now();
        let mut noticed = None;
        loop {
            let completed = self.stream(8) > 0;
            let now = start.elapsed();
            if noticed.is_none() && (completed || self.halves[0].has_noticed()) {
                noticed = Some(now);
            }
            if completed {
                return [noticed.unwrap_or(now), now];
            }
            assert!(now < PATIENCE, "nothing completes");
        }
    }

    /// Rounds of a ping-pong with writes of so many bytes; the mean of half a round.
    pub fn ping_pong(&mut self, len: u32, rounds: u32) -> Duration {
        let mut out = [Wc::default(); DEPTH as usize];
        let last = len as usize - 1;
        let start = Instant::now();
        for round in 0..rounds {
            let marker = (round % 255) as u8 + 1;
            for (from, to) in [(0, 1), (1, 0)] {
                self.halves[from].region().store(last, marker).unwrap();
                let peer = self.remotes[to];
                self.halves[from].post(len, &peer);
                while {
                    self.halves[from].poll(&mut out);
                    self.halves[to].poll(&mut out);
                    self.halves[to].region().load(last).unwrap() != marker
                } {}
                // The next reply overwrites it.
                self.halves[to].region().store(last, 0).unwrap();
            }
        }
        start.elapsed() / (2 * rounds)
    }
}
