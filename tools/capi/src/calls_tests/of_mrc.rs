//! What sequences do with queue pairs of MRC's interface. Their completion queues and regions are those of the others.

use super::*;
use crate::mrc::abi::{mrc_context, mrc_qp_attr, mrc_qp_init_attr};
use crate::mrc::queue::{mrc_create_qp, mrc_modify_qp, mrc_query_qp};

/// The type of these queue pairs, beside those of verbs.
pub(super) const MRC: c_int = 98;

/// # Safety
/// Objects of a world.
pub(super) unsafe fn create(
    context: *mut mrc_context,
    pd: *mut ibv_pd,
    [send_cq, recv_cq]: [*mut ibv_cq; 2],
    cap: ibv_qp_cap,
) -> *mut ibv_qp {
    let mut attr = mrc_qp_init_attr {
        qp_context: null_mut(),
        send_cq: send_cq.cast(),
        recv_cq: recv_cq.cast(),
        cap,
        sq_sig_all: 0,
        pd,
        send_ops_flags: 0,
        protocol_version: 0,
    };
    // SAFETY: as the caller promises.
    unsafe { mrc_create_qp(context, &raw mut attr).cast() }
}

/// Changes attributes of MRC too: some that fit, or any.
///
/// # Safety
/// A queue pair of a world.
pub(super) unsafe fn modify(rng: &mut Rng, qp: *mut ibv_qp, attr: &mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: numbers, and no hint.
    let mut mrc_attr: mrc_qp_attr = unsafe { zeroed() };
    (mrc_attr.mpr, mrc_attr.mpr_dest) = (rng.number(9) as u8, rng.number(9) as u8);
    (mrc_attr.max_wimm, mrc_attr.max_wimm_dest) = (rng.number(9) as u16, rng.number(9) as u16);
    (mrc_attr.timeout, mrc_attr.linear_cnt) = (10 + rng.below(2) as u8, rng.number(3) as u8);
    mrc_attr.cap = rng.number(8);
    let mrc_mask = if rng.one_in(12) { rng.next() as c_int } else { rng.below(1 << 10) as c_int };
    let mrc_mask = if rng.one_in(2) { 0 } else { mrc_mask };
    // SAFETY: as the caller promises.
    unsafe {
        let code = mrc_modify_qp(qp.cast(), attr, mask, &raw mut mrc_attr, mrc_mask);
        let mut found: mrc_qp_attr = zeroed();
        assert_eq!(mrc_query_qp(qp.cast(), null_mut(), 0, &raw mut found, 0x3ff, null_mut()), 0);
        assert!(found.mpr > 0 && found.mpr_dest > 0 && found.timeout <= 24, "{found:?}");
        code
    }
}
