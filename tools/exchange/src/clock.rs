//! Real time: deadlines of messages, and a wait.

use std::time::{Duration, Instant};

/// A limit in real time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    started: Instant,
    timeout: Duration,
}

impl Deadline {
    #[expect(clippy::disallowed_methods, reason = "a real peer is waited for in real time")]
    pub(crate) fn after(timeout: Duration) -> Self {
        Self { started: Instant::now(), timeout }
    }

    /// The time left, never zero; `None` when it is over.
    pub(crate) fn left(&self) -> Option<Duration> {
        self.timeout.checked_sub(self.started.elapsed()).filter(|left| !left.is_zero())
    }
}

/// Blocks this thread.
#[expect(clippy::disallowed_methods, reason = "a standard listener cannot wait with a limit")]
pub(crate) fn pause(duration: Duration) {
    std::thread::sleep(duration);
}
