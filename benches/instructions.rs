//! Instruction counts of the packet path, exact and repeatable: `cargo bench --bench instructions`.
//!
//! The program runs itself under `valgrind --tool=callgrind`, each scenario with two iteration
//! counts, and divides the difference, so that start-up does not count. Only the functions named in
//! a scenario are collected; building frames, copying payload and the CRC are outside them where
//! the scenario says so.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, reason = "benchmark")]

#[path = "common/callgrind.rs"]
mod callgrind;
#[path = "common/mod.rs"]
mod common;

use std::hint::black_box;
use std::process::ExitCode;

use callgrind::Scenario;
use common::{Frame, Pair};
use spindrift::endpoint::Transmit;
use spindrift::fallback::{self, FallbackConfig, MemoryStore, Nic, QpId};
use spindrift::path::PlaneSet;
use spindrift::pmd::{MacAddr, RxFrame, RxOrigin, loopback};
use spindrift::verbs::{Access, Context, ContextConfig, Cq, Idle, LaneMode, Qp, QpConfig, nic};
use spindrift::wire::{
    Bth, DataHead, Entropy, Meth, Msn, Opcode, Packet, Psn, Qpn, Reth, StackTemplate, Tseth, stack,
};
use spindrift::work::{RecvWr, RemoteAddr, SendOp, SendWr, Sge, Wc};

const fn scenario(name: &'static str, collect: &'static [&'static str], what: &'static str) -> Scenario {
    Scenario { name, collect, what, amounts: [2_000, 6_000] }
}

const SCENARIOS: [Scenario; 14] = [
    scenario("encode", &["encode_one"], "header stack and MRC headers of a data packet written"),
    scenario("decode", &["decode_one"], "a data packet parsed from Ethernet to RETH, without the CRC"),
    scenario("requester", &["requester_packet"], "a data packet of 256 bytes produced, headers included"),
    scenario(
        "responder",
        &["responder_packet"],
        "a data packet of 256 bytes received and placed, without the CRC",
    ),
    scenario("sack", &["requester_sack"], "a SACK for four packets received"),
    scenario("answer", &["responder_answer"], "an answer (SACK or ACK) produced"),
    scenario(
        "send-tx",
        &["requester_packet"],
        "a data packet of 256 bytes of a SEND produced, headers included",
    ),
    scenario(
        "send-rx",
        &["responder_packet"],
        "a data packet of 256 bytes of a SEND received and placed, without the CRC",
    ),
    scenario("write8", WHOLE, "an 8-byte write: post, send, place, answers, completion, without the CRC"),
    scenario("send8", WHOLE, "an 8-byte SEND, in the same way, with the receive work request"),
    scenario("read8", WHOLE, "an 8-byte READ, in the same way: two data packets"),
    scenario("atomic8", WHOLE, "a fetch-and-add, in the same way: two data packets"),
    scenario(
        "verbs",
        &["over_verbs"],
        "a write posted over the verbs API, and its completion polled, 16 at a time",
    ),
    scenario("fallback", &["over_fallback"], "the same over a context with fallback"),
];

/// Every function that an 8-byte write passes through.
const WHOLE: &[&str] =
    &["post", "requester_packet", "responder_packet", "responder_answer", "requester_sack", "reap"];

#[inline(never)]
fn encode_one(template: &StackTemplate, head: &DataHead, out: &mut [u8; 128]) {
    let entropy = Entropy { src_port: 0xc001, flow_label: 0x1234 };
    let at = template.write(out, entropy, 2, 44 + 4096);
    head.encode(&mut out[at..]);
}

fn encode(n: u64) {
    let [a, b] = [1, 2].map(|n| std::net::Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n).into());
    let template = StackTemplate::new(MacAddr([2; 6]), MacAddr([4; 6]), a, b, 4971, 255).unwrap();
    let head = DataHead {
        bth: Bth::new(Opcode::WriteMiddle, Qpn::new(0x42), Psn::new(0x101)),
        meth: Meth { rqmsn: Msn::new(0), msn: Msn::new(1) },
        tseth: Some(Tseth::new(0x1234)),
        reth: Reth { va: 0x1_0000, rkey: 0xabcd, dma_len: 65_536 },
        imm: None,
        operands: None,
    };
    let mut out = [0; 128];
    for _ in 0..n {
        encode_one(black_box(&template), black_box(&head), black_box(&mut out));
    }
}

#[inline(never)]
fn decode_one(frame: &[u8]) -> bool {
    let Ok(parsed) = stack::parse(frame) else { return false };
    let Some(body) = parsed.mrc.len().checked_sub(4).and_then(|len| parsed.mrc.get(..len)) else {
        return false;
    };
    matches!(black_box(Packet::decode(body)), Ok(Packet::Data { .. }))
}

fn decode(n: u64) {
    let mut pair = Pair::new(4096, false, 1 << 16);
    let wr = pair.write(4096);
    pair.a.endpoint.post_send(pair.now, pair.qa, wr).unwrap();
    let mut frames = Vec::new();
    pair.a.transmit(pair.now, 1, &mut frames);
    for _ in 0..n {
        assert!(decode_one(black_box(&frames[0].bytes)));
    }
}

