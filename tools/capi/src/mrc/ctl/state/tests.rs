//! The rules of profiles, one by one.

#![allow(clippy::unwrap_used, reason = "tests")]

use super::congestion::*;
use super::entropy::*;
use super::format::*;
use super::*;
use crate::mrc::ctl::abi::{ev_state, fmt_mode, mrc_ctl_cc_nscc_cfg, mrc_ctl_ev_field};
use ProfileState::{Init, Offline, Online};
use spindrift::congestion::{CcAlgorithm, CcConfig};

const PLANES: u8 = 2;

fn to(state: ProfileState) -> Step {
    Step { to: Some(state), from: None }
}

fn code<T: core::fmt::Debug>(result: Result<T>) -> c_int {
    result.unwrap_err().code
}

/// A format of UDP source ports with these fields, ONLINE.
fn with_format(id: u64, widths: &[u8]) -> DeviceState {
    let mut state = DeviceState::default();
    let (mode, widths) = (Some(fmt_mode::UDP), Some(widths.to_vec()));
    state.modify_format(id, FormatChange { step: to(Offline), mode, widths, vendor: None }).unwrap();
    state.modify_format(id, FormatChange { step: to(Online), ..FormatChange::default() }).unwrap();
    state
}

fn field(width: u32, init_val: u32, [min_val, max_val]: [u32; 2], mask: u32) -> EvField {
    (&mrc_ctl_ev_field { width, init_val, min_val, max_val, mask }).into()
}

fn explicit(count: u32) -> EvChange {
    EvChange {
        step: to(Offline),
        mode: Some(Mode::Explicit),
        format: Some(13),
        count: Some(count),
        ..EvChange::default()
    }
}

fn generated(count: u32, fields: &[EvField]) -> EvChange {
    EvChange { mode: Some(Mode::Generated), fields: Some(fields.to_vec()), ..explicit(count) }
}

fn put(value: u32, port: u8) -> Replacement {
    Replacement { old: (0, 0), new: (value, port), denied: false, all_copies: false }
}

fn replace(by: &[Replacement]) -> EvChange {
    EvChange { replace: by.to_vec(), ..EvChange::default() }
}

fn step(to_state: ProfileState) -> EvChange {
    EvChange { step: to(to_state), ..EvChange::default() }
}

fn listed(state: &DeviceState, id: u64) -> Vec<(u32, u8)> {
    state.ev(id).unwrap().entries().iter().map(|entry| (entry.value, entry.port)).collect()
}

#[test]
fn a_profile_takes_one_step_at_a_time() {
    let steps = |from: ProfileState| [Init, Offline, Online].map(|to| from.step(Some(to)).is_ok());
    assert_eq!(steps(Init), [false, true, false]);
    assert_eq!(steps(Offline), [true, true, true]);
    assert_eq!(steps(Online), [false, true, true]);
    assert!(Init.step(None).is_err());
    assert_eq!([Offline, Online].map(|state| state.step(None).unwrap()), [Offline, Online]);
    let taken = Step { to: Some(Online), from: Some(Offline) };
    assert!(taken.from(Offline).is_ok());
    assert_eq!(taken.from(Online).unwrap_err().why, "the profile is ONLINE, not OFFLINE");
    for state in [Init, Offline, Online] {
        assert_eq!(ProfileState::of(state.value()), Ok(state));
    }
    assert_eq!(code(ProfileState::of(3)), libc::EINVAL);
}

#[test]
fn profile_0_is_the_devices_own() {
    let mut state = with_format(13, &[16]);
    let format = FormatChange { step: to(Offline), mode: Some(fmt_mode::UDP), ..FormatChange::default() };
    let cc = CcChange { step: to(Offline), algorithm: Some(Algorithm::Off), ..CcChange::default() };
    assert_eq!(code(state.modify_format(0, format)), libc::EINVAL);
    assert_eq!(code(state.modify_ev(0, &explicit(1), PLANES)), libc::EINVAL);
    assert_eq!(code(state.modify_cc(0, cc)), libc::EINVAL);
}

