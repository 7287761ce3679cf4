//! What judging the reports of a whole fabric costs, in time of a core: `cargo bench -p spindrift-agent --bench agent-judge`.
//!
//! 4 planes of 256 x 256 links with two agents at each T0 switch: 512 reports of 1,028 paths. Goal: less than 100 ms, whatever is at fault.
#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used, reason = "benchmark")]

use spindrift_agent::{
    Count, LocateSettings, Locator, Path, PathReport, Plan, Report, SharePolicy, View, Window,
};
use spindrift_srv6::{Fabric, FabricHost, Node, Shape};

const PLANES: u8 = 4;
const SWITCHES: u16 = 256;
const HOSTS: u16 = 2;
const ROUNDS: usize = 7;

fn fabric() -> Fabric {
    let shape = Shape { planes: PLANES, t0: SWITCHES, t1: SWITCHES, ..Shape::default() };
    let host = |t0, downlink| FabricHost { name: format!("h{t0}-{downlink}"), t0, downlink };
    Fabric::new(shape, (0..SWITCHES).flat_map(|t0| (0..HOSTS).map(move |at| host(t0, at))).collect()).unwrap()
}

/// What each agent reports if a path loses this share of its probes: a thousand in a second, fewer in the shortest window.
fn reports(fabric: &Fabric, loss: impl Fn(Path) -> f64) -> Vec<Report> {
    let report = |host| {
        let plan = Plan::new(fabric, host, None, SharePolicy::default()).unwrap();
        let paths = plan.routes().map(|route| {
            let loss = loss(route.path);
            let counts = Window::ALL.map(|window| {
                let sent = (window.span_ns() / 1_000_000) as u32;
                Count { sent, lost: (f64::from(sent) * loss) as u32 }
            });
            PathReport { top: route.path.top, counts }
        });
        Report { host, running_ns: 400_000_000_000, paths: paths.collect() }
    };
    (0..SWITCHES * HOSTS).map(report).collect()
}

fn crosses(fabric: &Fabric, path: Path, node: Node) -> bool {
    path.way_up(fabric).is_some_and(|way| way.contains(&node))
}

/// The time that this thread has had a core, in milliseconds: other work on the machine does not count.
fn core_ms() -> f64 {
    let schedstat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    schedstat.split_whitespace().next().unwrap().parse::<u64>().unwrap() as f64 / 1e6
}

fn median_ms(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn measure(fabric: &Fabric, what: &str, loss: impl Fn(Path) -> f64) {
    let reports = reports(fabric, loss);
    let (mut merged, mut judged) = (Vec::new(), Vec::new());
    let mut locator = Locator::new(LocateSettings::default());
    for round in 0..ROUNDS as u64 {
        let start = core_ms();
        let view = View::new(&reports);
        merged.push(core_ms() - start);
        let start = core_ms();
        locator.update(round * 20_000_000, fabric, &view);
        judged.push(core_ms() - start);
    }
    let most = judged.iter().copied().fold(0.0, f64::max);
    let (merged, judged) = (median_ms(merged), median_ms(judged));
    println!("| {what} | {} | {merged:.1} | {judged:.1} | {most:.1} |", locator.findings().len());
}

fn main() {
    let fabric = &fabric();
    let t0 = |plane, number| Node::T0 { plane, number };
    let t1 = |plane, number| Node::T1 { plane, number };
    println!(
        "| At fault | Findings | Merging all reports, ms | Judging, ms | Most, ms |\n|---|--:|--:|--:|--:|"
    );
    measure(fabric, "nothing", |_| 0.0);
    measure(fabric, "nothing; each path loses 1 in 20,000", |_| 5e-5);
    let link = |path: Path| path.top == t1(1, 7) && crosses(fabric, path, t0(1, 9));
    measure(fabric, "a link", |path| f64::from(u8::from(link(path))));
    let of = |node, loss| move |path| if crosses(fabric, path, node) { loss } else { 0.0 };
    measure(fabric, "a T1 switch", of(t1(2, 100), 1.0));
    measure(fabric, "a T1 switch, 2 %", of(t1(2, 100), 0.02));
    measure(fabric, "a T0 switch", of(t0(2, 100), 1.0));
    measure(fabric, "a host", of(Node::Host(77), 1.0));
    let eight = |path: Path| {
        (0..8).any(|at| path.top == t1(at % 4, 30) && crosses(fabric, path, t0(at % 4, 20 * u16::from(at))))
    };
    measure(fabric, "eight links", |path| f64::from(u8::from(eight(path))));
}
