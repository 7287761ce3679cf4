//! SENDs into receive buffers, through the verbs API.
//!
//! Tests decisions 37, 38 and 39 of `docs/protocol.md`.

use std::collections::VecDeque;

use spindrift::pmd::loopback::{self, LoopbackConfig};
use spindrift::verbs::{
    Access, Extensions, FailReason, LaneMode, MAX_SGE, Mr, PostError, QpConfig, QpState, RecvWr, RemoteAddr,
    RtsAttr, ScatterWr, SendOp, SendWr, Sge, Srq, Wc, WcOpcode, WcStatus, nic,
};

use crate::connected_pair::{Side, THREAD, connect, faulty, side, side_on, until};
use crate::multi_lane::{open, ports};
use WcStatus::{
    LocalLengthError, LocalProtectionError, RemoteInvalidRequest, RemoteOperationError, RnrRetryExceeded,
    Success, WrFlushError,
};

/// Bytes of a receive buffer and of the memory between two of them.
const CELL: usize = 10_000;

fn config() -> QpConfig {
    QpConfig { max_recv_sge: MAX_SGE, ..QpConfig::default() }
}

fn sides(lane: LaneMode, left: &QpConfig, right: &QpConfig) -> (Side, Side) {
    let (one, other) = loopback::pair(1, LoopbackConfig::default());
    let (mut left, mut right) = (side(nic(one), lane, left), side(nic(other), lane, right));
    connect(&mut left, &mut right);
    (left, right)
}

/// Memory for receive buffers.
fn buffers(of: &Side) -> Mr {
    of.pd.register(1 << 16, Access::LOCAL_WRITE).unwrap()
}

fn byte(number: usize, at: usize) -> u8 {
    (number * 31 + at / 5 + at * 3) as u8
}

fn send(mr: &Mr, wr_id: u64, op: SendOp, at: usize, len: usize) -> SendWr {
    let local = if len == 0 { Sge::EMPTY } else { mr.sge(at, len as u32).unwrap() };
    SendWr { wr_id, op, local, remote: RemoteAddr::default(), signaled: true, fence: false }
}

fn next(of: &mut Side, other: &Side) -> Wc {
    until("a completion", || {
        of.context.poll();
        other.context.poll();
        of.cq.poll_one().unwrap()
    })
}

/// Messages of all sizes, into buffers of one to sixteen elements, over ports that lose packets. Half of the receive work
/// requests are posted after their messages.
fn sends_arrive(lane: LaneMode) {
    const COUNT: usize = 60;
    let (one, other) = loopback::pair(2, LoopbackConfig::default());
    let mut left = side(faulty(one, "loss=15%", 7), lane, &config());
    let mut right = side(faulty(other, "loss=15%", 8), lane, &config());
    connect(&mut left, &mut right);
    let lens = |n: usize| [0, 1, 64, 4_095, 4_096, 4_097, 9_000, 9_999][n * 5 % 8];
    let bytes = (0..COUNT).flat_map(|n| (0..CELL).map(move |at| byte(n, at))).collect();
    let source = left.pd.register_vec(bytes, Access::LOCAL_READ).unwrap();
    let target = right.pd.register(CELL * COUNT, Access::LOCAL_WRITE).unwrap();
    let buffer = |n: usize| -> Vec<Sge> {
        let count = 1 + n % MAX_SGE as usize;
        // From the last part of the cell to the first.
        let part = CELL / count;
        (0..count).rev().map(|at| target.sge(n * CELL + at * part, part as u32).unwrap()).collect()
    };
    let post = |right: &mut Side, n: usize| {
        right.qp.post_scatter(ScatterWr { wr_id: n as u64, local: &buffer(n) }).unwrap();
    };
    let op = |n: usize| if n.is_multiple_of(3) { SendOp::SendWithImm(n as u32) } else { SendOp::Send };
    (0..COUNT / 2).for_each(|n| post(&mut right, n));
    for n in 0..COUNT {
        left.qp.post_send(send(&source, n as u64, op(n), n * CELL, lens(n).min(part_of(n)))).unwrap();
    }
    let (mut posted, mut sent) = (COUNT / 2, VecDeque::new());
    for n in 0..COUNT {
        if n + 3 >= posted && posted < COUNT {
            post(&mut right, posted);
            posted += 1;
        }
        let wc = until("a receive completion", || {
            left.context.poll();
            right.context.poll();
            sent.extend(left.cq.poll_one().unwrap());
            right.cq.poll_one().unwrap()
        });
        let len = lens(n).min(part_of(n));
        assert_eq!((wc.wr_id, wc.status, wc.opcode), (n as u64, WcStatus::Success, WcOpcode::Recv));
        assert_eq!((wc.byte_len as usize, wc.imm), (len, op(n).imm()));
    }
    while sent.len() < COUNT {
        let wc = next(&mut left, &right);
        sent.push_back(wc);
    }
    for (n, wc) in sent.iter().enumerate() {
        assert_eq!((wc.wr_id, wc.status, wc.opcode), (n as u64, WcStatus::Success, WcOpcode::Send));
    }
    for n in 0..COUNT {
        let (count, len) = (1 + n % MAX_SGE as usize, lens(n).min(part_of(n)));
        let part = CELL / count;
        let mut expected = vec![0; CELL];
        for at in 0..len {
            expected[(count - 1 - at / part) * part + at % part] = byte(n, at);
        }
        let mut got = vec![0; CELL];
        target.read_at(n * CELL, &mut got).unwrap();
        assert!(got == expected, "message {n} of {len} bytes in {count} elements");
    }
    assert!(left.context.counters().tx_retransmits > 0, "nothing was lost");
}

