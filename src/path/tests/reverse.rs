//! The reverse set.

use std::collections::BTreeSet;

use super::*;

const RTT: u64 = 10 * US;

/// The path of one answer alone.
fn reverse_pick(paths: &mut Paths, acks: bool) -> (Ev, u8) {
    let picked = paths.pick_reverse(ALL, acks).unwrap();
    paths.end_acks();
    picked
}

fn reverse_picks(paths: &mut Paths, count: usize) -> Vec<(Ev, u8)> {
    (0..count).map(|_| reverse_pick(paths, false)).collect()
}

#[test]
fn planes_carry_equal_parts_with_one_value_each() {
    let mut paths = paths(&PathConfig::new(4));
    let picks = reverse_picks(&mut paths, 400);
    for plane in 0..4 {
        let mut of_plane: Vec<_> = picks.iter().filter(|pick| pick.1 == plane).collect();
        assert_eq!(of_plane.len(), 100, "plane {plane}");
        of_plane.dedup();
        assert_eq!(of_plane.len(), 1);
    }
}

#[test]
fn answers_that_leave_together_take_one_path_while_it_has_room() {
    let mut paths = paths(&PathConfig { reverse_per_plane: 2, ..small(3, 6, 0) });
    for acks in [false, true, true, false] {
        let first = paths.pick_reverse(ALL, acks).unwrap();
        assert_eq!(paths.pick_reverse(ALL, acks), Some(first));
        let others = PlaneSet(0b111 & !(1 << first.1));
        let other = paths.pick_reverse(others, acks).unwrap();
        assert_eq!(other.1, (first.1 + 1) % 3, "the plane that follows");
        assert_eq!(paths.pick_reverse(ALL, acks), Some(first), "it has room again");
        paths.end_acks();
        assert_eq!(reverse_pick(&mut paths, acks).1, (first.1 + 1) % 3);
    }
}

/// Whatever is answered between two repeats, and though each packet may fill its port, the ACKs that the repeats draw take all
/// paths: one of them works.
#[test]
fn acks_take_all_paths_whatever_is_answered_in_between() {
    let configs = [
        PathConfig::new(2),
        PathConfig::new(3),
        PathConfig { reverse_per_plane: 2, ..small(1, 6, 0) },
        PathConfig { reverse_per_plane: 3, ..small(2, 6, 0) },
    ];
    for (config, fills) in configs.iter().flat_map(|config| [(config, false), (config, true)]) {
        let all = usize::from(config.planes) * usize::from(config.reverse_per_plane);
        for (sacks, between) in [(0, 0), (1, 0), (1, 1), (1, 2), (2, 1), (1, 3), (3, 0)] {
            let mut paths = paths(config);
            let mut used = BTreeSet::new();
            for _ in 0..all {
                for _ in 0..between {
                    reverse_pick(&mut paths, false);
                }
                let mut free = ALL;
                let mut last = None;
                for _ in 0..=sacks {
                    last = paths.pick_reverse(free, true);
                    if fills && config.planes > 1 {
                        free = PlaneSet(ALL.0 & !(1 << last.unwrap().1));
                    }
                }
                used.extend(last);
                paths.end_acks();
            }
            assert_eq!(used.len(), all, "{sacks} SACKs, {between} between, fills {fills}: {used:?}");
        }
    }
}

#[test]
fn a_plane_without_room_or_link_is_passed_over() {
    let mut paths = paths(&PathConfig::new(4));
    paths.set_local_ports(PlaneSet(0b0111));
    for _ in 0..20 {
        let (_, plane) = paths.pick_reverse(PlaneSet(0b1110), false).unwrap();
        paths.end_acks();
        assert!(plane == 1 || plane == 2);
    }
    assert_eq!(paths.pick_reverse(PlaneSet(0b1000), false), None);
}

#[test]
fn data_sacks_teach_it() {
    let mut paths = paths(&small(2, 4, 2));
    for id in 0..12 {
        paths.learn_reverse(EvId(id));
        let learned = (paths.ev(EvId(id)), paths.plane(EvId(id)));
        assert!(reverse_picks(&mut paths, 64).contains(&learned));
    }
}

