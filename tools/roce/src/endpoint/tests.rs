use std::net::Ipv6Addr;

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};

use super::*;
use crate::dcqcn::Profile;
use crate::requester::Retry;
use crate::wire::{Datagram, Path};

const ALL: Ports = Ports { control: 1, data: 1 };
const GBPS: u64 = 1_000_000_000;

fn spec() -> QpSpec {
    QpSpec {
        mtu: 1_024,
        retry: Retry { timeout: 3, count: 7, doublings: 0 },
        ack_every: 4,
        cnp_interval_ns: 50_000,
        dcqcn: Some(Profile::Paper.reaction(100 * GBPS)),
        line_bps: 100 * GBPS,
    }
}

fn path(from: u16, to: u16, plane: u8) -> Path {
    let address = |last| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last);
    Path { plane, from: address(from), to: address(to), source_port: 0xc000 }
}

/// Two endpoints with `qps` connections, whose PSNs wrap soon.
fn pair(spec: &QpSpec, qps: u32) -> [Endpoint; 2] {
    let mut both = [(), ()].map(|()| Endpoint::new(1, DscpMap::default()));
    for qp in 0..qps {
        let qpn = both[0].next_qpn();
        let psns = [Psn::new(0xff_fff0 + qp), Psn::new(0xff_ff00 + qp)];
        for side in 0..2 {
            let peer = Peer { qpn, psn: psns[1 - side], path: path(side as u16, 1 - side as u16, 0) };
            assert_eq!(both[side].add_qp(spec, psns[side], peer), qp);
        }
    }
    both
}

fn write(wr_id: u64, len: u32) -> Write {
    Write { wr_id, va: wr_id << 32, len, imm: None }
}

fn parse(head: &Head) -> Datagram {
    read(head.bytes(), head.follows).unwrap()
}

fn drain(endpoint: &mut Endpoint) -> Vec<QpEvent> {
    core::iter::from_fn(|| endpoint.poll()).collect()
}

#[test]
fn queue_pairs_take_turns() {
    let [mut one, _] = pair(&spec(), 3);
    for qp in [2, 0, 1] {
        assert!(one.post(Time(0), qp, write(0, 4 * 1_024)));
    }
    let mut order = Vec::new();
    while let Some((head, plane)) = one.transmit(Time(0), ALL) {
        assert_eq!(plane, 0);
        order.push(parse(&head).to.get() - FIRST_QPN);
    }
    assert_eq!(order, [2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1]);
    assert!(!one.post(Time(0), 3, write(0, 1)), "there is none");
}

#[test]
fn planes_take_turns() {
    let mut one = Endpoint::new(2, DscpMap::default());
    for plane in 0..2 {
        let peer = Peer { qpn: Qpn::new(2), psn: Psn::new(0), path: path(0, 1, plane) };
        let qp = one.add_qp(&spec(), Psn::new(0), peer);
        one.post(Time(0), qp, write(0, 3 * 1_024));
    }
    let both = Ports { control: 3, data: 3 };
    let planes: Vec<_> = (0..6).filter_map(|_| one.transmit(Time(0), both)).map(|(_, plane)| plane).collect();
    assert_eq!(planes, [0, 1, 0, 1, 0, 1]);
    // A plane that the host does not have: the last one that it has.
    let peer = Peer { qpn: Qpn::new(2), psn: Psn::new(0), path: path(0, 1, 9) };
    let qp = one.add_qp(&spec(), Psn::new(0), peer);
    one.post(Time(0), qp, write(0, 1));
    assert_eq!(one.transmit(Time(0), both).map(|(_, plane)| plane), Some(1));
}

/// While data is paused, acknowledgements leave, and the other way round; a plane that is not free has nothing sent on it.
#[test]
fn a_port_may_be_free_for_one_class() {
    let [mut one, mut two] = pair(&spec(), 1);
    one.post(Time(0), 0, write(0, 100));
    two.post(Time(0), 0, write(0, 100));
    let (head, _) = one.transmit(Time(0), ALL).unwrap();
    two.receive(Time(0), head.bytes(), head.follows);
    assert!(two.transmit(Time(0), Ports { control: 2, data: 2 }).is_none(), "another plane");
    let (ack, _) = two.transmit(Time(0), Ports { control: 1, data: 0 }).unwrap();
    assert!(matches!(parse(&ack).content, Content::Ack { .. }));
    assert!(two.transmit(Time(0), Ports { control: 1, data: 0 }).is_none());
    let (data, _) = two.transmit(Time(0), Ports { control: 0, data: 1 }).unwrap();
    assert!(matches!(parse(&data).content, Content::Data(_)));
    // Acknowledgements leave in the control class, data in one that is not trimmed and may be marked.
    let classes =
        [ack, data].map(|head| u16::from_be_bytes([head.bytes()[14], head.bytes()[15]]) >> 4 & 0xff);
    assert_eq!(classes, [46 << 2, 4 << 2 | 0b10]);
}

