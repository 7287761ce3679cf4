//! `spindrift loopback`: two endpoints in one process use each other's memory.

mod helper;
mod latency;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::bench::transport::Mr;
use anyhow::{Result, anyhow, bail};
use clap::Args;
use serde_json::{Value as Json, json};
use spindrift::memory::Region;

use self::helper::{Helper, PAUSED, RUNNING, StopOnDrop};
use self::latency::play;
use crate::bench::baseline::Baseline;
use crate::bench::check::{check_kind, check_latency, check_loopback, check_udp_port, check_work};
use crate::bench::contents::Contents;
use crate::bench::endpoint_setup::{Far, Side};
use crate::bench::findings::violations;
use crate::bench::layout::{Layout, bytes_of};
use crate::bench::loopback_pump::{PumpPlan, TwoCores, core_latency_ns};
use crate::bench::mix::Mix;
use crate::bench::operation::{Operation, Work};
use crate::bench::options::{Amount, Defaults, RunArgs, Settings, Verify};
use crate::bench::pin::Cores;
use crate::bench::pingpong::Game;
use crate::bench::receiver::{Comparison, Receivers};
use crate::bench::report::{
    BandwidthRow, Columns, LatencyRow, Progress, PumpCells, counters_json, counters_table, faults_line,
    settings_json, settings_lines,
};
use crate::bench::writer::{Measured, Watch, Writer};
use crate::bench::yardstick::{Slices, Yardstick, warm_up};
use crate::driver::{Driver, LOOPBACK, Reach};
use crate::output::{eprint_line, error_chain, print_line};
use crate::stop::{Interrupted, Stop};
use crate::units::format_size;
use crate::usage::usage;
use crate::verbose::Verbosity;

/// Bandwidth or latency of RDMA operations between two endpoints in this process; verifies memory
#[derive(Args, Debug)]
pub(crate) struct LoopbackArgs {
    #[command(flatten)]
    run: RunArgs,
    /// Planes, 1 to 32: ports of each endpoint [default: 4]
    #[arg(long, value_name = "N")]
    planes: Option<usize>,
    /// Kind of ports: rings in memory, or kernel sockets on 127.0.0.1, 127.0.0.2 and so on [default: loopback]
    #[arg(long, value_enum, value_name = "KIND")]
    port: Option<&'static Driver>,
    /// Operation to measure
    #[arg(long, value_enum, default_value_t)]
    operation: Operation,
    /// Operations to mix by their weights, such as write=60,send=20,read=20; each message is compared
    #[arg(long, value_name = "NAME=N,..", conflicts_with_all = ["operation", "latency"])]
    mix: Option<Mix>,
    /// READs or atomic operations in flight on each queue pair, 1 to 255 [default: 16]
    #[arg(short, long, value_name = "N")]
    outs: Option<u8>,
    /// Receives come from a shared receive queue (SENDs, and writes with immediate)
    #[arg(long, visible_alias = "use-srq")]
    srq: bool,
    /// Measure latency (half of a round trip, or a whole one of READs and atomic operations) instead of bandwidth
    #[arg(long)]
    latency: bool,
    /// Also measure what the same cores do without a protocol, and whether other load disturbed the run
    #[arg(long, conflicts_with = "latency")]
    yardstick: bool,
}

/// The size that the summary is about, if it was measured.
const SUMMARY_SIZE: u64 = 64 << 10;
/// Of each queue pair's writes, one in so many is compared while the run goes on.
const SAMPLE_EVERY: u64 = 61;
const SAMPLE_BYTES: usize = 256;
/// Runs of the baseline before and after each measurement.
const BASELINE_RUNS: [usize; 2] = [2, 3];
const LATENCY_ROUNDS: u64 = 10_000;

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
    let usual = args.mix.map_or_else(|| Work::of(args.operation), Work::of_mix);
    let work = Work { outs: args.outs.unwrap_or(usual.outs), srq: args.srq, ..usual };
    let defaults = Defaults { port: LOOPBACK, work, size, amount, seed: Some(1), tx_depth: 128 };
    let settings = Settings::new(&args.run, args.port, &defaults)?;
    check_work(&settings)?;
    if args.yardstick && work.operations.has_atomics() {
        return Err(usage(
            "--yardstick: the pump moves bytes, atomic operations few; leave it out".to_owned(),
        ));
    }
    let name = settings.config.origin(args.port.is_some(), "--port", "nic.port");
    if !settings.port.reach.within_process() {
        return Err(usage(format!(
            "{name} {}: these ports connect hosts; use `write-bw`, or `spindrift lab` for hosts within this machine",
            settings.port.name
        )));
    }
    settings.port.check_built(&name)?;
    let flags = args.run.of_kinds();
    check_kind(&settings, &flags, Reach::within_process)?;
    let planes = check_loopback(&settings, &args.run, args.planes)?;
    check_udp_port(&settings.config, None)?;
    settings.port.check_settings(&settings, &flags)?;
    if args.latency {
        check_latency(&settings, &args.run, "--latency")?;
    }
    let stop = Stop::on_ctrl_c()?;
    let _metrics = args.run.metrics.serve_own(&settings.control)?;
    let pair = Pair::open(settings, planes, args.yardstick)?;
    if args.latency { pair.latency(&stop) } else { pair.bandwidth(&stop) }
}