#[test]
fn several_values_a_plane_are_learned_and_used() {
    let mut paths = paths(&PathConfig { reverse_per_plane: 2, ..small(1, 6, 0) });
    paths.learn_reverse(EvId(4));
    paths.learn_reverse(EvId(5));
    paths.learn_reverse(EvId(5));
    let mut learned = reverse_picks(&mut paths, 64);
    learned.sort();
    learned.dedup();
    let mut expected = vec![(paths.ev(EvId(4)), 0), (paths.ev(EvId(5)), 0)];
    expected.sort();
    assert_eq!(learned, expected);
}

#[test]
fn a_value_found_bad_is_replaced_by_a_good_one() {
    let mut paths = paths(&small(1, 2, 1));
    paths.learn_reverse(EvId(0));
    paths.on_loss(EvId(0), at_us(1));
    assert_ne!(reverse_picks(&mut paths, 1)[0].0, paths.ev(EvId(0)));
    // And is not learned while it is bad.
    paths.learn_reverse(EvId(0));
    assert_ne!(reverse_picks(&mut paths, 1)[0].0, paths.ev(EvId(0)));
}

#[test]
fn a_plane_without_good_paths_is_used_only_when_it_is_the_last() {
    let mut paths = paths(&small(2, 1, 0));
    paths.on_loss(EvId(0), at_us(1));
    assert!(reverse_picks(&mut paths, 10).iter().all(|&(_, plane)| plane == 1));
    assert_eq!(paths.pick_reverse(PlaneSet(0b01), false), None, "the other one will have room again");
    paths.set_local_ports(PlaneSet(0b01));
    assert_eq!(paths.pick_reverse(PlaneSet(0b01), false), Some((paths.ev(EvId(0)), 0)));
}

#[test]
fn a_receive_only_queue_pair_probes_once_a_millisecond() {
    let mut paths = paths(&PathConfig::new(4));
    assert_eq!(paths.poll_reverse_probe(at_us(0), RTT, false), None);
    paths.learn_reverse(EvId(0));
    assert_eq!(paths.poll_reverse_probe(at_us(0), RTT, true), None, "a SACK came");
    let (ev, plane, request) = paths.poll_reverse_probe(at_us(5), RTT, true).unwrap();
    assert_eq!(paths.poll_reverse_probe(at_us(1004), RTT, true), None);
    let (_, next_plane, next_request) = paths.poll_reverse_probe(at_us(1005), RTT, true).unwrap();
    assert_eq!(next_plane, (plane + 1) % 4);
    assert_ne!(next_request, request);

    assert!(paths.on_reverse_probe_answer(request, at_us(1010)));
    assert!(reverse_picks(&mut paths, 64).contains(&(ev, plane)));
    assert!(!paths.on_reverse_probe_answer(request, at_us(1011)));
    assert!(!paths.on_reverse_probe_answer(next_request.wrapping_add(1), at_us(1011)));
    assert!(paths.on_reverse_probe_answer(next_request, at_us(1012)));
    let counters = paths.counters();
    assert_eq!((counters.reverse_probes_sent, counters.reverse_probes_answered), (2, 2));
}

#[test]
fn a_long_round_trip_slows_the_probes_and_does_not_lose_answers() {
    let mut paths = paths(&PathConfig::new(2));
    let ask = |paths: &mut Paths, now| paths.poll_reverse_probe(now, 3 * MS, true);
    let (_, _, first) = ask(&mut paths, Time(0)).unwrap();
    assert_eq!(ask(&mut paths, Time(2 * MS)), None);
    ask(&mut paths, Time(3 * MS)).unwrap();
    ask(&mut paths, Time(6 * MS)).unwrap();
    assert!(paths.on_reverse_probe_answer(first, Time(7 * MS)));
}