#[test]
fn a_format_is_set_up_and_taken_down() {
    let mut state = DeviceState::default();
    let mut modify = |change| state.modify_format(13, change);
    let mode = |mode| FormatChange { step: to(Offline), mode: Some(mode), ..FormatChange::default() };
    let widths = |widths: &[u8]| FormatChange { widths: Some(widths.to_vec()), ..FormatChange::default() };
    let go = |state| FormatChange { step: to(state), ..FormatChange::default() };
    assert_eq!(code(modify(widths(&[16]))), libc::EINVAL, "it is in INIT");
    assert_eq!(code(modify(go(Offline))), libc::EINVAL, "without a mode");
    let refusal = modify(mode(fmt_mode::STEV)).unwrap_err();
    assert_eq!(refusal.code, libc::EINVAL);
    assert!(refusal.why.starts_with("STEV: the ports of this device are kernel sockets"), "{}", refusal.why);
    for other in [fmt_mode::SRV6, 0, 8, fmt_mode::UDP | fmt_mode::STEV] {
        assert_eq!(code(modify(mode(other))), libc::EINVAL);
    }
    modify(mode(fmt_mode::UDP)).unwrap();
    assert_eq!(code(modify(go(Online))), libc::EINVAL, "without fields");
    assert_eq!([&[][..], &[8, 0]].map(|given| code(modify(widths(given)))), [libc::EINVAL; 2]);
    assert_eq!([&[17][..], &[8, 9], &[1; 17]].map(|given| code(modify(widths(given)))), [libc::E2BIG; 3]);
    modify(widths(&[8, 8])).unwrap();
    modify(go(Online)).unwrap();
    assert_eq!(code(modify(widths(&[16]))), libc::EBUSY);
    assert_eq!(
        code(modify(FormatChange { mode: Some(fmt_mode::UDP), ..FormatChange::default() })),
        libc::EBUSY
    );
    modify(FormatChange { vendor: Some(vec![7; 128]), ..FormatChange::default() }).unwrap();
    assert_eq!(code(modify(go(Init))), libc::EINVAL);
    modify(go(Offline)).unwrap();
    let Format { state: now, widths, vendor, .. } = state.format(13).unwrap();
    assert_eq!((*now, &widths[..], vendor_bytes(vendor)), (Offline, &[8, 8][..], [7; 128]));
    state.modify_format(13, go(Init)).unwrap();
    assert_eq!(state, DeviceState::default());
}

#[test]
fn a_format_stays_online_while_a_profile_does() {
    let mut state = with_format(13, &[16]);
    state.modify_ev(1, &explicit(1), PLANES).unwrap();
    state.modify_ev(1, &replace(&[put(5000, 1)]), PLANES).unwrap();
    let offline = || FormatChange { step: to(Offline), ..FormatChange::default() };
    state.modify_ev(1, &step(Online), PLANES).unwrap();
    assert_eq!(code(state.modify_format(13, offline())), libc::EBUSY);
    state.modify_ev(1, &step(Offline), PLANES).unwrap();
    state.modify_format(13, offline()).unwrap();
    assert_eq!(code(state.modify_ev(1, &step(Online), PLANES)), libc::EINVAL, "its format is not ONLINE");
    assert_eq!(state.ev(1).unwrap().state, Offline);
}

#[test]
fn explicit_values_are_populated_one_by_one() {
    let mut state = with_format(13, &[16]);
    let mut modify = |change: &EvChange| state.modify_ev(1, change, PLANES);
    modify(&explicit(3)).unwrap();
    assert_eq!(
        modify(&step(Online)).unwrap_err().why,
        "3 entropy values are not populated; replace them first"
    );
    // One that is refused leaves those before it.
    let some = replace(&[put(5000, 1), put(5001, 2), put(5002, 3), put(5003, 1)]);
    let refusal = modify(&some).unwrap_err();
    assert_eq!((refusal.code, &refusal.why[..]), (libc::EINVAL, "port 3: the device has ports 1 to 2"));
    for bad in [put(0, 1), put(0x1_0000, 1), put(5004, 0)] {
        assert_eq!(code(modify(&replace(&[bad]))), libc::EINVAL);
    }
    modify(&replace(&[put(5000, 1)])).unwrap();
    assert_eq!(code(modify(&replace(&[put(5005, 1)]))), libc::ENOENT, "none is unpopulated any more");
    let all = |all_copies| Replacement { old: (5000, 1), new: (6000, 2), denied: true, all_copies };
    modify(&replace(&[all(false)])).unwrap();
    modify(&replace(&[put(5000, 1)])).unwrap_err();
    modify(&replace(&[Replacement { old: (5001, 2), ..put(5000, 1) }])).unwrap();
    let first: Vec<_> = state.ev(1).unwrap().entries().to_vec();
    let entry = |value, port, denied| Entry { value, port, denied };
    assert_eq!(first, [entry(6000, 2, true), entry(5000, 1, false), entry(5000, 1, false)]);
    state.modify_ev(1, &replace(&[all(true)]), PLANES).unwrap();
    assert_eq!(listed(&state, 1), [(6000, 2); 3]);
    state.modify_ev(1, &step(Online), PLANES).unwrap();
}

