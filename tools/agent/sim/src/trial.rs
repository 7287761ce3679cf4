//! One fault, or two, happen in a fabric that is watched: what was named, and after which time.

use spindrift_agent::{Change, Component, Path};
use spindrift_fabric::{Fault, Messenger};

use crate::catalogue::Case;
use crate::watch::{Crossings, Watched};

/// How well faults were named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// By exactly the components at fault; or by nothing, where no probe is lost.
    Right,
    /// By a set of components, one of which it is, and which the same probes cross.
    Alike,
    /// By nothing, though probes are lost.
    Missed,
    /// By something else, or something else was named as well.
    Wrong,
}

/// What came of a fault.
#[derive(Clone, Debug, PartialEq)]
pub struct Trial {
    /// The faults: one or two.
    pub cases: Vec<Case>,
    /// How well they were named.
    pub verdict: Verdict,
    /// From the fault until it was named, in nanoseconds.
    pub named_ns: Option<u64>,
    /// From the end of the fault until nothing was named, in nanoseconds.
    pub healed_ns: Option<u64>,
    /// What was named, in words.
    pub words: String,
}

/// How long a trial waits for what is to be named.
const HARD_NS: u64 = 1_000_000_000;
const GRAY_NS: u64 = 15_000_000_000;
/// How long it watches a fault that nothing is to be named for.
const NOTHING_NS: u64 = 2_000_000_000;
/// How long what was named must stay.
const STAYS_NS: u64 = 100_000_000;
/// How long a trial waits until nothing is named any more after the end of a fault.
const HEALS_NS: u64 = 15_000_000_000;

/// Lets the faults of scripts happen while a fabric goes on.
struct Script {
    steps: Vec<(u64, Fault)>,
    next: usize,
}

impl Script {
    fn new<T: Messenger>(watched: &Watched<T>, cases: &[Case]) -> Self {
        let start_ns = watched.now_ns();
        let of = |case: &Case| case.script(watched.clos());
        let mut steps: Vec<_> =
            cases.iter().flat_map(of).map(|(after_ns, fault)| (start_ns + after_ns, fault)).collect();
        steps.sort_by_key(|&(at_ns, _)| at_ns);
        Self { steps, next: 0 }
    }

    /// Runs `watched` as [`Watched::run`] does, with the faults that are due.
    fn run<T: Messenger>(
        &mut self,
        watched: &mut Watched<T>,
        until_ns: u64,
        mut done: impl FnMut(&Watched<T>) -> bool,
    ) -> bool {
        loop {
            while let Some((_, fault)) = self.steps.get(self.next).filter(|step| step.0 <= watched.now_ns()) {
                watched.apply(fault);
                self.next += 1;
            }
            let next_ns = self.steps.get(self.next).map_or(u64::MAX, |step| step.0);
            if watched.run(until_ns.min(next_ns), &mut done) {
                return true;
            }
            if watched.now_ns() >= until_ns {
                return false;
            }
        }
    }
}

/// What was named between two changes of a log, the same set once.
fn opened<T: Messenger>(watched: &Watched<T>) -> Vec<Vec<Component>> {
    let opened = watched.changes().iter().filter_map(|(_, change)| match change {
        Change::Opened(finding) => Some(finding.components.clone()),
        Change::Closed(_) => None,
    });
    let mut all: Vec<_> = opened.collect();
    all.sort();
    all.dedup();
    all
}

/// Lets one fault happen, and ends it when it was named. Nothing must be wrong with the fabric before.
pub fn single<T: Messenger>(watched: &mut Watched<T>, case: Case) -> Trial {
    let crossings = watched.crossings();
    let is_visible = case.is_visible(&watched.settings().agent.locate);
    let expected = if is_visible { crossings.alike(case.component, &[]) } else { Vec::new() };
    let limit_ns = match (expected.is_empty(), case.kind.is_hard()) {
        (true, _) => NOTHING_NS,
        (false, true) => HARD_NS,
        (false, false) => GRAY_NS,
    };
    watched.clear_changes();
    let start_ns = watched.now_ns();
    let mut script = Script::new(watched, &[case]);
    let is_named = |watched: &Watched<T>| watched.named().iter().any(|named| *named == expected);
    let found = script.run(watched, start_ns + limit_ns, is_named);
    let named_ns = found.then(|| watched.now_ns() - start_ns);
    if found {
        let stays_ns = watched.now_ns() + STAYS_NS;
        script.run(watched, stays_ns, |_| false);
    }
    watched.heal();
    let healed_ns = heal(watched);
    let named = opened(watched);
    let verdict = match &named[..] {
        [] if expected.is_empty() => Verdict::Right,
        [] => Verdict::Missed,
        [one] if *one == expected && healed_ns.is_some() => {
            if one.len() == 1 {
                Verdict::Right
            } else {
                Verdict::Alike
            }
        }
        _ => Verdict::Wrong,
    };
    Trial { cases: vec![case], verdict, named_ns, healed_ns, words: watched.words() }
}

