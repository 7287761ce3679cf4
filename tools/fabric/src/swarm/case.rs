//! What a seed stands for: a fabric, the settings of its hosts, the work they do, and the faults that happen meanwhile.

use spindrift::congestion::CcAlgorithm;
use spindrift::endpoint::{RetryAttr, RtrAttr, RtsAttr};
use spindrift::time::Time;
use spindrift::wire::Neth;

use super::audit::Timers;
use super::episode::{self, Episode};
use super::rand::Rng;
use super::writer::Kinds;
use crate::clos::{ClosSpec, QueueRules};

/// A whole run.
#[derive(Clone, Debug)]
pub struct Case {
    /// What it was drawn from.
    pub seed: u64,
    /// The network.
    pub fabric: ClosSpec,
    /// Packets are routed by their senders; otherwise switches pick one of several ways by a hash.
    pub srv6: bool,
    /// The hosts' settings, by number.
    pub hosts: Vec<HostPlan>,
    /// Queue pairs.
    pub flows: Vec<FlowPlan>,
    /// Fault episodes.
    pub episodes: Vec<Episode>,
    /// From here on nothing is wrong with the network any more.
    pub heal_at: Time,
    /// How long queue pairs go on without an answer.
    pub retry: RetryAttr,
    /// That may be too short.
    pub may_fail: bool,
    /// The NICs that stand by, if planes have roles.
    pub roles: Option<Roles>,
}

/// A second NIC at each host, whose planes stand by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Roles {
    /// Its planes, as bits.
    pub standby: u32,
    /// Interval between probes of its planes, ns; 0: none.
    pub probe_ns: u64,
    /// How long the first NIC must work before it serves again, and how long at most.
    pub hold_ns: [u64; 2],
}

/// Settings of a host's endpoint.
#[derive(Clone, Debug)]
pub struct HostPlan {
    /// It sends packets that switches may trim.
    pub trimming: bool,
    /// Bytes received between SACKs.
    pub sack_threshold_bytes: u32,
    /// Packets that a queue pair sends in its turn.
    pub quantum: u32,
    /// It answers packets beyond its window with a NACK.
    pub oor_nack: bool,
    /// Silence before a tail loss probe, ns.
    pub tail_probe_floor_ns: u64,
    /// Reordering that is expected at first, ns.
    pub initial_reordering_ns: u64,
    /// It checks the iCRC. A drawn case always does.
    pub icrc: bool,
}

/// A queue pair at each of two hosts.
#[derive(Clone, Debug)]
pub struct FlowPlan {
    /// Its number in the case that was drawn.
    pub number: u32,
    /// The hosts.
    pub hosts: [u16; 2],
    /// When they are connected.
    pub starts_at: Time,
    /// What each of them is like, and what it sends.
    pub ends: [EndPlan; 2],
}

/// Settings of a queue pair, and the work it does.
#[derive(Clone, Debug)]
pub struct EndPlan {
    /// Decides what else it does.
    pub seed: u64,
    /// The first PSN.
    pub psn: u32,
    /// The first message number.
    pub msn: u16,
    /// Window granted to the peer, in units of 128 PSNs.
    pub mpr: u8,
    /// Immediates that the peer may have in flight.
    pub max_wimm: u16,
    /// Largest payload of a packet, bytes.
    pub mtu: u32,
    /// Work requests that may be outstanding.
    pub depth: u32,
    /// Congestion control.
    pub cc: CcAlgorithm,
    /// The window granted may change.
    pub dynamic_mpr: bool,
    /// Entropy values in use, and others in reserve.
    pub evs: [u16; 2],
    /// Entropy values that a burst is spread over, 0 for all.
    pub spray_width: u16,
    /// Answered probes that bring an entropy value back.
    pub probes_to_revive: u8,
    /// From a loss to the first probe, ns.
    pub probe_interval_ns: u64,
    /// Entropy values for answers, per plane.
    pub reverse_per_plane: u8,
    /// Every request completes.
    pub sig_all: bool,
    /// Messages to send.
    pub messages: u64,
    /// Bytes of the largest.
    pub largest: u32,
    /// Of ten thousand requests, how many complete.
    pub signaled: u32,
    /// Of ten thousand, how many have an immediate.
    pub immediates: u32,
    /// Requests posted at a time, at most.
    pub burst: u64,
    /// Longest pause between, ns.
    pub pause_ns: u64,
}

