//! NSCC branch by branch.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::float_cmp,
    reason = "a test that meets the unexpected shall fail, and these floats are exact"
)]

mod adaptive;
mod bottleneck;
mod chance;
mod marks;
mod neighbours;
mod planes;
mod random;
mod window;

use proptest::prelude::*;

use super::*;

const MTU: u64 = 4096;
const RTT: u64 = 12_000;
const RATE: u64 = 100_000_000_000;
/// 1.5 times 100 Gb/s times 12 us.
const MAX_CWND: u64 = 225_000;
/// 0.75 times 12 us.
const TARGET: u64 = 9_000;

fn config() -> CcConfig {
    CcConfig::new(RATE, RTT, MTU as u32)
}

fn nscc(cfg: &CcConfig) -> Nscc {
    match build(&CcConfig { algorithm: CcAlgorithm::Nscc, ..cfg.clone() }, Time::ZERO).unwrap() {
        Controller::Nscc(nscc) => nscc,
        other => panic!("asked for NSCC, got {other:?}"),
    }
}

/// With a window of 100,000 bytes under a maximum of 225,000, and that many in flight.
fn halfway(cfg: &CcConfig) -> Nscc {
    let mut cc = nscc(cfg);
    cc.on_send(125_000 + 100_000);
    cc.on_loss(Time(0), 125_000);
    assert_eq!((cc.cwnd(), cc.inflight()), (100_000, 100_000));
    cc
}

const fn flight(bytes: u64) -> Flight {
    Flight { plane: 0, bytes, sent_at: Time(0) }
}

fn ack(now: u64, bytes: u64, delay: u64) -> AckSample {
    AckSample { rtt_ns: Some(RTT + delay), ..AckSample::new(Time(now), bytes) }
}

fn marked(now: u64, bytes: u64, delay: u64) -> AckSample {
    AckSample { ecn: true, ..ack(now, bytes, delay) }
}

#[test]
fn starts_with_one_and_a_half_bandwidth_delay_products() {
    let cc = nscc(&config());
    assert_eq!((cc.cwnd(), cc.max_cwnd(), cc.inflight()), (MAX_CWND, MAX_CWND, 0));
    assert_eq!(cc.base_rtt_ns(), RTT);
}

#[test]
fn a_smaller_round_trip_time_lowers_the_maximum_but_not_a_fixed_one() {
    let mut cc = nscc(&config());
    cc.on_ack(&AckSample { rtt_ns: Some(6_000), ..AckSample::new(Time(RTT), MTU) });
    assert_eq!((cc.base_rtt_ns(), cc.max_cwnd(), cc.cwnd()), (6_000, MAX_CWND / 2, MAX_CWND / 2));
    let mut cfg = config();
    cfg.nscc.max_cwnd_bytes = Some(1_000_000);
    let mut cc = nscc(&cfg);
    cc.on_ack(&AckSample { rtt_ns: Some(6_000), ..AckSample::new(Time(RTT), MTU) });
    assert_eq!((cc.base_rtt_ns(), cc.max_cwnd()), (6_000, 1_000_000));
}

#[test]
fn a_tiny_round_trip_time_leaves_one_packet() {
    let mut cc = nscc(&config());
    cc.on_ack(&AckSample { rtt_ns: Some(0), ..AckSample::new(Time(RTT), MTU) });
    assert_eq!(cc.cwnd(), MTU);
    assert!(cc.may_send(MTU));
}

