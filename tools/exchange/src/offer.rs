//! What a side tells its peer.

use serde::{Deserialize, Serialize};
use spindrift::endpoint::QpInfo;
use spindrift::verbs::negotiate::RemoteMr;

/// One side's part of the exchange.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// Queue pairs, to be connected to the peer's of the same index.
    pub qps: Vec<QpInfo>,
    /// Memory that the peer may write.
    pub memory: Vec<RemoteMr>,
    /// Whatever the application wants its peer to know; up to [`MAX_APP_BYTES`](super::MAX_APP_BYTES).
    pub app: String,
}
