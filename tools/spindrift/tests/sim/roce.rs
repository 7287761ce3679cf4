//! Plans with RoCE, priority flow control and several queue pairs.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value as Json;

use super::support::{json, refused, run, stderr};
use super::{FILES, Plan, bytes, number, rows};

/// Two racks of four hosts at 100 Gb/s, and an incast of three across the spine that fills the buffers. Rates recover quickly, so that it does again
/// and again.
const INCAST: &str = "[plan]\ntitle = \"Incast\"\nduration = \"600us\"\nsample = \"10us\"\n\
     [fabric]\nt0 = 2\nt1 = 4\nhosts_per_t0 = 4\n[record]\nhosts = \"all\"\nlinks = [\"all\"]\n\
     [transport]\nkind = \"roce\"\n[pfc]\nshared = \"1M\"\n\
     [dcqcn]\nkmin = \"50K\"\nkmax = \"400K\"\ntimer = \"50us\"\nfast_recovery = 1\nhyper = \"20G\"\n\
     [[workload]]\nkind = \"write\"\nsize = \"64K\"\nfrom = \"h5-h7\"\nto = \"h1\"\n";

fn result(folder: &Path) -> Json {
    json(&fs::read(folder.join("result.json")).unwrap())
}

/// Runs a plan with claims, and returns the results and what was measured, claim by claim.
fn measured(name: &str, text: &str) -> (PathBuf, Plan, Vec<f64>) {
    let plan = Plan::new(name, text);
    let folder = plan.run("results", &[]);
    let claims = result(&folder)["variants"][0]["claims"].as_array().unwrap().clone();
    let values = claims.iter().map(|claim| claim["value"].as_f64().unwrap()).collect();
    (folder, plan, values)
}

fn sum(rows: &[BTreeMap<String, String>], column: &str) -> f64 {
    rows.iter().map(|row| number(row, column)).sum()
}

/// The bytes are the same whatever runs in parallel, for RoCE and MRC in one plan.
#[test]
fn two_runs_with_roce_write_the_same_bytes() {
    let text = format!(
        "{INCAST}[[fault]]\nwhere = \"h1\"\naction = \"loss=1%,dir=down\"\n\
         [[variant]]\nname = \"one\"\n[[variant]]\nname = \"four\"\nset = {{ \"workload.0.qps\" = 4 }}\n"
    );
    let plan = Plan::new("roce-twice", &text);
    let first = plan.run("first", &["-j", "1", "--seeds", "2"]);
    let second = plan.run("second", &["-j", "2", "--seeds", "2"]);
    assert_eq!(bytes(&first), bytes(&second));
    let other = plan.run("other", &["--seed", "6", "--seeds", "2"]);
    // RoCE has no entropy values.
    for (name, (one, another)) in FILES.iter().zip(bytes(&first).iter().zip(&bytes(&other))) {
        assert!(one != another || *name == "evs.csv", "{name}");
    }
    let variants = &result(&first)["variants"];
    for variant in [0, 1] {
        let hosts = &variants[variant]["totals"]["hosts"];
        assert!(hosts["sequence_naks"].as_u64() > Some(0) && hosts["cnps"].as_u64() > Some(0), "{hosts}");
    }
}

