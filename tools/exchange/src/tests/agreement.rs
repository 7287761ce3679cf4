//! Offers that fit and offers that do not.

use super::*;

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
