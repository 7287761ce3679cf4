//! Options of all benchmarks, from flags and a configuration file.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum};
use spindrift::congestion::{CcAlgorithm, CcConfig};
use spindrift::endpoint::{EndpointConfig, Limits, Route};
use spindrift::path::{PathConfig, PlaneSet};
use spindrift::verbs::{Extensions, QpConfig, RtsAttr};
use spindrift::wire::{EntropyMode, StevOrder};
use spindrift_pmd::fault::FaultPlan;

use super::check::{check, check_atomic_size, parse_faults, retry};
use super::evs::EvLists;
use super::operation::{Operation, Work};
use super::pin::WaitName;
use crate::config::{CcName, Config, EntropyName, FallbackName, PathSet, parse_planes};
use crate::ctl::ControlPlace;
use crate::driver::Driver;
use crate::metrics::MetricsArgs;
use crate::place::Place;
use crate::units::{parse_duration, parse_rate, parse_size};
use crate::usage::usage;
use crate::verbose::Verbosity;

/// The sizes of a sweep: 2 bytes to 8 MiB, doubling.
const SWEEP: std::ops::RangeInclusive<u32> = 1..=23;

/// Options that every benchmark has.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) verbosity: Verbosity,
    /// Message size: 64, 64K, 4KiB, 1M [default: all sizes for `loopback`, 64K for bandwidth, 2 for latency, 8 for
    /// atomic operations]
    #[arg(short, long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) size: Option<u64>,
    /// All sizes from 2 bytes to 8 MiB, doubling
    #[arg(short, long, conflicts_with = "size")]
    pub(crate) all: bool,
    /// Messages of each size [default: 5000 for bandwidth, 1000 for latency, 10000 for `loopback --latency`]
    #[arg(
        short = 'n',
        long = "iters",
        visible_alias = "iterations",
        value_name = "N",
        conflicts_with = "duration"
    )]
    pub(crate) iterations: Option<u64>,
    /// Time for each size, instead of a number of messages: seconds, or 300ms, 2s, 1m [default: 300ms for `loopback`]
    #[arg(short = 'D', long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) duration: Option<Duration>,
    /// Queue pairs, 1 to 1024 [default: 1]
    #[arg(short, long, value_name = "N")]
    pub(crate) qp: Option<u32>,
    /// Lanes of this side, 1 to 15: threads that share the queue pairs, each with a core of its own [default: 1]
    #[arg(long, value_name = "N")]
    pub(crate) lanes: Option<usize>,
    /// Messages in flight on each queue pair; fewer, but at least 2, where memory would exceed 8 MiB [default: 128]
    #[arg(short, long, value_name = "N")]
    pub(crate) tx_depth: Option<u32>,
    /// Payload bytes of a packet, reduced to what the ports and the peer accept [default: 4096]
    #[arg(short, long, value_name = "BYTES")]
    pub(crate) mtu: Option<u32>,
    /// Congestion control [default: auto, which is adaptive on a network and none within one host]
    #[arg(long, value_enum)]
    pub(crate) cc: Option<CcName>,
    /// Retransmission timeout: 1.024 us x 2^EXP, 1 to 24 [default: 14, which is 16.8 ms]
    #[arg(long, value_name = "EXP")]
    pub(crate) timeout: Option<u64>,
    /// Timeouts of the same length after the first, 0 to 7 [default: 7]
    #[arg(long, value_name = "N")]
    pub(crate) linear_retries: Option<u64>,
    /// Doubling timeouts after those, 0 to 24, or 25 for no limit [default: 9, which gives up after 17.3 s]
    #[arg(long, value_name = "N")]
    pub(crate) exponential_retries: Option<u64>,
    /// Neither compute nor check the invariant CRC (on both sides)
    #[arg(long)]
    pub(crate) no_icrc: bool,
    /// Send each packet of `udp` ports to the kernel by itself, without segmentation offload
    #[arg(long)]
    pub(crate) no_gso: bool,
    /// Limit each port to this rate, in bits per second including headers: 100M, 1.5Gbit [default: no limit]
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    pub(crate) link_rate: Option<u64>,
    /// Entropy values of each plane, such as 0x0,0x40000000, or plane by plane: 0x0/0x0,0x40000000. Not for `udp`
    /// ports [default: random]
    #[arg(long, value_name = "EV,..")]
    pub(crate) evs: Option<EvLists>,
    /// Backup entropy values per queue pair, over all planes [default: 64, or 0 with --evs]
    #[arg(long, value_name = "N")]
    pub(crate) backup_evs: Option<u16>,
    /// Planes that stand by until no other one works, such as 2,3: those of a second NIC [default: none]
    #[arg(long, value_name = "PLANE,..", value_parser = parse_planes)]
    pub(crate) standby: Option<PlaneSet>,
    /// How long the primary planes must have worked before packets return to them, doubled after each failure
    /// [default: 1s]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) failback_hold: Option<Duration>,
    /// Which messages are compared with the expected contents of memory [default: last, or every for atomic
    /// operations and mixes]
    #[arg(long, value_enum)]
    pub(crate) verify: Option<Verify>,
    /// Extensions of MRC to offer to the peer: names such as send,rnr,read,atomic, or none [default: all]
    #[arg(long, value_name = "NAME,..", value_parser = parse_extensions)]
    pub(crate) extensions: Option<Extensions>,
    /// Seed of all randomness, to repeat a run; it makes keys predictable [default: 1 for `loopback`, else random]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Inject faults into what this side sends: "loss=1%" or "reorder=2%:50us; trim=1%"
    #[arg(long, value_name = "RULES")]
    pub(crate) fault: Option<String>,
    /// Capture the packets of this side's ports to a file (slow)
    #[arg(long, value_name = "FILE")]
    pub(crate) pcap: Option<PathBuf>,
    /// Folder of the control socket for `spindrift ctl`, or none [default: the folder of `spindrift ctl`]
    #[arg(long, value_name = "DIR")]
    pub(crate) control_dir: Option<ControlPlace>,
    #[command(flatten)]
    pub(crate) metrics: MetricsArgs,
    /// Print every counter that is not 0
    #[arg(long)]
    pub(crate) counters: bool,
    /// Print one JSON object instead of tables
    #[arg(long)]
    pub(crate) json: bool,
    /// Configuration file (TOML); flags override it
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

