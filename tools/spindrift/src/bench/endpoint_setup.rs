//! One side of a run: its ports, lanes, memory and queue pairs.

use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use spindrift::counters::Counters;
use spindrift::endpoint::EndpointConfig;
use spindrift::engine::LaneCounters;
use spindrift::fallback::{self, FallbackConfig};
use spindrift::verbs::{
    self, Context, ContextConfig, LaneMode, MAX_CQ_DEPTH, Placement, QpConfig, RtsAttr, Srq, VerbsError,
};
use spindrift_control::Server;
use spindrift_exchange::{MIN_MTU, Negotiated, Offer, PeerStore, RemoteMr};
use spindrift_pmd::fault::FaultStats;
use spindrift_pmd::pcap::Capture;
use spindrift_pmd::{ETHERNET_LEN, Port, PortCounters};

use super::nic::Nic;
use super::operation::{Operation, Work};
use super::options::Settings;
use super::shift_control::ShiftControl;
use super::transport::{Cq, Mr, Nics, Qp, Two};
use crate::config::{CcName, FallbackName};
use crate::output::eprint_line;
use crate::units::count;

/// What a side has made of its settings.
#[derive(Clone, Debug)]
pub(crate) struct InUse {
    pub(crate) planes: usize,
    /// The first lane's ports, and what a user should know of each.
    pub(crate) ports: Vec<(String, Vec<String>)>,
    /// Payload bytes of a packet: what was asked for, the ports take, and the peer agreed to.
    pub(crate) mtu: u32,
    pub(crate) cc: CcName,
    /// Whether the kernel may segment what is sent.
    pub(crate) gso: bool,
}

impl InUse {
    /// Where it did not come to that.
    pub(crate) fn of_nobody(settings: &Settings) -> Self {
        Self { planes: 0, ports: Vec::new(), mtu: settings.mtu, cc: settings.cc, gso: settings.gso }
    }
}

/// Completions that may be outstanding on each lane, if there are completion queues for as many.
pub(crate) fn completions(settings: &Settings) -> Result<u32> {
    let (qps, depth, lanes) = (settings.qps, settings.tx_depth, settings.lanes);
    let of_each = u64::from(depth) + u64::from(settings.receives());
    let outstanding = of_each * qps.div_ceil(lanes.max(1)) as u64;
    // During a switch, a queue has those of two pairs, and of their ends.
    let places = if settings.fallback == FallbackName::Shift { 4 * outstanding + 64 } else { outstanding };
    match u32::try_from(outstanding) {
        Ok(outstanding) if places <= u64::from(MAX_CQ_DEPTH) => Ok(outstanding),
        _ => bail!(
            "{} with a tx depth of {depth} on {} may have {places} completions in a completion queue, which holds {MAX_CQ_DEPTH}; use fewer queue pairs or a smaller tx depth",
            count(qps as u64, "queue pair"),
            count(lanes as u64, "lane")
        ),
    }
}

/// The memory of the other side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Far {
    pub(crate) target: RemoteMr,
    /// If it is read.
    pub(crate) source: Option<RemoteMr>,
}

impl Far {
    /// That which an operation names.
    pub(crate) fn named(&self, operation: Operation) -> RemoteMr {
        self.source.filter(|_| operation == Operation::Read).unwrap_or(self.target)
    }
}

/// Everything between an application and its ports. The fields go in the order in which they must end.
pub(crate) struct Side {
    /// It holds the context open.
    control: Option<Server>,
    pub(crate) qps: Vec<Qp>,
    /// One for each lane.
    pub(crate) cqs: Vec<Cq>,
    /// Where the bytes of messages come from, to whichever side they go.
    pub(crate) source: Mr,
    /// Where the bytes of messages go to.
    pub(crate) target: Mr,
    /// Receives of all queue pairs, if they share them.
    pub(crate) srq: Option<Srq>,
    pub(crate) work: Work,
    /// How pairs on the second NIC are agreed on, with `--fallback shift`.
    pub(crate) store: Option<PeerStore>,
    pub(crate) nics: Nics,
    pub(crate) in_use: InUse,
    /// How long a silent peer is waited for.
    pub(crate) retry: RtsAttr,
    faults: Vec<Arc<FaultStats>>,
    capture: Option<Capture>,
}

