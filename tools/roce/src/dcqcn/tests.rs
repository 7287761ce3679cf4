#![allow(clippy::float_cmp, reason = "the values are sums of powers of two, which floats hold exactly")]

use super::*;

const LINE: u64 = 100 * GBPS;
/// So large that no float has to be rounded: g is a half.
const SIMPLE: Dcqcn = Dcqcn {
    g: 0.5,
    alpha: AlphaRule::EachCnp,
    alpha_interval_ns: 55 * US,
    decrease_interval_ns: 50 * US,
    timer_ns: 100 * US,
    byte_counter: None,
    fast_recovery: 3,
    additive_bps: 2 * GBPS,
    hyper_bps: 10 * GBPS,
    hyper_grows: false,
    clamp_target: true,
    min_bps: GBPS,
};

fn point(spec: Dcqcn) -> ReactionPoint {
    ReactionPoint::new(spec, LINE)
}

fn us(us: u64) -> Time {
    Time(us * US)
}

#[test]
fn nothing_happens_before_the_first_cnp() {
    let mut point = point(SIMPLE);
    point.on_sent(us(1), 1 << 40);
    assert_eq!((point.rate_bps(us(1_000_000)), point.alpha(), point.cnps()), (LINE, 1.0, 0));
}

/// The first cut is by half, as alpha is 1.
#[test]
fn a_cnp_cuts_by_half_of_alpha() {
    let mut point = point(SIMPLE);
    point.on_cnp(us(0));
    assert_eq!((point.rate_bps(us(0)), point.target_bps(), point.alpha()), (50 * GBPS, LINE, 1.0));
    // Alpha is 1/2 from 55 us on and 1/4 from 110 us on; at 100 us, the rate went half-way back to the target.
    assert_eq!((point.rate_bps(us(54)), point.alpha()), (50 * GBPS, 1.0));
    assert_eq!((point.rate_bps(us(55)), point.alpha()), (50 * GBPS, 0.5));
    assert_eq!(point.rate_bps(us(99)), 50 * GBPS);
    assert_eq!(point.rate_bps(us(100)), 75 * GBPS);
    assert_eq!((point.rate_bps(us(110)), point.alpha()), (75 * GBPS, 0.25));
    // 75 x (1 - 1/8), and alpha is 1/4 x 1/2 + 1/2.
    point.on_cnp(us(120));
    assert_eq!((point.rate_bps(us(120)), point.target_bps()), (65_625 * MBPS, 75 * GBPS));
    assert_eq!(point.alpha(), 0.625);
    // Its interval began anew.
    assert_eq!((point.rate_bps(us(174)), point.alpha()), (65_625 * MBPS, 0.625));
    assert_eq!((point.rate_bps(us(175)), point.alpha()), (65_625 * MBPS, 0.3125));
    assert_eq!(point.cnps(), 2);
}

/// Many intervals at once are as many one by one.
#[test]
fn alpha_shrinks_with_each_interval() {
    let [mut often, mut once] = [point(SIMPLE), point(SIMPLE)];
    often.on_cnp(us(0));
    once.on_cnp(us(0));
    for at in 0..1_100 {
        often.rate_bps(us(at));
    }
    once.rate_bps(us(1_099));
    // 19 intervals of 55 us.
    assert_eq!((often.alpha(), once.alpha()), (0.5_f64.powi(19), 0.5_f64.powi(19)));
    assert_eq!(often.rate_bps(us(1_099)), once.rate_bps(us(1_099)));
}

/// A CNP too soon after a cut is not lost: it counts when the interval is over.
#[test]
fn cuts_keep_their_distance() {
    let mut point = point(Dcqcn { g: 0.0, ..SIMPLE });
    point.on_cnp(us(0));
    point.on_cnp(us(10));
    point.on_cnp(us(20));
    assert_eq!(point.rate_bps(us(49)), 50 * GBPS);
    assert_eq!(point.rate_bps(us(50)), 25 * GBPS);
    assert_eq!(point.rate_bps(us(149)), 25 * GBPS, "one cut for both");
    assert_eq!((point.rate_bps(us(150)), point.target_bps()), (37_500 * MBPS, 50 * GBPS));
}