/// A rate of half the port lets a packet leave in every second slot, and other queue pairs use the ones between.
#[test]
fn a_rate_spaces_packets() {
    let [mut one, mut two] = pair(&spec(), 1);
    let cnp =
        Head::new(&path(1, 0, 0), one.qps.first().map(|_| Qpn::new(FIRST_QPN)).unwrap(), &Content::Cnp, 46);
    one.receive(Time(0), cnp.bytes(), cnp.follows);
    assert_eq!(one.rate_bps(Time(0), 0), Some(50 * GBPS));
    one.post(Time(0), 0, write(0, 10 * 1_024));
    let mut times = Vec::new();
    let mut now = 0;
    while let Some((head, _)) = one.transmit(Time(now), ALL) {
        times.push(now);
        two.receive(Time(now), head.bytes(), head.follows);
        assert!(one.transmit(Time(now), ALL).is_none());
        now = one.next_timeout().0;
        if times.len() == 4 {
            break;
        }
        // A nanosecond too early is too early.
        one.on_timeout(Time(now - 1));
        assert!(one.transmit(Time(now - 1), ALL).is_none(), "{now}");
        one.on_timeout(Time(now));
    }
    // 14 + 40 + 8 + 12 of headers, 16 more in the first, 1,024, 4 of iCRC and 24 around it, at 50 Gb/s: 182.72 and 180.16 ns.
    assert_eq!(times, [0, 183, 363, 544]);
    assert_eq!(one.counters().cnps, 1);
}

/// What is sent counts: with a byte counter of a packet, each one is a step of recovery.
#[test]
fn bytes_that_are_sent_raise_the_rate() {
    let dcqcn = spec().dcqcn.map(|dcqcn| crate::Dcqcn { byte_counter: Some(1_000), ..dcqcn });
    let [mut one, _] = pair(&QpSpec { dcqcn, ..spec() }, 1);
    let cnp = Head::new(&path(1, 0, 0), Qpn::new(FIRST_QPN), &Content::Cnp, 46);
    one.receive(Time(0), cnp.bytes(), cnp.follows);
    one.post(Time(0), 0, write(0, 2 * 1_024));
    let mut rates = vec![one.rate_bps(Time(0), 0).unwrap() / GBPS];
    for now in [Time(200), Time(500)] {
        assert!(one.transmit(now, ALL).is_some());
        rates.push(one.rate_bps(now, 0).unwrap() / GBPS);
    }
    assert_eq!(rates, [50, 75, 87]);
}

#[test]
fn marks_become_cnps() {
    let [mut one, mut two] = pair(&spec(), 2);
    one.post(Time(0), 0, write(0, 3 * 1_024));
    one.post(Time(0), 1, write(0, 1_024));
    let mut packets = Vec::new();
    while let Some((head, _)) = one.transmit(Time(0), ALL) {
        let mut bytes = head.bytes().to_vec();
        bytes[15] |= 0x30;
        packets.push((bytes, head.follows));
    }
    for (bytes, follows) in &packets {
        two.receive(Time(10), bytes, *follows);
    }
    let mut sent = Vec::new();
    while let Some((head, _)) = two.transmit(Time(10), ALL) {
        sent.push((parse(&head).to.get() - FIRST_QPN, parse(&head).content == Content::Cnp));
        one.receive(Time(20), head.bytes(), head.follows);
    }
    // One for each queue pair, before its acknowledgement.
    assert_eq!(sent, [(0, true), (1, true), (0, false), (1, false)]);
    assert_eq!((two.counters().marked, two.counters().cnps_sent, one.counters().cnps), (4, 2, 2));
    assert_eq!([0, 1].map(|qp| one.rate_bps(Time(20), qp)), [Some(50 * GBPS); 2]);
}

/// What a network that keeps the order may do to packets: they come, or not, or twice.
struct Wire {
    rng: Xoshiro256PlusPlus,
    /// Of 1,024 packets.
    lost: u64,
    twice: u64,
    marked: u64,
    /// When each arrives, and where.
    on_the_way: VecDeque<(u64, usize, Vec<u8>, u32)>,
}

impl Wire {
    fn chance(&mut self, of_1024: u64) -> bool {
        self.rng.next_u64() % 1_024 < of_1024
    }

    fn send(&mut self, now: u64, to: usize, head: &Head) {
        let mut bytes = head.bytes().to_vec();
        if self.chance(self.marked) && bytes[15] & 0x20 != 0 {
            bytes[15] |= 0x30;
        }
        let copies = if self.chance(self.lost) { 0 } else { 1 + usize::from(self.chance(self.twice)) };
        for _ in 0..copies {
            self.on_the_way.push_back((now + 2_000, to, bytes.clone(), head.follows));
        }
    }
}

