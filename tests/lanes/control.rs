//! Control calls beside a lane that works.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use spindrift::verbs::{
    Access, Context, ControlError, Idle, LaneMode, QpModify, QpState, VerbsError, WcStatus,
};

use crate::connected_pair::{HYBRID, Side, THREAD, pair, returns, until, write};

/// Writes one message after the other, and looks at each completion.
fn transfer(left: &mut Side, right: &Side, messages: u64, mut seen: impl FnMut(&Side, u64)) {
    for n in 0..messages {
        left.qp.post_send(write(left, right, n, 1 << 16)).unwrap();
        let wc = until("a completion", || left.cq.poll_one().unwrap());
        assert_eq!((wc.wr_id, wc.status), (n, WcStatus::Success));
        seen(left, n);
    }
}

/// A transfer goes on, and every one of the callers is served, while eight threads make control calls without a pause.
fn under_fire(call: impl Fn(&Context) + Sync) {
    const CALLERS: usize = 8;
    let (mut left, right) = pair(2, THREAD);
    let stop = AtomicBool::new(false);
    let calls: [AtomicU64; CALLERS] = std::array::from_fn(|_| AtomicU64::new(0));
    let ready = Barrier::new(CALLERS + 1);
    std::thread::scope(|scope| {
        for count in &calls {
            let (context, stop, ready, call) = (left.context.clone(), &stop, &ready, &call);
            scope.spawn(move || {
                ready.wait();
                while !stop.load(Ordering::Relaxed) {
                    call(&context);
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        ready.wait();
        transfer(&mut left, &right, 64, |_, _| {});
        until("a call of each thread", || calls.iter().all(|n| n.load(Ordering::Relaxed) > 2).then_some(()));
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn counters_read_by_many_threads_leave_the_lane_its_time() {
    under_fire(|context| {
        context.lane_counters();
    });
}

#[test]
fn control_calls_of_many_threads_leave_the_lane_its_time() {
    under_fire(|context| {
        context.with_endpoint(|endpoint| endpoint.qpns().count()).unwrap();
    });
}

#[test]
fn counters_include_all_that_completed_before() {
    for lane in [THREAD, LaneMode::Thread { core: None, idle: Idle::Spin }] {
        let (mut left, right) = pair(2, lane);
        transfer(&mut left, &right, 40, |left, n| {
            let packets = (n + 1) * 16;
            let counters = left.context.counters();
            assert!(counters.tx_data >= packets, "{} of {packets}", counters.tx_data);
            assert!(left.context.lane_counters().tx_frames >= packets);
            let ports: u64 = left.context.query_ports().iter().map(|port| port.counters.tx_frames).sum();
            assert!(ports >= packets, "{ports} of {packets}");
        });
    }
}

#[test]
fn a_control_operation_shows_in_counters_read_after_it() {
    let (left, _right) = pair(1, THREAD);
    for n in 1..=20 {
        left.context
            .with_endpoint(|endpoint| {
                let now = spindrift::time::Time(n);
                endpoint.port_link(now, 0, n % 2 == 0);
            })
            .unwrap();
        assert_eq!(left.context.counters().port_changes, n);
    }
}

#[test]
fn a_lane_that_sleeps_answers_at_once() {
    let sleepy = LaneMode::Thread { core: None, idle: Idle::Nap(Duration::from_hours(1)) };
    let (left, right) = pair(1, sleepy);
    returns("a sleeping lane", move || {
        for _ in 0..5 {
            // Long enough to fall asleep.
            std::thread::park_timeout(Duration::from_millis(50));
            left.context.lane_counters();
            left.context.with_endpoint(|_| ()).unwrap();
            left.context.with_endpoint(|_| ()).unwrap();
        }
        drop((left, right));
    });
}

/// A lane with nothing to do looks when its next timer is due, not before.
#[test]
fn a_lane_with_nothing_to_do_sleeps() {
    let sleepy = LaneMode::Thread { core: None, idle: Idle::Nap(Duration::from_hours(1)) };
    let (left, right) = pair(1, sleepy);
    std::thread::park_timeout(Duration::from_millis(100));
    let before = left.context.lane_counters().polls;
    std::thread::park_timeout(Duration::from_millis(300));
    // Each look at the counters wakes it for some thousand polls.
    let polls = left.context.lane_counters().polls - before;
    assert!(polls < 50_000, "{polls}");
    drop((left, right));
}

/// Every control call within a control call says so; what only reads or ends something works.
#[test]
fn a_control_call_within_another_returns() {
    for lane in [THREAD, LaneMode::Inline, HYBRID] {
        returns("a nested call", move || {
            let (mut left, mut right) = pair(1, lane);
            let context = left.context.clone();
            let pd = context.create_pd().unwrap();
            let (spare, access) = (pd.register(64, Access::LOCAL_READ).unwrap(), Access::LOCAL_READ);
            let rkey = spare.rkey();
            let nested = |error: VerbsError| {
                assert!(matches!(error, VerbsError::Control(ControlError::Nested)), "{error}");
            };
            let polls = context.lane_counters().polls;
            context
                .with_endpoint(|endpoint| {
                    nested(context.with_endpoint(|_| ()).unwrap_err());
                    // Memory and completion queues belong to no lane.
                    drop(context.create_cq(4).unwrap());
                    let more = context.create_pd().unwrap().register(64, access).unwrap();
                    nested(more.deregister().unwrap_err().1);
                    nested(left.qp.info().unwrap_err());
                    nested(left.qp.modify(QpModify::Error).unwrap_err());
                    assert_eq!(left.qp.state(), (QpState::Rts, None));
                    assert!(context.lane_counters().polls >= polls);
                    assert_eq!(context.poll(), 0);
                    // Another context is another matter.
                    right.context.with_endpoint(|_| ()).unwrap();
                    let regions = endpoint.memory().regions();
                    drop(spare);
                    assert_eq!(endpoint.memory().regions(), regions, "not while the endpoint is lent");
                })
                .unwrap();
            let known = context.with_endpoint(move |endpoint| endpoint.deregister(rkey)).unwrap();
            assert!(known.is_err(), "the dropped registration ended with the call that it was dropped in");
            right.qp.modify(QpModify::Error).unwrap();
        });
    }
}
