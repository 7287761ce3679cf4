//! Attributes: what a program may set and when, and what follows.

use super::*;
use crate::mrc::attributes::{Attributes, Change};
use spindrift::endpoint::QpInfo;
use spindrift::verbs::RtrAttr;

/// Attributes that are kept.
fn some_attr() -> mrc_qp_attr {
    mrc_qp_attr {
        mpr: 4,
        mpr_dest: 6,
        max_wimm: 3,
        max_wimm_dest: 5,
        timeout: 15,
        linear_cnt: 2,
        exp_cnt: 3,
        cap: qp_cap::TRIM_NACK_DEST_UNSUPPORTED | qp_cap::SVC_TIME_DEST_UNSUPPORTED,
        vendor_cfg: [9; MRC_MAX_VENDOR_CFG_SIZE],
        ..no_attr()
    }
}

#[test]
fn attributes_are_given_back_and_take_effect() {
    let _no_forks = no_forks();
    let [a, b] = initialised(&some_attr(), attr_mask::ALL);
    let before = a.query();
    assert_eq!((before.0.qp_state, before.1), (qp_state::INIT, some_attr()));
    let init = before.2;
    assert_eq!((init.qp_context.addr(), init.send_cq, init.recv_cq, init.pd), (7, a.cq, a.cq, a.pd));
    assert_eq!((init.cap.max_send_wr, init.protocol_version, init.sq_sig_all), (16, 1, 0));
    for (side, peer) in [(&a, &b), (&b, &a)] {
        assert_eq!(side.modify(qp_state::RTR, Some(peer), &no_attr(), 0), 0);
        assert_eq!(side.modify(qp_state::RTS, None, &no_attr(), 0), 0);
    }
    assert_eq!(a.send(&b, (0, 0, 8), |_| ()), 0);
    wait(|| a.poll());
    // Both grant more than either asks for.
    assert_eq!(a.query().1, some_attr());
    // Only what is asked for is written.
    let mut one = no_attr();
    // SAFETY: a queue pair of the test.
    unsafe {
        let mask = attr_mask::TIMEOUT;
        assert_eq!(mrc_query_qp(a.qp, null_mut(), 0, &raw mut one, mask, null_mut()), 0);
        assert_eq!(one, mrc_qp_attr { timeout: 15, ..no_attr() });
        assert_eq!(mrc_query_qp(a.qp, null_mut(), 0, null_mut(), 0, null_mut()), 0);
        assert_eq!(mrc_query_qp(a.qp, null_mut(), 0, null_mut(), mask, null_mut()), libc::EINVAL);
        assert_eq!(mrc_query_qp(a.qp, null_mut(), 0, &raw mut one, 1 << 20, null_mut()), libc::EINVAL);
    }
    // Those of retransmission may change while it sends.
    let later = mrc_qp_attr { timeout: 16, linear_cnt: 1, exp_cnt: 2, ..no_attr() };
    assert_eq!(a.modify(qp_state::RTS, None, &later, attr_mask::TIMEOUT | attr_mask::RETRY_CNT), 0);
    assert_eq!(a.query().1, mrc_qp_attr { timeout: 16, linear_cnt: 1, exp_cnt: 2, ..some_attr() });
    // A reset forgets them.
    assert_eq!(a.modify(qp_state::RESET, None, &no_attr(), 0), 0);
    let fresh = a.query().1;
    assert_eq!((fresh.mpr, fresh.max_wimm, fresh.cap, fresh.vendor_cfg[0]), (8, 128, 0, 0));
    assert_eq!((fresh.timeout, fresh.linear_cnt, fresh.exp_cnt), (14, 7, 9));
    a.end();
    b.end();
}

