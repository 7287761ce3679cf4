//! A shared receive queue under loss and reordering: several queue pairs take from it, and the application posts late.
//!
//! Tests decisions 38 and 39 of `docs/protocol.md`.

use std::collections::VecDeque;
use std::sync::Arc;

use spindrift::endpoint::{CqId, EndpointConfig, Event, QpInit};
use spindrift::memory::{Access, PdId, Region};
use spindrift::time::Time;
use spindrift::wire::{Msn, Psn};
use spindrift::work::{
    RecvWr, RemoteAddr, ScatterWr, SendOp, SendWr, Sge, SharedRecvQueue, SrqId, Wc, WcOpcode, WcStatus,
};

use crate::support::ledger::Memory;
use crate::support::link::Link;
use crate::support::net::{Net, ports};
use crate::support::pair::{self, End, Patience};
use crate::support::rand::{Rng, mix};

const MTU: u32 = 256;
/// Bytes of a receive buffer, and of the largest message.
const BUFFER: usize = 4 * MTU as usize;
const MOST_NS: u64 = 60_000_000_000;

/// What one queue pair of node 0 has posted and seen.
struct Flow {
    ends: [End; 2],
    posted: VecDeque<Posted>,
    /// Those that have not completed at the sender.
    sending: VecDeque<u64>,
}

#[derive(Clone, Debug)]
struct Posted {
    op: SendOp,
    bytes: Vec<u8>,
    /// Where a write goes.
    at: usize,
}

fn memory(net: &mut Net, node: usize, pd: PdId, len: usize, rng: &mut Rng) -> Memory {
    let region = Region::alloc_at(len, rng.bits() >> 8).unwrap();
    region.write_at(0, &rng.bytes(len)).unwrap();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let key = net.endpoint(node).register(pd, region.clone(), access).unwrap();
    Memory { region, key }
}

fn bytes_of(memory: &Memory) -> Vec<u8> {
    let mut bytes = vec![0; memory.region.len()];
    memory.region.read_at(0, &mut bytes).unwrap();
    bytes
}

struct World {
    seed: u64,
    net: Net,
    rng: Rng,
    queue: Arc<SharedRecvQueue>,
    source: Memory,
    /// The receive buffers, and what they hold.
    pool: Memory,
    pool_model: Vec<u8>,
    /// Where writes go, and what it holds in the end.
    target: Memory,
    target_model: Vec<u8>,
    flows: Vec<Flow>,
    next_buffer: usize,
    used: Vec<bool>,
}

impl World {
    fn build(seed: u64) -> Self {
        let mut rng = Rng::new(mix(!seed));
        let planes = rng.range(1, 3) as u8;
        let links = (0..planes).map(|_| Link {
            delay_ns: rng.sized(500, 50_000),
            jitter_ns: rng.sized(1, 20_000),
            loss: rng.below(1_500) as u32,
            duplicate: rng.below(500) as u32,
            stray: rng.below(500) as u32,
            stray_ns: rng.sized(1_000, 500_000),
            ..Link::default()
        });
        let mut net = Net::new(seed, links.collect());
        net.heal_at = Time(rng.sized(100_000, 20_000_000));
        for node in [0, 1] {
            let seed = (seed << 1 | node as u64).into();
            net.add(EndpointConfig { seed, ..EndpointConfig::new(ports(true, node, planes, 4300)) });
        }
        let pds = [0, 1].map(|node| net.endpoint(node).alloc_pd());
        let counts: Vec<u64> = (0..rng.range(2, 4)).map(|_| rng.range(1, 30)).collect();
        let total = counts.iter().sum::<u64>() as usize;
        let source = memory(&mut net, 0, pds[0], 2 * BUFFER, &mut rng);
        let [pool, target] = [0, 1].map(|_| memory(&mut net, 1, pds[1], total * BUFFER, &mut rng));
        let queue = Arc::new(SharedRecvQueue::new(SrqId(1), 1 + rng.below(total as u64) as u32));
        let mut world = Self {
            seed,
            net,
            rng,
            queue,
            source,
            pool_model: bytes_of(&pool),
            pool,
            target_model: bytes_of(&target),
            target,
            flows: Vec::new(),
            next_buffer: 0,
            used: vec![false; total],
        };
        for count in counts {
            world.add_flow(pds, count);
        }
        world.net.pump(0);
        world
    }

