//! `spindrift loopback`: two endpoints in one process write to each other's memory.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use serde_json::{Value as Json, json};
use spindrift::verbs::Context;

use crate::bench::baseline::Baseline;
use crate::bench::check::{check_latency, check_loopback, check_source_ports, check_udp_port};
use crate::bench::layout::Layout;
use crate::bench::nic::{Nic, loopback_pair, udp_pair};
use crate::bench::options::{Amount, Defaults, RunArgs, Settings};
use crate::bench::pin::Cores;
use crate::bench::pingpong::{Led, Player};
use crate::bench::report::{
    BandwidthRow, LatencyRow, Progress, counters_json, counters_table, faults_line, settings_json,
    settings_line,
};
use crate::bench::side::Side;
use crate::bench::writer::{Watch, Writer};
use crate::config::PortKind;
use crate::output::{say, tell};
use crate::stop::Stop;
use crate::units::format_size;
use crate::verbose::Verbosity;

/// Two endpoints in this process, each on a lane of its own: moves and verifies real memory.
#[derive(Args, Debug)]
pub(crate) struct LoopbackArgs {
    #[command(flatten)]
    run: RunArgs,
    /// Planes: ports of each endpoint [default: 4].
    #[arg(long, value_name = "N")]
    planes: Option<usize>,
    /// What joins the two: a ring in memory, or kernel sockets on 127.0.0.x [default: loopback].
    #[arg(long, value_enum)]
    port: Option<PortKind>,
    /// Measure latency (half of a round trip) instead of bandwidth.
    #[arg(long)]
    latency: bool,
}

/// The size that the summary is about, if it was measured.
const SUMMARY_SIZE: u64 = 64 << 10;
/// Of each queue pair's writes, one in so many is compared while the run goes on.
const SAMPLE_EVERY: u64 = 61;
const SAMPLE_BYTES: usize = 256;
/// Runs of the baseline before and behind each measurement.
const BASELINE_RUNS: [usize; 2] = [2, 3];
const LATENCY_ROUNDS: u64 = 10_000;

const RUNNING: u8 = 0;
const PAUSED: u8 = 1;
const STOPPED: u8 = 2;

impl LoopbackArgs {
    pub(crate) fn verbosity(&self) -> Verbosity {
        self.run.verbosity
    }
}

pub(crate) fn run(args: &LoopbackArgs) -> Result<()> {
    let amount = if args.latency {
        Amount::Iterations(LATENCY_ROUNDS)
    } else {
        Amount::Time(Duration::from_millis(300))
    };
    let size = args.latency.then_some(2);
    let defaults = Defaults { port: PortKind::Loopback, size, amount, seed: Some(1), tx_depth: 128 };
    let settings = Settings::new(&args.run, args.port, &defaults)?;
    let planes = check_loopback(&settings, &args.run, args.planes)?;
    check_udp_port(&settings.config, None)?;
    check_source_ports(&settings.config, None)?;
    if args.latency {
        check_latency(&settings, &args.run, "--latency")?;
    }
    let stop = Stop::on_ctrl_c()?;
    let pair = Pair::open(settings, planes)?;
    if args.latency { pair.latency(&stop) } else { pair.bandwidth(&stop) }
}

/// Both sides.
struct Pair {
    settings: Settings,
    writer: Side,
    target: Side,
    layouts: Vec<Layout>,
    planes: usize,
    /// Where both sides receive, if their ports are sockets.
    udp_port: Option<u16>,
    /// The writer's and the target's.
    cores: [Cores; 2],
}