/// With F = 3: two steps of fast recovery, one of additive increase when the timer counts 3, then hyper increase.
#[test]
fn a_rate_recovers_in_three_phases() {
    let mut point = point(SIMPLE);
    point.on_cnp(us(0));
    // From 40 to a target of 80, so that there is something to grow by.
    (point.current_bps, point.target_bps) = (40 * GBPS, 80 * GBPS);
    let mut steps = Vec::new();
    for step in 1..=7 {
        let rate = point.rate_bps(us(100 * step));
        steps.push((rate / MBPS, point.target_bps() / MBPS));
    }
    let want = [
        (60_000, 80_000),
        (70_000, 80_000),
        // Additive: 82.
        (76_000, 82_000),
        // Hyper: 92, and no more than the port's 100.
        (84_000, 92_000),
        (92_000, 100_000),
        (96_000, 100_000),
        (98_000, 100_000),
    ];
    assert_eq!(steps, want);
    // It arrives, and stays, however long nobody asks.
    assert_eq!((point.rate_bps(us(100_000)), point.rate_bps(us(1 << 40))), (LINE, LINE));
}

/// In QCN, and in the paper's figure 7, hyper increase grows with each step.
#[test]
fn hyper_increase_may_grow() {
    let mut point = point(Dcqcn { hyper_grows: true, hyper_bps: GBPS, ..SIMPLE });
    point.on_cnp(us(0));
    (point.current_bps, point.target_bps) = (10 * GBPS, 10 * GBPS);
    let targets: Vec<_> = (1..=6)
        .map(|step| {
            point.rate_bps(us(100 * step));
            point.target_bps() / GBPS
        })
        .collect();
    assert_eq!(targets, [10, 10, 12, 13, 15, 18]);
}

/// The byte counter counts steps of its own. Additive increase needs one of the two counters, hyper increase both.
#[test]
fn the_byte_counter_steps_as_well() {
    let mut point = point(Dcqcn { byte_counter: Some(1_000), ..SIMPLE });
    point.on_cnp(us(0));
    (point.current_bps, point.target_bps) = (10 * GBPS, 10 * GBPS);
    let target = |point: &ReactionPoint| point.target_bps() / GBPS;
    let mut targets = Vec::new();
    for _ in 0..5 {
        point.on_sent(us(1), 999);
        point.on_sent(us(1), 1);
        targets.push(target(&point));
    }
    // Its third step, its fourth and its fifth: additive, since the timer has counted none.
    assert_eq!(targets, [10, 10, 12, 14, 16]);
    for step in 1..=3 {
        point.rate_bps(us(100 * step));
    }
    assert_eq!(target(&point), 22, "the timer has counted 3, which is not beyond F");
    point.rate_bps(us(400));
    assert_eq!(target(&point), 32, "4 and 5 are");
    // A cut begins both anew, and the bytes as well.
    point.on_sent(us(400), 900);
    point.on_cnp(us(410));
    (point.current_bps, point.target_bps) = (10 * GBPS, 10 * GBPS);
    point.on_sent(us(410), 999);
    assert_eq!((point.byte_steps, point.timer_steps), (0, 0));
    point.on_sent(us(410), 1_500);
    assert_eq!((point.byte_steps, target(&point)), (1, 10));
    // 1,499 bytes beyond the step count towards the next one.
    point.on_sent(us(410), 1);
    assert_eq!(point.byte_steps, 2);
}

/// The vendor's NIC: alpha moves at the end of each interval, by whether a CNP came in it.
#[test]
fn alpha_may_move_with_each_interval() {
    let mut point = point(Dcqcn { alpha: AlphaRule::EachInterval, alpha_interval_ns: 10 * US, ..SIMPLE });
    point.on_cnp(us(0));
    assert_eq!((point.rate_bps(us(9)), point.alpha()), (50 * GBPS, 1.0));
    point.rate_bps(us(10));
    assert_eq!(point.alpha(), 1.0, "a CNP came: 1 x 1/2 + 1/2");
    point.rate_bps(us(29));
    assert_eq!(point.alpha(), 0.5);
    point.rate_bps(us(40));
    assert_eq!(point.alpha(), 0.125);
    point.on_cnp(us(41));
    point.on_cnp(us(42));
    assert_eq!(point.alpha(), 0.125, "not before the interval ends");
    assert_eq!(point.rate_bps(us(49)), 50 * GBPS);
    // The interval of the first cut ends at 50 us, too: 50 x (1 - 0.5625 / 2).
    assert_eq!((point.rate_bps(us(50)), point.alpha()), (35_937_500_000, 0.5625));
    point.rate_bps(us(70));
    assert_eq!(point.alpha(), 0.140_625);
}

