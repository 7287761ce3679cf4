//! The loss of a packet and the death of a path: what tells them apart.
//!
//! Tests decision 34 of `docs/protocol.md`.

use super::*;

/// Feeds losses as a requester would, and counts transmissions.
struct Flow {
    paths: Paths,
    now: Time,
    orders: u64,
    newest: Vec<u64>,
    queueing: bool,
}

impl Flow {
    fn new(cfg: &PathConfig) -> Self {
        let paths = paths(cfg);
        let newest = vec![0; paths.states().count()];
        Self { paths, now: Time::ZERO, orders: 0, newest, queueing: false }
    }

    /// A packet leaves on this path.
    fn send(&mut self) -> u64 {
        self.now = self.now.after(10 * US);
        self.orders += 1;
        self.orders
    }

    fn arrives(&mut self, id: u16) {
        self.newest[usize::from(id)] = self.send();
    }

    fn signs(&self, id: u16, order: u64) -> LossSigns {
        let on_plane = self.paths.of_plane(self.paths.plane(EvId(id)));
        LossSigns {
            order,
            latest: self.orders,
            newest_on_path: self.newest[usize::from(id)],
            plane_delivers: self.newest[on_plane].iter().any(|&newest| newest > order),
            queueing: self.queueing,
        }
    }

    fn lose_at(&mut self, id: u16, order: u64) -> EvState {
        let signs = self.signs(id, order);
        self.paths.on_packet_lost(EvId(id), &signs, self.now);
        state(&self.paths, EvId(id))
    }

    /// Lost, and nothing that left later on the path arrives; something on another does.
    fn vanishes(&mut self, id: u16, other: u16) -> EvState {
        let order = self.send();
        self.arrives(other);
        self.lose_at(id, order)
    }

    /// Lost, and the next packet on the path arrives.
    fn is_lost(&mut self, id: u16) -> EvState {
        let order = self.send();
        self.arrives(id);
        self.lose_at(id, order)
    }
}

const OUT: EvState = EvState::AssumedBad;
/// In use, passed over for a while.
const IN: EvState = EvState::Skip;

#[test]
fn one_loss_on_a_plane_that_is_otherwise_clean_takes_its_path_out() {
    for lose in [|flow: &mut Flow| flow.vanishes(0, 1), |flow: &mut Flow| flow.is_lost(0)] {
        let mut flow = Flow::new(&small(1, 8, 0));
        assert_eq!(lose(&mut flow), OUT);
        assert_eq!((flow.paths.counters().tolerated, flow.paths.counters().losses), (0, 1));
    }
}

/// The path is the only one of its plane.
#[test]
fn an_only_path_stays_as_long_as_it_delivers() {
    let mut flow = Flow::new(&PathConfig { min_active: 1, ..small(2, 1, 0) });
    for _ in 0..100 {
        assert_eq!(flow.is_lost(0), IN);
    }
    // Two vanish, and one arrives, again and again.
    for _ in 0..10 {
        assert_eq!((flow.vanishes(0, 1), flow.vanishes(0, 1)), (IN, IN));
        flow.arrives(0);
    }
    assert_eq!((flow.vanishes(0, 1), flow.vanishes(0, 1), flow.vanishes(0, 1)), (IN, IN, OUT));
    assert_eq!(flow.paths.usable_planes(), PlaneSet(0b10));
    assert_eq!(status(&flow.paths, EvId(0)).drop_count, 123);
    assert_eq!(flow.paths.counters().tolerated, 122);
}

/// With nothing to compare it with, a path that loses packets is no worse than others.
#[test]
fn what_an_only_path_loses_does_not_count_against_it_later() {
    let mut flow = Flow { queueing: true, ..Flow::new(&small(2, 2, 0)) };
    flow.paths.on_loss(EvId(1), flow.now);
    for _ in 0..10 {
        assert_eq!(flow.is_lost(0), IN);
    }
    for _ in 0..2 {
        let probe = flow.paths.next_probe(flow.now.after(10 * MS)).unwrap();
        flow.paths.on_probe_answer(probe.id, EvMark::None, flow.now);
    }
    assert_eq!((flow.is_lost(0), flow.is_lost(0), flow.is_lost(0)), (IN, IN, OUT));
}

#[test]
fn packets_of_an_only_path_that_were_on_their_way_together_take_it_out_at_once() {
    let mut flow = Flow::new(&small(2, 1, 0));
    let lost = [flow.send(), flow.send(), flow.send()];
    flow.arrives(1);
    assert_eq!(lost.map(|order| flow.lose_at(0, order)), [IN, IN, OUT]);
}

