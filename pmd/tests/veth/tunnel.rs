//! Tunnel sockets between two namespaces: what passes, and what is left in the kernel.

use std::net::Ipv6Addr;
use std::time::{Duration, Instant};

use spindrift_pmd::testing::within;
use spindrift_pmd::tunnel::{TunnelError, TunnelSocket};

use crate::{Namespaces, ip};

const OUTER: [&str; 2] = ["fd98::1", "fd98::2"];
const INNER: [&str; 2] = ["fd98::9b0b:0:1", "fd98::9b0b:0:2"];
const PORT: u16 = 4972;

fn address(text: &str) -> Ipv6Addr {
    text.parse().unwrap()
}

/// UDP in IPv6 in IPv6, with these next headers and this inner destination.
fn packet(to: Ipv6Addr, inner: Ipv6Addr, next: [u8; 2], marker: u8) -> Vec<u8> {
    let header = |len: u16, next: u8, from: Ipv6Addr, to: Ipv6Addr| {
        let mut bytes = vec![0x60, 0, 0, 0];
        bytes.extend(len.to_be_bytes());
        bytes.extend([next, 64]);
        bytes.extend(from.octets());
        bytes.extend(to.octets());
        bytes
    };
    let mut bytes = header(40 + 9, next[0], address(OUTER[0]), to);
    bytes.extend(header(9, next[1], address(INNER[0]), inner));
    bytes.extend(PORT.to_be_bytes());
    bytes.extend(PORT.to_be_bytes());
    bytes.extend([0, 9, 0, 0, marker]);
    bytes
}

fn receive(socket: &TunnelSocket) -> Vec<u8> {
    let (mut buffer, began) = ([0; 200], Instant::now());
    loop {
        match socket.receive(&mut buffer) {
            Ok(len) => return buffer[..len].to_vec(),
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
        }
        assert!(began.elapsed() < Duration::from_mins(1), "it does not arrive");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether an interface of a namespace has an address.
fn has(namespace: &str, address: &str) -> bool {
    let list = std::process::Command::new("ip").args(["-n", namespace, "-6", "address"]).output().unwrap();
    String::from_utf8(list.stdout).unwrap().contains(&format!("{address}/128"))
}

#[test]
fn packets_for_the_inner_address_pass_and_no_others() {
    let Some(net) = Namespaces::new(1511) else {
        eprintln!("SKIPPED: needs root, iproute2 and network namespaces");
        return;
    };
    let open = |side: usize, outer: &str| {
        within(&net.names[side], || TunnelSocket::open(address(outer), address(INNER[side]), PORT))
    };
    let sockets = [0, 1].map(|side| open(side, OUTER[side]).unwrap());
    assert_eq!(sockets.each_ref().map(TunnelSocket::interface), ["sdva", "sdvb"]);
    let (to, inner) = (address(OUTER[1]), address(INNER[1]));
    let send = |bytes: &[u8]| sockets[0].send(bytes, to).unwrap();
    // Other inner addresses, which differ in one word alone, and other headers.
    for word in 0..4 {
        send(&packet(to, Ipv6Addr::from_bits(inner.to_bits() ^ 1 << (32 * word)), [41, 17], 1));
    }
    for next in [[17, 17], [41, 6], [41, 41]] {
        send(&packet(to, inner, next, 2));
    }
    send(&packet(to, inner, [41, 17], 1)[..60]);
    let good = packet(to, inner, [41, 17], 7);
    send(&good);
    assert_eq!(receive(&sockets[1]), good);
    // It is seen as it is on the wire, and cut where the buffer ends.
    send(&good);
    let mut short = [0; 10];
    let began = Instant::now();
    let len = loop {
        if let Ok(len) = sockets[1].receive(&mut short) {
            break len;
        }
        assert!(began.elapsed() < Duration::from_mins(1));
    };
    assert_eq!((len, &short[..]), (good.len(), &good[..10]));
    // An interface that goes down loses the address, and the sockets stay.
    let mut sockets = sockets;
    assert!(ip(&format!("-n {} link set sdvb down", net.names[1])));
    assert!(!has(&net.names[1], INNER[1]));
    assert!(ip(&format!("-n {} link set sdvb up", net.names[1])));
    assert!(ip(&format!("-n {} address replace fd98::2/64 dev sdvb nodad", net.names[1])));
    sockets[1].renew();
    sockets[1].renew();
    assert!(has(&net.names[1], INNER[1]));
    let began = Instant::now();
    while sockets[0].send(&good, to).is_err() || sockets[1].receive(&mut short).is_err() {
        assert!(began.elapsed() < Duration::from_mins(1));
        std::thread::sleep(Duration::from_millis(1));
    }
    // The sender does not see its own, and nothing is left when they are closed.
    assert!(sockets[0].receive(&mut short).is_err());
    assert_eq!([0, 1].map(|side| has(&net.names[side], INNER[side])), [true; 2]);
    drop(sockets);
    assert_eq!([0, 1].map(|side| has(&net.names[side], INNER[side])), [false; 2]);
    // An address that a crash has left is taken over.
    assert!(ip(&format!("-n {} address add {}/128 dev sdva", net.names[0], INNER[0])));
    drop(open(0, OUTER[0]).unwrap());
    assert!(!has(&net.names[0], INNER[0]));
    let error = open(0, OUTER[1]).unwrap_err();
    assert!(matches!(error, TunnelError::NotLocal(_)));
    assert_eq!(
        error.to_string(),
        "fd98::2 is not an address of this host; add it with `ip address add fd98::2/128 dev INTERFACE`"
    );
}

/// The queue of the interface is full: the sender is told, so that nobody takes the packet for one that the network lost.
#[test]
fn a_full_queue_is_told() {
    let Some(net) = Namespaces::new(1511) else {
        eprintln!("SKIPPED: needs root, iproute2 and network namespaces");
        return;
    };
    let open = || TunnelSocket::open(address(OUTER[0]), address(INNER[0]), PORT);
    let socket = within(&net.names[0], open).unwrap();
    let (to, inner) = (address(OUTER[1]), address(INNER[1]));
    let packet = packet(to, inner, [41, 17], 1);
    // The neighbour is known, so that nothing waits for it.
    assert!(ip(&format!("-n {} neighbour replace {to} lladdr 02:00:00:00:00:01 dev sdva", net.names[0])));
    let tc = ["-n", &net.names[0], "qdisc", "replace", "dev", "sdva", "root", "tbf", "rate", "8kbit"];
    let tc = [&tc[..], &["burst", "2000", "limit", "1500"]].concat();
    assert!(std::process::Command::new("tc").args(tc).status().unwrap().success());
    let sent: Vec<_> = (0..100).map(|_| socket.send(&packet, to)).collect();
    assert!(sent[0].is_ok());
    let full = sent.iter().filter_map(|sent| sent.as_ref().err()).collect::<Vec<_>>();
    assert!(full.len() > 50, "{}", full.len());
    assert!(full.iter().all(|error| error.raw_os_error() == Some(libc::ENOBUFS)), "{full:?}");
}
