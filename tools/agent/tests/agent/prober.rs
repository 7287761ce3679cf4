//! When probes leave, and which returns are theirs.

use std::collections::BTreeMap;

use proptest::prelude::*;
use spindrift_agent::{
    Outcome, Plan, Probe, ProbeCounters, ProbeEnd, ProbeSettings, ProbeSettingsError, Prober, Refused,
    SharePolicy,
};
use spindrift_srv6::Node;

use crate::lab::{MS, fabric, t0, t1};

/// Two planes, and six paths above: eight probes each millisecond.
fn plan() -> Plan {
    let fabric = fabric((2, 1, 3), (1, 0), 1);
    Plan::new(&fabric, 0, None, SharePolicy::default()).unwrap()
}

fn with(settings: ProbeSettings) -> Prober {
    Prober::new(&plan(), settings, [1; 32], 0).unwrap()
}

fn prober() -> Prober {
    with(ProbeSettings::default())
}

/// Calls a prober exactly when it asks for it, until `end_ns`: the probes, with the times when they left. None comes back.
fn drive(prober: &mut Prober, end_ns: u64) -> Vec<(u64, Probe)> {
    let mut sent = Vec::new();
    loop {
        let now_ns = prober.next_timeout();
        if now_ns >= end_ns {
            return sent;
        }
        while prober.on_timeout(now_ns).is_some() {}
        while let Some(probe) = prober.poll(now_ns) {
            sent.push((now_ns, probe));
        }
    }
}

fn first(prober: &mut Prober) -> (u64, Probe) {
    let now_ns = prober.next_timeout();
    (now_ns, prober.poll(now_ns).unwrap())
}

fn plane_of(probe: &Probe) -> u8 {
    probe.payload.path.plane().unwrap()
}

#[test]
fn probes_are_even_in_time_and_each_path_has_its_turn() {
    let mut prober = prober();
    let sent = drive(&mut prober, 101 * MS);
    assert_eq!(prober.upper_interval_ns(), MS);
    // The start is anywhere in the first interval.
    assert!(sent[0].0 < MS, "{}", sent[0].0);
    assert!((800..=808).contains(&sent.len()), "{}", sent.len());
    assert!(sent.windows(2).all(|pair| pair[1].0 - pair[0].0 == MS / 8));
    for (seq, (_, probe)) in (0..).zip(&sent) {
        assert_eq!(probe.payload.seq, seq);
        assert_eq!(probe.payload.path, plan().route(probe.path).unwrap().path);
    }
    for interval in sent.chunks_exact(8) {
        let mut paths: Vec<_> = interval.iter().map(|(_, probe)| probe.path).collect();
        paths.sort_unstable();
        assert_eq!(paths, (0..8).collect::<Vec<_>>());
    }
}

/// A probe that the host's own queue did not take is neither lost nor back, and holds up no other.
#[test]
fn a_probe_that_was_not_sent_says_nothing() {
    let mut prober = prober();
    let (_, unsent) = first(&mut prober);
    let (sent_ns, lost) = first(&mut prober);
    prober.on_unsent(unsent.payload.seq);
    assert_eq!((prober.in_flight(), prober.counters().void), (1, 1));
    // Once, and only while it is in flight.
    prober.on_unsent(unsent.payload.seq);
    prober.on_unsent(lost.payload.seq + 9);
    assert_eq!((prober.in_flight(), prober.counters().void), (1, 1));
    let late = prober.on_return(sent_ns, plane_of(&unsent), &unsent.payload.to_bytes());
    assert_eq!(late, Err(Refused::Late));
    drive(&mut prober, sent_ns + ProbeSettings::default().timeout_ns + 1);
    prober.on_unsent(lost.payload.seq);
    assert_eq!((prober.counters().lost, prober.counters().void), (1, 1));
}

/// With four probes each interval, two are of the T0 switches, and the six paths above take turns: three intervals.
#[test]
fn paths_above_take_turns_if_there_are_too_many() {
    let mut prober = with(ProbeSettings { probes_per_interval: 4, ..ProbeSettings::default() });
    assert_eq!(prober.upper_interval_ns(), 3 * MS);
    let sent = drive(&mut prober, 31 * MS);
    assert!(sent.windows(2).all(|pair| pair[1].0 - pair[0].0 == MS / 4));
    let paths: Vec<_> = sent.iter().map(|(_, probe)| probe.path).take(16).collect();
    assert_eq!(paths, [0, 1, 2, 3, 0, 1, 4, 5, 0, 1, 6, 7, 0, 1, 2, 3]);
}