/// What one side may send is the least of what it wants and what the other side grants.
#[test]
fn grants_bound_what_is_sent() {
    let _no_forks = no_forks();
    let [a, b] = [Side::new(), Side::new()];
    let of_a = mrc_qp_attr { mpr: 40, mpr_dest: 2, max_wimm: 500, max_wimm_dest: 0, ..no_attr() };
    let of_b = mrc_qp_attr { mpr: 9, mpr_dest: 33, max_wimm: 7, max_wimm_dest: 300, ..no_attr() };
    let mask = attr_mask::MPR | attr_mask::MPR_DEST | attr_mask::MAX_WIMM | attr_mask::MAX_WIMM_DEST;
    for (side, peer, attr) in [(&a, &b, &of_a), (&b, &a, &of_b)] {
        assert_eq!(side.modify(qp_state::INIT, None, &no_attr(), 0), 0);
        // With RTR, as OCP's own example does it.
        assert_eq!(side.modify(qp_state::RTR, Some(peer), attr, mask), 0);
        assert_eq!(side.modify(qp_state::RTS, None, &no_attr(), 0), 0);
    }
    for (side, peer) in [(&a, &b), (&b, &a)] {
        assert_eq!(side.send(peer, (0, 0, 8), |_| ()), 0);
        assert_eq!(wait(|| side.poll()).status, wc_status::SUCCESS);
    }
    let [(_, of_a, _), (_, of_b, _)] = [a.query(), b.query()];
    assert_eq!((of_a.mpr, of_a.mpr_dest, of_a.max_wimm, of_a.max_wimm_dest), (33, 2, 300, 0));
    assert_eq!((of_b.mpr, of_b.mpr_dest, of_b.max_wimm, of_b.max_wimm_dest), (2, 33, 0, 300));
    // A takes no immediates, so B's request fails before it is sent.
    assert_eq!(b.send(&a, (0, 0, 8), |wr| wr.opcode = wr_opcode::RDMA_WRITE_WITH_IMM), 0);
    assert_eq!(wait(|| b.poll()).status, wc_status::LOC_QP_OP_ERR);
    a.end();
    b.end();
}

/// Dynamic windows are used if both sides ask for them.
#[test]
fn dynamic_windows_need_both_sides() {
    let _no_forks = no_forks();
    for caps in [[0, 0], [qp_cap::DYNAMIC_MPR, 0], [qp_cap::DYNAMIC_MPR; 2]] {
        let sides = [Side::new(), Side::new()];
        for (at, cap) in caps.into_iter().enumerate() {
            let attr = mrc_qp_attr { cap, mpr_dest: 16, ..no_attr() };
            let mask = attr_mask::CAP | attr_mask::MPR_DEST;
            assert_eq!(sides[at].modify(qp_state::INIT, None, &no_attr(), 0), 0);
            assert_eq!(sides[at].modify(qp_state::RTR, Some(&sides[1 - at]), &attr, mask), 0);
            assert_eq!(sides[at].modify(qp_state::RTS, None, &no_attr(), 0), 0);
        }
        let [a, b] = sides;
        for (side, peer) in [(&a, &b), (&b, &a)] {
            assert_eq!(side.send(peer, (0, 0, 8), |_| ()), 0);
            assert_eq!(wait(|| side.poll()).status, wc_status::SUCCESS);
            assert_eq!(side.query().1.cap, caps[0] & caps[1], "{caps:?}");
        }
        a.end();
        b.end();
    }
}

/// The peer may be known before the program says, at RTS, what it wants to send.
#[test]
fn attributes_of_rts_come_after_the_peer_is_known() {
    let _no_forks = no_forks();
    let [a, b] = initialised(&no_attr(), 0);
    assert_eq!(a.modify(qp_state::RTR, Some(&b), &no_attr(), 0), 0);
    assert_eq!(b.modify(qp_state::RTR, Some(&a), &no_attr(), 0), 0);
    assert_eq!(b.modify(qp_state::RTS, None, &no_attr(), 0), 0);
    // B has connected, so A has answered: a write of B arrives, while A may not send.
    assert_eq!(b.send(&a, (0, 0, 8), |_| ()), 0);
    assert_eq!(wait(|| b.poll()).status, wc_status::SUCCESS);
    assert_eq!((a.query().0.qp_state, a.query().1.mpr), (qp_state::RTR, 8));
    let attr = mrc_qp_attr { mpr: 3, max_wimm: 2, timeout: 17, ..no_attr() };
    let mask = attr_mask::MPR | attr_mask::MAX_WIMM | attr_mask::TIMEOUT;
    assert_eq!(a.modify(qp_state::RTS, None, &attr, mask), 0);
    assert_eq!(a.send(&b, (0, 0, 8), |_| ()), 0);
    assert_eq!(wait(|| a.poll()).status, wc_status::SUCCESS);
    let now = a.query().1;
    assert_eq!((now.mpr, now.max_wimm, now.timeout, now.exp_cnt), (3, 2, 17, 9));
    a.end();
    b.end();
}

