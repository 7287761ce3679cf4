//! The rules on samples: each bad one must be found, at its line, and the good ones must pass. A check
//! that cannot fail is a defect.

use crate::rules::{self, File, Finding};
use crate::source::{self, Source};
use crate::{Text, check_crate, module_of};

const LIB: &str = "pub mod endpoint; pub mod path; pub mod memory;
    pub use endpoint::Endpoint;
    pub use spindrift_pmd as ports;";

fn all_rules(file: &File<'_>, root: &Source) -> Vec<Finding> {
    let mut all = rules::purity(file);
    all.extend(rules::unsafe_code(file));
    all.extend(rules::arrows(file, root));
    all.extend(rules::neighbours(file));
    all
}

/// Rule and line of each finding in one file of a small library.
fn findings(path: &str, text: &str) -> Vec<(&'static str, usize)> {
    let module = module_of(path);
    let source = source::read(&module, text).expect("the sample is Rust");
    let root = source::read(&[], LIB).expect("the sample is Rust");
    let file = File { path, module: &module, source: &source, is_test: false };
    all_rules(&file, &root).iter().map(|f| (f.rule, f.line)).collect()
}

#[test]
fn impure_code_is_found_however_it_is_written() {
    for text in [
        "fn f() { std::time::Instant::now(); }",
        "use std::time::Instant;",
        "use ::std::time::{Duration, SystemTime as Clock};",
        "use std::time; fn f() { time::Instant::now(); }",
        "use std as s; fn f() { s::thread::sleep(d); }",
        "use std::*;",
        "use std::net::{IpAddr, UdpSocket};",
        "fn f() -> Option<std::net::TcpStream> { None }",
        "use core::net; fn f(l: net::TcpListener) {}",
        "fn f() { std::thread::spawn(|| ()); }",
        "fn f() { let _ = std::env::var(\"X\"); }",
        "use std::{fs, fmt};",
        "use std::collections::HashMap;",
        "use std::collections; struct S { m: collections::HashSet<u8> }",
        "macro_rules! m { () => { std::collections::HashMap::new() } }",
        "std::thread_local! { static X: u8 = 0; }",
        "thread_local! { static X: u8 = 0; }",
        "fn f() -> u64 { rand::random() }",
        "use rand::rngs::SysRng;",
        "extern crate libc;",
        "#[cfg(not(test))] use std::fs;",
        "#[cfg(any(test, feature = \"x\"))] use std::fs;",
        "#[cfg(test)] mod tests {} fn f() { std::process::exit(1); }",
    ] {
        assert!(findings("src/path/ev.rs", text).contains(&("purity", 1)), "not found: {text}");
        assert!(!findings("src/engine/lane.rs", text).iter().any(|(rule, _)| *rule == "purity"), "{text}");
    }
}

#[test]
fn only_lanes_read_a_clock() {
    for text in [
        "use std::time::Instant;",
        "fn f() { std::thread::sleep(d); }",
        "fn f() { std::time::SystemTime::now(); }",
    ] {
        assert_eq!(findings("src/verbs/qp.rs", text), [("purity", 1)], "{text}");
        assert_eq!(findings("src/engine/clock.rs", text), [], "{text}");
    }
    assert_eq!(findings("src/verbs/qp.rs", "use std::net::TcpStream;"), [("purity", 1)]);
}

