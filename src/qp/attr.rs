//! Attributes of queue pairs: for creation, for the exchange between peers, and for state changes.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::config::PortAddr;
use crate::congestion::CcConfig;
use crate::memory::PdId;
use crate::path::PathConfig;
use crate::wire::{EntropyMode, Msn, Psn, StevOrder};
use crate::work::SharedRecvQueue;

use super::Extensions;

/// A completion queue of the driver: the endpoint only returns the number with completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CqId(pub u32);

/// Sizes of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QpCap {
    /// Send work requests outstanding.
    pub max_send_wr: u32,
    /// Receive work requests outstanding; 0 with a shared receive queue.
    pub max_recv_wr: u32,
    /// Scatter/gather elements of a send work request, 1 to [`MAX_SGE`](crate::work::MAX_SGE).
    pub max_send_sge: u32,
    /// Scatter/gather elements of a receive work request, 1 to [`MAX_SGE`](crate::work::MAX_SGE).
    pub max_recv_sge: u32,
}

impl Default for QpCap {
    fn default() -> Self {
        Self { max_send_wr: 128, max_recv_wr: 128, max_send_sge: 1, max_recv_sge: 1 }
    }
}

/// Attributes for the creation of a queue pair.
#[derive(Clone, Debug)]
pub struct QpInit {
    /// Protection domain.
    pub pd: PdId,
    /// Completion queue of send completions.
    pub send_cq: CqId,
    /// Completion queue of receive completions.
    pub recv_cq: CqId,
    /// Sizes. With `srq`, `max_recv_wr` is ignored.
    pub cap: QpCap,
    /// The shared receive queue that immediates take receive work requests from, if the queue pair has no queue of its
    /// own.
    pub srq: Option<Arc<SharedRecvQueue>>,
    /// Every send work request is signalled.
    pub sig_all: bool,
    /// Entropy values and their path states. `planes` and `source` follow the ports.
    pub path: PathConfig,
    /// Congestion control.
    pub cc: CcConfig,
    /// Initial PSN. Default: random.
    pub psn: Option<Psn>,
    /// Initial message number; both peers must agree. 0 unless a test starts near the wrap.
    pub msn: Msn,
    /// Window granted to the peer, in units of 128 PSNs (at least 8 by MRC 1.0). The largest one, if it is dynamic.
    pub mpr_dest: u8,
    /// Writes with immediate and SENDs that the peer may have in flight.
    pub max_wimm_dest: u16,
    /// Reads and atomic operations that the peer may have in flight.
    pub max_dest_rd_atomic: u8,
    /// Largest path MTU to offer, in bytes. 0: the largest that the ports can carry.
    pub max_mtu: u32,
    /// Use dynamic windows if the peer does too: follow `mpr` in its SACKs, and grant it what
    /// [`Limits::window_budget_psns`](crate::endpoint::Limits::window_budget_psns) allows.
    pub dynamic_mpr: bool,
    /// Extensions of MRC to offer. Those that the peer does not have are not used.
    pub extensions: Extensions,
    /// [`QpModify::Reset`] keeps the number, for peers that are told of it once. Late packets of one connection may
    /// then reach the next one, which only its PSNs tell apart. Default no.
    pub keep_number: bool,
}

impl QpInit {
    /// Defaults: all extensions, window 1024 PSNs, 128 immediates, MTU up to 4096, no congestion control (it needs the link's rate and
    /// round-trip time).
    pub fn new(pd: PdId, send_cq: CqId, recv_cq: CqId) -> Self {
        Self {
            pd,
            send_cq,
            recv_cq,
            cap: QpCap::default(),
            srq: None,
            sig_all: false,
            path: PathConfig::new(1),
            cc: CcConfig::none(),
            psn: None,
            msn: Msn::new(0),
            mpr_dest: 8,
            max_wimm_dest: 128,
            max_dest_rd_atomic: 16,
            max_mtu: 4096,
            dynamic_mpr: false,
            extensions: Extensions::ALL,
            keep_number: false,
        }
    }
}

impl QpInit {
    /// Reads and atomic operations that it offers to carry out for the peer.
    pub(crate) const fn fetches_offered(&self) -> u8 {
        if self.extensions.fetches() { self.max_dest_rd_atomic } else { 0 }
    }
}