/// Cut twice in a row, the vendor's recovers to where it was before the first cut.
#[test]
fn a_target_may_stay() {
    for (clamp_target, want) in [(true, 50 * GBPS), (false, LINE)] {
        let mut point = point(Dcqcn { g: 0.0, clamp_target, ..SIMPLE });
        point.on_cnp(us(0));
        point.on_cnp(us(60));
        assert_eq!((point.rate_bps(us(60)), point.target_bps()), (25 * GBPS, want));
        // After a step of recovery, the target moves in any case.
        let rate = point.rate_bps(us(160));
        point.on_cnp(us(161));
        assert_eq!(point.target_bps(), rate);
    }
}

#[test]
fn there_is_a_least_rate() {
    let mut point = point(SIMPLE);
    for cnp in 0..100 {
        point.on_cnp(us(50 * cnp));
    }
    assert_eq!(point.rate_bps(us(50 * 99)), GBPS);
}

#[test]
fn profiles_are_what_they_claim() {
    let paper = Profile::Paper.reaction(40 * GBPS);
    assert_eq!((paper.g, paper.alpha_interval_ns, paper.timer_ns), (1.0 / 256.0, 55_000, 55_000));
    assert_eq!(
        (paper.byte_counter, paper.fast_recovery, paper.additive_bps),
        (Some(10_000_000), 5, 40 * MBPS)
    );
    assert_eq!(Profile::Paper.cnp_interval_ns(), 50_000);
    let marking = Profile::Paper.marking(40 * GBPS);
    assert_eq!(marking, Marking { kmin_bytes: 5_000, kmax_bytes: 200_000, pmax_ppm: 10_000 });
    // run.py at 100 Gb/s: 20 and 200 Mb/s, 400 and 1,600 kB, 0.2.
    let vendor = Profile::Vendor.reaction(100 * GBPS);
    assert_eq!((vendor.additive_bps, vendor.hyper_bps, vendor.byte_counter), (20 * MBPS, 200 * MBPS, None));
    assert_eq!(
        (vendor.alpha_interval_ns, vendor.decrease_interval_ns, vendor.timer_ns),
        (1_000, 4_000, 300_000)
    );
    let marking = Profile::Vendor.marking(100 * GBPS);
    assert_eq!(marking, Marking { kmin_bytes: 400_000, kmax_bytes: 1_600_000, pmax_ppm: 200_000 });
    // Each more aggressive one marks earlier and recovers later.
    let order = [Profile::Vendor, Profile::Aggressive, Profile::MostAggressive];
    let kmax = order.map(|profile| profile.marking(LINE).kmax_bytes);
    let timer = order.map(|profile| profile.reaction(LINE).timer_ns);
    assert!(kmax.is_sorted_by(|a, b| a > b) && timer.is_sorted_by(|a, b| a < b), "{kmax:?} {timer:?}");
    for profile in Profile::ALL {
        assert_eq!(Profile::named(profile.name()), Some(profile));
    }
    assert_eq!(Profile::named("hpcc"), None);
}

/// The vendor's steps: one of fast recovery, one additive, then hyper, as the model counts them with `FAST_RECOVERY_TIMES 1`.
#[test]
fn the_vendors_phases() {
    let mut point = point(Profile::Vendor.reaction(LINE));
    point.on_cnp(us(0));
    (point.current_bps, point.target_bps) = (10 * GBPS, 20 * GBPS);
    let targets: Vec<_> = (1..=4)
        .map(|step| {
            point.rate_bps(us(300 * step));
            point.target_bps() / MBPS
        })
        .collect();
    assert_eq!(targets, [20_000, 20_020, 20_220, 20_420]);
}

/// Queues of a fabric have the thresholds, to a nanosecond of their link.
#[test]
fn thresholds_survive_as_times() {
    for rate_bps in [25 * GBPS, 100 * GBPS, 400 * GBPS, 800 * GBPS] {
        for profile in Profile::ALL {
            let Marking { kmin_bytes, kmax_bytes, pmax_ppm } = profile.marking(rate_bps);
            let queues = profile.queues(rate_bps, None);
            let bytes = |ns: u64| ns * (rate_bps / GBPS) / 8;
            let (low, high) = queues.ecn_ns.unwrap();
            let slack = rate_bps / GBPS / 8;
            assert!((kmin_bytes..=kmin_bytes + slack).contains(&bytes(low)), "{profile:?} at {rate_bps}");
            assert!((kmax_bytes..=kmax_bytes + slack).contains(&bytes(high)), "{profile:?} at {rate_bps}");
            assert_eq!(
                (queues.ecn_most_ppm, queues.ecn_on_last_hop, queues.trim_bytes),
                (pmax_ppm, true, None)
            );
        }
    }
}
