//! Faults of a network that begin and end: what, when, how often.

use spindrift::time::Time;
use spindrift_srv6::{Fabric, Node};

use super::case::{FlowPlan, Roles};
use super::rand::Rng;
use crate::clos::ClosSpec;
use crate::fault::Fault;
use crate::impair::Impairment;

/// Something that is wrong for a while, maybe again and again.
#[derive(Clone, Debug, PartialEq)]
pub struct Episode {
    /// When it begins.
    pub begins: When,
    /// How long it lasts, and as long it is over until it comes again, ns.
    pub lasts_ns: u64,
    /// How often it comes.
    pub times: u32,
    /// What is wrong.
    pub kind: EpisodeKind,
}

/// A moment of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// A time.
    At(Time),
    /// So many messages, of all, are complete.
    Done(u64),
}

/// What is wrong.
#[derive(Clone, Debug, PartialEq)]
pub enum EpisodeKind {
    /// Cables carry nothing: one, or all of a transceiver.
    Cables {
        /// They.
        cables: Vec<(Node, Node)>,
        /// Whether hosts see it by the carrier.
        carrier: bool,
    },
    /// One direction of a cable carries nothing, and nobody sees it.
    LinkDirection(Node, Node),
    /// Links do something to packets.
    Links {
        /// From where to where.
        ways: Vec<(Node, Node)>,
        /// What.
        impairment: Impairment,
    },
    /// Every so many-th entropy value of a queue pair is lost, whichever plane it takes.
    DeadEvs {
        /// The number of the queue pair.
        flow: u32,
        /// Which end of it, 0 or 1.
        end: u8,
        /// Every so many-th.
        one_in: u32,
    },
    /// One direction of a cable is slow.
    Slow {
        /// Where packets leave.
        from: Node,
        /// Where they arrive.
        to: Node,
        /// Bits per second.
        rate_bps: u64,
    },
    /// A switch forwards nothing.
    Stop(Node),
    /// A switch or a NIC is off.
    Off(Node),
    /// A host stands still.
    Pause(u16),
    /// An operator moves a queue pair to the NIC that stands by, and back at the end.
    Move {
        /// The number of the queue pair.
        flow: u32,
        /// Which end of it, 0 or 1.
        end: u8,
    },
    /// An agent or an operator wants the queue pairs of a host to avoid paths, and others at the end.
    Deny {
        /// The host.
        host: u16,
        /// Planes.
        planes: u32,
        /// Entropy values with these bits ...
        value: u32,
        /// ... in these places.
        mask: u32,
    },
}

impl EpisodeKind {
    /// What happens when it begins and when it ends. Nothing is known here of entropy values and rates: those are for whoever runs it.
    pub(super) fn faults(&self, begins: bool, lasts_ns: u64) -> Vec<Fault> {
        let up = !begins;
        match *self {
            Self::Cables { ref cables, carrier } => {
                cables.iter().map(|&ends| Fault::Cable { ends, up, carrier }).collect()
            }
            Self::LinkDirection(from, to) => vec![Fault::LinkDirection { from, to, up }],
            Self::Links { ref ways, ref impairment } => {
                let impairment = if begins { impairment.clone() } else { Impairment::default() };
                let fault = |&(from, to)| Fault::Impair { from, to, impairment: impairment.clone() };
                ways.iter().map(fault).collect()
            }
            Self::Stop(switch) => vec![Fault::Forwarding { switch, on: up }],
            Self::Off(node) => vec![Fault::Power { node, on: up }],
            Self::Pause(host) if begins => vec![Fault::Pause { host, ns: lasts_ns }],
            Self::Slow { from, to, rate_bps } if begins => vec![Fault::Rate { from, to, rate_bps }],
            Self::Pause(_)
            | Self::Slow { .. }
            | Self::DeadEvs { .. }
            | Self::Move { .. }
            | Self::Deny { .. } => Vec::new(),
        }
    }
}

impl Episode {
    /// The episode in words, with the names of a fabric's nodes.
    pub fn describe(&self, fabric: &Fabric) -> String {
        let begins = match self.begins {
            When::At(at) => format!("from {at}"),
            When::Done(count) => format!("from message {count}"),
        };
        let times = if self.times > 1 { format!(", {} times", self.times) } else { String::new() };
        format!("{begins} for {}{times}: {}", Time(self.lasts_ns), self.kind.describe(fabric))
    }
}

