//! One connection: a queue pair with its two halves, its paths, its congestion window and its state machine.
//!
//! Methods take the [`Cx`], which has all state that the queue pairs of an endpoint share. They return [`Wakes`]: the
//! actions that the endpoint then takes for the queue pair. The endpoint looks a queue pair up once per packet.

mod acks;
mod attr;
mod cwnd;
mod cx;
mod error;
mod event;
mod extensions;
mod log;
mod operations;
mod post;
mod query;
mod receive;
mod reverse;
mod timers;
mod transmit;

use std::sync::Arc;

use crate::config::EndpointConfig;
use crate::congestion::{self, CcConfig};
use crate::memory::PdMember;
use crate::path::{Paths, PlaneSet};
use crate::requester::{Requester, RequesterSetup, RetryPolicy};
use crate::responder::{Receives, Responder, ResponderSetup};
use crate::time::Time;
use crate::wire::{Msn, Opcode, Psn, Qpn};

pub use attr::{CqId, QpCap, QpInfo, QpInit, QpModify, QpState, RetryAttr, RtrAttr, RtsAttr, entropy_name};
pub(crate) use cwnd::{Cwnd, SharedCwnds};
pub(crate) use cx::{Cx, QpTable, Wakes};
pub use error::{EndpointError, PostError};
pub use event::{Event, FailReason, QpFailure};
use extensions::Admitted;
pub use extensions::Extensions;
pub(crate) use log::cq_nearly_full;
pub use query::{QpAttr, QpPeer};
pub(crate) use receive::{Data, count_rare};
use reverse::ReverseWatch;
pub use transmit::Transmit;
pub(crate) use transmit::{Burst, ControlPath, NOT_ECT, Turn, TxOrigin, uncount, write_control};

/// Counts of one queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpCounters {
    /// Data packets sent, retransmissions included.
    pub tx_packets: u64,
    /// Payload bytes sent, retransmissions included.
    pub tx_bytes: u64,
    /// Data packets retransmitted or repeated.
    pub tx_repeats: u64,
    /// Data packets received and placed.
    pub rx_packets: u64,
    /// Payload bytes placed.
    pub rx_bytes: u64,
}

/// A snapshot of a queue pair's transport state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpStatus {
    /// State.
    pub state: QpState,
    /// Counts.
    pub counters: QpCounters,
    /// Smoothed round-trip time, ns; 0 before the first sample.
    pub smoothed_rtt_ns: u64,
    /// Smallest round-trip time, ns; 0 before the first sample.
    pub min_rtt_ns: u64,
    /// Congestion window in bytes, of all queue pairs that share it; `u64::MAX` without congestion control.
    pub cwnd_bytes: u64,
    /// Bytes in flight as congestion control counts them, of all queue pairs that share the window.
    pub inflight_bytes: u64,
    /// Send work requests not complete.
    pub send_outstanding: u32,
    /// PSN range granted to the peer now, see [`Limits::window_budget_psns`](crate::endpoint::Limits::window_budget_psns).
    pub granted_psns: u32,
}

/// The reason why a queue pair is in a list of those that may send data. It may be in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TxClass {
    /// It may have anything to send.
    New,
    /// It may have something to retransmit.
    Retransmit,
}

