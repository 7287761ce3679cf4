//! Children of a process that has a context: no call there waits, sends, or takes anything away from the parent.
//!
//! One test at a time, in a process of their own: a child has the locks of other threads as they were, those of the standard
//! library among them, and nobody there releases them.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a failed test is the message"
)]

#[allow(dead_code, reason = "other tests use the rest")]
#[path = "lanes/connected_pair.rs"]
mod connected_pair;

use core::time::Duration;
use std::sync::{Mutex, MutexGuard, PoisonError};

use spindrift::pmd::testing::in_child;
use spindrift::pmd::udp::{UdpConfig, UdpPort};
use spindrift::verbs::{
    Access, Context, ContextConfig, ControlError, CqError, FailReason, Idle, LaneMode, PostError, Qp,
    QpConfig, QpModify, QpPoster, QpState, RecvWr, SendWr, VerbsError, nic,
};

use connected_pair::{HYBRID, Side, THREAD, complete, connect, pair, side_on, until, write};

/// Held by the test that runs.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

const NAP: LaneMode = LaneMode::Thread { core: None, idle: Idle::Nap(Duration::from_millis(5)) };

/// Makes every kind of call and drops everything. Whether each did nothing and said so.
fn all_calls(side: Side, poster: &QpPoster, wr: SendWr) -> bool {
    let Side { context, pd, channel, mut cq, mr, mut qp } = side;
    let forked = |error: &VerbsError| matches!(error, VerbsError::Control(ControlError::Forked));
    let refused = [
        context.create_pd().map(drop),
        context.create_cq(8).map(drop),
        context.create_srq(8).map(drop),
        context.create_comp_channel().map(drop),
        pd.register(64, Access::REMOTE_WRITE).map(drop),
        Qp::create(&pd, &cq, &cq, &QpConfig::default()).map(drop),
        context.with_endpoint(|_| ()),
        qp.modify(QpModify::Error),
        qp.info().map(drop),
        channel.get_event(None).map(drop),
    ];
    let refused = refused.iter().all(|result| result.as_ref().is_err_and(forked));
    let posts = qp.post_send(wr) == Err(PostError::LaneFailed)
        && qp.post_recv(RecvWr::empty(1)) == Err(PostError::LaneFailed)
        && poster.post_send(wr) == Err(PostError::LaneFailed)
        && poster.state() == (QpState::Error, Some(FailReason::LaneFailed))
        && qp.state() == poster.state();
    let polls = (0..100).all(|_| context.poll() == 0 && context.poll_lane(0) == 0)
        && context.wait_lane(0, Duration::from_secs(1)).is_err();
    let ends = cq.req_notify().is_ok()
        && cq.poll_one() == Err(CqError::LaneFailed)
        && channel.try_event().is_none()
        && context.poll_async_event().is_none();
    let counters = context.counters().tx_data == 0 && context.lane_counters().polls == 0;
    let ports = context.query_ports();
    let mr = mr.deregister();
    let memory = mr.as_ref().is_err_and(|(_, error)| forked(error));
    drop((qp, mr, cq, channel, pd, context));
    refused && posts && polls && ends && counters && memory && ports.len() < 100
}

#[test]
fn no_call_in_a_child_waits_and_the_parent_goes_on() {
    let _alone = alone();
    for mode in [LaneMode::Inline, THREAD, NAP, HYBRID] {
        let (mut left, right) = pair(2, mode);
        let wr = write(&left, &right, 1, 5000);
        complete(&mut left, &right, wr);
        let (qp, poster) = left.qp.share();
        // The child has the sides as they are, the parent still has them.
        let mut left = Some(Side { qp, ..left });
        let child = in_child(|| left.take().is_some_and(|left| all_calls(left, &poster, wr)));
        assert_eq!(child, Some(true), "{mode:?}");
        let mut left = left.unwrap();
        complete(&mut left, &right, wr);
        assert_eq!(left.qp.state(), (QpState::Rts, None));
    }
}

/// A child shares the sockets: what it sent would arrive.
#[test]
fn a_child_sends_nothing_and_receives_nothing() {
    let _alone = alone();
    let open = |address: [u8; 4]| {
        let port = UdpPort::open(&UdpConfig { local: address.into(), port: 0, ..UdpConfig::default() });
        let port = port.unwrap();
        let udp_port = port.port();
        let ports = nic(vec![port]);
        let mut settings = ContextConfig { seed: Some(1.into()), ..ContextConfig::new(&ports) };
        settings.endpoint.udp_port = udp_port;
        side_on(Context::open(ports, settings).unwrap(), &QpConfig::default(), 64)
    };
    let (mut left, mut right) = (open([127, 0, 0, 71]), open([127, 0, 0, 72]));
    connect(&mut left, &mut right);
    let wr = write(&left, &right, 7, 100);
    left.qp.post_send(wr).unwrap();
    let child = in_child(|| (0..1000).all(|_| left.context.poll() == 0 && right.context.poll() == 0));
    assert_eq!(child, Some(true));
    for _ in 0..100 {
        right.context.poll();
    }
    assert_eq!(right.context.counters().rx_data, 0);
    // What has arrived is the parent's to receive.
    left.context.poll();
    assert_eq!(in_child(|| (0..1000).all(|_| right.context.poll() == 0)), Some(true));
    complete(&mut left, &right, SendWr { wr_id: 8, ..wr });
}

#[test]
fn a_child_has_contexts_of_its_own() {
    let _alone = alone();
    let (parent, _other) = pair(1, THREAD);
    let child = in_child(|| {
        let (mut left, right) = pair(1, THREAD);
        let wr = write(&left, &right, 1, 100);
        complete(&mut left, &right, wr);
        parent.context.create_pd().is_err()
    });
    assert_eq!(child, Some(true));
    assert!(parent.context.create_pd().is_ok());
}

/// Children at any moment, while the lanes of the parent work.
#[test]
fn children_that_come_at_any_moment_end() {
    let _alone = alone();
    let (mut left, mut right) = pair(2, THREAD);
    for round in 0..40 {
        let wr = write(&left, &right, round, 60_000);
        left.qp.post_send(wr).unwrap();
        let mut both = Some((left, right));
        let child = in_child(|| {
            drop(both.take());
            true
        });
        assert_eq!(child, Some(true), "round {round}");
        (left, right) = both.unwrap();
        let wc = until("a completion", || left.cq.poll_one().unwrap());
        assert!(wc.status.is_success() && wc.wr_id == round, "{wc:?}");
    }
}
