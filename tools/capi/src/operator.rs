//! The queue pairs of a process as `spindrift ctl` sees and moves them: by the numbers that the program knows.

use std::sync::{Arc, Weak};

use spindrift::endpoint::DenyList;
use spindrift::verbs::VerbsError;
use spindrift_control::{ControlDir, Controlled, Moved, PlaneStatus, QpStatus, Role, Server, Totals};
use spindrift_programs::OperatorFolder;

use crate::connection::QpCore;
use crate::nic::Nic;

/// A device in use. It ends with the process, so nothing is to be seen afterwards.
struct Seen(Weak<Nic>);

impl Seen {
    /// The queue pair with this number on the wire.
    fn by_wire(nic: &Nic, wire: u32) -> Option<Arc<QpCore>> {
        nic.with_wires(|wires| wires.get(&wire).cloned())
    }
}

impl Controlled for Seen {
    fn lanes(&self) -> usize {
        self.0.upgrade().map_or(0, |nic| nic.verbs.lanes())
    }

    fn planes(&self) -> Vec<PlaneStatus> {
        self.0.upgrade().map(|nic| nic.verbs.planes()).unwrap_or_default()
    }

    fn queue_pairs(&self) -> Result<Vec<QpStatus>, VerbsError> {
        let Some(nic) = self.0.upgrade() else { return Ok(Vec::new()) };
        let mut all = nic.verbs.queue_pairs()?;
        for queue_pair in &mut all {
            if let Some(core) = Self::by_wire(&nic, queue_pair.queue_pair) {
                queue_pair.queue_pair = core.number.get();
                if let Some(peer) = &mut queue_pair.peer {
                    peer.queue_pair = core.peer_number();
                }
            }
        }
        all.sort_by_key(|queue_pair| (queue_pair.lane, queue_pair.queue_pair));
        Ok(all)
    }

    fn prefer(&self, role: Role, queue_pair: Option<u32>) -> Result<Moved, VerbsError> {
        let Some(nic) = self.0.upgrade() else { return Ok(Moved::default()) };
        let wire = match queue_pair {
            None => None,
            Some(number) => {
                let known = nic.with_wires(|wires| {
                    let mut cores = wires.values();
                    cores.find(|core| core.number.get() == number).map(|core| core.wire())
                });
                // There is none of this number.
                let Some(wire) = known else { return Ok(Moved::default()) };
                Some(wire)
            }
        };
        let mut moved = nic.verbs.prefer(role, wire)?;
        for number in moved.now.iter_mut().chain(&mut moved.later).chain(&mut moved.without_roles) {
            if let Some(core) = Self::by_wire(&nic, *number) {
                *number = core.number.get();
            }
        }
        Ok(moved)
    }

    fn set_deny_list(&self, list: DenyList) -> Result<(), VerbsError> {
        self.0.upgrade().map_or(Ok(()), |nic| nic.verbs.set_deny_list(&Arc::new(list)))
    }

    fn counters(&self) -> Result<Totals, VerbsError> {
        self.0.upgrade().map_or_else(|| Ok(Totals::default()), |nic| Controlled::counters(&nic.verbs))
    }
}

/// Opens the control socket of a device, for `spindrift ctl`. A process runs without one where it cannot be had.
pub(crate) fn serve(nic: &Arc<Nic>, program: &str, folder: &OperatorFolder) -> Option<Server> {
    let dir = match folder {
        OperatorFolder::None => return None,
        OperatorFolder::Usual => {
            ControlDir::of_user(std::env::var_os("XDG_RUNTIME_DIR").map(std::path::PathBuf::from))
        }
        OperatorFolder::At(path) => ControlDir::at(path),
    };
    let served = Server::start(&dir, program, Seen(Arc::downgrade(nic)));
    if let (Err(error), OperatorFolder::At(_)) = (&served, folder) {
        crate::error::tell("no control socket", error);
    }
    served.ok()
}