impl RunArgs {
    /// Which of the flags were given that not every kind of port has.
    pub(crate) fn of_kinds(&self) -> Vec<&'static str> {
        let all = [("--no-gso", self.no_gso), ("--evs", self.evs.is_some())];
        all.into_iter().filter(|(_, given)| *given).map(|(flag, _)| flag).collect()
    }
}

fn whole_ns(time: Duration) -> u64 {
    time.as_nanos().try_into().unwrap_or(u64::MAX)
}

/// Names of extensions, separated by commas.
fn parse_extensions(text: &str) -> Result<Extensions, String> {
    if text == "none" {
        return Ok(Extensions::NONE);
    }
    text.split(',').try_fold(Extensions::NONE, |known, name| {
        let extension = Extensions::from(vec![name.to_owned()]);
        if extension.is_empty() {
            return Err(format!("`{name}` is no extension; give `none`, or some of {}", Extensions::ALL));
        }
        Ok(known | extension)
    })
}

/// Which messages of a bandwidth run are compared, byte for byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Verify {
    /// The last message to each buffer, after the measurement.
    #[default]
    Last,
    /// Every message, before its buffer is used again.
    Every,
}

impl Verify {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Last => "last",
            Self::Every => "every",
        }
    }
}

/// How much of each size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Amount {
    Iterations(u64),
    Time(Duration),
}

/// Everything that a run needs to know.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) config: Config,
    pub(crate) work: Work,
    /// Those to offer.
    pub(crate) extensions: Extensions,
    pub(crate) sizes: Vec<u64>,
    pub(crate) amount: Amount,
    pub(crate) qps: usize,
    pub(crate) lanes: usize,
    pub(crate) tx_depth: u32,
    pub(crate) verify: Verify,
    pub(crate) mtu: u32,
    pub(crate) cc: CcName,
    pub(crate) icrc: bool,
    /// Whether udp ports use segmentation offload, if the kernel has it.
    pub(crate) gso: bool,
    /// How long a silent peer is waited for.
    pub(crate) retry: RtsAttr,
    /// Given, or drawn for this run.
    pub(crate) seed: Option<u64>,
    pub(crate) fault: Option<FaultPlan>,
    pub(crate) fault_text: Option<String>,
    /// Of each port, bits per second, if it is to be slower than its medium.
    pub(crate) link_rate: Option<u64>,
    pub(crate) pcap: Option<PathBuf>,
    /// Where the control socket is.
    pub(crate) control: ControlPlace,
    /// Whether metrics are served, which come from there.
    pub(crate) metrics: bool,
    /// The entropy values of queue pairs, if they are not to choose them.
    pub(crate) evs: Option<EvLists>,
    /// How many of them are kept in reserve, if that was said.
    pub(crate) backup: Option<u16>,
    /// Planes that stand by, if that was said.
    pub(crate) standby: Option<PlaneSet>,
    /// How queue pairs move to them.
    pub(crate) fallback: FallbackName,
    /// How long the others must have worked before packets return to them, if that was said.
    pub(crate) failback_hold_ns: Option<u64>,
    /// Whether the packets that take each of them are counted.
    pub(crate) count_packets: bool,
    pub(crate) port: &'static Driver,
    /// What lanes do while there is nothing to do.
    pub(crate) wait: WaitName,
    /// What this host is called in the topology, if there is one.
    pub(crate) host: Option<String>,
    /// Source-routed ways to other hosts, if packets are to take such.
    pub(crate) routes: Vec<Route>,
    pub(crate) counters: bool,
    pub(crate) json: bool,
}

