//! The system calls of the UDP port that the standard library lacks. All `unsafe` of the UDP port and the
//! pump is here. Linux only.

use std::io;
use std::mem::{size_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd};

use libc::{c_int, c_void, cmsghdr, iovec, mmsghdr, msghdr, sockaddr_in, sockaddr_in6};

use crate::memory::Payload;

fn check(rc: c_int) -> io::Result<()> {
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Sets an integer socket option.
pub(crate) fn set_option(fd: &impl AsRawFd, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    let len = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: the pointer is to a live integer of the length given.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const value).cast(), len) })
}

/// Reads an integer socket option.
pub(crate) fn option(fd: &impl AsRawFd, level: c_int, name: c_int) -> io::Result<c_int> {
    let mut value: c_int = 0;
    let mut len = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: both pointers are to live integers, `len` holds the size of the first.
    check(unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut len) })?;
    Ok(value)
}

/// A socket bound to an address and port that others may have too, if all of them share it (`SO_REUSEPORT`).
pub(crate) fn bind_too(address: SocketAddr) -> io::Result<UdpSocket> {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // SAFETY: takes integers only.
    let fd = unsafe { libc::socket(family, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    check(fd)?;
    // SAFETY: the descriptor is open, a UDP socket's, and nobody else's.
    let socket = unsafe { UdpSocket::from_raw_fd(fd) };
    set_option(&socket, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
    let (raw, len) = RawAddress::new(address);
    // SAFETY: the pointer is to a live socket address of the length given.
    check(unsafe { libc::bind(fd, (&raw const raw).cast(), len as libc::socklen_t) })?;
    Ok(socket)
}

/// Gives the sockets that share an address and port a program that selects one for each datagram.
pub(crate) fn attach_selector(fd: &impl AsRawFd, program: &[libc::sock_filter]) -> io::Result<()> {
    let program =
        libc::sock_fprog { len: program.len() as libc::c_ushort, filter: program.as_ptr().cast_mut() };
    let (level, name) = (libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF);
    let len = size_of::<libc::sock_fprog>() as libc::socklen_t;
    // SAFETY: the pointer is to a live description, of the length given, of a live program, which the kernel copies.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const program).cast(), len) })
}

/// Waits for room in the send buffer.
pub(crate) fn wait_writable(fd: &impl AsRawFd, timeout_us: u32) {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
    let timeout =
        libc::timespec { tv_sec: 0, tv_nsec: libc::c_long::from(timeout_us.min(999_999) as i32) * 1000 };
    // SAFETY: one live pollfd, a live timespec, no signal mask. The outcome does not matter: the caller
    // tries again either way.
    unsafe { libc::ppoll(&raw mut poll, 1, &raw const timeout, std::ptr::null()) };
}

/// Waits for something to receive.
pub(crate) fn wait_readable(fd: &impl AsRawFd, timeout_ms: c_int) {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one live pollfd.
    unsafe { libc::poll(&raw mut poll, 1, timeout_ms) };
}

/// Where a datagram goes and how it is marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Destination {
    pub(crate) address: SocketAddr,
    pub(crate) traffic_class: u8,
}

/// A socket address as the kernel takes it.
#[derive(Clone, Copy)]
#[repr(C)]
union RawAddress {
    v4: sockaddr_in,
    v6: sockaddr_in6,
}

impl RawAddress {
    fn zero() -> Self {
        // SAFETY: all-zero bytes are valid for both.
        unsafe { zeroed() }
    }

    fn new(address: SocketAddr) -> (Self, usize) {
        let mut raw = Self::zero();
        match address {
            SocketAddr::V4(a) => {
                raw.v4 = sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: a.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: a.ip().to_bits().to_be() },
                    sin_zero: [0; 8],
                };
                (raw, size_of::<sockaddr_in>())
            }
            SocketAddr::V6(a) => {
                raw.v6 = sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: a.port().to_be(),
                    sin6_flowinfo: 0,
                    sin6_addr: libc::in6_addr { s6_addr: a.ip().octets() },
                    sin6_scope_id: a.scope_id(),
                };
                (raw, size_of::<sockaddr_in6>())
            }
        }
    }

    /// Address and port; unspecified if the kernel wrote none.
    fn read(&self) -> (IpAddr, u16) {
        // SAFETY: all bytes are initialised and both forms accept any bytes; they start with the family.
        unsafe {
            match c_int::from(self.v4.sin_family) {
                libc::AF_INET => (
                    Ipv4Addr::from_bits(u32::from_be(self.v4.sin_addr.s_addr)).into(),
                    u16::from_be(self.v4.sin_port),
                ),
                libc::AF_INET6 => {
                    (Ipv6Addr::from(self.v6.sin6_addr.s6_addr).into(), u16::from_be(self.v6.sin6_port))
                }
                _ => (Ipv4Addr::UNSPECIFIED.into(), 0),
            }
        }
    }
}

/// Room for control messages, aligned for their headers.
type Control = [u64; 16];

/// Writes control messages one after another.
struct ControlWriter<'a> {
    room: &'a mut Control,
    used: usize,
}

