//! Windows beside each other and beside TCP, in front of a queue that drops what does not fit.
//!
//! The simulator knows packets, a queue of so many bytes and the way back, no more. What a flow loses it hears of when its next
//! packet is answered, or else after three round trips.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use super::*;

/// Full packets of ours, as they are counted, and of TCP on jumbo frames.
const OURS: u64 = 4182;
const OF_TCP: u64 = 8948 + 52;
const MS: u64 = 1_000_000;
const S: u64 = 1_000 * MS;

/// TCP with CUBIC (RFC 9438), which counts in packets and hears of every one.
struct Tcp {
    cwnd: f64,
    ssthresh: f64,
    w_max: f64,
    w_est: f64,
    k: f64,
    epoch: Option<u64>,
    cut_at: u64,
    in_flight: u64,
}

impl Tcp {
    const fn new() -> Self {
        Self {
            cwnd: 10.0,
            ssthresh: f64::INFINITY,
            w_max: 0.0,
            w_est: 0.0,
            k: 0.0,
            epoch: None,
            cut_at: 0,
            in_flight: 0,
        }
    }

    fn on_ack(&mut self, now: u64, rtt: f64) {
        self.in_flight -= 1;
        if self.cwnd < self.ssthresh {
            self.cwnd += 1.0;
            return;
        }
        let epoch = *self.epoch.get_or_insert_with(|| {
            self.w_max = self.w_max.max(self.cwnd);
            self.k = ((self.w_max - self.cwnd) / 0.4).cbrt();
            self.w_est = self.cwnd;
            now
        });
        let t = ((now - epoch) as f64 + rtt) / 1e9 - self.k;
        let target = (self.w_max + 0.4 * t * t * t).clamp(self.cwnd, 1.5 * self.cwnd);
        self.w_est += if self.w_est < self.w_max { 9.0 / 17.0 } else { 1.0 } / self.cwnd;
        self.cwnd = (self.cwnd + (target - self.cwnd) / self.cwnd).max(self.w_est);
    }

    fn on_loss(&mut self, now: u64, sent_at: u64) {
        self.in_flight -= 1;
        if sent_at >= self.cut_at {
            self.cut_at = now;
            self.w_max = if self.cwnd < self.w_max { 0.85 * self.cwnd } else { self.cwnd };
            self.cwnd = (0.7 * self.cwnd).max(2.0);
            self.ssthresh = self.cwnd;
            self.epoch = None;
        }
    }
}

enum Control {
    Ours(Box<Controller>),
    Tcp(Tcp),
}

struct Flow {
    control: Control,
    packet: u64,
    starts: u64,
    /// Number of the next packet.
    next: u64,
    /// Number and time of those that nothing has been heard of.
    out: VecDeque<(u64, u64)>,
    srtt: f64,
    /// The latest answer that is on its way: paths keep the order.
    answered_at: u64,
    wakes_at: u64,
    sent: u64,
    lost: u64,
    arrived: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Answer(usize, u64),
    /// Time to look whether this packet is still not answered.
    Tail(usize, u64),
    Wake(usize),
}

/// The state at the end of a run.
struct Outcome {
    /// Bytes of each flow that got through, in the time that counts.
    rates: Vec<f64>,
    /// Part of the link that was used, of all flows.
    used: f64,
    /// Part of the packets of ours that was lost.
    lost: f64,
}

impl Outcome {
    /// Jain's index.
    fn fairness(&self) -> f64 {
        let (sum, squares) = (self.rates.iter().sum::<f64>(), self.rates.iter().map(|rate| rate * rate));
        sum * sum / (self.rates.len() as f64 * squares.sum::<f64>())
    }

    /// The share of the first flow, as a multiple of an equal share of all.
    fn share(&self) -> f64 {
        self.rates[0] / (self.rates.iter().sum::<f64>() / self.rates.len() as f64)
    }
}

struct Network {
    rate: f64,
    room: f64,
    rtt: u64,
    /// Part of the packets that is lost whatever the queue.
    chance: f64,
    rng: SplitMix64,
    flows: Vec<Flow>,
    events: BinaryHeap<Reverse<(u64, Event)>>,
    busy_until: f64,
    /// Earlier packets do not count.
    counts_from: u64,
}

impl Network {
    /// A link of so many bits per second with a queue of 10 ms, and 64 KB at least.
    fn new(rate: f64, rtt: u64, seed: u64) -> Self {
        Self {
            rate,
            room: (rate * 0.01 / 8.0).max(65_536.0),
            rtt,
            chance: 0.0,
            rng: SplitMix64::seed_from_u64(seed),
            flows: Vec::new(),
            events: BinaryHeap::new(),
            busy_until: 0.0,
            counts_from: 0,
        }
    }

    fn add(&mut self, control: Control, starts: u64) {
        let packet = if matches!(control, Control::Ours(_)) { OURS } else { OF_TCP };
        let starts = starts + self.rng.next_u64() % MS;
        self.events.push(Reverse((starts, Event::Wake(self.flows.len()))));
        let flow = Flow {
            control,
            packet,
            starts,
            next: 0,
            out: VecDeque::new(),
            srtt: 0.0,
            answered_at: 0,
            wakes_at: Time::NEVER.0,
            sent: 0,
            lost: 0,
            arrived: 0,
        };
        self.flows.push(flow);
    }

