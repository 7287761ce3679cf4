//! SENDs and writes with immediate of bad peers, and what finds no receive work request.
//!
//! Tests decisions 17, 37, 38 and 39 of `docs/protocol.md`.

use std::sync::Arc;

use spindrift::endpoint::{Extensions, Violation};
use spindrift::memory::Access;
use spindrift::wire::{Bth, DataHead, Meth, Msn, NackReason, NakCode, Opcode, Packet, Reth, Tseth};
use spindrift::work::{MAX_SGE, RecvWr, ScatterWr, SendOp, Sge, SharedRecvQueue, SrqId, WcOpcode, WcStatus};

use crate::bench::{Bench, FIRST_MSN, FIRST_PSN, IOVA, MAX_WIMM, MTU, Memory, VICTIM, nak, region};
use crate::support::frame;
use crate::support::pair::Patience;

const MTU_BYTES: usize = MTU as usize;
const BUFFERS: u64 = 0x4000_0000;
/// Bytes of a receive buffer, and from one buffer to the next.
const BUFFER: usize = 600;
const STEP: usize = 1_000;

/// A victim that has agreed to extensions, and the memory of its receive buffers, which no key of the peer opens.
struct Victim {
    bench: Bench,
    buffers: Memory,
    posted: u64,
}

impl Victim {
    fn new(extensions: Extensions) -> Self {
        Self::sharing(extensions, None)
    }

    fn sharing(extensions: Extensions, srq: Option<&Arc<SharedRecvQueue>>) -> Self {
        let change = |init: &mut spindrift::endpoint::QpInit| {
            init.srq = srq.cloned();
            init.cap.max_recv_sge = MAX_SGE;
        };
        let mut bench = Bench::offering(|_| {}, Patience::default(), extensions, change);
        let pd = bench.pd;
        let buffers = region(&mut bench.net, VICTIM, pd, (BUFFERS, 16 * STEP), Access::LOCAL_WRITE);
        Self { bench, buffers, posted: 0 }
    }

    /// Receive buffer `n`.
    fn sge(&self, n: u64, len: usize) -> Sge {
        Sge { addr: BUFFERS + n * STEP as u64, len: len as u32, lkey: self.buffers.key.lkey }
    }

    /// Posts the next receive buffers, numbered from 0.
    fn post(&mut self, count: u64) {
        for _ in 0..count {
            let wr = RecvWr { wr_id: self.posted, local: self.sge(self.posted, BUFFER) };
            self.bench.net.endpoint(VICTIM).post_recv(self.bench.qp.qpn, wr).unwrap();
            self.posted += 1;
        }
    }

    /// A packet of message `n` of SENDs that have one packet each.
    fn send(&self, n: u16) -> DataHead {
        let number = Msn::new(FIRST_MSN.get().wrapping_add(n));
        DataHead {
            bth: Bth { ts: true, ..Bth::new(Opcode::SendOnly, self.bench.qp.qpn, FIRST_PSN.add(n.into())) },
            meth: Meth { rqmsn: number, msn: number },
            tseth: Some(Tseth::new(0x1234)),
            reth: Reth { va: 0, rkey: 0, dma_len: 8 },
            imm: None,
            operands: None,
        }
    }

    fn give(&mut self, head: DataHead, payload: &[u8]) {
        self.bench.give(&Packet::Data { head, payload, pad: &[] });
    }

