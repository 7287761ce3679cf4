//! Probing bad paths, as traces in microseconds with the default cadence (1 ms, doubling to 1 s).

use super::*;

/// One bad path (id 0) at time 0.
fn with_one_bad() -> Paths {
    let mut paths = paths(&small(2, 4, 2));
    paths.on_loss(EvId(0), at_us(0));
    paths
}

#[test]
fn two_answers_in_a_row_revive_a_path() {
    let mut paths = with_one_bad();
    assert_eq!(paths.next_timeout(), at_us(1000));
    assert_eq!(paths.next_probe(at_us(999)), None);
    let first = paths.next_probe(at_us(1000)).unwrap();
    assert_eq!(first.ev, EvId(0));
    assert_eq!(paths.next_timeout(), at_us(5000));
    assert_eq!(paths.next_probe(at_us(1001)), None);

    assert_eq!(paths.on_probe_answer(first.id, EvMark::None, at_us(1020)), Some(EvId(0)));
    assert_eq!(state(&paths, EvId(0)), EvState::AssumedBad);
    assert_eq!(paths.next_timeout(), at_us(2020));

    let second = paths.next_probe(at_us(2020)).unwrap();
    assert_ne!(first.id, second.id);
    assert_eq!(paths.on_probe_answer(second.id, EvMark::None, at_us(2040)), Some(EvId(0)));
    assert_eq!(state(&paths, EvId(0)), EvState::Good);
    // Its plane has a full active set: it waits in the backup set.
    assert!(!status(&paths, EvId(0)).active);
    assert_eq!(paths.next_timeout(), Time::NEVER);
    assert_eq!(paths.counters().revived, 1);
}

#[test]
fn a_revived_path_is_active_at_once_if_its_plane_is_short() {
    let mut paths = paths(&PathConfig { probes_to_revive: 1, ..small(2, 2, 0) });
    paths.on_loss(EvId(0), at_us(0));
    assert_eq!(paths.active_len(0), 1);
    let probe = paths.next_probe(at_us(1000)).unwrap();
    paths.on_probe_answer(probe.id, EvMark::SkipOnce, at_us(1020));
    assert_eq!(paths.active_len(0), 2);
    // The answer was ECN-marked: passed over once.
    assert_eq!(state(&paths, EvId(0)), EvState::Skip);
}

#[test]
fn unanswered_probes_double_the_delay_up_to_the_maximum() {
    let mut paths = with_one_bad();
    let mut delays_ms = Vec::new();
    for _ in 0..13 {
        let due = paths.next_timeout();
        paths.next_probe(due).unwrap();
        let expiry = paths.next_timeout();
        assert_eq!(expiry, due + 4 * MS);
        paths.on_timer(expiry);
        delays_ms.push((paths.next_timeout() - expiry) / MS);
    }
    assert_eq!(delays_ms, [2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 1000, 1000, 1000]);
    assert_eq!(paths.counters().probes_expired, 13);
    // An answer brings the cadence back.
    let due = paths.next_timeout();
    let probe = paths.next_probe(due).unwrap();
    paths.on_probe_answer(probe.id, EvMark::None, due);
    assert_eq!(paths.next_timeout(), due + MS);
}

/// A packet that was declared lost had arrived: its path is probed at once, and as if it had not been bad.
#[test]
fn a_wrong_verdict_is_no_relapse() {
    let fails_again = |acquitted: bool| {
        let mut paths = paths(&PathConfig { probes_to_revive: 1, ..small(2, 4, 2) });
        let mut now = at_us(0);
        let mut waits = Vec::new();
        for _ in 0..4 {
            paths.on_loss(EvId(0), now);
            waits.push((paths.next_timeout() - now) / MS);
            if acquitted {
                paths.on_wrong_loss(EvId(0), now);
                assert_eq!(paths.next_timeout(), now);
            }
            now = paths.next_timeout();
            let probe = paths.next_probe(now).unwrap();
            paths.on_probe_answer(probe.id, EvMark::None, now);
            now = now + MS;
        }
        (waits, status(&paths, EvId(0)).drop_count)
    };
    assert_eq!(fails_again(false), (vec![1, 2, 4, 8], 4));
    assert_eq!(fails_again(true), (vec![1, 2, 2, 2], 0));
    // Of a path that works, or that never was bad, nothing changes but the count.
    let mut paths = paths(&small(2, 4, 2));
    paths.on_wrong_loss(EvId(1), at_us(5));
    assert_eq!((paths.next_timeout(), status(&paths, EvId(1)).drop_count), (Time::NEVER, 0));
}

