//! A deny list: what is on it is avoided while the rest suffices, and no longer.

use proptest::prelude::*;

use super::*;

const S: u64 = 1000 * MS;

/// Per plane 4 active entropy values and 2 backups; 2 must work.
fn config(planes: u8) -> PathConfig {
    PathConfig { min_active: 2, ..small(planes, 4, 2) }
}

/// The planes of the next packets.
fn used(paths: &mut Paths) -> PlaneSet {
    let ids = picks(paths, 64);
    PlaneSet(planes_of(paths, &ids).into_iter().fold(0, |mask, plane| mask | 1 << plane))
}

fn deny_planes(paths: &mut Paths, planes: u32) {
    paths.follow_deny_list(|plane, ev| ev.is_none() && PlaneSet(planes).contains(plane));
}

/// Puts these on the list, and nothing else.
fn deny_ids(paths: &mut Paths, ids: &[EvId]) {
    let denied: Vec<_> = ids.iter().map(|&id| (paths.plane(id), paths.ev(id))).collect();
    paths.follow_deny_list(|plane, ev| ev.is_some_and(|ev| denied.contains(&(plane, ev))));
}

fn lose(paths: &mut Paths, ids: impl IntoIterator<Item = usize>, now: Time) {
    ids.into_iter().for_each(|id| paths.on_loss(EvId(id as u16), now));
}

fn avoided(paths: &Paths) -> PlaneSet {
    paths.deny_list_status().unwrap().avoided
}

#[test]
fn a_plane_on_the_list_carries_no_data_and_no_acknowledgements() {
    let mut paths = paths(&config(3));
    assert_eq!(paths.deny_list_status(), None);
    deny_planes(&mut paths, 0b010);
    assert_eq!((used(&mut paths), paths.usable_planes()), (PlaneSet(0b101), PlaneSet(0b101)));
    assert_eq!(paths.open_planes(), PlaneSet(0b111), "its port is up");
    let acks = (0..16).map(|_| {
        let (_, plane) = paths.pick_reverse(ALL, true).unwrap();
        paths.end_acks();
        plane
    });
    assert!(acks.collect::<Vec<_>>().iter().all(|plane| *plane != 1));
    let denied = |paths: &Paths| {
        let denied = paths.states().filter(|ev| ev.state == EvState::Denied);
        denied.map(|ev| ev.plane).collect::<Vec<_>>()
    };
    assert_eq!(denied(&paths), [1; 6]);
    let expected = DenyListStatus {
        planes: PlaneSet(0b010),
        avoided: PlaneSet(0b010),
        evs: 0,
        released: false,
        silent_failovers: 0,
    };
    assert_eq!(paths.deny_list_status(), Some(expected));
    // Off the list.
    deny_planes(&mut paths, 0);
    assert_eq!((used(&mut paths), paths.deny_list_status()), (PlaneSet(0b111), None));
    assert!(denied(&paths).is_empty());
}

/// The peer may know that only a listed plane works.
#[test]
fn acknowledgements_follow_the_packets_of_the_peer() {
    let cfg = PathConfig { standby: PlaneSet(0b1000), standby_probe_ns: 0, ..config(4) };
    let mut paths = paths(&cfg);
    deny_planes(&mut paths, 0b0110);
    let acks = |paths: &mut Paths| {
        let planes = (0..16).map(|_| {
            let (_, plane) = paths.pick_reverse(ALL, true).unwrap();
            paths.end_acks();
            plane
        });
        PlaneSet(planes.fold(0, |mask, plane| mask | 1 << plane))
    };
    assert_eq!(acks(&mut paths), PlaneSet(0b0001));
    for (arrived, left) in [(1, 0b0110), (2, 0b0110), (0, 0b0001), (3, 0b1000), (2, 0b0110), (0, 0b0001)] {
        paths.acks_follow(arrived);
        assert_eq!(acks(&mut paths), PlaneSet(left), "{arrived}");
    }
    deny_planes(&mut paths, 0);
    assert_eq!(acks(&mut paths), PlaneSet(0b0111));
}

#[test]
fn a_list_of_all_planes_changes_nothing() {
    let mut paths = paths(&config(2));
    deny_planes(&mut paths, 0b11);
    assert_eq!((used(&mut paths), avoided(&paths)), (PlaneSet(0b11), PlaneSet(0)));
    paths.follow_deny_list(|_, _| true);
    assert_eq!(used(&mut paths), PlaneSet(0b11));
}

