//! `spindrift write-bw`, `send-lat` and so on: benchmarks between two hosts or two processes.

mod acceptor;
mod address;
mod client;
mod host_config;
mod memory;
mod operations;
mod path_check;
mod peer;
pub(crate) mod perftest;
mod plan;
mod planes;
mod port;
mod pump;
mod server;
mod shift;

use std::fs::OpenOptions;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Error, Result, bail};
use clap::{ArgAction, Args};
use spindrift::verbs::Extensions;
use spindrift_exchange::Offer;
use spindrift_pmd::route::local_addresses;

use crate::bench::check::{
    check_kind, check_lanes, check_latency, check_plane_ids, check_planes, check_udp_port, check_work,
};
use crate::bench::endpoint_setup::{Far, Side};
use crate::bench::nic::Nic;
use crate::bench::operation::Work;
use crate::bench::options::{Amount, Defaults, RunArgs, Settings, Verify};
use crate::bench::pin::{Cores, Idle, WaitName};
use crate::bench::receiver::Receivers;
use crate::bench::samples::{Sampler, SamplesConfig, USUAL_INTERVAL};
use crate::bench::transport::Nics;
use crate::config::{FallbackName, RoutingName};
use crate::driver::{PortFlags, Reach, UDP};
use crate::output::eprint_line;
use crate::place::{Local, Place};
use crate::stop::{SetOnDrop, Stop};
use crate::units::{parse_duration, parse_size};
use crate::usage::usage;
use crate::verbose::Verbosity;

use self::address::ServerArg;
use self::host_config::{Wanted, tell_without_path};
pub(crate) use self::operations::{
    AtomicOptions, Benchmark, MixOptions, ReadOptions, SendOptions, WriteOptions,
};
use self::peer::{LOOK_INTERVAL, Peer};
pub(crate) use self::plan::is_benchmark;
use self::plan::{Kind, Message, Shape};
use self::planes::Planes;
use self::port::{PortArg, Ports};
use self::pump::first_address;
use self::shift::wait_prepared;

/// TCP port of the set-up exchange, the one of perftest.
const TCP_PORT: u16 = 18_515;
/// Limit for each message of the set-up.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Shortest time between two samples: taking one takes some microseconds.
const SAMPLE_INTERVAL_MIN: Duration = Duration::from_micros(100);

/// Options of all of these commands.
#[derive(Args, Debug)]
pub(crate) struct RemoteArgs {
    /// Client: the server's address or name, and its TCP port if it is not 18515: `10.0.0.2`, `[::1]:7000`,
    /// `node7:7000`. Without it, this is the server
    server: Option<ServerArg>,
    #[command(flatten)]
    run: RunArgs,
    /// TCP port of the server; or the kind and the place of a plane's port, such as `af_xdp:eth0`, once per plane
    /// [default: 18515, and `udp` ports]
    #[arg(short, long, value_name = "PORT", action = ArgAction::Append)]
    port: Vec<PortArg>,
    /// Local address or interface of each plane, in the order of the peer's planes [default: the address that the
    /// route to the peer uses]
    #[arg(long, value_name = "ADDR,..", value_delimiter = ',')]
    local: Vec<Place>,
    /// Plane number of each local address; a peer with other numbers, or another order, is refused
    #[arg(long, value_name = "N,..", value_delimiter = ',')]
    plane_ids: Vec<u32>,
    /// Topology file: gives this host its addresses, the numbers of its planes, and the paths to other hosts
    #[arg(long, value_name = "FILE", conflicts_with = "plane_ids")]
    topology: Option<PathBuf>,
    /// Routing: SRv6 source routes, or ECMP in the switches [default: srv6 for `af_xdp` and `dpdk` ports with a
    /// topology, else ecmp]
    #[arg(long, value_enum)]
    routing: Option<RoutingName>,
    /// Index of the local address in the list of `spindrift ports`; gives one plane
    #[arg(
        short = 'x',
        long = "address-index",
        visible_alias = "gid-index",
        value_name = "N",
        conflicts_with = "local"
    )]
    index: Option<usize>,
    /// UDP port to receive on [default: 4971, or a free one if that is taken]
    #[arg(long, value_name = "PORT")]
    udp_port: Option<u16>,
    /// How queue pairs move to the planes that stand by: with their transport state, or by sending requests again over
    /// a second queue pair, after the SHIFT paper (on both sides) [default: seamless]
    #[arg(long, value_enum, value_name = "MODE")]
    fallback: Option<FallbackName>,
    #[command(flatten)]
    of_ports: PortFlags,
    /// Client of `write-bw` or `send-bw`: also measure the raw UDP pump to the server, alternating with the run
    #[arg(long, alias = "with-pump")]
    yardstick: bool,
    /// Bandwidth: write samples of counters and paths to this file, one JSON object per line
    #[arg(long, value_name = "FILE")]
    samples: Option<PathBuf>,
    /// Time between two samples, at least 100us [default: 10ms]
    #[arg(long, value_name = "TIME", value_parser = parse_duration, requires = "samples")]
    sample_interval: Option<Duration>,
    /// Yield the core as soon as this side is idle, because other busy processes share it
    #[arg(long)]
    share_cores: bool,
    /// What an idle side does
    #[arg(long, value_enum, default_value_t, conflicts_with = "share_cores")]
    wait: WaitName,
    /// Server: serve one client after another, until Ctrl-C; prints one JSON object per run
    #[arg(long, conflicts_with_all = ["server", "pcap", "samples"])]
    keep_serving: bool,
    /// Server: refuse a run that needs more memory than this [default: a quarter of the available memory]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, conflicts_with = "server")]
    max_memory: Option<u64>,
    /// perftest's; without effect here.
    #[arg(short = 'F', long = "CPU-freq", hide = true)]
    cpu_freq: bool,
    /// perftest's; without effect here.
    #[arg(long = "report_gbits", hide = true)]
    report_gbits: bool,
}

