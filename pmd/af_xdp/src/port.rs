//! The port itself.

use std::fmt;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;

use spindrift_pmd::{LinkState, Port, PortCaps, PortCounters, RxFrame, TxFrame};

use crate::filter::Count;
use crate::open::Filter;
use crate::queue::{BUFFER, Queue};
use spindrift_pmd::shared_interface::{SharedInterface, destination};

/// How soon the kernel is asked again to send what it had no room for.
const FULL_PAUSE_NS: u64 = 20_000;

/// One lane's part of an interface: a plane. See the [crate](crate).
pub struct AfXdpPort {
    caps: PortCaps,
    counters: PortCounters,
    /// The first one sends. It holds its packets in order.
    pub(crate) queues: Vec<Queue>,
    pub(crate) interface: SharedInterface,
    filter: Arc<Filter>,
    /// Of the ports of an interface one counts what arrives at none.
    first: bool,
    /// Frames may wait in the transmit ring; when to try again.
    retry_at: Option<u64>,
}

/// What became of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TxOutcome {
    Sent,
    /// It stays with the caller.
    NoRoom,
    Oversize,
    /// The port cannot read it, or its payload has no bytes.
    Unsendable,
    /// There is no way to its destination, or nobody knows the next neighbour's address yet.
    Unreachable,
    LinkDown,
}

impl AfXdpPort {
    pub(crate) fn new(
        caps: PortCaps,
        queues: Vec<Queue>,
        interface: SharedInterface,
        (first, filter): (bool, &Arc<Filter>),
    ) -> Self {
        let counters = PortCounters::default();
        Self { caps, counters, queues, interface, filter: Arc::clone(filter), first, retry_at: None }
    }

    fn send(&mut self, now_ns: u64, frame: &TxFrame<'_>) -> TxOutcome {
        if frame.len() > self.caps.max_frame {
            return TxOutcome::Oversize;
        }
        let is_virtual = !frame.payload.is_empty() && frame.payload.as_ptr().is_none();
        let Some(to) = destination(frame.head).filter(|_| !is_virtual && frame.head.len() <= BUFFER) else {
            return TxOutcome::Unsendable;
        };
        if self.interface.last_link() == LinkState::Down {
            return TxOutcome::LinkDown;
        }
        let Some(mac) = self.interface.mac_of(to, now_ns) else { return TxOutcome::Unreachable };
        let mac_of_ours = self.caps.mac;
        let sent = self.queues.first_mut().is_some_and(|queue| queue.push(frame, mac, mac_of_ours));
        if sent { TxOutcome::Sent } else { TxOutcome::NoRoom }
    }

    fn count(&mut self, outcome: TxOutcome, len: usize) {
        let counters = &mut self.counters;
        match outcome {
            TxOutcome::Sent => {
                counters.tx_frames += 1;
                counters.tx_bytes += len as u64;
                return;
            }
            TxOutcome::NoRoom => return,
            TxOutcome::LinkDown => {}
            TxOutcome::Oversize => counters.tx_oversize += 1,
            TxOutcome::Unsendable => counters.tx_unsendable += 1,
            TxOutcome::Unreachable => counters.tx_errors += 1,
        }
        counters.tx_dropped += 1;
    }

    /// Has the kernel send what waits.
    fn kick(&mut self, now_ns: u64) {
        let Some(queue) = self.queues.first_mut() else { return };
        let kicked = queue.kick();
        self.counters.tx_calls += kicked.calls;
        self.counters.tx_errors += kicked.errors;
        let waits = queue.waiting() > 0;
        self.retry_at = waits.then(|| now_ns.saturating_add(FULL_PAUSE_NS));
    }

    /// The same if there is something left and it is time to.
    fn kick_again(&mut self, now_ns: u64) {
        if self.retry_at.is_some_and(|at| now_ns >= at) {
            self.kick(now_ns);
        }
    }
}

impl fmt::Debug for AfXdpPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AfXdpPort").field("name", &self.caps.name).finish_non_exhaustive()
    }
}

impl Port for AfXdpPort {
    fn caps(&self) -> &PortCaps {
        &self.caps
    }

    /// Looks for news at most once a millisecond.
    fn link(&mut self) -> LinkState {
        self.interface.link()
    }

    fn tx_room(&mut self, now_ns: u64) -> usize {
        self.kick_again(now_ns);
        self.interface.refresh(now_ns);
        let Some(queue) = self.queues.first_mut() else { return 0 };
        queue.reclaim();
        let room = queue.room() / self.caps.max_frame.div_ceil(BUFFER);
        self.counters.tx_full += u64::from(room == 0);
        room
    }

    fn tx_burst(&mut self, now_ns: u64, frames: &[TxFrame<'_>]) -> usize {
        if let Some(queue) = self.queues.first_mut() {
            queue.reclaim();
        }
        let frames = &frames[..frames.len().min(self.caps.max_burst)];
        let mut taken = 0;
        for frame in frames {
            let outcome = self.send(now_ns, frame);
            self.count(outcome, frame.len());
            if outcome == TxOutcome::NoRoom {
                self.counters.tx_full += 1;
                break;
            }
            taken += 1;
        }
        if taken > 0 {
            self.kick(now_ns);
        }
        taken
    }

    /// What the kernel has no room for waits in the ring, and its place is not given to others.
    fn unsent(&self) -> &[u16] {
        &[]
    }

    fn flush(&mut self, now_ns: u64) {
        self.kick_again(now_ns);
    }

    fn rx_burst(&mut self, now_ns: u64, max: usize, sink: &mut dyn FnMut(&RxFrame<'_>)) -> usize {
        self.kick_again(now_ns);
        let mut frames = 0;
        for queue in &mut self.queues {
            let shown = queue.receive(max - frames, sink);
            frames += shown.frames;
            self.counters.rx_bytes += shown.bytes;
            self.counters.rx_dropped += shown.dropped;
        }
        self.counters.rx_frames += frames as u64;
        self.counters.rx_calls += u64::from(frames > 0);
        frames
    }

    fn reap(&mut self) -> u64 {
        u64::MAX
    }

    fn recall(&mut self) {}

    fn next_event_ns(&self) -> Option<u64> {
        self.retry_at
    }

    fn readable(&self) -> Vec<BorrowedFd<'_>> {
        self.queues.iter().map(|queue| queue.as_fd()).collect()
    }

    fn counters(&self) -> PortCounters {
        let mut counters = self.counters;
        for queue in &self.queues {
            let (dropped, invalid) = queue.losses();
            counters.rx_dropped += dropped;
            counters.tx_errors += invalid;
        }
        if self.first {
            counters.rx_dropped += self.filter.count(Count::NoSocket);
            counters.rx_unread += self.filter.count(Count::Unread);
        }
        counters
    }
}