#[test]
fn ports_that_go_down_bring_a_listed_plane_back() {
    let mut paths = paths(&config(2));
    deny_planes(&mut paths, 0b10);
    paths.set_local_ports(PlaneSet(0b10));
    assert_eq!(used(&mut paths), PlaneSet(0b10));
    paths.set_local_ports(PlaneSet(0b11));
    assert_eq!(used(&mut paths), PlaneSet(0b01));
    paths.set_peer_ports(PlaneSet(0b10));
    assert_eq!(used(&mut paths), PlaneSet(0b10));
    paths.set_peer_ports(PlaneSet(0b11));
    // What the application orders is no advice, and leaves the plane of the list.
    paths.deny_plane(0);
    assert_eq!(used(&mut paths), PlaneSet(0b10));
    paths.allow_plane(0);
    assert_eq!(used(&mut paths), PlaneSet(0b01));
    paths.deny_plane(1);
    deny_planes(&mut paths, 0);
    assert_eq!(used(&mut paths), PlaneSet(0b01), "the application still denies it");
}

/// Losses on the only plane left: the listed one helps before a bad value has to stay in use.
#[test]
fn losses_bring_a_listed_plane_back_and_probes_end_that() {
    let mut paths = paths(&config(2));
    deny_planes(&mut paths, 0b10);
    lose(&mut paths, 0..4, at_us(1));
    assert_eq!(used(&mut paths), PlaneSet(0b01), "2 are left");
    lose(&mut paths, 4..5, at_us(2));
    assert_eq!((used(&mut paths), avoided(&paths)), (PlaneSet(0b11), PlaneSet(0)));
    assert_eq!(paths.counters().floor_holds, 0);
    lose(&mut paths, 5..6, at_us(3));
    assert_eq!(used(&mut paths), PlaneSet(0b10), "a dead plane is left alone");
    let mut now;
    while avoided(&paths) == PlaneSet(0) {
        now = paths.next_timeout();
        assert!(now < Time(S));
        paths.on_timer(now);
        while let Some(probe) = paths.next_probe(now) {
            paths.on_probe_answer(probe.id, EvMark::None, now);
        }
    }
    let good = paths.states().filter(|ev| ev.plane == 0 && ev.state != EvState::AssumedBad).count();
    assert!(used(&mut paths) == PlaneSet(0b01) && good >= 2);
}

/// All paths are bad, and the floor keeps some of them in use. Those do not count when it is asked whether the others suffice without the
/// listed plane.
#[test]
fn values_that_the_floor_keeps_do_not_make_a_plane_fit() {
    let mut paths = paths(&config(2));
    deny_planes(&mut paths, 0b10);
    lose(&mut paths, (0..5).chain(6..11).chain([5, 11]), at_us(1));
    assert_eq!((paths.counters().floor_holds, avoided(&paths)), (2, PlaneSet(0)));
    let mut now = at_us(1);
    while state(&paths, EvId(0)) == EvState::AssumedBad {
        now = now.max(paths.next_timeout());
        paths.on_timer(now);
        while let Some(probe) = paths.next_probe(now) {
            if probe.ev == EvId(0) {
                paths.on_probe_answer(probe.id, EvMark::None, now);
            }
        }
    }
    assert_eq!((paths.active_len(0), avoided(&paths)), (2, PlaneSet(0)));
    assert_eq!(used(&mut paths), PlaneSet(0b11));
}

/// All paths in use are dead, and nothing says so: tail loss probes take the listed plane too.
#[test]
fn a_listed_plane_is_tried_like_one_that_stands_by() {
    let mut paths = paths(&config(2));
    assert!(!paths.has_idle_planes());
    deny_planes(&mut paths, 0b10);
    assert!(paths.has_idle_planes());
    let tried = paths.pick_idle(ALL).unwrap();
    assert_eq!((tried.plane, paths.is_serving(tried.id)), (1, false));
    assert_eq!(paths.fail_serving(at_us(1)), Some(PlaneSet(0b01)));
    assert_eq!(used(&mut paths), PlaneSet(0b10));
    // Now there is none that could help.
    assert_eq!(paths.fail_serving(at_us(2)), None);
}

