//! The MRC transport on a host: the same endpoint that the engine drives, with a NIC's settings.

use core::fmt;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use spindrift::congestion::CcConfig;
use spindrift::counters::Counters;
use spindrift::endpoint::{
    ConfigError, CqId, DenyList, Endpoint, EndpointConfig, EndpointError, Event, FailReason, QpCap, QpInfo,
    QpInit, RetryAttr, RtsAttr,
};
use spindrift::memory::{Access, MemoryError, MrKey, PdId, Region};
use spindrift::path::{EvState, PathConfig};
use spindrift::seed::Seed;
use spindrift::time::Time;
use spindrift::wire::Qpn;
use spindrift::work::{RecvWr, RemoteAddr, SendOp, SendWr, Sge, Wc, WcOpcode};
use spindrift_srv6::Fabric;

use crate::nic::{self, Nic, with_nic};
use crate::packet::Packet;
use crate::transport::{
    ConnectError, EvStateCounts, FlowEvent, Message, Messenger, Transport, TransportStats,
};

/// What every NIC of a network is like.
#[derive(Clone, Debug)]
pub struct MrcSpec {
    /// Payload of a full packet in bytes.
    pub mtu: u32,
    /// Source routing by uSIDs; otherwise switches choose among equal paths by a hash.
    pub srv6: bool,
    /// Entropy values and their health. `planes` and `source` follow the fabric.
    pub path: PathConfig,
    /// Congestion control.
    pub cc: CcConfig,
    /// Ask for trimming, and answer trimmed packets with NACKs.
    pub trimming: bool,
    /// Bytes received between SACKs.
    pub sack_threshold_bytes: u32,
    /// Silence after which a tail loss probe is sent, at least, ns.
    pub tail_probe_floor_ns: u64,
    /// How much longer packets may take on one path than on another, at first, ns.
    pub initial_reordering_ns: u64,
    /// Messages that may be outstanding on a flow.
    pub depth: u32,
    /// The window of PSNs that each side grants the other, in units of 128.
    pub mpr: u8,
    /// How long a flow goes on without an answer.
    pub retry: RetryAttr,
}

impl MrcSpec {
    /// A hardware NIC with these planes: rate of all of them together in bits per second, and the round-trip time of the longest path
    /// through an idle network in nanoseconds.
    pub fn new(planes: u8, rate_bps: u64, base_rtt_ns: u64) -> Self {
        Self {
            mtu: 4096,
            srv6: true,
            path: PathConfig::new(planes),
            cc: CcConfig::new(rate_bps, base_rtt_ns, 4096),
            trimming: true,
            sack_threshold_bytes: 16 * 1024,
            // Those of the endpoint are for software, which may be late by as much.
            tail_probe_floor_ns: 2 * base_rtt_ns,
            initial_reordering_ns: base_rtt_ns,
            depth: 128,
            mpr: 8,
            retry: RtsAttr::default().retry(),
        }
    }
}

/// Why a host cannot be made.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum MrcError {
    /// Its settings cannot work.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Its memory cannot be registered.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// Something that it is made of.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The fabric has no such host.
    #[error("the fabric has no host {0}")]
    NoHost(u16),
}

/// One side of a connection.
struct Flow {
    qpn: Qpn,
    /// The peer's key.
    rkey: u32,
    failed: bool,
}

/// A host that runs MRC.
pub struct MrcHost {
    nic: Nic,
    spec: Arc<MrcSpec>,
    pd: PdId,
    key: MrKey,
    flows: Vec<Flow>,
    by_qpn: BTreeMap<Qpn, u32>,
    events: VecDeque<FlowEvent>,
}

impl fmt::Debug for MrcHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MrcHost").field("flows", &self.flows.len()).finish_non_exhaustive()
    }
}

/// Memory of a host: an address range without bytes, as long as the longest message.
const MEMORY_LEN: usize = 1 << 32;
const MEMORY_AT: u64 = 1 << 32;
const SEND_CQ: CqId = CqId(0);
const RECV_CQ: CqId = CqId(1);