impl EpisodeKind {
    fn describe(&self, fabric: &Fabric) -> String {
        let name = |node: &Node| fabric.name(*node);
        let arrow = |(from, to): &(Node, Node)| format!("{} > {}", name(from), name(to));
        match self {
            Self::Cables { cables, carrier } => {
                let cables: Vec<_> =
                    cables.iter().map(|(one, other)| format!("{}:{}", name(one), name(other))).collect();
                let told = if *carrier { "by the carrier" } else { "but for the carrier" };
                format!("{} down, {told}", cables.join(" and "))
            }
            Self::LinkDirection(from, to) => format!("{} down", arrow(&(*from, *to))),
            Self::Links { ways, impairment } => match ways.as_slice() {
                [way] => format!("{}: {}", arrow(way), shares(impairment)),
                ways => format!("{} links: {}", ways.len(), shares(impairment)),
            },
            Self::DeadEvs { flow, end, one_in } => {
                format!("entropy values of flow {flow}, end {end}, lost: one in {one_in}")
            }
            Self::Slow { from, to, rate_bps } => format!("{} at {rate_bps} bit/s", arrow(&(*from, *to))),
            Self::Stop(switch) => format!("{} forwards nothing", name(switch)),
            Self::Off(node) => format!("{} off", name(node)),
            Self::Pause(host) => format!("{} stands still", name(&Node::Host(*host))),
            Self::Move { flow, end } => format!("flow {flow}, end {end}, is moved to the standby"),
            Self::Deny { host, planes, value, mask } => {
                let host = name(&Node::Host(*host));
                format!("{host} avoids the planes {planes:#b} and entropy values {value:#x} of {mask:#x}")
            }
        }
    }
}

fn shares(impairment: &Impairment) -> String {
    let Impairment { loss, corrupt, duplicate, reorder, late_ns, mark, evs: _ } = impairment;
    let kinds =
        [("lost", loss), ("broken", corrupt), ("twice", duplicate), ("late", reorder), ("marked", mark)];
    let some = kinds.into_iter().filter(|(_, share)| **share > 0.0);
    let mut parts: Vec<_> = some.map(|(kind, share)| format!("{:.2} % {kind}", share * 100.0)).collect();
    if *duplicate > 0.0 || *reorder > 0.0 {
        parts.push(format!("late by up to {}", Time(*late_ns)));
    }
    parts.join(", ")
}

/// The episodes of a run, none or many, until the network heals.
pub(super) fn draw(rng: &mut Rng, spec: &ClosSpec, flows: u32, messages: u64, heal_at: Time) -> Vec<Episode> {
    // A shape that cannot be has no parts; whoever builds it learns why.
    let Ok(fabric) = spec.fabric() else { return Vec::new() };
    let parts = Parts {
        cables: fabric.links().collect(),
        switches: fabric.nodes().filter(|node| !matches!(node, Node::Host(_))).collect(),
        hosts: spec.hosts() as u16,
        host_rate_bps: spec.host_rate_bps,
        flows,
    };
    let count = rng.pick(&[0, 1, 1, 2, 3, 5, 8, 12]);
    (0..count).map(|_| episode(rng, &parts, messages, heal_at)).collect()
}

/// NICs that die, one or both at one host or several, and queue pairs that operators move.
pub(super) fn draw_of_nics(
    rng: &mut Rng,
    spec: &ClosSpec,
    (roles, flows): (Roles, &[FlowPlan]),
    messages: u64,
    heal_at: Time,
) -> Vec<Episode> {
    let Ok(fabric) = spec.fabric() else { return Vec::new() };
    let all = (1_u32 << spec.planes) - 1;
    let count = rng.pick(&[0, 1, 1, 2, 3, 5]);
    let episodes = (0..count).map(|_| {
        let flow = &flows[rng.below(flows.len() as u64) as usize];
        let end = rng.below(2) as u8;
        let kind = if rng.one_in(4) {
            EpisodeKind::Move { flow: flow.number, end }
        } else {
            let planes = rng.pick(&[all & !roles.standby, all & !roles.standby, roles.standby, all]);
            let host = Node::Host(flow.hosts[usize::from(end)]);
            let of_nic = |(lower, upper): &(Node, Node)| {
                *lower == host && matches!(*upper, Node::T0 { plane, .. } if planes >> plane & 1 == 1)
            };
            let cables = fabric.links().filter(of_nic).collect();
            EpisodeKind::Cables { cables, carrier: rng.one_in(2) }
        };
        let times = if rng.one_in(4) { rng.range(2, 6) as u32 } else { 1 };
        Episode { begins: begins(rng, messages, heal_at), lasts_ns: rng.sized(100, heal_at.0), times, kind }
    });
    episodes.collect()
}