/// Bytes of the buffer of message `n`.
fn part_of(n: usize) -> usize {
    let count = 1 + n % MAX_SGE as usize;
    CELL / count * count
}

#[test]
fn sends_arrive_inline() {
    sends_arrive(LaneMode::Inline);
}

#[test]
fn sends_arrive_in_threads() {
    sends_arrive(THREAD);
}

#[test]
fn a_receive_has_as_many_elements_as_its_queue_takes() {
    for max_recv_sge in [1, MAX_SGE] {
        let config = QpConfig { max_recv_sge, ..QpConfig::default() };
        let (_left, mut right) = sides(LaneMode::Inline, &config, &config);
        let elements = [right.mr.sge(0, 8).unwrap(); MAX_SGE as usize + 1];
        let mut post =
            |count: u32| right.qp.post_scatter(ScatterWr { wr_id: 1, local: &elements[..count as usize] });
        assert_eq!(post(max_recv_sge), Ok(()));
        let (count, max) = (max_recv_sge as usize + 1, max_recv_sge);
        assert_eq!(post(max_recv_sge + 1), Err(PostError::TooManySges { count, max }));
        assert_eq!(post(0), Ok(()), "for a message without bytes");
        let srq = right.context.create_srq(4).unwrap();
        let post = |count: u32| srq.post_scatter(ScatterWr { wr_id: 1, local: &elements[..count as usize] });
        assert_eq!(post(MAX_SGE), Ok(()));
        let (count, max) = (MAX_SGE as usize + 1, MAX_SGE);
        assert_eq!(post(MAX_SGE + 1), Err(PostError::TooManySges { count, max }));
        assert_eq!(srq.query().outstanding, 1);
    }
}

/// What was not agreed on is refused when it is posted.
#[test]
fn operations_need_an_agreement() {
    let plain = QpConfig { extensions: Extensions::NONE, ..QpConfig::default() };
    for (ours, theirs) in [(&config(), &plain), (&plain, &config())] {
        let (mut left, right) = sides(LaneMode::Inline, ours, theirs);
        let needed = Extensions::SEND;
        for op in [SendOp::Send, SendOp::SendWithImm(1)] {
            let refused = left.qp.post_send(send(&left.mr, 1, op, 0, 8));
            assert_eq!(refused, Err(PostError::NotNegotiated { needed }));
        }
        let empty = SendWr { op: SendOp::Write, ..send(&left.mr, 1, SendOp::Write, 0, 0) };
        assert_eq!(left.qp.post_send(empty), Err(PostError::Empty));
        assert_eq!(left.qp.state().0, QpState::Rts);
        assert_eq!(right.qp.state().0, QpState::Rts);
    }
}

