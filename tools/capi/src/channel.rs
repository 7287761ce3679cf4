//! Completion channels.

use core::ffi::{c_int, c_uint, c_void};
use core::sync::atomic::{AtomicU32, Ordering};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use spindrift::verbs::CompChannel;

use crate::abi::{ibv_comp_channel, ibv_context, ibv_cq};
use crate::context::ContextBox;
use crate::cq::CqBox;
use crate::error::{code, code_of, last_code, object};
use crate::event::{About, EventQueue, Look, wait_until};
use crate::mrc::context::Owner;
use crate::nic::Nic;

#[repr(C)]
pub(crate) struct ChannelBox {
    base: ibv_comp_channel,
    pub(crate) channel: CompChannel,
    /// Events of completions that this library makes itself.
    pub(crate) side: Arc<EventQueue>,
    nic: Arc<Nic>,
    /// What the program waits on: readable while the channel has events. Its flags are the program's.
    epoll: OwnedFd,
    /// Completion queues that report here.
    pub(crate) users: AtomicU32,
    /// Its context of MRC's interface.
    _owner: Option<Arc<Owner>>,
}

impl ChannelBox {
    /// # Safety
    /// A channel of [`ibv_create_comp_channel`] that was not destroyed.
    pub(crate) unsafe fn of<'a>(channel: *mut ibv_comp_channel) -> &'a Self {
        // SAFETY: it is the first field of a box.
        unsafe { &*channel.cast::<Self>() }
    }

    /// The address of the completion queue of the next event. Events of queues that have ended meanwhile are dropped.
    fn next(&self) -> Option<usize> {
        while let Some((about, _)) = self.side.pop() {
            if let About::Object(at @ 1..) = about {
                return Some(at);
            }
        }
        core::iter::from_fn(|| self.channel.try_event()).find_map(|id| self.nic.cq(id))
    }
}

/// A descriptor that is readable while one of the others is.
fn watch(fds: [RawFd; 2]) -> Result<OwnedFd, c_int> {
    // SAFETY: a system call that takes no pointer.
    let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    if epoll < 0 {
        return Err(last_code());
    }
    // SAFETY: the descriptor was just made, and nobody else has it.
    let epoll = unsafe { OwnedFd::from_raw_fd(epoll) };
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
    for fd in fds {
        // SAFETY: the event is this function's.
        if unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event) } != 0 {
            return Err(last_code());
        }
    }
    Ok(epoll)
}

/// # Safety
/// A context of this library.
pub(crate) unsafe fn create(
    context: *mut ibv_context,
    owner: Option<&Arc<Owner>>,
) -> Result<*mut ibv_comp_channel, c_int> {
    // SAFETY: as the caller promises.
    let nic = Arc::clone(&unsafe { ContextBox::of(context) }.nic);
    let channel = nic.verbs.create_comp_channel().map_err(|error| code_of(&error))?;
    let side = Arc::new(EventQueue::new()?);
    let epoll = watch([channel.as_fd().as_raw_fd(), side.fd()])?;
    let base = ibv_comp_channel { context, fd: epoll.as_raw_fd(), refcnt: 0 };
    let users = AtomicU32::new(0);
    let made = ChannelBox { base, channel, side, nic, epoll, users, _owner: owner.cloned() };
    Ok(Box::into_raw(Box::new(made)).cast())
}

/// # Safety
/// A context of this library.
pub(crate) unsafe extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    // SAFETY: as the caller promises.
    object(|| unsafe { create(context, None) })
}

/// # Safety
/// A channel of this library, which is not used afterwards if the call succeeds.
pub(crate) unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    code(|| {
        // SAFETY: as the caller promises.
        if unsafe { ChannelBox::of(channel) }.users.load(Ordering::Acquire) > 0 {
            return Err(libc::EBUSY);
        }
        // SAFETY: as the caller promises; it came from a box.
        drop(unsafe { Box::from_raw(channel.cast::<ChannelBox>()) });
        Ok(())
    })
}

/// # Safety
/// A channel of this library and places for a queue and its context.
pub(crate) unsafe extern "C-unwind" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    wait_until(|| {
        // SAFETY: as the caller promises.
        let of = unsafe { ChannelBox::of(channel) };
        let Some(found) = of.next() else { return Ok(Look::Nothing(of.epoll.as_raw_fd())) };
        let found = found as *mut ibv_cq;
        // SAFETY: a queue of this library that was not destroyed.
        let context = unsafe { CqBox::of(found) }.cq_context();
        // SAFETY: as the caller promises.
        unsafe { cq.write(found) };
        // SAFETY: as the caller promises.
        unsafe { cq_context.write(context) };
        Ok(Look::Taken)
    })
}

/// Events need no acknowledgement here: a queue may be destroyed as soon as nobody waits for it.
pub(crate) extern "C" fn ibv_ack_cq_events(_cq: *mut ibv_cq, _events: c_uint) {}
