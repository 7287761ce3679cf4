//! The system calls of tunnel sockets. All `unsafe` of them is here. Linux only.

use std::io;
use std::net::Ipv6Addr;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use libc::c_int;

fn check(rc: c_int) -> io::Result<()> {
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn socket(family: c_int, kind: c_int, protocol: c_int) -> io::Result<OwnedFd> {
    // SAFETY: takes integers only.
    let fd = unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, protocol) };
    check(fd)?;
    // SAFETY: the descriptor is open, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A socket that sends IPv6 packets with the headers of the caller, by this interface.
///
/// A raw socket learns of a packet that the interface's queue dropped only if it asks for errors. `ICMPv6` errors about its packets do not reach
/// it, since its protocol is not theirs.
pub(super) fn sender(interface: &str) -> io::Result<OwnedFd> {
    let socket = socket(libc::AF_INET6, libc::SOCK_RAW, libc::IPPROTO_RAW)?;
    let (level, name) = (libc::SOL_SOCKET, libc::SO_BINDTODEVICE);
    let len = interface.len() as libc::socklen_t;
    // SAFETY: the pointer is to live bytes of the length given.
    check(unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, interface.as_ptr().cast(), len) })?;
    let (on, len) = (1 as c_int, size_of::<c_int>() as libc::socklen_t);
    let (level, name) = (libc::IPPROTO_IPV6, libc::IPV6_RECVERR);
    // SAFETY: the pointer is to a live integer of the length given.
    check(unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const on).cast(), len) })?;
    Ok(socket)
}

/// A socket that sees IPv6 packets as they arrive on an interface, from the first byte of the outer header on, as far as a program
/// lets them pass.
pub(super) fn receiver(interface: u32, program: &[libc::sock_filter]) -> io::Result<OwnedFd> {
    // Without a protocol it sees nothing until it has its program.
    let socket = socket(libc::AF_PACKET, libc::SOCK_DGRAM, 0)?;
    let fprog =
        libc::sock_fprog { len: program.len() as libc::c_ushort, filter: program.as_ptr().cast_mut() };
    let len = size_of::<libc::sock_fprog>() as libc::socklen_t;
    let (level, name) = (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER);
    // SAFETY: the pointer is to a live description, of the length given, of a live program, which the kernel copies.
    check(unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const fprog).cast(), len) })?;
    // SAFETY: all zeros are an address.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_IPV6 as u16).to_be();
    address.sll_ifindex = interface as c_int;
    let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the pointer is to a live address of the length given.
    check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) })?;
    Ok(socket)
}

/// Sends a packet whose first header is there already.
pub(super) fn send(socket: &OwnedFd, packet: &[u8], to: Ipv6Addr) -> io::Result<()> {
    // SAFETY: all zeros are an address.
    let mut address: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
    address.sin6_family = libc::AF_INET6 as u16;
    address.sin6_addr.s6_addr = to.octets();
    let len = size_of::<libc::sockaddr_in6>() as libc::socklen_t;
    let to = (&raw const address).cast();
    // SAFETY: the pointers are to live bytes and a live address of the lengths given.
    let sent = unsafe { libc::sendto(socket.as_raw_fd(), packet.as_ptr().cast(), packet.len(), 0, to, len) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Takes the next packet, and returns its whole length: more than `buffer` has if it was cut.
pub(super) fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> io::Result<usize> {
    let to = buffer.as_mut_ptr().cast();
    // SAFETY: the pointer is to live bytes of the length given.
    let got = unsafe { libc::recv(socket.as_raw_fd(), to, buffer.len(), libc::MSG_TRUNC) };
    if got < 0 { Err(io::Error::last_os_error()) } else { Ok(got as usize) }
}
