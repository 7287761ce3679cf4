//! Windows that pace packets, and planes of them that are closed while others are open.

use super::*;
use crate::congestion::{AckSample, Controller, Flight};
use crate::requester::Requester;
use crate::wire::Aeth;
use crate::wire::Opcode;

const PLANES: u8 = 2;
/// Nominal size of a full packet.
const FULL: u64 = Requester::counted(Opcode::WriteMiddle, 1024) as u64;
const US: u64 = 1_000;
const MS: u64 = 1_000_000;

/// Queue pairs to one peer over two planes, whose windows limit what is in flight on each.
struct Pairs {
    endpoint: Endpoint,
    now: Time,
    qpns: Vec<Qpn>,
    wr: SendWr,
}

impl Pairs {
    fn new(pairs: usize, shared: bool) -> Self {
        let ports = (1..=PLANES).map(port).collect();
        let mut endpoint =
            Endpoint::new(EndpointConfig { quantum: 1, ..EndpointConfig::new(ports) }).unwrap();
        let (now, pd) = (Time(MS), endpoint.alloc_pd());
        let key = endpoint.register(pd, Region::alloc_at(4096, 0x1000).unwrap(), Access::LOCAL_READ).unwrap();
        let connect = |_| {
            let path = PathConfig { active: 4, backup: 0, min_active: 1, ..PathConfig::new(1) };
            let cc = CcConfig { shared, ..CcConfig::for_software(100_000_000_000, 50_000, 4096) };
            let init = QpInit { path, cc, ..QpInit::new(pd, CqId(0), CqId(1)) };
            let qpn = endpoint.create_qp(init).unwrap();
            let peer = [11, 12].map(|last| PortAddr { ip: [10, 0, 0, last].into(), mac: [4; 6] });
            let rtr = RtrAttr { trim_nack: false, ..rtr_to(peer.to_vec(), 4791) };
            to_rts(&mut endpoint, now, qpn, rtr);
            qpn
        };
        let qpns = (0..pairs).map(connect).collect();
        let mut wr = write(key.lkey);
        wr.local.len = 1024;
        Self { endpoint, now, qpns, wr }
    }

    fn slot(&self, pair: usize) -> u32 {
        self.endpoint.slot_of(self.qpns[pair]).unwrap()
    }

    fn cc(&mut self, pair: usize) -> &mut Controller {
        let slot = self.slot(pair);
        let qp = self.endpoint.qps.get_mut(slot).unwrap();
        qp.cwnd.get_mut(&mut self.endpoint.cx.cwnds)
    }

    fn post(&mut self, pair: usize, writes: usize) {
        for _ in 0..writes {
            self.endpoint.post_send(self.now, self.qpns[pair], self.wr).unwrap();
        }
    }

    /// Has a round trip and losses leave less than this of the window of each plane. What that did to the pace has passed.
    fn shrink(&mut self, pair: usize, packets: u64, rtt: u64) {
        let now = self.now;
        let cc = self.cc(pair);
        for plane in 0..PLANES {
            let mut at = now.0;
            let mut last = cc.cwnd();
            let others = last - 10 * FULL;
            let measured = Flight { plane, bytes: 1, sent_at: now };
            cc.on_send(&measured);
            cc.on_arrival(&measured);
            cc.on_ack(&AckSample { rtt_ns: Some(rtt), plane, ..AckSample::new(now, 1) });
            while last - others > packets * FULL {
                let lost = Flight { plane, bytes: FULL, sent_at: Time(at + 1) };
                cc.on_send(&lost);
                at += 2;
                cc.on_loss(Time(at), &lost, true);
                last = cc.cwnd();
            }
        }
        assert_eq!(cc.inflight(), 0);
        self.now = now.after(100 * rtt);
    }

    fn transmit(&mut self, free: u32) -> bool {
        self.endpoint.transmit(self.now, PlaneSet(free), &mut Transmit::default())
    }

    fn sent(&self, pair: usize) -> u64 {
        self.endpoint.qp_status(self.qpns[pair]).unwrap().counters.tx_packets
    }

    /// The peer has all that this queue pair sent.
    fn acknowledge(&mut self, pair: usize) {
        let (slot, sent) = (self.slot(pair), self.sent(pair));
        let qp = self.endpoint.qps.get_mut(slot).unwrap();
        let psn = qp.requester.psn(sent - 1);
        let now = self.now;
        self.endpoint.with_qp(slot, |qp, cx| qp.on_ack(cx, now, psn, &Aeth::ack(0)));
    }

    fn tail_probes(&self) -> u64 {
        self.endpoint.counters().tx_tail_probes
    }
}