/// The place of a queue pair in a list of those that may send data.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TxSlot {
    pub(crate) listed: bool,
    /// Packets sent since its turn began.
    pub(crate) quantum_used: u32,
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Qp {
    pub(crate) qpn: Qpn,
    /// Its slot among the queue pairs of the endpoint.
    pub(crate) slot: u32,
    pub(crate) pd: PdMember,
    pub(crate) send_cq: CqId,
    pub(crate) recv_cq: CqId,
    pub(crate) sig_all: bool,
    pub(crate) state: QpState,
    pub(crate) init: Box<QpInit>,
    pub(crate) psn: Psn,
    pub(crate) peer: u32,
    /// Its index in the list of the peer's queue pairs.
    pub(crate) member: u32,
    pub(crate) dest_qpn: Qpn,
    pub(crate) path_mtu: u32,
    pub(crate) dynamic_mpr: bool,
    pub(crate) trimmable: bool,
    /// Those that both sides have.
    pub(crate) extensions: Extensions,
    admitted: Admitted,
    /// The RNR timer that its RNR NACKs carry.
    pub(crate) min_rnr_timer: u8,
    /// Reads and atomic operations that the peer may have in flight.
    pub(crate) max_dest_rd_atomic: u8,
    /// The attributes that it was brought to RTS with, with later changes.
    pub(crate) rts: Option<RtsAttr>,
    /// Congestion control settings that replaced the original ones.
    pub(crate) other_cc: Option<Box<CcConfig>>,
    pub(crate) requester: Requester,
    pub(crate) responder: Responder,
    pub(crate) paths: Paths,
    pub(crate) cwnd: Cwnd,
    /// It waits for a shared congestion window, and counts as listed for new data meanwhile.
    pub(crate) waits_for_cwnd: bool,
    /// It has left its shared window until it makes progress again.
    left_cwnd: bool,
    pub(crate) counters: QpCounters,
    /// Packets sent and received when it was last visited.
    pub(crate) moved: u64,
    /// The window granted when it was last visited.
    pub(crate) granted_psns: u32,
    /// Send work requests that left the queue since the last event about them.
    pub(crate) retired: u32,
    /// The details of its failure, if it failed.
    pub(crate) failure: Option<Box<QpFailure>>,
    /// The driver was notified of path events that it has not polled yet.
    pub(crate) path_events_reported: bool,
    /// In the list of queue pairs with pending acknowledgements or probes.
    pub(crate) in_control_list: bool,
    /// In the list of those whose requests wait for a port to release payload.
    pub(crate) held: bool,
    /// Its slots in the lists of those that may send data, by [`TxClass`].
    pub(crate) tx_slots: [TxSlot; 2],
    /// The lane burst in which it sent last.
    pub(crate) burst: u64,
    /// The earliest live entry of the timer heap.
    pub(crate) armed_at: Time,
    /// The time at which congestion control, which paces packets, allows the next one.
    pub(crate) pace_at: Time,
    reverse: ReverseWatch,
}

impl Qp {
    /// Peer index of an unconnected queue pair.
    pub(crate) const NO_PEER: u32 = u32::MAX;

    /// A queue pair in RESET.
    pub(crate) fn new(
        (qpn, slot): (Qpn, u32),
        pd: PdMember,
        psn: Psn,
        init: QpInit,
        paths: Paths,
    ) -> Result<Self, EndpointError> {
        let cwnd = Cwnd::Own(congestion::build(&init.cc, Time::ZERO)?);
        let receives = match &init.srq {
            Some(srq) => Receives::shared(Arc::clone(srq)),
            None => Receives::own(init.cap.max_recv_wr as usize),
        };
        Ok(Self {
            qpn,
            slot,
            pd,
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            sig_all: init.sig_all,
            state: QpState::Reset,
            psn,
            peer: Self::NO_PEER,
            member: 0,
            dest_qpn: Qpn::new(0),
            path_mtu: 256,
            dynamic_mpr: false,
            trimmable: false,
            extensions: Extensions::NONE,
            admitted: Admitted::by(Extensions::NONE),
            min_rnr_timer: 0,
            max_dest_rd_atomic: 0,
            rts: None,
            other_cc: None,
            requester: Requester::new(init.cap.max_send_wr as usize, idle_requester(psn, init.msn)),
            responder: Responder::new(receives, idle_responder()),
            paths,
            failure: None,
            path_events_reported: false,
            cwnd,
            waits_for_cwnd: false,
            left_cwnd: false,
            init: Box::new(init),
            counters: QpCounters::default(),
            moved: 0,
            granted_psns: 0,
            retired: 0,
            in_control_list: false,
            held: false,
            tx_slots: Default::default(),
            burst: 0,
            armed_at: Time::NEVER,
            pace_at: Time::NEVER,
            reverse: ReverseWatch::default(),
        })
    }

    pub(crate) fn connect(&mut self, cfg: &EndpointConfig, attr: &RtrAttr, peer: u32) {
        self.peer = peer;
        self.dest_qpn = Qpn::new(attr.dest_qpn);
        self.path_mtu = attr.path_mtu;
        self.dynamic_mpr = attr.dynamic_mpr && self.init.dynamic_mpr;
        self.trimmable = attr.trim_nack && cfg.trimming;
        self.extensions = attr.extensions & self.init.extensions;
        self.admitted = Admitted::by(self.extensions);
        self.min_rnr_timer = attr.min_rnr_timer;
        self.max_dest_rd_atomic = attr.max_dest_rd_atomic;
        self.responder.connect(ResponderSetup {
            initial_psn: attr.rq_psn,
            initial_msn: attr.rq_msn,
            own_msn: self.init.msn,
            window: u32::from(attr.mpr_dest) * 128,
            dynamic: self.dynamic_mpr,
            max_wimm: u32::from(attr.max_wimm_dest),
            sack_threshold: cfg.sack_threshold_bytes,
        });
        self.granted_psns = self.responder.granted_psns();
        self.state = QpState::Rtr;
    }

