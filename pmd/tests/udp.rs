//! The UDP port on the loopback interface: two ports in one thread.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::collections::BTreeMap;
use std::net::{IpAddr, UdpSocket};

use spindrift_pmd::memory::Region;
use spindrift_pmd::udp::{Offload, SourcePorts, UdpConfig, UdpPort};
use spindrift_pmd::{DatagramMeta, LinkState, Port, RxOrigin, Steering, SteeringException, TxFrame};

fn open(local: &str, offload: Offload) -> UdpPort {
    let local = local.parse().unwrap();
    UdpPort::open(&UdpConfig {
        local,
        port: 0,
        source_ports: SourcePorts::Count(4),
        gso: offload,
        gro: offload,
        ..UdpConfig::default()
    })
    .unwrap()
}

/// Ethernet, IP and UDP headers, as the transport would write them.
fn head(src: IpAddr, dst: IpAddr, ports: (u16, u16), traffic_class: u8) -> Vec<u8> {
    let mut head = vec![0; 14];
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            head.extend([0x45, traffic_class, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0]);
            head.extend(src.octets());
            head.extend(dst.octets());
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            head.extend([0x60 | traffic_class >> 4, traffic_class << 4, 0, 0, 0, 0, 17, 64]);
            head.extend(src.octets());
            head.extend(dst.octets());
        }
        _ => panic!("families differ"),
    }
    head.extend(ports.0.to_be_bytes());
    head.extend(ports.1.to_be_bytes());
    head.extend([0; 4]);
    head
}

fn receive(port: &mut UdpPort, count: usize) -> Vec<(DatagramMeta, Vec<u8>)> {
    let mut got = Vec::new();
    // On these interfaces the kernel delivers before the sender's call returns; a softirq handed to
    // another core is what the repeats are for.
    for _ in 0..2_000_000 {
        port.rx_burst(0, 7, &mut |frame| {
            let RxOrigin::Udp(meta) = frame.origin else { panic!("a kernel socket gives datagrams") };
            got.push((meta, frame.data.to_vec()));
        });
        if got.len() >= count {
            break;
        }
    }
    got
}

/// Frames of several source ports, sizes and classes in one burst: all arrive whole, with their marks, and
/// those of one source port in order.
fn burst_arrives(src: &str, dst: &str, offload: Offload) {
    let (mut a, mut b) = (open(src, offload), open(dst, offload));
    let ports = a.caps().source_ports.clone().unwrap();
    let (from, to) = (a.caps().local_ip, b.caps().local_ip);
    let payloads: Vec<Vec<u8>> = (0..120_usize)
        .map(|i| {
            let len = if i % 11 == 0 { 100 + i } else { 4096 };
            (0..len).map(|at| (at * 7 + i) as u8).collect()
        })
        .collect();
    let heads: Vec<_> = (0..120_usize)
        .map(|i| {
            let class = if ports[i % 4] == ports[3] { 0x2a << 2 | 2 } else { 0 };
            let mut head = head(from, to, (ports[i % 4], b.port()), class);
            head.extend((i as u32).to_be_bytes());
            head
        })
        .collect();
    let frames: Vec<_> = heads
        .iter()
        .zip(&payloads)
        .map(|(head, payload)| TxFrame {
            head,
            udp_payload_at: head.len() - 4,
            payload: payload.into(),
            tail: (&[0xee; 4]).into(),
            ticket: 0,
        })
        .collect();
    assert_eq!(a.tx_burst(0, &frames), 120);
    a.flush(0);
    let got = receive(&mut b, 120);
    assert_eq!(got.len(), 120, "{:?} {:?}", a.counters(), b.counters());
    let mut next: BTreeMap<u16, usize> = BTreeMap::new();
    for (meta, data) in &got {
        let i = u32::from_be_bytes(data[..4].try_into().unwrap()) as usize;
        assert_eq!((meta.src, meta.dst, meta.dst_port), (from, to, b.port()));
        assert_eq!(meta.src_port, ports[i % 4]);
        assert_eq!(meta.traffic_class, if i % 4 == 3 { 0x2a << 2 | 2 } else { 0 });
        assert_eq!(data[4..data.len() - 4], payloads[i]);
        assert_eq!(data[data.len() - 4..], [0xee; 4]);
        let next = next.entry(meta.src_port).or_insert(0);
        assert!(i >= *next, "port {} shows {i} after {next}", meta.src_port);
        *next = i + 1;
    }
    let counters = a.counters();
    assert_eq!((counters.tx_frames, counters.tx_dropped), (120, 0));
    assert_eq!(counters.tx_bytes, frames.iter().map(|f| f.len() as u64).sum::<u64>());
    assert_eq!(b.counters().rx_frames, 120);
    if a.uses_gso() {
        assert!(counters.tx_calls < 30, "{counters:?}");
    }
}

