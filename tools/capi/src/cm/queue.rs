//! Queue pairs, completion queues and shared receive queues of an object.

use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use std::net::IpAddr;

use super::abi::{QpInit, RDMA_UDP_QKEY, rdma_cm_id};
use super::id::{Agreed, IdBox};
use crate::abi::{
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE,
    ibv_ah_attr, ibv_comp_channel, ibv_context, ibv_cq, ibv_gid, ibv_global_route, ibv_pd, ibv_qp,
    ibv_qp_attr, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_srq_init_attr, ibv_srq_init_attr_ex,
    qp_attr_mask, qp_init_attr_mask, qp_state,
};
use crate::channel::{ibv_create_comp_channel, ibv_destroy_comp_channel};
use crate::connection::no_attributes;
use crate::cq::{ibv_create_cq, ibv_destroy_cq};
use crate::error::{count, last_code};
use crate::qp::{create_qp_ex, ibv_create_qp, ibv_destroy_qp, ibv_modify_qp, plain};
use crate::srq::{create_srq_ex, ibv_create_srq, ibv_destroy_srq};
use spindrift_programs::gid;

/// The entry of the table of GIDs that is the address, as RoCE v2 has it.
const GID_INDEX: u8 = 3;
/// The code of how long a receiver wants a message without a receive to wait: 0.64 ms.
const MIN_RNR_TIMER: u8 = 12;
/// The code of how long a queue pair waits for an acknowledgement, if the program does not say: 67 ms.
const TIMEOUT: u8 = 14;

/// The way to a host, for an address handle or a queue pair.
pub(super) fn to_host(address: IpAddr) -> ibv_ah_attr {
    let grh = ibv_global_route {
        dgid: ibv_gid { raw: gid::of(address) },
        flow_label: 0,
        sgid_index: GID_INDEX,
        hop_limit: 64,
        traffic_class: 0,
    };
    ibv_ah_attr { grh, dlid: 0, sl: 0, src_path_bits: 0, static_rate: 0, is_global: 1, port_num: 1 }
}

/// The attributes for a state, and which of them count.
fn attributes(of: &IdBox, to: c_int) -> Result<(ibv_qp_attr, c_int), c_int> {
    use qp_attr_mask as mask;

    let state = of.state()?;
    let Agreed { remote, retry, responder_resources, initiator_depth } = &state.agreed;
    let datagrams = of.is_of_datagrams();
    let mut attr = ibv_qp_attr { qp_state: to, ..no_attributes() };
    let what = match to {
        qp_state::INIT => {
            attr.pkey_index = 0;
            attr.port_num = 1;
            attr.qkey = RDMA_UDP_QKEY;
            attr.qp_access_flags = IBV_ACCESS_LOCAL_WRITE
                | IBV_ACCESS_REMOTE_WRITE
                | IBV_ACCESS_REMOTE_READ
                | IBV_ACCESS_REMOTE_ATOMIC;
            mask::PKEY_INDEX | mask::PORT | if datagrams { mask::QKEY } else { mask::ACCESS_FLAGS }
        }
        qp_state::RTR if datagrams => 0,
        qp_state::RTR => {
            let remote = remote.as_ref().ok_or(libc::EINVAL)?;
            let own = state.device.map_or(remote.mtu, |device| device.mtu());
            attr.ah_attr = to_host(remote.address);
            attr.path_mtu = remote.mtu.min(own).clamp(1, 5).into();
            attr.dest_qp_num = remote.number;
            attr.max_dest_rd_atomic = *responder_resources;
            attr.min_rnr_timer = MIN_RNR_TIMER;
            mask::AV
                | mask::PATH_MTU
                | mask::DEST_QPN
                | mask::RQ_PSN
                | mask::MAX_DEST_RD_ATOMIC
                | mask::MIN_RNR_TIMER
        }
        qp_state::RTS if datagrams => mask::SQ_PSN,
        qp_state::RTS => {
            let remote = remote.as_ref().ok_or(libc::EINVAL)?;
            attr.timeout = if state.ack_timeout == 0 { TIMEOUT } else { state.ack_timeout };
            attr.retry_cnt = *retry;
            // A side tells the other how often that may try.
            attr.rnr_retry = remote.rnr_retry;
            attr.max_rd_atomic = *initiator_depth;
            mask::SQ_PSN | mask::TIMEOUT | mask::RETRY_CNT | mask::RNR_RETRY | mask::MAX_QP_RD_ATOMIC
        }
        _ => return Err(libc::EINVAL),
    };
    Ok((attr, what | mask::STATE))
}