/// Decision 38: the receiver gets a local length error, and the sender a remote invalid request. Earlier messages are
/// complete, and nothing of this one is placed.
#[test]
fn a_send_that_is_too_long_fails_both() {
    for mode in [LaneMode::Inline, THREAD] {
        let (mut left, mut right) = sides(mode, &config(), &config());
        left.mr.write_at(0, &[7; 64]).unwrap();
        let mr = buffers(&right);
        for (wr_id, len) in [(1, 8), (2, 63), (3, 64)] {
            let local = mr.sge(100 * wr_id as usize, len).unwrap();
            right.qp.post_recv(RecvWr { wr_id, local }).unwrap();
        }
        for (wr_id, len) in [(1, 8), (2, 64), (3, 8)] {
            left.qp.post_send(send(&left.mr, wr_id, SendOp::Send, 0, len)).unwrap();
        }
        let received: Vec<_> =
            (0..3).map(|_| next(&mut right, &left)).map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(received, [(1, Success), (2, LocalLengthError), (3, WrFlushError)]);
        let sent: Vec<_> = (0..3).map(|_| next(&mut left, &right)).map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(sent, [(1, Success), (2, RemoteInvalidRequest), (3, WrFlushError)]);
        assert_eq!(right.qp.state(), (QpState::Error, Some(FailReason::PeerViolation)));
        assert_eq!(left.qp.state(), (QpState::Error, Some(FailReason::PeerRefused)));
        let mut now = [9; 300];
        mr.read_at(100, &mut now).unwrap();
        assert!(now[..8] == [7; 8] && now[8..].iter().all(|byte| *byte == 0));
    }
}

/// A receive buffer that cannot be used ends the queue pair at once.
#[test]
fn a_bad_receive_buffer_is_a_local_protection_error() {
    let (_left, mut right) = sides(LaneMode::Inline, &config(), &config());
    let read_only = right.pd.register(100, Access::LOCAL_READ).unwrap();
    let mr = buffers(&right);
    let good = mr.sge(0, 8).unwrap();
    let other = right.context.create_pd().unwrap().register(100, Access::LOCAL_WRITE).unwrap();
    let bad = [
        read_only.sge(0, 8).unwrap(),
        other.sge(0, 8).unwrap(),
        Sge { lkey: good.lkey ^ 1, ..good },
        Sge { len: 1 << 17, ..good },
    ];
    for bad in bad {
        for several in [false, true] {
            let (left, mut right) = sides(LaneMode::Inline, &config(), &config());
            // The same place on this side.
            let mr = buffers(&right);
            let good = mr.sge(0, 8).unwrap();
            right.qp.post_recv(RecvWr { wr_id: 1, local: good }).unwrap();
            if several {
                right
                    .qp
                    .post_scatter(ScatterWr { wr_id: 2, local: &[good, Sge { lkey: 5, ..bad }] })
                    .unwrap();
            } else {
                right.qp.post_recv(RecvWr { wr_id: 2, local: Sge { lkey: 5, ..bad } }).unwrap();
            }
            let seen: Vec<_> =
                (0..2).map(|_| next(&mut right, &left)).map(|wc| (wc.wr_id, wc.status)).collect();
            assert_eq!(seen, [(1, WcStatus::WrFlushError), (2, WcStatus::LocalProtectionError)]);
            assert_eq!(right.qp.state(), (QpState::Error, Some(FailReason::LocalWorkRequest)));
        }
    }
    // On its own side: each of them.
    for (n, bad) in bad.into_iter().enumerate() {
        if n > 0 {
            right.qp = spindrift::verbs::Qp::create(&right.pd, &right.cq, &right.cq, &config()).unwrap();
            right.qp.init().unwrap();
        }
        right.qp.post_recv(RecvWr { wr_id: 7, local: bad }).unwrap();
        let wc = until("a completion", || {
            right.context.poll();
            right.cq.poll_one().unwrap()
        });
        assert_eq!((wc.wr_id, wc.status), (7, WcStatus::LocalProtectionError), "{n}");
    }
}

