//! `spindrift sim`: what it writes, and that it writes the same each time.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod denied;
mod flaps;
mod refused;
mod reports;
mod roce;
mod seeds;
mod slowdown;
#[path = "../support/mod.rs"]
mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use support::{json, refused, run, stderr, stdout, temp};

const FABRIC: &str = "[fabric]\nplanes = 2\nt0 = 2\nt1 = 4\nhosts_per_t0 = 4\nhost_rate = \"100G\"\n";

/// A folder with a plan in it, removed at the end.
struct Plan(PathBuf);

impl Plan {
    fn new(name: &str, text: &str) -> Self {
        let folder = temp(name);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("plan.toml"), text).unwrap();
        Self(folder)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    /// Runs it, and returns the folder of the results.
    fn run(&self, results: &str, options: &[&str]) -> PathBuf {
        let (plan, folder) = (self.path("plan.toml"), self.path(results));
        let output = run(&[&["sim", &plan, "-o", &folder], options].concat());
        assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
        folder.into()
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Rows of a table by the names of its columns.
fn rows(folder: &Path, name: &str) -> Vec<BTreeMap<String, String>> {
    let text = fs::read_to_string(folder.join(name)).unwrap();
    let mut lines = text.lines();
    let names: Vec<_> = lines.next().unwrap().split(',').map(str::to_owned).collect();
    lines
        .map(|line| {
            let values: Vec<_> = line.split(',').map(str::to_owned).collect();
            assert_eq!(values.len(), names.len(), "{name}: {line}");
            names.iter().cloned().zip(values).collect()
        })
        .collect()
}

fn number(row: &BTreeMap<String, String>, column: &str) -> f64 {
    row[column].parse().unwrap_or_else(|_| panic!("{column}: {row:?}"))
}

/// Every kind of workload and of fault, in two variants.
fn everything() -> String {
    let workload = |rest: &str| format!("[[workload]]\n{rest}\n");
    let fault = |place: &str, action: &str, rest: &str| {
        format!("[[fault]]\nat = \"100us\"\nwhere = \"{place}\"\naction = \"{action}\"\n{rest}\n")
    };
    [
        "[plan]\ntitle = \"Everything\"\nduration = \"20ms\"\nsample = \"50us\"\nseed = 5\n".to_owned(),
        FABRIC.to_owned(),
        "[record]\nhosts = \"h1-h3, h8\"\nlinks = [\"p0-t0-0:h1\"]\n".to_owned(),
        workload("kind = \"write\"\nfrom = \"h1, h3-h4\"\nto = \"h8\"\nsize = \"64K\"\ncount = 20"),
        workload("kind = \"permutation\"\nby = 3\nsize = \"256K\"\ndepth = 2\ncount = 5\nstart = \"50us\""),
        workload("kind = \"ping-pong\"\nfrom = \"h2\"\nto = \"h7\"\nsize = \"8\"\ncount = 10"),
        workload("kind = \"neighbours\"\nhosts = \"h1-h4\"\nsize = \"128K\"\ncount = 3"),
        workload("kind = \"all-reduce\"\nhosts = \"h5-h8\"\nsize = \"1M\"\ncount = 2"),
        workload("kind = \"all-to-all\"\nsize = \"32K\"\nat_a_time = 2"),
        workload(
            "kind = \"poisson\"\nhosts = \"h1-h6\"\nload = 0.3\nsizes = [[\"1K\", 50], [\"100K\", 100]]\nstop = \"200us\"",
        ),
        workload("kind = \"trace\"\nfile = \"trace.csv\""),
        fault("h1:p0-t0-0", "down", "for = \"300us\""),
        fault("h2:p1-t0-0", "dark", "for = \"100us\"\nevery = \"300us\"\ntimes = 2"),
        fault("p0-t1-1", "stop", "for = \"1ms\""),
        fault("h6", "pause", "for = \"100us\""),
        fault("p1-t0-0:p1-t1-0", "loss=10%,dir=up", "for = \"1ms\""),
        fault("p1-t0-0:p1-t1-0", "corrupt=5%,dir=up", "for = \"2ms\""),
        fault("p1-t0-1:p1-t1-2, p1-t0-1:p1-t1-3", "reorder=20%,late=5us", "for = \"1ms\""),
        fault("p0-t0-1", "duplicate=10%", "for = \"1ms\""),
        fault("p0-t0-1:p0-t1-0", "rate=20G", ""),
        fault("h7", "ecn=50%,dir=down", ""),
        fault("h8:p0-t0-1", "blackhole,dir=up", "for = \"200us\""),
        "[[variant]]\nname = \"usual\"\n".to_owned(),
        "[[variant]]\nname = \"hashed\"\nset = { \"transport.routing\" = \"ecmp\", \"workload.0.count\" = 10 }\n"
            .to_owned(),
    ]
    .concat()
}

const TRACE: &str =
    "start_ns,from,to,bytes,after\n# a comment\n1000,h1,h2,5000\n0,h2,h1,9000,\n500,h3,h1,70000,1\n";

const FILES: [&str; 7] =
    ["samples.csv", "links.csv", "evs.csv", "messages.csv", "latency.csv", "result.json", "summary.md"];

fn bytes(folder: &Path) -> Vec<Vec<u8>> {
    FILES.iter().map(|name| fs::read(folder.join(name)).unwrap()).collect()
}

#[test]
fn two_runs_of_a_plan_write_the_same_bytes() {
    let plan = Plan::new("everything", &everything());
    fs::write(plan.path("trace.csv"), TRACE).unwrap();
    let first = plan.run("first", &["-j", "1"]);
    let second = plan.run("second", &["-j", "2"]);
    assert_eq!(bytes(&first), bytes(&second));
    let other = plan.run("other", &["--seed", "6"]);
    for (name, (one, another)) in FILES.iter().zip(bytes(&first).iter().zip(&bytes(&other))) {
        assert_ne!(one, another, "{name}");
    }
    // All of it happened.
    let result = json(&fs::read(first.join("result.json")).unwrap());
    for (variant, writes) in result["variants"].as_array().unwrap().iter().zip([20, 10]) {
        assert_eq!(variant["done"], true, "{variant}");
        let counts: Vec<_> =
            variant["workloads"].as_array().unwrap().iter().map(|job| &job["message_us"]["count"]).collect();
        let counts: Vec<_> = counts.iter().map(|count| count.as_u64().unwrap()).collect();
        assert_eq!(counts[..6], [3 * writes, 8 * 5, 2 * 10, 4 * 3, 4 * 6 * 2, 8 * 7], "{counts:?}");
        assert!(counts[6] > 10 && counts[7] == 3, "{counts:?}");
        let begun = variant["events"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|event| !event["what"].as_str().unwrap().ends_with("ends"));
        assert_eq!(begun.count(), 12, "{}", variant["events"]);
        for kind in ["lost", "corrupted", "duplicated", "dropped"] {
            assert!(variant["packets"][kind].as_u64() > Some(0), "{kind}: {}", variant["packets"]);
        }
    }
    let names: Vec<_> =
        result["variants"].as_array().unwrap().iter().map(|one| one["variant"].as_str()).collect();
    assert_eq!(names, [Some("usual"), Some("hashed")]);
}

/// One message is complete, one under way, one begins later, and one waits for the second.
#[test]
fn messages_of_a_trace_that_the_end_comes_before_are_told() {
    let text = format!(
        "[plan]\ntitle = \"x\"\nduration = \"1ms\"\n{FABRIC}[[workload]]\nkind = \"trace\"\nfile = \"trace.csv\"\n"
    );
    let plan = Plan::new("trace-end", &text);
    let header = "start_ns,from,to,bytes,after\n";
    let more = "1000,h3,h4,1000000000\n1000001,h1,h2,5000\n0,h4,h3,5000,2\n";
    for (trace, left) in [(format!("0,h1,h2,5000\n{more}"), [2, 1]), ("0,h1,h2,5000\n".to_owned(), [0, 0])] {
        fs::write(plan.path("trace.csv"), format!("{header}{trace}")).unwrap();
        let folder = plan.run("results", &[]);
        let result = json(&fs::read(folder.join("result.json")).unwrap());
        let job = &result["variants"][0]["workloads"][0];
        let told = ["messages_not_begun", "messages_under_way"].map(|name| job[name].as_u64().unwrap());
        assert_eq!((told, &job["message_us"]["count"]), (left, &1.into()), "{job}");
        let summary = fs::read_to_string(folder.join("summary.md")).unwrap();
        let line = "not complete at the end: 3 messages, of which 2 had not begun";
        assert_eq!(summary.contains(line), left != [0, 0], "{summary}");
    }
}

/// Each message is in the bar of its time.
fn assert_histogram_of(messages: &[BTreeMap<String, String>], bars: &[BTreeMap<String, String>]) {
    let mut times: Vec<_> =
        messages.iter().map(|row| (number(row, "complete_ns") - number(row, "posted_ns")) / 1e3).collect();
    times.sort_by(f64::total_cmp);
    let (mut begun, mut from) = (0, 0.0);
    for bar in bars {
        let ended = begun + number(bar, "messages") as usize;
        let up_to = number(bar, "up_to_us");
        assert!(times[begun..ended].iter().all(|time| (from..=up_to).contains(time)), "{bar:?} {times:?}");
        assert!(up_to < 1.01 * times[ended - 1], "{bar:?} {times:?}");
        assert!((number(bar, "percent") - 100.0 * ended as f64 / times.len() as f64).abs() < 1e-3, "{bar:?}");
        (begun, from) = (ended, up_to);
    }
    assert_eq!(begun, times.len());
}

/// What the tables say adds up to what was sent.
#[test]
fn tables_tell_what_happened() {
    let text = format!(
        "[plan]\ntitle = \"A port fails\"\nduration = \"2ms\"\nsample = \"10us\"\n{FABRIC}\
         [[workload]]\nkind = \"write\"\nfrom = \"h1\"\nto = \"h5\"\nsize = \"256K\"\nstop = \"900us\"\n\
         [[fault]]\nat = \"300us\"\nwhere = \"h5:p1-t0-1\"\naction = \"down\"\nfor = \"300us\"\n"
    );
    let plan = Plan::new("tables", &text);
    let folder = plan.run("results", &[]);
    let samples = rows(&folder, "samples.csv");
    let at = |host: &str, from: f64, to: f64| -> Vec<_> {
        let within = |row: &&BTreeMap<_, _>| number(row, "time_us") > from && number(row, "time_us") <= to;
        samples.iter().filter(|row| row["host"] == host).filter(within).collect()
    };
    let mean = |rows: &[&BTreeMap<String, String>], column: &str| {
        rows.iter().map(|row| number(row, column)).sum::<f64>() / rows.len() as f64
    };
    // Two planes, one, and two again once a probe of each entropy value has come back.
    let (before, during) = (at("h5", 100.0, 300.0), at("h5", 350.0, 600.0));
    assert_eq!((before.len(), during.len()), (20, 25));
    for (rows, gbps, p1) in [(&before, 190.0, 100.0), (&during, 95.0, 0.0)] {
        assert!((mean(rows, "gbps") - gbps).abs() < 3.0, "{}", mean(rows, "gbps"));
        assert!((mean(rows, "p0_gbps") - 100.0).abs() < 2.0, "{}", mean(rows, "p0_gbps"));
        assert!((mean(rows, "p1_gbps") - p1).abs() < 2.0, "{}", mean(rows, "p1_gbps"));
    }
    let messages = rows(&folder, "messages.csv");
    let placed: f64 = samples.iter().map(|row| number(row, "gbps") * 10e-6 * 1e9 / 8.0).sum();
    let sent: f64 = messages.iter().map(|row| number(row, "bytes")).sum();
    assert!((placed - sent).abs() < 1e3, "{placed} {sent}");
    assert!(
        messages.iter().all(|row| row["from"] == "h1" && row["to"] == "h5" && row["workload"] == "write")
    );
    assert_histogram_of(&messages, &rows(&folder, "latency.csv"));
    // The link is dead in both directions while the fault lasts, and is the first in the table.
    let links = rows(&folder, "links.csv");
    let down = |row: &&BTreeMap<String, String>| (310.0..=600.0).contains(&number(row, "time_us"));
    let down: Vec<_> = links.iter().filter(down).collect();
    assert_eq!(down.len(), 2 * 30);
    assert!(down[0]["link"] == "h5:p1-t0-1" && down[1]["link"] == "p1-t0-1:h5");
    assert!(down.iter().skip(2).all(|row| number(row, "gbps") == 0.0));
    assert!(links.iter().map(|row| number(row, "lost")).sum::<f64>() > 0.0);
    let repeats = samples.iter().map(|row| number(row, "repeats")).sum::<f64>();
    assert!(repeats > 0.0);
    // Each of its four paths in a plane is in one state.
    let evs = rows(&folder, "evs.csv");
    let total = |row: &BTreeMap<String, String>| {
        ["good", "skip", "reserve", "assumed_bad", "denied", "closed"]
            .map(|name| number(row, name) as u32)
            .iter()
            .sum::<u32>()
    };
    assert!(!evs.is_empty() && evs.iter().all(|row| row["flow"] == "h1-h5" && total(row) == 4));
    // The sender's are closed while the receiver's port is down, from when it has heard of it.
    for row in &evs {
        let (down, known) = (299.0..615.0, 320.0..600.0);
        let closed = if row["plane"] == "1" && known.contains(&number(row, "time_us")) { 4.0 } else { 0.0 };
        let settled = row["plane"] == "0" || !down.contains(&number(row, "time_us")) || closed > 0.0;
        assert!(!settled || (number(row, "closed") - closed).abs() < 1e-9, "{row:?}");
    }
    let summary = fs::read_to_string(folder.join("summary.md")).unwrap();
    let picture = fs::read_to_string(folder.join("figure.svg")).unwrap();
    assert!(picture.contains("A port fails") && picture.contains("2: at 600.000 us, h5:p1-t0-1: down ends"));
    assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"));
    for part in [
        "# A port fails\n",
        "8 hosts, 2 planes of 100Gbit",
        "at 0.300 ms, h5:p1-t0-1: down; ",
        "at 0.600 ms, h5:p1-t0-1: down ends\n",
    ] {
        assert!(summary.contains(part), "{part}: {summary}");
    }
    let output = run(&["sim", &plan.path("plan.toml"), "-o", folder.to_str().unwrap(), "--json"]);
    assert_eq!(json(&output.stdout), json(&fs::read(folder.join("result.json")).unwrap()));
}

/// Each measure, over a window or over all, beside the same from the tables.
#[test]
#[expect(clippy::too_many_lines, reason = "one row for each measure")]
fn claims_measure_what_the_tables_say() {
    const FROM: f64 = 200.0;
    const TO: f64 = 400.0;
    let mut text = format!(
        "[plan]\ntitle = \"Claims\"\nduration = \"600us\"\nsample = \"10us\"\n{FABRIC}\
         [[workload]]\nkind = \"write\"\nname = \"incast\"\nfrom = \"h1-h3\"\nto = \"h5\"\nsize = \"100K\"\n\
         [[workload]]\nkind = \"write\"\nfrom = \"h4\"\nto = \"h6\"\n\
         [[fault]]\nat = \"250us\"\nwhere = \"p0-t0-1:h5\"\naction = \"dark\"\n"
    );
    let window = "from = \"200us\"\nto = \"400us\"\n";
    let mut claim = |keys: &str| {
        text += &format!("[[claim]]\nwhat = '''{keys}'''\nleast = 0\n{keys}\n");
    };
    let sums = ["sent", "repeats", "losses", "timeouts", "marked", "trimmed"];
    for measure in sums {
        claim(&format!("measure = \"{measure}\"\n{window}"));
    }
    claim(&format!("measure = \"losses\"\nhosts = \"h2, h3\"\npick = \"max\"\n{window}"));
    claim(&format!("measure = \"payload\"\nhosts = \"h5\"\n{window}"));
    claim(&format!("measure = \"payload\"\npick = \"min\"\n{window}"));
    claim(
        "measure = \"payload\"\nhosts = \"h5\"\nfrom = \"400us\"\nagainst = { from = \"50us\", to = \"250us\" }",
    );
    claim("measure = \"assumed-bad\"\nto = \"300us\"");
    claim("measure = \"assumed-bad\"\nhosts = \"h2\"\nto = \"300us\"\n");
    claim(&format!("measure = \"link-rate\"\nlinks = [\"p0-t0-1:h5\"]\n{window}"));
    claim(&format!("measure = \"link-rate\"\npick = \"sum\"\n{window}"));
    claim(&format!("measure = \"queue\"\n{window}"));
    claim("measure = \"connection-rate\"\nworkload = \"incast\"\npick = \"min\"");
    claim(&format!("measure = \"message-time\"\nworkload = \"incast\"\n{window}"));
    claim(&format!("measure = \"message-time\"\npick = \"p99\"\n{window}"));
    claim(&format!("measure = \"failures\"\n{window}"));
    let plan = Plan::new("claims", &text);
    let folder = plan.run("results", &[]);
    let result = json(&fs::read(folder.join("result.json")).unwrap());
    let claims = result["variants"][0]["claims"].as_array().unwrap();
    let mut values = claims.iter().map(|claim| {
        assert_eq!((&claim["holds"], &claim["least"]), (&true.into(), &0.0.into()));
        (
            claim["what"].as_str().unwrap().to_owned(),
            claim["value"].as_f64().unwrap(),
            claim["unit"].as_str().unwrap(),
        )
    });
    let mut is = |expected: f64, unit: &str| {
        let (what, value, its) = values.next().unwrap();
        assert!((value - expected).abs() < 1e-4 * expected.abs().max(1.0), "{what}: {value}, {expected}");
        assert_eq!(its, unit, "{what}");
    };
    let (samples, links) = (rows(&folder, "samples.csv"), rows(&folder, "links.csv"));
    let (evs, messages) = (rows(&folder, "evs.csv"), rows(&folder, "messages.csv"));
    let time = |row: &BTreeMap<String, String>| number(row, "time_us");
    let within = |row: &&BTreeMap<String, String>| FROM < time(row) && time(row) <= TO;
    let of = |host: &str, column: &str, from: f64, to: f64| -> Vec<f64> {
        let rows = samples.iter().filter(|row| row["host"] == host && from < time(row) && time(row) <= to);
        rows.map(|row| number(row, column)).collect()
    };
    let sum = |values: Vec<f64>| values.iter().sum::<f64>();
    let mean = |values: Vec<f64>| values.iter().sum::<f64>() / values.len() as f64;
    for measure in sums {
        is(samples.iter().filter(within).map(|row| number(row, measure)).sum(), "");
    }
    is(sum(of("h2", "losses", FROM, TO)).max(sum(of("h3", "losses", FROM, TO))), "");
    is(mean(of("h5", "gbps", FROM, TO)), "Gb/s");
    is(mean(of("h5", "gbps", FROM, TO)).min(mean(of("h6", "gbps", FROM, TO))), "Gb/s");
    is(mean(of("h5", "gbps", 400.0, 600.0)) / mean(of("h5", "gbps", 50.0, 250.0)) * 100.0, "%");
    let bad = |flow: &str| -> f64 {
        let rows = evs.iter().filter(|row| (time(row) - 300.0).abs() < 1e-6 && row["flow"].contains(flow));
        rows.map(|row| number(row, "assumed_bad")).sum()
    };
    assert!(bad("h2-") > 0.0 && bad("-") > bad("h2-"));
    is(bad("-"), "");
    is(bad("h2-"), "");
    let rate = |link: &str| {
        mean(
            links
                .iter()
                .filter(within)
                .filter(|row| row["link"] == link)
                .map(|row| number(row, "gbps"))
                .collect(),
        )
    };
    is(rate("p0-t0-1:h5"), "Gb/s");
    is(rate("p0-t0-1:h5") + rate("h5:p0-t0-1"), "Gb/s");
    let peaks = links.iter().filter(within).map(|row| number(row, "peak_bytes") / 1e3);
    is(peaks.fold(0.0, f64::max), "kB");
    assert!(links.iter().all(|row| number(row, "peak_bytes") >= number(row, "queued_bytes")));
    assert!(links.iter().any(|row| number(row, "peak_bytes") > number(row, "queued_bytes")));
    let least = ["h1", "h2", "h3"].map(|from| {
        let own: Vec<_> = messages.iter().filter(|row| row["from"] == from).collect();
        let bytes: f64 = own.iter().map(|row| number(row, "bytes")).sum();
        let last = own.iter().map(|row| number(row, "complete_ns")).fold(0.0, f64::max);
        bytes * 8.0 / last
    });
    is(least.into_iter().fold(f64::MAX, f64::min), "Gb/s");
    let mut times = |workload: &str, share: f64| {
        let done = |row: &&BTreeMap<String, String>| {
            (FROM * 1e3..=TO * 1e3).contains(&number(row, "complete_ns"))
                && row["workload"].contains(workload)
        };
        let took = |row: &BTreeMap<String, String>| number(row, "complete_ns") - number(row, "posted_ns");
        let mut all: Vec<_> = messages.iter().filter(done).map(took).collect();
        all.sort_by(f64::total_cmp);
        is(all[((all.len() as f64 * share).ceil() as usize).max(1) - 1] / 1e3, "us");
    };
    times("incast", 0.5);
    times("", 0.99);
    is(0.0, "");
    assert!(values.next().is_none());
}

/// What does not hold is an error, unless the plan says why; and so is what cannot be measured.
#[test]
fn claims_that_do_not_hold_are_told() {
    let plan = |claims: &str| {
        format!(
            "[plan]\ntitle = \"Claims\"\nduration = \"100us\"\n{FABRIC}\
             [[workload]]\nkind = \"write\"\nfrom = \"h1\"\nto = \"h5\"\ncount = 1\n\
             [[variant]]\nname = \"slow\"\nset = {{ \"fabric.host_rate\" = \"10G\" }}\n[[variant]]\nname = \"fast\"\n\
             [[claim]]\nwhat = \"fast\"\nmeasure = \"message-time\"\n{claims}\n"
        )
    };
    for (number, (claims, status, line)) in [
        ("most = 100", 1, "- fast: no data in that time (at most 100), DOES NOT HOLD"),
        ("most = 100\nvariant = \"fast\"", 0, "(at most 100), holds"),
        ("most = 1\nleast = 0.5\nvariant = \"fast\"", 1, " us (0.50 to 1), DOES NOT HOLD"),
        (
            "most = 1\nvariant = \"fast\"\nwhy = \"a megabyte is long\"",
            0,
            "does not hold: a megabyte is long",
        ),
        ("most = 1\nvariant = \"slow\"\nagainst = { variant = \"fast\" }", 1, "fast: no data in that time"),
        (
            "least = 100\nmost = 100\nvariant = \"fast\"\nagainst = { variant = \"fast\" }",
            0,
            "100 % (100 to 100), holds",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let plan = Plan::new(&format!("claim-{number}"), &plan(claims));
        let output = run(&["sim", &plan.path("plan.toml"), "-o", &plan.path("results")]);
        assert!(stdout(&output).contains(line), "{line}: {}", stdout(&output));
        assert_eq!(output.status.code(), Some(status), "{}", stderr(&output));
        assert_eq!(stderr(&output).contains("does not hold: fast: "), status == 1, "{}", stderr(&output));
    }
}

/// Faults that overlap do not end each other.
#[test]
fn faults_overlap() {
    let text = format!(
        "[plan]\ntitle = \"Overlap\"\nduration = \"500us\"\nsample = \"100us\"\n{FABRIC}\
         [[workload]]\nkind = \"write\"\nfrom = \"h1, h5\"\nto = \"h2, h6\"\n\
         [[fault]]\nat = \"100us\"\nfor = \"300us\"\nwhere = \"h2:p0-t0-0\"\naction = \"dark\"\n\
         [[fault]]\nat = \"200us\"\nfor = \"100us\"\nwhere = \"h2:p0-t0-0\"\naction = \"down\"\n\
         [[fault]]\nfor = \"100us\"\nwhere = \"h5:p1-t0-1\"\naction = \"rate=50G\"\n\
         [[fault]]\nfor = \"200us\"\nwhere = \"h5:p1-t0-1\"\naction = \"rate=20G,dir=up\"\n"
    );
    let plan = Plan::new("overlap", &text);
    let folder = plan.run("results", &[]);
    let links = rows(&folder, "links.csv");
    let gbps = |link: &str| -> Vec<_> {
        links.iter().filter(|row| row["link"] == link).map(|row| number(row, "gbps").round()).collect()
    };
    let (dark, slow) = (gbps("p0-t0-0:h2"), gbps("h5:p1-t0-1"));
    assert!(dark[0] > 90.0 && dark[1..4].iter().all(|&rate| rate < 10.0), "{dark:?}");
    assert!(slow[..2].iter().all(|rate| (19.0..=21.0).contains(rate)) && slow[3] > 90.0, "{slow:?}");
}

/// Each fault has the data packets that were lost where it was while it lasted, and no probes.
#[test]
fn what_faults_cost_is_told() {
    let text = format!(
        "[plan]\ntitle = \"x\"\nduration = \"9ms\"\n{FABRIC}[path]\nbackup = 0\n\
         [[workload]]\nkind = \"write\"\nfrom = \"h1\"\nto = \"h5\"\n\
         [[fault]]\nat = \"100us\"\nfor = \"300us\"\nwhere = \"p0-t0-0:p0-t1-0\"\naction = \"blackhole,dir=up\"\n\
         [[fault]]\nat = \"4ms\"\nfor = \"500us\"\nwhere = \"p1-t1-2\"\naction = \"stop\"\n\
         [[fault]]\nat = \"5ms\"\nfor = \"2900us\"\nwhere = \"p0-t0-0:p0-t1-0\"\naction = \"dark\"\n\
         [[fault]]\nat = \"8ms\"\nfor = \"500us\"\nwhere = \"h2:p0-t0-0\"\naction = \"dark\"\n\
         [[claim]]\nwhat = \"x\"\nmeasure = \"bypass-time\"\nmost = 100\n\
         [[claim]]\nwhat = \"x\"\nmeasure = \"bypass-time\"\npick = \"min\"\nto = \"7.5ms\"\nleast = 1\n\
         [[claim]]\nwhat = \"x\"\nmeasure = \"bypass-time\"\nfrom = \"7.5ms\"\nmost = 0\n"
    );
    let plan = Plan::new("cost", &text);
    let folder = plan.run("results", &[]);
    let result = json(&fs::read(folder.join("result.json")).unwrap());
    let events = result["variants"][0]["events"].as_array().unwrap();
    let lost: Vec<_> = events.iter().map(|event| event["lost"].as_u64()).collect();
    let [Some(black), None, Some(stopped), None, Some(dark), None, Some(0), None] = lost[..] else {
        panic!("{lost:?}")
    };
    assert!(dark > 0 && stopped > 0 && black > 0, "{lost:?}");
    let last = |event: usize| events[event]["last_lost_ns"].as_u64();
    let after = |event: usize| last(event).unwrap() - events[event]["at_ns"].as_u64().unwrap();
    assert!([0, 2, 4].into_iter().all(|event| (1..100_000).contains(&after(event))), "{events:?}");
    assert_eq!((last(1), last(6)), (None, None));
    // Probes were lost there, too, later.
    let of_link = |link: &str, column: &str, to_us: f64| -> f64 {
        let rows = rows(&folder, "links.csv");
        let within = rows.iter().filter(|row| row["link"] == link && number(row, "time_us") <= to_us);
        within.map(|row| number(row, column)).sum()
    };
    let way = "p0-t0-0:p0-t1-0";
    assert!(of_link(way, "lost", 7_900.0) > of_link(way, "lost", 5_500.0), "a probe, long after");
    let summary = fs::read_to_string(folder.join("summary.md")).unwrap();
    let line = format!(
        "at 5.000 ms, {way}: dark; {dark} data packets lost there, the last {:.3} us later\n",
        after(4) as f64 / 1e3
    );
    assert!(summary.contains(&line), "{line} in {summary}");
    assert!(summary.contains("- of 4 faults, the last data packet was lost 0.000 us (least)"), "{summary}");
}

#[test]
fn packets_on_a_link_are_captured() {
    let text = "[plan]\ntitle = \"x\"\nduration = \"100us\"\n[fabric]\n\
         [[workload]]\nkind = \"write\"\nfrom = \"h1\"\nto = \"h4\"\nsize = \"50000\"\ncount = 3\n\
         [[variant]]\nname = \"a\"\n[[variant]]\nname = \"b\"\nset = { \"workload.0.count\" = 4 }\n";
    let plan = Plan::new("capture", text);
    let folder = plan.run("results", &["--capture", "h1:p0-t0-0,h4:p0-t0-1"]);
    let samples = rows(&folder, "samples.csv");
    for (variant, file) in [("a", "packets-1.pcapng"), ("b", "packets-2.pcapng")] {
        let sent = samples.iter().filter(|row| row["variant"] == variant && row["host"] == "h1");
        let sent: u64 = sent.map(|row| row["sent"].parse::<u64>().unwrap()).sum();
        let seen = json(&run(&["dissect", "--json", folder.join(file).to_str().unwrap()]).stdout);
        let packets = seen["packets"].as_array().unwrap();
        let is_data = |packet: &&serde_json::Value| packet["opcode"].as_str().unwrap().starts_with("WRITE");
        // Each once, where it leaves the sender.
        assert_eq!(packets.iter().filter(is_data).count() as u64, sent, "{variant}");
        // And the answers.
        let sources: BTreeSet<_> = packets.iter().map(|packet| packet["src"].as_str().unwrap()).collect();
        assert_eq!(sources.len(), 2, "{variant}: {sources:?}");
    }
    let (plan_file, folder) = (plan.path("plan.toml"), plan.path("others"));
    let refuse = |plan: &str, link: &str, parts: &[&str]| {
        refused(&["sim", plan, "-o", &folder, "--capture", link], &[parts, &["--capture"]].concat());
    };
    refuse(&plan_file, "h1:h2", &["h1 and h2 are not joined"]);
    refuse(&plan_file, "h1:p0-t0-0,h9", &["two nodes"]);
    refuse("all", "all", &["one plan"]);
    assert!(!Path::new(&folder).exists());
}

/// What one host sends takes its own paths, at its own pace; what others send to it does not.
#[test]
fn hosts_may_differ() {
    let text = "[plan]\ntitle = \"x\"\nduration = \"500us\"\nsample = \"250us\"\n[fabric]\nhosts_per_t0 = 3\n\
         [path]\nevs = [0x0, 0x80000000]\n[[host]]\nhosts = \"h2-h3\"\npath = { evs = [0x80000000] }\n\
         cc = { link_rate_gbps = 10 }\n[[host]]\nhosts = \"h5\"\n\
         [record]\nlinks = [\"p0-t0-0:p0-t1-0\", \"p0-t0-0:p0-t1-1\", \"p0-t0-1:p0-t1-0\"]\n[[workload]]\nkind = \"write\"\n";
    let rates = |name: &str, from: &str, to: &str| -> Vec<f64> {
        let plan = Plan::new(name, &format!("{text}from = \"{from}\"\nto = \"{to}\"\n"));
        let rows = rows(&plan.run("results", &[]), "links.csv");
        rows.iter().skip(3).map(|row| number(row, "gbps")).collect()
    };
    let usual = rates("differ-not", "h1", "h4");
    assert!((45.0..55.0).contains(&usual[0]) && (45.0..55.0).contains(&usual[1]), "{usual:?}");
    let own = rates("differ", "h3", "h4");
    assert!(own[0] < 0.1 && (5.0..90.0).contains(&own[1]), "{own:?}");
    // Its answers take its own path, too; what comes to it takes the sender's.
    let back = rates("differ-back", "h4", "h3");
    assert!(back[0] < 0.1 && (0.1..5.0).contains(&back[1]) && (45.0..55.0).contains(&back[2]), "{back:?}");
}

/// A connection that gives up makes the command fail, with the results written.
#[test]
fn a_failed_connection_is_told() {
    let text = format!(
        "[plan]\ntitle = \"Cut off\"\nduration = \"2s\"\nsample = \"100ms\"\n{FABRIC}\
         [transport]\ntimeout = 4\nlinear_retries = 1\nexponential_retries = 1\n\
         [[workload]]\nkind = \"write\"\nfrom = \"h1\"\nto = \"h5\"\ncount = 1000\n\
         [[fault]]\nat = \"100us\"\nwhere = \"h5\"\naction = \"dark\"\n"
    );
    let plan = Plan::new("cut-off", &text);
    let output = run(&["sim", &plan.path("plan.toml"), "-o", &plan.path("results")]);
    let error = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(
        error.contains("workload write: a connection failed at ") && error.contains("all retries"),
        "{error}"
    );
    assert!(stdout(&output).contains("1 FAILURE, the first at "), "{}", stdout(&output));
    let result = json(&fs::read(Path::new(&plan.path("results")).join("result.json")).unwrap());
    assert_eq!(result["variants"][0]["workloads"][0]["failures"].as_array().unwrap().len(), 1);
    assert_eq!(result["variants"][0]["done"], false);
}

#[test]
fn results_that_cannot_be_written_are_told() {
    let text = format!(
        "[plan]\ntitle = \"x\"\nduration = \"10us\"\n{FABRIC}[[workload]]\nkind = \"permutation\"\ncount = 1\n"
    );
    let plan = Plan::new("unwritable", &text);
    let output = run(&["sim", &plan.path("plan.toml"), "-o", &plan.path("plan.toml/results")]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("plan.toml/results"), "{}", stderr(&output));
}

/// The former names of the command and of the table do the same.
#[test]
fn the_former_names_are_accepted() {
    let text = format!(
        "[plan]\ntitle = \"x\"\nduration = \"20us\"\n{FABRIC}[[workload]]\nkind = \"permutation\"\nsize = \"1M\"\ncount = 1\n\
         [[variant]]\nname = \"short\"\n[[variant]]\nname = \"long\"\nset = {{ \"plan.duration\" = \"30us\" }}\n"
    );
    let former = text.replace("[plan]", "[experiment]").replace("plan.duration", "experiment.duration");
    let result = |command: &str, plan: &Plan| {
        let results = plan.path("results");
        let output = run(&[command, &plan.path("plan.toml"), "-o", &results, "--json"]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        json(&output.stdout)
    };
    let now = result("sim", &Plan::new("names-now", &text));
    let ended = |variant: usize| now["variants"][variant]["ended_ns"].as_u64();
    assert_eq!((ended(0), ended(1)), (Some(20_000), Some(30_000)));
    assert_eq!((&now["plan"], &now["experiment"]), (&"plan".into(), &"plan".into()));
    assert_eq!(result("experiment", &Plan::new("names-former", &former)), now);
    let both = Plan::new("names-both", &format!("{text}[experiment]\n"));
    let output = run(&["sim", &both.path("plan.toml")]);
    assert!(stderr(&output).contains("duplicate field `plan`"), "{}", stderr(&output));
    assert_eq!(output.status.code(), Some(2));
    let soon = Plan::new("names-soon", &former.replace("20us", "soon"));
    refused(&["sim", &soon.path("plan.toml")], &["line 3, column 12: plan.duration", "`soon`"]);
    let set = Plan::new("names-set", &former.replace("30us", "soon"));
    refused(&["sim", &set.path("plan.toml")], &["variant.1.set: plan.duration", "`soon`"]);
}

/// The picture of the README is the one that its plan draws now.
#[test]
fn the_picture_of_the_readme_is_drawn_by_its_plan() {
    let folder = temp("lost-plane");
    let output = run(&["sim", "lost-plane", "-o", folder.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let fresh = fs::read_to_string(folder.join("figure.svg")).unwrap();
    fs::remove_dir_all(folder).unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/lost-plane.svg");
    if std::env::var_os("SPINDRIFT_BLESS").is_some() {
        fs::write(path, fresh).unwrap();
    } else if fs::read_to_string(path).unwrap() != fresh {
        panic!(
            "docs/lost-plane.svg differs from what `spindrift sim lost-plane` draws; SPINDRIFT_BLESS=1 writes it"
        );
    }
}

/// Plans that take nine tenths of the time of all.
const LONG: [&str; 13] = [
    "figure-5",
    "ablation",
    "drop",
    "figure-4",
    "figure-15",
    "figure-15-hosts",
    "figure-16",
    "figure-18c",
    "figure-20",
    "incast",
    "loss",
    "oversubscribed",
    "slow-link",
];

/// The sections of a page of experiments, by plan.
fn sections(page: &str) -> Vec<(&str, &str)> {
    page.split("\n## `").skip(1).filter_map(|section| section.split_once('`')).collect()
}

/// What a page that differs is called.
const OLD: &str =
    "docs/experiments.md is old: run `spindrift sim all --seeds 10` and copy results/experiments.md to docs";

/// All of the page but the long plans; of these, that their claims hold with the first seed. The whole page, which takes a quarter of an hour
/// of processor time, with `SPINDRIFT_ALL_PLANS`.
#[test]
#[ignore = "slow: tools/check-all.sh"]
fn the_page_of_experiments_is_true() {
    let long = if std::env::var_os("SPINDRIFT_ALL_PLANS").is_some() { &[][..] } else { &LONG[..] };
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/experiments.md");
    let page = fs::read_to_string(page).unwrap();
    let known = sections(&page);
    assert!(LONG.iter().all(|long| known.iter().any(|(plan, _)| plan == long)));
    let short: Vec<_> = known.iter().map(|(plan, _)| *plan).filter(|plan| !long.contains(plan)).collect();
    let of_short = Plan::new("short", "");
    let output = run(&[&["sim"], &short[..], &["--seeds", "10", "-o", &of_short.path("results")]].concat());
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
    let fresh = fs::read_to_string(of_short.path("results/experiments.md")).unwrap();
    assert_eq!(sections(&fresh).len(), short.len());
    for (plan, section) in sections(&fresh) {
        let old = known.iter().find(|(known, _)| *known == plan).unwrap().1.trim_end();
        let off = old.lines().zip(section.trim_end().lines()).find(|(old, new)| old != new);
        assert!(old == section.trim_end(), "{plan}: {OLD}; {off:?}");
    }
    assert!(Path::new(&of_short.path("results/figure-10/figure.svg")).exists());
    assert!(
        stdout(&output).contains("figure-10: 4 of 4 claims hold with all 10 seeds\n"),
        "{}",
        stdout(&output)
    );
    if long.is_empty() {
        assert_eq!(fresh, page, "{OLD}");
        return;
    }
    let of_long = Plan::new("long", "");
    let output = run(&[&["sim"], long, &["-o", &of_long.path("results")]].concat());
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""), "{}", stdout(&output));
}
