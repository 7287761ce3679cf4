//! Attributes of queue pairs: what they are made of, what peers tell each other, and the changes of state.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::config::PortAddr;
use crate::congestion::CcConfig;
use crate::memory::PdId;
use crate::path::PathConfig;
use crate::wire::{EntropyMode, Msn, Psn, StevOrder};
use crate::work::SharedRecvQueue;

/// A completion queue of the driver: the endpoint only hands the number back with completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CqId(pub u32);

/// Sizes of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpCap {
    /// Send work requests outstanding.
    pub max_send_wr: u32,
    /// Receive work requests outstanding; 0 with a shared receive queue.
    pub max_recv_wr: u32,
    /// Scatter/gather elements of a send work request, 1 to [`MAX_SGE`](crate::work::MAX_SGE).
    pub max_send_sge: u32,
}

impl Default for QpCap {
    fn default() -> Self {
        Self { max_send_wr: 128, max_recv_wr: 128, max_send_sge: 1 }
    }
}

/// What a queue pair is made of.
#[derive(Clone, Debug)]
pub struct QpInit {
    /// Protection domain.
    pub pd: PdId,
    /// Where send completions go.
    pub send_cq: CqId,
    /// Where receive completions go.
    pub recv_cq: CqId,
    /// Sizes. With `srq`, `max_recv_wr` counts for nothing.
    pub cap: QpCap,
    /// Where immediates find receive work requests, if not in a queue of the queue pair's own.
    pub srq: Option<Arc<SharedRecvQueue>>,
    /// Every send work request is signalled.
    pub sig_all: bool,
    /// Entropy values and their health. `planes` and `source` follow the ports.
    pub path: PathConfig,
    /// Congestion control.
    pub cc: CcConfig,
    /// Initial PSN; random when not given.
    pub psn: Option<Psn>,
    /// Initial message number; both peers must agree. 0 unless a test starts near the wrap.
    pub msn: Msn,
    /// Window granted to the peer, units of 128 PSNs (at least 8 by MRC 1.0). The most, if it is dynamic.
    pub mpr_dest: u8,
    /// Writes with immediate the peer may have in flight.
    pub max_wimm_dest: u16,
    /// Largest path MTU to offer, bytes; what the ports take when zero.
    pub max_mtu: u32,
    /// Take part in dynamic windows when the peer does, too: follow `mpr` in its SACKs, and grant it what
    /// [`Limits::window_budget_psns`](crate::endpoint::Limits::window_budget_psns) allows.
    pub dynamic_mpr: bool,
}

impl QpInit {
    /// Defaults: window 1024 PSNs, 128 immediates, MTU up to 4096, no congestion control (it must
    /// be told the link's rate and round-trip time).
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
            max_mtu: 4096,
            dynamic_mpr: false,
        }
    }
}

/// Everything a peer must know of a queue pair to connect to it: exchanged out of band, by
/// [`verbs::exchange`](crate::verbs) or by the application's own channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QpInfo {
    /// Version of this structure: 1. Whoever speaks several writes the one that both speak; over
    /// [`verbs::negotiate`](crate::verbs::negotiate) that is seen to.
    pub version: u32,
    /// Queue pair number, 24 bits.
    pub qpn: u32,
    /// Initial PSN of what this side sends, 24 bits.
    pub psn: u32,
    /// Initial message number of what this side sends.
    pub msn: u16,
    /// Window this side grants, units of 128 PSNs.
    pub mpr: u8,
    /// Writes with immediate this side accepts in flight.
    pub max_wimm: u16,
    /// Largest payload of a packet this side can take, bytes.
    pub mtu: u32,
    /// This side answers trimmed packets with NACKs.
    pub trim_nack: bool,
    /// This side follows dynamic windows.
    pub dynamic_mpr: bool,
    /// This side computes and checks the invariant CRC.
    pub icrc: bool,
    /// UDP destination port this side listens on.
    pub udp_port: u16,
    /// Where this side puts and looks for entropy: `stev-sport-high`, `stev-sport-low` or `udp`.
    pub entropy: String,
    /// Ports, one a plane. Port *n* of one side is on the same plane as port *n* of the other.
    pub ports: Vec<PortAddr>,
    /// The plane of each port, if it is told: see [`EndpointConfig::plane_ids`](crate::endpoint::EndpointConfig::plane_ids). Compared where both sides tell.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub plane_ids: Vec<u32>,
}

impl QpInfo {
    /// The version of this structure that this code speaks.
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

/// Attributes of INIT → RTR: the peer, and what this side accepts from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RtrAttr {
    /// The peer's queue pair number.
    pub dest_qpn: u32,
    /// The peer's initial PSN.
    pub rq_psn: Psn,
    /// The peer's initial message number.
    pub rq_msn: Msn,
    /// Agreed payload bytes a packet, 256 to what both ports take.
    pub path_mtu: u32,
    /// Window granted to the peer, units of 128 PSNs.
    pub mpr_dest: u8,
    /// Writes with immediate the peer may have in flight.
    pub max_wimm_dest: u16,
    /// Both sides follow dynamic windows.
    pub dynamic_mpr: bool,
    /// The peer turns trimmed packets into NACKs.
    pub trim_nack: bool,
    /// The peer's ports, paired with ours by index.
    pub ports: Vec<PortAddr>,
    /// UDP destination port of the peer.
    pub udp_port: u16,
}

impl RtrAttr {
    /// What follows from the offers of both sides: the smaller path MTU, the planes that both have, dynamic windows if both
    /// follow them; all else as its owner says. Nothing is checked: [`verbs::negotiate`](crate::verbs::negotiate) does that.
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
        }
    }
}

