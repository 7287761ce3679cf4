//! Planes of a NIC that stands by: when they serve, and when the others return.

use super::*;

/// Planes 0 and 1 are primary, 2 and 3 stand by.
const PRIMARY: PlaneSet = PlaneSet(0b0011);
const STANDBY: PlaneSet = PlaneSet(0b1100);

const S: u64 = 1000 * MS;

/// Per plane 4 active entropy values and 2 backups; 2 must work.
fn config() -> PathConfig {
    PathConfig {
        active: 8,
        backup: 4,
        min_active: 2,
        standby: STANDBY,
        standby_probe_ns: 0,
        ..PathConfig::new(4)
    }
}

fn roles() -> Paths {
    paths(&config())
}

fn serving(paths: &Paths) -> PlaneSet {
    paths.role_status().unwrap().serving
}

/// The planes of the next packets.
fn used(paths: &mut Paths) -> PlaneSet {
    let ids = picks(paths, 64);
    PlaneSet(planes_of(paths, &ids).into_iter().fold(0, |mask, plane| mask | 1 << plane))
}

fn fails(paths: &mut Paths, planes: PlaneSet, now: Time) {
    for plane in (0..4).filter(|&plane| planes.contains(plane)) {
        for id in paths.of_plane(plane).map(|id| EvId(id as u16)) {
            paths.on_loss(id, now);
        }
    }
}

/// Sends every probe that is due from `from` to `until`, on planes that `answers` or not; returns the planes probed.
fn probes(paths: &mut Paths, (from, until): (Time, Time), answers: PlaneSet) -> PlaneSet {
    let (mut now, mut probed) = (from, PlaneSet::default());
    for _ in 0..100_000 {
        now = now.max(paths.next_timeout());
        if now > until {
            return probed;
        }
        paths.on_timer(now);
        while let Some(probe) = paths.next_probe(now) {
            let plane = paths.plane(probe.ev);
            probed.0 |= 1 << plane;
            if answers.contains(plane) {
                paths.on_probe_answer(probe.id, EvMark::None, now);
            }
        }
    }
    panic!("timers never end");
}

#[test]
fn packets_take_primary_planes_and_each_role_has_all_entropy_values() {
    let mut paths = roles();
    assert_eq!((serving(&paths), paths.usable_planes(), used(&mut paths)), (PRIMARY, PRIMARY, PRIMARY));
    assert_eq!(paths.open_planes(), PlaneSet(0b1111));
    assert_eq!([0, 1, 2, 3].map(|plane| (paths.active_len(plane), paths.of_plane(plane).len())), [(4, 6); 4]);
    // A NIC of another number of planes.
    let uneven = super::paths(&PathConfig { standby: PlaneSet(0b1000), ..config() });
    assert_eq!([0, 1, 2, 3].map(|plane| uneven.active_len(plane)), [3, 3, 3, 8]);
    assert!(super::paths(&small(2, 4, 2)).role_status().is_none());
}

#[test]
fn settings_that_leave_no_primary_plane_are_refused() {
    let fails = |cfg: PathConfig| Paths::new(&cfg, 1).map(drop).unwrap_err().to_string();
    for standby in [0b1111, 0b1_0000, u32::MAX] {
        let error = fails(PathConfig { standby: PlaneSet(standby), ..config() });
        let listed = format!("standby = {}: ", PlaneSet(standby));
        assert!(error.starts_with(&listed) && error.contains("one of the 4 planes"), "{error}");
    }
    let error = fails(PathConfig { failback_hold_ns: 2, failback_hold_max_ns: 1, ..config() });
    assert!(error.contains("failback_hold_max_ns (1)"), "{error}");
    let error = fails(PathConfig { standby_probe_ns: MAX_PROBE_INTERVAL_NS + 1, ..config() });
    assert!(error.starts_with("standby_probe_ns = 3600000000001"), "{error}");
    // The entropy values of both roles count.
    let error = fails(PathConfig { active: 2048, backup: 1, ..config() });
    assert!(error.contains("at most 4096"), "{error}");
    let narrow = EvSource::Random { width_bits: 8 };
    let one = PathConfig { active: 64, backup: 16, standby: PlaneSet(0b1000), source: narrow, ..config() };
    assert!(fails(one).contains("80 entropy values per plane"));
}

