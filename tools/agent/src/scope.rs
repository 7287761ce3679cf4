//! What is judged at a time: the paths of one plane in one window, but for those that something else explains.
//!
//! A fabric may have half a million paths, of which a fault concerns few. So nothing here, and in the [`Model`](crate::model::Model) made from it,
//! looks at the paths that no suspect is on: they change no finding.

use std::collections::BTreeSet;

use spindrift_srv6::{Fabric, Node};

use crate::locate::crosses;
use crate::model::is_unusual;
use crate::plan::Way;
use crate::{Component, Count, Path, View, Window};

/// See the [module documentation](self).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scope<'a> {
    pub(crate) fabric: &'a Fabric,
    pub(crate) view: &'a View,
    pub(crate) window: Window,
    pub(crate) plane: u8,
    /// Components whose paths are left out.
    pub(crate) hidden: &'a [Component],
}

/// Components that may be at fault, since a path over them has unusual loss.
#[derive(Clone, Debug, Default)]
pub(crate) struct Suspects {
    components: BTreeSet<Component>,
    /// Those of `components` that are switches, by number: of T0, T1 and T2.
    switches: [Vec<bool>; 3],
}

/// The links and switches of a way, from the host up.
pub(crate) fn parts(way: &[Node]) -> impl Iterator<Item = Component> + '_ {
    way.windows(2)
        .flat_map(|pair| {
            let &[lower, upper] = pair else { return [None, None] };
            [Some(Component::Link((lower.min(upper), lower.max(upper)))), Some(Component::Node(upper))]
        })
        .flatten()
}

/// The tier of a switch and its number in the plane.
pub(crate) fn switch_place(node: Node) -> Option<(usize, usize)> {
    match node {
        Node::Host(_) => None,
        Node::T0 { number, .. } => Some((0, number.into())),
        Node::T1 { number, .. } => Some((1, number.into())),
        Node::T2 { number, .. } => Some((2, number.into())),
    }
}

impl Suspects {
    fn add(&mut self, component: Component) {
        self.components.insert(component);
        let Component::Node(node) = component else { return };
        let Some((tier, number)) = switch_place(node) else { return };
        if let Some(numbers) = self.switches.get_mut(tier) {
            numbers.resize(numbers.len().max(number + 1), false);
            numbers[number] = true;
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.components.is_empty()
    }

    /// Whether a switch of the plane is one.
    pub(crate) fn has_switch(&self, node: Node) -> bool {
        let numbers = switch_place(node).and_then(|(tier, number)| self.switches.get(tier)?.get(number));
        numbers.copied().unwrap_or_default()
    }

    /// Whether a component is one. A link is one only if the switches at its ends are.
    pub(crate) fn has(&self, component: Component) -> bool {
        match component {
            Component::Node(node) => self.has_switch(node),
            Component::Link((_, upper)) => self.has_switch(upper) && self.components.contains(&component),
        }
    }
}

impl<'a> Scope<'a> {
    /// Whether a path counts: it has probes, the fabric has it, and nothing hides it.
    fn counts(&self, path: Path, count: Count) -> Option<Way> {
        let way = if count.sent > 0 { path.way(self.fabric) } else { None };
        way.filter(|_| !self.hidden.iter().any(|&component| crosses(self.fabric, path, component)))
    }

    /// What is on the paths that lost more than this noise.
    pub(crate) fn suspects(&self, noise: f64) -> Suspects {
        let mut suspects = Suspects::default();
        for (path, count) in self.view.lossy(self.plane, self.window) {
            if is_unusual(count, noise)
                && let Some(way) = self.counts(path, count)
            {
                parts(way.nodes()).for_each(|part| suspects.add(part));
            }
        }
        suspects
    }

    /// The paths over suspects, by host and then by where they turn.
    pub(crate) fn over(&self, suspects: &'a Suspects) -> impl Iterator<Item = (Path, Count, Way)> + 'a {
        let scope = *self;
        let hosts = scope.view.hosts().flat_map(move |host| scope.of_agent(host));
        hosts.filter(|(_, _, way)| way.nodes().iter().any(|&node| suspects.has_switch(node)))
    }

    /// The paths of an agent, by where they turn.
    pub(crate) fn of_agent(&self, host: u16) -> impl Iterator<Item = (Path, Count, Way)> + use<'a> {
        let scope = *self;
        let paths = scope.view.of_agent(host, scope.plane, scope.window);
        paths.filter_map(move |(path, count)| Some((path, count, scope.counts(path, count)?)))
    }
}

#[cfg(test)]
mod tests {
    use rand_xoshiro::Xoshiro256PlusPlus;
    use rand_xoshiro::rand_core::{Rng as _, SeedableRng};
    use spindrift_srv6::{FabricHost, Shape};