#[test]
fn settings_that_cannot_be_are_refused_by_name() {
    let good = ProbeSettings::default();
    for (settings, part) in [
        (ProbeSettings { interval_ns: 99_999, ..good }, "interval_ns = 99999: must be 100000 to 10000000000"),
        (ProbeSettings { interval_ns: 10_000_000_001, ..good }, "interval_ns = 10000000001"),
        (ProbeSettings { probes_per_interval: 1, ..good }, "probes_per_interval = 1: must be 2 to 4096"),
        (ProbeSettings { probes_per_interval: 4097, ..good }, "probes_per_interval = 4097"),
        (ProbeSettings { timeout_ns: 99_999, ..good }, "timeout_ns = 99999"),
        (ProbeSettings { timeout_ns: 250_000_001, ..good }, "timeout_ns = 250000001"),
        (ProbeSettings { stall_ns: 999_999, ..good }, "stall_ns = 999999"),
        (ProbeSettings { stall_ns: 10_000_000_001, ..good }, "stall_ns = 10000000001"),
        (
            ProbeSettings { probes_per_interval: 2, ..good },
            "2 planes take one each, and the links above need at least one; set it to 3",
        ),
    ] {
        let error = Prober::new(&plan(), settings, [0; 32], 0).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    }
    let many =
        ProbeSettings { timeout_ns: 250_000_000, interval_ns: 1_000_000, probes_per_interval: 1_045, ..good };
    assert_eq!(many.check(2), Err(ProbeSettingsError::InFlight(251 * 1_045)));
    assert_eq!(ProbeSettings { probes_per_interval: 1_044, ..many }.check(2), Ok(()));
    let few = ProbeSettings { probes_per_interval: 2, ..good }.check(2);
    assert_eq!(few, Err(ProbeSettingsError::TooFew { given: 2, planes: 2 }));
    assert_eq!(ProbeSettings { probes_per_interval: 3, ..good }.check(2), Ok(()));
}

#[test]
fn a_probe_that_comes_back_is_counted_once() {
    let mut prober = prober();
    let (now_ns, probe) = first(&mut prober);
    let bytes = probe.payload.to_bytes();
    let outcome = prober.on_return(now_ns + 7_000, plane_of(&probe), &bytes);
    let end = ProbeEnd::Returned { rtt_ns: Some(7_000) };
    assert_eq!(outcome, Ok(Outcome { path: probe.path, sent_ns: now_ns, end }));
    assert_eq!(prober.on_return(now_ns + 8_000, plane_of(&probe), &bytes), Err(Refused::Duplicate));
    assert_eq!(prober.on_timeout(now_ns + 20 * MS), None);
    let want = ProbeCounters { tx_probes: 1, rx_returned: 1, rx_duplicate: 1, ..ProbeCounters::default() };
    assert_eq!(*prober.counters(), want);
}

#[test]
fn a_probe_that_does_not_is_lost_at_its_timeout() {
    let mut prober = prober();
    let (now_ns, probe) = first(&mut prober);
    assert_eq!(prober.on_timeout(now_ns + 20 * MS - 1), None);
    // Calls in between, so that the prober was not away.
    let lost = Outcome { path: probe.path, sent_ns: now_ns, end: ProbeEnd::Lost };
    assert_eq!(prober.counters().void, 0);
    let mut prober = self::prober();
    let (now_ns, probe) = first(&mut prober);
    for ms in 1..20 {
        assert_eq!(prober.on_timeout(now_ns + ms * MS), None);
        while prober.poll(now_ns + ms * MS).is_some() {}
    }
    assert_eq!(prober.on_timeout(now_ns + 20 * MS), Some(lost));
    assert_eq!(
        prober.on_return(now_ns + 20 * MS, plane_of(&probe), &probe.payload.to_bytes()),
        Err(Refused::Late)
    );
    assert_eq!((prober.counters().lost, prober.counters().rx_late), (1, 1));
    // It came back at its timeout, before that was called: still in time.
    let mut prober = self::prober();
    let (now_ns, probe) = first(&mut prober);
    (1..20).for_each(|ms| while prober.poll(now_ns + ms * MS).is_some() {});
    assert!(prober.on_return(now_ns + 20 * MS, plane_of(&probe), &probe.payload.to_bytes()).is_ok());
}