/// Both sides.
struct Pair {
    settings: Settings,
    writer: Side,
    target: Side,
    layouts: Vec<Layout>,
    planes: usize,
    yardstick: bool,
    /// Where both sides receive, if their ports are sockets.
    udp_port: Option<u16>,
    /// The writer's and the target's.
    cores: [Cores; 2],
}

impl Pair {
    fn open(settings: Settings, planes: usize, yardstick: bool) -> Result<Self> {
        let layouts: Vec<_> = settings
            .sizes
            .iter()
            .map(|&size| settings.work.layout(size, settings.qps, settings.tx_depth))
            .collect::<Result<_>>()?;
        let memory = layouts.iter().map(Layout::memory).max().unwrap_or_default();
        let [left, right] = settings.port.open_pair(&settings, planes)?;
        let udp_port = left.udp_port;
        let left = left.with_capture(&settings)?.with_faults(&settings, 0).with_rate(&settings);
        let right = right.with_faults(&settings, 1).with_rate(&settings);
        let mut writer = Side::open(&settings, left, memory, 0)?;
        let mut target = Side::open(&settings, right, memory, 1)?;
        writer.connect(&mut target)?;
        writer.open_control(&settings, "loopback, writer")?;
        target.open_control(&settings, "loopback, target")?;
        let cores = Cores::of_pair(settings.lanes);
        Ok(Self { settings, writer, target, layouts, planes, yardstick, udp_port, cores })
    }

    fn header(&self, what: &str) -> String {
        let cores: Vec<_> = self.pinned().map(|core| core.to_string()).collect();
        let cores = match (cores.as_slice(), self.settings.lanes) {
            ([writer, target], 1) => format!("cores {writer} and {target}"),
            ([], 1) => "one core for both sides".to_owned(),
            ([], lanes) => format!("fewer cores than the {} that both sides need", 2 * lanes),
            (many, _) => format!("cores {}", many.join(", ")),
        };
        let udp_port = self.udp_port.map(|port| format!(", UDP port {port}")).unwrap_or_default();
        format!(
            "spindrift loopback, {what}: {}{udp_port}, {cores}",
            settings_lines(&self.settings, &self.writer.in_use)
        )
    }

    /// The cores of the writer, then the target's.
    fn pinned(&self) -> impl Iterator<Item = usize> {
        self.cores.iter().flat_map(|cores| &cores.pinned).copied()
    }

    fn bandwidth(mut self, stop: &Stop) -> Result<()> {
        if !self.settings.json {
            print_line(&self.header(&format!("bandwidth of {}", self.settings.work.words())));
            let columns = if self.yardstick { Columns::Cores } else { Columns::Usual };
            print_line(&BandwidthRow::head(columns));
        }
        let mut rows = Vec::new();
        let result = self.measure_all(stop, &mut rows);
        self.report(&rows, result)
    }