    fn add_ours(&mut self, starts: u64) {
        let cfg = CcConfig::for_software(100_000_000_000, 50_000, OURS as u32);
        self.add(Control::Ours(Box::new(build(&cfg, Time::ZERO).unwrap())), starts);
    }

    fn run(mut self, from: u64, until: u64) -> Outcome {
        self.counts_from = from;
        while let Some(Reverse((now, event))) = self.events.pop().filter(|Reverse((at, _))| *at <= until) {
            let flow = match event {
                Event::Answer(flow, number) => {
                    self.answered(now, flow, number);
                    flow
                }
                Event::Tail(flow, number) => {
                    self.look_at_tail(now, flow, number);
                    flow
                }
                Event::Wake(flow) => {
                    self.flows[flow].wakes_at = Time::NEVER.0;
                    flow
                }
            };
            self.send(now, flow);
        }
        let seconds = (until - from) as f64 / 1e9;
        let rates: Vec<f64> = self.flows.iter().map(|flow| flow.arrived as f64 * 8.0 / seconds).collect();
        let ours = self.flows.iter().filter(|flow| matches!(flow.control, Control::Ours(_)));
        let (sent, lost) = ours.fold((0, 0), |(sent, lost), flow| (sent + flow.sent, lost + flow.lost));
        Outcome { used: rates.iter().sum::<f64>() / self.rate, rates, lost: lost as f64 / sent as f64 }
    }

    fn answered(&mut self, now: u64, flow: usize, number: u64) {
        let counts = now >= self.counts_from;
        let flow = &mut self.flows[flow];
        while let Some(&(first, sent_at)) = flow.out.front().filter(|(first, _)| *first <= number) {
            flow.out.pop_front();
            if first < number {
                flow.lose(now, sent_at, counts);
                continue;
            }
            let (rtt, bytes) = (now - sent_at, flow.packet);
            flow.srtt += (rtt as f64 - flow.srtt) / if flow.srtt == 0.0 { 1.0 } else { 8.0 };
            flow.arrived += bytes * u64::from(counts);
            match &mut flow.control {
                Control::Ours(cc) => {
                    cc.on_arrival(&Flight { plane: 0, bytes, sent_at: Time(sent_at) });
                    cc.on_ack(&AckSample { rtt_ns: Some(rtt), ..AckSample::new(Time(now), bytes) });
                }
                Control::Tcp(tcp) => tcp.on_ack(now, flow.srtt),
            }
        }
    }

    /// This packet was lost if it has not been answered by now.
    fn look_at_tail(&mut self, now: u64, flow: usize, number: u64) {
        let counts = now >= self.counts_from;
        let flow = &mut self.flows[flow];
        // Those before it that were lost, too, are as late.
        while let Some(&(_, sent_at)) = flow.out.front().filter(|(first, _)| *first <= number) {
            flow.out.pop_front();
            flow.lose(now, sent_at, counts);
        }
    }

    fn send(&mut self, now: u64, at: usize) {
        loop {
            let flow = &mut self.flows[at];
            if now < flow.starts {
                return;
            }
            let (goes, opens_at) = match &flow.control {
                Control::Ours(cc) => {
                    (cc.open_planes(flow.packet, Time(now)) & 1 != 0, cc.opens_at(Time(now)).0)
                }
                Control::Tcp(tcp) => (tcp.in_flight as f64 + 1.0 <= tcp.cwnd, Time::NEVER.0),
            };
            if !goes {
                if opens_at < flow.wakes_at {
                    flow.wakes_at = opens_at;
                    self.events.push(Reverse((opens_at, Event::Wake(at))));
                }
                return;
            }
            let (number, bytes) = (flow.next, flow.packet);
            flow.next += 1;
            flow.sent += u64::from(now >= self.counts_from);
            flow.out.push_back((number, now));
            match &mut flow.control {
                Control::Ours(cc) => cc.on_send(&Flight { plane: 0, bytes, sent_at: Time(now) }),
                Control::Tcp(tcp) => tcp.in_flight += 1,
            }
            let queued = (self.busy_until - now as f64).max(0.0) * self.rate / 8e9;
            // Without random loss nothing is drawn, so a seed gives the same network.
            let chance = self.chance > 0.0 && uniform(&mut self.rng) < self.chance;
            if chance || queued + bytes as f64 > self.room {
                // Not before all that left earlier is answered, since that is no sign of a loss.
                let late = now + 3 * (flow.srtt as u64).max(self.rtt);
                self.events.push(Reverse((late.max(flow.answered_at + 1), Event::Tail(at, number))));
                continue;
            }
            self.busy_until = self.busy_until.max(now as f64) + bytes as f64 * 8e9 / self.rate;
            // Hosts take a little time, now more, now less.
            let host = -(1.0 - uniform(&mut self.rng)).ln() * 30_000.0;
            flow.answered_at = (self.busy_until as u64 + self.rtt + host as u64).max(flow.answered_at + 1);
            self.events.push(Reverse((flow.answered_at, Event::Answer(at, number))));
        }
    }
}

