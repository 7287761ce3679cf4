//! Reads, atomic operations, and responses to those of the peer.

use super::*;
use crate::wire::Msn;

impl Bench {
    fn respond(&mut self, number: u16, most: u8) -> bool {
        let mut env = SendContext { paths: &mut self.paths, cc: &mut self.cc, counters: &mut self.counters };
        self.r.push_response(self.now, Msn::new(number), (Source::Value(7), 8), most, &mut env)
    }

    pub(super) fn response_comes(&mut self) {
        self.now = self.now.after(5_000);
        let mut env = SendContext { paths: &mut self.paths, cc: &mut self.cc, counters: &mut self.counters };
        self.r.on_response(self.now, &mut env);
    }

    /// Sends the next packet, and returns its opcode and its number among messages of its kind.
    fn leaves(&mut self) -> Option<(Opcode, u16)> {
        let (seq, _) = self.send()?;
        let packet = self.r.queue.packet(seq, MTU).unwrap();
        Some((packet.opcode(), packet.meth().rqmsn.get()))
    }
}

fn bench(max_rd_atomic: u8) -> Bench {
    Bench::new(|setup| setup.max_rd_atomic = max_rd_atomic)
}

/// Only a response that is the first to be sent starts the timers.
#[test]
fn a_response_does_not_put_off_what_is_overdue() {
    let mut bench = bench(1);
    bench.post(1, SendOp::Write);
    bench.send_all();
    let (timer_base, next) = (bench.r.timer_base, bench.r.next_timeout());
    bench.now = bench.now.after(9_000);
    assert!(bench.respond(0, 4));
    assert_eq!((bench.r.timer_base, bench.r.next_timeout()), (timer_base, next));
    bench.acknowledge(1, true);
    assert_eq!(bench.leaves(), Some((Opcode::AtomicResponse, 0)));
    bench.acknowledge(2, true);
    bench.now = bench.now.after(1_000_000_000);
    assert!(bench.respond(1, 4));
    assert_eq!(bench.r.timer_base, bench.now, "it counts from when it was queued");
}

#[test]
fn as_many_requests_are_in_flight_as_the_peer_accepts() {
    assert!(!bench(0).r.takes(SendOp::Read) && bench(1).r.takes(SendOp::Read));
    let mut bench = bench(2);
    for op in [SendOp::Read, SendOp::FetchAdd(1), SendOp::Read, SendOp::Write] {
        bench.post(1, op);
    }
    assert_eq!(bench.leaves(), Some((Opcode::ReadRequest, 0)));
    assert_eq!(bench.leaves(), Some((Opcode::FetchAdd, 1)));
    assert_eq!(bench.leaves(), None, "the third waits, and so does what is behind it");
    bench.acknowledge(2, true);
    assert_eq!((bench.r.queued(), bench.leaves()), (4, None), "an ACK is no response");
    bench.response_comes();
    assert!(bench.r.pop_done(u64::MAX, |_| ()).is_ok());
    assert_eq!(bench.leaves(), Some((Opcode::ReadRequest, 2)));
    assert_eq!(bench.leaves(), Some((Opcode::WriteOnly, 0)));
    assert!(bench.r.pop_done(u64::MAX, |_| ()).is_err(), "the second has no response");
    assert_eq!((bench.r.fetch(Msn::new(0)).is_some(), bench.r.fetch(Msn::new(1)).is_some()), (false, true));
    bench.response_comes();
    bench.response_comes();
    bench.acknowledge(4, true);
    assert_eq!((bench.r.queued(), bench.r.busy()), (0, false));
}

#[test]
fn a_fence_waits_for_responses_and_responses_wait_for_no_fence() {
    let mut bench = bench(4);
    bench.post(1, SendOp::Read);
    assert_eq!(bench.leaves(), Some((Opcode::ReadRequest, 0)));
    let wr = SendWr {
        wr_id: 0,
        op: SendOp::Write,
        local: Sge { addr: 0x1000, len: MTU, lkey: 1 },
        remote: RemoteAddr::default(),
        signaled: true,
        fence: true,
    };
    let source = Source::Region(PayloadRef { len: MTU, ..PayloadRef::EMPTY });
    bench.r.push(bench.now, &wr, false, source);
    assert!(!bench.r.has_work());
    assert!(bench.respond(0, 4) && bench.respond(1, 4));
    assert!(bench.r.has_work());
    assert_eq!(bench.leaves(), Some((Opcode::AtomicResponse, 0)));
    assert_eq!(bench.leaves(), Some((Opcode::AtomicResponse, 1)));
    assert_eq!(bench.leaves(), None);
    bench.response_comes();
    assert_eq!(bench.leaves(), Some((Opcode::WriteOnly, 0)));
}

/// After each response, one work request has its turn; their PSNs and message numbers follow the order in which they
/// leave.
#[test]
fn responses_and_work_requests_take_turns() {
    let mut bench = bench(4);
    (0..3).for_each(|_| bench.post(2, SendOp::Write));
    assert_eq!(bench.leaves(), Some((Opcode::WriteFirst, 0)));
    (0..3).for_each(|number| assert!(bench.respond(number, 4)));
    let left: Vec<_> = core::iter::from_fn(|| bench.leaves()).collect();
    let (first, last) = ((Opcode::WriteFirst, 0), (Opcode::WriteLast, 0));
    let response = |number| (Opcode::AtomicResponse, number);
    assert_eq!(left, [last, response(0), first, last, response(1), first, last, response(2)]);
    let numbers: Vec<_> =
        (0..9).map(|seq| bench.r.queue.packet(seq, MTU).unwrap().meth().msn.get()).collect();
    assert_eq!(numbers, [0, 0, 1, 2, 2, 3, 4, 4, 5]);
    assert_eq!((bench.r.queued(), bench.r.queue.responses()), (3, 3));
}

