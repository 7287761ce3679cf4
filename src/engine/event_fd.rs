//! File descriptors that are readable while a queue has entries.

use core::sync::atomic::{AtomicBool, Ordering};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::clock::Deadline;

/// Readable while the queue beside it has entries.
///
/// The writer calls [`EventFlag::set`] after a push. A reader that takes the last entry, or finds none, calls
/// [`EventFlag::clear`], then looks once more, and raises the signal again if there is an entry.
#[derive(Debug)]
pub(super) struct EventFlag {
    event: OwnedFd,
    raised: AtomicBool,
}

impl EventFlag {
    pub(super) fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { event, raised: AtomicBool::new(false) })
    }

    /// Makes the descriptor readable, with a system call only if it is not.
    pub(super) fn set(&self) {
        if !self.raised.swap(true, Ordering::AcqRel) {
            // Written only while the counter is small, so it never blocks.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }

    /// Makes the descriptor unreadable. A push before this call may not have signalled.
    pub(super) fn clear(&self) {
        // Always read: the thread that raised the flag last may have written after the flag was lowered.
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
        self.raised.swap(false, Ordering::AcqRel);
    }

    /// Waits until the descriptor is readable; for ever without a deadline. Returns whether it is.
    #[cfg(test)]
    pub(super) fn wait(&self, deadline: Option<&Deadline>) -> io::Result<bool> {
        wait(&self.event, deadline)
    }
}

impl AsFd for EventFlag {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

/// One token for each entry of the queue beside it; readable while there is a token.
///
/// A writer calls [`EventSemaphore::add`] after a push. A reader calls [`EventSemaphore::take`] before it takes an entry: a token
/// guarantees an entry, and no more are taken than there are tokens. The descriptor of an empty queue is therefore
/// not readable, in any interleaving.
#[derive(Debug)]
pub(super) struct EventSemaphore {
    event: OwnedFd,
}

impl EventSemaphore {
    pub(super) fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK | EventfdFlags::SEMAPHORE;
        Ok(Self { event: eventfd(0, flags)? })
    }

    pub(super) fn add(&self) {
        // Blocks at 2^64 tokens.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    /// Takes a token. Returns whether there was one.
    pub(super) fn take(&self) -> bool {
        rustix::io::read(&self.event, &mut [0; 8]).is_ok()
    }

    /// Waits for a token without taking it; for ever without a deadline. Returns whether there is one.
    pub(super) fn wait(&self, deadline: Option<&Deadline>) -> io::Result<bool> {
        wait(&self.event, deadline)
    }
}

impl AsFd for EventSemaphore {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

fn wait(event: &OwnedFd, deadline: Option<&Deadline>) -> io::Result<bool> {
    loop {
        let left = match deadline.map(Deadline::left) {
            Some(None) => Duration::ZERO,
            Some(Some(left)) => left,
            None => Duration::MAX,
        };
        // A time that is too long for the system means for ever.
        let timeout = Timespec::try_from(left).ok();
        match poll(&mut [PollFd::new(event, PollFlags::IN)], timeout.as_ref()) {
            Ok(ready) => return Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
