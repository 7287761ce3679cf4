//! Several queue pairs of one endpoint: who sends next.

use spindrift::congestion::{CcConfig, NsccOverrides};
use spindrift::endpoint::{CqId, EndpointConfig, PortAddr, QpInfo, QpInit, QpModify, QpState, Transmit};
use spindrift::memory::{Access, MrKey, PdId, Region};
use spindrift::path::{PathConfig, PlaneSet};
use spindrift::pmd::{RxFrame, RxOrigin};
use spindrift::wire::{Aeth, Bth, Ev, NackReason, Neth, Opcode, Packet, Psn, Qpn};
use spindrift::work::{RemoteAddr, SendOp, SendWr, Sge};

use crate::sender::{MTU, PACKET, peer_ip};
use crate::support::frame::{self, Envelope};
use crate::support::link::Link;
use crate::support::net::{Net, address, ports};
use crate::support::pair::{self, End, Patience};

pub(crate) const NODE: usize = 0;
const FIRST: Psn = Psn::new(0xff_fff0);
const QUANTUM: u32 = 4;
pub(crate) const FLOOR: u64 = 100_000;

/// A packet as it left: which queue pair's, its number, and whether it was sent before.
pub(crate) type Sent = (usize, i32, bool);

/// An endpoint with several queue pairs, which sends when it is told to.
pub(crate) struct Host {
    pub(crate) net: Net,
    pub(crate) pairs: Vec<End>,
    /// Whom each is connected to.
    peers: Vec<u8>,
    pd: PdId,
    key: MrKey,
}

fn peer_qpn(pair: usize) -> Qpn {
    Qpn::new(0x100 + pair as u32)
}

impl Host {
    /// Every queue pair has `packets` to send, to one peer.
    fn new(pairs: usize, packets: u32, cc: &CcConfig) -> Self {
        let mut host = Self::of((0..pairs).map(|_| (0, cc.clone())));
        (0..pairs).for_each(|pair| host.post(pair, packets));
        host
    }

    /// A queue pair for each of these peers, with that congestion control.
    pub(crate) fn of(pairs: impl IntoIterator<Item = (u8, CcConfig)>) -> Self {
        let mut net = Net::new(1, vec![Link::clean(1_000)]);
        let ports = ports(true, NODE, 1, 4300);
        net.add(EndpointConfig {
            quantum: QUANTUM,
            tail_probe_floor_ns: FLOOR,
            ..EndpointConfig::new(ports)
        });
        let pd = net.endpoint(NODE).alloc_pd();
        let region = Region::alloc_at(1 << 20, 0).unwrap();
        let key = net.endpoint(NODE).register(pd, region, Access::REMOTE_WRITE).unwrap();
        let mut host = Self { net, pairs: Vec::new(), peers: Vec::new(), pd, key };
        for (peer, cc) in pairs {
            host.add(peer, cc);
        }
        host
    }

    /// One more queue pair, for this peer.
    pub(crate) fn add(&mut self, peer: u8, cc: CcConfig) {
        let pair = self.pairs.len();
        let path = PathConfig { active: 8, backup: 0, ..PathConfig::new(1) };
        let init =
            QpInit { path, cc, psn: Some(FIRST), max_mtu: MTU, ..QpInit::new(self.pd, CqId(0), CqId(1)) };
        let end = pair::create(&mut self.net, NODE, init);
        let ours = self.net.endpoint(NODE).qp_info(end.qpn).unwrap();
        let theirs = QpInfo {
            qpn: peer_qpn(pair).get(),
            ports: vec![PortAddr { ip: peer_ip(peer), mac: [6; 6] }],
            ..ours
        };
        let patience = Patience { timeout: 14, linear: 7, exponential: 7 };
        pair::bring_up(&mut self.net, end, &theirs, patience);
        self.pairs.push(end);
        self.peers.push(peer);
    }

