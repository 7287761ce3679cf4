//! The reaction point of DCQCN: a rate that falls with each CNP and recovers in three phases.
//!
//! The rules are those of Zhu et al., "Congestion control for large-scale RDMA deployments" (SIGCOMM 2015), section 3.1 and figure 7, which takes the
//! phases from QCN (IEEE 802.1Qau):
//!
//! - A CNP: the target rate becomes the current one, and the current one is cut by alpha / 2; alpha moves towards 1 by `g`.
//! - Without a CNP for an interval, alpha shrinks by `g`.
//! - A timer and a byte counter count steps since the last cut. While neither has counted `fast_recovery`, a step moves the current rate half-way
//!   to the target. Once one has, the target also grows by `additive_bps`; once both have counted more, by `hyper_bps`.
//!
//! NICs differ in details, which the settings describe; see [`Dcqcn`]. Time passes only in calls: a rate is brought up to date when somebody asks
//! for it, so a simulated NIC needs no event for each tick of alpha.

use spindrift::time::Time;
use spindrift_fabric::{PfcSpec, QueueRules};

/// When alpha grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlphaRule {
    /// With each CNP; the interval in which it would shrink begins anew. The paper's.
    EachCnp,
    /// At the end of each interval in which a CNP came; otherwise it shrinks there. A vendor's, as the ns-3 model of HPCC has it.
    EachInterval,
}

/// Settings of a reaction point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dcqcn {
    /// The gain of alpha.
    pub g: f64,
    /// When alpha grows.
    pub alpha: AlphaRule,
    /// The interval after which alpha shrinks, ns.
    pub alpha_interval_ns: u64,
    /// A rate is cut at most once in this time, ns; a CNP in it counts at its end.
    pub decrease_interval_ns: u64,
    /// A step of the timer, ns.
    pub timer_ns: u64,
    /// A step of the byte counter, bytes on the wire; `None` for a NIC that has a timer alone.
    pub byte_counter: Option<u64>,
    /// Steps until the target grows: F.
    pub fast_recovery: u32,
    /// By how much it grows, bits per second.
    pub additive_bps: u64,
    /// The same once both counters are beyond F.
    pub hyper_bps: u64,
    /// Whether that is multiplied by the number of such steps, as in QCN.
    pub hyper_grows: bool,
    /// Whether a cut without a step since the last one moves the target, too. The paper's does.
    pub clamp_target: bool,
    /// The rate never falls below this.
    pub min_bps: u64,
}

/// When switches mark, in bytes that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marking {
    /// Up to this many bytes no packet is marked: Kmin.
    pub kmin_bytes: u64,
    /// From this many on each is: Kmax.
    pub kmax_bytes: u64,
    /// The share just below that, in millionths: Pmax.
    pub pmax_ppm: u32,
}

/// Settings that go together: those of NICs, and of the switches between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// The paper's, for 40 Gb/s; the thresholds grow with the rate of the link.
    Paper,
    /// What a vendor's NICs do by default, as in `run.py` of the public ns-3 model of HPCC.
    Vendor,
    /// Marks earlier, cuts deeper since alpha stays high for longer, and recovers more slowly. It is our own, for figure 22b of the MRC paper, which
    /// names no numbers.
    Aggressive,
    /// The same, more so: for figure 22c.
    MostAggressive,
}

const MBPS: u64 = 1_000_000;
const GBPS: u64 = 1_000 * MBPS;
const US: u64 = 1_000;
const KB: u64 = 1_000;

/// What is so much at a rate of `at_gbps`, at another one.
const fn scaled(value: u64, at_gbps: u64, rate_bps: u64) -> u64 {
    (value as u128 * rate_bps as u128 / (at_gbps * GBPS) as u128) as u64
}