#[test]
fn ipv4_with_offloads() {
    burst_arrives("127.0.0.1", "127.0.0.2", Offload::Auto);
}

#[test]
fn ipv4_without_offloads() {
    burst_arrives("127.0.0.1", "127.0.0.2", Offload::Off);
}

#[test]
fn ipv6_with_offloads() {
    burst_arrives("::1", "::1", Offload::Auto);
}

#[test]
fn ipv6_without_offloads() {
    burst_arrives("::1", "::1", Offload::Off);
}

#[test]
fn any_mix_of_offloads_understands_each_other() {
    for (tx, rx) in [(Offload::Auto, Offload::Off), (Offload::Off, Offload::Auto)] {
        let (mut a, mut b) = (open("127.0.0.1", tx), open("127.0.0.3", rx));
        let port = a.caps().source_ports.as_ref().unwrap()[0];
        let head = head(a.caps().local_ip, b.caps().local_ip, (port, b.port()), 0);
        let payload = [5; 3000];
        let frame = TxFrame {
            head: &head,
            udp_payload_at: head.len(),
            payload: (&payload).into(),
            tail: (&[]).into(),
            ticket: 0,
        };
        a.tx_burst(0, &[frame; 20]);
        let got = receive(&mut b, 20);
        assert_eq!(got.len(), 20);
        assert!(got.iter().all(|(_, data)| data == &payload));
    }
}

#[test]
fn link_caps_and_hop_limit() {
    let mut port = UdpPort::open(&UdpConfig { port: 0, hop_limit: true, ..UdpConfig::default() }).unwrap();
    assert_eq!(port.link(), LinkState::Up);
    let caps = port.caps().clone();
    assert_eq!((caps.max_frame, caps.source_ports.as_ref().unwrap().len()), (9014, 32));
    assert!(caps.notes.iter().any(|note| note.contains("65536")), "{:?}", caps.notes);
    if port.uses_gso() {
        assert_eq!(caps.same_path_batch, 15);
    }
    let ip = caps.local_ip;
    let head = head(ip, ip, (caps.source_ports.unwrap()[0], port.port()), 0);
    port.tx_burst(0, &[frame(&head, b"to myself")]);
    let got = receive(&mut port, 1);
    assert_eq!((got[0].0.hop_limit, &got[0].1[..]), (64, &b"to myself"[..]));
}

/// Of each frame, also of one burst and one source port. Without one the kernel's stays.
#[test]
fn packets_have_the_hop_limit_of_their_frames() {
    for local in ["127.0.0.1", "::1"] {
        let local: IpAddr = local.parse().unwrap();
        let cfg = UdpConfig { local, port: 0, hop_limit: true, ..UdpConfig::default() };
        // A host may be without IPv6.
        let Ok(mut port) = UdpPort::open(&cfg) else { continue };
        let ports = (port.caps().source_ports.as_ref().unwrap()[0], port.port());
        let (at, headers) = if local.is_ipv4() { (14 + 8, 42) } else { (14 + 7, 62) };
        let limits = [9, 9, 255, 1, 0];
        let heads = limits.map(|limit| {
            let mut head = head(local, local, ports, 0);
            head[at] = limit;
            head
        });
        let frames = heads.each_ref().map(|head| TxFrame { udp_payload_at: headers, ..frame(head, b"x") });
        port.tx_burst(0, &frames);
        let mut got: Vec<_> = receive(&mut port, 5).iter().map(|(meta, _)| meta.hop_limit).collect();
        got.sort_unstable();
        assert_eq!(got, [1, 1, 9, 9, 255], "{local}");
    }
}

