//! The reports of all agents together.

use std::collections::{BTreeMap, BTreeSet};

use spindrift_srv6::{Fabric, Link, Node};

use crate::{Count, Path, Report, Window};

/// The counts of all agents that report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    agents: BTreeMap<u16, Seen>,
}

/// What one agent reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Seen {
    running_ns: u64,
    /// By where the paths turn.
    counts: BTreeMap<Node, [Count; Window::ALL.len()]>,
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
        let possible = |count: Count| Count { lost: count.lost.min(count.sent), ..count };
        let counts = report.paths.iter().map(|path| (path.top, path.counts.map(possible))).collect();
        self.agents.insert(report.host, Seen { running_ns: report.running_ns, counts });
    }

    /// Removes the report of an agent, which is too old or belongs to an agent that is gone.
    pub fn remove(&mut self, host: u16) {
        self.agents.remove(&host);
    }

    /// The paths, and their counts in a window.
    pub fn counts(&self, window: Window) -> impl Iterator<Item = (Path, Count)> + '_ {
        self.agents.iter().flat_map(move |(&host, seen)| {
            seen.counts.iter().map(move |(&top, counts)| (Path { host, top }, of(counts, window)))
        })
    }

    /// The count of a path in a window.
    pub fn count(&self, path: Path, window: Window) -> Count {
        let counts = self.agents.get(&path.host).and_then(|seen| seen.counts.get(&path.top));
        counts.map_or_else(Count::default, |counts| of(counts, window))
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

fn of(counts: &[Count; Window::ALL.len()], window: Window) -> Count {
    let place = match window {
        Window::Fast => 0,
        Window::Second => 1,
        Window::TenSeconds => 2,
        Window::FiveMinutes => 3,
    };
    counts.get(place).copied().unwrap_or_default()
}
