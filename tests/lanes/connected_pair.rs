//! Two connected sides, and waiting for what they do.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use spindrift::pmd::Port;
use spindrift::pmd::fault::{FaultPlan, FaultPort};
use spindrift::pmd::loopback::{self, LoopbackConfig, LoopbackPort};
use spindrift::verbs::{
    Access, CompChannel, Context, ContextConfig, Cq, CqError, Idle, LaneMode, Mr, Pd, Qp, QpConfig, SendOp,
    SendWr, WcStatus, nic,
};

pub(crate) const THREAD: LaneMode = LaneMode::Thread { core: None, idle: Idle::Yield };
/// The thread of such a lane sleeps until something wakes it.
pub(crate) const HYBRID: LaneMode = LaneMode::Hybrid { nap: Duration::from_hours(1) };

/// Longer than anything here takes; only a hang meets it.
const PATIENCE: Duration = Duration::from_mins(1);

/// One side of a connection with all it needs.
pub(crate) struct Side {
    pub(crate) context: Context,
    pub(crate) pd: Pd,
    pub(crate) channel: CompChannel,
    pub(crate) cq: Cq,
    pub(crate) mr: Mr,
    pub(crate) qp: Qp,
}

pub(crate) fn side(ports: Vec<Box<dyn Port>>, lane: LaneMode, config: &QpConfig) -> Side {
    side_with_cq(ports, lane, config, 256)
}

/// The same with a completion queue of this depth.
pub(crate) fn side_with_cq(ports: Vec<Box<dyn Port>>, lane: LaneMode, config: &QpConfig, depth: u32) -> Side {
    let settings = ContextConfig { seed: Some(1.into()), ..ContextConfig::new(&ports).lane(lane) };
    side_on(Context::open(ports, settings).unwrap(), config, depth)
}

/// The same on a context that is open.
pub(crate) fn side_on(context: Context, config: &QpConfig, depth: u32) -> Side {
    let pd = context.create_pd().unwrap();
    let channel = context.create_comp_channel().unwrap();
    let cq = context.create_cq_with_channel(depth, &channel).unwrap();
    let mr = pd.register(1 << 16, Access::REMOTE_WRITE).unwrap();
    let qp = Qp::create(&pd, &cq, &cq, config).unwrap();
    Side { context, pd, channel, cq, mr, qp }
}

/// These ports behind the faults of `plan`.
pub(crate) fn faulty(ports: Vec<LoopbackPort>, plan: &str, seed: u64) -> Vec<Box<dyn Port>> {
    let plan: FaultPlan = plan.parse().unwrap();
    let wrap = |(plane, port)| {
        let port = FaultPort::new(Box::new(port), plane, plan.clone(), seed);
        Box::new(port) as Box<dyn Port>
    };
    ports.into_iter().enumerate().map(wrap).collect()
}

pub(crate) fn connect(left: &mut Side, right: &mut Side) {
    left.qp.connect(&right.qp.info().unwrap()).unwrap();
    right.qp.connect(&left.qp.info().unwrap()).unwrap();
}

pub(crate) fn pair(planes: usize, lane: LaneMode) -> (Side, Side) {
    let (left, right) = loopback::pair(planes, LoopbackConfig::default());
    let config = QpConfig::default();
    let (mut left, mut right) = (side(nic(left), lane, &config), side(nic(right), lane, &config));
    connect(&mut left, &mut right);
    (left, right)
}

pub(crate) fn write(left: &Side, right: &Side, wr_id: u64, len: u32) -> SendWr {
    SendWr {
        wr_id,
        op: SendOp::Write,
        local: left.mr.sge(0, len).unwrap(),
        remote: right.mr.remote().at(0, u64::from(len)).unwrap(),
        signaled: true,
        fence: false,
    }
}

/// Posts a write on the left and drives both sides until it is complete there.
pub(crate) fn complete(left: &mut Side, right: &Side, wr: SendWr) {
    left.qp.post_send(wr).unwrap();
    let wc = until("a completion", || {
        right.context.poll();
        left.context.poll();
        left.cq.poll_one().unwrap()
    });
    assert!(wc.status.is_success(), "{wc:?}");
}

/// What a completion queue holds until it ends, by request, and its end.
pub(crate) fn all_of(cq: &mut Cq) -> (Vec<(u64, WcStatus)>, CqError) {
    let mut seen = Vec::new();
    let end = until("the end of the completion queue", || match cq.poll_one() {
        Ok(wc) => {
            seen.extend(wc.map(|wc| (wc.wr_id, wc.status)));
            None
        }
        Err(end) => Some(end),
    });
    seen.sort_unstable_by_key(|&(wr_id, _)| wr_id);
    (seen, end)
}

/// Whether a descriptor is readable now.
pub(crate) fn is_readable(fd: BorrowedFd<'_>) -> bool {
    poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&Timespec::default())).unwrap() == 1
}

/// Polls until there is something.
pub(crate) fn until<T>(what: &str, mut next: impl FnMut() -> Option<T>) -> T {
    #[expect(clippy::disallowed_methods, reason = "real lanes run in real time")]
    let start = Instant::now();
    loop {
        if let Some(found) = next() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "{what} never came");
        std::thread::yield_now();
    }
}

/// Runs `call` on a thread of its own and waits for its result: a call that hangs fails the test.
pub(crate) fn returns<T: Send + 'static>(what: &str, call: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = std::sync::mpsc::channel();
    #[expect(clippy::disallowed_methods, reason = "a test waits for what may hang")]
    std::thread::spawn(move || done.send(call()));
    result.recv_timeout(PATIENCE).unwrap_or_else(|error| panic!("{what}: {error}"))
}
