//! Loss, round-trip times and transitions of links.

use spindrift_agent::{
    Count, LinkState, Outcome, Plan, ProbeEnd, RecordError, Recorder, SharePolicy, Transition, Window,
};
use spindrift_srv6::Fabric;

use crate::lab::{MS, fabric, t0, t1};

const TIMEOUT_NS: u64 = 20 * MS;

/// One host below two T1 switches: paths 0 to the T0 switch, 1 and 2 above.
fn recorder() -> (Fabric, Recorder) {
    let fabric = fabric((1, 1, 2), (1, 0), 1);
    let plan = Plan::new(&fabric, 0, None, SharePolicy::default()).unwrap();
    let recorder = Recorder::new(&plan, TIMEOUT_NS, 500 * MS).unwrap();
    (fabric, recorder)
}

fn returned(recorder: &mut Recorder, path: usize, sent_ns: u64, rtt_ns: u64) {
    recorder.record(&Outcome { path, sent_ns, end: ProbeEnd::Returned { rtt_ns: Some(rtt_ns) } });
}

fn lost(recorder: &mut Recorder, path: usize, sent_ns: u64) {
    recorder.record(&Outcome { path, sent_ns, end: ProbeEnd::Lost });
}

#[test]
fn each_window_counts_what_was_sent_in_it() {
    let (_, mut recorder) = recorder();
    // A probe each 10 ms for 400 s; the first of each second is lost.
    for number in 0..40_000_u64 {
        let sent_ns = number * 10 * MS;
        if number % 100 == 0 {
            lost(&mut recorder, 1, sent_ns);
        } else {
            returned(&mut recorder, 1, sent_ns, 1_000);
        }
    }
    let count = |window| recorder.count(1, window, 400_000 * MS + TIMEOUT_NS).unwrap();
    // All windows end at 400.0 s; the longer ones count the second that begins there, in which nothing was sent.
    assert_eq!(count(Window::Fast), Count { sent: 5, lost: 0 });
    assert_eq!(count(Window::Second), Count { sent: 100, lost: 1 });
    assert_eq!(count(Window::TenSeconds), Count { sent: 900, lost: 9 });
    assert_eq!(count(Window::FiveMinutes), Count { sent: 29_900, lost: 299 });
    // Probes whose timeout is not over are in none of the short windows: before, the first of the second was in the last 50 ms.
    let earlier = recorder.count(1, Window::Fast, 399_030 * MS + TIMEOUT_NS).unwrap();
    assert_eq!(earlier, Count { sent: 5, lost: 1 });
    // Later all is out.
    for (window, ms) in [
        (Window::Fast, 50),
        (Window::Second, 1_000),
        (Window::TenSeconds, 10_000),
        (Window::FiveMinutes, 300_000),
    ] {
        assert_eq!(
            recorder.count(1, window, (400_000 + ms) * MS + TIMEOUT_NS).unwrap(),
            Count::default(),
            "{window:?}"
        );
    }
    assert_eq!(recorder.count(1, Window::Fast, 0), Some(Count::default()));
    assert_eq!(recorder.count(3, Window::Fast, 0), None);
    assert_eq!(recorder.count(2, Window::FiveMinutes, 400_000 * MS), Some(Count::default()));
    assert_eq!(count(Window::Second).loss().to_string(), "0.01");
}

#[test]
fn a_report_has_every_path_with_its_counts() {
    let (_, mut recorder) = recorder();
    lost(&mut recorder, 2, 990 * MS);
    returned(&mut recorder, 0, 100 * MS, 1_000);
    let report = recorder.report(1_000 * MS + TIMEOUT_NS);
    let tops: Vec<_> = report.paths.iter().map(|path| path.top).collect();
    assert_eq!(report.running_ns, 500 * MS);
    assert_eq!((report.host, tops), (0, vec![t0(0, 0), t1(0, 0), t1(0, 1)]));
    let (one, none) = (Count { sent: 1, lost: 1 }, Count::default());
    assert_eq!(report.paths[2].counts, [one; 4]);
    assert_eq!(report.paths[1].counts, [none; 4]);
    let returned = Count { sent: 1, lost: 0 };
    assert_eq!(report.paths[0].counts, [none, returned, returned, returned]);
    assert_eq!(report.paths[0].count(Window::Second), returned);
}

