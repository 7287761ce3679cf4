//! The page about all built-in plans: what the paper shows, the results, and whether the claims hold.

use std::fmt::Write as _;

use super::claim::Finding;

/// A plan and what came of it.
#[derive(Debug)]
pub(super) struct Entry<'a> {
    pub(super) name: &'a str,
    pub(super) title: &'a str,
    pub(super) paper: Option<&'a str>,
    pub(super) scale: Option<&'a str>,
    /// By variant, with its name.
    pub(super) findings: Vec<(&'a str, &'a [Finding])>,
}

/// What stands above all entries.
const HEAD: &str = "\
# Experiments

The figures of the MRC paper, and some of our own, in the [simulated fabric](architecture.md#a-fabric-in-a-process). Plans are in [`configs/sim`](../configs/sim); \
[`spindrift sim`](cli.md#sim) runs one by its name, draws it and writes its tables.

This page is what `spindrift sim all` writes (`results/experiments.md`), with the seeds of the plans: the same on each machine. A test compares it with a fresh run.
";

pub(super) fn page(entries: &[Entry<'_>]) -> String {
    let mut page = HEAD.to_owned();
    for entry in entries {
        let Entry { name, title, paper, scale, findings } = entry;
        let _ = write!(page, "\n## `{name}`\n\n**{title}.**");
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
                let _ =
                    writeln!(page, "| {what} | {claimed} | {} | {} |", finding.measured(), finding.verdict());
            }
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_a_section_for_each_plan_and_a_row_for_each_claim() {
        let finding = |value, why: Option<&str>| Finding {
            what: "it is fast".to_owned(),
            value,
            unit: " Gb/s",
            least: Some(90.0),
            most: None,
            why: why.map(str::to_owned),
        };
        let one = [finding(Some(95.5), None)];
        let two = [finding(Some(80.0), Some("too slow")), finding(None, None)];
        let entry =
            |name, findings| Entry { name, title: "A title", paper: Some("more."), scale: None, findings };
        let page = page(&[entry("a", vec![("", &one)]), entry("b", vec![("x", &one), ("y", &two)])]);
        let tail = page.strip_prefix(HEAD).unwrap();
        assert_eq!(
            tail,
            "\n## `a`\n\n**A title.** Paper: more.\n\n| Claim | Claimed | Measured | |\n|---|---|---|---|\n\
             | it is fast | at least 90 | 95.5 Gb/s | holds |\n\
             \n## `b`\n\n**A title.** Paper: more.\n\n| Variant | Claim | Claimed | Measured | |\n|---|---|---|---|---|\n\
             | x | it is fast | at least 90 | 95.5 Gb/s | holds |\n\
             | y | it is fast | at least 90 | 80 Gb/s | does not hold: too slow |\n\
             | y | it is fast | at least 90 | no data in that time | DOES NOT HOLD |\n"
        );
    }
}
