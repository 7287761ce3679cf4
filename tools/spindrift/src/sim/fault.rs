//! What goes wrong in a run, as people write it, and what that is at any time.

use std::time::Duration;

use spindrift_fabric::{Clos, HostId, Impairment, Messenger, Net};
use spindrift_srv6::{Fabric, Link, Node};

use crate::lab::fault::{Dir, parse_chance, parse_dir, pieces, put};
use crate::lab::faults::Place;
use crate::times::Times;
use crate::units::{parse_duration, parse_ev, parse_rate};

/// Something that goes wrong, and when.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct FaultPlan {
    /// Where and what, as it was written.
    pub(super) place: String,
    pub(super) action: String,
    pub(super) times: Times,
    parts: Vec<Part>,
}

/// What is wrong with a part of the fabric while a fault lasts.
#[derive(Clone, Debug, PartialEq)]
enum Part {
    /// A cable carries nothing; a host at its end sees it, or not.
    Down { link: Link, seen: bool },
    /// A switch does not forward.
    Stopped(Node),
    /// Packets of one direction of a cable.
    Wrong { from: Node, to: Node, impairment: Impairment },
    /// One direction of a cable is this slow.
    Slow { from: Node, to: Node, rate_bps: u64 },
    /// A host stands still, from the beginning of the fault for its whole length.
    Paused(u16),
}

/// What happens.
#[derive(Clone, Debug, PartialEq)]
enum Action {
    Down,
    Dark,
    Stop,
    Pause,
    Rate(u64),
    Packets(Impairment),
}

const ACTIONS: &str =
    "down, dark, stop, pause, blackhole, loss=P%, corrupt=P%, duplicate=P%, reorder=P%, ecn=P%, rate=R";

impl FaultPlan {
    /// Says what is wrong, and with which of the keys.
    pub(super) fn new(
        fabric: &Fabric,
        places: &str,
        action: &str,
        times: Times,
    ) -> Result<Self, (&'static str, String)> {
        times.check()?;
        let (what, dir) = parse(action).map_err(|why| ("action", why))?;
        if what == Action::Pause && times.lasts.is_none() {
            return Err(("action", "say how long the host stands still, with `for`".to_owned()));
        }
        let mut parts = Vec::new();
        for place in places.split(',').map(str::trim) {
            let at = Place::parse(fabric, place).map_err(|why| ("where", why))?;
            let new =
                self::parts(fabric, at, &what, dir).map_err(|why| ("action", format!("{place}: {why}")))?;
            if new.is_empty() {
                return Err(("action", format!("nothing comes to {place} that way")));
            }
            parts.extend(new);
        }
        Ok(Self { place: places.to_owned(), action: action.to_owned(), times, parts })
    }

    /// The directions of cables on which packets meet it, those to a switch that stops among them.
    pub(super) fn ways(&self, fabric: &Fabric) -> Vec<(Node, Node)> {
        let mut ways = Vec::new();
        for part in &self.parts {
            match *part {
                Part::Down { link: (lower, upper), .. } => ways.extend([(lower, upper), (upper, lower)]),
                Part::Wrong { from, to, .. } | Part::Slow { from, to, .. } => ways.push((from, to)),
                Part::Stopped(node) => ways.extend(fabric.links().filter_map(|(lower, upper)| {
                    if lower == node {
                        Some((upper, lower))
                    } else {
                        (upper == node).then_some((lower, upper))
                    }
                })),
                Part::Paused(_) => {}
            }
        }
        ways
    }

    /// The cables that it is about, likewise.
    pub(super) fn links(&self, fabric: &Fabric) -> Vec<Link> {
        let mut links: Vec<_> =
            self.ways(fabric).into_iter().map(|(from, to)| (from.min(to), from.max(to))).collect();
        links.dedup();
        links
    }
}

