//! Contexts with several lanes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use spindrift::memory::MemoryError;
use spindrift::pmd::Port;
use spindrift::pmd::loopback::{self, LoopbackConfig};
use spindrift::verbs::{
    Access, AsyncEvent, Context, ContextConfig, ControlError, Cq, CqError, FailReason, LaneMode, Mr, Pd,
    Placement, Qp, QpConfig, QpState, RecvWr, SendOp, SendWr, VerbsError, Wc, WcStatus, nic,
};

use crate::connected_pair::{THREAD, all_of, is_readable, returns, until};
use crate::panic::Broken;

/// One side with several lanes, whose queue pairs all report to one queue.
pub(crate) struct Many {
    pub(crate) context: Context,
    pub(crate) pd: Pd,
    pub(crate) cq: Cq,
    pub(crate) mr: Mr,
    pub(crate) qps: Vec<Qp>,
}

pub(crate) type Lanes = Vec<Vec<Box<dyn Port>>>;

/// The ports of both sides: each lane has a pair of its own.
pub(crate) fn ports(lanes: usize, planes: usize) -> (Lanes, Lanes) {
    ports_of(lanes, planes, LoopbackConfig::default())
}

pub(crate) fn ports_of(lanes: usize, planes: usize, config: LoopbackConfig) -> (Lanes, Lanes) {
    (0..lanes).map(|_| loopback::pair(planes, config)).map(|(left, right)| (nic(left), nic(right))).unzip()
}

pub(crate) fn open(lanes: Lanes, mode: LaneMode) -> Context {
    let settings = ContextConfig::new(&lanes[0]).lanes(vec![mode; lanes.len()]);
    Context::open_lanes(lanes, ContextConfig { seed: Some(7.into()), ..settings }).unwrap()
}

fn many(lanes: Lanes, mode: LaneMode, qps: usize, depth: u32) -> Many {
    side_of(open(lanes, mode), qps, depth, |_| Placement::RoundRobin)
}

fn side_of(context: Context, qps: usize, depth: u32, place: impl Fn(usize) -> Placement) -> Many {
    let pd = context.create_pd().unwrap();
    let cq = context.create_cq(depth).unwrap();
    let mr = pd.register(1 << 16, Access::REMOTE_WRITE).unwrap();
    let create = |qp| {
        let config = QpConfig { lane: place(qp), ..QpConfig::default() };
        Qp::create(&pd, &cq, &cq, &config).unwrap()
    };
    let qps = (0..qps).map(create).collect();
    Many { context, pd, cq, mr, qps }
}

fn pair(lanes: usize, mode: LaneMode, qps: usize, depth: u32) -> (Many, Many) {
    let (left, right) = ports(lanes, 2);
    let (mut left, mut right) = (many(left, mode, qps, depth), many(right, mode, qps, depth));
    connect(&mut left, &mut right);
    (left, right)
}

/// The same of these contexts, whose queue pairs are on the lanes that these functions say.
pub(crate) fn pair_at(contexts: [Context; 2], qps: usize, lanes: [fn(usize) -> usize; 2]) -> (Many, Many) {
    let [left, right] = contexts;
    let mut left = side_of(left, qps, 4096, |qp| Placement::On(lanes[0](qp)));
    let mut right = side_of(right, qps, 4096, |qp| Placement::On(lanes[1](qp)));
    connect(&mut left, &mut right);
    (left, right)
}

pub(crate) fn connect(left: &mut Many, right: &mut Many) {
    for (ours, theirs) in left.qps.iter_mut().zip(&mut right.qps) {
        ours.connect(&theirs.info().unwrap()).unwrap();
        theirs.connect(&ours.info().unwrap()).unwrap();
    }
}

/// A write of the eighth of the memory that belongs to queue pair `qp`.
pub(crate) fn write(left: &Many, right: &Many, qp: usize, wr_id: u64) -> SendWr {
    const LEN: u32 = 1 << 13;
    SendWr {
        wr_id,
        op: SendOp::Write,
        local: left.mr.sge(qp * LEN as usize, LEN).unwrap(),
        remote: right.mr.remote().at(u64::from(LEN) * qp as u64, u64::from(LEN)).unwrap(),
        signaled: true,
        fence: false,
    }
}

