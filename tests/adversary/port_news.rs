//! Port status updates that are forged, and port news for thousands of peers.
//!
//! Tests decision 22 of `docs/protocol.md`.

use std::collections::BTreeMap;

use spindrift::endpoint::{EndpointConfig, PortAddr, QpInfo, QpInit};
use spindrift::memory::Access;
use spindrift::path::PathConfig;
use spindrift::pmd::{RxFrame, RxOrigin};
use spindrift::time::Time;
use spindrift::wire::{Bth, ENDPOINT_QPN, Eeth, EndpointOp, Erth, Ev, OpPosition, Opcode, Packet, Psn};
use spindrift::work::{RemoteAddr, SendOp, SendWr, Sge};

use crate::bench::{Bench, Memory, PEER, VICTIM, attacker_info, attacker_ip, completions, init, region};
use crate::support::frame::{self, Envelope};
use crate::support::link::{Link, Outage};
use crate::support::net::{Net, address, ports};
use crate::support::pair::{self, End, Patience};
use crate::support::rand::Rng;

const MS: u64 = 1_000_000;
const PLANES: u8 = 4;
const LEN: u32 = 64 << 10;
/// Messages in flight.
const DEPTH: u64 = 4;

fn update(id: u32, mask: u32) -> Packet<'static> {
    let erth = Erth { op: EndpointOp::PortStatusUpdate, port_status_mask: mask, ..Erth::default() };
    Packet::EndpointRequest { bth: Bth::new(Opcode::EndpointRequest, ENDPOINT_QPN, Psn::new(id)), erth }
}

/// A queue pair over four planes that always has something to send.
struct Stream {
    net: Net,
    ends: [End; 2],
    memory: [Memory; 2],
    posted: u64,
    done: u64,
}

impl Stream {
    fn new() -> Self {
        let mut net = Net::new(5, vec![Link::clean(5_000); PLANES.into()]);
        (net.max_steps, net.max_time) = (u64::MAX, Time::NEVER);
        for node in [VICTIM, PEER] {
            net.add(EndpointConfig {
                seed: (70 + node as u64).into(),
                ..EndpointConfig::new(ports(true, node, PLANES, 4300))
            });
            // 400 Mb/s on a plane.
            net.nodes[node].ns_per_kib = 20_480;
        }
        let pds = [VICTIM, PEER].map(|node| net.endpoint(node).alloc_pd());
        let memory = [VICTIM, PEER]
            .map(|node| region(&mut net, node, pds[node], (0x1000, 1 << 20), Access::REMOTE_WRITE));
        let ends = [VICTIM, PEER]
            .map(|node| pair::create(&mut net, node, QpInit { max_mtu: 4096, ..init(pds[node]) }));
        // Gives up as soon as most users' queue pairs do.
        pair::connect(&mut net, ends[0], ends[1], Patience { timeout: 14, linear: 7, exponential: 7 });
        Self { net, ends, memory, posted: 0, done: 0 }
    }

    fn keep_posting(&mut self) {
        let finished = completions(&self.net.take_events(VICTIM));
        for wc in finished {
            assert!(wc.status.is_success(), "{:?} at {}", wc.status, self.net.now);
            self.done += 1;
        }
        while self.posted < self.done + DEPTH {
            let now = self.net.now;
            let wr = SendWr {
                wr_id: self.posted,
                op: SendOp::Write,
                local: Sge { addr: 0x1000, len: LEN, lkey: self.memory[VICTIM].key.lkey },
                remote: RemoteAddr { addr: 0x1000, rkey: self.memory[PEER].key.rkey },
                signaled: true,
                fence: false,
            };
            self.net.endpoint(VICTIM).post_send(now, self.ends[VICTIM].qpn, wr).unwrap();
            self.posted += 1;
        }
        self.net.pump(VICTIM);
    }