fn frame<'a>(head: &'a [u8], payload: &'a [u8]) -> TxFrame<'a> {
    TxFrame { head, udp_payload_at: 42, payload: payload.into(), tail: (&[]).into(), ticket: 0 }
}

#[test]
fn what_cannot_be_sent_is_counted_and_the_rest_goes() {
    let (mut a, mut b) = (open("127.0.0.1", Offload::Auto), open("127.0.0.4", Offload::Auto));
    let port = a.caps().source_ports.as_ref().unwrap()[0];
    let (from, to) = (a.caps().local_ip, b.caps().local_ip);
    let good = head(from, to, (port, b.port()), 0);
    let foreign_port = head(from, to, (1, b.port()), 0);
    let v6 = head("::1".parse().unwrap(), "::1".parse().unwrap(), (port, b.port()), 0);
    let long = vec![0; 9014];
    let nowhere = Region::virtual_at(100, 0).unwrap();
    let burst = [
        frame(&foreign_port, b"no socket"),
        frame(&good, b"good"),
        TxFrame { udp_payload_at: 62, ..frame(&v6, b"other family") },
        frame(&good, &long),
        frame(&[0; 50], b"no IP"),
        TxFrame { payload: nowhere.payload(0, 50).unwrap(), ..frame(&good, b"") },
    ];
    assert_eq!(a.tx_burst(0, &burst), 6);
    assert_eq!(receive(&mut b, 1)[0].1, b"good");
    let counters = a.counters();
    assert_eq!((counters.tx_unsendable, counters.tx_oversize, counters.tx_dropped), (4, 1, 5));
}

/// Another process of the same user may send from the same port, and whoever has a port for itself keeps it.
#[test]
fn source_ports_are_added_while_the_port_is_in_use() {
    let mut ports = [open("127.0.0.1", Offload::Auto), open("127.0.0.1", Offload::Auto)];
    let mut to = open("127.0.0.4", Offload::Auto);
    let (ip, to_ip) = (ports[0].caps().local_ip, to.caps().local_ip);
    let own = ports[0].caps().source_ports.clone().unwrap();
    let free = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let added = head(ip, to_ip, (free, to.port()), 0);
    for port in &mut ports {
        assert_eq!(port.tx_burst(0, &[frame(&added, b"too early")]), 1);
        assert_eq!(port.counters().tx_unsendable, 1);
        for _ in 0..2 {
            // The second one is of no use, and does no harm.
            port.add_source(port.source_opener().open(free).unwrap());
        }
        let burst = [frame(&added, b"one"), frame(&added, b"two")];
        assert_eq!(port.tx_burst(0, &burst), 2);
        let got = receive(&mut to, 2);
        let got: Vec<_> = got.iter().map(|(meta, data)| (meta.src_port, &data[..])).collect();
        assert_eq!(got, [(free, &b"one"[..]), (free, b"two")]);
    }
    let known = ports[0].caps().source_ports.as_ref().unwrap();
    assert_eq!((&known[..4], &known[4..]), (&own[..], &[free][..]));
    let opener = ports[1].source_opener();
    for taken in [own[0], ports[0].port()] {
        let text = opener.open(taken).unwrap_err().to_string();
        assert!(text.contains(&format!("UDP port {taken} on 127.0.0.1 is in use")), "{text}");
    }
    assert!(opener.open(0).unwrap_err().to_string().contains("source port 0 is no port"));
}

