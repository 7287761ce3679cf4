//! Attributes and current state of a queue pair, for queries.

use crate::config::PortAddr;
use crate::congestion::CcConfig;
use crate::wire::{Psn, Qpn};
use crate::work::SrqId;

use super::cwnd::SharedCwnds;
use super::{CqId, Qp, QpCap, QpCounters, QpFailure, QpState, RtsAttr};

/// All attributes of a queue pair, taken at one moment.
///
/// Attributes that the connection determines are present from RTR or RTS on. In ERROR they stay as they were when the
/// queue pair failed. After a reset they are absent, and the queue pair has a new number.
#[derive(Clone, Debug, PartialEq)]
pub struct QpAttr {
    /// Its number.
    pub qpn: Qpn,
    /// Its state.
    pub state: QpState,
    /// The details of its failure, if it is in ERROR.
    pub failure: Option<QpFailure>,
    /// Work requests that may be outstanding.
    pub cap: QpCap,
    /// Bytes of an inline send. Set by the driver; to an endpoint itself, no send is inline.
    pub max_inline: u32,
    /// Every send work request is signalled.
    pub sig_all: bool,
    /// Completion queue of send completions.
    pub send_cq: CqId,
    /// Completion queue of receive completions.
    pub recv_cq: CqId,
    /// The shared receive queue that it takes receive work requests from, if it has no queue of its own.
    pub srq: Option<SrqId>,
    /// The peer that it is connected to, from RTR on.
    pub peer: Option<QpPeer>,
    /// Largest payload of a packet in bytes, from RTR on; 0 before.
    pub path_mtu: u32,
    /// The first PSN that this side sends.
    pub sq_psn: Psn,
    /// The PSN of the next packet that this side sends for the first time.
    pub next_sq_psn: Psn,
    /// The first PSN that the peer sends, from RTR on.
    pub rq_psn: Option<Psn>,
    /// The PSN of the oldest packet that has not arrived, from RTR on.
    pub next_rq_psn: Option<Psn>,
    /// The attributes that it entered RTS with, and the retry attributes in force. `mpr` and `max_wimm` are the peer's
    /// grants at that time.
    pub rts: Option<RtsAttr>,
    /// PSN range that the peer grants now, in PSNs; 0 before RTS. It may differ from `mpr` x 128 only with `dynamic_mpr`.
    pub window_psns: u32,
    /// Writes with immediate that the peer may have in flight.
    pub max_wimm_dest: u16,
    /// The largest window granted to the peer, in units of 128 PSNs.
    pub mpr_dest: u8,
    /// PSN range granted to the peer now, in PSNs; 0 before RTR.
    pub granted_psns: u32,
    /// Both sides use dynamic windows; before RTR, whether this side offers to.
    pub dynamic_mpr: bool,
    /// Congestion control in force. From RTS on, the connection determines `mtu_bytes` and `trimming`.
    pub cc: CcConfig,
    /// Congestion window in bytes, of all queue pairs that share it; `u64::MAX` without congestion control.
    pub cwnd_bytes: u64,
    /// Bytes in flight as congestion control counts them, of all queue pairs that share the window.
    pub inflight_bytes: u64,
    /// Smoothed round-trip time in nanoseconds; 0 before the first sample.
    pub smoothed_rtt_ns: u64,
    /// Smallest round-trip time in nanoseconds; 0 before the first sample.
    pub min_rtt_ns: u64,
    /// Send work requests not complete.
    pub sends_outstanding: u32,
    /// Receive work requests of its own that are not consumed.
    pub recvs_outstanding: u32,
    /// Counts since it was made or reset.
    pub counters: QpCounters,
}

/// The other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QpPeer {
    /// The peer's queue pair number.
    pub qpn: Qpn,
    /// The peer's ports, by plane.
    pub ports: Vec<PortAddr>,
    /// The UDP port at which the peer receives.
    pub udp_port: u16,
}

impl Qp {
    pub(crate) fn attr(&self, peer: Option<QpPeer>, cwnds: &SharedCwnds) -> QpAttr {
        let Self { init, requester, responder, .. } = self;
        let status = self.status(cwnds);
        let connected = peer.is_some();
        let cc = self.other_cc.as_deref().unwrap_or(&init.cc);
        QpAttr {
            qpn: self.qpn,
            state: self.state,
            failure: self.failure.as_deref().copied(),
            cap: init.cap,
            max_inline: 0,
            sig_all: self.sig_all,
            send_cq: self.send_cq,
            recv_cq: self.recv_cq,
            srq: responder.receives().srq(),
            path_mtu: if connected { self.path_mtu } else { 0 },
            sq_psn: self.psn,
            next_sq_psn: requester.next_psn(),
            rq_psn: connected.then_some(responder.setup().initial_psn),
            next_rq_psn: connected.then(|| responder.next_psn()),
            rts: self.rts,
            window_psns: requester.window_psns(),
            max_wimm_dest: if connected { responder.setup().max_wimm as u16 } else { init.max_wimm_dest },
            mpr_dest: if connected { responder.most_units() } else { init.mpr_dest },
            granted_psns: status.granted_psns,
            dynamic_mpr: if connected { self.dynamic_mpr } else { init.dynamic_mpr },
            cc: if self.rts.is_some() { self.cc_config(cc) } else { cc.clone() },
            cwnd_bytes: status.cwnd_bytes,
            inflight_bytes: status.inflight_bytes,
            smoothed_rtt_ns: status.smoothed_rtt_ns,
            min_rtt_ns: status.min_rtt_ns,
            sends_outstanding: status.send_outstanding,
            recvs_outstanding: responder.recvs_queued() as u32,
            counters: status.counters,
            peer,
        }
    }
}
