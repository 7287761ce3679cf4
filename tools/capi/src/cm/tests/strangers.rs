//! What listeners make of those who do not speak their language, or not as they should.

use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};

use super::super::message::tests::side;
use super::super::message::{Lookup, Message, Request};
use super::*;

/// Asks a port as a client does: the socket, and the TCP port of the listener.
fn ask(port: u16) -> (UdpSocket, u16) {
    let asks = UdpSocket::bind("127.0.0.1:0").unwrap();
    asks.connect(("127.0.0.1", port)).unwrap();
    asks.set_read_timeout(Some(PATIENCE)).unwrap();
    asks.send(&Lookup { nonce: 5, port: None }.encode()).unwrap();
    let mut answer = [0; 64];
    let len = asks.recv(&mut answer).unwrap();
    let Some(Lookup { nonce: 5, port: Some(tcp) }) = Lookup::decode(&answer[..len]) else {
        panic!("{answer:?}")
    };
    (asks, tcp)
}

#[test]
fn strangers_do_not_disturb_a_listener() {
    let [of_caller, of_called] = [Channel::new(), Channel::new()];
    let (listener, port) = listener(&of_called, port_space::TCP, 0);
    let (asks, tcp) = ask(port);
    asks.send(b"what is this?").unwrap();
    // An answer to a question that nobody has asked.
    asks.send(&Lookup { nonce: 1, port: Some(9) }.encode()).unwrap();
    let mut answer = [0; 64];
    let early = Message::Ready.encode();
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &early, b"SPC\x01\xff\xff"] {
        let mut stranger = TcpStream::connect(("127.0.0.1", tcp)).unwrap();
        stranger.set_read_timeout(Some(PATIENCE)).unwrap();
        stranger.write_all(bytes).unwrap();
        let closed = stranger.read(&mut answer);
        assert!(
            matches!(closed, Ok(0))
                || closed.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset)
        );
    }
    let silent = TcpStream::connect(("127.0.0.1", tcp)).unwrap();
    let caller = routed(&of_caller, port_space::TCP, port);
    connect(caller, b"x");
    let (request, called) = of_called.take();
    assert_eq!(request, seen(event::CONNECT_REQUEST, 0, b"x"));
    drop(silent);
    [caller, called, listener].into_iter().for_each(destroy);
}

/// What a listener refuses without a question leads to no event, whatever the other side says then.
#[test]
fn refused_strangers_are_not_heard() {
    let [of_caller, of_called] = [Channel::new(), Channel::new()];
    let (listener, port) = listener(&of_called, port_space::TCP, 0);
    let (_, tcp) = ask(port);
    let mut answer = [0; 64];
    let of_datagrams = Message::Request(Request { side: side(7), datagrams: true, port: 1, retry: 1 });
    let both = [of_datagrams.encode(), Message::Disconnect.encode()].concat();
    for _ in 0..20 {
        let mut stranger = TcpStream::connect(("127.0.0.1", tcp)).unwrap();
        stranger.set_read_timeout(Some(PATIENCE)).unwrap();
        stranger.write_all(&both).unwrap();
        let _ = stranger.read(&mut answer);
    }
    // Of no host.
    let mut nowhere = side(7);
    nowhere.address = "0.0.0.0".parse().unwrap();
    let request = Message::Request(Request { side: nowhere, datagrams: false, port: 1, retry: 1 });
    let mut stranger = TcpStream::connect(("127.0.0.1", tcp)).unwrap();
    stranger.set_read_timeout(Some(PATIENCE)).unwrap();
    stranger.write_all(&request.encode()).unwrap();
    let caller = routed(&of_caller, port_space::TCP, port);
    connect(caller, b"x");
    let (request, called) = of_called.take();
    assert_eq!(request, seen(event::CONNECT_REQUEST, 0, b"x"), "the first that the program is told");
    assert!(matches!(stranger.read(&mut answer), Ok(0)));
    [caller, called, listener].into_iter().for_each(destroy);
}

/// New connections push out old ones that say nothing.
#[test]
fn silent_strangers_make_room() {
    let [of_caller, of_called] = [Channel::new(), Channel::new()];
    let (listener, port) = listener(&of_called, port_space::TCP, 0);
    let (_, tcp) = ask(port);
    let mut answer = [0; 64];
    let mut strangers: Vec<_> = (0..200).map(|_| TcpStream::connect(("127.0.0.1", tcp)).unwrap()).collect();
    strangers[0].set_read_timeout(Some(PATIENCE)).unwrap();
    assert!(matches!(strangers[0].read(&mut answer), Ok(0)), "the first is closed");
    let caller = routed(&of_caller, port_space::TCP, port);
    connect(caller, b"x");
    let (_, called) = of_called.take();
    [caller, called, listener].into_iter().for_each(destroy);
}
