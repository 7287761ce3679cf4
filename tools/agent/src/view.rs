//! The reports of all agents together.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use spindrift_srv6::{Fabric, Link, Node};

use crate::locate::crosses;
use crate::{Component, Count, Path, Report, Window};

/// The counts of all agents that report. A clone shares them, so it is cheap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    agents: BTreeMap<u16, Arc<Seen>>,
}

type Counts = [Count; Window::ALL.len()];

/// What one agent reports.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    running_ns: u64,
    /// By where the paths turn, in order.
    counts: Vec<(Node, Counts)>,
    /// Places of those that have lost anything in a window that is judged: all but the longest.
    lossy: Vec<usize>,
}

impl Seen {
    fn new(report: &Report) -> Self {
        let possible = |count: Count| Count { lost: count.lost.min(count.sent), ..count };
        let counts: BTreeMap<Node, Counts> =
            report.paths.iter().map(|path| (path.top, path.counts.map(possible))).collect();
        let counts: Vec<_> = counts.into_iter().collect();
        let is_lossy = |(_, counts): &(Node, Counts)| {
            let mut judged = Window::ALL.into_iter().filter(|&window| window != Window::FiveMinutes);
            judged.any(|window| of(counts, window).lost > 0)
        };
        let lossy = (0..).zip(&counts).filter(|(_, at)| is_lossy(at)).map(|(place, _)| place).collect();
        Self { running_ns: report.running_ns, counts, lossy }
    }

    fn get(&self, top: Node) -> Option<&Counts> {
        let at = self.counts.binary_search_by_key(&top, |&(node, _)| node).ok()?;
        self.counts.get(at).map(|(_, counts)| counts)
    }

    /// Those that turn at a switch from the first to the last of these.
    fn between(&self, first: Node, last: Node) -> &[(Node, Counts)] {
        let start = self.counts.partition_point(|&(node, _)| node < first);
        let end = self.counts.partition_point(|&(node, _)| node <= last);
        self.counts.get(start..end).unwrap_or_default()
    }

    /// Those of a plane, in order.
    fn of_plane(&self, plane: u8) -> impl Iterator<Item = &(Node, Counts)> {
        let (first, last) = (0, u16::MAX);
        let t0 = self.between(Node::T0 { plane, number: first }, Node::T0 { plane, number: last });
        let t1 = self.between(Node::T1 { plane, number: first }, Node::T1 { plane, number: last });
        t0.iter().chain(t1).chain(self.above_t1(plane))
    }

    fn above_t1(&self, plane: u8) -> &[(Node, Counts)] {
        self.between(Node::T2 { plane, number: 0 }, Node::T2 { plane, number: u16::MAX })
    }
}

