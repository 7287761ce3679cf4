//! Shared receive queues.

use core::ffi::{c_int, c_void};
use std::sync::Arc;

use spindrift::verbs::Srq;

use crate::abi::{
    ibv_context, ibv_pd, ibv_recv_wr, ibv_srq, ibv_srq_attr, ibv_srq_init_attr, ibv_srq_init_attr_ex,
};
use crate::context::ContextBox;
use crate::error::{code, code_of, code_of_post, object};
use crate::event::EventQueue;
use crate::nic::Nic;
use crate::pd::PdBox;
use crate::post::each_receive;

#[repr(C)]
pub(crate) struct SrqBox {
    base: ibv_srq,
    pub(crate) srq: Srq,
    nic: Arc<Nic>,
    events: Arc<EventQueue>,
    max_sge: u32,
    users: core::sync::atomic::AtomicU32,
}

/// The most receive work requests of a queue whose limit is asked to be smaller.
const SRQ_MAX_WR: c_int = 1;
const SRQ_LIMIT: c_int = 1 << 1;

impl SrqBox {
    /// # Safety
    /// A queue of this library that was not destroyed.
    pub(crate) unsafe fn of<'a>(srq: *mut ibv_srq) -> &'a Self {
        // SAFETY: it is the first field of a box.
        unsafe { &*srq.cast::<Self>() }
    }

    pub(crate) fn add_user(&self) {
        self.users.fetch_add(1, core::sync::atomic::Ordering::Relaxed);
    }

    pub(crate) fn remove_user(&self) {
        self.users.fetch_sub(1, core::sync::atomic::Ordering::Release);
    }
}

/// # Safety
/// A protection domain of this library.
unsafe fn create(
    pd: *mut ibv_pd,
    srq_context: *mut c_void,
    attr: &mut ibv_srq_attr,
) -> Result<*mut ibv_srq, c_int> {
    // SAFETY: as the caller promises.
    let (of, context) = unsafe { (PdBox::of(pd), (*pd).context) };
    // SAFETY: the context of a protection domain is open.
    let context_box = unsafe { ContextBox::of(context) };
    if attr.max_sge > spindrift::work::MAX_SGE {
        return Err(libc::EINVAL);
    }
    let nic = Arc::clone(&context_box.nic);
    let srq = nic.verbs.create_srq(attr.max_wr.max(1)).map_err(|error| code_of(&error))?;
    attr.max_sge = attr.max_sge.max(1);
    attr.max_wr = srq.query().max_wr;
    let base = ibv_srq {
        context,
        srq_context,
        pd,
        handle: 0,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        events_completed: 0,
    };
    of.add_user();
    let id = srq.id();
    let events = Arc::clone(&context_box.events);
    let weak = Arc::downgrade(&events);
    let max_sge = attr.max_sge;
    let made = SrqBox { base, srq, nic: Arc::clone(&nic), events, max_sge, users: 0.into() };
    let made = Box::into_raw(Box::new(made));
    nic.set_srq(id, Some((made.addr(), weak)));
    Ok(made.cast())
}

/// # Safety
/// A protection domain of this library, and attributes.
pub(crate) unsafe extern "C" fn ibv_create_srq(
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    object(|| {
        // SAFETY: as the caller promises.
        let attr = unsafe { &mut *attr };
        // SAFETY: as the caller promises.
        unsafe { create(pd, attr.srq_context, &mut attr.attr) }
    })
}

pub(crate) unsafe extern "C" fn create_srq_ex(
    _context: *mut ibv_context,
    attr: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    /// Bits of `comp_mask`: the type, and the protection domain.
    const TYPE: u32 = 1;
    const PD: u32 = 1 << 1;
    object(|| {
        // SAFETY: the caller passes attributes.
        let attr = unsafe { &mut *attr };
        // The basic type, and nothing of the others.
        let basic = attr.comp_mask & TYPE == 0 || attr.srq_type == 0;
        if !basic || attr.comp_mask & !(TYPE | PD) != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        if attr.comp_mask & PD == 0 || attr.pd.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: as for every function of a context.
        unsafe { create(attr.pd, attr.srq_context, &mut attr.attr) }
    })
}

/// # Safety
/// A queue of this library, and attributes.
pub(crate) unsafe extern "C" fn ibv_modify_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    code(|| {
        // SAFETY: as the caller promises.
        let (of, attr) = unsafe { (SrqBox::of(srq), &*attr) };
        if mask & SRQ_MAX_WR != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        if mask & SRQ_LIMIT != 0 {
            of.srq.set_limit(attr.srq_limit).map_err(|error| code_of(&error))?;
        }
        Ok(())
    })
}

/// # Safety
/// A queue of this library, and a place for attributes.
pub(crate) unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    code(|| {
        // SAFETY: as the caller promises.
        let of = unsafe { SrqBox::of(srq) };
        let found = of.srq.query();
        let found = ibv_srq_attr { max_wr: found.max_wr, max_sge: of.max_sge, srq_limit: found.limit };
        // SAFETY: as the caller promises.
        unsafe { attr.write(found) };
        Ok(())
    })
}

/// # Safety
/// A queue of this library, which is not used afterwards if the call succeeds.
pub(crate) unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    code(|| {
        // SAFETY: as the caller promises.
        let of = unsafe { SrqBox::of(srq) };
        if of.users.load(core::sync::atomic::Ordering::Acquire) > 0 {
            return Err(libc::EBUSY);
        }
        of.nic.set_srq(of.srq.id(), None);
        of.events.forget(srq.addr());
        let pd = of.base.pd;
        // SAFETY: as the caller promises; it came from a box.
        drop(unsafe { Box::from_raw(srq.cast::<SrqBox>()) });
        // SAFETY: a protection domain with queues cannot be freed.
        unsafe { PdBox::of(pd) }.remove_user();
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: as for every function of a queue.
    let of = unsafe { SrqBox::of(srq) };
    // SAFETY: the caller passes a list.
    unsafe { each_receive(wr, bad, of.max_sge, |wr| of.srq.post_scatter(wr).map_err(code_of_post)) }
}