    fn measure_all(&mut self, stop: &Stop, rows: &mut Vec<BandwidthRow>) -> Result<()> {
        let Self { settings, writer, target, layouts, cores, planes, yardstick, .. } = self;
        let [writers, targets] = &*cores;
        let (remote, work) = (target.remote(), settings.work);
        let Side { qps, cqs, target: far, source: far_source, srq, nics, .. } = target;
        let receivers =
            work.operations.takes_receive().then(|| Receivers::new(qps, cqs, srq.as_ref(), far, work));
        let helper = Helper::new(receivers.transpose()?);
        let nics = &*nics;
        thread::scope(|scope| {
            let _stop_helper = StopOnDrop(&helper);
            for lane in 0..settings.lanes {
                let helper = &helper;
                scope.spawn(move || helper.serve(nics, lane, targets));
            }
            writers.pin(0);
            let seed = settings.seed.unwrap_or_default();
            for (index, layout) in layouts.iter().enumerate() {
                let contents = Contents { layout: *layout, operations: work.operations, seed };
                let (helper, planes, yardstick) = (&helper, *planes, *yardstick);
                let is_last = index + 1 == layouts.len();
                let mut run = Measure {
                    settings,
                    writer,
                    far,
                    far_source,
                    remote,
                    contents,
                    is_last,
                    planes,
                    yardstick,
                    cores,
                    helper,
                    stop,
                };
                let row = run.row()?;
                if !settings.json {
                    print_line(&row.line());
                }
                let verified = row.verified;
                rows.push(row);
                if !verified {
                    let plural = work.operations.plural();
                    bail!(
                        "memory does not hold what the {plural} had to leave there (size {} bytes)",
                        layout.size
                    );
                }
            }
            Ok(())
        })
    }

    /// The result of a run, with what the sides know of an error's cause.
    fn end(&self, result: Result<()>) -> Result<()> {
        let result = result.map_err(|error| {
            let known = [&self.writer, &self.target].into_iter().flat_map(|side| violations(&side.nics));
            let known: Vec<_> = known.collect();
            if known.is_empty() || error.is::<Interrupted>() {
                error
            } else {
                anyhow!("{}; {}", error_chain(&error), known.join("; "))
            }
        });
        result.and_then(|()| self.writer.finish_capture())
    }

    fn report(&self, rows: &[BandwidthRow], result: Result<()>) -> Result<()> {
        let result = self.end(result);
        let summary = rows.iter().find(|row| row.size_bytes == SUMMARY_SIZE).or(rows.last());
        let summary = summary.filter(|_| self.yardstick);
        let counted = [self.writer.counted(), self.target.counted()];
        if self.settings.json {
            let mut object = json!({
                "command": "loopback",
                "version": env!("CARGO_PKG_VERSION"),
                "settings": self.settings_json(),
                "rows": rows,
                "verified": result.is_ok() && !rows.is_empty() && rows.iter().all(|row| row.verified),
                "counters": { "writer": counters_json(&counted[0]), "target": counters_json(&counted[1]) },
                "error": result.as_ref().err().map(error_chain),
            });
            if let (true, Some(object)) = (self.yardstick, object.as_object_mut()) {
                object.extend(summary_json(summary));
            }
            print_line(&object.to_string());
            return result;
        }
        if let Some(row) = summary {
            self.explain(row);
        }
        self.print_counters(&counted);
        result
    }

    fn explain(&self, row: &BandwidthRow) {
        let (size, mtu) = (format_size(row.size_bytes), self.writer.in_use.mtu);
        let baseline = row.baseline_gbps.unwrap_or_default();
        print_line("");
        if let Some(beside) = &row.beside {
            let each = match (self.pinned().next(), self.settings.lanes) {
                (None, _) => "two threads per lane",
                (_, 1) => "two cores",
                _ => "two cores per lane",
            };
            print_line(&format!(
                "pump: {each}, alternating with the run, {}: {:.2} Gb/s at {size}; ratio of BW average to it: {:.2}{}",
                beside.pump,
                beside.pump_gbps,
                beside.pump_ratio,
                if beside.disturbed { ", disturbed by other load" } else { "" }
            ));
        }
        print_line(&format!(
            "baseline: one core copying the same bytes and computing their CRC, {mtu} bytes at a time: {baseline:.2} Gb/s at {size}"
        ));
        print_line(&format!(
            "ratio of BW average to baseline at {size}: {:.2}",
            row.ratio.unwrap_or_default()
        ));
    }

    fn print_counters(&self, counted: &[crate::bench::endpoint_setup::Counted; 2]) {
        let [writer, target] = counted;
        if self.settings.fault.is_some() {
            print_line(&faults_line("writer", writer));
            print_line(&faults_line("target", target));
        }
        if self.settings.counters {
            print_line("");
            print_line(&counters_table(&[("writer", writer), ("target", target)]));
        }
    }

