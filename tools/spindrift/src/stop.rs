//! Ctrl-C.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::output;

/// Exit status after Ctrl-C, as shells have it: 128 and the signal's number.
pub(crate) const INTERRUPTED_STATUS: u8 = 130;

/// Set when the user wants an end.
#[derive(Clone, Debug)]
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
    /// From now on Ctrl-C sets the flag; a second one ends the process at once.
    pub(crate) fn on_ctrl_c() -> Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            flag::register_conditional_shutdown(signal, INTERRUPTED_STATUS.into(), Arc::clone(&flag))
                .and_then(|_| flag::register(signal, Arc::clone(&flag)))
                .context("cannot watch for Ctrl-C")?;
        }
        Ok(Self { flag })
    }

    fn is_set(&self) -> bool {
        self.flag.load(Ordering::Relaxed)
    }

    pub(crate) fn flag(&self) -> &AtomicBool {
        &self.flag
    }

    /// An error once the user wants an end, or nobody can read the results any more.
    pub(crate) fn check(&self) -> Result<()> {
        output::check()?;
        if self.is_set() { Err(Interrupted.into()) } else { Ok(()) }
    }
}
