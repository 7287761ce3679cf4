//! Loss, floor, ports and the deny list.

use super::*;

/// The planes that the next hundred packets use.
fn planes_in_use(paths: &mut Paths) -> PlaneSet {
    let ids = picks(paths, 100);
    PlaneSet(ids.iter().fold(0, |mask, &id| mask | 1 << paths.plane(id)))
}

#[test]
fn a_lost_path_is_replaced_at_once_by_a_backup_of_its_plane() {
    let mut paths = paths(&small(2, 4, 2));
    let lost = paths.pick(ALL, None).unwrap();
    let plane = paths.plane(lost);
    let backups = ids(&paths, plane, false);

    paths.on_loss(lost, at_us(50));

    let now = status(&paths, lost);
    assert_eq!((now.state, now.active, now.drop_count), (EvState::AssumedBad, false, 1));
    assert_eq!(paths.active_len(plane), 4);
    assert!(ids(&paths, plane, true).contains(&backups[0]));
    assert!(!picks(&mut paths, 100).contains(&lost));
    assert_eq!(paths.counters().swaps, 1);
}

#[test]
fn backups_are_used_in_turn_and_a_revived_one_comes_last() {
    let mut paths = paths(&PathConfig { probes_to_revive: 1, ..small(1, 2, 3) });
    let backups = ids(&paths, 0, false);
    let [first, second] = ids(&paths, 0, true)[..] else { panic!("two active") };
    paths.on_loss(first, at_us(0));
    assert!(ids(&paths, 0, true).contains(&backups[0]));
    let probe = paths.next_probe(at_us(1000)).unwrap();
    assert_eq!(paths.on_probe_answer(probe.id, EvMark::None, at_us(1010)), Some(first));
    paths.on_loss(second, at_us(2000));
    assert!(ids(&paths, 0, true).contains(&backups[1]));
    assert!(ids(&paths, 0, false).contains(&first));
}

#[test]
fn planes_stay_equally_loaded_when_one_runs_out_of_backups() {
    let mut paths = paths(&small(2, 4, 1));
    for id in ids(&paths, 0, true).into_iter().take(3) {
        paths.on_loss(id, at_us(1));
    }
    assert_eq!((paths.active_len(0), paths.active_len(1)), (2, 4));
    let next = picks(&mut paths, 200);
    assert_eq!(next.iter().filter(|&&id| paths.plane(id) == 0).count(), 100);
}

#[test]
fn a_plane_that_lost_all_paths_is_not_used() {
    let mut paths = paths(&small(2, 2, 1));
    for id in 0..3 {
        paths.on_loss(EvId(id), at_us(1));
    }
    assert_eq!(paths.usable_planes(), PlaneSet(0b10));
    assert_eq!(planes_in_use(&mut paths), PlaneSet(0b10));
}

#[test]
fn the_floor_keeps_the_last_paths_in_use() {
    let mut paths = paths(&PathConfig { min_active: 3, ..small(2, 2, 1) });
    for id in 0..6 {
        paths.on_loss(EvId(id), at_us(1));
    }
    assert_eq!(paths.active_len(0) + paths.active_len(1), 3);
    // Held: in SKIP, not bad, and every loss counted.
    assert_eq!(paths.states().filter(|s| s.state == EvState::Skip && s.active).count(), 3);
    assert_eq!(paths.states().filter(|s| s.state == EvState::AssumedBad).count(), 3);
    assert!(paths.states().all(|s| s.drop_count == 1));
    assert_eq!(paths.counters().floor_holds, 3);
    assert!(paths.pick(ALL, None).is_some());
}

