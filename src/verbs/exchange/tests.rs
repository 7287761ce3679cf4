//! Offers that fit and offers that do not. Tests decision 13 of `docs/protocol.md`.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::unnecessary_wraps,
    reason = "a failed test is the message"
)]

use core::sync::atomic::{AtomicBool, Ordering};
use std::convert::Infallible;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::Scope;
use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::endpoint::{PortAddr, QpInfo};
use crate::engine::Deadline;

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
        plane_ids: Vec::new(),
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
    assert_eq!((agreed.rtr.ports, agreed.planes), (fewer, 2));
    let back = negotiate(&theirs, &ours).unwrap();
    assert_eq!((&back.rtr.ports[..], back.planes), (&ours.ports[..2], 2));
    // The largest numbers there are: this side's limits hold.
    let greedy = QpInfo { mtu: u32::MAX, mpr: 255, max_wimm: u16::MAX, ..info(9) };
    let agreed = negotiate(&ours, &greedy).unwrap();
    assert_eq!((agreed.rtr.path_mtu, agreed.mpr, agreed.max_wimm), (4096, 32, 128));
    // One that takes no writes with immediate is a peer like others; the verbs refuse to post any.
    assert_eq!(negotiate(&ours, &QpInfo { max_wimm: 0, ..info(9) }).unwrap().max_wimm, 0);
}

#[test]
fn planes_pair_by_index_and_their_numbers_must_agree_where_both_tell_them() {
    let with = |qpn, planes: &[u32]| QpInfo {
        ports: info(qpn).ports[..planes.len()].to_vec(),
        plane_ids: planes.to_vec(),
        ..info(qpn)
    };
    for (ours, theirs, fits) in [
        (with(11, &[7, 8, 9]), with(12, &[7, 8, 9]), true),
        (with(11, &[7, 8, 9]), with(12, &[7, 8]), true),
        (with(11, &[7]), with(12, &[7, 8]), true),
        (with(11, &[7, 8, 9]), info(12), true),
        (info(11), with(12, &[3, 2, 1]), true),
        (with(11, &[7, 8]), with(12, &[8, 7]), false),
        (with(11, &[7, 8, 9]), with(12, &[7, 9]), false),
        (with(11, &[7]), with(12, &[8]), false),
    ] {
        for (a, b) in [(&ours, &theirs), (&theirs, &ours)] {
            match negotiate(a, b) {
                Ok(agreed) => assert_eq!((fits, agreed.planes), (true, a.ports.len().min(b.ports.len()))),
                Err(refusal) => assert_eq!((fits, refusal.field.as_str()), (false, "plane_ids")),
            }
        }
    }
    let refusal = negotiate(&with(11, &[7, 8]), &with(12, &[8, 7])).unwrap_err();
    assert_eq!((refusal.ours.as_str(), refusal.theirs.as_str()), ("7, 8", "8, 7"));
    assert!(refusal.fix.contains("same order"), "{refusal}");
}

