//! Two endpoints, their memory, the requests of a run, and the model of what they do.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use spindrift::endpoint::{CqId, EndpointConfig, Event, PostError, QpCap, QpInit};
use spindrift::memory::{Access, MrKey, PdId, Region};
use spindrift::path::PathConfig;
use spindrift::time::Time;
use spindrift::wire::{Msn, Psn};
use spindrift::work::{GatherWr, RecvWr, RemoteAddr, ScatterWr, SendOp, SendWr, Sge, Wc, WcOpcode, WcStatus};

use super::support::link::Link;
use super::support::net::{Net, ports};
use super::support::pair::{self, End, Patience};
use super::support::rand::Rng;

/// Longest message.
const MOST: usize = 3000;
/// Bytes between two places that messages are put to; they must stay as they are.
const GUARD: usize = 16;
const SLOT: usize = MOST + GUARD;
const FILL: u8 = 0xa5;
const REQUESTS: usize = 40;
/// Where regions start in their own address space.
const IOVA: u64 = 0x7000_0000;

/// What the runs have met.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reached {
    reads: u64,
    atomics: u64,
    sends: u64,
    not_ready: u64,
    retransmits: u64,
    fences: u64,
    empty: u64,
    scattered: u64,
}

impl Reached {
    pub(crate) fn add(&mut self, other: &Self) {
        let Self { reads, atomics, sends, not_ready, retransmits, fences, empty, scattered } = other;
        self.reads += reads;
        self.atomics += atomics;
        self.sends += sends;
        self.not_ready += not_ready;
        self.retransmits += retransmits;
        self.fences += fences;
        self.empty += empty;
        self.scattered += scattered;
    }

    pub(crate) fn check(&self) {
        let Self { reads, atomics, sends, not_ready, retransmits, fences, empty, scattered } = *self;
        for (count, what) in [
            (reads, "reads"),
            (atomics, "atomics"),
            (sends, "sends"),
            (not_ready, "not_ready"),
            (retransmits, "retransmits"),
            (fences, "fences"),
            (empty, "empty"),
            (scattered, "scattered"),
        ] {
            assert!(count > 100, "{what}: {self:?}");
        }
    }
}

/// A region and its keys.
#[derive(Debug)]
struct Memory {
    region: Arc<Region>,
    key: MrKey,
}

impl Memory {
    fn new(net: &mut Net, node: usize, pd: PdId, len: usize, access: Access) -> Self {
        let region = Region::alloc_at(len, IOVA).unwrap();
        let key = net.endpoint(node).register(pd, Arc::clone(&region), access).unwrap();
        Self { region, key }
    }

    fn remote(&self, offset: usize) -> RemoteAddr {
        RemoteAddr { addr: IOVA + offset as u64, rkey: self.key.rkey }
    }

    fn sge(&self, offset: usize, len: usize) -> Sge {
        Sge { addr: IOVA + offset as u64, len: len as u32, lkey: self.key.lkey }
    }

    fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.region.read_at(offset, &mut out).unwrap();
        out
    }

    fn word(&self, offset: usize) -> u64 {
        u64::from_ne_bytes(self.bytes(offset, 8).try_into().unwrap())
    }
}

/// The memory of one end.
#[derive(Debug)]
struct Memories {
    /// What this end sends and writes.
    source: Memory,
    /// What the peer reads; nobody changes it.
    readable: Memory,
    /// A place for each write of the peer.
    cells: Memory,
    /// Counters that the peer changes.
    counters: Memory,
    /// Where this end's reads and atomic operations go.
    landing: Memory,
    /// Receive buffers.
    buffers: Memory,
}

/// What a request does, and what must come of it.
#[derive(Clone, Debug)]
enum Expect {
    /// A write to the peer's cell of this request.
    Write,
    /// A message for the peer's next receive.
    Message,
    /// These bytes in the landing.
    Bytes(Vec<u8>),
    /// This value in the landing.
    Value(u64),
}

#[derive(Clone, Debug)]
struct Planned {
    wr: SendWr,
    local: Vec<Sge>,
    payload: Vec<u8>,
    expect: Expect,
}

/// One direction of the connection.
struct Flow {
    from: End,
    to: End,
    planned: Vec<Planned>,
    posted: usize,
    completed: usize,
    /// Messages that take a receive, in order: opcode of the receive, immediate, bytes.
    inbound: VecDeque<(WcOpcode, Option<u32>, Vec<u8>)>,
    receives_posted: usize,
    receives: usize,
    received: usize,
    /// Receives that are posted before anything is sent.
    early: usize,
    scatter: bool,
}