#[test]
fn a_paced_queue_pair_sends_again_at_its_time_without_an_answer() {
    let mut host = Pairs::new(1, false);
    assert!(host.endpoint.deny_plane(host.qpns[0], 1));
    host.shrink(0, 7, 100 * US);
    host.post(0, 4);
    for sent in 1..=4 {
        assert!(host.transmit(0b11));
        assert!(!host.transmit(0b11), "too soon");
        assert_eq!(host.sent(0), sent);
        let now = host.now;
        let at = host.cc(0).opens_at(now);
        if sent == 4 {
            break;
        }
        // Four fifths of its part of a round trip.
        let gap = at.since(host.now);
        assert!((10 * US..30 * US).contains(&gap), "{gap}");
        assert_eq!(host.endpoint.next_timeout(), at);
        host.now = Time(at.0 - 1);
        host.endpoint.on_timeout(host.now);
        assert!(!host.transmit(0b11));
        host.now = host.endpoint.next_timeout();
        assert_eq!(host.now, at);
        host.endpoint.on_timeout(host.now);
    }
    assert_eq!(host.tail_probes(), 0);
    // With nothing to send, no time to send is waited for.
    assert!(host.endpoint.next_timeout().since(host.now) > 30 * US);
}

/// It would leave a packet that is only to be answered sooner than the window allows.
#[test]
fn a_tail_probe_does_not_jump_the_pace_of_a_lost_packet() {
    let mut host = Pairs::new(1, false);
    assert!(host.endpoint.deny_plane(host.qpns[0], 1));
    host.shrink(0, 1, 5 * MS);
    host.post(0, 1);
    assert!(host.transmit(0b11));
    let (slot, now) = (host.slot(0), host.now);
    let qp = host.endpoint.qps.get_mut(slot).unwrap();
    let (requester, mut env) = qp.send_context(&mut host.endpoint.cx.cwnds, &mut host.endpoint.cx.counters);
    requester.planes_lost(now, PlaneSet(0b01), &mut env);
    host.endpoint.apply(slot, Wakes::DATA | Wakes::CWND);
    let at = host.cc(0).opens_at(now);
    assert!(at.since(now) > 5 * MS && at != Time::NEVER);
    let mut rounds = 0;
    while host.now < at {
        assert!(!host.transmit(0b11), "{} before {at}", host.now);
        let next = host.endpoint.next_timeout();
        assert!(next > host.now && next <= at, "{next}");
        host.now = next;
        host.endpoint.on_timeout(host.now);
        rounds += 1;
    }
    assert!((2..50).contains(&rounds), "a tail probe was due meanwhile: {rounds}");
    assert!(host.transmit(0b11));
    assert_eq!((host.endpoint.counters().tx_retransmits, host.tail_probes()), (1, 0));
}

/// Without any answer, by the pace alone: nobody waits for ever, and time goes on.
#[test]
fn queue_pairs_that_share_a_paced_window_all_get_their_turns() {
    for (pairs, writes) in [(2, 3), (4, 2), (7, 1)] {
        let mut host = Pairs::new(pairs, true);
        host.shrink(0, 7, 100 * US);
        (0..pairs).for_each(|pair| host.post(pair, writes));
        let all = pairs * writes;
        let mut steps = 0;
        let mut order = Vec::new();
        while order.len() < all {
            let before: Vec<_> = (0..pairs).map(|pair| host.sent(pair)).collect();
            if host.transmit(0b11) {
                order.extend((0..pairs).find(|&pair| host.sent(pair) > before[pair]));
                continue;
            }
            let next = host.endpoint.next_timeout();
            assert!(next > host.now && next.since(host.now) < 100 * US, "{next} {order:?}");
            host.now = next;
            host.endpoint.on_timeout(host.now);
            steps += 1;
            assert!(steps < 10 * all, "{order:?}");
        }
        assert_eq!(host.tail_probes(), 0);
        // Nobody goes again before all have had a turn.
        for round in order.chunks(pairs) {
            assert_eq!(round.iter().collect::<BTreeSet<_>>().len(), pairs, "{order:?}");
        }
        assert!(!host.transmit(0b11));
    }
}

/// Two queue pairs share windows. The first fills plane 0, and the second can use no other.
fn beside_a_full_plane() -> Pairs {
    let mut host = Pairs::new(2, true);
    assert!(host.endpoint.deny_plane(host.qpns[1], 1));
    host.post(0, 11);
    let sent = (0..20).take_while(|_| host.transmit(0b01)).count();
    assert_eq!(sent, 10);
    assert!(host.transmit(0b10));
    let now = host.now;
    assert_eq!(host.cc(0).open_planes(FULL, now), 0b10);
    host.post(1, 3);
    host
}