/// What a queue pair has beside MRC, and how the application uses it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extended {
    /// What else its messages are than writes with bytes.
    pub(super) kinds: Kinds,
    /// READs and atomic operations of the peer in flight, at most.
    pub(super) max_dest_rd_atomic: u8,
    /// Receive work requests for its messages are posted so much later, ns, at most; 0: before them.
    pub(super) late_ns: u64,
}

impl EndPlan {
    /// What it has beside MRC.
    pub(super) fn extended(&self) -> Extended {
        // Drawn apart, so that what else a seed stands for does not depend on it.
        let mut rng = Rng::new(!self.seed);
        let kinds = Kinds {
            sends: rng.pick(&[0, 3_000, 10_000]),
            empty: rng.pick(&[0, 0, 1_000]),
            empty_writes: true,
            reads: rng.pick(&[0, 0, 2_000, 7_000]),
            atomics: rng.pick(&[0, 0, 3_000]),
            fault: None,
        };
        let max_dest_rd_atomic = rng.pick(&[1, 2, 5, 16]);
        let late_ns = if rng.one_in(8) { rng.sized(1_000, 1_000_000) } else { 0 };
        Extended { kinds, max_dest_rd_atomic, late_ns }
    }

    /// The operations among its messages beside writes, each with its share, and how late receive work requests for them are
    /// posted; empty if there are only writes.
    pub fn operations(&self) -> String {
        let Extended { kinds, late_ns, .. } = self.extended();
        let shares = [("READ", kinds.reads), ("atomic", kinds.atomics), ("SEND", kinds.sends)];
        let shares = shares.iter().filter(|(_, share)| *share > 0);
        let mut parts: Vec<_> = shares.map(|(name, share)| format!("{name} {} %", share / 100)).collect();
        if late_ns > 0 && self.takes_receives() {
            parts.push(format!("receives up to {} late", Time(late_ns)));
        }
        parts.join(", ")
    }

    /// Whether some of its messages take a receive work request.
    fn takes_receives(&self) -> bool {
        self.immediates > 0 || self.extended().kinds.sends > 0
    }

    /// Work requests in flight, at most, if the peer accepts what `to` says.
    fn in_flight(&self, to: &Self) -> u64 {
        let takers = if self.takes_receives() { u32::from(to.max_wimm) } else { u32::MAX };
        let fetches = match self.extended().kinds {
            kinds if kinds.fetches() => u32::from(to.extended().max_dest_rd_atomic),
            _ => u32::MAX,
        };
        self.depth.min(takers).min(fetches).max(1).into()
    }

    /// For how long its messages may wait for receive work requests, and be sent again, ns.
    fn waits_ns(&self) -> u64 {
        match self.extended().late_ns {
            0 => 0,
            late_ns => self.messages * (late_ns + 2 * Neth::rnr_timer_ns(RtrAttr::MIN_RNR_TIMER)),
        }
    }
}

/// Bytes on the wire of an answer.
const ANSWER: u64 = 200;

impl Case {
    /// The case of a seed.
    pub fn draw(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let mtu = rng.pick(&[256, 512, 1024, 2048, 4096, 4096]);
        let fabric = fabric(&mut rng, mtu);
        let rtt_ns = fabric.base_rtt_ns(u64::from(mtu) + 200, ANSWER);
        let hosts = (0..fabric.hosts()).map(|_| host(&mut rng, rtt_ns)).collect();
        let may_fail = rng.one_in(8);
        let heal_at = Time(rng.sized(20 * rtt_ns, 1_000 * rtt_ns));
        let flows = flows(&mut rng, &fabric, mtu, heal_at);
        let messages = flows.iter().flat_map(|flow| &flow.ends).map(|end| end.messages).sum();
        let mut episodes = episode::draw(&mut rng, &fabric, flows.len() as u32, messages, heal_at);
        // Drawn apart, so that what else a seed stands for does not depend on it.
        let mut apart = Rng::new(seed ^ 0x726f_6c65);
        let roles = roles(&mut apart, fabric.planes, heal_at);
        if let Some(roles) = roles {
            episodes.extend(episode::draw_of_nics(&mut apart, &fabric, (roles, &flows), messages, heal_at));
        }
        let mut apart = Rng::new(seed ^ 0x6465_6e79);
        episodes.extend(episode::draw_of_lists(&mut apart, &fabric, messages, heal_at));
        let retry = retry(&mut rng, may_fail);
        let srv6 = rng.chance(7_000);
        Self { seed, fabric, srv6, hosts, flows, episodes, heal_at, retry, may_fail, roles }
    }

