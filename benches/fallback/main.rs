//! What fallback costs, and how soon it is done, after the SHIFT paper: `cargo bench --bench fallback`.
//!
//! Figure 8b: the time from the failure of a NIC until the next write completes. Figure 9: the time of control verbs. Table 2: the
//! latency of small writes. One thread drives both sides, over rings in memory, so all times are those of the software alone.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "benchmark"
)]

mod rig;

use std::time::{Duration, Instant};

use spindrift::fallback::{Context as FallbackContext, MemoryStore, Nic};
use spindrift::pmd::loopback::{self, LoopbackConfig};
use spindrift::verbs::{Access, Qp, Wc, nic};

use rig::{MEMORY, Mode, Rig, Switch, fallback_config, open, qp_config};

/// Failures of each kind.
const FAILURES: usize = 100;
/// Times that each control verb is measured.
const CALLS: usize = 51;
/// Rounds of a block of ping-pongs, and blocks of each row; rows take turns.
const ROUNDS: u32 = 2000;
const BLOCKS: usize = 25;
/// Queue pairs that nobody uses.
const IDLE: usize = 500;

fn main() {
    failures();
    control_verbs();
    small_writes();
}

/// The value that this share of all values does not exceed, in microseconds.
fn share(values: &[Duration], share: f64) -> f64 {
    let mut values = values.to_vec();
    values.sort_unstable();
    let at = ((values.len() as f64 * share) as usize).min(values.len() - 1);
    values[at].as_secs_f64() * 1e6
}

fn median(values: &[Duration]) -> f64 {
    share(values, 0.5)
}