/// Backups and values of other planes that work, bad ones and denied ones: which make a path the only one?
#[test]
fn only_values_of_the_plane_that_work_are_others() {
    type Prepare = fn(&mut Paths);
    let cases: [(u16, u16, Prepare, EvState); 4] = [
        (1, 1, |_| (), OUT),
        (1, 0, |_| (), IN),
        (2, 0, |paths| paths.on_loss(EvId(1), Time::ZERO), IN),
        (2, 0, |paths| _ = paths.deny_ev(paths.ev(EvId(1)), Some(0)), IN),
    ];
    for (active, backup, prepare, is) in cases {
        let mut flow = Flow::new(&small(2, active, backup));
        prepare(&mut flow.paths);
        let other = active + backup;
        assert_eq!(flow.vanishes(0, other), is, "{active} and {backup}");
    }
}

#[test]
fn in_long_queues_a_path_goes_when_three_vanish_in_a_row() {
    let mut flow = Flow { queueing: true, ..Flow::new(&small(1, 8, 0)) };
    assert_eq!((flow.vanishes(0, 1), flow.vanishes(0, 1)), (IN, IN));
    flow.arrives(0);
    assert_eq!((flow.vanishes(0, 1), flow.vanishes(0, 1), flow.vanishes(0, 1)), (IN, IN, OUT));
}

#[test]
fn a_plane_that_delivers_nothing_any_more_is_left_at_once_in_long_queues_too() {
    let mut flow = Flow { queueing: true, ..Flow::new(&small(2, 8, 0)) };
    for id in 0..8 {
        flow.arrives(id);
    }
    let orders: Vec<_> = (0..7).map(|id| (id, flow.send())).collect();
    for (id, order) in orders {
        flow.arrives(8);
        assert_eq!(flow.lose_at(id, order), OUT, "{id}");
    }
}

#[test]
fn in_long_queues_a_path_goes_that_loses_three_times_while_others_lose_nothing() {
    let mut flow = Flow { queueing: true, ..Flow::new(&small(1, 8, 0)) };
    assert_eq!((flow.is_lost(0), flow.is_lost(0), flow.is_lost(0)), (IN, IN, OUT));
    // Packets in flight together count once.
    let mut flow = Flow { queueing: true, ..Flow::new(&small(1, 8, 0)) };
    let lost = [flow.send(), flow.send(), flow.send(), flow.send()];
    flow.arrives(0);
    assert_eq!(lost.map(|order| flow.lose_at(0, order)), [IN; 4]);
    assert_eq!((flow.is_lost(0), flow.is_lost(0)), (IN, OUT));
}

/// Losses by chance on all paths take few out, and none for long; one of many that loses ten times as much goes.
#[test]
fn where_all_lose_alike_none_goes_and_one_that_loses_more_does() {
    for (queueing, paths) in [(false, 16), (true, 16), (true, 4), (true, 2)] {
        let mut flow = Flow { queueing, ..Flow::new(&small(1, paths, 0)) };
        let mut rng = SplitMix64::seed_from_u64(u64::from(paths));
        let mut out = 0;
        let rounds = 2_000;
        for _ in 0..rounds {
            let id = ev_pool::below(&mut rng, paths);
            out += u32::from(flow.is_lost(id) == OUT);
            let probes: Vec<_> = (0..4).map_while(|_| flow.paths.next_probe(Time(u64::MAX / 2))).collect();
            for probe in probes {
                flow.paths.on_probe_answer(probe.id, EvMark::None, flow.now);
                if let Some(probe) = flow.paths.next_probe(Time(u64::MAX / 2)) {
                    flow.paths.on_probe_answer(probe.id, EvMark::None, flow.now);
                }
            }
        }
        let most = if queueing { rounds / 10 } else { rounds / 3 };
        assert!(out < most, "{out} of {rounds} losses took one of {paths} out, queues: {queueing}");
        // The others lose, each in its turn, while this one loses twice as often as all of them together. Of a few paths, that loses
        // too little to be told from chance.
        let taken_out = (0..12).any(|at| {
            let other = 1 + at % (paths - 1);
            let first = flow.is_lost(0);
            flow.is_lost(other);
            first == OUT || flow.is_lost(0) == OUT
        });
        assert!(taken_out || paths < 16, "{paths}");
    }
}

#[test]
fn losses_of_long_ago_excuse_nothing() {
    for (later_ns, is) in [(1_000_000_000 - 30 * US, IN), (1_000_000_000, OUT)] {
        let mut flow = Flow { queueing: true, ..Flow::new(&small(1, 4, 0)) };
        assert_eq!((flow.is_lost(1), flow.is_lost(2)), (IN, IN));
        flow.queueing = false;
        flow.now = flow.now.after(later_ns);
        assert_eq!(flow.is_lost(0), is, "after {later_ns} ns");
    }
}