#[test]
fn the_standby_serves_at_once_when_no_primary_port_is_up() {
    for by_peer in [false, true] {
        let mut paths = roles();
        let set = |paths: &mut Paths, up| {
            if by_peer { paths.set_peer_ports(up) } else { paths.set_local_ports(up) }
        };
        set(&mut paths, PlaneSet(0b1110));
        assert_eq!((serving(&paths), used(&mut paths)), (PRIMARY, PlaneSet(0b0010)), "one is left");
        set(&mut paths, STANDBY);
        assert_eq!((serving(&paths), used(&mut paths)), (STANDBY, STANDBY));
        let status = paths.role_status().unwrap();
        assert_eq!((status.failovers, status.silent_failovers, status.failbacks), (1, 0, 0));
        assert_eq!(paths.take_switch(), Some(STANDBY));
        assert_eq!(paths.take_switch(), None);
    }
}

#[test]
fn packets_return_when_the_primary_planes_have_been_fit_for_the_hold_time() {
    let mut paths = roles();
    paths.set_local_ports(STANDBY);
    let later = Time(10 * S);
    assert_eq!(paths.next_timeout(), Time::ZERO, "the time of the failover");
    paths.on_timer(later);
    assert_eq!(paths.next_timeout(), Time::NEVER);
    paths.set_local_ports(ALL);
    assert_eq!(serving(&paths), STANDBY);
    paths.on_timer(later);
    assert_eq!(paths.next_timeout(), later + S);
    // A flap starts the time again, also if only one port is back.
    paths.set_local_ports(STANDBY);
    assert_eq!(paths.next_timeout(), Time::NEVER);
    paths.set_local_ports(PlaneSet(0b1101));
    paths.on_timer(later + S / 2);
    paths.on_timer(later + (S / 2 + S - 1));
    assert_eq!(serving(&paths), STANDBY);
    assert_eq!(paths.next_timeout(), later + (S / 2 + S));
    let over = later + (S / 2 + S);
    assert_eq!(probes(&mut paths, (over, over), ALL), PlaneSet(0b0001), "a probe comes first");
    assert_eq!((serving(&paths), used(&mut paths)), (PRIMARY, PlaneSet(0b0001)));
    assert_eq!((paths.next_timeout(), paths.role_status().unwrap().failbacks), (Time::NEVER, 1));
    assert_eq!(paths.take_switch(), Some(PRIMARY));
}

/// The primary planes may have failed again while they carried nothing. `standby_probe_ns`: only the return asks for a probe, or
/// there are others.
#[test]
fn packets_do_not_return_to_planes_that_carry_nothing() {
    for standby_probe_ns in [0, 100 * MS] {
        let mut paths = super::paths(&PathConfig { standby_probe_ns, ..config() });
        paths.set_local_ports(STANDBY);
        paths.on_timer(Time::ZERO);
        paths.set_local_ports(ALL);
        let probed = probes(&mut paths, (Time::ZERO, Time(5 * S)), STANDBY);
        assert_eq!(probed.0 & PRIMARY.0, PRIMARY.0);
        let status = paths.role_status().unwrap();
        assert_eq!((status.serving, status.failbacks, status.failovers), (STANDBY, 0, 1));
        let bad = |paths: &Paths| paths.states().filter(|ev| ev.state == EvState::AssumedBad).count();
        assert!(bad(&paths) > 4, "{} are known to be bad", bad(&paths));
        // They work again, for the hold time.
        probes(&mut paths, (Time(5 * S), Time(5 * S + S / 2)), ALL);
        assert_eq!((serving(&paths), bad(&paths)), (STANDBY, 0), "on hold");
        probes(&mut paths, (Time(5 * S + S / 2), Time(8 * S)), ALL);
        assert_eq!((serving(&paths), paths.role_status().unwrap().failbacks), (PRIMARY, 1));
    }
}