fn change(of: &IdBox, qp: *mut ibv_qp, to: c_int) -> Result<(), c_int> {
    let (mut attr, mask) = attributes(of, to)?;
    // SAFETY: a queue pair that the caller has.
    match unsafe { ibv_modify_qp(qp, &raw mut attr, mask) } {
        0 => Ok(()),
        code => Err(code),
    }
}

/// Connects the queue pair to what the other side has told.
pub(super) fn connect(of: &IdBox) -> Result<(), c_int> {
    let qp = of.base().qp;
    change(of, qp, qp_state::RTR)?;
    change(of, qp, qp_state::RTS)
}

/// The queue pair will not be used any more: its requests end.
pub(super) fn fail(of: &IdBox) {
    let qp = of.base().qp;
    if qp.is_null() || of.is_of_datagrams() {
        return;
    }
    let mut attr = ibv_qp_attr { qp_state: qp_state::ERR, ..no_attributes() };
    // SAFETY: the queue pair of an object was not destroyed.
    unsafe { ibv_modify_qp(qp, &raw mut attr, qp_attr_mask::STATE) };
}

/// A completion queue with a channel.
fn queue(
    context: *mut ibv_context,
    size: u32,
    user: *mut c_void,
) -> Result<(*mut ibv_comp_channel, *mut ibv_cq), c_int> {
    // SAFETY: a context that is open.
    let channel = unsafe { ibv_create_comp_channel(context) };
    if channel.is_null() {
        return Err(last_code());
    }
    // SAFETY: the same, and a channel of it.
    let cq = unsafe { ibv_create_cq(context, size.max(1) as c_int, user, channel, 0) };
    if cq.is_null() {
        let code = last_code();
        // SAFETY: nobody else has it.
        unsafe { ibv_destroy_comp_channel(channel) };
        return Err(code);
    }
    Ok((channel, cq))
}

/// Makes the completion queues that the program leaves to this library.
fn make_queues(of: &IdBox, attr: &mut QpInit) -> Result<(), c_int> {
    let base = of.base();
    let user = of.as_user();
    if attr.recv_cq.is_null() {
        if base.recv_cq.is_null() {
            (base.recv_cq_channel, base.recv_cq) = queue(base.verbs, attr.cap.max_recv_wr, user)?;
        }
        attr.recv_cq = base.recv_cq;
    }
    if attr.send_cq.is_null() {
        if base.send_cq.is_null() {
            (base.send_cq_channel, base.send_cq) = queue(base.verbs, attr.cap.max_send_wr, user)?;
        }
        attr.send_cq = base.send_cq;
    }
    Ok(())
}

fn drop_queues(of: &IdBox) {
    let base = of.base();
    let ends =
        [(&mut base.recv_cq, &mut base.recv_cq_channel), (&mut base.send_cq, &mut base.send_cq_channel)];
    for (cq, channel) in ends {
        let (cq, channel) = (core::mem::replace(cq, null_mut()), core::mem::replace(channel, null_mut()));
        if !cq.is_null() {
            // SAFETY: made by `make_queues`, and in use by nothing.
            unsafe { ibv_destroy_cq(cq) };
        }
        if !channel.is_null() {
            // SAFETY: the same.
            unsafe { ibv_destroy_comp_channel(channel) };
        }
    }
}

/// Takes a queue pair that was just made to the state in which an object has it.
fn prepare(of: &IdBox, qp: *mut ibv_qp) -> Result<(), c_int> {
    change(of, qp, qp_state::INIT)?;
    if of.is_of_datagrams() {
        change(of, qp, qp_state::RTR)?;
        change(of, qp, qp_state::RTS)?;
    }
    Ok(())
}

/// Gives an object a queue pair.
fn adopt(of: &IdBox, pd: *mut ibv_pd, qp: *mut ibv_qp) -> Result<(), c_int> {
    let made = if qp.is_null() { Err(last_code()) } else { prepare(of, qp) };
    if let Err(code) = made {
        if !qp.is_null() {
            // SAFETY: nobody else has it.
            unsafe { ibv_destroy_qp(qp) };
        }
        drop_queues(of);
        return Err(code);
    }
    of.base().qp = qp;
    of.base().pd = pd;
    Ok(())
}

pub(super) fn create(of: &IdBox, pd: *mut ibv_pd, attr: &mut QpInit) -> Result<(), c_int> {
    let base = of.base();
    if base.verbs.is_null() || !base.qp.is_null() {
        return Err(libc::EINVAL);
    }
    let pd = if pd.is_null() { base.pd } else { pd };
    make_queues(of, attr)?;
    if attr.srq.is_null() {
        attr.srq = base.srq;
    }
    // SAFETY: the objects of this library that the program passes.
    let qp = unsafe { ibv_create_qp(pd, attr) };
    adopt(of, pd, qp)
}

