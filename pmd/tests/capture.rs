//! Captures open in other readers, and trace lines say what passed.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pcap_file::DataLink;
use pcap_file::pcap::PcapReader;
use spindrift_pmd::fault::FaultPort;
use spindrift_pmd::loopback::{LoopbackConfig, pair};
use spindrift_pmd::memory::{Payload, Region};
use spindrift_pmd::pcap::{Capture, PcapPort};
use spindrift_pmd::trace::TracePort;
use spindrift_pmd::udp::{SourcePorts, UdpConfig, UdpPort};
use spindrift_pmd::{Port, Tail, TxFrame};

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Shared {
    fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap().clone()
    }
}

/// An IPv4 datagram with a transport header: sack, queue pair 0x12b, sequence number 0x100.
fn head(src: [u8; 4], dst: [u8; 4], ports: (u16, u16)) -> Vec<u8> {
    let mut head = Vec::new();
    let builder = etherparse::PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2])
        .ipv4(src, dst, 63)
        .udp(ports.0, ports.1);
    builder.write(&mut head, &[0xdc, 0, 0, 0, 0, 0, 1, 0x2b, 0, 0, 1, 0]).unwrap();
    head[15] = 0x2a;
    head
}

fn packets(bytes: &[u8]) -> Vec<(Duration, Vec<u8>)> {
    let mut reader = PcapReader::new(bytes).unwrap();
    assert_eq!(reader.header().datalink, DataLink::ETHERNET);
    let mut out = Vec::new();
    while let Some(packet) = reader.next_packet() {
        let packet = packet.unwrap();
        out.push((packet.timestamp, packet.data.into_owned()));
    }
    out
}

#[test]
fn both_ends_of_a_ring_in_one_file_with_nanoseconds() {
    let file = Shared::default();
    let capture = Capture::to(Box::new(file.clone()), 1_700_000_000_000_000_000);
    let (a, b) = pair(1, LoopbackConfig::default());
    let wrap = |ports: Vec<_>| PcapPort::new(Box::new(ports.into_iter().next().unwrap()), capture.clone());
    let (mut a, mut b) = (wrap(a), wrap(b));
    let head = head([10, 0, 0, 1], [10, 0, 0, 2], (0xc001, 4971));
    let frame = TxFrame {
        head: &head,
        udp_payload_at: 42,
        payload: b"payload".into(),
        tail: (b"tail").into(),
        ticket: 0,
    };
    a.tx_burst(1_234_567_891, &[frame]);
    b.rx_burst(1_234_567_999, 8, &mut |_| ());
    assert!(file.bytes().is_empty(), "collected, not yet written");
    capture.flush();
    let got = packets(&file.bytes());
    let whole = [&head[..], b"payloadtail"].concat();
    assert_eq!(got[0], (Duration::new(1_700_000_001, 234_567_891), whole.clone()));
    assert_eq!(got[1], (Duration::new(1_700_000_001, 234_567_999), whole));
    let counters = capture.counters();
    assert_eq!((counters.frames, counters.bytes, counters.missed), (2, 130, 0));
}

/// The check value of CRC-32, over a payload that is part of a region.
#[test]
fn a_tail_that_the_port_computes_is_captured_as_it_leaves() {
    let file = Shared::default();
    let capture = Capture::to(Box::new(file.clone()), 0);
    let (mut a, mut b) = pair(1, LoopbackConfig::default());
    let mut port = PcapPort::new(Box::new(a.remove(0)), capture.clone());
    let head = head([10, 0, 0, 1], [10, 0, 0, 2], (0xc001, 4971));
    let region = Region::from_vec(b"..123456789..".to_vec()).unwrap();
    let payload = region.payload(2, 9).unwrap();
    port.tx_burst(
        0,
        &[TxFrame { head: &head, udp_payload_at: 42, payload, tail: Tail::Crc32(0), ticket: 0 }],
    );
    capture.flush();
    let whole = [&head[..], b"123456789\x26\x39\xf4\xcb"].concat();
    assert_eq!(packets(&file.bytes())[0].1, whole);
    assert_eq!(b[0].rx_burst(0, 8, &mut |frame| assert_eq!(frame.data, whole)), 1);
}

