//! What a seed stands for: topology, faults, settings, work.

use spindrift::endpoint::{Extensions, RtsAttr};
use spindrift::time::Time;

use crate::support::link::{Link, Outage};
use crate::support::pair::Patience;
use crate::support::rand::{Rng, mix};
use crate::support::writer::{Fault, Kinds};

/// A port's link goes down for a while, and its endpoint is told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flap {
    pub(crate) node: usize,
    pub(crate) port: u8,
    pub(crate) from: Time,
    pub(crate) to: Time,
}

/// Settings of one of the two nodes.
#[derive(Clone, Debug)]
pub(crate) struct NodePlan {
    pub(crate) sockets: bool,
    pub(crate) source_ports: Option<u16>,
    pub(crate) lateness_ns: u64,
    pub(crate) ns_per_kib: u64,
    pub(crate) queue_ns: u64,
    /// Packets that a full queue of the host gives back, in ten-thousandths, and how long it is full then.
    pub(crate) given_back: u32,
    pub(crate) full_ns: u64,
    pub(crate) trimming: bool,
    pub(crate) sack_threshold: u32,
    pub(crate) quantum: u32,
    pub(crate) oor_nack: bool,
    pub(crate) tail_probe_floor_ns: u64,
    pub(crate) initial_reordering_ns: u64,
}

/// Settings of one end of a queue pair, and the work it does.
#[derive(Clone, Debug)]
pub(crate) struct EndPlan {
    pub(crate) psn: u32,
    pub(crate) msn: u16,
    pub(crate) mpr: u8,
    pub(crate) max_wimm: u16,
    pub(crate) max_mtu: u32,
    pub(crate) depth: u32,
    pub(crate) nscc: bool,
    pub(crate) dynamic_mpr: bool,
    pub(crate) active: u16,
    pub(crate) backup: u16,
    pub(crate) spray_width: u16,
    pub(crate) probes_to_revive: u8,
    pub(crate) probe_interval_ns: u64,
    pub(crate) reverse_per_plane: u8,
    /// The application denies and allows paths as it goes.
    pub(crate) denies: bool,
    pub(crate) sig_all: bool,
    pub(crate) messages: u64,
    pub(crate) largest: u32,
    /// Bytes of the first message, if it is to be a long one.
    pub(crate) long: u32,
    /// In ten-thousandths.
    pub(crate) signaled: u32,
    pub(crate) immediates: u32,
    pub(crate) kinds: Kinds,
    pub(crate) extensions: Extensions,
    /// READs and atomic operations of the peer in flight, at most.
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) min_rnr_timer: u8,
    /// Receive work requests for its messages are posted so much later, at most; 0: before them.
    pub(crate) late_ns: u64,
    /// Most work requests posted at a time, and the longest pause between.
    pub(crate) burst: u64,
    pub(crate) pause_ns: u64,
}

/// What kind of faults a run has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weather {
    /// Everything at once, until the network heals.
    Chaos,
    /// Nothing is lost and no path reorders, so nothing may be sent twice.
    Fair,
    /// As fair, until paths die for good.
    DeadPath,
}

/// A whole run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) weather: Weather,
    pub(crate) v6: bool,
    /// Packets go inside outer ones, along a path written there.
    pub(crate) routed: bool,
    pub(crate) links: Vec<Link>,
    pub(crate) heal_at: Time,
    pub(crate) outages: Vec<Outage>,
    pub(crate) flaps: Vec<Flap>,
    pub(crate) nodes: [NodePlan; 2],
    /// The two ends of each queue pair.
    pub(crate) pairs: Vec<[EndPlan; 2]>,
    pub(crate) patience: Patience,
    /// The retry policy is so short that it may run out.
    pub(crate) may_fail: bool,
    /// Recovery is judged as well as safety.
    pub(crate) judges_recovery: bool,
}

