#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::unnecessary_wraps,
    reason = "a failed test is the message"
)]

use std::convert::Infallible;
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread::Scope;
use std::time::Duration;

use super::*;
use crate::endpoint::{PortAddr, QpInfo};

const PATIENCE: Duration = Duration::from_secs(20);

fn info(qpn: u32) -> QpInfo {
    QpInfo {
        version: QpInfo::VERSION,
        qpn,
        psn: 0xff_ff00,
        msn: 5,
        mtu: 4096,
        mpr: 32,
        max_wimm: 128,
        trim_nack: true,
        dynamic_mpr: false,
        icrc: true,
        udp_port: 4971,
        entropy: "stev-sport-high".into(),
        ports: (0..4)
            .map(|p| PortAddr { ip: format!("fd00::{p}:{qpn:x}").parse().unwrap(), mac: [p; 6] })
            .collect(),
    }
}

fn offer(qpn: u32) -> Offer {
    Offer {
        qps: vec![info(qpn)],
        memory: vec![RemoteMr { addr: u64::MAX - 9, rkey: 7, len: 9 }],
        app: "size = 9".into(),
    }
}

/// Runs a client on a thread of its own and a server here; returns what each got.
fn meet<C: Send, S>(
    client: impl FnOnce(SocketAddr) -> C + Send,
    server: impl FnOnce(Channel) -> S,
) -> (C, S) {
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::scope(|scope: &Scope<'_, '_>| {
        let client = scope.spawn(move || client(address));
        let server = server(listener.accept(PATIENCE, || true).unwrap());
        (client.join().unwrap(), server)
    })
}

fn establish(_: &Offer, _: &[Negotiated]) -> Result<(), Infallible> {
    Ok(())
}

#[test]
fn the_smaller_of_both_is_agreed_on() {
    let ours = QpInfo { dynamic_mpr: true, ..info(10) };
    let fewer = info(9).ports[..2].to_vec();
    let theirs = QpInfo { mtu: 1024, mpr: 8, max_wimm: 32, udp_port: 4791, ports: fewer.clone(), ..info(11) };
    let agreed = negotiate(&ours, &theirs).unwrap();
    assert_eq!((agreed.rtr.path_mtu, agreed.mpr, agreed.max_wimm), (1024, 8, 32));
    assert_eq!((agreed.rtr.mpr_dest, agreed.rtr.max_wimm_dest), (32, 128));
    assert_eq!((agreed.rtr.dest_qpn, agreed.rtr.rq_psn.get(), agreed.rtr.udp_port), (11, 0xff_ff00, 4791));
    assert_eq!((agreed.rtr.trim_nack, agreed.rtr.dynamic_mpr), (true, false));
    assert_eq!(agreed.rtr.ports, fewer);
    assert_eq!(negotiate(&theirs, &ours).unwrap().rtr.ports, ours.ports[..2]);
}

#[test]
fn what_does_not_fit_is_named() {
    let v4 = PortAddr { ip: "192.0.2.1".parse().unwrap(), mac: [0; 6] };
    let cases = [
        (QpInfo { version: 2, ..info(9) }, "version"),
        (QpInfo { icrc: false, ..info(9) }, "icrc"),
        (QpInfo { entropy: "stev-sport-low".into(), ..info(9) }, "entropy"),
        (QpInfo { entropy: "x".repeat(1 << 19), ..info(9) }, "entropy"),
        (QpInfo { qpn: 2, ..info(9) }, "qpn"),
        (QpInfo { qpn: 1 << 24, ..info(9) }, "qpn"),
        (QpInfo { psn: 1 << 24, ..info(9) }, "psn"),
        (QpInfo { mtu: 128, ..info(9) }, "mtu"),
        (QpInfo { mpr: 0, ..info(9) }, "mpr"),
        (QpInfo { udp_port: 0, ..info(9) }, "udp_port"),
        (QpInfo { ports: vec![], ..info(9) }, "ports"),
        (QpInfo { ports: vec![v4; 33], ..info(9) }, "ports"),
        (QpInfo { ports: vec![v4], ..info(9) }, "IP family of port 0"),
    ];
    for (theirs, field) in cases {
        let refusal = negotiate(&info(10), &theirs).unwrap_err();
        assert_eq!(refusal.field, field);
        assert!(refusal.theirs.len() < 100);
    }
    let text = negotiate(&info(10), &QpInfo { icrc: false, ..info(9) }).unwrap_err().to_string();
    assert_eq!(text, "icrc: this side has true, the peer has false");
}

