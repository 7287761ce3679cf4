//! How well agents find faults, in the fabric simulator: `cargo bench -p spindrift-agent-sim --bench agent-faults`.
//!
//! Prints tables. `-- PART ..` runs some parts alone: `singles`, `pairs`, `thousand`, `healthy`. `-- --write` puts the tables into docs/agent.md.
//! The four loads of `healthy` go on for `-- --minutes N` each, 15 by default. A trial that went wrong is printed with its seed.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "benchmark")]

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use spindrift_agent_sim::campaign::{Campaign, named_well};
use spindrift_agent_sim::healthy::{Load, Probed};
use spindrift_agent_sim::trial::{Trial, Verdict};
use spindrift_agent_sim::{Case, WatchSettings, small, table, three_tiers};
use spindrift_fabric::Messenger;

/// The fabrics of single faults and pairs.
fn fabrics() -> Vec<(&'static str, Campaign)> {
    let campaign = |spec, seed| Campaign { spec, settings: WatchSettings::default(), seed };
    vec![
        ("one tier: 2 planes, 1 T0, 4 hosts", campaign(small(2, (1, 0), 4), 1)),
        ("two T0 switches joined: 2 planes, 4 hosts", campaign(small(2, (2, 0), 2), 2)),
        ("two tiers: 2 planes, 4 T0, 4 T1, 8 hosts", campaign(small(2, (4, 4), 2), 3)),
        (
            "three tiers: 2 planes, 2 pods of 2 T0 and 2 T1, 8 hosts",
            campaign(three_tiers(2, (2, 2), (2, 2), 2), 4),
        ),
    ]
}

/// Runs each of these on as many threads as there are cores, and returns the results in order.
fn in_parallel<J: Sync, R: Send>(jobs: &[J], run: impl Fn(&J) -> R + Sync) -> Vec<R> {
    let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((at, job)) =
                    Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|at| Some((at, jobs.get(at)?)))
                {
                    let result = run(job);
                    results.lock().unwrap().push((at, result));
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap();
    results.sort_by_key(|&(at, _)| at);
    results.into_iter().map(|(_, result)| result).collect()
}

fn tell(name: &str, seed: u64, trial: &Trial) {
    if trial.verdict > Verdict::Alike {
        eprintln!("{name}, seed {seed}: {:?}: {:?}: {}", trial.verdict, trial.cases, trial.words);
    }
}

fn singles() -> String {
    let mut jobs: Vec<(&str, Campaign, Case, u64)> = Vec::new();
    for (name, campaign) in fabrics() {
        let cases = campaign.cases((8, 4)).unwrap();
        jobs.extend((1_000 * campaign.seed..).zip(cases).map(|(seed, case)| (name, campaign, case, seed)));
    }
    let trials = in_parallel(&jobs, |&(name, campaign, case, seed)| {
        let trial = campaign.single(case, seed).unwrap();
        tell(name, seed, &trial);
        trial
    });
    format!(
        "{} of {} single faults are named well:\n\n{}",
        named_well(&trials),
        trials.len(),
        table::singles(&trials)
    )
}

fn pairs() -> String {
    let mut rows = Vec::new();
    for (name, campaign) in fabrics() {
        for (what, hard_only, count) in [("hard", true, 50), ("any", false, 20)] {
            let seeds: Vec<u64> = (0..count).map(|seed| 10_000 * campaign.seed + seed).collect();
            let trials = in_parallel(&seeds, |&seed| {
                let trial = campaign.pair(seed, hard_only).unwrap();
                tell(name, seed, &trial);
                trial
            });
            rows.push((format!("{name} | {what}"), trials));
        }
    }
    table::named("Fabric | Faults", &rows)
}