/// Two paths, one of them bad: which is in use after the other lost a packet too?
#[test]
fn a_bad_path_that_lives_takes_the_place_of_the_last_one() {
    type Event = fn(&mut Paths, EvId);
    let lives: [(&str, Event); 5] = [
        ("delivered", |paths, id| paths.on_delivered(id, at_us(2))),
        ("lost, it was thought", |paths, id| paths.on_wrong_loss(id, at_us(2))),
        ("a SACK of a packet on it", |paths, id| paths.learn_reverse(id)),
        ("marked", |paths, id| paths.on_ecn(id, at_us(2))),
        ("a probe answered", |paths, id| {
            let probe = paths.next_probe(Time(2 * MS)).unwrap();
            assert_eq!(paths.on_probe_answer(probe.id, EvMark::None, Time(2 * MS)), Some(id));
        }),
    ];
    let dies: [(&str, Event); 5] = [
        ("", |_, _| ()),
        ("one more lost", |paths, id| paths.on_loss(id, at_us(3))),
        ("a probe not answered", |paths, id| {
            assert_eq!(paths.next_probe(Time(10 * MS)).unwrap().ev, id);
            paths.on_timer(Time(20 * MS));
        }),
        ("not wanted", |paths, id| {
            let probe = paths.next_probe(Time(10 * MS)).unwrap();
            assert_eq!(paths.on_probe_answer(probe.id, EvMark::AlwaysSkip, Time(10 * MS)), Some(id));
        }),
        ("its plane closed", |paths, _| paths.set_peer_ports(PlaneSet(0b10))),
    ];
    let (first, second) = (EvId(0), EvId(1));
    for (how, live) in lives {
        for (why, die) in dies {
            let mut paths = paths(&small(2, 1, 0));
            paths.on_loss(first, at_us(1));
            live(&mut paths, first);
            die(&mut paths, first);
            paths.on_loss(second, Time(30 * MS));
            let swapped = why.is_empty();
            let (used, other) = if swapped { (first, second) } else { (second, first) };
            assert_eq!(picks(&mut paths, 3), [used; 3], "{how} {why}");
            assert_eq!(state(&paths, other), EvState::AssumedBad);
            let counters = paths.counters();
            assert_eq!(
                (counters.floor_returns, counters.floor_holds),
                (u64::from(swapped), u64::from(!swapped))
            );
            // It is not passed over, answers take it, and the other one is probed.
            paths.set_peer_ports(ALL);
            assert_eq!(
                paths.pick_reverse(ALL, false),
                Some((paths.ev(used), paths.plane(used))),
                "{how} {why}"
            );
            assert_eq!(paths.next_probe(Time(100 * MS)).unwrap().ev, other);
        }
    }
}

#[test]
fn a_probe_in_flight_does_not_make_a_path_look_dead() {
    let mut paths = paths(&small(2, 1, 0));
    paths.on_loss(EvId(0), at_us(1));
    paths.learn_reverse(EvId(0));
    assert!(paths.next_probe(Time(2 * MS)).is_some());
    paths.on_loss(EvId(1), Time(2 * MS));
    assert_eq!(picks(&mut paths, 2), [EvId(0); 2]);
}

#[test]
fn a_path_that_lives_is_the_first_to_return_for_the_floor() {
    let mut paths = paths(&PathConfig { min_active: 1, ..small(3, 2, 0) });
    (0..4).for_each(|id| paths.on_loss(EvId(id), at_us(1)));
    paths.learn_reverse(EvId(3));
    paths.set_local_ports(PlaneSet(0b011));
    assert_eq!(picks(&mut paths, 2), [EvId(3); 2]);
}

#[test]
fn bad_paths_are_picked_at_random() {
    let mut paths = paths(&small(3, 4, 0));
    assert_eq!(paths.pick_bad(ALL, EvId(0)), None);
    (0..8).for_each(|id| paths.on_loss(EvId(id), at_us(1)));
    let mut counts = [0; 12];
    (0..4_000).for_each(|_| counts[usize::from(paths.pick_bad(ALL, EvId(0)).unwrap().id.0)] += 1);
    assert!(counts[4..8].iter().all(|count| (800..1_200).contains(count)), "{counts:?}");
    (0..4_000).for_each(|_| counts[usize::from(paths.pick_bad(ALL, EvId(9)).unwrap().id.0)] += 1);
    assert!(counts[..4].iter().all(|count| (300..700).contains(count)), "{counts:?}");
    assert_eq!(counts[8..], [0; 4]);
}

