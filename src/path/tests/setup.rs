//! Choosing the set, and refusing configurations that make none.

use std::collections::BTreeSet;
use std::sync::Arc;

use spindrift_srv6::{EvProfile, Field};

use super::*;

#[test]
fn equal_share_for_every_plane_and_no_value_twice() {
    let paths = paths(&PathConfig::new(4));
    for plane in 0..4 {
        assert_eq!(paths.active_len(plane), 32);
        let evs: BTreeSet<Ev> = paths.states().filter(|s| s.plane == plane).map(|s| s.ev).collect();
        assert_eq!(evs.len(), 48);
    }
    assert!(paths.states().all(|s| s.state == EvState::Good && s.drop_count == 0));
    assert_eq!(paths.usable_planes(), PlaneSet(0b1111));
}

#[test]
fn shares_are_rounded_up_so_that_planes_stay_equal() {
    let paths = paths(&PathConfig { active: 10, backup: 4, ..PathConfig::new(3) });
    assert_eq!((0..3).map(|plane| paths.active_len(plane)).collect::<Vec<_>>(), [4, 4, 4]);
    assert_eq!(paths.states().count(), 3 * (4 + 2));
}

#[test]
fn no_half_of_a_random_value_is_port_zero() {
    // So many that ten or so would be among them by chance.
    for seed in 0..600 {
        let wide = Paths::new(&PathConfig { active: 512, backup: 0, ..PathConfig::new(1) }, seed).unwrap();
        assert!(wide.states().all(|s| s.ev.0 & 0xffff != 0 && s.ev.0 >> 16 != 0), "seed {seed}");
    }
    let cfg = PathConfig { active: 2730, backup: 1366, ..PathConfig::new(1) };
    let cfg = PathConfig { source: EvSource::Random { width_bits: 16 }, ..cfg };
    assert!(paths(&cfg).states().all(|s| s.ev.0 != 0 && s.ev.0 >> 16 == 0));
}

#[test]
fn values_from_a_narrow_space_differ_too() {
    let cfg = PathConfig {
        active: 48,
        backup: 16,
        source: EvSource::Random { width_bits: 8 },
        ..PathConfig::new(1)
    };
    for seed in 0..20 {
        let evs: BTreeSet<u32> = Paths::new(&cfg, seed).unwrap().states().map(|s| s.ev.0).collect();
        assert_eq!(evs.len(), 64, "seed {seed}");
        assert!(evs.iter().all(|ev| (1..256).contains(ev)), "seed {seed}: {evs:?}");
    }
}

/// Over IPv4, values that differ in the other half only would be one path.
#[test]
fn values_differ_in_the_bits_that_packets_carry() {
    for carried in [0xffff_0000, 0x0000_ffff] {
        for seed in 0..50 {
            let cfg = PathConfig { active: 512, backup: 0, carried: Ev(carried), ..PathConfig::new(1) };
            let paths = Paths::new(&cfg, seed).unwrap();
            let on_wire: BTreeSet<u32> = paths.states().map(|s| s.ev.0 & carried).collect();
            assert_eq!(on_wire.len(), 512, "{carried:#x} seed {seed}");
        }
    }
    // Too few for that: they differ as a whole.
    let few = PathConfig {
        active: 48,
        backup: 16,
        source: EvSource::Random { width_bits: 20 },
        carried: Ev(0xffff_0000),
        ..PathConfig::new(1)
    };
    assert_eq!(paths(&few).states().map(|s| s.ev.0).collect::<BTreeSet<_>>().len(), 64);
}

#[test]
fn explicit_values_fewer_than_asked_are_all_used() {
    let lists: Arc<[Vec<Ev>]> = Arc::new([(100..109).map(Ev).collect(), vec![Ev(7)]]);
    let paths = paths(&PathConfig { source: EvSource::Explicit(lists), ..PathConfig::new(2) });
    let evs: BTreeSet<u32> = paths.states().filter(|s| s.plane == 0).map(|s| s.ev.0).collect();
    assert_eq!(evs, (100..109).collect());
    // 128 : 64 as configured.
    assert_eq!((paths.active_len(0), paths.active_len(1)), (6, 1));
}

