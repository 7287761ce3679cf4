//! Holds the house together: the core stays pure, `unsafe` stays in its places, arrows point downward,
//! links in the documents lead somewhere. `docs/architecture.md` tells why.

#![allow(clippy::expect_used, clippy::panic, reason = "helpers of tests")]

mod rules;
mod samples;
mod source;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use rules::{File, Finding};
use source::{Module, Source};

struct Text {
    path: String,
    text: String,
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// All files below `folder` with the given extension, in order of their paths.
fn files(folder: &str, extension: &str) -> Vec<Text> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(dir) = folders.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            let path = entry.path();
            let name = entry.file_name().to_string_lossy().into_owned();
            if path.is_dir() && name != "target" && !name.starts_with('.') {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == extension) {
                found.push(text_of(&path));
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

fn text_of(path: &Path) -> Text {
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("cannot read {}: {e}", path.display()));
    let below = path.strip_prefix(root()).unwrap_or(path);
    Text { path: below.to_string_lossy().into_owned(), text }
}

/// `src/memory/view.rs` is the module `memory::view`, `src/memory/mod.rs` and `src/memory.rs` are `memory`.
fn module_of(path: &str) -> Module {
    let below = path.split_once("src/").map_or(path, |(_, below)| below);
    let mut module: Module = below.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    if matches!(module.last().map(String::as_str), Some("mod" | "lib" | "main")) {
        module.pop();
    }
    module
}

/// Applies `check` to each file of a crate, with the reading of the crate's root file.
fn check_crate(texts: &[Text], check: impl Fn(&File<'_>, &Source) -> Vec<Finding>) -> Vec<Finding> {
    let read: Vec<(Module, Source)> = texts
        .iter()
        .map(|t| {
            let module = module_of(&t.path);
            let source = source::read(&module, &t.text).unwrap_or_else(|e| panic!("{}: {e}", t.path));
            (module, source)
        })
        .collect();
    let tests: Vec<&Module> = read.iter().flat_map(|(_, s)| &s.test_modules).collect();
    let nothing = Source::default();
    let roof = read.iter().find(|(module, _)| module.is_empty()).map_or(&nothing, |(_, source)| source);
    texts
        .iter()
        .zip(&read)
        .flat_map(|(text, (module, source))| {
            let is_test = tests.iter().any(|t| module.starts_with(t));
            check(&File { path: &text.path, module, source, is_test }, roof)
        })
        .collect()
}

#[track_caller]
fn assert_none(findings: &[Finding]) {
    let lines: Vec<String> = findings.iter().map(ToString::to_string).collect();
    assert!(lines.is_empty(), "{} finding(s):\n{}\n", lines.len(), lines.join("\n"));
}

#[test]
fn the_core_is_pure() {
    for folder in [
        "src",
        "srv6/src",
        "pmd/wire/src",
        "tools/fabric/src",
        "tools/roce/src",
        "tools/agent/src",
        "tools/agent/sim/src",
    ] {
        let texts = files(folder, "rs");
        assert!(!texts.is_empty(), "no Rust file under {folder}");
        assert_none(&check_crate(&texts, |file, _| rules::purity(file)));
    }
}

#[test]
fn unsafe_stays_in_its_places() {
    for folder in [
        "src",
        "srv6/src",
        "srv6/switch/src",
        "pmd/src",
        "pmd/memory/src",
        "pmd/wire/src",
        "pmd/bpf/src",
        "pmd/af_xdp/src",
        "pmd/dpdk-sys/src",
        "pmd/dpdk/src",
        "tools/fabric/src",
        "tools/roce/src",
        "tools/agent/src",
        "tools/agent/sim/src",
        "tools/agentd/src",
        "tools/capi/src",
        "tools/programs/src",
        "tools/spindrift/src",
    ] {
        assert_none(&check_crate(&files(folder, "rs"), |file, _| rules::unsafe_code(file)));
    }
}

#[test]
fn arrows_point_downward() {
    assert_none(&check_crate(&files("src", "rs"), rules::arrows));
}

#[test]
fn crates_know_only_what_stands_below_them() {
    for folder in ["src", "pmd", "srv6"] {
        assert_none(&check_crate(&files(folder, "rs"), |file, _| rules::neighbours(file)));
    }
    for (path, above) in [
        ("Cargo.toml", &["spindrift-cli", "spindrift-fabric", "spindrift-roce"][..]),
        ("tools/fabric/Cargo.toml", &["spindrift-cli", "spindrift-roce"]),
        ("pmd/Cargo.toml", &["spindrift", "spindrift-cli", "spindrift-fabric"]),
        (
            "pmd/memory/Cargo.toml",
            &["spindrift", "spindrift-cli", "spindrift-fabric", "spindrift-pmd", "spindrift-wire"],
        ),
        ("pmd/wire/Cargo.toml", &["spindrift", "spindrift-cli", "spindrift-fabric", "spindrift-pmd"]),
        ("pmd/bpf/Cargo.toml", &["spindrift", "spindrift-cli", "spindrift-fabric", "spindrift-switch"]),
        ("pmd/af_xdp/Cargo.toml", &["spindrift", "spindrift-cli", "spindrift-fabric", "spindrift-switch"]),
        ("pmd/dpdk-sys/Cargo.toml", &["spindrift", "spindrift-cli", "spindrift-fabric", "spindrift-pmd"]),
        ("pmd/dpdk/Cargo.toml", &["spindrift", "spindrift-cli", "spindrift-fabric", "spindrift-switch"]),
        ("srv6/Cargo.toml", &["spindrift", "spindrift-cli", "spindrift-fabric"]),
        ("srv6/switch/Cargo.toml", &["spindrift", "spindrift-cli", "spindrift-fabric"]),
    ] {
        let manifest = text_of(&root().join(path));
        assert_none(&rules::manifest(path, &manifest.text, above));
    }
}

/// The default build compiles no C.
#[test]
fn drivers_that_link_c_are_asked_for() {
    let workspace = text_of(&root().join("Cargo.toml")).text;
    let members = workspace.lines().find(|line| line.starts_with("default-members")).unwrap();
    assert!(!["af_xdp", "dpdk"].iter().any(|driver| members.contains(driver)), "{members}");
    let command = text_of(&root().join("tools/spindrift/Cargo.toml")).text;
    let port = command.lines().find(|line| line.starts_with("spindrift-af-xdp")).unwrap();
    assert!(port.contains("optional = true"), "{port}");
    assert!(!command.lines().any(|line| line.starts_with("default =")), "features are off by default");
}

#[test]
fn files_have_one_subject() {
    for folder in ["src", "pmd", "srv6", "tools", "tests", "benches"] {
        let long: Vec<Finding> =
            files(folder, "rs").iter().filter_map(|t| rules::length(&t.path, &t.text)).collect();
        assert_none(&long);
    }
}

#[test]
fn every_test_is_run() {
    for folder in ["src", "pmd", "srv6", "tools", "tests"] {
        for file in files(folder, "rs") {
            assert_none(&rules::left_out(&file.path, &file.text));
        }
    }
    let slow = text_of(&root().join("tools/check-all.sh")).text;
    assert!(
        slow.contains("--workspace") && slow.contains("-- --ignored"),
        "tools/check-all.sh runs slow tests"
    );
    let ci = text_of(&root().join(".ci/run")).text;
    assert!(["tools/test.sh", "tools/check-all.sh"].iter().all(|script| ci.contains(script)), "{ci}");
}

#[test]
fn the_floors_are_drawn() {
    let drawing = text_of(&root().join("docs/architecture.md")).text;
    for module in rules::FLOORS.iter().copied().flatten() {
        let named = drawing.contains(&format!("`{module}`"));
        assert!(
            named,
            "docs/architecture.md does not name `{module}`: tell what it does and where it stands"
        );
    }
}

#[test]
fn links_in_documents_lead_somewhere() {
    let mut documents = files("docs", "md");
    documents.push(text_of(&root().join("README.md")));
    assert!(documents.len() > 1, "no documents under docs/");
    for document in &documents {
        let path = root().join(&document.path);
        let folder = path.parent().expect("a document is in a folder");
        for (line, link) in rules::relative_links(&document.text) {
            assert!(folder.join(&link).exists(), "{}:{line}: the link `{link}` leads nowhere", document.path);
        }
    }
}

/// Those of `docs/protocol.md` that no test can check: nothing is sent, or it is not there yet.
const UNTESTED_DECISIONS: [u32; 2] = [10, 19];

#[test]
fn tests_name_the_decisions_that_they_check() {
    let document = text_of(&root().join("docs/protocol.md")).text;
    let decisions: BTreeSet<u32> = document
        .lines()
        .filter_map(|line| line.strip_prefix("## ")?.split_once('.')?.0.parse().ok())
        .collect();
    assert!(decisions.len() > 20, "{decisions:?}");
    let mut named = BTreeSet::new();
    for file in
        ["tests", "src", "pmd/wire", "tools/exchange"].into_iter().flat_map(|folder| files(folder, "rs"))
    {
        for (line, number) in rules::decisions(&file.text) {
            assert!(decisions.contains(&number), "{}:{line}: there is no decision {number}", file.path);
            named.insert(number);
        }
    }
    let unnamed: Vec<_> = decisions.difference(&named).filter(|n| !UNTESTED_DECISIONS.contains(n)).collect();
    assert!(unnamed.is_empty(), "no test names these decisions of docs/protocol.md: {unnamed:?}");
}

#[test]
fn settings_in_the_protocol_document_exist() {
    let code: String =
        ["src", "pmd/wire/src"].into_iter().flat_map(|folder| files(folder, "rs")).map(|t| t.text).collect();
    let settings = rules::settings(&text_of(&root().join("docs/protocol.md")).text);
    assert!(settings.len() > 5, "docs/protocol.md names hardly any setting: {settings:?}");
    for (line, name) in settings {
        let found = code.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == name);
        assert!(found, "docs/protocol.md:{line}: the code has no setting `{name}`");
    }
}
