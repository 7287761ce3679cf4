//! Local addresses, and the routes from them to peers: the interface by which packets leave, and how long they may be.
//!
//! The interface that has an address says little of the way to a peer. An address may be on `lo` while packets leave by one of
//! several NICs; a tunnel or a route may carry less than the interface; of two NICs in one subnet the routing table prefers one.

use std::io;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsFd as _;

use crate::Medium;
use crate::device;
use crate::netlink::{Address, AddressState, Interface, Netlink};
use crate::udp::{socket_address, sys};

/// A port to connect a socket to that sends nothing: `discard`.
const ANY_PORT: u16 = 9;

/// An address of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalAddress {
    /// The address.
    pub ip: IpAddr,
    /// Bits of the network part.
    pub prefix_len: u8,
    /// The interface that has it.
    pub interface: Interface,
    /// Whether it can be used.
    pub state: AddressState,
    /// What a socket address of it needs as scope id: the interface's index if the address is link-local, else 0.
    pub scope_id: u32,
}

/// An address of this host that cannot be used, as duplicate address detection says (RFC 4862, section 5.4).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotReady {
    /// It is not over yet.
    #[error(
        "{address} on {interface} is tentative: the kernel still looks whether another host has it, for a second or two after the \
         interface came up; try again, or add the address with `nodad`"
    )]
    Tentative {
        /// The address.
        address: IpAddr,
        /// Its interface.
        interface: String,
    },
    /// It has found another host.
    #[error(
        "{address} on {interface} is a duplicate: another host on this link has it too; remove it from one of them \
         (`ip address del {address} dev {interface}`)"
    )]
    Duplicate {
        /// The address.
        address: IpAddr,
        /// Its interface.
        interface: String,
    },
}

/// The route from a local address to a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerRoute {
    /// The interface by which packets leave.
    pub interface: Interface,
    /// Whether that is the interface that has the local address, though another may come first in the routing table. A socket
    /// uses it if it is bound to it.
    pub bind: bool,
    /// Longest IP packet in bytes that the kernel lets out: the interface's MTU, the route's, or what path MTU discovery has found,
    /// whichever is least.
    pub mtu: usize,
    /// What packets travel over.
    pub medium: Medium,
}

/// All addresses of this host, with their interfaces; those of IPv4 come first.
///
/// # Errors
/// When the kernel does not list them.
pub fn local_addresses() -> io::Result<Vec<LocalAddress>> {
    let mut netlink = Netlink::open()?;
    let interfaces = netlink.interfaces()?;
    let local = |address: Address| {
        let interface = interfaces.iter().find(|interface| interface.index == address.interface)?;
        Some(LocalAddress {
            ip: address.ip,
            prefix_len: address.prefix_len,
            interface: interface.clone(),
            state: address.state,
            scope_id: address.scope_id(),
        })
    };
    let mut addresses = netlink.addresses()?;
    addresses.sort_by_key(|address| address.ip.is_ipv6());
    Ok(addresses.into_iter().filter_map(local).collect())
}

/// The local address `ip`, on `interface` if several interfaces may have it. All of 127/8 is local (RFC 1122, section 3.2.1.3), and the
/// loopback interface's, whatever part of it is listed.
///
/// # Errors
/// When the kernel does not list the addresses.
pub fn local_address(ip: IpAddr, interface: Option<&str>) -> io::Result<Option<LocalAddress>> {
    let all = local_addresses()?;
    let on = |local: &&LocalAddress| interface.is_none_or(|name| name == local.interface.name);
    let exact = all.iter().filter(on).find(|local| local.ip == ip);
    let v4_loopback = |ip: IpAddr| ip.is_ipv4() && ip.is_loopback();
    let inside = || all.iter().filter(on).find(|local| v4_loopback(ip) && v4_loopback(local.ip));
    Ok(exact.or_else(inside).map(|found| LocalAddress { ip, ..found.clone() }))
}

impl LocalAddress {
    /// Whether the address can be used.
    ///
    /// # Errors
    /// Why it cannot.
    pub fn check(&self) -> Result<(), NotReady> {
        let (address, interface) = (self.ip, self.interface.name.clone());
        match self.state {
            AddressState::Ready => Ok(()),
            AddressState::Tentative => Err(NotReady::Tentative { address, interface }),
            AddressState::Duplicate => Err(NotReady::Duplicate { address, interface }),
        }
    }

    /// The route to a peer. `None`: there is none, or the peer could not reply to this address.
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn route_to(&self, peer: IpAddr) -> io::Result<Option<PeerRoute>> {
        let mut netlink = Netlink::open()?;
        let own = (!self.interface.loopback).then_some(self.interface.index);
        let by_own = own.map_or(Ok(None), |own| netlink.route(self.ip, peer, Some(own)))?;
        // An address of this host is reached within it, whatever the interface.
        let by_own = by_own.filter(|route| !route.local);
        let Some(route) =
            by_own.map_or_else(|| netlink.route(self.ip, peer, None), |route| Ok(Some(route)))?
        else {
            return Ok(None);
        };
        // No other host takes packets from a loopback address.
        if self.ip.is_loopback() && !route.local {
            return Ok(None);
        }
        let Some(interface) = netlink.interface(route.interface)? else { return Ok(None) };
        let bind = by_own.is_some();
        let Some(mtu) = self.path_probe(bind)?.mtu_to(peer)? else { return Ok(None) };
        let medium =
            if route.local { Medium::Host } else { device::medium(netlink.as_fd(), &interface.name) };
        Ok(Some(PeerRoute { interface, bind, mtu, medium }))
    }

    /// Asks the kernel for path MTUs from here on, also from threads that are in other network namespaces.
    ///
    /// # Errors
    /// When the address cannot be used.
    pub(crate) fn path_probe(&self, bind: bool) -> io::Result<PathProbe> {
        let socket = UdpSocket::bind(socket_address(self.ip, 0, self.scope_id))?;
        if bind {
            bind_to_interface(&socket, self.interface.index)?;
        }
        Ok(PathProbe { socket, scope_id: self.scope_id })
    }
}

/// A socket that sends nothing: the kernel tells it the MTU of a path.
#[derive(Debug)]
pub(crate) struct PathProbe {
    socket: UdpSocket,
    scope_id: u32,
}

impl PathProbe {
    /// The longest IP packet in bytes that the kernel lets out to a peer now. `None`: there is no route.
    ///
    /// # Errors
    /// When the kernel does not say.
    pub(crate) fn mtu_to(&self, peer: IpAddr) -> io::Result<Option<usize>> {
        match self.socket.connect(socket_address(peer, ANY_PORT, self.scope_id)) {
            Ok(()) => {}
            Err(error) if is_unreachable(&error) => return Ok(None),
            Err(error) => return Err(error),
        }
        let (level, name) = match peer {
            IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU),
            IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MTU),
        };
        Ok(Some(sys::option(&self.socket, level, name)?.max(0) as usize))
    }
}

/// Has a socket send by one interface alone (`SO_BINDTODEVICE` in socket(7)), whatever the interface is called later.
pub(crate) fn bind_to_interface(socket: &UdpSocket, index: u32) -> io::Result<()> {
    sys::set_option(socket, libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX, index as libc::c_int)
}

fn is_unreachable(error: &io::Error) -> bool {
    let codes = [libc::ENETUNREACH, libc::EHOSTUNREACH, libc::EINVAL, libc::ENETDOWN, libc::EACCES];
    error.raw_os_error().is_some_and(|code| codes.contains(&code))
}
