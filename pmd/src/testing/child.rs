//! Tests of what a child process may do.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// Longer than any child takes; only a hang meets it.
const PATIENCE: Duration = Duration::from_mins(1);

/// Does something in a child that `fork` makes, with copies of all that the caller has and none of its threads, and tells what it
/// returned. `None` if it panicked, crashed, or has not ended after a minute: then it is killed.
///
/// The child must not write to standard output or wait for other threads; the standard library's allocator works in it.
///
/// # Panics
/// If the system gives no process.
#[expect(clippy::disallowed_methods, reason = "a test waits for what may hang")]
pub fn in_child(work: impl FnOnce() -> bool) -> Option<bool> {
    // SAFETY: the child only runs `work`, whose caller answers for the locks that other threads may have held, and ends.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork: {}", std::io::Error::last_os_error());
    if child == 0 {
        let status = catch_unwind(AssertUnwindSafe(work)).map_or(2, |fine| i32::from(!fine));
        // SAFETY: ends this process at once; what runs at a usual exit belongs to the parent.
        unsafe { libc::_exit(status) };
    }
    let start = Instant::now();
    loop {
        let mut status = 0;
        // SAFETY: `status` is written while the call lasts, and the child is this process's own.
        if unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == child {
            let code = libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status));
            return code.filter(|code| *code < 2).map(|code| code == 0);
        }
        if start.elapsed() > PATIENCE {
            // SAFETY: the child has not been waited for, so this is its number and nobody else's.
            unsafe { libc::kill(child, libc::SIGKILL) };
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