    pub(crate) fn post(&mut self, pair: usize, packets: u32) {
        let wr = SendWr {
            wr_id: 0,
            op: SendOp::Write,
            local: Sge { addr: 0, len: packets * MTU, lkey: self.key.lkey },
            remote: RemoteAddr { addr: 0, rkey: 1 },
            signaled: true,
            fence: false,
        };
        let (now, qpn) = (self.net.now, self.pairs[pair].qpn);
        self.net.endpoint(NODE).post_send(now, qpn, wr).unwrap();
    }

    /// The next data packet, if there is one.
    fn transmit(&mut self) -> Option<Sent> {
        let now = self.net.now;
        let mut out = Transmit::default();
        loop {
            let endpoint = self.net.endpoint(NODE);
            if !endpoint.transmit(now, PlaneSet::first(1), &mut out) {
                return None;
            }
            let bytes = frame::join(endpoint, &out);
            if let (_, Packet::Data { head, .. }) = frame::decode(&bytes).unwrap() {
                let pair = (head.bth.dest_qpn.get() - 0x100) as usize;
                return Some((pair, head.bth.psn.distance(FIRST), head.bth.rtx));
            }
        }
    }

    pub(crate) fn send(&mut self, packets: usize) -> Vec<Sent> {
        (0..packets).map_while(|_| self.transmit()).collect()
    }

    /// The peer asks for packet `n` of a queue pair again.
    pub(crate) fn nack(&mut self, pair: usize, n: i32) {
        let psn = FIRST.add(n as u32);
        let neth = Neth {
            spdcid: peer_qpn(pair).low16(),
            dpdcid: self.pairs[pair].qpn.low16(),
            tx_timestamp: (self.net.now.0 >> 7) as u16,
            ..Neth::new(NackReason::TrimmedLastHop, psn, Ev(0))
        };
        let packet = Packet::Nack { bth: Bth::new(Opcode::Nack, self.pairs[pair].qpn, psn), neth };
        self.give(pair, &packet);
    }

    /// The first `packets` packets of a queue pair have arrived.
    pub(crate) fn ack(&mut self, pair: usize, packets: u32) {
        let bth = Bth::new(Opcode::Ack, self.pairs[pair].qpn, FIRST.add(packets - 1));
        self.give(pair, &Packet::Ack { bth, aeth: Aeth::ack(0) });
    }

    fn give(&mut self, pair: usize, packet: &Packet<'_>) {
        let bytes = Envelope::new(peer_ip(self.peers[pair]), address(true, NODE, 0)).seal(packet);
        let now = self.net.now;
        let frame = RxFrame::whole(RxOrigin::Ethernet, &bytes);
        self.net.endpoint(NODE).receive(now, 0, &frame);
    }

    pub(crate) fn pass(&mut self, ns: u64) {
        self.net.now = self.net.now.after(ns);
        let now = self.net.now;
        self.net.endpoint(NODE).on_timeout(now);
    }
}

/// New packets `from..` of a queue pair.
pub(crate) fn new(pair: usize, from: i32, packets: i32) -> Vec<Sent> {
    (from..from + packets).map(|n| (pair, n, false)).collect()
}

/// With many queue pairs a turn comes rarely, and whoever waits for it with a loss waits for nothing else.
#[test]
fn a_repair_waits_for_no_turn() {
    let mut host = Host::new(3, 100, &CcConfig::none());
    assert_eq!(host.send(9), [new(0, 0, 4), new(1, 0, 4), new(2, 0, 1)].concat());
    host.nack(1, 2);
    host.nack(0, 1);
    host.nack(0, 3);
    assert_eq!(host.send(3), [(1, 2, true), (0, 1, true), (0, 3, true)]);
    assert_eq!(host.send(7), [new(2, 1, 3), new(0, 4, 4)].concat(), "the turns go on where they were");
}