fn some_len(rng: &mut Rng) -> usize {
    match rng.below(6) {
        0 => 0,
        1 => 1 + rng.below(16) as usize,
        2 => 256 * (1 + rng.below(4) as usize),
        _ => 1 + rng.below(MOST as u64 - 1) as usize,
    }
}

/// Cuts `len` bytes from `offset` into elements.
fn elements(rng: &mut Rng, memory: &Memory, offset: usize, len: usize) -> Vec<Sge> {
    let most = if rng.chance(3_000) { 5 } else { 1 };
    let mut parts = Vec::new();
    let (mut at, count) = (0, 1 + rng.below(most));
    for n in 0..count {
        let part = if n + 1 == count { len - at } else { rng.below((len - at) as u64 + 1) as usize };
        parts.push(memory.sge(offset + at, part));
        at += part;
    }
    parts
}

/// Draws the requests of one direction, and what the model says about them.
struct Planner<'a> {
    rng: &'a mut Rng,
    ours: &'a Memories,
    theirs: &'a Memories,
    /// The values of the target's counters after what was drawn.
    counters: [u64; 4],
    planned: Vec<Planned>,
}

impl Planner<'_> {
    fn draw(mut self) -> (Vec<Planned>, [u64; 4]) {
        for n in 0..REQUESTS {
            let next = self.request(n);
            self.planned.push(next);
        }
        (self.planned, self.counters)
    }

    fn request(&mut self, n: usize) -> Planned {
        let (len, offset) = (some_len(self.rng), n * SLOT);
        let base = SendWr {
            wr_id: n as u64,
            op: SendOp::Write,
            local: Sge::EMPTY,
            remote: self.theirs.cells.remote(offset),
            signaled: true,
            fence: self.rng.chance(2_000),
        };
        let writes: Vec<usize> =
            (0..self.planned.len()).filter(|&at| self.planned[at].wr.op == SendOp::Write).collect();
        match self.rng.below(9) {
            0 | 1 => self.message(base, len, true),
            2 | 3 => self.message(base, len, false),
            // What an earlier write put there.
            4 if !writes.is_empty() => {
                let seen = &self.planned[self.rng.pick(&writes)];
                let (bytes, remote) = (seen.payload.clone(), seen.wr.remote);
                self.fetch(SendWr { op: SendOp::Read, remote, ..base }, bytes.len(), Expect::Bytes(bytes))
            }
            4..=6 => {
                let at = self.rng.below((REQUESTS * SLOT - len) as u64 + 1) as usize;
                let (remote, bytes) = (self.theirs.readable.remote(at), self.theirs.readable.bytes(at, len));
                self.fetch(SendWr { op: SendOp::Read, remote, ..base }, len, Expect::Bytes(bytes))
            }
            _ => self.atomic(base),
        }
    }

    fn message(&mut self, base: SendWr, len: usize, is_write: bool) -> Planned {
        let payload = self.rng.bytes(len);
        let offset = base.wr_id as usize * SLOT;
        self.ours.source.region.write_at(offset, &payload).unwrap();
        let (imm, has_imm) = (self.rng.bits() as u32, self.rng.chance(4_000));
        let op = match (is_write, has_imm) {
            (true, false) => SendOp::Write,
            (true, true) => SendOp::WriteWithImm(imm),
            (false, false) => SendOp::Send,
            (false, true) => SendOp::SendWithImm(imm),
        };
        let expect = if op == SendOp::Write { Expect::Write } else { Expect::Message };
        let local = elements(self.rng, &self.ours.source, offset, len);
        Planned { wr: SendWr { op, ..base }, local, payload, expect }
    }

    fn fetch(&mut self, wr: SendWr, len: usize, expect: Expect) -> Planned {
        let local = elements(self.rng, &self.ours.landing, wr.wr_id as usize * SLOT, len);
        Planned { wr, local, payload: Vec::new(), expect }
    }

    fn atomic(&mut self, base: SendWr) -> Planned {
        let at = self.rng.below(4) as usize;
        let (found, value) = (self.counters[at], self.rng.bits());
        let (op, left) = match self.rng.below(3) {
            0 => (SendOp::FetchAdd(value), found.wrapping_add(value)),
            1 => (SendOp::CompareSwap { compare: found, swap: value }, value),
            _ => (SendOp::CompareSwap { compare: found.wrapping_add(1), swap: value }, found),
        };
        self.counters[at] = left;
        let wr = SendWr { op, remote: self.theirs.counters.remote(8 * at), ..base };
        self.fetch(wr, 8, Expect::Value(found))
    }
}

