//! Whether the machine kept time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often it is looked at.
const STEP: Duration = Duration::from_millis(1);

/// Measures how long this process was kept from running. What a run took, or how much it moved, says nothing about Spindrift when
/// the machine was busy with something else: tests judge such figures only if nothing was paused for long.
pub(crate) struct Pauses {
    longest_ns: Arc<AtomicU64>,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Pauses {
    /// Measures from now on.
    pub(crate) fn watch() -> Self {
        let (longest_ns, ended) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (longest, end) = (Arc::clone(&longest_ns), Arc::clone(&ended));
        let thread = std::thread::spawn(move || {
            let mut last = Instant::now();
            while !end.load(Ordering::Relaxed) {
                std::thread::sleep(STEP);
                let now = Instant::now();
                longest.fetch_max((now - last).as_nanos() as u64, Ordering::Relaxed);
                last = now;
            }
        });
        Self { longest_ns, ended, thread: Some(thread) }
    }

    /// Whether nothing was paused for longer than this so far. Says so, if it was.
    pub(crate) fn none_above(&self, limit: Duration) -> bool {
        let longest = Duration::from_nanos(self.longest_ns.load(Ordering::Relaxed));
        if longest > limit {
            eprintln!(
                "NOT JUDGED: the machine paused this test for {longest:?}, and figures of speed say nothing"
            );
        }
        longest <= limit
    }
}

impl Drop for Pauses {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
