//! READs and atomic operations of bad peers, and responses that cannot be.
//!
//! Tests decisions 37, 40, 41 and 43 of `docs/protocol.md`.

use spindrift::endpoint::{Extensions, QpInit, Violation};
use spindrift::memory::Access;
use spindrift::wire::{Aeth, AtomicOperands, Bth, DataHead, Meth, Msn, NakCode, Opcode, Packet, Reth, Tseth};
use spindrift::work::{RemoteAddr, SendOp, SendWr, Sge};

use crate::bench::{Bench, FIRST_MSN, FIRST_PSN, MTU, Memory, VICTIM, envelope, nak, region};
use crate::support::frame;
use crate::support::pair::Patience;

const MTU_BYTES: usize = MTU as usize;
/// What the peer may read.
pub(crate) const READABLE: u64 = 0x2000_0000;
const READABLE_LEN: usize = 64 * 1024;
/// Where the peer may do atomic operations.
pub(crate) const COUNTERS: u64 = 0x3000_0000;
/// Where the victim's own reads go. No key of the peer opens it.
pub(crate) const LANDING: u64 = 0x5000_0000;
/// Memory of [`others`].
const OTHERS: u64 = 0x6000_0000;
/// Bytes of the victim's reads.
pub(crate) const READ: u32 = 600;

/// A victim that has agreed to all extensions.
pub(crate) struct Victim {
    pub(crate) bench: Bench,
    pub(crate) readable: Memory,
    pub(crate) counters: Memory,
    pub(crate) landing: Memory,
}

/// A response packet that the victim sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Response {
    pub(crate) opcode: Opcode,
    /// The number of the request, counted from 0.
    pub(crate) number: u16,
    pub(crate) offset: u64,
    pub(crate) message_len: u32,
    pub(crate) bytes: Vec<u8>,
}

impl Victim {
    pub(crate) fn new() -> Self {
        Self::with(Extensions::ALL, Patience::default(), |_| {})
    }

    pub(crate) fn with(extensions: Extensions, patience: Patience, change: impl Fn(&mut QpInit)) -> Self {
        let mut bench = Bench::offering(|cfg| cfg.copy_responses = true, patience, extensions, change);
        let pd = bench.pd;
        let mut memory = |iova, len, access| region(&mut bench.net, VICTIM, pd, (iova, len), access);
        let readable = memory(READABLE, READABLE_LEN, Access::REMOTE_READ);
        let counters = memory(COUNTERS, 64, Access::REMOTE_ATOMIC);
        let landing = memory(LANDING, 4096, Access::LOCAL_WRITE);
        Self { bench, readable, counters, landing }
    }

    /// The attacker's packet `n`, which is message `n` and request `n`.
    pub(crate) fn head(&self, n: u16, opcode: Opcode, reth: Reth) -> DataHead {
        let number = Msn::new(FIRST_MSN.get().wrapping_add(n));
        DataHead {
            bth: Bth {
                ts: true,
                ack_req: true,
                ..Bth::new(opcode, self.bench.qp.qpn, FIRST_PSN.add(n.into()))
            },
            meth: Meth { rqmsn: number, msn: number },
            tseth: Some(Tseth::new(0x1234)),
            reth,
            imm: None,
            operands: None,
        }
    }

    pub(crate) fn read(&self, n: u16, offset: u64, len: u32) -> DataHead {
        let reth = Reth { va: READABLE + offset, rkey: self.readable.key.rkey, dma_len: len };
        self.head(n, Opcode::ReadRequest, reth)
    }

    /// Adds `add` to counter 0.
    pub(crate) fn fetch_add(&self, n: u16, add: u64) -> DataHead {
        let reth = Reth { va: COUNTERS, rkey: self.counters.key.rkey, dma_len: 8 };
        let operands = Some(AtomicOperands { swap_or_add: add, compare: 0 });
        DataHead { operands, ..self.head(n, Opcode::FetchAdd, reth) }
    }

    /// The packet of a response to the victim's request `number`, as the attacker's packet `n` of message `msn`.
    pub(crate) fn response(
        &self,
        (n, msn): (u16, u16),
        opcode: Opcode,
        number: u16,
        (offset, of): (u64, u32),
    ) -> DataHead {
        let head = self.head(n, opcode, Reth { va: offset, rkey: 0, dma_len: of });
        let msn = Msn::new(FIRST_MSN.get().wrapping_add(msn));
        DataHead { meth: Meth { rqmsn: Msn::new(number), msn }, ..head }
    }