fn parse(text: &str) -> Result<(Action, Option<Dir>), String> {
    let (mut action, mut dir, mut evs, mut late) = (None, None, Vec::new(), None);
    for (piece, name, value) in pieces(text) {
        let bad = |why: String| format!("`{piece}`: {why}");
        match name {
            "dir" => put(&mut dir, parse_dir(value)).map_err(bad)?,
            "ev" => evs.push(parse_ev(value.unwrap_or_default()).map_err(bad)?),
            "late" => {
                let time = parse_duration(value.unwrap_or_default());
                put(&mut late, time).map_err(bad)?;
            }
            _ => put(&mut action, parse_action(name, value)).map_err(bad)?,
        }
    }
    let mut action =
        action.ok_or_else(|| format!("`{text}` says nothing that happens; add one of {ACTIONS}"))?;
    match &mut action {
        Action::Packets(impairment) => {
            let astray = impairment.reorder > 0.0 || impairment.duplicate > 0.0;
            if late.is_some() && !astray {
                return Err(format!("`{text}`: late says how late packets are with reorder and duplicate"));
            }
            impairment.evs = evs;
            impairment.late_ns = late.unwrap_or(Duration::from_micros(10)).as_nanos() as u64;
        }
        _ if late.is_some() || !evs.is_empty() => {
            return Err(format!("`{text}`: this is about all packets; leave out ev and late"));
        }
        Action::Rate(_) => {}
        _ if dir.is_some() => {
            return Err(format!("`{text}`: this takes both directions; use blackhole,dir=up for one"));
        }
        _ => {}
    }
    Ok((action, dir))
}

fn parse_action(name: &str, value: Option<&str>) -> Result<Action, String> {
    let share = || {
        let text = value.ok_or_else(|| format!("write a chance, as in {name}=5%"))?;
        parse_chance(text).map(|chance| f64::from(chance.0) / 1e6)
    };
    let none = Impairment::default();
    let packets = |impairment| Ok(Action::Packets(impairment));
    match (name, value) {
        ("down", None) => Ok(Action::Down),
        ("dark", None) => Ok(Action::Dark),
        ("stop", None) => Ok(Action::Stop),
        ("pause", None) => Ok(Action::Pause),
        ("blackhole", None) => packets(Impairment { loss: 1.0, ..none }),
        ("down" | "dark" | "stop" | "pause" | "blackhole", Some(_)) => Err(format!("{name} takes no value")),
        ("loss", _) => packets(Impairment { loss: share()?, ..none }),
        ("corrupt", _) => packets(Impairment { corrupt: share()?, ..none }),
        ("duplicate", _) => packets(Impairment { duplicate: share()?, ..none }),
        ("reorder", _) => packets(Impairment { reorder: share()?, ..none }),
        ("ecn", _) => packets(Impairment { mark: share()?, ..none }),
        ("rate", Some(rate)) => parse_rate(rate).map(Action::Rate),
        ("rate", None) => Err("write bits per second, as in rate=25G".to_owned()),
        ("", None) => Err("there is nothing before or after a comma".to_owned()),
        _ => Err(format!("unknown; faults are {ACTIONS}, and with them dir=up, dir=down, ev=EV, late=TIME")),
    }
}

fn parts(fabric: &Fabric, place: Place, action: &Action, dir: Option<Dir>) -> Result<Vec<Part>, String> {
    let links = || fabric.links().filter(|&link| place.has(link));
    let ways = |(lower, upper): Link| {
        let both = [(Dir::Up, lower, upper), (Dir::Down, upper, lower)];
        both.into_iter().filter(move |(way, ..)| dir.is_none_or(|dir| dir == *way))
    };
    let one_way = |make: &dyn Fn(Node, Node) -> Part| {
        // A packet that a switch forwards crosses two of its links: it is taken as it comes in, once.
        let own = |to: Node| match place {
            Place::Node(node) if !matches!(node, Node::Host(_)) => to == node,
            _ => true,
        };
        let all = links().flat_map(ways).filter(|&(_, _, to)| own(to));
        all.map(|(_, from, to)| make(from, to)).collect()
    };
    Ok(match (action, place) {
        (Action::Down, _) => links().map(|link| Part::Down { link, seen: true }).collect(),
        (Action::Dark, _) => links().map(|link| Part::Down { link, seen: false }).collect(),
        (Action::Stop, Place::Node(node)) if !matches!(node, Node::Host(_)) => vec![Part::Stopped(node)],
        (Action::Stop, _) => {
            return Err("this is no switch that could stop to forward; use blackhole".to_owned());
        }
        (Action::Pause, Place::Node(Node::Host(host))) => vec![Part::Paused(host)],
        (Action::Pause, _) => {
            return Err("this is no host that could stand still; use stop for a switch".to_owned());
        }
        (Action::Rate(rate_bps), _) => {
            let slow = |(_, from, to)| Part::Slow { from, to, rate_bps: *rate_bps };
            links().flat_map(ways).map(slow).collect()
        }
        (Action::Packets(impairment), _) => {
            one_way(&|from, to| Part::Wrong { from, to, impairment: impairment.clone() })
        }
    })
}