#[test]
fn entropy_values_on_the_list_are_out_of_use_and_replaced() {
    let mut paths = paths(&config(1));
    let listed = [EvId(1), EvId(2)];
    deny_ids(&mut paths, &listed);
    assert_eq!(listed.map(|id| state(&paths, id)), [EvState::Denied; 2]);
    assert_eq!(sorted(picks(&mut paths, 4)), [0, 3, 4, 5].map(EvId));
    assert_eq!(paths.deny_list_status().unwrap().evs, 2);
    deny_ids(&mut paths, &listed[1..]);
    assert_eq!(listed.map(|id| state(&paths, id)), [EvState::Good, EvState::Denied]);
    deny_ids(&mut paths, &[]);
    assert_eq!(listed.map(|id| state(&paths, id)), [EvState::Good; 2]);
}

/// All of a plane are the plane.
#[test]
fn all_entropy_values_of_a_plane_are_the_plane() {
    let mut paths = paths(&config(2));
    paths.follow_deny_list(|plane, ev| plane == 1 && ev.is_some());
    let status = paths.deny_list_status().unwrap();
    assert_eq!((status.planes, status.evs), (PlaneSet(0b10), 0));
    assert_eq!(used(&mut paths), PlaneSet(0b01));
    paths.set_local_ports(PlaneSet(0b10));
    assert_eq!(used(&mut paths), PlaneSet(0b10));
}

#[test]
fn orders_of_the_application_come_first() {
    let mut paths = paths(&config(1));
    let ev = paths.ev(EvId(1));
    deny_ids(&mut paths, &[EvId(1)]);
    // Denied by both, then by either alone.
    assert_eq!([(); 2].map(|()| paths.deny_ev(ev, None)), [1, 0]);
    deny_ids(&mut paths, &[]);
    assert_eq!(state(&paths, EvId(1)), EvState::Denied);
    deny_ids(&mut paths, &[EvId(1)]);
    assert_eq!([(); 2].map(|()| paths.allow_ev(ev, None)), [1, 0]);
    assert_eq!(state(&paths, EvId(1)), EvState::Denied);
    deny_ids(&mut paths, &[]);
    assert_eq!(state(&paths, EvId(1)), EvState::Good);
    // A bad one is good again, as if the application had denied it.
    lose(&mut paths, [1], at_us(1));
    deny_ids(&mut paths, &[EvId(1)]);
    assert_eq!((paths.deny_ev(ev, None), paths.allow_ev(ev, None)), (1, 1));
    deny_ids(&mut paths, &[]);
    assert_eq!(state(&paths, EvId(1)), EvState::Good);
    // Another path set has the application's orders, and not the list's.
    deny_ids(&mut paths, &[EvId(2)]);
    paths.deny_ev(ev, None);
    let mut copy = super::paths(&config(1));
    copy.deny_as(&paths);
    assert_eq!([1, 2].map(|id| state(&copy, EvId(id))), [EvState::Denied, EvState::Good]);
}