/// A variant of each kind really runs that transport: RoCE's headers are shorter, it is not trimmed, and it has CNPs; MRC the other way
/// round.
#[test]
fn a_plan_may_have_both_transports() {
    let (from, to) = (INCAST.find("[transport]").unwrap(), INCAST.find("[[workload]]").unwrap());
    let base = [&INCAST[..from], &INCAST[to..]].concat();
    let roce = "\"transport.kind\" = \"roce\", \"pfc.shared\" = \"1M\"";
    let marks = "\"dcqcn.kmin\" = \"50K\", \"dcqcn.kmax\" = \"400K\"";
    let text = format!(
        "{base}[[variant]]\nname = \"MRC\"\n[[variant]]\nname = \"RoCE\"\nset = {{ {roce}, {marks} }}\n\
         [[variant]]\nname = \"off\"\nset = {{ {roce}, \"dcqcn.profile\" = \"off\" }}\n\
         [[variant]]\nname = \"lossy\"\nset = {{ \"transport.kind\" = \"roce\", \"pfc.enabled\" = false, {marks} }}\n"
    );
    let plan = Plan::new("roce-both", &text);
    let variants = result(&plan.run("results", &[]))["variants"].clone();
    let summary = fs::read_to_string(plan.path("results/summary.md")).unwrap();
    assert_eq!(summary.matches(", RoCE, ").count(), 3, "{summary}");
    for (number, (kind, cnps, pauses, dropped, trimmed)) in [
        ("mrc", false, false, false, true),
        ("roce", true, true, false, false),
        ("roce", false, true, false, false),
        ("roce", true, false, true, false),
    ]
    .into_iter()
    .enumerate()
    {
        let variant = &variants[number];
        assert_eq!(variant["transport"], kind);
        let [hosts, links] = ["hosts", "links"].map(|part| &variant["totals"][part]);
        let any = |part: &Json, key: &str| part[key].as_u64().unwrap() > 0;
        assert_eq!((any(hosts, "cnps"), any(links, "pauses")), (cnps, pauses), "{variant}");
        assert_eq!((any(links, "dropped"), any(links, "trimmed")), (dropped, trimmed), "{variant}");
        // Ports to hosts mark for RoCE alone, and no other queue is full.
        assert_eq!(any(links, "marked"), cnps, "{variant}");
    }
}

/// Claims, tables, totals and the summary count the same pauses, CNPs and NAKs.
#[test]
fn pauses_and_cnps_are_counted_once() {
    let claim = |keys: &str| format!("[[claim]]\nwhat = \"x\"\nleast = 0\n{keys}\n");
    let text = [
        INCAST.to_owned(),
        "[[fault]]\nwhere = \"h1\"\naction = \"loss=0.5%,dir=down\"\n".to_owned(),
        claim("measure = \"pauses\""),
        claim("measure = \"paused-time\""),
        claim("measure = \"paused-time\"\nfrom = \"50us\"\nto = \"300us\""),
        claim("measure = \"cnps\""),
        claim("measure = \"sequence-naks\"\nhosts = \"h5-h7\""),
        claim("measure = \"pauses\"\ninterval = \"50us\"\npick = \"max\""),
        claim("measure = \"payload\"\nhosts = \"h1\"\ninterval = \"50us\"\npick = \"min\""),
        claim("measure = \"connection-rate\"\nfrom = \"200us\"\nto = \"500us\"\npick = \"max\""),
    ]
    .concat();
    let (folder, _plan, values) = measured("roce-counts", &text);
    let (links, samples) = (rows(&folder, "links.csv"), rows(&folder, "samples.csv"));
    let result = result(&folder);
    let totals = &result["variants"][0]["totals"];
    let total = |part: &str, key: &str| totals[part][key].as_f64().unwrap();
    let close = |one: f64, other: f64| assert!((one - other).abs() < 0.1, "{one} {other}");
    assert!(values.iter().all(|value| *value > 0.0), "{values:?}");
    close(values[0], total("links", "pauses"));
    close(values[0], sum(&links, "pauses"));
    close(values[1], total("links", "paused_ns") / 1e3);
    close(values[1], sum(&links, "paused_us"));
    let within = |row: &BTreeMap<String, String>, from: f64, to: f64| {
        number(row, "time_us") > from + 1e-6 && number(row, "time_us") < to + 1e-6
    };
    let own: Vec<_> = links.iter().filter(|row| within(row, 50.0, 300.0)).cloned().collect();
    close(values[2], sum(&own, "paused_us"));
    close(values[3], total("hosts", "cnps"));
    close(values[3], sum(&samples, "cnps"));
    close(values[4], total("hosts", "sequence_naks"));
    close(values[4], sum(&samples, "sequence_naks"));
    let summary = fs::read_to_string(folder.join("summary.md")).unwrap();
    let parts = [
        format!("{} CNPs, {} NAKs", total("hosts", "cnps"), total("hosts", "sequence_naks")),
        format!("stopped {} times, for {:.1} us", total("links", "pauses"), values[1]),
    ];
    assert!(parts.iter().all(|part| summary.contains(part)), "{parts:?} {summary}");
    // The interval with most pauses of a link, and that with the least payload.
    let (mut most, mut least) = (0.0_f64, f64::MAX);
    for from in (0..600).step_by(50).map(f64::from) {
        let part: Vec<_> = links.iter().filter(|row| within(row, from, from + 50.0)).cloned().collect();
        for link in part.iter().map(|row| &row["link"]) {
            let own: Vec<_> = part.iter().filter(|row| row["link"] == *link).cloned().collect();
            most = most.max(sum(&own, "pauses"));
        }
        let of_h1 = samples.iter().filter(|row| row["host"] == "h1" && within(row, from, from + 50.0));
        least = least.min(of_h1.map(|row| number(row, "gbps")).sum::<f64>() / 5.0);
    }
    close(values[5], most);
    close(values[6], least);
    let messages = rows(&folder, "messages.csv");
    let rate = |from: &str| {
        let done = |row: &&BTreeMap<String, String>| {
            let at = number(row, "complete_ns");
            row["from"] == from && at > 200e3 && at <= 500e3
        };
        messages.iter().filter(done).map(|row| number(row, "bytes")).sum::<f64>() * 8.0 / 300e3
    };
    close(values[7], ["h5", "h6", "h7"].map(rate).into_iter().fold(0.0, f64::max));
}