/// The information that a peer needs to connect to a queue pair. It is exchanged out of band, by
/// [`verbs::exchange`](crate::verbs) or by the application's own channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QpInfo {
    /// Version of this structure: 1. A side that supports several versions writes one that both support;
    /// [`verbs::negotiate`](crate::verbs::negotiate) ensures that.
    pub version: u32,
    /// Queue pair number, 24 bits.
    pub qpn: u32,
    /// Initial PSN of what this side sends, 24 bits.
    pub psn: u32,
    /// Initial message number of what this side sends.
    pub msn: u16,
    /// Window that this side grants, in units of 128 PSNs.
    pub mpr: u8,
    /// Writes with immediate and SENDs in flight that this side accepts.
    pub max_wimm: u16,
    /// Largest payload of a packet that this side accepts, in bytes.
    pub mtu: u32,
    /// This side sends a NACK for a trimmed packet.
    pub trim_nack: bool,
    /// This side follows dynamic windows.
    pub dynamic_mpr: bool,
    /// This side computes and checks the invariant CRC.
    pub icrc: bool,
    /// UDP destination port at which this side receives.
    pub udp_port: u16,
    /// The fields in which this side writes and reads entropy: `stev-sport-high`, `stev-sport-low` or `udp`.
    pub entropy: String,
    /// Ports, one per plane. Port *n* of one side is on the same plane as port *n* of the other.
    pub ports: Vec<PortAddr>,
    /// The plane of each port, if given: see
    /// [`EndpointConfig::plane_ids`](crate::endpoint::EndpointConfig::plane_ids). Compared if both sides give them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub plane_ids: Vec<u32>,
    /// Extensions of MRC that this side has. Those of both sides are used.
    #[serde(default, skip_serializing_if = "Extensions::is_empty")]
    pub extensions: Extensions,
    /// Reads and atomic operations in flight that this side accepts; 0 without these extensions.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub max_rd_atomic: u8,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
const fn is_zero(number: &u8) -> bool {
    *number == 0
}

impl QpInfo {
    /// The version of this structure that this code supports.
    pub const VERSION: u32 = 1;
}

/// Name of an entropy mode in [`QpInfo`].
pub const fn entropy_name(mode: EntropyMode) -> &'static str {
    match mode {
        EntropyMode::Stev(StevOrder::SportHigh) => "stev-sport-high",
        EntropyMode::Stev(StevOrder::SportLow) => "stev-sport-low",
        EntropyMode::Udp => "udp",
    }
}

/// Attributes of INIT → RTR: the peer, and the limits of what this side accepts from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RtrAttr {
    /// The peer's queue pair number.
    pub dest_qpn: u32,
    /// The peer's initial PSN.
    pub rq_psn: Psn,
    /// The peer's initial message number.
    pub rq_msn: Msn,
    /// Agreed payload bytes per packet, from 256 to the largest that both ports can carry.
    pub path_mtu: u32,
    /// Window granted to the peer, in units of 128 PSNs.
    pub mpr_dest: u8,
    /// Writes with immediate that the peer may have in flight.
    pub max_wimm_dest: u16,
    /// Both sides follow dynamic windows.
    pub dynamic_mpr: bool,
    /// The peer sends NACKs for trimmed packets.
    pub trim_nack: bool,
    /// The peer's ports, paired with ours by index.
    pub ports: Vec<PortAddr>,
    /// UDP destination port of the peer.
    pub udp_port: u16,
    /// Extensions of MRC that both sides have.
    pub extensions: Extensions,
    /// How long the peer waits at least after an RNR NACK: a code of 5 bits, see
    /// [`Neth::rnr_timer_ns`](crate::wire::Neth::rnr_timer_ns).
    pub min_rnr_timer: u8,
    /// Reads and atomic operations that the peer may have in flight.
    pub max_dest_rd_atomic: u8,
}

impl RtrAttr {
    /// The default RNR timer, 0.64 ms.
    pub const MIN_RNR_TIMER: u8 = 12;

    /// Derives the attributes from both offers: the smaller path MTU, the planes that both have, dynamic windows if
    /// both follow them, and for all else the owner's value. Nothing is checked:
    /// [`verbs::negotiate`](crate::verbs::negotiate) does that.
    pub fn between(ours: &QpInfo, theirs: &QpInfo) -> Self {
        Self {
            dest_qpn: theirs.qpn,
            rq_psn: Psn::new(theirs.psn),
            rq_msn: Msn::new(theirs.msn),
            path_mtu: ours.mtu.min(theirs.mtu),
            mpr_dest: ours.mpr,
            max_wimm_dest: ours.max_wimm,
            dynamic_mpr: ours.dynamic_mpr && theirs.dynamic_mpr,
            trim_nack: theirs.trim_nack,
            ports: theirs.ports.iter().take(ours.ports.len()).copied().collect(),
            udp_port: theirs.udp_port,
            extensions: ours.extensions & theirs.extensions,
            min_rnr_timer: Self::MIN_RNR_TIMER,
            max_dest_rd_atomic: ours.max_rd_atomic,
        }
    }
}

