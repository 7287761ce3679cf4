//! A real requester whose peer is the test: it reads what is sent packet by packet, and builds every field of what
//! comes back.

use std::net::IpAddr;
use std::sync::Arc;

use spindrift::congestion::{CcConfig, NsccOverrides};
use spindrift::counters::Counters;
use spindrift::endpoint::{
    CqId, EndpointConfig, Event, Extensions, FailReason, PortAddr, PostError, QpCap, QpInfo, QpInit,
    QpStatus, RtrAttr, RtsAttr,
};
use spindrift::memory::{Access, MrKey, PdId, Region};
use spindrift::path::{EvSource, EvState, EvStatus, PathConfig, PathCounters};
use spindrift::pmd::{RxFrame, RxOrigin};
use spindrift::time::Time;
use spindrift::wire::{Aeth, Bth, Ev, NackReason, Neth, Opcode, Packet, Peth, Psn, Qpn, Seth};
use spindrift::work::{GatherWr, RemoteAddr, SendOp, SendWr, Sge, Wc};

use crate::support::frame::{self, Envelope};
use crate::support::link::Link;
use crate::support::net::{Net, address, ports};
use crate::support::pair::{self, End, Patience};

const NODE: usize = 0;
pub(crate) const MTU: u32 = 256;
/// What congestion control counts for one packet: payload, MRC headers, iCRC, and 40 bytes.
pub(crate) const PACKET: u64 = 256 + 36 + 4 + 40;
/// The congestion window at the start.
pub(crate) const FULL: u64 = 100_000;
/// PSNs wrap in every test that sends more than 16 packets.
pub(crate) const FIRST: Psn = Psn::new(0xff_fff0);
pub(crate) const PEER_QPN: Qpn = Qpn::new(0x0bad);
/// Far from every timer of these tests.
pub(crate) const RTT: u64 = 10_000;

pub(crate) struct Setup {
    pub(crate) planes: u8,
    /// Entropy values in use and in reserve on each plane.
    pub(crate) active: u16,
    pub(crate) backup: u16,
    pub(crate) min_active: u16,
    pub(crate) cc: CcConfig,
    pub(crate) patience: Patience,
    pub(crate) tail_probe_floor_ns: u64,
    pub(crate) initial_reordering_ns: u64,
    pub(crate) dynamic_mpr: bool,
    /// Window that the peer grants, in units of 128.
    pub(crate) mpr: u8,
    /// Extensions of MRC that the peer has.
    pub(crate) extensions: Extensions,
    pub(crate) rnr_retry: u8,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            planes: 1,
            active: 8,
            backup: 8,
            min_active: 1,
            cc: cc(NsccOverrides::default()),
            patience: Patience { timeout: 14, linear: 7, exponential: 7 },
            tail_probe_floor_ns: 100_000,
            initial_reordering_ns: 0,
            dynamic_mpr: false,
            mpr: 8,
            extensions: Extensions::NONE,
            rnr_retry: RtsAttr::MAX_RNR,
        }
    }
}

/// NSCC on a path of [`RTT`] with a window of [`FULL`].
pub(crate) fn cc(nscc: NsccOverrides) -> CcConfig {
    let nscc = NsccOverrides { max_cwnd_bytes: Some(FULL), ..nscc };
    CcConfig { nscc, ..CcConfig::new(100_000_000_000, RTT, 4096) }
}

/// A data packet as it left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) at: Time,
    /// Its number, from 0.
    pub(crate) n: i32,
    pub(crate) ev: Ev,
    pub(crate) plane: u8,
    pub(crate) rtx: bool,
    pub(crate) ack_req: bool,
    pub(crate) timestamp: u16,
    /// DSCP and ECN bits.
    pub(crate) class: u8,
}

/// A reliability probe as it left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SentProbe {
    pub(crate) at: Time,
    pub(crate) ev: Ev,
    pub(crate) plane: u8,
    pub(crate) bth: Bth,
    pub(crate) peth: Peth,
}

pub(crate) struct Sender {
    pub(crate) net: Net,
    pub(crate) qp: End,
    pub(crate) pd: PdId,
    pub(crate) key: MrKey,
    pub(crate) region: Arc<Region>,
    posted: u64,
    data: Vec<Sent>,
    probes: Vec<SentProbe>,
}

pub(crate) fn peer_ip(plane: u8) -> IpAddr {
    address(true, 9, plane)
}