impl ControlWriter<'_> {
    #[expect(
        clippy::cast_ptr_alignment,
        reason = "the room is aligned and every message takes an aligned size"
    )]
    fn put<T: Copy>(&mut self, level: c_int, kind: c_int, value: T) {
        // SAFETY: CMSG_SPACE and CMSG_LEN only compute.
        let (space, len) = unsafe {
            (libc::CMSG_SPACE(size_of::<T>() as u32) as usize, libc::CMSG_LEN(size_of::<T>() as u32))
        };
        if self.used + space > size_of::<Control>() {
            return;
        }
        // SAFETY: header and value end inside `room` as just checked; `used` is a sum of CMSG_SPACEs, so
        // the header is aligned; the value is written unaligned.
        unsafe {
            let header = self.room.as_mut_ptr().cast::<u8>().add(self.used).cast::<cmsghdr>();
            (*header).cmsg_len = len as _;
            (*header).cmsg_level = level;
            (*header).cmsg_type = kind;
            libc::CMSG_DATA(header).cast::<T>().write_unaligned(value);
        }
        self.used += space;
    }
}

fn put_marks(control: &mut Control, to: &Destination, segment: Option<u16>) -> usize {
    let mut writer = ControlWriter { room: control, used: 0 };
    if let Some(size) = segment {
        writer.put(libc::SOL_UDP, libc::UDP_SEGMENT, size);
    }
    if to.traffic_class != 0 {
        let class = c_int::from(to.traffic_class);
        if to.address.is_ipv4() {
            writer.put(libc::IPPROTO_IP, libc::IP_TOS, class);
        } else {
            writer.put(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, class);
        }
    }
    writer.used
}

/// Arrays for gathering, kept so that sending allocates nothing. Empty between calls.
#[derive(Default)]
pub(crate) struct TxScratch {
    iovs: Vec<iovec>,
    headers: Vec<mmsghdr>,
}

// SAFETY: the pointers inside are written, used and forgotten within one call.
unsafe impl Send for TxScratch {}

fn push_pieces<'a>(iovs: &mut Vec<iovec>, pieces: impl IntoIterator<Item = Payload<'a>>) {
    iovs.extend(pieces.into_iter().filter(|piece| !piece.is_empty()).filter_map(|piece| {
        // The kernel only reads what it sends.
        Some(iovec { iov_base: piece.as_ptr()?.cast_mut().cast::<c_void>(), iov_len: piece.len() })
    }));
}

impl TxScratch {
    /// Sends `pieces` joined: as one datagram, or cut by the kernel into datagrams of `segment` bytes.
    pub(crate) fn send<'a>(
        &mut self,
        fd: &impl AsRawFd,
        to: &Destination,
        segment: Option<u16>,
        pieces: impl Iterator<Item = Payload<'a>>,
    ) -> io::Result<()> {
        self.iovs.clear();
        push_pieces(&mut self.iovs, pieces);
        let (mut address, address_len) = RawAddress::new(to.address);
        let mut control: Control = [0; 16];
        let control_len = put_marks(&mut control, to, segment);
        // SAFETY: all-zero bytes are a valid `msghdr`.
        let mut header: msghdr = unsafe { zeroed() };
        header.msg_name = (&raw mut address).cast();
        header.msg_namelen = address_len as libc::socklen_t;
        header.msg_iov = self.iovs.as_mut_ptr();
        header.msg_iovlen = self.iovs.len() as _;
        if control_len > 0 {
            header.msg_control = (&raw mut control).cast();
            header.msg_controllen = control_len as _;
        }
        // SAFETY: name, control and vector are live locals with the lengths given; the pieces are borrowed
        // for 'a, which outlives the call, and the kernel only reads them.
        let sent = unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const header, libc::MSG_DONTWAIT) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Sends each item as one datagram to the same place. Returns how many went; fewer than given if one
    /// of them failed, an error if the first did.
    pub(crate) fn send_each<'a>(
        &mut self,
        fd: &impl AsRawFd,
        to: &Destination,
        datagrams: impl Iterator<Item = [Payload<'a>; 3]>,
    ) -> io::Result<usize> {
        const MOST: usize = 64;
        self.iovs.clear();
        self.headers.clear();
        // Reserved, so that pushing moves nothing that a header already points to.
        self.iovs.reserve(MOST * 3);
        let (mut address, address_len) = RawAddress::new(to.address);
        let mut control: Control = [0; 16];
        let control_len = put_marks(&mut control, to, None);
        for pieces in datagrams.take(MOST) {
            let first = self.iovs.len();
            push_pieces(&mut self.iovs, pieces);
            // SAFETY: all-zero bytes are a valid `mmsghdr`; `first` is at most the vector's length.
            let (mut header, base): (mmsghdr, _) = unsafe { (zeroed(), self.iovs.as_mut_ptr().add(first)) };
            header.msg_hdr.msg_name = (&raw mut address).cast();
            header.msg_hdr.msg_namelen = address_len as libc::socklen_t;
            header.msg_hdr.msg_iov = base;
            header.msg_hdr.msg_iovlen = (self.iovs.len() - first) as _;
            if control_len > 0 {
                header.msg_hdr.msg_control = (&raw mut control).cast();
                header.msg_hdr.msg_controllen = control_len as _;
            }
            self.headers.push(header);
        }
        let (count, flags) = (self.headers.len() as u32, libc::MSG_DONTWAIT);
        // SAFETY: every header points to the live address, control and a part of `iovs`, which did not
        // move; the pieces outlive the call and are only read.
        let sent = unsafe { libc::sendmmsg(fd.as_raw_fd(), self.headers.as_mut_ptr(), count, flags as _) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
    }
}