/// A probe of a plane that serves, sent when it did not, is no proof; nor is one of any plane before the hold time is over.
#[test]
fn only_a_probe_of_the_preferred_planes_leads_back() {
    let mut paths = super::paths(&PathConfig { standby_probe_ns: S / 4, ..config() });
    paths.on_timer(Time::ZERO);
    let early = paths.next_probe(Time::ZERO).unwrap();
    assert!(STANDBY.contains(paths.plane(early.ev)));
    paths.set_local_ports(STANDBY);
    paths.on_timer(Time::ZERO);
    paths.set_local_ports(ALL);
    paths.on_timer(Time::ZERO);
    let before = paths.next_probe(Time(S / 2)).unwrap();
    assert!(PRIMARY.contains(paths.plane(before.ev)));
    paths.on_probe_answer(before.id, EvMark::None, Time(S - 1));
    paths.on_timer(Time(S));
    assert_eq!(serving(&paths), STANDBY);
    paths.on_probe_answer(early.id, EvMark::None, Time(S));
    assert_eq!(serving(&paths), STANDBY);
    let proof = paths.next_probe(Time(S)).unwrap();
    paths.on_probe_answer(proof.id, EvMark::None, Time(S + 10));
    assert_eq!(serving(&paths), PRIMARY);
    // The operator's choice takes effect at once, and the hold time is the first one again.
    paths.set_local_ports(STANDBY);
    paths.on_timer(Time(S + 20));
    assert_eq!(paths.role_status().unwrap().hold_ns, 2 * S);
    paths.set_local_ports(ALL);
    assert!(paths.prefer(PlaneRole::Primary));
    assert_eq!((serving(&paths), paths.role_status().unwrap().hold_ns), (PRIMARY, S));
    paths.set_local_ports(STANDBY);
    paths.on_timer(Time(S + 30));
    assert_eq!(paths.role_status().unwrap().hold_ns, S);
}

/// One failover and failback after `calm` seconds on the primary planes; the hold time, in seconds.
fn flap(paths: &mut Paths, now: &mut Time, calm: u64) -> u64 {
    *now = *now + calm * S;
    paths.set_local_ports(STANDBY);
    paths.on_timer(*now);
    let hold_ns = paths.role_status().unwrap().hold_ns;
    // The time on the standby is not calm, however long it is.
    *now = *now + 1000 * S;
    paths.set_local_ports(ALL);
    paths.on_timer(*now);
    *now = *now + hold_ns;
    probes(paths, (*now, *now), ALL);
    assert_eq!(serving(paths), PRIMARY);
    hold_ns / S
}

#[test]
fn the_hold_time_doubles_with_every_failover_and_decays() {
    let mut paths = roles();
    let mut now = Time::ZERO;
    let holds = |paths: &mut Paths, now: &mut Time, calm, count| -> Vec<u64> {
        (0..count).map(|_| flap(paths, now, calm)).collect()
    };
    assert_eq!(holds(&mut paths, &mut now, 0, 8), [1, 2, 4, 8, 16, 32, 60, 60]);
    // A minute without a failover takes back what one failover adds.
    assert_eq!(holds(&mut paths, &mut now, 59, 1), [60]);
    assert_eq!(holds(&mut paths, &mut now, 6 * 60, 1), [8]);
    assert_eq!(holds(&mut paths, &mut now, 60, 3), [8; 3]);
    assert_eq!(holds(&mut paths, &mut now, 3 * 60, 1), [2]);
    assert_eq!(holds(&mut paths, &mut now, 100 * 60, 2), [1; 2]);
    // Without a limit on the number of doublings, bits would be lost.
    let endless = PathConfig { failback_hold_ns: 1, ..config() };
    let mut paths = super::paths(&endless);
    for count in 0..100 {
        flap(&mut paths, &mut now, 0);
        assert_eq!(paths.role_status().unwrap().hold_ns, 1 << count.min(20));
    }
    // No hold at all.
    let mut paths = super::paths(&PathConfig { failback_hold_ns: 0, failback_hold_max_ns: 0, ..config() });
    flap(&mut paths, &mut now, 1);
    flap(&mut paths, &mut now, 1);
}

