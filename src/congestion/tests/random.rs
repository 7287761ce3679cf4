//! Random events against a model of what is in flight.

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use super::*;

const PLANES: u64 = 4;

/// Packets in flight, and packets declared lost that may yet arrive.
struct Model {
    cc: Controller,
    rng: SplitMix64,
    now: u64,
    in_flight: Vec<Flight>,
    lost: Vec<Flight>,
}

impl Model {
    fn new(seed: u64) -> Self {
        let mut rng = SplitMix64::seed_from_u64(seed);
        let mut cfg = CcConfig::for_software(RATE, 50_000, MTU as u32);
        cfg.trimming = rng.next_u64().is_multiple_of(2);
        if rng.next_u64().is_multiple_of(2) {
            cfg.nscc.max_cwnd_bytes = Some(MTU << (rng.next_u64() % 8));
        }
        let mut cc = build(&cfg, Time::ZERO).unwrap();
        if rng.next_u64().is_multiple_of(2) {
            cc.set_up(Qpn::new(3), PLANES as u8);
        }
        Self { cc, rng, now: 1, in_flight: Vec::new(), lost: Vec::new() }
    }

    fn below(&mut self, end: u64) -> u64 {
        self.rng.next_u64() % end
    }

    /// One of these packets, which is none of them any more.
    fn take(&mut self, from: fn(&mut Self) -> &mut Vec<Flight>) -> Option<Flight> {
        let at = self.rng.next_u64();
        let packets = from(self);
        if packets.is_empty() { None } else { Some(packets.swap_remove(at as usize % packets.len())) }
    }

    fn send(&mut self, plane: u8) {
        let bytes = if self.below(4) == 0 { 1 + self.below(MTU) } else { MTU };
        let packet = Flight { plane, bytes, sent_at: Time(self.now) };
        self.cc.on_send(&packet);
        self.in_flight.push(packet);
    }

    /// Sends what congestion control lets go.
    fn send_open(&mut self) {
        for _ in 0..self.below(20) {
            let open = self.cc.open_planes(MTU, Time(self.now));
            let plane = self.below(PLANES) as u8;
            if open & 1 << plane != 0 {
                self.send(plane);
            }
        }
    }

    fn acknowledge(&mut self) {
        let mut ack = AckSample::new(Time(self.now), 0);
        for _ in 0..=self.below(8) {
            let Some(packet) = self.take(|model| &mut model.in_flight) else { break };
            self.cc.on_arrival(&packet);
            ack.newly_acked += packet.bytes;
            (ack.plane, ack.rtt_ns) = (packet.plane, Some(self.now - packet.sent_at.0));
        }
        if self.below(4) == 0 {
            ack.rtt_ns = None;
        }
        ack.ecn = self.below(8) == 0;
        if self.below(32) == 0 {
            ack.penalty = self.below(128) as u8;
        }
        ack.restore_cwnd = self.below(32) == 0;
        self.cc.on_ack(&ack);
    }

    fn step(&mut self) {
        self.now += match self.below(20) {
            0 => self.below(20_000_000_000),
            1..=8 => self.below(2_000_000),
            _ => self.below(20_000),
        };
        let now = Time(self.now);
        match self.below(64) {
            0..=25 => self.send_open(),
            // Tail probes leave whatever congestion control says.
            26..=29 => {
                let plane = self.below(PLANES) as u8;
                self.send(plane);
            }
            30..=45 => self.acknowledge(),
            46..=51 => {
                let Some(packet) = self.take(|model| &mut model.in_flight) else { return };
                let counts = self.below(4) > 0;
                self.cc.on_loss(now, &packet, counts);
                self.lost.push(packet);
            }
            52..=54 => {
                let Some(packet) = self.take(|model| &mut model.in_flight) else { return };
                let last_hop = self.below(2) == 0;
                self.cc.on_trim_nack(now, &packet, last_hop);
            }
            55..=56 => {
                let Some(packet) = self.take(|model| &mut model.lost) else { return };
                self.cc.on_wrong_loss(&packet);
            }
            57..=58 => {
                let Some(from) = self.take(|model| &mut model.in_flight) else { return };
                let to = Flight { plane: self.below(PLANES) as u8, sent_at: now, ..from };
                self.cc.on_move(&from, &to);
                self.in_flight.push(to);
                if self.below(2) == 0 {
                    self.cc.on_repaired_loss(now, &from);
                }
            }
            59..=61 => {
                let Some(packet) = self.take(|model| &mut model.in_flight) else { return };
                self.cc.on_discard(&packet);
            }
            62 if self.below(4) > 0 => {}
            62 => (0..16).for_each(|_| {
                // Many at once, so that the other algorithm takes over.
                let plane = self.below(PLANES) as u8;
                let packet = Flight { plane, bytes: MTU, sent_at: now };
                self.cc.on_send(&packet);
                self.cc.on_trim_nack(now, &packet, false);
            }),
            _ => {
                self.cc.clear();
                self.in_flight.clear();
            }
        }
    }

