//! The target's side of a bandwidth run.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Condvar, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::thread;
use std::time::Instant;

use anyhow::{Error, Result, bail};

use crate::bench::contents::Contents;
use crate::bench::pin::Cores;
use crate::bench::receiver::{ARRIVAL_LIMIT, Comparison, Receivers};
use crate::bench::transport::Nics;
use crate::stop::Stop;

pub(super) const RUNNING: u8 = 0;
pub(super) const PAUSED: u8 = 1;
const STOPPED: u8 = 2;

/// The threads that drive the target's lanes.
pub(super) struct Helper<'a> {
    /// The target's, if the operation takes receives.
    receivers: Option<RwLock<Receivers<'a>>>,
    state: AtomicU8,
    /// Those that pause sleep here.
    paused: Mutex<()>,
    change: Condvar,
    /// Why a lane of the target has failed.
    error: Mutex<Option<Error>>,
}

impl<'a> Helper<'a> {
    pub(super) fn new(receivers: Option<Receivers<'a>>) -> Self {
        Self {
            receivers: receivers.map(RwLock::new),
            state: AtomicU8::new(RUNNING),
            paused: Mutex::new(()),
            change: Condvar::new(),
            error: Mutex::new(None),
        }
    }

    pub(super) fn serve(&self, nics: &Nics, lane: usize, cores: &Cores) {
        cores.pin(lane);
        let mut idle = cores.idle();
        loop {
            match self.state.load(Ordering::Relaxed) {
                STOPPED => return,
                // The pump and the baseline have the machine to themselves.
                PAUSED => self.sleep(),
                _ => {
                    let work = nics.poll_lane(lane);
                    let received = self.receivers().map_or(Ok(0), |receivers| receivers.turn(lane));
                    let received = received.unwrap_or_else(|error| {
                        self.error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                        0
                    });
                    idle.after(work + received);
                }
            }
        }
    }

    pub(super) fn receivers(&self) -> Option<RwLockReadGuard<'_, Receivers<'a>>> {
        let receivers = self.receivers.as_ref()?;
        Some(receivers.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Posts receives for a size.
    pub(super) fn start(&self, contents: &Contents, comparison: Option<Comparison>) -> Result<()> {
        let Some(receivers) = &self.receivers else { return Ok(()) };
        receivers.write().unwrap_or_else(PoisonError::into_inner).start(contents, comparison)
    }

    /// The error of a lane, if one has failed.
    pub(super) fn check(&self) -> Result<()> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).take().map_or(Ok(()), Err)
    }

    /// Waits until the target has taken the completions of so many messages of each queue pair.
    pub(super) fn wait_for(&self, messages: &[u64], stop: &Stop) -> Result<()> {
        let Some(receivers) = self.receivers() else { return Ok(()) };
        let deadline = Instant::now() + ARRIVAL_LIMIT;
        loop {
            if receivers.has_taken(messages) {
                return Ok(());
            }
            self.check()?;
            stop.check()?;
            if Instant::now() > deadline {
                let due = receivers.due();
                bail!("messages of the queue pairs that were sent: {messages:?}, due at the target: {due:?}");
            }
            thread::yield_now();
        }
    }

    fn sleep(&self) {
        let paused = self.paused.lock().unwrap_or_else(PoisonError::into_inner);
        let still = |(): &mut ()| self.state.load(Ordering::Relaxed) == PAUSED;
        drop(self.change.wait_while(paused, still));
    }

    pub(super) fn set(&self, state: u8) {
        let paused = self.paused.lock().unwrap_or_else(PoisonError::into_inner);
        self.state.store(state, Ordering::Relaxed);
        drop(paused);
        self.change.notify_all();
    }
}

/// Ends the helper however the scope is left.
pub(super) struct StopOnDrop<'a, 'b>(pub(super) &'a Helper<'b>);

impl Drop for StopOnDrop<'_, '_> {
    fn drop(&mut self) {
        self.0.set(STOPPED);
    }
}