#[test]
fn pure_code_passes() {
    let text = "//! Never call std::time::Instant::now here, nor std::thread::spawn.
        use core::fmt;
        use std::collections::{BTreeMap, VecDeque};
        use std::net::{IpAddr, Ipv6Addr};
        use std::time::Duration;
        /// See `std::fs`.
        #[doc = \"std::env\"]
        fn f(x: &'static str) -> u32 { let c = '\"'; x.len() as u32 + \"std::fs::read unsafe\".len() as u32 }
        /* std::thread /* nested */ unsafe */
        #[cfg(test)]
        mod tests { use std::collections::HashMap; fn g() { std::thread::yield_now(); } }";
    assert_eq!(findings("src/path/ev.rs", text), []);
}

#[test]
fn unsafe_is_found_outside_its_places() {
    let text = "fn f() {}\nfn g(p: *const u8) -> u8 { unsafe { *p } }";
    assert_eq!(findings("src/path/ev.rs", text), [("unsafe", 2)]);
    assert_eq!(findings("src/engine/lane.rs", text), [("unsafe", 2)]);
    assert_eq!(findings("src/memory/table.rs", text), [("unsafe", 2)]);
    for (path, allowed) in [
        ("pmd/src/pcap.rs", false),
        ("pmd/memory/src/region.rs", true),
        ("pmd/src/loopback/ring.rs", true),
        ("pmd/src/udp/sys.rs", true),
        ("pmd/src/device.rs", true),
        ("pmd/src/udp/group.rs", false),
    ] {
        assert_eq!(findings(path, text).contains(&("unsafe", 2)), !allowed, "{path}");
    }
    assert_eq!(findings("src/path.rs", "#[unsafe(no_mangle)] extern \"C\" fn f() {}"), [("unsafe", 1)]);
    assert_eq!(findings("src/path.rs", "#![forbid(unsafe_code)]"), []);
}

#[test]
fn upward_and_sideways_arrows_are_found() {
    for (path, text) in [
        ("src/path/ev.rs", "use crate::endpoint::Endpoint;"),
        ("src/path/ev.rs", "fn f(e: &crate::verbs::Context) {}"),
        ("src/path/ev.rs", "use crate::{time::Time, requester::Requester};"),
        ("src/path/ev.rs", "use super::super::engine;"),
        ("src/path.rs", "mod a { fn f() { super::super::requester::x(); } }"),
        ("src/path.rs", "use crate as root; fn f(e: root::endpoint::Endpoint) {}"),
        ("src/path.rs", "use crate::Endpoint;"),
        ("src/path.rs", "use crate::*;"),
        ("src/path.rs", "use crate::attic::Old;"),
        ("src/time.rs", "use crate::wire::Psn;"),
        ("src/path/set.rs", "use crate::congestion::Nscc;"),
        ("src/responder.rs", "use crate::requester::Requester;"),
        ("src/attic.rs", "fn f() {}"),
    ] {
        assert_eq!(findings(path, text), [("arrows", 1)], "{path}: {text}");
    }
}

#[test]
fn downward_arrows_pass() {
    for (path, text) in [
        ("src/lib.rs", "use crate::verbs::Context;"),
        ("src/verbs/qp.rs", "use crate::{engine::Lane, endpoint::Endpoint, wire::Psn, time::Time};"),
        ("src/verbs/qp.rs", "use crate::Endpoint; use crate::ports::Port;"),
        ("src/endpoint.rs", "use crate::endpoint::inner; use self::inner::X; use crate::Endpoint;"),
        ("src/path/set.rs", "use super::state::State; use crate::wire::Ev;"),
        ("src/path/set.rs", "#[cfg(test)] mod tests { use super::*; use super::super::state; }"),
    ] {
        assert_eq!(findings(path, text), [], "{path}: {text}");
    }
}

#[test]
fn neighbours_above_are_found() {
    assert_eq!(findings("src/verbs.rs", "use clap::Parser;"), [("neighbours", 1)]);
    let pmd = source::read(&[], "use spindrift::Endpoint;").expect("the sample is Rust");
    let module = Vec::new();
    let file = File { path: "pmd/src/lib.rs", module: &module, source: &pmd, is_test: false };
    assert_eq!(rules::neighbours(&file).len(), 1);
    let manifest = "[package]\nname = \"x\"\n[dev-dependencies]\nspindrift.workspace = true\n";
    assert_eq!(rules::manifest("pmd/Cargo.toml", manifest, &["spindrift"]).len(), 1);
    assert_eq!(rules::manifest("pmd/Cargo.toml", manifest, &["spindrift-cli"]).len(), 0);
}

#[test]
fn files_declared_for_tests_only_may_use_the_machine() {
    let text = |path: &str, text: &str| Text { path: path.to_owned(), text: text.to_owned() };
    let declared = |declaration: &str| {
        let texts = [
            text("src/lib.rs", "pub mod path;"),
            text("src/path.rs", declaration),
            text("src/path/tests.rs", "use std::thread;"),
        ];
        check_crate(&texts, |file, _| rules::purity(file)).len()
    };
    assert_eq!(declared("#[cfg(test)] mod tests;"), 0);
    assert_eq!(declared("#[cfg(test)] #[path = \"tests.rs\"] mod tests;"), 0);
    assert_eq!(declared("mod tests;"), 1);
    assert_eq!(declared("#[cfg(test)] use std::fs; mod tests;"), 1);
}

#[test]
fn long_files_are_found() {
    let lines = |n| "// x\n".repeat(n);
    assert!(rules::length("a.rs", &lines(rules::MAX_LINES)).is_none());
    assert!(rules::length("a.rs", &lines(rules::MAX_LINES + 1)).is_some());
}

#[test]
fn tests_that_never_run_are_found() {
    let lines = |text: &str| rules::left_out("a.rs", text).iter().map(|f| f.line).collect::<Vec<_>>();
    let with = |attribute: &str| format!("#[test]\n    #{attribute}\nfn a() {{}}\n// #[ignore]\n");
    assert_eq!(lines(&with("[ignore = \"slow: tools/check-all.sh\"]")), [0; 0]);
    for other in ["[ignore]", "[ignore = \"slow\"]", "[cfg_attr(miri, ignore)]"] {
        assert_eq!(lines(&with(other)), [2], "{other}");
    }
}

#[test]
fn links_are_read() {
    let text = "[a](docs/a.md#x) and [b](https://example.org/b) [c](#c)\n<img src=\"docs/p.svg\">";
    assert_eq!(rules::relative_links(text), [(1, "docs/a.md".to_owned()), (2, "docs/p.svg".to_owned())]);
}

#[test]
fn settings_are_read() {
    let text =
        "| what | `not_this` | `max_size`, `UPPER_CASE` |\n**Setting:** `other_one`; `x-y`\n`nor_this`";
    assert_eq!(rules::settings(text), [(1, "max_size".to_owned()), (2, "other_one".to_owned())]);
}

#[test]
fn a_finding_names_place_rule_and_fix() {
    let finding = rules::length("src/a.rs", &"\n".repeat(rules::MAX_LINES + 5)).expect("too long");
    let expected =
        format!("src/a.rs:801: [length] 805 lines, at most {}: split the file by subject", rules::MAX_LINES);
    assert_eq!(finding.to_string(), expected);
}

#[test]
fn decisions_are_found_in_comments() {
    let text = "//! Tests decision 7 of it.\nlet x = 1; // Decisions 21, 23 and 6: never 9\n\"decision 4\" fn decision() {}\n/// (decision 26)";
    assert_eq!(rules::decisions(text), [(1, 7), (2, 21), (2, 23), (2, 6), (4, 26)]);
}