/// Attributes of RTR → RTS: the limits of what this side may send, and its retransmission timeout and retries.
///
/// If packets are in flight and no new information arrives from the peer, a queue pair waits one timeout. Then it
/// waits `linear_retries` more of the same length, then `exponential_retries` that double. After that it fails with
/// [`RetryExceeded`](crate::endpoint::FailReason::RetryExceeded) (MRC 1.0 table 7-1). New information from the peer
/// starts the sequence again. [`RtsAttr::budget_ns`] is the sum of the waits:
///
/// | `timeout` | `linear_retries` | `exponential_retries` | fails after |
/// |---|---|---|---|
/// | 14 | 7 | 5 | 1.2 s |
/// | 14 | 7 | 7 | 4.4 s |
/// | **14** | **7** | **9** (the default) | **17.3 s** |
/// | 14 | 7 | 11 | 68.8 s |
/// | 20 | 7 | 3 | 23.6 s |
/// | 21 | 7 | 0 | 17.2 s |
/// | any | any | 25 | never |
///
/// Between two timeouts the oldest packet is retransmitted, first after about two round trips (at least
/// [`tail_probe_floor_ns`](crate::endpoint::EndpointConfig::tail_probe_floor_ns)), then at doubling intervals. Each
/// timeout starts these intervals again. So once the peer is reachable again, traffic resumes after at most half a
/// wait. With the defaults, that is a third of the outage or 10 ms, whichever is longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RtsAttr {
    /// Window granted by the peer, in units of 128 PSNs.
    pub mpr: u8,
    /// Writes with immediate and SENDs in flight that the peer accepts.
    pub max_wimm: u16,
    /// The retransmission timeout is 1.024 us x 2^timeout, 1 to 24 (17.2 s).
    pub timeout: u8,
    /// Timeouts at the fixed interval, at most 7.
    pub linear_retries: u8,
    /// Timeouts at doubling intervals after those, at most 25; 25 means no limit.
    pub exponential_retries: u8,
    /// How often a message is sent again that found no receive work request, 0 to 7; 7 means no limit. It needs the
    /// extension [`RNR`](Extensions::RNR).
    pub rnr_retry: u8,
    /// Reads and atomic operations in flight that the peer accepts.
    pub max_rd_atomic: u8,
    /// The first PSN sent, where the peer was told of another than [`QpInfo::psn`]. Default: that one.
    pub psn: Option<Psn>,
}

impl RtsAttr {
    /// The largest number of RNR retries; it means no limit.
    pub const MAX_RNR: u8 = 7;
    /// Largest timeout exponent.
    pub const MAX_TIMEOUT: u8 = 24;
    /// The largest number of linear retries.
    pub const MAX_LINEAR: u8 = 7;
    /// The largest number of exponential retries; it means no limit.
    pub const MAX_EXPONENTIAL: u8 = 25;

    /// The timeout in nanoseconds.
    pub const fn timeout_ns(&self) -> u64 {
        1024 << self.timeout
    }

    /// The attributes that can be changed in RTS.
    pub const fn retry(&self) -> RetryAttr {
        let Self { timeout, linear_retries, exponential_retries, .. } = *self;
        RetryAttr { timeout, linear_retries, exponential_retries }
    }

    /// The same with other values of the attributes that can be changed in RTS.
    #[must_use]
    pub const fn with_retry(self, retry: RetryAttr) -> Self {
        let RetryAttr { timeout, linear_retries, exponential_retries } = retry;
        Self { timeout, linear_retries, exponential_retries, ..self }
    }

    /// The time without new information from the peer after which the queue pair fails, in nanoseconds: `timeout_ns` x
    /// (`linear_retries` + 2^(`exponential_retries` + 1) - 1). `None` if there is no limit.
    ///
    /// ```
    /// use spindrift::endpoint::RtsAttr;
    ///
    /// let budget_s = |timeout, linear_retries, exponential_retries| {
    ///     let attr = RtsAttr { timeout, linear_retries, exponential_retries, ..RtsAttr::default() };
    ///     attr.budget_ns().map(|ns| ns as f64 / 1e9)
    /// };
    /// assert!((17.2..17.3).contains(&budget_s(14, 7, 9).unwrap()), "the default");
    /// assert!((4.3..4.4).contains(&budget_s(14, 7, 7).unwrap()));
    /// assert_eq!(budget_s(14, 0, 0), Some(0.016777216), "one timeout");
    /// assert_eq!(budget_s(14, 7, 25), None, "for ever");
    /// ```
    pub const fn budget_ns(&self) -> Option<u64> {
        if self.exponential_retries >= Self::MAX_EXPONENTIAL {
            return None;
        }
        let waits = self.linear_retries as u64 + (2 << self.exponential_retries) - 1;
        Some(self.timeout_ns().saturating_mul(waits))
    }
}

