//! The rules that hold the house, each a function from a file to its findings.

use std::fmt;

use crate::source::{Mention, Module, Source};

/// The floors of `src/`, from the ground up. A module names modules of floors below its own and itself;
/// it does not name its neighbours on the same floor. A new top-level module gets a place here and in
/// `docs/architecture.md`.
pub(crate) const FLOORS: &[&[&str]] = &[
    &["pmd", "srv6", "wire", "time", "ring", "counters", "seed"],
    &["work", "timers"],
    &["memory", "congestion", "path"],
    &["requester", "responder", "config"],
    &["peer"],
    &["qp"],
    &["endpoint"],
    &["engine"],
    &["verbs"],
    &["fallback"],
];

/// The one module of `src/` that touches the machine: it reads a clock, waits and starts threads.
const MACHINE: &str = "engine";

/// A module that hands out file descriptors to wait on and errors of the system, and does nothing with them.
const DESCRIPTORS: (&str, &[&str]) = ("verbs", &["std::io", "std::os"]);

/// The places that may contain `unsafe`.
const UNSAFE: &[&str] = &[
    "pmd/memory/src/",
    "pmd/src/loopback/ring.rs",
    "pmd/src/device.rs",
    "pmd/src/fork.rs",
    "pmd/src/testing/child.rs",
    "pmd/src/tunnel/sys.rs",
    "pmd/src/udp/sys.rs",
    "pmd/bpf/src/sys.rs",
    "pmd/af_xdp/src/queue.rs",
    "pmd/dpdk/src/sys/",
    "tools/capi/src/",
    "tools/programs/src/namespace.rs",
];

/// A file longer than this has more than one subject.
pub(crate) const MAX_LINES: usize = 800;

/// Path prefixes that the core may not name, each with what to do instead.
const IMPURE: &[(&str, &str)] = &[
    ("std::time::Instant", "take `now: Time` as an argument"),
    ("std::time::SystemTime", "take `now: Time` as an argument"),
    ("std::time::UNIX_EPOCH", "take `now: Time` as an argument"),
    ("std::time::*", "import what is needed by name"),
    ("std::thread", "threads belong to src/engine"),
    ("std::thread_local", "keep state in a value that the caller owns"),
    ("thread_local", "keep state in a value that the caller owns"),
    ("std::env", "settings are arguments; the command line reads the environment"),
    ("std::fs", "take bytes as an argument; files belong to tools/"),
    ("std::process", "return an error; processes belong to tools/"),
    (
        "std::io",
        "frames come and go through `receive` and `transmit`; sockets and files belong to pmd/, src/engine, tools/",
    ),
    ("std::os", "the machine belongs to pmd/ and src/engine"),
    ("std::net::*", "import the address types by name"),
    ("std::net::TcpStream", "sockets belong to pmd/ and tools/exchange"),
    ("std::net::TcpListener", "sockets belong to pmd/ and tools/exchange"),
    ("std::net::UdpSocket", "sockets belong to pmd/ and tools/exchange"),
    ("std::net::ToSocketAddrs", "names are resolved by tools/"),
    ("std::collections::HashMap", "use BTreeMap or a table: hash order differs from run to run"),
    ("std::collections::HashSet", "use BTreeSet or a bitmap: hash order differs from run to run"),
    ("std::collections::hash_map", "use BTreeMap or a table: hash order differs from run to run"),
    ("std::collections::hash_set", "use BTreeSet or a bitmap: hash order differs from run to run"),
    ("std::collections::*", "import what is needed by name"),
    ("std::hash::RandomState", "draw from the seeded generator"),
    ("std::*", "import what is needed by name"),
    ("rand::rng", "draw from the seeded generator"),
    ("rand::random", "draw from the seeded generator"),
    ("rand::rngs::SysRng", "draw from the seeded generator; only src/engine asks the system"),
    ("rand::rngs::ThreadRng", "draw from the seeded generator"),
    ("rand::rngs::*", "import what is needed by name"),
    ("rand::make_rng", "draw from the seeded generator"),
    ("getrandom", "draw from the seeded generator"),
    ("rand::*", "import what is needed by name"),
    ("libc", "system calls belong to pmd/ and src/engine"),
    ("rustix", "system calls belong to pmd/ and src/engine"),
    ("core_affinity", "pinning belongs to src/engine"),
];

/// Crates that only a tool may name.
const TOOLS: &[&str] =
    &["spindrift_cli", "spindrift_fabric", "spindrift_roce", "fabric", "clap", "anyhow", "indicatif"];

/// A broken rule, told so that the reader knows what to change.
#[derive(Debug)]
pub(crate) struct Finding {
    pub(crate) file: String,
    pub(crate) line: usize,
    pub(crate) rule: &'static str,
    pub(crate) fix: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: [{}] {}", self.file, self.line, self.rule, self.fix)
    }
}