/// Fills the memory on the left and posts writes of all of it, so many of each part. Queue pair `n` of `m` has the requests `n`, `n + m`...
pub(crate) fn post_rounds(left: &mut Many, right: &Many, rounds: u64) -> Vec<u8> {
    let bytes: Vec<u8> = (0..1 << 16).map(|n: u32| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    left.mr.write_at(0, &bytes).unwrap();
    let qps = left.qps.len();
    for wr_id in 0..rounds * qps as u64 {
        let wr = write(left, right, wr_id as usize % qps, wr_id);
        left.qps[wr_id as usize % qps].post_send(wr).unwrap();
    }
    bytes
}

pub(crate) fn next(left: &mut Many, right: &Many) -> Wc {
    until("a completion", || {
        left.context.poll();
        right.context.poll();
        left.cq.poll_one().unwrap()
    })
}

#[test]
fn queue_pairs_are_spread_and_share_memory_and_a_completion_queue() {
    const QPS: usize = 8;
    for mode in [LaneMode::Inline, THREAD] {
        let (mut left, right) = pair(3, mode, QPS, 256);
        assert_eq!(left.context.lanes(), 3);
        let bytes = post_rounds(&mut left, &right, 20);
        let mut done = [0; QPS];
        for _ in 0..20 * QPS {
            let wc = next(&mut left, &right);
            let qp = wc.wr_id as usize % QPS;
            assert_eq!((wc.status, wc.qpn), (WcStatus::Success, left.qps[qp].qpn()));
            assert_eq!(wc.wr_id, (done[qp] * QPS + qp) as u64, "each queue pair's come in order");
            done[qp] += 1;
        }
        let mut arrived = vec![0; 1 << 16];
        right.mr.read_at(0, &mut arrived).unwrap();
        assert!(arrived == bytes);
        // In turn, so two lanes have three of them and one has two; each packet carried 4 KiB.
        for (lane, qps) in [(0, 3), (1, 3), (2, 2)] {
            let mine = left.qps.iter().filter(|qp| qp.lane() == lane);
            assert!(mine.clone().all(|qp| left.context.lane_of(qp.qpn()) == lane));
            assert_eq!(mine.count(), qps, "lane {lane}");
            let (transport, own) = left.context.counters_of(lane);
            assert!(
                transport.tx_data >= 40 * qps as u64 && own.tx_frames >= transport.tx_data,
                "lane {lane}"
            );
            assert_eq!(left.context.with_endpoint_of(lane, |endpoint| endpoint.qpns().count()).unwrap(), qps);
        }
        let sum = (0..3).map(|lane| left.context.counters_of(lane).0.tx_data_bytes).sum::<u64>();
        assert_eq!(left.context.counters().tx_data_bytes, sum);
        let ports = left.context.query_ports();
        let places: Vec<_> = ports.iter().map(|port| (port.lane, port.plane)).collect();
        assert_eq!(places, [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]);
    }
}

#[test]
fn a_queue_pair_is_placed_as_its_settings_say() {
    let (lanes, _) = ports(3, 1);
    let mut side = many(lanes, LaneMode::Inline, 1, 4);
    let mut place = |lane| {
        let config = QpConfig { lane, ..QpConfig::default() };
        let qp = Qp::create(&side.pd, &side.cq, &side.cq, &config)?;
        let lane = qp.lane();
        side.qps.push(qp);
        Ok::<_, VerbsError>(lane)
    };
    assert_eq!(place(Placement::On(2)).unwrap(), 2);
    assert_eq!(place(Placement::On(2)).unwrap(), 2);
    let fewest = [1, 0, 1, 0, 1].map(|_| place(Placement::FewestQueuePairs).unwrap());
    assert_eq!(fewest, [1, 0, 1, 0, 1]);
    assert_eq!([0; 4].map(|_| place(Placement::RoundRobin).unwrap()), [1, 2, 0, 1]);
    let error = place(Placement::On(3)).unwrap_err();
    assert!(matches!(error, VerbsError::OutOfRange { name: "lane", value: 3, .. }), "{error}");
    assert!(error.to_string().contains("less than 3"), "{error}");
    assert!(side.context.with_endpoint_of(3, |_| ()).is_err());
}

#[test]
fn lanes_and_ports_that_the_settings_do_not_name_are_refused() {
    let refused = |lanes: Lanes, modes: usize| {
        let settings = ContextConfig::new(&ports(1, 2).0[0]).lanes(vec![LaneMode::Inline; modes]);
        Context::open_lanes(lanes, settings).map(|_| ()).unwrap_err()
    };
    let error = refused(ports(2, 2).0, 1);
    assert!(matches!(error, VerbsError::LaneCount { configured: 1, given: 2, most: 15 }), "{error}");
    assert!(matches!(refused(Lanes::new(), 0), VerbsError::LaneCount { .. }));
    assert!(matches!(refused(ports(16, 2).0, 16), VerbsError::LaneCount { .. }));
    let mut uneven = ports(2, 2).0;
    uneven[1].pop();
    assert!(matches!(refused(uneven, 2), VerbsError::PortCount { configured: 2, given: 1 }));
    let all = open(ports(15, 1).0, LaneMode::Inline);
    let (pd, cq) = (all.create_pd().unwrap(), all.create_cq(1).unwrap());
    let qps: Vec<_> = (0..60).map(|_| Qp::create(&pd, &cq, &cq, &QpConfig::default()).unwrap()).collect();
    assert!(qps.iter().all(|qp| all.lane_of(qp.qpn()) == qp.lane()));
    assert_eq!(all.query_ports().len(), 15);
}

/// The application's own threads drive one lane each.
#[test]
fn a_lane_is_driven_alone() {
    let (mut left, right) = pair(2, LaneMode::Inline, 2, 16);
    for qp in 0..2 {
        let wr = write(&left, &right, qp, qp as u64);
        left.qps[qp].post_send(wr).unwrap();
    }
    let only = |lane: usize, left: &mut Many| {
        until("a completion", || {
            left.context.poll_lane(lane);
            right.context.poll_lane(lane);
            left.cq.poll_one().unwrap()
        })
    };
    assert_eq!(only(1, &mut left).wr_id, 1);
    assert_eq!(left.context.counters_of(0).1.polls, 0);
    assert_eq!(only(0, &mut left).wr_id, 0);
}

/// A queue pair whose own lane never hears of the queue that overran fails as well.
#[test]
fn an_overrun_fails_the_queue_pairs_of_all_lanes() {
    for mode in [LaneMode::Inline, THREAD] {
        let (mut left, right) = pair(2, mode, 2, 4);
        for wr_id in 0..5 {
            let wr = write(&left, &right, 0, wr_id);
            left.qps[0].post_send(wr).unwrap();
        }
        for qp in [0, 1] {
            until("the error state", || {
                left.context.poll();
                right.context.poll();
                (left.qps[qp].state() == (QpState::Error, Some(FailReason::Requested))).then_some(())
            });
        }
        let mut out = [Wc::default(); 8];
        assert_eq!(left.cq.poll(&mut out), Ok(4));
        assert_eq!(left.cq.poll(&mut out), Err(CqError::Overrun { depth: 4 }));
        let events: Vec<_> = std::iter::from_fn(|| left.context.poll_async_event()).collect();
        let told = AsyncEvent::CqError { cq: left.cq.id() };
        assert_eq!(events.iter().filter(|&event| *event == told).count(), 1, "{events:?}");
        assert_eq!(left.context.lane_counters().cq_overruns, 1);
    }
}

/// One lane panics: what is posted on the other is flushed before the queue of both ends.
#[test]
fn lanes_end_together() {
    for mode in [LaneMode::Inline, THREAD] {
        returns("a context that failed", move || {
            let broken = [0, 1].map(|_| Arc::new(AtomicBool::new(false)));
            let (mut ours, mut theirs) = (Vec::new(), Vec::new());
            for in_rx in &broken {
                let (left, right) = loopback::pair(1, LoopbackConfig::default());
                let ports = left.into_iter().map(|inner| Broken {
                    inner,
                    in_tx: Arc::default(),
                    in_rx: Arc::clone(in_rx),
                });
                ours.push(nic(ports.collect()));
                theirs.push(nic(right));
            }
            let mut left = many(ours, mode, 2, 16);
            // Never polls, so that nothing is acknowledged.
            let mut right = many(theirs, LaneMode::Inline, 2, 16);
            connect(&mut left, &mut right);
            let idle = left.context.create_comp_channel().unwrap();
            let mut unused = left.context.create_cq(1).unwrap();
            for qp in 0..2 {
                let wr = write(&left, &right, qp, qp as u64);
                left.qps[qp].post_send(wr).unwrap();
                left.qps[qp].post_recv(RecvWr::empty(10 + qp as u64)).unwrap();
            }
            broken[1].store(true, Ordering::Relaxed);
            if mode == LaneMode::Inline {
                assert!(catch_unwind(AssertUnwindSafe(|| left.context.poll())).is_err());
            }
            let (seen, end) = all_of(&mut left.cq);
            assert_eq!(end, CqError::LaneFailed);
            assert_eq!(seen, [0, 1, 10, 11].map(|wr_id| (wr_id, WcStatus::WrFlushError)));
            for qp in &mut left.qps {
                assert_eq!(qp.state(), (QpState::Error, Some(FailReason::LaneFailed)));
                assert!(qp.post_recv(RecvWr::empty(9)).is_err());
            }
            assert_eq!(until("the end", || unused.poll_one().err()), CqError::LaneFailed);
            let failed = |error| matches!(error, VerbsError::Control(ControlError::LaneFailed(_)));
            assert!(failed(idle.get_event(Some(Duration::from_mins(1))).unwrap_err()));
            assert!(is_readable(std::os::fd::AsFd::as_fd(&idle)));
            assert!(failed(left.context.with_endpoint_of(0, |_| ()).unwrap_err()));
            assert!(failed(left.context.create_comp_channel().unwrap_err()));
            let ends = || {
                let event = left.context.poll_async_event()?;
                (event == AsyncEvent::LaneFailed).then_some(())
            };
            until("the event", ends);
            assert_eq!(left.context.poll_async_event(), None);
            assert_eq!((left.context.poll(), left.context.counters().qp_errors), (0, 2));
        });
    }
}

#[test]
fn control_of_one_lane_within_that_of_another_returns() {
    for mode in [LaneMode::Inline, THREAD] {
        returns("a nested call", move || {
            let (mut left, _right) = pair(2, mode, 2, 16);
            let context = left.context.clone();
            let dropped = left.qps.remove(1);
            let qpn = dropped.qpn();
            let nested = |error| matches!(error, VerbsError::Control(ControlError::Nested));
            let (lane, cq) = (context.lane_of(qpn), left.cq);
            let cq = context
                .with_endpoint_of(1 - lane, |_| {
                    assert!(nested(context.with_endpoint_of(lane, |_| ()).unwrap_err()));
                    assert_eq!(dropped.state().0, QpState::Rts);
                    assert_eq!((context.poll(), context.poll_lane(lane)), (0, 0));
                    context.lane_counters();
                    drop(dropped);
                    let (cq, error) = cq.destroy().unwrap_err();
                    assert!(nested(error));
                    cq
                })
                .unwrap();
            let known = context.with_endpoint_of(lane, |endpoint| endpoint.qp_state(qpn)).unwrap();
            assert_eq!(known, None, "gone with the call that it was dropped in");
            let (cq, error) = cq.destroy().unwrap_err();
            assert!(matches!(error, VerbsError::CqInUse { queue_pairs: 1 }), "{error}");
            left.qps.clear();
            cq.destroy().unwrap();
        });
    }
}

/// A registration is in use when a request on any lane uses it; dropped, it ends for what is posted after.
#[test]
fn registrations_end_on_all_lanes() {
    let (mut left, mut right) = pair(2, LaneMode::Inline, 2, 16);
    for qp in 0..2 {
        let spare = left.pd.register(1 << 13, Access::LOCAL_READ).unwrap();
        let target = right.pd.register(1 << 13, Access::REMOTE_WRITE).unwrap();
        let sge = spare.sge(0, 1 << 13).unwrap();
        let wr = |wr_id| SendWr {
            wr_id,
            op: SendOp::Write,
            local: sge,
            remote: target.remote().at(0, 1 << 13).unwrap(),
            signaled: true,
            fence: false,
        };
        left.qps[qp].post_send(wr(1)).unwrap();
        let (spare, error) = spare.deregister().unwrap_err();
        assert!(matches!(error, VerbsError::Memory(MemoryError::Busy { .. })), "{error}");
        drop(spare);
        assert_eq!(next(&mut left, &right).status, WcStatus::Success, "posted before");
        left.qps[qp].post_send(wr(2)).unwrap();
        assert_eq!(next(&mut left, &right).status, WcStatus::LocalProtectionError);
        target.deregister().unwrap();
    }
    right.qps.clear();
}
