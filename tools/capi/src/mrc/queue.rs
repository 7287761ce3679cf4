//! Queue pairs of MRC's interface.

use core::ffi::c_int;
use core::mem::MaybeUninit;
use core::ptr::null_mut;
use std::sync::Arc;

use spindrift::verbs::RtsAttr;

use super::abi::{
    MRC_PROTOCOL_VERSION_1, attr_mask, mrc_context, mrc_qp, mrc_qp_attr, mrc_qp_init_attr, qp_cap,
};
use super::attributes::{Change, copy};
use super::context::OwnerBox;
use super::{code, status, told};
use crate::abi::{
    IBV_QPT_RC, ibv_qp_attr, ibv_qp_init_attr, ibv_recv_wr, ibv_send_wr, qp_attr_mask, send_ops,
};
use crate::connection::no_attributes;
use crate::error::{code_of, object};
use crate::qp::{self, Api, Body, QpBox};
use crate::{post, qp::ibv_query_qp};

/// Attributes of verbs that MRC does not have, or has in a form of its own. Programs pass them all the same.
const IGNORED: c_int = qp_attr_mask::PORT
    | qp_attr_mask::TIMEOUT
    | qp_attr_mask::RETRY_CNT
    | qp_attr_mask::RNR_RETRY
    | qp_attr_mask::MIN_RNR_TIMER
    | qp_attr_mask::MAX_QP_RD_ATOMIC
    | qp_attr_mask::MAX_DEST_RD_ATOMIC;

/// # Safety
/// A context of this library, and attributes with objects of this library.
pub(crate) unsafe extern "C" fn mrc_create_qp(
    context: *mut mrc_context,
    attr: *mut mrc_qp_init_attr,
) -> *mut mrc_qp {
    object(|| {
        if context.is_null() || attr.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: as the caller promises.
        let (owner, attr) = unsafe { (Arc::clone(&OwnerBox::of(context).owner), &mut *attr) };
        let writes = send_ops::RDMA_WRITE | send_ops::RDMA_WRITE_WITH_IMM;
        if attr.send_ops_flags & !writes != 0 || attr.protocol_version & !MRC_PROTOCOL_VERSION_1 != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        let mut plain = ibv_qp_init_attr {
            qp_context: attr.qp_context,
            send_cq: attr.send_cq.cast(),
            recv_cq: attr.recv_cq.cast(),
            srq: null_mut(),
            cap: attr.cap,
            qp_type: IBV_QPT_RC,
            sq_sig_all: attr.sq_sig_all,
        };
        // SAFETY: as the caller promises.
        let made = unsafe { qp::create(attr.pd, &mut plain, Api::Mrc(owner)) }?;
        attr.cap = plain.cap;
        Ok(made.cast())
    })
}

/// # Safety
/// A queue pair of this library, which is not used afterwards if the call succeeds.
pub(crate) unsafe extern "C" fn mrc_destroy_qp(queue: *mut mrc_qp) -> c_int {
    if queue.is_null() {
        return told(libc::EINVAL);
    }
    // SAFETY: as the caller promises.
    told(unsafe { qp::ibv_destroy_qp(queue.cast()) })
}

/// # Safety
/// A queue pair of this library; attributes, or null where a mask is empty.
pub(crate) unsafe extern "C" fn mrc_modify_qp(
    queue: *mut mrc_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
    mrc_attr: *mut mrc_qp_attr,
    mrc_mask: c_int,
) -> c_int {
    code(|| {
        if queue.is_null() || (attr.is_null() && mask != 0) {
            return Err(libc::EINVAL);
        }
        // SAFETY: as the caller promises.
        let change = unsafe { Change::new(mrc_attr, mrc_mask) }?;
        let none = no_attributes();
        // SAFETY: as the caller promises.
        let attr = if attr.is_null() { &none } else { unsafe { &*attr } };
        // SAFETY: as the caller promises.
        unsafe { qp::modify(queue.cast(), attr, mask & !IGNORED, Some(&change)) }
    })
}