/// What differs between the benchmarks where neither flag nor file says anything.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Defaults {
    pub(crate) port: &'static Driver,
    pub(crate) work: Work,
    /// `None` sweeps.
    pub(crate) size: Option<u64>,
    pub(crate) amount: Amount,
    pub(crate) seed: Option<u64>,
    pub(crate) tx_depth: u32,
}

impl Settings {
    /// Most queue pairs of a run: what one exchange offers.
    pub(crate) const QPS_MAX: u32 = spindrift_exchange::MAX_OFFERED as u32;

    /// Joins flags, file and defaults, in this order, and checks them.
    pub(crate) fn new(args: &RunArgs, port: Option<&'static Driver>, defaults: &Defaults) -> Result<Self> {
        let config = Config::load(args.config.as_deref())?;
        let run = &config.run;
        let work = defaults.work;
        let mut size = if args.all { None } else { args.size.or(run.size).or(defaults.size) };
        if work.operations.only().is_some_and(Operation::is_atomic) {
            check_atomic_size(&config, args)?;
            size = Some(8);
        }
        let sizes = size.map_or_else(|| SWEEP.map(|shift| 1 << shift).collect(), |size| vec![size]);
        let amount = match (args.iterations, args.duration, run.iterations, run.duration) {
            (Some(n), ..) | (None, None, Some(n), None) => Amount::Iterations(n),
            (None, Some(time), ..) | (None, None, None, Some(time)) => Amount::Time(time),
            (None, None, Some(_), Some(_)) => {
                let place = config.place("run.duration");
                return Err(usage(format!("{place}: [run] has `iterations` too; give one of them")));
            }
            (None, None, None, None) => defaults.amount,
        };
        let fault_text = args.fault.clone().or_else(|| config.nic.fault.clone());
        let fault_name = config.origin(args.fault.is_some(), "--fault", "nic.fault");
        let fault = fault_text.as_deref().map(|text| parse_faults(&fault_name, text)).transpose()?;
        let settings = Self {
            work,
            extensions: args.extensions.unwrap_or(Extensions::ALL),
            sizes,
            amount,
            qps: args.qp.or(run.qps).unwrap_or(1) as usize,
            lanes: args.lanes.or(config.nic.lanes).unwrap_or(1),
            tx_depth: args.tx_depth.or(run.tx_depth).unwrap_or(defaults.tx_depth),
            verify: work.verify(args.verify),
            mtu: args.mtu.or(config.transport.mtu).unwrap_or(4096),
            cc: args.cc.or(config.cc.algorithm).unwrap_or(CcName::Auto),
            icrc: !args.no_icrc && config.transport.icrc.unwrap_or(true),
            gso: !args.no_gso && config.nic.gso.unwrap_or(true),
            retry: retry(&config, args)?,
            seed: args.seed.or(run.seed).or(defaults.seed),
            fault,
            fault_text,
            link_rate: args.link_rate.or(config.nic.link_rate),
            pcap: args.pcap.clone().or_else(|| run.pcap.clone()),
            control: args.control_dir.clone().or_else(|| run.control_dir.clone()).unwrap_or_default(),
            metrics: args.metrics.are_wanted(),
            evs: args.evs.clone().or_else(|| config.path.evs.clone()),
            backup: args.backup_evs.or(config.path.backup),
            standby: args.standby.or(config.path.standby),
            fallback: config.path.fallback.unwrap_or_default(),
            failback_hold_ns: args.failback_hold.map(whole_ns).or(config.path.failback_hold_ns),
            count_packets: false,
            port: port.or(config.nic.port).unwrap_or(defaults.port),
            wait: WaitName::Spin,
            host: None,
            routes: Vec::new(),
            counters: args.counters,
            json: args.json,
            config,
        };
        check(&settings, args)?;
        Ok(settings)
    }