impl Side {
    /// Opens a side with so many bytes of memory each for source and target.
    pub(crate) fn open(settings: &Settings, nic: Nic, memory: usize, index: u64) -> Result<Self> {
        let seed = settings.seed.map(|seed| seed.wrapping_mul(2).wrapping_add(index));
        match settings.fallback {
            FallbackName::Seamless => Self::open_one(settings, nic, memory, seed),
            FallbackName::Shift => Self::open_two(settings, nic, memory, seed),
        }
    }

    /// A side whose planes all belong to one context.
    fn open_one(settings: &Settings, nic: Nic, memory: usize, seed: Option<u64>) -> Result<Self> {
        let planes = nic.planes();
        let Nic { lanes, udp_port, faults, capture, gso } = nic;
        let (context, mtu) = open_context(settings, lanes, udp_port, seed)?;
        // The path check writes a packet of full size.
        let memory = memory.max(mtu as usize);
        let pd = context.create_pd()?;
        let completions = completions(settings)?;
        let cqs = (0..context.lanes()).map(|_| context.create_cq(completions));
        let cqs = cqs.collect::<Result<Vec<_>, _>>()?;
        let register = |access| pd.register(memory, access).with_context(|| no_memory(memory));
        let work = settings.work;
        let [from, to] = work.operations.access();
        let (source, target) = (register(from)?, register(to)?);
        let buffers = settings.receives().saturating_mul(settings.qps as u32);
        let srq = work.srq.then(|| context.create_srq(buffers)).transpose();
        let srq = srq.context("--srq: fewer queue pairs or a smaller tx depth may help")?;
        let cc = settings.congestion(planes, &context.default_cc(0));
        let name = cc.algorithm.into();
        let config = QpConfig { srq: srq.clone(), ..settings.queue_pair(planes, cc) };
        let lanes = cqs.iter().enumerate().cycle().take(settings.qps);
        let qps = lanes.map(|(lane, cq)| {
            let config = QpConfig { lane: Placement::On(lane), ..config.clone() };
            verbs::Qp::create(&pd, cq, cq, &config).map(Qp::One)
        });
        let parts = Parts {
            qps: qps.collect::<Result<Vec<_>, _>>()?,
            cqs: cqs.into_iter().map(Cq::One).collect(),
            memory: [source, target].map(Mr::One),
            srq,
            store: None,
            nics: Nics::One(context),
        };
        Ok(Self::new(settings, parts, (planes, mtu, name, gso), faults, capture))
    }

    /// A side whose planes that stand by belong to a second context.
    fn open_two(settings: &Settings, nic: Nic, memory: usize, seed: Option<u64>) -> Result<Self> {
        let planes = nic.planes();
        let Nic { lanes, udp_port, faults, capture, gso } = nic;
        let standby = settings.standby.unwrap_or_default();
        let ports = lanes.into_iter().next().context("no lane")?;
        let (backup, default): (Vec<_>, Vec<_>) =
            ports.into_iter().enumerate().partition(|(plane, _)| standby.contains(*plane as u8));
        let mut mtu = u32::MAX;
        let (mut contexts, mut configs, mut of_nics) = (Vec::new(), Vec::new(), Vec::new());
        let mut cc_name = settings.cc;
        for (nic, ports) in [default, backup].into_iter().enumerate() {
            let (of_nic, ports): (Vec<usize>, Vec<_>) = ports.into_iter().unzip();
            let settings = settings.of_planes(&of_nic);
            let seed = seed.map(|seed| seed ^ (nic as u64) << 63);
            let (context, of_ports) = open_context(&settings, vec![ports], udp_port, seed)?;
            mtu = mtu.min(of_ports);
            let cc = settings.congestion(of_nic.len(), &context.default_cc(0));
            cc_name = cc.algorithm.into();
            configs.push(settings.queue_pair(of_nic.len(), cc));
            contexts.push(context);
            of_nics.push(of_nic);
        }
        let both = "a side has two NICs";
        let [default, backup] = <[Context; 2]>::try_from(contexts).ok().context(both)?;
        let of_nics = <[Vec<usize>; 2]>::try_from(of_nics).ok().context(both)?;
        let hold_ns = settings.failback_hold_ns.unwrap_or(FallbackConfig::default().hold_ns);
        let hold_max_ns = FallbackConfig::default().hold_max_ns.max(hold_ns);
        let config = FallbackConfig { hold_ns, hold_max_ns, ..FallbackConfig::default() };
        let store = PeerStore::default();
        let context = fallback::Context::open(
            &default,
            &backup,
            Box::new(store.clone()),
            completions(settings)?,
            config,
        )?;
        let two = Two::new(context, of_nics);
        let memory = memory.max(mtu as usize);
        let register = |access| {
            let mr = two.with(|context| context.register(memory, access));
            mr.map(Mr::Two).with_context(|| no_memory(memory))
        };
        let [from, to] = settings.work.operations.access();
        let memory = [register(from)?, register(to)?];
        let [of_default, of_backup] = <[QpConfig; 2]>::try_from(configs).ok().context(both)?;
        let qps = (0..settings.qps).map(|_| Qp::shift(&two, &of_default, &of_backup));
        let parts = Parts {
            qps: qps.collect::<Result<Vec<_>, _>>()?,
            cqs: vec![Cq::Two(two.clone())],
            memory,
            srq: None,
            store: Some(store),
            nics: Nics::Two(two),
        };
        Ok(Self::new(settings, parts, (planes, mtu, cc_name, gso), faults, capture))
    }