    pub(crate) fn give(&mut self, head: DataHead, payload: &[u8]) {
        self.bench.give(&Packet::Data { head, payload, pad: &[] });
    }

    pub(crate) fn give_silently(&mut self, head: DataHead) {
        let bytes = envelope().seal(&Packet::Data { head, payload: &[], pad: &[] });
        self.bench.give_silently(0, &bytes);
    }

    pub(crate) fn acknowledge(&mut self, count: u16) {
        // The victim's first PSN is that of its offer.
        let psn = self.bench.net.endpoint(VICTIM).qp_info(self.bench.qp.qpn).unwrap().psn;
        let psn = spindrift::wire::Psn::new(psn).add(u32::from(count)).sub(1);
        let bth = Bth::new(Opcode::Ack, self.bench.qp.qpn, psn);
        self.bench.give(&Packet::Ack { bth, aeth: Aeth::ack(count.into()) });
    }

    /// Posts a request of the victim into its landing.
    pub(crate) fn post(&mut self, wr_id: u64, op: SendOp, len: u32, fence: bool) {
        let (now, qpn, lkey) = (self.bench.net.now, self.bench.qp.qpn, self.landing.key.lkey);
        let local = Sge { addr: LANDING + 1024 * wr_id, len, lkey };
        let remote = RemoteAddr { addr: 0, rkey: 1 };
        let wr = SendWr { wr_id, op, local, remote, signaled: true, fence };
        self.bench.net.endpoint(VICTIM).post_send(now, qpn, wr).unwrap();
        self.bench.net.pump(VICTIM);
    }

    /// The value of counter 0.
    pub(crate) fn counter(&self) -> u64 {
        let mut bytes = [0; 8];
        self.counters.region.read_at(0, &mut bytes).unwrap();
        u64::from_ne_bytes(bytes)
    }

    /// From here on, counter 0 is expected to have what it has now.
    pub(crate) fn expect_counter(&mut self) {
        let now = self.counter().to_ne_bytes();
        self.counters.expected[..8].copy_from_slice(&now);
    }

    /// The data packets sent to the attacker since the last look, and the other packets.
    pub(crate) fn sent(&mut self) -> (Vec<Response>, Vec<String>) {
        let frames = self.bench.net.astray.clone();
        let brief = self.bench.answers();
        let (mut responses, mut rest) = (Vec::new(), Vec::new());
        for ((_, bytes), brief) in frames.iter().zip(brief) {
            match frame::decode(bytes).unwrap().1 {
                Packet::Data { head, payload, .. } => responses.push(Response {
                    opcode: head.bth.opcode,
                    number: head.meth.rqmsn.get().wrapping_sub(FIRST_MSN.get()),
                    offset: head.reth.va,
                    message_len: head.reth.dma_len,
                    bytes: payload.to_vec(),
                }),
                _ => rest.push(brief),
            }
        }
        (responses, rest)
    }

    /// Nothing was written but what is expected, and the victim's other connection works.
    #[track_caller]
    pub(crate) fn check(&mut self, what: &str) {
        self.readable.check(what);
        self.counters.check(what);
        self.landing.check(what);
        self.bench.check_healthy(what);
    }
}

pub(crate) fn value_response(number: u16, value: u64) -> Response {
    let bytes = value.to_be_bytes().to_vec();
    Response { opcode: Opcode::AtomicResponse, number, offset: 0, message_len: 8, bytes }
}

/// Decision 37.
#[test]
fn requests_and_responses_that_were_not_agreed_on_are_dropped() {
    use Opcode::*;
    let reads = [ReadRequest, ReadResponseFirst, ReadResponseMiddle, ReadResponseLast, ReadResponseOnly];
    let atomics = [CompareSwap, FetchAdd, AtomicResponse];
    let all = Extensions::SEND | Extensions::RNR | Extensions::INVALIDATE | Extensions::EMPTY_MESSAGES;
    let without_read = reads.map(|opcode| (all | Extensions::ATOMIC, opcode));
    let without_atomic = atomics.map(|opcode| (all | Extensions::READ, opcode));
    let plain = reads.into_iter().chain(atomics).map(|opcode| (Extensions::NONE, opcode));
    for (agreed, opcode) in without_read.into_iter().chain(without_atomic).chain(plain) {
        let mut victim = Victim::with(agreed, Patience::default(), |_| {});
        let mut head = if reads.contains(&opcode) { victim.read(0, 0, 8) } else { victim.fetch_add(0, 1) };
        head.bth.opcode = opcode;
        if !opcode.has_operands() {
            head.operands = None;
        }
        let is_request = opcode == ReadRequest || opcode.has_operands();
        for _ in 0..3 {
            victim.give(head, if is_request { &[] } else { &[0xee; 8] });
        }
        let counts = [("rx_packets", 3), ("rx_data", 3), ("rx_not_negotiated", 3)];
        victim.bench.expect_counts(&format!("{agreed:?} {opcode:?}"), &counts);
        assert_eq!((victim.sent(), victim.bench.failures()), ((vec![], vec![]), vec![]), "{opcode:?}");
        let write = victim.bench.write();
        victim.give(write, &[0xaa; 8]);
        victim.bench.target.expected[..8].fill(0xaa);
        assert_eq!(victim.bench.count("rx_placed_bytes"), 8, "nothing of it was recorded");
        victim.check("not agreed");
    }
}

