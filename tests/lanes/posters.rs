//! Lists of requests, and posting from several threads.

use core::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::collections::BTreeMap;

use spindrift::pmd::loopback::{self, LoopbackConfig};
use spindrift::verbs::{
    BadWr, Extensions, InlineWr, LaneMode, PostError, QpConfig, QpModify, QpPoster, QpState, RecvWr, SendOp,
    SendWr, Wc, WcOpcode, WcStatus, nic,
};

use crate::connected_pair::{HYBRID, Side, THREAD, connect, pair, side, side_with_cq, until, write};

/// The sending side's next completion.
fn next(left: &mut Side, right: &Side) -> Wc {
    until("a completion", || {
        right.context.poll();
        left.context.poll();
        left.cq.poll_one().unwrap()
    })
}

fn statuses(left: &mut Side, right: &Side, count: usize) -> Vec<(u64, WcStatus)> {
    (0..count).map(|_| next(left, right)).map(|wc| (wc.wr_id, wc.status)).collect()
}

fn good(ids: core::ops::Range<u64>) -> Vec<(u64, WcStatus)> {
    ids.map(|id| (id, WcStatus::Success)).collect()
}

#[test]
fn a_list_is_posted_up_to_the_first_request_that_is_refused() {
    let (left, right) = loopback::pair(2, LoopbackConfig::default());
    let extensions = Extensions::NONE;
    let config = QpConfig { max_send_wr: 5, max_recv_wr: 3, extensions, ..QpConfig::default() };
    let sides = [left, right].map(|ports| side(nic(ports), LaneMode::Inline, &config));
    let [mut left, mut right] = sides;
    let list: Vec<_> = (0..8).map(|wr_id| write(&left, &right, wr_id, 100)).collect();
    let refused = |index, error| Err(BadWr { index, error });
    assert_eq!(left.qp.post_sends(&list), refused(0, PostError::WrongState(QpState::Reset)));
    assert_eq!(left.qp.post_recvs(&[RecvWr::empty(0)]), refused(0, PostError::WrongState(QpState::Reset)));
    assert_eq!((left.qp.post_sends(&[]), left.qp.post_recvs(&[])), (Ok(()), Ok(())));
    connect(&mut left, &mut right);

    let doorbells = left.context.lane_counters().doorbells;
    assert_eq!(left.qp.post_sends(&list), refused(5, PostError::QueueFull { max: 5 }));
    assert_eq!(left.qp.sends_outstanding(), 5);
    assert_eq!(statuses(&mut left, &right, 5), good(0..5));
    assert_eq!(left.qp.post_sends(&list[5..]), Ok(()));
    assert_eq!(statuses(&mut left, &right, 3), good(5..8));
    assert_eq!(left.context.lane_counters().doorbells - doorbells, 2, "one a list");

    let mut holed = list;
    holed[2].local.len = 0;
    assert_eq!(left.qp.post_sends(&holed), refused(2, PostError::Empty));
    assert_eq!(statuses(&mut left, &right, 2), good(0..2));
    assert_eq!(left.qp.post_sends(&holed[2..]), refused(0, PostError::Empty));
    assert_eq!(left.qp.sends_outstanding(), 0);

    let recvs = [1, 2, 3, 4].map(RecvWr::empty);
    assert_eq!(right.qp.post_recvs(&recvs), refused(3, PostError::QueueFull { max: 3 }));
    let imms: Vec<_> = (0..3)
        .map(|n| SendWr { op: SendOp::WriteWithImm(n), ..write(&left, &right, n.into(), 300) })
        .collect();
    left.qp.post_sends(&imms).unwrap();
    assert_eq!(statuses(&mut left, &right, 3), good(0..3));
    let got: Vec<_> =
        core::iter::from_fn(|| right.cq.poll_one().unwrap()).map(|wc| (wc.wr_id, wc.imm)).collect();
    assert_eq!(got, [(1, Some(0)), (2, Some(1)), (3, Some(2))]);

    // The message says which and why.
    let text = BadWr { index: 5, error: PostError::Empty }.to_string();
    assert!(text.starts_with("work request 5 of the list was not taken"), "{text}");
}

/// Each request writes one cell of the target, which names it.
const CELL: u64 = 64;
const THREADS: u64 = 4;
const EACH: u64 = 200;