#[test]
fn what_a_profile_online_lets_change_is_the_state_of_its_values() {
    let mut state = with_format(13, &[16]);
    let mut modify = |change: &EvChange| state.modify_ev(1, change, PLANES);
    modify(&explicit(2)).unwrap();
    modify(&replace(&[put(5000, 1), put(5000, 2)])).unwrap();
    modify(&step(Online)).unwrap();
    let setups = [
        EvChange { mode: Some(Mode::Explicit), ..EvChange::default() },
        EvChange { format: Some(13), ..EvChange::default() },
        EvChange { count: Some(2), ..EvChange::default() },
        EvChange { min_active: Some(1), ..EvChange::default() },
        EvChange { event_mask: Some(1), ..EvChange::default() },
        EvChange { fields: Some(vec![]), ..EvChange::default() },
        replace(&[Replacement { old: (5000, 1), ..put(5001, 1) }]),
    ];
    assert_eq!(setups.map(|change| code(modify(&change))), [libc::EBUSY; 7]);
    let deny = |deny: &[((u32, u8), bool)]| EvChange { deny: deny.to_vec(), ..EvChange::default() };
    let refusal = modify(&deny(&[((5000, 2), true), ((5001, 1), true), ((5000, 1), true)])).unwrap_err();
    assert_eq!(
        (refusal.code, &refusal.why[..]),
        (libc::ENOENT, "there is no entropy value 0x1389 on port 1")
    );
    let denied =
        |state: &DeviceState| state.ev(1).unwrap().entries().iter().map(|e| e.denied).collect::<Vec<_>>();
    assert_eq!(denied(&state), [false, true]);
    state.modify_ev(1, &deny(&[((5000, 2), false), ((5000, 1), true)]), PLANES).unwrap();
    assert_eq!(denied(&state), [true, false]);
}

#[test]
fn a_profile_says_what_it_lacks() {
    let mut state = with_format(13, &[16]);
    let mut refused = |change: EvChange| {
        let refusal = state.modify_ev(1, &change, PLANES).unwrap_err();
        assert_eq!(state.ev(1), None, "it stays in INIT");
        refusal.code
    };
    assert_eq!(refused(step(Offline)), libc::EINVAL);
    assert_eq!(refused(EvChange { format: None, ..explicit(1) }), libc::EINVAL);
    assert_eq!(refused(EvChange { format: Some(14), ..explicit(1) }), libc::EINVAL);
    assert_eq!(refused(EvChange { count: None, ..explicit(1) }), libc::EINVAL);
    assert_eq!([0, MAX_EVS + 1].map(|count| refused(explicit(count))), [libc::E2BIG; 2]);
    assert_eq!(refused(EvChange { min_active: Some(3), ..explicit(2) }), libc::EINVAL);
    assert_eq!(refused(EvChange { event_mask: Some(ev_state::DENIED), ..explicit(2) }), libc::EINVAL);
    assert_eq!(refused(EvChange { fields: None, ..generated(1, &[]) }), libc::EINVAL);
    let wide = [field(9, 0, [0, 1], 1), field(8, 0, [0, 1], 1)];
    assert_eq!(refused(generated(1, &wide)), libc::E2BIG);
    assert_eq!(refused(generated(1, &[field(8, 256, [0, 1], 1)])), libc::EINVAL);
    assert_eq!(refused(EvChange { step: Step::default(), ..explicit(1) }), libc::EINVAL);
}