impl Plan {
    pub(crate) fn draw(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let planes = rng.pick(&[1, 1, 2, 2, 3, 4, 4, 8]);
        let heal_at = Time(rng.sized(200_000, 40_000_000));
        let common = common_faults(&mut rng);
        let links = (0..planes).map(|_| link(&mut rng, &common)).collect();
        let may_fail = rng.one_in(8);
        let v6 = rng.chance(6_000);
        let sockets = rng.one_in(5);
        let mut outages = outages(&mut rng, planes, heal_at);
        if may_fail && rng.one_in(2) {
            // Everything is cut for good, or one direction.
            let (from, sender) = (Time(rng.below(heal_at.0)), rng.pick(&[None, Some(0), Some(1)]));
            outages.extend((0..planes).map(|plane| Outage {
                from,
                to: Time::NEVER,
                plane,
                sender,
                paths: 1,
            }));
        }
        let flaps = flaps(&mut rng, planes, heal_at);
        let mtu = mtu(&mut rng);
        let pair_count = rng.pick(&[1, 1, 1, 2, 3]);
        let budget = rng.sized(2_000, 1_500_000) / pair_count;
        let mut plan = Self {
            seed,
            weather: Weather::Chaos,
            v6,
            // Drawn apart, so that what else a seed stands for does not depend on it.
            routed: !sockets && Rng::new(!seed).one_in(4),
            heal_at,
            outages,
            flaps,
            nodes: [node(&mut rng, sockets), node(&mut rng, sockets)],
            pairs: (0..pair_count)
                .map(|_| [end(&mut rng, mtu, budget), end(&mut rng, mtu, budget)])
                .collect(),
            patience: patience(&mut rng, may_fail),
            may_fail,
            judges_recovery: true,
            links,
        };
        match rng.below(10) {
            0..=5 => {}
            6 | 7 => plan.be_fair(Weather::Fair),
            _ => {
                plan.be_fair(Weather::DeadPath);
                plan.kill_paths(&mut rng);
            }
        }
        if rng.chance(4_800) {
            plan.open_window(&mut rng);
        }
        // Drawn apart, too.
        plan.extend(&mut Rng::new(mix(seed)));
        plan
    }

    /// Extensions of MRC, and what they allow.
    fn extend(&mut self, rng: &mut Rng) {
        const NAMED: [Extensions; 5] = [
            Extensions::EMPTY_MESSAGES,
            Extensions::SEND,
            Extensions::RNR,
            Extensions::READ,
            Extensions::ATOMIC,
        ];
        let late = rng.one_in(7);
        // Not in all, because recovery is not judged where a request waits for a response.
        let fetches = rng.one_in(2);
        for ends in &mut self.pairs {
            for end in ends.iter_mut() {
                let some = NAMED.into_iter().filter(|_| rng.one_in(2));
                let some = some.fold(Extensions::NONE, |found, extension| found | extension);
                end.extensions = rng.pick(&[Extensions::ALL, Extensions::ALL, Extensions::NONE, some]);
                end.min_rnr_timer = rng.range(1, 10) as u8;
                end.max_dest_rd_atomic = rng.pick(&[1, 2, 5, 16]);
            }
            let agreed = ends[0].extensions & ends[1].extensions;
            for end in ends {
                let sends = rng.pick(&[0, 3_000, 10_000]);
                end.kinds = Kinds {
                    sends: if agreed.contains(Extensions::SEND) { sends } else { 0 },
                    empty: rng.pick(&[0, 0, 1_000]),
                    empty_writes: agreed.contains(Extensions::EMPTY_MESSAGES),
                    reads: if fetches && agreed.contains(Extensions::READ) {
                        rng.pick(&[0, 2_000, 7_000])
                    } else {
                        0
                    },
                    atomics: if fetches && agreed.contains(Extensions::ATOMIC) {
                        rng.pick(&[0, 0, 3_000])
                    } else {
                        0
                    },
                    fault: None,
                };
                let (from, starves) = (rng.below(4), rng.one_in(2));
                if late && agreed.contains(Extensions::RNR) && rng.chance(7_000) {
                    end.late_ns = rng.sized(1_000, 3_000_000);
                }
                if self.may_fail && rng.one_in(2) {
                    end.kinds.fault = match (starves, agreed) {
                        (true, all) if all.contains(Extensions::RNR) => Some((Fault::Starves, from)),
                        (false, all) if all.contains(Extensions::SEND) => Some((Fault::Short, from)),
                        _ => None,
                    };
                }
                if matches!(end.kinds.fault, Some((Fault::Starves, _))) {
                    (end.late_ns, end.rnr_retry) = (0, rng.below(7) as u8);
                }
            }
        }
    }

    pub(crate) fn has_fault(&self, fault: Fault) -> bool {
        self.pairs.iter().flatten().any(|end| end.kinds.fault.is_some_and(|(of, _)| of == fault))
    }

    /// Whether some messages find no receive work request.
    pub(crate) fn is_late(&self) -> bool {
        self.has_fault(Fault::Starves) || self.pairs.iter().flatten().any(|end| end.late_ns > 0)
    }

    /// What a round trip takes at most, ns: both ways, and what the ports of both hosts hold up.
    pub(crate) fn worst_rtt_ns(&self) -> u64 {
        let links = self.links.iter().map(|link| {
            // The twins of duplicated packets are late, too, and so are the answers to them.
            let stray = if link.stray + link.duplicate > 0 { link.stray_ns } else { 0 };
            link.delay_ns + link.spread_ns + link.jitter_ns + stray
        });
        let nodes = self.nodes.iter().map(|node| {
            let full = if node.given_back > 0 { node.full_ns } else { 0 };
            // What may be queued, and the frame that was let in last.
            node.queue_ns + 5 * node.ns_per_kib + full + node.lateness_ns
        });
        2 * links.max().unwrap_or(0) + nodes.sum::<u64>()
    }