/// Attributes of RTR → RTS: what this side may send, and how long it goes on without an answer.
///
/// A queue pair that hears nothing new from its peer while packets are in flight waits one timeout, then
/// `linear_retries` more of the same length, then `exponential_retries` that double, and then fails with
/// [`RetryExceeded`](crate::endpoint::FailReason::RetryExceeded) (MRC 1.0 table 7-1). Anything new from the peer starts
/// all of this over. [`RtsAttr::budget_ns`] adds the waits up:
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
/// Between two timeouts the oldest packet is sent again, first after about two round trips (at least
/// [`tail_probe_floor_ns`](crate::endpoint::EndpointConfig::tail_probe_floor_ns)), then at doubling intervals, from each timeout anew. So traffic resumes at the
/// latest half a wait after a silent peer is back; with the defaults, within a third of the time that it was away
/// or 10 ms, whichever is longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RtsAttr {
    /// Window granted by the peer, units of 128 PSNs.
    pub mpr: u8,
    /// Writes with immediate in flight that the peer accepts.
    pub max_wimm: u16,
    /// Retransmission timeout is 1.024 us x 2^timeout, 1 to 24 (17.2 s).
    pub timeout: u8,
    /// Timeouts at the fixed interval, at most 7.
    pub linear_retries: u8,
    /// Timeouts at doubling intervals after those, at most 25; 25 means for ever.
    pub exponential_retries: u8,
}

impl RtsAttr {
    /// Largest timeout exponent.
    pub const MAX_TIMEOUT: u8 = 24;
    /// Most linear retries.
    pub const MAX_LINEAR: u8 = 7;
    /// Most exponential retries; this many mean for ever.
    pub const MAX_EXPONENTIAL: u8 = 25;

    /// The timeout in nanoseconds.
    pub const fn timeout_ns(&self) -> u64 {
        1024 << self.timeout
    }

    /// The part that can be changed in RTS.
    pub const fn retry(&self) -> RetryAttr {
        let Self { timeout, linear_retries, exponential_retries, .. } = *self;
        RetryAttr { timeout, linear_retries, exponential_retries }
    }

    /// The same with another part that can be changed in RTS.
    #[must_use]
    pub const fn with_retry(self, retry: RetryAttr) -> Self {
        let RetryAttr { timeout, linear_retries, exponential_retries } = retry;
        Self { timeout, linear_retries, exponential_retries, ..self }
    }

    /// How long the queue pair goes on when it hears nothing new, in nanoseconds:
    /// `timeout_ns` x (`linear_retries` + 2^(`exponential_retries` + 1) - 1); `None` when for ever.
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
    /// Timeout 14 (16.8 ms), seven retries at that interval and nine doubling: 17.3 s. A peer that stands still for
    /// 10 s (a debugger, a snapshot of a virtual machine, a network that converges) loses nothing, and the short
    /// first timeouts find a way around short outages soon.
    fn default() -> Self {
        Self { mpr: 8, max_wimm: 128, timeout: 14, linear_retries: 7, exponential_retries: 9 }
    }
}

/// Attributes of [`RtsAttr`] that can be changed in RTS ([`QpModify::Retry`]): how long a queue pair goes on without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryAttr {
    /// Retransmission timeout is 1.024 us x 2^timeout, 1 to 24 (17.2 s).
    pub timeout: u8,
    /// Timeouts at the fixed interval, at most 7.
    pub linear_retries: u8,
    /// Timeouts at doubling intervals after those, at most 25; 25 means for ever.
    pub exponential_retries: u8,
}

/// A change to ask for: of the state, or of attributes that may change in RTS.
///
/// | change | from | to |
/// |---|---|---|
/// | [`Reset`](Self::Reset) | any state | RESET |
/// | [`Init`](Self::Init) | RESET | INIT |
/// | [`Rtr`](Self::Rtr) | INIT | RTR |
/// | [`Rts`](Self::Rts) | RTR | RTS |
/// | [`Retry`](Self::Retry), [`Congestion`](Self::Congestion) | RTS | RTS |
/// | [`Error`](Self::Error) | any state | ERROR |
///
/// Anything else is refused, and so is an attribute that is out of range. A change that is refused changes nothing.
#[derive(Clone, Debug, PartialEq)]
pub enum QpModify {
    /// Back to RESET from any state: all work is dropped without completions, and the queue pair has another number from
    /// then on. Packets of its earlier life, late from the network, meet no queue pair.
    Reset,
    /// RESET → INIT.
    Init,
    /// INIT → RTR.
    Rtr(Box<RtrAttr>),
    /// RTR → RTS.
    Rts(RtsAttr),
    /// RTS → RTS: another retransmission timeout, and other numbers of retries, in force at once and until RESET.
    ///
    /// If the timer is running, the current wait gets the length that it has with the new attributes, counted from when
    /// the wait began; if that much time has passed, the timeout comes at once. Timeouts since the peer last said
    /// something new still count: if they are more than the retries allowed now, the queue pair fails at the end of the current
    /// wait, which is as long as the last one allowed. A smoothed round-trip time that is longer than the timeout
    /// makes the timer wait for it, as ever.
    Retry(RetryAttr),
    /// RTS → RTS: other congestion control, in force at once and until RESET. It starts as on a new queue pair,
    /// with a full window and nothing measured, but what is in flight stays counted. `mtu_bytes` is replaced by what
    /// the peers agreed on, and so is `trimming` where they trim nothing.
    Congestion(Box<CcConfig>),
    /// To ERROR from any state: all work is flushed.
    Error,
}

/// State of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QpState {
    /// Made, nothing set.
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