/// The others become too few: those on the list are in use for the hold time, and out of use again when the others
/// suffice.
#[test]
fn too_few_others_release_the_list_for_the_hold_time() {
    let cfg = PathConfig { failback_hold_ns: S, failback_hold_max_ns: 60 * S, ..config(1) };
    let mut paths = paths(&cfg);
    let listed = [EvId(0), EvId(1)];
    deny_ids(&mut paths, &listed);
    lose(&mut paths, [2, 3], at_us(1));
    assert_eq!(sorted(picks(&mut paths, 2)), [4, 5].map(EvId));
    lose(&mut paths, [4], at_us(2));
    assert_eq!(state(&paths, EvId(4)), EvState::AssumedBad, "the listed ones are worth more");
    let mut used = sorted(picks(&mut paths, 12));
    used.dedup();
    assert_eq!(used, [0, 1, 5].map(EvId));
    assert!(paths.deny_list_status().unwrap().released);
    // The timer notes the time. Nothing is good after a hold time: it goes on.
    let began = at_us(3);
    assert!(paths.next_timeout() <= began);
    paths.on_timer(began);
    paths.on_timer(began.after(S - 1));
    lose(&mut paths, [5], began.after(S - 1));
    assert!(paths.deny_list_status().unwrap().released);
    paths.on_timer(began.after(S));
    assert!(paths.deny_list_status().unwrap().released);
    // Probes revive two others, which are no more than the floor, then all.
    let mut now = began.after(S);
    let mut revive = |paths: &mut Paths, ids: &[u16]| {
        while ids.iter().any(|&id| state(paths, EvId(id)) == EvState::AssumedBad) {
            now = now.max(paths.next_timeout());
            paths.on_timer(now);
            while let Some(probe) = paths.next_probe(now) {
                if ids.contains(&probe.ev.0) {
                    paths.on_probe_answer(probe.id, EvMark::None, now);
                }
            }
        }
        now
    };
    assert!(revive(&mut paths, &[2, 3]) < began.after(2 * S));
    paths.on_timer(began.after(2 * S));
    assert!(paths.deny_list_status().unwrap().released);
    assert!(revive(&mut paths, &[2, 3, 4]) < began.after(3 * S));
    paths.on_timer(began.after(3 * S - 1));
    assert!(paths.deny_list_status().unwrap().released);
    paths.on_timer(began.after(3 * S));
    assert_eq!(listed.map(|id| state(&paths, id)), [EvState::Denied; 2]);
    assert!(!paths.deny_list_status().unwrap().released);
    // The same again, with another list: the hold time is longer.
    deny_ids(&mut paths, &listed[..1]);
    let now = began.after(3 * S);
    lose(&mut paths, 2..6, now);
    assert!(paths.deny_list_status().unwrap().released);
    paths.on_timer(now);
    assert!(paths.next_expiry() > now.after(S));
}

/// A list that leaves fewer values than the floor asks for is not followed, however well those work, and not tried each hold
/// time. One that leaves just as many is.
#[test]
fn a_list_that_leaves_too_few_stays_released() {
    let cfg = PathConfig { failback_hold_ns: S, failback_hold_max_ns: 60 * S, ..config(1) };
    for (listed, released) in [(5, true), (4, false)] {
        let mut paths = paths(&cfg);
        deny_ids(&mut paths, &(0..listed).map(EvId).collect::<Vec<_>>());
        assert_eq!(paths.deny_list_status().unwrap().released, released);
        if !released {
            // One of them was lost for a while.
            lose(&mut paths, [5], at_us(1));
            assert!(paths.deny_list_status().unwrap().released);
        }
        let began = at_us(2);
        paths.on_timer(began);
        let mut now = began;
        while state(&paths, EvId(5)) == EvState::AssumedBad {
            now = now.max(paths.next_timeout());
            paths.on_timer(now);
            while let Some(probe) = paths.next_probe(now) {
                paths.on_probe_answer(probe.id, EvMark::None, now);
            }
        }
        for round in 1..=3 {
            let due = if released || round == 1 { began.after(round * S) } else { Time::NEVER };
            assert_eq!(paths.next_expiry(), due, "{round}");
            paths.on_timer(began.after(round * S));
            let used = if released { EvState::Good } else { EvState::Denied };
            assert_eq!((state(&paths, EvId(0)), state(&paths, EvId(5))), (used, EvState::Good));
        }
    }
}

#[test]
fn a_port_change_that_leaves_too_few_releases_the_list() {
    let mut paths = paths(&PathConfig { min_active: 5, ..small(2, 4, 0) });
    deny_ids(&mut paths, &[EvId(0), EvId(1)]);
    assert_eq!([0, 1].map(|id| state(&paths, EvId(id))), [EvState::Denied; 2]);
    paths.set_peer_ports(PlaneSet(0b01));
    assert_eq!([0, 1].map(|id| state(&paths, EvId(id))), [EvState::Good; 2]);
    // Those of a plane that is down would not help.
    let mut paths = super::paths(&PathConfig { min_active: 5, ..small(2, 4, 0) });
    deny_ids(&mut paths, &[EvId(0)]);
    paths.set_peer_ports(PlaneSet(0b10));
    assert_eq!(state(&paths, EvId(0)), EvState::Denied);
}