    /// One direction has thousands of packets in flight.
    /// Whether queue pairs with NSCC share a window.
    pub(crate) fn shares_cwnds(&self) -> bool {
        let nscc = self.pairs.iter().flatten().filter(|end| end.nscc).count();
        self.seed.is_multiple_of(3) && nscc > 1
    }

    pub(crate) fn is_wide(&self) -> bool {
        self.pairs.iter().flatten().any(|end| end.long > 0)
    }

    fn be_fair(&mut self, weather: Weather) {
        self.weather = weather;
        self.outages.clear();
        self.flaps.clear();
        self.may_fail = false;
        // 16.8 ms, far more than a round trip.
        self.patience = Patience { timeout: 14, linear: 7, exponential: 25 };
        // Excluded: paths of different length, and host queues that change a round trip by more than an eighth. Until that
        // is measured the time rule, whose least reordering window is this eighth, takes the slower packets for lost;
        // and where packets overtake each other across paths, one that no SACK's bitmap happened to cover counts
        // as overdue although it arrived.
        let delay_ns = self.links.first().map_or(0, |link| link.delay_ns);
        for link in &mut self.links {
            *link = Link { delay_ns, stray_ns: link.stray_ns, ecn: link.ecn, ..Link::default() };
        }
        for node in &mut self.nodes {
            node.lateness_ns = 0;
            node.ns_per_kib = node.ns_per_kib.min(delay_ns / 256);
            node.queue_ns = node.queue_ns.min(delay_ns / 32);
            node.full_ns = node.full_ns.min(delay_ns / 32);
            node.given_back = node.given_back.min(500);
            node.source_ports = None;
            node.sack_threshold = node.sack_threshold.min(16 * 1024);
        }
        let floor = 4 * self.worst_rtt_ns();
        for node in &mut self.nodes {
            // A tail probe is a repeat. Before the first round trip is measured its wait is this floor alone.
            node.tail_probe_floor_ns = node.tail_probe_floor_ns.max(floor);
        }
        for end in self.pairs.iter_mut().flatten() {
            end.denies = false;
        }
    }

    /// From some time on, one path in a few is dead, or a whole plane of several.
    fn kill_paths(&mut self, rng: &mut Rng) {
        let planes = self.links.len() as u64;
        let whole = planes > 1 && rng.one_in(3);
        self.outages.push(Outage {
            from: Time(rng.sized(1_000, 500_000)),
            to: Time::NEVER,
            plane: rng.below(planes) as u8,
            sender: rng.pick(&[None, Some(0), Some(1)]),
            paths: if whole { 1 } else { rng.pick(&[4, 8, 32]) },
        });
        for end in self.pairs.iter_mut().flatten() {
            // So many that the floor on active paths never keeps a dead one, and that each plane has another for a repeat.
            end.active = end.active.max(8 * planes as u16).max(16);
            end.backup = end.backup.max(16);
        }
    }

    /// Thousands of small packets in flight: the largest window, one long message, the smallest MTU.
    fn open_window(&mut self, rng: &mut Rng) {
        let Some([end, other]) = self.pairs.first_mut() else { return };
        end.max_mtu = 256;
        other.max_mtu = 256;
        other.mpr = rng.range(34, 64) as u8;
        end.messages = end.messages.max(1);
        end.long = (4_200 + rng.below(400) as u32) * 256;
        end.nscc = false;
    }
}

/// Which kinds of fault there are in this run, and how strong at most.
fn common_faults(rng: &mut Rng) -> Link {
    let mut level = |most: u64| match rng.below(4) {
        0 | 1 => 0,
        2 => rng.sized(10, most) as u32,
        _ => rng.range(10, most) as u32,
    };
    Link {
        stray: level(3_000),
        loss: level(3_000),
        duplicate: level(2_000),
        corrupt: level(1_000),
        ecn: level(5_000),
        trim: level(3_000),
        ..Link::default()
    }
}

fn link(rng: &mut Rng, common: &Link) -> Link {
    let delay_ns = rng.sized(500, 150_000);
    Link {
        delay_ns,
        spread_ns: if rng.one_in(2) { 0 } else { rng.sized(100, delay_ns.max(200)) },
        jitter_ns: if rng.one_in(2) { 0 } else { rng.sized(10, delay_ns.max(20)) },
        stray_ns: rng.sized(1_000, 5_000_000),
        ..*common
    }
}

