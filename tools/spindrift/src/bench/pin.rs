//! Pinning of threads to cores, and what idle threads do.

use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use core_affinity::CoreId;
use rustix::time::{ClockId, clock_gettime};

use super::transport::Nics;

/// Longest sleep: what is looked at now and then is looked at so often.
const SLEEP_MAX: Duration = Duration::from_millis(1);

/// What is done while there is nothing to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum WaitName {
    /// Poll continuously.
    #[default]
    Spin,
    /// Sleep until a packet arrives or a timer is due.
    Poll,
}

impl WaitName {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Spin => "spin",
            Self::Poll => "poll",
        }
    }
}

/// The cores that the lanes of one side have for themselves.
#[derive(Clone, Debug)]
pub(crate) struct Cores {
    /// By lane; empty where the scheduler chooses.
    pub(crate) pinned: Vec<usize>,
    /// There is one for each lane, pinned or not.
    own: bool,
    wait: WaitName,
}

impl Cores {
    /// Cores for the lanes of two sides in this process: all of their own, or none.
    pub(crate) fn of_pair(lanes: usize) -> [Self; 2] {
        let cores: Vec<usize> = available();
        let mut chunks = cores.chunks_exact(lanes);
        match [chunks.next(), chunks.next()] {
            [Some(first), Some(second)] => [first, second].map(|pinned| Self {
                pinned: pinned.to_vec(),
                own: true,
                wait: WaitName::Spin,
            }),
            _ => [(); 2].map(|()| Self { pinned: Vec::new(), own: false, wait: WaitName::Spin }),
        }
    }

    /// The scheduler's choice, for one side of two that may be on one host. `shared`: with others that are busy, too.
    pub(crate) fn any(lanes: usize, shared: bool, wait: WaitName) -> Self {
        Self { pinned: Vec::new(), own: !shared && enough_for(lanes + 1), wait }
    }

    /// Makes sure that all lanes can be slept on, if they are to be.
    pub(crate) fn check(&self, nics: &Nics) -> Result<()> {
        if self.wait == WaitName::Poll {
            for lane in 0..nics.lanes() {
                nics.wait_lane(lane, Duration::ZERO)
                    .context("--wait poll: the system gives no file descriptors")?;
            }
        }
        Ok(())
    }

    /// After a turn of a lane that found nothing, where others may need the core.
    pub(crate) fn rest(&self, nics: &Nics, lane: usize) {
        // It cannot fail: `check` has slept on all lanes.
        if self.wait == WaitName::Spin || nics.wait_lane(lane, SLEEP_MAX).is_err() {
            std::thread::yield_now();
        }
    }

    /// Binds this thread, which drives a lane. Where that is not allowed, the scheduler's choice will do.
    pub(crate) fn pin(&self, lane: usize) {
        if let Some(&id) = self.pinned.get(lane) {
            core_affinity::set_for_current(CoreId { id });
        }
    }

    /// What a lane does when it finds nothing.
    pub(crate) fn idle(&self) -> Idle {
        Idle::new(self.own, self.wait)
    }
}

/// Whether this host has a core for each of so many threads.
pub(crate) fn enough_for(threads: usize) -> bool {
    available().len() >= threads
}

fn available() -> Vec<usize> {
    core_affinity::get_core_ids().unwrap_or_default().iter().map(|core| core.id).collect()
}

/// Time for which the threads of this process have had cores, all together.
pub(crate) fn cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default()
}

/// What to do between polls that found nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Idle {
    polls: u32,
    before_yield: u32,
    wait: WaitName,
}

impl Idle {
    /// With a core for each side, spinning is fastest; else the other side needs the core.
    fn new(own_core: bool, wait: WaitName) -> Self {
        Self { polls: 0, before_yield: if own_core { 4096 } else { 4 }, wait }
    }

    /// Tells what the last poll of a lane found. Returns whether it has slept since.
    #[inline]
    pub(crate) fn after_turn(&mut self, work: usize, nics: &Nics, lane: usize) -> Result<bool> {
        if self.wait == WaitName::Poll && work == 0 {
            nics.wait_lane(lane, SLEEP_MAX)?;
            return Ok(true);
        }
        self.after(work);
        Ok(false)
    }

    /// Tells what the last poll found.
    #[inline]
    pub(crate) fn after(&mut self, work: usize) {
        if work > 0 {
            self.polls = 0;
            return;
        }
        self.polls += 1;
        if self.polls >= self.before_yield {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }
}
