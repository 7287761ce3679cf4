//! Carrying out a plan, and what is demanded of the whole.

use std::cell::RefCell;
use std::net::Ipv6Addr;
use std::rc::Rc;

use spindrift::congestion::CcConfig;
use spindrift::endpoint::{CqId, EndpointConfig, Event, FailReason, QpCap, QpInit, Route, RtsAttr};
use spindrift::memory::{Access, PdId, Region};
use spindrift::path::PathConfig;
use spindrift::time::Time;
use spindrift::wire::stack::Outer;
use spindrift::wire::{EntropyMode, Msn, Psn};
use spindrift_srv6::{EvProfile, F3216, Field};

use crate::plan::{EndPlan, Plan, Weather};
use crate::recovery::Limits;
use crate::stream::Stream;
use crate::support::accusation::accusation;
use crate::support::ledger::Memory;
use crate::support::net::{Net, ports};
use crate::support::pair::{self, End};
use crate::support::rand::Rng;
use crate::support::writer::Fault;
use crate::wire_rules::{Direction, Fetches, Rules, Watcher};

/// What a run came to; equal for equal seeds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) runs: u64,
    pub(crate) packets: u64,
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    pub(crate) retransmits: u64,
    pub(crate) timeouts: u64,
    pub(crate) failed_streams: u64,
    pub(crate) reached: Reached,
    pub(crate) virtual_ns: u64,
    pub(crate) hash: u64,
}

impl Outcome {
    pub(crate) fn add(&mut self, other: &Self) {
        self.runs += other.runs;
        self.packets += other.packets;
        self.messages += other.messages;
        self.bytes += other.bytes;
        self.retransmits += other.retransmits;
        self.timeouts += other.timeouts;
        self.failed_streams += other.failed_streams;
        self.reached.add(&other.reached);
        self.virtual_ns += other.virtual_ns;
        self.hash = self.hash.rotate_left(1) ^ other.hash;
    }
}

/// Runs that reached a situation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reached {
    /// More than 4,096 packets of one direction in flight.
    pub(crate) wide: u64,
    /// Nothing lost and no path that reorders, so nothing sent twice.
    pub(crate) fair: u64,
    /// A first transmission was lost on a path that is dead for good.
    pub(crate) dead_path: u64,
    /// Waits were held against the bound on repair.
    pub(crate) timed: u64,
    pub(crate) full_host: u64,
    pub(crate) nack: u64,
    pub(crate) tail_probe: u64,
    pub(crate) timeout: u64,
    pub(crate) lost: u64,
    pub(crate) link_down: u64,
    pub(crate) failed: u64,
    pub(crate) cwnd_wait: u64,
    pub(crate) not_ready: u64,
    pub(crate) never_ready: u64,
    pub(crate) too_short: u64,
    pub(crate) sends: u64,
    /// A READ or an atomic operation was carried out.
    pub(crate) fetches: u64,
    /// The slowest repair, in thousandths of its bound.
    pub(crate) slowest: u64,
}

impl Reached {
    fn of(world: &World, plan: &Plan) -> Self {
        let counted = |value: fn(&spindrift::counters::Counters) -> u64| {
            u64::from(world.net.nodes.iter().any(|node| value(node.endpoint.counters()) > 0))
        };
        let facts: Vec<_> = world.rules.borrow().facts().collect();
        let data = world.rules.borrow().data.iter().sum::<u64>() > 0;
        Self {
            wide: facts.iter().any(|facts| facts.widest > 4_096).into(),
            fair: (plan.weather == Weather::Fair && data).into(),
            dead_path: facts.iter().any(|facts| facts.dead_paths > 0).into(),
            timed: facts.iter().any(|facts| facts.judged > 0).into(),
            full_host: (world.net.given_back > 0).into(),
            nack: counted(|counters| counters.tx_nacks),
            tail_probe: counted(|counters| counters.tx_tail_probes),
            timeout: counted(|counters| counters.timeouts),
            lost: counted(|counters| counters.tx_retransmits),
            link_down: (!plan.flaps.is_empty()).into(),
            failed: world.streams.iter().any(|stream| stream.writer.ledger.failed).into(),
            cwnd_wait: counted(|counters| counters.tx_cwnd_waits),
            not_ready: counted(|counters| counters.rx_not_ready),
            never_ready: u64::from(world.reasons.contains(&FailReason::RnrRetryExceeded)),
            too_short: u64::from(world.reasons.contains(&FailReason::PeerViolation)),
            sends: plan.pairs.iter().flatten().any(|end| end.kinds.sends > 0).into(),
            fetches: counted(|counters| counters.rx_reads + counters.rx_atomics),
            slowest: facts.iter().map(|facts| facts.slowest).max().unwrap_or(0),
        }
    }