/// A queue pair that only receives has no round-trip time of its own. Probes every millisecond would forget each one before its
/// answer comes.
#[test]
fn answers_tell_how_long_a_round_trip_is() {
    for (rtt_ms, interval_ms) in [(3, 3), (22, 22), (32, 32), (100, 32)] {
        let mut paths = paths(&PathConfig::new(2));
        let (mut sent, mut used) = (Vec::new(), Vec::new());
        for now in 0..2000 {
            let at = Time(now * MS);
            if let Some((.., ticket)) = paths.poll_reverse_probe(at, 0, true) {
                sent.push((now, ticket));
            }
            for &(then, ticket) in sent.iter().filter(|(then, _)| then + rtt_ms == now) {
                if paths.on_reverse_probe_answer(ticket, at) {
                    used.push(then);
                }
            }
        }
        let times: Vec<_> = sent.iter().map(|(then, _)| *then).collect();
        assert_eq!(times[..4], [0, 1, 2, 3], "as often as may be at first: {times:?}");
        let first_of_use = used[0];
        assert!(first_of_use < 2 * rtt_ms, "{rtt_ms} ms: the first answer of use was of {first_of_use}");
        let late: Vec<_> = times.into_iter().skip_while(|&then| then < 3 * rtt_ms + 32).collect();
        assert!(late.windows(2).all(|pair| pair[1] - pair[0] == interval_ms), "{rtt_ms} ms: {late:?}");
        let in_time = late.iter().filter(|&&then| then + rtt_ms < 2000);
        assert!(in_time.clone().count() > 40 && in_time.clone().all(|then| used.contains(then)), "{used:?}");
    }
}

/// The interval grows while no answer comes at all, not when some are lost, and a shorter round trip is noticed.
#[test]
fn only_silence_slows_reverse_probes_down() {
    let mut paths = paths(&PathConfig::new(2));
    let mut now = 0;
    let ask = |paths: &mut Paths, now: &mut u64| {
        let before = *now;
        loop {
            if let Some((.., ticket)) = paths.poll_reverse_probe(Time(*now * MS), 0, true) {
                return (*now - before, ticket);
            }
            *now += 1;
        }
    };
    let silence: Vec<_> = (0..12).map(|_| ask(&mut paths, &mut now).0).collect();
    assert_eq!(silence, [0, 1, 1, 1, 1, 2, 4, 8, 16, 32, 32, 32]);
    let (_, ticket) = ask(&mut paths, &mut now);
    assert!(paths.on_reverse_probe_answer(ticket, Time(now * MS) + 10 * US));
    // Three of four are lost, all the time.
    ask(&mut paths, &mut now);
    for _ in 0..20 {
        let (waited, ticket) = ask(&mut paths, &mut now);
        assert_eq!(waited, 1);
        assert!(paths.on_reverse_probe_answer(ticket, Time(now * MS) + 10 * US));
        for _ in 0..3 {
            assert_eq!(ask(&mut paths, &mut now).0, 1);
        }
    }
}

/// A queue pair that only receives has no losses that tell of a dead plane: an EV probe without an answer by the time of the next one
/// does.
#[test]
fn answers_avoid_planes_whose_probes_have_none() {
    let mut paths = paths(&PathConfig::new(3));
    let planes_of = |paths: &mut Paths| {
        reverse_picks(paths, 30).into_iter().map(|(_, plane)| plane).collect::<BTreeSet<_>>()
    };
    let mut now = Time(MS);
    // Probes, and those of a dead plane have no answer.
    let ask = |paths: &mut Paths, now: &mut Time, dead: u32| {
        // Longer than any interval.
        *now = *now + 33 * MS;
        let (.., plane, ticket) = paths.poll_reverse_probe(*now, RTT, true).unwrap();
        assert!(dead >> plane & 1 == 1 || paths.on_reverse_probe_answer(ticket, *now + RTT));
        (plane, ticket)
    };
    let until = |paths: &mut Paths, now: &mut Time, dead, plane| while ask(paths, now, dead).0 != plane {};
    until(&mut paths, &mut now, 0b010, 0);
    until(&mut paths, &mut now, 0b010, 1);
    assert_eq!(planes_of(&mut paths), [0, 1, 2].into(), "the answer may come");
    ask(&mut paths, &mut now, 0b010);
    assert_eq!(planes_of(&mut paths), [0, 2].into());
    // However long it lasts, with other ports full, and for ACKs, too.
    for _ in 0..20 {
        ask(&mut paths, &mut now, 0b010);
        assert_eq!(planes_of(&mut paths), [0, 2].into());
        assert_eq!(paths.pick_reverse(PlaneSet(0b110), true).map(|(_, plane)| plane), Some(2));
        assert_eq!(
            paths.pick_reverse(PlaneSet(0b010), true),
            None,
            "it waits for a port that leads somewhere"
        );
        paths.end_acks();
    }
    // The first answer brings it back, and what was lost before does not speak against it.
    until(&mut paths, &mut now, 0, 1);
    for _ in 0..6 {
        assert_eq!(planes_of(&mut paths), [0, 1, 2].into());
        ask(&mut paths, &mut now, 0);
    }
    // So does the SACK of a packet, or an answer that comes late.
    until(&mut paths, &mut now, 0b010, 1);
    ask(&mut paths, &mut now, 0b010);
    assert_eq!(planes_of(&mut paths), [0, 2].into());
    let of_plane_1 = paths.states().find(|status| status.plane == 1).unwrap().id;
    paths.learn_reverse(of_plane_1);
    assert_eq!(planes_of(&mut paths), [0, 1, 2].into());
    assert!(paths.poll_reverse_probe(now + MS, RTT, true).is_none(), "a SACK is as good as a probe");
    let ticket = loop {
        let (plane, ticket) = ask(&mut paths, &mut now, 0b010);
        if plane == 1 {
            break ticket;
        }
    };
    ask(&mut paths, &mut now, 0b010);
    assert_eq!(planes_of(&mut paths), [0, 2].into());
    assert!(paths.on_reverse_probe_answer(ticket, now));
    assert_eq!(planes_of(&mut paths), [0, 1, 2].into());
    // If no probe has a response, all planes are equal; a plane that is down stays excluded.
    for _ in 0..8 {
        ask(&mut paths, &mut now, 0b111);
    }
    assert_eq!(planes_of(&mut paths), [0, 1, 2].into());
    until(&mut paths, &mut now, 0b110, 0);
    assert_eq!(planes_of(&mut paths), [0].into());
    paths.set_local_ports(PlaneSet(0b110));
    assert_eq!(planes_of(&mut paths), [1, 2].into());
}

