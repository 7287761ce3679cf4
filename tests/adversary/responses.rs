//! What changes while requests wait for their turn, responses that cannot be, SENDs that invalidate keys, and peers that
//! do not respond.
//!
//! Tests decisions 40, 41 and 43 of `docs/protocol.md`.

use spindrift::endpoint::{Extensions, FailReason, QpModify, RtrAttr, Violation};
use spindrift::memory::{Access, MemoryError};
use spindrift::wire::{AethKind, Bth, CcState, DataHead, Msn, NakCode, Opcode, Packet, Psn, Reth, Seth};
use spindrift::work::{RecvWr, SendOp, WcOpcode, WcStatus};

use crate::bench::{
    ATTACKER_QPN, FIRST_MSN, FIRST_PSN, MTU, SHORT, VICTIM, attacker_info, init, nak, region,
};
use crate::fetches::{LANDING, READ, Victim};
use crate::support::frame;
use crate::support::pair::{self, Patience};

const MTU_BYTES: usize = MTU as usize;

/// The transport ACK and the NAK that the victim sent: the PSN counted from the attacker's first one, and the count of
/// messages.
fn acknowledged(victim: &mut Victim) -> Vec<(AethKind, i32, u32)> {
    let frames = core::mem::take(&mut victim.bench.net.astray);
    let of = |bytes: &Vec<u8>| match frame::decode(bytes).unwrap().1 {
        Packet::Ack { bth, aeth } => Some((aeth.kind(), bth.psn.distance(FIRST_PSN), aeth.msn)),
        _ => None,
    };
    frames.iter().filter_map(|(_, bytes)| of(bytes)).collect()
}

/// Decision 40: a registration that ends between the arrival of a request and its turn. What is before it is complete and
/// acknowledged. It is not, nor is anything after it, and it is the one at fault, even if a later packet breaks a rule.
#[test]
fn a_registration_that_ends_before_the_turn_of_a_request() {
    for (what, bad_behind) in [("good packets behind", false), ("a bad one behind", true)] {
        for atomic in [false, true] {
            let mut victim = Victim::new();
            victim.bench.net.endpoint(VICTIM).post_recv(victim.bench.qp.qpn, RecvWr::empty(7)).unwrap();
            let rkey = if atomic { victim.counters.key.rkey } else { victim.readable.key.rkey };
            let mut second = if atomic { victim.fetch_add(1, 1) } else { victim.read(1, 0, 8) };
            second.meth.rqmsn = FIRST_MSN;
            let mut behind = victim.bench.write();
            behind.bth.psn = FIRST_PSN.add(2);
            behind.meth.msn = Msn::new(FIRST_MSN.get().wrapping_add(2));
            (behind.bth.opcode, behind.imm, behind.meth.rqmsn) = (Opcode::WriteOnlyImm, Some(1), FIRST_MSN);
            if bad_behind {
                behind.meth.rqmsn = Msn::new(0x77);
            }
            let bytes = victim.bench.target.expected[..8].to_vec();
            victim.give(behind, &bytes);
            victim.give(second, &[]);
            assert_eq!(victim.bench.violation(), None);
            victim.bench.net.endpoint(VICTIM).deregister(rkey).unwrap();
            victim.bench.net.astray.clear();
            let mut first = victim.bench.write();
            first.bth.ack_req = false;
            victim.give(first, &bytes);
            let acknowledged = acknowledged(&mut victim);
            let expected = [(AethKind::Ack, 0, 1), (AethKind::Nak(NakCode::RemoteAccess), 1, 1)];
            assert_eq!(acknowledged, expected, "{what} {atomic}");
            let (psn, violation) = victim.bench.violation().unwrap();
            let refused =
                matches!(violation, Violation::Access { error: MemoryError::UnknownKey { .. }, .. });
            assert!(psn == FIRST_PSN.add(1) && refused, "{what} {atomic}: {psn:?} {violation}");
            let ended: Vec<_> = victim.bench.completions().iter().map(|wc| (wc.wr_id, wc.status)).collect();
            assert_eq!(ended, [(7, WcStatus::WrFlushError)], "{what} {atomic}");
            victim.check(what);
        }
    }
}

