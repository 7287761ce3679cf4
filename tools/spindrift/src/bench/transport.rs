//! What a side of a run is made of, on one NIC or on two with fallback in mode `shift`: the same calls for both.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use spindrift::counters::Counters;
use spindrift::endpoint::{Endpoint, QpInfo};
use spindrift::engine::LaneCounters;
use spindrift::fallback::{self, Event, FallbackError, Nic, QpId};
use spindrift::memory::{Region, RegionError};
use spindrift::verbs::{
    self, AsyncEvent, Context, CqError, PortAttr, PostError, RecvWr, SendWr, Sge, VerbsError, Wc,
};
use spindrift::wire::Qpn;
use spindrift_exchange::RemoteMr;

/// Completions that one turn takes at most.
const BATCH: usize = 64;

/// The NICs of a side, with their lanes. Clones are handles to the same.
#[derive(Clone, Debug)]
pub(crate) enum Nics {
    /// All planes belong to one context.
    One(Context),
    /// The planes that stand by belong to a second context, and queue pairs move from one to the other.
    Two(Two),
}

/// Two NICs with fallback between their queue pairs. One lane drives both.
#[derive(Clone, Debug)]
pub(crate) struct Two {
    shared: Arc<Mutex<Shared>>,
    contexts: [Context; 2],
    /// The run's number of each plane of a NIC.
    planes: [Vec<usize>; 2],
}

#[derive(Debug)]
struct Shared {
    context: fallback::Context,
    /// Completions that nobody has polled yet.
    ready: VecDeque<Wc>,
}

/// Where a queue pair's packets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Pair {
    pub(crate) nic: usize,
    pub(crate) lane: usize,
    pub(crate) qpn: Qpn,
}

/// Where a queue pair's packets go, at any time.
#[derive(Clone, Debug)]
pub(crate) enum PairOf {
    Fixed(Pair),
    Moving(Two, QpId),
}

impl PairOf {
    pub(crate) fn now(&self) -> Result<Pair, VerbsError> {
        match self {
            Self::Fixed(pair) => Ok(*pair),
            Self::Moving(two, qp) => {
                let (nic, qpn) = two.with(|context| context.pair(*qp))?;
                Ok(Pair { nic: nic as usize, lane: 0, qpn })
            }
        }
    }
}

impl Two {
    pub(crate) fn new(context: fallback::Context, planes: [Vec<usize>; 2]) -> Self {
        let contexts = Nic::ALL.map(|nic| context.nic(nic).clone());
        let shared = Arc::new(Mutex::new(Shared { context, ready: VecDeque::new() }));
        Self { shared, contexts, planes }
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The run's numbers of a NIC's planes.
    pub(crate) fn planes(&self, nic: Nic) -> &[usize] {
        let [default, backup] = &self.planes;
        if nic == Nic::Default { default } else { backup }
    }

    /// Calls the context of both NICs.
    pub(crate) fn with<R>(&self, act: impl FnOnce(&mut fallback::Context) -> R) -> R {
        act(&mut self.lock().context)
    }

    /// A turn of the lanes of both NICs.
    fn poll(&self) -> usize {
        let Shared { context, ready } = &mut *self.lock();
        let work = context.drive();
        let mut batch = [Wc::default(); BATCH];
        let count = context.completions(&mut batch);
        ready.extend(batch.iter().take(count));
        work + count
    }
}

impl Nics {
    pub(crate) fn lanes(&self) -> usize {
        match self {
            Self::One(context) => context.lanes(),
            Self::Two(_) => 1,
        }
    }

    /// One turn of a lane; returns how much it has done.
    #[inline]
    pub(crate) fn poll_lane(&self, lane: usize) -> usize {
        match self {
            Self::One(context) => context.poll_lane(lane),
            Self::Two(two) => two.poll(),
        }
    }

    /// One turn of the only lane.
    pub(crate) fn poll(&self) -> usize {
        self.poll_lane(0)
    }

    /// The same, where the next turn or request follows at once.
    pub(crate) fn poll_busy(&self) -> usize {
        match self {
            Self::One(context) => context.poll_busy(),
            Self::Two(two) => two.poll(),
        }
    }