/// Lists of paths that hosts avoid.
pub(super) fn draw_of_lists(rng: &mut Rng, spec: &ClosSpec, messages: u64, heal_at: Time) -> Vec<Episode> {
    if !rng.one_in(4) {
        return Vec::new();
    }
    let all = (1_u64 << spec.planes) - 1;
    let count = rng.pick(&[1, 2, 4]);
    let episodes = (0..count).map(|_| {
        let mask = rng.pick(&[0x8000_0000, 0xc000_0000, 0x0001_0000, 0x0003_0001, 0]);
        let value = if mask == 0 { 0 } else { rng.below(1 << 32) as u32 & mask };
        // A mask of nothing fits all values.
        let mask = if mask == 0 && rng.one_in(2) { u32::MAX } else { mask };
        let kind = EpisodeKind::Deny {
            host: rng.below(spec.hosts() as u64) as u16,
            planes: (rng.below(all + 1) & rng.below(all + 1)) as u32,
            value,
            mask,
        };
        let times = if rng.one_in(4) { rng.range(2, 6) as u32 } else { 1 };
        Episode { begins: begins(rng, messages, heal_at), lasts_ns: rng.sized(100, heal_at.0), times, kind }
    });
    episodes.collect()
}

/// What there is that can fail.
struct Parts {
    cables: Vec<(Node, Node)>,
    switches: Vec<Node>,
    hosts: u16,
    host_rate_bps: u64,
    flows: u32,
}

fn episode(rng: &mut Rng, parts: &Parts, messages: u64, heal_at: Time) -> Episode {
    let begins = begins(rng, messages, heal_at);
    let times = if rng.one_in(4) { rng.range(2, 6) as u32 } else { 1 };
    let lasts_ns = rng.sized(100, heal_at.0);
    Episode { begins, lasts_ns, times, kind: kind(rng, parts) }
}

fn begins(rng: &mut Rng, messages: u64, heal_at: Time) -> When {
    match rng.below(8) {
        // While queue pairs are set up.
        0 => When::At(Time(0)),
        // With the last message, or the first one, or any other.
        1 => When::Done(messages.saturating_sub(rng.sized(1, 4))),
        2 => When::Done(rng.sized(1, messages.max(1))),
        _ => When::At(Time(rng.below(heal_at.0))),
    }
}

fn kind(rng: &mut Rng, parts: &Parts) -> EpisodeKind {
    let (lower, upper) = rng.pick(&parts.cables);
    let (from, to) = if rng.one_in(2) { (lower, upper) } else { (upper, lower) };
    match rng.below(12) {
        0 | 1 => EpisodeKind::Cables { cables: vec![(lower, upper)], carrier: rng.chance(7_000) },
        // The cables of one transceiver (MRC paper, section 5.1): up to four of one switch.
        2 => {
            let own = parts.cables.iter().filter(|(one, other)| *one == upper || *other == upper);
            EpisodeKind::Cables { cables: own.take(4).copied().collect(), carrier: rng.chance(7_000) }
        }
        3 | 4 => EpisodeKind::LinkDirection(from, to),
        5 => EpisodeKind::Links { ways: vec![(from, to)], impairment: impairment(rng, 10_000) },
        6 => {
            let both = parts.cables.iter().flat_map(|&(one, other)| [(one, other), (other, one)]);
            EpisodeKind::Links { ways: both.collect(), impairment: impairment(rng, 500) }
        }
        7 => EpisodeKind::DeadEvs {
            flow: rng.below(parts.flows.into()) as u32,
            end: rng.below(2) as u8,
            one_in: rng.pick(&[1, 2, 4, 16, 64]),
        },
        8 => EpisodeKind::Slow { from, to, rate_bps: parts.host_rate_bps / rng.pick(&[2, 4, 10, 50]) },
        9 => EpisodeKind::Stop(rng.pick(&parts.switches)),
        10 => {
            let host = Node::Host(rng.below(parts.hosts.into()) as u16);
            EpisodeKind::Off(if rng.one_in(2) { host } else { rng.pick(&parts.switches) })
        }
        _ => EpisodeKind::Pause(rng.below(parts.hosts.into()) as u16),
    }
}

/// One or several of all that a link can do to packets, each to at most so many of ten thousand.
fn impairment(rng: &mut Rng, most: u64) -> Impairment {
    let mut some = Impairment { late_ns: rng.sized(100, 500_000), ..Impairment::default() };
    for _ in 0..rng.pick(&[1, 1, 2, 5]) {
        let Impairment { loss, corrupt, duplicate, reorder, mark, .. } = &mut some;
        let share = [loss, corrupt, duplicate, reorder, mark].into_iter().nth(rng.below(5) as usize);
        if let Some(share) = share {
            *share = rng.sized(1, most) as f64 / 10_000.0;
        }
    }
    some
}
