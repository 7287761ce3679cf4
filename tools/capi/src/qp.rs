//! Queue pairs, as programs make, change and destroy them.

use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use spindrift::endpoint::Extensions;
use spindrift::path::PathConfig;
use spindrift::verbs::{Cq, Qp, QpConfig};

use crate::abi::{
    IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, ibv_context, ibv_ece, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_cap,
    ibv_qp_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex, qp_init_attr_mask, qp_state, send_ops,
};
use crate::connection::QpCore;
use crate::context::ContextBox;
use crate::cq::CqBox;
use crate::error::{code, code_of, object};
use crate::handshake::Number;
use crate::mrc::attributes::{Attributes, Change};
use crate::mrc::context::Owner;
use crate::nic::Nic;
use crate::pd::PdBox;
use crate::post::{self, Builder};
use crate::srq::SrqBox;
use crate::ud::{UdConfig, UdQp};

/// What a program has of a queue pair.
#[repr(C)]
pub(crate) struct QpBox {
    base: UnsafeCell<ibv_qp_ex>,
    zeros: [u64; 32],
    body: Body,
    nic: Arc<Nic>,
    /// Requests that are being made one by one, and whether a thread makes some.
    pub(crate) builder: UnsafeCell<Builder>,
    pub(crate) building: AtomicBool,
    api: Api,
}

/// By which functions a queue pair was made.
pub(crate) enum Api {
    Verbs,
    /// Those that make requests one by one, for these operations.
    Extended(u64),
    /// MRC's own, of this context.
    Mrc(Arc<Owner>),
}

/// What a queue pair is, by its type.
pub(crate) enum Body {
    Connected(Arc<QpCore>),
    Datagrams(Arc<UdQp>),
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

    /// What it is. An error in the child of a fork, where a thread of the parent may hold its locks for ever.
    pub(crate) fn body(&self) -> Result<&Body, c_int> {
        if self.nic.is_elsewhere() { Err(libc::EIO) } else { Ok(&self.body) }
    }

    /// Bytes that a request may carry in itself.
    pub(crate) fn max_inline(&self) -> u32 {
        match self.body() {
            Ok(Body::Connected(core)) => core.lock().cap.max_inline_data,
            Ok(Body::Datagrams(ud)) => ud.lock().cap.max_inline_data,
            Err(_) => 0,
        }
    }
}

/// Spindrift's queue pair.
fn make(
    pd: &PdBox,
    [send_cq, recv_cq]: [&CqBox; 2],
    srq: Option<&SrqBox>,
    cap: &ibv_qp_cap,
    sig_all: bool,
    (api, nic): (&Api, &Nic),
) -> Result<Qp, c_int> {
    let of_mrc = matches!(api, Api::Mrc(_));
    let config = QpConfig {
        extensions: if of_mrc { Extensions::EMPTY_MESSAGES } else { Extensions::ALL },
        keep_number: nic.peers.is_some(),
        path: PathConfig { standby: nic.standby, ..PathConfig::new(1) },
        // Offered only if the program asks for it.
        dynamic_mpr: of_mrc,
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

/// The sizes of a queue pair of datagrams, if the device has as many.
fn checked(nic: &Nic, cap: ibv_qp_cap) -> Result<ibv_qp_cap, c_int> {
    let limits = &nic.verbs.config().limits;
    let sges = cap.max_send_sge.max(cap.max_recv_sge);
    let fits = cap.max_send_wr <= limits.max_send_wr
        && cap.max_recv_wr <= limits.max_recv_wr
        && sges <= spindrift::work::MAX_SGE
        && cap.max_inline_data <= nic.mtu();
    if fits { Ok(cap) } else { Err(libc::EINVAL) }
}

/// A queue pair of datagrams, and its number.
fn datagrams(
    nic: &Arc<Nic>,
    pd: &PdBox,
    [send_cq, recv_cq]: [&CqBox; 2],
    cap: ibv_qp_cap,
    sig_all: bool,
) -> Result<(Body, Number), c_int> {
    let config = UdConfig {
        pd: std::ptr::from_ref(pd).addr(),
        send_queue: Arc::clone(&send_cq.side),
        recv_queue: Arc::clone(&recv_cq.side),
        cap: checked(nic, cap)?,
        sig_all,
    };
    let ud = UdQp::add(nic, config).ok_or(libc::ENOMEM)?;
    let number = ud.number;
    Ok((Body::Datagrams(ud), number))
}

/// A queue pair that is to be connected, and its number.
fn connected(
    context: &ContextBox,
    pd: &PdBox,
    cqs: [&CqBox; 2],
    srq: Option<&SrqBox>,
    (cap, sig_all): (ibv_qp_cap, bool),
    api: &Api,
) -> Result<(Body, Number), c_int> {
    let qp = make(pd, cqs, srq, &cap, sig_all, (api, &context.nic))?;
    let wire = qp.qpn();
    let (events, mrc) = match api {
        Api::Verbs | Api::Extended(_) => (&context.events, None),
        Api::Mrc(owner) => (&owner.events, Some(Attributes::default())),
    };
    let core = QpCore::add(&context.nic, Arc::clone(events), qp, (cap, sig_all), mrc).ok_or(libc::ENOMEM)?;
    core.set_wire(None, Some(wire));
    let number = core.number;
    Ok((Body::Connected(core), number))
}

/// The sizes of a queue pair that a program asks for with these.
fn at_least_one(cap: &ibv_qp_cap) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: cap.max_send_wr.max(1),
        max_recv_wr: cap.max_recv_wr.max(1),
        max_send_sge: cap.max_send_sge.max(1),
        max_recv_sge: cap.max_recv_sge.max(1),
        max_inline_data: cap.max_inline_data,
    }
}