/// Requests behind one that is refused in its turn are not carried out.
#[test]
fn nothing_after_a_refused_request_is_carried_out() {
    for refused_first in [false, true] {
        let mut victim = Victim::new();
        // A read that is refused in its turn, and an atomic operation before or after it.
        let mut read = victim.read(if refused_first { 1 } else { 2 }, 0, 8);
        let mut atomic = victim.fetch_add(if refused_first { 2 } else { 1 }, 1);
        let (earlier, later) =
            if refused_first { (&mut read, &mut atomic) } else { (&mut atomic, &mut read) };
        (earlier.meth.rqmsn, later.meth.rqmsn) = (FIRST_MSN, FIRST_MSN.next());
        victim.give(atomic, &[]);
        victim.give(read, &[]);
        let (rkey, before) = (victim.readable.key.rkey, victim.counter());
        victim.bench.net.endpoint(VICTIM).deregister(rkey).unwrap();
        let write = victim.bench.write();
        let bytes = victim.bench.target.expected[..8].to_vec();
        victim.give(write, &bytes);
        let carried_out = u64::from(!refused_first);
        assert_eq!(victim.counter(), before.wrapping_add(carried_out));
        assert_eq!(victim.bench.count("rx_atomics"), carried_out);
        assert_eq!(victim.bench.violation().map(|(psn, _)| psn), Some(read.bth.psn));
        victim.expect_counter();
        victim.check("behind a refused request");
    }
}

/// A queue pair that cannot send yet takes no request, and takes its copy later.
#[test]
fn a_request_before_the_victim_may_send_is_taken_later() {
    let mut victim = Victim::new();
    let qp = pair::create(&mut victim.bench.net, VICTIM, init(victim.bench.pd));
    let endpoint = victim.bench.net.endpoint(VICTIM);
    let ours = endpoint.qp_info(qp.qpn).unwrap();
    let theirs = spindrift::endpoint::QpInfo { extensions: Extensions::ALL, ..attacker_info(&ours) };
    let now = victim.bench.net.now;
    let endpoint = victim.bench.net.endpoint(VICTIM);
    endpoint.modify_qp(now, qp.qpn, QpModify::Init).unwrap();
    let rtr = RtrAttr::between(&ours, &theirs);
    endpoint.modify_qp(now, qp.qpn, QpModify::Rtr(Box::new(rtr))).unwrap();
    victim.bench.qp = qp;
    victim.bench.mark();
    let (before, heads) = (victim.counter(), [victim.fetch_add(0, 1), victim.read(1, 0, 8)]);
    for head in heads {
        victim.give(head, &[]);
    }
    assert_eq!((victim.bench.count("rx_wrong_state"), victim.counter()), (2, before));
    assert_eq!(victim.sent(), (vec![], vec![]));
    let rts = pair::rts_attr(&theirs, Patience::default());
    victim.bench.net.endpoint(VICTIM).modify_qp(now, qp.qpn, QpModify::Rts(rts)).unwrap();
    for head in [heads[1], heads[0]] {
        victim.give(head, &[]);
    }
    let numbers: Vec<_> = victim.sent().0.iter().map(|response| (response.opcode, response.number)).collect();
    assert_eq!(numbers, [(Opcode::AtomicResponse, 0), (Opcode::ReadResponseOnly, 1)]);
    assert_eq!(victim.counter(), before.wrapping_add(1));
    victim.expect_counter();
    victim.check("ready to receive");
}

/// The packets of the response to the victim's read number 0, and their payloads.
fn response(victim: &Victim) -> [(DataHead, Vec<u8>); 3] {
    use Opcode::{ReadResponseFirst, ReadResponseLast, ReadResponseMiddle};
    let mut n = 0;
    [ReadResponseFirst, ReadResponseMiddle, ReadResponseLast].map(|opcode| {
        let offset = u64::from(n) * u64::from(MTU);
        let head = victim.response((n, 0), opcode, 0, (offset, READ));
        let len = (READ as usize - offset as usize).min(MTU_BYTES);
        n += 1;
        (head, (0..len).map(|at| (at as u64 + offset) as u8 ^ 0x5a).collect())
    })
}

/// The bytes of the victim's read `wr_id` may be anything; what is around them may not.
fn forget_landing(victim: &mut Victim, wr_id: usize, len: usize) {
    let mut now = vec![0; len];
    victim.landing.region.read_at(1024 * wr_id, &mut now).unwrap();
    victim.landing.expected[1024 * wr_id..][..len].copy_from_slice(&now);
}

