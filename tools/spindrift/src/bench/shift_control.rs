//! Queue pairs with fallback in mode `shift`, seen and moved through a control socket.

use std::sync::Arc;

use spindrift::endpoint::DenyList;
use spindrift::fallback::{Nic, QpId, SendState};
use spindrift::verbs::VerbsError;
use spindrift::wire::Qpn;
use spindrift_control::{Controlled, Moved, PlaneStatus, QpStatus, Role, RolesStatus, ShiftStatus, Totals};

use super::transport::{Nics, Pair, Two};

/// The queue pairs of a side, with the numbers that its completions have.
pub(super) struct ShiftControl {
    pub(super) two: Two,
    pub(super) qps: Vec<(QpId, Qpn)>,
}

impl ShiftControl {
    fn nics(&self) -> Nics {
        Nics::Two(self.two.clone())
    }

    fn status(&self, qp: QpId, number: Qpn) -> Result<Option<QpStatus>, VerbsError> {
        let nics = self.nics();
        let planes_of = |nic: Nic| self.two.planes(nic).iter().map(|&plane| plane as u8).collect::<Vec<_>>();
        let (in_use, preferred, shift) = self.two.with(|context| {
            let counters = context.counters(qp)?;
            let (nic, qpn) = context.pair(qp)?;
            let shift = ShiftStatus {
                send: context.state(qp)?.0.to_string(),
                prepared: context.is_prepared(qp, nic.other())?,
                switches: counters.switches + counters.switches_by_peer,
                moves: counters.moves,
                repeated: counters.repeated,
                spared: counters.spared,
                failure: context.failure(qp)?.map(|failure| failure.to_string()),
            };
            Ok::<_, VerbsError>(((nic, qpn), context.preferred(qp)?, shift))
        })?;
        let (nic, qpn) = in_use;
        let pair = Pair { nic: nic as usize, lane: 0, qpn };
        let Some(status) = nics.with_endpoint(pair, |endpoint| QpStatus::of(endpoint, 0, qpn))? else {
            return Ok(None);
        };
        let roles = RolesStatus {
            primary: planes_of(Nic::Default),
            standby: planes_of(Nic::Backup),
            serving: planes_of(nic),
            preferred: if preferred == Nic::Default { Role::Primary } else { Role::Standby },
            failovers: shift.switches,
            silent_failovers: 0,
            failbacks: shift.moves,
            hold_ns: 0,
        };
        let up = status.planes.iter().map(|&plane| nics.plane(pair.nic, plane.into()) as u8).collect();
        let (roles, shift) = (Some(roles), Some(shift));
        Ok(Some(QpStatus { queue_pair: number.get(), planes: up, roles, shift, ..status }))
    }
}

impl Controlled for ShiftControl {
    fn lanes(&self) -> usize {
        self.nics().lanes()
    }

    fn planes(&self) -> Vec<PlaneStatus> {
        self.nics().query_ports().iter().map(Into::into).collect()
    }

    fn queue_pairs(&self) -> Result<Vec<QpStatus>, VerbsError> {
        let all = self.qps.iter().map(|&(qp, number)| self.status(qp, number));
        let mut all = all.filter_map(Result::transpose).collect::<Result<Vec<_>, _>>()?;
        all.sort_unstable_by_key(|status| status.queue_pair);
        Ok(all)
    }

    fn prefer(&self, role: Role, queue_pair: Option<u32>) -> Result<Moved, VerbsError> {
        let nic = if role == Role::Primary { Nic::Default } else { Nic::Backup };
        let mut moved = Moved::default();
        for &(qp, number) in &self.qps {
            if queue_pair.is_some_and(|only| only != number.get()) {
                continue;
            }
            let there = self.two.with(|context| {
                context.prefer(qp, nic)?;
                let state = context.state(qp)?.0;
                let steady = matches!(state, SendState::Default | SendState::Fallback);
                Ok::<_, VerbsError>(steady && context.pair(qp)?.0 == nic)
            })?;
            if there { &mut moved.now } else { &mut moved.later }.push(number.get());
        }
        Ok(moved)
    }

    fn set_deny_list(&self, list: DenyList) -> Result<(), VerbsError> {
        for (nic, context) in [Nic::Default, Nic::Backup].into_iter().zip(self.nics().contexts()) {
            let planes: Vec<_> = self.two.planes(nic).iter().map(|&plane| plane as u8).collect();
            context.set_deny_list(&Arc::new(list.of_planes(&planes)))?;
        }
        Ok(())
    }

    fn counters(&self) -> Result<Totals, VerbsError> {
        let (nics, mut totals) = (self.nics(), Totals::default());
        for (nic, context) in nics.contexts().iter().enumerate() {
            totals.add(context, |plane| nics.plane(nic, plane))?;
        }
        Ok(totals)
    }
}