/// # Safety
/// Objects of this library in the attributes.
pub(crate) unsafe fn create(
    pd: *mut ibv_pd,
    attr: &mut ibv_qp_init_attr,
    api: Api,
) -> Result<*mut ibv_qp, c_int> {
    let (of_datagrams, known_ops) = match attr.qp_type {
        // What a reliable connection does is more than an unreliable one promises.
        IBV_QPT_RC | IBV_QPT_UC => (false, send_ops::ALL),
        IBV_QPT_UD => (true, send_ops::DATAGRAM),
        _ => return Err(libc::EOPNOTSUPP),
    };
    if pd.is_null() || attr.send_cq.is_null() || attr.recv_cq.is_null() {
        return Err(libc::EINVAL);
    }
    // The receives of a shared queue are the transport's, which datagrams do not pass through.
    let shared = of_datagrams && !attr.srq.is_null();
    let other_ops = match api {
        Api::Extended(ops) => ops & !known_ops,
        Api::Verbs | Api::Mrc(_) => 0,
    };
    if shared || other_ops != 0 {
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
    let cap = at_least_one(&attr.cap);
    let sig_all = attr.sq_sig_all != 0;
    let (body, number) = if of_datagrams {
        datagrams(&context_box.nic, pd_box, [send_cq, recv_cq], cap, sig_all)?
    } else {
        connected(context_box, pd_box, [send_cq, recv_cq], srq, (cap, sig_all), &api)?
    };
    pd_box.add_user();
    send_cq.add_user(of_datagrams);
    recv_cq.add_user(of_datagrams);
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
            qp_num: number.get(),
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
        body,
        nic: Arc::clone(&context_box.nic),
        builder: UnsafeCell::default(),
        building: AtomicBool::new(false),
        api,
    };
    let made = Box::leak(Box::new(made));
    if let Body::Connected(core) = &made.body {
        core.at.store(std::ptr::from_ref(made).addr(), Ordering::Release);
    }
    Ok(std::ptr::from_mut(made).cast())
}

/// # Safety
/// A protection domain of this library, and attributes with objects of this library.
pub(crate) unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    object(|| {
        // SAFETY: as the caller promises.
        unsafe { create(pd, &mut *attr, Api::Verbs) }
    })
}

/// Those of the attributes that the older function has too.
pub(crate) const fn plain(attr: &ibv_qp_init_attr_ex) -> ibv_qp_init_attr {
    ibv_qp_init_attr {
        qp_context: attr.qp_context,
        send_cq: attr.send_cq,
        recv_cq: attr.recv_cq,
        srq: attr.srq,
        cap: attr.cap,
        qp_type: attr.qp_type,
        sq_sig_all: attr.sq_sig_all,
    }
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
        let has_ops = attr.comp_mask & qp_init_attr_mask::SEND_OPS_FLAGS != 0;
        let api = if has_ops { Api::Extended(attr.send_ops_flags) } else { Api::Verbs };
        let mut plain = plain(attr);
        // SAFETY: as for every function of a context.
        let made = unsafe { create(attr.pd, &mut plain, api) }?;
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
    if matches!(of.api, Api::Extended(_)) { of.base() } else { core::ptr::null_mut() }
}

/// # Safety
/// A queue pair of this library, and attributes.
pub(crate) unsafe extern "C" fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: as the caller promises.
    code(|| unsafe { modify(qp, &*attr, mask, None) })
}

/// # Safety
/// A queue pair of this library.
pub(crate) unsafe fn modify(
    qp: *mut ibv_qp,
    attr: &ibv_qp_attr,
    mask: c_int,
    change: Option<&Change>,
) -> Result<(), c_int> {
    // SAFETY: as the caller promises.
    let of = unsafe { QpBox::of(qp) };
    let state = match of.body()? {
        Body::Connected(core) => core.modify(attr, mask, change)?,
        Body::Datagrams(ud) => ud.modify(attr, mask)?,
    };
    // SAFETY: only this function writes the field, and verbs has one caller of it at a time.
    unsafe { (&raw mut (*of.base()).base.state).write(state) };
    Ok(())
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
        let (state, cap, known, sig_all) = match of.body()? {
            Body::Connected(core) => {
                let inner = core.lock();
                (QpCore::state(&inner), inner.cap, inner.attr, inner.sig_all)
            }
            Body::Datagrams(ud) => {
                let inner = ud.lock();
                (inner.state, inner.cap, inner.attr, inner.sig_all)
            }
        };
        let found = ibv_qp_attr { qp_state: state, cur_qp_state: state, cap, ..known };
        // SAFETY: the fields are written only when the queue pair is made, and by `ibv_modify_qp`.
        let base = unsafe { &(*of.base()).base };
        let found_init = ibv_qp_init_attr {
            qp_context: base.qp_context,
            send_cq: base.send_cq,
            recv_cq: base.recv_cq,
            srq: base.srq,
            cap,
            qp_type: base.qp_type,
            sq_sig_all: sig_all.into(),
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
        // SAFETY: as the caller promises.
        unsafe { QpBox::of(qp) }.body()?;
        // SAFETY: as the caller promises; it came from a box.
        let of = unsafe { Box::from_raw(qp.cast::<QpBox>()) };
        let of_datagrams = match &of.body {
            Body::Connected(core) => {
                core.end();
                core.events.forget(qp.addr());
                false
            }
            Body::Datagrams(ud) => {
                ud.nic.remove_datagrams(ud.number);
                ud.end();
                true
            }
        };
        // SAFETY: the fields are written only when the queue pair is made.
        let base = unsafe { &(*of.base()).base };
        // SAFETY: objects with queue pairs cannot be destroyed.
        unsafe {
            CqBox::of(base.send_cq).remove_user(of_datagrams);
            CqBox::of(base.recv_cq).remove_user(of_datagrams);
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