/// From 0 to below 1.
fn uniform(rng: &mut SplitMix64) -> f64 {
    (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
}

impl Flow {
    fn lose(&mut self, now: u64, sent_at: u64, counts: bool) {
        self.lost += u64::from(counts);
        match &mut self.control {
            Control::Ours(cc) => {
                let packet = Flight { plane: 0, bytes: self.packet, sent_at: Time(sent_at) };
                cc.on_loss(Time(now), &packet, true);
            }
            Control::Tcp(tcp) => tcp.on_loss(now, sent_at),
        }
    }
}

/// So many flows of ours that start one after another.
fn ours(flows: u64, rate: f64, rtt: u64, seed: u64) -> Outcome {
    let mut network = Network::new(rate, rtt, seed);
    (0..flows).for_each(|n| network.add_ours(n * 20 * MS));
    network.run(4 * S, 12 * S)
}

/// One of ours beside so many of TCP that were there before it, or come later.
fn beside_tcp(network: &mut Network, tcp: u64, tcp_first: bool) {
    let starts = if tcp_first { (S, 0) } else { (0, S) };
    network.add_ours(starts.0);
    (0..tcp).for_each(|n| network.add(Control::Tcp(Tcp::new()), starts.1 + n * 20 * MS));
}

#[test]
fn a_flow_alone_uses_the_link_and_loses_little() {
    for (rate, rtt) in [(100e6, 100_000), (200e6, 100_000), (1e9, 50_000), (200e6, 20 * MS)] {
        for seed in 1..=5 {
            let outcome = ours(1, rate, rtt, seed);
            assert!(outcome.used >= 0.95, "{rate} {rtt} {seed}: {} used", outcome.used);
            assert!(outcome.lost < 0.005, "{rate} {rtt} {seed}: {} lost", outcome.lost);
        }
    }
}

#[test]
fn flows_share_a_link_and_lose_little() {
    for (flows, rate, rtt, most_lost) in [
        (3, 100e6, 100_000, 0.02),
        (3, 200e6, 100_000, 0.02),
        (3, 1e9, 50_000, 0.02),
        (3, 200e6, 20 * MS, 0.02),
        (16, 200e6, 100_000, 0.04),
    ] {
        for seed in 1..=5 {
            let outcome = ours(flows, rate, rtt, seed);
            let fairness = outcome.fairness();
            assert!(fairness >= 0.9, "{flows} {rate} {rtt} {seed}: {fairness}");
            assert!(outcome.lost < most_lost, "{flows} {rate} {rtt} {seed}: {} lost", outcome.lost);
            assert!(outcome.used >= 0.95, "{flows} {rate} {rtt} {seed}: {} used", outcome.used);
        }
    }
}

#[test]
fn a_flow_beside_tcp_takes_about_its_share() {
    for (rate, rtt) in [(100e6, 100_000), (200e6, 100_000), (1e9, 50_000), (200e6, 20 * MS)] {
        for tcp in [1, 4] {
            for (tcp_first, seed) in (1..=5).flat_map(|seed| [(true, seed), (false, seed)]) {
                let mut network = Network::new(rate, rtt, seed);
                beside_tcp(&mut network, tcp, tcp_first);
                let outcome = network.run(5 * S, 20 * S);
                let share = outcome.share();
                assert!((0.5..=2.0).contains(&share), "{tcp} of TCP, {rate} {rtt} {tcp_first}: {share}");
                assert!(outcome.used >= 0.95, "{tcp} of TCP, {rate} {rtt} {tcp_first}: {}", outcome.used);
            }
        }
    }
}

/// Hosts delay packets by 30 us on average, so some losses meet a long round trip by chance.
#[test]
fn a_flow_that_loses_one_packet_in_a_hundred_at_random_keeps_its_window() {
    // With half of the losses counted, it uses 0.40 and 0.21 of the link.
    for (rtt, least) in [(50_000, 0.5), (200_000, 0.3)] {
        for seed in 1..=3 {
            let mut network = Network::new(10e9, rtt, seed);
            network.chance = 0.01;
            network.add_ours(0);
            let used = network.run(2 * S, 5 * S).used;
            assert!(used >= least, "{rtt} ns, {seed}: {used} used");
        }
    }
}

/// Queues of 0.4 ms and 1.6 ms. Round trips grow little there before packets are lost.
#[test]
fn a_flow_beside_tcp_takes_about_its_share_of_a_short_queue() {
    for (rate, room) in [(10e9, 500_000.0), (1e9, 200_000.0)] {
        for tcp in [1, 4] {
            for (tcp_first, seed) in (1..=3).flat_map(|seed| [(true, seed), (false, seed)]) {
                let mut network = Network::new(rate, 50_000, seed);
                network.room = room;
                beside_tcp(&mut network, tcp, tcp_first);
                let share = network.run(3 * S, 8 * S).share();
                assert!(
                    (0.5..=2.0).contains(&share),
                    "{tcp} of TCP, {rate} {room} {tcp_first} {seed}: {share}"
                );
            }
        }
    }
}