/// Decision 40, 41: a good request is carried out, at both ends of its region.
#[test]
fn good_requests_get_their_responses() {
    let mut victim = Victim::new();
    let last = READABLE_LEN as u64 - 1;
    let mut nothing = victim.read(3, 0, 0);
    (nothing.reth.va, nothing.reth.rkey) = (u64::MAX, 0xbad);
    for head in [victim.read(0, 0, 1), victim.read(1, last, 1), victim.read(2, 10, 300), nothing] {
        victim.give(head, &[]);
    }
    let bytes = victim.readable.expected.clone();
    let response = |opcode, number, offset, message_len, bytes: &[u8]| Response {
        opcode,
        number,
        offset,
        message_len,
        bytes: bytes.to_vec(),
    };
    let expected = [
        response(Opcode::ReadResponseOnly, 0, 0, 1, &bytes[..1]),
        response(Opcode::ReadResponseOnly, 1, 0, 1, &bytes[READABLE_LEN - 1..]),
        response(Opcode::ReadResponseFirst, 2, 0, 300, &bytes[10..266]),
        response(Opcode::ReadResponseLast, 2, 256, 300, &bytes[266..310]),
        response(Opcode::ReadResponseOnly, 3, 0, 0, &[]),
    ];
    assert_eq!(victim.sent().0, expected);
    // The last counter, and both results of a comparison.
    let mut before = [0; 8];
    before.copy_from_slice(&victim.counters.expected[56..]);
    let before = u64::from_ne_bytes(before);
    for (n, compare, swap) in [(4, before ^ 1, 7), (5, before, 9)] {
        let mut head = victim.fetch_add(n, 0);
        head.bth.opcode = Opcode::CompareSwap;
        head.reth.va = COUNTERS + 56;
        head.operands = Some(AtomicOperands { swap_or_add: swap, compare });
        victim.give(head, &[]);
        assert_eq!(victim.sent().0, [value_response(n, before)], "number {n}");
    }
    victim.counters.expected[56..].copy_from_slice(&9_u64.to_ne_bytes());
    assert_eq!((victim.bench.count("rx_reads"), victim.bench.count("rx_atomics")), (4, 2));
    victim.check("good requests");
}

/// A request that breaks a rule, with an atomic operation behind it: neither is carried out, in either order of arrival.
#[track_caller]
fn refused(
    what: &str,
    spoil: impl Fn(&Victim, &[Memory]) -> (DataHead, Vec<u8>),
    code: NakCode,
    counter: Option<&str>,
) {
    for swapped in [false, true] {
        let mut victim = Victim::new();
        let others = others(&mut victim);
        let (bad, payload) = spoil(&victim, &others);
        let good = victim.fetch_add(1, 1);
        if swapped {
            victim.give(good, &[]);
            assert_eq!(victim.sent().0, [], "{what}: not its turn");
        }
        victim.give(bad, &payload);
        if !swapped {
            victim.give(good, &[]);
        }
        let (responses, rest) = victim.sent();
        assert_eq!(responses, [], "{what}");
        assert!(rest.contains(&nak(code, FIRST_PSN)), "{what}: {rest:?}");
        assert_eq!(victim.bench.violation().map(|(psn, _)| psn), Some(FIRST_PSN), "{what}");
        if let Some(counter) = counter {
            assert_eq!(victim.bench.count(counter), 1, "{what}: {counter}");
        }
        assert_eq!((victim.bench.count("rx_reads"), victim.bench.count("rx_atomics")), (0, 0), "{what}");
        for memory in others {
            memory.check(what);
        }
        victim.check(what);
    }
}