/// A response is taken in any order of its packets, and copies of them change nothing.
#[test]
fn a_response_arrives_in_any_order() {
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 2, 1]] {
        let mut victim = Victim::new();
        victim.post(1, SendOp::Read, READ, false);
        let packets = response(&victim);
        for at in order {
            assert_eq!(victim.bench.completions(), [], "{order:?}");
            let (head, bytes) = &packets[at];
            victim.give(*head, bytes);
            victim.give(*head, &vec![0xee; bytes.len()]);
        }
        let whole: Vec<u8> = packets.iter().flat_map(|(_, bytes)| bytes.clone()).collect();
        victim.landing.expected[1024..][..READ as usize].copy_from_slice(&whole);
        let done = victim.bench.completions();
        let seen: Vec<_> = done.iter().map(|wc| (wc.wr_id, wc.opcode, wc.status, wc.byte_len)).collect();
        assert_eq!(seen, [(1, WcOpcode::RdmaRead, WcStatus::Success, READ)], "{order:?}");
        // It is complete: a copy that arrives later must not write.
        for (head, bytes) in &packets {
            let mut head = *head;
            head.bth.rtx = true;
            victim.give(head, &vec![0xee; bytes.len()]);
        }
        victim.check("in any order");
    }
}

/// Decision 40: responses that cannot be. Nothing outside the landing is written, and no request succeeds.
#[test]
fn a_response_that_cannot_be_is_refused() {
    type Spoil = fn(&mut [(DataHead, Vec<u8>); 3]);
    let spoils: [(&str, Spoil); 21] = [
        ("to a request that was never sent", |p| p.iter_mut().for_each(|(h, _)| h.meth.rqmsn = Msn::new(9))),
        ("to one that is not sent yet", |p| p.iter_mut().for_each(|(h, _)| h.meth.rqmsn = Msn::new(2))),
        ("to one before the first", |p| p.iter_mut().for_each(|(h, _)| h.meth.rqmsn = Msn::new(0xffff))),
        ("by the peer's numbers", |p| p.iter_mut().for_each(|(h, _)| h.meth.rqmsn = FIRST_MSN)),
        ("to the second request first", |p| p.iter_mut().for_each(|(h, _)| h.meth.rqmsn = Msn::new(1))),
        ("longer", |p| p.iter_mut().for_each(|(h, _)| h.reth.dma_len = READ + 1)),
        ("shorter", |p| p.iter_mut().for_each(|(h, _)| h.reth.dma_len = READ - 1)),
        ("the largest length", |p| p.iter_mut().for_each(|(h, _)| h.reth.dma_len = u32::MAX)),
        ("beyond its end", |p| p[1].0.reth.va = u64::from(READ) - 255),
        ("at its end", |p| p[1].0.reth.va = READ.into()),
        ("far beyond", |p| p[1].0.reth.va = 0xffff_ff00),
        ("beyond 32 bits", |p| p[1].0.reth.va = 1 << 32),
        ("around the address space", |p| p[1].0.reth.va = u64::MAX - 255),
        ("to the end of the address space", |p| p[1].0.reth.va = u64::MAX),
        ("at an address", |p| p[0].0.reth.va = LANDING),
        ("not from the start", |p| p[0].0.reth.va = 1),
        ("an overlap", |p| p[1].0.reth.va = 255),
        ("another request in the middle", |p| p[1].0.meth.rqmsn = Msn::new(1)),
        ("another key in the middle", |p| p[1].0.reth.rkey = 1),
        ("a start in the middle", |p| p[1].0.bth.opcode = Opcode::ReadResponseFirst),
        ("a middle at the end", |p| {
            p[2].0.bth.opcode = Opcode::ReadResponseMiddle;
            p[2].1.resize(MTU_BYTES, 0xee);
        }),
    ];
    for (what, spoil) in spoils {
        for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2]] {
            let mut victim = Victim::new();
            victim.post(0, SendOp::Read, READ, false);
            victim.post(1, SendOp::Read, READ, false);
            // It waits for the others.
            victim.post(2, SendOp::Read, READ, true);
            let mut packets = response(&victim);
            spoil(&mut packets);
            for at in order {
                let (head, bytes) = &packets[at];
                victim.give(*head, bytes);
            }
            assert_eq!(victim.bench.count("rx_invalid_request"), 1, "{what} {order:?}");
            if what.contains("beyond") || what.contains("address") {
                let violation = victim.bench.violation().map(|(_, violation)| violation);
                assert!(matches!(violation, Some(Violation::NoSuchFetch { .. })), "{what}: {violation:?}");
            }
            let done = victim.bench.completions();
            let seen: Vec<_> = done.iter().map(|wc| (wc.wr_id, wc.status)).collect();
            let flushed = [0, 1, 2].map(|wr_id| (wr_id, WcStatus::WrFlushError));
            assert_eq!(seen, flushed, "{what} {order:?}");
            forget_landing(&mut victim, 0, READ as usize);
            forget_landing(&mut victim, 1, READ as usize);
            victim.check(what);
        }
    }
}

