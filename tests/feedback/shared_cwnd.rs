//! Congestion windows that the queue pairs to one peer share: decision 29.

use spindrift::congestion::{CcConfig, NsccOverrides};
use spindrift::endpoint::{QpModify, Transmit};
use spindrift::path::PlaneSet;
use spindrift::wire::Qpn;

use crate::sender::PACKET;
use crate::turns::{FLOOR, Host, NODE, new};

/// The retransmission timer of these queue pairs.
const TIMEOUT: u64 = 1024 << 14;

/// A window of so many packets that is shared.
fn window(packets: u64) -> CcConfig {
    let nscc = NsccOverrides { max_cwnd_bytes: Some(packets * PACKET), ..NsccOverrides::default() };
    CcConfig { nscc, shared: true, ..CcConfig::new(100_000_000_000, 10_000, 4096) }
}

fn alone(packets: u64) -> CcConfig {
    CcConfig { shared: false, ..window(packets) }
}

/// Queue pairs to one peer that share a window of eight packets, with twenty packets each to send.
fn sharing(pairs: usize) -> Host {
    let mut host = Host::of((0..pairs).map(|_| (0, window(8))));
    (0..pairs).for_each(|pair| host.post(pair, 20));
    host
}

impl Host {
    fn qpn(&self, pair: usize) -> Qpn {
        self.pairs[pair].qpn
    }

    /// Packets in flight in a queue pair's window, and how many the window has room for.
    fn window(&self, pair: usize) -> (u64, u64) {
        let status = self.net.nodes[NODE].endpoint.qp_status(self.qpn(pair)).unwrap();
        (status.inflight_bytes / PACKET, status.cwnd_bytes / PACKET)
    }

    fn modify(&mut self, pair: usize, change: QpModify) {
        let (now, qpn) = (self.net.now, self.qpn(pair));
        self.pairs[pair].qpn = self.net.endpoint(NODE).modify_qp(now, qpn, change).unwrap();
    }

    /// Who sends the next packets.
    fn senders(&mut self, packets: usize) -> Vec<usize> {
        self.send(packets).into_iter().map(|(pair, ..)| pair).collect()
    }
}

#[test]
fn queue_pairs_to_one_peer_share_a_window() {
    let mut host = sharing(3);
    assert_eq!(host.send(100), [new(0, 0, 4), new(1, 0, 4)].concat());
    assert_eq!([0, 1, 2].map(|pair| host.window(pair)), [(8, 8); 3]);
    let waits = |host: &Host| host.net.nodes[NODE].endpoint.counters().tx_cwnd_waits;
    assert_eq!(waits(&host), 3, "each is counted once, however often it is asked");
    assert_eq!((host.send(100), waits(&host)), (vec![], 3));
    // Who has waited for longest sends next, whoever was answered.
    host.ack(0, 2);
    assert_eq!((host.window(2), host.send(100)), ((6, 8), new(2, 0, 2)));
    host.ack(1, 4);
    assert_eq!(host.senders(100).len(), 4);
    assert_eq!(host.window(0), (8, 8));
}

/// Each time that one packet is answered, another leaves: all come equally often.
#[test]
fn all_who_share_a_window_come_equally_often() {
    const PAIRS: usize = 5;
    let mut host = Host::of((0..PAIRS).map(|_| (0, window(8))));
    (0..PAIRS).for_each(|pair| host.post(pair, 4_000));
    let mut arrived = [0; PAIRS];
    let mut sent = [0; PAIRS];
    let mut in_flight: std::collections::VecDeque<usize> = host.senders(100).into();
    for _ in 0..1_000 {
        let pair = in_flight.pop_front().unwrap();
        arrived[pair] += 1;
        host.ack(pair, arrived[pair]);
        let next = host.senders(100);
        assert_eq!(next.len(), 1);
        sent[next[0]] += 1;
        in_flight.extend(next);
    }
    assert!(sent.iter().all(|count| (180..=220).contains(count)), "{sent:?}");
}