#[test]
fn what_was_not_sent_is_refused() {
    let mut prober = prober();
    let (now_ns, probe) = first(&mut prober);
    let good = probe.payload;
    let plane = plane_of(&probe);
    let other_path = plan().route(probe.path + 2).unwrap().path;
    let far = spindrift_agent::Path { host: 9, ..good.path };
    for (payload, plane, want) in [
        (spindrift_agent::Payload { run: good.run ^ 1, ..good }, plane, Refused::Foreign),
        (spindrift_agent::Payload { nonce: good.nonce ^ 1 << 63, ..good }, plane, Refused::Forged),
        (spindrift_agent::Payload { path: other_path, ..good }, plane, Refused::Forged),
        (spindrift_agent::Payload { path: far, ..good }, plane, Refused::Forged),
        (spindrift_agent::Payload { seq: 1, ..good }, plane, Refused::Unknown),
        (spindrift_agent::Payload { seq: u64::MAX, ..good }, plane, Refused::Unknown),
        // On the port of another plane.
        (good, plane + 1, Refused::Forged),
    ] {
        assert_eq!(prober.on_return(now_ns, plane, &payload.to_bytes()), Err(want), "{payload:?}");
    }
    assert!(matches!(prober.on_return(now_ns, plane, &[]), Err(Refused::Malformed(_))));
    let want = ProbeCounters {
        tx_probes: 1,
        rx_foreign: 1,
        rx_forged: 4,
        rx_unknown: 2,
        rx_malformed: 1,
        ..ProbeCounters::default()
    };
    assert_eq!(*prober.counters(), want);
    // None of these did any harm.
    assert!(prober.on_return(now_ns, plane, &good.to_bytes()).is_ok());
}

/// Runs differ: an agent that starts again refuses the probes of the run before.
#[test]
fn runs_and_nonces_depend_on_the_seed_alone() {
    let probes = |seed| {
        let mut prober = Prober::new(&plan(), ProbeSettings::default(), [seed; 32], 0).unwrap();
        drive(&mut prober, 10 * MS)
    };
    assert_eq!(probes(1), probes(1));
    let (one, two) = (probes(1), probes(2));
    assert_ne!(one[0].1.payload.run, two[0].1.payload.run);
    let mut nonces: Vec<_> = one.iter().chain(&two).map(|(_, probe)| probe.payload.nonce).collect();
    let len = nonces.len();
    nonces.sort_unstable();
    nonces.dedup();
    assert_eq!(nonces.len(), len);
}

/// A caller that comes each 1.5 ms gets all probes, together.
#[test]
fn a_caller_that_is_a_little_late_misses_nothing() {
    let mut prober = prober();
    let mut sent = Vec::new();
    for time in 0..100 {
        let now_ns = time * 1_500_000;
        while let Some(probe) = prober.poll(now_ns) {
            sent.push(now_ns);
            assert!(prober.on_return(now_ns, plane_of(&probe), &probe.payload.to_bytes()).is_ok());
        }
    }
    assert_eq!(prober.counters().skipped, 0);
    assert!((1_170..=1_190).contains(&sent.len()), "{}", sent.len());
}

/// A paused process: no burst, no losses, and the turns go on where they were.
#[test]
fn a_caller_that_was_away_skips_and_loses_nothing() {
    let mut prober = prober();
    let before = drive(&mut prober, 5 * MS);
    let away_ns = 905 * MS;
    assert_eq!(prober.on_timeout(away_ns), None, "nobody read the returns");
    let burst: Vec<_> = std::iter::from_fn(|| prober.poll(away_ns)).collect();
    assert_eq!(burst.len(), 1);
    let counters = *prober.counters();
    assert_eq!((counters.void, counters.lost), (before.len() as u64, 0));
    // 900 ms, but for two slots at most.
    assert!(counters.skipped.abs_diff(8 * 900) <= 2, "{counters:?}");
    let after = drive(&mut prober, 925 * MS);
    assert!(after.windows(2).all(|pair| pair[1].0 - pair[0].0 == MS / 8));
    assert!(after[0].0 - away_ns <= MS / 8);
    // Each path has its turn as before.
    let mut turns = BTreeMap::new();
    for probe in burst.iter().chain(after.iter().map(|(_, probe)| probe)).take(64) {
        *turns.entry(probe.path).or_insert(0) += 1;
    }
    assert_eq!(turns.values().copied().collect::<Vec<_>>(), [8; 8]);
    assert_eq!(prober.counters().lost, counters.lost);
}

/// Those that were in flight during the pause may be back in the socket's queue: they count as returned, without a time.
#[test]
fn returns_that_waited_for_the_caller_count_without_a_time() {
    let mut prober = prober();
    let (now_ns, probe) = first(&mut prober);
    let away_ns = now_ns + 15 * MS;
    let outcome = prober.on_return(away_ns, plane_of(&probe), &probe.payload.to_bytes());
    let end = ProbeEnd::Returned { rtt_ns: None };
    assert_eq!(outcome, Ok(Outcome { path: probe.path, sent_ns: now_ns, end }));
    // What is sent after the pause has its time again.
    let again = prober.poll(away_ns).unwrap();
    let outcome = prober.on_return(away_ns + 1_000, plane_of(&again), &again.payload.to_bytes()).unwrap();
    assert_eq!(outcome.end, ProbeEnd::Returned { rtt_ns: Some(1_000) });
}