    /// The endpoint's settings over `base`, which knows the ports.
    pub(crate) fn endpoint(&self, base: EndpointConfig) -> EndpointConfig {
        let from = &self.config.transport;
        let entropy = match from.entropy {
            Some(EntropyName::StevSportHigh) => EntropyMode::Stev(StevOrder::SportHigh),
            Some(EntropyName::StevSportLow) => EntropyMode::Stev(StevOrder::SportLow),
            Some(EntropyName::Udp) => EntropyMode::Udp,
            None => base.entropy,
        };
        EndpointConfig {
            udp_port: from.udp_port.unwrap_or(base.udp_port),
            entropy,
            icrc: self.icrc,
            dscp: from.dscp.unwrap_or(base.dscp),
            trimming: from.trimming.unwrap_or(base.trimming),
            oor_nack: from.oor_nack.unwrap_or(base.oor_nack),
            op_position: from.op_position.unwrap_or(base.op_position),
            hop_limit: from.hop_limit.unwrap_or(base.hop_limit),
            sack_threshold_bytes: from.sack_threshold_bytes.unwrap_or(base.sack_threshold_bytes),
            tail_probe_floor_ns: from.tail_probe_floor_ns.unwrap_or(base.tail_probe_floor_ns),
            initial_reordering_ns: from.initial_reordering_ns.unwrap_or(base.initial_reordering_ns),
            limits: Limits {
                window_budget_psns: from.window_budget_psns.unwrap_or(base.limits.window_budget_psns),
                ..base.limits
            },
            plane_ids: self.config.nic.plane_ids.clone().unwrap_or(base.plane_ids),
            routes: self.routes.clone(),
            ..base
        }
    }

    /// Receive work requests of each queue pair, at most.
    pub(crate) fn receives(&self) -> u32 {
        self.work.receives(self.tx_depth.max(2).into())
    }

    /// The settings of each queue pair over so many planes, with this congestion control.
    pub(crate) fn queue_pair(&self, planes: usize, cc: CcConfig) -> QpConfig {
        let base = QpConfig::default();
        let from = &self.config.transport;
        QpConfig {
            max_send_wr: self.tx_depth,
            max_recv_wr: self.receives(),
            max_rd_atomic: self.work.outs,
            extensions: self.extensions,
            path: self.paths(planes),
            cc: Some(cc),
            max_mtu: self.mtu,
            mpr: from.mpr.unwrap_or(base.mpr),
            max_wimm: from.max_wimm.unwrap_or(base.max_wimm),
            dynamic_mpr: from.dynamic_mpr.unwrap_or(base.dynamic_mpr),
            retry: self.retry,
            ..QpConfig::default()
        }
    }

    pub(super) fn paths(&self, planes: usize) -> PathConfig {
        let set = PathSet {
            evs: self.evs.clone(),
            backup: self.backup,
            standby: self.standby,
            failback_hold_ns: self.failback_hold_ns,
            ..self.config.path.clone()
        };
        let planes = planes.clamp(1, EndpointConfig::MAX_PORTS) as u8;
        PathConfig { count_packets: self.count_packets, ..set.paths(planes) }
    }

    /// Those of a NIC that has these planes of the run.
    pub(super) fn of_planes(&self, planes: &[usize]) -> Self {
        let place = |port: u8| planes.iter().position(|&plane| plane == usize::from(port));
        let routes = self.routes.iter().filter_map(|route| {
            let port = place(route.port)?;
            Some(Route { port: port as u8, ..route.clone() })
        });
        let mut config = self.config.clone();
        config.path.standby = None;
        if let Some(ids) = &mut config.nic.plane_ids {
            *ids = planes.iter().filter_map(|&plane| ids.get(plane).copied()).collect();
        }
        Self {
            evs: self.evs.as_ref().map(|evs| evs.only(planes)),
            routes: routes.collect(),
            standby: None,
            config,
            ..self.clone()
        }
    }

