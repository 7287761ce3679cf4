//! Every kind of fault that the simulator has, at one place of a fabric: what happens, and what the agents should name for it.

use std::fmt;

use spindrift_agent::{Component, LocateSettings};
use spindrift_fabric::{Clos, Fault, Impairment};
use spindrift_srv6::{Link, Node};

/// Which directions of a link are affected: `Up` is away from the hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Both.
    Both,
    /// From the lower end to the upper one.
    Up,
    /// From the upper end to the lower one.
    Down,
}

/// What is wrong. Shares are of the packets, 0 to 1, in each direction that is affected.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// A link is down, and a host at its end sees it: `down`.
    LinkDown,
    /// A link carries nothing, and nobody sees it: `dark`.
    LinkDark(Way),
    /// A link loses packets: `loss`.
    LinkGray(Way, f64),
    /// A link flips bits: `corrupt`.
    LinkCorrupts(f64),
    /// A link is down for 100 ms of every 300 ms.
    LinkFlaps,
    /// A switch does not forward, and its links stay up: `stop`.
    SwitchStops,
    /// A switch has no power: its links are down.
    SwitchOff,
    /// A switch loses packets that come in.
    SwitchGray(f64),
    /// A NIC has no power: all links of a host are down.
    NicOff,
    /// A link has a hundredth of its rate: `rate`.
    LinkSlow,
    /// A link marks every packet that is capable of ECN: `ecn`.
    LinkMarks,
    /// A link duplicates a tenth of the packets: `dup`.
    LinkDuplicates,
    /// A link delays a tenth of the packets by up to 10 µs: `reorder`.
    LinkReorders,
    /// A host does not run for 200 ms: `pause`.
    HostPauses,
}

/// A fault and its place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Case {
    /// What is wrong.
    pub kind: Kind,
    /// Where.
    pub component: Component,
}

/// The places that are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// Links of hosts.
    HostLink,
    /// Links between switches.
    Trunk,
    /// T0 switches.
    T0,
    /// T1 and T2 switches.
    Upper,
    /// Hosts, with their NICs.
    Host,
}

/// All kinds: those that an agent can see, then those that it cannot, since no probe is lost.
pub const KINDS: [Kind; 23] = [
    Kind::LinkDown,
    Kind::LinkDark(Way::Both),
    Kind::LinkDark(Way::Up),
    Kind::LinkDark(Way::Down),
    Kind::LinkCorrupts(1.0),
    Kind::LinkFlaps,
    Kind::SwitchStops,
    Kind::SwitchOff,
    Kind::NicOff,
    Kind::LinkGray(Way::Both, 0.05),
    Kind::LinkGray(Way::Both, 0.02),
    Kind::LinkGray(Way::Both, 0.01),
    Kind::LinkGray(Way::Up, 0.01),
    Kind::LinkGray(Way::Down, 0.01),
    Kind::LinkCorrupts(0.02),
    Kind::SwitchGray(0.05),
    Kind::SwitchGray(0.02),
    Kind::SwitchGray(0.01),
    Kind::LinkSlow,
    Kind::LinkMarks,
    Kind::LinkDuplicates,
    Kind::LinkReorders,
    Kind::HostPauses,
];

/// How long a flapping link is down, and after which time it goes down again, in nanoseconds.
const FLAP_NS: (u64, u64) = (100_000_000, 300_000_000);
/// How often it does.
const FLAPS: u64 = 5;

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Both => "both directions",
            Self::Up => "away from the hosts",
            Self::Down => "towards the hosts",
        })
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |share: f64| share * 100.0;
        match *self {
            Self::LinkDown => f.write_str("down"),
            Self::LinkDark(way) => write!(f, "silently dead, {way}"),
            Self::LinkGray(way, share) => write!(f, "loses {} %, {way}", percent(share)),
            Self::LinkCorrupts(share) => write!(f, "corrupts {} %", percent(share)),
            Self::LinkFlaps => f.write_str("flaps: down for 100 ms of every 300 ms"),
            Self::SwitchStops => f.write_str("does not forward"),
            Self::SwitchOff | Self::NicOff => f.write_str("without power"),
            Self::SwitchGray(share) => write!(f, "loses {} %", percent(share)),
            Self::LinkSlow => f.write_str("a hundredth of its rate"),
            Self::LinkMarks => f.write_str("marks all packets"),
            Self::LinkDuplicates => f.write_str("duplicates 10 %"),
            Self::LinkReorders => f.write_str("reorders 10 %"),
            Self::HostPauses => f.write_str("stands still for 200 ms"),
        }
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::HostLink => "link of a host",
            Self::Trunk => "link between switches",
            Self::T0 => "T0 switch",
            Self::Upper => "T1 or T2 switch",
            Self::Host => "host",
        })
    }
}

impl Tier {
    /// Where a component is.
    pub const fn of(component: Component) -> Self {
        match component {
            Component::Link((Node::Host(_), _)) => Self::HostLink,
            Component::Link(_) => Self::Trunk,
            Component::Node(Node::Host(_)) => Self::Host,
            Component::Node(Node::T0 { .. }) => Self::T0,
            Component::Node(_) => Self::Upper,
        }
    }
}

impl Kind {
    /// Whether packets are lost for good, and not a few of them.
    pub fn is_hard(self) -> bool {
        match self {
            Self::LinkCorrupts(share) => share >= 1.0,
            Self::LinkDown
            | Self::LinkDark(_)
            | Self::LinkFlaps
            | Self::SwitchStops
            | Self::SwitchOff
            | Self::NicOff => true,
            _ => false,
        }
    }