/// Two ports of 4 values each: in turn over the ports, and evenly over the values.
#[test]
fn values_are_generated_from_fields() {
    let mut state = with_format(13, &[8, 8]);
    let fields = [field(8, 0xc0, [0, 0], 0), field(8, 0x10, [1, 4], 0b0110_0100)];
    let all = generated(8, &fields);
    assert_eq!(code(state.modify_ev(1, &generated(9, &fields), PLANES)), libc::E2BIG);
    state.modify_ev(1, &all, PLANES).unwrap();
    let of = |low: u32| 0xc000 | low;
    // 1, 2, 3 and 4, whose bits take the places of the mask.
    let values = [of(0x14), of(0x30), of(0x34), of(0x50)];
    let both: Vec<_> = values.iter().flat_map(|value| [(*value, 1), (*value, 2)]).collect();
    assert_eq!(listed(&state, 1), both);
    state
        .modify_ev(1, &EvChange { deny: vec![((values[2], 2), true)], ..EvChange::default() }, PLANES)
        .unwrap();
    let fewer = EvChange { count: Some(4), ..EvChange::default() };
    state.modify_ev(1, &fewer, PLANES).unwrap();
    let entries = state.ev(1).unwrap().entries();
    assert_eq!(listed(&state, 1), [(values[0], 1), (values[0], 2), (values[2], 1), (values[2], 2)]);
    assert_eq!(entries.iter().map(|entry| entry.denied).collect::<Vec<_>>(), [false, false, false, true]);
    assert_eq!(code(state.modify_ev(1, &replace(&[put(5000, 1)]), PLANES)), libc::EINVAL);
    state.modify_ev(1, &step(Online), PLANES).unwrap();
    assert_eq!(state.ev(1).unwrap().source_port(values[2]), Ok(values[2] as u16));
    // Source port 0 is none.
    let none = generated(1, &[field(8, 0, [0, 1], 1)]);
    state.modify_ev(2, &none, PLANES).unwrap();
    assert_eq!(code(state.modify_ev(2, &step(Online), PLANES)), libc::EINVAL);
}

/// The first bits of a value fill the fields, as with paths.
#[test]
fn explicit_values_fill_fields_if_there_are_any() {
    let mut state = with_format(13, &[4, 12]);
    let fields = vec![field(4, 0xa, [0, 0], 0), field(12, 0x100, [0, 5], 0xf)];
    state.modify_ev(1, &EvChange { fields: Some(fields), ..explicit(2) }, PLANES).unwrap();
    let mut put_value = |value| state.modify_ev(1, &replace(&[put(value, 1)]), PLANES);
    assert_eq!(code(put_value(0x6000_0000)), libc::EINVAL, "6 is more than the field allows");
    assert_eq!(code(put_value(0x5000_0001)), libc::EINVAL, "bits that no field takes");
    put_value(0x5000_0000).unwrap();
    assert_eq!(state.ev(1).unwrap().source_port(0x5000_0000), Ok(0xa105));
}

#[test]
fn a_profile_without_values_needs_no_format() {
    let mut state = DeviceState::default();
    let auto =
        EvChange { step: to(Offline), mode: Some(Mode::Auto), min_active: Some(9), ..EvChange::default() };
    state.modify_ev(1, &auto, PLANES).unwrap();
    assert_eq!(code(state.modify_ev(1, &replace(&[put(5000, 1)]), PLANES)), libc::EINVAL);
    state.modify_ev(1, &step(Online), PLANES).unwrap();
    state.modify_ev(1, &step(Offline), PLANES).unwrap();
    state.modify_ev(1, &step(Init), PLANES).unwrap();
    assert_eq!(state, DeviceState::default());
}

/// All planes of a queue pair have as many places for paths as the largest one.
#[test]
fn values_of_one_port_alone_are_limited_by_those_of_all() {
    const MANY: u8 = 32;
    let mut state = with_format(13, &[16]);
    let values: Vec<_> = (0..128).map(|at| put(5000 + at, 1)).collect();
    state.modify_ev(1, &explicit(129), MANY).unwrap();
    state.modify_ev(1, &replace(&values), MANY).unwrap();
    state.modify_ev(1, &replace(&[put(6000, 1)]), MANY).unwrap();
    assert_eq!(code(state.modify_ev(1, &step(Online), MANY)), libc::E2BIG);
    let other = Replacement { old: (6000, 1), ..put(6000, 2) };
    state.modify_ev(1, &replace(&[other]), MANY).unwrap();
    state.modify_ev(1, &step(Online), MANY).unwrap();
}

