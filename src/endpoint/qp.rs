//! One queue pair: its two halves, its paths, and its state machine.

use std::sync::Arc;

use crate::congestion::{self, CcConfig};
use crate::memory::PdMember;
use crate::path::{Paths, PlaneSet};
use crate::requester::{Requester, RequesterSetup, RetryPolicy};
use crate::responder::{Receives, Responder, ResponderSetup, Trigger};
use crate::time::Time;
use crate::wire::{Ev, Msn, Opcode, Psn, Qpn};

use super::attr::{CqId, QpInit, QpState, RetryAttr, RtrAttr, RtsAttr};
use super::config::EndpointConfig;
use super::cwnd::{Cwnd, SharedCwnds};
use super::error::EndpointError;
use super::senders::Place;

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
    /// Congestion window, bytes; `u64::MAX` without congestion control. Of all who share it.
    pub cwnd_bytes: u64,
    /// Bytes in flight as congestion control counts them, of all who share the window.
    pub inflight_bytes: u64,
    /// Send work requests not complete.
    pub send_outstanding: u32,
    /// PSN range granted to the peer now, see [`Limits::window_budget_psns`](super::Limits::window_budget_psns).
    pub granted_psns: u32,
}

#[derive(Debug)]
pub(super) struct Qp {
    pub(super) qpn: Qpn,
    pub(super) pd: PdMember,
    pub(super) send_cq: CqId,
    pub(super) recv_cq: CqId,
    pub(super) sig_all: bool,
    pub(super) state: QpState,
    pub(super) init: Box<QpInit>,
    pub(super) psn: Psn,
    pub(super) peer: u32,
    /// Its place in the list of the peer's queue pairs.
    pub(super) member: u32,
    pub(super) dest_qpn: Qpn,
    pub(super) path_mtu: u32,
    pub(super) dynamic_mpr: bool,
    pub(super) trimmable: bool,
    /// What it was brought to RTS with, and what of it has been changed since.
    pub(super) rts: Option<RtsAttr>,
    /// Congestion control that took the place of what it was made with.
    pub(super) other_cc: Option<Box<CcConfig>>,
    pub(super) requester: Requester,
    pub(super) responder: Responder,
    pub(super) paths: Paths,
    pub(super) cwnd: Cwnd,
    /// It stands in the queue of the window that it shares, and counts as listed for new data: it comes when it is its turn
    /// there.
    pub(super) waits_for_cwnd: bool,
    /// It has left the window that it shares until it makes progress again.
    pub(super) is_aside: bool,
    pub(super) counters: QpCounters,
    /// Packets sent and received when it was last visited.
    pub(super) moved: u64,
    /// The window granted when it was last visited.
    pub(super) granted_psns: u32,
    /// Send work requests that left the queue since the driver was last told.
    pub(super) retired: u32,
    /// How it failed, if it did.
    pub(super) failure: Option<Box<super::QpFailure>>,
    /// The driver was told of path events that it has not polled yet.
    pub(super) paths_told: bool,
    /// In the list of queue pairs that owe an answer or a probe.
    pub(super) in_control_list: bool,
    /// In the list of those that wait for ports to let go of payload.
    pub(super) held: bool,
    /// Its places in the lists of those that may send data, by [`List`](super::senders::List).
    pub(super) places: [Place; 2],
    /// The lane burst in which it sent last.
    pub(super) burst: u64,
    /// The earliest live entry of the timer heap.
    pub(super) armed_at: Time,
    /// Data came in since reverse paths were last considered.
    pub(super) inbound: bool,
    pub(super) reverse_check_at: Time,
    /// When congestion control, which spaces packets out, lets the next one leave.
    pub(super) pace_at: Time,
    /// Bytes that had come in when they were last considered for much of it.
    pub(super) refreshed_bytes: u64,
    /// The last repeat of a packet that had arrived, until a path for answers is found; and whether the cumulative
    /// acknowledgement covered it.
    pub(super) unheard: Option<(Trigger, bool)>,
}

impl Qp {
    /// Peer index of an unconnected queue pair.
    pub(super) const NO_PEER: u32 = u32::MAX;