    /// How many entropy values of each plane are kept in reserve, if that was said.
    pub(super) fn backup_of_plane(&self, planes: usize) -> usize {
        usize::from(self.backup.unwrap_or_default()).div_ceil(planes.max(1))
    }

    /// Congestion control over so many planes: `default`, which the ports ask for, where neither flag nor file says otherwise.
    pub(super) fn congestion(&self, planes: usize, default: &CcConfig) -> CcConfig {
        let algorithm = match self.cc {
            CcName::Auto => default.algorithm,
            CcName::None => CcAlgorithm::None,
            CcName::Nscc => CcAlgorithm::Nscc,
            CcName::Adaptive => CcAlgorithm::Adaptive,
        };
        if algorithm == CcAlgorithm::None {
            return CcConfig::none();
        }
        let from = &self.config.cc;
        let of_ports = match default.algorithm {
            CcAlgorithm::Adaptive | CcAlgorithm::Nscc => default.link_rate_bps,
            CcAlgorithm::None => CcConfig::USUAL_LINK_BPS * planes as u64,
        };
        let rate = from.link_rate_gbps.map_or(of_ports, |gbps| (gbps * 1e9) as u64);
        let rtt = from.base_rtt_ns.unwrap_or(CcConfig::SOFTWARE_RTT_NS);
        let shared = from.shared.unwrap_or_default();
        CcConfig { algorithm, shared, ..CcConfig::for_software(rate, rtt, self.mtu) }
    }

