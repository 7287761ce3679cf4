//! The interface of controllers, by the functions that they call, and queue pairs that use what they set. Each test has a device of its own,
//! which two "processes" use as two contexts.

use std::net::IpAddr;
use std::path::PathBuf;
use std::ptr::null;

use spindrift::congestion::{CcAlgorithm, CcConfig};
use spindrift::path::EvState;
use spindrift::wire::Qpn;

use super::*;
use crate::connection::QpCore;
use crate::mrc::ctl::abi::*;
use crate::mrc::ctl::arrays::*;
use crate::mrc::ctl::calls::*;
use crate::qp::{Body, QpBox};
use EvState::{Denied, Good};

/// A device of two planes, and what it leaves in the file system.
struct OfTest {
    device: &'static DeviceBox,
    folder: PathBuf,
}

impl OfTest {
    /// `place` is the test's own.
    fn new(place: u8) -> Self {
        Self::with_fault(place, None)
    }

    fn with_fault(place: u8, fault: Option<&str>) -> Self {
        let folder =
            std::env::temp_dir().join(format!("spindrift-controlled-{place}-{}", std::process::id()));
        let planes: Vec<IpAddr> = [1, 2].map(|last| IpAddr::from([127, 1, place, last])).to_vec();
        let mut settings = DeviceBox::usual_settings();
        settings.device_dir = Some(folder.clone());
        settings.fault = fault.map(|fault| fault.parse().unwrap());
        let device = DeviceBox::new(0, NicSettings::new(format!("controlled{place}"), planes)).with(settings);
        Self { device: device.kept(), folder }
    }

    fn side(&self) -> Side {
        Side::on(self.device)
    }
}