    fn new(
        settings: &Settings,
        parts: Parts,
        (planes, mtu, cc, gso): (usize, u32, CcName, bool),
        faults: Vec<Arc<FaultStats>>,
        capture: Option<Capture>,
    ) -> Self {
        let Parts { qps, cqs, memory: [source, target], srq, store, nics } = parts;
        let ports = nics.query_ports().into_iter().filter(|port| port.lane == 0);
        let ports = ports.map(|port| (port.name, port.notes)).collect();
        let in_use = InUse { planes, ports, mtu, cc, gso };
        let (work, retry) = (settings.work, settings.retry);
        Self {
            control: None,
            qps,
            cqs,
            source,
            target,
            srq,
            work,
            store,
            nics,
            in_use,
            retry,
            faults,
            capture,
        }
    }

    /// Lets `spindrift ctl` see and move the queue pairs, from now until the side ends. Not being able to is no reason not
    /// to run, unless metrics come from there.
    ///
    /// # Errors
    /// There can be no socket, and metrics are wanted.
    pub(crate) fn open_control(&mut self, settings: &Settings, program: &str) -> Result<()> {
        let (place, needed) = (&settings.control, settings.metrics);
        self.control = match &self.nics {
            Nics::One(context) => place.serve(program, context.clone(), needed)?,
            Nics::Two(two) => {
                let qps = self.qps.iter().filter_map(Qp::id).collect();
                place.serve(program, ShiftControl { two: two.clone(), qps }, needed)?
            }
        };
        Ok(())
    }

    /// What the peer has to know.
    pub(crate) fn offer(&self) -> Result<Offer> {
        let qps = self.qps.iter().map(Qp::info).collect::<Result<_, _>>()?;
        let mut memory = vec![self.target.remote()];
        // Behind the target: the peer's path check writes to the first.
        if self.work.operations.has_reads() {
            memory.push(self.source.remote());
        }
        Ok(Offer { qps, memory, app: String::new() })
    }

    /// Connects queue pairs of one process with each other.
    pub(crate) fn connect(&mut self, other: &mut Self) -> Result<()> {
        for (ours, theirs) in self.qps.iter_mut().zip(&mut other.qps) {
            ours.connect(&theirs.info()?)?;
            theirs.connect(&ours.info()?)?;
        }
        Ok(())
    }

    /// Connects queue pairs as was agreed with a peer, whose offer this is.
    pub(crate) fn establish(&mut self, theirs: &Offer, agreed: &[Negotiated]) -> Result<(), VerbsError> {
        for ((qp, peer), agreed) in self.qps.iter_mut().zip(&theirs.qps).zip(agreed) {
            qp.establish(peer, agreed)?;
            self.in_use.mtu = self.in_use.mtu.min(agreed.rtr.path_mtu);
        }
        Ok(())
    }

    /// What the peer's operations name.
    pub(crate) fn remote(&self) -> Far {
        Far {
            target: self.target.remote(),
            source: self.work.operations.has_reads().then(|| self.source.remote()),
        }
    }

