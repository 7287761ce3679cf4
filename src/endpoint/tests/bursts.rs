//! Several packets in one call.

use super::super::transmit::Origin;
use super::*;
use crate::requester::Requester;
use crate::wire::Opcode;

/// Two queue pairs of an endpoint with two ports, and as many requests of one packet each as asked for.
struct Two {
    endpoint: Endpoint,
    now: Time,
    qpns: [Qpn; 2],
    frames: Vec<Transmit>,
    wr: SendWr,
}

impl Two {
    fn new(quantum: u32, adjust: impl Fn(&mut QpInit)) -> Self {
        let cfg = EndpointConfig { quantum, ..EndpointConfig::new((1..=2).map(port).collect()) };
        let mut endpoint = Endpoint::new(cfg).unwrap();
        let pd = endpoint.alloc_pd();
        let key = endpoint.register(pd, Region::alloc_at(4096, 0x1000).unwrap(), Access::LOCAL_READ).unwrap();
        let now = Time(1_000);
        let qpns = [0, 1].map(|_| {
            let mut init = QpInit::new(pd, CqId(0), CqId(1));
            adjust(&mut init);
            let qpn = endpoint.create_qp(init).unwrap();
            let peer = [11, 12].map(|last| PortAddr { ip: [10, 0, 0, last].into(), mac: [4; 6] });
            let path_mtu = endpoint.qp_info(qpn).unwrap().mtu;
            let rtr = RtrAttr { path_mtu, ..rtr_to(peer.to_vec(), 4791) };
            to_rts(&mut endpoint, now, qpn, rtr);
            qpn
        });
        Self { endpoint, now, qpns, frames: vec![Transmit::default(); 64], wr: write(key.lkey) }
    }

    fn post(&mut self, which: usize, requests: usize) {
        (0..requests).for_each(|_| self.endpoint.post_send(self.now, self.qpns[which], self.wr).unwrap());
    }

    /// What a burst of at most so many frames has, with so much room on the two ports: of each packet, whose it is and
    /// which port it goes to.
    fn burst(&mut self, most: usize, rooms: [usize; 2]) -> Vec<(usize, u8)> {
        let mut room = PortRoom::default();
        (0..).zip(rooms).for_each(|(port, packets)| room.set(port, packets));
        let before = self.endpoint.next_ticket;
        let filled = self.endpoint.transmit_burst(self.now, &mut room, &mut self.frames[..most]);
        let sent = &self.frames[..filled];
        let tickets =
            sent.iter().filter(|out| matches!(out.origin, Origin::Data { .. })).map(|out| out.ticket);
        assert!(tickets.eq(before..self.endpoint.next_ticket), "consecutive");
        for port in [0, 1] {
            let packets = sent.iter().filter(|out| out.port == port).count();
            assert!(packets <= rooms[usize::from(port)]);
            assert_eq!(room.free().contains(port), packets < rooms[usize::from(port)]);
        }
        sent.iter().map(|out| (self.owner(out), out.port)).collect()
    }

    fn owner(&self, out: &Transmit) -> usize {
        let Origin::Data { slot, .. } = out.origin else { return 9 };
        self.qpns.iter().position(|&qpn| self.endpoint.slot_of(qpn) == Some(slot)).unwrap()
    }

    fn owners(&mut self, most: usize, rooms: [usize; 2]) -> Vec<usize> {
        self.burst(most, rooms).into_iter().map(|(owner, _)| owner).collect()
    }
}

const WIDE: [usize; 2] = [1_000; 2];

/// A turn that a burst cuts short goes on in the next.
#[test]
fn a_burst_is_filled_from_queue_pairs_in_turn() {
    let mut two = Two::new(3, |_| {});
    two.post(0, 7);
    two.post(1, 4);
    assert_eq!(two.owners(8, WIDE), [0, 0, 0, 1, 1, 1, 0, 0]);
    assert_eq!(two.owners(8, WIDE), [0, 1, 0], "7 and 4 in all");
    assert!(two.owners(8, WIDE).is_empty());
    for (which, packets) in [(0, 7), (1, 4)] {
        let counters = two.endpoint.qp_status(two.qpns[which]).unwrap().counters;
        let tx_bytes = packets * 64;
        assert_eq!(counters, QpCounters { tx_packets: packets, tx_bytes, ..QpCounters::default() });
    }
    let counters = two.endpoint.counters();
    assert_eq!((counters.tx_data, counters.tx_data_bytes), (11, 11 * 64));
}