    /// Notices when the plans drift away from what they are to reach. The shares, in percent of `runs`, lie somewhat below
    /// those of 4,000 seeds; that of wide windows is a demand.
    pub(crate) fn check_shares(&self, runs: u64) {
        if runs < 1_000 {
            return;
        }
        let shares = [
            ("more than 4,096 packets in flight", self.wide, 30),
            ("nothing lost", self.fair, 15),
            ("a dead path", self.dead_path, 3),
            ("a bound on repair", self.timed, 33),
            ("a full queue of the host", self.full_host, 35),
            ("a NACK", self.nack, 8),
            ("a tail probe", self.tail_probe, 30),
            ("a retransmission timeout", self.timeout, 10),
            ("a retransmission", self.lost, 45),
            ("a link that goes down", self.link_down, 20),
            ("a queue pair that fails", self.failed, 1),
            ("a wait for a shared congestion window", self.cwnd_wait, 4),
            ("a SEND", self.sends, 20),
            ("a READ or an atomic operation", self.fetches, 15),
            ("a message without a receive work request", self.not_ready, 3),
        ];
        for (what, count, percent) in shares {
            assert!(100 * count >= percent * runs, "only {count} of {runs} runs had {what}, not {percent} %");
        }
    }

    fn add(&mut self, other: &Self) {
        self.wide += other.wide;
        self.fair += other.fair;
        self.dead_path += other.dead_path;
        self.timed += other.timed;
        self.full_host += other.full_host;
        self.nack += other.nack;
        self.tail_probe += other.tail_probe;
        self.timeout += other.timeout;
        self.lost += other.lost;
        self.link_down += other.link_down;
        self.failed += other.failed;
        self.cwnd_wait += other.cwnd_wait;
        self.not_ready += other.not_ready;
        self.never_ready += other.never_ready;
        self.too_short += other.too_short;
        self.sends += other.sends;
        self.fetches += other.fetches;
        self.slowest = self.slowest.max(other.slowest);
    }
}

struct World {
    net: Net,
    streams: Vec<Stream>,
    rules: Rc<RefCell<Rules>>,
    may_fail: bool,
    /// Why queue pairs failed.
    reasons: Vec<FailReason>,
}

pub(crate) fn run(plan: &Plan, print: bool) -> Outcome {
    let mut world = World::build(plan, print);
    world.work();
    world.check_done(plan);
    world.fall_quiet();
    world.check_quiet(plan);
    world.outcome(plan)
}

fn endpoint_config(plan: &Plan, node: usize) -> EndpointConfig {
    let node_plan = &plan.nodes[node];
    let mut ports = ports(plan.v6, node, plan.links.len() as u8, 4300);
    if let Some(count) = node_plan.source_ports {
        for port in &mut ports {
            port.source_ports = Some((50_000..50_000 + count).collect());
        }
    }
    let mut cfg = EndpointConfig::new(ports);
    if plan.nodes.iter().any(|node| node.source_ports.is_some()) {
        cfg.entropy = EntropyMode::Udp;
    }
    cfg.seed = (plan.seed ^ (node as u64) << 32).into();
    if plan.routed {
        cfg.routes = (0..plan.links.len() as u8).map(|port| route(plan, node, port)).collect();
    }
    cfg.trimming = node_plan.trimming;
    cfg.sack_threshold_bytes = node_plan.sack_threshold;
    cfg.quantum = node_plan.quantum;
    cfg.oor_nack = node_plan.oor_nack;
    cfg.tail_probe_floor_ns = node_plan.tail_probe_floor_ns;
    cfg.initial_reordering_ns = node_plan.initial_reordering_ns;
    cfg
}

