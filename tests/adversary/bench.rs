//! A victim with two queue pairs: one to a healthy peer, one to an attacker who speaks the wire format by hand.

use std::net::IpAddr;
use std::sync::Arc;

use spindrift::counters::Counters;
use spindrift::endpoint::{
    CqId, EndpointConfig, Event, Extensions, FailReason, PortAddr, QpInfo, QpInit, Violation,
};
use spindrift::memory::{Access, MrKey, Payload, PdId, Region};
use spindrift::pmd::{RxFrame, RxOrigin};
use spindrift::time::Time;
use spindrift::wire::{Bth, DataHead, Meth, Msn, NakCode, Opcode, Packet, Psn, Qpn, Reth, Tseth};
use spindrift::work::{RecvWr, RemoteAddr, SendOp, SendWr, Sge, Wc};

use crate::support::frame::{self, Envelope};
use crate::support::link::Link;
use crate::support::net::{Net, address, ports};
use crate::support::pair::{self, End, Patience};
use crate::support::rand::Rng;

pub(crate) const VICTIM: usize = 0;
pub(crate) const PEER: usize = 1;
const PLANES: u8 = 2;
pub(crate) const MTU: u32 = 256;
/// Where the victim's target region starts.
pub(crate) const IOVA: u64 = 0x7000_0000;
pub(crate) const LEN: usize = 4096;
/// The queue pair number that the attacker says it has, and the PSN and message number it starts with.
pub(crate) const ATTACKER_QPN: Qpn = Qpn::new(0x0bad);
pub(crate) const FIRST_PSN: Psn = Psn::new(0xff_fffe);
pub(crate) const FIRST_MSN: Msn = Msn::new(0xffff);
/// Writes with immediate that the victim takes.
pub(crate) const MAX_WIMM: u16 = 4;

/// A region with its keys, and what it should hold.
pub(crate) struct Memory {
    pub(crate) region: Arc<Region>,
    pub(crate) key: MrKey,
    pub(crate) expected: Vec<u8>,
}

pub(crate) struct Bench {
    pub(crate) net: Net,
    pub(crate) pd: PdId,
    /// The victim's queue pair that the attacker is connected to.
    pub(crate) qp: End,
    /// What the attacker may write to.
    pub(crate) target: Memory,
    healthy: [End; 2],
    healthy_memory: [Memory; 2],
    before: Counters,
    sent: u64,
}

pub(crate) fn attacker_ip(port: u8) -> IpAddr {
    address(true, 9, port)
}

/// From the attacker's address to the victim's.
pub(crate) fn envelope() -> Envelope {
    Envelope::new(attacker_ip(0), address(true, VICTIM, 0))
}

pub(crate) fn stranger_ip() -> IpAddr {
    address(true, 17, 0)
}

pub(crate) fn config(node: usize) -> EndpointConfig {
    EndpointConfig { seed: (40 + node as u64).into(), ..EndpointConfig::new(ports(true, node, PLANES, 4300)) }
}

pub(crate) fn init(pd: PdId) -> QpInit {
    QpInit { max_mtu: MTU, max_wimm_dest: MAX_WIMM, ..QpInit::new(pd, CqId(0), CqId(1)) }
}

/// What the attacker tells of itself.
pub(crate) fn attacker_info(ours: &QpInfo) -> QpInfo {
    QpInfo {
        qpn: ATTACKER_QPN.get(),
        psn: FIRST_PSN.get(),
        msn: FIRST_MSN.get(),
        ports: (0..PLANES).map(|port| PortAddr { ip: attacker_ip(port), mac: [6; 6] }).collect(),
        extensions: Extensions::NONE,
        ..ours.clone()
    }
}

pub(crate) fn region(
    net: &mut Net,
    node: usize,
    pd: PdId,
    (iova, len): (u64, usize),
    access: Access,
) -> Memory {
    let region = Region::alloc_at(len, iova).unwrap();
    let expected = Rng::new(iova).bytes(len);
    region.write_at(0, &expected).unwrap();
    let key = net.endpoint(node).register(pd, region.clone(), access).unwrap();
    Memory { region, key, expected }
}

impl Memory {
    pub(crate) fn check(&self, what: &str) {
        assert_eq!(
            self.region.first_difference(0, &self.expected).unwrap(),
            None,
            "{what}: memory was written"
        );
    }
}

impl Bench {
    pub(crate) fn new() -> Self {
        Self::with(|_| {}, Patience::default())
    }

    /// With other settings of the victim, and another patience of the attacked queue pair.
    pub(crate) fn with(adjust: impl Fn(&mut EndpointConfig), patience: Patience) -> Self {
        Self::offering(adjust, patience, Extensions::NONE, |_| {})
    }

