//! Errors. Each message says what to change.

use std::net::IpAddr;

use crate::endpoint::{ConfigError, EndpointError, Extensions, QpState};
use crate::engine::{ControlError, LaneStartError};
use crate::memory::{MemoryError, RegionError};

use super::negotiate::Refusal;

/// A control operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// The context's settings cannot work.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The settings were made for a different number of ports.
    #[error(
        "the settings name {configured} ports, but {given} were given; make the settings with `ContextConfig::new(&ports)`"
    )]
    PortCount {
        /// Ports in the settings.
        configured: usize,
        /// Ports given.
        given: usize,
    },
    /// The settings were made for a different number of lanes, or there are too many.
    #[error(
        "the settings are for {configured} lanes, and ports were given for {given}; set as many in `ContextConfig::lanes`, 1 to {most}"
    )]
    LaneCount {
        /// Lanes in the settings.
        configured: usize,
        /// Lanes that ports were given for.
        given: usize,
        /// The largest number of lanes of a context.
        most: usize,
    },
    /// Two lanes have the same address on different planes.
    #[error(
        "address {address} is on plane {plane} of lane {lane}, but on another plane of lane {other}; give lanes that share addresses their ports in the same order"
    )]
    LaneAddresses {
        /// The address.
        address: IpAddr,
        /// A lane that has it.
        lane: usize,
        /// Its plane there.
        plane: usize,
        /// The lane that has it on a different plane.
        other: usize,
    },
    /// The lane could not be started.
    #[error(transparent)]
    Lane(#[from] LaneStartError),
    /// The call was made within another control call, or the lane has failed.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The transport refused.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// Memory could not be allocated, registered or accessed.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A number is out of range.
    #[error("{name} is {value}; it must be {allowed}")]
    OutOfRange {
        /// The argument's or field's name.
        name: &'static str,
        /// Its value.
        value: u64,
        /// What is allowed.
        allowed: String,
    },
    /// Objects of two different contexts were combined.
    #[error("the {0} was made by another context; use one context for all objects of a queue pair")]
    OtherContext(&'static str),
    /// The completion queue has no channel to report completions on.
    #[error("the completion queue has no channel; make it with `Context::create_cq_with_channel`")]
    NoChannel,
    /// The system provided no file descriptor, or waiting on it failed.
    #[error("the completion channel cannot be used: {0}")]
    Channel(std::io::Error),
    /// Queue pairs still use a completion queue.
    #[error("{queue_pairs} queue pairs still use the completion queue; drop them first")]
    CqInUse {
        /// How many of them.
        queue_pairs: usize,
    },
    /// A completion queue has ended, and reports no completions any more.
    #[error("the {name} has ended, make another: {end}")]
    CqEnded {
        /// Which one.
        name: &'static str,
        /// How.
        end: CqError,
    },
    /// A queue pair of a context with fallback cannot have this.
    #[error("{0} cannot be used together with fallback; make the queue pair without")]
    NoFallback(&'static str),
    /// A context with fallback has no such queue pair.
    #[error("there is no such queue pair, or its first pair has ended")]
    NoSuchQp,
    /// The peer's offer is not compatible.
    #[error("incompatible peer: {0}")]
    Refused(Box<Refusal>),
}

impl From<Refusal> for VerbsError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(Box::new(refusal))
    }
}

/// A work request was refused; none of it is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// The maximum number of work requests is already outstanding.
    #[error(
        "all {max} work requests are outstanding; wait for completions, or make the queue larger (`QpConfig`, `Context::create_srq`)"
    )]
    QueueFull {
        /// The queue's size.
        max: u32,
    },
    /// The queue pair's state does not allow it: sends need RTS, receives INIT or later.
    #[error(
        "the queue pair is in {0:?}; sends need RTS (see `Qp::connect`), receives INIT or later (see `Qp::init`)"
    )]
    WrongState(QpState),
    /// The queue pair was made with a shared receive queue.
    #[error(
        "the queue pair takes receives from its shared receive queue; post them there (`Srq::post_recv`), or make it without `QpConfig::srq`"
    )]
    SharedReceives,
    /// A write has 1 to 2^32-1 bytes (MRC 1.0 section 5.1), with an immediate too. This peer does not have the
    /// extension [`EMPTY_MESSAGES`](crate::endpoint::Extensions::EMPTY_MESSAGES).
    #[error(
        "the message is empty and the peer takes no empty ones; a message of MRC has at least one byte, with an immediate too"
    )]
    Empty,
    /// The operation needs an extension of MRC that the peer does not have, or that
    /// [`QpConfig::extensions`](super::QpConfig::extensions) does not offer.
    #[error("the operation needs the extension `{needed}` of MRC, and the peers did not agree on it")]
    NotNegotiated {
        /// The extension.
        needed: Extensions,
    },
    /// An atomic operation has 8 bytes.
    #[error("the atomic operation has {len} local bytes; give it an element of 8")]
    AtomicLength {
        /// Bytes of its local elements.
        len: u32,
    },
    /// A read or an atomic operation fills its local elements, so its bytes cannot be copied when it is posted.
    #[error("a read or an atomic operation cannot be inline; give it registered memory to fill")]
    InlineFetch,
    /// A message has at most 2^32-1 bytes (MRC 1.0 section 5.1).
    #[error("the message has {len} bytes; an MRC message has at most 4294967295: make several of it")]
    TooLong {
        /// Bytes of all elements.
        len: u64,
    },
    /// More scatter/gather elements than the queue pair was made for.
    #[error(
        "the request has {count} scatter/gather elements and its queue takes {max}; raise `QpConfig::max_send_sge` or `max_recv_sge` (up to 16)"
    )]
    TooManySges {
        /// Elements given.
        count: usize,
        /// The limit.
        max: u32,
    },
    /// The context's lane has panicked.
    #[error(
        "the context's lane has failed and does no more work; see `Context::failure`, and open another context"
    )]
    LaneFailed,
    /// The queue pair's [`Qp`](super::Qp) has been dropped.
    #[error("the queue pair is gone; keep its `Qp` for as long as others post to it")]
    Dropped,
    /// More bytes than the queue pair takes inline.
    #[error(
        "{len} bytes are more than the {max} that this queue pair takes inline; register them, or raise `QpConfig::max_inline`"
    )]
    InlineTooLong {
        /// Length in bytes.
        len: usize,
        /// The limit in bytes.
        max: u32,
    },
}

/// A list of work requests was not posted completely (the `bad_wr` of `ibv_post_send`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("work request {index} of the list was not taken, nor any after it: {error}")]
pub struct BadWr {
    /// Index of the first request that was refused, from 0. All before it have been posted.
    pub index: usize,
    /// Why it was refused.
    pub error: PostError,
}

/// A completion queue has ended. Its queue pairs are in the error state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CqError {
    /// A completion was lost because the queue was full.
    #[error(
        "the completion queue overran: it holds {depth} completions and more came; poll it more often, or make it as deep as all its queues together"
    )]
    Overrun {
        /// The completions it can hold.
        depth: u32,
    },
    /// The context's lane has panicked. Posted requests were completed as flushed, as far as that was possible.
    #[error(
        "the context's lane has failed and does no more work; see `Context::failure`, and open another context"
    )]
    LaneFailed,
}

impl From<RegionError> for VerbsError {
    fn from(error: RegionError) -> Self {
        Self::Memory(error.into())
    }
}
