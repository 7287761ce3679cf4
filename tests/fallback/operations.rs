//! Which operations survive, and which do not.

use spindrift::fallback::FallbackError;
use spindrift::verbs::{
    GatherWr, PostError, QpConfig, RemoteAddr, SendOp, SendWr, VerbsError, WcOpcode, WcStatus,
};

use crate::duo::{Duo, LEN, qp_config};

#[test]
fn writes_and_their_notification_survive() {
    let mut duo = Duo::armed();
    duo.post_receives(1, 0..1);
    duo.links[0].drop_silently();
    for number in 0..7 {
        let wr = SendWr { signaled: false, ..duo.request(0, number, SendOp::Write) };
        duo.post(0, wr);
    }
    let wr = duo.request(0, 7, SendOp::WriteWithImm(77));
    duo.post(0, wr);
    let got = duo.collect([1, 1]);
    assert_eq!((got[0][0].wr_id, got[0][0].status), (1007, WcStatus::Success));
    assert_eq!((got[1][0].wr_id, got[1][0].imm, got[1][0].byte_len), (0, Some(77), LEN as u32));
    (0..8).for_each(|number| duo.check(1, number));
    let side = &duo.sides[0];
    assert_eq!(side.context.counters(side.qp).unwrap().repeated, 8);
}

#[test]
fn reads_survive() {
    let mut duo = Duo::armed();
    duo.links[0].drop_silently();
    // What side 1 would send, side 0 reads.
    for number in 0..4 {
        let theirs = duo.request(1, number, SendOp::Send).local;
        let local = duo.request(0, number, SendOp::Send).remote;
        let own = duo.sides[0].mr.remote();
        let local =
            duo.sides[0].mr.sge((local.addr - duo.sides[1].mr.remote().addr) as usize, LEN as u32).unwrap();
        assert!(local.addr > own.addr);
        let remote = RemoteAddr { addr: theirs.addr, rkey: duo.sides[1].mr.remote().rkey };
        let wr_id = 1000 + number as u64;
        duo.post(0, SendWr { wr_id, op: SendOp::Read, local, remote, signaled: true, fence: false });
    }
    let got = duo.collect([4, 0]);
    assert!(got[0].iter().all(|wc| wc.status.is_success() && wc.opcode == WcOpcode::RdmaRead));
    (0..4).for_each(|number| duo.check(0, number));
}

#[test]
fn an_atomic_operation_in_flight_is_an_error_on_both_sides() {
    let mut duo = Duo::armed();
    duo.post_receives(1, 0..2);
    duo.links[0].drop_silently();
    let wr = duo.request(0, 0, SendOp::FetchAdd(1));
    let local = duo.sides[0].mr.sge(0, 8).unwrap();
    duo.post(0, SendWr { local, ..wr });
    let got = duo.collect([1, 2]);
    assert_eq!(got[0][0].status, WcStatus::RetryExceeded);
    assert!(got[1].iter().all(|wc| wc.status == WcStatus::WrFlushError));
    let failure = |at: usize| duo.sides[at].context.failure(duo.sides[at].qp).unwrap();
    assert_eq!(failure(0), Some(FallbackError::NotRepeatable { wr_id: 1000 }));
    assert_eq!(failure(1), Some(FallbackError::PeerGaveUp));
}

#[test]
fn a_request_with_the_hint_is_not_sent_again() {
    let mut duo = Duo::armed();
    duo.links[0].drop_silently();
    let wr = duo.request(0, 0, SendOp::Write);
    let SendWr { wr_id, op, local, remote, signaled, fence } = wr;
    let side = &mut duo.sides[0];
    side.context
        .post_once(side.qp, GatherWr { wr_id, op, local: &[local], remote, signaled, fence })
        .unwrap();
    assert_eq!(duo.collect([1, 0])[0][0].status, WcStatus::RetryExceeded);
    let side = &duo.sides[0];
    let failure = side.context.failure(side.qp).unwrap();
    assert_eq!(failure, Some(FallbackError::NotRepeatable { wr_id: 1000 }));
}