#[test]
fn a_kernel_socket_s_datagram_gets_headers() {
    let file = Shared::default();
    let cfg =
        UdpConfig { port: 0, source_ports: SourcePorts::Count(1), hop_limit: true, ..UdpConfig::default() };
    let port = UdpPort::open(&cfg).unwrap();
    let (dst_port, src_port) = (port.port(), port.caps().source_ports.as_ref().unwrap()[0]);
    let mut port = PcapPort::new(Box::new(port), Capture::to(Box::new(file.clone()), 0));
    let head = head([127, 0, 0, 1], [127, 0, 0, 1], (src_port, dst_port));
    port.tx_burst(
        5,
        &[TxFrame {
            head: &head,
            udp_payload_at: 42,
            payload: b"hello".into(),
            tail: (&[]).into(),
            ticket: 0,
        }],
    );
    for _ in 0..1_000_000 {
        if port.rx_burst(6, 8, &mut |frame| assert_eq!(&frame.data[12..], b"hello")) > 0 {
            break;
        }
    }
    drop(port);
    let got = packets(&file.bytes());
    assert_eq!(got.len(), 2, "dropping the last handle writes");
    let packet = etherparse::PacketHeaders::from_ethernet_slice(&got[1].1).unwrap();
    let Some(etherparse::NetHeaders::Ipv4(ip, _)) = &packet.net else { panic!("{packet:?}") };
    assert_eq!((ip.source, ip.destination, ip.time_to_live), ([127, 0, 0, 1], [127, 0, 0, 1], 63));
    assert_eq!(u8::from(ip.dscp) << 2 | u8::from(ip.ecn), 0x2a);
    assert_eq!(ip.header_checksum, ip.calc_header_checksum());
    let udp = packet.transport.unwrap().udp().unwrap();
    assert_eq!((udp.source_port, udp.destination_port, udp.length), (src_port, dst_port, 25));
    assert_eq!(packet.payload.slice()[12..], *b"hello");
}

/// Takes `left` bytes, then is full.
struct SmallDisk {
    left: usize,
}

impl Write for SmallDisk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.left {
            return Err(io::Error::other("No space left on device"));
        }
        self.left -= bytes.len();
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_ends_the_capture_not_the_traffic() {
    let capture = Capture::to(Box::new(SmallDisk { left: 1_500_000 }), 0);
    let (mut a, mut b) = pair(1, LoopbackConfig::default());
    let mut port = PcapPort::new(Box::new(a.remove(0)), capture.clone());
    let head = head([10, 0, 0, 1], [10, 0, 0, 2], (1, 2));
    let payload = [7; 4096];
    let frame = TxFrame {
        head: &head,
        udp_payload_at: 42,
        payload: (&payload).into(),
        tail: (&[]).into(),
        ticket: 0,
    };
    for _ in 0..600 {
        assert_eq!(port.tx_burst(0, &[frame]), 1);
        assert_eq!(b[0].rx_burst(0, 8, &mut |_| ()), 1);
    }
    assert_eq!(capture.error().unwrap(), "No space left on device");
    let counters = capture.counters();
    assert!(counters.missed > 50 && counters.frames + counters.missed == 600, "{counters:?}");
}

#[test]
fn a_file_that_cannot_be_created_is_named() {
    let error = Capture::create("/nonexistent/run.pcap".as_ref(), 0).err().unwrap();
    assert!(error.to_string().contains("/nonexistent/run.pcap"), "{error}");
}