/// The entropy values of a plane: their number tells it.
fn evs(plane: u8, count: u16) -> Vec<Ev> {
    (0..u32::from(count)).map(|n| Ev(((u32::from(plane) + 1) << 28) | (0x1_0001 * (n + 1)))).collect()
}

impl Sender {
    pub(crate) fn new(setup: Setup) -> Self {
        let Setup { planes, .. } = setup;
        let mut net = Net::new(1, vec![Link::clean(1_000); planes.into()]);
        net.max_steps = 100_000;
        net.add(EndpointConfig {
            tail_probe_floor_ns: setup.tail_probe_floor_ns,
            initial_reordering_ns: setup.initial_reordering_ns,
            ..EndpointConfig::new(ports(true, NODE, planes, 4300))
        });
        let pd = net.endpoint(NODE).alloc_pd();
        let region = Region::alloc_at(1 << 20, 0).unwrap();
        let key = net.endpoint(NODE).register(pd, Arc::clone(&region), Access::REMOTE_WRITE).unwrap();
        let lists = (0..planes).map(|plane| evs(plane, setup.active + setup.backup)).collect::<Vec<_>>();
        let path = PathConfig {
            active: setup.active * u16::from(planes),
            backup: setup.backup * u16::from(planes),
            min_active: setup.min_active,
            source: EvSource::Explicit(lists.into()),
            ..PathConfig::new(planes)
        };
        let init = QpInit {
            path,
            cc: setup.cc,
            psn: Some(FIRST),
            max_mtu: MTU,
            cap: QpCap { max_send_wr: 400, max_send_sge: 5, ..QpCap::default() },
            dynamic_mpr: setup.dynamic_mpr,
            ..QpInit::new(pd, CqId(0), CqId(1))
        };
        let qp = pair::create(&mut net, NODE, init);
        let ours = net.endpoint(NODE).qp_info(qp.qpn).unwrap();
        let theirs = QpInfo {
            qpn: PEER_QPN.get(),
            mpr: setup.mpr,
            ports: (0..planes).map(|plane| PortAddr { ip: peer_ip(plane), mac: [6; 6] }).collect(),
            extensions: setup.extensions,
            ..ours
        };
        let rts = RtsAttr { rnr_retry: setup.rnr_retry, ..pair::rts_attr(&theirs, setup.patience) };
        pair::bring_up_as(&mut net, qp, &theirs, rts, RtrAttr::MIN_RNR_TIMER);
        net.astray.clear();
        Self { net, qp, pd, key, region, posted: 0, data: Vec::new(), probes: Vec::new() }
    }

    /// A sender that has just sent this many packets of one message, and what left.
    pub(crate) fn sending(setup: Setup, packets: u32) -> (Self, Vec<Sent>) {
        let mut sender = Self::new(setup);
        sender.post(packets);
        let sent = sender.sent();
        assert_eq!(sent.len(), packets as usize);
        assert!(sent.iter().zip(0..).all(|(packet, n)| packet.n == n && !packet.rtx), "{sent:?}");
        (sender, sent)
    }

    /// A write of this many full packets.
    pub(crate) fn post(&mut self, packets: u32) {
        self.queue(packets, SendOp::Write, true);
        self.go();
    }

    /// Posts a write of this many full packets without sending any.
    pub(crate) fn queue(&mut self, packets: u32, op: SendOp, signaled: bool) {
        let wr = SendWr {
            wr_id: self.posted,
            op,
            local: Sge { addr: 0, len: packets * MTU, lkey: self.key.lkey },
            remote: RemoteAddr { addr: 0, rkey: 1 },
            signaled,
            fence: false,
        };
        self.posted += 1;
        let (now, qpn) = (self.net.now, self.qp.qpn);
        self.net.endpoint(NODE).post_send(now, qpn, wr).unwrap();
    }

    /// Registers other memory with these bytes.
    pub(crate) fn memory(&mut self, bytes: Vec<u8>) -> Sge {
        let (len, pd) = (bytes.len() as u32, self.pd);
        let region = Region::from_vec(bytes).unwrap();
        let addr = region.iova();
        let key = self.net.endpoint(NODE).register(pd, region, Access::LOCAL_READ).unwrap();
        Sge { addr, len, lkey: key.lkey }
    }