impl Default for RtsAttr {
    /// Timeout 14 (16.8 ms), seven retries at that interval and nine doubling: 17.3 s. Requests survive a peer that
    /// stops for 10 s (a debugger, a snapshot of a virtual machine, a network that converges). The first timeouts are
    /// short, so that a working path is found soon after short outages.
    fn default() -> Self {
        Self {
            mpr: 8,
            max_wimm: 128,
            timeout: 14,
            linear_retries: 7,
            exponential_retries: 9,
            rnr_retry: Self::MAX_RNR,
            max_rd_atomic: 16,
            psn: None,
        }
    }
}

/// Attributes of [`RtsAttr`] that can be changed in RTS ([`QpModify::Retry`]): retransmission timeout and retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryAttr {
    /// The retransmission timeout is 1.024 us x 2^timeout, 1 to 24 (17.2 s).
    pub timeout: u8,
    /// Timeouts at the fixed interval, at most 7.
    pub linear_retries: u8,
    /// Timeouts at doubling intervals after those, at most 25; 25 means no limit.
    pub exponential_retries: u8,
}

/// A change to a queue pair: of its state, or of attributes.
///
/// | change | from | to |
/// |---|---|---|
/// | [`Reset`](Self::Reset) | any state | RESET |
/// | [`Init`](Self::Init) | RESET | INIT |
/// | [`Rtr`](Self::Rtr) | INIT | RTR |
/// | [`Rts`](Self::Rts) | RTR | RTS |
/// | [`Paths`](Self::Paths) | RESET, INIT | the same |
/// | [`Retry`](Self::Retry) | RTS | RTS |
/// | [`Congestion`](Self::Congestion) | any but ERROR | the same |
/// | [`Error`](Self::Error) | any state | ERROR |
///
/// Any other change is refused, and so is an attribute that is out of range. A refused change has no effect.
#[derive(Clone, Debug, PartialEq)]
pub enum QpModify {
    /// Back to RESET from any state: all work is dropped without completions, and the queue pair gets a new number,
    /// unless it [keeps](QpInit::keep_number) it. Late packets for the old number reach no queue pair.
    Reset,
    /// RESET → INIT.
    Init,
    /// RESET or INIT: new path settings in place of [`QpInit::path`], which RESET keeps. The entropy values are chosen
    /// anew. Denied planes stay denied, and so do denied values that are chosen again.
    Paths(Box<PathConfig>),
    /// INIT → RTR.
    Rtr(Box<RtrAttr>),
    /// RTR → RTS.
    Rts(RtsAttr),
    /// RTS → RTS: a new retransmission timeout and new numbers of retries, in force at once and until RESET.
    ///
    /// If the timer is running, the current wait gets its length from the new attributes, counted from when the wait
    /// began. If that much time has passed, the timeout comes at once. Timeouts since the last new information from
    /// the peer still count. If they exceed the retries allowed now, the queue pair fails at the end of the current
    /// wait, which is as long as the last one allowed. If the smoothed round-trip time is longer than the timeout, the
    /// timer waits for the round-trip time, as always.
    Retry(RetryAttr),
    /// New congestion control settings. In RTS they are in force at once and until RESET. They start as on a new queue
    /// pair, with a full window and without measurements, but packets in flight stay counted. The agreed value
    /// replaces `mtu_bytes`. It also replaces `trimming` if the peers do not trim. Before RTS they replace
    /// [`QpInit::cc`], which RESET keeps.
    Congestion(Box<CcConfig>),
    /// To ERROR from any state: all work is flushed.
    Error,
}

/// State of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QpState {
    /// Created; no attributes set.
    Reset,
    /// Receive work requests may be posted.
    Init,
    /// Ready to receive.
    Rtr,
    /// Ready to send.
    Rts,
    /// Failed: work requests are flushed.
    Error,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// MRC 1.0 table 7-1: the timeout doubles with each step, and so do the exponential retries.
    #[test]
    fn the_retry_budget_adds_up_every_wait() {
        let attr = |timeout, linear_retries, exponential_retries| RtsAttr {
            timeout,
            linear_retries,
            exponential_retries,
            ..RtsAttr::default()
        };
        assert_eq!((attr(1, 0, 0).timeout_ns(), attr(24, 0, 0).timeout_ns()), (2048, 1024 << 24));
        assert_eq!(attr(1, 0, 0).budget_ns(), Some(2048));
        assert_eq!(attr(1, 3, 0).budget_ns(), Some(4 * 2048));
        assert_eq!(attr(1, 3, 2).budget_ns(), Some((1 + 3 + 2 + 4) * 2048));
        assert_eq!(attr(1, 0, 24).budget_ns(), Some(((1 << 25) - 1) * 2048));
        assert_eq!(attr(1, 0, 25).budget_ns(), None);
    }
}