impl MrcHost {
    /// The host with this number of a fabric. With source routing, it can reach `peers`.
    ///
    /// # Errors
    /// Settings that cannot work.
    pub fn new(
        spec: &Arc<MrcSpec>,
        fabric: &Fabric,
        number: u16,
        peers: impl IntoIterator<Item = u16>,
        seed: u64,
    ) -> Result<Self, MrcError> {
        let peers = peers.into_iter().filter(|_| spec.srv6);
        let config = EndpointConfig {
            seed: Seed::fixed(seed),
            icrc: false,
            trimming: spec.trimming,
            sack_threshold_bytes: spec.sack_threshold_bytes,
            tail_probe_floor_ns: spec.tail_probe_floor_ns,
            initial_reordering_ns: spec.initial_reordering_ns,
            ..nic::config(fabric, number, peers, spec.mtu).map_err(MrcError::NoHost)?
        };
        let mut endpoint = Endpoint::new(config)?;
        let pd = endpoint.alloc_pd();
        let region = Region::virtual_at(MEMORY_LEN, MEMORY_AT).map_err(MemoryError::from)?;
        let key = endpoint.register(pd, Arc::clone(&region), Access::REMOTE_WRITE)?;
        Ok(Self {
            nic: Nic::new(endpoint, Some(region)),
            spec: Arc::clone(spec),
            pd,
            key,
            flows: Vec::new(),
            by_qpn: BTreeMap::new(),
            events: VecDeque::new(),
        })
    }

    /// The endpoint.
    pub const fn endpoint(&self) -> &Endpoint {
        &self.nic.endpoint
    }

    /// What the endpoint has counted.
    pub const fn counters(&self) -> &Counters {
        self.nic.endpoint.counters()
    }

    /// The queue pair of a flow.
    pub fn qpn(&self, flow: u32) -> Option<Qpn> {
        self.flows.get(flow as usize).map(|flow| flow.qpn)
    }

    fn create(&mut self) -> Result<(u32, QpInfo), EndpointError> {
        let spec = &self.spec;
        let cap = QpCap { max_send_wr: spec.depth, max_recv_wr: spec.depth, ..QpCap::default() };
        let init = QpInit {
            cap,
            path: spec.path.clone(),
            cc: spec.cc.clone(),
            mpr_dest: spec.mpr,
            max_wimm_dest: spec.depth.min(u16::MAX.into()) as u16,
            max_mtu: spec.mtu,
            ..QpInit::new(self.pd, SEND_CQ, RECV_CQ)
        };
        let qpn = self.nic.endpoint.create_qp(init)?;
        let info = self.nic.endpoint.qp_info(qpn).ok_or(EndpointError::NoSuchQp(qpn.get()))?;
        let flow = self.flows.len() as u32;
        self.flows.push(Flow { qpn, rkey: 0, failed: false });
        self.by_qpn.insert(qpn, flow);
        Ok((flow, info))
    }

    fn bring_up(
        &mut self,
        now: Time,
        flow: u32,
        infos: [&QpInfo; 2],
        rkey: u32,
    ) -> Result<(), EndpointError> {
        self.flows[flow as usize].rkey = rkey;
        self.nic.bring_up(now, infos, self.spec.retry)?;
        for _ in 0..self.spec.depth {
            self.receive_one_more(flow);
        }
        Ok(())
    }

    /// Posts a receive request for one more message that notifies.
    fn receive_one_more(&mut self, flow: u32) {
        let Some(at) = self.flows.get(flow as usize) else { return };
        // As many are posted as the peer may use, so there is room.
        let posted = self.nic.endpoint.post_recv(at.qpn, RecvWr::empty(flow.into()));
        debug_assert!(posted.is_ok(), "{posted:?}");
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Completion { wc, .. } => self.complete(wc),
            Event::QpFailed { qpn, reason } => {
                let Some(&flow) = self.by_qpn.get(&qpn) else { return };
                self.flows[flow as usize].failed = true;
                self.events.push_back(FlowEvent::Failed { flow, why: explain(reason) });
            }
            Event::PathsChanged { qpn } => while self.nic.endpoint.poll_ev_event(qpn).is_some() {},
            Event::SendRetired { .. }
            | Event::PathDenied { .. }
            | Event::PlanesSwitched { .. }
            | Event::EvProbeAnswered { .. }
            | Event::SrqLimitReached { .. } => {}
        }
    }

    fn complete(&mut self, wc: Wc) {
        if !wc.status.is_success() {
            return;
        }
        match wc.opcode {
            WcOpcode::RdmaWrite | WcOpcode::Send => {
                let (flow, tag) = ((wc.wr_id >> 32) as u32, wc.wr_id as u32);
                self.events.push_back(FlowEvent::Sent { flow, tag });
            }
            WcOpcode::RecvRdmaWithImm | WcOpcode::Recv => {
                let flow = wc.wr_id as u32;
                self.receive_one_more(flow);
                self.events.push_back(FlowEvent::Received { flow, tag: wc.imm.unwrap_or_default() });
            }
            // Flows are writes.
            _ => {}
        }
    }
}

