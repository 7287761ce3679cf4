//! Totals of a run, and claims about runs that end early.

use std::fs;

use super::support::{json, run, stderr, stdout};
use super::{FABRIC, Plan, number, rows};

/// A run that ends early is judged on what ran, unless the claim says a time that it does not reach.
#[test]
fn a_run_that_ends_early_is_judged_on_what_ran() {
    let plan = |keys: &str| {
        format!(
            "[plan]\ntitle = \"x\"\nduration = \"1ms\"\n{FABRIC}[record]\nlinks = [\"p0-t0-1:h5\"]\n\
             [[workload]]\nkind = \"write\"\nfrom = \"h1\"\nto = \"h5\"\ncount = 1\n[[claim]]\nwhat = \"x\"\n{keys}\n"
        )
    };
    for (number, (keys, status, line)) in [
        ("measure = \"losses\"\nmost = 0", 0, "x: 0 (at most 0), holds"),
        ("measure = \"losses\"\nmost = 0\nfrom = \"20us\"", 0, "x: 0 (at most 0), holds"),
        ("measure = \"sent\"\nleast = 256\nmost = 256", 0, "x: 256 (256 to 256), holds"),
        ("measure = \"queue\"\nmost = 1000", 0, "(at most 1000), holds"),
        ("measure = \"assumed-bad\"\nmost = 0", 0, "x: 0 (at most 0), holds"),
        ("measure = \"losses\"\nmost = 0\nfrom = \"900us\"", 1, "no data in that time"),
        ("measure = \"losses\"\nmost = 0\nto = \"900us\"", 1, "no data in that time"),
        ("measure = \"losses\"\nmost = 0\nto = \"1ms\"", 1, "no data in that time"),
    ]
    .into_iter()
    .enumerate()
    {
        let plan = Plan::new(&format!("early-{number}"), &plan(keys));
        let output = run(&["sim", &plan.path("plan.toml"), "-o", &plan.path("results")]);
        assert!(stdout(&output).contains(line), "{keys}: {}", stdout(&output));
        assert_eq!(output.status.code(), Some(status), "{keys}: {}", stderr(&output));
    }
}

/// Totals are over all hosts and links, whatever is recorded.
#[test]
fn totals_are_over_the_whole_fabric() {
    let text = format!(
        "[plan]\ntitle = \"x\"\nduration = \"1ms\"\n{FABRIC}[record]\nhosts = \"RECORDED\"\nlinks = [\"p0-t0-1:h5\"]\n\
         [[workload]]\nkind = \"write\"\nfrom = \"h1-h3\"\nto = \"h5\"\nsize = \"1M\"\n\
         [[fault]]\nat = \"500us\"\nwhere = \"h2:p0-t0-0\"\naction = \"dark\"\n"
    );
    let folder = |hosts: &str| {
        let plan = Plan::new(&format!("totals-{}", hosts.len()), &text.replace("RECORDED", hosts));
        let folder = plan.run("results", &[]);
        let summary = fs::read_to_string(folder.join("summary.md")).unwrap();
        (json(&fs::read(folder.join("result.json")).unwrap()), rows(&folder, "samples.csv"), summary)
    };
    let (all, samples, summary) = folder("all");
    let totals = all["variants"][0]["totals"].clone();
    let hosts = |name: &str| totals["hosts"][name].as_u64().unwrap();
    for name in ["sent", "repeats", "losses", "timeouts", "marked", "trimmed"] {
        let rows: f64 = samples.iter().map(|row| number(row, name)).sum();
        assert_eq!(hosts(name), rows as u64, "{name}");
    }
    assert!(hosts("repeats") > 0 && hosts("trimmed") > 0 && hosts("payload_bytes") > 10_000_000, "{totals}");
    let links = |name: &str| totals["links"][name].as_u64().unwrap();
    assert!(links("trimmed") >= hosts("trimmed") && links("marked") >= hosts("marked"), "{totals}");
    let packets = &all["variants"][0]["packets"];
    let gone = packets["dropped"].as_u64().unwrap() + packets["lost"].as_u64().unwrap();
    assert_eq!(links("dropped") + links("lost"), gone, "{totals} {packets}");
    assert!(links("lost") > 0, "{totals}");
    let longest = totals["links"]["longest_queue"].as_str().unwrap();
    assert!(longest.ends_with("-t0-1:h5"), "{longest}");
    for part in [
        format!("{} retransmissions", hosts("repeats")),
        format!("{} losses declared", hosts("losses")),
        format!(
            "{} trimmed, {} dropped for lack of room, {} lost",
            links("trimmed"),
            links("dropped"),
            links("lost")
        ),
        format!("longest queue {:.1} kB, at {longest}", links("longest_queue_bytes") as f64 / 1e3),
    ] {
        assert!(summary.contains(&part), "{part} in {summary}");
    }
    assert_eq!(folder("h8").0["variants"][0]["totals"], totals);
}

/// Log lines have the simulated time, the host, the variant and the seed; without `-v` there are none.
#[test]
fn log_lines_have_simulated_time_and_host() {
    let text = format!(
        "[plan]\ntitle = \"x\"\nduration = \"600us\"\n{FABRIC}\
         [[workload]]\nkind = \"write\"\nfrom = \"h1, h2\"\nto = \"h5, h6\"\n\
         [[fault]]\nat = \"300us\"\nwhere = \"p0-t0-0:p0-t1-0\"\naction = \"dark\"\n\
         [[variant]]\nname = \"one\"\n[[variant]]\nname = \"two\"\n"
    );
    let plan = Plan::new("log", &text);
    let log = |options: &[&str]| {
        let (file, folder) = (plan.path("plan.toml"), plan.path("results"));
        let output = run(&[&["sim", &file, "-o", &folder, "--seeds", "2"], options].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        stderr(&output)
    };
    assert_eq!(log(&[]), "");
    let lines = log(&["-vv", "-j", "3"]);
    for (variant, seed) in [("one", 1), ("one", 2), ("two", 1), ("two", 2)] {
        let run = format!(" {variant} seed {seed} ");
        let of_run: Vec<_> = lines.lines().filter(|line| line.contains(&run)).collect();
        let times: Vec<f64> =
            of_run.iter().map(|line| line.split_whitespace().next().unwrap().parse().unwrap()).collect();
        assert!(times.is_sorted() && times.iter().all(|&seconds| seconds <= 600e-6), "{of_run:#?}");
        // The path dies under both senders, which find out some microseconds later.
        for host in ["h1", "h2"] {
            let own = format!(" {host}{run}");
            let found = of_run.iter().zip(&times).any(|(line, &seconds)| {
                line.contains(&own)
                    && line.contains("path is assumed bad")
                    && (300e-6..400e-6).contains(&seconds)
            });
            assert!(found, "{host}: {of_run:#?}");
        }
    }
    let named = lines.lines().filter(|line| ["one seed", "two seed"].iter().any(|run| line.contains(run)));
    assert_eq!(named.count(), lines.lines().count(), "{lines}");
}
