//! Two sides with two NICs each, driven by one thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use spindrift::fallback::{
    Context, Event, FallbackConfig, FallbackError, MemoryStore, Mr, Nic, QpId, ReceiveState, SendState,
};
use spindrift::pmd::loopback::{self, LoopbackConfig, LoopbackPort};
use spindrift::pmd::{Port, RxFrame, TxFrame, forward_to_inner};
use spindrift::verbs::{
    Access, Context as NicContext, ContextConfig, Idle, LaneMode, QpConfig, RecvWr, RtsAttr, SendOp, SendWr,
    Wc,
};

use crate::fault_switch::{FaultSwitch, SwitchedPort};

/// Longer than anything here takes; only a hang meets it.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

/// Bytes of each message.
pub(crate) const LEN: usize = 3000;

/// Messages that fit into a side's memory.
pub(crate) const SLOTS: usize = 16;

pub(crate) struct Side {
    pub(crate) context: Context,
    pub(crate) qp: QpId,
    /// Sources of sends and writes, then where the peer's writes and SENDs go.
    pub(crate) mr: Mr,
    pub(crate) events: Vec<Event>,
}

pub(crate) struct Duo {
    pub(crate) sides: [Side; 2],
    /// Of side 0, for each NIC: what it sends and receives.
    pub(crate) links: [FaultSwitch; 2],
    /// Of side 0, for each NIC: [`PANIC`] or [`SHORT`].
    pub(crate) defects: [Arc<AtomicU8>; 2],
    pub(crate) store: MemoryStore,
}

/// A failure is noticed after some 2 ms.
pub(crate) fn qp_config() -> QpConfig {
    QpConfig {
        max_send_wr: 32,
        max_recv_wr: 32,
        retry: RtsAttr { timeout: 9, linear_retries: 2, exponential_retries: 1, ..RtsAttr::default() },
        ..QpConfig::default()
    }
}

/// The lane panics.
pub(crate) const PANIC: u8 = 1;
/// Long packets are lost.
pub(crate) const SHORT: u8 = 2;

/// A port with a defect that can be switched on.
struct Broken {
    inner: LoopbackPort,
    defect: Arc<AtomicU8>,
}

impl Port for Broken {
    forward_to_inner!(caps, link, tx_room, unsent, flush, reap, recall, counters);

