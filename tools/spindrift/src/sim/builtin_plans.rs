//! The plans that are built into the command.

use super::plan::PlanSource;
use crate::usage::usage;

/// A name and the file of that name.
macro_rules! builtin {
    ($name:literal) => {
        ($name, include_str!(concat!("../../../../configs/sim/", $name, ".toml")))
    };
}

/// Their names, in the order of the paper's figures, and what they say.
const BUILTIN: [(&str, &str); 42] = [
    builtin!("section-4"),
    builtin!("gray-port"),
    builtin!("figure-4"),
    builtin!("figure-5"),
    builtin!("figure-6"),
    builtin!("figure-8"),
    builtin!("figure-9a"),
    builtin!("figure-9b"),
    builtin!("figure-9c"),
    builtin!("figure-9d"),
    builtin!("figure-10"),
    builtin!("figure-11"),
    builtin!("figure-12"),
    builtin!("figure-14"),
    builtin!("figure-15"),
    builtin!("figure-15-hosts"),
    builtin!("table-5-2-1"),
    builtin!("figure-16"),
    builtin!("figure-17"),
    builtin!("figure-18ab"),
    builtin!("figure-18c"),
    builtin!("figure-19a"),
    builtin!("figure-19b"),
    builtin!("figure-19c"),
    builtin!("figure-20"),
    builtin!("figure-21ab"),
    builtin!("figure-22"),
    builtin!("roce-dead-switch"),
    builtin!("lost-plane"),
    builtin!("recovery-path"),
    builtin!("recovery-port"),
    builtin!("dead-nic"),
    builtin!("permutation"),
    builtin!("incast"),
    builtin!("slow-link"),
    builtin!("loss"),
    builtin!("three-tiers"),
    builtin!("dumbbell"),
    builtin!("oversubscribed"),
    builtin!("drop"),
    builtin!("drop-incast"),
    builtin!("ablation"),
];

/// The plan of a name; nothing if no plan has it.
pub(super) fn find(name: &str) -> Option<PlanSource> {
    BUILTIN.iter().find(|(given, _)| *given == name).map(|(name, text)| PlanSource::of_text(name, text))
}

pub(super) fn all() -> Vec<PlanSource> {
    BUILTIN.iter().map(|(name, text)| PlanSource::of_text(name, text)).collect()
}

/// That there is no plan of a name.
pub(super) fn unknown(name: &str) -> anyhow::Error {
    let names: Vec<_> = BUILTIN.iter().map(|(name, _)| *name).collect();
    usage(format!(
        "there is no built-in plan \"{name}\". The built-in plans are {}. The path of a plan file ends with .toml or contains a `/`",
        names.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;
    use std::path::Path;

    use super::super::plan::{PlanFile, SeedChoice};
    use super::*;

    /// All files of the folder, and nothing else, each with what it is after in its first line, and with claims.
    #[test]
    fn the_builtin_plans_are_those_of_the_folder() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/sim");
        let files = fs::read_dir(folder).unwrap().map(|entry| {
            let path = entry.unwrap().path();
            (path.file_stem().unwrap().to_str().unwrap().to_owned(), fs::read_to_string(&path).unwrap())
        });
        let files: BTreeMap<_, _> = files.collect();
        let builtin = BUILTIN.map(|(name, text)| (name.to_owned(), text.to_owned()));
        assert_eq!(files, BTreeMap::from(builtin));
        for source in all() {
            let plan_file = source.read(SeedChoice::default()).unwrap();
            let PlanFile { name, paper, scale, variants, .. } = plan_file;
            assert!(files[&name].starts_with("# "), "{name}");
            assert!(paper.is_some() && scale.is_some(), "{name}");
            assert!(variants.iter().any(|plan| !plan.claims.is_empty()), "{name}");
        }
    }
}