#[test]
fn losses_on_all_primary_paths_are_a_failure() {
    let mut paths = roles();
    // Two of plane 0 are left.
    fails(&mut paths, PlaneSet(0b0010), at_us(1));
    let left: Vec<_> = (0..6).map(EvId).collect();
    left[..4].iter().for_each(|&id| paths.on_loss(id, at_us(2)));
    assert_eq!((serving(&paths), used(&mut paths)), (PRIMARY, PlaneSet(0b0001)));
    paths.on_loss(left[4], at_us(3));
    assert_eq!((serving(&paths), paths.counters().floor_holds), (STANDBY, 0));
    assert_eq!(paths.role_status().unwrap().silent_failovers, 0);
}

#[test]
fn without_a_standby_that_works_the_floor_of_the_primary_planes_stays_in_use() {
    let mut paths = roles();
    // The planes that stand by have no floor while they do.
    fails(&mut paths, STANDBY, at_us(1));
    assert_eq!((paths.active_len(2), paths.active_len(3)), (0, 0));
    assert_eq!(serving(&paths), PRIMARY);
    for round in 0..20 {
        fails(&mut paths, PRIMARY, at_us(100 + round));
    }
    assert_eq!(paths.active_len(0) + paths.active_len(1), 2, "min_active");
    assert!(paths.counters().floor_holds > 0);
    // They stay in use, but nothing shows that they work.
    assert_eq!(serving(&paths), PlaneSet(0b1111));
    let floor: Vec<_> = paths.states().filter(|ev| ev.active).map(|ev| ev.id).collect();
    paths.on_unmarked(floor[0]);
    assert_eq!(serving(&paths), PlaneSet(0b1111), "one");
    paths.on_unmarked(floor[1]);
    assert_eq!(serving(&paths), PRIMARY);
}

/// All paths of plane 1 are bad; then the port of plane 0 goes down.
#[test]
fn a_primary_plane_without_good_paths_does_not_serve_alone() {
    let mut paths = roles();
    fails(&mut paths, PlaneSet(0b0010), at_us(1));
    assert_eq!((paths.active_len(1), used(&mut paths)), (0, PlaneSet(0b0001)));
    paths.set_local_ports(PlaneSet(0b1110));
    assert_eq!((serving(&paths), used(&mut paths)), (STANDBY, STANDBY));
    assert_eq!(paths.active_len(1), 0, "no bad path is taken while the standby works");
}

#[test]
fn silent_planes_are_probed_and_serve_again() {
    let mut paths = roles();
    assert_eq!(paths.fail_serving(at_us(5)), Some(PRIMARY));
    assert_eq!((serving(&paths), used(&mut paths)), (STANDBY, STANDBY));
    let status = paths.role_status().unwrap();
    assert_eq!((status.failovers, status.silent_failovers), (1, 1));
    let bad = paths.states().filter(|ev| ev.state == EvState::AssumedBad).count();
    assert_eq!((bad, paths.prober.bad), (12, 12));
    // The NIC stays dead.
    assert_eq!(probes(&mut paths, (at_us(5), Time(20 * S)), PlaneSet(0)), PRIMARY);
    assert_eq!(serving(&paths), STANDBY);
    let mut now = Time(20 * S);
    while !paths.is_fit(PRIMARY.0) {
        now = now + MS;
        probes(&mut paths, (now, now), PRIMARY);
    }
    let good = paths.states().filter(|ev| ev.state == EvState::Good && ev.plane < 2).count();
    assert!((2..=4).contains(&good), "min_active, or those probed in the same millisecond: {good}");
    probes(&mut paths, (now, now + (S - 2 * MS)), PRIMARY);
    assert_eq!(serving(&paths), STANDBY, "on hold since then");
    probes(&mut paths, (now, now + S), PRIMARY);
    assert_eq!((serving(&paths), used(&mut paths)), (PRIMARY, PRIMARY));
    probes(&mut paths, (now, now + 3 * S), PRIMARY);
    assert!(paths.states().all(|ev| ev.state == EvState::Good));
}