    /// Posts a write of these elements without sending any of it.
    pub(crate) fn queue_gather(&mut self, local: &[Sge]) -> Result<(), PostError> {
        let remote = RemoteAddr { addr: 0, rkey: 1 };
        let wr =
            GatherWr { wr_id: self.posted, op: SendOp::Write, local, remote, signaled: true, fence: false };
        let (now, qpn) = (self.net.now, self.qp.qpn);
        self.net.endpoint(NODE).post_gather(now, qpn, wr).inspect(|()| self.posted += 1)
    }

    /// Requests that use these elements, each one.
    pub(crate) fn uses(&mut self, sges: &[Sge]) -> Vec<u32> {
        let memory = self.net.endpoint(NODE).memory();
        sges.iter().map(|sge| memory.uses(sge.lkey)).collect()
    }

    /// Sends what was queued.
    pub(crate) fn go(&mut self) {
        self.net.pump(NODE);
    }

    pub(crate) fn wait(&mut self, ns: u64) {
        self.net.run_for(ns);
    }

    /// The driver is away for this long: nothing is done until it comes back.
    pub(crate) fn away(&mut self, ns: u64) {
        let from = self.net.now;
        self.net.now = from.after(ns);
        let until = self.net.now;
        self.net.endpoint(NODE).on_driver_stall(from, until);
    }

    /// Data packets that left since the last look.
    pub(crate) fn sent(&mut self) -> Vec<Sent> {
        self.collect();
        core::mem::take(&mut self.data)
    }

    /// Their numbers alone.
    pub(crate) fn sent_numbers(&mut self) -> Vec<i32> {
        self.sent().iter().map(|packet| packet.n).collect()
    }

    /// The one data packet that left since the last look.
    #[track_caller]
    pub(crate) fn sent_one(&mut self) -> Sent {
        let sent = self.sent();
        assert_eq!(sent.len(), 1, "{sent:?}");
        sent[0]
    }

    /// Reliability probes that left since the last look.
    pub(crate) fn probes(&mut self) -> Vec<SentProbe> {
        self.collect();
        core::mem::take(&mut self.probes)
    }

    fn collect(&mut self) {
        for (at, bytes) in core::mem::take(&mut self.net.astray) {
            let (meta, packet) = frame::decode(&bytes).unwrap();
            let mode = self.net.endpoint(NODE).config().entropy;
            let ev = mode.extract(meta.src_port, meta.flow_label);
            let plane = (0..32).find(|&plane| peer_ip(plane) == meta.dst).unwrap();
            match packet {
                Packet::Data { head, .. } => self.data.push(Sent {
                    at,
                    n: head.bth.psn.distance(FIRST),
                    ev,
                    plane,
                    rtx: head.bth.rtx,
                    ack_req: head.bth.ack_req,
                    timestamp: head.tseth.unwrap().timestamp,
                    class: meta.traffic_class,
                }),
                Packet::Probe { bth, peth } => self.probes.push(SentProbe { at, ev, plane, bth, peth }),
                Packet::EndpointRequest { .. } | Packet::EndpointResponse { .. } => {}
                other => panic!("a requester sends no {other:?}"),
            }
        }
    }

    /// Hands a packet over on plane 0.
    pub(crate) fn give(&mut self, packet: &Packet<'_>) {
        self.give_on(0, packet);
    }

    pub(crate) fn give_on(&mut self, plane: u8, packet: &Packet<'_>) {
        let bytes = Envelope::new(peer_ip(plane), address(true, NODE, plane)).seal(packet);
        self.net.inject(NODE, plane, &bytes);
    }

    /// A SACK that says that everything before packet `end` has arrived and nothing else.
    pub(crate) fn seth(&self, end: i32) -> Seth {
        Seth {
            spdcid: PEER_QPN.low16(),
            dpdcid: self.qp.qpn.low16(),
            cack: psn(end - 1),
            mpr: 8,
            sack_offset: 1,
            ..Seth::default()
        }
    }

    /// A SACK as [`seth`](Self::seth), which `packet` made the peer send.
    pub(crate) fn answer(&self, packet: &Sent, end: i32) -> Seth {
        let mut seth = self.seth(end);
        seth.ack_psn_offset = (packet.n + 1 - end) as i16;
        seth.entropy = packet.ev;
        seth.cc.tx_timestamp = packet.timestamp;
        seth
    }

    pub(crate) fn sack(&mut self, seth: Seth) {
        self.give(&self.sack_packet(seth));
    }