#[inline(never)]
fn requester_packet(pair: &mut Pair, out: &mut Transmit) -> bool {
    pair.a.endpoint.transmit(pair.now, PlaneSet::ALL, out)
}

#[inline(never)]
fn responder_packet(pair: &mut Pair, frame: &Frame) {
    let rx = RxFrame::whole(RxOrigin::Ethernet, &frame.bytes);
    pair.b.endpoint.receive(pair.now, frame.port, &rx);
}

#[inline(never)]
fn responder_answer(pair: &mut Pair, out: &mut Transmit) -> bool {
    pair.b.endpoint.transmit(pair.now, PlaneSet::ALL, out)
}

#[inline(never)]
fn requester_sack(pair: &mut Pair, frame: &Frame) {
    let rx = RxFrame::whole(RxOrigin::Ethernet, &frame.bytes);
    pair.a.endpoint.receive(pair.now, frame.port, &rx);
}

fn frame_of(endpoint: &spindrift::endpoint::Endpoint, out: &Transmit) -> Frame {
    let mut bytes = out.head().to_vec();
    endpoint.payload(out).append_to(&mut bytes, usize::MAX);
    bytes.extend_from_slice(&[0; 4]);
    Frame { port: out.port, bytes }
}

/// Moves `n` data packets of 256 bytes in bursts of four; every function above runs in it, and
/// callgrind is told which one to count. Returns how many SACKs and other answers there were.
fn packets(n: u64, op: SendOp) -> (u64, u64) {
    let mut pair = Pair::new(256, false, 1 << 20);
    let (mut sacks, mut answers) = (0, 0);
    let mut sent = 0;
    let mut out = Transmit::default();
    let wr = SendWr { op, ..pair.write(1 << 18) };
    while sent < n {
        pair.now = pair.now + 1_000;
        if pair.a.endpoint.qp_status(pair.qa).unwrap().send_outstanding < 4 {
            post_recv(&mut pair, op, 1 << 18);
            pair.a.endpoint.post_send(pair.now, pair.qa, wr).unwrap();
        }
        for _ in 0..4 {
            assert!(requester_packet(&mut pair, &mut out));
            let frame = frame_of(&pair.a.endpoint, &out);
            responder_packet(&mut pair, &frame);
            sent += 1;
        }
        while responder_answer(&mut pair, &mut out) {
            let frame = frame_of(&pair.b.endpoint, &out);
            answers += 1;
            if frame.bytes[62] == Opcode::Sack.code() {
                sacks += 1;
                requester_sack(&mut pair, &frame);
            } else {
                pair.a.receive(pair.now, &[frame]);
            }
        }
        while pair.a.endpoint.poll_event().is_some() {}
        while pair.b.endpoint.poll_event().is_some() {}
    }
    (sacks, answers)
}

/// Posts a receive work request for a message of `op`, if it takes one.
fn post_recv(pair: &mut Pair, op: SendOp, len: u32) {
    if op.takes_receive() {
        let local = Sge { addr: pair.b.region.iova(), len, lkey: pair.b.key.lkey };
        pair.b.endpoint.post_recv(pair.qb, RecvWr { wr_id: 0, local }).unwrap();
    }
}

#[inline(never)]
fn post(pair: &mut Pair, op: SendOp) {
    post_recv(pair, op, 8);
    let wr = SendWr { op, ..pair.write(8) };
    pair.a.endpoint.post_send(pair.now, pair.qa, wr).unwrap();
}

#[inline(never)]
fn reap(pair: &mut Pair) -> usize {
    pair.b.completions();
    pair.a.completions()
}

/// Carries out `n` requests of 8 bytes, 16 at a time.
fn small(n: u64, op: SendOp) {
    let mut pair = Pair::new(4096, false, 1 << 16);
    let mut out = Transmit::default();
    let mut done = 0;
    while done < n {
        pair.now = pair.now + 1_000;
        for _ in 0..16 {
            post(&mut pair, op);
        }
        let mut busy = true;
        while busy {
            busy = false;
            while requester_packet(&mut pair, &mut out) {
                let frame = frame_of(&pair.a.endpoint, &out);
                responder_packet(&mut pair, &frame);
                busy = true;
            }
            while responder_answer(&mut pair, &mut out) {
                let frame = frame_of(&pair.b.endpoint, &out);
                requester_sack(&mut pair, &frame);
            }
        }
        done += reap(&mut pair) as u64;
    }
}

/// The ports of a side: those of two NICs, and only the first is used without fallback.
type Nics = [Vec<loopback::LoopbackPort>; 2];

fn wired() -> [Nics; 2] {
    let (a, b) = loopback::pair(1, loopback::LoopbackConfig::default());
    let (c, d) = loopback::pair(1, loopback::LoopbackConfig::default());
    [[a, c], [b, d]]
}

