//! Protection domains.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, Ordering};

use spindrift::verbs::Pd;

use crate::abi::{ibv_context, ibv_pd};
use crate::context::ContextBox;
use crate::error::{code, code_of, object};

/// A protection domain. Libraries of vendors look behind `ibv_pd` for their own, and find zeros.
#[repr(C)]
pub(crate) struct PdBox {
    base: ibv_pd,
    zeros: [u64; 32],
    pub(crate) pd: Pd,
    /// Objects that were made with it.
    users: AtomicU32,
}

impl PdBox {
    /// # Safety
    /// A protection domain of [`ibv_alloc_pd`] that was not freed.
    pub(crate) unsafe fn of<'a>(pd: *mut ibv_pd) -> &'a Self {
        // SAFETY: it is the first field of a box.
        unsafe { &*pd.cast::<Self>() }
    }

    pub(crate) fn add_user(&self) {
        self.users.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn remove_user(&self) {
        self.users.fetch_sub(1, Ordering::Release);
    }
}

/// # Safety
/// A context of this library.
pub(crate) unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    object(|| {
        // SAFETY: as the caller promises.
        let nic = &unsafe { ContextBox::of(context) }.nic;
        let pd = nic.verbs.create_pd().map_err(|error| code_of(&error))?;
        let base = ibv_pd { context, handle: 0 };
        let made = Box::new(PdBox { base, zeros: [0; 32], pd, users: AtomicU32::new(0) });
        Ok(Box::into_raw(made).cast())
    })
}

/// # Safety
/// A protection domain of this library, which is not used afterwards if the call succeeds.
pub(crate) unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    code(|| {
        // SAFETY: as the caller promises.
        if unsafe { PdBox::of(pd) }.users.load(Ordering::Acquire) > 0 {
            return Err(libc::EBUSY);
        }
        // SAFETY: as the caller promises; it came from a box.
        drop(unsafe { Box::from_raw(pd.cast::<PdBox>()) });
        Ok(())
    })
}
