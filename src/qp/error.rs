//! Errors of the calls of an endpoint.

use thiserror::Error;

use super::Extensions;
use super::attr::QpState;

/// A control operation that was refused.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum EndpointError {
    /// There is no queue pair with this number.
    #[error("no queue pair {0:#08x}")]
    NoSuchQp(u32),
    /// The state machine does not allow the change.
    #[error("queue pair is in {from:?}; {to} is not reachable from there")]
    BadTransition {
        /// Current state.
        from: QpState,
        /// Requested state.
        to: &'static str,
    },
    /// Attributes that can be changed in RTS only.
    #[error("the {what} can be changed in RTS only, and the queue pair is in {state:?}")]
    NotInRts {
        /// The attributes to be changed.
        what: &'static str,
        /// Current state.
        state: QpState,
    },
    /// Attributes that can be changed in RESET and INIT only.
    #[error("the {what} can be changed in RESET and INIT only, and the queue pair is in {state:?}")]
    AfterInit {
        /// The attributes to be changed.
        what: &'static str,
        /// Current state.
        state: QpState,
    },
    /// An attribute is out of range.
    #[error("attribute `{name}` is {value}; it must be {allowed}")]
    BadAttribute {
        /// Its name.
        name: &'static str,
        /// Its value.
        value: u64,
        /// What is allowed.
        allowed: String,
    },
    /// A limit of the endpoint is reached.
    #[error("limit `{0}` is reached; raise it in the endpoint's settings")]
    Limit(&'static str),
    /// The path settings cannot work.
    #[error(transparent)]
    Path(#[from] crate::path::PathConfigError),
    /// The congestion control settings cannot work.
    #[error(transparent)]
    Congestion(#[from] crate::congestion::CcConfigError),
    /// The memory space refused the operation.
    #[error(transparent)]
    Memory(#[from] crate::memory::MemoryError),
    /// The peer's ports do not match ours.
    #[error("peer's ports: {0}")]
    Ports(String),
}

/// A work request that was refused.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum PostError {
    /// There is no queue pair with this number.
    #[error("no such queue pair")]
    NoSuchQp,
    /// The queue is full.
    #[error("queue is full: wait for completions or make the queue pair with a larger capacity")]
    QueueFull,
    /// The queue pair takes receive work requests from a queue that it shares with others.
    #[error("receives of this queue pair come from its shared receive queue: post them there")]
    SharedReceives,
    /// The state does not allow it: sends need RTS, receives INIT or later.
    #[error("queue pair is in {0:?}")]
    WrongState(QpState),
    /// A write has 1 to 2^32-1 bytes (MRC 1.0 section 5.1), with an immediate too. This peer does not have the
    /// extension for messages without bytes.
    #[error("message is empty: MRC messages have 1 to 4294967295 bytes, and this peer takes no others")]
    Empty,
    /// The operation needs an extension that this peer does not have.
    #[error("the peer did not agree to this operation: it needs `{needed}`")]
    NotNegotiated {
        /// The extension.
        needed: Extensions,
    },
    /// More than 2^32-1 bytes (MRC 1.0 section 5.1).
    #[error("message is too long: MRC messages have 1 to 4294967295 bytes")]
    TooLong,
    /// More scatter/gather elements than the queue pair was made for.
    #[error(
        "too many scatter/gather elements: make the queue pair with a larger `max_send_sge` or `max_recv_sge`"
    )]
    TooManySges,
    /// The peer accepts no such request in flight, so it would never complete.
    #[error(
        "the peer accepts no such request in flight: it connected with max_wimm 0 (writes with immediate, SENDs) or max_rd_atomic 0 (reads, atomic operations)"
    )]
    NoneAccepted,
    /// An atomic operation has 8 bytes.
    #[error("an atomic operation has {len} local bytes; it takes 8")]
    AtomicLength {
        /// Bytes of its local elements.
        len: u32,
    },
}