/// Whatever the transport, messages are whole, each part is sent once, and several queue pairs take several paths.
#[test]
fn queue_pairs_of_a_workload_share_its_messages() {
    let roce = "[transport]\nkind = \"roce\"\n[dcqcn]\nprofile = \"off\"\n";
    for (name, transport) in [("mrc", ""), ("roce", roce)] {
        let text = format!(
            "[plan]\ntitle = \"x\"\nduration = \"10ms\"\nsample = \"100us\"\n\
             [fabric]\nt0 = 2\nt1 = 8\nhosts_per_t0 = 2\n[record]\nlinks = [\"all\"]\n{transport}\
             [[workload]]\nkind = \"write\"\nsize = \"100000\"\ncount = 40\nfrom = \"h1\"\nto = \"h3\"\n\
             [[workload]]\nkind = \"all-reduce\"\nsize = \"50001\"\n\
             [[variant]]\nname = \"one\"\n\
             [[variant]]\nname = \"eight\"\nset = {{ \"workload.0.qps\" = 8, \"workload.1.qps\" = 3 }}\n"
        );
        let plan = Plan::new(&format!("qps-{name}"), &text);
        let folder = plan.run("results", &[]);
        let summary = fs::read_to_string(folder.join("summary.md")).unwrap();
        assert!(summary.contains("- write: 1 connection of 8 queue pairs, 40 messages; "), "{summary}");
        let (variants, messages) = (result(&folder)["variants"].clone(), rows(&folder, "messages.csv"));
        let links = rows(&folder, "links.csv");
        for (variant, qps) in [("one", [1, 1]), ("eight", [8, 3])] {
            let number_of = usize::from(variant == "eight");
            assert_eq!(variants[number_of]["done"], true, "{name}");
            for (job, qps) in qps.into_iter().enumerate() {
                assert_eq!(variants[number_of]["workloads"][job]["qps"], qps, "{name}");
            }
            let own = messages.iter().filter(|row| row["variant"] == variant);
            let writes: Vec<_> = own.filter(|row| row["workload"] == "write").collect();
            assert!(writes.len() == 40 && writes.iter().all(|row| row["bytes"] == "100000"), "{name}");
            let hosts = &variants[number_of]["totals"]["hosts"];
            // 25 packets in a write, and 4 in each of the 24 parts of the all-reduce, however they are cut.
            let sent = hosts["sent"].as_u64().unwrap() - hosts["repeats"].as_u64().unwrap();
            assert_eq!(sent, 40 * 25 + 24 * 4, "{name} {variant}: {hosts}");
            assert_eq!(hosts["payload_bytes"].as_u64(), Some(40 * 100_000 + 24 * 12_501), "{name}");
            let used = (0..8).filter(|t1| {
                let link = format!("p0-t0-0:p0-t1-{t1}");
                let of_link = |row: &&BTreeMap<_, _>| row["variant"] == variant && row["link"] == link;
                // More than the all-reduce and acknowledgements.
                let kb = links.iter().filter(of_link).map(|row| number(row, "gbps") * 100.0 / 8.0);
                kb.sum::<f64>() > 450.0
            });
            let used = used.count();
            let expected = if name == "roce" && variant == "one" { 1..=1 } else { 3..=8 };
            assert!(expected.contains(&used), "{name} {variant}: {used} uplinks");
        }
    }
}