#[test]
fn explicit_values_more_than_asked_are_a_random_subset() {
    let lists: Arc<[Vec<Ev>]> = Arc::new([(1..1000).map(Ev).collect()]);
    let cfg = PathConfig { source: EvSource::Explicit(lists), ..PathConfig::new(1) };
    let chosen = |seed| {
        let paths = Paths::new(&cfg, seed).unwrap();
        paths.states().map(|s| s.ev).collect::<BTreeSet<_>>()
    };
    assert_eq!(chosen(1).len(), 192);
    assert_eq!(chosen(1), chosen(1));
    assert_ne!(chosen(1), chosen(2));
}

fn profile(bits: u8, max: u32) -> EvProfile {
    let field = Field { max, ..Field::low_bits(32, 0, bits) };
    EvProfile::new(&[96, 32], &[Field::fixed(32, 1), field]).unwrap()
}

fn routed(planes: u8, profiles: Vec<Option<EvProfile>>) -> PathConfig {
    let source = EvSource::Routed { profiles: profiles.into(), width_bits: 16 };
    PathConfig { source, ..PathConfig::new(planes) }
}

/// As many as asked for where there are more, all where there are fewer; random, and alike for equal seeds.
#[test]
fn values_of_a_profile_are_drawn_from_all_that_it_has() {
    // Of 192, of four times as many and one more, of all that there can be, of a few more than are active, of five.
    let cases = [
        (8, 191, 192, 128),
        (10, 767, 192, 128),
        (10, 768, 192, 128),
        (32, u32::MAX, 192, 128),
        (8, 130, 131, 128),
        (3, 4, 5, 5),
    ];
    for (bits, max, count, active) in cases {
        let profile = profile(bits, max);
        let cfg = routed(1, vec![Some(profile.clone())]);
        let chosen = |seed| {
            let paths = Paths::new(&cfg, seed).unwrap();
            assert_eq!(paths.active_len(0), active);
            paths.states().map(|s| s.ev).collect::<Vec<_>>()
        };
        let evs = chosen(1);
        let distinct: BTreeSet<_> = evs.iter().copied().collect();
        assert_eq!((distinct.len(), evs.len()), (count, count));
        assert!(evs.iter().all(|ev| profile.check(ev.0) == Ok(())));
        assert_eq!(chosen(1), evs);
        assert_ne!(chosen(2), evs);
        // From one end to the other, each as likely as the next.
        let seen: BTreeSet<_> = (0..40).flat_map(chosen).collect();
        let least = if profile.count() < 1000 { profile.count() as usize } else { 7600 };
        assert!(seen.len() >= least, "{} of {}", seen.len(), profile.count());
        let (first, last) = (seen.first().unwrap().0, seen.last().unwrap().0);
        let end = profile.nth(profile.count() - 1).unwrap();
        assert!(first <= end / 64 && last >= end - end / 64, "{first:#x} to {last:#x}");
    }
}

/// The floor counts on many paths. Of a few each may have failed but the last.
#[test]
fn a_few_paths_may_all_fail_but_one() {
    let one_each = routed(2, vec![Some(profile(1, 0)), Some(profile(1, 0))]);
    let eight = routed(2, vec![Some(profile(2, 3)), Some(profile(2, 3))]);
    let lists: Arc<[Vec<Ev>]> = Arc::new([(0..16).map(Ev).collect(), (0..16).map(Ev).collect()]);
    let listed = PathConfig { source: EvSource::Explicit(lists), ..PathConfig::new(2) };
    let wanted = PathConfig { active: 8, backup: 0, ..routed(1, vec![Some(profile(3, 7))]) };
    for (cfg, count, left) in [(one_each, 2, 1), (eight, 8, 1), (listed, 32, 4), (wanted, 8, 4)] {
        let mut paths = Paths::new(&cfg, 1).unwrap();
        assert_eq!(paths.states().count(), count);
        for id in (0..count).chain(0..count) {
            paths.on_loss(EvId(id as u16), at_us(1));
        }
        let bad = paths.states().filter(|s| s.state == EvState::AssumedBad).count();
        assert_eq!(count - bad, left);
        assert_eq!(paths.active_len(0) + if cfg.planes > 1 { paths.active_len(1) } else { 0 }, left);
    }
}

