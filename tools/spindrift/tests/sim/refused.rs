//! Plans that cannot be carried out, and how people are told.

use std::fs;
use std::path::Path;

use super::support::{refused, run, stderr};
use super::{FABRIC, Plan};

#[test]
#[expect(clippy::too_many_lines, reason = "one row for each thing that can be wrong")]
fn plans_that_cannot_be_are_refused_with_their_place() {
    let base = format!(
        "[plan]\ntitle = \"x\"\nduration = \"1ms\"\n{FABRIC}[[workload]]\nkind = \"write\"\nfrom = \"h1\"\nto = \"h2\"\n"
    );
    let fault = |rest: &str| format!("{base}[[fault]]\n{rest}\n");
    let other = |from: &str, to: &str| {
        assert!(base.contains(from), "{from}");
        base.replace(from, to)
    };
    let workload = |rest: &str| other("kind = \"write\"\nfrom = \"h1\"\nto = \"h2\"\n", rest);
    let claim = |rest: &str| format!("{base}[[claim]]\n{rest}\n");
    let variant = |rest: &str| format!("{base}[[variant]]\n{rest}\n");
    for (number, (text, parts)) in [
        (other("title = \"x\"\n", ""), &["line 1, column 1", "`title` is missing"][..]),
        (other("duration = \"1ms\"\n", ""), &["line 1", "`duration` is missing"]),
        (other("\"1ms\"", "\"soon\""), &["line 3, column 12", "`soon` is not a duration"]),
        (other("\"1ms\"", "\"1ms\"\nsample = \"1ns\""), &["line 4, column 10", "a longer interval"]),
        (other("planes = 2", "planes = 0"), &["line 5, column 10", "planes"]),
        (other("t1 = 4", "t1 = 4\necn_low = \"5us\"\necn_high = \"4us\""), &["line 9, column 12", "ecn_low"]),
        (other("\"100G\"", "\"fast\""), &["line 9, column 13", "fast"]),
        (other("\"h1\"", "\"h9\""), &["line 12, column 8", "no host \"h9\"", "h1 to h8"]),
        (other("\"h1\"", "\"h3-h2\""), &["line 12, column 8", "h3-h2", "ends before"]),
        (other("\"h1\"", "\"h2\""), &["line 13, column 6", "h2 sends to itself"]),
        (other("\"h2\"", "\"h2-h4\"").replace("\"h1\"", "\"h1, h5\""), &["line 13", "3 hosts for 2"]),
        (workload(""), &["line 10", "`kind` is missing"]),
        (workload("kind = \"write\"\nto = \"h2\""), &["line 10", "`from` is missing"]),
        (workload("kind = \"write\"\nby = 3"), &["line 12, column 6", "kind write", "from, to, connections"]),
        (workload("kind = \"permutation\"\nby = 8"), &["line 12", "to itself"]),
        (workload("kind = \"permutation\"\nhosts = \"h1,h1\""), &["line 12", "named once"]),
        (workload("kind = \"permutation\"\nsize = \"0\""), &["line 12, column 8", "1 byte or more"]),
        (workload("kind = \"permutation\"\nsize = \"4G\""), &["line 12, column 8", "less than 4 GiB"]),
        (workload("kind = \"permutation\"\ndepth = 0"), &["line 12", "1 or more"]),
        (workload("kind = \"permutation\"\ncount = 0"), &["line 12", "1 or more"]),
        (
            workload("kind = \"permutation\"\nstart = \"2us\"\nstop = \"1us\""),
            &["line 13", "ends before it begins"],
        ),
        (workload("kind = \"all-reduce\"\nsize = \"64G\""), &["line 12", "less than 4 GiB"]),
        (workload("kind = \"poisson\"\nstop = \"1us\""), &["line 10", "`load` is missing"]),
        (workload("kind = \"poisson\"\nload = 0.5"), &["line 10", "`stop` is missing"]),
        (workload("kind = \"poisson\"\nload = 0.0\nstop = \"1us\""), &["line 12, column 8", "above 0"]),
        (
            workload("kind = \"poisson\"\nload = 1\nstop = \"1us\"\nsizes = [[\"1K\", 50]]"),
            &["line 14, column 9", "up to 100"],
        ),
        (workload("kind = \"trace\""), &["line 10", "`file` is missing"]),
        (workload("kind = \"trace\"\nfile = \"none.csv\""), &["line 12, column 8", "none.csv"]),
        (
            format!("{base}[[workload]]\nkind = \"write\"\nname = \"write\"\nfrom = \"h1\"\nto = \"h2\"\n"),
            &["line 16", "called write"],
        ),
        (
            other("t0 = 2\nt1 = 4\nhosts_per_t0 = 4", "t0 = 1\nhosts_per_t0 = 1"),
            &["line 7, column 16", "two hosts"],
        ),
        (other("t1 = 4", "t1 = 4\npods = 3"), &["line 8, column 8", "pods = 3: 2 T0 switches"]),
        (other("t1 = 4", "t1 = 4\npods = 2\nt2 = 0"), &["line 9, column 6", "t2 = 0: 2 pods need"]),
        (other("t1 = 4", "t1 = 4\nt2 = 3"), &["line 8, column 6", "t2 = 3", "set pods to 2"]),
        (other("t1 = 4", "t1 = 4\nt2 = 300"), &["line 8, column 6", "t2 = 300: must be 0 to 256"]),
        (other("t0 = 2\nt1 = 4", "t0 = 3\nt1 = 0"), &["line 7, column 6", "t0 to 1 or 2"]),
        (
            format!("{base}[transport]\nmpr = 0\n"),
            &["line 15, column 7", "transport.mpr: attribute `mpr` is 0"],
        ),
        (
            format!("{base}[transport]\ndepth = 70000\n"),
            &["line 15, column 9", "transport.depth: attribute `depth` is 70000"],
        ),
        (format!("{base}[transport]\nsack_threshold_bytes = 0\n"), &["line 15, column 24", "at least 1"]),
        (format!("{base}[transport]\ntail_probe_floor_ns = 0\n"), &["line 15, column 23", "at least 1"]),
        (format!("{base}[transport]\ntimeout = 99\n"), &["line 15, column 11", "1 to 24"]),
        (format!("{base}[transport]\nlinear_retries = 8\n"), &["line 15, column 18", "0 to 7"]),
        (format!("{base}[transport]\nexponential_retries = 26\n"), &["line 15, column 23", "0 to 25"]),
        (format!("{base}[path]\nevs = [1, 2]\n"), &["line 15, column 7", "entropy value"]),
        (format!("{base}[cc]\nlink_rate_gbps = 0\n"), &["line 15, column 18", "at least 1"]),
        (format!("{base}[cc]\nbase_rtt_ns = 0\n"), &["line 15, column 15", "at least 1"]),
        (format!("{base}[transport]\nmtu = 1500\n"), &["line 15, column 7", "1500", "4096"]),
        (format!("{base}[transport]\ndepth = 0\n"), &["line 15", "at least one"]),
        (format!("{base}[path]\nactive = 1\n"), &["line 15, column 10", "active = 1"]),
        (format!("{base}[path]\nmin_active = 500\n"), &["line 15, column 14", "min_active = 500"]),
        (format!("{base}[[host]]\npath = {{}}\n"), &["line 14", "`hosts` is missing"]),
        (format!("{base}[[host]]\nhosts = \"h9\"\n"), &["line 15, column 9", "no host \"h9\""]),
        (format!("{base}[[host]]\nhosts = \"h1, h1\"\n"), &["line 15, column 9", "h1 is named twice"]),
        (
            format!("{base}[[host]]\nhosts = \"h1-h3\"\n[[host]]\nhosts = \"h3-h5\"\n"),
            &["line 17, column 9", "h3 is named twice"],
        ),
        (
            format!("{base}[[host]]\nhosts = \"h1\"\npath = {{ evs = [1, 2] }}\n"),
            &["line 16, column 16", "entropy value"],
        ),
        (
            format!("{base}[[host]]\nhosts = \"h1\"\npath = {{ active = 1 }}\n"),
            &["line 16, column 19", "active = 1"],
        ),
        (
            format!("{base}[[host]]\nhosts = \"h1\"\ncc = {{ base_rtt_ns = 0 }}\n"),
            &["line 16, column 22", "at least 1"],
        ),
        (format!("{base}[record]\nhosts = \"h1-h99\"\n"), &["line 15, column 9", "h99"]),
        (
            format!("{base}[record]\nlinks = [\"h1:p0-t0-0\", \"h1:h2\"]\n"),
            &["line 15, column 24", "not joined"],
        ),
        (fault("where = \"h1\""), &["line 14", "`action` is missing"]),
        (fault("action = \"down\""), &["line 14", "`where` is missing"]),
        (
            fault("where = \"h1\"\naction = \"explode\""),
            &["line 16, column 10", "explode", "down, dark, stop"],
        ),
        (fault("where = \"h1, h77\"\naction = \"down\""), &["line 15, column 9", "h77"]),
        (fault("where = \"h1\"\naction = \"stop\""), &["line 16", "for switches"]),
        (fault("where = \"p0-t0-0\"\naction = \"pause\"\nfor = \"1us\""), &["line 16", "for hosts"]),
        (fault("where = \"h1\"\naction = \"pause\""), &["line 16", "`for`"]),
        (fault("where = \"h1\"\naction = \"down\"\nevery = \"1us\""), &["line 17", "`for`"]),
        (variant("name = \"a\"\nset = { \"fabric.t1\" = \"many\" }"), &["line 16", "set"]),
        (variant("name = \"a\"\nset = { \"fabric.t9\" = 1 }"), &["line 16", "t9"]),
        (variant("name = \"a\"\nset = { \"t1\" = 1 }"), &["line 16", "t1", "fabric.t1"]),
        (variant("name = \"a\"\nset = { \"workload.7.size\" = \"1M\" }"), &["line 16", "no 7"]),
        (
            variant("name = \"a\"\nset = { \"workload.0.size\" = \"0\" }"),
            &["line 16", "workload.0.size", "1 byte"],
        ),
        (variant("name = \"a\"\n[[variant]]\nname = \"a\""), &["line 17, column 8", "its own name"]),
        (variant("name = \"a, b\""), &["line 15, column 8", "not contain commas"]),
        (workload("kind = \"permutation\"\nname = \"a\\\"b\""), &["line 12, column 8", "quotation marks"]),
        (other("\"1ms\"", "\"1ms\"\nfigure = \"variants\""), &["line 4, column 10", "no [[variant]]"]),
        (other("[[workload]]\nkind = \"write\"\nfrom = \"h1\"\nto = \"h2\"\n", ""), &["no [[workload]]"]),
        (claim("measure = \"payload\"\nleast = 1"), &["line 14", "`what` is missing"]),
        (claim("what = \"x\"\nleast = 1"), &["line 14", "`measure` is missing"]),
        (claim("what = \"x\"\nmeasure = \"payload\""), &["line 15, column 8", "needs `least`"]),
        (
            claim("what = \"x\"\nmeasure = \"queue\"\nleast = 1\nhosts = \"h1\""),
            &["line 18, column 9", "`links`"],
        ),
        (claim("what = \"x\"\nmeasure = \"sent\"\nleast = 1\nhosts = \"h3\""), &["line 18", "recorded"]),
        (
            claim("what = \"x\"\nmeasure = \"queue\"\nleast = 1\nlinks = [\"h1:p0-t0-0\"]"),
            &["line 18", "recorded"],
        ),
        (
            claim("what = \"x\"\nmeasure = \"failures\"\nmost = 1\nworkload = \"y\""),
            &["line 18", "\"y\"", "write"],
        ),
        (
            claim("what = \"x\"\nmeasure = \"sent\"\nleast = 1\nto = \"2ms\""),
            &["line 18, column 6", "ends before"],
        ),
        (
            claim("what = \"x\"\nmeasure = \"sent\"\nleast = 1\nfrom = \"999us\""),
            &["line 18, column 8", "sample"],
        ),
        (
            claim(
                "what = \"x\"\nmeasure = \"sent\"\nleast = 1\nagainst = { from = \"0.5ms\", to = \"0.5ms\" }",
            ),
            &["line 18", "sample"],
        ),
        (
            claim("what = \"x\"\nmeasure = \"sent\"\nleast = 1\nvariant = \"z\""),
            &["line 18, column 11", "\"z\""],
        ),
        (
            claim("what = \"x\"\nmeasure = \"sent\"\nleast = 1\nagainst = { variant = \"z\" }"),
            &["line 18", "\"z\""],
        ),
        (claim("what = \"x\"\nmeasure = \"bypass-time\"\nleast = 1\nhosts = \"h1\""), &["line 18", "faults"]),
        (
            claim("what = \"x\"\nmeasure = \"message-time\"\nleast = 1\ninterval = \"0.5ms\""),
            &["line 18, column 12", "counted once"],
        ),
        (
            claim("what = \"x\"\nmeasure = \"sent\"\nleast = 1\ninterval = \"9us\""),
            &["line 18, column 12", "plan.sample"],
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let plan = Plan::new(&format!("refused-{number}"), &text);
        refused(
            &["sim", &plan.path("plan.toml"), "-o", &plan.path("results")],
            &[parts, &["plan.toml"]].concat(),
        );
        assert!(!Path::new(&plan.path("results")).exists(), "{text}");
    }
}

/// The parser's own errors have the line in them.
#[test]
fn keys_that_are_none_are_refused() {
    for (number, (text, parts)) in [
        ("[plan]\ntitel = \"x\"\n", ["line 2, column 1", "titel"]),
        ("[plan]\ntitle = 3\n", ["line 2, column 9", "string"]),
        ("[plan]\ntitle = \"x\"\n[[workload]]\nkind = \"wriet\"\n", ["line 4, column 8", "wriet"]),
        ("[dcqcn]\nprofile = \"fast\"\n", ["line 2, column 11", "`most-aggressive`"]),
        ("[transport]\nkind = \"tcp\"\n", ["line 2, column 8", "`mrc` or `roce`"]),
        ("[plan\n", ["line 1", "]"]),
    ]
    .into_iter()
    .enumerate()
    {
        let plan = Plan::new(&format!("unknown-{number}"), text);
        let output = run(&["sim", &plan.path("plan.toml")]);
        let error = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    }
    refused(&["sim", "/none.toml"], &["/none.toml", "cannot read the plan"]);
    refused(&["sim", "figure-1"], &["no built-in plan \"figure-1\"", "figure-10", ".toml"]);
}

#[test]
fn lines_of_a_trace_that_cannot_be_are_named() {
    let base = format!(
        "[plan]\ntitle = \"x\"\nduration = \"1ms\"\n{FABRIC}[[workload]]\nkind = \"trace\"\nfile = \"trace.csv\"\n"
    );
    for (number, (trace, parts)) in [
        ("0,h1,h2\n", ["line 1", "start_ns,from,to,bytes"]),
        ("start_ns,from,to,bytes\n0,h1,h2,1\nx,h1,h2,1\n", ["line 3", "start_ns is \"x\""]),
        ("0,h1,h2,1\n\n0,h1,h9,1\n", ["line 3", "no host \"h9\""]),
        ("0,h1,h1,1\n", ["line 1", "to itself"]),
        ("0,h1,h2,0\n", ["line 1", "at least one byte"]),
        ("0,h1,h2,4294967296\n", ["line 1", "bytes is"]),
        ("# none\n0,h1,h2,1,0\n", ["line 2", "not before it"]),
    ]
    .into_iter()
    .enumerate()
    {
        let plan = Plan::new(&format!("trace-{number}"), &base);
        fs::write(plan.path("trace.csv"), trace).unwrap();
        refused(&["sim", &plan.path("plan.toml")], &[&parts[..], &["trace.csv"]].concat());
    }
}