#[test]
fn there_are_so_many_profiles_and_no_more() {
    let mut state = DeviceState::default();
    let auto = EvChange { step: to(Offline), mode: Some(Mode::Auto), ..EvChange::default() };
    for id in 1..=u64::from(MAX_PROFILES) {
        state.modify_ev(id << 32, &auto, PLANES).unwrap();
    }
    assert_eq!(code(state.modify_ev(1, &auto, PLANES)), libc::ENOSPC);
    state.modify_ev(1 << 32, &step(Online), PLANES).unwrap();
    state.modify_ev(2 << 32, &step(Init), PLANES).unwrap();
    state.modify_ev(1, &auto, PLANES).unwrap();
}

#[test]
fn congestion_control_has_an_algorithm_and_its_parameters() {
    let mut state = DeviceState::default();
    let mut modify = |change| state.modify_cc(5, change);
    let algorithm = |algorithm| CcChange { algorithm: Some(algorithm), ..CcChange::default() };
    let go = |state| CcChange { step: to(state), ..CcChange::default() };
    let nscc = |c: mrc_ctl_cc_nscc_cfg| CcChange { nscc: Some(Nscc::from(&c)), ..CcChange::default() };
    assert_eq!(code(modify(go(Offline))), libc::EINVAL, "without an algorithm");
    modify(CcChange { step: to(Offline), ..algorithm(Algorithm::Nscc) }).unwrap();
    assert_eq!(code(modify(go(Online))), libc::EINVAL, "without a configuration");
    let c = mrc_ctl_cc_nscc_cfg { target_delay: 9_000, gamma: 0.25, max_cwnd: 100_000, ..Default::default() };
    for bad in [
        mrc_ctl_cc_nscc_cfg { gamma: 1.5, ..c },
        mrc_ctl_cc_nscc_cfg { eta: f32::NAN, ..c },
        mrc_ctl_cc_nscc_cfg { max_md_jump: -1.0, ..c },
    ] {
        assert_eq!(code(modify(nscc(bad))), libc::EINVAL, "{bad:?}");
    }
    modify(CcChange { step: to(Online), ..nscc(c) }).unwrap();
    // Its parameters change in use, its algorithm does not.
    modify(nscc(mrc_ctl_cc_nscc_cfg { base_rtt: 30_000, disable_qa: 1, ..c })).unwrap();
    assert_eq!(code(modify(algorithm(Algorithm::Off))), libc::EINVAL);
    modify(algorithm(Algorithm::Nscc)).unwrap();
    let usual = CcConfig::for_software(10_000_000_000, 20_000, 4096);
    let settings = state.cc(5).unwrap().settings(&usual);
    assert_eq!(
        (settings.algorithm, settings.base_rtt_ns, settings.link_rate_bps),
        (CcAlgorithm::Nscc, 30_000, 10_000_000_000)
    );
    let given = &settings.nscc;
    assert_eq!(
        (given.target_delay_ns, given.max_cwnd_bytes, given.gamma),
        (Some(9_000), Some(100_000), Some(0.25))
    );
    // What is 0 is the device's.
    assert_eq!(
        (given.disable_qa, given.qa_threshold_ns, given.eta),
        (true, usual.nscc.qa_threshold_ns, None)
    );
    settings.validate().unwrap();
    state.modify_cc(5, go(Offline)).unwrap();
    state.modify_cc(5, algorithm(Algorithm::Off)).unwrap();
    assert_eq!(code(state.modify_cc(5, nscc(c))), libc::EINVAL, "there is nothing to configure");
    state.modify_cc(5, go(Online)).unwrap();
    assert_eq!(state.cc(5).unwrap().settings(&usual).algorithm, CcAlgorithm::None);
    assert_eq!(state.profile_state(Profile::Congestion(5)), Online);
    state.modify_cc(5, go(Offline)).unwrap();
    state.modify_cc(5, go(Init)).unwrap();
    assert_eq!(state, DeviceState::default());
}

#[test]
fn algorithms_have_names() {
    for (name, algorithm) in Algorithm::NAMES {
        assert_eq!(Algorithm::named(Some(name)), Ok(algorithm));
    }
    assert_eq!(Algorithm::named(None), Ok(Algorithm::Off));
    assert_eq!(Algorithm::named(Some(c"cubic")).unwrap_err().why, "cubic: there is no such algorithm");
}

