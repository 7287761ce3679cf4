//! The page about all built-in plans: what the paper shows, the results, and whether the claims hold.

use std::fmt::Write as _;

use super::batch::Played;
use super::finding::Finding;
use super::plan::PlanFile;

/// What stands above all plans.
const HEAD: &str = "\
# Experiments

The figures of the MRC paper, and some of our own, in the [simulated fabric](architecture.md#a-fabric-in-a-process). Plans are in [`configs/sim`](../configs/sim); \
[`spindrift sim`](cli.md#sim) runs one by its name, draws it and writes its tables.
";

/// What stands above them with one seed.
const ONE_SEED: &str = "
This page is what `spindrift sim all` writes (`results/experiments.md`), with the seeds of the plans: the same on each machine.
";

pub(super) fn page(played: &[Played], seeds: u64) -> String {
    let mut page = head(seeds);
    for Played { plan_file, outcomes, findings, .. } in played {
        let variants = outcomes.iter().map(|outcome| outcome.plan.variant.as_str());
        page += &section(plan_file, &variants.zip(findings.iter().map(Vec::as_slice)).collect::<Vec<_>>());
    }
    page
}

fn head(seeds: u64) -> String {
    if seeds == 1 {
        return format!("{HEAD}{ONE_SEED}");
    }
    format!(
        "{HEAD}
This page is what `spindrift sim all --seeds {seeds}` writes (`results/experiments.md`), the same on each machine. Each plan is run with {seeds} seeds, its own and \
those that follow it. A claim holds if it does with each of them. Measured are the median and, in brackets, the least and the most; without these, all seeds gave the \
same. Where a claim does not hold, the seeds are named, or the reason is given.
"
    )
}

/// A plan, and its findings by variant, with the names of these.
fn section(plan_file: &PlanFile, findings: &[(&str, &[Finding])]) -> String {
    let PlanFile { name, title, paper, scale, .. } = plan_file;
    let mut page = format!("\n## `{name}`\n\n**{title}.**");
    for (label, text) in [("Paper", paper), ("Here", scale)] {
        if let Some(text) = text {
            let _ = write!(page, " {label}: {text}");
        }
    }
    let named = findings.iter().any(|(variant, _)| !variant.is_empty());
    let (head, line) = if named { ("| Variant ", "|---") } else { ("", "") };
    let _ = writeln!(page, "\n\n{head}| Claim | Claimed | Measured | |\n{line}|---|---|---|---|");
    for (variant, findings) in findings {
        for finding in *findings {
            if named {
                let _ = write!(page, "| {variant} ");
            }
            let (what, claimed) = (&finding.what, finding.claimed());
            let _ = writeln!(page, "| {what} | {claimed} | {} | {} |", finding.measured(), finding.verdict());
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use super::super::finding::Measured;
    use super::super::plan::FigureKind;
    use super::*;

    fn finding(values: &[Option<f64>], why: Option<&str>) -> Finding {
        Finding {
            what: "it is fast".to_owned(),
            measured: (3..).zip(values).map(|(seed, &value)| Measured { seed, value }).collect(),
            unit: " Gb/s",
            least: Some(90.0),
            most: None,
            why: why.map(str::to_owned),
        }
    }

    fn plan_file(name: &str) -> PlanFile {
        PlanFile {
            name: name.to_owned(),
            title: "A title".to_owned(),
            figure: FigureKind::Time,
            paper: Some("more.".to_owned()),
            scale: None,
            variants: Vec::new(),
        }
    }

    #[test]
    fn a_section_has_a_row_for_each_claim() {
        let one = [finding(&[Some(95.5)], None)];
        let two = [finding(&[Some(80.0)], Some("too slow")), finding(&[None], None)];
        assert_eq!(
            section(&plan_file("a"), &[("", &one)]),
            "\n## `a`\n\n**A title.** Paper: more.\n\n| Claim | Claimed | Measured | |\n|---|---|---|---|\n\
             | it is fast | at least 90 | 95.5 Gb/s | holds |\n"
        );
        assert_eq!(
            section(&plan_file("b"), &[("x", &one), ("y", &two)]),
            "\n## `b`\n\n**A title.** Paper: more.\n\n| Variant | Claim | Claimed | Measured | |\n|---|---|---|---|---|\n\
             | x | it is fast | at least 90 | 95.5 Gb/s | holds |\n\
             | y | it is fast | at least 90 | 80 Gb/s | does not hold: too slow |\n\
             | y | it is fast | at least 90 | no data in that time | DOES NOT HOLD |\n"
        );
    }

    #[test]
    fn the_head_says_how_many_seeds_there_are() {
        assert!(head(1).contains("`spindrift sim all`") && !head(1).contains("--seeds"));
        assert!(head(7).contains("`spindrift sim all --seeds 7`") && head(7).contains("with 7 seeds"));
    }
}