/// A route to everybody, by as many paths as there are, or by less than a queue pair asks for.
fn route(plan: &Plan, node: usize, port: u8) -> Route {
    let bits = [16, 6, 3][(plan.seed % 3) as usize];
    let fields = [Field::fixed(32, 0xfcbb_bb00), Field::low_bits(16, 0, bits), Field::fixed(16, port.into())];
    let path = EvProfile::new(&F3216::FORMAT, &fields).expect("a profile");
    let src = Ipv6Addr::new(0xfd0f, 0, 0, 0, 0, 0, node as u16, port.into());
    let to = if plan.v6 { "::/0" } else { "0.0.0.0/0" };
    let outer = Some(Outer { src, path, hop_limit: 64 });
    Route { outer, ..Route::new(to.parse().expect("a prefix"), port) }
}

fn qp_init(plan: &Plan, end: &EndPlan, pd: PdId, number: usize) -> QpInit {
    let mut init = QpInit::new(pd, CqId(2 * number as u32), CqId(2 * number as u32 + 1));
    init.cap = QpCap { max_send_wr: end.depth, max_recv_wr: 1024, max_send_sge: 16, max_recv_sge: 16 };
    init.psn = Some(Psn::new(end.psn));
    init.msn = Msn::new(end.msn);
    init.mpr_dest = end.mpr;
    init.max_wimm_dest = end.max_wimm;
    init.max_mtu = end.max_mtu;
    init.dynamic_mpr = end.dynamic_mpr;
    init.sig_all = end.sig_all;
    init.extensions = end.extensions;
    init.max_dest_rd_atomic = end.max_dest_rd_atomic;
    let active = end.active.max(plan.links.len() as u16);
    init.path = PathConfig {
        active,
        backup: end.backup,
        min_active: active.min(4),
        spray_width: end.spray_width,
        probes_to_revive: end.probes_to_revive,
        probe_interval_ns: end.probe_interval_ns,
        reverse_per_plane: end.reverse_per_plane,
        ..PathConfig::new(plan.links.len() as u8)
    };
    if end.nscc {
        let slowest = plan.links.iter().map(|link| link.delay_ns + link.spread_ns).max().unwrap_or(1_000);
        init.cc = CcConfig::new(100_000_000_000, 2 * slowest, end.max_mtu);
        // Those whose packets are as long share one window, of which a few packets are in each message.
        init.cc.shared = plan.shares_cwnds();
        if init.cc.shared {
            init.cc.nscc.max_cwnd_bytes = Some(12 * u64::from(end.max_mtu));
        }
    }
    init
}

fn memory(net: &mut Net, node: usize, pd: PdId, len: usize, rng: &mut Rng) -> Memory {
    // Sometimes at the very end of the address space.
    let iova = if rng.one_in(4) { 0_u64.wrapping_sub(len as u64 + 1) } else { rng.bits() >> 8 & !7 };
    let region = Region::alloc_at(len, iova).unwrap();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let key = net.endpoint(node).register(pd, region.clone(), access).unwrap();
    Memory { region, key }
}