/// Decision 31.
#[test]
fn between_software_the_maximum_stays_and_has_room_for_a_burst() {
    let mut cc = nscc(&CcConfig::for_software(RATE, RTT, MTU as u32));
    assert_eq!((cc.cwnd(), cc.max_cwnd(), cc.base_rtt_ns()), (MAX_CWND, MAX_CWND, RTT));
    cc.on_send(MTU);
    cc.on_ack(&AckSample { rtt_ns: Some(RTT / 4), ..AckSample::new(Time(1), MTU) });
    assert_eq!((cc.max_cwnd(), cc.base_rtt_ns()), (MAX_CWND, RTT / 4));
    // 1 Gb/s for 50 us are 6,250 bytes. A window of 32 packets is that of a round-trip time of 0.7 ms, by which all else goes.
    let slow = CcConfig::for_software(1_000_000_000, 50_000, MTU as u32);
    let of_slow = nscc(&slow);
    assert_eq!((of_slow.cwnd(), of_slow.max_cwnd()), (32 * MTU, 32 * MTU));
    let patient = CcConfig::new(1_000_000_000, 32 * MTU * 8 * 2 / 3, MTU as u32);
    let target_delay_ns = Some(slow.base_rtt_ns / 4 * 3);
    assert_eq!(slow.nscc, NsccOverrides { target_delay_ns, ..slow.nscc });
    assert_eq!(CcConfig { nscc: patient.nscc, trimming: true, ..slow }, patient);
    // Packets that took very long, while little got through.
    let mut cc = nscc(&CcConfig::for_software(RATE, RTT, MTU as u32));
    for now in [0, 100_000, 200_000] {
        cc.on_send(MTU);
        cc.on_ack(&ack(now, MTU, 1_000_000));
    }
    assert_eq!(cc.cwnd(), MAX_CWND);
    // Nothing is known of the switches. All else is as for hardware, and what is refused there is refused here.
    let hardware = config();
    let software = CcConfig::for_software(RATE, RTT, MTU as u32);
    assert!(!software.trimming);
    assert_eq!(CcConfig { nscc: hardware.nscc, trimming: true, ..software }, hardware);
    assert_eq!(CcConfig::for_software(u64::MAX, RTT, 4096).validate().unwrap_err().to_string(), {
        CcConfig::new(u64::MAX, RTT, 4096).validate().unwrap_err().to_string()
    });
    assert_eq!(CcConfig::for_software(100_000_000_000_000, 10_000_000_000, 4096).validate(), Ok(()));
}

#[test]
fn an_ack_without_a_certain_round_trip_time_only_frees_the_window() {
    let mut cc = halfway(&config());
    cc.on_ack(&AckSample { ecn: true, ..AckSample::new(Time(100_000), 50_000) });
    assert_eq!((cc.cwnd(), cc.inflight()), (100_000, 50_000));
}

#[test]
fn no_mark_high_delay_fair_increase() {
    // 8 packets are not over 8 m, the ninth takes effect: inc = 9 fi m, fi = 5 m.
    let mut cc = halfway(&config());
    for _ in 0..8 {
        cc.on_ack(&ack(1, MTU, TARGET));
    }
    assert_eq!(cc.cwnd(), 100_000);
    cc.on_ack(&ack(1, MTU, TARGET));
    let gained = 9 * MTU * 5 * MTU / 100_000;
    assert_eq!(cc.cwnd(), 100_000 + gained);
}

#[test]
fn no_mark_low_delay_proportional_increase() {
    // alpha = 4 a b m / target = 4 * 0.75 * m / 9000; a third of the target is missing.
    let mut cc = halfway(&config());
    for _ in 0..9 {
        cc.on_ack(&ack(1, MTU, 6_000));
    }
    let gained = 9.0 * 4096.0 * (3.0 * 4096.0 / 9_000.0) * 3_000.0 / 100_000.0;
    assert_eq!(cc.cwnd(), 100_000 + gained as u64);
}

#[test]
fn the_period_brings_the_adjustment_forward_and_adds_eta() {
    let mut cc = halfway(&config());
    cc.on_ack(&ack(RTT, MTU, TARGET));
    let gained = 4096.0 * 5.0 * 4096.0 / 100_000.0 + 0.15 * 4096.0;
    assert_eq!(cc.cwnd(), (100_000.0 + gained) as u64);
    // Not again before the next period.
    cc.on_ack(&ack(RTT + 1, MTU, TARGET));
    assert_eq!(cc.cwnd(), (100_000.0 + gained) as u64);
}

