//! A real responder whose peer is the test: it gets data packets with every field chosen, and what it answers is
//! read bit by bit.

use spindrift::counters::Counters;
use spindrift::endpoint::{CqId, EndpointConfig, Extensions, PortAddr, QpInfo, QpInit};
use spindrift::memory::{Access, MrKey, PdId, Region};
use spindrift::path::{EvSource, PathConfig};
use spindrift::wire::{
    Aeth, Bth, DataHead, Entropy, Ev, Meth, Msn, Neth, Opcode, Packet, Peth, Psn, Qpn, Reth, Seth, Tseth,
};

use crate::support::frame::{self, Envelope};
use crate::support::link::Link;
use crate::support::net::{Net, address, ports};
use crate::support::pair::{self, End, Patience};

pub(crate) const NODE: usize = 0;
pub(crate) const FIRST: Psn = Psn::new(0xff_fff8);
pub(crate) const PEER_QPN: Qpn = Qpn::new(0x0bad);
pub(crate) const LEN: u32 = 8;
/// What one packet counts for congestion control: payload, MRC headers, iCRC, and 40 bytes.
pub(crate) const NOMINAL: u32 = LEN + 36 + 4 + 40;
/// The class that the test's data has, and those that a switch gives to what it trims.
pub(crate) const DATA: u8 = 0b10;
pub(crate) const CE: u8 = 0b11;
pub(crate) const TRIMMED: u8 = 12;
pub(crate) const TRIMMED_LAST_HOP: u8 = 16;

/// A data packet of the test's: a message of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Data {
    pub(crate) n: i32,
    pub(crate) ack_req: bool,
    pub(crate) rtx: bool,
    pub(crate) timestamp: u16,
    pub(crate) ev: Ev,
    pub(crate) class: u8,
}

/// A plain packet: it asks for nothing.
pub(crate) fn data(n: i32) -> Data {
    let ev = Ev(0x4321_0000 + n.cast_unsigned() + 1);
    Data { n, ack_req: false, rtx: false, timestamp: 0x100 + n as u16, ev, class: DATA }
}

/// An answer as it left, with the BTH's `rtx` of a SACK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Sack(Seth, bool),
    Nack(Neth),
    Ack(i32, Aeth),
}

pub(crate) struct Receiver {
    pub(crate) net: Net,
    pd: PdId,
    pub(crate) qp: End,
    pub(crate) key: MrKey,
}

pub(crate) fn psn(n: i32) -> Psn {
    FIRST.add(n.cast_unsigned())
}

impl Receiver {
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    pub(crate) fn with(adjust: impl Fn(&mut EndpointConfig)) -> Self {
        Self::of(adjust, |_| {})
    }

    /// With settings of the endpoint and of its queue pair.
    pub(crate) fn of(adjust: impl Fn(&mut EndpointConfig), adjust_qp: impl Fn(&mut QpInit)) -> Self {
        let mut net = Net::new(1, vec![Link::clean(1_000)]);
        let mut cfg = EndpointConfig::new(ports(true, NODE, 1, 4300));
        adjust(&mut cfg);
        net.add(cfg);
        let pd = net.endpoint(NODE).alloc_pd();
        let region = Region::alloc_at(4096, 0).unwrap();
        let key = net.endpoint(NODE).register(pd, region, Access::REMOTE_WRITE).unwrap();
        let qp = connect(&mut net, pd, adjust_qp);
        Self { net, pd, qp, key }
    }

    /// One more queue pair, to the same peer.
    pub(crate) fn add_qp(&mut self, adjust: impl Fn(&mut QpInit)) -> End {
        connect(&mut self.net, self.pd, adjust)
    }

    fn frame(&self, data: &Data) -> Vec<u8> {
        let bth = Bth {
            ack_req: data.ack_req,
            rtx: data.rtx,
            ts: true,
            ..Bth::new(Opcode::WriteOnly, self.qp.qpn, psn(data.n))
        };
        let head = DataHead {
            bth,
            meth: Meth { rqmsn: Msn::new(0), msn: Msn::new(data.n as u16) },
            tseth: Some(Tseth::new(data.timestamp)),
            reth: Reth { va: 0, rkey: self.key.rkey, dma_len: LEN },
            imm: None,
            operands: None,
        };
        envelope(data.ev, data.class).seal(&Packet::Data { head, payload: &[0x5a; LEN as usize], pad: &[] })
    }

    /// Gives packets without letting the responder answer in between.
    pub(crate) fn give(&mut self, packets: &[Data]) {
        self.give_silently(packets);
        self.net.pump(NODE);
    }