    fn tx_burst(&mut self, now_ns: u64, frames: &[TxFrame<'_>]) -> usize {
        if self.defect.load(Ordering::Relaxed) != SHORT {
            return self.inner.tx_burst(now_ns, frames);
        }
        let sends = |frame: &&[TxFrame<'_>]| frame[0].len() > 500 || self.inner.tx_burst(now_ns, frame) == 1;
        frames.chunks(1).take_while(sends).count()
    }

    fn rx_burst(&mut self, now_ns: u64, max: usize, sink: &mut dyn FnMut(&RxFrame<'_>)) -> usize {
        assert!(self.defect.load(Ordering::Relaxed) != PANIC, "the defect of a test");
        self.inner.rx_burst(now_ns, max, sink)
    }
}

fn nic(ports: Vec<LoopbackPort>, seed: u64, lane: LaneMode) -> (NicContext, FaultSwitch, Arc<AtomicU8>) {
    let defect = Arc::<AtomicU8>::default();
    let broken = |inner| Broken { inner, defect: Arc::clone(&defect) };
    let (ports, switch) = SwitchedPort::last_of(ports.into_iter().map(broken).collect());
    let config = ContextConfig { seed: Some(seed.into()), ..ContextConfig::new(&ports).lane(lane) };
    (NicContext::open(ports, config).unwrap(), switch, defect)
}

impl Duo {
    pub(crate) fn new() -> Self {
        Self::configured(&qp_config())
    }

    pub(crate) fn configured(config: &QpConfig) -> Self {
        let store = MemoryStore::default();
        Self::build(config, &[store.clone(), store], LaneMode::Inline, PATIENCE)
    }

    /// With a store for each side. A wait for a pair soon ends with an error.
    pub(crate) fn impatient(stores: &[MemoryStore; 2]) -> Self {
        Self::build(&qp_config(), stores, LaneMode::Inline, Duration::from_millis(50))
    }

    /// With a thread for each lane.
    pub(crate) fn threaded() -> Self {
        let store = MemoryStore::default();
        let lane = LaneMode::Thread { core: None, idle: Idle::Yield };
        // A thread may be kept from its core for a while.
        let retry = RtsAttr { timeout: 14, ..qp_config().retry };
        Self::build(&QpConfig { retry, ..qp_config() }, &[store.clone(), store], lane, PATIENCE)
    }

    fn build(config: &QpConfig, stores: &[MemoryStore; 2], lane: LaneMode, patience: Duration) -> Self {
        let (mut links, mut defects) = (Vec::new(), Vec::new());
        let mut sides: [Vec<NicContext>; 2] = [Vec::new(), Vec::new()];
        for number in 0..2 {
            let (here, there) = loopback::pair(1, LoopbackConfig::default());
            let (context, link, defect) = nic(here, 10 + number, lane);
            sides[0].push(context);
            links.push(link);
            defects.push(defect);
            sides[1].push(nic(there, 20 + number, lane).0);
        }
        let settings = FallbackConfig {
            hold_ns: 2_000_000,
            hold_max_ns: 10_000_000,
            probe_ns: 2_000_000,
            prepare_timeout_ns: patience.as_nanos() as u64,
            ..FallbackConfig::default()
        };
        let mut at = 0;
        let sides = sides.map(|nics| {
            let store = stores[at].clone();
            at += 1;
            let mut context =
                Context::open(&nics[0], &nics[1], Box::new(store), 128, settings.clone()).unwrap();
            let mr = context
                .register(
                    2 * SLOTS * LEN,
                    Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
                )
                .unwrap();
            let qp = context.create_qp(config).unwrap();
            Side { context, qp, mr, events: Vec::new() }
        });
        let mut duo = Self {
            sides,
            links: links.try_into().ok().unwrap(),
            defects: defects.try_into().unwrap(),
            store: stores[0].clone(),
        };
        let infos = [0, 1].map(|at: usize| duo.sides[at].context.info(duo.sides[at].qp).unwrap());
        for at in 0..2 {
            let side = &mut duo.sides[at];
            side.context.init(side.qp).unwrap();
            side.context.connect(side.qp, &infos[1 - at]).unwrap();
        }
        duo
    }

    /// The same, once both sides are armed.
    pub(crate) fn armed() -> Self {
        let mut duo = Self::new();
        duo.arm();
        duo
    }

    pub(crate) fn arm(&mut self) {
        let armed = |side: &Side| side.context.is_prepared(side.qp, Nic::Backup).unwrap();
        self.until("armed", |duo| duo.sides.iter().all(armed));
    }

    /// Polls both sides once: the completions of each.
    pub(crate) fn poll(&mut self) -> [Vec<Wc>; 2] {
        let mut all = [Vec::new(), Vec::new()];
        for (side, all) in self.sides.iter_mut().zip(&mut all) {
            let mut out = [Wc::default(); 4];
            let count = side.context.poll(&mut out);
            all.extend_from_slice(&out[..count]);
            side.events.extend(std::iter::from_fn(|| side.context.poll_event()));
        }
        all
    }

    /// Polls until it is so. No completion is expected.
    pub(crate) fn until(&mut self, what: &str, so: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !so(self) {
            let all = self.poll();
            assert!(all.iter().all(Vec::is_empty), "{what}: {all:?}");
            assert!(start.elapsed() < PATIENCE, "{what}: {:?} {:?}", self.states(), self.failures());
        }
    }

    /// Polls until each side has so many completions.
    pub(crate) fn collect(&mut self, counts: [usize; 2]) -> [Vec<Wc>; 2] {
        let mut got = [Vec::new(), Vec::new()];
        let start = Instant::now();
        while got[0].len() < counts[0] || got[1].len() < counts[1] {
            for (got, new) in got.iter_mut().zip(self.poll()) {
                got.extend(new);
            }
            assert!(
                start.elapsed() < PATIENCE,
                "{got:?} of {counts:?}, {:?} {:?}",
                self.states(),
                self.failures()
            );
        }
        got
    }

    pub(crate) fn failures(&self) -> [Option<FallbackError>; 2] {
        [0, 1].map(|at: usize| self.sides[at].context.failure(self.sides[at].qp).unwrap())
    }

    pub(crate) fn states(&self) -> [(SendState, ReceiveState); 2] {
        [0, 1].map(|at: usize| self.sides[at].context.state(self.sides[at].qp).unwrap())
    }

    /// Receives for the next messages to `at`, into its slots.
    pub(crate) fn post_receives(&mut self, at: usize, numbers: impl Iterator<Item = usize>) {
        let Side { context, qp, mr, .. } = &mut self.sides[at];
        for number in numbers {
            let local = mr.sge((SLOTS + number % SLOTS) * LEN, LEN as u32).unwrap();
            context.post_recv(*qp, RecvWr { wr_id: number as u64, local }).unwrap();
        }
    }

    /// A request of side `at` from its slot to the peer's, with bytes that tell its number.
    pub(crate) fn request(&self, at: usize, number: usize, op: SendOp) -> SendWr {
        let slot = number % SLOTS;
        let side = &self.sides[at];
        side.mr.region().write_at(slot * LEN, &bytes(at, number)).unwrap();
        let local = side.mr.sge(slot * LEN, LEN as u32).unwrap();
        let remote = self.sides[1 - at].mr.remote().at(((SLOTS + slot) * LEN) as u64, LEN as u64).unwrap();
        SendWr { wr_id: 1000 + number as u64, op, local, remote, signaled: true, fence: false }
    }

    pub(crate) fn post(&mut self, at: usize, wr: SendWr) {
        let side = &mut self.sides[at];
        side.context.post_send(side.qp, wr).unwrap();
    }

    /// The bytes of that request of the other side have arrived.
    pub(crate) fn check(&self, at: usize, number: usize) {
        let mut got = vec![0; LEN];
        self.sides[at].mr.region().read_at((SLOTS + number % SLOTS) * LEN, &mut got).unwrap();
        assert!(got == bytes(1 - at, number), "message {number} of side {}", 1 - at);
    }

    /// Sends `count` messages in each direction, and checks all bytes and completions.
    pub(crate) fn exchange(&mut self, first: usize, count: usize) {
        for at in 0..2 {
            self.post_receives(at, first..first + count);
        }
        for number in first..first + count {
            for at in 0..2 {
                let wr = self.request(at, number, SendOp::SendWithImm(number as u32));
                self.post(at, wr);
            }
        }
        let got = self.collect([2 * count; 2]);
        self.check_exchange(&got, first, count);
    }

    pub(crate) fn check_exchange(&self, got: &[Vec<Wc>; 2], first: usize, count: usize) {
        for (at, got) in got.iter().enumerate() {
            assert!(got.iter().all(|wc| wc.status.is_success()), "{got:?} {:?}", self.failures());
            let (received, sent): (Vec<&Wc>, Vec<&Wc>) = got.iter().partition(|wc| wc.opcode.is_receive());
            let numbers = first..first + count;
            assert!(sent.iter().map(|wc| wc.wr_id as usize).eq(numbers.clone().map(|number| 1000 + number)));
            assert!(received.iter().map(|wc| wc.wr_id as usize).eq(numbers.clone()), "{received:?}");
            assert!(received.iter().all(|wc| wc.imm == Some(wc.wr_id as u32)), "{received:?}");
            numbers.for_each(|number| self.check(at, number));
        }
    }
}

/// The bytes of a request.
fn bytes(at: usize, number: usize) -> Vec<u8> {
    (0..LEN).map(|place| (place * 7 + number * 31 + at * 101) as u8).collect()
}