    fn settings_json(&self) -> Json {
        let mut map = settings_json(&self.settings, &self.writer.in_use);
        map.insert("udp_port".to_owned(), self.udp_port.into());
        map.insert("cores".to_owned(), self.pinned().collect());
        Json::Object(map)
    }

    fn latency(mut self, stop: &Stop) -> Result<()> {
        let Amount::Iterations(rounds) = self.settings.amount else {
            bail!("--latency counts round trips: give --iters, not --duration")
        };
        if !self.settings.json {
            let operations = self.settings.work.operations;
            let part = if operations.has_fetches() { "a round trip" } else { "half of a round trip" };
            print_line(&self.header(&format!("latency of {} ({part})", operations.plural())));
            print_line(&LatencyRow::head());
        }
        let mut rows = Vec::new();
        let result = self.play_all(rounds, stop, &mut rows);
        let result = self.end(result);
        let counted = [self.writer.counted(), self.target.counted()];
        if self.settings.json {
            let object = json!({
                "command": "loopback",
                "version": env!("CARGO_PKG_VERSION"),
                "settings": self.settings_json(),
                "latency_rows": rows,
                "counters": { "writer": counters_json(&counted[0]), "target": counters_json(&counted[1]) },
                "error": result.as_ref().err().map(error_chain),
            });
            print_line(&object.to_string());
        } else {
            self.print_counters(&counted);
        }
        result
    }

    fn play_all(&mut self, rounds: u64, stop: &Stop, rows: &mut Vec<LatencyRow>) -> Result<()> {
        for layout in &self.layouts {
            let game = Game { layout: *layout, rounds, seed: self.settings.seed.unwrap_or_default() };
            let row = play(&mut self.writer, &mut self.target, game, &self.cores, stop)?;
            if !self.settings.json {
                print_line(&row.line());
            }
            rows.push(row);
        }
        Ok(())
    }
}

