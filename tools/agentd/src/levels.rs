//! The health of each link in one byte, from the reports of all agents.

use serde::Serialize;
use spindrift_agent::{Count, Path, View, Window};
use spindrift_srv6::Node;

use crate::layout::Layout;

/// No agent probes the link, or too few probes reached it.
pub const UNKNOWN: u8 = 0;
/// Less than 0.1 % are lost, or fewer than three probes.
pub const HEALTHY: u8 = 1;
/// Less than 0.3 %.
pub const TRACE: u8 = 2;
/// Less than 1 %.
pub const LOW: u8 = 3;
/// Less than 10 %.
pub const MEDIUM: u8 = 4;
/// Less than 95 %.
pub const HIGH: u8 = 5;
/// At least 95 %.
pub const DOWN: u8 = 6;
/// What the levels are called, from 0 on.
pub const NAMES: [&str; 7] = ["unknown", "healthy", "trace", "low", "medium", "high", "down"];

/// Probes that must have reached a link.
const MIN_SENT: f64 = 10.0;
/// Fewer lost probes say nothing.
const MIN_LOST: f64 = 2.5;
/// Probes that would have been lost in the last second if the link were as before: with none, it has healed.
const HEALED: f64 = 7.0;
const LONG: [Window; 3] = [Window::Second, Window::TenSeconds, Window::FiveMinutes];

/// Probes that reached a link, and those that it lost, of all agents: what the path below lost is in neither.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Sum {
    sent: f64,
    lost: f64,
}

impl Sum {
    fn add(&mut self, count: Count, below: Option<Count>) {
        let below = below.map_or(0.0, Count::loss);
        let reach = 1.0 - below;
        if reach > 0.0 {
            let net = ((count.loss() - below) / reach).clamp(0.0, 1.0);
            let sent = f64::from(count.sent) * reach;
            self.sent += sent;
            self.lost += sent * net;
        }
    }

    fn loss(self) -> f64 {
        if self.sent > 0.0 { self.lost / self.sent } else { 0.0 }
    }

    /// As an answer shows it.
    pub fn shown(self) -> crate::snapshot::Loss {
        crate::snapshot::Loss {
            sent: self.sent.round() as u32,
            lost: self.lost.round() as u32,
            net: self.loss(),
        }
    }
}

/// The sums of a link: of the last second, ten seconds, and five minutes.
pub type Sums = [Sum; 3];

fn level([second, ten, five]: Sums) -> u8 {
    let long = if ten.sent >= MIN_SENT { ten } else { five };
    if long.sent < MIN_SENT {
        return UNKNOWN;
    }
    if second.sent >= MIN_SENT && second.loss() >= 0.95 {
        return DOWN;
    }
    let has_healed = second.lost < 0.5 && second.sent * long.loss() > HEALED;
    if has_healed || long.lost < MIN_LOST {
        return HEALTHY;
    }
    match long.loss() {
        loss if loss < 0.001 => HEALTHY,
        loss if loss < 0.003 => TRACE,
        loss if loss < 0.01 => LOW,
        loss if loss < 0.1 => MEDIUM,
        loss if loss < 0.95 => HIGH,
        _ => DOWN,
    }
}

/// Calls `each` with the number of each path's highest link, the path, and its sums.
fn of_paths(layout: &Layout, view: &View, mut each: impl FnMut(usize, u16, usize, Sum)) {
    for (place, window) in LONG.into_iter().enumerate() {
        let mut known: Option<((u16, Node), Count)> = None;
        for (path, count) in view.counts(window) {
            let Some((number, below)) = layout.path(path.host, path.top) else { continue };
            let below = below.map(|top| {
                // An agent without a path to a T1 switch has one to its T0 switch.
                let at = (path.host, top);
                match known {
                    Some((last, count)) if last == at => count,
                    _ => {
                        let count = lower(layout, view, Path { host: path.host, top }, window);
                        known = Some((at, count));
                        count
                    }
                }
            });
            let mut sum = Sum::default();
            sum.add(count, below);
            each(number, path.host, place, sum);
        }
    }
}

/// The count of a path below another, or of the one below that.
fn lower(layout: &Layout, view: &View, path: Path, window: Window) -> Count {
    let count = view.count(path, window);
    match layout.path(path.host, path.top) {
        Some((_, Some(top))) if count.sent == 0 => view.count(Path { top, ..path }, window),
        _ => count,
    }
}

/// The level of each link, in the order of the layout.
pub fn of_links(layout: &Layout, view: &View) -> Vec<u8> {
    let mut sums = vec![Sums::default(); layout.links as usize];
    of_paths(layout, view, |number, _, place, sum| {
        if let Some(at) = sums.get_mut(number).and_then(|sums| sums.get_mut(place)) {
            at.sent += sum.sent;
            at.lost += sum.lost;
        }
    });
    sums.into_iter().map(level).collect()
}

