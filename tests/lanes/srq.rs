//! Shared receive queues: receives for the queue pairs of all lanes.

use core::sync::atomic::{AtomicU64, Ordering};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use spindrift::verbs::{
    Access, AsyncEvent, BadWr, Context, Extensions, FailReason, LaneMode, PostError, Qp, QpConfig, QpModify,
    QpState, RecvWr, SendOp, SendWr, Srq, SrqAttr, VerbsError, Wc, WcOpcode, WcStatus,
};

use crate::connected_pair::{THREAD, until};
use crate::multi_lane::{Lanes, Many, connect, open, ports, write};
use crate::panic::bench;

const LANES: usize = 2;
const QPS: usize = 4;

/// Two sides of two lanes and four queue pairs, whose right one has a shared receive queue of this size.
fn pair(mode: LaneMode, max_wr: u32) -> (Many, Many, Srq) {
    pair_of(mode, max_wr, &QpConfig::default())
}

fn pair_of(mode: LaneMode, max_wr: u32, config: &QpConfig) -> (Many, Many, Srq) {
    let (left, right) = ports(LANES, 2);
    let mut left = side(left, mode, |_| config.clone());
    let mut srq = None;
    let mut right = side(right, mode, |context| {
        srq = Some(context.create_srq(max_wr).unwrap());
        QpConfig { srq: srq.clone(), ..config.clone() }
    });
    connect(&mut left, &mut right);
    (left, right, srq.unwrap())
}

fn side(lanes: Lanes, mode: LaneMode, config: impl FnOnce(&Context) -> QpConfig) -> Many {
    let context = open(lanes, mode);
    let config = config(&context);
    let (pd, cq) = (context.create_pd().unwrap(), context.create_cq(1024).unwrap());
    let mr = pd.register(1 << 16, Access::REMOTE_WRITE).unwrap();
    let qps = (0..QPS).map(|_| Qp::create(&pd, &cq, &cq, &config).unwrap()).collect();
    Many { context, pd, cq, mr, qps }
}

/// The `n`th immediate of all, by queue pair `qp`.
fn immediate(left: &Many, right: &Many, qp: usize, n: u64) -> SendWr {
    SendWr { op: SendOp::WriteWithImm(n as u32), ..write(left, right, qp, n) }
}

fn next(of: &mut Many, other: &Many) -> Wc {
    until("a completion", || {
        of.context.poll();
        other.context.poll();
        of.cq.poll_one().unwrap()
    })
}

fn post(srq: &Srq, ids: core::ops::Range<u64>) {
    let wrs: Vec<_> = ids.map(RecvWr::empty).collect();
    srq.post_recvs(&wrs).unwrap();
}

#[test]
fn queue_pairs_of_all_lanes_take_from_one_queue() {
    const IMMS: u64 = 40;
    for mode in [LaneMode::Inline, THREAD] {
        let (mut left, mut right, srq) = pair(mode, 64);
        let lanes: Vec<_> = right.qps.iter().map(Qp::lane).collect();
        assert_eq!(lanes, [0, 1, 0, 1]);
        post(&srq, 0..IMMS);
        assert_eq!(srq.query(), SrqAttr { max_wr: 64, limit: 0, outstanding: IMMS as u32 });
        for n in 0..IMMS {
            let wr = immediate(&left, &right, n as usize % QPS, n);
            left.qps[n as usize % QPS].post_send(wr).unwrap();
        }
        let mut taken = Vec::new();
        let mut of_qps = vec![Vec::new(); QPS];
        for _ in 0..IMMS {
            let wc = next(&mut right, &left);
            assert_eq!(
                (wc.status, wc.opcode, wc.byte_len),
                (WcStatus::Success, WcOpcode::RecvRdmaWithImm, 1 << 13)
            );
            taken.push(wc.wr_id);
            let qp = right.qps.iter().position(|qp| qp.qpn() == wc.qpn).unwrap();
            of_qps[qp].push(u64::from(wc.imm.unwrap()));
        }
        taken.sort_unstable();
        assert!(taken.iter().copied().eq(0..IMMS), "each once: {taken:?}");
        for (qp, imms) in of_qps.iter().enumerate() {
            assert!(imms.iter().copied().eq((0..IMMS).skip(qp).step_by(QPS)), "in order: {imms:?}");
        }
        for _ in 0..IMMS {
            assert!(next(&mut left, &right).status.is_success());
        }
        assert_eq!(srq.query().outstanding, 0);
        for qp in &right.qps {
            assert_eq!(qp.recvs_outstanding(), 0);
            let attr = qp.query().unwrap();
            assert_eq!((attr.srq, attr.recvs_outstanding, attr.cap.max_recv_wr), (Some(srq.id()), 0, 0));
        }
        assert_eq!(left.qps[0].query().unwrap().srq, None);
    }
}