/// The kind and the size of a response to an atomic operation, and of one to a short read.
#[test]
fn a_response_of_another_kind_or_size_is_refused() {
    use Opcode::{AtomicResponse, ReadResponseOnly};
    let fetch = SendOp::FetchAdd(1);
    for (op, len, opcode, payload, stated) in [
        (SendOp::Read, 8, AtomicResponse, 8, 8),
        (fetch, 8, ReadResponseOnly, 8, 8),
        (fetch, 8, AtomicResponse, 4, 8),
        (fetch, 8, AtomicResponse, 16, 8),
        (fetch, 8, AtomicResponse, 0, 8),
        (fetch, 8, AtomicResponse, 4, 4),
        (fetch, 8, AtomicResponse, 16, 16),
        (fetch, 8, AtomicResponse, 0, 0),
        (SendOp::Read, 8, ReadResponseOnly, 7, 8),
        (SendOp::Read, 8, ReadResponseOnly, 9, 8),
        (SendOp::Read, 8, ReadResponseOnly, 0, 0),
        (SendOp::Read, 0, ReadResponseOnly, 8, 8),
        (SendOp::Read, 0, ReadResponseOnly, 8, 0),
        (SendOp::Read, 0, AtomicResponse, 8, 8),
    ] {
        let what = format!("{op:?} of {len}, {opcode:?} of {payload}, stated {stated}");
        let mut victim = Victim::new();
        victim.post(1, op, len, false);
        let head = victim.response((0, 0), opcode, 0, (0, stated));
        victim.give(head, &vec![0xee; payload]);
        let seen: Vec<_> = victim.bench.completions().iter().map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(seen, [(1, WcStatus::WrFlushError)], "{what}");
        assert_eq!(victim.bench.violation().map(|(psn, _)| psn), Some(FIRST_PSN), "{what}");
        assert!(victim.bench.answers().contains(&nak(NakCode::InvalidRequest, FIRST_PSN)), "{what}");
        victim.check(&what);
    }
    // The right ones.
    for (op, len, opcode) in [(fetch, 8, AtomicResponse), (SendOp::Read, 0, ReadResponseOnly)] {
        let mut victim = Victim::new();
        victim.post(1, op, len, false);
        let head = victim.response((0, 0), opcode, 0, (0, len));
        let value = 0x0102_0304_0506_0708_u64;
        victim.give(head, &value.to_be_bytes()[..len as usize]);
        victim.landing.expected[1024..][..len as usize].copy_from_slice(&value.to_ne_bytes()[..len as usize]);
        assert_eq!(victim.bench.completions().len(), 1);
        victim.check("the right one");
        // Its number is used up.
        let again = victim.response((1, 1), opcode, 0, (0, len));
        victim.give(again, &vec![0xee; len as usize]);
        assert_eq!(victim.bench.violation().map(|(psn, _)| psn), Some(FIRST_PSN.add(1)));
        victim.check("complete already");
    }
}

/// Responses to what was posted before a reset reach nothing, under the old number and the new one.
#[test]
fn responses_after_a_reset_reach_nothing() {
    let mut victim = Victim::new();
    victim.post(1, SendOp::Read, READ, false);
    let packets = response(&victim);
    let now = victim.bench.net.now;
    let (old, ours) = (victim.bench.qp.qpn, victim.bench.net.endpoint(VICTIM).qp_info(victim.bench.qp.qpn));
    let new = victim.bench.net.endpoint(VICTIM).modify_qp(now, old, QpModify::Reset).unwrap();
    victim.bench.mark();
    let under = |qpn| {
        packets.clone().map(|(mut head, bytes)| {
            head.bth.dest_qpn = qpn;
            (head, bytes)
        })
    };
    for (head, bytes) in under(old).iter().chain(&under(new)) {
        victim.give(*head, bytes);
    }
    assert_eq!((victim.bench.count("rx_placed_bytes"), victim.bench.completions()), (0, vec![]));
    victim.check("reset");
    // Connected again, it has no request in flight.
    let theirs = spindrift::endpoint::QpInfo { extensions: Extensions::ALL, ..attacker_info(&ours.unwrap()) };
    victim.bench.qp.qpn = new;
    let end = victim.bench.qp;
    pair::bring_up(&mut victim.bench.net, end, &theirs, Patience::default());
    victim.bench.mark();
    for (head, bytes) in &under(new) {
        victim.give(*head, bytes);
    }
    let violation = victim.bench.violation().map(|(_, violation)| violation);
    assert!(matches!(violation, Some(Violation::NoSuchFetch { .. })), "{violation:?}");
    victim.check("connected again");
}