/// What should have been placed and completed on one queue pair in one direction.
#[derive(Default)]
struct Model {
    posted: VecDeque<Write>,
    /// Of the first message that has not arrived, bytes that have.
    placed: u32,
    arrived: VecDeque<u64>,
    completed: u64,
}

impl Model {
    /// Bytes come in order and once, and a message ends where it should.
    fn place(&mut self, placed: &Placed) {
        let message = *self.posted.front().unwrap();
        assert_eq!(placed.va, message.va + u64::from(self.placed), "the next byte");
        self.placed += placed.len;
        assert_eq!(placed.last, self.placed == message.len, "{placed:?} of {message:?}");
        assert_eq!(placed.imm, message.imm.filter(|_| placed.last));
        if placed.last {
            self.posted.pop_front();
            self.placed = 0;
            self.arrived.push_back(message.wr_id);
        }
    }

    /// A completion is true, and in order.
    fn complete(&mut self, wr_id: u64) {
        assert_eq!(self.arrived.pop_front(), Some(wr_id), "complete before it has arrived, or out of order");
        self.completed += 1;
    }
}

struct Run {
    ends: [Endpoint; 2],
    wire: Wire,
    /// By sender and queue pair.
    models: [Vec<Model>; 2],
    failed: u32,
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut pick = |most: u64| rng.next_u64() % most;
        let qps = 1 + pick(4) as u32;
        let spec = QpSpec { ack_every: 1 + pick(20) as u32, ..spec() };
        let mut ends = pair(&spec, qps);
        let rates = [0, 1, 10, 100];
        let [lost, twice, marked] = [(); 3].map(|()| rates[pick(4) as usize]);
        let mut models = [(), ()].map(|()| (0..qps).map(|_| Model::default()).collect::<Vec<_>>());
        for qp in 0..qps {
            for (side, end) in ends.iter_mut().enumerate() {
                for wr_id in 0..pick(20) {
                    let (len, imm) = (pick(9_000) as u32, (pick(2) == 0).then_some(wr_id as u32));
                    let write = Write { wr_id, va: wr_id << 32, len, imm };
                    assert!(end.post(Time(0), qp, write));
                    models[side][qp as usize].posted.push_back(write);
                }
            }
        }
        let wire = Wire { rng, lost, twice, marked, on_the_way: VecDeque::new() };
        Self { ends, wire, models, failed: 0 }
    }

    fn note(&mut self, at: usize) {
        for event in drain(&mut self.ends[at]) {
            match event {
                QpEvent::Placed { qp, placed } => self.models[1 - at][qp as usize].place(&placed),
                QpEvent::Completed { qp, wr_id, status: Status::Success } => {
                    self.models[at][qp as usize].complete(wr_id);
                }
                QpEvent::Completed { .. } => self.failed += 1,
            }
        }
    }

    /// Until nothing is left to happen, one packet per end every 90 ns at most.
    fn go(&mut self) {
        let mut now = 0;
        let mut free_at = [0; 2];
        loop {
            for at in [0, 1] {
                self.ends[at].on_timeout(Time(now));
                if free_at[at] <= now
                    && let Some((head, _)) = self.ends[at].transmit(Time(now), ALL)
                {
                    self.wire.send(now, 1 - at, &head);
                    free_at[at] = now + 90;
                }
                self.note(at);
            }
            while let Some((_, to, head, follows)) = self.wire.on_the_way.pop_front_if(|first| first.0 <= now)
            {
                self.ends[to].receive(Time(now), &head, follows);
                self.note(to);
            }
            let idle = self.wire.on_the_way.is_empty() && free_at.iter().all(|&at| at <= now);
            let due = self.ends.iter().map(|end| end.next_timeout().0).min().unwrap();
            if idle && due == u64::MAX && self.ends.iter().all(|end| end.queues[0].ready.is_empty()) {
                break;
            }
            // Nothing happens within 90 ns that could not wait.
            now = if idle && self.ends.iter().all(|end| end.queues[0].ready.is_empty()) {
                due.max(now + 1)
            } else {
                now + 90
            };
            assert!(now < 1 << 30, "it does not end");
        }
    }
}

