//! Capacity of a fabric with faulty links.

use std::collections::BTreeSet;

use spindrift::path::PlaneSet;
use spindrift_srv6::{End, Fabric, Link, Node};

use crate::lab::fault::{Action, Chance, Dir};
use crate::lab::rules::Broken;

/// Bits per second that can go from a host to another one: in each plane, the least of the host's link, of the ways through the
/// T1 switches together, and of the other host's link. A link that is down carries nothing, and one that loses a share of all packets carries the
/// others. Faults of single entropy values leave everything as it is.
///
/// Of the T1 switches, those count that packets can go through: all of a plane, or with `routed` packets those on their paths.
/// Planes that stand by count if the others carry nothing.
pub(super) fn capacity(
    fabric: &Fabric,
    rate: f64,
    broken: &[Broken],
    (from, to): (u16, u16),
    standby: PlaneSet,
    routed: bool,
) -> f64 {
    let of_plane = |plane| {
        let upper =
            if routed { on_paths(fabric, (from, to), plane) } else { (0..fabric.shape().t1).collect() };
        of_plane(fabric, rate, broken, plane, (from, to), &upper)
    };
    let (idle, primary): (Vec<_>, Vec<_>) =
        (0..fabric.shape().planes).partition(|&plane| standby.contains(plane));
    let of_planes = |planes: Vec<u8>| planes.into_iter().map(of_plane).sum::<f64>();
    let primary = of_planes(primary);
    if primary > 0.0 { primary } else { of_planes(idle) }
}

/// The T1 switches that source-routed packets pass on their way, where they arrive.
fn on_paths(fabric: &Fabric, (from, to): (u16, u16), plane: u8) -> BTreeSet<u16> {
    let (mut walker, mut found) = (fabric.walker(), BTreeSet::new());
    let Some(paths) = fabric.paths(from, to, plane) else { return found };
    for ev in (0..paths.count()).filter_map(|number| paths.nth(number)) {
        let walk = walker.walk(from, to, plane, ev);
        let arrives = walk.filter(|walk| matches!(walk.end, End::Delivered(_)));
        for hop in arrives.iter().flat_map(|walk| &walk.hops) {
            if let Node::T1 { number, .. } = hop.node {
                found.insert(number);
            }
        }
    }
    found
}

fn of_plane(
    fabric: &Fabric,
    rate: f64,
    broken: &[Broken],
    plane: u8,
    (from, to): (u16, u16),
    upper: &BTreeSet<u16>,
) -> f64 {
    let t0 = |host: u16| {
        let at = fabric.hosts().get(usize::from(host))?;
        Some(Node::T0 { plane, number: at.t0 })
    };
    let (Some(first), Some(last)) = (t0(from), t0(to)) else { return 0.0 };
    let of = |link: Link, dir: Dir| of_link(rate, broken, link, dir);
    let hosts = of((Node::Host(from), first), Dir::Up).min(of((Node::Host(to), last), Dir::Down));
    if first == last {
        return hosts;
    }
    if fabric.shape().t1 == 0 {
        let across = (first.min(last), first.max(last));
        return hosts.min(of(across, if first < last { Dir::Up } else { Dir::Down }));
    }
    let through = |number: u16| {
        let t1 = Node::T1 { plane, number };
        of((first, t1), Dir::Up).min(of((last, t1), Dir::Down))
    };
    hosts.min(upper.iter().copied().map(through).sum())
}

fn of_link(rate: f64, broken: &[Broken], link: Link, dir: Dir) -> f64 {
    let here: Vec<_> = broken
        .iter()
        .map(|broken| (broken.link, broken.fault))
        .filter(|(at, fault)| *at == link && fault.packets.is_none() && fault.dirs().any(|its| its == dir))
        .map(|(_, fault)| fault.action)
        .collect();
    let slowest = here.iter().fold(rate, |left, action| match action {
        Action::Down | Action::Blackhole => 0.0,
        Action::Rate(rate) => left.min(*rate as f64),
        Action::Loss(_) | Action::Ecn(_) => left,
    });
    // What is lost cannot be told where nothing limits the link.
    here.iter().fold(slowest, |left, action| match action {
        Action::Loss(Chance::ALWAYS) => 0.0,
        Action::Loss(chance) => left * (1.0 - chance.share()),
        _ => left,
    })
}