    /// Sleeps until a lane has something to do, for at most this long.
    pub(crate) fn wait_lane(&self, lane: usize, at_most: Duration) -> io::Result<()> {
        match self {
            Self::One(context) => context.wait_lane(lane, at_most),
            Self::Two(_) => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "no one can sleep on the lanes of two NICs with --fallback shift",
            )),
        }
    }

    /// The context of each NIC.
    pub(crate) fn contexts(&self) -> &[Context] {
        match self {
            Self::One(context) => std::slice::from_ref(context),
            Self::Two(two) => &two.contexts,
        }
    }

    /// The run's number of a plane of a NIC.
    pub(crate) fn plane(&self, nic: usize, plane: usize) -> usize {
        match self {
            Self::One(_) => plane,
            Self::Two(two) => two.planes.get(nic).and_then(|of| of.get(plane)).copied().unwrap_or(plane),
        }
    }

    /// All ports, with the run's numbers of their planes, in ascending order of these.
    pub(crate) fn query_ports(&self) -> Vec<PortAttr> {
        let of = |(nic, context): (usize, &Context)| {
            let mut ports = context.query_ports();
            for port in &mut ports {
                port.plane = self.plane(nic, port.plane);
            }
            ports
        };
        let mut ports: Vec<_> = self.contexts().iter().enumerate().flat_map(of).collect();
        ports.sort_by_key(|port| (port.lane, port.plane));
        ports
    }

    /// Of all NICs together.
    pub(crate) fn counters(&self) -> Counters {
        let mut all = Counters::default();
        self.contexts().iter().for_each(|context| all.add(&context.counters()));
        all
    }

    /// Of all NICs together.
    pub(crate) fn lane_counters(&self) -> LaneCounters {
        let mut all = LaneCounters::default();
        self.contexts().iter().for_each(|context| all.add(&context.lane_counters()));
        all
    }

    /// Calls the endpoint that has a pair.
    pub(crate) fn with_endpoint<R>(
        &self,
        pair: Pair,
        act: impl FnOnce(&mut Endpoint) -> R,
    ) -> Result<R, VerbsError> {
        self.contexts().get(pair.nic).ok_or(VerbsError::NoSuchQp)?.with_endpoint_of(pair.lane, act)
    }

    /// What its contexts have reported, beside links.
    pub(crate) fn events(&self) -> Vec<AsyncEvent> {
        match self {
            Self::One(context) => core::iter::from_fn(|| context.poll_async_event()).collect(),
            Self::Two(two) => two.with(|context| {
                let events = core::iter::from_fn(|| context.poll_event());
                let of_nics = events.filter_map(|event| match event {
                    Event::Nic { event, .. } => Some(event),
                    _ => None,
                });
                of_nics.collect()
            }),
        }
    }
}

/// A queue pair.
#[derive(Debug)]
pub(crate) enum Qp {
    One(verbs::Qp),
    Two(Two, QpId, Qpn),
}

impl Qp {
    /// A queue pair with fallback, with these settings on each NIC.
    pub(crate) fn shift(
        two: &Two,
        default: &verbs::QpConfig,
        backup: &verbs::QpConfig,
    ) -> Result<Self, VerbsError> {
        let (qp, info) = two.with(|context| {
            let qp = context.create_qp_on(default, backup)?;
            Ok::<_, VerbsError>((qp, context.info(qp)?))
        })?;
        Ok(Self::Two(two.clone(), qp, Qpn::new(info.qpn)))
    }

    pub(crate) fn lane(&self) -> usize {
        match self {
            Self::One(qp) => qp.lane(),
            Self::Two(..) => 0,
        }
    }

    /// The number in its completions.
    pub(crate) fn qpn(&self) -> Qpn {
        match self {
            Self::One(qp) => qp.qpn(),
            Self::Two(.., qpn) => *qpn,
        }
    }

    /// What it is called in the context of both NICs, and in its completions.
    pub(crate) fn id(&self) -> Option<(QpId, Qpn)> {
        match self {
            Self::One(_) => None,
            Self::Two(_, qp, qpn) => Some((*qp, *qpn)),
        }
    }

    /// Where what it sends goes.
    pub(crate) fn pair_of(&self) -> PairOf {
        match self {
            Self::One(qp) => PairOf::Fixed(Pair { nic: 0, lane: qp.lane(), qpn: qp.qpn() }),
            Self::Two(two, qp, _) => PairOf::Moving(two.clone(), *qp),
        }
    }

