//! Two endpoints joined by nothing but a buffer: what the benchmarks measure.
#![allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "shared by benchmarks"
)]

use std::net::Ipv6Addr;
use std::sync::Arc;

use spindrift::endpoint::{
    CqId, Endpoint, EndpointConfig, Event, LocalPort, QpCap, QpInfo, QpInit, QpModify, RtrAttr, RtsAttr,
    Transmit,
};
use spindrift::memory::{Access, MrKey, PdId, Region};
use spindrift::path::PlaneSet;
use spindrift::pmd::{MacAddr, RxFrame, RxOrigin};
use spindrift::time::Time;
use spindrift::wire::{Msn, Psn, Qpn, icrc};
use spindrift::work::{RemoteAddr, SendOp, SendWr, Sge};

/// A frame as it lies on the wire.
pub struct Frame {
    pub port: u8,
    pub bytes: Vec<u8>,
}

/// One side.
pub struct Side {
    pub endpoint: Endpoint,
    pub pd: PdId,
    pub region: Arc<Region>,
    pub key: MrKey,
}

impl Side {
    pub fn new(side: u16, icrc: bool, region_len: usize, sack_threshold_bytes: u32) -> Self {
        Self::with(side, region_len, |cfg| EndpointConfig { icrc, sack_threshold_bytes, ..cfg })
    }

    /// With other settings.
    pub fn with(side: u16, region_len: usize, adjust: impl FnOnce(EndpointConfig) -> EndpointConfig) -> Self {
        let ports = (0..4)
            .map(|plane| LocalPort {
                ip: Ipv6Addr::new(0xfd00, plane, 0, 0, 0, 0, 0, side).into(),
                mac: MacAddr([2, 0, 0, 0, plane as u8, side as u8]),
                max_frame: 9014,
                source_ports: None,
                same_path_batch: 1,
            })
            .collect();
        let cfg = EndpointConfig { seed: u64::from(side).into(), ..EndpointConfig::new(ports) };
        let mut endpoint = Endpoint::new(adjust(cfg)).unwrap();
        let pd = endpoint.alloc_pd();
        let region = Region::alloc(region_len).unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let key = endpoint.register(pd, region.clone(), access).unwrap();
        Self { endpoint, pd, region, key }
    }

    pub fn create_qp(&mut self, depth: u32) -> Qpn {
        let cap = QpCap { max_send_wr: depth, max_recv_wr: depth, ..QpCap::default() };
        self.endpoint.create_qp(QpInit { cap, ..QpInit::new(self.pd, CqId(0), CqId(0)) }).unwrap()
    }

    pub fn connect(&mut self, ours: Qpn, peer: &Side, theirs: Qpn, mtu: u32) {
        self.connect_at(Time::ZERO, ours, peer, theirs, mtu);
    }

    pub fn connect_at(&mut self, now: Time, ours: Qpn, peer: &Side, theirs: Qpn, mtu: u32) {
        let rtr = rtr(&peer.endpoint.qp_info(theirs).unwrap(), mtu);
        self.endpoint.modify_qp(now, ours, QpModify::Init).unwrap();
        self.endpoint.modify_qp(now, ours, QpModify::Rtr(Box::new(rtr))).unwrap();
        self.endpoint.modify_qp(now, ours, QpModify::Rts(RtsAttr::default())).unwrap();
    }

    /// Sends everything that is ready into `frames`, at most `max`.
    #[inline(never)]
    pub fn transmit(&mut self, now: Time, max: usize, frames: &mut Vec<Frame>) {
        let mut out = Transmit::default();
        for _ in 0..max {
            if !self.endpoint.transmit(now, PlaneSet::ALL, &mut out) {
                return;
            }
            let payload = self.endpoint.payload(&out);
            let mut bytes = Vec::with_capacity(128 + payload.len());
            bytes.extend_from_slice(out.head());
            payload.append_to(&mut bytes, usize::MAX);
            let crc =
                if self.endpoint.config().icrc { icrc::compute(out.l3(), payload, &[]) } else { [0; 4] };
            bytes.extend_from_slice(&crc);
            frames.push(Frame { port: out.port, bytes });
        }
    }

    pub fn receive(&mut self, now: Time, frames: &[Frame]) {
        for frame in frames {
            self.endpoint.receive(now, frame.port, &RxFrame::whole(RxOrigin::Ethernet, &frame.bytes));
        }
    }

    pub fn completions(&mut self) -> usize {
        std::iter::from_fn(|| self.endpoint.poll_event())
            .filter(|event| matches!(event, Event::Completion { .. }))
            .count()
    }
}

/// How to connect to a peer's queue pair.
pub fn rtr(info: &QpInfo, mtu: u32) -> RtrAttr {
    RtrAttr {
        dest_qpn: info.qpn,
        rq_psn: Psn::new(info.psn),
        rq_msn: Msn::new(info.msn),
        path_mtu: mtu,
        mpr_dest: 8,
        max_wimm_dest: 128,
        dynamic_mpr: false,
        trim_nack: true,
        ports: info.ports.clone(),
        udp_port: info.udp_port,
        extensions: info.extensions,
        min_rnr_timer: RtrAttr::MIN_RNR_TIMER,
        max_dest_rd_atomic: info.max_rd_atomic,
    }
}

/// A connected pair and a virtual clock.
pub struct Pair {
    pub a: Side,
    pub b: Side,
    pub qa: Qpn,
    pub qb: Qpn,
    pub now: Time,
}

impl Pair {
    pub fn new(mtu: u32, icrc: bool, region_len: usize) -> Self {
        // One SACK every four packets whatever the MTU, as at 4096 bytes with the default threshold.
        let threshold = mtu.max(1024) * 4;
        let a = Side::new(1, icrc, region_len, threshold);
        let b = Side::new(2, icrc, region_len, threshold);
        Self::of(a, b, mtu)
    }

    /// Connects the two.
    pub fn of(mut a: Side, mut b: Side, mtu: u32) -> Self {
        let (qa, qb) = (a.create_qp(128), b.create_qp(128));
        a.connect(qa, &b, qb, mtu);
        b.connect(qb, &a, qa, mtu);
        Self { a, b, qa, qb, now: Time(1_000) }
    }

    pub fn write(&self, len: u32) -> SendWr {
        SendWr {
            wr_id: 0,
            op: SendOp::Write,
            local: Sge { addr: self.a.region.iova(), len, lkey: self.a.key.lkey },
            remote: RemoteAddr { addr: self.b.region.iova(), rkey: self.b.key.rkey },
            signaled: true,
            fence: false,
        }
    }

    /// Lets time pass and carries packets both ways, `burst` at a time, until all is quiet.
    pub fn settle(&mut self, burst: usize) {
        loop {
            let (mut data, mut answers) = (Vec::new(), Vec::new());
            self.a.transmit(self.now, burst, &mut data);
            self.now = self.now + 1_000;
            self.b.receive(self.now, &data);
            self.b.transmit(self.now, usize::MAX, &mut answers);
            self.now = self.now + 1_000;
            self.a.receive(self.now, &answers);
            if data.is_empty() && answers.is_empty() {
                return;
            }
        }
    }
}