/// What is bad already keeps its probes, and what is denied stays denied.
#[test]
fn a_silent_failure_changes_only_entropy_values_that_worked() {
    let mut paths = roles();
    let [bad, denied] = [EvId(1), EvId(7)];
    paths.on_loss(bad, at_us(1));
    let due = paths.next_timeout();
    assert_eq!(paths.deny_ev(paths.ev(denied), Some(1)), 1);
    paths.fail_serving(at_us(5)).unwrap();
    paths.on_timer(at_us(5));
    assert_eq!([bad, denied].map(|id| state(&paths, id)), [EvState::AssumedBad, EvState::Denied]);
    assert_eq!((paths.prober.bad, paths.next_timeout()), (11, due));
    let counted = paths.states().filter(|ev| ev.state == EvState::AssumedBad).count();
    assert_eq!(counted, 11);
}

#[test]
fn silence_moves_nothing_if_the_standby_does_not_work() {
    let mut paths = roles();
    fails(&mut paths, STANDBY, at_us(1));
    assert_eq!(paths.fail_serving(at_us(5)), None);
    assert_eq!(serving(&paths), PRIMARY);
    assert_eq!(super::paths(&small(2, 4, 2)).fail_serving(at_us(5)), None, "no roles");
}

#[test]
fn a_standby_that_fails_gives_back_at_once() {
    for silent in [false, true] {
        let mut paths = roles();
        paths.set_local_ports(STANDBY);
        paths.on_timer(at_us(1));
        paths.set_local_ports(ALL);
        paths.on_timer(at_us(2));
        assert_eq!(serving(&paths), STANDBY, "on hold");
        if silent {
            assert_eq!(paths.fail_serving(at_us(3)), Some(STANDBY));
        } else {
            paths.set_peer_ports(PRIMARY);
        }
        assert_eq!((serving(&paths), used(&mut paths)), (PRIMARY, PRIMARY));
        assert_eq!(paths.role_status().unwrap().failbacks, 1);
    }
}

/// Neither role is fit: all paths of all open planes are better than none.
#[test]
fn without_a_fit_role_all_planes_serve() {
    let mut paths = roles();
    fails(&mut paths, STANDBY, at_us(1));
    paths.set_local_ports(STANDBY);
    assert_eq!(serving(&paths), PlaneSet(0b1111));
    let used_now = used(&mut paths);
    assert!(used_now.0 != 0 && used_now.0 & !STANDBY.0 == 0, "bad paths of the planes that are up");
    assert_eq!(paths.active_len(2) + paths.active_len(3), 2, "as many as the floor says");
    // Nothing is up; then one standby plane, then a primary one.
    paths.set_local_ports(PlaneSet(0));
    assert_eq!((paths.usable_planes(), paths.pick(ALL, None)), (PlaneSet(0), None));
    paths.set_local_ports(PlaneSet(0b0100));
    assert_eq!(used(&mut paths), PlaneSet(0b0100));
    paths.set_local_ports(PlaneSet(0b0110));
    assert_eq!((serving(&paths), used(&mut paths)), (PRIMARY, PlaneSet(0b0010)));
}

