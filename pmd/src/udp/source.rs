//! Source ports that a port gets while it is in use.

use std::io;
use std::net::{IpAddr, UdpSocket};

use super::config::{SOURCE_PORTS_MAX, UdpError};
use super::open::set_up_sender;
use super::socket::{allow_fragments, bind_too, socket_address};
use super::{NO_SOCKET, UdpPort};
use crate::route::bind_to_interface;

/// Opens further source ports of a [`UdpPort`]: on any thread, while another one drives the port.
#[derive(Clone, Debug)]
pub struct SourceOpener {
    local: IpAddr,
    scope: u32,
    bound_to: Option<u32>,
    send_bytes: usize,
}

/// A source port that is open, for [`UdpPort::add_source`].
#[derive(Debug)]
pub struct SourceSocket {
    socket: UdpSocket,
    port: u16,
}

impl SourceOpener {
    pub(super) fn new(local: IpAddr, scope: u32, bound_to: Option<u32>, send_bytes: usize) -> Self {
        Self { local, scope, bound_to, send_bytes }
    }

    /// Opens a source port. Other processes of this user may open the same one: nothing is received at it.
    ///
    /// # Errors
    /// Port 0, a port that another socket has for itself, or too many open files.
    pub fn open(&self, port: u16) -> Result<SourceSocket, UdpError> {
        if port == 0 {
            return Err(UdpError::SourcePort { port, why: "no port" });
        }
        let address = socket_address(self.local, port, self.scope);
        let socket = bind_too(address, 0)?;
        if let Some(interface) = self.bound_to {
            // As with those that the port was opened with, the routing table decides if this is not allowed.
            let _: io::Result<()> = bind_to_interface(&socket, interface);
        }
        set_up_sender(&socket, self.local.is_ipv4(), self.send_bytes)?;
        Ok(SourceSocket { socket, port })
    }
}

impl UdpPort {
    /// What opens further source ports of this port.
    pub fn source_opener(&self) -> SourceOpener {
        self.opener.clone()
    }

    /// Sends from a further source port from now on. One that the port has already is dropped, and so is one more than
    /// [`SOURCE_PORTS_MAX`].
    pub fn add_source(&mut self, source: SourceSocket) {
        let Some(place) = self.by_port.get_mut(usize::from(source.port)) else { return };
        if *place != NO_SOCKET || self.senders.len() >= SOURCE_PORTS_MAX {
            return;
        }
        if self.egress.is_shrunk() {
            // What the kernel does not let pass is lost, as with those before.
            let _: io::Result<()> = allow_fragments(&source.socket, self.caps.local_ip.is_ipv4());
        }
        *place = self.senders.len() as u16;
        self.senders.push(source.socket);
        self.hop_limits.push(0);
        self.grouper.add_socket();
        if let Some(ports) = &mut self.caps.source_ports {
            ports.push(source.port);
        }
    }
}