#[test]
fn no_delay_for_a_whole_window_fast_increase() {
    let mut cc = halfway(&config());
    // Proportional up to one window's worth, and no more than that.
    cc.on_ack(&ack(1, 100_000, 0));
    let before = cc.cwnd();
    assert_eq!(before, 100_000 + 3 * MTU);
    // More than the window: a quarter byte per byte from here on, and no proportional increase.
    cc.on_ack(&ack(2, MTU * 4, 999));
    assert_eq!(cc.cwnd(), before + MTU);
    cc.on_ack(&ack(3, MTU * 4, 0));
    assert_eq!(cc.cwnd(), before + 2 * MTU);
    // A little delay ends it: proportional again, and the count starts anew.
    cc.on_ack(&ack(4, MTU, 1_000));
    let gained = 4096.0 * (3.0 * 4096.0 / 9_000.0) * 8_000.0 / (before + 2 * MTU) as f64;
    assert_eq!(cc.cwnd(), before + 2 * MTU + gained as u64);
    cc.on_ack(&ack(5, MTU, 0));
    assert_eq!(cc.cwnd(), before + 2 * MTU + gained as u64);
}

#[test]
fn never_above_the_maximum() {
    let mut cc = nscc(&config());
    for step in 1..1_000 {
        cc.on_ack(&ack(step * 1_000, 8 * MTU, 0));
    }
    assert!(cc.cwnd() <= MAX_CWND + 8 * MTU, "{}", cc.cwnd());
    cc.on_ack(&ack(2_000_000, 9 * MTU, 2_000));
    assert_eq!(cc.cwnd(), MAX_CWND);
}

#[test]
fn mark_low_delay_nothing() {
    let mut cc = halfway(&config());
    for _ in 0..20 {
        cc.on_ack(&marked(1, MTU, TARGET - 1));
    }
    assert_eq!(cc.cwnd(), 100_000);
}

/// With an average delay of `delay`, and the first quick adaptation period begun.
fn congested(delay: u64) -> Nscc {
    let mut cc = halfway(&config());
    for _ in 0..2_000 {
        cc.on_ack(&ack(1, 0, delay));
    }
    assert!(cc.avg_delay_ns().abs_diff(delay) <= 1);
    cc
}

#[test]
fn mark_high_delay_decrease_once_a_round_trip_time() {
    let mut cc = congested(2 * TARGET);
    cc.on_ack(&marked(RTT + 1, 0, 2 * TARGET));
    // 1 - 0.8 * (18 - 9) / 18 = 0.6, then the period's eta.
    let expected = 60_000 + 614;
    assert!(cc.cwnd().abs_diff(expected) < 20, "{}", cc.cwnd());
    let after = cc.cwnd();
    cc.on_ack(&marked(2 * RTT, 0, 2 * TARGET));
    assert_eq!(cc.cwnd(), after);
    cc.on_ack(&marked(2 * RTT + 2, 0, 2 * TARGET));
    assert!(cc.cwnd() < after * 2 / 3);
}

#[test]
fn decreases_are_more_than_a_round_trip_time_apart() {
    let mut cc = congested(2 * TARGET);
    cc.on_ack(&marked(RTT + 1, 0, 2 * TARGET));
    let after = cc.cwnd();
    // Too early by nothing but the edge; the period's eta comes all the same.
    cc.on_ack(&marked(2 * RTT + 1, 0, 2 * TARGET));
    assert_eq!(cc.cwnd(), after + 614);
}

/// It must not put off the decrease that the next mark asks for.
#[test]
fn an_average_delay_on_target_is_no_reason_for_a_decrease() {
    let mut cfg = config();
    cfg.nscc.target_delay_ns = Some(1);
    let mut cc = halfway(&cfg);
    // 0.0125 of 80 ns: the average is exactly on target.
    cc.on_ack(&marked(RTT + 1, 0, 80));
    assert_eq!(cc.avg_delay_ns(), 1);
    let before = cc.cwnd();
    cc.on_ack(&marked(RTT + 2, 0, 80));
    // 1 - 0.8 * (1.9875 - 1) / 1.9875.
    let expected = (before as f64 * 0.602_5) as u64;
    assert!(cc.cwnd().abs_diff(expected) < 20, "{} {expected}", cc.cwnd());
}

#[test]
fn a_decrease_leaves_at_least_half() {
    // gamma alone would leave 1 - 0.8 * 9/10 = 0.28.
    let mut cc = congested(10 * TARGET);
    cc.on_ack(&marked(RTT + 1, 0, 10 * TARGET));
    assert_eq!(cc.cwnd(), 50_000 + 614);
}

