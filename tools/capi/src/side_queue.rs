//! Completions that this library makes itself, beside those of the transport: of datagrams.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::abi::ibv_wc;
use crate::event::{About, EventQueue};

/// Those of one completion queue. It outlives the queue while a datagram is being delivered.
pub(crate) struct SideQueue {
    entries: Mutex<VecDeque<Entry>>,
    /// Read without the lock, by polls of queues that have none.
    len: AtomicUsize,
    depth: usize,
    /// The next entry is told to the channel.
    armed: AtomicBool,
    /// Events of the channel, if the queue has one.
    events: Option<Arc<EventQueue>>,
    /// The address of the completion queue, for its events.
    at: AtomicUsize,
}

struct Entry {
    wc: ibv_wc,
    /// Requests of its send queue whose completions were not polled yet, if it stands for one.
    sends: Option<Arc<AtomicU32>>,
}

impl SideQueue {
    pub(crate) fn new(depth: u32, events: Option<Arc<EventQueue>>) -> Arc<Self> {
        Arc::new(Self {
            entries: Mutex::default(),
            len: AtomicUsize::new(0),
            depth: depth as usize,
            armed: AtomicBool::new(false),
            events,
            at: AtomicUsize::new(0),
        })
    }

    fn entries(&self) -> MutexGuard<'_, VecDeque<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The completion queue is at this address; 0 when it has ended.
    pub(crate) fn set_address(&self, at: usize) {
        // With the lock, so that no event names an address of before afterwards.
        let _entries = self.entries();
        let before = self.at.swap(at, Ordering::AcqRel);
        if at == 0
            && let Some(events) = &self.events
        {
            events.forget(before);
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    /// Whether there is no room for the completion of one more receive. A datagram without room is dropped, as one without a receive is.
    pub(crate) fn is_full(&self) -> bool {
        self.len.load(Ordering::Acquire) >= self.depth
    }

    pub(crate) fn push(&self, wc: ibv_wc, sends: Option<&Arc<AtomicU32>>) {
        let mut entries = self.entries();
        if let Some(sends) = sends {
            sends.fetch_add(1, Ordering::Relaxed);
        }
        entries.push_back(Entry { wc, sends: sends.cloned() });
        self.len.store(entries.len(), Ordering::Release);
        self.tell();
    }

    /// Tells the channel, if it waits for the next completion.
    fn tell(&self) {
        if self.armed.swap(false, Ordering::AcqRel)
            && let Some(events) = &self.events
        {
            events.push(About::Object(self.at.load(Ordering::Acquire)), 0);
        }
    }

    /// There is something for the completion queue that is no completion.
    pub(crate) fn notify(&self) {
        // With the lock, so that it comes either before or after the program arms the queue.
        let _entries = self.entries();
        self.tell();
    }

    /// Takes the oldest one.
    pub(crate) fn pop(&self) -> Option<ibv_wc> {
        if self.len.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut entries = self.entries();
        let entry = entries.pop_front()?;
        self.len.store(entries.len(), Ordering::Release);
        if let Some(sends) = entry.sends {
            sends.fetch_sub(1, Ordering::Relaxed);
        }
        Some(entry.wc)
    }

    /// A queue pair ends or is reset: its completions are dropped.
    pub(crate) fn forget(&self, qp_num: u32) {
        let mut entries = self.entries();
        entries.retain(|entry| {
            let keep = entry.wc.qp_num != qp_num;
            if let (false, Some(sends)) = (keep, &entry.sends) {
                sends.fetch_sub(1, Ordering::Relaxed);
            }
            keep
        });
        self.len.store(entries.len(), Ordering::Release);
    }

    pub(crate) fn arm(&self) {
        // With the lock, so that each completion comes either before or after it.
        let _entries = self.entries();
        self.armed.store(true, Ordering::Release);
    }
}