/// A prober that probes once a second is called once a second: it was not away.
#[test]
fn a_prober_that_sleeps_as_long_as_it_may_was_not_away() {
    let mut prober = with(ProbeSettings { interval_ns: 1_000 * MS, ..ProbeSettings::default() });
    let sent = drive(&mut prober, 10_000 * MS);
    let counters = prober.counters();
    assert_eq!((counters.void, counters.skipped), (0, 0));
    assert!(sent.len() as u64 - counters.lost <= 1, "{counters:?}");
}

#[test]
fn time_that_goes_back_stands_still() {
    let mut prober = prober();
    let (now_ns, probe) = first(&mut prober);
    assert_eq!(prober.poll(now_ns - 1), None);
    let outcome = prober.on_return(0, plane_of(&probe), &probe.payload.to_bytes()).unwrap();
    assert_eq!(outcome.end, ProbeEnd::Returned { rtt_ns: Some(0) });
    assert_eq!(prober.poll(0), None);
    assert_eq!(prober.on_timeout(0), None);
}

/// Whoever never asks for timeouts: the oldest probes are forgotten, and memory is bounded.
#[test]
fn probes_in_flight_are_bounded() {
    let mut prober = with(ProbeSettings { timeout_ns: 2 * MS, ..ProbeSettings::default() });
    let mut oldest = None;
    for step in 0..8_000 {
        while let Some(probe) = prober.poll(step * MS / 8) {
            oldest.get_or_insert(probe);
        }
    }
    // Two milliseconds and one more, twice.
    assert_eq!(prober.in_flight(), 2 * 3 * 8);
    let counters = *prober.counters();
    assert_eq!(counters.void + prober.in_flight() as u64, counters.tx_probes);
    let oldest = oldest.unwrap();
    let refused = prober.on_return(1_000 * MS, plane_of(&oldest), &oldest.payload.to_bytes());
    assert_eq!(refused, Err(Refused::Unknown));
}

#[test]
fn a_lone_switch_has_no_paths_above() {
    let fabric = fabric((2, 1, 0), (1, 0), 1);
    let plan = Plan::new(&fabric, 0, None, SharePolicy::default()).unwrap();
    let mut prober = Prober::new(&plan, ProbeSettings::default(), [3; 32], 0).unwrap();
    let sent = drive(&mut prober, 10 * MS);
    assert_eq!(prober.upper_interval_ns(), 0);
    let tops: Vec<Node> = sent.iter().map(|(_, probe)| probe.payload.path.top).take(3).collect();
    assert_eq!(tops, [t0(0, 0), t0(1, 0), t0(0, 0)]);
    assert!(
        plan.upper().is_empty() && plan.number(spindrift_agent::Path { host: 0, top: t1(0, 0) }).is_none()
    );
}

proptest! {
    /// Whatever the times and the returns: every probe has one end, the counters add up, and memory is bounded.
    #[test]
    fn every_probe_ends_once(
        steps in proptest::collection::vec((0_u64..40_000_000, 0_usize..4, any::<u16>()), 1..300),
        seed: u8,
    ) {
        let mut prober = Prober::new(&plan(), ProbeSettings::default(), [seed; 32], 0).unwrap();
        let (mut now_ns, mut sent, mut ends) = (0_u64, Vec::<Probe>::new(), BTreeMap::<(usize, u64), u32>::new());
        for (after_ns, what, pick) in steps {
            // Mostly small steps, and some that are longer than all limits.
            now_ns += if pick % 8 == 0 { after_ns } else { after_ns / 64 };
            match what {
                0 => sent.extend(prober.poll(now_ns)),
                1 => while let Some(outcome) = prober.on_timeout(now_ns) {
                    prop_assert!(outcome.sent_ns + 20 * MS <= now_ns);
                    *ends.entry((outcome.path, outcome.sent_ns)).or_default() += 1;
                },
                _ if sent.is_empty() => {}
                _ => {
                    let probe = sent[usize::from(pick) % sent.len()];
                    if let Ok(outcome) = prober.on_return(now_ns, plane_of(&probe), &probe.payload.to_bytes()) {
                        prop_assert_eq!(outcome.path, probe.path);
                        *ends.entry((outcome.path, outcome.sent_ns)).or_default() += 1;
                    }
                }
            }
            prop_assert!(prober.next_timeout() <= now_ns + MS);
        }
        let counters = *prober.counters();
        prop_assert_eq!(counters.rx_returned + counters.lost, u64::from(ends.values().sum::<u32>()));
        let in_flight = prober.in_flight() as u64;
        prop_assert_eq!(counters.tx_probes, counters.rx_returned + counters.lost + counters.void + in_flight);
        prop_assert_eq!((counters.rx_forged, counters.rx_foreign, counters.rx_malformed), (0, 0, 0));
    }
}
