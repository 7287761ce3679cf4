//! Waking a lane whose thread naps.

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::sync::OnceLock;
use std::thread::{self, Thread};

/// Between a lane's thread that goes to sleep when nothing is posted, and whoever posts.
///
/// One says that it sleeps and then looks for something posted, or for a control call since its last turn; the other posts and then looks for a sleeper. Both swap the
/// same flag, so one of them sees what the other did.
#[derive(Debug, Default)]
pub(super) struct Waker {
    asleep: AtomicBool,
    sleeper: OnceLock<Thread>,
}

impl Waker {
    /// Sleeps for so long at most, unless something is posted before or meanwhile. Always called on the same thread.
    pub(super) fn nap(&self, duration: Duration, is_posted: impl FnOnce() -> bool) {
        self.sleeper.get_or_init(thread::current);
        self.asleep.swap(true, Ordering::AcqRel);
        if !is_posted() {
            thread::park_timeout(duration);
        }
        self.asleep.store(false, Ordering::Relaxed);
    }

    /// Something has been posted.
    pub(super) fn wake(&self) {
        if self.asleep.swap(false, Ordering::AcqRel)
            && let Some(sleeper) = self.sleeper.get()
        {
            sleeper.unpark();
        }
    }
}
