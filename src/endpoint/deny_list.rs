//! The deny list of the host.

use std::sync::Arc;

use crate::path::DenyListStatus;
use crate::wire::Qpn;

use super::{DenyList, Endpoint};

impl Endpoint {
    /// Sets the list of paths that queue pairs avoid as far as they can, in place of an earlier one. Those that are made or
    /// connected from now on follow it, and each other one after [`follow_deny_list`](Self::follow_deny_list).
    pub fn set_deny_list(&mut self, list: Arc<DenyList>) {
        self.deny_list = list;
    }

    /// The list.
    pub const fn deny_list(&self) -> &Arc<DenyList> {
        &self.deny_list
    }

    /// A queue pair follows the list as it is now. It depends on the number of its entropy values and of the rules how
    /// long that takes, so this is not done for all in one call.
    pub fn follow_deny_list(&mut self, qpn: Qpn) {
        if let Some(qp) = self.qps.find(qpn) {
            let slot = qp.slot;
            self.follow_list(slot);
            self.with_paths(qpn, |_| ());
        }
    }

    /// What a queue pair does about the list; `None` if there is no such queue pair, or nothing of its paths is on the list.
    pub fn deny_list_status(&self, qpn: Qpn) -> Option<DenyListStatus> {
        self.qps.find(qpn)?.paths.deny_list_status()
    }

    /// Its paths or its peer are new, or the list is.
    pub(super) fn follow_list(&mut self, slot: u32) {
        let (cx, list) = (&self.cx, &self.deny_list);
        let Some(qp) = self.qps.get_mut(slot) else { return };
        if list.is_empty() && qp.paths.deny_list_status().is_none() {
            return;
        }
        let peer = if qp.receives() { cx.peers.get(qp.peer) } else { None };
        let before = qp.paths.deny_list_status();
        qp.paths.follow_deny_list(|plane, ev| {
            let address = peer.and_then(|peer| peer.ports.get(usize::from(plane))).map(|port| port.ip);
            let Some(ev) = ev else { return list.denies_plane(plane, address) };
            let profile = address.and_then(|address| cx.peers.routes.path(plane, address));
            list.denies_ev(plane, ev, profile)
        });
        let after = qp.paths.deny_list_status();
        if before != after {
            qp.log_deny_list(&cx.peers, after.unwrap_or_default());
        }
    }
}
