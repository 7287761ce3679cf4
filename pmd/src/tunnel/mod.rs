//! IPv6 packets in IPv6, with outer headers of the caller's own, through the kernel of this host: for probes, which choose their path by
//! the outer destination.
//!
//! A [`TunnelSocket`] sends by one interface, to the next hop that the kernel's routes have for the outer destination. It sees the packets that
//! arrive there for one inner address as they are on the wire, before the kernel takes the outer header off. It needs `CAP_NET_RAW`.
//!
//! The kernel gets each of these packets, too. It would report that nobody is there (`ICMPv6`), and use up what it may report. So the interface
//! gets the inner address while the socket is open, and a UDP socket takes the packets and drops them. Without `CAP_NET_ADMIN` there is
//! neither, and the kernel's reports are limited by its own rate (`icmp_ratelimit`).

mod sys;

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use spindrift_wire::headers::IPV6_LEN;

use crate::netlink::Netlink;
use crate::route::{LocalAddress, NotReady, local_address};
use crate::udp::{Buffer, size_buffer};

/// Next headers: IPv6 and UDP.
const IN_IPV6: u32 = 41;
const UDP: u32 = 17;

/// See the [module documentation](self).
#[derive(Debug)]
pub struct TunnelSocket {
    sender: OwnedFd,
    receiver: OwnedFd,
    interface: String,
    /// Takes what the kernel gets.
    sink: Option<Sink>,
}

/// The inner address on the interface, and a socket that has it.
struct Sink {
    /// Of the network namespace that the address is in, wherever the socket ends.
    netlink: Netlink,
    interface: u32,
    inner: Ipv6Addr,
    socket: Option<UdpSocket>,
}

impl Sink {
    fn open(interface: u32, inner: Ipv6Addr, port: u16) -> io::Result<Self> {
        let mut netlink = Netlink::open()?;
        netlink.add_receiving_address(interface, inner)?;
        let mut sink = Self { netlink, interface, inner, socket: None };
        let socket = UdpSocket::bind((inner, port))?;
        // Nobody reads what it holds.
        size_buffer(&socket, Buffer::Receive, 0)?;
        sink.socket = Some(socket);
        Ok(sink)
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.socket = None;
        // The address may be gone, as the interface may.
        let _: io::Result<()> = self.netlink.remove_address(self.interface, self.inner);
    }
}

impl fmt::Debug for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sink").field("inner", &self.inner).finish_non_exhaustive()
    }
}

/// A tunnel socket cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum TunnelError {
    /// No interface has the address.
    #[error("{0} is not an address of this host; add it with `ip address add {0}/128 dev INTERFACE`")]
    NotLocal(Ipv6Addr),
    /// Duplicate address detection stands in the way.
    #[error(transparent)]
    NotReady(#[from] NotReady),
    /// The kernel refuses.
    #[error("no permission for raw sockets: run as root, or with the capability CAP_NET_RAW")]
    Permission,
    /// Anything else the kernel says.
    #[error("cannot {what}: {source}")]
    Io {
        /// The attempt.
        what: &'static str,
        /// The kernel's words.
        source: io::Error,
    },
}

fn failed(what: &'static str) -> impl FnOnce(io::Error) -> TunnelError {
    move |source| match source.kind() {
        io::ErrorKind::PermissionDenied => TunnelError::Permission,
        _ => TunnelError::Io { what, source },
    }
}

/// Lets UDP in IPv6 in IPv6 pass that is for this inner address; a classic BPF program.
fn filter(inner: Ipv6Addr) -> Vec<libc::sock_filter> {
    const LOAD_BYTE: u16 = (libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16;
    const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const IS: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const END: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let words = inner.octets();
    let (words, _) = words.as_chunks::<4>();
    let inner_at = IPV6_LEN as u32;
    let mut tests = vec![(LOAD_BYTE, 6, IN_IPV6), (LOAD_BYTE, inner_at + 6, UDP)];
    tests.extend(
        (0..).zip(words).map(|(at, word)| (LOAD_WORD, inner_at + 24 + 4 * at, u32::from_be_bytes(*word))),
    );
    let step = |code, k, jf| libc::sock_filter { code, jt: 0, jf, k };
    let count = tests.len();
    let mut program = Vec::with_capacity(2 * count + 2);
    for (at, (load, offset, wanted)) in tests.into_iter().enumerate() {
        program.push(step(load, offset, 0));
        // Over the tests that are left, and over the end that takes the packet.
        program.push(step(IS, wanted, (2 * (count - at - 1) + 1) as u8));
    }
    program.extend([step(END, u32::MAX, 0), step(END, 0, 0)]);
    program
}

impl TunnelSocket {
    /// Sends by the interface that has the address `outer`, and receives the UDP datagrams that arrive there for the inner address `inner`.
    /// They are sent to this UDP port.
    ///
    /// # Errors
    /// The address is not local, or the kernel refuses.
    pub fn open(outer: Ipv6Addr, inner: Ipv6Addr, port: u16) -> Result<Self, TunnelError> {
        let local =
            local_address(IpAddr::V6(outer), None).map_err(failed("list the addresses of this host"))?;
        let local: LocalAddress = local.ok_or(TunnelError::NotLocal(outer))?;
        local.check()?;
        let name = &local.interface.name;
        let sender = sys::sender(name).map_err(failed("open a raw socket"))?;
        let receiver =
            sys::receiver(local.interface.index, &filter(inner)).map_err(failed("open a packet socket"))?;
        let sink = Sink::open(local.interface.index, inner, port).ok();
        Ok(Self { sender, receiver, interface: name.clone(), sink })
    }

    /// The interface.
    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// Gives the interface the inner address again, which it loses when it goes down. One that has it keeps it.
    pub fn renew(&mut self) {
        if let Some(sink) = &mut self.sink {
            // It may be down again, or gone.
            let _: io::Result<()> = sink.netlink.add_receiving_address(sink.interface, sink.inner);
        }
    }

    /// Sends a packet, the outer header included, by the route to `to`, its outer destination.
    ///
    /// # Errors
    /// The kernel's: no route, a full queue ([`io::ErrorKind::WouldBlock`], or `ENOBUFS`).
    pub fn send(&self, packet: &[u8], to: Ipv6Addr) -> io::Result<()> {
        sys::send(&self.sender, packet, to)
    }

    /// Takes the next packet that has arrived, the outer header included, and returns its length: more than `buffer` has if it was cut.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if there is none now.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        sys::receive(&self.receiver, buffer)
    }
}

/// Readable while there is a packet to receive.
impl AsFd for TunnelSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.receiver.as_fd()
    }
}