/// What fails, and how.
type Failure = (&'static str, fn(&[Switch; 2]));

fn failures() {
    let kinds: [Failure; 4] = [
        ("links of the sender's NIC", |[here, there]| {
            here.fail(true);
            there.fail(false);
        }),
        ("links of the receiver's NIC", |[here, there]| {
            here.fail(false);
            there.fail(true);
        }),
        ("links of both (the cable)", |both| both.iter().for_each(|switch| switch.fail(true))),
        ("no link: silence", |both| both.iter().for_each(|switch| switch.fail(false))),
    ];
    println!("Fallback latency, us, of {FAILURES} failures each (SHIFT, figure 8b)\n");
    println!(
        "{:<30} {:<9} {:>24}   {:>24}",
        "failure", "mode", "failure to completion", "notice to completion"
    );
    println!(
        "{:<30} {:<9} {:>8}{:>8}{:>8}   {:>8}{:>8}{:>8}",
        "", "", "median", "90 %", "max", "median", "90 %", "max"
    );
    for (name, fail) in kinds {
        for mode in [Mode::Seamless, Mode::Shift] {
            let mut rig = Rig::new(mode, 0);
            let (mut all, mut after_notice) = (Vec::new(), Vec::new());
            for failure in 0..FAILURES {
                // Another moment each time.
                for _ in 0..100 + 7 * failure {
                    rig.stream(8);
                }
                let [noticed, completed] = rig.failure(fail);
                all.push(completed);
                after_notice.push(completed.saturating_sub(noticed));
                rig.switches.iter().for_each(Switch::heal);
                rig.until_ready();
            }
            let cells = |values: &[Duration]| {
                [0.5, 0.9, 1.0].map(|part| format!("{:>8.1}", share(values, part))).concat()
            };
            println!("{name:<30} {:<9} {}   {}", mode.name(), cells(&all), cells(&after_notice));
        }
    }
}

/// How long a call takes, and what it returns.
fn timed<T>(times: &mut Vec<Duration>, call: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = call();
    times.push(start.elapsed());
    result
}

fn control_verbs() {
    const VERBS: [&str; 5] =
        ["open", "register 1 MiB", "create a queue pair", "connect", "prepared (in the background)"];
    let mut plain: [Vec<Duration>; 5] = Default::default();
    let mut shift: [Vec<Duration>; 5] = Default::default();
    let ports = || {
        let (left, right) = loopback::pair(2, LoopbackConfig::default());
        [nic(left), nic(right)]
    };
    for _ in 0..CALLS {
        let [left, right] = ports();
        let [opened, registered, created, connected, _] = &mut plain;
        let (context, peer) = (timed(opened, || open(left)), open(right));
        let side =
            [&context, &peer].map(|context| (context.create_pd().unwrap(), context.create_cq(64).unwrap()));
        let [(pd, cq), (peer_pd, peer_cq)] = &side;
        let _mr = timed(registered, || pd.register(MEMORY, Access::REMOTE_WRITE).unwrap());
        let mut qp = timed(created, || Qp::create(pd, cq, cq, &qp_config(Mode::None)).unwrap());
        let peer_qp = Qp::create(peer_pd, peer_cq, peer_cq, &qp_config(Mode::None)).unwrap();
        let info = peer_qp.info().unwrap();
        timed(connected, || qp.connect(&info).unwrap());
        drop((qp, peer_qp));
    }
    for _ in 0..CALLS {
        let [left, right] = ports();
        let [left_too, right_too] = ports();
        let [opened, registered, created, connected, prepared] = &mut shift;
        let store = MemoryStore::default();
        let both = |ports, ports_too| {
            let (default, backup) = (open(ports), open(ports_too));
            FallbackContext::open(&default, &backup, Box::new(store.clone()), 64, fallback_config()).unwrap()
        };
        let mut context = timed(opened, || both(left, left_too));
        let mut peer = both(right, right_too);
        let _mr = timed(registered, || context.register(MEMORY, Access::REMOTE_WRITE).unwrap());
        let qp = timed(created, || context.create_qp(&qp_config(Mode::Shift)).unwrap());
        let peer_qp = peer.create_qp(&qp_config(Mode::Shift)).unwrap();
        let infos = [context.info(qp).unwrap(), peer.info(peer_qp).unwrap()];
        timed(connected, || context.connect(qp, &infos[1]).unwrap());
        peer.connect(peer_qp, &infos[0]).unwrap();
        timed(prepared, || {
            let mut out = [Wc::default(); 4];
            while !context.is_prepared(qp, Nic::Backup).unwrap() {
                context.poll(&mut out);
                peer.poll(&mut out);
            }
        });
    }
    println!("\nControl verbs, us, median of {CALLS} (SHIFT, figure 9)\n");
    println!("{:<30} {:>9} {:>9}", "call", "one NIC", "shift");
    for ((name, plain), shift) in VERBS.iter().zip(&plain).zip(&shift) {
        let cell = |times: &Vec<Duration>| {
            if times.is_empty() { "-".to_owned() } else { format!("{:.1}", median(times)) }
        };
        println!("{name:<30} {:>9} {:>9}", cell(plain), cell(shift));
    }
}

fn small_writes() {
    let mut rigs = [(Mode::None, 0), (Mode::Seamless, 0), (Mode::Shift, 0), (Mode::None, IDLE)]
        .map(|(mode, idle)| Rig::new(mode, idle));
    println!("\nLatency of a write, ns, median of {BLOCKS} blocks of {ROUNDS} rounds (SHIFT, table 2)\n");
    println!("{:>6} {:>9} {:>9} {:>9} {:>15}", "#bytes", "one NIC", "seamless", "shift", "500 more QPs");
    for len in [1, 2, 4, 8, 16] {
        let mut times: [Vec<Duration>; 4] = Default::default();
        for _ in 0..BLOCKS {
            for (rig, times) in rigs.iter_mut().zip(&mut times) {
                times.push(rig.ping_pong(len, ROUNDS));
            }
        }
        let [one, seamless, shift, idle] = times.each_ref().map(|times| median(times) * 1e3);
        println!("{len:>6} {one:>9.0} {seamless:>9.0} {shift:>9.0} {idle:>15.0}");
    }
}
