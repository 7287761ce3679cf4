//! File descriptors that say that something waits in a queue.

use core::sync::atomic::{AtomicBool, Ordering};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::clock::Deadline;

/// Readable while a queue beside it holds something.
///
/// Whoever puts something in the queue calls [`Signal::raise`] after that. Whoever takes the last out, or finds nothing,
/// calls [`Signal::lower`], then looks once more, and raises the signal again if something has come meanwhile.
#[derive(Debug)]
pub(super) struct Signal {
    event: OwnedFd,
    raised: AtomicBool,
}

impl Signal {
    pub(super) fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { event, raised: AtomicBool::new(false) })
    }

    /// Makes the descriptor readable, with a system call only if it is not.
    pub(super) fn raise(&self) {
        if !self.raised.swap(true, Ordering::AcqRel) {
            // Written only while the counter is small, so it never blocks.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }

    /// Makes the descriptor unreadable. What was put in the queue before the flag went down may have made no sound.
    pub(super) fn lower(&self) {
        // Always read: whoever raised the flag last time may have written after the flag had been lowered.
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
        self.raised.swap(false, Ordering::AcqRel);
    }

    /// Waits until the descriptor is readable; for ever when there is no deadline. Whether it is.
    #[cfg(test)]
    pub(super) fn wait(&self, deadline: Option<&Deadline>) -> io::Result<bool> {
        wait(&self.event, deadline)
    }
}

impl AsFd for Signal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

/// One token for each thing in the queue beside it; readable while there is a token.
///
/// Whoever puts something in the queue calls [`Tokens::add`] after that. Whoever wants something out of it calls
/// [`Tokens::take`] first: a token says that there is something, and nobody takes more than there are tokens. So the
/// descriptor of a queue that is empty is not readable, however the two threads' steps fall.
#[derive(Debug)]
pub(super) struct Tokens {
    event: OwnedFd,
}

impl Tokens {
    pub(super) fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK | EventfdFlags::SEMAPHORE;
        Ok(Self { event: eventfd(0, flags)? })
    }

    pub(super) fn add(&self) {
        // Blocks at 2^64 tokens.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    /// Whether there was one.
    pub(super) fn take(&self) -> bool {
        rustix::io::read(&self.event, &mut [0; 8]).is_ok()
    }

    /// Waits for a token, for ever when there is no deadline, and leaves it. Whether there is one.
    pub(super) fn wait(&self, deadline: Option<&Deadline>) -> io::Result<bool> {
        wait(&self.event, deadline)
    }
}

impl AsFd for Tokens {
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
        // What is too long for the system is for ever.
        let timeout = Timespec::try_from(left).ok();
        match poll(&mut [PollFd::new(event, PollFlags::IN)], timeout.as_ref()) {
            Ok(ready) => return Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