/// What the path below loses is taken off.
#[test]
fn net_loss_is_that_of_the_link_alone() {
    let (_, mut recorder) = recorder();
    let now_ns = 1_000 * MS + TIMEOUT_NS;
    for number in 0..100 {
        let ends = [number % 10 == 0, number % 4 == 0 || number % 10 == 0, number % 10 == 0];
        for (path, is_lost) in ends.into_iter().enumerate() {
            let sent_ns = (100 + number) * MS;
            if is_lost {
                lost(&mut recorder, path, sent_ns);
            } else {
                returned(&mut recorder, path, sent_ns, 1);
            }
        }
    }
    let net = |path| recorder.net_loss(path, Window::Second, now_ns).unwrap();
    // 30 of 100 are lost, and 10 of 100 below.
    assert!((net(1) - (1.0 - 0.7 / 0.9)).abs() < 1e-9, "{}", net(1));
    assert!((net(0) - 0.1).abs() < 1e-9);
    assert_eq!((net(2), recorder.net_loss(2, Window::Fast, now_ns)), (0.0, Some(0.0)));
    assert_eq!(recorder.net_loss(3, Window::Fast, now_ns), None);
    // If nothing comes back from below, nothing is known of the link.
    let (_, mut dark) = self::recorder();
    for number in 0..10 {
        lost(&mut dark, 0, number * MS);
        lost(&mut dark, 1, number * MS);
    }
    assert_eq!(dark.net_loss(1, Window::Second, now_ns), Some(0.0));
    assert_eq!(dark.net_loss(0, Window::Second, 500 * MS), Some(1.0));
}

#[test]
fn round_trips_are_those_of_ten_to_twenty_seconds() {
    let (_, mut recorder) = recorder();
    for number in 1..=1_000_u64 {
        returned(&mut recorder, 1, number * MS, number * 1_000);
    }
    // One that says nothing about the network.
    recorder.record(&Outcome { path: 1, sent_ns: 5, end: ProbeEnd::Returned { rtt_ns: None } });
    let near = |value: u64, want: u64| value.abs_diff(want) * 50 <= want;
    let trips = recorder.links()[1].round_trips(1_500 * MS);
    assert_eq!(trips.samples, 1_000);
    assert!(near(trips.p50_ns, 500_000) && near(trips.p99_ns, 990_000), "{trips:?}");
    assert!(near(trips.p999_ns, 999_000) && near(trips.max_ns, 1_000_000), "{trips:?}");
    let samples = |recorder: &Recorder, s: u64| recorder.links()[1].round_trips(s * 1_000 * MS).samples;
    // From 10 s on they are those of the period before, and from 20 s on they are gone.
    assert_eq!([9, 19, 20].map(|s| samples(&recorder, s)), [1_000, 1_000, 0]);
    returned(&mut recorder, 1, 12_000 * MS, 7);
    assert_eq!([12, 19, 20, 29, 30].map(|s| samples(&recorder, s)), [1_001, 1_001, 1, 1, 0]);
    // After a silence of a period and more.
    returned(&mut recorder, 1, 45_000 * MS, 7);
    assert_eq!(samples(&recorder, 46), 1);
    assert_eq!(samples(&recorder, 46), recorder.links()[1].round_trips(46_000 * MS).samples);
    assert_eq!(recorder.links()[0].round_trips(0).samples, 0);
    // Longer and shorter ones than there can be.
    returned(&mut recorder, 2, 0, 0);
    returned(&mut recorder, 2, 0, u64::MAX);
    let trips = recorder.links()[2].round_trips(0);
    assert!(trips.samples == 2 && near(trips.max_ns, 2_000_000_000) && trips.p50_ns < 128, "{trips:?}");
}

fn state(recorder: &Recorder, path: usize) -> (LinkState, Vec<Transition>, u64) {
    let link = &recorder.links()[path];
    (link.state(), link.transitions().collect(), link.flaps())
}