#[test]
fn an_operator_moves_packets_to_the_standby_and_back() {
    let mut paths = roles();
    assert!(paths.prefer(PlaneRole::Standby));
    assert_eq!((serving(&paths), used(&mut paths)), (STANDBY, STANDBY));
    assert_eq!(probes(&mut paths, (Time(1), Time(100 * S)), ALL), PlaneSet(0));
    assert_eq!(serving(&paths), STANDBY, "the choice stays");
    // It may fail as any other.
    paths.set_local_ports(PRIMARY);
    assert_eq!((serving(&paths), used(&mut paths)), (PRIMARY, PRIMARY));
    paths.set_local_ports(ALL);
    let now = Time(200 * S);
    paths.on_timer(now);
    assert_eq!(serving(&paths), PRIMARY, "on hold");
    assert_eq!(probes(&mut paths, (now + S, now + S), ALL).0 & PRIMARY.0, 0);
    assert_eq!(serving(&paths), STANDBY);
    assert!(paths.prefer(PlaneRole::Primary));
    assert_eq!((serving(&paths), used(&mut paths)), (PRIMARY, PRIMARY));
    // A role that is not fit serves later.
    paths.set_local_ports(PRIMARY);
    assert!(!paths.prefer(PlaneRole::Standby));
    assert_eq!(serving(&paths), PRIMARY);
    paths.set_local_ports(ALL);
    paths.on_timer(now + 2 * S);
    probes(&mut paths, (now + 100 * S, now + 100 * S), ALL);
    assert_eq!(serving(&paths), STANDBY);
    assert!(!super::paths(&small(2, 4, 2)).prefer(PlaneRole::Standby), "no roles");
}

#[test]
fn planes_that_stand_by_are_probed_in_turn() {
    let mut paths = super::paths(&PathConfig { standby_probe_ns: 100 * MS, ..config() });
    let mut evs = Vec::new();
    for n in 0..8 {
        let now = Time(n * 100 * MS);
        assert_eq!(paths.next_timeout(), now);
        let probe = paths.next_probe(now).unwrap();
        assert_eq!(paths.next_probe(now), None);
        assert_eq!(paths.on_probe_answer(probe.id, EvMark::None, now), Some(probe.ev));
        evs.push(probe.ev);
    }
    assert_eq!(planes_of(&paths, &evs), [2, 3, 2, 3, 2, 3, 2, 3]);
    assert_eq!(sorted(evs), sorted([2, 3].into_iter().flat_map(|plane| ids(&paths, plane, true)).collect()));
    assert!(paths.states().all(|ev| ev.state == EvState::Good));
    // A plane without a link is not probed; nor are planes that serve.
    paths.set_local_ports(PlaneSet(0b0111));
    assert_eq!(probes(&mut paths, (Time(2 * S), Time(3 * S)), ALL), PlaneSet(0b0100));
    paths.set_local_ports(PRIMARY);
    assert_eq!(probes(&mut paths, (Time(3 * S), Time(5 * S)), ALL), PlaneSet(0));
    paths.set_local_ports(ALL);
    paths.prefer(PlaneRole::Standby);
    assert_eq!(probes(&mut paths, (Time(5 * S), Time(7 * S)), ALL), PRIMARY);
    assert_eq!(roles().next_timeout(), Time::NEVER, "an interval of 0");
    // Also after a probe of a bad path that the floor has put back into use.
    let mut paths = roles();
    paths.on_loss(EvId(12), at_us(0));
    paths.next_probe(Time(MS)).unwrap();
    paths.revive(EvId(12), 0);
    paths.on_timer(Time(5 * MS));
    assert_eq!(state(&paths, EvId(12)), EvState::AssumedBad);
    assert!(paths.next_timeout() > Time(5 * MS) && paths.idle_probe_due() == Time::NEVER);
}

