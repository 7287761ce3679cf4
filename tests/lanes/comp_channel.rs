//! Completion channels: who asks to be woken is, once for each time asked, whatever the lane does meanwhile.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::event::epoll;
use spindrift::pmd::loopback::{self, LoopbackConfig};
use spindrift::verbs::{
    CompChannel, ControlError, CqError, Idle, LaneMode, Qp, QpConfig, RecvWr, SendOp, SendWr, VerbsError,
    WcStatus, nic,
};

use crate::connected_pair::{self as sides, Side, THREAD, connect, pair, returns, side, until, write};
use crate::panic::{Bench, bench};

const SOON: Option<Duration> = Some(Duration::from_millis(20));
/// Longer than anything here takes.
const PATIENCE: Option<Duration> = Some(Duration::from_mins(1));

fn is_readable(channel: &CompChannel) -> bool {
    sides::is_readable(channel.as_fd())
}

/// Waits until all that was posted has completed, without a look at the completion queue.
fn complete_unseen(side: &Side) {
    until("the end of what was posted", || (side.qp.sends_outstanding() == 0).then_some(()));
    // There is room again before the completion is told.
    side.context.with_endpoint(|_| ()).unwrap();
}

#[test]
fn one_event_for_each_time_asked() {
    let (mut left, right) = pair(1, THREAD);
    // Not asked: no event.
    left.qp.post_send(write(&left, &right, 1, 64)).unwrap();
    complete_unseen(&left);
    assert!(!is_readable(&left.channel));
    assert_eq!(left.channel.get_event(SOON).unwrap(), None);

    // What has come before makes none either, and the caller is told so.
    assert!(left.cq.req_notify().unwrap(), "a completion is there");
    assert!(!is_readable(&left.channel));
    assert_eq!(left.cq.poll_one().unwrap().unwrap().wr_id, 1);

    // Asked twice, two completions: one event, in whatever way it is waited for, and no second.
    assert!(!left.cq.req_notify().unwrap());
    for wr_id in 2..4 {
        left.qp.post_send(write(&left, &right, wr_id, 64)).unwrap();
    }
    assert_eq!(left.channel.get_event(PATIENCE).unwrap(), Some(left.cq.id()));
    assert!(!is_readable(&left.channel), "its only event is taken");
    complete_unseen(&left);
    assert_eq!(left.channel.try_event(), None);
    for wr_id in 2..4 {
        assert_eq!(left.cq.poll_one().unwrap().unwrap().wr_id, wr_id);
    }

    // Asked again while the event of the last time has not been taken: still one.
    for wr_id in 4..6 {
        assert_eq!(left.cq.req_notify().unwrap(), wr_id == 5);
        left.qp.post_send(write(&left, &right, wr_id, 64)).unwrap();
        complete_unseen(&left);
        assert!(is_readable(&left.channel));
    }
    assert_eq!(left.channel.try_event(), Some(left.cq.id()));
    assert_eq!(left.channel.try_event(), None);
    assert!(!is_readable(&left.channel));
}

