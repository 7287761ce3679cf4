//! Lanes that the application and a thread drive in turn.

use std::sync::atomic::{AtomicBool, Ordering};

use spindrift::pmd::loopback::{self, LoopbackConfig};
use spindrift::verbs::{Access, LaneMode, QpConfig, SendOp, SendWr, nic};

use crate::connected_pair::{HYBRID, Side, connect, faulty, pair, side, until, write};
use crate::sleep::settle;

/// A write, for which both sides are polled.
fn exchange(left: &mut Side, right: &Side, wr_id: u64) {
    let wr = write(left, right, wr_id, 64);
    left.qp.post_send(wr).unwrap();
    let wc = until("a completion", || {
        right.context.poll();
        left.context.poll();
        left.cq.poll_one().unwrap()
    });
    assert!(wc.status.is_success() && wc.wr_id == wr_id, "{wc:?}");
}

/// Who waits for completions only needs the thread; who polls the lane does not.
#[test]
fn either_drives_the_lane() {
    let (mut left, right) = pair(2, HYBRID);
    for wr_id in 0..100 {
        if wr_id % 20 < 10 {
            exchange(&mut left, &right, wr_id);
            continue;
        }
        left.qp.post_send(write(&left, &right, wr_id, 64)).unwrap();
        // Nothing wakes the other side's thread when a frame comes over this port.
        let wc = until("a completion", || {
            right.context.poll();
            left.cq.poll_one().unwrap()
        });
        assert!(wc.status.is_success() && wc.wr_id == wr_id, "{wc:?}");
    }
}

/// The application takes a request whose response is lost, and polls no more: the thread, which napped meanwhile,
/// retransmits the response.
#[test]
fn a_timer_that_was_set_in_place_wakes_the_thread() {
    let (left, right) = loopback::pair(1, LoopbackConfig::default());
    let config = QpConfig::default();
    let mut left = side(faulty(left, "loss=0.5", 1), HYBRID, &config);
    let mut right = side(nic(right), LaneMode::Inline, &config);
    connect(&mut left, &mut right);
    let source = left.pd.register(64, Access::REMOTE_READ).unwrap();
    let sink = right.pd.register(64, Access::LOCAL_WRITE).unwrap();
    for wr_id in 0..20 {
        // Nothing wakes the thread when the request comes over this port.
        settle();
        let read = SendWr {
            wr_id,
            op: SendOp::Read,
            local: sink.sge(0, 8).unwrap(),
            remote: source.remote().at(0, 8).unwrap(),
            signaled: true,
            fence: false,
        };
        right.qp.post_send(read).unwrap();
        let mut has_taken = false;
        let wc = until("a response", || {
            right.context.poll();
            has_taken = has_taken || left.context.poll() > 0;
            right.cq.poll_one().unwrap()
        });
        assert!(wc.status.is_success(), "{wc:?}");
    }
    let counters = left.context.counters();
    assert!(counters.tx_retransmits + counters.tx_tail_probes > 0, "{counters:?}");
}

/// Several threads poll one lane, one posts, and all of them make control calls.
#[test]
fn any_thread_may_drive_the_lane() {
    let (mut left, right) = pair(2, HYBRID);
    let stop = AtomicBool::new(false);
    let (context, other) = (left.context.clone(), right.context.clone());
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (context, other, stop) = (&context, &other, &stop);
            scope.spawn(move || {
                let mut turn = 0_u32;
                while !stop.load(Ordering::Relaxed) {
                    context.poll();
                    other.poll_busy();
                    turn = turn.wrapping_add(1);
                    if turn % 1024 == thread {
                        context
                            .with_endpoint(|_| assert_eq!(context.poll(), 0, "not within a call"))
                            .unwrap();
                        assert!(context.lane_counters().polls > 0);
                    }
                }
            });
        }
        for wr_id in 0..200 {
            exchange(&mut left, &right, wr_id);
        }
        stop.store(true, Ordering::Relaxed);
    });
}
