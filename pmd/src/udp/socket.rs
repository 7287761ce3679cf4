//! Opening the sockets of a UDP port, with errors that say what to do.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6, UdpSocket};

use libc::c_int;

use super::config::UdpError;
use super::sys;
use crate::route::local_addresses;
use crate::{Steering, SteeringException};

/// The addresses of this host, for errors.
pub(crate) fn known_addresses() -> String {
    let Ok(all) = local_addresses() else { return "unknown".to_owned() };
    let mut text: Vec<_> =
        all.iter().map(|local| format!("{} ({})", local.ip, local.interface.name)).collect();
    text.truncate(24);
    text.join(", ")
}

/// Address and port, with the scope that link-local addresses need.
pub(crate) fn socket_address(ip: IpAddr, port: u16, scope: u32) -> SocketAddr {
    match ip {
        IpAddr::V6(v6) if v6.is_unicast_link_local() => SocketAddrV6::new(v6, port, 0, scope).into(),
        ip => SocketAddr::new(ip, port),
    }
}

/// A socket bound to `address`, which no other socket has. `opened` sockets were opened before.
pub(crate) fn bind(address: SocketAddr, opened: usize) -> Result<UdpSocket, UdpError> {
    UdpSocket::bind(address).map_err(|source| explain(source, address, opened))
}

/// Lets sockets of this process [join](bind_too) this one. It was bound as the only one of its address and port, which
/// no other program can take after that unless it belongs to the same user and asks to share them.
pub(crate) fn share(socket: &UdpSocket) -> Result<(), UdpError> {
    sys::set_option(socket, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1).map_err(UdpError::io("share a UDP port"))
}

/// Another socket bound to `address`, where one is that has been [shared](share). The kernel numbers them as they come.
pub(crate) fn bind_too(address: SocketAddr, opened: usize) -> Result<UdpSocket, UdpError> {
    sys::bind_too(address).map_err(|source| explain(source, address, opened))
}

fn explain(source: io::Error, address: SocketAddr, opened: usize) -> UdpError {
    let (ip, port) = (address.ip(), address.port());
    match source.raw_os_error() {
        Some(libc::EADDRNOTAVAIL) => UdpError::NotLocal { address: ip, known: known_addresses() },
        Some(libc::EADDRINUSE | libc::EAGAIN) if port == 0 => UdpError::NoFreePort { address: ip },
        Some(libc::EADDRINUSE) => UdpError::PortInUse { address: ip, port },
        Some(libc::EACCES | libc::EPERM) => UdpError::Permission { address: ip, port },
        Some(libc::EMFILE | libc::ENFILE) => UdpError::TooManyFiles { opened },
        _ => UdpError::Io { what: "bind a UDP socket", source },
    }
}

/// Has the kernel share datagrams out among the sockets that share an address and port, of which this is one.
pub(crate) fn steer(socket: &UdpSocket, steering: &Steering, sockets: usize) -> io::Result<()> {
    sys::attach_selector(socket, &selector(steering, sockets as u32))
}

/// The rule as a classic BPF program, which sees the UDP payload. A load past its end returns 0.
fn selector(steering: &Steering, sockets: u32) -> Vec<libc::sock_filter> {
    const LOAD_BYTE: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let load = |offset: u8| step(LOAD_BYTE, 0, 0, offset.into());
    let mut program = Vec::new();
    if let Some(SteeringException { mask, value, byte }) = steering.exception {
        program.extend([
            load(0),
            step(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 0, 0, mask.into()),
            step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 2, value.into()),
            load(byte),
            // Past the load below.
            step(libc::BPF_JMP | libc::BPF_JA, 0, 0, 1),
        ]);
    }
    program.extend([
        load(steering.byte),
        step(libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K, 0, 0, 4),
        step(libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K, 0, 0, sockets),
        step(libc::BPF_RET | libc::BPF_A, 0, 0, 0),
    ]);
    program
}

/// Which of the two buffers of a socket.
#[derive(Clone, Copy)]
pub(crate) enum Buffer {
    Send,
    Receive,
}

/// Sizes a buffer, by force where allowed. Returns the bytes got, where they are fewer than asked.
pub(crate) fn size_buffer(socket: &UdpSocket, which: Buffer, bytes: usize) -> io::Result<Option<usize>> {
    let (force, plain) = match which {
        Buffer::Send => (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF),
        Buffer::Receive => (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF),
    };
    // The kernel doubles the value for its own overhead.
    let asked = c_int::try_from(bytes).unwrap_or(c_int::MAX).min(c_int::MAX / 2);
    if sys::set_option(socket, libc::SOL_SOCKET, force, asked).is_err() {
        sys::set_option(socket, libc::SOL_SOCKET, plain, asked)?;
    }
    let got = sys::option(socket, libc::SOL_SOCKET, plain)? / 2;
    Ok((got < asked).then_some(got.max(0) as usize))
}