impl Profile {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Paper, Self::Vendor, Self::Aggressive, Self::MostAggressive];

    /// Its name in a plan.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Paper => "paper",
            Self::Vendor => "vendor",
            Self::Aggressive => "aggressive",
            Self::MostAggressive => "most-aggressive",
        }
    }

    /// The one of a name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|profile| profile.name() == name)
    }

    /// The reaction point of a port with this rate.
    pub const fn reaction(self, port_bps: u64) -> Dcqcn {
        let vendor = Dcqcn {
            g: 1.0 / 256.0,
            alpha: AlphaRule::EachInterval,
            alpha_interval_ns: US,
            decrease_interval_ns: 4 * US,
            timer_ns: 300 * US,
            byte_counter: None,
            // One step of fast recovery, one of additive increase: the model counts from 0.
            fast_recovery: 2,
            // Given at 25 Gb/s.
            additive_bps: scaled(5 * MBPS, 25, port_bps),
            hyper_bps: scaled(50 * MBPS, 25, port_bps),
            hyper_grows: false,
            clamp_target: false,
            min_bps: GBPS,
        };
        match self {
            Self::Paper => Dcqcn {
                g: 1.0 / 256.0,
                alpha: AlphaRule::EachCnp,
                alpha_interval_ns: 55 * US,
                decrease_interval_ns: 50 * US,
                timer_ns: 55 * US,
                byte_counter: Some(10_000 * KB),
                fast_recovery: 5,
                additive_bps: 40 * MBPS,
                hyper_bps: 400 * MBPS,
                hyper_grows: true,
                clamp_target: true,
                min_bps: 40 * MBPS,
            },
            Self::Vendor => vendor,
            Self::Aggressive => {
                Dcqcn { alpha_interval_ns: 16 * US, timer_ns: 600 * US, clamp_target: true, ..vendor }
            }
            Self::MostAggressive => {
                Dcqcn { alpha_interval_ns: 55 * US, timer_ns: 750 * US, clamp_target: true, ..vendor }
            }
        }
    }

    /// The least time between two CNPs of a queue pair, ns.
    pub const fn cnp_interval_ns(self) -> u64 {
        match self {
            Self::Paper => 50 * US,
            _ => 4 * US,
        }
    }

    /// The thresholds of a link with this rate.
    pub const fn marking(self, link_bps: u64) -> Marking {
        let (kmin, kmax, pmax_ppm, at) = match self {
            Self::Paper => (5 * KB, 200 * KB, 10_000, 40),
            Self::Vendor => (100 * KB, 400 * KB, 200_000, 25),
            Self::Aggressive => (25 * KB, 100 * KB, 200_000, 25),
            Self::MostAggressive => (12 * KB, 50 * KB, 400_000, 25),
        };
        Marking { kmin_bytes: scaled(kmin, at, link_bps), kmax_bytes: scaled(kmax, at, link_bps), pmax_ppm }
    }
}

impl Profile {
    /// The [queues] of a fabric whose links all have this rate.
    pub fn queues(self, link_bps: u64, pfc: Option<PfcSpec>) -> QueueRules {
        queues(Some(self.marking(link_bps)), link_bps, pfc)
    }
}

/// The queues of a fabric whose links all have this rate: marks at every port, the last hop's too, and priority flow control or a
/// quarter of a megabyte for each port. Thresholds of marking grow with the rate of a link that has another one.
pub fn queues(marking: Option<Marking>, link_bps: u64, pfc: Option<PfcSpec>) -> QueueRules {
    // Rounded up, so that as many bytes come out as go in.
    let ns = |bytes: u64| (u128::from(bytes) * 8_000_000_000).div_ceil(link_bps.max(1).into()) as u64;
    let limit_ns = ns(256 * 1024);
    QueueRules {
        limit_ns,
        last_hop_limit_ns: limit_ns,
        control_limit_ns: limit_ns,
        ecn_ns: marking.map(|marking| (ns(marking.kmin_bytes), ns(marking.kmax_bytes))),
        ecn_most_ppm: marking.map_or(0, |marking| marking.pmax_ppm),
        ecn_on_last_hop: true,
        trim_bytes: None,
        pfc,
        ..QueueRules::for_rtt(1)
    }
}

/// The state of one queue pair's rate.
#[derive(Clone, Debug)]
pub struct ReactionPoint {
    spec: Dcqcn,
    line_bps: u64,
    current_bps: u64,
    target_bps: u64,
    alpha: f64,
    /// The end of the interval of alpha; never before the first CNP.
    alpha_at: Time,
    /// A CNP came in it.
    cnp_in_interval: bool,
    /// The earliest time of the next cut, and whether there is to be one then.
    may_cut_at: Time,
    cut_is_due: bool,
    timer_at: Time,
    bytes_left: u64,
    /// Steps of the timer and the byte counter since the last cut.
    timer_steps: u32,
    byte_steps: u32,
    cnps: u64,
}

impl ReactionPoint {
    /// At the rate of the port, which nothing has cut yet.
    pub const fn new(spec: Dcqcn, line_bps: u64) -> Self {
        Self {
            spec,
            line_bps,
            current_bps: line_bps,
            target_bps: line_bps,
            alpha: 1.0,
            alpha_at: Time::NEVER,
            cnp_in_interval: false,
            may_cut_at: Time::ZERO,
            cut_is_due: false,
            timer_at: Time::NEVER,
            bytes_left: u64::MAX,
            timer_steps: 0,
            byte_steps: 0,
            cnps: 0,
        }
    }

    /// The rate now, bits per second.
    pub fn rate_bps(&mut self, now: Time) -> u64 {
        self.advance(now);
        self.current_bps
    }

    /// What it is on the way to, bits per second.
    pub const fn target_bps(&self) -> u64 {
        self.target_bps
    }

    /// How far congestion goes: 0 to 1.
    pub const fn alpha(&self) -> f64 {
        self.alpha
    }

    /// CNPs that have come.
    pub const fn cnps(&self) -> u64 {
        self.cnps
    }