impl RemoteArgs {
    pub(crate) fn verbosity(&self) -> Verbosity {
        self.run.verbosity
    }

    /// Which of the flags were given that not every kind of port has.
    fn of_kinds(&self, ports: &Ports) -> Vec<&'static str> {
        let all = [
            ("--local", !self.local.is_empty()),
            ("--address-index", self.index.is_some()),
            ("--port", !ports.places.is_empty()),
            ("--topology", self.topology.is_some()),
            ("--routing", self.routing.is_some()),
        ];
        let more = all.into_iter().filter(|(_, given)| *given).map(|(flag, _)| flag);
        self.run.of_kinds().into_iter().chain(self.of_ports.given()).chain(more).collect()
    }
}

/// A run's settings and where its peer is.
struct Session {
    kind: Kind,
    settings: Settings,
    /// Where the places of ports came from, for errors.
    local_name: String,
    tcp_port: u16,
    timeout: Duration,
    keep_serving: bool,
    /// Memory that a client may make a server take, if that was set.
    max_memory: Option<u64>,
    yardstick: bool,
    share_cores: bool,
    samples: Option<SamplesConfig>,
    stop: Stop,
}

fn run(args: &RemoteArgs, kind: Kind, work: Work) -> Result<()> {
    let (size, iterations) = match kind.shape {
        Shape::Bandwidth => (Some(64 << 10), 5000),
        Shape::Latency => (Some(2), 1000),
    };
    tell_without_effect(args);
    let ports = Ports::new(&args.port)?;
    let of_server = port_of_server(args.server.as_ref(), &ports)?;
    let amount = Amount::Iterations(iterations);
    let defaults = Defaults { port: UDP, work, size, amount, seed: None, tx_depth: 128 };
    let mut settings = Settings::new(&args.run, ports.kind, &defaults)?;
    let flags = args.of_kinds(&ports);
    check_port(&settings, &ports, &flags)?;
    check_pump(args, kind)?;
    check_verify(args)?;
    let samples = samples(args, kind)?;
    settings.count_packets = samples.is_some();
    settings.wait = args.wait;
    settings.fallback = args.fallback.unwrap_or(settings.fallback);
    shift::check_settings(&settings, args.fallback.is_some())?;
    if kind.shape == Shape::Latency {
        check_latency(&settings, &args.run, kind.name())?;
    }
    check_udp_port(&settings.config, args.udp_port)?;
    let local_name = set_nic(args, &ports, &mut settings)?;
    settings.port.check_settings(&settings, &flags)?;
    if let Some(places) = settings.local() {
        settings.port.resolve(&settings, &local_name, places, None)?;
    }
    if args.keep_serving && settings.pcap.is_some() {
        let place = settings.config.place("run.pcap");
        return Err(usage(format!(
            "{place}: with --keep-serving each run would overwrite it; leave one out"
        )));
    }
    if args.server.is_some() {
        check_work(&settings)?;
        check_lanes(&settings, &args.run)?;
    }
    let planes = settings.local().map_or(1, <[Place]>::len);
    let more = ", or give this side more addresses with --local";
    check_planes(&settings, &args.run, planes, more)?;
    check_plane_ids(&settings.config, !args.plane_ids.is_empty(), planes, more)?;
    let evs_name = settings.config.origin(args.run.evs.is_some(), "--evs", "path.evs");
    host_config::check_evs(&settings, &evs_name, planes)?;
    let config = &settings.config;
    let session = Session {
        kind,
        tcp_port: of_server.or(ports.tcp).or(config.setup.port).unwrap_or(TCP_PORT),
        timeout: config.setup.timeout.unwrap_or(TIMEOUT),
        keep_serving: args.keep_serving,
        max_memory: args.max_memory.or(config.setup.max_memory),
        yardstick: args.yardstick,
        share_cores: args.share_cores,
        samples,
        settings,
        local_name,
        stop: Stop::on_ctrl_c()?,
    };
    let _metrics = args.run.metrics.serve_own(&session.settings.control)?;
    match &args.server {
        Some(server) => client::run(&session, &server.name),
        None => server::run(&session),
    }
}