type Edit = fn(&mut mrc_qp_attr);

#[test]
fn attributes_that_are_late_or_out_of_range_are_refused() {
    let _no_forks = no_forks();
    let at_rtr = [
        attr_mask::MPR_DEST,
        attr_mask::MAX_WIMM_DEST,
        attr_mask::CAP,
        attr_mask::EV_PROFILE_ID,
        attr_mask::CC_PROFILE_ID,
    ];
    let at_rts = [attr_mask::MPR, attr_mask::MAX_WIMM];
    let any_time = [attr_mask::TIMEOUT, attr_mask::RETRY_CNT, attr_mask::HINT, attr_mask::VENDOR_CFG];
    let each = |masks: &[c_int], side: &Side, state: c_int, peer: Option<&Side>, expected: c_int| {
        for mask in masks {
            let before = side.query();
            assert_eq!(side.modify(state, peer, &some_attr_of(*mask), *mask), expected, "{mask:#x} {state}");
            if expected != 0 {
                let after = side.query();
                assert_eq!((after.0.qp_state, after.1), (before.0.qp_state, before.1), "{mask:#x}");
            }
        }
    };
    let [a, b] = [Side::new(), Side::new()];
    let everything = [&at_rtr[..], &at_rts, &any_time].concat();
    each(&everything, &a, qp_state::RESET, None, libc::EINVAL);
    // A step that fails leaves them as they were.
    each(&everything, &a, qp_state::RTS, None, libc::EINVAL);
    assert_eq!(a.modify(qp_state::INIT, None, &no_attr(), 0), 0);
    each(&everything, &a, qp_state::RTR, None, libc::EINVAL);
    each(&everything, &a, qp_state::INIT, None, 0);
    let wrong: [(c_int, Edit); 10] = [
        (attr_mask::MPR, |attr| attr.mpr = 0),
        (attr_mask::MPR_DEST, |attr| attr.mpr_dest = 0),
        (attr_mask::TIMEOUT, |attr| attr.timeout = 25),
        (attr_mask::RETRY_CNT, |attr| attr.linear_cnt = 8),
        (attr_mask::RETRY_CNT, |attr| attr.exp_cnt = 26),
        (attr_mask::CAP, |attr| attr.cap = 8),
        (attr_mask::EV_PROFILE_ID, |attr| attr.ev_profile_id = 13),
        (attr_mask::CC_PROFILE_ID, |attr| attr.cc_profile_id = 1),
        (1 << 10, |_| ()),
        (1 << 30, |_| ()),
    ];
    for (mask, edit) in wrong {
        let mut attr = some_attr();
        edit(&mut attr);
        let before = a.query().1;
        assert_eq!(a.modify(qp_state::INIT, None, &attr, mask), libc::EINVAL, "{mask:#x}");
        assert_eq!(a.query().1, before, "{mask:#x}");
    }
    assert_eq!(a.modify(qp_state::RTR, Some(&b), &no_attr(), 0), 0);
    each(&at_rtr, &a, qp_state::RTR, None, libc::EINVAL);
    each(&at_rtr, &a, qp_state::RTS, None, libc::EINVAL);
    each(&at_rts, &a, qp_state::RTR, None, 0);
    each(&any_time, &a, qp_state::RTR, None, 0);
    assert_eq!(a.modify(qp_state::RTS, None, &some_attr(), attr_mask::MPR), 0);
    each(&at_rtr, &a, qp_state::RTS, None, libc::EINVAL);
    each(&at_rts, &a, qp_state::RTS, None, libc::EINVAL);
    each(&any_time, &a, qp_state::RTS, None, 0);
    each(&everything, &a, qp_state::ERR, None, libc::EINVAL);
    assert_eq!(a.modify(qp_state::ERR, None, &no_attr(), 0), 0);
    assert_eq!(a.query().0.qp_state, qp_state::ERR);
    // SAFETY: a queue pair of the test.
    unsafe {
        assert_eq!(mrc_modify_qp(a.qp, null_mut(), 0, null_mut(), 1), libc::EINVAL);
        assert_eq!(mrc_modify_qp(a.qp, null_mut(), 1, null_mut(), 0), libc::EINVAL);
        assert_eq!(mrc_modify_qp(null_mut(), null_mut(), 0, null_mut(), 0), libc::EINVAL);
    }
    a.end();
    b.end();
}