const ROCE: &str = "[transport]\nkind = \"roce\"\n";

/// A plan of five lines to which each of these texts is added is refused, with the place of the key and why.
fn refuse(name: &str, rows: &[(String, &str, &str)]) {
    let base = "[plan]\ntitle = \"x\"\nduration = \"1ms\"\n[[workload]]\nkind = \"permutation\"\n";
    for (number, (text, place, why)) in rows.iter().enumerate() {
        let plan = Plan::new(&format!("{name}-{number}"), &format!("{base}{text}"));
        refused(&["sim", &plan.path("plan.toml"), "-o", &plan.path("results")], &[place, why]);
    }
}

#[test]
fn keys_of_the_other_transport_are_refused() {
    let kind = |kind: &str| format!("does not apply to transport.kind = \"{kind}\"; leave it out");
    let (mrc_only, roce_only) = (kind("roce"), kind("mrc"));
    let (roce, mrc_only, roce_only) = (ROCE, mrc_only.as_str(), roce_only.as_str());
    refuse(
        "unfit",
        &[
            ("[dcqcn]\nprofile = \"vendor\"\n".to_owned(), "line 6, column 1: dcqcn", roce_only),
            (
                "[transport]\nretry_count = 3\n".to_owned(),
                "line 7, column 15: transport.retry_count",
                roce_only,
            ),
            ("[transport]\nack_every = 3\n".to_owned(), "line 7, column 13: transport.ack_every", roce_only),
            (format!("{roce}[path]\nactive = 8\n"), "line 8, column 1: path", mrc_only),
            (format!("{roce}[cc]\nshared = true\n"), "line 8, column 1: cc", mrc_only),
            (format!("{roce}[[host]]\nhosts = \"h1\"\n"), "line 8, column 1: host", mrc_only),
            (format!("{roce}trimming = true\n"), "line 8, column 12: transport.trimming", mrc_only),
            (format!("{roce}routing = \"srv6\"\n"), "line 8, column 11: transport.routing", mrc_only),
            (format!("{roce}mpr = 1\n"), "line 8, column 7: transport.mpr", mrc_only),
            (
                "[[variant]]\nname = \"a\"\nset = { \"transport.kind\" = \"roce\", \"path.active\" = 8 }\n"
                    .to_owned(),
                "line 8, column 7: variant.0.set: path.active",
                mrc_only,
            ),
            (
                "[[variant]]\nname = \"a\"\nset = { \"dcqcn.g\" = 1 }\n".to_owned(),
                "line 8, column 7: variant.0.set: dcqcn.g",
                roce_only,
            ),
        ],
    );
}