impl World {
    fn build(plan: &Plan, print: bool) -> Self {
        let mut net = Net::new(plan.seed, plan.links.clone());
        net.trace.print = print;
        net.outages.clone_from(&plan.outages);
        net.heal_at = plan.heal_at;
        for (node, node_plan) in plan.nodes.iter().enumerate() {
            net.add(endpoint_config(plan, node));
            let node = &mut net.nodes[node];
            node.sockets = node_plan.sockets;
            node.lateness_ns = node_plan.lateness_ns;
            node.ns_per_kib = node_plan.ns_per_kib;
            node.queue_ns = node_plan.queue_ns;
            node.given_back = node_plan.given_back;
            node.full_ns = node_plan.full_ns;
        }
        for flap in &plan.flaps {
            net.schedule_link(flap.from, flap.node, flap.port, false);
        }
        // One up at the end of each, and no flap of the same port may hold it down longer.
        for flap in &plan.flaps {
            let same = |other: &&crate::plan::Flap| other.node == flap.node && other.port == flap.port;
            let last = plan.flaps.iter().filter(same).map(|other| other.to).max().unwrap_or(flap.to);
            net.schedule_link(flap.to, flap.node, flap.port, true);
            net.schedule_link(last.after(1), flap.node, flap.port, true);
        }
        let rules = Rc::new(RefCell::new(Rules::default()));
        net.tap = Some(Box::new(Watcher(Rc::clone(&rules))));
        let mut world =
            Self { net, streams: Vec::new(), rules, may_fail: plan.may_fail, reasons: Vec::new() };
        let mut rng = Rng::new(plan.seed ^ 0x776f_726b);
        let pds = [world.net.endpoint(0).alloc_pd(), world.net.endpoint(1).alloc_pd()];
        for (number, ends) in plan.pairs.iter().enumerate() {
            world.add_pair(plan, number, ends, pds, &mut rng);
        }
        world
    }

    fn add_pair(&mut self, plan: &Plan, number: usize, ends: &[EndPlan; 2], pds: [PdId; 2], rng: &mut Rng) {
        let net = &mut self.net;
        let a = pair::create(net, 0, qp_init(plan, &ends[0], pds[0], number));
        let b = pair::create(net, 1, qp_init(plan, &ends[1], pds[1], number));
        let rts = |net: &mut Net, end: End, theirs: End, plan: &Plan, own: &EndPlan| {
            let theirs = net.endpoint(theirs.node).qp_info(theirs.qpn).unwrap();
            let rts = RtsAttr { rnr_retry: own.rnr_retry, ..pair::rts_attr(&theirs, plan.patience) };
            (end, theirs, rts)
        };
        let both = [rts(net, a, b, plan, &ends[0]), rts(net, b, a, plan, &ends[1])];
        for ((end, theirs, rts), own) in both.iter().zip(ends) {
            pair::bring_up_as(net, *end, theirs, *rts, own.min_rnr_timer);
        }
        let info = |net: &mut Net, end: End| net.endpoint(end.node).qp_info(end.qpn).unwrap();
        let mtu = info(net, a).mtu.min(info(net, b).mtu);
        let fetches = ends.iter().any(|end| end.kinds.fetches());
        let limits = Limits::of(plan);
        let limits = if fetches { limits.with_fetches() } else { limits };
        for (from, to, plan) in [(a, b, &ends[0]), (b, a, &ends[1])] {
            let theirs = info(net, to);
            let direction = Direction { node: from.node, qpn: from.qpn, dest: to.qpn };
            let fetches = Fetches { own: theirs.max_rd_atomic, of_peer: plan.max_dest_rd_atomic };
            self.rules.borrow_mut().add(direction, Psn::new(plan.psn), &theirs, fetches, limits);
            let source = memory(net, from.node, pds[from.node], plan.work().source_len(), rng);
            let target = memory(net, to.node, pds[to.node], plan.work().target_len(), rng);
            // Drawn apart, so that what else a seed stands for does not depend on it.
            let mut apart = Rng::new(!source.region.iova());
            let mirror = memory(net, from.node, pds[from.node], source.region.len(), &mut apart);
            let results = memory(net, from.node, pds[from.node], plan.work().results_len(), &mut apart);
            let memory = [source, mirror, target, results];
            let mut stream = Stream::new((from, to), plan, mtu, memory, rng.fork());
            let of_peer = if from == a { &ends[1] } else { &ends[0] };
            stream.writer.ledger.receives_flaws = matches!(of_peer.kinds.fault, Some((Fault::Short, _)));
            self.streams.push(stream);
        }
    }