/// What the kernel told about one received message.
#[derive(Clone, Copy)]
pub(crate) struct Received {
    /// Bytes in the buffer.
    pub(crate) len: usize,
    /// Bytes of each datagram in it but the last, which may be shorter. At least 1.
    pub(crate) segment: usize,
    pub(crate) src: IpAddr,
    pub(crate) src_port: u16,
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
    /// The buffer was too short.
    pub(crate) truncated: bool,
}

/// Buffers for `recvmmsg`.
pub(crate) struct RxBuffers {
    bytes: Vec<u8>,
    stride: usize,
    iovs: Vec<iovec>,
    headers: Vec<mmsghdr>,
    addresses: Vec<RawAddress>,
    controls: Vec<Control>,
    received: Vec<Received>,
}

// SAFETY: the pointers in `iovs` and `headers` are written anew before every use and point into the
// struct's own vectors.
unsafe impl Send for RxBuffers {}

impl RxBuffers {
    /// `count` buffers of `stride` bytes.
    pub(crate) fn new(count: usize, stride: usize) -> Self {
        Self {
            bytes: vec![0; count * stride],
            stride,
            iovs: Vec::with_capacity(count),
            headers: Vec::with_capacity(count),
            addresses: vec![RawAddress::zero(); count],
            controls: vec![[0; 16]; count],
            received: Vec::with_capacity(count),
        }
    }

    /// Takes what has arrived, up to all buffers, without waiting. The messages before are gone.
    pub(crate) fn receive(&mut self, fd: &impl AsRawFd) -> io::Result<usize> {
        self.iovs.clear();
        self.headers.clear();
        self.received.clear();
        for buffer in self.bytes.chunks_exact_mut(self.stride) {
            self.iovs.push(iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() });
        }
        let slots = self.iovs.iter_mut().zip(&mut self.addresses).zip(&mut self.controls);
        for ((iov, address), control) in slots {
            // SAFETY: all-zero bytes are a valid `mmsghdr`.
            let mut header: mmsghdr = unsafe { zeroed() };
            header.msg_hdr.msg_name = std::ptr::from_mut(address).cast();
            header.msg_hdr.msg_namelen = size_of::<RawAddress>() as libc::socklen_t;
            header.msg_hdr.msg_iov = iov;
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_control = control.as_mut_ptr().cast();
            header.msg_hdr.msg_controllen = size_of::<Control>() as _;
            self.headers.push(header);
        }
        let count = self.headers.len() as u32;
        let (headers, flags) = (self.headers.as_mut_ptr(), libc::MSG_DONTWAIT);
        // SAFETY: every header points to a live buffer, address and control area of the lengths given, none
        // of which is borrowed elsewhere.
        let got = unsafe { libc::recvmmsg(fd.as_raw_fd(), headers, count, flags as _, std::ptr::null_mut()) };
        if got < 0 {
            return Err(io::Error::last_os_error());
        }
        for (header, address) in self.headers.iter().zip(&self.addresses).take(got as usize) {
            self.received.push(read_received(header, address));
        }
        Ok(got as usize)
    }

    /// A message of the last `receive`.
    pub(crate) fn message(&self, index: usize) -> Option<(&Received, &[u8])> {
        let received = self.received.get(index)?;
        let bytes = self.bytes.get(index * self.stride..)?.get(..received.len)?;
        Some((received, bytes))
    }
}

fn read_received(header: &mmsghdr, address: &RawAddress) -> Received {
    let (src, src_port) = address.read();
    let len = header.msg_len as usize;
    let truncated = header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
    let mut out =
        Received { len, segment: len.max(1), src, src_port, traffic_class: 0, hop_limit: 0, truncated };
    // SAFETY: the header's control area is the one the kernel just filled, with the length it wrote; the
    // macros stay inside it. Values are as long as their kind says (the byte of IP_TOS, else an integer),
    // and are read unaligned.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(&raw const header.msg_hdr);
        while !at.is_null() {
            let data = libc::CMSG_DATA(at);
            match ((*at).cmsg_level, (*at).cmsg_type) {
                (libc::SOL_UDP, libc::UDP_GRO) => {
                    out.segment = (data.cast::<c_int>().read_unaligned().max(1) as usize).min(out.segment);
                }
                (libc::IPPROTO_IP, libc::IP_TOS) => out.traffic_class = data.read(),
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                    out.traffic_class = data.cast::<c_int>().read_unaligned() as u8;
                }
                (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                    out.hop_limit = data.cast::<c_int>().read_unaligned() as u8;
                }
                _ => {}
            }
            at = libc::CMSG_NXTHDR(&raw const header.msg_hdr, at);
        }
    }
    out
}
