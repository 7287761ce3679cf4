//! What an endpoint tells its driver.

use crate::wire::Qpn;
use crate::work::Wc;

use super::config::CqId;

/// Why a queue pair went to the error state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailReason {
    /// The application asked for it.
    Requested,
    /// Every retransmission timeout passed without progress.
    RetryExceeded,
    /// The peer refused a packet (AETH NAK).
    PeerRefused,
    /// The peer reported an unexpected event (NACK `UNEXP_EVENT`).
    PeerFatal,
    /// The peer broke the protocol or accessed memory it must not.
    PeerViolation,
    /// A local work request was invalid.
    LocalWorkRequest,
}

/// Something the driver should know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A work completion for this completion queue.
    Completion {
        /// The queue.
        cq: CqId,
        /// The completion.
        wc: Wc,
    },
    /// So many send work requests have left the queue since the last such event, signalled or not.
    SendRetired {
        /// The queue pair.
        qpn: Qpn,
        /// How many.
        count: u32,
    },
    /// The queue pair went to the error state.
    QpFailed {
        /// The queue pair.
        qpn: Qpn,
        /// Why.
        reason: FailReason,
    },
    /// An EV probe asked for by the application was answered.
    EvProbeAnswered {
        /// The queue pair.
        qpn: Qpn,
        /// The id that [`send_ev_probe`](super::Endpoint::send_ev_probe) returned.
        request_id: u16,
        /// Round-trip time, ns.
        rtt_ns: u64,
    },
}