/// Planes without a profile are as without source routing.
#[test]
fn planes_without_a_profile_draw_as_ever() {
    let paths = Paths::new(&routed(2, vec![None, Some(profile(4, 15))]), 3).unwrap();
    let of = |plane| paths.states().filter(move |s| s.plane == plane).map(|s| s.ev.0).collect::<Vec<_>>();
    assert_eq!((of(0).len(), of(1).len()), (96, 16));
    assert!(of(0).iter().all(|&ev| ev != 0 && ev < 1 << 16));
    assert!(of(1).iter().all(|&ev| ev.trailing_zeros() >= 28));
}

/// Denied paths stay denied, and no others are.
#[test]
fn denials_pass_to_values_drawn_anew() {
    let cfg = routed(2, vec![Some(profile(3, 7)), Some(profile(3, 7))]);
    let mut before = Paths::new(&cfg, 1).unwrap();
    let ev = Ev(5 << 29);
    assert_eq!(before.deny_ev(ev, Some(1)), 1);
    before.deny_plane(0);
    let mut after = Paths::new(&cfg, 2).unwrap();
    after.deny_as(&before);
    assert_eq!((after.open_planes(), after.usable_planes()), (PlaneSet(2), PlaneSet(2)));
    for state in after.states() {
        assert_eq!(state.state == EvState::Denied, state.plane == 0 || state.ev == ev);
    }
    assert_eq!((after.allow_ev(ev, None), after.allow_plane(0)), (1, true));
    assert_eq!(after.open_planes(), PlaneSet(3));
}

#[test]
fn every_bad_field_is_named() {
    let good = PathConfig::new(4);
    let explicit = |lists: Vec<Vec<Ev>>| EvSource::Explicit(lists.into());
    let two = || vec![Ev(1), Ev(2)];
    let cases = [
        ("planes", PathConfig { planes: 0, ..good.clone() }),
        ("planes", PathConfig { planes: 33, ..good.clone() }),
        ("active", PathConfig { active: 3, ..good.clone() }),
        ("active + backup", PathConfig { active: 4096, ..good.clone() }),
        ("min_active", PathConfig { min_active: 0, ..good.clone() }),
        ("min_active", PathConfig { min_active: 129, ..good.clone() }),
        ("probe_interval_ns", PathConfig { probe_interval_ns: 0, ..good.clone() }),
        ("probe_interval_ns", PathConfig { probe_interval_ns: 2_000_000_000, ..good.clone() }),
        ("probe_interval_max_ns", PathConfig { probe_interval_max_ns: u64::MAX, ..good.clone() }),
        ("probe_timeout_ns", PathConfig { probe_timeout_ns: 0, ..good.clone() }),
        ("probes_to_revive", PathConfig { probes_to_revive: 0, ..good.clone() }),
        ("reverse_per_plane", PathConfig { reverse_per_plane: 0, ..good.clone() }),
        ("reverse_per_plane", PathConfig { reverse_per_plane: 9, ..good.clone() }),
        ("source.width_bits", PathConfig { source: EvSource::Random { width_bits: 33 }, ..good.clone() }),
        (
            "source.width_bits",
            PathConfig { active: 512, source: EvSource::Random { width_bits: 8 }, ..good.clone() },
        ),
        ("source", PathConfig { source: explicit(vec![two(); 3]), ..good.clone() }),
        ("source: 3 lists or profiles", routed(4, vec![None; 3])),
        ("source: 5 lists or profiles", routed(4, vec![None; 5])),
        (
            "source.width_bits",
            PathConfig {
                source: EvSource::Routed { profiles: vec![None; 4].into(), width_bits: 33 },
                ..good.clone()
            },
        ),
        ("source", PathConfig { source: explicit(vec![two(), two(), vec![], two()]), ..good.clone() }),
        (
            "source: plane 3 lists entropy value 0x5 twice",
            PathConfig { source: explicit(vec![two(), two(), two(), vec![Ev(5), Ev(6), Ev(5)]]), ..good },
        ),
    ];
    for (field, cfg) in cases {
        let error = Paths::new(&cfg, 0).unwrap_err().to_string();
        assert!(error.starts_with(field), "{error:?} does not name {field:?}");
    }
}