/// Through a full queue an answer takes longer than the setting says. A probe that went unheard would stay so for ever.
#[test]
fn a_probe_waits_for_as_long_as_round_trips_take() {
    let waits = |patience_ns| {
        let mut paths = with_one_bad();
        paths.patient_probe(at_us(1000), patience_ns).unwrap();
        let expiry = paths.next_timeout();
        assert_eq!(expiry, paths.next_expiry());
        paths.on_timer(Time(expiry.0 - 1));
        assert_eq!(paths.counters().probes_expired, 0);
        paths.on_timer(expiry);
        assert_eq!(paths.counters().probes_expired, 1);
        expiry - at_us(1000)
    };
    assert_eq!([0, 4 * MS, 4 * MS + 1, 1000 * MS].map(waits), [4 * MS, 4 * MS, 4 * MS + 1, 1000 * MS]);
    // No peer that answers late makes it longer than the longest delay.
    assert_eq!([1000 * MS + 1, u64::MAX].map(waits), [1000 * MS; 2]);

    let long = PathConfig { probe_timeout_ns: 2000 * MS, ..small(2, 4, 2) };
    let mut paths = paths(&long);
    paths.on_loss(EvId(0), at_us(0));
    paths.patient_probe(at_us(1000), u64::MAX).unwrap();
    assert_eq!(paths.next_expiry(), at_us(1000) + 2000 * MS, "a setting that is longer");
}

#[test]
fn each_probe_waits_by_the_round_trips_of_its_time() {
    let mut paths = with_one_bad();
    paths.on_loss(EvId(1), at_us(0));
    let patient = paths.patient_probe(at_us(1000), 50 * MS).unwrap();
    paths.patient_probe(at_us(1000), 0).unwrap();
    assert_eq!(paths.next_expiry(), at_us(5000));
    paths.on_timer(at_us(5000));
    assert_eq!(paths.counters().probes_expired, 1);
    assert_eq!(paths.next_expiry(), at_us(51_000));
    assert_eq!(paths.on_probe_answer(patient.id, EvMark::None, at_us(50_999)), Some(EvId(0)));
}

#[test]
fn an_unanswered_probe_starts_the_count_again() {
    let mut paths = with_one_bad();
    let answer = |paths: &mut Paths, answered: bool| {
        let due = paths.next_timeout();
        let probe = paths.next_probe(due).unwrap();
        if answered {
            paths.on_probe_answer(probe.id, EvMark::None, due);
        } else {
            let expiry = paths.next_timeout();
            paths.on_timer(expiry);
        }
        state(paths, EvId(0))
    };
    for answered in [true, false, true] {
        assert_eq!(answer(&mut paths, answered), EvState::AssumedBad);
    }
    assert_eq!(answer(&mut paths, true), EvState::Good);
}

#[test]
fn an_answer_that_says_always_skip_is_none() {
    let mut paths = with_one_bad();
    let first = paths.next_probe(at_us(1000)).unwrap();
    assert_eq!(paths.on_probe_answer(first.id, EvMark::AlwaysSkip, at_us(1010)), Some(EvId(0)));
    assert_eq!(state(&paths, EvId(0)), EvState::AssumedBad);
    assert_eq!(paths.next_timeout(), at_us(3010));
}

#[test]
fn late_repeated_and_forged_answers_are_counted_and_ignored() {
    let mut paths = with_one_bad();
    let probe = paths.next_probe(at_us(1000)).unwrap();
    assert_eq!(paths.on_probe_answer(probe.id.wrapping_add(1), EvMark::None, at_us(1010)), None);
    paths.on_timer(at_us(5000));
    assert_eq!(paths.on_probe_answer(probe.id, EvMark::None, at_us(5001)), None);
    let probe = paths.next_probe(at_us(7000)).unwrap();
    assert!(paths.on_probe_answer(probe.id, EvMark::None, at_us(7010)).is_some());
    assert_eq!(paths.on_probe_answer(probe.id, EvMark::None, at_us(7011)), None);
    assert_eq!(paths.counters().probe_answers_unknown, 3);
    assert_eq!(state(&paths, EvId(0)), EvState::AssumedBad);
}

#[test]
fn a_few_in_flight_the_longest_due_first() {
    let mut paths = paths(&small(1, 8, 8));
    for id in [3, 1, 4, 0, 5, 2] {
        paths.on_loss(EvId(id), at_us(u64::from(id)));
    }
    let now = at_us(2000);
    let sent: Vec<_> = std::iter::from_fn(|| paths.next_probe(now)).map(|probe| probe.ev.0).collect();
    assert_eq!(sent, [0, 1, 2, 3]);
    // No slot is free: nothing to do before one expires.
    assert_eq!(paths.next_timeout(), now + 4 * MS);
    paths.on_timer(now + 4 * MS);
    assert_eq!(paths.next_probe(now + 4 * MS).map(|probe| probe.ev), Some(EvId(4)));
    assert_eq!(paths.counters().probes_sent, 5);
}