/// The sums and the level of one link, and the agents that probe it.
pub fn of_link(layout: &Layout, view: &View, link: usize) -> (Sums, u8, Vec<u16>) {
    let (mut sums, mut agents) = (Sums::default(), std::collections::BTreeSet::new());
    of_paths(layout, view, |number, host, place, sum| {
        if number == link
            && let Some(at) = sums.get_mut(place)
        {
            agents.insert(host);
            at.sent += sum.sent;
            at.lost += sum.lost;
        }
    });
    (sums, level(sums), agents.into_iter().collect())
}

/// How many links have each level.
pub fn tally(levels: &[u8]) -> [u32; NAMES.len()] {
    let mut tally = [0; NAMES.len()];
    for level in levels {
        if let Some(count) = tally.get_mut(usize::from(*level)) {
            *count += 1;
        }
    }
    tally
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use spindrift_agent::{PathReport, Report};
    use spindrift_srv6::{Fabric, FabricHost, Shape};

    use super::*;

    fn sum(sent: f64, lost: f64) -> Sum {
        Sum { sent, lost }
    }

    #[test]
    fn levels_begin_where_they_should() {
        let none = Sum::default();
        for (second, ten, five, expected) in [
            (none, none, none, UNKNOWN),
            (none, sum(9.0, 9.0), sum(9.0, 9.0), UNKNOWN),
            (none, sum(9.0, 0.0), sum(10.0, 10.0), DOWN),
            (none, sum(10.0, 0.0), sum(10.0, 10.0), HEALTHY),
            // Two lost probes are an accident, three are not.
            (none, sum(20.0, 2.0), none, HEALTHY),
            (none, sum(20.0, 3.0), none, HIGH),
            (none, sum(10_000.0, 9.0), none, HEALTHY),
            (none, sum(10_000.0, 10.0), none, TRACE),
            (none, sum(10_000.0, 29.0), none, TRACE),
            (none, sum(10_000.0, 30.0), none, LOW),
            (none, sum(10_000.0, 99.0), none, LOW),
            (none, sum(10_000.0, 100.0), none, MEDIUM),
            (none, sum(10_000.0, 999.0), none, MEDIUM),
            (none, sum(10_000.0, 1_000.0), none, HIGH),
            (none, sum(10_000.0, 9_499.0), none, HIGH),
            (none, sum(10_000.0, 9_500.0), none, DOWN),
            // What is down is so at once, and what has healed too.
            (sum(10.0, 10.0), sum(10_000.0, 10.0), none, DOWN),
            (sum(9.0, 9.0), sum(10_000.0, 9.0), none, HEALTHY),
            (sum(100.0, 95.0), sum(10_000.0, 95.0), none, DOWN),
            (sum(100.0, 94.0), sum(10_000.0, 94.0), none, LOW),
            (sum(100.0, 0.0), sum(1_000.0, 80.0), none, HEALTHY),
            (sum(100.0, 1.0), sum(1_000.0, 80.0), none, MEDIUM),
            (sum(80.0, 0.0), sum(1_000.0, 80.0), none, MEDIUM),
        ] {
            assert_eq!(level([second, ten, five]), expected, "{second:?} {ten:?} {five:?}");
        }
    }

    fn fabric() -> Fabric {
        let host = |name: &str, t0| FabricHost { name: name.into(), t0, downlink: 0 };
        let shape = Shape { planes: 2, t0: 2, t1: 2, ..Shape::default() };
        Fabric::new(shape, vec![host("a", 0), host("b", 1)]).unwrap()
    }

    fn report(host: u16, paths: &[(Node, u32, u32)]) -> Report {
        let path = |&(top, sent, lost): &(Node, u32, u32)| PathReport {
            top,
            counts: Window::ALL.map(|_| Count { sent, lost }),
        };
        Report { host, running_ns: 1_000_000_000, paths: paths.iter().map(path).collect() }
    }

    #[test]
    fn loss_below_is_not_that_of_the_link() {
        let (fabric, t0, t1) = (fabric(), Node::T0 { plane: 1, number: 0 }, Node::T1 { plane: 1, number: 1 });
        let layout = Layout::new(&fabric);
        let number = |link| layout.number(link).unwrap();
        let (host, upper) = (number((Node::Host(0), t0)), number((t0, t1)));
        for (below, above, expected) in [
            ((1_000, 0), (1_000, 1_000), [HEALTHY, DOWN]),
            ((1_000, 500), (1_000, 500), [HIGH, HEALTHY]),
            ((1_000, 500), (1_000, 750), [HIGH, HIGH]),
            // Nothing is known of what lies behind.
            ((1_000, 1_000), (1_000, 1_000), [DOWN, UNKNOWN]),
        ] {
            let view = View::new(&[report(0, &[(t0, below.0, below.1), (t1, above.0, above.1)])]);
            let levels = of_links(&layout, &view);
            assert_eq!([levels[host], levels[upper]], expected, "{below:?} {above:?}");
            let of_others = levels.iter().enumerate().filter(|(at, _)| ![host, upper].contains(at));
            assert!(of_others.into_iter().all(|(_, level)| *level == UNKNOWN));
            assert_eq!(of_link(&layout, &view, upper).1, expected[1]);
        }
    }

    /// Each path has the loss of its own path below.
    #[test]
    fn what_reaches_a_link_counts() {
        let layout = Layout::new(&fabric());
        let (plane, number) = ([0, 1], [0, 1]);
        let lossy = [1_000, 500];
        let report = |host: u16| {
            let paths = plane.map(|plane| {
                let below = lossy[usize::from(plane ^ host as u8)];
                let t0 = (Node::T0 { plane, number: host }, 1_000, 1_000 - below);
                // The link itself loses every fifth.
                [t0, (Node::T1 { plane, number: 1 }, 1_000, 1_000 - below * 4 / 5)]
            });
            report(host, paths.as_flattened())
        };
        let view = View::new(&number.map(report));
        for host in number {
            for plane in plane {
                let link = (Node::T0 { plane, number: host }, Node::T1 { plane, number: 1 });
                let (sums, ..) = of_link(&layout, &view, layout.number(link).unwrap());
                let below = f64::from(lossy[usize::from(plane ^ host as u8)]);
                for sum in sums {
                    let error = (sum.sent - below).abs() + (sum.lost - below / 5.0).abs();
                    assert!(error < 1e-6, "{link:?} {sum:?}");
                }
            }
        }
    }

    /// An agent that probes a T2 switch may leave the T1 switch on the way to others.
    #[test]
    fn loss_below_a_third_tier_is_that_of_the_t0_switch_at_least() {
        let host = |name: &str, t0| FabricHost { name: name.into(), t0, downlink: 0 };
        let shape = Shape { planes: 1, t0: 2, t1: 2, pods: 2, t2: 2, ..Shape::default() };
        let layout = Layout::new(&Fabric::new(shape, vec![host("a", 0), host("b", 1)]).unwrap());
        let [t0, t1, t2] = [
            Node::T0 { plane: 0, number: 0 },
            Node::T1 { plane: 0, number: 0 },
            Node::T2 { plane: 0, number: 0 },
        ];
        let link = layout.number((t1, t2)).unwrap();
        for (paths, expected) in [
            (&[(t0, 1_000, 500), (t2, 1_000, 500)][..], HEALTHY),
            (&[(t0, 1_000, 0), (t1, 1_000, 500), (t2, 1_000, 500)], HEALTHY),
            (&[(t0, 1_000, 0), (t2, 1_000, 500)], HIGH),
        ] {
            assert_eq!(of_links(&layout, &View::new(&[report(0, paths)]))[link], expected, "{paths:?}");
        }
    }

    #[test]
    fn agents_are_added_up() {
        let (fabric, t0, t1) = (fabric(), Node::T0 { plane: 0, number: 0 }, Node::T1 { plane: 0, number: 0 });
        let layout = Layout::new(&fabric);
        // Host b says something that it cannot know.
        let mut fabric_of_two = fabric.hosts().to_vec();
        fabric_of_two.push(FabricHost { name: "c".into(), t0: 0, downlink: 1 });
        let fabric = Fabric::new(*fabric.shape(), fabric_of_two).unwrap();
        let with_three = Layout::new(&fabric);
        let upper = with_three.number((t0, t1)).unwrap();
        let view = View::new(&[
            report(0, &[(t0, 1_000, 0), (t1, 1_000, 40)]),
            report(
                1,
                &[(Node::T0 { plane: 0, number: 1 }, 1_000, 0), (Node::T2 { plane: 0, number: 9 }, 5, 5)],
            ),
            report(2, &[(t0, 1_000, 0), (t1, 1_000, 0)]),
        ]);
        let (sums, level, agents) = of_link(&with_three, &view, upper);
        assert_eq!((sums[1], level, agents), (sum(2_000.0, 40.0), MEDIUM, vec![0, 2]));
        assert_eq!(sums[1].shown(), crate::snapshot::Loss { sent: 2_000, lost: 40, net: 0.02 });
        let levels = of_links(&with_three, &view);
        assert_eq!(levels[upper], MEDIUM);
        let tally = tally(&levels);
        assert_eq!(tally.iter().sum::<u32>(), with_three.links);
        assert_eq!((tally[usize::from(HEALTHY)], tally[usize::from(MEDIUM)]), (3, 1));
        // A report for a fabric with more hosts than there are changes nothing.
        assert_eq!(of_links(&layout, &view).len(), layout.links as usize);
    }
}