impl Pair {
    fn open(settings: Settings, planes: usize) -> Result<Self> {
        let layouts: Vec<_> = settings
            .sizes
            .iter()
            .map(|&size| Layout::new(size, settings.qps, settings.tx_depth))
            .collect::<Result<_>>()?;
        let memory = layouts.iter().map(Layout::memory).max().unwrap_or_default();
        let nics = match settings.port {
            PortKind::Loopback => loopback_pair(&settings, planes),
            PortKind::Udp => udp_pair(&settings, planes)?,
        };
        let [left, right] = nics;
        let udp_port = left.udp_port;
        let left: Nic = left.with_capture(&settings)?.with_faults(&settings, 0);
        let right = right.with_faults(&settings, 1);
        let mut writer = Side::open(&settings, left, memory, 0)?;
        let mut target = Side::open(&settings, right, memory, 1)?;
        writer.connect(&mut target)?;
        let cores = Cores::of_pair(settings.lanes);
        Ok(Self { settings, writer, target, layouts, planes, udp_port, cores })
    }

    fn header(&self, what: &str) -> String {
        let cores: Vec<_> = self.pinned().map(|core| core.to_string()).collect();
        let cores = match (cores.as_slice(), self.settings.lanes) {
            ([writer, target], 1) => format!("cores {writer} and {target}"),
            ([], 1) => "one core for both sides".to_owned(),
            ([], lanes) => format!("fewer cores than the {} that both sides want", 2 * lanes),
            (many, _) => format!("cores {}", many.join(", ")),
        };
        let udp_port = self.udp_port.map(|port| format!(", UDP port {port}")).unwrap_or_default();
        format!(
            "spindrift loopback, {what}: {}{udp_port}, {cores}",
            settings_line(&self.settings, self.planes, self.writer.mtu)
        )
    }

    /// The cores of the writer, then the target's.
    fn pinned(&self) -> impl Iterator<Item = usize> {
        self.cores.iter().flat_map(|cores| &cores.pinned).copied()
    }

    fn bandwidth(mut self, stop: &Stop) -> Result<()> {
        if !self.settings.json {
            say(&self.header("bandwidth of RDMA writes"));
            say(&BandwidthRow::head(true));
        }
        let mut rows = Vec::new();
        let result = self.measure_all(stop, &mut rows);
        self.report(&rows, result)
    }

    fn measure_all(&mut self, stop: &Stop, rows: &mut Vec<BandwidthRow>) -> Result<()> {
        let Self { settings, writer, target, layouts, cores, .. } = self;
        let [writers, targets] = &*cores;
        let helper = Helper::default();
        let context = target.context.clone();
        thread::scope(|scope| {
            let _stop_helper = StopOnDrop(&helper.state);
            for lane in 0..settings.lanes {
                let (helper, context) = (&helper, &context);
                scope.spawn(move || helper.serve(context, lane, targets));
            }
            writers.pin(0);
            for layout in layouts.iter() {
                let mut run = Measure { settings, writer, target, layout, helper: &helper, stop };
                let row = run.row(writers)?;
                if !settings.json {
                    say(&row.line());
                }
                let verified = row.verified;
                rows.push(row);
                if !verified {
                    bail!("the target memory does not hold what was written (size {} bytes)", layout.size);
                }
            }
            Ok(())
        })
    }

    fn report(&self, rows: &[BandwidthRow], result: Result<()>) -> Result<()> {
        let result = result.and_then(|()| self.writer.finish_capture());
        let summary = rows.iter().find(|row| row.size_bytes == SUMMARY_SIZE).or(rows.last());
        let counted = [self.writer.counted(), self.target.counted()];
        if self.settings.json {
            let object = json!({
                "command": "loopback",
                "version": env!("CARGO_PKG_VERSION"),
                "settings": self.settings_json(),
                "rows": rows,
                "summary_size_bytes": summary.map(|row| row.size_bytes),
                "baseline_gbps": summary.and_then(|row| row.baseline_gbps),
                "ratio": summary.and_then(|row| row.ratio),
                "verified": result.is_ok() && !rows.is_empty() && rows.iter().all(|row| row.verified),
                "counters": { "writer": counters_json(&counted[0]), "target": counters_json(&counted[1]) },
                "error": result.as_ref().err().map(|error| format!("{error:#}")),
            });
            say(&object.to_string());
            return result;
        }
        if let Some(row) = summary {
            self.explain(row);
        }
        self.print_counters(&counted);
        result
    }