/// Memory with each right alone but that to read and that to atomic operations, and some of another protection domain.
fn others(victim: &mut Victim) -> Vec<Memory> {
    let other = victim.bench.net.endpoint(VICTIM).alloc_pd();
    let pd = victim.bench.pd;
    let alone = [Access::LOCAL_WRITE, Access::REMOTE_WRITE, Access::REMOTE_INVALIDATE, Access::LOCAL_READ];
    let mut made: Vec<_> = (0..)
        .zip(alone)
        .map(|(n, access)| region(&mut victim.bench.net, VICTIM, pd, (OTHERS + n * 0x1000, 64), access))
        .collect();
    let all = Access::REMOTE_READ | Access::REMOTE_ATOMIC | Access::REMOTE_INVALIDATE | Access::REMOTE_WRITE;
    made.push(region(&mut victim.bench.net, VICTIM, other, (OTHERS + 0x8000, 64), all));
    made
}

/// Decision 40: key, domain, right, range and form of a READ.
#[test]
fn a_read_without_permission_is_refused() {
    let access = NakCode::RemoteAccess;
    let with = |reth: Reth| {
        move |victim: &Victim, _: &[Memory]| (victim.head(0, Opcode::ReadRequest, reth), Vec::new())
    };
    refused(
        "an unknown key",
        with(Reth { va: READABLE, rkey: 0xbad, dma_len: 8 }),
        access,
        Some("rx_bad_rkey"),
    );
    for (at, step) in [(0, 0), (1, 0x1000), (2, 0x2000), (3, 0x3000)] {
        let spoil = |victim: &Victim, others: &[Memory]| {
            let reth = Reth { va: OTHERS + step, rkey: others[at].key.rkey, dma_len: 8 };
            (victim.head(0, Opcode::ReadRequest, reth), Vec::new())
        };
        refused(&format!("another right, {at}"), spoil, access, Some("rx_no_access"));
    }
    let spoil = |victim: &Victim, _: &[Memory]| {
        let reth = Reth { va: COUNTERS, rkey: victim.counters.key.rkey, dma_len: 8 };
        (victim.head(0, Opcode::ReadRequest, reth), Vec::new())
    };
    refused("the right to atomic operations", spoil, access, Some("rx_no_access"));
    let spoil = |victim: &Victim, others: &[Memory]| {
        let reth = Reth { va: OTHERS + 0x8000, rkey: others[4].key.rkey, dma_len: 8 };
        (victim.head(0, Opcode::ReadRequest, reth), Vec::new())
    };
    refused("another domain", spoil, access, Some("rx_wrong_pd"));
    let end = READABLE_LEN as u64;
    for (what, offset, len) in [
        ("a byte before", 0_u64.wrapping_sub(1), 2),
        ("a byte beyond", end - 7, 8),
        ("at the end", end, 1),
        ("all and one more", 0, READABLE_LEN as u32 + 1),
        ("the largest length", 0, u32::MAX),
        ("around the address space", u64::MAX - READABLE - 3, 8),
        ("to the end of the address space", u64::MAX - READABLE, 1),
    ] {
        let spoil = |victim: &Victim, _: &[Memory]| {
            let mut head = victim.read(0, 0, len);
            head.reth.va = READABLE.wrapping_add(offset);
            (head, Vec::new())
        };
        refused(what, spoil, access, Some("rx_out_of_bounds"));
    }
    for len in [1, 8, MTU_BYTES] {
        for of in [len as u32, 1_000] {
            let spoil = |victim: &Victim, _: &[Memory]| (victim.read(0, 0, of), vec![0xee; len]);
            refused(&format!("{len} bytes of payload of {of}"), spoil, NakCode::InvalidRequest, None);
        }
    }
}