/// A context whose lane has a thread of its own, so that its work does not count.
fn open(ports: Vec<loopback::LoopbackPort>) -> Context {
    let ports = nic(ports);
    let lane = LaneMode::Thread { core: None, idle: Idle::Yield };
    let config = ContextConfig::new(&ports).lane(lane);
    Context::open(ports, config).unwrap()
}

/// The lanes are done with what was posted.
#[expect(clippy::disallowed_methods, reason = "lanes run in real time")]
fn wait() {
    std::thread::sleep(std::time::Duration::from_millis(300));
}

fn write8(wr_id: u64, local: Sge, remote: RemoteAddr) -> SendWr {
    SendWr { wr_id, op: SendOp::Write, local, remote, signaled: true, fence: false }
}

#[inline(never)]
fn over_verbs(qp: &mut Qp, cq: &mut Cq, wr: Option<SendWr>, out: &mut [Wc]) -> usize {
    match wr {
        Some(wr) => qp.post_send(wr).map(|()| 1).unwrap(),
        None => cq.poll(out).unwrap(),
    }
}

#[inline(never)]
fn over_fallback(context: &mut fallback::Context, qp: QpId, wr: Option<SendWr>, out: &mut [Wc]) -> usize {
    match wr {
        Some(wr) => context.post_send(qp, wr).map(|()| 1).unwrap(),
        None => context.poll(out),
    }
}

/// Posts and polls `n` writes, 16 at a time.
fn rounds(n: u64, local: Sge, remote: RemoteAddr, mut act: impl FnMut(Option<SendWr>, &mut [Wc]) -> usize) {
    let mut out = [Wc::default(); 16];
    for _ in 0..n / 16 {
        (0..16).for_each(|wr_id| assert_eq!(act(Some(write8(wr_id, local, remote)), &mut out), 1));
        wait();
        assert_eq!(act(None, &mut out), 16, "a lane is slower than this benchmark expects");
    }
}

fn verbs(n: u64) {
    let mut sides = wired().map(|[ports, _]| {
        let context = open(ports);
        let pd = context.create_pd().unwrap();
        let cq = context.create_cq(64).unwrap();
        let mr = pd.register(64, Access::REMOTE_WRITE).unwrap();
        let qp = Qp::create(&pd, &cq, &cq, &QpConfig::default()).unwrap();
        (cq, mr, qp)
    });
    let infos = [0, 1].map(|at: usize| sides[at].2.info().unwrap());
    (0..2).for_each(|at| sides[at].2.connect(&infos[1 - at]).unwrap());
    let [(cq, mr, qp), (_, target, _)] = &mut sides;
    let (local, remote) = (mr.sge(0, 8).unwrap(), target.remote().at(0, 8).unwrap());
    rounds(n, local, remote, |wr, out| over_verbs(qp, cq, wr, out));
}

fn fallback(n: u64) {
    let store = MemoryStore::default();
    let mut sides = wired().map(|ports| {
        let [default, backup] = ports.map(open);
        let store = Box::new(store.clone());
        let mut context =
            fallback::Context::open(&default, &backup, store, 64, FallbackConfig::default()).unwrap();
        let mr = context.register(64, Access::REMOTE_WRITE).unwrap();
        let qp = context.create_qp(&QpConfig::default()).unwrap();
        (context, mr, qp)
    });
    let infos = [0, 1].map(|at: usize| sides[at].0.info(sides[at].2).unwrap());
    for at in 0..2 {
        let (context, _, qp) = &mut sides[at];
        context.connect(*qp, &infos[1 - at]).unwrap();
    }
    while sides.iter().any(|(context, _, qp)| !context.is_prepared(*qp, Nic::Backup).unwrap()) {
        for (context, ..) in &mut sides {
            assert_eq!(context.poll(&mut [Wc::default()]), 0);
        }
    }
    let [(context, mr, qp), (_, target, _)] = &mut sides;
    let (local, remote) = (mr.sge(0, 8).unwrap(), target.remote().at(0, 8).unwrap());
    rounds(n, local, remote, |wr, out| over_fallback(context, *qp, wr, out));
}

/// Runs a scenario; returns the number of units of work that were collected.
fn run(scenario: &str, n: u64) -> u64 {
    match scenario {
        "encode" => encode(n),
        "decode" => decode(n),
        "sack" => return packets(n, SendOp::Write).0,
        "answer" => return packets(n, SendOp::Write).1,
        "write8" => small(n, SendOp::Write),
        "send8" => small(n, SendOp::Send),
        "read8" => small(n, SendOp::Read),
        "atomic8" => small(n, SendOp::FetchAdd(1)),
        "verbs" => verbs(n / 4),
        "fallback" => fallback(n / 4),
        "send-tx" | "send-rx" => _ = packets(n, SendOp::Send),
        _ => _ = packets(n, SendOp::Write),
    }
    if matches!(scenario, "verbs" | "fallback") { n / 64 * 16 } else { n }
}

fn main() -> ExitCode {
    callgrind::main("instructions", &SCENARIOS, run)
}