/// Waits until nothing is named any more, and a little longer.
fn heal<T: Messenger>(watched: &mut Watched<T>) -> Option<u64> {
    let start_ns = watched.now_ns();
    let healed =
        watched.named().is_empty() || watched.run(start_ns + HEALS_NS, |watched| watched.named().is_empty());
    let healed_ns = watched.now_ns() - start_ns;
    watched.run(start_ns + healed_ns + STAYS_NS, |_| false);
    healed.then_some(healed_ns)
}

/// Lets two faults happen at the same time, for 0.5 s if all packets are lost, otherwise for 12 s. The verdict is the best that was reached in this time; but
/// wrong if anything was named that explains neither of them.
pub fn pair<T: Messenger>(watched: &mut Watched<T>, cases: [Case; 2]) -> Trial {
    const HARD_PAIR_NS: u64 = 500_000_000;
    const GRAY_PAIR_NS: u64 = 12_000_000_000;
    let crossings = watched.crossings();
    watched.clear_changes();
    let start_ns = watched.now_ns();
    let are_hard = cases.iter().all(|case| case.kind.is_hard());
    let end_ns = start_ns + if are_hard { HARD_PAIR_NS } else { GRAY_PAIR_NS };
    let mut script = Script::new(watched, &cases);
    let (mut best, mut named_ns) = (Verdict::Missed, None);
    script.run(watched, end_ns, |watched| {
        let verdict = of_pair(&crossings, cases, (&opened(watched), &watched.named()));
        if verdict < Verdict::Missed {
            named_ns = named_ns.or(Some(watched.now_ns() - start_ns));
        }
        best = best.min(verdict);
        false
    });
    watched.heal();
    let healed_ns = heal(watched);
    let is_wrong = opened(watched).iter().any(|set| !explains_some(&crossings, cases, set));
    let verdict = if is_wrong || healed_ns.is_none() { Verdict::Wrong } else { best };
    Trial { cases: cases.to_vec(), verdict, named_ns, healed_ns, words: watched.words() }
}

/// Whether one of these components is at fault, or loses everything because of the faults.
fn explains_some(crossings: &Crossings, cases: [Case; 2], set: &[Component]) -> bool {
    let is_one = |component: &Component| cases.iter().any(|case| case.component == *component);
    set.iter().any(is_one) || set.iter().any(|&component| is_dark(crossings, cases, component))
}

/// The paths that lose everything, in order.
fn dark_paths(crossings: &Crossings, cases: [Case; 2]) -> Vec<Path> {
    let hard = cases.iter().filter(|case| case.kind.is_hard());
    sorted(hard.flat_map(|case| crossings.paths(case.component)).copied().collect())
}

fn sorted(mut paths: Vec<Path>) -> Vec<Path> {
    paths.sort_unstable();
    paths.dedup();
    paths
}

/// Whether all paths over a component lose everything.
fn is_dark(crossings: &Crossings, cases: [Case; 2], component: Component) -> bool {
    let (dark, paths) = (dark_paths(crossings, cases), crossings.paths(component));
    !paths.is_empty() && paths.iter().all(|path| dark.binary_search(path).is_ok())
}

/// How well two faults are named by the sets that were named so far, and by those that are named now.
///
/// A component that loses all packets hides what else is wrong with the paths over it. So each fault has to be named as it would be alone, or, with
/// the hidden paths left out, with the others that nothing tells it apart from. [`Verdict::Missed`] for all else.
fn of_pair(
    crossings: &Crossings,
    cases: [Case; 2],
    (opened, named): (&[Vec<Component>], &[&[Component]]),
) -> Verdict {
    let of = cases.map(|case| crossings.paths(case.component));
    let hidden = |at: usize| if cases[1 - at].kind.is_hard() { of[1 - at] } else { &[] };
    let in_full = [0, 1].map(|at| crossings.alike(cases[at].component, &[]));
    let in_part = [0, 1].map(|at| crossings.alike(cases[at].component, hidden(at)));
    // Of two that hide each other, the same is named for both.
    let is_shown = |at: &usize| !in_part[*at].is_empty() || *at == 0 && of[0] == of[1];
    let mut shown = [0, 1].into_iter().filter(is_shown);
    let fits = |set: &[Component], at: usize| {
        set.contains(&cases[at].component) && set.iter().all(|component| in_part[at].contains(component))
    };
    let is_exact = |at: usize| opened.contains(&in_full[at]);
    if shown.clone().all(is_exact) && opened.len() <= 2 {
        return Verdict::Right;
    }
    let is_alike = shown.all(|at| is_exact(at) || opened.iter().any(|set| fits(set, at)));
    if is_alike || is_as_good(crossings, cases, named) { Verdict::Alike } else { Verdict::Missed }
}

/// Whether components that lose everything are named which, not more of them than there are, explain each loss that the faults cause: no probe
/// can tell.
fn is_as_good(crossings: &Crossings, cases: [Case; 2], named: &[&[Component]]) -> bool {
    if named.is_empty() || named.len() > 2 || !cases.iter().all(|case| case.kind.is_hard()) {
        return false;
    }
    let is_dark = |component: &Component| is_dark(crossings, cases, *component);
    let explained = named.iter().copied().flatten().filter(|component| is_dark(component));
    let explained = sorted(explained.flat_map(|component| crossings.paths(*component)).copied().collect());
    named.iter().all(|set| set.iter().any(is_dark)) && explained == dark_paths(crossings, cases)
}
