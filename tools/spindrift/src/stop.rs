//! Ctrl-C and other signals that end a run.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level;

use crate::output;

/// Exit status after Ctrl-C, as shells have it: 128 and the signal's number.
pub(crate) const INTERRUPTED_STATUS: u8 = 130;

/// A signal that follows the first one sooner says the same: `timeout` sends its signal twice, to the process and to its group.
const SAME_WISH: Duration = Duration::from_millis(500);

/// Set when the user wants an end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stop {
    flag: Arc<AtomicBool>,
}

/// The user ended the run.
#[derive(Debug)]
pub(crate) struct Interrupted;

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

impl Stop {
    /// From now on Ctrl-C, SIGTERM and a closed terminal set the flag; a second one, after a moment, ends the process at once.
    /// A closed terminal does not where it is ignored, as under `nohup`.
    pub(crate) fn on_ctrl_c() -> Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        let set = Arc::clone(&flag);
        let mut wanted = vec![SIGINT, SIGTERM];
        if !is_ignored(SIGHUP, &fs::read_to_string("/proc/self/status").unwrap_or_default()) {
            wanted.push(SIGHUP);
        }
        let mut signals = Signals::new(wanted).context("cannot watch for Ctrl-C")?;
        let watch = move || {
            let mut first = None;
            for _ in signals.forever() {
                set.store(true, Ordering::Relaxed);
                if is_second(&mut first, Instant::now()) {
                    low_level::exit(INTERRUPTED_STATUS.into());
                }
            }
        };
        thread::Builder::new().name("signals".to_owned()).spawn(watch).context("cannot watch for Ctrl-C")?;
        Ok(Self { flag })
    }

    fn is_set(&self) -> bool {
        self.flag.load(Ordering::Relaxed)
    }

    pub(crate) fn flag(&self) -> &AtomicBool {
        &self.flag
    }

    /// The flag, for what outlives a borrow.
    pub(crate) fn shared(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.flag)
    }

    /// An error once the user wants an end, or nobody can read the results any more.
    pub(crate) fn check(&self) -> Result<()> {
        output::check()?;
        if self.is_set() { Err(Interrupted.into()) } else { Ok(()) }
    }
}

/// Whether a process ignores a signal, by the `status` that `proc(5)` shows of it: bits of a hexadecimal number.
fn is_ignored(signal: i32, status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// Whether a signal that comes now is more than the wish of the first one.
fn is_second(first: &mut Option<Instant>, now: Instant) -> bool {
    now.duration_since(*first.get_or_insert(now)) >= SAME_WISH
}

/// Sets the flag that ends the threads of a scope, however the scope is left.
pub(crate) struct SetOnDrop<'a>(pub(crate) &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_bits_of_a_mask() {
        let status = "SigBlk:\tffffffffffffffff\nSigIgn:\t0000000000001001\nSigCgt:\tffffffffffffffff\n";
        let ignored: Vec<i32> = (1..=64).filter(|&signal| is_ignored(signal, status)).collect();
        assert_eq!(ignored, [SIGHUP, 13]);
        assert!(!is_ignored(SIGHUP, "") && !is_ignored(SIGHUP, "SigIgn:\tnone\n"));
    }

    #[test]
    fn only_a_later_signal_is_a_second_one() {
        let (mut first, start) = (None, Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(
            [0, 1, 499, 500, 9000].map(|ms| is_second(&mut first, at(ms))),
            [false, false, false, true, true]
        );
    }
}
