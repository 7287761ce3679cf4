//! Queue pairs, as programs make, change and destroy them.

use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use spindrift::verbs::{Cq, Qp, QpConfig};

use crate::abi::{
    IBV_QPT_RC, IBV_QPT_UC, ibv_context, ibv_ece, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_ex,
    ibv_qp_init_attr, ibv_qp_init_attr_ex, qp_init_attr_mask, qp_state, send_ops,
};
use crate::connection::QpCore;
use crate::context::ContextBox;
use crate::cq::CqBox;
use crate::error::{code, code_of, object};
use crate::pd::PdBox;
use crate::post::{self, Builder};
use crate::srq::SrqBox;

/// What a program has of a queue pair.
#[repr(C)]
pub(crate) struct QpBox {
    base: UnsafeCell<ibv_qp_ex>,
    zeros: [u64; 32],
    pub(crate) core: Arc<QpCore>,
    /// Requests that are being made one by one, and whether a thread makes some.
    pub(crate) builder: UnsafeCell<Builder>,
    pub(crate) building: AtomicBool,
    /// It was made with the functions for that.
    is_extended: bool,
}

impl QpBox {
    /// # Safety
    /// A queue pair of this library that was not destroyed.
    pub(crate) unsafe fn of<'a>(qp: *mut ibv_qp) -> &'a Self {
        // SAFETY: it is the first field of a box.
        unsafe { &*qp.cast::<Self>() }
    }

    pub(crate) fn base(&self) -> *mut ibv_qp_ex {
        self.base.get()
    }
}

/// Spindrift's queue pair.
fn make(
    pd: &PdBox,
    [send_cq, recv_cq]: [&CqBox; 2],
    srq: Option<&SrqBox>,
    cap: &ibv_qp_cap,
    sig_all: bool,
) -> Result<Qp, c_int> {
    let config = QpConfig {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline: cap.max_inline_data,
        srq: srq.map(|srq| srq.srq.clone()),
        sig_all,
        max_mtu: 0,
        ..QpConfig::default()
    };
    let with =
        |send: &Cq, recv: &Cq| Qp::create(&pd.pd, send, recv, &config).map_err(|error| code_of(&error));
    if std::ptr::eq(send_cq, recv_cq) {
        send_cq.with(|cq| with(cq, cq))?
    } else {
        send_cq.with(|send| recv_cq.with(|recv| with(send, recv)))??
    }
}

/// # Safety
/// Objects of this library in the attributes.
unsafe fn create(
    pd: *mut ibv_pd,
    attr: &mut ibv_qp_init_attr,
    ops: Option<u64>,
) -> Result<*mut ibv_qp, c_int> {
    match attr.qp_type {
        // What a reliable connection does is more than an unreliable one promises.
        IBV_QPT_RC | IBV_QPT_UC => {}
        _ => return Err(libc::EOPNOTSUPP),
    }
    if pd.is_null() || attr.send_cq.is_null() || attr.recv_cq.is_null() {
        return Err(libc::EINVAL);
    }
    if ops.is_some_and(|ops| ops & !send_ops::ALL != 0) {
        return Err(libc::EOPNOTSUPP);
    }
    // SAFETY: as the caller promises.
    let (pd_box, context) = unsafe { (PdBox::of(pd), (*pd).context) };
    // SAFETY: as the caller promises.
    let (send_cq, recv_cq) = unsafe { (CqBox::of(attr.send_cq), CqBox::of(attr.recv_cq)) };
    // SAFETY: as the caller promises.
    let srq = (!attr.srq.is_null()).then(|| unsafe { SrqBox::of(attr.srq) });
    // SAFETY: the context of a protection domain is open.
    let context_box = unsafe { ContextBox::of(context) };
    let cap = ibv_qp_cap {
        max_send_wr: attr.cap.max_send_wr.max(1),
        max_recv_wr: attr.cap.max_recv_wr.max(1),
        max_send_sge: attr.cap.max_send_sge.max(1),
        max_recv_sge: attr.cap.max_recv_sge.max(1),
        max_inline_data: attr.cap.max_inline_data,
    };
    let qp = make(pd_box, [send_cq, recv_cq], srq, &cap, attr.sq_sig_all != 0)?;
    let wire = qp.qpn();
    let nic = Arc::clone(&context_box.nic);
    let events = Arc::clone(&context_box.events);
    let core = QpCore::add(&nic, events, qp, cap, attr.sq_sig_all != 0).ok_or(libc::ENOMEM)?;
    core.set_wire(None, Some(wire));
    pd_box.add_user();
    send_cq.add_user();
    recv_cq.add_user();
    if let Some(srq) = srq {
        srq.add_user();
    }
    attr.cap = cap;
    let base = ibv_qp_ex {
        base: ibv_qp {
            context,
            qp_context: attr.qp_context,
            pd,
            send_cq: attr.send_cq,
            recv_cq: attr.recv_cq,
            srq: attr.srq,
            handle: 0,
            qp_num: core.number.get(),
            state: qp_state::RESET,
            qp_type: attr.qp_type,
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            cond: libc::PTHREAD_COND_INITIALIZER,
            events_completed: 0,
        },
        ..post::functions()
    };
    let made = QpBox {
        base: UnsafeCell::new(base),
        zeros: [0; 32],
        core: Arc::clone(&core),
        builder: UnsafeCell::default(),
        building: AtomicBool::new(false),
        is_extended: ops.is_some(),
    };
    let made = Box::into_raw(Box::new(made));
    core.at.store(made.addr(), Ordering::Release);
    Ok(made.cast())
}

