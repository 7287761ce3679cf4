//! Queues of events: of entropy values that have changed their state.

use core::sync::atomic::{AtomicUsize, Ordering};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::bus::Change;
use crate::side_queue::SideQueue;

/// An event, and whether others were lost before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EvEvent {
    pub(crate) profile: u64,
    pub(crate) change: Change,
    pub(crate) lost: bool,
}

/// Those of one queue. It does not overrun: what has no room is lost.
pub(crate) struct EvEvents {
    queue: Mutex<Queue>,
    /// Read without the lock.
    len: AtomicUsize,
    depth: usize,
    /// Tells the queue's channel.
    side: Arc<SideQueue>,
}

#[derive(Default)]
struct Queue {
    events: VecDeque<EvEvent>,
    /// Some were lost since the last one.
    lost: bool,
}

impl EvEvents {
    pub(crate) fn new(depth: u32, side: Arc<SideQueue>) -> Arc<Self> {
        Arc::new(Self { queue: Mutex::default(), len: AtomicUsize::new(0), depth: depth as usize, side })
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what a process has said of a profile; `lost` says whether it has lost some of that.
    pub(crate) fn push(&self, profile: u64, changes: &[Change], lost: bool) {
        let mut queue = self.queue();
        queue.lost |= lost;
        for change in changes {
            if queue.events.len() >= self.depth {
                queue.lost = true;
                continue;
            }
            let lost = core::mem::take(&mut queue.lost);
            queue.events.push_back(EvEvent { profile, change: *change, lost });
        }
        self.len.store(queue.events.len(), Ordering::Release);
        let is_empty = queue.events.is_empty();
        drop(queue);
        if !is_empty {
            self.side.notify();
        }
    }

    pub(crate) fn pop(&self) -> Option<EvEvent> {
        if self.len.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut queue = self.queue();
        let event = queue.events.pop_front();
        self.len.store(queue.events.len(), Ordering::Release);
        event
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mrc::ctl::abi::ev_state::{ASSUMED_BAD, GOOD};

    fn queue(depth: u32) -> Arc<EvEvents> {
        EvEvents::new(depth, SideQueue::new(depth, None))
    }

    fn change(value: u32) -> Change {
        Change { value, port: 1, state: if value.is_multiple_of(2) { GOOD } else { ASSUMED_BAD } }
    }

    fn all(queue: &EvEvents) -> Vec<(u32, bool)> {
        core::iter::from_fn(|| queue.pop()).map(|event| (event.change.value, event.lost)).collect()
    }

    #[test]
    fn what_has_no_room_is_lost_and_the_next_one_tells() {
        let queue = queue(2);
        queue.push(5, &[change(1), change(2), change(3)], false);
        assert_eq!(all(&queue), [(1, false), (2, false)]);
        queue.push(5, &[change(4)], false);
        queue.push(5, &[change(5)], false);
        assert_eq!(all(&queue), [(4, true), (5, false)]);
        queue.push(5, &[], true);
        assert_eq!(all(&queue), []);
        queue.push(6, &[change(7)], false);
        assert_eq!(queue.pop(), Some(EvEvent { profile: 6, change: change(7), lost: true }));
    }
}