#[test]
fn an_unreachable_peer_is_counted_not_fatal() {
    let mut a = open("127.0.0.1", Offload::Auto);
    let port = a.caps().source_ports.as_ref().unwrap()[0];
    // Bound to 127.0.0.1, a socket cannot reach another network.
    let head = head(a.caps().local_ip, "192.0.2.1".parse().unwrap(), (port, 4971), 0);
    let frame =
        TxFrame { head: &head, udp_payload_at: 42, payload: b"lost".into(), tail: (&[]).into(), ticket: 0 };
    for _ in 0..3 {
        assert_eq!(a.tx_burst(0, &[frame; 3]), 3);
    }
    let counters = a.counters();
    assert_eq!(counters.tx_frames + counters.tx_dropped, 9);
}

#[test]
fn a_datagram_longer_than_the_buffers_is_dropped_and_counted() {
    let cfg = UdpConfig { port: 0, gro: Offload::Off, mtu: Some(1500), ..UdpConfig::default() };
    let mut port = UdpPort::open(&cfg).unwrap();
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    stranger.send_to(&[1; 4000], ("127.0.0.1", port.port())).unwrap();
    stranger.send_to(&[2; 40], ("127.0.0.1", port.port())).unwrap();
    assert_eq!(receive(&mut port, 1)[0].1, [2; 40]);
    assert_eq!(port.counters().rx_dropped, 1);
}

fn error(cfg: &UdpConfig) -> String {
    match UdpPort::open(cfg) {
        Ok(_) => panic!("opened"),
        Err(e) => e.to_string(),
    }
}

#[test]
fn errors_name_the_setting_and_the_way_out() {
    let cfg = UdpConfig { port: 0, ..UdpConfig::default() };
    let text = error(&UdpConfig { local: "192.0.2.7".parse().unwrap(), ..cfg.clone() });
    assert!(
        text.contains("192.0.2.7 is not an address of this host") && text.contains("127.0.0.1 (lo)"),
        "{text}"
    );

    let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let text = error(&UdpConfig { port, ..cfg.clone() });
    assert!(
        text.contains(&format!("UDP port {port} on 127.0.0.1 is in use")) && text.contains("ss -ulnp"),
        "{text}"
    );

    let list = |ports: &[u16]| UdpConfig { source_ports: SourcePorts::List(ports.to_vec()), ..cfg.clone() };
    assert!(error(&list(&[port])).contains("in use"));
    assert!(error(&list(&[50_001, 50_001])).contains("given twice"));
    assert!(error(&list(&[0])).contains("source port 0"));
    assert!(error(&list(&[])).contains("0 source ports"));
    assert!(error(&UdpConfig { port: 50_007, ..list(&[50_007]) }).contains("peers send to"));
    assert!(
        error(&UdpConfig { source_ports: SourcePorts::Count(20_000), ..cfg.clone() }).contains("1 to 16384")
    );
    let text = error(&UdpConfig { mtu: Some(100_000), ..cfg.clone() });
    assert!(text.contains("576 to 65536, the MTU of lo"), "{text}");
    assert!(error(&UdpConfig { receive_buffers: 0, ..cfg }).contains("receive_buffers"));
}

/// A rule with an exception, and one without.
const RULES: [Steering; 2] = [
    Steering { byte: 5, exception: Some(SteeringException { mask: 0xfe, value: 0xd8, byte: 10 }) },
    Steering { byte: 1, exception: None },
];

fn queues(local: &str, count: usize, steering: &Steering) -> Vec<UdpPort> {
    let cfg = UdpConfig {
        local: local.parse().unwrap(),
        port: 0,
        source_ports: SourcePorts::Count(2),
        ..UdpConfig::default()
    };
    UdpPort::open_queues(&cfg, count, steering).unwrap()
}

