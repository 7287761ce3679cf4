//! What a run is made of, drawn from its seed.

use spindrift::fallback::{FallbackConfig, Nic, SendState};
use spindrift::time::Time;

use crate::support::link::Link;
use crate::support::pair::Patience;
use crate::support::rand::Rng;
use crate::support::writer::{Kinds, Work};

/// How bad the world is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weather {
    /// No packet is lost but by the death of one NIC, of which there is one at a time. All requests succeed, and a switch takes a
    /// round trip.
    Fair,
    /// The same, with packets that are lost or late. All requests succeed.
    Windy,
    /// Anything. Requests succeed, or the connection fails for a reason that is documented.
    Rough,
}

/// How a NIC dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Death {
    /// Nothing passes between the NICs of the two sides, or in one direction: what this side sends.
    Silent(Option<usize>),
    /// The links of this side's NIC are down.
    Links(usize),
    /// This side's NIC is removed for good.
    Removed(usize),
}

/// What happens at some point of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// The death of a NIC, and for how long.
    Die(Nic, Death, u64),
    /// A NIC's links are up again.
    LinksUp(usize, Nic),
    /// An operator of a side moves its sends.
    Prefer(usize, Nic),
    /// A side cannot reach the key-value store, or can again.
    Store(usize, bool),
}

/// Something that happens so long after a side's sending half has come to a state for the `nth` time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trigger {
    pub(crate) side: usize,
    pub(crate) state: SendState,
    pub(crate) nth: u32,
    pub(crate) after_ns: u64,
    pub(crate) act: Act,
}

/// One side's requests and how it handles them.
#[derive(Clone, Debug)]
pub(crate) struct SidePlan {
    pub(crate) work: Work,
    /// Work requests posted at a time, at most, and the time between, ns.
    pub(crate) burst: u64,
    pub(crate) pause_ns: u64,
    /// Receive work requests for its messages are posted so much later, ns, at most; 0: before them.
    pub(crate) late_ns: u64,
    /// Completions are polled this late, ns, at most.
    pub(crate) poll_ns: u64,
    /// Requests that may not be sent again, in ten-thousandths.
    pub(crate) once: u32,
    /// Time between two rounds of work in the background, ns.
    pub(crate) round_ns: u64,
}

/// See the [module documentation](self).
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) weather: Weather,
    pub(crate) v6: bool,
    pub(crate) mtu: u32,
    /// Planes of the default and the backup NIC.
    pub(crate) planes: [u8; 2],
    pub(crate) links: Vec<Link>,
    pub(crate) sides: [SidePlan; 2],
    pub(crate) config: FallbackConfig,
    pub(crate) patience: Patience,
    /// Time between two looks at the key-value store, ns.
    pub(crate) interval_ns: u64,
    pub(crate) acts: Vec<(Time, Act)>,
    pub(crate) triggers: Vec<Trigger>,
    /// Faults of links and NICs end here, but for triggered ones and NICs that are removed.
    pub(crate) heal_at: Time,
}