#[test]
fn mark_high_delay_but_low_average_nothing() {
    let mut cc = halfway(&config());
    cc.on_ack(&marked(RTT - 1, MTU, 2 * TARGET));
    assert_eq!(cc.cwnd(), 100_000);
}

#[test]
fn a_loss_takes_its_size_from_the_window_down_to_one_packet() {
    let mut cc = halfway(&config());
    cc.on_loss(Time(1), MTU);
    assert_eq!((cc.cwnd(), cc.inflight()), (100_000 - MTU, 100_000 - MTU));
    for _ in 0..100 {
        cc.on_loss(Time(1), MTU);
    }
    assert_eq!((cc.cwnd(), cc.inflight()), (MTU, 0));
    assert!(cc.may_send(MTU));
}

#[test]
fn a_trim_takes_its_size_from_the_window_on_any_hop() {
    for last_hop in [false, true] {
        let mut cc = halfway(&config());
        cc.on_trim_nack(Time(1), MTU, last_hop);
        assert_eq!((cc.cwnd(), cc.inflight()), (100_000 - MTU, 100_000 - MTU));
        // And counts as a delay of one base round-trip time: 0.0125 of it in the average.
        assert_eq!(cc.avg_delay_ns(), 150);
    }
}

/// Right after a quick adaptation to six packets, and when that was.
fn adapted() -> (Nscc, u64) {
    let mut cc = halfway(&config());
    // The first signal begins a period of base RTT + target.
    cc.on_ack(&ack(1_000, MTU, 0));
    let end = 1_000 + RTT + TARGET;
    // In it 5 packets get through, fewer than 225,000 / 8 bytes allow, and one is trimmed.
    for _ in 0..5 {
        cc.on_ack(&ack(2_000, MTU, 2 * TARGET));
    }
    cc.on_trim_nack(Time(3_000), MTU, false);
    let before = cc.cwnd();
    assert!(before > 90_000);
    cc.on_ack(&ack(end - 1, 0, 2 * TARGET));
    assert!(cc.cwnd() >= before);
    cc.on_ack(&ack(end, MTU, 2 * TARGET));
    assert_eq!(cc.cwnd(), 6 * MTU);
    (cc, end)
}

#[test]
fn quick_adaptation_sets_the_window_to_what_got_through() {
    let (mut cc, end) = adapted();
    // Marks and trims of packets that were in flight then have no effect.
    let in_flight = cc.inflight();
    cc.on_trim_nack(Time(end + 1), MTU, false);
    cc.on_ack(&marked(end + 2 * RTT, MTU, 10 * TARGET));
    assert_eq!(cc.cwnd(), 6 * MTU);
    cc.on_ack(&AckSample::new(Time(end + 2 * RTT), in_flight - 2 * MTU));
    // All heard of: the next trim counts again. It also ends a period in which enough got through.
    cc.on_trim_nack(Time(end + 2 * RTT), MTU, false);
    assert_eq!(cc.cwnd(), 5 * MTU);
}

#[test]
fn the_last_packet_in_flight_at_a_quick_adaptation_counts_again() {
    let (mut cc, end) = adapted();
    cc.on_ack(&AckSample::new(Time(end + 1), cc.inflight() - MTU));
    cc.on_trim_nack(Time(end + 2), MTU, false);
    assert_eq!(cc.cwnd(), 5 * MTU);
}

#[test]
fn quick_adaptation_leaves_a_window_that_got_enough_through() {
    let mut cc = halfway(&config());
    cc.on_ack(&ack(1_000, MTU, 0));
    cc.on_ack(&ack(2_000, MAX_CWND / 8, TARGET));
    cc.on_trim_nack(Time(3_000), MTU, false);
    let before = cc.cwnd();
    cc.on_ack(&ack(1_000 + RTT + TARGET, 0, TARGET));
    assert!(cc.cwnd() >= before);
}