#[test]
fn only_those_with_one_peer_and_the_same_settings_share() {
    let mut host = Host::of([
        (0, window(8)),
        (0, window(4)),
        (1, window(8)),
        (0, alone(8)),
        (0, window(8)),
        (0, CcConfig { shared: true, ..CcConfig::none() }),
    ]);
    (0..5).for_each(|pair| host.post(pair, 20));
    host.post(5, 9);
    let sent = host.senders(100);
    let count = |pair| sent.iter().filter(|&&sender| sender == pair).count();
    assert_eq!([1, 2, 3, 5].map(count), [4, 8, 8, 9]);
    assert_eq!(count(0) + count(4), 8);
    assert_eq!([0, 1, 2, 3, 4].map(|pair| host.window(pair)), [(8, 8), (4, 4), (8, 8), (8, 8), (8, 8)]);
}

/// Whatever ends a queue pair gives its part of the window to the others, and it is not waited for.
#[test]
fn who_ends_leaves_its_room_to_others() {
    for ends in 0..3 {
        let mut host = sharing(3);
        host.send(100);
        // The first has four in flight, the third has none and waits.
        for gone in [0, 2] {
            match ends {
                0 => host.modify(gone, QpModify::Error),
                1 => host.modify(gone, QpModify::Reset),
                _ => host.net.endpoint(NODE).destroy_qp(host.pairs[gone].qpn).unwrap(),
            }
        }
        assert_eq!((host.window(1), host.send(100)), ((4, 8), new(1, 4, 4)), "{ends}");
        host.ack(1, 8);
        assert_eq!((host.window(1), host.send(100)), ((0, 8), new(1, 8, 8)), "{ends}");
        if ends == 0 {
            // What it was last can still be seen.
            assert_eq!(host.window(0).1, 8);
        }
    }
}

/// The last one takes the window along: who comes after starts anew, and nothing is left behind.
#[test]
fn a_window_that_nobody_uses_is_forgotten() {
    let mut host = sharing(2);
    for round in 1..=3 {
        assert_eq!(host.send(100).len(), 8, "{round}");
        host.nack(2 * round - 2, 0);
        assert_eq!(host.window(2 * round - 1), (7, 7));
        (2 * round - 2..2 * round).for_each(|pair| host.modify(pair, QpModify::Error));
        (0..2).for_each(|_| host.add(0, window(8)));
        assert_eq!(host.window(2 * round), (0, 8));
        (2 * round..2 * round + 2).for_each(|pair| host.post(pair, 20));
        let endpoint = format!("{:?}", host.net.nodes[NODE].endpoint);
        assert_eq!(endpoint.matches("SharedCwnd {").count(), 1);
    }
}

/// Nor does it take others along, or keep those that come from joining them.
#[test]
fn a_window_that_is_forgotten_leaves_those_with_other_settings() {
    let mut host = Host::of([(0, window(8)), (0, window(4)), (0, window(6))]);
    (0..3).for_each(|pair| host.post(pair, 20));
    assert_eq!(host.send(100).len(), 8 + 4 + 6);
    host.net.endpoint(NODE).destroy_qp(host.pairs[0].qpn).unwrap();
    for (pair, packets) in [(3, 4), (4, 6), (5, 8)] {
        host.add(0, window(packets));
        assert_eq!(host.window(pair), (if packets == 8 { 0 } else { packets }, packets));
    }
}

/// As many are woken as there is room for, and not one for all of it.
#[test]
fn who_wait_take_turns_with_the_room_that_comes() {
    let mut host = Host::of((0..3).map(|_| (0, window(8))));
    host.post(0, 8);
    assert_eq!(host.send(100), new(0, 0, 8));
    (1..3).for_each(|pair| host.post(pair, 20));
    assert_eq!(host.send(100), []);
    host.ack(0, 8);
    assert_eq!(host.send(100), [new(1, 0, 4), new(2, 0, 4)].concat());
}