    /// The round-trip time of an idle network for the largest packets, ns.
    pub fn rtt_ns(&self) -> u64 {
        let mtus = self.flows.iter().flat_map(|flow| &flow.ends).map(|end| end.mtu);
        self.fabric.base_rtt_ns(u64::from(mtus.max().unwrap_or(4096)) + 200, ANSWER)
    }

    /// The settings that decide when a queue pair of a host sends again.
    pub(super) fn timers(&self, host: u16) -> Timers {
        let plan = self.hosts.get(usize::from(host));
        Timers {
            initial_reordering_ns: plan.map_or(0, |plan| plan.initial_reordering_ns),
            probe_floor_ns: plan.map_or(0, |plan| plan.tail_probe_floor_ns),
            timeout_ns: self.timeout_ns(),
        }
    }

    fn timeout_ns(&self) -> u64 {
        RtsAttr::default().with_retry(self.retry).timeout_ns()
    }

    /// How long after the network has healed all work may take, if that is so many bytes. Applications post until then, for up to twice as
    /// long as the network took to heal; silence has at most doubled the wait for a tail probe. Whatever is left is sent over one of the
    /// slowest links with a quarter of its rate, and no faster than a round trip for each send queue full of requests, or a few for the
    /// fetches that may be in flight together.
    pub(super) fn recovery_ns(&self, bytes: u64) -> u64 {
        let ways = self.flows.iter().flat_map(|FlowPlan { ends: [a, b], .. }| [(a, b), (b, a)]);
        let floor_ns = self.hosts.iter().map(|host| host.tail_probe_floor_ns).max().unwrap_or(0);
        let rounds = ways.map(|(from, to)| {
            // A few fetches at a time may each lose a part of the response in short queues, and the end of it, too.
            let of_each =
                if from.extended().kinds.fetches() { 8 * self.rtt_ns() + floor_ns } else { self.rtt_ns() };
            from.messages.div_ceil(from.in_flight(to)) * of_each
        });
        // A response waits for what its side has begun to send, so both sides of a queue pair may wait in turn.
        let waits = self.flows.iter().map(|FlowPlan { ends: [a, b], .. }| a.waits_ns() + b.waits_ns());
        let rate_bps = self.fabric.trunk_rate_bps.min(self.fabric.host_rate_bps).max(1);
        let sending_ns = u128::from(bytes) * 4 * 8_000_000_000 / u128::from(rate_bps);
        3 * self.heal_at.0
            + sending_ns as u64
            + 2 * (self.timeout_ns() + floor_ns)
            + 20 * self.rtt_ns()
            + rounds.max().unwrap_or(0)
            + waits.max().unwrap_or(0)
    }
}

fn roles(rng: &mut Rng, planes: u8, heal_at: Time) -> Option<Roles> {
    if planes < 2 || !rng.one_in(3) {
        return None;
    }
    let all = (1 << planes) - 1;
    let standby = rng.range(1, all - 1) as u32;
    let probe_ns = if rng.one_in(4) { rng.sized(5_000_000, 500_000_000) } else { 0 };
    let hold_ns = rng.sized(1_000, heal_at.0);
    Some(Roles { standby, probe_ns, hold_ns: [hold_ns, 16 * hold_ns] })
}

fn fabric(rng: &mut Rng, mtu: u32) -> ClosSpec {
    let planes = rng.pick(&[1, 1, 2, 2, 2, 3, 4]);
    let t0 = rng.pick(&[1, 2, 2, 3, 4]);
    let pods = match t0 {
        2 | 3 if rng.one_in(4) => t0,
        4 if rng.one_in(4) => rng.pick(&[2, 4]),
        _ => 1,
    };
    let is_joined = t0 > 1 && !(t0 == 2 && pods == 1 && rng.one_in(4));
    let gbps = rng.pick(&[1, 10, 25, 100, 400]);
    let host_rate_bps = gbps * 1_000_000_000;
    let delay = |rng: &mut Rng| rng.sized(100, 20_000);
    let links = ClosSpec {
        planes,
        t0,
        t1: if is_joined { rng.range(1, 4) as u16 } else { 0 },
        pods,
        t2: if pods > 1 { rng.range(1, 3) as u16 } else { 0 },
        hosts_per_t0: rng.range(if t0 > 1 { 1 } else { 2 }, 4) as u16,
        host_rate_bps,
        trunk_rate_bps: rng.pick(&[host_rate_bps, host_rate_bps, host_rate_bps / 2, host_rate_bps * 4]),
        host_delay_ns: delay(rng),
        trunk_delay_ns: delay(rng),
        queues: QueueRules::for_rtt(1),
    };
    let rtt_ns = links.base_rtt_ns(u64::from(mtu) + 200, ANSWER);
    ClosSpec { queues: queues(rng, rtt_ns, u64::from(mtu), host_rate_bps), ..links }
}