    /// Gives packets without letting the responder answer.
    pub(crate) fn give_silently(&mut self, packets: &[Data]) {
        for data in packets {
            let frame = self.frame(data);
            self.receive(&frame);
        }
    }

    /// Gives what a switch left of a packet. The header says which class it put it in.
    pub(crate) fn give_trimmed(&mut self, data: &Data, dscp: u8) {
        let mut frame = self.frame(data);
        frame::trim(&mut frame, dscp);
        self.receive(&frame);
        self.net.pump(NODE);
    }

    pub(crate) fn give_probe(&mut self, peth: Peth, ev: Ev, class: u8) {
        let bth = Bth::new(Opcode::Probe, self.qp.qpn, Psn::new(0));
        let frame = envelope(ev, class).seal(&Packet::Probe { bth, peth });
        self.receive(&frame);
        self.net.pump(NODE);
    }

    fn receive(&mut self, frame: &[u8]) {
        use spindrift::pmd::{RxFrame, RxOrigin};
        let now = self.net.now;
        self.net.endpoint(NODE).receive(now, 0, &RxFrame::whole(RxOrigin::Ethernet, frame));
    }

    /// What left since the last look.
    pub(crate) fn answers(&mut self) -> Vec<Answer> {
        let frames = core::mem::take(&mut self.net.astray);
        frames.iter().map(|(_, bytes)| answer(bytes)).collect()
    }

    /// The one SACK that left since the last look, and nothing else.
    #[track_caller]
    pub(crate) fn sack(&mut self) -> Seth {
        match self.answers()[..] {
            [Answer::Sack(seth, _)] => seth,
            ref other => panic!("one SACK, not {other:?}"),
        }
    }

    /// What every SACK of this responder says beside its report: everything before `end` arrived.
    pub(crate) fn seth(&self, end: i32) -> Seth {
        Seth {
            spdcid: self.qp.qpn.low16(),
            dpdcid: PEER_QPN.low16(),
            cack: psn(end - 1),
            mpr: 3,
            sack_offset: 1,
            ..Seth::default()
        }
    }

    pub(crate) fn counters(&mut self) -> Counters {
        self.net.endpoint(NODE).counters().clone()
    }
}

fn connect(net: &mut Net, pd: PdId, adjust: impl Fn(&mut QpInit)) -> End {
    let path = PathConfig {
        active: 1,
        backup: 0,
        min_active: 1,
        source: EvSource::Explicit(vec![vec![Ev(0x1000_1000)]].into()),
        ..PathConfig::new(1)
    };
    let mut init = QpInit { path, max_mtu: 256, mpr_dest: 3, ..QpInit::new(pd, CqId(0), CqId(1)) };
    adjust(&mut init);
    let qp = pair::create(net, NODE, init);
    let ours = net.endpoint(NODE).qp_info(qp.qpn).unwrap();
    let theirs = QpInfo {
        qpn: PEER_QPN.get(),
        psn: FIRST.get(),
        msn: 0,
        ports: vec![PortAddr { ip: address(true, 9, 0), mac: [6; 6] }],
        extensions: Extensions::NONE,
        ..ours
    };
    pair::bring_up(net, qp, &theirs, Patience::default());
    net.astray.clear();
    qp
}

fn envelope(ev: Ev, traffic_class: u8) -> Envelope {
    let entropy = Entropy { src_port: (ev.0 >> 16) as u16, flow_label: ev.0 & 0xffff };
    Envelope { entropy, traffic_class, ..Envelope::new(address(true, 9, 0), address(true, NODE, 0)) }
}

fn answer(bytes: &[u8]) -> Answer {
    let (meta, packet) = frame::decode(bytes).unwrap();
    assert_eq!(meta.traffic_class, 46 << 2, "the control class, not ECN-capable");
    let to_peer = |bth: Bth| assert_eq!(bth.dest_qpn, PEER_QPN);
    match packet {
        Packet::Sack { bth, seth } => {
            to_peer(bth);
            assert_eq!(bth.psn, seth.cack, "MRC 1.0 table 7-10");
            Answer::Sack(seth, bth.rtx)
        }
        Packet::Nack { bth, neth } => {
            to_peer(bth);
            assert_eq!(bth.psn, neth.nack_psn, "MRC 1.0 table 7-10");
            Answer::Nack(neth)
        }
        Packet::Ack { bth, aeth } => {
            to_peer(bth);
            Answer::Ack(bth.psn.distance(FIRST), aeth)
        }
        other => panic!("a responder sends no {other:?}"),
    }
}