    /// Connects two queue pairs, and posts everything at once.
    fn add_flow(&mut self, pds: [PdId; 2], count: u64) {
        let max_wimm = self.rng.range(1, 6) as u16;
        let ends = [0, 1].map(|node| {
            let rng = &mut self.rng;
            let init = QpInit {
                psn: Some(Psn::new((1 << 24) - rng.sized(1, 100) as u32)),
                msn: Msn::new(0_u16.wrapping_sub(rng.sized(1, 20) as u16)),
                max_mtu: MTU,
                max_wimm_dest: max_wimm,
                srq: (node == 1).then(|| Arc::clone(&self.queue)),
                ..QpInit::new(pds[node], CqId(0), CqId(1))
            };
            pair::create(&mut self.net, node, init)
        });
        pair::connect(&mut self.net, ends[0], ends[1], Patience::default());
        let mut flow = Flow { ends, posted: VecDeque::new(), sending: (0..count).collect() };
        let first = self.flows.iter().map(|flow| flow.posted.len()).sum::<usize>();
        for wr_id in 0..count {
            self.post_send(&mut flow, wr_id, (first + wr_id as usize) * BUFFER);
        }
        self.flows.push(flow);
    }

    fn post_send(&mut self, flow: &mut Flow, wr_id: u64, at: usize) {
        let (rng, source, target) = (&mut self.rng, &self.source, &self.target);
        let imm = rng.bits() as u32;
        let (with_imm, write) = (SendOp::SendWithImm(imm), SendOp::WriteWithImm(imm));
        let op = rng.pick(&[SendOp::Send, with_imm, write, SendOp::Send]);
        let any = rng.below(BUFFER as u64);
        let len = rng.pick(&[0, 1, 255, 256, 257, BUFFER as u64, any]) as usize;
        let from = rng.below(BUFFER as u64) as usize;
        let wr = SendWr {
            wr_id,
            op,
            local: Sge { addr: source.region.iova() + from as u64, len: len as u32, lkey: source.key.lkey },
            remote: RemoteAddr { addr: target.region.iova() + at as u64, rkey: target.key.rkey },
            signaled: true,
            fence: false,
        };
        let now = self.net.now;
        self.net.endpoint(0).post_send(now, flow.ends[0].qpn, wr).unwrap();
        let mut bytes = vec![0; len];
        source.region.read_at(from, &mut bytes).unwrap();
        if op == write {
            self.target_model[at..at + len].copy_from_slice(&bytes);
        }
        flow.posted.push_back(Posted { op, bytes, at });
    }

    fn is_done(&self) -> bool {
        self.flows.iter().all(|flow| flow.posted.is_empty() && flow.sending.is_empty())
    }

    /// Receive work requests are posted, and some time passes.
    fn step(&mut self) {
        let (seed, next, total) = (self.seed, self.next_buffer, self.used.len());
        assert!(self.net.now.0 < MOST_NS, "seed {seed}: work is left, {next} of {total} buffers posted");
        for _ in 0..self.rng.below(4) {
            let posts = self.next_buffer < total;
            if posts && post(&self.queue, &self.pool, self.next_buffer, &mut self.rng) {
                self.next_buffer += 1;
            }
        }
        self.net.run_for(self.rng.sized(1_000, 2_000_000));
        // What is complete at the sender has been received.
        for node in [1, 0] {
            for event in self.net.take_events(node) {
                match event {
                    Event::Completion { wc, .. } => self.completed(node, &wc),
                    Event::QpFailed { .. } => panic!("seed {seed}: {event:?}"),
                    _ => {}
                }
            }
        }
    }

