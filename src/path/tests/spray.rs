//! Selection of the next packet's path.

use super::*;

fn counts(paths: &Paths, ids: &[EvId]) -> [usize; 4] {
    let mut counts = [0; 4];
    for &id in ids {
        counts[usize::from(paths.plane(id))] += 1;
    }
    counts
}

#[test]
fn planes_take_turns() {
    let mut paths = paths(&PathConfig::new(4));
    let ids = picks(&mut paths, 400);
    let planes = planes_of(&paths, &ids);
    assert!(planes.windows(2).all(|pair| pair[1] == (pair[0] + 1) % 4));
}

#[test]
fn each_round_uses_every_active_path_once_in_a_new_order() {
    let mut paths = paths(&small(1, 32, 16));
    let active = sorted(ids(&paths, 0, true));
    let first = picks(&mut paths, 32);
    let second = picks(&mut paths, 32);
    assert_eq!(sorted(first.clone()), active);
    assert_eq!(sorted(second.clone()), active);
    assert_ne!(first, second);
}

#[test]
fn queue_pairs_do_not_march_in_step() {
    // The same paths for all, as the bound source ports of one host are.
    let ports: Vec<Ev> = (1..=48).map(Ev).collect();
    let lists = std::iter::repeat_n(ports, 4).collect();
    let cfg = PathConfig { source: EvSource::Explicit(lists), ..PathConfig::new(4) };
    let orders: Vec<Vec<Ev>> = (0..50)
        .map(|seed| {
            let mut paths = Paths::new(&cfg, seed).unwrap();
            let ids = picks(&mut paths, 16);
            ids.into_iter().map(|id| paths.ev(id)).collect()
        })
        .collect();
    for (at, one) in orders.iter().enumerate() {
        assert!(orders[at + 1..].iter().all(|other| other != one));
    }
    // Nor do they all start on the same plane.
    let starts = (0..50).map(|seed| {
        let mut paths = Paths::new(&cfg, seed).unwrap();
        let id = paths.pick(ALL, None).unwrap();
        paths.plane(id)
    });
    assert!((0..4).all(|plane| starts.clone().any(|start| start == plane)));
}

#[test]
fn same_seed_same_choices() {
    let cfg = PathConfig::new(4);
    let (mut a, mut b) = (Paths::new(&cfg, 5).unwrap(), Paths::new(&cfg, 5).unwrap());
    assert_eq!(picks(&mut a, 1000), picks(&mut b, 1000));
}

#[test]
fn a_path_in_skip_is_passed_over_for_one_rotation() {
    let mut paths = paths(&small(1, 4, 0));
    let marked = paths.pick(ALL, None).unwrap();
    paths.on_ecn(marked, at_us(10));
    assert_eq!(state(&paths, marked), EvState::Skip);
    // The rest of this round, then a round of three without the marked one, then a full one.
    let rest = picks(&mut paths, 3);
    assert!(!rest.contains(&marked));
    let without = picks(&mut paths, 3);
    assert!(!without.contains(&marked));
    picks(&mut paths, 1);
    assert_eq!(state(&paths, marked), EvState::Good);
    assert_eq!(paths.counters().ecn_skips, 1);
    assert_eq!(paths.counters().passed_over, 1);
}

#[test]
fn all_paths_in_skip_still_send() {
    let mut paths = paths(&small(2, 3, 0));
    for id in 0..6 {
        paths.on_trim(EvId(id), at_us(1));
    }
    assert_eq!(paths.counters().trim_skips, 6);
    let first = picks(&mut paths, 60);
    assert_eq!(counts(&paths, &first), [30, 30, 0, 0]);
    assert_eq!(paths.counters().passed_over, 6 * 4);
    // As MRC has it: once.
    let mut paths = self::paths(&PathConfig { skip_limit: 0, ..small(2, 3, 0) });
    (0..6).for_each(|id| paths.on_trim(EvId(id), at_us(1)));
    picks(&mut paths, 60);
    assert_eq!(paths.counters().passed_over, 6);
}

#[test]
fn a_retransmission_takes_another_plane_and_planes_stay_equal() {
    let mut paths = paths(&small(4, 8, 4));
    let mut all = Vec::new();
    for _ in 0..1000 {
        let lost = paths.pick(ALL, None).unwrap();
        let again = paths.pick(ALL, Some(lost)).unwrap();
        assert_ne!(paths.plane(lost), paths.plane(again));
        all.extend([lost, again]);
    }
    assert!(counts(&paths, &all).iter().all(|count| count.abs_diff(500) <= 2));
}