/// # Safety
/// An object of this library, a protection domain of it or null, and attributes.
pub(crate) unsafe extern "C" fn rdma_create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    count(|| {
        // SAFETY: as the caller promises.
        let (of, attr) = unsafe { (IdBox::of(id), &mut *attr) };
        drop(of.state()?);
        create(of, pd, attr)?;
        Ok(0)
    })
}

/// # Safety
/// An object of this library, and attributes.
pub(crate) unsafe extern "C" fn rdma_create_qp_ex(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_init_attr_ex,
) -> c_int {
    count(|| {
        // SAFETY: as the caller promises.
        let (of, attr) = unsafe { (IdBox::of(id), &mut *attr) };
        drop(of.state()?);
        let base = of.base();
        if base.verbs.is_null() || !base.qp.is_null() {
            return Err(libc::EINVAL);
        }
        if attr.comp_mask & qp_init_attr_mask::PD == 0 {
            attr.comp_mask |= qp_init_attr_mask::PD;
            attr.pd = base.pd;
        }
        let mut queues = plain(attr);
        make_queues(of, &mut queues)?;
        (attr.send_cq, attr.recv_cq) = (queues.send_cq, queues.recv_cq);
        if attr.srq.is_null() {
            attr.srq = base.srq;
        }
        // SAFETY: the objects of this library that the program passes.
        let qp = unsafe { create_qp_ex(base.verbs, attr) };
        adopt(of, attr.pd, qp)?;
        Ok(0)
    })
}

/// # Safety
/// An object of this library with a queue pair, which is not used afterwards.
pub(crate) unsafe extern "C" fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    // SAFETY: as the caller promises.
    let of = unsafe { IdBox::of(id) };
    let qp = core::mem::replace(&mut of.base().qp, null_mut());
    if !qp.is_null() {
        // SAFETY: as the caller promises.
        unsafe { ibv_destroy_qp(qp) };
        drop_queues(of);
    }
}

/// For programs that change the state of their queue pair themselves.
///
/// # Safety
/// An object of this library, attributes that name the state, and a place for the mask.
pub(crate) unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_attr,
    mask: *mut c_int,
) -> c_int {
    count(|| {
        // SAFETY: as the caller promises.
        let (of, to) = unsafe { (IdBox::of(id), (*attr).qp_state) };
        let (found, which) = attributes(of, to)?;
        // SAFETY: as the caller promises.
        unsafe { attr.write(found) };
        // SAFETY: as the caller promises.
        unsafe { mask.write(which) };
        Ok(0)
    })
}

/// # Safety
/// An object of this library, a protection domain of it or null, and attributes.
pub(crate) unsafe extern "C" fn rdma_create_srq(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> c_int {
    count(|| {
        // SAFETY: as the caller promises.
        let of = unsafe { IdBox::of(id) };
        drop(of.state()?);
        let base = of.base();
        let pd = if pd.is_null() { base.pd } else { pd };
        if pd.is_null() || !base.srq.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: as the caller promises.
        let srq = unsafe { ibv_create_srq(pd, attr) };
        if srq.is_null() {
            return Err(last_code());
        }
        (base.srq, base.pd) = (srq, pd);
        Ok(0)
    })
}

/// # Safety
/// An object of this library, and attributes.
pub(crate) unsafe extern "C" fn rdma_create_srq_ex(
    id: *mut rdma_cm_id,
    attr: *mut ibv_srq_init_attr_ex,
) -> c_int {
    /// "There is a protection domain."
    const PD: u32 = 1 << 1;

    count(|| {
        // SAFETY: as the caller promises.
        let (of, attr) = unsafe { (IdBox::of(id), &mut *attr) };
        drop(of.state()?);
        let base = of.base();
        if base.verbs.is_null() || !base.srq.is_null() {
            return Err(libc::EINVAL);
        }
        if attr.comp_mask & PD == 0 {
            attr.comp_mask |= PD;
            attr.pd = base.pd;
        }
        // SAFETY: as the caller promises.
        let srq = unsafe { create_srq_ex(base.verbs, attr) };
        if srq.is_null() {
            return Err(last_code());
        }
        (base.srq, base.pd) = (srq, attr.pd);
        Ok(0)
    })
}

/// # Safety
/// An object of this library with a shared receive queue, which is not used afterwards.
pub(crate) unsafe extern "C" fn rdma_destroy_srq(id: *mut rdma_cm_id) {
    // SAFETY: as the caller promises.
    let of = unsafe { IdBox::of(id) };
    let srq = core::mem::replace(&mut of.base().srq, null_mut());
    if !srq.is_null() {
        // SAFETY: as the caller promises.
        unsafe { ibv_destroy_srq(srq) };
    }
}