    /// A CNP has come.
    pub fn on_cnp(&mut self, now: Time) {
        self.advance(now);
        self.cnps += 1;
        if self.alpha_at == Time::NEVER {
            self.alpha_at = now + self.spec.alpha_interval_ns;
        }
        if now >= self.may_cut_at {
            self.cut(now);
        } else {
            self.cut_is_due = true;
        }
        match self.spec.alpha {
            AlphaRule::EachCnp => {
                self.alpha = (1.0 - self.spec.g) * self.alpha + self.spec.g;
                self.alpha_at = now + self.spec.alpha_interval_ns;
            }
            AlphaRule::EachInterval => self.cnp_in_interval = true,
        }
    }

    /// So many bytes were sent.
    pub fn on_sent(&mut self, now: Time, bytes: u64) {
        let Some(step) = self.spec.byte_counter.filter(|_| self.timer_at != Time::NEVER) else { return };
        self.advance(now);
        if bytes < self.bytes_left {
            self.bytes_left -= bytes;
            return;
        }
        self.bytes_left = (self.bytes_left + step.max(1)).saturating_sub(bytes).max(1);
        self.byte_steps = self.byte_steps.saturating_add(1);
        self.increase();
    }

    fn cut(&mut self, now: Time) {
        // A vendor's NIC that is cut again before it has recovered at all goes on recovering to where it was.
        if self.spec.clamp_target
            || self.timer_steps > 0
            || self.byte_steps > 0
            || self.timer_at == Time::NEVER
        {
            self.target_bps = self.current_bps;
        }
        let cut = (self.current_bps as f64 * (1.0 - self.alpha / 2.0)) as u64;
        self.current_bps = cut.max(self.spec.min_bps).min(self.current_bps);
        (self.timer_steps, self.byte_steps) = (0, 0);
        self.timer_at = now + self.spec.timer_ns.max(1);
        self.bytes_left = self.spec.byte_counter.unwrap_or(u64::MAX);
        self.may_cut_at = now + self.spec.decrease_interval_ns;
        self.cut_is_due = false;
    }

    /// A step of one of the counters has been counted.
    fn increase(&mut self) {
        let bytes = if self.spec.byte_counter.is_some() { self.byte_steps } else { self.timer_steps };
        let (most, least) = (self.timer_steps.max(bytes), self.timer_steps.min(bytes));
        let fast = self.spec.fast_recovery;
        let more = if most < fast {
            0
        } else if least > fast {
            let times = if self.spec.hyper_grows { u64::from(least - fast) } else { 1 };
            self.spec.hyper_bps.saturating_mul(times)
        } else {
            self.spec.additive_bps
        };
        self.target_bps = self.target_bps.saturating_add(more).min(self.line_bps);
        self.current_bps = (self.current_bps + self.target_bps).div_ceil(2);
    }

    /// Lets everything happen that should have happened until now.
    fn advance(&mut self, now: Time) {
        loop {
            let cut_at = if self.cut_is_due { self.may_cut_at } else { Time::NEVER };
            if cut_at.min(self.timer_at) > now {
                break;
            }
            if cut_at <= self.timer_at {
                self.advance_alpha(cut_at);
                self.cut(cut_at);
                continue;
            }
            self.timer_steps = self.timer_steps.saturating_add(1);
            self.increase();
            self.timer_at = self.timer_at + self.spec.timer_ns.max(1);
            if self.current_bps == self.line_bps && !self.cut_is_due {
                self.skip_steps(now);
            }
        }
        self.advance_alpha(now);
    }

    /// At the rate of the port, steps change nothing but their count.
    fn skip_steps(&mut self, now: Time) {
        let step = self.spec.timer_ns.max(1);
        let steps = now.0.saturating_sub(self.timer_at.0) / step;
        self.timer_steps = self.timer_steps.saturating_add(u32::try_from(steps).unwrap_or(u32::MAX));
        self.timer_at = self.timer_at + steps * step;
    }

    fn advance_alpha(&mut self, now: Time) {
        if self.alpha_at > now {
            return;
        }
        let interval = self.spec.alpha_interval_ns.max(1);
        let intervals = 1 + (now.0 - self.alpha_at.0) / interval;
        let keep = 1.0 - self.spec.g;
        // Of the first interval it is known whether a CNP came; in the others none did.
        self.alpha = keep * self.alpha + if self.cnp_in_interval { self.spec.g } else { 0.0 };
        self.cnp_in_interval = false;
        self.alpha *= power(keep, intervals - 1);
        self.alpha_at = self.alpha_at + intervals * interval;
    }
}

/// `base` to the power of `exponent`, by multiplications alone, so that it is the same on any machine.
fn power(mut base: f64, mut exponent: u64) -> f64 {
    let mut product = 1.0;
    while exponent > 0 {
        if exponent & 1 == 1 {
            product *= base;
        }
        base *= base;
        exponent >>= 1;
    }
    product
}

#[cfg(test)]
mod tests;