    fn completed(&mut self, node: usize, wc: &Wc) {
        let (seed, end) = (self.seed, End { node, qpn: wc.qpn });
        let flow = self.flows.iter_mut().find(|flow| flow.ends[node] == end).unwrap();
        assert_eq!(wc.status, WcStatus::Success, "seed {seed}: {wc:?}");
        if wc.opcode.is_receive() {
            received(flow, wc, &self.pool, &self.target, &mut self.pool_model);
            assert!(
                !core::mem::replace(&mut self.used[wc.wr_id as usize], true),
                "seed {seed}: {wc:?} again"
            );
        } else {
            assert_eq!(Some(wc.wr_id), flow.sending.pop_front(), "seed {seed}: in order");
            assert!(flow.posted.len() <= flow.sending.len(), "seed {seed}: {wc:?} is not received");
        }
    }

    fn check_end(&mut self) {
        let seed = self.seed;
        assert!(self.used.iter().all(|used| *used), "seed {seed}: each buffer is used once");
        let changed = self.pool.region.first_difference(0, &self.pool_model).unwrap();
        assert_eq!(changed, None, "seed {seed}: the buffers");
        let changed = self.target.region.first_difference(0, &self.target_model).unwrap();
        assert_eq!(changed, None, "seed {seed}: the target");
        let uses = self.net.endpoint(1).memory().uses(self.pool.key.lkey);
        assert_eq!((self.queue.outstanding(), uses), (0, 0), "seed {seed}");
    }
}

fn run(seed: u64) {
    let mut world = World::build(seed);
    while !world.is_done() {
        world.step();
    }
    world.net.run_for(1_000_000_000);
    world.check_end();
}

/// Posts buffer `number`, in one element or in several; `false` if the queue is full.
fn post(queue: &SharedRecvQueue, pool: &Memory, number: usize, rng: &mut Rng) -> bool {
    let (wr_id, start) = (number as u64, pool.region.iova() + (number * BUFFER) as u64);
    let sge = |from: usize, to: usize| Sge {
        addr: start + from as u64,
        len: (to - from) as u32,
        lkey: pool.key.lkey,
    };
    if rng.one_in(2) {
        return queue.post(RecvWr { wr_id, local: sge(0, BUFFER) });
    }
    let [first, second] = [rng.below(BUFFER as u64) as usize, rng.below(BUFFER as u64) as usize];
    let (low, high) = (first.min(second), first.max(second));
    let local = &[sge(0, low), sge(low, high), sge(high, BUFFER)];
    queue.post_scatter(&ScatterWr { wr_id, local })
}

/// The next message of the queue pair has come, and its bytes are where they belong.
fn received(flow: &mut Flow, wc: &Wc, pool: &Memory, target: &Memory, pool_model: &mut [u8]) {
    let Posted { op, bytes, at } = flow.posted.pop_front().expect("a message that was sent");
    assert_eq!((wc.imm, wc.byte_len as usize), (op.imm(), bytes.len()), "{wc:?} of {op:?}");
    if matches!(op, SendOp::WriteWithImm(_)) {
        assert_eq!(wc.opcode, WcOpcode::RecvRdmaWithImm);
        assert_eq!(target.region.first_difference(at, &bytes).unwrap(), None, "{wc:?}");
        return;
    }
    assert_eq!(wc.opcode, WcOpcode::Recv);
    let at = wc.wr_id as usize * BUFFER;
    pool_model[at..at + bytes.len()].copy_from_slice(&bytes);
    let whole = &pool_model[at..at + BUFFER];
    assert_eq!(pool.region.first_difference(at, whole).unwrap(), None, "{wc:?} of {} bytes", bytes.len());
}

#[test]
fn queue_pairs_share_a_queue_that_is_filled_late() {
    for seed in 0..crate::setting("SPINDRIFT_SEEDS").unwrap_or(1_000) / 5 {
        run(seed);
    }
}