/// Options of perftest that scripts have and that change nothing here.
fn tell_without_effect(args: &RemoteArgs) {
    for (given, name, why) in [
        (args.cpu_freq, "-F", "the clock rate of cores is not checked"),
        (args.report_gbits, "--report_gbits", "rates are always in Gb/s"),
    ] {
        if given {
            eprint_line(format_args!("spindrift: {name} has no effect here: {why}"));
        }
    }
}

/// The TCP port that stands behind the server's address.
fn port_of_server(server: Option<&ServerArg>, ports: &Ports) -> Result<Option<u16>> {
    let Some(ServerArg { name, port: Some(port) }) = server else { return Ok(None) };
    match ports.tcp {
        Some(other) if other != *port => Err(usage(format!(
            "the server {name} has TCP port {port} in its address, and -p has {other}; give one of them"
        ))),
        _ => Ok(Some(*port)),
    }
}

/// Puts what flags say of the ports over what the file does. Returns what gave the ports' places, for errors.
fn set_nic(args: &RemoteArgs, ports: &Ports, settings: &mut Settings) -> Result<String> {
    let config = &mut settings.config;
    let places = match (ports.places.is_empty(), args.local.is_empty(), args.index) {
        (false, ..) => Some(("--port", ports.places.clone())),
        (_, false, _) => Some(("--local", args.local.clone())),
        (.., Some(index)) => Some(("-x", vec![address_of_index(index)?])),
        _ => None,
    };
    let mut local_name =
        places.as_ref().map_or_else(|| config.place("nic.local"), |(flag, _)| (*flag).to_owned());
    let topology_name = config.origin(args.topology.is_some(), "--topology", "nic.topology");
    let routing_name = config.origin(args.routing.is_some(), "--routing", "nic.routing");
    let ids_name = config.origin(!args.plane_ids.is_empty(), "--plane-ids", "nic.plane_ids");
    if let Some((_, places)) = places {
        config.nic.local = Some(places);
    }
    if !args.plane_ids.is_empty() {
        config.nic.plane_ids = Some(args.plane_ids.clone());
    }
    config.transport.udp_port = args.udp_port.or(config.transport.udp_port);
    args.of_ports.put(&mut config.nic);
    let nic = config.nic.clone();
    let topology = args.topology.as_deref().or(nic.topology.as_deref());
    let places = nic.local.as_deref().filter(|places| !places.is_empty());
    let wanted = Wanted {
        topology: topology.map(|path| (&*topology_name, path)),
        places: places.map(|places| (&*local_name, places)),
        routing: args.routing.or(nic.routing).map(|routing| (&*routing_name, routing)),
        plane_ids: nic.plane_ids.as_ref().map(|_| &*ids_name),
    };
    let all_planes = topology.is_some() && places.is_none();
    host_config::locate(settings, &wanted)?;
    if all_planes {
        local_name = topology_name;
    }
    Ok(local_name)
}