impl Plan {
    pub(crate) fn draw(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x0073_6869_6674);
        let weather = rng.pick(&[Weather::Fair, Weather::Windy, Weather::Rough, Weather::Rough]);
        let planes = [rng.range(1, 3) as u8, rng.range(1, 3) as u8];
        let delay_ns = rng.sized(500, 50_000);
        let links: Vec<_> = (0..3).map(|_| link(&mut rng, weather, delay_ns)).collect();
        let heal_at = Time(rng.sized(2_000_000, 40_000_000));
        let sides = [(); 2].map(|()| side(&mut rng, weather));
        let config = config(&mut rng, weather, heal_at);
        let patience = match weather {
            Weather::Rough => Patience {
                timeout: rng.range(5, 9) as u8,
                linear: rng.below(4) as u8,
                exponential: rng.below(3) as u8,
            },
            _ => Patience { timeout: rng.range(7, 8) as u8, linear: rng.range(4, 7) as u8, exponential: 1 },
        };
        let interval_ns = rng.sized(10_000, 2_000_000);
        // A pair fails when nothing has come back for longer than a round trip.
        let least = (2 * 4 * delay_ns / 1024).max(1).ilog2() as u8 + 1;
        let patience = Patience { timeout: patience.timeout.max(least), ..patience };
        let mut plan = Self {
            seed,
            weather,
            v6: rng.one_in(2),
            mtu: rng.pick(&[256, 1024, 4096]),
            planes,
            links,
            sides,
            config,
            patience,
            interval_ns,
            acts: Vec::new(),
            triggers: Vec::new(),
            heal_at,
        };
        plan.draw_acts(&mut rng);
        plan.acts.sort_by_key(|(at, _)| *at);
        // Most post requests until about when faults end.
        let until = plan.acts.last().map_or(plan.heal_at, |(at, _)| plan.heal_at.max(*at));
        for side in &mut plan.sides {
            let messages = side.work.messages.max(1);
            let each_ns = 2 * until.0 * side.burst.min(messages).min(side.work.depth.into()) / messages;
            side.pause_ns = if rng.one_in(4) { 1 } else { rng.sized(each_ns / 8 + 1, each_ns + 1) };
        }
        plan
    }

    /// For how long a request is sent again before its pair fails, ns.
    pub(crate) fn retry_ns(&self) -> u64 {
        let Patience { timeout, linear, exponential } = self.patience;
        (1024 << timeout) * (1 + u64::from(linear) + (2 << exponential))
    }

    /// The round-trip time, without load and faults, ns.
    pub(crate) fn rtt_ns(&self) -> u64 {
        2 * self.links.iter().map(|link| link.delay_ns + link.spread_ns).max().unwrap_or(0)
    }

    /// Whether a plan has acts of this kind.
    pub(crate) fn has(&self, is: impl Fn(&Act) -> bool) -> bool {
        self.acts.iter().map(|(_, act)| act).chain(self.triggers.iter().map(|trigger| &trigger.act)).any(is)
    }

    fn draw_acts(&mut self, rng: &mut Rng) {
        if self.weather == Weather::Rough {
            self.draw_rough(rng);
        } else {
            self.draw_deaths_in_turn(rng);
        }
        for _ in 0..if rng.one_in(3) { rng.range(1, 4) } else { 0 } {
            let act = Act::Prefer(rng.below(2) as usize, nic(rng));
            self.acts.push((Time(rng.below(self.heal_at.0)), act));
        }
    }

    /// One NIC after the other, each when both sides are prepared for it again.
    fn draw_deaths_in_turn(&mut self, rng: &mut Rng) {
        // A side whose peer only receives waits until that has learnt of a failure from the key-value store.
        let learn_ns = 2 * self.retry_ns() + 15 * self.interval_ns + 10 * self.round_ns();
        self.config.prepare_timeout_ns = self.config.prepare_timeout_ns.max(learn_ns);
        let settle_ns =
            3 * self.retry_ns() + 30 * self.interval_ns + 30 * self.round_ns() + 20 * self.rtt_ns();
        // The first pair on the backup NIC comes about.
        let mut at = Time(settle_ns);
        for _ in 0..rng.range(1, 4) {
            let at_risk = nic(rng);
            at = at.after(rng.below(settle_ns));
            let for_ns = rng.sized(10_000, 3 * self.retry_ns());
            let death = match rng.below(3) {
                0 => Death::Silent(None),
                1 => Death::Silent(Some(rng.below(2) as usize)),
                _ => Death::Links(rng.below(2) as usize),
            };
            self.die(at, (at_risk, death, for_ns));
            at = at.after(for_ns + settle_ns);
        }
        self.heal_at = self.heal_at.max(at);
        if rng.one_in(6) {
            self.acts.push((at, Act::Die(nic(rng), Death::Removed(rng.below(2) as usize), 0)));
        }
    }

    fn draw_rough(&mut self, rng: &mut Rng) {
        for _ in 0..rng.range(0, 4) {
            let at = Time(rng.sized(1_000, self.heal_at.0));
            let (nic, death, for_ns) = death(rng, self.heal_at);
            self.die(at, (nic, death, for_ns));
        }
        let states = [
            SendState::Default,
            SendState::Fallback,
            SendState::WaitSignaled,
            SendState::WaitDrained,
            SendState::Switching,
        ];
        for _ in 0..rng.range(0, 4) {
            let (nic, death, for_ns) = death(rng, self.heal_at);
            let after_ns = if rng.one_in(3) { 0 } else { rng.sized(1, 4 * self.rtt_ns()) };
            let (side, state, nth) = (rng.below(2) as usize, rng.pick(&states), rng.range(1, 3) as u32);
            self.triggers.push(Trigger { side, state, nth, after_ns, act: Act::Die(nic, death, for_ns) });
        }
        if rng.one_in(3) {
            let side = rng.below(2) as usize;
            let from = Time(if rng.one_in(4) { 0 } else { rng.below(self.heal_at.0) });
            self.acts.push((from, Act::Store(side, false)));
            let for_ns = rng.range(100_000, 2 * self.config.prepare_timeout_ns);
            self.acts.push((from.after(for_ns), Act::Store(side, true)));
        }
    }

    fn die(&mut self, at: Time, (nic, death, for_ns): (Nic, Death, u64)) {
        self.acts.push((at, Act::Die(nic, death, for_ns)));
    }

    pub(crate) fn round_ns(&self) -> u64 {
        self.sides.iter().map(|side| side.round_ns).max().unwrap_or(0)
    }
}

