//! The EAL, its log, and the threads that it knows.

use std::collections::VecDeque;
use std::ffi::{CStr, CString, c_char, c_void};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Errno;

/// Lines of the log that are kept.
const LINES: usize = 64;
/// Bytes of a line that are kept.
const LINE: usize = 400;

/// The last lines of the log, and how many there were in all.
struct Log {
    lines: VecDeque<String>,
    /// A line without its end.
    open: String,
    count: u64,
}

static LOG: Mutex<Log> = Mutex::new(Log { lines: VecDeque::new(), open: String::new(), count: 0 });

fn log() -> MutexGuard<'static, Log> {
    LOG.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Log {
    fn take(&mut self, text: &str) {
        for part in text.split_inclusive('\n') {
            self.open.push_str(part.trim_end());
            let cut = (0..=LINE.min(self.open.len())).rev().find(|&at| self.open.is_char_boundary(at));
            self.open.truncate(cut.unwrap_or(0));
            if part.ends_with('\n') {
                let line = std::mem::take(&mut self.open);
                if line.is_empty() {
                    continue;
                }
                self.count += 1;
                self.lines.push_back(line);
                if self.lines.len() > LINES {
                    self.lines.pop_front();
                }
            }
        }
    }
}

/// Keeps what DPDK logs.
unsafe extern "C" fn keep(_: *mut c_void, text: *const c_char, len: usize) -> isize {
    if !text.is_null() {
        // SAFETY: the C library passes as many bytes as it says.
        let bytes = unsafe { std::slice::from_raw_parts(text.cast::<u8>(), len) };
        log().take(&String::from_utf8_lossy(bytes));
    }
    len as isize
}

/// Has DPDK log to this process's memory instead of standard error.
pub(crate) fn take_log() {
    // SAFETY: the function may be called by any thread at any time.
    unsafe { dpdk_sys::spindrift_log_to(Some(keep)) };
}

/// How many lines have been logged.
pub(crate) fn log_len() -> u64 {
    log().count
}

/// The lines logged since there were `count`, as far as they are kept.
pub(crate) fn log_lines(count: u64) -> Vec<String> {
    let log = log();
    let new = usize::try_from(log.count.saturating_sub(count)).unwrap_or(usize::MAX);
    log.lines.iter().skip(log.lines.len().saturating_sub(new)).cloned().collect()
}

/// Starts the EAL. The calling thread gets the affinity of the main lcore.
pub(crate) fn init(args: &[CString]) -> Result<(), Errno> {
    // The EAL may keep pointers to its arguments, and permutes them.
    let args: &'static [CString] = Box::leak(args.to_vec().into_boxed_slice());
    let mut pointers: Vec<*mut c_char> = args.iter().map(|arg| arg.as_ptr().cast_mut()).collect();
    let count = pointers.len() as i32;
    pointers.push(std::ptr::null_mut());
    let pointers = Box::leak(pointers.into_boxed_slice());
    // SAFETY: as many zero-terminated strings as are said, and a null pointer; they live as long as the process.
    let result = unsafe { dpdk_sys::rte_eal_init(count, pointers.as_mut_ptr()) };
    if result < 0 {
        // SAFETY: reads a variable of this thread.
        return Err(Errno(unsafe { dpdk_sys::spindrift_errno() }));
    }
    Ok(())
}

/// The version of DPDK that is linked.
pub(crate) fn version() -> String {
    // SAFETY: returns static text.
    unsafe { CStr::from_ptr(dpdk_sys::rte_version()) }.to_string_lossy().into_owned()
}

/// The folder of this process's files, if it has any. The EAL has started.
pub(crate) fn runtime_folder() -> &'static Path {
    // SAFETY: returns static text, or none.
    let text = unsafe {
        let text = dpdk_sys::rte_eal_get_runtime_dir();
        if text.is_null() { c"" } else { CStr::from_ptr(text) }
    };
    Path::new(text.to_str().unwrap_or_default())
}

/// The folder that drivers are loaded from.
pub(crate) fn plugins() -> &'static Path {
    // SAFETY: returns static text.
    let text = unsafe { CStr::from_ptr(dpdk_sys::spindrift_plugins()) };
    Path::new(text.to_str().unwrap_or_default())
}

/// A thread that the EAL knows until it ends.
struct Known(bool);

impl Known {
    fn new() -> Self {
        // SAFETY: the EAL runs, as ports exist only then.
        Self(unsafe { dpdk_sys::spindrift_thread_register() } == 0)
    }
}

impl Drop for Known {
    fn drop(&mut self) {
        if self.0 {
            // SAFETY: this thread was registered by `new`, and nobody else forgets it.
            unsafe { dpdk_sys::spindrift_thread_forget() };
        }
    }
}

thread_local! {
    static KNOWN: Known = Known::new();
}

/// Makes the EAL know the calling thread, so that its memory pools have a cache for it. Without one they are slower, and work.
#[inline]
pub(crate) fn join() {
    // A thread that is ending has had its time.
    let _ = KNOWN.try_with(|_| ());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_keeps_whole_lines_and_the_last_ones() {
        let mut log = Log { lines: VecDeque::new(), open: String::new(), count: 0 };
        log.take("EAL: a");
        log.take("nd b\nEAL: c\n\n");
        assert_eq!(log.lines, ["EAL: and b", "EAL: c"]);
        log.take(&"ä".repeat(1000));
        log.take("\n");
        assert!(log.lines[2].len() <= LINE && log.lines[2].chars().all(|c| c == 'ä'));
        for n in 0..200 {
            log.take(&format!("{n}\n"));
        }
        assert_eq!((log.lines.len(), log.lines.back().map(String::as_str)), (LINES, Some("199")));
        assert_eq!(log.count, 203);
    }
}