/// Keys without effect, and values that cannot be.
#[test]
fn settings_that_cannot_be_are_refused() {
    let roce = ROCE;
    refuse(
        "settings",
        &[
            (format!("{roce}mtu = 1500\n"), "line 8, column 7: transport.mtu", "256, 512, 1024"),
            (format!("{roce}timeout = 40\n"), "line 8, column 11: transport.timeout", "0 to 31"),
            (format!("{roce}retry_count = 8\n"), "line 8, column 15: transport.retry_count", "0 to 7"),
            (format!("{roce}ack_every = 0\n"), "line 8, column 13: transport.ack_every", "1 or more"),
            (format!("{roce}[fabric]\necn = true\n"), "line 9, column 7: fabric.ecn", "[dcqcn]"),
            (format!("{roce}[fabric]\necn_low = \"1us\"\n"), "line 9, column 11: fabric.ecn_low", "[dcqcn]"),
            (format!("{roce}[fabric]\ntrim = false\n"), "line 9, column 8: fabric.trim", "not trimmed"),
            (format!("{roce}[fabric]\nqueue = \"9us\"\n"), "line 9, column 9: fabric.queue", "with PFC"),
            (
                "[fabric]\ntrim = true\n[pfc]\nenabled = true\n".to_owned(),
                "line 7, column 8: fabric.trim",
                "set enabled = false in [pfc]",
            ),
            ("[pfc]\nalpha = 0.5\n".to_owned(), "line 7, column 9: pfc.alpha", "add enabled = true to [pfc]"),
            (format!("{roce}[pfc]\nalpha = 0\n"), "line 9, column 9: pfc.alpha", "0.001 to 64"),
            (format!("{roce}[pfc]\nxoff = \"1M\"\nalpha = 1\n"), "line 10, column 9: pfc.alpha", "`xoff`"),
            (
                format!("{roce}[pfc]\nxoff = \"1G\"\n"),
                "line 9, column 8: pfc.xoff",
                "4300 bytes, to `shared`, 32000000",
            ),
            (
                format!("{roce}[pfc]\nxoff = \"9K\"\nresume = \"10K\"\n"),
                "line 10, column 10: pfc.resume",
                "never",
            ),
            (format!("{roce}[pfc]\nshared = \"8K\"\n"), "line 9, column 10: pfc.shared", "8600 bytes"),
            (format!("{roce}[pfc]\nheadroom = \"much\"\n"), "line 9, column 12: pfc.headroom", "much"),
            (format!("{roce}[dcqcn]\nprofile = \"off\"\ng = 0.1\n"), "line 10, column 5: dcqcn.g", "\"off\""),
            (format!("{roce}[dcqcn]\ng = 0\n"), "line 9, column 5: dcqcn.g", "above 0"),
            (format!("{roce}[dcqcn]\npmax = 20\n"), "line 9, column 8: dcqcn.pmax", "0 to 1"),
            (
                format!("{roce}[dcqcn]\nkmin = \"2M\"\nkmax = \"1M\"\n"),
                "line 10, column 8: dcqcn.kmax",
                "`kmin`",
            ),
            (
                format!("{roce}[dcqcn]\nmin_rate = \"200G\"\n"),
                "line 9, column 12: dcqcn.min_rate",
                "host_rate",
            ),
            (format!("{roce}[dcqcn]\ntimer = \"soon\"\n"), "line 9, column 9: dcqcn.timer", "soon"),
            ("connections = 0\n".to_owned(), "line 6, column 15: workload.0.connections", "1 to 32768"),
            ("qps = 0\n".to_owned(), "line 6, column 7: workload.0.qps", "1 to 4096"),
            ("qps = 5000\n".to_owned(), "line 6, column 7: workload.0.qps", "1 to 4096"),
            (
                "qps = 4096\n[fabric]\nhosts_per_t0 = 20\n".to_owned(),
                "line 6, column 7: workload.0.qps",
                "40 connections of 4096 queue pairs",
            ),
        ],
    );
}

/// Each value of [dcqcn] and [pfc] has an effect: with another one, something else happens.
#[test]
fn single_values_override_the_profile() {
    let text = INCAST.replace("600us", "2ms");
    let usual = Plan::new("dcqcn-usual", &text);
    let usual = messages(&usual.run("results", &[]));
    for (number, keys) in [
        "[dcqcn]\nprofile = \"paper\"",
        "[dcqcn]\nkmin = \"30K\"",
        "[dcqcn]\nkmax = \"3M\"",
        "[dcqcn]\npmax = 1",
        "[dcqcn]\ncnp_interval = \"50us\"",
        "[dcqcn]\ng = 0.1",
        "[dcqcn]\nalpha_rule = \"each-cnp\"",
        "[dcqcn]\nalpha_interval = \"55us\"",
        "[dcqcn]\ndecrease_interval = \"50us\"",
        "[dcqcn]\ntimer = \"55us\"",
        "[dcqcn]\nbyte_counter = \"100K\"",
        "[dcqcn]\nfast_recovery = 3",
        "[dcqcn]\nadditive = \"5G\"",
        "[dcqcn]\nhyper = \"5G\"",
        "[dcqcn]\nhyper_grows = true",
        "[dcqcn]\nclamp_target = true",
        "[dcqcn]\nmin_rate = \"30G\"",
        "[transport]\nmtu = 1024",
        "[transport]\ndepth = 1",
        "[transport]\nack_every = 1",
        "[pfc]\nshared = \"2M\"",
        "[pfc]\nalpha = 1",
        "[pfc]\nxoff = \"50K\"",
        "[pfc]\nresume = \"40K\"",
    ]
    .into_iter()
    .enumerate()
    {
        let (table, keys) = keys.split_once('\n').unwrap();
        let names: Vec<_> = keys.lines().filter_map(|line| line.split_once(" = ")).collect();
        let is_other = |line: &&str| names.iter().all(|(name, _)| !line.starts_with(&format!("{name} = ")));
        let text: Vec<_> = text.lines().filter(is_other).collect();
        let text = format!("{}\n", text.join("\n")).replace(table, &format!("{table}\n{keys}"));
        let plan = Plan::new(&format!("dcqcn-{number}"), &text);
        assert_ne!(messages(&plan.run("results", &[])), usual, "{keys}");
    }
    // Without the headroom, what arrives after a link was told to stop is dropped.
    let text = text.replace("[pfc]\n", "[pfc]\nheadroom = \"5K\"\n");
    let plan = Plan::new("pfc-headroom", &text);
    let totals = result(&plan.run("results", &[]))["variants"][0]["totals"].clone();
    assert!(totals["links"]["dropped"].as_u64() > Some(0), "{totals}");
}