    /// Messages that end within `ns`.
    fn run(&mut self, ns: u64) -> u64 {
        let (end, before) = (self.net.now.after(ns), self.done);
        self.keep_posting();
        while self.net.next_at() <= end && self.net.step() {
            if !self.net.nodes[VICTIM].events.is_empty() {
                self.keep_posting();
            }
        }
        self.net.now = end;
        self.done - before
    }

    /// Someone says in the peer's name which of its ports can be reached, from its port `from`.
    fn forge(&mut self, from: u8, id: u32, mask: u32) {
        let envelope = Envelope::new(address(true, PEER, from), address(true, VICTIM, from));
        self.net.inject(VICTIM, from, &envelope.seal(&update(id, mask)));
    }

    /// Forged updates for `ms`, one in each; `from` a port chosen at random, whatever the mask.
    fn flood(&mut self, rng: &mut Rng, ms: u64) -> u64 {
        (0..ms)
            .map(|_| {
                self.forge(rng.below(4) as u8, rng.below(1 << 16) as u32, rng.below(1 << 32) as u32);
                self.run(MS)
            })
            .sum()
    }

    fn sent_on(&self, port: u8) -> usize {
        self.net.data_by_port.get(&(VICTIM, port)).copied().unwrap_or(0)
    }

    fn count(&self, name: &str) -> u64 {
        self.net.nodes[VICTIM].endpoint.counters().iter().find(|row| row.0 == name).unwrap().2
    }
}

#[test]
fn forged_updates_hardly_slow_a_stream() {
    let mut rng = Rng::new(1);
    let calm = Stream::new().run(10_000 * MS);
    let mut stream = Stream::new();
    let stormy = stream.flood(&mut rng, 10_000);
    println!("calm {calm}, under forged updates {stormy}, repeats {}", stream.count("tx_retransmits"));
    assert!(calm > 10_000, "{calm}");
    assert!(stormy * 10 >= calm * 9, "{stormy} messages of {calm}");
    assert_eq!(stream.count("qp_errors"), 0);
    assert!(stream.count("rx_contradicting_port_status") > 4_000);
    // What the updates cause is bounded: four planes, at most one probe each ms and ten closings a second.
    assert!(stream.count("tx_plane_probes") <= 4 * 10_100, "{}", stream.count("tx_plane_probes"));
    assert!(stream.count("peer_port_changes") <= 2 * 4 * 110, "{}", stream.count("peer_port_changes"));
    // Every plane is in use again.
    stream.run(20 * MS);
    let before = [0, 1, 2, 3].map(|port| stream.sent_on(port));
    stream.run(20 * MS);
    for port in 0..4 {
        assert!(stream.sent_on(port) > before[usize::from(port)], "plane {port}");
    }
}

#[test]
fn one_forged_update_without_ports_ends_nothing() {
    // The second would leave the port it came from, and no other.
    for (from, mask) in [(0, 0), (1, 0b0010)] {
        let mut stream = Stream::new();
        stream.forge(from, 0x1234, mask);
        // Without a plane the queue pair would fail after 4.4 s.
        assert!(stream.run(6_000 * MS) > 5_000, "from {from}, mask {mask:x}");
    }
}

#[test]
fn a_port_that_goes_down_is_left_within_a_round_trip() {
    for (storm, bound) in [(0, 10_000 + 200_000), (500, 3 * MS)] {
        let mut stream = Stream::new();
        stream.run(10 * MS);
        stream.flood(&mut Rng::new(2), storm);
        // The news takes one way, and what was queued before them another; under a flood a plane is
        // closed when a probe has gone unanswered.
        let now = stream.net.now;
        stream.net.schedule_link(now.after(1), PEER, 2, false);
        stream.run(bound);
        let left = stream.sent_on(2);
        let ended = stream.run(200 * MS);
        assert_eq!(stream.sent_on(2), left, "storm {storm}");
        assert!(ended > 200, "{ended}");
        // It returns: one probe, and the plane is in use.
        let now = stream.net.now;
        stream.net.schedule_link(now.after(1), PEER, 2, true);
        stream.run(2 * MS);
        assert!(stream.sent_on(2) > left, "storm {storm}");
        assert!(stream.count("tx_plane_probes") > 0 && stream.count("peer_port_changes") >= 2);
        assert_eq!(stream.count("qp_errors"), 0);
    }
}