#[test]
fn with_one_plane_a_retransmission_takes_another_path() {
    let mut paths = paths(&small(1, 2, 0));
    for _ in 0..100 {
        let lost = paths.pick(ALL, None).unwrap();
        assert_ne!(paths.pick(ALL, Some(lost)), Some(lost));
    }
}

#[test]
fn with_one_path_a_retransmission_takes_it_again() {
    let mut paths = paths(&small(1, 1, 0));
    let lost = paths.pick(ALL, None).unwrap();
    assert_eq!(paths.pick(ALL, Some(lost)), Some(lost));
}

#[test]
fn a_plane_without_room_keeps_its_turns() {
    let mut paths = paths(&small(4, 8, 4));
    // Plane 2 has no room for ten rounds of the others.
    let without: Vec<_> = (0..30).map(|_| paths.pick(PlaneSet(0b1011), None).unwrap()).collect();
    assert_eq!(counts(&paths, &without), [10, 10, 0, 10]);
    // It catches up as soon as it has.
    let after = picks(&mut paths, 50);
    assert_eq!(counts(&paths, &after), [10, 10, 20, 10]);
}

#[test]
fn a_plane_stuck_for_long_does_not_flood_when_it_returns() {
    let mut paths = paths(&small(2, 8, 4));
    for _ in 0..10_000 {
        paths.pick(PlaneSet(0b01), None);
    }
    let after = picks(&mut paths, 132);
    assert!(counts(&paths, &after)[1] <= 66 + 33);
    // And the saved turns are used up.
    let later = picks(&mut paths, 100);
    assert_eq!(counts(&paths, &later)[..2], [50, 50]);
}

#[test]
fn a_plane_without_room_keeps_its_turns_while_paths_of_another_are_lost() {
    let mut paths = paths(&small(2, 8, 16));
    for _ in 0..10 {
        let lost = paths.pick(PlaneSet(0b01), None).unwrap();
        paths.on_loss(lost, at_us(1));
    }
    let after = picks(&mut paths, 30);
    assert_eq!(counts(&paths, &after)[..2], [10, 20]);
}

#[test]
fn no_room_anywhere_no_path() {
    let mut paths = paths(&small(4, 2, 0));
    assert_eq!(paths.pick(PlaneSet(0), None), None);
    assert_eq!(paths.pick(PlaneSet(0xf0), None), None);
}

#[test]
fn a_burst_stays_in_its_slice_and_the_slice_moves_on() {
    let cfg = PathConfig { spray_width: 8, ..small(4, 32, 16) };
    let mut paths = paths(&cfg);
    let mut used = Vec::new();
    for _ in 0..16 {
        paths.begin_burst(64);
        let burst = sorted(picks(&mut paths, 64));
        let mut distinct = burst.clone();
        distinct.dedup();
        // Two of each plane, eight packets each.
        assert_eq!(distinct.len(), 8);
        assert!(distinct.iter().all(|id| burst.iter().filter(|other| *other == id).count() == 8));
        used.extend(distinct);
    }
    // Sixteen bursts of eight are one round of 128: each once.
    assert_eq!(used.len(), 128);
    used.sort();
    used.dedup();
    assert_eq!(used.len(), 128);
}

#[test]
fn slices_of_a_round_are_of_equal_size() {
    let cfg = PathConfig { spray_width: 5, ..small(1, 16, 0) };
    let mut paths = paths(&cfg);
    let sizes: Vec<_> = (0..8)
        .map(|_| {
            paths.begin_burst(100);
            let mut burst = sorted(picks(&mut paths, 100));
            burst.dedup();
            burst.len()
        })
        .collect();
    assert_eq!(sizes, [4, 4, 4, 4, 4, 4, 4, 4]);
}

#[test]
fn a_burst_smaller_than_the_slice_wastes_none_of_it() {
    let cfg = PathConfig { spray_width: 8, ..small(1, 32, 0) };
    let mut paths = paths(&cfg);
    let mut used = Vec::new();
    for _ in 0..32 {
        paths.begin_burst(1);
        used.extend(picks(&mut paths, 1));
    }
    used.sort();
    used.dedup();
    assert_eq!(used.len(), 32);
}