/// Never fragment: send with DF, and let the kernel refuse what is longer than the path MTU.
pub(crate) fn forbid_fragments(socket: &UdpSocket, v4: bool) -> io::Result<()> {
    if v4 {
        sys::set_option(socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)
    } else {
        sys::set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO)
    }
}

/// Fragments what is longer than the path MTU, and nothing else.
pub(crate) fn allow_fragments(socket: &UdpSocket, v4: bool) -> io::Result<()> {
    if v4 {
        sys::set_option(socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_WANT)
    } else {
        sys::set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_WANT)
    }
}

/// Without this the kernel calls a datagram sent that the full queue of the interface dropped (udp(7), `IP_RECVERR`).
/// It also queues ICMP errors, which nobody reads: they may take no more memory than a receive buffer must have.
pub(crate) fn report_full_queues(socket: &UdpSocket, v4: bool) -> io::Result<()> {
    size_buffer(socket, Buffer::Receive, 0)?;
    if v4 {
        sys::set_option(socket, libc::IPPROTO_IP, libc::IP_RECVERR, 1)
    } else {
        sys::set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVERR, 1)
    }
}

/// The hop limit (time to live in IPv4) of what is sent from now on.
pub(crate) fn set_hop_limit(socket: &UdpSocket, v4: bool, limit: u8) -> io::Result<()> {
    let (level, name) =
        if v4 { (libc::IPPROTO_IP, libc::IP_TTL) } else { (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS) };
    sys::set_option(socket, level, name, limit.into())
}

/// Asks for the marks of received datagrams: traffic class, and hop limit if wanted.
pub(crate) fn ask_for_marks(socket: &UdpSocket, v4: bool, hop_limit: bool) -> io::Result<()> {
    let (level, class, hops) = if v4 {
        (libc::IPPROTO_IP, libc::IP_RECVTOS, libc::IP_RECVTTL)
    } else {
        (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, libc::IPV6_RECVHOPLIMIT)
    };
    sys::set_option(socket, level, class, 1)?;
    if hop_limit { sys::set_option(socket, level, hops, 1) } else { Ok(()) }
}

/// Takes datagrams without a checksum, as NICs send them, over IPv6 too, where the kernel takes them for broken otherwise (RFC 6935).
pub(crate) fn take_unchecked(socket: &UdpSocket, v4: bool) -> io::Result<()> {
    if v4 { Ok(()) } else { sys::set_option(socket, libc::SOL_UDP, libc::UDP_NO_CHECK6_RX, 1) }
}

/// Turns receive coalescing on.
pub(crate) fn enable_gro(socket: &UdpSocket) -> io::Result<()> {
    sys::set_option(socket, libc::SOL_UDP, libc::UDP_GRO, 1)
}

/// Whether the kernel knows segmentation offload: it accepts the option (0 leaves it off by default).
pub(crate) fn probe_gso(socket: &UdpSocket) -> io::Result<()> {
    sys::set_option(socket, libc::SOL_UDP, libc::UDP_SEGMENT, 0)
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::Port as _;
    use crate::udp::{UdpConfig, UdpPort};

    /// NICs and ports that build frames send none, over both families.
    #[test]
    fn datagrams_without_a_checksum_are_taken() {
        for local in ["127.0.0.1", "::1"] {
            let local: IpAddr = local.parse().unwrap();
            let mut port = UdpPort::open(&UdpConfig { local, port: 0, ..UdpConfig::default() }).unwrap();
            let sender = UdpSocket::bind((local, 0)).unwrap();
            let (level, name) = match local {
                IpAddr::V4(_) => (libc::SOL_SOCKET, libc::SO_NO_CHECK),
                IpAddr::V6(_) => (libc::SOL_UDP, libc::UDP_NO_CHECK6_TX),
            };
            sys::set_option(&sender, level, name, 1).unwrap();
            sender.send_to(b"no checksum", (local, port.port())).unwrap();
            let mut got = Vec::new();
            for _ in 0..2_000_000 {
                port.rx_burst(0, 8, &mut |frame| got.push(frame.data.to_vec()));
                if !got.is_empty() {
                    break;
                }
            }
            assert_eq!(got, [b"no checksum"], "{local}");
        }
    }
}