/// Decision 43: a SEND with invalidate needs the right, in its own domain, and the work requests that use the
/// registration continue.
#[test]
fn a_send_invalidates_only_what_it_may() {
    let all = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC | Access::LOCAL_WRITE;
    let right = Access::REMOTE_INVALIDATE | Access::REMOTE_READ;
    for (what, access, own_domain, counter) in [
        ("without the right", all, true, Some("rx_no_access")),
        ("another domain", right, false, Some("rx_wrong_pd")),
        ("unknown", right, true, Some("rx_bad_rkey")),
        ("with the right", right, true, None),
    ] {
        let mut victim = Victim::new();
        let other = victim.bench.net.endpoint(VICTIM).alloc_pd();
        let pd = if own_domain { victim.bench.pd } else { other };
        let memory = region(&mut victim.bench.net, VICTIM, pd, (0x6000_0000, 4096), access);
        victim.bench.net.endpoint(VICTIM).post_recv(victim.bench.qp.qpn, RecvWr::empty(7)).unwrap();
        // A response that the attacker does not acknowledge uses it.
        let mut count = 0;
        if counter.is_none() {
            let reth = Reth { va: 0x6000_0000, rkey: memory.key.rkey, dma_len: 8 };
            let read = victim.head(0, Opcode::ReadRequest, reth);
            victim.give(read, &[]);
            assert_eq!(victim.sent().0.len(), 1);
            count = 1;
        }
        let mut send = victim.head(count, Opcode::SendOnlyInvalidate, Reth { va: 0, rkey: 0, dma_len: 0 });
        send.meth.rqmsn = FIRST_MSN;
        send.imm = Some(if what == "unknown" { memory.key.rkey ^ 1 } else { memory.key.rkey });
        victim.give(send, &[]);
        let done: Vec<_> =
            victim.bench.completions().iter().map(|wc| (wc.wr_id, wc.status, wc.invalidated)).collect();
        let ended = victim.bench.net.endpoint(VICTIM).memory().check_remote(
            memory.key.rkey,
            pd,
            0x6000_0000,
            8,
            access,
        );
        if let Some(counter) = counter {
            assert_eq!(done, [(7, WcStatus::WrFlushError, None)], "{what}");
            assert_eq!((victim.bench.count(counter), ended), (1, Ok(())), "{what}");
            assert!(victim.bench.answers().contains(&nak(NakCode::RemoteAccess, FIRST_PSN)), "{what}");
        } else {
            assert_eq!(done, [(7, WcStatus::Success, Some(memory.key.rkey))], "{what}");
            assert!(matches!(ended, Err(MemoryError::UnknownKey { .. })), "{what}: {ended:?}");
            // The response is sent again, from the memory that it was made from.
            victim.bench.net.astray.clear();
            victim.bench.net.run_for(3_000_000);
            let again = victim.sent().0;
            assert!(!again.is_empty() && again.iter().all(|sent| sent.bytes == memory.expected[..8]));
            let reth = Reth { va: 0x6000_0000, rkey: memory.key.rkey, dma_len: 8 };
            let mut read = victim.head(2, Opcode::ReadRequest, reth);
            read.meth.rqmsn = FIRST_MSN.next();
            victim.give(read, &[]);
            let violation = victim.bench.violation().map(|(psn, _)| psn);
            assert_eq!(violation, Some(FIRST_PSN.add(2)), "the key is gone");
        }
        memory.check(what);
        victim.check(what);
    }
}