/// Ten in a row, by when they were sent: returns come in before earlier losses are known.
#[test]
fn a_link_goes_down_and_up_after_ten_in_a_row() {
    let (_, mut recorder) = recorder();
    let (up, down) =
        (|ms| Transition { at_ns: ms * MS, up: true }, |ms| Transition { at_ns: ms * MS, up: false });
    for ms in 1..200 {
        returned(&mut recorder, 0, ms * MS, 1_000);
    }
    for ms in 1..10 {
        returned(&mut recorder, 1, ms * MS, 1_000);
    }
    assert_eq!(state(&recorder, 1), (LinkState::Unknown, vec![], 0));
    returned(&mut recorder, 1, 10 * MS, 1_000);
    assert_eq!(state(&recorder, 1), (LinkState::Up, vec![up(1)], 0));
    // Nine losses and a return are no transition, and the row starts again.
    (11..20).for_each(|ms| lost(&mut recorder, 1, ms * MS));
    returned(&mut recorder, 1, 20 * MS, 1_000);
    lost(&mut recorder, 1, 21 * MS);
    assert_eq!(state(&recorder, 1).0, LinkState::Up);
    (22..30).for_each(|ms| lost(&mut recorder, 1, ms * MS));
    assert_eq!(state(&recorder, 1).0, LinkState::Up);
    lost(&mut recorder, 1, 30 * MS);
    assert_eq!(state(&recorder, 1), (LinkState::Down, vec![up(1), down(21)], 1));
    // It heals at 50 ms; losses of probes that were sent before come to light in between.
    (50..55).for_each(|ms| returned(&mut recorder, 1, ms * MS, 1_000));
    (31..50).for_each(|ms| lost(&mut recorder, 1, ms * MS));
    (55..59).for_each(|ms| returned(&mut recorder, 1, ms * MS, 1_000));
    assert_eq!(state(&recorder, 1).0, LinkState::Down);
    returned(&mut recorder, 1, 59 * MS, 1_000);
    assert_eq!(state(&recorder, 1), (LinkState::Up, vec![up(1), down(21), up(50)], 1));
    // A loss among returns is a lossy link, and no outage: the row of returns starts again.
    let before = state(&recorder, 1);
    for ms in 60..150 {
        if ms % 2 == 0 { lost(&mut recorder, 1, ms * MS) } else { returned(&mut recorder, 1, ms * MS, 1_000) }
    }
    assert_eq!(state(&recorder, 1), before);
    // Of the other link nothing is known.
    assert_eq!(state(&recorder, 2), (LinkState::Unknown, vec![], 0));
}

/// When the losses of an outage come to light, probes that were sent after it are back already: the link is up.
#[test]
fn an_outage_that_is_shorter_than_the_timeout_is_no_transition() {
    let (_, mut recorder) = recorder();
    for ms in 1..=10 {
        (0..2).for_each(|path| returned(&mut recorder, path, ms * MS, 1_000));
    }
    (28..31).for_each(|ms| (0..2).for_each(|path| returned(&mut recorder, path, ms * MS, 1_000)));
    (11..28).for_each(|ms| lost(&mut recorder, 1, ms * MS));
    assert_eq!(state(&recorder, 1), (LinkState::Up, vec![Transition { at_ns: MS, up: true }], 0));
}

/// While nothing comes back from the node below, a link is not called down.
#[test]
fn a_link_above_a_dead_one_is_not_down() {
    let (_, mut recorder) = recorder();
    for ms in 1..20 {
        (0..2).for_each(|path| returned(&mut recorder, path, ms * MS, 1_000));
    }
    for ms in 20..60 {
        (0..2).for_each(|path| lost(&mut recorder, path, ms * MS));
    }
    assert_eq!(
        recorder.links().iter().map(spindrift_agent::LinkRecord::state).collect::<Vec<_>>(),
        [LinkState::Down, LinkState::Up, LinkState::Unknown]
    );
    // The lower link heals, and the upper one turns out to have been down all the time.
    returned(&mut recorder, 0, 60 * MS, 1_000);
    lost(&mut recorder, 1, 60 * MS);
    let down = Transition { at_ns: 20 * MS, up: false };
    assert_eq!(recorder.links()[1].transitions().last(), Some(down));
}

#[test]
fn transitions_are_kept_up_to_a_number() {
    let (_, mut recorder) = recorder();
    for flap in 0..50 {
        (0..10).for_each(|ms| returned(&mut recorder, 0, (flap * 20 + ms) * MS, 1_000));
        (10..20).for_each(|ms| lost(&mut recorder, 0, (flap * 20 + ms) * MS));
    }
    let (state, transitions, flaps) = state(&recorder, 0);
    assert_eq!((state, transitions.len(), flaps), (LinkState::Down, 32, 50));
    assert_eq!(transitions.last(), Some(&Transition { at_ns: (49 * 20 + 10) * MS, up: false }));
}

#[test]
fn what_cannot_be_recorded_is_refused() {
    let fabric = fabric((1, 1, 2), (1, 0), 1);
    let plan = Plan::new(&fabric, 0, None, SharePolicy::default()).unwrap();
    let error = Recorder::new(&plan, 250 * MS + 1, 0).unwrap_err();
    assert_eq!(error, RecordError::Timeout(250 * MS + 1));
    assert!(error.to_string().contains("timeout_ns = 250000001"), "{error}");
    let mut recorder = Recorder::new(&plan, 250 * MS, 0).unwrap();
    lost(&mut recorder, 3, 0);
    assert!(recorder.report(0).paths.iter().all(|path| path.counts == [Count::default(); 4]));
}
