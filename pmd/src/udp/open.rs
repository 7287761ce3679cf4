//! The steps of opening a UDP port, and the notes it takes where the kernel lacks something.

use std::net::{SocketAddr, UdpSocket};

use super::config::{Offload, SOURCE_PORTS_MAX, SourcePorts, UdpConfig, UdpError};
use super::egress::Egress;
use super::socket::{
    Buffer, ask_for_marks, bind, bind_too, enable_gro, forbid_fragments, probe_gso, report_full_queues,
    share, size_buffer, socket_address, take_unchecked,
};
use super::sys::RxBuffers;

/// Bytes of a receive buffer with coalescing: the longest UDP datagram there is.
pub(crate) const GRO_BUFFER: usize = 65_536;

/// One of the receive queues of an address and UDP port.
#[derive(Clone, Copy)]
pub(super) struct Queue {
    pub(super) number: usize,
    pub(super) of: usize,
}

impl Queue {
    /// The queue of a port that has one.
    pub(super) const ONLY: Self = Self { number: 0, of: 1 };

    /// A socket of this queue, for an address and port that the other queues have too.
    pub(super) fn bind(self, address: SocketAddr, opened: usize) -> Result<UdpSocket, UdpError> {
        if self.number > 0 {
            return bind_too(address, opened);
        }
        let socket = bind(address, opened)?;
        if self.of > 1 {
            share(&socket)?;
        }
        Ok(socket)
    }
}

pub(super) fn set_up_receiver(
    cfg: &UdpConfig,
    socket: &UdpSocket,
    max_frame: usize,
    notes: &mut Vec<String>,
) -> Result<RxBuffers, UdpError> {
    ask_for_marks(socket, cfg.local.is_ipv4(), cfg.hop_limit).map_err(UdpError::io("ask for ECN marks"))?;
    take_unchecked(socket, cfg.local.is_ipv4()).map_err(UdpError::io("take datagrams without a checksum"))?;
    let got = size_buffer(socket, Buffer::Receive, cfg.socket_receive_bytes);
    if let Some(got) = got.map_err(UdpError::io("size the receive buffer"))? {
        let asked = cfg.socket_receive_bytes >> 10;
        notes.push(format!(
            "receive buffer of {} KiB instead of {asked} KiB: raise net.core.rmem_max",
            got >> 10
        ));
    }
    let coalesce = match cfg.gro {
        Offload::Off => false,
        Offload::Auto => match enable_gro(socket) {
            Ok(()) => true,
            Err(e) => {
                notes.push(format!("UDP_GRO not available ({e}): receiving one by one"));
                false
            }
        },
    };
    // Without coalescing many short buffers do the work of one long one.
    let (count, size) = if coalesce {
        (cfg.receive_buffers, GRO_BUFFER)
    } else {
        ((cfg.receive_buffers * 8).min(1024), max_frame.next_multiple_of(64))
    };
    Ok(RxBuffers::new(count, size))
}

pub(super) fn open_senders(
    cfg: &UdpConfig,
    queue: Queue,
    receive_port: u16,
    egress: &mut Egress,
    notes: &mut Vec<String>,
) -> Result<(Vec<UdpSocket>, Vec<u16>), UdpError> {
    let asked: Vec<u16> = match &cfg.source_ports {
        SourcePorts::Count(n) => vec![0; (*n).min(SOURCE_PORTS_MAX + 1)],
        SourcePorts::List(list) => {
            check_list(list, receive_port)?;
            list.clone()
        }
    };
    if asked.is_empty() || asked.len() > SOURCE_PORTS_MAX {
        return Err(UdpError::SourcePortCount(asked.len()));
    }
    let mut sockets = Vec::with_capacity(asked.len());
    let mut ports = Vec::with_capacity(asked.len());
    for port in asked {
        let address = socket_address(cfg.local, port, egress.scope_id());
        // The kernel chooses other ports for each queue.
        let socket =
            if port == 0 { bind(address, sockets.len())? } else { queue.bind(address, sockets.len())? };
        egress.bind(&socket);
        let got = set_up_sender(&socket, cfg.local.is_ipv4(), cfg.socket_send_bytes)?;
        if let Some(got) = got.filter(|_| sockets.is_empty()) {
            let asked = cfg.socket_send_bytes >> 10;
            notes.push(format!(
                "send buffers of {} KiB instead of {asked} KiB: raise net.core.wmem_max",
                got >> 10
            ));
        }
        ports.push(socket.local_addr().map_err(UdpError::io("read the bound port"))?.port());
        sockets.push(socket);
    }
    Ok((sockets, ports))
}

/// Sets the options of a socket that sends. Returns the size of its buffer if that is less than asked for.
pub(super) fn set_up_sender(socket: &UdpSocket, v4: bool, bytes: usize) -> Result<Option<usize>, UdpError> {
    forbid_fragments(socket, v4).map_err(UdpError::io("forbid fragments"))?;
    report_full_queues(socket, v4).map_err(UdpError::io("ask for full queues"))?;
    size_buffer(socket, Buffer::Send, bytes).map_err(UdpError::io("size a send buffer"))
}

fn check_list(list: &[u16], receive_port: u16) -> Result<(), UdpError> {
    for (i, &port) in list.iter().enumerate() {
        let why = if port == 0 {
            "no port"
        } else if port == receive_port {
            "the port that peers send to"
        } else if list[..i].contains(&port) {
            "given twice"
        } else {
            continue;
        };
        return Err(UdpError::SourcePort { port, why });
    }
    Ok(())
}

pub(super) fn use_gso(cfg: &UdpConfig, senders: &[UdpSocket], notes: &mut Vec<String>) -> bool {
    let Some(socket) = senders.first().filter(|_| cfg.gso == Offload::Auto) else { return false };
    match probe_gso(socket) {
        Ok(()) => true,
        Err(e) => {
            notes.push(format!("UDP_SEGMENT not available ({e}): sending one by one"));
            false
        }
    }
}