#[test]
fn lists_of_elements_survive() {
    let config = QpConfig { max_send_sge: 3, ..qp_config() };
    let mut duo = Duo::configured(&config);
    duo.arm();
    duo.links[0].drop_silently();
    for number in 0..4 {
        let SendWr { wr_id, op, remote, signaled, fence, .. } = duo.request(0, number, SendOp::Write);
        let side = &mut duo.sides[0];
        let place = number * LEN;
        let parts = [(0, 100), (100, 1), (101, LEN - 101)];
        let local = parts.map(|(from, len)| side.mr.sge(place + from, len as u32).unwrap());
        let wr = GatherWr { wr_id, op, local: &local, remote, signaled, fence };
        side.context.post_gather(side.qp, wr).unwrap();
    }
    assert!(duo.collect([4, 0])[0].iter().all(|wc| wc.status.is_success() && wc.byte_len == LEN as u32));
    (0..4).for_each(|number| duo.check(1, number));
    let wr = GatherWr { wr_id: 1, local: &[duo.sides[0].mr.sge(0, 1).unwrap(); 4], ..some(&duo) };
    let side = &mut duo.sides[0];
    let refused = side.context.post_gather(side.qp, wr);
    assert_eq!(refused, Err(PostError::TooManySges { count: 4, max: 3 }));
}

fn some(duo: &Duo) -> GatherWr<'static> {
    let SendWr { wr_id, op, remote, signaled, fence, .. } = duo.request(0, 0, SendOp::Write);
    GatherWr { wr_id, op, local: &[], remote, signaled, fence }
}

#[test]
fn an_error_of_the_application_is_no_reason_to_switch() {
    let mut duo = Duo::armed();
    duo.post_receives(1, 0..1);
    let wr = duo.request(0, 0, SendOp::Write);
    duo.post(0, wr);
    duo.post(0, SendWr { wr_id: 1001, remote: RemoteAddr { rkey: wr.remote.rkey ^ 1, ..wr.remote }, ..wr });
    duo.post(0, SendWr { wr_id: 1002, ..wr });
    let got = duo.collect([3, 1]);
    let statuses: Vec<_> = got[0].iter().map(|wc| wc.status).collect();
    assert_eq!(statuses, [WcStatus::Success, WcStatus::RemoteAccessError, WcStatus::WrFlushError]);
    assert_eq!(got[1][0].status, WcStatus::WrFlushError);
    let failure = |at: usize| duo.sides[at].context.failure(duo.sides[at].qp).unwrap();
    assert_eq!(failure(0), Some(FallbackError::Application(WcStatus::RemoteAccessError)));
    assert!(
        matches!(failure(1), Some(FallbackError::PairFailed | FallbackError::PeerGaveUp)),
        "{:?}",
        failure(1)
    );
}

#[test]
fn what_fallback_cannot_carry_is_refused() {
    let mut duo = Duo::armed();
    let wr = duo.request(0, 0, SendOp::SendWithInvalidate(1));
    let side = &mut duo.sides[0];
    let refused = side.context.post_send(side.qp, wr).unwrap_err();
    assert!(matches!(refused, PostError::NotNegotiated { .. }), "{refused}");
    let inline = side.context.create_qp(&QpConfig { max_inline: 8, ..qp_config() });
    assert!(matches!(inline, Err(VerbsError::NoFallback(_))), "{inline:?}");
    // A queue that is full says so, and has taken nothing.
    let wr = duo.request(0, 0, SendOp::Write);
    (0..32).for_each(|_| duo.post(0, wr));
    let side = &mut duo.sides[0];
    assert_eq!(side.context.post_send(side.qp, wr), Err(PostError::QueueFull { max: 32 }));
    assert!(duo.collect([32, 0])[0].iter().all(|wc| wc.status.is_success()));
}