    fn sack_packet(&self, seth: Seth) -> Packet<'static> {
        Packet::Sack { bth: Bth::new(Opcode::Sack, self.qp.qpn, seth.cack), seth }
    }

    /// A SACK that comes in while the sender cannot send.
    pub(crate) fn sack_silently(&mut self, seth: Seth) {
        let bytes = Envelope::new(peer_ip(0), address(true, NODE, 0)).seal(&self.sack_packet(seth));
        let now = self.net.now;
        let frame = RxFrame::whole(RxOrigin::Ethernet, &bytes);
        self.net.endpoint(NODE).receive(now, 0, &frame);
    }

    /// A transport acknowledgement of everything before packet `end`.
    pub(crate) fn ack(&mut self, end: i32, aeth: Aeth) {
        let bth = Bth::new(Opcode::Ack, self.qp.qpn, psn(end - 1));
        self.give(&Packet::Ack { bth, aeth });
    }

    pub(crate) fn nack(&mut self, packet: &Sent, reason: NackReason) {
        self.nack_with(packet, reason, 0);
    }

    /// An RNR NACK, with the code of a wait.
    pub(crate) fn rnr(&mut self, packet: &Sent, timer: u8) {
        self.nack_with(packet, NackReason::NoResource, timer);
    }

    fn nack_with(&mut self, packet: &Sent, reason: NackReason, vendor_info: u8) {
        let neth = Neth {
            vendor_info,
            spdcid: PEER_QPN.low16(),
            dpdcid: self.qp.qpn.low16(),
            tx_timestamp: packet.timestamp,
            ..Neth::new(reason, psn(packet.n), packet.ev)
        };
        let bth = Bth::new(Opcode::Nack, self.qp.qpn, neth.nack_psn);
        self.give(&Packet::Nack { bth, neth });
    }

    pub(crate) fn evs(&mut self) -> Vec<EvStatus> {
        let qpn = self.qp.qpn;
        self.net.endpoint(NODE).ev_states(qpn).unwrap().collect()
    }

    /// Every entropy value that is not as at the start, with its state and its losses.
    pub(crate) fn blamed(&mut self) -> Vec<(Ev, EvState, u32)> {
        let evs = self.evs().into_iter().map(|ev| (ev.ev, ev.state, ev.drop_count));
        evs.filter(|&(_, state, drops)| (state, drops) != (EvState::Good, 0)).collect()
    }

    pub(crate) fn active(&mut self) -> Vec<Ev> {
        self.evs().iter().filter(|ev| ev.active).map(|ev| ev.ev).collect()
    }

    pub(crate) fn status(&mut self) -> QpStatus {
        let qpn = self.qp.qpn;
        self.net.endpoint(NODE).qp_status(qpn).unwrap()
    }

    /// The congestion window, bytes.
    pub(crate) fn cwnd(&mut self) -> u64 {
        self.status().cwnd_bytes
    }

    /// What congestion control counts as under way, packets.
    pub(crate) fn inflight(&mut self) -> u64 {
        let bytes = self.status().inflight_bytes;
        assert_eq!(bytes % PACKET, 0);
        bytes / PACKET
    }

    pub(crate) fn paths(&mut self) -> PathCounters {
        let qpn = self.qp.qpn;
        *self.net.endpoint(NODE).path_counters(qpn).unwrap()
    }

    pub(crate) fn counters(&mut self) -> Counters {
        self.net.endpoint(NODE).counters().clone()
    }

    /// What completed since the last look, and how the queue pair failed if it did.
    pub(crate) fn ended(&mut self) -> (Vec<Wc>, Option<FailReason>) {
        let (mut completions, mut failure) = (Vec::new(), None);
        for event in self.net.take_events(NODE) {
            match event {
                Event::Completion { wc, .. } => completions.push(wc),
                Event::QpFailed { reason, .. } => failure = Some(reason),
                _ => {}
            }
        }
        (completions, failure)
    }
}

/// The PSN of packet `n`.
pub(crate) fn psn(n: i32) -> Psn {
    FIRST.add(n.cast_unsigned())
}

/// Two packets that took the same entropy value, one soon after the other.
#[track_caller]
pub(crate) fn same_path(sent: &[Sent]) -> (Sent, Sent) {
    let pair = sent.iter().find_map(|first| {
        let second = sent.iter().find(|second| second.n > first.n && second.ev == first.ev)?;
        Some((*first, *second))
    });
    pair.expect("more packets than entropy values")
}