    /// Posts and steps until every stream is done.
    fn work(&mut self) {
        while !self.streams.iter().all(|stream| stream.writer.finished()) {
            let due = self.streams.iter().map(Stream::due).min().unwrap_or(Time::NEVER);
            if due <= self.net.next_at() && due != Time::NEVER {
                self.net.now = self.net.now.max(due);
                for stream in &mut self.streams {
                    stream.act(&mut self.net);
                }
            } else if !self.net.step() {
                panic!("work is left and {}", self.net.why_stopped());
            }
            self.hear();
        }
    }

    /// Gives every event to the stream that it is about.
    fn hear(&mut self) {
        for node in 0..self.net.nodes.len() {
            for event in self.net.take_events(node) {
                self.hear_one(node, event);
            }
        }
    }

    fn hear_one(&mut self, node: usize, event: Event) {
        match event {
            Event::Completion { wc, .. } => {
                let end = End { node, qpn: wc.qpn };
                match wc.opcode {
                    opcode if !opcode.is_receive() => {
                        self.stream(|stream| stream.from == end)
                            .writer
                            .ledger
                            .on_send_completion(&wc)
                            .unwrap();
                    }
                    _ => {
                        self.stream(|stream| stream.to == end)
                            .writer
                            .ledger
                            .on_receive_completion(&wc)
                            .unwrap();
                    }
                }
            }
            Event::SendRetired { qpn, count } => {
                let now = self.net.now;
                let rules = Rc::clone(&self.rules);
                let stream = self.stream(|stream| stream.from == End { node, qpn });
                stream.on_retired(now, count);
                if !stream.writer.ledger.failed {
                    rules.borrow_mut().retired(now, node, qpn, count);
                }
            }
            Event::QpFailed { qpn, reason } => {
                let end = End { node, qpn };
                let [sends, receives] = [
                    self.stream(|stream| stream.from == end).fault(),
                    self.stream(|stream| stream.to == end).fault(),
                ];
                let expected = match reason {
                    FailReason::RetryExceeded => self.may_fail,
                    FailReason::RnrRetryExceeded => sends == Some(Fault::Starves),
                    FailReason::PeerRefused => sends == Some(Fault::Short),
                    FailReason::PeerViolation => receives == Some(Fault::Short),
                    _ => false,
                };
                self.reasons.push(reason);
                assert!(expected, "node {node} queue pair {:#x} failed: {reason:?}", qpn.get());
                self.stream(|stream| stream.from == End { node, qpn }).writer.ledger.failed = true;
                self.stream(|stream| stream.to == End { node, qpn }).writer.ledger.receiver_failed = true;
            }
            Event::PathsChanged { .. } | Event::PlanesSwitched { .. } | Event::PathDenied { .. } => {}
            Event::EvProbeAnswered { .. } | Event::SrqLimitReached { .. } => {
                panic!("nobody asked for it: {event:?}")
            }
        }
    }

    fn stream(&mut self, which: impl Fn(&Stream) -> bool) -> &mut Stream {
        self.streams.iter_mut().find(|stream| which(stream)).expect("an event of a queue pair that exists")
    }