#[test]
fn trace_lines() {
    let text = Shared::default();
    let (mut a, mut b) = pair(1, LoopbackConfig::default());
    let mut a = TracePort::new(Box::new(a.remove(0)), 0, Box::new(text.clone()));
    let mut b = TracePort::new(Box::new(b.remove(0)), 3, Box::new(text.clone()));
    let head = head([10, 0, 0, 1], [10, 0, 0, 2], (0xc001, 4971));
    // The transport header may be split over the pieces.
    let split = TxFrame {
        head: &head[..42],
        udp_payload_at: 42,
        payload: (&head[42..46]).into(),
        tail: (&head[46..]).into(),
        ticket: 0,
    };
    a.tx_burst(
        12_345,
        &[
            split,
            TxFrame {
                head: &[0; 20],
                udp_payload_at: 20,
                payload: Payload::EMPTY,
                tail: (&[]).into(),
                ticket: 0,
            },
        ],
    );
    b.rx_burst(1_000_012_400, 8, &mut |_| ());
    let text = String::from_utf8(text.bytes()).unwrap();
    let flow = "10.0.0.1.49153 > 10.0.0.2.4971 dscp 10 ecn 2 fl 00000 sack 0xdc qp 00012b psn 000100 len 54";
    let lines = [
        format!("0.000012345 p0 tx {flow}"),
        "0.000012345 p0 tx len 20".to_owned(),
        format!("1.000012400 p3 rx {flow}"),
        "1.000012400 p3 rx len 20".to_owned(),
    ];
    assert_eq!(text.lines().collect::<Vec<_>>(), lines);
}

#[test]
fn a_trace_that_cannot_be_written_is_counted() {
    let (mut a, _b) = pair(1, LoopbackConfig::default());
    let mut port = TracePort::new(Box::new(a.remove(0)), 0, Box::new(SmallDisk { left: 0 }));
    let failed = port.failed();
    port.tx_burst(
        0,
        &[TxFrame {
            head: &[0; 20],
            udp_payload_at: 20,
            payload: Payload::EMPTY,
            tail: (&[]).into(),
            ticket: 0,
        }],
    );
    assert_eq!(failed.load(std::sync::atomic::Ordering::Relaxed), 1);
    assert_eq!(port.counters().tx_frames, 1);
}

/// A payload that the receiver reads where the sender has it is seen by everything on the way, and may be copied there.
#[test]
fn middleware_sees_frames_that_lie_in_several_places() {
    let (file, lines) = (Shared::default(), Shared::default());
    let capture = Capture::to(Box::new(file.clone()), 0);
    let (mut a, mut b) = pair(1, LoopbackConfig::default());
    let faulty = FaultPort::new(Box::new(b.remove(0)), 0, "dup=100%,dir=rx".parse().unwrap(), 1);
    let captured = PcapPort::new(Box::new(faulty), capture.clone());
    let mut rx = TracePort::new(Box::new(captured), 0, Box::new(lines.clone()));
    let head = head([10, 0, 0, 1], [10, 0, 0, 2], (0xc001, 4971));
    let bytes: Vec<u8> = (0..1000).map(|n| n as u8).collect();
    let region = Region::from_vec(bytes.clone()).unwrap();
    let payload = region.payload(7, 900).unwrap();
    let frame = TxFrame { head: &head, udp_payload_at: 42, payload, tail: (b"tail").into(), ticket: 3 };
    a[0].tx_burst(0, &[frame]);
    assert_eq!(a[0].reap(), 3, "the receiver has not looked yet");
    let whole = [&head[..], &bytes[7..907], b"tail"].concat();
    let mut seen = Vec::new();
    for now_ns in 1..4 {
        rx.rx_burst(now_ns, 8, &mut |frame| {
            assert_eq!(frame.len(), whole.len());
            let mut bytes = Vec::new();
            frame.append_to(&mut bytes);
            seen.push(bytes);
        });
    }
    assert_eq!((seen, a[0].reap()), (vec![whole.clone(); 2], u64::MAX));
    capture.flush();
    assert!(packets(&file.bytes()).into_iter().map(|(_, bytes)| bytes).eq([whole.clone(), whole.clone()]));
    drop(rx);
    let text = String::from_utf8(lines.bytes()).unwrap();
    let end = format!(" len {}", whole.len());
    assert!(text.lines().count() == 2 && text.lines().all(|line| line.ends_with(&end)), "{text}");
}