    /// The time in which it is to be named, in nanoseconds. Of packets with a flipped bit one in twelve is read as if it were whole, so that
    /// takes longer to be certain of.
    pub fn goal_ns(self) -> u64 {
        match self {
            Self::LinkCorrupts(share) if share >= 1.0 => 200_000_000,
            kind if kind.is_hard() => 100_000_000,
            _ => 10_000_000_000,
        }
    }

    /// Whether it loses probes, so that an agent can see it.
    pub fn loses_probes(self) -> bool {
        self.probe_loss() > 0.0
    }

    /// Whether a fault of this kind can be there.
    const fn fits(self, component: Component) -> bool {
        let is_link = matches!(component, Component::Link(_));
        match self {
            Self::SwitchStops | Self::SwitchOff | Self::SwitchGray(_) => {
                !is_link && !matches!(component, Component::Node(Node::Host(_)))
            }
            Self::NicOff | Self::HostPauses => matches!(component, Component::Node(Node::Host(_))),
            _ => is_link,
        }
    }

    /// The share of probes that such a component loses; none where no probe is lost for good.
    fn probe_loss(self) -> f64 {
        let both = |share: f64| 1.0 - (1.0 - share) * (1.0 - share);
        match self {
            Self::LinkGray(Way::Both, share) | Self::LinkCorrupts(share) => both(share),
            Self::LinkGray(_, share) | Self::SwitchGray(share) => share,
            _ if self.is_hard() => 1.0,
            _ => 0.0,
        }
    }
}

impl Case {
    /// Every place of a fabric for every kind.
    pub fn all(clos: &Clos) -> impl Iterator<Item = Self> + '_ {
        KINDS.into_iter().flat_map(|kind| Self::of_kind(clos, kind))
    }

    /// Every place of a fabric for a kind.
    pub fn of_kind(clos: &Clos, kind: Kind) -> impl Iterator<Item = Self> + '_ {
        let fabric = clos.fabric();
        let components = fabric.links().map(Component::Link).chain(fabric.nodes().map(Component::Node));
        components
            .filter(move |&component| kind.fits(component))
            .map(move |component| Self { kind, component })
    }

    /// Whether agents with these settings should name it: it loses more probes than they accuse a component of.
    pub fn is_visible(&self, settings: &LocateSettings) -> bool {
        let is_edge = matches!(Tier::of(self.component), Tier::HostLink | Tier::T0 | Tier::Host);
        self.kind.probe_loss() > if is_edge { settings.host_loss } else { settings.switch_loss }
    }

    /// What happens, with the time in nanoseconds after the first; [`Clos::heal`] ends it.
    pub fn script(&self, clos: &Clos) -> Vec<(u64, Fault)> {
        match (self.kind, self.component) {
            (Kind::LinkFlaps, Component::Link(ends)) => {
                let cable = |up| Fault::Cable { ends, up, carrier: true };
                let flap = |number| {
                    let at_ns = number * FLAP_NS.1;
                    [(at_ns, cable(false)), (at_ns + FLAP_NS.0, cable(true))]
                };
                (0..FLAPS).flat_map(flap).collect()
            }
            (_, Component::Link(link)) => {
                self.on_link(clos, link).into_iter().map(|fault| (0, fault)).collect()
            }
            (_, Component::Node(node)) => {
                self.on_node(clos, node).into_iter().map(|fault| (0, fault)).collect()
            }
        }
    }

    fn on_link(&self, clos: &Clos, (lower, upper): Link) -> Vec<Fault> {
        let ways = |way| match way {
            Way::Both => vec![(lower, upper), (upper, lower)],
            Way::Up => vec![(lower, upper)],
            Way::Down => vec![(upper, lower)],
        };
        let each = |way, make: &dyn Fn((Node, Node)) -> Fault| ways(way).into_iter().map(make).collect();
        let impair = |way, impairment: Impairment| {
            each(way, &|(from, to)| Fault::Impair { from, to, impairment: impairment.clone() })
        };
        let none = Impairment::default();
        match self.kind {
            Kind::LinkDark(way) => each(way, &|(from, to)| Fault::LinkDirection { from, to, up: false }),
            Kind::LinkGray(way, loss) => impair(way, Impairment { loss, ..none }),
            Kind::LinkCorrupts(corrupt) => impair(Way::Both, Impairment { corrupt, ..none }),
            Kind::LinkSlow => each(Way::Both, &|(from, to)| {
                let rate_bps = clos.rate_bps(from, to).unwrap_or_default() / 100;
                Fault::Rate { from, to, rate_bps }
            }),
            Kind::LinkMarks => impair(Way::Both, Impairment { mark: 1.0, ..none }),
            Kind::LinkDuplicates => impair(Way::Both, Impairment { duplicate: 0.1, late_ns: 10_000, ..none }),
            Kind::LinkReorders => impair(Way::Both, Impairment { reorder: 0.1, late_ns: 10_000, ..none }),
            _ => vec![Fault::Cable { ends: (lower, upper), up: false, carrier: true }],
        }
    }

    fn on_node(&self, clos: &Clos, node: Node) -> Vec<Fault> {
        match (self.kind, node) {
            (Kind::SwitchStops, _) => vec![Fault::Forwarding { switch: node, on: false }],
            (Kind::SwitchGray(loss), _) => {
                let impairment = Impairment { loss, ..Impairment::default() };
                let impair = |from| Fault::Impair { from, to: node, impairment: impairment.clone() };
                clos.neighbours(node).map(impair).collect()
            }
            (Kind::HostPauses, Node::Host(host)) => vec![Fault::Pause { host, ns: 200_000_000 }],
            _ => vec![Fault::Power { node, on: false }],
        }
    }
}