/// MRC's attributes of a queue pair, all of them.
fn attributes(of: &QpBox) -> Result<mrc_qp_attr, c_int> {
    let Body::Connected(core) = of.body()? else { return Err(libc::EINVAL) };
    let mut inner = core.lock();
    let now = inner.qp()?.query().map_err(|error| code_of(&error))?;
    let set = inner.mrc.as_ref().ok_or(libc::EINVAL)?;
    let wanted = set.wanted(&RtsAttr::default());
    let Some(rts) = now.rts else { return Ok(set.known(&wanted)) };
    let in_force = mrc_qp_attr {
        mpr: rts.mpr,
        mpr_dest: now.mpr_dest,
        max_wimm: rts.max_wimm,
        max_wimm_dest: now.max_wimm_dest,
        timeout: rts.timeout,
        linear_cnt: rts.linear_retries,
        exp_cnt: rts.exponential_retries,
        cap: if now.dynamic_mpr { qp_cap::DYNAMIC_MPR } else { 0 },
        ..wanted
    };
    Ok(set.known(&in_force))
}

/// # Safety
/// A queue pair of this library; places for attributes, or null for what is not wanted.
pub(crate) unsafe extern "C" fn mrc_query_qp(
    queue: *mut mrc_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
    mrc_attr: *mut mrc_qp_attr,
    mrc_mask: c_int,
    init: *mut mrc_qp_init_attr,
) -> c_int {
    code(|| {
        if queue.is_null() || mrc_mask & !attr_mask::ALL != 0 || (mrc_attr.is_null() && mrc_mask != 0) {
            return Err(libc::EINVAL);
        }
        let (mut plain, mut plain_init) = (no_attributes(), MaybeUninit::uninit());
        // SAFETY: as the caller promises, and places of this function.
        match unsafe { ibv_query_qp(queue.cast(), &raw mut plain, mask, plain_init.as_mut_ptr()) } {
            0 => {}
            code => return Err(code),
        }
        // SAFETY: the call above has filled it.
        let plain_init = unsafe { plain_init.assume_init() };
        // SAFETY: as the caller promises.
        let of = unsafe { QpBox::of(queue.cast()) };
        if mrc_mask != 0 {
            let found = attributes(of)?;
            // SAFETY: as the caller promises.
            copy(unsafe { &mut *mrc_attr }, &found, mrc_mask);
        }
        if !attr.is_null() {
            // SAFETY: as the caller promises.
            unsafe { attr.write(plain) };
        }
        if !init.is_null() {
            let found = mrc_qp_init_attr {
                qp_context: plain_init.qp_context,
                send_cq: plain_init.send_cq.cast(),
                recv_cq: plain_init.recv_cq.cast(),
                cap: plain_init.cap,
                sq_sig_all: plain_init.sq_sig_all,
                // SAFETY: a field that nobody writes after the queue pair was made.
                pd: unsafe { (*of.base()).base.pd },
                send_ops_flags: send_ops::RDMA_WRITE | send_ops::RDMA_WRITE_WITH_IMM,
                protocol_version: MRC_PROTOCOL_VERSION_1,
            };
            // SAFETY: as the caller promises.
            unsafe { init.write(found) };
        }
        Ok(())
    })
}

/// # Safety
/// A queue pair of this library, and a place for its number.
pub(crate) unsafe extern "C" fn mrc_get_qpn(queue: *mut mrc_qp, number: *mut u32) -> c_int {
    status(|| {
        if queue.is_null() || number.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: as the caller promises; nobody writes the field after the queue pair was made.
        unsafe { number.write((*QpBox::of(queue.cast()).base()).base.qp_num) };
        Ok(())
    })
}

/// # Safety
/// A queue pair of this library, a list of requests, and a place for the one that is refused.
pub(crate) unsafe extern "C" fn mrc_post_send(
    queue: *mut mrc_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: as the caller promises.
    told(unsafe { post::post_send(queue.cast(), wr, bad) })
}

/// # Safety
/// As [`mrc_post_send`].
pub(crate) unsafe extern "C" fn mrc_post_recv(
    queue: *mut mrc_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: as the caller promises.
    status(|| match unsafe { post::post_recv(queue.cast(), wr, bad) } {
        0 => Ok(()),
        code => Err(code),
    })
}