/// Losses on a path that then delivers excuse others, and not the path itself.
#[test]
fn what_vanished_was_lost_by_chance_when_the_path_turns_out_to_work() {
    type Works = fn(&mut Flow);
    let works: [Works; 3] = [
        |flow| {
            flow.queueing = true;
            assert_eq!(flow.vanishes(0, 3), IN);
            flow.arrives(0);
            assert_eq!(flow.is_lost(0), IN);
        },
        |flow| {
            assert_eq!(flow.vanishes(0, 3), OUT);
            flow.paths.on_wrong_loss(EvId(0), flow.now);
        },
        |flow| {
            assert_eq!(flow.vanishes(0, 3), OUT);
            for _ in 0..2 {
                let probe = flow.paths.next_probe(flow.now.after(10 * MS)).unwrap();
                assert_eq!(flow.paths.on_probe_answer(probe.id, EvMark::None, flow.now), Some(EvId(0)));
            }
        },
    ];
    for (at, works) in works.into_iter().enumerate() {
        let mut flow = Flow::new(&small(1, 4, 0));
        works(&mut flow);
        flow.queueing = false;
        assert_eq!(flow.vanishes(1, 3), IN, "{at}");
        let mut flow = Flow::new(&small(1, 4, 0));
        works(&mut flow);
        flow.queueing = false;
        if at != 1 {
            assert_eq!(flow.vanishes(0, 3), OUT, "{at}: the path itself");
        }
    }
}

/// A queue pair that was reset counts its transmissions from the start, and keeps its paths.
#[test]
fn positions_from_before_a_reset_excuse_nothing() {
    let mut flow = Flow { queueing: true, ..Flow::new(&small(1, 8, 0)) };
    flow.orders = 1_000;
    assert_eq!((flow.is_lost(0), flow.vanishes(1, 2), flow.vanishes(1, 2)), (IN, IN, IN));
    flow.paths.restart_positions();
    flow.orders = 0;
    flow.newest.fill(0);
    assert_eq!((flow.is_lost(0), flow.is_lost(0)), (IN, OUT), "the first was before");
    assert_eq!((flow.vanishes(1, 2), flow.vanishes(1, 2), flow.vanishes(1, 2)), (IN, IN, OUT));
}

/// Losses on a path out of use are counted, and have no other effect.
#[test]
fn losses_of_a_path_that_is_out_only_count() {
    let mut flow = Flow::new(&small(1, 4, 0));
    assert_eq!((flow.is_lost(0), flow.is_lost(0)), (OUT, OUT));
    assert_eq!(status(&flow.paths, EvId(0)).drop_count, 2);
    assert_eq!(flow.paths.counters().tolerated, 0);
}

/// A path that keeps losing while others lose nothing is away for longer each time; one that is no worse than others is not.
#[test]
fn only_a_path_that_loses_more_than_others_relapses() {
    for others_lose in [false, true] {
        let mut flow = Flow::new(&small(1, 8, 0));
        let mut waits = Vec::new();
        for _ in 0..4 {
            if others_lose {
                // These lose by chance, as far as anyone can tell.
                (1..6).for_each(|id| {
                    flow.queueing = true;
                    flow.is_lost(id);
                    flow.queueing = false;
                });
                assert_eq!(flow.is_lost(0), IN);
            }
            flow.paths.on_loss(EvId(0), flow.now);
            let from = flow.now;
            for answers in 0..2 {
                let at = flow.paths.next_timeout();
                if answers == 0 {
                    waits.push(at.since(from) / MS);
                }
                flow.now = at;
                let probe = flow.paths.next_probe(at).unwrap();
                flow.paths.on_probe_answer(probe.id, EvMark::None, at);
            }
            assert_ne!(state(&flow.paths, EvId(0)), OUT);
        }
        assert_eq!(waits, if others_lose { [1, 2, 2, 2] } else { [1, 2, 4, 8] }, "{others_lose}");
    }
}

#[test]
fn the_path_that_brought_the_newest_packet_is_the_proven_one() {
    let mut paths = paths(&small(3, 2, 1));
    // Paths 0 to 2 are of plane 0, the third a backup, and so on.
    let newest = [10_u64, 50, 90, 20, 60, 0, 70, 30, 0];
    let by = |id: EvId| newest[usize::from(id.0)];
    let mut proven = |free: u32, avoid: u16| {
        let picked = paths.pick_proven(PlaneSet(free), EvId(avoid), by);
        picked.map(|picked| (picked.id.0, picked.plane))
    };
    assert_eq!(proven(0b111, 8), Some((6, 2)), "not the backup 2");
    assert_eq!(proven(0b111, 6), Some((4, 1)));
    assert_eq!(proven(0b001, 1), Some((0, 0)));
    assert_eq!(proven(0, 8), None);
    paths.on_loss(EvId(6), Time::ZERO);
    paths.set_peer_ports(PlaneSet(0b101));
    let picked = paths.pick_proven(ALL, EvId(8), by).unwrap();
    assert_eq!(picked.id, EvId(1), "bad ones and closed planes are not in use");
    assert!(paths.pick_proven(ALL, EvId(8), |_| 0).is_none(), "nothing has arrived on any");
}