/// Request *n* shows that the peer has the responses before *n* - `most`. One that was not sent in full shows that the
/// peer has too many requests in flight.
#[test]
fn a_request_acknowledges_old_responses() {
    let mut bench = bench(4);
    assert!(bench.respond(0, 2) && bench.respond(1, 2));
    assert!(!bench.respond(2, 2), "nothing was sent");
    assert_eq!(bench.leaves(), Some((Opcode::AtomicResponse, 0)));
    assert!(bench.respond(2, 2), "the peer has the first response");
    assert_eq!((bench.r.una, bench.r.done), (1, 1));
    assert!(bench.r.pop_done(u64::MAX, |_| ()).is_ok());
    assert!(!bench.respond(3, 2));
}

/// A bench whose SEND of so many packets has begun with this one. The peer was not ready for it.
fn refused(packets: u32, first: Opcode) -> Bench {
    let mut bench = Bench::new(|setup| (setup.max_rd_atomic, setup.rnr_retry) = (4, Some(7)));
    bench.post(packets, SendOp::Send);
    assert_eq!(bench.leaves(), Some((first, 0)));
    bench.refuse(0, NackReason::NoResource);
    bench
}

/// Only what needs a receive work request waits for one: the refused message, and new work requests.
#[test]
fn responses_leave_while_the_peer_is_not_ready() {
    let mut bench = refused(1, Opcode::SendOnly);
    bench.post(1, SendOp::Write);
    assert!(bench.r.lost_count == 1 && !bench.r.has_work());
    assert_eq!(bench.leaves(), None);
    assert!(bench.respond(0, 4) && bench.r.has_work());
    assert_eq!(bench.leaves(), Some((Opcode::AtomicResponse, 0)));
    assert!(!bench.r.has_work());
    assert_eq!(bench.leaves(), None);
    bench.time_passes();
    assert_eq!(bench.send(), Some((0, SendKind::Retransmit)));
    assert_eq!(bench.leaves(), Some((Opcode::WriteOnly, 0)));
}

/// Packets before the refused message are retransmitted as usual, even if their message was refused before: it has
/// waited. If it is refused again, it waits as long as that NACK says.
#[test]
fn a_message_that_has_waited_does_not_wait_with_a_later_one() {
    let mut bench = refused(1, Opcode::SendOnly);
    bench.post(1, SendOp::Send);
    bench.time_passes();
    assert_eq!(bench.send(), Some((0, SendKind::Retransmit)));
    assert_eq!(bench.send(), Some((1, SendKind::New)));
    bench.refuse(1, NackReason::NoResource);
    let ready_at = bench.r.ready_at();
    let again = loop {
        if let Some(again) = bench.send() {
            break again;
        }
        bench.time_passes();
    };
    assert_eq!(again, (0, SendKind::Retransmit), "that copy was lost");
    assert!(bench.now < ready_at);
    assert_eq!(bench.send(), None);
    bench.refuse(0, NackReason::NoResource);
    assert_eq!(bench.r.ready_at(), bench.now.after(Neth::rnr_timer_ns(0)));
    assert_eq!(bench.send(), None);
    bench.time_passes();
    assert!(bench.now > ready_at);
    assert_eq!(bench.send(), Some((0, SendKind::Retransmit)));
    assert_eq!(bench.send(), Some((1, SendKind::Retransmit)));
}

/// A message that has begun holds responses back, because they have PSNs after its own.
#[test]
fn a_message_that_has_begun_and_waits_holds_responses_back() {
    let mut bench = refused(3, Opcode::SendFirst);
    assert!(bench.respond(0, 4));
    assert!(!bench.r.has_work(), "nothing may leave, whatever room congestion control has");
    assert_eq!(bench.leaves(), None);
    bench.time_passes();
    assert_eq!(bench.send(), Some((0, SendKind::Retransmit)));
}

/// A peer that has all packets, and has not responded to one of them, repeats its acknowledgement to show that it works. Without such a
/// request, it has a message to complete, and an old acknowledgement says nothing.
#[test]
fn a_repeated_acknowledgement_counts_only_while_a_response_is_missing() {
    for (op, counts) in [(SendOp::Write, false), (SendOp::Read, true)] {
        let mut bench = bench(1);
        bench.post(1, op);
        bench.send_all();
        bench.acknowledge(1, op == SendOp::Read);
        assert!(bench.r.all_arrived());
        let base = bench.r.timer_base;
        bench.now = bench.now.after(1_000);
        let old = bench.r.psn(0).sub(1);
        let mut env =
            SendContext { paths: &mut bench.paths, cc: &mut bench.cc, counters: &mut bench.counters };
        assert_eq!(bench.r.on_transport_ack(bench.now, old, &mut env), AckOutcome::Used);
        assert_eq!(bench.r.timer_base != base, counts, "{op:?}");
    }
}