    use super::*;
    use crate::model::Model;
    use crate::{PathReport, Plan, Report, SharePolicy};

    /// A fabric of a random kind, and reports in which a few paths have lost a few probes, or all.
    fn random(seed: u64) -> (Fabric, View) {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let kinds = [(2, 1, 0, 1, 0, 3), (2, 2, 0, 1, 0, 2), (2, 3, 4, 1, 0, 2), (2, 4, 2, 2, 2, 2)];
        let (planes, t0, t1, pods, t2, hosts) = kinds[(rng.next_u64() % 4) as usize];
        let shape = Shape { planes, t0, t1, pods, t2, ..Shape::default() };
        let host = |t0, downlink| FabricHost { name: format!("h{t0}-{downlink}"), t0, downlink };
        let all = (0..t0).flat_map(|t0| (0..hosts).map(move |at| host(t0, at)));
        let fabric = Fabric::new(shape, all.collect()).unwrap();
        let mut report = |host| {
            let plan = Plan::new(&fabric, host, None, SharePolicy::default()).unwrap();
            let mut paths: Vec<_> = plan.routes().map(|route| route.path.top).collect();
            // What another topology had.
            paths.extend([Node::T1 { plane: 0, number: 400 }, Node::T0 { plane: 9, number: 0 }]);
            let mut count = || {
                let sent = [0, 1_000, 1_000, 1_000][(rng.next_u64() % 4) as usize];
                let lost = [0, 0, 0, 0, 0, 1, 30, 1_000][(rng.next_u64() % 8) as usize];
                Count { sent, lost }
            };
            let paths = paths.into_iter().map(|top| PathReport { top, counts: Window::ALL.map(|_| count()) });
            Report { host, running_ns: 0, paths: paths.collect() }
        };
        let reports: Vec<Report> =
            (0..fabric.hosts().len() as u16).filter(|host| host % 5 != 4).map(&mut report).collect();
        let view = View::new(&reports);
        (fabric, view)
    }

    /// Each component is on the paths that cross it, whatever is looked up to find them.
    #[test]
    fn the_paths_over_a_component_are_those_that_cross_it() {
        for seed in 0..40 {
            let (fabric, view) = random(seed);
            for component in fabric.links().map(Component::Link).chain(fabric.nodes().map(Component::Node)) {
                let all = view.counts(Window::Second);
                let expected: Vec<_> = all.filter(|&(path, _)| crosses(&fabric, path, component)).collect();
                let mut found = view.over(&fabric, component, Window::Second);
                found.sort_by_key(|&(path, _)| path);
                assert_eq!(found, expected, "seed {seed}: {component:?}");
            }
        }
    }

    /// What is left out concerns no suspect: neither its paths, nor what they have lost.
    #[test]
    fn a_scope_has_all_paths_of_all_suspects() {
        let mut some = 0;
        for seed in 0..60 {
            let (fabric, view) = random(seed);
            let t0 = Node::T0 { plane: 1, number: 0 };
            let hidden = if seed % 3 == 0 { vec![Component::Node(t0)] } else { Vec::new() };
            let scope =
                Scope { fabric: &fabric, view: &view, window: Window::Second, plane: 1, hidden: &hidden };
            let is_seen = |path: Path, count: Count| {
                let is_hidden = hidden.iter().any(|&component| crosses(&fabric, path, component));
                count.sent > 0 && path.plane() == Some(1) && path.way_up(&fabric).is_some() && !is_hidden
            };
            let all: Vec<_> =
                view.counts(Window::Second).filter(|&(path, count)| is_seen(path, count)).collect();
            let suspects = scope.suspects(1e-4);
            let over: Vec<_> = scope.over(&suspects).map(|(path, count, _)| (path, count)).collect();
            assert!(over.iter().all(|path| all.contains(path)), "seed {seed}");
            let links = fabric.links().filter(|(_, upper)| upper.plane() == Some(1)).map(Component::Link);
            let nodes = fabric.nodes().filter(|node| node.plane() == Some(1)).map(Component::Node);
            for component in links.chain(nodes) {
                let paths: Vec<_> =
                    all.iter().filter(|(path, _)| crosses(&fabric, *path, component)).collect();
                let is_suspect = paths.iter().any(|(_, count)| is_unusual(*count, 1e-4));
                assert_eq!(suspects.has(component), is_suspect, "seed {seed}: {component:?}");
                assert!(!is_suspect || paths.into_iter().all(|path| over.contains(path)), "seed {seed}");
                some += usize::from(is_suspect);
            }
            Model::new(&scope, &suspects, 1e-4, 14.0).check_against_all_paths();
        }
        assert!(some > 300, "{some}");
    }
}
