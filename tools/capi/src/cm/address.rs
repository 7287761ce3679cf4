//! Addresses of C, sockets for ports, and the way to another host.

use core::ffi::c_int;
use core::mem::{MaybeUninit, zeroed};
use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::sync::Arc;

use super::device_of;
use crate::device;

/// How often a port is looked for that is free on all addresses.
const TRIES: usize = 32;

/// The bytes of an address of C.
///
/// # Safety
/// Null, or an address of C with as many bytes as its family has.
pub(crate) unsafe fn read(from: *const libc::sockaddr) -> Result<Option<SocketAddr>, c_int> {
    if from.is_null() {
        return Ok(None);
    }
    // SAFETY: as the caller promises; it may not be aligned for more than its bytes.
    let family = c_int::from(unsafe { (&raw const (*from).sa_family).read_unaligned() });
    match family {
        libc::AF_INET => {
            // SAFETY: as the caller promises.
            let v4 = unsafe { from.cast::<libc::sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Ok(Some(SocketAddr::new(ip.into(), u16::from_be(v4.sin_port))))
        }
        libc::AF_INET6 => {
            // SAFETY: as the caller promises.
            let v6 = unsafe { from.cast::<libc::sockaddr_in6>().read_unaligned() };
            let (ip, port) = (Ipv6Addr::from(v6.sin6_addr.s6_addr), u16::from_be(v6.sin6_port));
            Ok(Some(match ip.to_ipv4_mapped() {
                Some(ip) => SocketAddr::new(ip.into(), port),
                None => SocketAddrV6::new(ip, port, 0, v6.sin6_scope_id).into(),
            }))
        }
        _ => Err(libc::EAFNOSUPPORT),
    }
}

/// An address of C, and its length.
pub(crate) fn write(address: SocketAddr) -> (libc::sockaddr_storage, usize) {
    // SAFETY: all bit patterns are addresses.
    let mut storage: libc::sockaddr_storage = unsafe { zeroed() };
    let to = &raw mut storage;
    let len = match address {
        SocketAddr::V4(v4) => {
            let addr = libc::in_addr { s_addr: u32::from(*v4.ip()).to_be() };
            let c = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: addr,
                sin_zero: [0; 8],
            };
            // SAFETY: the storage has room for each kind of address, and is aligned for it.
            unsafe { to.cast::<libc::sockaddr_in>().write(c) };
            size_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(v6) => {
            let c = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: as above.
            unsafe { to.cast::<libc::sockaddr_in6>().write(c) };
            size_of::<libc::sockaddr_in6>()
        }
    };
    (storage, len)
}

/// No address at all.
pub(crate) fn none() -> libc::sockaddr_storage {
    // SAFETY: all bit patterns are addresses.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

/// The code of an error of a socket.
pub(crate) fn code(error: &io::Error) -> c_int {
    error.raw_os_error().unwrap_or(libc::EIO)
}

fn socket(at: SocketAddr) -> io::Result<Arc<UdpSocket>> {
    let socket = UdpSocket::bind(at)?;
    socket.set_nonblocking(true)?;
    Ok(Arc::new(socket))
}

/// Sockets that have a port: on one address, or on all of the devices' and those of the loopback interface. `v6_only`: `::` stands for no
/// IPv4 address.
pub(crate) fn bind(at: SocketAddr, v6_only: bool) -> Result<Vec<Arc<UdpSocket>>, c_int> {
    if !at.ip().is_unspecified() {
        device_of(at.ip()).ok_or(libc::ENODEV)?;
        return Ok(vec![socket(at).map_err(|error| code(&error))?]);
    }
    let loopback = [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()];
    let planes = device::all().iter().flat_map(|device| device.settings.planes.iter().copied());
    let fits = |ip: &IpAddr| ip.is_ipv4() == at.is_ipv4() || (at.is_ipv6() && !v6_only);
    let ips: BTreeSet<IpAddr> = planes.chain(loopback).filter(fits).collect();
    for _ in 0..TRIES {
        let mut sockets: Vec<Arc<UdpSocket>> = Vec::new();
        let mut port = at.port();
        let bound = ips.iter().try_for_each(|ip| {
            match socket(SocketAddr::new(*ip, port)) {
                Ok(socket) => {
                    port = socket.local_addr().map_or(port, |at| at.port());
                    sockets.push(socket);
                }
                // A host without IPv6, for example.
                Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {}
                Err(error) => return Err(code(&error)),
            }
            Ok(())
        });
        match bound {
            Ok(()) if sockets.is_empty() => return Err(libc::ENODEV),
            Ok(()) => return Ok(sockets),
            Err(libc::EADDRINUSE) if at.port() == 0 => {}
            Err(code) => return Err(code),
        }
    }
    Err(libc::EADDRINUSE)
}

/// A socket that reaches another host from a device. Of `bound`, if the program has chosen a port.
pub(crate) fn reach(
    bound: &[Arc<UdpSocket>],
    from: Option<SocketAddr>,
    to: SocketAddr,
) -> Result<Arc<UdpSocket>, c_int> {
    let here = |ip: IpAddr| {
        let found = bound.iter().find(|socket| socket.local_addr().is_ok_and(|at| at.ip() == ip));
        let port = from.map_or(0, |from| from.port());
        let socket = match found {
            Some(socket) => Arc::clone(socket),
            None => socket(SocketAddr::new(ip, port)).map_err(|error| code(&error))?,
        };
        socket.connect(to).map_err(|error| code(&error))?;
        Ok(socket)
    };
    match bound {
        [one] => return here(one.local_addr().map_err(|error| code(&error))?.ip()),
        _ if from.is_some_and(|from| !from.ip().is_unspecified()) => {
            let ip = from.map_or(to.ip(), |from| from.ip());
            device_of(ip).ok_or(libc::ENODEV)?;
            return here(ip);
        }
        _ => {}
    }
    let any = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { IpAddr::from(Ipv6Addr::UNSPECIFIED) };
    // The kernel looks up the route; nothing is sent.
    let routed = UdpSocket::bind((any, 0)).and_then(|probe| {
        probe.connect(to)?;
        Ok(probe.local_addr()?.ip())
    });
    let routed = routed.map_err(|error| code(&error))?;
    if device_of(routed).is_some() {
        return here(routed);
    }
    // The devices may be on other interfaces than the usual one.
    let firsts = device::all().iter().filter_map(|device| device.settings.planes.first());
    let mut usable =
        firsts.filter(|plane| plane.is_ipv4() == to.is_ipv4()).filter_map(|plane| here(*plane).ok());
    usable.next().ok_or(libc::ENODEV)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn addresses_come_back_as_they_were() {
        for text in ["10.1.2.3:4", "[fd00::7]:65535", "[fe80::9%3]:0", "0.0.0.0:0", "[::]:1"] {
            let address: SocketAddr = text.parse().unwrap();
            let (storage, len) = write(address);
            assert_eq!(len, if address.is_ipv4() { 16 } else { 28 });
            // SAFETY: an address that was just made.
            assert_eq!(unsafe { read((&raw const storage).cast()) }, Ok(Some(address)));
        }
        let mapped = write("[::ffff:10.0.0.1]:7".parse().unwrap()).0;
        // SAFETY: as above; null is none.
        let (mapped, null) = unsafe { (read((&raw const mapped).cast()), read(core::ptr::null())) };
        assert_eq!((mapped, null), (Ok(Some("10.0.0.1:7".parse().unwrap())), Ok(None)));
        let unknown = none();
        // SAFETY: as above.
        assert_eq!(unsafe { read((&raw const unknown).cast()) }, Err(libc::EAFNOSUPPORT));
    }
}