#[test]
fn a_delivery_on_a_bad_path_has_it_probed_at_once() {
    let mut paths = with_one_bad();
    paths.on_delivered(EvId(0), at_us(30));
    assert_eq!(paths.next_timeout(), at_us(30));
    assert_eq!(paths.next_probe(at_us(30)).map(|probe| probe.ev), Some(EvId(0)));
    // It proves nothing by itself.
    assert_eq!(state(&paths, EvId(0)), EvState::AssumedBad);
    paths.on_delivered(EvId(3), at_us(30));
    assert_eq!(state(&paths, EvId(3)), EvState::Good);
}

#[test]
fn a_plane_that_is_down_is_not_probed_until_it_returns() {
    let mut paths = with_one_bad();
    paths.set_peer_ports(PlaneSet(0b10));
    assert_eq!(paths.next_timeout(), Time::NEVER);
    assert_eq!(paths.next_probe(Time(MS * 100)), None);
    paths.set_peer_ports(PlaneSet(0b11));
    assert!(paths.next_probe(Time(MS * 100)).is_some());
}

#[test]
fn a_flapping_path_waits_longer_each_time() {
    let mut paths = paths(&PathConfig { probes_to_revive: 1, ..small(1, 2, 0) });
    let mut now = Time(MS);
    let mut waits_ms = Vec::new();
    for _ in 0..6 {
        paths.on_loss(EvId(0), now);
        let due = paths.next_timeout();
        waits_ms.push((due - now) / MS);
        let probe = paths.next_probe(due).unwrap();
        paths.on_probe_answer(probe.id, EvMark::None, due);
        now = due + MS;
    }
    assert_eq!(waits_ms, [1, 2, 4, 8, 16, 32]);
    // A second after its return, and it is a path like any other.
    now = now + 999 * MS;
    paths.on_loss(EvId(0), now);
    assert_eq!(paths.next_timeout(), now + MS);
}

#[test]
fn a_path_denied_and_allowed_has_no_past() {
    let mut paths = paths(&PathConfig { probes_to_revive: 1, ..small(1, 2, 0) });
    paths.on_loss(EvId(0), at_us(0));
    let probe = paths.next_probe(at_us(1_000)).unwrap();
    paths.on_probe_answer(probe.id, EvMark::None, at_us(1_000));
    let ev = paths.ev(EvId(0));
    paths.deny_ev(ev, None);
    paths.allow_ev(ev, None);
    // Otherwise this would be a relapse, and the delay 2 ms.
    paths.on_loss(EvId(0), at_us(1_500));
    assert_eq!(paths.next_timeout(), at_us(2_500));
}

#[test]
fn an_id_is_drawn_for_each_probe_and_none_is_in_flight_twice() {
    let mut paths = with_one_bad();
    paths.on_loss(EvId(1), at_us(0));
    let mut said = [500, 500, 7].into_iter();
    let mut draw = || said.next().unwrap();
    let first = paths.poll_probe(at_us(1000), ALL, 0, &mut draw).unwrap();
    let second = paths.poll_probe(at_us(1000), ALL, 0, &mut draw).unwrap();
    assert_eq!((first.id, second.id), (500, 7));
    assert_eq!(paths.on_probe_answer(7, EvMark::None, at_us(1020)), Some(second.ev));
    assert_eq!(paths.on_probe_answer(500, EvMark::None, at_us(1020)), Some(first.ev));
}

#[test]
fn packets_that_arrive_on_a_good_path_leave_no_trace() {
    let mut paths = paths(&small(1, 2, 1));
    paths.on_delivered(EvId(0), at_us(1));
    paths.on_loss(EvId(0), at_us(2));
    // No relapse, which would double the delay.
    assert_eq!(paths.next_timeout(), at_us(1_002));
}

#[test]
fn bad_paths_of_a_plane_that_returns_are_probed_at_once_and_no_others() {
    let mut paths = paths(&small(2, 4, 2));
    let [left, stayed] = [0, 1].map(|plane| ids(&paths, plane, true)[0]);
    paths.on_loss(left, at_us(0));
    paths.on_loss(stayed, at_us(0));
    paths.set_local_ports(PlaneSet(0b10));
    assert_eq!(paths.next_probe(at_us(10)), None);
    paths.set_local_ports(ALL);
    assert_eq!(paths.next_probe(at_us(10)).map(|probe| probe.ev), Some(left));
    assert_eq!(paths.next_probe(at_us(10)), None);
    assert_eq!(paths.next_probe(at_us(1_000)).map(|probe| probe.ev), Some(stayed));
}