    pub(crate) fn ready_to_send(&mut self, cfg: &EndpointConfig, attr: &RtsAttr) {
        self.paths.restart_positions();
        self.psn = attr.psn.unwrap_or(self.psn);
        self.requester = Requester::new(
            self.init.cap.max_send_wr as usize,
            RequesterSetup {
                initial_psn: self.psn,
                initial_msn: self.init.msn,
                mtu: self.path_mtu,
                window: u32::from(attr.mpr) * 128,
                max_wimm: u32::from(attr.max_wimm),
                dynamic_mpr: self.dynamic_mpr,
                max_rd_atomic: if self.extensions.fetches() { attr.max_rd_atomic } else { 0 },
                rnr_retry: self.extensions.contains(Extensions::RNR).then_some(attr.rnr_retry),
                retry: policy(attr),
                probe_floor_ns: cfg.tail_probe_floor_ns,
                initial_reordering_ns: cfg.initial_reordering_ns,
                ev_mask: cfg.carried_ev_bits().0,
            },
        );
        self.requester.expect_evs(self.paths.states().count());
        self.rts = Some(*attr);
        self.state = QpState::Rts;
    }

    /// These congestion control settings with the values that the connection determines.
    pub(crate) fn cc_config(&self, cc: &CcConfig) -> CcConfig {
        let mtu_bytes = Requester::counted(Opcode::WriteMiddle, self.path_mtu);
        CcConfig { mtu_bytes, trimming: cc.trimming && self.trimmable, ..cc.clone() }
    }

    /// Sets new retry attributes, in RTS.
    pub(crate) fn set_retry(&mut self, retry: RetryAttr) {
        if let Some(rts) = &mut self.rts {
            *rts = rts.with_retry(retry);
            self.requester.set_retry(policy(rts));
        }
    }

    /// Whether packets from the peer are processed.
    #[inline]
    pub(crate) const fn receives(&self) -> bool {
        matches!(self.state, QpState::Rtr | QpState::Rts)
    }

    pub(crate) fn set_ports(&mut self, local: PlaneSet, peer: PlaneSet) {
        self.paths.set_local_ports(local);
        self.paths.set_peer_ports(peer);
    }

    /// Gives the queue pair the port states of both sides. Packets in flight on planes that close count as lost.
    pub(crate) fn refresh_ports(&mut self, cx: &mut Cx, now: Time) -> Wakes {
        let Some(peer) = cx.peers.get(self.peer) else { return Wakes::NONE };
        let (old, new) = (self.paths.ports(), (cx.peers.ports_up, peer.reachability.open()));
        if old == new {
            return Wakes::NONE;
        }
        self.set_ports(new.0, new.1);
        let lost = old.0.0 & old.1.0 & !(new.0.0 & new.1.0);
        if lost != 0 && self.state == QpState::Rts {
            let (requester, mut env) = self.send_context(&mut cx.cwnds, &mut cx.counters);
            requester.planes_lost(now, PlaneSet(lost), &mut env);
        }
        Wakes::CONTROL.when(self.responder.has_pending_acks()) | Wakes::DATA | Wakes::CWND | Wakes::ARM
    }

    pub(crate) fn status(&self, cwnds: &SharedCwnds) -> QpStatus {
        let cc = self.cwnd.get(cwnds);
        QpStatus {
            state: self.state,
            counters: self.counters,
            smoothed_rtt_ns: self.requester.smoothed_rtt_ns(),
            min_rtt_ns: self.requester.min_rtt_ns(),
            cwnd_bytes: cc.cwnd(),
            inflight_bytes: cc.inflight(),
            send_outstanding: self.requester.queued() as u32,
            granted_psns: self.responder.granted_psns(),
        }
    }
}

const fn policy(attr: &RtsAttr) -> RetryPolicy {
    RetryPolicy {
        timeout_ns: attr.timeout_ns(),
        linear: attr.linear_retries,
        exponential: attr.exponential_retries,
    }
}

fn idle_requester(psn: Psn, msn: Msn) -> RequesterSetup {
    RequesterSetup {
        initial_psn: psn,
        initial_msn: msn,
        mtu: 256,
        window: 0,
        max_wimm: 0,
        dynamic_mpr: false,
        rnr_retry: None,
        max_rd_atomic: 0,
        retry: RetryPolicy { timeout_ns: 0, linear: 0, exponential: 0 },
        probe_floor_ns: 0,
        initial_reordering_ns: 0,
        ev_mask: 0,
    }
}

fn idle_responder() -> ResponderSetup {
    ResponderSetup {
        initial_psn: Psn::new(0),
        initial_msn: Msn::new(0),
        own_msn: Msn::new(0),
        window: 0,
        dynamic: false,
        max_wimm: 0,
        sack_threshold: u32::MAX,
    }
}