impl Drop for OfTest {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Numbers and null pointers.
fn none<T>() -> T {
    // SAFETY: all types that it is used for are made of these.
    unsafe { zeroed() }
}

/// 0, or the code of the error.
fn outcome(result: c_int) -> c_int {
    match result {
        0 => 0,
        -1 => last_code(),
        other => panic!("{other} is no result"),
    }
}

fn format(side: &Side, id: u64, edit: impl FnOnce(&mut mrc_ctl_ev_fmt_profile_attr) -> c_int) -> c_int {
    let mut attr = none();
    let mask = edit(&mut attr);
    // SAFETY: objects of the test.
    outcome(unsafe { mrc_ctl_modify_ev_fmt_profile(side.context, id, &raw mut attr, mask) })
}

fn profile(side: &Side, id: u64, edit: impl FnOnce(&mut mrc_ctl_ev_profile_attr) -> c_int) -> c_int {
    let mut attr = none();
    let mask = edit(&mut attr);
    // SAFETY: objects of the test.
    outcome(unsafe { mrc_ctl_modify_ev_profile(side.context, id, &raw mut attr, mask) })
}

fn move_profile(side: &Side, id: u64, state: u32) -> c_int {
    profile(side, id, |attr| {
        attr.profile_state = state;
        ev_mask::STATE
    })
}

fn congestion(side: &Side, id: u64, edit: impl FnOnce(&mut mrc_ctl_cc_profile_attr) -> c_int) -> c_int {
    let mut attr = none();
    let mask = edit(&mut attr);
    // SAFETY: objects of the test.
    outcome(unsafe { mrc_ctl_modify_cc_profile(side.context, id, &raw mut attr, mask) })
}

/// A format of UDP source ports, as the interface's own examples set theirs up.
fn make_format(side: &Side, id: u64) {
    let mut fields = [mrc_ctl_ev_fmt_field { width: 8 }; 2];
    let made = format(side, id, |attr| {
        (attr.profile_state, attr.ev_fmt_mode) = (profile_state::OFFLINE, fmt_mode::UDP);
        attr.ev_fmt_op =
            EvFmtOp { op: fields_op::MODIFY, fmt_fields: fields.as_mut_ptr(), fmt_field_count: 2 };
        fmt_mask::STATE | fmt_mask::MODE | fmt_mask::OP
    });
    assert_eq!(made, 0);
    let online = format(side, id, |attr| {
        attr.profile_state = profile_state::ONLINE;
        fmt_mask::STATE
    });
    assert_eq!(online, 0);
}

/// An explicit profile with these source ports, each with its port, ONLINE.
fn make_profile(side: &Side, id: u64, values: &[(u32, u8)]) {
    make_format(side, 13);
    let made = profile(side, id, |attr| {
        (attr.profile_state, attr.ev_mode) = (profile_state::OFFLINE, ev_mode::EXPLICIT);
        (attr.ev_fmt_profile_id, attr.ev_count, attr.ev_min_active) = (13, values.len() as u32, 1);
        attr.ev_event_mask = (ev_state::GOOD | ev_state::ASSUMED_BAD) as c_int;
        ev_mask::STATE
            | ev_mask::MODE
            | ev_mask::FMT_ID
            | ev_mask::COUNT
            | ev_mask::MIN_ACTIVE
            | ev_mask::EVENT_MASK
    });
    assert_eq!(made, 0);
    let mut entries: Vec<_> =
        values.iter().map(|(value, port)| entry((0, 0), (*value, *port), ev_state::GOOD)).collect();
    assert_eq!(operate(side, id, ev_op::REPLACE, &mut entries), 0);
    assert_eq!(move_profile(side, id, profile_state::ONLINE), 0);
}

fn entry(old: (u32, u8), new: (u32, u8), state: u32) -> mrc_ctl_ev_op_entry {
    let [ev, ev_new] = [old, new].map(|(value, port)| mrc_ctl_ev::of(value, port));
    mrc_ctl_ev_op_entry { ev, ev_new, state, flags: 0 }
}

fn operate(side: &Side, id: u64, op: u32, entries: &mut [mrc_ctl_ev_op_entry]) -> c_int {
    profile(side, id, |attr| {
        attr.ev_op = EvOp { op, entries: entries.as_mut_ptr(), entry_count: entries.len() as c_int };
        ev_mask::EV_OP
    })
}

fn deny(side: &Side, id: u64, ev: (u32, u8), state: u32) -> c_int {
    operate(side, id, ev_op::MODIFY_STATE, &mut [entry(ev, (0, 0), state)])
}

/// Values, ports and states of a profile.
fn listed(side: &Side, id: u64) -> Vec<(u32, u8, u32)> {
    let mut entries = vec![none::<mrc_ctl_ev_op_entry>(); 8];
    let mut attr: mrc_ctl_ev_profile_attr = none();
    attr.ev_op = EvOp { op: ev_op::QUERY_ARRAY, entries: entries.as_mut_ptr(), entry_count: 8 };
    // SAFETY: objects of the test.
    assert_eq!(unsafe { mrc_ctl_query_ev_profile(side.context, id, &raw mut attr, ev_mask::EV_OP) }, 0);
    entries.truncate(attr.ev_op.entry_count as usize);
    entries.iter().map(|entry| (entry.ev.value().unwrap(), entry.ev.port, entry.state)).collect()
}

fn core(side: &Side) -> std::sync::Arc<QpCore> {
    // SAFETY: a queue pair of the test.
    let of = unsafe { QpBox::of(side.qp.cast()) };
    let Ok(Body::Connected(core)) = of.body() else { panic!("it is connected") };
    std::sync::Arc::clone(core)
}

/// The entropy values of a queue pair on the wire: plane, source port and state.
fn paths(side: &Side) -> Vec<(u8, u32, EvState)> {
    let core = core(side);
    // A transfer may leave a path that is skipped once: for a controller it is as good as before.
    let settled = |state| if state == EvState::Skip { Good } else { state };
    let states = core.nic.verbs.with_endpoint(|endpoint| {
        let states = endpoint.ev_states(Qpn::new(core.wire())).unwrap();
        states.map(|status| (status.plane, status.ev.0, settled(status.state))).collect::<Vec<_>>()
    });
    let mut states = states.unwrap();
    states.sort_unstable_by_key(|(plane, ev, _)| (*plane, *ev));
    states
}

fn settings(side: &Side) -> CcConfig {
    core(side).lock().qp().unwrap().query().unwrap().cc
}

fn with_profiles(ev: u64, cc: u64) -> (mrc_qp_attr, c_int) {
    let mut attr = no_attr();
    (attr.ev_profile_id, attr.cc_profile_id) = (ev, cc);
    (attr, attr_mask::EV_PROFILE_ID | attr_mask::CC_PROFILE_ID)
}

/// Two queue pairs of a device, connected, of which the first has these profiles.
fn pair(of: &OfTest, (ev, cc): (u64, u64)) -> [Side; 2] {
    let sides = [of.side(), of.side()];
    let (attr, mask) = with_profiles(ev, cc);
    assert_eq!(sides[0].modify(qp_state::INIT, None, &attr, mask), 0);
    assert_eq!(sides[1].modify(qp_state::INIT, None, &no_attr(), 0), 0);
    connect(sides)
}

/// Writes so much, and waits until it is there.
fn transfer(sides: &mut [Side; 2]) {
    let [from, to] = sides;
    from.fill();
    to.memory.fill(0);
    assert_eq!(from.send(to, (0, 0, MEMORY as u32), |_| ()), 0);
    assert_eq!(wait(|| from.poll()).status, wc_status::SUCCESS);
    assert!(from.memory == to.memory);
}

#[test]
fn a_device_says_what_a_controller_can_do() {
    let of = OfTest::new(1);
    let side = of.side();
    let mut attr: mrc_ctl_device_attr = none();
    let mut supported = 0;
    // SAFETY: objects and places of the test.
    unsafe {
        assert_eq!(mrc_ctl_query_device_ex(side.verbs, side.context, &raw mut attr, &raw mut supported), 0);
        assert_eq!((supported, attr.mrc_ctl_protocol_version, attr.phy_port_mask), (1, 1, 0b110));
        assert_eq!((attr.ev_max_width, attr.ev_fmt_mode_mask, attr.ev_mode_mask), (16, fmt_mode::UDP, 7));
        assert_eq!((attr.ev_count_align, attr.ev_max_count_profile, attr.ev_op_max_entries), (1, 1024, 0));
        assert_eq!((attr.ev_max_count, attr.ev_free_count), (65_536, 65_536));
        assert_eq!(attr.opt_attr, opt_cap::EV_EVENT | opt_cap::CC_PROFILE_MODIFY_ONLINE);
        let names = [0, 1].map(|at| std::ffi::CStr::from_ptr(*attr.cc.algorithms.add(at)));
        assert_eq!(names, [c"uet-1.0-nscc", c"spindrift-adaptive"]);
        assert!((*attr.cc.algorithms.add(2)).is_null());
        make_profile(&side, 5, &[(7000, 1), (7001, 2)]);
        assert_eq!(mrc_ctl_query_device(side.verbs, &raw mut attr), 0);
        assert_eq!(attr.ev_free_count, 65_534);
        assert_eq!(outcome(mrc_ctl_query_device(null_mut(), &raw mut attr)), libc::EINVAL);
        assert_eq!(outcome(mrc_ctl_query_device(side.verbs, null_mut())), libc::EINVAL);
        let mut versions = [9_u32; 4];
        let [a, b, c, d] = &mut versions;
        mrc_ctl_query_version(a, b, c, d);
        assert_eq!(versions, [0x0100_0001, 0, 0x0100_0000, 0]);
        let mut count = 9;
        for (op, code) in [(0, libc::ENOTSUP), (1, libc::ENOTSUP), (2, libc::EINVAL)] {
            let sent =
                mrc_ctl_ep_batch_send_wait(side.context, 0, op, null_mut(), 0, 0, null_mut(), &raw mut count);
            assert_eq!((outcome(sent), count), (code, 0));
        }
    }
    side.end();
}

#[test]
fn profiles_are_queried_as_they_were_set() {
    let of = OfTest::new(2);
    let side = of.side();
    make_profile(&side, 5, &[(7000, 1), (7001, 2), (7002, 2)]);
    let mut attr: mrc_ctl_ev_profile_attr = none();
    let all = ev_mask::ALL & !ev_mask::EV_OP;
    let mut fields = [none::<mrc_ctl_ev_field>()];
    // SAFETY: objects and places of the test.
    unsafe {
        attr.ev_fields_op = EvFieldsOp { op: fields_op::QUERY, fields: fields.as_mut_ptr(), field_count: 1 };
        assert_eq!(mrc_ctl_query_ev_profile(side.context, 5, &raw mut attr, all), 0);
        assert_eq!((attr.profile_state, attr.cur_profile_state, attr.ev_mode), (2, 2, ev_mode::EXPLICIT));
        assert_eq!((attr.ev_fmt_profile_id, attr.ev_count, attr.ev_min_active), (13, 3, 1));
        assert_eq!((attr.ev_event_mask, attr.ev_fields_op.field_count), (3, 0));
        assert_eq!(listed(&side, 5), [(7000, 1, 1), (7001, 2, 1), (7002, 2, 1)]);
        // An array that is too short says how long it has to be.
        let mut short = [none::<mrc_ctl_ev_op_entry>(); 2];
        attr.ev_op = EvOp { op: ev_op::QUERY_ARRAY, entries: short.as_mut_ptr(), entry_count: 2 };
        let queried = mrc_ctl_query_ev_profile(side.context, 5, &raw mut attr, ev_mask::EV_OP);
        assert_eq!((outcome(queried), attr.ev_op.entry_count), (libc::E2BIG, 3));
        // The device's own, and one that is not there.
        assert_eq!(
            mrc_ctl_query_ev_profile(side.context, 0, &raw mut attr, ev_mask::STATE | ev_mask::MODE),
            0
        );
        assert_eq!((attr.profile_state, attr.ev_mode), (2, ev_mode::AUTO));
        assert_eq!(mrc_ctl_query_ev_profile(side.context, 6, &raw mut attr, ev_mask::STATE), 0);
        assert_eq!(attr.profile_state, 0);
        let both = ev_mask::EV_OP | ev_mask::FIELDS_OP;
        assert_eq!(outcome(mrc_ctl_query_ev_profile(side.context, 5, &raw mut attr, both)), libc::EINVAL);
        assert_eq!(outcome(mrc_ctl_modify_ev_profile(side.context, 5, &raw mut attr, both)), libc::EINVAL);
        assert_eq!(outcome(mrc_ctl_query_ev_profile(side.context, 5, &raw mut attr, 1 << 20)), libc::EINVAL);
        assert_eq!(outcome(mrc_ctl_query_ev_profile(side.context, 5, null_mut(), 0)), libc::EINVAL);
        assert_eq!(outcome(mrc_ctl_query_ev_profile(null_mut(), 5, &raw mut attr, 0)), libc::EINVAL);
        attr.ev_op.op = ev_op::REPLACE;
        let queried = mrc_ctl_query_ev_profile(side.context, 5, &raw mut attr, ev_mask::EV_OP);
        assert_eq!(outcome(queried), libc::EINVAL, "a query changes nothing");
        let mut attr: mrc_ctl_ev_fmt_profile_attr = none();
        let mut widths = [mrc_ctl_ev_fmt_field { width: 0 }; 4];
        attr.ev_fmt_op =
            EvFmtOp { op: fields_op::QUERY, fmt_fields: widths.as_mut_ptr(), fmt_field_count: 4 };
        assert_eq!(mrc_ctl_query_ev_fmt_profile(side.context, 13, &raw mut attr, fmt_mask::ALL), 0);
        assert_eq!(
            (attr.profile_state, attr.ev_fmt_mode, attr.ev_fmt_op.fmt_field_count),
            (2, fmt_mode::UDP, 2)
        );
        assert_eq!(widths.map(|field| field.width), [8, 8, 0, 0]);
        assert_eq!(mrc_ctl_query_ev_fmt_profile(side.context, 0, &raw mut attr, fmt_mask::ALL), 0);
        assert_eq!((attr.profile_state, widths[0].width, attr.ev_fmt_op.fmt_field_count), (2, 16, 1));
        attr.ev_fmt_op.op = fields_op::MODIFY;
        assert_eq!(
            outcome(mrc_ctl_query_ev_fmt_profile(side.context, 13, &raw mut attr, fmt_mask::OP)),
            libc::EINVAL
        );
    }
    // More than 32 bits are no source port.
    let mut long = entry((7000, 1), (0, 1), ev_state::GOOD);
    long.ev_new.val[31] = 1;
    assert_eq!(move_profile(&side, 5, profile_state::OFFLINE), 0);
    assert_eq!(operate(&side, 5, ev_op::REPLACE, &mut [long]), libc::EINVAL);
    let refused = [ev_state::ASSUMED_BAD, ev_state::UNKNOWN, 0].map(|state| deny(&side, 5, (7000, 1), state));
    assert_eq!(refused, [libc::EINVAL; 3]);
    assert_eq!(deny(&side, 5, (7009, 1), ev_state::DENIED), libc::ENOENT);
    side.end();
}

#[test]
fn queue_pairs_send_from_the_source_ports_of_their_profile() {
    let _no_forks = no_forks();
    let of = OfTest::new(3);
    let control = of.side();
    make_profile(&control, 5, &[(21_000, 1), (21_001, 1), (21_002, 2)]);
    assert_eq!(deny(&control, 5, (21_001, 1), ev_state::DENIED), 0);
    let mut sides = pair(&of, (5, 0));
    assert_eq!(paths(&sides[0]), [(0, 21_000, Good), (0, 21_001, Denied), (1, 21_002, Good)]);
    assert_eq!(paths(&sides[1]).len(), 64, "without a profile it has the device's own");
    transfer(&mut sides);
    let dropped = |side: &Side| {
        core(side).nic.verbs.query_ports().iter().map(|port| port.counters.tx_unsendable).collect::<Vec<_>>()
    };
    assert_eq!(dropped(&sides[0]), [0, 0]);
    // Changes reach queue pairs that are connected.
    assert_eq!(deny(&control, 5, (21_001, 1), ev_state::GOOD), 0);
    assert_eq!(deny(&control, 5, (21_002, 2), ev_state::DENIED), 0);
    wait(|| (paths(&sides[0]) == [(0, 21_000, Good), (0, 21_001, Good), (1, 21_002, Denied)]).then_some(()));
    assert_eq!(listed(&control, 5), [(21_000, 1, 1), (21_001, 1, 1), (21_002, 2, ev_state::DENIED)]);
    transfer(&mut sides);
    // A profile in use stays ONLINE.
    assert_eq!(move_profile(&control, 5, profile_state::OFFLINE), libc::EBUSY);
    assert_eq!(listed(&control, 5).len(), 3);
    // After RESET the same queue pair takes what is set then: the same profile, and the device's own.
    let [a, b] = &sides;
    for (id, expected) in [(5, vec![(0, 21_000, Good), (0, 21_001, Good), (1, 21_002, Denied)]), (0, vec![])]
    {
        for side in [a, b] {
            assert_eq!(side.modify(qp_state::RESET, None, &no_attr(), 0), 0);
        }
        let (attr, mask) = with_profiles(id, 0);
        assert_eq!(a.modify(qp_state::INIT, None, &attr, mask), 0);
        assert_eq!(b.modify(qp_state::INIT, None, &no_attr(), 0), 0);
        for (side, peer) in [(a, b), (b, a)] {
            assert_eq!(side.modify(qp_state::RTR, Some(peer), &no_attr(), 0), 0);
            assert_eq!(side.modify(qp_state::RTS, None, &no_attr(), 0), 0);
        }
        if id == 0 {
            let found = paths(a);
            assert!(
                found.len() == 64
                    && found.iter().all(|(_, ev, state)| *state == Good && !(21_000..=21_002).contains(ev))
            );
        } else {
            assert_eq!(paths(a), expected);
        }
    }
    transfer(&mut sides);
    assert_eq!(move_profile(&control, 5, profile_state::OFFLINE), 0);
    sides.into_iter().for_each(Side::end);
    control.end();
}

/// A plane for which the profile has nothing is not used.
#[test]
fn a_profile_may_leave_planes_out() {
    let _no_forks = no_forks();
    let of = OfTest::new(4);
    let control = of.side();
    make_profile(&control, 5, &[(21_010, 2), (21_011, 2)]);
    let mut sides = pair(&of, (5, 0));
    let found = paths(&sides[0]);
    let used: Vec<_> =
        found.iter().filter(|(_, _, state)| *state == EvState::Good).map(|path| (path.0, path.1)).collect();
    assert_eq!(used, [(1, 21_010), (1, 21_011)]);
    transfer(&mut sides);
    sides.into_iter().for_each(Side::end);
    control.end();
}

#[test]
fn a_profile_is_online_before_queue_pairs_have_it() {
    let _no_forks = no_forks();
    let of = OfTest::new(5);
    let [a, b] = [of.side(), of.side()];
    make_profile(&a, 5, &[(21_020, 1), (21_021, 2)]);
    let init = |ev, cc| {
        let (attr, mask) = with_profiles(ev, cc);
        a.modify(qp_state::INIT, None, &attr, mask)
    };
    assert_eq!([init(6, 0), init(0, 6)], [libc::EINVAL; 2]);
    assert_eq!(move_profile(&a, 5, profile_state::OFFLINE), 0);
    assert_eq!(init(5, 0), libc::EINVAL);
    assert_eq!(move_profile(&a, 5, profile_state::ONLINE), 0);
    assert_eq!(init(5, 0), 0);
    // It is taken at RTR, and may have gone by then.
    assert_eq!(move_profile(&a, 5, profile_state::OFFLINE), 0, "nobody uses it yet");
    assert_eq!(a.modify(qp_state::RTR, Some(&b), &no_attr(), 0), libc::EINVAL);
    assert_eq!(a.query().0.qp_state, qp_state::INIT);
    // A source port that somebody has for himself.
    let taken = std::net::UdpSocket::bind((of.device.settings.planes[1], 21_021)).unwrap();
    assert_eq!(move_profile(&a, 5, profile_state::ONLINE), 0);
    assert_eq!(a.modify(qp_state::RTR, Some(&b), &no_attr(), 0), libc::ENOMEM);
    drop(taken);
    assert_eq!(a.modify(qp_state::RTR, Some(&b), &no_attr(), 0), 0);
    a.end();
    b.end();
}

#[test]
fn congestion_control_follows_its_profile() {
    let _no_forks = no_forks();
    let of = OfTest::new(6);
    let control = of.side();
    let nscc = |target_delay| mrc_ctl_cc_nscc_cfg { target_delay, max_cwnd: 500_000, ..Default::default() };
    let config = nscc(70_000);
    let made = congestion(&control, 9, |attr| {
        (attr.profile_state, attr.algorithm) = (profile_state::OFFLINE, c"uet-1.0-nscc".as_ptr());
        attr.cc_config = (&raw const config).cast();
        cc_mask::STATE | cc_mask::ALGORITHM | cc_mask::CONFIG
    });
    assert_eq!(made, 0);
    let move_to = |id, state| {
        congestion(&control, id, |attr| {
            attr.profile_state = state;
            cc_mask::STATE
        })
    };
    assert_eq!(move_to(9, profile_state::ONLINE), 0);
    let mut sides = pair(&of, (0, 9));
    let usual = settings(&sides[1]);
    let found = settings(&sides[0]);
    assert_eq!((found.algorithm, found.nscc.target_delay_ns), (CcAlgorithm::Nscc, Some(70_000)));
    assert_eq!((found.nscc.max_cwnd_bytes, found.link_rate_bps), (Some(500_000), usual.link_rate_bps));
    transfer(&mut sides);
    let config = nscc(90_000);
    let changed = congestion(&control, 9, |attr| {
        attr.cc_config = (&raw const config).cast();
        cc_mask::CONFIG
    });
    assert_eq!(changed, 0);
    wait(|| (settings(&sides[0]).nscc.target_delay_ns == Some(90_000)).then_some(()));
    transfer(&mut sides);
    assert_eq!(move_to(9, profile_state::OFFLINE), libc::EBUSY);
    let mut attr: mrc_ctl_cc_profile_attr = none();
    let mut back = mrc_ctl_cc_nscc_cfg::default();
    attr.cc_config = (&raw mut back).cast_const().cast();
    // SAFETY: objects and places of the test.
    unsafe {
        assert_eq!(mrc_ctl_query_cc_profile(control.context, 9, &raw mut attr, cc_mask::ALL), 0);
        assert_eq!((attr.profile_state, std::ffi::CStr::from_ptr(attr.algorithm)), (2, c"uet-1.0-nscc"));
        assert_eq!(back, config);
        assert_eq!(mrc_ctl_query_cc_profile(control.context, 0, &raw mut attr, cc_mask::ALGORITHM), 0);
        assert_eq!(std::ffi::CStr::from_ptr(attr.algorithm), c"spindrift-adaptive");
    }
    // Without congestion control, and then as the device has it.
    let off = congestion(&control, 10, |attr| {
        (attr.profile_state, attr.algorithm) = (profile_state::OFFLINE, null());
        cc_mask::STATE | cc_mask::ALGORITHM
    });
    assert_eq!((off, move_to(10, profile_state::ONLINE)), (0, 0));
    for (id, algorithm) in [(10, CcAlgorithm::None), (0, usual.algorithm)] {
        for side in &sides {
            assert_eq!(side.modify(qp_state::RESET, None, &no_attr(), 0), 0);
        }
        let (attr, mask) = with_profiles(0, id);
        assert_eq!(sides[0].modify(qp_state::INIT, None, &attr, mask), 0);
        assert_eq!(sides[1].modify(qp_state::INIT, None, &no_attr(), 0), 0);
        sides = connect(sides);
        transfer(&mut sides);
        assert_eq!(settings(&sides[0]).algorithm, algorithm);
    }
    assert_eq!(settings(&sides[0]), settings(&sides[1]));
    assert_eq!(move_to(9, profile_state::OFFLINE), 0);
    assert_eq!(move_to(9, profile_state::INIT), 0);
    sides.into_iter().for_each(Side::end);
    control.end();
}

fn port_state(side: &Side, port: u8) -> c_int {
    let mut attr = ibv_port_attr::default();
    // SAFETY: a context and a place of the test.
    match unsafe { context::ibv_query_port(side.verbs, port, &raw mut attr) } {
        0 => attr.state,
        code => -code,
    }
}

#[test]
fn a_disabled_port_carries_nothing() {
    let _no_forks = no_forks();
    let of = OfTest::new(7);
    let mut sides = pair(&of, (0, 0));
    transfer(&mut sides);
    let admin = |port, state| {
        let mut attr = mrc_ctl_port_attr { port_admin_state: state };
        // SAFETY: objects and places of the test.
        outcome(unsafe { mrc_ctl_modify_port(sides[1].context, port, &raw mut attr, port_mask::ADMIN_STATE) })
    };
    let query = |port| {
        let mut attr = mrc_ctl_port_attr { port_admin_state: 9 };
        // SAFETY: objects and places of the test.
        let code =
            unsafe { mrc_ctl_query_port(sides[0].context, port, &raw mut attr, port_mask::ADMIN_STATE) };
        (outcome(code), attr.port_admin_state)
    };
    assert_eq!([query(1), query(2)], [(0, 1); 2]);
    assert_eq!([admin(0, 0), admin(3, 0), admin(1, 2)], [libc::EINVAL; 3]);
    assert_eq!([query(0).0, query(3).0], [libc::EINVAL; 2]);
    assert_eq!(
        [1, 2, 3].map(|port| port_state(&sides[0], port)),
        [IBV_PORT_ACTIVE, IBV_PORT_ACTIVE, -libc::EINVAL]
    );
    assert_eq!(admin(2, 0), 0);
    assert_eq!([query(1), query(2)], [(0, 1), (0, 0)]);
    assert_eq!([1, 2].map(|port| port_state(&sides[0], port)), [IBV_PORT_ACTIVE, IBV_PORT_DOWN]);
    let nic = std::sync::Arc::clone(&core(&sides[0]).nic);
    let sent = |plane: usize| nic.verbs.query_ports()[plane].counters.tx_frames;
    let links = || {
        nic.verbs
            .query_ports()
            .iter()
            .map(|port| port.link == spindrift::pmd::LinkState::Up)
            .collect::<Vec<_>>()
    };
    wait(|| (links() == [true, false]).then_some(()));
    let before = [sent(0), sent(1)];
    transfer(&mut sides);
    assert_eq!(sent(1), before[1]);
    assert!(sent(0) > before[0] + 10);
    let mut attr = mrc_ctl_port_attr { port_admin_state: 1 };
    // SAFETY: objects and places of the test.
    assert_eq!(unsafe { mrc_ctl_modify_port(sides[1].context, 2, &raw mut attr, port_mask::ADMIN_STATE) }, 0);
    wait(|| (port_state(&sides[0], 2) == IBV_PORT_ACTIVE).then_some(()));
    wait(|| {
        transfer(&mut sides);
        (sent(1) > before[1] + 10).then_some(())
    });
    sides.into_iter().for_each(Side::end);
}

/// One source port loses much and comes back, again and again. The queue of events has a channel.
#[test]
fn changes_of_paths_are_events() {
    let _no_forks = no_forks();
    let of = OfTest::with_fault(8, Some("loss=30%,ev=21031,port=0"));
    let control = of.side();
    let values = [(21_030, 1), (21_031, 1), (21_032, 2), (21_033, 2)];
    make_profile(&control, 5, &values);
    // SAFETY: objects and places of the test.
    let (channel, queue) = unsafe {
        let mut channel = null_mut();
        assert_eq!(mrc_create_comp_channel(control.context, &raw mut channel), 0);
        let queue = mrc_ctl_create_ev_event_cq(control.context, 64, 3 as *mut c_void, channel, 0);
        assert!(!queue.is_null());
        assert_eq!(mrc_req_notify_cq(queue, 0), 0);
        (channel, queue)
    };
    let mut events = [none::<mrc_ctl_ev_event>(); 4];
    // SAFETY: objects and places of the test.
    let poll =
        |events: &mut [mrc_ctl_ev_event; 4]| unsafe { mrc_ctl_poll_ev_event(queue, 4, events.as_mut_ptr()) };
    assert_eq!(poll(&mut events), 0);
    let mut sides = pair(&of, (5, 0));
    let mut seen = std::collections::BTreeSet::new();
    let first = wait(|| {
        transfer(&mut sides);
        let count = poll(&mut events);
        (count > 0).then_some(count)
    });
    // The channel has told, once.
    // SAFETY: objects and places of the test.
    unsafe {
        let (mut told, mut user) = (null_mut(), null_mut());
        assert_eq!(mrc_get_cq_event(channel, &raw mut told, &raw mut user), 0);
        assert_eq!((told, user.addr()), (queue, 3));
    }
    let mut count = first;
    wait(|| {
        for event in events.iter().take(count as usize) {
            let ev = (event.ev.value().unwrap(), event.ev.port);
            assert!(event.profile_id == 5 && values.contains(&ev));
            // A machine with other work may lose some of the others, too.
            if ev == (21_031, 1) {
                seen.insert(event.state);
            }
        }
        transfer(&mut sides);
        count = poll(&mut events);
        (seen.len() == 2).then_some(())
    });
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), [ev_state::GOOD, ev_state::ASSUMED_BAD]);
    // The list says the same of it, when it is bad.
    wait(|| {
        transfer(&mut sides);
        (listed(&control, 5)[1] == (21_031, 1, ev_state::ASSUMED_BAD)).then_some(())
    });
    let mut asked = [entry((21_030, 1), (0, 0), 0), entry((21_032, 2), (0, 0), 0)];
    assert_eq!(operate(&control, 5, ev_op::QUERY_STATE, &mut asked), 0);
    assert!(asked.iter().all(|entry| [ev_state::GOOD, ev_state::ASSUMED_BAD].contains(&entry.state)));
    let missing = operate(&control, 5, ev_op::QUERY_STATE, &mut [entry((1, 1), (0, 0), 0)]);
    assert_eq!(missing, libc::ENOENT);
    // SAFETY: objects of the test.
    unsafe {
        assert_eq!(
            mrc_ctl_poll_ev_event(control.cq, 4, events.as_mut_ptr()),
            -libc::EINVAL,
            "it has completions"
        );
        assert_eq!(mrc_ctl_poll_ev_event(queue, -1, events.as_mut_ptr()), -libc::EINVAL);
        assert_eq!(mrc_destroy_cq(queue), 0);
        assert_eq!(mrc_destroy_comp_channel(channel), 0);
    }
    sides.into_iter().for_each(Side::end);
    control.end();
}

