//! The results of trials, as Markdown.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::catalogue::{KINDS, Tier};
use crate::trial::{Trial, Verdict};

/// The trials of one row.
#[derive(Debug, Default)]
struct Row<'a>(Vec<&'a Trial>);

impl Row<'_> {
    fn count(&self, verdict: Verdict) -> usize {
        self.0.iter().filter(|trial| trial.verdict == verdict).count()
    }

    /// Median, 95th percentile and worst of the times until a fault was named.
    fn times(&self) -> String {
        let mut all: Vec<u64> = self.0.iter().filter_map(|trial| trial.named_ns).collect();
        all.sort_unstable();
        let at = |share: usize| all.get((all.len() * share).div_ceil(100).saturating_sub(1)).copied();
        let Some([median, p95, worst]) = at(50).zip(at(95)).zip(at(100)).map(|((a, b), c)| [a, b, c]) else {
            return "| | ".to_owned();
        };
        format!("{} | {} | {}", time(median), time(p95), time(worst))
    }

    fn cells(&self) -> String {
        let bad = self.count(Verdict::Wrong) + self.count(Verdict::Missed);
        let (right, alike) = (self.count(Verdict::Right), self.count(Verdict::Alike));
        format!("{} | {right} | {alike} | {bad} | {}", self.0.len(), self.times())
    }
}

fn time(ns: u64) -> String {
    let ms = ns as f64 / 1e6;
    if ms < 1_000.0 { format!("{ms:.0} ms") } else { format!("{:.1} s", ms / 1_000.0) }
}

/// A table of single faults with a row for each kind in each tier: how many, how many named right, named with others that no probe tells apart, and
/// not named or wrong; median, 95th percentile and worst of the times until they were named.
pub fn singles(trials: &[Trial]) -> String {
    let mut rows: BTreeMap<(usize, Tier), Row<'_>> = BTreeMap::new();
    for trial in trials {
        let Some(case) = trial.cases.first() else { continue };
        let place = KINDS.iter().position(|&kind| kind == case.kind).unwrap_or(KINDS.len());
        rows.entry((place, Tier::of(case.component))).or_default().0.push(trial);
    }
    let mut text = head("Where | Fault");
    for ((place, tier), row) in rows {
        let kind = KINDS.get(place).map(ToString::to_string).unwrap_or_default();
        let _ = writeln!(text, "| {tier} | {kind} | {} |", row.cells());
    }
    text
}

/// A table with a row for each of these names.
pub fn named(what: &str, rows: &[(String, Vec<Trial>)]) -> String {
    let mut text = head(what);
    for (name, trials) in rows {
        let _ = writeln!(text, "| {name} | {} |", Row(trials.iter().collect()).cells());
    }
    text
}

fn head(what: &str) -> String {
    let columns = what.matches('|').count() + 1;
    format!(
        "| {what} | Trials | Right | Not told apart | Wrong or missed | Median | p95 | Worst |\n|{}{}\n",
        "---|".repeat(columns),
        "--:|".repeat(7)
    )
}