#[test]
fn what_does_not_fit_is_named() {
    let at = |ip: &str| PortAddr { ip: ip.parse().unwrap(), mac: [0; 6] };
    let v4 = at("192.0.2.1");
    let cases = [
        (QpInfo { version: 2, ..info(9) }, "version"),
        (QpInfo { icrc: false, ..info(9) }, "icrc"),
        (QpInfo { entropy: "stev-sport-low".into(), ..info(9) }, "entropy"),
        (QpInfo { entropy: "x".repeat(1 << 19), ..info(9) }, "entropy"),
        (QpInfo { entropy: "a\u{1b}[2J\n".into(), ..info(9) }, "entropy"),
        (QpInfo { qpn: 2, ..info(9) }, "qpn"),
        (QpInfo { qpn: 1 << 24, ..info(9) }, "qpn"),
        (QpInfo { psn: 1 << 24, ..info(9) }, "psn"),
        (QpInfo { mtu: 128, ..info(9) }, "mtu"),
        (QpInfo { mpr: 0, ..info(9) }, "mpr"),
        (QpInfo { udp_port: 0, ..info(9) }, "udp_port"),
        (QpInfo { ports: vec![], ..info(9) }, "ports"),
        (QpInfo { mtu: 0, ..info(9) }, "mtu"),
        (QpInfo { mtu: 1, ..info(9) }, "mtu"),
        (QpInfo { ports: vec![v4; 33], ..info(9) }, "ports"),
        (QpInfo { ports: vec![v4], ..info(9) }, "IP family of port 0"),
        (QpInfo { ports: vec![info(9).ports[0], v4], ..info(9) }, "IP family of port 1"),
        (QpInfo { ports: vec![info(9).ports[0]; 2], ..info(9) }, "address of port 1"),
        (QpInfo { ports: vec![at("::")], ..info(9) }, "address of port 0"),
        (QpInfo { ports: vec![at("ff02::1")], ..info(9) }, "address of port 0"),
        (QpInfo { plane_ids: vec![1, 2, 3], ..info(9) }, "plane_ids"),
    ];
    for (theirs, field) in cases {
        let refusal = negotiate(&info(10), &theirs).unwrap_err();
        assert_eq!(refusal.field, field);
        assert!(refusal.theirs.len() < 100 && !refusal.to_string().contains(char::is_control));
        assert!(!refusal.ours.is_empty() && !refusal.theirs.is_empty() && !refusal.fix.is_empty());
    }
    let text = negotiate(&info(10), &QpInfo { icrc: false, ..info(9) }).unwrap_err().to_string();
    assert_eq!(
        text,
        "icrc: this side has true, the peer has false; compute the iCRC on both sides or on neither"
    );
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
    let ExchangeError::RefusedByPeer(refusal) = server else { panic!("{server}") };
    assert_eq!((refusal.ours.as_str(), refusal.theirs.as_str()), ("at most 4096", "4097"));

    // Each part is short enough, all of them together are not.
    let ports =
        (0..32).map(|p| PortAddr { ip: format!("fd00::{p}").parse().unwrap(), mac: [255; 6] }).collect();
    let big = Offer { qps: vec![QpInfo { ports, ..info(10) }; MAX_OFFERED], ..offer(10) };
    let (client, server) = meet(
        |address| Channel::connect(address, PATIENCE).unwrap().agree(&big, establish).unwrap_err(),
        |mut channel| channel.agree(&offer(11), establish).unwrap_err(),
    );
    assert!(matches!(client, ExchangeError::TooLong { .. }), "{client}");
    let ExchangeError::RefusedByPeer(refusal) = server else { panic!("{server}") };
    assert_eq!((refusal.field.as_str(), refusal.ours.as_str()), ("bytes of the offer", "at most 1048576"));
}

/// An offer as JSON, to be changed at will.
fn hello() -> Value {
    json!({
        "type": "offer",
        "protocol": "spindrift-exchange",
        "version": 1,
        "offer": offer(10),
    })
}

fn send(stream: &mut TcpStream, body: &[u8]) {
    stream.write_all(&(body.len() as u32).to_be_bytes()).unwrap();
    stream.write_all(body).unwrap();
}

/// All that the other side still says, as JSON.
fn replies(stream: &mut TcpStream) -> Vec<Value> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    let mut rest = bytes.as_slice();
    let mut messages = Vec::new();
    while let Some((prefix, more)) = rest.split_first_chunk() {
        let (body, more) = more.split_at(u32::from_be_bytes(*prefix) as usize);
        messages.push(serde_json::from_slice(body).unwrap());
        rest = more;
    }
    messages
}

/// A peer says `bytes` and listens: what it was told last, and what this side made of it.
fn peer_says(bytes: &[u8]) -> (Value, ExchangeError) {
    meet(
        |address| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(bytes).unwrap();
            let mut told = replies(&mut stream);
            told.pop().unwrap_or(Value::Null)
        },
        |mut channel| channel.agree(&offer(11), establish).unwrap_err(),
    )
}

fn framed(body: &[u8]) -> Vec<u8> {
    [&(body.len() as u32).to_be_bytes(), body].concat()
}

