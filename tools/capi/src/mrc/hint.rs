//! Hints: what a program tells of the traffic of its queue pairs. They are kept and given back; nothing depends on them here.

use core::ffi::c_int;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::abi::{hint_mask, mrc_context, mrc_qp_hint, mrc_qp_hint_attr, mrc_qp_hint_init_attr};
use super::context::{Owner, OwnerBox};
use super::status;
use crate::error::object;

/// Hints of a context at a time.
pub(crate) const MAX_HINTS: u32 = 1 << 16;

/// A hint, for the queue pairs that have it too.
pub(crate) struct Hint {
    attr: Mutex<mrc_qp_hint_attr>,
    owner: Arc<Owner>,
}

impl Drop for Hint {
    fn drop(&mut self) {
        self.owner.remove_hint();
    }
}

/// What a program has of a hint.
pub(crate) struct HintBox {
    pub(crate) hint: Arc<Hint>,
}

impl HintBox {
    /// # Safety
    /// A hint of [`mrc_create_qp_hint`] that was not destroyed.
    pub(crate) unsafe fn of<'a>(hint: *mut mrc_qp_hint) -> &'a Self {
        // SAFETY: as the caller promises.
        unsafe { &*hint.cast::<Self>() }
    }

    fn lock(&self) -> MutexGuard<'_, mrc_qp_hint_attr> {
        self.hint.attr.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Copies the attributes that the mask names.
fn copy(to: &mut mrc_qp_hint_attr, from: &mrc_qp_hint_attr, mask: c_int) -> Result<(), c_int> {
    if mask & !hint_mask::ALL != 0 {
        return Err(libc::EINVAL);
    }
    if mask & hint_mask::NUM_QPS_PER_PEER != 0 {
        to.num_qps_per_peer = from.num_qps_per_peer;
    }
    if mask & hint_mask::NUM_SEND_PEERS != 0 {
        to.num_send_peers = from.num_send_peers;
    }
    if mask & hint_mask::NUM_REMOTE_RECV_PEERS != 0 {
        to.num_remote_recv_peers = from.num_remote_recv_peers;
    }
    if mask & hint_mask::VENDOR_CFG != 0 {
        to.vendor_cfg = from.vendor_cfg;
    }
    Ok(())
}

/// # Safety
/// A context of this library, and attributes.
pub(crate) unsafe extern "C" fn mrc_create_qp_hint(
    context: *mut mrc_context,
    init: *mut mrc_qp_hint_init_attr,
) -> *mut mrc_qp_hint {
    object(|| {
        if context.is_null() || init.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: as the caller promises.
        let owner = Arc::clone(&unsafe { OwnerBox::of(context) }.owner);
        if !owner.add_hint(MAX_HINTS) {
            return Err(libc::ENOMEM);
        }
        // SAFETY: as the caller promises.
        let attr = unsafe { (*init).attr };
        let hint = Arc::new(Hint { attr: Mutex::new(attr), owner });
        Ok(Box::into_raw(Box::new(HintBox { hint })).cast())
    })
}

/// # Safety
/// A hint of this library, which is not used afterwards if the call succeeds.
pub(crate) unsafe extern "C" fn mrc_destroy_qp_hint(hint: *mut mrc_qp_hint) -> c_int {
    status(|| {
        if hint.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: as the caller promises.
        if Arc::strong_count(&unsafe { HintBox::of(hint) }.hint) > 1 {
            return Err(libc::EBUSY);
        }
        // SAFETY: as the caller promises; it came from a box.
        drop(unsafe { Box::from_raw(hint.cast::<HintBox>()) });
        Ok(())
    })
}

/// # Safety
/// A hint of this library, and a place for attributes.
pub(crate) unsafe extern "C" fn mrc_query_qp_hint(
    hint: *mut mrc_qp_hint,
    attr: *mut mrc_qp_hint_attr,
    mask: c_int,
) -> c_int {
    status(|| {
        if hint.is_null() || attr.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: as the caller promises.
        let (of, attr) = unsafe { (HintBox::of(hint), &mut *attr) };
        copy(attr, &of.lock(), mask)
    })
}

/// # Safety
/// A hint of this library, and attributes.
pub(crate) unsafe extern "C" fn mrc_modify_qp_hint(
    hint: *mut mrc_qp_hint,
    attr: *mut mrc_qp_hint_attr,
    mask: c_int,
) -> c_int {
    status(|| {
        if hint.is_null() || attr.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: as the caller promises.
        let (of, attr) = unsafe { (HintBox::of(hint), &*attr) };
        copy(&mut of.lock(), attr, mask)
    })
}