/// A read that arrives before a SEND that invalidates its key, and has its turn after it.
#[test]
fn a_key_that_is_invalidated_before_the_turn_of_a_read() {
    let mut victim = Victim::new();
    let access = Access::REMOTE_READ | Access::REMOTE_INVALIDATE;
    let pd = victim.bench.pd;
    let memory = region(&mut victim.bench.net, VICTIM, pd, (0x6000_0000, 64), access);
    victim.bench.net.endpoint(VICTIM).post_recv(victim.bench.qp.qpn, RecvWr::empty(7)).unwrap();
    let reth = Reth { va: 0x6000_0000, rkey: memory.key.rkey, dma_len: 8 };
    let mut read = victim.head(1, Opcode::ReadRequest, reth);
    read.meth.rqmsn = FIRST_MSN;
    victim.give(read, &[]);
    let mut send = victim.head(0, Opcode::SendOnlyInvalidate, Reth { va: 0, rkey: 0, dma_len: 0 });
    send.imm = Some(memory.key.rkey);
    victim.give(send, &[]);
    let done: Vec<_> = victim.bench.completions().iter().map(|wc| (wc.status, wc.invalidated)).collect();
    assert_eq!(done, [(WcStatus::Success, Some(memory.key.rkey))]);
    let (responses, rest) = victim.sent();
    assert_eq!(responses, []);
    assert!(rest.contains(&nak(NakCode::RemoteAccess, FIRST_PSN.add(1))), "{rest:?}");
    victim.check("invalidated");
}

/// What the attacker does with the victim's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peer {
    Gone,
    /// It acknowledges packets, but never that they are complete.
    Sacks,
    /// It acknowledges all, but never responds.
    Acknowledges,
}

/// Decision 40: a peer that is gone, or reports no progress, fails the queue pair after all retries. One that
/// acknowledges is probed a few times in each timeout, for as long as that lasts.
#[test]
fn a_peer_that_never_responds() {
    for peer in [Peer::Gone, Peer::Sacks, Peer::Acknowledges] {
        let mut victim = Victim::with(Extensions::ALL, SHORT, |_| {});
        let start = victim.bench.net.now;
        victim.post(1, SendOp::Read, READ, false);
        let timeout_ns = 1024_u64 << SHORT.timeout;
        let gives_up = pair::gives_up_at(start, SHORT).since(start);
        let (mut packets, mut failed) = (0_u64, None);
        let until = start.after(20 * gives_up);
        while victim.bench.net.now < until && failed.is_none() {
            let requests = victim.requests();
            packets += requests.len() as u64;
            for (psn, timestamp) in requests {
                match peer {
                    Peer::Gone => {}
                    Peer::Sacks => victim.sack(psn, timestamp),
                    Peer::Acknowledges => {
                        victim.sack(psn, timestamp);
                        victim.acknowledge(1);
                    }
                }
            }
            victim.bench.net.run_for(timeout_ns / 64);
            failed = victim.bench.failures().first().map(|(_, reason)| (*reason, victim.bench.net.now));
        }
        let elapsed = victim.bench.net.now.since(start);
        let timeouts = elapsed / timeout_ns;
        let most = if peer == Peer::Acknowledges { 2 * timeouts + 4 } else { 4 * (timeouts + 1) };
        assert!(packets <= most, "{peer:?}: {packets} packets in {timeouts} timeouts");
        if peer == Peer::Acknowledges {
            assert_eq!(failed, None);
            assert!(packets >= timeouts / 4, "{peer:?}: {packets} packets in {timeouts} timeouts");
            // It responds after all.
            for (head, bytes) in response(&victim) {
                victim.give(head, &bytes);
            }
            assert!(victim.bench.completions()[0].status.is_success());
        } else {
            assert_eq!(failed.map(|(reason, _)| reason), Some(FailReason::RetryExceeded), "{peer:?}");
            assert!(elapsed <= 3 * gives_up, "{peer:?} {elapsed}");
        }
    }
}

impl Victim {
    /// Acknowledges the packet, and that everything up to it has arrived.
    fn sack(&mut self, cack: Psn, tx_timestamp: u16) {
        let seth = Seth {
            spdcid: ATTACKER_QPN.get() as u16,
            dpdcid: self.bench.qp.qpn.get() as u16,
            cack,
            sack_offset: 1,
            mpr: 8,
            cc: CcState { tx_timestamp, ..CcState::default() },
            ..Seth::default()
        };
        let bth = Bth::new(Opcode::Sack, self.bench.qp.qpn, cack);
        self.bench.give(&Packet::Sack { bth, seth });
    }

    /// The read requests that the victim sent since the last look: PSN and timestamp.
    fn requests(&mut self) -> Vec<(Psn, u16)> {
        let frames = core::mem::take(&mut self.bench.net.astray);
        let of = |bytes: &Vec<u8>| match frame::decode(bytes).unwrap().1 {
            Packet::Data { head, .. } if head.bth.opcode == Opcode::ReadRequest => {
                Some((head.bth.psn, head.tseth.map_or(0, |tseth| tseth.timestamp)))
            }
            _ => None,
        };
        frames.iter().filter_map(|(_, bytes)| of(bytes)).collect()
    }
}