#[test]
fn every_limit_itself_is_allowed() {
    let good = PathConfig::new(4);
    let random = |width_bits| EvSource::Random { width_bits };
    for cfg in [
        PathConfig { active: 4, min_active: 1, ..good.clone() },
        PathConfig::new(32),
        PathConfig { active: 2730, backup: 1366, ..PathConfig::new(1) },
        PathConfig { min_active: 128, ..good.clone() },
        PathConfig { probe_interval_max_ns: MAX_PROBE_INTERVAL_NS, ..good.clone() },
        PathConfig { probe_interval_ns: 1_000_000_000, ..good.clone() },
        PathConfig { reverse_per_plane: MAX_REVERSE_PER_PLANE, ..good.clone() },
        PathConfig { active: 128, backup: 128, source: random(8), ..good.clone() },
    ] {
        assert_eq!(cfg.validate(), Ok(()), "{cfg:?}");
    }
    for beyond in [
        PathConfig { active: 2731, backup: 1366, ..PathConfig::new(1) },
        PathConfig { probe_interval_max_ns: MAX_PROBE_INTERVAL_NS + 1, ..good.clone() },
        PathConfig { probe_interval_ns: 1_000_000_001, ..good.clone() },
        PathConfig { active: 129, backup: 128, source: random(8), ..good.clone() },
        PathConfig { source: random(7), ..good },
    ] {
        assert!(beyond.validate().is_err(), "{beyond:?}");
    }
}

#[test]
fn a_mask_has_32_planes() {
    assert!(ALL.contains(0) && ALL.contains(31));
    assert!(!ALL.contains(32) && !ALL.contains(255));
    assert_eq!((PlaneSet::first(31).0, PlaneSet::first(32), PlaneSet::first(40)), (u32::MAX >> 1, ALL, ALL));
}

#[test]
fn ids_of_another_queue_pair_do_no_harm() {
    let mut paths = paths(&small(2, 2, 1));
    let foreign = EvId(999);
    assert_eq!((paths.ev(foreign), paths.plane(foreign)), (Ev(0), 0));
    paths.on_loss(foreign, Time::ZERO);
    paths.on_ecn(foreign, Time::ZERO);
    paths.on_delivered(foreign, Time::ZERO);
    paths.learn_reverse(foreign);
    assert!(paths.states().all(|s| s.state == EvState::Good));
}

#[test]
fn a_typical_set_takes_less_than_three_kibibytes() {
    let usual = PathConfig::new(4);
    let bytes = |cfg: &PathConfig| paths(cfg).memory_bytes();
    assert!(bytes(&usual) <= 2_776, "{} bytes", bytes(&usual));
    // Each entropy value: entry, place in the order.
    let half = PathConfig { active: 64, backup: 32, ..usual.clone() };
    assert_eq!(bytes(&usual) - bytes(&half), 96 * (8 + 2));
    // And when one has gone bad, the time of its probe, and history, and what was lost on each and on each plane.
    let mut bad = paths(&usual);
    bad.on_loss(EvId(3), Time::ZERO);
    bad.on_loss(EvId(5), Time::ZERO);
    assert_eq!(bad.memory_bytes() - bytes(&usual), 192 * (8 + 3 + 24) + 4 * 16);
    // Each plane: its part of the rotation, and a reverse path.
    let eight = PathConfig { planes: 8, ..usual.clone() };
    let reverse = bytes(&PathConfig { reverse_per_plane: 2, ..usual.clone() }) - bytes(&usual);
    assert!(reverse > 0);
    assert_eq!(bytes(&eight) - bytes(&usual), 4 * size_of::<Plane>() + reverse);
    assert_eq!(bytes(&usual), size_of::<Paths>() + 192 * 10 + 4 * size_of::<Plane>() + reverse);
}

