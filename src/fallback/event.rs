//! What an application may want to know, beside completions.

use super::config::FallbackError;
use super::context::QpId;
use super::store::StoreError;
use super::verbs::{Nic, PairId};
use crate::verbs::{AsyncEvent, CqError};

/// What an application may want to know, beside completions.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A pair on this NIC is prepared: the queue pair is armed.
    Prepared {
        /// The queue pair.
        qp: QpId,
        /// The pair.
        pair: PairId,
    },
    /// The sending half of a queue pair uses another pair from now on.
    Switched {
        /// The queue pair.
        qp: QpId,
        /// The pair.
        pair: PairId,
    },
    /// A port of a NIC of this side has lost its link, or has it back.
    Link {
        /// The NIC.
        nic: Nic,
        /// The lane of the port.
        lane: u32,
        /// The port's plane.
        plane: u8,
        /// The link is up.
        up: bool,
    },
    /// A queue pair has failed for good.
    Failed {
        /// The queue pair.
        qp: QpId,
        /// Why.
        error: FallbackError,
    },
    /// The store cannot be used. No pair can be prepared, so a failure of a NIC may be the end of queue pairs.
    StoreFailed(StoreError),
    /// The peer's pair on a NIC cannot be connected to. Without it, a failure of the other NIC is the end.
    PeerRefused {
        /// The queue pair.
        qp: QpId,
        /// Why.
        reason: String,
    },
    /// What else a NIC of this side reports.
    Nic {
        /// The NIC.
        nic: Nic,
        /// Its event.
        event: AsyncEvent,
    },
    /// A NIC of this side does no more work: its lane has failed, or its completion queue has overrun because the depth of
    /// the context is too small.
    NicLost {
        /// The NIC.
        nic: Nic,
        /// Why.
        reason: CqError,
    },
}

impl Event {
    /// Writes it to the log. Events of NICs have been logged there.
    pub(super) fn log(&self) {
        use tracing::{debug, info, warn};
        match self {
            Self::Prepared { qp, pair } => {
                debug!(target: "spindrift::fallback", %qp, nic = %pair.nic, pair = pair.generation, "queue pair prepared");
            }
            Self::Switched { qp, pair } => {
                info!(target: "spindrift::fallback", %qp, nic = %pair.nic, pair = pair.generation, "sends take another queue pair");
            }
            Self::Failed { qp, error } => {
                warn!(target: "spindrift::fallback", %qp, reason = %error, "queue pair failed");
            }
            Self::StoreFailed(error) => {
                warn!(target: "spindrift::fallback", reason = ?error.to_string(), "key-value store cannot be used");
            }
            Self::PeerRefused { qp, reason } => {
                warn!(target: "spindrift::fallback", %qp, ?reason, "cannot connect to a queue pair that the peer has prepared");
            }
            Self::NicLost { nic, reason } => {
                warn!(target: "spindrift::fallback", %nic, %reason, "NIC lost");
            }
            Self::Link { .. } | Self::Nic { .. } => {}
        }
    }
}