const fn explain(reason: FailReason) -> &'static str {
    match reason {
        FailReason::Requested => "set to ERROR",
        FailReason::RetryExceeded => "no answer, after all retries",
        FailReason::RnrRetryExceeded => "the peer had no receive work request, after all retries",
        FailReason::PeerRefused => "the peer refused a packet",
        FailReason::PeerFatal => "the peer reported an unexpected event",
        FailReason::PeerViolation => "the peer broke the protocol",
        FailReason::LocalWorkRequest => "a work request cannot be carried out",
        FailReason::LaneFailed => "the host failed",
    }
}

impl Transport for MrcHost {
    type Event = FlowEvent;

    with_nic!();

    #[inline]
    fn poll(&mut self) -> Option<FlowEvent> {
        while self.events.is_empty() {
            let event = self.nic.endpoint.poll_event()?;
            self.take(event);
        }
        self.events.pop_front()
    }
}

impl Messenger for MrcHost {
    fn connect(now: Time, one: &mut Self, other: &mut Self) -> Result<[u32; 2], ConnectError> {
        let failed = |error: EndpointError| ConnectError(error.to_string());
        let (a, info_a) = one.create().map_err(failed)?;
        let (b, info_b) = other.create().map_err(failed)?;
        let (key_a, key_b) = (one.key.rkey, other.key.rkey);
        one.bring_up(now, a, [&info_a, &info_b], key_b).map_err(failed)?;
        other.bring_up(now, b, [&info_b, &info_a], key_a).map_err(failed)?;
        Ok([a, b])
    }

    fn post(&mut self, now: Time, flow: u32, message: Message) -> bool {
        let Some(at) = self.flows.get(flow as usize).filter(|at| !at.failed) else { return false };
        let Message { tag, len, notify } = message;
        let wr = SendWr {
            wr_id: u64::from(flow) << 32 | u64::from(tag),
            op: if notify { SendOp::WriteWithImm(tag) } else { SendOp::Write },
            local: Sge { addr: MEMORY_AT, len, lkey: self.key.lkey },
            remote: RemoteAddr { addr: MEMORY_AT, rkey: at.rkey },
            signaled: true,
            fence: false,
        };
        self.nic.endpoint.post_send(now, at.qpn, wr).is_ok()
    }

    fn stats(&self) -> TransportStats {
        let counters = self.counters();
        TransportStats {
            placed_bytes: counters.rx_placed_bytes,
            sent: counters.tx_data,
            repeats: counters.tx_retransmits + counters.tx_tail_probes,
            losses: counters.loss_same_ev + counters.loss_overdue + counters.loss_nack,
            timeouts: counters.timeouts,
            marked: counters.rx_ecn_marked,
            trimmed: counters.rx_trimmed,
            ..TransportStats::default()
        }
    }

    fn set_deny_list(&mut self, _now: Time, list: &Arc<DenyList>) {
        self.nic.endpoint.set_deny_list(Arc::clone(list));
        for flow in 0..self.flows.len() as u32 {
            if let Some(qpn) = self.qpn(flow) {
                self.nic.endpoint.follow_deny_list(qpn);
            }
        }
    }

    fn evs(&self, flow: u32) -> Vec<EvStateCounts> {
        let mut planes = vec![EvStateCounts::default(); self.spec.path.planes.into()];
        let Some(qpn) = self.qpn(flow) else { return planes };
        let open = self.nic.endpoint.planes(qpn).unwrap_or_default();
        for status in self.nic.endpoint.ev_states(qpn).into_iter().flatten() {
            let Some(plane) = planes.get_mut(usize::from(status.plane)) else { continue };
            *match status.state {
                _ if !open.contains(status.plane) => &mut plane.closed,
                EvState::AssumedBad => &mut plane.assumed_bad,
                EvState::Denied => &mut plane.denied,
                _ if !status.active => &mut plane.reserve,
                EvState::Good => &mut plane.good,
                EvState::Skip => &mut plane.skip,
            } += 1;
        }
        planes
    }
}
