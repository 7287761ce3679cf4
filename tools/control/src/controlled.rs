//! What a control socket controls.

use std::sync::Arc;

use spindrift::endpoint::{DenyList, Endpoint};
use spindrift::verbs::{Context, VerbsError};
use spindrift::wire::Qpn;

use crate::counters::Totals;
use crate::message::{Moved, PlaneStatus, QpStatus, Role};

/// Queue pairs that one control call visits, so that no lane stops for long.
const QPS_PER_CALL: usize = 16;

/// Queue pairs that can be seen and moved through a control socket. A [`Context`] is the usual case.
pub trait Controlled: Send + 'static {
    /// The number of lanes.
    fn lanes(&self) -> usize;

    /// The ports of the first lane.
    fn planes(&self) -> Vec<PlaneStatus>;

    /// All queue pairs, lane by lane, in ascending order of their numbers.
    ///
    /// # Errors
    /// [`VerbsError`].
    fn queue_pairs(&self) -> Result<Vec<QpStatus>, VerbsError>;

    /// Makes a role of planes the preferred one of the queue pair with this number, or of all.
    ///
    /// # Errors
    /// [`VerbsError`].
    fn prefer(&self, role: Role, queue_pair: Option<u32>) -> Result<Moved, VerbsError>;

    /// Sets the paths that all queue pairs avoid from now on.
    ///
    /// # Errors
    /// [`VerbsError`].
    fn set_deny_list(&self, list: DenyList) -> Result<(), VerbsError>;

    /// What has been counted since the start, of all lanes and queue pairs together.
    ///
    /// # Errors
    /// [`VerbsError`].
    fn counters(&self) -> Result<Totals, VerbsError>;
}

impl Controlled for Context {
    fn lanes(&self) -> usize {
        self.lanes()
    }

    fn planes(&self) -> Vec<PlaneStatus> {
        let ports = self.query_ports();
        ports.iter().filter(|port| port.lane == 0).map(Into::into).collect()
    }

    fn queue_pairs(&self) -> Result<Vec<QpStatus>, VerbsError> {
        let mut queue_pairs = Vec::new();
        visit(self, None, |endpoint, lane, qpn| queue_pairs.extend(QpStatus::of(endpoint, lane, qpn)))?;
        Ok(queue_pairs)
    }

    fn prefer(&self, role: Role, queue_pair: Option<u32>) -> Result<Moved, VerbsError> {
        let mut moved = Moved::default();
        visit(self, queue_pair, |endpoint, _, qpn| {
            let list = if endpoint.role_status(qpn).is_none() {
                &mut moved.without_roles
            } else if endpoint.prefer_role(qpn, role.into()) {
                &mut moved.now
            } else {
                &mut moved.later
            };
            list.push(qpn.get());
        })?;
        Ok(moved)
    }

    fn set_deny_list(&self, list: DenyList) -> Result<(), VerbsError> {
        Self::set_deny_list(self, &Arc::new(list))
    }

    fn counters(&self) -> Result<Totals, VerbsError> {
        let mut totals = Totals::default();
        totals.add(self, |plane| plane)?;
        Ok(totals)
    }
}

/// Calls `act` for the queue pair with this number, or for all: lane by lane, in ascending order.
pub(crate) fn visit(
    context: &Context,
    only: Option<u32>,
    mut act: impl FnMut(&mut Endpoint, usize, Qpn),
) -> Result<(), VerbsError> {
    for lane in 0..context.lanes() {
        let qpns: Vec<Qpn> = context.with_endpoint_of(lane, |endpoint| endpoint.qpns().collect())?;
        let mut wanted: Vec<Qpn> =
            qpns.into_iter().filter(|qpn| only.is_none_or(|only| only == qpn.get())).collect();
        wanted.sort_unstable_by_key(|qpn| qpn.get());
        for some in wanted.chunks(QPS_PER_CALL) {
            context.with_endpoint_of(lane, |endpoint| {
                for &qpn in some {
                    // One that was destroyed meanwhile is passed over.
                    if endpoint.qp_state(qpn).is_some() {
                        act(endpoint, lane, qpn);
                    }
                }
            })?;
        }
    }
    Ok(())
}
