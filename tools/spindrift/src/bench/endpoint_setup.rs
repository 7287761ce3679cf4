//! One side of a run: its ports, lanes, memory and queue pairs.

use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use spindrift::counters::Counters;
use spindrift::endpoint::EndpointConfig;
use spindrift::engine::LaneCounters;
use spindrift::verbs::{
    Context, ContextConfig, Cq, LaneMode, MAX_CQ_DEPTH, Mr, Pd, Placement, Qp, QpConfig, RtsAttr, Srq,
    VerbsError,
};
use spindrift_control::Server;
use spindrift_exchange::{MIN_MTU, Negotiated, Offer, RemoteMr};
use spindrift_pmd::fault::FaultStats;
use spindrift_pmd::pcap::Capture;
use spindrift_pmd::{ETHERNET_LEN, Port, PortCounters};

use super::nic::Nic;
use super::operation::{Operation, Work};
use super::options::Settings;
use crate::config::CcName;
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
    match u32::try_from(outstanding) {
        Ok(outstanding) if outstanding <= MAX_CQ_DEPTH => Ok(outstanding),
        _ => bail!(
            "{} with a tx depth of {depth} on {} may have {outstanding} completions in a completion queue, which holds {MAX_CQ_DEPTH}; use fewer queue pairs or a smaller tx depth",
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
    _pd: Pd,
    pub(crate) context: Context,
    pub(crate) in_use: InUse,
    /// How long a silent peer is waited for.
    pub(crate) retry: RtsAttr,
    faults: Vec<Arc<FaultStats>>,
    capture: Option<Capture>,
}

impl Side {
    /// Opens a side with so many bytes of memory each for source and target.
    pub(crate) fn open(settings: &Settings, nic: Nic, memory: usize, index: u64) -> Result<Self> {
        let planes = nic.planes();
        let Nic { lanes, udp_port, faults, capture, gso } = nic;
        let base = ContextConfig::new(lanes.first().context("no lane")?);
        let mut endpoint = settings.endpoint(base.endpoint);
        endpoint.udp_port = udp_port.unwrap_or(endpoint.udp_port);
        check_frames(lanes.first().map(Vec::as_slice).unwrap_or_default(), &endpoint)?;
        let mtu = settings.mtu.min(endpoint.max_mtu());
        // The path check writes a packet of full size.
        let memory = memory.max(mtu as usize);
        let seed = settings.seed.map(|seed| seed.wrapping_mul(2).wrapping_add(index).into());
        let modes = vec![LaneMode::Inline; lanes.len()];
        let context = Context::open_lanes(lanes, ContextConfig { seed, lanes: modes, endpoint })?;
        let pd = context.create_pd()?;
        let completions = completions(settings)?;
        let cqs = (0..context.lanes()).map(|_| context.create_cq(completions));
        let cqs = cqs.collect::<Result<Vec<_>, _>>()?;
        let register = |access| {
            pd.register(memory, access).with_context(|| format!("cannot register {memory} bytes of memory"))
        };
        let work = settings.work;
        let [from, to] = work.operations.access();
        let (source, target) = (register(from)?, register(to)?);
        let buffers = settings.receives().saturating_mul(settings.qps as u32);
        let srq = work.srq.then(|| context.create_srq(buffers)).transpose();
        let srq = srq.context("--srq: fewer queue pairs or a smaller tx depth may help")?;
        let cc = settings.congestion(planes, &context.default_cc(0));
        let ports = context.query_ports().into_iter().filter(|port| port.lane == 0);
        let ports = ports.map(|port| (port.name, port.notes)).collect();
        let in_use = InUse { planes, ports, mtu, cc: cc.algorithm.into(), gso };
        let config = QpConfig { srq: srq.clone(), ..settings.queue_pair(planes, cc) };
        let lanes = cqs.iter().enumerate().cycle().take(settings.qps);
        let qps = lanes.map(|(lane, cq)| {
            let config = QpConfig { lane: Placement::On(lane), ..config.clone() };
            Qp::create(&pd, cq, cq, &config)
        });
        let qps = qps.collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            control: None,
            qps,
            cqs,
            source,
            target,
            srq,
            work,
            _pd: pd,
            context,
            in_use,
            retry: settings.retry,
            faults,
            capture,
        })
    }

    /// Lets `spindrift ctl` see and move the queue pairs, from now until the side ends. Not being able to is no reason not
    /// to run.
    pub(crate) fn open_control(&mut self, settings: &Settings, program: &str) {
        self.control = settings.control.serve(program, &self.context);
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

    /// Connects queue pairs as was agreed with a peer.
    pub(crate) fn establish(&mut self, agreed: &[Negotiated]) -> Result<(), VerbsError> {
        for (qp, agreed) in self.qps.iter_mut().zip(agreed) {
            qp.establish(agreed)?;
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
        for port in self.context.query_ports() {
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
        let (transport, lanes) = (self.context.counters(), self.context.lane_counters());
        let mut devices = crate::driver::device_counters();
        for (_, counters) in &mut devices {
            counters.retain(|(_, value)| *value > 0);
        }
        Counted { transport, lanes, ports, faults, devices }
    }

    /// Says what has come to be known of the ports since it was last told, such as that a path takes shorter packets.
    pub(crate) fn tell_new_notes(&mut self) {
        let ports = self.context.query_ports().into_iter().filter(|port| port.lane == 0);
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

/// Whether a context's ports have ever received anything.
pub(crate) fn has_arrived(context: &Context) -> bool {
    context.query_ports().iter().any(|port| port.counters.rx_frames > 0)
}

/// Counters of a side.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counted {
    pub(crate) transport: Counters,
    pub(crate) lanes: LaneCounters,
    pub(crate) ports: PortCounters,
    pub(crate) faults: Vec<(&'static str, u64)>,
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
        transport.chain(lanes).chain(ports).chain(faults).filter(|(_, _, value)| *value > 0).collect()
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