/// As recommended, or so short that much is trimmed or lost, or so long that nothing is.
fn queues(rng: &mut Rng, rtt_ns: u64, mtu: u64, rate_bps: u64) -> QueueRules {
    // Each queue holds a few of the largest packets, or nothing larger than it would ever arrive.
    let least = 4 * (mtu + 300) * 8_000_000_000 / rate_bps;
    let scale = rng.pick(&[1, 1, 4, 16, 64]);
    let rules = QueueRules::for_rtt((rtt_ns / scale).max(least));
    let ecn_ns = match rng.below(4) {
        0 => None,
        1 => rules.ecn_ns.map(|(low, _)| (low, low)),
        _ => rules.ecn_ns,
    };
    QueueRules {
        ecn_ns,
        ecn_on_last_hop: rng.one_in(2),
        trim_bytes: rng.pick(&[Some(128), Some(128), Some(256), None]),
        control_limit_ns: rules.control_limit_ns / rng.pick(&[1, 1, 2]),
        ..rules
    }
}

fn host(rng: &mut Rng, rtt_ns: u64) -> HostPlan {
    HostPlan {
        trimming: rng.chance(7_000),
        sack_threshold_bytes: if rng.one_in(3) { rng.sized(1, 1 << 18) as u32 } else { 16 * 1024 },
        quantum: rng.sized(1, 64) as u32,
        oor_nack: rng.one_in(3),
        tail_probe_floor_ns: rng.sized(rtt_ns / 2, 20 * rtt_ns),
        initial_reordering_ns: if rng.one_in(4) { 0 } else { rng.sized(rtt_ns / 4, 4 * rtt_ns) },
        icrc: true,
    }
}

fn retry(rng: &mut Rng, may_fail: bool) -> RetryAttr {
    let linear_retries = rng.below(8) as u8;
    if may_fail {
        let (timeout, exponential_retries) = (rng.range(6, 10) as u8, rng.below(4) as u8);
        RetryAttr { timeout, linear_retries, exponential_retries }
    } else {
        RetryAttr { timeout: rng.range(7, 15) as u8, linear_retries, exponential_retries: 25 }
    }
}

/// Pairs of hosts, as some workload would have them.
fn pairs(rng: &mut Rng, hosts: u64) -> Vec<[u16; 2]> {
    let other = |rng: &mut Rng, host: u64| (host + 1 + rng.below(hosts - 1)) % hosts;
    let pair = |one: u64, other: u64| [one as u16, other as u16];
    let count = rng.range(1, 6);
    match rng.below(4) {
        0 => {
            let to = rng.below(hosts);
            (0..count).map(|by| pair((to + 1 + by % (hosts - 1)) % hosts, to)).collect()
        }
        1 => {
            let by = rng.range(1, hosts - 1);
            (0..hosts.min(8)).map(|host| pair(host, (host + by) % hosts)).collect()
        }
        2 => {
            let from = rng.below(hosts);
            (0..count).map(|_| pair(from, other(rng, from))).collect()
        }
        _ => (0..count)
            .map(|_| {
                let from = rng.below(hosts);
                pair(from, other(rng, from))
            })
            .collect(),
    }
}

fn flows(rng: &mut Rng, fabric: &ClosSpec, mtu: u32, heal_at: Time) -> Vec<FlowPlan> {
    let pairs = pairs(rng, fabric.hosts().into());
    let budget = rng.sized(50_000, 8_000_000) / pairs.len() as u64;
    let together = rng.one_in(2);
    let plan = |(number, hosts)| {
        let starts_at = Time(if together || rng.one_in(2) { 0 } else { rng.below(heal_at.0) });
        let ends = [(); 2].map(|()| end(rng, fabric.planes, mtu, budget, heal_at));
        FlowPlan { number, hosts, starts_at, ends }
    };
    (0..).zip(pairs).map(plan).collect()
}

