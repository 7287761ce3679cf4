//! A lane that panics tells everyone.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use spindrift::pmd::loopback::{self, LoopbackConfig};
use spindrift::pmd::{Port, RxFrame, TxFrame, forward_to_inner};
use spindrift::verbs::{
    Access, AsyncEvent, ControlError, CqError, FailReason, LaneMode, PostError, QpConfig, QpState, RecvWr,
    VerbsError, WcStatus, nic,
};

use crate::connected_pair::{HYBRID, Side, THREAD, all_of, connect, returns, side, write};

/// A port with a defect that can be switched on.
pub(crate) struct Broken<P> {
    pub(crate) inner: P,
    pub(crate) in_tx: Arc<AtomicBool>,
    pub(crate) in_rx: Arc<AtomicBool>,
}

impl<P: Port> Port for Broken<P> {
    forward_to_inner!(caps, link, tx_room, unsent, flush, reap, recall, counters);

    fn tx_burst(&mut self, now_ns: u64, frames: &[TxFrame<'_>]) -> usize {
        assert!(!self.in_tx.load(Ordering::Relaxed), "no frame leaves here");
        self.inner.tx_burst(now_ns, frames)
    }

    fn rx_burst(&mut self, now_ns: u64, max: usize, sink: &mut dyn FnMut(&RxFrame<'_>)) -> usize {
        assert!(!self.in_rx.load(Ordering::Relaxed), "no frame comes here");
        self.inner.rx_burst(now_ns, max, sink)
    }
}

pub(crate) struct Bench {
    pub(crate) left: Side,
    pub(crate) right: Side,
    in_tx: Arc<AtomicBool>,
    pub(crate) in_rx: Arc<AtomicBool>,
}

pub(crate) fn bench(lane: LaneMode) -> Bench {
    let (ours, theirs) = loopback::pair(1, LoopbackConfig::default());
    let (in_tx, in_rx) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let broken = |inner| Broken { inner, in_tx: Arc::clone(&in_tx), in_rx: Arc::clone(&in_rx) };
    let ours: Vec<_> = ours.into_iter().map(broken).collect();
    let config = QpConfig::default();
    // The other side never polls, so that nothing is acknowledged.
    let (mut left, mut right) =
        (side(nic(ours), lane, &config), side(nic(theirs), LaneMode::Inline, &config));
    connect(&mut left, &mut right);
    Bench { left, right, in_tx, in_rx }
}

/// Everything of a context whose lane has failed says so; three sends and two receives were posted.
fn check_all_told(left: &mut Side, right: &Side, text: &str) {
    let (seen, end) = all_of(&mut left.cq);
    assert_eq!(end, CqError::LaneFailed);
    let flushed: Vec<_> = [1, 2, 3, 11, 12].map(|wr_id| (wr_id, WcStatus::WrFlushError)).into();
    assert_eq!(seen, flushed, "each once");
    assert_eq!(left.cq.poll_one(), Err(CqError::LaneFailed), "for ever");
    assert_eq!(left.qp.state(), (QpState::Error, Some(FailReason::LaneFailed)));
    assert_eq!((left.qp.sends_outstanding(), left.qp.recvs_outstanding()), (0, 0));
    assert_eq!(left.qp.post_send(write(left, right, 9, 8)), Err(PostError::LaneFailed));
    assert_eq!(left.qp.post_recv(RecvWr::empty(9)), Err(PostError::LaneFailed));
    let failed =
        |error| matches!(error, VerbsError::Control(ControlError::LaneFailed(why)) if why.contains(text));
    assert!(failed(left.context.with_endpoint(|_| ()).unwrap_err()));
    assert!(failed(left.context.create_cq(4).unwrap_err()));
    assert!(failed(left.qp.info().unwrap_err()));
    assert!(failed(left.pd.register(64, Access::LOCAL_READ).unwrap_err()));
    assert!(left.context.failure().unwrap().contains(text));
    let events: Vec<_> = std::iter::from_fn(|| left.context.poll_async_event()).collect();
    assert!(
        matches!(events[..], [AsyncEvent::QpFatal(failure), AsyncEvent::LaneFailed]
            if (failure.qpn, failure.reason) == (left.qp.qpn(), FailReason::LaneFailed)),
        "{events:?}"
    );
    assert_eq!(left.context.poll(), 0);
    assert!(left.context.lane_counters().polls > 0, "what was counted can still be read");
    assert_eq!(left.context.counters().qp_errors, 1);
}

fn post(bench: &mut Bench) {
    for wr_id in 1..=3 {
        let wr = write(&bench.left, &bench.right, wr_id, 8);
        bench.left.qp.post_send(wr).unwrap();
    }
    for wr_id in 11..=12 {
        bench.left.qp.post_recv(RecvWr::empty(wr_id)).unwrap();
    }
}

#[test]
fn a_port_that_panics_while_sending_fails_the_context() {
    let mut bench = bench(THREAD);
    bench.in_tx.store(true, Ordering::Relaxed);
    // The first send may meet the panic before the rest is posted: then the rest would be refused.
    bench.left.context.with_endpoint(|_| ()).unwrap();
    let context = bench.left.context.clone();
    let mut bench = context
        .with_endpoint(move |_| {
            post(&mut bench);
            bench
        })
        .unwrap();
    returns("a context that failed", move || {
        check_all_told(&mut bench.left, &bench.right, "no frame leaves here");
    });
}

#[test]
fn a_port_that_panics_while_receiving_fails_the_context() {
    let mut bench = bench(THREAD);
    post(&mut bench);
    bench.in_rx.store(true, Ordering::Relaxed);
    returns("a context that failed", move || {
        check_all_told(&mut bench.left, &bench.right, "no frame comes here");
    });
}

/// Whoever meets the panic, the caller of `poll` or the lane's thread, the program goes on.
#[test]
fn a_panic_of_a_hybrid_lane_fails_the_context() {
    let mut bench = bench(HYBRID);
    post(&mut bench);
    bench.in_rx.store(true, Ordering::Relaxed);
    returns("a context that failed", move || {
        while bench.left.context.failure().is_none() {
            bench.left.context.poll();
        }
        check_all_told(&mut bench.left, &bench.right, "no frame comes here");
    });
}

#[test]
fn a_panic_in_the_callers_thread_reaches_the_caller_and_the_rest() {
    let mut bench = bench(LaneMode::Inline);
    bench.left.context.poll();
    post(&mut bench);
    bench.in_rx.store(true, Ordering::Relaxed);
    let poll = catch_unwind(AssertUnwindSafe(|| bench.left.context.poll()));
    assert!(poll.is_err());
    returns("a context that failed", move || {
        check_all_told(&mut bench.left, &bench.right, "no frame comes here");
    });
}
