//! Settings of the UDP port, and what can be wrong with them.

use std::io;
use std::net::{IpAddr, Ipv4Addr};

use crate::Steering;
use crate::route::NotReady;

/// The UDP source ports that a port can send from, each one a path through the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourcePorts {
    /// So many, chosen by the kernel.
    Count(usize),
    /// These.
    List(Vec<u16>),
}

/// Whether to use an offload of the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Offload {
    /// If the kernel has it; [`PortCaps::notes`](crate::PortCaps::notes) says if not.
    #[default]
    Auto,
    /// No.
    Off,
}

/// Most source ports of one port: each is a socket.
pub const SOURCE_PORTS_MAX: usize = 16_384;
/// Longest frame on interfaces with a larger MTU, such as `lo` with 65536 bytes: segmentation gains
/// nothing there, and buffers would grow for it. Ethernet header included.
pub const FRAME_MAX: usize = 9014;
/// Smallest MTU in bytes that can be set: what any IPv4 host must take.
pub const MTU_MIN: usize = 576;

/// Settings of a [`UdpPort`](super::UdpPort).
#[derive(Clone, Debug)]
pub struct UdpConfig {
    /// Address of this host that the plane uses. Default 127.0.0.1.
    pub local: IpAddr,
    /// Interface that has the address. It is needed where several interfaces have it, as link-local addresses may be. Default any.
    pub interface: Option<String>,
    /// The peer, if all frames go to one. The port then follows the route to it: it has the rate and MTU of the interface by which
    /// packets leave, takes the MTU of the path, and sends by the interface that has [`local`](Self::local) where that has a route.
    /// Default `None`: what the interface of the address has.
    pub peer: Option<IpAddr>,
    /// UDP port that peers send to. 0: chosen by the kernel, see [`UdpPort::port`](super::UdpPort::port). Default 4971.
    pub port: u16,
    /// Source ports to send from. Default 32 of the kernel's choice. Of [several queues](super::UdpPort::open_queues)
    /// each has so many of its own, or all have those of the list.
    pub source_ports: SourcePorts,
    /// Segmentation offload (`UDP_SEGMENT`): one system call sends a batch. Default `Auto`.
    ///
    /// Over IPv4 the kernel numbers a batch's packets in the IP identification (0, 1, 2, ..), which an invariant CRC covers: the port
    /// changes it as [`batch_ids`](spindrift_wire::batch_ids) tells. A NIC that cuts batches by itself and numbers them otherwise makes the CRCs
    /// wrong for whoever sees the IP header; `Off` sends each packet with identification 0. IPv6 has no such field.
    pub gso: Offload,
    /// Receive coalescing (`UDP_GRO`): the kernel hands over batches. Default `Auto`.
    pub gro: Offload,
    /// Buffers that one receive call fills, 64 KiB each with coalescing. Default 8.
    pub receive_buffers: usize,
    /// Bytes that the kernel may hold for the receive socket. Default 16 MiB; above
    /// `net.core.rmem_max` only with `CAP_NET_ADMIN`, else cut, with a note.
    pub socket_receive_bytes: usize,
    /// Bytes that the kernel may hold for each sending socket. Default 2 MiB.
    pub socket_send_bytes: usize,
    /// Largest IP packet in bytes, if less than the MTU of the path or the interface is wanted. Default: that MTU.
    pub mtu: Option<usize>,
    /// Whether received frames tell their hop limit; otherwise it is 0. Default no.
    pub hop_limit: bool,
}

impl Default for UdpConfig {
    fn default() -> Self {
        Self {
            local: IpAddr::V4(Ipv4Addr::LOCALHOST),
            interface: None,
            peer: None,
            port: 4971,
            source_ports: SourcePorts::Count(32),
            gso: Offload::Auto,
            gro: Offload::Auto,
            receive_buffers: 8,
            socket_receive_bytes: 16 << 20,
            socket_send_bytes: 2 << 20,
            mtu: None,
            hop_limit: false,
        }
    }
}

/// Why a UDP port cannot be opened, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum UdpError {
    /// No interface has the address.
    #[error(
        "{address} is not an address of this host; local addresses are {known} (add one with `ip address add`)"
    )]
    NotLocal {
        /// The address asked for.
        address: IpAddr,
        /// The addresses there are.
        known: String,
    },
    /// Another socket has the port.
    #[error(
        "UDP port {port} on {address} is in use; choose another, or stop the program that `ss -ulnp sport = :{port}` names"
    )]
    PortInUse {
        /// The address asked for.
        address: IpAddr,
        /// The port asked for.
        port: u16,
    },
    /// The kernel has no port left to choose.
    #[error(
        "no free UDP port is left on {address}: all of net.ipv4.ip_local_port_range are in use (`ss -uan` lists them); use fewer \
         source ports, or widen the range with `sysctl`"
    )]
    NoFreePort {
        /// The address asked for.
        address: IpAddr,
    },
    /// The kernel refuses.
    #[error(
        "no permission to use UDP port {port} on {address}; ports below net.ipv4.ip_unprivileged_port_start (1024) need CAP_NET_BIND_SERVICE"
    )]
    Permission {
        /// The address asked for.
        address: IpAddr,
        /// The port asked for.
        port: u16,
    },
    /// Each source port is a file descriptor.
    #[error("too many open files after {opened} source ports; raise `ulimit -n` or use fewer source ports")]
    TooManyFiles {
        /// Sockets opened until then.
        opened: usize,
    },
    /// None, or more than [`SOURCE_PORTS_MAX`].
    #[error("{0} source ports requested; use 1 to {SOURCE_PORTS_MAX}")]
    SourcePortCount(usize),
    /// Given twice, 0, or the port that peers send to.
    #[error("source port {port} is {why}; leave it out of the list")]
    SourcePort {
        /// The port.
        port: u16,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Below [`MTU_MIN`] or above what the interface or the path carries.
    #[error("an MTU of {asked} bytes does not fit: use {MTU_MIN} to {limit}, the MTU of {of}")]
    Mtu {
        /// The setting.
        asked: usize,
        /// The MTU there is.
        limit: usize,
        /// The interface, or the path to the peer.
        of: String,
    },
    /// Another interface than the one asked for has the address, or none.
    #[error("interface {interface} does not have the address {address}; local addresses are {known}")]
    NotOn {
        /// The address asked for.
        address: IpAddr,
        /// The interface asked for.
        interface: String,
        /// The addresses there are.
        known: String,
    },
    /// Duplicate address detection (RFC 4862, section 5.4) stands in the way.
    #[error(transparent)]
    NotReady(#[from] NotReady),
    /// The routing table has none, or the peer could not reply.
    #[error(
        "no route leads from {address} to the peer {peer}; `ip route get {peer} from {address}` tells what the kernel says: \
         use another local address, or add a route"
    )]
    NoRoute {
        /// The local address.
        address: IpAddr,
        /// The peer's.
        peer: IpAddr,
    },
    /// A setting out of its range.
    #[error("receive_buffers is {0}; use 1 to 1024")]
    ReceiveBuffers(usize),
    /// None, or more than a rule tells apart.
    #[error("{0} receive queues requested; use 1 to {max}", max = Steering::QUEUES_MAX)]
    Queues(usize),
    /// Anything else the kernel says.
    #[error("cannot {what}: {source}")]
    Io {
        /// The attempt.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl UdpError {
    /// For `map_err`.
    pub(crate) fn io(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what, source }
    }
}