/// A receiver that sleeps until each message has come, by an event or by epoll, misses none.
#[test]
fn no_completion_is_slept_through() {
    const MESSAGES: u64 = 20_000;
    let (mut left, mut right) = pair(1, THREAD);
    let target = right.mr.remote();
    for wr_id in 0..64 {
        right.qp.post_recv(RecvWr::empty(wr_id)).unwrap();
    }
    // Messages that the receiver has seen, and posted another receive for: an acknowledgement says nothing of that.
    let seen = Arc::new(AtomicU64::new(0));
    let told = Arc::clone(&seen);
    let waiting = move || {
        let queue = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        epoll::add(&queue, &right.channel, epoll::EventData::new_u64(7), epoll::EventFlags::IN).unwrap();
        let mut got = 0;
        while got < MESSAGES {
            while let Some(wc) = right.cq.poll_one().unwrap() {
                assert_eq!((wc.imm, wc.status), (Some(got as u32), WcStatus::Success));
                got += 1;
                right.qp.post_recv(RecvWr::empty(got)).unwrap();
                told.store(got, Ordering::Release);
            }
            if got == MESSAGES || right.cq.req_notify().unwrap() {
                continue;
            }
            if got % 2 == 0 {
                let mut ready = Vec::with_capacity(1);
                epoll::wait(&queue, rustix::buffer::spare_capacity(&mut ready), None).unwrap();
                assert_eq!(ready.first().map(|event| event.data.u64()), Some(7));
                assert_eq!(right.channel.try_event(), Some(right.cq.id()));
            } else {
                assert_eq!(right.channel.get_event(None).unwrap(), Some(right.cq.id()));
            }
        }
        right
    };
    let sending = move || {
        for n in 0..MESSAGES {
            // Room for one more in the peer's receive queue, and now and then time enough to fall asleep.
            let most = if n % 64 == 0 { 1 } else { 32 };
            until("room", || (n - seen.load(Ordering::Acquire) < most).then_some(()));
            let (op, remote) = (SendOp::WriteWithImm(n as u32), target.at(0, 8).unwrap());
            let local = left.mr.sge(0, 8).unwrap();
            left.qp.post_send(SendWr { wr_id: n, op, local, remote, signaled: false, fence: false }).unwrap();
        }
        left
    };
    #[expect(clippy::disallowed_methods, reason = "a sender beside the receiver")]
    let left = std::thread::spawn(sending);
    let right = returns("the receiver", waiting);
    drop((left.join().unwrap(), right));
}

/// Two queues of two queue pairs share a channel; the event says which of them it was. A dropped one says nothing more.
#[test]
fn an_event_names_its_queue_and_dies_with_it() {
    let (mut left, right) = pair(1, THREAD);
    let mut second = left.context.create_cq_with_channel(16, &left.channel).unwrap();
    let mut qp = Qp::create(&left.pd, &second, &second, &QpConfig::default()).unwrap();
    let mut peer = Qp::create(&right.pd, &right.cq, &right.cq, &QpConfig::default()).unwrap();
    qp.connect(&peer.info().unwrap()).unwrap();
    peer.connect(&qp.info().unwrap()).unwrap();
    assert!(!second.req_notify().unwrap() && !left.cq.req_notify().unwrap());
    qp.post_send(write(&left, &right, 1, 64)).unwrap();
    assert_eq!(left.channel.get_event(PATIENCE).unwrap(), Some(second.id()));
    left.qp.post_send(write(&left, &right, 2, 64)).unwrap();
    assert_eq!(left.channel.get_event(PATIENCE).unwrap(), Some(left.cq.id()));

    second.req_notify().unwrap();
    qp.post_send(write(&left, &right, 3, 64)).unwrap();
    until("the event", || is_readable(&left.channel).then_some(()));
    drop((qp, second));
    assert_eq!(left.channel.get_event(SOON).unwrap(), None);
    assert!(!is_readable(&left.channel));
}

#[test]
fn what_cannot_tell_or_be_waited_for_is_refused() {
    let (left, right) = pair(1, THREAD);
    let mut mute = left.context.create_cq(16).unwrap();
    assert!(matches!(mute.req_notify(), Err(VerbsError::NoChannel)));
    let foreign = right.context.create_comp_channel().unwrap();
    let refused = left.context.create_cq_with_channel(16, &foreign).unwrap_err();
    assert!(matches!(refused, VerbsError::OtherContext("completion channel")), "{refused}");
    let nested = left.context.with_endpoint(|_| left.channel.get_event(None)).unwrap().unwrap_err();
    assert!(matches!(nested, VerbsError::Control(ControlError::Nested)), "{nested}");
}