fn outages(rng: &mut Rng, planes: u8, heal_at: Time) -> Vec<Outage> {
    let count = rng.pick(&[0, 0, 1, 2, 4]);
    (0..count)
        .map(|_| {
            let from = rng.below(heal_at.0);
            Outage {
                from: Time(from),
                to: Time((from + rng.sized(1_000, heal_at.0)).min(heal_at.0)),
                plane: rng.below(planes.into()) as u8,
                sender: rng.pick(&[None, Some(0), Some(1)]),
                paths: rng.pick(&[1, 1, 4, 32]),
            }
        })
        .collect()
}

/// Every port's last change is to up, so that the network heals.
fn flaps(rng: &mut Rng, planes: u8, heal_at: Time) -> Vec<Flap> {
    let count = rng.pick(&[0, 0, 0, 1, 2, 5]);
    (0..count)
        .map(|_| {
            let from = rng.below(heal_at.0);
            Flap {
                node: rng.below(2) as usize,
                port: rng.below(planes.into()) as u8,
                from: Time(from),
                to: Time((from + rng.sized(100, heal_at.0)).min(heal_at.0)),
            }
        })
        .collect()
}

fn mtu(rng: &mut Rng) -> u32 {
    if rng.one_in(4) { rng.range(256, 4096) as u32 } else { rng.pick(&[256, 512, 1024, 2048, 4096, 4096]) }
}

fn patience(rng: &mut Rng, may_fail: bool) -> Patience {
    let linear = rng.below(8) as u8;
    if may_fail {
        Patience { timeout: rng.range(6, 10) as u8, linear, exponential: rng.below(4) as u8 }
    } else {
        Patience { timeout: rng.range(7, 15) as u8, linear, exponential: 25 }
    }
}

fn node(rng: &mut Rng, sockets: bool) -> NodePlan {
    let paced = rng.one_in(2);
    NodePlan {
        sockets,
        source_ports: (sockets && rng.one_in(2)).then(|| rng.range(2, 64) as u16),
        lateness_ns: if rng.one_in(3) { rng.sized(100, 2_000_000) } else { 0 },
        ns_per_kib: if paced { rng.sized(10, 10_000) } else { 0 },
        queue_ns: if paced { rng.sized(1, 20_000) } else { 0 },
        given_back: if rng.one_in(3) { rng.sized(10, 5_000) as u32 } else { 0 },
        full_ns: rng.sized(1, 200_000),
        trimming: rng.chance(7_000),
        sack_threshold: if rng.one_in(3) { rng.sized(1, 1 << 20) as u32 } else { 16 * 1024 },
        quantum: rng.sized(1, 64) as u32,
        oor_nack: rng.one_in(3),
        tail_probe_floor_ns: rng.sized(1_000, 10_000_000),
        initial_reordering_ns: if rng.one_in(4) { 0 } else { rng.sized(1_000, 1_000_000) },
    }
}

fn end(rng: &mut Rng, mtu: u32, budget: u64) -> EndPlan {
    let near_wrap = rng.one_in(2);
    let largest = rng.sized(1, 400_000) as u32;
    let messages = if rng.one_in(8) { 0 } else { rng.sized(1, (budget / u64::from(largest)).clamp(1, 400)) };
    EndPlan {
        psn: if near_wrap { (1 << 24) - rng.sized(1, 2_000) as u32 } else { rng.below(1 << 24) as u32 },
        msn: if near_wrap {
            (1_u32 << 16).wrapping_sub(rng.sized(1, 200) as u32) as u16
        } else {
            rng.bits() as u16
        },
        mpr: if rng.one_in(2) { 8 } else { rng.sized(1, 255) as u8 },
        max_wimm: if rng.one_in(2) { 128 } else { rng.sized(1, 200) as u16 },
        max_mtu: mtu,
        depth: if rng.one_in(2) { 128 } else { rng.sized(1, 64) as u32 },
        nscc: rng.one_in(2),
        dynamic_mpr: rng.one_in(2),
        active: rng.pick(&[128, 128, 16, 8, 1]),
        backup: rng.pick(&[64, 64, 8, 0]),
        spray_width: rng.pick(&[0, 0, 4, 16]),
        probes_to_revive: rng.range(1, 4) as u8,
        probe_interval_ns: rng.sized(1_000, 10_000_000),
        reverse_per_plane: rng.range(1, 3) as u8,
        denies: rng.one_in(6),
        sig_all: rng.one_in(6),
        messages,
        largest,
        long: 0,
        signaled: rng.pick(&[10_000, 5_000, 1_000, 0]),
        immediates: rng.pick(&[0, 1_000, 5_000, 10_000]),
        kinds: Kinds::default(),
        extensions: Extensions::NONE,
        max_dest_rd_atomic: 16,
        rnr_retry: RtsAttr::MAX_RNR,
        min_rnr_timer: 1,
        late_ns: 0,
        burst: rng.sized(1, 64),
        pause_ns: rng.sized(1, 1_000_000),
    }
}
