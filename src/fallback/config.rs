//! Settings, states and errors.

use core::fmt;

use crate::work::WcStatus;

use super::verbs::Nic;

/// Settings of a connection with fallback.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FallbackConfig {
    /// Attempts to switch to another pair, one after the other without a completion in between, or without an agreement of
    /// both sides if there are no send work requests. Then the queue pair fails. Default 4.
    pub max_attempts: u32,
    /// Time that a switch waits for a prepared pair, and a request for a remote key, ns. Then the queue pair fails.
    /// Default 30 s.
    pub prepare_timeout_ns: u64,
    /// Time after a failure of a NIC until it is probed, ns. It doubles with every failure. Default 1 s.
    pub hold_ns: u64,
    /// Maximum of that time, ns. It loses one doubling for each such maximum that passes without a failure. Default 60 s.
    pub hold_max_ns: u64,
    /// A NIC whose links are all down is left at once, and not when retransmissions are exhausted. Default on. A peer with
    /// a request in flight that may not be sent again then fails, although the links may come back in time.
    pub leave_on_link_down: bool,
    /// Time between two probes, ns: of a NIC that does not work, and of a new pair on which the peer has not reported yet.
    /// Default 1 s.
    pub probe_ns: u64,
}

impl Default for FallbackConfig {
    fn default() -> Self {
        Self {
            max_attempts: 4,
            prepare_timeout_ns: 30_000_000_000,
            hold_ns: 1_000_000_000,
            hold_max_ns: 60_000_000_000,
            leave_on_link_down: true,
            probe_ns: 1_000_000_000,
        }
    }
}

/// The state of a sending half. The first four are those of the SHIFT paper (section 4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SendState {
    /// Requests go to the default NIC.
    Default,
    /// Requests go to the backup NIC.
    Fallback,
    /// The other NIC works. Requests change to it after the next signalled one.
    WaitSignaled,
    /// Later requests wait until that one has completed, and then until the peer's NIC knows.
    WaitDrained,
    /// A pair has failed, and the two sides agree on another one.
    Switching,
    /// It has failed for good: see [`Machine::failure`](super::Machine::failure).
    Failed,
}

impl fmt::Display for SendState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Default => "default",
            Self::Fallback => "fallback",
            Self::WaitSignaled => "wait-signaled",
            Self::WaitDrained => "wait-drained",
            Self::Switching => "switching",
            Self::Failed => "failed",
        })
    }
}

/// The state of a receiving half (SHIFT paper, section 4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReceiveState {
    /// Messages arrive on the default NIC.
    Default,
    /// Messages arrive on the backup NIC.
    Fallback,
}

/// Why a queue pair with fallback has failed. Its first outstanding send work request completes with
/// [`WcStatus::RetryExceeded`], or with the status named here; all others are flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error, Hash)]
#[non_exhaustive]
pub enum FallbackError {
    /// A request was in flight that may have been executed, and that must not be executed twice: an atomic operation, a
    /// read before a write or SEND that may change what it reads, or one that the application marked (SHIFT paper,
    /// section 3.1).
    #[error(
        "request {wr_id} was in flight when its NIC failed, and must not be sent again; restart from the application's last consistent state"
    )]
    NotRepeatable {
        /// Its `wr_id`.
        wr_id: u64,
    },
    /// No pair was prepared on another NIC.
    #[error(
        "no queue pair is prepared after the {failed} failed; see whether the other NIC works on both sides, and the key-value store"
    )]
    NoSpare {
        /// The NIC that failed last.
        failed: Nic,
    },
    /// Each of several pairs failed before anything arrived on it.
    #[error("{attempts} attempts to switch to another NIC failed")]
    AttemptsExhausted {
        /// How many.
        attempts: u32,
    },
    /// The key-value store cannot be reached for a remote key.
    #[error(
        "the key-value store cannot be reached, so the peer's memory keys of the backup NIC are not known"
    )]
    StoreUnreachable,
    /// The key-value store has no such region of the peer.
    #[error(
        "the key-value store does not have a remote key in use; register the peer's memory on both of its NICs"
    )]
    UnknownRemoteKey,
    /// A request names memory that is not registered on both NICs.
    #[error("local key {lkey:#x} is of no region that is registered on both NICs")]
    UnknownLocalKey {
        /// The key.
        lkey: u32,
    },
    /// A request failed, and would fail on every NIC.
    #[error("a work request failed: {0}")]
    Application(WcStatus),
    /// A pair went to ERROR because of what the peer sent, or because the peer refused it.
    #[error("the peer sent a request that cannot be carried out, or the queue pair was set to ERROR")]
    PairFailed,
    /// The peer has failed for one of these reasons.
    #[error("the peer has failed, and switches to no other NIC")]
    PeerGaveUp,
    /// The peer broke a rule of the handshake.
    #[error("the peer broke a rule of the handshake: {0}")]
    PeerViolation(&'static str),
}

/// What a machine has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Counters {
    /// Times that it began to switch because a pair had failed.
    pub switches: u64,
    /// Times that it began to switch because the peer did.
    pub switches_by_peer: u64,
    /// Times that the sending half moved to another NIC without a failure.
    pub moves: u64,
    /// Requests that were sent again.
    pub repeated: u64,
    /// Requests that had arrived although they had not completed, and were not sent again.
    pub spared: u64,
    /// Prepared pairs that did not work.
    pub spares_failed: u64,
}
