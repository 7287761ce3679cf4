//! Asynchronous events: those of a context that belong to no completion queue. They are in a bounded queue with a
//! file descriptor to wait on.

use core::sync::atomic::{AtomicU64, Ordering};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use crossbeam_queue::ArrayQueue;

use super::event_fd::EventFlag;
use super::tuning::ASYNC_EVENTS;
use crate::endpoint::{CqId, QpFailure};
use crate::path::{EvEvent, PlaneSet};
use crate::wire::{Ev, Qpn};
use crate::work::SrqId;

/// An event of a context, as with `ibv_get_async_event`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// A queue pair went to ERROR, by itself or because the application asked for it (the reason says which).
    QpFatal(QpFailure),
    /// A port of this NIC lost its link, as the port reported it.
    PortDown {
        /// The lane of the port.
        lane: u32,
        /// The port's plane.
        plane: u8,
    },
    /// A port of this NIC has its link back, as the port reported it.
    PortUp {
        /// The lane of the port.
        lane: u32,
        /// The port's plane.
        plane: u8,
    },
    /// The packets of a queue pair take the planes of another [role](crate::path::PlaneRole) from now on: the other NIC
    /// took over, or the preferred one is back.
    PlanesSwitched {
        /// The queue pair.
        qpn: Qpn,
        /// The planes that serve.
        planes: PlaneSet,
    },
    /// The application denied an entropy value or a plane to a queue pair.
    PathDenied {
        /// The queue pair.
        qpn: Qpn,
        /// The entropy value; all of the plane when not given.
        ev: Option<Ev>,
        /// The plane; all when not given.
        plane: Option<u8>,
    },
    /// An entropy value became `ASSUMED_BAD` after a loss (or because the peer asked not to use it), or GOOD again
    /// after enough acknowledged probes: see `change.state`. Each queue pair has a queue of 32 of these;
    /// `PathCounters::events_lost` counts those lost.
    Path {
        /// The queue pair.
        qpn: Qpn,
        /// The change.
        change: EvEvent,
    },
    /// A completion queue overran; its queue pairs go to ERROR.
    CqError {
        /// The queue.
        cq: CqId,
    },
    /// The peer responded to an EV probe of `Endpoint::send_ev_probe`.
    EvProbeAnswered {
        /// The queue pair.
        qpn: Qpn,
        /// The return value of `send_ev_probe`.
        request_id: u16,
        /// Round-trip time, ns.
        rtt_ns: u64,
    },
    /// A shared receive queue has fewer work requests than its limit, which is now cleared: see `Srq::set_limit`.
    SrqLimitReached {
        /// The queue.
        srq: SrqId,
    },
    /// A lane has panicked. The context's other lanes end with it.
    LaneFailed,
}

/// The queue, written by the lane and read by any thread.
#[derive(Debug)]
pub(crate) struct AsyncEvents {
    queue: ArrayQueue<AsyncEvent>,
    lost: AtomicU64,
    readable: EventFlag,
}

impl AsyncEvents {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            queue: ArrayQueue::new(ASYNC_EVENTS),
            lost: AtomicU64::new(0),
            readable: EventFlag::new()?,
        })
    }

    /// Adds an event; the newest is lost, and counted, when the queue is full.
    pub(crate) fn push(&self, event: AsyncEvent) {
        if self.queue.push(event).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        self.readable.set();
    }

    /// The oldest event. After `None` the descriptor is readable again only when another event comes.
    pub(crate) fn pop(&self) -> Option<AsyncEvent> {
        if let Some(event) = self.queue.pop() {
            return Some(event);
        }
        self.readable.clear();
        let late = self.queue.pop();
        if !self.queue.is_empty() {
            self.readable.set();
        }
        late
    }

    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
    use super::*;
    use crate::engine::clock::Deadline;
    use core::sync::atomic::AtomicBool;
    use std::time::Duration;

    /// After the reader has found the queue empty, the next event wakes it.
    #[test]
    fn no_event_is_slept_through() {
        const EVENTS: u64 = 100_000;
        let events = AsyncEvents::new().unwrap();
        let sleeps_on = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 0..EVENTS {
                    // At a random time while the reader is about to sleep.
                    while !events.queue.is_empty() && !sleeps_on.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                    (0..n % 199).for_each(|_| std::hint::spin_loop());
                    events.push(AsyncEvent::PortUp { lane: 0, plane: n as u8 });
                }
            });
            let mut taken = 0;
            loop {
                while events.pop().is_some() {
                    taken += 1;
                }
                if taken + events.lost() == EVENTS {
                    break;
                }
                if !events.readable.wait(Some(&Deadline::after(Duration::from_secs(10)))).unwrap() {
                    sleeps_on.store(true, Ordering::Relaxed);
                    panic!("{taken} taken, and the reader sleeps on");
                }
            }
        });
    }
}