/// One Rust file as the rules see it.
pub(crate) struct File<'a> {
    /// Path below the repository's root.
    pub(crate) path: &'a str,
    pub(crate) module: &'a Module,
    pub(crate) source: &'a Source,
    /// The whole file is compiled for tests only.
    pub(crate) is_test: bool,
}

impl File<'_> {
    fn finding(&self, line: usize, rule: &'static str, fix: String) -> Finding {
        Finding { file: self.path.to_owned(), line, rule, fix }
    }

    fn top(&self) -> &str {
        self.module.first().map_or("", String::as_str)
    }
}

/// No clock, socket, thread, environment, file, hash order or unseeded randomness.
pub(crate) fn purity(file: &File<'_>) -> Vec<Finding> {
    if file.top() == MACHINE || file.is_test {
        return Vec::new();
    }
    let allowed = if file.top() == DESCRIPTORS.0 { DESCRIPTORS.1 } else { &[] };
    let forbidden = || IMPURE.iter().filter(|(prefix, _)| !allowed.contains(prefix));
    let impure = |m: &Mention| forbidden().find(|(prefix, _)| starts_with(&m.path, prefix));
    file.source
        .mentions
        .iter()
        .filter(|m| !m.in_test)
        .filter_map(|m| impure(m).map(|(_, instead)| (m, instead)))
        .map(|(m, instead)| {
            file.finding(
                m.line,
                "purity",
                format!("the core may not name `{}`: {instead}", m.path.join("::")),
            )
        })
        .collect()
}

/// `unsafe` stands in a few files of `pmd/`, tests included: shared memory, the loopback ring, system calls, those of BPF among them,
/// and calls of DPDK.
pub(crate) fn unsafe_code(file: &File<'_>) -> Vec<Finding> {
    if UNSAFE.iter().any(|place| file.path.starts_with(place)) {
        return Vec::new();
    }
    let fix =
        || format!("`unsafe` belongs to {}: put the access behind a safe function there", UNSAFE.join(", "));
    file.source.unsafe_lines.iter().map(|&line| file.finding(line, "unsafe", fix())).collect()
}

/// Inside `src/`, a module names only floors below its own. `root` is the reading of `src/lib.rs`, whose
/// re-exports count as the module they come from; `lib.rs` itself is the roof and may name everything.
pub(crate) fn arrows(file: &File<'_>, root: &Source) -> Vec<Finding> {
    let own = file.top();
    if own.is_empty() {
        return Vec::new();
    }
    let Some(own_floor) = floor_of(own) else {
        let fix = format!(
            "module `{own}` is on no floor: add it to FLOORS in tests/house/rules.rs and to docs/architecture.md"
        );
        return vec![file.finding(1, "arrows", fix)];
    };
    file.source
        .mentions
        .iter()
        .filter(|m| m.path.len() > 1 && m.path[0] == "crate" && m.path[1] != own)
        .filter_map(|m| {
            let written = m.path.join("::");
            let fix = match target_of(&m.path[1], root) {
                Some(target) if target == own => return None,
                Some(target) => match floor_of(target) {
                    Some(floor) if floor < own_floor => return None,
                    Some(floor) if floor == own_floor => format!(
                        "`{written}`: `{own}` and `{target}` share a floor and may not know each other; \
                         pass a value through the floor above"
                    ),
                    _ => format!(
                        "`{written}`: `{target}` is above `{own}`; take what is needed as an argument, or move it down"
                    ),
                },
                None => format!("`{written}` leads to no known floor: name the module that it lives in"),
            };
            Some(file.finding(m.line, "arrows", fix))
        })
        .collect()
}

/// `pmd` and `srv6` know nothing of the transport, the transport nothing of the tools.
pub(crate) fn neighbours(file: &File<'_>) -> Vec<Finding> {
    let (forbidden, fix): (&[&str], &str) = if file.path.starts_with("src/") {
        (TOOLS, "the library knows nothing of the tools: move this to tools/")
    } else {
        (&["spindrift"], "this crate stands below the transport: take what is needed as an argument")
    };
    file.source
        .mentions
        .iter()
        .filter(|m| m.path.len() > 1 && forbidden.contains(&m.path[0].as_str()))
        .map(|m| file.finding(m.line, "neighbours", format!("`{}`: {fix}", m.path.join("::"))))
        .collect()
}

/// A file has one subject.
pub(crate) fn length(path: &str, text: &str) -> Option<Finding> {
    let lines = text.lines().count();
    (lines > MAX_LINES).then(|| Finding {
        file: path.to_owned(),
        line: MAX_LINES + 1,
        rule: "length",
        fix: format!("{lines} lines, at most {MAX_LINES}: split the file by subject"),
    })
}

