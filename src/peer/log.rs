//! Reports of peers through [`tracing`]: changes of ports and planes. `docs/architecture.md` lists the targets and
//! fields.

use core::fmt::Display;
use std::net::IpAddr;

use tracing::field::display;
use tracing::{debug, info, warn};

use crate::path::PlaneSet;

use super::Peers;

impl Peers {
    /// The usable planes to a peer have changed.
    #[cold]
    pub(super) fn log_planes(&self, index: u32, before: PlaneSet) {
        let Some(peer) = self.get(index) else { return };
        let open = peer.reachability.open();
        let ip = peer.ports.first().map(|port| display(port.ip));
        for plane in 0..peer.templates.len() as u8 {
            let (was, is) = (before.contains(plane), open.contains(plane));
            if was && !is {
                warn!(target: "spindrift::plane", peer = ip, plane, "plane to a peer closed");
            } else if is && !was {
                info!(target: "spindrift::plane", peer = ip, plane, "plane to a peer opened");
            }
        }
    }
}

#[cold]
pub(crate) fn local_port(plane: u8, up: bool) {
    if up {
        info!(target: "spindrift::plane", plane, "port is up");
    } else {
        warn!(target: "spindrift::plane", plane, "port is down");
    }
}

#[cold]
pub(super) fn peer_unresponsive(peer: Option<impl Display>) {
    let peer = peer.map(display);
    warn!(target: "spindrift::plane", peer, "peer never answered our port status update");
}

/// A port status update arrived from a peer's address, which may be forged.
#[cold]
pub(crate) fn port_status(source: IpAddr, plane: u8, mask: u32) {
    debug!(target: "spindrift::plane", peer = %source, plane, mask, "port status update");
}
