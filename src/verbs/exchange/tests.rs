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

const PATIENCE: Duration = Duration::from_secs(20);

fn info(qpn: u32) -> QpInfo {
    QpInfo {
        versions: MRC_VERSION_1,
        qpn,
        psn: 0xff_ff00,
        mtu: 4096,
        mpr: 32,
        max_wimm: 128,
        caps: Caps { trim_nack: true, dynamic_mpr: false, svc_time: false },
        icrc: true,
        entropy: EntropyFormat::StevSportHigh,
        udp_port: 4971,
        planes: (0..4)
            .map(|p| PlaneAddr { ip: format!("fd00::{p}:{qpn:x}").parse().unwrap(), mac: [p; 6] })
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
    let ours = info(10);
    let theirs = QpInfo {
        mtu: 1024,
        mpr: 8,
        max_wimm: 32,
        udp_port: 4791,
        planes: info(9).planes[..2].to_vec(),
        ..info(11)
    };
    let agreed = negotiate(&ours, &theirs).unwrap();
    assert_eq!((agreed.mtu, agreed.mpr, agreed.max_wimm), (1024, 8, 32));
    assert_eq!((agreed.mpr_dest, agreed.max_wimm_dest), (32, 128));
    assert_eq!((agreed.peer_qpn, agreed.peer_psn, agreed.peer_udp_port), (11, 0xff_ff00, 4791));
    assert_eq!(agreed.planes, [(ours.planes[0], theirs.planes[0]), (ours.planes[1], theirs.planes[1])]);
    assert!(agreed.caps.trim_nack);
}

#[test]
fn what_does_not_fit_is_named() {
    let v4 = PlaneAddr { ip: "192.0.2.1".parse().unwrap(), mac: [0; 6] };
    let cases = [
        (QpInfo { versions: 2, ..info(9) }, "MRC versions (bits)"),
        (QpInfo { icrc: false, ..info(9) }, "icrc"),
        (QpInfo { entropy: EntropyFormat::StevSportLow, ..info(9) }, "entropy format"),
        (QpInfo { entropy: EntropyFormat::Udp, ..info(9) }, "entropy format"),
        (QpInfo { qpn: 2, ..info(9) }, "queue pair number"),
        (QpInfo { qpn: 1 << 24, ..info(9) }, "queue pair number"),
        (QpInfo { psn: 1 << 24, ..info(9) }, "first PSN"),
        (QpInfo { mtu: 128, ..info(9) }, "path MTU"),
        (QpInfo { mtu: 1025, ..info(9) }, "path MTU"),
        (QpInfo { mpr: 0, ..info(9) }, "mpr"),
        (QpInfo { udp_port: 0, ..info(9) }, "UDP port"),
        (QpInfo { planes: vec![], ..info(9) }, "planes"),
        (QpInfo { planes: vec![v4; 33], ..info(9) }, "planes"),
        (QpInfo { planes: vec![v4], ..info(9) }, "IP family of plane 0"),
    ];
    for (theirs, field) in cases {
        assert_eq!(negotiate(&info(10), &theirs).unwrap_err().field, field);
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
                    seen = agreed[0].peer_qpn;
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