/// The only reason for which `cargo test` leaves a test out. `tools/check-all.sh` runs the tests that have it.
const SLOW: &str = "[ignore = \"slow: tools/check-all.sh\"]";

/// Tests that would never run.
pub(crate) fn left_out(path: &str, text: &str) -> Vec<Finding> {
    let found = (1..).zip(text.lines()).filter(|(_, line)| {
        let line = line.trim();
        line.starts_with('#') && line.contains("ignore") && line.get(1..) != Some(SLOW)
    });
    found
        .map(|(line, _)| Finding {
            file: path.to_owned(),
            line,
            rule: "left out",
            fix: format!("tests run by default, or have #{SLOW}"),
        })
        .collect()
}

/// Dependencies in a manifest that would point upward. `[dev-dependencies]` count as well.
pub(crate) fn manifest(path: &str, text: &str, forbidden: &[&str]) -> Vec<Finding> {
    let mut in_dependencies = false;
    let mut findings = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        if let Some(section) = line.trim().strip_prefix('[') {
            in_dependencies =
                section.trim_end_matches(']').ends_with("dependencies") && !section.starts_with("workspace.");
        }
        let name = line.split(['=', '.', ' ']).next().unwrap_or_default();
        if in_dependencies && forbidden.contains(&name) {
            let fix = format!("`{name}` stands above this crate: remove the dependency");
            findings.push(Finding { file: path.to_owned(), line: number, rule: "neighbours", fix });
        }
    }
    findings
}

/// Targets of the links of a Markdown text that lead to files of the repository, with their lines.
pub(crate) fn relative_links(text: &str) -> Vec<(usize, String)> {
    let mut links = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let markdown = line.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
        let html = ["src=\"", "href=\"", "srcset=\""]
            .into_iter()
            .flat_map(|attribute| line.split(attribute).skip(1))
            .filter_map(|rest| rest.split('"').next());
        let files = markdown.chain(html).map(|link| link.split('#').next().unwrap_or_default());
        links.extend(files.filter(|l| !l.is_empty() && !l.contains("://")).map(|l| (number, l.to_owned())));
    }
    links
}

/// Numbers after "decision" or "decisions" in comments, with their lines.
pub(crate) fn decisions(text: &str) -> Vec<(usize, u32)> {
    let mut found = Vec::new();
    for (line, text) in (1..).zip(text.lines()) {
        let Some((_, comment)) = text.split_once("//") else { continue };
        let mut words = comment.split_whitespace().skip_while(|word| !is_decision(word));
        while let Some(word) = words.next() {
            if !is_decision(word) {
                continue;
            }
            let numbers =
                words.clone().map_while(|word| match word.trim_matches(['.', ',', ')', ':', ';']) {
                    "and" | "to" => Some(None),
                    number => number.parse().ok().map(Some),
                });
            found.extend(numbers.flatten().map(|number| (line, number)));
        }
    }
    found
}

fn is_decision(word: &str) -> bool {
    matches!(word.trim_start_matches(['(', '[']).to_ascii_lowercase().as_str(), "decision" | "decisions")
}

/// Settings that a text of decisions names, with their lines: the words in code type with an underscore
/// in the last column of its tables and in its lines that begin with `**Setting:**`.
pub(crate) fn settings(text: &str) -> Vec<(usize, String)> {
    let mut settings = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let part = line.strip_prefix("**Setting:**").or_else(|| {
            let row = line.strip_prefix('|')?.strip_suffix('|')?;
            row.rsplit('|').next()
        });
        let words = part.unwrap_or_default().split('`').skip(1).step_by(2);
        let names =
            words.filter(|w| w.contains('_') && w.chars().all(|c| c.is_ascii_lowercase() || c == '_'));
        settings.extend(names.map(|name| (number, name.to_owned())));
    }
    settings
}

fn floor_of(module: &str) -> Option<usize> {
    FLOORS.iter().position(|floor| floor.contains(&module))
}

/// The top-level module that `crate::name` leads to.
fn target_of<'a>(name: &'a str, root: &'a Source) -> Option<&'a str> {
    if floor_of(name).is_some() {
        return Some(name);
    }
    let path = root.imports.get(name)?;
    let first = path.iter().map(String::as_str).find(|s| *s != "crate")?;
    match first {
        "spindrift_pmd" => Some("pmd"),
        "spindrift_srv6" => Some("srv6"),
        "spindrift_wire" => Some("wire"),
        module => floor_of(module).map(|_| module),
    }
}

fn starts_with(path: &[String], prefix: &str) -> bool {
    let mut segments = path.iter();
    prefix.split("::").all(|wanted| segments.next().is_some_and(|s| s == wanted))
}