/// Checks the kind of port against the command, this build, and the other options.
fn check_port(settings: &Settings, ports: &Ports, flags: &[&str]) -> Result<()> {
    let name = settings.config.origin(ports.kind.is_some(), "--port", "nic.port");
    if !settings.port.reach.between_hosts() {
        let driver = settings.port.name;
        return Err(usage(format!(
            "{name} {driver}: these ports stay within one process; use `spindrift loopback`"
        )));
    }
    settings.port.check_built(&name)?;
    let places = ["--port", "--local", "--address-index"];
    let given: Vec<_> = places.into_iter().filter(|flag| flags.contains(flag)).collect();
    if let [first, second, ..] = given[..] {
        return Err(usage(format!("{first} and {second} both select the ports; give one of them")));
    }
    check_kind(settings, flags, Reach::between_hosts)
}

/// The pump runs beside bandwidth, and the client decides about it.
fn check_pump(args: &RemoteArgs, kind: Kind) -> Result<()> {
    let refused = match (args.yardstick, kind.shape, &args.server) {
        (true, Shape::Latency, _) => "a pump has a rate and no latency; use it with write-bw or send-bw",
        (true, ..) if !kind.has_pump() => {
            "the pump sends from the client to the server; use it with write-bw or send-bw"
        }
        (true, Shape::Bandwidth, None) => {
            "the client decides what is run; give it there, or give this side the address of a server"
        }
        _ => return Ok(()),
    };
    Err(usage(format!("--yardstick: {refused}")))
}

/// The client decides which writes are compared.
fn check_verify(args: &RemoteArgs) -> Result<()> {
    let refused = match (args.run.verify, &args.server) {
        (Some(_), None) => "the client decides which messages are compared; give it there",
        (Some(Verify::Every), Some(_)) if args.yardstick => {
            "a run in laps cannot alternate with the pump; leave out --yardstick or --verify every"
        }
        _ => return Ok(()),
    };
    Err(usage(format!("--verify: {refused}")))
}

fn samples(args: &RemoteArgs, kind: Kind) -> Result<Option<SamplesConfig>> {
    let Some(path) = args.samples.clone() else { return Ok(None) };
    if kind.shape == Shape::Latency {
        let name = kind.name();
        let fit = name.replace("-lat", "-bw");
        return Err(usage(format!("--samples: not available for {name}; use it with {fit}")));
    }
    let interval = args.sample_interval.unwrap_or(USUAL_INTERVAL);
    if interval < SAMPLE_INTERVAL_MIN {
        return Err(usage(format!("--sample-interval {interval:?}: give {SAMPLE_INTERVAL_MIN:?} or more")));
    }
    Ok(Some(SamplesConfig { path, interval }))
}

fn address_of_index(index: usize) -> Result<Place> {
    let addresses = local_addresses().context("cannot list the local addresses")?;
    let count = addresses.len();
    let found = addresses.into_iter().nth(index);
    found.map(|local| Place::from(format!("{}%{}", local.ip, local.interface.name))).ok_or_else(|| {
        usage(format!("-x {index}: this host has {count} addresses; `spindrift ports` lists them"))
    })
}

impl Session {
    /// Where this side's planes are, once it is known who the peer is.
    fn locals(&self, peer: &Peer) -> Result<Vec<Local>> {
        let towards = peer.local();
        match self.settings.local() {
            Some(places) => {
                let like = towards.ok().map(|local| local.address);
                self.settings.port.resolve(&self.settings, &self.local_name, places, like)
            }
            None => Ok(vec![towards?]),
        }
    }

    /// This side's ports, once it is known where the peer's are.
    fn open_nic(&self, local: &[Local], peer: &Peer, theirs: &Planes) -> Result<Nic> {
        let local = theirs.towards(local, peer.name())?;
        let (settings, id) = (&self.settings, u64::from(std::process::id()));
        let nic = settings.port.open(settings, &local)?;
        Ok(nic.with_capture(settings)?.with_faults(settings, id).with_rate(settings))
    }

    fn sampler(&self, side: &Side) -> Result<Option<Sampler>> {
        self.samples.as_ref().map(|samples| Sampler::new(samples, side)).transpose()
    }
}

/// Takes a sample if one is wanted and due.
fn sample(sampler: &mut Option<Sampler>, now: Instant) {
    if let Some(sampler) = sampler {
        sampler.look(now);
    }
}