/// Its first packet is an answer's worth, the rest of the burst is not.
#[test]
fn a_tail_probe_waits_for_no_turn() {
    let mut host = Host::new(3, 100, &CcConfig::none());
    assert_eq!(host.send(5), [new(0, 0, 4), new(1, 0, 1)].concat());
    host.pass(FLOOR);
    // New data at first, then copies.
    assert_eq!(host.send(4), [new(0, 4, 1), new(1, 1, 1), new(1, 2, 2)].concat());
    host.pass(FLOOR);
    assert_eq!(host.send(4), [vec![(0, 0, true), (1, 0, true)], new(1, 4, 1), new(2, 0, 1)].concat());
}

/// A peer that asks for everything again costs the others half of what could be sent, and not all.
#[test]
fn endless_repairs_leave_every_second_packet_to_others() {
    let mut host = Host::new(2, 1_000, &CcConfig::none());
    host.send(8);
    let mut sent = Vec::new();
    for _ in 0..400 {
        (0..4).for_each(|n| host.nack(0, n));
        sent.extend(host.send(1));
    }
    assert_eq!(sent.len(), 400);
    let repairs = sent.iter().filter(|&&(pair, _, again)| pair == 0 && again).count();
    assert!(sent[..QUANTUM as usize].iter().all(|&(_, _, again)| again), "{sent:?}");
    // What is not a repair is a turn of either: the first's own turns bring repairs too.
    let others = sent.iter().filter(|&&(pair, ..)| pair == 1).count();
    assert!((95..=105).contains(&others), "{repairs} repairs, {others} of the other queue pair");
    assert_eq!(sent.iter().filter(|&&(pair, ..)| pair == 0).count(), repairs);
}

/// Repairs that are ahead let the others in; once all are done, the next ones are first again.
#[test]
fn repairs_have_no_debt() {
    let mut host = Host::new(2, 1_000, &CcConfig::none());
    host.send(20);
    for round in 0..3 {
        // The second queue pair has a whole turn before it.
        (0..7).for_each(|n| host.nack(0, n));
        let sent = host.send(12);
        let who: Vec<_> = sent.iter().map(|&(pair, _, again)| (pair, again)).collect();
        let (repair, other) = ((0, true), (1, false));
        assert_eq!(who[..4], [repair; 4], "round {round}");
        assert_eq!(who[4..10], [other, repair, other, repair, other, repair], "round {round}");
        assert_eq!(who[10..], [other, (0, false)], "round {round}");
        host.send(3);
    }
}

/// Congestion control holds the repairs of one queue pair back: others go on, and the repairs follow when it lets them.
#[test]
fn repairs_that_may_not_leave_keep_nobody_back() {
    let nscc = NsccOverrides { max_cwnd_bytes: Some(4 * PACKET), ..NsccOverrides::default() };
    let cc = CcConfig { nscc, ..CcConfig::new(100_000_000_000, 10_000, 4096) };
    let mut host = Host::new(2, 100, &cc);
    let sent = host.send(100);
    assert!(sent.len() < 12, "{sent:?}");
    host.nack(0, 0);
    host.nack(0, 1);
    let again = host.send(100);
    assert!(again.iter().all(|&(pair, ..)| pair == 0) && again.len() <= 2, "{again:?}");
    host.pass(FLOOR);
    assert!(host.send(100).iter().any(|&(pair, _, again)| pair == 1 && again));
}

/// A queue pair that is destroyed, or starts over, with repairs to send.
#[test]
fn a_queue_pair_that_goes_takes_its_turn_along() {
    let mut host = Host::new(2, 100, &CcConfig::none());
    host.send(8);
    host.nack(0, 0);
    host.nack(1, 0);
    let (gone, reset) = (host.pairs[0].qpn, host.pairs[1].qpn);
    let now = host.net.now;
    host.net.endpoint(NODE).destroy_qp(gone).unwrap();
    let reset = host.net.endpoint(NODE).modify_qp(now, reset, QpModify::Reset).unwrap();
    assert_eq!(host.net.endpoint(NODE).qp_state(reset), Some(QpState::Reset));
    assert_eq!(host.send(10), []);
}