    /// The attacker offers these extensions, and `init` changes the attacked queue pair.
    pub(crate) fn offering(
        adjust: impl Fn(&mut EndpointConfig),
        patience: Patience,
        extensions: Extensions,
        change: impl Fn(&mut QpInit),
    ) -> Self {
        let mut net = Net::new(1, vec![Link::clean(5_000); PLANES.into()]);
        for node in [VICTIM, PEER] {
            let mut cfg = config(node);
            if node == VICTIM {
                adjust(&mut cfg);
            }
            net.add(cfg);
        }
        let pds = [VICTIM, PEER].map(|node| net.endpoint(node).alloc_pd());
        let healthy = [VICTIM, PEER].map(|node| pair::create(&mut net, node, init(pds[node])));
        pair::connect(&mut net, healthy[0], healthy[1], Patience::default());
        let both = Access::REMOTE_WRITE;
        let healthy_memory =
            [VICTIM, PEER].map(|node| region(&mut net, node, pds[node], (0x1000, 20_000), both));
        let target = region(&mut net, VICTIM, pds[VICTIM], (IOVA, LEN), both);
        let mut attacked = init(pds[VICTIM]);
        change(&mut attacked);
        let qp = pair::create(&mut net, VICTIM, attacked);
        let ours = net.endpoint(VICTIM).qp_info(qp.qpn).unwrap();
        let theirs = QpInfo { extensions, ..attacker_info(&ours) };
        pair::bring_up(&mut net, qp, &theirs, patience);
        net.astray.clear();
        net.take_events(VICTIM);
        let mut bench = Self {
            net,
            pd: pds[VICTIM],
            qp,
            target,
            healthy,
            healthy_memory,
            before: Counters::default(),
            sent: 0,
        };
        bench.mark();
        bench
    }

    /// Counters are compared with what they are now from here on.
    pub(crate) fn mark(&mut self) {
        self.before = self.net.endpoint(VICTIM).counters().clone();
        self.net.astray.clear();
    }

    /// What the victim counted since, by name.
    pub(crate) fn counted(&self) -> Vec<(&'static str, u64)> {
        let now = self.net.nodes[VICTIM].endpoint.counters();
        let pairs = self.before.iter().zip(now.iter());
        pairs.filter(|(old, new)| old.2 != new.2).map(|(old, new)| (old.0, new.2 - old.2)).collect()
    }

    /// The victim's count under `name` since the mark.
    pub(crate) fn count(&self, name: &str) -> u64 {
        self.counted().iter().find(|row| row.0 == name).map_or(0, |row| row.1)
    }