    fn explain(&self, row: &BandwidthRow) {
        let (size, mtu) = (format_size(row.size_bytes), self.writer.mtu);
        let baseline = row.baseline_gbps.unwrap_or_default();
        say("");
        say(&format!(
            "baseline: one core copying the same bytes and computing their CRC, {mtu} bytes at a time: {baseline:.2} Gb/s at {size}"
        ));
        say(&format!("ratio of BW average to baseline at {size}: {:.2}", row.ratio.unwrap_or_default()));
    }

    fn print_counters(&self, counted: &[crate::bench::side::Counted; 2]) {
        let [writer, target] = counted;
        if self.settings.fault.is_some() {
            say(&faults_line("writer", writer));
            say(&faults_line("target", target));
        }
        if self.settings.counters {
            say("");
            say(&counters_table(&[("writer", writer), ("target", target)]));
        }
    }

    fn settings_json(&self) -> Json {
        let mut map = settings_json(&self.settings, self.planes, self.writer.mtu);
        map.insert("udp_port".to_owned(), self.udp_port.into());
        map.insert("cores".to_owned(), self.pinned().collect());
        Json::Object(map)
    }

    fn latency(mut self, stop: &Stop) -> Result<()> {
        let Amount::Iterations(rounds) = self.settings.amount else {
            bail!("--latency counts round trips: give --iters, not --duration")
        };
        if !self.settings.json {
            say(&self.header("latency of RDMA writes (half of a round trip)"));
            say(&LatencyRow::head());
        }
        let mut rows = Vec::new();
        let result = self.play_all(rounds, stop, &mut rows);
        let result = result.and_then(|()| self.writer.finish_capture());
        let counted = [self.writer.counted(), self.target.counted()];
        if self.settings.json {
            let object = json!({
                "command": "loopback",
                "version": env!("CARGO_PKG_VERSION"),
                "settings": self.settings_json(),
                "latency_rows": rows,
                "counters": { "writer": counters_json(&counted[0]), "target": counters_json(&counted[1]) },
                "error": result.as_ref().err().map(|error| format!("{error:#}")),
            });
            say(&object.to_string());
        } else {
            self.print_counters(&counted);
        }
        result
    }

    fn play_all(&mut self, rounds: u64, stop: &Stop, rows: &mut Vec<LatencyRow>) -> Result<()> {
        for layout in &self.layouts {
            let row = play(&mut self.writer, &mut self.target, layout.size, rounds, &self.cores, stop)?;
            if !self.settings.json {
                say(&row.line());
            }
            rows.push(row);
        }
        Ok(())
    }
}

/// One size of ping-pong.
fn play(
    writer: &mut Side,
    target: &mut Side,
    size: u32,
    rounds: u64,
    cores: &[Cores; 2],
    stop: &Stop,
) -> Result<LatencyRow> {
    let (to_writer, to_target, mtu) = (writer.remote(), target.remote(), writer.mtu);
    let [leading, following] = cores;
    let idle = leading.idle();
    let mut leader = Player::new(writer, size, to_target, mtu, idle)?;
    let mut follower = Player::new(target, size, to_writer, mtu, idle)?;
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let follow = scope.spawn(|| {
            following.pin(0);
            let mut go_on =
                || if over.load(Ordering::Acquire) { bail!("the other side ended") } else { stop.check() };
            let longest_pause = follower.follow(rounds, &mut go_on)?;
            // The leader needs acknowledgements until it has ended too.
            while !over.load(Ordering::Acquire) {
                follower.drain(&mut || Ok(()))?;
                follower.turn();
            }
            Ok(longest_pause)
        });
        leading.pin(0);
        let mut go_on = || stop.check();
        let led = leader.lead(rounds, &mut go_on).and_then(|led| {
            leader.drain(&mut go_on)?;
            Ok(led)
        });
        over.store(true, Ordering::Release);
        while !follow.is_finished() {
            leader.turn();
        }
        let followed = follow.join().unwrap_or_else(|_| bail!("the other side's thread panicked"));
        let led = led?;
        let longest_pause = led.longest_pause.max(followed?);
        let led = Led { longest_pause, ..led };
        let row = LatencyRow::new(size, &led);
        row.warn_of_pause(&led);
        Ok(row)
    })
}