#[test]
fn a_burst_keeps_to_the_room_of_each_port() {
    let mut two = Two::new(32, |_| {});
    two.post(0, 20);
    assert!(two.burst(64, [0, 0]).is_empty());
    assert!(two.burst(0, WIDE).is_empty());
    assert_eq!(two.burst(64, [2, 1]).len(), 3);
    assert_eq!(two.burst(64, [0, 4]), [(0, 1); 4]);
    assert_eq!(two.burst(64, [2, 0]), [(0, 0); 2]);
    assert_eq!(two.burst(5, WIDE).len(), 5);
    let last = two.burst(64, WIDE);
    assert_eq!(last.len(), 6);
    assert!([0, 1].iter().all(|port| last.contains(&(0, *port))), "{last:?}");
}

/// A queue pair that can send no more leaves the rest of the burst to the next.
#[test]
fn others_fill_what_one_leaves_of_a_burst() {
    let window = 3 * u64::from(Requester::counted(Opcode::WriteMiddle, 4096));
    let limit = |init: &mut QpInit| {
        let nscc = NsccOverrides { max_cwnd_bytes: Some(window), ..NsccOverrides::default() };
        init.cc = CcConfig { nscc, ..CcConfig::new(100_000_000_000, 12_000, 4096) };
    };
    let mut two = Two::new(32, limit);
    two.wr.local.len = 1024;
    two.post(0, 50);
    two.post(1, 50);
    let sent = two.owners(64, WIDE);
    let first = sent.iter().take_while(|&&owner| owner == 0).count();
    assert!((3..50).contains(&first), "{sent:?}");
    assert_eq!(sent[first..], vec![1; first], "as many as its window takes");
    assert!(two.owners(64, WIDE).is_empty());

    // One that may use the other port only.
    let mut two = Two::new(32, |init| init.path = PathConfig { min_active: 1, ..init.path.clone() });
    assert!(two.endpoint.deny_plane(two.qpns[0], 1));
    two.post(0, 4);
    two.post(1, 4);
    assert_eq!(two.burst(64, [0, 64]), [(1, 1); 4]);
    assert_eq!(two.burst(64, [3, 0]), [(0, 0); 3]);
}

/// Whatever goes first takes its share of the room.
#[test]
fn answers_repairs_and_packets_given_back_take_room() {
    let mut two = Two::new(32, |_| {});
    let mut back = Transmit::default();
    back.port = 1;
    (0..3).for_each(|_| two.endpoint.unsent(&back));
    two.post(0, 4);
    assert_eq!(two.burst(64, [0, 2]), [(9, 1); 2]);
    assert_eq!(two.burst(64, [0, 3]), [(9, 1), (0, 1), (0, 1)]);
    assert_eq!(two.burst(64, WIDE).len(), 2);

    while two.endpoint.senders.no_repairs() {
        two.now = two.endpoint.next_timeout();
        two.endpoint.on_timeout(two.now);
    }
    two.post(1, 4);
    let sent = two.burst(64, [0, 2]);
    assert_eq!(sent, [(0, 1), (1, 1)]);
    assert_eq!(two.endpoint.counters().tx_tail_probes, 1);
    assert_eq!(two.owners(64, WIDE), [1; 3]);
}

#[test]
fn room_is_set_and_taken_port_by_port() {
    let mut room = PortRoom::default();
    assert_eq!(room.free(), PortMask(0));
    room.set(3, 2);
    room.set(31, 1 << 20);
    room.set(32, 1);
    assert_eq!(room.free(), PortMask(1 << 3 | 1 << 31));
    room.take(3);
    room.take(32);
    assert_eq!(room.free(), PortMask(1 << 3 | 1 << 31));
    room.take(3);
    assert_eq!(room.free(), PortMask(1 << 31));
    (0..1_000).for_each(|_| room.take(31));
    assert_eq!(room.free(), PortMask(1 << 31), "room for more packets than can be told is room for many");
    room.set(31, 0);
    assert_eq!(room.free(), PortMask(0));
}