/// Packets are counted per entropy value if requested, and only then.
#[test]
fn packets_are_counted_by_entropy_value_if_asked_for() {
    for count_packets in [true, false] {
        let mut paths = paths(&PathConfig { count_packets, ..small(2, 2, 1) });
        let mut taken = vec![0; 6];
        for packet in 0..101 {
            let avoid = (packet % 3 == 0).then_some(EvId(1));
            let path = paths.pick_path(PlaneSet::ALL, avoid).expect("all planes have room");
            taken[usize::from(path.id.0)] += u32::from(count_packets);
        }
        let mut counted = vec![0; 6];
        for status in paths.states() {
            counted[usize::from(status.id.0)] = status.packets;
        }
        assert_eq!(counted, taken);
        assert_eq!(taken.iter().sum::<u32>(), if count_packets { 101 } else { 0 });
    }
}

/// Packets of the endpoint itself take the values of a plane one after the other: those in use, the backups, and the bad ones unless only
/// values that work are wanted. Denied ones are left out. Where nothing else is left, what is there is taken.
#[test]
fn packets_of_the_endpoint_take_every_value_in_turn() {
    let mut paths = paths(&small(2, 3, 2));
    let turns = |paths: &Paths, plane, work| -> Vec<Ev> {
        (0..10).map(|turn| paths.ev_in_turn(plane, turn, work).unwrap()).collect()
    };
    let of_plane = |paths: &Paths, plane, states: &[EvState]| -> BTreeSet<Ev> {
        let states = paths.states().filter(|ev| ev.plane == plane && states.contains(&ev.state));
        states.map(|ev| ev.ev).collect()
    };
    let set = |evs: &[Ev]| evs.iter().copied().collect::<BTreeSet<_>>();
    let (good, bad) = (&[EvState::Good][..], &[EvState::Good, EvState::AssumedBad][..]);
    for plane in [0, 1] {
        let all = turns(&paths, plane, true);
        assert_eq!((all[..5].to_vec(), turns(&paths, plane, false)), (all[5..].to_vec(), all.clone()));
        assert_eq!((set(&all[..5]).len(), set(&all)), (5, of_plane(&paths, plane, good)));
    }
    let ids: Vec<_> = paths.states().filter(|ev| ev.plane == 1).map(|ev| ev.id).collect();
    let order = turns(&paths, 1, true);
    // Picks and SKIP change nothing.
    picks(&mut paths, 20);
    paths.on_ecn(ids[0], at_us(1));
    assert_eq!(turns(&paths, 1, true), order);
    paths.deny_ev(paths.ev(ids[1]), Some(1));
    paths.on_loss(ids[2], at_us(1));
    assert_eq!(set(&turns(&paths, 1, true)[..3]), of_plane(&paths, 1, &[EvState::Good, EvState::Skip]));
    let with_bad = turns(&paths, 1, false);
    assert_eq!((set(&with_bad[..4]).len(), with_bad[4]), (4, with_bad[0]));
    assert_eq!(set(&with_bad), &of_plane(&paths, 1, bad) | &of_plane(&paths, 1, &[EvState::Skip]));
    for &id in &ids[3..] {
        paths.deny_ev(paths.ev(id), Some(1));
    }
    paths.deny_ev(paths.ev(ids[0]), Some(1));
    assert_eq!(
        set(&turns(&paths, 1, true)),
        [paths.ev(ids[2])].into(),
        "a bad one is better than a denied one"
    );
    paths.deny_ev(paths.ev(ids[2]), Some(1));
    assert_eq!(turns(&paths, 1, true), order, "all are denied");
    assert_eq!(paths.ev_in_turn(2, 0, true), None);
}