#[test]
fn a_dead_standby_is_known_before_it_is_needed() {
    let mut paths = super::paths(&PathConfig { standby_probe_ns: 100 * MS, ..config() });
    probes(&mut paths, (Time(0), Time(9 * MS)), PRIMARY);
    let bad = |paths: &Paths| paths.states().filter(|ev| ev.state == EvState::AssumedBad).count();
    assert_eq!(bad(&paths), 0, "the first probe has a tenth of the interval");
    probes(&mut paths, (Time(9 * MS), Time(10 * MS)), PRIMARY);
    assert_eq!(bad(&paths), 1);
    probes(&mut paths, (Time(10 * MS), Time(90 * MS)), PRIMARY);
    assert_eq!(bad(&paths), 12, "and then all without delay");
    assert!(paths.counters().probes_sent < 100, "{:?}", paths.counters());
    assert_eq!(serving(&paths), PRIMARY);
    assert_eq!(paths.fail_serving(Time(90 * MS)), None);
    // It works again.
    probes(&mut paths, (Time(90 * MS), Time(10 * S)), ALL);
    assert_eq!(bad(&paths), 0);
    // From then on one each interval.
    let sent = paths.counters().probes_sent;
    probes(&mut paths, (Time(10 * S), Time(11 * S)), ALL);
    assert_eq!(paths.counters().probes_sent - sent, 10);
    // A probe in flight when its port goes down says nothing about its path.
    let now = paths.next_timeout();
    paths.next_probe(now).unwrap();
    paths.set_local_ports(PRIMARY);
    paths.on_timer(now + 15 * MS);
    assert_eq!((bad(&paths), paths.counters().probes_expired > 12), (0, true));
    // Nor does one of a plane that serves meanwhile.
    paths.set_local_ports(ALL);
    let now = paths.next_timeout();
    paths.next_probe(now).unwrap();
    paths.prefer(PlaneRole::Standby);
    paths.on_timer(now + 15 * MS);
    assert_eq!(bad(&paths), 0);
}

/// Each direction fails over by itself: acknowledgements take the planes on which packets arrive.
#[test]
fn acknowledgements_follow_the_packets_of_the_peer() {
    let acks = |paths: &mut Paths| {
        let planes = (0..8).map(|_| {
            let (_, plane) = paths.pick_reverse(ALL, false).unwrap();
            paths.end_acks();
            plane
        });
        PlaneSet(planes.fold(0, |mask, plane| mask | 1 << plane))
    };
    let mut paths = roles();
    assert_eq!(acks(&mut paths), PRIMARY);
    paths.acks_follow(3);
    assert_eq!((acks(&mut paths), used(&mut paths)), (STANDBY, PRIMARY));
    let probed: Vec<_> = (0..4).map(|n| paths.poll_reverse_probe(Time(n * S), 0, true).unwrap().1).collect();
    assert_eq!(probed.iter().fold(0, |mask, plane| mask | 1 << plane), STANDBY.0);
    paths.set_local_ports(PlaneSet(0b0111));
    assert_eq!(acks(&mut paths), PlaneSet(0b0100));
    // Ports that are down carry none, whatever arrives.
    paths.set_local_ports(PRIMARY);
    assert_eq!(acks(&mut paths), PRIMARY);
    paths.set_local_ports(ALL);
    paths.acks_follow(0);
    assert_eq!(acks(&mut paths), PRIMARY);
    let mut plain = super::paths(&small(2, 4, 2));
    plain.acks_follow(1);
    assert_eq!(acks(&mut plain), PlaneSet(0b11));
}

#[test]
fn a_hint_takes_a_plane_that_stands_by() {
    let hint = PathHint { idle: true, ..PathHint::default() };
    let select = |paths: &mut Paths, free: u32| {
        paths.select((PlaneSet(free), ALL), &hint, |_| 0).map(|path| path.plane)
    };
    let mut paths = roles();
    let planes: Vec<_> = (0..32).map(|_| select(&mut paths, 0b1111).unwrap()).collect();
    assert!(planes.contains(&2) && planes.contains(&3) && planes.iter().all(|&plane| plane > 1));
    assert_eq!(select(&mut paths, 0b0111), Some(2));
    assert!(select(&mut paths, 0b0011) < Some(2), "no room there");
    fails(&mut paths, STANDBY, at_us(1));
    assert!(select(&mut paths, 0b1111) < Some(2), "none that works");
}