/// Links, switches and NICs of 1,024 hosts in two planes of 32 x 32 switches.
fn thousand() -> String {
    let campaign = Campaign { spec: small(2, (32, 32), 32), settings: WatchSettings::default(), seed: 5 };
    // Of those that lose all packets: a gray one is 20 s of simulated time, which is four minutes of a core.
    let cases = campaign.cases((1, 0)).unwrap();
    let trials = campaign.in_turn(&cases, |trial| tell("a thousand hosts", campaign.seed, trial)).unwrap();
    format!(
        "{} of {} single faults are named well:\n\n{}",
        named_well(&trials),
        trials.len(),
        table::singles(&trials)
    )
}

/// Full load in four parts, of a quarter of an hour each.
fn healthy(minutes: u64) -> String {
    let for_ns = minutes * 60_000_000_000;
    let load = |seed, trims, random_share, message_bytes| Load {
        trims,
        random_share,
        message_bytes,
        for_ns,
        ..Load::slow(1, 2, 2, seed)
    };
    let loads = [
        load(1, true, 0.3, 200_000),
        load(2, false, 0.1, 50_000),
        load(3, false, 0.3, 200_000),
        load(4, false, 0.6, 2_000_000),
    ];
    let rows = in_parallel(&loads, |load| {
        let mut watched = load.start(WatchSettings::default()).unwrap();
        watched.run(load.for_ns, |_| false);
        let net = watched.sim().net();
        let placed: u64 = net.hosts().map(|host| net.transport(host).stats().placed_bytes).sum();
        let capacity =
            load.spec.nic_rate_bps() as f64 * f64::from(load.spec.hosts()) * load.for_ns as f64 / 1e9;
        let (busy, dropped) = (placed as f64 * 800.0 / capacity, net.counters().dropped);
        let Probed { sent, lost } = Probed::of(&watched);
        let queues = if load.trims { "trim" } else { "drop" };
        let share = lost as f64 * 100.0 / sent as f64;
        let accused = watched.changes().len();
        if accused > 0 {
            eprintln!("healthy, seed {}: {}", load.seed, watched.words());
        }
        let random = load.random_share * 100.0;
        format!(
            "| {queues} | {random:.0} % | {busy:.0} % | {dropped} | {sent} | {lost} ({share:.3} %) | {accused} |\n"
        )
    });
    format!(
        "| Full queues | Load at random on top | Goodput | Packets dropped | Probes | Probes lost | Accusations |\n\
         |---|--:|--:|--:|--:|--:|--:|\n{}",
        rows.concat()
    )
}

/// Puts a part's text between its marks in docs/agent.md.
fn write(name: &str, text: &str) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/agent.md");
    let page = std::fs::read_to_string(path).expect("docs/agent.md is there");
    let (start, end) = (format!("<!-- agent-faults {name} -->\n"), format!("<!-- /agent-faults {name} -->"));
    let (before, rest) =
        page.split_once(&start).unwrap_or_else(|| panic!("docs/agent.md has no line {start}"));
    let (_, after) = rest.split_once(&end).unwrap_or_else(|| panic!("docs/agent.md has no line {end}"));
    std::fs::write(path, format!("{before}{start}{}\n{end}{after}", text.trim_end()))
        .expect("docs/agent.md can be written");
}

const PARTS: [&str; 4] = ["singles", "pairs", "thousand", "healthy"];

fn run(part: &str, minutes: u64) -> String {
    match part {
        "singles" => singles(),
        "pairs" => pairs(),
        "thousand" => thousand(),
        _ => healthy(minutes),
    }
}

fn main() {
    let (mut wanted, mut writes, mut minutes) = (Vec::new(), false, 15);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            // Of cargo.
            "--bench" => {}
            "--write" => writes = true,
            "--minutes" => {
                let number = args.next().and_then(|number| number.parse().ok());
                minutes = number.expect("--minutes takes the length of each healthy run, as in --minutes 15");
            }
            part if PARTS.contains(&part) => wanted.push(arg),
            other => panic!("no part {other}: there are {PARTS:?}, --write and --minutes N"),
        }
    }
    for part in PARTS.into_iter().filter(|part| wanted.is_empty() || wanted.iter().any(|arg| arg == part)) {
        let text = run(part, minutes);
        println!("{text}");
        if writes {
            write(part, &text);
        }
    }
}