/// Those that are released stand in reserve at first. The floor takes them from there.
#[test]
fn the_floor_takes_released_values_from_the_reserve() {
    let mut paths = paths(&PathConfig { min_active: 5, ..small(2, 3, 2) });
    deny_ids(&mut paths, &[EvId(0), EvId(1)]);
    assert_eq!(paths.active_len(0), 3);
    paths.set_peer_ports(PlaneSet(0b01));
    assert_eq!((paths.active_len(0), paths.deny_list_status().unwrap().released), (5, true));
}

/// A tail loss probe that tries what is not in use takes a listed value before a bad one.
#[test]
fn tail_loss_probes_try_listed_values() {
    let mut paths = paths(&config(1));
    deny_ids(&mut paths, &[EvId(0)]);
    lose(&mut paths, [1, 2], at_us(1));
    for _ in 0..20 {
        assert_eq!(paths.pick_bad(ALL, EvId(5)).unwrap().id, EvId(0));
    }
    assert_ne!(paths.pick_bad(ALL, EvId(0)).unwrap().id, EvId(0));
    // The application's are never tried.
    paths.deny_ev(paths.ev(EvId(0)), None);
    for _ in 0..20 {
        assert_ne!(paths.pick_bad(ALL, EvId(5)).unwrap().id, EvId(0));
    }
}

#[test]
fn planes_of_a_role_are_avoided_within_the_role() {
    let cfg = PathConfig { standby: PlaneSet(0b1100), standby_probe_ns: 0, ..config(4) };
    let mut paths = paths(&cfg);
    deny_planes(&mut paths, 0b0110);
    assert_eq!((used(&mut paths), avoided(&paths)), (PlaneSet(0b0001), PlaneSet(0b0010)));
    paths.set_local_ports(PlaneSet(0b1110));
    assert_eq!(used(&mut paths), PlaneSet(0b0010), "the role is fit");
    paths.set_local_ports(PlaneSet(0b1100));
    assert_eq!(used(&mut paths), PlaneSet(0b1000), "plane 2 is on the list too");
}

/// An operator moves traffic to the other role and back: the list holds at once in each.
#[test]
fn the_role_that_an_operator_prefers_avoids_its_own_planes() {
    let cfg = PathConfig { standby: PlaneSet(0b1100), standby_probe_ns: 0, ..config(4) };
    let mut paths = paths(&cfg);
    deny_planes(&mut paths, 0b0110);
    for (role, want, listed) in [(PlaneRole::Standby, 0b1000, 0b0100), (PlaneRole::Primary, 0b0001, 0b0010)] {
        assert!(paths.prefer(role));
        assert_eq!((used(&mut paths), avoided(&paths)), (PlaneSet(want), PlaneSet(listed)));
    }
}

#[derive(Clone, Debug)]
enum Op {
    List { planes: u32, evs: u64 },
    Lose(u8),
    Ports(u32),
    Deny(u8),
    Allow(u8),
    Time(u32),
    Probe(bool),
    Silent,
    Pick,
}

fn op() -> impl Strategy<Value = Op> {
    let mask = || prop_oneof![2 => Just(u32::MAX), 1 => any::<u32>()];
    prop_oneof![
        2 => (any::<u32>(), any::<u64>(), any::<u64>())
            .prop_map(|(planes, a, b)| Op::List { planes: planes & planes >> 8, evs: a & b }),
        1 => Just(Op::List { planes: 0, evs: 0 }),
        12 => any::<u8>().prop_map(Op::Lose),
        2 => mask().prop_map(Op::Ports),
        2 => any::<u8>().prop_map(Op::Deny),
        2 => any::<u8>().prop_map(Op::Allow),
        4 => (0_u32..2_000_000_000).prop_map(Op::Time),
        6 => any::<bool>().prop_map(Op::Probe),
        1 => Just(Op::Silent),
        6 => Just(Op::Pick),
    ]
}

