//! Plans that come with the program.

use anyhow::Result;

use super::plan::Experiment;
use crate::toml_file::TomlFile;
use crate::usage::usage;

/// A name and the file of that name.
macro_rules! given {
    ($name:literal) => {
        ($name, include_str!(concat!("../../../../configs/experiments/fabric/", $name, ".toml")))
    };
}

/// Their names, in the order of the paper's figures, and what they say.
const GIVEN: [(&str, &str); 31] = [
    given!("section-4"),
    given!("figure-4"),
    given!("figure-6"),
    given!("figure-8"),
    given!("figure-9a"),
    given!("figure-9b"),
    given!("figure-9c"),
    given!("figure-9d"),
    given!("figure-10"),
    given!("figure-11"),
    given!("figure-12"),
    given!("figure-14"),
    given!("figure-15"),
    given!("figure-15-hosts"),
    given!("table-5-2-1"),
    given!("figure-18c"),
    given!("figure-19a"),
    given!("figure-19b"),
    given!("figure-19c"),
    given!("recovery-path"),
    given!("recovery-port"),
    given!("permutation"),
    given!("incast"),
    given!("slow-link"),
    given!("loss"),
    given!("three-tiers"),
    given!("dumbbell"),
    given!("oversubscribed"),
    given!("drop"),
    given!("drop-incast"),
    given!("ablation"),
];

/// The plan of a name; nothing if no plan has it.
pub(super) fn find(name: &str, seed: Option<u64>) -> Option<Result<Experiment>> {
    GIVEN.iter().find(|(given, _)| *given == name).map(|(name, text)| read(name, text, seed))
}

pub(super) fn all(seed: Option<u64>) -> Result<Vec<Experiment>> {
    GIVEN.iter().map(|(name, text)| read(name, text, seed)).collect()
}

/// That there is no plan of a name.
pub(super) fn unknown(name: &str) -> anyhow::Error {
    let names: Vec<_> = GIVEN.iter().map(|(name, _)| *name).collect();
    usage(format!(
        "there is no plan \"{name}\"; there are {}. A file has a name that ends with .toml, or a folder before it",
        names.join(", ")
    ))
}

fn read(name: &str, text: &str, seed: Option<u64>) -> Result<Experiment> {
    Experiment::from_file(name.to_owned(), &TomlFile::of(format!("{name}.toml"), text), "".as_ref(), seed)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;
    use std::path::Path;

    use super::*;

    /// All files of the folder, and nothing else, each with what it is after in its first line, and with claims.
    #[test]
    fn the_given_plans_are_those_of_the_folder() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/experiments/fabric");
        let files = fs::read_dir(folder).unwrap().map(|entry| {
            let path = entry.unwrap().path();
            (path.file_stem().unwrap().to_str().unwrap().to_owned(), fs::read_to_string(&path).unwrap())
        });
        let files: BTreeMap<_, _> = files.collect();
        let given = GIVEN.map(|(name, text)| (name.to_owned(), text.to_owned()));
        assert_eq!(files, BTreeMap::from(given));
        for experiment in all(None).unwrap() {
            let Experiment { name, paper, scale, variants, .. } = experiment;
            assert!(files[&name].starts_with("# "), "{name}");
            assert!(paper.is_some() && scale.is_some(), "{name}");
            assert!(variants.iter().any(|plan| !plan.claims.is_empty()), "{name}");
        }
    }
}