/// Within one lane, requests are taken in the order in which they were posted.
#[test]
fn the_oldest_request_is_taken_first() {
    let (mut left, mut right, srq) = pair(LaneMode::Inline, 8);
    for n in 0..24 {
        srq.post_recv(RecvWr::empty(n)).unwrap();
        if n % 3 == 2 {
            for (qp, n) in [(2, n - 2), (0, n - 1), (2, n)] {
                let wr = immediate(&left, &right, qp, n);
                left.qps[qp].post_send(wr).unwrap();
                let wc = next(&mut right, &left);
                assert_eq!((wc.wr_id, wc.imm, wc.qpn), (n, Some(n as u32), right.qps[qp].qpn()));
            }
        }
    }
}

#[test]
fn an_empty_queue_fails_the_queue_pair_that_finds_it_so_and_no_other() {
    let plain = QpConfig { extensions: Extensions::NONE, ..QpConfig::default() };
    let (mut left, mut right, srq) = pair_of(LaneMode::Inline, 8, &plain);
    let send = |left: &mut Many, right: &Many, qp, n| {
        let wr = immediate(left, right, qp, n);
        left.qps[qp].post_send(wr).unwrap();
        let wc = next(left, right);
        assert_eq!((wc.wr_id, wc.qpn), (n, left.qps[qp].qpn()));
        wc.status
    };
    post(&srq, 0..1);
    assert_eq!(send(&mut left, &right, 0, 0), WcStatus::Success);
    assert_eq!(send(&mut left, &right, 1, 1), WcStatus::RemoteOperationError);
    assert_eq!(right.qps[1].state(), (QpState::Error, Some(FailReason::PeerViolation)));
    assert_eq!(right.context.counters().rx_no_receive, 1);
    post(&srq, 1..3);
    assert_eq!(send(&mut left, &right, 0, 2), WcStatus::Success);
    assert_eq!(send(&mut left, &right, 2, 3), WcStatus::Success);
    let taken: Vec<_> = core::iter::from_fn(|| right.cq.poll_one().unwrap()).map(|wc| wc.wr_id).collect();
    assert_eq!((taken, srq.query().outstanding), (vec![0, 1, 2], 0));
}

#[test]
fn what_is_posted_outlives_queue_pairs_and_its_handle() {
    let (mut left, mut right, srq) = pair(LaneMode::Inline, 8);
    post(&srq, 0..4);
    // Failed, reset and connected again, or gone: nothing is flushed, and nothing dropped.
    right.qps[0].modify(QpModify::Error).unwrap();
    left.qps[0].modify(QpModify::Reset).unwrap();
    right.qps[0].modify(QpModify::Reset).unwrap();
    drop(right.qps.pop());
    assert_eq!((right.cq.poll_one().unwrap(), srq.query().outstanding), (None, 4));
    let (ours, theirs) = (&mut left.qps[0], &mut right.qps[0]);
    ours.connect(&theirs.info().unwrap()).unwrap();
    theirs.connect(&ours.info().unwrap()).unwrap();
    drop(srq);
    for n in 0..4 {
        let wr = immediate(&left, &right, n as usize % 3, n);
        left.qps[n as usize % 3].post_send(wr).unwrap();
        let wc = next(&mut right, &left);
        assert_eq!((wc.wr_id, wc.imm, right.qps[n as usize % 3].recvs_outstanding()), (n, Some(n as u32), 0));
    }
}