    /// Everything that was counted, for people: name and value, without what is 0.
    pub(crate) fn counted(&self) -> Counted {
        let mut ports = PortCounters::default();
        for port in self.nics.query_ports() {
            add(&mut ports, &port.counters);
        }
        let mut faults: Vec<(&'static str, u64)> = Vec::new();
        for (name, value) in self.faults.iter().flat_map(|stats| stats.list()) {
            match faults.iter_mut().find(|(known, _)| *known == name) {
                Some((_, sum)) => *sum += value,
                None => faults.push((name, value)),
            }
        }
        faults.retain(|(_, value)| *value > 0);
        let (transport, lanes) = (self.nics.counters(), self.nics.lane_counters());
        let mut devices = crate::driver::device_counters();
        for (_, counters) in &mut devices {
            counters.retain(|(_, value)| *value > 0);
        }
        let fallback = self.qps.iter().filter_map(Qp::fallback_counters).collect();
        Counted { transport, lanes, ports, faults, fallback, devices }
    }

    /// Says what has come to be known of the ports since it was last told, such as that a path takes shorter packets.
    pub(crate) fn tell_new_notes(&mut self) {
        let ports = self.nics.query_ports().into_iter().filter(|port| port.lane == 0);
        for (known, port) in self.in_use.ports.iter_mut().zip(ports) {
            for note in port.notes.iter().skip(known.1.len()) {
                eprint_line(format_args!("spindrift: {}: {note}", port.name));
            }
            known.1 = port.notes;
        }
    }

    /// Writes the capture out; says why if it could not be written.
    pub(crate) fn finish_capture(&self) -> Result<()> {
        let Some(capture) = &self.capture else { return Ok(()) };
        capture.flush();
        match capture.error() {
            Some(error) => anyhow::bail!("--pcap: the capture is not complete: {error}"),
            None => Ok(()),
        }
    }
}

/// What [`Side::open`] has opened on one NIC or two.
struct Parts {
    qps: Vec<Qp>,
    cqs: Vec<Cq>,
    /// Source and target.
    memory: [Mr; 2],
    srq: Option<Srq>,
    store: Option<PeerStore>,
    nics: Nics,
}

fn no_memory(bytes: usize) -> String {
    format!("cannot register {bytes} bytes of memory")
}

/// A context over these ports, and the payload bytes of a packet that they take.
fn open_context(
    settings: &Settings,
    lanes: Vec<Vec<Box<dyn Port>>>,
    udp_port: Option<u16>,
    seed: Option<u64>,
) -> Result<(Context, u32)> {
    let base = ContextConfig::new(lanes.first().context("no lane")?);
    let mut endpoint = settings.endpoint(base.endpoint);
    endpoint.udp_port = udp_port.unwrap_or(endpoint.udp_port);
    check_frames(lanes.first().map(Vec::as_slice).unwrap_or_default(), &endpoint)?;
    let mtu = settings.mtu.min(endpoint.max_mtu());
    let modes = vec![LaneMode::Inline; lanes.len()];
    let context =
        Context::open_lanes(lanes, ContextConfig { seed: seed.map(Into::into), lanes: modes, endpoint })?;
    Ok((context, mtu))
}

/// Refuses ports whose frames hold no packet.
fn check_frames(ports: &[Box<dyn Port>], endpoint: &EndpointConfig) -> Result<()> {
    let short = |plane: &usize| endpoint.max_mtu_of(*plane) < MIN_MTU;
    let Some(port) = (0..ports.len()).find(short).and_then(|plane| ports.get(plane)) else { return Ok(()) };
    let caps = port.caps();
    let least = MIN_MTU as usize + EndpointConfig::overhead(caps.local_ip.is_ipv6());
    bail!(
        "{} takes IP packets of {} bytes, and packets with {MIN_MTU} bytes of payload need at least {}; raise the MTU, as with `ip link set INTERFACE mtu 1500`",
        caps.name,
        caps.max_frame.saturating_sub(ETHERNET_LEN),
        least - ETHERNET_LEN
    )
}

/// Whether a side's ports have ever received anything.
pub(crate) fn has_arrived(nics: &Nics) -> bool {
    nics.query_ports().iter().any(|port| port.counters.rx_frames > 0)
}

/// Counters of a side.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counted {
    pub(crate) transport: Counters,
    pub(crate) lanes: LaneCounters,
    pub(crate) ports: PortCounters,
    pub(crate) faults: Vec<(&'static str, u64)>,
    /// Of each queue pair in mode `shift`.
    pub(crate) fallback: Vec<fallback::Counters>,
    /// By device, in the words of its driver.
    pub(crate) devices: Vec<(String, Vec<(String, u64)>)>,
}

impl Counted {
    /// Group, name and value of all that are not 0.
    pub(crate) fn list(&self) -> Vec<(&'static str, &'static str, u64)> {
        let transport = self.transport.iter().map(|(name, _, value)| ("transport", name, value));
        let l = &self.lanes;
        let lanes = [
            ("interruptions", l.interruptions),
            ("taken_over", l.taken_over),
            ("handover_lost", l.handover_lost),
        ]
        .map(|(name, value)| ("lanes", name, value));
        let p = &self.ports;
        let ports = [
            ("tx_frames", p.tx_frames),
            ("tx_bytes", p.tx_bytes),
            ("rx_frames", p.rx_frames),
            ("rx_bytes", p.rx_bytes),
            ("tx_dropped", p.tx_dropped),
            ("rx_dropped", p.rx_dropped),
            ("rx_unread", p.rx_unread),
            ("tx_full", p.tx_full),
            ("tx_unsent", p.tx_unsent),
            ("tx_oversize", p.tx_oversize),
            ("tx_fragmented", p.tx_fragmented),
            ("tx_unsendable", p.tx_unsendable),
            ("tx_errors", p.tx_errors),
            ("rx_errors", p.rx_errors),
            ("tx_calls", p.tx_calls),
            ("rx_calls", p.rx_calls),
        ]
        .map(|(name, value)| ("ports", name, value));
        let faults = self.faults.iter().map(|&(name, value)| ("faults", name, value));
        let sum = |of: fn(&fallback::Counters) -> u64| self.fallback.iter().map(of).sum::<u64>();
        let fallback = [
            ("switches", sum(|of| of.switches)),
            ("switches_by_peer", sum(|of| of.switches_by_peer)),
            ("moves", sum(|of| of.moves)),
            ("repeated", sum(|of| of.repeated)),
            ("spared", sum(|of| of.spared)),
            ("spares_failed", sum(|of| of.spares_failed)),
        ]
        .map(|(name, value)| ("fallback", name, value));
        let all = transport.chain(lanes).chain(ports).chain(faults).chain(fallback);
        all.filter(|(_, _, value)| *value > 0).collect()
    }
}

fn add(sum: &mut PortCounters, more: &PortCounters) {
    sum.tx_frames += more.tx_frames;
    sum.tx_bytes += more.tx_bytes;
    sum.rx_frames += more.rx_frames;
    sum.rx_bytes += more.rx_bytes;
    sum.tx_dropped += more.tx_dropped;
    sum.rx_dropped += more.rx_dropped;
    sum.rx_unread += more.rx_unread;
    sum.tx_full += more.tx_full;
    sum.tx_unsent += more.tx_unsent;
    sum.tx_oversize += more.tx_oversize;
    sum.tx_fragmented += more.tx_fragmented;
    sum.tx_unsendable += more.tx_unsendable;
    sum.tx_errors += more.tx_errors;
    sum.rx_errors += more.rx_errors;
    sum.tx_calls += more.tx_calls;
    sum.rx_calls += more.rx_calls;
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::driver::UDP;

    #[test]
    fn completion_queues_have_room_for_a_switch() {
        let settings = |qps, fallback| Settings { qps, tx_depth: 16, fallback, ..Settings::of_test(UDP) };
        let completions = |qps, fallback| completions(&settings(qps, fallback));
        let of_one = u64::from(completions(1, FallbackName::Seamless).unwrap());
        assert_eq!(completions(3, FallbackName::Shift).unwrap(), 3 * of_one as u32);
        let most = (u64::from(MAX_CQ_DEPTH) / of_one) as usize;
        assert!(completions(most, FallbackName::Seamless).is_ok());
        assert!(completions(most + 1, FallbackName::Seamless).is_err());
        assert!(completions(most / 4 - 4, FallbackName::Shift).is_ok());
        let error = completions(most / 4 + 1, FallbackName::Shift).unwrap_err().to_string();
        assert!(error.contains("fewer queue pairs or a smaller tx depth"), "{error}");
    }
}
