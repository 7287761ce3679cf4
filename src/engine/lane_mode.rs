//! Who drives a lane.

use core::time::Duration;
use std::io;

#[cfg(doc)]
use spindrift_pmd::Port;

use super::tuning::{HYBRID_IDLE_POLLS, IDLE_POLLS, YIELDS_BEFORE_NAP};

/// The thread that drives a lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LaneMode {
    /// The application, by frequent calls of `poll`. This has the lowest latency. Nothing happens between the calls:
    /// no acknowledgement, no retransmission.
    #[default]
    Inline,
    /// A thread of the lane's own.
    Thread {
        /// The core to run on; any core if not given.
        core: Option<usize>,
        /// What the thread does when the lane is idle.
        idle: Idle,
    },
    /// The application, by calls of `poll`, and a thread of the lane's own while there are none: for programs that wait
    /// in a loop now and in the kernel then. The thread sleeps while the application polls, as Linux defers the
    /// interrupts of a NIC whose sockets are busy-polled. When the lane is idle, the thread naps, as with [`Idle::Nap`] but at once.
    Hybrid {
        /// The longest nap.
        nap: Duration,
    },
}

impl LaneMode {
    pub(super) const fn thread(self) -> Option<ThreadMode> {
        match self {
            Self::Inline => None,
            Self::Thread { core, idle } => Some(ThreadMode {
                core,
                idle,
                idle_after: IDLE_POLLS,
                nap_after: IDLE_POLLS + YIELDS_BEFORE_NAP,
            }),
            Self::Hybrid { nap } => Some(ThreadMode {
                core: None,
                idle: Idle::Nap(nap),
                idle_after: HYBRID_IDLE_POLLS,
                nap_after: HYBRID_IDLE_POLLS,
            }),
        }
    }
}

/// What a lane's own thread does.
#[derive(Clone, Copy)]
pub(super) struct ThreadMode {
    pub(super) core: Option<usize>,
    pub(super) idle: Idle,
    /// Empty polls after which the lane is idle, and after which the thread naps.
    pub(super) idle_after: u32,
    pub(super) nap_after: u32,
}

/// What a lane's own thread does when the lane is idle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Idle {
    /// Spins: for a core that the lane has to itself.
    Spin,
    /// Yields the core to other threads between polls, after some tens of microseconds: for shared cores.
    #[default]
    Yield,
    /// As [`Idle::Yield`], and after about a millisecond sleeps for this long (or to the next timer) between polls.
    /// Posts, frames from another lane, and arrivals at a port with a descriptor ([`Port::readable`]) wake it.
    /// Arrivals at other ports, and changes of a link, wait until the end of the sleep.
    Nap(Duration),
}

/// A lane could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaneStartError {
    /// The system could not start a thread.
    #[error("the lane's thread could not be started: {0}")]
    Thread(#[from] io::Error),
    /// The system has no file descriptors for the wake-up of a lane that naps.
    #[error("the lane cannot be made to sleep: {0}; raise the limit of open files (ulimit -n)")]
    Sleep(io::Error),
    /// The system has no random numbers for keys.
    #[error(
        "the system has no random numbers for keys: {0}; set a seed only if nobody else uses the network"
    )]
    Random(io::Error),
    /// The thread could not be bound to the core.
    #[error("the lane's thread could not be bound to core {core}; choose one that this process may use")]
    Core {
        /// The requested core.
        core: usize,
    },
}