/// Values that fit, of which the profiles are those that every device has.
fn some_attr_of(mask: c_int) -> mrc_qp_attr {
    mrc_qp_attr { mpr: mask as u8 & 1 | 2, ..some_attr() }
}

/// What MRC does not have, programs pass all the same, with any value.
#[test]
fn attributes_of_verbs_that_mrc_does_not_have_are_ignored() {
    let _no_forks = no_forks();
    let side = Side::new();
    let mut attr = crate::connection::no_attributes();
    (attr.qp_state, attr.port_num, attr.pkey_index) = (qp_state::INIT, 99, 0);
    (attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer) = (3, 14, 14, 77);
    (attr.max_rd_atomic, attr.max_dest_rd_atomic) = (200, 200);
    let mask = 0x1f_ffff & !(qp_attr_mask::CUR_STATE | 1 << 2 | 1 << 14 | 1 << 18);
    // SAFETY: a queue pair of the test.
    unsafe { assert_eq!(mrc_modify_qp(side.qp, &raw mut attr, mask, null_mut(), 0), 0) };
    let (found, mrc_attr, _) = side.query();
    assert_eq!((found.port_num, found.retry_cnt, found.rnr_retry, found.timeout), (1, 7, 7, 14));
    assert_eq!((mrc_attr.timeout, mrc_attr.linear_cnt, mrc_attr.exp_cnt), (14, 7, 9));
    side.end();
}

/// A peer that the program knows not to send NACKs for trimmed packets is not expected to.
#[test]
fn a_peer_without_trim_nacks_is_known_to_be_so() {
    let info = QpInfo {
        version: QpInfo::VERSION,
        qpn: 5,
        psn: 0,
        msn: 0,
        mpr: 8,
        max_wimm: 1,
        mtu: 1024,
        trim_nack: true,
        dynamic_mpr: true,
        icrc: true,
        udp_port: 4791,
        entropy: "udp".to_owned(),
        ports: Vec::new(),
        plane_ids: Vec::new(),
        extensions: spindrift::endpoint::Extensions::NONE,
        max_rd_atomic: 0,
    };
    let rtr = RtrAttr::between(&info, &info);
    for (cap, expected) in
        [(0, true), (qp_cap::SVC_TIME_DEST_UNSUPPORTED, true), (qp_cap::TRIM_NACK_DEST_UNSUPPORTED, false)]
    {
        let mut own = Attributes::default();
        let attr = mrc_qp_attr { cap, ..no_attr() };
        // SAFETY: attributes without a hint.
        let change = unsafe { Change::new(&raw const attr, attr_mask::CAP) }.unwrap();
        own.apply(&change, [qp_state::INIT, qp_state::RTR]).unwrap();
        assert_eq!(own.receives(rtr.clone()).trim_nack, expected);
        assert!(!own.receives(RtrAttr { trim_nack: false, ..rtr.clone() }).trim_nack);
        assert!(!own.offer(info.clone()).dynamic_mpr, "the program has not asked for it");
    }
}