    /// A queue pair in RESET.
    pub(super) fn new(
        qpn: Qpn,
        pd: PdMember,
        psn: Psn,
        init: QpInit,
        paths: Paths,
    ) -> Result<Self, EndpointError> {
        let cwnd = Cwnd::Own(congestion::build(&init.cc, Time::ZERO)?);
        let receives = match &init.srq {
            Some(srq) => Receives::Shared(Arc::clone(srq)),
            None => Receives::own(init.cap.max_recv_wr as usize),
        };
        Ok(Self {
            qpn,
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
            rts: None,
            other_cc: None,
            requester: Requester::new(init.cap.max_send_wr as usize, idle_requester(psn, init.msn)),
            responder: Responder::new(receives, idle_responder()),
            paths,
            failure: None,
            paths_told: false,
            cwnd,
            waits_for_cwnd: false,
            is_aside: false,
            init: Box::new(init),
            counters: QpCounters::default(),
            moved: 0,
            granted_psns: 0,
            retired: 0,
            in_control_list: false,
            held: false,
            places: Default::default(),
            burst: 0,
            armed_at: Time::NEVER,
            inbound: false,
            reverse_check_at: Time::NEVER,
            pace_at: Time::NEVER,
            refreshed_bytes: 0,
            unheard: None,
        })
    }

    pub(super) fn connect(&mut self, cfg: &EndpointConfig, attr: &RtrAttr, peer: u32) {
        self.peer = peer;
        self.dest_qpn = Qpn::new(attr.dest_qpn);
        self.path_mtu = attr.path_mtu;
        self.dynamic_mpr = attr.dynamic_mpr && self.init.dynamic_mpr;
        self.trimmable = attr.trim_nack && cfg.trimming;
        self.responder.connect(ResponderSetup {
            initial_psn: attr.rq_psn,
            initial_msn: attr.rq_msn,
            window: u32::from(attr.mpr_dest) * 128,
            dynamic: self.dynamic_mpr,
            max_wimm: u32::from(attr.max_wimm_dest),
            sack_threshold: cfg.sack_threshold_bytes,
        });
        self.granted_psns = self.responder.granted_psns();
        self.state = QpState::Rtr;
    }

    pub(super) fn ready_to_send(&mut self, cfg: &EndpointConfig, attr: &RtsAttr) {
        self.paths.restart_positions();
        self.requester = Requester::new(
            self.init.cap.max_send_wr as usize,
            RequesterSetup {
                initial_psn: self.psn,
                initial_msn: self.init.msn,
                mtu: self.path_mtu,
                window: u32::from(attr.mpr) * 128,
                max_wimm: u32::from(attr.max_wimm),
                dynamic_mpr: self.dynamic_mpr,
                retry: policy(attr),
                probe_floor_ns: cfg.tail_probe_floor_ns,
                initial_reordering_ns: cfg.initial_reordering_ns,
                ev_mask: cfg.entropy.carried(Ev(u32::MAX), cfg.ports.iter().all(|port| port.ip.is_ipv6())).0,
            },
        );
        self.requester.expect_evs(self.paths.states().count());
        self.rts = Some(*attr);
        self.state = QpState::Rts;
    }

    /// Congestion control with these settings, as the connection dictates some of them.
    pub(super) fn cc_config(&self, cc: &CcConfig) -> CcConfig {
        let mtu_bytes = Requester::counted(Opcode::WriteMiddle, self.path_mtu);
        CcConfig { mtu_bytes, trimming: cc.trimming && self.trimmable, ..cc.clone() }
    }

    /// Other retry attributes, in RTS.
    pub(super) fn set_retry(&mut self, retry: RetryAttr) {
        if let Some(rts) = &mut self.rts {
            *rts = rts.with_retry(retry);
            self.requester.set_retry(policy(rts));
        }
    }

    /// Whether packets from the peer are taken in.
    #[inline]
    pub(super) const fn receives(&self) -> bool {
        matches!(self.state, QpState::Rtr | QpState::Rts)
    }

    pub(super) fn set_ports(&mut self, local: PlaneSet, peer: PlaneSet) {
        self.paths.set_local_ports(local);
        self.paths.set_peer_ports(peer);
    }

    /// When the queue pair's timers want to run.
    #[inline]
    pub(super) fn next_timeout(&self) -> Time {
        if !self.receives() {
            return Time::NEVER;
        }
        // Listed, it is asked for probes whenever there is room, and armed again when it leaves the list.
        let paths = if self.in_control_list { self.paths.next_expiry() } else { self.paths.next_timeout() };
        self.requester.next_timeout().min(paths).min(self.reverse_check_at).min(self.pace_at)
    }

    pub(super) fn status(&self, cwnds: &SharedCwnds) -> QpStatus {
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
        window: 0,
        dynamic: false,
        max_wimm: 0,
        sack_threshold: u32::MAX,
    }
}