/// The peer's news of the return are lost, and it sends nothing but answers.
#[test]
fn a_plane_whose_return_nobody_told_of_is_found_by_probes() {
    let mut stream = Stream::new();
    stream.forge(0, 1, 0b1101);
    let now = stream.net.now;
    let outage =
        |sender| Outage { from: now, to: now.after(40 * MS), plane: 1, sender: Some(sender), paths: 1 };
    stream.net.outages = vec![outage(PEER)];
    stream.run(39 * MS);
    assert_eq!(stream.sent_on(1), 0, "no answer over plane 1");
    stream.run(60 * MS);
    assert!(stream.sent_on(1) > 0);
}

/// A bench whose attacker said that its port 1 is down, and the request id of the victim's probe.
fn doubting() -> (Bench, Psn) {
    let mut bench = Bench::new();
    bench.mark();
    bench.give(&update(1, 1));
    assert_eq!(open(&mut bench), 1);
    let probes = bench.net.astray.iter().filter_map(|(_, bytes)| match frame::decode(bytes).unwrap() {
        (meta, Packet::EndpointRequest { bth, erth }) if meta.dst == attacker_ip(1) => {
            assert_eq!(erth.op, EndpointOp::EvProbe);
            Some(bth.psn)
        }
        _ => None,
    });
    let psn = probes.collect::<Vec<_>>()[0];
    (bench, psn)
}

fn open(bench: &mut Bench) -> u32 {
    bench.net.endpoint(VICTIM).peer_planes(bench.qp.qpn).unwrap().0
}

/// On the victim's `port`, from the attacker's port `from`.
fn give_on(bench: &mut Bench, (port, from): (u8, u8), packet: &Packet<'_>) {
    let frame = Envelope::new(attacker_ip(from), address(true, VICTIM, port)).seal(packet);
    bench.net.inject(VICTIM, port, &frame);
    bench.net.run_for(1_000);
}

#[test]
fn an_answer_over_the_plane_opens_it() {
    let (mut bench, psn) = doubting();
    let answer = |psn| {
        let eeth = Eeth::new(EndpointOp::EvProbe, OpPosition::default(), 0);
        Packet::EndpointResponse { bth: Bth::new(Opcode::EndpointResponse, ENDPOINT_QPN, psn), eeth }
    };
    give_on(&mut bench, (1, 1), &answer(psn.add(1)));
    give_on(&mut bench, (0, 0), &answer(psn));
    give_on(&mut bench, (1, 0), &answer(psn));
    assert_eq!(open(&mut bench), 1);
    give_on(&mut bench, (1, 1), &answer(psn));
    assert_eq!(open(&mut bench), 3);
    bench.check_healthy("answers");
    // Nobody can guess the ids by looking at his own.
    let ids: Vec<_> = (0..3).map(|_| doubting().1).chain([psn]).collect();
    assert!(ids.windows(2).all(|pair| pair[0] == pair[1]), "a run repeats");
    assert!(psn.get() > 255, "not a count of requests: {psn:?}");
}

#[test]
fn a_packet_that_is_accepted_opens_its_plane() {
    let (mut bench, _) = doubting();
    let head = bench.write();
    let payload = bench.target.expected[..8].to_vec();
    let write = Packet::Data { head, payload: &payload, pad: &[] };
    // It may have left before the port went down.
    give_on(&mut bench, (1, 1), &write);
    bench.net.run_for(20 * MS);
    assert_eq!(open(&mut bench), 1);
    give_on(&mut bench, (1, 0), &write);
    give_on(&mut bench, (0, 0), &write);
    assert_eq!(open(&mut bench), 1, "not from that port");
    give_on(&mut bench, (1, 1), &write);
    assert_eq!(open(&mut bench), 3);
}