/// The kernel runs the same rule as we do, whatever the payload and its length.
#[test]
fn datagrams_are_steered_to_their_queues() {
    for (local, rule) in ["127.0.0.1", "::1"].into_iter().flat_map(|ip| RULES.map(|rule| (ip, rule))) {
        for count in [2, 3, 7, 16] {
            let mut ports = queues(local, count, &rule);
            let to = (ports[0].caps().local_ip, ports[0].port());
            assert!(
                ports.iter().all(|port| port.port() == to.1 && port.caps().notes == ports[0].caps().notes)
            );
            let sender = UdpSocket::bind((to.0, 0)).unwrap();
            let mut expected = vec![Vec::new(); count];
            for n in 0..256_usize {
                let mut payload: Vec<u8> = (0..12).map(|at| (n * 0x61 + at * 0x35) as u8).collect();
                payload[0] = if n % 3 == 0 { 0xd8 + (n % 2) as u8 } else { n as u8 };
                payload.truncate(if n % 5 == 0 { 1 + n % 11 } else { 12 });
                sender.send_to(&payload, to).unwrap();
                expected[rule.queue(&payload, count)].push(payload);
            }
            for (number, (port, expected)) in ports.iter_mut().zip(expected).enumerate() {
                let got = receive(port, expected.len());
                assert!(
                    !expected.is_empty() && port.caps().name.ends_with(&format!("queue {number} of {count}"))
                );
                assert!(
                    got.into_iter().map(|(_, data)| data).eq(expected),
                    "{rule:?}: queue {number} of {count}"
                );
            }
            assert!(ports.iter_mut().all(|port| port.rx_burst(0, 1, &mut |_| ()) == 0), "none twice");
        }
    }
}

/// What is shared among the queues of one port is shared with no other.
#[test]
fn the_address_of_queues_is_taken() {
    let ports = queues("127.0.0.1", 2, &RULES[0]);
    let cfg = UdpConfig { port: ports[0].port(), ..UdpConfig::default() };
    assert!(error(&cfg).contains("in use"));
    let text = UdpPort::open_queues(&cfg, 2, &RULES[0]).map(|_| ()).unwrap_err().to_string();
    assert!(text.contains("in use"), "{text}");
    drop(ports);
    let ports = UdpPort::open_queues(&cfg, 1, &RULES[0]).unwrap();
    assert!(!ports[0].caps().name.contains("queue"));
    assert!(UdpPort::open_queues(&cfg, 2, &RULES[0]).is_err(), "one queue shares nothing");
    for count in [0, 17] {
        let text = UdpPort::open_queues(&cfg, count, &RULES[0]).map(|_| ()).unwrap_err().to_string();
        assert!(text.contains(&format!("{count} receive queues requested; use 1 to 16")), "{text}");
    }
}

#[test]
fn queues_send_from_ports_of_their_own_or_from_all_of_a_list() {
    let ports = queues("127.0.0.1", 3, &RULES[0]);
    let mut all: Vec<u16> = ports.iter().flat_map(|port| port.caps().source_ports.clone().unwrap()).collect();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 6);
    drop(ports);
    let cfg = UdpConfig { port: 0, source_ports: SourcePorts::List(all.clone()), ..UdpConfig::default() };
    let mut ports = UdpPort::open_queues(&cfg, 3, &RULES[0]).unwrap();
    let mut to = UdpPort::open(&UdpConfig { port: 0, ..UdpConfig::default() }).unwrap();
    let ip = to.caps().local_ip;
    for port in &mut ports {
        assert_eq!(port.caps().source_ports.as_ref(), Some(&all));
        let heads: Vec<_> = all.iter().map(|&from| head(ip, ip, (from, to.port()), 0)).collect();
        let frames: Vec<_> = heads.iter().map(|head| frame(head, &[1; 40])).collect();
        assert_eq!(port.tx_burst(0, &frames), 6);
        let from: Vec<u16> = receive(&mut to, 6).iter().map(|(meta, _)| meta.src_port).collect();
        assert_eq!(from, all);
    }
    let cfg = UdpConfig { port: 0, ..cfg };
    assert!(UdpPort::open_queues(&cfg, 3, &RULES[0]).map(|_| ()).unwrap_err().to_string().contains("in use"));
}

#[test]
fn addresses_are_listed() {
    let all = spindrift_pmd::route::local_addresses().unwrap();
    assert!(all.iter().any(|local| local.interface.name == "lo" && local.ip.is_loopback()));
}