/// The threads that drive the target's lanes.
#[derive(Default)]
struct Helper {
    state: AtomicU8,
}

impl Helper {
    fn serve(&self, context: &Context, lane: usize, cores: &Cores) {
        cores.pin(lane);
        let mut idle = cores.idle();
        loop {
            match self.state.load(Ordering::Relaxed) {
                STOPPED => return,
                // The baseline has the machine to itself.
                PAUSED => thread::sleep(Duration::from_micros(50)),
                _ => idle.after(context.poll_lane(lane)),
            }
        }
    }

    fn set(&self, state: u8) {
        self.state.store(state, Ordering::Relaxed);
    }
}

/// Ends the helper however the scope is left.
struct StopOnDrop<'a>(&'a AtomicU8);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(STOPPED, Ordering::Relaxed);
    }
}

/// One size.
struct Measure<'a> {
    settings: &'a Settings,
    writer: &'a mut Side,
    target: &'a mut Side,
    layout: &'a Layout,
    helper: &'a Helper,
    stop: &'a Stop,
}

impl Measure<'_> {
    fn row(&mut self, cores: &Cores) -> Result<BandwidthRow> {
        let Self { settings, layout, helper, .. } = *self;
        let pattern = layout.pattern(settings.seed.unwrap_or_default());
        self.writer.source.write_at(0, &pattern)?;
        layout.clear(self.target.target.region())?;
        let mut baseline = Baseline::new(layout, &pattern, self.writer.mtu);
        let [before, behind] = BASELINE_RUNS;
        helper.set(PAUSED);
        (0..before).for_each(|_| baseline.run());
        helper.set(RUNNING);

        let remote = self.target.remote();
        let mut writer = Writer::new(self.writer, *layout, remote, settings.tx_depth, cores)?;
        let region = self.target.target.region();
        let mut watch = LoopbackWatch {
            stop: self.stop,
            progress: Progress::new(layout.size.into(), settings.amount),
            amount: settings.amount,
        };
        let [sampled, wrong] = [const { AtomicU64::new(0) }; 2];
        let sample = |qp: usize, write: u64| {
            if write.is_multiple_of(SAMPLE_EVERY) {
                sampled.fetch_add(1, Ordering::Relaxed);
                if !layout.sample(region, &pattern, (qp, write), SAMPLE_BYTES)? {
                    wrong.fetch_add(1, Ordering::Relaxed);
                }
            }
            Ok(())
        };
        let warm_up = layout.slots * layout.qps as u64;
        writer.run(Amount::Iterations(warm_up), &mut watch, &sample)?;
        let measured = writer.run(settings.amount, &mut watch, &sample)?;
        let (sampled, wrong) = (sampled.load(Ordering::Relaxed), wrong.load(Ordering::Relaxed));

        helper.set(PAUSED);
        (0..behind).for_each(|_| baseline.run());
        let mismatch = layout.check(region, &pattern, &writer.writes())?;
        if let Some(mismatch) = mismatch {
            tell(format_args!(
                "spindrift: byte {} of the target is wrong (queue pair {})",
                mismatch.offset, mismatch.qp
            ));
        }
        let verified = mismatch.is_none() && wrong == 0;
        let row = BandwidthRow::new(layout.size, &measured, verified);
        row.warn_of_pause(&measured);
        let baseline = baseline.gbps();
        let ratio = row.bandwidth_gbps / baseline;
        Ok(BandwidthRow { baseline_gbps: Some(baseline), ratio: Some(ratio), sampled: Some(sampled), ..row })
    }
}

struct LoopbackWatch<'a> {
    stop: &'a Stop,
    progress: Progress,
    amount: Amount,
}

impl Watch for LoopbackWatch<'_> {
    fn tick(&mut self, done: u64, elapsed: Duration) -> Result<()> {
        self.progress.set(self.amount, done, elapsed);
        self.stop.check()
    }
}
