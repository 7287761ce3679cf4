//! Cores.

use core_affinity::CoreId;

/// The cores that the lanes of one side have for themselves.
#[derive(Clone, Debug)]
pub(crate) struct Cores {
    /// By lane; empty where the scheduler chooses.
    pub(crate) pinned: Vec<usize>,
    /// There is one for each lane, pinned or not.
    own: bool,
}

impl Cores {
    /// Cores for the lanes of two sides in this process: all of their own, or none.
    pub(crate) fn of_pair(lanes: usize) -> [Self; 2] {
        let cores: Vec<usize> = available();
        let mut chunks = cores.chunks_exact(lanes);
        match [chunks.next(), chunks.next()] {
            [Some(first), Some(second)] => {
                [first, second].map(|pinned| Self { pinned: pinned.to_vec(), own: true })
            }
            _ => [(); 2].map(|()| Self { pinned: Vec::new(), own: false }),
        }
    }

    /// The scheduler's choice, for one side of two that may be on one host. `shared`: with others that are busy, too.
    pub(crate) fn any(lanes: usize, shared: bool) -> Self {
        Self { pinned: Vec::new(), own: !shared && enough_for(lanes + 1) }
    }

    /// Binds this thread, which drives a lane. Where that is not allowed, the scheduler's choice will do.
    pub(crate) fn pin(&self, lane: usize) {
        if let Some(&id) = self.pinned.get(lane) {
            core_affinity::set_for_current(CoreId { id });
        }
    }

    /// What a lane does when it finds nothing.
    pub(crate) fn idle(&self) -> Idle {
        Idle::new(self.own)
    }
}

/// Whether this host has a core for each of so many threads.
pub(crate) fn enough_for(threads: usize) -> bool {
    available().len() >= threads
}

fn available() -> Vec<usize> {
    core_affinity::get_core_ids().unwrap_or_default().iter().map(|core| core.id).collect()
}

/// What to do between polls that found nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Idle {
    polls: u32,
    before_yield: u32,
}

impl Idle {
    /// With a core for each side, spinning is fastest; else the other side needs the core.
    fn new(own_core: bool) -> Self {
        Self { polls: 0, before_yield: if own_core { 4096 } else { 4 } }
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
