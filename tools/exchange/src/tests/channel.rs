//! The connection: strangers, silence, waits and looks, and how either side ends.

use super::*;

#[test]
fn strangers_and_the_dead_are_errors() {
    let answers: [(&[u8], &str); 8] = [
        (b"", "closed"),
        (b"GET / HTTP/1.1\r\n\r\n", "the other end speaks HTTP, not the set-up protocol"),
        (b"220 mail\r\n", "an unknown protocol (it begins with \"220 mail"),
        // Less than a length, and then the end.
        (b"6.2", "speaks perftest"),
        (b"\xff", "speaks iperf3"),
        (b"ab", "closed"),
        (b"\0\0\0\x02{}", "does not speak this protocol"),
        (b"\0\0\0\x10{\"type\":\"ready\"}", "out of turn"),
    ];
    for (bytes, says) in answers {
        let (gone, server) = meet(
            |address| TcpStream::connect(address).unwrap().write_all(bytes).is_ok(),
            |mut channel| channel.agree(&offer(11), establish).unwrap_err(),
        );
        assert!(gone && server.to_string().contains(says), "{server}");
    }
}

/// Whatever comes after a message of this protocol is no other protocol; and a side may take less than the protocol allows.
#[test]
fn lengths_after_the_first_message_are_only_lengths() {
    let mut talk = app(&json!("hello"));
    talk.extend_from_slice(b"HTTP");
    let ((), error) = meet(
        |address| TcpStream::connect(address).unwrap().write_all(&talk).unwrap(),
        |mut channel| {
            assert_eq!(channel.receive::<String>().unwrap(), "hello");
            channel.receive::<String>().unwrap_err()
        },
    );
    assert!(matches!(error, ExchangeError::TooLong { max: MAX_MESSAGE_BYTES, .. }), "{error}");
    for (max, fits) in [(99, true), (98, false)] {
        let text = "x".repeat(99 - app(&json!("")).len() + 4);
        let (sent, got) = meet(
            |address| Channel::connect(address, PATIENCE).unwrap().send(&text),
            |mut channel| {
                channel.set_max_message(max);
                channel.receive::<String>()
            },
        );
        assert!(sent.is_ok());
        match got {
            Ok(got) => assert!(fits && got == text),
            Err(error) => {
                assert!(!fits && matches!(error, ExchangeError::TooLong { len: 99, max: 98 }), "{error}");
            }
        }
    }
}

#[test]
fn a_listener_and_its_connections_can_be_polled() {
    let readable = |fd: &dyn AsFd, limit_s: i64| {
        let limit = rustix::event::Timespec { tv_sec: limit_s, tv_nsec: 0 };
        let fd = fd.as_fd();
        let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&limit)).unwrap() == 1
    };
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    assert!(!readable(&listener, 0) && listener.try_accept(PATIENCE).unwrap().is_none());
    let mut client = Channel::connect(listener.local_addr().unwrap(), PATIENCE).unwrap();
    assert!(readable(&listener, 20));
    let mut server = listener.try_accept(PATIENCE).unwrap().unwrap();
    assert!(!readable(&listener, 0) && !readable(&server, 0));
    client.send(&7).unwrap();
    assert!(readable(&server, 20));
    assert_eq!(server.try_receive::<u32>().unwrap(), Some(7));
}

#[test]
fn silence_ends_in_a_timeout_and_a_dead_peer_is_noticed() {
    let short = Duration::from_millis(30);
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut channel = Channel::connect(silent.local_addr().unwrap(), short).unwrap();
    let error = channel.agree(&offer(10), establish).unwrap_err();
    assert!(matches!(error, ExchangeError::Timeout { .. }), "{error}");
    assert_eq!(channel.try_receive::<()>().unwrap(), None);
    let (held, _) = silent.accept().unwrap();
    drop(held);
    channel.set_timeout(PATIENCE);
    assert!(channel.barrier().is_err());
    let error = channel.try_receive::<()>().unwrap_err();
    assert!(matches!(error, ExchangeError::Closed), "{error}");
}

/// What the application sent, as it is on the wire.
fn app(value: &Value) -> Vec<u8> {
    let body = json!({ "type": "app", "app": value }).to_string();
    [&(body.len() as u32).to_be_bytes()[..], body.as_bytes()].concat()
}

/// Looks until there is a message.
fn look_for_text(channel: &mut Channel) -> Result<String, ExchangeError> {
    let deadline = Deadline::after(PATIENCE);
    while deadline.left().is_some() {
        if let Some(text) = channel.try_receive()? {
            return Ok(text);
        }
    }
    panic!("nothing came");
}