/// Decision 41: the same for atomic operations, which also need an address that is a multiple of 8, and 8 bytes.
#[test]
fn an_atomic_operation_without_permission_is_refused() {
    for opcode in [Opcode::FetchAdd, Opcode::CompareSwap] {
        let atomic = |victim: &Victim, va, rkey, dma_len| {
            let mut head = victim.fetch_add(0, 1);
            (head.bth.opcode, head.reth) = (opcode, Reth { va, rkey, dma_len });
            // A comparison that would succeed.
            head.operands = Some(AtomicOperands { swap_or_add: 1, compare: victim.counter() });
            head
        };
        let access = NakCode::RemoteAccess;
        let spoil = |victim: &Victim, _: &[Memory]| (atomic(victim, COUNTERS, 0xbad, 8), Vec::new());
        refused("an unknown key", spoil, access, Some("rx_bad_rkey"));
        for (at, step) in [(0, 0), (1, 0x1000), (2, 0x2000), (3, 0x3000)] {
            let spoil = |victim: &Victim, others: &[Memory]| {
                (atomic(victim, OTHERS + step, others[at].key.rkey, 8), Vec::new())
            };
            refused(&format!("another right, {at}"), spoil, access, Some("rx_no_access"));
        }
        let spoil = |victim: &Victim, _: &[Memory]| {
            (atomic(victim, READABLE, victim.readable.key.rkey, 8), Vec::new())
        };
        refused("the right to read", spoil, access, Some("rx_no_access"));
        let spoil = |victim: &Victim, others: &[Memory]| {
            (atomic(victim, OTHERS + 0x8000, others[4].key.rkey, 8), Vec::new())
        };
        refused("another domain", spoil, access, Some("rx_wrong_pd"));
        for (what, va) in [
            ("before", COUNTERS - 8),
            ("at the end", COUNTERS + 64),
            ("at the end of the address space", u64::MAX - 7),
        ] {
            let spoil =
                |victim: &Victim, _: &[Memory]| (atomic(victim, va, victim.counters.key.rkey, 8), Vec::new());
            refused(what, spoil, access, Some("rx_out_of_bounds"));
        }
        for off in [1, 2, 4, 7, 57] {
            let spoil = |victim: &Victim, _: &[Memory]| {
                (atomic(victim, COUNTERS + off, victim.counters.key.rkey, 8), Vec::new())
            };
            refused(&format!("{off} bytes off"), spoil, NakCode::InvalidRequest, Some("rx_misaligned"));
        }
        for len in [0, 1, 7, 9, 16, 64, u32::MAX] {
            let spoil = |victim: &Victim, _: &[Memory]| {
                (atomic(victim, COUNTERS, victim.counters.key.rkey, len), Vec::new())
            };
            refused(&format!("length {len}"), spoil, NakCode::InvalidRequest, Some("rx_bad_length"));
        }
        for len in [1, 8] {
            let spoil = |victim: &Victim, _: &[Memory]| {
                (atomic(victim, COUNTERS, victim.counters.key.rkey, 8), vec![0xee; len])
            };
            refused(&format!("{len} bytes of payload"), spoil, NakCode::InvalidRequest, None);
        }
    }
}

/// Requests are numbered one by one, and by the peer's numbers.
#[test]
fn a_request_with_a_wrong_number_is_refused() {
    for number in [FIRST_MSN.get() - 1, FIRST_MSN.get().wrapping_add(1), 1, 0x7fff] {
        for read in [false, true] {
            let spoil = |victim: &Victim, _: &[Memory]| {
                let mut head = if read { victim.read(0, 0, 8) } else { victim.fetch_add(0, 1) };
                head.meth.rqmsn = Msn::new(number);
                (head, Vec::new())
            };
            refused(
                &format!("number {number:#x}"),
                spoil,
                NakCode::InvalidRequest,
                Some("rx_invalid_request"),
            );
        }
    }
    // A number that was used.
    let mut victim = Victim::new();
    let (first, mut second) = (victim.fetch_add(0, 1), victim.fetch_add(1, 1));
    second.meth.rqmsn = FIRST_MSN;
    let before = victim.counter();
    victim.give(first, &[]);
    victim.give(second, &[]);
    assert_eq!(victim.counter(), before.wrapping_add(1));
    let expected = FIRST_MSN.next();
    let violation = Violation::FetchNumber { rqmsn: FIRST_MSN, expected };
    assert_eq!(victim.bench.violation(), Some((FIRST_PSN.add(1), violation)));
    victim.expect_counter();
    victim.check("a used number");
}

/// Each request is carried out once and in its turn, whatever order and however often its copies arrive.
#[test]
fn copies_of_a_request_are_carried_out_once() {
    let orders = [[0_u16, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2], [2, 0, 3, 1]];
    for order in orders {
        let mut victim = Victim::new();
        let start = victim.counter();
        let mut responses = Vec::new();
        for n in order {
            for rtx in [false, true, true] {
                let mut head = victim.fetch_add(n, 1 << (8 * n));
                head.bth.rtx = rtx;
                victim.give(head, &[]);
                responses.extend(victim.sent().0);
                // A copy with other operands changes nothing.
                let mut forged = victim.fetch_add(n, 0xdead);
                forged.bth.rtx = true;
                victim.give(forged, &[]);
                responses.extend(victim.sent().0);
            }
        }
        let found = |n: u16| (0..n).fold(start, |sum, n| sum.wrapping_add(1 << (8 * n)));
        let expected: Vec<_> = (0..4).map(|n| value_response(n, found(n))).collect();
        assert_eq!((responses, victim.counter()), (expected, found(4)), "{order:?}");
        assert_eq!(victim.bench.count("rx_atomics"), 4);
        victim.expect_counter();
        victim.check("copies");
    }
}