#[test]
fn every_field_that_is_missing_unknown_or_of_another_kind_is_named_on_both_sides() {
    let cases: [(&str, Value, &str); 22] = [
        ("/version", json!(2), "set-up version"),
        ("/protocol", json!("other"), "set-up protocol"),
        ("/extra", json!(1), "message.extra"),
        ("/offer/extra", json!(1), "offer.extra"),
        ("/offer/qps/0/svc_time", json!(true), "qps[0].svc_time"),
        ("/offer/qps/0/ports/1/name", json!("b"), "qps[0].ports[1].name"),
        ("/offer/memory/0/extra", json!([[]]), "memory[0].extra"),
        ("/offer/qps", Value::Null, "offer.qps"),
        ("/offer/qps", json!({}), "offer.qps"),
        ("/offer/qps/0", json!("x"), "qps[0]"),
        ("/offer/qps/0/mtu", Value::Null, "qps[0].mtu"),
        ("/offer/qps/0/mtu", json!(1_u64 << 32), "qps[0].mtu"),
        ("/offer/qps/0/mtu", json!(-1), "qps[0].mtu"),
        ("/offer/qps/0/mtu", json!(0), "mtu"),
        ("/offer/qps/0/mpr", json!(256), "qps[0].mpr"),
        ("/offer/qps/0/entropy", json!("stev-sport-low"), "entropy"),
        ("/offer/qps/0/icrc", json!(false), "icrc"),
        ("/offer/qps/0/udp_port", json!(0), "udp_port"),
        ("/offer/qps/0/version", json!(2), "qps[0].version"),
        ("/offer/qps/0/ports", json!([]), "ports"),
        ("/offer/qps/0/ports/0/ip", json!("nowhere"), "qps[0].ports[0].ip"),
        ("/offer/qps/0/plane_ids", json!([4_u64 << 32]), "qps[0].plane_ids"),
    ];
    for (place, value, field) in cases {
        let mut message = hello();
        let (object, name) = place.rsplit_once('/').unwrap();
        let parent = message.pointer_mut(object).unwrap();
        match (parent, value) {
            (Value::Object(parent), Value::Null) => drop(parent.remove(name)),
            (Value::Object(parent), value) => drop(parent.insert(name.to_owned(), value)),
            (parent, value) => parent[name.parse::<usize>().unwrap()] = value,
        }
        let (told, error) = peer_says(&framed(&serde_json::to_vec(&message).unwrap()));
        let ExchangeError::Refused(refusal) = error else { panic!("{place}: {error}") };
        assert_eq!(refusal.field, field);
        assert_eq!(told["type"], "refuse", "{place}");
        assert_eq!(serde_json::from_value::<Refusal>(told["refusal"].clone()).unwrap(), refusal);
        assert!(!refusal.ours.is_empty() && !refusal.theirs.is_empty() && !refusal.fix.is_empty());
    }
}