/// Whatever is lost, doubled and marked: every byte is placed exactly once and in order, and every completion is true.
#[test]
fn what_is_sent_arrives_once_and_in_order() {
    let (mut done, mut repeats, mut duplicates, mut failed) = (0, 0, 0, 0);
    for seed in 0..400 {
        let mut run = Run::new(seed);
        run.go();
        for side in 0..2 {
            repeats += run.ends[side].counters().repeats;
            duplicates += run.ends[side].counters().duplicates;
            assert_eq!(run.ends[side].counters().refused, 0);
            if run.failed == 0 {
                let left = run.models[side].iter().map(|model| model.posted.len() + model.arrived.len());
                assert_eq!(left.sum::<usize>(), 0, "seed {seed}: something is left");
            }
        }
        failed += run.failed;
        done += run.models.iter().flatten().map(|model| model.completed).sum::<u64>();
    }
    println!("{done} messages, {repeats} repeats, {duplicates} duplicates, {failed} failed");
    assert!(done > 10_000 && repeats > 1_000 && duplicates > 1_000, "{done} {repeats} {duplicates}");
    assert_eq!(failed, 0);
}

/// A random packet, often nearly right: for a queue pair that exists, with a PSN near the expected one.
fn forged(rng: &mut Xoshiro256PlusPlus) -> (Vec<u8>, u32) {
    let bits = rng.next_u64();
    let near = 0xff_fff0_u32.wrapping_add((bits >> 8 & 0x3f) as u32).wrapping_sub(16);
    let psn = Psn::new(if bits & 1 == 0 { near } else { (bits >> 32) as u32 });
    let imm = (bits & 2 == 0).then_some(3);
    let len = [0, 1, 1_023, 1_024, 1_025, 9_000, 1 << 20][(bits >> 16) as usize % 7];
    let first = bits & 4 == 0;
    let opcode = crate::wire::Opcode::write(first, bits & 8 == 0, imm.is_some());
    let reth = first.then_some(spindrift::wire::Reth { va: bits, rkey: 0, dma_len: (bits >> 20) as u32 });
    let imm = imm.filter(|_| opcode.is_last());
    let data = crate::wire::Data { opcode, psn, ack_req: bits & 16 == 0, reth, imm, len };
    let aeth = spindrift::wire::Aeth { syndrome: (bits >> 24) as u8, msn: bits as u32 & 0xff_ffff };
    let content = match bits >> 40 & 3 {
        0 => Content::Cnp,
        1 => Content::Ack { psn, aeth },
        _ => Content::Data(data),
    };
    let to = Qpn::new((bits >> 42 & 7) as u32);
    let head = Head::new(&path(9, 0, 0), to, &content, 4);
    let mut bytes = head.bytes().to_vec();
    if bits >> 50 & 7 == 1 {
        let at = rng.next_u64() as usize % bytes.len();
        bytes[at] ^= 1 << (rng.next_u64() % 8);
    }
    if bits >> 53 & 7 == 1 {
        bytes.truncate(rng.next_u64() as usize % bytes.len());
    }
    (bytes, head.follows)
}

/// Stray queue pairs, bad PSNs, acknowledgements of nothing, forged CNPs, flipped bits: nothing panics, and a rate stays a rate.
#[test]
fn nothing_that_arrives_breaks_it() {
    let mut strays = 0;
    for seed in 0..300 {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let [mut one, mut two] = pair(&spec(), 3);
        let mut now = 0;
        for step in 0..400 {
            let bits = rng.next_u64();
            now += bits % 3_000;
            if step % 40 == 0 {
                one.post(Time(now), bits as u32 % 4, write(step, (bits >> 40) as u32 % 20_000));
            }
            let (head, follows) = forged(&mut rng);
            one.receive(Time(now), &head, follows);
            one.on_timeout(Time(now));
            while let Some((head, _)) = one.transmit(Time(now), ALL) {
                parse(&head);
                two.receive(Time(now), head.bytes(), head.follows);
            }
            while let Some((head, _)) = two.transmit(Time(now), ALL) {
                one.receive(Time(now), head.bytes(), head.follows);
            }
            drain(&mut one);
            drain(&mut two);
            for qp in 0..3 {
                let rate = one.rate_bps(Time(now), qp).unwrap();
                assert!((40_000_000..=100 * GBPS).contains(&rate), "{rate}");
            }
        }
        strays += one.counters().strays;
    }
    assert!(strays > 1_000, "{strays}");
}

/// A forged CNP slows a queue pair down, and no more than that.
#[test]
fn a_stray_is_counted() {
    let [mut one, _] = pair(&spec(), 1);
    for qpn in [0, 1, 3, 0xff_ffff] {
        let cnp = Head::new(&path(9, 0, 0), Qpn::new(qpn), &Content::Cnp, 46);
        one.receive(Time(0), cnp.bytes(), cnp.follows);
    }
    one.receive(Time(0), &[], 0);
    assert_eq!((one.counters().strays, one.counters().cnps, drain(&mut one)), (5, 0, vec![]));
    assert_eq!(one.rate_bps(Time(0), 0), Some(100 * GBPS));
    assert_eq!(one.rate_bps(Time(0), 1), None);
}