    pub(crate) fn info(&self) -> Result<QpInfo, VerbsError> {
        match self {
            Self::One(qp) => qp.info(),
            Self::Two(two, qp, _) => two.with(|context| context.info(*qp)),
        }
    }

    /// Connects it to one of the same process.
    pub(crate) fn connect(&mut self, peer: &QpInfo) -> Result<(), VerbsError> {
        match self {
            Self::One(qp) => qp.connect(peer),
            Self::Two(two, qp, _) => two.with(|context| context.connect(*qp, peer)),
        }
    }

    /// Connects it as was agreed with a peer.
    pub(crate) fn establish(
        &mut self,
        peer: &QpInfo,
        agreed: &verbs::negotiate::Negotiated,
    ) -> Result<(), VerbsError> {
        match self {
            Self::One(qp) => qp.establish(agreed),
            Self::Two(two, qp, _) => two.with(|context| context.connect(*qp, peer)),
        }
    }

    #[inline]
    pub(crate) fn post_send(&mut self, wr: SendWr) -> Result<(), PostError> {
        match self {
            Self::One(qp) => qp.post_send(wr),
            Self::Two(two, qp, _) => two.with(|context| context.post_send(*qp, wr)),
        }
    }

    pub(crate) fn post_recv(&mut self, wr: RecvWr) -> Result<(), PostError> {
        match self {
            Self::One(qp) => qp.post_recv(wr),
            Self::Two(two, qp, _) => two.with(|context| context.post_recv(*qp, wr)),
        }
    }

    /// Requests to send that are not complete.
    pub(crate) fn sends_outstanding(&self) -> usize {
        match self {
            Self::One(qp) => qp.sends_outstanding() as usize,
            Self::Two(two, qp, _) => two.with(|context| context.sends_outstanding(*qp)).unwrap_or_default(),
        }
    }

    /// What it has done in mode `shift`.
    pub(crate) fn fallback_counters(&self) -> Option<fallback::Counters> {
        match self {
            Self::One(_) => None,
            Self::Two(two, qp, _) => two.with(|context| context.counters(*qp)).ok(),
        }
    }

    /// Why it has failed on both NICs, if it has.
    pub(crate) fn failure(&self) -> Option<FallbackError> {
        match self {
            Self::One(_) => None,
            Self::Two(two, qp, _) => two.with(|context| context.failure(*qp)).ok().flatten(),
        }
    }
}

/// A completion queue of a lane.
#[derive(Debug)]
pub(crate) enum Cq {
    One(verbs::Cq),
    Two(Two),
}

impl Cq {
    #[inline]
    pub(crate) fn poll(&mut self, out: &mut [Wc]) -> Result<usize, CqError> {
        match self {
            Self::One(cq) => cq.poll(out),
            Self::Two(two) => {
                let ready = &mut two.lock().ready;
                let count = ready.len().min(out.len());
                for (slot, wc) in out.iter_mut().zip(ready.drain(..count)) {
                    *slot = wc;
                }
                Ok(count)
            }
        }
    }

    pub(crate) fn poll_one(&mut self) -> Result<Option<Wc>, CqError> {
        let mut one = [Wc::default()];
        Ok((self.poll(&mut one)? == 1).then_some(one[0]))
    }
}

/// Registered memory.
#[derive(Debug)]
pub(crate) enum Mr {
    One(verbs::Mr),
    Two(fallback::Mr),
}

impl Mr {
    pub(crate) fn region(&self) -> &Arc<Region> {
        match self {
            Self::One(mr) => mr.region(),
            Self::Two(mr) => mr.region(),
        }
    }

    pub(crate) fn remote(&self) -> RemoteMr {
        match self {
            Self::One(mr) => mr.remote(),
            Self::Two(mr) => mr.remote(),
        }
    }

    pub(crate) fn sge(&self, offset: usize, len: u32) -> Result<Sge, RegionError> {
        match self {
            Self::One(mr) => mr.sge(offset, len),
            Self::Two(mr) => mr.sge(offset, len),
        }
    }

    pub(crate) fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), RegionError> {
        self.region().write_at(offset, bytes)
    }

    pub(crate) fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<(), RegionError> {
        self.region().read_at(offset, out)
    }
}
