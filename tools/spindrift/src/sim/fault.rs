//! Faults of a plan: their text form, and their effect at any time.

use std::sync::Arc;
use std::time::Duration;

use spindrift::endpoint::DenyList;
use spindrift_agent::Component;
use spindrift_agent::policy::Deny;
use spindrift_agentd::deny::rules;
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
    /// All hosts avoid it, as by the policy of agents.
    Denied(Component),
}

/// What happens.
#[derive(Clone, Debug, PartialEq)]
enum Action {
    Down,
    Dark,
    Stop,
    Pause,
    Deny,
    Rate(u64),
    Packets(Impairment),
}

const ACTIONS: &str =
    "down, dark, stop, pause, deny, blackhole, loss=P%, corrupt=P%, dup=P%, reorder=P%:TIME, ecn=P%, rate=R";

/// How late packets are at most with `reorder` and `dup` if the fault names no time.
const LATE: Duration = Duration::from_micros(10);

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
            return Err(("action", "pause needs `for`, the time for which the host stops".to_owned()));
        }
        let mut parts = Vec::new();
        for place in places.split(',').map(str::trim) {
            let at = Place::parse(fabric, place).map_err(|why| ("where", why))?;
            let new =
                self::parts(fabric, at, &what, dir).map_err(|why| ("action", format!("{place}: {why}")))?;
            if new.is_empty() {
                return Err(("action", format!("{place} has no link in that direction")));
            }
            parts.extend(new);
        }
        Ok(Self { place: places.to_owned(), action: action.to_owned(), times, parts })
    }

    /// Whether hosts avoid something because of it.
    pub(super) fn denies(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Denied(_)))
    }

    /// The directions of cables on which packets meet it, those to a switch that stops among them.
    pub(super) fn directions(&self, fabric: &Fabric) -> Vec<(Node, Node)> {
        let mut directions = Vec::new();
        for part in &self.parts {
            match *part {
                Part::Down { link: (lower, upper), .. } => {
                    directions.extend([(lower, upper), (upper, lower)]);
                }
                Part::Wrong { from, to, .. } | Part::Slow { from, to, .. } => directions.push((from, to)),
                Part::Stopped(node) => directions.extend(fabric.links().filter_map(|(lower, upper)| {
                    if lower == node {
                        Some((upper, lower))
                    } else {
                        (upper == node).then_some((lower, upper))
                    }
                })),
                Part::Paused(_) | Part::Denied(_) => {}
            }
        }
        directions
    }

    /// The cables that it is about, likewise.
    pub(super) fn links(&self, fabric: &Fabric) -> Vec<Link> {
        let mut links: Vec<_> =
            self.directions(fabric).into_iter().map(|(from, to)| (from.min(to), from.max(to))).collect();
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
    let mut action = action.ok_or_else(|| format!("`{text}` has no action; add one of {ACTIONS}"))?;
    match &mut action {
        Action::Packets(impairment) => {
            let astray = impairment.reorder > 0.0 || impairment.duplicate > 0.0;
            if late.is_some() && !astray {
                return Err(format!("`{text}`: late=TIME is for reorder and dup only"));
            }
            let of_action = (impairment.late_ns > 0).then(|| Duration::from_nanos(impairment.late_ns));
            if late.is_some() && of_action.is_some() {
                return Err(format!("`{text}` has two delays; leave out late"));
            }
            impairment.evs = evs;
            impairment.late_ns = late.or(of_action).unwrap_or(LATE).as_nanos() as u64;
        }
        _ if late.is_some() || !evs.is_empty() => {
            return Err(format!("`{text}`: this affects all packets; leave out ev and late"));
        }
        Action::Rate(_) => {}
        Action::Deny if dir.is_some() => {
            return Err(format!("`{text}`: paths are avoided in both directions; leave out dir"));
        }
        _ if dir.is_some() => {
            return Err(format!("`{text}`: this affects both directions; use blackhole,dir=up for one"));
        }
        _ => {}
    }
    Ok((action, dir))
}

