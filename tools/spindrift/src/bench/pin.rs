//! Cores.

use core_affinity::CoreId;

/// Two cores of this process's own for the two sides, if it has as many.
pub(crate) fn two_cores() -> Option<(usize, usize)> {
    match core_affinity::get_core_ids()?.as_slice() {
        [first, second, ..] => Some((first.id, second.id)),
        _ => None,
    }
}

/// Binds this thread. Where that is not allowed, the scheduler's choice will do.
pub(crate) fn pin(core: usize) {
    core_affinity::set_for_current(CoreId { id: core });
}

/// What to do between polls that found nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Idle {
    polls: u32,
    before_yield: u32,
}

impl Idle {
    /// With a core for each side, spinning is fastest; else the other side needs the core.
    pub(crate) fn new(own_core: bool) -> Self {
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