#[test]
fn backups_of_other_planes_keep_the_floor_and_go_back_when_paths_return() {
    let mut paths = paths(&PathConfig { min_active: 4, probes_to_revive: 1, ..small(2, 2, 3) });
    for id in [ids(&paths, 1, true), ids(&paths, 1, false)].concat() {
        paths.on_loss(id, at_us(1));
    }
    assert_eq!(
        (paths.active_len(0), paths.active_len(1)),
        (4, 0),
        "a dead path is kept for the floor's sake"
    );
    assert_eq!((paths.usable_planes(), paths.counters().floor_holds), (PlaneSet(0b01), 0));
    let mut used = picks(&mut paths, 400);
    used.sort();
    used.dedup();
    assert_eq!(used.len(), 4);
    // Good ones are no backups of a plane that is closed.
    paths.set_local_ports(PlaneSet(0b10));
    assert_eq!((paths.active_len(0), paths.active_len(1)), (2, 4), "four of the five that are bad");
    paths.set_local_ports(ALL);
    assert_eq!((paths.active_len(0), paths.active_len(1)), (2, 2), "back to the share of each");
    // All but one are lost again, and one answers its probe.
    [ids(&paths, 1, false)[..2].to_vec(), ids(&paths, 1, true)[..1].to_vec()]
        .concat()
        .iter()
        .for_each(|&id| paths.on_loss(id, at_us(2)));
    assert_eq!((paths.active_len(0), paths.active_len(1)), (3, 1));
    let probe = paths.next_probe(Time(10 * MS)).unwrap();
    paths.on_probe_answer(probe.id, EvMark::None, Time(10 * MS));
    assert_eq!((paths.active_len(0), paths.active_len(1)), (2, 2));
}

#[test]
fn always_skip_is_as_bad_as_a_loss_but_no_drop() {
    let mut paths = paths(&small(1, 2, 1));
    paths.on_always_skip(EvId(0), at_us(1));
    let now = status(&paths, EvId(0));
    assert_eq!((now.state, now.drop_count), (EvState::AssumedBad, 0));
    assert_eq!(paths.counters().always_skips, 1);
}

#[test]
fn a_path_in_skip_can_be_lost() {
    let mut paths = paths(&small(1, 2, 1));
    paths.on_ecn(EvId(0), at_us(1));
    paths.on_loss(EvId(0), at_us(2));
    assert_eq!(state(&paths, EvId(0)), EvState::AssumedBad);
    // And congestion signals about a bad path change nothing.
    paths.on_ecn(EvId(0), at_us(3));
    assert_eq!(state(&paths, EvId(0)), EvState::AssumedBad);
    assert_eq!(paths.counters().ecn_skips, 1);
    paths.on_trim(EvId(0), at_us(4));
    assert_eq!(paths.counters().trim_skips, 0);
}

#[test]
fn more_losses_of_a_bad_path_only_count() {
    let mut paths = paths(&small(1, 2, 2));
    for _ in 0..3 {
        paths.on_loss(EvId(0), at_us(1));
    }
    assert_eq!(status(&paths, EvId(0)).drop_count, 3);
    assert_eq!(paths.counters().swaps, 1);
    assert!(paths.poll_event().is_some());
    assert_eq!(paths.poll_event(), None);
}

#[test]
fn a_plane_goes_down_on_either_side_and_comes_back() {
    let mut paths = paths(&PathConfig::new(4));
    paths.set_local_ports(PlaneSet(0b1101));
    assert_eq!(planes_in_use(&mut paths), PlaneSet(0b1101));
    paths.set_peer_ports(PlaneSet(0b0111));
    assert_eq!(planes_in_use(&mut paths), PlaneSet(0b0101));
    paths.set_local_ports(ALL);
    assert_eq!(planes_in_use(&mut paths), PlaneSet(0b0111));
    paths.set_peer_ports(ALL);
    assert_eq!(planes_in_use(&mut paths), PlaneSet(0b1111));
    assert_eq!((0..4).map(|plane| paths.active_len(plane)).collect::<Vec<_>>(), [32; 4]);
}

#[test]
fn all_ports_down_no_path() {
    let mut paths = paths(&PathConfig::new(2));
    paths.set_local_ports(PlaneSet(0));
    assert_eq!(paths.pick(ALL, None), None);
    assert_eq!(paths.pick_reverse(ALL, false), None);
    paths.set_local_ports(PlaneSet(0b10));
    assert!(paths.pick(ALL, None).is_some());
}

#[test]
fn bad_paths_are_put_to_use_when_the_good_plane_goes_down() {
    let mut paths = paths(&PathConfig { min_active: 2, ..small(2, 4, 0) });
    for id in 0..4 {
        paths.on_loss(EvId(id), at_us(1));
    }
    assert_eq!(paths.usable_planes(), PlaneSet(0b10));
    paths.set_local_ports(PlaneSet(0b01));
    assert_eq!(paths.active_len(0), 2);
    assert_eq!(paths.counters().floor_returns, 2);
    assert!(paths.pick(ALL, None).is_some());
}