impl Session {
    /// Opens what a run will need and closes it again, or looks at it: better an error now than when a client has come.
    fn check_nic(&self) -> Result<()> {
        let Self { settings, local_name, .. } = self;
        let resolve = |places| settings.port.resolve(settings, local_name, places, None);
        let local = settings.local().map(resolve).transpose()?;
        settings.port.check(settings, local.as_deref())?;
        if let Some(path) = &self.settings.pcap {
            let opened = OpenOptions::new().append(true).create(true).open(path);
            opened.with_context(|| format!("--pcap {}: cannot be written", path.display()))?;
        }
        if let Some(samples) = &self.samples {
            samples.create()?;
        }
        Ok(())
    }
}

/// Where packets to a peer leave from. Nothing is sent to find out.
pub(crate) fn address_towards(peer: SocketAddr) -> Result<Local> {
    let peer = canonical(peer);
    let any = if peer.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let probe = UdpSocket::bind(any).and_then(|socket| {
        socket.connect(peer)?;
        socket.local_addr()
    });
    let address =
        probe.with_context(|| format!("no local address leads to {peer}; give one with --local"))?;
    Local::of_socket(address)
}

/// IPv4 that came in over IPv6 as IPv4.
fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => SocketAddr::new(ip.into(), address.port()),
        // With its zone.
        IpAddr::V6(_) => address,
    }
}

/// An address as people write it.
fn pretty(address: &str) -> String {
    address.parse().map_or_else(|_| address.to_owned(), |address: SocketAddr| canonical(address).to_string())
}

/// What both sides have once their queue pairs are up.
struct Connected {
    side: Side,
    /// The peer's memory that this side may write to, and read.
    far: Far,
    /// Of the first plane: this side's address and the peer's.
    addresses: [IpAddr; 2],
    /// Planes that both sides have.
    planes: u8,
    cores: Cores,
    sampler: Option<Sampler>,
}

impl Connected {
    /// Brings the queue pairs up.
    fn new(session: &Session, settings: &Settings, peer: &mut Peer, mut side: Side) -> Result<Self> {
        let offer = side.offer()?;
        let theirs = peer.agree(&mut side, &offer)?;
        side.open_control(settings, &format!("{} with the {}", session.kind.name(), peer.name()))?;
        tell_unused_planes(peer.name(), &offer, &theirs);
        tell_without_path(settings, peer.name(), &theirs);
        let target =
            *theirs.memory.first().with_context(|| format!("the {} offers no memory", peer.name()))?;
        let source = theirs.memory.get(1).copied();
        if side.work.operations.has_reads() && source.is_none() {
            bail!("the {} offers no memory to read", peer.name());
        }
        let far = Far { target, source };
        check_extensions(session.kind, side.work, peer.name(), [&offer, &theirs])?;
        let addresses = [first_address(&offer)?, first_address(&theirs)?];
        let planes = ports_of(&offer).min(ports_of(&theirs)) as u8;
        let cores = Cores::any(settings.lanes, session.share_cores, settings.wait);
        cores.check(&side.nics)?;
        wait_prepared(&side, peer, session.timeout)?;
        let sampler = session.sampler(&side)?;
        Ok(Self { side, far, addresses, planes, cores, sampler })
    }

    /// Waits for the peer's next message while the lanes go on.
    fn receive(&mut self, peer: &mut Peer) -> Result<Message> {
        let Self { side: Side { nics, .. }, cores, sampler, .. } = self;
        Lanes { nics, cores, receivers: None, responds: false }.receive(peer, sampler)
    }
}

/// The lanes of a side that waits for its peer.
#[derive(Clone, Copy)]
struct Lanes<'a> {
    nics: &'a Nics,
    cores: &'a Cores,
    /// What takes the completions of receives, if there can be any.
    receivers: Option<&'a Receivers<'a>>,
    /// The peer measures how long the lanes take to respond.
    responds: bool,
}