/// The faults of a run, and which of them last.
#[derive(Debug)]
pub(super) struct Faults<'a> {
    plans: &'a [FaultPlan],
    lasting: Vec<bool>,
}

impl<'a> Faults<'a> {
    pub(super) fn new(plans: &'a [FaultPlan]) -> Self {
        Self { plans, lasting: vec![false; plans.len()] }
    }

    /// One begins or ends. What others do to the same parts goes on.
    pub(super) fn change<T: Messenger>(
        &mut self,
        clos: &Clos,
        net: &mut Net<T>,
        number: usize,
        begins: bool,
    ) {
        let (Some(plan), Some(lasting)) = (self.plans.get(number), self.lasting.get_mut(number)) else {
            return;
        };
        *lasting = begins;
        for part in &plan.parts {
            match *part {
                Part::Down { link, .. } => self.set_cable(clos, net, link),
                Part::Stopped(node) => {
                    let stopped = self.all().any(|part| *part == Part::Stopped(node));
                    if let Some(switch) = clos.switch(node) {
                        net.set_forwarding(switch, !stopped);
                    }
                }
                Part::Wrong { from, to, .. } | Part::Slow { from, to, .. } => {
                    self.set_way(clos, net, (from, to));
                }
                Part::Paused(host) if begins => {
                    let ns = plan.times.lasts.unwrap_or_default().as_nanos() as u64;
                    net.pause(HostId(host.into()), ns);
                }
                Part::Paused(_) => {}
            }
        }
    }

    /// What is wrong now.
    fn all(&self) -> impl Iterator<Item = &Part> {
        let lasting = self.plans.iter().zip(&self.lasting).filter(|(_, lasting)| **lasting);
        lasting.flat_map(|(plan, _)| &plan.parts)
    }

    fn set_cable<T: Messenger>(&self, clos: &Clos, net: &mut Net<T>, cable: Link) {
        let of_it = self.all().filter_map(|part| match part {
            Part::Down { link, seen } if *link == cable => Some(*seen),
            _ => None,
        });
        let (up, dark) = of_it.fold((true, true), |(_, dark), seen| (false, dark && !seen));
        // The signal of a port is that of the cable, unless all that is wrong with it cannot be seen.
        clos.set_cable(net, cable, up, false);
        if let (Node::Host(host), Node::T0 { plane, .. }) = cable {
            net.set_carrier(HostId(host.into()), plane, up || dark);
        }
    }

    fn set_way<T: Messenger>(&self, clos: &Clos, net: &mut Net<T>, way: (Node, Node)) {
        let (Some(link), Some(built_bps)) = (clos.link(way.0, way.1), clos.rate_bps(way.0, way.1)) else {
            return;
        };
        let (mut impairments, mut rate) = (Vec::new(), built_bps);
        for part in self.all() {
            match part {
                Part::Wrong { from, to, impairment } if (*from, *to) == way => {
                    impairments.push(impairment.clone());
                }
                Part::Slow { from, to, rate_bps } if (*from, *to) == way => rate = rate.min(*rate_bps),
                _ => {}
            }
        }
        net.set_impairments(link, impairments);
        net.set_rate(link, rate);
    }
}

impl FaultPlan {
    /// Where, what, and whether it ends, for people.
    pub(super) fn line(&self, begins: bool) -> String {
        format!("{}: {}{}", self.place, self.action, if begins { "" } else { " ends" })
    }
}