/// The parameters of C and back, each in its own place.
#[test]
fn parameters_are_given_back_as_they_were_set() {
    let c = mrc_ctl_cc_nscc_cfg {
        disable_qa: 1,
        adjust_bytes_threshold: 2,
        adjust_period_threshold: 3,
        base_rtt: 4,
        eta: 5.0,
        fi: 6.0,
        fi_scale: 7.0,
        gamma: 0.8,
        max_md_jump: 0.9,
        max_cwnd: 10,
        qa_gate: 11,
        qa_threshold: 12,
        target_delay: 13,
    };
    let kept = Nscc::from(&c);
    assert_eq!(mrc_ctl_cc_nscc_cfg::from(&kept), c);
    let settings = CcProfile { algorithm: Some(Algorithm::Nscc), nscc: Some(kept), ..CcProfile::default() }
        .settings(&CcConfig::none());
    let nscc = &settings.nscc;
    assert_eq!(settings.base_rtt_ns, 4);
    assert_eq!([nscc.eta, nscc.fi, nscc.fi_scale], [Some(5.0), Some(6.0), Some(7.0)]);
    assert_eq!([nscc.gamma, nscc.max_md_jump], [Some(f64::from(0.8_f32)), Some(f64::from(0.9_f32))]);
    assert_eq!([nscc.adjust_bytes_threshold, nscc.adjust_period_threshold_ns], [Some(2), Some(3)]);
    assert_eq!(
        [nscc.max_cwnd_bytes, nscc.qa_threshold_ns, nscc.target_delay_ns],
        [Some(10), Some(12), Some(13)]
    );
    assert_eq!((nscc.qa_gate, nscc.disable_qa, nscc.alpha), (Some(11), true, None));
}

#[test]
fn a_state_is_written_and_read_back() {
    let mut state = with_format(13, &[8, 8]);
    state.modify_ev(1, &explicit(2), PLANES).unwrap();
    state.modify_ev(1, &replace(&[Replacement { denied: true, ..put(5000, 1) }]), PLANES).unwrap();
    let nscc = Nscc::from(&mrc_ctl_cc_nscc_cfg { gamma: 0.3, ..Default::default() });
    let cc = CcChange { step: to(Offline), algorithm: Some(Algorithm::Nscc), nscc: Some(nscc), vendor: None };
    state.modify_cc(u64::MAX, cc).unwrap();
    state.set_enabled(2, false);
    let text = serde_json::to_string(&state).unwrap();
    assert_eq!(serde_json::from_str::<DeviceState>(&text).unwrap(), state);
    // One profile as it was, the others as they are.
    let before = state.clone();
    state.modify_ev(1, &step(Init), PLANES).unwrap();
    state.set_enabled(1, false);
    state.restore(Profile::Entropy(1), before.clone());
    assert_eq!((state.ev(1), state.is_enabled(1)), (before.ev(1), false));
}

/// What holds whatever a controller calls, in whatever order.
#[track_caller]
fn check_rules(state: &DeviceState) {
    for profile in state.ev.values() {
        assert_ne!(profile.state, Init);
        let is_auto = profile.mode == Some(Mode::Auto);
        assert!(is_auto || profile.entries().len() as u32 == profile.count, "{profile:?}");
        if profile.state != Online || is_auto {
            continue;
        }
        let format = profile.format.and_then(|id| state.format(id)).unwrap();
        assert_eq!(format.state, Online);
        assert!(profile.min_active <= profile.count);
        for entry in profile.entries() {
            assert!((1..=PLANES).contains(&entry.port));
            profile.source_port(entry.value).unwrap();
        }
    }
    for format in state.formats.values() {
        assert!(format.state == Offline || !format.widths.is_empty());
    }
    let usual = CcConfig::for_software(10_000_000_000, 20_000, 4096);
    for profile in state.cc.values() {
        profile.settings(&usual).validate().unwrap();
    }
    let text = serde_json::to_string(state).unwrap();
    assert_eq!(serde_json::from_str::<DeviceState>(&text).unwrap(), *state);
}