/// Without PFC, queues have the limits of the plan; by default 256 KiB at each port.
#[test]
fn queues_without_pfc_have_their_limits() {
    // An incast in a rack, without marks.
    let text = INCAST.replace("shared = \"1M\"", "enabled = false").replace("h5-h7", "h2-h4");
    let text = text.replace("[dcqcn]\n", "[dcqcn]\npmax = 0\n");
    let longest = |name: &str, keys: &str| {
        let text = text.replace("[fabric]\n", &format!("[fabric]\n{keys}"));
        let plan = Plan::new(name, &text.replace("kmax = \"400K\"", "kmax = \"900K\""));
        let totals = result(&plan.run("results", &[]))["variants"][0]["totals"].clone();
        assert!(totals["links"]["dropped"].as_u64() > Some(0), "{totals}");
        assert!(totals["links"]["longest_queue"].as_str().unwrap().ends_with("-t0-0:h1"), "{totals}");
        totals["links"]["longest_queue_bytes"].as_u64().unwrap()
    };
    // A full packet has 4,198 bytes on the wire, and the first of a message 16 more.
    for (name, keys, limit) in [
        ("queue-usual", "", 262_144),
        ("queue-last", "last_hop_queue = \"8us\"\n", 100_000),
        ("queue-other", "queue = \"8us\"\n", 262_144),
    ] {
        let bytes = longest(name, keys);
        assert!(bytes <= limit && bytes + 4_214 > limit, "{name}: {bytes}");
    }
}

/// Ports to hosts mark unless the plan turns it off.
#[test]
fn the_last_hop_marks_for_roce() {
    for (name, keys, marks) in [("marks", "", true), ("no-marks", "ecn_on_last_hop = false\n", false)] {
        // An incast in a rack has no other queue.
        let text = INCAST.replace("h5-h7", "h2-h4").replace("[fabric]\n", &format!("[fabric]\n{keys}"));
        let plan = Plan::new(name, &text);
        let totals = result(&plan.run("results", &[]))["variants"][0]["totals"].clone();
        assert_eq!(totals["links"]["marked"].as_u64() > Some(0), marks, "{totals}");
    }
}

/// Retries and their timer are those of the plan: a connection over a dead link fails after two of 131 us.
#[test]
fn retries_of_roce_are_those_of_the_plan() {
    let text = format!(
        "{}[[fault]]\nat = \"100us\"\nwhere = \"h1\"\naction = \"blackhole\"\n",
        INCAST.replace("[transport]\n", "[transport]\ntimeout = 5\nretry_count = 1\n")
    );
    let plan = Plan::new("roce-retries", &text);
    let output = run(&["sim", &plan.path("plan.toml"), "-o", &plan.path("results")]);
    let error = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(
        error.contains("workload write: a connection failed at ") && error.contains("retries"),
        "{error}"
    );
    let failures =
        result(Path::new(&plan.path("results")))["variants"][0]["workloads"][0]["failures"].clone();
    let at: Vec<_> = failures.as_array().unwrap().iter().map(|one| one["at_ns"].as_u64().unwrap()).collect();
    // The last answer comes within some microseconds of the fault, or a NAK before it has used one of the retries.
    assert!(at.len() == 3 && at.iter().all(|at| (200_000..500_000).contains(at)), "{at:?}");
}

fn messages(folder: &Path) -> Vec<u8> {
    fs::read(folder.join("messages.csv")).unwrap()
}