/// # Safety
/// A protection domain of this library, and attributes with objects of this library.
pub(crate) unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    object(|| {
        // SAFETY: as the caller promises.
        unsafe { create(pd, &mut *attr, None) }
    })
}

pub(crate) unsafe extern "C" fn create_qp_ex(
    _context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    object(|| {
        // SAFETY: the caller passes attributes.
        let attr = unsafe { &mut *attr };
        let known =
            qp_init_attr_mask::PD | qp_init_attr_mask::CREATE_FLAGS | qp_init_attr_mask::SEND_OPS_FLAGS;
        let flags = attr.comp_mask & qp_init_attr_mask::CREATE_FLAGS != 0 && attr.create_flags != 0;
        if attr.comp_mask & !known != 0 || flags {
            return Err(libc::EOPNOTSUPP);
        }
        if attr.comp_mask & qp_init_attr_mask::PD == 0 {
            return Err(libc::EINVAL);
        }
        let ops = (attr.comp_mask & qp_init_attr_mask::SEND_OPS_FLAGS != 0).then_some(attr.send_ops_flags);
        let mut plain = ibv_qp_init_attr {
            qp_context: attr.qp_context,
            send_cq: attr.send_cq,
            recv_cq: attr.recv_cq,
            srq: attr.srq,
            cap: attr.cap,
            qp_type: attr.qp_type,
            sq_sig_all: attr.sq_sig_all,
        };
        // SAFETY: as for every function of a context.
        let made = unsafe { create(attr.pd, &mut plain, ops) }?;
        attr.cap = plain.cap;
        Ok(made)
    })
}

/// The functions that make requests one by one, if the queue pair was made for them.
///
/// # Safety
/// A queue pair of this library.
pub(crate) unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    // SAFETY: as the caller promises.
    let of = unsafe { QpBox::of(qp) };
    if of.is_extended { of.base() } else { core::ptr::null_mut() }
}

/// # Safety
/// A queue pair of this library, and attributes.
pub(crate) unsafe extern "C" fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    code(|| {
        // SAFETY: as the caller promises.
        let (of, attr) = unsafe { (QpBox::of(qp), &*attr) };
        let state = of.core.modify(attr, mask)?;
        // SAFETY: only this function writes the field, and verbs has one caller of it at a time.
        unsafe { (&raw mut (*of.base()).base.state).write(state) };
        Ok(())
    })
}

/// # Safety
/// A queue pair of this library, and places for attributes.
pub(crate) unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    code(|| {
        // SAFETY: as the caller promises.
        let of = unsafe { QpBox::of(qp) };
        let inner = of.core.lock();
        let state = QpCore::state(&inner);
        let found = ibv_qp_attr { qp_state: state, cur_qp_state: state, cap: inner.cap, ..inner.attr };
        // SAFETY: the fields are written only when the queue pair is made, and by `ibv_modify_qp`.
        let base = unsafe { &(*of.base()).base };
        let found_init = ibv_qp_init_attr {
            qp_context: base.qp_context,
            send_cq: base.send_cq,
            recv_cq: base.recv_cq,
            srq: base.srq,
            cap: inner.cap,
            qp_type: base.qp_type,
            sq_sig_all: inner.sig_all.into(),
        };
        // SAFETY: as the caller promises.
        unsafe { attr.write(found) };
        // SAFETY: as the caller promises.
        unsafe { init.write(found_init) };
        // SAFETY: as in `ibv_modify_qp`.
        unsafe { (&raw mut (*of.base()).base.state).write(state) };
        Ok(())
    })
}

/// # Safety
/// A queue pair of this library, which is not used afterwards if the call succeeds.
pub(crate) unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    code(|| {
        // SAFETY: as the caller promises; it came from a box.
        let of = unsafe { Box::from_raw(qp.cast::<QpBox>()) };
        let core = &of.core;
        core.at.store(0, Ordering::Release);
        core.nic.remove_qp(core);
        let mut inner = core.lock();
        // The control thread may be about to connect it.
        inner.state = qp_state::RESET;
        let ended = inner.qp.take();
        drop(inner);
        if let Some(ended) = ended {
            core.set_wire(Some(ended.qpn()), None);
        }
        core.events.forget(qp.addr());
        // SAFETY: the fields are written only when the queue pair is made.
        let base = unsafe { &(*of.base()).base };
        // SAFETY: objects with queue pairs cannot be destroyed.
        unsafe {
            CqBox::of(base.send_cq).remove_user();
            CqBox::of(base.recv_cq).remove_user();
            if !base.srq.is_null() {
                SrqBox::of(base.srq).remove_user();
            }
            PdBox::of(base.pd).remove_user();
        }
        Ok(())
    })
}

/// Packets of one message arrive in any order, over many paths.
pub(crate) extern "C" fn ibv_query_qp_data_in_order(_qp: *mut ibv_qp, _op: c_int, _flags: u32) -> c_int {
    0
}

/// Nothing is agreed between vendors' devices.
///
/// # Safety
/// A place for the options.
pub(crate) unsafe extern "C" fn ibv_query_ece(_qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { ece.write(ibv_ece::default()) };
    0
}

/// # Safety
/// Options.
pub(crate) unsafe extern "C" fn ibv_set_ece(_qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    // SAFETY: as the caller promises.
    let none = ece.is_null() || unsafe { (*ece).vendor_id == 0 };
    if none { 0 } else { libc::EOPNOTSUPP }
}