fn end(rng: &mut Rng, planes: u8, mtu: u32, budget: u64, heal_at: Time) -> EndPlan {
    let near_wrap = rng.one_in(2);
    let largest = if rng.one_in(4) { budget } else { rng.sized(1, budget) }.min(400_000) as u32;
    let messages =
        if rng.one_in(4) { 0 } else { rng.range(1, (2 * budget / u64::from(largest)).clamp(1, 300)) };
    let active = rng.pick(&[128, 128, 16, 8, 1]);
    EndPlan {
        seed: rng.bits(),
        psn: if near_wrap { (1 << 24) - rng.sized(1, 500) as u32 } else { rng.below(1 << 24) as u32 },
        msn: if near_wrap { 0_u16.wrapping_sub(rng.sized(1, 100) as u16) } else { rng.bits() as u16 },
        mpr: if rng.one_in(2) { 8 } else { rng.sized(1, 255) as u8 },
        max_wimm: if rng.one_in(2) { 128 } else { rng.sized(1, 200) as u16 },
        mtu,
        depth: if rng.one_in(2) { 128 } else { rng.sized(1, 64) as u32 },
        cc: if rng.chance(7_000) { CcAlgorithm::Nscc } else { CcAlgorithm::None },
        dynamic_mpr: rng.one_in(2),
        evs: [active.max(planes.into()), rng.pick(&[64, 64, 8, 0])],
        spray_width: rng.pick(&[0, 0, 4, 16]),
        probes_to_revive: rng.range(1, 4) as u8,
        probe_interval_ns: rng.sized(10_000, 2_000_000),
        reverse_per_plane: rng.range(1, 3) as u8,
        sig_all: rng.one_in(6),
        messages,
        largest,
        signaled: rng.pick(&[10_000, 5_000, 1_000, 0]),
        immediates: rng.pick(&[0, 1_000, 5_000, 10_000]),
        burst: rng.sized(1, 64),
        // Some post all at once, and some until long after the network has healed.
        pause_ns: if rng.one_in(2) { 1 } else { rng.sized(1, 2 * heal_at.0 / messages.max(1)) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::swarm::EpisodeKind;

    #[test]
    fn a_seed_decides_everything_and_cases_differ() {
        let text = |seed| format!("{:?}", Case::draw(seed));
        assert_eq!(text(5), text(5));
        assert_ne!(text(5), text(6));
    }

    #[test]
    fn what_is_drawn_can_be_built() {
        for seed in 0..500 {
            let case = Case::draw(seed);
            let hosts = case.hosts.len() as u16;
            assert!(hosts >= 2 && u32::from(hosts) == case.fabric.hosts(), "{case:?}");
            assert!(!case.flows.is_empty());
            for flow in &case.flows {
                let [a, b] = flow.hosts;
                assert!(a != b && a < hosts && b < hosts, "{flow:?}");
                assert!(flow.starts_at <= case.heal_at);
            }
        }
    }

    /// Everything that a case can be made of is drawn now and then.
    #[test]
    fn cases_are_of_all_kinds() {
        let cases: Vec<_> = (0..500).map(Case::draw).collect();
        let share = |what: &str, is: &dyn Fn(&Case) -> bool| {
            let count = cases.iter().filter(|case| is(case)).count();
            assert!((25..475).contains(&count), "{what}: {count} of {}", cases.len());
        };
        share("source routes", &|case| case.srv6);
        share("failures", &|case| case.may_fail);
        share("one tier", &|case| case.fabric.t0 == 1);
        share("two tiers", &|case| case.fabric.t1 > 0 && case.fabric.pods == 1);
        share("three tiers", &|case| case.fabric.pods > 1);
        share("dumbbells", &|case| case.fabric.t0 == 2 && case.fabric.t1 == 0);
        share("trimming", &|case| case.fabric.queues.trim_bytes.is_some());
        share("marks", &|case| case.fabric.queues.ecn_ns.is_some());
        share("incast", &|case| {
            case.flows.len() > 2 && case.flows.iter().all(|flow| flow.hosts[1] == case.flows[0].hosts[1])
        });
        share("deny lists", &|case| {
            case.episodes.iter().any(|episode| matches!(episode.kind, EpisodeKind::Deny { .. }))
        });
        share("standby NICs", &|case| case.roles.is_some());
        share("nothing wrong", &|case| case.episodes.is_empty());
        share("many faults", &|case| case.episodes.len() > 4);
    }
}