/// A request from the peer is as good as data: it left the port that is said to be down.
#[test]
fn a_request_over_the_plane_opens_it() {
    let ev_probe = || {
        let bth = Bth::new(Opcode::EndpointRequest, ENDPOINT_QPN, Psn::new(3));
        Packet::EndpointRequest { bth, erth: Erth { op: EndpointOp::EvProbe, ..Erth::default() } }
    };
    for request in [ev_probe(), update(3, 3)] {
        let (mut bench, _) = doubting();
        // It may have left before the port went down.
        give_on(&mut bench, (1, 1), &request);
        bench.net.run_for(20 * MS);
        assert_eq!(open(&mut bench), 1, "{request:?}");
        give_on(&mut bench, (1, 0), &request);
        give_on(&mut bench, (0, 0), &request);
        assert_eq!(open(&mut bench), 1, "not from that port: {request:?}");
        give_on(&mut bench, (1, 1), &update(4, 1));
        assert_eq!(open(&mut bench), 1, "it contradicts itself");
        give_on(&mut bench, (1, 1), &request);
        assert_eq!(open(&mut bench), 3, "{request:?}");
        bench.check_healthy("a request");
    }
}

/// A probe of the application that goes over the closed plane and comes back opens it.
#[test]
fn an_answered_probe_of_the_application_opens_its_plane() {
    let answer = |id: u16| {
        let eeth = Eeth::new(EndpointOp::EvProbe, OpPosition::default(), 0);
        let bth = Bth::new(Opcode::EndpointResponse, ENDPOINT_QPN, Psn::new(id.into()));
        Packet::EndpointResponse { bth, eeth }
    };
    let ask = |bench: &mut Bench| {
        let (now, qpn) = (bench.net.now, bench.qp.qpn);
        let id = bench.net.endpoint(VICTIM).send_ev_probe(now, qpn, 1, Ev(0x1234_5678)).unwrap();
        bench.net.run_for(1_000);
        id
    };
    let mut bench = Bench::new();
    let before = ask(&mut bench);
    bench.give(&update(1, 1));
    assert_eq!(open(&mut bench), 1);
    bench.net.run_for(1_000);
    give_on(&mut bench, (1, 1), &answer(before));
    assert_eq!(open(&mut bench), 1, "the probe left before the doubt arose");
    let after = ask(&mut bench);
    give_on(&mut bench, (0, 0), &answer(after));
    assert_eq!(open(&mut bench), 1, "the answer took another plane");
    let after = ask(&mut bench);
    give_on(&mut bench, (1, 0), &answer(after));
    assert_eq!(open(&mut bench), 1, "the answer left another port");
    let after = ask(&mut bench);
    give_on(&mut bench, (1, 1), &answer(after));
    assert_eq!(open(&mut bench), 3);
    bench.check_healthy("an answered probe");
}

#[test]
fn who_says_that_the_port_he_speaks_from_is_down_is_not_believed() {
    let mut bench = Bench::new();
    for mask in [0, 2, !1] {
        bench.mark();
        bench.give(&update(1, mask));
        let counts = [("rx_packets", 1), ("rx_endpoint_requests", 1), ("rx_contradicting_port_status", 1)];
        bench.expect_counts("a contradiction", &counts);
        assert_eq!(bench.answers(), Vec::<String>::new());
        assert_eq!(open(&mut bench), 3);
    }
    bench.check_healthy("contradictions");
}

/// An endpoint with a queue pair to each of `count` peers that do not exist.
fn with_peers(count: usize, planes: u8) -> Net {
    let mut net = Net::new(1, vec![Link::clean(5_000); planes.into()]);
    net.max_steps = u64::MAX;
    let mut cfg = EndpointConfig::new(ports(true, VICTIM, planes, 4300));
    cfg.limits.max_qps = 16_384;
    net.add(cfg);
    let pd = net.endpoint(VICTIM).alloc_pd();
    for n in 0..count {
        let path = PathConfig { active: 4, backup: 0, ..PathConfig::new(planes) };
        let end = pair::create(&mut net, VICTIM, QpInit { path, ..init(pd) });
        let ours = net.endpoint(VICTIM).qp_info(end.qpn).unwrap();
        let theirs = QpInfo {
            ports: (0..planes)
                .map(|port| PortAddr { ip: address(true, 100 + n, port), mac: [6; 6] })
                .collect(),
            ..attacker_info(&ours)
        };
        pair::bring_up(&mut net, end, &theirs, Patience::default());
    }
    net.astray.clear();
    net
}