#[cfg(test)]
mod tests {
    #![expect(clippy::float_cmp, reason = "these are exact")]
    use spindrift_srv6::{F3216, Field, Shape, Template, TemplateField};

    use super::*;
    use crate::lab::plan::two_hosts;
    use crate::topology;

    fn broken(fabric: &Fabric, all: &[&str]) -> Vec<Broken> {
        let one = |text: &&str| {
            let (at, fault) = text.split_once(' ').unwrap();
            let (link, fault) = (topology::link(fabric, at).unwrap(), fault.parse().unwrap());
            Broken { id: 0, owner: String::new(), link, fault }
        };
        all.iter().map(one).collect()
    }

    fn without_roles(fabric: &Fabric, rate: f64, broken: &[Broken], ends: (u16, u16), routed: bool) -> f64 {
        capacity(fabric, rate, broken, ends, PlaneSet(0), routed)
    }

    /// From the first host to the second and back where links have 100, routed or not.
    fn both_ways(fabric: &Fabric, faults: &[&str]) -> (f64, f64) {
        let broken = broken(fabric, faults);
        let [plain, routed] = [false, true].map(|routed| {
            let of = |from, to| without_roles(fabric, 100e6, &broken, (from, to), routed) / 1e6;
            (of(0, 1), of(1, 0))
        });
        assert_eq!(plain, routed, "{faults:?}");
        routed
    }

    /// Two planes of two T0 and two T1 switches, links of 100: a on one T0 switch, b on the other.
    #[test]
    fn the_narrowest_part_of_each_plane_counts() {
        let fabric = two_hosts(2);
        for (faults, there, back) in [
            (&[] as &[&str], 200.0, 200.0),
            (&["a:p0-t0-0 down"], 100.0, 100.0),
            (&["b:p1-t0-1 blackhole"], 100.0, 100.0),
            (&["a:p0-t0-0 blackhole,dir=up"], 100.0, 200.0),
            (&["a:p0-t0-0 blackhole,dir=down"], 200.0, 100.0),
            (&["a:p0-t0-0 loss=1%", "a:p1-t0-0 ecn=100%"], 199.0, 199.0),
            (&["a:p0-t0-0 loss=1%", "a:p0-t0-0 rate=50M,dir=up", "b:p1-t0-1 loss=100%"], 49.5, 99.0),
            (&["a:p0-t0-0 loss=100%,sport=7", "a:p1-t0-0 blackhole,ev=1"], 200.0, 200.0),
            // One of two ways between the switches is enough for one host; none is not.
            (&["p0-t0-0:p0-t1-0 down"], 200.0, 200.0),
            (&["p0-t0-0:p0-t1-0 down", "p0-t0-1:p0-t1-1 down"], 100.0, 100.0),
            (&["p0-t0-0:p0-t1-0 rate=30M", "p0-t0-1:p0-t1-1 rate=20M"], 150.0, 150.0),
            (&["p0-t0-0:p0-t1-0 blackhole,dir=up", "p0-t0-0:p0-t1-1 rate=20M,dir=up"], 120.0, 200.0),
            (&["a:p0-t0-0 rate=40M", "a:p0-t0-0 rate=60M", "b:p0-t0-1 rate=50M"], 140.0, 140.0),
            (&["a:p0-t0-0 rate=400M"], 200.0, 200.0),
            (&["a:p0-t0-0 down", "b:p1-t0-1 down"], 0.0, 0.0),
        ] {
            assert_eq!(both_ways(&fabric, faults), (there, back), "{faults:?}");
        }
        assert_eq!(without_roles(&fabric, f64::INFINITY, &[], (0, 1), true), f64::INFINITY);
        let slow = broken(&fabric, &["a:p0-t0-0 rate=5M", "a:p1-t0-0 rate=7M"]);
        assert_eq!(without_roles(&fabric, f64::INFINITY, &slow, (0, 1), false), 12e6);
    }