/// Any sequence of events: what serves follows from what is fit, packets leave whenever a plane is open, and timers end.
#[test]
fn whatever_happens_packets_take_a_role_that_is_fit() {
    for seed in 0..300 {
        let mut rng = SplitMix64::seed_from_u64(seed);
        let mut draw = |n: u16| u32::from(super::super::ev_pool::below(&mut rng, n));
        let probe_ns = [0, 20 * MS][draw(2) as usize];
        let hold = u64::from(draw(3)) * 50 * MS;
        let cfg = PathConfig {
            standby: PlaneSet([0b0100, 0b1100, 0b0001, 0b1110][draw(4) as usize]),
            standby_probe_ns: probe_ns,
            failback_hold_ns: hold,
            ..config()
        };
        let mut paths = Paths::new(&cfg, seed).unwrap();
        let mut now = Time(1);
        let mut answers = ALL;
        for step in 0..400 {
            now = now + u64::from(draw(2_000)) * US;
            let mask = PlaneSet(draw(16));
            match draw(12) {
                0 => paths.set_local_ports(mask),
                1 => paths.set_peer_ports(mask),
                2 => answers = mask,
                3 => assert_ne!(paths.fail_serving(now), Some(PlaneSet(0))),
                4 => {
                    let role = [PlaneRole::Primary, PlaneRole::Standby][draw(2) as usize];
                    let planes = paths.roles.as_deref().unwrap().planes(role);
                    assert_eq!(paths.prefer(role), paths.is_fit(planes), "{seed} {step}");
                }
                5 => assert!(!paths.deny_plane(mask.0 as u8 % 4) || paths.open_planes().0 != 0b1111),
                9 => {
                    let id = EvId(draw(paths.entries.len() as u16) as u16);
                    if draw(2) == 0 { paths.on_unmarked(id) } else { paths.on_delivered(id, now) }
                }
                6 => assert!((0..4).filter(|&plane| paths.allow_plane(plane)).count() <= 4),
                7 => paths.acks_follow(mask.0 as u8 % 4),
                8 => now = now + 200 * MS,
                _ => paths.on_loss(EvId(draw(paths.entries.len() as u16) as u16), now),
            }
            probes(&mut paths, (now, now), answers);
            assert!(paths.next_timeout() > now || paths.probe_is_due(now), "{seed} {step}");
            let status = paths.role_status().unwrap();
            let roles = [PlaneSet(0b1111 & !cfg.standby.0), cfg.standby];
            let (p, s) = (paths.is_fit(roles[0].0), paths.is_fit(roles[1].0));
            match (p, s) {
                (true, true) => assert!(roles.contains(&status.serving), "{seed} {step}"),
                (true, false) => assert_eq!(status.serving, roles[0], "{seed} {step}"),
                (false, true) => assert_eq!(status.serving, roles[1], "{seed} {step}"),
                (false, false) => assert_eq!(status.serving.0, 0b1111, "{seed} {step}"),
            }
            let open = paths.open_planes().0;
            let usable = paths.usable_planes().0;
            assert_eq!(usable == 0, open == 0, "{seed} {step}");
            assert_eq!(usable & !open, 0);
            if p || s {
                assert_eq!(usable & !status.serving.0, 0, "{seed} {step}");
            }
            if let Some(id) = paths.pick(ALL, None) {
                assert!(PlaneSet(usable).contains(paths.plane(id)), "{seed} {step}");
            }
            if let Some((_, plane)) = paths.pick_reverse(ALL, false) {
                assert!(PlaneSet(open).contains(plane), "{seed} {step}");
            }
            paths.end_acks();
            // Saved turns of planes that stand by would flood them later.
            let idle = (0..4).filter(|&plane| !PlaneSet(usable).contains(plane));
            assert!(idle.map(|plane| paths.planes[usize::from(plane)].debt).all(|debt| debt == 0));
        }
    }
}