#[test]
fn port_news_reach_ten_thousand_peers() {
    const PEERS: usize = 10_000;
    let mut net = with_peers(PEERS, 2);
    let start = net.now;
    net.endpoint(VICTIM).port_link(start, 1, false);
    net.pump(VICTIM);
    let mut told: BTreeMap<_, Vec<u64>> = BTreeMap::new();
    let mut deaf = 0;
    loop {
        for (at, bytes) in core::mem::take(&mut net.astray) {
            let (meta, packet) = frame::decode(&bytes).unwrap();
            let Packet::EndpointRequest { bth, erth } = packet else { panic!("{packet:?}") };
            assert_eq!((erth.op, erth.port_status_mask), (EndpointOp::PortStatusUpdate, 1));
            let times = told.entry(meta.dst).or_default();
            times.push(at.since(start));
            // One peer in ten misses the first.
            if times.len() == 1 && bth.psn.get() % 10 == 0 {
                deaf += 1;
                continue;
            }
            let eeth = Eeth::new(erth.op, OpPosition::default(), erth.tx_timestamp);
            let bth = Bth::new(Opcode::EndpointResponse, ENDPOINT_QPN, bth.psn);
            let answer = Envelope::new(meta.dst, address(true, VICTIM, 0))
                .seal(&Packet::EndpointResponse { bth, eeth });
            let now = net.now;
            net.endpoint(VICTIM).receive(now, 0, &RxFrame::whole(RxOrigin::Ethernet, &answer));
        }
        if net.now.since(start) > 5_000 * MS || !net.step() {
            break;
        }
    }
    assert_eq!(told.len(), PEERS);
    let mut firsts: Vec<_> = told.values().map(|times| times[0]).collect();
    firsts.sort_unstable();
    let last = firsts[PEERS - 1];
    assert!(last <= 20 * MS, "the last peer heard after {last} ns");
    assert!((0..).step_by(2_000).zip(&firsts).all(|(due, &at)| at >= due), "one after the other");
    let twice = told.values().filter(|times| times.len() == 2).count();
    assert_eq!((twice, told.values().all(|times| times.len() <= 2)), (deaf, true));
    assert!(deaf > PEERS / 20);
    let waits: Vec<_> =
        told.values().filter(|times| times.len() == 2).map(|times| times[1] - times[0]).collect();
    assert!(waits.iter().all(|wait| (750_000..=1_250_000).contains(wait)), "{waits:?}");
    assert!(waits.iter().any(|&wait| wait < 850_000) && waits.iter().any(|&wait| wait > 1_150_000));
    let counters = net.endpoint(VICTIM).counters();
    assert_eq!((counters.rx_unmatched_response, counters.tx_endpoint_requests_refused), (0, 0), "paced");
}

/// The lane stalls while the peers are told, and a full queue refuses: all are told still.
#[test]
fn port_news_survive_a_stall() {
    const PEERS: usize = 2_000;
    let mut net = with_peers(PEERS, 2);
    let start = net.now;
    net.endpoint(VICTIM).port_link(start, 1, false);
    // Long enough to decide who is to be told when.
    net.run_for(1_000);
    net.nodes[VICTIM].lateness_ns = 10 * MS;
    let end = start.after(200 * MS);
    while net.next_at() <= end && net.step() {}
    assert!(net.endpoint(VICTIM).counters().tx_endpoint_requests_refused > 0);
    let mut told = BTreeMap::new();
    for (_, bytes) in &net.astray {
        *told.entry(frame::decode(bytes).unwrap().0.dst).or_insert(0) += 1;
    }
    assert_eq!(told.len(), PEERS);
}