    /// Where the planes' ports are, if that was said.
    pub(crate) fn local(&self) -> Option<&[Place]> {
        self.config.nic.local.as_deref().filter(|list| !list.is_empty())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
impl Settings {
    /// Those of a short run where nobody says anything.
    pub(crate) fn of_test(port: &'static Driver) -> Self {
        let (size, amount) = (Some(2), Amount::Iterations(1));
        let work = Work::of(Operation::Write);
        let defaults = Defaults { port, work, size, amount, seed: None, tx_depth: 1 };
        Self::new(&RunArgs::default(), None, &defaults).unwrap()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::driver::UDP;

    fn settings_of(text: &str) -> Settings {
        Settings { config: toml::from_str(text).unwrap(), ..Settings::of_test(UDP) }
    }

    #[test]
    fn congestion_windows_are_shared_if_the_file_says_so() {
        let cc = |cc, text| Settings { cc, ..settings_of(text) }.congestion(2, &CcConfig::none());
        let nscc = cc(CcName::Nscc, "");
        assert!(!nscc.shared);
        assert_eq!(cc(CcName::Nscc, "cc.shared = true"), CcConfig { shared: true, ..nscc });
        // Without congestion control there is nothing to share.
        assert_eq!(cc(CcName::None, "cc.shared = true"), CcConfig::none());
    }

    #[test]
    fn the_ports_decide_on_congestion_control_where_nobody_else_does() {
        let of_ports = CcConfig::for_software(25_000_000_000, 50_000, 4096);
        let cc = |cc, text, default: &CcConfig| Settings { cc, ..settings_of(text) }.congestion(2, default);
        assert_eq!(settings_of("").cc, CcName::Auto);
        assert_eq!(cc(CcName::Auto, "", &of_ports), of_ports);
        assert_eq!(cc(CcName::Auto, "", &CcConfig::none()), CcConfig::none());
        assert_eq!(cc(CcName::None, "", &of_ports), CcConfig::none());
        // Ports within a host have no rate: 100 Gb/s each.
        let usual = CcConfig::for_software(200_000_000_000, 50_000, 4096);
        assert_eq!(cc(CcName::Adaptive, "", &CcConfig::none()), usual);
        assert_eq!(cc(CcName::Adaptive, "", &of_ports), of_ports);
        let nscc = |of: &CcConfig| CcConfig { algorithm: CcAlgorithm::Nscc, ..of.clone() };
        assert_eq!(cc(CcName::Nscc, "", &CcConfig::none()), nscc(&usual));
        assert_eq!(cc(CcName::Nscc, "", &of_ports), nscc(&of_ports));
        // The file knows better.
        let known = CcConfig::for_software(40_000_000_000, 8_000, 4096);
        let text = "cc.link_rate_gbps = 40\ncc.base_rtt_ns = 8000";
        assert_eq!(cc(CcName::Auto, text, &of_ports), known);
        assert_eq!(cc(CcName::Auto, text, &CcConfig::none()), CcConfig::none());
    }

    #[test]
    fn listed_entropy_values_are_all_in_use_but_for_a_reserve() {
        use spindrift::path::Paths;
        let evs = |evs: &str, backup| Settings { evs: Some(evs.parse().unwrap()), backup, ..settings_of("") };
        let in_use = |settings: &Settings, planes: usize| {
            let paths = Paths::new(&settings.paths(planes), 1).unwrap();
            let (all, used) = (paths.states().count(), paths.states().filter(|ev| ev.active).count());
            (all, used, paths.states().map(|ev| ev.ev.0).max().unwrap())
        };
        for (list, backup, planes, wanted) in [
            ("1,2,9", None, 2, (6, 6, 9)),
            ("1,2,9/5", None, 2, (4, 4, 9)),
            ("1,2,9", Some(0), 2, (6, 6, 9)),
            ("1,2,9,4", Some(1), 1, (4, 3, 9)),
            // The same for each plane, rounded up.
            ("1,2,9,4", Some(1), 2, (8, 6, 9)),
            ("1,2,9,4", Some(2), 2, (8, 6, 9)),
            ("1,2,9,4", Some(3), 2, (8, 4, 9)),
        ] {
            assert_eq!(in_use(&evs(list, backup), planes), wanted, "{list} {backup:?} {planes}");
        }
        let many: Vec<_> = (1..=300).map(|ev| ev.to_string()).collect();
        assert_eq!(in_use(&evs(&many.join(","), None), 1), (300, 300, 300));
        // Of a few, all but one may fail.
        let least = |list: &str, planes| evs(list, None).paths(planes).min_active;
        assert_eq!((least("1,2", 1), least("1,2,3,4,5,6,7,8", 2), least(&many.join(","), 1)), (1, 2, 4));
        // Without a list, as ever.
        assert_eq!(settings_of("").paths(2).backup, PathConfig::new(2).backup);
        assert_eq!(Settings { backup: Some(7), ..settings_of("") }.paths(2).backup, 7);
    }

    /// With `--fallback shift` each NIC has the settings of its own planes, which are numbered from 0 there.
    #[test]
    fn a_nic_has_the_settings_of_its_planes() {
        let route = |port, to: &str| Route::new(to.parse().unwrap(), port);
        let settings = Settings {
            evs: Some("1,2/3/4,5/6".parse().unwrap()),
            routes: vec![route(0, "fd00::/64"), route(3, "fd03::/64"), route(1, "fd01::/64")],
            standby: Some(PlaneSet(0b1010)),
            ..settings_of("nic.plane_ids = [10, 11, 12, 13]\npath.standby = [1, 3]")
        };
        let of = |planes: &[usize]| {
            let nic = settings.of_planes(planes);
            let count = planes.len();
            assert_eq!(nic.paths(count).standby, PlaneSet::default());
            let routes = nic.routes.iter().map(|route| (route.port, route.to.to_string()));
            let ids = nic.endpoint(EndpointConfig::new(Vec::new())).plane_ids;
            (nic.evs.unwrap().to_string(), ids, routes.collect::<Vec<_>>())
        };
        let (evs, ids, routes) = of(&[1, 3]);
        assert_eq!((&*evs, ids), ("0x3/0x6", vec![11, 13]));
        assert_eq!(routes, [(1, "fd03::/64".to_owned()), (0, "fd01::/64".to_owned())]);
        let (evs, ids, routes) = of(&[0, 2]);
        assert_eq!((&*evs, ids), ("0x1,0x2/0x4,0x5", vec![10, 12]));
        assert_eq!(routes, [(0, "fd00::/64".to_owned())]);
        // One list is that of all planes.
        let one = Settings { evs: Some("7,8".parse().unwrap()), ..settings };
        assert_eq!(one.of_planes(&[3]).evs.unwrap().to_string(), "0x7,0x8");
    }

    #[test]
    fn the_window_budget_reaches_the_endpoint() {
        let endpoint = |text| settings_of(text).endpoint(EndpointConfig::new(Vec::new()));
        let usual = Limits::default();
        assert_eq!(endpoint("").limits, usual);
        let less = endpoint("transport.window_budget_psns = 4321").limits;
        assert_eq!(less, Limits { window_budget_psns: 4321, ..usual });
        assert_eq!(endpoint("transport.window_budget_psns = 0").limits.window_budget_psns, 0);
    }
}
