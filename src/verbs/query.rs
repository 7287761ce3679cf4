//! Attributes of a context and of its ports: `ibv_query_device` and `ibv_query_port`.

use std::ops::RangeInclusive;

use spindrift_pmd::Medium;

use crate::congestion::CcConfig;
use crate::endpoint::Extensions;
use crate::path::MAX_EVS;
use crate::wire::EntropyMode;
use crate::work::{MAX_SGE, SendOp};

use super::context::Context;
use super::cq::MAX_CQ_DEPTH;
use super::error::VerbsError;
use super::negotiate::MIN_MTU;
use super::port_attr::PortAttr;
use super::post::MAX_INLINE;

/// Capabilities of a context, its limits, and their current use.
///
/// Each limit is the one that is enforced: that many are accepted, and one more is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceAttr {
    /// Lanes, numbered from 0.
    pub lanes: usize,
    /// Ports of each lane: planes of the network, numbered from 0.
    pub planes: usize,
    /// Queue pairs of all lanes together.
    pub max_qps: u32,
    /// Queue pairs of each lane.
    pub max_qps_per_lane: u32,
    /// Existing queue pairs, in any state.
    pub qps: u32,
    /// Send work requests outstanding on a queue pair; at least 1.
    pub max_send_wr: u32,
    /// Receive work requests outstanding on a queue pair; may be 0.
    pub max_recv_wr: u32,
    /// Receive work requests that a shared receive queue holds; at least 1.
    pub max_srq_wr: u32,
    /// Scatter/gather elements of a send work request; at least 1.
    pub max_send_sge: u32,
    /// Bytes of an inline send.
    pub max_inline: u32,
    /// Completions of each lane that a completion queue holds; at least 1.
    pub max_cq_depth: u32,
    /// Registered memory regions.
    pub max_regions: u32,
    /// Existing registered memory regions. A queue pair with inline sends has one of its own.
    pub regions: u32,
    /// Bytes of a message: at least 1, also with an immediate.
    pub msg_len: RangeInclusive<u32>,
    /// Bytes of payload of a packet, the path MTU. Queue pairs on a lane whose ports all carry more can have more: see
    /// [`PortAttr::max_mtu`].
    pub path_mtu: RangeInclusive<u32>,
    /// Window granted to a peer, in units of 128 PSNs.
    pub mpr: RangeInclusive<u8>,
    /// PSNs by which all dynamic windows of a lane together may exceed the least window of each queue pair. 0: windows
    /// stay at the least.
    pub window_budget_psns: u32,
    /// Writes with immediate that a peer may have in flight. 0: none are accepted.
    pub max_wimm: RangeInclusive<u16>,
    /// Reads and atomic operations that a peer may have in flight. 0: none are accepted.
    pub max_rd_atomic: RangeInclusive<u8>,
    /// Entropy values of a queue pair, in use and in reserve.
    pub max_evs: usize,
    /// The fields that carry the entropy value.
    pub entropy: EntropyMode,
    /// Bits of an entropy value that reach the wire.
    pub entropy_width_bits: u32,
    /// Operations that can be posted. All but writes need a peer with the same [extension](DeviceCaps::extensions).
    pub opcodes: &'static [WrOpcode],
    /// Capabilities that can be turned on and off.
    pub caps: DeviceCaps,
}

/// Capabilities of a context, from its settings. A queue pair uses those that its peer has too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is on or off by itself")]
pub struct DeviceCaps {
    /// Data is marked as trimmable, and a trimmed packet triggers a NACK.
    pub trimming: bool,
    /// The invariant CRC is computed and checked.
    pub icrc: bool,
    /// Windows may change while connected, if a queue pair enables it (`dynamic_mpr`).
    pub dynamic_mpr: bool,
    /// A packet beyond the receive window triggers a NACK.
    pub oor_nack: bool,
    /// Extensions of MRC, if a queue pair offers them ([`QpConfig::extensions`](super::QpConfig::extensions)).
    pub extensions: Extensions,
}

/// Operations of send work requests (`ibv_wr_opcode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WrOpcode {
    /// RDMA WRITE.
    RdmaWrite,
    /// RDMA WRITE with immediate.
    RdmaWriteWithImm,
    /// SEND.
    Send,
    /// SEND with immediate.
    SendWithImm,
    /// SEND with invalidate.
    SendWithInvalidate,
    /// RDMA READ.
    RdmaRead,
    /// Compare-and-swap.
    CompareSwap,
    /// Fetch-and-add.
    FetchAdd,
}

impl WrOpcode {
    const ALL: &'static [Self] = &[
        Self::RdmaWrite,
        Self::RdmaWriteWithImm,
        Self::Send,
        Self::SendWithImm,
        Self::SendWithInvalidate,
        Self::RdmaRead,
        Self::CompareSwap,
        Self::FetchAdd,
    ];
}