#[test]
fn the_limit_is_told_once_each_time_it_is_set() {
    let (mut left, mut right, srq) = pair(LaneMode::Inline, 8);
    let other = right.context.create_srq(1).unwrap();
    assert_ne!(srq.id(), other.id());
    let told = |right: &Many| core::iter::from_fn(|| right.context.poll_async_event()).collect::<Vec<_>>();
    let reached = AsyncEvent::SrqLimitReached { srq: srq.id() };
    post(&srq, 0..8);
    srq.set_limit(7).unwrap();
    assert_eq!((told(&right), srq.query().limit), (vec![], 7));
    let mut sent = 0;
    let mut take = |right: &mut Many| {
        let qp = sent as usize % QPS;
        let wr = immediate(&left, right, qp, sent);
        left.qps[qp].post_send(wr).unwrap();
        next(right, &left);
        sent += 1;
    };
    take(&mut right);
    assert_eq!(told(&right), []);
    take(&mut right);
    assert_eq!((told(&right), srq.query().limit), (vec![reached.clone()], 0));
    take(&mut right);
    assert_eq!(told(&right), []);
    // Five are left: fewer than eight, no fewer than five.
    srq.set_limit(8).unwrap();
    assert_eq!(told(&right), std::slice::from_ref(&reached));
    srq.set_limit(5).unwrap();
    srq.set_limit(0).unwrap();
    take(&mut right);
    assert_eq!(told(&right), []);
    srq.set_limit(4).unwrap();
    take(&mut right);
    assert_eq!(told(&right), [reached]);
    let refused = srq.set_limit(9).unwrap_err().to_string();
    assert_eq!(refused, "limit is 9; it must be at most 8, the queue's size");
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let (mut left, mut right, srq) = pair(LaneMode::Inline, 2);
    let limit = right.context.query_device().unwrap().max_srq_wr;
    assert_eq!(limit, right.context.config().limits.max_srq_wr);
    assert_eq!(right.context.create_srq(limit).unwrap().query().max_wr, limit);
    for max_wr in [0, limit + 1] {
        let refused = right.context.create_srq(max_wr).unwrap_err();
        assert!(
            matches!(refused, VerbsError::OutOfRange { name: "max_wr", value, .. } if value == u64::from(max_wr))
        );
    }
    let recvs = [1, 2, 3].map(RecvWr::empty);
    assert_eq!(srq.post_recvs(&recvs), Err(BadWr { index: 2, error: PostError::QueueFull { max: 2 } }));
    assert_eq!(srq.post_recv(recvs[0]), Err(PostError::QueueFull { max: 2 }));
    assert_eq!(srq.query().outstanding, 2);

    // Its queue pairs have no receives of their own, in any state.
    assert_eq!(right.qps[0].post_recv(recvs[0]), Err(PostError::SharedReceives));
    let refused = right.qps[0].post_recvs(&recvs);
    assert_eq!(refused, Err(BadWr { index: 0, error: PostError::SharedReceives }));
    right.qps[0].modify(QpModify::Error).unwrap();
    assert_eq!(right.qps[0].post_recv(recvs[0]), Err(PostError::SharedReceives));
    let (_qp, poster) = right.qps.remove(0).share();
    assert_eq!(poster.post_recv(recvs[0]), Err(PostError::SharedReceives));

    let foreign = QpConfig { srq: Some(srq), ..QpConfig::default() };
    let refused = Qp::create(&left.pd, &left.cq, &left.cq, &foreign).unwrap_err();
    assert!(matches!(refused, VerbsError::OtherContext("shared receive queue")));
    // A size that queue pairs cannot have counts for nothing where it is not used.
    let srq = left.context.create_srq(1);
    let large = QpConfig { srq: srq.ok(), max_recv_wr: u32::MAX, ..QpConfig::default() };
    left.qps.push(Qp::create(&left.pd, &left.cq, &left.cq, &large).unwrap());
}

#[test]
fn a_context_that_has_failed_takes_no_more_receives() {
    let bench = bench(LaneMode::Inline);
    let srq = bench.left.context.create_srq(4).unwrap();
    srq.post_recv(RecvWr::empty(1)).unwrap();
    bench.in_rx.store(true, Ordering::Relaxed);
    assert!(catch_unwind(AssertUnwindSafe(|| bench.left.context.poll())).is_err());
    assert_eq!(srq.post_recv(RecvWr::empty(2)), Err(PostError::LaneFailed));
    assert!(matches!(bench.left.context.create_srq(4), Err(VerbsError::Control(_))));
    assert_eq!(srq.query().outstanding, 1);
}

/// Two threads post while two lanes take, and a full queue makes them wait: each request is taken once.
#[test]
fn threads_post_while_lanes_take() {
    const EACH: u64 = 3_000;
    let (mut left, mut right, srq) = pair(THREAD, 16);
    let posted = Arc::new(AtomicU64::new(0));
    let posters: Vec<_> = (0..2)
        .map(|thread| {
            let (srq, posted) = (srq.clone(), Arc::clone(&posted));
            #[expect(clippy::disallowed_methods, reason = "the test is about threads")]
            std::thread::spawn(move || {
                for wr_id in thread * EACH..(thread + 1) * EACH {
                    while srq.post_recv(RecvWr::empty(wr_id)) == Err(PostError::QueueFull { max: 16 }) {
                        std::thread::yield_now();
                    }
                    posted.fetch_add(1, Ordering::Release);
                }
            })
        })
        .collect();
    let (mut sent, mut done, mut taken) = (0, 0, Vec::new());
    until("all immediates", || {
        // No immediate is sent that would not find its request.
        while sent < posted.load(Ordering::Acquire) && sent - done < 64 {
            let qp = sent as usize % QPS;
            let wr = immediate(&left, &right, qp, sent);
            left.qps[qp].post_send(wr).unwrap();
            sent += 1;
        }
        while let Some(wc) = left.cq.poll_one().unwrap() {
            assert!(wc.status.is_success(), "{wc:?}");
            done += 1;
        }
        while let Some(wc) = right.cq.poll_one().unwrap() {
            taken.push(wc.wr_id);
        }
        (taken.len() as u64 == 2 * EACH).then_some(())
    });
    for poster in posters {
        poster.join().unwrap();
    }
    // Those of one thread are taken in their order by each lane, and reported in it.
    taken.sort_unstable();
    assert!(taken.into_iter().eq(0..2 * EACH), "each once");
    assert_eq!(srq.query().outstanding, 0);
}
