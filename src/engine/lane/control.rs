//! Control operations of the verbs layer, called with the lane locked.

use std::sync::Arc;

use super::{Lane, QpEntry};
use crate::endpoint::{CqId, EndpointError, QpInit, QpModify, QpState};
use crate::engine::cq::{CqCore, CqWriter};
use crate::engine::rings::{QpSlot, QpSubmit, qp_rings};
use crate::wire::Qpn;

impl Lane {
    /// The number of queue pairs that report to this completion queue.
    pub(crate) fn cq_users(&self, cq: CqId) -> usize {
        self.qps.iter().flatten().filter(|entry| entry.send_cq == cq || entry.recv_cq == cq).count()
    }

    /// Forgets a completion queue that the application has dropped, if no queue pair reports to it. Otherwise its
    /// completions are dropped from now on, and it is forgotten with the last of its queue pairs here.
    pub(crate) fn drop_cq(&mut self, cq: CqId) {
        if self.cq_users(cq) == 0
            && let Some(place) = self.cqs.get_mut(cq.0 as usize)
        {
            *place = None;
        }
    }

    /// Makes sure that the lane can write to a completion queue.
    fn attach_cq(&mut self, core: &Arc<CqCore>) {
        let index = core.id().0 as usize;
        if self.cqs.len() <= index {
            self.cqs.resize_with(index + 1, || None);
        }
        self.cqs[index].get_or_insert_with(|| CqWriter::new(core, self.number));
    }

    /// Creates a queue pair that reports to these queues, whose numbers are in `init`, sends first.
    pub(crate) fn create_qp(
        &mut self,
        init: QpInit,
        cqs: [&Arc<CqCore>; 2],
    ) -> Result<(Qpn, QpSubmit), EndpointError> {
        let (send_cq, recv_cq, mut cap) = (init.send_cq, init.recv_cq, init.cap);
        let shares_recvs = init.srq.is_some();
        if shares_recvs {
            cap.max_recv_wr = 0;
        }
        let qpn = self.endpoint.create_qp(init)?;
        for cq in cqs {
            self.attach_cq(cq);
        }
        if cap.max_send_sge > 1
            && let Some(info) = self.endpoint.qp_info(qpn)
        {
            self.tx.reserve_gathered(info.mtu as usize);
        }
        let slot = self.free_slots.pop().unwrap_or(self.qps.len() as QpSlot);
        let (submit, intake) = qp_rings(qpn, slot, &self.rings, cap);
        let entry = Some(QpEntry { intake, send_cq, recv_cq, shares_recvs });
        match self.qps.get_mut(slot as usize) {
            Some(place) => *place = entry,
            None => self.qps.push(entry),
        }
        self.slots.insert(qpn, slot);
        Ok((qpn, submit))
    }

    /// The number of the queue pair from now on.
    pub(crate) fn modify_qp(&mut self, qpn: Qpn, change: QpModify) -> Result<Qpn, EndpointError> {
        let before = qpn;
        let qpn = self.endpoint.modify_qp(self.clock.now(), before, change)?;
        if qpn != before
            && let Some(slot) = self.slots.remove(&before)
        {
            self.slots.insert(qpn, slot);
            if let Some(entry) = self.entry(slot) {
                entry.intake.qpn = qpn;
            }
        }
        // ERROR comes with its reason, as an event.
        if let Some(state) = self.endpoint.qp_state(qpn).filter(|&state| state != QpState::Error)
            && let Some(entry) = self.entry_of(qpn)
        {
            entry.intake.set_condition(state, None);
        }
        Ok(qpn)
    }

    /// Destroys a queue pair. The lane must have been drained, so that none of its doorbells is left.
    pub(crate) fn destroy_qp(&mut self, qpn: Qpn) {
        // Not found can only mean that it is gone already.
        let _ = self.endpoint.destroy_qp(qpn);
        self.deliver_events(self.clock.now());
        let Some(slot) = self.slots.remove(&qpn) else { return };
        let Some(entry) = self.qps.get_mut(slot as usize).and_then(Option::take) else { return };
        self.free_slots.push(slot);
        for cq in [entry.send_cq, entry.recv_cq] {
            let abandoned =
                self.cqs.get(cq.0 as usize).and_then(Option::as_ref).is_some_and(CqWriter::is_abandoned);
            if abandoned {
                self.drop_cq(cq);
            }
        }
    }
}