/// Posts what a thread has to send: alone, in lists, and inline, an immediate now and then.
fn post_all(poster: &QpPoster, source: &[SendWr]) {
    let mut left = source;
    while let Some((first, rest)) = left.split_first() {
        let taken = match first.wr_id % 3 {
            0 => poster.post_send(*first).map(|()| 1),
            1 => {
                let bytes = [first.wr_id as u8; 8];
                let SendWr { wr_id, op, remote, signaled, .. } = *first;
                poster
                    .post_send_inline(&bytes, InlineWr { wr_id, op, remote, signaled, fence: false })
                    .map(|()| 1)
            }
            _ => {
                let list = &left[..left.len().min(7)];
                match poster.post_sends(list) {
                    Ok(()) => Ok(list.len()),
                    Err(BadWr { index: 0, error }) => Err(error),
                    Err(BadWr { index, .. }) => Ok(index),
                }
            }
        };
        match taken {
            Ok(1) => left = rest,
            Ok(taken) => left = &left[taken..],
            Err(PostError::QueueFull { .. }) => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Four threads post to one queue pair, and nothing is lost, doubled, or out of the order of its thread.
fn several_threads_post(lane: LaneMode) {
    let (left, right) = loopback::pair(3, LoopbackConfig::default());
    let config = QpConfig { max_send_wr: 48, max_recv_wr: 1024, max_inline: 8, ..QpConfig::default() };
    let sides = [left, right].map(|ports| side_with_cq(nic(ports), lane, &config, 1024));
    let [mut left, mut right] = sides;
    connect(&mut left, &mut right);
    let total = THREADS * EACH;
    let recvs: Vec<_> = (0..total).map(RecvWr::empty).collect();
    right.qp.post_recvs(&recvs).unwrap();
    let request = |wr_id: u64| {
        let (at, len) = (wr_id * CELL, 8);
        left.mr.write_at(at as usize, &[wr_id as u8; 8]).unwrap();
        let op = if wr_id.is_multiple_of(5) { SendOp::WriteWithImm(wr_id as u32) } else { SendOp::Write };
        let local = left.mr.sge(at as usize, len).unwrap();
        SendWr {
            wr_id,
            op,
            local,
            remote: right.mr.remote().at(at, len.into()).unwrap(),
            signaled: true,
            fence: false,
        }
    };
    let work: Vec<Vec<_>> =
        (0..THREADS).map(|thread| (thread * EACH..(thread + 1) * EACH).map(request).collect()).collect();
    let (qp, poster) = left.qp.share();
    left.qp = qp;
    std::thread::scope(|scope| {
        for part in &work {
            let poster = poster.clone();
            scope.spawn(move || post_all(&poster, part));
        }
        let mut last = BTreeMap::new();
        for _ in 0..total {
            let wc = next(&mut left, &right);
            assert!(wc.status.is_success(), "{wc:?}");
            let before = last.insert(wc.wr_id / EACH, wc.wr_id);
            let expected = before.map_or(wc.wr_id / EACH * EACH, |before| before + 1);
            assert_eq!(wc.wr_id, expected, "in the order of its thread, each once");
        }
    });
    assert_eq!(left.cq.poll_one().unwrap(), None);
    assert_eq!((poster.sends_outstanding(), left.qp.sends_outstanding()), (0, 0));
    let mut imms = Vec::new();
    while imms.len() < (total / 5) as usize {
        let wc = until("a receive completion", || {
            right.context.poll();
            right.cq.poll_one().unwrap()
        });
        assert_eq!((wc.opcode, wc.wr_id), (WcOpcode::RecvRdmaWithImm, imms.len() as u64));
        imms.push(wc.imm.unwrap());
    }
    imms.sort_unstable();
    assert_eq!(imms, (0..total as u32).step_by(5).collect::<Vec<_>>());
    for wr_id in 0..total {
        let mut cell = [0; CELL as usize];
        right.mr.read_at((wr_id * CELL) as usize, &mut cell).unwrap();
        let mut expected = [0; CELL as usize];
        expected[..8].fill(wr_id as u8);
        assert_eq!(cell, expected, "request {wr_id}");
    }
}

#[test]
fn several_threads_post_to_a_lane_with_a_thread() {
    several_threads_post(THREAD);
}

#[test]
fn several_threads_post_to_a_hybrid_lane() {
    several_threads_post(HYBRID);
}

#[test]
fn several_threads_post_to_an_inline_lane() {
    several_threads_post(LaneMode::Inline);
}

/// What threads that post without end look at.
#[derive(Default)]
struct Churn {
    /// How often the queue pair has been connected.
    life: AtomicU64,
    stop: AtomicBool,
    /// About how many completions are there or to come: the completion queue must hold them.
    to_come: AtomicI64,
}

/// Ends the threads, also when a check fails.
struct Stop<'a>(&'a Churn);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Release);
    }
}