#[test]
fn qp_info_survives_any_serde_format() {
    let text = serde_json::to_string(&info(10)).unwrap();
    assert_eq!(serde_json::from_str::<QpInfo>(&text).unwrap(), info(10));
}

#[test]
fn both_sides_learn_the_other_and_may_talk_on() {
    let (client, server) = meet(
        |address| {
            let mut channel = Channel::connect(address, PATIENCE).unwrap();
            let theirs = channel.agree(&offer(10), establish).unwrap();
            channel.barrier().unwrap();
            channel.send(&("result", 42)).unwrap();
            channel.barrier().unwrap();
            theirs
        },
        |mut channel| {
            let mut seen = 0;
            let theirs = channel
                .agree(&offer(11), |_, agreed| {
                    seen = agreed[0].rtr.dest_qpn;
                    Ok::<_, Infallible>(())
                })
                .unwrap();
            channel.barrier().unwrap();
            assert_eq!(channel.receive::<(String, u32)>().unwrap(), ("result".into(), 42));
            assert!(!channel.peer_is_gone());
            channel.barrier().unwrap();
            assert_eq!(seen, 10);
            theirs
        },
    );
    assert_eq!((client, server), (offer(11), offer(10)));
}

#[test]
fn a_refusal_is_seen_on_both_sides() {
    let no_icrc = Offer { qps: vec![QpInfo { icrc: false, ..info(10) }], ..offer(10) };
    let more = Offer { qps: vec![info(10), info(11)], ..offer(10) };
    for (ours, field) in [(no_icrc, "icrc"), (more, "number of queue pairs")] {
        let (client, server) = meet(
            |address| Channel::connect(address, PATIENCE).unwrap().agree(&ours, establish).unwrap_err(),
            |mut channel| channel.agree(&offer(11), establish).unwrap_err(),
        );
        for error in [client, server] {
            let (ExchangeError::Refused(refusal) | ExchangeError::RefusedByPeer(refusal)) = error else {
                panic!("{error}")
            };
            assert_eq!(refusal.field, field);
        }
    }
}

#[test]
fn a_side_that_cannot_establish_tells_why() {
    let (client, server) = meet(
        |address| Channel::connect(address, PATIENCE).unwrap().agree(&offer(10), establish).unwrap_err(),
        |mut channel| channel.agree(&offer(11), |_, _| Err("no route on plane 3")).unwrap_err(),
    );
    assert!(matches!(server, ExchangeError::Refused(_)), "{server}");
    assert!(client.to_string().contains("no route on plane 3"), "{client}");
    assert!(matches!(client, ExchangeError::RefusedByPeer(_)), "{client}");
}

#[test]
fn oversized_offers_are_refused_before_anything_is_sent() {
    let big = Offer { app: "x".repeat(MAX_APP_BYTES + 1), ..offer(10) };
    let (client, server) = meet(
        |address| Channel::connect(address, PATIENCE).unwrap().agree(&big, establish).unwrap_err(),
        |mut channel| channel.agree(&offer(11), establish).unwrap_err(),
    );
    assert!(matches!(client, ExchangeError::Refused(_)), "{client}");
    assert!(matches!(server, ExchangeError::Closed), "{server}");
}

#[test]
fn strangers_and_the_dead_are_errors() {
    let answers: [(&[u8], &str); 4] = [
        (b"", "closed"),
        (b"GET / HTTP/1.1\r\n\r\n", "passes the limit"),
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

#[test]
fn silence_ends_in_a_timeout_and_a_dead_peer_is_noticed() {
    let short = Duration::from_millis(30);
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut channel = Channel::connect(silent.local_addr().unwrap(), short).unwrap();
    let error = channel.agree(&offer(10), establish).unwrap_err();
    assert!(matches!(error, ExchangeError::Timeout { .. }), "{error}");
    assert!(!channel.peer_is_gone());
    let (held, _) = silent.accept().unwrap();
    drop(held);
    channel.set_timeout(PATIENCE);
    assert!(channel.barrier().is_err());
    assert!(channel.peer_is_gone());
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