/// A few values of each attribute, so that calls often fit together.
fn any_change(draw: &mut impl FnMut(u32) -> u32, state: &mut DeviceState) -> Result<()> {
    let steps = [None, Some(Init), Some(Offline), Some(Online), Some(Offline), Some(Online)];
    let step = Step { to: steps[draw(6) as usize], from: if draw(8) == 0 { Some(Offline) } else { None } };
    let id = u64::from(draw(3) + 1);
    let mut maybe = |odds: u32| draw(odds) == 0;
    match [maybe(4), maybe(4)] {
        [true, _] => {
            let (has_mode, has_widths) = (maybe(2), maybe(2));
            let widths = [vec![16], vec![8, 8], vec![4, 4, 8], vec![17], vec![]];
            let widths = has_widths.then(|| widths[draw(5) as usize].clone());
            state.modify_format(
                id,
                FormatChange { step, mode: has_mode.then_some(fmt_mode::UDP), widths, vendor: None },
            )
        }
        [_, true] => {
            let algorithms = [Algorithm::Nscc, Algorithm::Adaptive, Algorithm::Off];
            let (has_algorithm, has_config) = (maybe(2), maybe(2));
            let algorithm = has_algorithm.then(|| algorithms[draw(3) as usize]);
            let gamma = [0.0, 0.5, 1.5, f32::INFINITY][draw(4) as usize];
            let nscc = has_config.then(|| Nscc::from(&mrc_ctl_cc_nscc_cfg { gamma, ..Default::default() }));
            state.modify_cc(id, CcChange { step, algorithm, nscc, vendor: None })
        }
        _ => {
            let has: Vec<bool> = (0..7).map(|_| maybe(2)).collect();
            let modes = [Mode::Auto, Mode::Explicit, Mode::Generated];
            let fields = [vec![], vec![field(8, 0x10, [1, 4], 0b0110_0100)], vec![field(16, 0, [0, 9], 0xf)]];
            let mut ev = |_| (((draw(4) << 28) | (draw(2) * 5000)), draw(4) as u8);
            let pairs: Vec<_> = (0..6).map(&mut ev).collect();
            let replace = pairs.chunks(2).map(|pair| Replacement {
                old: pair[0],
                new: pair[1],
                denied: false,
                all_copies: false,
            });
            let change = EvChange {
                step,
                mode: has[0].then(|| modes[draw(3) as usize]),
                format: has[1].then(|| u64::from(draw(3) + 1)),
                count: has[2].then(|| draw(5)),
                min_active: has[3].then(|| draw(3)),
                event_mask: None,
                vendor: None,
                fields: has[4].then(|| fields[draw(3) as usize].clone()),
                replace: if has[5] { replace.collect() } else { Vec::new() },
                deny: if has[6] { pairs.iter().map(|ev| (*ev, true)).collect() } else { Vec::new() },
            };
            state.modify_ev(id, &change, PLANES)
        }
    }
}

#[test]
fn no_sequence_of_calls_breaks_the_rules() {
    let mut online = 0;
    for seed in 0..300_u64 {
        let mut bits = seed;
        let mut draw = |below: u32| {
            bits = crate::nic::mix(bits.wrapping_add(0x9e37_79b9_7f4a_7c15));
            (bits >> 33) as u32 % below.max(1)
        };
        let mut state = DeviceState::default();
        for call in 0..200 {
            let before = state.clone();
            let done = any_change(&mut draw, &mut state);
            if let Err(Refusal { code, .. }) = done {
                let known = [libc::EINVAL, libc::EBUSY, libc::E2BIG, libc::ENOENT, libc::ENOSPC];
                assert!(known.contains(&code), "seed {seed}, call {call}: {code}");
            }
            // A refused call leaves each profile in its state.
            let states = |of: &DeviceState| of.ev.values().map(|profile| profile.state).collect::<Vec<_>>();
            assert!(done.is_ok() || states(&before) == states(&state), "seed {seed}, call {call}");
            check_rules(&state);
            online += state.ev.values().filter(|profile| profile.state == Online).count();
        }
    }
    assert!(online > 1_000, "{online}: profiles seldom come so far");
}

#[test]
fn ports_are_enabled_one_by_one() {
    let mut state = DeviceState::default();
    state.set_enabled(2, false);
    state.set_enabled(32, false);
    state.set_enabled(33, false);
    state.set_enabled(0, false);
    assert_eq!(state.disabled, 1 << 31 | 2);
    state.set_enabled(2, true);
    assert_eq!([1, 2, 32].map(|port| state.is_enabled(port)), [true, true, false]);
}