impl View {
    /// The view of these reports, of which one agent has one.
    pub fn new<'a>(reports: impl IntoIterator<Item = &'a Report>) -> Self {
        let mut view = Self::default();
        reports.into_iter().for_each(|report| view.insert(report));
        view
    }

    /// Adds the report of an agent, in place of an earlier one. No more can be lost than was sent, and paths that the fabric does not
    /// have are passed over later.
    pub fn insert(&mut self, report: &Report) {
        self.agents.insert(report.host, Arc::new(Seen::new(report)));
    }

    /// Removes the report of an agent, which is too old or belongs to an agent that is gone.
    pub fn remove(&mut self, host: u16) {
        self.agents.remove(&host);
    }

    /// The agents that report.
    pub fn hosts(&self) -> impl Iterator<Item = u16> + '_ {
        self.agents.keys().copied()
    }

    /// The paths, and their counts in a window.
    pub fn counts(&self, window: Window) -> impl Iterator<Item = (Path, Count)> + '_ {
        self.agents.iter().flat_map(move |(&host, seen)| {
            seen.counts.iter().map(move |(top, counts)| (Path { host, top: *top }, of(counts, window)))
        })
    }

    /// The count of a path in a window.
    pub fn count(&self, path: Path, window: Window) -> Count {
        let counts = self.agents.get(&path.host).and_then(|seen| seen.get(path.top));
        counts.map_or_else(Count::default, |counts| of(counts, window))
    }

    /// The paths of a plane that have lost a probe in a window that is judged, with their counts there, by host and then by where they turn.
    pub(crate) fn lossy(&self, plane: u8, window: Window) -> impl Iterator<Item = (Path, Count)> + '_ {
        let of_agent = move |(&host, seen): (&u16, &'_ Arc<Seen>)| {
            let lossy = seen.lossy.iter().filter_map(|&at| seen.counts.get(at)).copied();
            let found =
                lossy.filter(|(top, counts)| top.plane() == Some(plane) && of(counts, window).lost > 0);
            let found: Vec<_> =
                found.map(|(top, counts)| (Path { host, top }, of(&counts, window))).collect();
            found
        };
        self.agents.iter().flat_map(of_agent)
    }

    /// The paths of an agent in a plane, in order.
    pub(crate) fn of_agent(
        &self,
        host: u16,
        plane: u8,
        window: Window,
    ) -> impl Iterator<Item = (Path, Count)> + '_ {
        let seen = self.agents.get(&host);
        let paths = seen.into_iter().flat_map(move |seen| seen.of_plane(plane));
        paths.map(move |(top, counts)| (Path { host, top: *top }, of(counts, window)))
    }

    /// The paths over a component, by host, plane and where they turn.
    pub(crate) fn over(&self, fabric: &Fabric, component: Component, window: Window) -> Vec<(Path, Count)> {
        let agents: Vec<u16> = match component {
            Component::Link((Node::Host(host), _)) | Component::Node(Node::Host(host)) => vec![host],
            _ => self.hosts().collect(),
        };
        let planes = match component {
            Component::Link((_, upper)) => upper.plane(),
            Component::Node(node) => node.plane(),
        };
        let planes = planes.map_or(0..fabric.shape().planes, |plane| plane..plane + 1);
        let mut found = Vec::new();
        for host in agents {
            let Some(seen) = self.agents.get(&host) else { continue };
            for plane in planes.clone() {
                let add = |&(top, ref counts): &(Node, Counts)| {
                    let path = Path { host, top };
                    crosses(fabric, path, component).then(|| (path, of(counts, window)))
                };
                match above_t0(component) {
                    // Paths that turn there, or above.
                    Some(top) => {
                        let there = seen.between(top, top);
                        let above = if matches!(top, Node::T1 { .. }) { seen.above_t1(plane) } else { &[] };
                        found.extend(there.iter().chain(above).filter_map(add));
                    }
                    None => found.extend(seen.of_plane(plane).filter_map(add)),
                }
            }
        }
        found
    }

    /// For how long all of these agents have probed, in nanoseconds.
    pub(crate) fn running_ns(&self, hosts: impl Iterator<Item = u16>) -> u64 {
        hosts.map(|host| self.agents.get(&host).map_or(0, |seen| seen.running_ns)).min().unwrap_or_default()
    }

    /// The links that no agent of the view probes.
    pub fn unprobed(&self, fabric: &Fabric) -> Vec<Link> {
        let paths = self.counts(Window::Fast);
        let probed: BTreeSet<Link> = paths.filter_map(|(path, _)| path.link(fabric)).collect();
        fabric.links().filter(|link| !probed.contains(link)).collect()
    }
}

/// The T1 or T2 switch that a component is, or that a link leads up to.
const fn above_t0(component: Component) -> Option<Node> {
    let (Component::Node(top) | Component::Link((_, top))) = component;
    if matches!(top, Node::T1 { .. } | Node::T2 { .. }) { Some(top) } else { None }
}

fn of(counts: &[Count; Window::ALL.len()], window: Window) -> Count {
    let place = match window {
        Window::Fast => 0,
        Window::Second => 1,
        Window::TenSeconds => 2,
        Window::FiveMinutes => 3,
    };
    counts.get(place).copied().unwrap_or_default()
}