/// The fields of the JSON object that `--yardstick` adds: those of the row that the summary is about.
fn summary_json(summary: Option<&BandwidthRow>) -> impl Iterator<Item = (String, Json)> {
    let beside = summary.and_then(|row| row.beside.as_ref());
    [
        ("summary_size_bytes", json!(summary.map(|row| row.size_bytes))),
        ("baseline_gbps", json!(summary.and_then(|row| row.baseline_gbps))),
        ("ratio", json!(summary.and_then(|row| row.ratio))),
        ("pump_gbps", json!(beside.map(|beside| beside.pump_gbps))),
        ("pump_ratio", json!(beside.map(|beside| beside.pump_ratio))),
        ("disturbed", json!(beside.map(|beside| beside.disturbed))),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
}

/// One size.
struct Measure<'a, 'b> {
    settings: &'a Settings,
    writer: &'a mut Side,
    /// The target's memory: where bytes go to, and where they come from.
    far: &'a Mr,
    far_source: &'a Mr,
    /// What the writer's operations name.
    remote: Far,
    contents: Contents,
    /// No other size follows.
    is_last: bool,
    planes: usize,
    yardstick: bool,
    cores: &'a [Cores; 2],
    helper: &'a Helper<'b>,
    stop: &'a Stop,
}

impl Measure<'_, '_> {
    /// Fills and clears memory, and returns where the bytes will be: the writer's target, and the other side's.
    fn prepare(&self, pattern: &[u8]) -> Result<[Arc<Region>; 2]> {
        let Self { writer, far, far_source, contents, .. } = self;
        let mut tick = || self.stop.check();
        writer.source.write_at(0, pattern)?;
        far_source.write_at(0, pattern)?;
        contents.clear(far.region(), &mut tick)?;
        contents.layout.clear(writer.target.region(), &mut tick)?;
        Ok([&writer.target, far].map(|mr| Arc::clone(mr.region())))
    }

    /// Compares all of memory with what so many messages of each queue pair leave there.
    fn compare(&self, [here, there]: &[Arc<Region>; 2], pattern: &[u8], done: &[u64]) -> Result<bool> {
        let Self { settings, contents, helper, .. } = self;
        let mut tick = || self.stop.check();
        let receivers = helper.receivers().filter(|_| settings.work.shares_buffers());
        let content = |qp, slot| receivers.as_ref().and_then(|receivers| receivers.content(qp, slot));
        let shared: Option<&dyn Fn(usize, u64) -> Option<usize>> =
            if receivers.is_some() { Some(&content) } else { None };
        let pattern = bytes_of(pattern);
        let mismatch = match contents.check_there(there, &pattern, done, shared, &mut tick)? {
            None if contents.operations.has_fetches() => {
                contents.check_here(here, &pattern, done, &mut tick)?
            }
            found => found,
        };
        if let Some(mismatch) = mismatch {
            eprint_line(format_args!(
                "spindrift: byte {} of the target is wrong (queue pair {})",
                mismatch.offset, mismatch.qp
            ));
        }
        Ok(mismatch.is_none())
    }

    /// Which messages are compared while the run goes on.
    fn comparison(&self, pattern: &Arc<Vec<u8>>, target: &Arc<Region>) -> Comparison {
        let every = self.settings.verify == Verify::Every;
        let (one_in, most) = if every { (1, usize::MAX) } else { (SAMPLE_EVERY, SAMPLE_BYTES) };
        Comparison { pattern: Arc::clone(pattern), target: Arc::clone(target), one_in, most }
    }

    fn row(&mut self) -> Result<BandwidthRow> {
        let Self { settings, contents, cores, .. } = *self;
        let (work, layout) = (settings.work, &contents.layout);
        let pattern = Arc::new(layout.pattern(contents.seed));
        let regions = self.prepare(&pattern)?;
        let [_, there] = &regions;
        let comparison = self.comparison(&pattern, there);
        let (one_in, most) = (comparison.one_in, comparison.most);
        // Of shared buffers, only the target knows which of them a message is in.
        let by_target = work.shares_buffers();
        self.helper.start(&contents, by_target.then_some(comparison))?;
        let mut beside = if self.yardstick { Some(Beside::start(self, &pattern)?) } else { None };
        self.helper.set(RUNNING);

        let [writers, _] = cores;
        let wanted = (settings.tx_depth, Verify::Last);
        let (helper, stop) = (self.helper, self.stop);
        let mut writer = Writer::new(self.writer, contents, &self.remote, wanted, writers)?;
        let samples = Samples {
            contents,
            regions: &regions,
            pattern: &pattern,
            one_in,
            most,
            by_target,
            compared: AtomicU64::new(0),
            wrong: AtomicU64::new(0),
        };
        let sample = |qp: usize, number: u64| samples.look(qp, number);
        let mut watch = LoopbackWatch {
            stop,
            helper,
            progress: Progress::new(layout.size.into(), settings.amount),
            amount: settings.amount,
            before: Measured::default(),
        };
        let warm_up = layout.slots * layout.qps as u64;
        writer.run(Amount::Iterations(warm_up), &mut watch, &sample)?;
        let mut measured = Measured::default();
        if let Some(beside) = &mut beside {
            while let Some(piece) = beside.slices.next(settings.amount, measured.elapsed) {
                watch.before = measured;
                measured = measured.and(writer.run(piece, &mut watch, &sample)?);
                beside.slice()?;
            }
        } else {
            measured = writer.run(settings.amount, &mut watch, &sample)?;
        }
        if let (Some(receivers), false) = (helper.receivers(), self.is_last) {
            // The next size has other buffers. What has been consumed so far is replaced first.
            helper.wait_for(&writer.writes(), stop)?;
            writer.consume(receivers.close(), &mut watch, &sample)?;
        }
        helper.wait_for(&writer.writes(), stop)?;
        let writes = writer.writes();
        drop(writer);
        let by_target = helper.receivers().map_or([0; 2], |receivers| receivers.compared());
        let sampled = samples.compared.load(Ordering::Relaxed) + by_target[0];
        let wrong = samples.wrong.load(Ordering::Relaxed) + by_target[1];

        self.helper.set(PAUSED);
        let beside = beside.map(Beside::end).transpose()?;
        let verified = self.compare(&regions, &pattern, &writes)? && wrong == 0;
        let all = writes.iter().sum();
        let compared = if settings.verify == Verify::Every { all } else { contents.compared(&writes) };
        let mut row = BandwidthRow::new(layout.size, &measured, verified, [compared, all]);
        row.warn_of_pause(&measured);
        row.sampled = Some(sampled);
        if let Some(reference) = beside {
            reference.add_to(&mut row);
        }
        Ok(row)
    }
}

/// Compares messages while the run goes on: of most operations some.
struct Samples<'a> {
    contents: Contents,
    /// The writer's target, and the other side's.
    regions: &'a [Arc<Region>; 2],
    pattern: &'a [u8],
    /// One message in so many, and most bytes of each.
    one_in: u64,
    most: usize,
    /// The target compares what shared buffers receive.
    by_target: bool,
    compared: AtomicU64,
    wrong: AtomicU64,
}