/// In a shared queue, it ends the queue pair whose message takes it; others go on.
#[test]
fn a_bad_buffer_of_a_shared_queue_is_a_local_protection_error() {
    let (one, other) = ports(1, 1);
    let mut left = side_on(open(one, LaneMode::Inline), &config(), 64);
    let context = open(other, LaneMode::Inline);
    let srq: Srq = context.create_srq(8).unwrap();
    let mut right = side_on(context, &QpConfig { srq: Some(srq.clone()), ..config() }, 64);
    connect(&mut left, &mut right);
    let mr = buffers(&right);
    let good = mr.sge(0, 64).unwrap();
    for (wr_id, local) in [(1, good), (2, Sge { lkey: good.lkey ^ 1, ..good }), (3, good)] {
        srq.post_recv(RecvWr { wr_id, local }).unwrap();
    }
    for wr_id in [1, 2] {
        left.qp.post_send(send(&left.mr, wr_id, SendOp::Send, 0, 64)).unwrap();
    }
    let seen: Vec<_> = (0..2).map(|_| next(&mut right, &left)).map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(seen, [(1, Success), (2, LocalProtectionError)]);
    let sent: Vec<_> = (0..2).map(|_| next(&mut left, &right)).map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(sent, [(1, Success), (2, RemoteOperationError)]);
    assert_eq!(srq.query().outstanding, 1, "the third was not taken");
}

/// Decision 39: a message waits for its receive work request; if there is a limit, it fails at last.
#[test]
fn a_message_waits_for_its_receive() {
    for mode in [LaneMode::Inline, THREAD] {
        let (mut left, mut right) = sides(mode, &config(), &config());
        left.mr.write_at(0, b"late").unwrap();
        left.qp.post_send(send(&left.mr, 1, SendOp::Send, 0, 4)).unwrap();
        until("a refusal", || {
            left.context.poll();
            right.context.poll();
            (right.context.counters().rx_not_ready > 2).then_some(())
        });
        let mr = buffers(&right);
        right.qp.post_recv(RecvWr { wr_id: 2, local: mr.sge(50, 4).unwrap() }).unwrap();
        let wc = next(&mut right, &left);
        assert_eq!((wc.wr_id, wc.status, wc.byte_len), (2, WcStatus::Success, 4));
        let mut now = [0; 4];
        mr.read_at(50, &mut now).unwrap();
        assert_eq!(&now, b"late");
        assert_eq!(next(&mut left, &right).status, WcStatus::Success);

        let retry = RtsAttr { rnr_retry: 2, ..config().retry };
        let (mut left, mut right) = sides(mode, &QpConfig { retry, ..config() }, &config());
        right.qp.post_recv(RecvWr::empty(1)).unwrap();
        let ops = [SendOp::WriteWithImm(5), SendOp::Send, SendOp::Send];
        for (wr_id, op) in (1..).zip(ops) {
            let remote = right.mr.remote().at(0, 4).unwrap();
            left.qp.post_send(SendWr { remote, ..send(&left.mr, wr_id, op, 0, 4) }).unwrap();
        }
        let sent: Vec<_> = (0..3).map(|_| next(&mut left, &right)).map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(sent, [(1, Success), (2, RnrRetryExceeded), (3, WrFlushError)]);
        assert_eq!(left.qp.state(), (QpState::Error, Some(FailReason::RnrRetryExceeded)));
        assert_eq!(next(&mut right, &left).imm, Some(5));
        assert_eq!(right.qp.state().0, QpState::Rts, "the receiver did nothing wrong");
    }
}