/// A peer that has more in flight than agreed ends its queue pair. Requests whose responses cannot be sent keep no more
/// memory than the limit.
#[test]
fn more_requests_than_agreed_are_a_violation() {
    for most in [1_u8, 2, 16] {
        let mut victim = Victim::with(Extensions::ALL, Patience::default(), |init| {
            init.max_dest_rd_atomic = most;
        });
        for n in 0..u16::from(most) {
            let head = victim.read(n, 0, 8);
            victim.give_silently(head);
        }
        assert_eq!(victim.bench.count("rx_reads"), most.into());
        let uses = victim.bench.net.endpoint(VICTIM).memory().uses(victim.readable.key.lkey);
        assert_eq!(uses, most.into());
        let head = victim.read(most.into(), 0, 8);
        victim.give_silently(head);
        let violation = Violation::TooManyFetches { max: most };
        assert_eq!(victim.bench.violation(), Some((FIRST_PSN.add(most.into()), violation)), "{most}");
        assert_eq!(victim.bench.net.endpoint(VICTIM).memory().uses(victim.readable.key.lkey), 0);
        victim.check("too many");
    }
}

/// The limit also holds while a port keeps the payload of a response that the peer has acknowledged.
#[test]
fn a_port_that_holds_a_response_does_not_lift_the_limit() {
    let mut victim = Victim::with(Extensions::ALL, Patience::default(), |init| init.max_dest_rd_atomic = 2);
    victim.bench.net.endpoint(VICTIM).release_before(0);
    let head = victim.read(0, 0, 8);
    victim.give(head, &[]);
    assert_eq!(victim.sent().0.len(), 1);
    victim.acknowledge(1);
    for n in 1..=2 {
        let head = victim.read(n, 0, 8);
        victim.give_silently(head);
        assert_eq!(victim.bench.violation(), None, "number {n}");
    }
    let head = victim.read(3, 0, 8);
    victim.give_silently(head);
    let violation = Violation::TooManyFetches { max: 2 };
    assert_eq!(victim.bench.violation(), Some((FIRST_PSN.add(3), violation)));
    victim.readable.check("held");
}

/// A queue pair that offers none takes none.
#[test]
fn a_limit_of_none_lets_no_request_in() {
    let mut victim = Victim::with(Extensions::ALL, Patience::default(), |init| init.max_dest_rd_atomic = 0);
    let head = victim.fetch_add(0, 1);
    victim.give(head, &[]);
    let (responses, rest) = victim.sent();
    assert_eq!(responses, []);
    assert!(rest.contains(&nak(NakCode::InvalidRequest, FIRST_PSN)), "{rest:?}");
    assert_eq!(victim.bench.violation(), Some((FIRST_PSN, Violation::TooManyFetches { max: 0 })));
}

/// A peer that asks for all it may and acknowledges nothing gets one window of responses, and then a few probes in each
/// timeout.
#[test]
fn responses_that_are_not_acknowledged_are_bounded() {
    let mut victim = Victim::new();
    let most = 16;
    for n in 0..most {
        let head = victim.read(n, 0, READABLE_LEN as u32);
        victim.give_silently(head);
    }
    let (now, qpn) = (victim.bench.net.now, victim.bench.qp.qpn);
    victim.bench.net.pump(VICTIM);
    let window = victim.bench.net.endpoint(VICTIM).qp_status(qpn).unwrap().cwnd_bytes;
    let sent =
        |victim: &mut Victim| victim.sent().0.iter().map(|response| response.bytes.len() as u64).sum::<u64>();
    let first = sent(&mut victim);
    assert!(first > 0 && first <= window, "{first} bytes of a window of {window}");
    let timeouts = 200;
    victim.bench.net.run_for(timeouts * (1024 << Patience::default().timeout));
    let later = sent(&mut victim);
    assert!(later <= 4 * timeouts * u64::from(MTU), "{later} bytes in {timeouts} timeouts");
    assert!(victim.bench.net.now > now && later > 0);
    assert_eq!(victim.bench.violation(), None);
    victim.check("not acknowledged");
}
