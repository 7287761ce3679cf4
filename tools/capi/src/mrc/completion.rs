//! Completion queues and channels: those of verbs, which belong to a context of MRC's interface.

use core::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use super::abi::{mrc_comp_channel, mrc_context, mrc_cq};
use super::context::OwnerBox;
use super::{code, status, told};
use crate::abi::ibv_wc;
use crate::error::object;
use crate::{channel, cq};

/// # Safety
/// A context of this library, and a place for the channel.
pub(crate) unsafe extern "C" fn mrc_create_comp_channel(
    context: *mut mrc_context,
    made: *mut *mut mrc_comp_channel,
) -> c_int {
    status(|| {
        if context.is_null() || made.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: as the caller promises.
        let of = unsafe { OwnerBox::of(context) };
        // SAFETY: the context of verbs is open as long as this one.
        let channel = unsafe { channel::create(of.context, Some(&of.owner)) }?;
        // SAFETY: as the caller promises.
        unsafe { made.write(channel.cast()) };
        Ok(())
    })
}

/// # Safety
/// A channel of this library, and a place for the descriptor.
pub(crate) unsafe extern "C" fn mrc_get_comp_channel_fd(
    channel: *mut mrc_comp_channel,
    fd: *mut c_int,
) -> c_int {
    status(|| {
        if channel.is_null() || fd.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: as the caller promises; a channel is one of verbs.
        unsafe { fd.write((*channel.cast::<crate::abi::ibv_comp_channel>()).fd) };
        Ok(())
    })
}

/// # Safety
/// A channel of this library, which is not used afterwards if the call succeeds.
pub(crate) unsafe extern "C" fn mrc_destroy_comp_channel(channel: *mut mrc_comp_channel) -> c_int {
    if channel.is_null() {
        return told(libc::EINVAL);
    }
    // SAFETY: as the caller promises.
    told(unsafe { channel::ibv_destroy_comp_channel(channel.cast()) })
}

/// Of completions, or of EV events.
///
/// # Safety
/// A context, and a channel or null, of this library.
pub(crate) unsafe fn create(
    context: *mut mrc_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut mrc_comp_channel,
    vector: c_int,
    of_events: bool,
) -> *mut mrc_cq {
    object(|| {
        if context.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: as the caller promises.
        let of = unsafe { OwnerBox::of(context) };
        let wanted = cq::Wanted {
            depth: u32::try_from(cqe).map_err(|_| libc::EINVAL)?,
            cq_context,
            channel: channel.cast(),
            vector: u32::try_from(vector).map_err(|_| libc::EINVAL)?,
            owner: Some(Arc::clone(&of.owner)),
            of_events,
        };
        // SAFETY: as the caller promises.
        Ok(unsafe { cq::create(of.context, wanted) }?.cast())
    })
}

/// # Safety
/// A context, and a channel or null, of this library.
pub(crate) unsafe extern "C" fn mrc_create_cq(
    context: *mut mrc_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut mrc_comp_channel,
    vector: c_int,
) -> *mut mrc_cq {
    // SAFETY: as the caller promises.
    unsafe { create(context, cqe, cq_context, channel, vector, false) }
}

/// # Safety
/// A queue of this library, and room for so many completions.
pub(crate) unsafe extern "C" fn mrc_poll_cq(queue: *mut mrc_cq, most: c_int, out: *mut ibv_wc) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { cq::poll_cq(queue.cast(), most, out) }
}

/// # Safety
/// A queue of this library, which is not used afterwards if the call succeeds.
pub(crate) unsafe extern "C" fn mrc_destroy_cq(queue: *mut mrc_cq) -> c_int {
    if queue.is_null() {
        return told(libc::EINVAL);
    }
    // SAFETY: as the caller promises.
    told(unsafe { cq::ibv_destroy_cq(queue.cast()) })
}

/// # Safety
/// A queue of this library.
pub(crate) unsafe extern "C" fn mrc_req_notify_cq(queue: *mut mrc_cq, solicited_only: c_int) -> c_int {
    // SAFETY: as the caller promises.
    code(|| match unsafe { cq::req_notify_cq(queue.cast(), solicited_only) } {
        0 => Ok(()),
        code => Err(code),
    })
}

/// # Safety
/// A channel of this library, and places for a queue and its context.
pub(crate) unsafe extern "C-unwind" fn mrc_get_cq_event(
    channel: *mut mrc_comp_channel,
    queue: *mut *mut mrc_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { channel::ibv_get_cq_event(channel.cast(), queue.cast(), cq_context) }
}

/// Events need no acknowledgement, as with those of verbs.
pub(crate) extern "C" fn mrc_ack_cq_events(_queue: *mut mrc_cq, _events: c_uint) {}