impl Samples<'_> {
    /// A message is complete.
    fn look(&self, qp: usize, number: u64) -> Result<()> {
        let Self { contents, regions: [here, there], .. } = self;
        let operation = contents.operation(qp, number);
        let is_due = !(self.by_target && operation.fills_receive()) && number.is_multiple_of(self.one_in);
        if !is_due && !operation.is_atomic() {
            return Ok(());
        }
        self.compared.fetch_add(1, Ordering::Relaxed);
        let is_right = if operation.is_atomic() {
            contents.is_result(here, qp, number)?
        } else {
            let region = if operation.is_fetch() { here } else { there };
            contents.layout.sample(region, self.pattern, (qp, number), self.most)?
        };
        self.wrong.fetch_add(u64::from(!is_right), Ordering::Relaxed);
        Ok(())
    }
}

/// The yardstick of a run: a pump on the same cores, in turns with the run, and a baseline before and after it. The target's
/// lanes sleep while these run.
struct Beside<'a, 'b> {
    pump: TwoCores<'a>,
    baseline: Baseline,
    cores: &'a [Cores; 2],
    helper: &'a Helper<'b>,
    slices: Slices,
    latency_before_ns: f64,
    rates: Vec<f64>,
}

/// What the pump and the baseline measured.
struct Reference {
    pump: &'static str,
    yardstick: Yardstick,
    baseline_gbps: f64,
}

impl Reference {
    fn add_to(&self, row: &mut BandwidthRow) {
        row.baseline_gbps = Some(self.baseline_gbps);
        row.ratio = Some(row.bandwidth_gbps / self.baseline_gbps);
        row.beside = Some(PumpCells::new(self.pump, &self.yardstick, row.bandwidth_gbps));
    }
}

impl<'a, 'b> Beside<'a, 'b> {
    /// Measures for the first time, before the run.
    fn start(run: &Measure<'a, 'b>, pattern: &[u8]) -> Result<Self> {
        let Measure { settings, cores, helper, planes, .. } = *run;
        let plan = PumpPlan {
            layout: run.contents.layout,
            mtu: run.writer.in_use.mtu,
            icrc: settings.icrc,
            planes,
            lanes: settings.lanes,
            cores,
        };
        let pump = TwoCores::new(plan, run.writer.source.region().clone())?;
        helper.set(PAUSED);
        let mut baseline = Baseline::new(&run.contents.layout, pattern, run.writer.in_use.mtu);
        let [before, _] = BASELINE_RUNS;
        (0..before).for_each(|_| baseline.run());
        warm_up(|time| pump.run(time))?;
        let latency_before_ns = core_latency_ns(cores)?;
        let slices = Slices::of(settings.amount);
        let mut beside = Self { pump, baseline, cores, helper, slices, latency_before_ns, rates: Vec::new() };
        beside.slice()?;
        Ok(beside)
    }

    fn slice(&mut self) -> Result<()> {
        self.helper.set(PAUSED);
        self.rates.push(self.pump.run(self.slices.slice)?);
        self.helper.set(RUNNING);
        Ok(())
    }

    /// Measures for the last time, after the run, while the target's lanes sleep.
    fn end(mut self) -> Result<Reference> {
        let latency_ns = Some([self.latency_before_ns, core_latency_ns(self.cores)?]);
        let [_, after] = BASELINE_RUNS;
        (0..after).for_each(|_| self.baseline.run());
        Ok(Reference {
            pump: self.pump.steps(),
            yardstick: Yardstick { slices: self.rates, latency_ns },
            baseline_gbps: self.baseline.gbps(),
        })
    }
}

struct LoopbackWatch<'a, 'b> {
    stop: &'a Stop,
    helper: &'a Helper<'b>,
    progress: Progress,
    amount: Amount,
    /// The pieces of the run that are over.
    before: Measured,
}

impl Watch for LoopbackWatch<'_, '_> {
    fn tick(&mut self, done: u64, elapsed: Duration) -> Result<()> {
        let before = &self.before;
        self.progress.set(self.amount, before.iterations + done, before.elapsed + elapsed);
        self.helper.check()?;
        self.stop.check()
    }
}