/// The largest value of every number and the longest of every list, and the field that is refused then.
fn largest_values() -> [(String, Value, Option<&'static str>); 26] {
    let ports = |count: u32| -> Vec<_> {
        (0..count)
            .map(|p| json!({"ip": format!("fd00::{p:x}"), "mac": [255, 255, 255, 255, 255, 255]}))
            .collect()
    };
    let (u16s, u32s, u64s) = (json!(u16::MAX), json!(u32::MAX), json!(u64::MAX));
    let qp = |name: &str| format!("/offer/qps/0/{name}");
    [
        ("/version".into(), u32s.clone(), Some("set-up version")),
        ("/versions".into(), json!(vec![u32::MAX; 80_000]), None),
        (
            "/offer/qps".into(),
            json!(vec![offer(10).qps[0].clone(); MAX_OFFERED]),
            Some("number of queue pairs"),
        ),
        (
            "/offer/qps".into(),
            json!(vec![offer(10).qps[0].clone(); MAX_OFFERED + 1]),
            Some("number of queue pairs"),
        ),
        ("/offer/memory".into(), json!(vec![offer(10).memory[0]; MAX_OFFERED]), None),
        (
            "/offer/memory".into(),
            json!(vec![offer(10).memory[0]; MAX_OFFERED + 1]),
            Some("number of memory regions"),
        ),
        ("/offer/app".into(), json!("x".repeat(MAX_APP_BYTES)), None),
        ("/offer/app".into(), json!("x".repeat(MAX_APP_BYTES + 1)), Some("bytes of application data")),
        ("/offer/memory/0/addr".into(), u64s.clone(), Some("memory[0]")),
        ("/offer/memory/0/len".into(), u64s, Some("memory[0]")),
        ("/offer/memory/0/len".into(), json!(10), Some("memory[0]")),
        ("/offer/memory/0/rkey".into(), u32s.clone(), None),
        (qp("version"), u32s.clone(), Some("qps[0].version")),
        (qp("qpn"), u32s.clone(), Some("qpn")),
        (qp("qpn"), json!(0xff_ffff), None),
        (qp("psn"), u32s.clone(), Some("psn")),
        (qp("psn"), json!(0xff_ffff), None),
        (qp("msn"), u16s.clone(), None),
        (qp("mtu"), u32s, None),
        (qp("mpr"), json!(255), None),
        (qp("max_wimm"), u16s.clone(), None),
        (qp("udp_port"), u16s, None),
        (qp("entropy"), json!("x".repeat(900_000)), Some("entropy")),
        (qp("ports"), json!(ports(32)), None),
        (qp("ports"), json!(ports(33)), Some("ports")),
        (qp("plane_ids"), json!(vec![u32::MAX; 90_000]), Some("plane_ids")),
    ]
}

/// A peer sends this offer and that it is ready: what it is told last, what this side made of it, and what was agreed on.
fn peer_offers(message: &Value) -> (Value, Result<Offer, ExchangeError>, Option<Negotiated>) {
    let body = serde_json::to_vec(message).unwrap();
    let mut agreed = None;
    let (told, outcome) = meet(
        |address| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(&framed(&body)).unwrap();
            send(&mut stream, br#"{"type":"ready"}"#);
            stream.shutdown(Shutdown::Write).unwrap();
            replies(&mut stream).pop().unwrap()
        },
        |mut channel| {
            channel.agree(&offer(11), |_, found| {
                agreed = found.first().cloned();
                Ok::<_, Infallible>(())
            })
        },
    );
    (told, outcome, agreed)
}

/// What is out of range is refused by name, the rest is limited to what this side has.
#[test]
fn the_largest_value_of_every_field_is_refused_or_limited() {
    for (place, value, field) in largest_values() {
        let mut message = hello();
        message["versions"] = json!([1]);
        *message.pointer_mut(&place).unwrap_or(&mut Value::Null) = value.clone();
        if place == "/offer/qps/0/plane_ids" {
            message["offer"]["qps"][0]["plane_ids"] = value;
        }
        if place == "/version" {
            message["versions"] = json!([u32::MAX]);
        }
        let (told, outcome, agreed) = peer_offers(&message);
        let Some(field) = field else {
            assert!(outcome.is_ok(), "{place}: {outcome:?}");
            let (agreed, ours) = (agreed.unwrap(), info(11));
            assert!(told["type"] == "ready", "{place}: {told}");
            assert!(agreed.rtr.path_mtu <= ours.mtu && agreed.mpr <= ours.mpr, "{place}: {agreed:?}");
            assert!(agreed.max_wimm <= ours.max_wimm && agreed.rtr.ports.len() <= 4, "{place}: {agreed:?}");
            continue;
        };
        let ExchangeError::Refused(refusal) = outcome.unwrap_err() else { panic!("{place}") };
        assert_eq!((&*refusal.field, agreed), (field, None), "{place}");
        assert_eq!(told["refusal"]["field"], field, "{place}");
        assert!(told.to_string().len() < 1500, "{place}: {told}");
    }
}

/// A later version: more fields, and a list of the versions that it speaks.
fn newer(versions: Value) -> Value {
    let mut message = hello();
    message["version"] = json!(3);
    message["versions"] = versions;
    message["colour"] = json!("blue");
    message["offer"]["colour"] = json!("blue");
    message["offer"]["qps"][0]["version"] = json!(3);
    message["offer"]["qps"][0]["svc_time"] = json!(true);
    message["offer"]["qps"][0]["ports"][0]["speed"] = json!(400);
    message["offer"]["memory"][0]["tag"] = json!(1);
    message
}

#[test]
fn a_newer_peer_that_speaks_our_version_is_accepted() {
    let (told, server) = meet(
        |address| {
            let mut stream = TcpStream::connect(address).unwrap();
            send(&mut stream, &serde_json::to_vec(&newer(json!([1, 2, 3]))).unwrap());
            send(&mut stream, br#"{"type":"ready"}"#);
            stream.shutdown(Shutdown::Write).unwrap();
            replies(&mut stream)
        },
        |mut channel| {
            let mut agreed = Vec::new();
            let theirs = channel
                .agree(&offer(11), |_, found| {
                    agreed = found.to_vec();
                    Ok::<_, Infallible>(())
                })
                .unwrap();
            assert_eq!(agreed[0].rtr.dest_qpn, 10);
            theirs
        },
    );
    assert_eq!(server, offer(10));
    assert_eq!((&told[0]["versions"], &told[1]["type"]), (&json!([1]), &json!("ready")));
    // One that does not speak it is told what we speak.
    for versions in [json!([2, 3]), json!([])] {
        let (told, error) = peer_says(&framed(&serde_json::to_vec(&newer(versions)).unwrap()));
        let ExchangeError::Refused(refusal) = error else { panic!("{error}") };
        assert_eq!((refusal.field.as_str(), refusal.ours.as_str()), ("set-up version", "1"));
        assert!(refusal.theirs.contains('3'));
        assert_eq!(told["refusal"]["ours"], "1");
    }
}

#[test]
fn what_is_no_offer_is_answered_with_a_reason() {
    let mut trailing = serde_json::to_vec(&hello()).unwrap();
    trailing.extend_from_slice(b" {}");
    let deep = [b"[".repeat(100_000), b"]".repeat(100_000)].concat();
    let cases: [(Vec<u8>, &str); 9] = [
        (framed(b"{}"), "set-up message"),
        (framed(b""), "set-up message"),
        (framed(&trailing), "set-up message"),
        (framed(&deep), "set-up message"),
        (framed(br#"{"type":"bye"}"#), "set-up message"),
        (framed(br#"{"type":"\u001b[2Jbye\n"}"#), "set-up message"),
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "set-up protocol"),
        ([&(1_u32 << 30).to_be_bytes()[..], &b"x".repeat(99)].concat(), "set-up protocol"),
        ([&(1_u32 << 23).to_be_bytes()[..], &b" ".repeat(1 << 20)].concat(), "bytes of the offer"),
    ];
    for (bytes, field) in cases {
        let (told, error) = peer_says(&bytes);
        assert_eq!(told["refusal"]["field"], field, "{error}");
        let foreign = matches!(error, ExchangeError::Foreign { .. });
        assert_eq!(foreign, field == "set-up protocol", "{error}");
        let refused = matches!(error, ExchangeError::Malformed(_) | ExchangeError::TooLong { .. });
        assert!(foreign || refused, "{error}");
        assert!(!error.to_string().contains(char::is_control), "{error:?}");
    }
}

#[test]
fn half_an_offer_and_then_silence_or_the_end() {
    let body = serde_json::to_vec(&hello()).unwrap();
    let half = &framed(&body)[..100];
    // Silence: told of the limit.
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    stream.write_all(half).unwrap();
    let mut channel = listener.accept(Duration::from_millis(30), || true).unwrap();
    let error = channel.agree(&offer(11), establish).unwrap_err();
    assert!(matches!(error, ExchangeError::Timeout { .. }), "{error}");
    drop(channel);
    assert_eq!(replies(&mut stream)[0]["refusal"]["field"], "set-up offer");
    // The end, within the offer and between offer and answer.
    for bytes in [half, &framed(&body)] {
        let ((), error) = meet(
            |address| TcpStream::connect(address).unwrap().write_all(bytes).unwrap(),
            |mut channel| channel.agree(&offer(11), establish).unwrap_err(),
        );
        assert!(matches!(error, ExchangeError::Closed), "{error}");
    }
}

#[test]
fn the_names_that_are_read_are_those_that_are_written() {
    let info = QpInfo { plane_ids: vec![1, 2, 3, 4], ..info(10) };
    let ours = Offer { qps: vec![info], ..offer(10) };
    let spoken = super::format::Spoken::agree(1, &[]).unwrap();
    assert_eq!(spoken.read(serde_json::to_value(&ours).unwrap()).unwrap(), ours);
}

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