impl From<SendOp> for WrOpcode {
    fn from(op: SendOp) -> Self {
        match op {
            SendOp::Write => Self::RdmaWrite,
            SendOp::WriteWithImm(_) => Self::RdmaWriteWithImm,
            SendOp::Send => Self::Send,
            SendOp::SendWithImm(_) => Self::SendWithImm,
            SendOp::SendWithInvalidate(_) => Self::SendWithInvalidate,
            SendOp::Read => Self::RdmaRead,
            SendOp::CompareSwap { .. } => Self::CompareSwap,
            SendOp::FetchAdd(_) => Self::FetchAdd,
        }
    }
}

impl Context {
    /// The capabilities of this context, its limits, and their current use (`ibv_query_device`). A control call counts
    /// the queue pairs of each lane.
    ///
    /// # Errors
    /// [`VerbsError::Control`] within another control call, or if a lane has failed.
    pub fn query_device(&self) -> Result<DeviceAttr, VerbsError> {
        let config = self.config();
        let limits = &config.limits;
        let mut qps = 0;
        for lane in 0..self.lanes() {
            qps += self.control(lane, |lane| lane.endpoint().qpns().count())? as u32;
        }
        let least_mtu = self.port_attrs().iter().flatten().map(|port| port.max_mtu).min();
        Ok(DeviceAttr {
            lanes: self.lanes(),
            planes: config.ports.len(),
            max_qps: limits.max_qps * self.lanes() as u32,
            max_qps_per_lane: limits.max_qps,
            qps,
            max_send_wr: limits.max_send_wr,
            max_recv_wr: limits.max_recv_wr,
            max_srq_wr: limits.max_srq_wr,
            max_send_sge: MAX_SGE,
            max_inline: MAX_INLINE,
            max_cq_depth: MAX_CQ_DEPTH,
            max_regions: self.memory().max_regions(),
            regions: self.memory().regions() as u32,
            msg_len: 0..=u32::MAX,
            path_mtu: MIN_MTU..=least_mtu.unwrap_or(MIN_MTU),
            mpr: 1..=u8::MAX,
            window_budget_psns: limits.window_budget_psns,
            max_wimm: 0..=u16::MAX,
            max_rd_atomic: 0..=u8::MAX,
            max_evs: MAX_EVS,
            entropy: config.entropy,
            entropy_width_bits: config.entropy.width_bits(),
            opcodes: WrOpcode::ALL,
            caps: DeviceCaps {
                trimming: config.trimming,
                icrc: config.icrc,
                dynamic_mpr: true,
                oor_nack: config.oor_nack,
                extensions: Extensions::ALL,
            },
        })
    }

    /// A port: its attributes and counters (`ibv_query_port`). A context with one lane has lane 0.
    ///
    /// Link, notes and counters are taken after this call began. A lane with a thread of its own is not delayed: see
    /// [`Context::counters`]. For a lane that has failed, they are those at that time.
    ///
    /// # Errors
    /// [`VerbsError::OutOfRange`] if there is no such lane or plane.
    pub fn query_port(&self, lane: usize, plane: usize) -> Result<PortAttr, VerbsError> {
        self.check_lane(lane)?;
        let mut ports = self.live_ports(lane);
        let planes = ports.len();
        if plane >= planes {
            let allowed = format!("less than {planes}, the number of planes");
            return Err(VerbsError::OutOfRange { name: "plane", value: plane as u64, allowed });
        }
        Ok(ports.swap_remove(plane))
    }

    /// All ports in the same way: by plane, lane after lane.
    pub fn query_ports(&self) -> Vec<PortAttr> {
        (0..self.lanes()).flat_map(|lane| self.live_ports(lane)).collect()
    }

    /// The default congestion control of queue pairs on this lane. It is none if the lane's ports stay within this
    /// host. Otherwise it is [adaptive](CcConfig::for_software), for the combined rate of the links that reach a
    /// network. A link of unknown rate counts as [100 Gb/s](CcConfig::USUAL_LINK_BPS).
    ///
    /// # Panics
    /// There is no such lane.
    pub fn default_cc(&self, lane: usize) -> CcConfig {
        let ports = &self.port_attrs()[lane];
        let rate = |port: &PortAttr| match port.medium {
            Medium::Host => None,
            Medium::Network { rate_bps } => Some(rate_bps.unwrap_or(CcConfig::USUAL_LINK_BPS)),
        };
        let rates: Vec<_> = ports.iter().filter_map(rate).collect();
        if rates.is_empty() {
            return CcConfig::none();
        }
        let mtu = ports.iter().map(|port| port.max_mtu).min().unwrap_or(MIN_MTU);
        CcConfig::for_software(rates.iter().sum(), CcConfig::SOFTWARE_RTT_NS, mtu)
    }

    fn live_ports(&self, lane: usize) -> Vec<PortAttr> {
        let mut ports = self.port_attrs().get(lane).cloned().unwrap_or_default();
        self.with_snapshot(lane, |seen| {
            for (port, live) in ports.iter_mut().zip(&seen.ports) {
                port.link = live.link;
                port.counters = live.counters;
                port.notes.clone_from(&live.notes);
                port.send_errors.clone_from(&live.send_errors);
            }
        });
        ports
    }
}