    fn check_done(&mut self, plan: &Plan) {
        for stream in &mut self.streams {
            stream.writer.check_end().unwrap();
        }
        let rules = self.rules.borrow();
        assert!(rules.broken.is_empty(), "{:#?}", rules.broken);
        for node in 0..2 {
            let counters = self.net.nodes[node].endpoint.counters();
            if plan.weather == Weather::Fair {
                let most = crate::recovery::STRAY_REPEATS * plan.pairs.len() as u64;
                assert!(
                    counters.rx_duplicates <= most,
                    "node {node} got packets twice, and nothing was lost"
                );
            }
            assert_eq!(counters.tx_data, rules.data[node], "data packets of node {node}");
            // Receives may be posted late, and short ones are faults of the plan.
            let except = if plan.has_fault(Fault::Short) {
                &["rx_not_ready", "rx_invalid_request"] as &[_]
            } else {
                &["rx_not_ready"]
            };
            assert_eq!(accusation(counters, except), None, "an honest peer was accused: {counters:#?}");
            // Nothing protects what is taken for trimmed, least of all when the bit that says so was flipped.
            let doubtful = counters.rx_unknown_qp + counters.rx_foreign_source + counters.rx_forged_ack;
            let trimmed: u64 = self.net.nodes.iter().map(|node| node.endpoint.counters().rx_trimmed).sum();
            let corrupt = plan.links.iter().any(|link| link.corrupt > 0);
            assert!(
                doubtful == 0 || corrupt && doubtful <= trimmed,
                "an honest peer was accused: {counters:#?}"
            );
            let tallies = |stream: &Stream| {
                let tally = stream.writer.ledger.tally;
                if stream.to.node == node { tally.bytes } else { tally.fetched }
            };
            let placed: u64 = self.streams.iter().map(tallies).sum();
            assert!(plan.may_fail || counters.rx_placed_bytes == placed, "every byte is placed once");
        }
        assert_eq!(self.net.sent_on_down_port, 0, "data was sent on a port known to be down");
    }

    /// Lets everything that is still under way arrive, bad paths be probed, timers run out.
    fn fall_quiet(&mut self) {
        // An end that failed answers no more, and its peer may probe what it takes for bad paths for ever.
        let cut = self.net.outages.iter().any(|outage| outage.to == Time::NEVER);
        let lonely = cut || self.streams.iter().any(|stream| stream.writer.ledger.failed);
        let patience_ns = if lonely { 10_000_000_000 } else { 900_000_000_000 };
        self.net.max_steps = self.net.steps + 200_000;
        self.net.max_time = self.net.now.max(self.net.heal_at).after(patience_ns);
        let before = self.rules.borrow().of_requests;
        while self.net.step() {
            self.hear();
        }
        assert!(lonely || self.net.next_at() == Time::NEVER, "never falls quiet: {}", self.net.why_stopped());
        assert_eq!(self.rules.borrow().of_requests, before, "data was sent although all work is done");
    }

    fn check_quiet(&mut self, plan: &Plan) {
        for stream in &mut self.streams {
            stream.writer.check_end().unwrap();
        }
        for stream in &self.streams {
            let status = self.net.nodes[stream.from.node].endpoint.qp_status(stream.from.qpn).unwrap();
            assert_eq!(status.send_outstanding, 0, "{status:?}");
            let memory = self.net.nodes[stream.from.node].endpoint.memory();
            assert_eq!(stream.writer.lkeys().map(|lkey| memory.uses(lkey)), [0; 3], "memory is still in use");
            if !plan.may_fail {
                let (to, target) = (stream.to.node, stream.writer.ledger.target().key.lkey);
                let uses = self.net.nodes[to].endpoint.memory().uses(target);
                assert_eq!(uses, 0, "receive buffers are still in use");
                assert_eq!(status.inflight_bytes, 0, "congestion control forgot bytes: {status:?}");
            }
        }
    }

    fn outcome(&self, plan: &Plan) -> Outcome {
        let sum = |value: fn(&spindrift::counters::Counters) -> u64| {
            self.net.nodes.iter().map(|node| value(node.endpoint.counters())).sum()
        };
        Outcome {
            runs: 1,
            packets: self.net.trace.packets,
            messages: self.streams.iter().map(|stream| stream.writer.ledger.tally.posted).sum(),
            bytes: self.streams.iter().map(|stream| stream.writer.ledger.tally.bytes).sum(),
            retransmits: sum(|counters| counters.tx_retransmits),
            timeouts: sum(|counters| counters.timeouts),
            reached: Reached::of(self, plan),
            failed_streams: self.streams.iter().filter(|stream| stream.writer.ledger.failed).count() as u64,
            virtual_ns: self.net.now.0,
            hash: self.net.trace.hash().into(),
        }
    }
}
