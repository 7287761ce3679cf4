//! Versions and capabilities, and the parent of all objects of MRC's interface.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use super::abi::{
    CURRENT_VERSION, MRC_PROTOCOL_VERSION_1, OLDEST_VERSION, VENDOR_VERSION, device_cap, mrc_async_event,
    mrc_context, mrc_context_attr, mrc_device_attr,
};
use super::hint::MAX_HINTS;
use super::status;
use crate::abi::ibv_context;
use crate::context::ContextBox;
use crate::error::object;
use crate::event::{self, EventQueue};

/// A context, for its objects too: it cannot be destroyed while there are any.
pub(crate) struct Owner {
    /// The events of its objects and of the device.
    pub(crate) events: Arc<EventQueue>,
    /// The version of the interface that the program was made for.
    pub(crate) version: u32,
    hints: AtomicU32,
}

impl Owner {
    /// Counts another hint, unless there are `most`.
    pub(super) fn add_hint(&self, most: u32) -> bool {
        let more = |hints| (hints < most).then_some(hints + 1);
        self.hints.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    pub(super) fn remove_hint(&self) {
        self.hints.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a program has of a context.
pub(crate) struct OwnerBox {
    pub(crate) owner: Arc<Owner>,
    /// The context of verbs that it is part of.
    pub(crate) context: *mut ibv_context,
}

impl OwnerBox {
    /// # Safety
    /// A context of [`mrc_create_context`] that was not destroyed.
    pub(crate) unsafe fn of<'a>(context: *mut mrc_context) -> &'a Self {
        // SAFETY: as the caller promises.
        unsafe { &*context.cast::<Self>() }
    }
}

fn attributes(context: &ContextBox) -> Result<mrc_device_attr, c_int> {
    let device = context.nic.verbs.query_device().map_err(|error| crate::error::code_of(&error))?;
    let trimming = if device.caps.trimming { device_cap::TRIM_NACK } else { 0 };
    let dynamic = if device.caps.dynamic_mpr { device_cap::DYNAMIC_MPR } else { 0 };
    Ok(mrc_device_attr {
        mrc_protocol_version: MRC_PROTOCOL_VERSION_1,
        max_wimm: *device.max_wimm.end(),
        max_wimm_dest: *device.max_wimm.end(),
        max_mpr: *device.mpr.end(),
        mpr_resolution: 1,
        max_qp_hint: MAX_HINTS,
        cap: trimming | dynamic,
    })
}

/// # Safety
/// A context of verbs of this library, and places for the attributes and a number.
pub(crate) unsafe extern "C" fn mrc_query_device(
    context: *mut ibv_context,
    attr: *mut mrc_device_attr,
    supported: *mut c_int,
) -> c_int {
    status(|| {
        if context.is_null() || attr.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: as the caller promises.
        let found = attributes(unsafe { ContextBox::of(context) })?;
        // SAFETY: as the caller promises.
        unsafe { attr.write(found) };
        if !supported.is_null() {
            // SAFETY: as the caller promises.
            unsafe { supported.write(1) };
        }
        Ok(())
    })
}

/// Attributes do not depend on the version that a context was made with.
///
/// # Safety
/// As [`mrc_query_device`].
pub(crate) unsafe extern "C" fn mrc_query_device_ex(
    context: *mut ibv_context,
    _mrc_context: *mut mrc_context,
    attr: *mut mrc_device_attr,
    supported: *mut c_int,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { mrc_query_device(context, attr, supported) }
}

/// # Safety
/// Places for numbers, or null.
pub(crate) unsafe extern "C" fn mrc_query_version(
    current: *mut u32,
    oldest: *mut u32,
    vendor: *mut u32,
    oldest_vendor: *mut u32,
) {
    let versions = [
        (current, CURRENT_VERSION),
        (oldest, OLDEST_VERSION),
        (vendor, VENDOR_VERSION),
        (oldest_vendor, OLDEST_VERSION),
    ];
    for (to, version) in versions {
        if !to.is_null() {
            // SAFETY: as the caller promises.
            unsafe { to.write(version) };
        }
    }
}

/// Any version that a program names is taken: they differ in what they add. Some programs pass that of the protocol.
///
/// # Safety
/// A context of verbs of this library; attributes, or null.
pub(crate) unsafe extern "C" fn mrc_create_context(
    context: *mut ibv_context,
    attr: *mut mrc_context_attr,
) -> *mut mrc_context {
    object(|| {
        if context.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: as the caller promises.
        let version = unsafe { attr.as_ref() }.map_or(CURRENT_VERSION, |attr| attr.mrc_api_version_used);
        let events = Arc::new(EventQueue::new()?);
        // SAFETY: as the caller promises.
        unsafe { ContextBox::of(context) }.nic.add_context(&events);
        let owner = Arc::new(Owner { events, version, hints: AtomicU32::new(0) });
        Ok(Box::into_raw(Box::new(OwnerBox { owner, context })).cast())
    })
}

/// # Safety
/// A context of this library, which is not used afterwards if the call succeeds.
pub(crate) unsafe extern "C" fn mrc_destroy_context(context: *mut mrc_context) -> c_int {
    status(|| {
        if context.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: as the caller promises.
        if Arc::strong_count(&unsafe { OwnerBox::of(context) }.owner) > 1 {
            return Err(libc::EBUSY);
        }
        // SAFETY: as the caller promises; it came from a box.
        drop(unsafe { Box::from_raw(context.cast::<OwnerBox>()) });
        Ok(())
    })
}

/// # Safety
/// A context of this library, and a place for an event.
pub(crate) unsafe extern "C-unwind" fn mrc_get_async_event(
    context: *mut mrc_context,
    event: *mut mrc_async_event,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { event::get(&OwnerBox::of(context).owner.events, event) }
}

/// Nothing waits for it, as with events of verbs.
pub(crate) extern "C" fn mrc_ack_async_event(_event: *mut mrc_async_event) {}