impl Memories {
    fn new(rng: &mut Rng, net: &mut Net, node: usize, pd: PdId) -> Self {
        let len = REQUESTS * SLOT * 2;
        let mut memory = |access| Memory::new(net, node, pd, len, access);
        let all = Self {
            source: memory(Access::LOCAL_READ),
            readable: memory(Access::REMOTE_READ),
            cells: memory(Access::REMOTE_WRITE | Access::REMOTE_READ),
            counters: memory(Access::REMOTE_ATOMIC),
            landing: memory(Access::LOCAL_WRITE),
            buffers: memory(Access::LOCAL_WRITE),
        };
        all.readable.region.write_at(0, &rng.bytes(len)).unwrap();
        for filled in [&all.landing, &all.buffers, &all.cells] {
            filled.region.fill(0, len, FILL).unwrap();
        }
        all
    }
}

impl Flow {
    fn new(rng: &mut Rng, from: End, to: End, planned: Vec<Planned>) -> Self {
        let takers = planned.iter().filter(|one| one.wr.op.takes_receive());
        let inbound: VecDeque<_> = takers
            .map(|one| {
                let opcode = match one.wr.op {
                    SendOp::WriteWithImm(_) => WcOpcode::RecvRdmaWithImm,
                    _ => WcOpcode::Recv,
                };
                (opcode, one.wr.op.imm(), one.payload.clone())
            })
            .collect();
        let receives = inbound.len();
        let early = if rng.chance(5_000) { receives } else { rng.below(receives as u64 + 1) as usize };
        Self {
            from,
            to,
            planned,
            posted: 0,
            completed: 0,
            inbound,
            receives_posted: 0,
            receives,
            received: 0,
            early,
            scatter: rng.chance(4_000),
        }
    }
}

fn links(rng: &mut Rng, planes: u8) -> Vec<Link> {
    let faulty = rng.chance(8_000);
    let mut rate = |most: u64| if faulty { rng.below(most) as u32 } else { 0 };
    (0..planes)
        .map(|_| Link {
            delay_ns: 1_000 + u64::from(rate(20_000)),
            spread_ns: rate(5_000).into(),
            jitter_ns: rate(3_000).into(),
            loss: rate(1_000),
            duplicate: rate(500),
            corrupt: rate(200),
            ecn: rate(500),
            stray: rate(500),
            stray_ns: 200_000,
            ..Link::default()
        })
        .collect()
}

struct World {
    net: Net,
    memories: [Memories; 2],
    flows: Vec<Flow>,
    counters: BTreeMap<(usize, usize), u64>,
    reached: Reached,
}