    #[track_caller]
    pub(crate) fn expect_counts(&self, what: &str, expected: &[(&'static str, u64)]) {
        assert_eq!(self.counted(), expected, "{what}");
    }

    pub(crate) fn give(&mut self, packet: &Packet<'_>) {
        let bytes = envelope().seal(packet);
        self.net.inject(VICTIM, 0, &bytes);
    }

    /// Gives without letting the victim answer.
    pub(crate) fn give_silently(&mut self, port: u8, bytes: &[u8]) {
        let now = self.net.now;
        self.net.endpoint(VICTIM).receive(now, port, &RxFrame::whole(RxOrigin::Ethernet, bytes));
    }

    /// Gives a packet whose bytes from `cut` on, or counted from the end if negative, lie elsewhere.
    pub(crate) fn give_in_parts(&mut self, packet: &Packet<'_>, cut: isize) {
        let bytes = envelope().seal(packet);
        let cut = if cut < 0 { bytes.len().saturating_add_signed(cut) } else { cut.unsigned_abs() };
        let rest = [Payload::from(&bytes[cut..])];
        let (now, frame) =
            (self.net.now, RxFrame { origin: RxOrigin::Ethernet, data: &bytes[..cut], rest: &rest });
        self.net.endpoint(VICTIM).receive(now, 0, &frame);
        self.net.pump(VICTIM);
    }

    /// A write that would be accepted as the attacker's first packet.
    pub(crate) fn write(&self) -> DataHead {
        DataHead {
            bth: Bth { ack_req: true, ts: true, ..Bth::new(Opcode::WriteOnly, self.qp.qpn, FIRST_PSN) },
            meth: Meth { rqmsn: Msn::new(0), msn: FIRST_MSN },
            tseth: Some(Tseth::new(0x1234)),
            reth: Reth { va: IOVA, rkey: self.target.key.rkey, dma_len: 8 },
            imm: None,
            operands: None,
        }
    }

    /// Every port of the victim goes down or comes up.
    pub(crate) fn all_links(&mut self, up: bool) {
        let now = self.net.now;
        for port in 0..PLANES {
            self.net.endpoint(VICTIM).port_link(now, port, up);
        }
    }

    /// What the victim sent to the attacker since the last look.
    pub(crate) fn answers(&mut self) -> Vec<String> {
        let frames = core::mem::take(&mut self.net.astray);
        frames.iter().map(|(_, bytes)| brief(&frame::decode(bytes).unwrap().1)).collect()
    }

    pub(crate) fn failures(&mut self) -> Vec<(Qpn, FailReason)> {
        let events = self.net.take_events(VICTIM);
        let failed = |event: &Event| match event {
            Event::QpFailed { qpn, reason } => Some((*qpn, *reason)),
            _ => None,
        };
        events.iter().filter_map(failed).collect()
    }

    /// The rule that the attacker broke, as the failed queue pair tells, and with which packet.
    pub(crate) fn violation(&mut self) -> Option<(Psn, Violation)> {
        let failure = self.net.endpoint(VICTIM).qp_failure(self.qp.qpn)?;
        failure.psn.zip(failure.violation)
    }

    pub(crate) fn completions(&mut self) -> Vec<Wc> {
        completions(&self.net.take_events(VICTIM))
    }

    /// Posts a write of `len` bytes from the victim to the attacker.
    pub(crate) fn post_to_attacker(&mut self, wr_id: u64, len: u32) {
        let (now, qpn, lkey) = (self.net.now, self.qp.qpn, self.target.key.lkey);
        let wr = SendWr {
            wr_id,
            op: SendOp::Write,
            local: Sge { addr: IOVA, len, lkey },
            remote: RemoteAddr { addr: 0, rkey: 1 },
            signaled: true,
            fence: false,
        };
        self.net.endpoint(VICTIM).post_send(now, qpn, wr).unwrap();
        self.net.pump(VICTIM);
    }

    /// The attacked memory is as it was, and a transfer with the healthy peer works both ways.
    #[track_caller]
    pub(crate) fn check_healthy(&mut self, what: &str) {
        self.target.check(what);
        self.sent += 1;
        let wr_id = self.sent;
        for from in [0, 1] {
            self.transfer(from, wr_id);
        }
        let mut completed = Vec::new();
        let (start, healthy) = (self.net.now, self.healthy);
        self.net.run_until(|net| {
            for node in [VICTIM, PEER] {
                let new = completions(&net.take_events(node)).into_iter();
                completed.extend(new.filter(|wc| wc.qpn == healthy[node].qpn).map(|wc| (node, wc)));
            }
            completed.len() >= 4 || net.now.since(start) > 10_000_000_000
        });
        let good = completed.iter().filter(|(_, wc)| wc.status.is_success() && wc.wr_id == wr_id).count();
        assert_eq!(good, 4, "{what}: the healthy pair got {completed:?}");
        for memory in &self.healthy_memory {
            memory.check(what);
        }
    }

    fn transfer(&mut self, from: usize, wr_id: u64) {
        let to = 1 - from;
        let (now, source, end) = (self.net.now, &self.healthy_memory[from], self.healthy[from]);
        let wr = SendWr {
            wr_id,
            op: SendOp::WriteWithImm(wr_id as u32),
            local: Sge { addr: source.region.iova() + 100, len: 5_000, lkey: source.key.lkey },
            remote: RemoteAddr {
                addr: self.healthy_memory[to].region.iova() + 10_000,
                rkey: self.healthy_memory[to].key.rkey,
            },
            signaled: true,
            fence: false,
        };
        let bytes = source.expected[100..5_100].to_vec();
        self.healthy_memory[to].expected[10_000..15_000].copy_from_slice(&bytes);
        self.net.endpoint(to).post_recv(self.healthy[to].qpn, RecvWr::empty(wr_id)).unwrap();
        self.net.endpoint(from).post_send(now, end.qpn, wr).unwrap();
        self.net.pump(from);
    }
}

/// An answer in few words.
fn brief(packet: &Packet<'_>) -> String {
    match packet {
        Packet::Ack { bth, aeth } => format!("{:?} psn {:06x}", aeth.kind(), bth.psn.get()),
        Packet::Sack { seth, .. } if seth.pr => format!("Sack answers probe {:04x}", seth.probe_id()),
        Packet::Sack { seth, .. } => format!("Sack cack {:06x} bits {:x}", seth.cack.get(), seth.bitmap),
        Packet::Nack { neth, .. } => format!("Nack {} psn {:06x}", neth.reason, neth.nack_psn.get()),
        Packet::Data { head, .. } => format!("{:?} psn {:06x}", head.bth.opcode, head.bth.psn.get()),
        Packet::EndpointResponse { bth, .. } => format!("Response {:04x}", bth.psn.get()),
        other => format!("{other:?}"),
    }
}

pub(crate) fn nak(code: NakCode, psn: Psn) -> String {
    format!("Nak({code:?}) psn {:06x}", psn.get())
}

pub(crate) fn completions(events: &[Event]) -> Vec<Wc> {
    let completed = |event: &Event| match event {
        Event::Completion { wc, .. } => Some(*wc),
        _ => None,
    };
    events.iter().filter_map(completed).collect()
}

/// A patience that gives up soon.
pub(crate) const SHORT: Patience = Patience { timeout: 8, linear: 2, exponential: 3 };

/// Time of the first packet to the attacker since the mark.
pub(crate) fn first_sent(bench: &Bench) -> Time {
    bench.net.astray.first().expect("a packet").0
}
