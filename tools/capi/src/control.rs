//! The control sockets of a device, one on each plane, and the plane that a message takes.
//!
//! A host is known by the address of its first plane, which its GIDs have. Its other planes are known as soon as one queue pair has
//! connected to it: then messages for it take another plane if the first one fails.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, Ordering};
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{PoisonError, RwLock};

use spindrift::path::PlaneSet;

use crate::handshake::Number;
use crate::nic::OpenError;

/// Bytes of datagrams that may wait in a control socket, if the system allows as many.
const RECEIVE_BUFFER: c_int = 4 << 20;
/// How long a datagram may wait for room in the system's queue before it is dropped.
const SEND_WAIT_MS: c_int = 100;
/// Hosts whose planes are remembered.
const MAX_HOSTS: usize = 16_384;

/// See the [module documentation](self).
pub(crate) struct Control {
    /// By plane.
    sockets: Vec<UdpSocket>,
    /// The first control port of each host.
    first_port: u16,
    /// The planes of hosts, by the address of the first one.
    hosts: RwLock<BTreeMap<IpAddr, Vec<IpAddr>>>,
    /// The planes that queue pairs use now, and those without a link, as sets.
    serving: AtomicU32,
    down: AtomicU32,
}

/// A socket for control messages. `None`: the port is in use.
fn bind(at: SocketAddr) -> Result<Option<UdpSocket>, OpenError> {
    let socket = match UdpSocket::bind(at) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => return Ok(None),
        bound => bound.map_err(|error| OpenError::Control(at, error))?,
    };
    socket.set_nonblocking(true).map_err(|error| OpenError::Control(at, error))?;
    let (fd, size) = (socket.as_raw_fd(), size_of::<c_int>() as libc::socklen_t);
    let buffer = RECEIVE_BUFFER;
    let bytes = (&raw const buffer).cast();
    // SAFETY: one number, which the call reads. Without it datagrams are lost earlier, as they may be.
    unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, bytes, size) };
    Ok(Some(socket))
}

impl Control {
    /// Takes the first control port that is free on all planes. Its place in the list is the number of the process on its host: the
    /// kernel decides which process is which.
    pub(crate) fn open(
        planes: &[IpAddr],
        standby: PlaneSet,
        first_port: u16,
    ) -> Result<(Self, u32), OpenError> {
        for process in 0..Number::PROCESSES {
            let Some(port) = first_port.checked_add(process as u16) else { break };
            let sockets = planes.iter().map(|plane| bind(SocketAddr::new(*plane, port)));
            if let Some(sockets) = sockets.collect::<Result<Option<Vec<_>>, _>>()? {
                let serving = AtomicU32::new(!standby.0);
                let (hosts, down) = (RwLock::default(), AtomicU32::new(0));
                return Ok((Self { sockets, first_port, hosts, serving, down }, process));
            }
        }
        let first = planes.first().copied().unwrap_or(IpAddr::from([127, 0, 0, 1]));
        Err(OpenError::NoControlPort(first_port, first))
    }

    /// One of the sockets.
    pub(crate) fn fd(&self) -> RawFd {
        self.fds().next().unwrap_or(-1)
    }

    pub(crate) fn fds(&self) -> impl Iterator<Item = RawFd> {
        self.sockets.iter().map(AsRawFd::as_raw_fd)
    }

    pub(crate) const fn first_port(&self) -> u16 {
        self.first_port
    }

    /// The planes of a host, which a queue pair has connected to.
    pub(crate) fn learn(&self, host: IpAddr, planes: impl Iterator<Item = IpAddr>) {
        let planes: Vec<IpAddr> = planes.take(self.sockets.len()).collect();
        let mut hosts = self.hosts.write().unwrap_or_else(PoisonError::into_inner);
        if hosts.len() < MAX_HOSTS || hosts.contains_key(&host) {
            hosts.insert(host, planes);
        }
    }

    /// Whether an address is one of a host.
    pub(crate) fn is_of(&self, host: IpAddr, address: IpAddr) -> bool {
        let known = || {
            let hosts = self.hosts.read().unwrap_or_else(PoisonError::into_inner);
            hosts.get(&host).is_some_and(|planes| planes.contains(&address))
        };
        host == address || known()
    }

    /// The packets of queue pairs take these planes from now on.
    pub(crate) fn set_serving(&self, planes: PlaneSet) {
        self.serving.store(planes.0, Ordering::Relaxed);
    }