#[test]
fn a_queue_pair_changes_windows_with_what_it_has_in_flight() {
    let mut host = sharing(3);
    host.send(100);
    host.modify(0, QpModify::Congestion(Box::new(alone(6))));
    assert_eq!((host.window(0), host.window(1)), ((4, 6), (4, 8)));
    let sent = host.senders(100);
    let count = |pair| sent.iter().filter(|&&sender| sender == pair).count();
    assert_eq!((count(0), count(1) + count(2)), (2, 4));
    // And back, though there is no room for all.
    host.modify(0, QpModify::Congestion(Box::new(window(8))));
    assert_eq!((host.window(0), host.window(2)), ((14, 8), (14, 8)));
    assert_eq!(host.send(100), []);
    host.ack(0, 6);
    assert_eq!((host.window(1), host.send(100)), ((8, 8), vec![]));
    host.ack(1, 1);
    assert_eq!(host.send(100).len(), 1);
    // The same settings again change nothing.
    host.modify(1, QpModify::Congestion(Box::new(window(8))));
    assert_eq!((host.window(1), host.send(100)), ((8, 8), vec![]));
    // Settings that cannot work neither.
    let (now, qpn) = (host.net.now, host.qpn(2));
    let bad = QpModify::Congestion(Box::new(CcConfig { base_rtt_ns: 0, ..window(8) }));
    assert!(host.net.endpoint(NODE).modify_qp(now, qpn, bad).is_err());
    assert_eq!((host.window(2), host.send(100)), ((8, 8), vec![]));
}

/// A tail probe goes out whatever the window says; what it repeats waits for its turn otherwise.
#[test]
fn tail_probes_do_not_wait_for_the_window_and_repairs_do() {
    let mut host = sharing(3);
    host.send(100);
    // The window shrinks by a packet that the peer asks for again.
    host.nack(1, 2);
    assert_eq!((host.window(0), host.send(100)), ((7, 7), vec![]));
    for (answered, next) in [(1, (2, 0, false)), (2, (0, 4, false)), (3, (1, 2, true)), (4, (2, 1, false))] {
        host.ack(0, answered);
        assert_eq!(host.send(100), [next], "{answered}");
    }
    host.pass(FLOOR);
    assert_eq!(host.send(100), [(0, 4, true), (1, 0, true), (2, 0, true)]);
    assert_eq!(host.window(1), (7, 7));
}

/// What never left the host gives its room back.
#[test]
fn what_never_left_makes_room() {
    let mut host = sharing(2);
    let now = host.net.now;
    let mut out = Transmit::default();
    let mut packets = Vec::new();
    while host.net.endpoint(NODE).transmit(now, PlaneSet::first(1), &mut out) {
        packets.push(out.clone());
    }
    assert_eq!((packets.len(), host.window(1)), (8, (8, 8)));
    for packet in &packets[4..] {
        host.net.endpoint(NODE).unsent(packet);
    }
    assert_eq!(host.window(0), (4, 8));
    assert_eq!(host.send(100).len(), 4);
    assert_eq!(host.window(0), (8, 8));
}

/// Whose retransmission timer expires leaves the others alone until it hears something again.
#[test]
fn who_hears_nothing_steps_aside() {
    let mut host = sharing(2);
    assert_eq!(host.send(100).len(), 8);
    host.pass(TIMEOUT / 2);
    host.ack(1, 1);
    host.send(100);
    assert_eq!(host.window(0), (8, 8));
    // That of the other has begun anew when it was answered.
    host.pass(TIMEOUT / 2 + TIMEOUT / 4);
    let (silent, other) = (host.window(0).0, host.window(1).0);
    assert_eq!((silent + other, silent >= 4, other < 8), (8, true, true));
    assert!(host.send(100).contains(&(0, 0, true)));
    assert_eq!(
        [0, 1].map(|pair| host.window(pair)),
        [(8, 8), (8, 8)],
        "all of the window, and one of its own"
    );
    host.nack(0, 1);
    assert_eq!(host.window(1), (8, 8), "an answer, but no progress");
    // Progress brings it back, with what it has in flight.
    host.ack(0, 1);
    assert_eq!(host.window(0), host.window(1));
    assert_eq!(host.window(0), (15, 8));
    assert_eq!(host.send(100), []);
}