/// Programs of an older version have events without their states, one behind the other.
#[test]
fn events_have_the_size_that_the_programs_version_has() {
    let of = OfTest::new(9);
    let side = of.side();
    for (version, size) in [(0, 48), (1, 48), (0x0100_0000, 48), (0x0100_0001, 56), (u32::MAX, 56)] {
        let mut attr = mrc_context_attr { mrc_api_version_used: version, mrc_vendor_api_version_used: 0 };
        // SAFETY: objects and places of the test.
        unsafe {
            let context = mrc_create_context(side.verbs, &raw mut attr);
            let queue = mrc_ctl_create_ev_event_cq(context, 4, null_mut(), null_mut(), 0);
            let change = |value| crate::mrc::ctl::bus::Change { value, port: 2, state: ev_state::GOOD };
            let events = cq::CqBox::of(queue.cast()).ev_events().unwrap();
            events.push(0x0102_0304_0506_0708, &[change(0xaabb_ccdd), change(0x1122_3344)], true);
            let mut bytes = [0xee_u8; 120];
            assert_eq!(mrc_ctl_poll_ev_event(queue, 2, bytes.as_mut_ptr().cast()), 2);
            let number = |at: usize| u32::from_ne_bytes(*bytes[at..].first_chunk().unwrap());
            assert_eq!([number(8), number(size + 8)], [0xaabb_ccdd, 0x1122_3344]);
            assert_eq!((bytes[40], bytes[size + 40]), (2, 2));
            assert_eq!([number(44), number(size + 44)], [1, 0]);
            assert!(bytes[2 * size..].iter().all(|byte| *byte == 0xee));
            assert!(size == 48 || number(48) == ev_state::GOOD);
            assert_eq!(mrc_destroy_cq(queue), 0);
            assert_eq!(mrc_destroy_context(context), 0);
        }
    }
    side.end();
}

#[test]
fn a_damaged_state_is_an_error_and_changes_nothing() {
    let of = OfTest::new(10);
    let side = of.side();
    make_profile(&side, 5, &[(21_040, 1)]);
    let file = std::fs::read_dir(&of.folder).unwrap().map(|file| file.unwrap().path());
    let file = file.into_iter().find(|path| path.extension().is_some_and(|ending| ending == "json")).unwrap();
    std::fs::write(&file, "{").unwrap();
    assert_eq!(move_profile(&side, 5, profile_state::OFFLINE), libc::EIO);
    let (attr, mask) = with_profiles(5, 0);
    assert_eq!(side.modify(qp_state::INIT, None, &attr, mask), libc::EIO);
    // What needs no profile does not notice.
    assert_eq!(side.modify(qp_state::INIT, None, &no_attr(), 0), 0);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "{");
    side.end();
}