#[test]
fn without_trimming_a_high_delay_is_reason_enough() {
    let cfg = CcConfig { trimming: false, ..config() };
    // Target R, threshold 4 R, period 2 R.
    for (delay, adapts) in [(4 * RTT, false), (4 * RTT + 1, true)] {
        let mut cc = halfway(&cfg);
        cc.on_ack(&ack(1_000, MTU, 0));
        cc.on_ack(&ack(1_000 + 2 * RTT, MTU, delay));
        assert_eq!(cc.cwnd() == MTU, adapts, "delay {delay}");
    }
}

#[test]
fn quick_adaptation_can_be_turned_off() {
    let mut cfg = CcConfig { trimming: false, ..config() };
    cfg.nscc.disable_qa = true;
    let mut cc = halfway(&cfg);
    cc.on_ack(&ack(1_000, MTU, 0));
    cc.on_ack(&ack(1_000 + 2 * RTT, MTU, 100 * RTT));
    assert!(cc.cwnd() >= 100_000);
}

#[test]
fn a_penalty_shrinks_the_window_and_can_be_taken_back() {
    let mut cc = halfway(&config());
    // Half of what was acknowledged, from no more than what is in flight.
    cc.on_ack(&AckSample { penalty: 64, ..ack(RTT, 20_000, 0) });
    assert_eq!(cc.cwnd(), 80_000 - 10_000);
    cc.on_ack(&AckSample { penalty: 127, ..ack(RTT, 20_000, 0) });
    assert_eq!(cc.cwnd(), 60_000 - 19_843);
    cc.on_ack(&AckSample { restore_cwnd: true, ..AckSample::new(Time(RTT), 0) });
    assert_eq!(cc.cwnd(), 100_000);
    // Nothing is saved now.
    cc.on_ack(&AckSample { restore_cwnd: true, ..AckSample::new(Time(RTT), 0) });
    assert_eq!(cc.cwnd(), 100_000);
}

#[test]
fn may_send_leaves_room_for_a_full_packet() {
    let mut cc = halfway(&config());
    assert!(!cc.may_send(1));
    cc.on_discard(MTU - 1);
    assert!(!cc.may_send(1));
    cc.on_discard(1);
    assert!(cc.may_send(1));
}

#[test]
fn asks_for_acks_when_the_window_is_almost_used_or_small() {
    let mut cc = halfway(&config());
    cc.on_discard(2 * MTU);
    // A full packet after this one may go, or not.
    assert!(!cc.wants_ack(MTU));
    assert!(cc.wants_ack(MTU + 1));
    cc.on_send(MTU);
    assert!(cc.may_send(MTU) && cc.wants_ack(1));
    cc.on_discard(100_000);
    // Under 16 KiB the receiver would not acknowledge of its own accord.
    cc.on_loss(Time(1), 100_000 - 16 * 1024);
    assert!(!cc.wants_ack(MTU));
    cc.on_loss(Time(1), 1);
    assert!(cc.wants_ack(MTU));
}

#[test]
fn no_congestion_control_only_counts() {
    let mut cc = build(&CcConfig::none(), Time::ZERO).unwrap();
    cc.on_send(&flight(10 * MTU));
    cc.on_ack(&marked(1, MTU, 1_000_000));
    cc.on_trim_nack(Time(2), &flight(MTU), false);
    cc.on_loss(Time(3), &flight(MTU), true);
    assert_eq!(cc.inflight(), 7 * MTU);
    cc.on_discard(&flight(100 * MTU));
    assert_eq!(cc.inflight(), 0);
    assert!(cc.open_planes(MTU, Time(3)) == u32::MAX && !cc.wants_ack(0, MTU));
    assert_eq!(cc.cwnd(), u64::MAX);
}