#[test]
fn a_denied_value_is_replaced_and_good_when_allowed() {
    let mut paths = paths(&small(2, 4, 2));
    let id = ids(&paths, 1, true)[0];
    let ev = paths.ev(id);
    assert_eq!(paths.deny_ev(ev, Some(0)), 0);
    assert_eq!(paths.deny_ev(ev, Some(1)), 1);
    assert_eq!(paths.deny_ev(ev, None), 0);
    assert_eq!(state(&paths, id), EvState::Denied);
    assert_eq!(paths.active_len(1), 4);
    assert!(!picks(&mut paths, 200).contains(&id));
    assert_eq!(paths.allow_ev(ev, None), 1);
    let now = status(&paths, id);
    assert_eq!((now.state, now.active), (EvState::Good, false));
}

#[test]
fn a_bad_path_that_is_denied_is_not_probed_and_is_good_when_allowed() {
    let mut paths = paths(&small(1, 2, 2));
    paths.on_loss(EvId(0), at_us(0));
    let ev = paths.ev(EvId(0));
    assert_eq!(paths.deny_ev(ev, None), 1);
    assert_eq!(paths.next_timeout(), Time::NEVER);
    assert_eq!(paths.next_probe(Time(10 * MS)), None);
    paths.allow_ev(ev, None);
    assert_eq!(state(&paths, EvId(0)), EvState::Good);
}

#[test]
fn the_deny_list_is_stronger_than_the_floor() {
    let mut paths = paths(&PathConfig { min_active: 2, ..small(1, 2, 1) });
    for id in 0..3 {
        paths.deny_ev(paths.ev(EvId(id)), None);
    }
    assert_eq!(paths.pick(ALL, None), None);
    assert_eq!(paths.pick_reverse(ALL, false), None);
    paths.allow_ev(paths.ev(EvId(1)), None);
    assert_eq!(paths.pick(ALL, None), Some(EvId(1)));
    assert_eq!(paths.pick_reverse(ALL, false), Some((paths.ev(EvId(1)), 0)));
}

#[test]
fn a_denied_plane_is_out_until_allowed() {
    let mut paths = paths(&small(2, 2, 0));
    assert!(paths.deny_plane(0));
    assert!(!paths.deny_plane(0));
    assert!(!paths.deny_plane(2) && !paths.deny_plane(9));
    assert_eq!(paths.usable_planes(), PlaneSet(0b10));
    assert_eq!(state(&paths, EvId(0)), EvState::Denied);
    assert_eq!(planes_in_use(&mut paths), PlaneSet(0b10));
    assert!(paths.allow_plane(0));
    assert!(!paths.allow_plane(0));
    assert_eq!(state(&paths, EvId(0)), EvState::Good);
    assert_eq!(planes_in_use(&mut paths), PlaneSet(0b11));
    assert!(paths.deny_plane(1));
    assert!(paths.states().all(|status| (status.state == EvState::Denied) == (status.plane == 1)));
}

#[test]
fn events_tell_of_bad_and_good_only() {
    let mut paths = paths(&PathConfig { probes_to_revive: 1, ..small(1, 2, 1) });
    paths.on_ecn(EvId(1), at_us(1));
    paths.on_loss(EvId(0), at_us(2));
    let probe = paths.next_probe(at_us(1002)).unwrap();
    paths.on_probe_answer(probe.id, EvMark::None, at_us(1010));
    let ev = paths.ev(EvId(0));
    let event = |state| Some(EvEvent { ev, plane: 0, drop_count: 1, state });
    assert!(paths.has_events());
    assert_eq!(paths.poll_event(), event(EvState::AssumedBad));
    assert!(paths.has_events());
    assert_eq!(paths.poll_event(), event(EvState::Good));
    assert!(!paths.has_events());
    assert_eq!(paths.poll_event(), None);
}

#[test]
fn events_that_do_not_fit_are_counted() {
    let mut paths = paths(&small(1, 40, 0));
    for id in 0..39 {
        paths.on_loss(EvId(id), at_us(1));
    }
    assert_eq!(paths.counters().events_lost, 39 - 32);
    assert_eq!(std::iter::from_fn(|| paths.poll_event()).count(), 32);
}