#[test]
fn a_look_finds_whole_messages_only_and_the_end_behind_them() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut channel = Channel::connect(listener.local_addr().unwrap(), PATIENCE).unwrap();
    let (mut peer, _) = listener.accept().unwrap();
    peer.set_nodelay(true).unwrap();
    let long = "x".repeat(10_000);
    let messages = [app(&json!("first")), app(&json!(long))].concat();
    let (last, front) = messages.split_last().unwrap();
    // A byte at a time for the first ones: the length and the message are cut everywhere.
    for byte in &front[..100] {
        peer.write_all(&[*byte]).unwrap();
    }
    assert_eq!(look_for_text(&mut channel).unwrap(), "first");
    peer.write_all(&front[100..]).unwrap();
    // All but the last byte is here, or is about to be.
    assert_eq!(channel.try_receive::<String>().unwrap(), None);
    peer.write_all(&[*last]).unwrap();
    drop(peer);
    assert_eq!(look_for_text(&mut channel).unwrap(), long);
    assert!(matches!(look_for_text(&mut channel), Err(ExchangeError::Closed)));
}

/// A look may take a part of a message; what waits for the message then gets all of it.
#[test]
fn a_wait_goes_on_where_a_look_ended() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut channel = Channel::connect(listener.local_addr().unwrap(), PATIENCE).unwrap();
    let (mut peer, _) = listener.accept().unwrap();
    let message = app(&json!(42));
    peer.write_all(&message[..7]).unwrap();
    assert_eq!(channel.try_receive::<u32>().unwrap(), None);
    peer.write_all(&message[7..]).unwrap();
    assert_eq!(channel.receive::<u32>().unwrap(), 42);
}

#[test]
fn a_flag_cancels_what_waits_for_the_peer() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let connect = || Channel::connect(listener.local_addr().unwrap(), PATIENCE).unwrap();
    let flag = Arc::new(AtomicBool::new(false));
    let mut channel = connect();
    channel.cancel_with(Arc::clone(&flag));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| channel.receive::<u32>().unwrap_err());
        flag.store(true, Ordering::Relaxed);
        let error = waiting.join().unwrap();
        assert!(matches!(error, ExchangeError::Cancelled), "{error}");
    });
    // A set-up as well, and a write that the peer does not take.
    let mut channel = connect();
    channel.cancel_with(Arc::clone(&flag));
    assert!(matches!(channel.agree(&offer(10), establish), Err(ExchangeError::Cancelled)));
    let mut channel = connect();
    channel.cancel_with(flag);
    let error = (0..1000).find_map(|_| channel.send(&"x".repeat(1 << 19)).err());
    assert!(matches!(error, Some(ExchangeError::Cancelled)), "{error:?}");
}

/// Wherever the peer is in its set-up, and after it.
#[test]
fn an_abort_tells_the_peer_why() {
    let reason = format!("no\u{1b}[2J\nroom{}", "!".repeat(2000));
    let waits: [fn(Channel) -> ExchangeError; 4] = [
        |mut channel| channel.agree(&offer(11), establish).unwrap_err(),
        |mut channel| channel.barrier().unwrap_err(),
        |mut channel| channel.receive::<u32>().unwrap_err(),
        |mut channel| loop {
            match channel.try_receive::<u32>() {
                Ok(None) => {}
                Ok(Some(_)) => panic!("nothing was sent"),
                Err(error) => return error,
            }
        },
    ];
    for wait in waits {
        let ((), error) = meet(
            |address| {
                let mut channel = Channel::connect(address, PATIENCE).unwrap();
                // The flag that ends a side must not keep its peer from learning why.
                channel.cancel_with(Arc::new(AtomicBool::new(true)));
                channel.abort(&reason).unwrap();
            },
            wait,
        );
        let ExchangeError::Aborted { reason } = error else { panic!("{error}") };
        assert_eq!(reason, format!("no[2Jroom{}", "!".repeat(1000 - 9)));
    }
    // One that does not clean its words.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut channel = Channel::connect(listener.local_addr().unwrap(), PATIENCE).unwrap();
    let (mut peer, _) = listener.accept().unwrap();
    send(&mut peer, json!({ "type": "abort", "reason": reason }).to_string().as_bytes());
    let error = channel.receive::<u32>().unwrap_err().to_string();
    assert_eq!(error, format!("the peer gave up: no[2Jroom{}", "!".repeat(1000 - 9)));
}

/// Closing a connection on which the peer's bytes wait to be read resets it, and the reset can overtake a message.
#[test]
fn the_last_message_arrives_although_the_peer_still_talks() {
    meet(
        |address| {
            let mut channel = Channel::connect(address, PATIENCE).unwrap();
            channel.send_last(&"gave up").unwrap();
        },
        |mut channel| {
            (0..100).for_each(|_| channel.send(&"alive").unwrap());
            assert_eq!(channel.receive::<String>().unwrap(), "gave up");
        },
    );
}

#[test]
fn an_unreachable_peer_and_a_cancelled_wait_are_errors() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = Channel::connect(free, PATIENCE).unwrap_err();
    assert!(matches!(error, ExchangeError::Io { .. }), "{error}");
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    assert!(matches!(listener.accept(PATIENCE, || false), Err(ExchangeError::Cancelled)));
    assert!(Listener::bind(listener.local_addr().unwrap()).is_err());
}