#[test]
fn every_bad_field_is_named() {
    type Change = &'static dyn Fn(&mut CcConfig);
    let with = |change: Change| {
        let mut cfg = config();
        change(&mut cfg);
        cfg.validate().map_err(|error| error.to_string())
    };
    let cases: [(&str, Change); 12] = [
        ("link_rate_bps", &|cfg| cfg.link_rate_bps = 0),
        ("base_rtt_ns", &|cfg| cfg.base_rtt_ns = u64::MAX),
        ("mtu_bytes", &|cfg| cfg.mtu_bytes = 0),
        ("target_delay_ns", &|cfg| cfg.nscc.target_delay_ns = Some(0)),
        ("max_cwnd_bytes", &|cfg| cfg.nscc.max_cwnd_bytes = Some(u64::MAX)),
        ("adjust_bytes_threshold", &|cfg| cfg.nscc.adjust_bytes_threshold = Some(0)),
        ("adjust_period_threshold_ns", &|cfg| cfg.nscc.adjust_period_threshold_ns = Some(0)),
        ("alpha", &|cfg| cfg.nscc.alpha = Some(f64::NAN)),
        ("eta", &|cfg| cfg.nscc.eta = Some(-1.0)),
        ("gamma", &|cfg| cfg.nscc.gamma = Some(1.5)),
        ("max_md_jump", &|cfg| cfg.nscc.max_md_jump = Some(0.0)),
        ("qa_gate", &|cfg| cfg.nscc.qa_gate = Some(64)),
    ];
    for (field, change) in cases {
        assert!(with(change).unwrap_err().starts_with(field), "{field}");
    }
    assert_eq!(with(&|cfg| cfg.nscc.qa_gate = Some(41)), Err("qa_gate = 41: at most 40".into()));
    assert_eq!(with(&|_| {}), Ok(()));
    assert_eq!(with(&|cfg| *cfg = CcConfig { link_rate_bps: 0, ..CcConfig::none() }), Ok(()));
}

#[test]
fn the_ends_of_every_range_are_inside() {
    let (ten_seconds, terabyte) = (10_000_000_000, 1 << 40);
    let largest = CcConfig {
        link_rate_bps: 100_000_000_000_000,
        base_rtt_ns: ten_seconds,
        mtu_bytes: 1 << 17,
        nscc: NsccOverrides {
            target_delay_ns: Some(ten_seconds),
            max_cwnd_bytes: Some(terabyte),
            alpha: Some(f64::MAX),
            fi: Some(f64::MAX),
            fi_scale: Some(f64::MAX),
            eta: Some(f64::MAX),
            gamma: Some(1.0),
            max_md_jump: Some(1.0),
            qa_gate: Some(40),
            adjust_bytes_threshold: Some(terabyte),
            adjust_period_threshold_ns: Some(ten_seconds),
            ..NsccOverrides::default()
        },
        ..config()
    };
    assert_eq!(largest.validate(), Ok(()));
    let smallest = CcConfig {
        link_rate_bps: 1,
        base_rtt_ns: 1,
        mtu_bytes: 1,
        nscc: NsccOverrides {
            target_delay_ns: Some(1),
            max_cwnd_bytes: Some(1),
            alpha: Some(0.0),
            fi: Some(0.0),
            fi_scale: Some(0.0),
            eta: Some(0.0),
            gamma: Some(f64::MIN_POSITIVE),
            max_md_jump: Some(f64::MIN_POSITIVE),
            qa_gate: Some(0),
            adjust_bytes_threshold: Some(1),
            adjust_period_threshold_ns: Some(1),
            ..NsccOverrides::default()
        },
        ..config()
    };
    assert_eq!(smallest.validate(), Ok(()));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is reported, true or not: at least one packet, a number, and no deadlock.
    #[test]
    fn the_window_stays_sane(steps in prop::collection::vec(
        (0_u8..6, 0_u64..50_000, 0_u64..1 << 20, prop::option::of(0_u64..1 << 36), any::<(bool, bool, u8)>()),
        1..200,
    )) {
        let mut cc = nscc(&config());
        let mut now = 0;
        for (what, wait, bytes, rtt_ns, (ecn, restore_cwnd, penalty)) in steps {
            now += wait;
            let time = Time(now);
            match what {
                0 => cc.on_send(bytes),
                1 => cc.on_trim_nack(time, bytes, ecn),
                2 => cc.on_loss(time, bytes),
                3 => cc.on_discard(bytes),
                _ => cc.on_ack(&AckSample { now: time, newly_acked: bytes, ecn, rtt_ns, penalty, restore_cwnd, plane: 0 }),
            }
            prop_assert!(cc.cwnd() >= MTU);
            prop_assert!(cc.max_cwnd() <= MAX_CWND);
            prop_assert!(cc.inflight() > 0 || cc.may_send(MTU));
        }
    }
}