#[test]
fn a_queue_pair_whose_only_plane_is_full_waits_without_spinning() {
    let mut host = beside_a_full_plane();
    let waits = |host: &Pairs| host.endpoint.counters().tx_cwnd_waits;
    let before = waits(&host);
    for _ in 0..10 {
        assert!(!host.transmit(0b11));
        // As when a packet of another queue pair is answered: there is room, but not for this one.
        let slot = host.slot(0);
        host.endpoint.qps.get_mut(slot).unwrap().cwnd.get_mut_may_open(&mut host.endpoint.cx.cwnds);
        host.endpoint.apply(slot, Wakes::DATA | Wakes::CWND);
    }
    assert_eq!((host.sent(1), waits(&host) - before), (0, 1));
    // Time passes up to the retransmission timer of the one with packets in flight, which then makes room.
    let mut host = beside_a_full_plane();
    let mut steps = 0;
    loop {
        while host.transmit(0b11) {}
        if host.endpoint.counters().timeouts > 0 {
            break;
        }
        // A tail probe takes its packet to the other plane.
        assert!(host.sent(1) <= host.tail_probes());
        assert!(steps < 100, "{} at {}", host.endpoint.next_timeout(), host.now);
        host.now = host.endpoint.next_timeout();
        host.endpoint.on_timeout(host.now);
        steps += 1;
    }
    assert!(host.sent(1) >= 3);
}

#[test]
fn a_queue_pair_whose_only_plane_was_full_goes_on_when_it_opens() {
    let mut host = beside_a_full_plane();
    assert!(!host.transmit(0b11));
    host.now = host.now.after(20 * US);
    host.acknowledge(0);
    assert_eq!((0..10).take_while(|_| host.transmit(0b11)).count(), 3);
    assert_eq!(host.sent(1), 3);
    // Windows of its own are no different.
    let mut host = Pairs::new(1, false);
    assert!(host.endpoint.deny_plane(host.qpns[0], 1));
    host.post(0, 13);
    assert_eq!((0..20).take_while(|_| host.transmit(0b11)).count(), 10);
    let now = host.now;
    assert_eq!(host.cc(0).open_planes(FULL, now), 0b10);
    assert!(host.endpoint.next_timeout() > host.now && host.endpoint.next_timeout() < Time::NEVER);
    host.now = host.now.after(20 * US);
    host.acknowledge(0);
    assert_eq!((0..20).take_while(|_| host.transmit(0b11)).count(), 3);
}

/// One behind it that can use the plane that is open does not wait for it.
#[test]
fn queue_pairs_that_can_use_an_open_plane_pass_one_that_cannot() {
    let mut host = beside_a_full_plane();
    assert!(!host.transmit(0b11));
    host.post(0, 5);
    assert_eq!((0..20).take_while(|_| host.transmit(0b11)).count(), 5);
    assert_eq!((host.sent(0), host.sent(1)), (16, 0));
}

/// Each packet leaves on a plane that has room, whatever the ports have.
#[test]
fn packets_take_the_planes_that_have_room() {
    let mut host = Pairs::new(1, false);
    host.post(0, 30);
    let mut ports = [0; 2];
    let mut out = Transmit::default();
    while host.endpoint.transmit(host.now, PlaneSet(0b11), &mut out) {
        ports[usize::from(out.port)] += 1;
    }
    assert_eq!(ports, [10, 10]);
}

/// Where the window is closed, a packet that never left serves as the tail loss probe, on any plane.
#[test]
fn a_packet_that_never_left_is_the_tail_probe_of_a_closed_window() {
    let mut host = Pairs::new(1, false);
    host.post(0, 1);
    let mut out = Transmit::default();
    assert!(host.endpoint.transmit(host.now, PlaneSet(0b11), &mut out));
    host.endpoint.unsent(&out);
    let (now, window) = (host.now, host.cc(0).cwnd());
    for plane in 0..PLANES {
        host.cc(0).on_send(&Flight { plane, bytes: window, sent_at: now });
    }
    assert!(!host.transmit(0b11), "the window is closed");
    assert_eq!(host.cc(0).opens_at(now), Time::NEVER);
    while !host.transmit(0b11) {
        host.now = host.endpoint.next_timeout();
        assert!(host.now < now.after(10 * MS), "no probe");
        host.endpoint.on_timeout(host.now);
    }
    assert_eq!(host.endpoint.counters().tx_data, 1);
}