/// All probes that are not to wait: planes and tickets.
fn hurried(paths: &mut Paths, now: Time) -> Vec<(u8, u16)> {
    core::iter::from_fn(|| paths.poll_early_probe(now, 0)).map(|(_, plane, ticket)| (plane, ticket)).collect()
}

#[test]
fn doubt_sends_several_probes_at_once_and_again_when_they_had_their_time() {
    let mut paths = paths(&PathConfig::new(2));
    assert_eq!(hurried(&mut paths, at_us(0)), []);
    paths.suspect_reverse(at_us(1));
    let first = hurried(&mut paths, at_us(1));
    assert_eq!(first.iter().map(|&(plane, _)| plane).filter(|&plane| plane == 1).count(), 2, "{first:?}");
    assert_eq!(first.len(), 4);
    assert_eq!(
        reverse_picks(&mut paths, 8).iter().filter(|&&(_, plane)| plane == 1).count(),
        4,
        "none is late yet"
    );
    // A hundred microseconds, as long as no round trip is known.
    paths.suspect_reverse(at_us(100));
    assert_eq!(hurried(&mut paths, at_us(100)), []);
    paths.suspect_reverse(at_us(101));
    let again = hurried(&mut paths, at_us(101));
    assert_eq!(again.len(), 4);
    // One answer is enough: those that are still to be sent are not, and from now on two round trips are the time.
    paths.suspect_reverse(at_us(201));
    let (_, _, ticket) = paths.poll_early_probe(at_us(201), 0).unwrap();
    assert!(paths.on_reverse_probe_answer(ticket, at_us(211)));
    assert_eq!(hurried(&mut paths, at_us(211)), []);
    paths.suspect_reverse(at_us(212));
    assert_eq!(hurried(&mut paths, at_us(212)).len(), 4);
    paths.suspect_reverse(at_us(231));
    assert_eq!(hurried(&mut paths, at_us(231)), []);
    paths.suspect_reverse(at_us(232));
    assert_eq!(hurried(&mut paths, at_us(232)).len(), 4);
    assert_eq!(paths.counters().reverse_probes_sent, 17);
}