    /// All that two switches have between them is one cable in each plane.
    #[test]
    fn a_cable_between_two_switches_counts() {
        let hosts = two_hosts(2).hosts().to_vec();
        let shape = Shape { planes: 2, t0: 2, t1: 0, ..Shape::default() };
        let fabric = Fabric::new(shape, hosts).unwrap();
        for (faults, there, back) in [
            (&[] as &[&str], 200.0, 200.0),
            (&["p0-t0-0:p0-t0-1 rate=30M"], 130.0, 130.0),
            (&["p0-t0-0:p0-t0-1 rate=30M,dir=up"], 130.0, 200.0),
            (&["p0-t0-1:p0-t0-0 blackhole,dir=down", "a:p1-t0-0 rate=40M,dir=up"], 140.0, 100.0),
        ] {
            assert_eq!(both_ways(&fabric, faults), (there, back), "{faults:?}");
        }
    }

    /// A template that leads through the second of two T1 switches, in the first of two planes.
    #[test]
    fn source_routed_packets_need_the_switches_of_their_paths() {
        let fixed = |width, value| TemplateField::new(Field::fixed(width, value));
        let template = Template {
            from: vec![0],
            to: "fd5d:7072:0:1::/64".parse().unwrap(),
            planes: vec![0],
            format: F3216::FORMAT.to_vec(),
            fields: [0x4000, 0x8001, 0x4001, 0xc000].iter().fold(
                vec![fixed(32, 0xfcbb_bb00)],
                |mut fields, &usid| {
                    fields.push(fixed(16, usid));
                    fields
                },
            ),
        };
        let fabric = two_hosts(2).with_templates(vec![template]).unwrap();
        let all = broken(&fabric, &["p0-t0-0:p0-t1-1 rate=30M", "p1-t0-0:p1-t1-1 down"]);
        let of = |ends, routed| without_roles(&fabric, 100e6, &all, ends, routed) / 1e6;
        assert_eq!((of((0, 1), true), of((1, 0), true)), (130.0, 200.0));
        assert_eq!((of((0, 1), false), of((1, 0), false)), (200.0, 200.0));
    }

    /// Hosts at one T0 switch need no other.
    #[test]
    fn neighbours_need_only_their_own_links() {
        let file = "[fabric]\nplanes = 1\nt0 = 2\nt1 = 1\nhosts_per_t0 = 2\n";
        let path = std::env::temp_dir().join(format!("spindrift-neighbours-{}.toml", std::process::id()));
        std::fs::write(&path, file).unwrap();
        let fabric = topology::load(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        let broken = broken(&fabric, &["p0-t0-0:p0-t1-0 down"]);
        for routed in [false, true] {
            let of = |from, to| without_roles(&fabric, 9.0, &broken, (from, to), routed);
            assert_eq!((of(0, 1), of(0, 2), of(2, 3)), (9.0, 0.0, 9.0));
        }
    }

    #[test]
    fn planes_that_stand_by_count_only_if_no_other_one_carries_anything() {
        let fabric = two_hosts(3);
        let carried = |faults: &[&str], standby| {
            capacity(&fabric, 100e6, &broken(&fabric, faults), (0, 1), PlaneSet(standby), false) / 1e6
        };
        assert_eq!([carried(&[], 0), carried(&[], 0b100), carried(&[], 0b110)], [300.0, 200.0, 100.0]);
        assert_eq!(carried(&["a:p0-t0-0 down"], 0b100), 100.0);
        assert_eq!(carried(&["a:p0-t0-0 down"], 0b110), 200.0);
        assert_eq!(carried(&["a:p0-t0-0 down", "b:p1-t0-1 down"], 0b110), 100.0);
    }
}