fn parse_action(name: &str, value: Option<&str>) -> Result<Action, String> {
    let share_of = |text: &str| parse_chance(text).map(|chance| f64::from(chance.0) / 1e6);
    let needed = || value.ok_or_else(|| format!("write a chance, as in {name}=5%"));
    let share = || share_of(needed()?);
    // A chance, and a delay after a colon.
    let astray = || {
        let text = needed()?;
        let (chance, late) = text.split_once(':').map_or((text, None), |(chance, late)| (chance, Some(late)));
        let late_ns = late.map(parse_duration).transpose()?.map_or(0, |late| late.as_nanos() as u64);
        Ok::<_, String>((share_of(chance)?, late_ns))
    };
    let none = Impairment::default();
    let packets = |impairment| Ok(Action::Packets(impairment));
    match (name, value) {
        ("down", None) => Ok(Action::Down),
        ("dark", None) => Ok(Action::Dark),
        ("stop", None) => Ok(Action::Stop),
        ("pause", None) => Ok(Action::Pause),
        ("deny", None) => Ok(Action::Deny),
        ("blackhole", None) => packets(Impairment { loss: 1.0, ..none }),
        ("down" | "dark" | "stop" | "pause" | "deny" | "blackhole", Some(_)) => {
            Err(format!("{name} takes no value"))
        }
        ("loss", _) => packets(Impairment { loss: share()?, ..none }),
        ("corrupt", _) => packets(Impairment { corrupt: share()?, ..none }),
        ("dup" | "duplicate", _) => {
            let (duplicate, late_ns) = astray()?;
            packets(Impairment { duplicate, late_ns, ..none })
        }
        ("reorder", _) => {
            let (reorder, late_ns) = astray()?;
            packets(Impairment { reorder, late_ns, ..none })
        }
        ("ecn", _) => packets(Impairment { mark: share()?, ..none }),
        ("rate", Some(rate)) => parse_rate(rate).map(Action::Rate),
        ("rate", None) => Err("write bits per second, as in rate=25G".to_owned()),
        ("", None) => Err("a part between commas is empty".to_owned()),
        _ => Err(format!("unknown; actions are {ACTIONS}; selectors are dir=up, dir=down, ev=EV")),
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
            return Err("stop is for switches; use blackhole for a link or a host".to_owned());
        }
        (Action::Pause, Place::Node(Node::Host(host))) => vec![Part::Paused(host)],
        (Action::Pause, _) => {
            return Err("pause is for hosts; use stop for a switch".to_owned());
        }
        (Action::Deny, Place::Link(link)) => vec![Part::Denied(Component::Link(link))],
        (Action::Deny, Place::Node(node)) => vec![Part::Denied(Component::Node(node))],
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
    fabric: &'a Fabric,
    plans: &'a [FaultPlan],
    lasting: Vec<bool>,
}

impl<'a> Faults<'a> {
    pub(super) fn new(fabric: &'a Fabric, plans: &'a [FaultPlan]) -> Self {
        Self { fabric, plans, lasting: vec![false; plans.len()] }
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
                Part::Denied(_) => self.deny(net),
            }
        }
    }

    /// Tells each host what to avoid.
    fn deny<T: Messenger>(&self, net: &mut Net<T>) {
        for host in net.hosts() {
            let number = host.0 as u16;
            let denied = self.all().filter_map(|part| match part {
                Part::Denied(component) => Some(Deny::of(self.fabric, number, *component)),
                _ => None,
            });
            let mut all: Vec<_> = denied.flat_map(|entry| rules(self.fabric, number, entry)).collect();
            all.truncate(DenyList::MAX_RULES);
            // Rules that are made from the fabric fit it.
            let list = Arc::new(DenyList::new(&all).unwrap_or_default());
            net.with_transport(host, |transport, now| transport.set_deny_list(now, &list));
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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn impairment(text: &str) -> Impairment {
        match parse(text).unwrap() {
            (Action::Packets(impairment), None) => impairment,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn each_action_of_ports_is_spelled_as_there() {
        for texts in [
            &["reorder=2%:50us", "reorder=0.02:50us", "reorder=2%,late=50us"] as &[&str],
            &["dup=1%", "duplicate=1%", "dup=0.01:10us"],
            &["loss=50%", "loss=0.5"],
        ] {
            for text in texts {
                assert_eq!(impairment(text), impairment(texts[0]), "{text}");
            }
        }
        let Impairment { reorder, late_ns, .. } = impairment("reorder=2%:50us");
        assert_eq!((reorder.to_bits(), late_ns), (0.02_f64.to_bits(), 50_000));
        assert_eq!(impairment("reorder=2%").late_ns, LATE.as_nanos() as u64);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, part) in [
            ("reorder=2%:50us,late=1us", "two delays"),
            ("reorder=2%:soon", "`soon`"),
            ("reorder=:5us", "not a probability"),
            ("dup", "dup=5%"),
            ("loss=1%,late=1us", "reorder and dup only"),
            ("loss=1%:5us", "not a probability"),
            ("dir=up", "no action"),
            ("deny=1", "deny takes no value"),
            ("deny,dir=up", "leave out dir"),
            ("deny,ev=1", "leave out ev"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