impl Lanes<'_> {
    /// One turn of a lane.
    fn turn(&self, lane: usize, idle: &mut Idle) -> Result<()> {
        let work = self.nics.poll_lane(lane);
        let received = self.receivers.map_or(Ok(0), |receivers| receivers.turn(lane))?;
        if self.responds {
            idle.after_turn(work + received, self.nics, lane)?;
        } else if work + received == 0 {
            self.cores.rest(self.nics, lane);
        }
        Ok(())
    }

    /// Waits for the peer's next message while the lanes go on, each but the first on a thread of its own.
    fn receive(self, peer: &mut Peer, sampler: &mut Option<Sampler>) -> Result<Message> {
        let Self { nics, .. } = self;
        let [over, failed] = [const { AtomicBool::new(false) }; 2];
        let mut arrived = || nics.query_ports().iter().map(|port| port.counters.rx_frames).sum();
        thread::scope(|scope| {
            let _over = SetOnDrop(&over);
            let threads: Vec<_> = (1..nics.lanes())
                .map(|lane| {
                    let (over, failed) = (&over, &failed);
                    scope.spawn(move || {
                        let mut idle = self.cores.idle();
                        while !over.load(Ordering::Relaxed) {
                            self.turn(lane, &mut idle)
                                .inspect_err(|_| failed.store(true, Ordering::Relaxed))?;
                        }
                        Ok::<_, Error>(())
                    })
                })
                .collect();
            let (mut next_look, mut idle) = (Instant::now(), self.cores.idle());
            loop {
                let now = Instant::now();
                sample(sampler, now);
                if now >= next_look {
                    if failed.load(Ordering::Relaxed) {
                        over.store(true, Ordering::Relaxed);
                        let results = threads.into_iter().map(|thread| {
                            thread.join().unwrap_or_else(|_| bail!("the thread of a lane panicked"))
                        });
                        results.collect::<Result<()>>()?;
                        bail!("the thread of a lane ended");
                    }
                    if let Some(message) = peer.look(&mut arrived)? {
                        return Ok(message);
                    }
                    next_look = now + LOOK_INTERVAL;
                }
                self.turn(0, &mut idle)?;
            }
        })
    }
}

/// The first extension that is needed and that one of the sides does not offer.
fn missing(needed: Extensions, both: [Extensions; 2]) -> Option<&'static str> {
    let lacks = |name: &str| both.iter().any(|side| !side.names().any(|known| known == name));
    needed.names().find(|name| lacks(name))
}

/// Both sides need the extensions of the operations. The error names one that a side does not offer.
fn check_extensions(kind: Kind, work: Work, peer: &str, offers: [&Offer; 2]) -> Result<()> {
    let both = offers.map(|offer| offer.qps.first().map(|qp| qp.extensions).unwrap_or_default());
    if let Some(name) = missing(work.operations.extensions(), both) {
        let [ours, theirs] = both;
        bail!(
            "{} with {} needs the extension {name} of MRC on both sides: this side offers {ours}, the {peer} {theirs}; use the same version of spindrift there, without --extensions",
            kind.name(),
            work.operations.plural()
        );
    }
    Ok(())
}

/// How many ports an offer has.
fn ports_of(offer: &Offer) -> usize {
    offer.qps.first().map_or(0, |qp| qp.ports.len())
}

/// Says so when one side has more planes than the other: the last ones carry nothing.
fn tell_unused_planes(peer: &str, ours: &Offer, theirs: &Offer) {
    let (ours, theirs) = (ports_of(ours), ports_of(theirs));
    if ours != theirs {
        eprint_line(format_args!(
            "spindrift: this side has {ours} planes, the {peer} {theirs}: the first {} are used",
            ours.min(theirs)
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::operation::Operation;

    /// An older peer offers fewer extensions, and one that has never known any offers none.
    #[test]
    fn an_extension_that_either_side_lacks_is_named() {
        let (all, none) = (Extensions::ALL, Extensions::NONE);
        let missing_of = |operation: Operation, theirs| {
            let needed = operation.extensions();
            let found = missing(needed, [all, theirs]);
            assert_eq!(found, missing(needed, [theirs, all]));
            found
        };
        assert_eq!(missing_of(Operation::Write, none), None);
        assert_eq!(missing_of(Operation::WriteImm, Extensions::SEND), Some("rnr"));
        assert_eq!(missing_of(Operation::Send, none), Some("send"));
        assert_eq!(missing_of(Operation::SendImm, Extensions::SEND), Some("rnr"));
        assert_eq!(missing_of(Operation::Send, Extensions::SEND | Extensions::RNR), None);
        assert_eq!(missing_of(Operation::Read, Extensions::ATOMIC), Some("read"));
        assert_eq!(missing_of(Operation::FetchAdd, Extensions::READ), Some("atomic"));
        assert_eq!(missing_of(Operation::CompareSwap, all), None);
    }
}