/// Without a thread of the lane's own, waiting is what drives it.
#[test]
fn waiting_drives_a_lane_inside_the_callers_thread() {
    let (mut left, right) = pair(1, LaneMode::Inline);
    assert!(!left.cq.req_notify().unwrap());
    left.qp.post_send(write(&left, &right, 1, 64)).unwrap();
    // The peer does nothing yet.
    assert_eq!(left.channel.get_event(SOON).unwrap(), None);
    assert!(right.context.poll() > 0, "the message has been sent");
    right.context.poll();
    assert_eq!(left.channel.get_event(PATIENCE).unwrap(), Some(left.cq.id()));
    assert_eq!(left.cq.poll_one().unwrap().unwrap().wr_id, 1);
}

/// The end of a queue is an event, for nothing else comes after it.
#[test]
fn a_queue_that_overruns_wakes_its_owner() {
    let (left, right) = pair(1, THREAD);
    let mut small = left.context.create_cq_with_channel(1, &left.channel).unwrap();
    let mut qp = Qp::create(&left.pd, &small, &small, &QpConfig::default()).unwrap();
    let mut peer = Qp::create(&right.pd, &right.cq, &right.cq, &QpConfig::default()).unwrap();
    qp.connect(&peer.info().unwrap()).unwrap();
    peer.connect(&qp.info().unwrap()).unwrap();
    qp.post_send(write(&left, &right, 1, 64)).unwrap();
    until("the first completion", || (qp.sends_outstanding() == 0).then_some(()));
    // It has been told, too: asked before that, the queue would tell of it.
    left.context.with_endpoint(|_| ()).unwrap();
    assert!(small.req_notify().unwrap());
    qp.post_send(write(&left, &right, 2, 64)).unwrap();
    assert_eq!(left.channel.get_event(PATIENCE).unwrap(), Some(small.id()));
    assert_eq!(small.poll_one().unwrap().unwrap().wr_id, 1);
    assert!(matches!(small.poll_one(), Err(CqError::Overrun { depth: 1 })));
    assert!(small.req_notify().unwrap(), "the end can be polled for ever");
}

/// Nobody waits for ever on a lane that has failed, asked or not.
#[test]
fn a_lane_that_fails_wakes_all_who_wait() {
    for asked in [true, false] {
        let Bench { mut left, right: _right, in_rx, .. } = bench(THREAD);
        if asked {
            assert!(!left.cq.req_notify().unwrap());
        }
        let (waiter, id) = (left.channel.clone(), left.cq.id());
        in_rx.store(true, Ordering::Relaxed);
        let (first, second) = returns("the wait for a lane that fails", move || {
            (waiter.get_event(None), waiter.get_event(None))
        });
        if asked {
            assert_eq!(first.unwrap(), Some(id));
        } else {
            assert!(matches!(first, Err(VerbsError::Control(ControlError::LaneFailed(_)))), "{first:?}");
        }
        assert!(matches!(second, Err(VerbsError::Control(ControlError::LaneFailed(_)))), "{second:?}");
        assert_eq!(left.channel.try_event(), None);
        assert!(is_readable(&left.channel), "for ever");
        assert!(matches!(left.cq.poll_one(), Err(CqError::LaneFailed)));
    }
}

/// A lane that would nap for ten minutes takes up what is posted at once, from its first nap on.
#[test]
fn a_napping_lane_wakes_on_a_post() {
    let napping = LaneMode::Thread { core: None, idle: Idle::Nap(Duration::from_mins(10)) };
    let (left, right) = loopback::pair(1, LoopbackConfig::default());
    let config = QpConfig::default();
    let (mut left, mut right) = (side(nic(left), napping, &config), side(nic(right), THREAD, &config));
    connect(&mut left, &mut right);
    for wr_id in 0..20 {
        // Asleep: it makes a turn for each look at its counters, and no other.
        until("the nap", || {
            let polls = left.context.lane_counters().polls;
            #[expect(clippy::disallowed_methods, reason = "nothing tells of a lane that sleeps")]
            std::thread::sleep(Duration::from_millis(5));
            (left.context.lane_counters().polls <= polls + 2).then_some(())
        });
        left.qp.post_send(write(&left, &right, wr_id, 64)).unwrap();
        let wc = until("a completion", || left.cq.poll_one().unwrap());
        assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::Success));
    }
}