#[test]
fn without_steering_a_marked_path_keeps_its_turn() {
    let mut paths = paths(&PathConfig { ecn_steering: false, ..small(1, 3, 0) });
    let marked = picks(&mut paths, 3)[1];
    paths.on_ecn(marked, at_us(1));
    assert_eq!(state(&paths, marked), EvState::Good);
    assert!(picks(&mut paths, 3).contains(&marked));
    assert_eq!(paths.counters().ecn_skips, 0);
    // A trim is no mark.
    paths.on_trim(marked, at_us(2));
    assert!(!picks(&mut paths, 2).contains(&marked));
    // A marked packet also shows that a path works, and a probe acknowledged with a mark revives the path as it was.
    paths.on_loss(marked, at_us(3));
    for at in [2 * MS, 3 * MS, 4 * MS, 5 * MS, 6 * MS] {
        if let Some(probe) = paths.next_probe(Time(at)) {
            paths.on_probe_answer(probe.id, EvMark::SkipOnce, Time(at));
        }
    }
    assert_eq!(state(&paths, marked), EvState::Good);
}

#[test]
fn a_path_in_skip_leaves_the_slice_for_the_burst() {
    let cfg = PathConfig { spray_width: 4, ..small(1, 16, 0) };
    let mut paths = paths(&cfg);
    paths.begin_burst(100);
    let marked = picks(&mut paths, 4)[1];
    paths.on_ecn(marked, at_us(1));
    let rest = picks(&mut paths, 96);
    assert!(!rest.contains(&marked));
    assert_eq!(state(&paths, marked), EvState::Good);
}

#[test]
fn a_slice_of_one_in_skip_gives_way_to_the_next() {
    let cfg = PathConfig { spray_width: 1, ..small(1, 3, 0) };
    let mut paths = paths(&cfg);
    paths.begin_burst(10);
    let marked = paths.pick(ALL, None).unwrap();
    paths.on_ecn(marked, at_us(1));
    let next = picks(&mut paths, 5);
    assert!(next.iter().all(|&id| id == next[0] && id != marked));
    // At the end of the round there is no next: it is used all the same.
    paths.begin_burst(10);
    let last = paths.pick(ALL, None).unwrap();
    paths.on_ecn(last, at_us(2));
    assert_eq!(paths.pick(ALL, None), Some(last));
}

#[test]
fn a_retransmission_leaves_a_slice_of_one() {
    let cfg = PathConfig { spray_width: 1, ..small(1, 3, 0) };
    let mut paths = paths(&cfg);
    paths.begin_burst(10);
    let lost = paths.pick(ALL, None).unwrap();
    assert_ne!(paths.pick(ALL, Some(lost)), Some(lost));
}

#[test]
fn a_retransmission_in_the_same_plane_keeps_off_paths_in_skip() {
    for seed in 0..30 {
        // A slice of one: the rotation offers the lost path again.
        let cfg = PathConfig { spray_width: 1, ..small(1, 3, 0) };
        let mut paths = Paths::new(&cfg, seed).unwrap();
        paths.begin_burst(10);
        let lost = paths.pick(ALL, None).unwrap();
        let marked = (0..3).map(EvId).find(|&id| id != lost).unwrap();
        paths.on_ecn(marked, at_us(1));
        let again = paths.pick(ALL, Some(lost)).unwrap();
        assert!(again != lost && again != marked, "seed {seed}: {again:?}");
    }
}

#[test]
fn a_path_that_comes_back_is_used_again() {
    let mut paths = paths(&PathConfig { probes_to_revive: 1, ..small(1, 4, 0) });
    picks(&mut paths, 5);
    paths.on_loss(EvId(2), at_us(0));
    assert!(!picks(&mut paths, 20).contains(&EvId(2)));
    let probe = paths.next_probe(at_us(1_000)).unwrap();
    paths.on_probe_answer(probe.id, EvMark::None, at_us(1_001));
    let used = picks(&mut paths, 40);
    for id in 0..4 {
        let uses = used.iter().filter(|&&used| used == EvId(id)).count();
        assert!((9..=11).contains(&uses), "{id}: {uses} of 40");
    }
}

#[test]
fn a_burst_keeps_to_its_slice_when_a_path_outside_it_is_lost() {
    let mut paths = paths(&PathConfig { spray_width: 2, ..small(1, 8, 0) });
    paths.begin_burst(100);
    let mut used = picks(&mut paths, 10);
    let outside = (0..8).map(EvId).find(|id| !used.contains(id)).unwrap();
    paths.on_loss(outside, at_us(1));
    used.extend(picks(&mut paths, 40));
    used.sort();
    used.dedup();
    // The place of the one that went out may have been taken by one of the slice's.
    assert!(used.len() <= 3, "{used:?}");
}