/// An endpoint with `peers` peers, four planes to each, and so many queue pairs to each of them.
fn with_members(peers: usize, each: usize) -> (Net, Vec<End>) {
    let mut net = Net::new(1, vec![Link::clean(5_000); PLANES.into()]);
    net.add(EndpointConfig::new(ports(true, VICTIM, PLANES, 4300)));
    let pd = net.endpoint(VICTIM).alloc_pd();
    let mut ends = Vec::new();
    for peer in 9..9 + peers {
        for _ in 0..each {
            let end = pair::create(&mut net, VICTIM, init(pd));
            let ours = net.endpoint(VICTIM).qp_info(end.qpn).unwrap();
            let ip = |port| address(true, peer, port);
            let theirs = QpInfo {
                ports: (0..PLANES).map(|port| PortAddr { ip: ip(port), mac: [6; 6] }).collect(),
                ..attacker_info(&ours)
            };
            pair::bring_up(&mut net, end, &theirs, Patience::default());
            ends.push(end);
        }
    }
    (net, ends)
}

/// How many of these use no path over the last plane any more.
fn knowing(net: &mut Net, ends: &[End]) -> usize {
    ends.iter()
        .filter(|end| net.endpoint(VICTIM).planes(end.qpn).is_some_and(|planes| !planes.contains(3)))
        .count()
}

/// Whoever has many queue pairs to one peer is not held up by news of that peer.
#[test]
fn news_of_a_peer_are_taken_in_in_slices() {
    let (mut net, mut ends) = with_members(1, 1_000);
    let envelope = Envelope::new(address(true, 9, 0), address(true, VICTIM, 0));
    let now = net.now;
    let data = envelope.seal(&update(1, 0b0111));
    net.endpoint(VICTIM).receive(now, 0, &RxFrame::whole(RxOrigin::Ethernet, &data));
    assert_eq!(knowing(&mut net, &ends), 16);
    // Some go while others are yet to hear of it.
    for end in ends.split_off(900) {
        net.endpoint(VICTIM).destroy_qp(end.qpn).unwrap();
    }
    for end in ends.drain(..100) {
        net.endpoint(VICTIM).destroy_qp(end.qpn).unwrap();
    }
    net.run_for(100_000);
    assert_eq!(knowing(&mut net, &ends), 800);
}

/// Nor by a change of a port of its own: no call tells more than 16 queue pairs, however many peers they belong to.
#[test]
fn a_change_of_our_own_port_is_taken_in_in_slices() {
    for (peers, each) in [(1, 1_000), (100, 10), (1_000, 1)] {
        let (mut net, ends) = with_members(peers, each);
        let mut now = net.now.after(MS);
        net.endpoint(VICTIM).port_link(now, 3, false);
        let mut known = knowing(&mut net, &ends);
        assert_eq!(known, 16, "{peers} peers at once");
        let mut calls = 0;
        while known < 1_000 {
            now = now.after(1);
            assert!(net.endpoint(VICTIM).next_timeout() <= now, "{peers} peers: {known} know");
            net.endpoint(VICTIM).on_timeout(now);
            let before = core::mem::replace(&mut known, knowing(&mut net, &ends));
            assert!(known <= before + 16, "{peers} peers: {known} after {before}");
            calls += 1;
            assert!(calls <= 130, "{peers} peers: {known} know after {calls} calls");
        }
        net.now = now;
        // It comes back before all have heard of that, and goes again.
        net.endpoint(VICTIM).port_link(now, 3, true);
        net.endpoint(VICTIM).port_link(now, 3, false);
        net.run_for(2_000);
        assert_eq!(knowing(&mut net, &ends), 1_000, "{peers} peers");
        now = net.now;
        net.endpoint(VICTIM).port_link(now, 3, true);
        net.run_for(2_000);
        assert_eq!(knowing(&mut net, &ends), 0, "{peers} peers");
    }
}