    fn check(&mut self, told: &str) {
        let sum =
            |packets: &mut dyn Iterator<Item = &Flight>| packets.map(|packet| packet.bytes).sum::<u64>();
        let all = sum(&mut self.in_flight.iter());
        assert_eq!(self.cc.inflight(), all, "{told}");
        // NSCC tells first, and then the planes that were used so far.
        let state = format!("{:?}", self.cc);
        let counted: Vec<u64> = numbers(&state, " inflight: ").map(|text| text.parse().unwrap()).collect();
        let mut expected = vec![all];
        expected.extend(
            (0..PLANES).map(|plane| {
                sum(&mut self.in_flight.iter().filter(|packet| u64::from(packet.plane) == plane))
            }),
        );
        assert!(expected[counted.len()..].iter().all(|&bytes| bytes == 0), "{told}");
        assert_eq!(counted, expected[..counted.len()], "{told}");
        let least = MTU as f64 / 64.0;
        for (name, least) in [
            (" cwnd: ", least),
            (" srtt: ", 0.0),
            (" w_max: ", 0.0),
            (" full_rtt: ", 0.0),
            (" plateau: ", 0.0),
            (" k: ", 0.0),
        ] {
            for text in numbers(&state, name) {
                let value: f64 = text.parse().unwrap();
                assert!(value.is_finite() && value >= least, "{told}:{name}{value}");
            }
        }
        assert!(!state.contains("NaN"), "{told}: {state}");
        assert!(self.cc.cwnd() > 0 || state.contains("drops: true"), "{told}");
        self.check_that_it_opens(told);
    }

    /// With nothing in flight a packet may leave now or at the time that is told.
    fn check_that_it_opens(&self, told: &str) {
        let mut cc = self.cc.clone();
        cc.clear();
        if cc.open_planes(MTU, Time(self.now)) == 0 {
            let at = cc.opens_at(Time(self.now));
            assert!(at > Time(self.now) && at < Time::NEVER, "{told}: {at:?}");
            assert_ne!(cc.open_planes(MTU, at), 0, "{told}");
        }
        // Nor do what is open and the time told contradict each other with packets in flight.
        let at = self.cc.opens_at(Time(self.now));
        assert!(at > Time(self.now), "{told}");
    }
}

/// The numbers that follow this name in a text.
fn numbers<'a>(state: &'a str, name: &'a str) -> impl Iterator<Item = &'a str> {
    state.match_indices(name).map(|(at, _)| {
        let rest = &state[at + name.len()..];
        &rest[..rest.find([',', ' ', '}']).unwrap()]
    })
}

#[test]
fn whatever_happens_what_is_in_flight_is_known_and_something_may_leave() {
    let mut by_plane = [0; 2];
    for seed in 0..300 {
        let mut model = Model::new(seed);
        for step in 0..200 {
            model.step();
            model.check(&format!("seed {seed}, step {step}"));
            if let Controller::Adaptive(adaptive) = &model.cc {
                by_plane[usize::from(adaptive.by_plane())] += 1;
            }
        }
    }
    assert!(by_plane.iter().all(|&steps| steps > 10_000), "both algorithms had their part: {by_plane:?}");
}
