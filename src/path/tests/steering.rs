//! Paths whose packets are marked carry less, as long as others have room.
//!
//! Tests decision 35 of `docs/protocol.md`.

use super::*;

/// The share of 1,000 packets that a path carries.
fn share(paths: &mut Paths, id: u16, mut report: impl FnMut(&mut Paths, EvId)) -> usize {
    let mut count = 0;
    for _ in 0..1_000 {
        let picked = paths.pick(ALL, None).unwrap();
        report(paths, picked);
        count += usize::from(picked == EvId(id));
    }
    count
}

/// Reports a packet on one of these paths as marked.
fn marks(marked: &[u16]) -> impl FnMut(&mut Paths, EvId) {
    move |paths, id| {
        if marked.contains(&id.0) {
            paths.on_ecn(id, Time::ZERO);
        } else {
            paths.on_unmarked(id);
        }
    }
}

#[test]
fn a_path_that_is_always_marked_carries_next_to_nothing_while_another_has_room() {
    let mut paths = paths(&small(1, 2, 0));
    assert_eq!(share(&mut paths, 0, marks(&[])), 500);
    let first = share(&mut paths, 0, marks(&[0]));
    assert!((60..200).contains(&first), "{first}: it backs off step by step");
    let later = share(&mut paths, 0, marks(&[0]));
    assert!((55..=63).contains(&later), "{later}: one of 17 rotations, at most 15 are missed");
    assert_eq!(state(&paths, EvId(0)), EvState::Skip);
    // The congestion is over.
    share(&mut paths, 0, marks(&[]));
    let after = share(&mut paths, 0, marks(&[]));
    assert!((499..=501).contains(&after), "{after}");
}

#[test]
fn the_limit_says_how_many_rotations_are_missed_and_none_is_the_rule_of_mrc() {
    for (skip_limit, least, most) in [(0, 320, 340), (1, 320, 340), (3, 195, 205), (7, 108, 114)] {
        let mut paths = paths(&PathConfig { skip_limit, ..small(1, 2, 0) });
        share(&mut paths, 0, marks(&[0]));
        let share = share(&mut paths, 0, marks(&[0]));
        assert!((least..=most).contains(&share), "{share} with {skip_limit}");
    }
}

#[test]
fn where_no_path_has_room_all_carry_the_same() {
    for marked in [&[0, 1, 2, 3][..], &[0, 1, 2]] {
        let mut paths = paths(&small(1, 4, 0));
        share(&mut paths, 0, marks(marked));
        let shares: Vec<_> = (0..3)
            .map(|_| paths.clone())
            .zip(0..)
            .map(|(mut paths, id)| share(&mut paths, id, marks(marked)))
            .collect();
        let equal = if marked.len() == 4 { 245..=255 } else { 140..=202 };
        assert!(shares.iter().all(|share| equal.contains(share)), "{shares:?}");
    }
}

/// A path that backed off is used again when the others are congested, too.
#[test]
fn marks_on_all_other_paths_end_a_backoff() {
    let mut paths = paths(&small(1, 4, 0));
    for _ in 0..3 {
        share(&mut paths, 0, marks(&[0]));
    }
    assert!(share(&mut paths, 0, marks(&[0])) < 30);
    share(&mut paths, 0, marks(&[0, 1, 2, 3]));
    let all = share(&mut paths, 0, marks(&[0, 1, 2, 3]));
    assert!((240..=260).contains(&all), "{all}");
}

#[test]
fn now_and_then_a_mark_has_a_path_passed_over_once() {
    let mut paths = paths(&small(1, 8, 0));
    for _ in 0..1_000 {
        for id in 0..8 {
            if id == 3 { paths.on_ecn(EvId(3), Time::ZERO) } else { paths.on_unmarked(EvId(id)) }
        }
        (0..5).for_each(|_| paths.on_unmarked(EvId(3)));
        assert!(paths.entries[3].backoff < 8);
        picks(&mut paths, 8);
    }
    assert_eq!(share(&mut paths, 3, marks(&[])), 125);
}

/// One path alone may be marked all the time or never: reports of it tell nothing of the others.
#[test]
fn the_share_of_marks_leaves_out_the_path_that_was_marked_last() {
    let mut paths = paths(&small(2, 3, 0));
    let marked = |paths: &Paths| paths.planes[1].marked;
    (0..3).for_each(|_| paths.on_ecn(EvId(4), Time::ZERO));
    let first = u16::MAX >> 5;
    assert_eq!(marked(&paths), first, "once");
    paths.on_unmarked(EvId(4));
    assert_eq!(marked(&paths), first);
    paths.on_ecn(EvId(5), Time::ZERO);
    let second = first + ((u16::MAX - first) >> 5);
    assert_eq!(marked(&paths), second);
    paths.on_unmarked(EvId(5));
    paths.on_unmarked(EvId(0));
    assert_eq!(marked(&paths), second, "the last, and one of another plane");
    paths.on_unmarked(EvId(4));
    assert_eq!(marked(&paths), second - (second >> 5));
    assert_eq!(paths.planes[0].marked, 0);
}

/// Each plane is steered for itself.
#[test]
fn marks_on_one_plane_are_no_sign_of_congestion_on_another() {
    let mut paths = paths(&small(2, 2, 0));
    for _ in 0..3 {
        share(&mut paths, 0, marks(&[0, 2, 3]));
    }
    let marked = [0, 2, 3];
    let alone = share(&mut paths.clone(), 0, marks(&marked));
    let together = share(&mut paths.clone(), 2, marks(&marked));
    assert!(alone < 40 && (230..=270).contains(&together), "{alone} and {together}");
}

#[test]
fn a_path_that_comes_back_starts_afresh() {
    let mut paths = paths(&PathConfig { probes_to_revive: 1, ..small(1, 2, 0) });
    share(&mut paths, 0, marks(&[0]));
    assert!(paths.entries[0].backoff > 100);
    paths.on_loss(EvId(0), at_us(1));
    let probe = paths.next_probe(Time(5 * MS)).unwrap();
    paths.on_probe_answer(probe.id, EvMark::SkipOnce, Time(5 * MS));
    let entry = paths.entries[0];
    assert_eq!((entry.backoff, entry.skip), (0, 1));
}

#[test]
fn the_limit_is_at_most_fifteen() {
    assert!(PathConfig { skip_limit: MAX_SKIP_LIMIT, ..small(1, 2, 0) }.validate().is_ok());
    let error = PathConfig { skip_limit: MAX_SKIP_LIMIT + 1, ..small(1, 2, 0) }.validate();
    assert_eq!(error, Err(PathConfigError::SkipLimit(16)));
}