/// A probe that keeps the set fresh, and may have taken the path in doubt, does not hold the others back.
#[test]
fn doubt_does_not_wait_for_a_probe_that_keeps_the_set_fresh() {
    let mut paths = paths(&PathConfig::new(2));
    let (.., ticket) = paths.poll_reverse_probe(at_us(2_000), 0, true).unwrap();
    assert!(paths.on_reverse_probe_answer(ticket, at_us(2_010)));
    for (age_us, probes) in [(0, 3), (9, 3), (10, 4)] {
        let mut paths = paths.clone();
        let mut at = 2_020;
        paths.refresh_reverse(at_us(at));
        let [(plane, ticket)] = hurried(&mut paths, at_us(at))[..] else { panic!("one") };
        at += age_us;
        paths.suspect_reverse(at_us(at));
        assert_eq!(hurried(&mut paths, at_us(at)).len(), probes, "as many as have a place");
        let mut tried = paths.clone();
        let picked = (0..8).map(|_| {
            tried.end_acks();
            tried.pick_reverse(ALL, false).unwrap().1
        });
        assert_eq!(picked.into_iter().any(|of| of == plane), age_us < 10, "it is late after a round trip");
        paths.suspect_reverse(at_us(at + 19));
        assert_eq!(hurried(&mut paths, at_us(at + 19)), [], "these have two round trips of 10 us");
        assert_eq!(paths.on_reverse_probe_answer(ticket, at_us(at + 20)), age_us < 10);
    }
}

/// Four probes of one time without an answer are one time of silence.
#[test]
fn doubt_does_not_slow_the_usual_probes_down() {
    let mut paths = paths(&PathConfig::new(2));
    paths.suspect_reverse(at_us(0));
    assert_eq!(hurried(&mut paths, at_us(0)).len(), 4);
    let mut sent = Vec::new();
    for ms in 1..=10 {
        sent.extend(paths.poll_reverse_probe(Time(ms * MS), 0, true).map(|_| ms));
    }
    assert_eq!(sent, [1, 2, 3, 4, 6, 10]);
}

/// Planes whose probes had no answer are avoided, and the others are not.
#[test]
fn hurried_probes_find_silent_planes() {
    let mut paths = paths(&PathConfig::new(4));
    paths.suspect_reverse(at_us(0));
    for (plane, ticket) in hurried(&mut paths, at_us(0)) {
        assert!(plane == 2 || paths.on_reverse_probe_answer(ticket, at_us(10)));
        paths.suspect_reverse(at_us(10));
    }
    assert!(hurried(&mut paths, at_us(10)).len() == 4, "one was answered last");
    assert!(reverse_picks(&mut paths, 40).iter().all(|&(_, plane)| plane != 2));
}

#[test]
fn much_data_is_followed_by_one_probe_as_soon_as_the_last_is_answered() {
    let mut paths = paths(&PathConfig::new(2));
    let refresh = |paths: &mut Paths, us| {
        paths.refresh_reverse(at_us(us));
        hurried(paths, at_us(us))
    };
    let [(_, ticket)] = refresh(&mut paths, 1)[..] else { panic!("one") };
    assert_eq!(refresh(&mut paths, 20), [], "not answered");
    assert!(paths.on_reverse_probe_answer(ticket, at_us(31)));
    assert_eq!(refresh(&mut paths, 31).len(), 1);
    assert_eq!(refresh(&mut paths, 90), [], "two round trips of 30 us");
    assert_eq!(refresh(&mut paths, 91).len(), 1);
    // A SACK is as good as a probe.
    paths.learn_reverse(EvId(0));
    assert_eq!(refresh(&mut paths, 500), []);
    assert_eq!(refresh(&mut paths, 500).len(), 1);
}

#[test]
fn every_other_answer_in_doubt_takes_a_value_from_outside_the_set() {
    let mut paths = paths(&small(1, 16, 0));
    let usual = reverse_pick(&mut paths, false);
    let mut strays = BTreeSet::new();
    for round in 0..40 {
        let now = at_us(200 * round);
        paths.suspect_reverse(now);
        assert_eq!(hurried(&mut paths, now).len(), 4);
        let first = paths.pick_reverse(ALL, round % 4 < 2).unwrap();
        // Acknowledgements that leave together take one path, however many duplicates they acknowledge.
        paths.suspect_reverse(now);
        assert_eq!(paths.pick_reverse(ALL, round % 4 < 2), Some(first));
        paths.end_acks();
        assert_eq!(first != usual, round % 2 == 0, "round {round}");
        strays.extend((first != usual).then_some(first));
        // The other answers go where they went, to repeats too, while probes are on their way.
        paths.suspect_reverse(now);
        assert_eq!(reverse_picks(&mut paths, 3), [usual; 3]);
    }
    assert!(strays.len() > 5, "{strays:?}");
    // After much data, the next doubt is a new one.
    for n in 0..3 {
        paths.suspect_reverse(Time(n * MS + 8 * MS));
        assert_eq!(hurried(&mut paths, Time(n * MS + 8 * MS)).len(), 4);
        assert_ne!(reverse_pick(&mut paths, false), usual);
        paths.refresh_reverse(Time(n * MS + 8 * MS));
    }
}

