//! What a peer's bytes may be: each field, its bounds, later versions, and what is no offer.

use super::*;

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
    let spoken = crate::format::Spoken::agree(1, &[]).unwrap();
    assert_eq!(spoken.read(serde_json::to_value(&ours).unwrap()).unwrap(), ours);
}