    pub(crate) fn set_link(&self, plane: u8, up: bool) {
        let bit = PlaneSet::first(plane + 1).0 & !PlaneSet::first(plane).0;
        if up {
            self.down.fetch_and(!bit, Ordering::Relaxed);
        } else {
            self.down.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// The plane that messages take that are not repeated.
    pub(crate) fn best(&self) -> usize {
        let up = PlaneSet(!self.down.load(Ordering::Relaxed));
        let serving = PlaneSet(up.0 & self.serving.load(Ordering::Relaxed));
        let first = |of: PlaneSet| (0..self.sockets.len()).find(|plane| of.contains(*plane as u8));
        first(serving).or_else(|| first(up)).unwrap_or(0)
    }

    /// Sends a message to a process of a host on a plane, or on the first one if the host is not known to have that. It may be dropped: if the
    /// host cannot be reached, or, unless it may wait, if the system has no room. Returns whether the system has taken it.
    pub(crate) fn send(
        &self,
        (host, process): (IpAddr, u32),
        plane: usize,
        bytes: &[u8],
        may_wait: bool,
    ) -> bool {
        let known = {
            let hosts = self.hosts.read().unwrap_or_else(PoisonError::into_inner);
            let count = hosts.get(&host).map_or(0, Vec::len).max(1);
            let plane = plane % count;
            hosts.get(&host).and_then(|planes| planes.get(plane)).map(|address| (plane, *address))
        };
        let (plane, address) = known.unwrap_or((0, host));
        let to = SocketAddr::new(address, self.first_port.wrapping_add(process as u16));
        let Some(socket) = self.sockets.get(plane) else { return false };
        while let Err(error) = socket.send_to(bytes, to) {
            if error.kind() != io::ErrorKind::WouldBlock || !may_wait {
                return false;
            }
            let mut poll = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
            // SAFETY: one element of this function.
            if unsafe { libc::poll(&raw mut poll, 1, SEND_WAIT_MS) } <= 0 {
                return false;
            }
        }
        true
    }

    /// The next message on a plane.
    pub(crate) fn receive(&self, plane: usize, buffer: &mut [u8]) -> Option<(usize, SocketAddr)> {
        self.sockets.get(plane)?.recv_from(buffer).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(text: &str) -> Vec<IpAddr> {
        text.split(',').map(|part| part.parse().unwrap()).collect()
    }

    /// A list of control ports that no other test uses.
    const PORT: u16 = 23_000;

    fn open(planes: &str, first_port: u16) -> (Control, u32) {
        Control::open(&addresses(planes), PlaneSet(0), first_port).unwrap()
    }

    fn received(control: &Control, plane: usize) -> Option<(Vec<u8>, IpAddr)> {
        let mut buffer = [0; 64];
        let until = std::time::Instant::now() + std::time::Duration::from_millis(50);
        loop {
            if let Some((len, source)) = control.receive(plane, &mut buffer) {
                return Some((buffer[..len].to_vec(), source.ip()));
            }
            if std::time::Instant::now() > until {
                return None;
            }
        }
    }

    #[test]
    fn a_process_has_the_same_port_on_all_planes() {
        let (first, number) = open("127.0.9.1,127.0.9.2", PORT);
        assert_eq!(number, 0);
        // One plane in common is enough for another port; none, and the port is free.
        let (second, number) = open("127.0.9.3,127.0.9.2", PORT);
        assert_eq!(number, 1);
        assert_eq!(open("127.0.9.4", PORT).1, 0);
        drop(second);
        assert_eq!(open("127.0.9.2", PORT).1, 1);
        drop(first);
        assert_eq!(open("127.0.9.2", PORT).1, 0);
    }

    #[test]
    fn messages_take_other_planes_once_those_are_known() {
        let port = PORT + 100;
        let ((a, _), (b, number)) =
            (open("127.0.9.11,127.0.9.12", port), open("127.0.9.21,127.0.9.22", port));
        let [host, second] = [21, 22].map(|last| IpAddr::from([127, 0, 9, last]));
        let from = |plane: u8| IpAddr::from([127, 0, 9, 11 + plane]);
        // Of a host of which nothing is known, the first plane, whichever was asked for.
        assert!(a.send((host, number), 1, b"one", false));
        assert_eq!(received(&b, 0), Some((b"one".to_vec(), from(0))));
        assert!(a.is_of(host, host) && !a.is_of(host, second));
        a.learn(host, [host, second].into_iter());
        assert!(a.is_of(host, second) && !a.is_of(second, host) && !a.is_of(host, from(0)));
        assert!(a.send((host, number), 1, b"two", false));
        assert_eq!(received(&b, 1), Some((b"two".to_vec(), from(1))));
        // The third plane of two is the first one.
        assert!(a.send((host, number), 2, b"three", true));
        assert_eq!(received(&b, 0), Some((b"three".to_vec(), from(0))));
        // Planes that this side does not have are of no use to it.
        let more = [1, 2, 3].map(|last| IpAddr::from([127, 0, 8, last]));
        a.learn(host, more.into_iter());
        assert!(a.is_of(host, more[1]) && !a.is_of(host, more[2]));
    }

    #[test]
    fn the_best_plane_serves_and_has_a_link() {
        let planes = addresses("127.0.9.31,127.0.9.32,127.0.9.33");
        let (control, _) = Control::open(&planes, PlaneSet(0b100), PORT + 200).unwrap();
        assert_eq!(control.best(), 0);
        control.set_link(0, false);
        assert_eq!(control.best(), 1);
        // All that serve are down: better one that stands by.
        control.set_link(1, false);
        assert_eq!(control.best(), 2);
        control.set_link(0, true);
        assert_eq!(control.best(), 0);
        control.set_serving(PlaneSet(0b100));
        assert_eq!(control.best(), 2);
        control.set_link(2, false);
        assert_eq!(control.best(), 0);
        control.set_link(0, false);
        assert_eq!(control.best(), 0, "none has a link");
    }
}