/// On each plane that answers in doubt come to, when a port has no more room.
#[test]
fn an_answer_in_doubt_is_of_the_plane_that_it_takes() {
    let mut paths = paths(&small(2, 8, 0));
    paths.suspect_reverse(at_us(0));
    let (_, plane) = paths.pick_reverse(ALL, false).unwrap();
    let (ev, other) = paths.pick_reverse(PlaneSet(0b11 & !(1 << plane)), false).unwrap();
    assert_eq!(other, 1 - plane);
    assert!(paths.states().any(|status| status.ev == ev && status.plane == other));
    // With nothing else to take, answers take what there is.
    let mut one = Paths::new(&small(1, 1, 0), 7).unwrap();
    let usual = reverse_pick(&mut one, false);
    one.suspect_reverse(at_us(0));
    assert_eq!(reverse_pick(&mut one, false), usual);
}

#[test]
fn reverse_probes_test_all_planes_in_turn() {
    let mut paths = paths(&PathConfig::new(4));
    let planes: Vec<_> =
        (0..8).map(|n| paths.poll_reverse_probe(Time(32 * n * MS), RTT, true).unwrap().1).collect();
    assert!(planes.windows(2).all(|pair| pair[1] == (pair[0] + 1) % 4), "{planes:?}");
}

#[test]
fn the_values_of_a_plane_differ_as_long_as_there_are_enough() {
    for seed in 0..50 {
        let cfg = PathConfig { reverse_per_plane: 2, ..small(3, 3, 1) };
        let mut paths = Paths::new(&cfg, seed).unwrap();
        // Also once one of them was found bad.
        for lost in [None, Some(EvId(0)), Some(EvId(5)), Some(EvId(8))] {
            if let Some(id) = lost {
                paths.on_loss(id, at_us(1));
            }
            let mut used = reverse_picks(&mut paths, 24);
            used.sort();
            used.dedup();
            assert_eq!(used.len(), 6, "seed {seed}, {lost:?}: {used:?}");
        }
    }
}

#[test]
fn without_a_good_path_answers_take_the_one_that_was_lost_last() {
    for last in 0..3 {
        let mut paths = paths(&small(1, 3, 0));
        for id in (0..3).filter(|&id| id != last).chain([last]) {
            paths.on_always_skip(EvId(id), at_us(1));
        }
        // The floor holds one of them.
        let held = paths.states().find(|status| status.active).unwrap().id;
        assert_eq!(held, EvId(last));
        paths.deny_ev(paths.ev(held), None);
        let (ev, _) = paths.pick_reverse(ALL, false).unwrap();
        let status = paths.states().find(|status| status.ev == ev).unwrap();
        assert_ne!(status.state, EvState::Denied, "lost last {last}");
    }
}

/// A slot whose probe had its response is used again before that of a probe that still waits.
#[test]
fn probes_that_wait_for_a_response_are_not_forgotten_for_later_ones() {
    let mut paths = paths(&small(3, 6, 0));
    assert!(paths.poll_reverse_probe(at_us(0), RTT, true).is_some());
    let (_, _, waiting) = paths.poll_reverse_probe(at_us(1_000), RTT, true).unwrap();
    paths.suspect_reverse(at_us(1_000));
    let (_, _, answered) = paths.poll_early_probe(at_us(1_000), RTT).unwrap();
    assert!(paths.on_reverse_probe_answer(answered, at_us(1_000)));
    paths.suspect_reverse(at_us(1_000));
    while paths.poll_early_probe(at_us(1_000), RTT).is_some() {}
    assert!(paths.on_reverse_probe_answer(waiting, at_us(1_000)));
}