pub(crate) fn run(seed: u64, print: bool) -> Reached {
    let mut world = World::new(seed);
    if print {
        for flow in &world.flows {
            println!("{:?} -> {:?}", flow.from, flow.to);
            for one in &flow.planned {
                println!("  {:?} {:?}", one.wr, one.local);
            }
        }
        world.net.trace.print = true;
    }
    world.go();
    world.check();
    world.reached
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x5eed_0fe7);
        let planes = 1 + rng.below(3) as u8;
        let mut net = Net::new(seed, links(&mut rng, planes));
        net.heal_at = Time(20_000_000);
        net.max_steps = 4_000_000;
        let mut ends = Vec::new();
        let mut memories = Vec::new();
        for node in 0..2 {
            net.add(EndpointConfig {
                seed: (seed ^ node as u64).into(),
                ..EndpointConfig::new(ports(true, node, planes, 4300))
            });
            let pd = net.endpoint(node).alloc_pd();
            memories.push(Memories::new(&mut rng, &mut net, node, pd));
            let init = QpInit {
                cap: QpCap {
                    max_send_wr: rng.pick(&[2, 8, 64]),
                    max_recv_wr: 2 * REQUESTS as u32,
                    max_send_sge: 5,
                    max_recv_sge: 5,
                },
                psn: Some(Psn::new(rng.pick(&[0, 0xff_ffe0, 0x7f_fff0]))),
                msn: Msn::new(if (seed >> node).is_multiple_of(2) { 0 } else { 0xfff0 }),
                max_wimm_dest: rng.pick(&[1, 3, 128]),
                max_dest_rd_atomic: rng.pick(&[1, 2, 16]),
                max_mtu: [256, 512, 1024][seed as usize % 3],
                path: PathConfig { active: 8, backup: 4, min_active: 2, ..PathConfig::new(planes) },
                ..QpInit::new(pd, CqId(0), CqId(1))
            };
            ends.push(pair::create(&mut net, node, init));
        }
        pair::connect(&mut net, ends[0], ends[1], Patience::default());
        let memories: [Memories; 2] = memories.try_into().unwrap();
        let mut counters = BTreeMap::new();
        let mut flows = Vec::new();
        for (from, to) in [(0, 1), (1, 0)] {
            let (ours, theirs) = (&memories[from], &memories[to]);
            let planner = Planner {
                rng: &mut rng,
                ours,
                theirs,
                counters: [0; 4],
                planned: Vec::with_capacity(REQUESTS),
            };
            let (planned, held) = planner.draw();
            counters.extend((0..).zip(held).map(|(at, value)| ((to, at), value)));
            flows.push(Flow::new(&mut rng, ends[from], ends[to], planned));
        }
        Self { net, memories, flows, counters, reached: Reached::default() }
    }

    /// Posts a receive for the next message of a flow, with room for the longest.
    fn post_receive(&mut self, at: usize) {
        let flow = &mut self.flows[at];
        let (node, n) = (flow.to.node, flow.receives_posted);
        let buffers = &self.memories[node].buffers;
        let endpoint = self.net.endpoint(node);
        let (wr_id, offset) = (n as u64, n * SLOT);
        if flow.scatter {
            let local = [
                buffers.sge(offset, 100),
                Sge::EMPTY,
                buffers.sge(offset + 100, 411),
                buffers.sge(offset + 511, MOST - 511),
            ];
            endpoint.post_scatter(flow.to.qpn, ScatterWr { wr_id, local: &local }).unwrap();
            self.reached.scattered += 1;
        } else {
            endpoint.post_recv(flow.to.qpn, RecvWr { wr_id, local: buffers.sge(offset, MOST) }).unwrap();
        }
        flow.receives_posted += 1;
    }

    /// Posts as many requests as there is room for.
    fn post(&mut self, at: usize) {
        let flow = &mut self.flows[at];
        while let Some(one) = flow.planned.get(flow.posted) {
            let SendWr { wr_id, op, remote, signaled, fence, .. } = one.wr;
            let (now, endpoint) = (self.net.now, self.net.endpoint(flow.from.node));
            let local = &one.local;
            match endpoint.post_gather(
                now,
                flow.from.qpn,
                GatherWr { wr_id, op, local, remote, signaled, fence },
            ) {
                Ok(()) => flow.posted += 1,
                Err(PostError::QueueFull) => break,
                Err(error) => panic!("request {}: {error}", flow.posted),
            }
        }
        let node = flow.from.node;
        self.net.pump(node);
    }

    fn go(&mut self) {
        for at in 0..self.flows.len() {
            (0..self.flows[at].early).for_each(|_| self.post_receive(at));
        }
        (0..self.flows.len()).for_each(|at| self.post(at));
        let mut turns = 0_u64;
        loop {
            for node in 0..2 {
                for event in self.net.take_events(node) {
                    self.on_event(node, event);
                }
            }
            if self
                .flows
                .iter()
                .all(|flow| flow.completed == flow.planned.len() && flow.received == flow.receives)
            {
                break;
            }
            turns += 1;
            // Late receivers: one request now and then.
            for at in 0..self.flows.len() {
                if self.flows[at].receives_posted < self.flows[at].receives && turns % 64 == at as u64 {
                    self.post_receive(at);
                }
                self.post(at);
            }
            assert!(self.net.step(), "stalls: {} {:?}", self.net.why_stopped(), self.progress());
        }
    }

    fn progress(&self) -> Vec<(usize, usize, usize, usize)> {
        let shown = |flow: &Flow| (flow.posted, flow.completed, flow.receives_posted, flow.received);
        self.flows.iter().map(shown).collect()
    }

    fn on_event(&mut self, node: usize, event: Event) {
        match event {
            Event::Completion { wc, .. } if wc.opcode.is_receive() => self.on_received(node, &wc),
            Event::Completion { wc, .. } => self.on_completed(node, &wc),
            Event::SendRetired { .. } | Event::PathsChanged { .. } | Event::PlanesSwitched { .. } => {}
            other => panic!("{other:?}: {:?}", self.progress()),
        }
    }

    fn on_completed(&mut self, node: usize, wc: &Wc) {
        let flow = self.flows.iter_mut().find(|flow| flow.from == End { node, qpn: wc.qpn }).unwrap();
        let one = &flow.planned[flow.completed];
        let len: u32 = one.local.iter().map(|sge| sge.len).sum();
        let expected = (flow.completed as u64, WcStatus::Success, one.wr.op.wc_opcode(), len);
        assert_eq!((wc.wr_id, wc.status, wc.opcode, wc.byte_len), expected, "{wc:?}");
        let offset = flow.completed * SLOT;
        flow.completed += 1;
        self.reached.fences += u64::from(one.wr.fence);
        self.reached.empty += u64::from(len == 0);
        let ours = &self.memories[node];
        match &one.expect {
            Expect::Write => {
                // The bytes are in the peer's memory.
                let cells = &self.memories[1 - node].cells;
                assert!(cells.bytes(offset, one.payload.len()) == one.payload, "write {}", wc.wr_id);
            }
            Expect::Message => self.reached.sends += 1,
            Expect::Bytes(bytes) => {
                assert!(ours.landing.bytes(offset, bytes.len()) == *bytes, "read {}: {:?}", wc.wr_id, one.wr);
                self.reached.reads += 1;
            }
            Expect::Value(value) => {
                assert_eq!(ours.landing.word(offset), *value, "atomic {}: {:?}", wc.wr_id, one.wr);
                self.reached.atomics += 1;
            }
        }
    }

    fn on_received(&mut self, node: usize, wc: &Wc) {
        let flow = self.flows.iter_mut().find(|flow| flow.to == End { node, qpn: wc.qpn }).unwrap();
        let (opcode, imm, bytes) = flow.inbound.pop_front().expect("a message more than was sent");
        let expected = (flow.received as u64, WcStatus::Success, opcode, bytes.len() as u32, imm);
        assert_eq!((wc.wr_id, wc.status, wc.opcode, wc.byte_len, wc.imm), expected);
        assert_eq!(wc.src_qpn, flow.from.qpn);
        let filled = if opcode == WcOpcode::Recv { bytes } else { Vec::new() };
        let offset = flow.received * SLOT;
        let buffers = &self.memories[node].buffers;
        assert!(buffers.bytes(offset, filled.len()) == filled, "receive {}", wc.wr_id);
        let rest = buffers.bytes(offset + filled.len(), SLOT - filled.len());
        assert!(rest.iter().all(|&byte| byte == FILL), "receive {}: bytes past the message", wc.wr_id);
        flow.received += 1;
    }

    /// What must be true at the end.
    fn check(&mut self) {
        for (&(node, at), &value) in &self.counters {
            assert_eq!(self.memories[node].counters.word(8 * at), value, "counter {at} of {node}");
        }
        for flow in &self.flows {
            let landing = &self.memories[flow.from.node].landing;
            for (n, one) in flow.planned.iter().enumerate() {
                let used = match &one.expect {
                    Expect::Bytes(bytes) => bytes.len(),
                    Expect::Value(_) => 8,
                    Expect::Write | Expect::Message => 0,
                };
                let rest = landing.bytes(n * SLOT + used, SLOT - used);
                assert!(rest.iter().all(|&byte| byte == FILL), "request {n}: bytes past its place");
            }
        }
        for node in 0..2 {
            let counters = self.net.endpoint(node).counters().clone();
            self.reached.not_ready += counters.rx_not_ready;
            self.reached.retransmits += counters.tx_retransmits;
            assert_eq!((counters.qp_errors, counters.rx_invalid_request, counters.rx_bad_rkey), (0, 0, 0));
        }
        // Nothing is pinned any more, so that all memory can be given back.
        self.net.run_for(1_000_000_000);
        for (node, memories) in self.memories.iter().enumerate() {
            let Memories { source, readable, cells, counters, landing, buffers } = memories;
            for memory in [source, readable, cells, counters, landing, buffers] {
                let uses = self.net.endpoint(node).memory().uses(memory.key.lkey);
                assert_eq!(uses, 0, "node {node}");
            }
        }
    }
}