    /// From here on, message `n` is expected to have these bytes at `offset` in its buffer.
    fn expect(&mut self, n: usize, offset: usize, bytes: &[u8]) {
        let at = n * STEP + offset;
        self.buffers.expected[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// No buffer holds anything else than expected, and the victim's other connection works.
    #[track_caller]
    fn check(&mut self, what: &str) {
        self.buffers.check(what);
        self.bench.check_healthy(what);
    }

    /// The NACKs sent since the last look: reason, vendor byte, and number of the packet.
    fn nacks(&mut self) -> Vec<(NackReason, u8, u32)> {
        let frames = core::mem::take(&mut self.bench.net.astray);
        let nack = |bytes: &Vec<u8>| match frame::decode(bytes).unwrap().1 {
            Packet::Nack { neth, .. } => {
                let n = neth.nack_psn.distance(FIRST_PSN).cast_unsigned();
                assert_eq!(neth.tx_timestamp, 0x1234);
                Some((NackReason::from(neth.reason), neth.vendor_info, n))
            }
            _ => None,
        };
        frames.iter().filter_map(|(_, bytes)| nack(bytes)).collect()
    }
}

/// The three packets of a SEND of 600 bytes.
fn message(victim: &Victim) -> [DataHead; 3] {
    let mut at = 0;
    [Opcode::SendFirst, Opcode::SendMiddle, Opcode::SendLast].map(|opcode| {
        let mut head = victim.send(0);
        head.bth.opcode = opcode;
        head.bth.psn = FIRST_PSN.add(at);
        head.reth.va = u64::from(at * MTU);
        head.reth.dma_len = 600;
        at += 1;
        head
    })
}

/// Bytes of a packet of a message of 600 bytes.
fn len_of(opcode: Opcode) -> usize {
    if opcode.is_last() { 600 - 2 * MTU_BYTES } else { MTU_BYTES }
}

const ORDERS: [[usize; 3]; 4] = [[0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 2, 1]];

/// Decision 37.
#[test]
fn operations_that_were_not_agreed_on_are_dropped() {
    use Opcode::*;
    let sends = [SendFirst, SendMiddle, SendLast, SendLastImm, SendOnly, SendOnlyImm];
    let agreed = [Extensions::NONE, Extensions::RNR | Extensions::EMPTY_MESSAGES];
    let invalidate = [SendLastInvalidate, SendOnlyInvalidate];
    let cases = agreed.into_iter().flat_map(|agreed| sends.map(|opcode| (agreed, opcode)));
    let partly = [Extensions::SEND | Extensions::RNR, Extensions::INVALIDATE];
    let invalidations = partly.into_iter().flat_map(|agreed| invalidate.map(|opcode| (agreed, opcode)));
    for (agreed, opcode) in cases.chain(invalidations) {
        let mut victim = Victim::new(agreed);
        victim.post(2);
        let mut head = victim.send(0);
        head.bth.opcode = opcode;
        if opcode.has_imm() || opcode.invalidates() {
            head.imm = Some(1);
        }
        for _ in 0..3 {
            victim.give(head, &[0xee; 8]);
        }
        let counts = [("rx_packets", 3), ("rx_data", 3), ("rx_not_negotiated", 3)];
        victim.bench.expect_counts(&format!("{agreed:?} {opcode:?}"), &counts);
        assert_eq!((victim.bench.answers(), victim.bench.failures()), (vec![], vec![]), "{opcode:?}");
        // Nothing of it was recorded: a write may have its PSN and number.
        let write = victim.bench.write();
        victim.give(write, &[0xaa; 8]);
        victim.bench.target.expected[..8].fill(0xaa);
        assert_eq!(victim.bench.count("rx_placed_bytes"), 8);
        victim.check("not agreed");
    }
}

/// Each SEND is placed into the buffer of its number, in any order, and nothing beyond its bytes is written.
#[test]
fn a_send_goes_to_the_buffer_of_its_number() {
    for order in [[0_u16, 1, 2], [2, 1, 0], [1, 2, 0], [2, 0, 1]] {
        let mut victim = Victim::new(Extensions::ALL);
        victim.post(4);
        let mut delivered = Vec::new();
        for n in order {
            let mut head = victim.send(n);
            let len = 8 + usize::from(n);
            head.reth.dma_len = len as u32;
            if n == 1 {
                (head.bth.opcode, head.imm) = (Opcode::SendOnlyImm, Some(77));
            }
            let bytes = vec![0x40 + n as u8; len];
            victim.give(head, &bytes);
            victim.expect(n.into(), 0, &bytes);
            victim.buffers.check("on arrival");
            // A copy with other bytes changes nothing.
            victim.give(head, &vec![0xee; len]);
            delivered.extend(victim.bench.completions());
        }
        let seen: Vec<_> = delivered.iter().map(|wc| (wc.wr_id, wc.opcode, wc.byte_len, wc.imm)).collect();
        let recv = WcOpcode::Recv;
        assert_eq!(seen, [(0, recv, 8, None), (1, recv, 9, Some(77)), (2, recv, 10, None)], "{order:?}");
        assert!(delivered.iter().all(|wc| wc.status == WcStatus::Success));
        victim.check("three messages");
    }
}

/// The same for a message of several packets, into a buffer of one element, or of several.
#[test]
fn the_offset_places_each_packet() {
    for parts in [&[600][..], &[1, 255, 1, 343], &[256, 256, 88], &[599, 1], &[40; 15], &[38; 16], &[700]] {
        for order in ORDERS {
            let mut victim = Victim::new(Extensions::ALL);
            let elements: Vec<_> = (0..).zip(parts).map(|(n, len)| victim.sge(n, *len)).collect();
            let wr = ScatterWr { wr_id: 5, local: &elements };
            let qpn = victim.bench.qp.qpn;
            victim.bench.net.endpoint(VICTIM).post_scatter(qpn, wr).unwrap();
            let bytes: Vec<u8> = (0..600).map(|n| n as u8 ^ 0x5a).collect();
            let heads = message(&victim);
            for n in order {
                let from = n * MTU_BYTES;
                victim.give(heads[n], &bytes[from..from + len_of(heads[n].bth.opcode)]);
            }
            let mut rest = &bytes[..];
            for (n, len) in parts.iter().enumerate() {
                let (part, after) = rest.split_at((*len).min(rest.len()));
                victim.expect(n, 0, part);
                rest = after;
            }
            let completions = victim.bench.completions();
            assert_eq!(completions.iter().map(|wc| (wc.wr_id, wc.byte_len)).collect::<Vec<_>>(), [(5, 600)]);
            victim.check("scattered");
        }
    }
}

#[test]
fn a_buffer_has_sixteen_elements_at_most() {
    let mut victim = Victim::new(Extensions::ALL);
    let elements = [victim.sge(0, 8); MAX_SGE as usize + 1];
    let qpn = victim.bench.qp.qpn;
    for count in [MAX_SGE, MAX_SGE + 1] {
        let wr = ScatterWr { wr_id: 0, local: &elements[..count as usize] };
        let posted = victim.bench.net.endpoint(VICTIM).post_scatter(qpn, wr);
        let expected =
            if count > MAX_SGE { Err(spindrift::endpoint::PostError::TooManySges) } else { Ok(()) };
        assert_eq!(posted, expected);
    }
}

/// What the peer gets, and how the oldest receive work request ends.
#[track_caller]
fn refused(victim: &mut Victim, what: &str, code: NakCode, oldest: WcStatus) -> Violation {
    assert!(
        victim.bench.answers().iter().any(|answer| answer.starts_with(&format!("Nak({code:?})"))),
        "{what}"
    );
    let (_, violation) = victim.bench.violation().expect(what);
    let completions = victim.bench.completions();
    assert_eq!(completions[0].status, oldest, "{what}");
    assert!(completions[1..].iter().all(|wc| wc.status == WcStatus::WrFlushError), "{what}: {completions:?}");
    violation
}

/// Decision 38: numbers, offsets and lengths that cannot be. Nothing is placed.
#[test]
fn a_send_that_cannot_be_is_refused() {
    type Spoil = fn(&mut DataHead);
    let spoils: [(&str, Spoil, WcStatus); 10] = [
        ("a completed message", |head| head.meth.rqmsn = Msn::new(0xfffe), WcStatus::WrFlushError),
        ("the next message", |head| head.meth.rqmsn = FIRST_MSN.next(), WcStatus::WrFlushError),
        ("a far message", |head| head.meth.rqmsn = Msn::new(0x7fff), WcStatus::WrFlushError),
        ("beyond the message", |head| head.reth.va = 1, WcStatus::WrFlushError),
        ("right after the message", |head| head.reth.va = 8, WcStatus::WrFlushError),
        ("in the next buffer", |head| head.reth.va = STEP as u64, WcStatus::WrFlushError),
        ("before the buffer", |head| head.reth.va = 0_u64.wrapping_sub(STEP as u64), WcStatus::WrFlushError),
        ("around the address space", |head| head.reth.va = u64::MAX - 7, WcStatus::WrFlushError),
        ("at an address of the peer's region", |head| head.reth.va = IOVA, WcStatus::WrFlushError),
        ("its end in the last byte", |head| head.reth.va = u64::MAX, WcStatus::WrFlushError),
    ];
    for (what, spoil, oldest) in spoils {
        let mut victim = Victim::new(Extensions::ALL);
        victim.post(3);
        let mut head = victim.send(0);
        spoil(&mut head);
        victim.give(head, &[0xee; 8]);
        let violation = refused(&mut victim, what, NakCode::InvalidRequest, oldest);
        assert!(matches!(violation, Violation::Order { .. }), "{what}: {violation:?}");
        assert_eq!(victim.bench.count("rx_placed_bytes"), 0, "{what}");
        victim.check(what);
    }
}

/// A SEND that is longer than its buffer is refused in order: earlier messages complete, no byte of it is placed.
#[test]
fn a_send_must_fit_its_buffer() {
    for parts in [&[599][..], &[300, 299], &[]] {
        for order in ORDERS {
            let mut victim = Victim::new(Extensions::ALL);
            victim.post(1);
            let elements: Vec<_> = (1..).zip(parts).map(|(n, len)| victim.sge(n, *len)).collect();
            let qpn = victim.bench.qp.qpn;
            let wr = ScatterWr { wr_id: 1, local: &elements };
            victim.bench.net.endpoint(VICTIM).post_scatter(qpn, wr).unwrap();
            let mut heads = message(&victim);
            for head in &mut heads {
                head.bth.psn = head.bth.psn.add(1);
                (head.meth.msn, head.meth.rqmsn) = (FIRST_MSN.next(), FIRST_MSN.next());
            }
            for n in order {
                victim.give(heads[n], &vec![0xee; len_of(heads[n].bth.opcode)]);
            }
            assert_eq!((victim.bench.failures(), victim.bench.count("rx_placed_bytes")), (vec![], 0));
            let first = victim.send(0);
            victim.give(first, &[1; 8]);
            victim.expect(0, 0, &[1; 8]);
            let answers = victim.bench.answers();
            let complete = format!("Ack psn {:06x}", FIRST_PSN.get());
            assert_eq!(
                answers[answers.len() - 2..],
                [complete, nak(NakCode::InvalidRequest, FIRST_PSN.add(1))]
            );
            let too_short = Violation::ReceiveTooShort {
                message_len: 600,
                buffer_len: parts.iter().sum::<usize>() as u64,
            };
            assert_eq!(victim.bench.violation(), Some((FIRST_PSN.add(1), too_short)));
            let ended: Vec<_> = victim.bench.completions().iter().map(|wc| (wc.wr_id, wc.status)).collect();
            assert_eq!(
                ended,
                [(0, WcStatus::Success), (1, WcStatus::LocalLengthError)],
                "{parts:?} {order:?}"
            );
            victim.check("too long");
        }
    }
}

/// Packets of one message that disagree. Only the buffer of the message may have been written.
#[test]
fn packets_of_a_send_must_form_a_message() {
    type Spoil = fn(&mut [DataHead; 3], u32);
    let spoils: [(&str, Spoil); 12] = [
        ("another number in the middle", |heads, _| heads[1].meth.rqmsn = FIRST_MSN.next()),
        ("another number at the end", |heads, _| heads[2].meth.rqmsn = FIRST_MSN.next()),
        ("another length", |heads, _| heads[1].reth.dma_len = 590),
        ("a length beyond the buffer", |heads, _| heads[1].reth.dma_len = 601),
        ("another key", |heads, _| heads[1].reth.rkey = 7),
        ("an offset again", |heads, _| heads[1].reth.va = 0),
        ("an offset skipped", |heads, _| (heads[1].reth.va, heads[1].reth.dma_len) = (257, 600)),
        ("an offset at the start", |heads, _| heads[0].reth.va = 88),
        ("a write in the middle", |heads, rkey| {
            heads[1].bth.opcode = Opcode::WriteMiddle;
            (heads[1].reth.va, heads[1].reth.rkey) = (IOVA, rkey);
        }),
        ("the end of a write", |heads, rkey| {
            heads[2].bth.opcode = Opcode::WriteLast;
            (heads[2].reth.va, heads[2].reth.rkey) = (IOVA, rkey);
        }),
        ("the start of a write", |heads, rkey| {
            heads[0].bth.opcode = Opcode::WriteFirst;
            (heads[0].reth.va, heads[0].reth.rkey) = (IOVA, rkey);
        }),
        ("another start", |heads, _| heads[1].bth.opcode = Opcode::SendFirst),
    ];
    for (what, spoil) in spoils {
        for order in ORDERS {
            let mut victim = Victim::new(Extensions::ALL);
            victim.post(3);
            let mut heads = message(&victim);
            spoil(&mut heads, victim.bench.target.key.rkey);
            let bytes = victim.bench.target.expected[..MTU_BYTES].to_vec();
            for n in order {
                victim.give(heads[n], &bytes[..len_of(heads[n].bth.opcode)]);
            }
            assert_eq!(victim.bench.count("rx_invalid_request"), 1, "{what} {order:?}");
            let completions = victim.bench.completions();
            assert_eq!(completions.len(), 3, "{what} {order:?}");
            assert!(
                completions.iter().all(|wc| !wc.status.is_success()),
                "{what} {order:?}: {completions:?}"
            );
            // Its own buffer, and the one that a wrong number names.
            for n in [0, 1] {
                let at = n * STEP;
                let mut now = vec![0; BUFFER];
                victim.buffers.region.read_at(at, &mut now).unwrap();
                victim.buffers.expected[at..at + BUFFER].copy_from_slice(&now);
            }
            victim.check(what);
        }
    }
}

/// Decision 39: the NACK carries the timer, nothing is recorded, and a later copy is taken.
#[test]
fn a_message_without_a_receive_request_is_refused_for_now() {
    let mut victim = Victim::new(Extensions::ALL);
    let mut imm = victim.bench.write();
    (imm.bth.opcode, imm.imm, imm.meth.rqmsn) = (Opcode::WriteOnlyImm, Some(9), FIRST_MSN);
    imm.reth.va = IOVA + 64;
    for head in [victim.send(0), imm] {
        victim.bench.mark();
        victim.give(head, &[0xee; 8]);
        victim.bench.expect_counts(
            "refused",
            &[("rx_packets", 1), ("rx_data", 1), ("rx_not_ready", 1), ("tx_nacks", 1)],
        );
        assert_eq!(victim.nacks(), [(NackReason::NoResource, 12, 0)]);
        victim.check("refused");
    }
    victim.post(1);
    victim.bench.mark();
    let head = victim.send(0);
    victim.give(head, &[1; 8]);
    victim.expect(0, 0, &[1; 8]);
    assert_eq!((victim.bench.count("rx_placed_bytes"), victim.bench.count("rx_duplicates")), (8, 0));
    assert_eq!(victim.bench.completions().len(), 1);
    victim.check("taken");
}

/// Without RNR, a message without a receive work request ends the queue pair, in order.
#[test]
fn without_the_extension_it_is_a_violation() {
    let mut victim = Victim::new(Extensions::SEND);
    victim.post(1);
    let [first, second] = [0, 1].map(|n| victim.send(n));
    victim.give(second, &[0xee; 8]);
    assert_eq!(victim.bench.failures(), []);
    victim.give(first, &[1; 8]);
    victim.expect(0, 0, &[1; 8]);
    assert_eq!(victim.bench.count("rx_no_receive"), 1);
    assert_eq!(victim.bench.violation(), Some((FIRST_PSN.add(1), Violation::NoReceive)));
    assert!(victim.bench.answers().contains(&nak(NakCode::RemoteOperational, FIRST_PSN.add(1))));
    let ended: Vec<_> = victim.bench.completions().iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(ended, [(0, WcStatus::Success)]);
    victim.check("no receive");
}

/// The transport ACK for complete messages goes before the RNR NACK, which may end the peer's queue pair. It is repeated
/// with each refusal of a retransmission, because the peer sends nothing else that would bring it.
#[test]
fn messages_before_a_refused_one_are_acknowledged() {
    let mut victim = Victim::new(Extensions::ALL);
    let mut write = victim.bench.write();
    write.bth.ack_req = false;
    let bytes = victim.bench.target.expected[..8].to_vec();
    victim.give(write, &bytes);
    assert_eq!(victim.bench.answers(), [""; 0], "a write that asks for nothing");
    let mut head = victim.send(1);
    head.meth.rqmsn = FIRST_MSN;
    let refusal = [
        format!("Ack psn {:06x}", FIRST_PSN.get()),
        format!("Nack {} psn {:06x}", u8::from(NackReason::NoResource), FIRST_PSN.add(1).get()),
    ];
    victim.give(head, &[0xee; 8]);
    assert_eq!(victim.bench.answers(), refusal);
    victim.give(head, &[0xee; 8]);
    assert_eq!(victim.bench.answers(), refusal[1..], "the peer is known to have more in flight");
    head.bth.rtx = true;
    for _ in 0..3 {
        victim.give(head, &[0xee; 8]);
        assert_eq!(victim.bench.answers(), refusal);
    }
    victim.check("acknowledged");
}

/// Refusals without end: what waits to be sent is bounded, and nothing else happens.
#[test]
fn a_storm_of_refused_messages_is_bounded() {
    let mut victim = Victim::new(Extensions::ALL);
    let head = victim.send(0);
    let bytes = crate::bench::envelope().seal(&Packet::Data { head, payload: &[0xee; 8], pad: &[] });
    for _ in 0..1_000 {
        victim.bench.give_silently(0, &bytes);
    }
    let (now, qpn) = (victim.bench.net.now, victim.bench.qp.qpn);
    assert!(now > spindrift::time::Time::ZERO);
    victim.bench.net.pump(VICTIM);
    let counts = [("rx_packets", 1_000), ("rx_data", 1_000), ("rx_not_ready", 1_000)];
    for (name, count) in counts {
        assert_eq!(victim.bench.count(name), count, "{name}");
    }
    let (sent, dropped) = (victim.bench.count("tx_nacks"), victim.bench.count("tx_nacks_dropped"));
    assert_eq!((sent, dropped), (256, 744));
    let status = victim.bench.net.endpoint(VICTIM).qp_status(qpn).unwrap();
    assert_eq!((status.counters.rx_packets, status.counters.rx_bytes), (0, 0));
    victim.check("a storm");
}

fn shared(buffers: u64) -> (Victim, Arc<SharedRecvQueue>) {
    let queue = Arc::new(SharedRecvQueue::new(SrqId(3), 64));
    let victim = Victim::sharing(Extensions::ALL, Some(&queue));
    for n in 0..buffers {
        assert!(queue.post(RecvWr { wr_id: n, local: victim.sge(n, BUFFER) }));
    }
    (victim, queue)
}

/// A peer cannot take more from a shared queue than it may have in flight.
#[test]
fn forged_numbers_do_not_drain_a_shared_queue() {
    let (mut victim, queue) = shared(16);
    for n in (1..200).rev() {
        let mut head = victim.send(n);
        head.meth.msn = FIRST_MSN.next();
        head.bth.opcode = Opcode::SendMiddle;
        (head.reth.dma_len, head.reth.va) = (600, u64::from(MTU));
        victim.give(head, &vec![0xee; MTU_BYTES]);
        assert!(queue.outstanding() >= 16 - u32::from(MAX_WIMM), "after number {n}");
    }
    assert_eq!(queue.outstanding(), 16 - u32::from(MAX_WIMM));
    assert_eq!(victim.bench.failures(), [], "nothing is in order yet");
    // The requests that it took end with it, and no others.
    let mut first = victim.send(0);
    first.meth.rqmsn = Msn::new(0);
    victim.give(first, &[0xee; 8]);
    let ended: Vec<_> = victim.bench.completions().iter().map(|wc| (wc.wr_id, wc.status)).collect();
    let flushed: Vec<_> = (0..u64::from(MAX_WIMM)).map(|n| (n, WcStatus::WrFlushError)).collect();
    assert_eq!(ended, flushed);
    assert_eq!(queue.outstanding(), 16 - u32::from(MAX_WIMM));
    // What was placed lies in buffers that were taken.
    let taken = usize::from(MAX_WIMM) * STEP;
    let mut now = vec![0; taken];
    victim.buffers.region.read_at(0, &mut now).unwrap();
    victim.buffers.expected[..taken].copy_from_slice(&now);
    victim.check("drained");
}

/// A later message that arrives first takes requests for the earlier ones too, which use them.
#[test]
fn a_shared_queue_gives_earlier_messages_theirs() {
    let (mut victim, queue) = shared(3);
    let heads = [0, 1, 2, 3].map(|n| victim.send(n));
    victim.give(heads[3], &[0xee; 8]);
    assert_eq!(queue.outstanding(), 0, "three for the earlier ones");
    assert_eq!(victim.nacks(), [(NackReason::NoResource, 12, 3)]);
    for n in [2, 0, 1] {
        victim.give(heads[n], &[n as u8; 8]);
        victim.expect(n, 0, &[n as u8; 8]);
    }
    let ended: Vec<_> = victim.bench.completions().iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(ended, [0, 1, 2].map(|n| (n, WcStatus::Success)));
    assert!(queue.post(RecvWr { wr_id: 3, local: victim.sge(3, BUFFER) }));
    victim.give(heads[3], &[9; 8]);
    victim.expect(3, 0, &[9; 8]);
    assert_eq!(victim.bench.completions().len(), 1);
    victim.check("shared");
}

/// A buffer of a shared queue that cannot be used ends the queue pair whose message takes it, in order.
#[test]
fn a_bad_buffer_of_a_shared_queue_is_a_local_error() {
    for len in [0, 8] {
        let (mut victim, queue) = shared(1);
        let bad = Sge { lkey: victim.buffers.key.lkey ^ 1, ..victim.sge(1, BUFFER) };
        assert!(queue.post(RecvWr { wr_id: 1, local: bad }));
        assert!(queue.post(RecvWr { wr_id: 2, local: victim.sge(2, BUFFER) }));
        let mut second = victim.send(1);
        second.reth.dma_len = len as u32;
        victim.give(second, &vec![0xee; len]);
        let first = victim.send(0);
        victim.give(first, &[1; 8]);
        victim.expect(0, 0, &[1; 8]);
        let ended: Vec<_> = victim.bench.completions().iter().map(|wc| (wc.wr_id, wc.status)).collect();
        // A message without bytes does not use its buffer.
        let status = if len == 0 { WcStatus::Success } else { WcStatus::LocalProtectionError };
        assert_eq!(ended, [(0, WcStatus::Success), (1, status)]);
        let told = victim.bench.answers().contains(&nak(NakCode::RemoteOperational, FIRST_PSN.add(1)));
        assert_eq!((told, queue.outstanding()), (len > 0, 1));
        victim.check("a bad buffer");
    }
}

/// Decision 17: neither key nor address of a message without bytes is checked, if the peers agreed on such messages.
#[test]
fn messages_without_bytes() {
    let imm = |head: &mut DataHead| {
        (head.bth.opcode, head.imm, head.meth.rqmsn) = (Opcode::WriteOnlyImm, Some(5), FIRST_MSN);
    };
    for agreed in [Extensions::ALL, Extensions::EMPTY_MESSAGES, Extensions::NONE, Extensions::SEND] {
        for with_imm in [false, true] {
            let mut victim = Victim::new(agreed);
            victim.post(1);
            let mut head = victim.bench.write();
            head.reth = Reth { va: u64::MAX, rkey: 0xbad, dma_len: 0 };
            if with_imm {
                imm(&mut head);
            }
            victim.give(head, &[]);
            let taken = agreed.contains(Extensions::EMPTY_MESSAGES);
            assert_eq!(victim.bench.count("rx_bad_length"), u64::from(!taken), "{agreed:?}");
            let (acked, refused) = (format!("Ack psn {:06x}", FIRST_PSN.get()), NakCode::InvalidRequest);
            let answers = victim.bench.answers();
            assert_eq!(answers.contains(&acked), taken, "{agreed:?} {answers:?}");
            assert_eq!(answers.contains(&nak(refused, FIRST_PSN)), !taken, "{agreed:?} {answers:?}");
            let ended: Vec<_> = victim.bench.completions().iter().map(|wc| (wc.status, wc.imm)).collect();
            match (taken, with_imm) {
                (true, true) => assert_eq!(ended, [(WcStatus::Success, Some(5))]),
                (true, false) => assert_eq!(ended, []),
                (false, _) => assert_eq!(ended, [(WcStatus::WrFlushError, None)]),
            }
            victim.check("no bytes");
        }
    }
    // A SEND without bytes needs no agreement of its own, and takes a request.
    let mut victim = Victim::new(Extensions::SEND);
    victim.post(1);
    let mut head = victim.send(0);
    (head.reth.dma_len, head.reth.va) = (0, 0);
    victim.give(head, &[]);
    let ended: Vec<_> = victim.bench.completions().iter().map(|wc| (wc.opcode, wc.byte_len)).collect();
    assert_eq!(ended, [(WcOpcode::Recv, 0)]);
    victim.check("an empty SEND");
}

/// A write with immediate takes a receive work request and leaves its buffer alone.
#[test]
fn an_immediate_does_not_use_the_buffer() {
    let mut victim = Victim::new(Extensions::ALL);
    victim.post(2);
    let mut head = victim.bench.write();
    (head.bth.opcode, head.imm, head.meth.rqmsn) = (Opcode::WriteOnlyImm, Some(5), FIRST_MSN);
    victim.give(head, &[7; 8]);
    victim.bench.target.expected[..8].fill(7);
    let send = victim.send(1);
    victim.give(send, &[8; 8]);
    victim.expect(1, 0, &[8; 8]);
    let ended: Vec<_> = victim.bench.completions().iter().map(|wc| (wc.opcode, wc.imm)).collect();
    assert_eq!(ended, [(WcOpcode::RecvRdmaWithImm, Some(5)), (WcOpcode::Recv, None)]);
    victim.check("an immediate and a SEND");
}

/// What the victim may post to a peer depends on what was agreed.
#[test]
fn requests_that_were_not_agreed_on_are_refused_when_posted() {
    use spindrift::endpoint::PostError;
    use spindrift::work::{RemoteAddr, SendWr};
    for agreed in [Extensions::NONE, Extensions::SEND, Extensions::EMPTY_MESSAGES] {
        let mut victim = Victim::new(agreed);
        let (now, qpn, lkey) = (victim.bench.net.now, victim.bench.qp.qpn, victim.bench.target.key.lkey);
        let mut post = |op, len| {
            let local = Sge { addr: IOVA, len, lkey };
            let remote = RemoteAddr { addr: 0, rkey: 1 };
            let wr = SendWr { wr_id: 1, op, local, remote, signaled: true, fence: false };
            victim.bench.net.endpoint(VICTIM).post_send(now, qpn, wr)
        };
        let (sends, empty) = (agreed.contains(Extensions::SEND), agreed.contains(Extensions::EMPTY_MESSAGES));
        let not_agreed = Err(PostError::NotNegotiated { needed: Extensions::SEND });
        for (len, op) in [(0, SendOp::Send), (8, SendOp::Send), (8, SendOp::SendWithImm(1))] {
            assert_eq!(post(op, len), if sends { Ok(()) } else { not_agreed }, "{agreed:?} {op:?} {len}");
        }
        for op in [SendOp::Write, SendOp::WriteWithImm(1)] {
            assert_eq!(post(op, 0), if empty { Ok(()) } else { Err(PostError::Empty) }, "{agreed:?} {op:?}");
            assert_eq!(post(op, 8), Ok(()), "{agreed:?} {op:?}");
        }
    }
}