fn nic(rng: &mut Rng) -> Nic {
    // Most requests are on the default NIC.
    if rng.one_in(3) { Nic::Backup } else { Nic::Default }
}

fn death(rng: &mut Rng, heal_at: Time) -> (Nic, Death, u64) {
    let side = rng.below(2) as usize;
    let death = match rng.below(8) {
        0..=1 => Death::Silent(None),
        2..=3 => Death::Silent(Some(side)),
        4..=6 => Death::Links(side),
        _ => Death::Removed(side),
    };
    (nic(rng), death, rng.sized(1_000, heal_at.0))
}

fn link(rng: &mut Rng, weather: Weather, delay_ns: u64) -> Link {
    let link = Link { delay_ns, spread_ns: rng.below(delay_ns), ..Link::default() };
    let most = match weather {
        Weather::Fair => return link,
        Weather::Windy => 100,
        Weather::Rough => 1_000,
    };
    let mut rate = |per: u64| if rng.one_in(2) { rng.sized(1, per) as u32 } else { 0 };
    let (loss, duplicate, corrupt) = (rate(most), rate(most), rate(most));
    let (stray, ecn, trim) = (rate(most), rate(3_000), rate(most));
    let [jitter_ns, stray_ns] = [rng.sized(1, 2 * delay_ns), rng.sized(1, 10 * delay_ns)];
    Link { jitter_ns, stray, stray_ns, loss, duplicate, corrupt, ecn, trim, ..link }
}

fn side(rng: &mut Rng, weather: Weather) -> SidePlan {
    let rough = weather == Weather::Rough;
    let messages = if rng.one_in(5) { 0 } else { rng.sized(1, 200) };
    let all_reads = rng.one_in(6);
    let (reads, atomics) = match (all_reads, rough) {
        // Reads alone can be sent again.
        (true, _) => (10_000, 0),
        (false, true) => (rng.pick(&[0, 0, 0, 1_000]), rng.pick(&[0, 0, 0, 500])),
        (false, false) => (0, 0),
    };
    let kinds = Kinds {
        sends: rng.pick(&[0, 3_000, 10_000]),
        empty: rng.pick(&[0, 0, 1_000]),
        empty_writes: true,
        reads,
        atomics,
        fault: None,
    };
    let work = Work {
        messages,
        largest: rng.sized(1, 40_000) as u32,
        long: 0,
        signaled: if all_reads { 10_000 } else { rng.pick(&[10_000, 5_000, 1_000, 0]) },
        immediates: rng.pick(&[0, 1_000, 5_000, 10_000]),
        depth: rng.sized(1, 64) as u32,
        sig_all: false,
        kinds,
    };
    SidePlan {
        work,
        burst: rng.sized(1, 32),
        pause_ns: 1,
        late_ns: if rng.one_in(6) { rng.sized(1_000, 500_000) } else { 0 },
        poll_ns: if rng.one_in(2) { 0 } else { rng.sized(100, 300_000) },
        once: if rough { rng.pick(&[0, 0, 0, 100]) } else { 0 },
        round_ns: rng.sized(20_000, 2_000_000),
    }
}

fn config(rng: &mut Rng, weather: Weather, heal_at: Time) -> FallbackConfig {
    let hold_ns = rng.sized(1_000, heal_at.0);
    FallbackConfig {
        max_attempts: if weather == Weather::Rough { rng.range(1, 4) as u32 } else { 4 },
        prepare_timeout_ns: rng.sized(heal_at.0, 20 * heal_at.0),
        hold_ns,
        hold_max_ns: 16 * hold_ns,
        leave_on_link_down: !rng.one_in(4),
        probe_ns: rng.sized(50_000, heal_at.0),
    }
}
