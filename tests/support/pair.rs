//! Queue pairs that are connected to each other.

use spindrift::endpoint::{QpInfo, QpInit, QpModify, RtrAttr, RtsAttr};
use spindrift::time::Time;
use spindrift::wire::Qpn;

use super::net::Net;

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) node: usize,
    pub(crate) qpn: Qpn,
}

/// How long an end goes on without an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    pub(crate) timeout: u8,
    pub(crate) linear: u8,
    pub(crate) exponential: u8,
}

impl Default for Patience {
    /// For ever, starting from half a millisecond.
    fn default() -> Self {
        Self { timeout: 9, linear: 3, exponential: 25 }
    }
}

pub(crate) fn create(net: &mut Net, node: usize, init: QpInit) -> End {
    let qpn = net.endpoint(node).create_qp(init).expect("queue pair");
    End { node, qpn }
}

pub(crate) fn rts_attr(theirs: &QpInfo, patience: Patience) -> RtsAttr {
    RtsAttr {
        mpr: theirs.mpr,
        max_wimm: theirs.max_wimm,
        timeout: patience.timeout,
        linear_retries: patience.linear,
        exponential_retries: patience.exponential,
        rnr_retry: RtsAttr::MAX_RNR,
        max_rd_atomic: theirs.max_rd_atomic,
        psn: None,
    }
}

/// Takes one end from RESET to RTS.
pub(crate) fn bring_up(net: &mut Net, end: End, theirs: &QpInfo, patience: Patience) {
    bring_up_as(net, end, theirs, rts_attr(theirs, patience), RtrAttr::MIN_RNR_TIMER);
}

/// The same with these attributes.
pub(crate) fn bring_up_as(net: &mut Net, end: End, theirs: &QpInfo, rts: RtsAttr, min_rnr_timer: u8) {
    let now = net.now;
    let endpoint = net.endpoint(end.node);
    let ours = endpoint.qp_info(end.qpn).expect("info");
    endpoint.modify_qp(now, end.qpn, QpModify::Init).expect("INIT");
    let rtr = RtrAttr { min_rnr_timer, ..RtrAttr::between(&ours, theirs) };
    endpoint.modify_qp(now, end.qpn, QpModify::Rtr(Box::new(rtr))).expect("RTR");
    endpoint.modify_qp(now, end.qpn, QpModify::Rts(rts)).expect("RTS");
    net.pump(end.node);
}

/// Connects two queue pairs in RESET.
pub(crate) fn connect(net: &mut Net, a: End, b: End, patience: Patience) {
    let info_a = net.endpoint(a.node).qp_info(a.qpn).expect("info");
    let info_b = net.endpoint(b.node).qp_info(b.qpn).expect("info");
    bring_up(net, a, &info_b, patience);
    bring_up(net, b, &info_a, patience);
}

/// When a requester whose first packet left at `start` and heard nothing gives up: the first wait and `linear` more
/// of one interval, then `exponential` doubling ones.
pub(crate) fn gives_up_at(start: Time, patience: Patience) -> Time {
    let interval = 1024_u64 << patience.timeout;
    let linear = interval * (1 + u64::from(patience.linear));
    let exponential = interval * ((2 << patience.exponential) - 2);
    start.after(linear + exponential)
}
