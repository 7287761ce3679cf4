//! Asynchronous events of a context: a queue, and a descriptor that is readable while there are any.

use core::ffi::{c_int, c_void};
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, PoisonError};

use crate::abi::{EventElement, event_type, ibv_async_event, ibv_context};
use crate::context::ContextBox;
use crate::error::{last_code, set_errno};

/// Events that are kept; later ones are dropped.
const MAX_EVENTS: usize = 4096;

/// What an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum About {
    /// The address of a queue pair, a completion queue or a shared receive queue.
    Object(usize),
    Port,
}

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct EventQueue {
    queue: Mutex<VecDeque<(About, c_int)>>,
    fd: OwnedFd,
}

/// A descriptor that counts: each write makes it readable once more.
pub(crate) fn counting_fd() -> Result<OwnedFd, c_int> {
    // SAFETY: a system call that takes no pointer.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE) };
    if fd < 0 {
        return Err(last_code());
    }
    // SAFETY: the descriptor was just made, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A descriptor that is readable from the first write until the next read, however often it was written to meanwhile.
pub(crate) fn waking_fd() -> Result<OwnedFd, c_int> {
    // SAFETY: a system call that takes no pointer.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if fd < 0 {
        return Err(last_code());
    }
    // SAFETY: the descriptor was just made, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Makes a counting descriptor readable.
pub(crate) fn raise(fd: &OwnedFd) {
    // SAFETY: eight bytes of this function, which the call reads.
    unsafe { libc::write(fd.as_raw_fd(), (&raw const ONE).cast(), size_of::<u64>()) };
}

/// Takes one from a counting descriptor that is known to be readable.
pub(crate) fn lower(fd: &OwnedFd) {
    let mut value = 0_u64;
    // SAFETY: eight bytes of this function, which the call writes.
    unsafe { libc::read(fd.as_raw_fd(), (&raw mut value).cast(), size_of::<u64>()) };
}

static ONE: u64 = 1;

/// Whether reads of a descriptor return at once, as a program may have set it.
pub(crate) fn returns_at_once(fd: RawFd) -> bool {
    // SAFETY: a system call that takes no pointer.
    unsafe { libc::fcntl(fd, libc::F_GETFL) & libc::O_NONBLOCK != 0 }
}

/// Whether a call that a signal has interrupted is to be made again: programs expect of these functions what they know of `read`, which
/// `poll` does not do. Which signal it was is not known, so all handlers of the program have to want it (`SA_RESTART`).
fn is_made_again(code: c_int) -> bool {
    let wants = |signal: c_int| {
        let mut action = core::mem::MaybeUninit::<libc::sigaction>::uninit();
        // SAFETY: a place of this function; nothing is changed.
        if unsafe { libc::sigaction(signal, core::ptr::null(), action.as_mut_ptr()) } != 0 {
            return true;
        }
        // SAFETY: the call above has filled it.
        let action = unsafe { action.assume_init() };
        let has_handler = ![libc::SIG_DFL, libc::SIG_IGN].contains(&action.sa_sigaction);
        !has_handler || action.sa_flags & libc::SA_RESTART != 0
    };
    code == libc::EINTR && (1..=libc::SIGRTMAX()).all(wants)
}

/// Waits until a descriptor is readable. A signal may end the wait early.
///
/// # Errors
/// `EINTR`, or another code of `poll`.
pub(crate) fn wait_for(fd: RawFd) -> Result<(), c_int> {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    loop {
        // SAFETY: one element, which lives as long as the call.
        if unsafe { libc::poll(&raw mut poll, 1, -1) } >= 0 {
            return Ok(());
        }
        let code = last_code();
        if !is_made_again(code) {
            return Err(code);
        }
    }
}

/// The same, unless the program wants to be told at once that there is nothing.
///
/// # Errors
/// As [`wait_for`]; `EAGAIN`.
pub(crate) fn wait_unless_chosen(fd: RawFd) -> Result<(), c_int> {
    if returns_at_once(fd) { Err(libc::EAGAIN) } else { wait_for(fd) }
}

/// What comes of looking for an event.
pub(crate) enum Look {
    Taken,
    /// This descriptor is readable when there may be one.
    Nothing(RawFd),
}

unsafe extern "C-unwind" {
    /// A thread may be cancelled while it waits here. The C library then unwinds its stack, which no `catch_unwind` may hold up.
    #[link_name = "poll"]
    fn cancellable_poll(fds: *mut libc::pollfd, count: libc::nfds_t, timeout: c_int) -> c_int;
}

/// A function of C that waits for an event: 0, or -1 with `errno`. Nothing in it has to be dropped while it waits, as the thread may be
/// cancelled there.
pub(crate) fn wait_until(look: impl Fn() -> Result<Look, c_int>) -> c_int {
    loop {
        let mut poll = libc::pollfd { fd: -1, events: libc::POLLIN, revents: 0 };
        let code = crate::error::code(|| {
            if let Look::Nothing(fd) = look()? {
                poll.fd = fd;
                if returns_at_once(fd) {
                    return Err(libc::EAGAIN);
                }
            }
            Ok(())
        });
        if code != 0 {
            set_errno(code);
            return -1;
        }
        if poll.fd < 0 {
            return 0;
        }
        // SAFETY: one element, which lives as long as the call.
        if unsafe { cancellable_poll(&raw mut poll, 1, -1) } < 0 && !is_made_again(last_code()) {
            return -1;
        }
    }
}

impl EventQueue {
    pub(crate) fn new() -> Result<Self, c_int> {
        Ok(Self { queue: Mutex::default(), fd: counting_fd()? })
    }

    fn with<R>(&self, act: impl FnOnce(&mut VecDeque<(About, c_int)>) -> R) -> R {
        act(&mut self.queue.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    pub(crate) fn push(&self, about: About, event: c_int) {
        self.with(|queue| {
            if queue.len() < MAX_EVENTS {
                queue.push_back((about, event));
                raise(&self.fd);
            }
        });
    }

    pub(crate) fn pop(&self) -> Option<(About, c_int)> {
        self.with(|queue| {
            let event = queue.pop_front()?;
            lower(&self.fd);
            Some(event)
        })
    }

    /// The object ends: its events that nobody has read are dropped.
    pub(crate) fn forget(&self, object: usize) {
        self.with(|queue| {
            let before = queue.len();
            queue.retain(|(about, _)| *about != About::Object(object));
            (queue.len()..before).for_each(|_| lower(&self.fd));
        });
    }
}

/// # Safety
/// A context of this library and a place for an event.
pub(crate) unsafe extern "C-unwind" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { get(&ContextBox::of(context).events, event) }
}

/// Waits for an event of a queue, and puts it into a place of C: 0, or -1 with `errno`.
///
/// # Safety
/// A place for an event.
pub(crate) unsafe fn get(events: &EventQueue, event: *mut ibv_async_event) -> c_int {
    wait_until(|| {
        let Some((about, event_type)) = events.pop() else { return Ok(Look::Nothing(events.fd())) };
        let element = match about {
            About::Object(object) => EventElement { object: object as *mut c_void },
            About::Port => EventElement { port_num: 1 },
        };
        // SAFETY: as the caller promises.
        unsafe { event.write(ibv_async_event { element, event_type }) };
        Ok(Look::Taken)
    })
}

/// Nothing waits for it: an object may be destroyed as soon as its events have been read.
pub(crate) extern "C" fn ibv_ack_async_event(_event: *mut ibv_async_event) {}

/// The type of an event about a port.
pub(crate) const fn of_port(up: bool) -> c_int {
    if up { event_type::PORT_ACTIVE } else { event_type::PORT_ERR }
}