/// What must hold after each event: `listed` is the list, `ordered` what the application denies.
fn check(paths: &Paths, (planes, listed): (u32, &[bool]), ordered: &[bool], up: u32) {
    let status = paths.deny_list_status().unwrap_or_default();
    let (mut good, mut others_bad, mut out) = (0, 0, 0);
    for ev in paths.states() {
        let at = usize::from(ev.id.0);
        let is_open = PlaneSet(up).contains(ev.plane);
        let by_list = listed[at] && !status.released || status.avoided.contains(ev.plane);
        assert_eq!(ev.state == EvState::Denied, ordered[at] || by_list, "{ev:?} {status:?}");
        if is_open && !status.avoided.contains(ev.plane) && !ordered[at] {
            good += u16::from(ev.state != EvState::AssumedBad && ev.state != EvState::Denied);
            others_bad += u16::from(ev.state == EvState::AssumedBad);
            out += u16::from(ev.state == EvState::Denied);
        }
    }
    // The list leaves no open plane with less than the floor, if it could give more.
    let floor = paths.min_active;
    assert!(out == 0 || good >= floor, "{good} good, {others_bad} bad, {out} listed, {status:?}");
    assert_eq!(status.avoided.0 & !status.planes.0, 0);
    assert_eq!(status.planes.0, planes);
    if status.avoided.0 & up != 0 {
        assert!(good > 0, "only planes on the list work");
    }
    // Whatever is on the list: something is used if anything could be.
    let could = paths.states().any(|ev| PlaneSet(up).contains(ev.plane) && !ordered[usize::from(ev.id.0)]);
    assert_eq!(paths.usable_planes().0 != 0, could, "{status:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 400 }))]

    /// Random lists, losses, ports, probes and orders: the list never takes the last paths away, and is followed otherwise.
    #[test]
    fn whatever_happens_the_list_is_followed_as_far_as_it_can_be(
        planes in 1_u8..5,
        (active, backup, floor) in (1_u16..5, 0_u16..3, 1_u16..5),
        seed in any::<u64>(),
        ops in proptest::collection::vec(op(), 1..120),
    ) {
        let cfg = PathConfig { min_active: floor.min(active), ..small(planes, active, backup) };
        let mut paths = Paths::new(&cfg, seed).unwrap();
        let count = paths.states().count();
        let (mut on_list, mut listed, mut ordered) = (0, vec![false; count], vec![false; count]);
        let (mut up, mut now) = (u32::MAX, Time(MS));
        for op in ops {
            match op {
                Op::List { planes: of, evs } => {
                    let of_ev = |id: usize| evs >> (id % 64) & 1 == 1;
                    let denied: Vec<_> = (0..count).filter(|&id| of_ev(id))
                        .map(|id| (paths.plane(EvId(id as u16)), paths.ev(EvId(id as u16)))).collect();
                    paths.follow_deny_list(|plane, ev| match ev {
                        None => PlaneSet(of).contains(plane),
                        Some(ev) => denied.contains(&(plane, ev)),
                    });
                    on_list = (0..planes).filter(|&plane| PlaneSet(of).contains(plane)
                        || paths.of_plane(plane).all(of_ev)).fold(0, |mask, plane| mask | 1 << plane);
                    for (id, listed) in listed.iter_mut().enumerate() {
                        *listed = of_ev(id) && !PlaneSet(on_list).contains(paths.plane(EvId(id as u16)));
                    }
                }
                Op::Lose(id) => paths.on_loss(EvId((usize::from(id) % count) as u16), now),
                Op::Ports(mask) => {
                    up = mask;
                    paths.set_local_ports(PlaneSet(mask));
                }
                Op::Deny(id) | Op::Allow(id) => {
                    let at = usize::from(id) % count;
                    let id = EvId(at as u16);
                    let denies = matches!(op, Op::Deny(_));
                    let (ev, plane) = (paths.ev(id), Some(paths.plane(id)));
                    let changed = if denies { paths.deny_ev(ev, plane) } else { paths.allow_ev(ev, plane) };
                    prop_assert_eq!(changed == 1, std::mem::replace(&mut ordered[at], denies) != denies);
                }
                Op::Time(ns) => {
                    now = now.after(ns.into());
                    paths.on_timer(now);
                }
                Op::Probe(answered) => {
                    if let Some(probe) = paths.next_probe(now) && answered {
                        paths.on_probe_answer(probe.id, EvMark::None, now);
                    }
                }
                Op::Silent => _ = paths.fail_serving(now),
                Op::Pick => {
                    if let Some(id) = paths.pick(ALL, None) {
                        let ev = status(&paths, id);
                        prop_assert!(ev.state != EvState::Denied && PlaneSet(up).contains(ev.plane));
                    }
                }
            }
            check(&paths, (on_list, &listed), &ordered, up & PlaneSet::first(planes).0);
        }
    }
}