impl Churn {
    /// Posts requests that are named after the life of the queue pair, and returns how many of `last` were taken.
    fn post(&self, last: u64, wr: SendWr, mut post: impl FnMut(SendWr) -> Result<(), PostError>) -> u64 {
        let mut taken = 0;
        while !self.stop.load(Ordering::Acquire) {
            let wr_id = self.life.load(Ordering::Acquire);
            if self.to_come.load(Ordering::Relaxed) > 150 {
                std::thread::yield_now();
                continue;
            }
            match post(SendWr { wr_id, ..wr }) {
                Ok(()) => {
                    self.to_come.fetch_add(1, Ordering::Relaxed);
                    taken += u64::from(wr_id == last);
                }
                Err(PostError::QueueFull { .. } | PostError::WrongState(_)) => std::thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        }
        taken
    }
}

/// Threads that know nothing of it post on while the queue pair is reset and connected again, one of them within control
/// calls. What is taken after the last reset completes, each request once; what was taken before never does so later.
#[test]
fn a_queue_pair_is_reset_under_the_hands_of_those_who_post() {
    const LIVES: u64 = 30;
    let (mut left, mut right) = pair(2, THREAD);
    let wr = write(&left, &right, 0, 100);
    let (qp, poster) = left.qp.share();
    left.qp = qp;
    let churn = Churn::default();
    let context = left.context.clone();
    let mut done = BTreeMap::<u64, u64>::new();
    let taken: u64 = std::thread::scope(|scope| {
        let listing = || churn.post(LIVES, wr, |wr| poster.post_sends(&[wr]).map_err(|bad| bad.error));
        let within = || churn.post(LIVES, wr, |wr| context.with_endpoint(|_| poster.post_send(wr)).unwrap());
        let threads = [scope.spawn(listing), scope.spawn(listing), scope.spawn(within)];
        let running = Stop(&churn);
        for number in 1..=LIVES {
            for side in [&mut left, &mut right] {
                let before = side.qp.qpn();
                side.qp.modify(QpModify::Reset).unwrap();
                assert_ne!(side.qp.qpn(), before);
                assert_eq!(side.qp.info().unwrap().qpn, side.qp.qpn().get());
                assert_eq!((side.qp.sends_outstanding(), side.qp.state()), (0, (QpState::Reset, None)));
            }
            assert_eq!(poster.qpn(), left.qp.qpn());
            // Nobody posts now, and all before was dropped.
            while left.cq.poll_one().unwrap().is_some() {}
            churn.to_come.store(0, Ordering::Relaxed);
            churn.life.store(number, Ordering::Release);
            connect(&mut left, &mut right);
            for _ in 0..20 {
                let wc = next(&mut left, &right);
                assert_eq!((wc.status, wc.qpn), (WcStatus::Success, left.qp.qpn()));
                // A thread may have read the number of an earlier life long before it posted in this one.
                assert!(wc.wr_id <= number, "{wc:?} in life {number}");
                *done.entry(wc.wr_id).or_default() += 1;
                churn.to_come.fetch_sub(1, Ordering::Relaxed);
            }
        }
        drop(running);
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    let of_last = |done: &BTreeMap<u64, u64>| done.get(&LIVES).copied().unwrap_or_default();
    while poster.sends_outstanding() > 0 || of_last(&done) < taken {
        let wc = next(&mut left, &right);
        assert!(wc.status.is_success(), "{wc:?}");
        *done.entry(wc.wr_id).or_default() += 1;
    }
    assert_eq!((of_last(&done), left.cq.poll_one().unwrap()), (taken, None));
}

/// The queue pair goes with its handle, whoever posts; the lane lives on for others.
#[test]
fn posts_to_a_dropped_queue_pair_are_refused() {
    let (mut left, right) = pair(2, THREAD);
    let config = QpConfig { max_inline: 8, ..QpConfig::default() };
    let other = side(nic(loopback::pair(1, LoopbackConfig::default()).0), THREAD, &config);
    let wr = write(&left, &right, 1, 100);
    let (qp, poster) = left.qp.share();
    // Sharing again gives another handle to the same.
    let (qp, again) = qp.share();
    poster.post_send(wr).unwrap();
    again.post_send(SendWr { wr_id: 2, ..wr }).unwrap();
    left.qp = other.qp;
    let first_two = (0..2).map(|_| until("a completion", || left.cq.poll_one().unwrap()).wr_id);
    assert_eq!(first_two.collect::<Vec<_>>(), [1, 2]);
    let number = qp.qpn();
    let last = std::thread::scope(|scope| {
        let busy = scope.spawn(|| {
            loop {
                match poster.post_send(wr) {
                    Ok(()) | Err(PostError::QueueFull { .. }) => {}
                    Err(error) => return error,
                }
            }
        });
        drop(qp);
        busy.join().unwrap()
    });
    assert_eq!(last, PostError::Dropped);
    assert_eq!(poster.post_sends(&[wr]), Err(BadWr { index: 0, error: PostError::Dropped }));
    assert_eq!(poster.post_recv(RecvWr::empty(1)), Err(PostError::Dropped));
    let inline = InlineWr { wr_id: 1, op: SendOp::Write, remote: wr.remote, signaled: true, fence: false };
    assert_eq!(again.post_send_inline(&[1], inline), Err(PostError::Dropped));
    let known = left.context.with_endpoint(|endpoint| endpoint.qp_state(number)).unwrap();
    assert_eq!(known, None);
}
